"""Test the wait for a ZooKeeper that is away."""

from __future__ import annotations

import contextlib

import pytest

from dlapp.errors import Unreachable
from dlapp.gpuid.stores.ensemble import Ensemble
from dlapp.system import waits


def test_a_command_that_waits_for_zookeeper_prints_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "SHOWN_AFTER_S", 0.0)
    shown, now_s = list[str](), [0.0]

    def sleep(seconds: float) -> None:
        shown.append(waits.longest_text())
        now_s[0] += 10.0

    ensemble = Ensemble(
        "127.0.0.1:1", root="/x", credentials="", session_timeout_s=1.0, clock=lambda: now_s[0], sleep=sleep
    )
    with contextlib.closing(ensemble), pytest.raises(Unreachable):
        ensemble.connect(30.0)
    assert shown
    assert all(text.startswith("waits for ZooKeeper at 127.0.0.1:1 since ") for text in shown)
    assert waits.long_waits() == []
