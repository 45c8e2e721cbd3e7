"""Submission of an application: upload its files to the cluster, then submit it to YARN.

Files are stored in the user's cache on HDFS by their digest, so existing ones are not uploaded again. The
ApplicationMaster gets its input as one `plan`, in the credentials of its container.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dlapp.cluster.yarn import bundle
from dlapp.cluster.yarn.am_plan import WORKSPACE, AmPlan, acls_of, environment_of, python_command
from dlapp.cluster.yarn.client import preflight, views
from dlapp.cluster.yarn.client.cleanup import clean_up, clean_up_cache, mark_use, own_applications
from dlapp.cluster.yarn.client.interpreter import DIRECTORY as PYTHON_DIRECTORY
from dlapp.cluster.yarn.client.interpreter import archive_resource, check_archive, interpreter
from dlapp.cluster.yarn.client.local_files import tools_tokens
from dlapp.cluster.yarn.client.local_files.last_application import local_cache, remember
from dlapp.cluster.yarn.client.rest import KILL_END_S, KIND, AppSubmission, YarnRest
from dlapp.cluster.yarn.client.session import ClusterSession
from dlapp.cluster.yarn.client.shared_tokens import sharing_tokens
from dlapp.cluster.yarn.dialect import Dialect
from dlapp.cluster.yarn.staging import CACHE_MODE, StagingFiles, StagingPaths
from dlapp.cluster.yarn.values import Cluster, Launch, LocalResource
from dlapp.config import Config
from dlapp.errors import ConfigError, Denied, DlappError, NotFound, TimedOut, Unreachable, UsageError
from dlapp.hadoop.errors import ApplicationNotFound, NotAllowed, RemoteError
from dlapp.locations import FileInfo
from dlapp.system import clock
from dlapp.system.clock import backoff_s
from dlapp.system.retention import Retention
from dlapp.system.waits import Wait
from dlapp.value import replace
from dlapp.values.access import TOOLS, derive_token
from dlapp.values.ids import ApplicationId
from dlapp.values.launch_spec import NODE_MANAGER, CacheSettings, DockerSettings, LedgerSettings
from dlapp.values.report import FinalStatus, State
from dlapp.values.serialization import to_json
from dlapp.values.spec import AppSpec, Secrets, Submission

IN_DOUBT_S = 60.0
"""How long a submission is repeated if YARN does not confirm it; a failover takes 10 to 30 s."""
ACCEPTED_S = 10.0
"""Time limit for YARN to accept or reject an application; 30 ms on an idle cluster."""
KEEP_FREE = 0.12
"""Share of a node's disk that dlapp's input cache leaves free: a NodeManager gives up a disk that is filled to 90 %
(yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage)."""
MAX_CERTIFICATES = 64 << 10
"""Maximum size of the CAs sent with an application, in characters; ZooKeeper stores a submission in at most 1 MiB."""
MAX_CREDENTIALS = 256 << 10
"""Maximum size of an application's credentials [bytes], which the ResourceManager stores in ZooKeeper: 1 MiB for the
whole submission, unless the operator set less. ResourceManagers of 2.7 and 2.8 exit when ZooKeeper refuses one
(YARN-5006)."""
FEW_CONTAINERS = 50
"""Up to this number of containers, three replicas of the archives suffice: 50 times 1 GB at 1 GB/s each is 17 s."""
MAX_REPLICATION, DEFAULT_MAX_REPLICATION = "dfs.replication.max", 512
"""The NameNode's limit, and its default. Source: hdfs-default.xml."""
ARCHIVE = ".tar.gz"
"""File name suffix of a packed workspace, after the digest."""
_EARLY = (State.NEW, State.NEW_SAVING, State.SUBMITTED)


