"""The trials of a sweep that another one goes on from: what they came to, and where their output is."""

from __future__ import annotations

from dlapp.am.model.events import FormerTrial, TrialsTakenOver
from dlapp.ids import ApplicationId, trial_part
from dlapp.locations import HdfsPlace
from dlapp.messages import StoredOutput
from dlapp.report import OutputView
from dlapp.spec import OutputSpec
from dlapp.storage.commit import part_location
from dlapp.storage.open import open_output
from dlapp.sweep.results import TrialState, read_results

_TAKEN = (TrialState.DONE, TrialState.STOPPED)
"""A trial that failed runs again: its user may have mended what was wrong."""


def trials_to_take(
    results: str,
    kept: tuple[OutputView, ...],
    outputs: tuple[OutputSpec, ...],
    application_id: ApplicationId,
    hdfs: HdfsPlace | None,
) -> TrialsTakenOver:
    """Return the trials that have ended and whose output is there.

    Args:
        results: the results of the sweep before (`dlapp.sweep.results`); empty: there are none.
        kept: where its outputs are.
        outputs: those of the new application.
        application_id: of the new application.
        hdfs: the HDFS that is configured, if one is.

    Raises:
        ValueError: the results cannot be read.
        DlappError: it cannot be found out whether an output is there.
    """
    if not results:
        return TrialsTakenOver(())
    places = {one.name: (one.target if one.committed else one.partial) or "" for one in kept}
    found = []
    for view in read_results(results).trials:
        if view.state not in _TAKEN:
            continue
        part = trial_part(view.number, max(1, view.tries))
        sources = tuple(f"{places.get(one.name, '').rstrip('/')}/{view.number}" for one in outputs)
        if not all(not one.startswith("/") and open_output(one, hdfs).exists(one) for one in sources):
            continue
        stored = tuple(
            StoredOutput(name=one.name, part=part_location(one.target, application_id, part), files=1, size_bytes=0)
            for one in outputs
        )
        found.append(FormerTrial(view=view, outputs=stored, sources=sources))
    return TrialsTakenOver(tuple(found))
