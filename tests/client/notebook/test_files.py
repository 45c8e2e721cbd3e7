"""Files of a notebook come back into the workspace, and replace nothing that the user changed meanwhile."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dlapp.client.notebook.files import STAGING, fetch_files, list_workspace, remove_leftovers
from dlapp.errors import DlappError


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    place = tmp_path / "workspace"
    (place / "notes").mkdir(parents=True)
    (place / "notes" / "a.ipynb").write_text("packed")
    (place / "b.py").write_text("packed")
    return place


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    place = tmp_path / "saved [1]"
    (place / "notes" / "new").mkdir(parents=True)
    return place


def test_new_and_changed_files_come_back(workspace: Path, saved: Path) -> None:
    packed = list_workspace(str(workspace))
    (saved / "notes" / "a.ipynb").write_text("of the notebook")
    (saved / "notes" / "new" / "c").write_text("new")
    back = fetch_files(f"file://{saved}", str(workspace), packed, None)
    assert back == (("notes/a.ipynb", "notes/new/c"), (), ())
    assert (workspace / "notes" / "a.ipynb").read_text() == "of the notebook"
    assert (workspace / "notes" / "new" / "c").read_text() == "new"
    assert (workspace / "b.py").read_text() == "packed"
    assert sorted(path.name for path in workspace.iterdir()) == ["b.py", "notes"]


@pytest.mark.proves("notebook-files")
def test_concurrent_changes_of_the_user_are_kept(workspace: Path, saved: Path) -> None:
    packed = list_workspace(str(workspace))
    for name in ("b.py", "c.py", "notes/a.ipynb"):
        (saved / name).write_text("of the notebook")
    (workspace / "b.py").write_text("of the user")
    (workspace / "c.py").write_text("of the user")
    (workspace / "notes" / "a.ipynb").unlink()
    back = fetch_files(f"file://{saved}", str(workspace), packed, None)
    assert back == ((), ("b.py", "c.py", "notes/a.ipynb"), ())
    assert (workspace / "b.py").read_text() == (workspace / "c.py").read_text() == "of the user"
    assert not (workspace / "notes" / "a.ipynb").exists()


@pytest.mark.proves("notebook-files")
def test_files_that_local_programs_execute_are_not_placed(workspace: Path, saved: Path, tmp_path: Path) -> None:
    (tmp_path / "linked").symlink_to(workspace)
    for name in ("dl_app.properties", "secret.env", "conf.yaml"):
        (workspace / name).write_text("packed")
    packed = list_workspace(str(workspace))
    names = (
        ".git/hooks/post-checkout",
        ".venv/lib/python3.11/site-packages/x.pth",
        "conf.yaml",
        "dl_app.properties",
        "notes/.git",
        "notes/.gitignore",
        "notes/__pycache__/a.cpython-311.pyc",
        "notes/new/node_modules/.bin/tsc",
        "secret.env",
        "state/queue",
    )
    for name in (*names, "state.py"):
        (saved / name).parent.mkdir(parents=True, exist_ok=True)
        (saved / name).write_text("of the notebook")
    trusted = [
        *(str(workspace / name) for name in ("dl_app.properties", "state")),
        *(str(tmp_path / "linked" / name) for name in ("secret.env", "conf.yaml")),
        str(tmp_path),
    ]
    back = fetch_files(f"file://{saved}", str(workspace), packed, None, trusted)
    assert (back.placed, back.kept) == (("state.py",), ())
    assert sorted(back.left_out) == list(names)
    for name in names:
        path = workspace / name
        assert not path.exists() or path.read_text() == "packed"


@pytest.mark.proves("notebook-files")
@pytest.mark.parametrize(
    "name",
    [
        *("venv/lib/python3.11/site-packages/a.pth", "env/pyvenv.cfg", "sitecustomize.py", "notes/usercustomize.py"),
        *(".envrc", ".vscode/tasks.json", ".pre-commit-config.yaml", ".hg/hgrc", ".gitattributes", "notes/.npmrc"),
        *("Makefile", "notes/conftest.py", "setup.py", "package.json", "compose.prod.yaml", "x.desktop"),
        *("random.py", "notes/json/__init__.py", "notes/types.so"),
    ],
)
def test_a_file_that_programs_obey_by_its_name_is_not_placed(workspace: Path, saved: Path, name: str) -> None:
    packed = list_workspace(str(workspace))
    (saved / name).parent.mkdir(parents=True, exist_ok=True)
    (saved / name).write_text("of the notebook")
    assert fetch_files(f"file://{saved}", str(workspace), packed, None).left_out == (name,)
    assert not (workspace / name).exists()


@pytest.mark.parametrize("name", ["notes/b.ipynb", "model.py", "data/head", "jsonl.py", "pyproject/x.toml", "a.path"])
def test_other_new_files_are_placed(workspace: Path, saved: Path, name: str) -> None:
    packed = list_workspace(str(workspace))
    (saved / name).parent.mkdir(parents=True, exist_ok=True)
    (saved / name).write_text("of the notebook")
    assert fetch_files(f"file://{saved}", str(workspace), packed, None).placed == (name,)


@pytest.mark.proves("notebook-files")
def test_no_part_of_a_repository_or_a_python_environment_is_placed(workspace: Path, saved: Path) -> None:
    (workspace / "py").mkdir()
    (workspace / "py" / "pyvenv.cfg").write_text("home = /usr/bin")
    packed = list_workspace(str(workspace))
    repository = ["data/HEAD", "data/config", "data/objects/x", "data/refs/heads/x"]
    mixed = "py/lib/python3.11/site-packages/model.py"
    for name in [*repository, mixed]:
        (saved / name).parent.mkdir(parents=True, exist_ok=True)
        (saved / name).write_text("[core]\n\tfsmonitor = ./x")
    back = fetch_files(f"file://{saved}", str(workspace), packed, None)
    assert (back.placed, sorted(back.left_out)) == ((), [*repository, mixed])


def test_a_repository_is_not_completed_by_a_second_notebook(workspace: Path, saved: Path) -> None:
    for name in ("HEAD", "objects/x", "refs/heads/x"):
        (workspace / "bare" / name).parent.mkdir(parents=True, exist_ok=True)
        (workspace / "bare" / name).write_text("x")
    packed = list_workspace(str(workspace))
    (saved / "bare").mkdir()
    (saved / "bare" / "config").write_text("[core]\n\tfsmonitor = ./x")
    assert fetch_files(f"file://{saved}", str(workspace), packed, None).left_out == ("bare/config",)


@pytest.mark.proves("notebook-files")
def test_a_link_or_a_directory_in_the_way_is_not_followed_and_not_replaced(
    workspace: Path, saved: Path, tmp_path: Path
) -> None:
    packed = list_workspace(str(workspace))
    (tmp_path / "outside").write_text("outside")
    (workspace / "link").symlink_to(tmp_path / "outside")
    (workspace / "d").mkdir()
    for name in ("link", "d"):
        (saved / name).write_text("of the notebook")
    assert fetch_files(f"file://{saved}", str(workspace), packed, None).kept == ("d", "link")
    assert (tmp_path / "outside").read_text() == "outside"
    (tmp_path / "elsewhere").mkdir()
    (workspace / "notes" / "new").symlink_to(tmp_path / "elsewhere")
    (saved / "notes" / "new" / "c").write_text("new")
    with pytest.raises(DlappError):
        fetch_files(f"file://{saved}", str(workspace), packed, None)
    assert os.listdir(tmp_path / "elsewhere") == []
    assert not list(workspace.glob(f"{STAGING}*"))


def test_old_leftovers_of_a_killed_command_are_removed(workspace: Path) -> None:
    for name in ("old", "new"):
        (workspace / f"{STAGING}{name}" / "x").mkdir(parents=True)
    os.utime(workspace / f"{STAGING}old", (0, 0))
    remove_leftovers(str(workspace))
    assert [path.name for path in workspace.glob(f"{STAGING}*")] == [f"{STAGING}new"]
