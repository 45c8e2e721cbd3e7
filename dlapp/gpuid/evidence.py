"""Whether the payload of a lease is gone: alive, gone, unknown. Only its own host can say, and unknown frees nothing.

A lease names the witnesses that can be heard about it, as JSON:

    {"task": {"pid": 4711, "start_time": 1234567, "pid_ns": 4026531836},
     "lock": {"directory": "/run/lock/dlapp", "token": "9f…", "cards": {"GPU-…": 4711}},
     "fifo": "/…/container_…/life",
     "docker": {"host": "unix:///var/run/docker.sock", "label": "dlapp.container=container_…"}}

    task     the process that took the lease. Its pid alone says nothing, pids come again; with its start time it does.
    lock     the files of its cards (`dlapp.gpuid.records`), with their inodes: task, guardian and a plain payload hold
             them locked (an inherited open file description), and the lease's token stands in them.
    fifo     the lifeline that a payload reads: opening it for writing fails with ENXIO exactly when no reader is left.
    docker   the label of its containers. One that is only created may still be started by a call on its way: it counts
             as alive until it is removed.
    cards    not written, always asked: a process that computes on one of the lease's cards, by NVML.

One that says alive is believed. Else one that says unknown is: a pid of another pid namespace, a /proc that hides other
users' processes, a dockerd that is down, an NVML that fails. Gone is gone only by all of them, with one exception: a
lifeline that was removed together with its directory, as a NodeManager does after a container, or that lies in the home
of another user, says nothing; what dockerd says of the label stands for it. Its only writer was the task, and who reads
it ends when the task does.

A session of ZooKeeper that expired is no witness. Nothing outlives its boot: another boot id ends every lease.

Source: fifo(7), fcntl(2) (open file description locks), proc(5) (stat, hidepid), kill(2).
"""

from __future__ import annotations

import errno
import functools
import os
import stat
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from dlapp.gpuid import records
from dlapp.gpuid.finding import ALIVE, GONE, UNKNOWN, Finding

if TYPE_CHECKING:
    from dlapp.gpuid.containers import Found


class _Silent(NamedTuple):
    """A witness that cannot speak, which another may stand for."""

    why: str


class Dockers(Protocol):
    """What is asked of dockerd; `dlapp.gpuid.containers.Docker`."""

    def with_label(self, label: str) -> list[Found]:
        """See there."""

    def remove(self, container: str) -> None:
        """See there."""


def _docker(host: str) -> Dockers:
    from dlapp.gpuid.containers import Docker

    return Docker(host)


def _cards_of_nvml(uuids: Iterable[str]) -> Finding:
    from dlapp.gpuid.computing import processes_on

    return processes_on(uuids)


class Witnesses:
    """Hears the witnesses of this host.

    Args:
        cards: uuids -> whether a process computes on one of them.
        docker: dockerd's address -> who answers there.
        boot_id: of this boot.
    """

    def __init__(
        self,
        *,
        cards: Callable[[Iterable[str]], Finding] = _cards_of_nvml,
        docker: Callable[[str], Dockers] = _docker,
        boot_id: str | None = None,
    ) -> None:
        self.boot_id = this_boot_id() if boot_id is None else boot_id
        self._cards, self._docker = cards, docker

    def judge(self, evidence: Mapping[str, Any], boot_id: str, uuids: Iterable[str] = ()) -> Finding:
        """Whether the payload of a lease is gone.

        Args:
            evidence, boot_id, uuids: as the lease has them.
        """
        if boot_id and self.boot_id and boot_id != self.boot_id:
            return Finding(GONE)
        task, lock, fifo, docker = (evidence.get(name) for name in ("task", "lock", "fifo", "docker"))
        if all(one is None for one in (task, lock, fifo, docker)):
            return Finding(UNKNOWN, "its record names no evidence of its payload")
        found: list[Finding] = []
        if task is not None:
            found.append(_task(task))
        if lock is not None:
            found.append(_lock(lock))
        of_docker = None if docker is None else self._containers(docker)
        if of_docker is not None:
            found.append(of_docker)
        if fifo is not None:
            of_fifo = _fifo(fifo)
            if not isinstance(of_fifo, _Silent):
                found.append(of_fifo)
            elif of_docker is None or of_docker.state != GONE:
                found.append(Finding(UNKNOWN, of_fifo.why))
        if all(one.state == GONE for one in found):
            found.append(self._cards(uuids))
        for state in (ALIVE, UNKNOWN):
            for one in found:
                if one.state == state:
                    return one
        return Finding(GONE)

    def end_what_is_left(self, evidence: Mapping[str, Any], boot_id: str) -> bool:
        """Remove the containers of a lease whose task is seen to be gone, the created ones included.

        Returns:
            Whether anything was removed, so that judging anew may help.
        """
        task, lock, docker = (evidence.get(name) for name in ("task", "lock", "docker"))
        if docker is None or task is None or (boot_id and boot_id != self.boot_id):
            return False
        if _task(task).state != GONE or (lock is not None and _lock(lock).state == ALIVE):
            return False
        from dlapp.gpuid.containers import DockerSilent

        try:
            host, label = _text(docker, "host", "Docker"), _text(docker, "label", "Docker")
            daemon = self._docker(host)
            left = daemon.with_label(label)
            for one in left:
                daemon.remove(one.id)
        except (DockerSilent, ValueError):
            return False
        return bool(left)

    def _containers(self, docker: Any) -> Finding:
        from dlapp.gpuid.containers import DockerSilent

        try:
            found = self._docker(_text(docker, "host", "Docker")).with_label(_text(docker, "label", "Docker"))
        except (DockerSilent, ValueError) as error:
            return Finding(UNKNOWN, str(error))
        if found:
            return Finding(ALIVE, f"its container {found[0].id[:12]} is {found[0].state or 'there'}")
        return Finding(GONE)


