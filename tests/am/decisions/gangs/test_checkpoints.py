"""Test with which checkpoint the members of a gang begin."""

from __future__ import annotations

import pytest

from dlapp.am.model import journal
from dlapp.am.model.checkpoints import GangCheckpoints
from dlapp.am.model.state import ApplicationState
from dlapp.am.view import public_view
from dlapp.value import replace
from dlapp.values.ids import ApplicationId
from dlapp.values.messages import CheckpointStatus, Orders, Phase, are_of_a_later_start, checkpoints_after
from dlapp.values.report import CheckpointView
from dlapp.values.spec import AppSpec, CheckpointSpec, Gang, RoleSpec
from tests.am.driving import Driver, submission

RUN = checkpoints_after(0, 2)


def of_every_index(*found: set[int]) -> GangCheckpoints:
    known = GangCheckpoints(len(found), range(len(found)), of_every_index=True)
    known.found = {index: frozenset(numbers) for index, numbers in enumerate(found)}
    return known


@pytest.mark.parametrize(
    ("found", "number"),
    [
        ([set(), set()], 0),
        ([{1, 2, 3}, {1, 2, 3}], 3),
        ([{2, 3}, {1, 2}], 2),  # one's copy of 3 is missing
        ([{3}, {1, 2}], 0),  # no two parts are of the same step
    ],
)
def test_a_gang_starts_from_the_newest_common_checkpoint(found: list[set[int]], number: int) -> None:
    known = of_every_index(*found)
    assert known.choose(1)
    assert known.number == number
    assert not known.choose(1)


def test_no_checkpoint_is_chosen_before_all_members_have_listed_theirs() -> None:
    known = GangCheckpoints(2, [0], of_every_index=False)
    known.found[0] = frozenset({1})
    assert not known.choose(1)
    known.found[1] = frozenset({1, 2})  # it looked later, and somebody has stored another one by then
    assert known.choose(1)
    assert known.number == 1


def test_a_checkpoint_stored_after_a_member_listed_is_restored_or_refused() -> None:
    known = GangCheckpoints(2, [0], of_every_index=False)
    known.found = {0: frozenset({1, 2}), 1: frozenset({1})}  # 1 looked while the preempted container was storing
    assert known.choose(1)
    assert known.number == 2
    known.refused.add(2)
    assert known.choose(1)
    assert known.number == 1
    known.begin()
    assert known.refused == set()


def test_a_checkpoint_that_one_member_cannot_restore_is_replaced_for_all() -> None:
    known = of_every_index({1, 2}, {1, 2})
    known.choose(1)
    known.found[1] = frozenset({1})
    assert known.choose(1)
    assert known.number == 1


def test_a_number_is_complete_when_all_have_stored_it() -> None:
    known = of_every_index({1}, {1})
    assert known.update_complete()
    known.found[0] = frozenset({1, 2})
    assert not known.update_complete()
    known.found[1] = frozenset({1, 2})
    assert known.update_complete()
    assert known.complete == 2


def test_a_member_started_alone_resumes_from_the_newest_checkpoint() -> None:
    known = GangCheckpoints(3, [0], of_every_index=False)
    known.found = {0: frozenset({1, 2}), 1: frozenset({1}), 2: frozenset({1, 2})}
    assert known.choose_for_member(2, 2) == (2, checkpoints_after(2, 2))
    del known.found[0]  # who stores is being started again, too
    assert known.choose_for_member(2, 2)[0] == 2


def test_each_start_numbers_its_checkpoints_apart_from_all_others() -> None:
    assert checkpoints_after(0, 1) == 0
    found = after = 0
    for starts in range(2, 50):  # also if the one before has stored nothing
        former, after = after, checkpoints_after(found, starts)
        assert are_of_a_later_start(after + 1, former)
        assert not are_of_a_later_start(former + RUN, former)
        found = after + starts % 3


def test_the_next_attempt_restores_the_checkpoint_of_the_generation() -> None:
    lines = [
        {"kind": "gate", "t": 1, "role": "worker", "open": True, "generation": 0},
        {"kind": "gate", "t": 2, "role": "worker", "open": True, "generation": 1, "checkpoint": 3, "after": RUN},
    ]
    assert journal.replay(lines[:1]).gates["worker"].checkpoint is None
    assert journal.replay(lines).gates["worker"] == (True, 1, 3, RUN, (), 0)


@pytest.mark.parametrize(
    ("role", "gang", "expected"),
    [
        (None, Gang.ALL, {"ps": (True, False), "worker": (True, True), "eval": (True, False)}),
        ("eval", Gang.ALL, {"ps": (True, False), "worker": (True, False), "eval": (True, True)}),
        (None, Gang.ROLE, {"ps": (False, False), "worker": (True, True), "eval": (False, False)}),
        ("all", Gang.ROLE, {"ps": (True, True), "worker": (True, True), "eval": (True, True)}),
        ("all", Gang.NONE, {"ps": (True, True), "worker": (True, True), "eval": (True, True)}),
    ],
)
def test_checkpoint_roles_restore_and_store_as_configured(
    role: str | None, gang: Gang, expected: dict[str, tuple[bool, bool]]
) -> None:
    spec = AppSpec(
        username="u",
        appname="a",
        command=("x",),
        roles=(RoleSpec(name="ps", service=True), RoleSpec(instances=2), RoleSpec(name="eval")),
        gang=gang,
        checkpoint=CheckpointSpec(path="m", target="file:///c", role=role),
    )
    found = {item.name: spec.checkpoint_of(item) for item in spec.roles}
    assert {name: (one is not None, stores) for name, (one, stores) in found.items()} == expected


