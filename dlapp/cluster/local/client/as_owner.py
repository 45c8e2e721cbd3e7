"""Root's access to the applications of another user, in the name of that user.

Each call runs in a child process as the owner, with the owner's own access (`dlapp.system.processes.as_user`). It
starts no runner and no program.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dlapp.cluster.local import views
from dlapp.cluster.local.client.access import OwnerAccess
from dlapp.cluster.local.client.kill import KILL_END_S, KILL_REQUEST_TIMEOUT_S, SOFT_KILL_REQUEST_TIMEOUT_S
from dlapp.cluster.local.client.other_users import ForeignAccess
from dlapp.cluster.local.client.session import LocalSession
from dlapp.cluster.local.client.views import ids, issued, views_json
from dlapp.errors import ConfigError, Denied
from dlapp.system.owners import user_name

if TYPE_CHECKING:
    from dlapp.cluster.local.state import StateDir
    from dlapp.values.access import ControlAccess

READ_AS_USER_TIMEOUT_S = 4.0
"""Time limit for reading another user's directory, as that user, whatever it contains."""


class RootAccess(ForeignAccess):
    """Access of root to the applications of another user, an `ApplicationAccess`.

    Args:
        session: root's.
        owner: the state directory of the owner.
    """

    def __init__(self, session: LocalSession, owner: StateDir) -> None:
        self._session, self.state = session, owner

    def _call(
        self, work: Callable[[LocalSession], Any], *, timeout_s: float = READ_AS_USER_TIMEOUT_S, is_change: bool = False
    ) -> Any:
        """Call a function in a child process that runs as the owner. Raise what it raises, and Denied if it changes
        something of a user without an entry in passwd."""
        # Import these before the user switch: the user may not be able to read them, and must not choose them.
        import hashlib  # noqa: F401

        import dlapp.sweep.spec  # noqa: F401
        from dlapp.cluster import view_rules  # noqa: F401
        from dlapp.cluster.local.client import queue_order  # noqa: F401
        from dlapp.cluster.local.queue_state import read_policy
        from dlapp.cluster.local.runner import history, main, orphans  # noqa: F401
        from dlapp.net import control_client  # noqa: F401
        from dlapp.system.network import tcp_table  # noqa: F401
        from dlapp.system.processes import as_user
        from dlapp.values import launch_spec, messages, serialization  # noqa: F401

        with contextlib.suppress(ConfigError):
            read_policy()  # it imports more if an operator's file exists

        def as_owner() -> Any:
            with LocalSession(self._session.config, program=self._session.program, acting_in=self.state) as session:
                return work(session)

        return as_user.call(self.state.uid, as_owner, timeout_s=timeout_s, is_change=is_change)

    # ---- all applications of the owner ----

    def ids(self) -> list[str]:
        """Return the ids of the owner's applications, oldest first."""
        found: list[str] = self._call(lambda session: ids(session, everybody=False))
        return found

    def issued(self, application_id: str) -> bool:
        """Return whether the owner's engine issued an id."""
        return bool(self._call(lambda session: issued(session, application_id)))

    def views_json(self, user: str | None, limit: int | None) -> list[views.View]:
        """Return the views of the owner's applications as JSON; see `dlapp.cluster.engine.Engine.views`."""
        found = self._call(lambda session: views_json(session, True, user, limit))
        return [views.checked_view(one) for one in found]

    # ---- one application ----

    def view_json(self, application_id: str) -> dict[str, Any]:
        return views.checked_view(self._call(lambda session: OwnerAccess(session).view_json(application_id)))

    def view_in_full_json(self, application_id: str) -> dict[str, Any]:
        return self.view_json(application_id)

    def owner(self, application_id: str) -> str:
        self.view_json(application_id)
        return user_name(self.state.uid)

    def submission_json(self, application_id: str) -> dict[str, object]:
        found: dict[str, object] = self._call(lambda session: OwnerAccess(session).submission_json(application_id))
        return found

    def usage_json(self, application_id: str) -> Any:
        return self._call(lambda session: OwnerAccess(session).usage_json(application_id))

    def trials_text(self, application_id: str) -> str:
        return str(self._call(lambda session: OwnerAccess(session).trials_text(application_id)))

    def application_dir(self, application_id: str) -> str:
        return self.state.application(application_id)

    def dashboard_urls(self, application_id: str, wait_s: float) -> tuple[str, str]:
        page, history = self._call(lambda session: OwnerAccess(session).dashboard_urls(application_id, 0.0))
        return str(page), str(history)

    def control_access(self, application_id: str) -> ControlAccess:
        raise Denied(f"{application_id} belongs to {self.owner(application_id)}; only they reach into its containers")

    def soft_kill(self, application_id: str, by: str) -> str:
        timeout_s = SOFT_KILL_REQUEST_TIMEOUT_S + READ_AS_USER_TIMEOUT_S
        return self._change(lambda own: own.soft_kill(application_id, by), timeout_s)

    def kill(self, application_id: str, by: str) -> str:
        return self._change(lambda own: own.kill(application_id, by), KILL_REQUEST_TIMEOUT_S + 2 * KILL_END_S)

    def release(self, application_id: str, by: str) -> str:
        return self._change(lambda own: own.release(application_id, by), READ_AS_USER_TIMEOUT_S)

    def _change(self, work: Callable[[OwnerAccess], str], timeout_s: float) -> str:
        return str(self._call(lambda session: work(OwnerAccess(session)), timeout_s=timeout_s, is_change=True))
