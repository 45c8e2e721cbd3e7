"""ZooKeeper ensemble, with the operations that a cluster's ledger needs; the only user of kazoo.

A node is read, written if its version is still the one read, and created. No record is ever removed, only names in a
list of hosts (`dlapp.gpuid.stores.short_hosts`). Each call has its own deadline, as a lost session has no meaning here:
what may be repeated is repeated on the next connection.

Source: ZooKeeper Programmer's Guide, "Consistency Guarantees" (a conditional write is decided by the leader; a read may
be old, sync brings the server up to date).
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import select
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from operator import methodcaller
from typing import Any

from dlapp.errors import Denied, Unreachable
from dlapp.gpuid.rules import LedgerError
from dlapp.system.waits import Wait

PARALLEL_READS = 256
"""Number of nodes requested concurrently."""


_RECONNECT_S = 5.0
"""Longest pause between two connection attempts while a call waits."""


class OutcomeUnknown(Exception):
    """Loss of the connection during a write, which may or may not have succeeded."""


class VersionConflict(Exception):
    """Another client has written since; nothing was written."""


class _LastWarning(logging.Handler):
    """Store of kazoo's last log message about a failed connection, which kazoo reports nowhere else."""

    last = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.last = " ".join(record.getMessage().split())[:300]


class TlsFiles:
    """Certificates as files, which OpenSSL can only load by path; in memory, while they are referenced.

    Args:
        certificates: trusted CAs of the servers (PEM); empty: the system's.
        client_certificate: with its key (PEM); empty: none.

    Attributes:
        options: options for kazoo's client.
    """

    def __init__(self, certificates: str, client_certificate: str) -> None:
        self._fds = [_in_memory(text) for text in (certificates, client_certificate) if text]
        paths = [f"/proc/self/fd/{fd}" for fd in self._fds]
        self.options: dict[str, Any] = {"use_ssl": True, "verify_certs": True, "check_hostname": True}
        if client_certificate:
            self.options["certfile"] = self.options["keyfile"] = paths.pop()
        if certificates:
            self.options["ca"] = paths.pop()

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        for fd in self._fds:
            close(fd)


def _in_memory(text: str) -> int:
    fd = os.memfd_create("dlapp-certificates", os.MFD_CLOEXEC)
    with open(fd, "wb", closefd=False) as file:
        file.write(text.encode())
    return fd


