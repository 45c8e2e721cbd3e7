"""Calls of an ApplicationMaster to a container's node: start, stop, status.

Each call opens and closes its own connection, which takes some milliseconds: an ApplicationMaster of a thousand
containers does not keep a thousand sockets, and a restarted node is found again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from dlapp.cluster.engine import STATUS_UNKNOWN
from dlapp.cluster.yarn import messages
from dlapp.cluster.yarn.messages import ContainerException, ContainersAnswer
from dlapp.cluster.yarn.values import ContainerStage, ContainerStatus, Granted, Launch, NodeId
from dlapp.hadoop.errors import HadoopError, RemoteError, remote_error
from dlapp.hadoop.failover import RpcClient
from dlapp.hadoop.tokens import Token
from dlapp.hadoop.wire import Fields
from dlapp.values.ids import ContainerId

PROTOCOL = "org.apache.hadoop.yarn.api.ContainerManagementProtocolPB"
_A = TypeVar("_A")
STARTED_BEFORE = "Attempt to relaunch the same container"
"""Part of the error of a start that was already executed, but whose answer was lost. Source: ContainerManagerImpl,
3.4.2."""
STOPPED_BEFORE = "was recently stopped on node manager"
"""Part of the error about a container whose end the node has already reported and cleared: for ten minutes, or until it
is restarted. For other unknown containers it says "not handled", which proves nothing: a node that was killed and came
back without recovery says so of containers that still run. Source: ContainerManagerImpl, 3.4.2."""


class NodeManager:
    """Client of one node's NodeManager. Thread-safe. Each call is one try.

    Args:
        token: the token of kind NMToken, for this node (`ResourceManager.node_tokens`).
        connect_s: time limit of a connection with its handshake, in addition to that of the answer.
    """

    def __init__(self, node: NodeId, token: Token, *, connect_s: float = 10.0) -> None:
        self.node = node
        self._token, self._connect_s = token, connect_s

    def start(
        self, launches: Sequence[tuple[Granted, Launch]], *, timeout_s: float
    ) -> dict[ContainerId, HadoopError | None]:
        """Start containers. None: the node accepted it, and the ResourceManager reports its result.

        Raises:
            ConnectionLost, TryAgain, NotHadoop: no answer; the containers may have been started.
            TokenRefused: the node does not accept our token, or a container's.
        """
        request = messages.start_containers(launches)
        answer = self._call("startContainers", request, messages.parse_started, timeout_s)
        outcome = self._outcome("start", [one.container_id for one, _ in launches], answer)
        # A repeated call finds what the first one started.
        return {
            one: None if isinstance(error, RemoteError) and STARTED_BEFORE in error.message else error
            for one, error in outcome.items()
        }

    def stop(self, containers: Sequence[ContainerId], *, timeout_s: float) -> dict[ContainerId, HadoopError | None]:
        """End containers: SIGTERM now, SIGKILL 250 ms later. None: it is ending, or has ended; may be repeated.

        Raises:
            ConnectionLost, TryAgain, NotHadoop: no answer.
        """
        answer = self._call("stopContainers", messages.containers(containers), messages.parse_stopped, timeout_s)
        return self._outcome("stop", containers, answer)

    def statuses(
        self, containers: Sequence[ContainerId], *, timeout_s: float
    ) -> dict[ContainerId, ContainerStatus | HadoopError]:
        """Return the statuses of containers; an error for one that the node does not know, or has forgotten.

        Raises:
            ConnectionLost, TryAgain, NotHadoop: no answer.
        """
        answer = self._call("getContainerStatuses", messages.containers(containers), messages.parse_statuses, timeout_s)
        known = {status.container_id: status for status in answer.statuses}
        failed = self._failed("getContainerStatuses", answer.failures)
        return {one: known.get(one) or failed.get(one) or self._silent(one) for one in containers}

    def known_statuses(
        self, containers: Sequence[ContainerId], *, timeout_s: float
    ) -> dict[ContainerId, ContainerStatus | None]:
        """Return the statuses of containers; None: unknown to the node. Raises as `statuses`.

        A container that ended a while ago, of which the node does not know more, has `STATUS_UNKNOWN`.
        """
        found: dict[ContainerId, ContainerStatus | None] = {}
        for one, status in self.statuses(containers, timeout_s=timeout_s).items():
            if isinstance(status, ContainerStatus):
                found[one] = status
            else:
                ended = ContainerStatus(container_id=one, stage=ContainerStage.ENDED, exit_status=STATUS_UNKNOWN)
                found[one] = ended if STOPPED_BEFORE in str(status) else None
        return found

    def _call(self, method: str, request: bytes, parse: Callable[[Fields], _A], timeout_s: float) -> _A:
        name = f"NodeManager {self.node}"
        with RpcClient(name, [self.node], PROTOCOL, self._token, connect_s=self._connect_s) as rpc:
            return rpc.call_once(method, request, parse, answer_s=timeout_s)

    def _outcome(
        self, what: str, containers: Sequence[ContainerId], answer: ContainersAnswer
    ) -> dict[ContainerId, HadoopError | None]:
        failed = self._failed(f"{what}Containers", answer.failures)
        return {one: None if one in answer.done else failed.get(one) or self._silent(one) for one in containers}

    def _failed(self, method: str, failures: Iterable[ContainerException]) -> dict[ContainerId, RemoteError]:
        name = f"{self.node} {method}"
        return {one.container_id: remote_error(name, one.java_class, one.message) for one in failures}

    def _silent(self, container: ContainerId) -> HadoopError:
        return HadoopError(f"{self.node}: did not report {container}")
