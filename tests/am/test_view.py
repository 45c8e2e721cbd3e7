"""Test what tools are shown."""

from __future__ import annotations

import time

import pytest

from dlapp.am.model import events, journal
from dlapp.am.view import phase_of, public_view
from dlapp.cluster.engine import Heartbeat
from dlapp.sweep.spec import Distribution, DistributionKind, Sampler, SweepSpec
from dlapp.task.preparation import WAITS_FOR_CHECKPOINTS
from dlapp.value import replace
from dlapp.values.messages import Diagnosis, Evidence, Fault, NewFile, NotStored, PayloadStatus, Phase
from dlapp.values.report import ApplicationView, FinalStatus, State
from dlapp.values.serialization import from_json, to_json
from dlapp.values.spec import Gang, Resources, RoleSpec
from tests.am.driving import START_MS, Driver, result


def test_the_phase_names_the_awaited_containers() -> None:
    am = Driver(RoleSpec(instances=4))
    assert am.phase() == "waiting for 4 containers"
    am.granted(2)
    assert am.phase() == "1 starting, waiting for 3 containers"
    am.running(3)
    am.hello(2)
    am.report(2, Phase.FETCHING)
    assert am.phase() == "running 1 of 4, 1 fetching, waiting for 2 containers"
    am.finished(3)
    assert am.phase() == "1 fetching, waiting for 2 containers, 1 done"
    am.report(2, Phase.STORING)
    assert am.phase() == "storing, waiting for 2 containers, 1 done"


def test_the_phase_shows_start_and_deadline_of_an_allocation() -> None:
    am = Driver(RoleSpec(instances=2), max_runtime_s=3600.0)
    am.wait(5.0)
    since, until = clock_time(START_MS), clock_time(START_MS + 3_600_000)
    assert am.phase() == f"waiting for 2 containers since {since}, until {until} (max_runtime)"
    am.running(2)
    am.wait(1.0)
    assert am.phase() == f"running 1 of 2, waiting for 1 container since {since}, until {until} (max_runtime)"


def test_the_view_lists_missing_containers_and_their_reasons() -> None:
    am = Driver(RoleSpec(instances=3, resources=Resources(memory_mib=512, gcores=2)), gang=Gang.ALL)
    (ask,) = am.view().lacking
    assert (ask.role, ask.count, ask.memory_mib, ask.gcores, ask.together) == ("worker", 3, 512, 2, True)
    assert am.view().waiting is None  # why the engine gives none, it knows itself
    am.granted(2)
    found = am.view().waiting
    assert found is not None
    assert (found.code, found.resource, found.asked) == ("gang_partial", "gcores", 4)
    assert found.message in am.phase()
    assert am.view().lacking[0].count == 2
    alone = Driver(RoleSpec())
    alone.granted(2)
    starting = alone.view().waiting
    assert starting is not None
    assert (starting.code, starting.message) == ("starting", "1 starting")
    alone.running(2)
    assert (alone.view().waiting, alone.view().lacking) == (None, ())


def test_the_view_names_roles_of_which_no_container_was_started() -> None:
    am = Driver(RoleSpec(instances=2), RoleSpec(name="eval", instances=3), gang=Gang.NONE)
    assert am.view().not_started == {"worker": 2, "eval": 3}
    am.running(2)
    assert am.view().not_started == {"eval": 3}
    am.running(3, request_id=2)
    assert am.view().not_started == {}


def test_the_view_has_the_number_of_trials_of_a_sweep() -> None:
    draws = Distribution(name="X", kind=DistributionKind.UNIFORM, low=0.0, high=1.0)
    sweep = SweepSpec(sampler=Sampler.RANDOM, trials=3, random=(draws,))
    assert Driver(RoleSpec(), sweep=sweep).view().trials == 3
    assert Driver(RoleSpec()).view().trials is None


def test_the_phase_shows_start_and_deadline_of_a_container_start() -> None:
    am = Driver(RoleSpec())
    am.granted(2)
    granted_ms = am.now_ms
    am.wait(4.0)
    since, until = clock_time(granted_ms), clock_time(granted_ms + am.state.timing.hello_ms)
    assert am.phase() == f"starting since {since}, until {until}"


