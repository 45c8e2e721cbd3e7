"""Summary of a sweep: what is said of its failures, and the output that its trials stored."""

from __future__ import annotations

from dlapp.am.decisions import verdict
from dlapp.am.model.events import Part
from dlapp.am.model.trials import SweepState
from dlapp.ids import trial_part
from dlapp.sweep.results import TrialState


def failures_text(sweep: SweepState) -> str:
    """Name the trials that failed, and why the first of them did; empty: none failed."""
    failed = [one for one in sweep.trials if one.state is TrialState.FAILED]
    if not failed:
        return ""
    names = ", ".join(verdict.ranges([one.number for one in failed]))
    return f"{names}; the first of them: trial {failed[0].number}: {failed[0].message}"


def ending_text(sweep: SweepState) -> str:
    """Return what the diagnostics say of a sweep whose trials have ended; empty: all ended well."""
    return f"{sweep.failed} of {len(sweep.trials)} trials failed: {failures_text(sweep)}" if sweep.failed else ""


def parts_of(sweep: SweepState, *, failed: bool) -> tuple[Part, ...]:
    """Return the output of trials.

    Args:
        sweep: with the trials.
        failed: of those that failed; else of the others.
    """
    return tuple(
        Part(one.number, "trial", one.number, one.holder, one.outputs, trial_part(one.number, one.tries), one.sources)
        for one in sweep.trials
        if one.outputs and one.holder is not None and (one.state is TrialState.FAILED) is failed
    )
