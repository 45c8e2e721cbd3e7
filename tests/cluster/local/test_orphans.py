"""Test which processes are proven to be an application's, and that those and no others are ended."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlapp.cluster.local.runner import orphans
from dlapp.cluster.local.state import is_locked
from dlapp.system import locks
from dlapp.system.processes.proc import read_proc
from tests.services.polling import wait_until

# Processes are found on the whole machine, where another run of these tests may have its own.
NAME = f"application_{os.getpid()}_0001"
CONTAINER = f"container_{os.getpid()}_0001_01_000002"
DAEMON = """
import os, sys
if os.fork(): os._exit(0)
os.setsid()
open(sys.argv[1], "w").write(str(os.getpid()))
os.execve("/bin/sleep", ["sleep", "300"], {})
"""


class Place:
    """An application's directory with one container, and sleeping processes around it."""

    def __init__(self, top: Path) -> None:
        self.top, self.home = top, top / "applications" / NAME
        self.container = self.home / "containers" / CONTAINER
        (self.container / "workspace").mkdir(parents=True)
        self.runner_lock = top / f"runner-{os.geteuid()}.lock"
        for path in (self.home / "alive", self.container / "alive", self.runner_lock):
            path.touch()
        os.mkfifo(self.container / "life")
        self.started: list[subprocess.Popen[bytes]] = []
        self.more: list[int] = []

    def sleeper(self, *fds: int, env: dict[str, str] | None = None, cwd: Path | None = None) -> int:
        """A process with these descriptors; it is not there any more for us once it is killed."""
        words = ["/bin/sleep", "300"]
        self.started.append(subprocess.Popen(words, pass_fds=fds, env=env or {}, cwd=cwd or "/"))
        return self.started[-1].pid

    def locked(self, path: Path) -> int:
        fd = os.open(path, os.O_RDWR)
        assert locks.try_lock(fd)
        return fd

    def find_pids(self) -> list[int]:
        return [process.pid for process in orphans.find(str(self.home), os.geteuid(), str(self.runner_lock))]

    def end(self) -> list[int]:
        return orphans.end(str(self.home), os.geteuid(), str(self.runner_lock))

    def clear(self) -> None:
        for process in self.started:
            process.kill()
            process.wait()
        for pid in self.more:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setattr(orphans, "_GONE_S", 120.0)  # so long the ends of the killed are waited for
    place = Place(tmp_path)
    yield place
    place.clear()


@pytest.mark.parametrize("which", ["home", "container"])
def test_a_process_that_inherited_a_lock_is_proven_and_one_that_opened_it_is_not(place: Place, which: str) -> None:
    path = getattr(place, which) / "alive"
    mine = place.locked(path)
    holder = place.sleeper(mine)
    looks, opened = os.open(path, os.O_RDONLY), os.open(path, os.O_RDWR)
    place.sleeper(looks, opened)
    for fd in (mine, looks, opened):
        os.close(fd)
    assert place.find_pids() == [holder]
    assert place.end() == [holder]
    assert not is_locked(str(path))
    assert [process.poll() for process in place.started] == [-signal.SIGKILL, None]


def test_a_reader_of_a_lifeline_is_proven_and_a_prober_is_not(place: Place) -> None:
    life = place.container / "life"
    reading = os.open(life, os.O_RDONLY | os.O_NONBLOCK)
    writing = os.open(life, os.O_WRONLY | os.O_NONBLOCK)
    reader = place.sleeper(reading)
    place.sleeper(writing)
    os.close(reading)
    os.close(writing)
    assert place.find_pids() == [reader]


def test_the_environment_proves_by_the_container_or_by_the_application_together_with_the_place(place: Place) -> None:
    of_application = {"DLAPP_APP_ID": NAME}
    mine = [
        place.sleeper(env={"DLAPP_CONTAINER_ID": CONTAINER}),
        place.sleeper(env=of_application, cwd=place.container / "workspace"),
    ]
    place.sleeper(env=of_application)
    place.sleeper(env={"DLAPP_CONTAINER_ID": f"{CONTAINER}0"})
    place.sleeper(env={"DLAPP_APP_ID": "application_1_0002"}, cwd=place.container / "workspace")
    assert place.find_pids() == sorted(mine)


