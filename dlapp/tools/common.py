"""Common parts of all commands: declaration, and conversion of errors to one line and an exit code.

A command is a function that returns its exit code (None: 0). Data goes to stdout, everything else to stderr.
"""

from __future__ import annotations

import errno
import gc
import io
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import click

from dlapp.errors import (
    EXIT_DENIED,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_USAGE,
    ConfigError,
    DlappError,
    FileRefused,
    UsageError,
)
from dlapp.system.processes.fast_exit import run_and_exit
from dlapp.version import __version__

EXIT_BROKEN_PIPE = 141
"""Exit code after the reader of the output closed the pipe: 128 + SIGPIPE, as a shell reports it for other programs."""
_COLLECT_AFTER = 10_000
"""Objects between two garbage collections; Python's 700 cost a command a tenth of its time, while it loads modules."""

Body = Callable[..., int | None]


class Command(click.Command):
    """A command that is a process of its own when called like a console script."""

    def __call__(self, *_args: Any, **_settings: Any) -> NoReturn:
        """Run it with the arguments of the process."""
        run(self)

    def invoke(self, context: click.Context) -> Any:
        """Execute it, and report its waits."""
        if isinstance(self, click.Group):
            return super().invoke(context)
        from dlapp.system.waits import report_waits  # not needed for the help

        with report_waits(lambda text: note(f"{context.find_root().info_name} {text}")):
            return super().invoke(context)


class ProgramCommand(Command):
    """A command with arguments for the user's program after ``--``: the parameter ``program_args``, None without a
    ``--``."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        """Parse what is before the ``--``."""
        own, found, others = _before_program_args(args)
        try:
            rest = super().parse_args(context, own)
        except click.NoSuchOption as error:
            if hint := self._hint(error.option_name):
                raise click.UsageError(f"No such option {error.option_name!r}: {hint}", context) from None
            raise
        context.params["program_args"] = tuple(others) if found else None
        return rest

    def _hint(self, option: str) -> str:
        """Return what stands for an option of another program, if this command takes keys; empty: not known."""
        if not any(one.name == "settings" for one in self.params):
            return ""
        from dlapp.application.hints import NO_KEY, nearest_key  # only for an error

        hint = nearest_key("", option)
        key = hint.removeprefix("use ")
        if hint == NO_KEY:
            return ""
        return hint if " " in key else f"{hint} of the file, or --set {key}=VALUE"

    def collect_usage_pieces(self, context: click.Context) -> list[str]:
        """Return the pieces of the usage line."""
        return [*super().collect_usage_pieces(context), "[-- ARGUMENT...]"]


def _before_program_args(args: Sequence[str]) -> tuple[list[str], bool, list[str]]:
    """Split at the first ``--``; the second value says whether there is one."""
    at = list(args).index("--") if "--" in args else len(args)
    return list(args[:at]), at < len(args), list(args[at + 1 :])


def command(name: str, *, example: str, kind: type[click.Command] = Command) -> Callable[[Body], click.Command]:
    """Make a command of a function; its docstring and ``example`` are the help."""

    def declare(body: Body) -> click.Command:
        epilog = f"\b\nExample:\n  {example}"
        settings = {"help_option_names": ["-h", "--help"]}
        declared = click.command(name, cls=kind, epilog=epilog, context_settings=settings)(body)
        declared.params += [
            click.Option(["--debug"], is_flag=True, expose_value=False, help="Show tracebacks of errors."),
        ]
        version = click.version_option(
            __version__, prog_name=name, message="%(prog)s %(version)s", help="Show the version."
        )
        return version(declared)

    return declare


class ActionChoice(click.Choice):  # type: ignore[type-arg]
    """Action of a command; an unknown one is refused with the nearest."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the action."""
        if value not in self.choices:
            from dlapp.system.text import nearest, shown

            self.fail(f"{shown(value)} is no action, {nearest(value, map(str, self.choices))}", param, ctx)
        return super().convert(value, param, ctx)


def json_option(help: str) -> Callable[[Body], Body]:
    """Add ``--json``, as the parameter ``as_json``; the formats are in docs/json.md."""
    return click.option("--json", "as_json", is_flag=True, help=help)


def label_options(body: Body) -> Body:
    """Add ``--queue``, ``--project``, ``--tag``, ``--name``: parameters ``queue``, ``project``, ``tags``, ``name``."""
    text = "Only those whose name contains TEXT, in upper or lower case."
    body = click.option("--name", metavar="TEXT", help=text)(body)
    text = "Only those with this tag; of several tags with all of them."
    body = click.option("--tag", "tags", multiple=True, metavar="TAG", help=text)(body)
    text = "Only those of this project, in upper or lower case."
    body = click.option("--project", metavar="PROJECT", help=text)(body)
    return click.option("--queue", metavar="QUEUE", help="Only those in this queue.")(body)


