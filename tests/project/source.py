"""The code of dlapp and of its tests, as trees that the tests of it share."""

from __future__ import annotations

import ast
import gc
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def parse(path: Path) -> ast.Module:
    """Parse a file; again where another thread built a tree at the same time (CPython 3.11, gh-106905).

    The garbage collector waits: to look through each tree while it grows takes longer than to parse it.
    """
    text = path.read_text(encoding="utf-8")
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(text)
    except SystemError:
        return ast.parse(text)
    finally:
        if was_enabled:
            gc.enable()


def tree_of(path: Path) -> ast.Module:
    """Return the tree of a file of dlapp."""
    return _trees()[path]


@cache
def _trees() -> dict[Path, ast.Module]:
    """Parse dlapp, once; the trees stay out of the sight of the garbage collector, as they live as long as the process.

    What is garbage goes first: it would be left out, too.
    """
    gc.collect()
    trees = {path: parse(path) for path in (ROOT / "dlapp").rglob("*.py")}
    gc.freeze()
    return trees
