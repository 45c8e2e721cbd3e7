"""The queue of one machine, the failover of a cluster, and commands that look at waiting and at many applications.

why              dlapp-why of an application that waits, a whole process, against dlapp-status of the same one
list-1000        dlapp-list of 1,000 applications, a whole process; the ratio is its time [s], cpu_s what it computes
schedule-10000   one pass of the scheduler over 10,000 applications of 20 users; the ratio is its time [ms]
submit-load      submissions a second from 8 long-lived Python clients at once, against those of as many sbatch of Slurm
                 (Debian's slurm-wlm: slurmctld without nodes; installed if this user may)
utilisation      GPU-hours that traces of jobs get on one machine, against plain EASY (arrival order); all jobs have
                 max_runtime, as EASY needs it, and ask for 1.5 times what the machine can do in the week
failover         from the SIGKILL of the active one of two ResourceManagers to the answer of a dlapp-list begun then;
                 the ratio is by how much that comes after the answer to a plain REST client, which asks each 0.1 s [s]
estimate-...     estimates of starts on simulated clusters, six seeds, and on the traces in ``DLAPP_BENCH_TRACES`` (a
                 directory with CSV files that have columns timestamp, duration and num_gpus). Coverage: the largest
                 distance of a trace from what is stated; width: the largest median width of a trace over its median
                 wait; share: the smallest of those that wait and get an estimate

The first two are in a state directory that is thrown away. The 1,000 applications have ended; their rows and views are
those of one that ran, under other ids. The traces are simulated.
"""

from __future__ import annotations

import json
import random
import resource
import shutil
import sqlite3
import statistics
import time
from contextlib import closing
from pathlib import Path

from bench import Row, alternately, median_ratio
from bench._estimates import estimates
from bench._failover import failover
from bench._submit_load import submit_load
from bench._throwaway import COMMANDS, command, own_state, wait_until_nothing_runs_in, whole_process_s
from dlapp.scheduler.amounts import Amounts
from dlapp.scheduler.decisions import decide
from dlapp.scheduler.usage import HOUR_S, Use, hours_by_user
from dlapp.scheduler.values import DAY_S, Decision, Policy, QueueState, RunningJob, Schedule
from tests.scheduler.simulation import Decide, Machine, Task, task

ROUNDS = 21
APPLICATIONS = 1000
QUEUED = 10_000
MACHINE = Amounts(512 << 10, 64, 8)
TRACE_DAYS = 7
SEEDS = range(10)


def rows() -> list[Row]:
    """Measure all."""
    with own_state() as (root, environment):
        rows = [why(root, environment), list_1000(root, environment), submit_load(root, environment)]
    return [*rows, schedule_10000(), utilisation(), failover(), *estimates()]


def why(root: Path, environment: dict[str, str]) -> Row:
    """A whole dlapp-why against a whole dlapp-status, of an application behind one that has all memory."""
    file = _application(root, "sleep 600")
    large = environment | {"DLAPP_LOCAL_MEMORY": "1g"}
    first = _submitted(large, file, "1g")
    waiting = _submitted(large, file, "512m")
    status, explained = alternately(
        [
            lambda: whole_process_s(large, [str(COMMANDS / "dlapp-status"), waiting]),
            lambda: whole_process_s(large, [str(COMMANDS / "dlapp-why"), waiting]),
        ],
        ROUNDS,
    )
    command(large, "dlapp-kill", waiting)
    command(large, "dlapp-kill", first)
    return Row(
        name="why",
        ratio=median_ratio(explained, status),
        goal=1.3,
        better="lower",
        conditions={
            "ms": 1000 * statistics.median(explained),
            "status_ms": 1000 * statistics.median(status),
            "runs": ROUNDS,
        },
    )


def list_1000(root: Path, environment: dict[str, str]) -> Row:
    """A whole dlapp-list that shows 1,000 applications."""
    own = environment | {"DLAPP_LOCAL_STATE_DIR": str(root / "many")}
    command(own, "dlapp-launcher", "--wait", str(_application(root, "true")))
    _multiply(root / "many", APPLICATIONS)
    argv = [str(COMMANDS / "dlapp-list"), "-n", str(APPLICATIONS)]
    shown = len(command(own, "dlapp-list", *argv[1:]).splitlines()) - 1
    if shown != APPLICATIONS:
        raise SystemExit(f"Error: dlapp-list shows {shown} applications, not {APPLICATIONS}")
    before = _children_s()
    times = [whole_process_s(own, argv) for _ in range(ROUNDS)]
    cpu_s = (_children_s() - before) / ROUNDS
    return Row(
        name="list-1000",
        ratio=statistics.median(times),
        goal=0.3,
        better="lower",
        conditions={"unit": "s", "cpu_s": cpu_s, "applications": APPLICATIONS, "runs": ROUNDS},
    )


