"""Acting as another user, as root: in a child process that has permanently become that user.

Root must not write, remove or signal anything that another user can redirect. The child has only that user's rights, so
it can do nothing that the user could not have done. It also has nothing of root's: it has its own descriptors,
environment and session, it cannot gain rights by executing a file, and the user cannot trace it.

The result is the user's data and not trusted: JSON, limited in size and time.
"""

from __future__ import annotations

import codecs
import contextlib
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from dlapp import errors
from dlapp.errors import Denied, DlappError, TimedOut, Unreachable
from dlapp.system import waits
from dlapp.system.files import write_all
from dlapp.system.owners import user_name
from dlapp.system.processes.spawn import close_all_but

MAX_ANSWER_BYTES = 64 << 20
MAX_MESSAGE = 4000
_PATH = "/usr/local/bin:/usr/bin:/bin"
_PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 4, 38
"""Source: prctl(2), linux/prctl.h."""
_NO_GROUP = 65534
"""Group for a user without one; it should own no files. Source: Debian's base-passwd, "nogroup"."""
_ERRORS = ("UsageError", "ConfigError", "NotFound", "Denied", "Unreachable", "TimedOut")
"""Errors that consist of their message only; any other is passed on as a `DlappError`."""


def call(uid: int, work: Callable[[], Any], *, timeout_s: float, is_change: bool = True) -> Any:
    """Run ``work`` in a child process as user ``uid``, and return its result. For root.

    Args:
        uid: the user.
        work: the function. All modules that it needs must be loaded already: the user may be unable to read them.
        timeout_s: time after which the child is killed [s].
        is_change: whether it changes something, so that the user must have an entry in passwd. Files of a user without
            an entry, who has no groups either, may still be read.

    Returns:
        A JSON value.

    Raises:
        Denied: the user has no entry in passwd, and ``is_change``.
        TimedOut: it took longer than ``timeout_s``.
        Unreachable: the child died, or its result was too long.
        DlappError: raised by ``work``.
    """
    account = _account_of(uid, is_change)
    prctl = _load_prctl()
    for encoding in ("ascii", "utf-8", "latin-1", "idna"):
        codecs.lookup(encoding)  # each is a module that is loaded at its first use; idna is needed by connections
    reading, writing = os.pipe2(os.O_CLOEXEC)
    sys.stdout.flush()
    sys.stderr.flush()
    with waits.paused():
        pid = os.fork()
        if pid == 0:
            _run(account, work, writing, prctl)
    os.close(writing)
    try:
        data = _receive(reading, time.monotonic() + timeout_s)
    finally:
        os.close(reading)
        # A child keeps its pid until waitpid, so this signals no other process.
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    if data is None:
        raise TimedOut(f"the work as {user_name(uid)} took longer than {timeout_s:g} s")
    try:
        answer = json.loads(data)
        if "value" in answer:
            return answer["value"]
        kind, message = str(answer["error"]), str(answer["message"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Unreachable(f"the work as {user_name(uid)} was interrupted") from error
    if kind not in _ERRORS:
        raise DlappError(message)
    known: type[DlappError] = getattr(errors, kind)
    raise known(message)


class _Account(NamedTuple):
    uid: int
    name: str
    home: str
    gid: int
    groups: tuple[int, ...]


def _account_of(uid: int, is_change: bool) -> _Account:
    # Before the fork: NSS may load libraries and query servers.
    import pwd

    try:
        found = pwd.getpwuid(uid)
    except KeyError as error:
        if is_change:
            raise Denied(f"uid {uid} has no entry in passwd: root changes nothing for such a user") from error
        return _Account(uid, str(uid), "/", _NO_GROUP, ())
    groups = os.getgrouplist(found.pw_name, found.pw_gid)
    return _Account(found.pw_uid, found.pw_name, found.pw_dir, found.pw_gid, tuple(groups))


def _load_prctl() -> Callable[..., int]:
    import ctypes

    prctl: Callable[..., int] = ctypes.CDLL(None, use_errno=True).prctl
    return prctl


def _receive(reading: int, deadline: float) -> bytes | None:
    """Return the child's output; None if it took too long, or wrote too much."""
    pieces: list[bytes] = []
    left = MAX_ANSWER_BYTES
    poll = select.poll()
    poll.register(reading, select.POLLIN)
    while left > 0:
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            return None
        if not (piece := os.read(reading, 1 << 20)):
            return b"".join(pieces)
        pieces.append(piece)
        left -= len(piece)
    return b""


def _run(account: _Account, work: Callable[[], Any], writing: int, prctl: Callable[..., int]) -> NoReturn:
    """Run the child: become the user, call ``work``, send its result. Always end the process."""
    try:
        answer: dict[str, Any]
        try:
            _become(account, writing, prctl)
            answer = {"value": work()}
        except (DlappError, OSError) as error:
            kind = type(error).__name__
            message = str(error) if isinstance(error, DlappError) else f"{error.filename or 'error'}: {error.strerror}"
            answer = {"error": kind, "message": message[:MAX_MESSAGE]}
        except Exception as error:
            answer = {"error": "", "message": f"internal error: {type(error).__name__}: {error}"[:MAX_MESSAGE]}
        write_all(writing, json.dumps(answer).encode())
    finally:
        os._exit(0)


def _become(account: _Account, writing: int, prctl: Callable[..., int]) -> None:
    """Drop all of root's rights, and verify that.

    Raises:
        OSError: the kernel refuses; nothing was done as that user.
    """
    null = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd, inheritable=False)
    # By listing: descriptors may exceed a limit that was lowered later.
    close_all_but([writing])
    os.setsid()
    os.chdir("/")
    os.environ.clear()
    os.environ.update(PATH=_PATH, HOME=account.home, USER=account.name, LOGNAME=account.name)
    os.setgroups(account.groups)
    os.setresgid(account.gid, account.gid, account.gid)
    os.setresuid(account.uid, account.uid, account.uid)
    os.umask(0o077)
    for option, value in ((_PR_SET_NO_NEW_PRIVS, 1), (_PR_SET_DUMPABLE, 0)):
        if prctl(option, value, 0, 0, 0) != 0:
            raise PermissionError(0, "the kernel does not let this process give up its rights")
    if account.uid == 0 or os.getresuid() != (account.uid,) * 3:
        raise PermissionError(0, "this process did not become another user")
