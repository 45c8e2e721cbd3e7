"""Sweeps: how many trials end in a second, and what it costs to run them.

``trials-per-second``: empty trials (``true``) of two workers on the embedded engine, plain processes, from the first
start of a trial to the last end [1/s]. ``one-application``: the same per trial in one application, over one application
for each trial. ``overhead``: of 10 s trials in one worker, what the time between the first start and the last end is
longer than the trials together, over that. ``am-memory-10000``: resident memory of a process with the state of an
ApplicationMaster after 10,000 trials [MiB]. ``leaderboard``: dlapp-sweep with 10,000 trials [s].

``ray``, ``optuna`` and ``submitit``: trials of one second each, as a process that both sides start, at two a time:
trials per second over theirs. ``submitit-empty``: the same with empty trials. They are measured where the library is
installed (``pip install 'ray[tune]' optuna submitit``).
"""

from __future__ import annotations

import importlib.util
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bench import Row
from bench._leaderboard import leaderboard
from bench._throwaway import command, own_state

WORKERS, EMPTY_TRIALS, ALONE = 2, 200, 5
SUBMITTED = 20
"""Empty trials of submitit, each a second or so: it starts a Python for each."""
LONG_TRIALS, LONG_S = 2, 10
SECOND_TRIALS = 16
MANY = 10_000
PROPERTIES = """
[application]
appname=bench-sweep
user_dev_workspace_path=./workspace
user_shell_script=run.sh

[resources]
containers={containers}
memory=64
gcores=0
"""


def rows() -> list[Row]:
    """Measure all of the above."""
    with own_state() as (root, environment):
        empty, empty_s = _sweep(root, environment, "true", EMPTY_TRIALS, WORKERS)
        alone_s = statistics.median(_application_s(root, environment) for _ in range(ALONE))
        long, long_s = _sweep(root, environment, f"sleep {LONG_S}", LONG_TRIALS, 1)
        second, second_s = _sweep(root, environment, "sleep 1", SECOND_TRIALS, WORKERS)
    found = [
        Row(
            name="trials-per-second",
            ratio=empty,
            goal=20.0,
            better="higher",
            conditions={"trials": EMPTY_TRIALS, "workers": WORKERS, "whole_application_s": empty_s},
        ),
        Row(
            name="one-application",
            ratio=alone_s / (empty_s / EMPTY_TRIALS),
            goal=20.0,
            better="higher",
            conditions={"alone_s": alone_s, "in_a_sweep_s": empty_s / EMPTY_TRIALS},
        ),
        Row(
            name="overhead",
            ratio=(1 / long - LONG_S) / LONG_S,
            goal=0.01,
            better="lower",
            conditions={"trial_s": LONG_S, "trials": LONG_TRIALS, "whole_application_s": long_s},
        ),
        _am_memory(),
        leaderboard(),
    ]
    for name, needs, measure, goal in (
        ("ray", "ray", _ray, 0.95),
        ("optuna", "optuna", _optuna, 0.95),
        ("submitit", "submitit", _submitit, 0.95),
    ):
        if importlib.util.find_spec(needs) is None:
            continue
        theirs = measure("sleep 1", SECOND_TRIALS)
        conditions = {"ours_per_s": second, "theirs_per_s": theirs, "whole_application_s": second_s}
        found.append(Row(name=name, ratio=second / theirs, goal=goal, better="higher", conditions=conditions))
    if importlib.util.find_spec("submitit") is not None:
        theirs = _submitit("true", SUBMITTED)
        conditions = {"ours_per_s": empty, "theirs_per_s": theirs}
        found.append(Row(name="submitit-empty", ratio=empty / theirs, goal=1.0, better="higher", conditions=conditions))
    return found


def _sweep(root: Path, environment: dict[str, str], program: str, trials: int, workers: int) -> tuple[float, float]:
    """Run a sweep. Return how many trials ended in a second, from the first start to the last end; and how long the
    application took [s]."""
    properties = _written(root, program, workers)
    values = ", ".join(map(str, range(trials)))
    with properties.open("a") as file:
        file.write(f"\n[sweep]\ngrid.N={values}\n")
    began = time.perf_counter()
    printed = command(environment, "dlapp-launcher", "--wait", str(properties))
    whole_s = time.perf_counter() - began
    application = next(word for word in printed.split() if word.startswith("application_"))
    home = next(Path(environment["DLAPP_LOCAL_STATE_DIR"]).glob(f"*/applications/{application}"))
    records = [json.loads(line) for line in (home / "journal-1.jsonl").read_text().splitlines()]
    starts = [one["t"] for one in records if one["kind"] == "trial"]
    ends = [one["t"] for one in records if one["kind"] == "trial_end"]
    if len(ends) != trials:
        raise SystemExit(f"Error: {len(ends)} of {trials} trials ended")
    return trials / ((max(ends) - min(starts)) / 1000), whole_s


def _application_s(root: Path, environment: dict[str, str]) -> float:
    properties = _written(root, "true", 1)
    began = time.perf_counter()
    command(environment, "dlapp-launcher", "--wait", str(properties))
    return time.perf_counter() - began


