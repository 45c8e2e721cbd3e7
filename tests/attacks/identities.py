"""Run functions and dlapp's commands as other users of this machine; needs root.

A user here has an entry in /etc/passwd and /etc/group, which only what runs as one of them sees: each child has a mount
namespace of its own with both files bound over. What a child starts inherits it.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import functools
import os
import pickle
import select
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import pytest

from tests.applications import Done

T = TypeVar("T")

HANG_S = 15.0
"""What dlapp may take at most, whatever lies in its way [s], on a machine that is not overloaded."""

_LIBC = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWNS, _MS_BIND, _MS_REC, _MS_PRIVATE = 0x20000, 0x1000, 0x4000, 0x40000


@dataclass(frozen=True)
class User:
    """A user of the machine: an entry of passwd, and the groups that it is in."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...] = ()


GROUP = 20_000
"""The group that shares a state directory: ``dlusers``."""

ROOT = User("root", 0, 0, (0,))
VICTIM = User("victim", 20_001, 20_001, (GROUP,))
MEMBER = User("member", 20_003, 20_003, (GROUP,))
"""Another member of the group."""

ATTACKER = User("attacker", 20_002, 20_002)
"""In no group with anybody."""

USERS = (VICTIM, ATTACKER, MEMBER)


def hang_s(seconds: float = HANG_S) -> float:
    """Return a deadline [s] that holds on this machine with its present load, too."""
    # The average says little of a load that has just come.
    running = int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0])
    return seconds * max(1.0, max(os.getloadavg()[0], running) / (os.cpu_count() or 1))


class Identities:
    """Runs functions and commands as other users.

    Attributes:
        place: root's directory of mode 1777, as /tmp is; the users' homes (0700) lie in it.
        python: an interpreter with dlapp that each of them may run.
    """

    def __init__(self, place: Path, python: Path) -> None:
        self.place, self.python = place, python
        self._passwd, self._group = place / "passwd", place / "group"
        passwd, group = Path("/etc/passwd").read_text(), Path("/etc/group").read_text()
        for user in USERS:
            home = self.home(user)
            home.mkdir(mode=0o700)
            os.chown(home, user.uid, user.gid)
            passwd += f"{user.name}:x:{user.uid}:{user.gid}::{home}:/bin/sh\n"
            group += f"{user.name}:x:{user.gid}:\n"
        group += f"dlusers:x:{GROUP}:{','.join(user.name for user in USERS if GROUP in user.groups)}\n"
        self._passwd.write_text(passwd)
        self._group.write_text(group)
        root_home = self.home(ROOT)
        root_home.mkdir(mode=0o700)

    def home(self, user: User) -> Path:
        """Return the home directory of a user; root has one of this test's, too."""
        return self.place / f"home-{user.name}"

    def environment(self, user: User) -> dict[str, str]:
        """Return what a login of that user would have in its environment."""
        path = f"{self.python.parent}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
        return {"HOME": str(self.home(user)), "USER": user.name, "LOGNAME": user.name, "PATH": path, "LANG": "C.UTF-8"}

    def call(self, user: User, function: Callable[..., T], *args: Any, deadline_s: float = HANG_S) -> T:
        """Return what a function returns as that user, in a process of its own; raise what it raises.

        Args:
            user: whom the process belongs to.
            function: anything that can be called, also what cannot be pickled; its result must be.
            args: for the function.
            deadline_s: when it counts as hanging [s]: the test then fails with the stacks of its threads.
        """
        read, write = os.pipe()
        report = self.place / f"stacks-{os.getpid()}-{time.monotonic_ns()}"
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            self._child(user, function, args, write, report)
        os.close(write)
        try:
            data = self._receive(read, pid, report, function, deadline_s)
        finally:
            os.close(read)
            with contextlib.suppress(FileNotFoundError):
                report.unlink()
        if not data:
            pytest.fail(f"{_name(function)} as {user.name} ended its process")
        succeeded, value = pickle.loads(data)
        if not succeeded:
            raise _unpickled(*value)
        return value  # type: ignore[no-any-return]

    def run(
        self,
        user: User,
        command: str,
        *args: object,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        deadline_s: float = HANG_S,
    ) -> Done:
        """Return how one of dlapp's commands (or any program, by its path) ends as that user, with a clean environment.

        Args:
            user: who types it.
            command: ``dlapp-list``, or the path of a program.
            args: its arguments.
            env: variables besides those of a login.
            cwd: where; the user's home if None.
            deadline_s: when it counts as hanging [s]: the test then fails with the stacks of its threads.
        """
        argv = [command] if "/" in command else [str(self.python), "-m", "dlapp.tools", command]
        argv += map(str, args)
        with contextlib.ExitStack() as files:
            # Files and no pipes: what the command leaves running in the background would keep a pipe open.
            out, err = (
                files.enter_context((self.place / f"{name}-{time.monotonic_ns()}").open("w+b"))
                for name in ("out", "err")
            )
            for file in (out, err):
                os.unlink(file.name)
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env={**self.environment(user), "PYTHONFAULTHANDLER": "1", **(env or {})},
                cwd="/",
                start_new_session=True,
                preexec_fn=lambda: self._become(user, cwd or self.home(user)),
            )
            try:
                process.wait(hang_s(deadline_s))
            except subprocess.TimeoutExpired:
                processes = _processes_of_session(process.pid)
                process.send_signal(signal.SIGABRT)  # prints the stacks: PYTHONFAULTHANDLER
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(HANG_S)
                _end_session(process)
                out.seek(0), err.seek(0)
                message = (out.read() + err.read()).decode(errors="replace")
                pytest.fail(f"{' '.join(argv)} as {user.name} hangs:\n{processes}\n{message}")
            out.seek(0), err.seek(0)
            return Done(process.returncode, out.read().decode(errors="replace"), err.read().decode(errors="replace"))

    def _child(self, user: User, function: Callable[..., Any], args: Iterable[Any], write: int, report: Path) -> None:
        """Run the function and write its outcome; does not return."""
        try:
            stacks = report.open("w")
            faulthandler.enable(stacks, all_threads=True)
            os.setsid()
            self._become(user, self.home(user))
            os.environ.clear()
            os.environ.update(self.environment(user))
            try:
                data = pickle.dumps((True, function(*args)))
            except BaseException as error:
                error.add_note(f"as {user.name}:\n{traceback.format_exc()}")
                data = _pickled(error)
            with os.fdopen(write, "wb") as pipe:
                pipe.write(data)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)

    def _receive(self, read: int, pid: int, report: Path, function: Callable[..., Any], deadline_s: float) -> bytes:
        """Return what the child writes until it ends."""
        end, pieces = time.monotonic() + hang_s(deadline_s), list[bytes]()
        while True:
            ready, _, _ = select.select([read], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                os.kill(pid, signal.SIGABRT)
                os.waitpid(pid, 0)
                pytest.fail(f"{_name(function)} hangs:\n{report.read_text()}")
            if not (piece := os.read(read, 1 << 20)):
                os.waitpid(pid, 0)
                return b"".join(pieces)
            pieces.append(piece)

    def _become(self, user: User, cwd: Path) -> None:
        """Make this process one of that user, in a mount namespace that has the entries of all users."""
        _checked(_LIBC.unshare(_CLONE_NEWNS), "unshare")
        _checked(_LIBC.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None), "mount /")
        for source, target in ((self._passwd, b"/etc/passwd"), (self._group, b"/etc/group")):
            _checked(_LIBC.mount(os.fsencode(source), target, None, _MS_BIND, None), target.decode())
        os.setgroups(user.groups)
        os.setresgid(user.gid, user.gid, user.gid)
        os.setresuid(user.uid, user.uid, user.uid)
        os.umask(0o022)
        os.chdir(cwd)


