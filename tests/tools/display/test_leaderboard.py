"""Test the text of dlapp-sweep, and the command on results that an application left."""

from __future__ import annotations

import csv
import io
import json

import pytest

from dlapp.sweep.results import SweepResults, TrialState, TrialView
from dlapp.sweep.spec import Goal
from dlapp.tools.display.leaderboard import best_lines, csv_text, json_lines, leaderboard_lines
from dlapp.value import replace

STATES = TrialState
RESULTS = SweepResults(
    total=6,
    parameters=("lr", "name"),
    metric="accuracy",
    goal=Goal.MAX,
    trials=(
        TrialView(
            number=0,
            state=STATES.DONE,
            parameters={"lr": "0.1", "name": "a b"},
            tries=1,
            metric=0.5,
            step=9,
            reports=9,
            ran_s=3723.4,
            container=1,
            exit_code=0,
        ),
        TrialView(
            number=1,
            state=STATES.STOPPED,
            parameters={"lr": "0.01", "name": "it's"},
            tries=2,
            metric=0.75,
            step=3,
            ran_s=2.25,
            why="rung 3 needs 0.8",
        ),
        TrialView(number=2, state=STATES.RUNNING, parameters={"lr": "1", "name": "x" * 30}, tries=1),
        TrialView(
            number=3, state=STATES.FAILED, parameters={"lr": "2", "name": ""}, metric=0.9, step=1, why="exit code 1"
        ),
    ),
)


def test_the_leaderboard_has_the_best_first_with_the_reason() -> None:
    assert leaderboard_lines(RESULTS, None) == [
        "6 trials: 2 waiting, 1 running, 1 done, 1 stopped, 1 failed; accuracy, max is best",
        "TRIAL  accuracy  STEP  lr    name                      TIME     STATE    WHY",
        "1      0.75      3     0.01  it's                      2.2 s    stopped  rung 3 needs 0.8",
        "0      0.5       9     0.1   a b                       1:02:03  done",
        "2      -         -     1     xxxxxxxxxxxxxxxxxxxxxxx…  0.0 s    running",
        "3      0.9       1     2                               0.0 s    failed   exit code 1",
    ]
    assert leaderboard_lines(RESULTS, 1)[2:][1:] == ["3 more (--all shows them)"]
    assert max(map(len, leaderboard_lines(RESULTS, None, 40))) == 40
    assert leaderboard_lines(SweepResults(total=3), 20) == ["3 trials: 3 waiting"]


def test_the_best_trial_is_assignments_of_a_shell() -> None:
    best = RESULTS.best()
    assert best is not None
    assert best_lines(best) == ["DLAPP_TRIAL=1", "DLAPP_METRIC=0.75", "lr=0.01", "name='it'\"'\"'s'"]


def test_csv_has_every_trial_and_parameter() -> None:
    rows = list(csv.DictReader(io.StringIO(csv_text(RESULTS))))
    assert [row["trial"] for row in rows] == ["1", "0", "2", "3"]
    assert rows[1] == {
        "trial": "0",
        "state": "done",
        "accuracy": "0.5",
        "step": "9",
        "seconds": "3723.4",
        "tries": "1",
        "container": "1",
        "exit_code": "0",
        "why": "",
        "lr": "0.1",
        "name": "a b",
    }
    assert rows[2]["accuracy"] == ""


@pytest.mark.parametrize("text", ["=1+1", "+x", "-cmd|' /C calc'!A0", "@SUM(A1)", "\t=1", "\n=1"])
def test_no_cell_of_csv_is_a_formula(text: str) -> None:
    parameters = {"lr": "-0.5", "name": text}
    trial = TrialView(number=0, state=STATES.FAILED, parameters=parameters, why=text.replace("\n", "\r"))
    found = replace(RESULTS, trials=(trial,), metric=text)
    (row,) = csv.DictReader(io.StringIO(csv_text(found), newline=""))
    assert (row["lr"], row["name"], row["why"]) == ("-0.5", f"'{text}", f"'{text}")
    assert f"'{text}" in row


def test_json_is_one_document() -> None:
    found = json.loads("\n".join(json_lines("application_1_0001", RESULTS)))
    assert (found["total"], found["best"], found["goal"]) == (6, 1, "max")
    assert found["counts"] == {"waiting": 2, "running": 1, "done": 1, "stopped": 1, "failed": 1}
    assert found["trials"][1] == {
        "trial": 0,
        "state": "done",
        "metric": 0.5,
        "step": 9,
        "reports": 9,
        "ran_s": 3723.4,
        "tries": 1,
        "container": 1,
        "exit_code": 0,
        "why": "",
        "parameters": {"lr": "0.1", "name": "a b"},
    }
    empty = json.loads("\n".join(json_lines("application_1_0001", SweepResults(total=2))))
    assert empty["trials"] == []
