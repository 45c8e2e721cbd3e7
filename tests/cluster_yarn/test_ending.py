"""What dlapp-kill does with what a killed application leaves, and what it says of it."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from dlapp.cluster.yarn import ending
from dlapp.cluster.yarn.ending import Ender
from dlapp.cluster.yarn.rest import AppReport, YarnRest
from dlapp.cluster.yarn.sweeping import COMMITTED, GONE_AFTER_S
from dlapp.errors import Denied, TimedOut, Unreachable
from dlapp.ids import ApplicationId
from dlapp.login import Login
from dlapp.report import ApplicationView, FinalStatus, State
from tests.cluster_yarn.test_sweeping import APP, PLACES, A, Memory, stage

RUNNING = AppReport(
    application_id=APP, user="tony", name="", queue="", state=State.RUNNING, final_status=FinalStatus.UNDEFINED
)


@pytest.fixture
def files() -> Memory:
    return Memory()


@pytest.fixture
def slept(files: Memory, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long was waited, each time with nothing settled before."""
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        assert not files.settled
        waits.append(seconds)

    monkeypatch.setattr(ending, "time", SimpleNamespace(sleep=sleep))
    return waits


def killed(files: Memory) -> str:
    rest = SimpleNamespace(kill=lambda application_id, timeout_s: State.KILLED)
    there = SimpleNamespace(user="tony", files=lambda user: files, rest=lambda user=None: rest)
    looker = SimpleNamespace(report=lambda application_id: RUNNING)
    return Ender(there, None, looker).kill(APP, "tony")  # type: ignore[arg-type]


def test_output_of_a_killed_application_goes_when_its_processes_are_gone(files: Memory, slept: list[float]) -> None:
    stage(files)
    assert killed(files) == f"{APP} was killed, no output kept"
    assert slept == [GONE_AFTER_S]
    assert files.settled[0] == (A, False)


def test_a_commit_that_a_kill_cut_off_is_finished_and_said(files: Memory, slept: list[float]) -> None:
    stage(files, claim=[{"target": A, "overwrite": False, "parts": {"": "hdfs://nn/p"}}])
    assert killed(files) == f"{APP} was killed, {COMMITTED}"
    assert slept == [GONE_AFTER_S]
    assert files.settled == [(A, [("", "hdfs://nn/p")], False)]


def test_nobody_waits_where_nothing_was_stored(files: Memory, slept: list[float]) -> None:
    assert killed(files) == f"{APP} was killed, no output kept"
    assert slept == []


def test_what_cannot_be_settled_does_not_hide_that_it_was_killed(files: Memory, slept: list[float]) -> None:
    stage(files)
    files.refuses[A] = Denied("not yours")
    assert killed(files) == (
        f"{APP} was killed, but its output cannot be settled now: not yours; your next command tries it again"
    )


def test_how_long_ago_is_by_the_resourcemanagers_clock() -> None:
    now_ms = int(time.time() * 1000)
    with YarnRest(["http://127.0.0.1:1"], Login("tony")) as rest:
        ended = AppReport(
            application_id=APP,
            user="tony",
            name="",
            queue="",
            state=State.KILLED,
            final_status=FinalStatus.KILLED,
            finished_ms=now_ms - 7_000,
        )
        assert rest.ended_ago_s(ended) == pytest.approx(7, abs=2)
        rest.server_time_s = now_ms // 1000 - 3600
        assert rest.ended_ago_s(ended) < -3590
        assert rest.ended_ago_s(RUNNING) == 0
