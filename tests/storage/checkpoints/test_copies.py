from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dlapp.errors import DlappError
from dlapp.storage.checkpoints import store as store_module
from dlapp.storage.checkpoints.copies import Checkpoints, StoredCheckpoint
from dlapp.storage.checkpoints.manifest import IncompleteCheckpoint, manifest_name
from dlapp.storage.checkpoints.snapshot import CheckpointChanged
from dlapp.storage.checkpoints.store import CopyAborted, open_store
from dlapp.system.files import UntrustedFile
from tests.tiers import FULL

MOMENTS = range(0, 400, 1 if FULL else 7)
"""Changes of a file system before which a copy is killed."""
CHANGES = {f"os.{name}" for name in ("rename", "remove", "rmdir", "mkdir", "link", "symlink", "chmod", "utime")} | {
    "open"
}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "work" / "model").mkdir(parents=True)
    return tmp_path / "work" / "model"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "results.checkpoints"


@contextlib.contextmanager
def checkpoints(place: Path, keep: int = 3, notes: list[str] | None = None) -> Iterator[Checkpoints]:
    with open_store(f"file://{place}") as opened:
        yield Checkpoints(opened, keep, (notes if notes is not None else []).append)


def store(place: Path, source: Path, keep: int = 3) -> StoredCheckpoint:
    with checkpoints(place, keep) as opened:
        return opened.store(str(source))


def restored(place: Path, into: Path, number: int | None = None) -> int | None:
    into.parent.mkdir(exist_ok=True)
    with checkpoints(place) as opened:
        return opened.restore(str(into), number)


def fill(source: Path, epoch: int) -> None:
    """A model as a training writes it: one file changes with each epoch, and one never does."""
    (source / "deep").mkdir(exist_ok=True)
    (source / "deep" / "weights").write_text(f"weights of {epoch}" * 1000)
    (source / "vocabulary").write_text("the words")
    (source / "log").write_text("")
    if not (source / "latest").is_symlink():
        (source / "latest").symlink_to("deep/weights")


def tree(path: Path) -> dict[str, tuple[int, str]]:
    """Names with permissions, and content or what a link says."""
    return {
        str(item.relative_to(path)): (
            item.lstat().st_mode,
            os.readlink(item) if item.is_symlink() else item.read_text() if item.is_file() else "",
        )
        for item in sorted(path.rglob("*"))
    }


def objects(place: Path) -> set[str]:
    return {path.name for path in (place / "objects").iterdir()}


def manifests(place: Path) -> list[str]:
    return sorted(path.name for path in place.iterdir() if path.name != "objects")


def test_a_checkpoint_is_restored_unchanged(place: Path, source: Path, tmp_path: Path) -> None:
    fill(source, 1)
    (source / "tool").write_text("#!/bin/sh\n")
    (source / "tool").chmod(0o750)
    (source / "empty").mkdir(mode=0o711)
    os.utime(source / "tool", ns=(5, 123_456_789_012_345_678))
    stored = store(place, source)
    assert (stored.number, stored.files) == (1, 4)
    into = tmp_path / "again" / "model"
    assert restored(place, into) == 1
    assert tree(into) == tree(source)
    assert (into / "tool").stat().st_mtime_ns == 123_456_789_012_345_678
    assert [path.name for path in into.parent.iterdir()] == ["model"]


def test_a_restored_checkpoint_replaces_existing_files(place: Path, source: Path) -> None:
    fill(source, 1)
    store(place, source)
    before = tree(source)
    fill(source, 2)
    assert restored(place, source) == 1
    assert tree(source) == before
    assert [path.name for path in source.parent.iterdir()] == ["model"]


def test_without_a_checkpoint_no_file_is_restored(place: Path, source: Path) -> None:
    fill(source, 1)
    before = tree(source)
    assert restored(place, source) is None
    assert tree(source) == before
    assert not place.exists()


def test_files_that_did_not_change_are_stored_once(place: Path, source: Path) -> None:
    fill(source, 1)
    first = store(place, source)
    assert first.new_bytes == first.size_bytes
    before = objects(place)
    fill(source, 2)
    (source / "copy").write_text("the words")
    second = store(place, source)
    assert second.new_bytes == len("weights of 2" * 1000)
    assert len(objects(place) - before) == 1


def test_the_last_checkpoints_are_kept_with_their_shared_files(place: Path, source: Path, tmp_path: Path) -> None:
    with checkpoints(place, keep=2) as opened:
        for epoch in range(1, 6):
            fill(source, epoch)
            assert opened.store(str(source)).number == epoch
            kept_numbers = [number for number in (epoch - 1, epoch) if number]
            assert opened.numbers() == kept_numbers
    # The weights of two, the words, and the empty file.
    assert len(objects(place)) == 4
    for number in (4, 5):
        assert restored(place, tmp_path / f"of {number}" / "model", number) == number
        assert (tmp_path / f"of {number}" / "model" / "latest").read_text() == f"weights of {number}" * 1000


