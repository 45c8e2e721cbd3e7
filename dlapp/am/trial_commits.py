"""Commits of trials while their sweep runs, one after another, in a thread of their own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

from dlapp.am.application_dir.interface import Superseded
from dlapp.am.model.events import CommitTrial, TrialCommitted
from dlapp.am.settlement import OutputSettlement
from dlapp.cluster.engine import Heartbeat
from dlapp.errors import DlappError, Unreachable
from dlapp.storage.commit import CommitBusy
from dlapp.storage.values import DiskFull
from dlapp.system.clock import backoff_s
from dlapp.system.logs import log
from dlapp.system.waits import Wait

_AGAIN_S = 1.0, 30.0
"""Pauses between two tries while the file system does not answer or is full: doubled from the first to the second."""


class TrialCommits:
    """Thread that commits the output of trials.

    Args:
        patience_s: how long a file system that does not answer, or is full, is waited for.
        put: called with the result of each.
    """

    def __init__(
        self, settlement: OutputSettlement, patience_s: float, put: Callable[[TrialCommitted | Heartbeat], None]
    ) -> None:
        self._settlement, self._patience_s, self._put = settlement, patience_s, put
        self._wanted: SimpleQueue[CommitTrial | None] = SimpleQueue()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="am-trial-outputs", daemon=True)
        self._thread.start()

    def add(self, wanted: CommitTrial) -> None:
        """Commit a trial after those before it."""
        self._wanted.put(wanted)

    def close(self) -> None:
        """End after the commit that is going on; the end of the application does the others."""
        self._closing.set()
        self._wanted.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (wanted := self._wanted.get()) is not None and not self._closing.is_set():
            try:
                error = self._commit(wanted)
            except Superseded as superseded:
                self._put(Heartbeat(shut_down=str(superseded)))
                return
            number = wanted.part.index
            if error:
                log.error(f"the output of trial {number} could not be committed: {error}")
            self._put(TrialCommitted(number, error))

    def _commit(self, wanted: CommitTrial) -> str:
        until, is_again = time.monotonic() + self._patience_s, wanted.again
        wait = Wait("", self._patience_s)
        try:
            for pause_s in backoff_s(*_AGAIN_S):
                try:
                    self._settlement.commit_trial(wanted.part, is_retry=is_again)
                except (Unreachable, DiskFull, CommitBusy) as error:
                    is_again = True
                    log.warning(f"the output of trial {wanted.part.index}: {error}; retrying")
                    wait.what, wait.why = f"the output of trial {wanted.part.index}", str(error)
                    wait.begin()
                    if time.monotonic() + pause_s > until or self._closing.wait(pause_s):
                        return str(error)
                except Superseded:
                    raise
                except Exception as error:  # whatever it is: the end of the application waits for an answer
                    return str(error) if isinstance(error, (DlappError, OSError)) else repr(error)
                else:
                    return ""
        finally:
            wait.end()
        raise AssertionError
