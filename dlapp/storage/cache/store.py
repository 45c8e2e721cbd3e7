"""Cache of input on a node: fetched once, used by every task of the user that requests the same input again.

The matches of one source form one *entry*, named by a digest over the location and each file with its length and
modification time. So an entry never changes; a changed source is another entry.

    <directory>/                0700, its user's alone
        lock                    held for a moment by who makes room
        entries/<key>/about     what it is; ``tree`` beside it holds the files, under the names that they land with
        entries/<key>/pinned    it stays until it is unpinned
        locks/<key>             shared: in use; exclusive: being fetched, or being removed; its time: last used
        parts/<key>.<random>/   an entry that is being fetched, or removed

1. An entry is fetched into ``parts`` and gets its name by one rename, so a named entry is complete.
2. The key's lock is held exclusively meanwhile and ends with its holder, even if killed. A process that waited for it
   fetches then. An entry in ``parts`` without a held lock is abandoned and removed.
3. Users of an entry hold its lock shared, so entries in use are not removed.

A rename survives a SIGKILL, but after a power cut the content of files that were never synced is undefined. Syncing a
large input takes longer than fetching it, and no task should wait for that: until a process has settled an entry later,
the entry names the machine's boot in which it was fetched, and is invalid in any other.

If there is no space, the cache removes the least recently used entries; if that is not enough, `hold` returns None, and
the caller fetches without the cache.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

from dlapp.errors import DlappError, NotFound, TimedOut, UsageError
from dlapp.locations import shown
from dlapp.storage.cache.entry import (
    FORMAT,
    CacheEntry,
    CacheKeySource,
    CacheLocation,
    is_intact,
    make_cache_directories,
    names,
    read_metadata,
    same_file_system,
    write_metadata,
)
from dlapp.storage.tree import Note, explained
from dlapp.storage.values import DiskFull, Progress
from dlapp.system import lock_files, machine
from dlapp.system.disk_space import free_bytes, size_bytes
from dlapp.system.files import closing_fd, open_own_directory, read_file, remove_tree, sync_file_system
from dlapp.system.text import human_size
from dlapp.system.waits import Wait

_REPORT_EVERY_S = 0.2
_POLL_S = (0.02, 0.2)
STALLED_S = 300.0
"""Time without progress after which another task's fetch is not waited for any longer: its process may be stopped."""
EVICTION_S = 60.0
"""Maximum duration of an eviction; after it, other processes do without the space."""

Fetch = Callable[[str, Progress | None], object]
"""Function that fetches the wanted files into the given directory; see `dlapp.storage.api.FileSystem.fetch`."""


class CacheHold:
    """An entry that stays unchanged until `close`; the directory ``tree`` has the files, under destination names."""

    def __init__(self, key: str, tree: str, lock: int, release: Callable[[int], None], *, is_hit: bool) -> None:
        self.key, self.tree, self.is_hit = key, tree, is_hit
        self._lock, self._release = lock, release

    def close(self) -> None:
        """Release the entry: it may be deleted if no other process holds it. Idempotent."""
        if self._lock >= 0:
            lock, self._lock = self._lock, -1
            self._release(lock)


class _FetchWait:
    """Wait for another process's fetch: forwards its progress, and detects a stalled one."""

    def __init__(self) -> None:
        self.has_waited = False
        self._said, self._since = b"", time.monotonic()
        self._wait = Wait("another container that fetches the same input", STALLED_S)

    def wait(self, lock_path: str, progress: Progress | None) -> bool:
        """Wait a moment; return False if there was no progress for too long."""
        self.has_waited = True
        said = b""
        with contextlib.suppress(OSError, ValueError):
            said = read_file(lock_path, max_bytes=4096)
            done, total = map(int, said.split())
            if progress:
                progress(done, total)
        if said != self._said:
            self._said, self._since = said, time.monotonic()
            self._wait.renew()
        with self._wait:
            time.sleep(random.uniform(*_POLL_S))
        return time.monotonic() - self._since < STALLED_S


