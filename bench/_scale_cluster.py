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
from dlapp.cluster.yarn.convert import container_id_from_proto, container_id_to_proto
from dlapp.cluster.yarn.proto import yarn_pb2 as pb
from dlapp.cluster.yarn.task_container import TASK_SECRET
from dlapp.hadoop.framing import encode_varint
from dlapp.hadoop.proto.rpc_pb2 import TokenProto
from dlapp.hadoop.tokens import AM_RM_KIND, Credentials, Token
from dlapp.values.ids import ApplicationId, ContainerId
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
        self.live: dict[ContainerId, pb.ContainerProto] = {}
        self._wanted: Counter[int] = Counter()
        self._sizes: dict[int, pb.ResourceProto] = {}
        self._ended: deque[pb.ContainerStatusProto] = deque()
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
        self._listing = pb.GetClusterNodesResponseProto(nodeReports=map(self._node_report, names)).SerializeToString()
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
                self._ended.append(
                    pb.ContainerStatusProto(
                        container_id=container_id_to_proto(container_id), state=pb.C_COMPLETE, exit_status=exit_status
                    )
                )

    def _schedule(self, method: str, request: bytes) -> bytes:
        with self._lock:
            if method == "registerApplicationMaster":
                return self._register()
            if method == "allocate":
                return self._allocate(pb.AllocateRequestProto.FromString(request))
        return pb.FinishApplicationMasterResponseProto(isUnregistered=True).SerializeToString()

    def _register(self) -> bytes:
        self.registered.append(time.monotonic())
        self._number, self._answer = 0, b""
        self._wanted.clear()
        self._known_tokens.clear()
        answer = pb.RegisterApplicationMasterResponseProto(
            maximumCapability=pb.ResourceProto(memory=1 << 20, virtual_cores=1000),
            containers_from_previous_attempts=self.live.values(),
        )
        for container in self.live.values():
            self._give_token(answer.nm_tokens_from_previous_attempts, container.nodeId)
        return answer.SerializeToString()

    def _allocate(self, request: pb.AllocateRequestProto) -> bytes:
        if request.response_id == self._number - 1:
            return self._answer  # as a ResourceManager does where its answer was lost
        for row in request.ask:
            if row.resource_name == "*":
                self._wanted[row.priority.priority] = row.num_containers
                self._sizes[row.priority.priority] = row.capability
        self._number += 1
        answer = pb.AllocateResponseProto(response_id=self._number, num_cluster_nodes=len(self._names))
        for container_id in map(container_id_from_proto, request.release):
            if self.live.pop(container_id, None) is not None:
                answer.completed_container_statuses.add(
                    container_id=container_id_to_proto(container_id), state=pb.C_COMPLETE, exit_status=ABORTED
                )
        while self._ended:
            answer.completed_container_statuses.append(self._ended.popleft())
        for priority in list(self._wanted):
            count = min(self._wanted[priority], GRANTS_AT_ONCE)
            self._wanted[priority] -= count
            for _ in range(count):
                self._grant(answer, priority)
        if (now := time.monotonic()) >= self._node_changes_at:
            self._node_changes_at = now + NODE_CHANGES_EVERY_S
            answer.updated_nodes.append(self._node_report(self._names[-1]))
        self._answer = answer.SerializeToString()
        return self._answer

    def _grant(self, answer: pb.AllocateResponseProto, priority: int) -> None:
        self.granted = self.granted or time.monotonic()
        name = self._names[self._next_node % len(self._names)]
        if self._next_node >= len(self._names) and name in self._dead:  # by now it is lost
            self._next_node += len(self._dead)
            name = self._names[self._next_node % len(self._names)]
        self._next_node += 1
        container_id = ContainerId(self._application, max(1, len(self.registered)), next(self._numbers))
        container = answer.allocated_containers.add(
            id=container_id_to_proto(container_id),
            nodeId=self._node_id(name),
            node_http_address=f"{name}:8042",
            resource=self._sizes[priority],
            priority=pb.PriorityProto(priority=priority),
        )
        container.container_token.CopyFrom(
            TokenProto(identifier=str(container_id).encode(), password=b"", kind="ContainerToken", service="")
        )
        self.live[container_id] = container
        self._give_token(answer.nm_tokens, container.nodeId)

    def _give_token(self, tokens: Any, node: pb.NodeIdProto) -> None:
        if node.host not in self._known_tokens:
            self._known_tokens.add(node.host)
            token = TokenProto(identifier=TOKEN.identifier, password=TOKEN.password, kind="NMToken", service="")
            tokens.add(nodeId=node, token=token)

    def _list(self, method: str, _request: bytes) -> bytes:
        if method == "getClusterNodes":
            self.lists += 1
            return self._listing
        answer = pb.GetApplicationReportResponseProto()
        answer.application_report.MergeFromString(_unread(APPLICATION_REPORT_BYTES))
        return answer.SerializeToString()

    def _node_report(self, name: str) -> pb.NodeReportProto:
        report = pb.NodeReportProto(
            nodeId=self._node_id(name),
            rackName=f"/rack{name.rpartition('.')[2]}",
            capability=pb.ResourceProto(memory=256 << 10, virtual_cores=64),
            node_state=pb.NS_RUNNING,
        )
        report.MergeFromString(_unread(NODE_REPORT_BYTES - report.ByteSize()))
        return report

    def _node_id(self, name: str) -> pb.NodeIdProto:
        return pb.NodeIdProto(host=name, port=self._dead_port if name in self._dead else self._port)

    # ---- the NodeManagers ----

    def _node(self, method: str, request: bytes) -> bytes:
        if method == "startContainers":
            return self._start(pb.StartContainersRequestProto.FromString(request))
        if method == "stopContainers":
            stop = pb.StopContainersRequestProto.FromString(request)
            for container_id in map(container_id_from_proto, stop.container_id):
                self._on_stop(str(container_id))
                self.ended(container_id, STOPPED)
            return pb.StopContainersResponseProto(succeeded_requests=stop.container_id).SerializeToString()
        asked = pb.GetContainerStatusesRequestProto.FromString(request)
        answer = pb.GetContainerStatusesResponseProto()
        for one in asked.container_id:
            lives = container_id_from_proto(one) in self.live
            answer.status.add(container_id=one, state=pb.C_RUNNING if lives else pb.C_COMPLETE, exit_status=0)
        return answer.SerializeToString()

    def _start(self, request: pb.StartContainersRequestProto) -> bytes:
        answer = pb.StartContainersResponseProto()
        for one in request.start_container_request:
            container_id = ContainerId.from_text(one.container_token.identifier.decode())
            with self._lock:
                runs = container_id in self.started
                self.started.setdefault(container_id, time.monotonic())
            if runs:  # the answer to an earlier call came too late
                failed = answer.failed_requests.add(container_id=container_id_to_proto(container_id))
                failed.exception.class_name = "org.apache.hadoop.yarn.exceptions.YarnException"
                failed.exception.message = STARTED_BEFORE
                continue
            secrets = Credentials.decode(one.container_launch_context.tokens).secrets
            self._on_start(json.loads(secrets[TASK_SECRET]))
            answer.succeeded_requests.append(container_id_to_proto(container_id))
        return answer.SerializeToString()


def _unread(size: int) -> bytes:
    """Return a field of text of so many bytes that dlapp does not read."""
    text = b"x" * (size - 3)
    return encode_varint(_UNREAD_FIELD << 3 | 2) + encode_varint(len(text)) + text


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