@pytest.mark.parametrize("when", ["copying", "comparing"])
@pytest.mark.parametrize("what", ["a file", "its time", "a new file", "a removed file", "a replaced file"])
def test_a_concurrent_change_discards_the_copy(
    place: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, when: str
) -> None:
    fill(source, 1)
    store(place, source)
    before, stored = tree(source), objects(place)
    fill(source, 2)

    def change() -> None:
        if what == "a file":
            with open(source / "deep" / "weights", "r+b") as file:
                file.write(b"W")
        elif what == "its time":
            os.utime(source / "vocabulary", ns=(1, 1))
        elif what == "a new file":
            (source / "deep" / "more").write_text("")
        elif what == "a removed file":
            (source / "vocabulary").unlink()
        else:
            (source / "new").write_text((source / "deep" / "weights").read_text())
            (source / "new").rename(source / "deep" / "weights")

    method = "put" if when == "copying" else "run_parallel"
    original = getattr(store_module._LocalStore, method)

    def changed(*arguments: object) -> None:
        if when == "copying":
            change()
        original(*arguments)
        if when == "comparing":
            change()

    with checkpoints(place) as opened:
        monkeypatch.setattr(store_module._LocalStore, method, changed)
        with pytest.raises(CheckpointChanged, match="changed while it was copied"):
            opened.store(str(source))
        monkeypatch.undo()
        assert opened.numbers() == [1]
    assert objects(place) == stored
    assert restored(place, tmp_path / "again" / "model") == 1
    assert tree(tmp_path / "again" / "model") == before


def test_one_of_two_concurrent_stores_gets_the_number(place: Path, source: Path) -> None:
    fill(source, 1)
    with checkpoints(place) as opened:
        opened.store(str(source), 7)
        fill(source, 2)
        with pytest.raises(CheckpointChanged, match="checkpoint 7 already exists"):
            opened.store(str(source), 7)
        assert opened.store(str(source)).number == 8


@pytest.mark.parametrize("harm", ["no object", "a short object", "another content", "no manifest's JSON", "a way out"])
def test_a_checkpoint_that_is_not_whole_is_passed_over(place: Path, source: Path, tmp_path: Path, harm: str) -> None:
    fill(source, 1)
    store(place, source)
    first, of_first = tree(source), objects(place)
    fill(source, 2)
    store(place, source)
    (weights,) = objects(place) - of_first
    manifest = place / manifest_name(2)
    if harm == "no object":
        (place / "objects" / weights).unlink()
    elif harm == "a short object":
        (place / "objects" / weights).write_text("W")
    elif harm == "another content":
        (place / "objects" / weights).write_text("WEIGHTS of 2" * 1000)
    elif harm == "no manifest's JSON":
        manifest.write_text(manifest.read_text()[:-5])
    else:
        content = json.loads(manifest.read_text())
        content["entries"][-1]["name"] = "../outside"
        manifest.write_text(json.dumps(content))
    notes: list[str] = []
    into = tmp_path / "again" / "model"
    into.parent.mkdir()
    with checkpoints(place, notes=notes) as opened:
        with pytest.raises(IncompleteCheckpoint):
            opened.restore(str(into), 2)
        assert not into.exists()
        assert opened.restore(str(into)) == 1
    assert "using the previous one" in notes[0]
    assert tree(into) == first
    # The next one gets a new number, and what was not whole is no burden for long.
    fill(source, 3)
    assert store(place, source, keep=1).number == 3
    assert manifests(place) == [manifest_name(3)]


def test_links_that_lead_out_are_left_out_and_noted(place: Path, source: Path, tmp_path: Path) -> None:
    (source / "in").write_text("1")
    (source / "out").symlink_to("/etc/passwd")
    (source / "up").symlink_to("../secret")
    (source / "absolute").symlink_to(source / "in")
    os.mkfifo(source / "fifo")
    notes: list[str] = []
    with checkpoints(place, notes=notes) as opened:
        opened.store(str(source))
    assert len(notes) == 3
    into = tmp_path / "again" / "model"
    assert restored(place, into) == 1
    assert {name: text for name, (_, text) in tree(into).items()} == {"in": "1", "absolute": "in"}


def test_names_that_are_not_text_are_restored(place: Path, source: Path, tmp_path: Path) -> None:
    names = [b"\xff\xfe", "ü\n".encode(), b" "]
    for name in names:
        with open(os.path.join(os.fsencode(source), name), "wb") as file:
            file.write(name)
    store(place, source)
    into = tmp_path / "again" / "model"
    restored(place, into)
    assert sorted(os.listdir(os.fsencode(into))) == sorted(names)


