"""Probes of a lease's payload: alive, gone, unknown. Only its own host can decide, and unknown frees nothing.

A lease names its sources of evidence (probes), as JSON:

    {"task": {"pid": 4711, "start_time": 1234567, "pid_ns": 4026531836},
     "lock": {"directory": "/run/lock/dlapp", "token": "9f…", "cards": {"GPU-…": 4711}},
     "fifo": "/…/container_…/life",
     "docker": {"host": "unix:///var/run/docker.sock", "label": "dlapp.container=container_…"},
     "cgroup": "/sys/fs/cgroup/hadoop-yarn/container_…"}

    task     the process that took the lease, identified by pid and start time, as pids are reused.
    lock     the records of its devices (`dlapp.gpuid.stores.device_files`): the task, the guardian and a plain payload
             hold them and their devices' files locked (inherited open file descriptions), and they contain the lease's
             token.
    fifo     the lifeline that a payload reads: opening it for writing fails with ENXIO exactly if it has no reader.
    docker   the label of its containers. A created container may still be started by a pending call: it counts as
             alive until it is removed. Only this process's own dockerd is queried, whatever address the record
             contains.
    cgroup   the container's cgroup, if YARN made one. A cgroup cannot be removed while it has processes, so a missing
             one proves the end of a task and a lock that cannot be checked.
    GPUs     not in the record, always checked: processes that compute on the lease's GPUs, by NVML.

If one probe says alive, the result is alive. Otherwise, if one says unknown, it is unknown: a pid of another pid
namespace, a /proc that hides other users' processes, a dockerd that is down, an NVML that fails. It is gone only if all
say so, with one exception: a lifeline that was removed together with its directory, as a NodeManager does after a
container, or that is in another user's home directory, says nothing; dockerd's answer about the label replaces it. Its
only writer was the task, and its readers end when the task does.

The content of a record is untrusted data of its author, never an instruction. It counts only for its owner: a task
must run with the owner's uid, a lifeline must be a FIFO of the owner, a container must have our labels with that uid.
If all of this holds and the task is gone, anyone who may use Docker may remove its leftover containers.

An expired ZooKeeper session is no evidence. No process survives a reboot: a lease of another boot id has ended.

Source: fifo(7), fcntl(2) (open file description locks), proc(5) (stat, hidepid), kill(2).
"""

from __future__ import annotations

import functools
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from dlapp.gpuid.liveness.result import ALIVE, GONE, UNKNOWN, Liveness
from dlapp.gpuid.stores.device_files import LEASED, Directory
from dlapp.system import machine
from dlapp.system.files import UntrustedFile, has_reader
from dlapp.system.processes.proc import process_stat, real_uid
from dlapp.system.shared_directory import open_shared_directory

if TYPE_CHECKING:
    from dlapp.gpuid.health.nvml_subprocess import NvmlProcess
    from dlapp.net.dockerd import ContainerSummary, Dockerd


class _Silent(NamedTuple):
    """Unavailable probe that another one may replace."""

    why: str


CHECK_TIMEOUT_S = 5.0
"""Default time limit for checking the probes."""
_LIFELINE_S = 1.0
"""Time limit for opening another user's lifeline."""
_ASKED: dict[int | None, threading.Thread] = {}
"""Threads that open lifelines, by the owner of these. A thread that hangs affects only its owner."""
_UID = "dlapp.uid"
_LABEL = re.compile(r"dlapp\.container=container_[A-Za-z0-9_-]{1,200}", re.ASCII)


def _docker(host: str) -> Dockerd:
    from dlapp.net.dockerd import Dockerd

    return Dockerd(host, CHECK_TIMEOUT_S)


