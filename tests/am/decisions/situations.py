"""Situations of an application with which tests of decisions begin."""

from __future__ import annotations

from typing import Any

from dlapp.am.model import events
from dlapp.am.model.state import Timing
from dlapp.cluster.engine import Heartbeat
from dlapp.values.messages import Phase, StoredOutput
from dlapp.values.spec import (
    Gang,
    RoleSpec,
)
from tests.am.driving import Driver


def four() -> RoleSpec:
    return RoleSpec(instances=4)


def pause_s(am: Driver) -> int:
    """Let time pass until a container is wanted again; how long that took [s]."""
    waited_s = 0
    while am.requested() == [0]:
        am.wait(1)
        waited_s += 1
    return waited_s


PATIENT = Timing(silence_ms=10**9)


def waits(am: Driver, number: int, seconds: int, service: str = "ZooKeeper at zk1") -> None:
    """A task waits for a service, and reports that it does."""
    for _ in range(seconds // 10):
        am.report(number, Phase.LEASING, waits_for=service)
        am.wait(10)


TEAM = (RoleSpec(name="ps", service=True), RoleSpec(name="worker", instances=2, retries=1))


def team_at_work(*roles: RoleSpec, **fields: Any) -> Driver:
    """A gang of two roles at work: containers 2 (ps) and 3, 4 (worker)."""
    am = Driver(*(roles or TEAM), gang=Gang.ALL, **fields)
    am.granted(2)
    am.granted(3, 4, request_id=2)
    for number in (2, 3, 4):
        am.hello(number)
        am.report(number, Phase.WAITING)
    for number in (2, 3, 4):
        am.report(number, Phase.RUNNING)
    return am


def empty(name: str = "") -> StoredOutput:
    return StoredOutput(name=name, part="part", files=0, size_bytes=0)


def second(first: Driver, *live: int, roles: tuple[RoleSpec, ...] = (), **fields: object) -> Driver:
    """A second attempt with the first one's journal; ``live`` are the containers that the engine names."""
    grants = tuple(first.grant(number) for number in live)
    spec = first.state.spec
    given: dict[str, Any] = {"gang": spec.gang, "success": spec.success}
    next_one = Driver(*(roles or spec.roles), attempt=2, former=first.journal(), live=grants, **given)
    next_one.now_ms = first.now_ms
    return next_one


def lost(am: Driver, number: int, attempt: int | None = None, *, answered: bool = False) -> list[events.Action]:
    """The engine has lost a container's node, and says so; nobody has seen its processes end."""
    am.do(Heartbeat(ending=(am.id(number, attempt),)))
    return am.ended(number, -100, attempt=attempt, node_fault=True, presumed=True, node_answered=answered)
