"""The figure ``leaderboard``: dlapp-sweep of 10,000 trials, a whole process."""

from __future__ import annotations

import random
import resource
import statistics
from pathlib import Path

from bench import Row
from bench._throwaway import COMMANDS, command, own_state, whole_process_s
from dlapp.sweep.results import MAX_CURVE_POINTS, TrialState, TrialView, head_line, trial_line
from dlapp.sweep.spec import Distribution, DistributionKind, Goal, Sampler, SweepSpec
from dlapp.sweep.trial import trial_of

TRIALS = 10_000
ROUNDS = 15


def leaderboard() -> Row:
    """Measure it. The trials are those of a random sweep, each with a whole curve, in the directory of an application
    that ran."""
    with own_state() as (root, environment):
        command(environment, "dlapp-launcher", "--wait", str(_application(root)))
        (directory,) = (root / "state").glob("**/applications/application_*")
        text = _results()
        (directory / "trials.jsonl").write_text(text, encoding="utf-8")
        (directory / "trials.jsonl").chmod(0o640)
        argv = [str(COMMANDS / "dlapp-sweep"), "last"]
        shown = command(environment, "dlapp-sweep", "last").splitlines()
        if not shown[0].startswith(f"{TRIALS} trials: ") or len(shown) != 23:
            raise SystemExit(f"Error: dlapp-sweep shows {shown[:3]}")
        before_s = _children_s()
        times = [whole_process_s(environment, argv) for _ in range(ROUNDS)]
        cpu_s = (_children_s() - before_s) / ROUNDS
        as_csv = [whole_process_s(environment, [*argv, "--csv"]) for _ in range(ROUNDS)]
        as_json = [whole_process_s(environment, [*argv, "--json"]) for _ in range(ROUNDS)]
    return Row(
        name="leaderboard",
        ratio=statistics.median(times),
        goal=0.5,
        better="lower",
        conditions={
            "unit": "s",
            "cpu_s": cpu_s,
            "csv_s": statistics.median(as_csv),
            "json_s": statistics.median(as_json),
            "trials": TRIALS,
            "file_mib": len(text) / (1 << 20),
            "runs": ROUNDS,
        },
    )


def _children_s() -> float:
    """Processor time of the processes that ended [s]."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _application(root: Path) -> Path:
    workspace = root / "workspace"
    workspace.mkdir()
    (workspace / "start.sh").write_text("true\n", encoding="utf-8")
    file = root / "app.properties"
    lines = ("[application]", "appname=bench", "user_dev_workspace_path=workspace", "user_shell_script=start.sh")
    file.write_text("\n".join([*lines, "[resources]", "memory=64", "gcores=0"]) + "\n", encoding="utf-8")
    return file


def _results() -> str:
    rng = random.Random(1)
    kinds = DistributionKind
    sweep = SweepSpec(
        sampler=Sampler.RANDOM,
        trials=TRIALS,
        random=(
            Distribution(name="lr", kind=kinds.LOGUNIFORM, low=1e-5, high=0.1),
            Distribution(name="momentum", kind=kinds.UNIFORM, low=0.5, high=1.0),
            Distribution(name="layers", kind=kinds.INT, low=1, high=8),
            Distribution(name="optimizer", kind=kinds.CHOICE, values=("sgd", "adam", "lamb")),
        ),
        metric="accuracy",
        goal=Goal.MAX,
    )
    lines = [head_line(sweep)]
    for number in range(TRIALS):
        curve = tuple((float(step), rng.random()) for step in range(1, MAX_CURVE_POINTS + 1))
        stopped = number % 3 == 0
        trial = TrialView(
            number=number,
            state=TrialState.STOPPED if stopped else TrialState.DONE,
            parameters=trial_of(sweep, number).parameters,
            tries=1,
            metric=curve[-1][1],
            step=MAX_CURVE_POINTS,
            reports=MAX_CURVE_POINTS,
            ran_s=rng.uniform(1, 5000),
            container=number % 8,
            exit_code=None if stopped else 0,
            why="stopped early at step 9: 0.5, rung 9 needs 0.75" if stopped else "",
            curve=curve,
        )
        lines.append(trial_line(trial, sweep.parameters))
    return "\n".join(lines) + "\n"
