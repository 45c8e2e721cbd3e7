"""Calls of an ApplicationMaster to the ResourceManager.

An attempt registers once, then sends requests and receives containers by heartbeat, then finishes. Heartbeats are
numbered: a request carries the number of the last answer, and when the ResourceManager sees a number again it repeats
its answer **without reading the request**. So a request whose answer was lost is sent again unchanged until it is
answered, before anything new; then nothing is lost and nothing counts twice.

Source: ApplicationMasterService.allocate; yarn_service_protos.proto.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence

from dlapp.cluster.yarn import messages
from dlapp.cluster.yarn.dialect import Dialect
from dlapp.cluster.yarn.messages import AM_RESYNC, AM_SHUTDOWN, AllocateRequest
from dlapp.cluster.yarn.values import Allocation, NodeId, NodeReport, Registration, ResourceRequest
from dlapp.hadoop.errors import AttemptOver, NotRegistered, RemoteError, TokenRefused, WrongRequest
from dlapp.hadoop.failover import RpcClient
from dlapp.hadoop.tokens import Token
from dlapp.login import Login
from dlapp.values.ids import ApplicationId, ContainerId
from dlapp.values.report import FinalStatus

PROTOCOL = "org.apache.hadoop.yarn.api.ApplicationMasterProtocolPB"
CLIENT_PROTOCOL = "org.apache.hadoop.yarn.api.ApplicationClientProtocolPB"
REGISTRATION_S = 60.0
"""A pause of the ResourceManager of this length is waited for. The answer to a registration comes once, with the tokens
of the nodes on which an earlier attempt has containers: without a token, no container can be started there."""


class ResourceManager:
    """ResourceManager protocol of one attempt. For one thread.

    Attributes:
        node_tokens: token for each NodeManager; the ResourceManager sends each once.

    Args:
        addresses: scheduler addresses (port 8030); of several ResourceManagers one serves at a time.
        token: the token of kind YARN_AM_RM_TOKEN.
    """

    def __init__(self, addresses: Sequence[tuple[str, int]], token: Token, dialect: Dialect) -> None:
        self.dialect = dialect
        self.node_tokens: dict[NodeId, Token] = {}
        self._rpc = RpcClient("ResourceManager", addresses, PROTOCOL, token)
        self._response_id = 0
        self._unanswered: deque[AllocateRequest] = deque()
        self._unreported: list[Allocation] = []

    def close(self) -> None:
        """Close the connection."""
        self._rpc.close()

    def register(self, host: str, port: int, tracking_url: str, *, timeout_s: float) -> Registration:
        """Register this attempt; after a ResourceManager's restart, again.

        Args:
            host: host of the ApplicationMaster, for reports.
            port: port of its control address.
            tracking_url: URL of its page.
            timeout_s: how long to try [s].

        Raises:
            WrongRequest: this attempt is registered already: an earlier call succeeded, its answer was lost.
            AttemptOver, TokenRefused: the attempt has ended.
            ConnectionLost: no ResourceManager answered in ``timeout_s``.
        """
        try:
            answer = self._rpc.call(
                "registerApplicationMaster",
                messages.register(host, port, tracking_url),
                lambda said: messages.parse_registration(said, self.dialect),
                timeout_s=timeout_s,
                answer_s=REGISTRATION_S,
            )
        except WrongRequest:
            self._reset()
            raise
        self._reset()
        self.node_tokens.update(answer.node_tokens)
        return answer.registration

    def _reset(self) -> None:
        """Reset after a restart of the ResourceManager: it counts from 0, and does not know our requests."""
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
        """Send one heartbeat with the changes of the requests. Return what is new.

        After `ConnectionLost` and `TokenRefused` nothing need be repeated: it is sent before the content of the next
        call. After `NotRegistered` everything must be: register, then all rows, releases and nodes to avoid.

        Args:
            rows: changed rows, with absolute counts.
            releases: containers to release.
            avoid: hosts not to use, by the name that they report.
            no_longer_avoid: hosts that may be used again.
            progress: 0 to 1.
            timeout_s: how long to try [s].

        Raises:
            NotRegistered: the ResourceManager was restarted.
            AttemptOver, TokenRefused: the attempt has ended: exit at once.
            RequestRefused: a row exceeds a limit or is malformed; the whole call had no effect.
            ConnectionLost: no ResourceManager answered in ``timeout_s``.
        """
        request = messages.allocate(
            rows, releases, self.dialect, avoid=avoid, no_longer_avoid=no_longer_avoid, progress=progress
        )
        if not self._unanswered or request.changes:
            self._unanswered.append(request)
        while self._unanswered:
            # The content of an answer comes only once: it reaches the caller whatever happens to the next call.
            self._unreported.append(self._allocate(self._unanswered[0], timeout_s))
            self._unanswered.popleft()
        unreported, self._unreported = self._unreported, []
        return _joined(unreported)

    def _allocate(self, request: AllocateRequest, timeout_s: float) -> Allocation:
        try:
            answer = self._rpc.call(
                "allocate",
                request.encode(self._response_id),
                lambda said: messages.parse_allocation(said, self.dialect),
                timeout_s=timeout_s,
            )
        except TokenRefused:
            raise  # the call was not made: it is sent with a valid token
        except RemoteError:
            # It had no effect at all, so it is not repeated.
            self._unanswered.popleft()
            raise
        # Hadoop before 2.6 sends a command where later versions raise an exception.
        if answer.command == AM_RESYNC:
            raise NotRegistered("allocate", "AM_RESYNC", "the ResourceManager requests a new registration")
        if answer.command == AM_SHUTDOWN:
            raise AttemptOver("allocate", "AM_SHUTDOWN", "the ResourceManager orders this attempt to end")
        self._response_id = answer.response_id
        self.node_tokens.update(answer.node_tokens)
        if answer.am_rm_token is not None:
            self._rpc.use_token(answer.am_rm_token)
        return answer.allocation

    def finish(self, final_status: FinalStatus, diagnostics: str, tracking_url: str, *, timeout_s: float) -> bool:
        """Report how the application ended. Return True once YARN has recorded it; until then, call it again.

        Args:
            final_status: status that YARN shows.
            diagnostics: reason, for the user.
            tracking_url: URL of its history; may be empty.
            timeout_s: how long to try [s].

        Raises:
            NotRegistered: the ResourceManager was restarted: register, then finish.
            ConnectionLost: no ResourceManager answered in ``timeout_s``.
        """
        request = messages.finish(final_status, diagnostics, tracking_url)
        return self._rpc.call("finishApplicationMaster", request, messages.parse_is_finished, timeout_s=timeout_s)


def usable_nodes(
    addresses: Sequence[tuple[str, int]], login: Login, dialect: Dialect, *, timeout_s: float
) -> list[NodeReport]:
    """Return the running nodes, and those that are decommissioned gracefully, which take no new containers.

    A request that names hosts is met within one heartbeat of theirs; one without takes a second per container.

    Args:
        addresses: the ResourceManagers' client addresses (port 8032).
        login: identity for the request.
        dialect: representation of GPUs in this cluster.
        timeout_s: how long to try [s].

    Raises:
        NotAllowed: the cluster requires authentication.
        ConnectionLost: no ResourceManager answered in ``timeout_s``.
    """
    with RpcClient("ResourceManager", addresses, CLIENT_PROTOCOL, login) as rpc:
        return rpc.call(
            "getClusterNodes",
            messages.get_cluster_nodes((messages.NODE_RUNNING, messages.NODE_DECOMMISSIONING)),
            lambda said: messages.parse_cluster_nodes(said, dialect),
            timeout_s=timeout_s,
        )


def lifetime_left_s(
    addresses: Sequence[tuple[str, int]], login: Login, application_id: ApplicationId, *, timeout_s: float
) -> float:
    """Return when the ResourceManager is going to kill the application: by the maximum lifetime of its queue, or by the
    application's own, which `yarn application -updateLifetime` changes [s]; infinity: never.

    Args:
        addresses: the ResourceManagers' client addresses (port 8032).
        login: the application's user.
        application_id: id of the application.
        timeout_s: how long to try [s].

    Raises:
        ConnectionLost: no ResourceManager answered in ``timeout_s``.
        RemoteError: it does not support this request.
    """
    request = messages.get_application_report(application_id)
    with RpcClient("ResourceManager", addresses, CLIENT_PROTOCOL, login) as rpc:
        return rpc.call("getApplicationReport", request, messages.parse_lifetime_left_s, timeout_s=timeout_s)


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
