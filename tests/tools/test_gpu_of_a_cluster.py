"""dlapp-gpu on the ledger of a cluster: a real ZooKeeper."""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dlapp.client.machine.gpu_ledger import GpuLedger
from dlapp.config import load_config
from dlapp.errors import Denied
from dlapp.gpuid.devices import Device
from dlapp.gpuid.rules import LeaseRequest
from dlapp.gpuid.stores.machine import MachineLedger
from dlapp.gpuid.stores.zookeeper import ZooKeeperLedger
from dlapp.value import replace
from tests.applications import properties, run, wait_for
from tests.services.containers.nvml_stub import StubDevice, seen_by_all, with_devices
from tests.services.zookeeper import ZooKeeper, ledger_settings
from tests.tools.terminal import Terminal

HERE = os.uname().nodename
CREDENTIALS = "dlapp:secret"
TAKE_AND_DIE = """
import os, sys
from dlapp.gpuid.devices import Device
from dlapp.gpuid.rules import LeaseRequest
from dlapp.gpuid.stores.zookeeper import ZooKeeperLedger
from tests.services.zookeeper import ledger_settings
ensemble, root, credentials, lock_dir = sys.argv[1:]
settings = ledger_settings(ensemble, root, credentials, lock_dir=lock_dir)
ZooKeeperLedger(settings, discover=lambda: (Device("GPU-x", 0, 0),)).acquire(LeaseRequest("a", "c", "tony", 1))
os._exit(0)
"""


class Cluster:
    """A ledger with hosts that are elsewhere."""

    def __init__(self, server: ZooKeeper, directory: Path, root: str) -> None:
        self.settings = ledger_settings(server.ensemble, root, CREDENTIALS, lock_dir=str(directory / "locks"))
        secret = directory / "credentials"
        secret.write_text(CREDENTIALS + "\n")
        secret.chmod(0o600)
        self.environment = {
            **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
            "DLAPP_GPUID_ZOOKEEPER_ENSEMBLE": server.ensemble,
            "DLAPP_GPUID_ZOOKEEPER_ROOT": root,
            "DLAPP_GPUID_ZOOKEEPER_CREDENTIALS": str(secret),
            "DLAPP_GPUID_LOCK_DIR": str(directory / "locks"),
            "PYTHONUTF8": "1",
        }

    def lease(self, host: str, total: int, count: int, container: str = "container_1") -> None:
        """Make ``host`` known with GPUs, and lease some of them to a task that ends without a word."""
        devices = tuple(Device(f"GPU-{host}-{place}", place, place, "T4", 15360) for place in range(total))
        with contextlib.closing(ZooKeeperLedger(self.settings, host=host, discover=lambda: devices)) as ledger:
            ledger.acquire(LeaseRequest("application_1_0042", container, "tony", count))

    def gpu(self, *words: str, code: int = 0) -> tuple[str, str]:
        done = subprocess.run(
            [sys.executable, "-m", "dlapp.tools", "gpu", *words], env=self.environment, capture_output=True, text=True
        )
        assert done.returncode == code, done.stderr
        return done.stdout, done.stderr

    def spoil(self, host: str, data: bytes) -> None:
        from kazoo.client import KazooClient

        client = KazooClient(self.settings.ensemble, auth_data=[("digest", CREDENTIALS)])
        client.start()
        try:
            client.set(f"{self.settings.root}/hosts/{host}", data)
        finally:
            client.stop()
            client.close()


@pytest.fixture
def cluster(zookeeper: ZooKeeper, tmp_path: Path, request: pytest.FixtureRequest) -> Cluster:
    return Cluster(zookeeper, tmp_path, f"/{request.node.name}")


def test_all_hosts_are_listed_with_the_holders_of_their_devices(cluster: Cluster) -> None:
    cluster.lease("host02", 2, 1)
    cluster.lease("host01", 1, 1)
    lines = [line.split(" | ") for line in cluster.gpu("list")[0].splitlines()]
    assert [(first, last.partition(",")[0]) for first, _, last in lines] == [
        ("host01  gpu0  T4", "application_1_0042 (tony"),
        ("host02  gpu0  T4", "application_1_0042 (tony"),
        ("host02  gpu1  T4", "free"),
    ]
    assert json.loads(cluster.gpu("list", "--original")[0]) == {
        "host01": {"gpu0": "application_1_0042"},
        "host02": {"gpu0": "application_1_0042"},
    }
    assert [host["host"] for host in json.loads(cluster.gpu("list", "--json")[0])["hosts"]] == ["host01", "host02"]
    assert len(cluster.gpu("list", "host02")[0].splitlines()) == 2


