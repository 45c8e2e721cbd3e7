"""Test soft kills: grace, deadline, and the output that is committed."""

from __future__ import annotations

import pytest

from dlapp.am.model import events
from dlapp.am.model.events import Settlement
from dlapp.values.messages import Fault, Phase, Stop, StoredOutput, TaskResult
from dlapp.values.report import Cause, FinalStatus, State
from dlapp.values.spec import (
    OutputSpec,
    RoleSpec,
)
from tests.am.decisions.situations import empty
from tests.am.driving import Driver, result


def test_a_soft_kill_gives_payloads_their_grace_and_commits_stored_output() -> None:
    am = Driver(RoleSpec(instances=2), kill_grace_s=20.0)
    am.running(2, 3)
    am.finished(2)
    am.do(events.SoftKill("tina"))
    (answer,) = am.of(events.AnswerStop)
    assert (answer.answer.state, answer.answer.left_s) == ("stopping", 20.0)
    assert (am.orders(3).stop, am.orders(3).grace_s) == (Stop.SOFT, 20.0)
    assert am.orders(3).why == "soft-killed by tina"
    am.finished(3, result(Fault.USER, 143))
    assert am.settlement().how is Settlement.COMMIT
    assert [part.index for part in am.settlement().parts] == [0, 1]
    am.settled()
    assert am.ending() == events.ApplicationEnd(
        FinalStatus.KILLED, Cause.SOFT_KILLED, "soft-killed by tina, output committed"
    )
    assert am.view().state is State.FINISHED


def test_a_second_soft_kill_only_reports_the_time_left() -> None:
    am = Driver(RoleSpec(), kill_grace_s=20.0)
    am.running(2)
    am.do(events.SoftKill("tina"))
    am.wait(5)
    am.do(events.SoftKill("tony"))
    (answer,) = am.of(events.AnswerStop)
    assert answer.answer.state == "already"
    assert answer.answer.message == "soft-killed by tina already, 15 s of the grace time left"
    assert am.of(events.SendOrders) == []


def test_before_payloads_run_a_soft_kill_is_a_kill() -> None:
    am = Driver(RoleSpec())
    am.granted(2)
    am.hello(2)
    am.do(events.SoftKill("tina"))
    assert am.stops(2) == [Stop.NOW]
    assert am.orders(2).why == "soft-killed by tina before a payload ran"
    am.finished(2, result(Fault.STOPPED, None, None))
    assert am.settlement().how is Settlement.DROP
    am.settled()
    assert am.ending() == events.ApplicationEnd(
        FinalStatus.KILLED, Cause.KILLED, "soft-killed by tina before a payload ran"
    )


def test_a_payload_that_ignores_a_soft_kill_is_stopped_after_grace_and_margin() -> None:
    am = Driver(RoleSpec(instances=2), kill_grace_s=20.0)
    am.running(2, 3)
    am.finished(2)
    am.do(events.SoftKill("tina"))
    for _ in range(4):
        am.wait(5)
        am.report(3, Phase.RUNNING)
    assert am.stopped(am.wait(12)) == [3]
    am.ended(3, -9)
    am.settled()
    assert am.diagnostics() == "soft-killed by tina, output committed but for container 1 (worker 1)"


def test_a_container_that_stores_output_at_the_end_of_the_grace_may_continue() -> None:
    am = Driver(RoleSpec(), kill_grace_s=1.0)
    am.running(2)
    am.do(events.SoftKill("tina"))
    am.report(2, Phase.STORING)
    for _ in range(20):
        assert am.stopped(am.wait(10)) == []
        am.report(2, Phase.STORING)
    am.finished(2, result(Fault.STOPPED, None))
    am.settled()
    assert am.diagnostics() == "soft-killed by tina, output committed"


def test_a_soft_kill_without_anything_stored_does_not_replace_older_output() -> None:
    am = Driver(RoleSpec())
    am.running(2)
    am.do(events.SoftKill("tina"))
    am.finished(2, result(Fault.STOPPED, None, None))
    assert am.settlement().how is Settlement.DROP
    am.settled()
    assert am.diagnostics() == "soft-killed by tina, there was no output to commit"


def test_a_soft_kill_before_anything_was_written_does_not_replace_older_output() -> None:
    am = Driver(RoleSpec())
    am.running(2)
    am.do(events.SoftKill("tina"))
    am.finished(2, TaskResult(fault=Fault.STOPPED, outputs=(empty(),)))
    assert am.settlement().how is Settlement.DROP
    am.settled()
    assert am.diagnostics() == "soft-killed by tina, there was no output to commit"


def test_a_soft_kill_commits_the_outputs_that_have_a_file() -> None:
    outputs = tuple(OutputSpec(name=name, output_path=name, target=f"file:///{name}") for name in ("model", "logs"))
    am = Driver(RoleSpec(), outputs=outputs)
    am.running(2)
    am.do(events.SoftKill("tina"))
    model = StoredOutput(name="model", part="part", files=1, size_bytes=1)
    am.finished(2, TaskResult(fault=Fault.STOPPED, outputs=(model, empty("logs"))))
    assert [part.outputs for part in am.settlement().parts] == [(model,)]
    am.settled()
    assert am.diagnostics() == "soft-killed by tina, output committed; there was none for file:///logs"


def test_an_empty_output_of_a_script_that_ended_well_is_committed() -> None:
    am = Driver(RoleSpec())
    am.running(2)
    am.finished(2, TaskResult(fault=Fault.NONE, exit_code=0, outputs=(empty(),)))
    assert am.settlement().how is Settlement.COMMIT
    assert [part.outputs for part in am.settlement().parts] == [(empty(),)]


@pytest.mark.parametrize("stored", [empty(), StoredOutput(name="", part="part", files=1, size_bytes=0)])
def test_an_empty_output_does_not_replace_the_target_after_killed_processes(
    stored: StoredOutput,
) -> None:
    am = Driver(RoleSpec())
    am.running(2)
    am.finished(2, TaskResult(fault=Fault.NONE, exit_code=0, outputs=(stored,), left="1 process, bash"))
    assert am.settlement().how is Settlement.KEEP
    am.settled()
    assert am.diagnostics() == (
        "the output has no data, and the script of container 0 (worker 0) ended before processes that it had started, "
        "which were killed (1 process, bash): end the script with wait"
    )


def test_an_output_with_data_is_committed_though_processes_were_killed_with_the_script() -> None:
    am = Driver(RoleSpec())
    am.running(2)
    stored = StoredOutput(name="", part="part", files=1, size_bytes=1)
    am.finished(2, TaskResult(fault=Fault.NONE, exit_code=0, outputs=(stored,), left="1 process, bash"))
    assert am.settlement().how is Settlement.COMMIT


def test_the_target_of_an_empty_output_is_unchanged_after_killed_processes() -> None:
    outputs = tuple(OutputSpec(name=name, output_path=name, target=f"file:///{name}") for name in ("model", "logs"))
    am = Driver(RoleSpec(), outputs=outputs)
    am.running(2)
    logs = StoredOutput(name="logs", part="part", files=1, size_bytes=1)
    am.finished(2, TaskResult(fault=Fault.NONE, exit_code=0, outputs=(empty("model"), logs), left="1 process, bash"))
    assert am.settlement().how is Settlement.COMMIT
    assert [part.outputs for part in am.settlement().parts] == [(logs,)]
    am.settled()
    assert am.diagnostics() == (
        "there was no data for file:///model, and the script of container 0 (worker 0) ended before processes that it "
        "had started, which were killed (1 process, bash): end the script with wait"
    )
