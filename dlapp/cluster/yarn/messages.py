"""YARN's messages, as far as dlapp uses them, as values: encoded requests and decoded answers.

An answer is validated completely before any of it is used. An optional field that is missing has Hadoop's default.
Fields and states that a newer Hadoop adds are ignored; a container's token is passed on unchanged, with all its fields.

Source: yarn_protos.proto, yarn_service_protos.proto, yarn_security_token.proto and Security.proto of Hadoop 2.7 to 3.5;
    answers of 2.7.7, 2.10.2 and 3.4.2.
"""

from __future__ import annotations

import math
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from dlapp.cluster.yarn.dialect import SETTING, Dialect
from dlapp.cluster.yarn.launch_script import inside_double_quotes, shell_command
from dlapp.cluster.yarn.values import (
    MODIFY_APP,
    VIEW_APP,
    Allocation,
    ContainerStage,
    ContainerStatus,
    Granted,
    Launch,
    LocalResource,
    NodeId,
    NodeReport,
    Registration,
    ResourceRequest,
)
from dlapp.errors import RequestTooLarge
from dlapp.hadoop.tokens import Token, parse_token
from dlapp.hadoop.wire import Fields, encode
from dlapp.system.text import counted
from dlapp.values.ids import ApplicationId, ContainerId
from dlapp.values.report import FinalStatus
from dlapp.values.spec import MAX_AMOUNT, Resources

AM_RESYNC, AM_SHUTDOWN = 1, 2
"""Commands to an ApplicationMaster (AMCommandProto)."""
NODE_NEW, NODE_RUNNING, NODE_DECOMMISSIONED, NODE_DECOMMISSIONING = 1, 2, 4, 7
"""States of a node (NodeStateProto)."""
CONTAINER_NEW, CONTAINER_RUNNING, CONTAINER_COMPLETE = 1, 2, 3
"""States of a container (ContainerStateProto)."""
CONTAINER_SCHEDULED = 1
"""Substate of a container (ContainerSubStateProto, Hadoop 3) whose node fetches its files, or has no room for it yet;
its state is RUNNING."""
_FINAL: Mapping[FinalStatus, int] = {
    FinalStatus.UNDEFINED: 0,
    FinalStatus.SUCCEEDED: 1,
    FinalStatus.FAILED: 2,
    FinalStatus.KILLED: 3,
}
_ARCHIVE, _FILE = 1, 2
_VISIBILITY: Mapping[str, int] = {"PUBLIC": 1, "PRIVATE": 2, "APPLICATION": 3}
_ACCESS: Mapping[str, int] = {VIEW_APP: 1, MODIFY_APP: 2}
_NO_EXIT_STATUS = -1000
_GPUS = 3
"""Field of a ResourceProto: a number in the dialect field3, else the amounts of resource types."""
_NUMBER_BITS = 40
_NUMBER = (1 << _NUMBER_BITS) - 1


# ---- ids and amounts ----


def encode_application_id(application_id: ApplicationId) -> bytes:
    """Return an ApplicationIdProto."""
    return encode((1, application_id.number), (2, application_id.cluster_timestamp_ms))


def _parse_application_id(said: Fields) -> ApplicationId:
    return ApplicationId(said.signed(2, 0, bits=64), said.signed(1, 0))


def encode_container_id(container_id: ContainerId) -> bytes:
    """Return a ContainerIdProto with fields 2 and 3, which all releases write.

    Source: ContainerId.newContainerId; the epoch is above bit 40.
    """
    attempt = encode((1, encode_application_id(container_id.application)), (2, container_id.attempt))
    return encode((2, attempt), (3, container_id.epoch << _NUMBER_BITS | container_id.number))


def parse_container_id(data: bytes) -> ContainerId:
    """Return a ContainerIdProto. Raises NotHadoop on an invalid message, as do the others."""
    said = Fields(data)
    attempt, number = said.message(2, b""), said.signed(3, 0, bits=64)
    application = attempt.message(1) if attempt.has(1) else said.message(1, b"")
    return ContainerId(
        _parse_application_id(application), attempt.signed(2, 0), number & _NUMBER, number >> _NUMBER_BITS
    )


def parse_node_id(said: Fields) -> NodeId:
    """Return a NodeIdProto."""
    return NodeId(said.text(1, ""), said.signed(2, 0))


