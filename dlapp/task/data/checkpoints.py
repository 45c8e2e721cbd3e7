"""Checkpoints of a payload: copied while it runs and at its end, restored before it starts.

A thread copies at intervals. It ends with the payload. A copy that is under way then is abandoned; the final copy
reuses what is stored already. What is copied must not be half written (`dlapp.storage.checkpoints.selection`):

- While the payload runs: the files that are whole by two inspections of the directory, `QUIET_S` apart; or all of
  them, if the payload has just reported a complete checkpoint (DLAPP_REPORT).
- After a payload that ended by itself: all.
- After a payload that was killed, by SIGTERM or otherwise: the files that are whole by the inspections before SIGTERM
  and after the end. Without SIGTERM, what changed less than `QUIET_S` before the end may be half written.

If each index of a gang has its own checkpoints, those of the same step belong together, and only the payloads know
which these are. So only reported checkpoints are copied, and the reported step is the checkpoint's number. A report is
skipped if another one arrived during the copy, or if the directory changed after the report was read.

The members of a gang, also those that store no checkpoints, start a generation with the checkpoint that their
ApplicationMaster chooses (`dlapp.am.decisions.gangs.checkpoints`).

A failed copy is only logged in dlapp.log: the next one may succeed, and the payload continues.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from dlapp.errors import DlappError, NotFound, Unreachable
from dlapp.locations import HdfsPlace, shown
from dlapp.storage.checkpoints.copies import Checkpoints, DirectoryPart
from dlapp.storage.checkpoints.manifest import IncompleteCheckpoint
from dlapp.storage.checkpoints.selection import (
    DirectoryState,
    Selection,
    is_cut_off,
    select,
    select_all,
    step_of,
)
from dlapp.storage.checkpoints.snapshot import CheckpointChanged, DirectorySnapshot
from dlapp.storage.checkpoints.store import open_store
from dlapp.storage.tree import make_directories
from dlapp.storage.values import DiskFull
from dlapp.system.clock import backoff_s, date_and_time
from dlapp.system.processes.open_files import are_inspectable
from dlapp.system.waits import FILE_SYSTEM, Wait
from dlapp.task.data.outputs import ReportPhase, inside_workspace
from dlapp.value import replace
from dlapp.values.messages import MAX_WHY, CheckpointStatus, Phase, are_of_a_later_start, checkpoints_after
from dlapp.values.spec import CheckpointSpec

QUIET_S = 10.0
"""Time without a change after which files count as complete."""
PATIENCE_S = 30.0
"""Time for which a copy that is due waits for the files without a step, before those with one are copied alone: the
former may name the latter, as ``latest`` does, and are written after them."""
_AGAIN_S = 1.0, 30.0
"""Pauses between two tries of the last copy: doubled from the first to the second."""
RESUME_FROM = "DLAPP_RESUME_FROM"
MAX_STEPS = 1_000_000_000
"""The greatest step of a checkpoint that has its number from it."""


class TaskCheckpoints:
    """Checkpoints of the payload of one container; made, used and closed by the task's main thread.

    Args:
        spec: with the location of the checkpoints to start from.
        seen_as: other absolute paths of the directory, as the payload sees them.
        stores: whether this container also stores checkpoints.
        on_change: called with the numbers of the available checkpoints after one was stored, or after a container
            outside a gang restored one.
        on_status: called with the newest checkpoint, or why there is none, when that changes.
    """

    def __init__(
        self,
        spec: CheckpointSpec,
        container_dir: str,
        hdfs: HdfsPlace | None,
        note: Callable[[str], None],
        seen_as: Sequence[str],
        *,
        stores: bool = True,
        on_change: Callable[[tuple[int, ...]], None] = lambda _: None,
        on_status: Callable[[CheckpointStatus], None] = lambda _: None,
        complete: Callable[[], int] | None = None,
    ) -> None:
        self._spec, self._container_dir, self._note, self._stores = spec, container_dir, note, stores
        self._on_change, self._on_status, self._complete = on_change, on_status, complete
        self._by_step = complete is not None and spec.is_of_every_index
        self._place = open_store(spec.target, hdfs)
        self._checkpoints = Checkpoints(self._place, spec.keep, note, seen_as)
        self._stored: tuple[object, ...] | None = None  # the key of its selection
        self._status = CheckpointStatus()
        self._before_end: DirectorySnapshot | None = None
        self._wake = threading.Event()
        self._is_over = self._is_reported = False
        self._reports = self._after = self._stored_number = 0
        self._step: int | None = None  # in the last report
        self._heard_ns = 0
        self._began_at = self._copied_at = float("-inf")
        self._broken: set[int] = set()
        self.restored: int | None = None

    def close(self) -> None:
        """Close open files and connections."""
        self._forget_snapshot()
        self._place.__exit__()

    def find(self) -> tuple[int, ...]:
        """Return the numbers of the checkpoints that can be restored, as far as known, ascending.

        Raises:
            DlappError: the location cannot be read.
        """
        return tuple(number for number in self._checkpoints.complete() if number not in self._broken)

    def restore_newest(self, starts: int) -> None:
        """Restore the newest complete checkpoint into the workspace of a container outside a gang. Idempotent.

        Args:
            starts: number of this start of the payload, from 1.

        Raises:
            DlappError: restoring failed. A missing checkpoint is no error.
        """
        numbers = self._checkpoints.numbers()
        self._after = checkpoints_after(max(numbers, default=0), starts)
        self._restore(None)
        self._on_change(() if self.restored is None else (self.restored,))

    def restore(self, number: int, after: int) -> bool:
        """Restore one checkpoint into the workspace; return False if it is incomplete. Idempotent.

        Args:
            number: the number of the checkpoint; 0 to start without one.
            after: new checkpoints get greater numbers than this.

        Raises:
            DlappError: restoring failed.
        """
        self.restored, self._after = None, after
        try:
            if number:
                self._restore(number)
        except IncompleteCheckpoint as error:
            self._note(f"{error}; trying another one")
            self._broken.add(number)
            return False
        return True

    def _restore(self, number: int | None) -> None:
        self._stored, self._stored_number = None, 0
        directory = inside_workspace(self._container_dir, self._spec.path)
        make_directories(os.path.dirname(directory))
        self.restored = self._checkpoints.restore(directory, number)
        if self.restored is not None and (manifest := self._checkpoints.restored) is not None:
            self._note(f"checkpoint {self.restored} is restored at {self._spec.path}")
            step, epoch = step_of(one.name for one in manifest.entries)
            at_ns = max((one.mtime_ns for one in manifest.entries if one.digest), default=0)
            self._tell(CheckpointStatus(number=self.restored, step=step, epoch=epoch, at_ms=max(0, at_ns) // 1_000_000))

    def start_environment(self, workspace: str) -> dict[str, str]:
        """Return the payload's variables; ``workspace`` is where it sees its workspace."""
        return {} if self.restored is None else {RESUME_FROM: os.path.join(workspace, self._spec.path)}

    def prepare_end(self, pids: Sequence[int]) -> None:
        """Inspect the directory before the payload gets SIGTERM: a payload without a handler dies of it, and only the
        files that are open before show which may be half written.

        Args:
            pids: its processes; nothing is done if their open files cannot be seen.
        """
        if not self._stores or self._by_step or self._before_end is not None or not are_inspectable(pids):
            return
        try:
            self._before_end = self._snapshot()
        except (DlappError, OSError) as error:
            self._note(f"the directory of the checkpoints could not be read before SIGTERM: {error}")

    def _forget_snapshot(self) -> None:
        if self._before_end is not None:
            self._before_end.close()
            self._before_end = None

    @contextlib.contextmanager
    def copying(self) -> Iterator[None]:
        """Copy at intervals during the block, in a thread that ends with it."""
        if not self._stores:
            yield
            return
        self._wake.clear()
        self._is_over, self._is_reported, self._reports, self._step = False, False, 0, None
        self._began_at, self._copied_at = time.monotonic(), float("-inf")
        thread = threading.Thread(target=self._copy_at_intervals, name="checkpoints")
        thread.start()
        try:
            yield
        finally:
            self._is_over = True
            self._wake.set()
            with self._checkpoints.aborting() as cut:
                while thread.is_alive():
                    cut()
                    thread.join(0.05)

    def handle_reports(self, count: int, step: int | None) -> None:
        """Copy now if the payload has reported a complete checkpoint, unless the last copy is younger than `every`:
        when the next copy is due, the payload may be writing again.

        Args:
            count: number of checkpoints reported since the start.
            step: step of the last report; None if it had none.
        """
        if count <= self._reports:
            return
        self._reports, self._step, self._heard_ns = count, step, time.time_ns()
        if self._by_step and not self._is_step(step):
            self._step = None
            return
        if self._is_due():
            self._is_reported = True
            self._wake.set()

    def _next_due(self) -> float:
        """Return when a copy is due without a report [s, monotonic]."""
        now, every_s = time.monotonic(), self._spec.every_s
        if not self._by_step:
            return now + every_s
        return self._began_at + ((now - self._began_at) // every_s + 1) * every_s

    def _is_due(self) -> bool:
        now, every_s = time.monotonic(), self._spec.every_s
        if not self._by_step:
            return now >= self._copied_at + every_s
        # All members must choose the same reports, which arrive at nearly the same time: the first in each interval
        # since their common start.
        before = self._copied_at
        return before < self._began_at or (now - self._began_at) // every_s > (before - self._began_at) // every_s

    def _is_step(self, step: int | None) -> bool:
        if step is not None and 1 <= step <= MAX_STEPS:
            return True
        said = "no step" if step is None else f"step {step}"
        self._note(f"no checkpoint: the report has {said}, and with role=all it must have one from 1 to {MAX_STEPS}")
        return False

    def store_last(
        self,
        *,
        is_orderly: bool,
        patience_s: float,
        report_phase: ReportPhase,
        release: Callable[[], None],
        may_wait: Callable[[], bool],
    ) -> None:
        """Store the directory that the payload left if it is complete. Wait while the file system is away or full.

        Args:
            is_orderly: the payload exited by itself.
            patience_s: the longest wait.
            report_phase: reports the phase.
            release: releases resources that others wait for, before a long wait; may be called again.
            may_wait: returns whether anybody can still see the wait.
        """
        if not self._stores or (self._by_step and self._step is None):
            return
        until, wait = time.monotonic() + patience_s, Wait("", None)
        try:
            for pause_s in backoff_s(*_AGAIN_S):
                try:
                    self._store_end(is_orderly=is_orderly)
                    return
                except (Unreachable, DiskFull) as error:
                    if pause_s >= until - time.monotonic() or not may_wait():
                        raise
                    wait.what = error.lack if isinstance(error, DiskFull) else FILE_SYSTEM
                    wait.why = "" if isinstance(error, DiskFull) else str(error)
                    wait.longest_s = wait.lasted_s + until - time.monotonic()
                    wait.begin()
                    report_phase(Phase.STORING, detail=wait.text)
                    release()  # last: a driver may hang
                time.sleep(pause_s)
        except DlappError as error:
            self._note(f"the last checkpoint could not be stored: {error}")
            self._tell_why(f"the last one could not be stored: {error}")
        finally:
            wait.end()
            self._forget_snapshot()

    def _store_end(self, *, is_orderly: bool) -> None:
        """Store what an ended payload has left, as far as it is complete. Raises DlappError."""
        if (last := self._snapshot()) is None:
            self._tell_why(self._nothing)
            return
        with last:
            if self._by_step:  # a reported checkpoint with a step that did not change since is complete
                self._store(last, select_all(last.inspection, self._heard_ns), is_fixed=True)
            elif is_orderly and not self._is_cut_off(last):
                everything = frozenset(one.name for one in last.state.nodes)
                self._store(last, Selection(everything, last.state.key), is_fixed=True)
                self._tell_why("")
            else:
                first = self._before_end
                if first is not None:
                    last.add_writers(first)
                # If the payload has survived SIGTERM for long, what it has saved since is quiet at its end.
                snapshots = (last,) if first is None else (last, first)
                choices = [(one, _select(one, last, has_ended=True)) for one in snapshots]
                snapshot, found = max(choices, key=lambda one: _progress(one[1]))
                if found.names:
                    self._store(snapshot, found)
                why = self._why(found)
                if why:
                    self._note(f"{'not all is in the' if found.names else 'no'} last checkpoint: {why}")
                self._tell_why(why)

    def _is_cut_off(self, last: DirectorySnapshot) -> bool:
        """Return whether the program may have died of SIGTERM while it saved, although its script ended by itself: the
        last program of a pipe decides its exit code."""
        return self._before_end is not None and is_cut_off(self._before_end.inspection, last.inspection)

    def _copy_at_intervals(self) -> None:
        due = time.monotonic() + self._spec.every_s
        self._tell_due()
        since: float | None = None  # when the copy was due that waits for files without a step
        while self._waited_until(due):
            reported, self._is_reported = self._is_reported, False
            due, since = self._next_due(), since or time.monotonic()
            try:
                why, is_done = self._copy(reported=reported, may_be_part=time.monotonic() - since >= PATIENCE_S)
            except DlappError as error:
                if self._is_over:
                    return
                if str(error) != self._status.why:  # it may be the same for days
                    self._note(f"no checkpoint: {error}")
                why, is_done = str(error), self._by_step or not isinstance(error, CheckpointChanged)
            if is_done:
                since = None
            else:
                due = time.monotonic()
            if not self._is_over:
                self._tell_why(why)

    def _copy(self, *, reported: bool, may_be_part: bool) -> tuple[str, bool]:
        """Make the copy that is due, if possible.

        Args:
            reported: the payload has just reported a complete checkpoint.
            may_be_part: copy files with a step without those that have none.

        Returns:
            Why there is no newer checkpoint, empty if there is one; and whether the next copy is due later, not now.
        """
        if (first := self._snapshot()) is None:
            return self._nothing, True
        with first:
            everything = select_all(first.inspection, self._heard_ns)
            if everything.key == self._stored and not self._by_step:
                return "", True
            # A checkpoint that was reported too early for a copy is still complete if nothing has changed since.
            is_unchanged = self._reports > 0 and _changed_ns(first.state.only(everything.names)) <= self._heard_ns
            if self._by_step and (self._step is None or not (reported or is_unchanged)):
                none = "the program has reported no checkpoint with its step"
                return none if self._step is None else self._changed_text, True
            is_whole = reported or is_unchanged
            if is_whole:
                try:
                    self._store(first, everything, is_fixed=True)
                    return "", True
                except CheckpointChanged:
                    if self._by_step:
                        raise
                    # It saves faster than a copy is made. Reports would end each wait for the second inspection.
            until = time.monotonic() + QUIET_S
            if not self._waited_until(until, ends_at_report=not is_whole) or self._is_reported:
                return self._status.why, False
            if (second := self._snapshot()) is None:
                return self._nothing, True
            with second:
                found = _select(first, second, has_ended=False)
            if not found.names or (found.blocked and not may_be_part):
                return self._why(found), False
            self._store(first, found)
            return "", True

    def _waited_until(self, until: float, *, ends_at_report: bool = True) -> bool:
        """Wait until a time [s, monotonic]; return False if the payload has ended.

        Args:
            ends_at_report: a report ends the wait; else those that come meanwhile are old at its end, and forgotten.
        """
        while not self._is_over and not (ends_at_report and self._is_reported):
            if (left_s := until - time.monotonic()) <= 0:
                break
            self._wake.wait(left_s)
            self._wake.clear()
        if not ends_at_report:
            self._is_reported = False
        return not self._is_over

    def _snapshot(self) -> DirectorySnapshot | None:
        """Return the directory as it is now; None if it is missing or contains no files."""
        try:
            found = self._checkpoints.snapshot(inside_workspace(self._container_dir, self._spec.path))
        except NotFound:
            return None
        if found.state.identities:
            return found
        found.close()
        return None

    @property
    def _nothing(self) -> str:
        return f"nothing was written in {shown(self._spec.path)}"

    @property
    def _changed_text(self) -> str:
        return f"{shown(self._spec.path)} changed after step {self._step} was reported"

    def _why(self, found: Selection) -> str:
        """Return why a selection has not all files; empty if it has."""
        if (problem := found.blocked or found.unfinished) is None:
            return "" if found.names else self._nothing
        return f"{shown(f'{self._spec.path}/{problem.name}')} {problem.what}"

    def _tell_due(self) -> None:
        if not self._status.number:
            self._tell_why(f"not due before {date_and_time(time.time() + self._spec.every_s)}")

    def _tell_why(self, why: str) -> None:
        self._tell(replace(self._status, why=why[:MAX_WHY]))

    def _tell(self, status: CheckpointStatus) -> None:
        if status != self._status:
            self._status = status
            if self._stores:
                self._on_status(status)

    def _store(self, snapshot: DirectorySnapshot, found: Selection, *, is_fixed: bool = False) -> None:
        if found.key == self._stored and not self._by_step:
            return
        reports, number = self._reports, self._number()
        if number == self._stored_number:
            return
        if self._by_step:
            self._copied_at = time.monotonic()  # also after a failure: the other members copy theirs now

        def check(found: DirectoryState) -> None:
            if self._by_step and (self._reports != reports or _changed_ns(found) > self._heard_ns):
                raise CheckpointChanged(self._changed_text)

        if self._complete is not None and self._by_step:
            self._checkpoints.pinned = max(self._checkpoints.pinned, self._complete())
        directory = inside_workspace(self._container_dir, self._spec.path)
        stored = self._checkpoints.store(directory, number, check, DirectoryPart(snapshot, found.names, is_fixed))
        self._stored, self._stored_number = found.key, stored.number
        if not self._by_step:
            self._copied_at, self._is_reported = time.monotonic(), False  # what was reported meanwhile came too early
        self._note(
            f"checkpoint {stored.number} at {self._spec.target}: {stored.files} files, {stored.size_bytes} bytes, "
            f"{stored.new_bytes} of them new"
        )
        self._on_change(self.find())
        step, epoch = step_of(found.names)
        if self._step is not None:
            step, epoch = self._step, None
        self._tell(CheckpointStatus(number=stored.number, step=step, epoch=epoch, at_ms=time.time_ns() // 1_000_000))

    def _number(self) -> int:
        """Return the number of the next checkpoint.

        Raises:
            DlappError: this container must not store checkpoints any more.
        """
        numbers = self._checkpoints.numbers()
        if any(are_of_a_later_start(number, self._after) for number in numbers):
            raise DlappError(f"a later start of the program has stored checkpoints at {self._spec.target}")
        if self._by_step:
            return self._after + (self._step or 0)
        return max(self._after, *numbers) + 1 if numbers else self._after + 1


def _select(first: DirectorySnapshot, second: DirectorySnapshot, *, has_ended: bool) -> Selection:
    unchanged = first.unchanged(second.state)
    return select(first.inspection, second.inspection, unchanged, int(QUIET_S * 1e9), has_ended=has_ended)


def _progress(found: Selection) -> tuple[bool, int, int]:
    """Return how far a selection is: whether it is a checkpoint without a gap, its step and its epoch."""
    step, epoch = step_of(found.names)
    return bool(found.names) and found.blocked is None, step or 0, epoch or 0


def _changed_ns(state: DirectoryState) -> int:
    """Return the time of the last change [ns since 1970]."""
    newest_ns = max([node.mtime_ns for node in state.nodes if node.is_dir])
    return max([newest_ns, *(one.ctime_ns for one in state.identities.values())])
