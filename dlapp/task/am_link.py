"""Talking to the ApplicationMaster, without a step ever waiting for it.

Two threads, each with a connection: one brings news as they come, in their order; the other always has a report
outstanding that the ApplicationMaster answers when it has new orders, so they arrive at once. It repeats the last
news under their number, so they count once, and older ones that come after them count no more. An ApplicationMaster
that does not answer is asked again, with growing pauses, as long as the task lives; only the lifeline says that it is
gone.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from dlapp.errors import Denied, DlappError, NotFound, SpecError, Unreachable
from dlapp.ids import ContainerId
from dlapp.messages import Assignment, Hello, Orders, Phase, Report, Stop, TaskResult
from dlapp.net.control_client import ControlConnection
from dlapp.serialization import from_json, to_json
from dlapp.task.interrupt import InterruptHandler
from dlapp.value import replace

HELLO_TIMEOUT_S = 5.0
CALL_TIMEOUT_S = 10.0
_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 5.0
_FIND_EVERY_S = 1.0
_MAX_ANSWER_BYTES = 4 << 20
"""Orders are small; an assignment names each input, some 300 bytes, of which there may be thousands."""


class AmLink:
    """A task's link to its ApplicationMaster. A context manager: leaving it ends the threads.

    Args:
        stopper: told of orders to stop.
        warn: takes lines for dlapp's own log.
        find: asked where the ApplicationMaster is now when it does not answer; None: it stays where it is.
    """

    def __init__(
        self,
        url: str,
        token: str,
        container_id: ContainerId,
        stopper: InterruptHandler,
        warn: Callable[[str], None],
        find: Callable[[], str | None] | None = None,
    ) -> None:
        self._url, self._token, self._find = url, token, find
        self._found_at = float("-inf")
        self._container_id, self._stopper, self._warn = container_id, stopper, warn
        self._news_connection = ControlConnection(url, token, max_answer_bytes=_MAX_ANSWER_BYTES)
        self._poll_connection = ControlConnection(url, token, max_answer_bytes=_MAX_ANSWER_BYTES)
        self._changed = threading.Condition()
        self._unsent: deque[Report] = deque()
        self._last: Report | None = None
        self._number = 1
        self._attempt = 0
        self._orders: Orders | None = None
        self._closing = False
        self._threads = [
            threading.Thread(target=self._send_news, name="task-news", daemon=True),
            threading.Thread(target=self._poll_orders, name="task-orders", daemon=True),
        ]

    def __enter__(self) -> AmLink:
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._news_connection.close()
        self._poll_connection.close()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    # ---- the first word ----

    def hello(self) -> Assignment:
        """Ask for work, again and again until there is an answer.

        Raises:
            DlappError: the ApplicationMaster has no work for this container, or does not know it.
        """
        hello = Hello(container_id=self._container_id, host=os.uname().nodename, pid=os.getpid())
        pause = _Pause()
        while True:
            try:
                answer = self._call(self._news_connection, "hello", hello, HELLO_TIMEOUT_S)
                assignment = from_json(Assignment, answer)
            except Unreachable as error:
                if pause.count == 0:
                    self._warn(f"no work yet: {error}")
                self._look_for_another()
                time.sleep(pause.next_s())
                continue
            break
        self._attempt = assignment.attempt
        return assignment

    def begin(self, index: int) -> None:
        """Report from now on, as CONTAINER_INDEX ``index``."""
        self._last = Report(container_id=self._container_id, number=1, index=index, phase=Phase.STARTING)
        for thread in self._threads:
            thread.start()

    # ---- news ----

    @property
    def phase(self) -> Phase:
        """Phase that was reported last."""
        return self._last.phase if self._last else Phase.STARTING

    def say(self, phase: Phase, **details: Any) -> None:
        """Report a phase and what there is to say of it; ``progress`` and ``detail`` are forgotten with each call."""
        with self._changed:
            assert self._last is not None
            self._number += 1
            fields = {"number": self._number, "phase": phase, "progress": None, "detail": "", **details}
            self._last = replace(self._last, **fields)
            # Of one phase only the latest news count.
            if self._unsent and self._unsent[-1].phase is phase:
                self._unsent.pop()
            self._unsent.append(self._last)
            self._changed.notify_all()

    def wait_for_go(self) -> None:
        """Wait until the gate is open."""
        with self._changed:
            while not (self._orders is not None and self._orders.go):
                self._changed.wait()

    def finish(self, result: TaskResult, deadline_s: float) -> bool:
        """Report the result; whether the ApplicationMaster has it. Nothing can be said after it."""
        self.say(Phase.ENDED, result=result)
        with self._changed:
            until = time.monotonic() + deadline_s
            while self._unsent and not self._stopper.am_gone and (left := until - time.monotonic()) > 0:
                self._changed.wait(min(left, 0.1))
            return not self._unsent

    # ---- the threads ----

    def _send_news(self) -> None:
        pause = _Pause()
        while True:
            with self._changed:
                while not self._unsent and not self._closing:
                    self._changed.wait()
                if self._closing:
                    return
                news = self._unsent[0]
            answer = self._report(self._news_connection, news, wait_s=0.0)
            with self._changed:
                if answer:
                    pause = _Pause()
                    # Newer news of the same phase may have taken its place.
                    if self._unsent and self._unsent[0] is news:
                        self._unsent.popleft()
                        self._changed.notify_all()
                else:
                    self._changed.wait_for(lambda: self._closing, pause.next_s())

    def _poll_orders(self) -> None:
        pause = _Pause()
        while True:
            with self._changed:
                if self._closing:
                    return
                assert self._last is not None
                last = self._last
                wait_s = self._orders.report_every_s if self._orders else 10.0
                if last.result is not None:
                    return  # said by the other thread, once; no report follows it
            if self._report(self._poll_connection, last, wait_s=wait_s):
                pause = _Pause()
            else:
                with self._changed:
                    self._changed.wait_for(lambda: self._closing, pause.next_s())

    def _report(self, connection: ControlConnection, news: Report, wait_s: float) -> bool:
        """Send one report; False: nobody answered, so it is to be sent again."""
        with self._changed:
            seen = self._orders.number if self._orders else 0
            report = replace(news, seen=seen, wait_s=wait_s)
        try:
            orders = from_json(Orders, self._call(connection, "report", report, wait_s + CALL_TIMEOUT_S))
        except Unreachable as error:
            if not self._closing:
                self._warn(f"report not delivered: {error}")
                self._look_for_another()
            return False
        except (Denied, NotFound) as error:
            self._warn(f"report refused: {error}")
            self._stopper.order(Stop.NOW, f"the ApplicationMaster does not know this task: {error}")
            return True
        except DlappError as error:
            self._warn(f"report refused: {error}")
            return isinstance(error, SpecError)
        self._take(orders)
        return True

    def _look_for_another(self) -> None:
        """Turn to the next ApplicationMaster, if there is one by now; from either thread."""
        if self._find is None:
            return
        with self._changed:
            if time.monotonic() - self._found_at < _FIND_EVERY_S:
                return
            self._found_at = time.monotonic()
        url = self._find()
        with self._changed:
            if url is None or url == self._url or self._closing:
                return
            self._warn(f"the ApplicationMaster is now at {url}")
            old = (self._news_connection, self._poll_connection)
            self._url = url
            self._news_connection = ControlConnection(url, self._token, max_answer_bytes=_MAX_ANSWER_BYTES)
            self._poll_connection = ControlConnection(url, self._token, max_answer_bytes=_MAX_ANSWER_BYTES)
        for connection in old:
            connection.close()

    def _take(self, orders: Orders) -> None:
        with self._changed:
            if orders.attempt < self._attempt:
                self._warn(f"orders of attempt {orders.attempt} refused: attempt {self._attempt} has spoken")
                return
            known = self._orders
            if known is not None and orders.attempt == known.attempt and orders.number <= known.number:
                return
            self._attempt, self._orders = orders.attempt, orders
            self._changed.notify_all()
        if orders.stop is not Stop.NO:
            self._stopper.order(orders.stop, orders.why or "stopped by the ApplicationMaster", orders.grace_s)

    def _call(self, connection: ControlConnection, word: str, message: Hello | Report, timeout_s: float) -> Any:
        path = f"/v1/tasks/{self._container_id}/{word}"
        return connection.call("POST", path, to_json(message), timeout_s=timeout_s)


class _Pause:
    """Growing pauses between tries, each shortened by chance so that a thousand tasks do not come at once."""

    def __init__(self) -> None:
        self.count = 0

    def next_s(self) -> float:
        """Return how long to wait now [s]."""
        self.count += 1
        return min(_LONGEST_PAUSE_S, _PAUSE_S * 2.0 ** (self.count - 1)) * (0.5 + os.urandom(1)[0] / 512)