class Ensemble:
    """Connection to the ensemble, opened on first use. Thread-safe.

    Args:
        hosts: ``zk1:2181,zk2:2181,zk3:2181``.
        root: path of the parent of all nodes.
        credentials: ``user:password`` of the digest scheme; empty: the nodes are open to everyone.
        tls: certificates for TLS; None: connections are not encrypted.
        clock: clock of the deadlines [s].

    All calls may raise Unreachable (no answer until the deadline), Denied (the credentials are refused) and
    LedgerError (the ensemble's addresses cannot be read).
    """

    def __init__(
        self,
        hosts: str,
        *,
        root: str,
        credentials: str,
        session_timeout_s: float,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
        tls: TlsFiles | None = None,
    ) -> None:
        self._tls = tls
        self._warnings = _LastWarning()
        self._hosts, self._root, self._credentials = hosts, root.rstrip("/"), credentials
        self._session_timeout_s = session_timeout_s
        self._clock, self._sleep = clock, sleep
        self._lock = threading.Lock()
        self._client: Any = None

    def read(self, path: str, deadline: float, *, newest: bool = False) -> tuple[bytes, int] | None:
        """Return a node's content and its version; None: it does not exist.

        Args:
            newest: include everything written to the ensemble so far, not only what the answering server has received.
        """
        from kazoo.exceptions import NoNodeError

        if newest:
            self._call(methodcaller("sync_async", path), deadline)
        try:
            data, stat = self._call(methodcaller("get_async", path), deadline)
        except NoNodeError:
            return None
        return data, int(stat.version)

    def names(self, path: str, deadline: float) -> list[str]:
        """Return the names of a node's children, in order; none if it does not exist."""
        from kazoo.exceptions import NoNodeError

        try:
            return sorted(self._call(methodcaller("get_children_async", path), deadline))
        except NoNodeError:
            return []

    def read_all(self, paths: Iterable[str], deadline: Callable[[], float]) -> Iterator[bytes]:
        """Return the content of some nodes, in their order; empty if a node does not exist.

        Args:
            deadline: evaluated for each answer, as the consumer may pause in between.
        """
        from kazoo.exceptions import NoNodeError

        waiting: deque[tuple[str, Any]] = deque()
        client = self._connected(deadline())
        for path in [*paths, None]:
            if path is not None:
                waiting.append((path, client.get_async(path)))
            while waiting and (path is None or len(waiting) >= PARALLEL_READS):
                first, answer = waiting.popleft()
                until = deadline()
                try:
                    data = self._answer(answer, until)[0]
                except NoNodeError:
                    data = b""
                except OutcomeUnknown:
                    data, _ = self.read(first, until) or (b"", -1)
                yield data

    def write(self, path: str, data: bytes, version: int, deadline: float) -> int:
        """Write a node if its version is still ``version``. Return the new version.

        Args:
            path: the path of the node.
            data: its new content.
            version: the version that was read.
            deadline: time limit [s, monotonic].

        Raises:
            VersionConflict: the version has changed.
            OutcomeUnknown: it may have been written.
        """
        from kazoo.exceptions import BadVersionError

        with self._permitted(path):
            try:
                stat = self._answer(self._connected(deadline).set_async(path, data, version), deadline)
            except BadVersionError as error:
                raise VersionConflict from error
        return int(stat.version)

    def make(self, path: str, data: bytes, deadline: float) -> int:
        """Create a node and its missing parents; return its version.

        Everyone may read; the holder of the credentials may write; and nobody, not even they, may remove children of
        its parent node.

        Raises:
            VersionConflict: it exists.
            OutcomeUnknown: it may have been created.
        """
        from kazoo.exceptions import NodeExistsError

        parent = path.rpartition("/")[0]
        with self._permitted(path):
            self._make_parents(parent, deadline)
            try:
                self._answer(self._connected(deadline).create_async(path, data, acl=self._acl()), deadline)
            except NodeExistsError as error:
                raise VersionConflict from error
        return 0

    def make_list(self, path: str, deadline: float) -> None:
        """Create a parent node for removable names, if missing."""
        with self._permitted(path):
            self._make_parents(path, deadline, keeps=False)

    def put_name(self, path: str, deadline: float) -> None:
        """Create a node, or increment the version of an existing one. Do nothing if its parent is missing.

        Raises:
            OutcomeUnknown: it may have been created.
        """
        from kazoo.exceptions import NodeExistsError, NoNodeError

        with self._permitted(path), contextlib.suppress(NoNodeError):
            try:
                self._answer(self._connected(deadline).create_async(path, b"", acl=self._acl()), deadline)
            except NodeExistsError:
                self._answer(self._connected(deadline).set_async(path, b""), deadline)

    def remove_name(self, path: str, version: int, deadline: float) -> None:
        """Remove a node created by `put_name`, if its version is still ``version``.

        Raises:
            OutcomeUnknown: it may have been removed.
        """
        from kazoo.exceptions import BadVersionError, NoNodeError

        with self._permitted(path), contextlib.suppress(NoNodeError, BadVersionError):
            self._answer(self._connected(deadline).delete_async(path, version), deadline)

    def _make_parents(self, path: str, deadline: float, *, keeps: bool = True) -> None:
        from kazoo.exceptions import NodeExistsError

        one = ""
        for name in path.strip("/").split("/"):
            one += f"/{name}"
            acl = self._acl(parent=keeps and one == path) if one.startswith(self._root) else None
            while self._call(methodcaller("exists_async", one), deadline) is None:
                with contextlib.suppress(OutcomeUnknown):  # its existence is checked again
                    with contextlib.suppress(NodeExistsError):
                        self._answer(self._connected(deadline).create_async(one, b"", acl=acl), deadline)
                    break

    def _acl(self, *, parent: bool = False) -> list[Any] | None:
        """Return an ACL: everyone reads, the holder of the credentials writes, nobody deletes a child (a right on the
        parent)."""
        from kazoo.security import OPEN_ACL_UNSAFE, make_acl, make_digest_acl

        if not self._credentials:
            return list(OPEN_ACL_UNSAFE)
        user, _, password = self._credentials.partition(":")
        ours = make_digest_acl(user, password, read=True, write=True, create=True, delete=not parent, admin=True)
        return [ours, make_acl("world", "anyone", read=True)]

    @contextlib.contextmanager
    def _permitted(self, path: str) -> Iterator[None]:
        from kazoo.exceptions import NoAuthError

        try:
            yield
        except NoAuthError as error:
            raise Denied(
                f"ZooKeeper at {self._hosts}: {path} may not be written with these credentials "
                f"(gpuid.zookeeper.credentials)"
            ) from error

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.stop()
            client.close()

    # ---- the connection ----

    def connect(self, deadline: float) -> None:
        """Return once a server has answered. Raises Unreachable: none has by the deadline."""
        self._connected(deadline)

    @property
    def _no_answer(self) -> str:
        if self._tls is None:
            return f"no ZooKeeper answered in time: {self._hosts}"
        why = f": {self._warnings.last}" if self._warnings.last else ""
        return f"no ZooKeeper answered in time by TLS (gpuid.zookeeper.ca): {self._hosts}{why}"

    def _connected(self, deadline: float) -> Any:
        """Return the connected client. Raises Unreachable."""
        with self._lock:
            if self._client is None:
                self._client = self._start()
            client = self._client
        if client.connected:
            return client
        with Wait(f"ZooKeeper at {self._hosts}", max(0.0, deadline - self._clock())):
            while not client.connected:
                if self._clock() >= deadline:
                    raise Unreachable(self._no_answer)
                self._sleep(0.005)
        return client

    def _start(self) -> Any:
        from kazoo.client import KazooClient

        # A logger of this connection only: it writes nothing.
        logger = logging.Logger("kazoo", logging.WARNING)
        logger.addHandler(self._warnings)
        try:
            client = KazooClient(
                hosts=self._hosts,
                timeout=self._session_timeout_s,
                auth_data=[("digest", self._credentials)] if self._credentials else [],
                connection_retry={"max_tries": -1, "delay": 0.05, "max_delay": _RECONNECT_S},
                handler=_threads(),
                logger=logger,
                **({} if self._tls is None else self._tls.options),
            )
        except ValueError as error:
            raise LedgerError(f"gpuid.zookeeper.ensemble: {self._hosts}: {error}") from error
        client.start_async()
        return client

    def _call(self, request: Callable[[Any], Any], deadline: float) -> Any:
        """Repeat a call until it is answered."""
        while True:
            try:
                return self._answer(request(self._connected(deadline)), deadline)
            except OutcomeUnknown as error:
                if self._clock() >= deadline:
                    raise Unreachable(self._no_answer) from error
                self._sleep(random.uniform(0.01, 0.05))

    def _answer(self, pending: Any, deadline: float) -> Any:
        from kazoo import exceptions
        from kazoo.handlers.threading import KazooTimeoutError

        try:
            return pending.get(timeout=max(0.01, deadline - self._clock()))
        except KazooTimeoutError as error:
            raise Unreachable(self._no_answer) from error
        except exceptions.AuthFailedError as error:
            raise Denied(f"ZooKeeper at {self._hosts} refuses the credentials") from error
        except (
            exceptions.ConnectionLoss,
            exceptions.ConnectionClosedError,
            exceptions.OperationTimeoutError,
            exceptions.SessionExpiredError,
            exceptions.SessionMovedError,
        ) as error:
            raise OutcomeUnknown from error


def _threads() -> Any:
    """Return kazoo's threading handler with another wait: kazoo creates an epoll set for each wait, four per operation,
    and spends more than a third of its time on that."""
    import ssl

    from kazoo.handlers.threading import SequentialThreadingHandler

    handler = SequentialThreadingHandler()
    kazoos = handler.select

    def wait(*args: Any) -> Any:
        # Data that TLS has decrypted with an earlier answer does not make the socket readable.
        if ready := [one for one in args[0] if isinstance(one, ssl.SSLSocket) and one.pending()]:
            return ready, [], []
        try:
            return select.select(*args)
        except ValueError:  # the descriptor's number is too high for it
            return kazoos(*args)

    handler.select = wait
    return handler
