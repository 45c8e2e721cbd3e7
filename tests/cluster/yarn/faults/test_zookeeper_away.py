"""ZooKeeper is away while containers with GPUs start on a real YARN: they wait for it, and nothing is counted.

What runs keeps its GPUs meanwhile.
"""

from __future__ import annotations

import faulthandler
import getpass
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from dlapp.am.decisions.services import HELD_MS
from dlapp.client import Client
from dlapp.config import load_config
from dlapp.values.ids import ApplicationId
from dlapp.values.messages import Phase
from dlapp.values.report import ApplicationView, Cause
from dlapp.values.waiting import SERVICE_AWAY
from tests.applications import properties
from tests.cluster.yarn.on_yarn import until
from tests.services.containers.nvml_stub import StubDevice, with_devices
from tests.services.hadoop import Hadoop
from tests.services.zookeeper import ZooKeeper, zookeeper_for_tests
from tests.tiers import FULL

CONTAINERS, RUNNING = 4, 2
"""Containers that start while ZooKeeper is away, and containers that run; each has one GPU."""
SHOWN_S, BACK_S = 5.0, 10.0
"""After these times at most a wait is shown, and what waited runs when ZooKeeper is back."""
AWAY_S = 900.0
TEST_S = 1800.0
PROGRAM = """\
exec 8>@/gpu-$CUDA_VISIBLE_DEVICES 9>@/$1-$CONTAINER_INDEX
flock -n 8 || touch @/twice-gpu-$CUDA_VISIBLE_DEVICES
flock -n 9 || touch @/twice-$1-$CONTAINER_INDEX
echo $CUDA_VISIBLE_DEVICES >>@/starts-$1-$CONTAINER_INDEX
until [ -e @/go ]; do sleep 0.05; done
"""


@pytest.fixture
def zookeeper() -> Iterator[ZooKeeper]:
    """One server, which the test may harm."""
    with zookeeper_for_tests() as server:
        yield server


