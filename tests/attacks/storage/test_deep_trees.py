"""Trees that a program made as deep as the kernel lets it: they end no caller, and what is dlapp's can be removed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dlapp.client.command_session import LOG, own_directory, session_directory
from dlapp.client.notebook.files import list_workspace
from dlapp.cluster.local.queue import Queue
from dlapp.cluster.local.runner import history
from dlapp.cluster.local.settings import settings_of
from dlapp.cluster.local.state import open_state
from dlapp.config import load_config
from dlapp.system.files import remove_tree, walk
from dlapp.task.data.workspace_changes import WorkspaceChanges
from dlapp.task.streams.event_files import _event_files
from tests.cluster.local.test_parts import insert

LEVELS = 2200
"""Twice Python's limit of recursion, and deeper than a path of 4,096 bytes reaches."""


def make_deep(top: Path, levels: int = LEVELS) -> None:
    """Make a tree of one directory in each level, with a file in the first ten and in the last."""
    top.mkdir()
    here = os.open(top, os.O_RDONLY)
    for level in range(levels):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
        if level < 10 or level == levels - 1:
            os.close(os.open("events.tfevents", os.O_WRONLY | os.O_CREAT, dir_fd=here))
    os.close(here)


@pytest.fixture
def deep(tmp_path: Path) -> Iterator[Path]:
    top = tmp_path / "deep"
    make_deep(top)
    yield top
    remove_tree(str(top))  # pytest cannot


def test_a_walk_is_limited_by_path_length_and_follows_no_link(deep: Path) -> None:
    (deep / "link").symlink_to(deep)
    found = list(walk(str(deep)))
    assert found[0] == (str(deep), ["d"], ["link"])
    assert found[1] == (str(deep / "d"), ["d"], ["events.tfevents"])
    assert 1900 < len(found) < LEVELS


def test_a_walk_enters_the_directories_that_its_caller_leaves(tmp_path: Path) -> None:
    for name in ("a/x", "b/y", "c/z"):
        (tmp_path / name).mkdir(parents=True)
    seen = []
    for directory, names, _ in walk(str(tmp_path)):
        seen.append(os.path.relpath(directory, tmp_path))
        names[:] = [name for name in sorted(names) if name != "b"]
    assert seen == [".", "a", "a/x", "c", "c/z"]


def event_files(top: Path) -> dict[str, int]:
    fd = os.open(top, os.O_RDONLY)
    try:
        return _event_files(fd)
    finally:
        os.close(fd)


def keep_changes(top: Path) -> object:
    scratch = top.parent / "scratch"
    scratch.mkdir()
    changes = WorkspaceChanges(str(top), str(scratch))
    changes.begin()
    (top / "new").write_text("x")
    return [path for path in changes.keep_only(()) if path == "new"]


@pytest.mark.parametrize(
    ("scan", "expected"),
    [
        (lambda top: len(list_workspace(str(top))), 10),
        (lambda top: len(event_files(top)), 10),
        (keep_changes, ["new"]),
    ],
    ids=["a notebook's files", "event files", "a workspace that is kept"],
)
def test_a_scan_finds_entries_near_the_top(deep: Path, scan: Callable[[Path], object], expected: object) -> None:
    assert scan(deep) == expected


def test_a_dead_session_with_a_deep_tree_stops_no_later_one(tmp_path: Path) -> None:
    config = load_config({"local.state_dir": str(tmp_path / "state"), "local.gcores": "0"}, environ={})
    with session_directory(config) as session:
        parent = Path(session).parent
        make_deep(Path(session) / "home")
    assert os.listdir(parent) == []
    dead = parent / "shell-1-dead"
    dead.mkdir()
    (dead / LOG).touch()
    make_deep(dead / "tmp")
    with session_directory(config) as session:
        assert os.listdir(parent) == [os.path.basename(session)]
    assert parent == Path(own_directory(str(parent.parents[2]))) / "sessions"


def test_an_ended_application_with_a_deep_tree_leaves_the_history(tmp_path: Path) -> None:
    config = load_config({"local.state_dir": str(tmp_path / "state"), "history.age": "1s"}, environ={})
    state = open_state(config.local.state_dir, shared=False)
    with Queue(state) as queue:
        with queue.change():
            one = insert(queue, state="done", finished_ms=1)
        application = Path(state.application(one))
        application.mkdir(parents=True)
        make_deep(application / "containers")
        settings = settings_of(config, ("dlapp",))
        assert history.clear_old(state, queue, settings, os.geteuid(), 1_700_000_000.0) == 1
        assert not application.exists()
        assert queue.rows() == []
