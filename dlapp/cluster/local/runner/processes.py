"""Processes that a runner waits for: ApplicationMasters, its own children, and an ApplicationMaster started ahead."""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dlapp.cluster.local.row import ApplicationRow
from dlapp.cluster.local.runner.context import FOREIGN_S, RunnerContext
from dlapp.cluster.local.runner.election import open_fifo
from dlapp.cluster.local.state import write_atomically
from dlapp.system.logs import log
from dlapp.system.processes.proc import start_time
from dlapp.system.processes.spawn import FIRST_KEPT, spawn

if TYPE_CHECKING:
    from dlapp.cluster.local.runner.prefork import PreforkedMaster


class ProcessTable:
    """The watched processes, by their pidfds.

    Args:
        context: the runner's.
        standby: a prestarted ApplicationMaster for the first application; ended by `close_standby` if unused.

    Attributes:
        fifo: descriptor by which other processes wake the runner; negative before `open`.
        pidfds: number of the row -> pidfd.
        died: row number of an ApplicationMaster that has just ended -> its exit code, or the negative signal number, if
            known.
    """

    def __init__(self, context: RunnerContext, standby: PreforkedMaster | None = None) -> None:
        self._context = context
        self.fifo = -1
        self._poll = select.poll()
        self._watched: dict[int, int] = {}  # pidfd -> number of the row
        self.pidfds: dict[int, int] = {}
        self.died: dict[int, int | None] = {}
        self._standby = None if standby is None else (os.pidfd_open(standby.pid), standby)  # with its pidfd

    def open(self) -> None:
        """Open the FIFO, and wait for the processes that there are."""
        if self._standby is not None:
            self._poll.register(self._standby[0], select.POLLIN)
        self.fifo = open_fifo(self._context.state, self._context.uid)
        self._poll.register(self.fifo, select.POLLIN)

    def close(self) -> None:
        """End an unused standby, and close the FIFO."""
        self.close_standby()
        os.close(self.fifo)

    def add_child(self, pid: int) -> None:
        """Reap a child when it ends."""
        self._poll.register(os.pidfd_open(pid), select.POLLIN)

    def register(self, number: int, pidfd: int) -> None:
        """Watch the ApplicationMaster or clean-up process of a row."""
        self.died.pop(number, None)
        self.pidfds[number], self._watched[pidfd] = pidfd, number
        self._poll.register(pidfd, select.POLLIN)

    def wait(self) -> None:
        """Wait for the next event, or the next wake-up."""
        for fd, _ in self._poll.poll(self._context.wake_up.seconds * 1000):
            if fd == self.fifo:
                with contextlib.suppress(BlockingIOError):
                    os.read(fd, 65536)
                continue
            # A child of this or of an earlier runner; only a child of this process must be reaped.
            ended = None
            with contextlib.suppress(ChildProcessError):
                ended = os.waitid(os.P_PIDFD, fd, os.WEXITED | os.WNOHANG)
            self._poll.unregister(fd)
            if self._standby is not None and fd == self._standby[0]:
                self.close_standby()
            if fd in self._watched:
                number = self._watched.pop(fd)
                self.died[number] = None if ended is None else _status_of(ended)
                del self.pidfds[number]
            os.close(fd)

    def spawn(
        self, row: ApplicationRow, application_dir: str, attempt: int, alive: int, holds: Sequence[int], *more: str
    ) -> None:
        """Start an ApplicationMaster, or use the standby.

        Args:
            row: the application.
            application_dir: its directory.
            attempt: number of the attempt.
            alive: descriptor of the attempt's lock.
            holds: descriptors that hold reserved GPUs.
            more: further arguments.
        """
        arguments = ["--engine", "local", "--home", application_dir, "--attempt", str(attempt)]
        arguments += ["--alive-fd", str(FIRST_KEPT)]
        arguments += ["--hold-fds", ",".join(str(FIRST_KEPT + 1 + place) for place in range(len(holds))), *more]
        keep, log_path = [alive, *holds], os.path.join(application_dir, "am.log")
        if self._standby is not None and self._use_standby(row, application_dir, arguments, keep, log_path):
            return
        try:
            pid = spawn([*self._context.settings.program, "am", *arguments], keep=keep, log=log_path)
        except OSError as error:
            # The row is running and its lock is free: the next pass counts this as a failed start.
            log.warning(f"{row.id}: its ApplicationMaster could not be started: {error}")
            self._context.wake_within(FOREIGN_S, "an ApplicationMaster could not be started")
            return
        # It is our child: its pid cannot be reused before we reap it.
        self.register(row.number, os.pidfd_open(pid))
        _record_pid(application_dir, pid)
        log.info(f"{row.id}: attempt {attempt} started, process {pid}")

    def _use_standby(
        self, row: ApplicationRow, application_dir: str, arguments: Sequence[str], keep: Sequence[int], log_path: str
    ) -> bool:
        """Make the standby this row's ApplicationMaster. False: it did not accept the row, and ends."""
        assert self._standby is not None
        pidfd, standby = self._standby
        self._standby = None
        try:
            # Its command line does not name the application, so record the pid before assigning it.
            _record_pid(application_dir, standby.pid)
            standby.become(arguments, keep=keep, log=log_path)
        except OSError as error:
            standby.close()
            log.warning(f"{row.id}: the standby ApplicationMaster, process {standby.pid}, could not be used: {error}")
            return False
        self.register(row.number, pidfd)
        log.info(f"{row.id}: started, process {standby.pid}, a standby")
        return True

    def close_standby(self) -> None:
        """End an unused standby."""
        if self._standby is not None:
            self._standby[1].close()
            self._standby = None


def _record_pid(application_dir: str, pid: int) -> None:
    """Record the pid of an application's ApplicationMaster."""
    write_atomically(os.path.join(application_dir, "am.pid"), f"{pid} {start_time(pid) or 0}\n")


def _status_of(ended: os.waitid_result) -> int:
    """Return a process's exit code, or the negative number of the signal that killed it."""
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
