from __future__ import annotations

import time
from itertools import islice

from dlapp.system.clock import backoff_s, now_ms


def test_the_time_is_in_milliseconds_since_1970() -> None:
    before = time.time() * 1000
    assert before - 1 <= now_ms() <= time.time() * 1000


def test_pauses_double_up_to_their_bound_and_are_shortened_by_up_to_a_half() -> None:
    for bound_s, pause_s in zip((0.1, 0.2, 0.4, 0.5, 0.5, 0.5), backoff_s(0.1, 0.5), strict=False):
        assert bound_s / 2 <= pause_s <= bound_s


def test_two_retries_from_one_moment_have_different_delays() -> None:
    assert list(islice(backoff_s(1.0, 60.0), 5)) != list(islice(backoff_s(1.0, 60.0), 5))
