"""Output of ``dlapp-queue`` as lines of text; pure functions, so that every line can be tested exactly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dlapp.client.queue import code_of
from dlapp.tools.common import one_line
from dlapp.tools.display.columns import COLUMNS, Column
from dlapp.tools.display.view import NOTHING, View, age_text, fitted_table, short_ids, table
from dlapp.values.waiting import DEPENDENCY, HELD

_HEAD = ("#", "ID", "USER", "NAME", "STATE", "GPUS", "TIME", "START", "QUEUE", "PRIORITY", "WHY")
_DROPPED = ("QUEUE", "PRIORITY", "NAME", "TIME", "USER")
"""Columns that a narrow terminal omits, in this order; the first two are also omitted if they have no information."""
_MIN_WIDTHS = {"WHY": 12, "USER": 6, "NAME": 8}


def state_of(view: View) -> str:
    """Return one word for where an application is in the queue, as ``dlapp-queue --state`` has it."""
    code = code_of(view)
    if code in (HELD, DEPENDENCY):
        return code
    return "running" if view["state"] == "RUNNING" else "waiting"


def queue_lines(views: Sequence[View], now_ms: int) -> list[str]:
    """Return the queue for programs: all columns, uncut, one application a line."""
    return table(_HEAD, [tuple(_cells(view, now_ms).values()) for view in views])


def fitted_queue_lines(views: Sequence[View], now_ms: int, columns: int) -> list[str]:
    """Return the queue for a terminal of so many columns, with short ids."""
    ids = short_ids([str(view["application_id"]) for view in views])
    rows = [
        {name: one_line(text) for name, text in (_cells(view, now_ms) | {"ID": short}).items()}
        for view, short in zip(views, ids, strict=True)
    ]
    plain = {name for name in _DROPPED[:2] if {row[name] for row in rows} <= {NOTHING, "default"}}
    names = [name for name in _HEAD if name not in plain]
    lines = fitted_table(names, rows, columns, dropped=_DROPPED, least=_MIN_WIDTHS)
    if not any(line.endswith("…") for line in lines):
        return lines
    # There is no space for both code and text: the text has more information.
    for row, view in zip(rows, views, strict=True):
        row["WHY"] = one_line((view.get("waiting") or {}).get("message") or NOTHING)
    return fitted_table(names, rows, columns, dropped=_DROPPED, least=_MIN_WIDTHS)


def share_lines(shares: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return each user's share of a queue; empty if unknown."""
    if not shares:
        return []
    rows = [(one["user"], one["queue"], f"{one['share']:.1%}", one["meaning"]) for one in shares]
    return table(("USER", "QUEUE", "SHARE", ""), rows)


def start_text(start: Mapping[str, Any] | None, now_ms: int, reserved_ms: int | None = None) -> str:
    """Return the expected start of an application, from now: ``now``, ``4m to 31m``; empty if unknown.

    Args:
        reserved_ms: its latest start [ms since 1970]; None if unknown.
    """
    earliest_ms, latest_ms = (start or {}).get("earliest_ms"), (start or {}).get("latest_ms")
    if reserved_ms is not None and reserved_ms <= now_ms:
        reserved_ms = None  # a running application is about to be ended
    if earliest_ms is None or latest_ms is None:
        return "" if reserved_ms is None else f"within {age_text(reserved_ms - now_ms)}"
    if reserved_ms is not None:
        earliest_ms, latest_ms = min(earliest_ms, reserved_ms), min(latest_ms, reserved_ms)
    early, late = (age_text(at_ms - now_ms) for at_ms in (earliest_ms, latest_ms))
    if latest_ms - now_ms < 1000:
        return "now"
    return late if early == late else f"{'now' if earliest_ms - now_ms < 1000 else early} to {late}"


def _cells(view: View, now_ms: int) -> dict[str, str]:
    return {name: QUEUE_COLUMNS[name](view, now_ms) or NOTHING for name in _HEAD}


def _why(view: View, _now_ms: int) -> str:
    waiting = view.get("waiting") or {}
    return f"{waiting['code']}: {waiting['message']}" if waiting else ""


def _time(view: View, now_ms: int) -> str:
    """Return how long it has been running, or else waiting."""
    runs = state_of(view) == "running" and view["started_ms"] is not None
    return age_text(now_ms - (view["started_ms"] if runs else view["submitted_ms"]))


QUEUE_COLUMNS: Mapping[str, Column] = {
    **COLUMNS,
    "#": lambda view, _: "" if view["place"] is None else str(view["place"]),
    "PLACE": lambda view, _: "" if view["place"] is None else str(view["place"]),
    "STATE": lambda view, _: state_of(view),
    "TIME": _time,
    "START": lambda view, now_ms: start_text(view["start"], now_ms, (view.get("waiting") or {}).get("reserved_ms")),
    "CODE": COLUMNS["WHY"],
    "WHY": _why,
}
"""All columns of a queue by their names."""
