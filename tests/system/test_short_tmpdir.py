"""Test short names of directories for temporary files: who they serve, and that none is left."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from dlapp.system.files import UntrustedFile
from dlapp.system.short_tmpdir import ShortTmpdir, is_too_long, remove_stale_links

RAY = "ray/session_2024-01-01_00-00-00_000000_1234567/sockets"
KILLED = """
import os, signal, sys
from dlapp.system.short_tmpdir import ShortTmpdir
print(ShortTmpdir(sys.argv[1], sys.argv[2]).path, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def base(tmp_path: Path) -> str:
    (tmp_path / "base").mkdir()
    (tmp_path / "base").chmod(0o1777)
    return str(tmp_path / "base")


@pytest.fixture
def target(tmp_path: Path) -> str:
    path = tmp_path / ("long" * 25) / "tmp"
    path.mkdir(parents=True)
    return str(path)


def killed(target: str, base: str) -> str:
    """Return the name that a process made which was killed."""
    done = subprocess.run([sys.executable, "-c", KILLED, target, base], stdout=subprocess.PIPE, text=True)
    assert done.returncode == -signal.SIGKILL
    return done.stdout.strip()


@pytest.mark.parametrize(("size", "expected"), [(39, False), (40, True), (200, True)])
def test_a_path_is_too_long_if_the_longest_socket_does_not_fit(size: int, expected: bool) -> None:
    socket_path = f"{'x' * size}/{RAY}/plasma_store"
    assert is_too_long("x" * size) == expected == (len(socket_path) > 107)


def test_a_name_leads_to_the_directory_and_has_room_for_the_sockets_of_programs(target: str) -> None:
    short = ShortTmpdir(target)
    try:
        os.makedirs(f"{short.path}/{RAY}")
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(f"{short.path}/{RAY}/plasma_store")
        assert os.listdir(f"{target}/{RAY}") == ["plasma_store"]
        assert not is_too_long(short.path)
        assert os.stat(os.path.dirname(short.path)).st_mode & 0o777 == 0o700
    finally:
        short.close()
    assert not os.path.lexists(os.path.dirname(short.path))
    assert os.listdir(target) == ["ray"]
    short.close()


def test_each_has_a_name_of_its_own(target: str, base: str) -> None:
    names = [ShortTmpdir(target, base) for _ in range(3)]
    assert len({name.path for name in names}) == 3
    for name in names:
        name.close()
    assert os.listdir(base) == []


def test_a_name_that_is_taken_is_not_used(target: str, base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = [bytes(5), bytes(5), b"\1" * 5]
    monkeypatch.setattr(os, "urandom", lambda _count: numbers.pop(0))
    first, second = ShortTmpdir(target, base), ShortTmpdir(target, base)
    assert [os.path.relpath(item.path, base) for item in (first, second)] == [
        "dlapp-0000000000/tmp",
        "dlapp-0101010101/tmp",
    ]
    second.close()
    first.close()


@pytest.mark.parametrize("directory_is_left", [True, False])
def test_names_of_killed_processes_are_removed_and_those_in_use_stay(
    target: str, base: str, directory_is_left: bool
) -> None:
    dead, used = killed(target, base), ShortTmpdir(target, base)
    Path(target, "file").touch()
    assert os.path.exists(f"{dead}/file")
    if not directory_is_left:
        os.rename(target, f"{target}.elsewhere")
    remove_stale_links(base)
    assert os.listdir(base) == [os.path.basename(os.path.dirname(used.path))]
    assert os.path.exists(f"{target}/file") == directory_is_left
    used.close()


def test_a_process_killed_before_creating_the_link_leaves_no_directory(base: str) -> None:
    os.mkdir(f"{base}/dlapp-0123456789", 0o700)
    remove_stale_links(base)
    assert os.listdir(base) == []


@pytest.mark.proves("tmpdir")
def test_only_stale_links_are_removed(target: str, base: str) -> None:
    held = os.path.dirname(killed(target, base))
    Path(held, "of_the_user").touch()
    os.symlink(target, f"{base}/dlapp-aaaaaaaaaa")
    Path(base, "dlapp-bbbbbbbbbb").touch()
    os.makedirs(f"{base}/dlapp-cccccccccc/tmp")
    os.mkdir(f"{base}/dlapp-0123456789x")
    os.mkdir(f"{base}/dlapp-012345678")
    before = sorted(os.listdir(base))
    remove_stale_links(base)
    assert sorted(os.listdir(base)) == before
    assert os.listdir(held) == ["of_the_user"]
    assert os.listdir(f"{base}/dlapp-cccccccccc") == ["tmp"]


@pytest.mark.proves("tmpdir")
@pytest.mark.root("to give a directory to another user")
def test_links_of_another_user_stay(target: str, base: str) -> None:
    directory = os.path.dirname(killed(target, base))
    os.chown(directory, 12_345, 12_345)
    remove_stale_links(base)
    assert os.path.lexists(f"{directory}/tmp")


def test_files_of_the_program_beside_the_link_stay(target: str, base: str) -> None:
    short = ShortTmpdir(target, base)
    Path(os.path.dirname(short.path), "mine").touch()
    short.close()
    assert os.listdir(os.path.dirname(short.path)) == ["mine"]


def test_closing_a_removed_link_is_no_error(target: str, base: str) -> None:
    short = ShortTmpdir(target, base)
    os.unlink(short.path)
    os.rmdir(os.path.dirname(short.path))
    short.close()
    assert os.listdir(base) == []


def test_a_directory_removed_before_it_is_locked_is_created_again(
    target: str, base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = fcntl.flock
    locked: list[int] = []

    def cleaned_before(fd: int, how: int) -> None:
        if how & fcntl.LOCK_SH and not locked:
            locked.append(fd)
            remove_stale_links(base)
            assert os.listdir(base) == []
        lock(fd, how)

    monkeypatch.setattr(fcntl, "flock", cleaned_before)
    short = ShortTmpdir(target, base)
    assert locked
    assert os.path.samefile(short.path, target)
    short.close()


@pytest.mark.proves("tmpdir")
def test_a_directory_in_which_others_may_rename_is_not_used(target: str, base: str) -> None:
    os.chmod(base, 0o777)
    with pytest.raises(UntrustedFile, match="others can remove what is not theirs"):
        ShortTmpdir(target, base)
    with pytest.raises(UntrustedFile, match="others can remove what is not theirs"):
        remove_stale_links(base)
    assert os.listdir(base) == []


def test_a_link_that_cannot_be_created_is_an_error(target: str, base: str) -> None:
    os.rmdir(base)
    with pytest.raises(FileNotFoundError):
        ShortTmpdir(target, base)


def test_the_base_may_be_a_link(target: str, base: str, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(base)
    short = ShortTmpdir(target, str(tmp_path / "link"))
    assert os.path.samefile(short.path, target)
    short.close()
    assert os.listdir(base) == []
