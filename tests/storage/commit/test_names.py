"""Names beside a target: the longest one is what a submission leaves room for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dlapp.locations import HdfsPlace
from dlapp.login import Login
from dlapp.storage.commit import commit, part_location
from dlapp.storage.commit.hdfs import HdfsCommit
from dlapp.storage.commit.local import _CommitNames
from dlapp.storage.commit.marker import LONGEST_SUFFIX
from dlapp.storage.hdfs.file_system import HdfsFiles
from dlapp.storage.local import LocalFiles
from dlapp.system.files import NAME_MAX
from dlapp.values.ids import ApplicationId, ContainerId

APP = str(ApplicationId(9_999_999_999_999, (1 << 31) - 1))
NAME = "n" * (NAME_MAX - len(LONGEST_SUFFIX))
UNIQUE = ".0123abcd"
"""What is added to a name that is taken, or to one that must be new."""


def test_no_name_beside_a_target_is_longer_than_the_room_for_it() -> None:
    local = vars(_CommitNames("/data", NAME, APP, -1))
    place = HdfsPlace("hdfs://nn:8020", ("http://nn:9870",), Login("kim"))
    hdfs = vars(HdfsCommit(HdfsFiles(place), f"hdfs://nn:8020/data/{NAME}", APP))
    names = [str(item).rpartition("/")[2] for item in (*local.values(), *hdfs.values()) if NAME in str(item)]
    assert len(names) > 15
    longest = max(names, key=len)
    assert len(longest + UNIQUE) == NAME_MAX, longest


def test_a_target_with_the_longest_name_is_replaced_even_if_its_old_name_is_taken(
    tmp_path: Path,
) -> None:
    target, app = f"file://{tmp_path}/{NAME}", ApplicationId.from_text(APP)
    part = part_location(target, app, ContainerId(app, 1, 2))
    for taken in (NAME, f"{NAME}.replaced.{APP}"):
        (tmp_path / taken).mkdir()
        (tmp_path / taken / "not written by dlapp").touch()
    (tmp_path / "output").mkdir()
    (tmp_path / "output" / "model").touch()
    LocalFiles().store(str(tmp_path / "output"), part, move=True)
    left = commit(target, app, [("", part)], overwrite=True)
    assert left is not None
    assert left.startswith(f"{target}.replaced.{APP}.")
    assert os.listdir(tmp_path / NAME) == ["model"]


@pytest.mark.parametrize("name", ["n" * 255, "결" * 85])
def test_a_live_copy_of_a_file_may_have_all_bytes_of_a_name(tmp_path: Path, name: str) -> None:
    (tmp_path / "own").mkdir(mode=0o700)
    (tmp_path / "source").write_bytes(b"weights")
    fd = os.open(tmp_path / "source", os.O_RDONLY)
    LocalFiles().replace_file(fd, 7, f"file://{tmp_path}/own/{name}", 0o600)
    os.close(fd)
    assert [path.name for path in (tmp_path / "own").iterdir()] == [name]
