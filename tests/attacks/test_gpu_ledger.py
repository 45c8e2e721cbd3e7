"""Attacks on the machine's GPU ledger: other users put things into its directory, and write what is not so."""

from __future__ import annotations

import codecs
import contextlib
import http.client  # noqa: F401  (loaded before a process becomes a user who may not read the interpreter's files)
import json
import os
import socketserver
import threading
import time
import types
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dlapp.gpuid.ledger import reclaim_all
from dlapp.gpuid.liveness import gpu_processes  # noqa: F401
from dlapp.gpuid.liveness import probes as evidence_module
from dlapp.gpuid.liveness.probes import LivenessProbes, this_task
from dlapp.gpuid.liveness.result import ALIVE, GONE, UNKNOWN, Liveness
from dlapp.gpuid.rules import LeaseRequest, LedgerError, NotEnough
from dlapp.gpuid.stores import device_files, record_liveness
from dlapp.gpuid.stores.machine import MachineLedger
from dlapp.gpuid.stores.queue_tickets import TICKET, WaitingTicket, sort_tickets
from dlapp.net import dockerd as docker_client  # noqa: F401
from dlapp.runtime.docker import accounts, images
from dlapp.runtime.docker.accounts import Accounts
from dlapp.system import locks
from dlapp.system.files import open_file
from dlapp.system.machine import boot_id
from tests.attacks import sysctls
from tests.attacks.hostile_files import Bait
from tests.attacks.identities import ROOT, Identities, User
from tests.attacks.snapshots import changes, snapshot, unchanged
from tests.services.processes.ledger_process import fake_devices

APP = "application_1700000000000_0001"
for _encoding in ("ascii", "latin-1", "idna"):
    codecs.lookup(_encoding)
CONTAINER = "container_1700000000000_0042_01_000002"
LABEL = f"dlapp.container={CONTAINER}"


@pytest.fixture
def directory(place: Path) -> Path:
    """The ledger's directory, as docs/gpu.md says to make it."""
    path = place / "ledger"
    path.mkdir()
    path.chmod(0o1777)
    return path


def ledger(directory: Path, docker_host: str = "") -> MachineLedger:
    return MachineLedger(str(directory), docker_host=docker_host, discover=lambda: fake_devices(2))


