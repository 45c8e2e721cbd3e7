"""Access to the applications on this machine: one interface for the caller's own, those of other users, and root."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Protocol

from dlapp.cluster.local.row import DONE, WAITING
from dlapp.cluster.local.state import read_json, read_text
from dlapp.errors import NotFound
from dlapp.system.owners import user_name

if TYPE_CHECKING:
    from dlapp.cluster.local.client.session import LocalSession
    from dlapp.values.access import ControlAccess


class ApplicationAccess(Protocol):
    """Access of a user to the applications of one owner on this machine; ids are texts.

    `OwnerAccess` is for the caller's own applications, `SharedAccess` (`dlapp.cluster.local.client.other_users`) for
    those of other users of a shared directory, `RootAccess` (`dlapp.cluster.local.client.as_owner`) for root. The
    methods are those of `dlapp.cluster.engine.Engine`, with its errors.
    """

    def view_json(self, application_id: str) -> dict[str, Any]: ...

    def view_in_full_json(self, application_id: str) -> dict[str, Any]: ...

    def owner(self, application_id: str) -> str: ...

    def submission_json(self, application_id: str) -> dict[str, object]: ...

    def usage_json(self, application_id: str) -> Any: ...

    def trials_text(self, application_id: str) -> str: ...

    def application_dir(self, application_id: str) -> str:
        """Return the path of an application's directory."""

    def dashboard_urls(self, application_id: str, wait_s: float) -> tuple[str, str]: ...

    def control_access(self, application_id: str) -> ControlAccess: ...

    def soft_kill(self, application_id: str, by: str) -> str: ...

    def kill(self, application_id: str, by: str) -> str: ...

    def release(self, application_id: str, by: str) -> str: ...

    def unstored(self, application_id: str) -> list[str]: ...

    def check_removal(self, application_id: str) -> None: ...

    def remove(self, application_id: str) -> None: ...


class OwnerAccess:
    """Access of a user to their own applications."""

    def __init__(self, session: LocalSession) -> None:
        self._session = session

    def view_json(self, application_id: str) -> dict[str, Any]:
        return self._session.own_view(application_id)

    def view_in_full_json(self, application_id: str) -> dict[str, Any]:
        view = self.view_json(application_id)
        if view["phase"] != "waiting":
            return view
        row = self._session.row(application_id)
        if row.state != WAITING:
            return view
        from dlapp.cluster.local.client.views import waits_of
        from dlapp.cluster.local.client.waits import USER_GCORES
        from dlapp.values.serialization import from_json
        from dlapp.values.spec import Submission

        spec = from_json(Submission, self.submission_json(application_id)).spec
        order = self._session.waiting()
        found, obstacle = waits_of(self._session).in_full(spec, order, row), order.obstacle(row.id)
        if obstacle is not None and not obstacle.text.endswith(f"({USER_GCORES})"):
            found["change"] = ""  # it would still exceed a limit that is not among the facts
        return view | {"waiting": view["waiting"] | found}

    def owner(self, application_id: str) -> str:
        self._session.row(application_id)
        return user_name(self._session.state.uid)

    def submission_json(self, application_id: str) -> dict[str, object]:
        self._session.row(application_id)
        with self._session.state.opened("applications", application_id) as application_dir:
            submission = read_json(os.path.join(application_dir, "submission.json"))
        if submission is None:
            raise NotFound(f"{self.application_dir(application_id)}/submission.json is not there")
        return submission

    def usage_json(self, application_id: str) -> Any:
        self._session.row(application_id)
        with self._session.state.opened("applications", application_id) as application_dir:
            return read_json(os.path.join(application_dir, "usage.json"))

    def trials_text(self, application_id: str) -> str:
        from dlapp.sweep.spec import MAX_RESULTS_BYTES

        self._session.row(application_id)
        with self._session.state.opened("applications", application_id) as application_dir:
            return read_text(os.path.join(application_dir, "trials.jsonl"), MAX_RESULTS_BYTES)

    def application_dir(self, application_id: str) -> str:
        return self._session.state.application(application_id)

    def dashboard_urls(self, application_id: str, wait_s: float) -> tuple[str, str]:
        from dlapp.cluster.local.client import control

        return control.dashboard_urls(self._session, application_id, wait_s)

    def control_access(self, application_id: str) -> ControlAccess:
        from dlapp.cluster.local.client.control import control_of
        from dlapp.cluster.local.client.kill import over_text
        from dlapp.net.streams import NOT_RUNNING, StreamRefused
        from dlapp.values.access import ControlAccess

        row = self._session.row(application_id)
        if row.state == DONE:
            raise NotFound(over_text(row))
        if (found := control_of(self.application_dir(row.id))) is None:
            raise StreamRefused(f"{application_id} has not started yet", NOT_RUNNING)
        return ControlAccess(*found, owner=self._session.uid)

    def soft_kill(self, application_id: str, by: str) -> str:
        from dlapp.cluster.local.client import kill

        return kill.soft_kill(self._session, application_id, by)

    def kill(self, application_id: str, by: str) -> str:
        from dlapp.cluster.local.client import kill

        return kill.kill(self._session, application_id, by)

    def release(self, application_id: str, by: str) -> str:
        from dlapp.cluster.local.client import kill

        return kill.release(self._session, application_id)

    def unstored(self, application_id: str) -> list[str]:
        from dlapp.cluster.local.client import removal

        return removal.unstored(self._session, application_id)

    def check_removal(self, application_id: str) -> None:
        from dlapp.cluster.local.client import removal

        removal.removable(self._session, application_id)

    def remove(self, application_id: str) -> None:
        from dlapp.cluster.local.client import removal

        removal.remove(self._session, application_id)
