"""Summary of a sweep: text on its failures, and the output that its trials stored."""

from __future__ import annotations

from dlapp.am.decisions import assessment
from dlapp.am.model.events import Part
from dlapp.am.model.trials import SweepState, part_of
from dlapp.sweep.results import TrialState


def failures_text(sweep: SweepState) -> str:
    """Name the trials that failed, and why the first of them did; empty: none failed.

    ``1 of 6 trials failed (trial 4): exit code 9``
    """
    failed = [one for one in sweep.trials if one.state is TrialState.FAILED]
    if not failed:
        return ""
    first, count = failed[0], f"{len(failed)} of {len(sweep.trials)} trials failed"
    if len(failed) == 1:
        return f"{count} (trial {first.number}): {first.message}"
    names = ", ".join(assessment.ranges([one.number for one in failed]))
    return f"{count} (trials {names}); the first of them, trial {first.number}: {first.message}"


def parts_of(sweep: SweepState, *, failed: bool) -> tuple[Part, ...]:
    """Return the output that is not committed, of the trials that failed or of the others."""
    return tuple(
        part_of(one)
        for one in sweep.trials
        if one.outputs
        and one.holder is not None
        and not one.is_committed
        and (one.state is TrialState.FAILED) is failed
    )
