"""Usage of users: amounts times hours, of which each hour counts less the longer ago it was."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

HOUR_S = 3600.0


class Use(NamedTuple):
    """Use of the machine by one application.

    Args:
        user: uid of its owner.
        amount: how much of what is counted it had.
        started_s: since when [s since 1970].
        ended_s: until when; None: it still has it.
    """

    user: int
    amount: int
    started_s: float
    ended_s: float | None = None


def decayed_hours(use: Use, now_s: float, half_life_s: float) -> float:
    """Return the amount times hours, where each moment counts by half for every half-life that has passed since.

    Args:
        now_s: the time [s since 1970].
        half_life_s: see above [s].
    """
    end_s = now_s if use.ended_s is None else min(use.ended_s, now_s)
    start_s = min(use.started_s, end_s)
    rate = math.log(2) / half_life_s
    # The integral of exp(-rate * (now - t)) from start to end; expm1 keeps what a short use has of digits.
    weight_s = math.exp(-rate * (now_s - end_s)) * -math.expm1(-rate * (end_s - start_s)) / rate
    return use.amount * weight_s / HOUR_S


def hours_by_user(uses: Iterable[Use], now_s: float, half_life_s: float) -> dict[int, float]:
    """Return the decayed hours of each user.

    Args:
        now_s: the time [s since 1970].
        half_life_s: see `decayed_hours`.
    """
    found: dict[int, float] = {}
    for use in uses:
        found[use.user] = found.get(use.user, 0.0) + decayed_hours(use, now_s, half_life_s)
    return found
