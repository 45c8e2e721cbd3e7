"""Looking at what there is: what YARN says, what an ApplicationMaster says, what it left, made into views.

What an application is doing now its ApplicationMaster says, at its control address; what became of it is in the history
that it left (see `staging`); and where neither answers, what YARN itself knows is shown.

Files are read as the caller alone, and of the caller's own applications: of others there is what YARN says, and what
their ApplicationMasters show to everybody. Whose an application is YARN says, and nothing that was read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from dlapp.cluster import LOG_NAMES
from dlapp.cluster.engine import LogFiles
from dlapp.cluster.yarn.client import tools_tokens
from dlapp.cluster.yarn.client import views as client_views
from dlapp.cluster.yarn.client.am_client import AmClients
from dlapp.cluster.yarn.client.cleanup import EndedApplication, settle
from dlapp.cluster.yarn.client.rest import KIND, AppReport
from dlapp.cluster.yarn.client.session import ClusterSession
from dlapp.cluster.yarn.client.views import AmState
from dlapp.cluster.yarn.staging import (
    MAX_HISTORY_BYTES,
    MAX_SUBMISSION_BYTES,
    MAX_VIEW_BYTES,
    SUBMISSION,
    VIEW,
    StagingFiles,
    StagingPaths,
)
from dlapp.errors import Denied, DlappError, NotFound, Unreachable
from dlapp.hadoop.errors import ApplicationNotFound
from dlapp.ids import ApplicationId
from dlapp.report import ApplicationView, ContainerView, OutputView, State
from dlapp.serialization import from_json, parse_json
from dlapp.spec import Submission
from dlapp.value import replace

RUNNING_READ = 20
"""Of so many applications that run, the latest, a list shows how far they are: it reads a file on HDFS for each."""


class ApplicationReader:
    """Shows applications."""

    def __init__(self, there: ClusterSession, masters: AmClients) -> None:
        self._session, self._masters = there, masters
        self._nodes: dict[str, str] = {}

    def ids(self, *, everybody: bool = False) -> list[str]:
        """All ids as text, oldest first: the caller's own, or everybody's."""
        found = self._session.rest().reports(user=None if everybody else self._session.user, kind=KIND)
        return [str(one.application_id) for one in found]

    def view(self, application_id: ApplicationId) -> ApplicationView:
        """Return the current view of an application. Raises NotFound."""
        report = self.report(application_id)
        told = self._told(report)
        server = self._log_server(report)
        if told.view is None or not server:
            return client_views.merged(report, told)
        nodes = self._nodes_of(told.view.containers, report)
        return client_views.merged(report, told, lambda url: client_views.completed_log_url(url, server, nodes))

    def views(
        self, *, everybody: bool = False, user: str | None = None, limit: int | None = None
    ) -> list[ApplicationView]:
        """Return YARN's reports on many applications as views, oldest first: the caller's own, one user's, or
        everybody's. Those of the caller's own that run show what their ApplicationMasters wrote last; the others are
        without containers.

        Where the ResourceManager has too few that have ended, it may have forgotten some: its timeline server is asked.

        Args:
            limit: how many of those that have ended, the latest; None: all.
        """
        whose = None if everybody else user or self._session.user
        found = self._session.rest().reports(user=whose, kind=KIND)
        ended = [one for one in found if one.state.ended]
        if limit is None or len(ended) < limit:
            forgotten = self._forgotten(whose, found)
            # Its ids are of an earlier ResourceManager, or smaller.
            found, ended = [*forgotten, *found], [*forgotten, *ended]
        kept = set(ended if limit is None else ended[len(ended) - limit :] if limit else ())
        running = [one for one in found if one.state is State.RUNNING]
        latest = set(running[-RUNNING_READ:])
        return [
            client_views.merged(one, self._last_words(one) if one in latest else AmState())
            for one in found
            if not one.state.ended or one in kept
        ]

    def _last_words(self, report: AppReport) -> AmState:
        """Return what the ApplicationMaster of a running application has written last, if it is the caller's own."""
        if report.user == self._session.user:
            with contextlib.suppress(DlappError, ValueError):
                files = self._session.files(report.user)
                return _staged(files, StagingPaths(files.home), report.application_id)
        return AmState()

    def _forgotten(self, whose: str | None, known: Sequence[AppReport]) -> list[AppReport]:
        timeline = self._session.site.timeline_url()
        if timeline is None:
            return []
        # What there is now is shown without it.
        with contextlib.suppress(Unreachable):
            ids = {one.application_id for one in known}
            return client_views.forgotten(timeline, self._session.login, whose=whose, known=ids)
        return []

    def submission(self, application_id: ApplicationId) -> Submission:
        """Return the submission. Raises NotFound."""
        report = self.report(application_id)
        if not self._is_own(report):
            raise Denied(f"{application_id} belongs to {report.user}: what was submitted is theirs to read")
        submission = self._told(report, live=False).submission
        if submission is None:
            files = self._session.files(report.user)
            place = f"{StagingPaths(files.home).staging(application_id)}/{SUBMISSION}"
            submission = from_json(Submission, _object(files.read(place, max_bytes=MAX_SUBMISSION_BYTES)))
        return submission

    def logs(self, application_id: ApplicationId, try_number: int | None = None) -> list[LogFiles]:
        """The logs of all containers that ran, in CONTAINER_INDEX order, of the last try or one. Raises NotFound.

        An ApplicationMaster is a program of its user's and may name any URL. Opened are only pages of nodes that the
        ResourceManager names, and of the configured log server.
        """
        report = self.report(application_id)
        told = self._told(report)
        if told.view is None:
            return []
        containers = told.view.containers_of_try(try_number)
        nodes = self._nodes_of(containers, report)
        server = self._log_server(report)
        found = []
        for one in containers:
            if not one.log_url:
                continue
            is_known = client_views.address_of_node(one, report) in nodes
            url = client_views.completed_log_url(one.log_url, server, nodes) if is_known and server else one.log_url
            files = {name: client_views.log_file_url(url, name) if is_known else "" for name in LOG_NAMES}
            problem = "" if is_known else f"{one.log_url[:200]!r} is not a page of its log on a node of this cluster"
            found.append(LogFiles.of(one, files, problem))
        return found

    def _nodes_of(self, containers: Sequence[ContainerView], report: AppReport) -> dict[str, str]:
        """Return the nodes of the cluster: web address -> id. They are asked for again where a container's is new."""
        addresses = {client_views.address_of_node(one, report) for one in containers} - {""}
        if not addresses <= self._nodes.keys():
            self._nodes = {node.web: node.name for node in self._session.rest().nodes() if node.web}
        return self._nodes

    def _log_server(self, report: AppReport) -> str:
        """Return the URL of the server that has the logs of an application; empty: the nodes have them."""
        return (self._session.site.get("yarn.log.server.url") or "") if report.state.ended else ""

    def aggregated_log(self, view: ApplicationView, log: LogFiles, name: str) -> Iterator[bytes] | None:
        """A log of an application that has ended, as its node collected it on HDFS; None: it is not there, or not yet.

        Raises:
            Denied: the caller may not read it.
            DlappError: it cannot be read.
        """
        from dlapp.cluster.yarn.logs.aggregated import AggregatedLogs

        root = self._session.hdfs(self._session.user).location
        # Collected logs belong to the user that YARN reports; HDFS decides who may read them.
        report = self.report(view.application_id)
        reader = report.user if self._is_own(report) else self._session.user
        found = AggregatedLogs(self._session.files(reader), self._session.site, root, report.user, view.application_id)
        # Nodes are named there by the host name that they report.
        hosts = {one.container_id: one.host for last in view.containers for one in last.earlier}
        hosts |= {one.container_id: one.host for one in view.containers}
        host = hosts.get(log.container_id, "")
        return found.log(str(log.container_id), name, host)

    def dashboard_urls(self, application_id: ApplicationId, *, wait_s: float = 0.0) -> tuple[str, str]:
        """The ResourceManager's page, and the timeline server's, which stays when that one has forgotten it."""
        running = f"{self._session.rest().active_url()}/cluster/app/{application_id}"
        timeline = self._session.site.timeline_url()
        return running, f"{timeline}/applicationhistory/app/{application_id}" if timeline else running

    def report(self, application_id: ApplicationId) -> AppReport:
        """Return the report of YARN on an application, or of its timeline server. Raises NotFound."""
        try:
            return self._session.rest().report(application_id)
        except ApplicationNotFound as missing:
            timeline = self._session.site.timeline_url()
            if timeline is None:
                raise NotFound(f"{application_id} is not known to YARN (dlapp-list -a shows what is)") from missing
            return client_views.from_timeline(timeline, application_id, self._session.login)

    def _told(self, report: AppReport, *, live: bool = True) -> AmState:
        """Return what the application's own ApplicationMaster says or said of it, and what was submitted, if known."""
        own = self._is_own(report)
        if report.state.ended:
            self._masters.leave()
            tools_tokens.forget(report.application_id, login_user=self._session.user)
        elif live and report.tracking_url:
            with contextlib.suppress(DlappError):
                view = from_json(ApplicationView, self._masters.view(report))
                return AmState(view if own else replace(view, submitter=report.user))
        if not own:
            return AmState()
        files = self._session.files(report.user)
        places = StagingPaths(files.home)
        # It is written before YARN is told of the end, and the staging directory removed after that.
        if (kept := _history(files, places, report.application_id)) is not None:
            return kept
        if report.state in (State.KILLED, State.FAILED):
            # Others ended it, and its ApplicationMaster had no time.
            # What cannot be settled now is left for later, and shown all the same.
            ended = EndedApplication(report.state, self._session.rest().ended_ago_s(report))
            with contextlib.suppress(DlappError, OSError):
                settle(files, places, report.application_id, ended)
            if (kept := _history(files, places, report.application_id)) is not None:
                return kept
        with contextlib.suppress(NotFound, Denied, ValueError):
            return _staged(files, places, report.application_id)
        return AmState()

    def _is_own(self, report: AppReport) -> bool:
        return tools_tokens.is_own(report.application_id, report.user, self._session.user)


def _staged(files: StagingFiles, places: StagingPaths, application_id: ApplicationId) -> AmState:
    """Return what the ApplicationMaster wrote last while it ran. Raises DlappError; ValueError if it is not a file of
    ours."""
    data = files.read(f"{places.staging(application_id)}/{VIEW}", max_bytes=MAX_VIEW_BYTES)
    return AmState(from_json(ApplicationView, _object(data)))


def _object(data: bytes) -> dict[str, Any]:
    """Return the JSON object in a file's bytes. Raises ValueError."""
    found = parse_json(data)
    if not isinstance(found, dict):
        raise ValueError("it is not a JSON object")
    return found


def _history(files: StagingFiles, places: StagingPaths, application_id: ApplicationId) -> AmState | None:
    with contextlib.suppress(NotFound, Denied):
        kept = _object(files.read(places.history(application_id), max_bytes=MAX_HISTORY_BYTES))
        view = from_json(ApplicationView, kept["view"]) if kept.get("view") else None
        outputs = tuple(from_json(OutputView, one) for one in kept.get("outputs", ()))
        return AmState(view, from_json(Submission, kept["submission"]), outputs)
    return None
