"""LocalEngine: submit, inspect and end applications on this machine."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dlapp.cluster import LOG_NAMES
from dlapp.cluster.local.client.access import ApplicationAccess, OwnerAccess
from dlapp.cluster.local.client.session import LocalSession
from dlapp.cluster.local.notices import start_pending_senders
from dlapp.cluster.local.state import StateDir, file_url
from dlapp.errors import DlappError, Refuse, raise_error
from dlapp.scheduler.amounts import Amounts
from dlapp.system.disk_space import full_disk
from dlapp.system.processes.spawn import PROGRAM
from dlapp.value import Closeable
from dlapp.version import __version__

if TYPE_CHECKING:
    from dlapp.cluster.engine import EngineInfo, LogFiles, PlanFacts, QueueFacts
    from dlapp.cluster.local.client.as_owner import RootAccess
    from dlapp.cluster.view_forms import ViewForms
    from dlapp.config import Config
    from dlapp.gpuid.health.nvml_subprocess import NvmlProcess
    from dlapp.values.access import ControlAccess
    from dlapp.values.ids import ApplicationId
    from dlapp.values.report import ApplicationView
    from dlapp.values.spec import AppSpec, Secrets, Submission


class OneApplication:
    """The calls of `dlapp.cluster.engine.Engine` for one application, by the caller's access to it.

    Whose an application is decides by which `ApplicationAccess` it is read and ended. Root may inspect and end other
    users' applications (`dlapp.cluster.local.client.as_owner`).
    """

    session: LocalSession

    def _access(self, application_id: ApplicationId | str) -> ApplicationAccess:
        """Return the caller's access to an application. Raises NotFound: no user of a shared directory has it."""
        text = str(application_id)
        if self.session.is_others:
            return self._as_root(self.session.state)
        if not self.session.is_foreign(text):
            return OwnerAccess(self.session)
        from dlapp.cluster.local.client.other_users import SharedAccess, owner_of

        return SharedAccess(self.session, owner_of(self.session.state, text))

    def _access_to_end(self, application_id: ApplicationId) -> ApplicationAccess:
        """Return the access that ends or releases an application: what root only reads in a shared directory, it ends
        as its owner."""
        from dlapp.cluster.local.client.other_users import SharedAccess

        access = self._access(application_id)
        if self.session.uid == 0 and isinstance(access, SharedAccess):
            return self._as_root(access.state)
        return access

    def _as_root(self, owner: StateDir) -> RootAccess:
        from dlapp.cluster.local.client.as_owner import RootAccess

        return RootAccess(self.session, owner)

    def view(self, application_id: ApplicationId | str) -> ViewForms:
        return _in_forms(self._access(application_id).view_json(str(application_id)))

    def view_in_full(self, application_id: ApplicationId | str) -> ViewForms:
        return _in_forms(self._access(application_id).view_in_full_json(str(application_id)))

    def owner(self, application_id: str) -> str:
        """Return the owner of an application, as the kernel reports it. Raises NotFound."""
        return self._access(application_id).owner(application_id)

    def submission(self, application_id: ApplicationId) -> Submission:
        from dlapp.values.serialization import from_json
        from dlapp.values.spec import Submission

        return from_json(Submission, self._access(application_id).submission_json(str(application_id)))

    def usage_json(self, application_id: ApplicationId) -> Any:
        return self._access(application_id).usage_json(str(application_id))

    def trials_text(self, application_id: ApplicationId) -> str:
        return self._access(application_id).trials_text(str(application_id))

    def logs(self, application_id: ApplicationId, try_number: int | None = None) -> list[LogFiles]:
        """Return the logs of all containers that ran, by CONTAINER_INDEX, of the last try or a given one. Raises
        NotFound."""
        from dlapp.cluster.engine import LogFiles

        view = self.view(application_id).value
        application_dir = self._access(application_id).application_dir(str(application_id))
        containers = os.path.join(application_dir, "containers")
        found = []
        for one in view.containers_of_try(try_number):
            directory = os.path.join(containers, str(one.container_id))
            files = {name: file_url(os.path.join(directory, name)) for name in LOG_NAMES}
            found.append(LogFiles.of(one, files))
        return found

    def aggregated_log(self, view: ApplicationView, log: LogFiles, name: str) -> Iterator[bytes] | None:
        """Return None: logs are not moved."""
        return None

    def dashboard_urls(self, application_id: ApplicationId, *, wait_s: float = 0.0) -> tuple[str, str]:
        """Return the URL of the page while the application runs, and the path of its history file after its end.

        Args:
            wait_s: how long to wait for the page, which exists once the application has started; without a page the
                path of a file is returned.
        """
        return self._access(application_id).dashboard_urls(str(application_id), wait_s)

    def control_access(self, application_id: ApplicationId) -> ControlAccess:
        return self._access(application_id).control_access(str(application_id))

    def soft_kill(self, application_id: ApplicationId, by: str) -> str:
        """Request a soft-kill; a waiting application is killed, as nothing of it runs.

        Raises:
            NotFound, Denied: it does not exist, or is another user's.
            Unreachable: its ApplicationMaster does not answer.
        """
        return self._access_to_end(application_id).soft_kill(str(application_id), by)

    def kill(self, application_id: ApplicationId, by: str) -> str:
        """Kill an application: request it from its ApplicationMaster, then send SIGKILL; return when all its processes
        have ended.

        Raises:
            NotFound, Denied: it does not exist, or is another user's.
            TimedOut: one of its processes has not ended (a hanging device can block it indefinitely).
        """
        return self._access_to_end(application_id).kill(str(application_id), by)

    def release(self, application_id: ApplicationId, by: str) -> str:
        return self._access_to_end(application_id).release(str(application_id), by)

    def unstored(self, view: Mapping[str, Any]) -> list[str]:
        application_id = str(view["application_id"])
        return self._access(application_id).unstored(application_id)

    def check_removal(self, application_id: ApplicationId) -> None:
        """Raise the errors that `remove` would raise.

        Raises:
            NotFound: it does not exist.
            Denied: it is another user's.
            UsageError: it has not ended.
            TimedOut: it has ended, but one of its processes is still there.
        """
        self._access(application_id).check_removal(str(application_id))

    def remove(self, application_id: ApplicationId) -> None:
        """Remove an ended application, with its logs.

        Raises:
            DlappError: its files cannot be removed; also the errors of `check_removal`.
        """
        self._access(application_id).remove(str(application_id))


