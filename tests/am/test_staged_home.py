"""The staging directory of an application, between two attempts that both live."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from dlapp.am import staged_home
from dlapp.am.home import CommitClaim, Superseded
from dlapp.am.staged_home import StagedHome
from dlapp.errors import NotFound, Unreachable
from dlapp.ids import ApplicationId
from dlapp.report import Cause, FinalStatus
from dlapp.spec import AppSpec, Secrets, Submission

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
    """A file system; ``away`` says how many calls it does not answer, ``before_write`` what happens before a write."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.away = 0
        self.before_write: Callable[[str], None] = lambda _place: None
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
        return Look() if location in self.files else None

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

    def __init__(self, files: FilesInMemory, number: int) -> None:
        self.home = StagedHome(files, APP, number, SUBMISSION, Secrets(control_secret="00"))
        self.number = number
        self.told = threading.Event()
        files.attempts.append(self)
        self.home.open(f"http://host:{number}", lambda _name, _by: None, self.on_other)
        self.others: list[str] = []

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

    def end(self) -> None:
        self.home.keep()
        self.home.remove()


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


def test_an_attempt_that_slept_until_all_was_over_claims_nothing(files: FilesInMemory) -> None:
    first = Attempt(files, 1).begun()
    second = Attempt(files, 2).begun()
    assert second.claim().attempt == 2
    second.end()
    with pytest.raises(Superseded, match="has ended the application"):
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


def test_a_home_keeps_to_its_directory(files: FilesInMemory) -> None:
    first = Attempt(files, 1).begun()
    assert first.home.directory == f"{files.home}/.dlapp/staging/{APP}"
    assert sorted(files.names(first.home.directory)) == ["am.json", "secrets.json", "submission.json"]
