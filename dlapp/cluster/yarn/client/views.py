"""Views of applications, from YARN's report and the application's own ApplicationMaster's view."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from dlapp.cluster import view_rules
from dlapp.cluster.yarn.client.rest import KIND, AppReport
from dlapp.cluster.yarn.container_executor import launch_failure
from dlapp.errors import SpecError
from dlapp.id_text import is_application_id
from dlapp.locations import shown
from dlapp.system.clock import date_and_time
from dlapp.value import replace
from dlapp.values.ids import ApplicationId
from dlapp.values.notification import WAITING, NotificationSettings
from dlapp.values.report import ApplicationView, Cause, ContainerView, FinalStatus, OutputView, State, TryView
from dlapp.values.spec import AppSpec, OnFailure, Submission

_NODE_LOGS = "/node/containerlogs/"
_PROJECT, _RESUMED, _WAIT_NOTICE = "project:", "resumed_from:", "notify_waiting:"
_OWN_TAGS = _PROJECT, _RESUMED, _WAIT_NOTICE
MAX_TAGS = 10
"""Of one application, as a ResourceManager has it. Source: YarnConfiguration.APPLICATION_MAX_TAGS."""
_MAX_TAG = 100
"""Characters of one tag. Source: YarnConfiguration.APPLICATION_MAX_TAG_LENGTH."""
_TAGS_LIMIT, _TAG_LIMIT = "yarn.resourcemanager.application.max-tags", "yarn.resourcemanager.application.max-tag.length"
"""Settings of the ResourceManager for both, in Hadoop 3.4."""
PRIORITY_LIMIT = "yarn.cluster.max-application-priority"
_ADDRESS = re.compile(r"[A-Za-z0-9._\-\[\]:]+")
_DATE = re.compile(r"^\[[^\]]*\]\s*")
_DETAILS = re.compile(r"\s+Details : ")
_NOT_STARTED = re.compile(
    r"due to AM Container for \S+ exited with\s+exitCode: -1(?:000)?\n.*?Diagnostics: (?:\[[^\]]*\])?(.+)"
)
"""YARN's diagnostics of an application whose container a NodeManager did not start, up to the first line of the reason.
Source: RMAppAttemptImpl.getAMContainerCrashedDiagnostics, Hadoop 2.7 to 3.5; ContainerExitStatus."""
_OF_QUEUE = re.compile(r"AM Resource Request|Limit|Usage|Absolute (used|max) capacity")
"""Part of the diagnostics of a waiting application that names the exceeded limit of its queue."""
_RAN = "launchTime", "memorySeconds"
"""Fields of a report that are not 0 once an ApplicationMaster was started; the first is there since Hadoop 3."""
_MAX_DIGITS = 10
"""Of a wait in a tag [s]: 300 years."""
_KILLS: Mapping[str, Cause] = {
    "timed out": Cause.TIMED_OUT,
    "soft-killed by ": Cause.SOFT_KILLED,
    "Application is killed by ResourceManager as it has exceeded the lifetime period": Cause.TIMED_OUT,
}
"""Prefixes of our diagnostics (`dlapp.am.decisions.shutdown`) and of YARN's (RMAppLifetimeMonitor)."""
_GONE = "what its containers had not stored is gone: YARN deletes a container's directory with the container"
_CAUSES: Mapping[FinalStatus, Cause] = {
    FinalStatus.SUCCEEDED: Cause.SUCCEEDED,
    FinalStatus.KILLED: Cause.KILLED,
    FinalStatus.FAILED: Cause.FAILED,
}


class AmState(NamedTuple):
    """State of an application in addition to YARN's report.

    Args:
        view: last view of its ApplicationMaster.
        written_ms: when that was written, if the ApplicationMaster could not be asked [ms since 1970].
        submission: its submission.
        outputs: results of its outputs, if settled without an ApplicationMaster; empty: they are in ``view``.
        state: its last state, if it was ended from outside; None: it is in ``view``.
        finished_ms: time of its end, if it was ended from outside [ms since 1970].
        unread: why its files cannot be read now; empty: they were read, or do not exist.
    """

    view: ApplicationView | None = None
    submission: Submission | None = None
    outputs: tuple[OutputView, ...] = ()
    state: State | None = None
    finished_ms: int | None = None
    written_ms: int | None = None
    unread: str = ""


