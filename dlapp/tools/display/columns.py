"""Columns of a list for ``-o`` and sorting; pure functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from dlapp.errors import UsageError
from dlapp.system.text import nearest, shown
from dlapp.tools.display.view import LIST_COLUMNS, NOTHING, View, elapsed_ms_of, list_cells, table

Column = Callable[[View, int], str]
"""Text of a column: of a view, at a time [ms since 1970]."""
FORMS = ("wide", "json", "id")
_NAMED = "name="


def read_columns(form: str, known: Mapping[str, Column] | None = None) -> tuple[str, ...]:
    """Return the columns of ``-o name=COLUMN,...``, in upper case; empty for another form.

    Args:
        known: the valid columns; None for `COLUMNS`.

    Raises:
        UsageError: there is no such form or column.
    """
    if form in ("", *FORMS):
        return ()
    if not form.startswith(_NAMED):
        raise UsageError(f"-o: {shown(form)} is none of {', '.join(FORMS)} and {_NAMED}COLUMN,...")
    return tuple(_column(name, known or COLUMNS) for name in form.removeprefix(_NAMED).split(","))


def named_lines(
    views: Sequence[View], columns: Sequence[str], now_ms: int, known: Mapping[str, Column] | None = None
) -> list[str]:
    """Return a table of these columns.

    Args:
        views: the applications, in order.
        columns: their names.
        now_ms: the time [ms since 1970].
        known: see `read_columns`.
    """
    texts = [(known or COLUMNS)[name] for name in columns]
    return table(columns, [[text(view, now_ms) or NOTHING for text in texts] for view in views])


def sorted_views(views: Sequence[View], by: str, now_ms: int) -> list[View]:
    """Return applications sorted by a column; the sort is stable.

    Args:
        by: a column, with ``-`` as prefix for descending order.

    Raises:
        UsageError: there is no such column.
    """
    name = _column(by.removeprefix("-"), COLUMNS)
    text, number = COLUMNS[name], _NUMBERS.get(name)

    def key(view: View) -> tuple[float, str]:
        return (0.0, text(view, now_ms).casefold()) if number is None else (number(view, now_ms), "")

    return sorted(views, key=key, reverse=by.startswith("-"))


def _column(name: str, known: Mapping[str, Column]) -> str:
    found = name.strip().upper()
    if found not in known:
        hint = nearest(name.strip().lower(), [one.lower() for one in known])
        raise UsageError(f"{shown(name)} is no column of a list: {hint}")
    return found


def _of_table(name: str) -> Callable[[View, int], str]:
    return lambda view, now_ms: list_cells(view, now_ms)[name]


def _field(name: str) -> Callable[[View, int], str]:
    return lambda view, _: str(view.get(name, ""))


COLUMNS: Mapping[str, Column] = {
    **{name: _of_table(name) for name in LIST_COLUMNS},
    "WHY": lambda view, _: str((view.get("waiting") or {}).get("code", "")),
    "CONTAINERS": _field("total_containers"),
    "MEMORY": _field("memory_mib"),
    "VCORES": _field("vcores"),
    "GPUS": _field("gcores"),
    "PROGRAM": _field("program"),
    "SOURCE": _field("source"),
    "COMMENT": _field("comment"),
}
"""All columns by their names: the text of each."""


_NUMBERS: Mapping[str, Callable[[View, int], float]] = {
    "ELAPSED": elapsed_ms_of,
    "STARTED": lambda view, _: float(view["started_ms"] or 0),
    "AGE": lambda view, now_ms: float(now_ms - view["submitted_ms"]),
    "PRIORITY": lambda view, _: float(view.get("priority") or 0),
    "CONTAINERS": lambda view, _: float(view.get("total_containers") or 0),
    "MEMORY": lambda view, _: float(view.get("memory_mib") or 0),
    "VCORES": lambda view, _: float(view.get("vcores") or 0),
    "GPUS": lambda view, _: float(view.get("gcores") or 0),
}
"""Columns that are sorted by a number."""
