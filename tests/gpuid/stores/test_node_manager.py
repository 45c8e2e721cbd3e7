"""GPUs that a NodeManager owns: what it says of them, and what is made of that."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dlapp.errors import Unreachable
from dlapp.gpuid.devices import Device
from dlapp.gpuid.factory import open_ledger
from dlapp.gpuid.rules import LeaseRequest, LedgerError
from dlapp.gpuid.stores.machine import MachineLedger
from dlapp.gpuid.stores.node_manager import NodeManagerGpuLedger, assigned, matched
from dlapp.values.launch_spec import NODE_MANAGER, LedgerSettings
from tests.services.http.http_server import Answer, Request, http_server

ONE, OTHER = "container_1700000000000_0042_01_000002", "container_1700000000000_0042_01_000003"
CARDS = tuple(Device(uuid=f"GPU-{minor}", index=place, minor=minor) for place, minor in enumerate((3, 0, 1)))


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


def test_the_devices_of_a_container_are_those_that_its_node_gave_it(node: Node, tmp_path: Path) -> None:
    node.body = json.dumps(answer((2, 3, ONE), (0, 0, ONE), (1, 1, OTHER))).encode()
    ledger = NodeManagerGpuLedger(node.web, str(tmp_path), discover=lambda: CARDS)
    with ledger.acquire(ask(2)) as given:
        assert [(one.uuid, one.index, one.minor) for one in given.devices] == [("GPU-0", 0, 0), ("GPU-3", 2, 3)]
        locks = MachineLedger(str(tmp_path), discover=lambda: CARDS)
        assert {uuid: one.container for uuid, one in locks.holders().items()} == {"GPU-0": ONE, "GPU-3": ONE}
        assert given.release()
        assert locks.holders() == {}
    assert node.asked == ["/ws/v1/node/resources/yarn.io%2Fgpu"]


def test_a_device_that_the_embedded_engine_has_is_waited_for_and_its_holder_named(node: Node, tmp_path: Path) -> None:
    node.body = json.dumps(answer((0, 0, ONE))).encode()
    locks = MachineLedger(str(tmp_path), discover=lambda: CARDS)
    other = locks.hold(CARDS, LeaseRequest("application_1700000000000_0007", OTHER, "ann", 3), token="t")
    assert not isinstance(other, dict)
    with pytest.raises(LedgerError, match=r"what is not free on this machine: .*application_1700000000000_0007"):
        NodeManagerGpuLedger(node.web, str(tmp_path), discover=lambda: CARDS).acquire(ask(1))
    ledger = NodeManagerGpuLedger(node.web, str(tmp_path), discover=lambda: CARDS, sleep=lambda _: other.close())
    with ledger.acquire(ask(1), timeout_s=60) as given:
        assert [one.uuid for one in given.devices] == ["GPU-0"]


@pytest.mark.parametrize("gcores", [1, 3])
def test_as_many_as_were_asked_for_or_none(node: Node, gcores: int, tmp_path: Path) -> None:
    node.body = json.dumps(answer((2, 3, ONE), (0, 0, ONE))).encode()
    with pytest.raises(LedgerError, match=rf"names 2 GPUs of {ONE}, and it asked for {gcores}"):
        NodeManagerGpuLedger(node.web, str(tmp_path), discover=lambda: CARDS).acquire(ask(gcores))


def test_a_node_without_the_plug_in_is_refused(node: Node, tmp_path: Path) -> None:
    node.status = 404
    with pytest.raises(LedgerError, match="status 404; the NodeManager has no plug-in"):
        open_ledger(LedgerSettings(NODE_MANAGER, str(tmp_path), web=node.web)).acquire(ask(1))


def test_a_node_that_counts_gpus_without_the_plug_in_is_refused(node: Node, tmp_path: Path) -> None:
    node.body = b"{}"
    with pytest.raises(LedgerError, match="reports no GPUs; it has no plug-in"):
        NodeManagerGpuLedger(node.web, str(tmp_path), discover=lambda: CARDS).acquire(ask(1))


def test_a_node_that_does_not_answer_is_asked_again_until_the_time_is_over(tmp_path: Path) -> None:
    waits: list[float] = []
    with pytest.raises(Unreachable, match="resources/yarn"):
        NodeManagerGpuLedger("http://127.0.0.1:1", str(tmp_path), sleep=waits.append).acquire(ask(1), timeout_s=0.2)
    assert waits


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"assignedGpuDevices": [{"index": 1}]}', b'{"a": 3}'])
def test_an_answer_that_is_none_is_one_error(node: Node, body: bytes, tmp_path: Path) -> None:
    node.body = body
    with pytest.raises((LedgerError, Unreachable)):
        NodeManagerGpuLedger(node.web, str(tmp_path), discover=lambda: CARDS).acquire(ask(1))


def test_lists_of_one_and_answers_under_a_name_are_understood() -> None:
    one = answer((1, 5, ONE))
    one["assignedGpuDevices"] = one["assignedGpuDevices"][0]
    assert assigned(one, ONE) == assigned({"nmGpuResourceInfo": one}, ONE) == [(1, 5)]
    assert assigned({"totalGpuDevices": []}, ONE) == []


def test_a_device_that_is_not_here_or_is_split_is_refused() -> None:
    with pytest.raises(LedgerError, match=r"gave GPU 4 \(/dev/nvidia9\), which is not among the GPUs"):
        matched([(4, 9)], CARDS)
    parts = [Device(uuid=f"MIG-{number}", index=0, minor=0, mig=number) for number in range(2)]
    with pytest.raises(LedgerError, match="split by MIG"):
        matched([(0, 0)], parts)


def test_what_a_node_owns_is_not_put_into_quarantine_by_us(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="the NodeManager owns gpu3"):
        NodeManagerGpuLedger("http://node7:8042", str(tmp_path)).quarantine("gpu3", cause="xid")
