"""Plan of a fetch before anything is written: which files, their destinations, the space needed.

    plan = open.plan_fetch(sources, into, hdfs) reads: matches, their files, and that their destinations differ
    plan.check_space()                          the disk
    plan.fetch(progress)                        fetches it

Between the first and the last call, a caller may remove what it has already (`FetchPlan.without`), as a cache does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, TypeVar

from dlapp.errors import DlappError, UsageError
from dlapp.locations import FILE, last_name, shown
from dlapp.storage.api import FileSystem
from dlapp.storage.tree import make_directories
from dlapp.storage.values import DiskFull, FetchTarget, FileTotals, MatchedEntry, Progress, TreeNode
from dlapp.system.disk_space import free_bytes, free_space_text, mount_point, size_bytes
from dlapp.system.files import is_plain_name
from dlapp.system.text import human_size
from dlapp.value import NamedTuple

if TYPE_CHECKING:
    from threading import Thread

T = TypeVar("T")
AbortCalls = Callable[[Collection[int]], AbstractContextManager[Callable[[], None]]]
"""Aborts the calls of threads (idents); see `dlapp.storage.api.OutputFileSystem.abort_calls`."""


class FetchPlan(NamedTuple):
    """Plan of a fetch into one directory: the targets, each with the file system of its source."""

    into: str
    targets: tuple[tuple[FileSystem, FetchTarget], ...]

    @property
    def totals(self) -> FileTotals:
        """Return the number of files, and their total bytes."""
        return FileTotals(sum(one.files for _, one in self.targets), sum(one.size_bytes for _, one in self.targets))

    @property
    def space_bytes(self) -> int:
        """Return the space that its files need, without their holes."""
        return sum(node.space_bytes for _, one in self.targets for node in one.nodes)

    def without(self, provided: Sequence[FetchTarget]) -> FetchPlan:
        """Return the plan without some targets, which are provided in another way."""
        paths = {one.path for one in provided}
        return self._replace(targets=tuple(pair for pair in self.targets if pair[1].path not in paths))

    def at(self, into: str) -> FetchPlan:
        """Return the plan with another destination directory."""
        into, start = into.rstrip("/") or "/", len(self.into.rstrip("/"))
        targets = [(system, one._replace(path=f"{into}{one.path[start:]}")) for system, one in self.targets]
        return FetchPlan(into, tuple(targets))

    def shard(self, index: int, total: int) -> FetchPlan:
        """Return the part of the files for container ``index`` of ``total``, with their parent directories."""
        from dlapp.storage.shards import shard

        places = [(path, node) for _, one in self.targets for node, path in one.places() if node.is_file or node.link]
        mine = shard(((path, node.size_bytes) for path, node in places), index, total)
        above = {path[:at] for path in mine for at, char in enumerate(path) if char == "/"}
        kept = []
        for system, one in self.targets:
            nodes = [node for node, path in one.places() if path in mine or path in above]
            if nodes:
                kept.append((system, one._replace(nodes=nodes)))
        return self._replace(targets=tuple(kept))

    def listed(self) -> list[str]:
        """Return the sources of all files, sorted: local paths, or locations.

        Raises:
            DlappError: a name contains a newline, so that a list file cannot hold it.
        """
        found = sorted(node.source for _, one in self.targets for node in one.nodes if node.is_file)
        for source in found:
            if "\n" in source:
                raise DlappError(f"{shown(source)} has a newline in its name, so it cannot be in a list")
        return found

    def check_free_names(self, *, may_be_there: bool = False) -> None:
        """Refuse targets that conflict with each other or, without ``may_be_there``, with existing files.

        Raises:
            DlappError: a file exists at a target, or two targets are the same.
        """
        taken: dict[str, TreeNode] = {}
        for _, target in self.targets:
            for node, path in target.places():
                other = taken.setdefault(path, node)
                if other is not node and not (other.is_dir and node.is_dir):
                    raise DlappError(
                        f"{shown(node.source)} and {shown(other.source)} would both be placed at {shown(path)}"
                    )
                if not may_be_there and os.path.lexists(path) and not (node.is_dir and os.path.isdir(path)):
                    raise DlappError(f"{shown(node.source)} cannot be fetched: {shown(path)} already exists")

    def check_space(self) -> None:
        """Raise DiskFull if there is not enough space."""
        total, free = self.space_bytes, free_bytes(self.into)
        if total > free:
            raise DiskFull(
                f"the input has {human_size(total)}, more than {shown(self.into)} can take; "
                f"{free_space_text(self.into)}",
                missing_bytes=total - free,
                place=mount_point(self.into),
                is_too_small=total > size_bytes(self.into),
            )

    def fetch(self, progress: Progress | None = None) -> FileTotals:
        """Fetch all entries, each under its own last name, directories with their contents.

        Nothing is written before it is known that there is enough space and no conflict. Permissions and modification
        times are kept, but the new owner can always read and write the fetched files.

        Raises:
            NotFound: an entry, or something in it, does not exist any more.
            DlappError: a file exists at a target, or changed while it was read; the message names the file.
            DiskFull: there is not enough space.
        """
        self.check_free_names()
        self.check_space()
        make_directories(self.into)
        totals = self.totals
        done = counter(totals.size_bytes, progress)
        by_system: dict[int, tuple[FileSystem, list[FetchTarget]]] = {}
        for system, target in self.targets:
            by_system.setdefault(id(system), (system, []))[1].append(target)
        for system, targets in by_system.values():
            system.fetch(targets, done)
        return totals


def plan_entries(
    entries: Sequence[tuple[FileSystem, MatchedEntry]], into: str, *, may_be_there: bool = False
) -> FetchPlan:
    targets = []
    for system, entry in entries:
        name = last_name(entry.location)
        # Local files may have any name that the file system allows.
        plain = is_plain_name(name) if not entry.location.startswith(FILE) else name not in (".", "..")
        if name and not plain:
            raise UsageError(f"{shown(entry.location)} has no name to be placed under")
        path = f"{into}/{name}".rstrip("/")
        targets.append((system, FetchTarget(entry, path, system.tree(entry))))
    plan = FetchPlan(into, tuple(targets))
    plan.check_free_names(may_be_there=may_be_there)
    return plan


def counter(total: int, progress: Progress | None) -> Callable[[int], None]:
    """Sum of the bytes done, reported to ``progress``; not thread-safe."""
    count = 0

    def done(more: int) -> None:
        nonlocal count
        count += more
        if progress:
            progress(min(count, total), total)

    return done


def run_parallel(
    work: Callable[[T, Callable[[int], None]], None],
    items: Sequence[T],
    done: Callable[[int], None],
    *,
    parallelism: int,
    abort_calls: AbortCalls = lambda _: nullcontext(lambda: None),
) -> None:
    """Call ``work`` with every item, several in parallel. The first error aborts the other calls and is raised.

    Args:
        work: processes one item, and calls its second argument with the bytes done.
        items: to process.
        done: called in the caller's thread with the bytes that the workers report.
        parallelism: number of parallel calls.
        abort_calls: aborts the calls of threads; see `WebHdfs.abort_calls`. Without it, each ends when it reports next.
    """
    import queue
    import threading

    todo: queue.SimpleQueue[T] = queue.SimpleQueue()
    heard: queue.SimpleQueue[int | None] = queue.SimpleQueue()
    failures: list[BaseException] = []
    for item in items:
        todo.put(item)

    def report(count: int) -> None:
        if failures:
            raise _Aborted
        if count:
            heard.put(count)

    def run() -> None:
        try:
            while not failures:
                work(todo.get_nowait(), report)
        except queue.Empty:
            pass
        except BaseException as error:
            failures.append(error)
        finally:
            heard.put(None)

    threads = [threading.Thread(target=run, name=f"file-{number}") for number in range(min(parallelism, len(items)))]
    try:
        try:
            for thread in threads:
                thread.start()
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
            _join([thread for thread in threads if thread.ident is not None], abort_calls if failures else None)
        if failures:
            raise failures[0]
    finally:
        # An error holds the frames that hold this list, which would keep connections open.
        failures.clear()


def _join(threads: Sequence[Thread], abort_calls: AbortCalls | None) -> None:
    """Wait for the end of started threads; with ``abort_calls`` abort what they do."""
    if abort_calls is not None:
        with abort_calls([thread.ident or 0 for thread in threads]) as cut:
            while any(thread.is_alive() for thread in threads):
                cut()
                threads[0].join(0.05)
    for thread in threads:
        thread.join()


class _Aborted(Exception):
    """Aborted because of another worker's error."""
