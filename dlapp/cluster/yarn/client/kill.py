"""End of applications, and release of held ones: dlapp-softkill, dlapp-kill and dlapp-release."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from typing import Any
from urllib.parse import urlsplit

from dlapp.cluster.yarn.client.am_client import REQUEST_TIMEOUT_S, AmClients
from dlapp.cluster.yarn.client.cleanup import GONE_AFTER_S, NOTHING_KEPT, kept_text, settle
from dlapp.cluster.yarn.client.local_files import tools_tokens
from dlapp.cluster.yarn.client.rest import KILL_END_S, AppReport, EndedApplication
from dlapp.cluster.yarn.client.session import ClusterSession
from dlapp.cluster.yarn.client.shared_tokens import find_token
from dlapp.cluster.yarn.client.status import ApplicationReader
from dlapp.cluster.yarn.staging import AM, KILL, MAX_REQUEST_BYTES, OWN_MODE, RELEASE, SOFT_KILL, StagingPaths
from dlapp.errors import Denied, DlappError, NotFound, Unreachable
from dlapp.hadoop.errors import ApplicationNotFound, NotAllowed
from dlapp.system import clock
from dlapp.system.waits import Wait, call_within
from dlapp.values.access import MODIFIERS
from dlapp.values.ids import ApplicationId
from dlapp.values.messages import StopAnswer, StopRequest
from dlapp.values.report import FinalStatus, State
from dlapp.values.serialization import from_json, parse_json, to_json

KILL_REQUEST_TIMEOUT_S = 2.0
"""Time limit for an ApplicationMaster to end by itself after a request by dlapp-kill."""

REPORT_S, MASTER_S = 18.0, 9.0
"""Time limits for a ResourceManager to report an application that is to be killed, and then for its ApplicationMaster
to be found on HDFS and asked: together less than 30 s. A failover takes 10 to 20 s."""


class ApplicationKiller:
    """Killer and releaser of applications, through their ApplicationMasters if these respond."""

    def __init__(self, session: ClusterSession, masters: AmClients, reader: ApplicationReader) -> None:
        self._session, self._masters, self._reader = session, masters, reader

    def soft_kill(self, application_id: ApplicationId, by: str) -> str:
        """Request a soft-kill from the ApplicationMaster, directly or by a request file; kill a waiting application.

        Raises:
            NotFound, Denied: the application does not exist, or is another user's.
        """
        report = self._reader.report(application_id)
        token = self._permitted(report, by)
        if report.state.ended:
            return _ended_text(report)
        # After a failover YARN has no address of an ApplicationMaster that runs, until that registers again.
        if not report.tracking_url and not report.am_attempt:
            return self.kill(application_id, by)
        own = self._is_own(report)
        if not own and token is None:
            # The ApplicationMaster accepts requests of its user only; YARN may accept requests of others.
            raise Denied(f"{application_id} belongs to {report.user}; only they may soft-kill it: dlapp-kill uses YARN")
        try:
            answer = from_json(StopAnswer, self._request(report, "softkill", by, REQUEST_TIMEOUT_S, token))
        except Unreachable:
            if not own:
                raise
            self._mark(report, SOFT_KILL, by)
            return f"{application_id} cannot be reached; it stops when it finds the request on HDFS, in seconds"
        return answer.line(str(application_id))

    def release(self, application_id: ApplicationId, by: str) -> str:
        """Release a held application by a request to its ApplicationMaster, directly or by a request file.

        Raises:
            NotFound, Denied: the application does not exist, or is another user's.
        """
        report = self._reader.report(application_id)
        if report.state.ended:
            return _ended_text(report)
        own = self._is_own(report)
        token = None if own else find_token(self._session, report, MODIFIERS)
        if not own and token is None:
            raise Denied(f"{application_id} belongs to {report.user}; only they may release it")
        try:
            answer = self._request(report, "release", by, REQUEST_TIMEOUT_S, token)
            return from_json(StopAnswer, answer).line(str(application_id))
        except Unreachable:
            if not own:
                raise
            self._mark(report, RELEASE, by)
            return f"{application_id} cannot be reached now; if it is held, it starts when it finds the request on HDFS"

    def kill(self, application_id: ApplicationId, by: str) -> str:
        """Kill an application: request it from its ApplicationMaster, then from YARN, and settle its output and files.
        If YARN fails, leave a request file. If no ResourceManager answers, only the ApplicationMaster is asked.

        Raises:
            NotFound, Denied: the application does not exist, or is another user's.
            TimedOut: YARN did not end it within a minute; YARN continues.
            Unreachable: neither YARN nor the ApplicationMaster answers; or HDFS does not, which has the caller's token.
        """
        try:
            report = call_within(
                REPORT_S,
                lambda: self._session.rest().report(application_id),
                lambda: f"no answer in {REPORT_S:g} s",
            )
        except ApplicationNotFound:
            report = self._reader.report(application_id)  # an earlier one, from the history
        except Unreachable as error:
            return self._kill_by_master(application_id, by, f"no ResourceManager answers: {error}")
        token = self._permitted(report, by)
        if report.state.ended:
            return _ended_text(report)
        own = self._is_own(report)
        if report.tracking_url and (own or token is not None):
            # YARN's kill follows, so any error here is ignored.
            with contextlib.suppress(DlappError, OSError, ValueError):
                self._request(report, "kill", by, KILL_REQUEST_TIMEOUT_S, token)
                self._wait_for_end(application_id, KILL_REQUEST_TIMEOUT_S)
        try:
            state = self._session.rest(report.user if own else None).kill(application_id, timeout_s=KILL_END_S)
        except NotAllowed as error:
            raise Denied(f"YARN does not let {self._session.user} kill {application_id} of {report.user}") from error
        except DlappError:
            # Write the request file last: if HDFS does not respond, this takes 20 s, which would delay the kill.
            if own:
                with contextlib.suppress(DlappError, OSError):
                    self._mark(report, KILL, by)
            raise
        tools_tokens.forget(application_id, login_user=self._session.user)
        if not own:
            killed = (
                state is State.KILLED or self._session.rest().report(application_id).final_status is FinalStatus.KILLED
            )
            text = "was killed" if killed else f"had ended before the kill: {state.value}"
            return f"{application_id} {text}; {report.user}'s next command settles its output"
        if state is State.KILLED:
            return f"{application_id} was killed, {self._settled(report)}"
        return self._settled_end(report, state)

    def _kill_by_master(self, application_id: ApplicationId, by: str, yarn: str) -> str:
        """Kill an application while no ResourceManager answers; ``yarn`` says that. Raises as `kill`."""
        turn = threading.Lock()
        answer = call_within(
            MASTER_S,
            lambda: self._kill_without_yarn(application_id, by, yarn, turn),
            lambda: (
                f"{application_id} was not killed: {yarn}; HDFS does not answer"
                if turn.acquire(blocking=False)
                else f"it is not known whether {application_id} was killed: {yarn}; its ApplicationMaster or "
                "HDFS, which takes the request, does not answer"
            ),
        )
        return f"{answer}; YARN may show it as running until a ResourceManager answers"

    def _settled_end(self, report: AppReport, state: State) -> str:
        """Return a line about an application of the caller that had ended before YARN got the kill."""
        application_id = report.application_id
        # Usually the ApplicationMaster did this itself; otherwise the user's next command completes it.
        try:
            with contextlib.suppress(DlappError, OSError):
                files = self._session.files(report.user)
                ended_now = EndedApplication(state, 0.0)
                settle(files, application_id, ended_now, self._session.notices(files))
            ended = self._reader.view(application_id)
        except (DlappError, OSError) as error:
            return f"{application_id} has ended, but what became of its output cannot be read now: {error}"
        if ended.state is State.KILLED:
            return f"{application_id} was killed, {kept_text(one.partial for one in ended.outputs)}"
        return f"{application_id} had ended before the kill: {ended.state.value}, {ended.diagnostics}"

    def _kill_without_yarn(self, application_id: ApplicationId, by: str, yarn: str, turn: threading.Lock) -> str:
        """Request a kill from the ApplicationMaster at the address that it has written on HDFS. Return its answer.

        Args:
            application_id: the application.
            by: who kills it.
            yarn: why YARN cannot end it.
            turn: taken before the first request; if the caller has taken it, none is sent.

        Raises:
            Unreachable: it does not answer; there is a request file for it if it lives.
        """
        kept = tools_tokens.find(application_id)
        user, request = kept.user if kept is not None else self._session.user, "nothing was done"
        try:
            files = self._session.files(user)
            written = files.read(
                f"{StagingPaths(files.home).staging(application_id)}/{AM}", max_bytes=MAX_REQUEST_BYTES
            )
            address = urlsplit(str(parse_json(written)["control_url"])).netloc
            report = AppReport(
                application_id=application_id,
                user=user,
                name="",
                queue="",
                state=State.RUNNING,
                final_status=FinalStatus.UNDEFINED,
                raw={"amRPCAddress": address},
            )
            if not turn.acquire(blocking=False):
                raise Unreachable("HDFS did not answer in time")
            try:
                answer = from_json(StopAnswer, self._request(report, "kill", by, KILL_REQUEST_TIMEOUT_S, None))
                return answer.line(str(application_id))
            except Unreachable:
                self._mark(report, KILL, by)
                request = "its ApplicationMaster ends it if it lives and finds the request on HDFS"
                raise
        except (DlappError, OSError, ValueError, LookupError, TypeError) as error:
            why = "it has no ApplicationMaster" if isinstance(error, NotFound) else str(error)
            text = f"{application_id} was not killed: {yarn}; {why}; {request}"
            raise Unreachable(f"{text}; run dlapp-kill again when a ResourceManager answers") from error

    def _settled(self, report: AppReport) -> str:
        """Settle the output of an application that was just killed, and return the result as text."""
        try:
            files = self._session.files(report.user)
            notices = self._session.notices(files)
            text = settle(files, report.application_id, EndedApplication(State.KILLED, 0.0), notices)
            if text is None:
                # Its ApplicationMaster may be committing, and its tasks may be storing, at this moment.
                time.sleep(GONE_AFTER_S)
                ended = EndedApplication(State.KILLED, GONE_AFTER_S)
                text = settle(files, report.application_id, ended, notices)
        except (DlappError, OSError) as error:
            text = f"but its output cannot be settled now: {error}; your next command tries it again"
        return text or NOTHING_KEPT

    def _wait_for_end(self, application_id: ApplicationId, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        with Wait(f"the end of {application_id}", timeout_s):
            while not self._session.rest().report(application_id).state.ended and time.monotonic() < deadline:
                time.sleep(0.05)

    def _request(self, report: AppReport, what: str, by: str, timeout_s: float, token: str | None) -> Any:
        return self._masters.request(report, what, to_json(StopRequest(user=by)), timeout_s=timeout_s, token=token)

    def _permitted(self, report: AppReport, by: str) -> str | None:
        """Return the caller's token for an application that they may end, if its `modify_acl` has them. Raises Denied;
        Unreachable: HDFS does not answer."""
        if by == "root" or self._is_own(report):
            return None
        if (token := find_token(self._session, report, MODIFIERS)) is None:
            raise Denied(f"{report.application_id} belongs to {report.user}; only they or root may end it")
        return token

    def _is_own(self, report: AppReport) -> bool:
        return tools_tokens.is_own(report.application_id, report.user, self._session.user)

    def _mark(self, report: AppReport, name: str, by: str) -> None:
        files = self._session.files(report.user)
        staging = StagingPaths(files.home).staging(report.application_id)
        files.make(staging, OWN_MODE)
        files.write(f"{staging}/{name}", json.dumps({"by": by, "ms": clock.now_ms()}).encode(), 0o600)


def _ended_text(report: AppReport) -> str:
    return f"{report.application_id} had already ended: {report.final_status.value.lower()}"
