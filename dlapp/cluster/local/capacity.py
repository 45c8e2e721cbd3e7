"""Capacity of this machine: memory and vcores, from the kernel and the limits of cgroups.

The number of GPUs comes from the ledger (`dlapp.gpuid`).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from dlapp.system.machine import cgroup_directories
from dlapp.system.processes.caller import usable_cpus

if TYPE_CHECKING:
    from dlapp.cluster.local.settings import RunnerSettings
    from dlapp.scheduler.amounts import Amounts


def capacity_of(settings: RunnerSettings, gcores: int) -> Amounts:
    """Return the usable amounts of this machine: as configured, or else its own, with this number of GPUs."""
    from dlapp.scheduler.amounts import Amounts  # the ApplicationMaster imports this module, but needs no amounts

    return Amounts(
        memory_mib() if settings.memory_mib is None else settings.memory_mib,
        vcores() if settings.vcores is None else settings.vcores,
        gcores,
    )


def memory_mib(root: str = "/") -> int:
    """Return the machine's memory, or the smallest limit of this process's cgroups if that is less [MiB]."""
    limits = [_total_memory_bytes(root)]
    for directory in cgroup_directories(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            if (text := _read(os.path.join(directory, name))).isdigit():
                limits.append(int(text))
    return max(1, min(limits) >> 20)


MIN_VCORES = 8
"""Minimum for a small machine. A vcore is a share of time and not a core: four containers on a laptop of two cores are
slow, but possible. Source: yarn-default.xml, yarn.nodemanager.resource.cpu-vcores, 8 by default."""


def vcores(root: str = "/", *, allowed: int | None = None, online: int | None = None) -> int:
    """Return the number of vcores if none is configured.

    It is the number of cores, but at least `MIN_VCORES`. If a cgroup (its quota, or its cpuset) limits this process to
    a part of the machine, it is that part. The CPU set of the process itself (taskset) does not count: it is that of
    whatever command started it.

    Args:
        root: directory with /proc and the cgroups.
        allowed: number of cores that the cgroup allows; None: read from the kernel.
        online: number of cores of the machine; None: read from the kernel.
    """
    allowed = usable_cpus() if allowed is None else allowed
    online = (os.cpu_count() or 1) if online is None else online
    limits = [quota] if (quota := _cpu_quota(root)) is not None else []
    limits += [allowed] if allowed < online else []
    return max(1, min(limits)) if limits else max(MIN_VCORES, online)


def cores() -> int:
    """Return how many processes can run at the same time; at least 1."""
    allowed, quota = usable_cpus(), _cpu_quota("/")
    return max(1, allowed if quota is None else min(allowed, quota))


def _cpu_quota(root: str) -> int | None:
    """Return the quota of this process's cgroups in cores, rounded down; None: no quota."""
    quotas = []
    for directory in cgroup_directories(root, "cpu"):
        quota, _, period = _read(os.path.join(directory, "cpu.max")).partition(" ")
        if not quota:
            quota = _read(os.path.join(directory, "cpu.cfs_quota_us"))
            period = _read(os.path.join(directory, "cpu.cfs_period_us"))
        # "max" in version 2, and -1 in version 1, is no quota.
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
