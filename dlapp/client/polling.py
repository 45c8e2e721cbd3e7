"""Intervals at which a client that waits for an application reads its state."""

from __future__ import annotations

POLL_INTERVAL_S, MAX_POLL_INTERVAL_S = 0.1, 1.0
"""Least and largest interval between two requests of a client that waits; see `poll_pause_s`."""


def poll_pause_s(polls: int) -> float:
    """Return the pause of a client after so many requests [s].

    It may wait for weeks, and on a cluster the ResourceManager answers all that wait.
    """
    return min(POLL_INTERVAL_S * max(1.0, polls / 10), MAX_POLL_INTERVAL_S)
