"""Histories of both stores under seeded faults, and of ledgers with a mistake in them, which must show."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpuid import history
from tests.gpuid.planted import PLANTS
from tests.seeds import COUNT, each_seed
from tests.services.zookeeper import ZooKeeper
from tests.tiers import FULL

OPERATIONS = 500
"""Of each of so many histories one after the other: 6,000 together, else 2,000. One that fails names its seed, and make
soak NAME=ledger goes on for as long as one wants."""
PATIENCE_S = 540.0
"""Less than pytest gives a test (faulthandler_timeout); a machine under load needs minutes for one history."""


def check_amount(found: history.History, operations: int = OPERATIONS) -> None:
    print(f"{found.operations} operations, faults {found.faults}")
    assert found.operations >= operations


@each_seed("histories", 12 if FULL else 4)
def test_no_history_on_zookeeper_shows_a_device_used_twice_or_lost(
    zookeeper: ZooKeeper, tmp_path: Path, seed: int
) -> None:
    """Run four histories of 500 operations, at night twelve; on one host some workers are the machine's own."""
    found = history.run(
        tmp_path / "run", operations=OPERATIONS, seed=seed, zookeeper=zookeeper, mixed=True, timeout_s=PATIENCE_S
    )
    assert found.problems == [], f"seed {seed}"
    check_amount(found)
    assert min(found.faults.values()) > 0
    assert len(found.writes) > found.operations / 3


# Its queue is in strict order, so a task that is paused holds up all for a while.
@pytest.mark.slow
@each_seed("histories on one machine", 12 if FULL else 3)
def test_no_history_on_one_machine_shows_a_device_used_twice_or_lost(tmp_path: Path, seed: int) -> None:
    """Run three histories of 60 operations by six workers of three hosts, at night twelve of 500."""
    operations = OPERATIONS if FULL else 60
    found = history.run(
        tmp_path / "run", operations=operations, seed=seed, zookeeper=None, workers=6, hosts=3, timeout_s=PATIENCE_S
    )
    assert found.problems == [], f"seed {seed}"
    check_amount(found, operations)


@pytest.mark.slow
@each_seed("histories on an ensemble")
def test_no_device_is_used_twice_or_lost_while_servers_restart(ensemble: ZooKeeper, tmp_path: Path, seed: int) -> None:
    """Run three histories of 100 operations while servers are restarted, at night five of 500."""
    operations, kinds = OPERATIONS if FULL else 100, (*history.KINDS, "server")
    found = history.run(
        tmp_path / "run", operations=operations, seed=seed, zookeeper=ensemble, kinds=kinds, timeout_s=PATIENCE_S
    )
    assert found.problems == [], f"seed {seed}"
    check_amount(found, operations)
    assert found.faults["server"] > 0


@pytest.mark.slow
@each_seed("mistakes in a ledger", COUNT if FULL else 1)
@pytest.mark.parametrize("plant", PLANTS)
def test_a_mistake_in_the_ledger_shows_in_its_history(
    zookeeper: ZooKeeper, tmp_path: Path, plant: str, seed: int
) -> None:
    """Run each mistake until it shows, with one seed and at night with five: in 600 or 20,000 operations, or 150 s."""
    found = history.run(
        tmp_path / "run",
        operations=600 if plant == "recreate" else 20_000,
        seed=seed,
        zookeeper=zookeeper,
        hosts=1,
        plant=plant,
        kinds=("paused",) if plant == "session" else ("killed", "paused", "cut"),
        until_problem=True,
        timeout_s=150,
    )
    wanted = "its record was deleted" if plant == "recreate" else " found "
    assert any(wanted in problem for problem in found.problems), found.problems
