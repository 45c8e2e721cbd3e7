"""Trials of a sweep that this one continues: their results, and the locations of their output.

That sweep may itself have continued another one, and have ended before it could copy that one's output. So a trial is
searched in all of them, the last one first.
"""

from __future__ import annotations

from dlapp.am.application_dir.interface import ApplicationDir, FormerSweep
from dlapp.am.model.events import FormerTrial, TrialsTakenOver
from dlapp.errors import NotFound
from dlapp.locations import HdfsPlace
from dlapp.storage.commit import part_location, trial_target
from dlapp.storage.open import open_output
from dlapp.sweep.results import TrialState, TrialView, read_results
from dlapp.values.ids import ApplicationId, trial_part
from dlapp.values.messages import StoredOutput
from dlapp.values.spec import OutputSpec

MAX_SWEEPS = 100
"""Maximum number of sweeps searched."""
_TAKEN_OVER = (TrialState.DONE, TrialState.STOPPED)
"""A failed trial runs again: its user may have fixed the problem."""


def ended_trials(
    before: str, app_dir: ApplicationDir, outputs: tuple[OutputSpec, ...], application_id: ApplicationId
) -> TrialsTakenOver:
    """Return the ended trials whose output exists.

    Args:
        before: id of the continued application.
        app_dir: directory of the new application.
        outputs: outputs of the new application.
        application_id: id of the new application.

    Raises:
        NotFound: the application no longer exists.
        ValueError: the results are invalid.
        DlappError: a sweep cannot be read, or the existence of an output cannot be determined.
    """
    found: dict[int, FormerTrial] = {}
    for place in range(MAX_SWEEPS):
        if not before:
            break
        try:
            former = app_dir.former_sweep(ApplicationId.from_text(before))
        except NotFound:
            if place:
                break  # the later ones know what an old one knew
            raise
        for view in read_results(former.results).trials if former.results else ():
            if view.state in _TAKEN_OVER and view.number not in found:
                sources = _sources(view, former, outputs, ApplicationId.from_text(before), app_dir.hdfs)
                # Where a sweep commits a trial separately; empty: it commits all together.
                own = tuple(trial_target(one.target, view.number) if one.by_trial else "" for one in outputs)
                if sources and sources == own:
                    found[view.number] = FormerTrial(view=view, is_committed=True)
                elif sources is not None:
                    part = trial_part(view.number, max(1, view.tries))
                    stored = tuple(_stored(one, application_id, part) for one in outputs)
                    found[view.number] = FormerTrial(view=view, outputs=stored, sources=sources)
        before = former.resumed_from
    return TrialsTakenOver(tuple(one for _, one in sorted(found.items())))


def _sources(
    view: TrialView,
    former: FormerSweep,
    outputs: tuple[OutputSpec, ...],
    before: ApplicationId,
    hdfs: HdfsPlace | None,
) -> tuple[str, ...] | None:
    """Return the locations of a trial's outputs that the sweep of ``before`` has stored; None: one does not exist."""
    targets = {one.name: one for one in former.outputs}
    found = []
    for output in outputs:
        if (one := targets.get(output.name)) is None:
            return None
        source = trial_target(one.target, view.number)
        if not (one.committed or view.is_committed):
            # Its ApplicationMaster may have died after it committed the trial, and before it recorded that.
            files = open_output(source, hdfs)
            if output.by_trial and files.output_commit(source, str(before)).is_surely_committed():
                found.append(source)
                continue
            if one.partial is None:
                return None
            source = f"{one.partial.rstrip('/')}/{view.number}"
        if not open_output(source, hdfs).exists(source):
            return None
        found.append(source)
    return tuple(found)


def _stored(output: OutputSpec, application_id: ApplicationId, part: str) -> StoredOutput:
    location = part_location(output.target, application_id, part)
    return StoredOutput(name=output.name, part=location, files=1, size_bytes=0)
