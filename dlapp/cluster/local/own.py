"""Whether an application is the embedded engine's own, for who looks for it on several engines."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dlapp.config import Config


def is_used(config: Config) -> bool:
    """Whether applications were ever submitted to this machine. Makes nothing."""
    from dlapp.cluster.local.state import DATABASE, machine_id

    return os.path.exists(os.path.join(config.local.state_dir, machine_id(), DATABASE))


def gave(config: Config, application_id: str) -> bool:
    """Whether this machine's engine gave an id: all of its ids have the time at which it began in them.

    Raises:
        Unreachable: its rows cannot be read, or are of another version.
    """
    if not is_used(config):
        return False
    from dlapp.cluster.local.queue import Queue
    from dlapp.cluster.local.state import open_state

    with Queue(open_state(config.local.state_dir, shared=config.local.shared)) as queue:
        return application_id.startswith(f"application_{queue.timestamp_ms()}_")
