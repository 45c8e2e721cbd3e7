"""Directories of shared file systems as input, where the node's operator allows them."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlapp.errors import DlappError, NotFound, SpecError, UsageError
from dlapp.node_policy import NodePolicy
from dlapp.task.data.mounted_inputs import find_mounted, place_mounted
from dlapp.values.spec import InputSpec


def mounted(path: Path, *, optional: bool = False) -> InputSpec:
    return InputSpec(sources=(f"file://{path}",), input_path="in", mount=True, optional=optional)


def policy(*shared: Path) -> NodePolicy:
    return NodePolicy(shared_paths=tuple(map(str, shared)))


def test_only_directories_below_the_operators_paths_are_mounted(tmp_path: Path) -> None:
    (tmp_path / "shared/data").mkdir(parents=True)
    (tmp_path / "own").mkdir()
    (tmp_path / "shared/file").write_text("")
    (tmp_path / "shared/out").symlink_to(tmp_path / "own")
    allowed = policy(tmp_path / "shared")
    assert find_mounted(mounted(tmp_path / "shared/data"), allowed) == f"{tmp_path}/shared/data"
    for path, error, text in (
        ("own", UsageError, "is in none of the shared_paths"),
        ("shared/out", UsageError, "own is in none of the shared_paths"),
        ("shared/file", UsageError, "is not one directory"),
        ("shared/*", UsageError, "is not one directory"),
        ("shared/none", NotFound, "nothing is there"),
    ):
        with pytest.raises(error, match=text):
            find_mounted(mounted(tmp_path / path), allowed)
    with pytest.raises(UsageError, match="is in none of the shared_paths"):
        find_mounted(mounted(tmp_path / "shared/data"), policy())
    assert find_mounted(mounted(tmp_path / "shared/none", optional=True), allowed) is None


def test_a_container_has_a_mount_and_a_process_a_link(tmp_path: Path) -> None:
    (data := tmp_path / "data").mkdir()
    mounts: list[tuple[str, str]] = []
    place_mounted(str(data), str(tmp_path / "w/a/in"), mounts)
    assert mounts == [(str(data), f"{tmp_path}/w/a/in")]
    assert (tmp_path / "w/a/in").is_dir()
    place_mounted(str(data), str(tmp_path / "w/b/in"), None)
    assert (tmp_path / "w/b/in").readlink() == data
    with pytest.raises(DlappError, match="is there, where the input would be"):
        place_mounted(str(data), str(tmp_path / "w/b/in"), None)
    place_mounted(None, str(tmp_path / "w/c/in"), None)
    assert not list((tmp_path / "w/c/in").iterdir())


@pytest.mark.parametrize("sources", [("file:///a", "file:///b"), ("hdfs://nn/a",)])
def test_a_mount_that_is_not_one_local_directory_is_refused(sources: tuple[str, ...]) -> None:
    with pytest.raises(SpecError, match="one directory of a shared file system"):
        InputSpec(sources=sources, input_path="in", mount=True)
