"""Conditions for the start of an application: the ends of other applications (``after``)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import Enum

from dlapp.errors import SpecError
from dlapp.id_text import looks_like_id
from dlapp.system.text import first_repeated, shown
from dlapp.value import NamedTuple, Value

MAX_AFTER = 100
"""Maximum number of applications that one can wait for."""
_NAMED = 3
SUCCEEDED, FAILED, KILLED, UNKNOWN = "SUCCEEDED", "FAILED", "KILLED", "UNKNOWN"
"""How an application ended: a final status of `dlapp.values.report`, or ended with an unknown status."""
_HOW = {SUCCEEDED: "succeeded", FAILED: "failed", KILLED: "was killed", UNKNOWN: "ended, and how is not known any more"}


class RequiredEnd(Enum):
    """End of an application that another one waits for."""

    OK = "ok"
    """Successful end."""
    ANY = "any"
    """Any end."""
    FAILED = "failed"
    """Unsuccessful end: a failure, a time-out or a kill."""


class After(Value):
    """Application that another one waits for.

    Args:
        application_id: full id once submitted; before that any name that commands accept.
    """

    application_id: str
    end: RequiredEnd = RequiredEnd.OK

    def __post_init__(self) -> None:
        if not looks_like_id(self.application_id):
            raise SpecError("application.after", f"{shown(self.application_id)} is not an application's id")

    def __str__(self) -> str:
        """Return it in the form of a properties file."""
        return f"{self.application_id}:{self.end.value}"


class Conditions(NamedTuple):
    """Remaining conditions of an application.

    Args:
        pending: conditions that are not decided yet.
        failure: why one can never be met, for users; empty: none is known to be impossible.
    """

    pending: tuple[After, ...]
    failure: str = ""


def read_after(text: str) -> tuple[After, ...]:
    """Parse the applications in a text: ``ID[:ok|any|failed], ...``; an id may be any name that commands accept.

    Raises:
        ValueError: it names none, or one twice.
    """
    found = []
    for one in filter(None, (part.strip() for part in re.split(r"[,\n]", text))):
        application_id, colon, end = one.partition(":")
        if not looks_like_id(application_id):
            forms = "ID, ID:ok, ID:any or ID:failed, with the id of an application, its ending, or last"
            raise ValueError(f"{shown(one)} is not {forms}")
        try:
            found.append(After(application_id, RequiredEnd(end) if colon else RequiredEnd.OK))
        except ValueError:
            raise ValueError(f"{shown(one)}: {shown(end)} is neither ok nor any nor failed") from None
    check_after(found)
    return tuple(found)


def check_after(conditions: Iterable[After]) -> None:
    """Reject conditions that exclude each other. Raises ValueError."""
    ids = [one.application_id for one in conditions]
    if len(ids) > MAX_AFTER:
        raise ValueError(f"has {len(ids)} applications, the maximum is {MAX_AFTER}")
    if twice := first_repeated(ids):
        raise ValueError(f"{twice} appears twice")


def evaluate_conditions(conditions: Iterable[After], ends: Mapping[str, str]) -> Conditions:
    """Return the remaining conditions.

    Args:
        ends: ended application -> how it ended.
    """
    pending = []
    for one in conditions:
        if (how := ends.get(one.application_id)) is None:
            pending.append(one)
        elif not _is_met(one.end, how):
            return Conditions((), f"{one.application_id} {_HOW[how]}, so after={one} can never hold")
    return Conditions(tuple(pending))


def _is_met(end: RequiredEnd, how: str) -> bool:
    match end:
        case RequiredEnd.ANY:
            return True
        case RequiredEnd.OK:
            return how == SUCCEEDED
        case RequiredEnd.FAILED:
            return how in (FAILED, KILLED)


def waiting_text(pending: Iterable[After]) -> str:
    """Return the awaited ends as text: ``waits for the end of application_1_0001 (ok)``."""
    names = [f"{one.application_id} ({one.end.value})" for one in pending]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"waits for the end of {', '.join(names[:_NAMED])}{more}"


def plan_texts(after: Iterable[After], ends: Mapping[str, str], *, is_held: bool) -> tuple[str, str]:
    """Return what an unsubmitted application would wait for besides resources (other applications, a release); empty:
    nothing.

    Args:
        after, ends: as in `evaluate_conditions`.
        is_held: it is to be held.
    """
    pending = evaluate_conditions(after, ends).pending
    held = "it is held until it is released (dlapp-release)" if is_held else ""
    return waiting_text(pending) if pending else "", held


def held_text(application_id: str) -> str:
    """Return the text for a held application."""
    return f"it is held until it is released ({release_text(application_id)})"


def release_text(application_id: str) -> str:
    """Return the command that releases an application."""
    return f"dlapp-release {application_id}"


def how_ended(final_status: str) -> str:
    """Return how an application ended, from an engine's final status; an unknown one counts as a failure."""
    return final_status if final_status in (SUCCEEDED, KILLED) else FAILED
