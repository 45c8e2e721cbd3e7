"""Results of a sweep as users see them: why trials have none, the best ones, their pictures."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
from pathlib import Path

import pytest

from dlapp.client import Client
from dlapp.sweep.results import TrialState
from tests.applications import application_dir, ended, launch, properties, run, status, wait_for
from tests.tools.terminal import Terminal

REPORTS = """
case $CASE in
nan) echo '{"metrics": {"accuracy": NaN}, "step": 1}';;
infinite) echo '{"metrics": {"accuracy": 1e999}, "step": 1}';;
text) echo '{"metrics": {"accuracy": "0.9"}, "step": 1}';;
other) echo '{"metrics": {"loss": 0.9}, "step": 1}';;
late) echo '{"metrics": {"accuracy": 0.5}, "step": 1}'; echo '{"metrics": {"accuracy": NaN}, "step": 2}';;
good) echo '{"metrics": {"accuracy": 0.5}, "step": 1}'; echo '{"metrics": {"accuracy": 0.75}, "step": 2}';;
esac >>"$DLAPP_REPORT"
"""


RATED = """
echo "$@, $RATE, $SEED, ${DLAPP_TRIAL-no trial}" >said; mkdir -p out; mv said out/said
echo "{\\"metrics\\": {\\"score\\": $RATE}}" >>"$DLAPP_REPORT"
"""


def test_the_best_trial_of_a_sweep_is_named_and_can_be_rerun_alone(tmp_path: Path) -> None:
    file = properties(
        tmp_path,
        RATED,
        application={"user_shell_args": "--rate={RATE} --n={trial} 'two words'"},
        resources={"containers": 2},
        sweep={"grid.RATE": "0.5, 0.75, 0.25", "metric": "score", "goal": "max"},
        to_hdfs={"output_path": "out", "hdfs": f"{tmp_path}/result", "overwrite": "true"},
    )
    waited = run("dlapp-launcher", "--wait", file, "--env", "SEED=1")
    sweep = status("last")["application_id"]
    for lines in (waited.out.splitlines(), run("dlapp-status", sweep).out.splitlines()):
        assert "best : trial 1, score 0.75 at step 1 (RATE=0.75)" in lines
        assert f"next : dlapp-launcher --trial 1 --of {sweep}" in lines
    missing = run("dlapp-launcher", "--trial", "1", "--of", sweep)
    assert (missing.code, "had the variables SEED, whose values are not recorded" in missing.err) == (2, True)
    done = run("dlapp-launcher", "--trial", "1", "--of", sweep, "--env", "SEED=2", "--wait")
    assert done.code == 0, done.err
    alone = status("last")
    assert (alone["again_of"], alone["trials"], alone["total_containers"]) == (sweep, None, 1)
    message = "--rate=0.75 --n=1 two words, 0.75, {}, {}\n"
    assert (tmp_path / "result" / "trial-1" / "said").read_text() == message.format(2, "no trial")
    assert (tmp_path / "result" / "trials" / "1" / "said").read_text() == message.format(1, "1")
    chosen = ("--set", f"to_hdfs.hdfs={tmp_path}/chosen", "--env", "RATE=0.8", "--env", "SEED=3", "--wait")
    done = run("dlapp-launcher", "--trial", "2", "--of", sweep, *chosen, "--", "only", "this")
    assert done.code == 0, done.err
    assert (tmp_path / "chosen" / "said").read_text() == "only this, 0.8, 3, no trial\n"
    unknown = run("dlapp-launcher", "--trial", "3", "--of", sweep, "--env", "SEED=2")
    assert (unknown.code, unknown.err) == (3, f"Error: {sweep} has no trial 3; its trials are 0 to 2\n")


def test_a_sweep_of_a_command_from_python_runs_a_trial_again(tmp_path: Path) -> None:
    command = ["sh", "-c", "mkdir out; echo $A {A} >out/a", "{trial}"]
    with Client() as client:
        sweep = client.submit(
            appname="a",
            command=command,
            memory=64,
            outputs={"out": f"{tmp_path}/r"},
            sweep={"grid": {"A": ["x", "y"]}},
        )
        assert sweep.wait().final_status.value == "SUCCEEDED"
        alone = client.again_as_trial(sweep, 1)
        assert alone.wait().final_status.value == "SUCCEEDED"
        assert alone.status().program == "sh -c 'mkdir out; echo $A y >out/a' 1"
        assert (tmp_path / "r" / "trial-1" / "a").read_text() == "y y\n"


@pytest.mark.slow
def test_trials_without_a_valid_metric_are_named_and_the_best_is_found(tmp_path: Path) -> None:
    cases = "nan, infinite, text, other, silent, late, good"
    sweep = {"grid.CASE": cases, "metric": "accuracy", "goal": "max", "trials_per_container": 4}
    application = launch(properties(tmp_path, REPORTS, sweep=sweep))
    assert ended(application)["final_status"] == "SUCCEEDED"
    results = Client().sweep(application).results()
    assert results.counts() == {"done": 7}
    found = {trial.parameters["CASE"]: (trial.metric, trial.step, trial.why) for trial in results.trials}
    never = "never reported accuracy"
    assert found == {
        "nan": (None, None, f"{never} (a report was refused: NaN is not a finite number)"),
        "infinite": (None, None, f"{never} (a report was refused: a number is not finite)"),
        "text": (None, None, f"{never} (a report was refused: a metric is not a number)"),
        "other": (None, None, never),
        "silent": (None, None, never),
        "late": (0.5, 1, ""),
        "good": (0.75, 2, ""),
    }
    best = results.best()
    assert best is not None
    assert (best.parameters, best.curve) == ({"CASE": "good"}, ((1.0, 0.5), (2.0, 0.75)))
    shown = run("dlapp-sweep", application, "-n", "2").out.splitlines()
    assert shown[0] == "7 trials: 7 done; accuracy, max is best"
    assert [line.split()[:4] for line in shown[2:4]] == [["6", "0.75", "2", "good"], ["5", "0.5", "1", "late"]]
    assert shown[4] == "5 more (--all shows them)"
    assert run("dlapp-sweep", application, "--best").out == "DLAPP_TRIAL=6\nDLAPP_METRIC=0.75\nCASE=good\n"
    assert json.loads(run("dlapp-sweep", application, "--best", "--json").out)["trial"] == 6
    rows = list(csv.DictReader(io.StringIO(run("dlapp-sweep", application, "--csv").out)))
    assert [row["CASE"] for row in rows][:2] == ["good", "late"]
    followed = run("dlapp-sweep", "-f", application)
    assert followed.out.splitlines()[0] == shown[0]
    page = run("dlapp-report", application, "-o", "-").out
    assert "parameters and accuracy of 2 trials" in page
    assert "accuracy of 1 trial" in page
    other = launch(properties(tmp_path, "true", name="other"))
    ended(other)
    refused = run("dlapp-sweep", other)
    assert (refused.code, refused.err) == (2, f"Error: {other} has no [sweep]\n")


def test_values_that_would_steer_a_terminal_are_exact_for_programs_and_escaped_on_a_terminal(tmp_path: Path) -> None:
    (tmp_path / "trials.jsonl").write_text('{"CASE": "good", "TEXT": "a\\u001b]0;title\\u0007b\\nc"}\n')
    sweep = {"list": "trials.jsonl", "metric": "accuracy", "goal": "max"}
    application = launch(properties(tmp_path, REPORTS, sweep=sweep))
    ended(application)
    assert run("dlapp-sweep", application, "--best").out.endswith("TEXT='a\x1b]0;title\x07b\nc'\n")
    for options in (("--best",), ("--csv",), ()):
        with Terminal("dlapp-sweep", application, *options) as terminal:
            assert terminal.wait(timeout_s=120) == 0
            assert b"\x1b]0" not in terminal.raw
            assert b"title" in terminal.raw


def test_no_best_trial_is_exit_code_3(tmp_path: Path) -> None:
    sweep = {"grid.CASE": "silent", "metric": "accuracy", "goal": "max"}
    application = launch(properties(tmp_path, REPORTS, sweep=sweep))
    ended(application)
    done = run("dlapp-sweep", application, "--best")
    assert (done.code, done.out) == (3, "")
    assert f"no trial of {application} has ended with a metric: 1 trials: 1 done" in done.err


@pytest.mark.slow
def test_optuna_keeps_its_history_when_the_applicationmaster_is_killed(state_dir: Path, tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    go = tmp_path / "go"
    script = f"""echo '{{"metrics": {{"loss": '$X'}}, "step": 1}}' >>"$DLAPP_REPORT"
        [ "$DLAPP_TRIAL" -lt 20 ] || until [ -e {go} ]; do sleep 0.05; done"""
    sweep = {
        "random.X": "uniform(0, 1)",
        "sampler": "optuna:tpe",
        "trials": 40,
        "metric": "loss",
        "goal": "min",
    }
    application = launch(properties(tmp_path, script, sweep=sweep), DLAPP_LOCAL_AM_ATTEMPTS="3")
    home = application_dir(state_dir, application)

    def suggested() -> dict[int, str]:
        found = {}
        for journal in sorted(home.glob("journal-*.jsonl")):
            for line in journal.read_text().rpartition("\n")[0].splitlines():  # the last one may be half
                if '"kind":"trial"' in line:
                    record = json.loads(line)
                    found[int(record["number"])] = str(record["parameters"]["X"])
        return found

    wait_for("some trials", lambda: len(suggested()) >= 15)
    before = suggested()
    os.kill(json.loads((home / "am.json").read_text())["pid"], signal.SIGKILL)
    go.touch()
    assert ended(application)["final_status"] == "SUCCEEDED"
    results = Client().sweep(application).results()
    assert results.counts() == {"done": 40}
    values = {trial.number: trial.parameters["X"] for trial in results.trials}
    assert {number: values[number] for number in before} == before
    assert [trial.state for trial in results.trials] == [TrialState.DONE] * 40
    early, late = (sum(float(values[n]) for n in range(*ends)) for ends in ((0, 10), (30, 40)))
    assert late < early
    done = run("dlapp-launcher", "--resume", application, "--wait", "--set", "sweep.trials=44", "--json", timeout_s=170)
    assert done.code == 0, done.err
    resumed = Client().sweep(json.loads(done.out)["application_id"]).results()
    assert resumed.counts() == {"done": 44}
    assert {trial.number: trial.parameters["X"] for trial in resumed.trials[:40]} == values


def test_a_plan_shows_the_maximum_of_trials_and_hours(tmp_path: Path) -> None:
    sweep = {"grid.A": "1, 2, 3, 4, 5", "trial_time": "1h", "retries": 1}
    file = properties(tmp_path, "true", sweep=sweep, resources={"containers": 2, "gcores": 0})
    plan = json.loads(run("dlapp-launcher", "--plan", "--json", file).out)
    assert plan["sweep"] == {"trials": 5, "concurrency": 2, "longest_s": 21_600.0}
    assert plan["gpu_hours_most"] == 0.0
    assert "sweep : 5 trials, 2 at once, at most 6 h 00 min" in run("dlapp-launcher", "--plan", file).out.splitlines()


def test_on_a_terminal_the_leaderboard_follows_the_sweep_to_its_end(tmp_path: Path) -> None:
    go = tmp_path / "go"
    script = f"""echo '{{"metrics": {{"accuracy": 0.'$A'}}, "step": 1}}' >>"$DLAPP_REPORT"
        if [ $A = 2 ]; then while [ ! -e {go} ]; do sleep 0.1; done; fi"""
    sweep = {"grid.A": "1, 2", "metric": "accuracy", "goal": "max"}
    application = launch(properties(tmp_path, script, sweep=sweep))
    with Terminal("dlapp-sweep", "-f", application) as terminal:
        terminal.expect("1 running, 1 done", timeout_s=120)
        go.touch()
        assert terminal.wait(timeout_s=120) == 0
        lines = [line.split() for line in terminal.text.splitlines()]
    assert ["2", "trials:", "2", "done;", "accuracy,", "max", "is", "best"] in lines


def test_a_trial_that_is_behind_is_stopped_softly_and_its_output_counts(tmp_path: Path) -> None:
    script = """
        mkdir output; echo begun >output/found
        trap 'echo saved >output/found; exit 0' TERM
        echo '{"metrics": {"accuracy": 0.'$A'}, "step": 3}' >>"$DLAPP_REPORT"
        [ $A -gt 4 ] && exit 0
        sleep 600 & wait"""
    sweep = {"grid.A": "8, 2, 9, 4", "metric": "accuracy", "goal": "max", "asha": "1, 9: 2"}
    file = properties(tmp_path, script, sweep=sweep, to_hdfs={"output_path": "output", "hdfs": f"{tmp_path}/result"})
    application = launch(file)
    assert ended(application)["final_status"] == "SUCCEEDED"
    results = Client().sweep(application).results()
    assert [(trial.parameters["A"], trial.state.value, trial.why) for trial in results.ranked()] == [
        ("9", "done", ""),
        ("8", "done", ""),
        ("4", "stopped", "stopped early at step 3: 0.4, rung 1 needs 0.8"),
        ("2", "stopped", "stopped early at step 3: 0.2, rung 1 needs 0.8"),
    ]
    found = {path.parent.name: path.read_text() for path in (tmp_path / "result/trials").glob("*/found")}
    assert found == {"0": "begun\n", "1": "saved\n", "2": "begun\n", "3": "saved\n"}
