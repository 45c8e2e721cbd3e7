"""Test the output of earlier tries, time limits, and kills."""

from __future__ import annotations

import math

import pytest

from dlapp.am.model import events
from dlapp.am.model.events import Settlement
from dlapp.cluster.engine import Heartbeat, Registered, ResourceLimits
from dlapp.values.messages import Fault, Phase, Stop, StoredOutput, TaskResult
from dlapp.values.report import Cause, FinalStatus, State
from dlapp.values.spec import (
    RoleSpec,
)
from tests.am.decisions.situations import PATIENT, empty, second
from tests.am.driving import Driver, result


def kept_numbers(am: Driver) -> list[int]:
    return [part.container_id.number for part in am.settlement().parts]


def test_output_of_an_earlier_try_is_kept_if_the_last_has_no_file() -> None:
    am = Driver(RoleSpec(retries=2))
    for number, outputs in ((2, result().outputs), (3, (empty(),)), (4, ())):
        am.running(number)
        am.finished(number, TaskResult(fault=Fault.USER, exit_code=3, outputs=outputs))
    assert (am.settlement().how, kept_numbers(am)) == (Settlement.KEEP, [2])


def test_output_of_earlier_tries_is_ignored_after_a_success() -> None:
    am = Driver(RoleSpec(retries=1))
    am.running(2)
    am.finished(2, result(Fault.USER, 3))
    am.running(3)
    am.finished(3, TaskResult(fault=Fault.NONE, exit_code=0, outputs=(empty(),)))
    assert (am.settlement().how, kept_numbers(am), am.settlement().failed) == (Settlement.COMMIT, [3], ())


def test_a_soft_kill_keeps_output_of_an_earlier_try_aside() -> None:
    am = Driver(RoleSpec(instances=2, retries=1))
    am.running(2, 3)
    am.finished(2)
    am.finished(3, result(Fault.USER, 3))
    am.running(4)
    am.do(events.SoftKill("tina"))
    am.finished(4, result(Fault.STOPPED, None, None))
    assert (am.settlement().how, kept_numbers(am)) == (Settlement.COMMIT, [2])
    assert [part.container_id.number for part in am.settlement().failed] == [3]


def test_a_try_whose_task_died_is_searched_if_no_later_try_stored_a_file() -> None:
    am = Driver(RoleSpec(retries=3))
    for number, ending in ((2, result(Fault.USER, 3)), (3, None), (4, result(Fault.USER, 3, None))):
        am.running(number)
        if ending is None:
            am.ended(number, -9)
        else:
            am.finished(number, ending)
    am.running(5)
    am.finished(5, TaskResult(fault=Fault.DATA))
    assert kept_numbers(am) == [2]
    assert [part.container_id.number for part in am.settlement().lost] == [3]


def test_the_next_attempt_restores_the_output_of_earlier_tries() -> None:
    am = Driver(RoleSpec(retries=1))
    am.running(2)
    am.finished(2, result(Fault.USER, 3))
    am.running(3)
    next_one = second(am, 3, roles=(RoleSpec(retries=1),))
    next_one.report(3, Phase.RUNNING, index=0, attempt=1)
    next_one.report(3, Phase.ENDED, result(Fault.USER, 3, None), attempt=1)
    next_one.ended(3, attempt=1)
    assert kept_numbers(next_one) == [2]


def test_among_many_tries_the_one_with_output_is_remembered() -> None:
    am = Driver(RoleSpec(retries=100))
    for number in range(2, 40):
        am.running(number)
        am.finished(number, result(Fault.USER, 3, "part" if number == 5 else None))
    am.running(40)
    am.finished(40, TaskResult(fault=Fault.DATA))
    assert kept_numbers(am) == [5]


