"""Guardian: two processes between a task and its plain payload, so that no process of the payload outlives the task.

    task ── outer ── inner ── payload (begins as wrapper.sh) ── ...

Both are forked from the task early, while it is small and has no threads. Inner starts the payload and adopts its
orphans; it detects the task's death because their socket closes. Outer only waits for inner.

**With CAP_SYS_ADMIN** inner is process 1 of its own pid namespace. When it dies, for whatever reason, the kernel kills
everything in that namespace. The kernel kills inner when outer dies, and outer when the task dies: a SIGKILL of any or
all of them leaves nothing.

The pids of the payload there begin after that of outer outside. Otherwise they would be the same in all containers of
a host, and programs identify themselves by host and pid: with torchrun's rendezvous c10d two nodes would be one, which
waits for the other, and the event files of TensorBoard would have the same names.

**Without** (an ordinary user, most containers) task, outer and inner are each a child subreaper. The remaining ones
inherit the payload's processes, including double-forked and setsid'ed ones, and kill them. Only if all three are killed
at the same moment does a payload live on; it still holds its locks and its lifeline then, so its resources count as
used, and the embedded engine finds and ends it by these.

Their messages, one JSON object per line:

    outer -> task   {"inner": pid}
    task -> inner   {"do": "start", "fds": n, "argv": [...], "env": {...}, "cwd": ..., "streams": [out, err]}
                                       with n descriptors to keep; the streams are the files of stdout and stderr
                    {"do": "exec", "fds": 1, "env": {...}, "cwd": ...}     a command beside the payload, if one runs, or
                                       if there never was one; the descriptor has the command to run (`exec.keeper`)
                    {"do": "term"}     SIGTERM to the payload, then wait until all of it is gone; the task repeats it
                    {"do": "abort"}    the same with SIGABRT
                    {"do": "kill"}     SIGKILL to all of it
                    Descriptors come as SCM_RIGHTS.
    inner -> task   {"ended": wait status, "used": [cpu s, bytes read, bytes written, bytes], "left": [n, name]}
                    all of it is gone; the status is of the payload's first process, what was used is of all of them,
                    and the last is the most memory that one of them had; without an order to end it, n processes were
                    left and killed when the first one had ended, and the program of the first of them has this name

When the first process of the payload has ended without an order, those that are left are killed. While one of them
holds the payload's stdout or stderr, or reads a pipe, they go on, for `MOMENT_S` at most: it may be a logger that the
script has started (``exec > >(tee log)``) and that has not written all of it.

A process that SIGTERM would end and that waits for others gets it after them: it has children, as a script's shell has
whose last command is not ``exec``, or reads a pipe, as ``tee`` does. So a program can save and print, and the shell
ends with the exit code of the program. The first order signals all other processes. If an order finds that none of
them is left, the next one signals the rest: a shell has the time between two orders to end by itself.

After that the task may start the payload of the next generation. Inner ends when the task closes the socket.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import stat
import time
from collections.abc import Collection, Sequence
from typing import Any, NoReturn

from dlapp.system.processes import kernel
from dlapp.system.processes.children import keep_only_descriptors, kill_descendants, kill_process, reset_signals
from dlapp.system.processes.proc import (
    ProcessStat,
    descendant_processes,
    descendants,
    process_stat,
    set_name,
    status_fields,
)

MOMENT_S = 2.0
"""How long processes that may still write the script's output go on after its end; wrapper.sh has the same."""
MAX_KEPT_FDS = 253
"""The kernel passes no more descriptors in one message. Source: net/core/scm.c, SCM_MAX_FD."""
_KILL_AGAIN_MS = 20
_LOOK_AGAIN_MS = 100
_BLOCK = 512
"""Size of a block of getrusage(2) [bytes]. Source: Linux, include/linux/task_io_accounting_ops.h."""


