"""Input in the user's own workspace: whole or not there, kept once it is, and known to be ours."""

from __future__ import annotations

import json
import os
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path

import pathspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlapp.errors import DlappError, NotFound
from dlapp.task.data.input_record import as_pattern, record_paths, recorded_paths
from dlapp.task.data.live_input import STAGING
from dlapp.values.spec import AppSpec, InputSpec
from tests import live_input


def inputs(*sources: Path | str, into: str = "data") -> tuple[InputSpec, ...]:
    return (InputSpec(sources=tuple(f"file://{source}" for source in sources), input_path=into),)


Bring = Callable[[Sequence[InputSpec], str, Callable[[str], None]], list[str]]


@pytest.fixture(params=["same file system", "another file system"])
def fetch_into_workspace(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bring]:
    """Bring input by way of a private directory on this file system or on another."""
    parent = str(tmp_path.parent) if request.param == "same file system" else "/dev/shm"
    if not os.path.isdir(parent):
        pytest.skip("/dev/shm is no other file system here")
    with tempfile.TemporaryDirectory(dir=parent) as private:
        yield lambda inputs, workspace, note: live_input.fetch_into_workspace(inputs, workspace, private, note)
        assert os.listdir(private) == []


def test_fetched_input_is_named_the_first_time_only(tmp_path: Path, fetch_into_workspace: Bring) -> None:
    source, workspace = tmp_path / "source", tmp_path / "workspace"
    (source / "a").mkdir(parents=True)
    (source / "b").write_text("b")
    workspace.mkdir()
    notes: list[str] = []
    assert fetch_into_workspace(inputs(f"{source}/*"), str(workspace), notes.append) == ["data/a", "data/b"]
    assert fetch_into_workspace(inputs(f"{source}/*"), str(workspace), notes.append) == []
    assert notes == ["data/a already exists: kept as it is", "data/b already exists: kept as it is"]
    assert fetch_into_workspace(inputs(f"{source}/b", into="."), str(workspace), notes.append) == ["b"]


def test_a_source_that_is_not_there_is_not_found_and_two_of_one_name_are_refused(
    tmp_path: Path, fetch_into_workspace: Bring
) -> None:
    for name in ("x", "y"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "same").write_text(name)
    with pytest.raises(NotFound):
        fetch_into_workspace(inputs(tmp_path / "nowhere"), str(tmp_path), print)
    with pytest.raises(DlappError, match=r"would both be placed at .*/data/same"):
        fetch_into_workspace(inputs(tmp_path / "x/same", tmp_path / "y/same"), str(tmp_path), print)
    assert not (tmp_path / "data").exists()


def test_archives_and_lists_are_fetched_like_in_a_run_and_kept_the_second_time(
    tmp_path: Path, fetch_into_workspace: Bring
) -> None:
    (tmp_path / "workspace").mkdir()
    (tmp_path / "x").write_text("x")
    with tarfile.open(tmp_path / "set.tar", "w") as tar:
        tar.add(tmp_path / "x", "deep/x")
    sections = (
        InputSpec(sources=(f"file://{tmp_path}/set.tar",), input_path="data", unpack=True),
        InputSpec(name="list", sources=(f"file://{tmp_path}/x",), input_path="lists/train", as_list=True),
    )
    workspace, notes = str(tmp_path / "workspace"), list[str]()
    assert fetch_into_workspace(sections, workspace, notes.append) == ["data/deep", "lists/train"]
    assert (tmp_path / "workspace/data/deep/x").read_text() == "x"
    assert (tmp_path / "workspace/lists/train").read_text() == f"{tmp_path}/x\n"
    assert fetch_into_workspace(sections, workspace, notes.append) == []
    assert notes == ["data already exists: kept as it is", "lists/train already exists: kept as it is"]
    assert not list((tmp_path / "workspace").rglob(f"{STAGING}*"))


