"""GPUs that a NodeManager owns: what it says of them, and what is made of that."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dlapp.errors import Unreachable
from dlapp.gpuid.devices import Device
from dlapp.gpuid.factory import open_ledger
from dlapp.gpuid.health.inspection import DEFAULT_LIMITS, Inspector
from dlapp.gpuid.health.readings import Reading
from dlapp.gpuid.needs import DeviceNeed
from dlapp.gpuid.rules import InQuarantine, LeaseRequest, LedgerError
from dlapp.gpuid.stores.host_lock import waiting_lock
from dlapp.gpuid.stores.machine import MachineLedger
from dlapp.gpuid.stores.node_manager import TURN, NodeManagerGpuLedger, assigned, matched
from dlapp.value import replace
from dlapp.values.launch_spec import NODE_MANAGER, LedgerSettings
from tests.services.http.http_server import Answer, Request, http_server

ONE, OTHER = "container_1700000000000_0042_01_000002", "container_1700000000000_0042_01_000003"
GPUS = tuple(Device(uuid=f"GPU-{minor}", index=place, minor=minor) for place, minor in enumerate((3, 0, 1)))


def answer(*devices: tuple[int, int, str]) -> dict[str, Any]:
    """Return it as 3.4 says it: index, minor number and container of each device."""
    return {
        "totalGpuDevices": [{"index": index, "minorNumber": minor} for index, minor, _ in devices],
        "assignedGpuDevices": [
            {"index": index, "minorNumber": minor, "containerId": container} for index, minor, container in devices
        ],
    }


class Node:
    """A NodeManager's web address that answers with ``status`` and ``body``; ``asked`` is what it was asked."""

    def __init__(self) -> None:
        self.status, self.body, self.asked, self.web = 200, b"", list[str](), ""

    def answer(self, request: Request) -> Answer:
        self.asked.append(request.target)
        return Answer(self.status, self.body)


@pytest.fixture
def node() -> Iterator[Node]:
    one = Node()
    with http_server(one.answer) as one.web:
        yield one


def ask(gcores: int) -> LeaseRequest:
    return LeaseRequest("application_1700000000000_0042", ONE, "tony", gcores)


def test_a_container_leases_the_devices_assigned_by_its_node(node: Node, tmp_path: Path) -> None:
    node.body = json.dumps(answer((2, 3, ONE), (0, 0, ONE), (1, 1, OTHER))).encode()
    ledger = NodeManagerGpuLedger(node.web, str(tmp_path), discover=lambda: GPUS)
    with ledger.acquire(ask(2)) as given:
        assert [(device.uuid, device.index, device.minor) for device in given.devices] == [
            ("GPU-0", 0, 0),
            ("GPU-3", 2, 3),
        ]
        locks = MachineLedger(str(tmp_path), discover=lambda: GPUS)
        assert {uuid: one.container for uuid, one in locks.holders().items()} == {"GPU-0": ONE, "GPU-3": ONE}
        assert given.release()
        assert locks.holders() == {}
    assert node.asked == ["/ws/v1/node/resources/yarn.io%2Fgpu"]


def test_a_gpu_with_less_memory_than_requested_is_not_used(node: Node, tmp_path: Path) -> None:
    gpus = [Device("GPU-0", 0, 0, memory_mib=15360), Device("GPU-1", 1, 1, memory_mib=81559)]
    node.body = json.dumps(answer((0, 0, ONE))).encode()
    ledger = NodeManagerGpuLedger(node.web, str(tmp_path), discover=lambda: tuple(gpus))
    need = DeviceNeed("whole", 40_000)
    with pytest.raises(LedgerError, match=rf"asked for 1 whole GPU with 40 GB, YARN gave {ONE} 1 whole GPU \(16 GB\)"):
        ledger.acquire(replace(ask(1), need=need))
    assert MachineLedger(str(tmp_path), discover=lambda: tuple(gpus)).holders() == {}
    node.body = json.dumps(answer((1, 1, ONE))).encode()
    with ledger.acquire(replace(ask(1), need=need)) as given:
        assert [device.uuid for device in given.devices] == ["GPU-1"]


