"""Entry of the cache, and its files: values and single steps; `dlapp.storage.cache.store` explains the design."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Mapping
from typing import Any

from dlapp.errors import Denied
from dlapp.locations import shown
from dlapp.storage.tree import explaining, make_own_directory
from dlapp.storage.values import TreeNode
from dlapp.system.disk_space import existing_above
from dlapp.system.files import UntrustedFile, closing_fd, open_own_directory, read_json_object
from dlapp.system.owners import other_writers_above
from dlapp.value import NamedTuple

FORMAT = 1
ENTRY_OVERHEAD = 4096
"""Bytes that a file or directory is counted with besides its content: inodes and blocks are not free."""
_METADATA_FIELDS: Mapping[str, type] = {
    "format": int,
    "source": str,
    "size_bytes": int,
    "room_bytes": int,
    "files": int,
    "fetched_ms": int,
    "boot_id": str,
}


class CacheLocation(NamedTuple):
    """Location of a node's cache, and its limits.

    Args:
        directory: exclusive to the user, on a file system of this node.
        limit_bytes: maximum total size of all entries.
        age_s: how long an unused entry is kept.
        keep_free: share of the file system that the cache leaves free.
    """

    directory: str
    limit_bytes: int
    age_s: float
    keep_free: float = 0.0


class CacheKeySource(NamedTuple):
    """Matches of one source pattern, with the files found.

    Args:
        source: the pattern.
        trees: for each match its destination name, and all nodes below it, parents first.
    """

    source: str
    trees: tuple[tuple[str, list[TreeNode]], ...]

    @property
    def key(self) -> str:
        """Return the key of its entry."""
        import hashlib

        digest = hashlib.sha256(b"%d\n" % FORMAT)
        for name, nodes in self.trees:
            for node in nodes:
                size = node.size_bytes if node.is_file else 0
                mtime_ns = node.mtime_ns if node.is_file else 0
                one = (name, node.source, node.name, node.mode, size, mtime_ns, node.link)
                digest.update(json.dumps(one).encode())
        return digest.hexdigest()[:40]

    @property
    def size_bytes(self) -> int:
        """Return the total bytes of all files."""
        return sum(node.size_bytes for _, nodes in self.trees for node in nodes if node.is_file)

    @property
    def files(self) -> int:
        """Return the number of files."""
        return sum(node.is_file for _, nodes in self.trees for node in nodes)

    @property
    def room_bytes(self) -> int:
        """Return the size that counts for the limit."""
        return self.size_bytes + ENTRY_OVERHEAD * sum(len(nodes) for _, nodes in self.trees)


class CacheEntry(NamedTuple):
    """A cache entry, as `InputCache.entries` lists it.

    Args:
        used_ms: last use [ms since 1970].
        use: ``in use``, ``being fetched`` or empty.
    """

    key: str
    source: str
    size_bytes: int
    room_bytes: int
    files: int
    fetched_ms: int
    used_ms: int
    pinned: bool
    use: str


def is_intact(tree: str, wanted: CacheKeySource) -> bool:
    """Return True if every file is in ``tree`` with its length and modification time."""
    for name, nodes in wanted.trees:
        for node in nodes:
            try:
                status = os.lstat(f"{tree}/{name}/{node.name}".rstrip("/"))
            except OSError:
                return False
            if node.is_dir:
                if not stat.S_ISDIR(status.st_mode):
                    return False
            elif node.is_file and (
                not stat.S_ISREG(status.st_mode)
                or status.st_size != node.size_bytes
                or status.st_mtime_ns != node.mtime_ns
            ):
                return False
    return True


def names(directory: str) -> list[str]:
    """Return the names in a directory, sorted; empty if it does not exist."""
    try:
        return sorted(os.listdir(directory))
    except FileNotFoundError:
        return []


def read_metadata(directory: str) -> dict[str, Any] | None:
    """Return the description of an entry or a part; None if there is none."""
    try:
        with closing_fd(open_own_directory(directory)) as fd:
            metadata = read_json_object("about", dir_fd=fd, owners=(os.geteuid(),), max_bytes=1 << 20)
    except OSError:  # an UntrustedFile is one
        return None
    return metadata if all(type(metadata.get(name)) is kind for name, kind in _METADATA_FIELDS.items()) else None


def write_metadata(directory: str, metadata: dict[str, Any]) -> None:
    """Write an entry's description, also concurrently; one with a boot id is not synced: it ends with that boot."""
    path = os.path.join(directory, "about")
    new = f"{path}.{os.urandom(4).hex()}"
    with explaining(path, "written"):
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(fd, "w", encoding="utf-8") as file:
            json.dump(metadata, file)
            file.flush()
            if not metadata["boot_id"]:
                os.fsync(fd)
        os.rename(new, path)


def make_cache_directories(directory: str, inner: Iterable[str], unusable: str) -> None:
    """Create the directory of a cache, and those in it; only the caller may be able to write to them.

    Raises:
        Denied: others can write to one of them, or replace it; the message says that it is ``unusable``.
        DlappError: one cannot be created.
    """
    # Everything below is accessed by path, so nobody else may be able to replace the directory.
    if who := other_writers_above(directory):
        raise Denied(f"{shown(directory)} can be replaced by {who}, so it {unusable} (chmod go-w or +t)")
    try:
        for path in (directory, *(os.path.join(directory, name) for name in inner)):
            make_own_directory(path)
    except UntrustedFile as error:
        raise Denied(f"{shown(error.path)}: {error.problem}, so it {unusable}") from error


def same_file_system(path: str, other: str) -> bool:
    """Return True if two paths are, or would be created, on one file system."""
    return os.stat(existing_above(path)).st_dev == os.stat(other).st_dev
