"""What we claim about speed and size, each claim measured next to its yardstick in the same run.

``python -m bench cli`` runs bench/cli.py: its ``rows()`` measures and gives a `Row` for each figure. A figure is a
ratio, so that it means the same on a fast machine and on a slow one.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True)
class Row:
    """One figure.

    Args:
        name: what it is called in tables and in bench/results.
        ratio: ours over the yardstick's, or the other way round where more is better.
        goal: where the ratio should be.
        better: ``lower`` or ``higher``: on which side of the goal is good.
        conditions: what was measured and how, with units in the names.
    """

    name: str
    ratio: float
    goal: float
    better: Literal["lower", "higher"]
    conditions: dict[str, Any] = field(default_factory=dict)

    @property
    def met(self) -> bool:
        """True if the goal is reached."""
        return self.ratio <= self.goal if self.better == "lower" else self.ratio >= self.goal


def alternately(measures: Sequence[Callable[[], float]], rounds: int) -> list[list[float]]:
    """Take each measure once a round, all in turn, so that a slow minute of the machine strikes all alike.

    Returns:
        One list for each measure, ``rounds`` long; a first round before these is thrown away (cold caches).
    """
    taken = [[measure() for measure in measures] for _ in range(rounds + 1)][1:]
    return [list(column) for column in zip(*taken, strict=True)]


def median_ratio(ours: Sequence[float], yardstick: Sequence[float]) -> float:
    """The ratio of the medians."""
    return statistics.median(ours) / statistics.median(yardstick)
