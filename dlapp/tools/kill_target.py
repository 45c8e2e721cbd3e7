"""Arguments of dlapp-kill and dlapp-softkill: ``[USER] ID...``; there is no form for all applications of a user."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from dlapp.errors import DlappError, UsageError
from dlapp.tools.common import explain, note, print_json, say

if TYPE_CHECKING:
    from dlapp.client import Client
    from dlapp.values.ids import ApplicationId


def targets(client: Client, words: Sequence[str], name: str) -> tuple[list[ApplicationId], str | None]:
    """Return the applications that the words name, without duplicates, and their required owner.

    A first word that is not in the form of an id is the owner. All are resolved before the first is ended.

    Raises:
        UsageError: there is no ID, or an ambiguous one.
        NotFound, Denied: see `Client.resolve`.
    """
    from dlapp.id_text import looks_like_id

    if not words:
        raise UsageError(f"which application? {name} ID, or {name} USER ID (dlapp-list shows them)")
    user, *ids = words
    if looks_like_id(user):
        return find_all(client, words), None
    if not ids:
        raise UsageError(
            f"{user!r} is not an application id, and a user's name alone ends nothing: "
            f"{name} {user} ID (dlapp-list {user} shows them)"
        )
    return find_all(client, ids, user=user), user


def find_all(client: Client, words: Sequence[str], *, user: str | None = None) -> list[ApplicationId]:
    """Return the applications that the words name, without duplicates; all of them exist.

    Raises:
        UsageError, NotFound, Denied: see `Client.resolve`.
    """
    found = dict.fromkeys(client.resolve(word, user=user) for word in words)
    if len(found) > 1:
        for one in found:
            client.view_of(one)
    return list(found)


def end_each(
    applications: Sequence[ApplicationId], end: Callable[[ApplicationId], str], name: str, as_json: bool
) -> int:
    """End applications one after another, and print the result of each; continue after an error.

    Args:
        applications: at least one.
        end: ends one, and returns a line on the result.
        name: the name of the command.
        as_json: print JSON.

    Returns:
        The exit code: that of the first error.
    """
    if len(applications) == 1:
        message = end(applications[0])
        if as_json:
            print_json({"application_id": str(applications[0]), "message": message})
        else:
            say(message)
        return 0
    status, results = 0, []
    for one in applications:
        try:
            message, problem = end(one), ""
        except DlappError as error:
            lines, code = explain(error, name)
            message, problem, status = "", str(error), status or code
            for line in lines:
                note(line)
        results.append({"application_id": str(one), "message": message, "error": problem})
        if message and not as_json:
            say(message)
    if as_json:
        print_json({"applications": results})
    return status
