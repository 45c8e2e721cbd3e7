"""End of a payload before its time: SIGTERM, or SIGABRT if it hangs, then SIGKILL after a grace time.

SIGTERM goes to the programs of the payload first, and to its shell only after their end. So the order is repeated.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from dlapp.runtime.payload import SOFT_STOP_EVERY_S, Running
from dlapp.value import Closeable

if TYPE_CHECKING:
    from dlapp.runtime.stack_dump import StackDump

_ABORT_S = 10.0
"""Time between SIGABRT and SIGKILL, in which a process writes the stacks of its threads."""


class PayloadEnd(Closeable):
    """Signals sent to one payload. The first order counts; later ones are ignored.

    Used in a ``with`` block, which ends the stack reader process.

    Args:
        run: the payload.
        stderr: path of its stderr.
        note: called for each signal.

    Attributes:
        hang: why it was aborted; empty if it was not.
    """

    def __init__(self, run: Running, stderr: str, note: Callable[[str], None]) -> None:
        self._run, self._stderr, self._note = run, stderr, note
        self._kill_at_s: float | None = None
        self._again_at_s = math.inf  # when the order for SIGTERM is repeated
        self._stacks: StackDump | None = None
        self.hang = ""

    def close(self) -> None:
        """End the stack reader process."""
        if self._stacks is not None:
            self._stacks.close()

    @property
    def is_soft(self) -> bool:
        """Return True if the payload got SIGTERM."""
        return self._kill_at_s is not None and not self.hang

    @property
    def has_begun(self) -> bool:
        """Return True once an order was received."""
        return self._kill_at_s is not None or bool(self.hang)

    def stop(self, why: str, grace_s: float) -> None:
        """Send SIGTERM now, and SIGKILL after the grace time."""
        self._note(f"{why}: SIGTERM, and SIGKILL in {grace_s:g} s")
        self._kill_at_s = time.monotonic() + grace_s
        self._again_at_s = time.monotonic() + SOFT_STOP_EVERY_S
        self._run.soft_stop()

    def abort(self, why: str) -> None:
        """Read the stacks of a hung payload; `advance` sends SIGABRT when that is done."""
        from dlapp.runtime.stack_dump import StackDump

        self.hang = why
        self._stacks = StackDump(self._run.pids, self._stderr, self._note)

    def advance(self) -> None:
        """Send the signal that is due after an order."""
        now_s = time.monotonic()
        if self._stacks is not None:
            if self._stacks.is_done():
                self._stacks = None
                self._note(f"{self.hang}: SIGABRT, and SIGKILL in {_ABORT_S:g} s")
                self._kill_at_s = now_s + _ABORT_S
                self._run.abort()
        elif self._kill_at_s is not None and now_s >= self._kill_at_s:
            self._note("the grace time is over: SIGKILL")
            self._kill_at_s = self._again_at_s = math.inf
            self._run.kill()
        elif now_s >= self._again_at_s:
            self._again_at_s = now_s + SOFT_STOP_EVERY_S
            self._run.soft_stop()

    def wait_s(self) -> float:
        """Return how long to wait before `advance` [s]; infinite if nothing is due."""
        if self._stacks is not None:
            return self._stacks.poll_s
        due_s = math.inf if self._kill_at_s is None else min(self._kill_at_s, self._again_at_s)
        return max(0.0, due_s - time.monotonic())
