"""WebHDFS calls with failover and retries; `dlapp.storage.hdfs.native` makes them by HDFS's own protocols if possible.

A call tries one NameNode after the other until one serves it, in rounds with growing pauses, for at most `patience_s`.
Whether a failed call is retried depends on what may have happened:

    nothing was sent, on standby, "retry"       any call again
    sent, and the answer was lost               a call that may be repeated; a rename reads its result
    refused with another exception              no call: it is the answer

Paths are absolute and not escaped. After a path was checked, ``/.reserved/.inodes/<id>`` addresses exactly the inode
that was found, even if it is renamed. That works on a NameNode. A router of several nameservices resolves such a path
in its default one, where the id belongs to another inode, and a gateway may do anything. So inode ids are used only if
the server identifies itself as a NameNode (`WebHdfs.has_inode_paths`); otherwise names are used.

Of several NameNodes only the active one is read: an observer, and with ``dfs.ha.allow.stale.reads`` a standby, may
return stale data. Its state (``/jmx``, else ``/isActive``) is requested before it is read, after each failure, and
when its answer is older than `_ROLE_HOLDS_S`; one that does not report a state is read.

Content is transferred by a DataNode that the NameNode names. Any DataNode can serve any file, since it asks the
NameNode itself. So the many small files are requested directly from DataNodes that were named before, which saves a
call to the NameNode for each; and if a DataNode fails that the NameNode still trusts, another one is tried.

Source: Hadoop's WebHDFS.md, FSDirRenameOp, WebHdfsHandler (of a DataNode), MountTableResolver.lookupLocation,
NameNode.allowStaleReads, IsActiveServlet, NamenodeBeanMetrics (a router's copy of the NameNode's bean), RBFMetrics;
answers of 3.4.2.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, unquote

from dlapp.errors import Denied, DlappError, NotFound
from dlapp.errors import Unreachable as _Unreachable
from dlapp.locations import HdfsPlace, shown
from dlapp.net.http import (
    MAX_BODY_BYTES,
    HttpClient,
    HttpResponse,
    IncompleteResponse,
    RequestBody,
    ResponseSink,
    SourceShrank,
    split_url,
)
from dlapp.storage.values import DiskFull, ignore
from dlapp.system.clock import backoff_s
from dlapp.system.files import UntrustedFile, is_plain_name, json_object
from dlapp.system.text import human_size
from dlapp.system.waits import Wait

T = TypeVar("T")

CONNECT_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 60.0
"""A DataNode that syncs, or a NameNode in a long garbage collection, is silent for a while; a dead one is longer."""
PATIENCE_S = 60.0
"""Total time limit of a call with its retries. A failover between two NameNodes takes 10 to 30 s."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 3.0
DIRECT_AFTER = 16
"""Number of redirections after which small files are sent directly to DataNodes: by then some are known."""
INODES = "/.reserved/.inodes"
"""Path below which HDFS has each file and directory by its inode number."""
_STATUS_OF_NAMENODE = "/jmx?qry=Hadoop:service=NameNode,name=NameNodeStatus"
_STATE_OF_NAMESYSTEM = "/jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState"
_NAMENODE = "org.apache.hadoop.hdfs.server.namenode.NameNode"
"""Class behind that bean at a NameNode; at a router it is another class, and a gateway has no such bean."""
_MOUNTS = "/jmx?get=Hadoop:service=Router,name=FederationState::MountTable"
_IS_ACTIVE = "/isActive"
_ROLE_HOLDS_S = 5.0
"""How long the reported role of one of several NameNodes is cached: an open connection does not show a failover."""
MAX_JSON_BYTES = 1 << 20
"""An answer that is no listing [bytes]."""
_MAX_LENGTH = 1 << 50
"""Maximum length of a file; the lengths of an input are added up, and divided into ranges."""
_MODE = re.compile("[0-7]{1,4}")
_RIGHTS = ("---", "--x", "-w-", "-wx", "r--", "r-x", "rw-", "rwx")
_PLAIN = re.compile(r"[A-Za-z0-9_.~/-]*")
_MAX_KNOWN_DATANODES = 64
MAX_DEAD_ENDS = 4
"""How often a responding DataNode may end a file at the same byte; if no DataNode has a block, waiting does not
help."""
_NO_NODE = "No active nodes contain this block"
_NO_NODE_YET = re.compile(r"Failed to find datanode\b.*\bexcludeDatanodes=null")
"""Message of a NameNode that has just become active, or started, and has no report of a DataNode yet; also if all
DataNodes have reported too little space for a block. If a request excludes DataNodes, the message is about these.
Source: NamenodeWebHdfsMethods.redirectURI; seen with DataNodes whose disks are full."""
_NOT_ACTIVE: Mapping[str, str] = {
    "StandbyException": "is on standby",
    "ObserverRetryOnActiveException": "is an observer",
}
"""Exceptions of a NameNode that is not active, with their texts; the second one is thrown for writes."""
_NOT_REACHED = frozenset(
    {"ConnectException", "ConnectTimeoutException", "NoRouteToHostException", "SocketTimeoutException"}
)
"""Exceptions of a server that cannot reach another one: the KMS of an encryption zone, or a NameNode behind a
router."""
_DENIED = frozenset({"AccessControlException", "SecurityException", "AuthorizationException"})
_QUOTA = re.compile(
    r"The (NameSpace|DiskSpace) quota (?:\(directories and files\) )?of (?:directory )?(\S{1,1000}) is exceeded: "
    r"quota ?= ?(\d{1,20})\b.{0,60}?(?:file count|diskspace consumed) ?= ?(\d{1,20})\b"
)
"""Source: Hadoop 2.6 to 3.4, NSQuotaExceededException and DSQuotaExceededException.getMessage."""
_LIMITS = frozenset({"MaxDirectoryItemsExceededException", "PathComponentTooLongException"})
"""Exceptions of the NameNode that each DataNode passes on. Source: FSLimitException."""
_NO_ROOM = ("QuotaExceededException", "DSQuotaExceededException", "NSQuotaExceededException")


class HdfsUnreachable(_Unreachable):
    """A call that no NameNode, or DataNode, answered; ``doubtful``: it may have been executed."""

    def __init__(self, message: str, *, doubtful: bool = False) -> None:
        super().__init__(message)
        self.doubtful = doubtful


