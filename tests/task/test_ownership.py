"""Processes of a host that belong to the payloads of a container, as the kernel tells."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest

from dlapp.runtime.payload import PayloadPlace
from dlapp.system.processes.proc import start_time
from dlapp.task.payload.ownership import OwnProcesses
from tests.services.containers.dockerd import IMAGE, Dockerd

NOBODY = 4194400
"""Pid above those that the kernel gives."""


@pytest.fixture
def sleeper() -> Iterator[int]:
    """Return the pid of a process that sleeps, below this one."""
    with subprocess.Popen(["/bin/sleep", "600"]) as process:
        yield process.pid
        process.kill()


def test_a_plain_payload_owns_the_descendants_of_the_task(sleeper: int) -> None:
    own = OwnProcesses(in_docker=False, places=list)
    assert [own(pid) for pid in (os.getpid(), sleeper, os.getppid(), 1, NOBODY)] == [True, True, False, False, None]


@pytest.mark.docker
def test_a_payload_in_docker_owns_the_processes_of_its_cgroups(dockerd: Dockerd, sleeper: int) -> None:
    places: list[PayloadPlace] = []
    pids, names = [], []
    for _ in range(2):
        name = dockerd.docker("run", "--detach", "--network", "none", IMAGE, "sleep", "600").stdout.decode().strip()
        names.append(name)
        pids.append(int(dockerd.docker("inspect", "--format", "{{.State.Pid}}", name).stdout))
    try:
        ours, others = pids
        own = OwnProcesses(in_docker=True, places=lambda: places)
        assert own(ours) is None, "no container is known yet"
        places.append(PayloadPlace(directory="", pid=ours, started=start_time(ours) or 0))
        assert own(ours) is True
        for pid in (others, sleeper):
            assert [own(pid), own(pid)] == [None, False], "a container may just start"
        places[0] = PayloadPlace(directory="", pid=ours, started=1)
        assert own(ours) is None, "the pid is another process's now"
    finally:
        dockerd.docker("rm", "--force", *names)
