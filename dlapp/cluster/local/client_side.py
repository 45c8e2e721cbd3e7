"""LocalEngine: submitting to this machine, looking at what is there, ending it."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from dlapp import __version__
from dlapp.cluster.local import outcome as outcomes
from dlapp.cluster.local import schedule, views
from dlapp.cluster.local.election import ensure_runner, runner_lives
from dlapp.cluster.local.queue import DONE, RUNNING, WAITING, Queue, Row
from dlapp.cluster.local.schedule import Amounts
from dlapp.cluster.local.settings import Settings, settings_of
from dlapp.cluster.local.spawn import PROGRAM
from dlapp.cluster.local.state import (
    StateDir,
    boot_id,
    file_url,
    is_locked,
    open_process,
    open_state,
    read_json,
    sync_directory,
    user_name,
    write_whole,
)
from dlapp.errors import AskTooLarge, ConfigError, Denied, DlappError, NotFound, SpecError, TimedOut, Unreachable

if TYPE_CHECKING:
    from dlapp.cluster import EngineInfo, LogFiles
    from dlapp.cluster.local.strays import Left
    from dlapp.config import Config
    from dlapp.ids import ApplicationId
    from dlapp.report import ApplicationView
    from dlapp.spec import AppSpec, Secrets, Submission

KILL_ASK_S = 2.0
"""How long an ApplicationMaster may take to end by itself once dlapp-kill has asked it."""
KILL_END_S = 20.0
"""How long processes may take to be gone after SIGKILL, and their outputs to be cleared."""
SOFT_KILL_ASK_S = 5.0
DOCKER_ASK_S = 2.0
LOG_NAMES = ("stdout", "stderr", "dlapp.log")


class LocalEngine:
    """The client's side of the embedded engine.

    Args:
        program: how our own processes are started; tests put theirs in its place.

    Raises:
        ConfigError: the state directory cannot be used (a network file system, say).
        Denied: it is another user's.
    """

    def __init__(self, config: Config, *, program: Sequence[str] = PROGRAM) -> None:
        self._config = config
        self._settings: Settings = settings_of(config, program)
        self._state: StateDir = open_state(config.local.state_dir, shared=config.local.shared)
        self._uid = os.geteuid()
        self._by_thread = threading.local()

    @property
    def state(self) -> StateDir:
        """Where this engine keeps its state."""
        return self._state

    def close(self) -> None:
        """Let go of this thread's connection to the rows."""
        if (queue := getattr(self._by_thread, "queue", None)) is not None:
            queue.close()

    def __enter__(self) -> LocalEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _queue(self) -> Queue:
        queue: Queue | None = getattr(self._by_thread, "queue", None)
        if queue is None:
            queue = self._by_thread.queue = Queue(self._state)
        return queue

    # ---- what there is ----

    def info(self) -> EngineInfo:
        """The embedded engine answers when its state directory can be used and is of a version that we speak.

        Raises:
            Unreachable: it is of another version.
        """
        from dlapp.cluster import EngineInfo

        self._queue().count_unsettled(self._uid)
        hdfs, why = self._hdfs
        return EngineInfo(name="local", version=__version__, has_gpus=self._gcores() > 0, hdfs=hdfs, no_hdfs=why)

    @cached_property
    def _hdfs(self) -> tuple[dict[str, Any] | None, str]:
        """The HDFS that this machine is told of, and where it is told of none, why."""
        from dlapp.cluster.yarn.site import read_site
        from dlapp.login import own_login

        try:
            return read_site(self._config.yarn.conf_dir).storage(own_login()), ""
        except ConfigError as error:
            return None, str(error)  # who names no place there needs none

    def capacity(self) -> Amounts:
        """How much of this machine may be used: memory [MiB], vcores, gcores."""
        from dlapp.cluster.local.capacity import memory_mib, vcores

        settings = self._settings
        return Amounts(
            memory_mib() if settings.memory_mib is None else settings.memory_mib,
            vcores() if settings.vcores is None else settings.vcores,
            self._gcores(),
        )

    def _gcores(self) -> int:
        if self._settings.gcores == 0:
            return 0
        from dlapp.gpuid.nvml import library_is_there

        if not library_is_there():
            return 0
        from dlapp.gpuid import asked
        from dlapp.gpuid.machine import MachineLedger

        devices = MachineLedger(self._settings.lock_dir, discover=asked.discover).capacity()
        return devices if self._settings.gcores is None else min(devices, self._settings.gcores)

    def check(self, spec: AppSpec) -> list[str]:
        """Refuse an ask that this machine can never meet.

        Returns:
            A line for each key that has no effect on one machine.

        Raises:
            AskTooLarge: it can never be met, with the amounts.
        """
        capacity = self.capacity()
        parts = [schedule.too_large(Amounts(*role.resources.times(1)), capacity) for role in spec.roles]
        if (never := next((part for part in parts if part), None)) is not None:
            raise AskTooLarge(f"each container: {never}" if spec.containers > 1 else never)
        if (never := schedule.too_large(Amounts(*spec.total()), capacity)) is not None:
            raise AskTooLarge(f"{spec.containers} containers: {never}, and they run at the same time")
        if spec.docker_image is not None or any(role.docker_image is not None for role in spec.roles):
            self._check_docker(gcores=spec.total()[2])
        named = {
            "application.queue": spec.queue,
            "application.priority": spec.priority,
            "resources.nodes": spec.placement.nodes,
            "resources.exclude_nodes": spec.placement.exclude_nodes,
            "resources.node_label": spec.placement.node_label,
        }
        return [f"{name} has no effect on one machine" for name, value in named.items() if value not in (None, ())]

    def _check_docker(self, *, gcores: int) -> None:
        import socket

        if gcores > 0 and self._settings.docker_gpu_mode == "none":
            raise SpecError("resources.gcores", "containers get no GPUs here: runtime.docker.gpu_mode is none")
        host = self._settings.docker_host
        if not host.startswith("unix://"):
            raise SpecError(
                "application.docker_image", f"needs this machine's dockerd, and runtime.docker.host is {host}"
            )
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(DOCKER_ASK_S)
            try:
                probe.connect(host.removeprefix("unix://"))
            except OSError as error:
                why = f"Docker at {host} does not answer ({error.strerror or error})"
                raise Unreachable(f"{why}; does dockerd run, and may you use it? (runtime.docker.host)") from error

    def prepare(self) -> None:
        """Start the runner while the workspace is packed: it takes as long as that of a small one."""
        with contextlib.suppress(DlappError, OSError):  # submitting tries again
            ensure_runner(self._state, self._settings, wake=False, stay=True)

    def archive_cache(self) -> str:
        """Directory for packed workspaces, the caller's own; what is unused for long or too much is removed."""
        return self._state.cache(self._uid)

    # ---- submitting ----

    def submit(self, submission: Submission, secrets: Secrets) -> ApplicationId:
        """Hand an application in; after the return it runs whatever becomes of the caller.

        All of it or nothing: the files are made aside, then in one transaction the row is written and the directory
        gets its name.

        Raises:
            NotFound: its workspace's archive is not there any more.
            Unreachable: the state cannot be written.
        """
        from dlapp.ids import ApplicationId
        from dlapp.jsonform import to_json

        spec = submission.spec
        memory_mib, vcores, gcores = spec.total()
        archive = submission.workspace_archive.removeprefix("file://")
        try:
            staging = self._stage(to_json(submission), to_json(secrets), self._storage(spec))
        except OSError as error:
            raise Unreachable(f"{self._state.staging}: {error.strerror}") from error
        try:
            with self._queue().change() as queue:
                # In the transaction, as the cache is cleared in one: what is here now stays for this row.
                if not os.path.exists(archive):
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
                )
                self._give_name(staging, self._state.application(text))
        except BaseException:
            from dlapp.cluster.local.history import remove_tree

            remove_tree(staging)
            raise
        self._tend_after_submission()
        return ApplicationId.from_text(text)

    def _storage(self, spec: AppSpec) -> dict[str, Any] | None:
        """The HDFS that an application has to do with: as it is known here, for its processes see no such variable."""
        named = [source for one in spec.inputs for source in one.sources] + [one.target for one in spec.outputs]
        if not any(one.startswith("hdfs://") for one in named):
            return None
        hdfs, why = self._hdfs
        if hdfs is None:
            raise ConfigError(why)
        # Named by a variable of OpenSSL's, as on a cluster's clients.
        ca = os.environ.get("SSL_CERT_FILE")
        return {**hdfs, "user": spec.username, **({"ca": os.path.abspath(ca)} if ca else {})}

    def _stage(self, submission: Any, secrets: Any, storage: dict[str, Any] | None) -> str:
        staging = os.path.join(self._state.staging, f"{os.getpid()}-{os.urandom(8).hex()}")
        os.mkdir(staging, 0o700)
        if self._state.shared:
            os.chmod(staging, 0o2750)
        # The mask is the submitter's, for the files of a payload; our own have modes that do not depend on it.
        engine = {"settings": self._settings.to_json(), "shared": self._state.shared, "umask": _umask()}
        if storage is not None:
            engine["storage"] = storage
        os.mkdir(os.path.join(staging, "containers"))
        if self._state.shared:
            os.chmod(os.path.join(staging, "containers"), 0o2750)
        for name, value, mode in (
            ("submission.json", submission, 0o640),
            ("secrets.json", secrets, 0o600),
            ("engine.json", engine, 0o640),
            ("alive", None, 0o640),
        ):
            fd = os.open(os.path.join(staging, name), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
            try:
                if value is not None:
                    data = json.dumps(value, separators=(",", ":")).encode()
                    while data:
                        data = data[os.write(fd, data) :]
                    os.fsync(fd)
            finally:
                os.close(fd)
        sync_directory(staging)
        return staging

    def _give_name(self, staging: str, home: str) -> None:
        try:
            os.rename(staging, home)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise Unreachable(f"{home}: {error.strerror}") from error
            # The number is new, so this was left by a submission that died before its row was written.
            os.rename(home, f"{staging}-left")
            os.rename(staging, home)
        sync_directory(self._state.applications)

    def _tend_after_submission(self) -> None:
        # The application is in; that nothing could be started now is no reason to say that it is not.
        with contextlib.suppress(DlappError, OSError):
            ensure_runner(self._state, self._settings)

    def tend(self) -> None:
        """See to it that somebody works off the caller's rows, if there are any; cheap where all is well."""
        if self._queue().count_unsettled(self._uid):
            ensure_runner(self._state, self._settings, wake=False)

    # ---- looking ----

    def ids(self, *, everybody: bool = False) -> list[str]:
        """All ids as text, oldest first: the caller's own, or everybody's."""
        return self._queue().ids(None if everybody else self._uid)

    def view(self, application_id: ApplicationId) -> ApplicationView:
        """What is known of it now. Raises NotFound."""
        from dlapp.jsonform import from_json
        from dlapp.report import ApplicationView

        return from_json(ApplicationView, self.view_json(str(application_id)))

    def view_json(self, application_id: str) -> dict[str, Any]:
        """`view` in its JSON form, for who needs no classes. Raises NotFound."""
        alive, row = self._look(application_id)
        ahead = ""
        if row.state == WAITING:
            waiting = self._queue().rows("state = 'waiting'", columns="number, state")
            if waiting and waiting[0].number != row.number:
                ahead = schedule.ahead(row.number, waiting)
        return views.view_of(row, self._state.application(row.id), boot_id(), alive=alive, ahead=ahead)

    def _look(self, application_id: str) -> tuple[bool, Row]:
        """Whether an application's lock is held, and its row, read after that. Raises NotFound."""
        row = self._row(application_id)
        if row.state != RUNNING:
            return False, row
        alive = self._is_alive(row.id)
        return alive, self._row(application_id)

    def _is_alive(self, application_id: str) -> bool:
        return is_locked(os.path.join(self._state.application(application_id), "alive"))

    def views(
        self, *, everybody: bool = False, user: str | None = None, limit: int | None = None
    ) -> list[ApplicationView]:
        """What is known of many, oldest first: the caller's own, one user's, or everybody's.

        Args:
            limit: how many of those that have ended, the latest; None: all. Their containers are left out, but for
                the one that speaks for the exit code.
        """
        from dlapp.jsonform import from_json
        from dlapp.report import ApplicationView

        return [from_json(ApplicationView, one) for one in self.views_json(everybody=everybody, user=user, limit=limit)]

    def views_json(
        self, *, everybody: bool = False, user: str | None = None, limit: int | None = None
    ) -> list[dict[str, Any]]:
        """`views` in JSON form."""
        whose, values = "uid = ?", (self._uid,)
        if user is not None:
            whose, values = "(username = ? OR submitter = ?)", (user, user)  # type: ignore[assignment]
        elif everybody:
            whose, values = "TRUE", ()  # type: ignore[assignment]
        queue = self._queue()
        running = queue.rows(f"state = 'running' AND {whose}", values, columns="id")
        alive = {row.id for row in running if self._is_alive(row.id)}
        rows = queue.rows(f"state != 'done' AND {whose}", values)
        some = "" if limit is None else f" LIMIT {int(limit)}"
        rows += queue.rows(f"state = 'done' AND {whose} ORDER BY number DESC{some}", values)
        rows.sort(key=lambda row: row.number)
        waiting: list[Row] = []
        if any(row.state == WAITING for row in rows):
            waiting = queue.rows("state = 'waiting'", columns="number, state")
        return views.views_of(rows, waiting, alive, self._state.application, boot_id())

    def submission(self, application_id: ApplicationId) -> Submission:
        """What was submitted. Raises NotFound."""
        from dlapp.jsonform import from_json
        from dlapp.spec import Submission

        path = os.path.join(self._home(str(application_id)), "submission.json")
        if (found := read_json(path)) is None:
            raise NotFound(f"{path} is not there")
        return from_json(Submission, found)

    def logs(self, application_id: ApplicationId) -> list[LogFiles]:
        """The logs of all containers that ran, in CONTAINER_INDEX order, the last attempt of each. Raises NotFound."""
        from dlapp.cluster import LogFiles

        home = self._home(str(application_id))
        found = []
        for one in sorted(self.view(application_id).containers, key=lambda one: one.index):
            directory = os.path.join(home, "containers", str(one.container_id))
            files = {name: file_url(os.path.join(directory, name)) for name in LOG_NAMES}
            found.append(
                LogFiles(
                    container_id=one.container_id,
                    role=one.role,
                    role_index=one.role_index,
                    index=one.index,
                    files=files,
                )
            )
        return found

    def dashboard_urls(self, application_id: ApplicationId, *, wait_s: float = 0.0) -> tuple[str, str]:
        """The page while it runs, and the file after it is completed.

        Args:
            wait_s: how long to wait for the page, which there is once the application has started; a file is named
                in its place where there is none.
        """
        home = self._home(str(application_id))
        history = file_url(os.path.join(home, "view.json"))
        deadline = time.monotonic() + wait_s
        while (url := self._control_url(home)) is None and time.monotonic() < deadline:
            row = self._row(str(application_id))
            if row.state == DONE or (row.state == WAITING and self._is_held_up(row)):
                break
            time.sleep(0.01)
        path = self._page_path(home) if url else ""
        return (f"{url}{path}" if path else history), history

    @staticmethod
    def _page_path(home: str) -> str:
        """Where the page lies, for who may read the application's secrets; empty for others and after its end."""
        from dlapp.control import page_path

        with contextlib.suppress(PermissionError):
            if (secrets := read_json(os.path.join(home, "secrets.json"))) is not None:
                return page_path(str(secrets["control_secret"]))
        return ""

    def _is_held_up(self, row: Row) -> bool:
        """Whether a waiting row cannot start at once: something is lacking, or another waits before it."""
        before = "state = 'waiting' AND number < ?"
        return bool(row.reason or self._queue().rows(before, (row.number,), columns="number"))

    def _row(self, application_id: str) -> Row:
        if (row := self._queue().row(application_id)) is None:
            raise NotFound(f"{application_id} is not known on this machine (dlapp-list -a shows what is)")
        return row

    def _home(self, application_id: str) -> str:
        return self._state.application(self._row(application_id).id)

    def _control_url(self, home: str) -> str | None:
        with contextlib.suppress(DlappError, KeyError):  # a power cut may leave it empty
            if (found := read_json(os.path.join(home, "am.json"))) is not None:
                return str(found["control_url"])
        return None

    # ---- ending ----

    def soft_kill(self, application_id: ApplicationId, by: str) -> str:
        """Ask for a soft-kill; one that waits is killed, as nothing of it runs.

        Raises:
            NotFound, Denied: it is not there, or another user's.
            Unreachable: its ApplicationMaster does not answer.
        """
        row = self._own(application_id)
        if row.state == DONE:
            return _over(row)
        if self._end_waiting(row.id, by):
            return f"{row.id} was killed before it started"
        home = self._state.application(row.id)
        deadline = time.monotonic() + SOFT_KILL_ASK_S
        while True:
            try:
                answer = self._ask(home, "softkill", by, max(0.1, deadline - time.monotonic()))
            except Unreachable:
                ended = self.view_json(row.id)
                if ended["state"] in ("FINISHED", "FAILED", "KILLED"):
                    return f"{row.id} is {ended['state']}: {ended['diagnostics']}"
                # It may only just be starting.
                if time.monotonic() >= deadline:
                    raise
                time.sleep(0.05)
                continue
            return _stop_answer(row.id, answer)

    def kill(self, application_id: ApplicationId, by: str) -> str:
        """Kill: ask its ApplicationMaster, then SIGKILL; returns when nothing of it is left.

        Raises:
            NotFound, Denied: it is not there, or another user's.
            TimedOut: a process of it is still there (a device that does not answer can hold one for ever).
        """
        row = self._own(application_id)
        if row.state == DONE:
            return _over(row)
        if self._end_waiting(row.id, by):
            return f"{row.id} was killed before it started"
        home = self._state.application(row.id)
        deadline = time.monotonic() + KILL_ASK_S
        self._write_kill_request(home, by)
        try:
            self._ask(home, "kill", by, KILL_ASK_S)
        except DlappError:
            deadline = 0.0  # it does not answer, or is not up yet: nothing to wait for
        alive = os.path.join(home, "alive")
        if not _wait_for(lambda: not is_locked(alive), deadline):
            _kill_process(os.path.join(home, "am.pid"))
        from dlapp.cluster.local.strays import Left

        deadline = time.monotonic() + KILL_END_S
        left = Left(home, row.uid, self._state.runner_lock(row.uid), spare_am=False)
        if not _wait_for(lambda: self._is_gone(row, home, left), deadline):
            raise TimedOut(
                f"{row.id}: processes of it are still there {KILL_END_S:g} s after SIGKILL; its GPUs stay taken"
            )
        # What it left is cleared, and its end is written, by the runner.
        with contextlib.suppress(DlappError, OSError):
            ensure_runner(self._state, self._settings)
        if not _wait_for(lambda: self._is_settled(row), deadline):
            raise TimedOut(f"{row.id}: its processes are gone, but what it left was not cleared in {KILL_END_S:g} s")
        now = self.view_json(row.id)
        if now["state"] == "KILLED":
            return f"{row.id} was killed, no output kept"
        return f"{row.id} had ended before the kill: {now['state']}, {now['diagnostics']}"

    def _is_gone(self, row: Row, home: str, left: Left) -> bool:
        """Whether no process of a killed application is there; what does not end by itself is ended."""
        if not is_locked(os.path.join(home, "alive")) or self._row(row.id).state == DONE:
            return True
        if (pidfd := _open_named(os.path.join(home, "am.pid"))) is not None:
            os.close(pidfd)  # one that cleans up, most likely
            left.wait_anew()
        else:
            left.end_in_time()
        return False

    def _is_settled(self, row: Row) -> bool:
        # Root may kill what is another's, but only that user's runner clears and settles it; the next one will.
        return self._row(row.id).state == DONE or (row.uid != self._uid and not runner_lives(self._state, row.uid))

    def _own(self, application_id: ApplicationId) -> Row:
        row = self._row(str(application_id))
        if self._uid not in (0, row.uid):
            raise Denied(f"{row.id} belongs to {user_name(row.uid)}; only they or root may end it")
        return row

    def _end_waiting(self, application_id: str, by: str) -> bool:
        outcome = outcomes.killed(by, outcomes.now_ms(), begun=False)
        with self._queue().change() as queue:
            row = queue.row(application_id)
            if row is None or row.state != WAITING:
                return False
            queue.update(
                row.number, state=DONE, finished_ms=outcome["finished_ms"], outcome=json.dumps(outcome), reason=""
            )
        from dlapp.cluster.local.runner import remove_secrets

        remove_secrets(self._state.application(application_id))
        with contextlib.suppress(DlappError, OSError):
            ensure_runner(self._state, self._settings)  # those behind it may fit now
        return True

    def _write_kill_request(self, home: str, by: str) -> None:
        path = os.path.join(home, "kill.json")
        if not os.path.exists(path):
            write_whole(path, json.dumps({"by": by, "ms": outcomes.now_ms()}))

    def _ask(self, home: str, what: str, by: str, timeout_s: float) -> dict[str, Any]:
        from dlapp.control import TOOLS, derive_token
        from dlapp.control_http import ControlConnection

        url = self._control_url(home)
        secrets = read_json(os.path.join(home, "secrets.json"))
        if url is None or secrets is None:
            raise Unreachable("its ApplicationMaster is not up")
        token = derive_token(str(secrets["control_secret"]), TOOLS)
        with ControlConnection(url, token) as connection:
            answer = connection.call("POST", f"/v1/{what}", {"user": by}, timeout_s=timeout_s)
        return answer if isinstance(answer, dict) else {}


def _stop_answer(application_id: str, answer: dict[str, Any]) -> str:
    """A line on what came of a soft-kill (`dlapp.control.StopAnswer`)."""
    if answer.get("message"):
        return str(answer["message"])
    left = f"SIGKILL follows in {max(0.0, float(answer.get('left_s', 0))):.0f} s at the latest"
    match answer.get("state"):
        case "ended":
            return f"{application_id} had already ended"
        case "already":
            return f"{application_id} is being stopped already; {left}"
    return f"{application_id} is being stopped, its output will be committed; {left}"


def _over(row: Row) -> str:
    outcome = json.loads(row.outcome)
    return f"{row.id} had already ended: {outcome['state']}, {outcome['final_status']}"


def _umask() -> int:
    # Reading it by os.umask would change it for a moment under other threads. Source: proc(5), since Linux 4.7.
    with contextlib.suppress(OSError), open("/proc/self/status", encoding="utf-8") as file:
        for line in file:
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    return 0o022


def _wait_for(condition: Callable[[], bool], deadline: float) -> bool:
    pause_s = 0.002
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.1)
    return True


def _open_named(pid_file: str) -> int | None:
    try:
        with open(pid_file, encoding="ascii") as file:
            pid, started = (int(word) for word in file.read().split())
    except (OSError, ValueError):
        return None
    return open_process(pid, started)


def _kill_process(pid_file: str) -> None:
    """SIGKILL to the process that a file names with its start time, if that is the one that is there."""
    if (pidfd := _open_named(pid_file)) is None:
        return
    try:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        select.select([pidfd], [], [], 5.0)
    finally:
        os.close(pidfd)
