"""The calls of WebHDFS that dlapp makes, with failover and repetition; all of dlapp's ways to HDFS go through here.

A call goes from NameNode to NameNode until one serves it, in rounds with growing pauses, as long as our patience lasts.
Which failures are worth another try depends on what may have happened:

    nothing was sent, on standby, "retry"       any call again
    sent, and the answer was lost               a call that may be repeated; a rename looks at what became of it
    refused with another exception              no call: it is the answer

Paths are absolute and nothing in them is escaped. Where a path was looked at before, ``/.reserved/.inodes/<id>`` names
exactly what was seen, whatever it is called by now.

Content goes by way of a DataNode that the NameNode names. Any DataNode serves any file, as it asks the NameNode itself:
so small files, of which there are many, go straight to DataNodes that were named before, each call to the NameNode
saved; and where one fails that the NameNode still trusts, another one is asked.

Source: Hadoop's WebHDFS.md, FSDirRenameOp, WebHdfsHandler (of a DataNode); answers of 3.4.2.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from dlapp.errors import Denied, DlappError, NotFound
from dlapp.errors import Unreachable as _Unreachable
from dlapp.storage import DiskFull, HdfsPlace, shown
from dlapp.storage.http import PLAIN, TLS, Answer, Broken, Connections, Sink, Source, SourceShrank

CONNECT_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 60.0
"""A DataNode that syncs, or a NameNode in a long garbage collection, is silent for a while; a dead one is longer."""
PATIENCE_S = 60.0
"""How long a call is tried in all. A failover between two NameNodes takes 10 to 30 s."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 3.0
STRAIGHT_AFTER = 16
"""So many redirections are followed before small files go straight to DataNodes: by then some are known."""
NUMBERS = "/.reserved/.inodes"
"""Where HDFS has each file and directory by its number."""
_PLAIN = re.compile(r"[A-Za-z0-9_.~/-]*")
_MOST_KNOWN = 64
_MOST_DEAD_ENDS = 4
"""How often a DataNode that answers may end a file at the same byte; a block that none has will not come by waiting."""
_NO_NODE = "No active nodes contain this block"
_NO_NODE_YET = re.compile(r"Failed to find datanode\b.*\bexcludeDatanodes=null")
"""What a NameNode says that has just taken over, or started, and that no DataNode has told of itself; of one that was
told to leave DataNodes out it means those. Source: NamenodeWebHdfsMethods.redirectURI."""
_AGAIN = frozenset({"StandbyException", "RetriableException"})
_DENIED = frozenset({"AccessControlException", "SecurityException", "AuthorizationException"})
_NO_ROOM = ("QuotaExceededException", "DSQuotaExceededException", "NSQuotaExceededException")


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
        stranger_s: how long where no NameNode has answered yet, by whatever word: none is taking over from another,
            which would say that it is on standby; they are down, or not at these addresses. None: ``patience_s``.
    """

    def __init__(
        self,
        place: HdfsPlace,
        *,
        patience_s: float = PATIENCE_S,
        stranger_s: float | None = None,
        timeout_s: tuple[float, float] = (CONNECT_TIMEOUT_S, READ_TIMEOUT_S),
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.place = place
        self._patience_s, self._timeout_s = patience_s, timeout_s
        self._stranger_s = patience_s if stranger_s is None else stranger_s
        self._answered = False
        self._clock, self._sleep = clock, sleep
        self._connections = Connections(*timeout_s, place.ca)
        self._first = 0  # the NameNode that served last
        self._lock = threading.Lock()
        self._datanodes: list[str] = []  # addresses that redirections led to
        self._namenode_rpc = ""  # what a DataNode is told of where its NameNode is
        self._redirections = 0
        self._cut_off: set[int] = set()

    @contextlib.contextmanager
    def cut_off(self, threads: Collection[int]) -> Iterator[Callable[[], None]]:
        """End the calls of some threads, by their identifiers, and those that they begin in the block: Unreachable.

        What it gives breaks the connections that they use; to be called until they have ended.
        """
        self._cut_off |= set(threads)
        try:
            yield lambda: self._connections.cut(threads)
        finally:
            self._cut_off -= set(threads)

    def close(self) -> None:
        """Close the connections that are not in use."""
        self._connections.close()

    # ---- looking ----

    def status(self, path: str) -> Status | None:
        """What is at ``path``; None: nothing."""
        try:
            return _status(self._json("GETFILESTATUS", path)["FileStatus"])
        except NotFound:
            return None

    def children(self, path: str) -> list[Status]:
        """What is in a directory, sorted by name; of a file, the file with an empty name. Raises NotFound."""
        found = self._json("LISTSTATUS", path)["FileStatuses"]["FileStatus"]
        return sorted((_status(one) for one in found), key=lambda one: one.name)

    def check_readable(self, path: str) -> None:
        """Raises Denied: the user may not read the file. NotFound: it is gone."""
        self._call("CHECKACCESS", path, {"fsaction": "r--"})

    def free_bytes(self, path: str) -> int | None:
        """What the space quota of the directory ``path`` leaves; None: it has none. Raises NotFound."""
        said = self._json("GETCONTENTSUMMARY", path)["ContentSummary"]
        quota = int(said.get("spaceQuota", -1))
        return None if quota < 0 else max(0, quota - int(said["spaceConsumed"]))

    # ---- changing; each may be repeated ----

    def make_directory(self, path: str, mode: int = 0o755) -> None:
        """Make a directory with those above it; one that is there stays as it is. Raises AlreadyThere: a file is."""
        self._json("MKDIRS", path, method="PUT", permission=f"{mode:o}")

    def delete(self, path: str) -> None:
        """Delete a file or a directory with all that it holds; nothing there is no error."""
        self._delete(path, path)

    def clear(self, path: str, *, file: bool = False) -> None:
        """Delete what has this name, which is one that nobody renames, so that it can be written anew.

        It goes by its number: a call that was given up, and comes late, does not take what was written since.

        Args:
            file: only a file is to go. Raises DlappError: a directory is there.
        """
        found = self.status(path)
        if found is not None and found.is_dir and file:
            raise DlappError(f"{shown(self.place.location + path)} cannot be written: it is a directory")
        if found is None or self._delete(f"{NUMBERS}/{found.number}", path):
            return
        # One that is still there has a number that is not served, as behind a router.
        if (still := self.status(path)) and still.number == found.number:
            self._delete(path, path)

    def _delete(self, path: str, name: str) -> bool:
        """Whether anything was there; ``name`` is what it is called in words."""
        try:
            said = self._call("DELETE", path, {"recursive": "true"}, method="DELETE", reads=True, name=name)
        except NotFound:
            return False
        return bool(said.get("boolean"))

    def delete_if_empty(self, path: str) -> bool:
        """Delete an empty directory; whether nothing is there now."""
        try:
            self._json("DELETE", path, method="DELETE", recursive="false")
        except NotFound:
            return True
        except Refused:
            return False
        return True

    def set_mode(self, path: str, mode: int) -> None:
        """Set permission bits."""
        self._call("SETPERMISSION", path, {"permission": f"{mode:o}"}, method="PUT")

    def set_mtime(self, path: str, mtime_ms: int) -> None:
        """Set the modification time [ms since 1970]."""
        self._call("SETTIMES", path, {"modificationtime": str(mtime_ms), "accesstime": "-1"}, method="PUT")

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
                self._call(
                    "RENAME", old, {"destination": new, "renameoptions": options}, method="PUT", repeatable=False
                )
                return True
            except Unreachable as error:
                doubtful = doubtful or error.doubtful
                again(error)
            except NotFound:
                if doubtful and self.status(new) is not None:
                    return True
                raise
            except Refused as refused:
                # Not every "it is there" comes as FileAlreadyExistsException: a file onto a directory does not.
                there, moved = self.status(new), self.status(old) is None
                if there is not None and not moved:
                    return False
                if not isinstance(refused, AlreadyThere):
                    raise
                # Somebody else took one of them away since.
                if moved:
                    raise NotFound(f"{shown(self.place.location + old)} is not there") from refused
                again(Unreachable(str(refused)))
        raise AssertionError

    # ---- content ----

    def fetch(
        self, path: str, fd: int, offset: int, end: int, tell: Callable[[int], None], *, straight: bool = False
    ) -> None:
        """Bring the bytes from ``offset`` to ``end`` of a file to the same place of the open file ``fd``.

        It goes on where a connection broke, and with other DataNodes where one fails.

        Args:
            tell: told the number of bytes after each piece, and 0 before each try; what it raises ends the call.
            straight: it is a small file of many, for which the NameNode need not be asked.

        Raises:
            NotFound: it is gone.
            DlappError: it has fewer bytes than that, or HDFS has lost some.
            OSError: ``fd`` cannot be written.
        """
        at, dead_ends = offset, 0
        bad: set[str] = set()  # DataNodes that failed us, which the NameNode may not know yet
        for again in self._rounds(f"{shown(path)} cannot be read"):
            if at >= end:
                return
            tell(0)
            started = at
            try:
                asked = {"offset": str(at), "length": str(end - at)}
                where = self._datanode("OPEN", path, bad, straight=straight and not bad, **asked)
                at += self._at_datanode("GET", where, path, Sink(fd, at, end - at, tell)).received
                if at >= end:
                    return
                failed = _DataNodeFailed(where.server, "ended the file early", answered=True)
            except _DataNodeFailed as error:
                failed = error
                at += failed.received
            except Refused as refused:
                if _NO_NODE not in str(refused):
                    raise
                # They may be on their way: a DataNode that started again has not told yet what it has.
                again(Unreachable(str(refused)))
                continue
            bad.add(failed.server)
            dead_ends = 0 if at > started else dead_ends + failed.answered
            if failed.answered:
                self._check_length(path, end)
            if dead_ends >= _MOST_DEAD_ENDS:
                where_lost = f"{shown(self.place.location + path)} cannot be read from byte {at} on"
                raise DlappError(f"{where_lost}: {failed} (hdfs fsck says which blocks are lost)") from failed
            again(Unreachable(str(failed)), progress=at > started)

    def read_bytes(self, path: str, most: int = 256 << 20) -> bytes:
        """All of a small file. Raises NotFound; DlappError where it is larger than ``most`` or a directory."""
        for again in self._rounds(f"{shown(path)} cannot be read"):
            status = self.status(path)
            if status is None:
                raise NotFound(f"{shown(self.place.location + path)} is not there")
            if status.is_dir or status.size_bytes > most:
                raise DlappError(f"{shown(self.place.location + path)} is a directory, or larger than {most} bytes")
            if status.size_bytes == 0:
                return b""
            # By its name it could be another one by now, of which so many bytes are not all. In a snapshot it cannot,
            # and there the number leads to what has the name today.
            numbered = path if "/.snapshot/" in path else f"{NUMBERS}/{status.number}"
            try:
                return self._bytes_of(numbered, status.size_bytes)
            except NotFound:
                pass
            except Denied:
                self.check_readable(path)  # to say it of the name
                raise
            # One that was replaced is gone. One that has its name still has a number that is not served, as behind a
            # router. No number is used twice: who has the name before and after had it in between.
            if self.status(path) == status:
                with contextlib.suppress(NotFound):
                    content = self._bytes_of(path, status.size_bytes)
                    if self.status(path) == status:
                        return content
            again(Unreachable("it is another file each time"))
        raise AssertionError

    def _bytes_of(self, path: str, size_bytes: int) -> bytes:
        memory = os.memfd_create("dlapp-hdfs", os.MFD_CLOEXEC)
        try:
            self.fetch(path, memory, 0, size_bytes, _ignore)
            with open(memory, "rb", closefd=False) as file:
                file.seek(0)
                return file.read()
        finally:
            os.close(memory)

    def write(
        self,
        path: str,
        data: bytes | Source,
        mode: int = 0o644,
        *,
        parents: bool = True,
        straight: bool = False,
        tell: Callable[[int], None] | None = None,
    ) -> None:
        """Write a file, over one that is there; it is not whole before this returns, so the name is the caller's own.

        Args:
            data: the content; a try that failed begins again.
            parents: make the directories above that are not there.
            straight: as for `fetch`.
            tell: told 0 before each try.

        Raises:
            DlappError: the file that is the source became shorter.
        """
        bad: set[str] = set()
        dead_ends, tried = 0, False
        for again in self._rounds(f"{shown(path)} cannot be written"):
            (tell or _ignore)(0)
            try:
                # A DataNode may come late to a try that was given up. None replaces a file, so that it cannot take the
                # name from a later one; what an earlier one left goes first.
                if tried:
                    self.clear(path, file=True)
                tried = True
                asked = {"overwrite": "false", "createparent": str(parents).lower(), "permission": f"{mode:o}"}
                where = self._datanode("CREATE", path, bad, straight=straight and not bad, **asked)
                self._at_datanode("PUT", where, path, data)
                return
            except SourceShrank:
                raise DlappError(f"the source of {shown(path)} became shorter while it was stored") from None
            except _DataNodeFailed as failed:
                if not isinstance(failed.refused, AlreadyThere):
                    bad.add(failed.server)
                    dead_ends += failed.answered
                if dead_ends >= _MOST_DEAD_ENDS:
                    raise (
                        failed.refused or DlappError(f"{shown(self.place.location + path)} cannot be written: {failed}")
                    ) from failed
                again(Unreachable(str(failed), doubtful=True))

    # ---- DataNodes ----

    def _datanode(self, operation: str, path: str, bad: set[str], *, straight: bool, **parameters: str) -> _Where:
        """Which DataNode to ask for content, and how; not one of ``bad`` if there is another."""
        if straight and self.place.login.hdfs_token is None and (server := self._next_known()):
            query = {"op": operation, **self.place.login.query, "namenoderpcaddress": self._namenode_rpc}
            created = {"createflag": ""} if operation == "CREATE" else {}
            return _Where(server, _encoded(query | created | parameters))
        method = "PUT" if operation == "CREATE" else "GET"
        excluded = {"excludedatanodes": ",".join(sorted(_address(one) for one in bad))} if bad else {}
        try:
            found = self._call(operation, path, parameters | excluded, method=method, redirected=True)
        except (Refused, DiskFull):
            if not bad:
                raise
            # No DataNode is left, says the NameNode; one that failed is better than none.
            found = self._call(operation, path, parameters, method=method, redirected=True)
        where: _Where = found
        with self._lock:
            self._redirections += 1
            if where.server not in self._datanodes and where.server not in bad:
                self._datanodes = [*self._datanodes[-_MOST_KNOWN:], where.server]
            for part in where.query.split("&"):
                if part.startswith("namenoderpcaddress="):
                    self._namenode_rpc = unquote(part.partition("=")[2])
            others = [one for one in self._datanodes if one not in bad]
        if where.server in bad and others:
            # The NameNode may know several on one machine, or takes a while to see that one is dead.
            where = where._replace(server=random.choice(others))
        return where

    def _next_known(self) -> str | None:
        """Every DataNode that is known in its turn; None: too few were named yet."""
        with self._lock:
            if self._redirections < STRAIGHT_AFTER or not self._datanodes or not self._namenode_rpc:
                return None
            self._datanodes.append(self._datanodes.pop(0))
            return self._datanodes[-1]

    def _forget_datanode(self, server: str) -> None:
        with self._lock:
            self._datanodes = [one for one in self._datanodes if one != server]

    def _at_datanode(
        self, method: str, where: _Where, path: str, content: bytes | Source | Sink | None = None
    ) -> Answer:
        """Ask a DataNode. Raises _DataNodeFailed where another one might do."""
        sink = content if isinstance(content, Sink) else None
        body = None if isinstance(content, Sink) else content
        host = where.server.partition("://")[2]
        try:
            target = f"/webhdfs/v1{_quoted(path)}?{where.query}"
            answer = self._connections.ask(method, where.server, target, body, sink=sink)
        except Broken as broken:
            if broken.lasting:
                raise _lasting(where.server, broken) from broken
            self._forget_datanode(where.server)
            raise _DataNodeFailed(
                where.server, f"{host} {broken}", received=broken.received, answered=broken.answered
            ) from broken
        if answer.good:
            return answer
        refused = self._refusal(answer, path, where.server)
        if isinstance(refused, (Refused, Unreachable)) or (isinstance(refused, DiskFull) and not _is_quota(refused)):
            raise _DataNodeFailed(where.server, f"{host}: {refused}", answered=True, refused=refused) from refused
        raise refused

    def _check_length(self, path: str, end: int) -> None:
        status = self.status(path)
        if status is None:
            raise NotFound(f"{shown(self.place.location + path)} is gone")
        if status.size_bytes < end:
            raise DlappError(f"{shown(self.place.location + path)} changed while it was read: it had {end} bytes")

    # ---- NameNodes ----

    def _json(self, operation: str, path: str, *, method: str = "GET", **parameters: str) -> dict[str, Any]:
        found: dict[str, Any] = self._call(operation, path, parameters, method=method, reads=True)
        return found

    def _call(
        self,
        operation: str,
        path: str,
        parameters: Mapping[str, str] | None = None,
        *,
        method: str = "GET",
        repeatable: bool = True,
        reads: bool = False,
        redirected: bool = False,
        name: str = "",
    ) -> Any:
        """One call to the NameNodes: its JSON with ``reads``, `_Where` with ``redirected``, else nothing.

        Args:
            name: what ``path`` is called in words, where that is another.
        """
        who = self.place.login.webhdfs_query
        target = f"/webhdfs/v1{_quoted(path)}?{_encoded({'op': operation, **who, **(parameters or {})})}"
        for again in self._rounds(shown(self.place.location + (name or path))):
            said: list[str] = []
            for number in self._order():
                web = self.place.web[number]
                try:
                    answer = self._asked(method, web, target)
                    if not (answer.good or (redirected and answer.status == 307)):
                        raise self._refusal(answer, name or path, web)
                    found = _object(answer, web) if reads else _redirection(answer, web) if redirected else None
                    self._first, self._answered = number, True
                    return found
                except Unreachable as error:
                    if error.doubtful and not repeatable:
                        raise
                    said.append(str(error))
            again(Unreachable("; ".join(said)))
        raise AssertionError

    def _asked(self, method: str, web: str, target: str) -> Answer:
        try:
            return self._connections.ask(method, web, target)
        except Broken as broken:
            if broken.lasting:
                raise _lasting(web, broken) from broken
            raise Unreachable(f"{web.partition('://')[2]} {broken}", doubtful=broken.sent) from broken

    def _refusal(self, answer: Answer, path: str, server: str) -> DlappError:
        try:
            said = json.loads(answer.body)["RemoteException"]
            kind, message = str(said["exception"]), str(said["message"])
        except (ValueError, KeyError, TypeError):
            if answer.status == 401:
                user = self.place.login.user
                return Denied(f"{server}: HDFS does not accept {user} (it asks for another authentication)")
            return _not_webhdfs(server)
        self._answered = True
        return _ours(kind, message, shown(self.place.location + path), server)

    def _order(self) -> list[int]:
        count, first = len(self.place.web), self._first
        return [(first + place) % count for place in range(count)]

    def _rounds(self, what: str) -> Iterator[Callable[..., None]]:
        """Rounds of one undertaking: each ends with ``again(why)``, which waits or, out of patience, raises."""
        began = self._clock()
        pause, count = FIRST_PAUSE_S, 0

        def again(why: Unreachable, *, progress: bool = False) -> None:
            nonlocal began, pause, count
            if threading.get_ident() in self._cut_off:
                raise Unreachable(f"{what}: given up", doubtful=why.doubtful) from why
            count += 1
            if progress:
                began, pause = self._clock(), FIRST_PAUSE_S
            if self._clock() - began + pause > (self._patience_s if self._answered else self._stranger_s):
                tries = f"tried {count} times in {self._clock() - began:.0f} s"
                raise Unreachable(f"{what}: {why} ({tries})", doubtful=why.doubtful) from why
            self._sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, LONGEST_PAUSE_S)

        while True:
            yield again


class _Where(NamedTuple):
    """A DataNode's web address, and the query that it is to be asked with."""

    server: str
    query: str


