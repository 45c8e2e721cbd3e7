"""Opening files that other users may have put there."""

from __future__ import annotations

import os
import pickle
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlapp.system.files import (
    UntrustedFile,
    check_own_directory,
    closing_fd,
    has_reader,
    is_plain_name,
    list_names,
    open_directory,
    open_file,
    open_own_directory,
    read_file,
    read_json_object,
)


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield descriptor
    os.close(descriptor)


def test_a_regular_file_is_read(tmp_path: Path, fd: int) -> None:
    (tmp_path / "a").write_bytes(b"content")
    assert read_file("a", dir_fd=fd, owners=[os.geteuid()], max_bytes=7) == b"content"


def test_a_missing_file_is_distinguished_from_an_untrusted_one(fd: int) -> None:
    with pytest.raises(FileNotFoundError):
        read_file("a", dir_fd=fd, max_bytes=7)


@pytest.mark.parametrize("kind", ["link", "dangling link", "fifo", "socket", "directory"])
def test_a_path_that_is_not_a_regular_file_is_refused_at_once(tmp_path: Path, fd: int, kind: str) -> None:
    place = tmp_path / "a"
    (tmp_path / "target").write_text("secret")
    match kind:
        case "link":
            place.symlink_to("target")
        case "dangling link":
            place.symlink_to("absent")
        case "fifo":
            os.mkfifo(place)
        case "socket":
            server = socket.socket(socket.AF_UNIX)
            os.chdir(tmp_path)
            server.bind("a")
            server.close()
        case "directory":
            place.mkdir()
    with pytest.raises(UntrustedFile, match="a: is a"):
        read_file("a", dir_fd=fd, max_bytes=7)


def test_a_file_of_another_owner_is_refused(tmp_path: Path, fd: int) -> None:
    (tmp_path / "a").write_text("x")
    with pytest.raises(UntrustedFile, match=f"belongs to uid {os.geteuid()}"):
        open_file("a", dir_fd=fd, owners=[os.geteuid() + 1])


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777, 0o1777])
def test_a_directory_that_others_may_write_is_not_the_callers_own(tmp_path: Path, fd: int, mode: int) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a").chmod(0o755)
    check_own_directory(str(tmp_path / "a"))
    (tmp_path / "a").chmod(mode)
    with (
        pytest.raises(UntrustedFile, match=r"^/x/a: others may write there; remove it, or chmod go-w it"),
        closing_fd(open_own_directory("a", dir_fd=fd, path="/x/a")),
    ):
        pass


def test_a_directory_of_another_user_is_not_the_callers_own(tmp_path: Path) -> None:
    with pytest.raises(UntrustedFile, match=f"belongs to uid {os.geteuid()}"):
        check_own_directory(str(tmp_path), os.geteuid() + 1)


def test_a_link_to_an_own_directory_is_followed_only_on_request(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("a")
    (tmp_path / "file").touch()
    with pytest.raises(UntrustedFile, match="link: is a symbolic link, not a directory"):
        check_own_directory(str(tmp_path / "link"))
    with closing_fd(open_own_directory(f"{tmp_path}/link/.")) as fd:
        assert os.path.samestat(os.fstat(fd), os.stat(tmp_path / "a"))
    with (
        pytest.raises(UntrustedFile, match="file: is a regular file, not a directory"),
        closing_fd(open_own_directory(f"{tmp_path}/file/.", path=f"{tmp_path}/file")),
    ):
        pass


def test_a_large_file_is_refused(tmp_path: Path, fd: int) -> None:
    (tmp_path / "a").write_bytes(b"12345678")
    with pytest.raises(UntrustedFile, match="8 bytes, at most 7"):
        read_file("a", dir_fd=fd, max_bytes=7)


def test_a_file_longer_than_its_reported_size_is_refused() -> None:
    with pytest.raises(UntrustedFile, match="more than 10 bytes"):
        read_file("/proc/self/status", max_bytes=10)


def test_a_fifo_is_opened_where_one_is_expected(tmp_path: Path, fd: int) -> None:
    os.mkfifo(tmp_path / "f")
    opened = open_file("f", dir_fd=fd, kind=stat.S_IFIFO, write=True)
    assert stat.S_ISFIFO(os.fstat(opened).st_mode)
    os.close(opened)


def test_a_fifo_shows_whether_it_has_a_reader(tmp_path: Path, fd: int) -> None:
    os.mkfifo(tmp_path / "f")
    assert not has_reader("f", dir_fd=fd, owners=[os.geteuid()])
    reader = os.open(tmp_path / "f", os.O_RDONLY | os.O_NONBLOCK)
    assert has_reader("f", dir_fd=fd)
    os.close(reader)
    with pytest.raises(UntrustedFile, match="belongs to"):
        has_reader("f", dir_fd=fd, owners=[os.geteuid() + 1])
    (tmp_path / "a").touch()
    with pytest.raises(UntrustedFile, match="is a regular file, not a FIFO"):
        has_reader("a", dir_fd=fd)


def test_a_link_to_a_directory_is_no_directory(tmp_path: Path, fd: int) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "l").symlink_to("d")
    os.close(open_directory("d", dir_fd=fd, owners=[os.geteuid()]))
    with pytest.raises(UntrustedFile, match="l: is a symbolic link"):
        open_directory("l", dir_fd=fd)


@pytest.mark.parametrize("text", ["", "[1]", "{", "[" * 100_000, '{"a": ' * 100_000])
def test_content_that_is_not_a_json_object_is_refused(tmp_path: Path, fd: int, text: str) -> None:
    (tmp_path / "a").write_text(text)
    with pytest.raises(UntrustedFile, match="a: is not"):
        read_json_object("a", dir_fd=fd, max_bytes=1 << 20)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/", "a\0b", "a\nb", "\x1b[2J", "\x85", "x" * 256])
def test_a_name_that_is_a_path_or_has_control_characters_is_no_plain_name(name: str) -> None:
    assert not is_plain_name(name)


@pytest.mark.parametrize("name", ["a", ".hidden", "...", "ä ö", "x" * 255, "a\udcff"])
def test_other_names_are_plain(name: str) -> None:
    assert is_plain_name(name)


def test_a_listing_is_bounded(tmp_path: Path, fd: int) -> None:
    for number in range(5):
        (tmp_path / str(number)).touch()
    assert list_names(fd, limit=10) == ["0", "1", "2", "3", "4"]
    assert len(list_names(fd, limit=3)) == 3


def test_the_refusal_of_a_file_passes_between_processes() -> None:
    error = UntrustedFile("/a", "is a FIFO")
    error.add_note("noted")
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.path, copy.problem, copy.__notes__) == ("/a: is a FIFO", "/a", "is a FIFO", ["noted"])
