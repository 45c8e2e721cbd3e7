"""Processes that the kernel killed for memory, as far as everybody may know of them."""

from __future__ import annotations

from dlapp.system.processes.oom_kills import OomKills, kill_count


def test_oom_kills_are_counted_by_the_kernel() -> None:
    assert (kill_count() or 0) >= 0


def test_a_kill_counts_in_the_time_before_an_end_and_not_later() -> None:
    now_s, count = 0.0, 3

    kills = OomKills(lambda: count, lambda: now_s)
    kills.sample()
    assert not kills.happened()
    now_s, count = 5.0, 4
    assert kills.happened()
    now_s = 9.0
    assert kills.happened()
    now_s = 16.0
    kills.sample()
    now_s = 21.0
    assert not kills.happened()


def test_without_kernel_counters_no_oom_kill_is_reported() -> None:
    kills = OomKills(lambda: None)
    kills.sample()
    assert not kills.happened()
