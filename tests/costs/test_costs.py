"""Counts of what operations cost: calls, requests, modules, files. A higher number needs a reason here.

Times are measured in bench/; these counts explain them, and are the same on every machine.
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from dlapp.client import Client
from dlapp.cluster.local.client.engine import LocalEngine
from dlapp.cluster.yarn import bundle
from dlapp.config import load_config
from dlapp.gpuid.devices import Device
from dlapp.gpuid.rules import LeaseRequest
from dlapp.gpuid.stores.zookeeper import ZooKeeperLedger
from dlapp.hadoop.connection import Connection
from dlapp.net.http import HttpClient
from tests.applications import properties, run
from tests.engines import Engine
from tests.services.zookeeper import ZooKeeper, ledger_settings

COMMANDS = Path(sys.executable).parent


def file_of(directory: Path) -> Path:
    return properties(directory, "true", name="app", resources={"vcores": 1})


# ---- ZooKeeper ----


def test_a_lease_and_its_release_are_one_write_each(
    zookeeper: ZooKeeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kazoo.client import KazooClient

    calls, call = list[str](), KazooClient._call

    def counted(self: Any, request: Any, answer: Any) -> Any:
        calls.append(type(request).__name__)
        return call(self, request, answer)

    monkeypatch.setattr(KazooClient, "_call", counted)
    settings = ledger_settings(zookeeper.ensemble, f"/costs-{os.getpid()}", "dlapp:secret", lock_dir=str(tmp_path))
    devices = tuple(Device(f"GPU-{number}", number, number) for number in range(8))
    request = LeaseRequest("application_1700000000000_0001", "container_1", "tony", 2)
    with ZooKeeperLedger(settings, host="node0", discover=lambda: devices, machine="costs") as ledger:
        ledger.acquire(request, timeout_s=60).release()
        calls.clear()
        for _ in range(3):
            ledger.acquire(request, timeout_s=60).release()
    # A lease that was just released is read no more: this process has written the newest version.
    assert calls == ["SetData"] * 6
    with ZooKeeperLedger(settings, host="node0", discover=lambda: devices, machine="costs") as ledger:
        calls.clear()
        lease = ledger.acquire(request, timeout_s=60)
        assert calls == ["GetData", "SetData"]
        calls.clear()
        assert lease.release()
        assert calls == ["SetData"]


# ---- the requests of a submission ----


@pytest.mark.parametrize("engine", [pytest.param("yarn", marks=pytest.mark.hadoop)], indirect=True)
def test_the_second_submission_of_a_workspace_sends_these_requests(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent, exchange, call = list[str](), HttpClient.request, Connection.call

    def note(one: str) -> None:
        if threading.current_thread().name != "yarn-prepare":  # the clean-up, beside it
            sent.append(one)

    def counted(self: HttpClient, method: str, server: str, target: str, *args: Any, **more: Any) -> Any:
        note(f"{method} {target}")
        return exchange(self, method, server, target, *args, **more)

    def counted_call(self: Connection, method: str, *args: Any, **more: Any) -> bytes:
        note(f"RPC {method}")
        return call(self, method, *args, **more)

    packed, packs = bundle.packed, list[str]()

    def counted_packing(directory: str, **options: Any) -> tuple[str, str]:
        packs.append(directory)
        return packed(directory, **options)

    monkeypatch.setattr(HttpClient, "request", counted)
    monkeypatch.setattr(Connection, "call", counted_call)
    monkeypatch.setattr(bundle, "packed", counted_packing)
    path, client = file_of(tmp_path), Client(load_config())
    client.submit(str(path)).wait()
    sent.clear()
    packs.clear()
    submitted = client.submit(str(path))
    assert len(packs) == 1  # its digest and that of its sources take 60 ms
    requests = Counter(_kind(item) for item in sent)
    polls = requests.pop(f"GET apps/{submitted.application_id}")
    assert polls >= 1  # until YARN has looked at it
    assert requests == {
        "GET info": 2,  # its version; active before something is submitted
        "POST apps/new-application": 1,
        "GET conf yarn.scheduler.minimum-allocation-mb": 1,
        "GET conf yarn.resourcemanager.scheduler.class": 1,
        "GET conf yarn.resourcemanager.monitor.capacity.preemption.max_wait_before_kill": 1,
        "GET scheduler": 1,
        "POST apps": 1,
        "RPC mkdirs": 1,
        "RPC getFileInfo": 6,  # two archives, and the directories above that others may not write
        "RPC getBlockLocations": 1,  # the program is compared with ours
    }
    submitted.wait()
    client.close()


def _kind(request: str) -> str:
    method, _, target = request.partition(" ")
    if method == "RPC":
        return request
    path, _, query = target.partition("?")
    if found := re.search(r"(?:^|&)op=(\w+)", query):
        return f"{method} {found[1]}"
    if path == "/conf":
        return f"{method} conf {query.partition('name=')[2].partition('&')[0]}"
    return f"{method} {path.removeprefix('/ws/v1/cluster/')}"


# ---- modules ----

MODULES = {
    "dlapp-status --help": 11,
    "dlapp-status": 61,
    "dlapp-list": 61,
    "dlapp-launcher app.properties": 145,
}
"""Command -> modules of dlapp that it loads at most. Each takes about 0.2 ms. The client and the embedded engine are
several modules by subject: a status loads those that read views, and not those that submit, wait and kill. A submission
knows the live workspace of a shell, and the settings of the ledger from which its task leases."""
COSTLY = ("dataclasses", "http.client", "socket", "ssl", "tempfile", "urllib.parse")
"""Modules of Python that none of these commands loads; each takes 5 to 30 ms."""


@pytest.mark.parametrize("engine", ["local"], indirect=True)
def test_a_command_loads_no_more_modules(engine: Engine, tmp_path: Path) -> None:
    path = file_of(tmp_path)
    assert run("dlapp-launcher", "--wait", path).code == 0
    loaded, costly = {}, {}
    for command in MODULES:
        name, *words = command.split()
        argv = [sys.executable, "-X", "importtime", str(COMMANDS / name), *words]
        done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        names = re.findall(r"^import time:.*\| +(\S+)$", done.stderr, re.MULTILINE)
        loaded[command] = sum(item.partition(".")[0] == "dlapp" for item in names)
        costly[command] = sorted(set(COSTLY) & set(names))
    assert {command: count for command, count in loaded.items() if count > MODULES[command]} == {}
    assert {command: those for command, those in costly.items() if those} == {}


# ---- files ----

COUNTING = """
import runpy, sys
sys.argv[1:2], into = [], sys.argv[1]
opened = []
def hook(event, args):
    if event == "open":
        opened.append(args[0])
    elif event == "socket.connect" and "task" in sys.argv and None not in opened:
        with open(into, "a") as file:
            print(len(opened), file=file)
        opened.append(None)
sys.addaudithook(hook)
sys.path.insert(0, {root!r})
runpy.run_path({main!r}, run_name="__main__")
"""
FILES = 130
"""Files that a task opens before its first request, most of them compiled modules; two have values and functions that
modules share without importing each other."""


@pytest.mark.parametrize("engine", ["local"], indirect=True)
def test_a_task_opens_the_listed_files_before_requesting_work(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import dlapp.__main__

    main = dlapp.__main__.__file__
    program, counts = tmp_path / "program.py", tmp_path / "counts"
    program.write_text(COUNTING.format(root=str(Path(main).parents[1]), main=main))
    script = tmp_path / "program"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {program} {counts} "$@"\n')
    script.chmod(0o755)
    made = functools.partial(LocalEngine, program=(str(script),))
    monkeypatch.setattr("dlapp.cluster.local.client.engine.LocalEngine", made)
    path, client = file_of(tmp_path), Client(load_config())
    for _ in range(2):
        client.submit(str(path)).wait()
    client.close()
    assert [int(line) for line in counts.read_text().split()][-1] <= FILES
