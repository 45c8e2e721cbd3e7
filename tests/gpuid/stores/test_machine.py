"""The machine's ledger: real processes, real kernel locks, GPUs that are nowhere."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dlapp.errors import RequestTooLarge
from dlapp.gpuid.devices import Device
from dlapp.gpuid.health.nvml import NvmlError
from dlapp.gpuid.liveness.probes import LivenessProbes
from dlapp.gpuid.liveness.result import ALIVE, GONE, Liveness
from dlapp.gpuid.rules import NEEDS_RESET, LeaseRequest, LedgerError, NotEnough
from dlapp.gpuid.stores.device_files import Directory
from dlapp.gpuid.stores.machine import MachineLedger
from dlapp.system import locks
from dlapp.system.owners import user_text
from tests.services.polling import wait_until
from tests.services.processes import ledger_process
from tests.services.processes.ledger_process import fake_devices
from tests.services.users import interpreter_for_everybody, place_for_everybody
from tests.tiers import FULL

APP, OTHER = "application_1700000000000_0001", "application_1700000000000_0002"
ANN, TONY = 60001, 60002
ME = user_text(os.geteuid())
"""Whom the ledger names as the holder: who runs the tests."""


@pytest.fixture
def directory() -> Iterator[Path]:
    """A place that every user of the machine may look into, as /run/lock is."""
    with place_for_everybody("ledger", 0o1777) as top:
        yield top / "locks"


@pytest.fixture
def shared(directory: Path) -> Path:
    """The directory, made by root for everybody."""
    directory.mkdir()
    directory.chmod(0o1777)
    return directory


@pytest.fixture
def ledger(directory: Path) -> MachineLedger:
    """A ledger of four GPUs, as this process sees it."""
    return MachineLedger(str(directory), discover=lambda: fake_devices(4))


class User:
    """Another process that uses the ledger."""

    def __init__(self, directory: Path, uid: int | None) -> None:
        python = sys.executable if uid is None else str(interpreter_for_everybody())
        command = [python, "-I", ledger_process.__file__, str(directory), "4"]
        if uid is not None:
            command = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", *command]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __call__(self, do: str, name: str = "", **more: Any) -> Any:
        """Make it do something; what it answers."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"do": do, "name": name, **more}) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


@pytest.fixture
def user(directory: Path) -> Iterator[Callable[..., User]]:
    """Start processes that use the ledger; they are killed at the end."""
    users: list[User] = []

    def start(uid: int | None = None) -> User:
        users.append(User(directory, uid))
        return users[-1]

    yield start
    for item in users:
        item.kill()


def test_a_joined_reservation_outlives_its_creator(ledger: MachineLedger) -> None:
    assert ledger.join_reservation(APP) is None
    first = ledger.reserve(APP, 2)
    joined = ledger.join_reservation(APP)
    assert joined is not None
    assert joined.devices == first.devices
    first.close()
    with pytest.raises(NotEnough, match=rf"needs 3 gcores, 2 free: gpu0 {APP} \({ME}\), gpu1 {APP} "):
        ledger.reserve(OTHER, 3)
    with ledger.lease(LeaseRequest(APP, "container", "tony", 2)) as lease:
        assert lease.devices == first.devices
    joined.close()
    assert ledger.join_reservation(APP) is None
    ledger.reserve(OTHER, 4).close()


def test_a_reservation_is_for_all_devices_or_none(ledger: MachineLedger) -> None:
    with ledger.reserve(APP, 3):
        with pytest.raises(NotEnough, match=rf"needs 2 gcores, 1 free: gpu0 application_\d+_0001 \({ME}\), gpu1 "):
            ledger.reserve(OTHER, 2)
        assert len(ledger.holders()) == 3
        with ledger.reserve(OTHER, 1) as one:
            assert [device.index for device in one.devices] == [3]


def test_devices_of_a_closed_reservation_are_free_at_once(ledger: MachineLedger) -> None:
    for _ in range(3):
        ledger.reserve(APP, 4).close()
    assert ledger.holders() == {}