def use_all(directory: Path) -> list[str]:
    """Do all that a user does with a ledger of two GPUs; the bad entries that it named."""
    mine = ledger(directory)
    with mine.ticket(APP, 2, since_ms=time.time_ns() // 1_000_000) as ticket:
        reservation = mine.reserve(APP, 2, ticket=ticket)
    with reservation:
        lease = mine.lease(LeaseRequest(APP, CONTAINER, "", 2))
        assert len(mine.holders()) == 2
        lease.release()
    mine.reclaim()
    mine.holders()
    named = list(mine.problems)
    mine.quarantine("gpu0", cause="operator", by="me")
    mine.heal("gpu0")
    assert mine.record().leases == ()
    return named


def record_of(directory: Path, kind: str, device: str, **fields: Any) -> Path:
    """Write a record as whoever calls; it is not locked."""
    name = f"{kind}-{device}-{os.urandom(8).hex()}"
    whole = {"name": name, "uuid": device, "index": 0, "boot_id": boot_id(), "application": APP, **fields}
    path = directory / name
    path.write_text(json.dumps(whole))
    path.chmod(0o644)
    return path


# ---- what lies there ----


@pytest.mark.proves("ledger-lease")
@pytest.mark.sampled(11)
@pytest.mark.parametrize(
    "name",
    [
        "GPU-0",
        "GPU-zz",
        f"{TICKET}00000000000000000000-a-1-00000000",
        "reserved-0123456789abcdef",
        "leased-0123456789abcdef",
        "reserved-GPU-0-0123456789abcdef",
        "leased-GPU-0-0123456789abcdef",
        "health-GPU-0-0123456789abcdef",
        ".leased-GPU-0-0123456789abcdef",
        "turn",
    ],
)
@sysctls.BOTH
def test_hostile_files_in_the_ledger_directory_cost_no_device_and_stay_inside(
    identities: Identities, directory: Path, hostile: Any, bait: Bait, victim: User, root: User, name: str
) -> None:
    hostile(directory / name, owner=victim, content=b'{"application": "application_1_1", "count": 2, "since_ms": 0}')
    with unchanged(bait.top):
        for user in (victim, root):
            named = identities.call(user, use_all, directory)
            assert {os.path.basename(path) for path in named} <= {name}


@pytest.mark.proves("image-locks")
@pytest.mark.sampled(3)
@sysctls.BOTH
def test_hostile_pull_locks_and_account_caches_delay_no_user(
    identities: Identities, directory: Path, hostile: Any, bait: Bait, victim: User
) -> None:
    def remember() -> None:
        accounts.write_cached(str(directory), "sha256:1", Accounts("a", "b"))
        accounts.read_cached(str(directory), "sha256:1")

    def pull() -> None:
        with images._pull_lock(str(directory), "unix:///nowhere", "image", lambda line: None):
            pass

    identities.call(victim, remember)
    identities.call(victim, pull)
    names = [item for item in directory.iterdir() if item.name.startswith(("accounts-", "pull-"))]
    assert len(names) == 2
    for path in names:
        hostile(path, owner=victim, content=b'{"passwd": 1, "group": []}')
    before = snapshot(bait.top)
    identities.call(victim, remember)
    identities.call(victim, pull)
    after = snapshot(bait.top)
    # A link of the victim's own file may be gone from the directory by then; but for that the file is as it was.
    file = str(bait.file)
    after[file] = replace(after[file], links=before[file].links)
    assert changes(before, after) == []


@pytest.mark.proves("image-locks")
def test_a_lock_of_pulls_that_another_holds_delays_for_a_bounded_time(
    identities: Identities, directory: Path, victim: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "_LONGEST_WAIT_S", 0.2)

    def pull() -> None:
        with images._pull_lock(str(directory), "unix:///nowhere", "image", lambda line: None):
            pass

    identities.call(victim, pull)
    (path,) = directory.glob("pull-*")
    with open(path, "r+b") as file:
        assert locks.try_lock(file.fileno())
        identities.call(victim, pull)


# ---- what is written there ----


@pytest.mark.proves("ledger-lease")
@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "evidence",
    [
        {},
        {"task": {"pid": 1, "start_time": 1, "pid_ns": os.stat("/proc/self/ns/pid").st_ino}},
        {"task": {"pid": 1, "start_time": 1, "pid_ns": 1}},
        {"fifo": "/root/life"},
        {"fifo": "/dev/watchdog"},
        {"docker": {"host": "unix:///elsewhere", "label": "com.docker.compose.project=prod"}},
        {"docker": {"host": "unix:///elsewhere", "label": LABEL}},
        {"docker": {"host": "", "label": LABEL}, "fifo": "/root/life"},
        {"docker": 5},
        {"lock": {"directory": "/", "token": "a", "cards": {"GPU-0": 1}}},
    ],
)
@pytest.mark.parametrize("kind", ["leased", "reserved"])
def test_a_record_without_a_process_keeps_no_device(
    identities: Identities, directory: Path, attacker: User, victim: User, kind: str, evidence: dict[str, Any]
) -> None:
    if "task" in evidence and evidence["task"]["pid_ns"] != 1:
        fields = Path("/proc/1/stat").read_text().rpartition(")")[2].split()
        evidence = {"task": {**evidence["task"], "start_time": int(fields[19])}}
    for device in ("GPU-0", "GPU-1"):
        identities.call(attacker, lambda device=device: record_of(directory, kind, device, evidence=evidence))
    identities.call(victim, use_all, directory)


@pytest.mark.proves("ledger-lease", "ledger-quarantine")
def test_a_quarantine_of_another_user_affects_only_them_and_root_heals_it(
    identities: Identities, directory: Path, attacker: User, victim: User, root: User
) -> None:
    def quarantine() -> None:
        ledger(directory).quarantine("gpu0", cause="operator", by="admin")

    def heal() -> None:
        ledger(directory).heal("gpu0")

    identities.call(attacker, quarantine)
    identities.call(victim, lambda: ledger(directory).reserve(APP, 2).close())
    with pytest.raises(Exception, match="was put into quarantine by attacker; they or root heal it"):
        identities.call(victim, heal)
    with pytest.raises(NotEnough):
        identities.call(attacker, lambda: ledger(directory).reserve(APP, 2).close())
    identities.call(root, heal)
    identities.call(attacker, lambda: ledger(directory).reserve(APP, 2).close())
    identities.call(root, quarantine)
    for user in (victim, attacker):
        with pytest.raises(NotEnough):
            identities.call(user, lambda: ledger(directory).reserve(APP, 2).close())


