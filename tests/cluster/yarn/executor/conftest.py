"""A cluster whose NodeManagers use the LinuxContainerExecutor and hand out GPUs, and its users."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dlapp.client import Client
from dlapp.config import load_config
from tests.cluster.yarn.on_yarn import until
from tests.services.containers.nvml_stub import StubDevice, seen_by_all
from tests.services.executor.linux_executor import GPU, LinuxExecutor
from tests.services.hadoop import NODES, Hadoop, NoHadoop
from tests.services.users import interpreter_for_everybody, place_for_everybody

ALICE, BOB, CAROL, DAVE = "dlapp-alice", "dlapp-bob", "dlapp-carol", "dlapp-dave"
USERS = {ALICE: 64101, BOB: 64102, CAROL: 64103}
"""Those with accounts on the nodes; `DAVE` has none."""
REFUSED = {"bin": r"Requested user bin is banned", "daemon": r"daemon is not .* below the minimum allowed 1000"}
"""Accounts of the operating system that container-executor.cfg excludes, and its message on each."""
PREEMPTION_WAIT = "yarn.resourcemanager.monitor.capacity.preemption.max_wait_before_kill"
MINORS = {"nm1": (4, 5), "nm2": (6, 7)}
"""GPUs of each node by their minor numbers, which are not those by which NVML counts."""
GPUS = 2
SETTINGS = {
    "resource-types.xml": {
        "yarn.resource-types": GPU,
        f"yarn.resource-types.{GPU}.minimum-allocation": "0",
        f"yarn.resource-types.{GPU}.maximum-allocation": str(GPUS),
    },
    "node-resources.xml": {
        "yarn.nodemanager.resource-type.gcores": "",
        f"yarn.nodemanager.resource-type.{GPU}": str(GPUS),
    },
}


def assigned(hadoop: Hadoop) -> list[int]:
    """Return the minor numbers of the GPUs that the NodeManagers have given to containers."""
    found = []
    for host in NODES.values():
        answer = hadoop.get(f"http://{host}:{hadoop.ports['nm_http']}/ws/v1/node/resources/yarn.io%2Fgpu")
        found += [gpu["minorNumber"] for gpu in answer["assignedGpuDevices"]]
    return sorted(found)


@pytest.fixture(scope="session")
def executor() -> LinuxExecutor:
    return LinuxExecutor(USERS, minors=MINORS)


@pytest.fixture(scope="session")
def hadoop_with_users(executor: LinuxExecutor) -> Iterator[Hadoop]:
    """One whose containers run as their submitters; YARN preempts with a short notice."""
    settings = {**SETTINGS, "yarn-site.xml": {PREEMPTION_WAIT: "1000"}}
    with started(executor, settings) as cluster:
        yield cluster


@contextlib.contextmanager
def started(executor: LinuxExecutor, settings: dict[str, dict[str, str]]) -> Iterator[Hadoop]:
    """Start a cluster with home directories of all users; skip the test if there is no Hadoop."""
    try:
        with Hadoop.start(settings=settings, executor=executor, wait=False) as cluster:
            cluster.wait_until_ready(parts=("nn", "dn", "ahs"))
            for user in (*USERS, DAVE, *REFUSED):
                cluster.make_home(user)

            def counted() -> bool:
                with contextlib.suppress(OSError):
                    listed = cluster.get(f"{cluster.rm_url}/ws/v1/cluster/nodes")["nodes"] or {}
                    return [node["state"] for node in listed.get("node", [])].count("RUNNING") == len(NODES)
                dead = [part for part, one in cluster.status().items() if one["exit"] is not None]
                assert not dead, cluster.log(dead[0])[-3000:]
                return False

            until(counted, 120)
            yield cluster
    except NoHadoop as missing:
        pytest.skip(f"no Hadoop: {missing}")


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory in which programs of all users may write."""
    with place_for_everybody("executor", 0o1777) as one:
        yield one


@pytest.fixture
def client_of(
    hadoop_with_users: Hadoop, place: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], Client]]:
    """Make clients of Hadoop users; their tasks see the GPUs of both nodes, which are one machine."""
    devices = [StubDevice(minor=minor) for minors in MINORS.values() for minor in minors]
    exports = "".join(f"export {name}='{text}'\n" for name, text in seen_by_all(place, devices).items())
    python = place / "python3"
    python.write_text(f'#!/bin/sh\n{exports}exec {interpreter_for_everybody()} "$@"\n')
    python.chmod(0o755)
    # As documented for nodes: root's, and sticky.
    (place / "locks").mkdir()
    (place / "locks").chmod(0o1777)
    settings = {
        "cluster": "yarn",
        "yarn.conf_dir": str(hadoop_with_users.configuration),
        "yarn.python": str(python),
        "gpuid.lock_dir": str(place / "locks"),
    }
    for name, text in settings.items():
        monkeypatch.setenv(f"DLAPP_{name.upper().replace('.', '_')}", text)
    made = []

    def make(user: str) -> Client:
        monkeypatch.setenv("HADOOP_USER_NAME", user)
        made.append(Client(load_config()))
        return made[-1]

    yield make
    for item in made:
        item.engine.close()
