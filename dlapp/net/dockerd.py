"""Docker client of tasks: calls of dockerd's API over its Unix socket, without a library.

The docker package costs each task 90 ms and 20 MiB, mostly for functions that a task never uses; commands read facts
with it (`dlapp.runtime.docker.client`).

A dockerd may hang or send slowly, so a whole call has a deadline, and its answer a size limit.

Source: Docker Engine API 1.24 and later; paths without a version get the daemon's own.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any, NamedTuple, Protocol
from urllib.parse import quote, urlencode

from dlapp.errors import DlappError
from dlapp.net.http import HttpClient, IncompleteResponse
from dlapp.net.http_framing import MAX_HEAD_BYTES

UNIX = "unix://"
MAX_BYTES = 64 << 20
"""Size limit of an answer that is not a stream: a file of an image."""
MAX_LIST_BYTES = 8 << 20
"""Size limit of a list: some thousands of containers."""
MAX_LINE_BYTES = 1 << 20
"""Size limit of an object in a stream of objects, and of a refusal."""
REMOVAL_S = 5.0
"""How long to wait for a removal that another client has started; some never end."""
_AGAIN_S = 0.05
_MAX_TEXT = 300
"""Length limit of the shown text of an answer that does not match the API [characters]."""


class DockerError(Exception):
    """A call of dockerd failed."""


class DockerRefused(DockerError):
    """dockerd refused a call, or redirected it; ``status`` is the HTTP status, the message is dockerd's."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class DockerSilent(DockerError):
    """dockerd gave no valid answer; ``denied``: this user may not connect to it."""

    denied = False


class DockerNotLocal(DockerError, DlappError):
    """An address that does not belong to a dockerd of this machine."""


class ContainerSummary(NamedTuple):
    """A container; ``state`` is Docker's: created, running, paused, restarting, removing, exited, dead."""

    id: str
    state: str
    labels: Mapping[str, str] = {}
    name: str = ""


class DockerFacts(Protocol):
    """Facts about a dockerd, which commands and tasks read by different clients.

    Raises:
        DockerRefused, DockerSilent: in each call.
    """

    host: str

    def version(self) -> dict[str, Any]:
        """Return its version, and that of its API."""

    def info(self) -> dict[str, Any]:
        """Return its settings."""

    def networks(self) -> list[str]:
        """Return the names of its networks."""


