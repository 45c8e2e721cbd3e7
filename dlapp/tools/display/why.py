"""Output of ``dlapp-why`` as lines of text; pure functions, so that every line can be tested exactly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dlapp.system.text import counted
from dlapp.tools.display.status import headline
from dlapp.tools.display.view import NOTHING, View, elapsed, ended, local_time, table
from dlapp.values.waiting import MIN_SAMPLES

_UNITS = (("memory", "MEMORY"), ("vcores", "VCORES"), ("gcores", "GPUS"))


def why_lines(view: View, now_ms: int) -> list[str]:
    """Return why an application waits, what would end the wait, and when it may start.

    Args:
        view: the view of the application, with its complete reason.
    """
    first = f"{view['application_id']} {headline(view, now_ms)}"
    if ended(view):
        return [first, *_past_lines(view)]
    waiting = view.get("waiting")
    if not waiting:
        count = view["total_containers"]
        all_ = "its container runs" if count == 1 else f"all {count} containers run" if count else "it runs"
        return [f"{first}: {all_}"]
    lines = [first, f"why : {waiting['message']} ({waiting['code']})"]
    lines += _amount_lines(waiting)
    if (since_ms := waiting.get("since_ms")) is not None:
        lines.append(f"since : {_time(since_ms)} ({_span(now_ms - since_ms)})")
    for one in view.get("lacking", ()):
        lines.append(f"lacks : {_lacking(one)}")
    lines.append(f"change : {waiting.get('change') or 'none was found with which it would start now'}")
    if estimate := waiting.get("estimate"):
        lines.append(f"start : {estimate_text(estimate, now_ms)}")
    if (latest_ms := waiting.get("reserved_ms")) is not None and latest_ms > now_ms:
        span = f"in {_span(latest_ms - now_ms)} ({_time(latest_ms)})"
        lines.append(f"latest : {span}, if what runs takes as long as it may and nothing comes before it")
    return lines + _ahead_lines(waiting)


def estimate_text(estimate: Mapping[str, Any], now_ms: int) -> str:
    """Return the expected start of an application, and how reliable such estimates were."""
    earliest_ms, latest_ms = estimate.get("earliest_ms"), estimate.get("latest_ms")
    if earliest_ms is None or latest_ms is None:
        count = estimate.get("samples", 0)
        if count >= MIN_SAMPLES:
            return "not known: too few of the latest estimates held"
        return f"not known: an estimate needs {MIN_SAMPLES} comparable applications that waited before (so far {count})"
    early = "now" if earliest_ms - now_ms < 1000 else f"in {_span(earliest_ms - now_ms)}"
    text = f"{early} to in {_span(latest_ms - now_ms)} ({_time(earliest_ms)} to {_time(latest_ms)})"
    if (coverage := estimate.get("coverage")) is None:
        return f"{text}; how often such estimates hold is not known yet"
    return f"{text}; {coverage:.0%} of the last {estimate['samples']} such estimates held"


def _amount_lines(waiting: Mapping[str, Any]) -> list[str]:
    if waiting.get("asked") is None or not waiting.get("resource"):
        return []
    available = waiting.get("available")
    there = "" if available is None else f", available {available}"
    unit = " MiB" if waiting["resource"] == "memory" else ""
    return [f"needs : {waiting['resource']}: asked {waiting['asked']}{there}{unit}"]


def _lacking(one: Mapping[str, Any]) -> str:
    amounts = f"memory {one['memory_mib']} MiB, vcores {one['vcores']}, gcores {one['gcores']}"
    return f"{counted(one['count'], 'containers')} of {one['role']}, each with {amounts}"


def _ahead_lines(waiting: Mapping[str, Any]) -> list[str]:
    ahead = waiting.get("ahead") or ()
    if not ahead:
        return []
    rows = [
        (one["id"], one["user"] or NOTHING, *(str(one["amounts"].get(name, NOTHING)) for name, _ in _UNITS))
        for one in ahead
    ]
    return ["ahead", *table(("ID", "USER", *(head for _, head in _UNITS)), rows)]


def _past_lines(view: View) -> list[str]:
    """Return how long an ended application waited for what."""
    submitted_ms, started_ms = view["submitted_ms"], view["started_ms"]
    if started_ms is None:
        return [
            f"waited : {_span((view['finished_ms'] or submitted_ms) - submitted_ms)} in the queue; it never started"
        ]
    lines = [f"waited : {_span(started_ms - submitted_ms)} in the queue, until it was started"]
    begins = [one["started_ms"] for one in view["containers"] if one["attempt"] == 1]
    if begins:
        lines.append(f"waited : {_span(min(begins) - started_ms)} for its first container")
        if len(begins) > 1:
            lines.append(f"waited : {_span(max(begins) - started_ms)} for its last of {len(begins)} containers")
    return lines


def _span(ms: int) -> str:
    return elapsed(ms).partition(".")[0]


def _time(ms: int) -> str:
    return local_time(ms).partition(".")[0]
