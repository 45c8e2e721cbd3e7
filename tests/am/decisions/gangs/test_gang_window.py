"""Gangs that are not complete in their window, alone and on a cluster that is too small for all of them at once."""

from __future__ import annotations

import random
from typing import Any

import pytest

from dlapp.am.decisions.gangs import gang_window
from dlapp.am.model.events import SettleOutputs
from dlapp.am.model.state import Timing
from dlapp.values.messages import Fault, Phase, Stop
from dlapp.values.spec import Gang, Resources, RoleSpec
from tests.am.driving import Driver, result
from tests.seeds import seeds
from tests.tiers import FULL


def half_held(**fields: Any) -> Driver:
    """A gang of three that has two containers, one of them at the gate."""
    am = Driver(
        RoleSpec(instances=3, **fields), gang=Gang.ALL, gang_window_s=60.0, timing=Timing(silence_ms=10_000_000)
    )
    am.state.chance = random.Random(2)  # its first pause lasts 9.6 s
    am.granted(2, 3)
    for number in (2, 3):
        am.hello(number)
    am.report(2, Phase.WAITING)
    return am


def test_an_incomplete_gang_releases_all_after_its_window_and_retries_after_a_pause() -> None:
    am = half_held()
    am.report(3, Phase.WAITING)
    assert am.requested() == [1]
    for _ in range(5):
        am.wait(10)
        for number in (2, 3):
            am.report(number, Phase.WAITING)
    assert am.stops(2, 3) == [Stop.NO] * 2
    am.wait(12)
    assert am.stops(2, 3) == [Stop.NOW] * 2
    assert am.requested() == [0]
    am.granted(4)
    assert am.id(4) in am.master.releases(), "a grant that comes too late is given back, too"
    for number in (2, 3):
        am.finished(number, result(Fault.STOPPED, None, None))
    assert "released its containers (gang_window), retries at" in am.phase()
    am.wait(11)
    assert am.requested() == [3]
    assert [(instance.user_faults, instance.node_faults) for instance in am.state.instances] == [(0, 0)] * 3
    assert am.state.nodes.avoided.names(am.state.awake_ms) == ()
    am.running_gang(5, 6, 7)
    assert am.state.payload_ran


def test_the_pause_after_a_window_is_random_and_its_limit_doubles_to_ten_minutes() -> None:
    am = half_held()
    am.state.chance = random.Random(1)
    pauses, number = [], 10
    for _ in range(12):
        am.wait(62)
        until_ms = am.state.gates[0].paused_until_ms
        assert until_ms is not None
        pauses.append(until_ms - am.state.awake_ms)
        for container in list(am.state.containers.open.values()):
            am.ended(container.container_id.number)
        am.wait(600)
        am.granted(number)
        am.hello(number)
        number += 1
    assert len(set(pauses)) == 12
    assert all(0 < pause <= min(10_000 << place, 600_000) for place, pause in enumerate(pauses))
    assert max(pauses) > 100_000


