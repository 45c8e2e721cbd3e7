"""The README's application, and the page that goes on with it, run as they stand there and print what stands there."""

from __future__ import annotations

import re
import shutil
import textwrap
from pathlib import Path

import pytest

from tests.applications import run
from tests.examples.pages import commands, pattern, shell, write_files

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def block_after(words: str) -> str:
    """The indented block that follows these words."""
    found = re.match(r".*?\n\n((?: {4}[^\n]*\n|\n)+)", README.partition(words)[2], re.DOTALL)
    assert found, words
    return textwrap.dedent(found[1]).strip() + "\n"


def write_words(directory: Path) -> None:
    """Do what the README says before its first command of `Write your own application`."""
    for name in ("code", "texts"):
        (directory / name).mkdir(parents=True)
    for name in ("LICENSE", "examples/digits/data/ATTRIBUTION.md"):
        shutil.copy(ROOT / name, directory / "texts")
    script = directory / "code" / "count.py"
    script.write_text(block_after("made executable with `chmod +x code/count.py`:"))
    script.chmod(0o755)
    (directory / "words.properties").write_text(block_after("`words.properties`:"))


def test_the_application_of_the_readme_runs_as_it_stands_there(tmp_path: Path) -> None:
    write_words(tmp_path)
    done = run("dlapp-launcher", "--wait", tmp_path / "words.properties")
    assert done.code == 0, done.err
    assert done.out.rstrip().endswith(f"\noutput : committed to file://{tmp_path}/counts")
    lines = run("dlapp-logs").out.splitlines()
    assert sorted(lines) == re.findall(r"^    (\[\d\] how many: .*)$", README, re.MULTILINE)
    assert sorted(path.name for path in (tmp_path / "counts").iterdir()) == ["0", "1"]


@pytest.mark.slow
def test_the_first_hour_goes_as_its_page_says(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "first-hour.md").read_text(encoding="utf-8")
    directory = tmp_path / "words"
    write_words(directory)
    written: list[str] = []
    code = 0
    for section in page.split("\n## ")[1:]:
        shown = {file.relative_to(directory).as_posix() for file in write_files(directory, section)}
        written += sorted(shown)
        for command, printed in commands(section):
            code, out, _ = shell(command, directory, before=code)
            assert re.fullmatch(pattern(printed), out), f"$ {command}\n{out}"
    assert written == ["code/train.sh", "train.properties", "again.py"]