@pytest.mark.proves("ledger-lease")
def test_a_ticket_cannot_be_backdated() -> None:
    def waiting(name: str, uid: int, arrived_ns: int, since_ms: int) -> WaitingTicket:
        return WaitingTicket(name, uid, arrived_ns, since_ms, 0.0, {})

    queue = [waiting("a", 1, 10, 500), waiting("evil", 2, 20, 0), waiting("b", 1, 30, 400), waiting("c", 3, 40, 1)]
    assert [ticket.name for ticket in sort_tickets(queue)] == ["b", "evil", "a", "c"]


@contextlib.contextmanager
def held_by(
    identities: Identities,
    user: User,
    directory: Path,
    act: Callable[[], Any],
    end: Callable[[Any], object] = lambda kept: None,
) -> Iterator[None]:
    """Have a process of a user do something and live for the block; then it ends what it made."""
    ready, go = os.pipe(), os.pipe()

    def hold() -> None:
        kept = act()
        os.write(ready[1], b".")
        os.read(go[0], 1)
        end(kept)

    # It may take as long as the block does.
    thread = threading.Thread(target=identities.call, args=(user, hold), kwargs={"deadline_s": 120.0})
    thread.start()
    try:
        assert os.read(ready[0], 1) == b"."
        yield
    finally:
        os.write(go[1], b".")
        thread.join()
        for fd in (*ready, *go):
            os.close(fd)


@pytest.mark.proves("ledger-first")
def test_the_creator_of_a_device_file_cannot_take_it_from_its_holder(
    identities: Identities, directory: Path, attacker: User, victim: User
) -> None:
    identities.call(attacker, use_all, directory)
    assert (directory / "GPU-0").stat().st_uid == attacker.uid

    def exchange() -> list[str]:
        for name in ("GPU-0", "GPU-1"):
            (directory / name).unlink()
        with pytest.raises(NotEnough) as refused:
            ledger(directory).reserve(APP, 1)
        return [holder.user for holder in refused.value.holders]

    with held_by(identities, victim, directory, lambda: ledger(directory).reserve(APP, 2)):
        assert identities.call(attacker, exchange) == ["victim", "victim"]


@pytest.mark.proves("ledger-first")
def test_devices_whose_files_an_attacker_linked_together_are_leased(
    identities: Identities, directory: Path, victim: User, member: User, attacker: User
) -> None:
    def plant() -> None:
        (directory / "GPU-0").touch()
        (directory / "GPU-0").chmod(0o666)
        os.link(directory / "GPU-0", directory / "GPU-1")

    def take(count: int) -> Any:
        return ledger(directory).reserve(APP, count)

    identities.call(attacker, plant)
    identities.call(victim, lambda: take(2).close())
    with held_by(identities, victim, directory, lambda: take(1), lambda item: item.close()):
        identities.call(member, lambda: take(1).close())
        with pytest.raises(NotEnough):
            identities.call(member, lambda: take(2).close())


def test_a_lock_without_a_record_is_an_unknown_process(
    identities: Identities, directory: Path, attacker: User, victim: User
) -> None:
    def lock() -> int:
        fd = os.open(directory / "GPU-0", os.O_RDWR)
        assert locks.try_lock(fd, 1, 1)
        return fd

    def refused() -> str:
        with pytest.raises(NotEnough) as error:
            ledger(directory).reserve(APP, 2)
        return str(error.value)

    identities.call(victim, use_all, directory)
    with held_by(identities, attacker, directory, lock):
        assert "1 free: gpu0 locked by an unknown process" in identities.call(victim, refused)
    identities.call(victim, use_all, directory)


# ---- records that are over ----


class LinkedFile:
    """A second name that the attacker gives to a record of another user, where fs.protected_hardlinks is 0."""

    def __init__(self, identities: Identities, attacker: User, path: Path, where: str) -> None:
        self.path, self._identities, self._attacker = path, identities, attacker
        self.link = path.with_name(".kept") if where == "beside it" else identities.home(attacker) / "kept"

        def keep() -> bool:
            with contextlib.suppress(PermissionError):
                os.link(path, self.link)
            return self.link.exists()

        self.is_there = identities.call(attacker, keep)

    def put_back(self) -> None:
        """Give the record its name again, by a link or, from a directory of the attacker's, as its only name."""
        act = os.link if self.link.parent == self.path.parent else os.rename
        if self.is_there:
            self._identities.call(self._attacker, lambda: act(self.link, self.path))
            assert self.path.exists()


@pytest.fixture(params=["beside it", "elsewhere"])
def keep(
    request: pytest.FixtureRequest, identities: Identities, attacker: User, protected_sysctls: tuple[int, ...]
) -> Callable[[Path], LinkedFile]:
    """Have the attacker keep a link of a record, in the ledger's directory or in another one."""

    def of(path: Path) -> LinkedFile:
        kept = LinkedFile(identities, attacker, path, request.param)
        assert kept.is_there == (protected_sysctls[1] == 0)
        return kept

    return of


