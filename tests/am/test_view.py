"""What tools are shown."""

from __future__ import annotations

import time

from dlapp.am import events
from dlapp.control import Fault, Phase
from dlapp.jsonform import from_json, to_json
from dlapp.report import ApplicationView, FinalStatus, State
from dlapp.spec import Resources, RoleSpec, StartRule
from tests.am.driving import START_MS, Driver, result


def test_the_phase_says_what_is_waited_for() -> None:
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


def test_the_phase_of_a_gang_counts_who_is_ready() -> None:
    am = Driver(RoleSpec(instances=2, start=StartRule.GANG))
    am.granted(2, 3)
    am.hello(2)
    am.report(2, Phase.WAITING)
    assert am.phase() == "1 of 2 at the gate, 1 starting"


def test_the_phases_of_the_end() -> None:
    am = Driver(RoleSpec())
    am.running(2)
    am.do(events.SoftKill("tina"))
    assert am.phase() == "stopping, 1 of 1 still running"
    am.report(2, Phase.STORING)
    assert am.phase() == "storing"
    am.report(2, Phase.ENDED, result(Fault.STOPPED, None))
    assert am.phase() == "committing"


def test_a_view_shows_each_indexs_last_container() -> None:
    am = Driver(RoleSpec(instances=2, retries=1, resources=Resources(memory_mib=1024, vcores=2, gcores=1)))
    am.running(3, 2)
    am.finished(2, result(Fault.USER, 5))
    assert [(one.index, one.exit_code, one.message) for one in am.view().containers] == [
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


def test_the_engines_state_is_finished_only_when_the_engine_was_told() -> None:
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


def test_a_view_of_ten_thousand_containers_costs_little_when_one_has_changed() -> None:
    am = Driver(RoleSpec(instances=10_000))
    am.running(*range(2, 10_002))
    am.view()
    am.report(77, Phase.RUNNING, progress=0.1)
    began = time.process_time()
    view = am.view()
    # It takes 5 ms; made anew, all of it would be 60.
    assert time.process_time() - began < 1.0
    assert view.containers[75].progress == 0.1
