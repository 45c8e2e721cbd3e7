"""The ensemble of ZooKeeper servers as the ledger of a cluster needs it; the one user of kazoo.

A node is read, written where its version is still the one that was read, and made; none is ever removed. Each call has
a deadline of its own, for a session that is lost means nothing here: what may be repeated is, on the next connection.

Source: ZooKeeper Programmer's Guide, "Consistency Guarantees" (a conditional write is decided by the leader; a read may
be old, sync brings the server up to date).
"""

from __future__ import annotations

import contextlib
import functools
import logging
import random
import select
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from dlapp.errors import Denied, Unreachable
from dlapp.gpuid.rules import LedgerError

READ_AT_ONCE = 256
"""Nodes that are asked for at the same time."""


class Unsure(Exception):
    """The connection was lost while a write was on its way."""


class Overtaken(Exception):
    """Somebody else has written since, and nothing was."""


class Ensemble:
    """A connection to it, made when it is first needed. Its methods may be called from several threads.

    Args:
        hosts: ``zk1:2181,zk2:2181,zk3:2181``.
        root: path below which all nodes lie.
        credentials: ``user:password`` of the digest scheme; empty: the nodes are open to everybody.
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
    ) -> None:
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
            self._call(functools.partial(_sync, path), deadline)
        try:
            data, stat = self._call(functools.partial(_get, path), deadline)
        except NoNodeError:
            return None
        return data, int(stat.version)

    def read_children(self, path: str, deadline: Callable[[], float]) -> Iterator[tuple[str, bytes]]:
        """The names of the nodes below one, in order, and what is in them; none where there is no such node.

        Args:
            deadline: asked for each answer anew, for who looks at them may take a pause.
        """
        from kazoo.exceptions import NoNodeError

        try:
            names = self._call(lambda client: client.get_children_async(path), deadline())
        except NoNodeError:
            return
        waiting: deque[tuple[str, Any]] = deque()
        client = self._connected(deadline())
        for name in [*sorted(names), None]:
            if name is not None:
                waiting.append((name, client.get_async(f"{path}/{name}")))
            while waiting and (name is None or len(waiting) >= READ_AT_ONCE):
                first, answer = waiting.popleft()
                until = deadline()
                try:
                    data = self._answer(answer, until)[0]
                except Unsure:
                    data = self._call(functools.partial(_get, f"{path}/{first}"), until)[0]
                yield first, data

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

    def _make_parents(self, path: str, deadline: float) -> None:
        from kazoo.exceptions import NodeExistsError

        one = ""
        for name in path.strip("/").split("/"):
            one += f"/{name}"
            if self._call(functools.partial(_exists, one), deadline) is None:
                acl = self._acl(parent=one == path) if one.startswith(self._root) else None
                with contextlib.suppress(NodeExistsError, Unsure):
                    self._answer(self._connected(deadline).create_async(one, b"", acl=acl), deadline)

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

    def _connected(self, deadline: float) -> Any:
        """The client, when it is connected. Raises Unreachable."""
        with self._lock:
            if self._client is None:
                self._client = self._start()
            client = self._client
        while not client.connected:
            if self._clock() >= deadline:
                raise Unreachable(f"no ZooKeeper answered in time: {self._hosts}")
            self._sleep(0.005)
        return client

    def _start(self) -> Any:
        from kazoo.client import KazooClient

        logger = logging.getLogger("dlapp.gpuid.stores.zookeeper")
        logger.addHandler(logging.NullHandler())
        logger.propagate = False
        try:
            client = KazooClient(
                hosts=self._hosts,
                timeout=self._session_timeout_s,
                auth_data=[("digest", self._credentials)] if self._credentials else [],
                connection_retry={"max_tries": -1, "delay": 0.05, "max_delay": 1.0},
                handler=_threads(),
                logger=logger,
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
                    raise Unreachable(f"no ZooKeeper answered in time: {self._hosts}") from error
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
            raise Unreachable(f"no ZooKeeper answered in time: {self._hosts}") from error
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
    from kazoo.handlers.threading import SequentialThreadingHandler

    handler = SequentialThreadingHandler()
    kazoos = handler.select

    def wait(*args: Any) -> Any:
        try:
            return select.select(*args)
        except ValueError:  # a descriptor that is too high for it
            return kazoos(*args)

    handler.select = wait
    return handler


def _get(path: str, client: Any) -> Any:
    return client.get_async(path)


def _sync(path: str, client: Any) -> Any:
    return client.sync_async(path)


def _exists(path: str, client: Any) -> Any:
    return client.exists_async(path)
