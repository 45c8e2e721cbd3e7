"""Progress bars in merged logs: lines overwritten by carriage returns are shown from time to time."""

from __future__ import annotations

import time
from collections.abc import Callable

from dlapp.client.logs import LineMerger, LogPiece
from dlapp.values.ids import ContainerId

SHOWN_EVERY_S = 5.0
"""Interval at which an incomplete line that is overwritten repeatedly is shown."""


class ProgressLines(LineMerger):
    """Joiner of streams like `LineMerger` that also shows incomplete lines that a program overwrites.

    A progress bar is one line until it is complete, which may take hours. Overwritten text is not kept.

    Args:
        now: the time [s, monotonic].
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now = now
        self._shown: dict[tuple[ContainerId, str], tuple[float, bytes]] = {}

    def lines(self, piece: LogPiece) -> list[bytes]:
        """Return the lines that ``piece`` completes, and the current version of an overwritten one."""
        key = (piece.log.container_id, piece.stream)
        lines = super().lines(piece)
        if lines and (last := self._shown.pop(key, None)) is not None and last_version(lines[0]) == last[1]:
            del lines[0]
        rest = self._rest.get(key, b"")
        if b"\r" in rest.rstrip(b"\r") and (version := last_version(rest)):
            shown_s, shown = self._shown.get(key, (float("-inf"), b""))
            if version != shown and self._now() - shown_s >= SHOWN_EVERY_S:
                self._shown[key] = (self._now(), version)
                lines.append(version)
        return lines

    def _kept(self, _key: tuple[ContainerId, str], rest: bytes) -> bytes:
        """Return the held part of an incomplete line: its last version."""
        # A carriage return at the end may belong to a line end that has not arrived yet.
        text = rest.rstrip(b"\r")
        return rest[text.rfind(b"\r") :] if b"\r" in text else rest


def last_version(line: bytes) -> bytes:
    """Return the visible text of a line that carriage returns overwrote."""
    return line.rstrip(b"\r").rpartition(b"\r")[2]
