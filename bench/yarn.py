"""dlapp on a Hadoop cluster against Hadoop's own example, DistributedShell, and its own commands, by turns.

One cluster, real, on this machine (tests/services/hadoop.py); every figure is our median over the peer's.

submit-staged, submit-new   dlapp-launcher, the whole process, against DistributedShell from its start until it says
                            "Submitted application"; with a workspace that is on HDFS already, and with a new one
hello-2, hello-20           dlapp-launcher --wait of so many containers that say hello, the whole process
hello-20-cpu                processor time of dlapp's own processes in a container of hello-20, over that of an earlier
                            commit, `BASE`, on the same cluster by turns
hello-2-skein, hello-2-tony the same against Skein and TonY, where they can be fetched
am-register, am-cpu         of the hello-2 runs: from the start of the ApplicationMaster's process until it has
                            registered, and its processor time to the end
am-memory, am-memory-200    resident memory of the ApplicationMaster while 2 or 200 containers sleep
task-memory                 resident memory of what of ours runs in one container beside the user's program, pages that
                            its processes share counted once, over DistributedShell's ApplicationMaster
am-idle                     share of a core that our ApplicationMaster takes while 100 containers sleep
status, list, logs          dlapp-status, dlapp-list, dlapp-logs, whole processes, against `yarn application -status`,
                            `yarn application -list` and `yarn logs`: their Java class, without the script before it
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bench import Row, alternately, median_ratio
from bench._against import clone
from bench._on_yarn import Bed, Began, bed, cpu_s, private_mib, resident_mib
from bench._skein import Missing, Skein
from bench._throwaway import COMMANDS, command, whole_process_s
from dlapp.values.ids import ApplicationId
from tests.services.hadoop import VERSION, java, library

ROUNDS = int(os.environ.get("DLAPP_BENCH_ROUNDS", "5"))
LARGE = 200
IDLE, IDLE_S = 100, 30.0
BASE = "3fdfacd9"
"""The commit before what a container costs was reduced."""
_LAUNCHER = """
import sys
sys.path.insert(0, sys.argv.pop(1))
from dlapp.tools.applications.launcher import main
main()
"""
SETTLE_S = 3.0
"""From the start of the last container until memory is looked at."""

PROPERTIES = """
[application]
appname={script}
user_dev_workspace_path=./{script}-workspace
user_shell_script={script}.sh

