"""What it costs to reach into a running program, against the same without dlapp.

``port-direct``: throughput of a port of a program that dlapp-port brings to another port of this machine directly, over
that of a plain copy: a process of a few lines that copies between the same two ports. Everything is on one machine, so
both are bounded by its processors; ``connection_mb_per_s`` is a connection to the program without a process between.
``port-am``: throughput of the port by way of the ApplicationMaster and the task, as from where the program's host
cannot be reached [MB/s]; of the five processes three copy. ``exec``, ``shell``: see `bench._exec`, `bench._shell`.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from bench import Row, alternately, median_ratio
from bench._throwaway import DEADLINE_S, command, own_state

ROUNDS = 5
COPIED_BYTES = 2 << 30
_SERVER = """
import os, socket, sys
server = socket.create_server(("127.0.0.1", 0))
with open(sys.argv[1] + ".new", "w") as file:
    file.write(str(server.getsockname()[1]))
os.rename(sys.argv[1] + ".new", sys.argv[1])
piece = memoryview(bytes(1 << 20))
while True:
    connection, _ = server.accept()
    left = int(connection.recv(32))
    while left:
        left -= connection.send(piece[:left])
    connection.close()
"""
_RECEIVER = """
import socket, sys, time
port, count = map(int, sys.argv[1:])
connection = socket.create_connection(("127.0.0.1", port))
buffer, got, began = bytearray(1 << 20), 0, time.perf_counter()
connection.sendall(b"%d" % count)
while more := connection.recv_into(buffer):
    got += more
if got != count:
    sys.exit(f"{got} of {count} bytes came")
print(time.perf_counter() - began)
"""
"""A client of a port: a process of its own, as a browser is one."""
_PLAIN_COPY = """
import socket, sys, threading

def copy(source, sink):
    buffer = memoryview(bytearray(1 << 18))
    while count := source.recv_into(buffer):
        sink.sendall(buffer[:count])
    sink.shutdown(socket.SHUT_WR)

server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
while True:
    one, _ = server.accept()
    other = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    for pair in ((one, other), (other, one)):
        threading.Thread(target=copy, args=pair, daemon=True).start()
"""


def rows() -> list[Row]:
    """Measure all of the above."""
    from bench import _exec, _shell

    with own_state() as (root, environment), _program(root, environment) as (application, port):
        found = _ports(environment, application, port)
    return [*found, _exec.row(), _shell.row()]


@contextlib.contextmanager
def _program(root: Path, environment: dict[str, str]) -> Iterator[tuple[str, int]]:
    """Run an application that serves bytes; yield its id and its port."""
    place = root / "serve"
    place.mkdir()
    (place / "serve.py").write_text(_SERVER)
    (place / "start.sh").write_text(f"exec {sys.executable} -I serve.py {root}/port\n")
    file = root / "serve.properties"
    file.write_text(
        "[application]\nappname=serve\nuser_dev_workspace_path=serve\nuser_shell_script=start.sh\n"
        "[resources]\nmemory=256\ngcores=0\n"
    )
    command(environment, "dlapp-launcher", str(file))
    application = command(environment, "dlapp-list", "-o", "id").split()[-1]
    try:
        deadline = time.monotonic() + DEADLINE_S
        while not (root / "port").exists():
            if time.monotonic() > deadline:
                raise SystemExit("the program does not serve")
            time.sleep(0.01)
        yield application, int((root / "port").read_text())
    finally:
        command(environment, "dlapp-kill", application)


def _ports(environment: dict[str, str], application: str, port: int) -> list[Row]:
    ours = [sys.executable, "-m", "bench.beside"]
    with (
        _copier(environment, [sys.executable, "-I", "-c", _PLAIN_COPY, str(port)]) as copied,
        _copier(environment, [*ours, "direct", application, str(port)]) as direct,
        _copier(environment, [*ours, "am", application, str(port)]) as by_am,
    ):
        ports = (port, copied, direct, by_am)
        connection, plain, forwarded, through_am = alternately([partial(_rate, one) for one in ports], ROUNDS)
    conditions = {
        "bytes": COPIED_BYTES,
        "runs": ROUNDS,
        "plain_copy_mb_per_s": statistics.median(plain),
        "connection_mb_per_s": statistics.median(connection),
    }
    return [
        Row(
            name="port-direct",
            ratio=median_ratio(forwarded, plain),
            goal=0.8,
            better="higher",
            conditions={**conditions, "mb_per_s": statistics.median(forwarded)},
        ),
        Row(
            name="port-am",
            ratio=statistics.median(through_am),
            goal=100.0,
            better="higher",
            conditions={**conditions, "unit": "MB/s"},
        ),
    ]


def _rate(port: int) -> float:
    """Return how fast bytes come from a port [MB/s]."""
    words = [sys.executable, "-I", "-c", _RECEIVER, str(port), str(COPIED_BYTES)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=True)
    return COPIED_BYTES / float(done.stdout) / 1e6


@contextlib.contextmanager
def _copier(environment: dict[str, str], argv: list[str]) -> Iterator[int]:
    """Run a process that brings the program's port to another one, and prints which; yield that."""
    with subprocess.Popen(
        argv, env=environment, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


def _serve_port(way: str, application: str, port: int) -> None:
    from dlapp.client import Client
    from dlapp.client.streams.ports import PortForward

    client = Client()
    with PortForward(client, client.resolve(application), 0, port, direct=way == "direct") as forward:
        forward.wait_open(DEADLINE_S)
        print(forward.local_port, flush=True)
        forward.run()


if __name__ == "__main__":
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    _serve_port(sys.argv[1], sys.argv[2], int(sys.argv[3]))
