"""dlapp-logs: output of the containers, merged or of one alone, optionally followed until the end."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from dlapp.errors import UsageError
from dlapp.tools.common import command, complete_id, json_option, note, read_time_ms

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from dlapp.client import Client
    from dlapp.client.logs import LogPiece
    from dlapp.values.ids import ApplicationId, ContainerId
    from dlapp.values.report import ApplicationView


@command("dlapp-logs", example="dlapp-logs -f application_1700000000000_0042")
@click.argument("application", metavar="[ID]", default="last", shell_complete=complete_id())
@click.option("-f", "--follow", is_flag=True, help="Follow until the application ends, and exit with its code.")
@click.option("--container", metavar="INDEX|ROLE_N|ID", help="Only this container: raw, its stderr to stderr.")
@click.option(
    "--rank", type=click.IntRange(min=0), metavar="N", help="As --container, the N-th of the role that decides."
)
@click.option(
    "--try", "try_number", type=click.IntRange(min=1), metavar="N", help="Each container's N-th start, not its last."
)
@click.option(
    "--generation", type=click.IntRange(min=0), metavar="N", help="The output of this generation of a gang, from 0."
)
@click.option("--trial", type=click.IntRange(min=0), metavar="N", help="The output of trial N of a sweep: raw.")
@click.option("--stdout", "only_stdout", is_flag=True, help="Only stdout.")
@click.option("--stderr", "only_stderr", is_flag=True, help="Only stderr.")
@click.option("--own", is_flag=True, help="dlapp's own log of the containers instead of the program's.")
@click.option(
    "-n",
    "--lines",
    "--tail",
    "lines",
    type=click.IntRange(min=0),
    metavar="N",
    help="Begin with the last N lines of each stream.",
)
@click.option("--since", metavar="TIME", help="Only output since: 10m, 2h, 2023-11-14T22:00.")
@click.option("--timestamps", is_flag=True, help="Begin each line with its time, which is approximate.")
@click.option("--raw", is_flag=True, help="Print every byte also to a terminal, including control sequences.")
@json_option("Print a JSON object for each line.")
def main(
    application: str,
    follow: bool,
    container: str | None,
    rank: int | None,
    try_number: int | None,
    generation: int | None,
    trial: int | None,
    only_stdout: bool,
    only_stderr: bool,
    own: bool,
    lines: int | None,
    since: str | None,
    timestamps: bool,
    raw: bool,
    as_json: bool,
) -> int:
    """Show what an application's containers print.

    All of them are merged, with "[0] " before a line that container 0 printed and "[0 err] " before one of its
    stderr, or "[trainer_0] " with the name of its role; those of a container are in the order in which they were
    printed. ID is an application's id, a unique ending of it, or 'last' (the default). On a terminal colours are
    shown, and other control sequences left out.
    """
    from dlapp.client import Client
    from dlapp.client.exit_status import exit_code

    streams = _streams(only_stdout, only_stderr, own)
    if rank is not None and container is not None:
        raise UsageError("--rank and --container exclude each other")
    if own:
        _check_own(timestamps=timestamps, since=since)
    if trial is not None and (container, rank, try_number, generation, own) != (None, None, None, None, False):
        raise UsageError("--trial excludes --container, --rank, --try, --generation and --own")
    since_ms = None if since is None else _read_since_ms(since)
    client = Client()
    application_id = client.resolve(application)
    one = None if container is None else _container(container, client, application_id)
    if rank is not None:
        one = client.index_of_rank(application_id, rank)
    waiting = _WaitingNotes()
    pieces = client.logs(
        application_id,
        container=one,
        try_number=try_number,
        generation=generation,
        trial=trial,
        streams=streams,
        last_lines=lines,
        since_ms=since_ms,
        times=timestamps or as_json,
        follow=follow,
        on_change=waiting.update,
        missing=note,
    )
    if as_json:
        _write(_json_lines(pieces))
    elif one is None and trial is None:
        _write_merged(pieces, follow=follow, timestamps=timestamps, raw=raw)
    else:
        _write_one(_timed_lines(pieces) if timestamps else pieces, both=len(streams) > 1, raw=raw)
    if not follow:
        return 0
    end = client.status(application_id)
    # If stderr is a file for one container's stderr, nothing else is written to it.
    if (one is None and trial is None) or as_json or len(streams) == 1 or sys.stderr.isatty():
        _note_end(end)
    return exit_code(end)


def _note_end(view: ApplicationView) -> None:
    from dlapp.system import clock
    from dlapp.tools.display.status import end_line
    from dlapp.values.serialization import to_json

    note(end_line(to_json(view), clock.now_ms()))


def _read_since_ms(text: str) -> int:
    from dlapp.system import clock

    return read_time_ms("--since", text, clock.now_ms())


def _check_own(*, timestamps: bool, since: str | None) -> None:
    """Reject options that need times of lines, which dlapp's own log has in the lines."""
    if timestamps:
        raise UsageError("--timestamps and --own exclude each other: lines of dlapp's own log begin with their time")
    if since is not None:
        raise UsageError("--since and --own exclude each other")


