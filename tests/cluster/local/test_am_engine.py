"""The embedded engine from its ApplicationMaster's side: real task processes, small ones."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from dlapp.am.decisions.assessment import of_end
from dlapp.cluster.engine import STATUS_UNKNOWN, ContainerEnd, ContainerRequest, Grant, TaskLaunch
from dlapp.cluster.local.am_engine import LocalAmEngine
from dlapp.cluster.local.attempts import DEVICES_RETURNED, alive_lock
from dlapp.cluster.local.settings import settings_of
from dlapp.cluster.local.state import is_locked
from dlapp.config import load_config
from dlapp.system import locks
from dlapp.values.ids import ContainerId
from dlapp.values.launch_spec import FILE_NAME, MACHINE, CacheSettings, LaunchSpec
from dlapp.values.report import Cause, FinalStatus
from dlapp.values.serialization import from_json, to_json
from dlapp.values.spec import Resources, Submission
from tests.services.polling import wait_until
from tests.services.processes.small_app import SMALL_AM, spec_of

SMALL = Resources(memory_mib=100, vcores=1)


class Am:
    """An ApplicationMaster's engine and its events."""

    def __init__(
        self,
        home: Path,
        program: Sequence[str],
        attempt: int = 1,
        containers: int = 3,
        gcores: int = 0,
        hold_fds: Sequence[int] = (),
        shared: bool = False,
        is_crash_settlement: bool = False,
    ) -> None:
        self.home = home
        (home / "containers").mkdir(parents=True, exist_ok=True)
        config = load_config({"local.state_dir": str(home.parents[1])}, environ={})
        settings = settings_of(config, program).to_json()
        (home / "engine.json").write_text(json.dumps({"settings": settings, "shared": shared, "umask": 0o027}))
        submission = Submission(
            spec=spec_of("x", memory_mib=100, containers=containers, gcores=gcores),
            workspace_archive="file:///nowhere",
            workspace_digest="sha256-00",
            submitter="tony",
            submitted_ms=1,
        )
        (home / "submission.json").write_text(json.dumps(to_json(submission)))
        self.alive = os.open(alive_lock(str(home), attempt), os.O_RDWR | os.O_CREAT)
        locks.try_lock(self.alive)
        self.woken = threading.Event()
        self.engine = LocalAmEngine(
            str(home), attempt, self.alive, hold_fds, self.woken.set, is_crash_settlement=is_crash_settlement
        )
        self.ended: dict[ContainerId, ContainerEnd] = {}
        self.failed: dict[ContainerId, ContainerEnd] = {}
        self.refused: dict[int, str] = {}

    def beat(self, *asks: ContainerRequest, releases: Sequence[ContainerId] = ()) -> tuple[Grant, ...]:
        """A heartbeat; the grants."""
        answer = self.engine.heartbeat(asks, releases, 0.0)
        self.ended.update((end.container_id, end) for end in answer.ended)
        self.failed.update((end.container_id, end) for end in answer.start_failed)
        self.refused.update(answer.refused)
        return answer.granted

    def start(self, grant: Grant, do: str, **env: str) -> Path:
        """Start a task that does ``do``; its directory."""
        container_id = grant.container_id
        launch = TaskLaunch(container_id=container_id, control_url="http://am:1", token="t", env={"DO": do, **env})
        self.engine.start(grant, launch)
        return self.home / "containers" / str(container_id)

    def end_of(self, grant: Grant) -> ContainerEnd:
        """Wait for a container's end, as an ApplicationMaster does: woken, then a heartbeat."""
        deadline = time.monotonic() + 120
        while grant.container_id not in self.ended:
            assert self.woken.wait(deadline - time.monotonic()), "nobody woke us"
            self.woken.clear()
            self.beat()
            assert grant.container_id not in self.failed, self.failed
        return self.ended[grant.container_id]


@pytest.fixture
def make_am(tmp_path: Path) -> Iterator[Callable[..., Am]]:
    """Make an ApplicationMaster's engine; nothing of it is left at the end."""
    made: list[Am] = []

    def make(program: Sequence[str] = (sys.executable, "-I", SMALL_AM), number: int | None = None, **more: Any) -> Am:
        home = tmp_path / "state" / "applications" / f"application_1700000000000_{number or len(made) + 1:04d}"
        made.append(Am(home, program, **more))
        return made[-1]

    yield make
    for am in made:
        for container_id in list(am.engine._containers):
            am.engine.stop(container_id)
        wait_until(lambda am=am: not am.engine._containers)  # type: ignore[misc]
        am.engine.finish(FinalStatus.SUCCEEDED, Cause.SUCCEEDED, "")
        os.close(am.alive)


