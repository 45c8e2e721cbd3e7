"""Removal of ended applications of the caller."""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING

from dlapp.cluster import ENDED, NOT_ENDED
from dlapp.cluster.local import views
from dlapp.cluster.local.row import DONE, ApplicationRow
from dlapp.errors import DlappError, TimedOut, UsageError

if TYPE_CHECKING:
    from dlapp.cluster.local.client.session import LocalSession


def unstored(session: LocalSession, application_id: str) -> list[str]:
    """Return the paths of output that could not be stored."""
    above, kept = session.state.unstored(session.uid), list[str]()
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        kept = os.listdir(above)
    containers = f"container_{application_id.removeprefix('application_')}_"
    moved = [os.path.join(above, name) for name in sorted(kept) if name.startswith(containers)]
    is_over = session.row(application_id).state == DONE
    return moved + (views.unstored_in(session.state.application(application_id)) if is_over else [])


def remove(session: LocalSession, application_id: str) -> None:
    """Remove an ended application, with its logs.

    Raises:
        DlappError: its files cannot be removed; also the errors of `removable`.
    """
    from dlapp.cluster.local.runner import history

    row = removable(session, application_id)
    if not history.forget(session.state, session.queue(), row):
        raise DlappError(f"{session.state.application(row.id)} cannot be removed")


def removable(session: LocalSession, application_id: str) -> ApplicationRow:
    """Return the row of an application that may be removed.

    Raises:
        NotFound: it does not exist.
        UsageError: it has not ended, or another one waits for its end.
        TimedOut: it has ended, but one of its processes is still there.
    """
    from dlapp.cluster.local.client.kill import KILL_END_S, wait_for

    row = session.row(application_id)
    if row.state != DONE:
        state = session.own_view(application_id)["state"]
        if state not in ENDED:
            raise UsageError(f"{application_id} is {state}: {NOT_ENDED}")
        # Its last processes may end after the application.
        session.nudge_runner()
        if not wait_for(lambda: session.is_settled(row), time.monotonic() + KILL_END_S):
            raise TimedOut(f"{application_id} is {state}, but its last processes have not ended in {KILL_END_S:g} s")
        row = session.row(application_id)
    if kept := views.unstored_in(session.state.application(application_id)):
        raise UsageError(f"{application_id} has output that could not be stored: move {kept[0]} first")
    for other in session.queue().rows("state = 'dependent'"):
        if f"{application_id}:" in other.after:
            raise UsageError(f"{other.id} waits for its end, and its runner has not seen that yet: try again")
    return row
