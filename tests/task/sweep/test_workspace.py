"""Copies of a workspace for trials: each its own, and one tree of input for all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dlapp.task.sweep.workspace import WorkspaceTemplate, shared_paths


@pytest.fixture
def template(tmp_path: Path) -> Path:
    place = tmp_path / "workspace"
    (place / "data" / "inner").mkdir(parents=True)
    (place / "data" / "inner" / "x").write_text("input")
    (place / "run.sh").write_text("#!/bin/sh\n")
    (place / "run.sh").chmod(0o755)
    (place / "empty").mkdir()
    (place / "link").symlink_to("run.sh")
    (place / "away").symlink_to("/etc/hostname")
    return place


def ignore(_: int) -> None:
    pass


def test_a_copy_has_all_files_and_is_independent(template: Path, tmp_path: Path) -> None:
    one = WorkspaceTemplate(str(template), [], mounts=False)
    for name in ("a", "b"):
        one.copy_to(str(tmp_path / name), ignore)
    a, b = tmp_path / "a", tmp_path / "b"
    assert os.access(a / "run.sh", os.X_OK)
    assert (a / "empty").is_dir()
    assert (os.readlink(a / "link"), os.readlink(a / "away")) == ("run.sh", "/etc/hostname")
    (a / "run.sh").write_text("changed")
    (a / "data" / "inner" / "x").write_text("changed")
    assert (b / "run.sh").read_text() == (template / "run.sh").read_text() == "#!/bin/sh\n"
    assert (b / "data" / "inner" / "x").read_text() == "input"
    assert (a / "run.sh").stat().st_ino != (template / "run.sh").stat().st_ino


def test_a_process_finds_input_by_a_link_and_may_not_write_it(template: Path, tmp_path: Path) -> None:
    one = WorkspaceTemplate(str(template), ["data"], mounts=False)
    one.copy_to(str(tmp_path / "a"), ignore)
    assert (tmp_path / "a" / "data").readlink() == template / "data"
    assert (tmp_path / "a" / "data" / "inner" / "x").read_text() == "input"
    modes = [path.stat().st_mode & 0o222 for path in (template / "data", *(template / "data").rglob("*"))]
    assert modes == [0, 0, 0]
    assert one.mounts_of(str(tmp_path / "a")) == ()


def test_a_docker_container_has_an_empty_directory_where_input_is_mounted(template: Path, tmp_path: Path) -> None:
    one = WorkspaceTemplate(str(template), ["data"], mounts=True)
    one.copy_to(str(tmp_path / "a"), ignore)
    assert list((tmp_path / "a" / "data").iterdir()) == []
    assert one.mounts_of("/a") == ((str(template / "data"), "/a/data"),)


@pytest.mark.parametrize(
    ("inputs", "written", "shared"),
    [
        (["data"], ["output"], ["data"]),
        (["data", "data/more", "data2"], [], ["data", "data2"]),
        (["."], ["output"], []),
        (["data"], ["data/output"], []),
        (["src"], ["src/start.sh"], []),
        (["./a//b/"], [], ["a/b"]),
    ],
)
def test_input_is_shared_unless_a_trial_may_write_there(
    inputs: list[str], written: list[str], shared: list[str]
) -> None:
    assert shared_paths(inputs, written) == shared