class DataNodeUnreachable(HdfsUnreachable):
    """A call that a NameNode answered, but none of the DataNodes that it named."""


class HdfsRefused(DlappError):
    """A Java exception of HDFS without a class of its own here; ``java_class`` is its short name."""

    def __init__(self, message: str, java_class: str) -> None:
        super().__init__(message)
        self.java_class = java_class


class DataNodeRefused(HdfsRefused):
    """Refusal by several DataNodes that should write a file; it may concern them or the others of the pipeline."""


class AlreadyThere(HdfsRefused):
    """A new entry whose name exists already."""


class WrongAnswer(DlappError):
    """An invalid answer of a NameNode; nothing of it is used."""


class ServerRole(NamedTuple):
    """Role of a server as it reports it; unknown without a valid answer.

    Args:
        is_namenode: it is a NameNode, not a router or gateway.
        state: ``active``, ``standby``, ``observer`` or another one; empty if unknown.
    """

    is_namenode: bool = False
    state: str = ""


class FileStatus(NamedTuple):
    """Status of a file or directory on HDFS.

    Args:
        name: its last path component; empty if requested by its path.
        inode_id: its number, which a rename does not change and which is never reused.
        mode: permission bits.
        mtime_ms: modification time [ms since 1970].
        link: target of a symbolic link; None if it is not one.
        group: empty if the server does not report it.
        encrypted: whether it is in an encryption zone.
        has_acl: whether it has an access control list.
        storage_policy: id of the effective storage policy; 0 if none is set.
        ec_policy: name of the effective erasure coding policy; empty if none; ``?`` for one that the server does not
            name.
        replication: configured number of replicas; 0 if it is not a file, or has an erasure coding policy.
    """

    name: str
    is_dir: bool
    size_bytes: int
    inode_id: int
    mode: int
    mtime_ms: int
    owner: str
    link: str | None = None
    group: str = ""
    encrypted: bool = False
    has_acl: bool = False
    storage_policy: int = 0
    ec_policy: str = ""
    replication: int = 0


