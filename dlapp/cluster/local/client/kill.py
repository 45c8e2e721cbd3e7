"""Ends of applications on this machine: by a soft-kill, a kill, and at once where they have not started; releases.

A kill is requested from the ApplicationMaster, which ends by itself within `KILL_REQUEST_TIMEOUT_S`. Then its process
gets SIGKILL, and so do the processes of the application that outlive it. The owner's runner cleans up and writes the
outcome.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from dlapp.cluster import ENDED
from dlapp.cluster.local import outcome as outcomes
from dlapp.cluster.local import views
from dlapp.cluster.local.attempts import is_alive, open_recorded
from dlapp.cluster.local.client.control import request
from dlapp.cluster.local.notices import mark_end, start_pending_senders
from dlapp.cluster.local.row import DEPENDENT, DONE, HELD, UNSTARTED, WAITING, ApplicationRow
from dlapp.cluster.local.state import check_directory, write_atomically
from dlapp.errors import Denied, DlappError, TimedOut, Unreachable
from dlapp.system import clock
from dlapp.system.clock import backoff_s
from dlapp.system.disk_space import FULL, disk_full
from dlapp.system.owners import user_name
from dlapp.system.waits import Wait

if TYPE_CHECKING:
    from dlapp.cluster.local.client.session import LocalSession
    from dlapp.cluster.local.client.shared_tokens import GrantedAccess
    from dlapp.cluster.local.runner.orphans import OrphanReaper

T = TypeVar("T", bool, str)
KILL_REQUEST_TIMEOUT_S = 2.0
"""Time limit for an ApplicationMaster to end by itself after a request of dlapp-kill."""
KILL_END_S = 60.0
"""Time limit for processes to end after SIGKILL, and for their outputs to be cleaned up. Tasks have ten seconds to end
by themselves, and each of the scans of /proc that follow takes seconds where 25 processes wait for two cores."""
FULL_DISK_S = 5.0
"""The same limit while the state's disk is full: a runner retries every 2 s."""
SOFT_KILL_REQUEST_TIMEOUT_S = 5.0
_MAX_STOP_ANSWER_BYTES = 64 << 10


def soft_kill(session: LocalSession, application_id: str, by: str) -> str:
    """Request a soft-kill of one of the caller's applications; see `dlapp.cluster.engine.Engine.soft_kill`."""
    from dlapp.values.messages import StopAnswer
    from dlapp.values.serialization import from_json

    row = session.row(application_id)
    if line := _end_unstarted(session, row, by):
        return line
    application_dir = session.state.application(row.id)
    deadline = time.monotonic() + SOFT_KILL_REQUEST_TIMEOUT_S

    def ask() -> str:
        try:
            answer = request(session, application_dir, "softkill", by, max(0.1, deadline - time.monotonic()))
        except Unreachable:
            ended = session.own_view(row.id)
            if ended["state"] in ENDED:
                return f"{row.id} is {ended['state']}: {ended['diagnostics']}"
            if time.monotonic() >= deadline:
                raise
            return ""  # it may be starting right now
        return from_json(StopAnswer, answer).line(row.id)

    return wait_for(ask, deadline)


def kill(session: LocalSession, application_id: str, by: str) -> str:
    """Kill one of the caller's applications; see `dlapp.cluster.engine.Engine.kill`."""
    row = session.row(application_id)
    if line := _end_unstarted(session, row, by):
        return line
    application_dir = session.state.application(row.id)
    deadline = time.monotonic() + KILL_REQUEST_TIMEOUT_S
    full = write_kill_request(session, application_dir, by)
    try:
        request(session, application_dir, "kill", by, KILL_REQUEST_TIMEOUT_S)
    except DlappError:
        deadline = 0.0  # not answering, or not started yet: do not wait
    if not wait_for(lambda: not is_alive(application_dir), deadline):
        _kill_master(application_dir, session.uid)
    from dlapp.cluster.local.runner.orphans import OrphanReaper

    deadline = time.monotonic() + KILL_END_S
    reaper = OrphanReaper(application_dir, session.uid, session.state.runner_lock(session.uid), keep_am=False)
    if not wait_for(lambda: _is_gone(session, row, application_dir, reaper), deadline):
        raise TimedOut(f"{row.id}: processes of it are still there {KILL_END_S:g} s after SIGKILL; its GPUs stay taken")
    clear_s = KILL_END_S
    # The end of its processes may have freed too little space.
    if full and (full := write_kill_request(session, application_dir, by)):
        clear_s = FULL_DISK_S
        deadline = min(deadline, time.monotonic() + clear_s)
    # The runner cleans up after it and writes its outcome.
    session.nudge_runner()
    if not wait_for(lambda: session.is_settled(row), deadline):
        why = f"; {full}" if full else ""
        raise TimedOut(f"{row.id}: its processes ended, but its leftovers were not removed in {clear_s:g} s{why}")
    return _end_text(session.own_view(row.id), full)


def release(session: LocalSession, application_id: str) -> str:
    """Let one of the caller's held applications start; see `dlapp.cluster.engine.Engine.release`."""
    row = session.row(application_id)
    if row.state == DONE:
        return over_text(row)
    with session.queue().change() as queue:
        row = session.row(row.id)
        if not row.hold:
            return f"{row.id} is not held"
        queue.update(row.number, hold=0, **({"state": WAITING} if row.state == HELD else {}))
    session.nudge_runner()
    return f"{row.id} is released" + (f", and {views.pending_text(row)}" if row.state == DEPENDENT else "")


