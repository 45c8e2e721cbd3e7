"""Interactive shell in a Docker container, with the user's own workspace.

What it sees is what a payload sees (`dlapp.runtime.docker.payload`), but for three things: /workspace is the user's
directory, the terminal is the caller's, and /dlapp/shell is what dlapp-run and its server share.
dlapp-shell's death closes the lifeline, which ends all in the container; Docker itself then removes it.

Of the session's directory it sees only what it needs. Writable: HOME, TMPDIR and the file for the visible GPUs.
Read-only: the lifeline and dlapp-run's files (a FIFO can still be written to there). It cannot create, rename or remove
anything in a directory in which dlapp opens a name.

Bytes of the terminal pass through this process. Without a terminal Docker multiplexes the container's streams into
frames; the docker package separates them.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from dlapp.net.dockerd import DockerRefused, DockerSilent
from dlapp.node_policy import DockerPolicy
from dlapp.runtime.docker import accounts
from dlapp.runtime.docker import container as containers
from dlapp.runtime.docker.container import Bind
from dlapp.runtime.docker.container_factory import (
    HOME,
    LIFE,
    TMP,
    WORKSPACE,
    account_binds,
    add_account,
    chosen_mode,
    explained,
    make,
    open_docker,
)
from dlapp.runtime.docker.images import ImageStore, LocalImage, Progress
from dlapp.runtime.docker.labels import LABEL_IMAGE, labels_of, remove_leftover_containers
from dlapp.runtime.gpu import verification
from dlapp.runtime.gpu.modes import GpuPart, part_for
from dlapp.runtime.lifeline import Lifeline
from dlapp.runtime.payload import PayloadDevice, PayloadError
from dlapp.system.files import write_all
from dlapp.system.terminal import raw_terminal
from dlapp.values.image_name import RegistryCredentials
from dlapp.values.launch_spec import DockerSettings
from dlapp.values.messages import Fault
from dlapp.values.spec import Resources

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "shell.sh")
SHELL_MOUNT = "/dlapp/shell"
_GPUS_SEEN = "/dlapp/gpus_seen"
_MAX_SEEN_BYTES = 65536
_SCRIPT = "/dlapp/shell.sh"
_CALL_TIMEOUT_S = 60.0
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class DockerShell:
    """A shell in a container: `start`, then `wait`; always `close` at the end.

    Args:
        workspace: the user's own directory.
        session_dir: contains ``dlapp.log``, which is locked while the session lives.
        shared_dir: what dlapp-run and its server share.
        env: added to the image's environment.
        defaults: variables that ``env`` and the image replace.
        devices: the leased GPUs.
        caches: paths of the host, and their paths in the container.
        note: called with lines for the user.
        progress: called with the pulled bytes of the image and the total.
        credentials: the submitter's, for the image's registry; None if there are none.
    """

    def __init__(
        self,
        *,
        settings: DockerSettings,
        policy: DockerPolicy,
        image: str,
        workspace: str,
        session_dir: str,
        shared_dir: str,
        env: Mapping[str, str],
        resources: Resources,
        defaults: Mapping[str, str] = MappingProxyType({}),
        devices: Sequence[PayloadDevice] = (),
        caches: Sequence[tuple[str, str]] = (),
        note: Callable[[str], None] = lambda _: None,
        progress: Progress | None = None,
        credentials: RegistryCredentials | None = None,
    ) -> None:
        self._settings, self._policy, self._image = settings, policy, image
        self._docker = open_docker(settings.host, _CALL_TIMEOUT_S)
        self._images = ImageStore(self._docker, settings.lock_dir, self._note_pull, policy.registry, credentials)
        self._workspace, self._session_dir, self._resources = workspace, session_dir, resources
        self._shared_dir, self._caches = shared_dir, tuple(caches)
        self._opened = contextlib.ExitStack()
        self._gpus_seen_fd = -1
        self._env, self._defaults = dict(env), dict(defaults)
        self._devices, self._note, self._progress = tuple(devices), note, progress
        self._name = f"dlapp-{os.path.basename(session_dir)}"
        self._is_terminal = os.isatty(0) and os.isatty(1)
        self._api: Any = None
        self._lifeline: Lifeline | None = None
        self._stream: Any = None
        self._code: int | None = None
        self._waiter: threading.Thread | None = None

    def start(self) -> None:
        """Pull the image if it is missing, create the container and start it.

        Raises:
            PayloadError: Docker does not answer, the image is not available, the container cannot run, or does not see
                its leased GPUs.
        """
        with explained(self._settings.host, f"the shell in image {self._image}"):
            choice, facts = chosen_mode(
                self._docker, self._settings, self._policy, self._devices, self._env, lambda _: None
            )
            remove_leftover_containers(self._docker, self._note, but=self._session_dir)
            lock_dir = self._settings.lock_dir
            found = self._images.require(self._image, self._progress)
            env = {**containers.image_env(found.about), **self._env}
            part = part_for(choice.mode, self._devices, facts, env, allowed=self._policy.gpu_capabilities)
            known = accounts.read_cached(lock_dir, str(found.about["Id"]))
            container = self._container(found, part, known)
            make(self._docker, container, facts, self._session_dir, lambda _: None)
            if known is None:
                add_account(self._docker, self._name, lock_dir, str(found.about["Id"]))
            self._attach()
            self._docker.start(self._name)
            self._verify_gpus()

    def _note_pull(self, line: str) -> None:
        if line.endswith("pulling") or "another task" in line:
            self._note(line)

    def wait(self) -> int:
        """Pass the terminal's bytes both ways until the shell ends; return its exit code."""
        with contextlib.ExitStack() as stack:
            if self._is_terminal:
                stack.enter_context(raw_terminal())
                stack.enter_context(self._following_size())
            self._pass_bytes()
        assert self._waiter is not None
        self._waiter.join(_CALL_TIMEOUT_S)
        if self._code is None:
            raise PayloadError(Fault.NODE, f"Docker at {self._settings.host} did not say how the shell ended")
        return self._code

    def close(self) -> None:
        """Remove the container. Idempotent."""
        self._opened.close()

    def _remove(self) -> None:
        # It ended by itself, or dockerd is gone; the lifeline has ended it in any case.
        with contextlib.suppress(DockerRefused, DockerSilent):
            self._docker.remove(self._name)

    # ---- before the start ----

    def _container(self, image: LocalImage, part: GpuPart, known: accounts.Accounts | None) -> containers.ContainerSpec:
        own = {name: os.path.join(self._session_dir, name) for name in ("home", "tmp", "life", "gpus_seen")}
        for name in ("home", "tmp"):
            os.makedirs(own[name], mode=0o700, exist_ok=True)
        if self._devices:
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            self._gpus_seen_fd = os.open(own["gpus_seen"], flags, 0o600)
            self._opened.callback(os.close, self._gpus_seen_fd)
        self._opened.callback(self._remove)
        self._lifeline = Lifeline(own["life"])
        self._opened.callback(self._lifeline.close)
        image_env = containers.image_env(image.about)
        path = {**image_env, **self._env}.get("PATH") or _PATH
        return containers.ContainerSpec(
            name=self._name,
            image=image.name,
            entrypoint=("/bin/sh", _SCRIPT),
            command=(LIFE, _GPUS_SEEN if self._devices else ""),
            env={
                "TERM": os.environ.get("TERM", "dumb"),
                **{name: text for name, text in self._defaults.items() if name not in image_env},
                **self._env,
                "HOME": HOME,
                "TMPDIR": TMP,
                "PATH": f"{SHELL_MOUNT}/bin:{path}",
                "DLAPP_SHELL_DIR": SHELL_MOUNT,
            },
            labels={
                **labels_of(os.path.basename(self._session_dir), self._session_dir, self._devices),
                LABEL_IMAGE: image.digest,
            },
            working_dir=WORKSPACE,
            binds=(
                Bind(self._workspace, WORKSPACE),
                *(Bind(source, target) for source, target in self._caches),
                Bind(own["home"], HOME),
                Bind(own["tmp"], TMP),
                Bind(self._shared_dir, SHELL_MOUNT, read_only=True),
                *([Bind(own["gpus_seen"], _GPUS_SEEN)] if self._devices else []),
                Bind(own["life"], LIFE, read_only=True),
                Bind(SCRIPT, _SCRIPT, read_only=True),
                *account_binds(known, self._session_dir),
                *containers.operators_binds(self._policy, self._note),
            ),
            gpus=part,
            interactive=True,
            terminal=self._is_terminal,
            removed_at_end=True,
            **containers.isolation_fields(
                self._docker, self._resources, self._settings.network, self._policy, as_submitter=True
            ),
        )

    def _attach(self) -> None:
        import docker
        import docker.errors

        try:
            self._api = docker.APIClient(base_url=self._settings.host, version="auto", timeout=_CALL_TIMEOUT_S)
            self._opened.callback(self._api.close)
            self._stream = self._api.attach_socket(self._name, {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1})
            self._opened.callback(self._stream.close)
        except (docker.errors.DockerException, OSError) as error:
            raise DockerSilent(str(error)) from error
        # Requested before the start: at its end Docker removes the container, and with it the exit code.
        asked = threading.Event()
        self._waiter = threading.Thread(target=self._wait_for_code, args=(asked,), name="docker-wait", daemon=True)
        self._waiter.start()
        asked.wait(_CALL_TIMEOUT_S)

    def _verify_gpus(self) -> None:
        if not self._devices:
            return
        assert self._lifeline is not None
        deadline = time.monotonic() + verification.TIMEOUT_S
        while True:
            seen = os.pread(self._gpus_seen_fd, _MAX_SEEN_BYTES, 0).decode(errors="replace")
            if seen.endswith("end\n"):
                break
            if self._lifeline.is_payload_gone or time.monotonic() > deadline:
                raise PayloadError(Fault.NODE, "the container did not report which GPUs it sees")
            time.sleep(0.01)
        verification.check(self._devices, seen)
        self._lifeline.send("go")

    def _wait_for_code(self, asked: threading.Event) -> None:
        import docker

        # On its own connection: the answer arrives at the end.
        api = docker.APIClient(base_url=self._settings.host, version="auto", timeout=None)
        try:
            response = api.post(
                f"{api.base_url}/v{api.api_version}/containers/{self._name}/wait",
                params={"condition": "next-exit"},
                stream=True,
                timeout=None,
            )
            # The answer's head arrives when the request is registered, its body at the end.
            asked.set()
            if response.ok:
                self._code = response.json().get("StatusCode")
        except Exception:
            self._code = None  # dockerd went away: wait() reports that
        finally:
            asked.set()
            api.close()

    # ---- while it runs ----

    def _pass_bytes(self) -> None:
        from docker.utils.socket import frames_iter

        connection: socket.socket = self._stream._sock
        connection.setblocking(True)
        pieces = frames_iter(connection, self._is_terminal)
        listening = [connection.fileno(), 0]
        while True:
            ready, _, _ = select.select(listening, [], [])
            if 0 in ready:
                if data := os.read(0, 65536):
                    with contextlib.suppress(BrokenPipeError):
                        connection.sendall(data)
                else:
                    listening.remove(0)
                    with contextlib.suppress(OSError):
                        connection.shutdown(socket.SHUT_WR)
            if connection.fileno() in ready:
                if (piece := next(pieces, None)) is None:
                    return
                write_all(2 if piece[0] == 2 else 1, piece[1])

    @contextlib.contextmanager
    def _following_size(self) -> Iterator[None]:
        def resize(*_: object) -> None:
            size = os.get_terminal_size(0)
            with contextlib.suppress(Exception):  # it has just ended
                self._api.resize(self._name, height=size.lines, width=size.columns)

        before = signal.signal(signal.SIGWINCH, resize)
        resize()
        try:
            yield
        finally:
            signal.signal(signal.SIGWINCH, before)
