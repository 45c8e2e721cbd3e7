"""Test what is told of a workspace after its script."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlapp.task.data.workspace_changes import WorkspaceChanges


@pytest.mark.parametrize("replaced", ["home/workspace", "home"])
def test_nothing_is_removed_where_a_link_in_the_place_of_the_workspace_leads(tmp_path: Path, replaced: str) -> None:
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
