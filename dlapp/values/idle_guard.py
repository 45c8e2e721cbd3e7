"""Idle guard, which detects GPUs that an application holds but does not use: its settings and their text form."""

from __future__ import annotations

from enum import Enum

from dlapp.errors import SpecError
from dlapp.system.text import read_choice, read_duration_s, shown
from dlapp.value import Value
from dlapp.values.usage import report_period_s

OFF = "off"
_MIN_REPORTS = 3


class IdleAction(Enum):
    """Action when GPUs are idle, in addition to the display of the idle state."""

    WARN = "warn"
    """No further action."""
    NOTIFY = "notify"
    """The user is notified."""
    STOP = "stop"
    """The application is soft-killed, if all of its GPUs are idle."""


class IdleGuard(Value):
    """Settings of the guard.

    Args:
        utilisation: a GPU below it is idle; above 0 and below 1.
        window_s: how long all GPUs of a container must be idle.
    """

    utilisation: float
    window_s: float
    action: IdleAction

    def __post_init__(self) -> None:
        if not 0 < self.utilisation < 1:
            raise SpecError("idle_guard", f"the utilisation is {self.utilisation:g}, it must be above 0 and below 1")
        self.check_window(1)

    def check_window(self, containers: int) -> None:
        """Refuse a window in which containers report their usage less than three times. Raises SpecError.

        Args:
            containers: number of the application's containers, which determines how often they report.
        """
        if not self.window_s >= (least_s := least_window_s(containers)):
            problem = f"the window is {self.window_s:g} s, the minimum is {least_s:g} s"
            if least_s > least_window_s(1):
                problem += f" with {containers} containers, which report their use less often"
            raise SpecError("idle_guard", problem)

    def __str__(self) -> str:
        """Return the condition as text: ``below 5 % for 1800 s``."""
        return f"{self.limit} for {self.window_s:g} s"

    @property
    def limit(self) -> str:
        """Return the utilisation as text: ``below 5 %``."""
        return f"below {self.utilisation * 100:g} %"


def least_window_s(containers: int) -> float:
    """Return the shortest window for a number of containers [s]."""
    return _MIN_REPORTS * report_period_s(containers)


def read_idle_guard(text: str) -> IdleGuard | None:
    """Parse the settings of a guard: ``0.05, 30m, stop`` or ``5%, 30m, stop``; return None for ``off``.

    Raises:
        ValueError: the text is invalid.
    """
    if text == OFF:
        return None
    parts = [one.strip() for one in text.split(",")]
    if len(parts) != 3:
        raise ValueError(f"{shown(text)} is not UTILISATION,WINDOW,ACTION, such as 5%,30m,warn (or off)")
    share, window, action = parts
    try:
        utilisation = float(share.removesuffix("%")) / (100 if share.endswith("%") else 1)
    except ValueError:
        raise ValueError(f"{shown(share)} is not a utilisation, such as 5% or 0.05") from None
    window_s = read_duration_s(window)
    try:
        return IdleGuard(utilisation, window_s, IdleAction(read_choice(action, [one.value for one in IdleAction])))
    except SpecError as refused:
        raise ValueError(refused.problem) from None