def test_an_ask_for_more_than_there_is_is_refused_with_the_numbers(ledger: MachineLedger) -> None:
    with pytest.raises(RequestTooLarge, match="asked for 5 gcores, this machine has 4"):
        ledger.reserve(APP, 5)
    with pytest.raises(LedgerError, match="the minimum is 1"):
        ledger.reserve(APP, 0)


def test_without_devices_the_ledger_is_empty_and_creates_no_directory(directory: Path) -> None:
    ledger = MachineLedger(str(directory), discover=lambda: ())
    assert (ledger.devices(), ledger.holders()) == ((), {})
    assert not directory.exists()


def test_a_lease_takes_only_devices_reserved_for_its_application(ledger: MachineLedger) -> None:
    with ledger.reserve(APP, 2), ledger.reserve(OTHER, 2) as others:
        with ledger.lease(LeaseRequest(OTHER, "c2", "ann", 2)) as lease:
            assert lease.devices == others.devices
        with pytest.raises(NotEnough, match="asked for 3 gcores, 2 are reserved for"):
            ledger.lease(LeaseRequest(APP, "c1", "tony", 3))


def test_containers_lease_free_devices_after_their_reservation_was_released(ledger: MachineLedger) -> None:
    with ledger.reserve(OTHER, 2):
        first, second = (ledger.acquire(LeaseRequest(APP, name, "tony", 1)) for name in ("c1", "c2"))
        assert {device.index for lease in (first, second) for device in lease.devices} == {2, 3}
        with pytest.raises(NotEnough):
            ledger.acquire(LeaseRequest(APP, "c3", "tony", 1))
        first.release()
        second.release()
        assert {holder.application for holder in ledger.holders().values()} == {OTHER}


def test_containers_of_one_application_never_share_a_device(ledger: MachineLedger) -> None:
    with ledger.reserve(APP, 3):
        first = ledger.lease(LeaseRequest(APP, "c1", "tony", 2))
        second = ledger.lease(LeaseRequest(APP, "c2", "tony", 1))
        assert not {device.uuid for device in first.devices} & {device.uuid for device in second.devices}
        with pytest.raises(NotEnough, match="needs 1 gcore, 0 free"):
            ledger.lease(LeaseRequest(APP, "c3", "tony", 1))
        first.release()
        third = ledger.lease(LeaseRequest(APP, "c3", "tony", 1))
        assert ledger.holders()[third.devices[0].uuid].container == "c3"
        second.release()
        third.release()


# ---- a GPU that fails under its application ----


def test_in_the_place_of_a_device_in_quarantine_another_is_leased(ledger: MachineLedger) -> None:
    with ledger.reserve(APP, 2) as reservation:
        first = ledger.lease(LeaseRequest(APP, "c1", "tony", 1))
        (bad,) = first.devices
        ledger.quarantine(bad.uuid, cause="ecc", detail="ECC")
        first.release()
        with ledger.lease(LeaseRequest(APP, "c2", "tony", 2)) as second:
            assert bad not in second.devices
            (well,) = set(reservation.devices) - {bad}
            assert well in second.devices
            assert len(ledger.holders()) == 3
            second.release()
        assert len(ledger.holders()) == 2


def test_in_the_place_of_a_device_that_is_lost_another_is_leased(directory: Path) -> None:
    present = list(fake_devices(3))
    ledger = MachineLedger(str(directory), discover=lambda: tuple(present))
    with ledger.reserve(APP, 2):
        del present[0]
        fewer = MachineLedger(str(directory), discover=lambda: tuple(present))
        lease = fewer.lease(LeaseRequest(APP, "c1", "tony", 2))
        assert {device.index for device in lease.devices} == {1, 2}
        lease.release()


def test_a_lease_without_free_devices_reports_the_fate_of_its_own(ledger: MachineLedger) -> None:
    with ledger.reserve(APP, 1) as mine, ledger.reserve(OTHER, 3):
        ledger.quarantine(mine.devices[0].uuid, cause="lost", detail="it fell off the bus")
        with pytest.raises(
            NotEnough,
            match=rf"gpu0 quarantined \(it fell off the bus\), and in place of it: needs 1 gcore, 0 free: .*{OTHER}",
        ):
            ledger.lease(LeaseRequest(APP, "c1", "tony", 1))


