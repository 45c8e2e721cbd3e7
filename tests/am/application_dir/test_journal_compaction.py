"""Test that a journal stays small, however often containers run, and that a next attempt misses nothing."""

from __future__ import annotations

import errno
import functools
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlapp.am.application_dir import hdfs_journal, local
from dlapp.am.application_dir.hdfs_journal import HdfsJournalWriter, read_lines
from dlapp.am.application_dir.local import LocalApplicationDir
from dlapp.am.model import events, journal
from dlapp.am.model.instance import MAX_EARLIER_CONTAINERS
from dlapp.am.model.journal import records, replay
from dlapp.am.model.journal_compaction import JournalCompaction
from dlapp.am.model.records import containers
from dlapp.am.model.records.recovered import RecoveredState
from dlapp.values.ids import ContainerId
from dlapp.values.messages import Fault, Phase
from dlapp.values.spec import RoleSpec
from tests.am.application_dir.test_hdfs_journal import HOME, Changes, FakeApplicationDir, Killed
from tests.am.driving import Driver, result
from tests.am.simulated.plan import APPLICATION
from tests.seeds import each_seed, seeds
from tests.tiers import some

AGAIN = 60


def compact_journal(lines: list[str], *, piece: int = 1 << 30, most_runs: int = 50_000) -> list[list[str]]:
    """Return what is kept of each piece of a journal."""
    compaction = JournalCompaction(most_runs)
    compaction.process(lines)
    return [compaction.needed_lines(lines[offset : offset + piece]) for offset in range(0, len(lines), piece)]


def state_without_containers(former: RecoveredState) -> dict[str, Any]:
    """Return what a next attempt knows, but for containers."""
    known = {name: value for name, value in vars(former).items() if name not in ("containers", "gone")}
    return known | {"waits": {index: vars(one) for index, one in former.waits.items()}}


def check_same(whole: list[str], less: list[str], *, most: int = MAX_EARLIER_CONTAINERS) -> None:
    """Compare what a next attempt knows by a journal and by what is left of it."""
    full, former = replay(records(whole)), replay(records(less))
    assert state_without_containers(former) == state_without_containers(full)
    assert not former.gone & former.containers.keys()
    assert former.gone | former.containers.keys() == full.containers.keys() | full.gone
    for container_id, one in former.containers.items():
        assert vars(one) == vars(full.containers[container_id])
    for container_id in former.gone - full.gone:
        one = full.containers[container_id]
        assert one.end is not None
        assert one.index is None or full.last[one.index] != container_id
    by_index: dict[int, int] = {}
    for one in former.containers.values():
        if one.index is not None and one.end is not None:
            by_index[one.index] = by_index.get(one.index, 0) + 1
    assert all(count <= most + 1 for count in by_index.values())


def line(kind: str, **fields: Any) -> str:
    return journal.line({"kind": kind, "t": 1, **fields})


def preempted_runs_journal(runs: int, indexes: int = 1, attempt: int = 1) -> list[str]:
    """Return the journal of containers that YARN takes away again and again."""
    lines = [line("begin", attempt=attempt, started_ms=1, version=1)]
    number = 1
    for run in range(runs):
        for index in range(indexes):
            number += 1
            name = str(ContainerId(APPLICATION, attempt, number))
            lines += [
                line("grant", container=name, request_id=0, node=f"node{number % 97}.example", log_url="http://x" * 9),
                line("assign", container=name, index=index, host=f"node{number % 97}.example", tries=run + 1),
                line("run", container=name),
                line("end", container=name, status=-102, diagnostics="preempted " * 20, node_fault=False),
                line("free", index=index, user_faults=0, node_faults=run),
            ]
    return lines


@functools.cache
def random_journal(seed: int) -> list[str]:
    """Return the journal of an application with results, retries, lost containers and a soft kill."""
    am, chance = Driver(RoleSpec(instances=3, retries=1000)), random.Random(seed)
    for number in range(2, AGAIN):
        am.running(number)
        match chance.randrange(4):
            case 0:
                am.finished(number, result(Fault.USER, 1))
            case 1:
                am.report(number, Phase.ENDED, result(Fault.USER, 2))  # its end is not known
            case 2:
                am.ended(number, -100)
            case _:
                am.ended(number, -102)
        am.wait(65)
    am.do(events.SoftKill("tina"))
    return [journal.line(action.record) for action in am.of(events.WriteJournal, am.all)]


