"""Streams of an ApplicationMaster: which containers may have one, and how the tool and the task come together."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import Any, cast

import pytest

from dlapp.am.control import streams
from dlapp.am.control.server import ControlRequest
from dlapp.am.control.streams import StreamBroker
from dlapp.am.model import events
from dlapp.errors import Denied, NotFound
from dlapp.net.control import MAX_STRANGERS_OF_AN_ADDRESS
from dlapp.net.control_client import ControlConnection
from dlapp.net.streams import StreamRefused, open_stream
from dlapp.values.access import MODIFIERS, TOOLS, VIEWERS, StreamRequest, derive_token
from dlapp.values.messages import Hello, Phase, StreamAnswer, StreamOrder
from dlapp.values.serialization import to_json
from dlapp.values.spec import RoleSpec
from tests.am.driving import Driver
from tests.am.test_loop import SECRET, Task, World, world
from tests.applications import wait_for

__all__ = ["world"]

PATIENCE_S = 120.0


class NoCall:
    """A call of a tool that does not read its answer."""

    def __init__(self, *, by_viewer: bool = False) -> None:
        self.by_viewer = by_viewer

    def refuse(self, *_: object) -> None:
        """Do nothing."""


NO_CALL = cast(ControlRequest, NoCall())


def wanted(number: int, index: int = 0, *, pending: frozenset[int] = frozenset()) -> events.OpenStream:
    return events.OpenStream(index=index, order=StreamOrder(number=number, kind="port", head="{}"), pending=pending)


def refusal(driver: Driver, index: int = 0) -> str:
    """Return why a stream is refused; empty: it is not."""
    actions = driver.do(wanted(99, index))
    return "".join(action.why for action in driver.of(events.RefuseStream, actions))


# ---- what is decided ----


def test_the_task_of_a_program_that_runs_is_ordered_to_open_a_stream() -> None:
    driver = Driver()
    driver.running(2)
    before = driver.orders(2).number
    driver.do(wanted(1))
    assert [stream.number for stream in driver.orders(2).streams] == [1]
    assert driver.orders(2).number > before
    driver.do(wanted(2, pending=frozenset({1})))
    assert [stream.number for stream in driver.orders(2).streams] == [1, 2]
    driver.do(wanted(3, pending=frozenset({2})))
    assert [stream.number for stream in driver.orders(2).streams] == [2, 3], "nobody waits for the first any more"
    assert not driver.of(events.WriteJournal, driver.last), "a stream is not worth a record"


def test_a_stream_is_refused_with_the_reason_where_no_program_runs() -> None:
    driver = Driver(RoleSpec(name="worker", instances=2))
    assert refusal(driver, 1) == "worker:1 waits for a container"
    assert refusal(driver, 2) == "there is no container 2: the application has 0 to 1"
    assert refusal(driver, -1) == "there is no container -1: the application has 0 to 1"
    driver.granted(2, 3)
    driver.hello(2)
    driver.hello(3)
    driver.report(2, Phase.FETCHING)
    assert refusal(driver) == "worker:0 does not run its program now: fetching"
    driver.report(2, Phase.RUNNING)
    driver.report(3, Phase.RUNNING)
    assert refusal(driver) == ""
    driver.finished(2)
    assert refusal(driver) == "worker:0 has ended"
    driver.do(events.SoftKill("tony"))
    assert refusal(driver, 1) == "worker:1 is not there any more: the application is ending"


def test_a_container_that_is_new_at_its_index_gets_the_streams_from_then_on() -> None:
    driver = Driver(RoleSpec(name="worker", retries=2))
    driver.running(2)
    driver.ended(2, -9, node_fault=True)
    assert refusal(driver) == "worker:0 waits for a container"
    driver.running(3)
    driver.do(wanted(1))
    assert [stream.number for stream in driver.orders(3).streams] == [1]


# ---- the tool, the loop and the task ----


def as_tool(url: str, index: int, head: str = "{}", *, token: str | None = None) -> socket.socket:
    body = to_json(StreamRequest(index=index, kind="port", head=head))
    return open_stream(url, token or derive_token(SECRET, TOOLS), "/v1/streams", body, timeout_s=PATIENCE_S)


class Tool:
    """A tool that waits for its stream in a thread."""

    def __init__(self, url: str, index: int, head: str = "{}", *, token: str | None = None) -> None:
        self.box: list[Any] = []
        self._thread = threading.Thread(target=self._run, args=(url, index, head, token), daemon=True)
        self._thread.start()

    def _run(self, url: str, index: int, head: str, token: str | None) -> None:
        try:
            self.box.append(as_tool(url, index, head, token=token))
        except Exception as error:
            self.box.append(error)

    def stream(self) -> socket.socket:
        self._thread.join(PATIENCE_S)
        if isinstance(self.box[0], Exception):
            raise self.box[0]
        assert isinstance(self.box[0], socket.socket)
        return self.box[0]


def ordered(task: Task, after: int = 0) -> StreamOrder:
    """Return the next stream that the orders of a task name."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        new = [stream for stream in task.orders(wait_s=5.0).streams if stream.number > after]
        if new:
            return new[0]
    raise AssertionError("no order")


