"""dlapp-gpu, on the ledger of one machine whose GPUs a stub of NVML shows."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dlapp.gpuid.devices import Device
from dlapp.gpuid.rules import InQuarantine, LeaseRequest
from dlapp.gpuid.stores.machine import MachineLedger
from dlapp.gpuid.stores.node_manager import NodeManagerGpuLedger
from dlapp.gpuid.stores.xid_files import add_xids
from dlapp.system.owners import user_name
from dlapp.tools.display import gpu as gpu_text
from tests.services.containers.nvml_stub import HANGS, MIB, Part, StubDevice, calls, record_calls, with_devices
from tests.services.polling import wait_until

HOST = os.uname().nodename
ME = user_name(os.geteuid())
STUBS = (
    StubDevice(uuid="GPU-a", name="Tesla V100", used=9000 * MIB, utilization=87, temperature=61, pcie=(0, 10, 50)),
    StubDevice(uuid="GPU-b", name="Tesla V100", pcie=(10, 0, 50)),
    StubDevice(
        uuid="GPU-c", name="Tesla T4", memory_bytes=15 << 30, utilization=None, temperature=None, pcie=(50, 50, 0)
    ),
)
FREE = (replace(STUBS[0], used=0), *STUBS[1:])
"""The same machine while nobody uses its GPUs."""
DEVICES = tuple(Device(device.uuid, place, place) for place, device in enumerate(STUBS))


class Machine:
    """A machine with GPUs and a ledger."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.locks = str(directory / "locks")
        self.variables = with_devices(directory, STUBS)
        self.ledger = MachineLedger(self.locks, discover=lambda: DEVICES)

    def hold(self, *uuids: str) -> Any:
        ask = LeaseRequest("application_1700000000000_0042", "container_1", "tony", len(uuids), uuids)
        return self.ledger.acquire(ask)

    def run(self, *words: str, gone: bool = False) -> subprocess.CompletedProcess[str]:
        """Run dlapp-gpu."""
        variables = {} if gone else self.variables
        return subprocess.run(
            [sys.executable, "-m", "dlapp.tools", "gpu", *words],
            env={
                **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
                **variables,
                "DLAPP_GPUID_LOCK_DIR": self.locks,
                "PYTHONUTF8": "1",
            },
            capture_output=True,
            text=True,
        )

    def gpu(self, *words: str, code: int = 0, gone: bool = False) -> str:
        """Standard output of dlapp-gpu, or where it fails standard error."""
        done = self.run(*words, gone=gone)
        assert done.returncode == code, done.stderr
        return re.sub(r", \d+ s\)", ", 0 s)", done.stdout if done.stdout else done.stderr)

    def devices(self, *words: str) -> list[dict[str, Any]]:
        (host,) = json.loads(self.gpu("list", "--json", *words))["hosts"]
        assert (host["host"], host["here"], host["error"]) == (HOST, True, "")
        return list(host["devices"])


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_device_is_a_line_with_model_load_and_holder(machine: Machine) -> None:
    with machine.hold("GPU-a"):
        holder = f"application_1700000000000_0042 ({ME}, 0 s)"
        assert machine.gpu("list").splitlines() == [
            f"{HOST}  gpu0  Tesla V100 | 61°C,  87 % |   9000 /  16384 MiB | {holder}",
            f"{HOST}  gpu1  Tesla V100 | 35°C,   0 % |      0 /  16384 MiB | free",
            f"{HOST}  gpu2  Tesla T4   |  ?°C,   ? % |      0 /  15360 MiB | free",
        ]
        assert machine.gpu("list", HOST) == machine.gpu("list")


def test_a_machine_without_gpus_is_supported(machine: Machine) -> None:
    if any(name.startswith("nvidia") for name in os.listdir("/dev")):
        pytest.skip("this machine has NVIDIA GPUs")
    assert machine.gpu("list", gone=True) == f"{HOST}  no GPU here\n"
    assert machine.gpu("why", "1", code=1, gone=True) == f"{HOST}: asked for 1 gcore, it has 0\n"


def test_the_original_s_map_names_holders_only(machine: Machine) -> None:
    assert json.loads(machine.gpu("list", "--original")) == {}
    with machine.hold("GPU-a", "GPU-c"):
        who = "application_1700000000000_0042"
        assert json.loads(machine.gpu("list", "--original")) == {HOST: {"gpu0": who, "gpu2": who}}


