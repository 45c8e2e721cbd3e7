"""Looking at what there is: what YARN says, what an ApplicationMaster says, what it left, made into views.

What an application is doing now its ApplicationMaster says, at its control address; what became of it is in the history
that it left (see `staging`); and where neither answers, what YARN itself knows is shown.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence

from dlapp.cluster.engine import LogFiles
from dlapp.cluster.yarn import reports
from dlapp.cluster.yarn.connected import Connected
from dlapp.cluster.yarn.errors import ApplicationNotFound
from dlapp.cluster.yarn.masters import ASK_S, Masters
from dlapp.cluster.yarn.reports import Told
from dlapp.cluster.yarn.rest import KIND, AppReport
from dlapp.cluster.yarn.staging import SUBMISSION, VIEW, Files, Places
from dlapp.cluster.yarn.sweeping import Ended, settle
from dlapp.errors import Denied, DlappError, NotFound, Unreachable
from dlapp.ids import ApplicationId
from dlapp.jsonform import from_json
from dlapp.report import ApplicationView, OutputView, State
from dlapp.spec import Submission

RUNNING_READ = 20
"""Of so many applications that run, the latest, a list shows how far they are: it reads a file on HDFS for each."""


class Looker:
    """Shows applications."""

    def __init__(self, there: Connected, masters: Masters) -> None:
        self._there, self._masters = there, masters

    def ids(self, *, everybody: bool = False) -> list[str]:
        """All ids as text, oldest first: the caller's own, or everybody's."""
        found = self._there.rest().reports(user=None if everybody else self._there.user, kind=KIND)
        return [str(one.application_id) for one in found]

    def view(self, application_id: ApplicationId) -> ApplicationView:
        """What is known of it now. Raises NotFound."""
        report = self.report(application_id)
        told = self._told(report)
        return reports.merged(report, told, self._log_url_of(report, told.view))

    def views(
        self, *, everybody: bool = False, user: str | None = None, limit: int | None = None
    ) -> list[ApplicationView]:
        """What YARN knows of many, oldest first: the caller's own, one user's, or everybody's. Of those of the caller's
        own that run it is what their ApplicationMasters wrote last; the others are without containers.

        Where the ResourceManager has too few that have ended, it may have forgotten some: its timeline server is asked.

        Args:
            limit: how many of those that have ended, the latest; None: all.
        """
        whose = None if everybody else user or self._there.user
        found = self._there.rest().reports(user=whose, kind=KIND)
        ended = [one for one in found if one.state.ended]
        if limit is None or len(ended) < limit:
            forgotten = self._forgotten(whose, found)
            # Its ids are of an earlier ResourceManager, or smaller.
            found, ended = [*forgotten, *found], [*forgotten, *ended]
        kept = set(ended if limit is None else ended[len(ended) - limit :] if limit else ())
        running = [one for one in found if one.state is State.RUNNING]
        latest = set(running[-RUNNING_READ:])
        return [
            reports.merged(one, self._last_words(one) if one in latest else Told())
            for one in found
            if not one.state.ended or one in kept
        ]

    def _last_words(self, report: AppReport) -> Told:
        """What the ApplicationMaster of an application that runs has written last, where it is the caller's own."""
        if report.user == self._there.user:
            with contextlib.suppress(DlappError, ValueError):
                files = self._there.files(report.user)
                return _staged(files, Places(files.home), report.application_id)
        return Told()

    def _forgotten(self, whose: str | None, known: Sequence[AppReport]) -> list[AppReport]:
        timeline = self._there.site.timeline_url()
        if timeline is None:
            return []
        # What there is now is shown without it.
        with contextlib.suppress(Unreachable):
            ids = {one.application_id for one in known}
            return reports.forgotten(timeline, self._there.login, whose=whose, known=ids)
        return []

    def submission(self, application_id: ApplicationId) -> Submission:
        """What was submitted. Raises NotFound."""
        report = self.report(application_id)
        submission = self._told(report, live=False).submission
        if submission is None:
            files = self._there.files(report.user)
            place = f"{Places(files.home).staging(application_id)}/{SUBMISSION}"
            submission = from_json(Submission, json.loads(files.read(place)))
        return submission

    def logs(self, application_id: ApplicationId) -> list[LogFiles]:
        """The logs of all containers that ran, in CONTAINER_INDEX order, the last attempt of each. Raises NotFound."""
        return [
            LogFiles(
                container_id=one.container_id,
                role=one.role,
                role_index=one.role_index,
                index=one.index,
                files={name: reports.log_file_url(one.log_url, name) for name in ("stdout", "stderr", "dlapp.log")},
            )
            for one in sorted(self.view(application_id).containers, key=lambda one: one.index)
            if one.log_url
        ]

    def collected_log(self, view: ApplicationView, log: LogFiles, name: str) -> Iterator[bytes] | None:
        """A log of an application that has ended, as its node collected it on HDFS; None: it is not there, or not yet.

        Raises:
            Denied: the caller may not read it.
            DlappError: it cannot be read.
        """
        from dlapp.cluster.yarn.collected import Collected

        root = str(self._there.storage(self._there.user)["location"])
        # Collected logs are their owner's; what a node is called there is the host name that it reports.
        found = Collected(self._there.files(view.username), self._there.site, root, view.username, view.application_id)
        host = next((one.host for one in view.containers if one.container_id == log.container_id), "")
        return found.log(str(log.container_id), name, host)

    def dashboard_urls(self, application_id: ApplicationId, *, wait_s: float = 0.0) -> tuple[str, str]:
        """The ResourceManager's page, and the timeline server's, which stays when that one has forgotten it."""
        running = f"{self._there.rest().active_url()}/cluster/app/{application_id}"
        timeline = self._there.site.timeline_url()
        return running, f"{timeline}/applicationhistory/app/{application_id}" if timeline else running

    def report(self, application_id: ApplicationId) -> AppReport:
        """What YARN says of it, or its timeline server. Raises NotFound."""
        try:
            return self._there.rest().report(application_id)
        except ApplicationNotFound as missing:
            timeline = self._there.site.timeline_url()
            if timeline is None:
                raise NotFound(f"{application_id} is not known to YARN (dlapp-list -a shows what is)") from missing
            return reports.from_timeline(timeline, application_id, self._there.login)

    def _told(self, report: AppReport, *, live: bool = True) -> Told:
        """What the application's own ApplicationMaster says or said of it, and what was submitted, where known."""
        files = self._there.files(report.user)
        places = Places(files.home)
        if report.state.ended:
            self._masters.leave()
        elif live and report.tracking_url:
            with contextlib.suppress(DlappError):
                return Told(from_json(ApplicationView, self._masters.ask(report, "GET", "view", None, timeout_s=ASK_S)))
        # It is written before YARN is told of the end, and the staging directory removed after that.
        if (kept := _history(files, places, report.application_id)) is not None:
            return kept
        if report.state in (State.KILLED, State.FAILED) and report.user == self._there.user:
            # Others ended it, and its ApplicationMaster had no time.
            # What cannot be settled now is left for later, and shown all the same.
            ended = Ended(report.state, self._there.rest().ended_ago_s(report))
            with contextlib.suppress(DlappError, OSError):
                settle(files, places, report.application_id, ended)
            if (kept := _history(files, places, report.application_id)) is not None:
                return kept
        with contextlib.suppress(NotFound, Denied, ValueError):
            return _staged(files, places, report.application_id)
        return Told()

    def _log_url_of(self, report: AppReport, view: ApplicationView | None) -> Callable[[str], str]:
        """What a log URL is after the end: the history server's, which the node's is turned into."""
        server = self._there.site.get("yarn.log.server.url")
        if not report.state.ended or view is None or not server:
            return lambda url: url
        nodes = {node.web: node.name for node in self._there.rest().nodes()}
        return lambda url: reports.completed_log_url(url, server, nodes)


def _staged(files: Files, places: Places, application_id: ApplicationId) -> Told:
    """What the ApplicationMaster wrote last while it ran. Raises DlappError; ValueError where it is nothing of ours."""
    return Told(from_json(ApplicationView, json.loads(files.read(f"{places.staging(application_id)}/{VIEW}"))))


def _history(files: Files, places: Places, application_id: ApplicationId) -> Told | None:
    with contextlib.suppress(NotFound, Denied):
        kept = json.loads(files.read(places.history(application_id)))
        view = from_json(ApplicationView, kept["view"]) if kept.get("view") else None
        outputs = tuple(from_json(OutputView, one) for one in kept.get("outputs", ()))
        return Told(view, from_json(Submission, kept["submission"]), outputs)
    return None
