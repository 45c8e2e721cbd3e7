"""Requirements of the embedded engine on its machine, for dlapp-doctor."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from dlapp.config import Config
from dlapp.doctor.findings import FAIL, REQUEST_TIMEOUT_S, Check, CheckContext, Finding, failed, passed, warned
from dlapp.errors import ConfigError
from dlapp.system import locks
from dlapp.system.disk_space import full_disk, is_noexec
from dlapp.system.files import closing_fd
from dlapp.system.text import counted, human_size, short_duration
from dlapp.version import __version__

if TYPE_CHECKING:
    from dlapp.cluster.local.state import StateDir

ENOUGH_FREE_BYTES = 1 << 30
ENOUGH_FREE_FILES = 1000
LINGER_DIR = "/var/lib/systemd/linger"
_LOGIND = "org.freedesktop.login1"


def checks(context: CheckContext) -> list[Check]:
    """Check the state directory, its disk and locks, the queue, the limits on this machine's resources, and logouts."""
    return [
        Check("local.state_dir", functools.partial(_state, context.config)),
        Check("local.capacity", functools.partial(_capacity, context)),
        Check("local.logout", _logout),
    ]


def _state(config: Config) -> Iterator[Finding]:
    from dlapp.cluster.local.queue import Queue
    from dlapp.cluster.local.state import DATABASE, is_locked, machine_name, open_lock, open_state
    from dlapp.system.machine import file_system_of

    # Refuses a network file system, another user's directory and a file, each with the key that repairs it.
    state = open_state(config.local.state_dir, shared=config.local.shared)
    kind, _ = file_system_of(state.path)
    shared = "shared by its group" if state.shared else "of this user"
    yield passed("local.state_dir", f"{state.path}: on {kind or 'a local disk'}, {shared}")
    if kind in ("tmpfs", "ramfs"):
        yield warned(
            "local.state_dir.kept", f"it lies in memory ({kind}): a restart empties it", "set local.state_dir to a disk"
        )
    before = os.path.join(os.path.dirname(state.path), machine_name(), DATABASE)
    if state.shared and os.path.lexists(before):
        yield warned(
            "local.state_dir.before",
            f"{before}: the shared queue of an older dlapp; what waits there is not run any more",
            f"submit it again, and as root remove {os.path.dirname(before)}",
        )
    if is_noexec(state.path):
        yield failed(
            "local.state_dir.exec",
            f"{state.path}: its file system executes nothing (noexec), and no start script in a workspace there",
            "set local.state_dir to a directory on another disk",
        )
    disk = _disk(state)
    yield disk
    if disk.verdict == FAIL:
        return  # nothing below can be written either

    path = os.path.join(state.path, f".doctor-{os.getpid()}")
    mine = open_lock(path)
    try:
        with closing_fd(os.open(path, os.O_RDWR | os.O_CLOEXEC)) as other:
            works = locks.try_lock(mine) and not locks.try_lock(other) and is_locked(path)
    finally:
        os.close(mine)
        os.unlink(path)
    if works:
        yield passed("local.locks", "a lock that is held is seen, and not given twice")
    else:
        yield failed(
            "local.locks",
            f"{state.path}: its file system gives one lock twice",
            "set local.state_dir to a directory on a local disk",
        )

    with Queue(state) as queue:
        unsettled = queue.count_unsettled(os.geteuid())
    yield passed("local.queue", f"embedded engine {__version__}; {unsettled} of your applications wait or run")
    yield from _policy(state)