def _write_merged(pieces: Iterable[LogPiece], *, follow: bool, timestamps: bool, raw: bool) -> None:
    """Write the lines of several containers, each with the name of its container."""
    if sys.stdout.isatty() and not raw:
        _write_to_terminal(pieces, follow=follow, timestamps=timestamps)
        return
    from dlapp.client.logs import LineMerger, prefix_of, timed_prefix_of

    _write(LineMerger().merged(pieces, timed_prefix_of if timestamps else prefix_of))


def _streams(only_stdout: bool, only_stderr: bool, own: bool) -> tuple[str, ...]:
    if only_stdout + only_stderr + own > 1:
        raise UsageError("--stdout, --stderr and --own exclude each other")
    if own:
        return ("dlapp.log",)
    if only_stdout:
        return ("stdout",)
    return ("stderr",) if only_stderr else ("stdout", "stderr")


def _container(text: str, client: Client, application_id: ApplicationId) -> int | ContainerId:
    from dlapp.values.ids import ContainerId

    if text.isascii() and text.isdecimal() and len(text) < 10:
        return int(text)
    role, _, number = text.rpartition("_")
    if text.startswith("container_") or not (role and number.isascii() and number.isdecimal() and len(number) < 10):
        return ContainerId.from_text(text)
    return client.index_of(application_id, role, int(number))


class _WaitingNotes:
    """Reporter of why there is no output yet, once for each reason."""

    def __init__(self) -> None:
        self._said = ""

    def update(self, view: ApplicationView) -> None:
        from dlapp.tools.display.view import phase_text
        from dlapp.values.serialization import to_json

        if view.containers or view.state.ended:
            return
        if (line := f"{view.application_id} is {view.state.value}: {phase_text(to_json(view))}") != self._said:
            self._said = line
            note(line)


def _write(texts: Iterable[bytes]) -> None:
    for text in texts:
        sys.stdout.buffer.write(text)
        sys.stdout.buffer.flush()


def _write_to_terminal(pieces: Iterable[LogPiece], *, follow: bool, timestamps: bool) -> None:
    from dlapp.client.logs import LineMerger, prefix_of, timed_prefix_of
    from dlapp.tools.display.progress_lines import ProgressLines
    from dlapp.tools.display.terminal import terminal_line

    merger = ProgressLines() if follow else LineMerger()
    for piece in pieces:
        prefix = (timed_prefix_of if timestamps else prefix_of)(piece).decode()
        for line in merger.lines(piece):
            sys.stdout.write(f"{prefix}{terminal_line(line)}\n")
        sys.stdout.flush()


def _write_one(pieces: Iterable[LogPiece], *, both: bool, raw: bool) -> None:
    """Write one container's streams to stdout and stderr; without control sequences on a terminal, unless ``raw``."""
    from dlapp.tools.display.terminal import TerminalStream

    on_terminal: dict[str, TerminalStream] = {}
    for piece in pieces:
        stream = sys.stderr if both and piece.stream == "stderr" else sys.stdout
        if raw or not stream.isatty():
            stream.buffer.write(piece.data)
        else:
            stream.write(on_terminal.setdefault(piece.stream, TerminalStream()).feed(piece.data))
        stream.flush()


def _timed_lines(pieces: Iterable[LogPiece]) -> Iterator[LogPiece]:
    """Yield whole lines, each with its time as prefix."""
    from dlapp.client.logs import LineMerger, time_text

    merger = LineMerger()
    for piece in pieces:
        prefix = time_text(piece.time_ms)
        if text := b"".join(prefix + line + b"\n" for line in merger.lines(piece)):
            yield piece._replace(data=text)
        if not piece.data:
            yield piece


def _json_lines(pieces: Iterable[LogPiece]) -> Iterator[bytes]:
    import json

    from dlapp.client.logs import LineMerger

    merger = LineMerger()
    for piece in pieces:
        for line in merger.lines(piece):
            # Bytes that are not UTF-8 are represented as lone surrogates, so that nothing is lost.
            text = line.decode("utf-8", "surrogateescape")
            entry = {
                "container_id": str(piece.log.container_id),
                "index": piece.log.index,
                "role": piece.log.role,
                "role_index": piece.log.role_index,
                "stream": piece.stream,
                "time_ms": piece.time_ms,
                "line": text,
            }
            yield json.dumps(entry).encode() + b"\n"
