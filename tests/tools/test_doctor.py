"""dlapp-doctor where this machine is the engine: what it says of a machine that is well, and of one that is not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dlapp.doctor.findings import failed, passed
from dlapp.gpuid.devices import Device
from dlapp.gpuid.rules import LeaseRequest
from dlapp.gpuid.stores.machine import MachineLedger
from dlapp.system.owners import user_name
from dlapp.tools.machine.doctor import line_of, node_table
from tests.services.containers.nvml_stub import HANGS, LINK_DOWN, MIB, NVSWITCH, StubDevice, with_devices


class Doctor:
    """The command, in a home of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.variables = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "PYTHONUTF8": "1",
            "DLAPP_LOCAL_STATE_DIR": str(home / "state"),
            "DLAPP_GPUID_LOCK_DIR": str(home / "gpus"),
            "DLAPP_RUNTIME_DOCKER_HOST": f"unix://{home}/no-docker.sock",
        }

    def run(self, *words: str, code: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "dlapp.tools", "doctor", *words], env=self.variables, capture_output=True, text=True
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    def findings(self, code: int = 0, *words: str) -> dict[str, dict[str, Any]]:
        content = json.loads(self.run("--json", *words, code=code))
        assert sum(content["count"].values()) == len(content["findings"])
        return {finding["subject"]: finding for finding in content["findings"]}


@pytest.fixture
def doctor(tmp_path: Path) -> Doctor:
    return Doctor(tmp_path)


def test_a_machine_that_is_well_has_a_line_for_each_assumption(doctor: Doctor) -> None:
    found = doctor.findings()
    subjects = {"local.state_dir", "local.disk", "local.locks", "local.queue", "local.policy", "local.capacity"}
    subjects.add("docker")
    assert subjects <= set(found)
    assert {found[name]["verdict"] for name in ("local.locks", "local.queue", "payload.bash")} == {"pass"}
    assert "waiting raises a priority every 1 d" in found["local.policy"]["found"]
    assert any(name.startswith("gpu") for name in found)
    assert found["docker"]["verdict"] == "warn"
    assert "start dockerd or set runtime.docker.host" in found["docker"]["repair"]
    assert all(finding["repair"] for finding in found.values() if finding["verdict"] == "warn")


def test_another_docker_of_the_user_is_named_with_the_variable_that_selects_it(doctor: Doctor) -> None:
    doctor.variables["DOCKER_HOST"] = "unix:///run/user/1000/docker.sock"
    repair = doctor.findings()["docker"]["repair"]
    assert repair.startswith(
        "DOCKER_HOST is set to unix:///run/user/1000/docker.sock; dlapp uses runtime.docker.host, "
    )
    assert "export DLAPP_RUNTIME_DOCKER_HOST=unix:///run/user/1000/docker.sock; start dockerd" in repair


def test_nodes_that_were_checked_are_a_table() -> None:
    found = [
        passed("node", "a container was granted")._replace(node="host02"),
        failed("node.docker", "it does not answer", "start it")._replace(node="host02"),
        passed("node", "a container was granted")._replace(node="h1"),
        passed("yarn", "Hadoop 3.4.2"),
    ]
    assert node_table(found) == ["NODE    PASS  WARN  FAIL", "h1         1     0     0", "host02     1     0     1"]
    assert node_table(found[3:]) == []
    assert line_of(found[1]) == "fail  node.docker               host02: it does not answer; start it"


@pytest.mark.parametrize("words", [("--node",), ("--node", "all")])
def test_one_machine_is_its_own_only_node(doctor: Doctor, words: tuple[str, ...]) -> None:
    assert not any(finding["node"] for finding in doctor.findings(0, *words).values())


def test_the_lines_name_the_source_of_each_value(doctor: Doctor) -> None:
    (doctor.home / "mine.yaml").write_text("defaults:\n  memory: 1g\n")
    doctor.variables["DLAPP_CONFIG"] = str(doctor.home / "mine.yaml")
    lines = doctor.run().splitlines()
    assert f"pass  config.defaults.memory    1g (from {doctor.home}/mine.yaml:2)" in lines
    assert f"pass  config.file               {doctor.home}/mine.yaml: 1 value in effect" in lines
    assert not any("config.defaults.vcores" in line for line in lines)
    assert "pass  config.defaults.vcores    1 (from default)" in doctor.run("--defaults").splitlines()