def fork_guardian(closed: Sequence[int] = ()) -> tuple[int, socket.socket]:
    """Fork the guardian; call it while the task is small and has one thread.

    Args:
        closed: descriptors that it must not inherit.

    Returns:
        The pid of outer, and the socket to inner.
    """
    # If both processes of the guardian are killed, their orphans are reparented to us, not to init.
    kernel.become_subreaper()
    ours, theirs = socket.socketpair()
    task = os.getpid()
    pid = os.fork()
    if pid:
        theirs.close()
        return pid, ours
    # Whatever fails here, the task's own code must never continue in this forked copy.
    try:
        ours.close()
        for fd in closed:
            os.close(fd)
        _run_outer(theirs, task)
    finally:
        os._exit(70)


def main(argv: Sequence[str]) -> int:
    """Run as a guardian that was started as a program; standard input is its channel."""
    from dlapp.system.processes.helper import own_channel

    _run_outer(own_channel(), os.getppid())


def _run_outer(channel: socket.socket, task: int) -> NoReturn:
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    set_name("dlapp-guardian")
    kernel.become_subreaper()
    own_namespace = True
    before = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    try:
        kernel.unshare_pids_and_mounts()
        inner = _fork_inner(channel, own_namespace=True)
    except OSError:
        own_namespace = False
        with contextlib.suppress(OSError):
            kernel.return_to_pid_namespace(before)
        inner = _fork_inner(channel, own_namespace=False)
    os.close(before)
    if own_namespace:
        kernel.die_with_parent(signal.SIGKILL)
    if os.getppid() == task:
        _send(channel, {"inner": inner})
    elif own_namespace:
        os.kill(inner, signal.SIGKILL)  # the task died before we could register for its death signal
    channel.close()
    while True:
        # Orphans of a killed inner are our children now, and are ended here.
        pid, _ = os.waitpid(-1, 0)
        if pid == inner:
            break
    while not own_namespace and not _all_reaped():
        kill_descendants()
        time.sleep(_KILL_AGAIN_MS / 1000)
    os._exit(0)


def _fork_inner(channel: socket.socket, *, own_namespace: bool) -> int:
    """Fork inner; return when it is ready. Raises OSError if it may not mount its own /proc."""
    ready, tell = os.pipe()
    outer = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(ready)
            if own_namespace:
                kernel.mount_own_proc()
                kernel.begin_pids_after(outer)
                kernel.die_with_parent(signal.SIGKILL)
            kernel.become_subreaper()
            os.write(tell, b"1")  # fails if outer died before the death signal was registered
            os.close(tell)
            _Inner(channel, own_namespace).run()
        finally:
            os._exit(70)
    os.close(tell)
    is_ready = os.read(ready, 1)
    os.close(ready)
    if not is_ready:
        os.waitpid(pid, 0)
        raise OSError("no /proc for a pid namespace")
    return pid


