"""Ranks of a gang that are killed in each phase on a real YARN, as `tests.cluster.local.test_killed_ranks` does here.

A container that YARN localizes has no task yet; the first phase here is that in which its task has said hello. GPUs and
images are those of one machine alone.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from dlapp.client import Client
from dlapp.config import load_config
from dlapp.values.messages import Phase
from dlapp.values.spec import RoleFailure
from tests import seeds
from tests.am.decisions.gangs.test_killed_ranks import AFTER_GATE
from tests.cluster.local.test_killed_ranks import BEFORE_GATE, PAYLOAD, POLICIES, Gang
from tests.engines import Engine
from tests.services.processes import am_at_points
from tests.tiers import FULL

pytestmark = pytest.mark.slow
BEFORE = (Phase.STARTING, Phase.UNPACKING, Phase.FETCHING, Phase.WAITING)
CASES: list[tuple[Phase | str, RoleFailure]] = [
    (victim, policy) for victim in (*BEFORE, *AFTER_GATE, PAYLOAD) for policy in POLICIES
]
CHOSEN = CASES if FULL else random.Random(seeds.FIRST).sample(CASES, 1)
"""All 24 take 6 minutes and more: they run at night, and one of them each day."""


class GangOnYarn(Gang):
    """A gang of two whose input and result are on HDFS."""

    def __init__(
        self, client: Client, engine: Engine, directory: Path, policy: RoleFailure, victim: Phase | str
    ) -> None:
        self._engine = engine
        engine.put("data", "given\n")
        super().__init__(client, directory, policy, victim, files=engine.root, memory="256m")

    def result(self, index: int) -> str:
        return self._engine.tree("result")[f"{index}/data"]


@pytest.mark.parametrize("engine", [pytest.param("yarn", marks=pytest.mark.hadoop)], indirect=True)
@pytest.mark.parametrize(("victim", "policy"), CHOSEN, ids=lambda one: getattr(one, "value", one))
def test_on_yarn_a_rank_is_killed_in_a_phase_and_its_gang_does_as_its_policy_says(
    engine: Engine, tmp_path: Path, victim: Phase | str, policy: RoleFailure
) -> None:
    """Kill the task of rank 1 of a gang of two when its ApplicationMaster has heard of the phase, or its program."""
    point = victim if isinstance(victim, str) else f"task 1 {victim.value}"
    waited_for = 3 if victim in BEFORE_GATE else 0
    python = am_at_points.install(
        tmp_path / "points", "" if isinstance(victim, str) else point, others_wait_for=waited_for
    )
    tmp_path.chmod(0o755)
    with Client(load_config({"yarn.python": str(python)})) as client:
        GangOnYarn(client, engine, tmp_path / "gang", policy, victim).check()
