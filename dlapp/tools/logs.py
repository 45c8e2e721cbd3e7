"""dlapp-logs: what the containers print, merged or one alone, and on request until the end."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from dlapp.errors import UsageError
from dlapp.tools.common import command, json_option, note, run

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from dlapp.client.logs import LogPiece
    from dlapp.ids import ContainerId
    from dlapp.report import ApplicationView


@command("dlapp-logs", example="dlapp-logs -f application_1700000000000_0042")
@click.argument("application", metavar="[ID]", default="last")
@click.option("-f", "--follow", is_flag=True, help="Go on until the application ends, then end with its exit code.")
@click.option("--container", metavar="INDEX|ID", help="Only this container: raw, its stderr to stderr.")
@click.option("--stdout", "only_stdout", is_flag=True, help="Only what it printed to stdout.")
@click.option("--stderr", "only_stderr", is_flag=True, help="Only what it printed to stderr.")
@click.option("--own", is_flag=True, help="dlapp's own log of the containers instead of the program's.")
@click.option("-n", "--lines", type=click.IntRange(min=0), metavar="N", help="Begin with the last N lines of each.")
@json_option("Print a JSON object for each line.")
def logs(
    application: str,
    follow: bool,
    container: str | None,
    only_stdout: bool,
    only_stderr: bool,
    own: bool,
    lines: int | None,
    as_json: bool,
) -> int:
    """Show what an application's containers print.

    All of them are merged, with "[0] " before a line that container 0 printed and "[0 err] " before one of its
    stderr. ID is an application's id, its ending where that is unique, or 'last' (so it is without ID).
    """
    from dlapp.client import Client, exit_code

    streams = _streams(only_stdout, only_stderr, own)
    one = None if container is None else _container(container)
    client = Client()
    application_id = client.resolve(application)
    waiting = _WaitingNotes()
    pieces = client.logs(
        application_id,
        container=one,
        streams=streams,
        last_lines=lines,
        follow=follow,
        on_change=waiting.look,
        missing=note,
    )
    if as_json:
        _write(_json_lines(pieces))
    elif one is None:
        from dlapp.client.logs import LineMerger

        _write(LineMerger().merged(pieces))
    else:
        _write_raw(pieces, both=len(streams) > 1)
    return exit_code(client.status(application_id)) if follow else 0


def _streams(only_stdout: bool, only_stderr: bool, own: bool) -> tuple[str, ...]:
    if only_stdout + only_stderr + own > 1:
        raise UsageError("--stdout, --stderr and --own exclude each other")
    if own:
        return ("dlapp.log",)
    if only_stdout:
        return ("stdout",)
    return ("stderr",) if only_stderr else ("stdout", "stderr")


def _container(text: str) -> int | ContainerId:
    from dlapp.ids import ContainerId

    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else ContainerId.from_text(text)


class _WaitingNotes:
    """Says once for each reason why there is nothing to show yet."""

    def __init__(self) -> None:
        self._said = ""

    def look(self, view: ApplicationView) -> None:
        from dlapp.jsonform import to_json
        from dlapp.tools.show import phase_text

        if view.containers or view.state.ended:
            return
        if (line := f"{view.application_id} is {view.state.value}: {phase_text(to_json(view))}") != self._said:
            self._said = line
            note(line)


def _write(texts: Iterable[bytes]) -> None:
    for text in texts:
        sys.stdout.buffer.write(text)
        sys.stdout.buffer.flush()


def _write_raw(pieces: Iterable[LogPiece], *, both: bool) -> None:
    for piece in pieces:
        stream = sys.stderr if both and piece.stream == "stderr" else sys.stdout
        stream.buffer.write(piece.data)
        stream.buffer.flush()


def _json_lines(pieces: Iterable[LogPiece]) -> Iterator[bytes]:
    import json

    from dlapp.client.logs import LineMerger

    merger = LineMerger()
    for piece in pieces:
        for line in merger.lines(piece):
            # Bytes that are no UTF-8 travel as lone surrogates, so that nothing is lost.
            text = line.decode("utf-8", "surrogateescape")
            entry = {
                "container_id": str(piece.log.container_id),
                "index": piece.log.index,
                "role": piece.log.role,
                "role_index": piece.log.role_index,
                "stream": piece.stream,
                "line": text,
            }
            yield json.dumps(entry).encode() + b"\n"


def main() -> None:
    """The console script."""
    run(logs)


if __name__ == "__main__":
    main()
