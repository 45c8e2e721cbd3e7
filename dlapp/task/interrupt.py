"""Interrupts of a task: an order to stop reaches it whatever it is doing.

Orders come on other threads, and one of these learns that no ApplicationMaster is there; SIGTERM comes from whoever
runs the container. All of them are written down here, and the main thread is woken by a signal: in the middle of a step
that may be cut off (`InterruptHandler.interruptible`) it raises `Stopped`, and where it polls its poll returns.
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
    """The step was cut off by an order to stop."""


class UninterruptedSteps:
    """Stand-in for an `InterruptHandler`, for steps on other threads, which no order cuts off."""

    wanted = Stop.NO
    why = ""

    def interruptible(self, _by: Stop = Stop.SOFT) -> contextlib.AbstractContextManager[None]:
        """A step that nothing cuts off."""
        return contextlib.nullcontext()


class InterruptHandler:
    """Handler of requests to stop this task. Made and used on the main thread; `order` is for any.

    ``wake_fd`` is readable after an order or any other signal; `drain` empties it.
    """

    def __init__(self) -> None:
        self.wanted = Stop.NO
        self.why = ""
        self.reason = ""
        """One word for programs; see `dlapp.values.messages.Orders`."""
        self.grace_s: float | None = None
        self.from_outside = False
        """Somebody else than the ApplicationMaster stopped this task, by SIGTERM."""
        self._lock = threading.Lock()
        self._cut_from: Stop | None = None
        self.wake_fd, self._tell = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._tell, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._on_sigterm)
        signal.signal(signal.SIGUSR1, self._on_wake)

    def order(self, wanted: Stop, why: str, grace_s: float | None = None, reason: str = "") -> None:
        """Write an order down. A weaker one than is known already changes nothing.

        Args:
            wanted, why, grace_s, reason: as of `dlapp.values.messages.Orders`; ``grace_s`` None: the application's.
        """
        with self._lock:
            if _SEVERITY[wanted] <= _SEVERITY[self.wanted]:
                return
            self.wanted, self.why, self.grace_s, self.reason = wanted, why, grace_s, reason
        self.wake()

    def wake(self) -> None:
        """Make the main thread's poll return; for any thread."""
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    @contextlib.contextmanager
    def interruptible(self, by: Stop = Stop.SOFT) -> Iterator[None]:
        """A step that an order as strong as ``by`` cuts off, by `Stopped`."""
        self._cut_from = by
        try:
            self._cut()
            yield
        finally:
            self._cut_from = None

    def drain(self) -> None:
        """Forget that ``wake_fd`` was readable."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.wake_fd, 4096)

    def _cut(self) -> None:
        by = self._cut_from
        if by is not None and _SEVERITY[self.wanted] >= _SEVERITY[by]:
            self._cut_from = None  # once: the clean-up after it is not cut off
            raise Stopped(self.why)

    def _on_wake(self, _number: int, _frame: FrameType | None) -> None:
        self._cut()

    def _on_sigterm(self, _number: int, _frame: FrameType | None) -> None:
        # On the main thread, which may be inside `order` right now: so without its lock.
        if self.wanted is not Stop.NOW:
            self.wanted, self.why, self.grace_s = Stop.NOW, "the container was stopped", None
            self.from_outside = True
        self._cut()