class WebHdfs:
    """One user's calls to the NameNodes of one HDFS. Thread-safe.

    Args:
        patience_s: total time for which one call is retried; transfers of data may take longer while they make
            progress.
        first_contact_timeout_s: the same before any NameNode has answered in any way: then no failover is in progress,
            which a standby would report; the NameNodes are down, or not at these addresses. None for ``patience_s``.
    """

    parallel_large_reads = 8
    """Ranges of large files on their way at a time."""

    def __init__(
        self,
        place: HdfsPlace,
        *,
        patience_s: float = PATIENCE_S,
        first_contact_timeout_s: float | None = None,
        timeout_s: tuple[float, float] = (CONNECT_TIMEOUT_S, READ_TIMEOUT_S),
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.place = place
        self._patience_s, self._timeout_s = patience_s, timeout_s
        self._first_contact_timeout_s = patience_s if first_contact_timeout_s is None else first_contact_timeout_s
        self._answered = False
        self._clock, self._sleep = clock, sleep
        self._connections = HttpClient(*timeout_s, place.ca, place.certificates, what="HDFS")
        self._first = 0  # the NameNode that served last
        # By web address: those that have reported it since they last failed, with the time.
        self._roles: dict[str, tuple[float, ServerRole]] = {}
        self._lock = threading.Lock()
        self._datanodes: list[str] = []  # addresses from redirects
        self._namenode_rpc = ""  # passes the address of its NameNode to a DataNode
        self._redirections = 0
        self._cut_off: set[int] = set()

    @contextlib.contextmanager
    def abort_calls(self, threads: Collection[int]) -> Iterator[Callable[[], None]]:
        """Abort the calls of some threads (idents), and those that they start in the block, with Unreachable.

        The result breaks the connections that they use; call it until they have ended.
        """
        self._cut_off |= set(threads)
        try:
            yield lambda: self._connections.abort(threads)
        finally:
            self._cut_off -= set(threads)

    def close(self) -> None:
        """Close idle connections."""
        self._connections.close()

    # ---- reading metadata ----

    def status(self, path: str) -> FileStatus | None:
        """Return the status of ``path``; None if it does not exist."""
        try:
            return parse_status(self._json("GETFILESTATUS", path).get("FileStatus"))
        except NotFound:
            return None
        except WrongAnswer as error:
            raise WrongAnswer(f"{shown(self.place.location + path)}: {error}") from error

    def children(self, path: str, *, located: bool = False) -> list[FileStatus]:
        """Return the entries of a directory, sorted by name; of a file, the file with an empty name. Raises NotFound.

        Args:
            located: whether its files will be read. (Ignored here; the native client also gets their block locations.)
        """
        try:
            return parse_listing(self._json("LISTSTATUS", path, max_bytes=MAX_BODY_BYTES))
        except WrongAnswer as error:
            raise WrongAnswer(f"{shown(self.place.location + path)}: {error}") from error

    def check_readable(self, path: str) -> None:
        """Raise Denied if the user may not read the file, NotFound if it does not exist."""
        self._check_access(path, 4)

    def _check_access(self, path: str, rights: int) -> None:
        """Raise Denied if the user lacks a right (bits: 4 read, 2 write, 1 execute), NotFound if it does not exist."""
        self._call("CHECKACCESS", path, {"fsaction": _RIGHTS[rights]})

    def lacks(self, path: str) -> bool | None:
        """Return whether a directory that the user can read has no ``path``, according to the active NameNode.

        None if unknown. No other server is asked: a standby, an observer or a router. One in safe mode may not know all
        files.

        Raises:
            DlappError: the NameNode denies access or does not answer, or the directory does not exist.
        """
        with contextlib.suppress(HdfsUnreachable):
            if self._knows_all_files():
                if self.status(path) is not None:
                    return False
                self._check_access(path.rpartition("/")[0] or "/", 5)
                return True
        return None

    def _knows_all_files(self) -> bool:
        """Return whether an active NameNode, which is used next, is out of safe mode."""
        for number in self._order():
            web = self.place.web[number]
            self._roles.pop(web, None)  # it may have been active
            with contextlib.suppress(HdfsUnreachable):
                if self._role(web) == ServerRole(is_namenode=True, state="active"):
                    answer = self._request("GET", web, _STATE_OF_NAMESYSTEM, MAX_JSON_BYTES)
                    self._first = number
                    return answer.good and is_operational(answer.body)
        return False

    def home(self) -> str:
        """Return the path of the user's home directory."""
        path = self._json("GETHOMEDIRECTORY", "/").get("Path")
        if not isinstance(path, str):
            raise WrongAnswer(f"{self.place.location}: the NameNode sent no home directory")
        return path

    # ---- changes; all are idempotent ----

    def has_inode_paths(self) -> bool:
        """Return whether paths of inode ids below `INODES` work: the server is a NameNode."""
        return self._query_any(lambda web: self._role(web).is_namenode)

    def _query_any(self, query: Callable[[str], T]) -> T:
        """Return the first server's answer. Raises HdfsUnreachable: none answered in time."""
        for retry in self._attempts(self.place.location):
            said = []
            for number in self._order():
                try:
                    return query(self.place.web[number])
                except HdfsUnreachable as error:
                    said.append(str(error))
            retry(HdfsUnreachable("; ".join(said)))
        raise AssertionError

    def _role(self, web: str) -> ServerRole:
        """Return the role that a server reports, or has reported since it last failed. Raises HdfsUnreachable."""
        several = len(self.place.web) > 1
        asked, role = self._roles.get(web, (0.0, None))
        if role is None or (several and self._clock() - asked > _ROLE_HOLDS_S):
            asked = self._clock()
            answer = self._request("GET", web, _STATUS_OF_NAMENODE, MAX_JSON_BYTES)
            role = parse_role(answer.body) if answer.good else ServerRole()
            if several and not role.state:
                status = self._request("GET", web, _IS_ACTIVE, MAX_JSON_BYTES).status
                role = role._replace(state={200: "active", 405: "not active"}.get(status, ""))
            self._answered = self._answered or role.is_namenode
            self._roles[web] = asked, role
        return role

    def _check_active(self, web: str) -> None:
        """Raise HdfsUnreachable if the server is one of several, and reports that it is not the active one."""
        if len(self.place.web) > 1 and (state := self._role(web).state) not in ("active", ""):
            words = {"observer": "an observer, whose answers may be old", "standby": "on standby"}.get(state, state)
            raise HdfsUnreachable(f"{web.partition('://')[2]} is {words}")

    def mounts(self) -> dict[str, int]:
        """Return the mount points of a router with the number of destinations of each; empty for a NameNode.

        A server without an accessible ``/jmx`` is assumed to have no mount points.

        Raises:
            HdfsUnreachable: no server answered.
            WrongAnswer: a router's mount table is invalid.
        """
        if self.has_inode_paths():
            return {}

        def query(web: str) -> HttpResponse:
            answer = self._request("GET", web, _MOUNTS, MAX_BODY_BYTES)
            if answer.status >= 500:
                raise HdfsUnreachable(f"{web.partition('://')[2]} does not say its mount points (HTTP {answer.status})")
            return answer

        answer = self._query_any(query)
        return parse_mounts(answer.body) if answer.good else {}

    def make_directory(self, path: str, mode: int = 0o755) -> None:
        """Create a directory and its parents; an existing one stays unchanged. Raises AlreadyThere: it is a file."""
        self._json("MKDIRS", path, method="PUT", permission=f"{mode:o}")

    def delete(self, path: str) -> None:
        """Delete a file or a directory tree; a missing one is no error."""
        self._delete(path, path)

    def clear(self, path: str, *, file: bool = False) -> None:
        """Delete the entry of a name that nobody else renames, so that it can be rewritten.

        It is addressed by its inode id, if available: a late, abandoned call does not delete what was written since.

        Args:
            file: delete only a file. Raises DlappError: a directory has the name.
        """
        found = self.status(path)
        if found is not None and found.is_dir and file:
            raise DlappError(f"{shown(self.place.location + path)} cannot be written: it is a directory")
        if found is not None:
            self.delete_found(found, path)

    def delete_found(self, found: FileStatus, path: str, *, recursive: bool = True) -> None:
        """Delete an entry that was found at a path; by inode id only if its whole status is unchanged."""
        numbered = f"{INODES}/{found.inode_id}"
        if (
            self.has_inode_paths()
            and self.status(numbered) == found
            and self._delete(numbered, path, recursive=recursive)
        ):
            return
        # Inode ids are not supported, or it has changed since.
        if (still := self.status(path)) and still.inode_id == found.inode_id:
            self._delete(path, path, recursive=recursive)

    def _delete(self, path: str, name: str, *, recursive: bool = True) -> bool:
        """Delete an entry. Return True if it existed; ``name`` is used in messages."""
        how = {"recursive": str(recursive).lower()}
        try:
            said = self._call("DELETE", path, how, method="DELETE", reads=True, name=name)
        except NotFound:
            return False
        return bool(said.get("boolean"))

    def delete_if_empty(self, path: str) -> bool:
        """Delete an empty directory, and never a file; return whether the path is free now."""
        found = self.status(path)
        if found is None:
            return True
        if not found.is_dir:
            return False
        try:
            self.delete_found(found, path, recursive=False)
        except HdfsRefused:
            return False
        return True

    def set_mode(self, path: str, mode: int) -> None:
        """Set the permission bits."""
        self._call("SETPERMISSION", path, {"permission": f"{mode:o}"}, method="PUT")

    def set_replication(self, path: str, count: int) -> None:
        """Set the number of replicas of a file's blocks; the NameNode has them copied asynchronously.

        Raises:
            HdfsRefused: more than ``dfs.replication.max`` of the NameNode.
            DiskFull: more than a space quota allows.
        """
        self._call("SETREPLICATION", path, {"replication": str(count)}, method="PUT")

    def live_datanodes(self) -> int | None:
        """Return how many live DataNodes the NameNode reports; None if it does not."""
        for number in self._order():
            with contextlib.suppress(HdfsUnreachable):
                answer = self._request("GET", self.place.web[number], _STATE_OF_NAMESYSTEM, MAX_JSON_BYTES)
                found = _bean(answer.body).get("NumLiveDataNodes") if answer.good else None
                if type(found) is int and found > 0:
                    return found
        return None

    def set_group(self, path: str, group: str) -> None:
        """Set the group. Raises Denied: the user is not a member."""
        self._call("SETOWNER", path, {"group": group}, method="PUT")

    def copy_acl(self, path: str, to: str) -> None:
        """Apply the permissions and the access control list of ``path``, which has one, to ``to``.

        Source: AclStatus (its entries lack those that the permissions stand for), FileSystem.setAcl.
        """
        entries, status = self._acl(path), self.status(path)
        if status is None:
            raise WrongAnswer(f"{shown(self.place.location + path)} is gone")
        names = ("user::", "mask::", "other::")
        base = [name + _RIGHTS[status.mode >> shift & 7] for name, shift in zip(names, (6, 3, 0), strict=True)]
        self.set_acl(to, [*base, *entries])

    def _acl(self, path: str) -> list[str]:
        said = self._json("GETACLSTATUS", path).get("AclStatus")
        entries = said.get("entries") if isinstance(said, dict) else None
        if not isinstance(entries, list) or not all(isinstance(one, str) for one in entries):
            raise WrongAnswer(f"{shown(self.place.location + path)}: the NameNode sent no access control list")
        return entries

    def set_acl(self, path: str, entries: Sequence[str]) -> None:
        """Replace the access control list by ``entries``.

        Raises:
            HdfsRefused: the NameNode has ACLs disabled (``dfs.namenode.acls.enabled``).
        """
        self._call("SETACL", path, {"aclspec": ",".join(entries)}, method="PUT")

    def copy_storage_policy(self, path: str, to: str) -> None:
        """Apply the effective storage policy of ``path`` to ``to``."""
        self._set_storage_policy(to, self._storage_policy(path))

    def _storage_policy(self, path: str) -> str:
        said = self._json("GETSTORAGEPOLICY", path).get("BlockStoragePolicy")
        name = said.get("name") if isinstance(said, dict) else None
        if not isinstance(name, str):
            raise WrongAnswer(f"{shown(self.place.location + path)}: the NameNode sent no storage policy")
        return name

    def _set_storage_policy(self, path: str, name: str) -> None:
        self._call("SETSTORAGEPOLICY", path, {"storagepolicy": name}, method="PUT")

    def set_ec_policy(self, path: str, name: str) -> None:
        """Set the erasure coding policy for new files in a directory."""
        self._call("SETECPOLICY", path, {"ecpolicy": name}, method="PUT")

    def has_quota(self, path: str) -> bool:
        """Return whether a directory has its own quota, of names, space or a storage type."""
        try:
            said = self._json("GETQUOTAUSAGE", path).get("QuotaUsage")
        except HdfsRefused:  # before 3.0
            said = self._json("GETCONTENTSUMMARY", path).get("ContentSummary")
        if not isinstance(said, dict):
            return False
        return any(said.get(key, -1) != -1 for key in ("quota", "spaceQuota")) or bool(said.get("typeQuota"))

    def with_snapshots(self, path: str) -> str:
        """Return a directory at or below ``path`` that has snapshots; empty if none is known.

        Users who are not superusers get their own directories only; before 3.1 only ``path`` is checked.
        """
        with contextlib.suppress(NotFound, HdfsRefused):
            if self.children(f"{path}/.snapshot"):
                return path
        with contextlib.suppress(HdfsRefused):
            for one in self._directories_with_snapshots():
                if one.startswith(f"{path}/"):
                    return one
        return ""

    def _directories_with_snapshots(self) -> list[str]:
        return parse_snapshottable(self._json("GETSNAPSHOTTABLEDIRECTORYLIST", "/", max_bytes=MAX_BODY_BYTES))

    def set_attribute(self, path: str, name: str, value: bytes) -> None:
        """Set an extended attribute (``user.NAME``). Source: FileSystem.setXAttr, XAttrCodec (``0x``: hex digits)."""
        parameters = {"xattr.name": name, "xattr.value": f"0x{value.hex()}", "flag": "CREATE,REPLACE"}
        self._call("SETXATTR", path, parameters, method="PUT")

    def attribute(self, path: str, name: str) -> bytes | None:
        """Return the value of an extended attribute; None if there is none of this name."""
        for one in self._json("GETXATTRS", path, encoding="hex").get("XAttrs", ()):
            if one["name"] == name:
                return bytes.fromhex(str(one["value"]).removeprefix("0x"))
        return None

    def set_mtime(self, path: str, mtime_ms: int) -> None:
        """Set the modification time [ms since 1970]; HDFS has none before 1970, and gets 0 instead."""
        self._call("SETTIMES", path, {"modificationtime": str(max(mtime_ms, 0)), "accesstime": "-1"}, method="PUT")

    def rename(self, old: str, new: str, *, overwrite: bool = False) -> bool:
        """Rename ``old`` to ``new``, which must not exist; return False if it does, without changing anything.

        With ``overwrite`` an existing file or empty directory is replaced.

        The NameNode checks and renames in one operation, so nothing is moved into an existing directory. A gateway that
        ignores the options (HttpFS) would do so; there ``new`` is checked before, and ``old`` afterwards, since such a
        rename may do nothing without an exception. ``old`` must be exclusive to the caller: if it is gone after a lost
        answer, the call was executed.

        Raises:
            NotFound: ``old``, or the parent of ``new``, does not exist.
            HdfsRefused: a gateway did nothing.
        """
        is_namenode = self.has_inode_paths()
        if not overwrite and not is_namenode and self.status(new) is not None:
            return False
        doubtful, rename = False, self._rename_call(old, new, overwrite=overwrite)
        for retry in self._attempts(f"{shown(old)} cannot be renamed to {shown(new)}"):
            try:
                rename()
                doubtful = True  # if the next answer is lost
                if not is_namenode and self.status(old) is not None:
                    raise HdfsRefused(f"{shown(self.place.location + old)} was not renamed to {shown(new)}", "")
                return True
            except HdfsUnreachable as error:
                doubtful = doubtful or error.doubtful
                retry(error)
            except NotFound:
                if doubtful and self.status(new) is not None:
                    return True
                raise
            except HdfsRefused as refused:
                # Not every existing destination raises FileAlreadyExistsException: renaming a file onto a directory
                # does not.
                there, moved = self.status(new), self.status(old) is None
                if there is not None and not moved:
                    return False
                if not isinstance(refused, AlreadyThere):
                    raise
                # Another client removed one of them since.
                if moved:
                    raise NotFound(f"{shown(self.place.location + old)} is not there") from refused
                retry(HdfsUnreachable(str(refused)))
        raise AssertionError

    def _rename_call(self, old: str, new: str, *, overwrite: bool) -> Callable[[], None]:
        """Return a function that calls the rename and retries it; it raises HdfsUnreachable if the result is
        doubtful.
        """
        # renameoptions selects the rename that refuses; without it, HDFS moves into a directory of that name.
        parameters = {"destination": new, "renameoptions": "OVERWRITE" if overwrite else "NONE"}
        return lambda: self._call("RENAME", old, parameters, method="PUT", repeatable=False)

    # ---- content ----

    def small_file_server(self, path: str, size_bytes: int) -> tuple[str, int] | None:
        """Return the address from which `read_small` reads a file that was listed ``located``; None to use `fetch`."""
        return None

    def read_small(self, paths: Sequence[str], on_content: Callable[[bytes], None]) -> None:
        """Read small files in one batch; files for which ``on_content`` was not called are left to `fetch`.

        Args:
            paths: the paths of files with the same `small_file_server`; without duplicates.
            on_content: called with the content of each, in order.
        """

    def fetch(
        self,
        path: str,
        fd: int,
        offset: int,
        end: int,
        report: Callable[[int], None],
        *,
        direct_to_datanode: bool = False,
    ) -> None:
        """Fetch the bytes from ``offset`` to ``end`` of a file to the same range of the open file ``fd``.

        It resumes after a broken connection, with other DataNodes if one fails.

        Args:
            path: the path of the file on HDFS.
            fd: the open local file.
            offset, end: the first byte, and the one after the last.
            report: called with the number of bytes after each piece, and with 0 before each try; its errors abort the
                call.
            direct_to_datanode: whether it is one of many small files, which need no request to the NameNode.

        Raises:
            NotFound: it does not exist any more.
            DlappError: it has fewer bytes, or HDFS has lost some.
            OSError: writing to ``fd`` failed.
        """
        at, dead_ends = offset, 0
        bad: set[str] = set()  # DataNodes that failed, which the NameNode may not know yet
        for retry in self._attempts(f"{shown(path)} cannot be read"):
            if at >= end:
                return
            report(0)
            started = at
            try:
                asked = {"offset": str(at), "length": str(end - at)}
                where = self._datanode("OPEN", path, bad, direct_to_datanode=direct_to_datanode and not bad, **asked)
                at += self._at_datanode("GET", where, path, ResponseSink(fd, at, end - at, report)).received
                if at >= end:
                    return
                failed = _DataNodeFailed(where.server, "ended the file early", answered=True)
            except _DataNodeFailed as error:
                failed = error
                at += failed.received
            except HdfsRefused as refused:
                if _NO_NODE not in str(refused):
                    raise
                # They may become available: a restarted DataNode has not reported its blocks yet.
                retry(HdfsUnreachable(str(refused)))
                continue
            bad.add(failed.server)
            dead_ends = 0 if at > started else dead_ends + failed.answered
            if failed.answered:
                self._check_length(path, end)
            if dead_ends >= MAX_DEAD_ENDS:
                where_lost = f"{shown(self.place.location + path)} cannot be read from byte {at} on"
                raise DlappError(f"{where_lost}: {failed} (hdfs fsck says which blocks are lost)") from failed
            retry(HdfsUnreachable(str(failed)), progress=at > started)

    def read_bytes(self, path: str, max_bytes: int) -> bytes:
        """Return the content of a small file. Raises NotFound; DlappError: it is larger, or a directory."""
        for retry in self._attempts(f"{shown(path)} cannot be read"):
            status = self.status(path)
            if status is None:
                raise NotFound(f"{shown(self.place.location + path)} is not there")
            if status.is_dir or status.size_bytes > max_bytes:
                raise DlappError(
                    f"{shown(self.place.location + path)} is a directory, or larger than {max_bytes} bytes"
                )
            if status.size_bytes == 0:
                return b""
            # The name may belong to another, larger file by now. In a snapshot it cannot, and there the inode id refers
            # to the current file.
            if "/.snapshot/" not in path and self.has_inode_paths():
                try:
                    return self.read_part(f"{INODES}/{status.inode_id}", 0, status.size_bytes)
                except NotFound:
                    pass  # it was replaced
                except Denied:
                    self.check_readable(path)  # for a message with the name
                    raise
            else:
                # Ids are never reused: the inode that has the name before and after had it in between.
                with contextlib.suppress(NotFound):
                    content = self.read_part(path, 0, status.size_bytes)
                    if self.status(path) == status:
                        return content
            retry(HdfsUnreachable("it is another file each time"))
        raise AssertionError

    def read_part(self, path: str, offset: int, count: int) -> bytes:
        """Return ``count`` bytes of a file, which must have them. Raises NotFound."""
        with open(os.memfd_create("dlapp-hdfs", os.MFD_CLOEXEC), "rb") as memory:
            self.fetch(path, memory.fileno(), offset, offset + count, ignore)
            memory.seek(offset)
            return memory.read()

    def write(
        self,
        path: str,
        data: bytes | RequestBody,
        mode: int = 0o644,
        *,
        parents: bool = True,
        direct_to_datanode: bool = False,
        report: Callable[[int], None] | None = None,
    ) -> None:
        """Write a file, replacing an existing one; it is incomplete until this returns, so the name must be exclusive
        to the caller.

        Args:
            path: the path of the file on HDFS.
            data: the content; a retry starts from the beginning.
            mode: its permissions.
            parents: create missing parent directories.
            direct_to_datanode: see `fetch`.
            report: called with 0 before each try.

        Raises:
            DlappError: the source file became shorter.
        """
        bad: set[str] = set()
        dead_ends, tried = 0, False
        for retry in self._attempts(f"{shown(path)} cannot be written"):
            (report or ignore)(0)
            try:
                # A DataNode may execute an abandoned try late. No try overwrites a file, so it cannot take the name
                # from a later one; leftovers of an earlier try are removed first.
                if tried:
                    self.clear(path, file=True)
                tried = True
                asked = {"overwrite": "false", "createparent": str(parents).lower(), "permission": f"{mode:o}"}
                where = self._datanode("CREATE", path, bad, direct_to_datanode=direct_to_datanode and not bad, **asked)
                self._at_datanode("PUT", where, path, data)
                return
            except SourceShrank:
                raise DlappError(f"the source of {shown(path)} became shorter while it was stored") from None
            except _DataNodeFailed as failed:
                if not isinstance(failed.refused, AlreadyThere):
                    bad.add(failed.server)
                    dead_ends += failed.answered
                if dead_ends >= MAX_DEAD_ENDS:
                    if isinstance(failed.refused, DiskFull):
                        raise failed.refused from failed
                    kind = failed.refused.java_class if isinstance(failed.refused, HdfsRefused) else ""
                    what = failed.refused or f"{shown(self.place.location + path)} cannot be written: {failed}"
                    raise DataNodeRefused(str(what), kind) from failed
                retry(DataNodeUnreachable(str(failed), doubtful=True))

    # ---- DataNodes ----

    def _datanode(
        self, operation: str, path: str, bad: set[str], *, direct_to_datanode: bool, **parameters: str
    ) -> _Where:
        """Return the DataNode for content, and the query; not one of ``bad`` if there is another."""
        if direct_to_datanode and self.place.login.hdfs_token is None and (server := self._next_known()):
            query = {"op": operation, **self.place.login.query, "namenoderpcaddress": self._namenode_rpc}
            created = {"createflag": ""} if operation == "CREATE" else {}
            return _Where(server, _encoded(query | created | parameters))
        method = "PUT" if operation == "CREATE" else "GET"
        excluded = {"excludedatanodes": ",".join(sorted(_address(one) for one in bad))} if bad else {}
        try:
            found = self._call(operation, path, parameters | excluded, method=method, redirected=True)
        except (HdfsRefused, DiskFull):
            if not bad:
                raise
            # The NameNode has no DataNode left; a failed one is better than none.
            found = self._call(operation, path, parameters, method=method, redirected=True)
        where: _Where = found
        with self._lock:
            self._redirections += 1
            if where.server not in self._datanodes and where.server not in bad:
                self._datanodes = [*self._datanodes[-_MAX_KNOWN_DATANODES:], where.server]
            for part in where.query.split("&"):
                if part.startswith("namenoderpcaddress="):
                    self._namenode_rpc = unquote(part.partition("=")[2])
            others = [one for one in self._datanodes if one not in bad]
        if where.server in bad and others:
            # The NameNode may know several on one machine, or need a while to notice that one is dead.
            where = where._replace(server=random.choice(others))
        return where

    def _next_known(self) -> str | None:
        """Return the known DataNodes in rotation; None if too few are known yet."""
        with self._lock:
            if self._redirections < DIRECT_AFTER or not self._datanodes or not self._namenode_rpc:
                return None
            self._datanodes.append(self._datanodes.pop(0))
            return self._datanodes[-1]

    def _at_datanode(
        self, method: str, where: _Where, path: str, content: bytes | RequestBody | ResponseSink | None = None
    ) -> HttpResponse:
        """Send a request to a DataNode. Raises _DataNodeFailed if another one may succeed."""
        sink = content if isinstance(content, ResponseSink) else None
        body = None if isinstance(content, ResponseSink) else content
        host = where.server.partition("://")[2]
        try:
            target = f"/webhdfs/v1{_quoted(path)}?{where.query}"
            answer = self._connections.request(method, where.server, target, body, sink=sink)
        except IncompleteResponse as broken:
            if broken.lasting:
                raise _lasting(where.server, broken) from broken
            with self._lock:
                self._datanodes = [one for one in self._datanodes if one != where.server]
            raise _DataNodeFailed(
                where.server, f"{host} {broken}", received=broken.received, answered=broken.answered
            ) from broken
        if answer.good:
            return answer
        refused = self._refusal(answer, path, where.server)
        if isinstance(refused, HdfsRefused) and refused.java_class in _LIMITS:
            raise refused
        is_full = isinstance(refused, DiskFull) and "quota" not in str(refused).lower()
        if is_full or isinstance(refused, (HdfsRefused, HdfsUnreachable)):
            answered = not isinstance(refused, HdfsUnreachable)
            raise _DataNodeFailed(where.server, f"{host}: {refused}", answered=answered, refused=refused) from refused
        raise refused

    def _check_length(self, path: str, end: int) -> None:
        status = self.status(path)
        if status is None:
            raise NotFound(f"{shown(self.place.location + path)} is gone")
        if status.size_bytes < end:
            raise DlappError(f"{shown(self.place.location + path)} changed while it was read: it had {end} bytes")

    # ---- NameNodes ----

    def _json(
        self, operation: str, path: str, *, method: str = "GET", max_bytes: int = MAX_JSON_BYTES, **parameters: str
    ) -> dict[str, Any]:
        found: dict[str, Any] = self._call(operation, path, parameters, method=method, reads=True, max_bytes=max_bytes)
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
        max_bytes: int = MAX_JSON_BYTES,
    ) -> Any:
        """Make one call to the NameNodes; return its JSON with ``reads``, `_Where` with ``redirected``, else nothing.

        Args:
            max_bytes: maximum size of the answer [bytes].
            name: used for ``path`` in messages, if different.
        """
        who = self.place.login.webhdfs_query
        target = f"/webhdfs/v1{_quoted(path)}?{_encoded({'op': operation, **who, **(parameters or {})})}"
        for retry in self._attempts(shown(self.place.location + (name or path))):
            said: list[str] = []
            for number in self._order():
                web = self.place.web[number]
                try:
                    if method == "GET":
                        self._check_active(web)
                    answer = self._request(method, web, target, max_bytes)
                    if not (answer.good or (redirected and answer.status == 307)):
                        raise self._refusal(answer, name or path, web)
                    found = _object(answer, web) if reads else _redirection(answer, web) if redirected else None
                    self._first, self._answered = number, True
                    return found
                except HdfsUnreachable as error:
                    self._roles.pop(web, None)
                    if error.doubtful and not repeatable:
                        raise
                    said.append(str(error))
            retry(HdfsUnreachable("; ".join(said)))
        raise AssertionError

    def _request(self, method: str, web: str, target: str, max_bytes: int) -> HttpResponse:
        try:
            return self._connections.request(method, web, target, max_bytes=max_bytes)
        except IncompleteResponse as broken:
            if broken.lasting:
                raise _lasting(web, broken) from broken
            if broken.too_large:
                many = ": move some of its entries elsewhere" if "op=LISTSTATUS&" in target else ""
                raise WrongAnswer(
                    f"the NameNode sent more than {max_bytes >> 20} MiB, which is not read{many}"
                ) from broken
            raise HdfsUnreachable(f"{web.partition('://')[2]} {broken}", doubtful=broken.sent) from broken

    def _refusal(self, answer: HttpResponse, path: str, server: str) -> DlappError:
        try:
            said = json_object(answer.body, path=server)["RemoteException"]
            kind, message = str(said["exception"])[:100], str(said["message"])
        except (UntrustedFile, KeyError, TypeError):
            if answer.status == 401:
                user = self.place.login.user
                return Denied(f"{server}: HDFS does not accept {user} (it asks for another authentication)")
            return _not_webhdfs(server)
        self._answered = True
        return java_error(kind, message, shown(self.place.location + path), server)

    def _order(self) -> list[int]:
        count, first = len(self.place.web), self._first
        return [(first + place) % count for place in range(count)]

    def _attempts(self, what: str) -> Iterator[Callable[..., None]]:
        """Yield the rounds of one operation: each ends with ``retry(why)``, which waits, or raises after the time."""
        began, wait = self._clock(), Wait(self.place.location, self._patience_s)
        pauses_s, count = backoff_s(FIRST_PAUSE_S, LONGEST_PAUSE_S), 0

        def retry(why: HdfsUnreachable, *, progress: bool = False) -> None:
            nonlocal began, pauses_s, count
            if threading.get_ident() in self._cut_off:
                raise HdfsUnreachable(f"{what}: given up", doubtful=why.doubtful) from why
            count += 1
            if progress:
                began, pauses_s = self._clock(), backoff_s(FIRST_PAUSE_S, LONGEST_PAUSE_S)
                wait.renew()
            pause_s = next(pauses_s)
            patience_s = self._patience_s if self._answered else self._first_contact_timeout_s
            if self._clock() - began + pause_s > patience_s:
                tries = f"tried {count} times in {self._clock() - began:.0f} s"
                raise type(why)(f"{what}: {why} ({tries})", doubtful=why.doubtful) from why
            wait.longest_s, wait.why = patience_s, str(why)
            wait.begin()
            self._sleep(pause_s)

        try:
            while True:
                yield retry
        finally:
            wait.end()


