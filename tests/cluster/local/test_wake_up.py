"""Test when a runner wakes up next, and why."""

from __future__ import annotations

from dlapp.cluster.local.runner.context import LINGERING, WakeUp


def test_the_earlier_of_two_wake_ups_counts_with_its_reason() -> None:
    """30 s, then at most 0.5 s, then at most 2 s: 0.5 s."""
    idle = WakeUp(30.0, "idle")
    soon = idle.at_most(0.5, "GPUs are held by others")
    assert soon == WakeUp(0.5, "GPUs are held by others")
    assert soon.at_most(2.0, "the state cannot be written") == soon


def test_of_two_wake_ups_the_one_for_ending_processes_counts() -> None:
    """Both at 0.5 s, in either order: their poll interval grows only while they are the reason."""
    others = WakeUp(30.0, "idle").at_most(0.5, "GPUs are held by others")
    assert others.at_most(0.5, LINGERING) == WakeUp(0.5, LINGERING)
    assert others.at_most(0.5, LINGERING).at_most(0.5, "GPUs are held by others").why == LINGERING
