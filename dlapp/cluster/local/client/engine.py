"""LocalEngine: submit, inspect and end applications on this machine."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from dlapp.cluster import LOG_NAMES, NOT_ENDED
from dlapp.cluster.local import outcome as outcomes
from dlapp.cluster.local import schedule, views
from dlapp.cluster.local.attempts import is_alive, open_recorded
from dlapp.cluster.local.notices import NOTIFY, mark_end, start_pending_senders
from dlapp.cluster.local.queue import Queue
from dlapp.cluster.local.row import DEPENDENT, DONE, HELD, RUNNING, UNSTARTED, WAITING, ApplicationRow
from dlapp.cluster.local.runner.election import ensure_runner, is_runner_alive, wake_runner
from dlapp.cluster.local.schedule import QueueOrder
from dlapp.cluster.local.settings import RunnerSettings, settings_of
from dlapp.cluster.local.state import (
    StateDir,
    check_directory,
    file_url,
    open_state,
    read_json,
    read_text,
    write_atomically,
)
from dlapp.errors import (
    ConfigError,
    Denied,
    DlappError,
    NotFound,
    Refuse,
    RequestTooLarge,
    SpecError,
    TimedOut,
    Unreachable,
    UsageError,
    raise_error,
)
from dlapp.scheduler.amounts import Amounts
from dlapp.system import clock
from dlapp.system.clock import backoff_s
from dlapp.system.disk_space import FULL, disk_full, full_disk
from dlapp.system.files import sync_directory, write_all
from dlapp.system.machine import boot_id
from dlapp.system.owners import user_name
from dlapp.system.processes.proc import status_fields
from dlapp.system.processes.spawn import PROGRAM
from dlapp.system.waits import Wait
from dlapp.value import Closeable
from dlapp.version import __version__

if TYPE_CHECKING:
    from dlapp.cluster.engine import EngineInfo, LogFiles, PlanFacts, QueueFacts
    from dlapp.cluster.local.client.shared_tokens import GrantedAccess
    from dlapp.cluster.local.client.waits import MachineWaits
    from dlapp.cluster.local.runner.orphans import OrphanReaper
    from dlapp.config import Config
    from dlapp.gpuid.devices import Device
    from dlapp.gpuid.health.nvml_subprocess import NvmlProcess
    from dlapp.locations import HdfsPlace
    from dlapp.scheduler.values import Policy
    from dlapp.values.access import ControlAccess, SharedToken
    from dlapp.values.ids import ApplicationId
    from dlapp.values.report import ApplicationView
    from dlapp.values.spec import AppSpec, Secrets, Submission

KILL_REQUEST_TIMEOUT_S = 2.0
"""Time limit for an ApplicationMaster to end by itself after a request of dlapp-kill."""
KILL_END_S = 60.0
"""Time limit for processes to end after SIGKILL, and for their outputs to be cleaned up. Tasks have ten seconds to end
by themselves, and each of the scans of /proc that follow takes seconds where 25 processes wait for two cores."""
FULL_DISK_S = 5.0
"""The same limit while the state's disk is full: a runner retries every 2 s."""
_ENDED = ("FINISHED", "FAILED", "KILLED")
SOFT_KILL_REQUEST_TIMEOUT_S = 5.0
_MAX_STOP_ANSWER_BYTES = 64 << 10
READ_AS_USER_TIMEOUT_S = 4.0
"""Time limit for reading another user's directory, as that user, whatever it contains."""
DOCKER_TIMEOUT_S = 2.0


