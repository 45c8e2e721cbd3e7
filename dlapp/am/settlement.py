"""Putting the outputs of an application where they belong: the commit claim, and the work that it stands for.

The claim is made once, before the first target is touched, and says all that is needed to finish: so an
ApplicationMaster that dies in between leaves a plan, not a riddle.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from dlapp.am.application_dir.interface import ApplicationDir
from dlapp.am.model.events import ApplicationEnd, OutputsSettled, Part, Settlement, SettleOutputs, in_order
from dlapp.errors import DlappError, Unreachable
from dlapp.ids import ApplicationId
from dlapp.locations import shown
from dlapp.messages import StoredOutput
from dlapp.report import CommitClaim, OutputClaim, OutputView
from dlapp.spec import OnFailure, OutputSpec, Submission
from dlapp.storage import commit
from dlapp.storage.open import open_location
from dlapp.storage.settlement import ApplicationOutputs
from dlapp.system import log
from dlapp.value import replace

AGAIN_S = 1.0
"""Between two tries while the file system does not answer."""


class OutputSettlement:
    """Settles the outputs of one application, for its ApplicationMaster or after that has died.

    Args:
        app_dir: the files of the application, where the claim is made.
        submission: the outputs and their targets.
        application_id: of the application.
    """

    def __init__(self, app_dir: ApplicationDir, submission: Submission, application_id: ApplicationId) -> None:
        self._app_dir, self._spec, self._application_id = app_dir, submission.spec, application_id
        self._outputs = ApplicationOutputs(
            application_id, self._spec.outputs, app_dir.hdfs, note=log.error, commit_times=app_dir.commit_times
        )

    def settle(self, attempt: int, wanted: SettleOutputs) -> OutputsSettled:
        """Do what ``wanted`` says with every output, as attempt number ``attempt``.

        A commit that cannot be finished (an output that appeared meanwhile, a full disk) leaves that output aside and
        says so; the ones before it stay committed.

        Raises:
            Superseded: it is another attempt's by now.
        """
        self._app_dir.check_ours()
        if (earlier := self._app_dir.claimed()) is not None:
            # An attempt before us decided; whatever we know, what it claimed is neither dropped nor put aside.
            return self._finish_claim_of_another(earlier)
        problem = self._misplaced_part(wanted.parts + wanted.failed) if wanted.how is Settlement.COMMIT else None
        salvaged, unsaved = self.salvage(wanted.lost)
        if wanted.how is not Settlement.COMMIT or problem is not None:
            everything = in_order((*wanted.parts, *wanted.failed, *salvaged))
            left = self.leave(None if wanted.how is Settlement.DROP else everything)
            return OutputsSettled(left, "; ".join(filter(None, (problem, *unsaved))) or None)
        wanted = replace(wanted, failed=in_order((*wanted.failed, *salvaged)))
        outputs = tuple(
            OutputClaim(
                target=one.target,
                overwrite=one.overwrite,
                parts=dict(self._named_parts(wanted.parts, one, stray=False)),
                failed=dict(self._kept_beside(wanted, one)) if one.on_failure is OnFailure.KEEP else {},
            )
            for one in self._spec.outputs
        )
        claim = self._app_dir.claim(
            CommitClaim(
                attempt=attempt,
                final_status=wanted.ending.final_status,
                cause=wanted.ending.cause,
                diagnostics=wanted.ending.diagnostics,
                outputs=outputs,
            )
        )
        if claim.attempt != attempt:
            return self._finish_claim_of_another(claim)
        return self.finish(claim, again=False, give_up=True)

    def finish(self, claim: CommitClaim, *, again: bool, give_up: bool) -> OutputsSettled:
        """Carry out a commit claim; retry while the file system does not answer and the directory has patience.

        Args:
            claim: the decision.
            again: an earlier process may have done a part of it.
            give_up: a file system that does not answer even then counts as a commit that failed.

        Raises:
            Unreachable: it does not answer even then, and without ``give_up``: a later process retries.
        """
        deadline = time.monotonic() + min(self._app_dir.patience_s, self._spec.output_patience_s)
        while time.monotonic() < deadline:
            try:
                return OutputsSettled(*self._outputs.commit(claim, again=again, wait=True))
            except Unreachable as error:
                log.warning(f"the output: {error}; it is tried again")
            again = True
            time.sleep(AGAIN_S)
        return OutputsSettled(*self._outputs.commit(claim, again=again, wait=not give_up))

    def salvage(self, lost: Sequence[Part]) -> tuple[tuple[Part, ...], list[str]]:
        """Store what stood at the outputs' paths in containers whose tasks were killed.

        Args:
            lost: those containers, without outputs.

        Returns:
            Their parts, for `leave`: of each output that is kept on a failure, whether or not there is something; and
            a text on each output that could not be stored and stays where it is.

        Raises:
            Unreachable: the target's file system does not answer.
        """
        kept = [output for output in self._spec.outputs if output.on_failure is OnFailure.KEEP]
        parts, problems = [], []
        for part in lost:
            outputs = []
            for output in kept:
                # If its task was killed after it had stored the output, that is complete, and no more in the workspace.
                location = commit.part_location(output.target, self._application_id, part.container_id)
                if (path := self._app_dir.leftover(part.container_id, output.output_path)) is not None:
                    try:
                        files = open_location(location, self._app_dir.hdfs)
                        files.store(path, location, move=len(self._spec.outputs) == 1, note=log.info)
                    except Unreachable:
                        raise
                    except (DlappError, OSError) as error:
                        problems.append(f"the output so far stays in {path}: {error}")
                        continue
                outputs.append(StoredOutput(name=output.name, part=location, files=0, size_bytes=0))
            parts.append(replace(part, outputs=tuple(outputs)))
        return tuple(parts), problems

    def leave(self, parts: Sequence[Part] | None) -> tuple[OutputView, ...]:
        """Keep what the containers stored as ``.partial``, or remove it; None: remove all."""
        return self._outputs.leave(None if parts is None else lambda output: self._named_parts(parts, output))

    def _finish_claim_of_another(self, claim: CommitClaim) -> OutputsSettled:
        settled = self.finish(claim, again=True, give_up=True)
        return replace(settled, ended=ApplicationEnd(claim.final_status, claim.cause, claim.diagnostics))

    def _misplaced_part(self, parts: Sequence[Part]) -> str | None:
        """Return an error if a task reported a part at another place than its container's own."""
        targets = {output.name: output.target for output in self._spec.outputs}
        for part in parts:
            for stored in part.outputs:
                target = targets.get(stored.name)
                if target is None:
                    return f"{part.container_id} reported the output {shown(stored.name)!r}, which does not exist"
                if stored.part != commit.part_location(target, self._application_id, part.container_id):
                    return (
                        f"{part.container_id} reported its output at {shown(stored.part)}, which is not its own part "
                        f"of {shown(target)}; nothing is committed"
                    )
        return None

    def _kept_beside(self, wanted: SettleOutputs, output: OutputSpec) -> list[tuple[str, str]]:
        return self._named_parts(wanted.failed, output) + self._named_parts(wanted.parts, output, stray=True)

    def _named_parts(
        self, parts: Sequence[Part], output: OutputSpec, *, stray: bool | None = None
    ) -> list[tuple[str, str]]:
        """Return the path of each part and its name within the target: empty for the only one, else by index or role.

        The path of a part is derived from its container; a report with another path is ignored.

        Args:
            parts: of all containers.
            output: whose parts are wanted.
            stray: only those with this `StoredOutput.stray`; None: all.
        """
        named = []
        for part in parts:
            location = commit.part_location(output.target, self._application_id, part.container_id)
            if any(
                (stored.name, stored.part) == (output.name, location) and stray in (None, stored.stray)
                for stored in part.outputs
            ):
                if self._spec.containers == 1:
                    name = ""
                elif len(self._spec.roles) == 1:
                    name = str(part.index)
                else:
                    name = f"{part.role}_{part.role_index}"
                named.append((name, location))
        return named
