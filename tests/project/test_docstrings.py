"""Docstrings begin with a verb or a noun, and say what a function takes: public ones of four parameters or more have
Args, of parameters that exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import chain

import pytest

from tests.project.source import ROOT, parse, tree_of

pytestmark = pytest.mark.xdist_group("project")  # one worker reads the whole code, and not each of them

MANY = 4
NO_BEGINNING = re.compile(
    r"(?:What|Whether|Who|Whose|Whoever|Which|How|Where|When|Why|It|Its|As|Of|So|That|Those|There|This|Not|None|Nothing|"
    r"Only|No|For|From|On|In|With|Between|Is)\b"
)
"""Words that begin a question or a subordinate clause, or refer to what the reader does not see."""
_SECTION = re.compile(r"\n(?:Returns|Raises|Yields|Source):")
_ENTRY = re.compile(r"^ {4}(\*{0,2}\w+(?:, \*{0,2}\w+)*):", re.MULTILINE)


def functions(node: ast.AST, within: str = "") -> Iterator[tuple[str, ast.FunctionDef, bool]]:
    """Yield the public functions below a module or a class: name, function, whether it is a method."""
    for item in ast.iter_child_nodes(node):
        if isinstance(item, ast.ClassDef | ast.FunctionDef) and not item.name.startswith("_"):
            if isinstance(item, ast.ClassDef):
                yield from functions(item, f"{within}{item.name}.")
            else:
                yield f"{within}{item.name}", item, bool(within)


def documented(node: ast.AST) -> Iterator[ast.Module | ast.ClassDef | ast.FunctionDef]:
    """Yield what can have a docstring: it lies in statements, and no expression has to be looked through."""
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
        yield node
    for item in ast.iter_child_nodes(node):
        if isinstance(item, ast.stmt | ast.excepthandler | ast.match_case):
            yield from documented(item)


def parameters(function: ast.FunctionDef, *, method: bool) -> list[str]:
    every = function.args
    names = [item.arg for item in (*every.posonlyargs, *every.args, *every.kwonlyargs)]
    return names[1:] if method and names[:1] in (["self"], ["cls"]) else names


def is_command(function: ast.FunctionDef) -> bool:
    """Return whether it is a command of a user's, whose options have their help beside them."""
    return any(ast.unparse(item).startswith("command(") for item in function.decorator_list)


def described(function: ast.FunctionDef) -> list[str]:
    """Return the names that Args of its docstring has."""
    text = _SECTION.split((ast.get_docstring(function) or "").partition("\nArgs:\n")[2])[0]
    return [name.lstrip("*") for names in _ENTRY.findall(text) for name in names.split(", ")]


def product() -> Iterator[tuple[str, ast.FunctionDef, bool]]:
    for path in sorted((ROOT / "dlapp").rglob("*.py")):
        for name, function, method in functions(tree_of(path)):
            yield f"{path.relative_to(ROOT)}:{function.lineno} {name}", function, method


def test_public_functions_of_many_parameters_describe_them() -> None:
    count, missing = 0, []
    for where, function, method in product():
        names = parameters(function, method=method)
        if len(names) >= MANY and not is_command(function):
            count += 1
            missing += [f"{where}: {name}" for name in names if name not in described(function)]
    assert count > 100
    assert missing == []


def test_documented_args_are_parameters() -> None:
    wrong = []
    for where, function, _ in product():
        extra = [item.arg for item in (function.args.vararg, function.args.kwarg) if item is not None]
        unknown = set(described(function)) - {*parameters(function, method=False), *extra}
        wrong += [f"{where}: {name}" for name in sorted(unknown)]
    assert wrong == []


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    count, wrong = 0, []
    trees = [(path, tree_of(path)) for path in sorted((ROOT / "dlapp").rglob("*.py"))]
    for path, tree in chain(trees, ((path, parse(path)) for path in sorted((ROOT / "tests").rglob("*.py")))):
        for node in documented(tree):
            if text := ast.get_docstring(node):
                count += 1
                if NO_BEGINNING.match(text):
                    name = getattr(node, "name", "the module")
                    wrong.append(f"{path.relative_to(ROOT)}: {name}: {text.splitlines()[0]}")
    assert count > 2000
    assert wrong == []