def answer(world: World, task: Task, number: int, **fields: Any) -> socket.socket:
    """Say what a task says to an order."""
    token, path = derive_token(SECRET, str(task.container_id)), f"/v1/tasks/{task.container_id}/stream"
    body = to_json(StreamAnswer(container_id=task.container_id, number=number, **fields))
    return open_stream(world.loop.control_url, token, path, body, timeout_s=PATIENCE_S)


@pytest.mark.proves("ports-token")
def test_a_tool_and_a_task_are_connected_and_a_loop_that_ends_ends_their_stream(world: World) -> None:
    task, another = world.tasks[3], world.tasks[4]
    tool = Tool(world.loop.control_url, 3, '{"port": 8888}')
    order = ordered(task)
    assert (order.kind, order.head, order.for_viewer) == ("port", '{"port": 8888}', False)
    with pytest.raises(StreamRefused, match=f"no command waits for stream {order.number}"):
        answer(world, another, order.number)
    with answer(world, task, order.number) as theirs, tool.stream() as ours:
        ours.sendall(b"hello")
        assert theirs.recv(100) == b"hello"
        theirs.sendall(b"world")
        assert ours.recv(100) == b"world"
        with pytest.raises(StreamRefused, match="no command waits"):
            answer(world, task, order.number)
        world.shut_down()
        assert (ours.recv(100), theirs.recv(100)) == (b"", b"")


def test_a_tool_gets_the_reason_why_a_task_cannot_open_a_stream(world: World) -> None:
    tool = Tool(world.loop.control_url, 0)
    order = ordered(world.tasks[0])
    with pytest.raises(StreamRefused, match="HTTP 200"):  # it asks for a stream to say that there is none
        answer(world, world.tasks[0], order.number, error="nothing listens on port 1 yet", reason="not_open")
    with pytest.raises(StreamRefused, match="nothing listens on port 1 yet") as caught:
        tool.stream()
    assert caught.value.reason == "not_open"


@pytest.mark.proves("ports-token")
def test_a_tool_without_the_token_or_with_a_wrong_request_is_refused(world: World) -> None:
    url = world.loop.control_url
    with pytest.raises(Denied):
        as_tool(url, 0, token="00" * 32)
    with pytest.raises(Denied, match="not this application's"):
        as_tool(url, 0, token=derive_token(SECRET, str(world.tasks[0].container_id)))
    with pytest.raises(NotFound, match="there is no container 99"):
        as_tool(url, 99)
    body = {"index": 0, "kind": "../port", "head": "{}"}
    with pytest.raises(StreamRefused, match="kind: is not 1 to 32"):
        open_stream(url, derive_token(SECRET, TOOLS), "/v1/streams", body, timeout_s=PATIENCE_S)
    body = {"index": 0, "kind": "port", "head": "x" * 40_000}
    with pytest.raises(StreamRefused, match="head: has more than"):
        open_stream(url, derive_token(SECRET, TOOLS), "/v1/streams", body, timeout_s=PATIENCE_S)
    assert not any(task.orders().streams for task in world.tasks)


@pytest.mark.proves("ports-access")
def test_a_viewer_token_allows_ports_and_the_view_only(world: World) -> None:
    url, viewer, task = world.loop.control_url, derive_token(SECRET, VIEWERS), world.tasks[2]
    tool = Tool(url, 2, token=viewer)
    order = ordered(task)
    assert order.for_viewer
    with answer(world, task, order.number) as theirs, tool.stream() as ours:
        ours.sendall(b"hello")
        assert theirs.recv(100) == b"hello"
    for of_trial in ({"index": 2}, {"index": None, "trial": 0}):
        with pytest.raises(Denied, match="view_acl permits dlapp-port only"):
            open_stream(url, viewer, "/v1/streams", {"kind": "exec", **of_trial}, timeout_s=PATIENCE_S)
    with ControlConnection(url, viewer) as connection:
        assert connection.call("GET", "/v1/view", timeout_s=PATIENCE_S)["application_id"]
        for word in ("softkill", "kill", "release"):
            with pytest.raises(Denied):
                connection.call("POST", f"/v1/{word}", {"user": "ann"}, timeout_s=PATIENCE_S)
    assert world.loop._state.stop.by == ""