def test_the_phase_shows_waits_of_tasks_and_of_the_applicationmaster() -> None:
    am = Driver(RoleSpec(instances=2))
    am.running(2, 3)
    am.report(3, Phase.STORING, detail="waits for HDFS at dn:9864 since 2026-03-01 14:02:03")
    wait = "waits for the ResourceManager since 2026-03-01 14:02:05"
    shown = phase_of(am.state, wait)
    assert shown == f"running 1 of 2, 1 storing: waits for HDFS at dn:9864 since 2026-03-01 14:02:03, {wait}"


def test_the_phase_shows_a_wait_for_checkpoint_lists() -> None:
    am = Driver(RoleSpec(instances=2))
    am.running(2, 3)
    am.report(3, Phase.FETCHING, detail=WAITS_FOR_CHECKPOINTS)
    assert am.phase() == "running 1 of 2, 1 fetching: waits for all containers to list their checkpoints"


def clock_time(at_ms: int) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at_ms / 1000))


def test_the_phase_of_a_gang_counts_ready_members() -> None:
    am = Driver(RoleSpec(instances=2), gang=Gang.ALL)
    am.granted(2, 3)
    am.hello(2)
    am.report(2, Phase.WAITING)
    assert am.phase() == "1 of 2 at the gate, 1 starting"


def test_a_container_that_waits_for_no_other_is_not_at_the_gate() -> None:
    am = Driver(RoleSpec(instances=2))
    am.granted(2, 3)
    am.hello(2)
    am.report(2, Phase.WAITING)
    am.hello(3)
    am.report(3, Phase.FETCHING)
    assert am.phase() == "1 fetching, 1 starting"


def test_the_phases_of_the_end() -> None:
    am = Driver(RoleSpec())
    am.running(2)
    am.do(events.SoftKill("tina"))
    assert am.phase() == "stopping, 1 of 1 still running"
    am.report(2, Phase.STORING)
    assert am.phase() == "storing"
    am.report(2, Phase.ENDED, result(Fault.STOPPED, None))
    assert am.phase() == "committing"


def test_a_slow_container_end_after_its_result_is_shown_as_a_wait() -> None:
    am = Driver(RoleSpec(instances=2))
    am.running(2, 3)
    am.report(2, Phase.ENDED, result())
    am.report(3, Phase.ENDED, result())
    am.settled()
    began_ms = am.state.now_ms
    assert am.phase() == "committing"
    am.wait(4)
    until = clock_time(began_ms + am.state.timing.end_ms)
    message = f"ending: waits for the end of {am.id(2)} and 1 more since {clock_time(began_ms)}, until {until}"
    assert am.phase() == message
    am.ended(3)
    assert am.phase() == message.replace(" and 1 more", "")
    am.ended(2)
    assert am.ending().final_status is FinalStatus.SUCCEEDED


def test_a_view_shows_each_indexs_last_container() -> None:
    am = Driver(RoleSpec(instances=2, retries=1, resources=Resources(memory_mib=1024, vcores=2, gcores=1)))
    am.running(3, 2)
    am.finished(2, result(Fault.USER, 5))
    assert [(container.index, container.exit_code, container.message) for container in am.view().containers] == [
        (0, None, ""),
        (1, 5, "exit code 5"),
    ]
    am.running(9)
    am.report(9, Phase.RUNNING, progress=0.5, detail="epoch 2", gpus=(3,))
    view = am.view()
    last = view.containers[1]
    assert (last.container_id, last.attempt, last.progress, last.gpus) == (am.id(9), 2, 0.5, (3,))
    assert (view.memory_mib, view.vcores, view.gcores, view.total_containers) == (2048, 4, 2, 2)
    assert view.started_ms == START_MS + 10
    assert from_json(ApplicationView, to_json(view)) == view


def test_the_state_is_finished_only_after_unregistering_from_the_engine() -> None:
    am = Driver(RoleSpec())
    am.running(2)
    am.finished(2, result(Fault.USER, 1))
    before = am.view()
    assert (before.state, before.final_status) == (State.RUNNING, FinalStatus.UNDEFINED)
    assert before.diagnostics == "container 0 (worker 0) failed: exit code 1"
    am.settled()
    after = am.view()
    assert (after.state, after.final_status, after.phase) == (State.FINISHED, FinalStatus.FAILED, "")
    assert after.finished_ms == am.now_ms


