"""System calls of Linux that Python 3.11 does not have."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterable

_libc = ctypes.CDLL(None, use_errno=True)

# Source: linux/prctl.h, linux/sched.h, sys/mount.h, sys/inotify.h
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_CLONE_NEWNS = 0x00020000
_CLONE_NEWPID = 0x20000000
_CLONE_NEWNET = 0x40000000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 2, 4, 8
_MS_REC, _MS_SLAVE = 16384, 1 << 19
_IN_MODIFY = 0x00000002


def _checked(result: int, call: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")


def become_subreaper() -> None:
    """Make this process adopt orphaned descendants, instead of init, from now on."""
    _checked(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl")


def die_with_parent(signal_number: int) -> None:
    """Make the kernel send this process a signal when its parent dies. Kept across exec, not across fork."""
    _checked(_libc.prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0), "prctl")


def unshare_pids_and_mounts() -> None:
    """Make the next child process 1 of a new pid namespace; later mounts are visible to this process only.

    Later mounts of the host still appear here.

    Raises:
        OSError: not permitted: this needs CAP_SYS_ADMIN.
    """
    _checked(_libc.unshare(_CLONE_NEWNS | _CLONE_NEWPID), "unshare")
    _checked(_libc.mount(None, b"/", None, ctypes.c_ulong(_MS_REC | _MS_SLAVE), None), "mount /")


def mount_own_proc() -> None:
    """Make /proc show the pid namespace of this process. Raises OSError if that is not permitted."""
    flags = ctypes.c_ulong(_MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    _checked(_libc.mount(b"proc", b"/proc", b"proc", flags, None), "mount /proc")


def begin_pids_after(pid: int) -> None:
    """Give the next process of this pid namespace a pid after another one, where the kernel permits it.

    Source: Documentation/admin-guide/sysctl/kernel.rst, ns_last_pid; it needs CAP_SYS_ADMIN and a writable /proc/sys.
    """
    with contextlib.suppress(OSError), open("/proc/sys/kernel/ns_last_pid", "w", encoding="ascii") as file:
        file.write(str(pid))


def watch_writes(paths: Iterable[str]) -> int:
    """Return a non-blocking descriptor that becomes readable when one of the files is written to (inotify).

    Raises:
        OSError: a file is missing, or this user has reached the kernel's limit of watches.
    """
    fd: int = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    _checked(min(fd, 0), "inotify_init1")
    try:
        for path in paths:
            _checked(min(_libc.inotify_add_watch(fd, os.fsencode(path), _IN_MODIFY), 0), "inotify_add_watch")
    except OSError:
        os.close(fd)
        raise
    return fd


def return_to_pid_namespace(fd: int) -> None:
    """Create children in the pid namespace of ``fd`` (of /proc/self/ns/pid) again."""
    _checked(_libc.setns(fd, _CLONE_NEWPID), "setns")


def enter_network(fd: int) -> None:
    """Create sockets of this thread in the network namespace of ``fd`` (of /proc/PID/ns/net) from now on.

    Raises:
        OSError: not permitted: this needs CAP_SYS_ADMIN.
    """
    _checked(_libc.setns(fd, _CLONE_NEWNET), "setns")
