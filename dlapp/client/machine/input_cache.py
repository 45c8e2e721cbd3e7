"""Input cache of this machine, for `dlapp-cache` and dlapp-doctor; docs/data.md explains it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from dlapp.errors import NotFound

if TYPE_CHECKING:
    from dlapp.config import Config
    from dlapp.storage.cache.entry import CacheEntry as CacheEntry
    from dlapp.storage.cache.entry import CacheLocation as CacheLocation
    from dlapp.storage.cache.store import InputCache as InputCache


def open_input_cache(config: Config, state_path: str, directory: str | None = None) -> InputCache:
    """Open the caller's input cache.

    Args:
        config: has its limits.
        state_path: this machine's state directory (`dlapp.client.Client.state_path`).
        directory: another cache instead of the configured one; it must exist.

    Raises:
        NotFound: it does not exist.
        Denied: it is another user's.
        ConfigError: /etc/dlapp/node.yaml cannot be trusted.
    """
    from dlapp.storage.cache.entry import CacheLocation
    from dlapp.storage.cache.store import InputCache

    if directory is not None and not os.path.isdir(os.path.join(directory, "entries")):
        raise NotFound(f"{directory}: there is no cache of input")
    where = os.path.abspath(directory or cache_directory(config, state_path))
    return InputCache(CacheLocation(where, config.storage.cache_limit_bytes, config.storage.cache_age_s))


def cache_directory(config: Config, state_path: str) -> str:
    """Return the caller's cache directory on this machine: below the operator's, else in the state directory.

    On a cluster node whose operator has configured none, it is among YARN's directories of the user, and must be named
    explicitly.
    """
    from dlapp.cluster.local.state import StateDir
    from dlapp.node_policy import node_policy

    uid = os.geteuid()
    if operators := node_policy().cache_dir:
        return os.path.join(operators, str(uid))
    return StateDir(state_path, shared=config.local.shared).input_cache(uid)