@pytest.mark.slow
def test_a_view_of_ten_thousand_containers_is_cheap_after_one_change() -> None:
    am = Driver(RoleSpec(instances=10_000))
    am.running(*range(2, 10_002))
    am.view()
    am.report(77, Phase.RUNNING, progress=0.1)
    began = time.process_time()
    view = am.view()
    # It takes 5 ms; a complete rebuild would take 60.
    assert time.process_time() - began < 1.0
    assert view.containers[75].progress == 0.1


def test_allocated_resources_that_differ_from_the_request_are_reported_once_per_role() -> None:
    am = Driver(RoleSpec(instances=2, resources=Resources(memory_mib=1000, vcores=4)))
    given = [replace(am.grant(number, 1, "node1"), resources=Resources(memory_mib=1024, vcores=1)) for number in (2, 3)]
    am.do(Heartbeat(granted=tuple(given)))
    line = "each worker container: memory raised from 1000 to 1024 MiB, vcores lowered from 4 to 1"
    assert am.view().changes == (line,)
    records = [item.record for item in am.all if isinstance(item, events.WriteJournal)]
    assert [record["what"] for record in records if record["kind"] == "change"] == [line]
    role = am.state.spec.roles[0]
    assert Driver(role, attempt=2, former=journal.replay(records)).view().changes == (line,)


def test_a_view_shows_the_containers_that_an_index_had_before_also_in_a_later_attempt() -> None:
    am = Driver(RoleSpec(retries=30))
    for number in range(2, 30):
        am.running(number)
        am.finished(number, result(Fault.USER, 5))
        am.ended(number)
    am.running(40)
    (shown,) = am.view().containers
    assert (shown.container_id, shown.attempt, len(shown.earlier)) == (am.id(40), 29, 20)
    assert [item.attempt for item in shown.earlier] == list(range(9, 29))
    assert {(item.exit_code, item.message) for item in shown.earlier} == {(5, "exit code 5")}
    assert shown.earlier[-1].container_id == am.id(29)
    assert shown.of_try(28) is not None
    assert shown.of_try(1) is None
    second = Driver(RoleSpec(retries=30), attempt=2, former=am.journal(), live=(am.grant(40),))
    (again,) = second.view().containers
    assert [(container.container_id, container.exit_code) for container in again.earlier] == [
        (container.container_id, container.exit_code) for container in shown.earlier
    ]


def test_the_view_includes_the_status_of_a_payload() -> None:
    am = Driver(RoleSpec(instances=2))
    am.running(2, 3)
    status = PayloadStatus(progress=0.5, metrics={"loss": 0.25}, step=7, ready=True, lines=2)
    am.report(2, Phase.RUNNING, progress=0.5, payload=status)
    first, second = am.view().containers
    assert (first.progress, first.metrics, first.step, first.ready) == (0.5, {"loss": 0.25}, 7, True)
    assert (second.progress, second.metrics, second.step, second.ready) == (None, {}, None, False)
    am.report(2, Phase.ENDED, result(), payload=status)
    am.ended(2)
    assert am.view().containers[0].metrics == {"loss": 0.25}


def test_program_output_is_hidden_without_a_token() -> None:
    am = Driver(RoleSpec(instances=1, retries=1), args=("--token=secret-4",), comment="secret-5")
    evidence = Evidence(file="stderr", offset=0, line="url: /?token=secret-1")
    found = Diagnosis(rule="network_unreachable", cause="no host secret-2", fault=Fault.USER, evidence=evidence)
    for container in (2, 3):
        am.running(container)
        lost = NotStored(files=(NewFile(name="secret-3", size_bytes=1),))
        am.finished(container, result(Fault.USER, 1, diagnosis=found, not_stored=lost))
    view = am.view()
    assert view.diagnosis is not None
    assert "secret-3" in str(to_json(view))
    assert "secret" in str(to_json(view))
    assert "secret" not in str(to_json(public_view(view)))
