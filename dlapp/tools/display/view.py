"""Views as text, and lists of them; pure functions, so that every line can be tested exactly.

A view is taken in its JSON form (`dlapp.values.report.ApplicationView` through `dlapp.values.serialization.to_json`):
to define classes would take a command longer than all that it does with them.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dlapp.tools.common import one_line
from dlapp.tools.display.receipt import cost_text

View = Mapping[str, Any]

ENDED = ("FINISHED", "FAILED", "KILLED")
NOTHING = "-"
_YEAR_MS = 300 * 86_400_000
"""Age from which a date is shown with its year in place of its time."""
_MIN_STAMP_DIGITS = 4
"""Minimum number of digits of the timestamp in a short id whose number is not unique."""
_NAMED = re.compile(r"container (\d+) \(")
_FAILED = re.compile(
    r"container \d+ \(\S+ \d+\) failed(?: \d+ times, the last time)?: (?:exit code (\d+)|killed by signal (\d+))"
)
"""Source: dlapp.am.decisions.assessment, `failure` and `of_result`."""


def local_time(ms: int | None) -> str:
    """Return the local time of ``ms`` since 1970, always with six decimals; empty for None."""
    if ms is None:
        return ""
    seconds, rest_ms = divmod(ms, 1000)
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(seconds))}.{rest_ms:03d}000"


def elapsed(ms: int) -> str:
    """Return a duration of ``ms`` as H:MM:SS.ss: rounded (half up), unlimited hours, never negative."""
    seconds, hundredths = divmod((max(ms, 0) + 5) // 10, 100)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}.{hundredths:02d}"


def elapsed_ms_of(view: View, now_ms: int) -> int:
    """Return the time from the submission to the end, or to ``now_ms`` if it has not ended [ms].

    It is 0 where the time of the submission is not known: YARN hides it from users without access to the application.
    """
    if not view["submitted_ms"]:
        return 0
    end_ms = now_ms if view["finished_ms"] is None else view["finished_ms"]
    return int(end_ms - view["submitted_ms"])


def elapsed_of(view: View, now_ms: int) -> str:
    """Return `elapsed_ms_of` as text."""
    return elapsed(elapsed_ms_of(view, now_ms))


def ended(view: View) -> bool:
    """Return True for a final state."""
    return view["state"] in ENDED


def labels(view: View) -> list[tuple[str, str]]:
    """Return queue, priority, project and tags of an application, each with its name."""
    priority = view.get("priority")
    return [
        ("queue", str(view.get("queue", ""))),
        ("priority", "" if priority is None else str(priority)),
        ("project", str(view.get("project", ""))),
        ("tags", ", ".join(view.get("tags", ()))),
    ]


def exit_text(one: Mapping[str, Any]) -> str:
    """Return the end of a payload: its exit code, ``signal 9``, or ``-`` if it has not ended."""
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
    """One exit for the whole application: that of the container that failed first, or 0 if it succeeded or every
    script exited with 0.

    Others are stopped because of it, and end by a signal: an exit code has more information.
    """
    if not ended(view):
        return NOTHING
    if view["final_status"] == "SUCCEEDED":
        return "0"
    if (failed := failed_container(view)) is not None:
        return exit_text(failed)
    if view["containers"]:  # a soft-killed script may exit with 0
        return "0" if all(one["exit_code"] == 0 for one in view["containers"]) else NOTHING
    # A list of a cluster has no containers; the ApplicationMaster's diagnostics name the container that decided it.
    said = _FAILED.match(view["diagnostics"])
    return said[1] or f"signal {said[2]}" if said else NOTHING


def phase_text(view: View) -> str:
    """Return the state of an application: its phase, what it waits for, or how it ended."""
    if ended(view):
        unstored = ", output unstored" if view.get("unstored") else ""
        return str(view["cause"] or view["final_status"].lower()) + unstored
    waiting = view.get("waiting") or {}
    message, phase = str(waiting.get("message", "")), str(view["phase"] or "running")
    if view["state"] == "RUNNING":
        # Most of what its own ApplicationMaster reports is in the phase.
        is_more = bool(message) and waiting["code"] != "starting" and message not in phase
        return f"{phase}: {message}" if is_more else phase
    return message or str(view["diagnostics"] or view["phase"] or "waiting")


_HEAD = ("ID", "NAME", "USER", "STATE", "PHASE", "ELAPSED", "EXIT", "QUEUE", "PRIORITY", "PROJECT", "TAGS")
LIST_COLUMNS = (*_HEAD, "STARTED", "AGE", "COST")
"""Columns of `list_cells`."""
_ON_TERMINAL = ("ID", "NAME", "USER", "STATE", "PHASE", "STARTED", "AGE", *_HEAD[5:], "COST")
_DROPPED = ("COST", "TAGS", "PROJECT", "PRIORITY", "QUEUE", "ELAPSED", "STARTED", "USER", "STATE")
"""Columns that a narrow terminal omits, in this order; the first five are also omitted if they have no information."""
_MIN_REMAINING_WIDTHS = {"COST": 8}
"""Columns that are shown only if this width remains for cells that may be cut."""
_MIN_WIDTHS = {"NAME": 8, "PHASE": 11, "USER": 8}
"""Columns whose cells may be cut, and their minimum width. The first ones get the remaining width first."""


def list_lines(views: Iterable[View], now_ms: int) -> list[str]:
    """Return the complete output of ``dlapp-list`` for programs: a table, one application per line, in the given
    order.
    """
    return table(LIST_COLUMNS, [tuple(list_cells(view, now_ms).values()) for view in views])


def list_cells(view: View, now_ms: int) -> dict[str, str]:
    """Return the cells of an application by the columns that ``dlapp-list`` prints for programs."""
    started = _start_text(view["started_ms"], "%Y-%m-%dT%H:%M:%S")
    age, cost = age_text(now_ms - view["submitted_ms"]), cost_text(view.get("receipt")) or NOTHING
    return {**_cells(view, now_ms), "STARTED": started, "AGE": age, "COST": cost}


def fitted_list_lines(views: Sequence[View], now_ms: int, columns: int, *, users: bool) -> list[str]:
    """Return the complete output of ``dlapp-list`` for a terminal: short ids, and only what fits its width.

    Args:
        views: the applications, in order.
        now_ms: the time [ms since 1970].
        columns: width of the terminal.
        users: whether to show the owners.
    """
    ids = short_ids([str(view["application_id"]) for view in views])
    rows = []
    for view, short in zip(views, ids, strict=True):
        age_ms, started_ms = now_ms - view["submitted_ms"], view["started_ms"]
        form = "%m-%d %H:%M" if age_ms < _YEAR_MS else "%Y-%m-%d"
        cost = cost_text(view.get("receipt")) or NOTHING
        more = {"ID": short, "STARTED": _start_text(started_ms, form), "AGE": age_text(age_ms), "COST": cost}
        rows.append({name: one_line(text) for name, text in {**_cells(view, now_ms), **more}.items()})
    plain = {name for name in _DROPPED[:5] if {row[name] for row in rows} <= {NOTHING, "default"}}
    names = [name for name in _ON_TERMINAL if name not in plain and (users or name != "USER")]
    return fitted_table(names, rows, columns, dropped=_DROPPED, least=_MIN_WIDTHS)


def fitted_table(
    names: Sequence[str],
    rows: Sequence[Mapping[str, str]],
    columns: int,
    *,
    dropped: Sequence[str],
    least: Mapping[str, int],
) -> list[str]:
    """Return a table that fits a terminal.

    Args:
        names: the names of its columns.
        rows: the cells of each line, by column.
        columns: width of the terminal.
        dropped: columns to drop on a narrow terminal, in this order.
        least: columns whose cells may be cut, and their minimum width; the first ones get the remaining space first.
    """
    natural = {name: max(width(name), *(width(row[name]) for row in rows), 0) for name in names}
    widths = {name: min(natural[name], least.get(name, natural[name])) for name in names}
    shown = list(names)

    def remaining_width() -> int:
        return columns - sum(widths[name] for name in shown) - 2 * (len(shown) - 1)

    for name in dropped:
        if remaining_width() < _MIN_REMAINING_WIDTHS.get(name, 0) and name in shown:
            shown.remove(name)
    for name in least:
        if name in shown:
            widths[name] += min(natural[name] - widths[name], max(0, remaining_width()))
    return table(shown, [[truncated(row[name], widths[name]) for name in shown] for row in rows])


def short_enough(lines: Sequence[str], rows: int) -> bool:
    """Return whether lines fit a terminal with this number of rows, plus a line for the prompt; 0 if its size is
    unknown.
    """
    return not rows or len(lines) < rows


def short_ids(ids: Sequence[str]) -> list[str]:
    """Return the number of each id; if another id ends with the number, with the preceding digits."""
    numbers = [one.rpartition("_")[2] for one in ids]
    alike: dict[str, list[str]] = {number: [] for number in numbers}
    for one, number in zip(ids, numbers, strict=True):
        for start in range(len(number)):
            if (others := alike.get(number[start:])) is not None:
                others.append(one)
    return [_short_id(one, number, alike[number]) for one, number in zip(ids, numbers, strict=True)]


def _short_id(application_id: str, number: str, alike: Sequence[str]) -> str:
    """Return the shortest suffix of an id that is unique, consisting of its number and preceding digits; ``alike`` are
    all ids that end with this number.
    """
    if len(alike) == 1:
        return number
    for length in range(len(number) + 1 + _MIN_STAMP_DIGITS, len(application_id)):
        ending = application_id[-length:]
        if sum(one.endswith(ending) for one in alike) == 1:
            return ending
    return application_id


def _cells(view: View, now_ms: int) -> dict[str, str]:
    """Return the cells of an application by the columns of `_HEAD`."""
    texts = (
        str(view["application_id"]),
        view["appname"],
        view["username"],
        view["state"],
        phase_text(view),
        elapsed_of(view, now_ms),
        payload_exit_text(view),
        *(text or NOTHING for _, text in labels(view)),
    )
    return dict(zip(_HEAD, texts, strict=True))


def _start_text(started_ms: int | None, form: str) -> str:
    return NOTHING if started_ms is None else time.strftime(form, time.localtime(started_ms // 1000))


def age_text(age_ms: int) -> str:
    """Return the time since a submission in its largest unit: ``45s``, ``5m``, ``3h``, ``12d``."""
    seconds = max(0, age_ms) // 1000
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def state_word(view: View) -> str:
    """Return one word for where an application is or how it ended, as ``dlapp-list --state`` has it."""
    if not ended(view):
        return "running" if view["state"] == "RUNNING" else "waiting"
    return str(view["cause"] or view["final_status"].lower()).replace(" ", "-")


def truncated(text: str, columns: int) -> str:
    """Return a text cut to a number of terminal columns; ``…`` replaces the removed part."""
    if width(text) <= columns:
        return text
    kept = ""
    for character in text:
        if width(kept + character) >= columns:
            break
        kept += character
    return kept + "…"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Align columns to their widest cell, two apart; no trailing blanks."""
    lines = [tuple(map(one_line, line)) for line in (head, *rows)]
    widths = [max(map(width, column)) for column in zip(*lines, strict=True)]
    padded = [[cell + " " * (w - width(cell)) for cell, w in zip(line, widths, strict=True)] for line in lines]
    return ["  ".join(line).rstrip() for line in padded]


def width(text: str) -> int:
    """Return the terminal columns of ``text``: two for a wide East Asian character, none for a combining one."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text)


def derived(view: View, now_ms: int) -> dict[str, object]:
    """Return what ``--json`` adds to a view: the elapsed time [ms], and the exit code that ``--wait`` would end
    with."""
    from dlapp.client.exit_status import exit_code_of

    return {
        "elapsed_ms": max(0, elapsed_ms_of(view, now_ms)),
        "exit_code": exit_code_of(view["state"], view["final_status"], view["cause"]) if ended(view) else None,
    }