class _DataNodeFailed(Exception):
    """A DataNode did not do what it was asked.

    Args:
        received: bytes that came before.
        answered: it lives, and would not.
        refused: what it said, if anything.
    """

    def __init__(
        self,
        server: str,
        words: str,
        *,
        received: int = 0,
        answered: bool = False,
        refused: DlappError | None = None,
    ) -> None:
        super().__init__(words)
        self.server, self.received, self.answered, self.refused = server, received, answered, refused


def _quoted(text: str, safe: str = "/") -> str:
    """A path, or a value, as an address can have it."""
    # Usually there is nothing to quote, and urllib takes its time to find that out.
    return text if _PLAIN.fullmatch(text) else quote(text, safe)


def _encoded(parameters: Mapping[str, str]) -> str:
    return "&".join(f"{name}={_quoted(value, '')}" for name, value in parameters.items())


def _object(answer: Answer, web: str) -> dict[str, Any]:
    """The object that an answer holds."""
    try:
        found = json.loads(answer.body)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise _not_webhdfs(web)
    return found


def _redirection(answer: Answer, web: str) -> _Where:
    """The DataNode that an answer leads to.

    Only its address and the query count: Java's URI normalizes text (NFC), so the NameNode changes paths on the way. A
    name that came from a Mac, say, would be written, and looked for, under another name.
    """
    scheme, _, rest = answer.headers.get("location", "").partition("://")
    host, _, _ = rest.partition("/")
    if not host:
        raise _not_webhdfs(web)
    return _Where(f"{scheme}://{host}", rest.partition("?")[2])


