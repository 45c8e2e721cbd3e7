"""An interactive shell in a Docker container, with the user's own workspace in it.

What it sees is what a payload sees (`dlapp.runtime.docker`), but for three things: /workspace is the user's directory,
the terminal is the caller's, and /dlapp/shell is where dlapp-run asks. dlapp-shell's death closes the lifeline, which
ends all in the container; Docker itself then removes it.

Bytes of the terminal pass through this process. Docker joins the container's streams into frames where there is no
terminal:

    +--------------------------------------------------------------+
    | uint8 stream (1 stdout, 2 stderr), 3 zero bytes, uint32 size |
    +--------------------------------------------------------------+
    | size bytes                                                   |
    +--------------------------------------------------------------+

Source: Docker Engine API, ContainerAttach, "Stream format".
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import struct
import sys
import termios
import threading
import tty
from collections.abc import Iterator, Mapping
from typing import Any

from dlapp.control import Fault
from dlapp.runtime.docker import (
    HOME,
    LABEL_CONTAINER,
    LABEL_DIRECTORY,
    LABEL_HOST,
    LABEL_UID,
    TMP,
    WORKSPACE,
    pull_fault,
)
from dlapp.runtime.lifeline import Lifeline
from dlapp.runtime.payload import PayloadError
from dlapp.spec import Resources

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "shell.sh")
DESK = "/dlapp/shell"
_LIFE = "/dlapp/life"
_SCRIPT = "/dlapp/shell.sh"
_HEADER = struct.Struct(">BxxxI")
_CALL_TIMEOUT_S = 60.0


class DockerShell:
    """A shell in a container: `start`, then `wait`; `close` in the end, whatever happens.

    Args:
        host, network: as in the configuration, ``runtime.docker``.
        workspace: the user's own directory.
        session_dir: what dlapp-run needs, and a ``dlapp.log`` that is locked for as long as the session lives.
        env: what is set on top of the image's environment.
    """

    def __init__(
        self,
        *,
        host: str,
        network: str,
        image: str,
        workspace: str,
        session_dir: str,
        env: Mapping[str, str],
        resources: Resources,
    ) -> None:
        if not host.startswith("unix://"):
            raise PayloadError(Fault.DATA, f"runtime.docker.host is {host}: only this machine's dockerd, by unix://")
        self._host, self._network, self._image = host, network, image
        self._workspace, self._session_dir, self._resources = workspace, session_dir, resources
        self._env = dict(env)
        self._name = f"dlapp-{os.path.basename(session_dir)}"
        self._is_terminal = os.isatty(0) and os.isatty(1)
        self._api: Any = None
        self._lifeline: Lifeline | None = None
        self._stream: Any = None
        self._code: int | None = None
        self._waiter: threading.Thread | None = None

    def start(self) -> None:
        """Pull the image if it is missing, make the container and start it.

        Raises:
            PayloadError: Docker does not answer, the image is not to be had, the container cannot run.
        """
        import docker.errors

        try:
            self._api = docker.APIClient(base_url=self._host, version="auto", timeout=_CALL_TIMEOUT_S)
            self._make_sure_of_image()
            self._make()
            self._stream = self._api.attach_socket(self._name, {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1})
            # Asked before the start: Docker removes the container, and with it the exit code, at its end.
            asked = threading.Event()
            self._waiter = threading.Thread(target=self._wait_for_code, args=(asked,), name="docker-wait", daemon=True)
            self._waiter.start()
            asked.wait(_CALL_TIMEOUT_S)
            self._api.start(self._name)
        except docker.errors.APIError as error:
            why = error.explanation or str(error)
            raise PayloadError(Fault.NODE, f"Docker refused the shell in image {self._image}: {why}") from error
        except (docker.errors.DockerException, OSError) as error:
            raise PayloadError(
                Fault.NODE,
                f"Docker at {self._host} does not answer: {error}; does dockerd run, and may this user use it?",
            ) from error

    def wait(self) -> int:
        """Pass the terminal's bytes both ways until the shell ends: its exit code."""
        with _raw_terminal(self._is_terminal), self._size_followed():
            self._pass_bytes()
        assert self._waiter is not None
        self._waiter.join(_CALL_TIMEOUT_S)
        if self._code is None:
            raise PayloadError(Fault.NODE, f"Docker at {self._host} did not say how the shell ended")
        return self._code

    def close(self) -> None:
        """Leave nothing of it. May be repeated."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None
        if self._lifeline is not None:
            self._lifeline.close()
            self._lifeline = None
        if self._api is not None:
            with contextlib.suppress(Exception):  # gone by itself, or dockerd is; the lifeline has ended it anyway
                self._api.remove_container(self._name, force=True, v=True)
            self._api.close()
            self._api = None

    # ---- before the start ----

    def _make_sure_of_image(self) -> None:
        import docker.errors

        with contextlib.suppress(docker.errors.ImageNotFound):
            self._api.inspect_image(self._image)
            return
        print(f"pulling {self._image}", file=sys.stderr, flush=True)
        name, tag = docker.utils.parse_repository_tag(self._image)
        try:
            for line in self._api.pull(name, tag=tag or "latest", stream=True, decode=True):
                if "error" in line:
                    raise PayloadError(
                        pull_fault(line["error"]), f"image {self._image} cannot be pulled: {line['error']}"
                    )
        except docker.errors.APIError as error:
            why = error.explanation or str(error)
            raise PayloadError(pull_fault(why), f"image {self._image} cannot be pulled: {why}") from error

    def _make(self) -> None:
        import docker.types

        own = {name: os.path.join(self._session_dir, name) for name in ("home", "tmp", "life")}
        for name in ("home", "tmp"):
            os.makedirs(own[name], mode=0o700, exist_ok=True)
        self._lifeline = Lifeline(own["life"])
        memory = self._resources.memory_mib << 20
        places = [
            (self._workspace, WORKSPACE, False),
            (own["home"], HOME, False),
            (own["tmp"], TMP, False),
            (self._session_dir, DESK, False),
            (own["life"], _LIFE, True),
            (SCRIPT, _SCRIPT, True),
        ]
        host_config = self._api.create_host_config(
            mounts=[
                docker.types.Mount(target, source, type="bind", read_only=fixed) for source, target, fixed in places
            ],
            init=True,
            auto_remove=True,
            network_mode=self._network,
            mem_limit=memory,
            memswap_limit=memory,
            nano_cpus=min(self._resources.vcores, os.cpu_count() or 1) * 1_000_000_000,
            log_config={"Type": "none", "Config": {}},
            security_opt=["no-new-privileges"],
        )
        image_env = dict(
            entry.partition("=")[::2] for entry in self._api.inspect_image(self._image)["Config"].get("Env") or []
        )
        path = {**image_env, **self._env}.get("PATH") or "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        env = {
            "NVIDIA_VISIBLE_DEVICES": "void",
            "TERM": os.environ.get("TERM", "dumb"),
            **self._env,
            "HOME": HOME,
            "TMPDIR": TMP,
            "PATH": f"{DESK}/bin:{path}",
            "DLAPP_SHELL_DIR": DESK,
        }
        config = self._api.create_container_config(
            self._image,
            command=[_LIFE],
            user=f"{os.getuid()}:{os.getgid()}",
            environment=env,
            working_dir=WORKSPACE,
            tty=self._is_terminal,
            stdin_open=True,
            labels={
                LABEL_CONTAINER: os.path.basename(self._session_dir),
                LABEL_DIRECTORY: self._session_dir,
                LABEL_HOST: os.uname().nodename,
                LABEL_UID: str(os.getuid()),
            },
            host_config=host_config,
        )
        config |= {"Entrypoint": ["/bin/sh", _SCRIPT], "StdinOnce": True}
        config |= {"AttachStdin": True, "AttachStdout": True, "AttachStderr": True}
        self._api.create_container_from_config(config, name=self._name)

    def _wait_for_code(self, asked: threading.Event) -> None:
        import docker

        # A connection of its own: the answer comes at the end.
        api = docker.APIClient(base_url=self._host, version="auto", timeout=None)
        try:
            response = api.post(
                f"{api.base_url}/v{api.api_version}/containers/{self._name}/wait",
                params={"condition": "next-exit"},
                stream=True,
                timeout=None,
            )
            # The answer's head comes when the request is registered, its body at the end.
            asked.set()
            if response.ok:
                self._code = response.json().get("StatusCode")
        except Exception:
            self._code = None  # dockerd went away: wait() says so
        finally:
            asked.set()
            api.close()

    # ---- while it runs ----

    def _pass_bytes(self) -> None:
        connection: socket.socket = self._stream._sock
        connection.setblocking(True)
        frames = _Frames()
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
                if not (data := connection.recv(65536)):
                    return
                for stream, piece in [(1, data)] if self._is_terminal else frames.feed(data):
                    _write_all(stream, piece)

    @contextlib.contextmanager
    def _size_followed(self) -> Iterator[None]:
        if not self._is_terminal:
            yield
            return

        def tell(*_: object) -> None:
            size = os.get_terminal_size(0)
            with contextlib.suppress(Exception):  # it ended in the same moment
                self._api.resize(self._name, height=size.lines, width=size.columns)

        before = signal.signal(signal.SIGWINCH, tell)
        tell()
        try:
            yield
        finally:
            signal.signal(signal.SIGWINCH, before)


class _Frames:
    """Docker's frames, from bytes that are cut anywhere."""

    def __init__(self) -> None:
        self._heard = b""

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """The whole frames that ``data`` completes: stream (1 or 2) and bytes."""
        self._heard += data
        found = []
        while len(self._heard) >= _HEADER.size:
            stream, size = _HEADER.unpack_from(self._heard)
            if len(self._heard) < _HEADER.size + size:
                break
            found.append((2 if stream == 2 else 1, self._heard[_HEADER.size : _HEADER.size + size]))
            self._heard = self._heard[_HEADER.size + size :]
        return found


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


@contextlib.contextmanager
def _raw_terminal(is_terminal: bool) -> Iterator[None]:
    """Every key goes to the container as it is, Ctrl-C too."""
    if not is_terminal:
        yield
        return
    before = termios.tcgetattr(0)
    tty.setraw(0)
    try:
        yield
    finally:
        with contextlib.suppress(termios.error):  # the terminal itself may be gone
            termios.tcsetattr(0, termios.TCSADRAIN, before)
