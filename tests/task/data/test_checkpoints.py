"""Test when a task copies the checkpoints of its payload."""

from __future__ import annotations

import os
import shutil
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dlapp.errors import Unreachable
from dlapp.storage.checkpoints.copies import Checkpoints
from dlapp.task.data import checkpoints as module
from dlapp.task.data.checkpoints import TaskCheckpoints
from dlapp.values.messages import CheckpointStatus, Phase
from dlapp.values.spec import CheckpointSpec
from tests.applications import wait_for


class Payload:
    """A container's directory whose payload this test is."""

    def __init__(self, directory: Path, every_s: float = 600.0) -> None:
        self.notes: list[str] = []
        self.details: list[str] = []
        self.details_at_release: list[int] = []
        self.statuses: list[CheckpointStatus] = []
        self.model = directory / "home" / "workspace" / "model"
        self.model.mkdir(parents=True, exist_ok=True)
        self.place = directory / "kept"
        spec = CheckpointSpec(path="model", target=f"file://{self.place}", every_s=every_s)
        self.checkpoints = TaskCheckpoints(
            spec, str(directory / "home"), None, self.notes.append, (), on_status=self.statuses.append
        )

    def status(self) -> CheckpointStatus:
        return self.statuses[-1] if self.statuses else CheckpointStatus()

    def numbers(self) -> list[int]:
        return sorted(int(path.stem.partition("-")[2]) for path in self.place.glob("checkpoint-*.json"))

    def end(self, *, is_orderly: bool, patience_s: float = 0.0) -> None:
        def say(phase: Phase, *, detail: str = "") -> None:
            self.details.append(detail)

        self.checkpoints.store_last(
            is_orderly=is_orderly,
            patience_s=patience_s,
            report_phase=say,
            release=lambda: self.details_at_release.append(len(self.details)),
            may_wait=lambda: True,
        )


@pytest.fixture
def payload(tmp_path: Path) -> Payload:
    return Payload(tmp_path)


