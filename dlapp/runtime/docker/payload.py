"""Payload in a Docker container: image, workspace, lifeline, restrictions, GPUs, labels.

The wrapper is the container's first process below Docker's own init. It does everything that must work while dockerd is
dead, restarted or hung: it starts the payload, passes on a soft stop, kills everything when the lifeline closes, and
writes the exit code. dockerd is needed only to create, start and remove the container.

Paths in a container:

    /workspace              the workspace; the working directory
    /dlapp/home, /dlapp/tmp HOME and TMPDIR
    /dlapp/run              DLAPP_DIR: files that dlapp and the payload exchange
    /dlapp/python           the module dlapp_context; read-only
    /dlapp/shell            in dlapp-shell: what dlapp-run needs; read-only, and a FIFO there can still be written to
    /dlapp/log/             the files that take stdout, stderr and the exit code
    /dlapp/life             the lifeline; read-only, like the wrapper beside it
    /dlapp/ending           the FIFO by which the wrapper reports the end of the payload
    /dlapp/exec             the lifelines of commands that users run beside the payload; read-only
    /etc/hosts              with a roster, in the host's network: the names of this host, and of the other containers

Values that are known only when the payload starts cannot be in the container's environment or arguments. The wrapper
reads them from the file env.sh in DLAPP_DIR, which is written before the container starts, and never read by dlapp.

The cgroup and the network disappear with the container, so after the payload's end the wrapper waits until the task has
read their counters. If the wrapper is killed, the last earlier reading counts.

With GPUs the wrapper first writes which it sees. It gets the order to start only if these are the leased ones.

The container of a dead task is removed when its application ends (`dlapp.runtime.docker.cleanup`), or by the next task
on this host (`dlapp.runtime.docker.labels`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dlapp.locations import shown
from dlapp.net.dockerd import DockerRefused, DockerSilent
from dlapp.node_policy import DockerPolicy, shared_path_problem
from dlapp.runtime.docker import accounts
from dlapp.runtime.docker import container as containers
from dlapp.runtime.docker.container import Bind
from dlapp.runtime.docker.container_factory import (
    EXEC,
    HOME,
    LIFE,
    PYTHON,
    RUN,
    TMP,
    WORKSPACE,
    account_binds,
    add_account,
    chosen_mode,
    explained,
    make,
    open_docker,
)
from dlapp.runtime.docker.exit_status import ContainerExit, ticks_now
from dlapp.runtime.docker.images import ImageStore, LocalImage
from dlapp.runtime.docker.labels import LABEL_APP, LABEL_IMAGE, labels_of, remove_leftover_containers
from dlapp.runtime.docker.shim import ShimWatch
from dlapp.runtime.exec.lifelines import end_sessions
from dlapp.runtime.gpu import verification
from dlapp.runtime.gpu.modes import Facts, GpuPart, part_for
from dlapp.runtime.lifeline import EndNotice, Lifeline
from dlapp.runtime.payload import NO_VARIABLES, Payload, PayloadError, PayloadExit, PayloadPlace
from dlapp.system.files import closing_fd, open_own_directory, write_all
from dlapp.system.processes.proc import descendants, start_time
from dlapp.system.processes.resource_counters import NOTHING_KNOWN, CgroupCounters, ResourceCounters
from dlapp.values.image_name import RegistryCredentials
from dlapp.values.launch_spec import DOCKER_SHELL, DockerSettings
from dlapp.values.messages import Fault
from dlapp.values.program.placeholders import substitute

_WRAPPER = "/dlapp/wrapper.sh"
_LOG = "/dlapp/log"
_ENDING = "/dlapp/ending"
_ENV_FILE = "env.sh"
_HOST_NAMES = "/etc/hosts"
_MAX_HOST_NAMES = 1 << 20
"""Bytes of this host's names; 20,000 hosts."""

