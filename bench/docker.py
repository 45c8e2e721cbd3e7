"""Payloads in Docker through dlapp, over ``docker run`` of the same image.

- ``overhead``: the time from before a task takes its container's GPUs to after it has given them back, the payload
  being ``true``: making the container, starting it, its end, removing it. Over ``docker run --rm`` of the same image
  and command. The task's process is running already.
- ``log-rate``: what a payload can print in a second, to the files that the runtime gives it, over the rate through
  ``docker run`` to a file, which has Docker's json-file log on the way.
- ``task-memory``: resident memory of a whole task process while its payload runs, over an empty Python process.
- ``end-after-kill``: seconds from the SIGKILL of everything of the application but its payload until no process of the
  payload's container is there. ``end-after-kill-dead``: the same where dockerd and its containerd were killed before.

dockerd is one of our own (`tests.services.containers.dockerd`) with an image of busybox; it needs root.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median

from bench import Row, alternately, median_ratio
from bench._throwaway import DEADLINE_S, command, own_state
from bench.am_memory import empty_python_kib, resident_kib
from dlapp.gpuid.rules import LeaseRequest
from dlapp.node_policy import node_policy
from dlapp.runtime.docker.payload import DockerRun
from dlapp.runtime.payload import Payload, PayloadDevice
from dlapp.values.launch_spec import DockerSettings
from dlapp.values.spec import Resources
from tests.applications import processes
from tests.services.containers.dockerd import GPU_IMAGE, IMAGE, Dockerd, own_daemon, why_not
from tests.services.containers.gpu_programs import hooks
from tests.services.install import install

ROUNDS = int(os.environ.get("DLAPP_BENCH_ROUNDS", "15"))
PRINTED = 64 << 20
LINES = "yes 0123456789012345678901234567890123456789012345678901234567890123456789012345678 | head -c " + str(PRINTED)
"""80 bytes a line, as a training program prints."""


def rows() -> list[Row]:
    """Measure all of them."""
    if why_not() is not None:
        install(["docker.io", "busybox-static"])
    if (reason := why_not()) is not None:
        raise SystemExit(f"Error: {reason}")
    with own_daemon() as daemon, tempfile.TemporaryDirectory(prefix="dlapp-bench-") as name:
        os.environ["PATH"] = os.pathsep.join([str(hooks(daemon.directory)), os.environ["PATH"]])
        root = Path(name)
        # What kills the daemon comes last.
        return [*overhead(root, daemon), log_rate(root, daemon), task_memory(daemon), *ends_after_kill(daemon)]


# ---- overhead ----


def overhead(root: Path, daemon: Dockerd) -> Iterator[Row]:
    """Without and with a GPU."""
    for name, image, gcores in (("overhead", IMAGE, 0), ("overhead-gpu", GPU_IMAGE, 1)):
        theirs = [*_docker_run(daemon), *(["--gpus=device=" + _device(0).uuid] if gcores else []), image, "true"]
        ours, their = alternately(
            [
                lambda image=image, gcores=gcores: through_dlapp(root, daemon, image, "exec true", gcores),  # type: ignore[misc]
                lambda theirs=theirs: timed(theirs),  # type: ignore[misc]
            ],
            ROUNDS,
        )
        yield Row(
            name=name,
            ratio=median_ratio(ours, their),
            goal=1.3,
            better="lower",
            conditions={
                "rounds": ROUNDS,
                "dlapp_s": sorted(ours)[ROUNDS // 2],
                "docker_run_s": sorted(their)[ROUNDS // 2],
            },
        )


def _device(place: int) -> PayloadDevice:
    return PayloadDevice(f"GPU-{place:08d}-aaaa-bbbb-cccc-000000000000", place, place)


def _docker_run(daemon: Dockerd) -> list[str]:
    return ["docker", "--host", daemon.host, "run", "--rm", "--init", "--network=none"]


def timed(words: list[str], stdout: int = subprocess.DEVNULL) -> float:
    """Seconds that a command takes."""
    began = time.perf_counter()
    subprocess.run(words, check=True, stdin=subprocess.DEVNULL, stdout=stdout)
    return time.perf_counter() - began


def through_dlapp(root: Path, daemon: Dockerd, image: str, script: str, gcores: int = 0) -> float:
    """Seconds that a payload takes, from the lease to the release of its GPUs."""
    directory = Path(tempfile.mkdtemp(dir=root))
    (directory / "workspace").mkdir()
    (directory / "workspace" / "run.sh").write_text(f"#!/bin/sh\n{script}\n")
    (directory / "workspace" / "run.sh").chmod(0o755)
    began = time.perf_counter()
    with leased(root, gcores) as devices:
        payload = Payload(
            application_id="application_1700000000000_0001",
            container_id=f"container_{directory.name}",
            directory=str(directory),
            script="run.sh",
            args=(),
            env={"PATH": "/bin"},
            resources=Resources(memory_mib=256, gcores=gcores),
            image=image,
            gpus=devices,
        )
        settings = DockerSettings(daemon.host, "none", lock_dir=str(root))
        run = DockerRun(payload, settings, node_policy().docker, lambda _: None)
        run.prepare()
        run.start()
        wait_for_end(run)
        run.close()
    return time.perf_counter() - began


@contextmanager
def leased(root: Path, gcores: int) -> Iterator[tuple[PayloadDevice, ...]]:
    """GPUs of a machine's ledger with one GPU that is not there."""
    if not gcores:
        yield ()
        return
    from dlapp.gpuid.devices import Device
    from dlapp.gpuid.stores.machine import MachineLedger

    device = _device(0)
    ledger = MachineLedger(str(root / "gpus"), discover=lambda: (Device(device.uuid, 0, 0),))
    with (
        ledger.reserve("bench", gcores),
        ledger.lease(LeaseRequest("bench", "bench", "bench", gcores)) as lease,
    ):
        yield (device,)
        lease.release()