def test_a_soft_kill_keeps_stray_output_without_committing_it() -> None:
    am = Driver(RoleSpec())
    am.running(2)
    am.do(events.SoftKill("tina"))
    stray = StoredOutput(name="", part="part", files=1, size_bytes=1, stray=True)
    am.finished(2, TaskResult(fault=Fault.STOPPED, exit_code=0, outputs=(stray,)))
    assert (am.settlement().how, len(am.settlement().parts)) == (Settlement.KEEP, 1)
    am.settled()
    assert am.diagnostics() == "soft-killed by tina, there was no output to commit"


def test_max_runtime_is_a_soft_kill_with_a_cause_of_its_own() -> None:
    am = Driver(RoleSpec(), max_runtime_s=30.0)
    am.running(2)
    am.wait(31)
    assert am.stops(2) == [Stop.SOFT]
    am.finished(2, result(Fault.STOPPED, 0))
    am.settled()
    assert am.ending() == events.ApplicationEnd(
        FinalStatus.KILLED, Cause.TIMED_OUT, "timed out after 30 s, output committed"
    )


def test_at_the_time_limit_output_of_a_failed_script_is_kept_aside() -> None:
    am = Driver(RoleSpec(instances=2), max_runtime_s=30.0)
    am.running(2)
    am.running(3)
    am.wait(31)
    am.finished(2, result(Fault.STOPPED, 0))
    am.finished(3, result(Fault.STOPPED, None, signal=15))
    assert am.settlement().how is events.Settlement.KEEP
    am.settled()
    assert am.diagnostics().startswith("timed out after 30 s, output kept as partial: ")


def run_until_killed(am: Driver, killed_in_s: float, most_s: int = 3_600) -> int:
    """Let an application run whose engine says when it is going to kill it; return when payloads are stopped [s]."""
    am.running(2)
    am.do(Heartbeat(killed_in_s=killed_in_s))
    seconds = 0
    while am.stops(2) == [Stop.NO] and seconds < most_s:
        am.wait(1)
        seconds += 1
    return seconds


@pytest.mark.parametrize(
    ("killed_in_s", "kill_grace_s", "stopped_s", "grace_s"),
    [
        (7200.0, 30.0, 6570, 30),  # 10 min for the output at the most
        (600.0, 30.0, 510, 30),  # else a tenth
        (60.0, 5.0, 45, 5),  # 10 s at the least
        (20.0, 3600.0, 10, 5),  # half of it is the payload's
        (math.inf, 30.0, 3_600, None),
    ],
)
def test_before_the_engine_kills_it_an_application_ends_softly_and_has_time_to_store(
    killed_in_s: float, kill_grace_s: float, stopped_s: int, grace_s: int | None
) -> None:
    am = Driver(RoleSpec(), timing=PATIENT, kill_grace_s=kill_grace_s)
    assert run_until_killed(am, killed_in_s, most_s=7200 if grace_s else 3600) == pytest.approx(stopped_s, abs=2)
    if grace_s is None:
        return
    assert am.orders(2).grace_s == pytest.approx(grace_s, abs=1)
    am.finished(2, result(Fault.STOPPED, 0))
    am.settled()
    message = "timed out: lifetime limit of the queue or application in YARN, output committed"
    assert am.ending() == events.ApplicationEnd(FinalStatus.KILLED, Cause.TIMED_OUT, message)


def test_the_shorter_of_max_runtime_and_a_changeable_lifetime_counts() -> None:
    am = Driver(RoleSpec(), timing=PATIENT, max_runtime_s=300.0)
    assert run_until_killed(am, 3600.0) == pytest.approx(300, abs=2)
    am.finished(2, result(Fault.STOPPED, 0))
    am.settled()
    assert am.diagnostics() == "timed out after 300 s, output committed"
    am = Driver(RoleSpec(), timing=PATIENT)
    assert run_until_killed(am, 3600.0, 100) == 100
    am.do(Heartbeat(killed_in_s=math.inf))
    am.wait(3600)
    assert am.stops(2) == [Stop.NO]
    am.do(Heartbeat(killed_in_s=20.0))
    assert am.stops(2) == [Stop.SOFT]


