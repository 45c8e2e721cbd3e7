"""Waits of this process: for which service, since when, and until when.

Code that may block for long marks the begin and the end of the wait; data that arrives in pieces restarts it with each
piece. That is all it does. A process that reports its waits polls for long ones, from a thread that it has anyway: a
task for its reports, an ApplicationMaster for its view, a command for stderr. So a wait costs a microsecond and no
thread, and is visible even inside a call that does not return.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from dlapp.errors import Unreachable
from dlapp.system.clock import date_and_time

_T = TypeVar("_T")

FILE_SYSTEM = "its file system"
"""Text for an output that waits for its file system; the reason names the file system."""
SHOWN_AFTER_S = 3.0
"""Time after which a wait is shown. The display polls every second, so each wait is shown within five."""
POLL_INTERVAL_S = 1.0

_waits: set[Wait] = set()


class Wait:
    """One wait: a context manager that lasts for the block. `begin` and `end` may also be called explicitly.

    Attributes:
        what: name of the awaited service, for users; empty to not report it.
        longest_s: maximum duration [s]; None if unlimited, or reported elsewhere.
        why: cause of the delay, for users; empty if unknown.

    Args:
        what, longest_s: see above; all may be set at any time.
    """

    __slots__ = ("_began_at_s", "_began_s", "longest_s", "what", "why")

    def __init__(self, what: str, longest_s: float | None) -> None:
        self.what, self.longest_s, self.why = what, longest_s, ""
        self.renew()

    def begin(self) -> None:
        """Begin, if not begun; the time counts from the creation, or from the last `renew`."""
        if not self.what:
            return
        _waits.add(self)
        if (reporter := _reporter) is not None:
            reporter.start()

    def end(self) -> None:
        """End. Idempotent."""
        _waits.discard(self)

    def renew(self) -> Wait:
        """Restart the time because data arrived. Return the wait."""
        self._began_s, self._began_at_s = time.monotonic(), time.time()
        return self

    def __enter__(self) -> Wait:
        self.begin()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def lasted_s(self) -> float:
        """Return the time since it began, or since data arrived [s]."""
        return time.monotonic() - self._began_s

    @property
    def text(self) -> str:
        """Return the wait as text: ``waits for NAME since 2026-03-01 14:02:03, until 2026-03-01 14:03:03: REASON``."""
        times = date_and_time(self._began_at_s)
        if self.longest_s is not None:
            times = f"{times}, until {date_and_time(self._began_at_s + self.longest_s)}"
        return f"waits for {self.what} since {times}{': ' if self.why else ''}{self.why}"


_reporter: _WaitReporter | None = None


def long_waits() -> list[Wait]:
    """Return the waits that have lasted for `SHOWN_AFTER_S`, the longest first."""
    return sorted((one for one in list(_waits) if one.lasted_s >= SHOWN_AFTER_S), key=lambda one: -one.lasted_s)


def longest_text() -> str:
    """Return the longest wait as text; empty if there is no long wait.

    A wait often contains others; the outermost is the longest.
    """
    found = long_waits()
    return found[0].text if found else ""


class _WaitReporter:
    """Reporter of the longest wait, in a thread that the first wait starts."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._reported: Wait | None = None
        self._lock = threading.Lock()
        self._is_stopped = False
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread, if it is not running and is allowed. Idempotent."""
        if self._thread is not None or self._is_stopped:
            return  # without the lock: in a forked child its holder may not exist
        with self._lock:
            if self._thread is None and not self._is_stopped:
                thread = threading.Thread(target=self._watch, name="waits", daemon=True)
                # The user has reached the process limit: waits are not reported, and nothing else fails.
                with contextlib.suppress(RuntimeError):
                    thread.start()
                    self._thread = thread

    def stop(self) -> None:
        """End the thread; do not start it any more."""
        with self._lock:
            self._is_stopped = True
            thread, self._thread = self._thread, None
        if thread is not None:
            self._over.set()
            thread.join()
            self._over.clear()

    def resume(self) -> None:
        """Allow the thread again; start it at once, if there is a wait."""
        self._is_stopped = False
        if _waits:
            self.start()

    def _watch(self) -> None:
        while not self._over.wait(POLL_INTERVAL_S):
            found = long_waits()
            if not found:
                self._reported = None
            elif found[0] is not self._reported:
                self._reported = found[0]
                self._report(found[0].text)


@contextmanager
def report_waits(report: Callable[[str], None]) -> Iterator[None]:
    """Report the longest wait during the block, each time that it changes.

    A thread polls for it, from the first wait to the end of the block, except during `paused`.

    Args:
        report: called with a line, in that thread.
    """
    global _reporter
    _reporter = reporter = _WaitReporter(report)
    try:
        yield
    finally:
        _reporter = None
        reporter.stop()


def are_reported() -> bool:
    """Return whether this process is a command, which reports its waits to its user."""
    return _reporter is not None


@contextmanager
def paused() -> Iterator[None]:
    """Stop the thread of `report_waits` during the block, for a fork. A child that never leaves the block never starts
    one."""
    reporter = _reporter
    if reporter is not None:
        reporter.stop()
    try:
        yield
    finally:
        if reporter is not None:
            reporter.resume()


def call_within(timeout_s: float, call: Callable[[], _T], lack: Callable[[], str]) -> _T:
    """Return the result of a call that may wait for servers; it has a thread of its own, which is left if it still
    waits.

    Args:
        timeout_s: time limit [s].
        call: its errors are raised here.
        lack: returns the message of `Unreachable`, after the time limit.

    Raises:
        Unreachable: it still waits.
    """
    results, errors = list[_T](), list[BaseException]()

    def work() -> None:
        try:
            results.append(call())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work, name="call-within", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if errors:
        raise errors[0]
    if not results:
        raise Unreachable(lack())
    return results[0]
