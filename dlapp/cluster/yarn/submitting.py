"""Handing an application in: what it needs is brought to the cluster, then YARN is told.

Files go to the user's cache on HDFS by their digest, so what is there is not sent again. All that the ApplicationMaster
is told is one `plan`, in the credentials of its container.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from dlapp.cluster.yarn import checks, reports, travel
from dlapp.cluster.yarn.connected import Connected
from dlapp.cluster.yarn.dialect import Dialect
from dlapp.cluster.yarn.errors import ApplicationNotFound, NotAllowed, RemoteError
from dlapp.cluster.yarn.interpreter import DIRECTORY as PYTHON_DIRECTORY
from dlapp.cluster.yarn.interpreter import archive_resource, check_archive, interpreter
from dlapp.cluster.yarn.plan import WORKSPACE, Plan, environment_of, python_command
from dlapp.cluster.yarn.remembered import local_cache, remember
from dlapp.cluster.yarn.rest import KILL_END_S, KIND, AppSubmission, YarnRest
from dlapp.cluster.yarn.staging import CACHE_MODE, Files, Places
from dlapp.cluster.yarn.sweeping import Ended, Limits, mark_use, sweep, sweep_cache
from dlapp.cluster.yarn.task_side import NODE_MANAGER
from dlapp.cluster.yarn.values import Cluster, Launch, LocalResource
from dlapp.config import Config
from dlapp.errors import Denied, DlappError, TimedOut, Unreachable
from dlapp.ids import ApplicationId
from dlapp.report import FinalStatus, State
from dlapp.spec import AppSpec, Secrets, Submission

IN_DOUBT_S = 60.0
"""So long a submission is repeated of which YARN does not say that it has it; another one takes over in 10 to 30 s."""
ACCEPTED_S = 10.0
"""How long YARN may take to say whether it takes an application; 30 ms on an idle cluster."""
KEEP_FREE = 0.12
"""Share of a node's disk that our cache of input leaves free: a NodeManager gives up a disk that is filled to 90 %
(yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage)."""
_EARLY = (State.NEW, State.NEW_SAVING, State.SUBMITTED)


class Submitter:
    """Hands applications in.

    Args:
        ledger_of: describes the configured ledger of GPUs for `dlapp.gpuid.stores.open_ledger`.
    """

    def __init__(self, there: Connected, ledger_of: Callable[[Config], dict[str, Any]] | None) -> None:
        self._there, self._ledger_of = there, ledger_of
        self._preparing: threading.Thread | None = None

    def prepare(self) -> None:
        """Bring dlapp's own archive to the cluster while the workspace is packed."""
        # Whatever goes wrong comes up again, and is said, at the submission.
        self._preparing = threading.Thread(target=self._prepare, name="yarn-prepare", daemon=True)
        self._preparing.start()

    def _prepare(self) -> None:
        with contextlib.suppress(DlappError, OSError):
            travel.packed(local_cache("travel"))
        with contextlib.suppress(DlappError, OSError):
            self._sweep()

    def _sweep(self) -> None:
        """Remove what others' kills left, and what is older or more than it may be."""
        storage, history = self._there.config.storage, self._there.config.history
        sweep_cache(local_cache("workspaces"), storage.cache_age_s, storage.cache_limit_bytes)
        files = self._there.own_files()
        limits = Limits(storage.cache_age_s, storage.cache_limit_bytes, history.age_s, history.limit_bytes)
        try:
            # A session of its own: this is another thread.
            with self._there.own_rest() as rest:
                reports = rest.reports(user=self._there.user)
                ended = {
                    one.application_id: Ended(one.state, rest.ended_ago_s(one)) for one in reports if one.state.ended
                }
            sweep(files, Places(files.home), ended, limits, int(time.time() * 1000))
        finally:
            files.close()

    def submit(self, submission: Submission, secrets: Secrets) -> ApplicationId:
        """Hand an application in; after the return it runs whatever becomes of the caller.

        Raises:
            UsageError: YARN refused it, with its reason.
            Denied: the user may not write to their home directory on HDFS.
            Unreachable: YARN or HDFS does not answer.
        """
        spec = submission.spec
        user = spec.username
        rest, files = self._there.rest(user), self._there.files(user)
        places = Places(files.home)
        new = self._there.take_id(rest)
        archive = submission.workspace_archive.removeprefix("file://")
        if self._preparing is not None:
            self._preparing.join()
        program, name = travel.packed(local_cache("travel"))
        staged = _both(
            lambda: self._staged(files, user, program, f"{places.cache}/{name}", 0o644, "PUBLIC"),
            lambda: self._staged(files, user, archive, f"{places.cache}/{os.path.basename(archive)}", 0o600, "PRIVATE"),
        )
        own = {travel.NAME: staged[0], **self._python_archive(files, user)}
        python = interpreter(self._there.config.yarn.python, self._there.config.yarn.python_archive)
        plan = Plan(
            submission=replace(submission, workspace_archive=staged[1].url),
            secrets=Secrets(
                control_secret=secrets.control_secret, env=secrets.env, environment=environment_of(secrets.environment)
            ),
            cluster=self._cluster(user),
            home=places.home,
            python=python,
            storage=self._there.storage(user),
            resources={**own, WORKSPACE: staged[1]},
            ledger=self._ledger(),
            runtime={
                "docker_host": self._there.config.runtime.docker.host,
                "docker_network": self._there.config.runtime.docker.network,
                "docker_gpu_mode": self._there.config.runtime.docker.gpu_mode,
                "docker_lock_dir": self._there.config.gpuid.lock_dir,
            },
            cache={
                "limit_bytes": self._there.config.storage.cache_limit_bytes,
                "age_s": self._there.config.storage.cache_age_s,
                "keep_free": KEEP_FREE,
            },
        )
        queue = spec.queue or "default"
        application = AppSubmission(
            application_id=new.application_id,
            name=spec.appname,
            kind=KIND,
            launch=Launch(
                command=python_command(python, "am", "--engine", "yarn"),
                resources=own,
                credentials=plan.to_credentials().encode(),
            ),
            memory_mib=self._there.config.yarn.am_memory_mib,
            queue=queue,
            priority=spec.priority,
            attempts=self._there.config.yarn.am_attempts,
            tags=_tags(spec),
        )
        try:
            refused = self._handed_in(rest, application)
        except NotAllowed:
            raise
        except RemoteError as error:
            raise checks.refusal(error.message, new.application_id, queue, user) from error
        except Unreachable as error:
            remember(str(new.application_id), submission.submitted_ms)
            after = f"dlapp-status {new.application_id} will tell, dlapp-kill {new.application_id} end it"
            raise Unreachable(f"{error}; the application may have been taken all the same: {after}") from error
        if refused is not None:
            raise checks.refusal(refused, new.application_id, queue, user)
        remember(str(new.application_id), submission.submitted_ms)
        return new.application_id

    def run_on_a_node(self, word: str, secret: str, told: Mapping[str, Any], *, timeout_s: float) -> str:
        """Run a process of dlapp's alone in a container (`dlapp.cluster.yarn.probe`); what it said at its end.

        Args:
            word: names the process (`dlapp.__main__`).
            secret: the name under which its credentials have ``told``.

        Raises:
            TimedOut: it did not end in time; it was killed.
            DlappError: YARN does not take it.
        """
        from dlapp.cluster.yarn import probe  # with it comes protobuf, a fifth of what dlapp-status takes

        user = self._there.user
        rest, files = self._there.rest(user), self._there.files(user)
        program, name = travel.packed(local_cache("travel"))
        staged = self._staged(files, user, program, f"{Places(files.home).cache}/{name}", 0o644, "PUBLIC")
        own = {travel.NAME: staged, **self._python_archive(files, user)}
        python = interpreter(self._there.config.yarn.python, self._there.config.yarn.python_archive)
        new = rest.new_application()
        launch = Launch(
            command=python_command(python, word),
            resources=own,
            credentials=probe.credentials_of(secret, self._cluster(user), self._there.storage(user), told),
        )
        rest.submit(
            AppSubmission(
                application_id=new.application_id,
                name=f"dlapp-{word}",
                kind=probe.KIND,
                launch=launch,
                memory_mib=self._there.config.yarn.am_memory_mib,
                attempts=1,
            )
        )
        deadline = time.monotonic() + timeout_s
        while not (report := rest.report(new.application_id)).state.ended:
            if time.monotonic() >= deadline:
                rest.kill(new.application_id, timeout_s=KILL_END_S)
                raise TimedOut(
                    f"{new.application_id} did not end in {timeout_s:g} s, it was {report.state.value}: "
                    f"{reports.first_line(report.diagnostics)}"
                )
            time.sleep(0.1)
        if report.final_status is FinalStatus.SUCCEEDED:
            return report.diagnostics
        return reports.first_line(report.diagnostics)

    def _cluster(self, user: str) -> Cluster:
        return Cluster(
            schedulers=tuple(self._there.site.resource_managers("scheduler.address")),
            clients=tuple(self._there.site.resource_managers("address")),
            login=self._there.login.as_user(user),
            dialect=self._there.dialect(),
        )

    def _python_archive(self, files: Files, user: str) -> dict[str, LocalResource]:
        archive = self._there.config.yarn.python_archive
        if archive is None:
            return {}
        check_archive(archive)
        location = f"{self._there.storage(user)['location']}/{archive.removeprefix('hdfs://').lstrip('/')}"
        if archive.startswith("hdfs://") and not archive.startswith("hdfs:///"):
            location = archive
        return {PYTHON_DIRECTORY: archive_resource(files, location, public=_all_may_read(files, location))}

    def _staged(self, files: Files, user: str, path: str, location: str, mode: int, visibility: str) -> LocalResource:
        """A file of ours on the cluster, brought there if it is not there already.

        Its name is its digest, and it gets it when it is whole. One that is there is never written again: YARN fails
        every container that was promised the file as it was.

        Raises:
            Denied: what is there may have been written by others.
        """
        found = files.look(location)
        if found is not None and (found.owner != user or found.mode & 0o022):
            raise Denied(
                f"{location} is {found.owner}'s, with mode {found.mode:o}: others may have written it; remove it"
            )
        if found is None:
            directory = location.rpartition("/")[0]
            above = directory.rpartition("/")[0]
            files.make(above, CACHE_MODE)
            files.make(directory, CACHE_MODE)
            found = files.send(path, location, mode)
        else:
            mark_use(files, location, found.modified_ms, int(time.time() * 1000))
        if visibility == "PUBLIC" and not _all_may_read(files, location):
            visibility = "PRIVATE"
        return LocalResource(url=location, size=found.size_bytes, timestamp_ms=found.modified_ms, visibility=visibility)

    def _ledger(self) -> dict[str, Any] | None:
        if self._there.dialect() is Dialect.YARN_GPU:
            return {"kind": NODE_MANAGER, "lock_dir": self._there.config.gpuid.lock_dir}
        if self._ledger_of is None or not self._there.has_ledger():
            return None
        return self._ledger_of(self._there.config)

    def _handed_in(self, rest: YarnRest, application: AppSubmission) -> str | None:
        """Hand it in; why YARN does not take it, None: it does.

        An answer that is lost says nothing, so all is done again: YARN has one application under one id. So it is where
        a ResourceManager has taken it and another one, or its next start, does not know of it.
        """
        deadline, pause_s = time.monotonic() + IN_DOUBT_S, 0.2
        while True:
            try:
                rest.submit(application)
                return self._refused(rest, application.application_id)
            except (Unreachable, ApplicationNotFound):
                if time.monotonic() + pause_s >= deadline:
                    raise
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 3.0)

    def _refused(self, rest: YarnRest, application_id: ApplicationId) -> str | None:
        """Why YARN does not take an application; None: it does."""
        deadline, pause_s = time.monotonic() + ACCEPTED_S, 0.005
        while (report := rest.report(application_id)).state in _EARLY:
            if time.monotonic() >= deadline:
                return None  # it is in, and the state says so
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 0.1)
        refused = report.state is State.FAILED and not report.am_node
        return reports.first_line(report.diagnostics) if refused else None


def _tags(spec: AppSpec) -> tuple[str, ...]:
    return (*spec.tags, *((f"project:{spec.project}",) if spec.project else ()))


def _all_may_read(files: Files, location: str) -> bool:
    """Whether everybody may read a file: YARN makes it public only then, and else fails the container.

    Source: FSDownload.isPublic. The root is taken for granted: whom it keeps out has nothing on HDFS.
    """
    scheme, _, rest = location.partition("://")
    place, _, path = rest.partition("/")
    names = path.split("/")
    for count in range(1, len(names) + 1):
        found = files.look(f"{scheme}://{place}/{'/'.join(names[:count])}")
        if found is None or not found.mode & (0o004 if count == len(names) else 0o001):
            return False
    return True


def _both(one: Callable[[], LocalResource], other: Callable[[], LocalResource]) -> tuple[LocalResource, LocalResource]:
    """Both at the same time: most of each is waiting for the file system."""
    found: list[LocalResource] = []
    failed: list[BaseException] = []

    def work() -> None:
        try:
            found.append(other())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work, name="yarn-staging", daemon=True)
    thread.start()
    try:
        first = one()
    finally:
        thread.join()
    if failed:
        raise failed[0]
    return first, found[0]