def report_of_kept(application_id: ApplicationId, user: str, am_state: AmState) -> AppReport:
    """Return the report that YARN would give on a forgotten application, from dlapp's own history, which has the
    submission."""
    view, submission = am_state.view, am_state.submission
    assert submission is not None
    if view is not None and view.state.ended:
        state, final = view.state, view.final_status
    else:
        state = am_state.state or State.FAILED
        final = FinalStatus.KILLED if state is State.KILLED else FinalStatus.FAILED
    return AppReport(
        application_id=application_id,
        user=user,
        name=submission.spec.appname,
        queue=submission.spec.queue or "default",
        state=state,
        final_status=final,
        diagnostics=view.diagnostics if view is not None else "",
        started_ms=submission.submitted_ms,
        finished_ms=(view.finished_ms if view is not None else None) or am_state.finished_ms or 0,
        kind=KIND,
        tags=tags_of(submission),
    )


def as_it_runs(report: AppReport, am_state: AmState) -> AppReport:
    """Return the report of an application that runs, also while its ApplicationMaster has yet to register again.

    A ResourceManager that has just become active, or was restarted, reports such applications as waiting for their
    ApplicationMasters. What the ApplicationMaster of the same attempt has written shows that it runs, or that all is
    done but its report to YARN. Source: RMAppAttemptImpl.AttemptRecoveredTransition.
    """
    view = am_state.view
    if report.state is not State.ACCEPTED or view is None or view.attempt != report.am_attempt:
        return report
    return replace(report, state=State.RUNNING)


def merged(report: AppReport, am_state: AmState, log_url: Callable[[str], str] = lambda url: url) -> ApplicationView:
    """Return one view of both. State and times are YARN's; the rest is the ApplicationMaster's.

    Args:
        log_url: converts a container's log URL to the current one.
    """
    view = am_state.view or _of_submission(report, am_state.submission)
    if report.state.ended and not view.state.ended:
        # It was killed, or its last ApplicationMaster died: its last report is outdated.
        view = view_rules.ended(view, _end_of(report, am_state, view))
    view = _with_facts(view, report, log_url)
    if am_state.outputs:
        view = replace(view, outputs=am_state.outputs)
    if am_state.unread:
        unread = f"of its containers and output nothing can be read now: {am_state.unread}"
        view = replace(view, diagnostics="; ".join(filter(None, (view.diagnostics, unread))))
    if report.state.ended:
        return replace(view, finished_ms=report.finished_ms or view.finished_ms)
    return _of_unended(view, report, am_state)


def _end_of(report: AppReport, am_state: AmState, view: ApplicationView) -> view_rules.EndFacts:
    """Return the end that YARN reports of an application whose ApplicationMaster did not write it."""
    end = _of_report(report)
    text = end.diagnostics
    if end.cause is Cause.FAILED and _may_have_lost_output(view, am_state):
        text = "; ".join(filter(None, (text, _GONE)))
    return view_rules.EndFacts(
        state=end.state,
        final_status=end.final_status,
        cause=end.cause,
        diagnostics=text,
        finished_ms=end.finished_ms,
    )


def _with_facts(view: ApplicationView, report: AppReport, log_url: Callable[[str], str]) -> ApplicationView:
    """Return a view with YARN's facts that hold in every state: an ApplicationMaster may report a false owner, id or
    URL."""
    lowered = ""
    if None not in (view.priority, report.priority) and view.priority != report.priority:
        lowered = f"priority {view.priority} was asked for, YARN has made it {report.priority} ({PRIORITY_LIMIT})"

    def checked(one: ContainerView | TryView) -> str:
        return log_url(one.log_url) if address_of_node(one, report) else ""

    return replace(
        view,
        application_id=report.application_id,
        username=report.user,
        queue=report.queue.removeprefix("root.") or view.queue,
        priority=view.priority if report.priority is None else report.priority,
        changes=(*view.changes, *([lowered] if lowered else [])),
        **_labels(report.tags or _user_tags(view.project, view.tags)),
        resumed_from=view.resumed_from or _resumed_from(report.tags),
        # Use YARN's clock everywhere: a list has no view, and must show the same times as the status.
        submitted_ms=report.started_ms or view.submitted_ms,
        tracking_url=report.tracking_url,
        containers=tuple(
            replace(one, log_url=checked(one), earlier=tuple(replace(old, log_url=checked(old)) for old in one.earlier))
            for one in view.containers
        ),
    )


def _of_unended(view: ApplicationView, report: AppReport, am_state: AmState) -> ApplicationView:
    """Return the view of an application that has not ended according to YARN."""
    shown = replace(view_rules.not_ended(view, report.state), as_of_ms=am_state.written_ms)
    if report.state is not State.RUNNING:
        return replace(shown, diagnostics=waiting_line(report), phase=_wait_for_am(report, am_state))
    if view.state.ended:
        since = "" if view.finished_ms is None else f" since {date_and_time(view.finished_ms / 1000)}"
        return replace(shown, phase=f"ending: reporting to YARN{since}")
    return shown