def test_a_lease_of_no_devices_needs_no_ledger(directory: Path) -> None:
    ledger = MachineLedger(str(directory), discover=lambda: ())
    assert ledger.lease(LeaseRequest(APP, "c1", "tony", 0)).devices == ()
    assert not directory.exists()


def test_a_lease_waits_for_devices_that_are_being_given_back(ledger: MachineLedger, user: Callable[..., User]) -> None:
    with ledger.reserve(APP, 1):
        before = user()
        before("lease", "l", application=APP, container="c1", user="tony", gcores=1)
        os.kill(before.process.pid, signal.SIGSTOP)
        with pytest.raises(NotEnough):
            ledger.lease(LeaseRequest(APP, "c2", "tony", 1), timeout_s=0.05)
        before.process.kill()
        ledger.lease(LeaseRequest(APP, "c2", "tony", 1), timeout_s=120).release()


def test_a_killed_holder_holds_no_device(ledger: MachineLedger, user: Callable[..., User]) -> None:
    holder = user()
    assert holder("reserve", "r", application=APP, count=4) == {"devices": [0, 1, 2, 3]}
    assert len(ledger.holders()) == 4
    holder.kill()
    assert ledger.holders() == {}
    ledger.reserve(OTHER, 4).close()


def test_devices_stay_held_while_a_payload_that_inherited_them_lives(
    ledger: MachineLedger, user: Callable[..., User]
) -> None:
    holder = user()
    holder("reserve", "r", application=APP, count=2)
    payload: int = holder("child", "r")["pid"]
    holder.kill()
    try:
        with pytest.raises(NotEnough, match="2 free"):
            ledger.reserve(OTHER, 3)
    finally:
        os.kill(payload, signal.SIGKILL)
    wait_until(lambda: not ledger.holders())
    ledger.reserve(OTHER, 4).close()


def test_a_release_keeps_devices_of_a_surviving_payload(ledger: MachineLedger, user: Callable[..., User]) -> None:
    with ledger.reserve(APP, 1):
        task = user()
        task("lease", "l", application=APP, container="c1", user="tony", gcores=1)
        payload: int = task("child", "l")["pid"]
        task("release", "l")
        try:
            with pytest.raises(NotEnough):
                ledger.lease(LeaseRequest(APP, "c2", "tony", 1))
        finally:
            os.kill(payload, signal.SIGKILL)
        ledger.lease(LeaseRequest(APP, "c2", "tony", 1), timeout_s=120).release()


# ---- evidence ----


@pytest.fixture
def lifeline(tmp_path: Path) -> str:
    """The FIFO that a payload in Docker would read."""
    path = str(tmp_path / "life")
    os.mkfifo(path)
    return path


def leave_a_lease(user: Callable[..., User], lifeline: str) -> None:
    """Reserve and lease a device, naming ``lifeline``, and die."""
    task = user()
    task("reserve", "r", application=APP, count=1)
    evidence = {"fifo": lifeline}
    task("lease", "l", application=APP, container="c1", user="tony", gcores=1, evidence=evidence)
    task.kill()


def test_a_device_whose_payload_reads_its_lifeline_is_not_leased(
    ledger: MachineLedger, user: Callable[..., User], lifeline: str
) -> None:
    payload = os.open(lifeline, os.O_RDONLY | os.O_NONBLOCK)
    leave_a_lease(user, lifeline)
    with pytest.raises(NotEnough, match=rf"3 free: gpu0 application_\d+_0001 \({ME}\), its payload is still running"):
        ledger.reserve(OTHER, 4)
    ledger.reclaim(APP)
    assert len(ledger.holders()) == 1
    os.close(payload)
    ledger.reserve(OTHER, 4).close()


@pytest.mark.parametrize("what", ["gone", "a file", "a directory"])
def test_an_unknown_payload_frees_no_device(
    ledger: MachineLedger, user: Callable[..., User], lifeline: str, what: str
) -> None:
    leave_a_lease(user, lifeline)
    os.unlink(lifeline)
    if what == "a file":
        Path(lifeline).write_text("")
    elif what == "a directory":
        Path(lifeline).mkdir()
    with pytest.raises(NotEnough, match="it is not known if its payload is gone"):
        ledger.reserve(OTHER, 4)


