"""Functions are short enough to be read at once."""

from __future__ import annotations

import ast

from tests.project.source import ROOT, tree_of

MAX_LINES = 70
"""A page of an editor, with the signature and the docstring."""
LONGER: frozenset[str] = frozenset()
"""Longer functions, until they are divided: path in dlapp and name."""


def functions() -> list[tuple[str, int]]:
    """Return each function, by its path in dlapp and its name, with the number of its lines."""
    return [
        (f"{path.relative_to(ROOT / 'dlapp')} {node.name}", (node.end_lineno or 0) - node.lineno + 1)
        for path in sorted((ROOT / "dlapp").rglob("*.py"))
        if not path.name.endswith("_pb2.py")
        for node in ast.walk(tree_of(path))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]


def test_no_function_is_longer_than_70_lines() -> None:
    """The lines of each function of dlapp are counted; a listed one that has become shorter must leave the list."""
    found = functions()
    assert len(found) > 3000
    assert {name for name, count in found if count > MAX_LINES} == LONGER
