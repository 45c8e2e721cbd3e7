"""What dlapp-kill and dlapp-softkill have in common: ``USER ID`` or ``ID``, and never "all of USER's"."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlapp.errors import UsageError
from dlapp.tools.common import print_json, say

if TYPE_CHECKING:
    from dlapp.client import Client
    from dlapp.ids import ApplicationId


def target(client: Client, words: tuple[str, ...], name: str) -> tuple[ApplicationId, str | None]:
    """The application that the words name, and the user whose it must be.

    Raises:
        UsageError: no ID, or more than two words.
        NotFound, Denied: see `Client.resolve`.
    """
    from dlapp.client import looks_like_id

    match words:
        case ():
            raise UsageError(f"which application? {name} ID, or {name} USER ID (dlapp-list shows them)")
        case (word,) if not looks_like_id(word):
            raise UsageError(
                f"{word!r} is not an application id, and a user's name alone ends nothing: "
                f"{name} {word} ID (dlapp-list {word} shows them)"
            )
        case (word,):
            return client.resolve(word), None
        case (user, word):
            return client.resolve(word, user=user), user
    raise UsageError(f"{len(words)} words are too many: {name} ID, or {name} USER ID")


def show(application_id: ApplicationId, message: str, as_json: bool) -> None:
    """Print what came of it."""
    if as_json:
        print_json({"application_id": str(application_id), "message": message})
    else:
        say(message)