class ApplicationSubmitter:
    """Submitter of applications.

    Args:
        ledger_of: returns the address of the configured GPU ledger.
    """

    def __init__(self, session: ClusterSession, ledger_of: Callable[[Config], LedgerSettings] | None) -> None:
        self._session, self._ledger_of = session, ledger_of
        self._preparing: threading.Thread | None = None
        self._packed: tuple[str, str] | None = None

    def prepare(self) -> None:
        """Pack dlapp's own archive while the application is checked, and clean up."""
        if self._preparing is not None and self._preparing.is_alive():
            return  # of a submission that was refused
        self._packed = None
        # An error here shows up again, and is reported, at the submission.
        self._preparing = threading.Thread(target=self._prepare, name="yarn-prepare", daemon=True)
        self._preparing.start()

    def _prepare(self) -> None:
        with contextlib.suppress(DlappError, OSError):
            self._packed = bundle.packed(local_cache("travel"))
        with contextlib.suppress(DlappError, OSError):
            self._clean_up()

    def _clean_up(self) -> None:
        """Remove leftovers of killed applications, and files beyond the limits of age and size."""
        storage, history = self._session.config.storage, self._session.config.history
        archives = Retention(storage.cache_age_s, storage.cache_limit_bytes)
        clean_up_cache(local_cache("workspaces"), archives)
        files = self._session.own_files()
        histories = Retention(history.age_s, history.limit_bytes)
        try:
            # A session of its own: this is another thread.
            with self._session.own_rest() as rest:
                applications = own_applications(rest, files, self._session.user)
            for application_id in applications.ended:
                tools_tokens.forget(application_id, login_user=self._session.user)
            notices = self._session.notices(files)
            if notices is not None:
                notices.deliver(applications.ended, applications.unfinished.keys())
            clean_up(files, applications, archives, histories, clock.now_ms(), notices)
        finally:
            files.close()

    def find_archive(self, digest: str) -> str:
        """Return the location of the packed workspace of an earlier submission: on HDFS, else on this machine.

        Raises:
            NotFound: it was removed from both caches.
        """
        files = self._session.files(self._session.user)
        location = f"{StagingPaths(files.home).cache}/{digest}{ARCHIVE}"
        if files.status(location) is not None:
            return location
        own = os.path.join(local_cache("workspaces"), f"{digest}{ARCHIVE}")
        if not os.path.exists(own):
            raise NotFound(f"the packed workspace {location} is not in the cache any more")
        return own

    def submit(self, submission: Submission, secrets: Secrets) -> ApplicationId:
        """Submit an application; after the return it runs independently of the caller.

        Raises:
            UsageError: YARN rejected it, with its reason; or its workspace is a directory of this machine.
            Denied: the user may not write to their home directory on HDFS.
            Unreachable: YARN or HDFS does not answer.
        """
        if submission.live is not None:
            raise UsageError(f"{submission.live.path} is a directory of this machine, and no workspace on a cluster")
        spec = submission.spec
        user = spec.username
        rest, files = self._session.rest(user), self._session.files(user)
        places = StagingPaths(files.home)
        archive = submission.workspace_archive.removeprefix("file://")
        workspace = f"{places.cache}/{os.path.basename(archive)}" if archive else ""
        plan = self._plan(submission, secrets, workspace)
        credentials_of(plan)  # reject what is too large before anything is sent
        new = self._session.new_id(rest)
        plan = replace(plan, submission=plan.submission.named(new.application_id))
        if self._preparing is not None:
            self._preparing.join()
        above = _Directories(files)
        staged, packed = self._stage_archives(above, spec, places.cache, archive, workspace)
        self._replicate(files, [one.url for one in (staged, packed) if one is not None], spec.containers)
        own = {bundle.NAME: staged, **self._python_archive(above, user)}
        credentials = credentials_of(replace(plan, resources=own | ({WORKSPACE: packed} if packed else {})))
        queue = spec.queue or "default"
        application = AppSubmission(
            application_id=new.application_id,
            name=spec.appname,
            kind=KIND,
            launch=Launch(
                command=python_command(plan.python, "am", "--engine", "yarn"),
                resources=own,
                credentials=credentials,
                acls=acls_of(spec),
            ),
            memory_mib=self._session.config.yarn.am_memory_mib,
            queue=queue,
            priority=spec.priority,
            attempts=self._session.config.yarn.am_attempts,
            am_node_label=self._session.config.yarn.am_node_label or "",
            tags=views.tags_of(submission, secrets.notify),
        )
        # Before YARN has it, so that the token also exists after a submission with an unknown result. Without it,
        # commands work as on another machine, so a home directory that is not writable is no error.
        with contextlib.suppress(OSError):
            kept = tools_tokens.KeptToken(user, derive_token(secrets.control_secret, TOOLS))
            tools_tokens.keep(new.application_id, kept)
        with sharing_tokens(files, new.application_id, spec, secrets.control_secret):
            self._submit_or_refuse(rest, application, user, submission.submitted_ms)
        remember(str(new.application_id), submission.submitted_ms)
        return new.application_id

    def _stage_archives(
        self, above: _Directories, spec: AppSpec, cache: str, archive: str, workspace: str
    ) -> tuple[LocalResource, LocalResource | None]:
        """Copy dlapp's own archive and the packed workspace to HDFS, unless they are there.

        Args:
            above: the file system.
            spec: the application.
            cache: the user's directory for both.
            archive: the packed workspace on this machine, or on HDFS; empty: there is none.
            workspace: its place on HDFS.

        Returns:
            Both; None: there is no workspace.
        """
        remote = preflight.carried_schemes(spec.inputs, self._session.config.storage.node_schemes)
        program, name = self._packed or ("", "")
        if remote or not os.path.exists(program):  # another version of dlapp removes what is not its own
            program, name = bundle.packed(local_cache("travel"), remote=bool(remote))

        def staged_program() -> LocalResource:
            return self._staged(above, spec.username, program, f"{cache}/{name}", 0o644, "PUBLIC")

        def staged_workspace() -> LocalResource:
            if archive == workspace:
                return self._staged_before(above, spec.username, workspace)
            return self._staged(above, spec.username, archive, workspace, 0o600, "PRIVATE")

        return _both(staged_program, staged_workspace) if archive else (staged_program(), None)

    def _submit_or_refuse(self, rest: YarnRest, application: AppSubmission, user: str, submitted_ms: int) -> None:
        """Submit to YARN, and wait until it has accepted the application. Raises as `submit`."""
        name, queue = application.application_id, application.queue
        try:
            refused = self._submit_until_accepted(rest, application)
        except NotAllowed:
            raise
        except RemoteError as error:
            raise preflight.refusal(error.message, name, queue, user, rest.queues) from error
        except Unreachable as error:
            remember(str(name), submitted_ms)
            after = f"dlapp-status {name} shows if it runs, dlapp-kill {name} ends it"
            raise Unreachable(f"{error}; the application may have been accepted nevertheless: {after}") from error
        if refused is not None:
            tools_tokens.forget(name, login_user=user)
            raise preflight.refusal(refused, name, queue, user, rest.queues)

    def _plan(self, submission: Submission, secrets: Secrets, workspace: str) -> AmPlan:
        """Return the plan of an application without its resources; ``workspace`` is where its packed workspace will be.

        Raises:
            ConfigError: the CAs trusted here are too large to be sent along.
        """
        spec, config = submission.spec, self._session.config
        docker = config.runtime.docker
        named = [source for one in spec.inputs for source in one.sources] + [one.target for one in spec.outputs]
        plan = AmPlan(
            submission=replace(submission, workspace_archive=workspace),
            secrets=replace(secrets, environment=environment_of(secrets.environment)),
            cluster=self._cluster(spec.username),
            home=self._session.files(spec.username).home,
            python=interpreter(config.yarn.python, config.yarn.python_archive),
            hdfs=self._session.hdfs(spec.username).for_locations(named),
            ledger=self._ledger(any(role.resources.gcores for role in spec.roles)),
            docker=DockerSettings(docker.host, docker.network, docker.gpu_mode, config.gpuid.lock_dir),
            cache=CacheSettings(
                config.storage.cache_limit_bytes,
                config.storage.cache_age_s,
                KEEP_FREE,
                payload_limit_bytes=config.storage.payload_cache_limit_bytes,
            ),
        )
        if len(plan.hdfs.certificates) > MAX_CERTIFICATES:
            raise ConfigError(
                f"the CAs that are trusted here have {len(plan.hdfs.certificates) >> 10} KiB, and "
                f"{MAX_CERTIFICATES >> 10} KiB are taken along to the nodes: set SSL_CERT_FILE to a file with the CA "
                "of your cluster alone"
            )
        return plan

    def run_on_node(self, subcommand: str, secret: str, instructions: Mapping[str, Any], *, timeout_s: float) -> str:
        """Run a single dlapp process in a container (`dlapp.cluster.yarn.probe`). Return its final output.

        Args:
            subcommand: subcommand of the process (`dlapp.__main__`).
            secret: name of ``instructions`` in its credentials.
            instructions: its input.
            timeout_s: time limit, including its start [s].

        Raises:
            TimedOut: it did not end in time; it was killed.
            DlappError: YARN rejects it.
        """
        from dlapp.cluster.yarn import probe  # loads the ApplicationMaster's calls, which dlapp-status does not need

        user = self._session.user
        rest, files = self._session.rest(user), self._session.files(user)
        program, name = bundle.packed(local_cache("travel"))
        above = _Directories(files)
        staged = self._staged(above, user, program, f"{StagingPaths(files.home).cache}/{name}", 0o644, "PUBLIC")
        own = {bundle.NAME: staged, **self._python_archive(above, user)}
        python = interpreter(self._session.config.yarn.python, self._session.config.yarn.python_archive)
        new = rest.new_application()
        launch = Launch(
            command=python_command(python, subcommand),
            resources=own,
            credentials=probe.credentials_of(secret, self._cluster(user), self._session.hdfs(user), instructions),
        )
        rest.submit(
            AppSubmission(
                application_id=new.application_id,
                name=f"dlapp-{subcommand}",
                kind=probe.KIND,
                launch=launch,
                memory_mib=self._session.config.yarn.am_memory_mib,
                attempts=1,
                am_node_label=self._session.config.yarn.am_node_label or "",
            )
        )
        deadline = time.monotonic() + timeout_s
        with Wait(f"the end of {new.application_id}", timeout_s):
            while not (report := rest.report(new.application_id)).state.ended:
                if time.monotonic() >= deadline:
                    rest.kill(new.application_id, timeout_s=KILL_END_S)
                    raise TimedOut(
                        f"{new.application_id} did not end in {timeout_s:g} s, it was {report.state.value}: "
                        f"{views.first_line(report.diagnostics)}"
                    )
                time.sleep(0.1)
        if report.final_status is FinalStatus.SUCCEEDED:
            return report.diagnostics
        return views.first_line(report.diagnostics)

    def _cluster(self, user: str) -> Cluster:
        return Cluster(
            schedulers=tuple(self._session.site.resource_managers("scheduler.address")),
            clients=tuple(self._session.site.resource_managers("address")),
            login=self._session.login.as_user(user),
            dialect=self._session.dialect(),
            web_scheme=self._session.site.web_scheme,
            web=tuple(self._session.site.web_urls()),
            preemption_wait_s=self._session.preemption_wait_s(),
        )

    def _python_archive(self, above: _Directories, user: str) -> dict[str, LocalResource]:
        archive = self._session.config.yarn.python_archive
        if archive is None:
            return {}
        check_archive(archive)
        location = self._session.hdfs(user).resolve(archive)
        return {PYTHON_DIRECTORY: archive_resource(above.files, location, public=_all_may_read(above, location))}

    def _staged_before(self, above: _Directories, user: str, location: str) -> LocalResource:
        """Return a workspace that an earlier submission uploaded. Raises NotFound, Denied."""
        found = above.files.status(location)
        if found is None:
            raise NotFound(f"the packed workspace {location} is gone")
        _refuse_others(above, user, location, found)
        mark_use(above.files, location, found.modified_ms, clock.now_ms())
        return LocalResource(url=location, size=found.size_bytes, timestamp_ms=found.modified_ms, visibility="PRIVATE")

    def _staged(
        self, above: _Directories, user: str, path: str, location: str, mode: int, visibility: str
    ) -> LocalResource:
        """Return a file of dlapp on the cluster, uploaded if missing.

        Its name is its digest, and it gets the name when it is complete. An existing file is never written again: YARN
        fails every container whose resource has changed since it was registered.

        Only files that the user placed there run as the user: the file and the directories above it, up to the home
        directory, must be owned by the user and not writable by others. A program is compared with ours; a workspace,
        which may be large, is compared with its digest by each task when it unpacks it.

        Raises:
            Denied: the existing file may have been written by others.
        """
        files = above.files
        found, existed = files.status(location), True
        if found is None:
            directory = location.rpartition("/")[0]
            existed = False
            files.make(directory.rpartition("/")[0], CACHE_MODE)
            files.make(directory, CACHE_MODE)
            found = files.send(path, location, mode)
        _refuse_others(above, user, location, found)
        with open(path, "rb") as own:
            size = os.fstat(own.fileno()).st_size
            if found.size_bytes != size or (
                existed and visibility == "PUBLIC" and files.read_part(location, 0, size) != own.read()
            ):
                raise Denied(f"{location} is not what its name says: it differs from {path}; remove it")
        if existed:
            mark_use(files, location, found.modified_ms, clock.now_ms())
        if visibility == "PUBLIC" and not _all_may_read(above, location, found):
            visibility = "PRIVATE"
        return LocalResource(url=location, size=found.size_bytes, timestamp_ms=found.modified_ms, visibility=visibility)

    def _replicate(self, files: StagingFiles, locations: Sequence[str], containers: int) -> None:
        """Raise the replication of our archives if many nodes will fetch them at the same time."""
        count = replication(containers, self._session.site.get(MAX_REPLICATION))
        if count is None:
            return
        for location in locations:
            # The application also runs without it; its containers only take longer to start.
            with contextlib.suppress(DlappError):
                files.replicate(location, count)

    def _ledger(self, needed: bool) -> LedgerSettings | None:
        if self._session.dialect() is Dialect.YARN_GPU:
            config = self._session.config
            web = f"{self._session.site.web_scheme}://"
            return LedgerSettings(NODE_MANAGER, config.gpuid.lock_dir, config.runtime.docker.host, web=web)
        if self._ledger_of is None or not self._session.has_ledger():
            return None
        if not needed and self._session.config.gpuid.zookeeper.credentials is None:
            return None  # an error only for applications with GPUs
        try:
            return self._ledger_of(self._session.config)
        except ConfigError:
            if needed:
                raise
            return None  # as above

    def _submit_until_accepted(self, rest: YarnRest, application: AppSubmission) -> str | None:
        """Submit it; return why YARN rejects it, or None.

        A lost answer is no result, so YARN is asked, and the submission is repeated if YARN does not have it. This also
        covers a ResourceManager that accepted it and was then replaced or restarted without it.
        """
        deadline, is_sent = time.monotonic() + IN_DOUBT_S, False
        with Wait(f"YARN to accept {application.application_id}", IN_DOUBT_S) as wait:
            for pause_s in backoff_s(0.2, 3.0):
                try:
                    if not is_sent or not _has(rest, application.application_id):
                        is_sent = True
                        rest.submit(application)
                    return self._refused(rest, application.application_id)
                except (Unreachable, ApplicationNotFound) as error:
                    if time.monotonic() + pause_s >= deadline:
                        raise
                    wait.why = str(error)
                time.sleep(pause_s)
        raise AssertionError

    def _refused(self, rest: YarnRest, application_id: ApplicationId) -> str | None:
        """Return why YARN rejects an application; None: it accepts it."""
        deadline, pauses_s = time.monotonic() + ACCEPTED_S, backoff_s(0.005, 0.1)
        while (report := rest.report(application_id)).state in _EARLY:
            if time.monotonic() >= deadline:
                return None  # it was accepted; its state has the rest
            time.sleep(next(pauses_s))
        refused = report.state is State.FAILED and not report.am_node
        return views.first_line(report.diagnostics) if refused else None


