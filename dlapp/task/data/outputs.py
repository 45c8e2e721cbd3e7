"""Output of one container, stored beside its target or kept where it outlives the container."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Protocol

from dlapp.errors import DlappError, Unreachable, UsageError
from dlapp.locations import file_location, shown
from dlapp.runtime.payload import ServiceAway
from dlapp.storage.open import open_output
from dlapp.storage.values import DiskFull, FileTotals, Workspace
from dlapp.system.clock import backoff_s
from dlapp.system.waits import FILE_SYSTEM, Wait
from dlapp.task.data.workspace_changes import NewFiles, WorkspaceChanges, closest, describe
from dlapp.task.environment import node_name
from dlapp.task.interrupt import Stopped
from dlapp.task.link.am_link import AmLink
from dlapp.task.step_errors import StepFailed
from dlapp.value import NamedTuple, replace
from dlapp.values.launch_spec import DOCKER_WORKSPACE, LaunchSpec
from dlapp.values.messages import (
    MAX_NAMED,
    Assignment,
    Fault,
    LeftOutEntry,
    NewFile,
    NotStored,
    Phase,
    Stop,
    StoredOutput,
    TaskResult,
)
from dlapp.values.spec import OnFailure, OutputFrom, OutputSpec

if TYPE_CHECKING:
    from dlapp.storage.values import LeftOut

_STORE_AGAIN_S = 1.0, 30.0
"""Pauses between two tries to store an output: doubled from the first to the second."""
_MAX_TEXT = 200
"""Characters of a name or a reason in `NotStored`; a path may have 4096, a link's target as many."""


class _Step(Protocol):
    def __call__(self, what: str, *, cut_by: Stop = ...) -> AbstractContextManager[None]: ...


class ReportPhase(Protocol):
    def __call__(self, phase: Phase, *, detail: str = ...) -> None: ...


class _AbsentOutput(NamedTuple):
    """An output that is missing at the path of the properties file, and the message on that."""

    output: OutputSpec
    part: str
    text: str