@contextlib.contextmanager
def deadline(seconds: float = HANG_S) -> Iterator[None]:
    """Fail with the stack of this thread where a block takes longer; a blocking system call is interrupted."""

    def fail(_signal: int, frame: FrameType | None) -> None:
        pytest.fail("hangs:\n" + "".join(traceback.format_stack(frame)))

    previous = signal.signal(signal.SIGALRM, fail)
    signal.setitimer(signal.ITIMER_REAL, hang_s(seconds))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def _processes_of_session(session: int) -> str:
    """Return a line for each process of a session: its id, where in the kernel it waits, its command line."""
    lines = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if os.getsid(int(entry.name)) == session:
                waits = (entry / "wchan").read_text()
                call = (entry / "syscall").read_text().strip()
                words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                lines.append(f"{entry.name} [{waits}] [{call}] {words}")
    return "\n".join(lines)


def _end_session(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _pickled(error: BaseException) -> bytes:
    """Return a failure as bytes; by class and attributes, for an error with a constructor of its own is no pickle."""
    try:
        return pickle.dumps((False, (type(error), error.args, vars(error))))
    except Exception:
        notes = "\n".join(getattr(error, "__notes__", ()))
        return pickle.dumps((False, (AssertionError, (f"{type(error).__name__}: {error}\n{notes}",), {})))


def _unpickled(kind: type[BaseException], args: tuple[Any, ...], attributes: dict[str, Any]) -> BaseException:
    error = kind.__new__(kind, *args)
    error.args = args  # which OSError leaves to the constructor of a derived class
    vars(error).update(attributes)
    return error


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", repr(function))


def _checked(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


@functools.cache
def can_have_namespaces() -> bool:
    """Return whether this process may make mount namespaces, as root in a container often may not."""
    unshare = shutil.which("unshare", path="/usr/bin:/bin")
    return unshare is not None and subprocess.run([unshare, "-m", "true"], capture_output=True).returncode == 0
