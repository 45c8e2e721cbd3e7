"""Many processes on one ledger while everything is done to them, and what must hold of all that happened.

Three accounts are compared. The payloads' own: a witness file for each GPU (`ledger_worker`). The workers'
and payloads' events, with their times. And the history of the ledger itself, which is no word of ours: ZooKeeper's
transaction log has every state that a host's record ever had, in order.

- Exclusive: no payload found another's witness; no state of a record gives a GPU to two; a lease ended while its
  payload ran only if its own task released it.
- Nothing leaks: when all processes are gone, the next request gets every GPU.
- The record was made once and never deleted.

What is done to them, by the seed: SIGKILL; SIGSTOP, some beyond the session's timeout; a worker cut off from the
ensemble by a proxy; a clock that jumps by up to a day; and to the ensemble, servers that are killed or stopped, one
after the other.

Source of the log's format: org.apache.zookeeper.server.persistence.FileTxnLog, zookeeper.jute.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import select
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from dlapp.errors import DlappError
from dlapp.gpuid.record_json import from_bytes
from dlapp.gpuid.rules import HostRecord, LeaseRequest
from tests.gpuid.planted import open_planted
from tests.services.http.proxy import Plan, Proxy
from tests.services.zookeeper import ZooKeeper

ROOT = Path(__file__).resolve().parents[2]
SESSION_S = 1.0
_CREATE, _DELETE, _SET_DATA, _CREATE2, _CLOSE = 1, 2, 5, 15, -11


class Written(NamedTuple):
    """One transaction on a znode; ``data`` None: it was deleted. ``at_ms`` is the server's clock."""

    zxid: int
    at_ms: int
    path: str
    data: bytes | None
    created: bool


def transactions(logs: list[Path]) -> Iterator[Written]:
    """Return what was written, in order.

    file: "ZKLG" version:i4 dbid:i8, then per transaction checksum:i8 length:i4 body "B"
    body: client:i8 cxid:i4 zxid:i8 time_ms:i8 type:i4, then create: path data acl…; delete: path; setData: path data
    """
    for log in logs:
        data = log.read_bytes()
        place = 16
        while place + 12 <= len(data):
            _, length = struct.unpack_from(">qi", data, place)
            body = data[place + 12 : place + 12 + length]
            if length <= 0 or len(body) < length:
                break
            place += 12 + length + 1
            _, _, zxid, at_ms, kind = struct.unpack_from(">qiqqi", body)
            if kind in (_CREATE, _CREATE2, _SET_DATA, _DELETE):
                path, after = _text(body, 32)
                content = None if kind == _DELETE else _buffer(body, after)
                yield Written(zxid, at_ms, path, content, kind in (_CREATE, _CREATE2))


def _text(body: bytes, place: int) -> tuple[str, int]:
    (length,) = struct.unpack_from(">i", body, place)
    return body[place + 4 : place + 4 + length].decode(), place + 4 + length


def _buffer(body: bytes, place: int) -> bytes:
    (length,) = struct.unpack_from(">i", body, place)
    return body[place + 4 : place + 4 + max(0, length)]


# ---- the run ----


@dataclass
class History:
    """Events of a run."""

    events: list[dict[str, Any]]
    writes: list[Written]
    faults: dict[str, int]
    problems: list[str] = field(default_factory=list)

    @property
    def operations(self) -> int:
        """Leases taken, and releases."""
        return sum(event["what"] in ("leased", "releasing") for event in self.events)


KINDS = ("killed", "paused", "cut", "clock")
"""Faults of one server's clients; an ensemble of three adds ``server``."""