def test_json_has_the_device_its_links_its_holder_and_its_quarantine(machine: Machine) -> None:
    machine.gpu("quarantine", "gpu1", "--reason", "fan")
    with machine.hold("GPU-a"):
        first, second, third = machine.devices()
    assert (first["state"], first["user"], first["container"]) == ("held", ME, "container_1")
    assert (first["links"], first["used_mib"], first["utilization"]) == (["X", "PIX", "SYS"], 9000, 87)
    assert (second["state"], second["quarantine"]["cause"], second["quarantine"]["detail"]) == (
        "quarantined",
        "operator",
        "fan",
    )
    assert (third["state"], third["quarantine"], third["application"]) == ("free", None, "")


def test_json_has_the_operators_facts_of_a_device(machine: Machine) -> None:
    slow = replace(STUBS[1], pcie_width=8, pcie_max_width=16, clock_reasons=0x88)
    hidden = replace(STUBS[2], used=900 * MIB, errors=(("nvmlDeviceGetComputeRunningProcesses", 3),))
    with_devices(machine.directory, (STUBS[0], slow, hidden))
    first, second, third = machine.devices()
    assert (first["notes"], first["unverified"]) == ([], "")
    assert second["notes"] == [
        "PCIe has 8 of 16 lanes",
        "its clocks are lowered by the power brake: the power supply is overloaded or has failed",
    ]
    assert (third["state"], third["unverified"]) == ("free", "the driver does not list processes")
    lines = machine.gpu("list").splitlines()
    assert lines[1].endswith("| free, PCIe has 8 of 16 lanes, its clocks are lowered by the power brake")
    assert lines[2].endswith("| free, unverified (the driver does not list processes)")


def test_a_device_closed_by_an_operator_is_listed_and_not_read(machine: Machine) -> None:
    machine.gpu("quarantine", "gpu1", "--reason", "to be reset")
    first, second, _ = machine.devices()
    assert (first["used_mib"], second["used_mib"], second["temperature_c"]) == (9000, None, None)
    assert second["state"] == "quarantined"


def test_an_operator_closes_and_reopens_a_device(machine: Machine) -> None:
    assert "in quarantine until dlapp-gpu heal" in machine.gpu("quarantine", "GPU-c", "--reason", "fan")
    assert "quarantined (fan" in machine.gpu("list").splitlines()[2]
    with_devices(machine.directory, FREE)
    assert machine.gpu("why", "3", code=1) == f"{HOST}: asked for 3 gcores, 2 free: gpu2 quarantined (fan)\n"
    assert machine.gpu("heal", "2") == f"{HOST}: healed: gpu2\n"
    assert machine.gpu("heal", "2") == f"{HOST}: gpu2: was not in quarantine; earlier failures no longer count\n"
    assert machine.gpu("why", "3") == f"{HOST}: yes, gpu0, gpu1, gpu2\n"


def test_recent_xid_errors_of_a_device_are_listed(machine: Machine) -> None:
    add_xids(machine.locks, {"GPU-b": {63: 2}, "GPU-c": {31: 1}})
    lines = machine.gpu("list").splitlines()
    assert "Xid" not in lines[0]
    assert re.search(r"\| free, Xid 63 \(2 times\), last \d+ s ago$", lines[1])
    assert [device["xids"].get("31", {}).get("times") for device in machine.devices()] == [None, None, 1]


def test_why_names_the_holders_and_the_devices_of_a_request(machine: Machine) -> None:
    with_devices(machine.directory, FREE)
    with machine.hold("GPU-c"):
        assert machine.gpu("why", "2") == f"{HOST}: yes, gpu0, gpu1\n"
        assert machine.gpu("why", "3", code=1) == (
            f"{HOST}: asked for 3 gcores, 2 free: gpu2 application_1700000000000_0042 ({ME}, 0 s)\n"
        )
        assert machine.gpu("why", "9", code=1) == f"{HOST}: asked for 9 gcores, it has 3\n"
        assert json.loads(machine.gpu("why", "2", "--json"))["devices"] == ["gpu0", "gpu1"]


