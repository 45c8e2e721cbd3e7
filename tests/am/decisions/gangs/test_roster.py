"""Rosters of an application: when its tasks get one, and who is in it."""

from __future__ import annotations

from typing import Any

import pytest

from dlapp.am.model.events import SendOrders
from dlapp.am.model.journal import replay
from dlapp.am.model.roster import roster_of
from dlapp.values.messages import Fault, Phase
from dlapp.values.roster import Roster
from dlapp.values.spec import Gang, RoleFailure, RoleSpec
from tests.am.driving import Driver, result

PAIR = RoleSpec(name="pair", instances=2, ports=1)


def roster(am: Driver, role: int = 0) -> Roster:
    """Return what a task of a role would get now."""
    return roster_of(am.state, am.state.roles[role].gate)


def gates(am: Driver, *numbers: int) -> list[tuple[bool, int]]:
    """Return for each container whether it may start, and the number of its roster."""
    return [(am.orders(number).go, am.orders(number).roster) for number in numbers]


def waiting(am: Driver, *numbers: int, request_id: int = 1) -> None:
    """Containers are granted, and their tasks wait at the gate."""
    am.granted(*numbers, request_id=request_id)
    for number in numbers:
        am.hello(number)
    for number in numbers:
        am.report(number, Phase.WAITING)


def test_a_gang_starts_with_one_roster_of_all_its_members() -> None:
    am = Driver(PAIR, RoleSpec(name="third"), gang=Gang.ALL)
    waiting(am, 2, 3)
    assert gates(am, 2, 3) == [(False, 0), (False, 0)]
    waiting(am, 4, request_id=2)
    assert gates(am, 2, 3, 4) == [(True, 1)] * 3
    found = roster(am)
    assert (found.generation, found.version) == (0, 0)
    assert [
        (member.role, member.role_index, member.index, member.host, member.address, member.ports)
        for member in found.members
    ] == [
        ("pair", 0, 0, "node1", "10.0.0.2", (20_000,)),
        ("pair", 1, 1, "node1", "10.0.0.3", (20_000,)),
        ("third", 0, 2, "node1", "10.0.0.4", ()),
    ]


def urls_of(am: Driver) -> list[tuple[str, str]]:
    return [(link.name, link.url) for link in am.view().links]


def test_the_page_leads_to_the_ports_of_services_that_run() -> None:
    am = Driver(PAIR, RoleSpec(name="board", service=True, ports=1), gang=Gang.ALL)
    waiting(am, 2, 3)
    waiting(am, 4, request_id=2)
    assert urls_of(am) == []
    for number in (2, 3, 4):
        am.report(number, Phase.RUNNING)
    assert urls_of(am) == [("board 0", "http://10.0.0.4:20000/")]
    am.report(4, Phase.RUNNING, address="fe80::1")
    assert urls_of(am) == [("board 0", "http://[fe80::1]:20000/")]


def test_an_application_without_gangs_and_ports_has_no_roster() -> None:
    am = Driver(RoleSpec(instances=2))
    waiting(am, 2, 3)
    assert gates(am, 2, 3) == [(True, 0), (True, 0)]
    assert roster(am).members == ()


@pytest.mark.proves("roster-token")
@pytest.mark.parametrize(
    "wrong",
    [
        {"address": None},
        {"address": "node7"},
        {"address": "10.0.0.3\n10.0.0.4 pair-1"},
        {"ports": ()},
        {"ports": (20_000, 20_001)},
        {"ports": (0,)},
        {"ports": (70_000,)},
    ],
)
def test_a_member_without_a_valid_place_does_not_open_the_gate(wrong: dict[str, Any]) -> None:
    am = Driver(PAIR, gang=Gang.ALL)
    waiting(am, 2)
    am.granted(3)
    am.hello(3)
    am.report(3, Phase.WAITING, **wrong)
    assert gates(am, 2, 3) == [(False, 0), (False, 0)]
    assert [member.index for member in roster(am).members] == [0]
    am.report(3, Phase.WAITING)
    assert gates(am, 2, 3) == [(True, 1), (True, 1)]


