"""The ensemble of ZooKeeper servers as the ledger of a cluster needs it; the one user of kazoo.

A node is read, written where its version is still the one that was read, and made. No record is ever removed, only
names in a list of hosts (`dlapp.gpuid.stores.short_hosts`). Each call has a deadline of its own, for a session that is
lost means nothing here: what may be repeated is, on the next connection.

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

READ_AT_ONCE = 256
"""Nodes that are asked for at the same time."""


_RECONNECT_S = 5.0
"""The longest pause between two tries to connect, of those who wait for an answer."""


class Unsure(Exception):
    """The connection was lost while a write was on its way."""


class Overtaken(Exception):
    """Somebody else has written since, and nothing was."""


class _LastWarning(logging.Handler):
    """Keeps what kazoo said last of a connection that failed: it tells nobody else."""

    last = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.last = " ".join(record.getMessage().split())[:300]


class TlsFiles:
    """Certificates as files, which OpenSSL can only read by name; in memory, until nobody refers to them any more.

    Args:
        certificates: of the CAs that servers are trusted by (PEM); empty: the system's.
        client_certificate: with its key (PEM); empty: none is shown.

    Attributes:
        options: of kazoo's client.
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
    """A connection to it, made when it is first needed. Its methods may be called from several threads.

    Args:
        hosts: ``zk1:2181,zk2:2181,zk3:2181``.
        root: path below which all nodes lie.
        credentials: ``user:password`` of the digest scheme; empty: the nodes are open to everybody.
        tls: by what servers are trusted, and what is shown to them; None: connections are not encrypted.
        clock: what deadlines are of [s].

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
        """A node's content and its version; None: there is no such node.

        Args:
            newest: all that was written to the ensemble until now, not only what the server that answers has heard of.
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
        """The names of the nodes below one, in order; none where there is no such node."""
        from kazoo.exceptions import NoNodeError

        try:
            return sorted(self._call(methodcaller("get_children_async", path), deadline))
        except NoNodeError:
            return []

    def read_all(self, paths: Iterable[str], deadline: Callable[[], float]) -> Iterator[bytes]:
        """Return what is in some nodes, in their order; nothing where there is no such node.

        Args:
            deadline: asked for each answer anew, for who looks at them may take a pause.
        """
        from kazoo.exceptions import NoNodeError

        waiting: deque[tuple[str, Any]] = deque()
        client = self._connected(deadline())
        for path in [*paths, None]:
            if path is not None:
                waiting.append((path, client.get_async(path)))
            while waiting and (path is None or len(waiting) >= READ_AT_ONCE):
                first, answer = waiting.popleft()
                until = deadline()
                try:
                    data = self._answer(answer, until)[0]
                except NoNodeError:
                    data = b""
                except Unsure:
                    data, _ = self.read(first, until) or (b"", -1)
                yield data

    def write(self, path: str, data: bytes, version: int, deadline: float) -> int:
        """Write a node whose version is still ``version``. Return the new version.

        Args:
            path: of the node.
            data: its new content.
            version: the one that was read.
            deadline: when to give up [s, monotonic].

        Raises:
            Overtaken: it is not.
            Unsure: it may have been written.
        """
        from kazoo.exceptions import BadVersionError

        with self._permitted(path):
            try:
                stat = self._answer(self._connected(deadline).set_async(path, data, version), deadline)
            except BadVersionError as error:
                raise Overtaken from error
        return int(stat.version)

    def make(self, path: str, data: bytes, deadline: float) -> int:
        """Make a node, and those above it where they are missing; the answer is its version.

        Everybody reads; the holder of the credentials writes; and from below the node that holds it nobody, not even
        they, removes anything.

        Raises:
            Overtaken: it is there.
            Unsure: it may have been made.
        """
        from kazoo.exceptions import NodeExistsError

        parent = path.rpartition("/")[0]
        with self._permitted(path):
            self._make_parents(parent, deadline)
            try:
                self._answer(self._connected(deadline).create_async(path, data, acl=self._acl()), deadline)
            except NodeExistsError as error:
                raise Overtaken from error
        return 0

    def make_list(self, path: str, deadline: float) -> None:
        """Make a node for names that may be removed again, where it is missing."""
        with self._permitted(path):
            self._make_parents(path, deadline, keeps=False)

    def put_name(self, path: str, deadline: float) -> None:
        """Make a node, or change its version where it is there. Where the node above it is missing, do nothing.

        Raises:
            Unsure: it may have been made.
        """
        from kazoo.exceptions import NodeExistsError, NoNodeError

        with self._permitted(path), contextlib.suppress(NoNodeError):
            try:
                self._answer(self._connected(deadline).create_async(path, b"", acl=self._acl()), deadline)
            except NodeExistsError:
                self._answer(self._connected(deadline).set_async(path, b""), deadline)

    def remove_name(self, path: str, version: int, deadline: float) -> None:
        """Remove a node that `put_name` made, if its version is still ``version``.

        Raises:
            Unsure: it may have been removed.
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
                with contextlib.suppress(Unsure):  # it is asked again whether it is there
                    with contextlib.suppress(NodeExistsError):
                        self._answer(self._connected(deadline).create_async(one, b"", acl=acl), deadline)
                    break

    def _acl(self, *, parent: bool = False) -> list[Any] | None:
        """Everybody reads, the holder of the credentials writes, and nobody deletes a child (a right on its parent)."""
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
        """End the connection."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.stop()
            client.close()

    # ---- the connection ----

    def connect(self, deadline: float) -> None:
        """Return once a server has answered. Raises Unreachable: none has until then."""
        self._connected(deadline)

    @property
    def _no_answer(self) -> str:
        if self._tls is None:
            return f"no ZooKeeper answered in time: {self._hosts}"
        why = f": {self._warnings.last}" if self._warnings.last else ""
        return f"no ZooKeeper answered in time by TLS (gpuid.zookeeper.ca): {self._hosts}{why}"

    def _connected(self, deadline: float) -> Any:
        """The client, when it is connected. Raises Unreachable."""
        with self._lock:
            if self._client is None:
                self._client = self._start()
            client = self._client
        while not client.connected:
            if self._clock() >= deadline:
                raise Unreachable(self._no_answer)
            self._sleep(0.005)
        return client

    def _start(self) -> Any:
        from kazoo.client import KazooClient

        # Of this connection alone: nothing is written.
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

    def _call(self, ask: Callable[[Any], Any], deadline: float) -> Any:
        """A call that may be repeated, until it is answered."""
        while True:
            try:
                return self._answer(ask(self._connected(deadline)), deadline)
            except Unsure as error:
                if self._clock() >= deadline:
                    raise Unreachable(self._no_answer) from error
                self._sleep(random.uniform(0.01, 0.05))

    def _answer(self, pending: Any, deadline: float) -> Any:
        from kazoo.exceptions import (
            AuthFailedError,
            ConnectionClosedError,
            ConnectionLoss,
            OperationTimeoutError,
            SessionExpiredError,
            SessionMovedError,
        )
        from kazoo.handlers.threading import KazooTimeoutError

        try:
            return pending.get(timeout=max(0.01, deadline - self._clock()))
        except KazooTimeoutError as error:
            raise Unreachable(self._no_answer) from error
        except AuthFailedError as error:
            raise Denied(f"ZooKeeper at {self._hosts} refuses the credentials") from error
        except (
            ConnectionLoss,
            ConnectionClosedError,
            OperationTimeoutError,
            SessionExpiredError,
            SessionMovedError,
        ) as error:
            raise Unsure from error


def _threads() -> Any:
    """Return kazoo's threading handler with other waits: kazoo makes an epoll set for each, four for an operation, and
    spends more than a third of its time on that."""
    import ssl

    from kazoo.handlers.threading import SequentialThreadingHandler

    handler = SequentialThreadingHandler()
    kazoos = handler.select

    def wait(*args: Any) -> Any:
        # What TLS has decrypted with an earlier answer is not seen on the socket any more.
        if ready := [one for one in args[0] if isinstance(one, ssl.SSLSocket) and one.pending()]:
            return ready, [], []
        try:
            return select.select(*args)
        except ValueError:  # a descriptor that is too high for it
            return kazoos(*args)

    handler.select = wait
    return handler