[resources]
containers={containers}
memory=128m
vcores=1
gcores=0
"""
SCRIPTS = {"hello": "echo hello", "sleep": "exec sleep 1000"}
_SHELL = "org.apache.hadoop.yarn.applications.distributedshell.Client"
_CLI = "org.apache.hadoop.yarn.client.cli"


def rows() -> list[Row]:
    """Measure all of the above."""
    with tempfile.TemporaryDirectory(prefix="dlapp-bench-") as name, bed(Path(name)) as there:
        found = submissions(there)
        found += hellos(there)
        found.append(hello_cpu(there))
        found += memory(there)
        found += commands(there)
    return found


# ---- ours ----


def properties(there: Bed, script: str, containers: int) -> str:
    """The properties file of an application; its workspace is the same for all that run this script."""
    workspace = there.root / f"{script}-workspace"
    workspace.mkdir(exist_ok=True)
    program = workspace / f"{script}.sh"
    if not program.exists():
        program.write_text(f"#!/bin/sh\n{SCRIPTS[script]}\n")
        program.chmod(0o755)
    path = there.root / f"{script}-{containers}.properties"
    path.write_text(PROPERTIES.format(script=script, containers=containers))
    return str(path)


def launcher_s(there: Bed, *words: str) -> float:
    """A whole dlapp-launcher [s]."""
    there.settled()
    return whole_process_s(there.environment, [str(COMMANDS / "dlapp-launcher"), *words])


def launched(there: Bed, path: str) -> ApplicationId:
    """Submit and come back."""
    printed = command(there.environment, "dlapp-launcher", path)
    return ApplicationId.from_text(next(word for word in printed.split() if word.startswith("application_")))


# ---- the peer ----


def shell(there: Bed, containers: int, script: str) -> subprocess.Popen[str]:
    """DistributedShell's client, started: it copies its jar, submits, and looks every second until the end."""
    jars = library()
    argv = [java(), "-cp", f"{there.cluster.configuration}:{jars}/*", _SHELL]
    argv += ["-jar", str(next(jars.glob("hadoop-yarn-applications-distributedshell-*.jar")))]
    argv += ["-shell_command", SCRIPTS[script].removeprefix("exec "), "-num_containers", str(containers)]
    argv += ["-container_memory", "128", "-master_memory", "256"]
    return subprocess.Popen(
        argv,
        env=there.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def shell_s(there: Bed, containers: int) -> tuple[float, float, ApplicationId]:
    """A whole run of DistributedShell: seconds until submitted, until the end, and its id."""
    there.settled()
    began = time.perf_counter()
    with shell(there, containers, "hello") as client:
        submitted, application_id = _submitted(client, began)
        assert client.stderr is not None
        client.stderr.read()
    took = time.perf_counter() - began
    if client.returncode:
        raise SystemExit(f"Error: DistributedShell ended with {client.returncode}, so its time means nothing")
    return submitted, took, application_id


def _submitted(client: subprocess.Popen[str], began: float) -> tuple[float, ApplicationId]:
    assert client.stderr is not None
    said = []
    for line in client.stderr:
        said.append(line)
        if "Submitted application " in line:
            return time.perf_counter() - began, ApplicationId.from_text(line.split()[-1])
    raise SystemExit(f"Error: DistributedShell submitted nothing: {''.join(said[-5:])}")


def yarn_s(there: Bed, tool: str, *words: str) -> float:
    """A whole command of Hadoop's [s]."""
    argv = [java(), "-cp", f"{there.cluster.configuration}:{library()}/*", f"{_CLI}.{tool}", *words]
    began = time.perf_counter()
    done = subprocess.run(argv, env=there.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    took = time.perf_counter() - began
    if done.returncode:
        raise SystemExit(f"Error: {tool} {' '.join(words)} ended with {done.returncode}: {done.stderr[-500:]}")
    return took


# ---- what is measured ----


def _row(name: str, goal: float, taken: Sequence[list[float]], unit: str = "s") -> Row:
    ours, theirs = taken
    return Row(
        name=name,
        ratio=median_ratio(ours, theirs),
        goal=goal,
        better="lower",
        conditions={
            f"ours_{unit}": statistics.median(ours),
            f"peer_{unit}": statistics.median(theirs),
            "runs": len(ours),
            "hadoop": VERSION,
        },
    )


def submissions(there: Bed) -> list[Row]:
    """Until it is submitted, with what is staged already and with a new workspace."""
    path, count = properties(there, "hello", 2), 0

    def staged() -> float:
        took = launcher_s(there, path)
        there.ended(there.last("DLAPP"))
        return took

    def new() -> float:
        nonlocal count
        count += 1
        (there.root / "hello-workspace" / "new").write_text(str(count))
        return staged()

    def peer() -> float:
        return shell_s(there, 2)[0]

    # A new one first: then what it left is what the other finds staged.
    anew, before, theirs = alternately([new, staged, peer], ROUNDS)
    return [_row("submit-staged", 0.25, [before, theirs]), _row("submit-new", 0.4, [anew, theirs])]


def hellos(there: Bed) -> list[Row]:
    """Whole runs, and what their ApplicationMasters took."""
    ours: list[Began] = []
    theirs: list[Began] = []

    def our_run() -> float:
        took = _hello_s(there, 2)
        ours.append(there.took(there.last("DLAPP")))
        return took

    def their_run() -> float:
        _, took, application_id = shell_s(there, 2)
        theirs.append(there.took(application_id))
        return took

    found = [_row("hello-2", 0.4, alternately([our_run, their_run], ROUNDS))]
    found += _others(there)
    twenty = [lambda: _hello_s(there, 20), lambda: shell_s(there, 20)[1]]
    found.append(_row("hello-20", 0.28, alternately(twenty, ROUNDS)))
    # The first run of each is thrown away, as above.
    both = ours[1:], theirs[1:]
    found.append(_row("am-cpu", 0.3, [[one.cpu_s for one in some] for some in both]))
    found.append(_row("am-register", 0.33, [[one.registered_s for one in some] for some in both]))
    return found


def hello_cpu(there: Bed) -> Row:
    """Measure the tasks of hello-20, now and at `BASE`: interpreter, modules, guardian, and the program's shells."""
    path, here = properties(there, "hello", 20), Path(__file__).parent.parent
    environment = there.environment | {"DLAPP_YARN_PYTHON": str(there.task_python)}

    def of_tree(tree: Path) -> float:
        there.settled()
        argv = [sys.executable, "-c", _LAUNCHER, str(tree), "--wait", path]
        whole_process_s(environment, argv)
        return statistics.mean(there.task_cpu_s(there.last("DLAPP"), 20))

    base = clone(here, BASE)
    return _row("hello-20-cpu", 0.6, alternately([lambda: of_tree(here), lambda: of_tree(base)], ROUNDS))


def _others(there: Bed) -> list[Row]:
    """Whole runs beside those of others, where they can be had."""
    _leave_out(
        "hello-2-tony", "Maven Central has no jar of TonY, and none can be fetched from elsewhere without a build"
    )
    try:
        skein = Skein(there.root, there.cluster.configuration, there.environment)
    except Missing as missing:
        _leave_out("hello-2-skein", str(missing))
        return []

    def their_run() -> float:
        there.settled()
        began = time.perf_counter()
        skein.hello()
        return time.perf_counter() - began

    return [_row("hello-2-skein", 0.3, alternately([lambda: _hello_s(there, 2), their_run], ROUNDS))]


def _leave_out(name: str, why: str) -> None:
    print(f"{name}: left out: {why}", flush=True)


def _hello_s(there: Bed, containers: int) -> float:
    return launcher_s(there, "--wait", properties(there, "hello", containers))


def memory(there: Bed) -> list[Row]:
    """ApplicationMasters with containers that sleep: what they hold and what they do."""
    found = []
    for name, containers, goal, rounds in (("am-memory", 2, 0.38, ROUNDS), ("am-memory-200", LARGE, 0.45, 1)):
        ours, theirs, tasks = [], [], []
        for _ in range(rounds):
            with shell(there, containers, "sleep") as client:
                _, application_id = _submitted(client, 0.0)
                theirs.append(_held(there, application_id, containers))
                client.kill()
            there.kill(application_id)
            application_id = launched(there, properties(there, "sleep", containers))
            ours.append(_held(there, application_id, containers))
            tasks.append(_of_one_task(there, application_id, containers))
            there.kill(application_id)
        found.append(_row(name, goal, [ours, theirs], "mib"))
        if containers == 2:
            found.append(_row("task-memory", 0.38, [tasks, theirs], "mib"))
    return [*found, _idle(there)]


def _held(there: Bed, application_id: ApplicationId, containers: int) -> float:
    there.running(application_id, containers)
    time.sleep(SETTLE_S)
    return resident_mib(there.masters(application_id))


def _of_one_task(there: Bed, application_id: ApplicationId, containers: int) -> float:
    """Return what of ours a container holds in memory, the mean of all: the task, and what its guardians add to it.

    The guardians are forked from the task, so nearly all of their pages are its own, which are counted once.
    """
    master = there.masters(application_id)
    there_are = [(pid, name) for pid, name in there.processes(application_id) if pid != master]
    tasks = sum(resident_mib(pid) for pid, name in there_are if name.startswith("python"))
    guardians = sum(private_mib(pid) for pid, name in there_are if name.startswith("dlapp"))
    return (tasks + guardians) / containers


def _idle(there: Bed) -> Row:
    application_id = launched(there, properties(there, "sleep", IDLE))
    there.running(application_id, IDLE)
    time.sleep(SETTLE_S)
    master = there.masters(application_id)
    began, before = time.monotonic(), cpu_s(master)
    time.sleep(IDLE_S)
    share = (cpu_s(master) - before) / (time.monotonic() - began)
    there.kill(application_id)
    return Row(
        name="am-idle",
        ratio=share,
        goal=0.01,
        better="lower",
        conditions={"unit": "cores", "containers": IDLE, "seconds": IDLE_S},
    )


def commands(there: Bed) -> list[Row]:
    """Looking at an application that has ended."""
    launcher_s(there, "--wait", properties(there, "hello", 2))
    last = there.last("DLAPP")

    def logs_are_collected() -> bool:
        with contextlib.suppress(SystemExit):
            return command(there.environment, "dlapp-logs", str(last)).count("hello") == 2
        return False

    there.until("the logs are collected", logs_are_collected)
    there.settled()

    def ours(name: str, *words: str) -> Callable[[], float]:
        return lambda: whole_process_s(there.environment, [str(COMMANDS / name), *words])

    pairs = {
        "status": (0.2, ours("dlapp-status", str(last)), ("ApplicationCLI", "-status", str(last))),
        "list": (0.2, ours("dlapp-list"), ("ApplicationCLI", "-list")),
        "logs": (0.25, ours("dlapp-logs", str(last)), ("LogsCLI", "-applicationId", str(last))),
    }
    found = []
    for name, (goal, measure, words) in pairs.items():
        tool, *rest = ("ApplicationCLI", "application", *words[1:]) if words[0] == "ApplicationCLI" else words
        peer = lambda tool=tool, rest=tuple(rest): yarn_s(there, tool, *rest)  # noqa: E731
        found.append(_row(name, goal, alternately([measure, peer], 2 * ROUNDS)))
    return found


if __name__ == "__main__":
    raise SystemExit(f"run it as: {sys.executable} -m bench {Path(__file__).stem}")
