"""Two users with long queues on one machine, whose runners are killed (`tests.cluster.local.fair_shares`): 200
applications each and 20 kills a round. It needs root, to become the users."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

from tests.cluster.local.fair_shares import compare
from tests.cluster.local.users import Place
from tests.services.users import place_for_everybody
from tests.soak.problem import Problem

COUNT, KILLS = 200, 20
SHARE_ERROR = 0.05


def rounds(seconds: float, seed: int) -> Iterator[str]:
    """Yield a line for each round; stop after ``seconds``. Raises Problem."""
    choice, deadline, number = random.Random(seed), time.monotonic() + seconds, 0
    while time.monotonic() < deadline or number == 0:
        number, own = number + 1, choice.getrandbits(31)
        with place_for_everybody("soak-queue", 0o1777) as top:
            place = Place(top, True)
            try:
                found = compare(place, count=COUNT, kills=KILLS, seed=own)
            finally:
                place.clear()
        fair_s = sum(found.used_s.values()) / 2
        errors = {uid: used_s / fair_s - 1 for uid, used_s in found.used_s.items()}
        message = f"round {number}, seed {own}: {found.checked} starts compared, errors of the shares {errors}"
        if found.problems or max(map(abs, errors.values())) > SHARE_ERROR:
            raise Problem("\n    ".join([message, *found.problems]))
        yield message
