"""Context of a runner's subjects: the user's state directory, the rows, and the next wake-up."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import NamedTuple

from dlapp.cluster.local.queue import Queue, SchemaMismatch
from dlapp.cluster.local.settings import RunnerSettings
from dlapp.cluster.local.state import StateDir
from dlapp.system.logs import log
from dlapp.system.machine import boot_id

LINGERING = "processes of an application are ending"
LINGERING_S = (0.01, 0.5)
"""Poll intervals for an application whose ApplicationMaster has ended and whose tasks are ending: doubled from the
first to the second."""
FOREIGN_S = 0.5
"""Poll interval for resources held by others (another queue's GPUs, another user's spool): they send no events."""
IDLE_S = 30.0
ERROR_RETRY_S = 2.0
"""Retry interval while the state cannot be written (full disk, for example)."""


class WakeUp(NamedTuple):
    """Next wake-up of a runner that gets no event before.

    Args:
        seconds: time until then.
        why: what is looked at then.
    """

    seconds: float
    why: str

    def at_most(self, seconds: float, why: str) -> WakeUp:
        """Return the earlier of this wake-up and another; of two at one time that for `LINGERING`, else this one."""
        is_earlier = seconds < self.seconds or (seconds == self.seconds and why == LINGERING)
        return WakeUp(seconds, why) if is_earlier else self


class RunnerContext:
    """Context that the subjects of one runner share.

    Attributes:
        state: the user's state directory.
        settings: the engine's settings.
        uid: the user.
        boot_id: of the machine.
        queue: the rows.
        wake_up: the next one; `start_pass` resets it.
        lingering_s: poll interval for processes that are ending now.
        error: the current problem of the state, as last logged.
        has_error: this pass met one.
    """

    def __init__(self, state: StateDir, settings: RunnerSettings) -> None:
        self.state, self.settings = state, settings
        self.uid = os.geteuid()
        self.boot_id = boot_id()
        self.queue = Queue(state)
        self.wake_up = WakeUp(IDLE_S, "idle")
        self.lingering_s = LINGERING_S[0]
        self.error = ""
        self.has_error = False

    def start_pass(self) -> None:
        """Begin a pass over the rows."""
        self.wake_up = WakeUp(IDLE_S, "idle")
        self.has_error = False

    def end_pass(self) -> None:
        """End a pass, before the wait: poll processes that are ending less often if they still are."""
        if self.error and not self.has_error:
            self.error = ""
            log.info("the state can be written again")
        lingers = self.wake_up.why == LINGERING
        self.lingering_s = min(2 * self.lingering_s, LINGERING_S[1]) if lingers else LINGERING_S[0]

    def wake_within(self, seconds: float, why: str) -> None:
        """Let the next pass begin within a time; see `WakeUp.at_most`."""
        self.wake_up = self.wake_up.at_most(seconds, why)

    @contextlib.contextmanager
    def retry_on_error(self) -> Iterator[None]:
        """Recover from an error of the state's disk or database: log it once, and retry later.

        Every operation of the runner can be interrupted anywhere and repeated, so retrying is sufficient.
        """
        try:
            yield
        except SchemaMismatch:
            raise
        except OSError as error:  # Unreachable is one, too
            self.has_error = True
            self.wake_within(ERROR_RETRY_S, "the state cannot be written")
            if self.error != str(error):
                self.error = str(error)
                log.warning(f"{error}; retrying every {ERROR_RETRY_S:g} s")
