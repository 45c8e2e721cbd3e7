"""Views as text, and lists of them: pure, so that every line can be tested to the character.

A view is taken in its JSON form (`dlapp.report.ApplicationView` through `dlapp.serialization.to_json`): to define
classes would take a command longer than all that it does with them.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

View = Mapping[str, Any]

ENDED = ("FINISHED", "FAILED", "KILLED")
NOTHING = "-"
_NAMED = re.compile(r"container (\d+) \(")
_FAILED = re.compile(
    r"container \d+ \(\S+ \d+\) failed(?: \d+ times, the last time)?: (?:exit code (\d+)|killed by signal (\d+))"
)
"""Source: dlapp.am.decisions.verdict, `failure` and `of_result`."""


def local_time(ms: int | None) -> str:
    """Local time of ``ms`` since 1970, with six decimals always; empty for None."""
    if ms is None:
        return ""
    seconds, rest_ms = divmod(ms, 1000)
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(seconds))}.{rest_ms:03d}000"


def elapsed(ms: int) -> str:
    """A span of ``ms`` as H:MM:SS.ss: rounded (half up), hours unbounded, never below zero."""
    seconds, hundredths = divmod((max(ms, 0) + 5) // 10, 100)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}.{hundredths:02d}"


def elapsed_of(view: View, now_ms: int) -> str:
    """From the submission to the end, or to ``now_ms`` while there is none."""
    end_ms = now_ms if view["finished_ms"] is None else view["finished_ms"]
    return elapsed(end_ms - view["submitted_ms"])


def ended(view: View) -> bool:
    """Whether nothing follows any more."""
    return view["state"] in ENDED


def labels(view: View) -> list[tuple[str, str]]:
    """Return what an application is sorted by, each with its name."""
    priority = view.get("priority")
    return [
        ("queue", str(view.get("queue", ""))),
        ("priority", "" if priority is None else str(priority)),
        ("project", str(view.get("project", ""))),
        ("tags", ", ".join(view.get("tags", ()))),
    ]


def exit_text(one: Mapping[str, Any]) -> str:
    """How a payload ended: its exit code, ``signal 9``, or ``-`` where it did not."""
    if one["exit_code"] is not None:
        return str(one["exit_code"])
    return NOTHING if one["signal"] is None else f"signal {one['signal']}"


def failed_container(view: View) -> Mapping[str, Any] | None:
    """Return the container that an application failed by: the one that its ApplicationMaster names, or else the first
    that failed. Others were stopped for it and ended by a signal, so an exit code counts before a signal."""
    named = _NAMED.match(view["diagnostics"])
    failed = [one for one in view["containers"] if one["exit_code"] or one["signal"] is not None]
    failed.sort(key=lambda one: (not one["exit_code"], one["finished_ms"] or 0))
    if named:
        failed = [one for one in view["containers"] if one["index"] == int(named[1])] + failed
    return failed[0] if failed else None


def payload_exit_text(view: View) -> str:
    """One exit for the whole application: 0 where it succeeded, else that of the container that failed first.

    Others are stopped for it, and end by a signal: an exit code tells more.
    """
    if not ended(view):
        return NOTHING
    if view["final_status"] == "SUCCEEDED":
        return "0"
    if (failed := failed_container(view)) is not None:
        return exit_text(failed)
    # A list of a cluster has no containers; what the ApplicationMaster told of the end names the one that decided it.
    said = None if view["containers"] else _FAILED.match(view["diagnostics"])
    return said[1] or f"signal {said[2]}" if said else NOTHING


def phase_text(view: View) -> str:
    """Where an application is: its phase, what it waits for, or how it ended."""
    if ended(view):
        return str(view["cause"] or view["final_status"].lower())
    if view["state"] == "RUNNING":
        return str(view["phase"] or "running")
    return str(view["diagnostics"] or view["phase"] or "waiting")


_HEAD = ("ID", "NAME", "USER", "STATE", "PHASE", "ELAPSED", "EXIT", "QUEUE", "PRIORITY", "PROJECT", "TAGS")


def list_lines(views: Iterable[View], now_ms: int) -> list[str]:
    """All that ``dlapp-list`` prints: a table, one application a line, in the order given."""
    rows = [
        (
            str(view["application_id"]),
            view["appname"],
            view["username"],
            view["state"],
            phase_text(view),
            elapsed_of(view, now_ms),
            payload_exit_text(view),
            *(text or NOTHING for _, text in labels(view)),
        )
        for view in views
    ]
    return table(_HEAD, rows)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns as wide as their widest cell and two apart; no blanks at a line's end."""
    from dlapp.tools.common import one_line

    lines = [tuple(map(one_line, line)) for line in (head, *rows)]
    widths = [max(map(width, column)) for column in zip(*lines, strict=True)]
    padded = [[cell + " " * (w - width(cell)) for cell, w in zip(line, widths, strict=True)] for line in lines]
    return ["  ".join(line).rstrip() for line in padded]


def width(text: str) -> int:
    """How many columns of a terminal ``text`` takes: two for a wide East Asian character, none for a combining one."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text)


def derived(view: View, now_ms: int) -> dict[str, object]:
    """What ``--json`` adds to a view: the elapsed time [ms], and the exit code that ``--wait`` would end with."""
    from dlapp.client import exit_code_of

    end_ms = now_ms if view["finished_ms"] is None else view["finished_ms"]
    return {
        "elapsed_ms": max(0, end_ms - view["submitted_ms"]),
        "exit_code": exit_code_of(view["state"], view["final_status"], view["cause"]) if ended(view) else None,
    }
