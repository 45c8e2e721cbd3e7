"""docs/commands.md speaks of every command and option, and what it says of exit codes is so."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import click
import pytest

from dlapp import errors
from dlapp.cluster.engine import LogFiles
from dlapp.tools.common import EXIT_BROKEN_PIPE
from dlapp.tools.main import COMMANDS
from dlapp.value import Value, fields
from dlapp.values.report import ApplicationView, ContainerView, OutputView, TryView

ENTRIES = {entry.name: entry for entry in COMMANDS.values()}
ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "commands.md").read_text()
EVERYWHERE = ("--json", "--debug", "--version", "--help")


def declared(name: str) -> click.Command:
    module = importlib.import_module(f"dlapp.tools.{ENTRIES[name].module}")
    (found,) = [variable for variable in vars(module).values() if isinstance(variable, click.Command)]
    return found


@pytest.mark.parametrize("name", ENTRIES)
def test_each_command_has_a_section_that_names_its_options(name: str) -> None:
    sections = [part for part in TEXT.split("\n## ") if f"dlapp-{name}" in part.partition("\n")[0]]
    assert len(sections) == 1
    for parameter in declared(name).params:
        if isinstance(parameter, click.Option) and not set(parameter.opts) & set(EVERYWHERE):
            assert any(option in sections[0] for option in parameter.opts), parameter.opts


def test_common_options_are_documented_once_at_the_top() -> None:
    top = TEXT.partition("\n## ")[0]
    assert all(option in top for option in EVERYWHERE)


def test_the_exit_codes_are_those_of_the_errors() -> None:
    codes = {int(code) for code in re.findall(r"^\|(\d+) \|", TEXT, re.MULTILINE)}
    known = {value for name, value in vars(errors).items() if name.startswith("EXIT_")}
    assert codes == {0, EXIT_BROKEN_PIPE, *known}


def test_the_readme_names_every_command() -> None:
    readme = (ROOT / "README.md").read_text()
    assert all(f"dlapp-{name}" in readme for name in ENTRIES)


@pytest.mark.parametrize("value", [ApplicationView, ContainerView, TryView, OutputView, LogFiles])
def test_the_json_formats_are_documented_field_by_field(value: type[Value]) -> None:
    page = (ROOT / "docs" / "json.md").read_text()
    assert [name for name in fields(value) if name != "unknown" and f"`{name}`" not in page] == []
