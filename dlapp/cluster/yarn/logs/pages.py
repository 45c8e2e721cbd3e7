"""Logs of YARN containers: from the node while the application runs, from the history server after its end, and
otherwise from YARN's log aggregation on HDFS (`dlapp.cluster.yarn.logs.aggregated`).

Both servers answer the same request with the same text: some lines about the file, ``LogContents:``, the content, and a
final line. The lines about the file contain its whole length, so only the part added since the last poll needs to be
requested.

Source: NMWebServices, AHSWebServices, LogToolUtils; answers of 3.4.2.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple
from urllib.parse import urljoin, urlsplit

from dlapp.errors import DlappError, NotFound, Unreachable
from dlapp.hadoop.web import NoAddress, Web, WebStream
from dlapp.login import Login

TIMEOUT_S = 20.0
_CONTENTS = b"\nLogContents:\n"
_LENGTH = b"\nLogLength:"
_MISSING = (404, 500, 503)
_MARGIN = 1 << 16
_MAX_HEAD = 1 << 16
_MAX_REDIRECTIONS = 4
_MAX_TAIL = 32 << 20
"""Size of the end of a log in which the last lines are searched: a log may consist of one line."""
_RETRY_INTERVAL_S = 0.5


class GrowingPage:
    """Log file of a container, with the interface of `dlapp.client.logs.GrowingFile` for this machine.

    Args:
        url: URL of its page (`dlapp.cluster.yarn.client.views.log_file_url`); empty: no server is asked.
        login: identity; None: anonymous, which sees what everyone may see.
        web: HTTP connections, which may be shared.
        last_lines: start with this many last lines; None: with the whole log.
        last_bytes: size of the end in which these lines are searched; None: 32 MiB.
        aggregated: returns the whole log if no server has it any more; None: it is not there either, or not yet.
        patience_s: how long from now an ended application's log may be missing everywhere.
        problem: why no server is asked.
    """

    def __init__(
        self,
        url: str,
        login: Login | None,
        web: Web,
        *,
        last_lines: int | None = None,
        last_bytes: int | None = None,
        aggregated: Callable[[], Iterator[bytes] | None] = lambda: None,
        patience_s: Callable[[], float] = lambda: 0.0,
        sleep: Callable[[float], None] = time.sleep,
        problem: str = "",
    ) -> None:
        self._url, self._login, self._last_lines = rest_url(url) if url else "", login, last_lines
        self._most_tail = _MAX_TAIL if last_bytes is None else last_bytes
        self._problem = problem
        self._aggregated, self._patience_s, self._sleep = aggregated, patience_s, sleep
        self.offset = 0
        self._web = web

    def moved(self, url: str) -> None:
        """Read from another URL from now on; the position is kept."""
        self._url, self._problem = rest_url(url) if url else "", ""

    def pieces(self, *, ended: bool = False) -> Iterator[bytes]:
        """Yield what was added since the last call; nothing while there is no file.

        Args:
            ended: its application has ended: the log no longer grows, and must exist.

        Raises:
            Unreachable: the server does not answer.
            NotFound: the log is nowhere.
        """
        while True:
            failure: DlappError | None = None
            found = None
            try:
                found = self._new_content()
            except Unreachable as error:
                if not ended:
                    raise
                failure = error
            if found is None and ended and (whole := self._aggregated()) is not None:
                found = self._rest_of(whole)
            if found is not None:
                yield from found
                return
            if self._problem and (not ended or self._patience_s() <= 0):
                raise NotFound(self._problem)
            if not ended:
                return
            if self._patience_s() <= 0:
                raise failure or NotFound(f"{self._url}: it is not there, nor among the aggregated logs on HDFS")
            self._sleep(_RETRY_INTERVAL_S)

    def tail(self, most_bytes: int, *, ended: bool = False) -> bytes | None:
        try:
            opened = self._open({"size": str(-most_bytes)})
        except Unreachable:
            if not ended:
                raise
            opened = None
        if opened is not None:
            return _first_bytes(opened, min(most_bytes, opened.length))
        if not ended or (whole := self._aggregated()) is None:
            return None
        kept = b""
        for piece in whole:
            kept = (kept + piece)[-most_bytes:]
        return kept

    def _new_content(self) -> Iterator[bytes] | None:
        """Return the new content; None: there is no such file."""
        if self._last_lines is not None:
            return self._tail(self._last_lines)
        if not self.offset:
            return self._from(0, None)
        if (length := self._length()) is None:
            return None
        return self._from(self.offset, length - self.offset) if length > self.offset else iter(())

    def _from(self, offset: int, count: int | None) -> Iterator[bytes] | None:
        """Return the content from an offset; ``count`` is its recent size; None: not known, and the offset is 0."""
        while True:
            # Only the end of a file can be requested, and the file grows meanwhile: request more, so that nothing is
            # missed, and drop what is before the offset.
            wanted = None if count is None else count + _MARGIN
            opened = self._open({} if wanted is None else {"size": str(-wanted)})
            if opened is None:
                return None
            start = 0 if wanted is None else max(0, opened.length - wanted)
            if start <= offset:
                return self._kept(opened, start)
            opened.close()
            count = opened.length - offset

    def _kept(self, content: _Content, at: int) -> Iterator[bytes]:
        """Yield the unread part of content that starts at an offset, without the server's trailer."""
        for piece in content.pieces():
            new = piece[max(0, self.offset - at) : max(0, content.length - at)]
            at += len(piece)
            if new:
                self.offset += len(new)
                yield new

    def _tail(self, lines: int) -> Iterator[bytes] | None:
        size = min(_MARGIN, self._most_tail)
        while True:
            opened = self._open({"size": str(-size)})
            if opened is None:
                return None
            data = _first_bytes(opened, min(size, opened.length))
            # One line more: the first of them may be incomplete.
            if size >= min(opened.length, self._most_tail) or data.count(b"\n") > lines:
                self.offset, self._last_lines = opened.length, None
                return iter((_last_lines(data, lines),))
            size *= 8

    def _rest_of(self, whole: Iterator[bytes]) -> Iterator[bytes]:
        if self._last_lines is not None:
            lines, self._last_lines = self._last_lines, None
            kept = b""
            for piece in whole:
                self.offset += len(piece)
                kept = _last_lines(kept + piece, lines + 1)[-self._most_tail :]
            yield _last_lines(kept, lines)
            return
        skipped = self.offset
        for piece in whole:
            if new := piece[skipped:]:
                self.offset += len(new)
                yield new
            skipped = max(0, skipped - len(piece))

    def _length(self) -> int | None:
        if (opened := self._open({"size": "0"})) is None:
            return None
        opened.close()
        return opened.length

    def _open(self, parameters: dict[str, str]) -> _Content | None:
        """Return the server's answer about the file; None: there is no such file."""
        if not self._url:
            return None
        url, query = self._url, {**({} if self._login is None else self._login.query), **parameters}
        try:
            for _ in range(_MAX_REDIRECTIONS):
                answer = self._web.stream(url, query)
                if answer.status != 307 or not (location := answer.headers.get("location")):
                    break
                # A node that has handed its logs over redirects to the server that has them.
                answer.close()
                url, query = urljoin(url, location), {} if "user.name=" in location else query
            if answer.status == 200:
                return _headed(answer)
        except (Unreachable, NoAddress) as error:
            raise Unreachable(f"{url}: {error}") from error
        answer.close()
        if answer.status in _MISSING or answer.status == 307:
            return None
        raise Unreachable(f"{url}: status {answer.status}")