def test_a_host_of_the_cluster_is_drained_and_healed_remotely(cluster: Cluster) -> None:
    cluster.lease("host02", 2, 1)
    first, second = cluster.gpu("drain", "host02", "--reason", "new PSU", code=1)[0].splitlines()
    assert first == "host02: gpu0, gpu1: no new program gets them until dlapp-gpu heal host02"
    assert re.fullmatch(r"host02: gpu0 application_1_0042 \(tony, \d+ s\), no end is known(, .*)?", second)
    assert cluster.gpu("drain", "gpu1", "--host", "host02")[0].endswith("host02: nobody uses it\n")
    found = json.loads(cluster.gpu("list", "host02", "--json")[0])["hosts"][0]["devices"]
    assert [item["quarantine"]["detail"] for item in found] == ["new PSU", "new PSU"]
    assert cluster.gpu("heal", "host02")[0] == "host02: healed: gpu0, gpu1\n"
    assert cluster.gpu("why", "1")[0] == "host02: yes, gpu1\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root resets a GPU")
def test_a_reset_respects_the_leases_of_the_cluster(cluster: Cluster, tmp_path: Path) -> None:
    cluster.lease(HERE, 2, 1)
    stubs = [StubDevice(uuid=f"GPU-{HERE}-{place}") for place in range(2)]
    (tmp_path / "nvidia-smi").write_text(f'#!/bin/sh\necho "$*" >>{tmp_path}/resets\n')
    (tmp_path / "nvidia-smi").chmod(0o755)
    cluster.environment |= with_devices(tmp_path, stubs)
    cluster.environment["PATH"] = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    refused = cluster.gpu("reset", "gpu0", code=4)[1]
    assert f"{HERE}: gpu0 is not reset: application_1_0042 (tony) holds gpu0" in refused
    cluster.gpu("quarantine", "gpu1", "--reason", "fan")
    assert cluster.gpu("reset", "gpu1")[0].splitlines()[0] == f"{HERE}: reset: gpu1"
    assert (tmp_path / "resets").read_text() == "--gpu-reset -i 00000000:02:00.0\n"
    (host,) = json.loads(cluster.gpu("list", "--json")[0])["hosts"]
    assert [device["state"] for device in host["devices"]] == ["held", "free"]


def test_why_names_the_host_that_can_and_else_those_nearest_to_it(cluster: Cluster) -> None:
    cluster.lease("host01", 4, 3)
    cluster.lease("host02", 4, 1)
    assert cluster.gpu("why", "3")[0] == "host02: yes, gpu1, gpu2, gpu3\n"
    lines = cluster.gpu("why", "4", code=1)[0].splitlines()
    assert [line.partition(": gpu")[0] for line in lines] == [
        "host02: asked for 4 gcores, 3 free",
        "host01: asked for 4 gcores, 1 free",
    ]


def test_an_operator_acts_on_a_remote_host(cluster: Cluster) -> None:
    cluster.lease("host01", 2, 1)
    cluster.gpu("quarantine", "gpu1", "--host", "host01", "--reason", "fan")
    assert "quarantined (fan" in cluster.gpu("list", "host01")[0]
    cluster.gpu("heal", "gpu1", "--host", "host01")
    assert "free" in cluster.gpu("list", "host01")[0]


def test_a_lease_is_released_by_force_or_where_its_application_ended_long_ago(cluster: Cluster) -> None:
    cluster.lease("host01", 2, 1)
    cluster.lease(HERE, 2, 1)
    # No engine knows this application.
    assert "application_1_0042" in cluster.gpu("release", "gpu0", "--host", "host01", code=3)[1]
    assert cluster.gpu("release", "gpu0", "--host", "host01", "--force")[0] == (
        "host01: gpu0 of container_1: released; if its program still runs: dlapp-kill application_1_0042\n"
    )
    assert "free" in cluster.gpu("list", "host01")[0].splitlines()[0]
    assert "nobody holds gpu0" in cluster.gpu("release", "gpu0", "--host", "host01", "--force", code=3)[1]
    # This process took it, and lives.
    refused = cluster.gpu("release", "gpu0", "--force", code=4)[1]
    assert re.search(rf"{HERE}: gpu0 is not released by force: its task \d+ is running", refused)


