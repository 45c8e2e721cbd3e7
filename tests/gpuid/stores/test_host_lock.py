"""Turns at a host's record: they are taken, nobody waits long for one, and without one all is as right as with it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dlapp.gpuid.rules import LeaseRequest
from dlapp.gpuid.stores.host_lock import MAX_WAIT_S, NAME, STILL_S, HostWriteLock
from tests.services.users import place_for_everybody

Open = Callable[..., Any]
HOLD = (
    "import sys, time\nfrom dlapp.gpuid.stores.host_lock import HostWriteLock\n"
    "with HostWriteLock(sys.argv[1], clock=time.monotonic, sleep=time.sleep).acquire() as turn:\n"
    "    turn.record_version(7)\n    print(turn.is_stale(6), flush=True)\n    time.sleep(600)\n"
)


def turns(directory: Path) -> HostWriteLock:
    return HostWriteLock(str(directory), clock=time.monotonic, sleep=time.sleep)


def is_taken(directory: Path) -> bool:
    """Return whether a turn can be had, and how long that took does not matter."""
    one = turns(directory)
    with one.acquire() as turn:
        turn.record_version(9)
        had = turn.is_stale(8)
    one.close()
    return not had


@pytest.fixture
def holder() -> Iterator[Callable[[Path], subprocess.Popen[str]]]:
    """A process that has a turn."""
    started: list[subprocess.Popen[str]] = []

    def start(directory: Path) -> subprocess.Popen[str]:
        process = subprocess.Popen([sys.executable, "-c", HOLD, str(directory)], stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "True\n"
        return process

    yield start
    for item in started:
        item.kill()
        item.communicate()


class Waiting:
    """Waiter for a turn with a clock of its own, by which its holder writes every few moments and then lets go."""

    def __init__(self, directory: Path, *, writes_until_s: float, ends_s: float) -> None:
        self.now_s, self.writes_until_s, self.ends_s = 0.0, writes_until_s, ends_s
        self.holder = turns(directory)
        self.holding = contextlib.ExitStack()
        self.turn = self.holding.enter_context(self.holder.acquire())
        self.turn.record_version(1)
        self.turns = HostWriteLock(str(directory), clock=lambda: self.now_s, sleep=self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        if self.now_s < self.writes_until_s:
            self.turn.record_version(int(self.now_s * 1000) + 1)
        if self.now_s >= self.ends_s:
            self.holding.close()

    def take(self) -> tuple[bool, float]:
        """Return whether it got its turn, and when [s]."""
        with self.turns.acquire() as turn:
            turn.record_version(5000)
            return turn.is_stale(4999), self.now_s

    def close(self) -> None:
        self.holding.close()
        self.turns.close()
        self.holder.close()


@pytest.mark.parametrize(
    ("writes_until_s", "ends_s", "gets_it", "at_s"),
    [
        (0.0, 0.05, True, 0.05),
        (0.0, 9.0, False, STILL_S),
        (0.5, 0.5, True, 0.5),
        (0.5, 9.0, False, 0.5 + STILL_S),
        (9.0, 9.0, False, MAX_WAIT_S),
    ],
    ids=["soon over", "stands still", "writes", "writes, then stands still", "writes for ever"],
)
def test_a_turn_is_waited_for_as_long_as_its_holder_writes(
    tmp_path: Path, writes_until_s: float, ends_s: float, gets_it: bool, at_s: float
) -> None:
    waiting = Waiting(tmp_path, writes_until_s=writes_until_s, ends_s=ends_s)
    got, now_s = waiting.take()
    assert got == gets_it
    assert at_s - 0.05 <= now_s <= at_s + 0.05
    waiting.close()


def test_a_turn_has_the_version_of_the_last_write(tmp_path: Path) -> None:
    first, second = turns(tmp_path), turns(tmp_path)
    with first.acquire() as turn:
        assert not turn.is_stale(0)
        turn.record_version(4)
    with second.acquire() as turn:
        assert [turn.is_stale(version) for version in (3, 4, 5)] == [True, False, False]
    first.close()
    second.close()


def test_a_holder_that_is_killed_has_its_turn_no_more(
    tmp_path: Path, holder: Callable[[Path], subprocess.Popen[str]]
) -> None:
    process = holder(tmp_path)
    assert is_taken(tmp_path)
    process.kill()
    process.wait()
    assert not is_taken(tmp_path)


def test_a_holder_that_is_stopped_delays_a_lease_by_a_moment_only(
    on_zookeeper: Open,
    settings: Any,
    holder: Callable[[Path], subprocess.Popen[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ledger = on_zookeeper()
    ledger.acquire(LeaseRequest("application_1_0001", "c0", "tony", 1)).release()
    process = holder(Path(settings.lock_dir))
    process.send_signal(signal.SIGSTOP)
    pauses_s: list[float] = []
    monkeypatch.setattr(ledger._turns, "_clock", lambda: sum(pauses_s))
    monkeypatch.setattr(ledger._turns, "_sleep", pauses_s.append)
    assert ledger.acquire(LeaseRequest("application_1_0001", "c1", "tony", 4)).release()
    # One wait for the lease, one for its release.
    assert 2 * STILL_S <= sum(pauses_s) < 3 * STILL_S


def test_a_stale_local_turn_is_detected_before_the_write(on_zookeeper: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger, other = on_zookeeper(), on_zookeeper()
    written: list[int] = []
    write = other._ensemble.write

    def noted(path: str, data: bytes, version: int, deadline: float) -> int:
        written.append(version)
        answer: int = write(path, data, version, deadline)
        return answer

    monkeypatch.setattr(other._ensemble, "write", noted)
    ledger.acquire(LeaseRequest("application_1_0001", "c0", "tony", 1)).release()
    for number in range(3):
        other.acquire(LeaseRequest("application_1_0001", "c1", "tony", 1)).release()
        assert len(written) == 2 * (number + 1)
        ledger.acquire(LeaseRequest("application_1_0001", "c2", "tony", 1)).release()


@pytest.mark.parametrize("trick", ["a directory", "a link", "a FIFO", "garbage"])
def test_an_invalid_lock_file_does_not_prevent_a_lease(
    on_zookeeper: Open, settings: Any, tmp_path: Path, trick: str
) -> None:
    path = Path(settings.lock_dir) / NAME
    path.parent.mkdir(mode=0o777)
    if trick == "a directory":
        path.mkdir()
    elif trick == "a link":
        path.symlink_to(tmp_path / "elsewhere")
    elif trick == "a FIFO":
        os.mkfifo(path)
    else:
        path.write_bytes(b"\xff" * 100)
    first, second = on_zookeeper(), on_zookeeper()
    for number in range(2):
        lease = first.acquire(LeaseRequest("application_1_0001", f"c{number}", "tony", 2))
        assert second.acquire(LeaseRequest("application_1_0001", f"d{number}", "tony", 2)).release()
        assert lease.release()
    assert first.record().leases == ()
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.root
def test_a_file_that_not_everybody_may_open_is_done_without() -> None:
    with place_for_everybody("turns", 0o1777) as directory:
        (directory / NAME).touch(0o600)
        if (child := os.fork()) == 0:
            os.setuid(65534)
            os._exit(int(is_taken(directory)))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
        # Not even by root: it may be another's file, linked here, whose locks mean something else.
        assert is_taken(directory)