def _not_webhdfs(server: str) -> Unreachable:
    return Unreachable(f"{server.partition('://')[2]} answers, but does not speak WebHDFS", doubtful=True)


def _lasting(server: str, broken: Broken) -> _Unreachable:
    """Not the Unreachable that is tried again."""
    policy = {PLAIN: "HTTP_ONLY", TLS: "HTTPS_ONLY"}.get(str(broken))
    mend = f"set dfs.http.policy to {policy}" if policy else "SSL_CERT_FILE names the file of your cluster's CA"
    return _Unreachable(f"{server} {broken}; {mend}")


def _is_quota(refused: DiskFull) -> bool:
    return "quota" in str(refused).lower()


def _ours(kind: str, message: str, where: str, server: str) -> DlappError:
    line = message.partition("\n")[0][:500]
    if kind in _AGAIN:
        return Unreachable(f"{server.partition('://')[2]} {'is on standby' if kind == 'StandbyException' else line}")
    if _NO_NODE_YET.match(line):
        return Unreachable(f"{server.partition('://')[2]} knows of no DataNode that lives")
    if kind == "FileNotFoundException":
        return NotFound(f"{where} is not there")
    if kind in _DENIED:
        return Denied(f"{where}: {line}")
    if kind in _NO_ROOM or "could only be written to 0 of" in line:
        return DiskFull(f"{where} cannot be written: {line}")
    if kind == "SafeModeException":
        return _Unreachable(f"{where}: HDFS is in safe mode and takes no changes until it leaves it")
    if kind in ("FileAlreadyExistsException", "AlreadyBeingCreatedException"):
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


def _address(server: str) -> str:
    """The address by which a NameNode knows the DataNode of a URL; its HTTP port says nothing to it."""
    import socket

    name = server.partition("://")[2].rpartition(":")[0]
    try:
        return socket.gethostbyname(name)
    except OSError:
        return name


def _ignore(_count: int) -> None:
    pass
