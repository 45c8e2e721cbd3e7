"""Gangs: how soon their payloads start together, and what distributed training costs.

gate-64         64 containers of one machine: from the last one ready to all payloads started [s]
rendezvous-256  256 tasks of one ApplicationMaster: from the last one ready until each has the roster [s]
am-memory-256   resident memory of that ApplicationMaster [MiB]
restart-gang    SIGKILL of one of four ranks until all run again, on one machine [s]
ddp-overhead    a training through dlapp against the same by hand (bench/ddp.py)

All but the last are no ratios: the field ``ratio`` has the value in the unit that ``conditions`` names.
"""

from __future__ import annotations

import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path

from bench import Row, ddp
from bench._on_yarn import resident_mib
from bench._scale_application import START_LIMIT_S, Application, figure
from bench._scale_cluster import host_names
from bench._throwaway import DEADLINE_S, command, own_state
from tests.services.hadoop import Hadoop

NEEDS = ("java", "mvn", *ddp.NEEDS)
MEMBERS, RANKS, RESTARTS = 64, 4, 5
TASKS = 256
FILE = """
[application]
appname=gang
user_dev_workspace_path=./workspace
user_shell_script={script}
{application}
[resources]
containers={containers}
memory={memory}
vcores=1
gcores=0
retries={retries}
"""


def rows() -> list[Row]:
    """Measure all of the above."""
    return [_gate(), *_rendezvous(), _restart(), *ddp.rows()]


def _gate() -> Row:
    with own_state() as (root, environment):
        environment |= {"DLAPP_LOCAL_VCORES": str(2 * MEMBERS), "DLAPP_LOCAL_MEMORY": "1g"}
        script = "#!/bin/sh\ndate +%s.%N\nexec sleep 1000\n"
        containers = _launch(root, environment, script, containers=MEMBERS, application="gang=all\n")
        _until(lambda: all(_started_s(one) for one in containers()), MEMBERS, containers)
        started = [_started_s(one)[-1] for one in containers()]
        ready = [_at_s(one / "dlapp.log", "waiting") for one in containers()]
        command(environment, "dlapp-kill", "last")
    last = max(started) - max(ready)
    return figure("gate-64", last, 2.0, "s", {"containers": MEMBERS, "first_s": min(started) - max(ready)})


def _rendezvous() -> list[Row]:
    with (
        tempfile.TemporaryDirectory(prefix="dlapp-bench-") as name,
        Hadoop.start(parts=("nn", "dn")) as hadoop,
        Application(hadoop, Path(name), 1, containers=TASKS, nodes=host_names(TASKS), in_gang=True) as one,
    ):
        one.start_helpers()
        one.start()
        one.until("met", lambda: len(one.met) == TASKS, START_LIMIT_S)
        one.until("running", lambda: len(one.running) == TASKS, START_LIMIT_S)
        assert one.master is not None
        memory = resident_mib(one.master.pid)
        after = sorted(at - max(one.ready.values()) for at in one.met.values())
    conditions = {"tasks": TASKS, "median_s": statistics.median(after)}
    return [
        figure("rendezvous-256", after[-1], 1.0, "s", conditions),
        figure("am-memory-256", memory, 64.0, "MiB", {"tasks": TASKS}),
    ]


def _restart() -> Row:
    taken = []
    with own_state() as (root, environment):
        script = "#!/bin/sh\ntrap 'exit 0' TERM\ndate +%s.%N\nsleep 1000 &\nwait\n"
        application = "framework=pytorch\n"
        containers = _launch(root, environment, script, containers=RANKS, application=application, retries=RESTARTS + 1)
        _until(partial(_all_after, containers, 0.0), RANKS, containers)
        for number in range(RESTARTS):
            ranks = [one for one in containers() if (one / "workspace").exists()]
            killed = time.time()
            os.kill(_payload_of(ranks[number % RANKS]), signal.SIGKILL)
            _until(partial(_all_after, containers, killed), RANKS, containers)
            taken.append(max(at for one in containers() for at in _started_s(one)) - killed)
        command(environment, "dlapp-kill", "last")
    return figure("restart-gang", statistics.median(taken), 3.0, "s", {"ranks": RANKS, "each_s": taken})


Containers = Callable[[], list[Path]]


def _launch(
    root: Path, environment: dict[str, str], script: str, *, containers: int, application: str, retries: int = 0
) -> Containers:
    """Submit an application of one script; return what lists the directories of its containers."""
    workspace = root / "workspace"
    workspace.mkdir()
    (workspace / "start.sh").write_text(script)
    (workspace / "start.sh").chmod(0o755)
    file = root / "gang.properties"
    text = FILE.format(script="start.sh", application=application, containers=containers, memory=1, retries=retries)
    file.write_text(text)
    printed = command(environment, "dlapp-launcher", str(file))
    application_id = next(word for word in printed.split() if word.startswith("application_"))
    state = Path(environment["DLAPP_LOCAL_STATE_DIR"])

    def directories() -> list[Path]:
        return sorted(state.glob(f"*/applications/{application_id}/containers/*"))

    return directories


def _until(condition: Callable[[], bool], count: int, containers: Containers) -> None:
    """Wait until so many containers are there and a condition holds.

    Raises:
        SystemExit: it does not, in time.
    """
    deadline = time.monotonic() + DEADLINE_S
    while len(containers()) < count or not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"Error: {len(containers())} of {count} containers, and not all have started")
        time.sleep(0.02)


def _started_s(container: Path) -> list[float]:
    """Return when payloads of a container have started, as they print it themselves [s since 1970]."""
    try:
        return [float(line) for line in (container / "stdout").read_text().splitlines()]
    except FileNotFoundError:
        return []


def _all_after(containers: Containers, since_s: float) -> bool:
    """Return whether a payload of each rank has started after a time; who was killed runs in another container."""
    return sum(at > since_s for one in containers() for at in _started_s(one)) >= RANKS


def _payload_of(container: Path) -> int:
    """Return the process id of a container's script."""
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            words = (directory / "cmdline").read_bytes().split(b"\0")
            workspace = (directory / "cwd").readlink()
        except OSError:
            continue  # it has ended
        if workspace == container / "workspace" and words[1].endswith(b"/start.sh"):
            return int(directory.name)
    raise SystemExit(f"Error: no payload runs in {container}")


def _at_s(log: Path, what: str) -> float:
    """Return the time of the first line of a task's log that begins with a word [s since 1970]."""
    for line in log.read_text().splitlines():
        stamp, _, words = line.partition(" INFO ")
        if words.startswith(what):
            return datetime.strptime(stamp, "%Y-%m-%d %H:%M:%S,%f").timestamp()
    raise SystemExit(f"Error: {log} has no line {what!r}")