def test_a_program_for_notifications_that_cannot_be_run_is_a_warning(doctor: Doctor) -> None:
    doctor.variables["DLAPP_NOTIFY_COMMAND"] = f"{doctor.home}/tell --now"
    assert doctor.findings()["notify.command"]["verdict"] == "warn"
    (doctor.home / "tell").write_text("#!/bin/sh\n")
    (doctor.home / "tell").chmod(0o755)
    assert "notify.command" not in doctor.findings()


def test_each_fault_of_the_configuration_is_a_line(doctor: Doctor) -> None:
    doctor.variables |= {"DLAPP_DEFAULTS_MEMORY": "lots", "DLAPP_LOCAL_SHARED": "maybe"}
    lines = doctor.run(code=1).splitlines()
    assert len(lines) == 2
    assert all(line.startswith("fail  config ") for line in lines)


def test_an_unusable_state_directory_is_a_failure_and_other_checks_run(doctor: Doctor) -> None:
    (doctor.home / "state").write_text("a file")
    found = doctor.findings(1)
    assert found["local.state_dir"]["verdict"] == "fail"
    assert "local.state_dir" in found["local.state_dir"]["found"]
    assert found["payload.bash"]["verdict"] == "pass"


def test_defaults_that_the_machine_cannot_meet_are_a_warning(doctor: Doctor) -> None:
    doctor.variables |= {"DLAPP_LOCAL_MEMORY": "1g", "DLAPP_DEFAULTS_MEMORY": "2g"}
    found = doctor.findings()["local.capacity"]
    assert found["verdict"] == "warn"
    assert "lower defaults.memory" in found["repair"]


def test_each_device_is_a_line_and_a_faulty_one_a_warning(doctor: Doctor, tmp_path: Path) -> None:
    devices = (StubDevice(uuid="GPU-a", name="Tesla V100"), StubDevice(uuid="GPU-b", name="Tesla T4", used=9000 * MIB))
    doctor.variables |= with_devices(tmp_path, devices)
    found = doctor.findings()
    assert "gpu" not in found
    assert (found["gpu.gpu0"]["verdict"], found["gpu.gpu1"]["verdict"]) == ("pass", "warn")
    assert "Tesla V100" in found["gpu.gpu0"]["found"]
    assert "dlapp-gpu list" in found["gpu.gpu1"]["repair"]


def test_the_holder_and_the_quarantine_of_each_device_are_reported(doctor: Doctor, tmp_path: Path) -> None:
    devices = [StubDevice(uuid=f"GPU-{name}", pids=(os.getpid(),) if name == "a" else ()) for name in "abc"]
    doctor.variables |= with_devices(tmp_path, devices)
    found = tuple(Device(one.uuid, place, place) for place, one in enumerate(devices))
    ledger = MachineLedger(str(doctor.home / "gpus"), discover=lambda: found)
    ledger.quarantine("GPU-b", cause="operator", detail="fan", by="ann")
    with ledger.acquire(LeaseRequest("application_1700000000000_0042", "container_1", "tony", 1, ("GPU-a",))):
        findings = doctor.findings()
    first, second, third = (findings[f"gpu.gpu{place}"] for place in range(3))
    me = user_name(os.geteuid())
    assert first["verdict"] == "pass", "its program is not foreign"
    assert first["found"].endswith(f"; held by application_1700000000000_0042 ({me})")
    assert (second["verdict"], third["verdict"]) == ("warn", "pass")
    assert second["found"].endswith("; quarantined (fan)")
    assert second["repair"] == "dlapp-gpu heal gpu1 leases it again"


def test_a_device_in_mig_mode_without_instances_is_a_warning(doctor: Doctor, tmp_path: Path) -> None:
    doctor.variables |= with_devices(tmp_path, [StubDevice(mig=()), StubDevice()])
    found = doctor.findings()
    assert (found["gpu.gpu0"]["verdict"], found["gpu.gpu1"]["verdict"]) == ("warn", "pass")
    assert found["gpu.gpu0"]["found"].endswith("in MIG mode, without instances")


def test_values_missing_from_the_driver_are_reported_with_the_device(doctor: Doctor, tmp_path: Path) -> None:
    no_list = (("nvmlDeviceGetComputeRunningProcesses", 3),)
    device = StubDevice(uuid="GPU-a", ecc=None, errors=no_list, used=900 * MIB, nvlinks=(NVSWITCH, LINK_DOWN))
    doctor.variables |= with_devices(tmp_path, [device])
    found = doctor.findings()["gpu.gpu0"]
    assert found["verdict"] == "pass"
    assert "unverified: the driver does not list processes" in found["found"]
    assert "not reported: processes, ECC errors" in found["found"]
    assert "1 of 2 NVLinks are active" in found["found"]