def end_by_request(
    granted: GrantedAccess, application_id: str, what: str, by: str, view: Callable[[], Mapping[str, Any]]
) -> str:
    """End another user's application whose `modify_acl` names the caller, only through its ApplicationMaster.

    Args:
        granted: the caller's access.
        application_id: id of the application.
        what: the request, ``softkill`` or ``kill``.
        by: the user's name.
        view: reads its current view.

    Returns:
        A line about the result.

    Raises:
        Denied: it has not started yet, and only its owner can end it.
        Unreachable: its ApplicationMaster does not answer.
        TimedOut: it has not ended.
    """
    from dlapp.net.control_client import ControlConnection
    from dlapp.values.messages import StopAnswer
    from dlapp.values.serialization import from_json

    if not granted.url:
        owner = user_name(granted.owner.uid)
        raise Denied(f"{application_id} does not run now; until it does, only {owner} or root may end it")
    with ControlConnection(
        granted.url, granted.token, max_answer_bytes=_MAX_STOP_ANSWER_BYTES, owner=granted.owner.uid
    ) as connection:
        found = connection.call("POST", f"/v1/{what}", {"user": by}, timeout_s=SOFT_KILL_REQUEST_TIMEOUT_S)
    if what == "softkill":
        return from_json(StopAnswer, found).line(application_id)
    if not wait_for(lambda: view()["state"] in ENDED, time.monotonic() + KILL_END_S):
        raise TimedOut(f"{application_id} had not ended {KILL_END_S:g} s after the request to end it")
    return _end_text(view())


def _is_gone(session: LocalSession, row: ApplicationRow, application_dir: str, reaper: OrphanReaper) -> bool:
    """Return True if no process of a killed application is left; end those that do not end by themselves."""
    if not is_alive(application_dir) or (row := session.row(row.id)).state == DONE:
        return True
    if (pidfd := open_recorded(application_dir, session.uid)) is None:
        reaper.end_in_time()
    else:
        os.close(pidfd)
        reaper.restart_wait()
        if not row.aftermaths:  # not a clean-up process: the runner was just starting it
            _kill_master(application_dir, session.uid)
    return False


def _end_unstarted(session: LocalSession, row: ApplicationRow, by: str) -> str:
    """End a waiting application; return a line about that, or about one that has ended. Empty: it has started."""
    if row.state == DONE:
        return over_text(row)
    return f"{row.id} was killed before it started" if _end_waiting(session, row.id, by) else ""


def _end_waiting(session: LocalSession, application_id: str, by: str) -> bool:
    outcome = outcomes.killed(by, clock.now_ms(), begun=False)
    with session.queue().change() as queue:
        row = queue.row(application_id)
        if row is None or row.state not in UNSTARTED:
            return False
        mark_end(session.state, application_id, outcome)
        queue.update(row.number, state=DONE, finished_ms=outcome["finished_ms"], outcome=json.dumps(outcome), reason="")
    from dlapp.cluster.local.runner.settling import remove_secrets

    remove_secrets(session.state.application(application_id))
    start_pending_senders(session.state, session.settings.program)
    session.nudge_runner()  # applications behind it may fit now
    return True


def write_kill_request(session: LocalSession, application_dir: str, by: str) -> str:
    """Record a kill for the process that cleans up after the application.

    Returns:
        Why it could not be recorded, if the disk is full; the application has ended nevertheless. Otherwise empty.
    """
    path = os.path.join(application_dir, "kill.json")
    check_directory(application_dir, session.uid)
    try:
        if not os.path.exists(path):
            write_atomically(path, json.dumps({"by": by, "ms": clock.now_ms()}))
    except OSError as error:
        if error.errno not in FULL:
            raise
        return disk_full(path)
    return ""


def _end_text(view: Mapping[str, Any], full: str = "") -> str:
    """Return a line about the end of an application after a kill, with what is left of its output.

    Args:
        view: its view.
        full: why the kill could not be recorded; empty: it was.
    """
    name, state = view["application_id"], view["state"]
    if state == "KILLED":
        kept = [one["partial"] for one in view.get("outputs", ()) if one.get("partial")]
        where = f"output that was complete is kept at {', '.join(kept)}" if kept else "no output kept"
        return f"{name} was killed, {where}"
    if full:
        return f"{name} was ended as {state}, because the kill could not be recorded: {full}"
    return f"{name} had ended before the kill: {state}, {view['diagnostics']}"


def over_text(row: ApplicationRow) -> str:
    """Return a line about an application that had already ended."""
    outcome = json.loads(row.outcome)
    return f"{row.id} had already ended: {outcome['cause'] or outcome['final_status'].lower()}"


def wait_for(poll: Callable[[], T], deadline: float) -> T:
    """Call a function until its result is true; return the result, a false one of a call after the deadline [s,
    monotonic]."""
    pauses_s = backoff_s(0.002, 0.1)
    with Wait("the end of what runs", deadline - time.monotonic()):
        while True:
            is_last = time.monotonic() >= deadline
            if (found := poll()) or is_last:
                return found
            time.sleep(next(pauses_s))


def _kill_master(application_dir: str, uid: int) -> None:
    """Send SIGKILL to the recorded ApplicationMaster or clean-up process of an application."""
    if (pidfd := open_recorded(application_dir, uid)) is None:
        return
    try:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        select.select([pidfd], [], [], 5.0)
    finally:
        os.close(pidfd)