class _Where(NamedTuple):
    """A DataNode's web address, and the query to send."""

    server: str
    query: str


class _DataNodeFailed(Exception):
    """A DataNode failed to serve a request.

    Args:
        received: number of bytes that arrived before.
        answered: it answered and refused.
        refused: its message, if any.
    """

    def __init__(
        self,
        server: str,
        message: str,
        *,
        received: int = 0,
        answered: bool = False,
        refused: DlappError | None = None,
    ) -> None:
        super().__init__(message)
        self.server, self.received, self.answered, self.refused = server, received, answered, refused


@contextlib.contextmanager
def calling(place: str, name: str) -> Iterator[None]:
    """Replace an inode path by the user's name of the directory in errors."""
    try:
        yield
    except DlappError as error:
        if place:
            pattern = re.compile(rf"{re.escape(place)}(?![0-9])")
            error.args = tuple(pattern.sub(lambda _: name, one) if isinstance(one, str) else one for one in error.args)
            if isinstance(error, DiskFull):
                error.lack = pattern.sub(lambda _: name, error.lack)
        raise


def _quoted(text: str, safe: str = "/") -> str:
    """Return a path, or a value, quoted for a URL."""
    # Usually there is nothing to quote, and urllib is slow at finding that out.
    return text if _PLAIN.fullmatch(text) else quote(text, safe)


