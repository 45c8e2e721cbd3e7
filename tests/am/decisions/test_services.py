"""Services of an application: what restarts them, what ends them, and who sees where they serve."""

from __future__ import annotations

from typing import Any

import pytest

from dlapp.am.decisions.assessment import FIRST_PAUSE_MS
from dlapp.am.model import events
from dlapp.am.model.instance import Stage
from dlapp.am.view import public_view
from dlapp.errors import SpecError
from dlapp.value import replace
from dlapp.values.messages import BoardStatus, Fault, PayloadStatus, Phase, Stop
from dlapp.values.report import Cause, FinalStatus, LinkView, State
from dlapp.values.spec import READY_BY_PORT, Gang, InputSpec, Kind, QuickLink, RoleSpec
from tests.am.driving import Driver, result

SERVER = RoleSpec(name="server", command=("serve",), service=True, keep_running=True, ports=1, ready=READY_BY_PORT)
READY = PayloadStatus(ready=True)


def alone(max_idle_s: float | None = None) -> Driver:
    """An application of one service, which runs in container 2."""
    am = Driver(replace(SERVER, max_idle_s=max_idle_s), kind=Kind.SERVICE, outputs=())
    am.running(2)
    return am


def serves(am: Driver, seconds: int, payload: PayloadStatus | None) -> None:
    """Let time pass in which the task of container 2 reports this of its payload."""
    for _ in range(seconds // 10):
        am.report(2, Phase.RUNNING, payload=payload)
        am.wait(10)


def work_of(am: Driver, number: int) -> events.Assign:
    return next(container for container in am.of(events.Assign, am.all) if container.container_id.number == number)


def test_a_service_beside_workers_is_no_part_of_their_gang_their_count_and_their_output() -> None:
    shared = InputSpec(sources=("file:///data/*",), input_path="in", shard=True)
    am = Driver(RoleSpec(instances=2), SERVER, gang=Gang.ALL, inputs=(shared,))
    am.granted(2, 3)
    for number in (2, 3):
        am.hello(number)
        am.report(number, Phase.WAITING)
    assert [am.orders(number).go for number in (2, 3)] == [True, True], "they do not wait for the service"
    am.running(4, request_id=2)
    worker, server = work_of(am, 2).assignment, work_of(am, 4).assignment
    assert (worker.total, server.total, server.index) == (2, 3, 2)
    assert (worker.inputs[0].shard, server.inputs[0].shard) == (True, False)
    assert (len(worker.outputs), server.outputs, server.parts) == (1, (), ())
    assert (worker.ready_by_port, server.ready_by_port, server.in_gang) == (False, True, False)


def test_a_service_is_restarted_after_any_end_with_growing_pauses() -> None:
    am = Driver(RoleSpec(), SERVER)
    am.running(2)
    ends = [result(Fault.NONE, 0, None), result(Fault.USER, 7, None), result(Fault.NODE, None, None)] * 2
    for number, end in enumerate(ends, start=3):
        am.running(number, request_id=2)
        am.finished(number, end)
        pause_s = min(FIRST_PAUSE_MS / 1000 * 2 ** (number - 3), 60)
        am.wait(pause_s - 1)
        assert am.requested() == [0, 0]
        am.wait(2)
        assert am.requested() == [0, 1]
        am.report(2, Phase.RUNNING)
    am.finished(2)
    am.settled()
    assert am.ending().final_status is FinalStatus.SUCCEEDED


def test_a_service_ends_with_its_application_and_its_end_is_no_failure() -> None:
    am = Driver(RoleSpec(), SERVER)
    am.running(2)
    am.running(3, request_id=2)
    am.finished(2)
    assert am.stops(3) == [Stop.SOFT]
    am.finished(3, result(Fault.STOPPED, None, None, signal=15))
    assert [part.role for part in am.settlement().parts] == ["worker"]
    am.settled()
    assert am.ending() == events.ApplicationEnd(FinalStatus.SUCCEEDED, Cause.SUCCEEDED, "")


def test_a_soft_kill_names_no_service_among_those_without_output() -> None:
    am = Driver(RoleSpec(), SERVER)
    am.running(2)
    am.running(3, request_id=2)
    am.do(events.SoftKill("tony"))
    am.finished(2)
    am.finished(3, result(Fault.STOPPED, None, None, signal=15))
    am.settled()
    assert am.diagnostics() == "soft-killed by tony, output committed"


def test_an_application_of_services_has_no_end_of_its_own_and_a_soft_kill_ends_it() -> None:
    am = alone()
    am.finished(2, result(Fault.NONE, 0, None))
    am.wait(5)
    am.running(3)
    am.wait(100_000)
    assert am.state.stage is Stage.ACTIVE
    assert am.master.progress() == 0.0
    am.do(events.SoftKill("tony"))
    am.finished(3, result(Fault.STOPPED, 0, None))
    am.settled()
    assert am.ending() == events.ApplicationEnd(FinalStatus.KILLED, Cause.SOFT_KILLED, "soft-killed by tony")
    assert am.view().state is State.FINISHED


def test_an_application_of_services_fails_if_one_of_them_can_never_run() -> None:
    am = alone()
    am.finished(2, result(Fault.DATA, None, None, message="no such input"))
    assert am.state.ending is not None
    assert am.state.ending.final_status is FinalStatus.FAILED
    beside = Driver(RoleSpec(), SERVER)
    beside.running(2)
    beside.running(3, request_id=2)
    beside.finished(3, result(Fault.DATA, None, None, message="no such input"))
    assert beside.state.ending is None
    beside.wait(120)
    assert beside.requested() == [0, 0]


def test_an_application_of_services_succeeds_after_max_idle_without_connections() -> None:
    used, unused = replace(READY, in_use=True), replace(READY, in_use=False)
    am = alone(60)
    serves(am, 200, None)  # it is not ready yet
    serves(am, 200, used)
    serves(am, 50, unused)
    serves(am, 10, used)
    serves(am, 50, unused)
    assert am.stops(2) == [Stop.NO]
    am.wait(11)
    assert am.stops(2) == [Stop.SOFT]
    am.finished(2, result(Fault.STOPPED, None, None, signal=15))
    am.settled()
    text = "nobody was connected for 60 s (max_idle)"
    assert am.ending() == events.ApplicationEnd(FinalStatus.SUCCEEDED, Cause.SUCCEEDED, text)


def test_connections_that_cannot_be_seen_count_as_use() -> None:
    am = alone(60)
    serves(am, 1000, READY)
    assert am.stops(2) == [Stop.NO]


def test_a_service_that_fails_again_and_again_is_not_in_use() -> None:
    am = alone(60)
    for number in range(3, 20):
        am.finished(number - 1, result(Fault.USER, 1, None))
        if am.state.stage is not Stage.ACTIVE:
            break
        am.wait(61 if number > 8 else 40)
        if am.state.stage is not Stage.ACTIVE:
            break
        am.running(number)
    assert am.state.ending is not None
    assert "max_idle" in am.state.ending.diagnostics


def test_links_point_to_running_containers_and_show_readiness() -> None:
    links = (QuickLink("docs", "server", None, 0, "/docs?a=1"), QuickLink("board", "worker", 6006))
    am = Driver(RoleSpec(instances=2), replace(SERVER, ports=2), links=links)
    am.running(2, 3)
    assert [(link.name, link.url) for link in am.view().links] == [
        ("board 0", "http://node1:6006/"),
        ("board 1", "http://node1:6006/"),
    ]
    am.running(4, request_id=2)
    served = [link for link in am.view().links if link.container == 2]
    assert served == [
        LinkView(name="server 0", url="http://10.0.0.4:20000/", container=2, ready=False),
        LinkView(name="server 0", url="http://10.0.0.4:20001/", container=2, ready=False),
        LinkView(name="docs", url="http://node1:20000/docs?a=1", container=2, ready=False),
    ]
    am.report(4, Phase.RUNNING, payload=READY)
    assert [link.ready for link in am.view().links if link.container == 2] == [True] * 3
    am.finished(4, result(Fault.USER, 1, None))
    assert [link for link in am.view().links if link.container == 2] == [], "nothing serves there now"


def test_on_one_machine_a_link_leads_to_the_machine_itself() -> None:
    am = Driver(RoleSpec(), links=(QuickLink("board", "worker", 6006),), single_node=True)
    am.running(2)
    assert [link.url for link in am.view().links] == ["http://localhost:6006/"]


@pytest.mark.parametrize("host", ["a b", "x/../y", "<b>", "évil", "a" * 300])
def test_a_host_that_no_url_can_have_has_no_link(host: str) -> None:
    am = Driver(RoleSpec(), links=(QuickLink("board", "worker", 6006),))
    am.granted(2, node=host)
    am.do(events.Tick())
    am.hello(2)
    am.state.containers.by_id[am.id(2)].host = host
    am.report(2, Phase.RUNNING)
    assert am.view().links == ()


BOARD = BoardStatus(address="10.0.0.7", port=20_001, path=f"/{'ab' * 16}/")


def test_a_tensorboard_runs_beside_the_first_deciding_container_for_the_owner() -> None:
    am = Driver(RoleSpec(name="ps", service=True), RoleSpec(instances=2), tensorboard="output")
    am.running(2)
    am.running(3, 4, request_id=2)
    assert [work_of(am, number).assignment.board for number in (2, 3, 4)] == ["", "output", ""]
    assert am.view().links == ()
    am.report(3, Phase.RUNNING, board=BOARD)
    am.report(4, Phase.RUNNING, board=BOARD)
    url = f"http://10.0.0.7:20001/{'ab' * 16}/"
    assert am.view().links == (LinkView(name="tensorboard", url=url, container=1, secret=True),)
    assert public_view(am.view()).links == ()
    am.report(3, Phase.RUNNING, board=BoardStatus(problem="tensorboard is not installed in the image"))
    assert [(link.url, link.problem) for link in am.view().links] == [("", "tensorboard is not installed in the image")]
    am.report(3, Phase.STORING, board=BOARD)
    assert am.view().links == ()


@pytest.mark.parametrize(
    "wrong",
    [
        {"port": 70_000},
        {"port": -1},
        {"port": 80, "address": "evil.example.org", "path": f"/{'ab' * 16}/"},
        {"port": 80, "address": "10.0.0.7", "path": "/../"},
        {"problem": "two\nlines"},
        {"problem": "x" * 301},
    ],
)
def test_a_state_of_tensorboard_that_is_none_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(SpecError):
        BoardStatus(**wrong)
