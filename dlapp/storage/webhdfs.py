"""The calls of WebHDFS that dlapp makes, with failover and repetition; the one user of the ``hdfs`` package.

The package knows the protocol: operations, quoting, redirection to DataNodes. What it does not know is added here. A
call goes from NameNode to NameNode until one serves it, in rounds with growing pauses, as long as our patience lasts.
Which failures are worth another try depends on what may have happened:

    nothing was sent, on standby, "retry"       any call again
    sent, and the answer was lost               a call that may be repeated; a rename looks at what became of it
    refused with another exception              no call: it is the answer

Paths are absolute and nothing in them is escaped. Where a path was looked at before, ``/.reserved/.inodes/<id>`` names
exactly what was seen, whatever it is called by now.

Source: Hadoop's WebHDFS.md, FSDirRenameOp; answers of 3.4.2. requests takes 100 ms to load, so it is loaded here only
when the first call is made.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any, NamedTuple, TypeVar

from dlapp.errors import Denied, DlappError, NotFound, UsageError
from dlapp.errors import Unreachable as _Unreachable
from dlapp.storage import DiskFull, HdfsPlace, shown

CONNECT_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 60.0
"""A DataNode that syncs, or a NameNode in a long garbage collection, is silent for a while; a dead one is longer."""
PATIENCE_S = 60.0
"""How long a call is tried in all. A failover between two NameNodes takes 10 to 30 s."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 3.0
PIECE = 1 << 20
_AGAIN = frozenset({"StandbyException", "RetriableException"})
_DENIED = frozenset({"AccessControlException", "SecurityException", "AuthorizationException"})
_NO_ROOM = ("QuotaExceededException", "DSQuotaExceededException", "NSQuotaExceededException")

T = TypeVar("T")


class Unreachable(_Unreachable):
    """No NameNode or DataNode answered; ``doubtful``: the call may have been carried out all the same."""

    def __init__(self, message: str, *, doubtful: bool = False) -> None:
        super().__init__(message)
        self.doubtful = doubtful


class Refused(DlappError):
    """HDFS answered with a Java exception that no class of ours stands for; ``java_class`` is its short name."""

    def __init__(self, message: str, java_class: str) -> None:
        super().__init__(message)
        self.java_class = java_class


class AlreadyThere(Refused):
    """What was to be made is there."""


class Status(NamedTuple):
    """What HDFS says of a file or directory.

    Args:
        name: its last name; empty where it was asked for by its path.
        number: its inode number, which a rename does not change and which is not used twice.
        mode: permission bits.
        mtime_ms: last change of the content, in milliseconds since 1970.
        link: where a symbolic link leads; None: it is none.
    """

    name: str
    is_dir: bool
    size_bytes: int
    number: int
    mode: int
    mtime_ms: int
    owner: str
    link: str | None = None


