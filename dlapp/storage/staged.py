"""Small files on HDFS, by WebHDFS: what an application's client and ApplicationMaster keep beside it.

Every file is written under another name first and then renamed, so a reader sees it whole or not at all. A NameNode on
standby is passed over for the one that serves.

Source: Hadoop's WebHDFS.md; answers of 3.4.2.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from typing import IO, Any, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

from dlapp.errors import Denied, DlappError, NotFound, Unreachable

TIMEOUT_S = 20.0
_MOST_READ = 256 << 20
_PIECE = 1 << 20


class Found(NamedTuple):
    """A file: its size [bytes], when it was last changed [ms since 1970], its owner and permissions."""

    size_bytes: int
    modified_ms: int
    owner: str
    mode: int


class StagedFiles:
    """One user's view of one HDFS. Any thread may call; each has a connection of its own.

    Args:
        settings: ``location``: what stands before a path, ``hdfs://namenode:8020``; ``web``: the NameNodes' web
            addresses; ``user``: the Hadoop user.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = dict(settings)
        self._root, self._user = str(settings["location"]).rstrip("/"), str(settings["user"])
        self._web = [str(one).rstrip("/") for one in settings["web"]]
        self._by_thread = threading.local()
        self._open: set[Any] = set()

    def close(self) -> None:
        """Close the connections of all threads; none of them may be in a call."""
        for connection in list(self._open):
            connection.close()
        self._open.clear()
        self._by_thread = threading.local()

    @property
    def home(self) -> str:
        """The user's home directory."""
        return f"{self._root}/user/{self._user}"

    # ---- calls ----

    def look(self, location: str) -> Found | None:
        """What is there; None: nothing."""
        try:
            status = self._call("GET", location, "GETFILESTATUS")["FileStatus"]
        except NotFound:
            return None
        return Found(
            int(status["length"]), int(status["modificationTime"]), str(status["owner"]), int(status["permission"], 8)
        )

    def names(self, location: str) -> list[str]:
        """The names in a directory, sorted; none where there is no directory."""
        try:
            found = self._call("GET", location, "LISTSTATUS")["FileStatuses"]["FileStatus"]
        except NotFound:
            return []
        return sorted(str(one["pathSuffix"]) for one in found)

    def make(self, location: str, mode: int) -> None:
        """Make a directory, with those above it; one that is there stays as it is."""
        self._call("PUT", location, "MKDIRS", permission=f"{mode:o}")

    def send(self, path: str, location: str, mode: int) -> Found:
        """Put a local file there, whole or not at all; one that is there already stays, untouched."""
        temporary = _temporary(location)
        with open(path, "rb") as file:
            self._create(temporary, file, os.fstat(file.fileno()).st_size, mode)
        self._rename(temporary, location, once=True)
        found = self.look(location)
        if found is None:
            raise NotFound(f"{location} was removed just after it was written")
        return found

    def write(self, location: str, data: bytes, mode: int, *, once: bool = False) -> bool:
        """Write a small file, whole or not at all; with ``once`` False where one is there already."""
        temporary = _temporary(location)
        self._create(temporary, data, len(data), mode)
        return self._rename(temporary, location, once=once)

    def read(self, location: str) -> bytes:
        """All of a small file. Raises NotFound."""
        status, answer, where = self._request("GET", location, "OPEN")
        if status == 307:
            status, answer = self._at_datanode("GET", where, None, 0)
        return self._checked(status, answer, location)

    def remove(self, location: str) -> None:
        """Remove a file, or a directory with all in it; nothing there is no error."""
        self._call("DELETE", location, "DELETE", recursive="true")

    # ---- how ----

    def _create(self, location: str, data: bytes | IO[bytes], size: int, mode: int) -> None:
        status, answer, where = self._request(
            "PUT", location, "CREATE", overwrite="true", permission=f"{mode:o}", noredirect="false"
        )
        if status == 307:
            status, answer = self._at_datanode("PUT", where, data, size)
        self._checked(status, answer, location)

    def _rename(self, old: str, new: str, *, once: bool) -> bool:
        if not once:
            # The plain call refuses a destination that is there; options need the newer one, which WebHDFS has.
            self._call("PUT", old, "RENAME", destination=self._path(new), renameoptions="OVERWRITE")
            return True
        done = bool(self._call("PUT", old, "RENAME", destination=self._path(new)).get("boolean"))
        if not done:
            self.remove(old)
        return done

    def _call(self, method: str, location: str, operation: str, **parameters: str) -> dict[str, Any]:
        status, answer, _ = self._request(method, location, operation, **parameters)
        data = self._checked(status, answer, location)
        found = json.loads(data) if data else {}
        return found if isinstance(found, dict) else {}

    def _request(self, method: str, location: str, operation: str, **parameters: str) -> tuple[int, bytes, str]:
        query = urlencode({"op": operation, "user.name": self._user, **parameters})
        path = f"/webhdfs/v1{quote(self._path(location))}?{query}"
        said = []
        for web in list(self._web):
            try:
                status, answer, where = self._exchange(web, method, path, None, 0)
            except Unreachable as error:
                said.append(str(error))
                continue
            if status == 403 and b"StandbyException" in answer:
                said.append(f"{web}: is on standby")
                continue
            if self._web[0] != web:
                self._web.sort(key=lambda one: one != web)
            return status, answer, where
        raise Unreachable(f"no NameNode answers: {'; '.join(said)}")

    def _at_datanode(self, method: str, url: str, data: bytes | IO[bytes] | None, size: int) -> tuple[int, bytes]:
        parts = urlsplit(url)
        status, answer, _ = self._exchange(
            f"{parts.scheme}://{parts.netloc}", method, f"{parts.path}?{parts.query}", data, size
        )
        return status, answer

    def _exchange(
        self, web: str, method: str, path: str, data: bytes | IO[bytes] | None, size: int
    ) -> tuple[int, bytes, str]:
        import http.client

        connections: dict[str, http.client.HTTPConnection] = self._by_thread.__dict__.setdefault("connections", {})
        fresh = web not in connections
        if fresh:
            kind = http.client.HTTPSConnection if web.startswith("https:") else http.client.HTTPConnection
            connections[web] = kind(web.partition("://")[2], timeout=TIMEOUT_S)
            self._open.add(connections[web])
        connection = connections[web]
        headers = {"Content-Length": str(size)} if method == "PUT" else {}
        try:
            connection.request(method, path, body=data, headers=headers)
            answer = connection.getresponse()
            body = answer.read(_MOST_READ)
            if answer.will_close:
                self._open.discard(connections.pop(web))
            return answer.status, body, answer.getheader("Location", "")
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            self._open.discard(connections.pop(web, None))
            if not fresh and (data is None or isinstance(data, bytes)):
                return self._exchange(web, method, path, data, size)  # it had closed a connection of before
            raise Unreachable(f"{web}: {_words(error)}") from error

    def _checked(self, status: int, answer: bytes, location: str) -> bytes:
        if status < 300:
            return answer
        try:
            said = json.loads(answer)["RemoteException"]
            kind, message = str(said["exception"]), str(said["message"]).partition("\n")[0]
        except (ValueError, KeyError, TypeError):
            raise Unreachable(f"{location}: status {status}, and not from a NameNode") from None
        if status == 404 or kind == "FileNotFoundException":
            raise NotFound(f"{location} is not there")
        if kind in ("AccessControlException", "SecurityException"):
            raise Denied(f"{location}: {message}")
        if kind == "SafeModeException":
            raise Unreachable(f"{location}: HDFS is in safe mode; it takes no files until it is left")
        raise DlappError(f"{location}: {message} ({kind})")

    def _path(self, location: str) -> str:
        return location.removeprefix(self._root) or "/"


def _temporary(location: str) -> str:
    directory, _, name = location.rpartition("/")
    return f"{directory}/.{name}.{os.urandom(6).hex()}"


def _words(error: BaseException) -> str:
    words = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return words.lower() or type(error).__name__
