"""Compare a tree before and after: names, types, owners, modes, sizes, contents, times, targets of links."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

_MAX_READ_BYTES = 16 << 20
"""Of a larger file only its size and time are compared [bytes]."""


@dataclass(frozen=True)
class Entry:
    """The visible state of one name."""

    type: str
    inode: int
    uid: int
    gid: int
    mode: str
    links: int
    size: int
    mtime_ns: int
    content: str


Snapshot = dict[str, Entry]


def snapshot(top: Path) -> Snapshot:
    """Return every entry of a tree, itself included, by its path; links are not followed, nothing but files is read."""
    found = {}
    pending = [top]
    while pending:
        path = pending.pop()
        seen = path.lstat()
        content = ""
        if stat.S_ISLNK(seen.st_mode):
            content = os.readlink(path)
        elif stat.S_ISREG(seen.st_mode) and seen.st_size <= _MAX_READ_BYTES:
            content = hashlib.blake2b(path.read_bytes()).hexdigest()[:32]
        elif stat.S_ISDIR(seen.st_mode):
            pending.extend(path.iterdir())
        found[str(path)] = Entry(
            type=stat.filemode(seen.st_mode)[0],
            inode=seen.st_ino,
            uid=seen.st_uid,
            gid=seen.st_gid,
            mode=oct(stat.S_IMODE(seen.st_mode)),
            links=seen.st_nlink,
            size=seen.st_size,
            mtime_ns=seen.st_mtime_ns,
            content=content,
        )
    return found


def changes(before: Snapshot, after: Snapshot) -> list[str]:
    """Return a line for each entry that is new, gone or another than before."""
    lines = [f"{path}: new" for path in sorted(after.keys() - before.keys())]
    lines += [f"{path}: gone" for path in sorted(before.keys() - after.keys())]
    for path in sorted(before.keys() & after.keys()):
        lines += [
            f"{path}: {field.name} {getattr(before[path], field.name)} -> {getattr(after[path], field.name)}"
            for field in fields(Entry)
            if getattr(before[path], field.name) != getattr(after[path], field.name)
        ]
    return lines


@contextlib.contextmanager
def unchanged(*tops: Path) -> Iterator[None]:
    """Fail where a block changes anything in these trees."""
    before = [snapshot(top) for top in tops]
    yield
    found = [line for top, old in zip(tops, before, strict=True) for line in changes(old, snapshot(top))]
    assert not found, "\n".join(found)


@contextlib.contextmanager
def contents_unchanged(top: Path) -> Iterator[None]:
    """Compare as `unchanged`, but for the number of names that a file has: a hard link to it may be removed."""
    before = snapshot(top)
    yield
    found = [line for line in changes(before, snapshot(top)) if ": links " not in line]
    assert not found, "\n".join(found)
