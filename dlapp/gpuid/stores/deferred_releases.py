"""Releases that could not be done yet: the ensemble was away."""

from __future__ import annotations

import threading
from collections.abc import Callable

from dlapp.errors import TimedOut, Unreachable
from dlapp.gpuid.rules import LeaseRecord
from dlapp.system.clock import backoff_s

_AGAIN_S = (0.2, 60.0)
"""Pauses between two tries: no caller waits for these releases, and an ensemble that has just restarted is under
load."""


class DeferredReleases:
    """Releases that could not be done yet, and the thread that does them; it runs only while there are some.

    Args:
        release: releases a lease within some seconds, or raises Unreachable or TimedOut.
        at_once_s: time limit for a release for which a caller waits.
    """

    def __init__(self, release: Callable[[LeaseRecord, float], None], *, at_once_s: float) -> None:
        self._release, self._at_once_s = release, at_once_s
        self._waiting: dict[str, LeaseRecord] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    def put(self, lease: LeaseRecord) -> None:
        """Have a lease released when that is possible."""
        with self._changed:
            self._waiting[lease.token] = lease
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="gpuid-release", daemon=True)
                self._thread.start()

    def flush(self, container: str) -> None:
        """Try the releases of a container at once, because it makes a new request."""
        with self._changed:
            mine = [one for one in self._waiting.values() if one.container == container]
        for one in mine:
            self._release(one, self._at_once_s)
            with self._changed:
                self._waiting.pop(one.token, None)

    def _run(self) -> None:
        pauses_s = backoff_s(*_AGAIN_S)
        while True:
            with self._changed:
                if self._closed or not self._waiting:
                    self._thread = None
                    return
                one = next(iter(self._waiting.values()))
            try:
                self._release(one, 1.0)
            except (Unreachable, TimedOut):
                with self._changed:
                    self._changed.wait(next(pauses_s))
                continue
            except Exception:
                pass  # it is another's now, or the record cannot be written by us: evidence is left
            with self._changed:
                self._waiting.pop(one.token, None)

    def close(self) -> None:
        """End the thread. What is not released by then is left to evidence."""
        with self._changed:
            self._closed, thread = True, self._thread
            self._changed.notify_all()
        if thread is not None:
            thread.join()
