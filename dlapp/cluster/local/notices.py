"""Notifications on one machine, where no ApplicationMaster sends them: processes that do so, and what is left for them.

An application whose end is not told yet has a mark, a file ``notify/<application id>`` in the state directory with its
outcome. It is written before the row says that the application has ended, and removed by the process that has told it
(`dlapp.notifications.process`). So the next runner, or the user's next command, finds what is left after a power cut.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import Any

from dlapp.cluster.local.state import StateDir, read_json, write_whole
from dlapp.errors import DlappError
from dlapp.id_text import is_application_id
from dlapp.system import files, locks
from dlapp.system.logs import log
from dlapp.system.processes.spawn import spawn

NOTIFY = "notify.json"
"""The settings of an application's notifications, in its directory; they hold secrets."""
_LOCK = "notify.lock"
_DIRECTORY = "notify"
_MAX_AT_ONCE = 20


def waiting_after_s(application_dir: str) -> float | None:
    """Return after how long in the queue the user of an application is told so; None: never."""
    with contextlib.suppress(DlappError, OSError, LookupError, TypeError, ValueError):
        settings: dict[str, Any] | None = read_json(os.path.join(application_dir, NOTIFY))
        if settings is not None and "waiting" in settings["events"]:
            return float(settings["waiting_after_s"])
    return None


def mark_end(state: StateDir, application_id: str, outcome: dict[str, Any]) -> bool:
    """Leave the mark of an application's end, if its user is to be told; return whether it was.

    Raises:
        OSError: it cannot be written.
    """
    import json

    if not os.path.lexists(os.path.join(state.application(application_id), NOTIFY)):
        return False
    write_whole(os.path.join(state.own_directory(_DIRECTORY), application_id), json.dumps(outcome), sync=True)
    return True


def start_sender(state: StateDir, program: Sequence[str], application_id: str, waiting: str = "") -> int | None:
    """Start the process that sends what is not sent yet. Nobody waits for it, and it ends by itself in time.

    Args:
        state: of the user.
        program: how our processes are started.
        application_id: of the application.
        waiting: it waits in the queue, for this; empty: it has ended.

    Returns:
        Its pid; None: it could not be started.
    """
    application_dir = state.application(application_id)
    words = ["--waiting", waiting] if waiting else ["--mark", os.path.join(state.path, _DIRECTORY, application_id)]
    try:
        return spawn([*program, "notify", "--home", application_dir, *words], log=state.runner_log(state.uid))
    except OSError as error:
        log.warning(f"{application_id}: its notifications could not be sent: {error}")
        return None


def tend_notices(state: StateDir, program: Sequence[str]) -> list[int]:
    """Start a process for each end that is not told, and that none is just telling. Return their pids."""
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