class _Content(NamedTuple):
    """Content of a log file followed by the server's trailer; ``length`` is that of the whole file."""

    length: int
    first: bytes
    rest: Iterator[bytes]
    close: Callable[[], None]

    def pieces(self) -> Iterator[bytes]:
        yield self.first
        yield from self.rest


def _first_bytes(content: _Content, count: int) -> bytes:
    """Return the first ``count`` bytes of a content, or all; a server may send without end."""
    data = bytearray()
    try:
        for piece in content.pieces():
            data += piece
            if len(data) >= count:
                break
    finally:
        content.close()
    return bytes(data[:count])


def _headed(answer: WebStream) -> _Content | None:
    """Return the content after its header; None: there is none."""
    head, rest = b"", iter(answer)
    while _CONTENTS not in head and len(head) <= _MAX_HEAD and (piece := next(rest, b"")):
        head += piece
    if _CONTENTS not in head:
        answer.close()
        return None
    length, first = read_page(head)
    return _Content(length, first, rest, answer.close)


def rest_url(url: str) -> str:
    """Return the URL of a log file's content from that of its page.

    Raises:
        NotFound: it is the page of neither server.

    ``http://node:8042/node/containerlogs/<container>/<user>/stdout/?start=-4096`` is on the node,
    ``http://server/applicationhistory/logs/<node>/<container>/<container>/<user>/stdout/?start=-4096`` on the server.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")
    base = f"{parts.scheme}://{parts.netloc}"
    words = parts.path.strip("/").split("/")
    if len(words) < (5 if words[:2] == ["node", "containerlogs"] else 7):
        raise NotFound(f"{url[:200]!r} is not a page of a log")
    if words[:2] == ["node", "containerlogs"]:
        return f"{base}/ws/v1/node/containers/{words[2]}/logs/{words[4]}"
    service = {"jobhistory": "history"}.get(words[0], words[0])
    return f"{base}/ws/v1/{service}/containers/{words[3]}/logs/{words[6]}?nm.id={words[2]}"


def read_page(text: bytes) -> tuple[int, bytes]:
    """Return the length of the whole file, and all that follows the header: the content, and the server's trailer."""
    head, _, content = text.partition(_CONTENTS)
    length = head.rpartition(_LENGTH)[2].partition(b"\n")[0].strip()
    return int(length) if length.isdigit() and len(length) < 20 else 0, content


def _last_lines(content: bytes, count: int) -> bytes:
    if count <= 0:
        return b""
    # A carriage return is no line end: a progress bar is one line, as in the logs of one machine.
    lines = content.split(b"\n")
    return b"\n".join(lines[-(count if lines[-1] else count + 1) :])
