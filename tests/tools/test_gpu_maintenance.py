"""dlapp-gpu health, drain and reset, on a machine whose GPUs a stub of NVML shows."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dlapp.client.machine.drain import latest_ends
from dlapp.client.machine.node_health import missing_gpus
from dlapp.client.machine.reset import device_users, has_switches, reset_gpu, touched_devices
from dlapp.config import load_config
from dlapp.errors import Denied, NotFound
from dlapp.gpuid.devices import Device
from dlapp.gpuid.rules import LeaseRequest
from dlapp.gpuid.stores.machine import MachineLedger
from dlapp.system.owners import user_name
from dlapp.tools.machine.gpu import main as gpu
from dlapp.values.ids import ApplicationId
from tests.services.containers.nvml_stub import NVSWITCH, Part, StubDevice, with_devices

HOST = os.uname().nodename
ME = user_name(os.geteuid())
HELD = "application_1700000000000_0042"
STUBS = tuple(StubDevice(uuid=f"GPU-{name}") for name in "abc")
DEVICES = tuple(Device(one.uuid, place, place) for place, one in enumerate(STUBS))
# What root must be able to do, and nobody else can.
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root resets a GPU")

SMI = """#!/bin/sh
echo "$*" >>{place}/resets
if [ -e {place}/refused ]; then
    echo "The following GPUs could not be reset:"
    echo "  GPU 00000000:02:00.0: In use by another client"
    exit 3