@pytest.fixture
def am(make_am: Callable[..., Am]) -> Am:
    """One with three containers of 100 MiB to give."""
    return make_am()


def task_records(directory: Path) -> list[list[str]]:
    """Return what a task wrote down, without the times."""
    path = directory / "witness"
    return (
        [line.split(maxsplit=1)[1].split(maxsplit=2) for line in path.read_text().splitlines()] if path.exists() else []
    )


def ask(count: int, request_id: int = 7, resources: Resources = SMALL) -> ContainerRequest:
    return ContainerRequest(request_id=request_id, count=count, resources=resources)


@pytest.mark.proves("queue-tasks")
def test_the_group_can_open_a_containers_directory_only_when_its_lock_is_held(
    make_am: Callable[..., Am], monkeypatch: pytest.MonkeyPatch
) -> None:
    am = make_am(shared=True)
    opened, change = list[bool](), os.chmod

    def chmod(path: str, mode: int) -> None:
        if mode & 0o070:
            opened.append(is_locked(f"{path}/alive"))
        change(path, mode)

    monkeypatch.setattr(os, "chmod", chmod)
    am.engine.register("http://am:1")
    (grant,) = am.beat(ask(1))
    am.start(grant, "exit")
    wait_until(lambda: opened)
    assert opened == [True]


def test_containers_are_granted_at_once_and_numbered_as_on_yarn(am: Am) -> None:
    assert am.engine.register("http://am:1").limits.largest == Resources(memory_mib=300, vcores=3)
    grants = am.beat(ask(2))
    assert [str(grant.container_id) for grant in grants] == [
        "container_1700000000000_0001_01_000002",
        "container_1700000000000_0001_01_000003",
    ]
    assert [grant.request_id for grant in grants] == [7, 7]
    assert grants[0].node == os.uname().nodename
    assert grants[0].log_url == f"file://{am.home}/containers/{grants[0].container_id}"
    assert am.beat() == ()


def test_devices_are_held_until_their_return_is_written_down(am: Am) -> None:
    read, write = os.pipe()
    engine = LocalAmEngine(str(am.home), 1, am.alive, [write], am.woken.set)
    in_the_way = am.home / DEVICES_RETURNED
    in_the_way.mkdir()
    engine.release_devices()
    os.fstat(write)
    in_the_way.rmdir()
    for _ in range(2):
        engine.release_devices()
    assert in_the_way.is_file()
    assert os.read(read, 1) == b"", "the last descriptor of what holds them is closed"
    os.close(read)


def test_a_task_that_starts_when_the_devices_were_given_back_leases_others(make_am: Callable[..., Am]) -> None:
    read, write = os.pipe()
    am = make_am(gcores=1, hold_fds=[write])
    os.close(read)
    before, after = am.beat(ask(2))
    found = []
    for grant in (before, after):
        launch = from_json(LaunchSpec, json.loads((am.start(grant, "wait") / FILE_NAME).read_text()))
        assert launch.ledger is not None
        found.append(launch.ledger.application)
        am.engine.release_devices()
    assert found == [am.home.name, ""], "without an application, each lease reserves its own devices"


def test_devices_are_given_back_when_no_task_is_being_started_with_them(make_am: Callable[..., Am]) -> None:
    read, write = os.pipe()
    am = make_am(hold_fds=[write])
    held_before_close: list[int] = []

    class Watched:
        def __enter__(self) -> None:
            held_before_close.append(os.fstat(write).st_ino)

        def __exit__(self, *_: object) -> None:
            pass

    lock, am.engine._lock = am.engine._lock, Watched()  # type: ignore[assignment]
    am.engine.release_devices()
    am.engine._lock = lock
    assert len(held_before_close) == 1
    assert os.read(read, 1) == b""
    os.close(read)


def test_a_registration_has_the_address_of_the_attempt(am: Am) -> None:
    am.engine.register("http://am:4711")
    found = json.loads((am.home / "am.json").read_text())
    assert (found["pid"], found["attempt"], found["control_url"]) == (os.getpid(), 1, "http://am:4711")


