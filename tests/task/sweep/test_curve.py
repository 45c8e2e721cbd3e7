"""The curve of a trial's metric: of bounded size, and never without what early stopping needs."""

from __future__ import annotations

from dlapp.task.sweep.curve import MAX_POINTS, MetricCurve


def test_steps_grow_and_the_last_report_of_a_step_counts() -> None:
    curve = MetricCurve()
    for value, step in ((0.1, 3), (0.2, 3), (0.9, 2), (0.4, 7)):
        curve.add(value, step)
    assert curve.points == [(3, 0.2), (7, 0.4)]
    assert curve.reports == 4


def test_a_report_without_a_step_has_the_next_one() -> None:
    curve = MetricCurve()
    for value in (0.5, 0.6):
        curve.add(value, None)
    curve.add(0.7, 10)
    curve.add(0.8, None)
    assert curve.points == [(1, 0.5), (2, 0.6), (10, 0.7), (11, 0.8)]


def test_a_long_curve_keeps_its_ends_its_best_and_the_first_report_at_each_milestone() -> None:
    milestones = (1, 10, 100, 1000, 5555)
    curve = MetricCurve("loss", milestones)
    values = {step: abs(step - 3333) / 1000 for step in range(1, 10_000)}
    for step, value in values.items():
        curve.add(value, step)
    points = dict(curve.points)
    assert len(points) <= MAX_POINTS
    assert {1, 3333, 9999, *milestones} <= points.keys()
    assert all(values[step] == value for step, value in points.items())
