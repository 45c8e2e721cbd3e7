"""Use of one container over time, in bounded memory.

Time is cut into buckets of one width; when there are too many, each two become one of twice the width. A bucket has the
mean of what was reported in it, of the columns in `SPREAD` also the least and the most. NaN stands for what is not
known.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from typing import Any

from dlapp.values.usage import USAGE_COLUMNS_WITH_RANGE as SPREAD

NAN = math.nan
MAX_COLUMNS = 64
"""A container with eight GPUs has 41, with their activity 49, and more for the metrics of its payload."""


_Column = tuple["array[float]", ...]
"""The buckets of one column: means, and, if it has a range, least and most."""
_KEYS = ("mean", "min", "max")
_CHOICES = (min, max)


class UsageSeries:
    """The series of one container.

    Args:
        start_ms: the begin of the first bucket [ms since 1970].
        step_ms: width of a bucket at first [ms].
        most: how many buckets there may be; an even number.

    Attributes:
        gpus: as in `dlapp.values.usage.ContainerSeries`.
    """

    __slots__ = ("_columns", "_counts", "_most", "gpus", "start_ms", "step_ms")

    def __init__(self, start_ms: int, step_ms: int, most: int) -> None:
        self.start_ms, self.step_ms, self._most = start_ms, max(1, step_ms), most
        self._counts = array("I")
        self._columns: dict[str, _Column] = {}
        self.gpus: dict[str, str] = {}

    @classmethod
    def from_json(cls, data: Mapping[str, Any], most: int) -> UsageSeries:
        """Return the series that an earlier attempt wrote; of its buckets each counts as one report.

        Raises:
            TypeError, ValueError, LookupError, OverflowError: it is not one.
        """
        series = cls(int(data["start_ms"]), int(data["step_ms"]), most)
        series.gpus = {str(name): str(uuid) for name, uuid in dict(data.get("gpus", {})).items()}
        for name, column in dict(data["columns"]).items():
            series._grow(len(column["mean"]))
            if (found := series._column(str(name))) is None:
                continue
            for key, values in zip(_KEYS, found, strict=False):
                for place, one in enumerate(column[key][: len(values)]):
                    values[place] = NAN if one is None else float(one)
        series._counts = array("I", [1] * len(series._counts))
        series.downsample(most)
        return series

    def add(self, at_ms: int, values: Mapping[str, float | None]) -> None:
        """Add what was measured at a time [ms since 1970], as column -> value; None: not known. An earlier time than
        the last one counts as the last one.
        """
        while (place := (at_ms - self.start_ms) // self.step_ms) >= self._most:
            if place >= 1 << 20:
                return  # a clock that stepped by years
            self._halve()
        place = max(place, len(self._counts) - 1)
        self._grow(place + 1)
        count = self._counts[place]
        self._counts[place] = count + 1
        for name, value in values.items():
            if value is None or not (column := self._column(name)):
                continue
            mean, *bounds = column
            mean[place] = _mean(mean[place], count, value, 1)
            for choose, bound in zip(_CHOICES, bounds, strict=False):
                bound[place] = choose(value, bound[place]) if count else value

    def __len__(self) -> int:
        return len(self._counts)

    def downsample(self, most: int) -> None:
        """Keep at most so many buckets; for a container that has ended."""
        while len(self._counts) > max(1, most):
            self._halve()

    def as_json(self) -> dict[str, Any]:
        """Return its JSON form (`dlapp.values.usage.ContainerSeries`)."""
        columns = {
            name: dict(zip(_KEYS, map(_numbers, column), strict=False)) for name, column in self._columns.items()
        }
        gpus = {"gpus": self.gpus} if self.gpus else {}
        return {"start_ms": self.start_ms, "step_ms": self.step_ms, **gpus, "columns": columns}

    def _column(self, name: str) -> _Column | None:
        if (found := self._columns.get(name)) is None and len(self._columns) < MAX_COLUMNS:
            keys = _KEYS if name.rpartition(".")[2] in SPREAD else _KEYS[:1]
            found = self._columns[name] = tuple(array("f", [NAN]) * len(self._counts) for _ in keys)
        return found

    def _grow(self, count: int) -> None:
        more = count - len(self._counts)
        if more > 0:
            self._counts.extend([0] * more)
            for column in self._columns.values():
                for values in column:
                    values.extend([NAN] * more)

    def _halve(self) -> None:
        """Make one bucket of each two."""
        counts = self._counts
        if len(counts) % 2:
            self._grow(len(counts) + 1)
        pairs = range(0, len(counts), 2)
        for name, (mean, *bounds) in self._columns.items():
            halves = [array("f", (_mean(mean[at], counts[at], mean[at + 1], counts[at + 1]) for at in pairs))]
            for choose, bound in zip(_CHOICES, bounds, strict=False):
                halves.append(array("f", (_choose(choose, bound[at], bound[at + 1]) for at in pairs)))
            self._columns[name] = tuple(halves)
        self._counts = array("I", (counts[at] + counts[at + 1] for at in pairs))
        self.step_ms *= 2


def _mean(one: float, count: int, other: float, other_count: int) -> float:
    """Return the mean of two means of so many values each; one that is not known does not count."""
    if not count or one != one:
        return other
    if not other_count or other != other:
        return one
    return (one * count + other * other_count) / (count + other_count)


def _choose(choose: Any, one: float, other: float) -> float:
    if one != one:
        return other
    return one if other != other else float(choose(one, other))


def _numbers(values: array[float]) -> list[float | None]:
    """Return values with four digits, which is more than they are worth; whole ones as integers, as these are short."""
    rounded = [float(f"{one:.4g}") for one in values]
    return [None if one != one else int(one) if one.is_integer() else one for one in rounded]
