"""Ends of other applications, for an application with `after`: from the ResourceManager, or the history on HDFS.

A ResourceManager forgets ended applications (yarn.resourcemanager.max-completed-applications). An unknown application
counts as ended only if the ResourceManager knows this application; the history may then have how it ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dlapp.cluster.yarn.staging import MAX_HISTORY_BYTES, StagingFiles, StagingPaths
from dlapp.errors import NotFound, Unreachable
from dlapp.hadoop.web import Web
from dlapp.login import Login
from dlapp.values.ids import ApplicationId
from dlapp.values.serialization import parse_json
from dlapp.values.start_conditions import KILLED, UNKNOWN, how_ended

_TIMEOUT_S = 10.0
_UNREAD = "resourceRequests,timeouts,appNodeLabelExpression,amNodeLabelExpression,resourceInfo"
_RUNS = ("NEW", "NEW_SAVING", "SUBMITTED", "ACCEPTED", "RUNNING", "FINAL_SAVING", "FINISHING", "KILLING")
_ENDED = ("FINISHED", "FAILED", "KILLED")


class EndReader:
    """Reader of the ends of applications.

    Args:
        urls: web addresses of the ResourceManagers.
        login: identity for the requests.
        files: the file system with the user's history.
        own: this application.
        certificates: CA certificates (PEM) of the ResourceManagers' web servers; empty: OpenSSL's default.
    """

    def __init__(
        self, urls: Sequence[str], login: Login, files: StagingFiles, own: ApplicationId, certificates: str = ""
    ) -> None:
        self._urls, self._login, self._files, self._own = urls, login, files, own
        self._certificates = certificates

    def read(self, application_id: str) -> str | None:
        """Return how an application ended, as in `dlapp.values.start_conditions`; None: it has not ended.

        Raises:
            Unreachable: no ResourceManager answers, or an answer is invalid.
            DlappError: the history cannot be read now.
        """
        why = "no ResourceManager is configured"
        for url in self._urls:
            try:
                with Web(_TIMEOUT_S, self._certificates) as web:
                    status, answer = self._request(web, url, application_id)
                    if status == 404 and self._request(web, url, str(self._own))[0] == 200:
                        return self._from_history(application_id)
            except (Unreachable, ValueError) as error:
                why = f"{url}: {error}"
                continue
            if status == 200:
                try:
                    return read_end(answer, application_id)
                except ValueError as error:
                    raise Unreachable(f"{url}: {error}") from error
            why = f"{url}: status {status}"  # a standby redirects to the active one, which has its own URL here
        raise Unreachable(f"whether {application_id} has ended cannot be read: {why}")

    def _request(self, web: Web, url: str, application_id: str) -> tuple[int, Any]:
        query = {"deSelects": _UNREAD, **self._login.query}
        answer = web.call("GET", f"{url}/ws/v1/cluster/apps/{application_id}", query)
        return answer.status, parse_json(answer.body) if answer.status == 200 else None

    def _from_history(self, application_id: str) -> str:
        place = StagingPaths(self._files.home).history(ApplicationId.from_text(application_id))
        try:
            found = parse_json(self._files.read(place, max_bytes=MAX_HISTORY_BYTES))
            view, state = found.get("view") or {}, found.get("state")
            ended = view.get("final_status") if view.get("state") in _ENDED else state
        except (NotFound, ValueError, AttributeError):
            return UNKNOWN
        return how_ended(str(ended))


def read_end(answer: Any, application_id: str) -> str | None:
    """Return how an application ended from the answer of a ResourceManager; None: it has not ended.

    Raises:
        ValueError: the answer is not about this application.

    Source: RMWebServices.getApp, AppInfo (``id``, ``state``, ``finalStatus``).
    """
    app = answer.get("app") if isinstance(answer, dict) else None
    if not isinstance(app, dict) or app.get("id") != application_id:
        raise ValueError(f"it does not answer for {application_id}")
    state, final = app.get("state"), app.get("finalStatus")
    if state in _RUNS:
        return None
    if state not in _ENDED or not isinstance(final, str):
        raise ValueError(f"it answers for {application_id} with state {state!r:.40}")
    return KILLED if state == "KILLED" else how_ended(final)