def replication(containers: int, most: str | None) -> int | None:
    """Return the replication of an application's archives; None: the file system's default.

    It is the square root of the number of containers, as MapReduce uses that of the nodes: so each DataNode sends an
    archive about as often as there are replicas, and no more replicas are made than are read.

    Args:
        containers: number of containers.
        most: ``dfs.replication.max``; None: not set.

    Source: mapred-default.xml, mapreduce.client.submit.file.replication.
    """
    if containers <= FEW_CONTAINERS:
        return None
    limit = int(most) if most is not None and most.isascii() and most.isdigit() else DEFAULT_MAX_REPLICATION
    return min(math.isqrt(containers - 1) + 1, limit)


def _has(rest: YarnRest, application_id: ApplicationId) -> bool:
    """Return whether YARN has an application. Raises Unreachable: no ResourceManager is active."""
    try:
        rest.report(application_id)
    except ApplicationNotFound:
        return False
    return True


def credentials_of(plan: AmPlan) -> bytes:
    """Return the credentials that carry a plan.

    Raises:
        UsageError: they exceed what a ResourceManager may store.
    """
    found = plan.to_credentials().encode()
    if len(found) <= MAX_CREDENTIALS:
        return found
    spec = plan.submission.spec
    parts = {
        "the variables (env.NAME, env_file)": (plan.secrets.env, plan.secrets.role_env),
        "the input ([from_hdfs])": spec.inputs,
        "the output ([to_hdfs])": spec.outputs,
        "the arguments (user_shell_args)": spec.args,
        "the roles ([role NAME])": spec.roles,
        "the patterns (user_dev_workspace_exclude_list)": spec.exclude,
        "the CAs (SSL_CERT_FILE)": plan.hdfs.certificates,
    }
    name, size = max(((name, len(json.dumps(to_json(part)))) for name, part in parts.items()), key=lambda one: one[1])
    raise UsageError(
        f"the application's settings have {len(found) >> 10} KiB, and a ResourceManager keeps {MAX_CREDENTIALS >> 10} "
        f"KiB at most: {name} alone have {size >> 10} KiB; put them into a file of the workspace, or name fewer"
    )


