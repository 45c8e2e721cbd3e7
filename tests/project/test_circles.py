"""Test the search for import circles that `make check` uses."""

from __future__ import annotations

from tests.project.circles import circles


def test_modules_that_import_each_other_are_a_circle() -> None:
    """One circle of two modules, one of three through which others lead in and out, and a module that imports
    itself."""
    imports = {
        "main": ["a", "one"],
        "a": ["b", "os"],
        "b": ["a", "two"],
        "one": ["two"],
        "two": ["three"],
        "three": ["one", "end"],
        "end": ["end"],
    }
    assert circles(imports) == [["a", "b"], ["one", "three", "two"]]


def test_a_module_that_two_others_import_is_no_circle() -> None:
    assert circles({"a": ["b", "c"], "b": ["d"], "c": ["d"], "d": []}) == []