def the_only(directory: Path, kind: str) -> Path:
    (path,) = directory.glob(f"{kind}-*")
    return path


@pytest.mark.proves("ledger-quarantine")
@pytest.mark.sampled(3)
@pytest.mark.parametrize("healer", ["its author", "root"])
@pytest.mark.parametrize("author", ["root", "victim"])
@sysctls.BOTH
def test_a_healed_quarantine_is_not_restored_by_a_link(
    identities: Identities,
    directory: Path,
    victim: User,
    root: User,
    keep: Callable[[Path], LinkedFile],
    author: str,
    healer: str,
) -> None:
    writer = root if author == "root" else victim
    identities.call(writer, lambda: ledger(directory).quarantine("gpu0", cause="operator", by="admin"))
    kept = keep(the_only(directory, "health"))
    identities.call(root if healer == "root" else writer, lambda: ledger(directory).heal("gpu0"))
    kept.put_back()
    for user in (root, victim):
        identities.call(user, lambda: ledger(directory).reserve(APP, 2).close())


@sysctls.BOTH
def test_a_replaced_quarantine_is_not_restored_by_a_link(
    identities: Identities, directory: Path, victim: User, root: User, keep: Callable[[Path], LinkedFile]
) -> None:
    def quarantine(by: str) -> None:
        ledger(directory).quarantine("gpu0", cause="ecc", detail=f"written by {by or 'an inspection'}", by=by)

    def refused() -> str:
        with pytest.raises(NotEnough) as error:
            ledger(directory).reserve(APP, 2)
        return str(error.value)

    identities.call(root, quarantine, "")
    kept = keep(the_only(directory, "health"))
    identities.call(root, quarantine, "admin")
    kept.put_back()
    assert "written by admin" in identities.call(victim, refused)


def lease_one(directory: Path) -> Any:
    """Lease a card with evidence of a task that is gone."""
    mine = ledger(directory)
    evidence: Any = {"task": dead_task()}
    with mine.reserve(APP, 1):
        return mine.lease(LeaseRequest(APP, CONTAINER, "", 1, evidence=evidence))


@pytest.mark.proves("ledger-lease")
@pytest.mark.sampled(3)
@pytest.mark.parametrize("ended", ["given back", "leased again", "collected", "collected by root"])
@sysctls.BOTH
def test_an_ended_lease_is_not_restored_by_a_link(
    identities: Identities,
    directory: Path,
    victim: User,
    member: User,
    root: User,
    keep: Callable[[Path], LinkedFile],
    ended: str,
) -> None:
    def holders() -> dict[str, str]:
        computing = LivenessProbes(devices=lambda uuids: Liveness(ALIVE, "process 1 computes"))
        theirs = MachineLedger(str(directory), discover=lambda: fake_devices(2), probes=computing)
        return {uuid: str(one) for uuid, one in theirs.holders().items()}

    if ended == "given back":
        act = lambda: lease_one(directory)  # noqa: E731
        with held_by(identities, victim, directory, act, lambda lease: lease.release()):
            kept = keep(the_only(directory, "leased"))
    else:
        identities.call(victim, lambda: lease_one(directory).close())
        kept = keep(the_only(directory, "leased"))
        assert list(identities.call(member, holders)) == ["GPU-0"]
        if ended == "leased again":
            identities.call(victim, lambda: lease_one(directory).release())
        else:
            who = root if ended == "collected by root" else victim
            identities.call(who, lambda: len(ledger(directory).reclaim()))
    assert not kept.path.exists()
    kept.put_back()
    assert identities.call(member, holders) == {}


@sysctls.BOTH
def test_a_link_makes_no_older_record_of_a_user_the_newest(
    identities: Identities, directory: Path, victim: User, root: User, keep: Callable[[Path], LinkedFile]
) -> None:
    quarantine = {"cause": "ecc", "since_ms": 1, "count": 1, "probe_at_ms": 1}
    # As root's process leaves them if it is killed between the new record and the removal of the old one.
    old = record_of(directory, "health", "GPU-0", quarantine=quarantine, failures=1)
    new = record_of(directory, "health", "GPU-0", failures=1)
    now_s = time.time()
    os.utime(old, (now_s - 20, now_s - 20))
    os.utime(new, (now_s - 10, now_s - 10))
    keep(old)
    identities.call(victim, lambda: ledger(directory).reserve(APP, 2).close())