def _encoded(parameters: Mapping[str, str]) -> str:
    return "&".join(f"{name}={_quoted(value, '')}" for name, value in parameters.items())


def _object(answer: HttpResponse, web: str) -> dict[str, Any]:
    """Return the JSON object of an answer."""
    try:
        return json_object(answer.body, path=web)
    except UntrustedFile as error:
        raise _not_webhdfs(web) from error


def _redirection(answer: HttpResponse, web: str) -> _Where:
    """Return the DataNode that an answer redirects to.

    Only its address and the query are used: Java's URI normalizes text (NFC), so the NameNode may change the path. A
    name from a Mac, for example, would be written, and searched, under another name.
    """
    try:
        server, _, query = split_url(answer.headers.get("location"))
    except ValueError as error:
        raise _not_webhdfs(web) from error
    return _Where(server, query)


def _not_webhdfs(server: str) -> HdfsUnreachable:
    return HdfsUnreachable(f"{server.partition('://')[2]} answers, but does not speak WebHDFS", doubtful=True)


def _lasting(server: str, broken: IncompleteResponse) -> _Unreachable:
    """Return an Unreachable that is not retried."""
    from dlapp.hadoop.web import tls_setting

    return _Unreachable(f"{server} {broken}; {tls_setting(broken, 'dfs.http.policy')}")


