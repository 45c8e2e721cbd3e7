"""Settings that a process inherits from the command that started it: limits, priority, scheduling policy, CPU set.

The runner serves all applications of a user, so it must not keep those of the command that happened to start it. A
program has those of the command that submitted it. Source: getrlimit(2), setpriority(2), sched_setscheduler(2),
sched_setaffinity(2).
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Mapping
from typing import Any

_LIMITS = ("AS", "CORE", "CPU", "DATA", "FSIZE", "MEMLOCK", "NOFILE", "NPROC", "RSS", "STACK")
_OF_A_PROGRAM = frozenset(_LIMITS) - {"CPU", "FSIZE"}
"""The others would end the task, too, which computes and stores for its program."""
_POLICIES = (os.SCHED_BATCH, os.SCHED_IDLE)
"""Policies of a program, below the usual one. A program with a real-time policy could keep the task from running."""


def caller_settings() -> dict[str, Any]:
    """Return the soft limits, nice value, scheduling policy and CPU set of this process, in a form for JSON.

    A CPU set is included only if it leaves out CPUs that this process could use.
    """
    found: dict[str, Any] = {"limits": {name: _limit(name)[0] for name in _LIMITS if name in _OF_A_PROGRAM}}
    if nice := os.getpriority(os.PRIO_PROCESS, 0):
        found["nice"] = nice
    if (policy := os.sched_getscheduler(0)) in _POLICIES:
        found["policy"] = policy
    if len(cpus := os.sched_getaffinity(0)) < usable_cpus():
        found["cpus"] = sorted(cpus)
    return found


def apply_settings(settings: Mapping[str, Any]) -> None:
    """Apply what `caller_settings` returned in another process, as far as permitted."""
    for name, soft in settings.get("limits", {}).items():
        if name in _OF_A_PROGRAM:
            _set_limit(name, soft)
    if "nice" in settings:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, settings["nice"])
    if settings.get("policy") in _POLICIES:
        _set_policy(settings["policy"])
    if "cpus" in settings:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, settings["cpus"])


def forget_caller() -> None:
    """Reset the soft limits to the hard ones, the nice value to 0, the scheduling policy to the usual one and the CPU
    set to all CPUs, as far as permitted.

    A process without privileges can neither raise a hard limit nor lower its nice value, nor leave SCHED_IDLE.
    """
    for name in _LIMITS:
        _set_limit(name, resource.RLIM_INFINITY)
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, 0)
    _set_policy(os.SCHED_OTHER)
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, _all_cpus())


def usable_cpus() -> int:
    """Return how many CPUs the kernel lets this process use, also if the caller has limited its CPU set (taskset).

    The CPU set of this thread is widened for a moment: the kernel leaves out what a cgroup (cpuset) does not allow.
    """
    own = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, _all_cpus())
        return len(os.sched_getaffinity(0))
    except OSError:
        return len(own)
    finally:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, own)


def _limit(name: str) -> tuple[int, int]:
    return resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))


def _set_limit(name: str, soft: int) -> None:
    """Set a soft limit, to the hard one if it is higher; RLIM_INFINITY is -1."""
    with contextlib.suppress(OSError, ValueError):
        _, hard = _limit(name)
        if soft == resource.RLIM_INFINITY or (hard != resource.RLIM_INFINITY and soft > hard):
            soft = hard
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (soft, hard))


def _set_policy(policy: int) -> None:
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, policy, os.sched_param(0))


def _all_cpus() -> range:
    return range(os.sysconf("SC_NPROCESSORS_CONF"))
