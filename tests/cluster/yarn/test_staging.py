"""Test what is brought to the cluster, and for whom its nodes then keep it."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dlapp.cluster.yarn.client.submission import ApplicationSubmitter, _Directories, replication
from dlapp.errors import Denied, DlappError
from dlapp.locations import FileInfo, HdfsPlace
from dlapp.login import Login

HOME = "hdfs://nn:8020/user/tony"
CACHE = f"{HOME}/.dlapp/cache"


class Modes:
    """Part of `StagingFiles` that is used: what is there is its mode, under a location."""

    home = HOME

    def __init__(self, **changed: int) -> None:
        below = {"user": "user", "home": "user/tony", "own": "user/tony/.dlapp", "cache": "user/tony/.dlapp/cache"}
        modes = {"user": 0o755, "home": 0o755, "own": 0o711, "cache": 0o711, **changed}
        self.modes_by_path = {f"hdfs://nn:8020/{path}": modes[name] for name, path in below.items()}
        self.owners: dict[str, str] = {}
        self.zone = "nowhere"
        self.sent: list[str] = []
        self.content = b"zip"
        self.calls: list[str] = []

    def status(self, location: str) -> FileInfo | None:
        self.calls.append(location)
        if (mode := self.modes_by_path.get(location)) is None:
            return None
        return FileInfo(
            size_bytes=len(self.content),
            modified_ms=int(time.time() * 1000),
            owner=self.owners.get(location, "tony"),
            mode=mode,
            is_file=True,
            encrypted=location.startswith(self.zone),
        )

    def make(self, location: str, mode: int) -> None:
        self.modes_by_path.setdefault(location, mode)

    def read_part(self, location: str, offset: int, count: int) -> bytes:
        return self.content[offset : offset + count]

    def send(self, path: str, location: str, mode: int) -> FileInfo | None:
        self.modes_by_path[location] = mode
        self.sent.append(location)
        return self.status(location)


@pytest.fixture(autouse=True)
def _archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("it").write_bytes(b"zip")


def staged(files: Modes, name: str, mode: int, visibility: str) -> str:
    submitter = ApplicationSubmitter(None, None)  # type: ignore[arg-type]
    above = _Directories(files)  # type: ignore[arg-type]
    found = submitter._staged(above, "tony", "it", f"{CACHE}/{name}", mode, visibility)
    assert (found.url, found.size) == (f"{CACHE}/{name}", 3)
    return found.visibility


@pytest.mark.parametrize(
    ("changed", "visibility"),
    [
        ({}, "PUBLIC"),
        ({"home": 0o711}, "PUBLIC"),
        ({"home": 0o750}, "PRIVATE"),
        ({"home": 0o700}, "PRIVATE"),
        ({"home": 0o754}, "PRIVATE"),  # to read a directory is not to pass it
        ({"user": 0o770}, "PRIVATE"),
        ({"own": 0o700}, "PRIVATE"),
        ({"cache": 0o700}, "PRIVATE"),
    ],
)
def test_the_zip_is_public_where_everybody_may_read_it_and_else_the_users(
    changed: dict[str, int], visibility: str
) -> None:
    files = Modes(**changed)
    for _ in range(2):
        assert staged(files, "dlapp-1.pyz", 0o644, "PUBLIC") == visibility
    assert files.sent == [f"{CACHE}/dlapp-1.pyz"]


def test_the_directories_above_two_archives_are_read_once() -> None:
    files, submitter = Modes(), ApplicationSubmitter(None, None)  # type: ignore[arg-type]
    above = _Directories(files)  # type: ignore[arg-type]
    names = {"dlapp-1.pyz": ("PUBLIC", 0o644), "1.tar.gz": ("PRIVATE", 0o600)}
    for name, (visibility, mode) in names.items():
        files.modes_by_path[f"{CACHE}/{name}"] = mode
        submitter._staged(above, "tony", "it", f"{CACHE}/{name}", mode, visibility)
    directories = ["hdfs://nn:8020/user", HOME, f"{HOME}/.dlapp", CACHE]
    assert sorted(files.calls) == sorted([*directories, *(f"{CACHE}/{name}" for name in names)])


def test_a_zip_that_others_may_not_read_is_not_public() -> None:
    files = Modes()
    files.modes_by_path[f"{CACHE}/dlapp-1.pyz"] = 0o640
    assert staged(files, "dlapp-1.pyz", 0o644, "PUBLIC") == "PRIVATE"


def test_a_zip_in_an_encryption_zone_is_not_public() -> None:
    files = Modes()
    files.zone = HOME  # YARN's own user has no key
    assert staged(files, "dlapp-1.pyz", 0o644, "PUBLIC") == "PRIVATE"


def test_a_staged_workspace_belongs_to_the_user() -> None:
    assert staged(Modes(), "1.tar.gz", 0o600, "PRIVATE") == "PRIVATE"


@pytest.mark.proves("bundle")
@pytest.mark.parametrize(
    ("place", "mode", "owner"),
    [
        (f"{CACHE}/dlapp-1.pyz", 0o644, "mallory"),
        (f"{CACHE}/dlapp-1.pyz", 0o666, "tony"),
        (CACHE, 0o711, "mallory"),
        (CACHE, 0o731, "tony"),
        (f"{HOME}/.dlapp", 0o733, "tony"),
        (f"{HOME}/.dlapp", 0o711, "mallory"),
    ],
)
def test_an_archive_that_others_may_have_put_there_is_refused(place: str, mode: int, owner: str) -> None:
    files = Modes()
    files.modes_by_path[f"{CACHE}/dlapp-1.pyz"] = 0o644
    files.modes_by_path[place] = mode
    files.owners[place] = owner
    with pytest.raises(Denied, match="others may have written there"):
        staged(files, "dlapp-1.pyz", 0o644, "PUBLIC")


@pytest.mark.parametrize(("mode", "is_refused"), [(0o777, True), (0o1777, False), (0o755, False)])
def test_a_world_writable_home_directory_is_refused(mode: int, is_refused: bool) -> None:
    """Modes of the home directory; with the sticky bit nobody can rename what belongs to another user."""
    files = Modes()
    files.modes_by_path[f"{CACHE}/dlapp-1.pyz"] = 0o644
    files.modes_by_path[HOME] = mode
    refusal = pytest.raises(Denied, match="hdfs dfs -chmod o-w /user/tony") if is_refused else contextlib.nullcontext()
    with refusal:
        staged(files, "dlapp-1.pyz", 0o644, "PUBLIC")


@pytest.mark.proves("bundle")
@pytest.mark.parametrize("content", [b"zap", b"zip, and more"])
def test_an_archive_that_does_not_match_its_name_is_refused(content: bytes) -> None:
    files = Modes()
    files.modes_by_path[f"{CACHE}/dlapp-1.pyz"] = 0o644
    files.content = content
    with pytest.raises(Denied, match="is not what its name says"):
        staged(files, "dlapp-1.pyz", 0o644, "PUBLIC")


@pytest.mark.parametrize(("mode", "visibility"), [(0o644, "PUBLIC"), (0o640, "PRIVATE"), (0o600, "PRIVATE")])
def test_a_python_archive_is_public_where_everybody_may_read_it(mode: int, visibility: str) -> None:
    files = Modes()
    files.modes_by_path |= {"hdfs://nn:8020/pythons": 0o755, "hdfs://nn:8020/pythons/3.tar.gz": mode}
    config = SimpleNamespace(yarn=SimpleNamespace(python_archive="hdfs:///pythons/3.tar.gz"))
    session: Any = SimpleNamespace(hdfs=lambda user: HdfsPlace("hdfs://nn:8020", (), Login(user)), config=config)
    submitter = ApplicationSubmitter(session, None)
    above = _Directories(files)  # type: ignore[arg-type]
    (found,) = submitter._python_archive(above, "tony").values()
    assert (found.visibility, found.archive) == (visibility, True)


@pytest.mark.parametrize(
    ("containers", "most", "count"),
    [
        (1, None, None),
        (50, None, None),
        (51, None, 8),
        (100, None, 10),
        (101, None, 11),
        (10_000, None, 100),
        (10_000, "20", 20),
        (10_000, "many", 100),
        (1_000_000, None, 512),
    ],
)
def test_archives_of_many_containers_are_on_the_square_root_of_so_many_datanodes(
    containers: int, most: str | None, count: int | None
) -> None:
    assert replication(containers, most) == count


def test_replicas_that_hdfs_refuses_hinder_no_submission() -> None:
    wanted: list[tuple[str, int]] = []

    def replicate(location: str, count: int) -> None:
        wanted.append((location, count))
        raise DlappError("a quota")

    submitter = ApplicationSubmitter(SimpleNamespace(site={}), None)  # type: ignore[arg-type]
    files: Any = SimpleNamespace(replicate=replicate)
    for containers in (50, 400):
        submitter._replicate(files, ["zip", "workspace"], containers)
    assert wanted == [("zip", 20), ("workspace", 20)]
