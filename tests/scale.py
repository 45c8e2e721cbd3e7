"""python -m tests.scale: one ApplicationMaster's control server, 10,000 tasks with two connections each, and strangers.

The tasks lie in helper processes, for each connection needs a descriptor at both ends. The server's process has its
own, so it needs a limit of 20,000 and some hundred more (``ulimit -Hn``). Where that cannot be had, as many tasks as
fit keep a second connection, and the others one; what was run is printed.

Each task reports on each of its connections, first all at once on new ones, then again and again on those that it has.
All must be answered, and no connection that was answered once may be closed, while strangers connect from several
addresses, say half of something and stay. A new connection may be taken for a stranger's and closed before its first
request has come: the task tries again, as tasks do, and that is counted.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import selectors
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from dlapp.values.access import derive_token
from dlapp.values.ids import ApplicationId, ContainerId
from dlapp.values.messages import Phase, Report
from dlapp.values.serialization import to_json
from tests.services.processes.control_process import SECRET

TASKS = 10_000
HELPERS = 4
AT_ONCE = 250
"""Requests that each helper has underway."""
ROUNDS = 3
BESIDES = 700
"""Descriptors of the server that are not tasks': strangers, the interpreter's, those that are just closing."""
LIMIT_S = 60.0
APPLICATION = ApplicationId(1_700_000_000_000, 1)
ROOT = Path(__file__).parents[1]


# ---- the whole ----


def main() -> int:
    """Run it once and print the figures; 1: a task was not served."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(_process("tests.services.processes.control_process", limit=2 * TASKS + BESIDES))
        port, pid = int(_line(server)), server.pid
        limit = resource.prlimit(pid, resource.RLIMIT_NOFILE)[0]
        twice = min(TASKS, limit - TASKS - BESIDES)
        if twice <= 0:
            print(f"the server may have {limit} descriptors, too few for {TASKS} tasks", file=sys.stderr)
            return 1
        print(f"{TASKS} tasks, {TASKS + twice} connections (the server may have {limit} descriptors)")
        before = _memory_mib(pid, "VmRSS")
        strangers = stack.enter_context(_process("tests.scale", "strangers", str(port)))
        per, two = TASKS // HELPERS, twice // HELPERS
        helpers = [
            stack.enter_context(_process("tests.scale", "tasks", str(port), str(2 + at * per), str(per), str(two)))
            for at in range(HELPERS)
        ]
        for name in ("connect", *(f"report {number}" for number in range(1, ROUNDS + 1))):
            began = time.monotonic()
            for helper in helpers:
                _tell(helper, name)
            answers = [json.loads(_line(helper)) for helper in helpers]
            took_s = sorted(item for answer in answers for item in answer["took_s"])
            again = sum(answer["again"] for answer in answers)
            wall_s = time.monotonic() - began
            if len(took_s) != HELPERS * (per + two):
                print(f"{name}: {len(took_s)} of {HELPERS * (per + two)} were answered", file=sys.stderr)
                return 1
            print(
                f"{name}: {len(took_s)} answers in {wall_s:.1f} s, p50 {_percentile(took_s, 50):.0f} ms, "
                f"p99 {_percentile(took_s, 99):.0f} ms, the last {1000 * took_s[-1]:.0f} ms, {again} tried again; "
                f"server {_memory_mib(pid, 'VmRSS'):.0f} MiB, {_descriptors(pid)} descriptors"
            )
        _tell(strangers, "count")
        peak = _memory_mib(pid, "VmHWM")
        print(f"{_line(strangers)} strangers connected; server {before:.0f} MiB before, {peak:.0f} MiB at most")
    return 0


