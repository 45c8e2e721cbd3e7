"""Clearing up the GPU ledger on other hosts, with the embedded engine in the place of a cluster of one node."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dlapp.client import Client
from dlapp.client.machine.gpu_ledger import GpuLedger
from dlapp.client.node_runs import check_on, reclaim_on
from dlapp.config import load_config
from dlapp.errors import Unreachable
from dlapp.gpuid.devices import Device
from dlapp.gpuid.rules import LeaseRequest
from dlapp.gpuid.stores.machine import MachineLedger

HERE = os.uname().nodename
NODE = "node7.example.com"
DEVICES = (Device("GPU-a", 0, 0), Device("GPU-b", 1, 1))


class Cluster:
    """The embedded engine as one node of that name."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.names: tuple[str, ...] = (NODE, "node8.example.com")
        client.engine.node_names = lambda: self.names  # type: ignore[method-assign]

    def collect(self, *hosts: str, timeout_s: float = 120) -> list[dict[str, object]]:
        return list(reclaim_on(self.client, hosts, timeout_s=timeout_s))


@pytest.fixture
def cluster(_own_environment: Path) -> Iterator[Cluster]:
    one = Cluster(Client(load_config()))
    yield one
    one.client.engine.close()


@pytest.fixture
def ledger(_own_environment: Path) -> MachineLedger:
    return MachineLedger(str(_own_environment / "gpus"), discover=lambda: DEVICES)


def test_leases_of_a_dead_holder_are_freed_by_an_application_on_its_node(
    cluster: Cluster, ledger: MachineLedger, tmp_path: Path
) -> None:
    life = str(tmp_path / "life")
    os.mkfifo(life)
    lease = ledger.acquire(LeaseRequest("application_1_2", "alive", "tony", 1))
    ledger.acquire(LeaseRequest("application_1_1", "gone", "tony", 1, (), {"fifo": life})).close()
    (found,) = cluster.collect("node7")
    assert (found["host"], found["error"]) == ("node7", "")
    leases: Any = found["leases"]
    assert {item["container"]: item["state"] for item in leases} == {"gone": "gone", "alive": "alive"}
    assert [item.container for item in ledger.record().leases] == ["alive"]
    lease.release()
    (view,) = cluster.client.list()
    assert (view.appname, view.final_status.value) == ("dlapp-gpu-gc", "SUCCEEDED")


def test_hosts_that_are_not_reached_are_named_and_the_others_are_done(cluster: Cluster) -> None:
    cluster.names = (NODE, "node8.one.com", "node8.two.com")
    found = {item["host"]: item["error"] for item in cluster.collect("node9", "node8", NODE, NODE)}
    assert found == {
        "node9": "no node of the cluster that runs now has this name; there are node7.example.com, node8.one.com, "
        "node8.two.com",
        "node8": "no node of the cluster that runs now has this name; there are node7.example.com, node8.one.com, "
        "node8.two.com",
        NODE: "",
    }


def test_each_node_is_checked_as_by_the_doctor(cluster: Cluster) -> None:
    cluster.names = (NODE,)
    found = {item["host"]: item for item in check_on(cluster.client, [NODE, "node9"], {}, timeout_s=120)}
    assert (found[NODE]["error"], found["node9"]["findings"]) == ("", [])
    subjects = {finding["subject"]: finding["verdict"] for finding in found[NODE]["findings"]}
    assert (subjects["node"], subjects["node.python"], subjects["node.disk"]) == ("pass", "pass", "pass")
    (view,) = cluster.client.list()
    assert (view.appname, view.final_status.value) == ("dlapp-doctor", "SUCCEEDED")


def test_a_node_that_does_not_answer_in_time_is_named_and_its_application_ended(cluster: Cluster) -> None:
    (found,) = cluster.collect(NODE, timeout_s=0.0)
    assert str(found["error"]).startswith("no answer in 0 s: application_")
    (view,) = cluster.client.list()
    assert view.state.ended


def test_on_one_machine_there_are_no_other_hosts() -> None:
    client = Client(load_config())
    (found,) = reclaim_on(client, ["node7"], timeout_s=1)
    assert found["error"] == "applications run on this machine only (cluster: local)"
    with GpuLedger(load_config()) as gpus:
        assert gpus.reclaim() == []


def test_an_unreachable_cluster_is_reported_at_once(cluster: Cluster) -> None:
    def away() -> tuple[str, ...]:
        raise Unreachable("no ResourceManager answers")

    cluster.client.engine.node_names = away  # type: ignore[method-assign]
    with pytest.raises(Unreachable, match="no ResourceManager"):
        cluster.collect(NODE)
