"""What tools show of an application, made of its row, its outcome and the view that its ApplicationMaster wrote.

A view is handled in its JSON form (`dlapp.report.ApplicationView`), so that who needs only that pays for no classes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Container, Iterable
from typing import Any

from dlapp.cluster.local import outcome as outcomes
from dlapp.cluster.local import schedule, state
from dlapp.cluster.local.outcome import Outcome
from dlapp.cluster.local.queue import DONE, WAITING, Row
from dlapp.errors import DlappError

View = dict[str, Any]


def view_of(row: Row, home: str, boot_id: str, *, alive: bool, ahead: str = "", short: bool = False) -> View:
    """What is known of one application now.

    Args:
        alive: whether its lock was held, looked at before the row was read: then a lock that is held by who cleans up
            after a death is never taken for an ApplicationMaster's, because the row says first that this began.
        ahead: for one that waits, and is not the first: how many are before it.
        short: of one that has ended, only what its row has: the containers but one are left out.
    """
    if row.state == WAITING:
        reason = row.reason or ahead or "waiting: next to start"
        return _of_row(row) | {"state": "ACCEPTED", "phase": "waiting", "diagnostics": reason}
    if row.state == DONE:
        outcome = json.loads(row.outcome)
        seen = json.loads(row.summary) if short and row.summary else {} if short else _read_view(home)
        return _ended(_of_row(row) | (seen or {}), outcome)
    return _running(row, home, boot_id, alive and not row.aftermaths)


def _running(row: Row, home: str, boot_id: str, alive: bool) -> View:
    # The outcome is read after the lock: an application whose lock was free and that has none stays without.
    outcome = _read_outcome(home)
    seen = _read_view(home)
    view = _of_row(row) | (seen or {})
    if outcome is not None:
        return _ended(view, outcome)
    if not alive and outcomes.began(home, row.boot_id, boot_id):
        if (derived := outcomes.derive(home, row.boot_id, boot_id)) is not None:
            return _ended(view, derived)
        return view | {
            "state": "RUNNING",
            "phase": "committing",
            "diagnostics": "the ApplicationMaster died while it committed the output; the commit is being finished",
        }
    if seen is None:
        return view | {"state": "ACCEPTED", "phase": "starting", "diagnostics": "the ApplicationMaster is starting"}
    # A view may already speak of the end, but only the outcome makes it one.
    if view["state"] in ("FINISHED", "FAILED", "KILLED"):
        view |= {"state": "RUNNING", "final_status": "UNDEFINED", "cause": None, "finished_ms": None}
    return view


def _of_row(row: Row) -> View:
    return {
        "application_id": row.id,
        "attempt": 1 + row.aftermaths,
        "state": "RUNNING",
        "final_status": "UNDEFINED",
        "cause": None,
        "phase": "",
        "diagnostics": "",
        "username": row.username,
        "appname": row.appname,
        "submitter": row.submitter,
        "submitted_ms": row.submitted_ms,
        "started_ms": row.started_ms,
        "finished_ms": row.finished_ms,
        "total_containers": row.containers,
        "memory_mib": row.memory_mib,
        "vcores": row.vcores,
        "gcores": row.gcores,
        "containers": [],
        "outputs": [],
    }


def _ended(view: View, outcome: Outcome) -> View:
    containers = [
        one
        if one.get("phase") == "ended"
        else one | {"phase": "ended", "progress": None, "finished_ms": outcome["finished_ms"]}
        for one in view.get("containers", ())
    ]
    return view | outcome | {"phase": "", "containers": containers}


def summary_of(row: Row, outcome: Outcome, home: str) -> str:
    """JSON of the last view for a list: of its containers only the one that speaks for the exit code: the one that
    was the first to end badly, since others are stopped for it, or else the first in order."""
    view = _read_view(home)
    if view is None:
        return ""
    view = _ended(view, outcome)
    containers = view["containers"]
    bad = [one for one in containers if one.get("exit_code") or one.get("signal")]
    bad.sort(key=lambda one: (not one.get("exit_code"), one.get("finished_ms") or 0))
    view["containers"] = (bad or containers)[:1]
    return json.dumps(view, separators=(",", ":"))


def views_of(
    rows: Iterable[Row], all_waiting: Iterable[Row], alive: Container[str], home_of: Callable[[str], str], boot_id: str
) -> list[View]:
    """`view_of` for a list, in order; ``alive`` has the ids of those whose lock was held."""
    waiting = list(all_waiting)
    first = min((row.number for row in waiting), default=0)
    views = []
    for row in rows:
        ahead = schedule.ahead(row.number, waiting) if row.state == WAITING and row.number != first else ""
        views.append(view_of(row, home_of(row.id), boot_id, alive=row.id in alive, ahead=ahead, short=True))
    return views


def _read_view(home: str) -> View | None:
    try:
        return state.read_json(os.path.join(home, "view.json"))
    except DlappError:
        return None  # it is not forced to the disk: a power cut may leave it empty


def _read_outcome(home: str) -> Outcome | None:
    try:
        return outcomes.read_outcome(home)
    except DlappError as error:
        return outcomes.failed(str(error), outcomes.died_ms(home))