class Dockerd:
    """Client of this machine's daemon at ``host``. It keeps no connection open.

    Args:
        timeout_s: default time limit of a whole call; may be changed.

    Raises:
        DockerNotLocal: the address is not of this machine's daemon.
    """

    def __init__(self, host: str, timeout_s: float) -> None:
        self.host, self.timeout_s = local_host(host), timeout_s

    @property
    def path(self) -> str:
        """Return the path of its socket."""
        return self.host.removeprefix(UNIX)

    def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        until: float | None = None,
        max_bytes: int = MAX_BYTES,
    ) -> Any:
        """Return the answer of one call, parsed as JSON; bytes if it is not JSON; None if it is empty.

        Args:
            method: the HTTP method.
            path: the path of the API.
            query: the query of the URL.
            body: bytes are a tar archive; any other value is sent as JSON.
            until: when to stop waiting [s, monotonic]; None for `timeout_s` from now.
            max_bytes: maximum size of the answer [bytes].

        Raises:
            Raises DockerRefused, DockerSilent.
        """
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Content-Type": "application/x-tar" if isinstance(body, bytes) else "application/json"}
        deadline = time.monotonic() + self.timeout_s if until is None else until
        try:
            with closing(HttpClient(self.timeout_s, self.timeout_s, what="Docker")) as client:
                answer = client.request(
                    method, self.host, _target(path, query), data, headers=headers, max_bytes=max_bytes, until=deadline
                )
        except IncompleteResponse as error:
            if error.too_large:
                raise DockerSilent(f"an answer of more than {max_bytes >> 20} MiB") from error
            if error.timed_out:
                raise DockerSilent(
                    f"no answer in {self.timeout_s:g} s" if until is None else "no answer in time"
                ) from error
            silent = DockerSilent(str(error))
            silent.denied = isinstance(error.__cause__, PermissionError)
            raise silent from error
        if not is_success(answer.status):
            raise DockerRefused(answer.status, refusal_text(answer.status, answer.body))
        if not answer.headers.get("content-type").startswith("application/json"):
            return answer.body or None
        return _from_json(answer.body)

    def lines(
        self, path: str, query: Mapping[str, Any], headers: Mapping[str, str], *, timeout_s: float
    ) -> Iterator[dict[str, Any]]:
        """Send a POST, and yield the objects of the answer as they arrive; raises the errors of `call`.

        Args:
            path: the path of the API.
            query: the query of the URL.
            headers: to send.
            timeout_s: maximum silence of dockerd.
        """
        try:
            with (
                closing(HttpClient(timeout_s, timeout_s)) as client,
                closing(client.stream("POST", self.host, _target(path, query), headers=headers)) as answer,
            ):
                rest = b""
                for piece in answer:
                    rest += piece
                    if is_success(answer.status):
                        *whole, rest = rest.split(b"\n")
                        yield from (as_object(_from_json(line)) for line in whole if line.strip())
                    if len(rest) > MAX_LINE_BYTES:
                        raise DockerSilent(f"a line of more than {MAX_LINE_BYTES >> 20} MiB")
        except IncompleteResponse as error:
            raise DockerSilent(f"no answer in {timeout_s:g} s" if error.timed_out else str(error)) from error
        if not is_success(answer.status):
            raise DockerRefused(answer.status, refusal_text(answer.status, rest))
        if rest.strip():
            yield as_object(_from_json(rest))

    # ---- containers ----

    def create(self, name: str, config: Mapping[str, Any]) -> None:
        """Create a container."""
        self.call("POST", "/containers/create", query={"name": name}, body=config)

    def start(self, name: str) -> None:
        """Start it."""
        self.call("POST", f"/containers/{name}/start")

    def inspect(self, name: str) -> dict[str, Any]:
        """Return dockerd's full description of it."""
        return as_object(self.call("GET", f"/containers/{name}/json"))

    def kill(self, name: str) -> None:
        """Send SIGKILL to all of its processes."""
        self.call("POST", f"/containers/{name}/kill")

    def remove(self, name: str, *, until: float | None = None) -> None:
        """Kill and remove it, with its anonymous volumes; a missing one is no error.

        Args:
            until: when to stop waiting [s, monotonic], also for a removal that another process has started, but for
                that no longer than `REMOVAL_S`; None for `timeout_s` from now, and then such a removal is refused with
                409.
        """
        path, query = f"/containers/{quote(name, safe='')}", {"force": 1, "v": 1}
        until = until if until is None else min(until, time.monotonic() + REMOVAL_S)
        # 1. A task is killed; the process that cleans up after its application (`dlapp.runtime.docker.cleanup`) starts
        #    to remove its container.
        # 2. The ledger's call arrives: 409, a removal is in progress. Until that is complete, the container counts as
        #    alive.
        # 3. If the ledger checked again immediately, it would keep the lease, and no other process would free it later.
        while True:
            try:
                self.call("DELETE", path, query=query, until=until)
            except DockerRefused as error:
                if error.status == 409 and until is not None:
                    time.sleep(_AGAIN_S)
                    continue
                if error.status != 404:
                    raise
            return

    def labelled(self, labels: list[str], *, until: float | None = None) -> list[ContainerSummary]:
        """Return the containers in any state that have all these labels; ``until`` as for `call`."""
        query = {"all": 1, "filters": json.dumps({"label": labels})}
        found = _objects(self.call("GET", "/containers/json", query=query, until=until, max_bytes=MAX_LIST_BYTES))
        return [_summary(one) for one in found]

    def version(self) -> dict[str, Any]:
        """Return its version, and that of its API."""
        return as_object(self.call("GET", "/version"))

    def info(self) -> dict[str, Any]:
        """Return its settings."""
        return as_object(self.call("GET", "/info"))

    def image(self, name: str) -> dict[str, Any] | None:
        """Return the description of an image; None if it is not in dockerd's store."""
        try:
            return as_object(self.call("GET", f"/images/{quote(name)}/json"))
        except DockerRefused as error:
            if error.status == 404:
                return None
            raise

    def networks(self) -> list[str]:
        """Return the names of its networks."""
        return names_of(self.call("GET", "/networks"))

    def read_file(self, container: str, path: str) -> bytes | None:
        """Return a file in a container; None if it does not exist. Links in its path are not followed."""
        import io
        import tarfile

        try:
            data = self.call("GET", f"/containers/{container}/archive", query={"path": path})
        except DockerRefused as error:
            if error.status == 404:
                return None
            raise
        try:
            with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
                member = tar.next()
                file = tar.extractfile(member) if member is not None and member.isreg() else None
                return None if file is None else file.read()
        except (tarfile.TarError, TypeError) as error:
            raise DockerSilent(f"a response that is not an archive: {error}") from error

    def write_files(self, container: str, files: Mapping[str, bytes]) -> None:
        """Write files to a container: path without the leading slash -> content; owned by root and readable by all."""
        import io
        import tarfile

        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w") as tar:
            for path, content in files.items():
                member = tarfile.TarInfo(path)
                member.size, member.mode = len(content), 0o644
                tar.addfile(member, io.BytesIO(content))
        self.call("PUT", f"/containers/{container}/archive", query={"path": "/"}, body=out.getvalue())

    # ---- commands in a container ----

    def create_exec(self, container: str, config: Mapping[str, Any]) -> str:
        """Prepare a command in a container, and return its id; if the container does not run, the status is 409."""
        found = as_object(self.call("POST", f"/containers/{container}/exec", body=config)).get("Id")
        if not (isinstance(found, str) and found.isalnum()):
            raise DockerSilent("an answer that does not match the API")
        return found

    def start_exec(self, exec_id: str, *, terminal: bool) -> socket.socket:
        """Request the start of a command of `create_exec`, and return the connection, for `await_exec`.

        Raises:
            DockerSilent: dockerd cannot be reached.
        """
        body = json.dumps({"Detach": False, "Tty": terminal}).encode()
        head = (
            f"POST /exec/{exec_id}/start HTTP/1.1\r\nHost: docker\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n"
        )
        stream = socket.socket(socket.AF_UNIX)
        try:
            stream.settimeout(self.timeout_s)
            stream.connect(self.path)
            stream.sendall(head.encode() + body)
        except OSError as error:
            stream.close()
            raise DockerSilent(str(error)) from error
        return stream

    def await_exec(self, stream: socket.socket) -> bytes:
        """Wait until a command has started.

        Args:
            stream: from `start_exec`. Afterwards it has the command's input and output. With a terminal the bytes are
                unframed, otherwise each piece of output has a header of 8 bytes: 1 or 2 (output or error), three of 0,
                the length.

        Returns:
            The output that arrived with the answer.

        Raises:
            Raises DockerRefused, DockerSilent.
        """
        answer = b""
        try:
            while b"\r\n\r\n" not in answer:
                piece = stream.recv(MAX_HEAD_BYTES)
                answer += piece
                if not piece or len(answer) > MAX_HEAD_BYTES:
                    raise DockerSilent("an answer that does not match the API")
        except OSError as error:
            raise DockerSilent(str(error)) from error
        first, _, early = answer.partition(b"\r\n\r\n")
        words = first.split(b" ", 2)
        # Docker before 1.8 and Podman answer 200, and the following bytes are the stream nevertheless.
        if len(words) < 2 or words[1] not in (b"101", b"200"):
            status = int(words[1]) if len(words) > 1 and words[1].isdigit() else 500
            raise DockerRefused(status, refusal_text(status, early))
        return early

    def inspect_exec(self, exec_id: str) -> dict[str, Any]:
        """Return the state of a command: ``Running``, ``ExitCode``."""
        return as_object(self.call("GET", f"/exec/{exec_id}/json"))

    def resize_exec(self, exec_id: str, rows: int, columns: int) -> None:
        """Change the size of a command's terminal."""
        self.call("POST", f"/exec/{exec_id}/resize", query={"h": rows, "w": columns})

    # ---- the process ----

    def process_id(self) -> int | None:
        """Return the process that listens on its socket; None if unknown. It may be a systemd that starts dockerd."""
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(self.timeout_s)
            try:
                probe.connect(self.path)
                pid: int = struct.unpack("3i", probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
            except OSError:
                return None
        return pid if pid > 0 and os.path.exists(f"/proc/{pid}") else None


def local_host(host: str) -> str:
    """Return the address of a dockerd. Raises DockerNotLocal: it is not of this machine's."""
    if not host.startswith(UNIX):
        raise DockerNotLocal(f"runtime.docker.host is {host}: only this machine's dockerd, by {UNIX}")
    return host


def _target(path: str, query: Mapping[str, Any] | None) -> str:
    return f"{path}?{urlencode(query)}" if query else path


def _from_json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DockerSilent(f"a response that is not JSON: {error}") from error


def as_object(found: Any) -> dict[str, Any]:
    """Return an answer that must be an object. Raises DockerSilent: it is not."""
    if not isinstance(found, dict):
        raise DockerSilent("an answer that does not match the API")
    return found


def _objects(found: Any) -> list[dict[str, Any]]:
    if not isinstance(found, list):
        raise DockerSilent("an answer that does not match the API")
    return [as_object(one) for one in found]


def names_of(networks: Any) -> list[str]:
    """Return the names in an answer to /networks. Raises DockerSilent: it does not match the API."""
    return [str(one.get("Name", "")) for one in _objects(networks)]


def _summary(found: dict[str, Any]) -> ContainerSummary:
    container_id, labels, names = found.get("Id"), found.get("Labels") or {}, found.get("Names") or [""]
    if not (isinstance(container_id, str) and isinstance(labels, dict) and isinstance(names, list) and container_id):
        raise DockerSilent("an answer that does not match the API")
    labels = {str(name): str(value) for name, value in labels.items()}
    return ContainerSummary(container_id, str(found.get("State", "")), labels, str(names[0]))


def is_success(status: int) -> bool:
    """Return whether dockerd did what a call requested."""
    return 200 <= status < 300 or status == 304  # a container that has already started


def refusal_text(status: int, words: bytes) -> str:
    """Return dockerd's message in the answer to a call that it refused."""
    try:
        return str(json.loads(words)["message"])
    except (ValueError, KeyError, TypeError, RecursionError):
        text = " ".join(words.decode(errors="replace").split())[:_MAX_TEXT]
        return f"status {status}: {text}" if text else f"status {status}"
