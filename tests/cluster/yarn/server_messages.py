"""YARN's messages from the servers' side: answers to encode and requests to decode, for servers of tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from dlapp.cluster.yarn.messages import encode_container_id, parse_container_id, parse_node_id
from dlapp.cluster.yarn.values import NodeId
from dlapp.hadoop.tokens import Token, parse_token
from dlapp.hadoop.wire import Fields, encode
from dlapp.values.ids import ContainerId

NODE_LOST = 5
"""State of a node (NodeStateProto)."""


class RequestRow(NamedTuple):
    """RequestRow of a request for ``wanted`` containers; ``capability``: a ResourceProto."""

    priority: int
    name: str
    wanted: int
    capability: bytes


class AllocateRequest(NamedTuple):
    """Heartbeat of an ApplicationMaster."""

    ask: list[RequestRow]
    release: list[ContainerId]
    response_id: int


class StartRequest(NamedTuple):
    """Start of a container: the identifier of its token, and the credentials of its process."""

    identifier: bytes
    tokens: bytes


def parse_allocate(data: bytes) -> AllocateRequest:
    """Return an AllocateRequestProto."""
    parsed = Fields(data)
    rows = [Fields(item) for item in parsed.all_data(1)]
    ask = [RequestRow(row.message(1).signed(1), row.text(2), row.signed(4), row.data(3)) for row in rows]
    return AllocateRequest(ask, list(map(parse_container_id, parsed.all_data(2))), parsed.signed(4))


def parse_starts(data: bytes) -> list[StartRequest]:
    """Return a StartContainersRequestProto."""
    found = [Fields(item) for item in Fields(data).all_data(1)]
    return [StartRequest(parse_token(item.message(2)).identifier, item.message(1).data(2, b"")) for item in found]


def parse_containers(data: bytes) -> list[ContainerId]:
    """Return a StopContainersRequestProto or GetContainerStatusesRequestProto."""
    return list(map(parse_container_id, Fields(data).all_data(1)))


def node_of(container: bytes) -> NodeId:
    """Return the node of a ContainerProto."""
    return parse_node_id(Fields(container).message(2))


def node_id(node: NodeId) -> bytes:
    """Return a NodeIdProto."""
    return encode((1, node.host), (2, node.port))


def token_message(token: Token) -> bytes:
    """Return a TokenProto."""
    return encode((1, token.identifier), (2, token.password), (3, token.kind), (4, token.service))


def token_of(container_id: ContainerId) -> bytes:
    """Return a TokenProto that names a container."""
    return token_message(Token(str(container_id).encode(), b"", "ContainerToken"))


def resource(memory_mib: int, vcores: int, types: Iterable[tuple[str, int]] = ()) -> bytes:
    """Return a ResourceProto."""
    return encode((1, memory_mib), (2, vcores), *((3, encode((1, name), (2, amount))) for name, amount in types))


def container(
    container_id: ContainerId, node: NodeId, *, capability: bytes | None = None, priority: int | None = None
) -> bytes:
    """Return a ContainerProto, with a token that names the container."""
    return encode(
        (1, encode_container_id(container_id)),
        (2, node_id(node)),
        (3, f"{node.host}:8042"),
        (4, capability),
        (5, None if priority is None else encode((1, priority))),
        (6, token_of(container_id)),
    )


def container_status(
    container_id: ContainerId, state: int, exit_status: int | None = None, diagnostics: str | None = None
) -> bytes:
    """Return a ContainerStatusProto."""
    return encode((1, encode_container_id(container_id)), (2, state), (3, diagnostics), (4, exit_status))


def node_report(node: NodeId, rack: str, capability: bytes, state: int) -> bytes:
    """Return a NodeReportProto."""
    return encode((1, node_id(node)), (3, rack), (5, capability), (7, state))


def node_token(node: NodeId, token: Token) -> bytes:
    """Return an NMTokenProto."""
    return encode((1, node_id(node)), (2, token_message(token)))


def registration(maximum: bytes | None = None, live: Iterable[bytes] = (), node_tokens: Iterable[bytes] = ()) -> bytes:
    """Return a RegisterApplicationMasterResponseProto."""
    return encode((1, maximum), *((4, item) for item in live), *((6, node_token) for node_token in node_tokens))


FINISHED = encode((1, True))
"""A FinishApplicationMasterResponseProto."""


def allocation(
    response_id: int,
    *,
    granted: Iterable[bytes] = (),
    ended: Iterable[bytes] = (),
    nodes: Iterable[bytes] = (),
    node_count: int | None = None,
    preempt: bytes | None = None,
    node_tokens: Iterable[bytes] = (),
) -> bytes:
    """Return an AllocateResponseProto."""
    return encode(
        (2, response_id),
        *((3, item) for item in granted),
        *((4, item) for item in ended),
        *((6, node) for node in nodes),
        (7, node_count),
        (8, preempt),
        *((9, node_token) for node_token in node_tokens),
    )


def preemption(strict: Iterable[ContainerId], others: Iterable[ContainerId]) -> bytes:
    """Return a PreemptionMessageProto."""
    return encode(
        (1, encode(*((1, encode((1, encode_container_id(item)))) for item in strict))),
        (2, encode(*((2, encode((1, encode_container_id(other)))) for other in others))),
    )


def cluster_nodes(reports: Iterable[bytes]) -> bytes:
    """Return a GetClusterNodesResponseProto."""
    return encode(*((1, report) for report in reports))


def failure(container_id: ContainerId, java_class: str, message: str) -> bytes:
    """Return a ContainerExceptionMapProto."""
    return encode((1, encode_container_id(container_id)), (2, encode((1, message), (3, java_class))))


def started(container_ids: Iterable[ContainerId], failures: Iterable[bytes] = ()) -> bytes:
    """Return a StartContainersResponseProto."""
    return encode(
        *((2, encode_container_id(container_id_)) for container_id_ in container_ids),
        *((3, failure) for failure in failures),
    )


def stopped(container_ids: Iterable[ContainerId]) -> bytes:
    """Return a StopContainersResponseProto."""
    return encode(*((1, encode_container_id(container_id_)) for container_id_ in container_ids))


def statuses(found: Iterable[bytes]) -> bytes:
    """Return a GetContainerStatusesResponseProto."""
    return encode(*((1, item) for item in found))