@sysctls.BOTH
def test_a_link_does_not_date_a_quarantine_after_a_healthy_inspection(
    identities: Identities, directory: Path, victim: User, keep: Callable[[Path], LinkedFile]
) -> None:
    quarantine = {"cause": "ecc", "since_ms": 1, "count": 1, "probe_at_ms": 1}
    of_root = record_of(directory, "health", "GPU-0", quarantine=quarantine, failures=1)
    os.utime(of_root, (time.time() - 20, time.time() - 20))
    identities.call(victim, lambda: record_of(directory, "health", "GPU-0", failures=1).name)
    keep(of_root)
    identities.call(victim, lambda: ledger(directory).reserve(APP, 2).close())


@sysctls.BOTH
def test_a_link_of_a_record_that_holds_or_binds_ends_neither(
    identities: Identities,
    directory: Path,
    victim: User,
    member: User,
    root: User,
    keep: Callable[[Path], LinkedFile],
) -> None:
    def refused() -> str:
        with pytest.raises(NotEnough) as error:
            ledger(directory).reserve(APP, 1)
        return str(error.value)

    identities.call(root, lambda: ledger(directory).quarantine("gpu1", cause="operator", by="admin"))
    with held_by(identities, victim, directory, lambda: ledger(directory).reserve(APP, 1)):
        link = keep(the_only(directory, "reserved")).link
        with contextlib.suppress(FileNotFoundError):
            link.rename(link.with_name("another"))
        keep(the_only(directory, "health"))
        answer = identities.call(member, refused)
        assert ("(victim)" in answer, "gpu1 quarantined" in answer) == (True, True)


