"""Test what a next attempt makes of a journal."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from dlapp.am.model import events, journal
from dlapp.am.model.records.recovered import RecoveredState
from dlapp.values.messages import Fault, Phase
from dlapp.values.report import Cause
from dlapp.values.spec import RoleSpec
from tests.am.driving import START_MS, Driver, result
from tests.am.simulated.world import add_completion


def story() -> Driver:
    """A short life: a result, a retry, a soft-kill."""
    am = Driver(RoleSpec(instances=3, retries=1))
    am.running(2, 3, 4)
    am.finished(2)
    am.finished(3, result(Fault.USER, 1))
    am.running(5)
    am.do(events.SoftKill("tina"))
    am.finished(4, result(Fault.STOPPED, None))
    return am


def lines(am: Driver) -> list[str]:
    return [journal.line(action.record) for action in am.of(events.WriteJournal, am.all)]


def test_the_next_attempt_restores_results_faults_and_decisions() -> None:
    am = story()
    former = am.journal()
    assert former.started_ms == START_MS + 10
    assert journal.done(former) == [0]
    assert former.faults == {1: (1, 0)}
    assert former.tries == {0: 1, 1: 2, 2: 1}
    assert {index: one.number for index, one in former.bound.items()} == {0: 2, 1: 5, 2: 4}
    assert former.soft is not None
    assert former.soft[:2] == ("tina", Cause.SOFT_KILLED)
    assert former.containers[am.id(3)].result == result(Fault.USER, 1)
    assert former.ending is None


def test_records_that_are_read_twice_do_no_harm() -> None:
    once, twice = lines(story()), [line for line in lines(story()) for _ in range(2)]
    assert vars(journal.replay(journal.records(once))).keys() == vars(journal.replay(journal.records(twice))).keys()
    assert journal.replay(journal.records(twice)).faults == journal.replay(journal.records(once)).faults


@given(st.data())
def test_a_journal_cut_anywhere_is_read_up_to_there(data: st.DataObject) -> None:
    text = "\n".join(lines(story()))
    cut = text[: data.draw(st.integers(0, len(text)))]
    former = journal.replay(journal.records(cut.split("\n")))
    assert set(journal.done(former)) <= {0}


@given(st.lists(st.dictionaries(st.sampled_from(["kind", "t", "container", "index", "result"]), st.none() | st.text())))
def test_strange_records_are_passed_over(found: list[dict[str, str | None]]) -> None:
    strange = journal.records([json.dumps(item) for item in found] + ["[1]", "null", "{", ""])
    assert journal.replay(strange).containers == {}


def test_records_and_fields_of_a_newer_version_are_passed_over() -> None:
    newer = [json.dumps({**json.loads(line), "mood": "good"}) for line in lines(story())]
    newer.insert(0, json.dumps({"kind": "mood", "t": 1}))
    assert journal.done(journal.replay(journal.records(newer))) == [0]


def test_results_in_recovered_state_are_committed() -> None:
    am = Driver(RoleSpec(instances=2))
    former = RecoveredState()
    add_completion(former, am.id(2), 0, result(), START_MS)
    add_completion(former, am.id(3), 1, result(), START_MS)
    second = Driver(RoleSpec(instances=2), attempt=2, former=former)
    assert [part.container_id.number for part in second.settlement().parts] == [2, 3]


def test_the_start_of_a_payload_is_remembered() -> None:
    am = Driver(RoleSpec())
    am.running(2)
    am.report(2, Phase.RUNNING)
    assert am.journal().containers[am.id(2)].ran
