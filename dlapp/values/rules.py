"""Rules on values: a problem is the key of a properties file and a text, and a value yields all of its problems.

A value that a program constructs refuses the first problem (`refuse`). The values of a file are constructed without
their rules (`unchecked`), and one call of `problems` on the whole then finds everything that is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from dlapp.errors import SpecError
from dlapp.value import NamedTuple, Value, fields

V = TypeVar("V", bound=Value)
Problem = tuple[str, str]
"""The key of a properties file (``resources.memory``) or its section, and what is wrong."""


class Limit(NamedTuple):
    """Limits of a number, stated once for the text of a file and for the value of a program.

    Args:
        least: the minimum.
        most: the maximum; None: no limit.
        unit: of the number in messages: empty, ``s`` or ``bytes``.
        above: the number must be above ``least``.
        whole: it must be an integer.
    """

    least: float
    most: float | None = None
    unit: str = ""
    above: bool = False
    whole: bool = True

    def problem(self, value: object) -> str:
        """Return why a value is beyond the limits, or no number; empty if it is neither."""
        kinds = int if self.whole else (int, float)
        if not isinstance(value, kinds) or isinstance(value, bool):
            return f"is {value!r}, it must be a {'whole number' if self.whole else 'number'}"
        number: float = value
        if self.above and not number > self.least:
            return f"is {self._shown(number)}, it must be above {self.least:g}"
        if not number >= self.least:
            return f"is {self._shown(number)}, the minimum is {self._shown(self.least) if self.least else 0}"
        if self.most is not None and number > self.most:
            return f"is {self._shown(number)}, the maximum is {self._shown(self.most)}"
        return ""

    def _shown(self, number: float) -> str:
        if self.unit == "bytes":
            return f"{int(number) >> 20}m" if not number % (1 << 20) else f"{number:.0f} bytes"
        if abs(number) > 1e300:
            return "too large a number"
        shown = str(number) if self.whole else f"{number:g}"
        return f"{shown} {self.unit}" if self.unit else shown


def not_text(value: object) -> str:
    """Return the problem of a value that is not text."""
    return f"is {value!r}, it must be text (str)"


def refuse(problems: Iterable[Problem]) -> None:
    """Raise SpecError with the first problem, if there is one."""
    for where, problem in problems:
        raise SpecError(where, problem)


def found_by(check: Callable[..., None], where: str, *values: object) -> Iterator[Problem]:
    """Yield the problem that a check raises as SpecError."""
    try:
        check(where, *values)
    except SpecError as refused:
        yield refused.field, refused.problem


def limit_problems(where: str, value: object, limits: Iterable[tuple[str, str, Limit]]) -> Iterator[Problem]:
    """Yield the problems of numbers in the fields of a value; None is no number to check.

    Args:
        where: section of the keys.
        value: has the fields.
        limits: for each field its name, its key and its limits.
    """
    for name, key, limit in limits:
        number = getattr(value, name)
        if number is not None and (problem := limit.problem(number)):
            yield f"{where}.{key}", problem


def unchecked(cls: type[V], /, **values: Any) -> V:
    """Return a value whose rules are not checked; fields without a value get their defaults."""
    made = object.__new__(cls)
    for name, one in fields(cls).items():
        if name in values:
            value = values[name]
        else:
            value = one.default if one.default_factory is None else one.default_factory()
        cls.record_setters[name](made, value)
    return made


def changed(value: V, /, **changes: Any) -> V:
    """Return ``value`` with some of its fields changed, whose rules are not checked."""
    return unchecked(type(value), **{name: getattr(value, name) for name in fields(type(value))} | changes)
