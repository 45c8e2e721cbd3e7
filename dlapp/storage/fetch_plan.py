"""Plan of a fetch before anything is written: which files, where each lands, how much room all of it takes.

    plan = open.plan_fetch(sources, into, hdfs) looks: what matches, all that is in it, that no two land in one place
    plan.check_room()                           the disk
    plan.fetch(progress)                        brings it

Between the first and the last a caller may take out what it has already (`FetchPlan.without`), as a cache does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple, TypeVar

from dlapp.errors import DlappError, UsageError
from dlapp.locations import FILE, last_name, shown
from dlapp.storage.api import DiskFull, FileSystem, MatchedEntry, Moved, Progress
from dlapp.storage.tree import TreeNode, make_directories
from dlapp.system.disk_space import free_bytes, mount_point, room_at, size_bytes
from dlapp.system.files import is_plain_name
from dlapp.system.text import human_size

T = TypeVar("T")


class FetchTarget(NamedTuple):
    """One entry, all that is in it, and the absolute path that it lands at."""

    entry: MatchedEntry
    path: str
    nodes: list[TreeNode]

    @property
    def size_bytes(self) -> int:
        """Size of all files in it together."""
        return sum(node.size_bytes for node in self.nodes if node.is_file)

    @property
    def files(self) -> int:
        """Number of files in it."""
        return sum(node.is_file for node in self.nodes)

    def places(self) -> Iterator[tuple[TreeNode, str]]:
        """Each thing in it with its path here, parents first."""
        for node in self.nodes:
            yield node, f"{self.path}/{node.name}" if node.name else self.path


class FetchPlan(NamedTuple):
    """Plan of a fetch into one directory: what lands there, with the file system that it comes from."""

    into: str
    landings: tuple[tuple[FileSystem, FetchTarget], ...]

    @property
    def moved(self) -> Moved:
        """Number of files, with their bytes."""
        return Moved(sum(one.files for _, one in self.landings), sum(one.size_bytes for _, one in self.landings))

    def without(self, landed: Sequence[FetchTarget]) -> FetchPlan:
        """The same without some landings: they are there in another way."""
        paths = {one.path for one in landed}
        return self._replace(landings=tuple(pair for pair in self.landings if pair[1].path not in paths))

    def at(self, into: str) -> FetchPlan:
        """The same, landing in another directory."""
        into = into.rstrip("/") or "/"
        moved = [
            (system, one._replace(path=f"{into}{one.path[len(self.into.rstrip('/')) :]}"))
            for system, one in self.landings
        ]
        return FetchPlan(into, tuple(moved))

    def shard(self, index: int, total: int) -> FetchPlan:
        """The part of the files that container ``index`` of ``total`` gets, with the directories above them."""
        from dlapp.storage.shards import shard

        places = [(path, node) for _, one in self.landings for node, path in one.places() if node.is_file or node.link]
        mine = shard(((path, node.size_bytes) for path, node in places), index, total)
        above = {path[:at] for path in mine for at, char in enumerate(path) if char == "/"}
        kept = []
        for system, one in self.landings:
            nodes = [node for node, path in one.places() if path in mine or path in above]
            if nodes:
                kept.append((system, one._replace(nodes=nodes)))
        return self._replace(landings=tuple(kept))

    def listed(self) -> list[str]:
        """Return where all files of it are, sorted: paths on this machine, else locations.

        Raises:
            DlappError: a name has a newline in it, so a list cannot hold it.
        """
        found = sorted(node.source for _, one in self.landings for node in one.nodes if node.is_file)
        for source in found:
            if "\n" in source:
                raise DlappError(f"{shown(source)} has a newline in its name, so it cannot be in a list")
        return found

    def check_free_names(self) -> None:
        """Refuse what would land on something else.

        Raises:
            DlappError: a file stands where one would land, or two would land in one place.
        """
        _check_free_names([one for _, one in self.landings])

    def check_room(self) -> None:
        """Raises DiskFull: it is more than there is room for."""
        total, free = self.moved.size_bytes, free_bytes(self.into)
        if total > free:
            raise DiskFull(
                f"the input has {human_size(total)}, more than {shown(self.into)} can take; {room_at(self.into)}",
                missing_bytes=total - free,
                place=mount_point(self.into),
                is_too_small=total > size_bytes(self.into),
            )

    def fetch(self, progress: Progress | None = None) -> Moved:
        """Bring it, each entry under its own last name, directories with all they hold.

        Nothing is written before it is known that all of it has room and that nothing is in its way. Permissions and
        modification times are kept, but what is fetched can always be read and written by its new owner.

        Raises:
            NotFound: an entry, or something in it, is gone.
            DlappError: a file stands where one would land, or changed while it was read; it names the file.
            DiskFull: there is not enough room.
        """
        self.check_free_names()
        self.check_room()
        make_directories(self.into)
        moved = self.moved
        done = counter(moved.size_bytes, progress)
        by_system: dict[int, tuple[FileSystem, list[FetchTarget]]] = {}
        for system, landing in self.landings:
            by_system.setdefault(id(system), (system, []))[1].append(landing)
        for system, landings in by_system.values():
            system.bring(landings, done)
        return moved


def plan_entries(
    entries: Sequence[tuple[FileSystem, MatchedEntry]], into: str, *, may_be_there: bool = False
) -> FetchPlan:
    landings = []
    for system, entry in entries:
        name = last_name(entry.location)
        # Local files may have any name that the file system allows.
        plain = is_plain_name(name) if not entry.location.startswith(FILE) else name not in (".", "..")
        if name and not plain:
            raise UsageError(f"{shown(entry.location)} has no name to be placed under")
        path = f"{into}/{name}".rstrip("/")
        landings.append((system, FetchTarget(entry, path, system.tree(entry))))
    _check_free_names([one for _, one in landings], may_be_there=may_be_there)
    return FetchPlan(into, tuple(landings))


def _check_free_names(landings: Sequence[FetchTarget], *, may_be_there: bool = False) -> None:
    """Refuse what would land on something else, before anything is written."""
    taken: dict[str, TreeNode] = {}
    for landing in landings:
        for node, path in landing.places():
            other = taken.setdefault(path, node)
            if other is not node and not (other.is_dir and node.is_dir):
                raise DlappError(
                    f"{shown(node.source)} and {shown(other.source)} would both be placed at {shown(path)}"
                )
            if not may_be_there and os.path.lexists(path) and not (node.is_dir and os.path.isdir(path)):
                raise DlappError(f"{shown(node.source)} cannot be fetched: {shown(path)} already exists")


def counter(total: int, progress: Progress | None) -> Callable[[int], None]:
    """Adds up what is done and tells ``progress``; for one thread."""
    count = 0

    def done(more: int) -> None:
        nonlocal count
        count += more
        if progress:
            progress(min(count, total), total)

    return done


def all_at_once(
    work: Callable[[T, Callable[[int], None]], None],
    items: Sequence[T],
    done: Callable[[int], None],
    *,
    at_once: int,
    cut_off: Callable[[Collection[int]], AbstractContextManager[Callable[[], None]]] = lambda _: nullcontext(_nothing),
) -> None:
    """Do ``work`` with every item, several at a time. After the first failure, which is raised, all are cut off.

    Args:
        work: does one item, and calls its second argument with the bytes that are done.
        items: what to do.
        done: hears, in the caller's thread, what the workers tell.
        at_once: how many at a time.
        cut_off: ends the calls of threads; see `WebHdfs.cut_off`. Without it each ends when it tells next.
    """
    import queue
    import threading

    todo: queue.SimpleQueue[T] = queue.SimpleQueue()
    heard: queue.SimpleQueue[int | None] = queue.SimpleQueue()
    failures: list[BaseException] = []
    for item in items:
        todo.put(item)

    def tell(count: int) -> None:
        if failures:
            raise _CutOff
        if count:
            heard.put(count)

    def run() -> None:
        try:
            while not failures:
                work(todo.get_nowait(), tell)
        except queue.Empty:
            pass
        except BaseException as error:
            failures.append(error)
        finally:
            heard.put(None)

    threads = [threading.Thread(target=run, name=f"file-{number}") for number in range(min(at_once, len(items)))]
    for thread in threads:
        thread.start()
    try:
        try:
            running = len(threads)
            while running and not failures:
                told = heard.get()
                if told is None:
                    running -= 1
                else:
                    done(told)
        except BaseException as error:
            failures.insert(0, error)
            raise
        finally:
            if failures:
                with cut_off([thread.ident or 0 for thread in threads]) as cut:
                    while any(thread.is_alive() for thread in threads):
                        cut()
                        threads[0].join(0.05)
            for thread in threads:
                thread.join()
        if failures:
            raise failures[0]
    finally:
        # An error holds the frames that hold this list; with it, they would keep connections open.
        failures.clear()


class _CutOff(Exception):
    """Somebody else's failure ends this, too."""


def _nothing() -> None:
    pass
