"""Changes of a workspace by its script, as they are reported."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dlapp.task.data import workspace_changes
from dlapp.task.data.workspace_changes import WorkspaceChanges


@pytest.mark.parametrize("replaced", ["home/workspace", "home"])
def test_a_link_in_place_of_the_workspace_is_not_followed(tmp_path: Path, replaced: str) -> None:
    workspace, scratch = tmp_path / "home" / "workspace", tmp_path / "scratch"
    workspace.mkdir(parents=True)
    scratch.mkdir()
    changes = WorkspaceChanges(str(workspace), str(scratch))
    changes.begin()
    precious = tmp_path / "precious"
    for name in ("empty", "workspace/empty", "__pycache__", "workspace/__pycache__"):
        (precious / name).mkdir(parents=True)
    (precious / "__pycache__" / "x").touch()
    (precious / "workspace" / "__pycache__" / "x").touch()
    before = sorted(precious.rglob("*"))
    (tmp_path / replaced).rename(tmp_path / "away")
    (tmp_path / replaced).symlink_to(precious)
    assert changes.keep_only([]) == []
    assert sorted(precious.rglob("*")) == before


class Workspace:
    """A workspace with a file from before the payload, and what is found new in it."""

    def __init__(self, tmp_path: Path) -> None:
        self.path, scratch = tmp_path / "workspace", tmp_path / "scratch"
        scratch.mkdir()
        self.path.mkdir()
        self.changes = WorkspaceChanges(str(self.path), str(scratch))
        self.write("shipped/data", 5)
        self.changes.begin()

    def write(self, name: str, size_bytes: int = 1) -> Path:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(size_bytes))
        return path

    def new_files(self, *stored: str, most: int = 8) -> tuple[tuple[tuple[str, int], ...], int, bool]:
        return self.changes.new_files(stored, most)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path)


def test_new_and_changed_files_are_found_by_size_and_the_others_are_counted(workspace: Workspace) -> None:
    for name, size_bytes in {"a": 1, "big": 300, "deep/er/b": 200, "shipped/data": 7, "empty": 0}.items():
        workspace.write(name, size_bytes)
    assert workspace.new_files(most=3) == ((("big", 300), ("deep/er/b", 200), ("shipped/data", 7)), 2, True)


def test_unchanged_stored_and_cached_files_are_no_changes(workspace: Workspace) -> None:
    for name in ("output/x", "in/mounted/y", "src/__pycache__/m.pyc", ".cache/blob", "a/.ipynb_checkpoints/n", "z"):
        workspace.write(name)
    (workspace.path / "link").symlink_to("z")
    os.mkfifo(workspace.path / "pipe")
    (workspace.path / "away").symlink_to("/usr")
    assert workspace.new_files("output", "./in/mounted/", "z") == ((), 0, True)


def test_a_file_is_found_once_if_all_its_hard_links_are_lost_and_not_if_one_is_stored(workspace: Workspace) -> None:
    lost, same, far = workspace.write("lost", 3), workspace.write("kept", 4), workspace.write("far", 5)
    (workspace.path / "output").mkdir()
    os.link(lost, workspace.path / "lost too")
    os.link(same, workspace.path / "output" / "kept")
    os.link(far, workspace.path.parent / "far")
    ((names, _),), more, is_complete = workspace.new_files("output")
    assert (names in ("lost", "lost too"), more, is_complete) == (True, 0, True)


@pytest.mark.parametrize("limit", ["_MAX_ENTRIES", "_SEARCH_S", "_MAX_DEPTH"])
def test_a_search_at_its_limits_reports_that_there_may_be_more(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    for number in range(20):
        workspace.write(f"file{number}")
        workspace.write("/".join("d" * number + "x"), 2)
    monkeypatch.setattr(workspace_changes, limit, {"_MAX_ENTRIES": 15, "_SEARCH_S": -1.0, "_MAX_DEPTH": 3}[limit])
    largest, more, is_complete = workspace.new_files()
    assert not is_complete
    assert len(largest) + more < 40


def test_a_workspace_that_a_link_replaced_has_no_new_files(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "secret").touch()
    workspace.path.rename(tmp_path / "away")
    workspace.path.symlink_to(tmp_path / "precious")
    assert workspace.new_files() == ((), 0, True)
