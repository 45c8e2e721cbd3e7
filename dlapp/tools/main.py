"""dlapp: every command as a subcommand of one program, ``dlapp status`` for ``dlapp-status``.

A command is imported when it is called, so ``dlapp status`` loads what ``dlapp-status`` loads, and this module.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import click

from dlapp.errors import UsageError
from dlapp.tools.common import Command, command


class CommandEntry(NamedTuple):
    """A command: its module below `dlapp.tools`, which contains ``main``, and its purpose."""

    module: str
    summary: str

    @property
    def name(self) -> str:
        """Return the name of its module."""
        return self.module.rpartition(".")[2]

    @property
    def program(self) -> str:
        """Return the name of its separate program."""
        return f"dlapp-{self.name}"


COMMANDS = {
    "submit": CommandEntry("applications.launcher", "Check, pack and submit an application."),
    "status": CommandEntry("applications.status", "Show how an application is or ended, and why."),
    "why": CommandEntry("applications.why", "Show why an application waits, and when it may start."),
    "list": CommandEntry("applications.list", "List applications."),
    "queue": CommandEntry("applications.queue", "Show what runs and what waits, in order."),
    "logs": CommandEntry("applications.logs", "Show what an application's containers print."),
    "sweep": CommandEntry("applications.sweep", "Show the trials of a sweep, the best first."),
    "exec": CommandEntry("applications.exec", "Run a command in a container of a running application."),
    "port": CommandEntry("applications.port", "Bring a port of a running program to this machine."),
    "board": CommandEntry("applications.board", "Show the curves of many applications in TensorBoard."),
    "report": CommandEntry("applications.report", "Write a page on what an application did."),
    "release": CommandEntry("applications.release", "Let held applications start."),
    "softkill": CommandEntry("applications.softkill", "End applications early, with their output."),
    "kill": CommandEntry("applications.kill", "Kill applications at once, without output."),
    "rm": CommandEntry("applications.rm", "Remove ended applications from the history."),
    "shell": CommandEntry("machine.shell", "Open a shell in a program's environment."),
    "notebook": CommandEntry("machine.notebook", "Open JupyterLab in a program's environment."),
    "run": CommandEntry("machine.run", "Inside dlapp-shell: submit its application."),
    "gpu": CommandEntry("machine.gpu", "Show and change which GPU belongs to whom."),
    "cache": CommandEntry("machine.cache", "Show and change the cached input."),
    "doctor": CommandEntry("machine.doctor", "Check what dlapp needs here."),
}
"""All commands, by their word, in the order of the help."""


def find_command(name: str) -> str | None:
    """Return the subcommand for its name, its program's name or the end of that (``dlapp-launcher``, ``launcher``);
    None if there is no such command."""
    if name in COMMANDS:
        return name
    programs = {entry.program: word for word, entry in COMMANDS.items()}
    return programs.get(name) or programs.get(f"dlapp-{name}")


def load_command(word: str) -> click.Command:
    """Import a command."""
    entry = COMMANDS[word]
    found: click.Command = importlib.import_module(f"dlapp.tools.{entry.module}").main
    return found


def run_tool(argv: Sequence[str]) -> int:
    """Run a command as if its program had been called.

    Args:
        argv: its name or the name of its module, and its arguments.
    """
    sys.argv[1:] = argv[1:]
    return load_command(find_command(argv[0]) or argv[0])() or 0


class CommandGroup(Command, click.Group):
    """Subcommands of ``dlapp``."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **{**settings, "invoke_without_command": True})

    def list_commands(self, _context: click.Context) -> list[str]:
        """Return the names, for completion."""
        return [*COMMANDS, "help"]

    def get_command(self, _context: click.Context, word: str) -> click.Command | None:
        """Return the command of a name; None if there is none."""
        return help_ if word == "help" else load_command(word) if word in COMMANDS else None

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the name, its command and the arguments, or refuse an unknown name with the nearest one."""
        word, *rest = args
        if (found := self.get_command(context, word)) is None:
            from dlapp.system.text import nearest, shown

            right = find_command(word)
            hint = f"use {right}" if right else nearest(word.removeprefix("dlapp-"), self.list_commands(context))
            raise UsageError(f"{shown(word)} is not a command of dlapp: {hint} (dlapp help lists them)")
        return word, found, rest

    def format_commands(self, _context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the names with their purposes, without importing their modules."""
        with formatter.section("Commands"):
            formatter.write_dl([(word, entry.summary) for word, entry in COMMANDS.items()])


@command("dlapp", example="dlapp submit --wait dl_app.properties", kind=CommandGroup)
def main() -> None:
    """Run deep-learning programs on shared GPUs.

    Every command is also a program of its own: 'dlapp status' is dlapp-status, and 'dlapp submit' is
    dlapp-launcher. 'dlapp help COMMAND' shows the options of a command.
    """
    context = click.get_current_context()
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


class CommandName(click.Choice[str]):
    """The word of a command, or the name of its program."""

    def convert(self, value: str, param: click.Parameter | None, context: click.Context | None) -> str:
        """Return the word."""
        return super().convert(find_command(value) or value, param, context)


@command("help", example="dlapp help logs")
@click.argument("word", metavar="[COMMAND]", type=CommandName(list(COMMANDS)), required=False)
def help_(word: str | None) -> None:
    """Show the commands, or the options of one."""
    context: Any = click.get_current_context().parent
    if word is None:
        click.echo(context.get_help())
        return
    found = load_command(word)
    with click.Context(found, info_name=word, parent=context, **found.context_settings) as one:
        click.echo(found.get_help(one))
