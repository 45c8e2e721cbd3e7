"""A task whose GPUs its NodeManager assigns (yarn.io/gpu): a slow answer, a sick GPU."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dlapp.cluster.engine import NODE_MANAGER as SERVICE
from dlapp.gpuid.devices import Device
from dlapp.gpuid.stores.machine import MachineLedger
from dlapp.task.environment import node_name
from dlapp.values.launch_spec import NODE_MANAGER, LedgerSettings
from dlapp.values.messages import Fault, Phase
from dlapp.values.spec import Resources
from tests.services.containers.nvml_stub import StubDevice, with_devices
from tests.services.http.http_server import Answer, Request, http_server
from tests.task.fake_am import FakeAm, workspace_archive

UUIDS = tuple(f"GPU-0000000{number}-aaaa-bbbb-cccc-000000000000" for number in range(2))


class Node:
    """A machine with two GPUs whose NodeManager gives the second one to the task."""

    def __init__(self, place: Path) -> None:
        self.place, self.locks = place, str(place / "locks")
        packed = workspace_archive(place, {"run.sh": "echo $CUDA_VISIBLE_DEVICES"})
        self.am = FakeAm(place / "containers", resources=Resources(memory_mib=128, gcores=1), **packed)
        self.web, self.asked, self.is_up = "", 0, True

    def answer(self, _: Request) -> Answer | None:
        self.asked += 1
        device = {"index": 1, "minorNumber": 1, "containerId": str(self.am.container_id)}
        return Answer(200, json.dumps({"assignedGpuDevices": [device]}).encode()) if self.is_up else None

    def start(self, *devices: StubDevice) -> None:
        ledger: dict[str, Any] = {"ledger": LedgerSettings(NODE_MANAGER, self.locks, web=self.web)}
        environment = with_devices(self.place, devices or [StubDevice(), StubDevice()])
        self.am.start(process_env=environment, **ledger)


@pytest.fixture
def node(place: Path) -> Iterator[Node]:
    one = Node(place)
    with http_server(one.answer) as one.web, one.am:
        yield one


def test_a_task_uses_the_gpu_assigned_by_its_nodemanager(node: Node) -> None:
    node.start()
    assert node.am.result().fault is Fault.NONE, node.am.log()
    assert node.am.printed().decode().split() == [UUIDS[1]]


def test_a_node_manager_that_does_not_answer_is_waited_for_as_a_service_of_its_node(node: Node) -> None:
    node.is_up = False
    node.start()
    node.am.wait_until(lambda: any(report.waits_for for report in node.am.reports))
    waits = {report.waits_for for report in node.am.reports} - {""}
    assert waits == {f"{SERVICE}{node_name()}"}
    assert Phase.LEASING in node.am.phases
    node.is_up = True
    assert node.am.result().fault is Fault.NONE, node.am.log()


def test_a_gpu_that_fails_its_inspection_is_not_used_and_closes_the_node(node: Node) -> None:
    node.start(StubDevice(), StubDevice(ecc=3, recovery=None))
    result = node.am.result()
    assert (result.fault, result.is_closed) == (Fault.NODE, True), node.am.log()
    assert f"gpu1 ({UUIDS[1]}) is quarantined (3 uncorrectable ECC errors)" in result.message
    assert not (node.am.home / "stdout").exists()
    devices = tuple(Device(uuid, place, place) for place, uuid in enumerate(UUIDS))
    ledger = MachineLedger(node.locks, discover=lambda: devices)
    assert [device.quarantine is not None for device in ledger.record().devices] == [False, True]
    assert ledger.holders() == {}


def test_a_task_does_not_request_gpus_that_an_operator_closed(node: Node) -> None:
    devices = tuple(Device(uuid, place, place) for place, uuid in enumerate(UUIDS))
    for uuid in UUIDS:
        MachineLedger(node.locks, discover=lambda: devices).quarantine(uuid, cause="operator", detail="fan", by="ann")
    node.start()
    result = node.am.result()
    assert (result.fault, result.is_closed) == (Fault.NODE, True), node.am.log()
    assert f"{os.uname().nodename}: YARN gave {node.am.container_id} GPUs that must not be used" in result.message
    assert node.asked == 0