def test_a_member_that_is_replaced_alone_raises_the_version_for_all() -> None:
    am = Driver(RoleSpec(name="pair", instances=2, ports=1, retries=1, on_failure=RoleFailure.RESTART), gang=Gang.ALL)
    waiting(am, 2, 3)
    am.report(2, Phase.RUNNING)
    am.report(3, Phase.RUNNING)
    am.finished(3, result(Fault.USER, 1, None))
    assert [member.address for member in roster(am).members] == ["10.0.0.2", "10.0.0.3"], "it keeps its place"
    am.wait(5)
    am.granted(4)
    am.hello(4)
    assert gates(am, 4) == [(True, 0)], "it does not start before it has a place and a roster"
    am.report(4, Phase.WAITING)
    assert gates(am, 2, 4) == [(True, 2), (True, 2)]
    found = roster(am)
    assert (found.version, [member.address for member in found.members]) == (1, ["10.0.0.2", "10.0.0.4"])


def test_a_gang_that_is_restarted_has_a_new_roster_of_the_next_generation() -> None:
    am = Driver(RoleSpec(name="pair", instances=2, ports=1, retries=1), gang=Gang.ALL)
    waiting(am, 2, 3)
    am.report(2, Phase.RUNNING)
    am.report(3, Phase.RUNNING)
    am.finished(3, result(Fault.USER, 1, None))
    assert gates(am, 2) == [(False, 0)], "what it had does not count any more"
    am.report(2, Phase.WAITING, generation=1, ports=(20_007,))
    am.wait(5)
    waiting(am, 4)
    am.report(4, Phase.WAITING, generation=1)
    assert gates(am, 2, 4) == [(True, 2), (True, 2)]
    found = roster(am)
    assert (found.generation, found.version) == (1, 0)
    assert [(member.address, member.ports) for member in found.members] == [
        ("10.0.0.2", (20_007,)),
        ("10.0.0.4", (20_000,)),
    ]


def test_a_report_of_a_replaced_container_changes_no_address() -> None:
    am = Driver(PAIR, gang=Gang.ALL)
    waiting(am, 2, 3)
    am.report(2, Phase.RUNNING)
    am.report(2, Phase.RUNNING, address="10.0.0.9", nth=1)
    am.report(3, Phase.RUNNING, index=0, address="10.0.0.9")
    assert [member.address for member in roster(am).members] == ["10.0.0.2", "10.0.0.3"]


def test_without_a_gang_roster_changes_are_sent_once_a_second() -> None:
    am = Driver(RoleSpec(name="w", instances=20, ports=1), gang=Gang.NONE)
    am.granted(*range(2, 22))
    for number in range(2, 22):
        am.hello(number)
        assert gates(am, number) == [(True, 0)]
    reported = 0
    for number in range(2, 22):
        am.report(number, Phase.WAITING)
        assert am.orders(number).roster > 0
        reported += len(am.of(SendOrders))
    assert reported <= 2 * 20, "each task gets an order for its own start, and one or two for others"
    am.wait(2)
    assert len({am.orders(number).roster for number in range(2, 22)}) == 1
    assert len(roster(am).members) == 20


def test_a_gang_that_starts_later_is_added_to_the_roster_of_the_first() -> None:
    am = Driver(RoleSpec(name="a"), RoleSpec(name="b"), gang=Gang.ROLE)
    waiting(am, 2)
    assert [member.role for member in roster(am).members] == ["a"]
    am.wait(2)
    waiting(am, 3, request_id=2)
    am.wait(2)
    assert gates(am, 2, 3) == [(True, 2), (True, 2)]
    assert (roster(am).version, roster(am, 1).version) == (1, 0)


def test_the_next_attempt_has_a_roster_after_reports_of_all_members() -> None:
    am = Driver(PAIR, gang=Gang.ALL)
    waiting(am, 2, 3)
    am.report(2, Phase.RUNNING)
    lines = [item.record for item in am.all if hasattr(item, "record")]
    next_one = Driver(
        PAIR, attempt=2, former=replay(lines), live=(am.grant(2), am.grant(3)), gang=Gang.ALL, is_complete=True
    )
    next_one.report(3, Phase.WAITING, attempt=1, roster_version=4)
    assert next_one.orders(3, attempt=1).roster == 0, "else the payload would start without the other"
    next_one.report(2, Phase.RUNNING, attempt=1, roster_version=2)
    assert [next_one.orders(number, attempt=1).roster for number in (2, 3)] == [1, 1]
    found = roster(next_one)
    assert (found.version, [member.address for member in found.members]) == (5, ["10.0.0.2", "10.0.0.3"])
