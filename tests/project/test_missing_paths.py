"""Tests take as missing only paths of their own."""

from __future__ import annotations

import re

from tests.project.source import ROOT

IN_QUOTES = re.compile(r"""["':]/nonexistent\b""")


def test_no_test_relies_on_a_missing_home_directory_of_this_machine() -> None:
    files = sorted((ROOT / "tests").rglob("*.py"))
    using = [str(path.relative_to(ROOT)) for path in files if IN_QUOTES.search(path.read_text(encoding="utf-8"))]
    assert using == [], "tests.services.missing has such a path"
