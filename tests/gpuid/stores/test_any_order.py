"""Both stores under any order of acquires, releases, deaths and looks, beside a model that knows the truth."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from dlapp.errors import DlappError
from dlapp.gpuid.liveness import probes
from dlapp.gpuid.rules import LeaseRequest, NotEnough
from dlapp.gpuid.stores.machine import MachineLedger
from dlapp.gpuid.stores.zookeeper import ZooKeeperLedger
from tests.services.processes.ledger_process import fake_devices
from tests.services.zookeeper import ZooKeeper, ledger_settings
from tests.tiers import FULL

DEVICE_COUNT = 5
_NUMBERS = itertools.count()


class Store(RuleBasedStateMachine):
    """Leases whose payloads are readers of a lifeline that this process holds for them."""

    ensemble = ""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.mkdtemp(prefix="dlapp-any-order-")
        where = ledger_settings(self.ensemble, f"/any-order-{next(_NUMBERS)}", "dlapp:secret", lock_dir=self.directory)
        devices = fake_devices(DEVICE_COUNT)
        self.ledgers: list[Any] = [
            ZooKeeperLedger(where, host="node7", discover=lambda: devices)
            if self.ensemble
            else MachineLedger(f"{self.directory}/gpus", discover=lambda: devices)
            for _ in range(2)
        ]
        self.held: dict[str, Any] = {}
        self.payload: dict[str, int] = {}
        self.orphans: dict[str, int] = {}
        self.broken: set[int] = set()
        self.numbers = itertools.count()
        self.ledgers[0].acquire(LeaseRequest("application_0", "first", "tony", 1, (), self.evidence("first"))).release()

    def teardown(self) -> None:
        for fd in self.payload.values():
            os.close(fd)
        for lease in self.held.values():
            lease.close()
        for ledger in self.ledgers:
            ledger.close()
        shutil.rmtree(self.directory)

    def evidence(self, container: str) -> dict[str, Any]:
        path = f"{self.directory}/{container}"
        os.mkfifo(path)
        dead = probes.this_task() | {"start_time": 1}
        return {"fifo": path, "task": dead}

    @property
    def used(self) -> int:
        """Cards that a living payload or task has."""
        alive = [len(lease.devices) for lease in self.held.values()]
        return sum(alive) + sum(count for name, count in self.orphans.items() if name in self.payload)

    def orphans_hold(self) -> set[str]:
        """Indices cannot be known here; the broken GPUs count as used where nobody holds them."""
        return {name for name in self.orphans if name in self.payload}

    @rule(which=st.integers(0, 1), gcores=st.integers(1, DEVICE_COUNT))
    def acquire(self, which: int, gcores: int) -> None:
        container = f"c{next(self.numbers)}"
        ask = LeaseRequest(f"application_{which}", container, "tony", gcores, (), self.evidence(container))
        try:
            lease = self.ledgers[which].acquire(ask)
        except NotEnough:
            assert gcores > DEVICE_COUNT - self.used - len(self.broken)
            return
        assert gcores <= DEVICE_COUNT - self.used
        assert not {device.index for device in lease.devices} & self.broken
        self.held[container] = lease
        self.payload[container] = os.open(f"{self.directory}/{container}", os.O_RDONLY | os.O_NONBLOCK)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def end_and_release(self, data: st.DataObject) -> None:
        container = data.draw(st.sampled_from(sorted(self.held)))
        os.close(self.payload.pop(container))
        assert self.held.pop(container).release()

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def task_dies(self, data: st.DataObject) -> None:
        container = data.draw(st.sampled_from(sorted(self.held)))
        lease = self.held.pop(container)
        self.orphans[container] = len(lease.devices)
        lease.close()

    @precondition(lambda self: self.orphans_hold())
    @rule(data=st.data())
    def orphan_ends(self, data: st.DataObject) -> None:
        os.close(self.payload.pop(data.draw(st.sampled_from(sorted(self.orphans_hold())))))

    @rule(which=st.integers(0, 1))
    def collect(self, which: int) -> None:
        state = {reclaimed.container: reclaimed.state for reclaimed in self.ledgers[which].reclaim()}
        for container in self.orphans_hold():
            assert state[container] == "alive"
        left = {lease.container for lease in self.ledgers[which].record().leases if lease.container}
        assert left == self.orphans_hold() | set(self.held)

    @rule(which=st.integers(0, 1), index=st.integers(0, DEVICE_COUNT - 1))
    def quarantine(self, which: int, index: int) -> None:
        self.ledgers[which].quarantine(f"gpu{index}", cause="operator", by="root")
        self.broken.add(index)

    @rule(which=st.integers(0, 1), index=st.integers(0, DEVICE_COUNT - 1))
    def heal(self, which: int, index: int) -> None:
        self.ledgers[which].heal(f"gpu{index}")
        self.broken.discard(index)

    @rule(which=st.integers(0, 1), gcores=st.sampled_from([-1, 0, DEVICE_COUNT + 1, 10**9]))
    def ask_for_what_cannot_be(self, which: int, gcores: int) -> None:
        with pytest.raises(DlappError):
            self.ledgers[which].acquire(LeaseRequest("application_0", "x", "tony", gcores))

    @invariant()
    def no_device_is_shared(self) -> None:
        record = self.ledgers[0].record()
        held = [uuid for lease in record.leases for uuid in lease.devices]
        assert len(held) == len(set(held))
        assert {lease.container for lease in record.leases} >= self.orphans_hold() | set(self.held)
        assert {device.device.index for device in record.devices if device.quarantine} == self.broken


@pytest.mark.slow
def test_any_order_of_events_on_the_machine_keeps_the_invariants() -> None:
    run_state_machine_as_test(Store, settings=settings(settings(), max_examples=200 if FULL else 25))


@pytest.mark.slow
def test_any_order_of_events_on_zookeeper_keeps_the_invariants(zookeeper: ZooKeeper) -> None:
    on_zookeeper = type("OnZooKeeper", (Store,), {"ensemble": zookeeper.ensemble})
    run_state_machine_as_test(on_zookeeper, settings=settings(settings(), max_examples=100 if FULL else 12))
