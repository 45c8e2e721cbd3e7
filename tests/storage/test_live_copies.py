"""Live copies of an output: whole files, of what is new or has changed, where only the user can write."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dlapp.errors import DlappError
from dlapp.locations import HdfsPlace
from dlapp.login import Login
from dlapp.storage.hdfs.file_system import HdfsFiles
from dlapp.storage.hdfs.webhdfs import INODES, FileStatus, WebHdfs
from dlapp.storage.live_copies import LiveCopies, live_name, remove_live
from dlapp.storage.local import LocalFiles
from dlapp.system.files import UntrustedFile
from dlapp.values.ids import ApplicationId

APPLICATION = ApplicationId(1700000000000, 1)


def contents(top: Path) -> dict[str, str]:
    return {str(path.relative_to(top)): path.read_text() for path in sorted(top.rglob("*")) if path.is_file()}


def test_only_new_and_changed_files_are_copied(tmp_path: Path) -> None:
    (output := tmp_path / "output").mkdir()
    (output / "deep").mkdir()
    (output / "deep/a").write_text("1")
    (output / "b").write_text("2")
    os.symlink("b", output / "link")
    os.symlink("/etc/passwd", output / "out")
    os.mkfifo(output / "fifo")
    messages: list[str] = []
    copies = LiveCopies(LocalFiles(), f"file://{tmp_path}/target", f"{live_name(APPLICATION)}/0", messages.append)
    assert copies.copy(str(output), lambda: False) == 2
    live = tmp_path / "target.live" / f"{APPLICATION}.live" / "0"
    assert contents(live) == {"b": "2", "deep/a": "1"}
    assert {item.stat().st_mode & 0o777 for item in (tmp_path / "target.live", live, live / "deep")} == {0o700}
    assert copies.copy(str(output), lambda: False) == 0
    number = (live / "deep/a").stat().st_ino
    (output / "deep/a").write_text("longer")
    (output / "b").unlink()
    assert copies.copy(str(output), lambda: False) == 1
    assert contents(live) == {"b": "2", "deep/a": "longer"}
    assert (live / "deep/a").stat().st_ino != number, "it was changed in place, so a reader could find a part of it"
    assert len(messages) == 2, messages
    remove_live(LocalFiles(), f"file://{tmp_path}/target", APPLICATION)
    assert not (tmp_path / "target.live").exists()


def test_live_copies_of_another_application_stay(tmp_path: Path) -> None:
    (tmp_path / "target.live").mkdir(0o700)
    (tmp_path / "target.live/other").mkdir()
    remove_live(LocalFiles(), f"file://{tmp_path}/target", APPLICATION)
    assert (tmp_path / "target.live/other").exists()


@pytest.mark.proves("live-copies")
@pytest.mark.parametrize("name", [str(APPLICATION), live_name(APPLICATION)])
def test_the_target_of_a_link_beside_the_output_is_not_removed(tmp_path: Path, name: str) -> None:
    (kept_dir := tmp_path / "own" / name).mkdir(parents=True, mode=0o700)
    (kept_dir / "checkpoint-1.json").touch()
    (tmp_path / "target.live").symlink_to(tmp_path / "own")
    with pytest.raises(UntrustedFile):
        remove_live(LocalFiles(), f"file://{tmp_path}/target", APPLICATION)
    assert (kept_dir / "checkpoint-1.json").exists()


class FakeWeb(WebHdfs):
    """A NameNode's view of ``/t.live``, and what is removed there."""

    def __init__(self, place: HdfsPlace, live: FileStatus) -> None:
        super().__init__(place)
        self._live, self.removed = live, list[str]()

    def status(self, path: str) -> FileStatus | None:
        return self._live if path == "/t.live" else None

    def has_inode_paths(self) -> bool:
        return True

    def clear(self, path: str, *, file: bool = False) -> None:
        self.removed.append(path)

    delete = clear

    def delete_if_empty(self, path: str) -> bool:
        self.removed.append(path)
        return True


@pytest.mark.proves("live-copies")
@pytest.mark.parametrize(("owner", "mode"), [("ann", 0o700), ("bob", 0o755), ("ann", 0o777)])
def test_on_hdfs_copies_are_removed_in_a_directory_of_ones_own_by_its_number(owner: str, mode: int) -> None:
    place = HdfsPlace("hdfs://nn", ("http://nn:1",), Login("ann"))
    web = FakeWeb(place, FileStatus("", True, 0, 7, mode, 0, owner))
    if (owner, mode) == ("ann", 0o700):
        remove_live(HdfsFiles(place, web), "hdfs://nn/t", APPLICATION)
        assert web.removed == [f"{INODES}/7/{APPLICATION}.live", f"{INODES}/7"]
        return
    with pytest.raises(UntrustedFile):
        remove_live(HdfsFiles(place, web), "hdfs://nn/t", APPLICATION)
    assert not web.removed


def test_files_in_a_directory_that_others_may_write_are_not_removed(tmp_path: Path) -> None:
    (kept_dir := tmp_path / "target.live" / live_name(APPLICATION)).mkdir(parents=True)
    (tmp_path / "target.live").chmod(0o777)
    with pytest.raises(UntrustedFile):
        remove_live(LocalFiles(), f"file://{tmp_path}/target", APPLICATION)
    assert kept_dir.exists()


@pytest.mark.proves("live-copies")
def test_checkpoints_renamed_to_the_live_copies_are_not_removed(tmp_path: Path) -> None:
    (place := tmp_path / "checkpoints").mkdir(0o700)
    (place / str(APPLICATION)).mkdir(0o700)
    place.rename(tmp_path / "target.live")  # others may do that where the directory above is not sticky
    remove_live(LocalFiles(), f"file://{tmp_path}/target", APPLICATION)
    assert (tmp_path / "target.live" / str(APPLICATION)).exists()


def test_a_directory_that_others_may_write_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "target.live").mkdir()
    (tmp_path / "target.live").chmod(0o777)
    (output := tmp_path / "output").mkdir()
    (output / "a").write_text("1")
    copies = LiveCopies(LocalFiles(), f"file://{tmp_path}/target", str(APPLICATION), lambda _: None)
    with pytest.raises(UntrustedFile):
        copies.copy(str(output), lambda: False)
    assert not list((tmp_path / "target.live").iterdir())


def test_an_output_that_is_a_link_out_of_the_workspace_is_not_copied(tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "output").symlink_to("secret")
    copies = LiveCopies(LocalFiles(), f"file://{tmp_path}/target", str(APPLICATION), lambda _: None)
    with pytest.raises(DlappError, match="leads to"):
        copies.copy(str(tmp_path / "output"), lambda: False)
