"""Test what is shown of an application whose ApplicationMaster cannot be reached from here."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from dlapp.cluster.yarn.client import status
from dlapp.cluster.yarn.client.am_client import AmClients
from dlapp.cluster.yarn.client.local_files import tools_tokens
from dlapp.cluster.yarn.client.local_files.tools_tokens import KeptToken
from dlapp.cluster.yarn.client.rest import AppReport
from dlapp.cluster.yarn.client.status import ApplicationReader
from dlapp.cluster.yarn.client.views import AmState, as_it_runs, merged
from dlapp.cluster.yarn.staging import SUBMISSION, VIEW, StagingPaths, history_json
from dlapp.errors import Denied, Unreachable
from dlapp.locations import FileInfo
from dlapp.net.streams import StreamRefused
from dlapp.tools.display.status import status_lines
from dlapp.value import replace
from dlapp.values.access import ControlAccess
from dlapp.values.ids import ApplicationId
from dlapp.values.report import ApplicationView, FinalStatus, State
from dlapp.values.serialization import to_json
from dlapp.values.spec import AppSpec, Submission
from dlapp.values.waiting import PendingRequest
from tests.am.application_dir.test_application_dir_hdfs import FilesInMemory

APP = ApplicationId(1700000000000, 7)
WRITTEN_MS = 1_700_000_100_000
REPORT = AppReport(
    application_id=APP,
    user="tony",
    name="a",
    queue="root.default",
    state=State.RUNNING,
    final_status=FinalStatus.UNDEFINED,
    tracking_url="http://node7:40000/",
)
STAGING = StagingPaths(FilesInMemory.home).staging(APP)
VIEW_PLACE, SUBMISSION_PLACE = f"{STAGING}/{VIEW}", f"{STAGING}/{SUBMISSION}"


class Staged(FilesInMemory):
    """The files of a running application."""

    def __init__(self) -> None:
        super().__init__()
        view = ApplicationView(application_id=APP, attempt=1, state=State.RUNNING, phase="running 1 of 1")
        self.files = {VIEW_PLACE: json.dumps(to_json(view)).encode(), SUBMISSION_PLACE: b"{}"}

    def status(self, location: str) -> FileInfo | None:
        found = super().status(location)
        return None if found is None else found._replace(modified_ms=WRITTEN_MS)


class Silent:
    """ApplicationMasters that do not answer."""

    def view(self, _report: AppReport, **_: object) -> object:
        raise Unreachable("ApplicationMaster at http://node7:40000: no answer")

    def close(self) -> None:
        """Keep no connection."""


@pytest.fixture
def files() -> Staged:
    return Staged()


@pytest.fixture
def reader(files: Staged) -> ApplicationReader:
    session = SimpleNamespace(user="tony", files=lambda _user: files)
    return ApplicationReader(session, Silent())  # type: ignore[arg-type]


def test_the_view_on_hdfs_is_shown_with_its_age(reader: ApplicationReader) -> None:
    shown = merged(REPORT, reader._am_state(REPORT))
    assert (shown.phase, shown.as_of_ms) == ("running 1 of 1", WRITTEN_MS)
    lines = status_lines(to_json(shown), [], WRITTEN_MS + 14_000)
    assert "as of : 0:00:14 ago, read on HDFS: its ApplicationMaster does not answer here" in lines


REGISTERING = replace(REPORT, state=State.ACCEPTED, tracking_url="", am_node="node7:8042", am_attempt=1)
"""What a ResourceManager says that has just become active."""


def test_an_unregistered_application_is_shown_as_running_after_a_failover(
    files: Staged,
) -> None:
    rest = SimpleNamespace(report=lambda _id: REGISTERING)
    session = SimpleNamespace(user="tony", files=lambda _user: files, rest=lambda: rest)
    reader = ApplicationReader(session, Silent())  # type: ignore[arg-type]
    for shown in (reader.view(APP), reader.view_in_full(APP)):
        assert (shown.state, shown.phase, shown.as_of_ms) == (State.RUNNING, "running 1 of 1", WRITTEN_MS)
        assert shown.waiting is None


def test_a_new_resourcemanager_gives_no_reason_before_the_applicationmaster_registers(files: Staged) -> None:
    lacking = (PendingRequest(role="worker", count=2, memory_mib=1024, vcores=1),)
    view = ApplicationView(
        application_id=APP, attempt=1, state=State.RUNNING, phase="waiting for 2 containers", lacking=lacking
    )
    files.files[VIEW_PLACE] = json.dumps(to_json(view)).encode()
    rest = SimpleNamespace(report=lambda _id: REGISTERING)  # asks for nodes and queues would fail
    session = SimpleNamespace(user="tony", files=lambda _user: files, rest=lambda: rest)
    reader = ApplicationReader(session, Silent())  # type: ignore[arg-type]
    for shown in (reader.view(APP), reader.view_in_full(APP)):
        assert (shown.state, shown.phase, shown.waiting) == (State.RUNNING, "waiting for 2 containers", None)


def test_an_end_not_yet_reported_to_a_new_resourcemanager_is_shown_as_ending() -> None:
    view = ApplicationView(application_id=APP, attempt=1, state=State.FINISHED, final_status=FinalStatus.SUCCEEDED)
    shown = merged(as_it_runs(REGISTERING, AmState(view)), AmState(view))
    assert (shown.state, shown.final_status) == (State.RUNNING, FinalStatus.UNDEFINED)
    assert shown.phase == "ending: reporting to YARN"


@pytest.mark.parametrize("report", [replace(REGISTERING, am_attempt=2), replace(REGISTERING, am_node="", am_attempt=0)])
def test_a_view_of_an_earlier_attempt_does_not_show_the_next_one_as_running(
    reader: ApplicationReader, report: AppReport
) -> None:
    _, shown = reader._merged(report)
    assert (shown.state, shown.phase) == (State.ACCEPTED, "waiting for its ApplicationMaster")


def test_views_are_requested_every_25_s(
    reader: ApplicationReader, files: Staged, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        reader._am_state(REPORT)
    assert files.touched == {SUBMISSION_PLACE: 1}
    monkeypatch.setattr(status, "VIEW_REQUEST_INTERVAL_S", -1.0)
    reader._view_request_at.clear()
    for _ in range(2):
        reader._am_state(REPORT)
    assert files.touched == {SUBMISSION_PLACE: 3}


def test_without_a_resourcemanager_the_view_on_hdfs_is_shown(files: Staged) -> None:
    def away(_application_id: ApplicationId) -> AppReport:
        raise Unreachable("http://rm:8088: connection refused")

    session = SimpleNamespace(user="tony", files=lambda _user: files, rest=lambda: SimpleNamespace(report=away))
    reader = ApplicationReader(session, Silent())  # type: ignore[arg-type]
    shown = reader.view(APP)
    assert (shown.state, shown.phase, shown.as_of_ms) == (State.RUNNING, "running 1 of 1", WRITTEN_MS)
    assert shown.diagnostics == "the ResourceManager does not answer: http://rm:8088: connection refused"
    files.files.clear()
    with pytest.raises(Unreachable, match=r"^http://rm:8088: connection refused$"):
        reader.view(APP)


def test_without_hdfs_yarns_report_of_an_ended_application_is_shown() -> None:
    def away(_user: str) -> Staged:
        raise Unreachable("NameNode at nn:8020: connection refused")

    ended = replace(REPORT, state=State.FINISHED, final_status=FinalStatus.FAILED, diagnostics="exit status 3")
    am_state = ApplicationReader(SimpleNamespace(user="tony", files=away), Silent())._am_state(ended)  # type: ignore[arg-type]
    assert am_state.unread == "NameNode at nn:8020: connection refused"
    shown = merged(ended, am_state)
    assert (shown.state, shown.final_status, shown.queue) == (State.FINISHED, FinalStatus.FAILED, "default")
    unread = "of its containers and output nothing can be read now: NameNode at nn:8020: connection refused"
    assert shown.diagnostics == f"exit status 3; {unread}"


def test_a_list_and_a_submission_request_no_views(reader: ApplicationReader, files: Staged) -> None:
    last = reader._last_view(REPORT)
    assert last is not None
    assert last.view is not None
    assert reader._am_state(REPORT, live=False).view is not None
    assert files.touched == {}


@pytest.mark.parametrize("read_before", range(3))
def test_the_submission_is_readable_while_another_thread_settles_the_end(
    reader: ApplicationReader, files: Staged, monkeypatch: pytest.MonkeyPatch, read_before: int
) -> None:
    spec = AppSpec(username="tony", appname="a", workspace="/w", script="s")
    submission = Submission(spec=spec, workspace_archive="", workspace_digest="", submitter="tony", submitted_ms=1)
    kept = {"view": None, "state": "FAILED", "submission": to_json(submission)}
    files.files[SUBMISSION_PLACE] = json.dumps(to_json(submission)).encode()
    reads: list[str] = []

    def read(location: str, *, max_bytes: int) -> bytes:
        reads.append(location)
        if len(reads) > read_before:
            files.files = {StagingPaths(FilesInMemory.home).history(APP): history_json(kept)}
        return Staged.read(files, location, max_bytes=max_bytes)

    monkeypatch.setattr(files, "read", read)
    monkeypatch.setattr(reader, "report", lambda _id: replace(REPORT, state=State.FAILED))
    monkeypatch.setattr(status, "settle", lambda *_: None)  # it has just ended
    monkeypatch.setattr(reader._session, "rest", lambda: SimpleNamespace(ended_ago_s=lambda _: 1.0), raising=False)
    monkeypatch.setattr(reader._session, "notices", lambda _: None, raising=False)
    assert reader.submission(APP) == submission


def test_only_the_submitting_user_of_this_machine_reaches_containers(monkeypatch: pytest.MonkeyPatch) -> None:
    running = replace(REPORT, raw={"amRPCAddress": "node7:40000"})
    masters = AmClients()
    with pytest.raises(Denied, match=f"{APP} belongs to tony, and its token is not in "):
        masters.access(running)
    monkeypatch.setattr(tools_tokens, "find", lambda _: KeptToken("eve", "stolen"))
    with pytest.raises(Denied):
        masters.access(running)  # the ApplicationMaster of another user would get the token
    monkeypatch.setattr(tools_tokens, "find", lambda _: KeptToken("tony", "token"))
    assert masters.access(running) == ControlAccess("http://node7:40000", "token")
    with pytest.raises(StreamRefused, match="has not started yet"):
        masters.access(REPORT)
    monkeypatch.setattr(tools_tokens, "find", lambda _: None)
    assert masters.access(running, "a viewer's") == ControlAccess("http://node7:40000", "a viewer's", is_own=False)