def test_why_does_not_call_a_device_free_that_a_request_would_not_get(machine: Machine) -> None:
    with_devices(machine.directory, [FREE[0], replace(FREE[1], pids=(1,)), FREE[2]])
    machine.gpu("drain", "gpu2")
    process = r"process 1 \(\S+\) computes on it"
    assert machine.gpu("why", "1") == f"{HOST}: yes, gpu0\n"
    output = machine.gpu("why", "2", code=1)
    assert re.fullmatch(
        rf"{HOST}: asked for 2 gcores, 1 free: gpu1 unavailable \({process}\), gpu2 quarantined \(drained\)\n", output
    )
    with machine.hold("GPU-a"):
        assert ", 0 free: gpu0 application_" in machine.gpu("why", "1", code=1)
    with_devices(machine.directory, FREE, init=18)
    assert "Driver/library version mismatch" in machine.gpu("why", "1", code=1)


@pytest.mark.parametrize("named", ["the key", "a file of Hadoop"])
def test_with_yarn_assigned_gpus_an_operator_closes_them_in_the_local_ledger(machine: Machine, named: str) -> None:
    # No ZooKeeper answers at this address: nothing is written there.
    machine.variables |= {"DLAPP_GPUID_ZOOKEEPER_ENSEMBLE": "127.0.0.1:1", "DLAPP_GPUID_ZOOKEEPER_CREDENTIALS": "none"}
    machine.variables |= (
        {"DLAPP_YARN_DIALECT": "yarn.io/gpu"}
        if named == "the key"
        else {"HADOOP_CONF_DIR": node_configuration(machine.directory)}
    )
    machine.gpu("drain", "gpu1", "--reason", "fan")
    machine.gpu("quarantine", "gpu2", "--reason", "fan")
    tasks = NodeManagerGpuLedger("http://127.0.0.1:1", machine.locks, discover=lambda: DEVICES)
    with pytest.raises(InQuarantine, match=r"gpu1 .* is quarantined \(fan\), gpu2 .* is quarantined \(fan\)"):
        tasks.acquire(LeaseRequest("application_1_0042", "container_1", "tony", 2))
    for words in (("quarantine", "gpu0"), ("heal", "gpu0"), ("drain", "gpu0")):
        refused = machine.gpu(*words, "--host", "host99", code=2)
        assert "run this on host99: YARN assigns the GPUs of this cluster (yarn.io/gpu)" in refused
    assert "run this on host99" in machine.gpu("drain", "host99", code=2)
    assert machine.gpu("heal", HOST) == f"{HOST}: healed: gpu1, gpu2\n"


def node_configuration(directory: Path) -> str:
    """Return the directory of the configuration of a node whose NodeManager assigns GPUs."""
    hadoop_dir = directory / "hadoop"
    hadoop_dir.mkdir()
    values = {"yarn.nodemanager.resource-plugins": "yarn.io/fpga, yarn.io/gpu", "fs.defaultFS": "hdfs://host01:8020"}
    entries = "".join(f"<property><name>{k}</name><value>{v}</value></property>" for k, v in values.items())
    for name in ("core-site.xml", "yarn-site.xml"):
        (hadoop_dir / name).write_text(f"<configuration>{entries}</configuration>")
    return str(hadoop_dir)


def test_gc_keeps_devices_in_use(machine: Machine) -> None:
    assert machine.gpu("gc") == f"{HOST}: nothing is leased\n"
    with machine.hold("GPU-a", "GPU-b"):
        assert machine.gpu("gc") == f"{HOST}: gpu0, gpu1 of container_1: kept, a process of it still holds it\n"
        (lease,) = json.loads(machine.gpu("gc", "--json"))["leases"]
        assert (lease["state"], lease["devices"]) == ("alive", ["gpu0", "gpu1"])


def test_gc_frees_devices_of_a_dead_holder(machine: Machine) -> None:
    machine.hold("GPU-a").close()
    assert machine.gpu("gc") == f"{HOST}: gpu0 of container_1: freed\n"
    assert machine.gpu("gc") == f"{HOST}: nothing is leased\n"


def test_the_parts_of_a_device_are_named_by_their_number_on_it(machine: Machine) -> None:
    with_devices(machine.directory, [StubDevice(mig=(Part("MIG-a"), Part("MIG-b"))), STUBS[1]])
    assert [device["label"] for device in machine.devices()] == ["gpu0:0", "gpu0:1", "gpu1"]
    machine.gpu("quarantine", "gpu0:1")
    assert [device["state"] for device in machine.devices()] == ["free", "quarantined", "free"]


