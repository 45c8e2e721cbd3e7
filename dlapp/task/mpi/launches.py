"""Launches of mpirun: received by the head's task, started by another container's task."""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections import deque
from collections.abc import Callable, Iterator

from dlapp.errors import DlappError
from dlapp.frameworks import mpi
from dlapp.system.files import closing_fd, open_file, read_file
from dlapp.task.link.am_link import AmLink
from dlapp.task.mpi.files import MpiFiles
from dlapp.values.messages import LaunchState, MpiLaunch
from dlapp.values.serialization import to_json

MAX_REQUEST_BYTES = 32 << 10
_MAX_LAUNCH_BYTES = 2 * MAX_REQUEST_BYTES
"""Size limit of one launch as JSON, which escapes characters that are not ASCII."""
_MAX_REPORTED_BYTES = 640 << 10
"""Size limit of launches in a report, as JSON: 10,000 of them. A whole report may have 1 MiB
(`dlapp.am.control.server`). Further requests wait."""
_MAX_WAITING = 20_000
"""Requests that wait; mpirun makes one for each container. Those beyond are dropped."""
_READ_BYTES = 64 << 10
_MAX_DIGITS = 10
_FAILED = 255


class HeadLaunches:
    """Requests of mpirun, in the head's task."""

    def __init__(self, files: MpiFiles, note: Callable[[str], None]) -> None:
        self._files, self._note = files, note
        self._lines = _Lines(files.fifo("requests"))
        self._waiting: deque[str] = deque()
        self._agents: dict[int, str] = {}
        self._launches: dict[int, MpiLaunch] = {}
        self._bytes = 0
        self._number = 0

    def fileno(self) -> int:
        """Return the descriptor to poll for requests."""
        return self._lines.fd

    def exchange(self, link: AmLink, generation: int) -> None:
        """Report new requests; answer those whose commands have ended."""
        before = dict(self._launches)
        for line in self._lines.read():
            if _is_number(line) and len(self._waiting) < _MAX_WAITING:
                self._waiting.append(line)
        for state in link.launches(generation)[1]:
            launch = self._launches.get(state.number)
            if launch is None:
                continue
            if state.status is None:
                self._set(MpiLaunch(number=launch.number, index=launch.index, command=""))
            else:
                self._end(launch, state.status)
        while self._waiting and self._bytes < _MAX_REPORTED_BYTES:
            self._handle_launch(self._waiting.popleft())
        if self._launches != before:
            link.report_fields(launches=tuple(self._launches.values()))

    def _handle_launch(self, agent: str) -> None:
        try:
            index, directory, command = self._request(agent)
            launch = MpiLaunch(number=self._number + 1, index=index, command=command, directory=directory)
            if (size := _json_size(launch)) > _MAX_LAUNCH_BYTES:
                raise ValueError(f"it has {size} bytes as JSON, at most {_MAX_LAUNCH_BYTES} are passed on")
        except (DlappError, OSError, ValueError) as error:
            self._note(f"a request of mpirun is refused: {error}")
            self._answer(agent, _FAILED, f"the request is refused: {error}")
            return
        self._number += 1
        self._agents[self._number] = agent
        self._set(launch)
        self._note(f"mpirun starts a daemon in container {index}")

    def _set(self, launch: MpiLaunch) -> None:
        known = self._launches.get(launch.number)
        self._bytes += _json_size(launch) - (0 if known is None else _json_size(known))
        self._launches[launch.number] = launch

    def _request(self, agent: str) -> tuple[int, str, str]:
        data = read_file(f"request.{agent}", dir_fd=self._files.fd, max_bytes=MAX_REQUEST_BYTES)
        lines = data.decode().split("\n")
        if len(lines) != 4 or lines[3] or "\0" in lines[2] or not lines[2].strip():
            raise ValueError("it is not the name of a node, a directory and a command, a line each")
        if (index := mpi.index_of(lines[0])) is None:
            raise ValueError(f"{lines[0][:80]!r} is no container of this application")
        return index, lines[1], lines[2]

    def _end(self, launch: MpiLaunch, status: int) -> None:
        self._bytes -= _json_size(self._launches.pop(launch.number))
        text = ""
        if status:
            text = f"the daemon of container {launch.index} ended with exit code {status}; its stderr may say why"
            self._note(text)
        self._answer(self._agents.pop(launch.number), status, text)

    def _answer(self, agent: str, status: int, text: str) -> None:
        name = f"answer.{agent}"
        line = f"{status} {text}".replace("\n", " ")[:1000]
        try:
            with closing_fd(open_file(name, dir_fd=self._files.fd, write=True, kind=stat.S_IFIFO)) as fd:
                os.write(fd, f"{line}\n".encode())
        except OSError as error:  # the agent has ended, or the payload removed it
            self._note(f"an agent of mpirun could not be answered: {error}")
        for each in (name, f"request.{agent}"):
            with contextlib.suppress(OSError):
                os.unlink(each, dir_fd=self._files.fd)


