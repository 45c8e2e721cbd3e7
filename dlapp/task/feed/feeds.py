"""Feeds of one payload, in the task: one process for each, restarted if it dies, and the state that it reports.

Readers connect to a socket that the task holds. If a process dies, they reconnect, and the next process resumes each of
them at its position.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

from dlapp.errors import DlappError
from dlapp.locations import shown
from dlapp.storage.tree import make_directories
from dlapp.system.files import closing_fd, open_own_directory, remove_tree, write_all
from dlapp.system.processes.spawn import spawn
from dlapp.task.data.outputs import inside_workspace
from dlapp.task.environment import add_places
from dlapp.task.feed.fifos import fifo_name
from dlapp.task.feed.process import FeedSettings
from dlapp.task.step_errors import StepFailed
from dlapp.values.launch_spec import LaunchSpec
from dlapp.values.messages import Assignment, Fault
from dlapp.values.serialization import to_json
from dlapp.values.spec import FeedFormat, InputSpec

VARIABLE = "DLAPP_FEED"
_WAITING_CONNECTIONS = 64
_MAX_STARTS = 10
_STATE_BYTES = 64 << 10
_LAST_WORD_S = 2.0
_PROGRAM = "import sys; sys.path[:0] = sys.argv[2:]; from dlapp.__main__ import main; sys.exit(main(sys.argv[1:2]))"


class _FeedState:
    """State of one feed, as last reported by its process."""

    def __init__(self) -> None:
        self.waited_s = 0.0
        self.readers = self.bytes = 0
        self.away = ""
        self.fifos_in_use = False
        self.failure: StepFailed | None = None


class TaskFeed:
    """One feed of a payload.

    Raises:
        OSError, DlappError: its socket, FIFO or process cannot be created.
    """

    def __init__(
        self, section: InputSpec, settings: FeedSettings, container_dir: str, note: Callable[[str], None]
    ) -> None:
        self._section, self._settings, self._container_dir, self._note = section, settings, container_dir, note
        self.state, self.former_bytes = _FeedState(), 0
        self._pid = self._pidfd = self._fifos = -1
        self._control: socket.socket | None = None
        self._starts = 0
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            # The path may exceed the length of a socket address.
            with closing_fd(open_own_directory(os.path.join(container_dir, "run"))) as fd:
                self._listener.bind(f"/proc/self/fd/{fd}/{self.socket_name}")
            self._listener.listen(_WAITING_CONNECTIONS)
            if settings.has_fifos:
                self._fifos = self._make_fifo()
            self._start()
        except BaseException:
            self.close()
            raise

    @property
    def socket_name(self) -> str:
        """Return the name of its socket in DLAPP_DIR."""
        name = self._section.name
        return f"feed-{name}.sock" if name else "feed.sock"

    def fileno(self) -> int:
        """Return the descriptor to poll for `check`; -1 if the process has ended."""
        return -1 if self._control is None else self._control.fileno()

    def check(self) -> None:
        """Read what the process reported; start another one if it has died."""
        while self._control is not None:
            try:
                data = self._control.recv(_STATE_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except ConnectionError:
                data = b""
            if data:
                self._handle_message(json.loads(data))
                continue
            self._end()
            if self._starts >= _MAX_STARTS or self.state.fifos_in_use:
                how = "while a FIFO was read" if self.state.fifos_in_use else f"{self._starts} times"
                message = f"input {self._section.input_path} could not be fed: its process ended {how}"
                self.state.failure = self.state.failure or StepFailed(Fault.NODE, message)
                self._listener.close()  # so that readers do not wait for a restart
                return
            self._note(f"the process that feeds {self._section.input_path} has ended; starting another one")
            self.former_bytes, self.state.bytes = self.former_bytes + self.state.bytes, 0
            self._start()

    def finish(self) -> None:
        """End the process, and read its last report. Idempotent."""
        if self._control is not None:
            with contextlib.suppress(OSError):
                self._control.shutdown(socket.SHUT_WR)
                self._control.settimeout(_LAST_WORD_S)
                while data := self._control.recv(_STATE_BYTES):
                    self._handle_message(json.loads(data))
        self.close()

    def close(self) -> None:
        """Kill the process. Idempotent."""
        self._end()
        self._listener.close()
        if self._fifos >= 0:
            os.close(self._fifos)
            self._fifos = -1

    def _handle_message(self, said: dict[str, Any]) -> None:
        state = self.state
        away = str(said.get("away", ""))
        if away and not state.away:
            self._note(f"the feed of {self._section.input_path} is waiting: {away}")
        state.waited_s, state.readers = said.get("waited_s", 0.0), said.get("readers", 0)
        state.bytes, state.away = said.get("bytes", 0), away
        state.fifos_in_use = bool(said.get("fifos"))
        if state.failure is None and (failure := said.get("failure")) is not None:
            service = failure.get("service", "")
            state.failure = StepFailed(Fault(failure["fault"]), failure["message"], service=service)
            self._note(failure["message"])

    def _make_fifo(self) -> int:
        into = inside_workspace(self._container_dir, self._section.input_path)
        make_directories(into)
        fd = os.open(into, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.mkfifo(fifo_name(0), 0o600, dir_fd=fd)
        except FileExistsError:
            os.close(fd)
            where = os.path.join(self._section.input_path, fifo_name(0))
            raise DlappError(f"the workspace has {shown(where)}, where the feed would be") from None
        return fd

    def _start(self) -> None:
        self._starts += 1
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        paths = [os.path.abspath(one) for one in sys.path if one]
        with theirs, closing_fd(os.memfd_create("dlapp-feed-settings", os.MFD_CLOEXEC)) as settings:
            write_all(settings, json.dumps(to_json(self._settings)).encode())
            os.lseek(settings, 0, os.SEEK_SET)
            keep = [theirs.fileno(), self._listener.fileno(), settings]
            keep += [self._fifos] if self._fifos >= 0 else []
            argv = [sys.executable, "-I", "-S", "-c", _PROGRAM, "feed", *paths]
            self._pid = spawn(argv, keep=keep, log=os.path.realpath(os.path.join(self._container_dir, "dlapp.log")))
        self._pidfd = os.pidfd_open(self._pid)

    def _end(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._pidfd >= 0:
            # Another waiter for children of this process may have taken its exit status; the descriptor is exclusively
            # ours.
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._pid, 0)
            os.close(self._pidfd)
            self._pid = self._pidfd = -1


class TaskFeeds:
    """All feeds of a payload; made before it starts, closed when it has ended.

    Raises:
        OSError, DlappError: a feed cannot be created.
    """

    def __init__(
        self, assignment: Assignment, launch: LaunchSpec, container_dir: str, note: Callable[[str], None]
    ) -> None:
        self._feeds: list[tuple[InputSpec, TaskFeed]] = []
        self._read_at, self._waited_s = time.monotonic(), 0.0
        directory = os.path.join(container_dir, "feed")
        remove_tree(directory)
        try:
            for one in assignment.inputs:
                if one.feed is None:
                    continue
                os.makedirs(directory, 0o700, exist_ok=True)
                settings = FeedSettings(
                    section=one,
                    hdfs=launch.hdfs,
                    index=assignment.role_index if one.shard else 0,
                    size=assignment.role_size if one.shard else 1,
                    directory=directory,
                    patience_s=assignment.output_patience_s,
                    has_fifos=one.feed.format is not FeedFormat.PARQUET,
                    in_memory=assignment.docker_image is None,
                )
                self._feeds.append((one, TaskFeed(one, settings, container_dir, note)))
        except BaseException:
            self.close()
            raise

    def environment(self, payload_run_dir: str) -> dict[str, str]:
        """Return the payload's variables; ``payload_run_dir`` is DLAPP_DIR as the payload sees it."""
        found: dict[str, str] = {}
        add_places(found, VARIABLE, payload_run_dir, [(one.name, feed.socket_name) for one, feed in self._feeds])
        return found

    def check(self) -> None:
        """Read what the processes reported, and restart those that died. Raises OSError."""
        for _, feed in self._feeds:
            feed.check()

    def wake_fds(self) -> list[int]:
        """Return descriptors to poll; a readable one means that `check` has something to do."""
        return [fd for _, feed in self._feeds if (fd := feed.fileno()) >= 0]

    @property
    def fifo_failure(self) -> StepFailed | None:
        """Return the reason to end the reader of a FIFO, who gets no error otherwise; None if there is none."""
        states = (feed.state for _, feed in self._feeds)
        return next((one.failure for one in states if one.failure is not None and one.fifos_in_use), None)

    @property
    def failure(self) -> StepFailed | None:
        """Return the error of a feed that cannot continue; None if there is none."""
        return next((feed.state.failure for _, feed in self._feeds if feed.state.failure is not None), None)

    @property
    def fetched_bytes(self) -> int:
        """Return the number of bytes fetched so far."""
        return sum(feed.former_bytes + feed.state.bytes for _, feed in self._feeds)

    def wait_share(self) -> float | None:
        """Return the share of the time since the last call in which readers waited for input, as the mean of all
        readers; None if there are no readers."""
        now_s = time.monotonic()
        waited_s = sum(feed.state.waited_s for _, feed in self._feeds)
        readers = sum(feed.state.readers for _, feed in self._feeds)
        passed_s, more_s = now_s - self._read_at, waited_s - self._waited_s
        self._read_at, self._waited_s = now_s, waited_s
        if not readers or passed_s <= 0:
            return None
        return round(min(1.0, max(0.0, more_s / passed_s / readers)), 3)

    def finish(self) -> None:
        """End all processes, and read their last reports. Idempotent."""
        for _, feed in self._feeds:
            feed.finish()

    def close(self) -> None:
        """Kill all processes. Idempotent."""
        for _, feed in self._feeds:
            feed.close()