def _lack(line: str, where: str) -> str:
    """Return what is missing if a NameNode refuses a write to ``where`` for lack of space, by its message."""
    if (found := _QUOTA.search(line)) is None:
        return f"space on the DataNodes for {where}"
    name, directory, quota, used = found.groups()
    more = max(0, int(used) - int(quota))
    amount = human_size(more) if name == "DiskSpace" else f"{more} name{'' if more == 1 else 's'}"
    return f"{amount} in the {'space' if name == 'DiskSpace' else 'name'} quota of {directory}"


def java_error(kind: str, message: str, where: str, server: str) -> DlappError:
    """Return dlapp's error class for a Java exception.

    Args:
        kind: its short name.
        message: its text, of which the first line is used.
        where: the location of the call.
        server: that answered, with a scheme.
    """
    line, kind = shown(message.partition("\n")[0][:500]), shown(kind)
    if kind in _NOT_ACTIVE or kind == "RetriableException":
        return HdfsUnreachable(f"{server.partition('://')[2]} {_NOT_ACTIVE.get(kind, line)}")
    if kind in _NOT_REACHED:
        needs = "cannot reach a server that it needs (as the KMS of an encryption zone)"
        return HdfsUnreachable(f"{server.partition('://')[2]} {needs}: {line}", doubtful=True)
    if _NO_NODE_YET.match(line):
        return HdfsUnreachable(f"{server.partition('://')[2]} finds no DataNode that lives and has space")
    if kind == "FileNotFoundException":
        return NotFound(f"{where} is not there")
    if kind in _DENIED:
        return Denied(f"{where}: {line}")
    if kind in _NO_ROOM or "could only be written to 0 of" in line:
        return DiskFull(f"{where} cannot be written: {line}", lack=_lack(line, where))
    if kind == "SafeModeException":
        return _Unreachable(f"{where}: HDFS is in safe mode and takes no changes until it leaves it")
    if kind in ("FileAlreadyExistsException", "AlreadyBeingCreatedException"):
        return AlreadyThere(f"{where}: {line}", kind)
    return HdfsRefused(f"{where}: {line} ({kind})", kind)


