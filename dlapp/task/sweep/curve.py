"""Curve of a trial's metric over its steps, of bounded size."""

from __future__ import annotations

from collections.abc import Sequence

MAX_POINTS = 128
"""Maximum number of reported points of a trial; a report of 10 trials then has about 30 KB."""


class MetricCurve:
    """Curve of a metric, as one trial has reported it.

    Steps increase: of several reports of one step the last one counts, and reports of earlier steps are only counted. A
    report without a step gets the next one. Beyond `MAX_POINTS` points every other one is dropped, except the last
    one, the best ones, and the first one at or after a milestone, which early stopping needs.

    Args:
        milestones: steps whose first point is never dropped.

    Attributes:
        points: step and value of each.
        reports: number of reports.
        problem: why a report was rejected; empty if none was.
    """

    def __init__(self, metric: str = "", milestones: Sequence[int] = ()) -> None:
        self.metric = metric
        self._milestones = sorted(milestones)
        self.points: list[tuple[int, float]] = []
        self.reports = 0
        self.problem = ""

    def add(self, value: float, step: int | None) -> None:
        """Add a report."""
        self.reports += 1
        last = self.points[-1][0] if self.points else -1
        if step is None:
            step = last + 1 if self.points else 1
        if step == last:
            self.points[-1] = step, value
        elif step > last:
            self.points.append((step, value))
            if len(self.points) > MAX_POINTS:
                self._downsample()

    def _downsample(self) -> None:
        values = [value for _, value in self.points]
        kept = {0, len(values) - 1, values.index(min(values)), values.index(max(values))}
        at = 0
        for milestone in self._milestones:
            while at < len(self.points) and self.points[at][0] < milestone:
                at += 1
            kept.add(min(at, len(values) - 1))
        self.points = [point for place, point in enumerate(self.points) if place % 2 == 0 or place in kept]
