"""Talking to dockerd: calls of its API over its socket, by the standard library.

The docker package costs each task 90 ms and 20 MiB, most of it for what a task never asks; it is used where an image
is pulled, for credentials, and for the shell's terminal.

Source: Docker Engine API 1.24 and later; paths without a version get the daemon's own.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Iterator, Mapping
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Any
from urllib.parse import quote, urlencode

from dlapp.control import Fault
from dlapp.runtime.payload import PayloadError

UNIX = "unix://"


class DockerRefused(Exception):
    """dockerd answered, and refused; ``status`` is of HTTP, the message its own words."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class DockerSilent(Exception):
    """dockerd did not answer, or not as it should."""


class Dockerd:
    """The daemon of this machine at ``host``. It keeps no connection.

    Args:
        timeout_s: how long a call may take where it does not say; may be changed.

    Raises:
        PayloadError: the address is not of this machine's daemon.
    """

    def __init__(self, host: str, timeout_s: float) -> None:
        if not host.startswith(UNIX):
            raise PayloadError(Fault.DATA, f"runtime.docker.host is {host}: only this machine's dockerd, by {UNIX}")
        self.host, self.timeout_s = host, timeout_s

    @property
    def path(self) -> str:
        """Its socket."""
        return self.host.removeprefix(UNIX)

    def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        timeout_s: float | None = None,
    ) -> Any:
        """One call: what was answered, read from JSON; bytes where it is none; None where it is empty.

        Args:
            body: bytes are a tar archive, all else is sent as JSON.

        Raises:
            DockerRefused, DockerSilent.
        """
        connection, answer = self._ask(method, path, query, body, {}, timeout_s)
        try:
            data = answer.read()
        except (OSError, HTTPException) as error:
            raise DockerSilent(str(error)) from error
        finally:
            connection.close()
        if not answer.headers.get("Content-Type", "").startswith("application/json"):
            return data or None
        try:
            return json.loads(data)
        except ValueError as error:
            raise DockerSilent(f"an answer that is no JSON: {error}") from error

    def lines(
        self, path: str, query: Mapping[str, Any], headers: Mapping[str, str], *, timeout_s: float
    ) -> Iterator[dict[str, Any]]:
        """POST, and the objects that are answered one by one as they come; raises as `call` does."""
        connection, answer = self._ask("POST", path, query, None, headers, timeout_s)
        try:
            while line := answer.readline():
                if line.strip():
                    yield json.loads(line)
        except (OSError, HTTPException, ValueError) as error:
            raise DockerSilent(str(error)) from error
        finally:
            connection.close()

    def _ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any] | None,
        body: Any,
        headers: Mapping[str, str],
        timeout_s: float | None,
    ) -> tuple[HTTPConnection, HTTPResponse]:
        connection = _UnixConnection(self.path, self.timeout_s if timeout_s is None else timeout_s)
        data, sent = None, dict(headers)
        if body is not None:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            sent["Content-Type"] = "application/x-tar" if isinstance(body, bytes) else "application/json"
        try:
            connection.request(method, f"{path}?{urlencode(query)}" if query else path, data, sent)
            answer = connection.getresponse()
            if answer.status < 400:
                return connection, answer
            words = answer.read(65536)
        except TimeoutError as error:
            connection.close()
            raise DockerSilent(f"no answer in {connection.timeout:g} s") from error
        except (OSError, HTTPException) as error:
            connection.close()
            raise DockerSilent(getattr(error, "strerror", None) or str(error)) from error
        except BaseException:  # an order to stop cuts in by an exception
            connection.close()
            raise
        connection.close()
        raise DockerRefused(answer.status, _message(words))

    # ---- containers ----

    def create(self, name: str, config: Mapping[str, Any]) -> None:
        """Make a container."""
        self.call("POST", "/containers/create", query={"name": name}, body=config)

    def start(self, name: str) -> None:
        """Start it."""
        self.call("POST", f"/containers/{name}/start")

    def inspect(self, name: str) -> dict[str, Any]:
        """All that is known of it."""
        found: dict[str, Any] = self.call("GET", f"/containers/{name}/json")
        return found

    def kill(self, name: str) -> None:
        """SIGKILL to all of it."""
        self.call("POST", f"/containers/{name}/kill")

    def remove(self, name: str) -> None:
        """Kill and remove it, with its anonymous volumes; one that is gone is no error."""
        try:
            self.call("DELETE", f"/containers/{name}", query={"force": 1, "v": 1})
        except DockerRefused as error:
            if error.status != 404:
                raise

    def labelled(self, labels: list[str]) -> list[dict[str, Any]]:
        """The containers, in whatever state, that have all these labels."""
        query = {"all": 1, "filters": json.dumps({"label": labels})}
        found: list[dict[str, Any]] = self.call("GET", "/containers/json", query=query)
        return found

    def image(self, name: str) -> dict[str, Any] | None:
        """What is known of an image; None: it is not here."""
        try:
            found: dict[str, Any] = self.call("GET", f"/images/{quote(name)}/json")
        except DockerRefused as error:
            if error.status == 404:
                return None
            raise
        return found

    def read_file(self, container: str, path: str) -> bytes | None:
        """A file in a container; None: there is no such file. Links in it are not followed."""
        import io
        import tarfile

        try:
            data = self.call("GET", f"/containers/{container}/archive", query={"path": path})
        except DockerRefused as error:
            if error.status == 404:
                return None
            raise
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            member = tar.next()
            file = tar.extractfile(member) if member is not None and member.isreg() else None
            return None if file is None else file.read()

    def write_files(self, container: str, files: Mapping[str, bytes]) -> None:
        """Put files into a container: path without the first slash -> content; root's, and all may read them."""
        import io
        import tarfile

        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w") as tar:
            for path, content in files.items():
                member = tarfile.TarInfo(path)
                member.size, member.mode = len(content), 0o644
                tar.addfile(member, io.BytesIO(content))
        self.call("PUT", f"/containers/{container}/archive", query={"path": "/"}, body=out.getvalue())

    # ---- the process ----

    def process_id(self) -> int | None:
        """The process that listens at its socket; None: that cannot be told. It may be a systemd that starts it."""
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(self.timeout_s)
            try:
                probe.connect(self.path)
                pid: int = struct.unpack("3i", probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
            except OSError:
                return None
        return pid if pid > 0 and os.path.exists(f"/proc/{pid}") else None


class _UnixConnection(HTTPConnection):
    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _message(words: bytes) -> str:
    try:
        return str(json.loads(words)["message"])
    except (ValueError, KeyError, TypeError):
        return words.decode(errors="replace").strip() or "no reason given"