def test_a_user_who_can_read_the_evidence_clears_it_for_all(
    ledger: MachineLedger, user: Callable[..., User], lifeline: str
) -> None:
    leave_a_lease(user, lifeline)
    ledger.reclaim(OTHER)
    ledger.reclaim(APP)
    os.unlink(lifeline)
    ledger.reserve(OTHER, 4).close()


def test_a_release_proves_the_end_of_the_payload(ledger: MachineLedger, lifeline: str) -> None:
    with ledger.reserve(APP, 1):
        evidence = {"fifo": lifeline}
        ledger.lease(LeaseRequest(APP, "c1", "tony", 1, evidence=evidence)).release()
        os.unlink(lifeline)
        ledger.lease(LeaseRequest(APP, "c2", "tony", 1)).release()


def test_no_lease_outlives_a_reboot(lifeline: str) -> None:
    reader = os.open(lifeline, os.O_RDONLY | os.O_NONBLOCK)
    assert LivenessProbes(boot_id="now").check({"fifo": lifeline}, "before").state == GONE
    assert LivenessProbes(boot_id="before").check({"fifo": lifeline}, "before").state == ALIVE
    os.close(reader)


def test_a_lease_of_two_devices_is_kept_while_one_of_them_is_in_use(directory: Path) -> None:
    busy = {"GPU-1"}
    probes = LivenessProbes(devices=lambda uuids: Liveness(ALIVE if busy & set(uuids) else GONE))
    ledger = MachineLedger(str(directory), discover=lambda: fake_devices(2), probes=probes)
    gone = {"pid": 4194300, "start_time": 1, "pid_ns": os.stat("/proc/self/ns/pid").st_ino}
    lease = ledger.acquire(LeaseRequest(APP, "c1", "tony", 2, evidence={"task": gone}))
    lease.close()
    ledger.reclaim()
    assert list(ledger.holders()) == ["GPU-1"]
    with ledger.reserve(OTHER, 1):
        ledger.lease(LeaseRequest(OTHER, "c2", "ann", 1)).release()
    assert list(ledger.holders()) == ["GPU-1"]
    busy.clear()
    assert MachineLedger(str(directory), discover=lambda: fake_devices(2)).holders() == {}
    ledger.reclaim()
    assert list(directory.glob("*ed-*")) == []


@pytest.mark.parametrize("text", ["{garbage", "[1]", "[" * 9000, '{"name": "leased-GPU-1-0123456789abcdef"}'])
def test_an_unreadable_record_holds_no_device_and_is_reported(
    ledger: MachineLedger, directory: Path, text: str
) -> None:
    ledger.reserve(APP, 1).close()
    bad = directory / "leased-GPU-0-0123456789abcdef"
    bad.write_text(text)
    ledger.reserve(OTHER, 4).close()
    ledger.holders()
    assert list(ledger.problems) == [str(bad)]


def test_a_lock_without_a_record_keeps_a_device_and_is_of_an_unknown_process(
    ledger: MachineLedger, directory: Path
) -> None:
    ledger.reserve(APP, 1).close()
    fd = os.open(directory / "GPU-0", os.O_RDWR)
    assert locks.try_lock(fd, 1, 1)
    with pytest.raises(NotEnough, match="needs 4 gcores, 3 free: gpu0 locked by an unknown process"):
        ledger.reserve(OTHER, 4)
    os.close(fd)
    ledger.reserve(OTHER, 4).close()


def test_a_read_lock_on_a_device_does_not_hold_it(ledger: MachineLedger, directory: Path) -> None:
    ledger.reserve(APP, 1).close()
    fd = os.open(directory / "GPU-0", os.O_RDONLY)
    assert locks.try_lock(fd, 0, 2, shared=True)
    with ledger.reserve(APP, 4), pytest.raises(NotEnough, match="0 free"):
        ledger.reserve(OTHER, 1)
    os.close(fd)


