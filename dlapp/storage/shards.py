"""Shards of input: parts that are balanced by size, the same for everybody who computes them; pure."""

from __future__ import annotations

import heapq
from collections.abc import Iterable


def shard(files: Iterable[tuple[str, int]], index: int, total: int) -> set[str]:
    """The names of the files that part ``index`` of ``total`` has.

    The largest first, each to the part that has least: the largest part then has at most 4/3 of what is possible. It
    depends on the files alone, not on their order, so a part is the same on every try and on every node.

    Args:
        files: name and size [bytes]; no name twice.
    """
    parts = [(0, 0, number) for number in range(total)]
    mine = set()
    for name, size in sorted(files, key=lambda one: (-one[1], one[0])):
        load, count, number = parts[0]
        # Among parts that have as much, the one with the fewest files: empty files are spread, too.
        heapq.heapreplace(parts, (load + size, count + 1, number))
        if number == index:
            mine.add(name)
    return mine
