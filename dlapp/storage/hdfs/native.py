"""HDFS by its native protocols where possible, otherwise by WebHDFS: the calls of `WebHdfs`.

All calls use Hadoop RPC to the NameNode, and the content of files the data transfer protocol to the DataNodes. WebHDFS
is used for

    a whole HDFS      with other authentication than by name; a Router, or a gateway; encrypted data transfer; an RPC
                      port that does not answer; with ``auto`` also data ports that do not, and one whose
                      WebHDFS goes over TLS
    a file            that is encrypted, or has checksums that cannot be computed here; that is erasure coded, where it
                      is written, or a block with its content is missing
    a count           of the live DataNodes, which a NameNode reports by RPC to superusers only; and a user's home
                      directory by the NameNode's configuration, which no call reports

Whether the native protocols can be used is determined once (`webhdfs_reason`); with ``auto`` once per process. If not,
``auto`` uses WebHDFS from then on; ``native`` waits for a server that does not answer, as WebHDFS does.

All content is verified against its checksums, before it is written to the local file. A corrupt replica is reported to
the NameNode, and another one is read. Small files whose block locations came with the listing are requested in batches,
from a DataNode that has them; if one fails, it and the following ones are read one by one. A block that was not written
completely is abandoned and rewritten from the local file, with other DataNodes: so there is no pipeline recovery.

1. A call is sent, and its answer is lost.
2. The call is retried with the same call id, also to a NameNode that took over.
3. If it was executed, the NameNode repeats its first answer from the retry cache, so that a create, a rename or a
   delete happens once. The cache keeps answers for ten minutes.
4. A restarted NameNode may have lost its cache. Then the effect of the call is checked, as for WebHDFS.

Of several NameNodes the active one is called. The state of each is requested first, since ``dfs.ha.allow.stale.reads``
lets a standby answer reads. Listings and block locations, which take most of a NameNode's time, are read from an
up-to-date observer if there is one:

1. The id of the active NameNode's last transaction is requested just before (msync).
2. The observer answers when it has applied that transaction, so it has everything that existed at the time of the
   request.
3. If the observer refuses, or lacks the file, the active NameNode gets the request.

Observers refuse calls without a transaction id.

Whether a server is a NameNode, whose inode ids count, the protocols on its port show (`GET_HA_SIGNATURE`).

Source: DFSInputStream, DataStreamer, GlobalStateIdContext (observers), RetryCache, FSEditLogLoader (the NameNode on
standby has what the active one remembers), FSNamesystem.analyzeFileState (a repeated addBlock gets the same block).
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from dlapp.errors import DlappError, NotFound
from dlapp.hadoop.connection import CallIds, Connection
from dlapp.hadoop.errors import ConnectionLost, HadoopError, NotHadoop, RemoteError, TryAgain
from dlapp.hadoop.hdfs import attributes, packets
from dlapp.hadoop.hdfs import client_protocol as protocol
from dlapp.hadoop.hdfs.checksums import CRC32, CRC32C, CannotVerify, Checksum, has_crc32c
from dlapp.hadoop.hdfs.client_protocol import Call, DataNode, HdfsBlock, LocatedBlock, ServerDefaults, Status, Striping
from dlapp.hadoop.hdfs.connections import Address, ConnectionPool
from dlapp.hadoop.hdfs.datanode import (
    BlockRefused,
    CorruptReplica,
    DataNodeConnection,
    PipelineFailed,
    SourceEnded,
    write_all,
)
from dlapp.hadoop.wire import Fields
from dlapp.locations import AUTO, HDFS, HdfsPlace, shown
from dlapp.net.http import RequestBody
from dlapp.storage.hdfs.webhdfs import (
    MAX_DEAD_ENDS,
    AlreadyThere,
    DataNodeUnreachable,
    FileStatus,
    HdfsRefused,
    HdfsUnreachable,
    WebHdfs,
    WrongAnswer,
    java_error,
)
from dlapp.storage.values import DiskFull, ignore
from dlapp.system.files import is_plain_name
from dlapp.system.logs import log
from dlapp.system.waits import Wait

T = TypeVar("T")

PROBE_S = 3.0
"""With `AUTO`: time limit of the probe of the RPC port."""
_PORT = 8020
_MAX_ENTRIES = 1 << 22
_MAX_LOCATED = 20_000
"""Maximum number of small files whose block is cached from the listing; each takes about 600 bytes."""
_STATE_HOLDS_S = 5.0
"""How long the role of a NameNode is cached if there are several, as with WebHDFS."""
_OBSERVER_S = 2.0
"""How long to wait for an observer that has not applied a transaction yet."""
_OBSERVERS_HOLD_S = 60.0
"""How long the result of the search for observers is cached, also for observers that were too slow."""
_LEASE_S = 30.0
"""Half of the time after which another client may take over a file that is written."""
_LONGEST_CLOSE_S = 20.0
"""Time limit for the NameNode to learn of a file's blocks, usually some milliseconds. A DataNode that died after it had
acknowledged a block never reports it; the patience (`dlapp.storage.hdfs.webhdfs`) leaves time to write the file
again."""
_NO_SUCH_METHOD = "org.apache.hadoop.ipc.RpcNoSuchMethodException"
_NO_HA = "org.apache.hadoop.ha.ServiceFailedException"
"""Answer of a NameNode that is the only one, and so active, to a request of its state; seen on 3.4.2."""


class _NotServed(Exception):
    """A file that only WebHDFS can serve; the text is the reason. ``at``: its first byte that was not read."""

    at = 0


class _BlockReadFailed(Exception):
    """A range of a block that no DataNode could deliver.

    Args:
        message: why.
        at: offset of the first missing byte in the file.
        answered: whether a DataNode answered and refused.
        stale: whether new block locations may help.
    """

    def __init__(self, message: str, at: int, *, answered: bool, stale: bool) -> None:
        super().__init__(message)
        self.at, self.answered, self.stale = at, answered, stale


class _ProtocolState:
    """Protocols that one HDFS supports, as far as known.

    Attributes:
        webhdfs_reason: see `NativeHdfs.webhdfs_reason`; None if not determined yet.
        data_served: whether a DataNode has transferred data natively.
    """

    def __init__(self) -> None:
        self.webhdfs_reason: str | None = None
        self.data_served = False


_protocol_states: dict[tuple[object, ...], _ProtocolState] = {}
"""With `AUTO`: the state of each HDFS and user, so that a process that opens an HDFS many times probes it once."""


def _protocol_state(place: HdfsPlace) -> _ProtocolState:
    if place.protocol != AUTO:
        return _ProtocolState()
    key = place.location, place.web, place.names, place.login.user, place.login.hdfs_token is None
    return _protocol_states.setdefault(key, _ProtocolState())


class _BlockSource(NamedTuple):
    """Content of a file that is being written."""

    read: Callable[[int, int], bytes]
    size_bytes: int


def rpc_addresses(place: HdfsPlace) -> list[Address]:
    """Return the RPC addresses of an HDFS's NameNodes, as far as the configuration has them."""
    found: list[Address] = []
    named = [one for one in place.names if ":" in one]
    here = place.location.removeprefix(HDFS)
    # A nameservice has no port, and its NameNodes have names of their own.
    for one in named or [here if ":" in here or place.names else f"{here}:{_PORT}"]:
        host, _, port = one.rpartition(":")
        if host and port.isdecimal() and int(port) < 1 << 16 and (host, int(port)) not in found:
            found.append((host, int(port)))
    return found