def test_a_device_that_the_embedded_engine_has_is_waited_for_and_its_holder_named(node: Node, tmp_path: Path) -> None:
    node.body = json.dumps(answer((0, 0, ONE))).encode()
    locks = MachineLedger(str(tmp_path), discover=lambda: GPUS)
    other = locks.hold(GPUS, LeaseRequest("application_1700000000000_0007", OTHER, "ann", 3), token="t")
    assert not isinstance(other, dict)
    with pytest.raises(LedgerError, match=r"what is not free on this machine: .*application_1700000000000_0007"):
        NodeManagerGpuLedger(node.web, str(tmp_path), discover=lambda: GPUS).acquire(ask(1))
    ledger = NodeManagerGpuLedger(node.web, str(tmp_path), discover=lambda: GPUS, sleep=lambda _: other.close())
    with ledger.acquire(ask(1), timeout_s=60) as given:
        assert [device.uuid for device in given.devices] == ["GPU-0"]


@pytest.mark.parametrize("gcores", [1, 3])
def test_the_requested_number_of_gpus_is_leased_or_none(node: Node, gcores: int, tmp_path: Path) -> None:
    node.body = json.dumps(answer((2, 3, ONE), (0, 0, ONE))).encode()
    with pytest.raises(LedgerError, match=rf"names 2 GPUs of {ONE}, and it asked for {gcores}"):
        NodeManagerGpuLedger(node.web, str(tmp_path), discover=lambda: GPUS).acquire(ask(gcores))


ANSWERS = {
    "3.4.2": answer((2, 3, ONE), (0, 0, ONE), (1, 1, OTHER)),
    # Recorded with the plug-in of 3.5.0 and four GPUs.
    "3.5.0": {
        "totalGpuDevices": [{}, {}, {}, {}],
        "assignedGpuDevices": [{"containerId": ONE}, {"containerId": ONE}, {"containerId": OTHER}],
    },
}


@pytest.mark.parametrize("release", ANSWERS)
def test_a_container_with_two_visible_gpus_gets_both_despite_the_nodemanager(
    node: Node, release: str, tmp_path: Path
) -> None:
    node.body = json.dumps(ANSWERS[release]).encode()
    visible = (Device("GPU-0", 0, 0), Device("GPU-3", 1, 3))
    with NodeManagerGpuLedger(node.web, str(tmp_path), discover=lambda: visible).acquire(ask(2)) as given:
        assert [(device.uuid, device.minor) for device in given.devices] == [("GPU-0", 0), ("GPU-3", 3)]


def test_with_extra_visible_gpus_none_is_used_unless_the_node_names_them(node: Node, tmp_path: Path) -> None:
    node.body = json.dumps(ANSWERS["3.5.0"]).encode()
    ledger = NodeManagerGpuLedger(node.web, str(tmp_path), discover=lambda: GPUS)
    with pytest.raises(LedgerError, match=r"does not say which GPUs it gave \(Hadoop 3.5.0\): it gave 2, .* sees 3"):
        ledger.acquire(ask(2))
    assert MachineLedger(str(tmp_path), discover=lambda: GPUS).holders() == {}


def test_the_tasks_of_a_node_ask_one_after_another(tmp_path: Path) -> None:
    containers = [f"container_1700000000000_0042_01_00000{number}" for number in range(2, 6)]
    gpus = tuple(Device(f"GPU-{place}", place, place) for place in range(len(containers)))
    body = json.dumps(answer(*((place, place, one) for place, one in enumerate(containers)))).encode()
    waiting, is_first = threading.Semaphore(0), threading.Semaphore(1)
    requests, at_once = threading.Semaphore(1), list[bool]()

    def slow(_: Request) -> Answer:
        at_once.append(not requests.acquire(blocking=False))
        if is_first.acquire(blocking=False):  # it answers when all the others wait for their turn
            assert all(waiting.acquire(timeout=60) for _ in containers[1:])
        requests.release()
        return Answer(200, body)

    def lease(container: str) -> str:
        pauses: list[float] = []

        def pause(seconds: float) -> None:
            if not pauses:
                waiting.release()
            pauses.append(seconds)
            time.sleep(seconds)

        ledger = NodeManagerGpuLedger(web, str(tmp_path), discover=lambda: gpus, sleep=pause)
        given = ledger.acquire(LeaseRequest("application_1700000000000_0042", container, "tony", 1))
        given.release()
        return given.devices[0].uuid

    with http_server(slow) as web, ThreadPoolExecutor(len(containers)) as pool:
        assert list(pool.map(lease, containers)) == [device.uuid for device in gpus]
    assert at_once == [False] * len(containers)


