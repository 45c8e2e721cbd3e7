"""The engines of a client, and the applications on them that a text means."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Self

from dlapp.errors import (
    Denied,
    NotFound,
    UsageError,
)
from dlapp.id_text import LAST, is_application_id, looks_like_id
from dlapp.value import Closeable

# Modules that define classes are imported where they are needed: dlapp-status needs none of them.
if TYPE_CHECKING:
    from dlapp.client.application import Application
    from dlapp.cluster.engine import Engine
    from dlapp.cluster.view_forms import ViewForms
    from dlapp.config import Config
    from dlapp.values.ids import ApplicationId

    AnyApplication = Application | ApplicationId | str
    """An application, its id, or a text for `Client.resolve`: ``last``, an id, the end of one."""

RUNNER_CHECK_INTERVAL_S = 5.0
"""Interval at which a waiting command checks for a dead runner and replaces it."""


class Connections(Closeable):
    """The engines of one user, as `dlapp.client.Client` uses them; see there for the arguments."""

    def __init__(
        self,
        config: Config | None = None,
        *,
        cluster: str | None = None,
        engine: Engine | None = None,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        if config is None or cluster is not None:
            from dlapp.config import load_config

            texts = dict(config.texts) if config else {}
            config = load_config({**texts, "cluster": cluster} if cluster is not None else texts)
        from dlapp.client.engines import Engines

        self._engines = Engines(config, engine)
        self.config, self.engine = config, self._engines.configured
        self._runner_checked_at: dict[int, float] = {}
        self._note, self._noted = note, ""

    @classmethod
    def on(cls, other: Connections) -> Self:
        """Return a client of this class on the connections of another one, for its further operations."""
        if isinstance(other, cls):
            return other
        client = cls.__new__(cls)
        client.__dict__.update(other.__dict__)
        return client

    def close(self) -> None:
        """Close the connections to a cluster."""
        self._engines.close()

    @property
    def state_path(self) -> str:
        """Return the directory of this machine's own state, on any engine."""
        from dlapp.cluster.local.state import open_state

        local = self.config.local
        return open_state(local.state_dir, shared=local.shared).path

    def resolve(self, text: str, *, user: str | None = None) -> ApplicationId:
        """Find the application for ``text``: ``last``, a complete id, its number, or a unique suffix of an id.

        Args:
            user: the required owner; None for the caller, or anybody if a suffix is given.

        Raises:
            UsageError: the suffix is ambiguous (the message lists the matches), or impossible.
            NotFound: there is no match.
            Denied: it is neither owned by ``user`` nor the caller's with ``username=user``.
        """
        from dlapp.values.ids import ApplicationId

        return ApplicationId.from_text(self.resolve_text(text, user=user))

    def resolve_text(self, text: str, *, user: str | None = None) -> str:
        """Call `resolve`, for callers that need only the id as text."""
        if not looks_like_id(text):
            raise UsageError(f"{text!r} is neither 'last' nor an application's id nor the ending of one")
        if text == LAST:
            return self._last_id(user)
        found = [text] if is_application_id(text) else self._ids_with_suffix(text)
        if not found:
            raise NotFound(f"no application's id ends with {text!r} (dlapp-list shows yours)")
        if len(found) > 1:
            raise UsageError(f"{len(found)} applications end with {text!r}: {', '.join(found)}")
        if user is not None:
            self._check_owner(found[0], user)
        return found[0]

    def _last_id(self, user: str | None) -> str:
        mine = self.engine.ids() if user is None else self._ids_of(user)
        other = self._engines.other_last() if user in (None, caller()) else None
        if other is not None and (not mine or self.engine.view(mine[-1]).json["submitted_ms"] < other[1]):
            return other[0]
        if not mine:
            whose = "you have" if user is None else f"{user} has"
            how = " (dlapp-launcher FILE starts one)" if user is None else ""
            raise NotFound(f"{whose} no application yet{how}")
        return mine[-1]

    def _ids_with_suffix(self, text: str) -> list[str]:
        """Return the caller's own ids with this suffix; if there are none, everybody's. If some have exactly this
        number, return only those.

        YARN numbers applications from 1 again after each start or failover of a ResourceManager: of the caller's own on
        one cluster the latest has the number.
        """
        for everybody in (False, True):
            by_engine = [
                [one for one in each.ids(everybody=everybody) if one.endswith(text)] for each in self._engines.used()
            ]
            exact = [
                [one for one in those if text.isdecimal() and int(one.rpartition("_")[2]) == int(text)]
                for those in by_engine
            ]
            if not everybody and len(numbered := [those for those in exact if those]) == 1:
                *earlier, latest = numbered[0]
                if earlier:
                    self._note(f"{text} is {latest}, the latest of your {len(earlier) + 1} with this number")
                return [latest]
            for those in exact, by_engine:
                if found := [one for each in those for one in each]:
                    return found
        return []

    def _ids_of(self, user: str) -> list[str]:
        """Return the id of the last application of a user, if there is one."""
        found = [str(view.json["application_id"]) for view in self.engine.views(user=user)]
        last = next((one for one in reversed(found) if self._owner_unless_of(one, user) is None), None)
        return [] if last is None else [last]

    def _id(self, application: AnyApplication) -> ApplicationId:
        from dlapp.values.ids import ApplicationId

        if isinstance(application, str):
            return self.resolve(application)
        return application if isinstance(application, ApplicationId) else application.application_id

    def _engine_of(self, application_id: ApplicationId | str) -> Engine:
        """Return the engine that an application is on."""
        return self._engines.of(str(application_id))

    def _ensure_runner(self, engine: Engine) -> None:
        now = time.monotonic()
        if now - self._runner_checked_at.get(id(engine), float("-inf")) >= RUNNER_CHECK_INTERVAL_S:
            obstacle = engine.ensure_runner()
            if obstacle and obstacle.partition(";")[0] != self._noted.partition(";")[0]:
                self._note(obstacle)
                self._noted = obstacle
            self._runner_checked_at[id(engine)] = now

    def view_of(self, application_id: ApplicationId | str, *, in_full: bool = False) -> ViewForms:
        """Return the current view of an application, in both forms.

        Args:
            application_id: the complete id.
            in_full: if it waits, ``waiting`` also has the smallest change that would let it start now, and an estimate
                of its start.

        Raises:
            NotFound: there is no such application.
        """
        engine = self._engine_of(application_id)
        self._ensure_runner(engine)
        return engine.view_in_full(application_id) if in_full else engine.view(application_id)

    def _check_owner(self, application_id: str, user: str) -> None:
        if (owner := self._owner_unless_of(application_id, user)) is not None:
            raise Denied(f"{application_id} is {owner}'s, not {user}'s")

    def is_own(self, application_id: AnyApplication) -> bool:
        """Return whether an application is the caller's, as the kernel or the cluster reports it. Raises NotFound."""
        return self._owner_unless_of(str(self._id(application_id)), caller()) is None

    def _owner_unless_of(self, application_id: str, user: str) -> str | None:
        """Return the owner of an application that is not ``user``'s; None if it is.

        The caller's own applications are also of the user that ``username`` in their files names. In another owner's
        application this name says nothing, as that owner wrote it.
        """
        owner = self._engine_of(application_id).owner(application_id)
        if user == owner or (owner == caller() and self.view_of(application_id).json["username"] == user):
            return None
        return owner


def caller() -> str:
    """Return the operating system's user."""
    from dlapp.system.owners import user_name

    return user_name(os.geteuid())
