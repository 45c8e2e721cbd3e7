"""Ending applications: dlapp-softkill and dlapp-kill."""

from __future__ import annotations

import contextlib
import json
import time

from dlapp.cluster.yarn.connected import Connected
from dlapp.cluster.yarn.looking import Looker
from dlapp.cluster.yarn.masters import ASK_S, Masters
from dlapp.cluster.yarn.rest import KILL_END_S, AppReport
from dlapp.cluster.yarn.staging import KILL, OWN_MODE, SOFT_KILL, Places
from dlapp.cluster.yarn.sweeping import GONE_AFTER_S, NOTHING_KEPT, Ended, settle
from dlapp.control import StopAnswer, StopRequest
from dlapp.errors import Denied, DlappError, Unreachable
from dlapp.ids import ApplicationId
from dlapp.jsonform import from_json, to_json
from dlapp.report import State

KILL_ASK_S = 2.0
"""How long an ApplicationMaster may take to end by itself once dlapp-kill has asked it."""


class Ender:
    """Ends applications, by way of their ApplicationMasters where those answer."""

    def __init__(self, there: Connected, masters: Masters, looker: Looker) -> None:
        self._there, self._masters, self._looker = there, masters, looker

    def soft_kill(self, application_id: ApplicationId, by: str) -> str:
        """Ask for a soft-kill: the ApplicationMaster, or by a marker that it finds; one that waits is killed.

        Raises:
            NotFound, Denied: it is not there, or another user's.
        """
        report = self._own(application_id, by)
        if report.state.ended:
            return _over(report)
        if not report.tracking_url:
            return self.kill(application_id, by)
        try:
            told = self._masters.ask(report, "POST", "softkill", to_json(StopRequest(user=by)), timeout_s=ASK_S)
            answer = from_json(StopAnswer, told)
        except Unreachable:
            self._mark(report, SOFT_KILL, by)
            return (
                f"{application_id} does not answer from here; it stops when it finds the mark in its staging directory"
            )
        left = f"SIGKILL follows in {max(0.0, answer.left_s):.0f} s at the latest"
        if answer.message:
            return answer.message
        if answer.state == "ended":
            return f"{application_id} had already ended"
        if answer.state == "already":
            return f"{application_id} is being stopped already; {left}"
        return f"{application_id} is being stopped, its output will be committed; {left}"

    def kill(self, application_id: ApplicationId, by: str) -> str:
        """Kill: ask its ApplicationMaster, then YARN, and remove what it left; where YARN fails, leave a mark.

        Raises:
            NotFound, Denied: it is not there, or another user's.
            TimedOut: YARN did not end it in a minute; it goes on with it.
        """
        report = self._own(application_id, by)
        if report.state.ended:
            return _over(report)
        if report.tracking_url:
            # Whatever hinders this, YARN's kill follows.
            with contextlib.suppress(DlappError, OSError, ValueError):
                self._masters.ask(report, "POST", "kill", to_json(StopRequest(user=by)), timeout_s=KILL_ASK_S)
                self._wait_for_end(application_id, KILL_ASK_S)
        try:
            state = self._there.rest(report.user).kill(application_id, timeout_s=KILL_END_S)
        except DlappError:
            # The mark comes last: a file system that takes none costs 20 s, in which nothing would be ended.
            with contextlib.suppress(DlappError, OSError):
                self._mark(report, KILL, by)
            raise
        if state is State.KILLED:
            return f"{application_id} was killed, {self._settled(report)}"
        # Most often it did that itself; else what it was just doing is over when the next command looks at it.
        try:
            with contextlib.suppress(DlappError, OSError):
                files = self._there.files(report.user)
                settle(files, Places(files.home), application_id, Ended(state, 0.0))
            ended = self._looker.view(application_id)
        except (DlappError, OSError) as error:
            return f"{application_id} has ended, but what became of its output cannot be read now: {error}"
        if ended.state is State.KILLED:
            return f"{application_id} was killed, {NOTHING_KEPT}"
        return f"{application_id} had ended before the kill: {ended.state.value}, {ended.diagnostics}"

    def _settled(self, report: AppReport) -> str:
        """What became of the output of one that was just killed, in words."""
        try:
            files = self._there.files(report.user)
            places = Places(files.home)
            said = settle(files, places, report.application_id, Ended(State.KILLED, 0.0))
            if said is None:
                # Its ApplicationMaster may be at the commit at this moment, and its tasks store.
                time.sleep(GONE_AFTER_S)
                said = settle(files, places, report.application_id, Ended(State.KILLED, GONE_AFTER_S))
        except (DlappError, OSError) as error:
            said = f"but its output cannot be settled now: {error}; your next command tries it again"
        return said or NOTHING_KEPT

    def _wait_for_end(self, application_id: ApplicationId, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not self._there.rest().report(application_id).state.ended and time.monotonic() < deadline:
            time.sleep(0.05)

    def _own(self, application_id: ApplicationId, by: str) -> AppReport:
        report = self._looker.report(application_id)
        if by not in (report.user, "root") and self._there.user != report.user:
            raise Denied(f"{application_id} belongs to {report.user}; only they or root may end it")
        return report

    def _mark(self, report: AppReport, name: str, by: str) -> None:
        files = self._there.files(report.user)
        staging = Places(files.home).staging(report.application_id)
        files.make(staging, OWN_MODE)
        files.write(f"{staging}/{name}", json.dumps({"by": by, "ms": int(time.time() * 1000)}).encode(), 0o600)


def _over(report: AppReport) -> str:
    return f"{report.application_id} had already ended: {report.state.value}, {report.final_status.value}"
