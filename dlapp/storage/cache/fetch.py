"""Fetching input through the node's cache: planned fetches are taken from it where possible.

A container gets cached files as a read-only mount: nothing is copied. A plain process could write through a mount or a
link, so it gets a copy, which shares its blocks with the cache if the file system can do that.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from dlapp.locations import FILE
from dlapp.storage.api import FileSystem, Moved, Progress
from dlapp.storage.cache.entry import CacheKeySource
from dlapp.storage.cache.store import CacheHold, InputCache
from dlapp.storage.fetch_plan import FetchPlan, FetchTarget, counter
from dlapp.storage.tree import copy_nodes, explaining, make_directories
from dlapp.system.disk_space import free_bytes

MAX_ENTRIES = 32
"""Beyond as many matches, all of them are one entry: each entry that is in use costs a descriptor and a mount."""


class Mounted(NamedTuple):
    """A file or directory of the cache, and the absolute path where the payload finds it; an empty file or directory
    there is the mount point."""

    source: str
    path: str


class FetchResult(NamedTuple):
    """Result of fetching input.

    Args:
        moved: the whole input.
        hits: the part of it that came from the cache.
        mounts: files and directories that exist only once mounted.
        held: entries in use by ``mounts``; close them after the mounts are gone.
        settle: keys of entries that are not synced yet; see `InputCache.settle`.
    """

    moved: Moved
    hits: Moved = Moved(0, 0)
    mounts: tuple[Mounted, ...] = ()
    held: tuple[CacheHold, ...] = ()
    settle: tuple[str, ...] = ()


def fetch(
    plan: FetchPlan,
    cache: InputCache | None,
    *,
    may_mount: bool = False,
    closed_to_mounts: Sequence[str] = (),
    progress: Progress | None = None,
) -> FetchResult:
    """Execute a plan, through ``cache`` if there is one.

    Args:
        plan: what to fetch, and where to put it.
        cache: of this node; None if there is none.
        may_mount: whether the payload is a container.
        closed_to_mounts: absolute paths; input that contains one of them is copied, because it must be writable.
        progress: called with the bytes done and the total.

    Raises:
        see `FetchPlan.fetch` for errors.
    """
    if cache is None:
        return FetchResult(plan.fetch(progress))
    tell = _Shares(plan.moved.size_bytes, progress)
    hits, mounts, held, settle = Moved(0, 0), list[Mounted](), list[CacheHold](), list[str]()
    there: list[FetchTarget] = []
    try:
        for system, landings in _groups(plan):
            mounted = may_mount and all(_mountable(each, closed_to_mounts) for each in landings)
            # A copy needs additional space unless blocks are shared.
            one = _hold(cache, system, landings, 0 if mounted else _size(landings), tell)
            if one is None:
                continue  # without the cache, below
            if mounted:
                held.append(one)
                mounts += [_mount_point(each, one.tree) for each in landings]
            elif not _copied(cache, landings, one, plan.into):
                continue
            settle.append(one.key)
            there += landings
            if one.was_there:
                hits = Moved(hits.files + sum(each.files for each in landings), hits.size_bytes + _size(landings))
        rest = plan.without(there)
        if rest.landings:
            cache.make_room(plan.into, rest.moved.size_bytes)
            rest.fetch(tell.share(rest.moved.size_bytes))
    except BaseException:
        for each in held:
            each.close()
        raise
    return FetchResult(plan.moved, hits, tuple(mounts), tuple(held), tuple(settle))


def is_worth_keeping(plan: FetchPlan) -> bool:
    """Return whether any of it may be cached."""
    return any(_may_be_kept(one) for _, one in plan.landings)


def _may_be_kept(landing: FetchTarget) -> bool:
    """Local files need no cache; without a modification time, changes of a file could not be detected."""
    here = landing.entry.location.startswith(FILE)
    return not here and all(node.mtime_ns for node in landing.nodes if node.is_file)


def _groups(plan: FetchPlan) -> list[tuple[FileSystem, list[FetchTarget]]]:
    """Return what may be cached, by entry."""
    some = [(system, one) for system, one in plan.landings if _may_be_kept(one)]
    if len(some) <= MAX_ENTRIES:
        return [(system, [one]) for system, one in some]
    by_system: dict[int, tuple[FileSystem, list[FetchTarget]]] = {}
    for system, one in some:
        by_system.setdefault(id(system), (system, []))[1].append(one)
    return list(by_system.values())


def _hold(
    cache: InputCache, system: FileSystem, landings: Sequence[FetchTarget], spare_bytes: int, tell: _Shares
) -> CacheHold | None:
    first, more = landings[0].entry.location, len(landings) - 1
    named = [(os.path.basename(one.path), one) for one in landings]
    wanted = CacheKeySource(
        f"{first} and {more} more" if more else first, tuple((name, one.nodes) for name, one in named)
    )
    size = wanted.size_bytes

    def fetch(into: str, progress: Progress | None) -> None:
        system.bring([one._replace(path=f"{into}/{name}") for name, one in named], counter(size, progress))

    return cache.hold(wanted, fetch, spare_bytes=spare_bytes, progress=tell.share(size))


def _mountable(landing: FetchTarget, closed: Sequence[str]) -> bool:
    """Return True if the destination is empty, and nothing below it must be written."""
    path = landing.path
    return not os.path.lexists(path) and not any(one == path or one.startswith(path + "/") for one in closed)


def _mount_point(landing: FetchTarget, tree: str) -> Mounted:
    with explaining(landing.path, "made"):
        os.makedirs(os.path.dirname(landing.path), exist_ok=True)
        if landing.entry.is_dir:
            os.mkdir(landing.path)
        else:
            os.close(os.open(landing.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))
    return Mounted(os.path.join(tree, os.path.basename(landing.path)), landing.path)


def _copied(cache: InputCache, landings: Sequence[FetchTarget], held: CacheHold, into: str) -> bool:
    """Copy an entry to its destination, and release it; if there is no space for the copy, remove the entry and return
    False.
    """
    try:
        size = _size(landings)
        cache.make_room(into, size)
        if size > free_bytes(into):
            held.close()
            cache.remove(held.key)
            return False
        make_directories(into)
        for one in landings:
            top = os.path.join(held.tree, os.path.basename(one.path))
            nodes = [node._replace(source=f"{top}/{node.name}".rstrip("/")) for node in one.nodes]
            copy_nodes(nodes, one.path, merge=True, owner_bits=0o600, done=lambda count: None)
    finally:
        held.close()
    return True


def _size(landings: Sequence[FetchTarget]) -> int:
    return sum(one.size_bytes for one in landings)


class _Shares:
    """Progress of parts, reported as progress of the whole."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._total, self._progress, self._before = total, progress, 0

    def share(self, size: int) -> Progress | None:
        """Return the callback for the next part of ``size`` bytes; earlier parts count as done."""
        if self._progress is None:
            return None
        whole, before, total = self._progress, self._before, self._total
        self._before += size
        return lambda done, _: whole(min(before + done, total), total)