@pytest.mark.parametrize("made", ["a FIFO", "a directory", "another file"])
def test_a_device_whose_file_was_exchanged_under_its_holder_is_still_held(
    ledger: MachineLedger, directory: Path, made: str
) -> None:
    with ledger.reserve(APP, 4), ledger.lease(LeaseRequest(APP, "c1", "tony", 4)):
        path = directory / "GPU-0"
        path.unlink()
        if made == "a FIFO":
            os.mkfifo(path)
        elif made == "a directory":
            path.mkdir()
        with pytest.raises(NotEnough, match="0 free"):
            ledger.reserve(OTHER, 1)
    ledger.reserve(OTHER, 4).close()


def test_records_of_holds_that_are_over_do_not_pile_up(ledger: MachineLedger, directory: Path) -> None:
    for _ in range(5):
        reservation = ledger.reserve(APP, 4)
        ledger.lease(LeaseRequest(APP, "c1", "tony", 4)).close()
        reservation.close()
    assert len([name for name in os.listdir(directory) if "ed-GPU" in name]) <= 4
    ledger.reclaim()
    assert [name for name in os.listdir(directory) if "ed-GPU" in name] == []


# ---- waiting ----


def test_a_large_ask_is_not_starved_by_small_ones(ledger: MachineLedger) -> None:
    running = ledger.reserve(APP, 1)
    with ledger.ticket(OTHER, 4, since_ms=1000) as first:
        with pytest.raises(NotEnough, match="needs 4 gcores, 3 free"):
            ledger.reserve(OTHER, 4, ticket=first)
        # Three are free, and would do, but it came later.
        with (
            ledger.ticket(APP, 1, since_ms=2000) as second,
            pytest.raises(NotEnough, match=rf"application_\d+_0002 \({ME}\) came first and waits for 4 gcores"),
        ):
            ledger.reserve(APP, 1, ticket=second)
        with pytest.raises(NotEnough, match="came first"):
            ledger.reserve(APP, 1)
        running.close()
        ledger.reserve(OTHER, 4, ticket=first).close()
    ledger.reserve(APP, 1).close()


def test_of_two_waiters_the_one_submitted_first_is_served_first(ledger: MachineLedger) -> None:
    later = ledger.ticket(APP, 1, since_ms=2000)
    earlier = ledger.ticket(OTHER, 1, since_ms=1999)
    with pytest.raises(NotEnough, match=OTHER):
        ledger.reserve(APP, 1, ticket=later)
    ledger.reserve(OTHER, 1, ticket=earlier).close()
    earlier.close()
    ledger.reserve(APP, 1, ticket=later).close()
    later.close()


def test_the_ticket_of_a_dead_waiter_does_not_block_others(
    ledger: MachineLedger, user: Callable[..., User], directory: Path
) -> None:
    waiter = user()
    waiter("ticket", "t", application=OTHER, count=4, since_ms=1)
    with pytest.raises(NotEnough, match="came first"):
        ledger.reserve(APP, 1)
    waiter.kill()
    ledger.reserve(APP, 1).close()
    assert [name for name in os.listdir(directory) if "ticket" in name] == []


@pytest.mark.slow
def test_a_stopped_waiter_does_not_block_others_and_keeps_its_place(
    ledger: MachineLedger, user: Callable[..., User], monkeypatch: pytest.MonkeyPatch
) -> None:
    waits_s = "dlapp.gpuid.stores.queue_tickets.POLL_TIMEOUT_S"
    monkeypatch.setattr(waits_s, 120.0)
    waiting = user()
    waiting("ticket", "t", application=OTHER, count=4, since_ms=1)
    waiting.process.send_signal(signal.SIGSTOP)
    with ledger.ticket(APP, 1, since_ms=2) as ticket:
        with pytest.raises(NotEnough, match="came first and waits for 4 gcores"):
            ledger.reserve(APP, 1, ticket=ticket)
        monkeypatch.setattr(waits_s, 1.0)

        def is_served() -> bool:
            try:
                ledger.reserve(APP, 1, ticket=ticket).close()
            except NotEnough:
                return False
            return True

        wait_until(is_served)
        waiting.process.send_signal(signal.SIGCONT)
        assert len(waiting("reserve", "r", application=OTHER, count=4, ticket="t")["devices"]) == 4
        waiting("close", "t")
        with pytest.raises(NotEnough, match="0 free"):
            ledger.reserve(APP, 1, ticket=ticket)


