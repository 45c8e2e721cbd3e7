"""The GPU ledger against the original's way, on the same ZooKeeper server in the same run.

The original's way, written for this bench: one map of all hosts, as JSON in one znode, changed under one lock of
kazoo. A pair is an allocation and its release. The limit of ours is two durable writes a pair, so the raw rate of
writes is measured beside it.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import Row
from dlapp.gpuid.devices import Device
from dlapp.gpuid.record_json import to_bytes
from dlapp.gpuid.rules import DeviceRecord, HostRecord, LeaseRecord, LeaseRequest
from dlapp.gpuid.stores.zookeeper import ZooKeeperLedger
from dlapp.value import replace
from tests.services.install import ZOOKEEPER_JAR
from tests.services.zookeeper import ZooKeeper, ledger_settings

NEEDS = ("java", ZOOKEEPER_JAR)
SECONDS = 3.0
ROUNDS = 2
GOALS = {1: 4.0, 8: 2.5, 32: 2.5}
CARDS = tuple(
    Device(f"GPU-{place:08x}-0000-4000-8000-000000000000", place, place, "NVIDIA A100-SXM4-80GB", 81920)
    for place in range(8)
)
Work = Callable[[int, str, str, int, Any, float, Any], None]


def rows() -> list[Row]:
    """All figures."""
    with ZooKeeper.start(durable=True) as server, tempfile.TemporaryDirectory(prefix="dlapp-bench-") as scratch:
        found: list[Row] = []
        original32 = 0.0
        for clients, goal in GOALS.items():
            ours, theirs = [], []
            for _ in range(ROUNDS):
                theirs.append(_rate(_original, server.ensemble, scratch, clients, 1))
                ours.append(_rate(_ours, server.ensemble, scratch, clients, 1))
            original32 = statistics.median(theirs)
            found.append(_pairs(f"pairs-{clients}", ours, theirs, goal))
        theirs = [_rate(_original, server.ensemble, scratch, 32, 16) for _ in range(ROUNDS)]
        ours = [_rate(_ours, server.ensemble, scratch, 32, 16) for _ in range(ROUNDS)]
        raw = [_rate(_raw, server.ensemble, scratch, 32, 16) for _ in range(ROUNDS)]
        found.append(_pairs("pairs-32x16", ours, theirs, 8.0))
        found.append(
            Row(
                name="write-share",
                ratio=2 * statistics.median(ours) / statistics.median(raw),
                goal=0.7,
                better="higher",
                conditions={"raw_writes_per_s": statistics.median(raw), "original_32_per_s": original32},
            )
        )
        found.append(_acquire_p99(server.ensemble, scratch))
        found += _list_10000(server.ensemble, scratch)
        return found


def _pairs(name: str, ours: list[float], theirs: list[float], goal: float) -> Row:
    a, b = statistics.median(ours), statistics.median(theirs)
    return Row(
        name=name,
        ratio=a / b,
        goal=goal,
        better="higher",
        conditions={"ours_per_s": a, "original_per_s": b, "rounds": ROUNDS},
    )


# ---- pairs ----


def _rate(work: Work, ensemble: str, scratch: str, clients: int, hosts: int) -> float:
    """Pairs (or raw writes) per second of all clients together."""
    # A fresh interpreter each: a forked one would share what kazoo holds.
    context = multiprocessing.get_context("spawn")
    ready, done = context.Barrier(clients + 1), context.Queue()
    processes = [
        context.Process(target=work, args=(place, ensemble, scratch, hosts, ready, SECONDS, done), daemon=True)
        for place in range(clients)
    ]
    for one in processes:
        one.start()
    ready.wait(120)
    began = time.monotonic()
    counted = sum(done.get(timeout=SECONDS + 60) for _ in processes)
    took_s = time.monotonic() - began
    for one in processes:
        one.join()
    return float(counted / max(SECONDS, min(took_s, SECONDS + 1)))


def _devices(clients: int, hosts: int) -> int:
    """Enough that nobody waits for one: what is measured is the ledger."""
    return max(8, clients // hosts)


def _until(ready: Any, seconds: float, done: Any, step: Callable[[], None]) -> None:
    ready.wait(120)
    counted, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        step()
        counted += 1
    done.put(counted)


def _ours(place: int, ensemble: str, scratch: str, hosts: int, ready: Any, seconds: float, done: Any) -> None:
    host = f"node{place % hosts}"
    settings = ledger_settings(ensemble, "/ours", "dlapp:secret", lock_dir=f"{scratch}/{host}")
    there = tuple(Device(f"GPU-{number}", number, number) for number in range(_devices(ready.parties - 1, hosts)))
    with ZooKeeperLedger(settings, host=host, discover=lambda: there, machine="bench") as ledger:
        ask = LeaseRequest("application_1700000000000_0001", f"container_{place}", "tony", 1)
        ledger.acquire(ask, timeout_s=60).release()
        _until(ready, seconds, done, lambda: _pair(ledger, ask))


def _pair(ledger: ZooKeeperLedger, ask: LeaseRequest) -> None:
    lease = ledger.acquire(ask, timeout_s=60)
    if not lease.release():
        raise SystemExit("Error: the ensemble went away")


def _original(place: int, ensemble: str, scratch: str, hosts: int, ready: Any, seconds: float, done: Any) -> None:
    from kazoo.client import KazooClient

    client = KazooClient(ensemble)
    client.start()
    client.ensure_path("/original/map")
    lock = client.Lock("/original/lock", f"client-{place}")
    host, devices = f"node{place % hosts}", _devices(ready.parties - 1, hosts)

    def change(take: bool) -> None:
        with lock:
            data, _ = client.get("/original/map")
            whole = json.loads(data) if data else {}
            mine = whole.setdefault(host, {})
            if take:
                free = next(f"gpu{number}" for number in range(devices) if f"gpu{number}" not in mine)
                mine[free] = f"application_{place}"
            else:
                for name in [name for name, holder in mine.items() if holder == f"application_{place}"]:
                    del mine[name]
            client.set("/original/map", json.dumps(whole).encode())

    def pair() -> None:
        change(True)
        change(False)

    _until(ready, seconds, done, pair)
    client.stop()


def _raw(place: int, ensemble: str, scratch: str, hosts: int, ready: Any, seconds: float, done: Any) -> None:
    from kazoo.client import KazooClient

    client = KazooClient(ensemble)
    client.start()
    path = f"/raw/{place}"
    client.ensure_path(path)
    data = to_bytes(_record(f"node{place}"))
    _until(ready, seconds, done, lambda: client.set(path, data))
    client.stop()


# ---- one call, and many hosts ----


def _acquire_p99(ensemble: str, scratch: str) -> Row:
    from kazoo.client import KazooClient

    client = KazooClient(ensemble)
    client.start()
    client.ensure_path("/raw/p99")
    data = to_bytes(_record("node0"))
    settings = ledger_settings(ensemble, "/p99", "dlapp:secret", lock_dir=f"{scratch}/p99")
    acquire, write = [], []
    with ZooKeeperLedger(settings, host="node0", discover=lambda: CARDS, machine="bench") as ledger:
        ask = LeaseRequest("application_1700000000000_0001", "container_1", "tony", 2)
        ledger.acquire(ask).release()
        for _ in range(2000):
            began = time.perf_counter()
            lease = ledger.acquire(ask)
            acquire.append(time.perf_counter() - began)
            lease.release()
            began = time.perf_counter()
            client.set("/raw/p99", data)
            write.append(time.perf_counter() - began)
    client.stop()
    ours, raw = statistics.quantiles(acquire, n=100)[98], statistics.quantiles(write, n=100)[98]
    return Row(
        name="acquire-p99",
        ratio=ours / raw,
        goal=4.0,
        better="lower",
        conditions={
            "acquire_p99_ms": 1000 * ours,
            "write_p99_ms": 1000 * raw,
            "acquire_p50_ms": 1000 * statistics.median(acquire),
        },
    )


def _record(host: str, number: int = 0) -> HostRecord:
    devices = [replace(one, uuid=f"GPU-{number:08x}-{one.uuid[-8:]}") for one in CARDS]
    leases = tuple(
        LeaseRecord(
            f"container_1700000000000_0001_01_{place:06d}",
            "application_1700000000000_0001",
            "tony",
            (devices[place].uuid,),
            1_700_000_000_000,
            "0123456789abcdef",
            "8d6acba3-ef20-44b0-87ee-2981f750a6af",
            {
                "task": {"pid": 4711, "start_time": 123456, "pid_ns": 4026531836},
                "lock": {
                    "directory": "/run/lock/dlapp",
                    "token": "0123456789abcdef",
                    "cards": {devices[place].uuid: 4711},
                },
            },
        )
        for place in range(4)
    )
    return HostRecord(host, tuple(map(DeviceRecord, devices)), leases, "0" * 32, "8d6acba3", 1_700_000_000_000)


def _list_10000(ensemble: str, scratch: str) -> list[Row]:
    from kazoo.client import KazooClient

    client = KazooClient(ensemble)
    client.start()
    client.ensure_path("/many/hosts")
    answers = [
        client.create_async(f"/many/hosts/node{number:05d}", to_bytes(_record(f"node{number:05d}", number)))
        for number in range(10_000)
    ]
    for one in answers:
        one.get(60)
    client.stop()
    seconds, mib, devices = _list(ensemble, scratch)
    if devices != 80_000:
        raise SystemExit(f"Error: {devices} cards were listed, not 80000")
    conditions = {"hosts": 10_000, "cards": devices, "command": "dlapp-gpu list"}
    return [
        Row(name="list-10000", ratio=seconds, goal=5.0, better="lower", conditions={"unit": "s", **conditions}),
        Row(name="list-10000-memory", ratio=mib, goal=150.0, better="lower", conditions={"unit": "MiB", **conditions}),
    ]


def _list(ensemble: str, scratch: str) -> tuple[float, float, int]:
    """Run the whole command: how long it took [s], its peak memory [MiB], and how many lines it printed."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("DLAPP_")},
        "DLAPP_GPUID_ZOOKEEPER_ENSEMBLE": ensemble,
        "DLAPP_GPUID_ZOOKEEPER_ROOT": "/many",
        "DLAPP_GPUID_ZOOKEEPER_CREDENTIALS": "none",
        "DLAPP_GPUID_LOCK_DIR": scratch,
    }
    began = time.monotonic()
    with subprocess.Popen(
        [shutil.which("dlapp-gpu") or "dlapp-gpu", "list"], env=environment, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        lines = sum(1 for _ in process.stdout)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"Error: dlapp-gpu list: exit code {process.returncode}")
    return time.monotonic() - began, used.ru_maxrss / 1024, lines


if __name__ == "__main__":
    raise SystemExit(f"run it as: make bench NAME={Path(__file__).stem}")