def _policy(state: StateDir) -> Iterator[Finding]:
    """Yield the queue rules for this user; errors in the operator's file are a finding of the node."""
    from dlapp.cluster.local import queue_state

    try:
        policy = queue_state.read_policy()
    except ConfigError:
        return
    most, queued, uid = policy.gcores_of(state.uid), policy.user_queued, state.uid
    words = [
        "no limit of GPUs" if most is None else f"{counted(most, 'GPUs')} at a time for your applications",
        "no limit of waiting ones" if queued is None else f"{queued} of them may wait",
        f"waiting raises a priority every {short_duration(int(policy.raise_after_s))}",
    ]
    if state.shared:
        unit = "GPU-hours" if policy.charge == "gcores" else "core-hours"
        words.append(f"priorities above {policy.cap_of(uid)} do not count against other users")
        half = short_duration(int(policy.half_life_s))
        words.append(f"who used fewer {unit} recently comes first, each counts half after {half}")
    has_file = os.path.lexists(queue_state.POLICY_FILE)
    where = queue_state.POLICY_FILE if has_file else f"the defaults, there is no {queue_state.POLICY_FILE}"
    yield passed("local.policy", f"{'; '.join(words)} ({where})")


def _disk(state: StateDir) -> Finding:
    """Return whether there is space; applications wait while the queue takes the disk for full."""
    path, subject = state.path, "local.disk"
    if full := full_disk(state.database):
        return failed(subject, full, "make room, or set local.state_dir to another disk; the queue waits for it")
    there = os.statvfs(path)
    free, files = there.f_bavail * there.f_frsize, there.f_favail
    words = f"{human_size(free)} free on the disk of {path}"
    # Some file systems (btrfs) allocate inodes on demand and report none.
    few_files = there.f_files > 0 and files < ENOUGH_FREE_FILES
    if few_files:
        words = f"{files} files may still be made on the disk of {path}"
    if few_files or free < ENOUGH_FREE_BYTES:
        return warned(subject, words, "make room, or lower history.limit and storage.cache_limit")
    return passed(subject, words)


def _capacity(context: CheckContext) -> Iterator[Finding]:
    from dlapp.cluster.local.client.engine import LocalEngine

    config = context.config
    with LocalEngine(config, nvml=context.nvml) as engine:
        there = engine.capacity()
    words = f"memory {there.memory_mib} MiB, vcores {there.vcores}, gcores {there.gcores} for all applications together"
    asked = config.defaults
    if asked.memory_mib > there.memory_mib or asked.vcores > there.vcores or (asked.gcores or 0) > there.gcores:
        yield warned(
            "local.capacity",
            f"{words}: a file without [resources] asks for more",
            "lower defaults.memory, defaults.vcores or defaults.gcores, or raise local.memory, local.vcores or "
            "local.gcores",
        )
        return
    yield passed("local.capacity", words)


def _logout() -> Iterator[Finding]:
    """Yield whether a logout ends this user's processes; nothing without logind.

    Source: org.freedesktop.login1(5); logind.conf(5), KillUserProcesses: all processes of the session's scope end, with
    lingering, too. Lingering keeps only what runs below the user's own service manager.
    """
    import shlex
    import subprocess

    from dlapp.client.operations.connections import caller
    from dlapp.system.machine import own_cgroups

    names = ("KillUserProcesses", "KillOnlyUsers", "KillExcludeUsers")
    words = ["busctl", "get-property", _LOGIND, "/org/freedesktop/login1", f"{_LOGIND}.Manager", *names]
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=REQUEST_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return
    lines = done.stdout.splitlines()
    if done.returncode or len(lines) != len(names):
        return
    user, (only, but) = caller(), (shlex.split(line)[2:] for line in lines[1:])  # as 1 "root"
    is_ended = lines[0] == "b true" and user not in but and (not only or user in only)
    has_manager = f"/user@{os.geteuid()}.service/" in own_cgroups() and os.path.lexists(f"{LINGER_DIR}/{user}")
    if not is_ended or has_manager:
        yield passed("local.logout", "applications continue after a logout")
        return
    yield warned(
        "local.logout",
        f"logind ends all processes of {user} at a logout (KillUserProcesses), also applications that run",
        f"ask for KillExcludeUsers={user} in logind.conf; or run `loginctl enable-linger` once, and submit by "
        "`systemd-run --user --scope dlapp-launcher FILE`",
    )