class NativeHdfs(WebHdfs):
    """One user's calls to one HDFS. Thread-safe.

    Args:
        place, options: see `WebHdfs`; ``place.protocol`` is `NATIVE` or `AUTO`.
    """

    parallel_large_reads = 4
    """Number of parallel reads, as with WebHDFS; checksums are computed by Python's threads. Measured with 768 MiB on
    two cores, four times: 0.58 s of processor time where 8 take 0.73 s, and the same time."""

    def __init__(self, place: HdfsPlace, **options: Any) -> None:
        super().__init__(place, **options)
        self._addresses = rpc_addresses(place)
        self._turn = 0
        self._hosts: set[str] = set()  # addresses of this machine
        self._client = f"dlapp_{os.urandom(8).hex()}"
        self._namenodes: ConnectionPool[Connection] = ConnectionPool()
        self._nodes: ConnectionPool[DataNodeConnection] = ConnectionPool()
        self._protocol = _protocol_state(place)
        self._ids = CallIds()
        self._states: dict[Address, float] = {}
        self._state_id: int | None = None  # the last transaction that an answer reflected
        self._observers: list[Address] = []
        self._observers_asked_s = -_OBSERVERS_HOLD_S
        self._defaults: ServerDefaults | None = None
        self._located: dict[str, tuple[int, LocatedBlock]] = {}
        self._listed_blocks_serve = True
        self._can_verify = True
        self._not_served: set[str] = set()
        self._lease_renewed_s = 0.0

    # ---- WebHdfs ----

    def close(self) -> None:
        super().close()
        self._namenodes.close()
        self._nodes.close()

    @contextlib.contextmanager
    def abort_calls(self, threads: Collection[int]) -> Iterator[Callable[[], None]]:
        with super().abort_calls(threads) as cut_web:

            def cut() -> None:
                cut_web()
                self._namenodes.abort(threads)
                self._nodes.abort(threads)

            yield cut

    def status(self, path: str) -> FileStatus | None:
        if self.webhdfs_reason():
            return super().status(path)
        try:
            found = self._rpc(path, protocol.get_file_info(path), protocol.parse_file_info)
        except NotFound:
            return None  # it was requested by an inode number that does not exist any more
        return None if found is None else _file_status(found)

    def children(self, path: str, *, located: bool = False) -> list[FileStatus]:
        if self.webhdfs_reason():
            return super().children(path)
        located = located and self._listed_blocks_serve and self._can_verify
        nodes: dict[bytes, DataNode] = {}
        found: list[FileStatus] = []
        after = b""
        while True:
            # Entries may appear and disappear between two parts of a listing: each part is consistent, as in Hadoop.
            call = protocol.get_listing(path, after, located=located)
            part = self._read_rpc(path, call, lambda answer: protocol.parse_listing(answer, nodes))
            if part is None:
                raise NotFound(f"{shown(self.place.location + path)} is not there")
            for one in part.entries:
                found.append(_file_status(one))
                if located and one.blocks is not None:
                    self._cache_location(path, one)
            if not part.remaining:
                break
            last = part.entries[-1].name.encode() if part.entries else b""
            if last <= after or len(found) > _MAX_ENTRIES:
                raise WrongAnswer(f"{shown(self.place.location + path)}: the NameNode sent a listing without an end")
            after = last
        where = self.place.location + path
        if len(found) == 1 and not found[0].name and not found[0].is_dir:
            return found
        if wrong := next((one.name for one in found if not is_plain_name(one.name)), None):
            raise WrongAnswer(f"{shown(where)}: the NameNode lists {wrong[:100]!r} in it, which is not a file name")
        if any(not one.name for one in found) or len({one.name for one in found}) != len(found):
            raise WrongAnswer(f"{shown(where)}: the NameNode lists a name in it twice, or an empty one")
        return sorted(found, key=lambda one: one.name)

    def _check_access(self, path: str, rights: int) -> None:
        if self.webhdfs_reason():
            super()._check_access(path, rights)
        else:
            self._rpc(path, protocol.check_access(path, rights), ignore)

    def _knows_all_files(self) -> bool:
        if self.webhdfs_reason():
            return super()._knows_all_files()
        for turn, address in enumerate(self._addresses):
            self._states.pop(address, None)  # it may have been active
            until = time.monotonic() + self._timeout_s[1]
            with contextlib.suppress(HadoopError):
                try:
                    state = self._call_at(address, protocol.GET_HA_STATE, self._ids.take(), until).number(1)
                except RemoteError as error:
                    if error.java_class == _NO_SUCH_METHOD:
                        return super()._knows_all_files()  # before 3.1 only the web port reports the state
                    if error.java_class != _NO_HA:
                        raise
                    state = protocol.ACTIVE
                if state == protocol.ACTIVE:
                    answer = self._call_at(address, protocol.GET_SAFE_MODE, self._ids.take(), until)
                    self._turn = turn
                    return not protocol.parse_flag(answer)
        return False

    def has_inode_paths(self) -> bool:
        return not self.webhdfs_reason() or super().has_inode_paths()

    def make_directory(self, path: str, mode: int = 0o755) -> None:
        if self.webhdfs_reason():
            super().make_directory(path, mode)
        else:
            self._rpc(path, protocol.make_directory(path, mode), ignore)

    def _delete(self, path: str, name: str, *, recursive: bool = True) -> bool:
        if self.webhdfs_reason():
            return super()._delete(path, name, recursive=recursive)
        try:
            return self._rpc(name, protocol.delete(path, recursive=recursive), protocol.parse_flag)
        except NotFound:
            return False

    def _rename_call(self, old: str, new: str, *, overwrite: bool) -> Callable[[], None]:
        if self.webhdfs_reason():
            return super()._rename_call(old, new, overwrite=overwrite)
        call, call_id = protocol.rename(old, new, overwrite=overwrite), self._ids.take()
        return lambda: self._rpc(old, call, ignore, call_id=call_id)

    def set_mode(self, path: str, mode: int) -> None:
        if self.webhdfs_reason():
            super().set_mode(path, mode)
        else:
            self._rpc(path, protocol.set_permission(path, mode), ignore)

    def set_replication(self, path: str, count: int) -> None:
        if self.webhdfs_reason():
            super().set_replication(path, count)
        else:
            self._rpc(path, attributes.set_replication(path, count), ignore)

    def set_group(self, path: str, group: str) -> None:
        if self.webhdfs_reason():
            super().set_group(path, group)
        else:
            self._rpc(path, attributes.set_group(path, group), ignore)

    def _acl(self, path: str) -> list[str]:
        if self.webhdfs_reason():
            return super()._acl(path)
        return self._rpc(path, attributes.get_acl(path), attributes.parse_acl)

    def set_acl(self, path: str, entries: Sequence[str]) -> None:
        if self.webhdfs_reason():
            super().set_acl(path, entries)
        else:
            self._rpc(path, attributes.set_acl(path, entries), ignore)

    def _storage_policy(self, path: str) -> str:
        if self.webhdfs_reason():
            return super()._storage_policy(path)
        return self._rpc(path, attributes.get_storage_policy(path), attributes.parse_storage_policy)

    def _set_storage_policy(self, path: str, name: str) -> None:
        if self.webhdfs_reason():
            super()._set_storage_policy(path, name)
        else:
            self._rpc(path, attributes.set_storage_policy(path, name), ignore)

    def set_ec_policy(self, path: str, name: str) -> None:
        if self.webhdfs_reason():
            super().set_ec_policy(path, name)
        else:
            self._rpc(path, attributes.set_ec_policy(path, name), ignore)

    def has_quota(self, path: str) -> bool:
        if self.webhdfs_reason():
            return super().has_quota(path)
        try:
            return self._rpc(path, attributes.get_quota_usage(path), attributes.parse_quota_usage)
        except HdfsRefused:  # an older NameNode
            return self._rpc(path, attributes.get_content_summary(path), attributes.parse_content_summary)

    def _directories_with_snapshots(self) -> list[str]:
        if self.webhdfs_reason():
            return super()._directories_with_snapshots()
        return self._rpc("/", attributes.GET_SNAPSHOTTABLE, attributes.parse_snapshottable)

    def set_attribute(self, path: str, name: str, value: bytes) -> None:
        if self.webhdfs_reason():
            super().set_attribute(path, name, value)
        else:
            self._rpc(path, attributes.set_attribute(path, name, value), ignore)

    def attribute(self, path: str, name: str) -> bytes | None:
        if self.webhdfs_reason():
            return super().attribute(path, name)
        return self._rpc(path, attributes.get_attributes(path), attributes.parse_attributes).get(name)

    def set_mtime(self, path: str, mtime_ms: int) -> None:
        if self.webhdfs_reason():
            super().set_mtime(path, mtime_ms)
        else:
            self._rpc(path, protocol.set_times(path, max(mtime_ms, 0)), ignore)

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
        """See `WebHdfs.fetch`.

        Args:
            path, fd, offset, end, report, direct_to_datanode: see there.
        """
        if not self.webhdfs_reason() and self._can_verify:
            try:
                offset = self._fetch(path, fd, offset, end, report)
            except _NotServed as why:
                self._log_webhdfs_use(str(why))
                offset = why.at
        if offset < end:
            super().fetch(path, fd, offset, end, report, direct_to_datanode=direct_to_datanode)

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
        """See `WebHdfs.write`.

        Args:
            path, data, mode, parents, direct_to_datanode, report: see there.
        """
        if not self.webhdfs_reason():
            try:
                return self._write(path, data, mode, parents, report or ignore)
            except _NotServed as why:
                self._log_webhdfs_use(str(why))
        super().write(path, data, mode, parents=parents, direct_to_datanode=direct_to_datanode, report=report)

    # ---- choice of the protocol ----

    def webhdfs_reason(self) -> str:
        """Return why only WebHDFS is used for this HDFS; empty if it is not so. Determined once.

        Raises:
            HdfsUnreachable: no NameNode reports its state.
        """
        state = self._protocol
        if state.webhdfs_reason is None:
            # Concurrent threads each probe: waiting for another thread's probe would double the wait for a server.
            webhdfs_reason = self._probe()
            if webhdfs_reason and state.webhdfs_reason is None:
                log.info(f"{self.place.location} is accessed by WebHDFS: {webhdfs_reason}")
            state.webhdfs_reason = state.webhdfs_reason or webhdfs_reason
        return state.webhdfs_reason

    def _probe(self) -> str:
        if self.place.login.hdfs_token is not None:
            return "it is used with a token, and natively only simple authentication is supported"
        if self.place.protocol == AUTO and any(one.startswith("https://") for one in self.place.web):
            return "it is used over TLS, and natively nothing is encrypted"
        if not self._addresses:
            return "the Hadoop configuration has no dfs.namenode.rpc-address of it"
        is_namenode = True
        if self.place.protocol == AUTO:
            said = []
            for address in self._addresses:
                try:
                    until = time.monotonic() + PROBE_S
                    answer = self._call_at(address, protocol.GET_HA_SIGNATURE, self._ids.take(), until)
                    if not (is_namenode := protocol.parse_is_namenode(answer)):
                        break
                    answer = self._call_at(address, protocol.GET_SERVER_DEFAULTS, self._ids.take(), until)
                    self._defaults = protocol.parse_server_defaults(answer)
                    break
                except (ConnectionLost, TryAgain) as error:
                    said.append(str(error))
                except (RemoteError, NotHadoop) as error:
                    return str(error)
            else:
                return f"no NameNode serves by RPC: {'; '.join(said)}"
        else:
            is_namenode = self._rpc("/", protocol.GET_HA_SIGNATURE, protocol.parse_is_namenode)
        if not is_namenode:
            return "it is a Router, and no NameNode"
        return "it encrypts data transfer" if self._server_defaults().encrypts else ""

    def _server_defaults(self) -> ServerDefaults:
        if self._defaults is None:
            self._defaults = self._rpc("/", protocol.GET_SERVER_DEFAULTS, protocol.parse_server_defaults)
        return self._defaults

    def _log_webhdfs_use(self, why: str) -> None:
        """Report once that files of a kind use WebHDFS."""
        if why not in self._not_served and len(self._not_served) < 16:
            self._not_served.add(why)
            log.info(f"{self.place.location}: {why}")

    def _may_fall_back(self) -> bool:
        """Return whether unanswered data ports mean that they are blocked from this machine."""
        return self.place.protocol == AUTO and not self._protocol.data_served

    def _fall_back(self, why: str) -> None:
        """Use WebHDFS from now on."""
        self._protocol.webhdfs_reason = why
        log.info(f"{self.place.location} is accessed by WebHDFS: {why}")

    # ---- NameNodes ----

    def _rpc(self, path: str, call: Call, parse: Callable[[Fields], T], *, call_id: int | None = None) -> T:
        """Call the active NameNode, and return the answer converted by ``parse``.

        Args:
            call_id: for a caller that retries a call that may have been executed; None to retry here, with one id.

        Raises:
            HdfsUnreachable: no NameNode answered in time; ``doubtful``: it may have been executed.
            DlappError: the NameNode refused, as for WebHDFS.
            WrongAnswer: the answer is invalid.
        """
        where = shown(self.place.location + path)
        own_id = self._ids.take() if call_id is None else call_id
        for retry in self._attempts(where):
            said = []
            for number in range(len(self._addresses)):
                turn = (self._turn + number) % len(self._addresses)
                address = self._addresses[turn]
                try:
                    answer = self._call_at(address, call, own_id, time.monotonic() + self._timeout_s[1])
                    self._turn, self._answered = turn, True
                    return parse(answer)
                except (ConnectionLost, TryAgain) as error:
                    self._states.pop(address, None)
                    doubtful = isinstance(error, ConnectionLost) and error.sent
                    if doubtful and call_id is not None:
                        raise HdfsUnreachable(f"{where}: {error}", doubtful=True) from error
                    self._answered = self._answered or isinstance(error, TryAgain)
                    said.append(str(error))
                except NotHadoop as error:
                    raise WrongAnswer(f"{where}: {error}") from error
                except RemoteError as error:
                    self._answered = True
                    kind = error.java_class.rpartition(".")[2]
                    refused = java_error(kind, error.message, where, f"rpc://{address[0]}:{address[1]}")
                    if not isinstance(refused, HdfsUnreachable):
                        try:
                            raise refused from error
                        finally:
                            # Its own frame would hold it, which would keep all connections open.
                            del refused
                    said.append(str(refused))
            retry(HdfsUnreachable("; ".join(said)))
        raise AssertionError

    def _read_rpc(self, path: str, call: Call, parse: Callable[[Fields], T]) -> T:
        """Execute `_rpc` for a read-only call, on an observer if there is one."""
        if self._state_id is not None and (address := self._observer()) is not None:
            self._rpc("/", protocol.SYNCHRONIZE, ignore)
            until = time.monotonic() + _OBSERVER_S
            try:
                return parse(self._call_at(address, call, self._ids.take(), until, state_id=self._state_id))
            except (ConnectionLost, NotHadoop, TryAgain):
                self._observers = []  # until they are tried again
            except RemoteError:
                pass  # also for a file without access times, or with DataNodes that it does not know
        return self._rpc(path, call, parse)

    def _observer(self) -> Address | None:
        """Return an observer; None if none is known."""
        now_s = self._clock()
        if len(self._addresses) > 1 and now_s - self._observers_asked_s > _OBSERVERS_HOLD_S:
            self._observers_asked_s = now_s
            found = []
            for address in self._addresses:
                until = time.monotonic() + _OBSERVER_S
                with contextlib.suppress(HadoopError):
                    answer = self._call_at(address, protocol.GET_HA_STATE, self._ids.take(), until, state_id=0)
                    if answer.number(1) == protocol.OBSERVER:
                        found.append(address)
            self._observers = found
        observers = self._observers  # another thread may clear them meanwhile
        return random.choice(observers) if observers else None

    def _call_at(
        self, address: Address, call: Call, call_id: int, deadline: float, *, state_id: int | None = None
    ) -> Fields:
        """Call one NameNode.

        Args:
            state_id: the transaction that an observer must have applied; None if it must be the active one.

        Raises:
            TryAgain: it is not active.
            HadoopError: see `Connection.call`.
        """
        for is_new in (False, True):
            connection, was_used = self._namenodes.acquire(
                address, lambda address: self._connect(address, deadline), is_new=is_new
            )
            keep = False
            try:
                with self._wait_for_datanode(address):
                    if state_id is None:
                        self._check_active_at(address, connection, deadline)
                    answer = connection.call(
                        call.method, call.request, deadline, protocol=call.protocol, call_id=call_id, state_id=state_id
                    )
                self._record_state(connection, state_id)
                keep = True
                return Fields(answer)
            except ConnectionLost as error:
                # A server closes idle connections; the client cannot know whether it did so before it received the
                # call.
                if not was_used or error.sent:
                    raise
            except (TryAgain, RemoteError):
                keep = not connection.closed
                raise
            finally:
                self._namenodes.release(address, connection, reusable=keep)
        raise AssertionError

    def _record_state(self, connection: Connection, wanted: int | None) -> None:
        """Record the transaction that an answer reflects. Raises NotHadoop: an observer's should be later."""
        state_id = connection.state_id
        if wanted is not None and (state_id is None or state_id < wanted):
            raise NotHadoop(f"{connection.name}: it answers before it has transaction {wanted}")
        if state_id is not None:
            with self._lock:
                self._state_id = max(state_id, self._state_id or 0)

    def _check_active_at(self, address: Address, connection: Connection, deadline: float) -> None:
        """Raise TryAgain if it is one of several NameNodes, and not the active one."""
        if len(self._addresses) < 2 or self._clock() - self._states.get(address, -_STATE_HOLDS_S) < _STATE_HOLDS_S:
            return
        asked = self._clock()
        try:
            state = Fields(connection.call(protocol.GET_HA_STATE.method, b"", deadline)).number(1)
        except RemoteError as error:
            if error.java_class != _NO_SUCH_METHOD:
                raise
            # Before 3.1 this call does not exist, and there are no observers.
            state = protocol.ACTIVE
        if state != protocol.ACTIVE:
            raise TryAgain(connection.name, "", "is not the active NameNode")
        self._states[address] = asked

    def _connect(self, address: Address, deadline: float) -> Connection:
        until = min(deadline, time.monotonic() + self._timeout_s[0])
        made = Connection(address, protocol.PROTOCOL, proof=self.place.login, deadline=until, ids=self._ids)
        self._hosts.add(made.own_host)
        return made

    # ---- reading ----

    def _cache_location(self, directory: str, status: Status) -> None:
        blocks = status.blocks
        if blocks and blocks.is_plain and len(blocks.blocks) == 1 and len(self._located) < _MAX_LOCATED:
            path = f"{directory.rstrip('/')}/{status.name}" if status.name else directory
            block = blocks.blocks[0]
            # The NameNode does not sort them by distance in a listing.
            nodes = sorted(random.sample(block.nodes, len(block.nodes)), key=lambda one: one.host not in self._hosts)
            self._located[path] = status.size_bytes, block._replace(nodes=tuple(nodes))

    def small_file_server(self, path: str, size_bytes: int) -> Address | None:
        kept = self._located.get(path)
        if kept is None or self._protocol.webhdfs_reason or not (self._listed_blocks_serve and self._can_verify):
            return None
        block = kept[1]
        if not block.nodes or block.offset or not kept[0] == block.block.size_bytes == size_bytes:
            return None
        return self._address_of(block.nodes[0])

    def read_small(self, paths: Sequence[str], on_content: Callable[[bytes], None]) -> None:
        kept = [self._located.get(path) for path in paths]
        blocks = [one[1] for one in kept if one is not None]
        if len(blocks) < len(paths):
            return  # another thread also reads them
        count = 0

        def read(connection: DataNodeConnection, wait: Wait) -> None:
            def received(content: bytes) -> None:
                nonlocal count
                wait.renew()
                on_content(content)
                self._located.pop(paths[count], None)
                count += 1

            connection.read_small(blocks, self._client, received)

        node = blocks[0].nodes[0]
        try:
            self._use_datanode(node, read)
        except HadoopError as error:
            if isinstance(error, CorruptReplica):
                self._report(paths[count], blocks[count], node, error)
            # Each of the others is now read alone, first from another DataNode.
            for path, block in zip(paths[count:], blocks[count:], strict=True):
                self._located[path] = block.block.size_bytes, block._replace(nodes=(*block.nodes[1:], node))
        if count:
            self._protocol.data_served = True

    def _fetch(self, path: str, fd: int, offset: int, end: int, report: Callable[[int], None]) -> int:
        """Execute `fetch`, or a part of it; return the first missing offset. Raises its errors, and _NotServed."""
        at, dead_ends = offset, 0
        bad: set[tuple[int, str]] = set()
        kept = self._located.pop(path, None)
        block = kept[1] if kept is not None and kept[0] == end and self._listed_blocks_serve else None
        striping: Striping | None = None
        for retry in self._attempts(f"{shown(path)} cannot be read"):
            if at >= end:
                return at
            report(0)
            started = at
            try:
                while at < end:
                    if block is None or not block.offset <= at < block.end:
                        block, striping = self._block_at(path, at, end)
                    stop = min(end, block.end)
                    if striping is None:
                        at = self._read_block(path, block, fd, at, stop, report, bad)
                    else:
                        self._read_group(path, block, striping, fd, at, stop, report)
                        at = stop
                return at
            except _NotServed as why:
                why.at = at
                raise
            except _BlockReadFailed as failed:
                at, block = failed.at, None
                if self._protocol.webhdfs_reason:
                    return at
                dead_ends = 0 if at > started else dead_ends + (failed.answered and not failed.stale)
                if failed.answered:
                    self._check_length(path, end)
                if dead_ends >= MAX_DEAD_ENDS:
                    where_lost = f"{shown(self.place.location + path)} cannot be read from byte {at} on"
                    raise DlappError(f"{where_lost}: {failed} (hdfs fsck says which blocks are lost)") from failed
                bad.clear()
                retry(HdfsUnreachable(str(failed)), progress=at > started)
        raise AssertionError

    def _block_at(self, path: str, at: int, end: int) -> tuple[LocatedBlock, Striping | None]:
        """Return the block, or block group, with a byte of a file, and its erasure coding."""
        call = protocol.get_block_locations(path, at, end - at)
        found = self._read_rpc(path, call, protocol.parse_block_locations)
        if found is None or not (found.is_plain or found.striping):
            raise _NotServed("encrypted files are read by WebHDFS")
        block = found.at(at)
        if block is None:
            self._check_length(path, end)
            raise _BlockReadFailed(f"the NameNode names no block with byte {at}", at, answered=True, stale=False)
        if block.has_token:
            self._listed_blocks_serve = False
        return block, found.striping

    def _read_group(
        self,
        path: str,
        group: LocatedBlock,
        striping: Striping,
        fd: int,
        at: int,
        end: int,
        report: Callable[[int], None],
    ) -> None:
        """Read a part of a block group of an erasure coded file, from each of its blocks.

        Args:
            at, end: the part, as offsets in the file.

        Raises:
            _NotServed: one of the blocks cannot be read; a DataNode can reconstruct its content from the others.
        """
        count, cell = striping
        first, last = (at - group.offset) // cell, (end - 1 - group.offset) // cell
        for index in range(count):
            cells = range(first + (index - first) % count, last + 1, count)
            if not cells:
                continue
            block = group.of_group(index, striping)
            if block is None:
                raise _NotServed("erasure coded files of which a block is missing are read by WebHDFS")
            starts = [group.offset + one * cell for one in cells]
            spans = [(max(one, at), min(one + cell, end)) for one in starts]
            begin = cells[0] // count * cell + spans[0][0] - starts[0]
            size = sum(stop - start for start, stop in spans)
            try:
                self._read_from(block.nodes[0], block, begin, begin + size, _range_writer(fd, spans, report))
            except CannotVerify as error:
                self._can_verify = False
                raise _NotServed(f"files are read by WebHDFS: {error}") from error
            except (CorruptReplica, BlockRefused, ConnectionLost, NotHadoop) as error:
                if isinstance(error, CorruptReplica):
                    self._report(path, block, block.nodes[0], error)
                raise _NotServed(f"an erasure coded file is read by WebHDFS: {error}") from error
            self._protocol.data_served = True

    def _report(self, path: str, block: LocatedBlock, node: DataNode, error: CorruptReplica) -> None:
        log.warning(f"{shown(self.place.location + path)}: {error}; notifying the NameNode, and reading it another way")
        with contextlib.suppress(DlappError):
            self._rpc(path, protocol.report_bad_block(block, node), ignore)

    def _read_block(
        self,
        path: str,
        block: LocatedBlock,
        fd: int,
        at: int,
        end: int,
        report: Callable[[int], None],
        bad: set[tuple[int, str]],
    ) -> int:
        """Read a part of a block from one of its DataNodes; return its end.

        Args:
            at, end: the part, as offsets in the file.
            bad: failed pairs of block and DataNode.

        Raises:
            _BlockReadFailed: no DataNode could deliver it.
            _NotServed: its checksums cannot be verified here.
        """
        failures, answered, stale = [], False, False

        def on_content(pieces: list[memoryview]) -> None:
            nonlocal at
            count = write_all(fd, pieces, at)
            at += count
            report(count)

        for node in block.nodes:
            if (block.block.block_id, node.name) in bad:
                continue
            try:
                self._read_from(node, block, at, end, on_content)
                self._protocol.data_served = True
                return end
            except CannotVerify as error:
                # Most others have the same checksum type; they are not tried one by one.
                self._can_verify = False
                raise _NotServed(f"files are read by WebHDFS: {error}") from error
            except CorruptReplica as error:
                answered = True
                failures.append(str(error))
                self._report(path, block, node, error)
            except BlockRefused as error:
                answered = True
                if error.refusal.status == packets.ACCESS_TOKEN:
                    stale, self._listed_blocks_serve = True, self._listed_blocks_serve and block.has_token
                failures.append(str(error))
            except (ConnectionLost, NotHadoop) as error:
                failures.append(str(error))
                stale = stale or isinstance(error, ConnectionLost)
            bad.add((block.block.block_id, node.name))
            if at >= end:
                return at
        why = "; ".join(failures) or "no DataNode has it now"
        if failures and not answered and self._may_fall_back():
            self._fall_back(f"no DataNode serves its data port: {why}")
        raise _BlockReadFailed(f"block {block.block.block_id}: {why}", at, answered=answered, stale=stale)

    def _read_from(
        self, node: DataNode, block: LocatedBlock, at: int, end: int, on_content: Callable[[list[memoryview]], None]
    ) -> None:
        def read(connection: DataNodeConnection, wait: Wait) -> None:
            def received(pieces: list[memoryview]) -> None:
                wait.renew()
                on_content(pieces)

            connection.read(block, self._client, at - block.offset, end - at, received)

        self._use_datanode(node, read)

    def _use_datanode(self, node: DataNode, use: Callable[[DataNodeConnection, Wait], None]) -> None:
        """Call ``use`` with a connection to a DataNode, and its wait, which restarts whenever data arrived."""
        address = self._address_of(node)
        wait = self._wait_for_datanode(address)
        for is_new in (False, True):
            connection, was_used = self._nodes.acquire(address, self._connect_datanode, is_new=is_new)
            good = False
            try:
                with wait.renew():
                    use(connection, wait)
                good = True
                return
            except ConnectionLost:
                if not was_used or connection.has_heard:
                    raise  # else the DataNode had closed it meanwhile
            finally:
                self._nodes.release(address, connection, reusable=good)

    def _address_of(self, node: DataNode) -> Address:
        """Return the address of a DataNode's data port, by its name if the configuration wants that."""
        return (node.hostname if self.place.by_hostname and node.hostname else node.host), node.port

    def _wait_for_datanode(self, address: Address) -> Wait:
        return Wait(f"HDFS at {address[0]}:{address[1]}", self._timeout_s[1])

    def _connect_datanode(self, address: Address) -> DataNodeConnection:
        return DataNodeConnection(address, connect_s=self._timeout_s[0], silence_s=self._timeout_s[1])

    # ---- writing ----

    def _write(
        self, path: str, data: bytes | RequestBody, mode: int, parents: bool, report: Callable[[int], None]
    ) -> None:
        """Execute `write`. Raises _NotServed, with nothing left behind, and the errors of `write`."""
        source = _source(data)
        defaults = self._server_defaults()
        kind = defaults.checksum_kind
        if kind == CRC32C and not has_crc32c():
            kind = CRC32
        try:
            checksum = Checksum(kind, defaults.bytes_per_checksum)
        except CannotVerify as error:
            raise _NotServed(f"files are written by WebHDFS: {error}") from error
        dead_ends, tried = 0, False
        excluded: list[DataNode] = []
        for retry in self._attempts(f"{shown(path)} cannot be written"):
            report(0)
            try:
                # Leftovers of an earlier try are removed first; a late call of that try finds another file, or none.
                if tried:
                    self.clear(path, file=True)
                tried = True
                self._write_once(path, source, mode, parents, checksum, excluded)
                return
            except AlreadyThere as error:
                retry(HdfsUnreachable(str(error), doubtful=True))
            except HdfsUnreachable as error:
                retry(type(error)(str(error), doubtful=True))
            except DiskFull as error:
                dead_ends += 1
                if "quota" in str(error).lower() or dead_ends >= MAX_DEAD_ENDS:
                    self._remove_incomplete(path)
                    raise
                excluded.clear()
                retry(DataNodeUnreachable(str(error), doubtful=True))
            except SourceEnded:
                self._remove_incomplete(path)
                raise DlappError(f"the source of {shown(path)} became shorter while it was stored") from None
            except _NotServed:
                self.clear(path, file=True)
                raise
            except DlappError:
                self._remove_incomplete(path)
                raise

    def _remove_incomplete(self, path: str) -> None:
        """Remove an incomplete file, so that it does not stay open; HDFS closes a remaining one after an hour."""
        with contextlib.suppress(DlappError):
            self.clear(path, file=True)

    def _write_once(
        self, path: str, source: _BlockSource, mode: int, parents: bool, checksum: Checksum, excluded: list[DataNode]
    ) -> None:
        defaults = self._server_defaults()
        call = protocol.create(path, mode, self._client, defaults, parents=parents)
        made = self._rpc(path, call, protocol.parse_file_info)
        if made is None:
            raise WrongAnswer(f"{shown(self.place.location + path)}: the NameNode sent no status of a new file")
        if made.is_encrypted or made.ec_policy:
            raise _NotServed("encrypted and erasure coded files are written by WebHDFS")
        last: HdfsBlock | None = None
        for start in range(0, source.size_bytes, defaults.block_bytes):
            count = min(defaults.block_bytes, source.size_bytes - start)
            last = self._write_block(path, made.inode_id, source, start, count, last, checksum, excluded)
        self._complete(path, made.inode_id, last)

    def _write_block(
        self,
        path: str,
        file_id: int,
        source: _BlockSource,
        start: int,
        count: int,
        previous: HdfsBlock | None,
        checksum: Checksum,
        excluded: list[DataNode],
    ) -> HdfsBlock:
        """Write one block of an open file, retrying with new pipelines; return it.

        Args:
            start, count: the block's range of the file.
            excluded: failed DataNodes; extended here.

        Raises:
            DataNodeUnreachable: repeated pipelines failed. DiskFull, SourceEnded, and what the NameNode refuses.
        """
        failures: list[str] = []
        answered = False
        while len(failures) < MAX_DEAD_ENDS:
            located = self._add_block(path, file_id, previous, excluded)
            address = self._address_of(located.nodes[0])
            try:
                connection, _ = self._nodes.acquire(address, self._connect_datanode, is_new=True)
                try:
                    with self._wait_for_datanode(address) as wait:
                        connection.write(
                            located,
                            self._client,
                            checksum,
                            lambda at, size: source.read(start + at, size),
                            count,
                            lambda: self._between_packets(wait),
                        )
                finally:
                    self._nodes.release(address, connection, reusable=False)
                self._protocol.data_served = True
                return located.block._replace(size_bytes=count)
            except (BlockRefused, PipelineFailed, ConnectionLost, NotHadoop) as error:
                failures.append(str(error))
                excluded.append(_bad_node(located, error))
                answered = answered or isinstance(error, (BlockRefused, PipelineFailed))
                # One DataNode may be down; if there is no other, the NameNode returns it again.
                if len(failures) > 1 and not answered and self._may_fall_back():
                    self._fall_back(f"no DataNode serves its data port: {error}")
                    raise _NotServed(str(error)) from error
                self._rpc(path, protocol.abandon_block(path, self._client, file_id, located.block), ignore)
        raise DataNodeUnreachable("; ".join(failures), doubtful=True)

    def _add_block(self, path: str, file_id: int, previous: HdfsBlock | None, excluded: list[DataNode]) -> LocatedBlock:
        call = protocol.add_block(path, self._client, file_id, previous, excluded)
        for retry in self._attempts(f"{shown(path)} cannot be written"):
            try:
                return self._rpc(path, call, protocol.parse_added_block)
            except DiskFull as error:
                if not excluded or "quota" in str(error).lower():
                    raise
                # No DataNode is left; a failed one is better than none.
                excluded.clear()
                call = protocol.add_block(path, self._client, file_id, previous, ())
            except HdfsRefused as refused:
                if refused.java_class != "NotReplicatedYetException":
                    raise
                retry(HdfsUnreachable(str(refused), doubtful=True))
        raise AssertionError

    def _complete(self, path: str, file_id: int, last: HdfsBlock | None) -> None:
        """Close a file: the NameNode waits for the DataNodes' reports of all blocks, usually some milliseconds."""
        call = protocol.complete(path, self._client, file_id, last)
        began, pause_s = self._clock(), 0.002
        while not self._rpc(path, call, protocol.parse_flag):
            if self._clock() - began > _LONGEST_CLOSE_S:
                raise DataNodeUnreachable("the NameNode has no report of its blocks", doubtful=True)
            self._sleep(pause_s)
            pause_s = min(2 * pause_s, 0.4)

    def _between_packets(self, wait: Wait) -> None:
        """Restart a wait; from time to time renew the lease on this client's open files."""
        wait.renew()
        now_s = self._clock()
        if now_s - self._lease_renewed_s > _LEASE_S:
            self._lease_renewed_s = now_s
            self._rpc("/", protocol.renew_lease(self._client), ignore)