class _Directories:
    """File system of one submission; the statuses of the directories above what it uses are read once. Thread-safe."""

    def __init__(self, files: StagingFiles) -> None:
        self.files = files
        self._known, self._lock = dict[str, FileInfo | None](), threading.Lock()

    def status(self, location: str) -> FileInfo | None:
        """Return the status of a directory, None if it is missing. First call: when what it contains is there."""
        with self._lock:
            if location not in self._known:
                self._known[location] = self.files.status(location)
            return self._known[location]


def _refuse_others(directories: _Directories, user: str, location: str, found: FileInfo) -> None:
    """Reject an archive that others may have written or replaced. Raises Denied."""
    directory = location.rpartition("/")[0]
    above = directory.rpartition("/")[0]
    read = directories.status
    for place, one in ((location, found), (directory, read(directory)), (above, read(above))):
        if one is None or one.owner != user or one.mode & 0o022:
            raise _written_by_others(place, one)
    preflight.check_closed(directories.files.home, read(directories.files.home))


def _written_by_others(place: str, found: FileInfo | None) -> Denied:
    if found is None:
        return Denied(f"{place} was just removed; submit again")
    return Denied(f"{place} is {found.owner}'s, with mode {found.mode:o}: others may have written there; remove it")


def _all_may_read(directories: _Directories, location: str, found: FileInfo | None = None) -> bool:
    """Return True if everyone may read a file: only then may YARN treat it as public; otherwise the container fails.

    A file in an encryption zone does not count: the NodeManager's user has no key (ClientDistributedCacheManager).

    Args:
        found: the status of the file; None: read it.

    Source: FSDownload.isPublic. The root directory is not checked: a user without access to it has nothing on HDFS.
    """
    scheme, _, rest = location.partition("://")
    place, _, path = rest.partition("/")
    names = path.split("/")
    above = (directories.status(f"{scheme}://{place}/{'/'.join(names[:count])}") for count in range(1, len(names)))
    if any(one is None or one.encrypted or not one.mode & 0o001 for one in above):
        return False
    found = found or directories.files.status(location)
    return found is not None and not found.encrypted and bool(found.mode & 0o004)


def _both(one: Callable[[], LocalResource], other: Callable[[], LocalResource]) -> tuple[LocalResource, LocalResource]:
    """Do both concurrently: each mostly waits for the file system."""
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