def test_two_applications_resumed_from_one_checkpoint_use_different_numbers() -> None:
    resumed = replace(submission(RoleSpec()), checkpoints_of="application_1_0001")
    first, second = (ApplicationState(resumed, ApplicationId(1, number), 1) for number in (41, 42))
    ranges = [
        checkpoints_after(7, item.checkpoint_starts(count)) for item in (first, second) for count in range(1, 100)
    ]
    assert len(set(ranges)) == len(ranges)
    assert ranges == sorted(ranges)
    assert ApplicationState(submission(RoleSpec()), ApplicationId(1, 41), 1).checkpoint_starts(2) == 2


def report_checkpoints(am: Driver, number: int, found: tuple[int, ...]) -> Orders:
    am.report(number, Phase.FETCHING, index=number - 2, address="10.0.0.1", checkpoints=found)
    return am.orders(number)


def test_the_gate_opens_when_all_have_restored_the_chosen_checkpoint() -> None:
    checkpoint = CheckpointSpec(path="model", target="file:///kept", role="all")
    am = Driver(RoleSpec(instances=2), gang=Gang.ALL, checkpoint=checkpoint)
    for number in (2, 3):
        am.granted(number)
        am.hello(number)
    assert report_checkpoints(am, 2, (1, 2)).checkpoint is None
    assert report_checkpoints(am, 3, (1,)).checkpoint == 1
    assert am.orders(2).checkpoint == 1
    am.report(
        2, Phase.WAITING, index=0, checkpoints=(1, 2), restored=2, address="10.0.0.1"
    )  # it heard of no choice yet
    am.report(3, Phase.WAITING, index=1, checkpoints=(1,), restored=1, address="10.0.0.1")
    assert not am.orders(3).go
    am.report(2, Phase.WAITING, index=0, checkpoints=(1, 2), restored=1, address="10.0.0.1")
    assert am.orders(2).go
    assert am.orders(3).go
    former = am.journal().gates["worker"]
    assert (former.open, former.checkpoint) == (True, 1)


def test_a_member_that_cannot_restore_the_chosen_checkpoint_gets_another() -> None:
    am = Driver(RoleSpec(instances=2), gang=Gang.ALL, checkpoint=CheckpointSpec(path="model", target="file:///kept"))
    for number in (2, 3):
        am.granted(number)
        am.hello(number)
    report_checkpoints(am, 3, ())
    assert report_checkpoints(am, 2, (1,)).checkpoint == 1
    assert am.orders(3).checkpoint == 1
    am.report(3, Phase.FETCHING, index=1, address="10.0.0.1", checkpoints=(), not_whole=1)
    assert am.orders(2).checkpoint == am.orders(3).checkpoint == 0


@pytest.mark.parametrize(
    ("role", "gang", "entry", "expected"),
    [
        (None, Gang.NONE, {}, False),
        (None, Gang.NONE, {0: ()}, False),
        (None, Gang.NONE, {0: (5,)}, True),
        (None, Gang.ALL, {0: (5,), 1: ()}, True),
        ("all", Gang.ALL, {0: (5,)}, False),  # of the other one nothing is known
        ("all", Gang.ALL, {0: (5, 6), 1: (4,)}, False),
        ("all", Gang.ALL, {0: (5, 6), 1: (4, 5)}, True),
        ("all", Gang.NONE, {0: (), 1: (4,)}, True),
    ],
)
def test_an_application_can_be_resumed_when_there_is_a_checkpoint_of_all_that_begin_together(
    role: str | None, gang: Gang, entry: dict[int, tuple[int, ...]], expected: bool
) -> None:
    checkpoint = CheckpointSpec(path="model", target="file:///kept", role=role)
    am = Driver(RoleSpec(instances=1 if (role, gang) == (None, Gang.NONE) else 2), gang=gang, checkpoint=checkpoint)
    for number in range(2, 2 + am.state.spec.containers):
        am.granted(number)
        am.hello(number)
    for index, numbers in entry.items():
        am.report(index + 2, Phase.FETCHING, index=index, checkpoints=numbers, address="10.0.0.1")
    assert am.view().resumable == expected


def test_the_newest_checkpoint_stays_known_when_its_container_is_lost() -> None:
    am = Driver(RoleSpec(), checkpoint=CheckpointSpec(path="model", target="file:///kept"))
    assert am.view().checkpoint == CheckpointView(why="the program has not started")
    am.granted(2)
    am.hello(2)
    stored = CheckpointStatus(number=3, step=500, at_ms=7)
    am.report(2, Phase.RUNNING, index=0, checkpoint=stored)
    assert am.view().checkpoint == CheckpointView(number=3, step=500, at_ms=7)
    am.report(2, Phase.RUNNING, index=0, checkpoint=CheckpointStatus(why="model/a is open for writing"))
    expected = CheckpointView(number=3, step=500, at_ms=7, why="model/a is open for writing")
    assert am.view().checkpoint == expected
    assert public_view(am.view()).checkpoint == replace(expected, why="")  # it has the name of a file
    assert Driver(RoleSpec()).view().checkpoint is None


def test_the_oldest_checkpoint_of_all_containers_is_shown() -> None:
    checkpoint = CheckpointSpec(path="model", target="file:///kept", role="all")
    am = Driver(RoleSpec(instances=2), gang=Gang.ALL, checkpoint=checkpoint)
    for number in (2, 3):
        am.granted(number)
        am.hello(number)
    for index, at_ms, shown in ((1, 9, 0), (0, 8, 0), (0, 10, 1)):
        status = CheckpointStatus(number=at_ms, at_ms=at_ms)
        am.report(index + 2, Phase.RUNNING, index=index, checkpoint=status, address="10.0.0.1")
        found = am.view().checkpoint
        assert found is not None
        assert found.container == shown