def test_gpus_without_persistence_mode_are_one_warning(doctor: Doctor, tmp_path: Path) -> None:
    devices = [StubDevice(), StubDevice(persistence=0), StubDevice(persistence=None), StubDevice(persistence=0)]
    doctor.variables |= with_devices(tmp_path, devices)
    found = doctor.findings()["gpu.persistence"]
    assert found["verdict"] == "warn"
    assert "persistence mode is off on gpu1, gpu3:" in found["found"]
    assert "nvidia-persistenced" in found["repair"]
    doctor.variables |= with_devices(tmp_path, devices[:1])
    assert "gpu.persistence" not in doctor.findings()


def test_a_gpu_without_its_nvlink_fabric_is_a_warning_with_the_words_people_search_for(
    doctor: Doctor, tmp_path: Path
) -> None:
    doctor.variables |= with_devices(tmp_path, [StubDevice(fabric=1), StubDevice()])
    found = doctor.findings()["gpu.gpu0"]
    assert found["verdict"] == "warn"
    assert all(words in found["found"] for words in ("error 802", "nvidia-fabricmanager", "fabric manager"))


@pytest.mark.parametrize(
    ("init", "message", "repair"),
    [
        (18, "Driver/library version mismatch", "unload and load the modules"),
        (999, "Unknown Error", "see nvidia-smi and dmesg"),
        (HANGS, "no answer in 4 s: the driver hangs", "dmesg shows why"),
    ],
)
def test_a_driver_that_does_not_work_is_a_failure_with_its_repair(
    doctor: Doctor, tmp_path: Path, init: int, message: str, repair: str
) -> None:
    doctor.variables |= with_devices(tmp_path, [StubDevice()], init=init)
    found = doctor.findings(1)
    assert found["gpu.driver"]["verdict"] == "fail"
    assert message in found["gpu.driver"]["found"]
    assert repair in found["gpu.driver"]["repair"]


def test_a_gpu_ledger_that_others_cannot_write_is_a_warning(doctor: Doctor) -> None:
    (doctor.home / "gpus").mkdir(mode=0o755)
    lines = [line for line in doctor.run().splitlines() if "gpu.ledger" in line]
    assert lines[0].startswith("warn")
    assert f"echo 'd {doctor.home}/gpus 1777 root root -' > /etc/tmpfiles.d/dlapp.conf" in lines[0]


@pytest.mark.slow
def test_an_ensemble_that_is_not_there_is_a_failure_on_a_cluster_and_a_warning_on_one_machine(doctor: Doctor) -> None:
    doctor.variables |= {"DLAPP_GPUID_ZOOKEEPER_ENSEMBLE": "127.0.0.1:1", "DLAPP_GPUID_ZOOKEEPER_CREDENTIALS": "none"}
    doctor.variables["DLAPP_GPUID_ZOOKEEPER_ROOT"] = "/dlapp"
    found = doctor.findings(1, "--cluster", "yarn")
    assert found["gpu.ledger"]["verdict"] == "fail"
    assert "gpuid.zookeeper.ensemble" in found["gpu.ledger"]["repair"]
    assert found["gpu.ledger.access"]["verdict"] == "warn"
    found = doctor.findings(0)
    assert (found["gpu.ledger"]["verdict"], found["gpu.zookeeper"]["verdict"]) == ("pass", "warn")
    assert "only dlapp-gpu and applications of a cluster use it" in found["gpu.zookeeper"]["repair"]


@pytest.mark.proves("zookeeper-access")
def test_a_ledger_on_zookeeper_without_credentials_is_a_failure(doctor: Doctor) -> None:
    doctor.variables |= {"DLAPP_GPUID_ZOOKEEPER_ENSEMBLE": "127.0.0.1:1"}
    found = doctor.findings(1, "--cluster", "yarn")
    assert found["gpu.ledger.access"]["verdict"] == "fail"
    assert "write none if everybody" in found["gpu.ledger.access"]["repair"]


def test_an_unconfigured_cluster_is_a_failure_with_the_setting(doctor: Doctor) -> None:
    found = doctor.findings(1, "--cluster", "yarn")
    assert "set yarn.conf_dir, or HADOOP_CONF_DIR" in found["hadoop.conf"]["found"]
