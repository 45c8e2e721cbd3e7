"""Histories of both stores under seeded faults, and of ledgers with a mistake in them, which must show."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.gpuid import history
from tests.gpuid.planted import PLANTS
from tests.services.zookeeper import ZooKeeper

FULL = os.environ.get("DLAPP_FAULTS") == "full"
OPERATIONS = 10_000 if FULL else 2_000
SEED = int(os.environ.get("DLAPP_SEED", "1"))


def test_no_history_on_zookeeper_shows_a_card_used_twice_or_lost(zookeeper: ZooKeeper, tmp_path: Path) -> None:
    found = history.run(tmp_path / "run", operations=OPERATIONS, seed=SEED, zookeeper=zookeeper, mixed=True)
    assert found.problems == []
    assert found.operations >= OPERATIONS
    assert min(found.faults.values()) > 0
    assert len(found.writes) > OPERATIONS / 2


def test_no_history_on_one_machine_shows_a_card_used_twice_or_lost(tmp_path: Path) -> None:
    operations = OPERATIONS if FULL else 500  # its queue is in strict order, so a task that is paused holds up all
    found = history.run(tmp_path / "run", operations=operations, seed=SEED, zookeeper=None, workers=4)
    assert found.problems == []
    assert found.operations >= operations


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
        timeout_s=60,
    )
    wanted = "its record was deleted" if plant == "recreate" else " found "
    assert any(wanted in one for one in found.problems), found.problems