@pytest.mark.parametrize(
    ("request_json", "why"),
    [
        ({"kind": "exec", "index": None}, "it names neither a container nor a trial"),
        ({"kind": "port", "index": None, "trial": 0}, "is for commands only"),
        ({"kind": "exec", "index": 0, "trial": "0"}, "is text, not int"),
    ],
)
def test_an_incomplete_stream_request_is_refused(world: World, request_json: dict[str, object], why: str) -> None:
    token = derive_token(SECRET, TOOLS)
    with pytest.raises(StreamRefused, match=f"not a valid request: .*{why}"):
        open_stream(world.loop.control_url, token, "/v1/streams", request_json, timeout_s=PATIENCE_S)


@pytest.mark.proves("ports-access")
def test_a_modifier_token_allows_kills_but_no_ports(world: World) -> None:
    url, modifier = world.loop.control_url, derive_token(SECRET, MODIFIERS)
    with pytest.raises(Denied):
        as_tool(url, 0, token=modifier)
    with ControlConnection(url, modifier) as connection:
        answer = connection.call("POST", "/v1/softkill", {"user": "ben"}, timeout_s=PATIENCE_S)
        assert answer["state"] == "stopping"
    assert world.loop._state.stop.by == "ben"


def test_open_streams_are_bounded_and_ended_ones_are_not_counted(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MAX_OPEN", 1)
    url, task = world.loop.control_url, world.tasks[0]
    tool = Tool(url, 0)
    order = ordered(task)
    with answer(world, task, order.number) as theirs, tool.stream() as ours:
        with pytest.raises(StreamRefused, match="too many streams"):
            as_tool(url, 0)
        ours.sendall(b"x")
        assert theirs.recv(1) == b"x"

    def is_there_room() -> bool:
        broker = world.loop._streams
        assert broker is not None
        request = StreamRequest(index=0, kind="port")
        return broker.open(NO_CALL, request, time.monotonic()) is not None

    wait_for("the stream is over", is_there_room)


def test_pending_streams_are_bounded_and_expire_if_the_task_is_silent(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "MAX_PENDING", 1)
    tool = Tool(world.loop.control_url, 0)
    ordered(world.tasks[0])
    with pytest.raises(StreamRefused, match="too many streams") as caught:
        as_tool(world.loop.control_url, 1)
    assert caught.value.reason == "busy"
    broker = world.loop._streams
    assert isinstance(broker, StreamBroker)
    broker.check(time.monotonic() + streams.OPEN_S)
    with pytest.raises(StreamRefused, match="did not answer in 20 s"):
        tool.stream()


@pytest.mark.proves("ports-connections")
def test_connections_of_a_viewer_keep_no_task_out(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    url, server = world.loop.control_url, world.loop._control.server
    monkeypatch.setattr(server, "_most", MAX_STRANGERS_OF_AN_ADDRESS)
    with contextlib.ExitStack() as opened:
        for _ in range(MAX_STRANGERS_OF_AN_ADDRESS + 8):
            viewer = opened.enter_context(ControlConnection(url, derive_token(SECRET, VIEWERS)))
            assert viewer.call("GET", "/v1/view", timeout_s=PATIENCE_S)["application_id"]
        # It has as many connections as it may; one of a task gets in all the same.
        container_id = world.tasks[0].container_id
        task = opened.enter_context(ControlConnection(url, derive_token(SECRET, str(container_id))))
        hello = to_json(Hello(container_id=container_id, host="here", pid=1))
        assert task.call("POST", f"/v1/tasks/{container_id}/hello", hello, timeout_s=PATIENCE_S)
        assert len(server._peers) <= MAX_STRANGERS_OF_AN_ADDRESS


@pytest.mark.proves("ports-connections")
@pytest.mark.parametrize("purpose", [TOOLS, VIEWERS, MODIFIERS])
def test_a_token_of_another_purpose_is_no_tasks(world: World, purpose: str) -> None:
    with (
        ControlConnection(world.loop.control_url, derive_token(SECRET, purpose)) as connection,
        pytest.raises(Denied, match="not this task's"),
    ):
        connection.call("POST", f"/v1/tasks/{purpose}/report", {}, timeout_s=PATIENCE_S)


@pytest.mark.proves("ports-viewer")
def test_viewers_leave_the_owner_a_part_of_the_streams() -> None:
    broker, request = StreamBroker(), StreamRequest(index=0, kind="port")
    viewer = cast(ControlRequest, NoCall(by_viewer=True))
    got = [broker.open(viewer, request, 0.0) for _ in range(streams.MAX_PENDING)]
    assert sum(item is not None for item in got) == streams.MAX_PENDING * 3 // 4
    assert broker.open(NO_CALL, request, 0.0) is not None
    broker.close()
