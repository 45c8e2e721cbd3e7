"""Curves of the containers' resource usage over time (`dlapp.values.usage.UsageHistory`): of all together, and of each
one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from dlapp.pages.curves import Curve, CurvePoint
from dlapp.values.report import ApplicationView
from dlapp.values.usage import ContainerSeries

_POINTS, _MIN_POINTS, _ALL_POINTS = 120, 12, 24_000
"""Maximum and minimum number of points of a curve, and the maximum of all containers' curves: with it a page on 200
containers stays below 2 MB."""
_MAX_VALUE = 1e15
"""Limit of values in a curve: a payload may report larger ones, or NaN, which cannot be drawn beside others."""
_DRAWN = 200
"""Maximum number of containers with curves of their own."""
_GPU = re.compile(r"gpu(\d{1,3})\.(\w+)")


class _Quantity(NamedTuple):
    title: str
    unit: str
    scale: float = 1.0
    full: float | None = None


_QUANTITIES = {
    "cpu_cores": _Quantity("CPU", "cores"),
    "memory_mib": _Quantity("Memory", "GiB", 1 / 1024),
    "read_bytes_s": _Quantity("Read", "MiB/s", 2.0**-20),
    "written_bytes_s": _Quantity("Written", "MiB/s", 2.0**-20),
    "received_bytes_s": _Quantity("Received", "MiB/s", 2.0**-20),
    "sent_bytes_s": _Quantity("Sent", "MiB/s", 2.0**-20),
    "input_wait": _Quantity("Waiting for input", "%", 100.0, 100.0),
    "progress": _Quantity("Progress", "%", 100.0, 100.0),
}
_OF_GPU = {
    "utilisation": _Quantity("utilisation", "%", 100.0, 100.0),
    "memory_mib": _Quantity("memory", "GiB", 1 / 1024),
    "power_w": _Quantity("power", "W"),
    "temperature_c": _Quantity("temperature", "°C"),
    "activity": _Quantity("activity", "%", 100.0, 100.0),
}
_TOTALS = ("cpu_cores", "memory_mib")


def time_axis(view: ApplicationView, now_ms: int) -> tuple[int, int]:
    """Return the begin and the end of the time axis of an application's curves [ms since 1970]."""
    begin_ms = view.started_ms or view.submitted_ms or now_ms
    return begin_ms, max(begin_ms + 1000, view.finished_ms or now_ms)


def usage_curves(containers: Sequence[ContainerSeries], begin_ms: int, end_ms: int) -> dict[str, list[Curve]]:
    """Return the curves for `dlapp.pages.page.Extras`; those of all containers together have no name. Begin and end are
    those of the `time_axis`.
    """
    shown = sorted(containers, key=lambda one: (one.index, one.attempt))[:_DRAWN]
    most = max(_MIN_POINTS, min(_POINTS, _ALL_POINTS // max(1, sum(len(one.columns) for one in shown))))
    found = {"": _totals(containers, begin_ms, end_ms, _POINTS)} if len(containers) > 1 else {}
    for one in shown:
        name = f"container {one.index}" + (f", try {one.attempt}" if one.attempt > 1 else "")
        if curves := list(_of_container(one, begin_ms, most)):
            found["" if len(containers) == 1 else name] = curves
    return found


def _of_container(one: ContainerSeries, begin_ms: int, most: int) -> Iterator[Curve]:
    for column, values in one.columns.items():
        quantity = _quantity(column)
        if quantity is not None:
            points = _thinned(list(_points(one, values, begin_ms, quantity.scale)), most)
            yield Curve(quantity.title, quantity.unit, points, quantity.full)


def _quantity(column: str) -> _Quantity | None:
    if (found := _QUANTITIES.get(column)) is not None:
        return found
    if (gpu := _GPU.fullmatch(column)) is not None and (of_gpu := _OF_GPU.get(gpu[2])) is not None:
        return of_gpu._replace(title=f"GPU {gpu[1]} {of_gpu.title}")
    kind, _, name = column.partition(".")
    return _Quantity(name, "") if kind == "metric" and name else None


def _points(
    one: ContainerSeries, values: Mapping[str, Sequence[Any]], begin_ms: int, scale: float
) -> Iterator[CurvePoint]:
    mean, least, most = (values.get(name, ()) for name in ("mean", "min", "max"))
    for place in range(len(mean)):
        at_s = (one.start_ms + (place + 0.5) * one.step_ms - begin_ms) / 1000
        yield CurvePoint(at_s, *(_scaled(each, place, scale) for each in (mean, least, most)))


def _scaled(values: Sequence[Any], place: int, scale: float) -> float | None:
    value = values[place] if place < len(values) else None
    return None if value is None or not abs(value) < _MAX_VALUE else float(value * scale)


def _thinned(points: list[CurvePoint], most: int) -> list[CurvePoint]:
    """Return at most so many points, each of as many neighbours."""
    size = -(-len(points) // most)
    return [_merged(points[at : at + size]) for at in range(0, len(points), size)] if size > 1 else points


def _merged(points: Sequence[CurvePoint]) -> CurvePoint:
    known = [one.mean for one in points if one.mean is not None]
    least = [one.least for one in points if one.least is not None]
    most = [one.most for one in points if one.most is not None]
    return CurvePoint(
        sum(one.at_s for one in points) / len(points),
        sum(known) / len(known) if known else None,
        min(least, default=None),
        max(most, default=None),
    )


def _totals(containers: Sequence[ContainerSeries], begin_ms: int, end_ms: int, most: int) -> list[Curve]:
    """Return the sums over all containers of which a value is known at a time, and the mean of all GPUs."""
    step_ms = max(1.0, (end_ms - begin_ms) / most)
    times_ms = [begin_ms + (place + 0.5) * step_ms for place in range(most)]
    curves = []
    for column in _TOTALS:
        quantity = _QUANTITIES[column]
        known = _known_at(times_ms, [(one, one.columns[column]) for one in containers if column in one.columns])
        sums = [sum(values) * quantity.scale if values else None for values in known]
        points = [CurvePoint((at - begin_ms) / 1000, each) for at, each in zip(times_ms, sums, strict=True)]
        curves.append(Curve(f"{quantity.title} of all containers", quantity.unit, points))
    gpus = [(one, values) for one in containers for name, values in one.columns.items() if _is_utilisation(name)]
    points = []
    for at_ms, values in zip(times_ms, _known_at(times_ms, gpus), strict=True):
        shares = [100 * value for value in values]
        mean = sum(shares) / len(shares) if shares else None
        points.append(CurvePoint((at_ms - begin_ms) / 1000, mean, min(shares, default=None), max(shares, default=None)))
    curves.append(Curve("Utilisation of all GPUs", "%", points, 100.0))
    return curves


def _is_utilisation(column: str) -> bool:
    gpu = _GPU.fullmatch(column)
    return gpu is not None and gpu[2] == "utilisation"


def _known_at(
    times_ms: Sequence[float], columns: Sequence[tuple[ContainerSeries, Mapping[str, Any]]]
) -> Iterator[list[float]]:
    """Yield for each time the means of a column that are known then."""
    for at_ms in times_ms:
        found = []
        for one, values in columns:
            mean, place = values.get("mean", ()), int((at_ms - one.start_ms) // one.step_ms)
            value = _scaled(mean, place, 1.0) if place >= 0 else None
            if value is not None:
                found.append(value)
        yield found
