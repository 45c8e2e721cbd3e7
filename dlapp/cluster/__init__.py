"""Engines, which run applications: one interface with two sides, an engine each in `local` and `yarn`.

The interface is in `engine`; its names are here, too, and are loaded when the first of them is used. The embedded
engine's runner is in this package, and stands between a submission and its start: it needs none of them, and their
import takes three times as long as its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dlapp.cluster.engine import (
        STATUS_UNKNOWN,
        AmEngine,
        ContainerEnd,
        ContainerRequest,
        Engine,
        EngineInfo,
        Grant,
        Heartbeat,
        LogFiles,
        Registered,
        ResourceLimits,
        TaskLaunch,
        Wake,
    )

LOG_NAMES = ("stdout", "stderr", "dlapp.log", "dlapp.times")
"""The logs of a container: of its payload, of its task, and the times of the payload's
(`dlapp.system.logs.log_times`)."""

NOT_ENDED = "only what has ended can be removed (dlapp-softkill ends it and keeps its output, dlapp-kill discards it)"

__all__ = [
    "STATUS_UNKNOWN",
    "AmEngine",
    "ContainerEnd",
    "ContainerRequest",
    "Engine",
    "EngineInfo",
    "Grant",
    "Heartbeat",
    "LogFiles",
    "Registered",
    "ResourceLimits",
    "TaskLaunch",
    "Wake",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from dlapp.cluster import engine

    return getattr(engine, name)
