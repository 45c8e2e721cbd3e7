"""The table of docs/security.md is what the marks of the tests say."""

from __future__ import annotations

import pytest

from tests.project.security_table import PAGE, page_with_table, proofs, threats

pytestmark = pytest.mark.xdist_group("project")  # one worker reads the whole code, and not each of them


def test_the_page_on_security_has_the_table_that_the_marks_make() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page_with_table(page) == page


def test_each_threat_has_a_test_and_each_mark_a_threat() -> None:
    assert set(proofs()) == set(threats())


def test_the_page_on_security_names_no_test() -> None:
    assert "::" not in PAGE.read_text(encoding="utf-8")
