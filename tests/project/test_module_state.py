"""Modules have no state that changes: it belongs to objects that are passed. docs/architecture.md lists what remains.

A constant counts as unchangeable if its value is (a tuple, a frozenset, a value of dlapp), or if its annotation is a
read-only type, such as ``Mapping``: then mypy refuses to change it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.project.source import ROOT, tree_of

PACKAGES = ("net", "hadoop", "storage", "cluster")
READ_ONLY = frozenset({"Mapping", "Sequence", "Collection", "Set", "Callable", "TypeAlias"})
MAKES_CONSTANT = frozenset(
    [
        "frozenset",
        "tuple",
        "bytes",
        "bytes.fromhex",
        "re.compile",
        "lazy_pattern",
        "struct.Struct",
        "struct.pack",
        "TypeVar",
        "field",
        "Crc",
    ]
)
VALUE_BASES = frozenset({"Value", "NamedTuple", "Enum", "StrEnum", "IntEnum"})
CACHES = frozenset({"cache", "lru_cache", "functools.cache", "functools.lru_cache"})


def value_classes(trees: list[ast.Module]) -> frozenset[str]:
    """Return the names of the classes whose objects do not change."""
    classes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    found = set(VALUE_BASES)
    while more := {class_.name for class_ in classes if found & {ast.unparse(base) for base in class_.bases}} - found:
        found |= more
    return frozenset(found)


def state(tree: ast.Module, values: frozenset[str]) -> Iterator[str]:
    """Yield the names of what may change in a module, or between calls of its functions."""
    yield from _assigned(tree.body, "", values)
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            yield from (f"global {name}" for name in node.names)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if any(_name(item) in CACHES for item in node.decorator_list):
                yield node.name
            for default in (*node.args.defaults, *node.args.kw_defaults):
                if default is not None and not isinstance(default, ast.Call) and not _is_constant(default, values):
                    yield f"{node.name}({ast.unparse(default)})"
        elif isinstance(node, ast.Assign) and _name(node.value) in CACHES:
            yield ast.unparse(node.targets[0])


def _assigned(body: list[ast.stmt], prefix: str, values: frozenset[str]) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from _assigned(node.body, f"{prefix}{node.name}.", values)
        elif isinstance(node, (ast.If, ast.Try, ast.With, ast.For, ast.While)):
            yield from _assigned(node.body, prefix, values)
            yield from _assigned(getattr(node, "orelse", []), prefix, values)
        elif isinstance(node, ast.AugAssign):
            yield prefix + ast.unparse(node.target)
        elif isinstance(node, ast.Assign) and not _is_constant(node.value, values):
            yield from (prefix + ast.unparse(target) for target in node.targets)
        elif (
            isinstance(node, ast.AnnAssign)
            and node.value is not None
            and re.split(r"\W", ast.unparse(node.annotation))[0] not in READ_ONLY
            and not _is_constant(node.value, values)
        ):
            yield prefix + ast.unparse(node.target)


def _name(node: ast.expr) -> str:
    return ast.unparse(node.func if isinstance(node, ast.Call) else node)


def _is_constant(node: ast.expr, values: frozenset[str]) -> bool:
    match node:
        case ast.Tuple(elts=parts):
            return all(_is_constant(part, values) for part in parts)
        case ast.BinOp(left=left, right=right):
            return _is_constant(left, values) and _is_constant(right, values)
        case ast.IfExp(body=one, orelse=other):
            return _is_constant(one, values) and _is_constant(other, values)
        case ast.Call():
            return _name(node) in MAKES_CONSTANT or _name(node) in values
        # Names are of what was looked at where it was assigned; a subscript is a type, or a part of a constant.
        case _:
            return not isinstance(node, (ast.Dict, ast.List, ast.Set, ast.DictComp, ast.ListComp, ast.SetComp))


def found_in(paths: list[Path], values: frozenset[str]) -> list[tuple[str, str]]:
    return [
        (str(path.relative_to(ROOT / "dlapp").with_suffix("")), name)
        for path in paths
        for name in state(tree_of(path), values)
    ]


def test_the_page_on_the_architecture_lists_all_state_of_modules() -> None:
    values = value_classes([tree_of(path) for path in sorted((ROOT / "dlapp").rglob("*.py"))])
    paths = [path for name in PACKAGES for path in sorted((ROOT / "dlapp" / name).rglob("*.py"))]
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    section = page.partition("\n## State of modules\n")[2].partition("\n## ")[0]
    listed = re.findall(r"^\|`([\w/]+)` \|`(\w+)` \|[^|]+\|$", section, re.MULTILINE)
    assert sorted(found_in(paths, values)) == sorted(listed)


@pytest.mark.parametrize(
    "text",
    [
        "x = {}",
        "x: dict[str, int] = {}",
        "x = [1]",
        "x = threading.Lock()",
        "x = itertools.count()",
        "x = ContextVar('x')",
        "x = 0\nx += 1",
        "if True:\n    x = set()",
        "class A:\n    x = []",
        "def f():\n    global x\n    x = 1",
        "@functools.lru_cache(3)\ndef x(): pass",
        "def x(a=[]): pass",
    ],
)
def test_mutable_module_state_is_found(text: str) -> None:
    (name,) = state(ast.parse(text), frozenset())
    assert "x" in name


@pytest.mark.parametrize(
    "text",
    ["x: Mapping[str, int] = {'a': 1}", "x = (1, 'a')", "x = frozenset({1})", "x = re.compile('a')", "x = Size(1)"],
)
def test_constants_are_not_state(text: str) -> None:
    assert list(state(ast.parse(text), frozenset({"Size"}))) == []