def _all_reaped() -> bool:
    """Reap every ended child; return True if there are no children left."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return True
        if pid == 0:
            return False


def _send(channel: socket.socket, message: dict[str, Any]) -> None:
    # A dead task needs no message.
    with contextlib.suppress(OSError):
        channel.sendall(json.dumps(message).encode() + b"\n")


def _reads_pipe(pid: int) -> bool:
    with contextlib.suppress(OSError):  # it has no standard input, or has ended, or is another user's
        return stat.S_ISFIFO(os.stat(f"/proc/{pid}/fd/0").st_mode)
    return False


def _may_write(pid: int, streams: Collection[str]) -> bool:
    """Return whether a process holds one of these files, or its standard input is a pipe."""
    if _reads_pipe(pid):
        return True
    place = f"/proc/{pid}/fd"
    with contextlib.suppress(OSError):
        return any(_link_target(f"{place}/{name}") in streams for name in os.listdir(place))
    return False


def _is_alive(one: ProcessStat) -> bool:
    """Return whether a process that was running is neither gone nor about to be."""
    now = process_stat(one.pid)
    return now is not None and now.started == one.started and not (now.is_dead or now.is_exiting)


def _waits_for_others(pid: int, is_parent: bool) -> bool:
    """Return whether a process waits for others, and SIGTERM would end it: it is not caught, ignored or blocked."""
    if not (is_parent or _reads_pipe(pid)):
        return False
    masks = [status_fields(pid, name) for name in ("SigBlk", "SigIgn", "SigCgt")]
    return all(mask and not int(mask[0], 16) >> (signal.SIGTERM - 1) & 1 for mask in masks)


def _link_target(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


class _Inner:
    """The process that starts the payload, adopts its orphans, and ends all of it."""

    def __init__(self, channel: socket.socket, own_namespace: bool) -> None:
        self._channel = channel
        self._own_namespace = own_namespace
        self._received = bytearray()
        self._arrived: list[int] = []  # descriptors of pending orders, in their order
        self._fds: list[int] = []
        self._has_task = True
        self._keepers: set[int] = set()
        self._begin()

    def _begin(self) -> None:
        """Prepare for a payload."""
        self._main: int | None = None
        self._status: int | None = None
        self._soft = False
        self._told: set[tuple[int, int]] = set()  # the processes that got SIGTERM last: pid and start time
        self._is_rest_due = False
        self._killing = False
        self._alone = True
        self._used = [0.0, 0, 0, 0]
        self._streams: tuple[str, ...] = ()
        self._moment_ends_s: float | None = None  # monotonic; after that, what is left is killed
        self._left: list[Any] = [0, ""]
        while self._fds:
            os.close(self._fds.pop())

    def run(self) -> NoReturn:
        ended, tell = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        poll = select.poll()
        poll.register(ended, select.POLLIN)
        poll.register(self._channel, select.POLLIN)
        while True:
            while not self._is_over():
                for fd, _ in poll.poll(self._wait_ms()):
                    if fd == ended:
                        os.read(ended, 512)
                    elif not self._listen():
                        poll.unregister(self._channel)
                        self._has_task, self._killing = False, True
                self._reap()
                if self._status is not None and not (self._soft or self._killing or self._alone):
                    self._end_left()
                if self._killing and not self._alone:
                    self._kill_all()
                    self._reap()
            _send(self._channel, {"ended": self._status, "used": self._used, "left": self._left})
            if not self._has_task:
                os._exit(0)
            self._begin()

    def _is_over(self) -> bool:
        return self._alone and (self._killing or self._status is not None)

    def _wait_ms(self) -> float | None:
        """Return how long to wait for an event; None if nothing is due by itself."""
        if self._killing:
            return _KILL_AGAIN_MS
        if self._moment_ends_s is None or self._soft:
            return None
        return min(_LOOK_AGAIN_MS, max(0.0, self._moment_ends_s - time.monotonic()) * 1000)

    def _end_left(self) -> None:
        """Kill what the payload's first process has left, once none of it may still write the output.

        Until then this is called again at the end of a child and every `_LOOK_AGAIN_MS`: a new process of a script
        holds its output until it has redirected its own.
        """
        left = self._payload_processes()
        if self._moment_ends_s is None:
            self._moment_ends_s = time.monotonic() + MOMENT_S
        may_write = any(_may_write(one.pid, self._streams) for one in left)
        # 1. We list the processes.  2. A logger starts another one and ends.  3. We find nobody who writes.
        alive = [one for one in left if _is_alive(one)]
        if (may_write or len(alive) < len(left)) and time.monotonic() < self._moment_ends_s:
            return
        if alive:
            self._left = [len(alive), alive[0].program.decode("utf-8", "replace")]
        self._killing = True

    def _payload_processes(self) -> list[ProcessStat]:
        """Return the living processes of the payload, without commands beside it."""
        beside = self._keepers.union(*map(descendants, self._keepers))
        return [one for one in descendant_processes(os.getpid()) if one.pid not in beside]

    def _listen(self) -> bool:
        """Read the task's messages; return False when it is gone."""
        try:
            data, fds, _, _ = socket.recv_fds(self._channel, 65536, MAX_KEPT_FDS)
        except OSError:
            return False
        self._arrived += fds
        self._received += data
        while b"\n" in self._received:
            line, _, rest = self._received.partition(b"\n")
            self._received = rest
            self._execute_order(json.loads(line))
        return bool(data)

    def _execute_order(self, order: dict[str, Any]) -> None:
        count = order.get("fds", 0)
        fds, self._arrived = self._arrived[:count], self._arrived[count:]
        if order["do"] != "exec":
            self._fds += fds
        match order["do"]:
            case "start" if self._main is None and not self._killing:
                self._streams = tuple(map(os.path.realpath, order["streams"]))
                self._main = self._start(order["argv"], order["env"], order["cwd"])
                self._alone = False
            case "term" if self._main is not None and self._status is None:  # else it arrived just after the end
                self._soft = True
                self._terminate()
            case "abort" if self._main is not None and self._status is None:
                self._soft = True
                self._signal_all(signal.SIGABRT)
            case "kill" if self._main is not None:
                self._killing = True
            case "exec":
                if not (self._soft or self._killing or self._status is not None):
                    self._start_keeper(fds[0], order["env"], order["cwd"])
                os.close(fds[0])  # the holder of the other end sees by that if there is no keeper

    def _start_keeper(self, fd: int, env: dict[str, str], cwd: str) -> None:
        pid = os.fork()
        if pid == 0:
            try:
                # Ours must be seen to close when we end, and signals must reach their addressee.
                self._channel.close()
                signal.set_wakeup_fd(-1)
                from dlapp.runtime.exec.keeper import run_keeper

                run_keeper(socket.socket(fileno=fd), env, cwd, self._fds)
            finally:
                os._exit(70)
        self._keepers.add(pid)
        self._alone = False

    def _start(self, argv: list[str], env: dict[str, str], cwd: str) -> int:
        pid = os.fork()
        if pid == 0:
            try:
                reset_signals()
                os.setsid()
                os.chdir(cwd)
                keep_only_descriptors(self._fds)
                os.execve(argv[0], argv, env)
            finally:
                os._exit(126)
        # Ours stay open: while we live to kill the payload, its locks are held, whatever it closes.
        return pid

    def _reap(self) -> None:
        while True:
            try:
                pid, status, used = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                self._alone = True
                return
            if pid == 0:
                return
            # Each child's numbers include those of its own reaped children, and orphans are children of ours.
            self._used[0] += used.ru_utime + used.ru_stime
            self._used[1] += used.ru_inblock * _BLOCK
            self._used[2] += used.ru_oublock * _BLOCK
            self._used[3] = max(self._used[3], used.ru_maxrss << 10)
            self._keepers.discard(pid)
            if pid == self._main:
                self._status = status

    def _terminate(self) -> None:
        """Send SIGTERM to the processes that are due; see above."""
        running = descendant_processes(os.getpid())
        if not self._told.isdisjoint((one.pid, one.started) for one in running):
            self._is_rest_due = False
            return
        if self._told and not self._is_rest_due:
            self._is_rest_due = True
            return
        due = running
        if not self._told:
            parents = {one.parent for one in running}
            due = [one for one in running if not _waits_for_others(one.pid, one.pid in parents)] or running
        self._told = {(one.pid, one.started) for one in due}
        self._is_rest_due = False
        for one in due:
            kill_process(one.pid, signal.SIGTERM)

    def _signal_all(self, number: signal.Signals) -> None:
        if self._own_namespace:
            # In our own namespace -1 means the whole payload: it never includes process 1, which we are.
            kill_process(-1, number)
        else:
            for pid in descendants(os.getpid()):
                kill_process(pid, number)

    def _kill_all(self) -> None:
        if self._own_namespace:
            kill_process(-1, signal.SIGKILL)
        else:
            kill_descendants()
