"""Shards of input: parts balanced by size, computed identically everywhere; pure functions."""

from __future__ import annotations

import heapq
from collections.abc import Iterable


def shard(files: Iterable[tuple[str, int]], index: int, total: int) -> set[str]:
    """Return the names of the files of part ``index`` of ``total``.

    The largest file first, each to the smallest part: the largest part is then at most 4/3 of the optimum. The result
    depends on the files alone, not on their order, so a part is the same on every try and on every node.

    Args:
        files: name and size [bytes]; without duplicates.
    """
    parts = [(0, 0, number) for number in range(total)]
    mine = set()
    for name, size in sorted(files, key=lambda one: (-one[1], one[0])):
        load, count, number = parts[0]
        # Among parts of equal size, the one with the fewest files: empty files are distributed, too.
        heapq.heapreplace(parts, (load + size, count + 1, number))
        if number == index:
            mine.add(name)
    return mine