def test_a_split_device_is_named_whole_by_its_number_bus_id_and_uuid(machine: Machine) -> None:
    with_devices(machine.directory, [StubDevice(uuid="GPU-s", mig=(Part("MIG-a"), Part("MIG-b"))), STUBS[1]])
    for name in ("gpu0", "0", "00000000:01:00.0", "GPU-s"):
        output = machine.gpu("quarantine", name, "gpu1")
        slices = "all slices of gpu0 (gpu0:0, gpu0:1)"
        assert output == f"{HOST}: {slices}, gpu1: in quarantine until dlapp-gpu heal gpu0 gpu1\n"
        assert [device["state"] for device in machine.devices()] == ["quarantined"] * 3
        assert machine.gpu("heal", name) == f"{HOST}: healed: gpu0:0, gpu0:1\n"
        assert [device["state"] for device in machine.devices()] == ["free", "free", "quarantined"]
    assert "all slices of gpu0" in machine.gpu("drain", "gpu0").splitlines()[0]
    assert [device["state"] for device in machine.devices()] == ["quarantined"] * 3
    assert json.loads(machine.gpu("heal", "gpu0", "gpu1", "--json"))["devices"] == ["gpu0:0", "gpu0:1", "gpu1"]


def test_a_device_in_mig_mode_without_instances_and_a_lost_one_are_listed_with_the_reason(machine: Machine) -> None:
    empty = StubDevice(uuid="GPU-s", name="NVIDIA A100", mig=())
    with_devices(machine.directory, [StubDevice(uuid="GPU-a"), replace(STUBS[1], error=15), empty, STUBS[2]])
    assert [(device["label"], device["state"]) for device in machine.devices()] == [
        ("gpu0", "free"),
        ("gpu1", "unavailable"),
        ("gpu2", "unavailable"),
        ("gpu3", "free"),
    ]
    assert [device["uuid"] for device in machine.devices()] == ["GPU-a", "", "GPU-s", "GPU-c"]
    lines = machine.gpu("list").splitlines()
    assert lines[1].endswith("| unavailable (GPU is lost)")
    assert lines[2].endswith("| unavailable (in MIG mode, without instances)")
    assert "NVIDIA A100" in lines[2]
    lost = f"{HOST}: gpu1 is not leased anyway: GPU is lost; a restart of the host may repair it"
    empty_text = f"{HOST}: {{}} is not leased anyway: in MIG mode, without instances; nvidia-smi mig -i 2 -cgi PROFILE"
    for words in (("quarantine", "gpu1"), ("drain", "1"), ("heal", "gpu1", "gpu0")):
        assert lost.replace("gpu1", words[1]) in machine.gpu(*words, code=3)
    for words in (("quarantine", "GPU-s"), ("drain", "gpu2"), ("drain", "gpu2", "gpu0")):
        assert empty_text.format(words[1]) in machine.gpu(*words, code=3)
    assert machine.devices()[0]["state"] == "free"


def test_the_list_opens_no_device_that_an_operator_closed(machine: Machine) -> None:
    machine.gpu("quarantine", "gpu1")
    record_calls(machine.directory)
    machine.gpu("list")
    sessions: list[set[int]] = []  # each after nvmlInit: discovery, readings, others
    for _, function, place in calls(machine.directory):
        if function.startswith("nvmlInit"):
            sessions.append(set())
        elif place >= 0:
            sessions[-1].add(place)
    assert sessions == [{0, 1, 2}, {0, 2}, set()]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"pids": (os.getpid(), 1)}, rf"process {os.getpid()} \(.+\), 1 \(.+\) computes on it"),
        ({"used": 9000 * MIB}, r"9000 MiB are in use by no known process"),
        ({"mode": 2}, r"its compute mode is prohibited"),
        ({"ecc": 3, "recovery": None}, r"3 uncorrectable ECC errors"),
    ],
    ids=["a process without a lease", "memory", "mode", "errors"],
)
def test_an_unleased_unusable_device_is_not_called_free(machine: Machine, change: dict[str, Any], problem: str) -> None:
    with machine.hold("GPU-a"):
        with_devices(machine.directory, [*STUBS[:2], replace(STUBS[2], **change)])
        assert [device["state"] for device in machine.devices()] == ["held", "free", "unavailable"]
        assert re.fullmatch(problem, machine.devices()[2]["problem"])
        assert re.search(rf" \| unavailable \({problem}\)$", machine.gpu("list").rstrip())


