"""Ends of other applications that this one waits for, read in a thread of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from dlapp.am.model.events import OthersEnded
from dlapp.errors import DlappError
from dlapp.system.clock import backoff_s

FIRST_S, EVERY_S = 2.0, 30.0
"""Maximum pauses between two reads, at the beginning and later."""
_MAX_ERROR_LENGTH = 200
"""Maximum length of a shown error, which may contain text of a server."""


class EndWatcher:
    """Watch of applications until all have ended.

    Args:
        read: returns how an application ended; None: it has not. Raises DlappError where that cannot be read now.
        put: receives new ends, from this object's thread.
    """

    def __init__(self, read: Callable[[str], str | None], put: Callable[[OthersEnded], None]) -> None:
        self._read, self._put = read, put
        self._closed = threading.Event()
        self._unread = ""

    def start(self, applications: Iterable[str]) -> None:
        """Begin to poll the applications."""
        ids = tuple(applications)
        threading.Thread(target=self._run, args=(ids,), name="am-after", daemon=True).start()

    def close(self) -> None:
        """End. A call under way is left alone."""
        self._closed.set()

    def _run(self, pending: tuple[str, ...]) -> None:
        pauses_s = backoff_s(FIRST_S, EVERY_S)
        while pending and not self._closed.is_set():
            ends = self._poll(pending)
            pending = tuple(one for one in pending if one not in ends)
            self._closed.wait(next(pauses_s))

    def _poll(self, pending: tuple[str, ...]) -> dict[str, str]:
        ends, unread = dict[str, str](), ""
        for one in pending:
            try:
                how = self._read(one)
            except DlappError as error:
                unread = str(error)[:_MAX_ERROR_LENGTH]
                break  # what does not answer for one does not answer for the next
            if how is not None:
                ends[one] = how
        if ends or unread != self._unread:
            self._put(OthersEnded(ends, unread))
        self._unread = unread
        return ends
