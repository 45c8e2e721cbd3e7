"""The code of dlapp and of its tests, as trees that the tests of it share."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@cache
def tree_of(path: Path) -> ast.Module:
    """Parse a file; again where another thread built a tree at the same time (CPython 3.11, gh-106905)."""
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    except SystemError:
        return ast.parse(path.read_text(encoding="utf-8"))
