"""The staging directory of an application, between two attempts that both live."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

from dlapp.am.application_dir import hdfs, hdfs_journal
from dlapp.am.application_dir.hdfs import HdfsApplicationDir
from dlapp.am.application_dir.interface import Superseded
from dlapp.am.model import events
from dlapp.cluster.engine import Heartbeat
from dlapp.cluster.yarn.client.cleanup import settle
from dlapp.cluster.yarn.client.rest import EndedApplication
from dlapp.cluster.yarn.staging import AM, KILL, RELEASE, SOFT_KILL, TRIALS, VIEW, StagingPaths
from dlapp.cluster.yarn.staging import SUBMISSION as SUBMISSION_FILE
from dlapp.errors import DlappError, NotFound, Unreachable
from dlapp.locations import FileInfo
from dlapp.value import replace
from dlapp.values.ids import ApplicationId
from dlapp.values.messages import latest_address
from dlapp.values.report import Cause, CommitClaim, FinalStatus, OutputView, State
from dlapp.values.spec import AppSpec, OutputSpec, Submission
from tests.am.driving import Driver
from tests.services.polling import wait_until

APP = ApplicationId(1700000000000, 7)
SUBMISSION = Submission(
    spec=AppSpec(username="tony", appname="one", workspace="/tmp", script="start.sh"),
    workspace_archive="hdfs://nn/w.tar.gz",
    workspace_digest="sha256-00",
    submitter="tony",
    submitted_ms=1,
)


A_FILE = FileInfo(size_bytes=0, modified_ms=0, owner="tony", mode=0o600, is_file=True)


class FilesInMemory:
    """A file system; ``away`` says how many calls it does not answer, ``before_write`` and ``before_read`` what happens
    before a write, or a read."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.addresses: list[str] = []
        self.touched: dict[str, int] = {}
        self.inodes: dict[str, int] = {}
        self.reads: list[str] = []
        self.away = 0
        self.before_write: Callable[[str], None] = lambda _place: None
        self.before_read: Callable[[str], None] = lambda _place: None
        self.attempts: list[Attempt] = []
        self.lock = threading.RLock()

    home = "hdfs://nn/user/tony"

    def check_one_destination(self, location: str) -> None: ...

    def home_by_server(self) -> str:
        return "/user/tony"

    def close(self) -> None: ...

    def _answer(self) -> None:
        with self.lock:
            if self.away:
                self.away -= 1
                raise Unreachable("the NameNode is away")

    def status(self, location: str) -> FileInfo | None:
        self._answer()
        if not any(f"{file}/".startswith(f"{location}/") for file in list(self.files)):  # other threads write
            return None
        return A_FILE._replace(inode_id=self.inodes.get(location, 0), size_bytes=len(self.files.get(location, b"")))

    def names(self, location: str) -> list[str]:
        self._answer()
        found = [*self.files, *self.addresses]
        return sorted({text.removeprefix(f"{location}/").partition("/")[0] for text in found if location in text})

    def make(self, location: str, mode: int) -> None:
        self._answer()
        self.addresses += [location] * ("/addresses/" in location)

    def send(self, path: str, location: str, mode: int) -> FileInfo:
        raise NotImplementedError

    def set_acl(self, location: str, entries: Sequence[str]) -> None:
        raise NotImplementedError

    def replicate(self, location: str, count: int) -> None:
        raise NotImplementedError

    def remove_if_empty(self, location: str) -> None:
        raise NotImplementedError

    def entries(self, location: str) -> list[tuple[str, int, int]]:
        places = [(name, f"{location}/{name}") for name in self.names(location)]
        return [(name, len(self.files.get(place, b"")), self.touched.get(place, 0)) for name, place in places]

    def touch(self, location: str) -> None:
        self.touched[location] = self.touched.get(location, 0) + 1

    def read_part(self, location: str, offset: int, count: int) -> bytes:
        raise NotImplementedError

    def settle_outputs(
        self, application_id: ApplicationId, outputs: tuple[OutputSpec, ...], claim: CommitClaim | None
    ) -> tuple[OutputView, ...]:
        raise NotImplementedError

    def write(self, location: str, data: bytes, mode: int, *, once: bool = False) -> bool:
        self._answer()
        self.before_write(location)
        with self.lock:
            if once and location in self.files:
                return False
            self.files[location] = data
            self.inodes[location] = max(self.inodes.values(), default=0) + 1
            return True

    def read(self, location: str, *, max_bytes: int) -> bytes:
        self._answer()
        self.before_read(location)
        self.reads.append(location)
        if (data := self.files.get(location)) is None:
            raise NotFound(location)
        if len(data) > max_bytes:
            raise DlappError(f"{location} is larger than {max_bytes} bytes")
        return data

    def remove(self, location: str) -> None:
        self._answer()
        for file in [one for one in list(self.files) if one == location or one.startswith(f"{location}/")]:
            self.files.pop(file, None)


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> Iterator[FilesInMemory]:
    monkeypatch.setattr(hdfs, "AGAIN_S", 0.001)
    monkeypatch.setattr(hdfs, "LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(hdfs, "GROUP_EVERY_S", 0.01)
    one = FilesInMemory()
    yield one
    one.away = 0
    for attempt in one.attempts:
        attempt.home.close()


class Attempt:
    """One attempt with its opened directory; ``others``: the messages on other attempts."""

    def __init__(self, files: FilesInMemory, number: int, *, awake: bool = True) -> None:
        self.home = HdfsApplicationDir(files, APP, number, SUBMISSION)
        self.number = number
        self.shown = ""
        self.notified = threading.Event()
        files.attempts.append(self)
        self.others: list[str] = []
        self.marks: list[tuple[str, str]] = []
        self.published = threading.Event()
        if awake:
            self.open()

    def open(self) -> None:
        self.home.open(f"http://host:{self.number}", self.put)

    def put(self, notice: object) -> None:
        match notice:
            case events.Published():
                self.published.set()
            case events.Kill(by):
                self.marks.append((KILL, by))
            case events.SoftKill(by):
                self.marks.append((SOFT_KILL, by))
            case events.Release(by):
                self.marks.append((RELEASE, by))
            case Heartbeat(shut_down=str(why)):
                self.others.append(why)
                self.notified.set()

    def started(self) -> Attempt:
        assert self.home._begun.wait(120)
        return self

    def claim(self) -> CommitClaim:
        return self.home.claim(
            CommitClaim(attempt=self.number, final_status=FinalStatus.SUCCEEDED, cause=Cause.SUCCEEDED, diagnostics="")
        )

    def write_all(self) -> None:
        """Write all that an attempt writes while it runs, and end."""
        self.home.write_view(replace(Driver().view(), attempt=self.number))
        wait_until(lambda: self.home._view is None)  # its thread is at it, or it is not taken
        journal = self.home.journal(self.number)
        journal.add(f'"{self.number}"')
        with contextlib.suppress(Superseded):
            journal.flush(durable=True)
        self.home.close()
        journal.close()

    def end(self) -> None:
        self.home.archive()
        self.home.remove()


def test_an_attempt_that_was_cut_off_learns_of_the_next_and_neither_claims_nor_writes(files: FilesInMemory) -> None:
    first = Attempt(files, 1).started()
    second = Attempt(files, 2).started()
    assert first.notified.wait(120)
    assert first.others[0] == "attempt 2 has the application now"
    for what in (first.claim, first.home.check_not_superseded, first.home.archive):
        with pytest.raises(Superseded, match="attempt 2"):
            what()
    journal = first.home.journal(1)
    journal.add("{}")
    with pytest.raises(Superseded):
        journal.flush(durable=True)
    assert list(first.home.all_journal_lines()) == []
    assert second.claim().attempt == 2
    second.end()
    assert second.others == []


def test_a_superseded_attempt_adds_no_journal_lines_and_no_view(files: FilesInMemory) -> None:
    first = Attempt(files, 1).started()
    second = Attempt(files, 2).started()
    second.write_all()
    first.write_all()
    assert first.others[0] == "attempt 2 has the application now"
    # What a third would go by.
    assert list(first.home.all_journal_lines()) == ['"2"']
    assert json.loads(files.files[f"{first.home.directory}/{VIEW}"])["attempt"] == 2


def ended_by_another(files: FilesInMemory) -> None:
    Attempt(files, 2).started().end()


def ended_by_a_kill(files: FilesInMemory) -> None:
    settle(files, APP, EndedApplication(State.KILLED, 60.0))


@pytest.mark.parametrize("end", [ended_by_another, ended_by_a_kill])
def test_an_attempt_that_wakes_after_the_end_creates_no_directory(
    files: FilesInMemory, end: Callable[[FilesInMemory], None]
) -> None:
    first = Attempt(files, 1).started()
    end(files)
    first.write_all()
    assert list(files.files) == [f"{files.home}/.dlapp/history/{APP}.json"]


def test_an_attempt_that_starts_after_the_end_is_superseded(files: FilesInMemory) -> None:
    first = Attempt(files, 1, awake=False)
    Attempt(files, 2).started().end()
    first.open()
    assert first.notified.wait(120)
    first.write_all()
    with pytest.raises(Superseded):
        first.claim()
    assert list(files.files) == [f"{files.home}/.dlapp/history/{APP}.json"]


def test_an_attempt_that_slept_past_the_end_cannot_claim_the_commit(
    files: FilesInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hdfs, "LOOK_EVERY_S", 1000.0)  # it sleeps: it does not see the second one come
    first = Attempt(files, 1).started()
    second = Attempt(files, 2).started()
    assert second.claim().attempt == 2
    second.end()
    with pytest.raises(Superseded, match="has ended"):
        first.claim()
    with pytest.raises(Superseded):
        first.home.archive()


def test_an_attempt_that_slept_in_the_middle_of_its_claim_does_not_have_it(files: FilesInMemory) -> None:
    first = Attempt(files, 1).started()

    def sleep_until_all_is_over(place: str) -> None:
        if place.endswith("commit.json"):
            files.before_write = lambda _: None
            second = Attempt(files, 2).started()
            assert second.claim().attempt == 2
            second.end()

    files.before_write = sleep_until_all_is_over
    with pytest.raises(Superseded):
        first.claim()


def test_the_claim_of_an_attempt_that_died_after_it_counts_for_the_next(files: FilesInMemory) -> None:
    assert Attempt(files, 1).started().claim().attempt == 1
    assert Attempt(files, 2).started().claim().attempt == 1


def test_a_removed_staging_directory_is_not_taken_for_another_attempt(files: FilesInMemory) -> None:
    first = Attempt(files, 1).started()
    files.remove(first.home.directory)
    assert first.claim().attempt == 1
    first.end()
    assert list(files.files) == [f"{files.home}/.dlapp/history/{APP}.json"]


def test_a_file_system_outage_is_waited_for(files: FilesInMemory) -> None:
    files.away = 3
    first = Attempt(files, 1).started()
    assert json.loads(files.files[f"{first.home.directory}/am.json"])["attempt"] == 1
    files.away = 3
    assert first.claim().attempt == 1
    files.away = 3
    first.home.archive()
    assert f"{files.home}/.dlapp/history/{APP}.json" in files.files


def test_checking_the_current_attempt_makes_one_status_call_if_unchanged(
    files: FilesInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hdfs, "LOOK_EVERY_S", 1000.0)  # its thread would read, too
    first = Attempt(files, 1).started()
    assert first.home.is_current_attempt()
    files.reads.clear()
    for _ in range(3):
        assert first.home.is_current_attempt()
    assert files.reads == []
    second = files.files[f"{first.home.directory}/{AM}"].replace(b'"attempt":1', b'"attempt":2')
    files.write(f"{first.home.directory}/{AM}", second, 0o600)
    assert not first.home.is_current_attempt()


def test_a_doubt_about_other_attempts_is_none(files: FilesInMemory, capsys: pytest.CaptureFixture[str]) -> None:
    first = Attempt(files, 1).started()
    files.away = 1
    assert first.home.is_current_attempt()


def test_waiters_are_notified_once_the_group_of_a_line_is_written(files: FilesInMemory) -> None:
    first = Attempt(files, 1).started()
    journal, notified = first.home.journal(1), threading.Event()
    journal.on_written = notified.set
    files.away = 2
    journal.add("{}")
    journal.request_write()
    assert notified.wait(120)
    assert (journal.added, journal.written) == (1, 1)
    assert list(first.home.all_journal_lines()) == ["{}"]


def test_results_shortly_after_a_group_are_written_together(
    files: FilesInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hdfs, "GROUP_EVERY_S", 1000.0)
    monkeypatch.setattr(hdfs, "RESULTS_EVERY_S", 1000.0)
    first = Attempt(files, 1).started()
    journal = first.home.journal(1)
    for line in ('"a"', '"b"', '"c"'):
        journal.add(line)
        journal.request_write()
        wait_until(lambda: journal.written)
    first.home.close()
    groups = {name.rpartition("/")[2]: data for name, data in files.files.items() if "journal" in name}
    assert groups == {"journal-1-000000.jsonl": b'"a"\n', "journal-1-000001.jsonl": b'"b"\n"c"\n'}


def test_a_long_backlog_is_written_in_bounded_groups(files: FilesInMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hdfs_journal, "MAX_GROUP_BYTES", 20)
    first = Attempt(files, 1).started()
    journal, write, taken = first.home.journal(1), files.write, list[str]()

    def refuse_the_second(location: str, data: bytes, mode: int, *, once: bool = False) -> bool:
        if "journal" in location:
            taken.append(location)
            if len(taken) == 2:
                raise Unreachable("the NameNode is away")
        return write(location, data, mode, once=once)

    files.write = refuse_the_second  # type: ignore[method-assign]
    lines = [f'"{number:06d}"' for number in range(7)]
    for line in lines:
        journal.add(line)
    wait_until(lambda: journal.written == 7)
    assert list(first.home.all_journal_lines()) == lines
    assert all(len(data) <= 20 for name, data in files.files.items() if "journal" in name)


@pytest.mark.proves("staging-size")
def test_journals_that_are_too_large_together_are_refused(
    files: FilesInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Attempt(files, 1).started()
    for number in range(3):
        files.files[f"{first.home.directory}/journal-1-{number:06d}.jsonl"] = b"{}\n"
    assert list(first.home.all_journal_lines()) == ["{}"] * 3
    monkeypatch.setattr(hdfs_journal, "MAX_JOURNAL_BYTES", 8)
    with pytest.raises(DlappError, match=r"has 9 bytes, at most 8 are read: submit the application again"):
        first.home.all_journal_lines()


@pytest.mark.proves("staging-size")
@pytest.mark.parametrize("name", ["commit.json", "am.json"])
def test_a_file_larger_than_its_kind_can_be_is_refused(files: FilesInMemory, name: str) -> None:
    first = Attempt(files, 1, awake=False)
    read = {"commit.json": first.home.claimed, "am.json": first.home.check_not_superseded}[name]
    files.files[f"{first.home.directory}/{name}"] = b" " * ((64 << 20) + 1)
    with pytest.raises(DlappError, match=f"{name} is larger than"):
        read()


def test_an_abandoned_group_that_arrives_late_replaces_no_other(files: FilesInMemory) -> None:
    first = Attempt(files, 1).started()
    journal, given_up, write = first.home.journal(1), list[tuple[str, bytes]](), files.write

    def lose_one(location: str, data: bytes, mode: int, *, once: bool = False) -> bool:
        if "journal" in location and not given_up:
            given_up.append((location, data))
            raise Unreachable("the NameNode is away")
        return write(location, data, mode, once=once)

    files.write = lose_one  # type: ignore[method-assign]
    journal.add('"a"')
    wait_until(lambda: given_up)
    journal.add('"b"')
    wait_until(lambda: journal.written == 2)
    write(*given_up[0], 0o600)
    assert list(first.home.all_journal_lines())[-2:] == ['"a"', '"b"']


def test_a_late_address_of_an_earlier_attempt_is_removed(files: FilesInMemory) -> None:
    first = Attempt(files, 1).started()
    place = f"{first.home.directory}/am.json"
    late = files.files[place]
    first.home.close()
    second = Attempt(files, 2).started()
    assert second.published.wait(120)
    second.published.clear()
    files.write(place, late, 0o600)
    assert second.published.wait(120)
    assert json.loads(files.files[place])["attempt"] == 2
    assert not second.others


def test_an_application_directory_writes_only_its_own_files(files: FilesInMemory) -> None:
    first = Attempt(files, 1).started()
    assert first.home.directory == f"{files.home}/.dlapp/staging/{APP}"
    assert sorted(files.names(first.home.directory)) == ["addresses", "am.json", "submission.json"]


def test_a_task_finds_the_address_of_the_latest_attempt_in_one_listing(files: FilesInMemory) -> None:
    attempts = []
    for number in (1, 2):
        attempts.append(attempt := Attempt(files, number).started())
        assert attempt.published.wait(120)
        found = latest_address(files.names(f"{attempt.home.directory}/addresses"))
        assert found == json.loads(files.files[f"{attempt.home.directory}/am.json"])["control_url"]


def test_an_unreadable_mark_is_read_again_and_hides_no_other(files: FilesInMemory) -> None:
    first = Attempt(files, 1).started()

    def fail(place: str) -> None:
        if place.endswith(SOFT_KILL):
            raise Unreachable("no DataNode answers")

    files.before_read = fail
    for name, by in ((SOFT_KILL, "tony"), (KILL, "tina")):
        files.write(f"{first.home.directory}/{name}", json.dumps({"by": by}).encode(), 0o600)
    wait_until(lambda: first.marks)
    assert first.marks == [(KILL, "tina")]
    files.before_read = lambda _: None
    wait_until(lambda: len(first.marks) == 2)
    assert first.marks[1] == (SOFT_KILL, "tony")
    files.write(f"{first.home.directory}/{RELEASE}", b'{"by": "anna"}', 0o600)
    wait_until(lambda: len(first.marks) == 3)
    assert first.marks[2] == (RELEASE, "anna")


NOT_OURS = (b"", b"{", b"[]", b"null", b"1", b"{}", b'{"attempt": null}', b'{"attempt": "x"}', b"\xff")


@pytest.mark.parametrize("data", NOT_OURS)
def test_unexpected_file_contents_do_not_stop_an_attempt(files: FilesInMemory, data: bytes) -> None:
    files.write(f"{files.home}/.dlapp/staging/{APP}/am.json", data, 0o600)
    first = Attempt(files, 1).started()
    for name in (AM, KILL):
        files.write(f"{first.home.directory}/{name}", data, 0o600)
    wait_until(lambda: first.marks)
    assert first.marks == [(KILL, "an unknown user")]
    assert first.home.is_current_attempt()
    first.write_all()
    assert list(first.home.all_journal_lines()) == ['"1"']
    assert first.claim().attempt == 1


def test_an_attempt_is_published_once_its_file_is_written(files: FilesInMemory) -> None:
    tried = threading.Event()

    def refuse(_place: str) -> None:
        tried.set()
        raise Unreachable("the NameNode is in safe mode")

    files.before_write = refuse
    first = Attempt(files, 1)
    assert tried.wait(120)
    assert not first.published.is_set()
    files.before_write = lambda _: None
    assert first.published.wait(120)
    assert f"{first.home.directory}/{AM}" in files.files


def test_a_next_attempt_reads_the_journal_when_the_one_before_can_see_it_and_not_before(files: FilesInMemory) -> None:
    first, tried, lines = Attempt(files, 1).started(), threading.Event(), list[str]()
    first.home.close()

    def refuse(_place: str) -> None:
        tried.set()
        raise Unreachable("the NameNode is in safe mode")

    files.before_write = refuse
    second = Attempt(files, 2)
    reader = threading.Thread(target=lambda: lines.extend(second.home.all_journal_lines()))
    reader.start()
    assert tried.wait(120)
    # The first is the application's until then: what it adds is on record.
    files.files[f"{first.home.directory}/journal-1-000000.jsonl"] = b'"late"\n'
    assert not any("journal" in place for place in files.reads)
    files.before_write = lambda _: None
    reader.join(120)
    assert lines == ['"late"']
    assert [place for place in files.reads if "journal" in place]


def test_an_attempt_whose_address_cannot_be_written_in_time_fails(files: FilesInMemory) -> None:
    def refuse(_place: str) -> None:
        raise Unreachable("the NameNode is in safe mode")

    files.before_write = refuse
    second = Attempt(files, 2)
    second.home.patience_s = 0.01
    with pytest.raises(DlappError, match=r"am\.json could not be written for 0 s"):
        second.home.all_journal_lines()
    files.before_write = lambda _: None


def written_views(files: FilesInMemory, monkeypatch: pytest.MonkeyPatch) -> tuple[Attempt, list[str]]:
    """Return an attempt whose views wait a second for another state and for ever else, and the phases written."""
    monkeypatch.setattr(hdfs, "VIEW_SOON_S", 0.0)
    monkeypatch.setattr(hdfs, "VIEW_EVERY_S", 1e9)
    first, phases = Attempt(files, 1).started(), list[str]()

    def note(place: str) -> None:
        if place.endswith(VIEW):
            phases.append(first.shown)

    files.before_write = note
    return first, phases


def show(one: Attempt, phase: str) -> None:
    one.shown = phase
    one.home.write_view(replace(Driver().view(), attempt=1, phase=phase))


def test_results_of_a_sweep_are_written_at_once_then_seldom_and_the_last_ones_are_kept(
    files: FilesInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hdfs, "TRIALS_EVERY_S", 3600.0)
    one = Attempt(files, 1).started()
    place = f"{one.home.directory}/{TRIALS}"
    one.home.write_trials("first\n")
    wait_until(lambda: files.files.get(place) == b"first\n")
    for number in range(20):
        one.home.write_trials(f"{number}\n")
    one.write_all()
    assert files.files[place] == b"first\n"
    one.home.archive()
    assert files.files[StagingPaths(files.home).trials(APP)] == b"19\n"


def test_a_view_of_another_state_is_written_soon_and_others_seldom(
    files: FilesInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, phases = written_views(files, monkeypatch)
    show(first, "running 1 of 3")
    wait_until(lambda: phases == ["running 1 of 3"])
    show(first, "running 2 of 3")
    first.home.journal(1).add("{}")
    wait_until(lambda: first.home.journal(1).written)
    assert phases == ["running 1 of 3"]
    show(first, "storing")
    wait_until(lambda: phases == ["running 1 of 3", "storing"])


def test_views_are_written_often_while_a_client_reads_them(
    files: FilesInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, phases = written_views(files, monkeypatch)
    show(first, "running 1 of 3")
    wait_until(lambda: first.home._asked_ms is not None)
    files.touch(f"{first.home.directory}/{SUBMISSION_FILE}")
    show(first, "running 2 of 3")
    wait_until(lambda: phases[-1:] == ["running 2 of 3"])
    show(first, "running 3 of 3")
    wait_until(lambda: phases[-1:] == ["running 3 of 3"])
