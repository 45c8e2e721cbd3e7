"""The operations of a client that read applications."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dlapp.client.operations.views import FINISHED_SHOWN, Views
from dlapp.errors import (
    Denied,
    DlappError,
    NotFound,
    UsageError,
)

# Modules that define classes are imported where they are needed: dlapp-status needs none of them.
if TYPE_CHECKING:
    from dlapp.client.operations.connections import AnyApplication
    from dlapp.client.sweep import Sweep
    from dlapp.cluster.engine import LogFiles
    from dlapp.locations import HdfsPlace
    from dlapp.values.report import ApplicationView
    from dlapp.values.spec import Submission
    from dlapp.values.usage import UsageHistory


class Queries(Views):
    """Reader of applications."""

    def status(self, application_id: AnyApplication) -> ApplicationView:
        """Return the current state of an application. Raises NotFound."""
        return self.view_of(self._id(application_id)).value

    def why(self, application_id: AnyApplication) -> ApplicationView:
        """Return the current state of an application; if it waits, ``waiting`` also has the smallest change that would
        let it start now, and an estimate of its start. Raises NotFound."""
        return self.view_of(self._id(application_id), in_full=True).value

    def list(
        self, *, user: str | None = None, everybody: bool = False, finished: int | None = FINISHED_SHOWN
    ) -> Sequence[ApplicationView]:
        """Return applications on all engines that the caller uses, oldest first: the caller's, one user's, or
        everybody's.

        Args:
            finished: maximum number of ended applications, the latest ones; None for all. Of their containers only the
                one that determines the exit code is included.
        """
        return [one.value for one in self.views_of_all(user=user, everybody=everybody, finished=finished)]

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
