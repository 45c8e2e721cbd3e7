"""HTTP to the web addresses of a cluster: REST and log pages; errors name Hadoop's settings.

Every call here may be repeated, so a call on a connection that the server has meanwhile closed is repeated.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from urllib.parse import urlencode

from dlapp.errors import DlappError, Unreachable
from dlapp.net.http import PLAIN, TLS, HttpClient, HttpResponse, IncompleteResponse, ResponseStream, split_url
from dlapp.value import Closeable

MAX_BYTES = 64 << 20
"""Size limit of an answer: the ResourceManager's list of 20,000 applications, or 50,000 nodes, has about 30 MiB."""
_CLOSED = "it closed the connection without an answer"


class NoAddress(DlappError):
    """An address that is not a web address."""


class WrongScheme(Unreachable):
    """One side uses TLS and the other does not, or does not trust the certificate; the message names the setting."""


class AnswerTooLarge(Unreachable):
    """An answer exceeds `MAX_BYTES`; a repeated request would, too."""


class WebStream:
    """Answer that is read in chunks, once.

    Args:
        explained: raises Unreachable instead of IncompleteResponse.
    """

    def __init__(self, stream: ResponseStream, explained: Callable[[], AbstractContextManager[None]]) -> None:
        self.status, self.headers, self.close = stream.status, stream.headers, stream.close
        self._stream, self._explained = stream, explained

    def __iter__(self) -> Iterator[bytes]:
        """Yield the chunks. Raises Unreachable: the connection broke."""
        with self._explained():
            yield from self._stream


class Web(Closeable):
    """HTTP connections to servers.

    Args:
        timeout_s: time limit of connecting, of an answer's headers, of each chunk of its body, and of the whole body if
            it is not streamed.
        certificates: CA certificates (PEM) of the servers; empty: OpenSSL's default.
        accept: content type; log pages are text, and a request for JSON of one gets status 503.
    """

    def __init__(self, timeout_s: float, certificates: str = "", *, accept: str = "application/json") -> None:
        self._timeout_s, self._accept = timeout_s, accept
        self._client = HttpClient(timeout_s, timeout_s, certificates=certificates, what="YARN")

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def call(
        self, method: str, url: str, query: Mapping[str, str] | None = None, body: bytes | None = None
    ) -> HttpResponse:
        """Send one request and return its answer. The caller handles redirections.

        Args:
            method: HTTP method.
            url: URL of the request.
            query: added to the URL's query.
            body: JSON body.

        Raises:
            Unreachable: no valid HTTP answer; the message does not contain the URL, which the caller knows.
            AnswerTooLarge: more than `MAX_BYTES`.
            NoAddress: the URL is none.
        """
        server, target = _parts(url, query)
        headers = {"Accept": self._accept} | ({} if method == "GET" else {"Content-Type": "application/json"})
        with self._explained():
            answer = self._client.request(
                method, server, target, body, headers=headers, max_bytes=MAX_BYTES, repeatable=True
            )
        found = answer.headers
        if not (found.get("content-length") or found.get("transfer-encoding") or answer.status == 204):
            raise Unreachable(_CLOSED)  # Hadoop's servers always send the length
        return answer

    def stream(self, url: str, query: Mapping[str, str] | None = None) -> WebStream:
        """Return the answer to a GET, of any length; read it to its end, or close it. Raises the errors of `call`."""
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
                raise AnswerTooLarge(f"an answer of more than {MAX_BYTES >> 20} MiB, which is not read") from error
            raise Unreachable(self._error_text(error)) from error

    def _error_text(self, error: IncompleteResponse) -> str:
        if error.timed_out:
            return f"no answer in {self._timeout_s:g} s"
        if isinstance(error.__cause__, ConnectionResetError):
            return _CLOSED
        return "it answers, but not as a web server" if isinstance(error.__cause__, ValueError) else str(error)


def tls_setting(error: IncompleteResponse, policy: str) -> str:
    """Return the setting to change if a server does not accept TLS, or requires it; ``policy`` names the property."""
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
