"""Each rule on an application stands in one place: no two places of the code have its message."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache

import pytest

from tests.project.source import ROOT, tree_of

PLACES = ("values", "sweep/spec.py", "application", "frameworks", "launcher/checks.py", "launcher/submit.py")
"""Where an application is described, and checked before its submission."""
GENERAL = {"is missing", "is empty", "has a NUL in it", "appears twice, first in line …", "is not UTF-8"}
"""Messages that say the same of different things."""
RULES = {
    "is given, and so is script; a role has one of them": "values/spec.py",
    "is given, and so is user_shell_script; an application has one of them": "values/spec.py",
    "has no effect without overwrite=true": "values/spec.py",
    "has no effect without mode=feed": "application/problems.py",
    "is not possible beside [role NAME]; set instances in the roles": "application/problems.py",
    "with mode=mount it is one directory of a shared file system: file:///mnt/data": "values/spec.py",
    "needs hang_timeout: for how long a program may be idle": "values/spec.py",
    "every role is a service, so none decides…": "values/spec.py",
    "is restart_gang, and with gang=none there is no gang": "values/spec.py",
    "is 0, but with framework=… each container needs one": "frameworks/__init__.py",
    "has no effect without metric": "sweep/spec.py",
    "has no effect in a sweep; trial_time limits how long a trial runs": "values/spec.py",
    "…: there is no such file…": "application/resolve.py",
    "… matches nothing…": "launcher/checks.py",
}
"""Message -> the module that has its rule."""


def texts_of(tree: ast.AST) -> Iterator[str]:
    """Yield each text of a module that can be a message: with a blank, and in no docstring."""
    nodes = list(ast.walk(tree))
    parts = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    parts |= {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if id(node) in parts:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        elif isinstance(node, ast.JoinedStr):
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
        else:
            continue
        if " " in text.strip() and "\n" not in text:
            yield re.sub("…+", "…", text)


@cache
def messages() -> dict[str, list[str]]:
    """Return each message, with ``…`` for its values -> the modules that have it."""
    found = defaultdict(list)
    for place in PLACES:
        path = ROOT / "dlapp" / place
        for module in [path] if path.suffix else sorted(path.rglob("*.py")):
            if module.name not in ("keys.py", "schema.py", "starter_file.py"):
                for text in texts_of(tree_of(module)):
                    found[text].append(str(module.relative_to(ROOT / "dlapp")))
    return found


def test_no_two_places_have_the_message_of_a_rule() -> None:
    found = {text: places for text, places in messages().items() if len(text) > 20 and text not in GENERAL}
    assert len(found) > 250
    assert {text: places for text, places in found.items() if len(places) > 1} == {}


@pytest.mark.parametrize("message", RULES)
def test_a_rule_is_in_the_file_of_its_name(message: str) -> None:
    assert messages()[message] == [RULES[message]]
