"""The operations of a client that wait for applications, and that end, release and remove them."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from dlapp.client.operations import connections
from dlapp.client.operations.queries import Queries
from dlapp.errors import (
    TimedOut,
)

# Modules that define classes are imported where they are needed: dlapp-status needs none of them.
if TYPE_CHECKING:
    from dlapp.client.operations.connections import AnyApplication
    from dlapp.values.ids import ApplicationId
    from dlapp.values.report import ApplicationView


class Control(Queries):
    """Waiter for the ends of applications, which it also causes."""

    def wait(
        self,
        application_id: AnyApplication,
        on_change: Callable[[ApplicationView], None] = lambda _: None,
        *,
        timeout_s: float | None = None,
    ) -> ApplicationView:
        """Wait until an application has ended; return its last view.

        Args:
            on_change: called with the first view and each changed one.

        Raises:
            NotFound: there is no such application.
            TimedOut: it has not ended within ``timeout_s``; it continues to run.
        """
        for view in self.views(application_id, timeout_s=timeout_s):
            on_change(view)
        return view

    def views(self, application_id: AnyApplication, *, timeout_s: float | None = None) -> Iterator[ApplicationView]:
        """Yield the view of an application, and again each time that it differs, up to that of the end.

        Raises:
            NotFound: there is no such application.
            TimedOut: it has not ended within ``timeout_s``; it continues to run.
        """
        from dlapp.client.polling import poll_pause_s

        application_id = self._id(application_id)
        deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
        seen = None
        for polls in itertools.count():
            view = self.status(application_id)
            if view != seen:
                yield view
            if view.state.ended:
                return
            if (left_s := deadline - time.monotonic()) <= 0:
                raise TimedOut(f"{application_id} has not ended within {timeout_s:g} s, it is {view.state.value}")
            seen = view
            time.sleep(min(poll_pause_s(polls), left_s))

    def softkill(self, application_id: AnyApplication, *, user: str | None = None) -> str:
        """Request a soft-kill: SIGTERM, the grace time, output committed; return a line on what will happen.

        Args:
            user: the required owner; None to not check.

        Raises:
            NotFound: there is no such application.
            Denied: it is owned by another user, or not by ``user``.
        """
        application_id = self._id(application_id)
        self._check_can_end(application_id, user)
        return self._engine_of(application_id).soft_kill(application_id, connections.caller())

    def kill(self, application_id: AnyApplication, *, user: str | None = None) -> str:
        """Kill an application; everything of it is removed on return. Arguments and errors as for `softkill`."""
        application_id = self._id(application_id)
        self._check_can_end(application_id, user)
        return self._engine_of(application_id).kill(application_id, connections.caller())

    def release(self, application_id: AnyApplication) -> str:
        """Let a held application start; return a line on what will happen.

        Raises:
            NotFound: there is no such application.
            Denied: it is owned by another user.
        """
        application_id = self._id(application_id)
        return self._engine_of(application_id).release(application_id, connections.caller())

    def remove(self, applications: AnyApplication | Iterable[AnyApplication]) -> None:
        """Remove one or more ended applications from this machine's history, with their logs.

        All are checked before the first is removed.

        Raises:
            NotFound: one does not exist.
            Denied: one is owned by another user.
            UsageError: one has not ended, or is on a cluster.
        """
        if isinstance(applications, str) or not isinstance(applications, Iterable):
            applications = [applications]
        ids = [self._id(one) for one in applications]
        for one in ids:
            self._engine_of(one).check_removal(one)
        for one in ids:
            self._engine_of(one).remove(one)

    def _check_can_end(self, application_id: ApplicationId, user: str | None) -> None:
        self._ensure_runner(self._engine_of(application_id))
        if user is not None:
            self._check_owner(str(application_id), user)
