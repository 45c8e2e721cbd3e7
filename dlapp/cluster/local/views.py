"""Views of applications, from a row, an outcome and the view written by the ApplicationMaster.

Views are handled in their JSON form (`dlapp.values.report.ApplicationView`), so that callers that need only that do not
load the classes. Only a view that contradicts the outcome is read as a value, for `dlapp.cluster.view_rules`.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING, Any

from dlapp.cluster import ENDED
from dlapp.cluster.local import outcome as outcomes
from dlapp.cluster.local import state
from dlapp.cluster.local.attempts import is_requeued, next_attempt
from dlapp.cluster.local.outcome import Outcome
from dlapp.cluster.local.row import DEPENDENT, DONE, HELD, UNSTARTED, ApplicationRow
from dlapp.cluster.local.schedule import QueueOrder
from dlapp.errors import DlappError
from dlapp.scheduler.amounts import Amounts
from dlapp.system import clock
from dlapp.system.files import is_plain_path

if TYPE_CHECKING:
    from dlapp.values.report import ApplicationView

View = dict[str, Any]
_OF_UNENDED = ("waiting", "lacking", "idle", "links")
"""Fields that an application has only until its end."""


def view_of(
    row: ApplicationRow,
    application_dir: str,
    boot_id: str,
    waiting: QueueOrder,
    *,
    alive: bool,
    has_runner: bool,
    short: bool = False,
    own: bool = True,
) -> View:
    """Return the current view of one application.

    Args:
        row: row of the queue.
        application_dir: the application directory.
        boot_id: current boot id: a row of another one has no process.
        waiting: all waiting rows.
        alive: whether its lock was held, checked before the row was read: so a lock held by a clean-up process is never
            taken for an ApplicationMaster's, because the row is updated before the clean-up starts.
        has_runner: whether its user has a runner, checked before that: a runner that sees an ApplicationMaster die
            starts the next one, even if no other process is left; one that starts later does not.
        short: for an ended one use only its row: all but one of the containers are left out.
        own: False: another user wrote the row and all files in ``application_dir``; an invalid view there is ignored.
    """
    if row.state in UNSTARTED:
        reason = _waiting_of(row, waiting, own=own)
        return _described(row, own=own) | {
            "state": "ACCEPTED",
            "phase": "waiting",
            "diagnostics": reason["message"],
            "waiting": reason,
        }
    if row.state == DONE:
        outcome = _json_of(row.outcome)
        if not own:
            outcome = _checked_outcome(outcome)
        seen = None if short else _read_view(application_dir)
        return _ended(row, _described(row, seen, own=own), outcome)
    return _running(row, application_dir, boot_id, alive=alive and not row.aftermaths, has_runner=has_runner, own=own)


SHOWN_AHEAD = 20


def _waiting_of(row: ApplicationRow, waiting: QueueOrder, *, own: bool) -> dict[str, Any]:
    """Return why an application waits, in the JSON form of `dlapp.values.waiting.Waiting`.

    The reason was written by the runner of the first in the queue; from another user's runner an invalid one is
    ignored.
    """
    if row.state == HELD:
        from dlapp.values.start_conditions import held_text, release_text

        text, change = held_text(row.id), release_text(row.id)
        return {"code": "held", "message": text, "since_ms": row.submitted_ms, "change": change}
    if row.state == DEPENDENT:
        return {"code": "dependency", "message": pending_text(row), "since_ms": row.submitted_ms}
    found = _json_of(row.waiting)
    if found and not own:
        from dlapp.values.serialization import from_json, to_json
        from dlapp.values.waiting import Waiting

        try:
            found = to_json(from_json(Waiting, found))
        except (ValueError, TypeError, RecursionError):
            found = {}
    if row.reason and found.get("message") == row.reason:
        return found | {"since_ms": row.submitted_ms}
    if (obstacle := waiting.obstacle(row.id)) is not None:
        return {"code": obstacle.code, "message": obstacle.text, "since_ms": row.submitted_ms}
    before = waiting.before(row.id)
    ahead = [{"id": one.id, "user": one.user, "amounts": amounts_json(one.amounts)} for one in before[:SHOWN_AHEAD]]
    text = row.reason or (f"waiting: {len(before)} ahead" if before else "waiting: next to start")
    code = "nodes_full" if before or row.reason else "starting"
    return {"code": code, "message": text, "since_ms": row.submitted_ms, "ahead": ahead}


def pending_text(row: ApplicationRow) -> str:
    """Return the awaited ends of other applications, as text."""
    from dlapp.values.start_conditions import read_after, waiting_text

    try:
        return waiting_text(read_after(row.after))
    except ValueError:  # written by another user
        return "waits for the end of other applications"


def amounts_json(amounts: Amounts) -> dict[str, int]:
    """Return amounts in the form of `dlapp.values.waiting.Ahead`."""
    found = {"memory": amounts.memory_mib, "vcores": amounts.vcores, "gcores": amounts.gcores}
    return {name: amount for name, amount in found.items() if amount}


def _running(
    row: ApplicationRow, application_dir: str, boot_id: str, *, alive: bool, has_runner: bool, own: bool
) -> View:
    # The outcome is read after the lock: an application with a free lock and no outcome stays without one.
    outcome = _read_outcome(application_dir)
    seen = _read_view(application_dir)
    if not own:
        outcome = None if outcome is None else _checked_outcome(outcome)
        seen = _checked_view(row, seen)
    view = _described(row, own=own) | (seen or {})
    if outcome is not None:
        return _ended(row, view, outcome)
    has_died = (
        outcomes.is_death_recorded(application_dir) if alive else outcomes.began(application_dir, row.boot_id, boot_id)
    )
    if has_died and (alive or has_runner) and next_attempt(row, application_dir, boot_id) is not None:
        why = outcomes.why_it_died(application_dir, row.boot_id, boot_id)
        return _not_ended(row, view) | {
            "phase": "restarting",
            "diagnostics": f"{why}; {row.reason or 'another one starts'}",
        }
    if not alive and has_died:
        if is_requeued(row, application_dir, boot_id):
            text = "the machine was restarted while it ran; it begins again"
            return _described(row, own=own) | {"state": "ACCEPTED", "phase": "waiting", "diagnostics": text}
        if (derived := outcomes.derive(application_dir, row.boot_id, boot_id)) is not None:
            return _ended(row, view, derived if own else _checked_outcome(derived))
        return _not_ended(row, view) | {
            "state": "RUNNING",
            "phase": "committing",
            "diagnostics": "the ApplicationMaster died while it committed the output; the commit is being finished",
        }
    if seen is None:
        return view | {"state": "ACCEPTED", "phase": "starting", "diagnostics": "the ApplicationMaster is starting"}
    return _not_ended(row, view)


def _not_ended(row: ApplicationRow, view: View) -> View:
    """Return the view of an application without an outcome."""
    if view["state"] not in ENDED:
        return view
    from dlapp.cluster.view_rules import not_ended
    from dlapp.values.report import State
    from dlapp.values.serialization import to_json

    unended: View = to_json(not_ended(_value_of(row, view), State.RUNNING))
    return unended


def _described(row: ApplicationRow, seen: View | None = None, *, own: bool) -> View:
    """Return what the row says, and over it a view; None: the summary of the row."""
    seen = _json_of(row.summary) if seen is None else seen
    return _of_row(row) | ((seen if own else _checked_view(row, seen)) or {})


def _of_row(row: ApplicationRow) -> View:
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
        "queue": row.queue,
        "priority": row.priority,
        "project": row.project,
        "tags": row.tags.split("\n") if row.tags else [],
        "resumed_from": row.resumed_from,
        "again_of": row.again_of,
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


def _ended(row: ApplicationRow, view: View, outcome: Outcome) -> View:
    """Return the view of an application with an outcome."""
    has_reported_end = view["state"] in ENDED or not any(map(view.get, _OF_UNENDED))
    if has_reported_end and all(one.get("phase") == "ended" for one in view.get("containers", ())):
        return view | outcome | {"phase": ""}
    from dlapp.cluster.view_rules import EndFacts, ended
    from dlapp.values.serialization import from_json, to_json

    end = from_json(EndFacts, view | outcome)
    over: View = to_json(ended(_value_of(row, view), end))
    return over | outcome


def _value_of(row: ApplicationRow, view: View) -> ApplicationView:
    """Return the value of a view; the row's, if another version of dlapp wrote the view in an incompatible form."""
    from dlapp.errors import SpecError
    from dlapp.values.report import ApplicationView
    from dlapp.values.serialization import from_json

    try:
        return from_json(ApplicationView, view)
    except SpecError:
        return from_json(ApplicationView, _of_row(row))


