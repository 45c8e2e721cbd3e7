"""Launches of the head's mpirun in other containers: who may request them, who gets them, and how their ends return."""

from __future__ import annotations

from typing import Any

import pytest

from dlapp.values.messages import Fault, LaunchState, MpiLaunch, Phase, Stop
from dlapp.values.spec import AppSpec, Framework, Gang, RoleSpec
from tests.am.driving import Driver, result

WORKERS = RoleSpec(instances=3, ports=1, retries=1)
FIRST, SECOND = MpiLaunch(number=1, index=1, command="orted 1"), MpiLaunch(number=2, index=2, command="orted 2")
HEAD, ONE, TWO = 2, 3, 4


def driver(*roles: RoleSpec, **more: Any) -> Driver:
    return Driver(*(roles or (WORKERS,)), gang=Gang.ALL, framework=Framework.MPI, **more)


def running() -> Driver:
    """A gang of three that runs, and whose head launches in both of the others."""
    am = driver()
    am.running_gang(HEAD, ONE, TWO)
    am.report(HEAD, Phase.RUNNING, launches=(FIRST, SECOND))
    return am


def states(am: Driver) -> tuple[LaunchState, ...]:
    return am.orders(HEAD).launch_states


def test_each_container_receives_its_own_launches_once() -> None:
    am = running()
    assert [am.orders(item).launches for item in (HEAD, ONE, TWO)] == [(), (FIRST,), (SECOND,)]
    before = am.orders(ONE).number
    am.report(HEAD, Phase.RUNNING, launches=(FIRST, SECOND))
    am.report(ONE, Phase.RUNNING)
    assert am.orders(ONE).number == before


def test_the_head_receives_the_states_of_its_launches() -> None:
    am = running()
    am.report(ONE, Phase.RUNNING, launch_states=(LaunchState(number=1),))
    assert states(am) == (LaunchState(number=1),)
    am.report(TWO, Phase.RUNNING, launch_states=(LaunchState(number=2, status=7),))
    assert states(am) == (LaunchState(number=1), LaunchState(number=2, status=7))
    begun = MpiLaunch(number=1, index=1, command="")
    am.report(HEAD, Phase.RUNNING, launches=(begun,))
    assert states(am) == (LaunchState(number=1),)
    assert am.orders(TWO).launches == ()


@pytest.mark.proves("mpi-requests")
def test_only_the_head_can_launch() -> None:
    am = driver()
    am.running_gang(HEAD, ONE, TWO)
    am.report(ONE, Phase.RUNNING, launches=(SECOND, MpiLaunch(number=3, index=0, command="rm")))
    am.report(TWO, Phase.RUNNING)
    assert [am.orders(item).launches for item in (HEAD, ONE, TWO)] == [()] * 3


def test_an_application_of_another_framework_launches_nothing() -> None:
    am = Driver(WORKERS, gang=Gang.ALL, framework=Framework.PYTORCH)
    am.running_gang(HEAD, ONE, TWO)
    am.report(HEAD, Phase.RUNNING, launches=(FIRST,))
    assert am.orders(ONE).launches == ()


def test_a_launch_in_a_container_outside_the_gang_fails() -> None:
    am = driver(RoleSpec(instances=1, ports=1), RoleSpec(name="board", service=True))
    am.granted(2)
    am.granted(3, request_id=2)
    for number in (2, 3):
        am.hello(number)
        am.report(number, Phase.WAITING)
    places = (1, 0, 7, -1)
    launches = tuple(MpiLaunch(number=n, index=index, command="x") for n, index in enumerate(places))
    am.report(2, Phase.RUNNING, launches=launches)
    assert states(am) == tuple(LaunchState(number=n, status=255) for n in range(4))
    am.report(3, Phase.RUNNING)
    assert am.orders(3).launches == ()


def test_a_launch_in_a_container_that_has_ended_for_good_fails() -> None:
    am = driver(RoleSpec(instances=3, ports=1))
    am.running_gang(HEAD, ONE, TWO)
    am.finished(ONE, result(Fault.USER, 1))
    am.report(HEAD, Phase.RUNNING, launches=(FIRST,))
    assert states(am) == (LaunchState(number=1, status=255),)


def test_the_next_generation_starts_without_launches() -> None:
    am = running()
    am.report(HEAD, Phase.RUNNING, failure=result(Fault.USER, 1), launches=(FIRST, SECOND))
    assert am.orders(ONE).generation == 1
    assert [(am.orders(item).launches, am.orders(item).launch_states) for item in (HEAD, ONE, TWO)] == [((), ())] * 3
    am.report(HEAD, Phase.RUNNING, launches=(FIRST, SECOND))  # of the generation before, and late
    am.report(ONE, Phase.RUNNING)
    assert am.orders(ONE).launches == ()


def test_a_stopping_container_launches_nothing() -> None:
    am = driver()
    am.running_gang(HEAD, ONE, TWO)
    am.state.order(am.state.containers.by_id[am.id(ONE)], stop=Stop.SOFT)
    am.report(HEAD, Phase.RUNNING, launches=(FIRST,))
    assert am.orders(ONE).launches == ()


def test_a_next_attempt_learns_of_launches_from_the_tasks_in_any_order() -> None:
    am = running()
    am.report(ONE, Phase.RUNNING, launch_states=(LaunchState(number=1),))
    live = tuple(am.grant(number) for number in (HEAD, ONE, TWO))
    begun = MpiLaunch(number=1, index=1, command="")
    for first, second in ((HEAD, ONE), (ONE, HEAD)):
        following = driver(attempt=2, former=am.journal(), live=live)
        for number in (HEAD, ONE, TWO):
            following.hello(number, number - 2, Phase.RUNNING, attempt=1)
        for number in (first, second, first):
            report_fields: dict[str, Any] = {"launches": (begun,)} if number == HEAD else {}
            if number == ONE and following.orders(ONE, attempt=1).launches:
                report_fields = {"launch_states": (LaunchState(number=1),)}
            following.report(number, Phase.RUNNING, attempt=1, **report_fields)
        following.report(TWO, Phase.RUNNING, attempt=1)
        assert following.orders(ONE, attempt=1).launches == (begun,)


def test_the_head_alone_decides() -> None:
    am = running()
    am.finished(HEAD)
    assert am.stops(ONE, TWO) == [Stop.SOFT, Stop.SOFT]
    spec: AppSpec = am.state.spec
    assert spec.head == 0
