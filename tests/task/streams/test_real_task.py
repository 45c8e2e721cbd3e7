"""Streams to the payload of a real task, and what is left of them when it dies."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from pathlib import Path

import pytest

from dlapp.system.processes.proc import descendants, start_time
from dlapp.values.messages import Phase
from tests.applications import wait_for
from tests.runtime.driver import place
from tests.task.fake_am import FakeAm, workspace_archive

__all__ = ["place"]

PATIENCE_S = 120.0
SERVER = """
import os, socket
server = socket.create_server(("127.0.0.1", 0))
with open("port.new", "w") as file:
    file.write(str(server.getsockname()[1]))
os.rename("port.new", os.environ["DLAPP_DIR"] + "/port")
while True:
    connection, _ = server.accept()
    while data := connection.recv(4096):
        connection.sendall(data.upper())
"""


def fake_am(place: Path) -> FakeAm:
    packed = workspace_archive(place, {"run.sh": f"exec {sys.executable} -I serve.py", "serve.py": SERVER})
    return FakeAm(place / "containers", **packed)


def port_of(am: FakeAm) -> int:
    am.wait_for(Phase.RUNNING)
    file = am.home / "run/port"
    am.wait_until(file.exists)
    return int(file.read_text())


def relays(am: FakeAm) -> list[int]:
    """Return the processes of the task's streams."""
    assert am.task is not None
    found = []
    for pid in descendants(am.task.pid):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_bytes().endswith(b"\0streams\0"):
                found.append(pid)
    return found


def talk(stream: socket.socket) -> None:
    stream.settimeout(PATIENCE_S)
    stream.sendall(b"hello")
    assert stream.recv(100) == b"HELLO"


def test_streams_reach_the_payload_and_end_with_their_task_also_when_it_is_killed(place: Path) -> None:
    with fake_am(place) as am:
        am.start()
        port = port_of(am)
        assert relays(am) == [], "no stream, no process"
        first = am.open_stream(1, "port", {"port": port})()
        talk(first)
        am.order(report_every_s=5.0)  # the same stream is named again
        talk(first)
        (pid,) = relays(am)
        am.open_stream(2, "port", {"port": 1})
        am.open_stream(3, "no-such-kind", {})
        am.wait_until(lambda: len(am.refused) == 2)
        assert sorted((item.number, item.error, item.reason) for item in am.refused) == [
            (2, "nothing listens on port 1 yet", "not_open"),
            (3, "the dlapp of this container has no streams of the kind no-such-kind", ""),
        ]
        assert relays(am) == [pid]
        assert am.task is not None
        am.task.kill()
        with contextlib.suppress(ConnectionResetError):
            assert first.recv(1) == b""
        first.close()
        wait_for("the end of the process of the streams", lambda: start_time(pid) is None)
        am.task.wait(PATIENCE_S)


@pytest.mark.slow
def test_a_killed_stream_process_ends_only_its_streams(place: Path) -> None:
    with fake_am(place) as am:
        am.start()
        port = port_of(am)
        first = am.open_stream(1, "port", {"port": port})()
        talk(first)
        (pid,) = relays(am)
        os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ConnectionResetError):
            assert first.recv(1) == b""
        first.close()
        wait_for("its end", lambda: start_time(pid) is None)
        with am.open_stream(2, "port", {"port": port})() as second:
            talk(second)
        assert am.phases[-1] is Phase.RUNNING
