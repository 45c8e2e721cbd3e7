"""Notifications of applications that no ApplicationMaster tells of."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dlapp.cluster.local.notices import NOTIFY, waiting_after_s


def test_waiting_is_not_notified_without_settings(tmp_path: Path) -> None:
    assert waiting_after_s(str(tmp_path)) is None
    assert waiting_after_s(str(tmp_path / "gone")) is None


@pytest.mark.parametrize(
    ("settings", "after_s"),
    [
        ({"events": ["waiting"], "waiting_after_s": 60.0}, 60.0),
        ({"events": ["done"], "waiting_after_s": 60.0}, None),
        ({}, None),
        ({"events": 3}, None),
        ({"events": ["waiting"]}, None),
    ],
)
def test_the_time_is_that_of_the_settings(settings: object, after_s: float | None, tmp_path: Path) -> None:
    (tmp_path / NOTIFY).write_text(json.dumps(settings))
    assert waiting_after_s(str(tmp_path)) == after_s
