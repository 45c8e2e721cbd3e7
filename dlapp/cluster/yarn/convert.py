"""Conversion between Hadoop's messages and dlapp's values."""

from __future__ import annotations

import math
import urllib.parse
from collections.abc import Mapping

from dlapp.cluster.yarn.dialect import Dialect
from dlapp.cluster.yarn.launch_script import inside_double_quotes, shell_command
from dlapp.cluster.yarn.proto import yarn_pb2 as pb
from dlapp.cluster.yarn.values import (
    MODIFY_APP,
    VIEW_APP,
    ContainerStage,
    ContainerStatus,
    Granted,
    Launch,
    LocalResource,
    NodeId,
    NodeReport,
    ResourceRequest,
)
from dlapp.hadoop.proto.rpc_pb2 import TokenProto
from dlapp.hadoop.tokens import Token
from dlapp.values.ids import ApplicationId, ContainerId

_NUMBER_BITS = 40
_NUMBER = (1 << _NUMBER_BITS) - 1
_VISIBILITY: Mapping[str, pb.LocalResourceVisibilityProto] = {
    "PUBLIC": pb.PUBLIC,
    "PRIVATE": pb.PRIVATE,
    "APPLICATION": pb.APPLICATION,
}
_ACCESS: Mapping[str, pb.ApplicationAccessTypeProto] = {
    VIEW_APP: pb.APPACCESS_VIEW_APP,
    MODIFY_APP: pb.APPACCESS_MODIFY_APP,
}
_USABLE = (pb.NS_NEW, pb.NS_RUNNING)


def application_id_to_proto(application_id: ApplicationId) -> pb.ApplicationIdProto:
    """Convert the id of an application to its message."""
    return pb.ApplicationIdProto(id=application_id.number, cluster_timestamp=application_id.cluster_timestamp_ms)


def container_id_to_proto(container_id: ContainerId) -> pb.ContainerIdProto:
    """Convert the id of a container to its message: fields 2 and 3, which all releases write.

    Source: ContainerId.newContainerId; the epoch is above bit 40.
    """
    message = pb.ContainerIdProto(id=container_id.epoch << _NUMBER_BITS | container_id.number)
    message.app_attempt_id.attemptId = container_id.attempt
    message.app_attempt_id.application_id.CopyFrom(application_id_to_proto(container_id.application))
    return message


def container_id_from_proto(message: pb.ContainerIdProto) -> ContainerId:
    """Return the container's id in a message."""
    attempt = message.app_attempt_id
    application = attempt.application_id if attempt.HasField("application_id") else message.app_id
    return ContainerId(
        ApplicationId(application.cluster_timestamp, application.id),
        attempt.attemptId,
        message.id & _NUMBER,
        message.id >> _NUMBER_BITS,
    )


def node_from_proto(message: pb.NodeIdProto) -> NodeId:
    """Return the node's id in a message."""
    return NodeId(message.host, message.port)


def token_from_proto(message: TokenProto) -> Token:
    """Return the token in a message."""
    return Token(message.identifier, message.password, message.kind, message.service)


def row_to_proto(row: ResourceRequest, dialect: Dialect) -> pb.ResourceRequestProto:
    """Convert a resource request to its message. Raises RequestTooLarge: it has GPUs, and the cluster counts none."""
    message = pb.ResourceRequestProto(
        priority=pb.PriorityProto(priority=row.priority),
        resource_name=row.name,
        capability=dialect.encode(row.resources),
        num_containers=row.count,
        relax_locality=row.relax,
        allocation_request_id=row.request_id,
    )
    if row.label is not None:
        message.node_label_expression = row.label
    return message


def granted_from_proto(message: pb.ContainerProto, dialect: Dialect) -> Granted:
    """Return the allocated container in a message."""
    return Granted(
        container_id=container_id_from_proto(message.id),
        node=node_from_proto(message.nodeId),
        web=message.node_http_address,
        resources=dialect.decode(message.resource),
        priority=message.priority.priority,
        request_id=message.allocation_request_id,
        # A container that the ResourceManager recovered after its restart has no token: it was started before.
        token=message.container_token.SerializePartialToString() if message.HasField("container_token") else b"",
    )


def status_from_proto(message: pb.ContainerStatusProto) -> ContainerStatus:
    """Return the container's status in a message. An unknown state does not count as the end.

    Hadoop 2 reports a container that is being prepared as running. Source: ContainerImpl.getCurrentState and, for
    Hadoop 3, getContainerSubState.
    """
    stage = ContainerStage.RUNNING
    if message.HasField("state") and message.state == pb.C_COMPLETE:
        stage = ContainerStage.ENDED
    elif (message.HasField("state") and message.state == pb.C_NEW) or (
        message.HasField("container_sub_state") and message.container_sub_state == pb.CSS_SCHEDULED
    ):
        stage = ContainerStage.PREPARING
    return ContainerStatus(
        container_id=container_id_from_proto(message.container_id),
        stage=stage,
        exit_status=message.exit_status,
        diagnostics=message.diagnostics if message.HasField("diagnostics") else "",
    )


def node_report_from_proto(message: pb.NodeReportProto, dialect: Dialect) -> NodeReport:
    """Return the node in a message; a node in an unknown state is not usable.

    Hadoop before 3.2 does not report the time of a graceful decommission: there it counts as unlimited.
    """
    state = message.node_state if message.HasField("node_state") else None
    leaves_in_s = None
    if state == pb.NS_DECOMMISSIONING:
        is_limited = message.HasField("decommissioning_timeout") and message.decommissioning_timeout >= 0
        leaves_in_s = float(message.decommissioning_timeout) if is_limited else math.inf
    return NodeReport(
        node=node_from_proto(message.nodeId),
        rack=message.rackName,
        usable=state in _USABLE,
        capability=dialect.decode(message.capability),
        leaves_in_s=leaves_in_s,
        is_removed=state == pb.NS_DECOMMISSIONED,
    )


def launch_to_proto(launch: Launch) -> pb.ContainerLaunchContextProto:
    """Convert the launch of a container to its message. A NodeManager writes it as a shell script, so it is quoted to
    arrive unchanged."""
    message = pb.ContainerLaunchContextProto(command=[shell_command(launch.command)])
    for name, value in launch.environment.items():
        message.environment.add(key=name, value=inside_double_quotes(value))
    for name, resource in launch.resources.items():
        message.localResources.add(key=name, value=_resource_to_proto(resource))
    if launch.credentials:
        message.tokens = launch.credentials
    for name, text in launch.acls.items():
        message.application_ACLs.add(accessType=_ACCESS[name], acl=text)
    return message


def _resource_to_proto(resource: LocalResource) -> pb.LocalResourceProto:
    return pb.LocalResourceProto(
        resource=url_to_proto(resource.url),
        size=resource.size,
        timestamp=resource.timestamp_ms,
        type=pb.ARCHIVE if resource.archive else pb.FILE,
        visibility=_VISIBILITY[resource.visibility],
    )


def url_to_proto(url: str) -> pb.URLProto:
    """Convert a location to its message, with a percent-decoded path. Source: ConverterUtils / URL.fromURI."""
    parts = urllib.parse.urlsplit(url)
    message = pb.URLProto(scheme=parts.scheme, port=parts.port or -1, file=urllib.parse.unquote(parts.path))
    if parts.hostname:
        message.host = parts.hostname
    if parts.username:
        message.userInfo = parts.username
    return message
