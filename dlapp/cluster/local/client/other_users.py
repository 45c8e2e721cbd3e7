"""Other users' applications in a shared state directory: their views, and what their owners allow by access lists.

The user of an application is the owner of its directory. The files in it were written by that user, so they are read by
descriptor, with size limits, and checked. An invalid file hides only its own application.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dlapp.cluster.local import spool, views
from dlapp.cluster.local.attempts import is_alive
from dlapp.cluster.local.row import DONE, RUNNING, UNSTARTED, ApplicationRow
from dlapp.cluster.local.schedule import QueueOrder
from dlapp.cluster.local.state import StateDir, file_url, read_json, read_text
from dlapp.errors import Denied, DlappError, NotFound
from dlapp.id_text import is_application_id
from dlapp.system import files
from dlapp.system.machine import boot_id
from dlapp.system.owners import user_name

if TYPE_CHECKING:
    from dlapp.cluster.local.client.session import LocalSession
    from dlapp.cluster.local.client.shared_tokens import GrantedAccess
    from dlapp.values.access import ControlAccess

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


class ForeignAccess:
    """Base of each access to the applications of another user, which only their owner removes."""

    def owner(self, application_id: str) -> str:
        raise NotImplementedError

    def unstored(self, application_id: str) -> list[str]:
        return []

    def check_removal(self, application_id: str) -> None:
        raise Denied(f"{application_id} belongs to {self.owner(application_id)}; only they may remove it")

    def remove(self, application_id: str) -> None:
        self.check_removal(application_id)


class SharedAccess(ForeignAccess):
    """Access to the applications of another user, an `ApplicationAccess`: anybody who can enter the directory may read
    them, and their owner decides by access lists who reaches into them.

    Args:
        session: the caller's.
        owner: the state directory of the owner.
    """

    def __init__(self, session: LocalSession, owner: StateDir) -> None:
        self._session, self.state = session, owner

    def view_json(self, application_id: str) -> dict[str, Any]:
        return view_of(self.state, application_id, boot_id(), self._session.waiting(), short=False)

    def view_in_full_json(self, application_id: str) -> dict[str, Any]:
        return self.view_json(application_id)

    def owner(self, application_id: str) -> str:
        return user_name(self.state.uid)

    def submission_json(self, application_id: str) -> dict[str, object]:
        with self.state.opened("applications", application_id) as application_dir:
            submission = read_json(os.path.join(application_dir, "submission.json"))
        if submission is None:
            raise NotFound(f"{self.application_dir(application_id)}/submission.json is not there")
        return submission

    def usage_json(self, application_id: str) -> Any:
        with self.state.opened("applications", application_id) as application_dir:
            return read_json(os.path.join(application_dir, "usage.json"))

    def trials_text(self, application_id: str) -> str:
        from dlapp.sweep.spec import MAX_RESULTS_BYTES

        with self.state.opened("applications", application_id) as application_dir:
            return read_text(os.path.join(application_dir, "trials.jsonl"), MAX_RESULTS_BYTES)

    def application_dir(self, application_id: str) -> str:
        return self.state.application(application_id)

    def dashboard_urls(self, application_id: str, wait_s: float) -> tuple[str, str]:
        """Return the path of the history file twice: the page requires the application's secrets."""
        history = file_url(os.path.join(self.application_dir(application_id), "report.html"))
        return history, history

    def control_access(self, application_id: str) -> ControlAccess:
        from dlapp.net.streams import NOT_RUNNING, StreamRefused
        from dlapp.values.access import VIEWERS, ControlAccess

        if (granted := self._granted(application_id, VIEWERS)) is None:
            raise Denied(
                f"{application_id} belongs to {self.owner(application_id)}; only they reach into its containers"
            )
        if not granted.url:
            raise StreamRefused(f"{application_id} has not started yet", NOT_RUNNING)
        return ControlAccess(granted.url, granted.token, is_own=False, owner=self.state.uid)

    def soft_kill(self, application_id: str, by: str) -> str:
        return self._end("softkill", application_id, by)

    def kill(self, application_id: str, by: str) -> str:
        return self._end("kill", application_id, by)

    def release(self, application_id: str, by: str) -> str:
        raise Denied(f"{application_id} belongs to {self.owner(application_id)}; only they or root may release it")

    def _end(self, what: str, application_id: str, by: str) -> str:
        from dlapp.cluster.local.client.kill import end_by_request
        from dlapp.values.access import MODIFIERS

        if (granted := self._granted(application_id, MODIFIERS)) is None:
            raise Denied(f"{application_id} belongs to {self.owner(application_id)}; only they or root may end it")
        return end_by_request(granted, application_id, what, by, lambda: self.view_json(application_id))

    def _granted(self, application_id: str, purpose: str) -> GrantedAccess | None:
        """Return the access that the owner has granted to the caller; None: none, or the caller is root."""
        from dlapp.cluster.local.client.shared_tokens import find_access

        return None if self._session.uid == 0 else find_access(self.state, application_id, purpose)


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


def view_of(owner: StateDir, application_id: str, boot: str, waiting: QueueOrder, *, short: bool) -> views.View:
    """Return the current view of one application; see `dlapp.cluster.local.views.view_of`.

    Args:
        owner: the user's state directory.
        application_id: id of the application.
        boot: current boot id of the machine.
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
                row, application_dir, boot, waiting, alive=alive, has_runner=has_runner, short=short, own=False
            )
    except (OSError, DlappError) as error:
        raise NotFound(f"{application_id} of {user_name(owner.uid)} cannot be read: {error}") from error
    containers = os.path.join(owner.applications, application_id, "containers")
    for one in view["containers"]:
        one["log_url"] = file_url(os.path.join(containers, one["container_id"]))
    return view


def views_of(owner: StateDir, boot: str, waiting: QueueOrder, *, limit: int | None) -> list[views.View]:
    """Return the views of a user's applications, oldest first: all that have not ended, and the latest ended ones.

    Args:
        owner: the user's state directory.
        boot: current boot id of the machine.
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
            found.append(view_of(owner, application_id, boot, waiting, short=True))
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
