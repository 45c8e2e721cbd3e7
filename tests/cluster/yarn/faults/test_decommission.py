"""Test nodes that an operator removes from a real cluster, with `yarn rmadmin -refreshNodes`."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.applications import status, wait_for
from tests.cluster.yarn.faults.test_preemption import END_S, place, trainer, wait_for_end
from tests.engines import Engine
from tests.services.hadoop import NODES, READY_TIMEOUT_S, Hadoop

__all__ = ["place"]

GRACE_S = 25
SOON_S = 120.0
"""Less than the start of an ApplicationMaster and the two minutes in which tasks of a lost node could still report; an
earlier ApplicationMaster's tasks on a removed node have one."""


@contextlib.contextmanager
def on_first_node(hadoop: Hadoop) -> Iterator[None]:
    """Have only the first node at the start of the block; after it all are there again, whatever was done to them."""
    hadoop.stop_part("nm2")
    try:
        wait_for("the second node has left", lambda: running_nodes(hadoop) == [NODES["nm1"]], END_S)
        yield
    finally:
        hadoop.decommission()
        for part in NODES:
            hadoop.start_part(part)
        wait_for("all nodes", hadoop.nodes_ready, READY_TIMEOUT_S)


def running_nodes(hadoop: Hadoop) -> list[str]:
    """Return the hosts of the nodes that run."""
    listed = (hadoop.get(f"{hadoop.rm_url}/ws/v1/cluster/nodes")["nodes"] or {}).get("node", [])
    return [node["nodeHostName"] for node in listed if node["state"] == "RUNNING"]


def add_second_node(hadoop: Hadoop) -> None:
    hadoop.start_part("nm2")
    wait_for("the second node", lambda: NODES["nm2"] in running_nodes(hadoop), END_S)


def second_attempt_runs(application: str) -> bool:
    seen = status(application)
    return bool(seen["attempt"] == 2 and "running 1 of 1" in seen["phase"])


def host_of(application: str) -> str:
    (one,) = status(application)["containers"]
    return str(one["host"])


@pytest.mark.slow
@pytest.mark.hadoop
@pytest.mark.parametrize("engine", ["yarn"], indirect=True)
def test_a_graceful_decommission_lets_programs_save_and_resume_first(engine: Engine, place: Path) -> None:
    """The ApplicationMaster and its program are on the node. The program gets notice and saves; it runs on the other
    node before the ApplicationMaster is taken, and the next one finds it there."""
    hadoop = engine.hadoop
    assert hadoop is not None
    engine.put("kept/somewhere/else", "")
    with on_first_node(hadoop):
        checkpoint = f"[checkpoint]\npath=model\nhdfs={engine.root}/kept/state\n"
        application = trainer(place, "one", 1, memory="1g", more=checkpoint)
        add_second_node(hadoop)
        hadoop.decommission("nm1", timeout_s=GRACE_S)
        wait_for("its stop file", (place / "one/stopped-0-0").exists, GRACE_S)
        stop = json.loads((place / "one/stop-0-0").read_text())
        assert stop["reason"] == "decommissioned"
        wait_for("it goes on", (place / "one/up-0-1").exists, END_S)
        assert (place / "one/resumed-0-1").read_text() == "saved by 0-0\n"
        wait_for("the next ApplicationMaster has it", lambda: second_attempt_runs(application), END_S)
        assert host_of(application) == NODES["nm2"]
        (place / "one/done").touch()
        (one,) = wait_for_end(application)["containers"]
        (earlier,) = one["earlier"]
        cause = "the node of the container was decommissioned"
        assert (earlier["message"], earlier["diagnosis"]["rule"]) == (cause, "node_decommissioned")


@pytest.mark.slow
@pytest.mark.hadoop
@pytest.mark.parametrize("engine", ["yarn"], indirect=True)
def test_containers_of_a_node_removed_without_notice_restart_soon(engine: Engine, place: Path) -> None:
    """Remove the ApplicationMaster, too. A lost node would be waited for, as its tasks could still run."""
    hadoop = engine.hadoop
    assert hadoop is not None
    with on_first_node(hadoop):
        application = trainer(place, "one", 1, memory="1g")
        add_second_node(hadoop)
        hadoop.decommission("nm1")
        wait_for("it runs again", (place / "one/up-0-1").exists, SOON_S)
        assert host_of(application) == NODES["nm2"]
        (place / "one/done").touch()
        (one,) = wait_for_end(application)["containers"]
        assert len(one["earlier"]) == 1