def _may_have_lost_output(view: ApplicationView, am_state: AmState) -> bool:
    """Return whether containers may have run when their last ApplicationMaster died; their output is kept on failure.

    The view is some seconds old: it may not contain them yet.
    """
    outputs = () if am_state.submission is None else am_state.submission.spec.outputs
    is_kept = any(one.on_failure is OnFailure.KEEP for one in outputs)
    is_committed = any(one.committed for one in am_state.outputs or view.outputs)
    all_had_ended = view.containers and all(one.finished_ms is not None for one in view.containers)
    return is_kept and not is_committed and not all_had_ended


def tags_of(submission: Submission, notify: NotificationSettings | None = None) -> tuple[str, ...]:
    """Return the tags sent to YARN: the user's, and fields that YARN lacks.

    The id of the resumed application, and the wait of which the user is notified, are known only from these until its
    ApplicationMaster runs; they are left out if there is no room for them.
    """
    tags = _user_tags(submission.spec.project, submission.spec.tags)
    more = [f"{_RESUMED}{submission.resumed_from}"] if submission.resumed_from else []
    if notify is not None and WAITING in notify.events:
        more.append(f"{_WAIT_NOTICE}{math.ceil(notify.waiting_after_s)}")
    return (*tags, *more[: max(0, MAX_TAGS - len(tags))])


def waits_too_long(report: AppReport, now_ms: int) -> bool:
    """Return whether an application has waited for its first ApplicationMaster for so long that its user is to be
    notified of it.

    YARN does not report since when it waits for a later one.
    """
    if report.state.ended or report.state is State.RUNNING or not report.started_ms:
        return False
    has_run = any(report.raw.get(name) for name in _RAN)
    after_s = next((tag.removeprefix(_WAIT_NOTICE) for tag in report.tags if tag.startswith(_WAIT_NOTICE)), "")
    is_limit = after_s.isascii() and after_s.isdecimal() and len(after_s) <= _MAX_DIGITS
    return is_limit and not has_run and now_ms - report.started_ms >= int(after_s) * 1000


def _user_tags(project: str | None, tags: tuple[str, ...]) -> tuple[str, ...]:
    return (*tags, *((f"{_PROJECT}{project}",) if project else ()))


def check_tags(spec: AppSpec, configuration: Callable[[str], str | None]) -> None:
    """Reject what a ResourceManager refuses as tags. Source: ApplicationSubmissionContextPBImpl.checkTags.

    Raises:
        SpecError: there are too many, or one is too long or not in ASCII.
    """
    tags = _user_tags(spec.project, spec.tags)
    if len(tags) > MAX_TAGS and len(tags) > (most := int(configuration(_TAGS_LIMIT) or MAX_TAGS)):
        raise SpecError("application.tags", f"YARN has at most {most} tags, with project these are {len(tags)}")
    for tag in tags:
        key = "application.tags" if tag in spec.tags else "application.project"
        if len(tag) > _MAX_TAG and len(tag) > (most := int(configuration(_TAG_LIMIT) or _MAX_TAG)):
            raise SpecError(key, f"has {len(tag)} characters as a tag of YARN, at most {most}: {shown(tag[:40])}…")
        if not (tag.isascii() and tag.isprintable()):
            raise SpecError(key, f"{shown(tag)} is a tag of YARN, and these have printable ASCII characters only")


def _labels(tags: Iterable[str]) -> dict[str, Any]:
    """Return project and tags from YARN's tags: in lower case, sorted, so that a list and a status are equal."""
    shown = sorted(tag.lower() for tag in tags)
    project = next((tag.removeprefix(_PROJECT) for tag in shown if tag.startswith(_PROJECT)), "")
    return {
        "project": project,
        "tags": tuple(tag for tag in shown if not tag.startswith(_OWN_TAGS)),
    }


def _resumed_from(tags: Iterable[str]) -> str:
    """Return the id of the resumed application from the tags; empty: none, or invalid."""
    found = next((tag.removeprefix(_RESUMED) for tag in tags if tag.startswith(_RESUMED)), "")
    return found if is_application_id(found) else ""


def _of_submission(report: AppReport, submission: Submission | None) -> ApplicationView:
    """Return the view of an application whose ApplicationMaster has written none, from YARN's report and, if known,
    what was submitted."""
    view = _of_report(report)
    if submission is None:
        return view
    spec = submission.spec
    memory_mib, vcores, gcores = spec.total()
    return replace(
        view,
        username=spec.username,
        submitter=submission.submitter,
        priority=spec.priority,
        project=spec.project or "",
        tags=spec.tags,
        program=spec.program_text,
        source=submission.source,
        comment=spec.comment or "",
        submitted_ms=submission.submitted_ms,
        total_containers=spec.containers,
        trials=None if spec.sweep is None else spec.sweep.trials,
        memory_mib=memory_mib,
        vcores=vcores,
        gcores=gcores,
    )