@pytest.fixture
def client(hadoop: Hadoop, zookeeper: ZooKeeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setenv("HADOOP_USER_NAME", getpass.getuser())
    tmp_path.chmod(0o755)
    python, credentials = tmp_path / "python3", tmp_path / "credentials"
    devices = with_devices(tmp_path, [StubDevice() for _ in range(CONTAINERS + RUNNING)])
    exports = "".join(f"export {name}='{value}'\n" for name, value in devices.items())
    python.write_text(f'#!/bin/sh\n{exports}exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    credentials.write_text("dlapp:secret\n")
    credentials.chmod(0o600)
    options = {
        "cluster": "yarn",
        "yarn.conf_dir": str(hadoop.configuration),
        "yarn.python": str(python),
        "gpuid.zookeeper.ensemble": zookeeper.ensemble,
        "gpuid.zookeeper.credentials": str(credentials),
        "gpuid.lock_dir": str(tmp_path / "locks"),
    }
    with Client(load_config(options, environ={})) as one:
        yield one


class Programs(NamedTuple):
    """Applications whose programs lock their GPU and note it in files of ``place``; they end when that has ``go``."""

    client: Client
    place: Path

    def submit(self, name: str, containers: int) -> ApplicationId:
        script = PROGRAM.replace("@", str(self.place)).replace("$1", name)
        resources = {"gcores": 1, "containers": containers, "memory": 256}
        return self.client.submit(str(properties(self.place, script, name=name, resources=resources))).application_id

    def starts(self, name: str) -> list[str]:
        """Return the GPUs of each start of a program of an application."""
        return [gpu for path in sorted(self.place.glob(f"starts-{name}-*")) for gpu in path.read_text().split()]


def held(view: ApplicationView) -> list[tuple[object, ...]]:
    return [(container.container_id, container.phase, container.gpus) for container in view.containers]


def check_words(client: Client, application: ApplicationId, words: str) -> None:
    """See that a wait of all containers is shown within 5 s after the first look at each that leases GPUs."""
    leasing_at: dict[object, float] = {}
    shown_s: dict[object, float] = {}

    def are_shown() -> bool:
        view, now_s = client.status(application), time.monotonic()
        for container in view.containers:
            if container.phase is Phase.LEASING:
                leasing_at.setdefault(container.container_id, now_s)
            if container.detail.startswith("waits for ZooKeeper at "):
                shown_s.setdefault(container.container_id, now_s - leasing_at[container.container_id])
        return words in view.phase

    until(are_shown)
    print(f"shown after {sorted(shown_s.values())} s")
    assert max(shown_s.values()) <= SHOWN_S
    view = client.status(application)
    assert view.waiting is not None
    assert (view.waiting.code, words in view.waiting.message) == (SERVICE_AWAY, True)


def run_while_away(client: Client, zookeeper: ZooKeeper, place: Path, away_s: float) -> list[int]:
    """Kill ZooKeeper under an application with GPUs, submit another one, and start ZooKeeper after a time [s].

    Containers that wait for longer than ten minutes are released, and others are given to their indexes.

    Returns:
        The number of containers that each index of the second application had.
    """
    programs = Programs(client, place)
    holder = programs.submit("holder", RUNNING)
    until(lambda: len(programs.starts("holder")) == RUNNING)
    before = held(until(lambda: (view := client.status(holder)).phase.startswith("running") and view))
    zookeeper.kill_server("zk1")
    away_at = time.monotonic()
    waiting = programs.submit("waiting", CONTAINERS)
    words = f"{CONTAINERS} waiting for ZooKeeper at {zookeeper.ensemble} since "
    check_words(client, waiting, words)

    def stay_away(until_s: float) -> None:
        while time.monotonic() < away_at + until_s:
            assert held(client.status(holder)) == before
            phase = client.status(waiting).phase
            assert words in phase, phase
            time.sleep(0.5)

    def wait_again() -> bool:
        view = client.status(waiting)
        return words in view.phase and [container.attempt for container in view.containers] == [2] * CONTAINERS

    if away_s > HELD_MS / 1000:
        stay_away(HELD_MS / 1000)
        until(wait_again)
    stay_away(away_s)
    assert not programs.starts("waiting")
    zookeeper.start_server("zk1")
    zookeeper.wait_until_ready()
    back_at = time.monotonic()
    until(lambda: len(programs.starts("waiting")) == CONTAINERS)
    back_s = time.monotonic() - back_at
    print(f"runs after {back_s:.1f} s")
    assert back_s <= BACK_S
    assert held(client.status(holder)) == before
    (place / "go").touch()
    ends = [client.wait(item, timeout_s=240) for item in (holder, waiting)]
    assert [end.cause for end in ends] == [Cause.SUCCEEDED] * 2, [end.diagnostics for end in ends]
    assert not [*place.glob("twice-*")]
    gpus = programs.starts("holder") + programs.starts("waiting")
    assert len(gpus) == len(set(gpus)) == CONTAINERS + RUNNING
    assert [container.attempt for container in ends[0].containers] == [1] * RUNNING
    assert [len(container.gpus) for container in ends[1].containers] == [1] * CONTAINERS
    return [container.attempt for container in ends[1].containers]


@pytest.mark.slow
def test_containers_with_gpus_wait_for_zookeeper_as_the_status_shows(
    client: Client, zookeeper: ZooKeeper, tmp_path: Path
) -> None:
    """Keep ZooKeeper away for 20 s from four containers that start, and two that run.

    See that the wait is shown within 5 s, and all four run within 10 s after ZooKeeper is back.
    """
    assert run_while_away(client, zookeeper, tmp_path, 20.0) == [1] * CONTAINERS


if FULL:

    def test_containers_that_wait_15_minutes_for_zookeeper_are_requested_again_after_ten(
        client: Client, zookeeper: ZooKeeper, tmp_path: Path
    ) -> None:
        """The same for 15 minutes: each container is released after ten, and another one is given to its index."""
        faulthandler.dump_traceback_later(TEST_S, exit=True)  # pytest's own limit is shorter
        assert AWAY_S > HELD_MS / 1000
        assert run_while_away(client, zookeeper, tmp_path, AWAY_S) == [2] * CONTAINERS
