"""Settlement of an application's outputs: the commit claim, and its execution.

The claim is made once, before the first target is touched, and contains all that is needed to finish: if the
ApplicationMaster dies in between, another process can complete the commit.
"""

from __future__ import annotations

import contextlib
import posixpath
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from dlapp.am.application_dir.interface import ApplicationDir
from dlapp.am.decisions import assessment
from dlapp.am.model.events import ApplicationEnd, OutputsSettled, Part, Settlement, SettleOutputs, in_order
from dlapp.errors import DlappError, Unreachable
from dlapp.locations import shown
from dlapp.storage import commit
from dlapp.storage.open import open_output
from dlapp.storage.settlement import ApplicationOutputs, Retried
from dlapp.storage.values import DiskFull, FileTotals, Workspace
from dlapp.system.files import remove_tree
from dlapp.system.logs import log
from dlapp.system.waits import FILE_SYSTEM, Wait
from dlapp.value import replace
from dlapp.values.ids import ApplicationId, ContainerId
from dlapp.values.launch_spec import DOCKER_WORKSPACE
from dlapp.values.messages import StoredOutput
from dlapp.values.report import CommitClaim, OutputClaim, OutputView
from dlapp.values.spec import OnFailure, OutputSpec, Submission

T = TypeVar("T")
AGAIN_S = 1.0
"""Retry interval while the file system does not answer."""


