"""An interactive shell as a plain process; all of its processes end when it closes, however that happens.

    dlapp-shell ── keeper ── bash ── what the user starts ...

bash must stay in the terminal's session to have job control, so its processes cannot be contained by a pid namespace or
a session of their own. The keeper contains them instead:

1. It is forked before any thread is started.
2. It adopts orphaned descendants (child subreaper).
3. It ends them all when bash has ended or dlapp-shell is gone.
4. If the keeper is killed, bash dies with it and dlapp-shell adopts the descendants.

An application that was submitted from inside is not part of the shell and continues to run.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from dlapp.system import waits
from dlapp.system.processes import kernel
from dlapp.system.processes.proc import command_line, descendants, set_name
from dlapp.system.processes.spawn import is_program

TERM_PATIENCE_S = 1.0
"""Time between SIGTERM and SIGKILL for processes that remain when the shell ends."""
_POLL_INTERVAL_S = 0.02
_ENGINES = (b"am", b"task", b"runner")


class PlainShell:
    """bash as a plain process: fork the keeper with `start`, then `wait`; always `close` at the end.

    Args:
        argv: command of the shell.
        kept_fds: descriptors that all processes in the shell inherit: they hold locks.
    """

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], cwd: str, kept_fds: Sequence[int] = ()) -> None:
        self._argv, self._env, self._cwd, self._kept_fds = list(argv), dict(env), cwd, tuple(kept_fds)
        self._status: int | None = None
        self._opened = contextlib.ExitStack()
        if os.isatty(0):
            self._opened.callback(_restore_terminal, termios.tcgetattr(0))

    def start(self) -> None:
        """Fork the keeper, which forks the shell; call it while the process has one thread, or additionally that of
        `waits.report_waits`.
        """
        kernel.become_subreaper()
        sys.stdout.flush()
        sys.stderr.flush()
        keeper_end, life = os.pipe2(os.O_CLOEXEC)
        self._status, status_fd = os.pipe2(os.O_CLOEXEC)
        with waits.paused():
            keeper = os.fork()
            if keeper == 0:
                # Whatever fails here, the calling code must never continue in this forked copy.
                try:
                    os.close(life)
                    os.close(self._status)
                    self._be_keeper(keeper_end, status_fd)
                finally:
                    os._exit(70)
        os.close(keeper_end)
        os.close(status_fd)
        # The last of these is executed first on close: the keeper ends because its lifeline does.
        self._opened.callback(os.close, self._status)
        self._opened.callback(end_descendants, patience_s=0)
        self._opened.callback(os.waitpid, keeper, 0)
        self._opened.callback(os.close, life)

    def wait(self) -> int:
        """Wait until the shell ends; return its exit code, 128 plus the number for a signal, like a shell."""
        assert self._status is not None
        text = os.read(self._status, 20)
        if not text:
            return 128 + signal.SIGKILL  # the keeper was killed, and bash with it
        code = os.waitstatus_to_exitcode(int(text))
        return code if code >= 0 else 128 - code

    def close(self) -> None:
        """End all processes, and restore the terminal. Idempotent."""
        self._opened.close()

    def _be_keeper(self, life: int, status_fd: int) -> NoReturn:
        kernel.become_subreaper()
        set_name("dlapp-keeper")
        keeper = os.getpid()
        # Handlers, unlike SIG_IGN, are not inherited by bash. The terminal's signals are for the programs in it.
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGHUP, signal.SIGTERM):
            signal.signal(number, _ignore_signal)
        child_ended, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _ignore_signal)
        shell = os.fork()
        if shell == 0:
            try:
                signal.set_wakeup_fd(-1)
                kernel.die_with_parent(signal.SIGKILL)
                if os.getppid() == keeper:
                    self._become_shell()
            finally:
                os._exit(127)
        status: int | None = None
        while status is None:
            ready, _, _ = select.select([child_ended, life], [], [])
            if life in ready:
                break
            with contextlib.suppress(BlockingIOError):
                os.read(child_ended, 512)
            status = _reaped(shell)
        if status is not None:
            os.write(status_fd, b"%d" % status)
        end_descendants(patience_s=TERM_PATIENCE_S)
        os._exit(0)

    def _become_shell(self) -> NoReturn:
        for fd in self._kept_fds:
            os.set_inheritable(fd, True)
        os.chdir(self._cwd)
        try:
            os.execve(self._argv[0], self._argv, self._env)
        except OSError as error:
            os.write(2, f"Error: {self._argv[0]}: {error.strerror}\n".encode())
            os._exit(127)


def end_descendants(*, patience_s: float, watch: Callable[[], float] = time.monotonic) -> None:
    """End every descendant except the engine's own processes: SIGTERM and SIGHUP, then after ``patience_s`` SIGKILL."""
    deadline = watch() + patience_s
    hard = patience_s <= 0
    signalled: set[int] = set()
    while True:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
        left = descendants_to_end(os.getpid())
        if not left:
            return
        hard = hard or watch() >= deadline
        for pid in left:
            if hard or pid not in signalled:
                numbers = (signal.SIGKILL,) if hard else (signal.SIGTERM, signal.SIGHUP, signal.SIGCONT)
                for number in numbers:
                    # Already gone; or we may not kill it (a setuid program).
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, number)
        if hard and not any(_may_kill(pid) for pid in left):
            return
        signalled.update(left)
        time.sleep(_POLL_INTERVAL_S)


def descendants_to_end(of: int) -> list[int]:
    """Return the descendants of a process without the engine's own processes and their descendants."""
    found = descendants(of)
    spared: set[int] = set()
    for pid in found:
        if pid not in spared and is_engine(pid):
            spared |= {pid, *descendants(pid)}
    return [pid for pid in found if pid not in spared]


def is_engine(pid: int) -> bool:
    """Return True if a process is a runner, an ApplicationMaster or a task."""
    return is_program(command_line(pid), _ENGINES)


def _may_kill(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


def _reaped(shell: int) -> int | None:
    """Reap every ended child; return the shell's status, if it was among them."""
    found = None
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            if pid == 0:
                break
            if pid == shell and os.WIFSTOPPED(status):
                # "suspend" would leave a terminal without a reader.
                os.kill(pid, signal.SIGCONT)
            elif pid == shell:
                found = status
    return found


def _ignore_signal(_number: int, _frame: object) -> None:
    pass


def _restore_terminal(settings: list[Any]) -> None:
    """Make this process the foreground of standard input's terminal again, with its earlier settings."""
    # A killed shell leaves the terminal to a process group that is gone; taking it back stops a process that is not
    # prepared.
    before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    try:
        with contextlib.suppress(OSError, termios.error):  # the terminal itself may be gone
            os.tcsetpgrp(0, os.getpgrp())
            termios.tcsetattr(0, termios.TCSADRAIN, settings)
    finally:
        signal.signal(signal.SIGTTOU, before)