def run(
    directory: Path,
    *,
    operations: int = 0,
    lasts_s: float = 0.0,
    seed: int,
    zookeeper: ZooKeeper | None,
    workers: int = 6,
    hosts: int = 2,
    plant: str = "",
    kinds: tuple[str, ...] = KINDS,
    mixed: bool = False,
    until_problem: bool = False,
    timeout_s: float = 150.0,
) -> History:
    """Let ``workers`` processes do at least ``operations``, kill, pause and cut them off by the seed, and check.

    Args:
        lasts_s: go on for so long, too.
        zookeeper: the store; None: the machine's files.
        kinds: of faults; of pauses alone, all are longer than a session lasts, and most in the middle of a payload.
        hosts: hosts of four GPUs each, all of them this machine; a machine's store is a directory for each. On every
            other one the workers of ZooKeeper have no locks in common.
        mixed: on the first host some workers are the machine's own.
        until_problem: stop at the first problem that the payloads see.
        timeout_s: how long it may take beyond ``lasts_s``; fewer operations by then are a problem.
    """
    with contextlib.ExitStack() as stack:
        kinds = kinds if zookeeper else tuple(kind for kind in kinds if kind not in ("cut", "server"))
        whole = _Run(directory, seed, zookeeper, hosts, plant, kinds, stack)
        began = time.monotonic()
        return whole.go(operations, workers, mixed, until_problem, began + lasts_s, timeout_s)


class _Counted:
    """The events that were written so far, counted without reading any twice."""

    def __init__(self, path: Path) -> None:
        self._path, self._read, self._rest = path, 0, b""
        self.operations, self.violations = 0, 0

    def look(self) -> None:
        if not self._path.exists():
            return
        with open(self._path, "rb") as file:
            file.seek(self._read)
            new = file.read()
        self._read += len(new)
        lines, self._rest = (self._rest + new).rpartition(b"\n")[::2]
        self.operations += lines.count(b'"leased"') + lines.count(b'"releasing"')
        self.violations += lines.count(b'"violation"')


