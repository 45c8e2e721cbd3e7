"""Progress display: bars and a live picture on a terminal, plain lines otherwise; all on stderr.

rich is imported only for a terminal with something to show.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dlapp.system import clock
from dlapp.tools.common import note, one_line
from dlapp.tools.display.view import View, elapsed_of, ended, phase_text

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

    from dlapp.values.report import ApplicationView

PHASES = (
    *("starting", "pulling", "unpacking", "fetching", "leasing"),
    *("waiting", "running", "storing", "releasing", "ended"),
)
"""`dlapp.values.messages.Phase`, in its order."""
NAME_WIDTH = 10
BAR_WIDTH = 30
SLOW_BYTES = 32 << 20
"""Size from which a progress bar is shown [bytes]."""


@contextlib.contextmanager
def copying_bar(what: str) -> Iterator[Callable[[int, int], None] | None]:
    """Return a callback for bytes done and the total that draws a bar; None without a terminal.

    Both may grow: the bar is removed when they are equal, and reappears if the total grows.
    """
    if not sys.stderr.isatty():
        yield None
        return
    bar: Any = None

    def progress(done: int, total: int) -> None:
        nonlocal bar
        if done >= total:
            stop()
            return
        if bar is None:
            if total < SLOW_BYTES:
                return
            bar = _bytes_bar(what, total)
        bar.update(bar.task_ids[0], completed=done, total=total)

    def stop() -> None:
        nonlocal bar
        if bar is not None:
            bar.stop()
            bar = None

    try:
        yield progress
    finally:
        stop()


def _bytes_bar(what: str, total: int) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    columns = (what, BarColumn(BAR_WIDTH), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    bar.add_task(what, total=total)
    bar.start()
    return bar


@contextlib.contextmanager
def waiting_display() -> Iterator[Callable[[View], None]]:
    """Return a callback for `Client.wait` that shows each view."""
    if not sys.stderr.isatty():
        yield PlainLines().show
        return
    from rich.console import Console
    from rich.live import Live

    display = LiveDisplay()
    with Live(display, console=Console(stderr=True), refresh_per_second=8, transient=True):
        yield display.show


@contextlib.contextmanager
def opening_display() -> Iterator[Callable[[ApplicationView], None]]:
    """Return a callback for the views of a shell that opens: on a terminal it shows how far a pull or fetch is."""
    from dlapp.values.messages import Phase
    from dlapp.values.serialization import to_json

    live: Any = None
    display = LiveDisplay()

    def show(view: ApplicationView) -> None:
        nonlocal live
        is_copying = any(
            one.phase in (Phase.PULLING, Phase.FETCHING) and one.progress is not None for one in view.containers
        )
        if not is_copying or not sys.stderr.isatty():
            stop()
            return
        if live is None:
            from rich.console import Console
            from rich.live import Live

            live = Live(display, console=Console(stderr=True), refresh_per_second=8, transient=True)
            live.start()
        display.show(to_json(view))

    def stop() -> None:
        nonlocal live
        if live is not None:
            live.stop()
            live = None

    try:
        yield show
    finally:
        stop()


class PlainLines:
    """A line for each change of state or phase: ``0:00:02.31 RUNNING running 3 of 4``."""

    def __init__(self) -> None:
        self._said = ""

    def show(self, view: View) -> None:
        if not ended(view) and (words := f"{view['state']} {phase_text(view)}") != self._said:
            self._said = words
            note(f"{elapsed_of(view, clock.now_ms())} {words}")


class LiveDisplay:
    """The live picture: the application's line, and under it a bar for each phase that has containers in it."""

    def __init__(self) -> None:
        self._view: View | None = None

    def show(self, view: View) -> None:
        self._view = view

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        if self._view is not None:
            for line in picture_lines(self._view, clock.now_ms()):
                yield Text(line, no_wrap=True, overflow="ellipsis")


def picture_lines(view: View, now_ms: int) -> list[str]:
    """Return the picture as text; below a phase is the detail of its slowest container, with its name if there are
    several.

    application_1700000000000_0042 RUNNING 0:00:12.34 running 1 of 4, 3 fetching
    fetching   ███████████░░░░░░░░░░░░░░░░░░░ 3 of 4, 38%
               worker_2: 1.2 GiB of 5.0 GiB, 310.5 MiB/s, 13 s left
    running    ███████                        1 of 4
    """
    lines = [f"{view['application_id']} {view['state']} {elapsed_of(view, now_ms)} {phase_text(view)}"]
    containers = view["containers"]
    total = max(view["total_containers"], len(containers), 1)
    for phase in PHASES:
        if there := [one for one in containers if one["phase"] == phase]:
            lines += _phase_lines(phase, there, total)
    return [one_line(line) for line in lines]


def _phase_lines(phase: str, there: Sequence[Mapping[str, Any]], total: int) -> list[str]:
    """Return a bar of the number of containers in the phase or, if they report it, of their progress; and the text
    beside it.
    """
    at_it = [one for one in there if one["finished_ms"] is None]
    shares = [one["progress"] for one in at_it if one["progress"] is not None]
    if shares:
        mean = min(max(sum(shares) / len(shares), 0.0), 1.0)
        bar, far = f"{'█' * int(BAR_WIDTH * mean):░<{BAR_WIDTH}}", f", {mean:.0%}"
    else:
        bar, far = f"{'█' * max(1, BAR_WIDTH * len(there) // total):<{BAR_WIDTH}}", ""
    lines = [f"{phase:<{NAME_WIDTH}} {bar} {len(there)} of {total}{far}"]
    if telling := [one for one in at_it if one["detail"]]:
        least = min(telling, key=lambda one: 1.0 if one["progress"] is None else one["progress"])
        who = f"{least['role']}_{least['role_index']}: " if len(there) > 1 else ""
        lines.append(f"{'':<{NAME_WIDTH}} {who}{least['detail']}")
    return lines
