"""The control address: requests are authenticated here, before anything reaches the loop.

A request without the right token is answered with 401 before its body is read, and has no effect; a malformed one is
answered with 400. The others become a `ControlRequest` on the loop's queue; only the loop answers them.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

from dlapp.errors import SpecError, UsageError
from dlapp.net.control import Admission, ControlServer, Refusal, Request
from dlapp.value import Record
from dlapp.values.access import (
    MODIFIERS,
    TOOLS,
    VIEWERS,
    StreamRequest,
    is_same,
    metrics_path,
    page_path,
    token_is_right,
)
from dlapp.values.ids import ContainerId
from dlapp.values.messages import Hello, Report, StopRequest, StreamAnswer
from dlapp.values.serialization import from_json

MAX_MESSAGE_BYTES = 64 << 10
MAX_REPORT_BYTES = 1 << 20
"""A report is below 4 KiB; a final one names each output, 300 bytes each, of which there may be hundreds."""


class RequestKind(Enum):
    """Kind of a request."""

    HELLO = "hello"
    REPORT = "report"
    ROSTER = "roster"
    VIEW = "view"
    OPEN_VIEW = "open view"
    """The view, for a client without a token."""
    SOFT_KILL = "softkill"
    KILL = "kill"
    RELEASE = "release"
    STREAM = "stream"
    """Request of a tool for a stream."""
    STREAM_END = "stream end"
    """A task connects the other end of a stream, or refuses it."""
    PAGE = "page"
    METRICS = "metrics"


_KINDS = {
    RequestKind.PAGE: "text/html; charset=utf-8",
    RequestKind.METRICS: "text/plain; version=0.0.4; charset=utf-8",  # the format of Prometheus
}


_OF_OTHERS = {
    "view": (VIEWERS, MODIFIERS),
    "streams": (VIEWERS,),
    **dict.fromkeys(("softkill", "kill", "release"), (MODIFIERS,)),
}
"""Tokens besides the owner's that a tool's request may carry."""
_TASK = "container_"
"""Prefix of the purposes of task tokens, and of no others."""


class ControlRequest(Record):
    """Authenticated request: ``message`` is the message of its kind, or a container's id, or None.

    ``by_viewer``: it was made with the token of `view_acl`, not the owner's.
    """

    kind: RequestKind
    message: Hello | Report | StopRequest | StreamRequest | StreamAnswer | ContainerId | None
    request: Request
    server: ControlServer
    by_viewer: bool = False

    def answer(self, body: Any) -> None:
        """Answer with JSON."""
        self.server.reply(self.request, 200, body)

    def refuse(self, status: int, why: str, reason: str = "") -> None:
        """Answer with an error; ``reason`` is for programs, if there are several reasons (`dlapp.net.streams`)."""
        self.server.reply(self.request, status, {"error": why, **({"reason": reason} if reason else {})})

    def answer_bytes(self, data: bytes) -> None:
        """Answer with JSON, or with a page or metrics in their final form if requested."""
        kind = _KINDS.get(self.kind, "application/json")
        self.server.reply(self.request, 200, data, kind)


class ControlEndpoint:
    """Server of the application's control address; ``put`` receives each authenticated request.

    Args:
        secret: the application's control secret, hex.
        put: passes a request to the loop; must not block.
        host: address to listen on.
        name: name of this host for others; empty: the address.
        open_page: whether everyone who reaches the address may see the page and the view, as on a cluster, whose own
            pages show as much; otherwise the page has a secret path, known to those who may read the application's
            secrets.
    """

    def __init__(
        self,
        secret: str,
        put: Callable[[ControlRequest], None],
        host: str = "127.0.0.1",
        name: str = "",
        *,
        open_page: bool = False,
    ) -> None:
        self._secret, self._put, self._name, self._open = secret, put, name, open_page
        self._page = "/" if open_page else page_path(secret)
        self.metrics_path = metrics_path(secret)
        self.server = ControlServer(self._on_request, host, admit=self._admit)

    @property
    def url(self) -> str:
        """Return its URL: ``http://host:port``."""
        return f"http://{self._name or self.server.host}:{self.server.port}"

    @property
    def page_url(self) -> str:
        """Return the URL of the page for browsers."""
        return self.url + self._page

    def _admit(self, method: str, path: str, token: str) -> Admission | Refusal:
        """Authenticate a request by its headers."""
        match method, _segments(path):
            case "GET", ["metrics", _] if is_same(self.metrics_path, path):
                return Admission()
            case "GET", [_] if is_same(self._page, path.partition("?")[0]):
                return Admission()
            case "GET", ["v1", "view"] if self._open and not token:
                return Admission()
            case ("GET", ["v1", "tasks", task, "roster" as word]) | (
                "POST",
                ["v1", "tasks", task, ("hello" | "report" | "stream") as word],
            ):
                # The purpose of a task's token is its container's id.
                if task.startswith(_TASK) and token_is_right(self._secret, task, token):
                    most_bytes = {"roster": 0, "report": MAX_REPORT_BYTES}.get(word, MAX_MESSAGE_BYTES)
                    return Admission(most_bytes, authenticated=True)
                return Refusal(401, "the token is missing or not this task's")
            case ("GET", ["v1", "view" as word]) | (
                "POST",
                ["v1", ("softkill" | "kill" | "release" | "streams") as word],
            ):
                # Users named by the owner count as strangers in the connection limit, so they cannot block tasks.
                if token_is_right(self._secret, TOOLS, token):
                    return Admission(MAX_MESSAGE_BYTES, authenticated=True)
                if any(token_is_right(self._secret, one, token) for one in _OF_OTHERS[word]):
                    return Admission(MAX_MESSAGE_BYTES)
                return Refusal(401, "the token is missing or not this application's")
        return Refusal(404, f"there is no {method} {path.partition('?')[0][:200]}")

    def _on_request(self, request: Request) -> None:
        """Handle an authenticated request."""

        def refuse(why: str) -> None:
            self.server.reply(request, 400, {"error": why})

        def put(kind: RequestKind, message: Hello | Report | StopRequest | ContainerId | None = None) -> None:
            self._put(ControlRequest(kind, message, request, self.server))

        match _segments(request.path):
            case ["v1", "tasks", task, "roster"]:
                try:
                    container_id = ContainerId.from_text(task)
                except UsageError as error:
                    refuse(str(error)[:500])
                    return
                put(RequestKind.ROSTER, container_id)
            case ["v1", "tasks", task, "stream"]:
                self._handle_stream(request, refuse, task=task)
            case ["v1", "streams"]:
                self._handle_stream(request, refuse)
            case ["v1", "tasks", task, word]:
                kind: type[Hello] | type[Report] = Hello if word == "hello" else Report
                if (known := request.cached_result()) is not None:
                    put(RequestKind.REPORT, known)
                    return
                try:
                    message: Hello | Report = from_json(kind, request.json())
                    same = message.container_id == ContainerId.from_text(task)
                except (SpecError, UsageError, ValueError, RecursionError) as error:
                    refuse(f"not a {word} that can be understood: {str(error)[:500]}")
                    return
                if not same:
                    refuse(f"the {word} names another container than its address")
                    return
                if isinstance(message, Report) and message.wait_s > 0:
                    request.cache_result(message)
                put(RequestKind(word), message)
            case ["metrics", _]:
                put(RequestKind.METRICS)
            case ["v1", "view"]:
                put(RequestKind.VIEW if request.token else RequestKind.OPEN_VIEW)
            case ["v1", word]:
                try:
                    stop = from_json(StopRequest, request.json())
                except (SpecError, ValueError, RecursionError) as error:
                    refuse(f"not a valid request: {str(error)[:500]}")
                    return
                put(RequestKind(word), stop)
            case _:
                put(RequestKind.PAGE)

    def _handle_stream(self, request: Request, refuse: Callable[[str], None], *, task: str = "") -> None:
        """Handle a request for a stream, or with ``task`` that task's answer to it."""
        found: StreamAnswer | StreamRequest
        try:
            if task:
                found = from_json(StreamAnswer, request.json())
                if found.container_id != ContainerId.from_text(task):
                    refuse("the answer names another container than its address")
                    return
            else:
                found = from_json(StreamRequest, request.json())
        except (SpecError, UsageError, ValueError, RecursionError) as error:
            refuse(f"not a valid request: {str(error)[:500]}")
            return
        by_viewer = not task and not token_is_right(self._secret, TOOLS, request.token)
        if by_viewer and isinstance(found, StreamRequest) and not found.is_for_viewers:
            why = "view_acl permits dlapp-port only; only the owner may run commands or read files in a container"
            self.server.reply(request, 403, {"error": why})
            return
        if not request.upgrades and not (isinstance(found, StreamAnswer) and found.error):
            refuse("it lacks a header Upgrade")
            return
        kind = RequestKind.STREAM_END if task else RequestKind.STREAM
        self._put(ControlRequest(kind, found, request, self.server, by_viewer))


def _segments(path: str) -> list[str]:
    return path.partition("?")[0].strip("/").split("/")
