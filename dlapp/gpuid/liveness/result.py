"""Result of probing a payload (`dlapp.gpuid.liveness.probes`)."""

from __future__ import annotations

from typing import NamedTuple

GONE, ALIVE, UNKNOWN = "gone", "alive", "unknown"


class Liveness(NamedTuple):
    """State of a payload; ``why`` is for people, empty if it is gone. ``is_task_alive``: its task itself lives."""

    state: str
    why: str = ""
    is_task_alive: bool = False