class WebHdfs:
    """One user's calls to the NameNodes of one HDFS. Any thread may call.

    Args:
        patience_s: how long one call is tried in all; reading and writing data may take longer as long as it goes on.
    """

    def __init__(
        self,
        place: HdfsPlace,
        *,
        patience_s: float = PATIENCE_S,
        timeout_s: tuple[float, float] = (CONNECT_TIMEOUT_S, READ_TIMEOUT_S),
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.place = place
        self._patience_s, self._timeout_s = patience_s, timeout_s
        self._clock, self._sleep = clock, sleep
        self._local = threading.local()
        self._first = 0  # the NameNode that served last

    # ---- looking ----

    def status(self, path: str) -> Status | None:
        """What is at ``path``; None: nothing."""
        try:
            return _status(self._json("get_file_status", path)["FileStatus"])
        except NotFound:
            return None

    def children(self, path: str) -> list[Status]:
        """What is in a directory, sorted by name; of a file, the file with an empty name. Raises NotFound."""
        found = self._json("list_status", path)["FileStatuses"]["FileStatus"]
        return sorted((_status(one) for one in found), key=lambda one: one.name)

    def free_bytes(self, path: str) -> int | None:
        """What the space quota of the directory ``path`` leaves; None: it has none. Raises NotFound."""
        said = self._json("get_content_summary", path)["ContentSummary"]
        quota = int(said.get("spaceQuota", -1))
        return None if quota < 0 else max(0, quota - int(said["spaceConsumed"]))

    # ---- changing; each may be repeated ----

    def make_directory(self, path: str, mode: int = 0o755) -> None:
        """Make a directory with those above it; one that is there stays as it is. Raises AlreadyThere: a file is."""
        self._json("mkdirs", path, permission=f"{mode:o}")

    def delete(self, path: str) -> None:
        """Delete a file or a directory with all that it holds; nothing there is no error."""
        with contextlib.suppress(NotFound):
            self._json("delete", path, recursive="true")

    def delete_if_empty(self, path: str) -> bool:
        """Delete an empty directory; whether nothing is there now."""
        try:
            self._json("delete", path, recursive="false")
        except NotFound:
            return True
        except Refused:
            return False
        return True

    def set_mode(self, path: str, mode: int) -> None:
        """Set permission bits."""
        self._call("set_permission", path, permission=f"{mode:o}")

    def set_mtime(self, path: str, mtime_ms: int) -> None:
        """Set the modification time [ms since 1970]."""
        self._call("set_times", path, modificationtime=str(mtime_ms), accesstime="-1")

    def rename(self, old: str, new: str, *, overwrite: bool = False) -> bool:
        """Give what is at ``old`` the name ``new``, where nothing is; False: something is, and nothing was done.

        With ``overwrite`` a file, or an empty directory, that has the name gives way.

        The NameNode looks and renames in one step, so nothing is moved inside an existing directory. ``old`` is the
        caller's alone: that it is gone after a lost answer tells that the call got through.

        Raises:
            NotFound: there is no ``old``, or no directory for ``new``.
        """
        doubtful, options = False, "OVERWRITE" if overwrite else "NONE"
        for again in self._rounds(f"{shown(old)} cannot be renamed to {shown(new)}"):
            try:
                # renameoptions makes it the rename that refuses; without, HDFS moves into a directory of that name.
                self._call("rename", old, repeatable=False, destination=new, renameoptions=options)
                return True
            except Unreachable as error:
                doubtful = doubtful or error.doubtful
                again(error)
            except NotFound:
                if doubtful and self.status(new) is not None:
                    return True
                raise
            except Refused:
                # Not every "it is there" comes as FileAlreadyExistsException: a file onto a directory does not.
                if self.status(new) is None or self.status(old) is None:
                    raise
                return False
        raise AssertionError

    # ---- content ----

    def read(self, path: str, size_bytes: int, *, offset: int = 0) -> Iterator[bytes]:
        """The bytes of a file from ``offset`` up to ``size_bytes``, in pieces; resumed where a connection broke.

        Raises:
            DlappError: it has fewer bytes than that.
        """
        at = offset
        bad: set[str] = set()  # DataNodes that failed us, which the NameNode may not know yet
        for again in self._rounds(f"{shown(path)} cannot be read"):
            started = at
            if at >= size_bytes:
                return
            try:
                with self._opened(path, at, size_bytes - at, bad) as raw:
                    while at < size_bytes:
                        piece = raw.read(min(PIECE, size_bytes - at))
                        if not piece:
                            break
                        at += len(piece)
                        yield piece
            except Refused:
                if not bad:
                    raise
                bad.clear()  # There is no other DataNode; the one that failed is better than none.
                again(Unreachable(f"{shown(path)}: no DataNode has it at the moment"))
            except Unreachable as error:
                again(error, progress=at > started)
            else:
                if at >= size_bytes:
                    return
                status = self.status(path)
                if status is None or status.size_bytes < size_bytes:
                    raise DlappError(f"{shown(path)} changed while it was read: it had {size_bytes} bytes")
                again(Unreachable(f"{shown(path)}: its DataNode ended early"), progress=at > started)

    def read_bytes(self, path: str, most: int = 256 << 20) -> bytes:
        """All of a small file. Raises NotFound; DlappError where it is larger than ``most`` or a directory."""
        status = self.status(path)
        if status is None:
            raise NotFound(f"{shown(self.place.location + path)} is not there")
        if status.is_dir or status.size_bytes > most:
            raise DlappError(f"{shown(self.place.location + path)} is a directory, or larger than {most} bytes")
        return b"".join(self.read(path, status.size_bytes))

    def write(self, path: str, data: bytes | Callable[[], IO[bytes]], mode: int = 0o644) -> None:
        """Write a file, over what is there; it is not whole before this returns, so the name is one of the caller's.

        Args:
            data: the content, or what opens it; a try that failed begins again.
        """
        bad: set[str] = set()
        for again in self._rounds(f"{shown(path)} cannot be written"):
            try:
                return self._written(path, data, mode, bad)
            except Unreachable as error:
                again(error)
            except Refused:
                if not bad:
                    raise
                bad.clear()
                again(Unreachable(f"{shown(path)}: no DataNode takes it at the moment"))

    # ---- how ----

    def _written(self, path: str, data: bytes | Callable[[], IO[bytes]], mode: int, bad: set[str]) -> None:
        extra: dict[str, Any] = {"excludedatanodes": ",".join(sorted(bad))} if bad else {}
        where = self._call("create", path, redirected=True, overwrite="true", permission=f"{mode:o}", **extra)
        client = self._clients()[self._first]
        with contextlib.ExitStack() as stack:
            body = data if isinstance(data, bytes) else stack.enter_context(data())
            with self._explained(path, where, bad):
                done = client._request(method="PUT", url=where, data=body)
                if not done.ok:
                    raise self._package()._to_error(done)

    @contextlib.contextmanager
    def _opened(self, path: str, offset: int, length: int, bad: set[str]) -> Iterator[Any]:
        extra: dict[str, Any] = {"excludedatanodes": ",".join(sorted(bad))} if bad else {}
        where = self._call("open2", path, redirected=True, offset=str(offset), length=str(length), **extra)
        with self._explained(path, where, bad):
            answer = self._clients()[self._first]._request(method="GET", url=where, stream=True)
            try:
                if not answer.ok:
                    raise self._package()._to_error(answer)
                yield answer.raw
            finally:
                answer.close()

    def _json(self, operation: str, path: str, **parameters: Any) -> dict[str, Any]:
        found: dict[str, Any] = self._call(operation, path, reads=True, **parameters)
        return found

    def _call(
        self,
        operation: str,
        path: str,
        *,
        repeatable: bool = True,
        reads: bool = False,
        redirected: bool = False,
        **parameters: Any,
    ) -> Any:
        """One call to the NameNodes: its JSON with ``reads``, the DataNode's URL with ``redirected``, else nothing."""
        for again in self._rounds(shown(self.place.location + path)):
            said: list[str] = []
            for number in self._order():
                handler = getattr(self._clients()[number], f"_{operation}")
                try:
                    with self._explained(path, self.place.web[number]):
                        answer = handler(path, **parameters)
                        found = _json(answer) if reads else _redirection(answer, path) if redirected else None
                    self._first = number
                    return found
                except Unreachable as error:
                    if error.doubtful and not repeatable:
                        raise
                    said.append(str(error))
            again(Unreachable("; ".join(said)))
        raise AssertionError

    def _order(self) -> list[int]:
        count, first = len(self.place.web), self._first
        return [(first + place) % count for place in range(count)]

    def _rounds(self, what: str) -> Iterator[Callable[..., None]]:
        """Rounds of one undertaking: each ends with ``again(why)``, which waits or, out of patience, raises."""
        began = self._clock()
        pause, count = FIRST_PAUSE_S, 0

        def again(why: Unreachable, *, progress: bool = False) -> None:
            nonlocal began, pause, count
            count += 1
            if progress:
                began, pause = self._clock(), FIRST_PAUSE_S
            if self._clock() - began + pause > self._patience_s:
                tries = f"tried {count} times in {self._clock() - began:.0f} s"
                raise Unreachable(f"{what}: {why} ({tries})", doubtful=why.doubtful) from why
            self._sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, LONGEST_PAUSE_S)

        while True:
            yield again

    @contextlib.contextmanager
    def _explained(self, path: str, address: str, bad: set[str] | None = None) -> Iterator[None]:
        """Errors of the package and of what is under it, as ours."""
        import requests
        import urllib3
        from hdfs.util import HdfsError

        where = shown(self.place.location + path)
        try:
            yield
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
            # After a redirection it is the DataNode that failed.
            url = str(getattr(getattr(error, "request", None), "url", None) or address)
            host = url.partition("://")[2].partition("/")[0]
            if bad is not None and host not in _hosts(self.place.web):
                bad.add(_address(host))
            raise Unreachable(f"{host} {_words(error)}", doubtful=not _never_sent(error)) from error
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            # Something that is no NameNode, or an answer of one that was cut.
            raise Unreachable(
                f"{address.partition('?')[0]}: answers, but does not speak WebHDFS", doubtful=True
            ) from error
        except HdfsError as error:
            raise _ours(error.exception, error.message, where, address, self.place.user) from error

    def _clients(self) -> list[Any]:
        clients: list[Any] | None = getattr(self._local, "clients", None)
        if clients is None:
            clients = self._local.clients = [_client(self.place, web, self._timeout_s) for web in self.place.web]
        return clients

    @staticmethod
    def _package() -> Any:
        import hdfs.client

        return hdfs.client


