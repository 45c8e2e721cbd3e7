"""Retention by age and size, for histories, packed workspaces and archives."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable
from typing import NamedTuple


class KeptItem(NamedTuple):
    """A retained file or directory; ``used_ms`` is when it was written or last used [ms since 1970]."""

    name: str
    size_bytes: int
    used_ms: int


class Retention(NamedTuple):
    """Limits: the age of an item, and the total size."""

    age_s: float
    size_bytes: int

    def expired(self, items: Iterable[KeptItem], now_ms: int, before_ms: int | None = None) -> list[KeptItem]:
        """Return the items to remove: those that are too old, and the oldest ones above the size limit; the latest
        first.

        Args:
            before_ms: keep items used at this time or later [ms since 1970]; None for no such limit.
        """
        found, total_bytes = [], 0
        for one in sorted(items, key=lambda one: one.used_ms, reverse=True):
            total_bytes += one.size_bytes
            too_old = now_ms - one.used_ms > self.age_s * 1000
            if (too_old or total_bytes > self.size_bytes) and (before_ms is None or one.used_ms < before_ms):
                found.append(one)
        return found


def files_in(directory: str) -> list[KeptItem]:
    """Return the regular files in a directory, by path; empty if it cannot be read. Reading a file counts as a use."""
    found = []
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                info = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(info.st_mode):
                    used_ms = int(max(info.st_mtime, info.st_atime) * 1000)
                    found.append(KeptItem(entry.path, info.st_size, used_ms))
    return found