class _Run:
    def __init__(
        self,
        directory: Path,
        seed: int,
        zookeeper: ZooKeeper | None,
        hosts: int,
        plant: str,
        kinds: tuple[str, ...],
        stack: contextlib.ExitStack,
    ) -> None:
        self.directory, self.zookeeper, self.hosts, self.plant = directory, zookeeper, hosts, plant
        self.kinds = kinds
        self.choice = random.Random(seed)
        self.root = f"/history-{seed}-{plant or 'whole'}-{directory.name}"
        self.stack = stack
        self.events = directory / "events"
        self.started = 0
        self.bag: list[str] = []
        self.faults = dict.fromkeys((*(kind for kind in kinds if kind != "clock"), "died"), 0)
        for host in range(hosts):
            (directory / f"witness-{host}").mkdir(parents=True)
        (directory / "lives").mkdir()
        # Everything that is started inherits the writing end: at its end of file none is left.
        self.all_gone, self.there = os.pipe()
        stack.callback(os.close, self.all_gone)
        stack.callback(self.let_go)

    def plan(self, address: str, leases: int, host: int) -> dict[str, Any]:
        self.started += 1
        locks = f"locks-{host}"
        on_zookeeper = bool(address)
        if on_zookeeper and (host % 2 or self.plant):
            # Nobody meets another's locks: what the record says must be enough.
            locks += f"-{self.started}"
        return {
            "store": "zookeeper" if on_zookeeper else "machine",
            "directory": str(self.directory / locks),
            "settings": {
                "ensemble": address,
                "root": self.root,
                "credentials": "" if self.plant == "recreate" else "dlapp:secret",
                "session_timeout_s": SESSION_S,
                "lock_dir": str(self.directory / locks),
            },
            "host": f"node{host}",
            "cards": 4,
            "name": f"w{self.started}",
            "parent": os.getpid(),
            "seed": self.choice.getrandbits(32),
            "leases": leases,
            "hold_s": 0.01 if len(self.kinds) > 1 else 0.1,
            "plant": self.plant,
            # A task that dies costs the start of another process; what a mistake does shows when tasks die.
            "well": 12 if self.plant else 24,
            "clock": "clock" in self.kinds,
            "witness": str(self.directory / f"witness-{host}"),
            "lives": str(self.directory / "lives"),
            "events": str(self.events),
        }

    def start(self, address: str, host: int) -> subprocess.Popen[bytes]:
        plan = self.plan(address, 1_000_000, host)
        path = self.directory / f"{plan['name']}.json"
        path.write_text(json.dumps(plan))
        with open(self.directory / f"{plan['name']}.log", "wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.services.processes.ledger_worker", str(path)],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(self.there,),
            )
        self.stack.callback(_end, process)
        return process

    def go(
        self, operations: int, workers: int, mixed: bool, until_problem: bool, at_least: float, timeout_s: float
    ) -> History:
        servers = self.zookeeper.addresses if self.zookeeper else []
        self.proxies = [[self.stack.enter_context(Proxy(server)) for server in servers] for _ in range(workers)]
        addresses = [
            ",".join(f"{host}:{port}" for host, port in (item.address for item in way)) for way in self.proxies
        ]
        if mixed:
            addresses[:: 3 * self.hosts] = ["" for _ in addresses[:: 3 * self.hosts]]
        self.running = [self.start(addresses[place], place % self.hosts) for place in range(workers)]
        wake: list[tuple[float, Any, Callable[[], None]]] = []
        next_fault, fault_after = time.monotonic() + 1.0, 0
        counted, crashed = _Counted(self.events), ""
        deadline = at_least + timeout_s
        while not crashed:
            time.sleep(0.02)
            now = time.monotonic()
            for place, process in enumerate(self.running):
                if (code := process.poll()) is not None:
                    if code != -signal.SIGKILL:
                        crashed = f"a worker ended with {code}: {self.log_of(process)}"
                    self.faults["died"] += 1
                    self.running[place] = self.start(addresses[place], place % self.hosts)
            for item in [one for one in wake if one[0] <= now]:
                wake.remove(item)
                item[2]()
            counted.look()
            # On a busy machine there would be more faults than operations, and each costs the start of a process.
            if now >= next_fault and (counted.operations >= fault_after or now >= next_fault + 3.0 or until_problem):
                next_fault, fault_after = now + self.choice.uniform(0.1, 0.5), counted.operations + 5
                self.one_fault(wake, now)
            enough = counted.operations >= operations and now >= at_least and all(self.faults.values())
            if enough or (until_problem and counted.violations):
                break
            if now >= deadline:
                if counted.operations < operations or until_problem:
                    crashed = f"only {counted.operations} operations in {timeout_s:g} s"
                break
        for process in self.running:
            _end(process)
        for _, _, back in wake:
            back()
        self.wait_for_payloads()
        if self.zookeeper:
            self.zookeeper.wait_until_ready()
        return self.check(crashed)

    def one_fault(self, wake: list[tuple[float, Any, Callable[[], None]]], now: float) -> None:
        if not self.bag:
            kinds = [kind for kind in self.kinds if kind != "clock"]
            self.bag = self.choice.sample(kinds, len(kinds))  # in any order, and each as often: short runs have all
        what = self.bag[-1]
        place: Any = "server" if what == "server" else self.choice.randrange(len(self.running))
        if any(item[1] == place for item in wake):
            return
        self.faults[self.bag.pop()] += 1
        if what == "server":
            assert self.zookeeper is not None
            # One at a time, the next when it is back: a rolling restart, in any order, some by surprise.
            server, down = self.choice.choice(self.zookeeper.servers), self.zookeeper
            (down.kill_server if self.choice.random() < 0.5 else down.stop_server)(server)
            wake.append((now + self.choice.uniform(0.2, 2.0), place, lambda: _bring_back(down, server)))
        elif what == "killed":
            self.running[place].kill()
        elif what == "paused":
            spans = (0.1, 0.5, 2.2 * SESSION_S) if len(self.kinds) > 1 else (2.2 * SESSION_S,)
            process = self.running[place]
            process.send_signal(signal.SIGSTOP)
            wake.append((now + self.choice.choice(spans), place, lambda: process.send_signal(signal.SIGCONT)))
        else:
            for proxy in self.proxies[place]:
                proxy.plan = Plan(refuse=True)
                proxy.cut_all()
            wake.append((now + self.choice.choice((0.0, 0.3, 2.2 * SESSION_S)), place, lambda: self.join(place)))

    def join(self, place: int) -> None:
        """Let a worker reach the ensemble again."""
        for proxy in self.proxies[place]:
            proxy.plan = Plan()

    def log_of(self, process: subprocess.Popen[bytes]) -> str:
        name = Path(str(process.args[3])).stem  # type: ignore[index]
        return (self.directory / f"{name}.log").read_text(errors="replace")[-4000:]

    def let_go(self) -> None:
        """Close our end of what all inherit."""
        if self.there >= 0:
            os.close(self.there)
            self.there = -1

    def wait_for_payloads(self) -> None:
        """Until the last has ended; on a machine that is busy with other things that takes a while."""
        self.let_go()
        assert select.select([self.all_gone], [], [], 120)[0], "payloads do not end"

    # ---- the check ----

    def check(self, crashed: str) -> History:
        events = [json.loads(line) for line in self.events.read_text().splitlines()]
        writes = []
        if self.zookeeper:
            found = transactions(self.zookeeper.transaction_logs(self.zookeeper.leader()))
            writes = [item for item in found if item.path.startswith(f"{self.root}/hosts/")]
        history = History(events, writes, self.faults, [crashed] if crashed else [])
        for event in events:
            if event["what"] == "violation":
                history.problems.append(f"{event['container']} found {event['other']} on {event['device']}")
        history.problems += _problems_of_writes(events, writes)
        history.problems += self.leaks()
        return history

    def leaks(self) -> list[str]:
        found = []
        stores = {"", self.zookeeper.ensemble if self.zookeeper else ""}
        for host, address in itertools.product(range(self.hosts), sorted(stores)):
            ledger = open_planted(self.plan(address, 0, host) | {"plant": ""})
            try:
                evidence = {"fifo": str(self.directory / "lives" / "none")}
                ledger.acquire(
                    LeaseRequest("application_last", "last", "tony", 4, (), evidence), timeout_s=120
                ).release()
            except DlappError as error:
                found.append(f"leaked: {error}")
            finally:
                ledger.close()
        return found


