"""Communication with the ApplicationMaster; no step ever waits for it.

Two threads. One sends news in order, and closes its connection when there are none. The other always has one report
outstanding, which the ApplicationMaster answers when it has new orders, so orders arrive immediately. These reports
repeat the last news under its number, so it counts once and older news that arrives later is ignored; they also carry
the container's resource usage.

The first thread checks every second what a step waits for (`dlapp.system.waits`); a wait that lasts is reported as
news. If the ApplicationMaster does not answer, the request is repeated with growing pauses as long as the task lives.
If its address file names another ApplicationMaster, that one is used. On one machine the file also shows whether the
process lives: a task that finds none for some time stops. On a cluster, while no ApplicationMaster answers, a third
thread searches for proof that the application has ended (`dlapp.task.link.application_end`).
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dlapp.errors import Denied, DlappError, NotFound, SpecError, Unreachable
from dlapp.net.control_client import ControlConnection
from dlapp.system import waits
from dlapp.system.clock import backoff_s, date_and_time
from dlapp.task.environment import node_name
from dlapp.task.interrupt import InterruptHandler
from dlapp.task.link.am_address import AmFinder, longest_pause_s
from dlapp.value import Closeable, replace
from dlapp.values.ids import ContainerId
from dlapp.values.messages import Assignment, Hello, Orders, Phase, Report, Stop, TaskResult
from dlapp.values.roster import Roster
from dlapp.values.serialization import from_json, to_json

if TYPE_CHECKING:
    from dlapp.task.link.application_end import ApplicationEndWatch
    from dlapp.task.usage import Measured
    from dlapp.values.messages import LaunchState, MpiLaunch, StreamOrder

HELLO_TIMEOUT_S = 5.0
CALL_TIMEOUT_S = 10.0
_PAUSES_S = 0.05, 5.0
"""Pauses between two tries while the ApplicationMaster does not answer: doubled from the first to the second. They are
longer in a large application, whose tasks all retry at the same time."""
NEWS_IDLE_S = 5.0
"""Time without news after which their connection is closed: it takes the ApplicationMaster a descriptor for each."""
_FIND_EVERY_S = 1.0
_LOOK_FOR_END_EVERY_S = 1.0
"""Most often nothing is due then; in a large application it is seldomer."""
_DECISION_POLL_S = 0.5
_LOGGED_FOR_S = 60.0
"""Time in which each undelivered report is logged in dlapp.log; after that one per hour is logged."""
_LOGGED_EVERY_S = 3600.0
_EARLY = 0.8
"""Share of the interval between two reports with usage after which any report includes the usage: reports are answered
somewhat early, and the next one would be late by a whole interval."""
_MAX_ANSWER_BYTES = 4 << 20
"""Orders are small; an assignment names each input, some 300 bytes, of which there may be thousands."""

_NO_ORDERS = Orders(attempt=-1, number=0)
"""Stand-in for the orders before the first ones."""


class AmLink(Closeable):
    """A task's link to its ApplicationMaster.

    Args:
        stopper: receives stop orders.
        find: returns the current address of the ApplicationMaster when it does not answer; None if the address is
            fixed.
        alone_s: how long the payload continues while ``find`` finds none [s]; None means forever.
        end: searches for proof that the application has ended; None if not needed.
        containers: number of tasks of the ApplicationMaster.
    """

    def __init__(
        self,
        url: str,
        token: str,
        container_id: ContainerId,
        stopper: InterruptHandler,
        warn: Callable[[str], None],
        find: AmFinder | None = None,
        alone_s: float | None = None,
        end: ApplicationEndWatch | None = None,
        *,
        containers: int = 1,
    ) -> None:
        self._url, self._token, self._find, self._alone_s, self._end = url, token, find, alone_s, end
        self._end_thread: threading.Thread | None = None
        factor = longest_pause_s(containers) / longest_pause_s(1)  # 3.3 for 10,000
        self._pauses_s = _PAUSES_S[0], _PAUSES_S[1] * factor
        self._end_check_interval_s = _LOOK_FOR_END_EVERY_S * max(1.0, factor / 2)
        self._end_reason = ""
        self._unanswered_at: float | None = None
        self._unanswered_since, self._logged_at = "", 0.0
        self._found_at = float("-inf")
        self._masterless_since: float | None = None
        self._container_id, self._stopper, self._warn = container_id, stopper, warn
        self._report_connection = ControlConnection(url, token, max_answer_bytes=_MAX_ANSWER_BYTES)
        self._poll_connection = ControlConnection(url, token, max_answer_bytes=_MAX_ANSWER_BYTES)
        self._changed = threading.Condition()
        self._unsent: deque[Report] = deque()
        self._last: Report | None = None
        self._detail = ""  # of the last report, without the current wait
        self._number = 1
        self._attempt = 0
        self._orders = _NO_ORDERS
        self._roster: tuple[Orders, Roster] | None = None
        self._closing = False
        self.open_streams: Callable[[str, int, Sequence[StreamOrder]], None] | None = None
        """Function that is called by the thread of orders with the URL and the attempt of the ApplicationMaster, and
        the streams in new orders."""
        self._measure: Callable[[], Measured] | None = None
        self._measured_at = 0.0
        self._threads = [
            threading.Thread(target=self._send_reports, name="task-news", daemon=True),
            threading.Thread(target=self._poll_orders, name="task-orders", daemon=True),
        ]

    def close(self) -> None:
        """End the threads, and close the connections."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._report_connection.close()
        self._poll_connection.close()
        for thread in (*self._threads, self._end_thread):
            if thread is not None and thread.ident is not None:
                thread.join()

    # ---- the first request ----

    def hello(self) -> Assignment:
        """Request the assignment; retry until there is an answer.

        Raises:
            DlappError: the ApplicationMaster has no assignment for this container, or does not know it.
        """
        hello = Hello(container_id=self._container_id, host=node_name(), pid=os.getpid())
        has_warned = False
        for pause_s in backoff_s(*_PAUSES_S):
            try:
                answer = self._call(self._report_connection, "hello", hello, HELLO_TIMEOUT_S)
                assignment = from_json(Assignment, answer)
            except Unreachable as error:
                if not has_warned:
                    self._warn(f"no work yet: {error}")
                    has_warned = True
                self._find_next_master()
                time.sleep(pause_s)
                continue
            self._attempt = assignment.attempt
            self._record_answer()
            return assignment
        raise AssertionError

    def begin(self, index: int, generation: int = 0, measure: Callable[[], Measured] | None = None) -> None:
        """Start reporting.

        Args:
            measure: returns the container's resource usage since the last call; None if it is not measured.
        """
        self._measure, self._measured_at = measure, time.monotonic()
        self._last = Report(
            container_id=self._container_id, number=1, index=index, phase=Phase.STARTING, generation=generation
        )
        for thread in self._threads:
            thread.start()

    # ---- news ----

    @property
    def phase(self) -> Phase:
        """Return the phase that was reported last."""
        return self._last.phase if self._last else Phase.STARTING

    def report_phase(self, phase: Phase, **details: Any) -> None:
        """Report a phase and its details; each call resets ``progress``, ``detail``, ``waits_for``."""
        with self._changed:
            assert self._last is not None
            self._number += 1
            fields = {
                "number": self._number,
                "phase": phase,
                "progress": None,
                "detail": "",
                "waits_for": "",
                "failure": None,
                **details,
            }
            self._last, self._detail = replace(self._last, **fields), str(fields["detail"])
            # Of one phase only the latest news counts.
            if self._unsent and self._unsent[-1].phase is phase:
                self._unsent.pop()
            self._unsent.append(self._last)
            self._changed.notify_all()

    def report_fields(self, *, at_once: bool = True, **details: Any) -> None:
        """Report fields that do not depend on the phase; the phase's details stay. Thread-safe.

        Args:
            at_once: False to wait for the next report.
            details: fields of a `Report`.
        """
        with self._changed:
            assert self._last is not None
            if self._last.result is not None:
                return
            self._number += 1
            self._last = replace(self._last, number=self._number, **details)
            if self._unsent and self._unsent[-1].phase is self._last.phase:
                self._unsent[-1] = self._last
            elif at_once:
                self._unsent.append(self._last)
                self._changed.notify_all()

    def launches(self, generation: int) -> tuple[tuple[MpiLaunch, ...], tuple[LaunchState, ...]]:
        """Return the launches of the latest orders (`Orders`); empty if they are for another generation."""
        orders = self._orders
        return (orders.launches, orders.launch_states) if orders.generation == generation else ((), ())

    @property
    def orders(self) -> Orders:
        """Return the latest orders; before the first ones, the defaults."""
        return self._orders

    def close_idle_connections(self) -> None:
        """Close idle connections."""
        self._report_connection.rest()

    @property
    def generation(self) -> int:
        """Return the generation of the gang, as far as this task knows."""
        return self._orders.generation

    @property
    def keep_s(self) -> float:
        """Return the time to keep the container of a failed payload [s]; 0 to not keep it."""
        return self._orders.keep_s

    @property
    def abort(self) -> str:
        """Return the reason why the payload is considered hung; empty if it is not."""
        return self._orders.abort

    def wait_for_start(self, generation: int, *, with_roster: bool, restored: int | None = None) -> int | None:
        """Wait until the gate is open for a generation, or a later generation exists; return the current one.

        Args:
            generation: that this task is ready for.
            with_roster: wait for the roster, too.
            restored: the restored checkpoint; None if it does not matter.

        Returns:
            The generation; None if another checkpoint must be restored for this one.
        """
        with self._changed:
            while True:
                orders = self._orders
                is_mine = orders.generation == generation
                is_open = orders.go and self._has_roster(must_be=with_roster)
                if orders.generation > generation or (is_mine and is_open):
                    return orders.generation
                if is_mine and not orders.go and orders.checkpoint not in (None, restored) and restored is not None:
                    return None
                self._changed.wait()

    @property
    def checkpoint(self) -> int:
        """Return the number of a checkpoint in the latest orders; 0 if none."""
        return self._orders.checkpoint or 0

    def wait_for_checkpoint(self, generation: int, other_than: int | None) -> tuple[int, int, int]:
        """Wait until the checkpoint of a generation is decided, or a later generation exists.

        Args:
            other_than: a checkpoint that cannot be restored; None accepts any.

        Returns:
            The generation, the checkpoint's number (0: none), and the number after which new ones are counted.
        """
        with self._changed:
            while True:
                orders = self._orders
                if orders.generation > generation:
                    return orders.generation, 0, 0
                number = orders.checkpoint
                if orders.generation == generation and number is not None and number != other_than:
                    return generation, number, orders.checkpoints_after
                self._changed.wait()

    def wait_for_decision(self, generation: int) -> None:
        """Wait until a later generation exists, or this task must end or keep its container."""
        with self._changed:
            while (
                self.generation <= generation
                and self._stopper.wanted is Stop.NO
                and not self._end_reason
                and not self.keep_s
            ):
                self._changed.wait(_DECISION_POLL_S)  # a signal that ends this task does not notify this condition

    @property
    def roster(self) -> Roster | None:
        """Return the latest roster; None if the ApplicationMaster has not named one. Each version is a new object."""
        known = self._roster
        return known[1] if known is not None else None

    def send_result(self, result: TaskResult) -> None:
        """Report the result of this task, without waiting. It is the last report."""
        # Launches do not matter any more, and many of them would leave no room for the result.
        self.report_phase(Phase.ENDED, result=result, launches=(), launch_states=())

    def finish(self, deadline_s: float, *, waits_for_master: bool = True) -> bool:
        """Return whether the ApplicationMaster has received the result.

        Args:
            deadline_s: time limit [s].
            waits_for_master: retry also while no ApplicationMaster is running.
        """
        with self._changed:
            until = time.monotonic() + deadline_s
            while (
                self._unsent
                and not self.is_masterless
                and not self._end_reason
                and (waits_for_master or self.has_master())
                and (left := until - time.monotonic()) > 0
            ):
                self._changed.wait(min(left, 0.1))
            return not self._unsent

    # ---- detecting the loss of the ApplicationMaster ----

    @property
    def is_masterless(self) -> bool:
        """Return True if the payload was ended because there was no ApplicationMaster for too long."""
        since = self._masterless_since
        return self._alone_s is not None and since is not None and time.monotonic() - since >= self._alone_s

    @property
    def end_reason(self) -> str:
        """Return the reason why the application has ended, if this task had to find it out; empty if that is not
        known."""
        return self._end_reason

    def has_master(self) -> bool:
        """Return whether an ApplicationMaster is running, as far as this task can see."""
        return self._alone_s is None or self._find is None or self._find.find_url() is not None

    def _update_orphaned(self, *, is_there: bool) -> None:
        with self._changed:
            if is_there:
                self._masterless_since = None
            elif self._masterless_since is None:
                self._masterless_since = time.monotonic()
        if self.is_masterless:
            why = f"there was no ApplicationMaster for {self._alone_s:g} s"
            self._stopper.order(Stop.SOFT, why, reason="no_applicationmaster")

    # ---- the threads ----

    def _send_reports(self) -> None:
        pauses_s = backoff_s(*self._pauses_s)
        while True:
            with self._changed:
                idle_at: float | None = time.monotonic() + NEWS_IDLE_S
                while not self._update_wait() and not self._unsent and not self._closing:
                    # The running payload waits for none of our steps.
                    look_s = None if self.phase is Phase.RUNNING else waits.POLL_INTERVAL_S
                    left_s = None if idle_at is None else max(0.0, idle_at - time.monotonic())
                    self._changed.wait(min((one for one in (look_s, left_s) if one is not None), default=None))
                    if idle_at is not None and time.monotonic() >= idle_at:
                        self._report_connection.rest()
                        idle_at = None
                if self._closing:
                    return
                news, url = self._unsent[0], self._url
            answer = self._report(self._report_connection, news, wait_s=0.0)
            with self._changed:
                if answer:
                    pauses_s = backoff_s(*self._pauses_s)
                    # Newer news of the same phase may have replaced it.
                    if self._unsent and self._unsent[0] is news:
                        self._unsent.popleft()
                        self._changed.notify_all()
                else:
                    self._wait_to_repeat(url, next(pauses_s))

    def _update_wait(self) -> bool:
        """Report what this task waits for if the wait lasts, or that it has ended. Return True if that is news."""
        assert self._last is not None
        text = waits.longest_text() or self._detail
        if self._unsent or text == self._last.detail or self._last.result is not None:
            return False
        self._number += 1
        self._last = replace(self._last, number=self._number, detail=text)
        self._unsent.append(self._last)
        return True

    def _poll_orders(self) -> None:
        pauses_s = backoff_s(*self._pauses_s)
        while True:
            with self._changed:
                if self._closing:
                    return
                assert self._last is not None
                last, url = self._last, self._url
                wait_s = self._orders.report_every_s
                if not self._has_roster():
                    wait_s = 0.0  # fetched again after this report
                if last.result is not None:
                    self._poll_connection.rest()
                    return  # sent by the other thread, once; no report follows it
            if self._report(self._poll_connection, self._with_usage(last), wait_s=wait_s) and self._fetch_roster():
                pauses_s = backoff_s(*self._pauses_s)
            else:
                with self._changed:
                    self._wait_to_repeat(url, next(pauses_s))

    def _with_usage(self, last: Report) -> Report:
        """Add the container's resource usage to an outgoing report, at the interval that the ApplicationMaster
        wants.
        """
        now, every_s = time.monotonic(), self._orders.usage_every_s
        if self._measure is None or now < self._measured_at + _EARLY * every_s:
            return last
        self._measured_at = now
        usage, receipt = self._measure()
        return replace(last, usage=usage, receipt=receipt)

    def _wait_to_repeat(self, url: str, pause_s: float) -> None:
        """Wait before resending a report, unless the ApplicationMaster's address has changed."""
        self._changed.wait_for(lambda: self._closing or self._url != url, pause_s)

    def _report(self, connection: ControlConnection, news: Report, wait_s: float) -> bool:
        """Send one report; return False if there was no answer, so that it must be sent again."""
        with self._changed:
            version = self._roster[1].version if self._roster else 0
            report = replace(news, seen=self._orders.number, wait_s=wait_s, roster_version=version)
        try:
            orders = from_json(Orders, self._call(connection, "report", report, wait_s + CALL_TIMEOUT_S))
        except Unreachable as error:
            if not self._closing:
                self._log_undelivered(error, has_result=news.result is not None)
                self._find_next_master()
            return False
        except (Denied, NotFound) as error:
            self._warn(f"report refused: {error}")
            self._stopper.order(Stop.NOW, f"the ApplicationMaster does not know this task: {error}")
            return True
        except DlappError as error:
            self._warn(f"report refused: {error}")
            return isinstance(error, SpecError)
        self._update_orphaned(is_there=True)
        self._record_answer()
        self._handle_orders(orders)
        return True

    def _has_roster(self, *, must_be: bool = False) -> bool:
        """Return whether the roster of the latest orders is fetched; ``must_be``: whether orders must name one."""
        orders, known = self._orders, self._roster
        if not orders.roster:
            return not must_be
        return known is not None and (known[0].attempt, known[0].roster) == (orders.attempt, orders.roster)

    def _fetch_roster(self) -> bool:
        """Fetch the roster of the latest orders. Return False to retry."""
        with self._changed:
            orders = self._orders
            if self._has_roster():
                return True
        try:
            path = f"/v1/tasks/{self._container_id}/roster"
            roster = from_json(Roster, self._poll_connection.call("GET", path, timeout_s=CALL_TIMEOUT_S))
        except DlappError as error:
            if not self._closing:
                self._warn(f"no roster yet: {error}")
            return False
        with self._changed:
            self._roster = orders, roster
            self._changed.notify_all()
        self._stopper.wake()
        return True

    def _log_undelivered(self, error: Unreachable, *, has_result: bool) -> None:
        """Log that there is no answer: every time at first, and then once an hour."""
        now = time.monotonic()
        with self._changed:
            if self._unanswered_at is None:
                self._unanswered_at, self._unanswered_since = now, date_and_time()
            for_s = now - self._unanswered_at
            if for_s >= _LOGGED_FOR_S and now - self._logged_at < _LOGGED_EVERY_S:
                return
            self._logged_at = now
        text = "report not delivered"
        if for_s >= _LOGGED_FOR_S:
            what = "the result waits for" if has_result else "there is no answer of"
            text = f"{what} an ApplicationMaster since {self._unanswered_since}"
        self._warn(f"{text}: {error}")

    def _record_answer(self) -> None:
        """Record that the ApplicationMaster has answered."""
        with self._changed:
            self._unanswered_at = None
        if self._find is not None:
            self._find.reset()

    def _find_next_master(self) -> None:
        """Switch to the next ApplicationMaster, if there is one; called by a thread that gets no answer."""
        if self._find is None:
            return
        self._start_end_watch()
        self._switch_master(self._find)

    def _switch_master(self, find: AmFinder) -> None:
        with self._changed:
            if time.monotonic() - self._found_at < _FIND_EVERY_S:
                return
            self._found_at = time.monotonic()
        url = find.find_url()
        self._update_orphaned(is_there=url is not None)
        with self._changed:
            if url is None or url == self._url or self._closing:
                return
            self._warn(f"the ApplicationMaster is now at {url}")
            old = (self._report_connection, self._poll_connection)
            self._url = url
            self._report_connection = ControlConnection(url, self._token, max_answer_bytes=_MAX_ANSWER_BYTES)
            self._poll_connection = ControlConnection(url, self._token, max_answer_bytes=_MAX_ANSWER_BYTES)
            self._changed.notify_all()
        for connection in old:
            connection.close()

    def _start_end_watch(self) -> None:
        with self._changed:
            if self._unanswered_at is None:
                self._unanswered_at, self._unanswered_since = time.monotonic(), date_and_time()
            if self._end is None or self._end_thread is not None or self._closing:
                return
            self._end_thread = threading.Thread(target=self._watch_for_end, name="task-end", daemon=True)
            self._end_thread.start()

    def _watch_for_end(self) -> None:
        """Search for proof that the application has ended, until an ApplicationMaster answers."""
        assert self._end is not None
        self._end.begin()
        while True:
            end_reason = self._end.check()
            with self._changed:
                if self._closing or (self._unanswered_at is None and not self._end_reason):
                    self._end_thread = None
                    return
                if end_reason and not self._end_reason:
                    self._end_reason = end_reason
                    self._warn(end_reason)
                    self._changed.notify_all()
            if self._find is not None:
                # The other threads may be waiting for a dead host: this wakes them.
                self._switch_master(self._find)
            if self._end_reason:
                # The payload has its grace time; every other step is interrupted.
                self._stopper.order(Stop.SOFT if self.phase is Phase.RUNNING else Stop.NOW, self._end_reason)
            with self._changed:
                self._changed.wait_for(lambda: self._closing, self._end_check_interval_s)

    def _handle_orders(self, orders: Orders) -> None:
        with self._changed:
            if orders.attempt < self._attempt:
                self._warn(f"orders of attempt {orders.attempt} refused: attempt {self._attempt} has sent orders")
                return
            known = self._orders
            if orders.attempt == known.attempt and orders.number <= known.number:
                return
            self._attempt, self._orders = orders.attempt, orders
            self._changed.notify_all()
        if orders.streams and self.open_streams is not None:
            self.open_streams(self._url, orders.attempt, orders.streams)
        is_changed = known is _NO_ORDERS or orders.generation > known.generation or orders.abort
        if is_changed or _work_of(orders) != _work_of(known):
            self._stopper.wake()
        if orders.stop is not Stop.NO:
            why = orders.why or "stopped by the ApplicationMaster"
            self._stopper.order(orders.stop, why, orders.grace_s, orders.reason)

    def _call(self, connection: ControlConnection, word: str, message: Hello | Report, timeout_s: float) -> Any:
        path = f"/v1/tasks/{self._container_id}/{word}"
        return connection.call("POST", path, to_json(message), timeout_s=timeout_s)


def _work_of(orders: Orders) -> tuple[object, ...]:
    """Return what the main thread must check besides stop orders."""
    return orders.launches, orders.launch_states, orders.trials, orders.trials_are_over