def schedule_10000() -> Row:
    """One pass over 10,000 applications of 20 users on a machine that is half full."""
    chance = random.Random(1)
    waiting = [
        task(
            number,
            1000 + chance.randrange(20),
            chance.choice((0, 1, 1, 2, 4, 8)),
            number * 60.0,
            1.0,
            priority=chance.choice((0, 0, 0, 1, 5)),
            max_runtime_s=chance.choice((None, chance.uniform(600, DAY_S))),
        ).job
        for number in range(QUEUED)
    ]
    now_s = QUEUED * 60.0
    running = [RunningJob(1000, Amounts(4096, 4, 1), now_s + 3600.0 * number) for number in range(4)]
    uses = [Use(1000 + number, 1, 0.0, chance.uniform(0, 100 * HOUR_S)) for number in range(20)]
    hours = hours_by_user(uses, now_s, Policy().half_life_s)
    state = QueueState(MACHINE, running, waiting, hours)
    policy = Policy(max_priority=5, user_gcores=6, user_queued=QUEUED)
    times, computed = list[float](), list[float]()
    for _ in range(ROUNDS):
        began, began_cpu = time.perf_counter(), time.process_time()
        schedule = decide(state, policy, now_s)
        times.append(1000 * (time.perf_counter() - began))
        computed.append(1000 * (time.process_time() - began_cpu))
    return Row(
        name="schedule-10000",
        ratio=statistics.median(times),
        goal=50,
        better="lower",
        conditions={
            "unit": "ms",
            "users": 20,
            "starts": sum(one.starts for one in schedule.decisions),
            "backfilled": sum(one.is_backfilled for one in schedule.decisions),
            "head_waits_h": max(one.expected_s or 0.0 for one in schedule.decisions) / HOUR_S - now_s / HOUR_S,
            "cpu_ms": statistics.median(computed),
            "runs": ROUNDS,
        },
    )


def utilisation() -> Row:
    """GPU-hours that traces get in a week on eight GPUs, against EASY in the order of arrival."""
    ours, easy = _used(load=1.5, limited=1.0)
    ours_low, easy_low = _used(load=1.1, limited=1.0)
    ours_open, easy_open = _used(load=1.5, limited=0.8)
    return Row(
        name="utilisation",
        ratio=ours / easy,
        goal=1,
        better="higher",
        conditions={
            "used": ours,
            "easy_used": easy,
            "load": 1.5,
            "ratio_at_load_1.1": ours_low / easy_low,
            "ratio_without_max_runtime_of_20_percent": ours_open / easy_open,
            "gpus": MACHINE.gcores,
            "days": TRACE_DAYS,
            "traces": len(SEEDS),
        },
    )


def _used(*, load: float, limited: float) -> tuple[float, float]:
    """Return the share of the GPUs that traces use with our scheduler, and with plain EASY."""
    ours, easy = 0.0, 0.0
    for seed in SEEDS:
        tasks = _trace(seed, load=load, limited=limited)
        ours += _used_hours(tasks, decide)
        easy += _used_hours(tasks, plain_easy)
    of_all = len(SEEDS) * MACHINE.gcores * TRACE_DAYS * 24
    return ours / of_all, easy / of_all


