"""Checkpoints of a payload: copied while it runs and at its end, restored before it starts.

A thread copies at intervals. It ends with the payload; what it was copying then is given up, and the last copy goes on
from what was stored. A copy may only be of a directory in which the payload is not writing just then. While the payload
runs, that is one in which nothing changed for `QUIET_S` and no file is open for writing, or one that the payload has
just reported to be complete (DLAPP_REPORT). After its end it is one that
the payload left in an orderly way, by an exit of its own, or in which nothing had changed for as long.

That a copy fails is noted in dlapp.log and nothing else: the next one may not, and the payload runs on.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from dlapp.errors import DlappError, NotFound, Unreachable
from dlapp.locations import HdfsPlace
from dlapp.messages import Phase
from dlapp.spec import CheckpointSpec
from dlapp.storage.api import DiskFull
from dlapp.storage.checkpoints.copies import Checkpoints, DirectoryState
from dlapp.storage.checkpoints.place import open_place
from dlapp.storage.tree import make_directories
from dlapp.system.clock import backoff_s
from dlapp.system.processes.open_files import any_open_for_writing
from dlapp.system.waits import FILE_SYSTEM, Wait
from dlapp.task.outputs import inside_workspace

QUIET_S = 10.0
"""A directory in which nothing changed for so long is taken for whole."""
_AGAIN_S = 1.0, 30.0
"""Between two tries of the last copy: doubled from the first to the second."""
RESUME_FROM = "DLAPP_RESUME_FROM"


class _Say(Protocol):
    def __call__(self, phase: Phase, *, detail: str = ...) -> None: ...


class TaskCheckpoints:
    """Checkpoints of the payload of one container; made, used and closed by the task's main thread.

    Args:
        spec: with the location of this application's checkpoints.
        home: the container's directory.
        hdfs: the HDFS that is configured, if one is.
        note: writes a line into dlapp.log.
        seen_as: other absolute paths under which the payload sees the directory.

    Attributes:
        restored: number of the checkpoint that the payload begins with; None: it begins without one.
    """

    def __init__(
        self,
        spec: CheckpointSpec,
        home: str,
        hdfs: HdfsPlace | None,
        note: Callable[[str], None],
        seen_as: Sequence[str],
    ) -> None:
        self._spec, self._home, self._note = spec, home, note
        self._place = open_place(spec.target, hdfs)
        self._checkpoints = Checkpoints(self._place, spec.keep, note, seen_as)
        self._stored: DirectoryState | None = None
        self._wake = threading.Event()
        self._is_over = self._is_reported = False
        self._reports = 0
        self._copied_at = float("-inf")
        self.restored: int | None = None

    def close(self) -> None:
        """Close what is open."""
        self._place.__exit__()

    def restore(self) -> None:
        """Restore the newest whole checkpoint in the workspace. May be repeated.

        Raises:
            DlappError: it cannot be done; that there is no checkpoint is no error.
        """
        directory = inside_workspace(self._home, self._spec.path)
        make_directories(os.path.dirname(directory))
        self.restored = self._checkpoints.restore(directory)
        if self.restored is not None:
            self._note(f"checkpoint {self.restored} is restored at {self._spec.path}")

    def late_environment(self, workspace: str) -> dict[str, str]:
        """Return the payload's variables; ``workspace`` is where it sees its workspace."""
        return {} if self.restored is None else {RESUME_FROM: os.path.join(workspace, self._spec.path)}

    @contextlib.contextmanager
    def copying(self) -> Iterator[None]:
        """Copy at intervals during the block, in a thread that ends with it."""
        self._wake.clear()
        self._is_over, self._is_reported, self._reports = False, False, 0
        thread = threading.Thread(target=self._copy_at_intervals, name="checkpoints")
        thread.start()
        try:
            yield
        finally:
            self._is_over = True
            self._wake.set()
            with self._checkpoints.giving_up() as cut:
                while thread.is_alive():
                    cut()
                    thread.join(0.05)

    def take_reports(self, count: int) -> None:
        """Copy now if the payload has reported a complete checkpoint, unless the last copy is younger than `every`: by
        the time when the next one is due, the payload may be writing again.

        Args:
            count: how often it has reported one since it started.
        """
        if count > self._reports:
            self._reports = count
            if time.monotonic() >= self._copied_at + self._spec.every_s:
                self._is_reported = True
                self._wake.set()

    def store_last(
        self,
        *,
        is_orderly: bool,
        patience_s: float,
        say: _Say,
        give_back: Callable[[], None],
        may_wait: Callable[[], bool],
    ) -> None:
        """Store what the payload left, if it is whole. A file system that is away or full is waited for.

        Args:
            is_orderly: the payload ended by itself.
            patience_s: the longest wait.
            say: reports the phase.
            give_back: gives back what others wait for, before a long wait; may be called again.
            may_wait: somebody is left who knows of the wait.
        """
        until, wait = time.monotonic() + patience_s, Wait("", None)
        try:
            for pause_s in backoff_s(*_AGAIN_S):
                try:
                    state = self._state()
                    if state is None or not (is_orderly or _is_old(state, time.time_ns())):
                        if state is not None:
                            self._note("no last checkpoint: the program may have been writing it when it ended")
                        return
                    self._store(state)
                    return
                except (Unreachable, DiskFull) as error:
                    if pause_s >= until - time.monotonic() or not may_wait():
                        raise
                    wait.what = error.lack if isinstance(error, DiskFull) else FILE_SYSTEM
                    wait.why = "" if isinstance(error, DiskFull) else str(error)
                    wait.longest_s = wait.lasted_s + until - time.monotonic()
                    wait.begin()
                    give_back()
                    say(Phase.STORING, detail=wait.text)
                time.sleep(pause_s)
        except DlappError as error:
            self._note(f"the last checkpoint could not be stored: {error}")
        finally:
            wait.end()

    def _copy_at_intervals(self) -> None:
        due = time.monotonic() + self._spec.every_s
        while self._waited_until(due):
            reported, self._is_reported = self._is_reported, False
            try:
                due = time.monotonic() + self._spec.every_s
                before = self._state()
                if before is None or before == self._stored:
                    continue
                if not reported:
                    if not self._waited_until(time.monotonic() + QUIET_S):
                        return
                    if self._is_reported or self._state() != before or _is_being_written(before):
                        due = time.monotonic()  # this try has taken long enough
                        continue
                self._store(before)
            except DlappError as error:
                if not self._is_over:
                    self._note(f"no checkpoint: {error}")

    def _waited_until(self, until: float) -> bool:
        """Wait until a time [s, monotonic] or for a report; return False if the payload has ended."""
        if not (self._is_over or self._is_reported):
            self._wake.wait(max(0.0, until - time.monotonic()))
        self._wake.clear()
        return not self._is_over

    def _state(self) -> DirectoryState | None:
        """Return the state of the directory; None: it is not there, or there is no file in it."""
        try:
            state = self._checkpoints.state(inside_workspace(self._home, self._spec.path))
        except NotFound:
            return None
        return state if state.identities else None

    def _store(self, state: DirectoryState) -> None:
        if state == self._stored:
            return
        stored = self._checkpoints.store(inside_workspace(self._home, self._spec.path))
        self._stored, self._copied_at = state, time.monotonic()
        self._note(
            f"checkpoint {stored.number} at {self._spec.target}: {stored.files} files, {stored.size_bytes} bytes, "
            f"{stored.new_bytes} of them new"
        )


def _is_old(state: DirectoryState, now_ns: int) -> bool:
    """Return whether nothing has changed for `QUIET_S`."""
    newest_ns = max([node.mtime_ns for node in state.nodes if node.is_dir])
    newest_ns = max([newest_ns, *(one.ctime_ns for one in state.identities.values())])
    return now_ns - newest_ns >= QUIET_S * 1e9


def _is_being_written(state: DirectoryState) -> bool:
    return any_open_for_writing({(one.device, one.inode) for one in state.identities.values()})
