"""A ResourceManager and its NodeManagers, as one ApplicationMaster sees them: thousands of nodes in one process.

They speak Hadoop RPC (`tests.hadoop.rpc_server`). Every node has an address of its own in 127.0.0.0/8, and one listener
answers on all of them. A dead node's address takes no connection, so whoever connects waits, as for a machine that is
switched off.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from dlapp.cluster.yarn.am.node_manager import STARTED_BEFORE
from dlapp.cluster.yarn.messages import CONTAINER_COMPLETE, CONTAINER_RUNNING, NODE_RUNNING
from dlapp.cluster.yarn.task_container import TASK_SECRET
from dlapp.cluster.yarn.values import NodeId
from dlapp.hadoop.tokens import AM_RM_KIND, Credentials, Token
from dlapp.hadoop.wire import encode
from dlapp.values.ids import ApplicationId, ContainerId
from tests.cluster.yarn import server_messages
from tests.cluster.yarn.server_messages import AllocateRequest
from tests.hadoop.rpc_server import RpcServer

TOKEN = Token(b"identifier", b"password", AM_RM_KIND)
GRANTS_AT_ONCE = 1000
"""In one heartbeat: what the nodes of a large cluster take in a second."""
NODE_CHANGES_EVERY_S = 10.0
"""A cluster of thousands of nodes has one that comes or goes about as often."""
ABORTED, STOPPED = -100, -105
NODE_REPORT_BYTES, APPLICATION_REPORT_BYTES = 280, 2000
"""Of a ResourceManager's reports of a node and of an application, with what dlapp does not read: resources in use,
addresses, the times of health checks, loads."""
_UNREAD_FIELD = 2
"""Number of a field that the messages of dlapp do not have: httpAddress of a node, user of an application."""


class FakeCluster:
    """The cluster. Its servers' threads call it; what they share is under one lock.

    Attributes:
        started: when each container's start reached its node [s, monotonic].
        granted: when the first container of this cluster was granted.
        registered: when each attempt registered.
        scheduler: where an ApplicationMaster sends its heartbeats.
        lister: where it asks for the list of nodes, and for its own report.
        lists: how often it asked for the list.
        list_bytes: of the list.

    Args:
        application: whose containers these are.
        names: the nodes' host names; each has a NodeManager.
        dead: of these, the nodes that do not answer.
        on_start: told what a task gets to know.
        on_stop: told of a container that is to end.
    """

    def __init__(
        self,
        application: ApplicationId,
        names: Sequence[str],
        dead: Sequence[str],
        on_start: Callable[[dict[str, Any]], None],
        on_stop: Callable[[str], None],
    ) -> None:
        self._application, self._names, self._dead = application, names, frozenset(dead)
        self._on_start, self._on_stop = on_start, on_stop
        self._lock = threading.Lock()
        self.started: dict[ContainerId, float] = {}
        self.granted = 0.0
        self.registered: list[float] = []
        self.live: dict[ContainerId, bytes] = {}
        self._wanted: Counter[int] = Counter()
        self._sizes: dict[int, bytes] = {}
        self._ended: deque[bytes] = deque()
        self._numbers = itertools.count(2)
        self._next_node = 0
        self._number, self._answer = 0, b""
        self._known_tokens: set[str] = set()
        self._node_changes_at = 0.0
        self._stack = contextlib.ExitStack()
        self._port = self._stack.enter_context(RpcServer(self._node, TOKEN, host="0.0.0.0")).address[1]
        self._dead_port = self._stack.enter_context(_port_that_takes_nobody())
        self.scheduler = self._stack.enter_context(RpcServer(self._schedule, TOKEN))
        self.lister = self._stack.enter_context(RpcServer(self._list))
        self._listing = server_messages.cluster_nodes(map(self._node_report, names))
        self.lists, self.list_bytes = 0, len(self._listing)

    def __enter__(self) -> FakeCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    # ---- the ResourceManager ----

    def ended(self, container_id: ContainerId, exit_status: int) -> None:
        """A container has ended on its node."""
        with self._lock:
            if self.live.pop(container_id, None) is not None:
                self._ended.append(server_messages.container_status(container_id, CONTAINER_COMPLETE, exit_status))

    def _schedule(self, method: str, request: bytes) -> bytes:
        with self._lock:
            if method == "registerApplicationMaster":
                return self._register()
            if method == "allocate":
                return self._allocate(server_messages.parse_allocate(request))
        return server_messages.FINISHED

    def _register(self) -> bytes:
        self.registered.append(time.monotonic())
        self._number, self._answer = 0, b""
        self._wanted.clear()
        self._known_tokens.clear()
        tokens = [one for container in self.live.values() for one in self._tokens(server_messages.node_of(container))]
        return server_messages.registration(server_messages.resource(1 << 20, 1000), self.live.values(), tokens)

    def _allocate(self, request: AllocateRequest) -> bytes:
        if request.response_id == self._number - 1:
            return self._answer  # as a ResourceManager does where its answer was lost
        for row in request.ask:
            if row.name == "*":
                self._wanted[row.priority] = row.wanted
                self._sizes[row.priority] = row.capability
        self._number += 1
        for container_id in request.release:
            if self.live.pop(container_id, None) is not None:
                self._ended.append(server_messages.container_status(container_id, CONTAINER_COMPLETE, ABORTED))
        granted, tokens, nodes = list[bytes](), list[bytes](), list[bytes]()
        for priority in list(self._wanted):
            count = min(self._wanted[priority], GRANTS_AT_ONCE)
            self._wanted[priority] -= count
            for _ in range(count):
                node, container = self._grant(priority)
                granted.append(container)
                tokens += self._tokens(node)
        if (now := time.monotonic()) >= self._node_changes_at:
            self._node_changes_at = now + NODE_CHANGES_EVERY_S
            nodes.append(self._node_report(self._names[-1]))
        self._answer = server_messages.allocation(
            self._number,
            granted=granted,
            ended=self._ended,
            nodes=nodes,
            node_count=len(self._names),
            node_tokens=tokens,
        )
        self._ended.clear()
        return self._answer

    def _grant(self, priority: int) -> tuple[NodeId, bytes]:
        """Return a new container, and its node."""
        self.granted = self.granted or time.monotonic()
        name = self._names[self._next_node % len(self._names)]
        if self._next_node >= len(self._names) and name in self._dead:  # by now it is lost
            self._next_node += len(self._dead)
            name = self._names[self._next_node % len(self._names)]
        self._next_node += 1
        container_id = ContainerId(self._application, max(1, len(self.registered)), next(self._numbers))
        node = self._node_id(name)
        container = server_messages.container(container_id, node, capability=self._sizes[priority], priority=priority)
        self.live[container_id] = container
        return node, container

    def _tokens(self, node: NodeId) -> list[bytes]:
        """Return the token for a node, if the ApplicationMaster does not have it."""
        if node.host in self._known_tokens:
            return []
        self._known_tokens.add(node.host)
        return [server_messages.node_token(node, Token(TOKEN.identifier, TOKEN.password, "NMToken"))]

    def _list(self, method: str, _request: bytes) -> bytes:
        if method == "getClusterNodes":
            self.lists += 1
            return self._listing
        return encode((1, _unread(APPLICATION_REPORT_BYTES)))

    def _node_report(self, name: str) -> bytes:
        rack = f"/rack{name.rpartition('.')[2]}"
        capability = server_messages.resource(256 << 10, 64)
        report = server_messages.node_report(self._node_id(name), rack, capability, NODE_RUNNING)
        return report + _unread(NODE_REPORT_BYTES - len(report))

    def _node_id(self, name: str) -> NodeId:
        return NodeId(name, self._dead_port if name in self._dead else self._port)

    # ---- the NodeManagers ----

    def _node(self, method: str, request: bytes) -> bytes:
        if method == "startContainers":
            return self._start(request)
        asked = server_messages.parse_containers(request)
        if method == "stopContainers":
            for container_id in asked:
                self._on_stop(str(container_id))
                self.ended(container_id, STOPPED)
            return server_messages.stopped(asked)
        return server_messages.statuses(
            server_messages.container_status(one, CONTAINER_RUNNING if one in self.live else CONTAINER_COMPLETE, 0)
            for one in asked
        )

    def _start(self, request: bytes) -> bytes:
        done, failures = list[ContainerId](), list[bytes]()
        for one in server_messages.parse_starts(request):
            container_id = ContainerId.from_text(one.identifier.decode())
            with self._lock:
                runs = container_id in self.started
                self.started.setdefault(container_id, time.monotonic())
            if runs:  # the answer to an earlier call came too late
                java_class = "org.apache.hadoop.yarn.exceptions.YarnException"
                failures.append(server_messages.failure(container_id, java_class, STARTED_BEFORE))
                continue
            secrets = Credentials.decode(one.tokens).secrets
            self._on_start(json.loads(secrets[TASK_SECRET]))
            done.append(container_id)
        return server_messages.started(done, failures)


def _unread(size: int) -> bytes:
    """Return a field of text of so many bytes that dlapp does not read."""
    return encode((_UNREAD_FIELD, "x" * (size - 3)))


def host_names(count: int) -> list[str]:
    """Host names of so many nodes: addresses of this machine."""
    return [f"127.{1 + (number >> 16)}.{number >> 8 & 255}.{number & 255}" for number in range(1, count + 1)]


@contextlib.contextmanager
def _port_that_takes_nobody() -> Iterator[int]:
    """Yield a port on which every further connection waits: what the kernel accepts by itself is used up."""
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("0.0.0.0", 0), backlog=0))
        port: int = listening.getsockname()[1]
        while True:
            sock = stack.enter_context(socket.socket())
            sock.settimeout(0.5)
            try:
                sock.connect(("127.0.0.1", port))
            except TimeoutError:
                break
        yield port
