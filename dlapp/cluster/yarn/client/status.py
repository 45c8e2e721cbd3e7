"""Views of applications, from YARN's reports, ApplicationMasters' answers, and the files they left.

An application's current state comes from its ApplicationMaster's control address; its result from the history that it
left (see `staging`); if neither is available, from YARN's own report.

Files are read with the caller's rights, and only for the caller's own applications: for other users' there are YARN's
report and what their ApplicationMasters show to everyone. The owner of an application is the one that YARN reports,
never one read from a file.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

from dlapp.cluster import LOG_NAMES
from dlapp.cluster.engine import LogFiles
from dlapp.cluster.yarn.client import views as client_views
from dlapp.cluster.yarn.client.am_client import AmClients
from dlapp.cluster.yarn.client.cleanup import GONE_AFTER_S, own_applications, settle, settle_all
from dlapp.cluster.yarn.client.local_files import tools_tokens
from dlapp.cluster.yarn.client.rest import AppReport, EndedApplication, NodeInfo
from dlapp.cluster.yarn.client.session import ClusterSession
from dlapp.cluster.yarn.client.shared_tokens import find_token
from dlapp.cluster.yarn.client.views import AmState
from dlapp.cluster.yarn.client.waits import ClusterFacts
from dlapp.cluster.yarn.staging import (
    HISTORY_SUFFIX,
    MAX_HISTORY_BYTES,
    MAX_SUBMISSION_BYTES,
    MAX_VIEW_BYTES,
    RECEIPT_BYTES,
    SUBMISSION,
    VIEW,
    StagingFiles,
    StagingPaths,
    receipt_of_history,
)
from dlapp.errors import Denied, DlappError, NotFound, Unreachable, UsageError
from dlapp.hadoop.errors import ApplicationNotFound
from dlapp.system import clock
from dlapp.system.logs import log
from dlapp.value import replace
from dlapp.values.access import VIEWERS
from dlapp.values.ids import ApplicationId
from dlapp.values.report import ApplicationView, ContainerView, OutputView, State
from dlapp.values.serialization import from_json, parse_json
from dlapp.values.spec import Submission

KEPT_READ = 200
"""For this many ended applications that the ResourceManager has forgotten, the latest ones, a list reads the
history."""
VIEW_REQUEST_INTERVAL_S = 25.0
"""Interval between two requests to an ApplicationMaster that is unreachable from here to write its view more often."""
_T = TypeVar("_T")
_R = TypeVar("_R")
SETTLE_S = 2.0
"""How long a list waits for the settlement of ended applications; the rest is left to a later command. If the user is
to be notified, it waits `notices.DELIVER_S` longer: on a machine that is always busy the notifications would never be
sent otherwise."""
_READ_AT_ONCE = 4
"""Few: a list is no burst of requests for the NameNode."""
READ_S = 10.0
"""How long a list reads a file on HDFS for each of the caller's running applications, their views, and then for each
ended one that is shown, their receipts; the latest first. On a busy machine with two cores 100 receipts took 2 s by
WebHDFS, and 6 s by the native protocol."""


class ApplicationReader:
    """Reader of applications' views: the methods of a `dlapp.cluster.engine.Engine` that read."""

    def __init__(self, session: ClusterSession, masters: AmClients) -> None:
        self._session, self._masters = session, masters
        self._settler: threading.Thread | None = None
        self._has_notices = False  # the settler found notifications to deliver
        self._notified_waits: set[ApplicationId] = set()
        self._nodes: dict[str, str] = {}
        self._view_request_at: dict[ApplicationId, float] = {}
        self._viewer_tokens: dict[ApplicationId, str | None] = {}
        # As the last list read them:
        self._history_sizes: dict[ApplicationId, int] | None = None
        self._has_history_sizes = False
        self._unread_views: set[ApplicationId] = set()

    def ids(self, *, everybody: bool = False) -> list[str]:
        found = self._session.rest().reports(user=None if everybody else self._session.user)
        return [str(one) for one in sorted({one.application_id for one in found}.union(self._kept_ids()))]

    def view(self, application_id: ApplicationId) -> ApplicationView:
        """Return the current view of an application; while no ResourceManager answers, the last view that the
        ApplicationMaster wrote, for the caller's own. Raises NotFound, Unreachable.
        """
        try:
            report = self._session.rest().report(application_id)
        except ApplicationNotFound as missing:
            report = self._forgotten_report(application_id, missing)
        except Unreachable as error:
            if (written := self._written_view(application_id)) is None:
                raise
            text = "; ".join(filter(None, (written.diagnostics, f"the ResourceManager does not answer: {error}")))
            return replace(written, diagnostics=text)
        self.notify_waits([report])
        report, view = self._merged(report)
        return ClusterFacts(self._session).explained(report, view)

    def view_in_full(self, application_id: ApplicationId) -> ApplicationView:
        """Return `view`, with the smallest change that ends its wait and an estimated start. Raises NotFound,
        Unreachable."""
        report = self.report(application_id)
        self.notify_waits([report])
        report, view = self._merged(report)
        return ClusterFacts(self._session).in_full(report, view, clock.now_ms())

    def notify_waits(self, reports: Sequence[AppReport]) -> None:
        """Notify the caller of their applications that wait too long for their first ApplicationMaster: until it runs,
        nobody else can. Each is tried once by this reader; an error is left to a later command."""
        for user, overdue in self._overdue(reports).items():
            with contextlib.suppress(DlappError, OSError):
                files = self._session.files(user)
                if (notices := self._session.notices(files)) is not None:
                    notices.deliver_waits(overdue)

    def _overdue(self, reports: Sequence[AppReport]) -> dict[str, list[AppReport]]:
        """Return the caller's applications of whose wait they are to be notified, by Hadoop user, each once."""
        found: dict[str, list[AppReport]] = {}
        for one in reports:
            is_new = one.application_id not in self._notified_waits
            if is_new and client_views.waits_too_long(one, clock.now_ms()) and self._is_own(one):
                self._notified_waits.add(one.application_id)
                found.setdefault(one.user, []).append(one)
        return found

    def _merged(self, report: AppReport) -> tuple[AppReport, ApplicationView]:
        """Return the view of an application, and its report with the state that this shows."""
        am_state = self._am_state(report)
        report = client_views.as_it_runs(report, am_state)
        server = self._log_server(report)
        if am_state.view is None or not server:
            return report, client_views.merged(report, am_state)
        nodes = self._nodes_of(am_state.view.containers, report)
        view = client_views.merged(report, am_state, lambda url: client_views.completed_log_url(url, server, nodes))
        return report, view

    def _written_view(self, application_id: ApplicationId) -> ApplicationView | None:
        """Return the last view on HDFS of an ApplicationMaster of the caller; None: there is none."""
        with contextlib.suppress(DlappError, ValueError, LookupError, TypeError):
            files = self._session.files(self._session.user)
            if (kept := _history(files, application_id)) is not None:
                return kept.view
            written = files.status(f"{StagingPaths(files.home).staging(application_id)}/{VIEW}")
            view = _staged(files, application_id).view
            if view is not None and written is not None:
                return replace(view, as_of_ms=written.modified_ms)
        return None

    def views(
        self, *, everybody: bool = False, user: str | None = None, limit: int | None = None
    ) -> list[ApplicationView]:
        """Return YARN's reports on many applications as views, oldest first: the caller's own, one user's, or those of
        all users. The caller's own running ones show the last view that their ApplicationMasters wrote; the others have
        no containers.

        The ResourceManager may have forgotten some: the history of the caller's own is read, and the timeline server is
        asked if too few ended ones are known. Leftovers of the caller's own ended applications are settled.
        """
        whose = None if everybody else user or self._session.user
        known = self._session.rest().reports(user=whose)
        with self._settling(known) if whose in (None, self._session.user) else contextlib.nullcontext():
            reports = [*self._forgotten(whose, known, limit), *known]
            reports.sort(key=lambda one: (one.started_ms, one.application_id))
            ended = [one for one in reports if one.state.ended]
            kept = set(ended if limit is None else ended[len(ended) - limit :] if limit else ())
            running = [one for one in reports if _may_run(one) and one.user == self._session.user]
            read = _in_time(lambda one: (one.application_id, self._last_view(one)), running[::-1])
            last = {name: found for name, found in read if found is not None}
            self._unread_views = {one.application_id for one in running} - last.keys()
            facts = ClusterFacts(self._session, of_others=False)
            states = [(one, last.get(one.application_id, AmState())) for one in reports]
            states = [(client_views.as_it_runs(one, am_state), am_state) for one, am_state in states]
            return [
                facts.explained(one, client_views.merged(one, am_state))
                for one, am_state in states
                if not one.state.ended or one in kept
            ]

    def add_receipts(self, views: Sequence[dict[str, Any]]) -> set[str]:
        """Add the receipts from the history to the views of the caller's ended applications.

        Returns:
            The caller's applications whose receipts could not be read, or not within `READ_S`.
        """
        by_id = {ApplicationId.from_text(one["application_id"]): one for one in views}
        unread = set(map(str, self._unread_views & by_id.keys()))
        user = self._session.user
        own = {name: one for name, one in by_id.items() if one.get("cause") and one["username"] == user}
        if not own:
            return unread
        sizes = self._read_history_sizes() if self._history_sizes is None else self._history_sizes
        if not self._has_history_sizes:
            return unread | set(map(str, own))
        files = self._session.files(user)
        places = StagingPaths(files.home)

        def read(one: ApplicationId) -> ApplicationId | None:
            """Add one receipt; return the id, also if there is no receipt, and None if it cannot be read."""
            try:
                part = files.read_part(places.history(one), 0, min(sizes[one], RECEIPT_BYTES))
                own[one]["receipt"] = receipt_of_history(part)
            except NotFound:
                pass  # it has just been removed
            except DlappError:
                return None  # current data is shown even without the history
            return one

        kept = [one for one in own if sizes.get(one)]
        return unread | set(map(str, {*kept} - {*_in_time(read, kept[::-1])}))

    @contextlib.contextmanager
    def _settling(self, known: Sequence[AppReport]) -> Iterator[None]:
        """Settle leftovers of the caller's own ended or forgotten applications, and notify them of waits, in a thread,
        during the block.

        The end of the block waits `SETTLE_S` for the thread, or longer for notifications: each step may be interrupted
        at any time, and is repeated later. Only one such thread runs at a time.
        """
        settler = self._settler
        if settler is None or not settler.is_alive():
            overdue = self._overdue([one for one in known if one.user == self._session.user])
            arguments = (overdue.get(self._session.user, []),)
            target = self._settle_quietly
            self._settler = settler = threading.Thread(target=target, args=arguments, name="yarn-settle", daemon=True)
            settler.start()
        yield
        settler.join(SETTLE_S)
        if self._has_notices and settler.is_alive():
            from dlapp.cluster.yarn.client.notices import DELIVER_S

            settler.join(DELIVER_S)

    def _settle_quietly(self, overdue: Sequence[AppReport]) -> None:
        # An error here does not affect the list, and will show up again.
        try:
            self._settle_ended(overdue)
        except (DlappError, OSError):
            pass
        except Exception as error:
            # Instead of a thread's traceback. stdout carries the command's data.
            text = f"what ended applications left is not settled: {type(error).__name__}: {error}"
            with contextlib.suppress(OSError):
                os.write(2, log.line("WARNING", text))

    def _settle_ended(self, overdue: Sequence[AppReport]) -> None:
        with contextlib.closing(self._session.own_files()) as files:
            notices = self._session.notices(files)
            self._has_notices = notices is not None and (bool(overdue) or notices.is_there_any())
            if notices is not None and overdue:
                notices.deliver_waits(overdue)
            if self._has_notices or files.names(StagingPaths(files.home).all_staging):
                with self._session.own_rest() as rest:
                    applications = own_applications(rest, files, self._session.user)
                ended, unfinished = applications.ended, applications.unfinished.keys()
                # An application that has just ended removes its directory itself.
                over = {one: end for one, end in ended.items() if end.ago_s >= GONE_AFTER_S}
                # Notifications first: an output may block on its file system.
                if notices is not None and self._has_notices:
                    notices.deliver(ended, unfinished)
                if settle_all(files, over, notices) and notices is not None:
                    notices.deliver(ended, unfinished)

    def _last_view(self, report: AppReport) -> AmState | None:
        """Return the last view of the ApplicationMaster of one of the caller's running applications; None: it cannot
        be read now."""
        try:
            return _staged(self._session.files(report.user), report.application_id)
        except (NotFound, ValueError):
            return AmState()  # it has just started, or the file is not dlapp's
        except DlappError:
            return None

    def _forgotten(self, whose: str | None, known: Sequence[AppReport], limit: int | None) -> list[AppReport]:
        """Return ended applications that the ResourceManager has forgotten, of one user or of all.

        Args:
            known: applications that the ResourceManager knows, by id.
            limit: how many ended ones are wanted in total, the latest by id; None: all.
        """
        ids = {one.application_id for one in known}
        ended = [one.application_id for one in known if one.state.ended]
        is_enough = limit is not None and len(ended) >= limit
        # Current data is shown even without the history or the timeline server.

        def in_history() -> list[AppReport]:
            if whose not in (None, self._session.user) or limit == 0:
                return []
            with contextlib.suppress(DlappError):
                kept = [one for one in self._kept_ids() if one not in ids]
                if is_enough and limit is not None:
                    # The ResourceManager forgets in order of ends, which may differ from the order of submissions.
                    kept = [one for one in kept if one > ended[-limit]]
                latest = kept[-min(limit or KEPT_READ, KEPT_READ) :]
                return [report for report in _at_once(self._kept, latest) if report is not None]
            return []

        def on_timeline() -> list[AppReport]:
            session, site = self._session, self._session.site
            if is_enough:
                return []
            with contextlib.suppress(Unreachable):
                if (url := site.timeline_url()) is not None:
                    from dlapp.cluster.yarn.client.timeline import history

                    return history.forgotten(url, session.login, session.certificates, whose=whose, known=known)
                if (url := site.timeline_reader_url()) is not None:
                    from dlapp.cluster.yarn.client.timeline import reader

                    return reader.forgotten(url, session.login, session.certificates, whose=whose, known=known)
            return []

        found, others = _at_once(lambda read: read(), [in_history, on_timeline])
        known_here = {one.application_id for one in found}
        return [*found, *(one for one in others if one.application_id not in known_here)]

    def _kept_ids(self) -> list[ApplicationId]:
        """Return the caller's own applications in the history, oldest first; none if HDFS is unavailable."""
        self._history_sizes = self._read_history_sizes()
        return sorted(self._history_sizes)

    def _read_history_sizes(self) -> dict[ApplicationId, int]:
        """Return the sizes [bytes] of the caller's histories; empty if HDFS is unavailable."""
        found, self._has_history_sizes = {}, False
        with contextlib.suppress(Unreachable, Denied):
            files = self._session.files(self._session.user)
            for name, size, _ in files.entries(StagingPaths(files.home).all_history):
                if name.endswith(HISTORY_SUFFIX):
                    with contextlib.suppress(UsageError):
                        found[ApplicationId.from_text(name.removesuffix(HISTORY_SUFFIX))] = size
            self._has_history_sizes = True
        return found

    def _kept(self, application_id: ApplicationId) -> AppReport | None:
        """Return a report on the caller's application from dlapp's own history, instead of YARN's; None: not there."""
        files = self._session.files(self._session.user)
        with contextlib.suppress(ValueError, LookupError, TypeError):
            if (am_state := _history(files, application_id)) is not None:
                return client_views.report_of_kept(application_id, self._session.user, am_state)
        return None

    def submission(self, application_id: ApplicationId) -> Submission:
        report = self.report(application_id)
        if not self._is_own(report):
            raise Denied(f"{application_id} belongs to {report.user}: what was submitted is theirs to read")
        if (known := self._am_state(report, live=False).submission) is not None:
            return known
        files = self._session.files(report.user)
        try:
            place = f"{StagingPaths(files.home).staging(application_id)}/{SUBMISSION}"
            return from_json(Submission, _object(files.read(place, max_bytes=MAX_SUBMISSION_BYTES)))
        except NotFound:
            # It has been settled since, perhaps by the thread started here: the history was written first.
            kept = _history(files, application_id)
            if kept is None or kept.submission is None:
                raise
            return kept.submission

    def logs(self, application_id: ApplicationId, try_number: int | None = None) -> list[LogFiles]:
        """Return the logs of all containers that ran, by CONTAINER_INDEX, of the last try or a given one. Raises
        NotFound, Unreachable.

        An ApplicationMaster runs under its user's control and may report any URL. Only pages of nodes that the
        ResourceManager reports, and of the configured log server, are opened.
        """
        report = self.report(application_id)
        am_state = self._am_state(report)
        if am_state.unread:
            end = f"{report.state.value}, {client_views.first_line(report.diagnostics)}".removesuffix(", ")
            raise Unreachable(f"{application_id} is {end}; where its logs are cannot be read now: {am_state.unread}")
        if am_state.view is None:
            return []
        containers = am_state.view.containers_of_try(try_number)
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
        """Return the nodes of the cluster: web address -> id. They are read again if a container's node is new, and
        finally in any state: a decommissioning node, or one without a healthy disk, still serves its logs.
        """
        addresses = {client_views.address_of_node(one, report) for one in containers} - {""}
        session = self._session
        reads: tuple[Callable[[], list[NodeInfo]], ...]
        reads = session.nodes, partial(session.nodes, refresh=True), session.rest().nodes
        for read in reads:
            if addresses <= self._nodes.keys():
                break
            self._nodes = {node.web: node.name for node in read() if node.web}
        return self._nodes

    def _log_server(self, report: AppReport) -> str:
        """Return the URL of the log server for an application; empty: its nodes serve the logs."""
        return (self._session.site.get("yarn.log.server.url") or "") if report.state.ended else ""

    def aggregated_log(self, view: ApplicationView, log: LogFiles, name: str) -> Iterator[bytes] | None:
        """Return a log of an ended application from YARN's log aggregation on HDFS; None: not there, or not yet.

        Raises:
            Denied: the caller may not read it.
            DlappError: it cannot be read.
        """
        from dlapp.cluster.yarn.logs.aggregated import AggregatedLogs

        hdfs = self._session.hdfs(self._session.user)
        # Aggregated logs belong to the user that YARN reports; HDFS decides who may read them.
        report = self.report(view.application_id)
        reader = report.user if self._is_own(report) else self._session.user
        found = AggregatedLogs(self._session.files(reader), self._session.site, hdfs, report.user, view.application_id)
        # The directory names nodes by their reported host names.
        hosts = {one.container_id: one.host for last in view.containers for one in last.earlier}
        hosts |= {one.container_id: one.host for one in view.containers}
        host = hosts.get(log.container_id, "")
        return found.log(str(log.container_id), name, host)

    def dashboard_urls(self, application_id: ApplicationId, *, wait_s: float = 0.0) -> tuple[str, str]:
        """Return the ResourceManager's page, and the timeline server's, which stays when the former has forgotten
        it."""
        running = f"{self._session.rest().active_url()}/cluster/app/{application_id}"
        timeline = self._session.site.timeline_url()
        return running, f"{timeline}/applicationhistory/app/{application_id}" if timeline else running

    def report(self, application_id: ApplicationId) -> AppReport:
        """Return YARN's report on an application; for a forgotten one the report from dlapp's history, or from the
        timeline server. Raises NotFound.
        """
        try:
            return self._session.rest().report(application_id)
        except ApplicationNotFound as missing:
            return self._forgotten_report(application_id, missing)

    def _forgotten_report(self, application_id: ApplicationId, missing: ApplicationNotFound) -> AppReport:
        unread: Unreachable | None = None
        try:
            if (kept := self._kept(application_id)) is not None:
                return kept
        except Unreachable as error:
            unread = error
        session, site = self._session, self._session.site
        if (url := site.timeline_url()) is not None:
            from dlapp.cluster.yarn.client.timeline import history

            return history.from_timeline(url, application_id, session.login, session.certificates)
        if (url := site.timeline_reader_url()) is not None:
            from dlapp.cluster.yarn.client.timeline import reader

            return reader.from_timeline(url, application_id, session.login, session.certificates)
        if unread is not None:
            raise unread from missing
        raise NotFound(f"{application_id} is not known to YARN (dlapp-list -a shows what is)") from missing

    def _am_state(self, report: AppReport, *, live: bool = True) -> AmState:
        """Return the current or last view of the application's own ApplicationMaster, and the submission, if known."""
        own = self._is_own(report)
        if report.state.ended:
            self._masters.close()
            tools_tokens.forget(report.application_id, login_user=self._session.user)
        elif live and report.tracking_url:
            with contextlib.suppress(DlappError):
                if own:
                    return AmState(from_json(ApplicationView, self._masters.view(report)))
                return AmState(replace(self._view_of_another(report), submitter=report.user))
        if not own:
            return AmState()
        try:
            return self._final_state(report, live=live)
        except Unreachable as error:
            return AmState(unread=str(error))

    def _view_of_another(self, report: AppReport) -> ApplicationView:
        """Return another user's ApplicationMaster's view for the caller: complete if its owner grants access.
        Raises DlappError."""
        from dlapp.cluster.foreign import read_foreign_view

        token = self._viewer_tokens.get(report.application_id)
        view = read_foreign_view(self._masters.view(report, token=token))
        if not view.view_acl or report.application_id in self._viewer_tokens:
            return view
        with contextlib.suppress(DlappError):
            token = self._viewer_tokens[report.application_id] = find_token(self._session, report, VIEWERS)
            if token is not None:
                return read_foreign_view(self._masters.view(report, token=token))
        return view

    def _final_state(self, report: AppReport, *, live: bool) -> AmState:
        """Return the final or last view of the caller's application on the file system; ``live``: ask its
        ApplicationMaster to write its current view. Raises Unreachable."""
        files = self._session.files(report.user)
        # The history is written before the end is reported to YARN, and the staging directory is removed after that.
        kept = _history(files, report.application_id)
        if report.state.ended:
            # It was ended from outside, and its ApplicationMaster had no time, or none after it wrote the history.
            # What cannot be settled now is left for later; the view is shown nevertheless.
            ended = EndedApplication(report.state, self._session.rest().ended_ago_s(report))
            if report.state is not State.FINISHED or ended.ago_s >= GONE_AFTER_S:
                notices = self._session.notices(files)
                with contextlib.suppress(DlappError, OSError):
                    settle(files, report.application_id, ended, notices)
                    if notices is not None:
                        notices.deliver({report.application_id: ended})
                kept = kept or _history(files, report.application_id)
        if kept is not None:
            return kept
        with contextlib.suppress(NotFound, Denied, ValueError):
            am_state = _staged(files, report.application_id)
            if not live or client_views.as_it_runs(report, am_state).state is not State.RUNNING:
                return am_state
            self._request_views(files, report.application_id)
            written = files.status(f"{StagingPaths(files.home).staging(report.application_id)}/{VIEW}")
            return am_state if written is None else am_state._replace(written_ms=written.modified_ms)
        return _history(files, report.application_id) or AmState()  # it may have been settled since

    def _request_views(self, files: StagingFiles, application_id: ApplicationId) -> None:
        """Request more frequent views for a while from an ApplicationMaster that is unreachable from here."""
        if time.monotonic() >= self._view_request_at.get(application_id, 0.0):
            self._view_request_at[application_id] = time.monotonic() + VIEW_REQUEST_INTERVAL_S
            with contextlib.suppress(DlappError, OSError):
                files.touch(f"{StagingPaths(files.home).staging(application_id)}/{SUBMISSION}")

    def _is_own(self, report: AppReport) -> bool:
        return tools_tokens.is_own(report.application_id, report.user, self._session.user)


