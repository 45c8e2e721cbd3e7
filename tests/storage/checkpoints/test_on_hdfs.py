from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlapp.errors import Unreachable
from dlapp.locations import HdfsPlace
from dlapp.login import Login
from dlapp.storage.checkpoints.copies import Checkpoints
from dlapp.storage.checkpoints.snapshot import CheckpointChanged
from dlapp.storage.checkpoints.store import _HdfsStore, open_store
from dlapp.storage.hdfs.file_system import HdfsFiles, open_hdfs
from dlapp.storage.hdfs.webhdfs import WebHdfs
from dlapp.system.files import UntrustedFile
from tests.storage.mortal import CHANGES, Killed, mortal

pytestmark = pytest.mark.hadoop


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    return tmp_path / "model"


@contextlib.contextmanager
def checkpoints(base: str, place: HdfsPlace, keep: int = 2) -> Iterator[Checkpoints]:
    with open_store(f"{base}/run 1.checkpoints", place) as opened:
        yield Checkpoints(opened, keep, lambda line: None)


def fill(source: Path, epoch: int) -> None:
    (source / "deep").mkdir(exist_ok=True)
    (source / "deep" / "weights").write_text(f"weights of {epoch}" * 1000)
    (source / "vocabulary").write_text("the words")
    (source / "log").write_text(f"{epoch}" if epoch > 1 else "")
    if not (source / "latest").is_symlink():
        (source / "latest").symlink_to("deep/weights")


def tree(path: Path) -> dict[str, tuple[int, int, str]]:
    return {
        str(item.relative_to(path)): (
            item.lstat().st_mode,
            item.lstat().st_mtime_ns,
            item.read_text() if item.is_file() else "",
        )
        for item in sorted(path.rglob("*"))
    }


def test_a_checkpoint_on_hdfs_is_restored_unchanged(base: str, place: HdfsPlace, source: Path, tmp_path: Path) -> None:
    into = tmp_path / "again"
    with checkpoints(base, place) as opened:
        assert opened.restore(str(into)) is None
        for epoch in (1, 2, 3):
            fill(source, epoch)
            stored = opened.store(str(source))
            assert (stored.number, stored.files) == (epoch, 3)
            # The words are stored once.
            assert stored.new_bytes == stored.size_bytes - (len("the words") if epoch > 1 else 0)
        assert opened.numbers() == [2, 3]
    with checkpoints(base, place) as opened:
        assert opened.restore(str(into)) == 3
    assert tree(into) == tree(source)


def test_a_change_while_it_is_sent_to_hdfs_discards_the_copy(
    base: str, place: HdfsPlace, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(source, 1)
    with checkpoints(base, place) as opened:
        opened.store(str(source))
        before = tree(source)
        fill(source, 2)
        kind = type(open_hdfs(place))
        write = kind.write

        def change(self: WebHdfs, path: str, *arguments: object, **options: object) -> None:
            write(self, path, *arguments, **options)  # type: ignore[arg-type]
            with open(source / "deep" / "weights", "r+b") as file:
                file.write(b"W")

        monkeypatch.setattr(kind, "write", change)
        with pytest.raises(CheckpointChanged):
            opened.store(str(source))
        monkeypatch.undo()
        assert opened.restore(str(tmp_path / "again")) == 1
        assert tree(tmp_path / "again") == before


def test_a_directory_of_another_user_is_refused(base: str, place: HdfsPlace, source: Path) -> None:
    fill(source, 1)
    with checkpoints(base, place) as opened:
        opened.store(str(source))
    files = HdfsFiles(place)
    files.web.set_mode(files.place.path(f"{base}/run 1.checkpoints"), 0o777)
    with checkpoints(base, place) as opened, pytest.raises(UntrustedFile, match="others may write there"):
        opened.restore(str(source))
    files.web.set_mode(files.place.path(base), 0o777)
    stranger = HdfsPlace(place.location, place.web, Login("stranger"))
    with (
        open_store(f"{base}/run 1.checkpoints", stranger) as foreign_store,
        pytest.raises(UntrustedFile, match="belongs to"),
    ):
        Checkpoints(foreign_store, 2, print).store(str(source))


def test_an_unreachable_hdfs_is_not_an_incomplete_checkpoint(source: Path) -> None:
    away = HdfsPlace("hdfs://127.0.0.1:1", ("http://127.0.0.1:1",), Login("ann"))
    web = WebHdfs(away, patience_s=0.1)
    with _HdfsStore(HdfsFiles(away, web), "/checkpoints") as opened, pytest.raises(Unreachable):
        Checkpoints(opened, 2, print).restore(str(source))


@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
def test_a_copy_to_hdfs_killed_at_any_point_keeps_the_previous_one(
    base: str, place: HdfsPlace, files: HdfsFiles, source: Path, tmp_path: Path, done: bool
) -> None:
    trees = {}
    for epoch in (1, 2):
        fill(source, epoch)
        with checkpoints(base, place) as opened:
            opened.store(str(source))
        trees[epoch] = tree(source)
    last, died = 2, 0
    for count in range(100):
        fill(source, 100 + count)
        trees[last + 1] = tree(source)
        web = mortal(place, count, done=done, changes=(*CHANGES, "clear"))
        with _HdfsStore(HdfsFiles(place, web), place.path(f"{base}/run 1.checkpoints")) as dying:
            try:
                Checkpoints(dying, 2, lambda line: None).store(str(source))
            except Killed:
                died += 1
            else:
                break
        into = tmp_path / f"at {count}"
        with checkpoints(base, place) as opened:
            number = opened.restore(str(into))
            assert number in (last, last + 1)
            assert tree(into) == trees[number]
            last = number
        # What is left of it does not grow: at most one more checkpoint, and the files that were on their way.
        assert len(files.names(f"{base}/run 1.checkpoints/objects")) <= 11
    assert died >= 8
    fill(source, 300)
    with checkpoints(base, place) as opened:
        opened.store(str(source))
        assert len(opened.numbers()) == 2
    # The weights and the log of each, and the words.
    assert len(files.names(f"{base}/run 1.checkpoints/objects")) == 5
