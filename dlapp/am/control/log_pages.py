"""Logs of containers on the ApplicationMaster's page: read by threads, because a node may be slow.

Everybody who may see the page may request it, so a log is read at most once a second, and few are read at a time.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from typing import TYPE_CHECKING

from dlapp.errors import DlappError
from dlapp.system import clock
from dlapp.system.logs import log

if TYPE_CHECKING:
    from dlapp.am.control.server import ControlRequest
    from dlapp.cluster.engine import AmEngine
    from dlapp.pages.log_page import PageQuery
    from dlapp.values.report import ContainerView

_AT_ONCE, _KEPT, _EVERY_S = 4, 16, 1.0


class LogPages:
    """Pages with ends of logs, which the engine reads."""

    def __init__(self, engine: AmEngine, appname: str) -> None:
        self._engine, self._appname = engine, appname
        self._lock = threading.Lock()
        self._reading: dict[PageQuery, list[ControlRequest]] = {}
        self._pages: OrderedDict[PageQuery, tuple[float, bytes]] = OrderedDict()

    def answer(self, call: ControlRequest, one: ContainerView, query: PageQuery) -> None:
        """Answer a request for a container's log, now or from a thread."""
        with self._lock:
            until, data = self._pages.get(query, (0.0, b""))
            if until <= time.monotonic():
                if query in self._reading:
                    self._reading[query].append(call)
                    return
                if len(self._reading) < _AT_ONCE:
                    self._reading[query] = [call]
                    threading.Thread(target=self._read, args=(one, query), name="am-log", daemon=True).start()
                    return
                data = b""
        if data:
            call.answer_bytes(data)
        else:
            call.refuse(503, "other logs are just read; try again")

    def _read(self, one: ContainerView, query: PageQuery) -> None:
        try:
            answer = self._page(one, query)
        except Exception:  # with four threads that ended so, no log would be read any more
            import traceback

            log.warning(f"a log page failed: {traceback.format_exc()}")
            answer = b""
        with self._lock:
            calls = self._reading.pop(query)
            self._pages[query] = time.monotonic() + _EVERY_S, answer
            while len(self._pages) > _KEPT:
                self._pages.popitem(last=False)
        for call in calls:
            if answer:
                call.answer_bytes(answer)
            else:
                call.refuse(500, "internal error; see the log of the ApplicationMaster")

    def _page(self, one: ContainerView, query: PageQuery) -> bytes:
        from dlapp.pages.log_page import LOG_BYTES, log_page

        try:
            data = self._engine.log_tail(one.container_id, one.log_url, query.stream, LOG_BYTES)
            found: bytes | str = b"" if data is None else data
        except (DlappError, OSError) as error:
            found = f"it cannot be read: {error}"
        return log_page(self._appname, one, query, found, clock.now_ms()).encode(errors="replace")