def test_no_more_is_granted_than_was_reserved_and_the_rest_follows_when_one_ends(am: Am) -> None:
    grants = am.beat(ask(5))
    assert len(grants) == 3
    assert am.beat() == ()
    am.start(grants[0], "exit")
    am.end_of(grants[0])
    assert len(am.beat()) + 0 <= 1  # granted with the end, or just after it
    assert len(am.engine._containers) == 3


def test_the_last_request_of_a_role_counts(am: Am) -> None:
    am.beat(ask(5))
    am.beat(ask(0))
    (grant, *_) = am.engine._containers.values()
    am.beat(releases=[grant.grant.container_id])
    assert len(am.engine._containers) == 2
    assert am.beat() == ()


def test_a_container_larger_than_the_whole_reservation_is_refused(am: Am) -> None:
    assert am.beat(ask(1, resources=Resources(memory_mib=301))) == ()
    assert "more than was reserved" in am.refused[7]


def test_a_released_container_makes_room(am: Am) -> None:
    grants = am.beat(ask(3))
    assert len(am.beat(ask(1, request_id=8), releases=[grants[0].container_id])) == 1


def test_a_task_reads_its_applicationmasters_address_from_a_private_file(am: Am) -> None:
    (grant,) = am.beat(ask(1))
    directory = am.start(grant, "wait")
    launch = from_json(LaunchSpec, json.loads((directory / FILE_NAME).read_text()))
    assert (directory / FILE_NAME).stat().st_mode & 0o777 == 0o600
    assert launch.container_id == grant.container_id
    assert (launch.control_url, launch.token, launch.env) == ("http://am:1", "t", {"DO": "wait"})
    assert launch.ledger is not None
    assert (launch.ledger.kind, launch.ledger.lock_dir) == (MACHINE, "/run/lock/dlapp")
    assert launch.ledger.application == "application_1700000000000_0001"
    caches = f"{directory.parents[3]}/cache/{os.geteuid()}"
    assert launch.cache == CacheSettings(
        20 << 30,
        30 * 86400.0,
        directory=f"{caches}/input",
        payload_limit_bytes=50 << 30,
        payload_directory=f"{caches}/payload",
    )


@pytest.mark.parametrize("code", [0, 3])
def test_the_end_of_a_task_is_its_exit_code(am: Am, code: int) -> None:
    (grant,) = am.beat(ask(1))
    am.start(grant, "exit", CODE=str(code))
    assert am.end_of(grant).exit_status == code


def test_a_killed_task_ends_with_the_signal(am: Am) -> None:
    (grant,) = am.beat(ask(1))
    directory = am.start(grant, "wait")
    wait_until(lambda: task_records(directory))
    os.kill(int(task_records(directory)[0][1]), signal.SIGKILL)
    end = am.end_of(grant)
    assert (end.exit_status, end.diagnostics) == (-signal.SIGKILL, "")
    assert of_end(end).reason == "the task was killed by signal 9"


