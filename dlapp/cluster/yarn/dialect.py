"""Dialects of GPU counts on the wire: the same number, four ways.

    gcores       a resource type of that name, Hadoop 3:    1a 0a 0a 06 "gcores" 10 03
    yarn.io/gpu  Hadoop's own type; the node gives the GPUs, 1a 0f 0a 0b "yarn.io/gpu" 10 03
    field3       a patched Hadoop 2.7: gpu_cores = 3        18 03
    none         the cluster counts no GPUs

The last but one and the first two use the same field of ResourceProto for different things, and a server that does not
know a form ignores it without a word: the container comes, without GPUs. So the dialect is chosen for a cluster, and
what is granted is compared with what was asked for.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum
from typing import TYPE_CHECKING

from dlapp.errors import AskTooLarge, ConfigError
from dlapp.system.text import counted
from dlapp.values.spec import Resources

# A client names a dialect and writes none of its messages: it is spared the 40 ms that protobuf takes to load.
if TYPE_CHECKING:
    from dlapp.cluster.yarn.proto.yarn_pb2 import ResourceProto

SETTING = "yarn.dialect"
"""The key of the configuration that chooses; errors name it."""

FIELD3_LIMIT = "yarn.scheduler.maximum-allocation-gcores"
"""A property that only the patched Hadoop has; its presence in the ResourceManager's configuration tells."""
FIELD3_MINIMUM, FIELD3_NODE = "yarn.scheduler.minimum-allocation-gcores", "yarn.nodemanager.resource.gcores"
FIELD3_SETTINGS = (FIELD3_MINIMUM, FIELD3_LIMIT, FIELD3_NODE)

_FIELD3 = 3
_FIELD3_TAG = b"\x18"
_VARINT = 0


class Dialect(Enum):
    """One way to count GPUs."""

    GCORES = "gcores"
    YARN_GPU = "yarn.io/gpu"
    FIELD3 = "field3"
    NONE = "none"

    def encode(self, resources: Resources) -> ResourceProto:
        """The message that asks for ``resources``.

        Raises:
            AskTooLarge: GPUs are asked for where none are counted.
        """
        from dlapp.cluster.yarn.proto.yarn_pb2 import ResourceProto
        from dlapp.hadoop.framing import encode_varint

        message = ResourceProto(memory=resources.memory_mib, virtual_cores=resources.vcores)
        if not resources.gcores:
            return message
        if self is Dialect.NONE:
            asked = counted(resources.gcores, "gcores")
            raise AskTooLarge(f"asked for {asked}, and the cluster counts none ({SETTING}: none)", "resources.gcores")
        if self is Dialect.FIELD3:
            message.MergeFromString(_FIELD3_TAG + encode_varint(resources.gcores))
        else:
            message.resource_value_map.add(key=self.value, value=resources.gcores)
        return message

    def decode(self, message: ResourceProto) -> Resources:
        """The amounts in a message. What is missing or 0 counts as the least that a container has: 1 MiB, 1 vcore."""
        gcores = 0
        if self is Dialect.FIELD3:
            from google.protobuf.unknown_fields import UnknownFieldSet

            unknown = UnknownFieldSet(message)
            for field in (unknown[place] for place in range(len(unknown))):
                if field.field_number == _FIELD3 and field.wire_type == _VARINT:
                    gcores = field.data
        else:
            gcores = next((one.value for one in message.resource_value_map if one.key == self.value), 0)
        return Resources(memory_mib=max(1, message.memory), vcores=max(1, message.virtual_cores), gcores=max(0, gcores))


def choose_dialect(configured: str, resource_types: Collection[str], *, has_field3: bool) -> Dialect:
    """The dialect that the configuration names, or with ``auto`` the one that the cluster shows.

    Args:
        configured: ``auto`` or a dialect's name.
        resource_types: names of what the ResourceManager counts.
        has_field3: whether its configuration has `FIELD3_LIMIT`.

    Raises:
        ConfigError: no such dialect, one that the cluster does not have, or two that it has.
    """
    there = [one for one in (Dialect.GCORES, Dialect.YARN_GPU) if one.value in resource_types]
    if has_field3:
        there.append(Dialect.FIELD3)
    if configured == "auto":
        if len(there) > 1:
            names = " and ".join(one.value for one in there)
            raise ConfigError(f"{SETTING}: is auto, and the cluster has {names}; name the one to use")
        return there[0] if there else Dialect.NONE
    try:
        dialect = Dialect(configured)
    except ValueError:
        allowed = ", ".join(one.value for one in Dialect)
        raise ConfigError(f"{SETTING}: is {configured!r}, allowed are auto, {allowed}") from None
    # Whether a Hadoop is the patched one cannot be told for sure from outside: there the setting is believed.
    if dialect in (Dialect.GCORES, Dialect.YARN_GPU) and dialect not in there:
        counted = ", ".join(sorted(resource_types)) or "memory and vcores alone"
        raise ConfigError(f"{SETTING}: is {configured}, and the ResourceManager counts {counted}")
    if dialect is Dialect.FIELD3 and Dialect.GCORES in there:
        raise ConfigError(f"{SETTING}: is field3, and the ResourceManager counts gcores as a resource type")
    return dialect
