"""Requests to an ApplicationMaster's control address, with the token that its submitter keeps on this machine.

Without a token it only shows its view, as YARN shows its page. Its answer is controlled by its owner: the answer of
another user's application is untrusted, and is only displayed.
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

REQUEST_TIMEOUT_S = 5.0
MAX_FOREIGN_VIEW_BYTES = 8 << 20
"""Size limit of the view of an application not submitted from here; one of 10,000 containers has 3 MiB."""


class AmClients:
    """Client of a cluster's ApplicationMasters; keeps the last connection."""

    def __init__(self) -> None:
        self._cached: tuple[tuple[ApplicationId, str, str | None], ControlConnection, bool] | None = None

    def view(self, report: AppReport, *, timeout_s: float = REQUEST_TIMEOUT_S, token: str | None = None) -> Any:
        """Return an ApplicationMaster's view of its application, in JSON form; without a token it shows less to others
        than the submitter. See `request`.

        Raises:
            Unreachable: it does not answer, or has not started yet.
            DlappError: it refuses.
        """
        return self._call(report, "GET", "view", None, timeout_s, token)

    def request(self, report: AppReport, what: str, body: Any, *, timeout_s: float, token: str | None = None) -> Any:
        """Send a request to an ApplicationMaster.

        Args:
            report: the ResourceManager's report.
            what: name of the request in the path.
            body: a JSON value.
            timeout_s: time limit of the whole request [s].
            token: token for users to whom its owner grants access; None: the submitter's, kept on this machine.

        Raises:
            Unreachable: it does not answer, has not started yet, or its token is not on this machine.
            DlappError: it refuses.
        """
        return self._call(report, "POST", what, body, timeout_s, token)

    def access(self, report: AppReport, token: str | None = None) -> ControlAccess:
        """Return the control address of an ApplicationMaster, and the token for tools; ``token`` as in `request`.

        Raises:
            StreamRefused: it has not started yet.
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

    def _call(self, report: AppReport, method: str, what: str, body: Any, timeout_s: float, token: str | None) -> Any:
        address = str(report.raw.get("amRPCAddress") or "")
        if not address:
            raise Unreachable(f"{report.application_id}: its ApplicationMaster is not running")
        connection, has_token = self._connection(report, address, token)
        if method != "GET" and not has_token:
            raise Unreachable(f"{report.application_id} was not submitted from here: {tools_tokens.directory()}")
        try:
            return connection.call(method, f"/v1/{what}", body, timeout_s=timeout_s)
        except Unreachable:
            self.close()
            raise

    def _connection(self, report: AppReport, address: str, token: str | None) -> tuple[ControlConnection, bool]:
        """Return the connection to an ApplicationMaster, kept for repeated requests: a waiting command polls often."""
        from dlapp.net.control_client import MAX_VIEW_BYTES, ControlConnection

        if self._cached is None or self._cached[0] != (report.application_id, address, token):
            self.close()
            own = _own_token(report)
            connection = ControlConnection(
                f"http://{address}", own or token, max_answer_bytes=MAX_VIEW_BYTES if own else MAX_FOREIGN_VIEW_BYTES
            )
            self._cached = (report.application_id, address, token), connection, bool(own or token)
        return self._cached[1:]

    def close(self) -> None:
        """Close the connection."""
        if self._cached is not None:
            self._cached[1].close()
            self._cached = None


def _own_token(report: AppReport) -> str | None:
    """Return the token for an ApplicationMaster that this user submitted from here; None: there is none."""
    kept = tools_tokens.find(report.application_id)
    # An ApplicationMaster reports its address to YARN itself, so only one of our own user gets the token.
    return kept.token if kept is not None and kept.user == report.user and kept.token else None
