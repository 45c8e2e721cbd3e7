"""Tests that a kind is compared by the value that has it, or by the factory of what it names."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.project.source import ROOT, tree_of

FACTORIES = {
    "cluster/yarn/client/timeline/reader.py": "selects dlapp's applications, by YARN's type, from an answer",
    "gpuid/factory.py": "opens the ledger of each kind",
    "storage/hdfs/native.py": "converts the messages of a protocol to values",
}
"""Module -> why it compares the kinds of other values."""
MODULES = sorted((ROOT / "dlapp").rglob("*.py"))


def is_constant(node: ast.expr) -> bool:
    """Return whether an expression is a constant of a module, or a part of one."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.Subscript(value=ast.Name(id=name)):
            return name.isupper()
        case _:
            return isinstance(node, ast.Constant)


def comparisons(tree: ast.AST) -> list[int]:
    """Return the lines of a module that compare the kind of another value, or the scheme of HDFS."""
    lines = []
    for node in ast.walk(tree):
        match node:
            case ast.Compare(
                left=ast.Attribute(value=value, attr="kind"), ops=[ast.Eq() | ast.NotEq()], comparators=[other]
            ) if is_constant(other) and not (isinstance(value, ast.Name) and value.id == "self"):
                lines.append(node.lineno)
            case ast.Call(func=ast.Attribute(attr="startswith"), args=[ast.Name(id="HDFS")]):
                lines.append(node.lineno)
            case ast.Call(func=ast.Attribute(attr="startswith"), args=[ast.Constant(value=str(text))]) if (
                text.startswith("hdfs:")
            ):
                lines.append(node.lineno)
    return lines


@pytest.mark.parametrize(
    "text",
    [
        "settings.kind == ZOOKEEPER",
        "launch.ledger.kind != launch_spec.ZOOKEEPER",
        "one.kind == HELD[LEASED]",
        'order.kind == "exec"',
        "location.startswith(HDFS)",
        'location.startswith("hdfs://")',
    ],
)
def test_a_comparison_of_a_kind_is_found(text: str) -> None:
    assert comparisons(ast.parse(text)) == [1]


@pytest.mark.parametrize("text", ["self.kind == ZOOKEEPER", "token.kind == kind", "one.kind in HELD"])
def test_a_values_own_comparison_and_a_selection_are_not_counted(text: str) -> None:
    assert comparisons(ast.parse(text)) == []


def test_only_factories_and_the_values_themselves_compare_kinds() -> None:
    def name(path: Path) -> str:
        return str(path.relative_to(ROOT / "dlapp"))

    found = {name(path): lines for path in MODULES if (lines := comparisons(tree_of(path)))}
    assert found.pop("locations.py", []), "the module of locations knows their schemes"
    assert found.keys() == FACTORIES.keys(), found
