"""Test what lies where an application's journal should be, when a next attempt reads it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dlapp.am.application_dir import local
from dlapp.am.application_dir.local import LocalApplicationDir
from dlapp.errors import DlappError
from tests.attacks.hostile_files import Bait
from tests.attacks.identities import Identities, User
from tests.attacks.snapshots import contents_unchanged

Hostile = Callable[..., None]
BELIEVED = {"hard link": ["kept"], "writable by all": ["{}"]}
"""What is the user's own file: whoever could write it could write in the directory, which is the user's alone."""


def lines_in(directory: str) -> list[str] | str:
    try:
        return LocalApplicationDir(directory).all_journal_lines()
    except DlappError as error:
        return str(error)


def test_a_journal_that_is_no_file_of_the_users_is_refused_in_a_line(
    identities: Identities, victim: User, bait: Bait, hostile: Hostile
) -> None:
    home = identities.home(victim)
    hostile(home / "journal-1.jsonl", owner=victim, content=b"{}\n")
    with contents_unchanged(bait.top):
        found = identities.call(victim, lines_in, str(home))
    kind = hostile.kind  # type: ignore[attr-defined]
    if kind in BELIEVED:
        assert found == BELIEVED[kind]
    else:
        assert isinstance(found, str)
        assert found.startswith(f"{home}/journal-1.jsonl cannot be read: ")
        assert "\n" not in found


def test_a_journal_is_read_to_its_last_complete_line_and_no_further_than_its_limit(
    identities: Identities, victim: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = identities.home(victim)
    identities.call(victim, (home / "journal-1.jsonl").write_text, "1\n2\n")
    identities.call(victim, (home / "journal-2.jsonl").write_text, "3\n4")
    assert identities.call(victim, lines_in, str(home)) == ["1", "2", "3"]
    monkeypatch.setattr(local, "MAX_JOURNAL_BYTES", 3)
    found = identities.call(victim, lines_in, str(home))
    assert found == f"{home}/journal-1.jsonl cannot be read: has 4 bytes, at most 3 are allowed"