fi
[ ! -e {place}/repaired/cards ] || cp {place}/repaired/cards {place}/.new
[ ! -e {place}/.new ] || mv {place}/.new {place}/cards
echo "GPU was successfully reset."
"""


class Machine:
    """A machine with three GPUs, a ledger, and an nvidia-smi that resets them."""

    def __init__(self, place: Path) -> None:
        self.place, self.locks = place, str(place / "locks")
        self.home, programs = place / "home", place / "bin"
        self.home.mkdir()
        programs.mkdir()
        (programs / "nvidia-smi").write_text(SMI.format(place=place))
        (programs / "nvidia-smi").chmod(0o755)
        self.path = f"{programs}{os.pathsep}{os.environ['PATH']}"
        self.variables = with_devices(place, STUBS)
        self.ledger = MachineLedger(self.locks, discover=lambda: DEVICES)

    def has(self, *stubs: StubDevice, init: int = 0) -> None:
        with_devices(self.place, stubs, init=init)

    def repairs(self, *stubs: StubDevice) -> None:
        """Let a reset change the GPUs to these."""
        (self.place / "repaired").mkdir()
        with_devices(self.place / "repaired", stubs)

    @property
    def resets(self) -> list[str]:
        return (self.place / "resets").read_text().splitlines() if (self.place / "resets").exists() else []

    def hold(self, *uuids: str) -> Any:
        ask = LeaseRequest(HELD, "container_1", "tony", len(uuids), uuids)
        return self.ledger.acquire(ask)

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "dlapp.tools", "gpu", *words],
            env={
                **self.variables,
                "PATH": self.path,
                "HOME": str(self.home),
                "DLAPP_GPUID_LOCK_DIR": self.locks,
                "PYTHONUTF8": "1",
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def gpu(self, *words: str, code: int = 0) -> list[str]:
        """The lines of standard output of dlapp-gpu, or where it prints none those of standard error."""
        with self.start(*words) as process:
            out, err = process.communicate()
        assert process.returncode == code, (out, err)
        return (out or err).splitlines()

    def error(self, *words: str) -> str:
        """The last line of standard error."""
        with self.start(*words) as process:
            return process.communicate()[1].splitlines()[-1]

    def states(self) -> list[str]:
        (host,) = json.loads("\n".join(self.gpu("list", "--json")))["hosts"]
        return [device["state"] for device in host["devices"]]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


# ---- health ----


def test_a_healthy_machine_is_ok_for_a_node_manager(machine: Machine) -> None:
    assert machine.gpu("health") == ["ok"]


def test_a_faulty_unused_gpu_is_an_error_for_a_nodemanager(machine: Machine) -> None:
    machine.has(STUBS[0], replace(STUBS[1], ecc=2, recovery=None), STUBS[2])
    assert machine.gpu("health") == [f"ERROR {HOST}: gpu1 (GPU-b): 2 uncorrectable ECC errors"]
    answer = json.loads("\n".join(machine.gpu("health", "--json")))
    assert (answer["problems"], answer["users"]) == (["gpu1 (GPU-b): 2 uncorrectable ECC errors"], [])


def test_a_machine_with_a_running_program_is_no_error_because_yarn_would_end_the_program(machine: Machine) -> None:
    machine.has(STUBS[0], replace(STUBS[1], ecc=2, recovery=None), STUBS[2])
    with machine.hold("GPU-a"):
        (line,) = machine.gpu("health")
    assert line.startswith(f"not reported yet, because YARN would end what runs: gpu0 {HELD} ({ME}): {HOST}: gpu1")
    machine.has(STUBS[0], replace(STUBS[1], ecc=2, recovery=None), replace(STUBS[2], pids=(os.getpid(),)))
    (line,) = machine.gpu("health")
    assert line.startswith(f"not reported yet, because YARN would end what runs: gpu2 process {os.getpid()} (")


def test_an_operators_quarantine_is_an_error_until_it_is_healed(machine: Machine) -> None:
    machine.gpu("quarantine", "gpu2", "--reason", "fan")
    assert machine.gpu("health") == [f"ERROR {HOST}: gpu2 (GPU-c) is quarantined (fan)"]
    machine.gpu("heal", "gpu2")
    assert machine.gpu("health") == ["ok"]


def test_a_gpu_whose_inspection_is_due_is_judged_by_its_readings(machine: Machine) -> None:
    machine.ledger.quarantine("GPU-b", cause="xid", detail="Xid 119")
    assert machine.gpu("health") == [f"ERROR {HOST}: gpu1 (GPU-b) is quarantined (Xid 119)"]
    (record,) = Path(machine.locks).glob("health-*")
    page = json.loads(record.read_text())
    page["quarantine"]["probe_at_ms"] = 1
    record.write_text(json.dumps(page))
    assert machine.gpu("health") == ["ok"]


def test_a_process_of_another_framework_and_heat_are_no_errors(machine: Machine) -> None:
    machine.has(replace(STUBS[0], pids=(os.getpid(),)), replace(STUBS[1], temperature=99), STUBS[2])
    assert machine.gpu("health") == ["ok"]


def test_a_driver_that_does_not_work_is_an_error(machine: Machine) -> None:
    machine.has(*STUBS, init=18)
    (line,) = machine.gpu("health")
    assert line.startswith("ERROR ")
    assert "NVML" in line


def test_a_users_configuration_does_not_matter_and_no_failure_has_another_exit_code(machine: Machine) -> None:
    (machine.home / ".config" / "dlapp").mkdir(parents=True)
    (machine.home / ".config" / "dlapp" / "config.yaml").write_text("no: such: key\n")
    assert machine.gpu("health") == ["ok"]
    Path(machine.locks).mkdir()
    Path(machine.locks).chmod(0o777)
    (line,) = machine.gpu("health")
    assert line.startswith(f"unknown: {HOST}: gpuid.lock_dir: ")


def test_a_gpu_in_mig_mode_without_instances_is_not_missing(machine: Machine, tmp_path: Path) -> None:
    machine.has(STUBS[0], replace(STUBS[1], mig=()), replace(STUBS[2], error=15))
    for place in (1, 2, 3):
        (tmp_path / "driver" / f"0000:0{place}:00.0").mkdir(parents=True)
    program = (
        "import sys; from dlapp.client.machine.node_health import machine_health; "
        "from dlapp.config import load_config; print(*machine_health(load_config(), sys.argv[1]).problems, sep='|')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "driver")],
        env={**os.environ, **machine.variables, "DLAPP_GPUID_LOCK_DIR": machine.locks},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "0000:03:00.0 is not found by NVML\n", done.stderr


def test_a_gpu_that_only_the_driver_still_lists_is_missing(tmp_path: Path) -> None:
    for name, text in (("0000:3b:00.0", "No"), ("0000:af:00.0", "No"), ("0000:d8:00.0", "Yes")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "information").write_text(f"Model: \t\t NVIDIA A10\nGPU Excluded:\t {text}\n")
    shown = Device("GPU-a", 0, 0, pci_bus_id="00000000:3B:00.0")
    assert missing_gpus([shown], str(tmp_path)) == ["0000:af:00.0"]
    assert missing_gpus([Device("GPU-a", 0, 0)], str(tmp_path)) == []
    assert missing_gpus([shown], str(tmp_path / "none")) == []


# ---- drain ----


def test_a_drained_gpu_gets_no_new_program_and_its_holder_is_named(machine: Machine) -> None:
    with machine.hold("GPU-b"):
        first, second = machine.gpu("drain", "gpu1", code=1)
        assert first == f"{HOST}: gpu1: no new program gets it until dlapp-gpu heal gpu1"
        assert second.startswith(f"{HOST}: gpu1 {HELD} ({ME}, ")
        assert second.endswith("), no end is known")
    assert machine.gpu("drain", "gpu1") == [first, f"{HOST}: nobody uses it"]
    assert machine.states() == ["free", "quarantined", "free"]


def test_a_gpu_that_dlapp_has_closed_is_drained_also_while_the_driver_does_not_work(machine: Machine) -> None:
    machine.ledger.quarantine("GPU-b", cause="ecc", detail="2 uncorrectable ECC errors")
    machine.has(*STUBS, init=18)
    (first, *_) = machine.gpu("drain", "GPU-b", code=1)
    assert "no new program gets it until dlapp-gpu heal" in first
    machine.has(*STUBS)
    found = {
        device.uuid: device.quarantine.by for device in machine.ledger.record().devices if device.quarantine is not None
    }
    assert found == {"GPU-b": ME}


def test_a_gpu_with_unknown_processes_is_not_called_unused(machine: Machine) -> None:
    machine.gpu("quarantine", "gpu1")
    machine.has(*STUBS, init=18)
    broken = "NVML: Driver/library version mismatch"
    unknown = f"{HOST}: no lease is left; processes without a lease are not known: {broken}"
    assert machine.gpu("drain", "GPU-b", code=1)[1].startswith(unknown)
    assert json.loads("\n".join(machine.gpu("drain", "GPU-b", "--json", code=1)))["error"].startswith(broken)
    assert unknown in machine.error("drain", "GPU-b", "--wait", "--timeout", "1")
    with machine.start("drain", "GPU-b", "--wait") as process:
        assert process.stdout is not None
        assert [unknown in process.stdout.readline() for _ in range(2)] == [False, True]
        machine.has(*STUBS)
        assert process.stdout.read() == f"{HOST}: nobody uses it\n"
    assert process.returncode == 0


def test_a_gpu_that_was_split_after_a_failure_is_drained_with_its_slices(machine: Machine) -> None:
    machine.ledger.quarantine("GPU-b", cause="ecc", detail="2 uncorrectable ECC errors")
    machine.has(STUBS[0], replace(STUBS[1], mig=(Part("MIG-x"), Part("MIG-y"))), STUBS[2])
    slices = [Device(f"MIG-{name}", 1, 1, mig=number) for number, name in enumerate("xy")]
    machine.ledger = MachineLedger(machine.locks, discover=lambda: (DEVICES[0], *slices, DEVICES[2]))
    with machine.hold("MIG-x"):
        first, second = machine.gpu("drain", "gpu1", code=1)
    slices_text = "all slices of gpu1 (gpu1:0, gpu1:1)"
    assert first == f"{HOST}: {slices_text}: no new program gets them until dlapp-gpu heal gpu1"
    assert second.startswith(f"{HOST}: gpu1:0 {HELD} (")


def test_a_second_quarantine_changes_the_reason_only_if_it_has_one(machine: Machine) -> None:
    for words in (("--reason", "RMA 17"), ()):
        machine.gpu("quarantine", "gpu2", *words)
        assert "quarantined (RMA 17, by " in machine.gpu("list")[2]
    machine.gpu("quarantine", "gpu2", "--reason", "RMA 18")
    assert "quarantined (RMA 18, by " in machine.gpu("list")[2]


def test_a_drain_without_a_name_is_of_this_host_and_heal_ends_it(machine: Machine) -> None:
    machine.gpu("quarantine", "gpu0", "--reason", "fan")
    first = f"{HOST}: gpu0, gpu1, gpu2: no new program gets them until dlapp-gpu heal {HOST}"
    lines = [first, f"{HOST}: nobody uses it"]
    assert machine.gpu("drain") == machine.gpu("drain", HOST) == lines
    assert "quarantined (fan" in machine.gpu("list")[0], "the reason of an operator stays"
    assert machine.gpu("heal", HOST) == [f"{HOST}: healed: gpu0, gpu1, gpu2"]
    assert machine.gpu("heal", HOST) == [f"{HOST}: no GPU was in quarantine"]
    assert machine.states() == ["free"] * 3


def test_drain_waits_until_the_gpu_is_unused(machine: Machine) -> None:
    with machine.hold("GPU-a") as lease:
        assert machine.gpu("drain", "gpu0", "--wait", "--timeout", "1", code=6)[-1].startswith(f"{HOST}: gpu0 {HELD}")
        with machine.start("drain", "gpu0", "--wait") as process:
            assert process.stdout is not None
            assert [HELD in process.stdout.readline() for _ in range(2)] == [False, True]
            lease.release()
            assert process.stdout.read() == f"{HOST}: nobody uses it\n"
    assert process.returncode == 0


def test_drain_names_the_processes_that_compute_without_a_lease(machine: Machine) -> None:
    me = os.getpid()
    machine.has(replace(STUBS[0], pids=(me,)), replace(STUBS[1], mps=(me,)), replace(STUBS[2], pids=(me,)))
    with machine.hold("GPU-c"):
        _, *left = machine.gpu("drain", code=1)
    who = re.escape(f"{HOST}: ") + r"gpu{} process " + rf"{me} \([^ ,]+, {ME}\), without a lease"
    assert left[0].startswith(f"{HOST}: gpu2 {HELD} ({ME}, "), "the programs of a holder are not named"
    assert [re.fullmatch(who.format(place), line) is not None for place, line in enumerate(left[1:])] == [True] * 2
    answer = json.loads("\n".join(machine.gpu("drain", "gpu1", "--json", code=1)))
    assert [(item["pid"], item["user"], item["devices"]) for item in answer["left"]] == [(me, ME, ["gpu1"])]
    assert f"still in use after 1 s by process {me} (" in machine.error("drain", "gpu1", "--wait", "--timeout", "1s")
    machine.has(STUBS[0], replace(STUBS[1], errors=(("nvmlDeviceGetComputeRunningProcesses", 3),)), STUBS[2])
    unknown = "gpu1: processes without a lease are not known: the driver does not list processes"
    assert machine.error("drain", "gpu1") == unknown
    machine.has(STUBS[0], replace(STUBS[1], errors=(("nvmlDeviceGetHandleByPciBusId", 999),)), STUBS[2])
    unread = "gpu1: processes without a lease are not known: Unknown Error"
    assert machine.error("drain", "gpu1") == unread
    machine.has(*STUBS)
    assert machine.gpu("drain", "gpu1")[1:] == [f"{HOST}: nobody uses it"]


def test_several_gpus_are_drained_at_once_and_none_if_a_name_is_wrong(machine: Machine) -> None:
    assert "there is no GPU 'gpu7'" in machine.gpu("drain", "gpu0", "gpu7", code=3)[0]
    assert machine.states() == ["free"] * 3
    assert machine.gpu("drain", "gpu2", "GPU-a")[0] == (
        f"{HOST}: gpu0, gpu2: no new program gets them until dlapp-gpu heal gpu0 gpu2"
    )
    assert machine.states() == ["quarantined", "free", "quarantined"]
    assert machine.gpu("heal", "gpu0", "gpu1", "gpu2") == [
        f"{HOST}: healed: gpu0, gpu2",
        f"{HOST}: gpu1: was not in quarantine; earlier failures no longer count",
    ]


@pytest.mark.parametrize("action", ["quarantine", "drain"])
def test_a_user_other_than_root_is_informed_of_the_scope_of_a_quarantine(
    machine: Machine, action: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from dlapp.client.machine.gpu_ledger import GpuLedger

    monkeypatch.setenv("DLAPP_GPUID_LOCK_DIR", machine.locks)
    device = {
        "label": "gpu0",
        "uuid": "GPU-a",
        "mig": -1,
        "pci_bus_id": "",
        "state": "free",
        "quarantine": None,
        "present": True,
    }
    monkeypatch.setattr(GpuLedger, "hosts", lambda *_, **__: [{"error": "", "devices": [device]}])
    monkeypatch.setattr(GpuLedger, "quarantine", lambda *_, **__: None)
    monkeypatch.setattr(GpuLedger, "read", lambda *_: {})
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert gpu.main([action, "gpu0"], standalone_mode=False) == 0
    assert f"only your own applications: root's {action} binds all users of {HOST}" in capsys.readouterr().err


def test_an_unknown_name_is_refused(machine: Machine) -> None:
    for action in ("drain", "heal"):
        no_gpu = f"Error: {HOST}: there is no GPU '{{}}'; it has gpu0, gpu1, gpu2"
        assert machine.gpu(action, "gpu7", code=3) == [no_gpu.format("gpu7")]
        assert machine.gpu(action, "hots", code=3) == [f"{no_gpu.format('hots')}; nor is it a host of the GPU ledger"]
    assert machine.gpu("quarantine", "hots", code=3) == [no_gpu.format("hots")]
    assert machine.gpu("quarantine", HOST, code=3) == [
        f"Error: {HOST} is a host: dlapp-gpu drain {HOST} stops leasing all its GPUs"
    ]
    assert machine.states() == ["free"] * 3


class FakeClient:
    """A client that knows two applications, one with a time limit."""

    def __init__(self, _: object) -> None: ...

    def __enter__(self) -> FakeClient:
        return self

    def __exit__(self, *_: object) -> None: ...

    def submission(self, application: ApplicationId) -> object:
        if application.number > 2:
            raise NotFound("no such application")
        limit_s = 3600.0 if application.number == 1 else None
        return SimpleNamespace(spec=SimpleNamespace(max_runtime_s=limit_s, kill_grace_s=60.0))

    def status(self, _: ApplicationId) -> object:
        return SimpleNamespace(started_ms=1_000)


def test_the_end_of_a_holder_is_estimated_from_its_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dlapp.client.Client", FakeClient)
    ends_ms = latest_ends(load_config())
    known = [ends_ms(f"application_1700000000000_000{number}") for number in (1, 2, 3)]
    assert known == [3_661_000, None, None]
    assert ends_ms("dlapp-gpu reset") is None


# ---- reset ----


def view(index: int, links: str = "", present: bool = True) -> dict[str, Any]:
    return {"uuid": f"GPU-{index}", "index": index, "links": links.split(), "present": present}


def test_a_reset_touches_the_gpus_at_the_other_ends_of_nvlinks() -> None:
    pairs = [view(0, "X NV4 SYS SYS"), view(1, "NV4 X SYS SYS"), view(2, "SYS SYS X NV2"), view(3, "SYS SYS NV2 X")]
    assert [device["index"] for device in touched_devices(pairs[2], pairs, False)] == [2, 3]
    assert [device["index"] for device in touched_devices(pairs[2], pairs, True)] == [0, 1, 2, 3], "NVSwitches"
    ring = [view(0, "X NV1 SYS"), view(1, "NV1 X NV1"), view(2, "SYS NV1 X")]
    assert [device["index"] for device in touched_devices(ring[0], ring, False)] == [0, 1, 2]
    plain = [view(0, "X PIX"), view(1, "PIX X")]
    assert [device["index"] for device in touched_devices(plain[1], plain, False)] == [1]


def test_a_lost_gpu_may_have_had_links_to_all_if_any_has_links() -> None:
    linked = [view(0, "X NV4"), view(1, "NV4 X"), view(2, present=False)]
    assert [device["index"] for device in touched_devices(linked[2], linked, False)] == [0, 1, 2]
    plain = [view(0, "X PIX"), view(1, "PIX X"), view(2, present=False)]
    assert [device["index"] for device in touched_devices(plain[2], plain, False)] == [2]


def test_switches_are_devices_of_the_driver(tmp_path: Path) -> None:
    (tmp_path / "nvidia-nvswitchctl").touch()
    assert not has_switches(str(tmp_path))
    (tmp_path / "nvidia-nvswitch0").touch()
    assert has_switches(str(tmp_path))


def test_processes_that_have_a_gpu_open_are_found_and_named(tmp_path: Path) -> None:
    for pid, program, opened in ((7, "nvidia-persiste", "nvidia1"), (8, "x\x1b[2J", "nvidia3"), (9, "sh", "nvidiactl")):
        (tmp_path / str(pid) / "fd").mkdir(parents=True)
        (tmp_path / str(pid) / "fd" / "3").symlink_to(f"/dev/{opened}")
        (tmp_path / str(pid) / "comm").write_text(f"{program}\n")
    (tmp_path / "self").mkdir()
    assert device_users({1}, str(tmp_path)) == {7: f"nvidia-persiste, {ME}"}
    assert device_users({-1}, str(tmp_path)) == {7: f"nvidia-persiste, {ME}", 8: f"x?[2J, {ME}"}
    assert device_users({0}, str(tmp_path)) == {}


def test_only_root_resets_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(Denied, match="a reset of a GPU needs root"):
        reset_gpu(SimpleNamespace(), load_config(), "gpu0", by="ann")  # type: ignore[arg-type]


@needs_root
def test_a_reset_gpu_that_is_healthy_is_leased_again(machine: Machine) -> None:
    machine.has(STUBS[0], replace(STUBS[1], ecc=2, recovery=None), STUBS[2])
    machine.repairs(*STUBS)
    assert machine.gpu("drain", "gpu1")[1] == f"{HOST}: nobody uses it"
    assert machine.gpu("reset", "gpu1") == [f"{HOST}: reset: gpu1", f"{HOST}: healthy, and leased again: gpu1"]
    assert machine.resets == ["--gpu-reset -i 00000000:02:00.0"]
    assert machine.states() == ["free"] * 3
    assert machine.ledger.holders() == {}


@needs_root
def test_a_gpu_that_is_not_healthy_after_its_reset_stays_in_quarantine(machine: Machine) -> None:
    machine.has(STUBS[0], replace(STUBS[1], recovery=2), STUBS[2])
    assert machine.gpu("reset", "gpu1", code=1) == [
        f"{HOST}: reset: gpu1",
        f"{HOST}: gpu1 stays in quarantine: the driver asks for a reboot",
    ]
    assert machine.states() == ["free", "quarantined", "free"]
    assert "quarantined (dlapp-gpu reset; found: the driver asks for a reboot, by " in machine.gpu("list")[1]


@needs_root
def test_a_drained_gpu_keeps_the_findings_of_dlapp_and_of_its_reset(machine: Machine) -> None:
    machine.ledger.quarantine("GPU-b", cause="ecc", detail="2 uncorrectable ECC errors")
    machine.gpu("drain", "gpu1", "--reason", "RMA 17")
    assert "quarantined (RMA 17; found: 2 uncorrectable ECC errors, by " in machine.gpu("list")[1]
    machine.gpu("quarantine", "gpu1", "--reason", "RMA 18")
    assert "quarantined (RMA 18; found: 2 uncorrectable ECC errors, by " in machine.gpu("list")[1]
    machine.has(STUBS[0], replace(STUBS[1], recovery=2), STUBS[2])
    machine.gpu("reset", "gpu1", code=1)
    assert "quarantined (RMA 18; found: the driver asks for a reboot, by " in machine.gpu("list")[1]
    machine.has(*STUBS)
    machine.gpu("reset", "gpu1")
    assert machine.states() == ["free"] * 3


@needs_root
def test_a_reset_is_refused_while_a_lease_holds_a_gpu_that_it_touches(machine: Machine) -> None:
    nvlinked = [replace(device, nvlinks=(NVSWITCH, NVSWITCH)) for device in STUBS]
    machine.has(*nvlinked)
    with machine.hold("GPU-c"):
        assert machine.gpu("reset", "gpu0", code=4) == [
            f"Error: {HOST}: gpu0 is not reset, and the same reset touches gpu1, gpu2: {HELD} ({ME}) holds gpu2 "
            "(dlapp-gpu drain gpu2 shows until when)"
        ]
    assert (machine.resets, machine.states()) == ([], ["free"] * 3)
    machine.gpu("quarantine", "gpu2", "--reason", "fan")
    machine.gpu("reset", "gpu0")
    assert machine.resets == ["--gpu-reset -i 00000000:01:00.0,00000000:02:00.0,00000000:03:00.0"]
    assert machine.states() == ["free", "free", "quarantined"], "the quarantine of an operator stays"


@needs_root
def test_a_reset_is_refused_while_a_process_uses_the_gpu(machine: Machine) -> None:
    machine.has(STUBS[0], replace(STUBS[1], graphics=(os.getpid(),)), STUBS[2])
    (line,) = [text for text in machine.gpu("reset", "gpu1", code=4) if text.startswith("Error")]
    assert f"gpu1 is not reset: in use by process {os.getpid()} (" in line
    assert line.endswith("end them first, also monitors and daemons")
    assert (machine.resets, machine.states()) == ([], ["free"] * 3)
    assert machine.ledger.holders() == {}


@needs_root
def test_a_refused_reset_does_not_change_healthy_gpus(machine: Machine) -> None:
    (machine.place / "refused").touch()
    (line,) = machine.gpu("reset", "gpu1", code=1)[:1]
    assert line.startswith(f"{HOST}: not reset: gpu1: nvidia-smi ended with exit code 3: The following GPUs could not")
    assert machine.states() == ["free"] * 3


@needs_root
def test_a_reset_that_the_driver_refuses_leaves_the_quarantine_that_was_there(machine: Machine) -> None:
    machine.ledger.quarantine("GPU-b", cause="needs-reset", detail="Xid 119", until="needs-reset")
    (machine.place / "refused").touch()
    machine.gpu("reset", "gpu1", code=1)
    found = {
        device.uuid: device.quarantine for device in machine.ledger.record().devices if device.quarantine is not None
    }
    assert {uuid: (one.cause, one.detail, one.by) for uuid, one in found.items()} == {
        "GPU-b": ("needs-reset", "Xid 119", "")
    }
    assert found["GPU-b"].boot_id != "", "a reboot ends it"


@needs_root
def test_split_gpus_and_unknown_ones_are_not_reset(machine: Machine) -> None:
    machine.has(STUBS[0], replace(STUBS[1], mig=(Part("MIG-x"), Part("MIG-y"))), STUBS[2])
    assert machine.gpu("reset", "gpu1:0", code=2) == [
        "Error: gpu1:0, gpu1:1: a reset removes MIG devices, so dlapp does not reset their GPUs"
    ]
    assert machine.gpu("reset", "gpu7", code=3) == [
        f"Error: {HOST}: there is no GPU 'gpu7'; it has gpu0, gpu1:0, gpu1:1, gpu2"
    ]


@needs_root
def test_a_reset_without_nvidia_smi_checks_the_name_first_and_names_the_repair(machine: Machine) -> None:
    machine.path = str(machine.place / "bin")
    (machine.place / "bin" / "nvidia-smi").unlink()
    assert machine.gpu("reset", "gpu7", code=3) == [f"Error: {HOST}: there is no GPU 'gpu7'; it has gpu0, gpu1, gpu2"]
    assert machine.gpu("reset", "gpu1", code=3) == [
        "Error: nvidia-smi is not on the PATH: install NVIDIA's tools, or set PATH (sudo replaces it)"
    ]
    assert machine.states() == ["free"] * 3
