"""The recipes of docs/recipes.md run as they stand there, and print what stands there."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.applications import run
from tests.examples.pages import commands, pattern, shell, write_files

PAGE = Path(__file__).parents[2] / "docs" / "recipes.md"
RECIPES = {part.partition("\n")[0]: part for part in PAGE.read_text(encoding="utf-8").split("\n## ")[1:]}
WITH_FILES = [title for title, text in RECIPES.items() if ".properties`:\n" in text]
WITH_COMMANDS = [title for title, text in RECIPES.items() if "\n    $ " in text]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("title", WITH_COMMANDS)
def test_a_recipe_prints_what_the_page_says(title: str, tmp_path: Path) -> None:
    assert title in WITH_FILES
    write_files(tmp_path, RECIPES[title])
    # What follows the first block has other examples.
    session = re.split(r"^(?=\S)", RECIPES[title].partition("Then:\n\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    assert commands(session)
    for command, printed in commands(session):
        _, out, err = shell(command, tmp_path, stderr=subprocess.PIPE)
        assert re.fullmatch(pattern(printed), out), f"$ {command}\n{out}{err}"


@pytest.mark.parametrize("title", [title for title in WITH_FILES if title not in WITH_COMMANDS])
def test_a_recipe_that_is_not_run_has_a_properties_file_that_is_accepted(title: str, tmp_path: Path) -> None:
    files = write_files(tmp_path, RECIPES[title])
    (properties,) = [file for file in files if file.suffix == ".properties"]
    done = run("dlapp-launcher", "--print-spec", properties)
    assert done.code == 0, done.err
