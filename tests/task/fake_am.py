"""An ApplicationMaster of a few lines for tests of tasks: it sends one assignment and the orders of the test.

The control server is the real one, and the task is a real process.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from dlapp.errors import DlappError
from dlapp.net.control import Admission, ControlServer, Request
from dlapp.net.relay import copy_both
from dlapp.net.streams import open_stream
from dlapp.system.processes.proc import start_time
from dlapp.value import replace
from dlapp.values.access import derive_token, new_secret, token_is_right
from dlapp.values.ids import ApplicationId, ContainerId
from dlapp.values.launch_spec import FILE_NAME, MACHINE, DockerSettings, LaunchSpec, LedgerSettings
from dlapp.values.messages import Assignment, Orders, Phase, Report, Stop, StreamAnswer, StreamOrder, TaskResult
from dlapp.values.roster import Roster
from dlapp.values.serialization import from_json, to_json
from dlapp.values.spec import InputSpec, OutputSpec, Resources
from tests.services.users import interpreter_for_everybody

APPLICATION = ApplicationId(1700000000000, 1)


def _admit(_method: str, _path: str, _token: str) -> Admission:
    return Admission(1 << 20, authenticated=True)


def ledger_of(place: Path, docker_host: str = "", application: str = "the application") -> LedgerSettings:
    """The machine's ledger of a test."""
    return LedgerSettings(MACHINE, str(place / "locks"), docker_host, application)


