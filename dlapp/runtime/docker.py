"""A payload in a Docker container: image, workspace, lifeline, fences, GPUs, labels.

The wrapper is the container's first process below Docker's own init, and does all that must work while dockerd is
dead, restarted or hung: it starts the payload, passes on a soft stop, kills everything when the lifeline closes, and
writes the exit code down. dockerd is needed to make the container, to start it and to remove it.

What a container sees:

    /workspace              the workspace; the working directory
    /dlapp/home, /dlapp/tmp HOME and TMPDIR
    /dlapp/log/             the files that take stdout, stderr and the exit code
    /dlapp/life             the lifeline; read-only, like the wrapper beside it

With GPUs the wrapper first writes down which it sees. Only if these are those that were leased is it told to begin.

A container of a task that died is removed when its application ends (`dlapp.runtime.sweep`), or by the next task on
this host: labels say whose it is and where its task's log lies, which the task holds locked for as long as it lives.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from dlapp.control import Fault
from dlapp.node import DockerPolicy
from dlapp.runtime import accounts
from dlapp.runtime import container as containers
from dlapp.runtime.container import Bind
from dlapp.runtime.dockerd import Dockerd, DockerRefused, DockerSilent
from dlapp.runtime.gpu_facts import driver_nodes, facts_of
from dlapp.runtime.gpu_modes import NVIDIA_DOCKER, Choice, Facts, GpuPart, choose_mode, not_taken, part_for, unlike
from dlapp.runtime.images import digest_of, make_sure_of_image
from dlapp.runtime.lifeline import Lifeline
from dlapp.runtime.payload import Card, Ended, Payload, PayloadError, how_to_start, wrapper_arguments

WORKSPACE = "/workspace"
HOME = "/dlapp/home"
TMP = "/dlapp/tmp"
_LIFE = "/dlapp/life"
_WRAPPER = "/dlapp/wrapper.sh"
_LOG = "/dlapp/log"

LABEL_APP = "dlapp.app"
LABEL_CONTAINER = "dlapp.container"
LABEL_GPUS = "dlapp.gpus"
LABEL_DIRECTORY = "dlapp.directory"
LABEL_HOST = "dlapp.host"
LABEL_UID = "dlapp.uid"
LABEL_IMAGE = "dlapp.image"

_CALL_TIMEOUT_S = 60.0
_LOOK_TIMEOUT_S = 5.0
_LOOK_EVERY_S = 0.2
_KILL_HELP_AFTER_S = 2.0
SIGHT_TIMEOUT_S = 60.0
"""What a container may take to say which GPUs it sees: nvidia-smi takes seconds where no persistence daemon runs."""
_SIGNALS = range(1, 65)
_CODE_OF_SIGKILL = 128 + signal.SIGKILL


class DockerSettings(NamedTuple):
    """What the configuration says of Docker, as it travels to a task.

    Args:
        host: dockerd's address, ``unix:///var/run/docker.sock``; it must be this machine's.
        network: Docker's network mode.
        gpu_mode: one of `dlapp.node.GPU_MODES`, ``auto`` or ``none``.
        lock_dir: a directory of the machine in which tasks wait for each other's pulls.
    """

    host: str
    network: str
    gpu_mode: str = "auto"
    lock_dir: str = "/run/lock/dlapp"

    @classmethod
    def of(cls, runtime: Mapping[str, str]) -> DockerSettings:
        """From ``runtime`` of a task's launch.json; what it does not name is as by default."""
        names = {f"docker_{name}": name for name in cls._fields}
        return cls(**{names[key]: value for key, value in runtime.items() if key in names})


