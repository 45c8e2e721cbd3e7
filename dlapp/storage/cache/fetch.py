"""Fetching input through the node's cache: planned fetches are taken from it where possible.

A container gets cached files as a read-only mount: nothing is copied. A plain process could write through a mount or a
link, so it gets a copy, which shares its blocks with the cache if the file system can do that.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from dlapp.locations import FILE
from dlapp.storage.api import FileSystem
from dlapp.storage.cache.entry import CacheKeySource
from dlapp.storage.cache.store import CacheHold, InputCache
from dlapp.storage.fetch_plan import FetchPlan, counter
from dlapp.storage.tree import copy_nodes, explaining, make_directories
from dlapp.storage.values import FetchTarget, FileTotals, Progress
from dlapp.system.disk_space import free_bytes

MAX_ENTRIES = 32
"""Beyond as many matches, all of them are one entry: each entry that is in use costs a descriptor and a mount."""


class CacheMount(NamedTuple):
    """A file or directory of the cache, and the absolute path where the payload finds it; an empty file or directory
    there is the mount point."""

    source: str
    path: str


class FetchResult(NamedTuple):
    """Result of fetching input.

    Args:
        totals: the whole input.
        hits: the part of it that came from the cache.
        mounts: files and directories that exist only once mounted.
        held: entries in use by ``mounts``; close them after the mounts are gone.
        unsynced: keys of entries that are not synced yet; see `InputCache.sync`.
    """

    totals: FileTotals
    hits: FileTotals = FileTotals(0, 0)
    mounts: tuple[CacheMount, ...] = ()
    held: tuple[CacheHold, ...] = ()
    unsynced: tuple[str, ...] = ()


def fetch(
    plan: FetchPlan,
    cache: InputCache | None,
    *,
    may_mount: bool = False,
    writable_paths: Sequence[str] = (),
    progress: Progress | None = None,
) -> FetchResult:
    """Execute a plan, through ``cache`` if there is one.

    Args:
        plan: what to fetch, and where to put it.
        cache: the cache of this node; None if there is none.
        may_mount: whether the payload is a container.
        writable_paths: absolute paths; input that contains one of them is copied, because it must be writable.
        progress: called with the bytes done and the total.

    Raises:
        see `FetchPlan.fetch` for errors.
    """
    if cache is None:
        return FetchResult(plan.fetch(progress))
    parts = _PartialProgress(plan.totals.size_bytes, progress)
    hits, mounts, held, unsynced = FileTotals(0, 0), list[CacheMount](), list[CacheHold](), list[str]()
    cached: list[FetchTarget] = []
    try:
        for system, targets in _groups(plan):
            mounted = may_mount and all(_mountable(each, writable_paths) for each in targets)
            # A copy needs additional space unless blocks are shared.
            one = _hold(cache, system, targets, 0 if mounted else _size(targets), parts)
            if one is None:
                continue  # without the cache, below
            if mounted:
                held.append(one)
                mounts += [_mount_point(each, one.tree) for each in targets]
            elif not _copied(cache, targets, one, plan.into):
                continue
            unsynced.append(one.key)
            cached += targets
            if one.is_hit:
                hits = FileTotals(hits.files + sum(each.files for each in targets), hits.size_bytes + _size(targets))
        rest = plan.without(cached)
        if rest.targets:
            cache.evict_for(plan.into, rest.space_bytes)
            rest.fetch(parts.next_part(rest.totals.size_bytes))
    except BaseException:
        for each in held:
            each.close()
        raise
    return FetchResult(plan.totals, hits, tuple(mounts), tuple(held), tuple(unsynced))


def is_cacheable(plan: FetchPlan) -> bool:
    """Return whether any of it may be cached."""
    return any(_is_cacheable(one) for _, one in plan.targets)


def _is_cacheable(target: FetchTarget) -> bool:
    """Return whether a file may be cached: local files need no cache; changes show in the modification time only."""
    here = target.entry.location.startswith(FILE)
    return not here and all(node.mtime_ns for node in target.nodes if node.is_file)


def _groups(plan: FetchPlan) -> list[tuple[FileSystem, list[FetchTarget]]]:
    """Return what may be cached, by entry."""
    some = [(system, one) for system, one in plan.targets if _is_cacheable(one)]
    if len(some) <= MAX_ENTRIES:
        return [(system, [one]) for system, one in some]
    by_system: dict[int, tuple[FileSystem, list[FetchTarget]]] = {}
    for system, one in some:
        by_system.setdefault(id(system), (system, []))[1].append(one)
    return list(by_system.values())


def _hold(
    cache: InputCache, system: FileSystem, targets: Sequence[FetchTarget], spare_bytes: int, parts: _PartialProgress
) -> CacheHold | None:
    first, more = targets[0].entry.location, len(targets) - 1
    named = [(os.path.basename(one.path), one) for one in targets]
    wanted = CacheKeySource(
        f"{first} and {more} more" if more else first, tuple((name, one.nodes) for name, one in named)
    )
    size = wanted.size_bytes

    def fetch(into: str, progress: Progress | None) -> None:
        system.fetch([one._replace(path=f"{into}/{name}") for name, one in named], counter(size, progress))

    return cache.hold(wanted, fetch, spare_bytes=spare_bytes, progress=parts.next_part(size))


def _mountable(target: FetchTarget, writable_paths: Sequence[str]) -> bool:
    """Return True if the destination is empty, and nothing below it must be written."""
    path = target.path
    return not os.path.lexists(path) and not any(one == path or one.startswith(path + "/") for one in writable_paths)


def _mount_point(target: FetchTarget, tree: str) -> CacheMount:
    with explaining(target.path, "made"):
        os.makedirs(os.path.dirname(target.path), exist_ok=True)
        if target.entry.is_dir:
            os.mkdir(target.path)
        else:
            os.close(os.open(target.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))
    return CacheMount(os.path.join(tree, os.path.basename(target.path)), target.path)


def _copied(cache: InputCache, targets: Sequence[FetchTarget], held: CacheHold, into: str) -> bool:
    """Copy an entry to its destination, and release it; without space for the copy, remove it and return False."""
    try:
        size = _size(targets)
        cache.evict_for(into, size)
        if size > free_bytes(into):
            held.close()
            cache.remove(held.key)
            return False
        make_directories(into)
        for one in targets:
            top = os.path.join(held.tree, os.path.basename(one.path))
            nodes = [node._replace(source=f"{top}/{node.name}".rstrip("/")) for node in one.nodes]
            copy_nodes(nodes, one.path, merge=True, owner_bits=0o600, done=lambda count: None)
    finally:
        held.close()
    return True


def _size(targets: Sequence[FetchTarget]) -> int:
    return sum(one.size_bytes for one in targets)


class _PartialProgress:
    """Progress of parts, reported as progress of the whole."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._total, self._progress, self._before = total, progress, 0

    def next_part(self, size: int) -> Progress | None:
        """Return the callback for the next part of ``size`` bytes; earlier parts count as done."""
        if self._progress is None:
            return None
        whole, before, total = self._progress, self._before, self._total
        self._before += size
        return lambda done, _: whole(min(before + done, total), total)
