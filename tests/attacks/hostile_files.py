"""Hostile files: all that another user may have put where dlapp looks for a file or a directory of its own."""

from __future__ import annotations

import os
import shutil
import socket
import stat
from dataclasses import dataclass
from pathlib import Path

from tests.attacks.identities import User

KINDS = (
    "link to a file",
    "link to a directory",
    "dangling link",
    "loop of links",
    "hard link",
    "FIFO",
    "socket",
    "directory",
    "device",
    "foreign owner",
    "writable by all",
    "no mode",
    "huge",
)
"""Each way in which a name can be something else than the file that is expected there."""

HUGE = 8 << 30
"""Size of the huge file [bytes]; it is sparse."""


@dataclass(frozen=True)
class Bait:
    """Files outside, with links to them: nothing of dlapp may change them.

    Attributes:
        top: the directory to compare before and after; `file` and `directory` lie in it.
        absent: where dangling links point to; nothing may be made there.
    """

    top: Path

    @property
    def file(self) -> Path:
        return self.top / "file"

    @property
    def directory(self) -> Path:
        return self.top / "directory"

    @property
    def absent(self) -> Path:
        return self.top / "absent"


def make_bait(top: Path, owner: User) -> Bait:
    """Make a private directory of a user with a file and a directory in it."""
    bait = Bait(top)
    bait.directory.mkdir(parents=True)
    (bait.directory / "inside").write_text("kept\n")
    bait.file.write_text("kept\n")
    for path in (bait.file, bait.directory / "inside", bait.directory, top):
        os.chown(path, owner.uid, owner.gid)
        path.chmod(0o700 if path.is_dir() else 0o600)
    return bait


def place(kind: str, path: Path, *, by: User, bait: Bait, owner: User | None = None, content: bytes = b"") -> None:
    """Put something hostile at a path, in one step where the kernel can, in the place of whatever lies there.

    It is root who puts it there and then gives it away, so that all kinds are possible with any sysctls, as they are
    for whoever came before a sysctl was set.

    Args:
        kind: one of `KINDS`.
        path: the name that dlapp uses.
        by: the attacker, whose it is.
        bait: where links lead.
        owner: who is expected to own the file, and does where only its mode or size is hostile; ``by`` if None.
        content: what a regular file holds: best something that would be believed.
    """
    new = path.with_name(f".{path.name[:200]}.new")
    user = by
    match kind:
        case "link to a file":
            new.symlink_to(bait.file)
        case "link to a directory":
            new.symlink_to(bait.directory)
        case "dangling link":
            new.symlink_to(bait.absent)
        case "loop of links":
            new.symlink_to(path.name)
        case "hard link":
            os.link(bait.file, new)
        case "FIFO":
            os.mkfifo(new)
            new.chmod(0o666)
        case "socket":
            _make_socket(new)
        case "directory":
            new.mkdir()
            new.chmod(0o777)
        case "device":
            os.mknod(new, stat.S_IFCHR | 0o666, os.makedev(1, 3))  # /dev/null
            new.chmod(0o666)
        case "foreign owner":
            new.write_bytes(content)
            new.chmod(0o644)
        case "writable by all":
            user = owner or by
            new.write_bytes(content)
            new.chmod(0o666)
        case "no mode":
            user = owner or by
            new.write_bytes(content)
            new.chmod(0o000)
        case "huge":
            user = owner or by
            with new.open("wb") as file:
                file.write(content)
                file.truncate(HUGE)
            new.chmod(0o644)
        case _:
            raise ValueError(f"{kind}: not one of {', '.join(KINDS)}")
    if kind != "hard link":
        os.chown(new, user.uid, user.gid, follow_symlinks=False)
    _clear(path, becomes_directory=kind == "directory")
    os.rename(new, path)


def _clear(path: Path, *, becomes_directory: bool) -> None:
    """Remove what rename(2) would not replace."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif becomes_directory and os.path.lexists(path):
        path.unlink()


def _make_socket(path: Path) -> None:
    """Make a socket on which nobody listens; by a short name, for that of a socket has at most 107 bytes."""
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(f"/proc/self/fd/{directory}/{path.name}")
    finally:
        os.close(directory)
    path.chmod(0o666)
