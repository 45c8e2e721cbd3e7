"""Settlement of the outputs of an application: commit what was claimed, keep the stored parts as ``.partial``, or
remove them.

An ApplicationMaster settles its own outputs. If it died, a cleanup process does so on one machine, and on YARN the
user's next command. All of them use this module, and may repeat interrupted steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple, TypeVar

from dlapp.errors import DlappError, Unreachable
from dlapp.locations import local_path, shown
from dlapp.storage import commit
from dlapp.storage.api import OutputFileSystem
from dlapp.storage.commit.marker import OutputCommit, Parts
from dlapp.storage.glob import literal_pattern
from dlapp.storage.live_copies import remove_live
from dlapp.storage.open import open_output
from dlapp.storage.values import DiskFull
from dlapp.system.disk_space import FULL, free_space_text, mount_point
from dlapp.system.files import UntrustedFile
from dlapp.values.ids import ApplicationId, is_trial_part
from dlapp.values.report import CommitClaim, OutputClaim, OutputView
from dlapp.values.spec import OnFailure, OutputSpec

T = TypeVar("T")
Retried = tuple[type[Unreachable | DiskFull], ...]


class ApplicationOutputs(NamedTuple):
    """The outputs of one application, and their file systems.

    Args:
        application_id: the id of the application.
        specs: the outputs, as submitted.
        open_files: returns the file system of a target.
        note: called with a line about parts that stay where they are.
        commit_times: returns when those applications of the user ended that committed to a target [ms since 1970].
    """

    application_id: ApplicationId
    specs: tuple[OutputSpec, ...]
    open_files: Callable[[str], OutputFileSystem] = open_output
    note: Callable[[str], None] = lambda _: None
    commit_times: Callable[[str], Iterable[int]] = lambda _: ()

    def commit(
        self, claim: CommitClaim, *, is_retry: bool, retried: Retried
    ) -> tuple[tuple[OutputView, ...], str | None]:
        """Execute a commit claim. An output that cannot be committed is kept as ``.partial``.

        Args:
            claim: the decision, with the parts of each output in the order of ``specs``.
            is_retry: an earlier call may have executed a part of it.
            retried: errors that are raised because the caller retries; other errors count as a failed commit.

        Returns:
            The outputs, and the first error.

        Raises:
            DlappError, OSError: an output can neither be committed nor kept; the others are settled.
        """
        errors: list[str] = []

        def settle(one: tuple[OutputSpec, OutputClaim]) -> OutputView:
            name, output = one[0].name, one[1]
            parts, failed, aside = list(output.parts.items()), list(output.failed.items()), None
            try:
                if failed:
                    aside = self._commit_of(output.target).keep_failed(failed)
                if one[0].by_trial:
                    problems = self._commit_trials(output, retried)
                    errors.extend(problems)
                    is_whole = not problems and bool(parts or output.committed)
                    return OutputView(name=name, target=output.target, committed=is_whole, partial=aside)
                if not parts:
                    self._commit_of(output.target).drop()
                    return OutputView(name=name, target=output.target, partial=aside)
                old = self._commit(output, output.target, parts, self.open_files(output.target), is_retry=is_retry)
            except (DlappError, OSError) as error:
                problem = _full_disk(error, output.target) or error
                if isinstance(problem, retried):
                    raise problem from error
                errors.append(f"output {output.target} could not be committed: {problem}")
                return OutputView(
                    name=name, target=output.target, partial=self._keep_partial(output.target, parts + failed)
                )
            if one[0].sync_s is not None:
                try:
                    remove_live(self.open_files(output.target), output.target, self.application_id)
                except (DlappError, OSError) as error:
                    self.note(f"the live copies of {output.target} are not removed: {error}")
            was_own = old is not None and commit.is_previous(old, output.target)
            return OutputView(
                name=name,
                target=output.target,
                committed=True,
                partial=aside,
                replaced=None if was_own else old,
                previous=old if was_own else None,
            )

        views = _each(settle, zip(self.specs, claim.outputs, strict=True))
        return views, next(iter(errors), None)

    def commit_trial(
        self, output: OutputSpec | OutputClaim, number: int | str, location: str, *, is_retry: bool
    ) -> str | None:
        """Commit the output of one trial, to its own directory in the target.

        It is renamed to the place of that directory's parts, and committed from there. So an entry with a name of the
        application in the target is always to be committed, by any process that finds it.

        Args:
            output: that it belongs to.
            number: the number of the trial.
            location: where its task has stored it.
            is_retry: an earlier call may have succeeded.

        Returns:
            See `dlapp.storage.commit.commit`.

        Raises:
            DlappError, OSError: see there.
        """
        target, files = commit.trial_target(output.target, number), self.open_files(output.target)
        part = self._trial_part(target, location)
        files.move_stored(location, part)
        return self._commit(output, target, [("", part)], files, is_retry=is_retry)

    def _commit(
        self, output: OutputSpec | OutputClaim, target: str, parts: Parts, files: OutputFileSystem, *, is_retry: bool
    ) -> str | None:
        return commit.commit(
            target,
            self.application_id,
            parts,
            overwrite=output.overwrite,
            keep_previous=output.keep_previous,
            is_retry=is_retry,
            commit_times=partial(self.commit_times, target),
            files=files,
        )

    def _commit_trials(self, output: OutputClaim, retried: Retried) -> list[str]:
        """Commit each uncommitted trial. Return the errors; the output of those trials is kept aside."""
        errors = []
        for number, location in output.parts.items():
            target = commit.trial_target(output.target, number)
            try:
                self.commit_trial(output, number, location, is_retry=True)
            except (DlappError, OSError) as error:
                problem = _full_disk(error, target) or error
                if isinstance(problem, retried):
                    raise problem from error
                kept = self._keep_partial(target, [("", self._trial_part(target, location))])
                where = f"; it is kept at {shown(kept)}" if kept and str(kept) not in str(problem) else ""
                errors.append(f"output {target} could not be committed: {problem}{where}")
        self._commit_of(output.target).drop()
        return errors

    def _finish_trials(self, output: OutputSpec) -> None:
        """Finish the commits of trials that a dead process has started."""
        files, pattern = self.open_files(output.target), literal_pattern(output.target)
        begun = {}
        for kind in ("tmp", "commit"):
            for entry in files.matches(f"{pattern}/*.{self.application_id}.{kind}"):
                name = entry.location.rpartition("/")[2].removesuffix(f".{self.application_id}.{kind}")
                if name.isascii() and name.isdigit():
                    begun[name] = entry.location
        for number in begun:
            target = commit.trial_target(output.target, number)
            above = commit.parts_location(target, self.application_id)
            names = [one.location.rpartition("/")[2] for one in files.matches(f"{literal_pattern(above)}/trial_*")]
            parts = [one for one in names if is_trial_part(one) and one.startswith(f"trial_{number}_")]
            try:
                if parts:
                    where = commit.part_location(output.target, self.application_id, parts[-1])
                    self.commit_trial(output, number, where, is_retry=True)
                elif not self._commit_of(target).finish_interrupted():
                    self._commit_of(target).drop()
            except Unreachable:
                raise
            except (DlappError, OSError) as error:
                kept = self._keep_partial(target, [("", f"{above}/{one}") for one in parts[-1:]])
                self.note(f"output {target} could not be committed, and stays in {kept}: {error}")

    def _trial_part(self, target: str, location: str) -> str:
        return commit.part_location(target, self.application_id, location.rpartition("/")[2])

    def keep_or_drop(self, parts_of: Callable[[OutputSpec], Parts] | None) -> tuple[OutputView, ...]:
        """Keep the stored parts as ``.partial``, or remove them, by the output's ``on_failure``.

        Args:
            parts_of: returns the parts of an output; None removes all outputs.

        Raises:
            DlappError, OSError: an output can neither be kept nor removed; the others are settled.
        """

        def settle(output: OutputSpec) -> OutputView:
            kept = None
            if output.by_trial:
                self._finish_trials(output)
            if parts_of is not None and output.on_failure is OnFailure.KEEP:
                kept = self._keep_partial(output.target, parts_of(output))
            else:
                self._commit_of(output.target).drop()
            return OutputView(name=output.name, target=output.target, partial=kept)

        return _each(settle, self.specs)

    def _keep_partial(self, target: str, parts: Parts) -> str | None:
        """Call `OutputCommit.keep_partial`; leave the parts where they are if another user's file is in the way, or if
        there is no space even for that."""
        try:
            return self._commit_of(target).keep_partial(parts)
        except (DlappError, OSError) as error:
            if not isinstance(error, UntrustedFile) and _full_disk(error, target) is None:
                raise
            where = commit.parts_location(target, self.application_id)
            self.note(f"the output of {target} cannot be moved aside and stays in {where}: {error}")
            return where

    def _commit_of(self, target: str) -> OutputCommit:
        return commit.output_commit(target, self.application_id, files=self.open_files(target))


def _full_disk(error: DlappError | OSError, target: str) -> DiskFull | None:
    """Return the error as DiskFull if it means that, whatever its class; otherwise None."""
    if isinstance(error, DlappError) or error.errno not in FULL:
        return error if isinstance(error, DiskFull) else None
    place = mount_point(local_path(target))
    return DiskFull(f"disk full: {shown(target)} cannot be written; {free_space_text(place)}", place=place)


def _each(settle: Callable[[T], OutputView], outputs: Iterable[T]) -> tuple[OutputView, ...]:
    """Settle each output, also after a failed one; then raise the first error."""
    views, problem = [], None
    for one in outputs:
        try:
            views.append(settle(one))
        except Unreachable:
            raise  # the others would fail, too
        except (DlappError, OSError) as error:
            problem = problem or error
    if problem is not None:
        raise problem
    return tuple(views)
