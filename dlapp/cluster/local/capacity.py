"""Capacity of this machine: memory and vcores from the kernel, a cgroup's limits, the configuration.

GPUs are not counted here: what can be leased is what the ledger says (`dlapp.gpuid`).
"""

from __future__ import annotations

import os

from dlapp.system.machine import cgroup_directories


def memory_mib(root: str = "/") -> int:
    """The machine's memory, or less where a cgroup of ours has a limit [MiB]."""
    limits = [_total_memory_bytes(root)]
    for directory in cgroup_directories(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            if (text := _read(os.path.join(directory, name))).isdigit():
                limits.append(int(text))
    return max(1, min(limits) >> 20)


MIN_VCORES = 8
"""What a small machine counts as. A vcore is a share of time, not a core, and four containers on a laptop of two cores
are slow, not impossible. Source: yarn-default.xml, yarn.nodemanager.resource.cpu-vcores, 8 where it is not told."""


def vcores(root: str = "/", *, allowed: int | None = None, online: int | None = None) -> int:
    """Return the vcores to give where none are configured.

    They are one for each core, and `MIN_VCORES` at least. Where we may use only a part of the machine (a cgroup's
    quota, an affinity), they are that part: who set the limit wants no more to run here.

    Args:
        root: where /proc and the cgroups are.
        allowed: how many cores are in our affinity; None: as the kernel says.
        online: how many cores the machine has; None: as the kernel says.
    """
    allowed = len(os.sched_getaffinity(0)) if allowed is None else allowed
    online = (os.cpu_count() or 1) if online is None else online
    limits = [quota] if (quota := _cpu_quota(root)) is not None else []
    limits += [allowed] if allowed < online else []
    return max(1, min(limits)) if limits else max(MIN_VCORES, online)


def cores() -> int:
    """Return how many of our processes can work at the same time; at least 1."""
    allowed, quota = len(os.sched_getaffinity(0)), _cpu_quota("/")
    return max(1, allowed if quota is None else min(allowed, quota))


def _cpu_quota(root: str) -> int | None:
    """Return the whole cores that our cgroups may use, rounded down; None: as many as there are."""
    quotas = []
    for directory in cgroup_directories(root, "cpu"):
        quota, _, period = _read(os.path.join(directory, "cpu.max")).partition(" ")
        if not quota:
            quota = _read(os.path.join(directory, "cpu.cfs_quota_us"))
            period = _read(os.path.join(directory, "cpu.cfs_period_us"))
        # "max" in version 2 and -1 in version 1 mean: no quota.
        if quota.isdigit() and period.isdigit() and int(period) > 0:
            quotas.append(int(quota) // int(period))
    return min(quotas, default=None)


def _total_memory_bytes(root: str) -> int:
    # Source: proc(5), /proc/meminfo, "MemTotal:  24684084 kB".
    for line in _read(os.path.join(root, "proc/meminfo")).splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) << 10
    return 1 << 62


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read().strip()
    except OSError:
        return ""
