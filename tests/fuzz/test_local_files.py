"""Files that another process of the machine, or another user, may have written or damaged: markers, the GPU ledger of a
machine, what says how an application ended and where its ApplicationMaster is."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from dlapp.client.logs import LineMerger, LogPiece
from dlapp.cluster.engine import LogFiles
from dlapp.cluster.local import outcome
from dlapp.cluster.local.am_engine import LocalAmEngine
from dlapp.cluster.local.client.control import control_url
from dlapp.cluster.local.settings import settings_of
from dlapp.config import load_config
from dlapp.gpuid.stores.device_files import Directory
from dlapp.gpuid.stores.queue_tickets import TICKET, waiting
from dlapp.locations import HdfsPlace
from dlapp.login import Login
from dlapp.storage.commit.marker import parse_marker
from dlapp.tools.display.terminal import TerminalStream, terminal_line
from dlapp.values.serialization import to_json
from tests.fuzz import samples
from tests.fuzz.parsing import fuzz, fuzz_json

PARTS = f"/user/tony/run.{samples.APPLICATION}.tmp"


@pytest.mark.parametrize("key", ["inode", "number"], ids=["of a directory", "of HDFS"])
def test_a_marker_of_a_commit_is_obeyed_or_refused(key: str) -> None:
    now = {"version": 2, key: 5, "overwrite": True, "mode": 493, "parts": [["", str(samples.CONTAINER)]]}
    several = {**now, "parts": [["0", str(samples.CONTAINER)], ["1", str(samples.CONTAINER)]]}
    before = {"version": 1, key: 5, "overwrite": False, "parts": [["", f"{PARTS}/{samples.CONTAINER}"]]}

    def read(data: bytes) -> None:
        plan = parse_marker(data, "/user/tony/run.commit", PARTS, str(samples.APPLICATION), key)
        for name, container in plan.parts:
            assert "/" not in container
            assert container not in ("", ".", "..")
            assert "/" not in name
            assert name not in (".", "..")

    fuzz_json(read, [now, several, before])


@pytest.mark.parametrize("name", ["leased-0123456789abcdef", "leased-GPU-0-0123456789abcdef"])
def test_a_record_of_a_machines_ledger_is_read_or_left_out(tmp_path: Path, name: str) -> None:
    devices = {"GPU-0": 0, "MIG-GPU-1/0": 1}
    record = {"name": name, "devices": devices, "application": str(samples.APPLICATION), "since_ms": 1, "evidence": {}}

    def read(data: bytes) -> None:
        (tmp_path / name).write_bytes(data)
        fd = os.open(tmp_path, os.O_RDONLY)
        try:
            for entries in Directory(fd, str(tmp_path), {}).entries().values():
                assert entries[0].record["name"] == name
        finally:
            os.close(fd)

    fuzz_json(read, [record], errors=())


def test_a_ticket_of_a_machines_ledger_is_read_or_left_out(tmp_path: Path) -> None:
    name = f"{TICKET}1"

    def read(data: bytes) -> None:
        (tmp_path / name).write_bytes(data)
        fd = os.open(tmp_path, os.O_RDONLY)
        try:
            assert waiting(Directory(fd, str(tmp_path), {}), 5.0, [name]) == []
        finally:
            os.close(fd)

    fuzz_json(read, [{"name": name, "since_ms": 5, "user": "tony"}], errors=())


def test_how_an_application_ended_is_read_or_refused(tmp_path: Path) -> None:
    def read(data: bytes) -> None:
        for name in ("outcome.json", "kill.json", "am.json", "died", "am.log"):
            (tmp_path / name).write_bytes(data)
        for ask in (outcome.kill_request, outcome.died_ms, lambda home: outcome.derive(home, "b", "b")):
            ask(str(tmp_path))
        control_url(str(tmp_path))
        outcome.last_line(str(tmp_path / "am.log"))
        outcome.read_outcome(str(tmp_path))

    ended = outcome.failed("oh", 5)
    where = {"pid": 5, "start_time": 5, "boot_id": "b", "attempt": 1, "control_url": "http://a:1"}
    fuzz_json(read, [ended, where, {"by": "tony"}])


@pytest.mark.parametrize("name", ["engine.json", "submission.json"])
def test_the_files_of_an_application_are_parsed_or_refused(tmp_path: Path, name: str) -> None:
    home = tmp_path / str(samples.APPLICATION)
    home.mkdir()
    settings = settings_of(load_config(environ={}, system_file=""), ("/bin/false",)).to_json()
    engine = {
        "settings": settings,
        "shared": False,
        "umask": 18,
        "hdfs": to_json(HdfsPlace("hdfs://nn", ("http://nn:9870",), Login("tony"))),
    }
    given: dict[str, Any] = {"engine.json": engine, "submission.json": to_json(samples.SUBMISSION)}
    for one, value in given.items():
        (home / one).write_text(json.dumps(value))
    alive = os.open(home / "alive", os.O_RDWR | os.O_CREAT)

    def read(data: bytes) -> None:
        (home / name).write_bytes(data)
        LocalAmEngine(str(home), 1, alive, (), lambda: None)

    try:
        fuzz_json(read, [given[name]])
    finally:
        os.close(alive)


# ---- what programs print ----

PRINTED = b"step 1\r\x1b[32mstep 2\x1b[0m\nl\xc3\xa4uft \x1b]0;title\x07 \x1b[2J\nlast line without an end"


def harmless(shown: str) -> None:
    assert not any(item in shown for item in "\x07\x08\x9b\x9d\x90\u202e"), shown
    for after in shown.split("\x1b")[1:]:
        assert after.startswith("["), shown
        assert after[1:].lstrip("0123456789;:").startswith("m"), shown


def test_any_program_output_is_merged_and_shown() -> None:
    log = LogFiles(container_id=samples.CONTAINER, role="worker", role_index=0, index=0, files={})

    def show(data: bytes) -> None:
        merger, stream = LineMerger(), TerminalStream()
        for offset in range(0, len(data), 1000):
            harmless(stream.feed(data[offset : offset + 1000]))
            for line in merger.lines(LogPiece(log, "stdout", data[offset : offset + 1000])):
                harmless(terminal_line(line))
        harmless(stream.feed(b""))

    fuzz(show, [PRINTED], errors=())
