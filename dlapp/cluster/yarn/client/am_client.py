"""Asking an ApplicationMaster, at its control address, with the token that its submitter keeps on this machine.

Without a token it shows its view, as YARN shows its page, and does nothing. What it says is its owner's word: of other
people's applications that is foreign, and nothing follows from it but what is shown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dlapp.cluster.yarn.client.local_files import tools_tokens
from dlapp.cluster.yarn.client.rest import AppReport
from dlapp.errors import Denied, Unreachable
from dlapp.values.access import ControlAccess
from dlapp.values.ids import ApplicationId

if TYPE_CHECKING:
    from dlapp.net.control_client import ControlConnection

ASK_S = 5.0
MAX_FOREIGN_VIEW_BYTES = 8 << 20
"""Of an application that was not submitted from here; one of 10,000 containers has 3 MiB."""


class AmClients:
    """The ApplicationMasters of a cluster; the last one asked keeps its connection."""

    def __init__(self) -> None:
        self._asked: tuple[tuple[ApplicationId, str, str | None], ControlConnection, bool] | None = None

    def view(self, report: AppReport, *, timeout_s: float = ASK_S, token: str | None = None) -> Any:
        """Return what an ApplicationMaster shows of its application, in JSON form.

        Args:
            report: the application, as the ResourceManager reports it.
            timeout_s: of the whole request [s].
            token: see `ask`; without one it shows less to others than the submitter.

        Raises:
            Unreachable: it does not answer, or is not up yet.
            DlappError: it refuses.
        """
        return self._call(report, "GET", "view", None, timeout_s=timeout_s, token_needed=False, token=token)

    def ask(self, report: AppReport, what: str, body: Any, *, timeout_s: float, token: str | None = None) -> Any:
        """Ask an ApplicationMaster to do something.

        Args:
            report: the application, as the ResourceManager reports it.
            what: the request's name in the path.
            body: a JSON value.
            timeout_s: of the whole request [s].
            token: of those whom its owner lets in; None: the submitter's, which is kept on this machine.

        Raises:
            Unreachable: it does not answer, is not up yet, or its token is not on this machine.
            DlappError: it refuses.
        """
        return self._call(report, "POST", what, body, timeout_s=timeout_s, token_needed=True, token=token)

    def access(self, report: AppReport, token: str | None = None) -> ControlAccess:
        """Return the control address of an ApplicationMaster, and the token for tools.

        Args:
            report: the application, as the ResourceManager reports it.
            token: of those whom its owner lets in; None: the submitter's, which is kept on this machine.

        Raises:
            StreamRefused: it is not up yet.
            Denied: its token is not on this machine.
        """
        from dlapp.net.streams import NOT_RUNNING, StreamRefused

        address, own = str(report.raw.get("amRPCAddress") or ""), _own_token(report)
        if (found := own or token) is None:
            owner = f"{report.application_id} belongs to {report.user}"
            raise Denied(f"{owner}, and its token is not in {tools_tokens.directory()}: it was not submitted from here")
        if not address:
            raise StreamRefused(f"{report.application_id} has not started yet", NOT_RUNNING)
        return ControlAccess(f"http://{address}", found, is_own=own is not None)

    def _call(
        self,
        report: AppReport,
        method: str,
        what: str,
        body: Any,
        *,
        timeout_s: float,
        token_needed: bool,
        token: str | None = None,
    ) -> Any:
        address = str(report.raw.get("amRPCAddress") or "")
        if not address:
            raise Unreachable(f"{report.application_id}: its ApplicationMaster is not running")
        connection, has_token = self._connection(report, address, token)
        if token_needed and not has_token:
            raise Unreachable(f"{report.application_id} was not submitted from here: {tools_tokens.directory()}")
        try:
            return connection.call(method, f"/v1/{what}", body, timeout_s=timeout_s)
        except Unreachable:
            self.leave()
            raise

    def _connection(self, report: AppReport, address: str, given: str | None) -> tuple[ControlConnection, bool]:
        """The connection to an ApplicationMaster, kept while it is asked again: who waits for an end asks often."""
        from dlapp.net.control_client import MAX_VIEW_BYTES, ControlConnection

        if self._asked is None or self._asked[0] != (report.application_id, address, given):
            self.leave()
            own = _own_token(report)
            connection = ControlConnection(
                f"http://{address}", own or given, max_answer_bytes=MAX_VIEW_BYTES if own else MAX_FOREIGN_VIEW_BYTES
            )
            self._asked = (report.application_id, address, given), connection, bool(own or given)
        return self._asked[1:]

    def leave(self) -> None:
        """Close the connection."""
        if self._asked is not None:
            self._asked[1].close()
            self._asked = None


def _own_token(report: AppReport) -> str | None:
    """Return the token for an ApplicationMaster that this user submitted from here; None: there is none."""
    kept = tools_tokens.find(report.application_id)
    # An ApplicationMaster tells YARN its address itself, so only one of our own user gets the token.
    return kept.token if kept is not None and kept.user == report.user and kept.token else None
