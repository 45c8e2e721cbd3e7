"""Test with which checkpoint the members of a gang begin."""

from __future__ import annotations

import pytest

from dlapp.am.model import journal
from dlapp.am.model.checkpoints import GangCheckpoints
from dlapp.messages import are_of_a_later_start, checkpoints_after
from dlapp.spec import AppSpec, CheckpointSpec, Gang, RoleSpec

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
def test_a_gang_begins_with_the_newest_checkpoint_that_all_have(found: list[set[int]], number: int) -> None:
    known = of_every_index(*found)
    assert known.choose(1)
    assert known.number == number
    assert not known.choose(1)


def test_nothing_is_chosen_before_all_have_looked() -> None:
    known = GangCheckpoints(2, [0], of_every_index=False)
    known.found[0] = frozenset({1})
    assert not known.choose(1)
    known.found[1] = frozenset({1, 2})  # it looked later, and somebody has stored another one by then
    assert known.choose(1)
    assert known.number == 1


def test_one_that_a_member_cannot_restore_is_replaced_for_all() -> None:
    known = of_every_index({1, 2}, {1, 2})
    known.choose(1)
    known.found[1] = frozenset({1})
    assert known.choose(1)
    assert known.number == 1


def test_a_number_is_complete_when_all_have_stored_it() -> None:
    known = of_every_index({1}, {1})
    assert known.complete_now()
    known.found[0] = frozenset({1, 2})
    assert not known.complete_now()
    known.found[1] = frozenset({1, 2})
    assert known.complete_now()
    assert known.complete == 2


def test_a_member_that_is_started_alone_begins_with_the_newest() -> None:
    known = GangCheckpoints(3, [0], of_every_index=False)
    known.found = {0: frozenset({1, 2}), 1: frozenset({1}), 2: frozenset({1, 2})}
    assert known.choose_alone(2, 2) == (2, checkpoints_after(2, 2))
    del known.found[0]  # who stores is being started again, too
    assert known.choose_alone(2, 2)[0] == 2


def test_each_start_numbers_its_checkpoints_apart_from_all_others() -> None:
    assert checkpoints_after(0, 1) == 0
    found = after = 0
    for starts in range(2, 50):  # also if the one before has stored nothing
        former, after = after, checkpoints_after(found, starts)
        assert are_of_a_later_start(after + 1, former)
        assert not are_of_a_later_start(former + RUN, former)
        found = after + starts % 3


def test_a_next_attempt_knows_with_which_checkpoint_the_generation_began() -> None:
    lines = [
        {"kind": "gate", "t": 1, "role": "worker", "open": True, "generation": 0},
        {"kind": "gate", "t": 2, "role": "worker", "open": True, "generation": 1, "checkpoint": 3, "after": RUN},
    ]
    assert journal.replay(lines[:1]).gates["worker"].checkpoint is None
    assert journal.replay(lines).gates["worker"] == (True, 1, 3, RUN)


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
def test_who_begins_with_checkpoints_and_who_stores_them(
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
    found = {one.name: spec.checkpoint_of(one) for one in spec.roles}
    assert {name: (one is not None, stores) for name, (one, stores) in found.items()} == expected
