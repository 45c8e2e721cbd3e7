"""Test the files of a journal on HDFS: merged, killed at any change, read by the next attempt."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlapp.am.application_dir import hdfs_journal
from dlapp.am.application_dir.hdfs_journal import HdfsJournalWriter, needed_files, read_lines
from dlapp.am.application_dir.interface import Superseded
from dlapp.errors import Unreachable
from tests.am.application_dir.test_application_dir_hdfs import FilesInMemory
from tests.tiers import some

HOME = "hdfs://nn/user/tony/.dlapp/staging/application_1_0001"


class Killed(BaseException):
    """The end of the process."""


class FakeApplicationDir:
    """A directory whose attempt has the application."""

    directory = HOME

    def __init__(self) -> None:
        self.ours = True

    def is_current_attempt(self) -> bool:
        return self.ours

    def verify_current_attempt(self) -> bool:
        return self.ours

    def request_write(self) -> None: ...


class Changes(FilesInMemory):
    """A file system that counts changes; ``fails`` says what becomes of one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.changes = self.most = 0
        self.fails: Callable[[int], str] = lambda _: ""

    def _change(self, change: Callable[[], object]) -> None:
        self.changes += 1
        what = self.fails(self.changes)
        if what not in ("killed before", "lost"):
            change()
        if what.startswith("killed"):
            raise Killed
        if what:
            raise Unreachable(f"change {self.changes} was {what}")
        self.most = max(self.most, len(self.files))

    def write(self, location: str, data: bytes, mode: int, *, once: bool = False) -> bool:
        self._change(lambda: self.files.__setitem__(location, data))
        return True

    def remove(self, location: str) -> None:
        self._change(lambda: self.files.pop(location, None))


def journal_of(files: Changes, groups: int, attempt: int = 1) -> tuple[list[str], list[str]]:
    """Write groups of one line, as the directory's thread does; what was added, and what is on record."""
    journal = HdfsJournalWriter(FakeApplicationDir(), files, attempt)
    added: list[str] = []
    try:
        for number in range(groups):
            added.append(f'"{attempt}.{number}"')
            journal.add(added[-1])
            journal.write()
            journal.compact_step()
    except Killed:
        pass
    return added, added[: journal.written]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hdfs_journal, "MERGED_AT_ONCE", 3)
    monkeypatch.setattr(hdfs_journal, "REMOVED_AT_ONCE", 2)
    monkeypatch.setattr(hdfs_journal, "COMPACT_RETRY_S", 0.0)


@pytest.mark.parametrize("how", ["killed before", "killed after"])
def test_a_journal_is_complete_after_a_kill_at_any_change(how: str) -> None:
    whole = Changes()
    journal_of(whole, 30)
    assert any(name.count("-") == 3 for name in whole.files), "nothing was merged"
    for nth in range(1, whole.changes + 1):
        files = Changes()
        files.fails = lambda change, nth=nth: how if change == nth else ""  # type: ignore[misc]
        added, recorded = journal_of(files, 30)
        files.fails = lambda _: ""
        found = list(read_lines(files, HOME))
        assert len(found) >= len(recorded), nth
        assert found == added[: len(found)], nth
        # The next attempt, killed nowhere.
        more, _ = journal_of(files, 30, attempt=2)
        assert list(read_lines(files, HOME)) == found + more, nth


@settings(max_examples=some(60), deadline=None)
@given(st.data())
def test_a_failure_at_any_change_loses_no_line_and_keeps_the_order(data: st.DataObject) -> None:
    files = Changes()
    fails = data.draw(st.lists(st.sampled_from(["", "", "", "lost", "done and not answered"]), max_size=150))
    files.fails = lambda change: fails[change - 1] if change <= len(fails) else ""
    journal = HdfsJournalWriter(FakeApplicationDir(), files, 1)
    added = [f'"{number}"' for number in range(40)]
    for line in added:
        journal.add(line)
        journal.write()
        journal.compact_step()
    files.fails = lambda _: ""
    for _ in range(100):
        journal.write()
        journal.compact_step()
    found = list(read_lines(files, HOME))
    # A group whose answer was lost is there twice, one after the other.
    assert list(dict.fromkeys(found)) == added
    assert journal.written == len(added)


def test_ten_thousand_groups_are_a_hundred_files_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    files = Changes()
    added, _ = journal_of(files, 10_000)
    assert files.most <= 100
    assert list(read_lines(files, HOME)) == added


def test_files_that_are_too_large_together_stay_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hdfs_journal, "MAX_GROUP_BYTES", 20)
    files = Changes()
    added, _ = journal_of(files, 30)
    assert list(read_lines(files, HOME)) == added
    assert all(len(data) <= 20 for data in files.files.values())
    assert len(files.files) < 20


def test_a_superseded_attempt_merges_no_journal_groups() -> None:
    files, home = Changes(), FakeApplicationDir()
    journal = HdfsJournalWriter(home, files, 1)
    for _ in range(3):
        journal.add("{}")
        journal.write()
    home.ours = False
    before = dict(files.files)
    journal.compact_step()
    assert files.files == before


def test_a_group_written_after_a_takeover_does_not_count_as_written() -> None:
    files, home = Changes(), FakeApplicationDir()
    journal = HdfsJournalWriter(home, files, 1)
    reported: list[int] = []
    journal.on_written = lambda: reported.append(journal.written)
    journal.add("{}")

    def take_over(_change: int) -> str:
        home.ours = False
        return ""

    files.fails = take_over
    assert journal.write()
    assert files.files, "the group came too late to be stopped"
    assert (journal.written, reported) == (0, [])
    for _ in range(2):
        journal.add("{}")
        journal.flush()
        with pytest.raises(Superseded):
            journal.flush(durable=True)


def test_a_group_is_rewritten_if_the_current_attempt_cannot_be_verified() -> None:
    class Away(FakeApplicationDir):
        knows = False

        def verify_current_attempt(self) -> bool:
            if not self.knows:
                raise Unreachable("the NameNode is away")
            return True

    files, home = Changes(), Away()
    journal = HdfsJournalWriter(home, files, 1)
    journal.add("{}")
    assert not journal.write()
    assert journal.written == 0
    home.knows = True
    assert journal.write()
    assert journal.written == 1


def test_a_reader_gets_every_line_while_an_earlier_attempt_merges() -> None:
    files = Changes()
    cut_off = HdfsJournalWriter(FakeApplicationDir(), files, 1)
    added = [f'"{number}"' for number in range(3)]
    for line in added:
        cut_off.add(line)
        cut_off.write()

    def merge(_place: str) -> None:
        files.before_read = lambda _: None
        for _ in range(3):
            cut_off.compact_step()

    files.before_read = merge
    assert list(read_lines(files, HOME)) == added
    assert list(files.files) == [f"{HOME}/journal-1-000000-000002.jsonl"]


def test_files_of_other_names_are_no_journal() -> None:
    names = ["journal-1.jsonl", "journal-x-1.jsonl", "journal-1-2-3-4.jsonl", "journal-1-2.json", "view.json"]
    assert needed_files([(name, 1, 0) for name in names]) == []
