"""Test what dlapp-doctor says of a node's limits."""

from __future__ import annotations

import resource

import pytest

from dlapp.doctor import node


@pytest.mark.parametrize(
    ("hard", "verdict", "words"),
    [
        (4096, "warn", "a process may open 4096 files: an ApplicationMaster here serves 3840 tasks"),
        (200, "warn", "a process may open 200 files: an ApplicationMaster here serves 0 tasks"),
        (524_288, "pass", "a process may open 524288 files"),
        (resource.RLIM_INFINITY, "pass", "a process may open any number of files"),
    ],
)
def test_a_hard_limit_of_open_files_that_is_too_low_is_said(
    hard: int, verdict: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, hard))
    (found,) = node._files()
    assert (found.verdict, found.found) == (verdict, words)
    assert bool(found.repair) == (verdict == "warn")