@pytest.mark.parametrize("what", ["place", "objects"])
def test_a_place_that_others_can_write_is_refused(place: Path, source: Path, what: str) -> None:
    fill(source, 1)
    store(place, source)
    (place if what == "place" else place / "objects").chmod(0o777)
    with pytest.raises(UntrustedFile, match="others may write there"):
        store(place, source)
    with pytest.raises(UntrustedFile, match="others may write there"):
        restored(place, source)


def test_a_directory_that_is_reached_by_a_link_is_not_stored(place: Path, source: Path) -> None:
    fill(source, 1)
    link = source.with_name("link")
    link.symlink_to(source)
    with pytest.raises(UntrustedFile):
        store(place, link)


def test_an_abandoned_copy_ends_soon_and_keeps_the_previous_one(
    place: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(source, 1)
    store(place, source)
    fill(source, 2)
    entered, errors = threading.Event(), list[BaseException]()
    original = store_module._LocalStore.put

    def put(*arguments: object) -> None:
        entered.set()
        assert given_up.wait(120)
        original(*arguments)  # type: ignore[arg-type]

    given_up = threading.Event()
    monkeypatch.setattr(store_module._LocalStore, "put", put)

    def run() -> None:
        try:
            opened.store(str(source))
        except DlappError as error:
            errors.append(error)

    with checkpoints(place) as opened:
        thread = threading.Thread(target=run)
        thread.start()
        assert entered.wait(120)
        with opened.aborting() as cut:
            given_up.set()
            while thread.is_alive():
                cut()
                thread.join(0.01)
        assert isinstance(errors[0], CopyAborted)
        assert opened.numbers() == [1]


def die_at(count: int, action: Callable[[], object]) -> bool:
    """Run ``action`` in a child that kills itself before its ``count``-th change of a file system; whether it died."""
    child = os.fork()
    if child == 0:
        left = count

        def hook(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal left
            if event in CHANGES:
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        code = 1
        try:
            sys.addaudithook(hook)
            action()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


@pytest.fixture
def no_power_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes die here, not machines."""
    monkeypatch.setattr(store_module, "sync_file_system", lambda fd: None)


@pytest.mark.usefixtures("no_power_cut")
def test_a_copy_killed_at_any_point_keeps_the_previous_one(place: Path, source: Path, tmp_path: Path) -> None:
    trees = {}
    for epoch in (1, 2):
        fill(source, epoch)
        store(place, source, keep=2)
        trees[epoch] = tree(source)
    last, died, largest = 2, 0, 0
    for count in MOMENTS:
        fill(source, last + 1)
        (source / "deep" / "weights").write_text(f"weights at {count}")
        trees[last + 1] = tree(source)
        if not die_at(count, lambda: store(place, source, keep=2)):
            break
        died += 1
        into = tmp_path / f"at {count}" / "model"
        number = restored(place, into)
        assert number in (last, last + 1)
        assert tree(into) == trees[number]
        last = number
        # What is left of it does not grow: at most one more checkpoint, and the file that was on its way.
        largest = max(largest, len(objects(place)))
    assert died >= 5
    assert largest <= 8
    fill(source, last + 2)
    store(place, source, keep=2)
    assert len(manifests(place)) == 2
    assert len(objects(place)) == 4


@pytest.mark.usefixtures("no_power_cut")
def test_parts_of_two_indexes_have_one_number_wherever_the_copy_of_one_is_killed(place: Path, source: Path) -> None:
    places = [place.with_name(f"{place.name}.{index}") for index in range(2)]

    def store_part(index: int, number: int, complete: int) -> None:
        with checkpoints(places[index], keep=1) as opened:
            opened.pinned = complete
            opened.store(str(source), number)

    def common() -> int:
        sets = []
        for item in places:
            with checkpoints(item) as opened:
                sets.append(set(opened.complete()))
        return max(sets[0] & sets[1])

    fill(source, 1)
    for index in range(2):
        store_part(index, 1, 0)
    complete = died = 0
    for count in MOMENTS:
        complete, number = common(), count + 2
        fill(source, number)
        (source / "deep" / "weights").write_text(f"weights at {count}")
        store_part(0, number, complete)
        if not die_at(count, lambda number=number, complete=complete: store_part(1, number, complete)):  # type: ignore[misc]
            break
        died += 1
        assert common() in (complete, number)
    assert died >= 5
    assert common() == number


@pytest.mark.usefixtures("no_power_cut")
def test_a_restore_that_is_killed_anywhere_can_be_repeated(place: Path, source: Path) -> None:
    fill(source, 1)
    store(place, source)
    before = tree(source)
    died = 0
    for count in MOMENTS:
        fill(source, 2)
        if not die_at(count, lambda: restored(place, source)):
            break
        died += 1
        assert restored(place, source) == 1
        assert tree(source) == before
        assert [path.name for path in source.parent.iterdir()] == ["model"]
    assert died >= 3