def parse_role(data: bytes) -> ServerRole:
    """Return the role in a server's answer to `_STATUS_OF_NAMENODE`; unknown if the answer is invalid."""
    bean = _bean(data)
    if bean.get("modelerType") != _NAMENODE:
        return ServerRole()
    return ServerRole(True, str(bean.get("State", "")))


def is_operational(data: bytes) -> bool:
    """Return whether a NameNode's answer to `_STATE_OF_NAMESYSTEM` says that it is not in safe mode."""
    return _bean(data).get("FSState") == "Operational"


def _bean(data: bytes) -> dict[str, Any]:
    """Return the one bean in an answer of ``/jmx``; empty if the answer is invalid."""
    try:
        beans = json_object(data, path="").get("beans")
    except UntrustedFile:
        return {}
    bean = beans[0] if isinstance(beans, list) and len(beans) == 1 else None
    return bean if isinstance(bean, dict) else {}


def parse_mounts(data: bytes) -> dict[str, int]:
    """Return the answer of `_MOUNTS`: path -> number of destinations; an invalid answer has no mount points.

    Raises:
        WrongAnswer: its mount table is invalid.
    """
    found: dict[str, set[str]] = {}
    if (table := _bean(data).get("MountTable")) is None:
        return {}
    try:
        for one in json.loads(table):
            # Older ones have an entry for each destination.
            where = one.get("destinations") or [f"{name}->{one['path']}" for name in one["nameserviceId"].split(",")]
            found.setdefault(str(one["sourcePath"]), set()).update(map(str, where))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise WrongAnswer("the HDFS Router sent no table of mount points") from error
    return {path: len(where) for path, where in found.items()}


