"""Caches of a payload on this node (``cache.NAME``): their locations and whether they are allowed."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from dlapp.errors import Denied
from dlapp.node_policy import FILE, NodePolicy
from dlapp.storage.cache.entry import CacheLocation
from dlapp.storage.cache.payload import PayloadCaches
from dlapp.storage.tree import make_own_directory
from dlapp.values.launch_spec import CacheSettings
from dlapp.values.spec import PayloadCache


def open_caches(
    caches: Sequence[PayloadCache],
    settings: CacheSettings | None,
    policy: NodePolicy,
    note: Callable[[str], None],
    *,
    in_docker: bool = False,
    evict_every_s: float = 0.0,
) -> PayloadCaches:
    """Open the caches of this process's user.

    Args:
        caches: those that the payload uses; at least one.
        settings: as passed on by the engine.
        policy: the policy of the operator of this node.
        note: takes lines for dlapp's own log.
        in_docker: whether they are mounted into a container.
        evict_every_s: see `PayloadCaches`.

    Raises:
        Denied: this node allows no caches, or the directory is not exclusively the user's.
        DlappError: it cannot be created.
    """
    first = caches[0]
    if policy.payload_cache_limit_bytes == 0:
        raise Denied(f"cache.{first.name}: not allowed on this node (payload_cache_limit of {FILE})")
    if settings is None or not settings.payload_limit_bytes:
        raise Denied(f"cache.{first.name}: storage.payload_cache_limit is 0")
    if in_docker:
        mounted = {mount.path for mount in policy.docker.mounts}
        if clash := next((one for one in caches if one.path in mounted), None):
            raise Denied(f"cache.{clash.name}: {clash.path} is a mount of this node (docker.mounts of {FILE})")
    place = place_of_caches(settings, policy)
    if policy.cache_dir is not None:
        make_own_directory(os.path.dirname(place.directory))
    return PayloadCaches(place, note, evict_every_s)


def place_of_caches(settings: CacheSettings, policy: NodePolicy) -> CacheLocation:
    """Return the location and size limit of the caches of this process's user on this node."""
    most, limit_bytes = policy.payload_cache_limit_bytes, settings.payload_limit_bytes
    directory = settings.payload_directory
    if policy.cache_dir is not None:
        directory = os.path.join(policy.cache_dir, str(os.geteuid()), "payload")
    if most is not None:
        limit_bytes = min(limit_bytes, most)
    return CacheLocation(directory, limit_bytes, settings.age_s, settings.keep_free)
