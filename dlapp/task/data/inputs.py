"""Input of a task: fetched, or taken from the node's cache, where its entries stay locked while in use.

The cache is in a directory of the user below the one in /etc/dlapp/node.yaml, if the operator set one. Otherwise it is
at the path from the engine (`dlapp.cluster`), on the file system of the container's own directory, so that copies can
share blocks. If a cache cannot be used, that is logged and everything is fetched.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from dlapp.errors import DlappError
from dlapp.storage.values import FileTotals, Progress
from dlapp.system.text import human_size

if TYPE_CHECKING:
    from dlapp.storage.cache.store import CacheHold, InputCache
    from dlapp.storage.fetch_plan import FetchPlan
    from dlapp.values.launch_spec import CacheSettings

SETTLE_AFTER_S = 60.0
"""Time after which the kernel has written the fetched data to disk by itself (vm.dirty_expire_centisecs: 30 s), so that
a sync is quick, and a payload that ends early does not wait for one. Source: proc(5), /proc/sys/vm."""


class Inputs:
    """The input of one container.

    Args:
        settings: the settings of the cache, as passed on by the engine; None disables the cache.
    """

    def __init__(self, settings: CacheSettings | None, note: Callable[[str], None]) -> None:
        self._settings, self._note = settings, note
        self._cache: InputCache | None = None
        self._held: list[CacheHold] = []
        self._settle: list[str] = []
        self._closed = threading.Event()
        self.mounts: list[tuple[str, str]] = []
        """Path of the host, and absolute path in the workspace where the payload is to find it, read-only."""

    def bring(
        self,
        plan: FetchPlan,
        *,
        may_mount: bool,
        closed_to_mounts: Sequence[str] = (),
        progress: Progress | None = None,
    ) -> FileTotals:
        """Execute the plan of `dlapp.storage.open.plan_fetch`. Raises the same errors.

        Args:
            plan: what to fetch, and where to put it.
            may_mount: whether the payload runs in a container; see `mounts`.
            closed_to_mounts: absolute paths that may have to be written.
            progress: called with the bytes done and the total.
        """
        # Tasks without input do not load these modules.
        from dlapp.storage.cache.fetch import fetch

        brought = fetch(
            plan,
            self._cache_for(plan),
            may_mount=may_mount,
            writable_paths=closed_to_mounts,
            progress=progress,
        )
        self._held += brought.held
        self._settle += brought.unsynced
        self.mounts += [(one.source, one.path) for one in brought.mounts]
        if brought.hits.files:
            hits = brought.hits
            self._note(f"of that, on this node already: {hits.files} files, {human_size(hits.size_bytes)}")
        return brought.totals

    def settle_later(self) -> None:
        """Schedule an fsync of the fetched files, unless the task ends before: see `InputCache.sync`."""
        if self._settle and self._cache is not None:
            threading.Thread(target=self._settle_when_quiet, name="task-cache", daemon=True).start()

    def close(self) -> None:
        """Release the cache entries of a payload that has ended. Idempotent."""
        self._closed.set()
        for one in self._held:
            one.close()
        self._held.clear()

    def _settle_when_quiet(self) -> None:
        cache = self._cache
        assert cache is not None
        if not self._closed.wait(SETTLE_AFTER_S):
            for key in self._settle:
                cache.sync(key)

    def _cache_for(self, plan: FetchPlan) -> InputCache | None:
        if self._cache is None and self._settings is not None:
            from dlapp.storage.cache.entry import CacheLocation
            from dlapp.storage.cache.fetch import is_cacheable
            from dlapp.storage.cache.store import InputCache

            if not is_cacheable(plan):
                return None
            from dlapp.node_policy import node_policy

            limits = (self._settings.limit_bytes, self._settings.age_s, self._settings.keep_free)
            try:
                directory = self._settings.directory
                if operators := node_policy().cache_dir:
                    directory = os.path.join(operators, str(os.geteuid()))
                self._cache = InputCache(CacheLocation(directory, *limits), self._note)
            except (DlappError, OSError) as error:
                self._note(f"this node has no input cache: {error}")
                self._settings = None
        return self._cache
