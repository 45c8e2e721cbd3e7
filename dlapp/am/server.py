"""The control address: who asks is checked here, before anything reaches the loop.

A request without the right token is answered with 401 and leaves no trace; one that cannot be understood with 400. The
rest becomes a `Call` on the loop's queue; the loop alone answers it.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from dlapp.control import TOOLS, Hello, Report, StopRequest, page_path, token_is_right
from dlapp.control_http import ControlServer, Request
from dlapp.errors import SpecError, UsageError
from dlapp.ids import ContainerId
from dlapp.jsonform import from_json


class What(Enum):
    """What a call asks for."""

    HELLO = "hello"
    REPORT = "report"
    VIEW = "view"
    SOFT_KILL = "softkill"
    KILL = "kill"
    PAGE = "page"


@dataclass(slots=True, eq=False)
class Call:
    """A request that may be answered: ``message`` is a Hello, a Report, a StopRequest or None."""

    what: What
    message: Hello | Report | StopRequest | None
    request: Request
    server: ControlServer

    def answer(self, body: Any) -> None:
        """Answer with JSON."""
        self.server.reply(self.request, 200, body)

    def refuse(self, status: int, why: str) -> None:
        """Answer that it cannot be, and why."""
        self.server.reply(self.request, status, {"error": why})

    def answer_page(self, html: str) -> None:
        """Answer with a page."""
        self.server.reply(self.request, 200, html, "text/html; charset=utf-8")


class Control:
    """The application's control address; ``put`` takes each call that may be answered.

    Args:
        secret: the application's control secret, hex.
        put: hands a call to the loop; must not block.
        host: the address that it listens on.
        name: what others call this host; empty: the address.
        open_page: whether whoever reaches the address may see the page, as on a cluster, whose own pages show as
            much; else it lies under a path that only those know who may read the application's secrets.
    """

    def __init__(
        self,
        secret: str,
        put: Callable[[Call], None],
        host: str = "127.0.0.1",
        name: str = "",
        *,
        open_page: bool = False,
    ) -> None:
        self._secret, self._put, self._name = secret, put, name
        self._page = "/" if open_page else page_path(secret)
        self.server = ControlServer(self._on_request, host)

    @property
    def url(self) -> str:
        """Where it listens: ``http://host:port``."""
        return f"http://{self._name or self.server.host}:{self.server.port}"

    @property
    def page_url(self) -> str:
        """Where a browser finds the page."""
        return self.url + self._page

    def _on_request(self, request: Request) -> None:
        def refuse(status: int, why: str) -> None:
            self.server.reply(request, status, {"error": why})

        path = request.path.partition("?")[0]
        parts = path.strip("/").split("/")
        match request.method, parts:
            case "GET", [_] if hmac.compare_digest(path.encode(), self._page.encode()):
                self._put(Call(What.PAGE, None, request, self.server))
            case "POST", ["v1", "tasks", task, ("hello" | "report") as word]:
                if not token_is_right(self._secret, task, request.token):
                    refuse(401, "the token is missing or not this task's")
                    return
                kind: type[Hello] | type[Report] = Hello if word == "hello" else Report
                try:
                    message: Hello | Report = from_json(kind, request.json())
                    same = message.container_id == ContainerId.from_text(task)
                except (SpecError, UsageError, ValueError, RecursionError) as error:
                    refuse(400, f"not a {word} that can be understood: {error}")
                    return
                if not same:
                    refuse(400, f"the {word} names another container than its address")
                    return
                self._put(Call(What(word), message, request, self.server))
            case ("GET", ["v1", "view" as word]) | ("POST", ["v1", ("softkill" | "kill") as word]):
                if not token_is_right(self._secret, TOOLS, request.token):
                    refuse(401, "the token is missing or not this application's")
                    return
                stop = None
                if word != "view":
                    try:
                        stop = from_json(StopRequest, request.json())
                    except (SpecError, ValueError, RecursionError) as error:
                        refuse(400, f"not a request that can be understood: {error}")
                        return
                self._put(Call(What(word), stop, request, self.server))
            case _:
                refuse(404, f"there is no {request.method} {path}")