def test_a_lost_device_is_shown_with_its_holder(machine: Machine) -> None:
    with machine.hold("GPU-a"):
        with_devices(machine.directory, [replace(STUBS[0], error=15), *STUBS[1:]])
        first = machine.gpu("list").splitlines()[-1]
        assert "application_1700000000000_0042" in first
        assert first.endswith("is not there now")


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("list", "host99"), 3, f"knows {HOST} only, not host99"),
        (("quarantine", "gpu9"), 3, "there is no GPU 'gpu9'; it has gpu0, gpu1, gpu2"),
        (("heal", "gpu9"), 3, "there is no GPU 'gpu9'"),
        (("quarantine",), 2, "quarantine takes GPU...: dlapp-gpu quarantine GPU..."),
        (("reset", "gpu0", "gpu1"), 2, "reset takes GPU, one at a time: dlapp-gpu reset GPU"),
        (("quarantine", "gpu0", "gpu9"), 3, "there is no GPU 'gpu9'"),
        (("drain", "gpu0", "host99"), 3, "there is no GPU 'host99'; it has gpu0, gpu1, gpu2"),
        (("drain", "--wait", "--timeout", "soon"), 2, "--timeout 'soon' is not a duration"),
        (("drain", "--wait", "--timeout", "0"), 2, "--timeout is 0 s, the minimum is 1 s"),
        (("list", "host99", "--original"), 3, f"knows {HOST} only, not host99"),
        (("list", "host99", "--json"), 3, f"knows {HOST} only, not host99"),
        (("quarantin", "gpu0"), 2, "'quarantin' is no action, the nearest is quarantine"),
        (("why",), 2, "why takes N [KIND]: dlapp-gpu why N [KIND]"),
        (("why", "1", "half"), 2, "KIND: 'half' is not whole, mig or mig:PROFILE"),
        (("why", "2", "mig"), 2, "asked for 2 slices, the maximum is 1: a program sees one slice only"),
        (("why", "1", "mig"), 1, "asked for 1 MIG slice, it has 3 whole GPUs"),
        (("why", "many"), 2, "why takes a number of GPUs, not 'many'"),
        (("why", "0"), 2, "asked for 0 GPUs, the minimum is 1"),
        (("why", "--", "-1"), 2, "asked for -1 GPUs, the minimum is 1"),
        (("why", "1000000000"), 1, "asked for 1000000000 gcores, it has 3"),
        (("gc", "host99"), 2, f"the GPU ledger is of this machine, {HOST}, not of host99"),
        (("gc", "--timeout", "9"), 2, "--timeout is for gc HOST"),
        (("drain", "gpu0", "--timeout", "9"), 2, "--timeout needs --wait"),
        (("list", "--host", "vm"), 2, "list takes the host without --host: dlapp-gpu list vm"),
        (("release", "gpu0"), 2, "release is for the ledger of a cluster"),
        (("forget", "host99"), 2, "forget is for the ledger of a cluster"),
        (("heal", "gpu0", "--original"), 2, "--original is not for heal"),
        (("xxx",), 2, "'xxx' is no action, known are list, gc, quarantine,"),
        (("quarantine", "gpu0", "--host", "host99"), 3, f"knows {HOST} only, not host99"),
    ],
)
def test_bad_input_is_one_clear_line(machine: Machine, words: tuple[str, ...], code: int, message: str) -> None:
    done = machine.run(*words)
    text = done.stdout + done.stderr
    assert done.returncode == code
    assert message in text
    assert len(text.splitlines()) == 1


def test_a_broken_driver_is_named(machine: Machine) -> None:
    with_devices(machine.directory, STUBS, init=18)
    assert "Error: NVML: Driver/library version mismatch: " in machine.gpu("why", "1", code=1)
    assert machine.gpu("list", code=1).startswith("NVML: Driver/library version mismatch: ")


