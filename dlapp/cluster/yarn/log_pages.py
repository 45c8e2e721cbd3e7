"""Logs of containers on YARN: from the node while the application runs, from the history server when it has ended.

Both answer the same request with the same text: some lines on the file, ``LogContents:``, the content, and a line that
ends it. How long the whole file is stands above, so what is new since the last look can be asked for alone.

Source: NMWebServices, AHSWebServices, LogToolUtils; answers of 3.4.2.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

from dlapp.cluster.yarn.web import Answer, NoAddress, Web
from dlapp.errors import Unreachable

TIMEOUT_S = 20.0
COLLECTED_S = 15.0
"""How long after an application's end its logs may be neither on the node nor with the history server."""
_CONTENTS = b"\nLogContents:\n"
_LENGTH = b"\nLogLength:"
_MISSING = (404, 500, 503)


class GrowingPage:
    """A log file of a container, as `dlapp.client.logs.GrowingFile` is one of this machine.

    Args:
        url: of the page that shows it (`dlapp.cluster.yarn.reports.log_file_url`).
        web: connections, which may be shared.
    """

    def __init__(
        self,
        url: str,
        user: str,
        web: Web,
        *,
        last_lines: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._url, self._user, self._last_lines = rest_url(url), user, last_lines
        self._offset = 0
        self._clock, self._sleep = clock, sleep
        self._web = web

    def moved(self, url: str) -> None:
        """It is found there from now on; what was read of it counts."""
        self._url = rest_url(url)

    def pieces(self) -> Iterator[bytes]:
        """What has been added since the last call; nothing while there is no file.

        Raises:
            Unreachable: the server does not answer.
        """
        until = self._clock() + COLLECTED_S
        while (found := self._read()) is None:
            if "/ws/v1/node/" in self._url or self._clock() >= until:
                return
            self._sleep(0.5)
        if self._last_lines is not None:
            found, self._last_lines = _last_lines(found, self._last_lines), None
        if found:
            yield found

    def _read(self) -> bytes | None:
        """What is new; None: there is no such file."""
        # The length is not known before the first answer; from then on only what is behind the offset is wanted.
        length = None
        parameters = {"user.name": self._user}
        if self._offset:
            length = self._length(parameters)
            if length is None or length <= self._offset:
                return b"" if length is not None else None
            parameters["size"] = str(self._offset - length)
        answer = self._ask(parameters)
        if answer.status in _MISSING or (answer.status == 200 and _CONTENTS not in answer.data):
            return None
        if answer.status != 200:
            raise Unreachable(f"{self._url}: status {answer.status}")
        whole, content = read_page(answer.data)
        asked = whole if length is None else length - self._offset
        self._offset = whole if length is None else length
        return content[:asked]

    def _length(self, parameters: dict[str, str]) -> int | None:
        answer = self._ask({**parameters, "size": "0"})
        if answer.status != 200 or _CONTENTS not in answer.data:
            return None
        return read_page(answer.data)[0]

    def _ask(self, parameters: dict[str, str]) -> Answer:
        try:
            return self._web.call("GET", self._url, parameters)
        except (Unreachable, NoAddress) as error:
            raise Unreachable(f"{self._url}: {error}") from error


def rest_url(url: str) -> str:
    """The address of a log file's content, of that of the page which shows it.

    ``http://node:8042/node/containerlogs/<container>/<user>/stdout/?start=-4096`` is on the node,
    ``http://server/applicationhistory/logs/<node>/<container>/<container>/<user>/stdout/?start=-4096`` on the server.
    """
    parts = urlsplit(url)
    base = f"{parts.scheme}://{parts.netloc}"
    words = parts.path.strip("/").split("/")
    if words[:2] == ["node", "containerlogs"]:
        return f"{base}/ws/v1/node/containers/{words[2]}/logs/{words[4]}"
    service = {"jobhistory": "history"}.get(words[0], words[0])
    return f"{base}/ws/v1/{service}/containers/{words[3]}/logs/{words[6]}?nm.id={words[2]}"


def read_page(text: bytes) -> tuple[int, bytes]:
    """The length of the whole file, and all that follows its head: the content, and what the server adds."""
    head, _, content = text.partition(_CONTENTS)
    length = head.rpartition(_LENGTH)[2].partition(b"\n")[0].strip()
    return int(length) if length.isdigit() else 0, content


def _last_lines(content: bytes, count: int) -> bytes:
    if count <= 0:
        return b""
    lines = content.splitlines(keepends=True)
    return b"".join(lines[-count:])
