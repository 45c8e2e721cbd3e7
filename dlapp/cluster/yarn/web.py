"""HTTP to the servers of a cluster, for who reads and submits: one connection to each, kept while it is good.

It is http.client and nothing above it: requests takes 60 ms to load, half of what dlapp-status takes in all. No proxy
of the user's environment is used, which is for the world outside, and no .netrc, which would take the place of
user.name. Every call of ours may be repeated, so one that met a connection which the server had closed meanwhile is.
"""

from __future__ import annotations

import http.client
import io
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

from dlapp.cluster.yarn.errors import NotHadoop
from dlapp.errors import DlappError, Unreachable

MOST_BYTES = 256 << 20
_PIECE = 1 << 16
_PROBE_S = 3.0
POLICY = "yarn.http.policy"
CA_VARIABLE = "SSL_CERT_FILE"
"""Of OpenSSL: a file of certificates that are trusted."""


class NoAddress(DlappError):
    """What was to be called is no web address."""


class WrongScheme(Unreachable):
    """One side speaks TLS and the other does not, or does not trust; the words name the setting."""


class Answer(NamedTuple):
    """What a server said; ``headers.get`` takes a name in any case."""

    status: int
    headers: http.client.HTTPMessage
    data: bytes


class _Pieces(io.RawIOBase):
    """What comes over a socket, as much of it as is asked for at once in the socket's timeout as a whole.

    The socket itself knows the time of one silence only, so a server that trickles the lines of a head would be read
    without end.
    """

    def __init__(self, raw: io.RawIOBase, link: socket.socket) -> None:
        self._raw, self._link, self._timeout_s = raw, link, link.gettimeout()
        self.begin()

    def begin(self) -> None:
        """From now on the time counts anew."""
        self._deadline = None if self._timeout_s is None else time.monotonic() + self._timeout_s

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int | None:
        if self._deadline is None:
            return self._raw.readinto(buffer)
        if (left := self._deadline - time.monotonic()) <= 0:
            raise TimeoutError
        self._link.settimeout(left)
        try:
            return self._raw.readinto(buffer)
        finally:
            self._link.settimeout(self._timeout_s)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Response(http.client.HTTPResponse):
    """An answer whose head, and then each piece, has the connection's timeout as a whole."""

    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self._pieces = _Pieces(self.fp.detach(), sock)
        self.fp = io.BufferedReader(self._pieces)

    def read1(self, n: int = -1) -> bytes:
        self._pieces.begin()
        return super().read1(n)


class Stream:
    """An answer that is read in pieces, once.

    Args:
        finish: told when nothing more is read.
        why: words for what went wrong.
    """

    def __init__(
        self, answer: http.client.HTTPResponse, finish: Callable[[], None], why: Callable[[Exception], str]
    ) -> None:
        self._answer, self.close, self._why = answer, finish, why
        self.status, self.headers = answer.status, answer.headers

    def __iter__(self) -> Iterator[bytes]:
        """The pieces. Raises Unreachable: it broke off."""
        answer = self._answer
        try:
            while piece := answer.read1(_PIECE):
                yield piece
            if answer.length:
                raise http.client.IncompleteRead(b"", answer.length)
            answer.read()  # the end, after which the connection takes another request
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(self._why(error)) from error
        finally:
            self.close()


