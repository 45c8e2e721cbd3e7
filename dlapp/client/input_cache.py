"""The cache of input of this machine, for `dlapp-cache` and dlapp-doctor; docs/data.md explains it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dlapp.errors import NotFound

if TYPE_CHECKING:
    from dlapp.config import Config

View = dict[str, Any]
"""An entry: the fields of `dlapp.storage.cache.entry.CacheEntry` by name; docs/json.md has them."""


class UserInputCache:
    """The caller's cache of input.

    Args:
        state_path: where this machine's state is (`dlapp.client.Client.state_path`).
        directory: a cache in place of the configured one; it must be there.

    Raises:
        NotFound: it is not.
        Denied: it is somebody else's.
        ConfigError: /etc/dlapp/node.yaml is not to be trusted.
    """

    def __init__(self, config: Config, state_path: str, directory: str | None = None) -> None:
        from dlapp.storage.cache.entry import CachePlace
        from dlapp.storage.cache.store import InputCache

        if directory is not None and not os.path.isdir(os.path.join(directory, "entries")):
            raise NotFound(f"{directory}: there is no cache of input")
        where = os.path.abspath(directory or cache_directory(config, state_path))
        self._cache = InputCache(CachePlace(where, config.storage.cache_limit_bytes, config.storage.cache_age_s))

    @property
    def directory(self) -> str:
        """Directory of the cache."""
        return self._cache.place.directory

    @property
    def limit_bytes(self) -> int:
        """The most that all entries may take."""
        return self._cache.place.limit_bytes

    def entries(self) -> list[View]:
        """All entries, those used longest ago first."""
        return [one._asdict() for one in self._cache.entries()]

    def find(self, texts: Sequence[str]) -> list[View]:
        """The entries whose source, or the beginning of whose key, each text is.

        Raises:
            NotFound, UsageError: a text names none, or several.
        """
        found = {one.key: one._asdict() for text in texts for one in self._cache.find(text)}
        return list(found.values())

    def pin(self, key: str, pinned: bool) -> None:
        """Keep an entry whatever room others need, or no longer than others. Raises NotFound: it is gone."""
        self._cache.pin(key, pinned)

    def remove(self, key: str) -> bool:
        """Remove an entry; False: it is in use."""
        return self._cache.remove(key)

    def sweep(self) -> None:
        """Remove what those left who were killed."""
        self._cache.sweep()


def cache_directory(config: Config, state_path: str) -> str:
    """Return the caller's cache directory on this machine: below the operator's, else in the state directory.

    On a node of a cluster, without the operator's word, it lies with what YARN keeps for a user, and whoever wants to
    see it names it.
    """
    from dlapp.cluster.local.state import StateDir
    from dlapp.node_policy import node_policy

    uid = os.geteuid()
    if operators := node_policy().cache_dir:
        return os.path.join(operators, str(uid))
    return StateDir(state_path, shared=config.local.shared).input_cache(uid)
