"""Notifications on one machine: the processes that send them, and the record of ends not notified yet.

An application whose end is not notified yet has a mark: a file ``notify/<application id>`` in the state directory, with
its outcome. The mark is written before the row has the end, and removed by the process that sent the notification
(`dlapp.notifications.process`). So after a power failure the next runner, or the user's next command, finds it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import Any

from dlapp.cluster.local.state import StateDir, read_json, write_atomically
from dlapp.errors import DlappError
from dlapp.id_text import is_application_id
from dlapp.system import files, locks
from dlapp.system.processes.spawn import spawn

NOTIFY = "notify.json"
"""The settings of an application's notifications, in its directory; they hold secrets."""
_LOCK = "notify.lock"
_DIRECTORY = "notify"
_MAX_AT_ONCE = 20


def waiting_after_s(application_dir: str) -> float | None:
    """Return the time in the queue after which the user is notified of the wait [s]; None: never."""
    with contextlib.suppress(DlappError, OSError, LookupError, TypeError, ValueError):
        settings: dict[str, Any] | None = read_json(os.path.join(application_dir, NOTIFY))
        if settings is not None and "waiting" in settings["events"]:
            return float(settings["waiting_after_s"])
    return None


def mark_end(state: StateDir, application_id: str, outcome: dict[str, Any]) -> bool:
    """Write the mark of an application's end, if it has settings for notifications; return whether it has.

    Raises:
        OSError: the mark cannot be written.
    """
    import json

    if not os.path.lexists(os.path.join(state.application(application_id), NOTIFY)):
        return False
    write_atomically(os.path.join(state.own_directory(_DIRECTORY), application_id), json.dumps(outcome), sync=True)
    return True


def start_sender(state: StateDir, program: Sequence[str], application_id: str, waiting: str = "") -> int | None:
    """Start the process that sends an application's notifications. It is not waited for, and ends after a time limit.

    Args:
        state: the user's state directory.
        program: how dlapp's own processes are started.
        application_id: id of the application.
        waiting: what the application waits for in the queue; empty: the application has ended.

    Returns:
        The pid of the process; None: it could not be started.
    """
    application_dir = state.application(application_id)
    arguments = ["--waiting", waiting] if waiting else ["--mark", os.path.join(state.path, _DIRECTORY, application_id)]
    try:
        return spawn([*program, "notify", "--home", application_dir, *arguments], log=state.runner_log(state.uid))
    except OSError as error:
        from dlapp.system.logs import log

        log.warning(f"{application_id}: its notifications could not be sent: {error}")
        return None


def start_pending_senders(state: StateDir, program: Sequence[str]) -> list[int]:
    """Start a process for each end that is not notified yet, unless one is already running. Return the pids."""
    pids = []
    with contextlib.suppress(FileNotFoundError):
        names = os.listdir(os.path.join(state.path, _DIRECTORY))
        for name in sorted(filter(is_application_id, names))[:_MAX_AT_ONCE]:
            if not _is_locked(os.path.join(state.application(name), _LOCK)):
                pid = start_sender(state, program, name)
                pids += [] if pid is None else [pid]
    return pids


def _is_locked(path: str) -> bool:
    with contextlib.suppress(OSError), files.closing_fd(files.open_file(path, owners={os.geteuid()})) as fd:
        return locks.is_write_locked(fd)
    return False
