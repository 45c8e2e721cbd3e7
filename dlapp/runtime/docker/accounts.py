"""Accounts in a container: programs look up the name and the home directory of their uid, and many fail without them.

If the image has no account for our uid, one is added to copies of its /etc/passwd and /etc/group, which are mounted
over them. The files of an image are read from its first container here, and cached: reading them takes a container, and
putting a file into one takes dockerd as long as starting one.

Source: getpwuid(3); passwd(5), group(5).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pwd
from collections.abc import Mapping
from typing import NamedTuple

from dlapp.net.dockerd import Dockerd
from dlapp.system.files import closing_fd, read_json_object
from dlapp.system.shared_directory import open_shared_directory

_PASSWD, _GROUP = "/etc/passwd", "/etc/group"
_MAX_BYTES = 1 << 20
_MAX_CACHED_BYTES = 16 * _MAX_BYTES
"""Two such files as JSON, with every character escaped."""


class Accounts(NamedTuple):
    """The two files of an image; empty if missing."""

    passwd: str
    group: str

    def completed(self, home: str) -> Mapping[str, bytes]:
        """Return the files to mount over these, as path -> content, so that our uid and gid have names."""
        uid, gid = os.getuid(), os.getgid()
        users = _ids(self.passwd)
        if uid in users:
            return {}
        name = _name_of(uid)
        if name in users.values():
            name = f"dlapp{uid}"
        files = {_PASSWD: _with_line(self.passwd, f"{name}:x:{uid}:{gid}:{name}:{home}:/bin/sh")}
        groups = _ids(self.group)
        if gid not in groups:
            files[_GROUP] = _with_line(self.group, f"{name if name not in groups.values() else f'dlapp{gid}'}:x:{gid}:")
        return files


def read_cached(directory: str, image_id: str) -> Accounts | None:
    """Return the cached files of an image; None if there are none. A file that another user owns is ignored."""
    try:
        with closing_fd(open_shared_directory(directory)) as fd:
            found = read_json_object(_name_in(image_id), dir_fd=fd, owners=[os.getuid()], max_bytes=_MAX_CACHED_BYTES)
        known = Accounts(**found)
    except (OSError, TypeError):
        return None
    return known if all(isinstance(one, str) for one in known) else None


def write_cached(directory: str, image_id: str, accounts: Accounts) -> None:
    """Cache the files for this user; errors are ignored."""
    name = _name_in(image_id)
    fresh = f".{name}.{os.urandom(8).hex()}"
    with contextlib.suppress(OSError), closing_fd(open_shared_directory(directory, make=True)) as where:
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=where)
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            json.dump(accounts._asdict(), file)
        try:
            os.rename(fresh, name, src_dir_fd=where, dst_dir_fd=where)
        except OSError:  # the name is another user's
            os.unlink(fresh, dir_fd=where)


def of_container(docker: Dockerd, name: str) -> Accounts:
    """Return the accounts of the image of a created container without mounts over these files."""
    found = [(docker.read_file(name, path) or b"")[:_MAX_BYTES] for path in (_PASSWD, _GROUP)]
    return Accounts(*(data.decode(errors="replace") for data in found))


def _name_in(image_id: str) -> str:
    digest = hashlib.sha256(image_id.encode()).hexdigest()[:32]
    return f"accounts-{os.getuid()}-{digest}"


def _ids(table: str) -> dict[int, str]:
    rows = [line.split(":") for line in table.splitlines()]
    return {int(row[2]): row[0] for row in rows if len(row) > 2 and row[2].isdecimal()}


def _with_line(table: str, line: str) -> bytes:
    return (table + ("" if not table or table.endswith("\n") else "\n") + line + "\n").encode()


def _name_of(uid: int) -> str:
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"dlapp{uid}"
    # In directories that users can write to, a name may be anything.
    return name if name.replace("-", "").replace("_", "").replace(".", "").isalnum() else f"dlapp{uid}"