class LivenessProbes:
    """The probes of this host.

    Args:
        devices: uuids -> whether a process computes on one of them; None: as NVML shows.
        nvml: calls NVML; None: a process of its own.
        docker: dockerd's address -> its client.
        docker_host: address of this process's own dockerd, the only one that is asked; empty: none.
        boot_id: current boot id.
    """

    def __init__(
        self,
        *,
        devices: Callable[[Iterable[str]], Liveness] | None = None,
        nvml: NvmlProcess | None = None,
        docker: Callable[[str], Any] = _docker,
        docker_host: str = "",
        boot_id: str | None = None,
    ) -> None:
        self.boot_id = machine.boot_id() if boot_id is None else boot_id
        self._devices, self._docker, self._docker_host = devices or self._processes_on, docker, docker_host
        self._nvml = nvml

    def check(
        self,
        evidence: Mapping[str, Any],
        boot_id: str,
        uuids: Iterable[str] = (),
        *,
        owner: int | None = None,
        until: float | None = None,
    ) -> Liveness:
        """Return whether the payload of a lease is gone.

        Args:
            evidence: from the lease.
            boot_id: from the lease.
            uuids: devices of the lease.
            owner: uid of the record's owner, as reported by the kernel; None: the store has no owners, and the owner in
                the evidence is used.
            until: time limit for Docker [s, monotonic]; None: `CHECK_TIMEOUT_S` from now.
        """
        if boot_id and self.boot_id and boot_id != self.boot_id:
            return Liveness(GONE)
        task, lock, fifo, docker, cgroup = (evidence.get(name) for name in ("task", "lock", "fifo", "docker", "cgroup"))
        if all(one is None for one in (task, lock, fifo, docker)):
            return Liveness(UNKNOWN, "its record names no evidence of its payload")
        owner = _owner_of(task) if owner is None else owner
        until = time.monotonic() + CHECK_TIMEOUT_S if until is None else until
        found = [] if task is None else [_task(task, owner)]
        if lock is not None:
            found.append(_lock(lock))
        # It contained all children of the task. A path never proves life: it may be another cgroup's.
        if cgroup is not None and _is_removed_cgroup(cgroup):
            found = [one for one in found if one.state != UNKNOWN]
        of_docker = None if docker is None else self._containers(evidence, owner, until)
        if of_docker is not None:
            found.append(of_docker)
        if fifo is not None:
            of_fifo = _fifo(fifo, owner, until)
            if not isinstance(of_fifo, _Silent):
                found.append(of_fifo)
            elif of_docker is None or of_docker.state != GONE:
                found.append(Liveness(UNKNOWN, of_fifo.why))
        if all(one.state == GONE for one in found):
            found.append(self._devices(uuids))
        decisive = (one for state in (ALIVE, UNKNOWN) for one in found if one.state == state)
        return next(decisive, Liveness(GONE))

    def check_gpu_processes(self, uuids: Iterable[str]) -> Liveness:
        """Return whether a process computes on one of these devices."""
        return self._devices(uuids)

    def _processes_on(self, uuids: Iterable[str]) -> Liveness:
        from dlapp.gpuid.health.nvml_subprocess import NvmlProcess
        from dlapp.gpuid.liveness.gpu_processes import processes_on

        self._nvml = self._nvml or NvmlProcess()
        return processes_on(uuids, self._nvml)

    def remove_leftovers(self, evidence: Mapping[str, Any], boot_id: str, *, owner: int, until: float) -> bool:
        """Remove the containers of a lease whose task is gone, including those only created.

        Only containers at this process's own dockerd, with our label and the uid of the record's owner, are removed.

        Args:
            evidence: from the lease.
            boot_id: from the lease.
            owner: uid of the record's owner, as reported by the kernel.
            until: time limit [s, monotonic].

        Returns:
            Whether anything was removed, so that a new check may give another result.
        """
        from dlapp.net.dockerd import DockerError

        task, lock = evidence.get("task"), evidence.get("lock")
        if task is None or (boot_id and boot_id != self.boot_id):
            return False
        if _task(task, owner).state != GONE or (lock is not None and _lock(lock).state == ALIVE):
            return False
        removed = False
        try:
            daemon, left = self._left(evidence, owner, until)
            for one in left:
                daemon.remove(one.id, until=until)
                removed = True
        except (DockerError, ValueError):
            pass
        return removed

    def _containers(self, evidence: Mapping[str, Any], owner: int | None, until: float) -> Liveness:
        try:
            found = self._left(evidence, owner, until)[1]
        except ValueError as error:
            return Liveness(UNKNOWN, str(error))
        if found:
            return Liveness(ALIVE, f"its container {found[0].id[:12]} is {found[0].state or 'there'}")
        return Liveness(GONE)

    def _left(
        self, evidence: Mapping[str, Any], owner: int | None, until: float
    ) -> tuple[Dockerd, list[ContainerSummary]]:
        """Return this process's dockerd and the lease's containers there. Raises ValueError: they cannot be
        determined."""
        from dlapp.net.dockerd import DockerError

        if (label := docker_label(evidence)) is None:
            raise ValueError("the label of its containers is not dlapp's")
        host = evidence["docker"].get("host")
        if not self._docker_host or host != self._docker_host:
            host = str(host)[:100]
            raise ValueError(f"its containers are at {host!r}; only {self._docker_host or 'none'!r} is asked here")
        try:
            daemon = self._docker(self._docker_host)
            found = daemon.labelled([label], until=until)
        except DockerError as error:
            raise ValueError(f"dockerd at {self._docker_host}: {error}") from error
        return daemon, [one for one in found if owner is None or one.labels.get(_UID) == str(owner)]


def docker_label(evidence: Mapping[str, Any]) -> str | None:
    """Return the label of a lease's containers, ``dlapp.container=…``; None: no label, or not one of ours."""
    docker = evidence.get("docker")
    label = docker.get("label") if isinstance(docker, dict) else None
    return label if isinstance(label, str) and _LABEL.fullmatch(label) else None


@functools.cache
def _this_task() -> dict[str, int]:
    pid = os.getpid()
    found = process_stat(pid)
    return {
        "pid": pid,
        "start_time": found.started if found else -1,
        "pid_ns": os.stat("/proc/self/ns/pid").st_ino,
        "uid": os.getuid(),
    }


_own_cgroups = functools.lru_cache(maxsize=1)(machine.own_cgroups)
"""Read once: the process of a container stays in its cgroup."""
for _cached in (_this_task, _own_cgroups):
    os.register_at_fork(after_in_child=_cached.cache_clear)


def this_task() -> dict[str, int]:
    """Return this process in the form used in evidence."""
    return dict(_this_task())


# ---- one probe ----


def _owner_of(task: Any) -> int | None:
    uid = task.get("uid") if isinstance(task, dict) else None
    return uid if type(uid) is int else None


def _task(task: Any, owner: int | None = None) -> Liveness:
    try:
        pid, start_time, pid_ns = (_number(task, name) for name in ("pid", "start_time", "pid_ns"))
        if pid < 1:
            raise ValueError(f"the pid of its task is {pid}")
        if os.stat("/proc/self/ns/pid").st_ino != pid_ns:
            return Liveness(UNKNOWN, f"its task {pid} is in another pid namespace")
    except (ValueError, OSError) as error:
        return Liveness(UNKNOWN, f"its task cannot be searched for: {error}")
    if _is_dead(pid):
        return Liveness(GONE)
    found = process_stat(pid)
    if found is None:
        if _is_dead(pid):
            return Liveness(GONE)
        return Liveness(UNKNOWN, f"a process {pid} is there, /proc does not show it to us")
    if found.started != start_time:
        return Liveness(GONE)
    # A zombie has closed everything, unless its first thread ended before the others.
    if found.is_dead and found.threads <= 1:
        return Liveness(GONE)
    if owner is not None and (uid := real_uid(pid)) is not None and uid != owner:
        return Liveness(GONE)  # a process of another user is not this record's task
    return Liveness(ALIVE, f"its task {pid} is running", is_task_alive=True)


def _is_dead(pid: int) -> bool:
    """Return whether a process does not exist, even if /proc hides those of other users (hidepid)."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        pass
    return False


def _lock(lock: Any) -> Liveness:
    try:
        path, token = _text(lock, "directory", "lock"), _text(lock, "token", "lock")
        devices = lock.get("cards")
        if not isinstance(devices, dict) or not devices or any("/" in name for name in devices):
            raise ValueError(f"the GPUs of its lock are {devices!r:.40}")
        fd = open_shared_directory(path)
    except (ValueError, OSError) as error:
        return Liveness(UNKNOWN, f"its lock: {error}" if isinstance(error, OSError) else str(error))
    try:
        directory = Directory(fd, path, {})
        live = [
            one for those in directory.entries(set(devices)).values() for one in those if one.is_live and one.is_lease
        ]
        if any(one.record.get("token") == token for one in live):
            return Liveness(ALIVE, "a process of it still holds its lock")
        if lock.get("records") is True:
            return Liveness(GONE)  # a process that inherited the devices' locks also inherited the records' locks
        # A lease of an earlier dlapp, which wrote no records.
        for name, inode in devices.items():
            if directory.inode(name) != inode:
                return Liveness(UNKNOWN, f"its lock {path}/{name} was removed")
            if directory.locked(name)[LEASED] and not any(one.device == name for one in live):
                return Liveness(ALIVE, "a process of it still holds its lock")
    except OSError as error:
        return Liveness(UNKNOWN, f"its lock {path}: {error.strerror}")
    finally:
        os.close(fd)
    return Liveness(GONE)


def cgroup_of_container(container: str, root: str = "/") -> str | None:
    """Return the directory of this process's cgroup, if it belongs to one YARN container only; None: it does not.

    Args:
        container: id of the container, by which YARN names the cgroup.
        root: path of /proc.

    Source: cgroups(7); CGroupsHandlerImpl.getPathForCGroup (``<hierarchy>/container_…``).
    """
    if container not in _own_cgroups(root):  # mounts are read only where it matters
        return None
    paths = [path for one in ("cpu", "memory", "devices") for path in machine.cgroup_directories(root, one)]
    return next((path for path in paths if os.path.basename(path) == container), None)


def _is_removed_cgroup(path: Any) -> bool:
    if not isinstance(path, str) or not path.startswith("/") or "\0" in path or ".." in path.split("/"):
        return False
    above = os.path.dirname(path)
    # If its parent is not visible, the rest of the hierarchy may not be visible here either.
    is_visible = os.path.isdir(above) and machine.file_system_of(above)[0] in ("cgroup", "cgroup2")
    return is_visible and not os.path.lexists(path)


def _fifo(path: Any, owner: int | None, until: float) -> Liveness | _Silent:
    if not isinstance(path, str) or not path.startswith("/") or "\0" in path:
        return Liveness(UNKNOWN, "its lifeline is not a path")
    if owner == os.geteuid():
        return _reader_of(path, owner)
    # Another user chose the path: a directory in it may be a hanging file system.
    stuck = _ASKED.get(owner)
    if stuck is not None and stuck.is_alive():
        return Liveness(UNKNOWN, "its lifeline: a file system of its user does not answer")
    answers: list[Liveness | _Silent] = []
    _ASKED[owner] = asking = threading.Thread(
        target=lambda: answers.append(_reader_of(path, owner)), name="lifeline", daemon=True
    )
    asking.start()
    asking.join(max(0.0, min(_LIFELINE_S, until - time.monotonic())))
    return answers[0] if answers else Liveness(UNKNOWN, f"its lifeline {path}: no answer in time")


def _reader_of(path: str, owner: int | None) -> Liveness | _Silent:
    try:
        if has_reader(path, owners=None if owner is None else [owner]):
            return Liveness(ALIVE, "its payload is still running")
    except (FileNotFoundError, PermissionError) as error:
        # Missing or not visible is no proof: a process may have it open.
        return _Silent(f"its lifeline {path}: {error.strerror}")
    except UntrustedFile as error:
        return Liveness(UNKNOWN, f"its lifeline {error}")
    except OSError as error:
        return Liveness(UNKNOWN, f"its lifeline {path}: {error.strerror}")
    return Liveness(GONE)


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