_CALL_TIMEOUT_S = 60.0
_LOOK_TIMEOUT_S = 5.0
_LOOK_EVERY_S = 0.2
_KILL_HELP_AFTER_S = 2.0
_NOT_FOUND = 127
"""Exit code of a shell that has not found a command."""


class DockerRun:
    """The `dlapp.runtime.payload.Running` of a container. Call `prepare` first.

    Args:
        progress: called with the pulled bytes of the image and the total.
        credentials: the submitter's, for the image's registry; None if there are none.
    """

    def __init__(
        self,
        payload: Payload,
        settings: DockerSettings,
        policy: DockerPolicy,
        note: Callable[[str], None],
        progress: Callable[[int, int], None] | None = None,
        credentials: RegistryCredentials | None = None,
        shared_paths: tuple[str, ...] = (),
    ) -> None:
        self._shared_paths = shared_paths
        self._payload, self._settings, self._policy = payload, settings, policy
        self._note, self._progress = note, progress
        self._docker = open_docker(settings.host, _CALL_TIMEOUT_S)
        self._images = ImageStore(self._docker, settings.lock_dir, note, policy.registry, credentials)
        self._name = f"dlapp-{payload.container_id}{'.' if payload.name else ''}{payload.name}"
        self._task_directory = payload.task_directory or payload.directory
        self._ending = ContainerExit(self._docker, self._name, payload, note)
        self.image_digest = ""
        """Digest of the image, set by the preparation."""
        self._entrypoint: list[str] = []
        self._lifeline: Lifeline | None = None
        self._notice: EndNotice | None = None
        self._shim = ShimWatch()
        self._words: tuple[str, ...] = ()
        self._made = False
        self._began_ticks = 0
        self._result: PayloadExit | None = None
        self._next_check_at = 0.0
        self._kill_help_at: float | None = None
        self._sent: set[int] = set()
        self._cgroup: CgroupCounters | None = None
        self._counters = NOTHING_KNOWN
        self._place: PayloadPlace | None = None

    # ---- before the start ----

    def prepare(self) -> None:
        """Pull the image if it is missing, and create the container without starting it.

        Raises:
            PayloadError: Docker does not answer, the image is not available, no GPU mode works, the container cannot be
                created.
        """
        with self._explained():
            # Before the image: what is missing on this node is reported at once, not after a long pull.
            choice, facts = chosen_mode(
                self._docker, self._settings, self._policy, self._payload.gpus, self._payload.env, self._note
            )
            remove_leftover_containers(self._docker, self._note, but=self._task_directory)
            for last in (False, True):
                image = self._images.require(self._payload.image or "", self._progress)
                self.image_digest, self._entrypoint = image.digest, containers.image_entrypoint(image.about)
                env = {**containers.image_env(image.about), **self._payload.env}
                part = part_for(choice.mode, self._payload.gpus, facts, env, allowed=self._policy.gpu_capabilities)
                try:
                    self._make(image, part, facts)
                    break
                except DockerRefused as error:
                    if last or error.status != 404 or self._images.is_there(self._payload.image or ""):
                        raise
                    self._note("the image was just removed")

    def _make(self, image: LocalImage, part: GpuPart, facts: Facts) -> None:
        payload = self._payload
        self._words = words = payload.start_arguments()
        for path in (payload.stdout, payload.stderr, payload.exit_file):
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        os.truncate(payload.exit_file, 0)
        for path in (payload.home, payload.tmp, payload.run, payload.exec):
            os.makedirs(path, mode=0o700, exist_ok=True)
        payload.write_context()
        if self._lifeline is None:
            self._lifeline = Lifeline(payload.life)
            self._notice = EndNotice(payload.ending)
        out, err, exit_file = f"{_LOG}/stdout", f"{_LOG}/stderr", f"{_LOG}/exit"
        mode = "look" if payload.gpus else "wait"
        # Docker's init then passes SIGTERM (docker stop, the host's shutdown) on to the payload, not only to its shell.
        image_env = containers.image_env(image.about)
        env = {"HOME": HOME, "TMPDIR": TMP, **payload.environment(image_env), "TINI_KILL_PROCESS_GROUP": "1"}
        if (of_image := image_env.get("PYTHONPATH")) and env.get("PYTHONPATH") == PYTHON:
            env["PYTHONPATH"] = f"{of_image}:{PYTHON}"  # it would be lost
        known = accounts.read_cached(self._settings.lock_dir, str(image.about["Id"]))
        made = containers.ContainerSpec(
            name=self._name,
            image=image.name,
            entrypoint=("/bin/sh", _WRAPPER),
            command=(mode, LIFE, out, err, exit_file, *words),  # see wrapper.sh
            env=env,
            labels={
                **labels_of(payload.container_id, self._task_directory, payload.gpus),
                LABEL_APP: payload.application_id,
                LABEL_IMAGE: self.image_digest,
            },
            working_dir=WORKSPACE,
            binds=(
                Bind(payload.workspace, WORKSPACE),
                *self._inputs(),
                Bind(payload.home, HOME),
                Bind(payload.tmp, TMP),
                Bind(payload.run, RUN),
                Bind(payload.python, PYTHON, read_only=True),
                *([Bind(payload.shell_dir, DOCKER_SHELL, read_only=True)] if payload.shell_dir else []),
                Bind(payload.stdout, out),
                Bind(payload.stderr, err),
                Bind(payload.exit_file, exit_file),
                Bind(payload.life, LIFE, read_only=True),
                Bind(payload.ending, _ENDING, read_only=True),
                Bind(payload.exec, EXEC, read_only=True),
                Bind(payload.wrapper, _WRAPPER, read_only=True),
                *self._host_names(),
                *account_binds(known, payload.directory),
                *(Bind(source, target) for source, target in payload.caches),
                *containers.operators_binds(self._policy, self._note),
            ),
            gpus=part,
            **containers.isolation_fields(
                self._docker,
                payload.resources,
                self._settings.network,
                self._policy,
                as_submitter=payload.as_submitter,
            ),
        )
        self._docker.remove(self._name)
        self._made = True  # also if the answer to the next call is lost
        self._check_shared()
        make(self._docker, made, facts, payload.directory, self._note)
        self._check_shared()
        if known is None:
            add_account(self._docker, self._name, self._settings.lock_dir, str(image.about["Id"]))

    def _host_names(self) -> list[Bind]:
        """Return the mount of /etc/hosts: a file with the lines of this host, to which those of the peers are added.

        Docker itself takes further names only when a container is created, and the addresses are not known then.
        """
        if not (self._payload.has_peers and self._settings.network == "host"):
            return []
        try:
            with open(_HOST_NAMES, "rb") as file:
                names = file.read(_MAX_HOST_NAMES)
        except FileNotFoundError:
            names = b"127.0.0.1\tlocalhost\n"
        with open(
            os.open(self._payload.hosts, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644), "wb"
        ) as file:
            os.fchmod(file.fileno(), 0o644)  # the payload may be another user
            file.write(names if names.endswith(b"\n") else names + b"\n")
        return [Bind(self._payload.hosts, _HOST_NAMES, read_only=True)]

    def _inputs(self) -> list[Bind]:
        workspace = os.path.realpath(self._payload.workspace)
        return [
            Bind(source, f"{WORKSPACE}/{os.path.relpath(path, workspace)}", read_only=True)
            for source, path in self._payload.mounts
        ]

    def _check_shared(self) -> None:
        """Refuse a mount whose path was redirected since it was checked: dockerd, which is root, resolves the path."""
        for source, _ in self._payload.mounts:
            if source not in self._payload.shared:
                continue
            problem = shared_path_problem(source, self._shared_paths)
            if os.path.realpath(source) != source or not os.path.isdir(source):
                problem = f"{shown(source)} is not the directory any more that it was"
            if problem:
                raise PayloadError(Fault.NODE, f"an input could not be mounted: {problem}")

    # ---- while it runs ----

    def start(self, start_env: Mapping[str, str] = NO_VARIABLES, peer_values: Mapping[str, str] = NO_VARIABLES) -> None:
        words = substitute(self._words[2:], peer_values)
        words = () if words == self._words[2:] else words
        if start_env or words:
            self._write_start_env(start_env, words)
        self._check_shared()  # the mount is created there
        with self._explained():
            self._docker.start(self._name)
        # The following requests are optional, and not worth a long wait for a hung dockerd.
        self._docker.timeout_s = _LOOK_TIMEOUT_S
        self._began_ticks = ticks_now()
        if self._payload.gpus:
            self._verify_gpus()
        about = self._ending.inspect()
        pid, name = about.get("State", {}).get("Pid"), about.get("Id")
        self._shim.open(pid)
        if isinstance(pid, int) and pid > 0 and isinstance(name, str) and name:
            self._cgroup = CgroupCounters(pid, name, own_network=self._settings.network != "host")
            if not self._cgroup.exists:
                self._note("the container's cgroup is not visible here: the program's usage is unknown")
            self.counters()  # for a program that ends at once there is no later reading of its network
        self._place = self._place_of(about)

    def _place_of(self, about: Mapping[str, Any]) -> PayloadPlace:
        """Return where the payload runs, from dockerd's description of its container."""
        pid = self._init_pid()
        started = start_time(pid) if pid else None
        networks = (about.get("NetworkSettings") or {}).get("Networks") or {}
        found = [str(one.get(key) or "") for one in networks.values() for key in ("IPAddress", "GlobalIPv6Address")]
        return PayloadPlace(
            directory=self._payload.directory,
            container=self._name,
            docker_host=self._settings.host,
            pid=pid if started else 0,
            started=started or 0,
            own_network=self._settings.network != "host",
            addresses=tuple(filter(None, found)),
        )

    def _write_start_env(self, start_env: Mapping[str, str], words: Sequence[str]) -> None:
        """Write what the wrapper reads before it starts the payload: variables, and the arguments, if they differ from
        those of the container."""

        def quoted(text: str) -> str:
            return "'" + text.replace("'", "'\\''") + "'"

        text = "".join(f"export {name}={quoted(value)}\n" for name, value in start_env.items())
        if words:
            text += f"set -- {' '.join(map(quoted, words))}\n"
        try:
            with closing_fd(open_own_directory(self._payload.run)) as where:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                with closing_fd(os.open(_ENV_FILE, flags, 0o600, dir_fd=where)) as fd:
                    write_all(fd, os.fsencode(text))
        except OSError as error:
            raise PayloadError(Fault.NODE, f"the payload's environment could not be written: {error}") from error

    def _verify_gpus(self) -> None:
        """Let the payload start if the container sees exactly its leased GPUs."""
        assert self._lifeline is not None
        deadline, look_at = time.monotonic() + verification.TIMEOUT_S, 0.0
        while not (seen := self._ending.wrapper_report()).endswith("end\n"):
            now = time.monotonic()
            if now >= deadline:
                raise PayloadError(
                    Fault.NODE,
                    f"the container did not report in {verification.TIMEOUT_S:g} s which GPUs it sees: {seen!r:.200}",
                )
            gone = self._lifeline.is_payload_gone
            if gone or (not self._lifeline.is_held_by_payload and now >= look_at):
                look_at = now + _LOOK_EVERY_S
                if gone or self._ending.state().get("Status") in ("exited", "dead"):
                    raise self._ending.start_failure(self._ending.settled_state(), self._began_ticks)
            time.sleep(0.002)
        self._note("GPUs in the container: " + ", ".join(seen.splitlines()[:-1]))
        verification.check(self._payload.gpus, seen)
        os.truncate(self._payload.exit_file, 0)
        self._lifeline.send("go")

    def watched_fds(self) -> list[tuple[int, int]]:
        """See `Running.watched_fds`. The wrapper's end of the lifeline signals the end; dockerd need not live."""
        if self._lifeline is None or not self._lifeline.is_held_by_payload:
            return []
        notice = [] if self._notice is None else self._notice.watched_fds()
        return [*self._lifeline.watched_fds(), *notice, *self._shim.watched_fds()]

    def ended(self) -> PayloadExit | None:
        now = time.monotonic()
        if self._result is None and self._lifeline is not None:
            self._shim.check(self._lifeline)
            if self._notice is not None and self._notice.poll():
                self.counters()
                self._lifeline.send("done")
            if self._lifeline.is_payload_gone:
                self.counters()  # if the wrapper was killed, the container may still exist
                self._result = self._read_end()
            elif not self._lifeline.is_held_by_payload and now >= self._next_check_at:
                self._next_check_at = now + _LOOK_EVERY_S
                if self._ending.state().get("Status") in ("exited", "dead"):
                    self._result = self._read_end()
            elif self._kill_help_at is not None and now >= self._kill_help_at:
                self._kill_help_at = now + _KILL_HELP_AFTER_S
                self._note(f"container {self._name} does not end by itself: killing it by Docker")
                with contextlib.suppress(DockerRefused, DockerSilent):
                    self._docker.kill(self._name)
        return self._result

    def counters(self) -> ResourceCounters:
        if self._result is None and self._cgroup is not None:
            self._counters = self._counters.updated(self._cgroup.read())
        return self._counters

    def pids(self) -> list[int]:
        return descendants(pid) if (pid := self._init_pid()) else []

    def _init_pid(self) -> int:
        # Only a pid with its cgroup is certain to be the container's init, in this process's namespace.
        return self._cgroup.pid if self._cgroup is not None and self._cgroup.exists else 0

    def place(self) -> PayloadPlace | None:
        return self._place if self._result is None else None

    def open_keeper(self) -> None:
        """See `Running.open_keeper`."""

    def soft_stop(self) -> None:
        if self._lifeline is not None:
            self._sent.add(signal.SIGTERM)
            self._lifeline.send("term")
            end_sessions(self._payload.exec)  # a shell that ignores SIGTERM would be waited for

    def abort(self) -> None:
        if self._lifeline is not None:
            self._sent.add(signal.SIGABRT)
            self._lifeline.send("abort")

    def kill(self) -> None:
        if self._kill_help_at is None and self._lifeline is not None:
            self._kill_help_at = time.monotonic() + _KILL_HELP_AFTER_S
            self._sent.add(signal.SIGKILL)
            self.counters()
            self._lifeline.send("kill")

    def _read_end(self) -> PayloadExit:
        lifeline = self._lifeline
        assert lifeline is not None
        ended = self._ending.read(
            taken=lambda: lifeline.is_held_by_payload,
            sent=self._sent,
            began_ticks=self._began_ticks,
            shim_died=self._shim.died_first,
        )
        if ended.exit_code == _NOT_FOUND and not ended.problem and self._entrypoint:
            import shlex

            problem = f"exit code {_NOT_FOUND}; the image's ENTRYPOINT {shlex.join(self._entrypoint)} was not run"
            return ended._replace(problem=problem)
        return ended

    def close(self) -> None:
        if self._lifeline is not None:
            self._lifeline.close()
            self._lifeline = None
        if self._notice is not None:
            self._notice.close()
            self._notice = None
        self._shim.close()
        if self._made:
            try:
                self._docker.remove(self._name)
            except (DockerRefused, DockerSilent) as error:  # the next task on this host removes it
                self._note(f"container {self._name} is left to be removed: {error}")
            self._made = False
        for name in ("passwd", "group"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(self._payload.directory, name))

    def _explained(self) -> contextlib.AbstractContextManager[None]:
        return explained(self._settings.host, f"the container of image {self._payload.image}")
