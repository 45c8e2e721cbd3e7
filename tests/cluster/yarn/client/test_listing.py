"""Test lists of applications: in which order, of whom, and what they settle, with files in memory."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from dlapp.cluster.yarn.client import notices as client_notices
from dlapp.cluster.yarn.client import status
from dlapp.cluster.yarn.client.am_client import AmClients
from dlapp.cluster.yarn.client.cleanup import GONE_AFTER_S
from dlapp.cluster.yarn.client.rest import KIND, AppReport
from dlapp.cluster.yarn.client.status import ApplicationReader
from dlapp.cluster.yarn.staging import RECEIPT_BYTES, history_json, receipt_of_history
from dlapp.errors import Denied, NotFound, Unreachable
from dlapp.login import Login
from dlapp.system import clock
from dlapp.value import replace
from dlapp.values.ids import ApplicationId
from dlapp.values.report import ApplicationView, FinalStatus, State
from dlapp.values.serialization import to_json
from dlapp.values.spec import AppSpec, RoleSpec, Submission
from dlapp.values.usage import Receipt
from tests.cluster.yarn.client.test_cleanup import NOW_MS, PLACES, Memory


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each list wait until what others left is settled."""
    monkeypatch.setattr(status, "SETTLE_S", 120.0)


def id_of(number: int) -> ApplicationId:
    return ApplicationId(1700000000000, number)