@pytest.mark.parametrize("init", [18, 999, HANGS])
def test_holders_and_quarantines_are_shown_also_if_the_driver_does_not_work(machine: Machine, init: int) -> None:
    machine.gpu("quarantine", "gpu1", "--reason", "fan")
    with machine.hold("GPU-a"):
        with_devices(machine.directory, STUBS, init=init)
        lines = machine.gpu("list", code=1).splitlines()
        assert len(lines) == 2
        unread = r" +\|  \?°C,   \? % \|      \? /      \? MiB \| "
        assert re.fullmatch(rf"{HOST}  gpu0{unread}application_1700000000000_0042 \({ME}, \d+ s\)", lines[0])
        assert re.fullmatch(rf"{HOST}  GPU-b{unread}quarantined \(fan, by {ME}, for \d+ s\)", lines[1])
        (host,) = json.loads(machine.gpu("list", "--json", code=1))["hosts"]
        assert host["error"].startswith("NVML: no answer in 4 s: the driver hangs" if init == HANGS else "NVML: ")


def scrape(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=120) as answer:
        return str(answer.read().decode())


def test_an_exporter_answers_while_the_driver_hangs_and_recovers_with_it(machine: Machine, tmp_path: Path) -> None:
    log = tmp_path / "exporter.log"
    with machine.hold("GPU-a"), open(log, "wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "dlapp.tools", "gpu", "exporter", "--listen", "127.0.0.1:0"],
            env={**os.environ, **machine.variables, "DLAPP_GPUID_LOCK_DIR": machine.locks},
            stdout=file,
            stderr=subprocess.STDOUT,
        )
        try:
            wait_until(lambda: "/metrics" in log.read_text())
            port = int(re.findall(r":(\d+)/metrics", log.read_text())[0])
            up, down = f'dlapp_node_up{{host="{HOST}"}} 1.0', f'dlapp_node_up{{host="{HOST}"}} 0.0'
            held = f'dlapp_node_gpu_state{{gpu="0",host="{HOST}",mig="",state="held",uuid="GPU-a"}} 1.0'
            first = scrape(port)
            assert up in first
            assert held in first
            with_devices(machine.directory, [replace(STUBS[0], hang="nvmlDevice"), *STUBS[1:]])
            for _ in range(2):
                hanging = scrape(port)
                assert down in hanging
                assert held in hanging
            assert "the driver hangs" in log.read_text()
            with_devices(machine.directory, STUBS)
            wait_until(lambda: up in scrape(port))
        finally:
            process.terminate()
            process.wait(120)


# ---- lines ----


def view(**changes: Any) -> dict[str, Any]:
    quiet = {
        "application": "",
        "container": "",
        "user": "",
        "since_ms": 0,
        "doubt": "",
        "quarantine": None,
        "problem": "",
        "unverified": "",
        "notes": [],
    }
    load = {"utilization": None, "used_mib": None, "temperature_c": None}
    return {
        "label": "gpu0",
        "name": "T4",
        "memory_mib": 1,
        "state": "free",
        "present": True,
        **quiet,
        **load,
        **changes,
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "free"),
        ({"present": False, "state": "absent"}, "is not there now"),
        ({"state": "held"}, "an unknown holder"),
        ({"unverified": "no list of processes"}, "free, unverified (no list of processes)"),
        ({"unverified": "no list of processes", "state": "held", "application": "a", "container": "c"}, "a"),
        ({"state": "unavailable", "problem": "it is hot"}, "unavailable (it is hot)"),
        (
            {"notes": ["PCIe has 8 of 16 lanes", "lowered clocks: heat", "nvmlDeviceGetX: Unknown Error"]},
            "free, PCIe has 8 of 16 lanes, lowered clocks",
        ),
        ({"state": "held", "application": "a", "user": "tony", "since_ms": 1}, "a (tony, 2 h, reserved)"),
        ({"state": "held", "application": "a", "container": "c", "doubt": "dockerd is down"}, "a, dockerd is down"),
        (
            {"quarantine": {"cause": "ecc", "since_ms": 7_200_001 - 90_000, "count": 3, "probe_at_ms": 7_300_001}},
            "quarantined (ecc, for 1 min, 3 times so far, inspected again in 1 min)",
        ),
        ({"quarantine": {"cause": "hot", "probe_at_ms": 1}}, "quarantined (hot, inspected again at the next request)"),
        ({"quarantine": {"cause": "operator", "detail": "fan", "by": "eve"}}, "quarantined (fan, by eve)"),
    ],
)
def test_a_line_describes_the_state_of_a_device(changes: dict[str, Any], message: str) -> None:
    host = {"host": "h", "here": False, "error": "", "forgotten_ms": 0, "devices": [view(**changes)]}
    assert gpu_text.host_lines(host, 7_200_001) == [f"h  gpu0  T4 |      1 MiB | {message}"]
