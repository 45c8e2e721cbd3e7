"""Ownership of an id: whether the embedded engine issued it, for a search on several engines."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dlapp.config import Config, LocalConfig


def database_of(local: LocalConfig) -> str:
    """Return the path of the database of the caller's applications on this machine; it may not exist."""
    from dlapp.cluster.local.state import DATABASE, machine_name

    name = f"{machine_name()}-{os.geteuid()}" if local.shared else machine_name()
    return os.path.join(local.state_dir, name, DATABASE)


def is_used(config: Config) -> bool:
    """Return whether the caller ever submitted applications to this machine. Creates no file."""
    return os.path.exists(database_of(config.local))


def owns(config: Config, application_id: str) -> bool:
    """Return whether this machine's engine issued an id.

    Raises:
        Unreachable: the rows cannot be read, or are of another version.
    """
    if not is_used(config):
        return False
    from dlapp.cluster.local.client.engine import LocalEngine

    with LocalEngine(config) as engine:
        return engine.issued(application_id)