def test_a_slow_nodemanager_is_asked_once_and_counts_as_an_unreachable_service(tmp_path: Path) -> None:
    asked, over = list[str](), threading.Event()

    def hang(request: Request) -> None:
        asked.append(request.target)
        over.wait(60)

    with http_server(hang) as web:
        ledger = NodeManagerGpuLedger(web, str(tmp_path), discover=lambda: GPUS, answer_s=0.1)
        with pytest.raises(Unreachable, match=r"yarn\.io%2Fgpu: no answer in 0\.1 s"):
            ledger.acquire(ask(1), timeout_s=60)
        over.set()
    assert len(asked) == 1


def test_a_lock_that_another_user_keeps_delays_a_task_and_does_not_stop_it(tmp_path: Path) -> None:
    with waiting_lock(str(tmp_path), TURN, timeout_s=0) as is_held:
        assert is_held
        with waiting_lock(str(tmp_path), TURN, timeout_s=0) as again:
            assert not again
    with waiting_lock(str(tmp_path), TURN, timeout_s=0) as free:
        assert free


def test_a_node_manager_whose_nvidia_smi_failed_too_often_is_quoted(node: Node, tmp_path: Path) -> None:
    # 3.4.2, after ten failures in a row.
    message = "Failed to execute GPU device information detection script (/usr/bin/nvidia-smi) for 10 times, skipping"
    node.status, node.body = 500, json.dumps({"RemoteException": {"message": message}}).encode()
    with pytest.raises(LedgerError, match="status 500: Failed to execute GPU device information"):
        NodeManagerGpuLedger(node.web, str(tmp_path), discover=lambda: GPUS).acquire(ask(1))


def inspector(*failed: str) -> Inspector:
    """Return one that finds these GPUs failed."""

    def read(devices: Sequence[Device]) -> dict[str, Reading]:
        return {
            device.uuid: Reading(device.uuid, ecc_uncorrected=2 if device.uuid in failed else 0) for device in devices
        }

    return Inspector(DEFAULT_LIMITS, read=read)


def test_a_given_gpu_that_fails_its_inspection_is_put_into_quarantine_and_not_used(node: Node, tmp_path: Path) -> None:
    node.body = json.dumps(answer((2, 3, ONE), (0, 0, ONE))).encode()
    locks = MachineLedger(str(tmp_path), discover=lambda: GPUS)
    ledger = NodeManagerGpuLedger(node.web, str(tmp_path), discover=lambda: GPUS, inspect=inspector("GPU-3", "GPU-1"))
    with pytest.raises(InQuarantine, match=r"gpu2 \(GPU-3\) is quarantined \(2 uncorrectable ECC errors\)"):
        ledger.acquire(ask(2))
    assert locks.holders() == {}
    quarantined = [device.uuid for device in locks.record().devices if device.quarantine is not None]
    assert quarantined == ["GPU-3"], "GPU-1 was not given, and may be another program's"


def test_only_quarantined_visible_gpus_are_refused_without_asking_the_nodemanager(node: Node, tmp_path: Path) -> None:
    own = (Device("GPU-3", 0, 3),)
    ledger = NodeManagerGpuLedger(node.web, str(tmp_path), discover=lambda: own, inspect=inspector())
    ledger.quarantine("gpu0", cause="operator", detail="fan", by="ann")
    with pytest.raises(InQuarantine, match=r"GPUs that must not be used: gpu0 \(GPU-3\) is quarantined \(fan\)"):
        ledger.acquire(ask(1))
    assert node.asked == []
    ledger.heal("gpu0")
    node.body = json.dumps(answer((2, 3, ONE))).encode()
    with ledger.acquire(ask(1)) as given:
        assert given.devices[0].uuid == "GPU-3"


def test_a_quarantine_that_is_due_is_inspected_and_ends_if_the_gpu_is_well(node: Node, tmp_path: Path) -> None:
    own = (Device("GPU-3", 0, 3),)
    node.body = json.dumps(answer((2, 3, ONE))).encode()
    ledger = NodeManagerGpuLedger(node.web, str(tmp_path), discover=lambda: own, inspect=inspector())
    ledger.quarantine("GPU-3", cause="ecc")
    with pytest.raises(InQuarantine):
        ledger.acquire(ask(1))
    (record,) = tmp_path.glob("health-*")
    page = json.loads(record.read_text())
    page["quarantine"]["probe_at_ms"] = 1
    record.write_text(json.dumps(page))
    with ledger.acquire(ask(1)):
        assert [device.quarantine for device in ledger.record().devices] == [None]


