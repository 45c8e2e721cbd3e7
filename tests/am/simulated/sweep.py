"""The simulated cluster for a sweep, in which little else goes wrong than kills and lost messages."""

from __future__ import annotations

import random

from dlapp.am.model import events
from dlapp.am.model.state import Timing
from dlapp.sweep.spec import SweepSpec
from dlapp.values.spec import RoleSpec
from tests.am.simulated.plan import Outcome, Plan, SweepPlan
from tests.am.simulated.trials import well
from tests.am.simulated.world import World


def sweep_world(
    seed: int,
    sweep: SweepSpec,
    *,
    workers: int = 2,
    outcome: Outcome = well,
    worker_kills: int = 0,
    master_kills: int = 0,
    span_s: float = 30.0,
    loss: float = 0.0,
    trial_s: tuple[float, float] = (0.1, 2.0),
    retries: int = 0,
    takes: events.TrialsTakenOver | None = None,
) -> World:
    """Return a cluster that runs a sweep.

    Args:
        seed: of all that happens by chance.
        sweep: what runs.
        workers: containers.
        outcome: how a try of a trial ends.
        worker_kills, master_kills: how often each is killed.
        span_s: latest time of a kill [s].
        loss: share of messages that are lost, of those that are doubled, and of those that are late.
        trial_s: how long a trial runs, from and to [s].
        retries: of the containers.
        takes: the trials of a sweep before.
    """
    chance = random.Random(f"sweep {seed}")
    worker_deaths, am_deaths = (
        tuple(chance.uniform(0, span_s) for _ in range(kills)) for kills in (worker_kills, master_kills)
    )
    plan = Plan(
        seed,
        roles=(RoleSpec(instances=workers, retries=retries),),
        nodes=1,
        loss=loss,
        double=loss,
        late=loss,
        am_deaths=am_deaths,
        journal="tail lost",
        step_s=0.05,
        timing=Timing(),
        limit_s=1e6,
        sweep=SweepPlan(sweep, outcome, trial_s, worker_deaths, takes),
    )
    return World(plan)
