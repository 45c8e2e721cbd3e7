"""Live copies of an output: whole files, of what is new or has changed, where only the user can write."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dlapp.errors import DlappError
from dlapp.ids import ApplicationId
from dlapp.storage.live import LiveCopies, remove_live
from dlapp.storage.local import LocalFiles
from dlapp.system.files import UntrustedFile

APPLICATION = ApplicationId(1700000000000, 1)


def contents(top: Path) -> dict[str, str]:
    return {str(one.relative_to(top)): one.read_text() for one in sorted(top.rglob("*")) if one.is_file()}


def test_what_is_new_or_has_changed_is_copied_and_nothing_else(tmp_path: Path) -> None:
    (output := tmp_path / "output").mkdir()
    (output / "deep").mkdir()
    (output / "deep/a").write_text("1")
    (output / "b").write_text("2")
    os.symlink("b", output / "link")
    os.symlink("/etc/passwd", output / "out")
    os.mkfifo(output / "fifo")
    said: list[str] = []
    copies = LiveCopies(LocalFiles(), f"file://{tmp_path}/target", f"{APPLICATION}/0", said.append)
    assert copies.copy(str(output), lambda: False) == 2
    live = tmp_path / "target.live" / str(APPLICATION) / "0"
    assert contents(live) == {"b": "2", "deep/a": "1"}
    assert {one.stat().st_mode & 0o777 for one in (tmp_path / "target.live", live, live / "deep")} == {0o700}
    assert copies.copy(str(output), lambda: False) == 0
    number = (live / "deep/a").stat().st_ino
    (output / "deep/a").write_text("longer")
    (output / "b").unlink()
    assert copies.copy(str(output), lambda: False) == 1
    assert contents(live) == {"b": "2", "deep/a": "longer"}
    assert (live / "deep/a").stat().st_ino != number, "it was changed in place, so a reader could find a part of it"
    assert len(said) == 2, said
    remove_live(LocalFiles(), f"file://{tmp_path}/target", APPLICATION)
    assert not (tmp_path / "target.live").exists()


def test_those_of_another_application_stay(tmp_path: Path) -> None:
    (tmp_path / "target.live/other").mkdir(parents=True)
    remove_live(LocalFiles(), f"file://{tmp_path}/target", APPLICATION)
    assert (tmp_path / "target.live/other").exists()


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
