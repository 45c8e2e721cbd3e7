"""One word for each thing: docs/architecture.md has the glossary, and retired names do not return, also not in tests.

A test's name is a sentence on behaviour; a name that begins with "what" or "who" hides its subject.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.project.source import ROOT, parse, tree_of

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
CARD = re.compile(r"(?<![a-z])[cC]ards?(?![a-z])|(?<![A-Z])CARDS?(?![A-Z])")
VAGUE_BEGINNING = re.compile(r"test_(what|whatever|where|who|whoever|whom|whose)_")
# The words of the field are to report, to notify, to send, again, and no user (NOBODY is a uid or a pid of no one).
RETIRED_WORDS = frozenset({"anew", "nobody", "said", "told"})
RETIRED_FUNCTIONS = frozenset({"asked", "begun", "found", "given", "kept", "kept_of", "life", "taken", "taken_away"})
ALLOWED = frozenset({"as_nobody"})  # the fixture runs a test as the system's user of this name
# A longer name is cut off in the reports of pytest.
MAX_TEST_NAME = 90


pytestmark = pytest.mark.xdist_group("project")  # one worker reads the whole code, and not each of them


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def classes() -> Iterator[tuple[str, str]]:
    """Yield name and module of each class of dlapp."""
    for path in MODULES:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef):
                yield node.name, module_of(path)


def identifiers(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        for field in ("id", "attr", "arg", "name"):
            if isinstance(name := getattr(node, field, None), str) and not isinstance(node, ast.alias):
                yield name


class NamesInTests(NamedTuple):
    """Module and name of each function, class and identifier of the tests."""

    functions: frozenset[tuple[str, str]]
    classes: frozenset[tuple[str, str]]
    identifiers: frozenset[tuple[str, str]]


@cache
def names_in_tests() -> NamesInTests:
    """Parse each file of the tests, once."""
    functions, class_names, names = set(), set(), set()
    for path in sorted((ROOT / "tests").rglob("*.py")):
        module, tree = module_of(path), parse(path)
        names |= {(module, name) for name in identifiers(tree)}
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                functions.add((module, node.name))
            elif isinstance(node, ast.ClassDef):
                class_names.add((module, node.name))
    return NamesInTests(frozenset(functions), frozenset(class_names), frozenset(names))


def glossary() -> str:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    return text.partition("\n## Glossary\n")[2].partition("\n## ")[0]


def test_no_module_has_a_retired_name() -> None:
    paths = [*MODULES, *(ROOT / "tests").rglob("*.py")]
    retired = [path for path in paths if path.stem.removeprefix("test_") in RETIRED_MODULES]
    assert [str(path.relative_to(ROOT)) for path in retired] == []


def test_no_class_has_a_retired_name() -> None:
    assert [f"{module}.{name}" for name, module in classes() if name in RETIRED_CLASSES] == []
    assert [f"{module}.{name}" for module, name in names_in_tests().classes if name in RETIRED_CLASSES] == []


def test_the_name_of_a_class_is_used_once() -> None:
    places = defaultdict(list)
    for name, module in classes():
        places[name].append(module)
    assert {name: modules for name, modules in places.items() if len(modules) > 1} == {}


@pytest.mark.parametrize("path", MODULES, ids=module_of)
def test_a_gpu_is_a_device_in_code(path: Path) -> None:
    names = set(identifiers(tree_of(path)))
    assert sorted(name for name in names if CARD.search(name)) == []


def test_a_gpu_is_a_device_in_tests() -> None:
    names = sorted(names_in_tests().identifiers - {(__name__, "CARD")})
    assert [f"{module}: {name}" for module, name in names if CARD.search(name)] == []


def test_test_names_begin_with_their_subject_and_are_short() -> None:
    names = sorted(name for name in names_in_tests().functions if name[1].startswith("test_"))
    assert len(names) > 1000
    assert [name for _, name in names if VAGUE_BEGINNING.match(name) or len(name) > MAX_TEST_NAME] == []


def test_names_in_tests_have_no_retired_words() -> None:
    found = names_in_tests()
    wrong = {name for name in found.identifiers if not RETIRED_WORDS.isdisjoint(name[1].split("_"))}
    wrong |= {name for name in found.functions if name[1] in RETIRED_FUNCTIONS}
    assert sorted(f"{module}: {name}" for module, name in wrong if name not in ALLOWED) == []


def test_classes_named_in_the_glossary_exist() -> None:
    known = {f"{module}.{name}" for name, module in classes()}
    named = re.findall(r"`(dlapp\.[\w.]+)`", glossary())
    assert named
    assert [item for item in named if item not in known] == []