def test_the_next_attempt_restores_the_limit_that_stops_the_application() -> None:
    am = Driver(RoleSpec(), timing=PATIENT)
    run_until_killed(am, 60.0)
    later = Driver(RoleSpec(), attempt=2, former=am.journal(), live=(am.grant(2),))
    later.hello(2, index=0, phase=Phase.RUNNING, attempt=1)
    assert later.view().soft_kill_by == "lifetime limit of the queue or application in YARN"
    later.report(2, Phase.ENDED, result(Fault.STOPPED, 0), attempt=1)
    later.settled()
    later.ended(2, attempt=1)
    assert later.diagnostics().startswith("timed out: lifetime limit of the queue")


def test_a_kill_stops_all_containers_at_once_and_keeps_no_output() -> None:
    am = Driver(RoleSpec(instances=2))
    am.running(2)
    am.granted(3)
    am.do(events.Kill("tina"))
    assert am.stops(2) == [Stop.NOW]
    assert am.stopped() == [3]
    assert am.stopped(am.wait(4)) == [2]
    am.ended(2, -9)
    am.ended(3, -9)
    assert am.settlement().how is Settlement.DROP
    assert am.settlement().parts == ()
    am.settled()
    assert am.ending() == events.ApplicationEnd(FinalStatus.KILLED, Cause.KILLED, "killed by tina, no output kept")
    assert am.view().state is State.KILLED


def test_a_kill_keeps_completely_stored_output() -> None:
    am = Driver(RoleSpec(instances=3))
    am.running(2, 3, 4)
    am.finished(2)
    am.do(events.Kill("tina"))
    am.ended(3, -9)
    am.finished(4, result(Fault.STOPPED, None))
    wanted = am.settlement()
    assert (wanted.how, [part.index for part in wanted.parts], wanted.lost) == (Settlement.DROP, [0, 2], ())
    am.settled()
    message = "killed by tina, the complete output of container 0 (worker 0), container 2 (worker 2) kept as partial"
    assert am.ending() == events.ApplicationEnd(FinalStatus.KILLED, Cause.KILLED, message)


def test_a_kill_while_only_services_still_end_commits_the_output() -> None:
    am = Driver(RoleSpec(), RoleSpec(name="server", service=True, keep_running=True, script="s"), kill_grace_s=20.0)
    am.running(2)
    am.running(3, request_id=2)
    am.finished(2)
    assert am.stops(3) == [Stop.SOFT]
    am.do(events.Kill("tina"))
    assert am.stops(3) == [Stop.NOW]
    am.finished(3, result(Fault.STOPPED, None, None))
    wanted = am.settlement()
    assert (wanted.how, [part.index for part in wanted.parts]) == (Settlement.COMMIT, [0])
    am.settled()
    assert am.ending().final_status is FinalStatus.SUCCEEDED


def test_a_kill_overtakes_a_soft_kill() -> None:
    am = Driver(RoleSpec())
    am.running(2)
    am.do(events.SoftKill("tina"))
    am.do(events.Kill("tony"))
    assert am.stops(2) == [Stop.NOW]
    am.finished(2, result(Fault.STOPPED, None, None))
    am.settled()
    assert am.diagnostics() == "killed by tony, no output kept"


def test_a_kill_comes_too_late_once_the_output_is_being_committed() -> None:
    am = Driver(RoleSpec())
    am.running(2)
    am.finished(2)
    am.do(events.Kill("tina"))
    (answer,) = am.of(events.AnswerStop)
    assert answer.answer.state == "ended"
    am.settled()
    assert am.ending().cause is Cause.SUCCEEDED


def test_a_stop_before_the_registration_is_not_forgotten() -> None:
    am = Driver(RoleSpec(), registered=False)
    am.do(events.Kill("tina"))
    am.do(Registered(limits=ResourceLimits()))
    am.settled()
    assert am.ending().cause is Cause.KILLED
