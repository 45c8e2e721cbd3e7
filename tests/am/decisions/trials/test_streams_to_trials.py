"""Tests of the trial that a command in a sweep runs beside, and of refusals."""

from __future__ import annotations

from dlapp.am.model import events
from dlapp.sweep.results import TrialState
from dlapp.sweep.spec import Distribution, DistributionKind, Sampler, SweepSpec
from dlapp.values.messages import StreamOrder
from tests.am.driving import START_MS, Driver
from tests.am.simulated.sweep import sweep_world

Asked = tuple[int | None, int | None]
"""CONTAINER_INDEX and trial of a request."""


def answers(slots: int, *asked: Asked, kind: str = "exec") -> tuple[dict[int, list[int]], list[StreamOrder | str]]:
    """Return the trials that run in each container of a sweep, and what is answered to requests then."""
    draws = Distribution(name="X", kind=DistributionKind.UNIFORM, low=0.0, high=1.0)
    sweep = SweepSpec(sampler=Sampler.RANDOM, trials=8, random=(draws,), trials_per_container=slots)
    cluster = sweep_world(1, sweep, workers=2, trial_s=(50.0, 50.0))
    running: dict[int, list[int]] = {}
    found: list[StreamOrder | str] = []

    def ask() -> None:
        assert cluster.master is not None
        assert cluster.master.state.sweep is not None
        for item in cluster.master.state.sweep.trials:
            if item.state is TrialState.RUNNING:
                assert item.index is not None
                running.setdefault(item.index, []).append(item.number)
        for number, (index, trial) in enumerate(asked, start=1):
            order = StreamOrder(number=number, kind=kind, head="{}")
            wanted = events.OpenStream(index=index, order=order, trial=trial)
            for action in cluster.master.handle(wanted, START_MS + int(cluster.now * 1000)):
                if isinstance(action, events.RefuseStream):
                    found.append(action.why)
                elif isinstance(action, events.SendOrders):
                    found.append(action.orders.streams[-1])

    cluster.schedule(20.0, ask)
    cluster.run()
    return running, found


def test_a_named_trial_is_found_in_its_container_with_its_try() -> None:
    running, (order,) = answers(2, (None, 3))
    assert any(3 in numbers for numbers in running.values())
    assert isinstance(order, StreamOrder)
    assert (order.trial, order.try_number) == (3, 1)


def test_without_a_name_the_only_trial_is_chosen_and_several_need_a_name() -> None:
    running, (first, second) = answers(1, (0, None), (1, None))
    assert [isinstance(trial, StreamOrder) and trial.trial for trial in (first, second)] == [
        running[0][0],
        running[1][0],
    ]
    running, (several,) = answers(2, (0, None))
    one, other = sorted(running[0])
    numbers = f"{one}-{other}" if other == one + 1 else f"{one}, {other}"
    assert several == f"worker:0 runs several trials: choose one of {numbers} with --trial"


def test_a_trial_that_does_not_run_is_refused_with_those_that_do() -> None:
    _, found = answers(2, (None, 7), (None, 8), (0, 7))
    waits = "trial 7 does not run (waiting); running: 0-3"
    assert found == [waits, "there is no trial 8: its trials are 0 to 7", waits]


def test_a_trial_of_another_container_is_not_taken_for_one_of_the_named_container() -> None:
    running, found = answers(1, (0, 0), (1, 0), (0, 1), (1, 1))
    where = {numbers[0]: index for index, numbers in running.items()}
    expected = [
        None if where[trial] == index else f"trial {trial} runs in container {where[trial]}, not in container {index}"
        for index, trial in ((0, 0), (1, 0), (0, 1), (1, 1))
    ]
    assert [None if isinstance(item, StreamOrder) else item for item in found] == expected


def test_a_port_is_that_of_the_container_whatever_trials_run() -> None:
    _, (order,) = answers(2, (0, None), kind="port")
    assert isinstance(order, StreamOrder)
    assert order.trial is None


def test_without_a_sweep_there_is_no_trial() -> None:
    driver = Driver()
    driver.running(2)
    order = StreamOrder(number=1, kind="exec", head="{}")
    (refused,) = driver.of(events.RefuseStream, driver.do(events.OpenStream(index=None, order=order, trial=0)))
    assert (refused.why, refused.is_unknown) == ("there is no trial 0: the application has no [sweep]", True)