def _problems_of_writes(events: list[dict[str, Any]], writes: list[Written]) -> list[str]:
    started = {event["container"]: event["at"] for event in events if event["what"] == "started"}
    ended = {event["container"]: event["at"] for event in events if event["what"] in ("ended", "releasing")}
    problems: list[str] = []
    last: dict[str, HostRecord] = {}
    for write in writes:
        host = write.path.rpartition("/")[2]
        if write.data is None:
            problems.append(f"{host}: its record was deleted")
            last.pop(host, None)
            continue
        record = from_bytes(write.data, host)
        held = [uuid for lease in record.leases for uuid in lease.devices]
        if len(held) != len(set(held)):
            problems.append(f"{host}: a card is leased twice at zxid {write.zxid:x}")
        if host in last and write.created:
            problems.append(f"{host}: its record was made again")
        known_leases = {(item.container, item.token) for item in record.leases}
        for lease in last[host].leases if host in last else ():
            begin, end = started.get(lease.container), ended.get(lease.container)
            # A payload without an end was killed, or is one whose task was: its witness speaks for it.
            if (lease.container, lease.token) in known_leases or begin is None or end is None:
                continue
            if begin < write.at_ms < end - 1:
                problems.append(
                    f"{host}: the lease of {lease.container} ended {end - write.at_ms} ms before its payload"
                )
        last[host] = record
    return problems


def _bring_back(zookeeper: ZooKeeper, server: str) -> None:
    zookeeper.start_server(server)
    zookeeper.wait_until_ready()


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    process.wait()
