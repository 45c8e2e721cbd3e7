"""Tests of the git commit that a submission records."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from dlapp.launcher.workspace.revision import RevisionQuery, revision_text

OID = "34064be349d4a03ed158aba170d8d2db6ff9e3e0"


def git(directory: Path, *words: str) -> str:
    names = {f"GIT_{role}_{what}": "tony" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    command = ["git", "-C", str(directory), *words]
    return subprocess.run(
        command, check=True, capture_output=True, text=True, env={**os.environ, **names}
    ).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    top = tmp_path / "repository"
    (top / "models").mkdir(parents=True)
    git(tmp_path, "init", "-q", "-b", "main", str(top))
    for name in ("models/train.py", "models/data.py", "README"):
        (top / name).write_text(name)
    git(top, "add", ".")
    git(top, "commit", "-q", "-m", "first")
    return top


def revision(workspace: Path, **environ: str) -> str:
    return RevisionQuery(str(workspace), {**os.environ, **environ}).text()


def test_a_clean_workspace_has_its_commit_and_branch(repository: Path) -> None:
    assert revision(repository / "models") == f"{git(repository, 'rev-parse', 'HEAD')[:12]} (main)"


def test_changed_removed_and_new_files_of_the_workspace_count_and_those_beside_it_do_not(repository: Path) -> None:
    (repository / "models" / "train.py").write_text("changed")
    (repository / "models" / "data.py").unlink()
    (repository / "models" / "new.py").write_text("new")
    (repository / "README").write_text("changed")
    assert revision(repository / "models").endswith(" (main), 3 files changed")
    assert revision(repository).endswith(" (main), 4 files changed")


def test_a_detached_head_and_an_empty_repository_are_named(repository: Path, tmp_path: Path) -> None:
    git(repository, "checkout", "-q", "--detach")
    assert revision(repository).endswith(" (detached)")
    fresh = tmp_path / "fresh"
    git(tmp_path, "init", "-q", "-b", "trunk", str(fresh))
    (fresh / "train.py").write_text("x")
    assert revision(fresh) == "no commit yet (trunk), 1 file changed"


def test_a_worktree_and_a_linked_workspace_have_the_commit_of_their_repository(
    repository: Path, tmp_path: Path
) -> None:
    git(repository, "worktree", "add", "-q", "-b", "side", str(tmp_path / "side"))
    assert revision(tmp_path / "side").endswith(" (side)")
    (tmp_path / "link").symlink_to(repository / "models")
    assert revision(tmp_path / "link").endswith(" (main)")


def test_a_workspace_in_no_repository_starts_no_git_and_a_broken_one_has_its_reason(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    assert revision(workspace, PATH="/nowhere") == ""
    (workspace / ".git").write_text("gitdir: /nowhere/at/all\n")
    assert revision(workspace).startswith("unknown: fatal: not a git repository")


def test_another_repository_in_the_environment_is_ignored(repository: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    git(tmp_path, "init", "-q", "-b", "other", str(other))
    assert revision(repository, GIT_DIR=str(other / ".git")).endswith(" (main)")


def test_git_changes_no_file_of_the_repository_and_runs_no_program_of_it(repository: Path, tmp_path: Path) -> None:
    program = tmp_path / "monitor"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    program.chmod(0o755)
    git(repository, "config", "core.fsmonitor", str(program))
    index = (repository / ".git" / "index").stat()
    (repository / "README").touch()
    assert revision(repository).endswith(" (main)")
    assert not (tmp_path / "ran").exists()
    assert (repository / ".git" / "index").stat().st_mtime_ns == index.st_mtime_ns


def test_without_git_the_commit_is_left_out(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert revision(repository) == ""


def test_the_text_counts_renames_and_conflicts_as_one_file_each() -> None:
    lines = [f"# branch.oid {OID}", "# branch.head main", "# branch.upstream origin/main", "# branch.ab +1 -0"]
    lines += ["2 R. N... 100644 100644 100644 a b R100 new\told", "u UU N... 1 2 3 4 a b c both", "? new file"]
    assert revision_text("\n".join(lines)) == "34064be349d4 (main), 3 files changed"
    assert revision_text("") == ""


def test_names_with_odd_line_ends_are_one_file_each() -> None:
    lines = [f"# branch.oid {OID}", "# branch.head main", "? x\u2028# branch.x", "? y\x85z"]
    assert revision_text("\n".join(lines) + "\n") == "34064be349d4 (main), 2 files changed"


def test_a_repository_of_another_user_is_not_read(repository: Path) -> None:
    os.chown(repository / ".git", 12_345, -1)
    assert revision(repository) == ""
