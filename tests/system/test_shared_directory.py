"""The directory for locks that all users of a machine share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dlapp.system.files import UntrustedFile
from dlapp.system.shared_directory import open_shared_directory, problem_of


def status(mode: int, uid: int) -> os.stat_result:
    return os.stat_result((0o40000 | mode, 1, 1, 2, uid, 0, 0, 0, 0, 0))


@pytest.mark.parametrize(
    ("mode", "owner", "uid", "message"),
    [
        (0o1777, 0, 1001, ""),
        (0o1770, 0, 1001, ""),
        (0o700, 1001, 1001, ""),
        (0o1777, 1001, 1001, ""),
        (0o777, 0, 1001, "has mode 777"),
        (0o777, 1001, 1001, "has mode 777"),
        (0o1777, 4242, 1001, "belongs to uid 4242, not to root"),
        (0o1777, 4242, 0, "belongs to uid 4242, not to root"),
    ],
)
def test_a_sticky_directory_of_root_serves_all_and_others_their_owner(
    mode: int, owner: int, uid: int, message: str
) -> None:
    found = problem_of(status(mode, owner), uid)
    assert found.startswith(message)
    assert bool(found) is bool(message)


def test_root_creates_the_directory_for_all_and_others_for_themselves(tmp_path: Path) -> None:
    path = tmp_path / "locks"
    with pytest.raises(FileNotFoundError):
        open_shared_directory(str(path))
    os.close(open_shared_directory(str(path), make=True))
    assert path.stat().st_mode & 0o7777 == (0o1777 if os.geteuid() == 0 else 0o700)


def test_a_refusal_names_the_command_for_root(tmp_path: Path) -> None:
    path = tmp_path / "locks"
    path.mkdir()
    path.chmod(0o777)
    with pytest.raises(UntrustedFile, match=rf"as root: echo 'd {path} 1777 root root -' > /etc/tmpfiles.d"):
        open_shared_directory(str(path))


def test_a_link_to_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "locks").symlink_to("elsewhere")
    with pytest.raises(UntrustedFile, match="locks: is a symbolic link, not a directory"):
        open_shared_directory(str(tmp_path / "locks"), make=True)
