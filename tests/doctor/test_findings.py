"""Checks and their findings, without anything to look at."""

from __future__ import annotations

from collections.abc import Iterator

from dlapp.doctor.findings import FAIL, PASS, WARN, Check, Finding, failed, passed, run_checks, warned
from dlapp.errors import Unreachable


def test_each_finding_of_each_check_comes_in_order() -> None:
    def first() -> Iterator[Finding]:
        yield passed("a", "is there")
        yield warned("a.b", "is small", "make room")

    found = list(run_checks([Check("a", first), Check("c", lambda: [failed("c", "is gone", "bring it")])]))
    assert [(one.verdict, one.subject, one.repair) for one in found] == [
        (PASS, "a", ""),
        (WARN, "a.b", "make room"),
        (FAIL, "c", "bring it"),
    ]


def test_what_a_check_raises_is_a_finding_and_the_next_is_carried_out() -> None:
    def dead() -> Iterator[Finding]:
        yield passed("server", "has a name")
        raise Unreachable("server: refused\nand more")

    def full() -> Iterator[Finding]:
        raise OSError(28, "No space left on device", "/disk/x")
        yield

    def broken() -> Iterator[Finding]:
        raise KeyError("x")
        yield

    checks = [Check("server", dead), Check("disk", full), Check("other", broken), Check("last", list)]
    found = list(run_checks(checks))
    assert [(one.verdict, one.found) for one in found] == [
        (PASS, "has a name"),
        (FAIL, "server: refused and more"),
        (FAIL, "/disk/x: No space left on device"),
        (FAIL, "KeyError: 'x'"),
    ]
    assert "report it" in found[-1].repair
