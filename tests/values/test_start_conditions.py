"""Test conditions for the start of an application: what a file may say, and what ends of others make of it."""

from __future__ import annotations

import pytest

from dlapp.errors import SpecError
from dlapp.values.spec import AppSpec
from dlapp.values.start_conditions import (
    FAILED,
    KILLED,
    SUCCEEDED,
    UNKNOWN,
    After,
    RequiredEnd,
    evaluate_conditions,
    how_ended,
    read_after,
    waiting_text,
)

ONE, TWO = "application_1700000000000_0001", "application_1700000000000_0002"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", ()),
        (ONE, (After(ONE),)),
        (f"{ONE}:ok", (After(ONE, RequiredEnd.OK),)),
        ("0042, last:any", (After("0042"), After("last", RequiredEnd.ANY))),
        (f" {ONE}:any ,\n{TWO}:failed,", (After(ONE, RequiredEnd.ANY), After(TWO, RequiredEnd.FAILED))),
    ],
)
def test_a_file_names_ids_and_how_they_are_to_end(text: str, found: tuple[After, ...]) -> None:
    assert read_after(text) == found
    assert read_after(", ".join(map(str, found))) == found


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("the-first", "is not ID, ID:ok, ID:any or ID:failed"),
        ("0042 0043", "is not ID"),
        (f"{ONE}:", "is neither ok nor any nor failed"),
        (f"{ONE}:succeeded", "is neither ok nor any nor failed"),
        (f"{ONE}:ok, {ONE}:failed", f"{ONE} appears twice"),
        (", ".join(f"application_1_{number:04d}" for number in range(101)), "has 101 applications, the maximum is 100"),
    ],
)
def test_anything_else_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        read_after(text)


def test_a_program_cannot_build_conditions_that_a_file_cannot() -> None:
    with pytest.raises(SpecError, match="is not an application's id"):
        After("the first")
    with pytest.raises(SpecError, match="appears twice"):
        AppSpec(username="u", appname="a", command=("true",), after=(After(ONE), After(ONE, RequiredEnd.ANY)))


@pytest.mark.parametrize(
    ("end", "met"),
    [
        (RequiredEnd.OK, {SUCCEEDED}),
        (RequiredEnd.FAILED, {FAILED, KILLED}),
        (RequiredEnd.ANY, {SUCCEEDED, FAILED, KILLED, UNKNOWN}),
    ],
)
def test_an_end_meets_a_condition_or_makes_it_impossible(end: RequiredEnd, met: set[str]) -> None:
    assert evaluate_conditions([After(ONE, end)], {}).pending == (After(ONE, end),)
    for how in (SUCCEEDED, FAILED, KILLED, UNKNOWN):
        pending, failure = evaluate_conditions([After(ONE, end)], {ONE: how})
        assert pending == ()
        assert bool(failure) == (how not in met)
        assert not failure or failure.endswith(f"so after={ONE}:{end.value} can never hold")


def test_one_impossible_condition_decides_before_the_others() -> None:
    conditions = [After(ONE), After(TWO)]
    assert evaluate_conditions(conditions, {ONE: SUCCEEDED}).pending == (After(TWO),)
    assert evaluate_conditions(conditions, {TWO: FAILED}).failure == f"{TWO} failed, so after={TWO}:ok can never hold"


def test_a_long_list_is_shown_cut() -> None:
    many = [After(f"application_1_{number:04d}") for number in range(5)]
    assert waiting_text(many[:1]) == "waits for the end of application_1_0000 (ok)"
    assert waiting_text(many).endswith("application_1_0002 (ok) and 2 more")


@pytest.mark.parametrize(
    ("final", "how"), [("SUCCEEDED", SUCCEEDED), ("KILLED", KILLED), ("FAILED", FAILED), ("", FAILED)]
)
def test_every_final_status_but_success_is_a_failure(final: str, how: str) -> None:
    assert how_ended(final) == how