class Outputs:
    """Output of one container.

    Args:
        step: makes a step of this task (`dlapp.task.step_errors.step`).
        release: releases resources that others wait for, before a long wait; may be called again.
        workspace_end: what removes the workspace even if ``is_in_workspace``; empty: nothing on one machine, YARN on a
            cluster.

    Attributes:
        unstored: directories of this machine with output that could not be stored.
        is_in_workspace: whether some output remains in the workspace because it could not be moved anywhere else.
    """

    def __init__(
        self,
        assignment: Assignment,
        launch: LaunchSpec,
        container_dir: str,
        link: AmLink,
        *,
        step: _Step,
        report_phase: ReportPhase,
        note: Callable[[str], None],
        release: Callable[[], None],
        workspace_end: str = "",
    ) -> None:
        self._assignment, self._launch, self._container_dir, self._link = assignment, launch, container_dir, link
        self._step, self._report_phase, self._note, self._release = step, report_phase, note, release
        self._workspace_end = workspace_end or ("YARN deletes it with its container" if launch.on_a_cluster else "")
        self._store_until = 0.0, 0.0
        self.unstored: list[str] = []
        self.is_in_workspace = False
        self._workspace = os.path.join(container_dir, "workspace")
        self._mounted: tuple[str, ...] = ()
        self._left_out: dict[str, str] = {}  # of all tries: the first one may remove what it leaves out
        self._linked: set[str] = set()

    def store(self, result: TaskResult, ran_s: float, changes: WorkspaceChanges, mounted: Sequence[str]) -> TaskResult:
        """Store the output that exists.

        Args:
            result: the payload's. A failed result stays unchanged.
            ran_s: how long the payload ran, in seconds.
            changes: the state of the workspace before the payload started.
            mounted: mount points in the workspace that Docker created.
        """
        one, self._mounted = self._assignment, tuple(mounted)
        if not one.outputs:
            return result
        self._report_phase(Phase.STORING)
        if self._link.end_reason:  # the member that noticed this before this phase ended only its own payload
            return result
        stored: list[StoredOutput] = []
        absent: list[_AbsentOutput] = []
        problems: list[StepFailed] = []
        has_failed = result.exit_code != 0 and result.fault is not Fault.STOPPED
        began = time.monotonic()
        # Output of a run of days is worth waiting for an operator; that of a failed payload is less so.
        room_until = began + min(one.output_patience_s, ran_s if has_failed else one.output_patience_s)
        self._store_until = room_until, began + one.output_patience_s
        try:
            for output, part in zip(one.outputs, one.parts, strict=True):
                with self._step("the output could not be stored", cut_by=Stop.NOW):
                    try:
                        local = inside_workspace(self._container_dir, output.output_path)
                    except UsageError as error:
                        absent.append(_AbsentOutput(output, part, str(error)))
                        continue
                    if not os.path.exists(local) and self._may_be_empty(output, result):
                        os.makedirs(local)
                    if not os.path.exists(local):
                        section = f"to_hdfs {output.name}".rstrip()
                        text = f"the script made no {output.output_path!r} in its workspace ({section})"
                        absent.append(_AbsentOutput(output, part, text))
                        continue
                try:
                    stored.append(self._stored_output(output, local, output.output_path, part))
                except StepFailed as error:
                    problems.append(error)  # the others may be storable at their targets
            if problems:
                raise StepFailed(problems[0].fault, "; ".join(map(str, problems)))
            if absent:
                done = {each.name for each in stored}
                elsewhere = [each.output_path for each in one.outputs if each.name in done]
                left = changes.keep_only([*elsewhere, *mounted])
                if text := self._store_changes(left, absent, stored, must_exist=result.exit_code == 0):
                    raise StepFailed(Fault.DATA, text)
        except StepFailed as error:
            result = replace(result, storing_failed=bool(problems))
            is_stopped = result.fault is Fault.STOPPED
            if result.fault is Fault.NONE or (is_stopped and not absent):
                return replace(result, fault=error.fault, message=str(error), outputs=tuple(stored))
            message = f"{result.message or result.exit_text}; {error}"
            return replace(result, message=message, outputs=tuple(stored))
        except Stopped as error:
            return replace(result, fault=Fault.STOPPED, message=str(error))
        return replace(result, outputs=tuple(stored))

    def not_stored(
        self, result: TaskResult, changes: WorkspaceChanges, others: Sequence[str] = (), *, of: str = ""
    ) -> NotStored | None:
        """Return what the payload wrote and is removed with the workspace; None if that is nothing.

        Args:
            result: the result of `store`.
            changes: the state of the workspace before the payload started.
            others: other paths in the workspace whose content is stored.
            of: the text before each name.
        """
        entries = [LeftOutEntry(name=of + _cut(name), reason=_cut(why)) for name, why in self._left_out.items()]
        found = NewFiles((), 0, True)
        if not (self.is_in_workspace or any(one.stray for one in result.outputs)):
            outputs = [one.output_path for one in self._assignment.outputs]
            if "." not in map(os.path.normpath, outputs):
                found = changes.new_files([*outputs, *self._mounted, *self._linked, *others], MAX_NAMED)
        if not entries and not found.largest:
            return None
        return NotStored(
            entries=tuple(entries[:MAX_NAMED]),
            more_entries=len(entries[MAX_NAMED:]),
            files=tuple(NewFile(name=of + _cut(name), size_bytes=size) for name, size in found.largest),
            more_files=found.more,
            all_files_found=found.is_complete,
        )

    def _may_be_empty(self, output: OutputSpec, result: TaskResult) -> bool:
        """Return whether an empty directory stands for an output that the payload did not create."""
        has_choice = output.output_from is OutputFrom.FIRST and not self._assignment.needs_output
        return has_choice and result.exit_code == 0

    def _stored_output(
        self, output: OutputSpec, local: str, path: str, part: str, *, stray: bool = False
    ) -> StoredOutput:
        with self._step("the output could not be stored", cut_by=Stop.NOW):
            moved = self._stored(local, path, part, output.target if output.overwrite else "")
        self._note(f"output {path}: {moved.files} files, {moved.size_bytes} bytes at {part}")
        return StoredOutput(name=output.name, part=part, files=moved.files, size_bytes=moved.size_bytes, stray=stray)

    def _store_changes(
        self, left: list[str], absent: list[_AbsentOutput], stored: list[StoredOutput], *, must_exist: bool
    ) -> str:
        """Store new or changed files of the workspace in place of the missing outputs.

        Args:
            stored: the outputs stored so far; new ones are added.
            must_exist: whether the payload finished, so that a missing output is an error.

        Returns:
            Text for the user on the result; empty if the payload did not get that far and nothing is to be kept.
        """
        keeping = next((one for one in absent if one.output.on_failure is OnFailure.KEEP), None)
        if not must_exist and (keeping is None or all(path.endswith("/") for path in left)):
            return ""
        texts = ["; ".join(one.text for one in absent)]
        texts.append(f"new or changed there: {describe(left)}" if left else "nothing is new or changed there")
        if (near := closest(absent[0].output.output_path, left)) is not None:
            texts.append(f"the nearest name is {near!r}")
        if left and keeping is not None:
            try:
                local = os.path.realpath(self._workspace)
                stored.append(self._stored_output(keeping.output, local, ".", keeping.part, stray=True))
                texts.append("all of it is kept")
            except StepFailed as error:
                texts.append(str(error))
        return "; ".join(texts)

    def _stored(self, local: str, path: str, part: str, replaces: str) -> FileTotals:
        """Store one output. Wait while the file system is away, read-only or full. After that, or if the output is
        refused, keep it on this machine: it is never computed again.

        Raises:
            StepFailed: it is not stored; the message has its path, or that YARN deletes it.
        """
        move, wait = len(self._assignment.outputs) == 1, Wait("", None)
        try:
            for pause_s in backoff_s(*_STORE_AGAIN_S):
                try:
                    files = open_output(part, self._launch.hdfs)
                    return files.store(
                        local,
                        part,
                        move=move,
                        workspace=self._around_output(),
                        replaces=replaces,
                        note=self._note,
                        left_out=partial(self._leave_out, path),
                    )
                except (Unreachable, DiskFull) as error:
                    left_s = self._store_until[isinstance(error, Unreachable)] - time.monotonic()
                    if self._link.is_masterless or pause_s >= left_s:
                        raise self._keep_on_node(local, path, error) from error
                    wait.what = error.lack if isinstance(error, DiskFull) else FILE_SYSTEM
                    wait.why = "" if isinstance(error, DiskFull) else str(error)
                    wait.longest_s = wait.lasted_s + left_s
                    wait.begin()
                    self._report_phase(Phase.STORING, detail=wait.text)
                    self._release()  # last: a driver may hang
                except DlappError as error:
                    raise self._keep_on_node(local, path, error) from error
                time.sleep(pause_s)
        finally:
            wait.end()
        raise AssertionError

    def _keep_on_node(self, local: str, path: str, error: DlappError) -> StepFailed:
        """Move an output that cannot be stored to where it outlives the container; return the failure, with whether
        that worked.
        """
        above = os.path.join(self._launch.unstored, str(self._assignment.container_id))
        place = os.path.join(above, "workspace" if path == "." else path)
        try:
            if not self._launch.unstored:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            os.makedirs(above, 0o700, exist_ok=True)
            self._move(local, path, place)
        except (DlappError, OSError) as problem:
            self._note(f"{shown(local)} cannot be moved to {shown(place)}: {problem}")
            self.is_in_workspace = True
            if self._workspace_end:
                reason = getattr(problem, "strerror", None) or problem
                lost = f"it could not be renamed to {place} ({reason}): {self._workspace_end}"
                return StepFailed(Fault.DATA, f"the output could not be stored: {error}; {lost}")
            above = place = local
        if above not in self.unstored:
            self.unstored.append(above)
        return StepFailed(Fault.DATA, f"the output could not be stored: {error}; it stays on {node_name()} in {place}")

    def _move(self, local: str, path: str, place: str) -> None:
        """Move an output on this machine, with what its links lead to in the workspace.

        Raises:
            DlappError, OSError: it stays in the workspace.
        """
        if os.path.lexists(place):  # another output inside it, moved before
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        location = file_location(place)
        files = open_output(location)
        try:
            around, leave_out = self._around_output(), partial(self._leave_out, path)
            files.store(local, location, move=True, workspace=around, note=self._note, left_out=leave_out)
        except (DlappError, OSError) as problem:
            with contextlib.suppress(DlappError, OSError):
                files.remove(location)  # an incomplete copy
            if not self._workspace_end:
                raise
            self._note(f"{shown(local)} is moved without what its links lead to: {problem}")
            os.makedirs(os.path.dirname(place), 0o700, exist_ok=True)
            os.rename(local, place)

    def _around_output(self) -> Workspace:
        seen_as = () if self._assignment.docker_image is None else (DOCKER_WORKSPACE,)
        return Workspace(os.path.realpath(self._workspace), seen_as, self._mounted, self._linked.add)

    def _leave_out(self, path: str, entry: LeftOut) -> None:
        self._left_out[os.path.normpath(f"{path}/{entry.name}")] = entry.reason

    def try_storing(self, part: str, service: str) -> None:
        """Store a small probe file at the target of a part of the output, before there is output.

        Raises:
            ServiceAway: the service cannot be reached from this node now.
            StepFailed: this node cannot store there.
        """
        from dlapp.storage.hdfs.webhdfs import DataNodeRefused, DataNodeUnreachable

        try:
            open_output(part, self._launch.hdfs).probe_store(part)
        except DiskFull as error:
            self._note(f"the output could not be stored now: {error}")  # it may work when there is output
        except DataNodeUnreachable as error:
            message = f"the output could not be stored from this node: {error}"
            raise ServiceAway(f"the DataNodes of {service}", str(error), message, Fault.NODE) from error
        except DataNodeRefused as error:
            raise StepFailed(Fault.NODE, f"the output could not be stored from this node: {error}") from error


def _cut(text: str) -> str:
    """Return a text on one line with at most `_MAX_TEXT` characters: the end of a path says more than its beginning."""
    line = shown(text)
    return line if len(line) <= _MAX_TEXT else f"…{line[1 - _MAX_TEXT :]}"


def inside_workspace(container_dir: str, path: str) -> str:
    """Return the host path of a directory in the workspace, from its path relative to the workspace.

    Raises:
        UsageError: a link points out of the workspace.
    """
    root = os.path.realpath(os.path.join(container_dir, "workspace"))
    full = os.path.realpath(os.path.join(root, path))
    if full != root and not full.startswith(root + "/"):
        raise UsageError(f"{shown(path)} leads out of the workspace by a link")
    return full
