"""Order in which the files of a feed are read, and by which reader; a function of the file list, a seed and the epoch.

Each epoch is one sequence of all files. Reader ``number`` of ``total`` gets every ``total``-th file. So each file is in
exactly one reader's part, even if readers are killed and restarted: a position in a part determines the rest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from dlapp.errors import UsageError
from dlapp.storage.values import TreeNode


class Segment(NamedTuple):
    """A part of a file that is fetched in one request.

    Args:
        epoch: from 0.
        number: the number of the file, in the reader's part of the epoch.
        place: the position of the file, in the list of all.
        start, end: the first byte, and the one after the last.
    """

    epoch: int
    number: int
    node: TreeNode
    place: int
    start: int
    end: int

    @property
    def size_bytes(self) -> int:
        """Return the size of the part [bytes]."""
        return self.end - self.start


class EpochEnd(NamedTuple):
    """The end of an epoch, at which the file list is checked for changes."""

    epoch: int
    size_bytes: int = 0


class ReaderPart(NamedTuple):
    """Files of one reader: number ``number`` of ``total``."""

    number: int
    total: int

    def within(self, number: int, total: int) -> ReaderPart:
        """Return a part of this part. Raises UsageError: there is no such part."""
        if not 0 <= number < total:
            raise UsageError(f"there is no part {number} of {total}")
        return ReaderPart(self.number * total + number, self.total * total)


class FeedPosition(NamedTuple):
    """First byte that a reader has not received: in file ``number`` of its part of an epoch."""

    epoch: int = 0
    number: int = 0
    at: int = 0


class FeedOrder:
    """Order of one file list.

    Args:
        nodes: the files, sorted by location.
        shuffle: the seed; None keeps the order of locations.
        epochs: number of passes over all files.
    """

    def __init__(self, nodes: Sequence[TreeNode], shuffle: int | None, epochs: int) -> None:
        self.nodes, self._shuffle, self._epochs = nodes, shuffle, epochs
        self._sorted: tuple[int, Sequence[int]] = (-1, ())
        self.digest = digest(nodes)

    def places(self, epoch: int) -> Sequence[int]:
        """Return the list positions of all files, in the order of an epoch."""
        if self._shuffle is None:
            return range(len(self.nodes))
        known = self._sorted  # called by reader threads without a lock, each with its epoch
        if known[0] != epoch:
            key = f"{self._shuffle}:{epoch}".encode()
            marks = [_keyed_digest(key, node.source) for node in self.nodes]
            known = self._sorted = epoch, sorted(range(len(marks)), key=marks.__getitem__)
        return known[1]

    def segments(self, part: ReaderPart, start: FeedPosition, most_bytes: int) -> Iterator[Segment | EpochEnd]:
        """Yield a reader's items from a position on; a segment has at most ``most_bytes``.

        Raises:
            UsageError: the position is not inside a file.
        """
        number, at = start.number, start.at
        for epoch in range(start.epoch, self._epochs):
            own = self.places(epoch)[part.number :: part.total]
            if number > len(own) or (at and (number == len(own) or at > self.nodes[own[number]].size_bytes)):
                raise UsageError(f"the position {start.number}:{start.at} in epoch {epoch} is beyond the input")
            for place in own[number:]:
                node = self.nodes[place]
                while True:
                    end = min(node.size_bytes, at + most_bytes)
                    yield Segment(epoch, number, node, place, at, end)
                    at = end
                    if at >= node.size_bytes:
                        break
                number, at = number + 1, 0
            yield EpochEnd(epoch)
            number = 0


def digest(nodes: Sequence[TreeNode]) -> str:
    """Return a digest of a file list: of the locations, sizes and modification times."""
    found = hashlib.blake2b(digest_size=16)
    for node in nodes:
        found.update(f"{node.source}\0{node.size_bytes}\0{node.mtime_ns}\0".encode(errors="surrogateescape"))
    return found.hexdigest()


def _keyed_digest(key: bytes, name: str) -> bytes:
    return hashlib.blake2b(name.encode(errors="surrogateescape"), key=key, digest_size=8).digest()
