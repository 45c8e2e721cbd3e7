"""Orphaned processes of an application: identified by proof, stopped, and killed.

Task and guardian each end a payload when the other is killed. A payload survives only if all of them were killed at the
same moment (with CAP_SYS_ADMIN not even then). It then still holds the application's lock, so its resources are not
given to others, and it would hold them indefinitely. A task whose last ApplicationMaster is dead is told to end.

A process belongs to the application, and may be killed, if /proc shows one of these:

    a lock     a descriptor of it holds the lock ``alive``, of the application or one of its containers. Opening a
               locked file is not enough: only a process that inherited the descriptor has it. Source: proc(5), fdinfo,
               "lock:"
    a life     it has a container's lifeline open for reading, as payloads have
    a name     DLAPP_CONTAINER_ID of one of its containers was in its initial environment, or DLAPP_APP_ID was and its
               working directory is below the application's directory
    a place    its working directory is below a container's directory, its parent is init and it has no terminal, as for
               a daemon; a user's shell in that directory has neither
    a parent   it descends from a proven process

Only processes of the application's user count. The user's runner, this process, and their descendants are excluded.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from typing import NamedTuple

from dlapp.cluster.local.attempts import alive_locks
from dlapp.cluster.local.outcome import has_outcome
from dlapp.system.processes.proc import ProcessStat, all_processes, command_line, open_process, read_proc, real_uid

GRACE_S = 1.0
"""How long leftover processes may take to end, once no ApplicationMaster is visible."""
TASK_GRACE_S = 10.0
"""The same while one of our tasks is among them: it ends its payload and cleans up."""
SCAN_SHARE, MAX_PAUSE_S = 0.1, 1.0
"""Largest share of the time that scans of /proc take, and the longest pause between two of them. A scan takes 0.1 s on
a machine with a few programs of many files; one after another they would delay the ends that they wait for."""
_ROUNDS = 50
_GONE_S = 2.0


class OrphanProcess(NamedTuple):
    """Process of an application, identified by pid and start time; ``role`` is am, task, or empty for the others."""

    pid: int
    started: int
    role: str


class OpenMark(NamedTuple):
    """Open file of a process, by device and inode: whether the descriptor holds a lock, and whether it only reads."""

    identity: tuple[int, int]
    is_locked: bool
    is_reading: bool


class ProcessMatch(NamedTuple):
    """Proof that a process belongs to an application (or to one container).

    Args:
        locks, lives: device and inode of the files.
        names, application: variables in the form of an environment; the second proves only below ``application_dir``.
        application_dir, directories: directories, with a trailing slash.
    """

    locks: frozenset[tuple[int, int]]
    lives: frozenset[tuple[int, int]]
    names: frozenset[bytes]
    application: bytes
    application_dir: str
    directories: tuple[str, ...]


class OrphanReaper:
    """Reaper of the leftover processes of one application whose ApplicationMaster is gone.

    Args:
        application_dir: the application's directory.
        uid: owner of the application.
        runner_lock: file whose lock identifies the user's runner.
        keep_am: treat an ApplicationMaster that is still starting, and not identifiable yet, as alive; False: end it
            with the rest.
    """

    def __init__(self, application_dir: str, uid: int, runner_lock: str, *, keep_am: bool = True) -> None:
        self._application_dir, self._uid = application_dir, uid
        self._runner_lock, self._keep_am = runner_lock, keep_am
        self._since: float | None = None  # time of the first check
        self._scan_at = 0.0

    def restart_wait(self) -> None:
        """Record that an ApplicationMaster is alive."""
        self._since = None

    def end_in_time(self) -> list[int]:
        """Tell the tasks to end, or end leftover processes whose time is up; return the processes.

        Tasks of an ended application end by themselves. May be called at any rate.
        """
        began = time.monotonic()
        if began < self._scan_at:
            return []
        ended = self._end_if_due()
        took_s = time.monotonic() - began
        self._scan_at = began + min(took_s / SCAN_SHARE, took_s + MAX_PAUSE_S)
        return ended

    def _end_if_due(self) -> list[int]:
        if self._since is None:
            self._since = time.monotonic()
            if not has_outcome(self._application_dir):
                found = find(self._application_dir, self._uid, self._runner_lock)
                if self._keep_am and any(one.role == "am" for one in found):
                    self.restart_wait()
                else:
                    _stop_tasks(found, self._uid)
            return []
        waited_s = time.monotonic() - self._since
        if waited_s < GRACE_S:
            return []
        roles = {one.role for one in find(self._application_dir, self._uid, self._runner_lock)}
        if self._keep_am and "am" in roles:
            self.restart_wait()
            return []
        if "task" in roles and waited_s < TASK_GRACE_S:
            return []
        return end(self._application_dir, self._uid, self._runner_lock)


def end(application_dir: str, uid: int, runner_lock: str) -> list[int]:
    """Stop and kill all processes of an application, and wait briefly for their end; return them."""
    return _end(marks_of(application_dir), uid, runner_lock)


def end_containers(directories: Sequence[str], uid: int, runner_lock: str) -> list[int]:
    """Do the same for containers of one application, given by their directories."""
    return _end(_container_marks(directories), uid, runner_lock) if directories else []


def _stop_tasks(found: list[OrphanProcess], uid: int) -> None:
    for one in found:
        if one.role == "task" and (pidfd := open_process(one.pid, one.started, uid)) is not None:
            try:
                _signal(pidfd, signal.SIGTERM)
            finally:
                os.close(pidfd)


def _end(marks: ProcessMatch, uid: int, runner_lock: str) -> list[int]:
    # Stop all of them before killing the first, repeatedly while new ones appear: so none forks while others die, and
    # none loses the parent that proves it.
    held: dict[tuple[int, int], int] = {}
    try:
        for _ in range(_ROUNDS):
            more = [one for one in _find(marks, uid, runner_lock) if (one.pid, one.started) not in held]
            for one in more:
                if (pidfd := open_process(one.pid, one.started, uid)) is not None:
                    held[one.pid, one.started] = pidfd
                    _signal(pidfd, signal.SIGSTOP)
            if not more:
                break
        for pidfd in held.values():
            _signal(pidfd, signal.SIGKILL)
        _wait_for_ends(list(held.values()))
    finally:
        for pidfd in held.values():
            os.close(pidfd)
    return sorted(pid for pid, _ in held)


def _signal(pidfd: int, number: signal.Signals) -> None:
    # Already gone; or a program that changed its user, which we may not signal.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        signal.pidfd_send_signal(pidfd, number)


def _wait_for_ends(pidfds: list[int]) -> None:
    import select

    poll = select.poll()
    for pidfd in pidfds:
        poll.register(pidfd, select.POLLIN)
    left, deadline = len(pidfds), time.monotonic() + _GONE_S
    while left and (left_s := deadline - time.monotonic()) > 0:
        for pidfd, _ in poll.poll(left_s * 1000):
            poll.unregister(pidfd)
            left -= 1


# ---- finding ----


def find(application_dir: str, uid: int, runner_lock: str) -> list[OrphanProcess]:
    """Return the processes of an application that run as ``uid``, without zombies; see `OrphanReaper`."""
    return _find(marks_of(application_dir), uid, runner_lock)


def tasks_of(application_dir: str, uid: int) -> dict[str, OrphanProcess]:
    """Return the tasks of an application that run as ``uid``, by the directory of their container."""
    application_dir = os.path.realpath(application_dir)
    parents: dict[int, int] = {}
    found: list[tuple[str, OrphanProcess]] = []
    for one in all_processes():
        role, directory = _role_and_directory(one.pid, application_dir)
        if role == "task" and not one.is_dead and real_uid(one.pid) == uid:
            parents[one.pid] = one.parent
            found.append((directory, OrphanProcess(one.pid, one.started, role)))
    # A guardian is a fork of its task, with the same command line.
    return {directory: task for directory, task in found if parents[task.pid] not in parents}


def marks_of(application_dir: str) -> ProcessMatch:
    """Return the proof for processes of the application in ``application_dir``."""
    application_dir = os.path.realpath(application_dir)
    containers = os.path.join(application_dir, "containers")
    names: list[str] = []
    with contextlib.suppress(OSError):
        names = os.listdir(containers)
    alive = [*alive_locks(application_dir), *(os.path.join(containers, name, "alive") for name in names)]
    return ProcessMatch(
        locks=_identities(alive),
        lives=_identities([os.path.join(containers, name, "life") for name in names]),
        names=frozenset(b"DLAPP_CONTAINER_ID=" + os.fsencode(name) for name in names),
        application=b"DLAPP_APP_ID=" + os.fsencode(os.path.basename(application_dir)),
        application_dir=os.path.join(application_dir, ""),
        directories=(os.path.join(containers, ""),),
    )


def _container_marks(directories: Sequence[str]) -> ProcessMatch:
    directories = [os.path.realpath(one) for one in directories]
    return ProcessMatch(
        locks=_identities([os.path.join(one, "alive") for one in directories]),
        lives=_identities([os.path.join(one, "life") for one in directories]),
        names=frozenset(b"DLAPP_CONTAINER_ID=" + os.fsencode(os.path.basename(one)) for one in directories),
        application=b"",
        application_dir=os.path.join(os.path.dirname(directories[0]), ""),
        directories=tuple(os.path.join(one, "") for one in directories),
    )


def _identities(paths: list[str]) -> frozenset[tuple[int, int]]:
    found = set()
    for path in paths:
        with contextlib.suppress(OSError):
            info = os.stat(path)
            found.add((info.st_dev, info.st_ino))
    return frozenset(found)


def _find(marks: ProcessMatch, uid: int, runner_lock: str) -> list[OrphanProcess]:
    there = {one.pid: one for one in all_processes() if not one.is_dead and real_uid(one.pid) == uid}
    of_runner = marks._replace(
        locks=_identities([runner_lock]), lives=frozenset(), names=frozenset(), application=b"", directories=()
    )
    files = {pid: _locks_and_lives(pid) for pid in there}
    spared = {os.getpid()} | {pid for pid in there if _holds(files[pid], of_runner)}
    children: dict[int, list[int]] = {}
    for one in there.values():
        children.setdefault(one.parent, []).append(one.pid)
    proven: set[int] = set()
    todo = [one.pid for one in there.values() if one.pid not in spared and _is_proven(one, files[one.pid], marks)]
    while todo:
        pid = todo.pop()
        if pid not in proven and pid not in spared:
            proven.add(pid)
            todo += children.get(pid, ())
    return [OrphanProcess(pid, there[pid].started, _role(pid, marks.application_dir)) for pid in sorted(proven)]


def _is_proven(process: ProcessStat, files: list[OpenMark], marks: ProcessMatch) -> bool:
    pid = process.pid
    if _holds(files, marks):
        return True
    variables = frozenset(read_proc(pid, "environ").split(b"\0"))
    if variables & marks.names:
        return True
    try:
        where = os.path.join(os.readlink(f"/proc/{pid}/cwd").removesuffix(" (deleted)"), "")
    except OSError:
        return False
    if marks.application in variables and marks.application and where.startswith(marks.application_dir):
        return True
    return where.startswith(marks.directories) and process.terminal == 0 and _is_init(process.parent)


def _is_init(pid: int) -> bool:
    # A user's own systemd adopts orphans started below it.
    return pid == 1 or read_proc(pid, "comm") == b"systemd\n"


def _locks_and_lives(pid: int) -> list[OpenMark]:
    """Return the open files of a process that are named like locks or lifelines."""
    found: list[OpenMark] = []
    try:
        numbers = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return found
    for number in numbers:
        # It may be closed meanwhile, or its process may end: ValueError.
        with contextlib.suppress(OSError, ValueError):
            # Compare the name first: stat of a file on a dead network file system would hang.
            file = os.path.basename(os.readlink(f"/proc/{pid}/fd/{number}").removesuffix(" (deleted)"))
            if not (file.startswith(("alive", "runner-")) or file == "life"):
                continue
            info = os.stat(f"/proc/{pid}/fd/{number}")
            fdinfo = read_proc(pid, f"fdinfo/{number}")
            # A process that checks whether a payload exists opens the write end. Source: proc(5): "flags:" is octal,
            # O_ACCMODE is 3.
            flags = int(fdinfo.partition(b"flags:")[2].partition(b"\n")[0], 8)
            is_reading = flags & os.O_ACCMODE == os.O_RDONLY
            found.append(OpenMark((info.st_dev, info.st_ino), b"OFDLCK" in fdinfo, is_reading))
    return found


def _holds(files: list[OpenMark], marks: ProcessMatch) -> bool:
    """Return True if one of a process's descriptors holds one of the locks, or reads one of the lifelines."""
    return any(
        (one.identity in marks.locks and one.is_locked) or (one.identity in marks.lives and one.is_reading)
        for one in files
    )


def _role(pid: int, application_dir: str) -> str:
    return _role_and_directory(pid, application_dir)[0]


def _role_and_directory(pid: int, application_dir: str) -> tuple[str, str]:
    """Return the role and the directory of a process in an application, by its command line."""
    arguments = command_line(pid)
    for role in (b"am", b"task"):
        if role in arguments and b"--home" in (rest := arguments[arguments.index(role) :])[:-1]:
            directory = os.path.realpath(os.fsdecode(rest[rest.index(b"--home") + 1]))
            if os.path.join(directory, "").startswith(os.path.join(application_dir, "")):
                return role.decode(), directory
    return "", ""
