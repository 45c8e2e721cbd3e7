"""Test what programs see of a sweep."""

from __future__ import annotations

from typing import Any, cast

import pytest

from dlapp.client.sweep import Sweep
from dlapp.cluster.engine import Engine
from dlapp.cluster.view_forms import ViewForms
from dlapp.errors import DlappError, UsageError
from dlapp.sweep.results import SweepResults, TrialState, TrialView, head_line, trial_line
from dlapp.sweep.spec import Goal, GridParameter, Sampler, SweepSpec
from dlapp.values.ids import ApplicationId
from dlapp.values.spec import AppSpec, Submission

APP = ApplicationId(1700000000000, 7)
SPEC = SweepSpec(
    sampler=Sampler.GRID, trials=3, grid=(GridParameter("lr", ("1", "2", "3")),), metric="m", goal=Goal.MIN
)


class EngineOfResults:
    """An engine whose results are those of each reading in turn, the last ones for good."""

    def __init__(self, *texts: str, state: str = "RUNNING", sweep: SweepSpec | None = SPEC) -> None:
        self.texts, self.state = list(texts), state
        spec = AppSpec(username="u", appname="a", command=("true",), sweep=sweep)
        self.submitted = Submission(spec=spec, workspace_archive="", workspace_digest="", submitter="u", submitted_ms=1)

    def trials_text(self, application_id: ApplicationId) -> str:
        return self.texts.pop(0) if len(self.texts) > 1 else self.texts[0]

    def view(self, application_id: ApplicationId) -> ViewForms:
        return ViewForms(json={"state": self.state})

    def submission(self, application_id: ApplicationId) -> Submission:
        return self.submitted


def sweep_of(*texts: str, **more: Any) -> Sweep:
    return Sweep(APP, cast(Engine, EngineOfResults(*texts, **more)))


def text(*states: TrialState) -> str:
    trials = [
        TrialView(number=n, state=state, metric=float(n), parameters={"lr": str(n + 1)})
        for n, state in enumerate(states)
    ]
    return "\n".join([head_line(SPEC), *(trial_line(trial, SPEC.parameters) for trial in trials), ""])


RUNNING, DONE, WAITING = TrialState.RUNNING, TrialState.DONE, TrialState.WAITING


def test_trials_are_sorted_best_first_and_the_best_has_ended() -> None:
    sweep = sweep_of(text(RUNNING, DONE, DONE))
    assert [trial.number for trial in sweep.trials()] == [0, 1, 2]
    best = sweep.best()
    assert best is not None
    assert best.number == 1


def test_an_ended_application_has_no_running_trial() -> None:
    sweep = sweep_of(text(DONE, RUNNING), state="KILLED")
    assert [(trial.state, trial.why) for trial in sweep.results().trials] == [
        (DONE, ""),
        (WAITING, "ended with its application"),
    ]
    # The end was recorded between two readings.
    sweep = sweep_of(text(DONE, RUNNING), text(DONE, DONE), state="FINISHED")
    assert sweep.results().counts() == {"done": 2, "waiting": 1}


def test_before_the_first_results_all_trials_wait() -> None:
    expected = SweepResults(total=3, parameters=("lr",), metric="m", goal=Goal.MIN)
    assert sweep_of("").results() == expected
    assert expected.counts() == {"waiting": 3}


def test_an_application_without_readable_trials_is_refused() -> None:
    with pytest.raises(UsageError, match=f"{APP} has no "):
        sweep_of("", sweep=None).results()
    with pytest.raises(DlappError, match=f"the trials of {APP} cannot be read: "):
        sweep_of("{}\n").results()