class InputCache:
    """One user's cache on this node. Several processes may use it at the same time.

    Args:
        note: takes lines for dlapp's own log.
        clock_ns: the time [ns since 1970].
        boot_id: id of this boot of the machine.

    Raises:
        Denied: the directory is another user's, or open to others, or has a parent that others can write to and that is
            not sticky.
        DlappError: it cannot be created.
    """

    def __init__(
        self,
        place: CacheLocation,
        note: Note = lambda _: None,
        *,
        clock_ns: Callable[[], int] = time.time_ns,
        boot_id: str = "",
    ) -> None:
        self.place, self._note, self._clock_ns = place, note, clock_ns
        self._boot_id = boot_id or machine.boot_id() or "unknown"  # an entry without a boot id is synced
        make_cache_directories(place.directory, ("entries", "locks", "parts"), "cannot be used as a cache")

    # ---- using the cache ----

    def hold(
        self, wanted: CacheKeySource, fetch: Fetch, *, spare_bytes: int = 0, progress: Progress | None = None
    ) -> CacheHold | None:
        """Return the requested input from the cache; fetch it if it is missing, or wait while another process fetches
        it.

        Args:
            wanted: identifies the entry.
            fetch: called at most twice, with an empty directory; its errors are passed on.
            spare_bytes: free space that must remain on the disk after the fetch.
            progress: passed to ``fetch``.

        Returns:
            None if there is no space here.
        """
        key, waiting = wanted.key, _FetchWait()
        while True:
            complete = self._is_complete(key)
            try:
                lock = lock_files.acquire(self._path("locks", key), shared=complete)
            except OSError as error:
                self._note(f"the cache in {self.place.directory} cannot be used: {error.strerror or error}")
                return None
            if lock is None:
                if not waiting.has_waited:
                    self._note(f"{shown(wanted.source)}: another task is fetching it; waiting")
                if not waiting.wait(self._path("locks", key), progress):
                    self._note(f"{shown(wanted.source)}: nothing was fetched for {STALLED_S:.0f} s; not waiting longer")
                    return None
                continue
            held = None
            try:
                if complete != self._is_complete(key):
                    continue
                tree = self._path("entries", key, "tree")
                if not complete:
                    held = self._fetched(key, wanted, lock, fetch, spare_bytes, progress)
                elif is_intact(tree, wanted):
                    held = self._held(key, lock, is_hit=True)
                else:
                    self._note(f"{shown(wanted.source)}: its cached copy is damaged; fetching it again")
                    if not lock_files.make_exclusive(lock):
                        return None  # others use it unchanged
                    if gone := self._move_aside(key):
                        remove_tree(gone)
                    held = self._fetched(key, wanted, lock, fetch, spare_bytes, progress)
                return held
            finally:
                if held is None:
                    self._release_lock(key, lock)

    def sync(self, key: str) -> None:
        """Sync an entry to the disk if that was not done yet, so that it stays valid after a reboot."""
        lock = lock_files.acquire(self._path("locks", key), shared=True)
        if lock is None:
            return
        try:
            metadata = self._metadata(key)
            if metadata is None or not metadata.get("boot_id"):
                return
            with closing_fd(open_own_directory(self._path("entries", key))) as fd:
                sync_file_system(fd)
                write_metadata(self._path("entries", key), {**metadata, "boot_id": ""})
                os.fsync(fd)
        except OSError as error:
            self._note(f"the cache entry {key[:12]} is not synced: {error.strerror or error}")
        finally:
            self._release_lock(key, lock)

    # ---- maintenance ----

    def entries(self) -> list[CacheEntry]:
        """Return all entries, the least recently used first."""
        found = []
        for key in names(self._path("entries")):
            metadata = self._metadata(key)
            if metadata is None:
                continue
            path = self._path("locks", key)
            try:
                used_ns = os.lstat(path).st_mtime_ns
            except FileNotFoundError:
                used_ns = metadata["fetched_ms"] * 1_000_000
            # A fetch of an entry that has a name is a repair.
            use = {"shared": "in use", "exclusive": "being fetched"}.get(lock_files.kind_held(path), "")
            pinned = os.path.lexists(self._path("entries", key, "pinned"))
            found.append(
                CacheEntry(
                    key,
                    metadata["source"],
                    metadata["size_bytes"],
                    metadata["room_bytes"],
                    metadata["files"],
                    metadata["fetched_ms"],
                    used_ns // 1_000_000,
                    pinned,
                    use,
                )
            )
        return sorted(found, key=lambda one: (one.used_ms, one.key))

    def find(self, text: str) -> list[CacheEntry]:
        """Return the entries whose key begins with ``text``, or whose source it is.

        Raises:
            NotFound: there is none.
            UsageError: the prefix is ambiguous.
        """
        kept = self.entries()
        if found := [one for one in kept if one.source == text]:
            return found
        found = [one for one in kept if text and one.key.startswith(text)]
        if not found:
            raise NotFound(f"{shown(text)}: no such entry in {self.place.directory} (dlapp-cache list shows them)")
        if len(found) > 1:
            raise UsageError(f"{len(found)} entries begin with {text!r}: {', '.join(one.key[:12] for one in found)}")
        return found

    def pin(self, key: str, pinned: bool = True) -> None:
        """Keep an entry until it is unpinned, whatever space is needed. Raises NotFound: it was removed meanwhile."""
        path = self._path("entries", key, "pinned")
        try:
            if pinned:
                with contextlib.suppress(FileExistsError):
                    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            else:
                os.unlink(path)
        except FileNotFoundError:
            if pinned:
                raise NotFound(f"the entry {key[:12]} was removed just now") from None
        except OSError as error:
            raise explained(error, path, "written" if pinned else "removed") from error

    def remove(self, key: str) -> bool:
        """Remove an entry, pinned or not; return False if it is in use."""
        lock = lock_files.acquire(self._path("locks", key), shared=False)
        if lock is None:
            return False
        self._remove(key, lock)
        return True

    def sweep(self, held: str = "") -> None:
        """Remove leftovers of killed fetches and removals, and entries that are invalid after a reboot; the caller has
        locked the key ``held`` exclusively."""
        left = [(name.partition(".")[0], self._path("parts", name)) for name in names(self._path("parts"))]
        kept = set()
        for key in names(self._path("entries")):
            if self._is_complete(key):
                kept.add(key)
            else:
                left.append((key, self._path("entries", key)))
        # Also locks of processes that were killed before they created anything else.
        left += [(key, "") for key in names(self._path("locks")) if key not in kept and key != held]
        for key, path in left:
            if key == held:
                remove_tree(path)
                continue
            lock = lock_files.acquire(self._path("locks", key), shared=False)
            if lock is None:
                continue  # of an entry that is being fetched
            try:
                # It may have been fetched since the check.
                if path and not (path == self._path("entries", key) and self._is_complete(key)):
                    remove_tree(path)
            finally:
                self._release_lock(key, lock)

    # ---- fetching ----

    def _fetched(
        self, key: str, wanted: CacheKeySource, lock: int, fetch: Fetch, spare_bytes: int, progress: Progress | None
    ) -> CacheHold | None:
        """Fetch under the exclusive lock, which is then converted to a shared one; None if there is no space."""
        for _ in range(2):
            try:
                self.sweep(held=key)
                part = self._create_part(key, wanted, spare_bytes)
            except (OSError, DlappError) as error:
                self._note(f"the cache in {self.place.directory} cannot be used: {error}")
                return None
            if part is None:
                return None
            try:
                tree = os.path.join(part, "tree")
                fetch(tree, self._progress_writer(lock, progress))
                if not is_intact(tree, wanted):
                    raise DlappError(f"{shown(wanted.source)} changed while it was fetched")
                os.rename(part, self._path("entries", key))
            except DiskFull as error:
                remove_tree(part)
                # Others wrote at the same time. Make room for the current usage and try once more; then give up on the
                # cache.
                self._note(f"{shown(wanted.source)} cannot be cached here: {error}")
            except BaseException:
                remove_tree(part)
                raise
            else:
                lock_files.make_shared(lock)
                return self._held(key, lock, is_hit=False)
        return None

    def _held(self, key: str, lock: int, *, is_hit: bool) -> CacheHold:
        self._touch(lock)
        tree = self._path("entries", key, "tree")
        return CacheHold(key, tree, lock, self._release_used, is_hit=is_hit)

    def _release_used(self, lock: int) -> None:
        with contextlib.suppress(OSError):
            self._touch(lock)
        os.close(lock)

    def _release_lock(self, key: str, lock: int) -> None:
        """Release a lock; also remove its file if it is held exclusively and has no entry."""
        path = self._path("locks", key)
        if not os.path.lexists(self._path("entries", key)) and lock_files.make_exclusive(lock):
            lock_files.remove_held(lock, path)
        else:
            os.close(lock)

    def _create_part(self, key: str, wanted: CacheKeySource, spare_bytes: int) -> str | None:
        """Return a directory to fetch into, once there is space; None if there is not."""
        with self._eviction_lock():
            if not self._reserve_space(wanted.room_bytes, spare_bytes):
                return None
            part = self._path("parts", f"{key}.{os.urandom(6).hex()}")
            os.mkdir(part, 0o700)
            os.mkdir(os.path.join(part, "tree"), 0o700)
            # From here on it counts, also for other processes that need space.
            metadata = {
                "format": FORMAT,
                "source": wanted.source,
                "size_bytes": wanted.size_bytes,
                "room_bytes": wanted.room_bytes,
                "files": wanted.files,
                "fetched_ms": self._clock_ns() // 1_000_000,
                "boot_id": self._boot_id,
            }
            write_metadata(part, metadata)
        return part

    def _progress_writer(self, lock: int, progress: Progress | None) -> Progress:
        """Forward progress, and write it to the lock file for waiting processes."""
        next_at = 0.0

        def report(done: int, total: int) -> None:
            nonlocal next_at
            if (now := time.monotonic()) >= next_at:
                next_at = now + _REPORT_EVERY_S
                with contextlib.suppress(OSError):
                    os.pwrite(lock, b"%20d %20d\n" % (done, total), 0)
            if progress:
                progress(done, total)

        return report

    # ---- space ----

    def evict_for(self, path: str, size_bytes: int) -> None:
        """Remove entries until ``path``, if it is on the cache's file system, has that much space, as far as possible:
        entries that are in use or pinned stay."""
        if size_bytes <= free_bytes(path) or not same_file_system(path, self.place.directory):
            return
        try:
            self.sweep()
            with self._eviction_lock():
                self._evict(0, size_bytes - free_bytes(path), partly=True)
        except (DlappError, OSError) as error:
            self._note(f"the cache in {self.place.directory} could not be reduced: {error}")

    def _reserve_space(self, room_bytes: int, spare_bytes: int) -> bool:
        """Evict entries for a number of additional bytes. Return True if they may be stored."""
        limit = self.place.limit_bytes
        if room_bytes > limit:
            self._note(f"{human_size(room_bytes)} exceed the limit of the cache ({human_size(limit)})")
            return False
        reserve = int(self.place.keep_free * size_bytes(self.place.directory))
        fetching = sum(one["room_bytes"] for one in self._parts())
        kept = sum(one.room_bytes for one in self.entries())
        over_limit = kept + fetching + room_bytes - limit
        over_disk = room_bytes + spare_bytes + reserve - free_bytes(self.place.directory)
        if self._evict(over_limit, over_disk):
            return True
        why = "what it keeps is in use or pinned, or the disk is full"
        self._note(f"the cache has no room for {human_size(room_bytes)}: {why}")
        return False

    def _evict(self, over_limit: int, over_disk: int, *, partly: bool = False) -> bool:
        """Remove entries that are too old, and the least recently used ones until enough bytes are free; without
        ``partly``, remove nothing if that is impossible.
        """
        oldest_ms = self._clock_ns() // 1_000_000 - int(self.place.age_s * 1000)
        must, going, locked = max(over_limit, over_disk, 0), 0, []
        for one in self.entries():
            if one.pinned or (one.used_ms >= oldest_ms and going >= must):
                continue
            lock = lock_files.acquire(self._path("locks", one.key), shared=False)
            if lock is not None:
                locked.append((one.key, lock))
                going += one.room_bytes
        enough = going >= must
        for key, lock in locked:
            if enough or partly:
                self._note(f"the cache entry {key[:12]} is removed to free space")
                self._remove(key, lock)
            else:
                os.close(lock)
        return enough

    def _remove(self, key: str, lock: int) -> None:
        """Remove an entry and its lock, which is held exclusively."""
        try:
            if gone := self._move_aside(key):
                remove_tree(gone)
        finally:
            self._release_lock(key, lock)

    def _move_aside(self, key: str) -> str | None:
        """Rename an entry away atomically; return what to remove."""
        gone = self._path("parts", f"{key}.{os.urandom(6).hex()}")
        try:
            os.rename(self._path("entries", key), gone)
        except FileNotFoundError:
            return None
        # It does not count any more; if we are killed now, it is removed like an abandoned fetch.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(gone, "about"))
        return gone

    @contextlib.contextmanager
    def _eviction_lock(self) -> Iterator[None]:
        deadline = time.monotonic() + EVICTION_S
        while (lock := lock_files.acquire(self._path("lock"), shared=False)) is None:
            if time.monotonic() > deadline:
                raise TimedOut(f"another process has been making room for {EVICTION_S:.0f} s")
            time.sleep(0.005)
        try:
            yield
        finally:
            os.close(lock)

    # ---- files ----

    def _path(self, *names: str) -> str:
        return os.path.join(self.place.directory, *names)

    def _metadata(self, key: str) -> dict[str, Any] | None:
        """Return the description of an entry; None if it is missing or not valid any more."""
        metadata = read_metadata(self._path("entries", key))
        is_valid = metadata and metadata["format"] == FORMAT and metadata["boot_id"] in ("", self._boot_id)
        return metadata if is_valid else None

    def _parts(self) -> list[dict[str, Any]]:
        found = [read_metadata(self._path("parts", name)) for name in names(self._path("parts"))]
        return [one for one in found if one is not None]

    def _is_complete(self, key: str) -> bool:
        return self._metadata(key) is not None

    def _touch(self, lock: int) -> None:
        now = self._clock_ns()
        os.utime(lock, ns=(now, now))
