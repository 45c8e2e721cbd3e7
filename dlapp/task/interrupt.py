"""Interrupts of a task: deliver a stop order at any time, also during a step.

Orders arrive on other threads, one of which detects that there is no ApplicationMaster; SIGTERM comes from the
container's starter. All of them are recorded here, and a signal wakes the main thread: inside an interruptible step
(`InterruptHandler.interruptible`) it raises `Stopped`, and a poll returns.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from dlapp.values.messages import Stop

_SEVERITY = {Stop.NO: 0, Stop.SOFT: 1, Stop.NOW: 2}


class Stopped(Exception):
    """A stop order interrupted the step."""


class UninterruptedSteps:
    """Stand-in for an `InterruptHandler`, for steps on other threads, which are never interrupted."""

    wanted = Stop.NO
    why = ""

    def interruptible(self, _by: Stop = Stop.SOFT) -> contextlib.AbstractContextManager[None]:
        """Return a block that nothing interrupts."""
        return contextlib.nullcontext()


class InterruptHandler:
    """Handler of stop requests for this task. Created and used on the main thread; `order` may be called by any.

    ``wake_fd`` becomes readable after an order or any other signal; `drain` empties it.
    """

    def __init__(self) -> None:
        self.wanted = Stop.NO
        self.why = ""
        self.reason = ""
        """One word for programs; see `dlapp.values.messages.Orders`."""
        self.grace_s: float | None = None
        self.from_outside = False
        """True if a process other than the ApplicationMaster stopped this task, by SIGTERM."""
        self._lock = threading.Lock()
        self._cut_from: Stop | None = None
        self.wake_fd, self._tell = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._tell, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._on_sigterm)
        signal.signal(signal.SIGUSR1, lambda _number, _frame: self._interrupt())

    def order(self, wanted: Stop, why: str, grace_s: float | None = None, reason: str = "") -> None:
        """Record an order. Ignore it if a stronger one is recorded.

        Args:
            wanted, why, grace_s, reason: see `dlapp.values.messages.Orders`; ``grace_s`` None: the application's.
        """
        with self._lock:
            if _SEVERITY[wanted] <= _SEVERITY[self.wanted]:
                return
            self.wanted, self.why, self.grace_s, self.reason = wanted, why, grace_s, reason
        self.wake()

    def wake(self) -> None:
        """Make the main thread's poll return; may be called by any thread."""
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    @contextlib.contextmanager
    def interruptible(self, by: Stop = Stop.SOFT) -> Iterator[None]:
        """Return a block that an order at least as strong as ``by`` interrupts, by raising `Stopped`."""
        self._cut_from = by
        try:
            self._interrupt()
            yield
        finally:
            self._cut_from = None

    def drain(self) -> None:
        """Empty ``wake_fd``."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.wake_fd, 4096)

    def _interrupt(self) -> None:
        by = self._cut_from
        if by is not None and _SEVERITY[self.wanted] >= _SEVERITY[by]:
            self._cut_from = None  # only once: the clean-up after it is not interrupted
            raise Stopped(self.why)

    def _on_sigterm(self, _number: int, _frame: FrameType | None) -> None:
        # On the main thread, which may be inside `order` right now; so it cannot take the lock.
        if self.wanted is not Stop.NOW:
            self.wanted, self.why, self.grace_s = Stop.NOW, "the container was stopped", None
            self.from_outside = True
        self._interrupt()