class LocalEngine(OneApplication, Closeable):
    """The client's side of the embedded engine: the `dlapp.cluster.engine.Engine` of this machine.

    Args:
        config: the configuration.
        program: how dlapp's own processes are started; replaced in tests.
        nvml: calls NVML; None: a process of its own.

    Raises:
        ConfigError: the state directory cannot be used (for example on a network file system).
        Denied: it is another user's.
    """

    def __init__(self, config: Config, *, program: Sequence[str] = PROGRAM, nvml: NvmlProcess | None = None) -> None:
        self.session = LocalSession(config, program=program, nvml=nvml)

    @property
    def state(self) -> StateDir:
        """Return the directory of this engine's state."""
        return self.session.state

    def close(self) -> None:
        """Close this thread's database connection."""
        self.session.close()

    # ---- capacity and checks ----

    def info(self) -> EngineInfo:
        """Check that the state directory is usable and of a supported version, and return the engine's facts.

        Raises:
            Unreachable: the state has another version.
        """
        from dlapp.cluster.engine import EngineInfo

        if not self.session.is_others:
            self.session.queue().count_unsettled(self.session.uid)
        hdfs, why = self.session.hdfs
        return EngineInfo(
            name="local", version=__version__, has_gpus=self.session.has_whole_gpus(), hdfs=hdfs, no_hdfs=why
        )

    def capacity(self) -> Amounts:
        """Return the usable capacity of this machine: memory [MiB], vcores, gcores."""
        return self.session.capacity()

    def check(self, spec: AppSpec, refuse: Refuse = raise_error) -> list[str]:
        """Reject a request that this machine can never satisfy; see `dlapp.cluster.local.client.preflight.check`."""
        from dlapp.cluster.local.client import preflight

        return preflight.check(self.session, spec, refuse)

    def prepare(self) -> None:
        """Start the runner while the application is checked: both take about as long."""
        self.session.refuse_if_others()
        with contextlib.suppress(DlappError, OSError):  # submit() retries
            self.session.ensure_runner(wake=False, stay=True)

    def ensure_runner(self) -> str:
        """Start a runner if the caller has rows and none is running; cheap if one is.

        Returns:
            A message if the state's disk is full and applications wait for space. Otherwise empty.
        """
        if self.session.is_others:
            return ""
        full = full_disk(self.state.database)
        try:
            if self.session.queue().count_unsettled(self.session.uid):
                self.session.ensure_runner(wake=False)
            start_pending_senders(self.state, self.session.settings.program)
        except (DlappError, OSError):
            if not full:
                raise
        return full

    # ---- submitting ----

    def archive_cache(self) -> str:
        """Return the caller's directory for packed workspaces; entries unused for long or beyond the limit are
        removed."""
        from dlapp.cluster.local.client import submission

        return submission.archive_cache(self.session)

    def find_archive(self, digest: str) -> str:
        """Return the location of the packed workspace of an earlier submission, and mark it as used now.

        Raises:
            NotFound: it was removed from the cache.
        """
        from dlapp.cluster.local.client import submission

        return submission.find_archive(self.session, digest)

    def submit(self, submission: Submission, secrets: Secrets) -> ApplicationId:
        """Submit an application; after the return it runs independently of the caller.

        Atomic: the files are first written in a temporary directory; then one transaction inserts the row and renames
            the directory.

        Raises:
            NotFound: the archive of its workspace no longer exists.
            Unreachable: the state cannot be written.
        """
        from dlapp.cluster.local.client import submission as submissions

        return submissions.submit(self.session, submission, secrets)

    # ---- many applications ----

    def ids(self, *, everybody: bool = False) -> list[str]:
        if self.session.is_others:
            return self._as_root(self.state).ids() if everybody else []
        from dlapp.cluster.local.client import views

        return views.ids(self.session, everybody=everybody)

    def issued(self, application_id: str) -> bool:
        """Return whether this engine issued an id: all ids of one user contain the same time.

        Raises:
            Unreachable: its rows cannot be read, or are of another version.
        """
        if self.session.is_others:
            return self._as_root(self.state).issued(application_id)
        from dlapp.cluster.local.client import views

        return views.issued(self.session, application_id)

    def views(self, *, everybody: bool = False, user: str | None = None, limit: int | None = None) -> list[ViewForms]:
        """Return the views of many applications, oldest first: the caller's own, one user's, or those of all users.

        Args:
            user: an operating system's user, who owns the directories of the applications.
            limit: how many ended ones to include, the latest first; None: all. Of their containers, only the one that
                determines the exit code is included.
        """
        if not self.session.is_others:
            from dlapp.cluster.local.client import views

            found = views.views_json(self.session, everybody, user, limit)
        else:
            is_wanted = everybody or user is not None
            found = self._as_root(self.state).views_json(user, limit) if is_wanted else []
        return list(map(_in_forms, found))

    def add_receipts(self, views: Sequence[dict[str, Any]]) -> Sequence[str]:
        """Do nothing: the views contain the receipts."""
        return ()

    def plan(self, spec: AppSpec) -> PlanFacts:
        from dlapp.cluster.local.client import views

        return views.waits_of(self.session).plan(spec, self.session.waiting())

    def queue_facts(self) -> QueueFacts:
        """Return the start order of the waiting applications and, for the caller's own, the expected times."""
        if self.session.is_others:
            from dlapp.cluster.engine import QueueFacts

            return QueueFacts()
        from dlapp.cluster.local.client import views

        return views.queue_facts(self.session)

    def node_names(self) -> tuple[str, ...]:
        """Return none: there are no nodes besides this machine."""
        return ()


def _in_forms(view: dict[str, Any]) -> ViewForms:
    from dlapp.cluster.view_forms import ViewForms  # a submission reads no view

    return ViewForms(json=view)
