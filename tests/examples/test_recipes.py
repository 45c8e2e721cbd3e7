"""Recipes whose files no test runs describe an application; tests/documented runs those with commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.applications import run
from tests.documented.pages import Block, blocks

PAGE = blocks("docs/recipes.md")
WITH_COMMANDS = {block.section for block in PAGE if block.is_commands}
FILES = {
    section: [block for block in PAGE if block.section == section and block.file]
    for section in sorted({block.section for block in PAGE if block.file} - WITH_COMMANDS)
}


@pytest.mark.parametrize(("section", "files"), FILES.items(), ids=list(FILES))
def test_a_recipe_without_commands_has_a_properties_file_that_is_accepted(
    section: str, files: list[Block], tmp_path: Path
) -> None:
    for block in files:
        file = tmp_path / block.file
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(block.text, encoding="utf-8")
        file.chmod(0o755 if block.text.startswith("#!") else 0o644)
    (properties,) = [block.file for block in files if block.file.endswith(".properties")]
    done = run("dlapp-launcher", "--print-spec", tmp_path / properties)
    assert done.code == 0, f"{section}: {done.err}"