def _of_report(report: AppReport) -> ApplicationView:
    ended = report.state.ended
    final = report.final_status
    state, cause = report.state, None
    if ended:
        cause = Cause.KILLED if state is State.KILLED else _CAUSES.get(final, Cause.FAILED)
        if cause is Cause.KILLED:
            # YARN has one state for all three; our own diagnostics begin with the right one.
            text = first_line(report.diagnostics)
            cause = next((one for start, one in _KILLS.items() if text.startswith(start)), cause)
            state = State.KILLED if cause is Cause.KILLED else state
    return ApplicationView(
        application_id=report.application_id,
        attempt=1,
        state=state,
        final_status=final if ended else FinalStatus.UNDEFINED,
        cause=cause,
        phase="" if ended else "starting" if report.state is State.RUNNING else _wait_for_am(report, AmState()),
        diagnostics=first_line(report.diagnostics),
        username=report.user,
        appname=report.name,
        submitter=report.user,
        queue=report.queue.removeprefix("root."),
        submitted_ms=report.started_ms,
        started_ms=report.started_ms,
        finished_ms=report.finished_ms or None if ended else None,
        tracking_url=report.tracking_url,
    )


def _wait_for_am(report: AppReport, am_state: AmState) -> str:
    """Return that an application waits for YARN to start its ApplicationMaster, and since when.

    It may wait without limit: for room in its queue, or on a node. The wait for a later attempt is not measured.
    """
    if not report.started_ms or am_state.view is not None:
        return "waiting for its ApplicationMaster"
    return f"waiting for its ApplicationMaster since {date_and_time(report.started_ms / 1000)}"


def first_line(diagnostics: str) -> str:
    """Return the essential part of YARN's diagnostics, on one line: dlapp's own text if any, else YARN's first line."""
    if failure := launch_failure(diagnostics):
        return f"no node could start the ApplicationMaster: {failure}"
    lines = [_DATE.sub("", line).strip() for line in diagnostics.splitlines()]
    own = [line for line in lines if line.startswith("dlapp")]
    if not own and (refused := _NOT_STARTED.search(diagnostics)):
        return f"no node could start the ApplicationMaster: {refused[1].strip()}"
    found = own or [line for line in lines if line]
    line = found[-1 if own else 0] if found else ""
    # While it waits, YARN appends all figures of the queue.
    return _DETAILS.split(line)[0]


def waiting_line(report: AppReport) -> str:
    """Return what an application waits for in YARN: its queue, with the queue's used, maximum and requested amounts.

    Source: FiCaSchedulerApp.getPendingAppDiagnosticMessage and getActivedAppDiagnosticMessage, Hadoop 2.8 to 3.5.
    """
    line, queue = first_line(report.diagnostics), report.queue.removeprefix("root.")
    details = _DETAILS.split(report.diagnostics, maxsplit=1)[1:]
    figures = [one.strip() for text in details for one in text.split(";") if _OF_QUEUE.search(one)]
    return f"{line} (queue {queue}: {'; '.join(figures)})" if figures else line


def log_file_url(log_url: str, name: str) -> str:
    """Return the page of one log file, its last 4 KiB, in the original's form."""
    return f"{log_url}/{name}/?start=-4096"


def address_of_node(container: ContainerView | TryView, report: AppReport) -> str:
    """Return the node's web address from a container's log URL; empty: it is not a node's log page.

    Whether the node exists is not checked.
    """
    start, found, path = container.log_url.partition(_NODE_LOGS)
    scheme, _, address = start.partition("://")
    fine = (
        found
        and scheme in ("http", "https")
        and _ADDRESS.fullmatch(address)
        and container.container_id.application == report.application_id
        and path == f"{container.container_id}/{report.user}"
    )
    return address if fine else ""


def completed_log_url(url: str, server: str, nodes: Mapping[str, str]) -> str:
    """Convert a node's log page to the history server's; unchanged if the node is no longer known.

    Args:
        server: ``yarn.log.server.url``.
        nodes: web address of a node -> its id ``host:port``.
    """
    parts = urlsplit(url)
    if not parts.path.startswith(_NODE_LOGS) or parts.netloc not in nodes:
        return url
    container, _, user = parts.path[len(_NODE_LOGS) :].partition("/")
    return f"{server.rstrip('/')}/{nodes[parts.netloc]}/{container}/{container}/{user}"