class Files(Memory):
    """Files in memory, with a directory that cannot be listed before ``go`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.go.set()
        self.is_asked = threading.Event()

    def names(self, location: str) -> list[str]:
        if location == PLACES.all_staging:
            self.is_asked.set()
            self.go.wait(120)
        return super().names(location)

    def close(self) -> None: ...

    def keep(self, *numbers: int) -> None:
        """Write histories of applications, each submitted by its number."""
        for number in numbers:
            spec = AppSpec(username="tony", appname="old", workspace="/w", script="s", roles=(RoleSpec(),))
            submission = Submission(
                spec=spec, workspace_archive="", workspace_digest="", submitter="tony", submitted_ms=number
            )
            text = {"view": None, "state": "KILLED", "finished_ms": 1000 + number, "submission": to_json(submission)}
            self.put(PLACES.history(id_of(number)), text=text)

    def stage(self, *numbers: int, days_old: float = 0) -> None:
        """Write staging directories."""
        for number in numbers:
            self.put(f"{PLACES.staging(id_of(number))}/am.json", days_old=days_old)

    def staged(self) -> set[int]:
        return {ApplicationId.from_text(name).number for name in self.names(PLACES.all_staging)}


def known(number: int, state: State = State.FINISHED, user: str = "tony") -> AppReport:
    return AppReport(
        application_id=id_of(number),
        user=user,
        name="a",
        queue="root.default",
        state=state,
        final_status=FinalStatus.SUCCEEDED if state.ended else FinalStatus.UNDEFINED,
        started_ms=number,
        finished_ms=1000 + number if state.ended else 0,
        kind=KIND,
    )


def reader(
    files: Files, reports: Iterable[AppReport], ago_s: float = 60.0, *, starting: bool = False
) -> ApplicationReader:
    """Return what shows the applications of a ResourceManager."""
    reports = list(reports)

    def of(user: str | None) -> list[AppReport]:
        return [report for report in reports if user in (None, report.user)]

    def info() -> dict[str, Any]:
        if starting:
            raise Unreachable("the ResourceManager is starting")
        return {"id": 1700000000000}

    rest = SimpleNamespace(reports=of, ended_ago_s=lambda _: ago_s, info=info, cluster_key=lambda: "here")
    session: Any = SimpleNamespace(
        user="tony",
        login=Login("tony"),
        config=SimpleNamespace(yarn=SimpleNamespace(am_node_label=None)),
        site=SimpleNamespace(timeline_url=lambda: None, timeline_reader_url=lambda: None),
        rest=lambda: rest,
        files=lambda _user: files,
        own_files=lambda: files,
        notices=lambda files: None,
        own_rest=lambda: contextlib.nullcontext(rest),
    )
    return ApplicationReader(session, AmClients())


@pytest.mark.parametrize(
    ("limit", "numbers"), [(None, [1, 2, 3, 4, 5]), (4, [1, 2, 3, 4, 5]), (3, [1, 3, 4, 5]), (2, [1, 4, 5]), (0, [1])]
)
def test_a_list_is_by_the_time_of_submission_wherever_its_applications_are_known(
    limit: int | None, numbers: list[int]
) -> None:
    files = Files()
    files.keep(3, 4)
    found = reader(files, [known(1, State.RUNNING), known(2), known(5)]).views(limit=limit)
    assert [view.application_id.number for view in found] == numbers


RECEIPT = Receipt(cpu_hours=1.5, suggestion="x" * 300)


def with_receipts(*numbers: int) -> Files:
    """Return files with the histories of applications that have a receipt."""
    files = Files()
    for number in numbers:
        view = ApplicationView(application_id=id_of(number), attempt=1, state=State.FINISHED, receipt=RECEIPT)
        text = history_json({"view": to_json(view), "submission": None, "more": "x" * RECEIPT_BYTES})
        files.write(PLACES.history(id_of(number)), text, 0o600)
    return files


def receipts(shown: ApplicationReader) -> tuple[dict[int, Any], set[int]]:
    """Return the receipts of a list by number, and the numbers of those that were not read."""
    views = [to_json(view) for view in shown.views(everybody=True)]
    unread = {ApplicationId.from_text(receipt).number for receipt in shown.add_receipts(views)}
    return {ApplicationId.from_text(view["application_id"]).number: view["receipt"] for view in views}, unread


def stop_after(monkeypatch: pytest.MonkeyPatch, reads: int) -> None:
    """Let the time for reading end after this number of files."""
    ticks = count()
    monkeypatch.setattr(status, "time", SimpleNamespace(monotonic=lambda: float(next(ticks))))
    monkeypatch.setattr(status, "READ_S", reads + 1.0)
    monkeypatch.setattr(status, "_READ_AT_ONCE", 1)


def test_a_list_has_the_receipts_of_the_callers_applications_that_have_ended() -> None:
    files = with_receipts(2, 3, 4, 5)
    files.keep(6)
    reports = [known(1, State.RUNNING), known(2), known(3), known(4, user="kim"), known(5), known(6), known(7)]
    found, unread = receipts(reader(files, reports))
    assert {number for number, receipt in found.items() if receipt == to_json(RECEIPT)} == {2, 3, 5}
    assert [found[number] for number in (1, 4, 6, 7)] == [None] * 4
    assert unread == set(), "those that have none are not missing"


def test_a_long_list_has_all_receipts() -> None:
    numbers = range(1, 302)
    found, unread = receipts(reader(with_receipts(*numbers), map(known, numbers)))
    assert (set(map(str, found.values())), unread) == ({str(to_json(RECEIPT))}, set())


def test_receipts_are_read_in_a_bounded_time_the_latest_first_and_the_others_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown = reader(with_receipts(*range(1, 6)), map(known, range(1, 6)))
    stop_after(monkeypatch, 2)
    found, unread = receipts(shown)
    assert {number for number, receipt in found.items() if receipt} == {4, 5}
    assert unread == {1, 2, 3}


def test_receipts_that_hdfs_does_not_give_are_named_and_hinder_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    files = with_receipts(1, 2, 3, 4)
    read_part, answers = (
        files.read_part,
        {id_of(1): Unreachable("away"), id_of(2): Denied("no"), id_of(3): NotFound("")},
    )

    def refused(location: str, offset: int, size: int) -> bytes:
        for name, error in answers.items():
            if location == PLACES.history(name):
                raise error
        return read_part(location, offset, size)

    monkeypatch.setattr(files, "read_part", refused)
    found, unread = receipts(reader(files, map(known, range(1, 5))))
    assert {number for number, receipt in found.items() if receipt} == {4}
    assert unread == {1, 2}, "the third was removed, and has none"


def test_all_receipts_are_named_if_their_directory_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    files = with_receipts(1, 2)

    def away(_: str) -> list[tuple[str, int, int]]:
        raise Unreachable("no NameNode answers")

    monkeypatch.setattr(files, "entries", away)
    found, unread = receipts(reader(files, [known(1), known(2), known(3, State.RUNNING), known(4, user="kim")]))
    assert (set(found), unread) == ({1, 2, 3, 4}, {1, 2})


def test_a_list_has_the_receipts_of_all_the_callers_running_applications_or_names_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files, numbers = Files(), range(1, 31)
    for number in numbers:
        view = ApplicationView(application_id=id_of(number), attempt=1, state=State.RUNNING, receipt=RECEIPT)
        files.put(f"{PLACES.staging(id_of(number))}/view.json", text=to_json(view))
    running = [known(number, State.RUNNING) for number in (*numbers, 31)]
    foreign = [known(number, State.RUNNING, user="kim") for number in range(40, 80)]
    shown = reader(files, [*running, *foreign])
    found, unread = receipts(shown)
    assert {number for number, receipt in found.items() if receipt} == set(numbers)
    assert unread == set(), "the last one has just started, and has none"
    stop_after(monkeypatch, 3)
    found, unread = receipts(shown)
    assert {number for number, receipt in found.items() if receipt} == {29, 30}
    assert unread == set(range(1, 29))


def test_a_list_reads_the_directory_of_the_histories_once(monkeypatch: pytest.MonkeyPatch) -> None:
    files, listed = Files(), list[str]()
    files.keep(2, 3)
    entries = files.entries

    def counted(location: str) -> list[tuple[str, int, int]]:
        listed.append(location)
        return entries(location)

    monkeypatch.setattr(files, "entries", counted)
    shown = reader(files, [known(2)])
    for _ in range(2):
        shown.add_receipts([to_json(view) for view in shown.views()])
    assert listed == [PLACES.all_history] * 2


@pytest.mark.parametrize(
    "data", [b"", b"{", b'{"receipt":', b'{"receipt":{"cpu_hours":1', b'{"receipt":[]}', b'{"receipt":null}', b"\xff"]
)
def test_a_history_that_does_not_begin_with_a_receipt_has_none(data: bytes) -> None:
    assert receipt_of_history(data) is None


def test_a_forgotten_killed_application_has_its_end_time() -> None:
    files = Files()
    files.keep(3)
    (one,) = reader(files, []).views()
    assert (one.state, one.finished_ms) == (State.KILLED, 1003)


def test_a_list_settles_leftovers_of_the_callers_ended_applications(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "now_ms", lambda: NOW_MS)
    files = Files()
    files.stage(1, 2, 3, 4)
    files.stage(5, days_old=1.9)
    files.stage(6, days_old=2.1)
    reports = [known(1), known(2, State.RUNNING), known(3, State.KILLED), known(4, user="kim")]
    reader(files, reports).views(everybody=True)
    assert files.staged() == {2, 4, 5}
    files.stage(1)
    reader(files, reports).views(user="kim")
    reader(files, reports, GONE_AFTER_S - 1).views()
    assert files.staged() == {1, 2, 4, 5}, "the first has just ended, and removes it itself"


def test_applications_missing_from_a_starting_resourcemanager_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "now_ms", lambda: NOW_MS)
    files = Files()
    files.stage(1, days_old=9)
    reader(files, [], starting=True).views()
    assert files.staged() == {1}
    reader(files, []).views()
    assert files.staged() == set()


def test_a_list_does_not_wait_for_a_file_system_that_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "SETTLE_S", 0.01)
    files = Files()
    files.stage(1)
    files.go.clear()
    others = set(threading.enumerate())
    shown = reader(files, [known(1)])
    for _ in range(3):
        assert len(shown.views()) == 1
    assert files.is_asked.wait(120)
    threads = [thread for thread in threading.enumerate() if thread.name == "yarn-settle" and thread not in others]
    assert len(threads) == 1, "none begins while one lasts"
    files.go.set()
    threads[0].join(120)
    assert files.staged() == set()


def test_a_list_waits_longer_for_notifications_that_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_notices, "DELIVER_S", 120.0)
    is_begun, is_late, delivered, join = threading.Event(), threading.Event(), list[int](), threading.Thread.join

    def deliver(ended: dict[ApplicationId, Any], unfinished: object) -> None:
        is_begun.set()
        is_late.wait(120)
        delivered.append(len(ended))

    def join_too_early_first(thread: threading.Thread, timeout: float | None = None) -> None:
        if thread.name == "yarn-settle" and not is_late.is_set():
            is_begun.wait(120)
            is_late.set()
        else:
            join(thread, timeout)

    shown = reader(Files(), [known(1)])
    notices = SimpleNamespace(is_there_any=lambda: True, deliver=deliver)
    monkeypatch.setattr(shown._session, "notices", lambda _files: notices)
    monkeypatch.setattr(threading.Thread, "join", join_too_early_first)
    assert len(shown.views()) == 1
    assert delivered == [1]


def overdue(number: int, state: State = State.SUBMITTED, user: str = "tony") -> AppReport:
    """Return one that has waited since 1970, with the user to be notified after a minute."""
    return replace(known(number, state, user), tags=("notify_waiting:60",))


def test_each_command_that_sees_an_overdue_wait_of_the_caller_notifies_them_of_it_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown = reader(Files(), [overdue(1), overdue(2, State.RUNNING), overdue(3, user="kim"), known(4, State.SUBMITTED)])
    notified = list[list[int]]()
    notices = SimpleNamespace(
        is_there_any=lambda: False,
        deliver=lambda ended, unfinished: None,
        deliver_waits=lambda reports: notified.append([report.application_id.number for report in reports]),
    )
    monkeypatch.setattr(shown._session, "notices", lambda _files: notices)
    for _ in range(2):
        assert len(shown.views(everybody=True)) == 4
    assert notified == [[1]]
    shown.notify_waits([overdue(1), overdue(3, user="kim"), overdue(5), known(6, State.SUBMITTED)])
    assert notified == [[1], [5]]


def test_a_list_without_overdue_waits_reads_no_notification_files(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = reader(Files(), [known(1, State.SUBMITTED), known(2, State.RUNNING), known(3)])
    monkeypatch.setattr(shown._session, "notices", lambda _files: pytest.fail("notifications were read"))
    shown.notify_waits([known(1, State.SUBMITTED), known(2, State.RUNNING), known(3)])
    notices = SimpleNamespace(is_there_any=lambda: False, deliver_waits=lambda _: pytest.fail("a wait was notified"))
    monkeypatch.setattr(shown._session, "notices", lambda _files: notices)
    assert len(shown.views()) == 3


def test_a_failed_notification_does_not_break_the_status(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise Unreachable("no NameNode answers")

    shown = reader(Files(), [])
    monkeypatch.setattr(shown._session, "notices", lambda _files: SimpleNamespace(deliver_waits=refuse))
    shown.notify_waits([overdue(1)])


def test_notifications_do_not_wait_for_outputs_that_cannot_be_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    def wait_in_vain(*_: object) -> int:
        raise Unreachable("the file system of an output")

    monkeypatch.setattr(status, "settle_all", wait_in_vain)
    delivered: list[int] = []
    notices = SimpleNamespace(is_there_any=lambda: True, deliver=lambda ended, unfinished: delivered.append(len(ended)))
    shown = reader(Files(), [known(1)])
    monkeypatch.setattr(shown._session, "notices", lambda _files: notices)
    assert len(shown.views()) == 1
    assert delivered == [1]


def test_a_failed_settlement_is_one_line_and_does_not_break_the_list(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("no number")

    monkeypatch.setattr(status, "settle_all", fail)
    files = Files()
    files.stage(1)
    assert len(reader(files, [known(1)]).views()) == 1
    output = capfd.readouterr().err
    assert "what ended applications left is not settled: ValueError: no number" in output
    assert "Traceback" not in output
