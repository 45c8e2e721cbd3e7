"""Takeover of earlier sweeps by a sweep: trials that have ended, and whose output is there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

import pytest

from dlapp.am.application_dir.interface import FormerSweep
from dlapp.am.takeover import ended_trials
from dlapp.errors import NotFound
from dlapp.storage.commit.written import mark_written
from dlapp.sweep.results import TrialState, TrialView, trial_line
from dlapp.values.ids import ApplicationId
from dlapp.values.report import OutputView
from dlapp.values.spec import OutputSpec

APP = ApplicationId(1_700_000_000_000, 9)
HEAD = '{"trials":6,"metric":"loss","goal":"min","parameters":["X"]}'


class Applications:
    """Application directories of sweeps that have ended, by the numbers of their applications."""

    hdfs = None

    def __init__(self, **sweeps: FormerSweep) -> None:
        self._sweeps = sweeps

    def former_sweep(self, application_id: ApplicationId) -> FormerSweep:
        name = f"a{application_id.number}"
        if name not in self._sweeps:
            raise NotFound(f"{application_id} is not there any more")
        return self._sweeps[name]


def id_of(number: int) -> str:
    return str(ApplicationId(1_700_000_000_000, number))


def results(**trials: TrialState) -> str:
    lines = [
        trial_line(
            TrialView(
                number=int(name[1:]), state=state, parameters={"X": name}, tries=1, container=0, container_id="c"
            ),
            ["X"],
        )
        for name, state in trials.items()
    ]
    return "\n".join([HEAD, *lines, ""])


def trial_sources(applications: Applications, target: Path, before: int = 2) -> dict[int, str]:
    """Return the sources of the trials that are taken over."""
    outputs = (OutputSpec(output_path="output", target=f"file://{target}"),)
    found = ended_trials(id_of(before), cast(Any, applications), outputs, APP)
    for trial in found.trials:
        assert trial.outputs[0].part == f"file://{target}.{APP}.tmp/trial_{trial.view.number}_1"
    return {trial.view.number: trial.sources[0] for trial in found.trials}


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "trials"


def make_trials(place: Path, *numbers: int) -> Path:
    for number in numbers:
        (place / str(number)).mkdir(parents=True)
    return place


def test_trials_that_ended_well_and_left_output_are_taken(target: Path) -> None:
    make_trials(target, 0, 1, 2, 3)
    one = OutputView(name="", target=f"file://{target}", committed=True)
    text = results(n0=TrialState.DONE, n1=TrialState.STOPPED, n2=TrialState.FAILED, n3=TrialState.WAITING)
    applications = Applications(a2=FormerSweep(text, (one,), ""))
    assert trial_sources(applications, target) == {n: f"file://{target}/{n}" for n in (0, 1)}


def test_results_not_copied_by_the_last_sweep_come_from_the_one_before(target: Path, tmp_path: Path) -> None:
    first, second = make_trials(tmp_path / "first", 0, 1), make_trials(tmp_path / "second", 1, 4)
    applications = Applications(
        a1=FormerSweep(
            results(n0=TrialState.DONE, n1=TrialState.DONE),
            (OutputView(name="", target=f"file://{target}", partial=f"file://{first}"),),
            id_of(7),
        ),
        a2=FormerSweep(
            results(n0=TrialState.DONE, n1=TrialState.DONE, n4=TrialState.DONE, n5=TrialState.DONE),
            (OutputView(name="", target=f"file://{target}", partial=f"file://{second}"),),
            id_of(1),
        ),
    )
    assert trial_sources(applications, target) == {
        0: f"file://{first}/0",
        1: f"file://{second}/1",
        4: f"file://{second}/4",
    }


def test_a_trial_that_was_committed_before_that_was_on_record_stays_as_it_is(target: Path) -> None:
    make_trials(target, 0, 1, 2)
    for number, before in ((0, 2), (1, 1)):
        fd = os.open(target / str(number), os.O_RDONLY)
        mark_written(fd, id_of(before), str(target / str(number)))
        os.close(fd)
    one = OutputView(name="", target=f"file://{target}")
    text = results(n0=TrialState.DONE, n1=TrialState.DONE, n2=TrialState.DONE)
    applications = Applications(a2=FormerSweep(text, (one,), ""))
    by_trial = OutputSpec(output_path="output", target=f"file://{target}", by_trial=True)
    found = ended_trials(id_of(2), cast(Any, applications), (by_trial,), APP).trials
    assert [(each.view.number, each.is_committed, each.outputs) for each in found] == [(0, True, ())]


def test_a_killed_sweep_leaves_no_output_and_all_trials_run_again(target: Path) -> None:
    one = OutputView(name="", target=f"file://{target}")
    assert trial_sources(Applications(a2=FormerSweep(results(n0=TrialState.DONE), (one,), "")), target) == {}


def test_a_missing_sweep_is_named(target: Path) -> None:
    with pytest.raises(NotFound, match="_0002 is not there any more"):
        trial_sources(Applications(), target)
