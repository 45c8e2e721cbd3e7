"""Histories of both stores under seeded faults, and of ledgers with a mistake in them, which must show."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpuid import history
from tests.gpuid.planted import PLANTS
from tests.seeds import each_seed, seeds
from tests.services.zookeeper import ZooKeeper
from tests.tiers import FULL

OPERATIONS = 500
"""Of each of so many histories one after the other: 4,000 together, else 2,000. One that fails names its seed, and make
soak NAME=ledger goes on for as long as one wants."""
PATIENCE_S = 540.0
"""Less than pytest gives a test (faulthandler_timeout); a machine under load needs minutes for one history."""


def check_amount(found: history.History, operations: int = OPERATIONS) -> None:
    print(f"{found.operations} operations, faults {found.faults}")
    assert found.operations >= operations


@each_seed("histories", 8 if FULL else 4)
def test_no_history_on_zookeeper_shows_a_device_used_twice_or_lost(
    zookeeper: ZooKeeper, tmp_path: Path, seed: int
) -> None:
    found = history.run(
        tmp_path / "run", operations=OPERATIONS, seed=seed, zookeeper=zookeeper, mixed=True, timeout_s=PATIENCE_S
    )
    assert found.problems == [], f"seed {seed}"
    check_amount(found)
    assert min(found.faults.values()) > 0
    assert len(found.writes) > found.operations / 3


# Its queue is in strict order, so a task that is paused holds up all for a while.
@pytest.mark.slow
@each_seed("histories on one machine", 8 if FULL else 3)
def test_no_history_on_one_machine_shows_a_device_used_twice_or_lost(tmp_path: Path, seed: int) -> None:
    operations = OPERATIONS if FULL else 60
    found = history.run(
        tmp_path / "run", operations=operations, seed=seed, zookeeper=None, workers=6, hosts=3, timeout_s=PATIENCE_S
    )
    assert found.problems == [], f"seed {seed}"
    check_amount(found, operations)


@pytest.mark.slow
@each_seed("histories on an ensemble")
def test_no_history_on_an_ensemble_whose_servers_are_restarted_shows_a_device_used_twice_or_lost(
    ensemble: ZooKeeper, tmp_path: Path, seed: int
) -> None:
    operations, kinds = OPERATIONS if FULL else 100, (*history.KINDS, "server")
    found = history.run(
        tmp_path / "run", operations=operations, seed=seed, zookeeper=ensemble, kinds=kinds, timeout_s=PATIENCE_S
    )
    assert found.problems == [], f"seed {seed}"
    check_amount(found, operations)
    assert found.faults["server"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("plant", PLANTS)
def test_a_mistake_in_the_ledger_shows_in_its_history(zookeeper: ZooKeeper, tmp_path: Path, plant: str) -> None:
    found = history.run(
        tmp_path / "run",
        operations=600 if plant == "recreate" else 20_000,
        seed=seeds(plant, 1)[0],
        zookeeper=zookeeper,
        hosts=1,
        plant=plant,
        kinds=("paused",) if plant == "session" else ("killed", "paused", "cut"),
        until_problem=True,
        timeout_s=150,
    )
    wanted = "its record was deleted" if plant == "recreate" else " found "
    assert any(wanted in one for one in found.problems), found.problems