def test_a_node_without_the_plug_in_is_refused(node: Node, tmp_path: Path) -> None:
    node.status = 404
    with pytest.raises(LedgerError, match="status 404; the NodeManager has no plug-in"):
        open_ledger(LedgerSettings(NODE_MANAGER, str(tmp_path), web=node.web)).acquire(ask(1))


def test_a_node_that_counts_gpus_without_the_plug_in_is_refused(node: Node, tmp_path: Path) -> None:
    node.body = b"{}"
    with pytest.raises(LedgerError, match="reports no GPUs; it has no plug-in"):
        NodeManagerGpuLedger(node.web, str(tmp_path), discover=lambda: GPUS).acquire(ask(1))


def test_an_unreachable_nodemanager_is_an_unreachable_service(tmp_path: Path) -> None:
    with pytest.raises(Unreachable, match="resources/yarn"):
        NodeManagerGpuLedger("http://127.0.0.1:1", str(tmp_path)).acquire(ask(1), timeout_s=60)


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"assignedGpuDevices": [{"index": 1}]}', b'{"a": 3}'])
def test_an_answer_that_is_none_is_one_error(node: Node, body: bytes, tmp_path: Path) -> None:
    node.body = body
    with pytest.raises((LedgerError, Unreachable)):
        NodeManagerGpuLedger(node.web, str(tmp_path), discover=lambda: GPUS).acquire(ask(1))


def test_lists_of_one_and_answers_under_a_name_are_understood() -> None:
    one = answer((1, 5, ONE))
    one["assignedGpuDevices"] = one["assignedGpuDevices"][0]
    assert assigned(one, ONE) == assigned({"nmGpuResourceInfo": one}, ONE) == [(1, 5)]
    assert assigned({"totalGpuDevices": []}, ONE) == []


def test_a_device_that_is_not_here_or_is_split_is_refused() -> None:
    with pytest.raises(LedgerError, match=r"gave GPU 4 \(/dev/nvidia9\), which is not among the GPUs"):
        matched([(4, 9)], GPUS)
    parts = [Device(uuid=f"MIG-{number}", index=0, minor=0, mig=number) for number in range(2)]
    with pytest.raises(LedgerError, match="split by MIG"):
        matched([(0, 0)], parts)


def test_a_gpu_that_was_lost_under_its_program_can_be_put_into_quarantine(node: Node, tmp_path: Path) -> None:
    node.body = json.dumps(answer((0, 0, ONE))).encode()
    visible = [Device("GPU-0", 0, 0)]
    ledger = NodeManagerGpuLedger(node.web, str(tmp_path), discover=lambda: tuple(visible))
    with ledger.acquire(ask(1)):
        visible.clear()
        gone = NodeManagerGpuLedger(node.web, str(tmp_path), discover=lambda: ())
        gone.quarantine("GPU-0", cause="lost", detail="it fell off the bus (Xid 79)")
        assert [(device.uuid, device.present) for device in gone.record().devices] == [("GPU-0", False)]
        assert gone.record().devices[0].quarantine is not None


def test_a_condition_of_a_given_gpu_is_inspected_at_each_request(node: Node, tmp_path: Path) -> None:
    """A hot GPU becomes cool: its quarantine refuses nothing before the GPU was looked at again."""
    own, hot = (Device("GPU-3", 0, 3),), True

    def read(devices: Sequence[Device]) -> dict[str, Reading]:
        return {device.uuid: Reading(device.uuid, temperature_c=95 if hot else 40, slowdown_c=90) for device in devices}

    node.body = json.dumps(answer((2, 3, ONE))).encode()
    inspect = Inspector(DEFAULT_LIMITS, read=read)
    inspect.MAX_CONDITION_AGE_S = inspect.MAX_FAILED_AGE_S = 0.0
    ledger = NodeManagerGpuLedger(node.web, str(tmp_path), discover=lambda: own, inspect=inspect)
    with pytest.raises(InQuarantine, match="95 °C"):
        ledger.acquire(ask(1))
    hot = False
    with ledger.acquire(ask(1)) as given:
        assert given.devices[0].uuid == "GPU-3"
