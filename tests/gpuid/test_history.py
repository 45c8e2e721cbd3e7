"""Histories of both stores under seeded faults, and of ledgers with a mistake in them, which must show."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.gpuid import history
from tests.gpuid.planted import PLANTS
from tests.services.zookeeper import ZooKeeper
from tests.tiers import FULL

SEED = int(os.environ.get("DLAPP_SEED", "1"))
SEEDS = range(SEED, SEED + (8 if FULL else 4))
OPERATIONS = 500
"""Of each of so many histories one after the other: 4,000 together, else 2,000. One that fails names its seed, and make
soak NAME=ledger goes on for as long as one wants."""
PATIENCE_S = 540.0
"""Less than pytest gives a test (faulthandler_timeout); a machine under load needs minutes for one history."""


def check_amount(found: history.History, operations: int = OPERATIONS) -> None:
    print(f"{found.operations} operations, faults {found.faults}")
    assert found.operations >= operations


@pytest.mark.parametrize("seed", SEEDS)
def test_no_history_on_zookeeper_shows_a_device_used_twice_or_lost(
    zookeeper: ZooKeeper, tmp_path: Path, seed: int
) -> None:
    found = history.run(
        tmp_path / "run", operations=OPERATIONS, seed=seed, zookeeper=zookeeper, mixed=True, timeout_s=PATIENCE_S
    )
    assert found.problems == [], f"DLAPP_SEED={seed}"
    check_amount(found)
    assert min(found.faults.values()) > 0
    assert len(found.writes) > found.operations / 3


# Its queue is in strict order, so a task that is paused holds up all for a while.
@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS if FULL else [SEED])
def test_no_history_on_one_machine_shows_a_device_used_twice_or_lost(tmp_path: Path, seed: int) -> None:
    operations = OPERATIONS if FULL else 120
    found = history.run(
        tmp_path / "run", operations=operations, seed=seed, zookeeper=None, workers=6, hosts=3, timeout_s=PATIENCE_S
    )
    assert found.problems == [], f"DLAPP_SEED={seed}"
    check_amount(found, operations)


@pytest.mark.slow
def test_no_history_on_an_ensemble_whose_servers_are_restarted_shows_a_device_used_twice_or_lost(
    ensemble: ZooKeeper, tmp_path: Path
) -> None:
    operations, kinds = OPERATIONS if FULL else 200, (*history.KINDS, "server")
    found = history.run(
        tmp_path / "run", operations=operations, seed=SEED, zookeeper=ensemble, kinds=kinds, timeout_s=PATIENCE_S
    )
    assert found.problems == [], f"DLAPP_SEED={SEED}"
    check_amount(found, operations)
    assert found.faults["server"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("plant", PLANTS)
def test_a_mistake_in_the_ledger_shows_in_its_history(zookeeper: ZooKeeper, tmp_path: Path, plant: str) -> None:
    found = history.run(
        tmp_path / "run",
        operations=600 if plant == "recreate" else 20_000,
        seed=SEED,
        zookeeper=zookeeper,
        hosts=1,
        plant=plant,
        kinds=("paused",) if plant == "session" else ("killed", "paused", "cut"),
        until_problem=True,
        timeout_s=150,
    )
    wanted = "its record was deleted" if plant == "recreate" else " found "
    assert any(wanted in one for one in found.problems), found.problems
