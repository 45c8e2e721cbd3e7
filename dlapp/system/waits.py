"""Waits of this process: what it waits for, since when, and until when at the latest.

Code that may wait for long says so where the wait begins, and ends it; of what comes in pieces each piece begins it
anew. That is all it does. A process that shows its waits looks for those that last, from a thread that it has anyway: a
task for its reports, an ApplicationMaster for its view, a command for stderr. So a wait costs a microsecond and no
thread, and one is seen also inside a call that does not return.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dlapp.system.clock import date_and_time

FILE_SYSTEM = "its file system"
"""What an output waits for that cannot be written now; the reason names it."""
SHOWN_AFTER_S = 3.0
"""A wait that lasts so long is shown. Who shows waits looks every second, so each is shown within five."""
LOOK_EVERY_S = 1.0

_waits: set[Wait] = set()


class Wait:
    """One wait. A context manager: it lasts as long as the block. It may also be begun and ended by name.

    Attributes:
        what: what is waited for, for users; empty: it is not shown.
        longest_s: for how long at most [s]; None: it is not limited, or somebody else says so.
        why: what makes it last, for users; empty: nothing is known.

    Args:
        what, longest_s: see above; all may be set at any time.
    """

    __slots__ = ("_began_at_s", "_began_s", "longest_s", "what", "why")

    def __init__(self, what: str, longest_s: float | None) -> None:
        self.what, self.longest_s, self.why = what, longest_s, ""
        self.renew()

    def begin(self) -> None:
        """Begin, if it has not begun; the time counts from the making, or from the last `renew`."""
        if not self.what:
            return
        _waits.add(self)
        if (show := _shown_by) is not None:
            show()

    def end(self) -> None:
        """End. May be repeated."""
        _waits.discard(self)

    def renew(self) -> Wait:
        """Count from now on: something came. Return the wait."""
        self._began_s, self._began_at_s = time.monotonic(), time.time()
        return self

    def __enter__(self) -> Wait:
        self.begin()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def lasted_s(self) -> float:
        """Time since it began, or since something came [s]."""
        return time.monotonic() - self._began_s

    @property
    def text(self) -> str:
        """The wait in words: ``waits for NAME since 2026-03-01 14:02:03, until 2026-03-01 14:03:03: REASON``."""
        times = date_and_time(self._began_at_s)
        if self.longest_s is not None:
            times = f"{times}, until {date_and_time(self._began_at_s + self.longest_s)}"
        return f"waits for {self.what} since {times}{': ' if self.why else ''}{self.why}"


_shown_by: Callable[[], None] | None = None


def lasting() -> list[Wait]:
    """Return the waits that have lasted for `SHOWN_AFTER_S`, the longest first."""
    return sorted((one for one in list(_waits) if one.lasted_s >= SHOWN_AFTER_S), key=lambda one: -one.lasted_s)


def longest_text() -> str:
    """Return the wait that has lasted longest in words; empty: none lasts.

    A wait often has others inside it; the longest is the outermost.
    """
    found = lasting()
    return found[0].text if found else ""


@contextmanager
def told(tell: Callable[[str], None]) -> Iterator[None]:
    """Tell of the longest wait in the block, each time that another one is the longest.

    A thread looks for it, from the first wait to the end of the block.

    Args:
        tell: takes a line, on that thread.
    """
    global _shown_by
    over = threading.Event()
    lock = threading.Lock()
    threads: list[threading.Thread] = []

    def watch() -> None:
        said: Wait | None = None
        while not over.wait(LOOK_EVERY_S):
            found = lasting()
            if found and found[0] is not said:
                said = found[0]
                tell(said.text)

    def start() -> None:
        global _shown_by
        with lock:
            _shown_by = None
            if not threads:
                threads.append(threading.Thread(target=watch, name="waits", daemon=True))
                threads[0].start()

    _shown_by = start
    try:
        yield
    finally:
        _shown_by = None
        over.set()
        for thread in threads:
            thread.join()
