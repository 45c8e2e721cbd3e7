"""The operations of a client that read applications."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dlapp.client.operations.connections import Connections
from dlapp.cluster import LOG_NAMES
from dlapp.errors import (
    Denied,
    DlappError,
    NotFound,
    Unreachable,
    UsageError,
)

# Modules that define classes are imported where they are needed: dlapp-status needs none of them.
if TYPE_CHECKING:
    from dlapp.client.operations.connections import AnyApplication
    from dlapp.client.sweep import Sweep
    from dlapp.cluster.engine import Engine, LogFiles
    from dlapp.locations import HdfsPlace
    from dlapp.values.report import ApplicationView
    from dlapp.values.spec import Submission
    from dlapp.values.usage import UsageHistory

FINISHED_SHOWN = 20


class Queries(Connections):
    """Reader of applications."""

    def status(self, application_id: AnyApplication) -> ApplicationView:
        """Return the current state of an application. Raises NotFound."""
        application_id = self._id(application_id)
        engine = self._engine_of(application_id)
        self._ensure_runner(engine)
        return engine.view(application_id)

    def why(self, application_id: AnyApplication) -> ApplicationView:
        """Return the current state of an application; if it waits, ``waiting`` also has the smallest change that would
        let it start now, and an estimate of its start. Raises NotFound."""
        from dlapp.values.report import ApplicationView
        from dlapp.values.serialization import from_json

        return from_json(ApplicationView, self.why_json(str(self._id(application_id))))

    def why_json(self, application_id: str) -> dict[str, Any]:
        """Return `why` in its JSON form."""
        engine = self._engine_of(application_id)
        self._ensure_runner(engine)
        return engine.view_in_full_json(application_id)

    def list(
        self, *, user: str | None = None, everybody: bool = False, finished: int | None = FINISHED_SHOWN
    ) -> Sequence[ApplicationView]:
        """Return applications on all engines that the caller uses, oldest first: the caller's, one user's, or
        everybody's.

        Args:
            finished: maximum number of ended applications, the latest ones; None for all. Of their containers only the
                one that determines the exit code is included.
        """
        from dlapp.values.report import ApplicationView
        from dlapp.values.serialization import from_json

        found = self.list_json(user=user, everybody=everybody, finished=finished)
        return [from_json(ApplicationView, one) for one in found]

    def list_json(
        self,
        *,
        user: str | None = None,
        everybody: bool = False,
        finished: int | None = FINISHED_SHOWN,
        wanted: Callable[[dict[str, Any]], bool] | None = None,
        unanswered: Callable[[Unreachable], None] | None = None,
        unread: Callable[[str], None] = lambda _: None,
    ) -> Sequence[dict[str, Any]]:
        """Return `list` in its JSON form, as the engines provide it: fields with default values may be missing.

        Args:
            user, everybody, finished: see `list`.
            wanted: selects views; None for all.
            unanswered: called with an engine that is not the configured one and does not answer; None to raise the
                error.
            unread: called with each of your applications whose receipt could not be read, or not in a bounded time.
        """
        limit = finished if wanted is None else None
        by_engine: list[tuple[Engine, list[dict[str, Any]]]] = []
        for engine in (self.engine, *self._engines.used()[1:]):
            self._ensure_runner(engine)
            try:
                by_engine.append((engine, engine.views_json(everybody=everybody, user=user, limit=limit)))
            except Unreachable as error:
                if unanswered is None or engine is self.engine:
                    raise
                unanswered(error)
        found = [one for _, views in by_engine for one in views]
        shown = _latest(found if wanted is None else list(filter(wanted, found)), finished)
        kept = {id(one) for one in shown}
        for engine, views in by_engine:
            for application_id in engine.add_receipts([one for one in views if id(one) in kept]):
                unread(application_id)
        return shown

    def queue_json(self, *, unanswered: Callable[[Unreachable], None] | None = None) -> dict[str, Any]:
        """Return running and waiting applications of all users on all engines that the caller uses; docs/json.md has
        the fields.

        Args:
            unanswered: called with an engine that is not the configured one and does not answer; None to raise the
                error.
        """
        from dlapp.client.queue import queue_of

        applications, shares = list[dict[str, Any]](), list[dict[str, Any]]()
        for place, engine in enumerate((self.engine, *self._engines.used()[1:])):
            try:
                self._ensure_runner(engine)
                found = queue_of(engine)
            except Unreachable as error:
                if place == 0 or unanswered is None:
                    raise
                unanswered(error)
                continue
            applications += found["applications"]
            shares += found["shares"]
        return {"applications": applications, "shares": shares}

    def usage(self, application_id: AnyApplication) -> UsageHistory:
        """Return the resource usage of an application's containers over time; while it runs, as of some minutes ago.

        Raises:
            NotFound: there is no such application.
            DlappError: it cannot be read.
        """
        from dlapp.errors import SpecError
        from dlapp.values.serialization import from_json
        from dlapp.values.usage import UsageHistory

        found = self._id(application_id)
        data = self._engine_of(found).usage_json(found)
        try:
            return from_json(UsageHistory, {} if data is None else data)
        except (SpecError, UsageError) as error:
            raise DlappError(f"the use of the containers of {found} cannot be read: {error}") from error

    def sweep(self, application_id: AnyApplication) -> Sweep:
        """Return the sweep of an application, with access to its trials. Raises NotFound."""
        from dlapp.client.sweep import Sweep

        found = self._id(application_id)
        return Sweep(found, self._engine_of(found))

    def submission(self, application_id: AnyApplication) -> Submission:
        """Return what was submitted: the spec, the properties file without values of variables, the digest of the
        packed workspace, versions.

        Raises:
            NotFound: there is no such application, or this record was removed.
            Denied: it is owned by another user.
        """
        application_id = self._id(application_id)
        return self._engine_of(application_id).submission(application_id)

    def hdfs_of(self, application_id: AnyApplication, username: str | None = None) -> HdfsPlace | None:
        """Return the HDFS for reading the locations of an application; None if none is configured.

        Args:
            application_id: the id of the application.
            username: its Hadoop user (`AppSpec.username`); None for the caller.
        """
        place = self._engine_of(self._id(application_id)).info().hdfs
        return place if place is None or username is None else place._replace(login=place.login.as_user(username))

    def log_urls(self, view: Mapping[str, Any]) -> Sequence[dict[str, Any]]:
        """Return the log files of a view (in its JSON form), in CONTAINER_INDEX order: fields of `LogFiles`."""
        names = ("container_id", "role", "role_index", "index")
        return [
            {
                **{name: one[name] for name in names},
                "files": {name: log_file_url(one["log_url"], name) for name in LOG_NAMES},
            }
            for one in sorted(view["containers"], key=lambda one: int(one["index"]))
            if one["log_url"]
        ]

    def unstored(self, view: Mapping[str, Any]) -> Sequence[str]:
        """Return the directories with output of an application that could not be stored.

        They are on this machine, and are never removed automatically. On a cluster each is ``host:path``, on the node
        of its container, and a NodeManager that starts without recovery removes it.

        Args:
            view: the view of the application, in its JSON form.
        """
        return self._engine_of(str(view["application_id"])).unstored(view)

    def dashboard_urls(self, application_id: AnyApplication) -> tuple[str, str]:
        """Return the URLs of the application for a browser: while it runs, and after its completion."""
        application_id = self._id(application_id)
        return self._engine_of(application_id).dashboard_urls(application_id)

    def log_files(self, application_id: AnyApplication) -> Sequence[LogFiles]:
        """Return the log files of all containers that have run, in CONTAINER_INDEX order. Raises NotFound."""
        application_id = self._id(application_id)
        return self._engine_of(application_id).logs(application_id)

    def index_of(self, application_id: AnyApplication, role: str, number: int) -> int:
        """Return the CONTAINER_INDEX of a container, by its role and its number in the role, from 0.

        Raises:
            NotFound: there is no such application, or it has no such role or number.
        """
        application_id = self._id(application_id)
        try:
            spec = self.submission(application_id).spec
        except Denied:
            # Only the owner can read what was submitted; a user in `view_acl` sees the started containers.
            for container in self.status(application_id).containers:
                if (container.role, container.role_index) == (role, number):
                    return container.index
            raise NotFound(f"{application_id} has no container {role}:{number} that was started") from None
        first = 0
        for one in spec.roles:
            if one.name == role:
                if number < one.instances:
                    return first + number
                count = one.instances
                raise NotFound(f"{application_id} has no container {role}_{number}: the role has {count}, from 0")
            first += one.instances
        names = ", ".join(one.name for one in spec.roles)
        raise NotFound(f"{application_id} has no role {role}, it has {names}")

    def index_of_rank(self, application_id: AnyApplication, rank: int) -> int:
        """Return the CONTAINER_INDEX of a rank: the number of a container in the role that decides.

        Raises:
            NotFound: there is no such application or rank.
            UsageError: several roles decide.
        """
        application_id = self._id(application_id)
        spec = self.submission(application_id).spec
        names = [role.name for role in spec.roles if spec.decides(role)]
        if len(names) != 1:
            example = f"--container {names[0]}_{rank}" if names else "--container"
            raise UsageError(f"{application_id} has no ranks: {' and '.join(names)} decide; use {example}")
        return self.index_of(application_id, names[0], rank)


def _latest(views: list[dict[str, Any]], finished: int | None) -> list[dict[str, Any]]:
    """Merge views of several engines in one order, with a maximum number of ended ones."""
    views.sort(key=lambda one: int(one["submitted_ms"]))
    if finished is None:
        return views
    ended = [place for place, one in enumerate(views) if one["finished_ms"] is not None]
    left_out = set(ended[: max(0, len(ended) - finished)])
    return [one for place, one in enumerate(views) if place not in left_out]


def log_file_url(log_url: str, name: str) -> str:
    """Return the URL of one log file: a file, or a page that shows its last 4 KiB."""
    return f"{log_url}/{name}" if log_url.startswith("file:") else f"{log_url}/{name}/?start=-4096"
