"""A thousand nodes that are restarted one after the other under a thousand containers: nothing of it is a failure.

`DLAPP_FAULTS=full` runs a hundred orders in which that happens. A failure names its seed.
"""

from __future__ import annotations

import random

from dlapp.am.model.state import Timing
from dlapp.values.messages import Phase
from dlapp.values.report import FinalStatus
from dlapp.values.spec import RoleSpec
from tests.am.driving import Driver
from tests.seeds import each_seed
from tests.tiers import FULL

COUNT = 1000
QUIET = Timing(hello_ms=10**9, silence_ms=10**9)
"""Tasks that say nothing while nothing happens; their reports are not what this is about."""


class Cluster:
    """Nodes that are equally likely to get a container, and the containers that run on each."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(f"rolling restart {seed}")
        self.am = Driver(RoleSpec(instances=COUNT), timing=QUIET)
        self.running: dict[str, list[int]] = {f"node{number}": [] for number in range(COUNT)}
        self.nodes = list(self.running)
        self.granted = 1

    def grant(self) -> None:
        (ask,) = self.am.master.container_requests()
        assert ask.avoid == ()
        for _ in range(ask.count):
            self.granted += 1
            node = self.chance.choice(self.nodes)
            self.running[node].append(self.granted)
            self.am.granted(self.granted, node=node)
            self.am.hello(self.granted)
            self.am.report(self.granted, Phase.RUNNING)

    def restart(self, node: str) -> None:
        lost, self.running[node] = self.running[node], []
        for number in lost:
            self.am.ended(number, -100, diagnostics="Container released on a *lost* node", node_fault=True)
        self.am.wait(1)
        self.grant()


@each_seed("rolling restarts", 100 if FULL else 3)
def test_every_node_is_restarted_under_an_application_and_it_succeeds(seed: int) -> None:
    """Restart 1,000 nodes one after another under an application of 1,000 containers."""
    cluster = Cluster(seed)
    cluster.grant()
    for node in cluster.chance.sample(cluster.nodes, COUNT):
        cluster.restart(node)
    am = cluster.am
    while am.state.roles[0].waiting:
        am.wait(1)
        cluster.grant()
    assert max(instance.tries for instance in am.state.instances) > 4, "else it would have ended well before, too"
    for number in [number for numbers in cluster.running.values() for number in numbers]:
        am.finished(number)
    am.settled()
    assert am.ending().final_status is FinalStatus.SUCCEEDED
