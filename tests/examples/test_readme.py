"""The README's own application runs as it stands there."""

from __future__ import annotations

import re
import shutil
import textwrap
from pathlib import Path

from tests.applications import run

ROOT = Path(__file__).parents[2]


def block_after(words: str) -> str:
    """The indented block that follows these words."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.match(r".*?\n\n((?: {4}[^\n]*\n|\n)+)", readme.partition(words)[2], re.DOTALL)
    assert found, words
    return textwrap.dedent(found[1]).strip() + "\n"


def test_the_application_of_the_readme_runs_as_it_stands_there(tmp_path: Path) -> None:
    for name in ("code", "texts"):
        (tmp_path / name).mkdir()
    for name in ("local.md", "payload.md"):
        shutil.copy(ROOT / "docs" / name, tmp_path / "texts")
    script = tmp_path / "code" / "count.py"
    script.write_text(block_after("made executable with `chmod +x code/count.py`:"))
    script.chmod(0o755)
    (tmp_path / "words.properties").write_text(block_after("`words.properties`:"))
    done = run("dlapp-launcher", "--wait", tmp_path / "words.properties")
    assert done.code == 0, done.err
    assert done.err.rstrip().endswith(f"; output {tmp_path}/counts")
    lines = run("dlapp-logs").out.splitlines()
    assert sorted(re.sub(r"\d+ words", "N words", line)[4:] for line in lines) == [
        "how many: N words in local.md",
        "how many: N words in payload.md",
    ]
    assert sorted(path.name for path in (tmp_path / "counts").iterdir()) == ["0", "1"]