def encode_resources(resources: Resources, dialect: Dialect) -> bytes:
    """Return the ResourceProto that requests ``resources``.

    Raises:
        RequestTooLarge: GPUs are requested, but the cluster counts none.
    """
    gpus: int | bytes | None = None
    if resources.gcores:
        if dialect is Dialect.NONE:
            asked = counted(resources.gcores, "gcores")
            raise RequestTooLarge(
                f"asked for {asked}, and the cluster counts none ({SETTING}: none)", "resources.gcores"
            )
        gpus = resources.gcores
        if dialect is not Dialect.FIELD3:
            gpus = encode((1, dialect.value), (2, gpus))
    return encode((1, resources.memory_mib), (2, resources.vcores), (_GPUS, gpus))


def parse_resources(data: bytes, dialect: Dialect) -> Resources:
    """Return the amounts of a ResourceProto.

    A missing amount or 0 counts as the minimum of a container: 1 MiB, 1 vcore. An amount above dlapp's own maximum
    counts as that: without a maximum in its configuration, a ResourceManager reports 2^63 - 1 of a resource type.
    """
    said = Fields(data)
    found = said.values(_GPUS)
    if dialect is Dialect.FIELD3:
        counts = [one for one in found if isinstance(one, int)][-1:]
    else:
        amounts = [Fields(one) for one in found if isinstance(one, bytes)]
        counts = [one.signed(2, 0, bits=64) for one in amounts if one.text(1) == dialect.value][:1]
    return Resources(
        memory_mib=min(max(1, said.signed(1, 0, bits=64)), MAX_AMOUNT),
        vcores=max(1, said.signed(2, 0)),
        gcores=min(max(0, *counts), MAX_AMOUNT) if counts else 0,
    )


# ---- ApplicationMaster and ResourceManager: requests ----


def register(host: str, port: int, tracking_url: str) -> bytes:
    """Return a RegisterApplicationMasterRequestProto."""
    return encode((1, host), (2, port), (3, tracking_url))


class AllocateRequest(NamedTuple):
    """Heartbeat of an ApplicationMaster.

    Args:
        changes: its requests, releases and hosts to avoid, encoded; empty: there are none.
        progress: 0 to 1.
    """

    changes: bytes
    progress: float

    def encode(self, response_id: int) -> bytes:
        """Return the AllocateRequestProto after the answer of this number."""
        return self.changes + encode((4, response_id), (5, self.progress))


def allocate(
    rows: Iterable[ResourceRequest],
    releases: Iterable[ContainerId],
    dialect: Dialect,
    *,
    avoid: Iterable[str] = (),
    no_longer_avoid: Iterable[str] = (),
    progress: float = 0.0,
) -> AllocateRequest:
    """Return a heartbeat.

    Args:
        rows, releases: requests, and containers to release.
        dialect: representation of GPUs.
        avoid, no_longer_avoid: changes of the hosts not to use.
        progress: 0 to 1.

    Raises:
        RequestTooLarge: a row has GPUs, and the cluster counts none.
    """
    avoided = encode(*((1, host) for host in avoid), *((2, host) for host in no_longer_avoid))
    changes = encode(
        *((1, encode_request(row, dialect)) for row in rows),
        *((2, encode_container_id(one)) for one in releases),
        (3, avoided or None),
    )
    return AllocateRequest(changes, progress)


def encode_request(row: ResourceRequest, dialect: Dialect) -> bytes:
    """Return a ResourceRequestProto. Raises RequestTooLarge: it has GPUs, and the cluster counts none."""
    return encode(
        (1, encode((1, row.priority))),
        (2, row.name),
        (3, encode_resources(row.resources, dialect)),
        (4, row.count),
        (5, row.relax),
        (6, row.label),
        (8, row.request_id),
    )


def finish(final_status: FinalStatus, diagnostics: str, tracking_url: str) -> bytes:
    """Return a FinishApplicationMasterRequestProto."""
    return encode((1, diagnostics), (2, tracking_url), (3, _FINAL[final_status]))


def get_cluster_nodes(states: Iterable[int]) -> bytes:
    """Return a GetClusterNodesRequestProto: the nodes in some states."""
    return encode(*((1, state) for state in states))


def get_application_report(application_id: ApplicationId) -> bytes:
    """Return a GetApplicationReportRequestProto."""
    return encode((1, encode_application_id(application_id)))


# ---- ApplicationMaster and ResourceManager: answers ----


class RegistrationAnswer(NamedTuple):
    """Answer to a registration; ``node_tokens``: for the nodes on which an earlier attempt has containers."""

    registration: Registration
    node_tokens: Mapping[NodeId, Token]


