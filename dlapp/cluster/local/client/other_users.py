"""Views of other users' applications in a shared state directory.

The user of an application is the owner of its directory. The files in it were written by that user, so they are read by
descriptor, with size limits, and checked. An invalid file hides only its own application.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Any

from dlapp.cluster.local import spool, views
from dlapp.cluster.local.attempts import is_alive
from dlapp.cluster.local.row import DONE, RUNNING, UNSTARTED, ApplicationRow
from dlapp.cluster.local.schedule import QueueOrder
from dlapp.cluster.local.state import StateDir, file_url, read_json
from dlapp.errors import DlappError, NotFound
from dlapp.id_text import is_application_id
from dlapp.system import files
from dlapp.system.owners import user_name

MAX_APPLICATIONS = 100_000
"""Maximum number of one user's applications that are read."""
_INTEGERS = ("number", "memory_mib", "vcores", "gcores", "containers", "submitted_ms", "starts", "aftermaths", "hold")
_NUMBERS_OR_NONE = ("started_ms", "finished_ms", "priority")
_TEXTS = (
    *("id", "state", "username", "appname", "boot_id", "outcome", "reason", "summary", "queue", "project", "tags"),
    *("waiting", "resumed_from", "again_of", "after"),
)
_SINCE: Mapping[str, Any] = {
    "queue": "default",
    "project": "",
    "tags": "",
    "priority": None,
    "waiting": "",
    "resumed_from": "",
    "again_of": "",
    "after": "",
    "hold": 0,
}
"""Values of fields that rows of an earlier version lack."""


def owners_of(state: StateDir, application_id: str) -> list[StateDir]:
    """Return the other users with an application of this id: one, or several if a user copied another's id."""
    found = []
    for other in state.others() if is_application_id(application_id) else ():
        with contextlib.suppress(OSError), other.opened("applications", application_id):
            found.append(other)
    return found


def owner_of(state: StateDir, application_id: str) -> StateDir:
    """Return the owner of another user's application.

    Raises:
        NotFound: no user has it, or several users have it.
    """
    match owners_of(state, application_id):
        case [owner]:
            return owner
        case []:
            raise NotFound(f"{application_id} is not known on this machine (dlapp-list -a shows what is)")
        case several:
            who = " and ".join(user_name(one.uid) for one in several[:3])
            raise NotFound(f"{application_id} is an application of {who} at once: run this as the user whom you mean")


def ids_of(owner: StateDir) -> list[str]:
    """Return the ids of all applications of a user, oldest first; empty if the directory cannot be read."""
    with contextlib.suppress(OSError), owner.opened("applications") as place:
        with files.closing_fd(files.open_directory(f"{place}/.")) as fd:
            names = files.list_names(fd, limit=MAX_APPLICATIONS)
        return sorted(filter(is_application_id, names), key=lambda one: tuple(map(int, one.split("_")[1:])))
    return []


def view_of(owner: StateDir, application_id: str, boot_id: str, waiting: QueueOrder, *, short: bool) -> views.View:
    """Return the current view of one application; see `dlapp.cluster.local.views.view_of`.

    Args:
        owner: the user's state directory.
        application_id: id of the application.
        boot_id: current boot id of the machine.
        waiting: all waiting applications.
        short: omit the containers of an ended application, except one.

    Raises:
        NotFound: it is not that user's, or cannot be read.
    """
    try:
        with owner.opened("applications", application_id) as application_dir:
            alive, has_runner = is_alive(application_dir, owner.uid), False
            row = _read_row(owner, application_id, application_dir)
            if row.state == RUNNING and not alive:
                has_runner = spool.has_runner(owner)
                alive = is_alive(application_dir, owner.uid)
                row = _read_row(owner, application_id, application_dir)
            view = views.view_of(
                row, application_dir, boot_id, waiting, alive=alive, has_runner=has_runner, short=short, own=False
            )
    except (OSError, DlappError) as error:
        raise NotFound(f"{application_id} of {user_name(owner.uid)} cannot be read: {error}") from error
    containers = os.path.join(owner.applications, application_id, "containers")
    for one in view["containers"]:
        one["log_url"] = file_url(os.path.join(containers, one["container_id"]))
    return view


def views_of(owner: StateDir, boot_id: str, waiting: QueueOrder, *, limit: int | None) -> list[views.View]:
    """Return the views of a user's applications, oldest first: all that have not ended, and the latest ended ones.

    Args:
        owner: the user's state directory.
        boot_id: current boot id of the machine.
        waiting: all waiting applications.
        limit: maximum number of ended ones; None: all.
    """
    unsettled: set[str] = set()
    with contextlib.suppress(OSError):
        unsettled = {one.id for one in spool.entries_of(owner)} | spool.blocked_ids(owner)
    found, ended = [], 0
    for application_id in reversed(ids_of(owner)):
        if application_id not in unsettled:
            if limit is not None and ended >= limit:
                continue
            ended += 1
        with contextlib.suppress(NotFound):
            found.append(view_of(owner, application_id, boot_id, waiting, short=True))
    return found[::-1]


def _read_row(owner: StateDir, application_id: str, application_dir: str) -> ApplicationRow:
    """Return the row of an application from its user's file. Raises DlappError: the file is invalid."""
    shown: dict[str, Any] = {**_SINCE, **(read_json(os.path.join(application_dir, "row.json")) or {})}
    fine = (
        shown.get("id") == application_id
        and shown.get("state") in (*UNSTARTED, RUNNING, DONE)
        and all(isinstance(shown.get(name), str) for name in _TEXTS)
        and all(views.is_time(shown.get(name)) for name in _INTEGERS)
        and all(shown.get(name) is None or views.is_time(shown[name]) for name in _NUMBERS_OR_NONE)
    )
    if not fine:
        raise DlappError("its row.json is invalid")
    names = (*_TEXTS, *_INTEGERS, *_NUMBERS_OR_NONE)
    return ApplicationRow(
        (*names, "uid", "submitter"), (*(shown.get(name) for name in names), owner.uid, user_name(owner.uid))
    )
