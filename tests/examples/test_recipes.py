"""The recipes of docs/recipes.md run as they stand there, and print what stands there."""

from __future__ import annotations

import os
import re
import subprocess
import textwrap
from pathlib import Path

import pytest

from tests.applications import BIN, run

PAGE = Path(__file__).parents[2] / "docs" / "recipes.md"
RECIPES = {part.partition("\n")[0]: part for part in PAGE.read_text(encoding="utf-8").split("\n## ")[1:]}
WITH_FILES = [title for title, text in RECIPES.items() if ".properties`:\n" in text]
WITH_COMMANDS = [title for title, text in RECIPES.items() if "\n    $ " in text]


def write_files(directory: Path, recipe: str) -> list[Path]:
    """Write each file that a recipe shows; those that begin with ``#!`` are executable."""
    files = []
    for name, text in re.findall(r"^`([\w./]+)`:\n\n((?: {4}[^\n]*\n|\n)+)", recipe, re.MULTILINE):
        file = directory / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(textwrap.dedent(text).strip() + "\n", encoding="utf-8")
        file.chmod(0o755 if text.lstrip().startswith("#!") else 0o644)
        files.append(file)
    return files


def commands(recipe: str) -> list[tuple[str, str]]:
    """Each command with what it prints."""
    block = recipe.partition("Then:\n\n")[2]
    lines = textwrap.dedent("".join(re.findall(r"\A(?: {4}[^\n]*\n|\n)+", block))).rstrip()
    return re.findall(r"^\$ (.*)\n?((?:(?!\$ ).*\n?)*)", lines, re.MULTILINE)


def pattern(printed: str) -> str:
    """A regular expression for what is printed: ``…`` alone in a line is any lines, in a line it is any text."""
    lines = [
        r"(?:.*\n)*" if line == "…" else re.escape(line).replace("…", ".*") + r"\n" for line in printed.splitlines()
    ]
    return "".join(lines)


@pytest.mark.parametrize("title", WITH_COMMANDS)
def test_a_recipe_prints_what_the_page_says(title: str, tmp_path: Path) -> None:
    assert title in WITH_FILES
    write_files(tmp_path, RECIPES[title])
    environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "DLAPP_LOCAL_VCORES": "4"}
    assert commands(RECIPES[title])
    for command, printed in commands(RECIPES[title]):
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=tmp_path,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert re.fullmatch(pattern(printed), done.stdout), f"$ {command}\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize("title", [title for title in WITH_FILES if title not in WITH_COMMANDS])
def test_a_recipe_that_is_not_run_has_a_properties_file_that_is_accepted(title: str, tmp_path: Path) -> None:
    files = write_files(tmp_path, RECIPES[title])
    (properties,) = [file for file in files if file.suffix == ".properties"]
    done = run("dlapp-launcher", "--print-spec", properties)
    assert done.code == 0, done.err
