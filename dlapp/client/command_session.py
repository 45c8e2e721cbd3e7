"""Session of a command that runs as long as its user wants: its directory on this machine, and the signals that end it.

A session is a directory under the state directory. A lock on its ``dlapp.log`` marks it as alive; the next session
of the user removes those of the dead.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from dlapp.errors import DlappError

if TYPE_CHECKING:
    from dlapp.config import Config

STALE_S = 3600.0
"""Age from which an unlocked directory belongs to a dead session, and not to one that is just starting."""
LOG = "dlapp.log"


class SessionClosed(BaseException):
    """End of the session by a closed terminal or another signal, ``number``."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def own_directory(state_path: str) -> str:
    """Return where the caller's sessions are, and the records of the input that shells fetched into workspaces."""
    return os.path.join(state_path, "shells", str(os.geteuid()))


def records_below(state_path: str) -> str:
    """Return the caller's directory of such records, in the state directory of this machine."""
    return os.path.join(own_directory(state_path), "workspaces")


@contextlib.contextmanager
def session_directory(config: Config) -> Iterator[str]:
    """Make a directory for this session, and remove it in the end; those of sessions that died are removed now."""
    import secrets

    from dlapp.cluster.local.state import is_locked, open_lock, open_state
    from dlapp.system import locks

    state = open_state(config.local.state_dir, shared=config.local.shared)
    own = own_directory(state.path)
    parent = os.path.join(own, "sessions")
    # From the top, so that each is opened in a directory that is known to be the caller's alone.
    for path in (os.path.dirname(own), own, records_below(state.path), parent):
        state.own_directory(os.path.relpath(path, state.path))
    for name in os.listdir(parent):
        log = os.path.join(parent, name, LOG)
        # A hidden one is being made: its lock comes first, its name last.
        if not is_locked(log) and (not name.startswith(".") or _age_s(os.path.join(parent, name)) > STALE_S):
            _remove(os.path.join(parent, name))
    name = f"shell-{os.getpid()}-{secrets.token_hex(4)}"
    hidden, directory = os.path.join(parent, f".{name}"), os.path.join(parent, name)
    os.mkdir(hidden, 0o700)
    lock = open_lock(os.path.join(hidden, LOG))
    try:
        locks.try_lock(lock)
        os.rename(hidden, directory)
        yield directory
    finally:
        for path in (hidden, directory):
            _remove(path)
        os.close(lock)


def _remove(path: str) -> None:
    """Remove a directory of a session, into which a container may have written anything; what cannot be removed stays
    for the next session."""
    from dlapp.system.files import remove_tree

    with contextlib.suppress(DlappError):
        remove_tree(path)


def _age_s(path: str) -> float:
    try:
        return time.time() - os.stat(path).st_mtime
    except FileNotFoundError:
        return 0.0


@contextlib.contextmanager
def signals_close() -> Iterator[None]:
    """End the block as `SessionClosed` on SIGHUP or SIGTERM."""

    def close(number: int, _frame: object) -> None:
        raise SessionClosed(number)

    before = {number: signal.signal(number, close) for number in (signal.SIGHUP, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
