"""Test that the files of a snapshot stay what they were."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dlapp.storage.checkpoints import snapshot as module
from dlapp.storage.checkpoints.snapshot import CheckpointChanged, DirectorySnapshot


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "model" / "deep").mkdir(parents=True)
    (tmp_path / "model" / "deep" / "weights").write_text("1")
    return tmp_path / "model"


def replace(path: Path) -> None:
    path.with_name("new").write_text("2")
    path.with_name("new").rename(path)


def append(path: Path) -> None:
    with open(path, "a") as file:
        file.write("2")


def set_back(path: Path) -> None:
    """Change a file, and give it its former size and time."""
    before = path.stat()
    path.write_text("2")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize(
    ("change", "is_same"),
    [
        (replace, True),
        (Path.unlink, True),
        (lambda path: shutil.rmtree(path.parent), True),
        (append, False),
        (set_back, False),
        (lambda path: path.chmod(0o600), False),  # it looks like a write
    ],
)
def test_a_replaced_or_removed_file_keeps_its_content_in_the_snapshot(
    model: Path, change: Callable[[Path], None], is_same: bool
) -> None:
    weights = model / "deep" / "weights"
    with DirectorySnapshot(str(model), holds=True) as one:
        change(weights)
        (node,) = (node for node in one.state.nodes if node.is_file)
        assert one.is_unchanged(node) == is_same
        assert one.unchanged(one.read_again()) == ({"deep/weights"} if is_same else set())
        if is_same:
            with one.open(node) as fd:
                assert os.pread(fd, 9, 0) == b"1"


def test_a_file_that_is_not_held_must_still_be_there(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_HELD", 1)
    os.utime(model / "deep" / "weights")  # the newest one
    (model / "newer").write_text("1")
    with DirectorySnapshot(str(model), holds=True) as one:
        assert one.unchanged(one.state) == {"deep/weights", "newer"}
        replace(model / "newer")
        replace(model / "deep" / "weights")
        assert one.unchanged(one.read_again()) == {"newer"}


def test_writers_of_a_file_are_known_later_too(model: Path) -> None:
    with open(model / "log", "a"), open(model / "half", "wb"):
        before = DirectorySnapshot(str(model), holds=True)
    with before, DirectorySnapshot(str(model), holds=True) as after:
        assert before.inspection.writers == {"log": True, "half": False}
        assert after.inspection.writers == {}
        after.add_writers(before)
        assert after.inspection.writers.keys() == {"log", "half"}


def test_a_log_that_grows_during_the_listing_does_not_prevent_it(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = DirectorySnapshot._hold

    def hold(*arguments: Any) -> None:
        append(model / "log")
        original(*arguments)

    append(model / "log")
    monkeypatch.setattr(DirectorySnapshot, "_hold", hold)
    with DirectorySnapshot(str(model), holds=True) as one:
        assert one.unchanged(one.read_again()) == {"deep/weights"}


@pytest.mark.parametrize("times", [1, 100])
def test_a_listing_in_which_a_file_disappears_is_repeated_some_times(
    model: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    original, left = DirectorySnapshot._hold, [times]

    def hold(*arguments: Any) -> None:
        if left[0]:
            left[0] -= 1
            replace(model / "deep" / "weights")
        original(*arguments)

    monkeypatch.setattr(DirectorySnapshot, "_hold", hold)
    if times == 1:
        with DirectorySnapshot(str(model), holds=True) as one:
            assert one.unchanged(one.read_again()) == {"deep/weights"}
    else:
        with pytest.raises(CheckpointChanged):
            DirectorySnapshot(str(model), holds=True)
