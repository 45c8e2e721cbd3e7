"""GPUs that are held and not used, by what tasks report: warnings, notifications and ends, with a simulated clock."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from dlapp.am.model.events import Notify
from dlapp.values.idle_guard import IdleAction, IdleGuard
from dlapp.values.messages import Fault, Phase, Stop
from dlapp.values.report import Cause
from dlapp.values.spec import Gang, Resources, RoleSpec
from dlapp.values.usage import DeviceUsage, Usage
from tests.am.driving import Driver, result

GPU = Resources(memory_mib=1, gcores=1)


def application(action: IdleAction, *roles: RoleSpec, **fields: object) -> Driver:
    guard = IdleGuard(0.05, 60.0, action)
    return Driver(*(roles or (RoleSpec(instances=2, resources=GPU),)), idle_guard=guard, **fields)  # type: ignore[arg-type]


def use(am: Driver, seconds: int, utilisations: Mapping[int, tuple[float | None, ...]]) -> None:
    """Let time pass in which the tasks of containers report the utilisation of their GPUs, every ten seconds."""
    for _ in range(seconds // 10):
        am.wait(5)
        for number, values in utilisations.items():
            devices = tuple(DeviceUsage(index=index, utilisation=value) for index, value in enumerate(values))
            usage = Usage(at_ms=am.now_ms, cpu_cores=1.0, devices=devices)
            am.report(number, Phase.RUNNING, usage=usage, gpus=tuple(range(len(values))))
        am.wait(5)


def idle(am: Driver) -> tuple[int, ...]:
    found = am.view().idle
    return () if found is None else found.containers


@pytest.mark.parametrize(
    ("values", "is_idle"),
    [
        ((0.0,), True),
        ((0.049,), True),
        ((0.05,), False),
        ((None,), False),
        ((), False),
        ((0.0, 0.0), True),
        ((0.0, 0.3), False),
        ((0.0, None), False),
    ],
)
def test_a_container_is_idle_if_all_of_its_gpus_are_known_to_be(
    values: tuple[float | None, ...], is_idle: bool
) -> None:
    am = application(IdleAction.WARN)
    am.running(2, 3)
    use(am, 60, {2: values, 3: (0.9,)})
    assert idle(am) == ()
    use(am, 20, {2: values, 3: (0.9,)})
    assert idle(am) == ((0,) if is_idle else ())


@pytest.mark.parametrize(
    ("utilisation", "activity", "is_idle"),
    [(1.0, 0.01, True), (0.0, 0.5, False), (None, 0.01, True), (None, 0.5, False)],
    ids=["a kernel that waits", "between two kernels", "an idle MIG device", "a busy MIG device"],
)
def test_the_activity_of_a_gpu_counts_where_it_is_known(
    utilisation: float | None, activity: float, is_idle: bool
) -> None:
    am = application(IdleAction.WARN, RoleSpec(instances=1, resources=GPU))
    am.running(2)
    for _ in range(8):
        am.wait(10)
        devices = (DeviceUsage(index=0, utilisation=utilisation, activity=activity),)
        am.report(2, Phase.RUNNING, usage=Usage(at_ms=am.now_ms, cpu_cores=1.0, devices=devices), gpus=(0,))
    assert idle(am) == ((0,) if is_idle else ())


def test_an_idle_warning_names_the_containers_and_ends_with_a_busy_report() -> None:
    am = application(IdleAction.WARN)
    am.running(2, 3)
    use(am, 80, {2: (0.0,), 3: (0.01,)})
    found = am.view().idle
    assert found is not None
    assert found.containers == (0, 1)
    assert found.message.startswith("all GPUs of containers 0-1 below 5 % since ")
    assert am.now_ms - found.since_ms in range(70_000, 80_001)
    use(am, 10, {2: (0.0,), 3: (0.05,)})
    assert idle(am) == (0,)
    assert am.of(Notify, am.all) == [Notify("running", "", "the program runs")]
    assert am.stops(2, 3) == [Stop.NO, Stop.NO]


def test_idle_gpus_are_notified_once_until_all_are_busy_again() -> None:
    am = application(IdleAction.NOTIFY)
    am.running(2, 3)
    use(am, 200, {2: (0.0,), 3: (0.9,)})
    use(am, 200, {2: (0.0,), 3: (0.0,)})
    use(am, 20, {2: (0.9,), 3: (0.9,)})
    use(am, 100, {2: (0.9,), 3: (0.0,)})
    notifications = [(event.key, event.text) for event in am.of(Notify, am.all) if event.event == "idle"]
    text = "all GPUs of container {} on node1 below 5 % for 60 s; dlapp-status shows which others"
    assert notifications == [(f"{am.id(2)}-1", text.format(0)), (f"{am.id(3)}-2", text.format(1))]
    assert am.stops(2, 3) == [Stop.NO, Stop.NO]


def test_the_application_is_stopped_when_all_of_its_gpus_are_idle() -> None:
    am = application(IdleAction.STOP)
    am.running(2, 3)
    use(am, 300, {2: (0.0,), 3: (0.9,)})
    assert am.stops(2, 3) == [Stop.NO, Stop.NO]
    use(am, 80, {2: (0.0,), 3: (0.0,)})
    assert am.stops(2, 3) == [Stop.SOFT, Stop.SOFT]
    ending = am.state.ending
    assert ending is not None
    assert (ending.cause, ending.diagnostics) == (
        Cause.TIMED_OUT,
        "timed out: idle_guard (all GPUs below 5 % for 60 s)",
    )
    assert idle(am) == ()
    after = application(IdleAction.STOP, attempt=2, former=am.journal())
    assert after.state.ending == ending


def test_containers_without_gpus_and_those_that_are_done_do_not_keep_it() -> None:
    am = application(IdleAction.STOP, RoleSpec(name="ps"), RoleSpec(instances=2, resources=GPU))
    am.running(2)
    am.running(3, 4, request_id=2)
    am.finished(3)
    use(am, 80, {2: (), 4: (0.0,)})
    assert am.stops(2, 4) == [Stop.SOFT, Stop.SOFT]


@pytest.mark.parametrize("phase", [None, Phase.STARTING, Phase.FETCHING, Phase.WAITING, Phase.STORING])
def test_idle_gpus_are_ignored_while_another_container_is_not_running(phase: Phase | None) -> None:
    am = application(IdleAction.STOP)
    am.running(2)
    if phase is not None:
        am.granted(3)
        am.hello(3)
    for _ in range(20):
        use(am, 10, {2: (0.0,)})
        if phase is not None:
            usage = Usage(at_ms=am.now_ms, devices=(DeviceUsage(index=0, utilisation=0.0),))
            am.report(3, phase, gpus=(0,), usage=usage)
    assert idle(am) == (0,)
    assert am.stops(2) == [Stop.NO]


def test_a_silent_task_is_not_idle() -> None:
    am = application(IdleAction.STOP)
    am.running(2, 3)
    use(am, 300, {2: (0.0,), 3: (0.9,)})
    assert idle(am) == (0,)
    for _ in range(4):
        use(am, 10, {3: (0.9,)})
        am.report(2, Phase.RUNNING, gpus=(0,))
    assert idle(am) == ()
    use(am, 60, {2: (0.0,), 3: (0.9,)})
    assert idle(am) == ()  # the window starts over
    use(am, 20, {2: (0.0,), 3: (0.9,)})
    assert idle(am) == (0,)


def test_a_repeated_report_counts_once() -> None:
    am = application(IdleAction.STOP, RoleSpec(resources=GPU))
    am.running(2)
    usage = Usage(at_ms=am.now_ms, devices=(DeviceUsage(index=0, utilisation=0.0),))
    for _ in range(20):
        am.wait(10)
        am.report(2, Phase.RUNNING, gpus=(0,), usage=usage)
    assert am.stops(2) == [Stop.NO]


def test_the_idle_window_starts_over_with_the_next_start_of_a_gang() -> None:
    am = application(IdleAction.STOP, RoleSpec(instances=2, retries=1, resources=GPU), gang=Gang.ALL)
    am.running_gang(2, 3)
    use(am, 60, {2: (0.0,), 3: (0.0,)})
    for number in (2, 3):
        am.report(number, Phase.RUNNING, failure=result(Fault.USER, None, None, signal=6))
    for number in (2, 3):
        am.report(number, Phase.WAITING, generation=1)
    for number in (2, 3):
        am.report(number, Phase.RUNNING, generation=1)
    use(am, 60, {2: (0.0,), 3: (0.0,)})
    assert am.stops(2, 3) == [Stop.NO, Stop.NO]
    use(am, 20, {2: (0.0,), 3: (0.0,)})
    assert am.stops(2, 3) == [Stop.SOFT, Stop.SOFT]


def test_the_idle_window_starts_over_with_the_next_applicationmaster() -> None:
    am = application(IdleAction.STOP, RoleSpec(resources=GPU))
    am.running(2)
    use(am, 60, {2: (0.0,)})
    after = application(
        IdleAction.STOP, RoleSpec(resources=GPU), attempt=2, former=am.journal(), live=(am.grant(2, attempt=1),)
    )
    after.now_ms = am.now_ms
    after.hello(2, index=0, phase=Phase.RUNNING, attempt=1)
    devices = (DeviceUsage(index=0, utilisation=0.0),)
    stops = []
    for _ in range(9):
        after.wait(5)
        usage = Usage(at_ms=after.now_ms, devices=devices)
        after.report(2, Phase.RUNNING, attempt=1, index=0, gpus=(0,), usage=usage)
        after.wait(5)
        stops.append(after.orders(2, attempt=1).stop)
    assert stops == [Stop.NO] * 6 + [Stop.SOFT] * 3
