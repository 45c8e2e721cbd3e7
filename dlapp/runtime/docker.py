"""A payload in a Docker container, in its simplest form: image, workspace, lifeline, labels.

The wrapper is the container's first process below Docker's own init, and does all that must work while dockerd is
dead, restarted or hung: it starts the payload, passes on a soft stop, kills everything when the lifeline closes, and
writes the exit code down. dockerd is needed to make the container, to start it and to remove it.

What a container sees:

    /workspace              the workspace; the working directory
    /dlapp/home, /dlapp/tmp HOME and TMPDIR
    /dlapp/log/             the files that take stdout, stderr and the exit code
    /dlapp/life             the lifeline; read-only, like the wrapper beside it

A container of a task that died is removed when its application ends (`dlapp.runtime.sweep`), or by the next task on
this host: labels say whose it is and where its task's log lies, which the task holds locked for as long as it lives.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Container
from typing import Any

from dlapp.control import Fault
from dlapp.runtime.lifeline import Lifeline
from dlapp.runtime.payload import Ended, Payload, PayloadError, how_to_start, wrapper_arguments

WORKSPACE = "/workspace"
HOME = "/dlapp/home"
TMP = "/dlapp/tmp"
_LIFE = "/dlapp/life"
_WRAPPER = "/dlapp/wrapper.sh"
_LOG = "/dlapp/log"

NO_GPUS_YET = "gcores with a docker_image is not built yet; use gcores=0, or run without docker_image"

LABEL_APP = "dlapp.app"
LABEL_CONTAINER = "dlapp.container"
LABEL_GPUS = "dlapp.gpus"
LABEL_DIRECTORY = "dlapp.directory"
LABEL_HOST = "dlapp.host"
LABEL_UID = "dlapp.uid"

_CALL_TIMEOUT_S = 60.0
_LOOK_TIMEOUT_S = 5.0
_LOOK_EVERY_S = 0.2
_KILL_HELP_AFTER_S = 2.0
_SIGNALS = range(1, 65)
_CODE_OF_SIGKILL = 128 + signal.SIGKILL


class DockerRun:
    """The `dlapp.runtime.payload.Running` of a container. Make it ready with `prepare`.

    Args:
        host: dockerd's address, ``unix:///var/run/docker.sock``; it must be this machine's.
        network: Docker's network mode.
        note: takes lines for dlapp's own log.
    """

    def __init__(self, payload: Payload, host: str, network: str, note: Callable[[str], None]) -> None:
        if payload.resources.gcores:
            raise PayloadError(Fault.DATA, NO_GPUS_YET)
        if not host.startswith("unix://"):
            raise PayloadError(Fault.DATA, f"runtime.docker.host is {host}: only this machine's dockerd, by unix://")
        self._payload, self._host, self._network, self._note = payload, host, network, note
        self._name = f"dlapp-{payload.container_id}"
        self._lifeline: Lifeline | None = None
        self._api: Any = None
        self._made = False
        self._result: Ended | None = None
        self._look_at = 0.0
        self._kill_help_at: float | None = None
        self._sent: set[int] = set()

    # ---- before the start ----

    def prepare(self) -> None:
        """Make sure of the image, pull it if it is missing, and make the container without starting it.

        Raises:
            PayloadError: Docker does not answer, the image is not to be had, the container cannot be made.
        """
        # 90 ms and 20 MiB that only those pay who use an image.
        import docker.errors

        try:
            self._api = docker.APIClient(base_url=self._host, version="auto", timeout=_CALL_TIMEOUT_S)
        except (docker.errors.DockerException, OSError) as error:
            raise self._unreachable(error) from error
        try:
            remove_what_is_left(self._api, self._note, but=self._payload.directory)
            self._make_sure_of_image()
            self._make()
        except docker.errors.APIError as error:
            raise self._refused(error) from error
        except (docker.errors.DockerException, OSError) as error:
            raise self._unreachable(error) from error

    def _make_sure_of_image(self) -> None:
        import docker.errors

        image = self._payload.image
        try:
            self._note(f"image {image}: {self._api.inspect_image(image)['Id']}")
            return
        except docker.errors.ImageNotFound:
            self._note(f"image {image}: pulling")
        try:
            name, tag = docker.utils.parse_repository_tag(image)
            for line in self._api.pull(name, tag=tag or "latest", stream=True, decode=True):
                if "error" in line:
                    raise PayloadError(pull_fault(line["error"]), f"image {image} cannot be pulled: {line['error']}")
        except docker.errors.APIError as error:
            why = error.explanation or str(error)
            raise PayloadError(pull_fault(why), f"image {image} cannot be pulled: {why}") from error
        self._note(f"image {image}: {self._api.inspect_image(image)['Id']}")

    def _make(self) -> None:
        payload = self._payload
        how = how_to_start(payload.workspace, payload.script)
        for path in (payload.stdout, payload.stderr, payload.exit_file):
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        os.truncate(payload.exit_file, 0)
        for path in (payload.home, payload.tmp):
            os.makedirs(path, mode=0o700, exist_ok=True)
        self._lifeline = Lifeline(payload.life)
        out, err, exit_file = f"{_LOG}/stdout", f"{_LOG}/stderr", f"{_LOG}/exit"
        words = wrapper_arguments("wait", _LIFE, out, err, exit_file, how, payload.script, payload.args)
        memory = payload.resources.memory_mib << 20
        # Docker refuses more cpus than there are; vcores are shares of a node, and may be more.
        cpus = min(payload.resources.vcores, os.cpu_count() or 1)
        host_config = self._api.create_host_config(
            mounts=[
                _bind(payload.workspace, WORKSPACE),
                *self._inputs(),
                _bind(payload.home, HOME),
                _bind(payload.tmp, TMP),
                _bind(payload.stdout, out),
                _bind(payload.stderr, err),
                _bind(payload.exit_file, exit_file),
                _bind(payload.life, _LIFE, read_only=True),
                _bind(payload.wrapper, _WRAPPER, read_only=True),
            ],
            init=True,
            network_mode=self._network,
            mem_limit=memory,
            memswap_limit=memory,
            nano_cpus=cpus * 1_000_000_000,
            # Ours are the files; what Docker would keep as well only costs.
            log_config={"Type": "none", "Config": {}},
            security_opt=["no-new-privileges"],
        )
        env = {"HOME": HOME, "TMPDIR": TMP, "NVIDIA_VISIBLE_DEVICES": "void", **payload.env}
        # Docker's init then passes SIGTERM (docker stop, the host's shutdown) on to the payload, not only to its shell.
        env["TINI_KILL_PROCESS_GROUP"] = "1"
        with contextlib.suppress(Exception):
            self._api.remove_container(self._name, force=True)
        self._made = True  # also where the answer to the next call is lost
        self._api.create_container(
            payload.image,
            name=self._name,
            entrypoint=["/bin/sh", _WRAPPER],
            command=words,
            user=f"{os.getuid()}:{os.getgid()}",
            environment=env,
            working_dir=WORKSPACE,
            labels=self._labels(),
            host_config=host_config,
        )

    def _inputs(self) -> list[Any]:
        workspace = os.path.realpath(self._payload.workspace)
        return [
            _bind(source, f"{WORKSPACE}/{os.path.relpath(path, workspace)}", read_only=True)
            for source, path in self._payload.mounts
        ]

    def _labels(self) -> dict[str, str]:
        payload = self._payload
        return {
            LABEL_APP: payload.application_id,
            LABEL_CONTAINER: payload.container_id,
            LABEL_GPUS: ",".join(map(str, payload.gpus)),
            LABEL_DIRECTORY: payload.directory,
            LABEL_HOST: os.uname().nodename,
            LABEL_UID: str(os.getuid()),
        }

    # ---- while it runs ----

    def start(self) -> None:
        """See `Running.start`."""
        import docker.errors

        try:
            self._api.start(self._name)
            # What is asked from now on is good to know, and not worth a long wait for a dockerd that hangs.
            self._api.timeout = _LOOK_TIMEOUT_S
        except docker.errors.APIError as error:
            raise self._refused(error) from error
        except (docker.errors.DockerException, OSError) as error:
            raise self._unreachable(error) from error

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
                self._api.remove_container(self._name, force=True, v=True)
            except Exception as error:  # dockerd may be dead; the next task on this host removes it
                if getattr(getattr(error, "response", None), "status_code", None) != 404:
                    self._note(f"container {self._name} is left to be removed: {error}")
            self._made = False
        if self._api is not None:
            self._api.close()
            self._api = None

    # ---- how it ended ----

    def _state(self) -> dict[str, Any]:
        try:
            state: dict[str, Any] = self._api.inspect_container(self._name)["State"]
        except Exception as error:
            # Whatever keeps dockerd from answering, the lifeline and the exit file go on without it.
            self._note(f"container {self._name} cannot be looked at: {error}")
            return {}
        return state

    def _read_end(self) -> Ended:
        payload = self._payload
        with open(payload.exit_file, encoding="ascii", errors="replace") as file:
            word, _, code = file.read(100).strip().rpartition(" ")
        if word == "no" and code == "interpreter":
            how = how_to_start(payload.workspace, payload.script)
            raise PayloadError(Fault.USER, f"{payload.script}: its interpreter {how} is not in image {payload.image}")
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
        if ended.exit_code != 0 and self._ran_out_of_memory(state, ended):
            limit = payload.resources.memory_mib
            if ended.exit_code == _CODE_OF_SIGKILL:
                ended = Ended(None, signal.SIGKILL)
            return ended._replace(problem=f"killed for memory: it used more than its {limit} MiB")
        return ended

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
        with contextlib.suppress(Exception):
            self._api.kill(self._name)

    # ---- errors ----

    def _never_began(self, state: dict[str, Any]) -> PayloadError:
        image, code = self._payload.image, state.get("ExitCode")
        if code == 127:  # what Docker's init ends with where it cannot execute /bin/sh
            return PayloadError(Fault.USER, f"image {image} has no /bin/sh, which dlapp needs in it")
        why = state.get("Error") or f"exit code {code}"
        return PayloadError(Fault.NODE, f"the container of image {image} ended before the payload began: {why}")

    def _refused(self, error: Any) -> PayloadError:
        why = error.explanation or str(error)
        image = self._payload.image
        return PayloadError(Fault.NODE, f"Docker refused the container of image {image}: {why}")

    def _unreachable(self, error: Exception) -> PayloadError:
        return PayloadError(
            Fault.NODE, f"Docker at {self._host} does not answer: {error}; does dockerd run, and may this user use it?"
        )


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


def pull_fault(why: str) -> Fault:
    """Whose fault a failed pull is, by Docker's words: the user's where the image does not exist or is closed to us."""
    users = ("manifest unknown", "not found", "does not exist", "denied", "unauthorized", "invalid reference")
    text = why.lower()
    if "no such host" in text or "timeout" in text or "no space left" in text:
        return Fault.NODE
    return Fault.USER if any(word in text for word in users) else Fault.NODE


def remove_what_is_left(api: Any, note: Callable[[str], None], *, application: str = "", but: str = "") -> None:
    """Remove our user's containers on this host whose task is dead.

    Args:
        application: only of this one; empty: of all.
        but: a container's directory, which is left alone.
    """
    labels = [f"{LABEL_UID}={os.getuid()}", f"{LABEL_HOST}={os.uname().nodename}"]
    if application:
        labels.append(f"{LABEL_APP}={application}")
    for found in api.containers(all=True, filters={"label": labels}):
        directory = found["Labels"].get(LABEL_DIRECTORY, "")
        if (but and directory == but) or not task_is_gone(directory):
            continue
        note(f"removing container {found['Names'][0]} ({found['State']}): its task is dead")
        with contextlib.suppress(Exception):  # another task may be at it too
            api.remove_container(found["Id"], force=True, v=True)


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


def _bind(source: str, target: str, *, read_only: bool = False) -> Any:
    import docker.types

    return docker.types.Mount(target, source, type="bind", read_only=read_only)
