"""YarnEngine: submitting to a Hadoop cluster, looking at what is there, ending it.

YARN is asked over REST; files go by way of the `Files` that the engine is made with. What an application is doing now
its ApplicationMaster says, at its control address; what became of it is in the history that it left (see `staging`);
and where neither answers, what YARN itself knows is shown.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from dlapp.cluster.engine import EngineInfo, LogFiles
from dlapp.cluster.yarn import checks, probe, reports, travel
from dlapp.cluster.yarn.dialect import FIELD3_LIMIT, Dialect, choose_dialect
from dlapp.cluster.yarn.errors import ApplicationNotFound, NotAllowed, RemoteError
from dlapp.cluster.yarn.interpreter import DIRECTORY as PYTHON_DIRECTORY
from dlapp.cluster.yarn.interpreter import archive_resource, check_archive, interpreter
from dlapp.cluster.yarn.plan import WORKSPACE, Plan, environment_of, python_command
from dlapp.cluster.yarn.remembered import local_cache, remember
from dlapp.cluster.yarn.rest import AppReport, AppSubmission, NewApplication, YarnRest, version_of
from dlapp.cluster.yarn.site import Site, hadoop_user, read_site
from dlapp.cluster.yarn.staging import CACHE_MODE, KILL, OWN_MODE, SECRETS, SOFT_KILL, SUBMISSION, VIEW, Files, Places
from dlapp.cluster.yarn.sweeping import Limits, mark_use, settle, sweep, sweep_cache
from dlapp.cluster.yarn.task_side import NODE_MANAGER
from dlapp.cluster.yarn.values import Cluster, Launch, LocalResource
from dlapp.config import Config
from dlapp.control import TOOLS, StopAnswer, StopRequest, derive_token
from dlapp.errors import ConfigError, Denied, DlappError, NotFound, TimedOut, Unreachable
from dlapp.ids import ApplicationId
from dlapp.jsonform import from_json, to_json
from dlapp.report import ApplicationView, FinalStatus, State
from dlapp.spec import AppSpec, Secrets, Submission

if TYPE_CHECKING:
    from dlapp.control_http import ControlConnection

ACCEPTED_S = 10.0
"""How long YARN may take to say whether it takes an application; 30 ms on an idle cluster."""
KILL_ASK_S = 2.0
"""How long an ApplicationMaster may take to end by itself once dlapp-kill has asked it."""
KILL_END_S = 60.0
ASK_S = 5.0
KEEP_FREE = 0.12
"""Share of a node's disk that our cache of input leaves free: a NodeManager gives up a disk that is filled to 90 %
(yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage)."""
_KIND = "DLAPP"
_EARLY = (State.NEW, State.NEW_SAVING, State.SUBMITTED)

FilesOf = Callable[[dict[str, Any]], Files]
"""Opens the file system that `Site.storage` describes."""


class YarnEngine:
    """The client's side of a YARN cluster.

    Args:
        open_files: gives the file system of the cluster as one user.
        ledger_of: describes the configured ledger of GPUs for `dlapp.gpuid.stores.open_ledger`.
        user: the Hadoop user that looks and kills; None: $HADOOP_USER_NAME, or the operating system's.

    Raises:
        ConfigError: nothing says where the cluster is.
    """

    def __init__(
        self,
        config: Config,
        open_files: FilesOf,
        *,
        ledger_of: Callable[[Config], dict[str, Any]] | None = None,
        user: str | None = None,
    ) -> None:
        self._config, self._open_files, self._ledger_of = config, open_files, ledger_of
        self._site: Site = read_site(config.yarn.conf_dir)
        self._user = user or hadoop_user()
        self._rest_by_user: dict[str, YarnRest] = {}
        self._files_by_user: dict[str, Files] = {}
        self._new: NewApplication | None = None
        self._dialect_known: Dialect | None = None
        self._preparing: threading.Thread | None = None
        self._asked: tuple[tuple[ApplicationId, str], ControlConnection] | None = None

    def close(self) -> None:
        """Close the connections."""
        self._leave_master()
        for rest in self._rest_by_user.values():
            rest.close()
        for files in self._files_by_user.values():
            files.close()

    def __enter__(self) -> YarnEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _rest(self, user: str | None = None) -> YarnRest:
        user = user or self._user
        if user not in self._rest_by_user:
            self._rest_by_user[user] = YarnRest(self._site.web_urls(), user)
        return self._rest_by_user[user]

    def _files(self, user: str) -> Files:
        if user not in self._files_by_user:
            self._files_by_user[user] = self._open_files(self._site.storage(user))
        return self._files_by_user[user]

    # ---- what there is ----

    def info(self) -> EngineInfo:
        """The cluster answers, and is of a version that we speak.

        Raises:
            Unreachable: no ResourceManager answers, or one of a version before 2.7.
            ConfigError: the configured dialect is not the cluster's.
        """
        version = str(self._rest().info().get("resourceManagerVersion") or "")
        if version_of(version) < (2, 7):
            raise Unreachable(f"the ResourceManager is Hadoop {version or 'of no version'}; 2.7 is the least")
        self._new = self._rest().new_application()
        dialect = self._dialect()
        gcores = self._new.largest.get(dialect.value, 0) if dialect is not Dialect.FIELD3 else 1
        has_gpus = dialect is not Dialect.NONE and gcores > 0 and self._has_ledger()
        hdfs = self._site.storage(self._user)
        return EngineInfo(name="yarn", version=version, has_gpus=has_gpus, hdfs=hdfs, paths_on_hdfs=True)

    def _has_ledger(self) -> bool:
        """Whether somebody knows which card is whose: our ledger, or with ``yarn.io/gpu`` each NodeManager."""
        return self._dialect() is Dialect.YARN_GPU or self._config.gpuid.zookeeper.ensemble is not None

    def _dialect(self) -> Dialect:
        if self._dialect_known is None:
            rest = self._rest()
            self._new = self._new or rest.new_application()
            types = set(self._new.largest)
            configured = self._config.yarn.dialect
            maybe = configured == "field3" or (configured == "auto" and len(types) <= 2)
            field3 = maybe and rest.configuration(FIELD3_LIMIT) is not None
            self._dialect_known = choose_dialect(configured, types, has_field3=field3)
        return self._dialect_known

    def check(self, spec: AppSpec) -> list[str]:
        """Refuse an ask that this cluster can never meet, and a queue that takes no applications.

        Returns:
            Lines for the user: an ask that no present node can meet, though a later one might.

        Raises:
            AskTooLarge: a container above the cluster's maximum, or GPUs where none are counted.
            ConfigError: GPUs, and no ledger of them.
            SpecError: the queue.
            NotFound, Denied, Unreachable: the user's home directory takes no files, or their queue no application.
        """
        rest = self._rest()
        self._new = self._new or rest.new_application()
        dialect, user, lines = self._dialect(), spec.username, []
        nodes = rest.nodes()
        for role in spec.roles:
            lines += checks.check_limits(role.resources, dialect, self._new.largest, rest.configuration)
            if role.resources.gcores and not self._has_ledger():
                raise ConfigError(
                    "gcores are asked for, and nothing says which card belongs to whom: set gpuid.zookeeper.ensemble"
                )
            lines += checks.check_nodes(role.resources, dialect, nodes)
        checks.check_queue(rest.queues(), spec.queue or "default")
        checks.check_home(self._files(user), user)
        if spec.priority is not None:
            most = int(rest.configuration("yarn.cluster.max-application-priority") or 0)
            if spec.priority > most:
                lines.append(f"priority {spec.priority} is lowered to {most}, the most that the cluster allows")
        return lines

    def node_names(self) -> tuple[str, ...]:
        """The hosts that run containers now. Raises Unreachable."""
        return tuple(node.name.partition(":")[0] for node in self._rest().nodes() if node.state == "RUNNING")

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
        storage, history = self._config.storage, self._config.history
        sweep_cache(local_cache("workspaces"), storage.cache_age_s, storage.cache_limit_bytes)
        files = self._open_files(self._site.storage(self._user))
        limits = Limits(storage.cache_age_s, storage.cache_limit_bytes, history.age_s, history.limit_bytes)
        try:
            # A session of its own: this is another thread.
            with YarnRest(self._site.web_urls(), self._user) as rest:
                ended = [one.application_id for one in rest.reports(user=self._user) if one.state.ended]
            sweep(files, Places(files.home), ended, limits, int(time.time() * 1000))
        finally:
            files.close()

    def archive_cache(self) -> str:
        """Directory for packed workspaces on this machine; what is in it is brought to the cluster."""
        return local_cache("workspaces")

    # ---- submitting ----

    def submit(self, submission: Submission, secrets: Secrets) -> ApplicationId:
        """Hand an application in; after the return it runs whatever becomes of the caller.

        Raises:
            UsageError: YARN refused it, with its reason.
            Denied: the user may not write to their home directory on HDFS.
            Unreachable: YARN or HDFS does not answer.
        """
        spec = submission.spec
        user = spec.username
        rest, files = self._rest(user), self._files(user)
        places = Places(files.home)
        new = self._new or rest.new_application()
        self._new = None
        archive = submission.workspace_archive.removeprefix("file://")
        if self._preparing is not None:
            self._preparing.join()
        program, name = travel.packed(local_cache("travel"))
        staged = _both(
            lambda: self._staged(files, user, program, f"{places.cache}/{name}", 0o644, "PUBLIC"),
            lambda: self._staged(files, user, archive, f"{places.cache}/{os.path.basename(archive)}", 0o600, "PRIVATE"),
        )
        own = {travel.NAME: staged[0], **self._python_archive(files, user)}
        python = interpreter(self._config.yarn.python, self._config.yarn.python_archive)
        plan = Plan(
            submission=_with_archive(submission, staged[1].url),
            secrets=Secrets(
                control_secret=secrets.control_secret, env=secrets.env, environment=environment_of(secrets.environment)
            ),
            cluster=self._cluster(user),
            home=places.home,
            python=python,
            storage=self._site.storage(user),
            resources={**own, WORKSPACE: staged[1]},
            ledger=self._ledger(),
            runtime={
                "docker_host": self._config.runtime.docker.host,
                "docker_network": self._config.runtime.docker.network,
                "docker_gpu_mode": self._config.runtime.docker.gpu_mode,
                "docker_lock_dir": self._config.gpuid.lock_dir,
            },
            cache={
                "limit_bytes": self._config.storage.cache_limit_bytes,
                "age_s": self._config.storage.cache_age_s,
                "keep_free": KEEP_FREE,
            },
        )
        queue = spec.queue or "default"
        application = AppSubmission(
            application_id=new.application_id,
            name=spec.appname,
            kind=_KIND,
            launch=Launch(
                command=python_command(python, "am", "--engine", "yarn"),
                resources=own,
                credentials=plan.to_credentials().encode(),
            ),
            memory_mib=self._config.yarn.am_memory_mib,
            queue=queue,
            priority=spec.priority,
            attempts=self._config.yarn.am_attempts,
            tags=_tags(spec),
        )
        try:
            rest.submit(application)
            refused = self._refused(rest, new.application_id)
        except NotAllowed:
            raise
        except RemoteError as error:
            raise checks.refusal(error.message, new.application_id, queue, user) from error
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
        user = self._user
        rest, files = self._rest(user), self._files(user)
        program, name = travel.packed(local_cache("travel"))
        staged = self._staged(files, user, program, f"{Places(files.home).cache}/{name}", 0o644, "PUBLIC")
        own = {travel.NAME: staged, **self._python_archive(files, user)}
        python = interpreter(self._config.yarn.python, self._config.yarn.python_archive)
        new = rest.new_application()
        launch = Launch(
            command=python_command(python, word),
            resources=own,
            credentials=probe.credentials_of(secret, self._cluster(user), self._site.storage(user), told),
        )
        rest.submit(
            AppSubmission(
                application_id=new.application_id,
                name=f"dlapp-{word}",
                kind=probe.KIND,
                launch=launch,
                memory_mib=self._config.yarn.am_memory_mib,
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
            schedulers=tuple(self._site.resource_managers("scheduler.address")),
            clients=tuple(self._site.resource_managers("address")),
            user=user,
            dialect=self._dialect(),
        )

    def _python_archive(self, files: Files, user: str) -> dict[str, LocalResource]:
        archive = self._config.yarn.python_archive
        if archive is None:
            return {}
        check_archive(archive)
        location = f"{self._site.storage(user)['location']}/{archive.removeprefix('hdfs://').lstrip('/')}"
        if archive.startswith("hdfs://") and not archive.startswith("hdfs:///"):
            location = archive
        return {PYTHON_DIRECTORY: archive_resource(files, location, public=_all_may_pass(files, location))}

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
        if visibility == "PUBLIC" and not _all_may_pass(files, location):
            visibility = "PRIVATE"
        return LocalResource(url=location, size=found.size_bytes, timestamp_ms=found.modified_ms, visibility=visibility)

    def _ledger(self) -> dict[str, Any] | None:
        if self._dialect() is Dialect.YARN_GPU:
            return {"kind": NODE_MANAGER, "lock_dir": self._config.gpuid.lock_dir}
        if self._ledger_of is None or not self._has_ledger():
            return None
        return self._ledger_of(self._config)

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

    def tend(self) -> None:
        """Nothing to do: YARN looks after what it was given."""

    # ---- looking ----

    def ids(self, *, everybody: bool = False) -> list[str]:
        """All ids as text, oldest first: the caller's own, or everybody's."""
        found = self._rest().reports(user=None if everybody else self._user, kind=_KIND)
        return [str(one.application_id) for one in found]

    def view(self, application_id: ApplicationId) -> ApplicationView:
        """What is known of it now. Raises NotFound."""
        report = self._report(application_id)
        view, submission = self._told(report)
        return reports.merged(report, view, submission, self._log_url_of(report, view))

    def view_json(self, application_id: str) -> dict[str, Any]:
        """`view` in its JSON form. Raises NotFound."""
        found: dict[str, Any] = to_json(self.view(ApplicationId.from_text(application_id)))
        return found

    def views(
        self, *, everybody: bool = False, user: str | None = None, limit: int | None = None
    ) -> list[ApplicationView]:
        """What YARN knows of many, oldest first: the caller's own, one user's, or everybody's; without containers.

        Args:
            limit: how many of those that have ended, the latest; None: all.
        """
        whose = None if everybody else user or self._user
        found = self._rest().reports(user=whose, kind=_KIND)
        ended = [one for one in found if one.state.ended]
        kept = set(ended if limit is None else ended[len(ended) - limit :] if limit else ())
        return [reports.merged(one, None, None) for one in found if not one.state.ended or one in kept]

    def views_json(
        self, *, everybody: bool = False, user: str | None = None, limit: int | None = None
    ) -> list[dict[str, Any]]:
        """`views` in JSON form."""
        return [to_json(one) for one in self.views(everybody=everybody, user=user, limit=limit)]

    def submission(self, application_id: ApplicationId) -> Submission:
        """What was submitted. Raises NotFound."""
        report = self._report(application_id)
        _, submission = self._told(report, live=False)
        if submission is None:
            files = self._files(report.user)
            place = f"{Places(files.home).staging(application_id)}/{SUBMISSION}"
            submission = from_json(Submission, json.loads(files.read(place)))
        return submission

    def logs(self, application_id: ApplicationId) -> list[LogFiles]:
        """The logs of all containers that ran, in CONTAINER_INDEX order, the last attempt of each. Raises NotFound."""
        return [
            LogFiles(
                container_id=one.container_id,
                role=one.role,
                role_index=one.role_index,
                index=one.index,
                files={name: reports.log_file_url(one.log_url, name) for name in ("stdout", "stderr", "dlapp.log")},
            )
            for one in sorted(self.view(application_id).containers, key=lambda one: one.index)
            if one.log_url
        ]

    def collected_log(self, view: ApplicationView, log: LogFiles, name: str) -> Iterator[bytes] | None:
        """A log of an application that has ended, as its node collected it on HDFS; None: it is not there, or not yet.

        Raises:
            Denied: the caller may not read it.
            DlappError: it cannot be read.
        """
        from dlapp.cluster.yarn.collected import Collected

        root = str(self._site.storage(self._user)["location"])
        # Collected logs are their owner's; what a node is called there is the host name that it reports.
        found = Collected(self._files(view.username), self._site, root, view.username, view.application_id)
        host = next((one.host for one in view.containers if one.container_id == log.container_id), "")
        return found.log(str(log.container_id), name, host)

    def dashboard_urls(self, application_id: ApplicationId, *, wait_s: float = 0.0) -> tuple[str, str]:
        """The ResourceManager's page, and the timeline server's, which stays when that one has forgotten it."""
        running = f"{self._rest().active_url()}/cluster/app/{application_id}"
        timeline = self._site.timeline_url()
        return running, f"{timeline}/applicationhistory/app/{application_id}" if timeline else running

    def _report(self, application_id: ApplicationId) -> AppReport:
        try:
            return self._rest().report(application_id)
        except ApplicationNotFound as missing:
            timeline = self._site.timeline_url()
            if timeline is None:
                raise NotFound(f"{application_id} is not known to YARN (dlapp-list -a shows what is)") from missing
            return reports.from_timeline(timeline, application_id, self._user)

    def _told(self, report: AppReport, *, live: bool = True) -> tuple[ApplicationView | None, Submission | None]:
        """What the application's own ApplicationMaster says or said of it, and what was submitted, where known."""
        files = self._files(report.user)
        places = Places(files.home)
        if report.state.ended:
            self._leave_master()
        elif live and report.tracking_url:
            with contextlib.suppress(DlappError):
                return from_json(ApplicationView, self._ask(report, "GET", "view", None, timeout_s=ASK_S)), None
        # It is written before YARN is told of the end, and the staging directory removed after that.
        if (kept := _history(files, places, report.application_id)) is not None:
            return kept
        if report.state in (State.KILLED, State.FAILED) and report.user == self._user:
            # Others ended it, and its ApplicationMaster had no time.
            with contextlib.suppress(Denied, Unreachable):
                settle(files, places, report.application_id)
            if (kept := _history(files, places, report.application_id)) is not None:
                return kept
        with contextlib.suppress(NotFound, Denied, ValueError):
            place = f"{places.staging(report.application_id)}/{VIEW}"
            return from_json(ApplicationView, json.loads(files.read(place))), None
        return None, None

    def _log_url_of(self, report: AppReport, view: ApplicationView | None) -> Callable[[str], str]:
        """What a log URL is after the end: the history server's, which the node's is turned into."""
        server = self._site.get("yarn.log.server.url")
        if not report.state.ended or view is None or not server:
            return lambda url: url
        nodes = {node.web: node.name for node in self._rest().nodes()}
        return lambda url: reports.completed_log_url(url, server, nodes)

    # ---- ending ----

    def soft_kill(self, application_id: ApplicationId, by: str) -> str:
        """Ask for a soft-kill: the ApplicationMaster, or by a marker that it finds; one that waits is killed.

        Raises:
            NotFound, Denied: it is not there, or another user's.
        """
        report = self._own(application_id, by)
        if report.state.ended:
            return _over(report)
        if not report.tracking_url:
            return self.kill(application_id, by)
        try:
            answer = from_json(
                StopAnswer, self._ask(report, "POST", "softkill", to_json(StopRequest(user=by)), timeout_s=ASK_S)
            )
        except Unreachable:
            self._mark(report, SOFT_KILL, by)
            return (
                f"{application_id} does not answer from here; it stops when it finds the mark in its staging directory"
            )
        left = f"SIGKILL follows in {max(0.0, answer.left_s):.0f} s at the latest"
        if answer.message:
            return answer.message
        if answer.state == "ended":
            return f"{application_id} had already ended"
        if answer.state == "already":
            return f"{application_id} is being stopped already; {left}"
        return f"{application_id} is being stopped, its output will be committed; {left}"

    def kill(self, application_id: ApplicationId, by: str) -> str:
        """Kill: ask its ApplicationMaster, then YARN, and remove what it left.

        Raises:
            NotFound, Denied: it is not there, or another user's.
            TimedOut: YARN did not end it in a minute; it goes on with it.
        """
        report = self._own(application_id, by)
        if report.state.ended:
            return _over(report)
        files = self._files(report.user)
        if report.tracking_url:
            self._mark(report, KILL, by)
            with contextlib.suppress(DlappError):
                self._ask(report, "POST", "kill", to_json(StopRequest(user=by)), timeout_s=KILL_ASK_S)
                self._wait_for_end(application_id, KILL_ASK_S)
        rest = self._rest(report.user)
        state = rest.kill(application_id, timeout_s=KILL_END_S)
        settle(files, Places(files.home), application_id)
        if state is State.KILLED:
            return f"{application_id} was killed, no output kept"
        ended = self.view(application_id)
        if ended.state is State.KILLED:
            return f"{application_id} was killed, no output kept"
        return f"{application_id} had ended before the kill: {ended.state.value}, {ended.diagnostics}"

    def _wait_for_end(self, application_id: ApplicationId, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not self._rest().report(application_id).state.ended and time.monotonic() < deadline:
            time.sleep(0.05)

    def _own(self, application_id: ApplicationId, by: str) -> AppReport:
        report = self._report(application_id)
        if by not in (report.user, "root") and self._user != report.user:
            raise Denied(f"{application_id} belongs to {report.user}; only they or root may end it")
        return report

    def _mark(self, report: AppReport, name: str, by: str) -> None:
        files = self._files(report.user)
        staging = Places(files.home).staging(report.application_id)
        files.make(staging, OWN_MODE)
        files.write(f"{staging}/{name}", json.dumps({"by": by, "ms": int(time.time() * 1000)}).encode(), 0o600)

    def _ask(self, report: AppReport, method: str, what: str, body: Any, *, timeout_s: float) -> Any:
        """One call of an ApplicationMaster's control address. Raises DlappError."""
        address = str(report.raw.get("amRPCAddress") or "")
        if not address:
            raise Unreachable(f"{report.application_id}: its ApplicationMaster is not up")
        try:
            return self._master(report, address).call(method, f"/v1/{what}", body, timeout_s=timeout_s)
        except Unreachable:
            self._leave_master()
            raise

    def _master(self, report: AppReport, address: str) -> ControlConnection:
        """The connection to an ApplicationMaster, kept while it is asked again: who waits for an end asks often."""
        from dlapp.control_http import ControlConnection

        if self._asked is None or self._asked[0] != (report.application_id, address):
            self._leave_master()
            files = self._files(report.user)
            place = f"{Places(files.home).staging(report.application_id)}/{SECRETS}"
            secrets = from_json(Secrets, json.loads(files.read(place)))
            connection = ControlConnection(f"http://{address}", derive_token(secrets.control_secret, TOOLS))
            self._asked = (report.application_id, address), connection
        return self._asked[1]

    def _leave_master(self) -> None:
        if self._asked is not None:
            self._asked[1].close()
            self._asked = None


def _history(
    files: Files, places: Places, application_id: ApplicationId
) -> tuple[ApplicationView | None, Submission] | None:
    with contextlib.suppress(NotFound, Denied):
        kept = json.loads(files.read(places.history(application_id)))
        view = from_json(ApplicationView, kept["view"]) if kept.get("view") else None
        return view, from_json(Submission, kept["submission"])
    return None


def _with_archive(submission: Submission, location: str) -> Submission:
    from dataclasses import replace

    return replace(submission, workspace_archive=location)


def _tags(spec: AppSpec) -> tuple[str, ...]:
    return (*spec.tags, *((f"project:{spec.project}",) if spec.project else ()))


def _all_may_pass(files: Files, location: str) -> bool:
    """Whether everybody may read a file: YARN makes it public only then, and else fails the container."""
    scheme, _, rest = location.partition("://")
    place, _, path = rest.partition("/")
    names = path.split("/")
    for count in range(1, len(names)):
        found = files.look(f"{scheme}://{place}/{'/'.join(names[:count])}")
        if found is None or not found.mode & 0o001:
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


def _over(report: AppReport) -> str:
    return f"{report.application_id} had already ended: {report.state.value}, {report.final_status.value}"