class DockerRun:
    """The `dlapp.runtime.payload.Running` of a container. Make it ready with `prepare`.

    Args:
        note: takes lines for dlapp's own log.
        progress: told how much of an image has come, in bytes, and how much there is in all.
    """

    def __init__(
        self,
        payload: Payload,
        settings: DockerSettings,
        policy: DockerPolicy,
        note: Callable[[str], None],
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self._payload, self._settings, self._policy = payload, settings, policy
        self._note, self._progress = note, progress
        self._docker = Dockerd(settings.host, _CALL_TIMEOUT_S)
        self._name = f"dlapp-{payload.container_id}"
        self.image_digest = ""
        """Which image it is, for good, once it is prepared."""
        self._lifeline: Lifeline | None = None
        self._made = False
        self._began_ticks = 0
        self._result: Ended | None = None
        self._look_at = 0.0
        self._kill_help_at: float | None = None
        self._sent: set[int] = set()

    # ---- before the start ----

    def prepare(self) -> None:
        """Make sure of the image, pull it if it is missing, and make the container without starting it.

        Raises:
            PayloadError: Docker does not answer, the image is not to be had, there is no way to the GPUs, the
                container cannot be made.
        """
        with self._explained():
            # Before the image: what is missing on this node shows at once, not after a long pull.
            choice, facts = chosen_mode(self._docker, self._settings, self._policy, self._payload.gpus, self._note)
            remove_what_is_left(self._docker, self._note, but=self._payload.directory)
            for last in (False, True):
                image = make_sure_of_image(
                    self._docker, self._payload.image or "", self._settings.lock_dir, self._note, self._progress
                )
                self.image_digest = digest_of(image)
                part = part_for(choice.mode, self._payload.gpus, facts, containers.image_env(image))
                try:
                    self._make(image, part, facts)
                    break
                except DockerRefused as error:
                    if last or error.status != 404 or self._docker.image(self._payload.image or "") is not None:
                        raise
                    self._note("the image was removed in this moment")

    def _make(self, image: Mapping[str, Any], part: GpuPart, facts: Facts) -> None:
        payload = self._payload
        how = how_to_start(payload.workspace, payload.script)
        for path in (payload.stdout, payload.stderr, payload.exit_file):
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        os.truncate(payload.exit_file, 0)
        for path in (payload.home, payload.tmp):
            os.makedirs(path, mode=0o700, exist_ok=True)
        if self._lifeline is None:
            self._lifeline = Lifeline(payload.life)
        out, err, exit_file = f"{_LOG}/stdout", f"{_LOG}/stderr", f"{_LOG}/exit"
        mode = "look" if payload.gpus else "wait"
        words = wrapper_arguments(mode, _LIFE, out, err, exit_file, how, payload.script, payload.args)
        # Docker's init then passes SIGTERM (docker stop, the host's shutdown) on to the payload, not only to its shell.
        env = {"HOME": HOME, "TMPDIR": TMP, **payload.env, "TINI_KILL_PROCESS_GROUP": "1"}
        known = accounts.recall(self._settings.lock_dir, str(image["Id"]))
        made = containers.Container(
            name=self._name,
            image=payload.image or "",
            entrypoint=("/bin/sh", _WRAPPER),
            command=tuple(words),
            env=env,
            labels={**self._labels(), LABEL_IMAGE: self.image_digest},
            working_dir=WORKSPACE,
            binds=(
                Bind(payload.workspace, WORKSPACE),
                *self._inputs(),
                Bind(payload.home, HOME),
                Bind(payload.tmp, TMP),
                Bind(payload.stdout, out),
                Bind(payload.stderr, err),
                Bind(payload.exit_file, exit_file),
                Bind(payload.life, _LIFE, read_only=True),
                Bind(payload.wrapper, _WRAPPER, read_only=True),
                *account_binds(known, payload.directory),
                *containers.operators_binds(self._policy),
            ),
            gpus=part,
            **containers.fences(self._docker, payload.resources, self._settings.network, self._policy),
        )
        self._docker.remove(self._name)
        self._made = True  # also where the answer to the next call is lost
        make(self._docker, made, facts, payload.directory, self._note)
        if known is None:
            add_account(self._docker, self._name, self._settings.lock_dir, str(image["Id"]))

    def _inputs(self) -> list[Bind]:
        workspace = os.path.realpath(self._payload.workspace)
        return [
            Bind(source, f"{WORKSPACE}/{os.path.relpath(path, workspace)}", read_only=True)
            for source, path in self._payload.mounts
        ]

    def _labels(self) -> dict[str, str]:
        payload = self._payload
        return {
            LABEL_APP: payload.application_id,
            LABEL_CONTAINER: payload.container_id,
            LABEL_GPUS: ",".join(card.uuid for card in payload.gpus),
            LABEL_DIRECTORY: payload.directory,
            LABEL_HOST: os.uname().nodename,
            LABEL_UID: str(os.getuid()),
        }

    # ---- while it runs ----

    def start(self) -> None:
        """See `Running.start`."""
        with self._explained():
            self._docker.start(self._name)
        # What is asked from now on is good to know, and not worth a long wait for a dockerd that hangs.
        self._docker.timeout_s = _LOOK_TIMEOUT_S
        self._began_ticks = _ticks_now()
        if self._payload.gpus:
            self._look_at_gpus()

    def _look_at_gpus(self) -> None:
        """Let the payload begin if the container sees the cards that it is to have, and no others."""
        assert self._lifeline is not None
        deadline, look_at = time.monotonic() + SIGHT_TIMEOUT_S, 0.0
        while not (seen := self._words_of_wrapper()).endswith("end\n"):
            now = time.monotonic()
            if now >= deadline:
                raise PayloadError(
                    Fault.NODE, f"the container did not say in {SIGHT_TIMEOUT_S:g} s which GPUs it sees: {seen!r:.200}"
                )
            if self._lifeline.payload_gone or (not self._lifeline.taken and now >= look_at):
                look_at = now + _LOOK_EVERY_S
                if self._lifeline.taken or self._state().get("Status") in ("exited", "dead"):
                    raise self._never_began(self._settled_state())
            time.sleep(0.002)
        self._note("GPUs in the container: " + ", ".join(seen.splitlines()[:-1]))
        if problem := unlike(self._payload.gpus, seen, driver_nodes()):
            raise PayloadError(Fault.NODE, f"{problem}; it was to have {named(self._payload.gpus)}")
        os.truncate(self._payload.exit_file, 0)
        self._lifeline.say("go")

    def watched_fds(self) -> list[tuple[int, int]]:
        """See `Running.watched_fds`. The wrapper's end of the lifeline tells of the end; dockerd need not live."""
        if self._lifeline is None or not self._lifeline.taken:
            return []
        return self._lifeline.watched_fds()

    def ended(self) -> Ended | None:
        """See `Running.ended`."""
        now = time.monotonic()
        if self._result is None and self._lifeline is not None:
            if self._lifeline.payload_gone:
                self._result = self._read_end()
            elif not self._lifeline.taken and now >= self._look_at:
                self._look_at = now + _LOOK_EVERY_S
                if self._state().get("Status") in ("exited", "dead"):
                    self._result = self._read_end()
            elif self._kill_help_at is not None and now >= self._kill_help_at:
                self._kill_help_at = now + _KILL_HELP_AFTER_S
                self._kill_by_docker()
        return self._result

    def soft_stop(self) -> None:
        """See `Running.soft_stop`."""
        if self._lifeline is not None:
            self._sent.add(signal.SIGTERM)
            self._lifeline.say("term")

    def kill(self) -> None:
        """See `Running.kill`."""
        if self._kill_help_at is None and self._lifeline is not None:
            self._kill_help_at = time.monotonic() + _KILL_HELP_AFTER_S
            self._sent.add(signal.SIGKILL)
            self._lifeline.say("kill")

    def close(self) -> None:
        """See `Running.close`."""
        if self._lifeline is not None:
            self._lifeline.close()
            self._lifeline = None
        if self._made:
            try:
                self._docker.remove(self._name)
            except (DockerRefused, DockerSilent) as error:  # the next task on this host removes it
                self._note(f"container {self._name} is left to be removed: {error}")
            self._made = False
        for name in ("passwd", "group"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(self._payload.directory, name))

    # ---- how it ended ----

    def _state(self) -> dict[str, Any]:
        try:
            state: dict[str, Any] = self._docker.inspect(self._name)["State"]
        except (DockerRefused, DockerSilent) as error:
            # Whatever keeps dockerd from answering, the lifeline and the exit file go on without it.
            self._note(f"container {self._name} cannot be looked at: {error}")
            return {}
        return state

    def _words_of_wrapper(self) -> str:
        with open(self._payload.exit_file, encoding="utf-8", errors="replace") as file:
            return file.read(65536)

    def _read_end(self) -> Ended:
        payload = self._payload
        word, _, code = self._words_of_wrapper().strip().rpartition(" ")
        if word == "no" and code == "interpreter":
            how = how_to_start(payload.workspace, payload.script)
            raise PayloadError(Fault.USER, f"{payload.script}: its interpreter {how} is not in image {payload.image}")
        if word == "sees":
            raise PayloadError(Fault.NODE, f"the container sees {code}, although no GPU was asked for")
        if word == "exited" and code == "0":
            return Ended(0, None)
        state = self._settled_state()
        if self._lifeline is not None and not self._lifeline.taken:
            raise self._never_began(state)
        if word == "exited" and code.isdigit():
            ended = ended_with_code(int(code), self._sent)
        elif state.get("Error"):
            return Ended(None, None, Fault.NODE, f"the container did not run: {state['Error']}")
        elif "ExitCode" in state:
            # The wrapper ends without a word where it is killed; then the code is Docker's, and stands for a signal.
            ended = ended_with_code(state["ExitCode"], _SIGNALS)
        else:
            return Ended(None, None, Fault.NODE, "the container is gone and left no exit code")
        if self._ran_out_of_memory(state, ended):
            limit = payload.resources.memory_mib
            if ended.exit_code == _CODE_OF_SIGKILL:
                ended = Ended(None, signal.SIGKILL)
            return ended._replace(problem=f"killed for memory: it used more than its {limit} MiB")
        if not self._sent and (number := _signal_in(ended)) is not None and self._docker_ended(state):
            return Ended(
                None,
                number,
                Fault.NODE,
                "Docker was stopped or restarted under the payload, and ended it (signal "
                f"{number}); with live-restore it would have gone on",
            )
        return ended

    def _docker_ended(self, state: Mapping[str, Any]) -> bool:
        """Whether dockerd is away, or is another than the one that started the container."""
        return not state or any(ticks > self._began_ticks for ticks in _dockerds_began())

    def _settled_state(self) -> dict[str, Any]:
        """The container's state once dockerd knows of its end; it learns of it a little after us."""
        deadline = time.monotonic() + 2.0
        while (state := self._state()).get("Running") and time.monotonic() < deadline:
            time.sleep(0.01)
        return state

    def _ran_out_of_memory(self, state: dict[str, Any], ended: Ended) -> bool:
        # dockerd 20.10 hears of the exit and of the reason in either order (seen: 1 of 10 exits came first).
        killed = ended.signal == signal.SIGKILL or ended.exit_code == _CODE_OF_SIGKILL
        deadline = time.monotonic() + (0.5 if state and killed and self._kill_help_at is None else 0.0)
        while not state.get("OOMKilled") and time.monotonic() < deadline:
            time.sleep(0.02)
            state = self._state()
        return bool(state.get("OOMKilled"))

    def _kill_by_docker(self) -> None:
        self._note(f"container {self._name} does not end by itself: asking Docker to kill it")
        with contextlib.suppress(DockerRefused, DockerSilent):
            self._docker.kill(self._name)

    # ---- errors ----

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        with explained(self._settings.host, f"the container of image {self._payload.image}"):
            yield

    def _never_began(self, state: dict[str, Any]) -> PayloadError:
        image, code = self._payload.image, state.get("ExitCode")
        if code == 127:  # what Docker's init ends with where it cannot execute /bin/sh
            return PayloadError(Fault.USER, f"image {image} has no /bin/sh, which dlapp needs in it")
        why = state.get("Error") or f"exit code {code}"
        return PayloadError(Fault.NODE, f"the container of image {image} ended before the payload began: {why}")


# ---- what a shell does as well ----


@contextlib.contextmanager
def explained(host: str, what: str) -> Iterator[None]:
    """Turn dockerd's refusals and silences into `PayloadError`."""
    try:
        yield
    except DockerRefused as error:
        raise PayloadError(Fault.NODE, f"Docker refused {what}: {error}") from error
    except DockerSilent as error:
        raise PayloadError(
            Fault.NODE, f"Docker at {host} does not answer: {error}; does dockerd run, and may this user use it?"
        ) from error


def chosen_mode(
    docker: Dockerd,
    settings: DockerSettings,
    policy: DockerPolicy,
    cards: Sequence[Card],
    note: Callable[[str], None],
) -> tuple[Choice, Facts]:
    """How the cards get into a container on this machine.

    Raises:
        PayloadError: there is no way, or not the one that is configured.
    """
    if not cards:
        return Choice("none", "no GPU was asked for"), Facts()
    facts = facts_of(docker)
    choice = choose_mode(settings.gpu_mode, facts, cards, allowed=policy.gpu_modes)
    if choice.problem:
        raise PayloadError(Fault.NODE, choice.problem)
    note(f"GPU mode {choice.mode}: {choice.reason}")
    return choice, facts


def make(
    docker: Dockerd, container: containers.Container, facts: Facts, directory: str, note: Callable[[str], None]
) -> None:
    """Make a container in the way that its GPUs need, and see that Docker took notice of them.

    Raises:
        PayloadError: it did not, or nvidia-docker failed; DockerRefused, DockerSilent.
    """
    if container.gpus.command_env is not None:
        from dlapp.runtime import nvidia_docker

        program = facts.programs[NVIDIA_DOCKER]
        nvidia_docker.create(container, program=program, host=docker.host, directory=directory, note=note)
        return
    docker.create(container.name, container.as_json())
    if not (container.gpus.requests or container.gpus.runtime or container.gpus.nodes):
        return
    if problem := not_taken(container.gpus, docker.inspect(container.name)["HostConfig"]):
        raise PayloadError(Fault.NODE, f"Docker did not take the GPUs of the container: {problem}")


def account_binds(known: accounts.Accounts | None, directory: str) -> list[Bind]:
    """What has to be mounted so that our uid has a name; the files are made in ``directory``."""
    binds = []
    for path, content in (known.completed(HOME) if known is not None else {}).items():
        source = os.path.join(directory, os.path.basename(path))
        with open(os.open(source, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644), "wb") as file:
            file.write(content)
        binds.append(Bind(source, path, read_only=True))
    return binds


def add_account(docker: Dockerd, container: str, lock_dir: str, image_id: str) -> None:
    """The same for the first container of an image here, which is made but not started."""
    known = accounts.of_container(docker, container)
    accounts.remember(lock_dir, image_id, known)
    if files := known.completed(HOME):
        docker.write_files(container, {path.lstrip("/"): content for path, content in files.items()})


def named(cards: Sequence[Card]) -> str:
    """Cards, for people."""
    return ", ".join(f"gpu{card.index} ({card.uuid})" for card in cards)


def _signal_in(ended: Ended) -> int | None:
    if ended.signal is not None:
        return ended.signal
    number = (ended.exit_code or 0) - 128
    return number if number in (signal.SIGTERM, signal.SIGKILL) else None


def _ticks_now() -> int:
    """The time since boot as /proc counts the starts of processes [clock ticks]."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


def _dockerds_began() -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", encoding="ascii", errors="replace") as file:
                head, _, rest = file.read().rpartition(")")
                if head.endswith("(dockerd"):
                    found.append(int(rest.split()[19]))
    return found


def ended_with_code(code: int, signals: Container[int]) -> Ended:
    """Read a shell's ``$?``. It is 128 + N for what signal N ended, and for what exited with that code.

    Args:
        signals: those that were sent to it, so 128 + N is one of them. Any other is told as the exit code it may be.
    """
    number = code - 128
    if number in signals:
        return Ended(None, number)
    if number in _SIGNALS:
        return Ended(code, None, problem=f"exit code {code} (128 + {number}: often signal {number})")
    return Ended(code, None)


def remove_what_is_left(docker: Dockerd, note: Callable[[str], None], *, application: str = "", but: str = "") -> None:
    """Remove our user's containers on this host whose task is dead.

    Args:
        application: only of this one; empty: of all.
        but: a container's directory, which is left alone.
    """
    labels = [f"{LABEL_UID}={os.getuid()}", f"{LABEL_HOST}={os.uname().nodename}"]
    if application:
        labels.append(f"{LABEL_APP}={application}")
    for found in docker.labelled(labels):
        directory = found["Labels"].get(LABEL_DIRECTORY, "")
        if (but and directory == but) or not task_is_gone(directory):
            continue
        note(f"removing container {found['Names'][0]} ({found['State']}): its task is dead")
        with contextlib.suppress(DockerRefused):  # another task may be at it too
            docker.remove(found["Id"])


def task_is_gone(directory: str) -> bool:
    """Whether the task of a container's directory is dead; what cannot be known counts as alive."""
    import fcntl
    import struct

    try:
        fd = os.open(os.path.join(directory, "dlapp.log"), os.O_RDWR | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    try:
        # struct flock on 64-bit Linux: type, whence, start, length, pid.
        answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0))
    finally:
        os.close(fd)
    kind: int = struct.unpack("hhqqi4x", answer)[0]
    return kind == fcntl.F_UNLCK
