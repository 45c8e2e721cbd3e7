"""Orders to nodes, some of which do not answer: fake NodeManagers on real sockets."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from dlapp.cluster.yarn.am import node_calls
from dlapp.cluster.yarn.am.node_calls import FailedOrder, NodeCalls, StatusOrder, StopOrder
from dlapp.cluster.yarn.messages import parse_started
from dlapp.cluster.yarn.values import ContainerStatus, NodeId
from dlapp.hadoop.errors import ConnectionLost, HadoopError, TryAgain
from dlapp.hadoop.wire import Fields
from dlapp.system import waits
from dlapp.values.ids import ContainerId
from tests.cluster.yarn.am.node_managers import TOKEN, SilentNode, id_of, start_of, take_all
from tests.cluster.yarn.on_yarn import until
from tests.hadoop.rpc_server import Refuse, RpcServer
from tests.services.ports import held


class Outcome:
    """Outcome of orders."""

    def __init__(self) -> None:
        self.started: list[ContainerId] = []
        self.failed: list[FailedOrder] = []
        self.seen: list[tuple[ContainerId, ContainerStatus | None]] = []
        self.calls = NodeCalls(
            lambda _node: TOKEN,
            self.failed.append,
            lambda container_id, status: self.seen.append((container_id, status)),
            self.started.extend,
        )


@pytest.fixture
def outcome() -> Iterator[Outcome]:
    one = Outcome()
    yield one
    one.calls.close(10.0)


def error_of(outcome: Outcome, node: NodeId) -> HadoopError | None:
    """Return the error of the last call to a node that does not answer."""
    queue = outcome.calls._queues.get(node)
    return None if queue is None else queue.error


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give up connections soon."""
    monkeypatch.setattr(node_calls, "CONNECT_TIMEOUT_S", 0.2)
    monkeypatch.setattr(node_calls, "FIRST_PAUSE_S", 0.02)
    monkeypatch.setattr(node_calls, "LONGEST_PAUSE_S", 0.02)


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_many_nodes_that_are_off_do_not_delay_the_others(outcome: Outcome, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("START_TIMEOUT_S", "STOP_TIMEOUT_S"):
        monkeypatch.setattr(node_calls, name, 1000.0)
    before = set(threading.enumerate())
    with ExitStack() as stack:
        dead = [stack.enter_context(SilentNode(full=number % 2 == 0)) for number in range(40)]
        server = stack.enter_context(RpcServer(take_all, TOKEN, host=""))
        live = [NodeId(f"127.0.1.{number}", server.address[1]) for number in range(1, 61)]
        server_nodes = [item.node for item in dead] + live
        for number, node in enumerate(server_nodes):
            outcome.calls.order(node, start_of(id_of(number), node))
        until(lambda: len(outcome.started) == len(live))
        # What comes for them later waits for the two threads that call nodes which do not answer, and nobody else does.
        for number, one in enumerate(dead):
            outcome.calls.order(one.node, StopOrder(id_of(number)))
        until(lambda: sum(item.calls for item in dead) > 30)
        for number, node in enumerate(live):
            outcome.calls.order(node, start_of(id_of(1000 + number), node))
        until(lambda: len(outcome.started) == 2 * len(live))
        assert outcome.failed == []
    names = [thread.name for thread in threading.enumerate() if thread not in before]
    assert sum(name.startswith("am-nodes") for name in names) <= node_calls.MAX_THREADS
    assert sum(name.startswith("am-slow-nodes") for name in names) <= node_calls.MAX_SLOW_THREADS


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("full", [False, True])
def test_a_start_that_a_silent_node_does_not_accept_fails_as_not_started(
    outcome: Outcome, monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    def give_up_after(timeout_s: float) -> None:
        for name in ("START_TIMEOUT_S", "STOP_TIMEOUT_S"):
            monkeypatch.setattr(node_calls, name, timeout_s)

    give_up_after(1000.0)  # not before it was seen to be waited for
    monkeypatch.setattr(waits, "SHOWN_AFTER_S", 0.0)
    with SilentNode(full=full) as dead:
        outcome.calls.order(dead.node, start_of(id_of(2), dead.node))
        until(lambda: waits.longest_text().startswith("waits for the NodeManager on 127.0.0.1 since "))
        outcome.calls.order(dead.node, StatusOrder(id_of(4)))
        outcome.calls.order(dead.node, StopOrder(id_of(3)))
        until(lambda: full or dead.calls > 1)
        give_up_after(2.0)
        until(lambda: len(outcome.failed) == 2 and outcome.seen)
        assert [(container.container_id, container.start) for container in outcome.failed] == [
            (id_of(2), True),
            (id_of(3), False),
        ]
        assert outcome.seen == [(id_of(4), None)]
        error = outcome.failed[0].error
        assert isinstance(error, ConnectionLost)
        assert not error.sent
        assert not error.refused
        words = f"the NodeManager {dead.node} did not answer in 2 s: {dead.node}: timed out"
        assert str(error) == words
        until(lambda: waits.longest_text() == "")


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_a_start_on_a_host_without_a_nodemanager_is_reported_as_refused(
    outcome: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_calls, "START_TIMEOUT_S", 1000.0)
    number, holders = held()  # one that no other program is given meanwhile
    for holder in holders:
        holder.close()
    node = NodeId("127.0.0.1", number)
    outcome.calls.order(node, start_of(id_of(2), node))
    until(lambda: error_of(outcome, node) is not None)
    monkeypatch.setattr(node_calls, "START_TIMEOUT_S", 2.0)
    until(lambda: outcome.failed)
    error = outcome.failed[0].error
    assert isinstance(error, ConnectionLost)
    assert (error.sent, error.refused) == (False, True)


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_a_start_that_may_have_reached_its_node_is_reported_so(
    outcome: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_calls, "START_TIMEOUT_S", 1000.0)
    monkeypatch.setattr(node_calls, "CONNECT_TIMEOUT_S", 120.0)  # the server answers
    is_first = threading.Event()

    def lose(_method: str, _request: bytes) -> bytes:
        if not is_first.is_set():
            is_first.set()
            raise EOFError
        raise Refuse("org.apache.hadoop.yarn.exceptions.NMNotYetReadyException", "not yet")

    with RpcServer(lose, TOKEN) as server:
        node = NodeId(*server.address)
        outcome.calls.order(node, start_of(id_of(2), node))
        until(lambda: isinstance(error_of(outcome, node), TryAgain))
        monkeypatch.setattr(node_calls, "START_TIMEOUT_S", 2.0)
        until(lambda: outcome.failed)
    (failed,) = outcome.failed
    assert isinstance(failed.error, ConnectionLost)
    assert failed.error.sent
    assert "not yet" in str(failed.error)


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_a_node_that_is_not_ready_is_tried_again_and_then_it_is_not_its_fault(
    outcome: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_calls, "START_TIMEOUT_S", 1000.0)
    monkeypatch.setattr(node_calls, "CONNECT_TIMEOUT_S", 120.0)  # the server answers
    refusals = iter(range(3))

    def refuse(method: str, request: bytes) -> bytes:
        if next(refusals, None) is None:
            return take_all(method, request)
        raise Refuse("org.apache.hadoop.yarn.exceptions.NMNotYetReadyException", "not yet")

    with RpcServer(refuse, TOKEN) as server:
        node = NodeId(*server.address)
        outcome.calls.order(node, start_of(id_of(2), node))
        until(lambda: outcome.started == [id_of(2)])
        # With its answer it is a node like any other.
        outcome.calls.order(node, start_of(id_of(3), node))
        until(lambda: outcome.started == [id_of(2), id_of(3)])
        refusals = iter(range(1_000_000))
        outcome.calls.order(node, start_of(id_of(4), node))
        until(lambda: error_of(outcome, node) is not None)
        monkeypatch.setattr(node_calls, "START_TIMEOUT_S", 2.0)
        until(lambda: outcome.failed)
    assert isinstance(outcome.failed[0].error, TryAgain)


def test_a_node_gets_its_orders_in_turn_and_those_of_one_kind_in_one_call(
    outcome: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CONNECT_TIMEOUT_S", "ANSWER_TIMEOUT_S"):
        monkeypatch.setattr(node_calls, name, 120.0)  # the first call waits for all other orders
    got: list[tuple[str, int]] = []
    is_first, go = threading.Event(), threading.Event()

    def take(method: str, request: bytes) -> bytes:
        is_first.set()
        go.wait(120)
        answer = take_all(method, request)
        count = len(parse_started(Fields(answer)).done) if "start" in method else 1
        got.append((method, count))
        return answer

    with RpcServer(take, TOKEN) as server:
        node = NodeId(*server.address)
        outcome.calls.order(node, start_of(id_of(1), node))
        until(is_first.is_set)
        for number in range(2, 60):
            outcome.calls.order(node, start_of(id_of(number), node))
        outcome.calls.order(node, StopOrder(id_of(2)))
        outcome.calls.order(node, start_of(id_of(60), node))
        go.set()
        until(lambda: len(outcome.started) == 60)
    calls = [("startContainers", 1), ("startContainers", 50), ("startContainers", 8)]
    assert got == [*calls, ("stopContainers", 1), ("startContainers", 1)]
    assert outcome.started == [id_of(number) for number in range(1, 61)]