class HeartbeatAnswer(NamedTuple):
    """Answer to a heartbeat.

    Args:
        allocation: new events.
        response_id: its number.
        command: `AM_RESYNC` or `AM_SHUTDOWN`; other numbers mean nothing.
        node_tokens: new tokens for nodes.
        am_rm_token: the ApplicationMaster's next token; None: unchanged.
    """

    allocation: Allocation
    response_id: int
    command: int
    node_tokens: Mapping[NodeId, Token]
    am_rm_token: Token | None


def parse_registration(said: Fields, dialect: Dialect) -> RegistrationAnswer:
    """Return a RegisterApplicationMasterResponseProto."""
    return RegistrationAnswer(
        Registration(
            largest=parse_resources(said.data(1, b""), dialect),
            live=tuple(parse_granted(one, dialect) for one in said.all_data(4)),
        ),
        _parse_node_tokens(said.all_data(6)),
    )


def parse_allocation(said: Fields, dialect: Dialect) -> HeartbeatAnswer:
    """Return an AllocateResponseProto."""
    return HeartbeatAnswer(
        Allocation(
            granted=tuple(parse_granted(one, dialect) for one in said.all_data(3)),
            live=tuple(parse_granted(one, dialect) for one in said.all_data(17)),
            ended=tuple(map(parse_status, said.all_data(4))),
            nodes=tuple(parse_node_report(one, dialect) for one in said.all_data(6)),
            node_count=said.signed(7, 0),
            preempted=_parse_preemption(said.message(8, b"")),
        ),
        said.signed(2, 0),
        said.signed(1, 0),
        _parse_node_tokens(said.all_data(9)),
        parse_token(said.message(12)) if said.has(12) else None,
    )


def parse_is_finished(said: Fields) -> bool:
    """Return whether YARN has recorded the end, from a FinishApplicationMasterResponseProto."""
    return bool(said.number(1, 0, below=1 << 64))


def parse_cluster_nodes(said: Fields, dialect: Dialect) -> list[NodeReport]:
    """Return the nodes in a GetClusterNodesResponseProto."""
    return [parse_node_report(one, dialect) for one in said.all_data(1)]


def parse_lifetime_left_s(said: Fields) -> float:
    """Return when the application is killed, from a GetApplicationReportResponseProto [s]; infinity: never.

    Each of its timeouts is a pair of the kind, of which there is one (LIFETIME), and the timeout; -1: no limit.
    """
    timeouts = [Fields(one).message(2, b"") for one in said.message(1, b"").all_data(26)]
    left = [one.signed(3, 0, bits=64) for one in timeouts]
    return min((float(one) for one in left if one >= 0), default=math.inf)


def parse_granted(data: bytes, dialect: Dialect) -> Granted:
    """Return the allocated container of a ContainerProto."""
    said = Fields(data)
    # A container that the ResourceManager recovered after its restart has no token: it was started before.
    if token := said.data(6, b""):
        parse_token(Fields(token))
    return Granted(
        container_id=parse_container_id(said.data(1, b"")),
        node=parse_node_id(said.message(2, b"")),
        web=said.text(3, ""),
        resources=parse_resources(said.data(4, b""), dialect),
        priority=said.message(5, b"").signed(1, 0),
        request_id=said.signed(8, -1, bits=64),
        token=token,
    )


def parse_status(data: bytes) -> ContainerStatus:
    """Return a ContainerStatusProto. An unknown state does not count as the end.

    Hadoop 2 reports a container that is being prepared as running. Source: ContainerImpl.getCurrentState and, for
    Hadoop 3, getContainerSubState.
    """
    said = Fields(data)
    state, stage = said.signed(2, 0), ContainerStage.RUNNING
    if state == CONTAINER_COMPLETE:
        stage = ContainerStage.ENDED
    elif state == CONTAINER_NEW or said.signed(8, 0) == CONTAINER_SCHEDULED:
        stage = ContainerStage.PREPARING
    return ContainerStatus(
        container_id=parse_container_id(said.data(1, b"")),
        stage=stage,
        exit_status=said.signed(4, _NO_EXIT_STATUS),
        diagnostics=said.text(3, ""),
    )


def parse_node_report(data: bytes, dialect: Dialect) -> NodeReport:
    """Return a NodeReportProto; a node in an unknown state is not usable.

    Hadoop before 3.2 does not report the time of a graceful decommission: there it counts as unlimited.
    """
    said = Fields(data)
    state, leaves_in_s = said.signed(7, 0), None
    if state == NODE_DECOMMISSIONING:
        left_s = said.signed(13, -1)  # a uint32 in Hadoop, where -1 is no limit
        leaves_in_s = float(left_s) if left_s >= 0 else math.inf
    return NodeReport(
        node=parse_node_id(said.message(1, b"")),
        rack=said.text(3, ""),
        usable=state in (NODE_NEW, NODE_RUNNING),
        capability=parse_resources(said.data(5, b""), dialect),
        leaves_in_s=leaves_in_s,
        is_removed=state == NODE_DECOMMISSIONED,
    )


