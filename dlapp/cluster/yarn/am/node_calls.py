"""Start, stop and status calls to nodes, on threads beside the ApplicationMaster's own.

A node may be slow or down, and a thousand containers are on hundreds of nodes. So each node has a queue of orders, and
threads, started on demand, take one node at a time and send all its orders of one kind in one call. A node that does
not answer moves to another lane with few threads: its orders are retried there until their time is up, and the other
nodes do not wait for it. With its first answer it returns to the normal lane.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from dlapp.cluster.engine import NODE_MANAGER
from dlapp.cluster.yarn.am.node_manager import NodeManager
from dlapp.cluster.yarn.values import ContainerStatus, Granted, Launch, NodeId
from dlapp.errors import DlappError
from dlapp.hadoop.errors import ConnectionLost, HadoopError, NotHadoop, TryAgain
from dlapp.hadoop.tokens import Token
from dlapp.system.clock import backoff_s
from dlapp.system.waits import Wait
from dlapp.values.ids import ContainerId

MAX_THREADS, MAX_SLOW_THREADS = 32, 2
"""Number of threads for all nodes, and for those that did not answer."""
MAX_STARTS = 50
"""Maximum number of orders per call: the NodeManager writes each container's files before it answers."""
CONNECT_TIMEOUT_S = 3.0
"""Time limit of a connection with its handshake, which takes a working node some milliseconds."""
ANSWER_TIMEOUT_S = 10.0
START_TIMEOUT_S, STOP_TIMEOUT_S, STATUS_TIMEOUT_S = 30.0, 10.0, 3.0
"""How long an order is retried on a node that has not answered since its first try."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 2.0


class StartOrder(NamedTuple):
    """Order to start a task in a container."""

    granted: Granted
    launch: Launch


class StopOrder(NamedTuple):
    """Order to end a container."""

    container_id: ContainerId


class StatusOrder(NamedTuple):
    """Order to query the stage of a container."""

    container_id: ContainerId


Order = StartOrder | StopOrder | StatusOrder


class FailedOrder(NamedTuple):
    """Order that the node did not execute; ``start`` is its kind."""

    container_id: ContainerId
    start: bool
    error: DlappError


class _PendingOrder:
    """Pending order.

    Attributes:
        ordered_at: when it was ordered [s, monotonic].
        is_tried: it was sent, and the node did not answer.
        sent: the node may have received it.
    """

    __slots__ = ("is_tried", "order", "ordered_at", "sent")

    def __init__(self, order: Order) -> None:
        self.order, self.ordered_at = order, time.monotonic()
        self.is_tried = self.sent = False

    @property
    def container_id(self) -> ContainerId:
        """Return the id of the container."""
        order = self.order
        return order.granted.container_id if isinstance(order, StartOrder) else order.container_id

    @property
    def retry_s(self) -> float:
        """Return how long it is tried [s]."""
        timeouts_s = {StartOrder: START_TIMEOUT_S, StopOrder: STOP_TIMEOUT_S, StatusOrder: STATUS_TIMEOUT_S}
        return timeouts_s[type(self.order)]


class _NodeQueue:
    """Pending orders of one node.

    Attributes:
        is_queued: it is in a lane, or a thread handles it.
        failing_since: since when the node has not answered; None: it answers, or was not called yet.
        retry_at: time of the next call to a node that does not answer.
        error: error of its last call.
        wait: time limit of its answer.
    """

    __slots__ = ("error", "failing_since", "is_queued", "orders", "pauses_s", "retry_at", "wait")

    def __init__(self, node: NodeId) -> None:
        self.wait = Wait(NODE_MANAGER + node.host, None)
        self.orders: deque[_PendingOrder] = deque()
        self.is_queued = False
        self.failing_since: float | None = None
        self.retry_at = 0.0
        self.pauses_s: Iterator[float] = iter(())
        self.error: HadoopError | None = None

    def next_batch(self) -> list[_PendingOrder]:
        """Remove and return the first orders, all of one kind."""
        batch: list[_PendingOrder] = []
        while self.orders and len(batch) < MAX_STARTS:
            if batch and type(self.orders[0].order) is not type(batch[0].order):
                break
            batch.append(self.orders.popleft())
        return batch

    def pop_overdue(self) -> list[_PendingOrder]:
        """Remove and return the orders whose retry time is up on this silent node.

        An order given when the node had been silent for long is tried once, if a thread is free for it.
        """
        if self.failing_since is None:
            return []
        now, since = time.monotonic(), self.failing_since
        overdue: list[_PendingOrder] = []
        left: deque[_PendingOrder] = deque()
        for one in self.orders:
            over_at = (since if one.is_tried else max(since, one.ordered_at)) + one.retry_s
            (overdue if now >= over_at else left).append(one)
        self.orders = left
        return overdue

    def requeue(self, batch: Sequence[_PendingOrder], began: float, error: HadoopError) -> None:
        """Put orders that the node did not answer back for the next try."""
        if self.failing_since is None:
            self.failing_since, self.pauses_s = began, backoff_s(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        self.retry_at, self.error = time.monotonic() + next(self.pauses_s), error
        self.wait.why = str(error)
        for one in batch:
            one.is_tried = True
            one.sent = one.sent or (isinstance(error, ConnectionLost | NotHadoop) and error.sent)
        self.orders.extendleft(reversed(batch))


class _Lane:
    """Nodes that wait for a thread, and their threads."""

    def __init__(self, name: str, most: int, lock: threading.Lock) -> None:
        self.name, self.most = name, most
        self.nodes: deque[NodeId] = deque()
        self.changed = threading.Condition(lock)
        self.threads: list[threading.Thread] = []
        self.idle = 0


class NodeCalls:
    """Orders to all nodes.

    Args:
        token_of: returns the token for a node.
        on_failed: called, from other threads, with each start or stop that failed.
        on_status: called likewise with the result of a `StatusOrder`; None: not reported.
        on_started: called likewise with the containers that a node has accepted.
    """

    def __init__(
        self,
        token_of: Callable[[NodeId], Token | None],
        on_failed: Callable[[FailedOrder], None],
        on_status: Callable[[ContainerId, ContainerStatus | None], None],
        on_started: Callable[[Sequence[ContainerId]], None],
    ) -> None:
        self._token_of, self._on_failed, self._on_status, self._on_started = token_of, on_failed, on_status, on_started
        self._lock = threading.Lock()
        self._queues: dict[NodeId, _NodeQueue] = {}
        self._lane = _Lane("am-nodes", MAX_THREADS, self._lock)
        self._slow_lane = _Lane("am-slow-nodes", MAX_SLOW_THREADS, self._lock)
        self._closed = False

    def order(self, node: NodeId, what: Order) -> None:
        """Start, stop or query a container. Does not block."""
        with self._lock:
            if self._closed:
                return
            queue = self._queues.setdefault(node, _NodeQueue(node))
            queue.orders.append(_PendingOrder(what))
            if not queue.is_queued:
                self._put(node, queue)

    def close(self, timeout_s: float) -> None:
        """Accept no more orders; those in progress get ``timeout_s`` to end."""
        with self._lock:
            self._closed = True
            for lane in (self._lane, self._slow_lane):
                lane.changed.notify_all()
        deadline = time.monotonic() + timeout_s
        for thread in (*self._lane.threads, *self._slow_lane.threads):
            thread.join(max(0.0, deadline - time.monotonic()))
        for queue in self._queues.copy().values():
            queue.wait.end()

    def _put(self, node: NodeId, queue: _NodeQueue) -> None:
        lane = self._lane if queue.failing_since is None else self._slow_lane
        queue.is_queued = True
        lane.nodes.append(node)
        if len(lane.nodes) > lane.idle and len(lane.threads) < lane.most:
            name = f"{lane.name}-{len(lane.threads)}"
            lane.threads.append(threading.Thread(target=self._work, args=(lane,), name=name, daemon=True))
            lane.threads[-1].start()
        lane.changed.notify()

    def _work(self, lane: _Lane) -> None:
        while True:
            with self._lock:
                # A node is handled by one thread at a time, so its orders are carried out in order.
                if (node := self._next_node(lane)) is None:
                    return
                queue = self._queues[node]
                overdue, batch = queue.pop_overdue(), queue.next_batch()
            try:
                self._give_up(node, queue, overdue)
                if batch:
                    self._carry_out(node, queue, batch)
            finally:
                with self._lock:
                    queue.is_queued = False
                    if not queue.orders or queue.failing_since is None:
                        queue.wait.end()
                    if queue.orders:
                        self._put(node, queue)
                    elif queue.failing_since is None:
                        del self._queues[node]

    def _next_node(self, lane: _Lane) -> NodeId | None:
        """Wait for a node of a lane that is due; None: closed."""
        lane.idle += 1
        try:
            while True:
                if self._closed and (lane is self._slow_lane or not lane.nodes):
                    return None
                now = time.monotonic()
                for node in lane.nodes:
                    if self._queues[node].retry_at <= now:
                        lane.nodes.remove(node)
                        return node
                lane.changed.wait(min((self._queues[one].retry_at - now for one in lane.nodes), default=None))
        finally:
            lane.idle -= 1

    def _carry_out(self, node: NodeId, queue: _NodeQueue, batch: list[_PendingOrder]) -> None:
        first, began = batch[0].order, time.monotonic()
        if not batch[0].is_tried:
            queue.wait.renew().longest_s = batch[0].retry_s
        queue.wait.begin()
        containers = [one.container_id for one in batch]
        outcome: dict[ContainerId, DlappError | None] = {}
        statuses: dict[ContainerId, ContainerStatus | None] = {}
        try:
            manager = self._node_manager(node)
            if isinstance(first, StartOrder):
                starts = [one.order for one in batch if isinstance(one.order, StartOrder)]
                outcome |= manager.start([(one.granted, one.launch) for one in starts], timeout_s=ANSWER_TIMEOUT_S)
            elif isinstance(first, StopOrder):
                outcome |= manager.stop(containers, timeout_s=ANSWER_TIMEOUT_S)
            else:
                statuses = manager.known_statuses(containers, timeout_s=STATUS_TIMEOUT_S)
        except (ConnectionLost, NotHadoop, TryAgain) as error:
            is_status = isinstance(first, StatusOrder)
            with self._lock:
                queue.requeue(() if is_status else batch, began, error)
            for container_id in containers if is_status else ():
                self._on_status(container_id, None)
            return
        except DlappError as error:
            outcome = dict.fromkeys(containers, error)
        except ValueError as error:  # a command that cannot be expressed in YARN's script
            outcome = dict.fromkeys(containers, HadoopError(str(error)))
        except Exception as error:
            # An internal error: the thread continues for the other nodes, and these orders have failed.
            outcome = dict.fromkeys(containers, HadoopError(f"{node}: {error!r}"))
        with self._lock:
            queue.failing_since, queue.retry_at = None, 0.0
        if isinstance(first, StatusOrder):
            for container_id in containers:
                self._on_status(container_id, statuses.get(container_id))
            return
        is_start = isinstance(first, StartOrder)
        for container_id, failure in outcome.items():
            if failure is not None:
                self._on_failed(FailedOrder(container_id, is_start, failure))
        if is_start and (accepted := [one for one, failure in outcome.items() if failure is None]):
            self._on_started(accepted)

    def _give_up(self, node: NodeId, queue: _NodeQueue, overdue: Sequence[_PendingOrder]) -> None:
        """Report orders that a silent node did not answer in time."""
        for one in overdue:
            if isinstance(one.order, StatusOrder):
                self._on_status(one.container_id, None)
                continue
            error = queue.error
            if one.sent or not isinstance(error, TryAgain):
                text = f"the NodeManager {node} did not answer in {one.retry_s:g} s: {error}"
                refused = isinstance(error, ConnectionLost) and error.refused
                error = ConnectionLost(text, sent=one.sent, refused=refused and not one.sent)
            self._on_failed(FailedOrder(one.container_id, isinstance(one.order, StartOrder), error))

    def _node_manager(self, node: NodeId) -> NodeManager:
        token = self._token_of(node)
        if token is None:
            raise HadoopError(f"{node}: the ResourceManager gave no token for this node")
        return NodeManager(node, token, connect_s=CONNECT_TIMEOUT_S)