class Web:
    """Connections to servers by HTTP, for one thread.

    Args:
        timeout_s: for a connection to come to be, for an answer's head, for each piece of its body, and for the body
            as a whole where it is not streamed.
        accept: the kind of answer; a log's page is text, and who wants JSON of it gets status 503.
    """

    def __init__(
        self,
        timeout_s: float,
        *,
        accept: str = "application/json",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._timeout_s, self._accept, self._clock = timeout_s, accept, clock
        self._open: dict[tuple[str, str], http.client.HTTPConnection] = {}

    def close(self) -> None:
        """Close the connections."""
        for connection in self._open.values():
            connection.close()
        self._open.clear()

    def __enter__(self) -> Web:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(self, method: str, url: str, query: Mapping[str, str] | None = None, body: bytes | None = None) -> Answer:
        """One request. A redirection is the caller's affair.

        Args:
            query: is added to that of the URL.
            body: JSON.

        Raises:
            Unreachable: no answer, or not one of a web server; without the URL, which the caller knows.
            NotHadoop: an answer without end.
            NoAddress: the URL is none.
        """
        server, answer = self._answered(method, url, query, body)
        try:
            return Answer(answer.status, answer.headers, self._read(answer))
        except NotHadoop:
            raise
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(self._why(error)) from error
        finally:
            self._finish(server, answer)

    def stream(self, url: str, query: Mapping[str, str] | None = None) -> Stream:
        """The answer to a GET, of any length. It must be read to its end or closed before the next request."""
        server, answer = self._answered("GET", url, query, None)
        return Stream(answer, lambda: self._finish(server, answer), self._why)

    def _answered(
        self, method: str, url: str, query: Mapping[str, str] | None, body: bytes | None
    ) -> tuple[tuple[str, str], http.client.HTTPResponse]:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise NoAddress(f"{url} is no web address")
        path = parts.path or "/"
        if words := "&".join(part for part in (parts.query, urlencode(query or {})) if part):
            path += f"?{words}"
        headers = {"Accept": self._accept} | ({"Content-Type": "application/json"} if body is not None else {})
        server = parts.scheme, parts.netloc
        while True:
            kept = server in self._open
            try:
                connection = self._open.get(server) or self._connected(*server)
                self._open[server] = connection
                connection.request(method, path, body=body, headers=headers)
                return server, connection.getresponse()
            except http.client.InvalidURL as error:
                raise NoAddress(f"{url} is no web address") from error
            except (OSError, http.client.HTTPException) as error:
                self._drop(server)
                if kept and not isinstance(error, TimeoutError):
                    continue
                self._check_scheme(*server, error)
                raise Unreachable(self._why(error)) from error

    def _finish(self, server: tuple[str, str], answer: http.client.HTTPResponse) -> None:
        """A connection on which something is left to be read takes no other request."""
        if not answer.isclosed():
            answer.close()
            self._drop(server)

    def _connected(self, scheme: str, address: str) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if scheme == "https" else http.client.HTTPConnection
        connection = kind(address, timeout=self._timeout_s)
        connection.response_class = _Response
        return connection

    def _read(self, answer: http.client.HTTPResponse) -> bytes:
        if answer.length is None and not answer.chunked:
            # Its head was cut; Hadoop's servers always say where the end is.
            raise http.client.IncompleteRead(b"")
        data, deadline = bytearray(), self._clock() + self._timeout_s
        while piece := answer.read1(_PIECE):
            data += piece
            if len(data) > MOST_BYTES or self._clock() > deadline:
                raise NotHadoop("an answer without end")
        if answer.length:
            raise http.client.IncompleteRead(bytes(data), answer.length)
        answer.read()  # the end, after which the connection takes another request
        return bytes(data)

    def _drop(self, server: tuple[str, str]) -> None:
        if (connection := self._open.pop(server, None)) is not None:
            connection.close()

    @staticmethod
    def _check_scheme(scheme: str, address: str, error: Exception) -> None:
        """Raises WrongScheme if that is what is wrong."""
        if type(error).__module__ == "ssl":
            if reason := getattr(error, "verify_message", ""):
                raise WrongScheme(
                    f"its certificate is not trusted ({reason}); set {CA_VARIABLE} to the file of your cluster's CA"
                ) from error
            if "WRONG_VERSION_NUMBER" in str(error) or "RECORD_LAYER_FAILURE" in str(error):
                raise WrongScheme(f"it speaks plain HTTP, and not TLS; set {POLICY} to HTTP_ONLY") from error
        elif scheme == "http" and not isinstance(error, ConnectionRefusedError | TimeoutError) and _speaks_tls(address):
            raise WrongScheme(f"it speaks TLS; set {POLICY} to HTTPS_ONLY") from error

    def _why(self, error: Exception) -> str:
        if isinstance(error, TimeoutError):
            return f"no answer in {self._timeout_s:g} s"
        if type(error).__module__ == "ssl":
            return f"it does not speak TLS as we do ({_words(error)})"
        if isinstance(error, http.client.RemoteDisconnected | http.client.IncompleteRead | ConnectionResetError):
            return "it closed the connection without an answer"
        if isinstance(error, http.client.HTTPException):
            return "it answers, but not as a web server"
        return _words(error)


def _speaks_tls(address: str) -> bool:
    """Whether a server that does not answer in HTTP answers in TLS."""
    import ssl

    parts = urlsplit(f"//{address}")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # It is told nothing, so its certificate does not matter.
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            socket.create_connection((parts.hostname or "", parts.port or 80), timeout=_PROBE_S) as plain,
            context.wrap_socket(plain, server_hostname=parts.hostname),
        ):
            return True
    except (OSError, ValueError):
        return False


def _words(error: BaseException) -> str:
    words = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return words.lower() or type(error).__name__
