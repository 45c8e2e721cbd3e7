"""HTTP to the web addresses of a cluster: REST and the pages of logs, with Hadoop's settings in what went wrong.

Every call of ours may be repeated, so one that met a connection which the server had closed meanwhile is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from urllib.parse import urlencode

from dlapp.errors import DlappError, Unreachable
from dlapp.net.http import PLAIN, TLS, HttpClient, HttpResponse, IncompleteResponse, ResponseStream, split_url
from dlapp.value import Closeable

MOST_BYTES = 64 << 20
"""20,000 applications, or 50,000 nodes, as the ResourceManager lists them, have some 30 MiB."""
_CLOSED = "it closed the connection without an answer"


class NoAddress(DlappError):
    """An address that is not a web address."""


class WrongScheme(Unreachable):
    """One side speaks TLS and the other does not, or does not trust; the words name the setting."""


class AnswerTooLarge(Unreachable):
    """An answer beyond `MOST_BYTES`; it is as large when it is asked for again."""


class WebStream:
    """An answer that is read in pieces, once.

    Args:
        explained: raises Unreachable in the place of IncompleteResponse.
    """

    def __init__(self, stream: ResponseStream, explained: Callable[[], AbstractContextManager[None]]) -> None:
        self.status, self.headers, self.close = stream.status, stream.headers, stream.close
        self._stream, self._explained = stream, explained

    def __iter__(self) -> Iterator[bytes]:
        """Yield the pieces. Raises Unreachable: it broke off."""
        with self._explained():
            yield from self._stream


class Web(Closeable):
    """Connections to servers by HTTP.

    Args:
        timeout_s: for a connection to come to be, for an answer's head, for each piece of its body, and for the body
            as a whole where it is not streamed.
        accept: the kind of answer; a log's page is text, and who wants JSON of it gets status 503.
    """

    def __init__(self, timeout_s: float, *, accept: str = "application/json") -> None:
        self._timeout_s, self._accept = timeout_s, accept
        self._client = HttpClient(timeout_s, timeout_s, what="YARN")

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def call(
        self, method: str, url: str, query: Mapping[str, str] | None = None, body: bytes | None = None
    ) -> HttpResponse:
        """Send one request and return its answer. A redirection is the caller's affair.

        Args:
            method: of the request.
            url: where to.
            query: is added to that of the URL.
            body: JSON.

        Raises:
            Unreachable: no answer, or not one of a web server; without the URL, which the caller knows.
            AnswerTooLarge: more than `MOST_BYTES`.
            NoAddress: the URL is none.
        """
        server, target = _parts(url, query)
        headers = {"Accept": self._accept} | ({} if method == "GET" else {"Content-Type": "application/json"})
        with self._explained():
            answer = self._client.request(
                method, server, target, body, headers=headers, most=MOST_BYTES, repeatable=True
            )
        found = answer.headers
        if not (found.get("content-length") or found.get("transfer-encoding") or answer.status == 204):
            raise Unreachable(_CLOSED)  # Hadoop's servers always say where the end is
        return answer

    def stream(self, url: str, query: Mapping[str, str] | None = None) -> WebStream:
        """Return the answer to a GET, of any length; it is to be read to its end or closed. Raises as `call` does."""
        server, target = _parts(url, query)
        with self._explained():
            stream = self._client.stream("GET", server, target, headers={"Accept": self._accept}, repeatable=True)
        return WebStream(stream, self._explained)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except IncompleteResponse as error:
            if error.lasting:
                raise WrongScheme(f"it {error}; {tls_setting(error, 'yarn.http.policy')}") from error
            if error.too_large:
                raise AnswerTooLarge(f"an answer of more than {MOST_BYTES >> 20} MiB, which is not read") from error
            raise Unreachable(self._words(error)) from error

    def _words(self, error: IncompleteResponse) -> str:
        if error.timed_out:
            return f"no answer in {self._timeout_s:g} s"
        if isinstance(error.__cause__, ConnectionResetError):
            return _CLOSED
        return "it answers, but not as a web server" if isinstance(error.__cause__, ValueError) else str(error)


def tls_setting(error: IncompleteResponse, policy: str) -> str:
    """Return what to set where a server cannot be asked in TLS, or only so; ``policy`` names its property."""
    value = {PLAIN: "HTTP_ONLY", TLS: "HTTPS_ONLY"}.get(str(error))
    return f"set {policy} to {value}" if value else "SSL_CERT_FILE names the file of your cluster's CA"


def _parts(url: str, query: Mapping[str, str] | None) -> tuple[str, str]:
    """Return server and target. Raises NoAddress."""
    try:
        server, path, words = split_url(url.partition("#")[0])
    except ValueError as error:
        raise NoAddress(f"{url} is not a web address") from error
    words = "&".join(part for part in (words, urlencode(query or {})) if part)
    return server, f"{path}?{words}" if words else path
