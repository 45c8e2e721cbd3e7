"""TensorBoard beside the payload of one container: it reads a directory of the workspace while the payload writes to
it.

A thread starts it with the payload, restarts it after a pause if it exits, and ends it with the payload. It is a
process like the payload; in Docker it is a second container of the same image with a read-only workspace. Its failures
never fail the payload: they are reported to users as one line.

Everybody who reaches its port can send requests. So all of its pages are below a secret path, which is passed in its
environment, since all users of a host can read a command line. Another user may listen on the port before it does, or
after its end: requests are sent only if the listening process belongs to its user, and each start has a new path.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator

from dlapp.errors import DlappError
from dlapp.runtime.gpu.environment import VISIBLE, gpu_variables
from dlapp.runtime.payload import Payload, PayloadError, PayloadExit, Running
from dlapp.runtime.process import PlainRun
from dlapp.system.clock import backoff_s
from dlapp.system.files import remove_tree
from dlapp.system.network.ports import LockedPorts
from dlapp.system.network.readiness import ReadinessProbe
from dlapp.task.payload.factory import docker_payload, make_docker_run, plain_payload
from dlapp.task.rendezvous import lock_node_ports, node_address
from dlapp.task.state import TaskState
from dlapp.tensorboard import ARGUMENTS_VARIABLE, COMMAND, NOT_INSTALLED, arguments, new_prefix
from dlapp.value import replace
from dlapp.values.launch_spec import RESERVED_FROM
from dlapp.values.messages import MAX_PROBLEM_CHARACTERS, BoardStatus
from dlapp.values.spec import Resources

DIRECTORY = "board"
"""Name of its directory in that of the container."""
_WATCHED = "watched"
"""Name of the directory in its own workspace at which a container sees that of the payload."""
_RESOURCES = Resources(memory_mib=1024, vcores=1, gcores=0)
"""Resources of its container; as a plain process it shares those of the payload."""
_AGAIN_S = 5.0, 300.0
"""Pauses between two starts: doubled from the first to the second."""
_LOOK_EVERY_S, _LOOK_AT_END_S, _KILLED_WITHIN_S, _END_WITHIN_S = 0.5, 0.01, 10.0, 20.0
_MAX_LOG_BYTES = 1 << 20


def open_board(task: TaskState) -> TensorBoard:
    """Return the TensorBoard of a container, with a port that is locked for it.

    Raises:
        DlappError, OSError: this node has no address or port for it.
    """
    one, is_plain = task.assignment, task.assignment.docker_image is None

    def payload(directory: str) -> Payload:
        made = plain_payload(task, directory) if is_plain else docker_payload(task)
        return replace(made, keep_fds=task.keep_fds[:RESERVED_FROM])

    def make_run(made: Payload) -> Running:
        if is_plain:
            return PlainRun(made, task.guardians[1], task.log.write)
        return make_docker_run(task, made, network="host")

    return TensorBoard(
        one.board,
        payload,
        task.container_dir,
        payload_workspace=None if is_plain else task.payload_workspace,
        uid=os.getuid() if is_plain or not _is_rootless(task.launch.docker.host) else None,
        address=node_address(task.launch, task.policy),
        ports=lock_node_ports(1, task.launch, task.policy),
        make_run=make_run,
        on_change=lambda status: task.link.report_fields(board=status),
        note=task.log.write,
    )


class TensorBoard:
    """TensorBoard of one container.

    Args:
        directory: that it reads, relative to the workspace.
        payload: the payload of the container; prepared again for each start.
        payload_workspace: path of the workspace inside a container; None for a plain process.
        uid: the uid of its process; None if Docker maps it to another one.
        address: that others connect to.
        ports: the port that is locked for it.
        make_run: prepares a payload; called by the thread.
        on_change: called with its state, by the thread.
    """

    def __init__(
        self,
        directory: str,
        payload: Callable[[str], Payload],
        container_dir: str,
        *,
        payload_workspace: str | None,
        uid: int | None,
        address: str,
        ports: LockedPorts,
        make_run: Callable[[Payload], Running],
        on_change: Callable[[BoardStatus], None],
        note: Callable[[str], None],
    ) -> None:
        self._directory, self._payload, self._container = directory, payload, container_dir
        self._board_dir = os.path.join(container_dir, DIRECTORY)
        self._payload_workspace, self._uid = payload_workspace, uid
        self._place, self._ports = (address, ports.ports[0]), ports
        self._make_run, self._on_change, self._note = make_run, on_change, note
        self._over = threading.Event()

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        """Run it while the payload does."""
        self._over.clear()
        thread = threading.Thread(target=self._work, name="task-tensorboard", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join(_END_WITHIN_S)  # not waiting for a hung dockerd: its lifeline ends it

    def close(self) -> None:
        """Release its port. Idempotent."""
        self._ports.close()

    # ---- its thread ----

    def _work(self) -> None:
        for pause_s in backoff_s(*_AGAIN_S):
            problem, is_final = "", False
            try:
                problem, is_final = self._serve()
            except (DlappError, PayloadError, OSError) as error:
                problem = f"TensorBoard cannot run: {error}"
            if self._over.is_set():
                break
            self._note(problem)
            self._on_change(BoardStatus(problem=board_problem(problem)))
            if is_final or self._over.wait(pause_s):
                break

    def _serve(self) -> tuple[str, bool]:
        """Run it once. Return why it ended, and whether it must not be restarted."""
        prefix = new_prefix()
        run, probe = self._make_run(self._made_payload(prefix)), ReadinessProbe(self._place, prefix, self._uid)
        has_begun = False
        try:
            if self._over.is_set():
                return "", True
            has_begun = True
            run.start()
            is_told = False
            while (ended := run.ended()) is None and not self._over.is_set():
                probe.check(time.monotonic())
                if probe.is_ready and not is_told:
                    is_told = True
                    address, port = self._place
                    self._on_change(BoardStatus(address=address, port=port, path=prefix))
                self._limit_logs()
                self._over.wait(_LOOK_EVERY_S)
            return ("", True) if ended is None else self._end_text(ended)
        finally:
            probe.close()
            if has_begun:
                _end(run)
            run.close()

    def _made_payload(self, prefix: str) -> Payload:
        remove_tree(self._board_dir)
        for name in ("", "workspace", f"workspace/{_WATCHED}", "home", "tmp", "run"):
            os.mkdir(os.path.join(self._board_dir, name), 0o700)
        root = os.path.join(self._container, "workspace")
        watched = os.path.join(self._board_dir, "workspace", _WATCHED)
        is_plain = self._payload_workspace is None
        seen = root if self._payload_workspace is None else os.path.join(self._payload_workspace, _WATCHED)
        payload = self._payload(self._board_dir)
        words = arguments(os.path.normpath(os.path.join(seen, self._directory)), *self._place, prefix)
        env = {**payload.env, ARGUMENTS_VARIABLE: json.dumps(words), VISIBLE: ""}
        env |= gpu_variables((), is_plain=is_plain)
        return replace(
            payload,
            directory=self._board_dir,
            task_directory=self._container,
            name=DIRECTORY,
            script="",
            command=COMMAND,
            args=(),
            env=env,
            resources=_RESOURCES,
            gpus=(),
            caches=(),
            mounts=() if is_plain else ((root, watched),),
            keep_fds=(*payload.keep_fds, self._ports.fd),
        )

    def _end_text(self, ended: PayloadExit) -> tuple[str, bool]:
        if ended.exit_code == NOT_INSTALLED:
            where = "on this node (python3 of PATH)" if self._payload_workspace is None else "in the image"
            return f"tensorboard is not installed {where}", True
        how = f"signal {ended.signal}" if ended.signal is not None else f"exit code {ended.exit_code}"
        return f"TensorBoard ended with {ended.problem or how}: {self._last_line()}", False

    def _last_line(self) -> str:
        with contextlib.suppress(FileNotFoundError), open(os.path.join(self._board_dir, "stderr"), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 4096))
            lines = file.read(4096).decode(errors="replace").split("\n")
            return next((line.strip() for line in reversed(lines) if line.strip()), "it printed nothing")
        return "it printed nothing"

    def _limit_logs(self) -> None:
        for name in ("stdout", "stderr"):
            path = os.path.join(self._board_dir, name)
            with contextlib.suppress(FileNotFoundError):  # its wrapper makes it
                if os.path.getsize(path) > _MAX_LOG_BYTES:
                    os.truncate(path, 0)


def _is_rootless(docker_host: str) -> bool:
    """Return whether Docker runs rootless: then the uids of processes in its containers are mapped."""
    with contextlib.suppress(OSError):
        return os.stat(docker_host.removeprefix("unix://")).st_uid != 0
    return False


def _end(run: Running) -> None:
    """Kill it, and return when all of its processes have ended; do not wait for a hung one."""
    until = time.monotonic() + _KILLED_WITHIN_S
    run.kill()
    while run.ended() is None and time.monotonic() < until:
        time.sleep(_LOOK_AT_END_S)


def board_problem(text: str) -> str:
    """Return a problem as one line that fits in a report."""
    return "".join(char if char.isprintable() else " " for char in text)[:MAX_PROBLEM_CHARACTERS]