def test_a_ticket_for_more_devices_than_exist_is_refused(ledger: MachineLedger) -> None:
    with pytest.raises(RequestTooLarge):
        ledger.ticket(APP, 5, since_ms=1)


@pytest.mark.slow
def test_no_device_is_ever_held_by_two_of_eight_processes(directory: Path, tmp_path: Path) -> None:
    operations = "200" if FULL else "60"
    command = [sys.executable, "-I", ledger_process.__file__, str(directory), "4", "storm", operations, str(tmp_path)]
    storm = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(8)]
    for item in storm:
        output, _ = item.communicate(timeout=120)
        assert (item.returncode, output) == (0, "")
    assert MachineLedger(str(directory), discover=lambda: fake_devices(4)).holders() == {}


# ---- other users, other people's tricks ----


@pytest.mark.root
def test_two_users_never_hold_one_device(shared: Path, ledger: MachineLedger, user: Callable[..., User]) -> None:
    ann, tony = user(ANN), user(TONY)
    assert ann("reserve", "r", application=APP, count=3) == {"devices": [0, 1, 2]}
    refused = tony("reserve", "r", application=OTHER, count=2)
    assert refused["error"] == "NotEnough"
    assert "needs 2 gcores, 1 free: gpu0" in refused["message"]
    assert "(uid 60001)" in refused["message"]
    ann.kill()
    assert tony("reserve", "r", application=OTHER, count=4) == {"devices": [0, 1, 2, 3]}
    assert tony("lease", "l", application=OTHER, container="c", user="tony", gcores=4) == {"devices": [0, 1, 2, 3]}
    assert len(ledger.holders()) == 4


@pytest.mark.root
def test_unreadable_evidence_frees_no_device_for_its_owner_and_holds_none_for_others(
    user: Callable[..., User], shared: Path
) -> None:
    directory = shared
    private = directory.parent / "private"
    private.mkdir(mode=0o700)
    os.chown(private, ANN, ANN)
    lifeline = str(private / "life")
    os.mkfifo(lifeline)
    os.chown(lifeline, ANN, ANN)
    # A dockerd that nobody can ask: with its word the lifeline would not matter.
    docker = {"host": "unix:///nowhere", "label": "dlapp.container=container_1_1_01_000002"}
    evidence = {"fifo": lifeline, "docker": docker}
    ann = user(ANN)
    ann("reserve", "r", application=APP, count=1)
    ann("lease", "l", application=APP, container="c", user="ann", gcores=1, evidence=evidence)
    ann.kill()
    ann = user(ANN)
    assert ann("reserve", "r", application=OTHER, count=4)["error"] == "NotEnough"
    ann("reclaim", application=APP)
    assert ann("reserve", "r", application=OTHER, count=4)["error"] == "NotEnough"
    (lease,) = directory.glob("leased-*")
    assert lease.stat().st_uid == ANN
    tony = user(TONY)
    assert tony("reserve", "r", application=OTHER, count=4) == {"devices": [0, 1, 2, 3]}
    tony("close", "r")
    lease.unlink()  # as root does, who knows that nothing runs
    assert ann("reserve", "r", application=OTHER, count=4) == {"devices": [0, 1, 2, 3]}


@pytest.mark.root
def test_evidence_of_another_user_without_docker_keeps_no_device(
    user: Callable[..., User], shared: Path, ledger: MachineLedger
) -> None:
    ann = user(ANN)
    ann("reserve", "r", application=APP, count=4)
    evidence = {"task": {"pid": 1, "start_time": 1, "pid_ns": 1}, "fifo": "/proc/1/cwd/life"}
    ann("lease", "l", application=APP, container="c", user="ann", gcores=4, evidence=evidence)
    ann.kill()
    assert len(user(TONY)("reserve", "r", application=OTHER, count=4)["devices"]) == 4


