"""The roster as a value."""

from __future__ import annotations

import pytest

from dlapp.values.roster import Member, Roster
from dlapp.values.serialization import from_json, to_json

WORKERS = tuple(Member(role="worker", role_index=n, index=n + 1, host=f"n{n}", address="10.0.0.1") for n in range(2))
CHIEF = Member(role="chief", role_index=0, index=0, host="n0", address="fe80::1", ports=(20_000, 20_001))
ROSTER = Roster(generation=1, version=2, members=(CHIEF, *WORKERS))


def test_members_are_found_by_their_role_and_by_their_index() -> None:
    assert ROSTER.of_role("worker") == WORKERS
    assert ROSTER.of_role("ps") == ()
    assert ROSTER.at(2) == WORKERS[1]


def test_an_index_that_is_not_in_the_roster_is_named() -> None:
    with pytest.raises(LookupError, match="container 3 is not in the roster"):
        ROSTER.at(3)


def test_a_roster_is_the_same_after_it_was_sent() -> None:
    assert from_json(Roster, to_json(ROSTER)) == ROSTER
