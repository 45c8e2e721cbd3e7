"""Test the detection of payloads that hang."""

from __future__ import annotations

from typing import Any

import pytest

from dlapp.values.messages import Fault, PayloadStatus, Phase
from dlapp.values.spec import (
    Dependency,
    Gang,
    Resources,
    RoleSpec,
    Until,
)
from dlapp.values.usage import DeviceUsage, Usage
from tests.am.driving import Driver, result


def team_that_reports(**fields: Any) -> Driver:
    am = Driver(RoleSpec(instances=2, retries=1), gang=Gang.ALL, hang_timeout_s=60.0, **fields)
    am.running_gang(2, 3)
    return am


def status_of_lines(lines: int) -> PayloadStatus:
    return PayloadStatus(step=lines, lines=lines)


def keep_talking(am: Driver, seconds: int, *numbers: int, **fields: Any) -> None:
    for _ in range(seconds // 10):
        am.wait(10)
        for number in numbers:
            am.report(number, Phase.RUNNING, **fields)


def test_a_gang_without_reports_is_aborted_as_a_whole() -> None:
    am = team_that_reports()
    am.report(2, Phase.RUNNING, payload=status_of_lines(1))
    keep_talking(am, 50, 2, 3, payload=status_of_lines(1))
    assert not am.orders(2).abort
    keep_talking(am, 20, 2, payload=status_of_lines(1))
    assert [am.orders(n).abort for n in (2, 3)] == ["no report for 60 s (hang_timeout)"] * 2


def test_a_rank_that_reports_is_a_sign_of_life_of_its_gang() -> None:
    am = team_that_reports()
    am.report(2, Phase.RUNNING, payload=status_of_lines(1))
    for lines in range(1, 20):
        keep_talking(am, 50, 2)
        am.report(3, Phase.RUNNING, payload=status_of_lines(lines))
    assert (am.orders(2).abort, am.orders(3).abort) == ("", "")


def test_payloads_that_never_reported_are_not_taken_to_hang() -> None:
    am = team_that_reports()
    keep_talking(am, 600, 2, 3)
    am.report(3, Phase.RUNNING, payload=PayloadStatus(ready=True))  # its port accepts connections
    keep_talking(am, 600, 2, 3, payload=PayloadStatus(ready=True))
    assert (am.orders(2).abort, am.orders(3).abort) == ("", "")


IDLE, BUSY = Usage(at_ms=0, cpu_cores=0.004), Usage(at_ms=0, cpu_cores=0.9)


@pytest.mark.parametrize("is_wanted", [True, False])
def test_a_gang_that_never_reports_is_aborted_if_all_of_it_is_idle_and_hang_idle_is_set(is_wanted: bool) -> None:
    am = team_that_reports(hang_idle=is_wanted)
    for _ in range(60):
        keep_talking(am, 10, 2, usage=IDLE)
        am.report(3, Phase.RUNNING)  # what is not known of it is not idle
    keep_talking(am, 50, 2, 3, usage=IDLE)
    assert [am.orders(n).abort for n in (2, 3)] == ["", ""]
    keep_talking(am, 20, 2, 3, usage=IDLE)
    wanted = "no use of CPU or GPU for 60 s (hang_timeout, hang_idle)" if is_wanted else ""
    assert [am.orders(n).abort for n in (2, 3)] == [wanted] * 2


def test_a_rank_that_works_is_a_sign_of_life_of_a_gang_that_never_reports() -> None:
    am = team_that_reports(hang_idle=True)
    for _ in range(20):
        keep_talking(am, 40, 2, 3, usage=IDLE)
        keep_talking(am, 10, 3, usage=BUSY)
    assert [am.orders(n).abort for n in (2, 3)] == ["", ""]


@pytest.mark.parametrize(
    ("usage", "is_idle"),
    [
        (Usage(at_ms=0), False),
        (Usage(at_ms=0, cpu_cores=0.0), False),
        (Usage(at_ms=0, cpu_cores=0.0, devices=(DeviceUsage(index=0),)), False),
        (Usage(at_ms=0, cpu_cores=0.0, devices=(DeviceUsage(index=0, utilisation=0.3),)), False),
        (Usage(at_ms=0, cpu_cores=0.9, devices=(DeviceUsage(index=0, utilisation=0.0),)), False),
        (Usage(at_ms=0, cpu_cores=0.0, devices=(DeviceUsage(index=0, utilisation=0.0),)), True),
    ],
    ids=["nothing known", "no GPU known", "GPU not known", "GPU busy", "CPU busy", "idle"],
)
def test_a_payload_with_a_gpu_is_idle_if_neither_is_used(usage: Usage, is_idle: bool) -> None:
    am = Driver(RoleSpec(resources=Resources(memory_mib=1, gcores=1)), hang_timeout_s=60.0, hang_idle=True)
    am.running(2)
    keep_talking(am, 90, 2, usage=usage, gpus=(0,))
    assert bool(am.orders(2).abort) is is_idle


def test_a_program_that_has_reported_is_judged_by_its_reports_and_not_by_its_use() -> None:
    am = team_that_reports(hang_idle=True)
    for lines in range(1, 20):
        am.report(3, Phase.RUNNING, payload=status_of_lines(lines))
        keep_talking(am, 50, 2, usage=IDLE)
    assert (am.orders(2).abort, am.orders(3).abort) == ("", "")


def test_the_idle_time_of_a_gang_starts_over_with_each_generation() -> None:
    am = team_that_reports(hang_idle=True)
    keep_talking(am, 70, 2, 3, usage=IDLE)
    for number in (2, 3):
        am.report(number, Phase.RUNNING, failure=result(Fault.USER, None, None, signal=6))
    for number in (2, 3):
        am.report(number, Phase.WAITING, generation=1)
    for number in (2, 3):
        am.report(number, Phase.RUNNING, generation=1)
    keep_talking(am, 50, 2, 3, usage=IDLE)
    assert [am.orders(n).abort for n in (2, 3)] == ["", ""]
    keep_talking(am, 20, 2, 3, usage=IDLE)
    assert all(am.orders(n).abort for n in (2, 3))


def test_while_a_member_of_a_gang_is_on_its_way_the_others_may_be_idle() -> None:
    late = RoleSpec(name="late", depends_on=(Dependency("early", Until.READY),))
    am = Driver(RoleSpec(name="early"), late, gang=Gang.ALL, hang_timeout_s=60.0, hang_idle=True)
    am.granted(2)
    am.granted(3, request_id=2)
    for number in (2, 3):
        am.hello(number)
    for number in (2, 3):
        am.report(number, Phase.WAITING)
    am.report(2, Phase.RUNNING)
    for _ in range(60):
        keep_talking(am, 10, 2, usage=IDLE)
        am.report(3, Phase.WAITING)
    assert am.orders(2).abort == ""


def test_outside_of_a_gang_each_payload_is_judged_alone() -> None:
    am = Driver(RoleSpec(instances=2), hang_timeout_s=60.0)
    am.running(2, 3)
    am.report(2, Phase.RUNNING, payload=status_of_lines(1))
    for lines in range(1, 8):
        am.report(3, Phase.RUNNING, payload=status_of_lines(lines))
        keep_talking(am, 10, 2, payload=status_of_lines(1))
    assert (bool(am.orders(2).abort), am.orders(3).abort) == (True, "")


def test_a_gang_that_hangs_is_restarted_once_and_may_report_late_again() -> None:
    am = team_that_reports()
    am.report(2, Phase.RUNNING, payload=status_of_lines(1))
    keep_talking(am, 70, 2, 3, payload=status_of_lines(1))
    am.report(2, Phase.RUNNING, failure=result(Fault.USER, None, signal=6))
    assert (am.orders(3).generation, am.orders(3).abort) == (1, "")
    keep_talking(am, 30, 3, payload=status_of_lines(1))
    assert am.state.ending is None