def test_a_directory_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "locks").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LedgerError, match=r"locks: is a symbolic link, not a directory"):
        MachineLedger(str(tmp_path / "locks"), discover=lambda: fake_devices(1)).reserve(APP, 1)


def test_a_device_whose_file_is_a_link_is_leased_without_touching_the_target(
    ledger: MachineLedger, directory: Path, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    ledger.reserve(APP, 1).close()
    (directory / "GPU-0").unlink()
    (directory / "GPU-0").symlink_to(victim)
    with ledger.reserve(APP, 4), pytest.raises(NotEnough, match="0 free"):
        ledger.reserve(OTHER, 1)
    assert victim.read_text() == "precious"
    ledger.holders()
    assert ledger.problems == {str(directory / "GPU-0"): "is a symbolic link, not a regular file"}


@pytest.mark.parametrize("trick", ["a link of another file", "a FIFO", "a directory"])
def test_an_invalid_device_file_holds_no_device(ledger: MachineLedger, directory: Path, trick: str) -> None:
    ledger.reserve(APP, 1).close()
    path = directory / "GPU-0"
    path.unlink()
    if trick == "a FIFO":
        os.mkfifo(path)
    elif trick == "a directory":
        path.mkdir()
    else:
        (directory / "precious").write_text("precious")
        os.link(directory / "precious", path)
    with ledger.reserve(APP, 4), pytest.raises(NotEnough, match="0 free"):
        ledger.reserve(OTHER, 1)
    ledger.holders()
    assert list(ledger.problems) == [str(path)]


def test_a_hard_link_to_a_device_file_changes_no_lease(ledger: MachineLedger, directory: Path) -> None:
    ledger.reserve(APP, 1).close()
    os.link(directory / "GPU-0", directory / ".x")
    ledger.reserve(APP, 4).close()
    assert ledger.problems == {}


def test_a_directory_that_cannot_be_created_is_named_with_the_repair() -> None:
    ledger = MachineLedger("/proc/dlapp", discover=lambda: fake_devices(1))
    with pytest.raises(
        LedgerError,
        match=r"/proc/dlapp: cannot be made: .* \(as root: echo 'd /proc/dlapp 1777 root root -' > /etc/tmpfiles.d/",
    ):
        ledger.reserve(APP, 1)


def test_a_removed_lock_file_is_detected_and_locked_again(directory: Path) -> None:
    devices = fake_devices(1)
    ledger = MachineLedger(str(directory), discover=lambda: devices)
    ledger.reserve(APP, 1).close()
    handle = os.open(directory, os.O_RDONLY)
    fd = os.open(directory / "GPU-0", os.O_RDWR)
    (directory / "GPU-0").unlink()
    assert not Directory(handle, str(directory), {}).is_current(fd, "GPU-0")
    os.close(fd)
    os.close(handle)


@pytest.mark.parametrize("until", ["", NEEDS_RESET])
def test_a_device_is_closed_and_healed_while_the_driver_does_not_work(tmp_path: Path, until: str) -> None:
    """The GPUs are those that NVML last reported, however long ago that was."""
    now_s, broken = 0.0, False

    def discover() -> tuple[Device, ...]:
        if broken:
            raise NvmlError("NVML: no answer")
        return (Device("GPU-0", 0, 0), Device("GPU-1", 1, 1))

    ledger = MachineLedger(str(tmp_path / "locks"), discover=discover, clock=lambda: now_s)
    assert len(ledger.record().devices) == 2
    now_s, broken = 1000.0, True
    ledger.quarantine("gpu1", cause="needs-reset", detail="Xid 119", until=until)
    ledger.quarantine_all(cause="driver-hangs")
    broken = False
    found = {
        device.uuid: device.quarantine.cause for device in ledger.record().devices if device.quarantine is not None
    }
    assert found == {"GPU-0": "driver-hangs", "GPU-1": "needs-reset"}
    now_s, broken = 2000.0, True
    assert ledger.heal("gpu1")
    broken = False
    assert [device.uuid for device in ledger.record().devices if device.quarantine is not None] == ["GPU-0"]