def this_boot_id() -> str:
    """The boot id of this machine; empty where it has none."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


@functools.cache
def _this_task() -> dict[str, int]:
    pid = os.getpid()
    fields = _stat_of(pid)
    return {
        "pid": pid,
        "start_time": int(fields[19]) if fields else -1,
        "pid_ns": os.stat("/proc/self/ns/pid").st_ino,
    }


os.register_at_fork(after_in_child=_this_task.cache_clear)


def this_task() -> dict[str, int]:
    """This process as evidence names it."""
    return dict(_this_task())


# ---- one witness ----


def _task(task: Any) -> Finding:
    try:
        pid, start_time, pid_ns = (_number(task, name) for name in ("pid", "start_time", "pid_ns"))
        if pid < 1:
            raise ValueError(f"the pid of its task is {pid}")
        if os.stat("/proc/self/ns/pid").st_ino != pid_ns:
            return Finding(UNKNOWN, f"its task {pid} is in another pid namespace")
    except (ValueError, OSError) as error:
        return Finding(UNKNOWN, f"its task cannot be looked for: {error}")
    try:
        # Where /proc hides other users' processes (hidepid), kill still tells "none" from "not yours".
        os.kill(pid, 0)
    except ProcessLookupError:
        return Finding(GONE)
    except (PermissionError, OverflowError):
        pass
    fields = _stat_of(pid)
    if fields is None:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return Finding(GONE)
        except (PermissionError, OverflowError):
            pass
        return Finding(UNKNOWN, f"a process {pid} is there, /proc does not show it to us")
    if int(fields[19]) != start_time:
        return Finding(GONE)
    # A zombie has let go of everything, unless its first thread ended before the others.
    if fields[0] in "ZX" and int(fields[17]) <= 1:
        return Finding(GONE)
    return Finding(ALIVE, f"its task {pid} is running", at_work=True)


def _stat_of(pid: int) -> list[str] | None:
    """/proc/<pid>/stat from the third field (state) on; None: it cannot be read."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return fields if len(fields) > 19 else None


def _lock(lock: Any) -> Finding:
    try:
        directory, token = _text(lock, "directory", "lock"), _text(lock, "token", "lock")
        cards = lock.get("cards")
        if not isinstance(cards, dict) or not cards or any("/" in name for name in cards):
            raise ValueError(f"the cards of its lock are {cards!r:.40}")
    except ValueError as error:
        return Finding(UNKNOWN, str(error))
    finding = Finding(GONE)
    for name, inode in cards.items():
        one = _locked_card(f"{directory}/{name}", inode, token)
        if one.state == ALIVE:
            return one
        finding = one if one.state == UNKNOWN else finding
    return finding


def _locked_card(path: str, inode: Any, token: str) -> Finding:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except (OSError, ValueError) as error:
        return Finding(UNKNOWN, f"its lock {path}: {error.strerror if isinstance(error, OSError) else error}")
    try:
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode):
            return Finding(UNKNOWN, f"its lock {path} is no plain file")
        if about.st_ino != inode:
            # Its processes may hold the one that was there before: the number is not given anew while one does.
            return Finding(UNKNOWN, f"its lock {path} was removed")
        if not records.is_locked(fd, records.LEASED):
            return Finding(GONE)
        page = records.read_record(fd, records.LEASED)
        # Another's lease of the same card: of one that knows only the machine, and came when ours was over.
        if page is not None and page.get("token", token) != token:
            return Finding(GONE)
    except OSError as error:
        return Finding(UNKNOWN, f"its lock {path}: {error.strerror}")
    finally:
        os.close(fd)
    return Finding(ALIVE, "a process of it still holds its lock")


def _fifo(path: Any) -> Finding | _Silent:
    if not isinstance(path, str):
        return Finding(UNKNOWN, "its lifeline is no path")
    try:
        fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return Finding(GONE)
        # Not there, or not to be seen by us, is no proof: somebody may have it open.
        why = f"its lifeline {path}: {error.strerror}"
        return _Silent(why) if error.errno in (errno.ENOENT, errno.EACCES) else Finding(UNKNOWN, why)
    is_fifo = stat.S_ISFIFO(os.fstat(fd).st_mode)
    os.close(fd)
    return Finding(ALIVE, "its payload is still running") if is_fifo else Finding(UNKNOWN, f"{path} is no lifeline")


def _number(whole: Any, name: str) -> int:
    value = whole.get(name) if isinstance(whole, dict) else None
    if type(value) is not int:
        raise ValueError(f"its {name} is {value!r:.40}")
    return value


def _text(whole: Any, name: str, of: str) -> str:
    value = whole.get(name) if isinstance(whole, dict) else None
    if not isinstance(value, str) or not value:
        raise ValueError(f"the {name} of its {of} is {value!r:.40}")
    return value