def test_a_shell_in_the_workspace_is_spared_and_a_daemon_there_is_killed(place: Place) -> None:
    place.sleeper(cwd=place.container / "workspace")
    note = place.top / "pid"
    subprocess.run([sys.executable, "-c", DAEMON, note], cwd=place.container / "workspace", check=True)
    wait_until(lambda: note.exists() and note.read_text())
    daemon = int(note.read_text())
    place.more.append(daemon)
    parent = Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()[1]
    if parent != "1":
        pytest.skip(f"here process {parent} adopts orphans, and not init")
    assert place.find_pids() == [daemon]


def test_descendants_of_a_proven_process_are_included(place: Place) -> None:
    note = place.top / "pid"
    script = '(env -i sleep 300 & echo $! > "$0"; wait) & wait'
    shell = subprocess.Popen(["/bin/sh", "-c", script, note], env={"DLAPP_CONTAINER_ID": CONTAINER, "PATH": "/bin"})
    place.started.append(shell)
    wait_until(lambda: note.exists() and note.read_text().strip())
    child = int(note.read_text())
    place.more.append(child)
    assert {shell.pid, child} <= set(place.find_pids())
    assert {shell.pid, child} <= set(place.end())
    assert place.find_pids() == []


def test_the_runner_and_its_children_are_spared_even_below_a_payload(place: Place) -> None:
    runner = place.locked(place.runner_lock)
    mine = place.locked(place.home / "alive")
    place.sleeper(runner, mine)
    assert place.find_pids() == []
    os.close(mine)
    os.close(runner)


@pytest.mark.root("to start another user's process")
def test_another_users_process_is_not_touched(place: Place) -> None:
    other = subprocess.Popen(["/bin/sleep", "300"], env={"DLAPP_CONTAINER_ID": CONTAINER}, user=60_103, cwd="/")
    place.started.append(other)
    assert place.find_pids() == []
    assert [process.pid for process in orphans.find(str(place.home), 60_103, str(place.runner_lock))] == [other.pid]


def test_a_process_that_ends_during_the_scan_is_passed_over(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    life = os.open(place.container / "life", os.O_RDONLY | os.O_NONBLOCK)
    pid = place.sleeper(life)
    os.close(life)
    assert place.find_pids() == [pid]

    monkeypatch.setattr(
        orphans, "read_proc", lambda pid, name: b"" if name.startswith("fdinfo/") else read_proc(pid, name)
    )
    assert place.find_pids() == []


def test_processes_get_time_to_end_by_themselves_and_tasks_get_more(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("dlapp.cluster.local.runner.orphans.time.monotonic", lambda: now)
    kinds = ["", "task"]
    monkeypatch.setattr(orphans, "find", lambda *_: [orphans.OrphanProcess(1, 1, kind) for kind in kinds])
    monkeypatch.setattr(orphans, "end", lambda *_: [1])
    left = orphans.OrphanReaper(str(place.home), os.geteuid(), str(place.runner_lock))
    assert left.end_in_time() == []
    now += orphans.GRACE_S
    assert left.end_in_time() == []
    kinds.remove("task")
    assert left.end_in_time() == [1]
    kinds.append("task")
    now += orphans.TASK_GRACE_S
    assert left.end_in_time() == [1]
    kinds.append("am")
    assert left.end_in_time() == []
    kinds.remove("am")
    assert left.end_in_time() == [], "it was there a moment ago"


def test_process_scans_take_a_tenth_of_the_time_for_any_call_rate(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, scans = 100.0, list[float]()

    def scan(*_: object) -> list[orphans.OrphanProcess]:
        nonlocal now
        scans.append(now)
        now += 0.05
        return [orphans.OrphanProcess(1, 1, "task")]

    monkeypatch.setattr("dlapp.cluster.local.runner.orphans.time.monotonic", lambda: now)
    monkeypatch.setattr(orphans, "find", scan)
    monkeypatch.setattr(orphans, "_stop_tasks", lambda *_: None)
    left = orphans.OrphanReaper(str(place.home), os.geteuid(), str(place.runner_lock))
    while now < 105.0:
        assert left.end_in_time() == []
        now += 0.002
    assert scans[0] == 100.0
    assert 2 <= len(scans) <= (now - 100.0) * orphans.SCAN_SHARE / 0.05