def unstored_in(application_dir: str) -> list[str]:
    """Return the paths in an ended application's directory with output that exists only there.

    Its task could not store it elsewhere, or was killed, and its leftovers could not be stored.
    """
    containers = os.path.join(application_dir, "containers")
    left = []
    with contextlib.suppress(FileNotFoundError), os.scandir(containers) as entries:
        left = [path for entry in entries if os.path.lexists(path := os.path.join(entry.path, "workspace"))]
    if not left:
        return []  # the usual case, and a view may be large
    seen = (_read_view(application_dir) or {}).get("containers", ())
    paths = [path for one in seen for two in (one, *one.get("earlier", ())) for path in two.get("unstored", ())]
    spec = (state.read_json(os.path.join(application_dir, "submission.json")) or {}).get("spec")
    outputs = spec.get("outputs", ()) if isinstance(spec, dict) else ()
    names = [one["output_path"] for one in outputs if one.get("on_failure") != "drop"]
    paths += [os.path.join(workspace, name) for workspace in left for name in names]
    return sorted({path for path in paths if path.startswith(f"{containers}/") and _has_content(path)})


def _has_content(path: str) -> bool:
    try:
        return bool(os.listdir(path))
    except NotADirectoryError:
        return True
    except FileNotFoundError:
        return False


