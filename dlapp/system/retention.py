"""Retention by age and size, of whatever is kept: histories, packed workspaces, archives."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable
from typing import NamedTuple


class KeptItem(NamedTuple):
    """A file or directory that is kept; ``used_ms`` is when it was written or last used [ms since 1970]."""

    name: str
    size_bytes: int
    used_ms: int


class Retention(NamedTuple):
    """The limits of what is kept: the age of one item, and the size of all together."""

    age_s: float
    size_bytes: int

    def expired(self, items: Iterable[KeptItem], now_ms: int, before_ms: int | None = None) -> list[KeptItem]:
        """Return the items that are too old, and the oldest of what is too much; the latest first.

        Args:
            items: everything that is kept.
            now_ms: the time [ms since 1970].
            before_ms: keep what was used at this time or later [ms since 1970]; None: no such limit.
        """
        found, total_bytes = [], 0
        for one in sorted(items, key=lambda one: one.used_ms, reverse=True):
            total_bytes += one.size_bytes
            too_old = now_ms - one.used_ms > self.age_s * 1000
            if (too_old or total_bytes > self.size_bytes) and (before_ms is None or one.used_ms < before_ms):
                found.append(one)
        return found


def files_in(directory: str) -> list[KeptItem]:
    """Return the regular files in a directory, by path; none if it cannot be read. Reading a file is a use."""
    found = []
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                info = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(info.st_mode):
                    used_ms = int(max(info.st_mtime, info.st_atime) * 1000)
                    found.append(KeptItem(entry.path, info.st_size, used_ms))
    return found
