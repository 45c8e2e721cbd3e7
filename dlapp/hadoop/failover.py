"""Calls to one of several redundant servers, with retries."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from dlapp.hadoop.connection import Connection
from dlapp.hadoop.errors import ConnectionLost, HadoopError, NotHadoop, TokenRefused, TryAgain
from dlapp.hadoop.tokens import Token
from dlapp.hadoop.wire import Fields
from dlapp.login import Login
from dlapp.system.clock import backoff_s
from dlapp.system.waits import Wait
from dlapp.value import Closeable

_A = TypeVar("_A")
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.05, 2.0


class RpcClient(Closeable):
    """Client of one protocol on redundant servers; keeps the connection that worked last.

    A call without an answer, or with `TryAgain`, is repeated until its deadline, each time on the next address: only
    repeatable calls use this class, as all supported calls are. For one thread.

    Args:
        what: display name of the servers, ``ResourceManager``.
        addresses: addresses of servers of which one is active at a time.
        proof: authentication: a token, or the login for SIMPLE authentication.
        try_s: time limit of one try on one server.
        connect_s: time limit of a connection and its handshake; None: ``try_s``.
    """

    def __init__(
        self,
        what: str,
        addresses: Sequence[tuple[str, int]],
        protocol: str,
        proof: Token | Login,
        *,
        try_s: float = 10.0,
        connect_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._what, self._addresses, self._protocol = what, list(addresses), protocol
        self._proofs, self._try_s = [proof], try_s
        self._connect_s = try_s if connect_s is None else connect_s
        self._clock, self._sleep = clock, sleep
        self._connection: Connection | None = None
        self._turn = 0

    def use_token(self, token: Token) -> None:
        """Use a token from the next connection on; the open connection is unchanged.

        A server that becomes active may know only the previous token, so that one is tried, too.
        """
        if token not in self._proofs:
            self._proofs = [token, self._proofs[0]]

    def close(self) -> None:
        """Close the connection. May be repeated; a later call opens another one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def call(
        self,
        method: str,
        request: bytes,
        parse: Callable[[Fields], _A],
        *,
        timeout_s: float,
        answer_s: float | None = None,
    ) -> _A:
        """Call a method, and return what ``parse`` returns.

        Args:
            method: name of the method in the protocol.
            request: request message.
            parse: decodes the answer; raises NotHadoop if it is invalid.
            timeout_s: total time limit of all tries [s].
            answer_s: time limit of an answer in one try, if not `try_s`.

        Raises:
            ConnectionLost: no server answered within ``timeout_s``; the message counts the tries by server.
            RemoteError: the method threw.
            NotHadoop: the last answer is invalid.
        """
        with Wait(f"the {self._what}", timeout_s) as wait:
            return self._call(method, request, parse, timeout_s, answer_s, wait)

    def _call(
        self,
        method: str,
        request: bytes,
        parse: Callable[[Fields], _A],
        timeout_s: float,
        answer_s: float | None,
        wait: Wait,
    ) -> _A:
        deadline = self._clock() + timeout_s
        # Jitter: all ApplicationMasters of a cluster lose the same ResourceManager at the same moment.
        pauses_s = backoff_s(_FIRST_WAIT_S, _LONGEST_WAIT_S)
        failed: dict[str, int] = {}
        sent = False
        while True:
            try:
                return self._once(method, request, parse, deadline, self._try_s if answer_s is None else answer_s)
            except (ConnectionLost, TryAgain, NotHadoop) as error:
                self.close()
                self._turn += 1
                failed[str(error)] = failed.get(str(error), 0) + 1
                sent = sent or not isinstance(error, ConnectionLost) or error.sent
                pause_s = next(pauses_s)
                if self._clock() + pause_s >= deadline:
                    if len(failed) == 1 and isinstance(error, NotHadoop):
                        raise
                    refused = isinstance(error, ConnectionLost) and error.refused
                    tries = ", ".join(f"{one} ({count} times)" if count > 1 else one for one, count in failed.items())
                    words = f"no {self._what} answered {method} in {timeout_s:g} s: {tries}"
                    raise ConnectionLost(words, sent=sent, refused=refused) from error
                wait.why = str(error)
                self._sleep(pause_s)

    def call_once(self, method: str, request: bytes, parse: Callable[[Fields], _A], *, answer_s: float) -> _A:
        """Call a method once, without retries, and return what ``parse`` returns.

        Args:
            method: name of the method in the protocol.
            request: request message.
            parse: decodes the answer; raises NotHadoop if it is invalid.
            answer_s: time limit of the answer, once connected [s].

        Raises:
            ConnectionLost, TryAgain, NotHadoop: the error of this try; the call may be repeated.
            RemoteError: the method threw.
        """
        deadline = self._clock() + self._connect_s + answer_s
        return self._once(method, request, parse, deadline, answer_s)

    def _once(self, method: str, request: bytes, parse: Callable[[Fields], _A], deadline: float, answer_s: float) -> _A:
        if self._connection is None:
            self._connection = self._connect(deadline)
        try:
            body = self._connection.call(method, request, min(deadline, self._clock() + answer_s))
        except HadoopError:
            if self._connection.closed:
                self._connection = None
            raise
        try:
            return parse(Fields(body))
        except NotHadoop as error:
            raise NotHadoop(f"{self._connection.name}: an answer to {method} that cannot be read: {error}") from error

    def _connect(self, deadline: float) -> Connection:
        address = self._addresses[self._turn % len(self._addresses)]
        refused: TokenRefused | None = None
        for proof in list(self._proofs):
            until = min(deadline, self._clock() + self._connect_s)
            try:
                return Connection(address, self._protocol, proof=proof, deadline=until)
            except TokenRefused as error:
                refused = refused or error
                self._proofs = [*self._proofs[1:], self._proofs[0]]
        assert refused is not None
        raise refused