def age(payload: Payload, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let it be long ago that anything changed."""
    later = time.time_ns() + 60_000_000_000
    monkeypatch.setattr(time, "time_ns", lambda: later)


@pytest.mark.parametrize("is_orderly", [True, False])
@pytest.mark.parametrize("is_old", [True, False])
def test_files_that_a_payload_may_be_writing_are_no_checkpoint(
    payload: Payload, monkeypatch: pytest.MonkeyPatch, is_orderly: bool, is_old: bool
) -> None:
    (payload.model / "weights").write_text("1")
    if is_old:
        age(payload, monkeypatch)
    payload.end(is_orderly=is_orderly)
    assert payload.numbers() == ([1] if is_orderly or is_old else [])
    message = "no last checkpoint: model/weights was written shortly before the end"
    assert (message in payload.notes) == (not is_orderly and not is_old)


def test_a_directory_that_is_empty_or_missing_is_no_checkpoint(payload: Payload) -> None:
    payload.end(is_orderly=True)
    payload.model.rmdir()
    payload.end(is_orderly=True)
    assert payload.numbers() == []


def test_a_directory_that_did_not_change_is_stored_once(payload: Payload) -> None:
    (payload.model / "weights").write_text("1")
    payload.end(is_orderly=True)
    payload.end(is_orderly=True)
    assert payload.numbers() == [1]


def test_a_link_out_of_the_workspace_is_not_stored(payload: Payload) -> None:
    payload.model.rmdir()
    payload.model.symlink_to("/etc")
    payload.end(is_orderly=True)
    assert payload.numbers() == []
    assert "leads out of the workspace" in payload.notes[0]


def test_a_reported_checkpoint_is_copied_at_once_and_the_next_one_when_it_is_due(tmp_path: Path) -> None:
    payload = Payload(tmp_path)
    (payload.model / "weights").write_text("1")
    with payload.checkpoints.copying():
        payload.checkpoints.handle_reports(0, None)
        payload.checkpoints.handle_reports(1, None)
        wait_for("a copy", lambda: payload.notes)
        (payload.model / "weights").write_text("2")
        payload.checkpoints.handle_reports(2, None)  # too early
    assert payload.numbers() == [1]


def test_a_program_that_reports_faster_than_copies_are_made_gets_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "QUIET_S", 0.2)
    payload = Payload(tmp_path, every_s=1.0)
    original, reports = Checkpoints.store, 0

    def is_copied_twice() -> bool:
        nonlocal reports
        reports += 1
        (payload.model / "weights.new").write_text(str(reports))
        (payload.model / "weights.new").replace(payload.model / "weights")
        payload.checkpoints.handle_reports(reports, None)
        return payload.status().number > 1

    def store(*arguments: Any) -> Any:
        before = reports
        wait_for("a later save", lambda: reports > before)
        return original(*arguments)

    monkeypatch.setattr(Checkpoints, "store", store)
    assert not is_copied_twice()
    with payload.checkpoints.copying():
        wait_for("two copies", is_copied_twice)
    payload.checkpoints.restore_newest(1)
    assert int((payload.model / "weights").read_text()) > 0


@pytest.mark.parametrize("reported_in", [1, 2])
def test_a_report_before_a_copy_does_not_cover_later_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reported_in: int
) -> None:
    monkeypatch.setattr(module, "QUIET_S", 0.05)
    payload = Payload(tmp_path, every_s=1.0)
    original, calls = Checkpoints.store, 0
    half_written = os.open(tmp_path / "next", os.O_WRONLY | os.O_CREAT)

    def ticked_ns() -> int:
        (tmp_path / "clock").touch()
        return (tmp_path / "clock").stat().st_ctime_ns

    def store(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:  # at once, and it fails
            (payload.model / "weights.new").write_text("2")
            (payload.model / "weights.new").replace(payload.model / "weights")
        if calls == reported_in:
            payload.checkpoints.handle_reports(2, None)
        if calls == 2:  # after two inspections
            now_ns = time.time_ns()
            wait_for("a tick of the file system's clock", lambda: ticked_ns() > now_ns)
            (tmp_path / "next").rename(payload.model / "next")
        return original(*arguments)

    monkeypatch.setattr(Checkpoints, "store", store)
    (payload.model / "weights").write_text("1")
    with payload.checkpoints.copying():
        payload.checkpoints.handle_reports(1, None)
        wait_for("a copy", lambda: payload.status().number)
        wait_for("the reason or a second copy", lambda: payload.status().why or payload.status().number > 1)
        found = payload.status()
    os.close(half_written)
    assert (found.number, found.why) == (1, "model/next is open for writing")


def test_a_file_that_is_open_is_copied_when_it_was_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUIET_S", 0.05)
    payload = Payload(tmp_path, every_s=1.0)
    file = os.open(payload.model / "weights", os.O_WRONLY | os.O_CREAT)
    os.write(file, b"1")
    with payload.checkpoints.copying():
        wait_for("the reason", lambda: payload.status().why == "model/weights is open for writing")
        assert payload.numbers() == []
        os.close(file)
        wait_for("a copy", lambda: payload.status().number)
    assert payload.numbers() == [1]
    assert payload.status().why == ""


def test_the_reason_is_reported_until_there_are_files_to_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUIET_S", 0.05)
    payload = Payload(tmp_path, every_s=1.0)
    with payload.checkpoints.copying():
        wait_for("the second reason", lambda: payload.status().why == "nothing was written in model")
        assert payload.statuses[0].why.startswith("not due before ")
        (payload.model / "checkpoint-7").mkdir()
        (payload.model / "checkpoint-7" / "weights").write_text("1")
        wait_for("a copy", lambda: payload.status().number)
    assert (payload.status().step, payload.status().epoch, payload.status().why) == (7, None, "")
    assert payload.status().at_ms <= time.time_ns() // 1_000_000


def test_files_with_a_step_are_copied_alone_if_others_are_written_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "QUIET_S", 0.05)
    payload = Payload(tmp_path, every_s=1.0)
    (payload.model / "checkpoint-7").mkdir()
    (payload.model / "checkpoint-7" / "weights").write_text("1")
    with open(payload.model / "cache", "wb"), payload.checkpoints.copying():
        wait_for("the reason", lambda: payload.status().why == "model/cache is open for writing")
        assert payload.numbers() == []
        monkeypatch.setattr(module, "PATIENCE_S", 0.0)
        wait_for("a copy", lambda: payload.status().number)
    (payload.model / "cache").unlink()
    (payload.model / "checkpoint-7" / "weights").unlink()
    payload.checkpoints.restore_newest(1)
    assert [path.name for path in payload.model.iterdir()] == ["checkpoint-7"]


def test_files_being_written_at_sigterm_are_left_out_of_the_checkpoint(payload: Payload) -> None:
    (payload.model / "step=1.ckpt").write_text("1")
    (payload.model / "step=2.ckpt").write_text("2")
    with open(payload.model / "step=3.ckpt", "w") as half:
        payload.checkpoints.prepare_end([os.getpid()])
        half.write("3")
    (payload.model / "new").write_text("4")
    (payload.model / "new").rename(payload.model / "step=2.ckpt")  # between the look and the signal
    (payload.model / "step=1.ckpt").unlink()
    payload.end(is_orderly=False)
    assert payload.status().step == 2
    assert payload.status().why == "model/step=3.ckpt was open for writing"
    payload.checkpoints.restore_newest(1)
    assert {path.name: path.read_text() for path in payload.model.iterdir()} == {"step=1.ckpt": "1", "step=2.ckpt": "2"}


def test_files_saved_long_after_sigterm_are_copied_after_sigkill(
    payload: Payload, monkeypatch: pytest.MonkeyPatch
) -> None:
    (payload.model / "state").write_text("1")
    payload.checkpoints.prepare_end([os.getpid()])
    (payload.model / "new").write_text("2")
    (payload.model / "new").rename(payload.model / "state")
    age(payload, monkeypatch)
    payload.end(is_orderly=False)
    (payload.model / "state").unlink()
    payload.checkpoints.restore_newest(1)
    assert (payload.model / "state").read_text() == "2"


@pytest.mark.parametrize("is_orderly", [False, True])
def test_files_written_at_sigterm_are_no_checkpoint_if_the_script_ends_by_itself(
    payload: Payload, *, is_orderly: bool
) -> None:
    # As with ``python3 train.py | tee log``: the exit code is that of tee.
    (payload.model / "step=1.ckpt").write_text("1")
    with open(payload.model / "step=2.ckpt", "w") as half:
        half.write("2")
        half.flush()
        payload.checkpoints.prepare_end([os.getpid()])
    payload.end(is_orderly=is_orderly)
    assert payload.status().why == "model/step=2.ckpt was open for writing"
    payload.checkpoints.restore_newest(1)
    assert {path.name: path.read_text() for path in payload.model.iterdir()} == {"step=1.ckpt": "1"}


def test_files_open_at_sigterm_are_no_checkpoint_even_if_old(payload: Payload, monkeypatch: pytest.MonkeyPatch) -> None:
    with open(payload.model / "state", "w") as half:
        half.write("1")
        half.flush()
        age(payload, monkeypatch)
        payload.checkpoints.prepare_end([os.getpid()])
    payload.end(is_orderly=False)
    assert payload.numbers() == []
    assert payload.status().why == "model/state was open for writing"


def test_with_unknown_open_files_recent_changes_before_sigterm_are_no_checkpoint(payload: Payload) -> None:
    (payload.model / "state").write_text("1")
    payload.checkpoints.prepare_end([])  # as in a container whose processes are not visible here
    payload.end(is_orderly=False)
    assert payload.numbers() == []
    assert payload.status().why == "model/state was written shortly before the end"


def test_files_saved_by_a_sigterm_handler_are_copied_at_an_orderly_end(payload: Payload) -> None:
    (payload.model / "state").write_text("1")
    payload.checkpoints.prepare_end([os.getpid()])
    (payload.model / "state").write_text("2")
    payload.end(is_orderly=True)
    (payload.model / "state").unlink()
    payload.checkpoints.restore_newest(1)
    assert (payload.model / "state").read_text() == "2"


def test_a_checkpoint_that_is_pruned_while_it_is_copied_is_copied_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "QUIET_S", 0.05)
    payload = Payload(tmp_path, every_s=1.0)
    for step in (1, 2):
        (payload.model / f"checkpoint-{step}").mkdir()
        (payload.model / f"checkpoint-{step}" / "weights").write_text(str(step))
    original = Checkpoints.store

    def store(*arguments: Any) -> Any:
        if (payload.model / "checkpoint-1").exists():
            shutil.rmtree(payload.model / "checkpoint-1")
        return original(*arguments)

    monkeypatch.setattr(Checkpoints, "store", store)
    with payload.checkpoints.copying():
        wait_for("a copy", lambda: payload.status().number)
    payload.checkpoints.restore_newest(1)
    assert {str(path.relative_to(payload.model)): path.read_text() for path in payload.model.glob("*/*")} == {
        "checkpoint-1/weights": "1",
        "checkpoint-2/weights": "2",
    }


def test_a_restored_checkpoint_is_the_newest_one_with_its_step_and_age(payload: Payload, tmp_path: Path) -> None:
    (payload.model / "epoch=1-step=9.ckpt").write_text("1")
    os.utime(payload.model / "epoch=1-step=9.ckpt", ns=(5_000_000, 5_000_000))
    payload.end(is_orderly=True)
    later = Payload(tmp_path)
    later.checkpoints.restore_newest(2)
    assert later.status() == CheckpointStatus(number=1, step=9, epoch=1, at_ms=5)


def test_the_next_container_resumes_from_the_newest_checkpoint(payload: Payload, tmp_path: Path) -> None:
    payload.checkpoints.restore_newest(1)
    assert payload.checkpoints.start_environment("/w") == {}
    (payload.model / "weights").write_text("1")
    payload.end(is_orderly=True)
    payload.model.joinpath("weights").unlink()
    payload.model.rmdir()
    payload.checkpoints.restore_newest(1)
    assert payload.checkpoints.start_environment("/w") == {"DLAPP_RESUME_FROM": "/w/model"}
    assert (payload.model / "weights").read_text() == "1"


@pytest.mark.parametrize("patience_s", [0.0, 60.0])
def test_the_last_copy_waits_for_an_unreachable_file_system(
    payload: Payload, monkeypatch: pytest.MonkeyPatch, patience_s: float
) -> None:
    (payload.model / "weights").write_text("1")
    original, tries = Checkpoints.store, list[int]()

    def store(*arguments: Any) -> Any:
        tries.append(1)
        if len(tries) < 3:
            raise Unreachable("no NameNode")
        return original(*arguments)

    monkeypatch.setattr(Checkpoints, "store", store)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    payload.end(is_orderly=True, patience_s=patience_s)
    assert payload.numbers() == ([1] if patience_s else [])
    assert bool(payload.details) == bool(patience_s)
    assert payload.details_at_release[:1] == ([1] if patience_s else [])  # a driver may hang at the release
    assert ("the last checkpoint could not be stored: no NameNode" in payload.notes) == (not patience_s)


class Peers:
    """The other members of a gang."""

    def __init__(self) -> None:
        self.numbers: tuple[int, ...] = ()
        self.number = 0

    def tell(self, numbers: tuple[int, ...]) -> None:
        self.numbers = numbers


def member(directory: Path, peers: Peers, *, every_s: float = 600.0, keep: int = 3) -> Payload:
    """One of a gang of which each index has checkpoints of its own."""
    payload = Payload(directory)
    spec = CheckpointSpec(path="model", target=f"file://{payload.place}", every_s=every_s, keep=keep, role="all")
    home = str(directory / "home")
    payload.checkpoints = TaskCheckpoints(
        spec, home, None, payload.notes.append, (), on_change=peers.tell, complete=lambda: peers.number
    )
    return payload


def save(payload: Payload, step: int) -> None:
    (payload.model / "weights").write_text(str(step))
    os.utime(payload.model, ns=(0, 0))  # coarse clocks of file systems are none of this test


def test_the_number_of_a_part_is_the_step_that_was_reported_with_it(tmp_path: Path) -> None:
    peers = Peers()
    payload = member(tmp_path, peers)
    assert payload.checkpoints.restore(0, 1_000_000_000)
    save(payload, 7)
    with payload.checkpoints.copying():
        payload.checkpoints.handle_reports(1, 7)
        wait_for("a copy", lambda: peers.numbers)
        save(payload, 8)
        payload.checkpoints.handle_reports(2, 8)  # too early
    assert payload.numbers() == [1_000_000_007]
    payload.end(is_orderly=False)  # it was reported, and did not change
    assert payload.numbers() == [1_000_000_007, 1_000_000_008]


@pytest.mark.parametrize("step", [None, 0, 2_000_000_000])
def test_a_part_without_a_step_is_not_stored(tmp_path: Path, step: int | None) -> None:
    payload = member(tmp_path, Peers())
    save(payload, 1)
    with payload.checkpoints.copying():
        payload.checkpoints.handle_reports(1, step)
    payload.end(is_orderly=True)
    assert payload.numbers() == []
    assert "with role=all it must have one from 1 to" in payload.notes[0]


def test_a_part_that_changed_after_its_report_is_not_stored(tmp_path: Path) -> None:
    payload = member(tmp_path, Peers())
    with payload.checkpoints.copying():
        payload.checkpoints.handle_reports(1, 5)
        until = time.time_ns() + 20_000_000
        wait_for("a later time", lambda: time.time_ns() > until)
        save(payload, 6)
    payload.end(is_orderly=True)
    assert payload.numbers() == []


def test_a_report_that_came_too_early_is_stored_when_the_next_copy_is_due(tmp_path: Path) -> None:
    peers = Peers()
    payload = member(tmp_path, peers, every_s=1.0)
    save(payload, 1)
    with payload.checkpoints.copying():
        payload.checkpoints.handle_reports(1, 1)
        wait_for("a copy", lambda: peers.numbers == (1,))
        save(payload, 2)
        payload.checkpoints.handle_reports(2, 2)
        wait_for("the next copy", lambda: peers.numbers == (1, 2))


def test_the_last_number_that_all_have_is_never_removed(tmp_path: Path) -> None:
    peers = Peers()
    payload = member(tmp_path, peers, keep=1)
    for step in (1, 2, 3):
        save(payload, step)
        peers.number = 1  # the others cannot store any more
        with payload.checkpoints.copying():
            payload.checkpoints.handle_reports(1, step)
            wait_for("a copy", (payload.place / f"checkpoint-{step}.json").exists)
    assert payload.numbers() == [1, 3]


def test_a_task_of_an_earlier_start_stores_no_checkpoint_after_a_later_one(tmp_path: Path) -> None:
    early, late = member(tmp_path, Peers()), member(tmp_path, Peers())
    early.checkpoints.restore(0, 0)
    late.checkpoints.restore(0, 2_000_000_000)
    for payload in (late, early):
        save(payload, 1)
        with payload.checkpoints.copying():
            payload.checkpoints.handle_reports(1, 1)
            wait_for("a note", partial(any, payload.notes))
    assert late.numbers() == [2_000_000_001]
    assert "a later start of the program has stored checkpoints" in early.notes[0]


def test_a_checkpoint_that_is_damaged_is_not_offered_again(tmp_path: Path) -> None:
    peers = Peers()
    payload = member(tmp_path, peers)
    save(payload, 1)
    with payload.checkpoints.copying():
        payload.checkpoints.handle_reports(1, 1)
        wait_for("a copy", lambda: peers.numbers)
    (stored,) = (payload.place / "objects").iterdir()
    stored.write_text("2")
    assert payload.checkpoints.find() == (1,)
    assert not payload.checkpoints.restore(1, 0)
    assert payload.checkpoints.find() == ()
    assert (payload.model / "weights").read_text() == "1"
