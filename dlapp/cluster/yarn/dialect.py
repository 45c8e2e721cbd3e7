"""Dialects: four encodings of the number of GPUs in Hadoop's messages.

    gcores       a resource type of this name (Hadoop 3)              1a 0a 0a 06 "gcores" 10 03
    yarn.io/gpu  Hadoop's own type; the NodeManager assigns the GPUs  1a 0f 0a 0b "yarn.io/gpu" 10 03
    field3       a patched Hadoop 2.7: gpu_cores = 3                  18 03
    none         the cluster counts no GPUs

field3 and the first two use the same field of ResourceProto for different types. A server ignores an encoding that it
does not know, without an error: it allocates a container without GPUs. So the dialect is a setting of the cluster, and
the allocated amounts are compared with the requested amounts.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum

from dlapp.errors import ConfigError

SETTING = "yarn.dialect"
"""The configuration key that selects the dialect, for error messages."""

FIELD3_LIMIT = "yarn.scheduler.maximum-allocation-gcores"
"""A property of the patched Hadoop only: its presence in the ResourceManager's configuration identifies the patch."""
FIELD3_MINIMUM, FIELD3_NODE = "yarn.scheduler.minimum-allocation-gcores", "yarn.nodemanager.resource.gcores"
FIELD3_SETTINGS = (FIELD3_MINIMUM, FIELD3_LIMIT, FIELD3_NODE)


class Dialect(Enum):
    """Encoding of the number of GPUs."""

    GCORES = "gcores"
    YARN_GPU = "yarn.io/gpu"
    FIELD3 = "field3"
    NONE = "none"


def choose_dialect(configured: str, resource_types: Collection[str], *, has_field3: bool) -> Dialect:
    """Return the configured dialect, or with ``auto`` the dialect of the cluster.

    Args:
        configured: ``auto`` or a dialect's name.
        resource_types: names of the ResourceManager's resource types.
        has_field3: whether its configuration has `FIELD3_LIMIT`.

    Raises:
        ConfigError: there is no such dialect, the cluster does not support it, or the cluster has two and the setting
            is ``auto``.
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
    # A client cannot reliably detect the patched Hadoop, so the setting field3 is not checked.
    if dialect in (Dialect.GCORES, Dialect.YARN_GPU) and dialect not in there:
        counted = ", ".join(sorted(resource_types)) or "memory and vcores alone"
        raise ConfigError(f"{SETTING}: is {configured}, and the ResourceManager counts {counted}")
    if dialect is Dialect.FIELD3 and Dialect.GCORES in there:
        raise ConfigError(f"{SETTING}: is field3, and the ResourceManager counts gcores as a resource type")
    return dialect
