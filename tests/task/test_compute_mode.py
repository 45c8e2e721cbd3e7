"""Test that the compute mode of the leased GPUs decides whose fault a busy GPU is."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlapp.gpuid.devices import Device
from dlapp.gpuid.stores.machine import MachineLedger
from dlapp.values.messages import Fault
from dlapp.values.spec import Resources
from tests.services.containers.nvml_stub import StubDevice, with_devices
from tests.task.fake_am import FakeAm, ledger_of, workspace_archive

DEVICE = Device("GPU-0", 0, 0)
SECOND_RANK = 'echo "RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable" >&2; exit 1'


@pytest.mark.parametrize(
    ("mode", "rule", "fault"),
    [(3, "gpu_exclusive", Fault.USER), (0, "gpu_lost", Fault.NODE)],
    ids=["exclusive", "default"],
)
def test_a_busy_gpu_is_a_user_fault_in_exclusive_mode_and_else_a_node_fault(
    place: Path, mode: int, rule: str, fault: Fault
) -> None:
    env = with_devices(place, [StubDevice(uuid=DEVICE.uuid, mode=mode)])
    packed = workspace_archive(place, {"run.sh": SECOND_RANK})
    with (
        MachineLedger(str(place / "locks"), discover=lambda: (DEVICE,)).reserve("the application", 1),
        FakeAm(place / "containers", **packed, resources=Resources(gcores=1)) as am,
    ):
        am.start(process_env=env, ledger=ledger_of(place))
        found = am.result().diagnosis
    assert found is not None
    assert (found.rule, found.fault) == (rule, fault)