def parse_snapshottable(said: Mapping[str, Any]) -> list[str]:
    """Return the paths of the directories with snapshots in an answer to GETSNAPSHOTTABLEDIRECTORYLIST.

    Raises:
        WrongAnswer: the answer is invalid.
    """
    try:
        return [
            f"{one['parentFullPath'].rstrip('/')}/{one['dirStatus']['pathSuffix']}"
            for one in said["SnapshottableDirectoryList"] or ()
            if one["snapshotNumber"]
        ]
    except (KeyError, TypeError, AttributeError) as error:
        raise WrongAnswer("the NameNode sent no list of snapshottable directories") from error


def parse_listing(said: Mapping[str, Any]) -> list[FileStatus]:
    """Return the entries in an answer to LISTSTATUS, sorted by name: of a file the file itself, with an empty name.

    Raises:
        WrongAnswer: it is invalid, or contains a name that is impossible in a directory.
    """
    statuses = said.get("FileStatuses")
    listed = statuses.get("FileStatus") if isinstance(statuses, dict) else None
    if not isinstance(listed, list):
        raise WrongAnswer("the NameNode sent no listing")
    found = sorted(map(parse_status, listed), key=lambda one: one.name)
    if len(found) == 1 and not found[0].name and not found[0].is_dir:
        return found
    for one in found:
        if not is_plain_name(one.name):
            raise WrongAnswer(f"the NameNode lists {one.name[:100]!r} in it, which is not a file name")
    if len({one.name for one in found}) != len(found):
        raise WrongAnswer("the NameNode lists a name in it twice")
    return found


def parse_status(said: object) -> FileStatus:
    """Return a FileStatus of WebHDFS. Raises WrongAnswer: it is invalid.

    Source: WebHDFS.md, "FileStatus JSON Schema".
    """
    if not isinstance(said, dict):
        raise WrongAnswer("the NameNode sent no status of a file")
    name, kind, mode, owner = (said.get(key) for key in ("pathSuffix", "type", "permission", "owner"))
    link = said.get("symlink") if kind == "SYMLINK" else None
    if not (isinstance(name, str) and isinstance(owner, str) and isinstance(mode, str) and _MODE.fullmatch(mode)):
        raise WrongAnswer("the NameNode sent no status of a file")
    if kind not in ("FILE", "DIRECTORY", "SYMLINK") or not (link is None or isinstance(link, str)):
        raise WrongAnswer(f"the NameNode sent a file of the type {str(kind)[:100]!r}")
    return FileStatus(
        name=name,
        is_dir=kind == "DIRECTORY",
        size_bytes=_amount(said, "length", _MAX_LENGTH),
        inode_id=_file_id(said),
        mode=int(mode, 8),
        mtime_ms=_amount(said, "modificationTime", 1 << 53),
        owner=owner,
        link=link if kind != "SYMLINK" else link or "",
        group=group if isinstance(group := said.get("group"), str) else "",
        encrypted=said.get("encBit") is True,
        has_acl=said.get("aclBit") is True,
        storage_policy=_amount(said, "storagePolicy", 1 << 8) if "storagePolicy" in said else 0,
        replication=_amount(said, "replication", 1 << 15) if kind == "FILE" and "replication" in said else 0,
        ec_policy=policy if isinstance(policy := said.get("ecPolicy"), str) else "?" * (said.get("ecBit") is True),
    )


def _file_id(said: Mapping[str, Any]) -> int:
    if "fileId" not in said:
        raise WrongAnswer(
            "the answer has no fileId, as that of HttpFS; dlapp needs WebHDFS of the NameNodes "
            "(dfs.namenode.http-address)"
        )
    return _amount(said, "fileId", 1 << 63)


def _amount(said: Mapping[str, Any], key: str, limit: int) -> int:
    value = said.get(key)
    if type(value) is not int or not 0 <= value < limit:
        raise WrongAnswer(f"the NameNode sent a file with the {key} {str(value)[:40]}")
    return value


def _address(server: str) -> str:
    """Return the address by which a NameNode knows the DataNode of a URL; it does not know the HTTP port."""
    import socket

    name = server.partition("://")[2].rpartition(":")[0]
    try:
        return socket.gethostbyname(name)
    except OSError:
        return name
