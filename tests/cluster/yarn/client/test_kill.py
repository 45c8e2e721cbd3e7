"""Test what dlapp-kill does with what a killed application leaves, and what it says of it."""

from __future__ import annotations

import json
import threading
import time
from email.utils import formatdate
from types import SimpleNamespace
from typing import Any

import pytest

from dlapp.cluster.yarn.client import kill as client_kill
from dlapp.cluster.yarn.client.am_client import AmClients
from dlapp.cluster.yarn.client.cleanup import COMMITTED, GONE_AFTER_S, NOTHING_KEPT
from dlapp.cluster.yarn.client.kill import ApplicationKiller
from dlapp.cluster.yarn.client.rest import AppReport, YarnRest
from dlapp.errors import Denied, TimedOut, Unreachable
from dlapp.hadoop.errors import ApplicationNotFound
from dlapp.login import Login
from dlapp.value import replace
from dlapp.values.ids import ApplicationId
from dlapp.values.report import ApplicationView, FinalStatus, State
from tests.cluster.yarn.client.test_cleanup import APP, CLAIM, PLACES, A, B, Memory, stage

RUNNING = AppReport(
    application_id=APP, user="tony", name="", queue="", state=State.RUNNING, final_status=FinalStatus.UNDEFINED
)
WITH_MASTER = replace(RUNNING, tracking_url="http://rm:8088/proxy/a/", raw={"amRPCAddress": "n1:40123"})
SAFE_MODE = Unreachable("hdfs://nn: HDFS is in safe mode")
KILL_MARK = f"{PLACES.staging(APP)}/kill.json"


class SafeMode(Memory):
    """A file system that can be read, and takes no changes."""

    def make(self, location: str, mode: int) -> None:
        raise SAFE_MODE

    def write(self, location: str, data: bytes, mode: int, *, once: bool = False) -> bool:
        raise SAFE_MODE

    def remove(self, location: str) -> None:
        raise SAFE_MODE


@pytest.fixture
def files() -> Memory:
    return Memory()


