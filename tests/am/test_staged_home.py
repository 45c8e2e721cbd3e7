"""The staging directory of an application, between two attempts that both live."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import pytest

from dlapp.am import staged_home
from dlapp.am.home import CommitClaim, Superseded
from dlapp.am.staged_home import StagedHome
from dlapp.cluster.yarn.staging import AM, KILL, SOFT_KILL, Places
from dlapp.cluster.yarn.sweeping import Ended, settle
from dlapp.errors import NotFound, Unreachable
from dlapp.ids import ApplicationId
from dlapp.report import Cause, FinalStatus, State
from dlapp.spec import AppSpec, Secrets, Submission
from tests.am.driving import Driver

APP = ApplicationId(1700000000000, 7)
SUBMISSION = Submission(
    spec=AppSpec(username="tony", appname="one", workspace="/tmp", script="start.sh"),
    workspace_archive="hdfs://nn/w.tar.gz",
    workspace_digest="sha256-00",
    submitter="tony",
    submitted_ms=1,
)


class Look(NamedTuple):
    size_bytes: int = 0
    modified_ms: int = 0
    owner: str = ""
    mode: int = 0


class FilesInMemory:
    """A file system; ``away`` says how many calls it does not answer, ``before_write`` and ``before_read`` what happens
    before a write, or a read."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.away = 0
        self.before_write: Callable[[str], None] = lambda _place: None
        self.before_read: Callable[[str], None] = lambda _place: None
        self.attempts: list[Attempt] = []
        self.lock = threading.RLock()

    home = "hdfs://nn/user/tony"

    def close(self) -> None: ...

    def _answer(self) -> None:
        if self.away:
            self.away -= 1
            raise Unreachable("the NameNode is away")

    def look(self, location: str) -> Look | None:
        self._answer()
        return Look() if any(f"{one}/".startswith(f"{location}/") for one in self.files) else None

    def names(self, location: str) -> list[str]:
        self._answer()
        return sorted({one.removeprefix(f"{location}/").partition("/")[0] for one in self.files if location in one})

    def make(self, location: str, mode: int) -> None:
        self._answer()

    def send(self, path: str, location: str, mode: int) -> Look:
        raise NotImplementedError

    def write(self, location: str, data: bytes, mode: int, *, once: bool = False) -> bool:
        self._answer()
        self.before_write(location)
        with self.lock:
            if once and location in self.files:
                return False
            self.files[location] = data
            return True

    def read(self, location: str) -> bytes:
        self._answer()
        self.before_read(location)
        if location not in self.files:
            raise NotFound(location)
        return self.files[location]

    def remove(self, location: str) -> None:
        self._answer()
        for one in [one for one in self.files if one == location or one.startswith(f"{location}/")]:
            del self.files[one]


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> Iterator[FilesInMemory]:
    monkeypatch.setattr(staged_home, "AGAIN_S", 0.001)
    monkeypatch.setattr(staged_home, "LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(staged_home, "GROUP_EVERY_S", 0.01)
    one = FilesInMemory()
    yield one
    one.away = 0
    for attempt in one.attempts:
        attempt.home.close()


class Attempt:
    """One attempt's home, opened; ``others`` is what it was told of other attempts."""

    def __init__(self, files: FilesInMemory, number: int, *, awake: bool = True) -> None:
        self.home = StagedHome(files, APP, number, SUBMISSION, Secrets(control_secret="00"))
        self.number = number
        self.told = threading.Event()
        files.attempts.append(self)
        self.others: list[str] = []
        self.marks: list[tuple[str, str]] = []
        self.published = threading.Event()
        if awake:
            self.open()

    def open(self) -> None:
        self.home.open(f"http://host:{self.number}", self.on_mark, self.on_other, self.published.set)

    def on_mark(self, name: str, by: str) -> None:
        self.marks.append((name, by))

    def on_other(self, why: str) -> None:
        self.others.append(why)
        self.told.set()

    def begun(self) -> Attempt:
        assert self.home._begun.wait(10)
        return self

    def claim(self) -> CommitClaim:
        return self.home.claim(
            CommitClaim(attempt=self.number, final_status=FinalStatus.SUCCEEDED, cause=Cause.SUCCEEDED, diagnostics="")
        )

    def say(self) -> None:
        """Write all that an attempt writes while it runs, and end."""
        self.home.write_view(replace(Driver().view(), attempt=self.number))
        until(lambda: self.home._view is None)  # its thread is at it, or it is not taken
        journal = self.home.journal(self.number)
        journal.add(f'"{self.number}"')
        journal.flush(durable=True)
        self.home.close()
        journal.close()

    def end(self) -> None:
        self.home.keep()
        self.home.remove()


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_an_attempt_that_was_cut_off_learns_of_the_next_and_neither_claims_nor_writes(files: FilesInMemory) -> None:
    first = Attempt(files, 1).begun()
    second = Attempt(files, 2).begun()
    assert first.told.wait(10)
    assert first.others[0] == "attempt 2 has the application now"
    for what in (first.claim, first.home.check_ours, first.home.keep):
        with pytest.raises(Superseded, match="attempt 2"):
            what()
    journal = first.home.journal(1)
    journal.add("{}")
    journal.flush(durable=True)
    assert first.home.all_journal_lines() == []
    assert second.claim().attempt == 2
    second.end()
    assert second.others == []


def test_what_an_attempt_says_after_another_took_over_is_neither_in_the_journal_nor_shown(files: FilesInMemory) -> None:
    first = Attempt(files, 1).begun()
    second = Attempt(files, 2).begun()
    second.say()
    first.say()
    assert first.others[0] == "attempt 2 has the application now"
    # What a third would go by.
    assert first.home.all_journal_lines() == ['"2"']
    view = first.home.view()
    assert view is not None
    assert view.attempt == 2


def ended_by_another(files: FilesInMemory) -> None:
    Attempt(files, 2).begun().end()


def ended_by_a_kill(files: FilesInMemory) -> None:
    settle(files, Places(files.home), APP, Ended(State.KILLED, 60.0))


@pytest.mark.parametrize("end", [ended_by_another, ended_by_a_kill])
def test_an_attempt_that_wakes_after_the_end_makes_no_directory_anew(
    files: FilesInMemory, end: Callable[[FilesInMemory], None]
) -> None:
    first = Attempt(files, 1).begun()
    end(files)
    first.say()
    assert list(files.files) == [f"{files.home}/.dlapp/history/{APP}.json"]


def test_an_attempt_that_begins_after_the_end_begins_nothing(files: FilesInMemory) -> None:
    first = Attempt(files, 1, awake=False)
    Attempt(files, 2).begun().end()
    first.open()
    assert first.told.wait(10)
    first.say()
    with pytest.raises(Superseded):
        first.claim()
    assert list(files.files) == [f"{files.home}/.dlapp/history/{APP}.json"]


def test_an_attempt_that_slept_until_all_was_over_claims_nothing(files: FilesInMemory) -> None:
    first = Attempt(files, 1).begun()
    second = Attempt(files, 2).begun()
    assert second.claim().attempt == 2
    second.end()
    with pytest.raises(Superseded, match="has ended"):
        first.claim()
    with pytest.raises(Superseded):
        first.home.keep()


def test_an_attempt_that_slept_in_the_middle_of_its_claim_does_not_have_it(files: FilesInMemory) -> None:
    first = Attempt(files, 1).begun()

    def sleep_until_all_is_over(place: str) -> None:
        if place.endswith("commit.json"):
            files.before_write = lambda _: None
            second = Attempt(files, 2).begun()
            assert second.claim().attempt == 2
            second.end()

    files.before_write = sleep_until_all_is_over
    with pytest.raises(Superseded):
        first.claim()


def test_the_claim_of_an_attempt_that_died_after_it_counts_for_the_next(files: FilesInMemory) -> None:
    assert Attempt(files, 1).begun().claim().attempt == 1
    assert Attempt(files, 2).begun().claim().attempt == 1


def test_a_staging_directory_that_somebody_removed_is_no_other_attempt(files: FilesInMemory) -> None:
    first = Attempt(files, 1).begun()
    files.remove(first.home.directory)
    assert first.claim().attempt == 1
    first.end()
    assert list(files.files) == [f"{files.home}/.dlapp/history/{APP}.json"]


def test_a_file_system_that_is_away_for_a_while_is_waited_for(files: FilesInMemory) -> None:
    files.away = 3
    first = Attempt(files, 1).begun()
    assert json.loads(files.files[f"{first.home.directory}/am.json"])["attempt"] == 1
    files.away = 3
    assert first.claim().attempt == 1
    files.away = 3
    first.home.keep()
    assert f"{files.home}/.dlapp/history/{APP}.json" in files.files


def test_a_doubt_about_other_attempts_is_none(files: FilesInMemory, capsys: pytest.CaptureFixture[str]) -> None:
    first = Attempt(files, 1).begun()
    files.away = 1
    assert first.home.is_ours()


def test_a_line_counts_as_written_when_its_group_is_there_and_who_waits_is_told(files: FilesInMemory) -> None:
    first = Attempt(files, 1).begun()
    journal, told = first.home.journal(1), threading.Event()
    journal.on_written = told.set
    files.away = 2
    journal.add("{}")
    journal.hurry()
    assert told.wait(10)
    assert (journal.added, journal.written) == (1, 1)
    assert first.home.all_journal_lines() == ["{}"]


def test_a_group_that_was_given_up_and_comes_late_takes_the_place_of_no_other(files: FilesInMemory) -> None:
    first = Attempt(files, 1).begun()
    journal, given_up, write = first.home.journal(1), [], files.write

    def lose_one(location: str, data: bytes, mode: int, *, once: bool = False) -> bool:
        if "journal" in location and not given_up:
            given_up.append((location, data))
            raise Unreachable("the NameNode is away")
        return write(location, data, mode, once=once)

    files.write = lose_one  # type: ignore[method-assign]
    journal.add('"a"')
    until(lambda: given_up)
    journal.add('"b"')
    until(lambda: journal.written == 2)
    write(*given_up[0], 0o600)
    assert first.home.all_journal_lines()[-2:] == ['"a"', '"b"']


def test_the_address_of_an_earlier_attempt_that_comes_late_does_not_stay(files: FilesInMemory) -> None:
    first = Attempt(files, 1).begun()
    place = f"{first.home.directory}/am.json"
    late = files.files[place]
    first.home.close()
    second = Attempt(files, 2).begun()
    assert second.published.wait(10)
    second.published.clear()
    files.write(place, late, 0o600)
    assert second.published.wait(10)
    assert json.loads(files.files[place])["attempt"] == 2
    assert not second.others


def test_a_home_keeps_to_its_directory(files: FilesInMemory) -> None:
    first = Attempt(files, 1).begun()
    assert first.home.directory == f"{files.home}/.dlapp/staging/{APP}"
    assert sorted(files.names(first.home.directory)) == ["am.json", "secrets.json", "submission.json"]


def test_a_mark_that_cannot_be_read_at_first_is_looked_at_again_and_hides_no_other(files: FilesInMemory) -> None:
    first = Attempt(files, 1).begun()

    def fail(place: str) -> None:
        if place.endswith(SOFT_KILL):
            raise Unreachable("no DataNode answers")

    files.before_read = fail
    for name, by in ((SOFT_KILL, "tony"), (KILL, "tina")):
        files.write(f"{first.home.directory}/{name}", json.dumps({"by": by}).encode(), 0o600)
    until(lambda: first.marks)
    assert first.marks == [(KILL, "tina")]
    files.before_read = lambda _: None
    until(lambda: len(first.marks) == 2)
    assert first.marks[1] == (SOFT_KILL, "tony")


NOT_OURS = (b"", b"{", b"[]", b"null", b"1", b"{}", b'{"attempt": null}', b'{"attempt": "x"}', b"\xff")


@pytest.mark.parametrize("data", NOT_OURS)
def test_files_that_are_not_what_we_write_stop_nothing(files: FilesInMemory, data: bytes) -> None:
    files.write(f"{files.home}/.dlapp/staging/{APP}/am.json", data, 0o600)
    first = Attempt(files, 1).begun()
    for name in (AM, KILL):
        files.write(f"{first.home.directory}/{name}", data, 0o600)
    until(lambda: first.marks)
    assert first.marks == [(KILL, "an unknown user")]
    assert first.home.is_ours()
    first.say()
    assert first.home.all_journal_lines() == ['"1"']
    assert first.claim().attempt == 1


def test_who_is_to_find_it_can_when_its_file_is_there_and_not_before(files: FilesInMemory) -> None:
    assert StagedHome.publishes
    tried = threading.Event()

    def refuse(_place: str) -> None:
        tried.set()
        raise Unreachable("the NameNode is in safe mode")

    files.before_write = refuse
    first = Attempt(files, 1)
    assert tried.wait(10)
    assert not first.published.is_set()
    files.before_write = lambda _: None
    assert first.published.wait(10)
    assert f"{first.home.directory}/{AM}" in files.files
