"""Caches of a user's payloads on a node that persist between runs: downloaded models, packages.

    <directory>/                0700, its user's alone
        lock                    held for a moment by who makes room; its time: the last time
        caches/<name>/          0700; payloads write it, dlapp never does
        locks/<name>            shared: a task uses it; exclusive: it is being removed; its time: last used
        removed/<name>.<random> a cache that is being removed

dlapp does not look inside a cache: it is kept or removed as a whole. It is removed when the user's caches exceed the
limit, or the disk has less free space than it should, the least recently used first, or when it was unused for too
long; never while a task holds its lock. Payloads that share a cache must synchronize themselves.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Collection

from dlapp.errors import Denied, DlappError, TimedOut
from dlapp.locations import shown
from dlapp.storage.cache.entry import CacheLocation, make_cache_directories, names
from dlapp.storage.tree import Note, explained
from dlapp.system import lock_files
from dlapp.system.disk_space import free_bytes, size_bytes
from dlapp.system.files import UntrustedFile, closing_fd, open_directory, open_own_directory, remove_tree
from dlapp.system.text import human_size
from dlapp.system.waits import Wait
from dlapp.value import NamedTuple

WAIT_S = 60.0
"""Time limit of the wait for a lock: removal of a cache is one rename, so locks are held briefly."""
_AGAIN_S = 0.02
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class PayloadCacheEntry(NamedTuple):
    """A cache, as `PayloadCaches.entries` lists it.

    Args:
        size_bytes: disk space used.
        used_ms: when a task last used it [ms since 1970].
        in_use: whether a task uses it now.
    """

    name: str
    size_bytes: int
    used_ms: int
    in_use: bool


class PayloadCaches:
    """One user's caches on this node. Several processes may use them at the same time.

    Args:
        place: directory and limits.
        note: takes lines for dlapp's own log.
        evict_every_s: time in which the caches are measured, and those above the limits removed, at most once.

    Raises:
        Denied: the directory is another user's, or others can write to it or replace it.
        DlappError: it cannot be created.
    """

    def __init__(self, place: CacheLocation, note: Note = lambda _: None, evict_every_s: float = 0.0) -> None:
        self.place, self._note, self._evict_every_s = place, note, evict_every_s
        self._held: dict[str, int] = {}
        make_cache_directories(place.directory, ("caches", "locks", "removed"), "cannot have caches")

    @property
    def lock_fds(self) -> tuple[int, ...]:
        """Return the descriptors that keep the locks held, in whatever process they are open."""
        return tuple(self._held.values())

    def hold(self, name: str, *, create: bool = True) -> str:
        """Return the path of a cache, kept until `close`.

        Args:
            create: create it if it is missing; else the payload may.

        Raises:
            Denied: another file has its name.
            DlappError: it cannot be created.
        """
        path = self._path("caches", name)
        if name in self._held:
            return path
        self._held[name] = lock = self._locked(self._path("locks", name))
        try:
            with closing_fd(open_own_directory(self._path("caches"))) as above:
                if create:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(name, 0o700, dir_fd=above)
                elif name not in os.listdir(above):
                    return path
                with closing_fd(open_directory(name, dir_fd=above, path=path, owners=(os.geteuid(),))) as fd:
                    os.fchmod(fd, 0o700)  # payloads may have changed it
            os.utime(lock)
        except UntrustedFile as error:
            raise Denied(str(error)) from error
        except OSError as error:
            raise explained(error, path, "made") from error
        return path

    def entries(self, only: Collection[str] | None = None) -> list[PayloadCacheEntry]:
        """Return all caches, or those named ``only``, the least recently used first."""
        found = [
            PayloadCacheEntry(
                name,
                _size_bytes(self._path("caches", name)),
                int(self._used_s(name) * 1000),
                lock_files.kind_held(self._path("locks", name)) == "shared",
            )
            for name in names(self._path("caches"))
            if only is None or name in only
        ]
        return sorted(found, key=lambda one: one.used_ms)

    def remove(self, name: str) -> bool:
        """Remove a cache. Return False if a task uses it, or another process is removing it."""
        if (path := self._move_aside(name)) is None:
            return False
        remove_tree(path)
        return True

    def close(self) -> None:
        """Release all held caches, then remove those above the limits. Idempotent."""
        if not self._held:
            return
        for lock in self._held.values():
            with contextlib.suppress(OSError):
                os.utime(lock)
            os.close(lock)
        self._held.clear()
        try:
            evicted_s = os.lstat(self._path("lock")).st_mtime
        except FileNotFoundError:
            evicted_s = 0.0
        if 0 <= time.time() - evicted_s < self._evict_every_s:
            return
        try:
            self._evict()
        except (DlappError, OSError) as error:
            self._note(f"the caches in {self.place.directory} could not be read: {error}")

    def _evict(self) -> None:
        for name in names(self._path("removed")):  # left by killed processes
            remove_tree(self._path("removed", name))
        gone = []
        lock = self._locked(self._path("lock"), shared=False)
        try:
            os.utime(lock)
            sizes = {name: _size_bytes(self._path("caches", name)) for name in names(self._path("caches"))}
            used_s = {name: self._used_s(name) for name in sizes}
            reserve = int(self.place.keep_free * size_bytes(self.place.directory))
            total = sum(sizes.values())
            over = max(total - self.place.limit_bytes, reserve - free_bytes(self.place.directory))
            for name in sorted(sizes, key=lambda name: used_s[name]):
                if over <= 0 and used_s[name] >= time.time() - self.place.age_s:
                    continue
                if (path := self._move_aside(name)) is not None:
                    over -= sizes[name]
                    gone.append(path)
                    self._note(
                        f"the cache {name} ({human_size(sizes[name])}) is removed: all have {human_size(total)}, "
                        f"the limit is {human_size(self.place.limit_bytes)}"
                    )
        finally:
            os.close(lock)
        for path in gone:
            remove_tree(path)

    def _move_aside(self, name: str) -> str | None:
        """Rename a cache away atomically; return what to remove, or None if a task uses it."""
        path = self._path("locks", name)
        lock = lock_files.acquire(path, shared=False)
        if lock is None:
            return None
        gone = self._path("removed", f"{name}.{os.urandom(6).hex()}")
        try:
            os.rename(self._path("caches", name), gone)
        except FileNotFoundError:
            return None
        finally:
            lock_files.remove_held(lock, path)
        return gone

    def _used_s(self, name: str) -> float:
        try:
            return os.lstat(self._path("locks", name)).st_mtime
        except FileNotFoundError:
            return 0.0

    def _locked(self, path: str, *, shared: bool = True) -> int:
        deadline = time.monotonic() + WAIT_S
        with Wait(f"another process that has {shown(path)} locked", WAIT_S):
            while (lock := lock_files.acquire(path, shared=shared)) is None:
                if time.monotonic() > deadline:
                    raise TimedOut(f"{shown(path)} has been locked by another process for {WAIT_S:.0f} s")
                time.sleep(_AGAIN_S)
        return lock

    def _path(self, *names: str) -> str:
        return os.path.join(self.place.directory, *names)


def _size_bytes(path: str) -> int:
    """Return the disk space of a tree; entries that disappear meanwhile do not count.

    A payload may nest directories arbitrarily deep: use no full paths, and no descriptor or recursion for each level.
    """
    seen: set[int] = set()
    total = 0
    try:
        fd = os.open(path, _DIRECTORY)
    except OSError:
        return 0
    levels: list[tuple[os.stat_result, list[str]]] = []  # each directory on the current path, and its remaining ones
    is_new = True
    try:
        while True:
            if is_new:
                levels.append((os.fstat(fd), inner := []))
                with contextlib.suppress(OSError), os.scandir(fd) as entries:
                    for entry in entries:
                        with contextlib.suppress(OSError):
                            found = entry.stat(follow_symlinks=False)
                            if stat.S_ISDIR(found.st_mode):
                                inner.append(entry.name)
                            if found.st_nlink == 1 or found.st_ino not in seen:
                                total += found.st_blocks * 512
                                if found.st_nlink > 1:
                                    seen.add(found.st_ino)
            _, inner = levels[-1]
            if is_new := bool(inner):
                new = _open_subdirectory(fd, inner.pop())
                if new is None:
                    is_new = False
                    continue
            else:
                levels.pop()
                if not levels:
                    return total
                new = _open_subdirectory(fd, "..")
                if new is None:
                    return total
            os.close(fd)
            fd = new
            if not is_new and not os.path.samestat(os.fstat(fd), levels[-1][0]):
                return total  # moved meanwhile
    finally:
        os.close(fd)


def _open_subdirectory(above: int, name: str) -> int | None:
    """Open a subdirectory; None if it is gone or inaccessible."""
    try:
        fd = os.open(name, _DIRECTORY, dir_fd=above)
    except OSError:
        return None
    try:
        os.stat(".", dir_fd=fd)
    except OSError:
        os.close(fd)
        return None
    return fd