def test_a_container_has_ended_when_its_last_process_is_gone_and_not_before(
    am: Am, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What outlives its task is killed after a while.
    monkeypatch.setattr("dlapp.cluster.local.am_engine.STRAYS_AFTER_S", 600.0)
    (grant,) = am.beat(ask(1))
    directory = am.start(grant, "leave")
    am.end_of(grant)
    assert task_records(directory)[-1] == ["left"]
    assert not is_locked(str(directory / "alive"))


def test_processes_that_outlive_a_task_and_its_guardians_are_killed(
    am: Am, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("dlapp.cluster.local.am_engine.STRAYS_AFTER_S", 0.2)
    (grant,) = am.beat(ask(1))
    directory = am.start(grant, "stay")
    assert am.end_of(grant).exit_status == 0
    assert not is_locked(str(directory / "alive"))
    assert f"{grant.container_id}: killed orphaned processes: process " in capfd.readouterr().out


def test_a_task_in_a_session_of_its_own_has_the_locks(am: Am) -> None:
    (grant,) = am.beat(ask(1))
    first = am.start(grant, "wait")
    wait_until(lambda: task_records(first))
    assert task_records(first)[0][2] == "[3, 4]"
    assert is_locked(str(first / "alive"))
    pid = int(task_records(first)[0][1])
    assert os.getsid(pid) == pid


def test_a_stop_ends_a_task_and_a_second_one_changes_nothing(am: Am) -> None:
    (grant,) = am.beat(ask(1))
    directory = am.start(grant, "wait")
    wait_until(lambda: task_records(directory))
    am.engine.stop(grant.container_id)
    am.engine.stop(grant.container_id)
    assert am.end_of(grant).exit_status == -signal.SIGTERM
    am.engine.stop(grant.container_id)


def test_a_task_that_does_not_listen_is_killed(am: Am, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dlapp.cluster.local.am_engine.TERM_GRACE_S", 0.1)
    (grant,) = am.beat(ask(1))
    directory = am.start(grant, "stubborn")
    wait_until(lambda: task_records(directory))
    time.sleep(0.05)  # until it ignores SIGTERM
    am.engine.stop(grant.container_id)
    assert am.end_of(grant).exit_status in (-signal.SIGKILL, -signal.SIGTERM)


def test_a_container_that_is_stopped_before_it_was_started_ends_as_well(am: Am) -> None:
    (grant,) = am.beat(ask(1))
    am.engine.stop(grant.container_id)
    assert am.end_of(grant).exit_status == -signal.SIGTERM
    am.start(grant, "exit")
    assert not (am.home / "containers" / str(grant.container_id)).exists()


def test_no_more_tasks_start_at_a_time_than_there_are_cores(
    make_am: Callable[..., Am], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dlapp.cluster.local.am_engine.cores", lambda: 2)
    monkeypatch.setattr("dlapp.cluster.local.am_engine.STARTING_S", 600.0)
    am = make_am(containers=5)
    grants = am.beat(ask(5))
    homes = [am.start(grant, "load") for grant in grants]
    wait_until(lambda: task_records(homes[0]) and task_records(homes[1]))
    assert [home.exists() for home in homes] == [True, True, False, False, False]
    (homes[0] / "loaded").touch()
    wait_until(lambda: task_records(homes[2]))
    assert not homes[3].exists()
    os.kill(int(task_records(homes[1])[0][1]), signal.SIGKILL)
    wait_until(lambda: task_records(homes[3]))
    am.engine.stop(grants[4].container_id)
    assert am.end_of(grants[4]).exit_status == -signal.SIGTERM
    (homes[2] / "loaded").touch()
    (homes[3] / "loaded").touch()
    wait_until(lambda: am.engine._starting == 0)
    assert not homes[4].exists()


def test_a_task_that_hangs_while_it_starts_keeps_others_waiting_for_a_moment_only(
    make_am: Callable[..., Am], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dlapp.cluster.local.am_engine.cores", lambda: 1)
    monkeypatch.setattr("dlapp.cluster.local.am_engine.STARTING_S", 0.1)
    am = make_am()
    homes = [am.start(grant, "load") for grant in am.beat(ask(3))]
    wait_until(lambda: task_records(homes[2]))


def test_a_task_that_cannot_be_started_is_the_nodes_fault(make_am: Callable[..., Am]) -> None:
    am = make_am(program=("/nowhere/python",))
    (grant,) = am.beat(ask(1))
    am.start(grant, "exit")
    assert am.woken.is_set()
    am.beat()
    end = am.failed[grant.container_id]
    assert end.node_fault
    assert end.diagnostics == "the task could not be started: No such file or directory"
    assert len(am.beat(ask(3))) == 3


def test_many_containers_cost_two_descriptors_each_while_they_start(make_am: Callable[..., Am]) -> None:
    am = make_am(containers=50, program=("/bin/sleep",))  # it ends at once: its words are no number
    before = len(os.listdir("/proc/self/fd"))
    grants = am.beat(ask(50))
    for grant in grants:
        am.start(grant, "exit")
    assert len(os.listdir("/proc/self/fd")) <= before + 2 * 50 + 2
    for grant in grants:
        am.end_of(grant)
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before + 2)


def test_the_end_is_written_even_after_the_exit_watcher_stopped(am: Am, monkeypatch: pytest.MonkeyPatch) -> None:
    (grant,) = am.beat(ask(1))
    am.start(grant, "exit")
    am.end_of(grant)
    real = am.engine._nudge_reaper

    def late() -> None:
        real()  # as a task that ends just then would
        if am.engine._reaper is not None:
            am.engine._reaper.join()
        real()

    monkeypatch.setattr(am.engine, "_nudge_reaper", late)
    assert am.engine.finish(FinalStatus.SUCCEEDED, Cause.SUCCEEDED, "")
    assert am.engine.finish(FinalStatus.SUCCEEDED, Cause.SUCCEEDED, "")


def test_an_outcome_is_written_once(make_am: Callable[..., Am]) -> None:
    am = make_am()
    am.engine.finish(FinalStatus.FAILED, Cause.FAILED, "payload of worker_0 ended with code 3")
    am.engine.finish(FinalStatus.SUCCEEDED, Cause.SUCCEEDED, "")
    outcome = json.loads((am.home / "outcome.json").read_text())
    assert outcome.pop("finished_ms") > 0
    assert outcome == {
        "state": "FINISHED",
        "final_status": "FAILED",
        "cause": "failed",
        "diagnostics": "payload of worker_0 ended with code 3",
    }


@pytest.mark.parametrize(
    ("is_crash_settlement", "status", "cause", "state"),
    [
        (False, FinalStatus.KILLED, Cause.KILLED, "KILLED"),
        (False, FinalStatus.KILLED, Cause.SOFT_KILLED, "FINISHED"),
        (False, FinalStatus.FAILED, Cause.TIMED_OUT, "FINISHED"),
        (False, FinalStatus.FAILED, Cause.FAILED, "FINISHED"),
        (True, FinalStatus.FAILED, Cause.FAILED, "FAILED"),
        (True, FinalStatus.SUCCEEDED, Cause.SUCCEEDED, "FINISHED"),
    ],
)
def test_states_of_the_end_are_yarns(
    make_am: Callable[..., Am], is_crash_settlement: bool, status: FinalStatus, cause: Cause, state: str
) -> None:
    am = make_am(attempt=2, is_crash_settlement=is_crash_settlement)
    am.engine.finish(status, cause, "")
    assert json.loads((am.home / "outcome.json").read_text())["state"] == state


def test_an_error_of_the_exit_watcher_is_raised_by_the_next_heartbeat(am: Am, monkeypatch: pytest.MonkeyPatch) -> None:
    (grant,) = am.beat(ask(1))

    def fail(path: str) -> bool:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("dlapp.cluster.local.am_engine.is_locked", fail)
    am.start(grant, "exit")
    assert am.woken.wait(120)
    with pytest.raises(OSError, match="Too many open files"):
        am.beat()
    am.engine._containers.clear()
    am.engine._broken = None


# ---- the next attempt ----


def test_the_next_attempt_takes_over_containers_with_their_resources(make_am: Callable[..., Am]) -> None:
    first = make_am()
    lives, ends = first.beat(ask(2))
    directory = first.start(lives, "wait")
    first.start(ends, "exit")
    wait_until(lambda: task_records(directory))
    first.end_of(ends)
    second = make_am(number=1, attempt=2)
    registered = second.engine.register("http://am:2")
    assert registered.live == (lives,)
    assert registered.is_complete
    new = second.beat(ask(5))
    assert [str(container.container_id) for container in new] == [
        "container_1700000000000_0001_02_000002",
        "container_1700000000000_0001_02_000003",
    ]
    assert json.loads((second.home / "am.json").read_text())["attempt"] == 2
    second.engine.stop(lives.container_id)
    second.engine.stop(lives.container_id)
    # Whichever of the two collects it; to another process it is no child.
    ends_seen = {second.end_of(lives).exit_status, first.end_of(lives).exit_status}
    assert ends_seen == {STATUS_UNKNOWN, -signal.SIGTERM}
    second.beat()
    assert len(second.engine._containers) == 3


def test_a_container_of_an_earlier_attempt_that_does_not_listen_is_killed(
    make_am: Callable[..., Am], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dlapp.cluster.local.am_engine.TERM_GRACE_S", 0.1)
    first = make_am()
    (grant,) = first.beat(ask(1))
    directory = first.start(grant, "stubborn")
    wait_until(lambda: task_records(directory))
    second = make_am(number=1, attempt=2)
    second.engine.register("http://am:2")
    second.engine.stop(grant.container_id)
    second.end_of(grant)
    assert not is_locked(str(directory / "alive"))