def _may_run(report: AppReport) -> bool:
    """Return whether the ApplicationMaster of an application may run (`dlapp.cluster.yarn.client.views.as_it_runs`)."""
    return report.state is State.RUNNING or (report.state is State.ACCEPTED and bool(report.am_attempt))


def _at_once(call: Callable[[_T], _R], items: Sequence[_T]) -> list[_R]:
    """Call a function with each item, some at a time: each mostly waits for a server."""
    if len(items) < 2:
        return [call(one) for one in items]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(_READ_AT_ONCE, "yarn-read") as pool:
        return list(pool.map(call, items))


def _in_time(call: Callable[[_T], _R], items: Sequence[_T]) -> list[_R]:
    """Call a function with each item, some at a time, until `READ_S` have passed; return the results so far."""
    until_s = time.monotonic() + READ_S
    found = _at_once(lambda one: [call(one)] if time.monotonic() < until_s else [], items)
    return [result for results in found for result in results]


def _staged(files: StagingFiles, application_id: ApplicationId) -> AmState:
    """Return the last view that the ApplicationMaster wrote while it ran. Raises DlappError; ValueError if the file is
    not dlapp's."""
    place = f"{StagingPaths(files.home).staging(application_id)}/{VIEW}"
    return AmState(from_json(ApplicationView, _object(files.read(place, max_bytes=MAX_VIEW_BYTES))))


def _object(data: bytes) -> dict[str, Any]:
    """Return the JSON object in a file's bytes. Raises ValueError."""
    found = parse_json(data)
    if not isinstance(found, dict):
        raise ValueError("it is not a JSON object")
    return found


def _history(files: StagingFiles, application_id: ApplicationId) -> AmState | None:
    with contextlib.suppress(NotFound, Denied):
        place = StagingPaths(files.home).history(application_id)
        kept = _object(files.read(place, max_bytes=MAX_HISTORY_BYTES))
        view = from_json(ApplicationView, kept["view"]) if kept.get("view") else None
        outputs = tuple(from_json(OutputView, one) for one in kept.get("outputs", ()))
        state = State(kept["state"]) if kept.get("state") else None
        finished_ms = kept.get("finished_ms")
        submission = from_json(Submission, kept["submission"])
        return AmState(view, submission, outputs, state, finished_ms if isinstance(finished_ms, int) else None)
    return None