@each_seed("journals")
@pytest.mark.parametrize("piece", [1, 50, 1 << 30])
def test_the_next_attempt_restores_the_same_state_after_each_compacted_piece(seed: int, piece: int) -> None:
    """Compact a journal in pieces of 1, 50 and all lines, and read it after each tenth of the pieces."""
    lines = random_journal(seed)
    pieces = [lines[offset : offset + piece] for offset in range(0, len(lines), piece)]
    compacted = compact_journal(lines, piece=piece)
    for done in range(0, len(pieces) + 1, max(1, len(pieces) // 10)):
        check_same(lines, [text for part in (*compacted[:done], *pieces[done:]) for text in part], most=AGAIN)
    check_same(lines, [text for part in compacted for text in part])


@settings(max_examples=some(50), deadline=None)
@given(st.data())
def test_a_compacted_journal_grows_and_is_compacted_again(data: st.DataObject) -> None:
    lines = random_journal(data.draw(st.sampled_from(seeds("journals"))))
    less: list[str] = []
    offset = 0
    while offset < len(lines):
        more = data.draw(st.integers(1, len(lines)))
        less = [text for part in compact_journal(less + lines[offset : offset + more]) for text in part]
        offset += more
    check_same(lines, less)


@pytest.mark.parametrize(
    "left",
    [{"outputs": [{"name": "o", "part": "p", "files": 2, "size_bytes": 1}]}, {"unstored": ["/work/the/only/copy"]}],
)
def test_the_latest_runs_of_an_index_are_kept_and_before_them_those_that_left_output(left: dict[str, Any]) -> None:
    lines = preempted_runs_journal(100)
    stored = {"fault": "user", "exit_code": 1, **left}
    fourth = str(ContainerId(APPLICATION, 1, 5))
    end = next(offset for offset, text in enumerate(lines) if fourth in text and json.loads(text)["kind"] == "end")
    lines.insert(end, line("result", container=fourth, result=stored))
    (compacted,) = compact_journal(lines)
    former = replay(records(compacted))
    assert [container.number for container in former.containers] == [5, *range(101 - MAX_EARLIER_CONTAINERS + 1, 102)]
    shown = Driver(RoleSpec(instances=1), attempt=2, former=former).state.instances[0].earlier
    assert shown[0].container_id.number == 5


def test_with_many_indexes_fewer_runs_are_kept() -> None:
    (compacted,) = compact_journal(preempted_runs_journal(100, indexes=10), most_runs=30)
    assert len(replay(records(compacted)).containers) == 10 * 3
    (compacted,) = compact_journal(preempted_runs_journal(100, indexes=10), most_runs=1)
    assert len(replay(records(compacted)).containers) == 10 * 2


def test_containers_that_were_left_out_are_known_to_have_ended() -> None:
    (compacted,) = compact_journal(preempted_runs_journal(1000))
    former = replay(records(compacted))
    assert len(former.gone) == 1000 - MAX_EARLIER_CONTAINERS - 1
    assert sum(map(len, compacted)) < 40_000
    second = Driver(RoleSpec(instances=1), attempt=2, former=former)
    old = ContainerId(APPLICATION, 1, 2)
    assert not second.state.is_new(old)


@pytest.mark.parametrize(
    "gone",
    [3, None, [], {"a": 1}, {"a": [[1]]}, {"a": [[2, 1]]}, {"a": [[0, 1 << 60]]}, {"a": [["1", "2"]]}, {"a": [[1, 2]]}],
)
def test_a_record_of_containers_that_is_none_is_passed_over(gone: Any) -> None:
    text = line("gone", containers=gone)
    assert replay(records([text])).gone == set()
    if gone not in ([], {"a": [[1, 2]]}):
        assert compact_journal([text]) == [[text]]


def test_containers_that_were_left_out_are_no_more_in_all_than_an_application_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(containers, "MAX_GONE_CONTAINERS", 100)
    prefix = str(ContainerId(APPLICATION, 1, 2)).rpartition("_")[0]
    pieces = [line("gone", containers={prefix: [[1, 30], [31, 60]]}), line("gone", containers={prefix: [[61, 101]]})]
    assert len(replay(records(pieces)).gone) == 60
    assert replay(records([line("gone", containers={prefix: [[1, 60]] * 2})])).gone == set()
    (compacted,) = compact_journal(pieces)
    assert len(replay(records(compacted)).gone) == 60


def test_lines_that_are_no_records_and_kinds_of_a_newer_version_are_kept() -> None:
    odd = [
        "",
        "[1]",
        "null",
        "{",
        '{"kind": 3}',
        line("mood", container="x"),
        line("free"),
        line("grant", container=[1]),
        line("assign", container="x", index=float("inf")),
        line("result", container="x", result={"outputs": [{"files": float("inf")}]}),
    ]
    assert compact_journal(odd) == [odd]


def test_a_container_of_an_earlier_journal_keeps_its_lines() -> None:
    lines = preempted_runs_journal(100)
    without = [text for text in lines if json.loads(text)["kind"] not in ("grant", "free")]
    assert compact_journal(without) == [without]


# ---- the files ----


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hdfs_journal, "MERGED_AT_ONCE", 3)
    monkeypatch.setattr(hdfs_journal, "COMPACT_RETRY_S", 0.0)
    monkeypatch.setattr(hdfs_journal, "COMPACT_BYTES", 8000)
    monkeypatch.setattr(local, "COMPACT_BYTES", 50_000)


def on_hdfs(files: Changes, lines: list[str], attempt: int = 1) -> int:
    """Write lines as the directory's thread does; how many are on record."""
    journal = HdfsJournalWriter(FakeApplicationDir(), files, attempt)
    try:
        for number, text in enumerate(lines):
            journal.add(text)
            if number % 5 == 0:
                journal.write()
            journal.compact_step()
        journal.write()
    except Killed:
        pass
    return journal.written


@pytest.mark.usefixtures("small")
def test_a_journal_on_hdfs_does_not_grow_with_the_runs() -> None:
    files = Changes()
    lines = preempted_runs_journal(1500, indexes=2)
    most = 0

    def watch(_place: str) -> None:
        nonlocal most
        most = max(most, sum(map(len, files.files.values())))

    files.before_read = watch
    on_hdfs(files, lines)
    # Without it: more than 1 MB.
    assert sum(map(len, lines)) > 1_000_000
    assert most < 250_000
    check_same(lines, list(read_lines(files, HOME)), most=3000)
    second = preempted_runs_journal(500, attempt=2)
    on_hdfs(files, second, attempt=2)
    check_same(lines + second, list(read_lines(files, HOME)), most=3000)
    assert sum(map(len, files.files.values())) < 250_000


@pytest.mark.slow
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("how", ["killed before", "killed after"])
def test_a_compacted_journal_is_complete_after_a_kill_at_any_change(how: str) -> None:
    lines = preempted_runs_journal(60, indexes=2)
    whole = Changes()
    on_hdfs(whole, lines)
    for nth in range(1, whole.changes + 1, 3):
        files = Changes()
        files.fails = lambda change, nth=nth: how if change == nth else ""  # type: ignore[misc]
        written = on_hdfs(files, lines)
        files.fails = lambda _: ""
        found = replay(records(read_lines(files, HOME)))
        # What is not yet on record may be there all the same: the group that was being written.
        assert any(
            state_without_containers(found) == state_without_containers(replay(records(lines[:count])))
            for count in (written, min(len(lines), written + 5), written + 1)
        ), nth


@pytest.mark.usefixtures("small")
def test_a_superseded_attempt_compacts_no_lines() -> None:
    files, home = Changes(), FakeApplicationDir()
    writer = HdfsJournalWriter(home, files, 1)
    for text in preempted_runs_journal(60):
        writer.add(text)
    writer.write()
    home.ours = False
    before = dict(files.files)
    for _ in range(10):
        writer.compact_step()
    assert files.files == before


@pytest.mark.usefixtures("small")
def test_a_journal_on_a_disk_does_not_grow_with_the_runs(tmp_path: Path) -> None:
    lines = preempted_runs_journal(2000, indexes=2)
    writer = LocalApplicationDir(str(tmp_path)).journal(1)
    for text in lines:
        writer.add(text)
        writer.flush()
        assert os.path.getsize(tmp_path / "journal-1.jsonl") < 250_000
    writer.close()
    assert os.listdir(tmp_path) == ["journal-1.jsonl"]
    check_same(lines, list(LocalApplicationDir(str(tmp_path)).all_journal_lines()), most=4000)


@pytest.mark.usefixtures("small")
def test_local_compaction_follows_no_link_and_syncs_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bait, home, synced = tmp_path / "bait", tmp_path / "home", list[str]()
    bait.write_text("kept")
    home.mkdir()
    (home / f".journal-1.jsonl.{os.getpid()}").symlink_to(bait)
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
    writer = LocalApplicationDir(str(home)).journal(1)
    for text in preempted_runs_journal(500):
        writer.add(text)
        writer.flush()
    writer.close()
    assert bait.read_text() == "kept"
    assert os.listdir(home) == ["journal-1.jsonl"]
    assert str(home) in synced


@pytest.mark.usefixtures("small")
def test_a_disk_without_space_for_a_second_file_leaves_the_journal_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    lines = preempted_runs_journal(500)
    writer = LocalApplicationDir(str(tmp_path)).journal(1)
    monkeypatch.setattr(os, "rename", full)
    for text in lines[:1000]:
        writer.add(text)
        writer.flush()
    assert LocalApplicationDir(str(tmp_path)).all_journal_lines() == lines[:1000]
    assert os.listdir(tmp_path) == ["journal-1.jsonl"]
    monkeypatch.undo()
    for text in lines[1000:]:
        writer.add(text)
        writer.flush()
    writer.close()
    check_same(lines, list(LocalApplicationDir(str(tmp_path)).all_journal_lines()), most=500)
