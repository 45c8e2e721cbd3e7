"""Caches of a payload on this node (``cache.NAME``): where they are, and whether they are allowed."""

from __future__ import annotations

import os
from collections.abc import Callable

from dlapp.errors import Denied
from dlapp.launch_spec import CacheSettings
from dlapp.messages import Assignment
from dlapp.node_policy import FILE, NodePolicy
from dlapp.storage.cache.entry import CachePlace
from dlapp.storage.cache.payload import PayloadCaches
from dlapp.storage.tree import make_own_directory


def open_caches(
    assignment: Assignment, settings: CacheSettings | None, policy: NodePolicy, note: Callable[[str], None]
) -> PayloadCaches:
    """Open the caches of this task's user.

    Args:
        assignment: has caches.
        settings: as the engine passed them on.
        policy: of the operator of this node.
        note: takes lines for dlapp's own log.

    Raises:
        Denied: this node allows none, or the directory is not the user's alone.
        DlappError: it cannot be made.
    """
    first = assignment.caches[0]
    most = policy.payload_cache_limit_bytes
    if most == 0:
        raise Denied(f"cache.{first.name}: not allowed on this node (payload_cache_limit of {FILE})")
    if settings is None or not settings.payload_limit_bytes:
        raise Denied(f"cache.{first.name}: storage.payload_cache_limit is 0")
    if assignment.docker_image is not None:
        mounted = {mount.path for mount in policy.docker.mounts}
        if clash := next((one for one in assignment.caches if one.path in mounted), None):
            raise Denied(f"cache.{clash.name}: {clash.path} is a mount of this node (docker.mounts of {FILE})")
    limit_bytes = settings.payload_limit_bytes if most is None else min(settings.payload_limit_bytes, most)
    directory = settings.payload_directory
    if policy.cache_dir is not None:
        own = os.path.join(policy.cache_dir, str(os.geteuid()))
        make_own_directory(own)
        directory = os.path.join(own, "payload")
    return PayloadCaches(CachePlace(directory, limit_bytes, settings.age_s, settings.keep_free), note)