class OutputSettlement:
    """Settlement of the outputs of one application, for its ApplicationMaster or after its death.

    Args:
        on_wait: receives what a commit waits for.
    """

    def __init__(
        self,
        app_dir: ApplicationDir,
        submission: Submission,
        application_id: ApplicationId,
        on_wait: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._on_wait = on_wait
        self._app_dir, self._spec, self._application_id = app_dir, submission.spec, application_id
        self._outputs = ApplicationOutputs(
            application_id,
            self._spec.outputs,
            partial(open_output, hdfs=app_dir.hdfs),
            note=log.error,
            commit_times=app_dir.commit_times,
        )

    def settle(self, attempt: int, wanted: SettleOutputs) -> OutputsSettled:
        """Settle every output according to ``wanted``, as attempt number ``attempt``.

        A commit that cannot be finished (an output that appeared meanwhile, a full disk) keeps that output apart and
        reports it; the outputs before it stay committed.

        Raises:
            Superseded: another attempt owns the application now.
        """
        self._app_dir.check_not_superseded()
        if (earlier := self._app_dir.claimed()) is not None:
            # An earlier attempt decided; whatever we know, the output in its claim is neither dropped nor kept apart.
            return self._finish_earlier_claim(earlier)
        problem = self._misplaced_part(wanted.parts + wanted.failed) if wanted.how is Settlement.COMMIT else None
        if wanted.how is Settlement.DROP:
            self._app_dir.clear_leftovers(wanted.dead)
            return OutputsSettled(self.keep_partial(wanted.parts or None))  # a kill must not wait
        stored_parts, unstored = self._retry(lambda _: self.store_lost_outputs(wanted.lost), give_up=True)
        if not unstored:
            self._app_dir.clear_leftovers(wanted.dead)
        if wanted.how is not Settlement.COMMIT or problem is not None:
            everything = in_order((*wanted.parts, *wanted.failed, *stored_parts))
            left = self._retry(lambda _: self.keep_partial(everything), give_up=True)
            return OutputsSettled(left, "; ".join(filter(None, (problem, *unstored))) or None)
        ending = wanted.ending
        if unstored:
            ending = replace(ending, diagnostics="; ".join(filter(None, (ending.diagnostics, *unstored))))
        wanted = replace(wanted, ending=ending, failed=in_order((*wanted.failed, *stored_parts)))
        try:
            self._retry(lambda _: self._copy_sources(wanted.parts), give_up=True)
        except DlappError as error:
            left = self.keep_partial(in_order((*wanted.parts, *wanted.failed)))
            return OutputsSettled(left, f"the output of the sweep before could not be copied: {error}")
        ours = CommitClaim(
            attempt=attempt,
            final_status=wanted.ending.final_status,
            cause=wanted.ending.cause,
            diagnostics=wanted.ending.diagnostics,
            outputs=tuple(self._output_claim(wanted, one) for one in self._spec.outputs),
        )
        try:
            claim = self._retry(lambda _: self._app_dir.claim(ours), give_up=True)
        except DiskFull as error:
            left = self.keep_partial(in_order((*wanted.parts, *wanted.failed)))
            return OutputsSettled(left, f"the output could not be committed: {error}")
        if claim.attempt != attempt:
            return self._finish_earlier_claim(claim)
        settled = self.finish(claim, is_retry=False, give_up=True)
        if not unstored:
            return settled
        if settled.error is None:
            return replace(settled, ended=ending)
        return replace(settled, error="; ".join((settled.error, *unstored)))

    def commit_trial(self, part: Part, *, is_retry: bool) -> None:
        """Commit the output of a trial separately; with ``is_retry`` an earlier call may have succeeded.

        Raises:
            Superseded: another attempt owns the application now.
            DlappError, OSError: it is not committed; the settlement of the outputs tries again.
        """
        self._app_dir.check_not_superseded()
        if (problem := self._misplaced_part([part])) is not None:
            raise DlappError(problem)
        for output in self._spec.outputs:
            for name, location in self._named_parts([part], output, stray=False):
                self._outputs.commit_trial(output, name, location, is_retry=is_retry)

    def finish(self, claim: CommitClaim, *, is_retry: bool, give_up: bool) -> OutputsSettled:
        """Carry out a commit claim; retry while the file system does not answer and the directory has patience, or, for
        an ApplicationMaster, while it is full.

        Args:
            is_retry: an earlier process may have done a part of it.
            give_up: after that, an unavailable file system counts as a failed commit. Without it, a full one fails at
                once: others wait for this process.

        Raises:
            Unreachable: it still does not answer, and without ``give_up``: a later process retries.
        """
        begun = is_retry

        def commit_all(wait: Retried) -> OutputsSettled:
            nonlocal begun
            is_again, begun = begun, True
            return OutputsSettled(*self._outputs.commit(claim, is_retry=is_again, retried=wait))

        return self._retry(commit_all, give_up=give_up)

    def _retry(self, work: Callable[[Retried], T], *, give_up: bool) -> T:
        """Run ``work``, and repeat it while a file system does not answer or is full. ``work`` is called with the
        errors that it must raise, as it is called again then; ``give_up`` is as in `finish`.
        """
        began, wait = time.monotonic(), Wait("", None)
        patience_s = {
            Unreachable: min(self._app_dir.patience_s, self._spec.output_patience_s),
            DiskFull: self._spec.output_patience_s if give_up else 0.0,
        }
        while again := tuple(kind for kind, longest_s in patience_s.items() if time.monotonic() < began + longest_s):
            try:
                return work(again)
            except (Unreachable, DiskFull) as error:
                if not isinstance(error, again):
                    raise
                wait.what = error.lack if isinstance(error, DiskFull) else FILE_SYSTEM
                wait.why = "" if isinstance(error, DiskFull) else str(error)
                wait.longest_s = patience_s[DiskFull if isinstance(error, DiskFull) else Unreachable]
                self._on_wait(wait.text)
                log.warning(f"the output: {error}; retrying")
            time.sleep(AGAIN_S)
        return work(() if give_up else (Unreachable,))

    def store_lost_outputs(self, lost: Sequence[Part]) -> tuple[tuple[Part, ...], list[str]]:
        """Store the files at the outputs' paths in containers whose tasks were killed.

        Returns:
            Their parts, for `keep_partial`: one for each output that is kept on failure and has a file; and a text on
            each output that could not be stored and stays in place, and one on all that were deleted.

        Raises:
            Unreachable: the target's file system does not answer.
        """
        kept = [output for output in self._spec.outputs if output.on_failure is OnFailure.KEEP]
        parts, problems, gone = [], [], dict[str, None]()
        for part in lost:
            outputs, stored = [], []
            for output in kept:
                location = commit.part_location(output.target, self._application_id, part.container_id)
                path = self._app_dir.leftover(part.container_id, output.output_path)
                try:
                    files = open_output(location, self._app_dir.hdfs)
                    if path is not None:
                        around = self._workspace_of(part.container_id)
                        is_last = len(self._spec.outputs) == 1
                        moved = files.store(path, location, move=is_last, workspace=around, note=log.info)
                        stored.append(path)
                    else:
                        # If its task was killed after it had stored the output, that is complete.
                        moved = FileTotals(int(files.exists(location)), 0)
                        if not moved.files and self._app_dir.loses_leftovers:
                            gone[assessment.container_name(part.index, part.role, part.role_index)] = None
                except Unreachable:
                    raise
                except (DlappError, OSError) as error:
                    where = path or location
                    problems.append(f"the output so far stays in {where}: {error}")
                    continue
                if moved.files:
                    outputs.append(StoredOutput(name=output.name, part=location, files=moved.files, size_bytes=0))
            # After the last one: an output may be inside another. What is still there has not been stored elsewhere.
            for path in stored:
                with contextlib.suppress(DlappError, OSError):
                    remove_tree(path)
            parts.append(replace(part, outputs=tuple(outputs)))
        if gone:
            names = assessment.listed([*gone])
            problems.append(
                f"what {names} had not stored is gone: YARN deletes a container's directory with the container"
            )
        return tuple(parts), problems

    def _workspace_of(self, container_id: ContainerId) -> Workspace | None:
        """Return the workspace of a killed task; None if it is gone. In Docker any input may have been mounted."""
        if (path := self._app_dir.leftover(container_id, ".")) is None:
            return None
        if not self._spec.images:
            return Workspace(path)
        return Workspace(
            path, (DOCKER_WORKSPACE,), tuple(posixpath.normpath(one.input_path) for one in self._spec.inputs)
        )

    def keep_partial(self, parts: Sequence[Part] | None) -> tuple[OutputView, ...]:
        """Keep the stored parts as ``.partial``, or remove them; None: remove all."""
        return self._outputs.keep_or_drop(None if parts is None else lambda output: self._named_parts(parts, output))

    def _output_claim(self, wanted: SettleOutputs, output: OutputSpec) -> OutputClaim:
        failed = self._named_parts(wanted.failed, output) + self._named_parts(wanted.parts, output, stray=True)
        return OutputClaim(
            target=output.target,
            overwrite=output.overwrite,
            keep_previous=output.keep_previous,
            parts=dict(self._named_parts(wanted.parts, output, stray=False)),
            failed=dict(failed) if output.on_failure is OnFailure.KEEP else {},
            committed=wanted.committed,
        )

    def _copy_sources(self, parts: Sequence[Part]) -> None:
        """Copy the trials' output of the sweep that this one continues to this sweep's parts."""
        for part in parts:
            for stored, source in zip(part.outputs, part.sources, strict=False):
                files = open_output(stored.part, self._app_dir.hdfs)
                if not files.exists(stored.part):
                    from dlapp.storage.copies import copy_output  # tempfile, and few sweeps continue another one

                    copy_output(source, stored.part, self._app_dir.hdfs)

    def _finish_earlier_claim(self, claim: CommitClaim) -> OutputsSettled:
        settled = self.finish(claim, is_retry=True, give_up=True)
        return replace(settled, ended=ApplicationEnd(claim.final_status, claim.cause, claim.diagnostics))

    def _misplaced_part(self, parts: Sequence[Part]) -> str | None:
        """Return an error if a task reported a part at another path than its container's own."""
        targets = {output.name: output.target for output in self._spec.outputs}
        for part in parts:
            for stored in part.outputs:
                target = targets.get(stored.name)
                if target is None:
                    return f"{part.container_id} reported the output {shown(stored.name)!r}, which does not exist"
                if stored.part != commit.part_location(target, self._application_id, part.place):
                    return (
                        f"{part.container_id} reported its output at {shown(stored.part)}, which is not its own part "
                        f"of {shown(target)}; nothing is committed"
                    )
        return None

    def _named_parts(
        self, parts: Sequence[Part], output: OutputSpec, *, stray: bool | None = None
    ) -> list[tuple[str, str]]:
        """Return the path of each part and its name within the target: empty if it is the only one, else by index or
        role.

        The path of a part is derived from its container; a report with another path is ignored. Of several containers
        of one index the last one counts.

        Args:
            parts: `in_order`.
            stray: only those with this `StoredOutput.stray`; None: all.
        """
        named, roles, count = {}, self._spec.main_roles, self._spec.main_containers
        for part in parts:
            location = commit.part_location(output.target, self._application_id, part.place)
            if any(
                (stored.name, stored.part) == (output.name, location) and stray in (None, stored.stray)
                for stored in part.outputs
            ):
                if count == 1 and not part.trial:
                    name = ""
                elif part.trial or len(roles) == 1:
                    name = str(part.index)
                else:
                    name = f"{part.role}_{part.role_index}"
                named[name] = location
        return list(named.items())