def wait_for_end(run: DockerRun) -> None:
    """Wait as a task does: polled where there is something to poll, else every 5 ms.

    Raises:
        SystemExit: the payload failed.
    """
    while (ended := run.ended()) is None:
        poll = select.poll()
        watched = run.watched_fds()
        for fd, events in watched:
            poll.register(fd, events)
        poll.poll(1000 if watched else 5)
    if ended.exit_code != 0:
        raise SystemExit(f"Error: a payload ended with {ended}")


# ---- what it prints ----


def log_rate(root: Path, daemon: Dockerd) -> Row:
    """Bytes a second; the time of a container that prints nothing is taken off both."""
    target = os.open(root / "printed", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    words = [*_docker_run(daemon), "--attach=stdout", IMAGE, "sh", "-c"]

    def through_docker(script: str) -> float:
        os.ftruncate(target, 0)
        os.lseek(target, 0, os.SEEK_SET)
        return timed([*words, script], stdout=target)

    ours, our_base, theirs, their_base = alternately(
        [
            lambda: through_dlapp(root, daemon, IMAGE, LINES),
            lambda: through_dlapp(root, daemon, IMAGE, "exec true"),
            lambda: through_docker(LINES),
            lambda: through_docker("true"),
        ],
        max(3, ROUNDS // 5),
    )
    os.close(target)
    rates = [PRINTED / (median(taken) - median(base)) for taken, base in ((ours, our_base), (theirs, their_base))]
    return Row(
        name="log-rate",
        ratio=rates[0] / rates[1],
        goal=1.5,
        better="higher",
        conditions={
            "printed_mib": PRINTED >> 20,
            "dlapp_mib_s": rates[0] / 2**20,
            "docker_run_mib_s": rates[1] / 2**20,
        },
    )


# ---- the task's memory ----


PROPERTIES = """
[application]
appname=docker-memory
docker_image={image}
user_dev_workspace_path=./workspace
user_shell_script=sleep.sh

[resources]
containers=1
memory=256m
vcores=1
gcores=0
"""


def task_memory(daemon: Dockerd) -> Row:
    """VmRSS of the task of a container that sleeps."""
    with running(daemon) as (environment, application, home):
        kib = resident_kib(_task_of(home))
        command(environment, "dlapp-kill", application)
    empty_kib = empty_python_kib()
    return Row(
        name="task-memory",
        ratio=kib / empty_kib,
        goal=6.0,
        better="lower",
        conditions={"task_mib": kib / 1024, "empty_python_mib": empty_kib / 1024},
    )


@contextmanager
def running(daemon: Dockerd) -> Iterator[tuple[dict[str, str], str, Path]]:
    """An application whose payload sleeps: the environment of its commands, its id, its directory.

    Raises:
        SystemExit: it does not run in time.
    """
    with own_state() as (root, environment):
        environment |= {"DLAPP_RUNTIME_DOCKER_HOST": daemon.host, "DLAPP_RUNTIME_DOCKER_NETWORK": "none"}
        (root / "workspace").mkdir()
        (root / "workspace" / "sleep.sh").write_text("#!/bin/sh\ntrap '' TERM\nexec sleep 1000\n")
        (root / "workspace" / "sleep.sh").chmod(0o755)
        (root / "dl_app.properties").write_text(PROPERTIES.format(image=IMAGE))
        printed = command(environment, "dlapp-launcher", str(root / "dl_app.properties"))
        application = next(word for word in printed.split() if word.startswith("application_"))
        home = next(Path(environment["DLAPP_LOCAL_STATE_DIR"]).glob(f"*/applications/{application}"))
        view, deadline = home / "view.json", time.monotonic() + DEADLINE_S
        while not view.exists() or _phases(view) != ["running"]:
            if time.monotonic() > deadline:
                raise SystemExit("Error: the container does not run")
            time.sleep(0.1)
        yield environment, application, home


def _phases(view: Path) -> list[str]:
    return [one["phase"] for one in json.loads(view.read_text())["containers"]]


def _task_of(home: Path) -> int:
    (pid,) = (one.pid for one in processes(home) if one.role == "task")
    return pid


# ---- everything killed ----


def ends_after_kill(daemon: Dockerd) -> Iterator[Row]:
    """Measure with dockerd alive and dead; in seconds, for the promise is one."""
    rounds = max(3, ROUNDS // 3)
    for name, dead in (("end-after-kill", False), ("end-after-kill-dead", True)):
        taken = [end_after_kill(daemon, dead) for _ in range(rounds + 1)][1:]
        yield Row(
            name=name,
            ratio=median(taken),
            goal=1.0,
            better="lower",
            conditions={"unit": "s", "rounds": rounds, "longest_s": max(taken)},
        )


def end_after_kill(daemon: Dockerd, dead: bool) -> float:
    """Seconds from the SIGKILL to the end of the last process in the container.

    Raises:
        SystemExit: one of them does not end.
    """
    with running(daemon) as (environment, application, _):
        (name,) = daemon.containers(f"label=dlapp.app={application}")
        inside = [int(word) for word in daemon.docker("top", name, "-o", "pid").stdout.split()[1:]]
        ends = [os.pidfd_open(pid) for pid in inside]
        ours = [one for one in processes(Path(environment["DLAPP_LOCAL_STATE_DIR"])) if one.pid not in inside]
        if not inside or not {"am", "task"} <= {one.role for one in ours}:
            raise SystemExit(f"Error: of the application there is only {ours}, and in its container {inside}")
        if dead:
            daemon.kill()
        began = time.perf_counter()
        for one in ours:
            with suppress(ProcessLookupError):
                os.kill(one.pid, signal.SIGKILL)
        for fd in ends:
            if not select.select([fd], [], [], DEADLINE_S)[0]:
                raise SystemExit("Error: a payload outlives its application")
        taken = time.perf_counter() - began
        for fd in ends:
            os.close(fd)
        if dead:
            daemon.stop()
            shutil.rmtree(daemon.directory / "exec")
            daemon.start()
        daemon.docker("rm", "--force", name)
    return taken


if __name__ == "__main__":
    for row in rows():
        print(row.name, f"{row.ratio:.2f}", row.conditions)
    sys.exit(0)
