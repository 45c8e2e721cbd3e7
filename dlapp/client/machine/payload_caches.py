"""Payload caches (``cache.NAME``) of this machine, for `dlapp-cache` and `dlapp-shell`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from dlapp.storage.cache.payload import PayloadCaches as PayloadCaches

if TYPE_CHECKING:
    from dlapp.config import Config
    from dlapp.values.launch_spec import CacheSettings


def payload_cache_settings(config: Config, state_path: str) -> CacheSettings:
    """Return the cache settings for the caller's applications on this machine.

    Args:
        config: has the limits.
        state_path: this machine's state directory (`dlapp.client.Client.state_path`).
    """
    from dlapp.cluster.local.state import StateDir
    from dlapp.values.launch_spec import CacheSettings

    storage = config.storage
    return CacheSettings(
        storage.cache_limit_bytes,
        storage.cache_age_s,
        payload_limit_bytes=storage.payload_cache_limit_bytes,
        payload_directory=StateDir(state_path, shared=config.local.shared).payload_caches(os.geteuid()),
    )


def open_payload_caches(config: Config, state_path: str) -> PayloadCaches | None:
    """Open the caller's payload caches.

    Args:
        config, state_path: see `payload_cache_settings`.

    Returns:
        None if there are none.

    Raises:
        Denied: they are another user's, or others can replace them.
        ConfigError: /etc/dlapp/node.yaml cannot be trusted.
    """
    from dlapp.node_policy import node_policy
    from dlapp.task.data.payload_caches import place_of_caches

    place = place_of_caches(payload_cache_settings(config, state_path), node_policy())
    return PayloadCaches(place) if os.path.isdir(os.path.join(place.directory, "caches")) else None