def summary_of(row: ApplicationRow, outcome: Outcome, application_dir: str) -> str:
    """Return the last view for a list, in JSON: only with the container that determines the exit code: the first one
    that failed (others are stopped because of it), or else one without an exit code, or the first."""
    view = _read_view(application_dir)
    if view is None:
        return row.summary
    view = _ended(row, view, outcome)
    containers = view["containers"]
    bad = [one for one in containers if one.get("exit_code") != 0]
    bad.sort(key=lambda one: (not one.get("exit_code"), not one.get("signal"), one.get("finished_ms") or 0))
    view["containers"] = (bad or containers)[:1]
    return json.dumps(view, separators=(",", ":"))


def _read_view(application_dir: str) -> View | None:
    try:
        return state.read_json(os.path.join(application_dir, "view.json"))
    except DlappError:
        return None  # it is not synced: a power failure may leave it empty


def _read_outcome(application_dir: str) -> Outcome | None:
    try:
        return outcomes.read_outcome(application_dir)
    except DlappError as error:
        return outcomes.failed(str(error), outcomes.died_ms(application_dir))


def _json_of(text: str) -> dict[str, Any]:
    """Return the object in a column of a row; empty if there is none."""
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


# ---- what another user wrote ----

MAX_MS = 253_402_300_799_000
"""Last time that a date can represent: the end of the year 9999."""


def _checked_outcome(outcome: Outcome) -> Outcome:
    """Return an outcome written by another user if it is valid, else one with the message that it is invalid."""
    from dlapp.values.report import Cause, FinalStatus, State

    known = {"state": State, "final_status": FinalStatus, "cause": Cause}
    fine = (
        all(outcome.get(name) in [one.value for one in kind] for name, kind in known.items())
        and isinstance(outcome.get("diagnostics"), str)
        and is_time(outcome.get("finished_ms"))
    )
    if fine and outcome["state"] in ENDED:
        return outcome
    return outcomes.failed("its outcome cannot be read", clock.now_ms())


def _checked_view(row: ApplicationRow, seen: View | None) -> View | None:
    """Return the view that another user wrote of an application if it is valid, else None."""
    if seen is None:
        return None
    # The owner and the id are never taken from a file.
    try:
        return checked_view(_of_row(row) | seen | {"application_id": row.id, "submitter": row.submitter})
    except DlappError:
        return None


def checked_view(seen: object) -> View:
    """Return a complete view from an untrusted one, without the entries beyond `dlapp.cluster.foreign.MAX_ENTRIES`.

    Raises:
        DlappError: it is not a view, or has an invalid time, or an output or role name that escapes the directory.
    """
    from dlapp.cluster.foreign import read_foreign_view
    from dlapp.values.serialization import to_json

    try:
        view: View = to_json(read_foreign_view(seen))
    except (ValueError, TypeError, RecursionError) as error:  # SpecError is a ValueError
        raise DlappError(f"its view cannot be read: {str(error)[:200]}") from error
    times = [view[name] for name in ("submitted_ms", "started_ms", "finished_ms")]
    times += [one["at_ms"] for one in view["restarts"]]
    for one in view["containers"]:
        times += [one[name] for name in ("started_ms", "finished_ms")]
        times += [old["finished_ms"] for old in one["earlier"]]
    if not all(one is None or is_time(one) for one in times):
        raise DlappError("its view cannot be read: it has an invalid time")
    names = [*(one["name"] for one in view["outputs"]), *(one["role"] for one in view["containers"])]
    if not all(name == "" or is_plain_path(name) for name in names):
        raise DlappError("its view cannot be read: an output or a role has an invalid name")
    return view


def is_time(value: object) -> bool:
    """Return whether a value is a valid time [ms since 1970] or count."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_MS