def _json(answer: Any) -> dict[str, Any]:
    """The object that an answer holds. Raises ValueError."""
    found = answer.json()
    if not isinstance(found, dict):
        raise ValueError("no object")
    return found


def _redirection(answer: Any, path: str) -> str:
    """The URL that an answer leads to, with the path as we mean it. Raises KeyError.

    Java's URI normalizes text (NFC), so the NameNode changes names on the way: one that came from a Mac, say, would be
    written, and looked for, under another name.
    """
    from urllib.parse import quote

    scheme, _, rest = answer.headers["location"].partition("://")
    host, _, _ = rest.partition("/")
    _, _, query = rest.partition("?")
    return f"{scheme}://{host}/webhdfs/v1{quote(path)}?{query}"


def _client(place: HdfsPlace, web: str, timeout_s: tuple[float, float]) -> Any:
    """A client of the package for one NameNode, which takes paths as they are.

    Raises:
        UsageError: the package is not installed.
    """
    try:
        import hdfs
        import hdfs.client
        import requests
    except ImportError as missing:
        raise UsageError(f"{missing.name} is not installed, which hdfs:// needs: pip install 'dlapp[hdfs]'") from None
    import logging

    class Client(hdfs.Client):  # type: ignore[misc]  # its types are not published
        # The package follows a redirection to a DataNode by itself; see _redirection.
        _open2 = hdfs.client._Request("GET", allow_redirects=False)

        def resolve(self, hdfs_path: str) -> str:
            # The package's own would expand "#LATEST" in a name and take ".." and doubled slashes away.
            return hdfs_path

    # It would print what it also raises.
    logging.getLogger("hdfs.client").addHandler(logging.NullHandler())
    session = requests.Session()
    # No proxy of the environment and no .netrc: a cluster's addresses are inside it.
    session.trust_env = False
    session.params = {"delegation": place.token} if place.token else {"user.name": place.user}
    return Client(web, session=session, timeout=timeout_s)


