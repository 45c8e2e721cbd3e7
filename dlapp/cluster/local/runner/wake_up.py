"""Wake-up of a runner: when its loop goes on at the latest, and why."""

from __future__ import annotations

from typing import NamedTuple

LINGERING = "processes of an application are ending"


class WakeUp(NamedTuple):
    """Next wake-up of a runner that gets no event before.

    Args:
        seconds: time until then.
        why: what is looked at then.
    """

    seconds: float
    why: str

    def at_most(self, seconds: float, why: str) -> WakeUp:
        """Return the earlier of this wake-up and another; of two at one time that for `LINGERING`, else this one."""
        is_earlier = seconds < self.seconds or (seconds == self.seconds and why == LINGERING)
        return WakeUp(seconds, why) if is_earlier else self