def _parse_node_tokens(messages: Iterable[bytes]) -> dict[NodeId, Token]:
    found = map(Fields, messages)
    return {parse_node_id(one.message(1, b"")): parse_token(one.message(2)) for one in found}


def _parse_preemption(said: Fields) -> tuple[ContainerId, ...]:
    """Return the containers that are preempted, whether or not the ResourceManager would take others instead.

    What it also asks for as amounts is ignored: these containers are taken if it is given no others.

    Source: ProportionalCapacityPreemptionPolicy takes those it has named;
        DefaultAMSProcessor.generatePreemptionMessage.
    """
    named = (*said.message(1, b"").all_data(1), *said.message(2, b"").all_data(2))
    return tuple(dict.fromkeys(parse_container_id(Fields(one).data(1, b"")) for one in named))


# ---- ApplicationMaster and NodeManager ----


class ContainerException(NamedTuple):
    """Java exception of a NodeManager about one container."""

    container_id: ContainerId
    java_class: str
    message: str


class ContainersAnswer(NamedTuple):
    """Answer of a NodeManager to a start or stop; ``done``: the containers for which it succeeded."""

    done: frozenset[ContainerId]
    failures: Sequence[ContainerException]


class StatusesAnswer(NamedTuple):
    """Answer of a NodeManager with the statuses of containers."""

    statuses: Sequence[ContainerStatus]
    failures: Sequence[ContainerException]


def start_containers(launches: Iterable[tuple[Granted, Launch]]) -> bytes:
    """Return a StartContainersRequestProto."""
    return encode(*((1, encode((1, encode_launch(launch)), (2, granted.token))) for granted, launch in launches))


def containers(container_ids: Iterable[ContainerId]) -> bytes:
    """Return a StopContainersRequestProto or GetContainerStatusesRequestProto."""
    return encode(*((1, encode_container_id(one)) for one in container_ids))


def parse_started(said: Fields) -> ContainersAnswer:
    """Return a StartContainersResponseProto."""
    return ContainersAnswer(frozenset(map(parse_container_id, said.all_data(2))), _parse_failures(said.all_data(3)))


def parse_stopped(said: Fields) -> ContainersAnswer:
    """Return a StopContainersResponseProto."""
    return ContainersAnswer(frozenset(map(parse_container_id, said.all_data(1))), _parse_failures(said.all_data(2)))


def parse_statuses(said: Fields) -> StatusesAnswer:
    """Return a GetContainerStatusesResponseProto."""
    return StatusesAnswer(tuple(map(parse_status, said.all_data(1))), _parse_failures(said.all_data(2)))


def _parse_failures(messages: Iterable[bytes]) -> tuple[ContainerException, ...]:
    found = [(one.data(1, b""), one.message(2, b"")) for one in map(Fields, messages)]
    return tuple(
        ContainerException(parse_container_id(container_id), error.text(3, ""), error.text(1, ""))
        for container_id, error in found
    )


def encode_launch(launch: Launch) -> bytes:
    """Return a ContainerLaunchContextProto. A NodeManager writes it as a shell script, so it is quoted to arrive
    unchanged."""
    resources, environment, acls = launch.resources.items(), launch.environment.items(), launch.acls.items()
    return encode(
        *((1, encode((1, name), (2, _encode_resource(resource)))) for name, resource in resources),
        (2, launch.credentials or None),
        *((4, encode((1, name), (2, inside_double_quotes(value)))) for name, value in environment),
        (5, shell_command(launch.command)),
        *((6, encode((1, _ACCESS[name]), (2, text))) for name, text in acls),
    )


def _encode_resource(resource: LocalResource) -> bytes:
    return encode(
        (1, encode_url(resource.url)),
        (2, resource.size),
        (3, resource.timestamp_ms),
        (4, _ARCHIVE if resource.archive else _FILE),
        (5, _VISIBILITY[resource.visibility]),
    )


def encode_url(url: str) -> bytes:
    """Return the URLProto of a location, with a percent-decoded path. Source: ConverterUtils / URL.fromURI."""
    parts = urllib.parse.urlsplit(url)
    return encode(
        (1, parts.scheme),
        (2, parts.hostname or None),
        (3, parts.port or -1),
        (4, urllib.parse.unquote(parts.path)),
        (5, parts.username or None),
    )
