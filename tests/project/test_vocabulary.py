"""One word for each thing: docs/architecture.md has the glossary, and what it replaced does not come back."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.project.source import ROOT, tree_of

MODULES = sorted((ROOT / "dlapp").rglob("*.py"))
RETIRED_MODULES = frozenset(
    re.findall(
        r"\w+",
        """
        aftermath asked asks books brought cards choice closing collected connected desk elsewhere ending ends
        evidence finding given gpu_facts holdings home later looking making masters nodes ofd own patience remembered
        sight spare staged_home stored strays submitting sweeping texts travel turns verdict work
        """,
    )
)
RETIRED_CLASSES = frozenset(
    re.findall(
        r"\w+",
        """
        BadLine Books Brought CardWatch Cards CardsSeen Closing Collected Connected Desk Ender Find FindHere FindOnHdfs
        Former GivenByNode Gpus Ground Holdings Home JournalHome Kept KeptInput KnownCards Landing Later Left Looked
        Looker Marks Masters News OtherVersion Patience Row Spare StagedHome Stray Told Turn Turns Verdict Wants
        Wanted What Why Witnesses Work
        """,
    )
)
CARD = re.compile(r"(?<![a-z])[cC]ards?(?![a-z])")


pytestmark = pytest.mark.xdist_group("project")  # one worker reads the whole code, and not each of them


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def classes() -> Iterator[tuple[str, str]]:
    """The classes: name and module."""
    for path in MODULES:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef):
                yield node.name, module_of(path)


def identifiers(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        for field in ("id", "attr", "arg", "name"):
            if isinstance(name := getattr(node, field, None), str) and not isinstance(node, ast.alias):
                yield name


def glossary() -> str:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    return text.partition("\n## Glossary\n")[2].partition("\n## ")[0]


def test_no_module_has_a_retired_name() -> None:
    assert [str(path.relative_to(ROOT)) for path in MODULES if path.stem in RETIRED_MODULES] == []


def test_no_class_has_a_retired_name() -> None:
    assert [f"{module}.{name}" for name, module in classes() if name in RETIRED_CLASSES] == []


def test_the_name_of_a_class_is_used_once() -> None:
    places = defaultdict(list)
    for name, module in classes():
        places[name].append(module)
    assert {name: modules for name, modules in places.items() if len(modules) > 1} == {}


@pytest.mark.parametrize("path", MODULES, ids=module_of)
def test_a_gpu_is_a_device_in_code(path: Path) -> None:
    names = set(identifiers(tree_of(path)))
    assert sorted(name for name in names if CARD.search(name)) == []


def test_classes_named_in_the_glossary_exist() -> None:
    known = {f"{module}.{name}" for name, module in classes()}
    named = re.findall(r"`(dlapp\.[\w.]+)`", glossary())
    assert named
    assert [one for one in named if one not in known] == []
