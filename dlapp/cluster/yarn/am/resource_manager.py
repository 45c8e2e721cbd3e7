"""The calls of an ApplicationMaster to the ResourceManager.

An attempt registers once, then says by heartbeat what it wants and hears what it got, then finishes. The heartbeats are
numbered: a request carries the number of the last answer, and when the ResourceManager sees a number again it repeats
its answer **without looking at the request**. So a request whose answer was lost is sent again as it was, until it is
answered, before anything new is said; then nothing is lost and nothing counts twice.

Source: ApplicationMasterService.allocate; yarn_service_protos.proto.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Sequence

from dlapp.cluster.yarn.convert import (
    application_id_to_proto,
    container_id_from_proto,
    container_id_to_proto,
    granted_from_proto,
    node_from_proto,
    node_report_from_proto,
    row_to_proto,
    status_from_proto,
    token_from_proto,
)
from dlapp.cluster.yarn.dialect import Dialect
from dlapp.cluster.yarn.proto import yarn_pb2 as pb
from dlapp.cluster.yarn.values import Allocation, Granted, NodeId, NodeReport, Registration, ResourceRequest
from dlapp.hadoop.errors import AttemptOver, NotRegistered, RemoteError, TokenRefused, WrongRequest
from dlapp.hadoop.failover import RpcClient
from dlapp.hadoop.tokens import Token
from dlapp.login import Login
from dlapp.values.ids import ApplicationId, ContainerId
from dlapp.values.report import FinalStatus

PROTOCOL = "org.apache.hadoop.yarn.api.ApplicationMasterProtocolPB"
CLIENT_PROTOCOL = "org.apache.hadoop.yarn.api.ApplicationClientProtocolPB"
REGISTRATION_S = 60.0
"""So long a pause of the ResourceManager is waited out. The answer to a registration comes once, and with it the tokens
of the nodes on which an earlier attempt has containers: without one, nothing more can be started there."""
_FINAL = {
    FinalStatus.UNDEFINED: pb.APP_UNDEFINED,
    FinalStatus.SUCCEEDED: pb.APP_SUCCEEDED,
    FinalStatus.FAILED: pb.APP_FAILED,
    FinalStatus.KILLED: pb.APP_KILLED,
}


class ResourceManager:
    """One attempt's conversation with the ResourceManager. Of one thread.

    Attributes:
        node_tokens: what each NodeManager wants to see of us; the ResourceManager sends each once.

    Args:
        addresses: scheduler addresses (port 8030); of several ResourceManagers one serves at a time.
        token: of kind YARN_AM_RM_TOKEN.
    """

    def __init__(self, addresses: Sequence[tuple[str, int]], token: Token, dialect: Dialect) -> None:
        self.dialect = dialect
        self.node_tokens: dict[NodeId, Token] = {}
        self._rpc = RpcClient("ResourceManager", addresses, PROTOCOL, token)
        self._response_id = 0
        self._unanswered: deque[pb.AllocateRequestProto] = deque()
        self._news: list[Allocation] = []

    def close(self) -> None:
        """Close the connection."""
        self._rpc.close()

    def register(self, host: str, port: int, tracking_url: str, *, timeout_s: float) -> Registration:
        """Say that this attempt is alive; after a ResourceManager's restart, again.

        Args:
            host: where the ApplicationMaster runs, for reports.
            port: of its control address.
            tracking_url: its page.
            timeout_s: how long to try [s].

        Raises:
            WrongRequest: this attempt is registered already: an earlier call got through, its answer did not.
            AttemptOver, TokenRefused: the attempt is over.
            ConnectionLost: no ResourceManager answered in ``timeout_s``.
        """
        request = pb.RegisterApplicationMasterRequestProto(host=host, rpc_port=port, tracking_url=tracking_url)
        try:
            answer = self._rpc.call(
                "registerApplicationMaster",
                request,
                pb.RegisterApplicationMasterResponseProto,
                timeout_s=timeout_s,
                answer_s=REGISTRATION_S,
            )
        except WrongRequest:
            self._begin_again()
            raise
        self._begin_again()
        self._keep_node_tokens(answer.nm_tokens_from_previous_attempts)
        return Registration(
            largest=self.dialect.decode(answer.maximumCapability),
            live=self._granted(answer.containers_from_previous_attempts),
        )

    def _begin_again(self) -> None:
        """The ResourceManager has us as new: it counts from 0, and knows nothing of what we said before."""
        self._response_id = 0
        self._unanswered.clear()

    def allocate(
        self,
        rows: Iterable[ResourceRequest] = (),
        releases: Iterable[ContainerId] = (),
        *,
        avoid: Collection[str] = (),
        no_longer_avoid: Collection[str] = (),
        progress: float = 0.0,
        timeout_s: float,
    ) -> Allocation:
        """Send one heartbeat: what changed in what is wanted. Return what is new.

        After `ConnectionLost` and `TokenRefused` nothing need be said again: it goes ahead of what the next call says.
        After `NotRegistered` everything must be: register, then all rows, releases and nodes to avoid.

        Args:
            rows: those that changed, with absolute counts.
            releases: containers that are not wanted.
            avoid: hosts that are not to be used, by the name that they report.
            no_longer_avoid: hosts that may be used again.
            progress: 0 to 1.
            timeout_s: how long to try [s].

        Raises:
            NotRegistered: the ResourceManager was restarted.
            AttemptOver, TokenRefused: the attempt is over: end at once.
            RequestRefused: a row is above a limit or malformed; nothing of this call counted.
            ConnectionLost: no ResourceManager answered in ``timeout_s``.
        """
        request = pb.AllocateRequestProto(progress=progress)
        request.ask.extend(row_to_proto(row, self.dialect) for row in rows)
        request.release.extend(container_id_to_proto(one) for one in releases)
        if avoid or no_longer_avoid:
            request.blacklist_request.blacklist_additions.extend(avoid)
            request.blacklist_request.blacklist_removals.extend(no_longer_avoid)
        if not self._unanswered or request.ask or request.release or request.HasField("blacklist_request"):
            self._unanswered.append(request)
        while self._unanswered:
            # What an answer brings comes only once: it reaches the caller whatever becomes of the call after it.
            self._news.append(self._allocate(self._unanswered[0], timeout_s))
            self._unanswered.popleft()
        news, self._news = self._news, []
        return _joined(news)

    def _allocate(self, request: pb.AllocateRequestProto, timeout_s: float) -> Allocation:
        request.response_id = self._response_id
        try:
            answer = self._rpc.call("allocate", request, pb.AllocateResponseProto, timeout_s=timeout_s)
        except TokenRefused:
            raise  # there was no call: it goes with a token that counts
        except RemoteError:
            # Nothing of it counted, so it is not said again.
            self._unanswered.popleft()
            raise
        # Hadoop before 2.6 says by a command what later ones say by an exception.
        if answer.HasField("a_m_command"):
            if answer.a_m_command == pb.AM_RESYNC:
                raise NotRegistered("allocate", "AM_RESYNC", "the ResourceManager asks for a new registration")
            raise AttemptOver("allocate", "AM_SHUTDOWN", "the ResourceManager asks this attempt to end")
        self._response_id = answer.response_id
        self._keep_node_tokens(answer.nm_tokens)
        if answer.HasField("am_rm_token"):
            self._rpc.use_token(token_from_proto(answer.am_rm_token))
        return Allocation(
            granted=self._granted(answer.allocated_containers),
            live=self._granted(answer.containers_from_previous_attempts),
            ended=tuple(status_from_proto(one) for one in answer.completed_container_statuses),
            nodes=tuple(node_report_from_proto(one, self.dialect) for one in answer.updated_nodes),
            node_count=answer.num_cluster_nodes,
            preempted=_preempted(answer.preempt),
        )

    def finish(self, final_status: FinalStatus, diagnostics: str, tracking_url: str, *, timeout_s: float) -> bool:
        """Say how the application ended. Return True once YARN has it on record; until then, say it again.

        Args:
            final_status: what YARN shows of it.
            diagnostics: why, for the user.
            tracking_url: where its history can be seen; may be empty.
            timeout_s: how long to try [s].

        Raises:
            NotRegistered: the ResourceManager was restarted: register, then finish.
            ConnectionLost: no ResourceManager answered in ``timeout_s``.
        """
        request = pb.FinishApplicationMasterRequestProto(
            diagnostics=diagnostics, tracking_url=tracking_url, final_application_status=_FINAL[final_status]
        )
        answer = self._rpc.call(
            "finishApplicationMaster", request, pb.FinishApplicationMasterResponseProto, timeout_s=timeout_s
        )
        return answer.isUnregistered

    def _granted(self, messages: Iterable[pb.ContainerProto]) -> tuple[Granted, ...]:
        return tuple(granted_from_proto(one, self.dialect) for one in messages)

    def _keep_node_tokens(self, messages: Iterable[pb.NMTokenProto]) -> None:
        for one in messages:
            self.node_tokens[node_from_proto(one.nodeId)] = token_from_proto(one.token)


def usable_nodes(
    addresses: Sequence[tuple[str, int]], login: Login, dialect: Dialect, *, timeout_s: float
) -> list[NodeReport]:
    """Return the nodes that run now.

    An ask that names hosts is met in one heartbeat of theirs, one that does not takes a second for each container.

    Args:
        addresses: of the ResourceManagers' client port (8032).
        login: who asks.
        dialect: how the cluster counts GPUs.
        timeout_s: how long to try [s].

    Raises:
        NotAllowed: the cluster wants proof.
        ConnectionLost: no ResourceManager answered in ``timeout_s``.
    """
    with RpcClient("ResourceManager", addresses, CLIENT_PROTOCOL, login) as rpc:
        request = pb.GetClusterNodesRequestProto(nodeStates=[pb.NS_RUNNING])
        answer = rpc.call("getClusterNodes", request, pb.GetClusterNodesResponseProto, timeout_s=timeout_s)
    return [node_report_from_proto(one, dialect) for one in answer.nodeReports]


def lifetime_left_s(
    addresses: Sequence[tuple[str, int]], login: Login, application_id: ApplicationId, *, timeout_s: float
) -> float:
    """Return when the ResourceManager is going to kill the application: by the maximum lifetime of its queue, or by the
    application's own, which `yarn application -updateLifetime` changes [s]; infinity: at no time.

    Args:
        addresses: of the ResourceManagers' client port (8032).
        login: the application's user.
        application_id: of the application.
        timeout_s: how long to try [s].

    Raises:
        ConnectionLost: no ResourceManager answered in ``timeout_s``.
        RemoteError: it does not answer this.
    """
    request = pb.GetApplicationReportRequestProto(application_id=application_id_to_proto(application_id))
    with RpcClient("ResourceManager", addresses, CLIENT_PROTOCOL, login) as rpc:
        answer = rpc.call("getApplicationReport", request, pb.GetApplicationReportResponseProto, timeout_s=timeout_s)
    limits = [one.application_timeout for one in answer.application_report.appTimeouts]
    return min((float(one.remaining_time) for one in limits if one.remaining_time >= 0), default=math.inf)


def _preempted(message: pb.PreemptionMessageProto) -> tuple[ContainerId, ...]:
    """Return the containers that are preempted, whether the ResourceManager would take others in their place or not.

    Source: ProportionalCapacityPreemptionPolicy takes what it has named; DefaultAMSProcessor.generatePreemptionMessage.
    """
    named = (*message.strictContract.container, *message.contract.container)
    return tuple(dict.fromkeys(container_id_from_proto(one.id) for one in named))


def _joined(parts: Sequence[Allocation]) -> Allocation:
    if len(parts) == 1:
        return parts[0]
    return Allocation(
        granted=tuple(one for part in parts for one in part.granted),
        live=tuple(one for part in parts for one in part.live),
        ended=tuple(one for part in parts for one in part.ended),
        nodes=tuple(one for part in parts for one in part.nodes),
        node_count=parts[-1].node_count,
        preempted=tuple(one for part in parts for one in part.preempted),
    )
