"""Owns server processes for the tests: python -m tests.services.keeper DIRECTORY [LIFELINE_FD]

A keeper reads DIRECTORY/parts.json (part -> {command, environment}), starts nothing by itself and does what it is asked
on the Unix socket DIRECTORY/control, one JSON object a line: ``{"do": "start", "part": "rm"}``; also stop (SIGTERM,
then SIGKILL), kill (SIGKILL), status and down. A part's output goes to DIRECTORY/<part>.log.

It ends, and everything with it, on ``down`` and when the other end of LIFELINE_FD is closed: that is how a test run
that is killed leaves nothing behind. Two processes watch each other: the inner one is the parent of all parts, which
the kernel kills when it dies; the outer one then ends whatever else still has its working directory in DIRECTORY
(what a NodeManager started lives in sessions of its own).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1
STOP_TIMEOUT_S = 20.0
_prctl = ctypes.CDLL(None, use_errno=True).prctl


def ask(directory: Path, timeout_s: float = 120.0, **request: str) -> dict[str, Any]:
    """Send one request to the keeper of ``directory``. Raises ConnectionError where there is none."""
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(timeout_s)
        try:
            link.connect(str(directory / "control"))
        except FileNotFoundError:
            raise ConnectionError(f"nothing is kept in {directory}") from None
        link.sendall(json.dumps(request).encode() + b"\n")
        with link.makefile("rb") as lines:
            if not (line := lines.readline()):
                raise ConnectionError(f"the keeper of {directory} went away")
    answer: dict[str, Any] = json.loads(line)
    if "error" in answer:
        raise RuntimeError(answer["error"])
    return answer


def end_all_in(directory: Path) -> list[int]:
    """SIGKILL every process whose working directory lies in ``directory``, until there is none; returns their ids."""
    ended: list[int] = []
    while found := [pid for pid in _working_in(directory) if pid not in (os.getpid(), os.getppid())]:
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        ended += found
        time.sleep(0.05)
    return ended


def _working_in(directory: Path) -> list[int]:
    base = f"{directory.resolve()}/"
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                state = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[0]
                if state != "Z" and f"{os.readlink(f'/proc/{name}/cwd')}/".startswith(base):
                    found.append(int(name))
    return found


class _Keeper:
    def __init__(self, directory: Path, lifeline: int | None) -> None:
        self.directory = directory
        self.lifeline = lifeline
        self.parts: dict[str, Any] = json.loads((directory / "parts.json").read_text())
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def serve(self) -> None:
        """Answer requests until ``down`` or the end of the lifeline."""
        path = str(self.directory / "control")
        with socket.socket(socket.AF_UNIX) as listening, selectors.DefaultSelector() as selector:
            listening.bind(path + ".new")
            listening.listen(16)
            os.rename(path + ".new", path)
            selector.register(listening, selectors.EVENT_READ)
            if self.lifeline is not None:
                selector.register(self.lifeline, selectors.EVENT_READ)
            going = True
            while going:
                for key, _ in selector.select():
                    if key.fileobj is not listening:
                        going = False
                    else:
                        link, _ = listening.accept()
                        with link:
                            going = self._answer(link) and going
        os.unlink(path)

    def _answer(self, link: socket.socket) -> bool:
        link.settimeout(120)
        request: dict[str, str] = {}
        try:
            with link.makefile("rb") as lines:
                request = json.loads(lines.readline())
            answer = self._do(request["do"], request.get("part", ""))
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        if request.get("do") == "down":
            self.end()
        with contextlib.suppress(OSError):
            link.sendall(json.dumps(answer).encode() + b"\n")
        return request.get("do") != "down"

    def _do(self, what: str, part: str) -> dict[str, Any]:
        if what == "start":
            if (old := self.running.get(part)) is None or old.poll() is not None:
                self.running[part] = self._start(part)
        elif what in ("stop", "kill") and part in self.running:
            process = self.running[part]
            process.kill() if what == "kill" else process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        elif what not in ("status", "down", "stop", "kill"):
            raise ValueError(f"{what!r} is no request")
        return {name: {"pid": one.pid, "exit": one.poll()} for name, one in self.running.items()}

    def _start(self, part: str) -> subprocess.Popen[bytes]:
        keeper = os.getpid()

        def tie_to_keeper() -> None:
            # Between fork and this line the keeper may have died; then there is nobody to be tied to.
            _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != keeper:
                os._exit(1)

        work = self.directory / part
        work.mkdir(exist_ok=True)
        with open(self.directory / f"{part}.log", "ab") as log:
            return subprocess.Popen(
                self.parts[part]["command"],
                env=self.parts[part]["environment"],
                cwd=work,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=tie_to_keeper,
            )

    def end(self) -> None:
        """Kill all parts, then what they started."""
        for process in self.running.values():
            process.kill()
        for process in self.running.values():
            process.wait()
        end_all_in(self.directory)


def main(argv: list[str]) -> int:
    """Fork: the outer process waits for the inner one, which keeps the parts."""
    directory, lifeline = Path(argv[0]), int(argv[1]) if len(argv) > 1 else None
    os.chdir("/")
    outer = os.getpid()
    if inner := os.fork():
        if lifeline is not None:
            os.close(lifeline)
        os.waitpid(inner, 0)
        end_all_in(directory)
        return 0
    _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    if os.getppid() != outer:
        return 1
    keeper = _Keeper(directory, lifeline)
    try:
        keeper.serve()
    finally:
        keeper.end()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