def _range_writer(
    fd: int, spans: list[tuple[int, int]], report: Callable[[int], None]
) -> Callable[[list[memoryview]], None]:
    """Return a function that writes arriving content to ranges of a file, each with its first byte and its end."""
    todo = iter(spans)
    at, end = next(todo)

    def on_content(pieces: list[memoryview]) -> None:
        nonlocal at, end
        for piece in pieces:
            while piece:
                if at == end:
                    at, end = next(todo)
                count = write_all(fd, [piece[: end - at]], at)
                at, piece = at + count, piece[count:]
                report(count)

    return on_content


def _source(data: bytes | RequestBody) -> _BlockSource:
    if isinstance(data, bytes):
        return _BlockSource(lambda at, size: data[at : at + size], len(data))
    return _BlockSource(lambda at, size: os.pread(data.fd, size, at), data.size)


def _bad_node(located: LocatedBlock, error: HadoopError) -> DataNode:
    """Return the DataNode that failed, if known; else the first one of the pipeline."""
    if isinstance(error, PipelineFailed):
        return located.nodes[min(error.position, len(located.nodes) - 1)]
    named = error.refusal.bad_node if isinstance(error, BlockRefused) else ""
    return next((one for one in located.nodes if one.name == named), located.nodes[0])


def _file_status(found: Status) -> FileStatus:
    return FileStatus(
        name=found.name,
        is_dir=found.kind == protocol.DIRECTORY,
        size_bytes=found.size_bytes,
        inode_id=found.inode_id,
        mode=found.mode,
        mtime_ms=found.mtime_ms,
        owner=found.owner,
        link=found.link if found.kind == protocol.SYMLINK else None,
        group=found.group,
        encrypted=found.is_encrypted,
        has_acl=found.has_acl,
        storage_policy=found.storage_policy,
        replication=found.replication if found.kind == protocol.FILE else 0,
        ec_policy=found.ec_policy,
    )
