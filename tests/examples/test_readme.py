"""The README's own application runs as it stands there, and prints what stands there."""

from __future__ import annotations

import re
import shutil
import textwrap
from pathlib import Path

from tests.applications import run

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def block_after(words: str) -> str:
    """The indented block that follows these words."""
    found = re.match(r".*?\n\n((?: {4}[^\n]*\n|\n)+)", README.partition(words)[2], re.DOTALL)
    assert found, words
    return textwrap.dedent(found[1]).strip() + "\n"


def test_the_application_of_the_readme_runs_as_it_stands_there(tmp_path: Path) -> None:
    for name in ("code", "texts"):
        (tmp_path / name).mkdir()
    for name in ("LICENSE", "examples/digits/data/ATTRIBUTION.md"):
        shutil.copy(ROOT / name, tmp_path / "texts")
    script = tmp_path / "code" / "count.py"
    script.write_text(block_after("made executable with `chmod +x code/count.py`:"))
    script.chmod(0o755)
    (tmp_path / "words.properties").write_text(block_after("`words.properties`:"))
    done = run("dlapp-launcher", "--wait", tmp_path / "words.properties")
    assert done.code == 0, done.err
    assert done.out.rstrip().endswith(f"\noutput : committed to file://{tmp_path}/counts")
    lines = run("dlapp-logs").out.splitlines()
    assert sorted(lines) == re.findall(r"^    (\[\d\] how many: .*)$", README, re.MULTILINE)
    assert sorted(path.name for path in (tmp_path / "counts").iterdir()) == ["0", "1"]