@contextlib.contextmanager
def _process(module: str, *words: str, limit: int = 0) -> Iterator[subprocess.Popen[str]]:
    """Run a module of ours until its standard input is closed."""

    def raise_limit() -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = max(limit, soft)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, max(hard, wanted)))
        except (OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    process = subprocess.Popen(
        [sys.executable, "-m", module, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        text=True,
        preexec_fn=raise_limit,
    )
    with process:
        try:
            yield process
        finally:
            with contextlib.suppress(BrokenPipeError):
                _pipe(process.stdin).close()


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


def _tell(process: subprocess.Popen[str], line: str) -> None:
    _pipe(process.stdin).write(line + "\n")
    _pipe(process.stdin).flush()


def _line(process: subprocess.Popen[str]) -> str:
    if not (line := _pipe(process.stdout).readline()):
        raise SystemExit(f"a process has ended: {' '.join(map(str, process.args))}")  # type: ignore[arg-type]
    return line.strip()


def _percentile(sorted_s: list[float], percent: int) -> float:
    """A percentile of times [ms]."""
    return 1000 * sorted_s[min(len(sorted_s) - 1, len(sorted_s) * percent // 100)]


def _memory_mib(pid: int, field: str) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:")) / 1024


def _descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


# ---- helpers ----


class Connection:
    """One connection of a task, and the answer that it waits for."""

    def __init__(self, port: int, container: ContainerId) -> None:
        self._port, self._container = port, container
        self._token = derive_token(SECRET, str(container))
        self.sock: socket.socket | None = None
        self.heard = b""
        self.asked_at = 0.0

    def ask(self, number: int) -> socket.socket:
        """Send a report, on a new connection if there is none."""
        self.heard = b""
        if self.sock is None:
            self.sock = socket.create_connection(("127.0.0.1", self._port), timeout=LIMIT_S)
        report = Report(container_id=self._container, number=number, index=0, phase=Phase.RUNNING)
        body = json.dumps(to_json(report)).encode()
        head = f"POST /v1/tasks/{self._container}/report HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n"
        with contextlib.suppress(ConnectionError):  # it is closed: that is read next
            self.sock.sendall(f"{head}Authorization: Bearer {self._token}\r\n\r\n".encode() + body)
        return self.sock

    def is_answered(self) -> bool:
        """Take what has come; whether that is all of a right answer.

        Raises:
            SystemExit: it is no right answer.
            ConnectionError: the connection was closed.
        """
        assert self.sock is not None
        data = self.sock.recv(65536)
        self.heard += data
        head, blank, body = self.heard.partition(b"\r\n\r\n")
        if not data:
            raise ConnectionResetError
        if blank and not head.startswith(b"HTTP/1.1 200 "):
            raise SystemExit(f"{self._container}: not served: {self.heard[:200]!r}")
        length = next(
            (int(text[15:]) for text in head.lower().split(b"\r\n") if text.startswith(b"content-length:")), -1
        )
        return bool(blank) and len(body) == length and json.loads(body)["attempt"] == 1


def tasks(port: int, first: int, count: int, twice: int) -> None:
    """Be tasks: for each line of standard input, report on each connection and print how long each answer took [s]."""
    containers = [ContainerId(APPLICATION, 1, first + at) for at in range(count)]
    connections = [Connection(port, item) for item in (*containers, *containers[:twice])]
    for number, _ in enumerate(sys.stdin, start=1):
        took_s, again = [], 0
        waiting = deque(connections)
        with selectors.DefaultSelector() as selector:
            while waiting or selector.get_map():
                while waiting and len(selector.get_map()) < AT_ONCE:
                    one = waiting.popleft()
                    one.asked_at = time.monotonic()
                    selector.register(one.ask(number), selectors.EVENT_READ, one)
                ready = selector.select(LIMIT_S)
                if not ready:
                    raise SystemExit(f"{len(selector.get_map())} tasks have no answer after {LIMIT_S:g} s")
                for key, _events in ready:
                    one = key.data
                    try:
                        if not one.is_answered():
                            continue
                        took_s.append(time.monotonic() - one.asked_at)
                        selector.unregister(key.fileobj)
                    except ConnectionError as error:
                        if number > 1:
                            raise SystemExit(f"the connection of a task that is known was closed: {error}") from error
                        selector.unregister(key.fileobj)
                        one.sock.close()
                        one.sock = None
                        again += 1
                        selector.register(one.ask(number), selectors.EVENT_READ, one)
        print(json.dumps({"took_s": took_s, "again": again}), flush=True)


def strangers(port: int) -> None:
    """Connect from many addresses, some hundred times in a second, and stay; print how often, once asked."""
    made = 0
    open_sockets: deque[socket.socket] = deque()
    sent = (b"", b"GET / HT", b"POST /v1/view HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n", b"\0" * 2000)
    with selectors.DefaultSelector() as selector:
        selector.register(sys.stdin, selectors.EVENT_READ)
        while not selector.select(0.01):
            for _ in range(5):
                made += 1
                # An address has a port for a minute after it was closed, and only so many.
                address = f"127.0.{1 + made % 8}.1"
                with contextlib.suppress(OSError):
                    sock = socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S, source_address=(address, 0))
                    open_sockets.append(sock)
                    sock.sendall(sent[made % len(sent)])
            while len(open_sockets) > 1000:
                open_sockets.popleft().close()
    print(made, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["tasks", *numbers]:
            tasks(*map(int, numbers))
        case ["strangers", port]:
            strangers(int(port))
        case _:
            sys.exit(main())