def plain_easy(state: QueueState, _: Policy, now_s: float) -> Schedule:
    """EASY as it was published, for GPUs alone: arrival order, one reservation, jobs without an end run for ever."""
    free = state.capacity.gcores - sum(one.amounts.gcores for one in state.running)
    running = [(one.ends_s, one.amounts.gcores) for one in state.running]
    decisions, shadow_s, extra = list[Decision](), 0.0, -1
    for job in sorted(state.waiting, key=lambda one: one.place):
        asked = job.amounts.gcores
        ends_s = None if job.max_runtime_s is None else now_s + job.max_runtime_s
        fits = asked <= free
        if fits and extra >= 0:
            in_time = ends_s is not None and ends_s <= shadow_s
            fits = in_time or asked <= extra
            extra -= asked if fits and not in_time else 0
        elif not fits and extra < 0:
            then, shadow_s, extra = free, float("inf"), 0
            for end_s, amount in sorted((end_s, amount) for end_s, amount in running if end_s is not None):
                then += amount
                if then >= asked:
                    shadow_s, extra = end_s, then - asked
                    break
        if fits:
            decisions.append(Decision(job, starts=True))
            free -= asked
            running.append((ends_s, asked))
    return Schedule(decisions)


def _trace(seed: int, *, load: float, limited: float) -> list[Task]:
    """Return jobs of six users that come in bursts.

    Args:
        seed: of the trace.
        load: GPU-hours that are asked for, of those that there are.
        limited: share of the jobs with max_runtime, of 1.1 to 5 times what they take.
    """
    chance = random.Random(seed)
    tasks = list[Task]()
    asked_hours = 0.0
    while asked_hours < load * MACHINE.gcores * TRACE_DAYS * 24:
        user, at_s = 1000 + chance.choice((0, 0, 0, 1, 1, 2, 3, 4, 5)), chance.uniform(0, TRACE_DAYS * DAY_S)
        for _ in range(chance.choice((1, 1, 2, 8))):
            gcores = chance.choices((1, 2, 4, 8), (60, 20, 15, 5))[0]
            runtime_s = min(chance.lognormvariate(8.5, 1.2), DAY_S)
            limit_s = runtime_s * chance.choice((1.1, 1.5, 3.0, 5.0)) if chance.random() < limited else None
            tasks.append(task(len(tasks), user, gcores, at_s, runtime_s, max_runtime_s=limit_s))
            asked_hours += gcores * runtime_s / HOUR_S
    return tasks


def _used_hours(tasks: list[Task], make_decisions: Decide) -> float:
    machine = Machine(MACHINE, Policy(), tasks, make_decisions=make_decisions)
    until_s = TRACE_DAYS * DAY_S
    machine.run(until_s)
    return sum(machine.hours(user, until_s) for user in {one.job.user for one in tasks})


def _children_s() -> float:
    """Return the processor time of all processes that were waited for [s]."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _application(root: Path, script: str) -> Path:
    workspace = root / f"workspace-{len(script)}"
    workspace.mkdir(exist_ok=True)
    (workspace / "run.sh").write_text(f"#!/bin/sh\nexec {script}\n")
    (workspace / "run.sh").chmod(0o755)
    file = root / f"app-{len(script)}.properties"
    file.write_text(
        f"[application]\nappname=bench\nuser_dev_workspace_path={workspace}\nuser_shell_script=run.sh\n"
        "[resources]\nmemory=64m\ngcores=0\n"
    )
    return file


def _submitted(environment: dict[str, str], file: Path, memory: str) -> str:
    printed = command(environment, "dlapp-launcher", "--set", f"resources.memory={memory}", str(file))
    return next(line.split()[-1] for line in printed.splitlines() if line.startswith("DL App ID = "))


def _multiply(state: Path, count: int) -> None:
    """Give the one application of a state directory as many others as make ``count``, all alike."""
    wait_until_nothing_runs_in(state.parent)  # its runner leaves by itself
    home = next(one.parent for one in state.glob("*/dlapp.db"))
    with closing(sqlite3.connect(home / "dlapp.db")) as database:
        found = database.execute("SELECT * FROM applications")
        row = dict(zip([one[0] for one in found.description], found.fetchone(), strict=True))
        names = [name for name in row if name != "number"]
        marks = ", ".join("?" * len(names))
        for number in range(2, count + 1):
            application_id = f"{row['id'].rpartition('_')[0]}_{number:04d}"
            summary = json.loads(row["summary"] or "{}") | {"application_id": application_id}
            values = row | {"id": application_id, "summary": json.dumps(summary)}
            database.execute(
                f"INSERT INTO applications ({', '.join(names)}) VALUES ({marks})", [values[name] for name in names]
            )
            shutil.copytree(home / "applications" / row["id"], home / "applications" / application_id)
        database.commit()