def _ours(kind: str | None, message: object, where: str, address: str, user: str) -> DlappError:
    line = message.decode(errors="replace") if isinstance(message, bytes) else str(message)
    line = line.partition("\n")[0][:500]
    web = address.partition("?")[0]
    if kind is None:
        if line.startswith("Authentication failure"):
            return Denied(f"{web}: HDFS does not accept {user} (it asks for another authentication)")
        return Unreachable(f"{web}: answers, but does not speak WebHDFS ({shown(line[:80])})")
    if kind in _AGAIN:
        return Unreachable(f"{web}: {'is on standby' if kind == 'StandbyException' else line}")
    if kind == "FileNotFoundException":
        return NotFound(f"{where} is not there")
    if kind in _DENIED:
        return Denied(f"{where}: {line}")
    if kind in _NO_ROOM or "could only be written to 0 of" in line:
        return DiskFull(f"{where} cannot be written: {line}")
    if kind == "SafeModeException":
        return _Unreachable(f"{where}: HDFS is in safe mode and takes no changes until it leaves it")
    if kind == "FileAlreadyExistsException":
        return AlreadyThere(f"{where}: {line}", kind)
    return Refused(f"{where}: {line} ({kind})", kind)


def _status(said: Mapping[str, Any]) -> Status:
    return Status(
        name=str(said["pathSuffix"]),
        is_dir=said["type"] == "DIRECTORY",
        size_bytes=int(said["length"]),
        number=int(said["fileId"]),
        mode=int(said["permission"], 8) & 0o7777,
        mtime_ms=int(said["modificationTime"]),
        owner=str(said["owner"]),
        link=str(said["symlink"]) if said["type"] == "SYMLINK" else None,
    )


def _hosts(web: tuple[str, ...]) -> set[str]:
    return {one.partition("://")[2].partition("/")[0] for one in web}


def _address(host: str) -> str:
    """The address by which a NameNode knows the DataNode of a URL; its HTTP port says nothing to it."""
    import socket

    name = host.rpartition(":")[0] or host
    try:
        return socket.gethostbyname(name)
    except OSError:
        return name


def _never_sent(error: BaseException) -> bool:
    """Whether no connection came to be, so that the server cannot have seen the call."""
    import requests
    import urllib3

    if isinstance(error, requests.ConnectTimeout):
        return True
    reason = getattr(error.args[0], "reason", None) if error.args else None
    return isinstance(reason, urllib3.exceptions.NewConnectionError)


def _words(error: BaseException) -> str:
    """What happened, without the names of classes and addresses that requests wraps it in."""
    import requests

    inner: BaseException | None = error
    while inner is not None:
        if isinstance(inner, OSError) and inner.strerror and not isinstance(inner, requests.RequestException):
            return inner.strerror.lower()
        if isinstance(inner, TimeoutError):
            return "timed out"
        inner = inner.__cause__ or inner.__context__
    if isinstance(error, requests.Timeout):
        return "timed out"
    return "closed the connection in the middle of an answer"