def test_the_window_of_a_gang_does_not_count_while_all_have_containers_and_none_waits_for_gpus() -> None:
    am = half_held(resources=Resources(memory_mib=1, gcores=2))
    am.granted(4)
    am.hello(4)

    def pass_time(seconds: int, phase: Phase, gpus: tuple[int, ...] = ()) -> list[Stop]:
        for _ in range(seconds // 10):
            am.wait(10)
            for number in (2, 3):
                am.report(number, Phase.WAITING, gpus=(0, 1))
            am.report(4, phase, gpus=gpus)
        return am.stops(2, 3, 4)

    assert pass_time(100, Phase.FETCHING) == [Stop.NO] * 3
    assert pass_time(40, Phase.LEASING) == [Stop.NO] * 3
    assert "2 of 3 held, waiting for 2 GPUs, until" in am.phase()
    assert pass_time(100, Phase.LEASING, (2, 3)) == [Stop.NO] * 3, "its container is made"
    assert pass_time(50, Phase.LEASING) == [Stop.NOW] * 3


def test_the_window_of_a_restarted_gang_starts_over() -> None:
    am = Driver(RoleSpec(instances=2, retries=1), gang=Gang.ALL, gang_window_s=60.0)
    am.running_gang(2, 3)
    am.wait(50)
    for number in (2, 3):
        am.report(number, Phase.RUNNING)
    am.finished(2, result(Fault.USER, 1))
    am.wait(50)
    am.report(3, Phase.WAITING, generation=1)
    assert am.stops(3) == [Stop.NO]
    assert "1 of 2 held, waiting for 1 container, until" in am.phase()
    am.wait(15)
    assert am.stops(3) == [Stop.NOW]


# ---- many gangs on one cluster ----


class Contender:
    """One gang with its ApplicationMaster, and the tasks in its containers.

    Args:
        members: how many containers it needs, each with as many GPUs as ``gcores`` says.
        runtime_s: of its payloads.
    """

    def __init__(self, seed: str, members: int, gcores: int, runtime_s: int, window_s: float) -> None:
        self.chance = random.Random(seed)
        self.members, self.gcores, self.runtime_s = members, gcores, runtime_s
        resources = Resources(memory_mib=1, gcores=gcores)
        self.am = Driver(RoleSpec(instances=members, resources=resources), gang=Gang.ALL, gang_window_s=window_s)
        self.am.state.chance = self.chance
        self.next = 2
        self.prepares: dict[int, int] = {}
        self.leasing: dict[int, None] = {}
        self.running: dict[int, int] = {}
        self.holds: dict[int, int] = {}
        self.is_done = False

    def step(self, cluster: Cluster) -> None:
        """Live through one second."""
        self.am.wait(1)
        self._take_grants(cluster)
        for number in list(self.prepares):
            self.prepares[number] -= 1
            if self.prepares[number] <= 0:
                del self.prepares[number]
                self.leasing[number] = None
                self.am.report(number, Phase.LEASING)
        for number in list(self.leasing):
            if cluster.has_leases and not cluster.take(self.gcores):
                continue
            if cluster.has_leases:
                self.holds[number] = self.gcores
            del self.leasing[number]
            self.am.report(number, Phase.WAITING, gpus=tuple(range(self.gcores)))
        for number in self._live():
            orders = self.am.master.orders_of(self.am.id(number))
            if orders is not None and orders.stop is not Stop.NO:
                self._end(number, cluster, result(Fault.STOPPED, None, None))
            elif orders is not None and orders.go and number not in self.running:
                self.running[number] = self.runtime_s
                self.am.report(number, Phase.RUNNING, gpus=tuple(range(self.gcores)))
            elif number in self.running:
                self.running[number] -= 1
                if self.running[number] <= 0:
                    self._end(number, cluster, result())
            elif cluster.now % 20 == 0 and number not in self.prepares:
                phase = Phase.LEASING if number in self.leasing else Phase.WAITING
                self.am.report(number, phase, gpus=() if number in self.leasing else tuple(range(self.gcores)))
        if not self.is_done and self.am.of(SettleOutputs, self.am.all):
            self.is_done = True

    def _take_grants(self, cluster: Cluster) -> None:
        (asked,) = self.am.requested()
        for _ in range(min(asked, cluster.grants(self.chance))):
            if not cluster.has_leases and not cluster.take(self.gcores):
                return
            number, self.next = self.next, self.next + 1
            if not cluster.has_leases:
                self.holds[number] = self.gcores
            self.am.granted(number)
            self.am.hello(number)
            self.prepares[number] = self.chance.randint(1, 5)

    def _live(self) -> list[int]:
        return [item.number for item in self.am.state.containers.open]

    def _end(self, number: int, cluster: Cluster, ended: Any) -> None:
        self.prepares.pop(number, None)
        self.leasing.pop(number, None)
        self.running.pop(number, None)
        self.am.finished(number, ended)
        cluster.free += self.holds.pop(number, 0)


class Cluster:
    """GPUs that gangs ask for: by containers, or by leases in containers that are given at once."""

    def __init__(self, gpus: int, *, has_leases: bool, most_grants: int) -> None:
        self.free, self.has_leases, self.most_grants, self.now = gpus, has_leases, most_grants, 0

    def take(self, gpus: int) -> bool:
        """Take GPUs, if so many are free."""
        if self.free < gpus:
            return False
        self.free -= gpus
        return True

    def grants(self, chance: random.Random) -> int:
        """Return how many containers one heartbeat may bring."""
        return chance.randint(0, self.most_grants)

    def run(self, gangs: list[Contender], chance: random.Random, limit_s: int) -> int:
        """Run all gangs to their end; the answer is how long that took [s]."""
        left = list(gangs)
        while left:
            self.now += 1
            assert self.now < limit_s, (
                f"{len(left)} gangs of {len(gangs)} do not end: {[item.am.phase() for item in left]}"
            )
            chance.shuffle(left)
            for item in left:
                item.step(self)
            left = [item for item in left if not item.is_done]
        return self.now


@pytest.mark.parametrize("has_leases", [False, True], ids=["containers", "leases"])
def test_two_gangs_of_four_gpus_always_both_finish_on_six(has_leases: bool) -> None:
    released = 0
    for seed in seeds("two gangs", 200 if FULL else 20):
        gangs = [Contender(f"{seed} {n}", 4, 1, 30, 20.0) for n in range(2)]
        cluster = Cluster(6, has_leases=has_leases, most_grants=1)
        cluster.run(gangs, random.Random(seed), 3600)
        assert cluster.free == 6, f"seed {seed}"
        released += any(gang.next > 6 for gang in gangs)
    assert released > 5, "they should have been in each other's way"


@pytest.mark.parametrize("has_leases", [False, True], ids=["containers", "leases"])
def test_many_gangs_on_a_contended_cluster_always_all_finish(has_leases: bool) -> None:
    for seed in seeds("many gangs", 20 if FULL else 3):
        chance = random.Random(seed)
        gpus = chance.randint(8, 40)
        sizes = [(chance.randint(1, 6), chance.choice((1, 1, 2, 4))) for _ in range(12)]
        gangs = [
            Contender(f"{seed} {n}", min(members, gpus // gcores), gcores, chance.randint(5, 200), 30.0)
            for n, (members, gcores) in enumerate(sizes)
        ]
        cluster = Cluster(gpus, has_leases=has_leases, most_grants=chance.randint(1, 3))
        cluster.run(gangs, chance, 4 * 3600)
        assert cluster.free == gpus, f"seed {seed}"


def test_gangs_that_keep_partial_allocations_block_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gang_window, "check", lambda _: None)
    blocked = 0
    for seed in range(10):
        gangs = [Contender(f"{seed} {n}", 4, 1, 30, 20.0) for n in range(2)]
        try:
            Cluster(6, has_leases=False, most_grants=1).run(gangs, random.Random(seed), 300)
        except AssertionError:
            blocked += 1
    assert blocked > 0