def test_own_leftovers_of_a_killed_process_are_removed_and_linked_files_stay(
    identities: Identities, directory: Path, attacker: User, victim: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dlapp.gpuid.stores.device_files._WRITTEN_IN_S", 0.0)
    emptied, begun = directory / f"leased-GPU-0-{1:016x}", directory / f".leased-GPU-0-{2:016x}"
    linked = [directory / f"{kind}-GPU-0-{3:016x}" for kind in (".leased", "health")]
    precious = identities.home(victim) / "precious"

    def leave() -> None:
        precious.write_text('{"name": "precious"}')
        emptied.touch()
        begun.write_text("{")

    identities.call(victim, leave)
    for path in linked:  # by root, as whoever came before a sysctl was set
        os.link(precious, path)
    identities.call(victim, lambda: len(ledger(directory).reclaim()))
    assert (emptied.exists(), begun.exists(), precious.read_text()) == (False, False, '{"name": "precious"}')


@pytest.mark.proves("ledger-lease")
def test_countless_records_of_one_user_are_not_all_read_and_others_continue(
    identities: Identities, directory: Path, attacker: User, victim: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dlapp.gpuid.stores.device_files.MAX_NAMES", 64)
    opened: list[str] = []

    def crowd() -> None:
        for number in range(300):
            for kind in ("leased-GPU-0", "health-GPU-1", "ticket"):
                (directory / f"{kind}-{number:016x}").write_text("{}")

    def use() -> tuple[int, str]:
        def noted(name: str, **more: Any) -> int:
            opened.append(name)
            return open_file(name, **more)

        monkeypatch.setattr(device_files, "open_file", noted)
        mine = ledger(directory)
        with mine.reserve(APP, 2):
            assert {holder.user for holder in ledger(directory).holders().values()} == {"victim"}
        mine.holders()
        return len(opened), mine.problems[str(directory)]

    identities.call(attacker, crowd)
    count, outcome = identities.call(victim, use)
    assert count < 900
    assert outcome.startswith("attacker has 900 files there; of these the newest 64 are read")
    identities.call(victim, use_all, directory)


def test_many_foreign_files_are_checked_once_and_root_removes_the_rest(
    identities: Identities, directory: Path, attacker: User, victim: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dlapp.gpuid.stores.device_files.MAX_NAMES", 64)
    monkeypatch.setattr("dlapp.gpuid.stores.device_files._WRITTEN_IN_S", -1.0)
    locked, excess = (directory / f"leased-GPU-0-{number:016x}" for number in (0, 1))
    inspected: list[str] = []

    def crowd() -> None:
        for number in range(900):
            (directory / f"leased-GPU-0-{number:016x}").touch()
        os.utime(locked, ns=(1, 1))
        excess.write_text(json.dumps({"name": excess.name}))
        os.utime(excess, ns=(2, 2))

    def use() -> int:
        def stat_of(name: str, **more: Any) -> os.stat_result:
            inspected.append(name)
            return real(name, **more)

        real = os.stat
        monkeypatch.setattr(os, "stat", stat_of)
        mine = ledger(directory)
        for _ in range(5):
            mine.holders()
        return sum(name.startswith("leased-GPU-0-") for name in inspected)

    identities.call(attacker, crowd)
    # Once for its owner; those that are read, each time.
    assert 900 <= identities.call(victim, use) <= 900 + 5 * 64
    # Only dlapp-gpu gc removes files, and not a request of root that inspects the leases.
    identities.call(victim, lambda: len(reclaim_all(ledger(directory))))
    identities.call(ROOT, lambda: len(ledger(directory).reclaim()))
    assert sum(1 for _ in directory.iterdir()) >= 900
    with locked.open("r+b") as file, excess.open("rb") as removed:
        assert locks.try_lock(file.fileno())
        identities.call(ROOT, lambda: len(reclaim_all(ledger(directory))))
        assert os.fstat(removed.fileno()).st_size == 0, "a link that was made meanwhile would be a record"
    left = [path.name for path in directory.iterdir() if path.name.startswith("leased-GPU-0-")]
    assert len(left) == 65
    assert locked.name in left


# ---- what cannot be inspected ----


@pytest.mark.proves("ledger-lease")
@pytest.mark.parametrize("socket", ["refuses", "is not there"])
def test_a_record_of_an_unverifiable_container_keeps_no_device_and_names_who_removes_it(
    identities: Identities, directory: Path, attacker: User, victim: User, socket: str
) -> None:
    with dockerd(directory.parent / "docker.sock", {}) as daemon:
        Path(str(daemon.server_address)).chmod(0o600)
        host = f"unix://{daemon.server_address}" if socket == "refuses" else "unix:///nowhere"
        evidence = {"docker": {"host": host, "label": LABEL}}
        path = identities.call(attacker, lambda: str(record_of(directory, "leased", "GPU-0", evidence=evidence)))

        def use() -> tuple[str, list[tuple[str, str]]]:
            mine = ledger(directory, host)
            mine.reserve(APP, 2).close()
            assert mine.record().leases == ()
            return mine.problems[path], [(reclaimed.state, reclaimed.why) for reclaimed in mine.reclaim()]

        problem, ((state, why),) = identities.call(victim, use)
    removes = f"if nothing of it runs, attacker or root removes {os.path.basename(path)}"
    assert (problem.startswith("holds no GPU: "), problem.endswith(removes)) == (True, True)
    assert (state, why.endswith(removes)) == (UNKNOWN, True)
    identities.call(attacker, lambda: os.unlink(path))


@pytest.mark.parametrize("docker", [{}, {"docker": {"host": "unix:///elsewhere", "label": LABEL}}])
def test_a_record_of_many_devices_holds_none_by_a_process_that_computes_on_another(
    identities: Identities, directory: Path, attacker: User, victim: User, docker: dict[str, Any]
) -> None:
    def claim() -> None:
        name = f"leased-{1:016x}"
        evidence = {"task": dead_task(), **docker}
        record = {"devices": {"GPU-0": 0, "GPU-1": 1}, "boot_id": boot_id(), "evidence": evidence}
        (directory / name).write_text(json.dumps({"name": name, **record}))

    def use() -> set[str]:
        busy = Liveness(ALIVE, "process 1 computes")
        says = LivenessProbes(devices=lambda uuids: busy if "GPU-0" in uuids else Liveness(GONE))
        mine = MachineLedger(str(directory), discover=lambda: fake_devices(2), probes=says)
        mine.reserve(APP, 1).close()
        return set(mine.holders())

    identities.call(attacker, claim)
    assert identities.call(victim, use) == {"GPU-0"}


@pytest.mark.parametrize("holds", ["a lock", "a task"])
def test_a_record_of_an_unverifiable_container_keeps_its_device_while_its_process_lives(
    identities: Identities, directory: Path, member: User, victim: User, holds: str
) -> None:
    def lease() -> Any:
        mine, evidence = ledger(directory), {"docker": {"host": "unix:///elsewhere", "label": LABEL}}
        if holds == "a task":
            return record_of(directory, "leased", "GPU-0", evidence={**evidence, "task": this_task()})
        return mine.acquire(LeaseRequest(APP, CONTAINER, "", 1, evidence=evidence))

    def refused() -> list[str]:
        with pytest.raises(NotEnough) as error:
            ledger(directory, "unix:///nowhere").reserve(APP, 2)
        return [holder.user for holder in error.value.holders]

    with held_by(identities, member, directory, lease):
        assert identities.call(victim, refused) == ["member"]
    identities.call(victim, lambda: ledger(directory, "unix:///nowhere").reserve(APP, 2).close())


@pytest.mark.proves("ledger-lease")
def test_slow_records_of_one_user_do_not_use_the_time_of_others(
    identities: Identities,
    directory: Path,
    attacker: User,
    member: User,
    victim: User,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s, took_s, left_s = [1000.0], [0.0], [0.0]

    class Slow(LivenessProbes):
        def check(self, *_: Any, owner: int | None = None, until: float | None = None, **__: Any) -> Liveness:
            assert until is not None
            if owner == member.uid:
                left_s[0] = until - now_s[0]
                return Liveness(ALIVE, "its container is running")
            took_s[0] += max(0.0, until - now_s[0])
            now_s[0] = max(now_s[0], until)
            return Liveness(UNKNOWN, "no answer in time")

    def holders() -> list[str]:
        mine = MachineLedger(str(directory), discover=lambda: fake_devices(5), probes=Slow())
        return list(mine.holders())

    def use() -> tuple[list[str], float, float]:
        return holders(), took_s[0], left_s[0]

    def leave(device: str) -> None:
        record_of(directory, "leased", device, evidence={"task": dead_task()})

    monkeypatch.setattr(record_liveness, "time", types.SimpleNamespace(monotonic=lambda: now_s[0]))
    for number in range(5):
        user = member if number == 4 else attacker
        identities.call(user, leave, f"GPU-{number}")
    assert identities.call(victim, use) == (["GPU-4"], 2.0, 2.0)


# ---- the directory ----


@pytest.mark.proves("ledger-first")
@pytest.mark.parametrize("mode", [0o700, 0o777, 0o1777])
def test_a_directory_of_another_user_serves_that_user_alone(
    identities: Identities, place: Path, attacker: User, victim: User, root: User, mode: int
) -> None:
    path = place / "ledger"

    def make() -> None:
        path.mkdir()
        path.chmod(mode)

    identities.call(attacker, make)
    for user in (victim, root):
        with pytest.raises(LedgerError) as refused:
            identities.call(user, use_all, path)
        assert f"echo 'd {path} 1777 root root -' > /etc/tmpfiles.d/dlapp.conf" in str(refused.value)


# ---- Docker ----


class Dockerd(socketserver.ThreadingUnixStreamServer):
    """Something that answers as dockerd does, with one container.

    ``asked`` is the number of its connections, ``removed`` names what was removed.
    """

    daemon_threads = True

    def __init__(self, path: Path, labels: dict[str, str], *, trickles: bool = False) -> None:
        self.asked, self.removed = 0, list[str]()
        self.labels, self.trickles = labels, trickles
        super().__init__(str(path), _Answers)
        path.chmod(0o666)


class _Answers(socketserver.StreamRequestHandler):
    server: Dockerd

    def handle(self) -> None:
        self.server.asked += 1
        line = self.rfile.readline().decode()
        while self.rfile.readline().strip():
            pass
        if line.startswith("DELETE"):
            self.server.removed.append(line.split()[1])
        gone = bool(self.server.removed)
        found = [] if gone else [{"Id": "a" * 64, "State": "running", "Labels": self.server.labels}]
        body = b"" if line.startswith("DELETE") else json.dumps(found).encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        try:
            if self.server.trickles:
                for byte in head:
                    self.wfile.write(bytes([byte]))
                    time.sleep(0.2)
            self.wfile.write(head + body)
        except OSError:
            pass


@contextlib.contextmanager
def dockerd(path: Path, labels: dict[str, str], **more: Any) -> Iterator[Dockerd]:
    server = Dockerd(path, labels, **more)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def dead_task() -> dict[str, int]:
    return {"pid": 4194300, "start_time": 1, "pid_ns": os.stat("/proc/self/ns/pid").st_ino}


@pytest.mark.proves("ledger-containers")
@pytest.mark.parametrize(
    ("label", "uid"),
    [
        ("com.docker.compose.project=prod", "attacker"),
        (LABEL, "victim"),
        (LABEL, "nobody's"),
    ],
)
def test_root_removes_no_container_by_a_foreign_record(
    identities: Identities, directory: Path, attacker: User, victim: User, root: User, label: str, uid: str
) -> None:
    labels = {"attacker": {"dlapp.uid": str(attacker.uid)}, "victim": {"dlapp.uid": str(victim.uid)}}.get(uid, {})
    with dockerd(directory.parent / "docker.sock", labels) as daemon:
        host = f"unix://{daemon.server_address}"
        evidence = {"task": dead_task(), "docker": {"host": host, "label": label}}
        identities.call(attacker, lambda: record_of(directory, "leased", "GPU-0", evidence=evidence))
        identities.call(root, lambda: len(ledger(directory, host).reclaim()))
        assert daemon.removed == []


def test_leftovers_of_a_dead_task_are_removed_if_record_label_and_task_agree(
    identities: Identities, directory: Path, victim: User, member: User
) -> None:
    with dockerd(directory.parent / "docker.sock", {"dlapp.uid": str(victim.uid)}) as daemon:
        host = f"unix://{daemon.server_address}"
        evidence = {"task": dead_task(), "docker": {"host": host, "label": LABEL}}
        identities.call(victim, lambda: record_of(directory, "leased", "GPU-0", evidence=evidence))

        def use() -> None:
            ledger(directory, host).reserve(APP, 2).close()

        identities.call(member, use)
        assert daemon.removed == [f"/containers/{'a' * 64}?force=1&v=1"]


@pytest.mark.proves("ledger-containers")
def test_a_dockerd_named_by_a_record_is_not_asked(
    identities: Identities, directory: Path, attacker: User, root: User
) -> None:
    with dockerd(directory.parent / "evil.sock", {}, trickles=True) as daemon:
        evidence = {"task": dead_task(), "docker": {"host": f"unix://{daemon.server_address}", "label": LABEL}}
        identities.call(attacker, lambda: record_of(directory, "leased", "GPU-0", evidence=evidence))
        identities.call(root, lambda: len(ledger(directory, "unix:///nowhere").holders()))
    assert daemon.asked == 0


@pytest.mark.proves("ledger-containers")
def test_a_trickling_dockerd_times_out_as_a_whole(place: Path) -> None:
    with dockerd(place / "docker.sock", {}, trickles=True) as daemon:
        host = f"unix://{daemon.server_address}"
        probes = LivenessProbes(docker_host=host)
        evidence = {"task": dead_task(), "docker": {"host": host, "label": LABEL}}
        found = probes.check(evidence, "", owner=0, until=time.monotonic() + 0.5)
        assert (found.state, "time" in found.why) == ("unknown", True)


@pytest.mark.proves("ledger-lease")
def test_a_payload_at_another_dockerd_keeps_its_device_while_it_lives(
    identities: Identities, directory: Path, place: Path, member: User, victim: User
) -> None:
    life = place / "life"
    os.mkfifo(life)
    life.chmod(0o666)
    os.chown(life, member.uid, member.gid)
    evidence = {"task": dead_task(), "fifo": str(life), "docker": {"host": "unix:///elsewhere", "label": LABEL}}
    identities.call(member, lambda: record_of(directory, "leased", "GPU-0", evidence=evidence))
    probes: list[LivenessProbes | None] = [None]

    def refused() -> None:
        mine = MachineLedger(
            str(directory), docker_host="unix:///nowhere", discover=lambda: fake_devices(2), probes=probes[0]
        )
        with pytest.raises(NotEnough, match="1 free"):
            mine.reserve(APP, 2)

    with open(os.open(life, os.O_RDONLY | os.O_NONBLOCK)):
        identities.call(victim, refused)
    probes[0] = LivenessProbes(
        docker_host="unix:///nowhere", devices=lambda uuids: Liveness(ALIVE, "process 1 computes")
    )
    identities.call(victim, refused)
    identities.call(victim, use_all, directory)


@pytest.mark.proves("ledger-lease")
def test_a_lifeline_on_a_file_system_that_hangs_delays_for_a_bounded_time_and_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, answer = [], threading.Event()

    def hang(path: str, **_: Any) -> bool:
        asked.append(path)
        answer.wait()
        return False

    monkeypatch.setattr(evidence_module, "has_reader", hang)
    monkeypatch.setattr(evidence_module, "_LIFELINE_S", 0.05)
    probes = LivenessProbes(devices=lambda uuids: Liveness(GONE))
    evidence = {"fifo": "/hangs/life"}
    try:
        found = [probes.check(evidence, "", owner=os.geteuid() + 1) for _ in range(2)]
    finally:
        answer.set()
    assert [item.state for item in found] == [UNKNOWN, UNKNOWN]
    assert ("no answer in time" in found[0].why, "does not answer" in found[1].why) == (True, True)
    assert asked == ["/hangs/life"]