@pytest.mark.parametrize("before", ["read", "looked at again"])
def test_archives_in_a_vanishing_directory_are_fetched_or_refused_in_one_line(
    tmp_path: Path, fetch_into_workspace: Bring, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    data = tmp_path / "workspace" / "data"
    data.mkdir(parents=True)
    (tmp_path / "x").write_text("x")
    with tarfile.open(tmp_path / "set.tar", "w") as tar:
        tar.add(tmp_path / "x", "x")
    section = InputSpec(sources=(f"file://{tmp_path}/set.tar",), input_path="data", unpack=True)
    listdir = os.listdir

    def removed_first(path: str | int) -> list[str]:
        if (path == str(data)) if before == "read" else isinstance(path, int):
            data.rmdir()
        return listdir(path)

    monkeypatch.setattr(os, "listdir", removed_first)
    if before == "read":
        assert fetch_into_workspace([section], str(tmp_path / "workspace"), print) == ["data/x"]
    else:
        with pytest.raises(NotFound, match=r"cannot be (read|made|written): No such file or directory"):
            fetch_into_workspace([section], str(tmp_path / "workspace"), print)


def test_partial_input_of_a_killed_session_is_removed_and_of_a_running_one_kept(
    tmp_path: Path, fetch_into_workspace: Bring
) -> None:
    import fcntl

    dead, living = (tmp_path / "data" / f"{STAGING}{name}" for name in ("dead", "living"))
    for directory in (dead, living):
        directory.mkdir(parents=True)
        (directory / "half").write_text("")
    (tmp_path / "source").write_text("1")
    held = os.open(living, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        fetch_into_workspace(inputs(tmp_path / "source"), str(tmp_path), print)
        assert living.exists()
        assert not dead.exists()
    finally:
        os.close(held)


def test_only_input_that_is_still_in_place_is_remembered(tmp_path: Path) -> None:
    workspace, records = tmp_path / "workspace", tmp_path / "records"
    (workspace / "data").mkdir(parents=True)
    records.mkdir()
    for name in ("data/here", "elsewhere"):
        (workspace / name).write_text("")
    record_paths(str(records), str(workspace), ["data/here", "data/gone"])
    record_paths(str(records), str(workspace), ["elsewhere"])
    spec = AppSpec(username="u", appname="a", workspace=str(workspace), script="s", inputs=inputs("/x"))
    assert recorded_paths(str(records), spec) == ["data/here"]
    (next(records.iterdir())).write_text("no json")
    assert recorded_paths(str(records), spec) == []


def test_a_tree_on_another_file_system_keeps_its_links_permissions_and_times(
    tmp_path: Path, fetch_into_workspace: Bring
) -> None:
    tree, landed = tmp_path / "tree", tmp_path / "data" / "tree"
    (tree / "a").mkdir(parents=True)
    (tree / "a" / "file").write_text("1")
    (tree / "link").symlink_to("a/file")
    (tree / "a" / "file").chmod(0o640)
    (tree / "a").chmod(0o750)
    os.utime(tree / "a" / "file", (1, 1))
    os.utime(tree / "a", (2, 2))
    assert fetch_into_workspace(inputs(tree), str(tmp_path), print) == ["data/tree"]
    assert os.readlink(landed / "link") == "a/file"
    found = [(item.st_mode & 0o777, item.st_mtime) for item in ((landed / "a").stat(), (landed / "link").stat())]
    assert found == [(0o750, 2), (0o640, 1)]


def test_a_link_within_the_workspace_is_on_the_way_as_before(tmp_path: Path, fetch_into_workspace: Bring) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "data").symlink_to("real")
    (tmp_path / "source").write_text("1")
    assert fetch_into_workspace(inputs(tmp_path / "source"), str(tmp_path), print) == ["data/source"]
    assert (tmp_path / "real" / "source").read_text() == "1"


@given(st.text(st.characters(exclude_characters="/\n\r\0", exclude_categories=["Cs"]), min_size=1, max_size=8))
def test_a_pattern_matches_its_own_path_and_no_other(name: str) -> None:
    if name in (".", ".."):
        return
    spec = pathspec.GitIgnoreSpec.from_lines([as_pattern(name)])
    assert spec.match_file(name)
    assert not spec.match_file(f"below/{name}")
    assert not spec.match_file(f"{name}x")


def test_two_shells_of_one_workspace_lose_no_record(tmp_path: Path) -> None:
    """Add ten paths by each of four threads, one at a time: all forty are recorded."""
    names = [[f"data/{thread}-{number}" for number in range(10)] for thread in range(4)]

    def add(paths: list[str]) -> None:
        for path in paths:
            record_paths(str(tmp_path), "/workspace", [path])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, names))
    (record,) = tmp_path.iterdir()
    assert json.loads(record.read_text())["brought"] == sorted(chain(*names))
