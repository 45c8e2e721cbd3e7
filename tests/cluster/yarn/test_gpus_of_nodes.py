"""yarn.io/gpu on a real YARN: found, asked for and counted there, and no ledger of ours.

What is not here: a container that gets its GPUs, in executor/test_gpus.py. A NodeManager hands them out with the
LinuxContainerExecutor alone. This one has the plug-in and four devices, and assigns none: so what a task does then is
seen. What it makes of GPUs that are assigned is in gpuid/test_given.py.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dlapp.client import Client
from dlapp.config import load_config
from dlapp.errors import RequestTooLarge
from dlapp.values.report import Cause
from tests.applications import properties, run
from tests.cluster.yarn.on_yarn import until
from tests.services.containers.nvml_stub import StubDevice, with_devices
from tests.services.hadoop import NODES, Hadoop, NoHadoop
from tests.tiers import FULL

GPU, GPUS = "yarn.io/gpu", 4
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
    "yarn-site.xml": {
        "yarn.nodemanager.resource-plugins": GPU,
        "yarn.nodemanager.resource-plugins.gpu.allowed-gpu-devices": ",".join(f"{n}:{n}" for n in range(GPUS)),
    },
}


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the health script of the nodes: dlapp-gpu on a machine with four GPUs, whose ledger is in ``locks``."""
    place = tmp_path_factory.mktemp("machine")
    devices = with_devices(place, [StubDevice() for _ in range(GPUS)])
    (place / "dlapp-gpu").write_text(
        "#!/bin/sh\n"
        + "".join(f"export {name}='{text}'\n" for name, text in devices.items())
        + f"export DLAPP_GPUID_LOCK_DIR={place}/locks\n"
        + f'exec {sys.executable} -m dlapp.tools gpu "$@"\n'
    )
    (place / "dlapp-gpu").chmod(0o755)
    return place


@pytest.fixture(scope="module")
def hadoop_with_gpus(machine: Path) -> Iterator[Hadoop]:
    """One whose nodes own their GPUs."""
    script = {
        "yarn.nodemanager.health-checker.script.path": str(machine / "dlapp-gpu"),
        "yarn.nodemanager.health-checker.script.opts": "health",
        "yarn.nodemanager.health-checker.interval-ms": "1000",
    }
    settings = SETTINGS | {"yarn-site.xml": SETTINGS["yarn-site.xml"] | script}
    try:
        with Hadoop.start(settings=settings, wait=False) as one:
            one.wait_until_ready(parts=("nn", "dn"))

            def counted() -> bool:
                with contextlib.suppress(OSError):
                    return [amounts(node["totalResource"])[GPU] for node in nodes(one)] == [GPUS] * len(NODES)
                return False

            until(counted, 120)
            yield one
    except NoHadoop as missing:
        pytest.skip(f"no Hadoop: {missing}")


def nodes(cluster: Hadoop) -> list[dict[str, Any]]:
    return list((cluster.get(f"{cluster.rm_url}/ws/v1/cluster/nodes")["nodes"] or {}).get("node", []))


def amounts(resource: dict[str, Any]) -> dict[str, int]:
    return {item["name"]: item["value"] for item in resource["resourceInformations"]["resourceInformation"]}


def used(cluster: Hadoop) -> int:
    """Return how many of the GPUs are allocated, as the ResourceManager says."""
    return sum(amounts(node["usedResource"])[GPU] for node in nodes(cluster))


@pytest.fixture
def client(hadoop_with_gpus: Hadoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """Make a client of a cluster whose nodes see GPUs; tasks wait for a file ``go``. No dialect or ZooKeeper is set."""
    python = tmp_path / "python3"
    devices = with_devices(tmp_path, [StubDevice() for _ in range(GPUS)])
    exports = "".join(f"export {name}='{text}'\n" for name, text in devices.items())
    wait = f'[ "$3" != task ] || until [ -e {tmp_path}/go ]; do sleep 0.05; done\n'
    python.write_text(f'#!/bin/sh\n{exports}{wait}exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    settings = {
        "cluster": "yarn",
        "yarn.conf_dir": str(hadoop_with_gpus.configuration),
        "yarn.python": str(python),
        "gpuid.lock_dir": str(tmp_path / "locks"),
    }
    for name, text in settings.items():
        monkeypatch.setenv(f"DLAPP_{name.upper().replace('.', '_')}", text)
    monkeypatch.setenv("HADOOP_USER_NAME", getpass.getuser())
    one = Client(load_config())
    yield one
    one.engine.close()


if FULL:

    def test_gpus_are_found_requested_and_counted_and_a_task_without_any_leases_none(
        client: Client, hadoop_with_gpus: Hadoop, tmp_path: Path
    ) -> None:
        assert client.engine.info().has_gpus
        script = f"echo ran >>{tmp_path}/ran"
        file = properties(tmp_path, script, resources={"gcores": 2, "containers": 3})
        application = client.submit(str(file))
        until(lambda: used(hadoop_with_gpus) == 6)
        (tmp_path / "go").touch()
        end = client.wait(application, timeout_s=120)
        assert end.cause is Cause.FAILED
        node = rf"http://127\.0\.1\.[12]:{hadoop_with_gpus.ports['nm_http']}/ws/v1/node/resources/yarn\.io%2Fgpu"
        message = rf"GPUs could not be leased: {node} names 0 GPUs of container_\d+_\d+_\d+_\d+, and it asked for 2"
        assert re.search(message, end.diagnostics), end.diagnostics
        assert not (tmp_path / "ran").exists()
        until(lambda: used(hadoop_with_gpus) == 0)

    def test_more_than_the_largest_container_may_have_is_refused_by_its_name(client: Client, tmp_path: Path) -> None:
        with pytest.raises(
            RequestTooLarge, match=f"asked for {GPUS + 1} {GPU} in one container, the maximum of the cluster is {GPUS}"
        ):
            client.submit(str(properties(tmp_path, "true", resources={"gcores": GPUS + 1})))

    def test_a_node_with_a_faulty_gpu_gets_no_containers_until_the_gpu_is_repaired(
        hadoop_with_gpus: Hadoop, machine: Path
    ) -> None:
        def states() -> set[str]:
            return {node["state"] for node in nodes(hadoop_with_gpus)}

        with_devices(machine, [StubDevice(), StubDevice(ecc=2, recovery=None), StubDevice(), StubDevice()])
        until(lambda: states() == {"UNHEALTHY"}, 120)
        for node in nodes(hadoop_with_gpus):
            assert re.search(r"ERROR \S+: gpu1 \(GPU-\S+\): 2 uncorrectable ECC errors", node["healthReport"])
        with_devices(machine, [StubDevice() for _ in range(GPUS)])
        until(lambda: states() == {"RUNNING"}, 120)

    @pytest.mark.usefixtures("client")
    def test_the_doctor_reports_the_resources_of_the_nodes() -> None:
        content = {finding["subject"]: finding for finding in json.loads(run("dlapp-doctor", "--json").out)["findings"]}
        assert (content["yarn.dialect"]["verdict"], content["yarn.nodes.gpus"]["verdict"]) == ("pass", "pass")
        assert GPU in content["yarn.dialect"]["found"]