@pytest.fixture
def slept(files: Memory, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return how long was waited, each time with nothing settled before."""
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        assert not files.settled
        waits.append(seconds)

    monkeypatch.setattr(client_kill, "time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))
    return waits


class Rest:
    """A ResourceManager that kills, or finds it ended, or does not answer; ``calls`` is who was asked to end it."""

    def __init__(self, says: State | Exception = State.KILLED) -> None:
        self.calls: list[str] = []
        self.first_reports: list[AppReport] = []
        self._says = says

    def kill(self, application_id: ApplicationId, *, timeout_s: float) -> State:
        self.calls.append("YARN")
        if isinstance(self._says, Exception):
            raise self._says
        return self._says

    def report(self, application_id: ApplicationId) -> AppReport:
        return self.first_reports.pop() if self.first_reports else replace(RUNNING, state=State.KILLED)


def ender(files: Memory, rest: Rest, report: AppReport, master: Exception | None = None) -> ApplicationKiller:
    """Make a killer of an application whose ApplicationMaster can be asked, or not, for this reason."""

    def ask(report: AppReport, what: str, body: Any, *, timeout_s: float, token: str | None = None) -> Any:
        assert token is None
        rest.calls.append("ApplicationMaster")
        if master is not None:
            raise master

    def view(application_id: ApplicationId) -> ApplicationView:
        raise Unreachable("no NameNode")

    session = SimpleNamespace(
        user="tony", files=lambda user: files, rest=lambda user=None: rest, notices=lambda files: None
    )
    rest.first_reports = [report]
    looker = SimpleNamespace(view=view)
    return ApplicationKiller(session, SimpleNamespace(request=ask), looker)  # type: ignore[arg-type]


def killed(files: Memory) -> str:
    return ender(files, Rest(), RUNNING).kill(APP, "tony")


def test_stored_output_of_a_killed_application_is_kept_when_its_processes_are_gone(
    files: Memory, slept: list[float]
) -> None:
    stage(files)
    assert killed(files) == f"{APP} was killed, its output is kept as partial output at {A}~"
    assert slept == [GONE_AFTER_S]
    assert files.settled == [(A, True), (B, False)]  # the second has on_failure=drop
    assert files.files.keys() == {PLACES.history(APP)}


def test_a_commit_interrupted_by_a_kill_is_finished_and_reported(files: Memory, slept: list[float]) -> None:
    stage(files, claim=CLAIM)
    assert killed(files) == f"{APP} was killed, {COMMITTED}"
    assert slept == [GONE_AFTER_S]
    assert [item[0] for item in files.settled] == [A, B]


def test_output_kept_by_the_applicationmaster_after_a_kill_is_reported(files: Memory, slept: list[float]) -> None:
    stage(files)
    kept = {"name": "", "target": "hdfs://nn/out", "partial": "hdfs://nn/out.partial"}
    files.write(PLACES.history(APP), json.dumps({"view": {"outputs": [kept]}}).encode(), 0o600)
    assert killed(files) == f"{APP} was killed, its output is kept as partial output at hdfs://nn/out.partial"
    assert slept == []


def test_without_stored_output_a_kill_does_not_wait(files: Memory, slept: list[float]) -> None:
    assert killed(files) == f"{APP} was killed, {NOTHING_KEPT}"
    assert slept == []


def test_a_failed_settlement_does_not_hide_the_kill(files: Memory, slept: list[float]) -> None:
    stage(files)
    files.refuses[A] = Denied("not yours")
    assert killed(files) == (
        f"{APP} was killed, but its output cannot be settled now: not yours; your next command tries it again"
    )


def test_a_read_only_file_system_does_not_stop_a_kill(slept: list[float]) -> None:
    files, rest = SafeMode(), Rest()
    stage(files)
    assert ender(files, rest, WITH_MASTER).kill(APP, "tony") == (
        f"{APP} was killed, but its output cannot be settled now: {SAFE_MODE}; your next command tries it again"
    )
    assert rest.calls == ["ApplicationMaster", "YARN"]


@pytest.mark.parametrize("fails", [Unreachable("rm: no answer"), TimedOut("not in 60 s")])
def test_a_kill_mark_is_left_if_yarn_does_not_end_the_application(files: Memory, fails: Exception) -> None:
    rest = Rest(fails)
    with pytest.raises(type(fails)):
        ender(files, rest, WITH_MASTER, Unreachable("no answer in 2 s")).kill(APP, "tony")
    assert rest.calls == ["ApplicationMaster", "YARN"]
    assert json.loads(files.read(KILL_MARK, max_bytes=1 << 20))["by"] == "tony"
    with pytest.raises(type(fails)):
        ender(SafeMode(), rest, WITH_MASTER).kill(APP, "tony")


@pytest.mark.parametrize("report", [WITH_MASTER, replace(RUNNING, state=State.ACCEPTED, am_attempt=1)])
def test_a_soft_kill_of_an_unreachable_application_leaves_a_request(files: Memory, report: AppReport) -> None:
    # It was submitted elsewhere; or it has yet to register with a ResourceManager that has become active.
    session = SimpleNamespace(user="tony", files=lambda user: files, notices=lambda files: None)
    looker = SimpleNamespace(report=lambda application_id: report)
    message = ApplicationKiller(session, AmClients(), looker).soft_kill(APP, "tony")  # type: ignore[arg-type]
    assert message == f"{APP} cannot be reached; it stops when it finds the request on HDFS, in seconds"
    assert json.loads(files.read(f"{PLACES.staging(APP)}/softkill.json", max_bytes=1 << 20))["by"] == "tony"


def test_an_application_that_ended_itself_is_reported_even_if_its_output_is_unreadable(files: Memory) -> None:
    assert ender(files, Rest(State.FINISHED), WITH_MASTER).kill(APP, "tony") == (
        f"{APP} has ended, but what became of its output cannot be read now: no NameNode"
    )


def test_how_long_ago_is_by_the_resourcemanagers_clock() -> None:
    now_ms = int(time.time() * 1000)
    with YarnRest(["http://127.0.0.1:1"], Login("tony")) as rest:
        ended = AppReport(
            application_id=APP,
            user="tony",
            name="",
            queue="",
            state=State.KILLED,
            final_status=FinalStatus.KILLED,
            finished_ms=now_ms - 7_000,
        )
        ago_s = rest.ended_ago_s(ended)
        assert 6.9 <= ago_s <= 7.1 + time.time() - now_ms / 1000
        rest.server_date = formatdate(now_ms // 1000 - 3600, usegmt=True)
        assert rest.ended_ago_s(ended) < -3590
        assert rest.ended_ago_s(RUNNING) == 0


def without_yarn(files: Memory, answer: object, *, hangs: bool = False) -> tuple[ApplicationKiller, list[Any]]:
    """Make a killer that no ResourceManager answers, and the list of what an ApplicationMaster is asked."""
    asked: list[Any] = []

    def ask(report: AppReport, what: str, body: Any, *, timeout_s: float, token: str | None = None) -> Any:
        asked.append((report.raw["amRPCAddress"], what, body["user"]))
        if isinstance(answer, Exception):
            raise answer
        return answer

    def report(application_id: ApplicationId) -> AppReport:
        if hangs:
            threading.Event().wait()
        raise Unreachable("http://rm:8088: connection refused")

    session = SimpleNamespace(user="tony", files=lambda user: files, rest=lambda: SimpleNamespace(report=report))
    return ApplicationKiller(session, SimpleNamespace(request=ask), SimpleNamespace()), asked  # type: ignore[arg-type]


def test_an_unreachable_hdfs_is_not_reported_as_the_resourcemanager() -> None:
    def report(application_id: ApplicationId) -> AppReport:
        return replace(RUNNING, user="tina")

    def unreachable(*_: object) -> Any:
        raise SAFE_MODE

    def forgotten(application_id: ApplicationId) -> AppReport:
        raise ApplicationNotFound("getApplicationReport", "x.ApplicationNotFoundException", "not known")

    for rest in (SimpleNamespace(report=report), SimpleNamespace(report=forgotten)):
        session = SimpleNamespace(user="tony", rest=lambda rest=rest: rest, hdfs=unreachable)
        killer = ApplicationKiller(session, AmClients(), SimpleNamespace(report=unreachable))  # type: ignore[arg-type]
        with pytest.raises(Unreachable) as error:
            killer.kill(APP, "tony")
        assert str(error.value) == str(SAFE_MODE)


def write_address(files: Memory) -> None:
    text = {"attempt": 1, "control_url": "http://n1:40123"}
    files.write(f"{PLACES.staging(APP)}/am.json", json.dumps(text).encode(), 0o600)


@pytest.mark.parametrize("hangs", [False, True])
def test_without_a_resourcemanager_a_kill_uses_the_applicationmasters_stored_address(
    files: Memory, monkeypatch: pytest.MonkeyPatch, hangs: bool
) -> None:
    monkeypatch.setattr(client_kill, "REPORT_S", 0.1)
    write_address(files)
    killer, asked = without_yarn(files, {"state": "stopping", "left_s": 0.0, "commits": False}, hangs=hangs)
    message = killer.kill(APP, "tony")
    assert asked == [("n1:40123", "kill", "tony")]
    assert message.startswith(f"{APP} is being stopped")
    assert message.endswith("; YARN may show it as running until a ResourceManager answers")


def test_without_resourcemanager_and_applicationmaster_a_kill_fails_with_one_line(files: Memory) -> None:
    write_address(files)
    killer, _ = without_yarn(files, Unreachable("n1:40123: no answer in 2 s"))
    with pytest.raises(Unreachable) as error:
        killer.kill(APP, "tony")
    assert str(error.value) == (
        f"{APP} was not killed: no ResourceManager answers: http://rm:8088: connection refused; "
        "n1:40123: no answer in 2 s; its ApplicationMaster ends it if it lives and finds the request on HDFS; "
        "run dlapp-kill again when a ResourceManager answers"
    )
    assert json.loads(files.read(KILL_MARK, max_bytes=1 << 20))["by"] == "tony"


def test_a_kill_before_the_applicationmaster_starts_needs_a_resourcemanager(files: Memory) -> None:
    killer, asked = without_yarn(files, None)
    with pytest.raises(Unreachable, match=r"it has no ApplicationMaster; nothing was done; run dlapp-kill again"):
        killer.kill(APP, "tony")
    assert (asked, files.files) == ([], {})


def test_a_kill_while_no_server_answers_ends_in_half_a_minute() -> None:
    assert client_kill.REPORT_S + client_kill.MASTER_S < 30

    class Stuck(Memory):
        def read(self, location: str, *, max_bytes: int) -> bytes:
            threading.Event().wait()
            raise AssertionError

    killer, _ = without_yarn(Stuck(), None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client_kill, "MASTER_S", 0.1)
        with pytest.raises(Unreachable, match=r"was not killed: no ResourceManager answers: .*; HDFS does not answer"):
            killer.kill(APP, "tony")


def test_a_failed_kill_is_not_sent_when_hdfs_answers_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_kill, "MASTER_S", 0.1)
    answers = threading.Event()

    class Late(Memory):
        def read(self, location: str, *, max_bytes: int) -> bytes:
            answers.wait()
            return super().read(location, max_bytes=max_bytes)

    files = Late()
    write_address(files)
    killer, asked = without_yarn(files, Unreachable("n1:40123: no answer in 2 s"))
    before = set(threading.enumerate())
    with pytest.raises(Unreachable, match=r"was not killed: .*; HDFS does not answer"):
        killer.kill(APP, "tony")
    (thread,) = set(threading.enumerate()) - before
    answers.set()
    thread.join()
    assert (asked, KILL_MARK in files.files) == ([], False)


def test_an_unanswered_kill_reports_an_unknown_effect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_kill, "MASTER_S", 0.1)

    class Stuck(Memory):
        def make(self, location: str, mode: int) -> None:
            threading.Event().wait()

    files = Stuck()
    write_address(files)
    killer, asked = without_yarn(files, Unreachable("n1:40123: no answer in 2 s"))
    with pytest.raises(Unreachable, match=f"it is not known whether {APP} was killed: no ResourceManager answers"):
        killer.kill(APP, "tony")
    assert len(asked) == 1