class LocalEngine(Closeable):
    """The client's side of the embedded engine: the `dlapp.cluster.engine.Engine` of this machine.

    Root may inspect and end other users' applications. Changes in another user's directories are made by a child
    process that runs as that user, with its own engine (`dlapp.system.processes.as_user`); it starts no runner and no
    program.

    Args:
        config: the configuration.
        program: how dlapp's own processes are started; replaced in tests.
        acting_in: the state directory of the user that this child process runs as; None: the configured one.
        nvml: calls NVML; None: a process of its own.

    Raises:
        ConfigError: the state directory cannot be used (for example on a network file system).
        Denied: it is another user's.
    """

    def __init__(
        self,
        config: Config,
        *,
        program: Sequence[str] = PROGRAM,
        acting_in: StateDir | None = None,
        nvml: NvmlProcess | None = None,
    ) -> None:
        self._config, self._program = config, program
        self._settings: RunnerSettings = settings_of(config, program)
        local = config.local
        self._state: StateDir = acting_in or open_state(local.state_dir, shared=local.shared, of_others=True)
        self._is_acting = acting_in is not None
        self._uid = os.geteuid()
        self._is_others = self._state.uid != self._uid
        self._by_thread = threading.local()
        self._shared_nvml = nvml

    @property
    def state(self) -> StateDir:
        """Return the directory of this engine's state."""
        return self._state

    def close(self) -> None:
        """Close this thread's database connection."""
        if (queue := getattr(self._by_thread, "queue", None)) is not None:
            queue.close()

    def _queue(self) -> Queue:
        queue: Queue | None = getattr(self._by_thread, "queue", None)
        if queue is None:
            queue = self._by_thread.queue = Queue(self._state)
        return queue

    # ---- applications of other users, for root ----

    def _call_as_owner(
        self, state: StateDir, what: str, *values: Any, timeout_s: float = READ_AS_USER_TIMEOUT_S
    ) -> Any:
        """Call a method of an engine in a child process that runs as the owner of the state directory. Raise what the
        method raises, and Denied if it ends an application of a user without an entry in passwd."""
        # Import these before the user switch: the user may not be able to read them, and must not choose them.
        import hashlib  # noqa: F401

        from dlapp.cluster.local import queue_order  # noqa: F401
        from dlapp.cluster.local.queue_state import read_policy
        from dlapp.cluster.local.runner import history, main, orphans  # noqa: F401
        from dlapp.net import control_client  # noqa: F401
        from dlapp.system.network import tcp_table  # noqa: F401
        from dlapp.system.processes import as_user
        from dlapp.values import launch_spec, messages, serialization  # noqa: F401
        from dlapp.values.ids import ApplicationId

        with contextlib.suppress(ConfigError):
            read_policy()  # it imports more if an operator's file exists
        is_change = what in ("kill", "soft_kill", "release")

        def work() -> Any:
            with LocalEngine(self._config, program=self._program, acting_in=state) as engine:
                if is_change:
                    return getattr(engine, what)(ApplicationId.from_text(values[0]), *values[1:])
                return getattr(engine, what)(*values)

        return as_user.call(state.uid, work, timeout_s=timeout_s, is_change=is_change)

    def _refuse_if_others(self) -> None:
        if self._is_others:
            name = user_name(self._state.uid)
            raise Denied(
                f"local.state_dir: {self._state.path} is {name}'s: root may inspect it and end its applications; to "
                "submit, run this as that user, or set HOME, as sudo -H does"
            )

    # ---- capacity and checks ----

    def info(self) -> EngineInfo:
        """Check that the state directory is usable and of a supported version, and return the engine's facts.

        Raises:
            Unreachable: the state has another version.
        """
        from dlapp.cluster.engine import EngineInfo

        if not self._is_others:
            self._queue().count_unsettled(self._uid)
        hdfs, why = self._hdfs
        return EngineInfo(name="local", version=__version__, has_gpus=self._has_whole_gpus(), hdfs=hdfs, no_hdfs=why)

    @cached_property
    def _hdfs(self) -> tuple[HdfsPlace | None, str]:
        """Return the HDFS configured on this machine, or else why there is none."""
        from dlapp.hadoop.configuration import read_configuration
        from dlapp.login import own_login

        try:
            site = read_configuration(self._config.yarn.conf_dir)
            return site.hdfs(own_login(), self._config.storage.hdfs), ""
        except ConfigError as error:
            return None, str(error)  # an error only for paths on HDFS

    def capacity(self) -> Amounts:
        """Return the usable capacity of this machine: memory [MiB], vcores, gcores."""
        from dlapp.cluster.local.capacity import capacity_of

        return capacity_of(self._settings, self._gcores())

    def _gcores(self) -> int:
        """Return the number of GPUs that applications can have; 0 while NVIDIA's driver does not work."""
        return self._usable(self._gpus()[0])

    def _has_whole_gpus(self) -> bool:
        """Return whether ``gcores=auto`` means one GPU: slices are given only to those who ask for them."""
        if not (devices := self._gpus()[0]):
            return False
        from dlapp.gpuid.needs import PLAIN, count_for

        return count_for(PLAIN, devices) > 0

    def _usable(self, devices: Sequence[Device]) -> int:
        """Return how many of this machine's GPUs and slices applications may have."""
        return len(devices) if self._settings.gcores is None else min(len(devices), self._settings.gcores)

    def _gpus(self) -> tuple[Sequence[Device], DlappError | None]:
        """Return the GPUs and slices of this machine, none if its applications may have none, and why they are not
        known if the driver does not work."""
        if self._settings.gcores == 0:
            return (), None
        from dlapp.gpuid.health.nvml import NvmlError, has_library

        if not has_library():
            return (), None
        from dlapp.gpuid.stores.machine import MachineLedger

        try:
            return MachineLedger(self._settings.lock_dir, nvml=self._nvml).devices(), None
        except NvmlError as error:
            return (), error

    @cached_property
    def _nvml(self) -> NvmlProcess:
        from dlapp.gpuid.health.nvml_subprocess import NvmlProcess

        return self._shared_nvml or NvmlProcess()

    def check(self, spec: AppSpec, refuse: Refuse = raise_error) -> list[str]:
        """Reject a request that this machine can never satisfy.

        Args:
            spec: the application.
            refuse: called with each error; by default it raises the first.

        Returns:
            A line for each key that has no effect on one machine, and one if NVIDIA's driver does not work.

        Raises:
            RequestTooLarge: the request exceeds the machine; with the amounts.
            Denied: this user may not run the required program, or the GPU ledger does not serve this user; the message
                has what root can do.
            NvmlError: it requests GPUs, and NVIDIA's driver does not work.
        """
        from dlapp.cluster.local.capacity import capacity_of
        from dlapp.cluster.local.queue_state import read_policy

        self._check_program()
        devices, driver_error = self._gpus()
        capacity, refused = capacity_of(self._settings, self._usable(devices)), set[str]()
        notes: list[str] = []
        if driver_error is not None and spec.total()[2]:
            refuse(driver_error)
            capacity = capacity._replace(gcores=spec.total()[2])  # not known
        elif driver_error is not None:
            notes.append(f"it runs without GPUs: {driver_error}")
        if spec.total()[2] and devices:
            refused |= _check_kinds(spec, devices, refuse)
        for role in spec.roles:
            for never in schedule.too_large(Amounts(*role.resources.times(1)), capacity):
                key = f"{spec.section_of(role)}.{never.name}"
                if key in refused:
                    continue
                each = "each container " if spec.containers > 1 else ""
                of = f"of role {role.name} " if each and len(spec.roles) > 1 else ""
                refused.add(never.name)
                refuse(RequestTooLarge(f"{each}{of}{never.problem} ({never.hint})", key))
        for never in schedule.too_large(Amounts(*spec.total()), capacity):
            if never.name not in refused:
                refused.add(never.name)
                problem = f"{spec.containers} containers {never.problem}, and they run at the same time ({never.hint})"
                refuse(RequestTooLarge(problem, "resources.containers" if len(spec.roles) == 1 else "role"))
        if spec.after:
            self._check_after(spec, refuse)
        if spec.view_acl or spec.modify_acl:
            from dlapp.cluster.local.client.shared_tokens import check_access

            check_access(spec, self._state, refuse)
        gcores, most = spec.total()[2], read_policy().gcores_of(self._uid)
        if gcores and most is not None and gcores > most:
            problem = f"asked for {gcores} gcores, and your applications may have {most} at a time"
            refuse(RequestTooLarge(f"{problem} (queue.user_gcores of node.yaml)", "resources.gcores"))
        if spec.uses_docker:
            self._check_docker(refuse, gcores=gcores)
        if spec.total()[2] > 0:
            self._check_ledger(refuse)
        keys = [*(["application.queue"] if spec.queue is not None else []), *(key for key, _ in spec.placement_keys())]
        return [*notes, *(f"{key} has no effect on one machine" for key in keys)]

    def _check_after(self, spec: AppSpec, refuse: Refuse) -> None:
        """Reject an ``after`` that does not exist, is another user's, or did not end as required."""
        from dlapp.cluster.local.runner.dependencies import ends_of
        from dlapp.values.start_conditions import evaluate_conditions

        known = []
        for one in spec.after:
            if self._queue().row(one.application_id) is None:
                refuse(SpecError("application.after", self._no_such(one.application_id)))
            else:
                known.append(one)
        if failure := evaluate_conditions(known, ends_of(self._queue(), known)).failure:
            refuse(SpecError("application.after", failure))

    def _no_such(self, application_id: str) -> str:
        """Return why an application is not one of the caller's."""
        if self._state.shared:
            from dlapp.cluster.local.client import other_users

            if owners := other_users.owners_of(self._state, application_id):
                return f"{application_id} is {user_name(owners[0].uid)}'s; it can wait for your own applications only"
        return f"{application_id} is not known on this machine (dlapp-list shows what is)"

    def _check_program(self) -> None:
        """Reject a submission whose processes this user could not start. Raises Denied."""
        python, *words = self._program
        closed = [] if os.access(python, os.X_OK, effective_ids=True) else [python]
        closed += [one for one in words if one.endswith(".py") and not os.access(one, os.R_OK, effective_ids=True)]
        if closed:
            what = "run" if closed[0] == python else "read"
            raise Denied(
                f"{user_name(self._uid)} may not {what} {closed[0]}, with which applications are started: "
                "install dlapp where all its users can read it, not in a home directory"
            )

    def _check_ledger(self, refuse: Refuse) -> None:
        from dlapp.system.files import UntrustedFile
        from dlapp.system.shared_directory import open_shared_directory

        try:
            os.close(open_shared_directory(self._settings.lock_dir))
        except FileNotFoundError:
            pass  # the first lease creates it
        except UntrustedFile as error:
            refuse(Denied(f"gpuid.lock_dir: {error}"))

    def _check_docker(self, refuse: Refuse, *, gcores: int) -> None:
        import socket

        if gcores > 0 and self._settings.docker_gpu_mode == "none":
            refuse(SpecError("resources.gcores", "containers get no GPUs here: runtime.docker.gpu_mode is none"))
        host = self._settings.docker_host
        if not host.startswith("unix://"):
            problem = f"needs this machine's dockerd, and runtime.docker.host is {host}"
            refuse(SpecError("application.docker_image", problem))
            return
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(DOCKER_TIMEOUT_S)
            try:
                probe.connect(host.removeprefix("unix://"))
            except OSError as error:
                why = f"Docker at {host} does not answer ({error.strerror or error})"
                refuse(Unreachable(f"{why}; does dockerd run, and are you allowed to use it? (runtime.docker.host)"))

    def prepare(self) -> None:
        """Start the runner while the application is checked: both take about as long."""
        self._refuse_if_others()
        with contextlib.suppress(DlappError, OSError):  # submit() retries
            ensure_runner(self._state, self._settings, wake=False, stay=True)

    def archive_cache(self) -> str:
        """Return the caller's directory for packed workspaces; entries unused for long or beyond the limit are
        removed."""
        self._refuse_if_others()
        return self._state.cache(self._uid)

    # ---- submitting ----

    def find_archive(self, digest: str) -> str:
        """Return the location of the packed workspace of an earlier submission, and mark it as used now.

        Raises:
            NotFound: it was removed from the cache.
        """
        archive = os.path.join(self.archive_cache(), f"{digest}.tar.gz")
        try:
            os.utime(archive)
        except FileNotFoundError as error:
            raise NotFound(f"the packed workspace {archive} is not in the cache any more") from error
        return archive

    def submit(self, submission: Submission, secrets: Secrets) -> ApplicationId:
        """Submit an application; after the return it runs independently of the caller.

        Atomic: the files are first written in a temporary directory; then one transaction inserts the row and renames
            the directory.

        Raises:
            NotFound: the archive of its workspace no longer exists.
            Unreachable: the state cannot be written.
        """
        from dlapp.values.access import shared_tokens
        from dlapp.values.ids import ApplicationId
        from dlapp.values.serialization import to_json

        self._refuse_if_others()
        spec = submission.spec
        memory_mib, vcores, gcores = spec.total()
        archive = submission.workspace_archive.removeprefix("file://")
        try:
            tokens = shared_tokens(spec.view_acl, spec.modify_acl, secrets.control_secret)
            staging = self._stage(to_json(submission), to_json(secrets), self._hdfs_of(spec), tokens)
        except OSError as error:
            full = error.errno in FULL
            raise Unreachable(
                disk_full(self._state.staging) if full else f"{self._state.staging}: {error.strerror}"
            ) from error
        try:
            with self._queue().change() as queue:
                self._refuse_too_many(queue)
                # Within the transaction, like the clean-up of the cache: an archive that exists now is kept for this
                # row.
                if archive and not os.path.exists(archive):
                    raise NotFound(f"the packed workspace {archive} is gone: submit again")
                text = queue.insert(
                    uid=self._uid,
                    submitter=submission.submitter,
                    username=spec.username,
                    appname=spec.appname,
                    memory_mib=memory_mib,
                    vcores=vcores,
                    gcores=gcores,
                    containers=spec.containers,
                    archive=archive,
                    submitted_ms=submission.submitted_ms,
                    queue=spec.queue or "default",
                    priority=spec.priority,
                    project=spec.project or "",
                    tags="\n".join(spec.tags),
                    resumed_from=submission.resumed_from,
                    again_of=submission.again_of,
                    state=DEPENDENT if spec.after else HELD if spec.hold else WAITING,
                    after=", ".join(map(str, spec.after)),
                    hold=int(spec.hold),
                    runs_at_most_s=_runs_at_most_s(spec),
                    gpus=_gpus_of(spec),
                    summary=_summary_of(submission),
                )
                application_id = ApplicationId.from_text(text)
                if (named := submission.named(application_id)) is not submission:
                    place = os.path.join(staging, "submission.json")
                    write_atomically(place, json.dumps(to_json(named)), mode=0o640)
                self._move_into_place(staging, self._state.application(text))
        except BaseException:
            from dlapp.system.files import remove_tree

            with contextlib.suppress(DlappError):
                remove_tree(staging)
            raise
        self._ensure_runner_after_submission()
        return application_id

    def _refuse_too_many(self, queue: Queue) -> None:
        """Reject a submission beyond the operator's limit of queued applications. Raises Denied."""
        from dlapp.cluster.local.queue_state import read_policy

        most = read_policy().user_queued
        if most is not None and (waiting := queue.count_waiting(self._uid)) >= most:
            text = f"{waiting} of your applications wait, and {most} may (queue.user_queued of node.yaml)"
            raise Denied(f"{text}; submit again when one has started")

    def _hdfs_of(self, spec: AppSpec) -> HdfsPlace | None:
        """Return the HDFS that an application uses, resolved here: its processes do not have the client's variables."""
        from dlapp.locations import is_on_hdfs

        named = [source for one in spec.inputs for source in one.sources] + [one.target for one in spec.outputs]
        if not any(map(is_on_hdfs, named)):
            return None
        hdfs, why = self._hdfs
        if hdfs is None:
            raise ConfigError(why)
        # Set by a variable of OpenSSL, as on a cluster's clients.
        ca = os.environ.get("SSL_CERT_FILE")
        own = hdfs._replace(login=hdfs.login.as_user(spec.username), ca=os.path.abspath(ca) if ca else None)
        return own.for_locations(named)

    def _stage(self, submission: Any, secrets: Any, hdfs: HdfsPlace | None, tokens: Sequence[SharedToken] = ()) -> str:
        staging = os.path.join(self._state.staging, f"{os.getpid()}-{os.urandom(8).hex()}")
        os.mkdir(staging, 0o700)
        if self._state.shared:
            os.chmod(staging, 0o2750)
        # The submitter's umask is for the files of the payload; dlapp's own files have explicit modes.
        engine = {"settings": self._settings.to_json(), "shared": self._state.shared, "umask": _umask()}
        from dlapp.system.processes.caller import caller_settings

        engine["caller"] = caller_settings()
        if hdfs is not None:
            from dlapp.values.serialization import to_json

            engine["hdfs"] = to_json(hdfs)
        os.mkdir(os.path.join(staging, "containers"))
        if self._state.shared:
            os.chmod(os.path.join(staging, "containers"), 0o2750)
        values = (
            ("submission.json", submission, 0o640),
            ("secrets.json", secrets, 0o600),
            # In its own file: it is needed until the end was notified, and the secrets are removed before that.
            *([(NOTIFY, secrets["notify"], 0o600)] if secrets.get("notify") else ()),
            ("engine.json", engine, 0o640),
            ("alive", None, 0o640),
        )
        with contextlib.ExitStack() as opened:
            fds = []
            for name, value, mode in values:
                fd = os.open(os.path.join(staging, name), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
                opened.callback(os.close, fd)
                if value is not None:
                    write_all(fd, json.dumps(value, separators=(",", ":")).encode())
                    fds.append(fd)
            for token in tokens:
                from dlapp.cluster.local.client.shared_tokens import grant_reading

                path = os.path.join(staging, token.name)
                fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                opened.callback(os.close, fd)
                grant_reading(fd, token)
                write_all(fd, token.text.encode())
                fds.append(fd)
            # Sync only after all files are written: the first call flushes most of them.
            for fd in fds:
                os.fsync(fd)
        sync_directory(staging)
        return staging

    def _move_into_place(self, staging: str, application_dir: str) -> None:
        try:
            os.rename(staging, application_dir)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise Unreachable(f"{application_dir}: {error.strerror}") from error
            # The number is new, so this directory was left by a submission that died before it inserted its row.
            os.rename(application_dir, f"{staging}-left")
            os.rename(staging, application_dir)
        sync_directory(self._state.applications)

    def _ensure_runner_after_submission(self) -> None:
        # The application is submitted; a failure to start the runner now is not a failure of the submission.
        with contextlib.suppress(DlappError, OSError):
            ensure_runner(self._state, self._settings)

    def ensure_runner(self) -> str:
        """Start a runner if the caller has rows and none is running; cheap if one is.

        Returns:
            A message if the state's disk is full and applications wait for space. Otherwise empty.
        """
        if self._is_others or self._is_acting:
            return ""
        full = full_disk(self._state.database)
        try:
            if self._queue().count_unsettled(self._uid):
                ensure_runner(self._state, self._settings, wake=False)
            start_pending_senders(self._state, self._settings.program)
        except (DlappError, OSError):
            if not full:
                raise
        return full

    # ---- views and logs ----

    def ids(self, *, everybody: bool = False) -> list[str]:
        if self._is_others:
            return self._call_as_owner(self._state, "ids", timeout_s=READ_AS_USER_TIMEOUT_S) if everybody else []
        found = [] if self._has_no_rows() else self._queue().ids(self._uid)
        if everybody and self._state.shared:
            from dlapp.cluster.local.client import other_users

            found = [one for other in self._state.others() for one in other_users.ids_of(other)] + found
            found.sort(key=lambda one: tuple(map(int, one.split("_")[1:])))
        return found

    def _has_no_rows(self) -> bool:
        """Return whether there is no database; a process that acts for another user creates none."""
        return self._is_acting and not os.path.lexists(self._state.database)

    def issued(self, application_id: str) -> bool:
        """Return whether this engine issued an id: all ids of one user contain the same time.

        Raises:
            Unreachable: its rows cannot be read, or are of another version.
        """
        if self._is_others:
            return bool(self._call_as_owner(self._state, "issued", application_id))
        if self._has_no_rows():
            return False
        if application_id.startswith(f"application_{self._queue().timestamp_ms()}_"):
            return True
        if not self._state.shared:
            return False
        from dlapp.cluster.local.client import other_users

        return bool(other_users.owners_of(self._state, application_id))

    def view(self, application_id: ApplicationId) -> ApplicationView:
        from dlapp.values.report import ApplicationView
        from dlapp.values.serialization import from_json

        return from_json(ApplicationView, self.view_json(str(application_id)))

    def view_json(self, application_id: str) -> dict[str, Any]:
        if self._is_others:
            return views.checked_view(self._call_as_owner(self._state, "view_json", application_id))
        if self._is_foreign(application_id):
            from dlapp.cluster.local.client import other_users

            owner = other_users.owner_of(self._state, application_id)
            return other_users.view_of(owner, application_id, boot_id(), self._waiting(), short=False)
        alive, has_runner, row = self._inspect(application_id)
        waiting = self._waiting() if row.state == WAITING else QueueOrder()
        application_dir = self._state.application(row.id)
        return views.view_of(row, application_dir, boot_id(), waiting, alive=alive, has_runner=has_runner)

    def view_in_full_json(self, application_id: str) -> dict[str, Any]:
        view = self.view_json(application_id)
        if self._is_others or self._is_foreign(application_id) or view["phase"] != "waiting":
            return view
        row = self._row(application_id)
        if row.state != WAITING:
            return view
        from dlapp.values.serialization import from_json
        from dlapp.values.spec import Submission

        spec = from_json(Submission, self._submission_json(application_id)).spec
        order = self._waiting()
        found = self._waits().in_full(spec, order, row)
        if order.obstacle(row.id) is not None:
            found["change"] = ""  # it would still exceed a limit
        return view | {"waiting": view["waiting"] | found}

    def plan(self, spec: AppSpec) -> PlanFacts:
        return self._waits().plan(spec, self._waiting())

    def queue_facts(self) -> QueueFacts:
        """Return the start order of the waiting applications and, for the caller's own, the expected times."""
        from dlapp.cluster.engine import QueueFacts, UserShare

        if self._is_others:
            return QueueFacts()
        found = self._waiting()
        order = tuple(one.id for one in found.entries)
        whole, shares = sum(found.hours.values()), list[UserShare]()
        unit = "GPU-hours" if _readable_policy().charge == "gcores" else "core-hours"
        for uid, hours in sorted(found.hours.items(), key=lambda one: -one[1]) if whole else ():
            meaning = f"of the recent use by all, {hours:.3g} {unit}"
            shares.append(UserShare(user=user_name(uid), queue="default", share=hours / whole, meaning=meaning))
        return QueueFacts(order=order, estimates=self._waits().estimates(), shares=tuple(shares))

    def _waits(self) -> MachineWaits:
        from dlapp.cluster.local.client.waits import MachineWaits

        return MachineWaits(self._state, self._queue(), self.capacity(), self._settings.lock_dir, self._nvml)

    def owner(self, application_id: str) -> str:
        """Return the owner of an application, as the kernel reports it. Raises NotFound."""
        if self._is_others:
            self.view_json(application_id)
        elif (other := self._foreign_owner(application_id)) is not None:
            return user_name(other.uid)
        else:
            self._row(application_id)
        return user_name(self._state.uid)

    def _foreign_owner(self, application_id: str) -> StateDir | None:
        """Return the state directory of the other user of a shared one who has an application; None: the caller has it,
        or the directory is not shared. Raises NotFound."""
        if not self._is_foreign(application_id):
            return None
        from dlapp.cluster.local.client import other_users

        return other_users.owner_of(self._state, application_id)

    def _is_foreign(self, application_id: str) -> bool:
        """Return whether an application is not the caller's, but may belong to another user of a shared directory."""
        return self._state.shared and self._queue().row(application_id) is None

    def _waiting(self) -> QueueOrder:
        """Return all waiting applications in queue order."""
        from dlapp.cluster.local.capacity import capacity_of
        from dlapp.cluster.local.queue_order import order_of

        rows = self._queue().rows("state IN ('waiting', 'running')")
        return order_of(self._state, rows, _readable_policy(), partial(capacity_of, self._settings, 0))

    def _inspect(self, application_id: str) -> tuple[bool, bool, ApplicationRow]:
        """Return whether an application is alive, whether it had a runner otherwise, and its row. Raises NotFound."""
        row = self._row(application_id)
        if row.state != RUNNING:
            return False, False, row
        alive, has_runner = self._is_alive(row.id), False
        if not alive:
            has_runner = is_runner_alive(self._state, self._state.uid)
            alive = self._is_alive(row.id)
        return alive, has_runner, self._row(application_id)

    def _is_alive(self, application_id: str) -> bool:
        return is_alive(self._state.application(application_id))

    def views(
        self, *, everybody: bool = False, user: str | None = None, limit: int | None = None
    ) -> list[ApplicationView]:
        """Return the views of many applications, oldest first: the caller's own, one user's, or those of all users.

        Args:
            user: an operating system's user, who owns the directories of the applications.
            limit: how many ended ones to include, the latest first; None: all. Of their containers, only the one that
                determines the exit code is included.
        """
        from dlapp.values.report import ApplicationView
        from dlapp.values.serialization import from_json

        return [from_json(ApplicationView, one) for one in self.views_json(everybody=everybody, user=user, limit=limit)]

    def views_json(
        self, *, everybody: bool = False, user: str | None = None, limit: int | None = None
    ) -> list[dict[str, Any]]:
        if self._is_others:
            if not everybody and user is None:
                return []
            found = self._call_as_owner(self._state, "_views_json_at", True, user, limit)
            return [views.checked_view(one) for one in found]
        return self._views_json_at(everybody, user, limit)

    def _views_json_at(self, everybody: bool, user: str | None, limit: int | None) -> list[dict[str, Any]]:
        if self._has_no_rows():
            return []
        whose, values = "uid = ?", (self._uid,)
        if user is not None:
            # All rows here belong to the directory's owner, whatever names they contain. A caller may use the names of
            # their own files (username).
            if user == user_name(self._state.uid):
                whose, values = "TRUE", ()  # type: ignore[assignment]
            else:
                whose, values = ("FALSE", ()) if self._is_others else ("username = ?", (user,))  # type: ignore[assignment]
        elif everybody:
            whose, values = "TRUE", ()  # type: ignore[assignment]
        queue = self._queue()
        running = queue.rows(f"state = 'running' AND {whose}", values, columns="id")
        alive, has_runner = {row.id for row in running if self._is_alive(row.id)}, False
        if len(alive) < len(running):
            has_runner = is_runner_alive(self._state, self._state.uid)
            alive |= {row.id for row in running if row.id not in alive and self._is_alive(row.id)}
        rows = queue.rows(f"state != 'done' AND {whose}", values)
        some = "" if limit is None else f" LIMIT {int(limit)}"
        # One that ended between the two queries is in both.
        known = {row.number for row in rows}
        ended = queue.rows(f"state = 'done' AND {whose} ORDER BY number DESC{some}", values)
        rows += [row for row in ended if row.number not in known]
        rows.sort(key=lambda row: row.number)
        of_others = self._state.shared and (everybody or user is not None)
        is_needed = of_others or any(row.state == WAITING for row in rows)
        waiting = self._waiting() if is_needed else QueueOrder()
        found, boot = list[views.View](), boot_id()
        for row in rows:
            where, is_up = self._state.application(row.id), row.id in alive
            found.append(views.view_of(row, where, boot, waiting, alive=is_up, has_runner=has_runner, short=True))
        if of_others:
            from dlapp.cluster.local.client import other_users

            for other in self._state.others():
                if user in (None, user_name(other.uid)):
                    found += other_users.views_of(other, boot, waiting, limit=limit)
            found.sort(key=lambda one: int(one["submitted_ms"]))
        return found

    def add_receipts(self, views: Sequence[dict[str, Any]]) -> Sequence[str]:
        """Do nothing: the views contain the receipts."""
        return ()

    def submission(self, application_id: ApplicationId) -> Submission:
        from dlapp.values.serialization import from_json
        from dlapp.values.spec import Submission

        return from_json(Submission, self._submission_json(str(application_id)))

    def _submission_json(self, application_id: str) -> dict[str, object]:
        if self._is_others:
            found: dict[str, object] = self._call_as_owner(self._state, "_submission_json", application_id)
            return found
        with self._opened(application_id) as application_dir:
            submission = read_json(os.path.join(application_dir, "submission.json"))
        if submission is None:
            raise NotFound(f"{self._state.application(application_id)}/submission.json is not there")
        return submission

    def usage_json(self, application_id: ApplicationId) -> Any:
        if self._is_others:
            return self._call_as_owner(self._state, "usage_json", application_id)
        with self._opened(str(application_id)) as application_dir:
            return read_json(os.path.join(application_dir, "usage.json"))

    def trials_text(self, application_id: ApplicationId) -> str:
        from dlapp.sweep.spec import MAX_RESULTS_BYTES  # import before the user switch

        if self._is_others:
            return str(self._call_as_owner(self._state, "trials_text", application_id))
        with self._opened(str(application_id)) as application_dir:
            return read_text(os.path.join(application_dir, "trials.jsonl"), MAX_RESULTS_BYTES)

    @contextlib.contextmanager
    def _opened(self, application_id: str) -> Iterator[str]:
        """Open the directory of an application of the caller or, in a shared directory, of another user. Raises
        NotFound."""
        if (other := self._foreign_owner(application_id)) is None:
            self._row(application_id)
        with (other or self._state).opened("applications", application_id) as application_dir:
            yield application_dir

    def logs(self, application_id: ApplicationId, try_number: int | None = None) -> list[LogFiles]:
        """Return the logs of all containers that ran, by CONTAINER_INDEX, of the last try or a given one. Raises
        NotFound."""
        from dlapp.cluster.engine import LogFiles

        view = self.view(application_id)
        other = None if self._is_others else self._foreign_owner(str(application_id))
        containers = os.path.join((other or self._state).application(str(application_id)), "containers")
        found = []
        for one in view.containers_of_try(try_number):
            directory = os.path.join(containers, str(one.container_id))
            files = {name: file_url(os.path.join(directory, name)) for name in LOG_NAMES}
            found.append(LogFiles.of(one, files))
        return found

    def aggregated_log(self, view: ApplicationView, log: LogFiles, name: str) -> Iterator[bytes] | None:
        """Return None: logs are not moved."""
        return None

    def node_names(self) -> tuple[str, ...]:
        """Return none: there are no nodes besides this machine."""
        return ()

    def dashboard_urls(self, application_id: ApplicationId, *, wait_s: float = 0.0) -> tuple[str, str]:
        """Return the URL of the page while the application runs, and the path of its history file after its end.

        Args:
            wait_s: how long to wait for the page, which exists once the application has started; without a page the
                path of a file is returned.
        """
        if self._is_others:
            page, history = self._call_as_owner(self._state, "dashboard_urls", str(application_id))
            return str(page), str(history)
        if (other := self._foreign_owner(str(application_id))) is not None:
            history = file_url(os.path.join(other.application(str(application_id)), "report.html"))
            return history, history  # the page requires the application's secrets
        application_dir = self._state.application(self._row(str(application_id)).id)
        history = file_url(os.path.join(application_dir, "report.html"))
        deadline = time.monotonic() + wait_s
        while (url := self._control_url(application_dir)) is None and time.monotonic() < deadline:
            row = self._row(str(application_id))
            if row.state in (DONE, DEPENDENT, HELD) or (row.state == WAITING and self._is_held_up(row)):
                break
            time.sleep(0.01)
        path = self._page_path(application_dir) if url else ""
        return (f"{url}{path}" if path else history), history

    @staticmethod
    def _page_path(application_dir: str) -> str:
        """Return the URL of the page if the caller may read the application's secrets; empty for others and after its
        end."""
        from dlapp.values.access import page_path

        with contextlib.suppress(PermissionError):
            if (secrets := read_json(os.path.join(application_dir, "secrets.json"))) is not None:
                return page_path(str(secrets["control_secret"]))
        return ""

    def _is_held_up(self, row: ApplicationRow) -> bool:
        """Return True if a waiting row cannot start at once: resources are missing, or another row is ahead of it."""
        before = "state = 'waiting' AND number < ?"
        return bool(row.reason or self._queue().rows(before, (row.number,), columns="number"))

    def _row(self, application_id: str) -> ApplicationRow:
        if self._has_no_rows() or (row := self._queue().row(application_id)) is None:
            raise NotFound(f"{application_id} is not known on this machine (dlapp-list -a shows what is)")
        return row

    def _control_url(self, application_dir: str) -> str | None:
        with contextlib.suppress(DlappError, KeyError):  # a power failure may leave it empty
            if (found := read_json(os.path.join(application_dir, "am.json"))) is not None:
                return str(found["control_url"])
        return None

    def control_access(self, application_id: ApplicationId) -> ControlAccess:
        from dlapp.net.streams import NOT_RUNNING, StreamRefused
        from dlapp.values.access import VIEWERS, ControlAccess

        if (granted := self._granted(application_id, VIEWERS)) is not None:
            if not granted.url:
                raise StreamRefused(f"{application_id} has not started yet", NOT_RUNNING)
            return ControlAccess(granted.url, granted.token, is_own=False, owner=granted.owner.uid)
        if self._is_others or self._is_foreign(str(application_id)):
            raise Denied(
                f"{application_id} belongs to {self.owner(str(application_id))}; only they reach into its containers"
            )
        row = self._row(str(application_id))
        if row.state == DONE:
            raise NotFound(_over(row))
        if (found := self._access(self._state.application(row.id))) is None:
            raise StreamRefused(f"{application_id} has not started yet", NOT_RUNNING)
        return ControlAccess(*found, owner=self._uid)

    def _granted(self, application_id: ApplicationId, purpose: str) -> GrantedAccess | None:
        """Return the caller's access to another user's application; None: it is the caller's own, or the owner has not
        granted access (the caller may be root). Raises NotFound.
        """
        if self._uid == 0 or (other := self._foreign_owner(str(application_id))) is None:
            return None
        from dlapp.cluster.local.client.shared_tokens import find_access

        return find_access(other, str(application_id), purpose)

    def _access(self, application_dir: str) -> tuple[str, str] | None:
        """Return control address and token for tools; None: no ApplicationMaster is running."""
        from dlapp.values.access import TOOLS, derive_token

        url, secrets = self._control_url(application_dir), read_json(os.path.join(application_dir, "secrets.json"))
        if url is None or secrets is None:
            return None
        return url, derive_token(str(secrets["control_secret"]), TOOLS)

    # ---- ending ----

    def soft_kill(self, application_id: ApplicationId, by: str) -> str:
        """Request a soft-kill; a waiting application is killed, as nothing of it runs.

        Raises:
            NotFound, Denied: it does not exist, or is another user's.
            Unreachable: its ApplicationMaster does not answer.
        """
        if (line := self._end_as_modifier(application_id, "softkill", by)) is not None:
            return line
        if (owner := self._other_owner(application_id)) is not None:
            timeout_s = SOFT_KILL_REQUEST_TIMEOUT_S + READ_AS_USER_TIMEOUT_S
            return str(self._call_as_owner(owner, "soft_kill", str(application_id), by, timeout_s=timeout_s))
        from dlapp.values.messages import StopAnswer
        from dlapp.values.serialization import from_json

        row = self._row(str(application_id))
        if line := self._end_unstarted(row, by):
            return line
        application_dir = self._state.application(row.id)
        deadline = time.monotonic() + SOFT_KILL_REQUEST_TIMEOUT_S
        while True:
            try:
                answer = self._request(application_dir, "softkill", by, max(0.1, deadline - time.monotonic()))
            except Unreachable:
                ended = self.view_json(row.id)
                if ended["state"] in _ENDED:
                    return f"{row.id} is {ended['state']}: {ended['diagnostics']}"
                # It may be starting right now.
                if time.monotonic() >= deadline:
                    raise
                time.sleep(0.05)
                continue
            return from_json(StopAnswer, answer).line(row.id)

    def kill(self, application_id: ApplicationId, by: str) -> str:
        """Kill an application: request it from its ApplicationMaster, then send SIGKILL; return when all its processes
        have ended.

        Raises:
            NotFound, Denied: it does not exist, or is another user's.
            TimedOut: one of its processes has not ended (a hanging device can block it indefinitely).
        """
        if (line := self._end_as_modifier(application_id, "kill", by)) is not None:
            return line
        if (owner := self._other_owner(application_id)) is not None:
            timeout_s = KILL_REQUEST_TIMEOUT_S + 2 * KILL_END_S
            return str(self._call_as_owner(owner, "kill", str(application_id), by, timeout_s=timeout_s))
        row = self._row(str(application_id))
        if line := self._end_unstarted(row, by):
            return line
        application_dir = self._state.application(row.id)
        deadline = time.monotonic() + KILL_REQUEST_TIMEOUT_S
        full = self._write_kill_request(application_dir, by)
        try:
            self._request(application_dir, "kill", by, KILL_REQUEST_TIMEOUT_S)
        except DlappError:
            deadline = 0.0  # not answering, or not started yet: do not wait
        if not _wait_for(lambda: not is_alive(application_dir), deadline):
            _kill_master(application_dir, self._uid)
        from dlapp.cluster.local.runner.orphans import OrphanReaper

        deadline = time.monotonic() + KILL_END_S
        reaper = OrphanReaper(application_dir, self._uid, self._state.runner_lock(self._uid), keep_am=False)
        if not _wait_for(lambda: self._is_gone(row, application_dir, reaper), deadline):
            raise TimedOut(
                f"{row.id}: processes of it are still there {KILL_END_S:g} s after SIGKILL; its GPUs stay taken"
            )
        clear_s = KILL_END_S
        # The end of its processes may have freed too little space.
        if full and (full := self._write_kill_request(application_dir, by)):
            clear_s = FULL_DISK_S
            deadline = min(deadline, time.monotonic() + clear_s)
        # The runner cleans up after it and writes its outcome.
        self._nudge_runner()
        if not _wait_for(lambda: self._is_settled(row), deadline):
            why = f"; {full}" if full else ""
            raise TimedOut(f"{row.id}: its processes ended, but its leftovers were not removed in {clear_s:g} s{why}")
        now = self.view_json(row.id)
        if now["state"] == "KILLED":
            return f"{row.id} was killed, {_kept_text(now)}"
        if full:
            return f"{row.id} was ended as {now['state']}, because the kill could not be recorded: {full}"
        return f"{row.id} had ended before the kill: {now['state']}, {now['diagnostics']}"

    def _end_as_modifier(self, application_id: ApplicationId, what: str, by: str) -> str | None:
        """End another user's application whose `modify_acl` names the caller, only through its ApplicationMaster, by
        the request ``softkill`` or ``kill``.

        Returns:
            A line about the result; None: it is not such an application.

        Raises:
            Denied: it has not started yet, and only its owner can end it.
            Unreachable: its ApplicationMaster does not answer.
            TimedOut: it has not ended.
        """
        from dlapp.values.access import MODIFIERS
        from dlapp.values.messages import StopAnswer

        if (granted := self._granted(application_id, MODIFIERS)) is None:
            return None
        from dlapp.net.control_client import ControlConnection
        from dlapp.values.serialization import from_json

        if not granted.url:
            owner = user_name(granted.owner.uid)
            raise Denied(f"{application_id} does not run now; until it does, only {owner} or root may end it")
        with ControlConnection(
            granted.url, granted.token, max_answer_bytes=_MAX_STOP_ANSWER_BYTES, owner=granted.owner.uid
        ) as connection:
            found = connection.call("POST", f"/v1/{what}", {"user": by}, timeout_s=SOFT_KILL_REQUEST_TIMEOUT_S)
        if what == "softkill":
            return from_json(StopAnswer, found).line(str(application_id))
        if not _wait_for(lambda: self.view_json(str(application_id))["state"] in _ENDED, time.monotonic() + KILL_END_S):
            raise TimedOut(f"{application_id} had not ended {KILL_END_S:g} s after the request to end it")
        now = self.view_json(str(application_id))
        if now["state"] == "KILLED":
            return f"{application_id} was killed, {_kept_text(now)}"
        return f"{application_id} had ended before the kill: {now['state']}, {now['diagnostics']}"

    # ---- releasing ----

    def release(self, application_id: ApplicationId, by: str) -> str:
        if (owner := self._other_owner(application_id, ends=False)) is not None:
            return str(self._call_as_owner(owner, "release", str(application_id), by))
        row = self._row(str(application_id))
        if row.state == DONE:
            return _over(row)
        with self._queue().change() as queue:
            row = self._row(row.id)
            if not row.hold:
                return f"{row.id} is not held"
            queue.update(row.number, hold=0, **({"state": WAITING} if row.state == HELD else {}))
        self._nudge_runner()
        return f"{row.id} is released" + (f", and {views.pending_text(row)}" if row.state == DEPENDENT else "")

    # ---- removing ----

    def unstored(self, view: Mapping[str, Any]) -> list[str]:
        if self._is_others or self._is_foreign(str(view["application_id"])):
            return []
        above, kept = self._state.unstored(self._uid), list[str]()
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            kept = os.listdir(above)
        application_id = str(view["application_id"])
        containers = f"container_{application_id.removeprefix('application_')}_"
        moved = [os.path.join(above, name) for name in sorted(kept) if name.startswith(containers)]
        is_over = self._row(application_id).state == DONE
        return moved + (views.unstored_in(self._state.application(application_id)) if is_over else [])

    def check_removal(self, application_id: ApplicationId) -> None:
        """Raise the errors that `remove` would raise.

        Raises:
            NotFound: it does not exist.
            Denied: it is another user's.
            UsageError: it has not ended.
            TimedOut: it has ended, but one of its processes is still there.
        """
        self._removable(str(application_id))

    def remove(self, application_id: ApplicationId) -> None:
        """Remove an ended application, with its logs.

        Raises:
            DlappError: its files cannot be removed; also the errors of `check_removal`.
        """
        from dlapp.cluster.local.runner import history

        row = self._removable(str(application_id))
        if not history.forget(self._state, self._queue(), row):
            raise DlappError(f"{self._state.application(row.id)} cannot be removed")

    def _removable(self, application_id: str) -> ApplicationRow:
        if self._is_others or self._is_foreign(application_id):
            raise Denied(f"{application_id} belongs to {self.owner(application_id)}; only they may remove it")
        row = self._row(application_id)
        if row.state != DONE:
            state = self.view_json(application_id)["state"]
            if state not in _ENDED:
                raise UsageError(f"{application_id} is {state}: {NOT_ENDED}")
            # Its last processes may end after the application.
            self._nudge_runner()
            if not _wait_for(lambda: self._is_settled(row), time.monotonic() + KILL_END_S):
                raise TimedOut(
                    f"{application_id} is {state}, but its last processes have not ended in {KILL_END_S:g} s"
                )
            row = self._row(application_id)
        if kept := views.unstored_in(self._state.application(application_id)):
            raise UsageError(f"{application_id} has output that could not be stored: move {kept[0]} first")
        for other in self._queue().rows("state = 'dependent'"):
            if f"{application_id}:" in other.after:
                raise UsageError(f"{other.id} waits for its end, and its runner has not seen that yet: try again")
        return row

    def _is_gone(self, row: ApplicationRow, application_dir: str, reaper: OrphanReaper) -> bool:
        """Return True if no process of a killed application is left; end those that do not end by themselves."""
        if not is_alive(application_dir) or (row := self._row(row.id)).state == DONE:
            return True
        if (pidfd := open_recorded(application_dir, self._uid)) is None:
            reaper.end_in_time()
        else:
            os.close(pidfd)
            reaper.restart_wait()
            if not row.aftermaths:  # not a clean-up process: the runner was just starting it
                _kill_master(application_dir, self._uid)
        return False

    def _is_settled(self, row: ApplicationRow) -> bool:
        # A child that acts for root starts no runner. The next command of the user starts one, which settles the row.
        return self._row(row.id).state == DONE or (self._is_acting and not is_runner_alive(self._state, self._uid))

    def _nudge_runner(self) -> None:
        with contextlib.suppress(DlappError, OSError):
            if self._is_acting:
                wake_runner(self._state, self._uid)
            else:
                ensure_runner(self._state, self._settings)

    def _other_owner(self, application_id: ApplicationId, *, ends: bool = True) -> StateDir | None:
        """Return the state directory of the application's owner if that is another user; None if it is the caller.

        Raises:
            NotFound: no user has it.
            Denied: it is another user's, and the caller is not root.
        """
        if self._is_others:
            return self._state
        if (other := self._foreign_owner(str(application_id))) is not None and self._uid != 0:
            what = "end" if ends else "release"
            raise Denied(f"{application_id} belongs to {user_name(other.uid)}; only they or root may {what} it")
        return other

    def _end_unstarted(self, row: ApplicationRow, by: str) -> str:
        """End a waiting application; return a line about that, or about one that has ended. Empty: it has started."""
        if row.state == DONE:
            return _over(row)
        return f"{row.id} was killed before it started" if self._end_waiting(row.id, by) else ""

    def _end_waiting(self, application_id: str, by: str) -> bool:
        outcome = outcomes.killed(by, clock.now_ms(), begun=False)
        with self._queue().change() as queue:
            row = queue.row(application_id)
            if row is None or row.state not in UNSTARTED:
                return False
            mark_end(self._state, application_id, outcome)
            queue.update(
                row.number, state=DONE, finished_ms=outcome["finished_ms"], outcome=json.dumps(outcome), reason=""
            )
        from dlapp.cluster.local.runner.main import remove_secrets

        remove_secrets(self._state.application(application_id))
        start_pending_senders(self._state, self._settings.program)
        self._nudge_runner()  # applications behind it may fit now
        return True

    def _write_kill_request(self, application_dir: str, by: str) -> str:
        """Record a kill for the process that cleans up after the application.

        Returns:
            Why it could not be recorded, if the disk is full; the application has ended nevertheless. Otherwise empty.
        """
        path = os.path.join(application_dir, "kill.json")
        check_directory(application_dir, self._uid)
        try:
            if not os.path.exists(path):
                write_atomically(path, json.dumps({"by": by, "ms": clock.now_ms()}))
        except OSError as error:
            if error.errno not in FULL:
                raise
            return disk_full(path)
        return ""

    def _request(self, application_dir: str, what: str, by: str, timeout_s: float) -> dict[str, Any]:
        from dlapp.net.control_client import ControlConnection

        if (found := self._access(application_dir)) is None:
            raise Unreachable("its ApplicationMaster is not running")
        with ControlConnection(*found, owner=self._uid) as connection:
            answer = connection.call("POST", f"/v1/{what}", {"user": by}, timeout_s=timeout_s)
        return answer if isinstance(answer, dict) else {}


def _summary_of(submission: Submission) -> str:
    """Return the fields of a view that no column has, until the ApplicationMaster writes a view."""
    spec = submission.spec
    texts = {"program": spec.program_text, "source": submission.source, "comment": spec.comment}
    return json.dumps({name: text for name, text in texts.items() if text})


def _check_kinds(spec: AppSpec, devices: Sequence[Device], refuse: Refuse) -> set[str]:
    """Reject a request for GPUs of a kind of which this machine has too few. Where all are of one kind, their number is
    checked with the other amounts.

    Returns:
        ``gcores`` if it does, and the key of the gcores of each role that alone asks for too many.
    """
    from dlapp.gpuid.needs import Demand, DeviceNeed, are_plain, demands_of, too_few
    from dlapp.values.spec import BY_INDEX

    demands, has, refused = demands_of(spec), "this machine has", set[str]()
    if are_plain(demands, devices):
        return refused
    for role in spec.roles:
        place, section = spec.placement_of(role), spec.section_of(role)
        demand = Demand(role.resources.gcores, DeviceNeed(place.gpu, place.gpu_memory_mb))
        split = next((one for one in devices if one.mig >= 0), None)
        by_index = place.cuda_visible_devices == BY_INDEX and spec.image_of(role) is None
        if demand.gcores and by_index and split is not None:
            text = f"index needs GPUs that are whole: gpu{split.index} of this machine is split by MIG, so CUDA's"
            refuse(SpecError(f"{section}.cuda_visible_devices", f"{text} indexes are not those of the driver (uuid)"))
        if demand.gcores and (shortage := too_few((demand,), devices, has)):
            each = "each container " if spec.containers > 1 else ""
            refuse(RequestTooLarge(f"{each}{shortage.text}", f"{section}.{shortage.key}"))
            refused |= {"gcores", f"{section}.gcores"}
    if not refused and (shortage := too_few(demands, devices, has)):
        text = f"{spec.containers} containers {shortage.text}, and they run at the same time"
        refuse(RequestTooLarge(text, "resources.containers" if len(spec.roles) == 1 else "role"))
        refused.add("gcores")
    return refused


def _gpus_of(spec: AppSpec) -> str:
    """Return which GPUs an application requests, for the queue; empty: any whole ones."""
    if not spec.total()[2]:
        return ""
    from dlapp.gpuid.needs import demands_of, to_text

    return to_text(demands_of(spec))


def _runs_at_most_s(spec: AppSpec) -> int | None:
    """Return the time limit of an application's run [s]; None: no limit."""
    return None if spec.max_runtime_s is None else math.ceil(spec.max_runtime_s + spec.kill_grace_s)


def _kept_text(view: Mapping[str, Any]) -> str:
    """Return what is left of the output of a killed application."""
    kept = [one["partial"] for one in view.get("outputs", ()) if one.get("partial")]
    return f"output that was complete is kept at {', '.join(kept)}" if kept else "no output kept"


def _over(row: ApplicationRow) -> str:
    outcome = json.loads(row.outcome)
    return f"{row.id} had already ended: {outcome['cause'] or outcome['final_status'].lower()}"


def _umask() -> int:
    # os.umask can only read it by changing it, which other threads would see. Source: proc(5), since Linux 4.7.
    words = status_fields("self", "Umask")
    return int(words[0], 8) if words else 0o022


def _readable_policy() -> Policy:
    """Return the operator's policy, or the defaults if it is invalid: the runner then starts nothing and logs why."""
    from dlapp.cluster.local.queue_state import read_policy

    try:
        return read_policy()
    except ConfigError:
        from dlapp.scheduler.values import Policy

        return Policy()


def _wait_for(condition: Callable[[], bool], deadline: float) -> bool:
    pauses_s = backoff_s(0.002, 0.1)
    with Wait("the end of what runs", deadline - time.monotonic()):
        while not condition():
            if time.monotonic() >= deadline:
                return False
            time.sleep(next(pauses_s))
    return True


def _kill_master(application_dir: str, uid: int) -> None:
    """Send SIGKILL to the recorded ApplicationMaster or clean-up process of an application."""
    if (pidfd := open_recorded(application_dir, uid)) is None:
        return
    try:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        select.select([pidfd], [], [], 5.0)
    finally:
        os.close(pidfd)