class MemberLaunches:
    """Commands of the head's mpirun that run in this container, in its task.

    The head numbers its launches, and lists each until it knows that it has ended. So a launch is new if its number is
    greater than all before, and an ended one that is missing in a later list is not reported any more. Orders without
    any launch prove nothing: a new ApplicationMaster has no report of the head yet.
    """

    def __init__(self, files: MpiFiles, note: Callable[[str], None]) -> None:
        self._note = note
        self._start, self._lines = files.fifo("start"), _Lines(files.fifo("ended"))
        self._unwritten = bytearray()
        self._known: dict[int, LaunchState] = {}
        self._newest = 0
        self._told: tuple[LaunchState, ...] = ()

    def fileno(self) -> int:
        """Return the descriptor to poll for ended commands."""
        return self._lines.fd

    def exchange(self, link: AmLink, generation: int) -> None:
        """Start new launches, and report which have started or ended."""
        launches, _ = link.launches(generation)
        for one in launches:
            if one.number > self._newest:
                self._newest = one.number
                self._handle_launch(one)
        if launches:
            named = {one.number for one in launches}
            self._known = {number: one for number, one in self._known.items() if number in named or one.status is None}
        for line in self._lines.read():
            number, _, status = line.partition(" ")
            if _is_number(number) and _is_number(status) and int(number) in self._known:
                self._known[int(number)] = LaunchState(number=int(number), status=min(int(status), _FAILED))
        self._write()
        states = tuple(self._known[one.number] for one in launches if one.number in self._known)
        if states != self._told:
            self._told = states
            link.report_fields(launch_states=states)

    def _handle_launch(self, launch: MpiLaunch) -> None:
        lines = launch.directory, launch.command
        if not launch.command or any("\n" in one or "\0" in one for one in lines):
            self._known[launch.number] = LaunchState(number=launch.number, status=_FAILED)
            return
        self._note(f"mpirun's daemon {launch.number} starts")
        self._known[launch.number] = LaunchState(number=launch.number)
        self._unwritten += "\n".join((str(launch.number), *lines, "")).encode()

    def _write(self) -> None:
        try:
            while self._unwritten:
                del self._unwritten[: os.write(self._start, self._unwritten)]
        except BlockingIOError:
            return  # the reader is behind; the next call continues


class _Lines:
    """Lines read from a FIFO; malformed or too long lines are skipped."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._rest = b""

    def read(self) -> Iterator[str]:
        """Return the lines received since the last call."""
        try:
            data = os.read(self.fd, _READ_BYTES)
        except BlockingIOError:
            return
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest if len(rest) <= 2 * _MAX_DIGITS else b""
        yield from (line.decode("ascii", "replace") for line in lines if len(line) <= 2 * _MAX_DIGITS)


def _json_size(launch: MpiLaunch) -> int:
    return len(json.dumps(to_json(launch), separators=(",", ":"))) + 1


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS
