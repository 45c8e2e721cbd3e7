"""Resource counters of a group of processes: of all descendants of a process, from /proc, or of a container, from its
cgroup.

The counters of time and bytes only grow, so a lost reading does no harm: the next one includes it. A value that the
kernel does not provide, or not to this user, is None.

Below a process that adopts orphans, nothing is lost when a process ends: its time and its bytes are added to those of
the process that reaps it. The exception is a parent that ignores SIGCHLD. Source: proc(5); Linux, kernel/exit.c,
wait_task_zombie.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

from dlapp.system.processes.proc import read_proc
from dlapp.value import NamedTuple

N = TypeVar("N", int, float)
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_CGROUPS = "/sys/fs/cgroup"
_MAX_BYTES = 1 << 20
"""Size limit of a file of a cgroup: io.stat has a line for each disk."""


class ResourceCounters(NamedTuple):
    """One reading.

    Args:
        cpu_s: CPU time [s].
        memory_bytes: current use, without reclaimable caches.
        peak_bytes: the most memory so far, as the kernel kept it, with the files that it caches.
        read_bytes, written_bytes: from and to disks.
        received_bytes, sent_bytes: by all networks but the loopback.
        largest_process_bytes: peak memory of its largest process that has ended.
    """

    cpu_s: float | None = None
    memory_bytes: int | None = None
    peak_bytes: int | None = None
    read_bytes: int | None = None
    written_bytes: int | None = None
    received_bytes: int | None = None
    sent_bytes: int | None = None
    largest_process_bytes: int | None = None

    def updated(self, later: ResourceCounters) -> ResourceCounters:
        """Return the counters updated by a later reading; missing values are kept, and no counter decreases."""
        return ResourceCounters._make(
            old if new is None else new if old is None or name == "memory_bytes" else max(old, new)
            for name, old, new in zip(self._fields, self, later, strict=True)
        )

    def since(self, before: ResourceCounters) -> ResourceCounters:
        """Return the increase of the counters since an earlier reading."""
        return self._replace(
            cpu_s=_difference(self.cpu_s, before.cpu_s),
            read_bytes=_difference(self.read_bytes, before.read_bytes),
            written_bytes=_difference(self.written_bytes, before.written_bytes),
        )

    def plus(self, other: ResourceCounters) -> ResourceCounters:
        """Return the sum for two payloads; the largest process is the larger one of the two."""
        sums = (b if a is None else a if b is None else a + b for a, b in zip(self, other, strict=True))
        largest = max(self.largest_process_bytes or 0, other.largest_process_bytes or 0)
        return ResourceCounters._make(sums)._replace(largest_process_bytes=largest or None)


NOTHING_KNOWN = ResourceCounters()


class _ProcessCounters(NamedTuple):
    pid: int
    parent: int
    own_ticks: int
    children_ticks: int


def read_tree(root: int, *, all_ended: bool = False) -> ResourceCounters:
    """Return the counters of all descendants of a process, including those that have ended and were reaped.

    Memory is the sum of the processes' private memory plus the largest shared memory of one. Pages that a process and
    its fork still share count for each.

    Args:
        all_ended: whether all have ended, so that no other process of the machine has to be read.
    """
    processes = _tree(root, [str(root)] if all_ended else os.listdir("/proc"))
    if root not in processes:
        return NOTHING_KNOWN
    own, shared = 0, 0
    read: int | None = 0
    written: int | None = 0
    ticks = processes[root].children_ticks
    for pid, process in processes.items():
        if pid != root:
            ticks += process.own_ticks + process.children_ticks
            pages = [int(word) for word in read_proc(pid, "statm").split()[1:3]]
            if len(pages) == 2:
                own, shared = own + pages[0] - pages[1], max(shared, pages[1])
        disk = _disk_bytes(pid)
        if disk is None:
            # A process that just ended has passed them to its parent. Those of another user's process are hidden.
            if process_exists(pid):
                read = written = None
        elif read is not None and written is not None:
            read, written = read + disk[0], written + disk[1]
    return ResourceCounters(
        cpu_s=ticks / _TICKS, memory_bytes=(own + shared) * _PAGE, read_bytes=read, written_bytes=written
    )


def process_exists(pid: int) -> bool:
    """Return whether a process has an entry in /proc."""
    return os.path.exists(f"/proc/{pid}")


def _tree(root: int, names: Sequence[str]) -> dict[int, _ProcessCounters]:
    """Return a process and all its descendants, including zombies; ``names`` are those of the candidates in /proc."""
    found: dict[int, _ProcessCounters] = {}
    children: dict[int, list[int]] = {}
    for name in names:
        if name.isdigit() and (process := _read_process(int(name))) is not None:
            found[process.pid] = process
            children.setdefault(process.parent, []).append(process.pid)
    tree: dict[int, _ProcessCounters] = {}
    todo = [root]
    while todo:
        pid = todo.pop()
        if pid in found and pid not in tree:
            tree[pid] = found[pid]
            todo += children.get(pid, ())
    return tree


def _read_process(pid: int) -> _ProcessCounters | None:
    # The second field is the program's name in brackets, and may itself contain brackets and blanks.
    words = read_proc(pid, "stat").rpartition(b") ")[2].split(None, 15)
    if len(words) < 16:
        return None
    return _ProcessCounters(pid, int(words[1]), int(words[11]) + int(words[12]), int(words[13]) + int(words[14]))


def _disk_bytes(pid: int) -> tuple[int, int] | None:
    """Return the bytes that a process and its reaped children read from disks and wrote; None if unknown."""
    values = dict(line.split(b": ") for line in read_proc(pid, "io").splitlines())
    try:
        return int(values[b"read_bytes"]), int(values[b"write_bytes"])
    except KeyError:
        return None


class CgroupCounters:
    """Counters of a container, from its cgroup and its network; cgroup version 1 or 2.

    Args:
        pid: the pid of a process in it, in this process's namespace.
        name: required part of the cgroup's path, such as the container's id: a pid of another namespace, or a reused
            one, has another cgroup.
        own_network: whether the container has its own network; otherwise its traffic is unknown.
        root: where cgroups are mounted.
    """

    def __init__(self, pid: int, name: str, *, own_network: bool, root: str = _CGROUPS) -> None:
        self.pid, self._own_network = pid, own_network
        self._directory_of: dict[str, str] = {}
        for line in read_proc(pid, "cgroup").decode(errors="replace").splitlines():
            _, controllers, path = line.split(":", 2)
            if name not in path:
                continue
            for one in controllers.split(",") if controllers else ("",):
                directory = os.path.join(root, one, path.lstrip("/"))
                if os.path.isdir(directory):
                    self._directory_of[one] = directory

    @property
    def exists(self) -> bool:
        """Return True if a cgroup was found."""
        return bool(self._directory_of)

    def read(self) -> ResourceCounters:
        """Return the counters; None for everything that is gone."""
        received, sent = self._network() if self._own_network else (None, None)
        v2 = "memory" not in self._directory_of
        counters = self._read_v2() if v2 else self._read_v1()
        return counters._replace(received_bytes=received, sent_bytes=sent)

    def _read_v2(self) -> ResourceCounters:
        cpu_us = self._fields("", "cpu.stat").get("usage_usec")
        current, cached = self._number("", "memory.current"), self._fields("", "memory.stat").get("inactive_file")
        read = written = None
        if (text := self._text("", "io.stat")) is not None:
            read = written = 0
            for line in text.splitlines():
                amounts = dict(word.split("=", 1) for word in line.split()[1:] if "=" in word)
                read, written = read + int(amounts.get("rbytes", 0)), written + int(amounts.get("wbytes", 0))
        return ResourceCounters(
            cpu_s=None if cpu_us is None else cpu_us / 1e6,
            memory_bytes=_difference(current, cached),
            peak_bytes=self._number("", "memory.peak"),
            read_bytes=read,
            written_bytes=written,
        )

    def _read_v1(self) -> ResourceCounters:
        cpu_ns = self._number("cpuacct", "cpuacct.usage")
        current = self._number("memory", "memory.usage_in_bytes")
        cached = self._fields("memory", "memory.stat").get("total_inactive_file")
        read = written = None
        if (text := self._text("blkio", "blkio.throttle.io_service_bytes")) is not None:
            read = written = 0
            for line in text.splitlines():
                words = line.split()
                if len(words) == 3:
                    read += int(words[2]) * (words[1] == "Read")
                    written += int(words[2]) * (words[1] == "Write")
        return ResourceCounters(
            cpu_s=None if cpu_ns is None else cpu_ns / 1e9,
            memory_bytes=_difference(current, cached),
            peak_bytes=self._number("memory", "memory.max_usage_in_bytes"),
            read_bytes=read,
            written_bytes=written,
        )

    def _network(self) -> tuple[int | None, int | None]:
        """Return the bytes received and sent by the container's network. Source: proc(5), /proc/net/dev."""
        lines = read_proc(self.pid, "net/dev").decode(errors="replace").splitlines()[2:]
        if not lines:
            return None, None
        received = sent = 0
        for line in lines:
            name, _, rest = line.partition(":")
            if name.strip() != "lo" and len(words := rest.split()) >= 9:
                received, sent = received + int(words[0]), sent + int(words[8])
        return received, sent

    def _text(self, controller: str, name: str) -> str | None:
        directory = self._directory_of.get(controller)
        if directory is None:
            return None
        try:
            with open(os.path.join(directory, name), encoding="ascii", errors="replace") as file:
                return file.read(_MAX_BYTES)
        except OSError:
            return None

    def _number(self, controller: str, name: str) -> int | None:
        text = self._text(controller, name)
        return int(text) if text is not None and text.strip().isdigit() else None

    def _fields(self, controller: str, name: str) -> dict[str, int]:
        words = [line.split() for line in (self._text(controller, name) or "").splitlines()]
        return {one[0]: int(one[1]) for one in words if len(one) == 2 and one[1].isdigit()}


def _difference(total: N | None, part: N | None) -> N | None:
    return total if total is None or part is None else max(total - part, type(total)(0))