def test_without_force_only_a_lease_of_an_application_that_ended_an_hour_ago_is_released(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    cluster.lease("host01", 2, 1)
    now_ms = int(time.time() * 1000)
    with GpuLedger(load_config()) as ledger:
        for at_ms, why in ((None, "has not ended"), (now_ms - 1000, "ended less than an hour ago")):
            with pytest.raises(Denied, match=f"gpu0 is held by application_1_0042, which {why}"):
                ledger.release("gpu0", host="host01", by="ann", ended_ms={"application_1_0042": at_ms}.get)
        hours_ago_ms = now_ms - 3_700_000
        done = ledger.release("gpu0", host="host01", by="ann", ended_ms={"application_1_0042": hours_ago_ms}.get)
    assert (done["container"], done["devices"]) == ("container_1", ["gpu0"])


def test_a_forgotten_host_is_listed_only_on_request(cluster: Cluster) -> None:
    cluster.lease("host01", 1, 1)
    cluster.lease("host02", 1, 1)
    cluster.gpu("forget", "host01")
    assert "host01" not in cluster.gpu("list")[0]
    assert "forgotten" in cluster.gpu("list", "--forgotten")[0]
    assert "forgotten" in cluster.gpu("list", "host01")[0]


def test_a_record_that_is_garbage_is_named_and_hides_no_other_host(cluster: Cluster) -> None:
    cluster.lease("host01", 1, 1)
    cluster.lease("host02", 1, 1)
    cluster.spoil("host01", b"\xff{")
    out, err = cluster.gpu("list", code=1)
    assert out.startswith("host02")
    assert err.startswith("host01: its record in the GPU ledger cannot be read")
    assert "cannot be read" in cluster.gpu("quarantine", "gpu0", "--host", "host01", code=1)[1]


@pytest.mark.parametrize("words", [("list", "host99"), ("forget", "host99"), ("heal", "0", "--host", "host99")])
def test_an_unknown_host_is_not_found(cluster: Cluster, words: tuple[str, ...]) -> None:
    assert "knows no such host" in cluster.gpu(*words, code=3)[1]


def test_a_host_name_with_odd_characters_is_refused(cluster: Cluster) -> None:
    assert "is not a host name" in cluster.gpu("list", "../up", code=2)[1]


def test_gc_frees_devices_of_dead_tasks_of_this_host(cluster: Cluster) -> None:
    cluster.lease(HERE, 2, 2)
    assert "gpu0, gpu1 of container_1: kept, " in cluster.gpu("gc")[0]  # this process took it, and lives
    settings = replace(cluster.settings, root=cluster.settings.root + "-2", lock_dir=cluster.settings.lock_dir + "-2")
    arguments = [settings.ensemble, settings.root, settings.credentials, settings.lock_dir]
    subprocess.run([sys.executable, "-c", TAKE_AND_DIE, *arguments], check=True, cwd=Path(__file__).parents[2])
    cluster.environment |= {"DLAPP_GPUID_ZOOKEEPER_ROOT": settings.root, "DLAPP_GPUID_LOCK_DIR": settings.lock_dir}
    assert cluster.gpu("gc")[0] == f"{HERE}: gpu0 of c: freed\n"
    assert cluster.gpu("gc")[0] == f"{HERE}: nothing is leased\n"


def test_a_device_of_this_host_that_the_embedded_engine_has_is_not_shown_as_free(cluster: Cluster) -> None:
    devices = (Device("GPU-a", 0, 0, "T4", 15360), Device("GPU-b", 1, 1, "T4", 15360))
    with contextlib.closing(ZooKeeperLedger(cluster.settings, discover=lambda: devices)) as ledger:
        ledger.update_inventory()
    machine = MachineLedger(cluster.settings.lock_dir, discover=lambda: devices)
    user = getpass.getuser()  # the owner of the record, whatever name is said
    with machine.reserve("application_1_0001", 1):
        first, second = cluster.gpu("list", HERE)[0].splitlines()
        assert re.search(rf"\| application_1_0001 \({user}, .*, reserved\)$", first)
        assert second.endswith("free")
        output = cluster.gpu("why", "2", code=1)[0]
        assert output.startswith(f"{HERE}: asked for 2 gcores, 1 free: gpu0 application_1_0001 ({user}, ")
    assert cluster.gpu("why", "2")[0] == f"{HERE}: yes, gpu0, gpu1\n"


@pytest.mark.slow
def test_an_ensemble_that_does_not_answer_is_named(cluster: Cluster) -> None:
    cluster.environment["DLAPP_GPUID_ZOOKEEPER_ENSEMBLE"] = "127.0.0.1:1"
    assert "no ZooKeeper answered" in cluster.gpu("list", "host01", code=5)[1]


# ---- dlapp-shell ----


@pytest.fixture
def here_with_devices(cluster: Cluster, tmp_path: Path) -> Cluster:
    cluster.environment |= seen_by_all(tmp_path, [StubDevice(), StubDevice()]) | {
        name: os.environ[name] for name in ("DLAPP_LOCAL_STATE_DIR",)
    }
    return cluster


def test_dlapp_shell_leases_from_the_ledger_of_the_cluster(here_with_devices: Cluster, tmp_path: Path) -> None:
    file, cluster = properties(tmp_path, "true"), here_with_devices
    with Terminal("dlapp-shell", "--gcores", 2, file, env=cluster.environment) as terminal:
        terminal.expect("GPU 0,1")
        lines = cluster.gpu("list", HERE)[0].splitlines()
        assert len(lines) == 2
        assert all("application_" in line for line in lines)
        refused = run("dlapp-shell", "--gcores", 1, file, env=cluster.environment)
        assert refused.code == 1
        assert f"{HERE}: asked for 1 gcore, 0 free: gpu0 application_" in refused.err
        terminal.type("exit 0\n")
        assert terminal.wait() == 0
    assert cluster.gpu("list", HERE)[0].count("free") == 2


def test_devices_of_a_killed_dlapp_shell_are_free_when_its_processes_are_gone(
    here_with_devices: Cluster, tmp_path: Path
) -> None:
    file, cluster = properties(tmp_path, "true"), here_with_devices
    with Terminal("dlapp-shell", "--gcores", 2, file, env=cluster.environment) as terminal:
        terminal.expect("GPU 0,1")
        os.kill(terminal.pid, signal.SIGKILL)

    wait_for("its end", lambda: cluster.gpu("list", HERE)[0].count("free") == 2)


@pytest.mark.slow
def test_dlapp_shell_names_the_unreachable_zookeeper(here_with_devices: Cluster, tmp_path: Path) -> None:
    environment = here_with_devices.environment | {"DLAPP_GPUID_ZOOKEEPER_ENSEMBLE": "127.0.0.1:1"}
    refused = run("dlapp-shell", "--gcores", 1, properties(tmp_path, "true"), env=environment)
    assert refused.code == 5
    assert refused.err == "Error: no ZooKeeper answered in time: 127.0.0.1:1\n"


def test_the_doctor_reports_the_ledger_of_a_cluster(cluster: Cluster) -> None:
    def lines() -> list[str]:
        words = [sys.executable, "-m", "dlapp.tools", "doctor"]
        environment = {**cluster.environment, "DLAPP_LOCAL_STATE_DIR": cluster.settings.lock_dir + "-state"}
        output = subprocess.run(words, env=environment, capture_output=True, text=True).stdout.splitlines()
        return [line for line in output if line.split()[1].startswith(("gpu.zookeeper", "gpu.quarantine"))]

    where = f"{cluster.settings.ensemble}{cluster.settings.root}"
    assert lines() == [f"pass  gpu.zookeeper             {where}: 0 hosts, 0 GPUs"]
    cluster.lease("host01", 2, 1)
    cluster.lease("host02", 1, 1)
    cluster.spoil("host02", b"garbage")
    bad, good = lines()
    assert bad.startswith("warn  gpu.zookeeper.record      host02: ")
    assert good == f"pass  gpu.zookeeper             {where}: 1 hosts, 2 GPUs"
    cluster.lease(HERE, 2, 1)
    cluster.gpu("quarantine", "gpu1", "--reason", "fan")
    cluster.gpu("quarantine", "gpu0", "--host", "host01")
    assert lines()[-1].startswith(
        "warn  gpu.quarantine            2 GPUs are in quarantine; of this host gpu1 quarantined (fan); "
    )