def _written(root: Path, program: str, containers: int) -> Path:
    workspace = root / "workspace"
    workspace.mkdir(exist_ok=True)
    (workspace / "run.sh").write_text(f"#!/bin/sh\n{program}\n")
    (workspace / "run.sh").chmod(0o755)
    properties = root / "dl_app.properties"
    properties.write_text(PROPERTIES.format(containers=containers))
    return properties


def _am_memory() -> Row:
    argv = [sys.executable, "-m", "bench.sweep", "memory"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[1])
    kib, seconds, lines = map(float, done.stdout.split())
    conditions = {"trials": MANY, "results_s": seconds, "results_mib": lines / (1 << 20)}
    return Row(name="am-memory-10000", ratio=kib / 1024, goal=64.0, better="lower", conditions=conditions)


def _take_trials() -> None:
    """Take the reports of 10,000 trials with a curve each; print the memory of this process [KiB], how long the results
    take to write [s], and their size [bytes]."""
    import dlapp.am.loop  # what an ApplicationMaster has loaded
    from dlapp.sweep.spec import Distribution, DistributionKind, Goal, Sampler, SweepSpec
    from dlapp.values.messages import Fault, TaskResult
    from tests.am.simulated.sweep import sweep_world
    from tests.am.simulated.trials import stored

    assert dlapp.am.loop

    def outcome(number: int, try_number: int) -> tuple[TaskResult, tuple[tuple[float, float], ...]]:
        points = tuple((float(step), number / (step + 1)) for step in range(1, 129))
        return TaskResult(fault=Fault.NONE, exit_code=0, outputs=(stored(number, try_number),)), points

    draws = tuple(Distribution(name=name, kind=DistributionKind.UNIFORM, low=0.0, high=1.0) for name in "ABCDE")
    sweep = SweepSpec(sampler=Sampler.RANDOM, trials=MANY, random=draws, metric="loss", goal=Goal.MIN)
    cluster = sweep_world(1, sweep, workers=20, outcome=outcome)
    cluster.run()
    assert cluster.master is not None
    assert cluster.master.state.sweep is not None
    began = time.perf_counter()
    size = len(cluster.master.state.sweep.results())
    seconds = time.perf_counter() - began
    with open("/proc/self/status", encoding="ascii") as file:
        print(next(int(line.split()[1]) for line in file if line.startswith("VmRSS:")), seconds, size)


def _timed(work: Callable[[], None], trials: int) -> float:
    began = time.perf_counter()
    work()
    return trials / (time.perf_counter() - began)


def _child(program: str, trials: int, library: str) -> float:
    argv = [sys.executable, "-m", "bench.sweep", library, program, str(trials)]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=Path(__file__).parents[1])
    if done.returncode:
        raise SystemExit(f"Error: {library}: {done.stderr[-2000:]}")
    return float(done.stdout.split()[-1])


def _ray(program: str, trials: int) -> float:
    return _child(program, trials, "ray")


def _optuna(program: str, trials: int) -> float:
    """Return the trials per second of two processes that share a study."""
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as directory:
        study = f"sqlite:///{directory}/study.db"
        argv = [sys.executable, "-m", "bench.sweep", "optuna", program, str(trials // WORKERS), study]
        subprocess.run([*argv[:4], "", "0", study], check=True, cwd=Path(__file__).parents[1])
        began = time.perf_counter()
        running = [subprocess.Popen(argv, cwd=Path(__file__).parents[1]) for _ in range(WORKERS)]
        if any(one.wait() for one in running):
            raise SystemExit("Error: optuna failed")
        return trials / (time.perf_counter() - began)


def _submitit(program: str, trials: int) -> float:
    return _child(program, trials, "submitit")


def _run_ray(program: str, trials: int) -> float:
    import ray
    from ray import tune

    def train(config: dict[str, int]) -> None:
        subprocess.run(["sh", "-c", program], check=True)
        tune.report({"done": config["n"]})

    ray.init(num_cpus=WORKERS, include_dashboard=False, log_to_driver=False)
    space = {"n": tune.grid_search(list(range(trials)))}
    tuner = tune.Tuner(train, param_space=space, run_config=tune.RunConfig(verbose=0))
    return _timed(lambda: (tuner.fit(), None)[1], trials)


def _run_optuna(program: str, trials: int, storage: str) -> float:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(study_name="bench", storage=storage, load_if_exists=True)

    def objective(trial: optuna.Trial) -> float:
        subprocess.run(["sh", "-c", program], check=True)
        return trial.suggest_float("x", 0, 1)

    return _timed(lambda: study.optimize(objective, n_trials=trials), trials) if trials else 0.0


def _run_submitit(program: str, trials: int) -> float:
    from concurrent.futures import ThreadPoolExecutor
    from tempfile import TemporaryDirectory

    import submitit  # type: ignore[import-not-found]

    with TemporaryDirectory() as directory:
        executor = submitit.LocalExecutor(folder=directory)

        def one(_: int) -> None:
            executor.submit(subprocess.run, ["sh", "-c", program], check=True).result()

        def work() -> None:
            with ThreadPoolExecutor(WORKERS) as pool:
                list(pool.map(one, range(trials)))

        return _timed(work, trials)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["memory"]:
            _take_trials()
        case ["ray", program, trials]:
            print(_run_ray(program, int(trials)))
        case ["optuna", program, trials, storage]:
            print(_run_optuna(program, int(trials), storage))
        case ["submitit", program, trials]:
            print(_run_submitit(program, int(trials)))