class FakeAm:
    """One application with one container, in ``directory``. A context manager."""

    def __init__(self, directory: Path, **assignment: Any) -> None:
        self.container_id = ContainerId(APPLICATION, 1, 2)
        self.home = directory / str(self.container_id)
        self.home.mkdir(parents=True)
        self.secret = new_secret()
        self.reports: list[Report] = []
        self.orders = Orders(attempt=1, number=1, go=True)
        self.roster: Roster | None = None
        self.wrong_roster: object = None  # sent in its place
        fields: dict[str, Any] = {
            "application_id": APPLICATION,
            "attempt": 1,
            "container_id": self.container_id,
            "index": 0,
            "total": 1,
            "role": "worker",
            "role_index": 0,
            "role_size": 1,
            "resources": Resources(memory_mib=128),
            "script": "run.sh",
            "args": (),
            "docker_image": None,
            "username": "tony",
            "appname": "a test",
            "kill_grace_s": 60.0,
        }
        self.assignment = Assignment(**(fields | assignment))
        self._changed = threading.Condition()
        self._held: list[tuple[Request, float, int]] = []
        self._streams: dict[int, Request] = {}
        self.refused: list[StreamAnswer] = []
        self._server = ControlServer(self._on_request, admit=_admit)
        self._has_server = False
        self.am_file = directory / "am.json"
        self.task: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> FakeAm:
        self._server.__enter__()
        self._has_server = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.task is not None:
            self.task.terminate()
        self.die()
        if self.task is not None:
            self.task.wait(timeout=120)

    # ---- what the application does ----

    def start(
        self,
        *,
        as_uid: int | None = None,
        env: dict[str, str] | None = None,
        process_env: dict[str, str] | None = None,
        begins_with: str = "",
        bundle: Path | None = None,
        starting_fd: int | None = None,
        **launch: Any,
    ) -> None:
        """Start the task's process.

        Args:
            as_uid: as which user; None: this process's.
            env: for the payload.
            process_env: for the task.
            begins_with: Python statements that the process executes before it begins.
            bundle: the zip that it runs from, as on a node; None: it runs from what is installed.
            starting_fd: a descriptor that it is to close when it has started; None: there is none.
            launch: fields of its spec.
        """
        spec = LaunchSpec(
            self.container_id,
            f"http://{self._server.host}:{self._server.port}",
            derive_token(self.secret, str(self.container_id)),
            env or {},
            {"PATH": os.environ["PATH"], "HOME": str(self.home), "LANG": "C.UTF-8"},
            DockerSettings("unix:///nowhere", "none"),
            am_file=str(self.am_file),
        )
        (self.home / FILE_NAME).write_text(json.dumps(to_json(replace(spec, **launch))))
        self._write_address(os.getpid())
        become: list[str] = []
        python = sys.executable
        if as_uid is not None:
            os.chown(self.home, as_uid, as_uid)
            os.chown(self.am_file, as_uid, as_uid)
            become = ["setpriv", f"--reuid={as_uid}", f"--regid={as_uid}", "--clear-groups"]
            python = str(interpreter_for_everybody())
        module = ["-m", "dlapp"]
        if begins_with:
            module = ["-c", f"{begins_with}\nimport sys\nfrom dlapp.__main__ import main\nsys.exit(main(sys.argv[1:]))"]
        if bundle is not None:
            module = ["-S", str(bundle)]
        command = [python, "-I", *module, "task", "--engine", "local", "--home", str(self.home)]
        starting = [] if starting_fd is None else [starting_fd]
        with open(self.home / "am.log", "ab") as log:
            self.task = subprocess.Popen(
                [*become, *command, "--keep-fds", "", "--starting-fd", ",".join(map(str, starting))],
                pass_fds=starting,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **(process_env or {})},
            )

    def _write_address(self, pid: int) -> None:
        url = f"http://{self._server.host}:{self._server.port}"
        value = {"pid": pid, "start_time": start_time(pid) or 1, "control_url": url}
        self.am_file.with_suffix(".new").write_text(json.dumps(value))
        self.am_file.with_suffix(".new").rename(self.am_file)

    def die(self) -> None:
        """Answer nobody any more, and name a process that is not there."""
        if self._has_server:
            self._has_server = False
            self._write_address(0)
            self._server.__exit__(None, None, None)

    def restart(self) -> None:
        """Be the next attempt, at another address."""
        with self._changed:
            self._held.clear()
            self.orders = replace(self.orders, attempt=self.orders.attempt + 1)
        self._server = ControlServer(self._on_request, admit=_admit)
        self._server.__enter__()
        self._has_server = True
        self._write_address(os.getpid())

    def order(self, **change: Any) -> None:
        """Give new orders."""
        with self._changed:
            self.orders = replace(self.orders, **{"number": self.orders.number + 1} | change)
        self._answer_held()

    def stop(self, how: Stop, grace_s: float = 60.0) -> None:
        """Order the task to stop."""
        self.order(stop=how, grace_s=grace_s)

    def restart_server(self, meanwhile: Callable[[], None]) -> None:
        """Be away from the network for a moment, and come back at the same address."""
        port = self._server.port
        self._server.__exit__(None, None, None)
        with socket.socket() as reserved:  # nobody listens there, and nobody else gets it meanwhile
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            reserved.bind((self._server.host, port))
            meanwhile()
            time.sleep(0.2)  # a few of the task's tries find nobody
            with self._changed:
                self._held.clear()
            self._server = ControlServer(self._on_request, port=port, admit=_admit)
        self._server.__enter__()

    # ---- what the task does ----

    @property
    def last(self) -> Report:
        """The latest report; one that waits for orders may come after one with news that was made later."""
        with self._changed:
            return max(self.reports, key=lambda report: report.number)

    @property
    def phases(self) -> list[Phase]:
        """The phases that were reported, each once, in order of report numbers."""
        with self._changed:
            phases = [report.phase for report in sorted(self.reports, key=lambda item: item.number)]
        return list(dict.fromkeys(phases))

    def wait_until(self, condition: Callable[[], bool], timeout_s: float = 120.0) -> None:
        """Wait until something holds, looking after each report and 100 times a second."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, f"not in {timeout_s:g} s; the task says:\n{self.log()}"
            with self._changed:
                self._changed.wait(0.01)

    def wait_for(self, phase: Phase) -> None:
        """Wait until a phase was reported."""
        self.wait_until(lambda: phase in self.phases)

    def result(self) -> TaskResult:
        """Wait for the task's result and its end."""
        assert self.task is not None
        self.wait_until(lambda: any(report.result for report in self.reports))
        assert self.task.wait(timeout=120) == 0, self.log()
        return next(report.result for report in self.reports if report.result)

    def log(self) -> str:
        """Return what the task wrote down."""
        names = ("dlapp.log", "am.log")
        return "".join((self.home / name).read_text() for name in names if (self.home / name).exists())

    def printed(self) -> bytes:
        """The payload's stdout."""
        return (self.home / "stdout").read_bytes()

    # ---- the server ----

    def _on_request(self, request: Request) -> None:
        _, _, task, word = request.path.strip("/").split("/")
        if task != str(self.container_id) or not token_is_right(self.secret, task, request.token):
            self._server.reply(request, 401, {"error": "not your token"})
        elif word == "hello":
            self._server.reply(request, 200, to_json(self.assignment))
        elif word == "roster":
            status, answer = (200, to_json(self.roster)) if self.roster else (404, {"error": "there is none"})
            if self.wrong_roster is not None:
                status, answer = 200, self.wrong_roster
            self._server.reply(request, status, answer)
        elif word == "stream":
            self._handle_stream(request)
        else:
            report = from_json(Report, request.json())
            with self._changed:
                self.reports.append(report)
                # As the real one does: what a newer report finds held is answered.
                self._held = [(held, 0.0, seen) for held, _, seen in self._held]
                self._held.append((request, time.monotonic() + report.wait_s, report.seen))
                self._changed.notify_all()
            self._answer_held()

    def _handle_stream(self, request: Request) -> None:
        answer = from_json(StreamAnswer, request.json())
        if answer.error:
            self.refused.append(answer)
            self._server.reply(request, 200, {})
            self._server.reply(self._streams[-answer.number], 409, {"error": answer.error})
            return
        self._streams[answer.number] = request
        if (other := self._streams.get(-answer.number)) is not None:

            def copy(left: socket.socket, right: socket.socket) -> None:
                threading.Thread(target=copy_both, args=(left, right), daemon=True).start()

            self._server.connect_pair(other, request, copy)

    def open_stream(
        self, number: int, kind: str, head: object, trial: tuple[int, int] | None = None
    ) -> Callable[[], socket.socket]:
        """Order a stream; what is returned waits for it, as the command that wants it.

        Args:
            number, kind, head: of the `StreamOrder`.
            trial: the number of its trial, and of the try; None: it is for the container.
        """
        url = f"http://{self._server.host}:{self._server.port}"
        token, path = derive_token(self.secret, str(self.container_id)), f"/v1/tasks/{self.container_id}/stream"
        body = to_json(StreamAnswer(container_id=self.container_id, number=-number))
        box: list[socket.socket] = []

        def run() -> None:
            with contextlib.suppress(DlappError):  # then the box stays empty
                box.append(open_stream(url, token, path, body, timeout_s=120))

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        self.wait_until(lambda: -number in self._streams)
        of_trial, try_number = (None, 0) if trial is None else trial
        text = json.dumps(head)
        self.order(streams=(StreamOrder(number=number, kind=kind, head=text, trial=of_trial, try_number=try_number),))

        def wait() -> socket.socket:
            thread.join(120)
            return box[0]

        return wait

    def _answer_held(self) -> None:
        with self._changed:
            now = time.monotonic()
            ready = [item for item in self._held if item[1] <= now or item[2] < self.orders.number]
            self._held = [item for item in self._held if item not in ready]
            orders = to_json(self.orders)
        for request, _, _ in ready:
            self._server.reply(request, 200, orders)


def workspace_archive(
    directory: Path, files: dict[str, str | bytes], *, modes: dict[str, int] | None = None
) -> dict[str, str]:
    """Pack a workspace; returns the fields of an assignment that name it."""
    from dlapp.launcher.workspace.pack import pack, scan_workspace

    root = directory / "packed" / "workspace"
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        path.chmod((modes or {}).get(name, 0o644))
    scan = scan_workspace(str(root), exclude=[])
    packed = pack(scan, str(directory / "packed"), limit_bytes=1 << 30)
    os.chmod(packed.archive, 0o644)  # the task may be another user's
    return {"workspace_archive": f"file://{packed.archive}", "workspace_digest": packed.digest}


__all__ = ["APPLICATION", "FakeAm", "InputSpec", "OutputSpec", "workspace_archive"]
