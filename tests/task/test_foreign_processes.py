"""Processes of others on the GPUs that a real task has leased."""

from __future__ import annotations

import getpass
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dlapp.gpuid.devices import Device
from dlapp.gpuid.stores.machine import MachineLedger
from dlapp.system.processes.proc import descendant_processes
from dlapp.task.environment import node_name
from dlapp.value import replace
from dlapp.values.launch_spec import DockerSettings
from dlapp.values.messages import Fault, Phase, TaskResult
from dlapp.values.spec import Resources
from dlapp.values.usage import ForeignProcess
from tests.services.containers.dockerd import GPU_IMAGE, Dockerd
from tests.services.containers.nvml_stub import MIB, StubDevice, with_devices
from tests.task.fake_am import FakeAm, ledger_of, workspace_archive

DEVICE = Device("GPU-0", 0, 0, memory_mib=16 << 10)
ONE = Resources(gcores=1)
OUT_OF_MEMORY = """
echo ready; until [ -e "$TMPDIR/finish" ]; do sleep 0.02; done
echo "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB." >&2; exit 1
"""


@pytest.fixture
def foreign() -> Iterator[int]:
    """Return the pid of a process that sleeps."""
    with subprocess.Popen(["/bin/sleep", "600"]) as process:
        yield process.pid
        process.kill()


def payload_pid(am: FakeAm) -> int:
    """Return the pid on this host of the program's shell."""
    assert am.task is not None
    return [process.pid for process in descendant_processes(am.task.pid) if process.program in (b"sh", b"bash")][-1]


def failed(place: Path, *, foreign_mib: int, foreign: int) -> TaskResult:
    """Return the result of a task whose payload runs out of memory; with another process on the GPU if it has some."""
    env = with_devices(place, [StubDevice(uuid="GPU-0")])
    ledger = MachineLedger(str(place / "locks"), discover=lambda: (DEVICE,))
    packed = workspace_archive(place, {"run.sh": OUT_OF_MEMORY})
    with ledger.reserve("the application", 1), FakeAm(place / "containers", **packed, resources=ONE) as am:
        am.start(process_env=env, ledger=ledger_of(place))
        am.wait_until(lambda: (am.home / "stdout").exists() and am.printed() == b"ready\n")
        pids, sizes = (payload_pid(am), foreign)[: 1 + bool(foreign_mib)], (11_000, foreign_mib)
        used = (11_000 + foreign_mib) * MIB
        with_devices(place, [StubDevice(uuid="GPU-0", pids=pids, process_mib=sizes, used=used)])
        (am.home / "tmp/finish").touch()
        return am.result()


@pytest.mark.slow
def test_memory_that_runs_out_beside_a_foreign_process_is_not_the_users_fault(place: Path, foreign: int) -> None:
    result = failed(place, foreign_mib=5018, foreign=foreign)
    who = f"(sleep, user {getpass.getuser()})"
    assert result.diagnosis is not None
    found = result.diagnosis
    assert (found.rule, found.fault, found.retry, found.avoid_node) == ("gpu_memory_foreign", Fault.NODE, True, True)
    assert found.cause == (f"the memory of the GPU was used up: 4.9 GiB of gpu0 were used by process {foreign} {who}")
    assert found.evidence is not None
    assert "CUDA out of memory" in found.evidence.line
    assert result.receipt is not None
    user = getpass.getuser()
    assert result.receipt.foreign_processes == (
        ForeignProcess(gpu="0", uuid="GPU-0", pid=foreign, host=node_name(), program="sleep", user=user, peak_mib=5018),
    )
    assert result.receipt.gpu_memory_peak_mib == 11_000


@pytest.mark.slow
@pytest.mark.parametrize("foreign_mib", [0, 100], ids=["nobody else is there", "the other has hardly any"])
def test_memory_that_the_program_alone_has_used_up_is_the_users_fault(
    place: Path, foreign: int, foreign_mib: int
) -> None:
    result = failed(place, foreign_mib=foreign_mib, foreign=foreign)
    assert result.diagnosis is not None
    assert (result.diagnosis.rule, result.diagnosis.fault) == ("gpu_memory", Fault.USER)
    assert result.receipt is not None
    assert len(result.receipt.foreign_processes) == bool(foreign_mib)


@pytest.mark.slow
@pytest.mark.docker
def test_in_docker_the_processes_of_the_container_are_the_payloads_and_others_are_foreign(
    place: Path, dockerd: Dockerd, foreign: int
) -> None:
    device = Device("GPU-00000000-aaaa-bbbb-cccc-000000000000", 0, 0)
    env = with_devices(place, [StubDevice()])
    ledger = MachineLedger(str(place / "locks"), discover=lambda: (device,))
    packed = workspace_archive(place, {"run.sh": 'until [ -e "$TMPDIR/finish" ]; do sleep 0.05; done'})
    fields: dict[str, Any] = {"docker_image": GPU_IMAGE, "resources": Resources(memory_mib=64, gcores=1)}
    with ledger.reserve("the application", 1), FakeAm(place / "containers", **packed, **fields) as am:
        am.orders = replace(am.orders, usage_every_s=0.0, report_every_s=0.05)
        docker = DockerSettings(dockerd.host, "none", "gpus", str(place / "locks"))
        am.start(process_env=env, ledger=ledger_of(place, dockerd.host), docker=docker)
        am.wait_for(Phase.RUNNING)
        (name,) = dockerd.containers()
        own = int(dockerd.docker("inspect", "--format", "{{.State.Pid}}", name).stdout)
        with_devices(place, [StubDevice(pids=(own, foreign), process_mib=(3000, 2000), used=5000 * MIB)])
        am.wait_until(lambda: any(report.receipt and report.receipt.foreign_processes for report in am.reports))
        with_devices(place, [StubDevice()])
        (am.home / "tmp/finish").touch()
        result = am.result()
    assert (result.fault, result.diagnosis) == (Fault.NONE, None), am.log()
    assert result.receipt is not None
    assert [
        (foreign_process.pid, foreign_process.peak_mib) for foreign_process in result.receipt.foreign_processes
    ] == [(foreign, 2000)]
    assert result.receipt.gpu_memory_peak_mib == 3000
    assert "uses gpu0 without a lease" in am.log()
