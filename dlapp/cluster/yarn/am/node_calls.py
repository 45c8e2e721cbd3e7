"""Starting and stopping containers on their nodes, and asking after them, beside the ApplicationMaster's own thread.

A node may be slow or gone, and a thousand containers stand on hundreds of nodes. So orders go to a queue for each node,
and a few threads, started when they are needed, take one node at a time and give it all of its orders in one call.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from dlapp.cluster.yarn.am.node_manager import NodeManager
from dlapp.cluster.yarn.values import Granted, Launch, NodeId
from dlapp.errors import DlappError
from dlapp.hadoop.errors import HadoopError
from dlapp.hadoop.tokens import Token
from dlapp.ids import ContainerId

MOST_THREADS = 8
MOST_STARTS = 50
"""In one call: the NodeManager writes each container's files before it answers."""
START_TIMEOUT_S, STOP_TIMEOUT_S, LOOK_TIMEOUT_S = 30.0, 10.0, 3.0


class StartOrder(NamedTuple):
    """Start this in that container."""

    granted: Granted
    launch: Launch


class LookOrder(NamedTuple):
    """See whether the processes of this container are gone."""

    container_id: ContainerId


Order = StartOrder | ContainerId | LookOrder
"""A `ContainerId` by itself is to be stopped."""


class FailedOrder(NamedTuple):
    """An order that the node did not carry out; ``start`` tells which kind."""

    container_id: ContainerId
    start: bool
    error: DlappError


class NodeCalls:
    """The orders to all nodes.

    Args:
        token_of: the token for a node, newest first known.
        failed: called, from threads of ours, with each start or stop that came to nothing.
        seen: called likewise with what a `LookOrder` saw: whether the container has ended, its processes and all; None:
            the node does not say.
    """

    def __init__(
        self,
        token_of: Callable[[NodeId], Token | None],
        failed: Callable[[FailedOrder], None],
        seen: Callable[[ContainerId, bool | None], None],
    ) -> None:
        self._token_of, self._failed, self._seen = token_of, failed, seen
        self._orders: dict[NodeId, deque[Order]] = {}
        self._free: deque[NodeId] = deque()
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._closed = False

    def order(self, node: NodeId, what: Order) -> None:
        """Start a container, stop the one with this id, or look at one. Returns at once."""
        with self._changed:
            if self._closed:
                return
            if node not in self._orders:
                self._orders[node] = deque()
                self._free.append(node)
            self._orders[node].append(what)
            if not self._idle and len(self._threads) < MOST_THREADS:
                name = f"am-nodes-{len(self._threads)}"
                self._threads.append(threading.Thread(target=self._work, name=name, daemon=True))
                self._threads[-1].start()
            self._changed.notify()

    def close(self, timeout_s: float) -> None:
        """Take no more orders; those that are under way get ``timeout_s`` to end."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(timeout_s)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._idle += 1
                while not self._free and not self._closed:
                    self._changed.wait()
                self._idle -= 1
                if not self._free:
                    return
                # Whoever holds a node's name serves it alone, so its orders are carried out in their order.
                node = self._free.popleft()
                batch = self._next_batch(self._orders[node])
            try:
                self._carry_out(node, batch)
            finally:
                with self._changed:
                    if self._orders[node]:
                        self._free.append(node)
                        self._changed.notify()
                    else:
                        del self._orders[node]

    @staticmethod
    def _next_batch(orders: deque[Order]) -> list[Order]:
        """The orders of one kind that stand first."""
        batch = [orders.popleft()]
        while orders and type(orders[0]) is type(batch[0]) and len(batch) < MOST_STARTS:
            batch.append(orders.popleft())
        return batch

    def _carry_out(self, node: NodeId, batch: list[Order]) -> None:
        if looks := [one.container_id for one in batch if isinstance(one, LookOrder)]:
            self._look(node, looks)
            return
        starts = [one for one in batch if isinstance(one, StartOrder)]
        stops = [one for one in batch if isinstance(one, ContainerId)]
        containers = [one.granted.container_id for one in starts] + stops
        outcome: dict[ContainerId, DlappError | None]
        try:
            there = self._there(node)
            if starts:
                launches = [(one.granted, one.launch) for one in starts]
                outcome = dict(there.start(launches, timeout_s=START_TIMEOUT_S))
            else:
                outcome = dict(there.stop(stops, timeout_s=STOP_TIMEOUT_S))
        except DlappError as error:
            outcome = dict.fromkeys(containers, error)
        except ValueError as error:  # a command that cannot pass through YARN's script
            outcome = dict.fromkeys(containers, HadoopError(str(error)))
        except Exception as error:
            # A fault of ours: the thread goes on for the other nodes, and these orders have failed.
            outcome = dict.fromkeys(containers, HadoopError(f"{node}: {error!r}"))
        for container_id, failure in outcome.items():
            if failure is not None:
                self._failed(FailedOrder(container_id, bool(starts), failure))

    def _look(self, node: NodeId, containers: list[ContainerId]) -> None:
        ended: dict[ContainerId, bool | None] = dict.fromkeys(containers)
        # What cannot be asked is not known; a fault of ours ends no thread that other nodes need.
        with contextlib.suppress(Exception):
            ended |= self._there(node).ended(containers, timeout_s=LOOK_TIMEOUT_S)
        for container_id, gone in ended.items():
            self._seen(container_id, gone)

    def _there(self, node: NodeId) -> NodeManager:
        token = self._token_of(node)
        if token is None:
            raise HadoopError(f"{node}: the ResourceManager gave no token for this node")
        return NodeManager(node, token)