def output_option(body: Body) -> Body:
    """Add ``-o``, as the parameter ``output``."""
    text = "wide (all columns, uncut), json, id (ids alone), or name=COLUMN,... (these columns)."
    return click.option("-o", "output", metavar="FORM", default="", help=text)(body)


def override_options(keys: str) -> Callable[[Body], Body]:
    """Add ``--set`` and ``--env``, as the parameters ``settings`` and ``variables``.

    Args:
        keys: valid for ``--set``, for its help.
    """

    def declare(body: Body) -> Body:
        text = f"Set {keys} in place of the file's value, as in '--set resources.memory=8g'. May be repeated."
        body = click.option("--set", "settings", multiple=True, metavar="SECTION.KEY=VALUE", help=text)(body)
        text = "Set a variable of the program. Its value is in the list of processes while this command runs."
        return click.option("--env", "variables", multiple=True, metavar="NAME=VALUE", help=text)(body)

    return declare


def complete_id(*, unfinished: bool = False) -> Callable[..., list[Any]]:
    """Return the shell completion function for application ids."""

    def complete(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        from dlapp.client.completion import matching

        found = matching(incomplete, unfinished=unfinished)
        return [CompletionItem(one.application_id, help=one_line(one.text)) for one in found]

    return complete


def run(declared: click.Command, argv: Sequence[str] | None = None) -> NoReturn:
    """Run a command as this process: parse ``argv`` (default: the process's own), exit with its exit code."""
    _repair_standard_streams()
    name = declared.name or ""
    variable = f"_{name.replace('-', '_').upper()}_COMPLETE"
    if instruction := os.environ.get(variable):
        from click.shell_completion import shell_complete

        sys.exit(shell_complete(declared, {}, name, variable, instruction))
    arguments = list(sys.argv[1:] if argv is None else argv)
    gc.set_threshold(_COLLECT_AFTER)
    debug = "--debug" in _before_program_args(arguments)[0]
    run_and_exit(lambda: exit_code_of(lambda: _invoke(declared, arguments), debug=debug, name=name))


class _OutputLost(DlappError, OSError):
    """A standard output that cannot be written."""


class _Output(io.FileIO):
    """Standard output, whose errors say so, or standard error, which ends no command: what it cannot print is lost."""

    def write(self, data: Any) -> int | None:  # type: ignore[override]
        """Write bytes."""
        try:
            return super().write(data)
        except OSError as error:
            if self.fileno() == 2:
                return len(data)
            if isinstance(error, BrokenPipeError):
                raise
            raise _OutputLost(f"standard output: {os.strerror(error.errno or 0)}") from error


def _repair_standard_streams() -> None:
    """Use /dev/null for each standard stream that is closed, so that no other file gets its number."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free number
    if sys.stdin is None:
        sys.stdin = io.TextIOWrapper(io.FileIO(0, closefd=False))
    # A name that the terminal's encoding lacks is escaped instead of failing.
    for name, fd in (("stdout", 1), ("stderr", 2)):
        raw = _Output(fd, "w", closefd=False)
        encoding = getattr(getattr(sys, name), "encoding", "utf-8")
        lines = fd == 2 or raw.isatty()
        text = io.TextIOWrapper(io.BufferedWriter(raw), encoding, "backslashreplace", line_buffering=lines)
        setattr(sys, name, text)


def _invoke(declared: click.Command, arguments: list[str]) -> int:
    name = declared.name or ""
    try:
        with declared.make_context(name, arguments) as context:
            return declared.invoke(context) or 0
    except click.exceptions.Exit as exit_:
        return exit_.exit_code


def exit_code_of(body: Callable[[], int], *, debug: bool, name: str) -> int:
    """Run ``body`` to its end; an error becomes ``Error: ...`` on stderr and its code."""
    try:
        code = body()
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        _point_stdout_at_nothing()
        return EXIT_BROKEN_PIPE
    except (KeyboardInterrupt, click.exceptions.Abort):
        return EXIT_INTERRUPTED
    except Exception as error:
        if debug:
            import traceback

            for line in traceback.format_exc().splitlines():
                note(line)
        lines, code = explain(error, name)
        _flush_before_the_error()
        for line in lines:
            click.echo(line, err=True)
        return code


def explain(error: Exception, name: str) -> tuple[list[str], int]:
    """Return the lines for stderr, the last of which begins with ``Error:``, and the exit code of an error."""
    match error:
        case FileRefused():
            count = len(error.problems)
            they = "an error" if count == 1 else f"{count} errors"
            lines = [*map(one_line, error.problems), f"Error: the properties file is refused: it has {they}"]
            return lines, error.exit_code
        case ConfigError() if "\n" in (text := str(error)):
            problems = [one_line(line) for line in text.split("\n")]
            return [*problems, f"Error: the configuration is refused: it has {len(problems)} errors"], error.exit_code
        case UsageError() if "\n" in (text := str(error)):
            head, *problems = (one_line(line.strip()) for line in text.split("\n"))
            return [*problems, f"Error: {head.rstrip(':')}"], error.exit_code
        case DlappError():
            return [f"Error: {one_line(str(error))}"], error.exit_code
        case click.ClickException():
            if isinstance(error, click.UsageError) and error.ctx is not None:
                name = error.ctx.command_path
            return [f"Error: {one_line(error.format_message())} ({name} --help shows the usage)"], EXIT_USAGE
        case OSError() if error.strerror:
            if error.errno == errno.ENOENT and error.filename is None and not _has_working_directory():
                return ["Error: the working directory was removed; change to one that exists"], EXIT_FAILED
            if error.errno in (errno.ENOSPC, errno.EDQUOT) and isinstance(error.filename, str):
                from dlapp.system.disk_space import disk_full

                return [f"Error: {one_line(disk_full(error.filename))}"], EXIT_FAILED
            # Denied is also a PermissionError, but was handled above with its own message.
            code = EXIT_DENIED if error.errno in (errno.EACCES, errno.EPERM) else EXIT_FAILED
            where = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, (str, bytes)) else ""
            return [f"Error: {one_line(where + error.strerror)}"], code
    what = one_line(f"{type(error).__name__}: {error}")
    return [f"Error: internal error: {what} (run it again with --debug and report it)"], EXIT_FAILED


def _has_working_directory() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True


def one_line(text: str) -> str:
    """Return ``text`` with line breaks as spaces and with escaped terminal control characters."""
    return text if text.isprintable() else "".join(map(_shown, text))


def _shown(character: str) -> str:
    if character.isprintable() or character == "\t":
        return character
    if character == "\n":
        return " "
    from unicodedata import category

    # Cc: control, Cf: format such as direction, Cs: invalid bytes, Zl and Zp: line ends. Other spaces stay.
    joiners = "\u200c\u200d"
    escaped = category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp") and character not in joiners
    return character.encode("unicode_escape").decode() if escaped else character


def print_json(value: Any) -> None:
    """Print one JSON document, indented."""
    import json

    click.echo(json.dumps(value, indent=2))


def whole(view: Any) -> Any:
    """Return a view in its JSON form with every field, including those with default values."""
    from dlapp.values.report import ApplicationView
    from dlapp.values.serialization import from_json, to_json

    return to_json(from_json(ApplicationView, view))


def note(line: str) -> None:
    """Print a line for the user to stderr."""
    click.echo(one_line(line), err=True)


def say(*lines: str) -> None:
    """Print lines of data and flush: a reader behind a pipe follows the progress."""
    click.echo("\n".join(map(one_line, lines)))


def say_paged(*lines: str) -> None:
    """Print lines of data through the user's pager."""
    os.environ.setdefault("LESS", "FRX")
    click.echo_via_pager("\n".join(map(one_line, lines)))


def _flush_before_the_error() -> None:
    try:
        sys.stdout.flush()
    except OSError:
        _point_stdout_at_nothing()


def _point_stdout_at_nothing() -> None:
    # Otherwise the interpreter's own flush at exit fails once more, and prints an error.
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.close(nothing)


def read_duration(option: str, text: str, *, minimum_s: float) -> float:
    """Return the duration of an option such as ``--timeout``: ``30s``, ``10m``, or a number of seconds [s].

    Raises:
        UsageError: it is none, or shorter than ``minimum_s``.
    """
    from dlapp.system.text import read_duration_s

    try:
        return read_duration_s(text, minimum_s)
    except ValueError as problem:
        raise UsageError(f"{option} {problem}") from None


def read_time_ms(option: str, text: str, now_ms: int) -> int:
    """Return the time of an option such as ``--since``: a date, or a duration before now [ms since 1970].

    Raises:
        UsageError: it is neither.
    """
    from datetime import datetime

    from dlapp.system.text import read_duration_s, shown

    try:
        if text[-1:].isalpha() and text[:1].isdigit():
            return now_ms - int(read_duration_s(text) * 1000)
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError) as error:
        examples = "2h, 7d, 2023-11-14 or 2023-11-14T22:00"
        raise UsageError(
            f"{option}: {shown(text)} is neither a time before now nor a date, such as {examples}"
        ) from error
