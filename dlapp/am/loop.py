"""The ApplicationMaster's loop: feeds events from one queue to `Master` and carries out its actions.

    control server ──┐                        ┌─> engine: heartbeat, start, stop, finish
    engine's wake ───┼─> queue ─> Master ─────┼─> answers to tasks and tools
    settled outputs ─┘   (this thread)        ├─> journal, view
                                              └─> output thread

Only this thread changes state. Long operations (outputs) have their own thread, which returns an event. Reports of
tasks are held back until there are new orders, so an order reaches a task within a millisecond. A report with a result
is answered when the journal has it: the task exits after the answer, and a later attempt could not request it again.
`Master` gets an event when a record is durable, if a payload waits for that.
"""

from __future__ import annotations

import contextlib
import heapq
import json
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import lru_cache
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from dlapp.am.application_dir.interface import ApplicationDir, Superseded
from dlapp.am.control.server import ControlEndpoint, ControlRequest, RequestKind
from dlapp.am.decisions.master import Master
from dlapp.am.decisions.usage import usage_history
from dlapp.am.model import events
from dlapp.am.model.journal import line, records, replay
from dlapp.am.model.roster import roster_of
from dlapp.am.model.state import ApplicationState
from dlapp.am.settlement import OutputSettlement
from dlapp.am.view import container_of, public_view
from dlapp.am.view import of as view_of
from dlapp.cluster.engine import AmEngine, ContainerEnd, Heartbeat, TaskLaunch
from dlapp.errors import DlappError
from dlapp.storage.commit import part_location
from dlapp.system import clock, waits
from dlapp.system.logs import log
from dlapp.value import replace
from dlapp.values.access import StreamRequest, derive_token
from dlapp.values.ids import ApplicationId, ContainerId
from dlapp.values.image_name import RegistryCredentials
from dlapp.values.messages import Hello, Orders, Report, StopRequest, StreamAnswer
from dlapp.values.report import ApplicationView
from dlapp.values.serialization import to_json
from dlapp.values.spec import Secrets, Submission
from dlapp.values.usage import MAX_USAGE_BYTES, report_period_s

if TYPE_CHECKING:
    from dlapp.am.control.log_pages import LogPages
    from dlapp.am.control.streams import StreamBroker
    from dlapp.am.device_counts import DeviceCountReader
    from dlapp.am.discovery import MetricsTarget
    from dlapp.am.model.start_gate import StartGate
    from dlapp.am.other_applications import EndWatcher
    from dlapp.am.trial_commits import TrialCommits
    from dlapp.notifications.sender import Sender
    from dlapp.values.launch_spec import LedgerSettings

QUIET_HEARTBEAT_S = 1.0
"""Heartbeat interval while nothing is requested; the engine wakes the loop when there is news."""
DISK_AGAIN_S = 1.0
"""Retry interval for writes while the disk is full."""
SETTLING_S = 300.0
"""Time limit for the settlement of outputs by an attempt that was ordered to end; the next attempt does the rest."""
VIEW_EVERY_S, VIEW_OF_SHELL_EVERY_S = 0.2, 0.05
"""Minimum interval between two views while containers report progress, and of a dlapp-shell here, whose user waits."""
VIEW_SHARE = 0.05
"""Maximum share of a core for views: one of 10,000 containers takes a tenth of a second."""
RECORD_END_S, NOTIFY_END_S = 10.0, 20.0
"""How long an ApplicationMaster that notifies its user of the end itself waits after the end is durable: until the
notification is recorded, and until it is delivered."""
TRIALS_EVERY_S = 1.0
"""Minimum interval of writing the results of a sweep."""
MAX_CONTAINERS_WITH_CURVES = 100
"""Above this number of containers the page has no curves: they take a millisecond per container."""
OPEN_ANSWER_EVERY_S = 1.0
"""Minimum interval between two pages, or two views, generated for clients without a token; limited by `VIEW_SHARE`."""
USAGE_EVERY_S = 300.0
"""Interval of writing the usage history."""
MAX_CONTAINERS_WITH_USAGE = 1000
"""Above this number of containers the usage history is written at the end only: it takes a second."""
WAKE = None
T = TypeVar("T")
_REQUESTS: dict[RequestKind, Callable[[str], events.SoftKill | events.Kill | events.Release]]
_REQUESTS = {
    RequestKind.SOFT_KILL: events.SoftKill,
    RequestKind.KILL: events.Kill,
    RequestKind.RELEASE: events.Release,
}

Item = (
    ControlRequest
    | Heartbeat
    | events.Kill
    | events.SoftKill
    | events.OutputsSettled
    | events.SettlementWaits
    | events.TrialCommitted
    | events.DeviceCountsRead
    | events.OthersEnded
    | events.Release
    | events.Published
    | None
)
"""Item of the loop's queue; None is `WAKE`."""


class Loop:
    """One attempt of one application, from registration to its end.

    Args:
        wakes: the queue on which the engine's ``wake`` puts `WAKE`.
        ledger: the GPU ledger; None: not used.
        listen: the address to listen on, and the host name published for it (empty: that address).
        open_page: whether the page needs no secret path (`dlapp.am.control.server.ControlEndpoint`).
        sender: sender of notifications; None: no notifications.
        notifies_end: this process also sends the notification of the end; on one machine another process does.
        start_gate: what it waits for before it requests containers; None: nothing.
        watcher: watcher of the other applications that it waits for; None: it waits for none.
    """

    def __init__(
        self,
        *,
        app_dir: ApplicationDir,
        submission: Submission,
        secrets: Secrets,
        application_id: ApplicationId,
        attempt: int,
        engine: AmEngine,
        wakes: SimpleQueue[Item],
        listen: tuple[str, str] = ("127.0.0.1", ""),
        open_page: bool = False,
        ledger: LedgerSettings | None = None,
        sender: Sender | None = None,
        notifies_end: bool = False,
        start_gate: StartGate | None = None,
        watcher: EndWatcher | None = None,
    ) -> None:
        self._app_dir, self._submission, self._secrets = app_dir, submission, secrets
        self._application_id, self._attempt = application_id, attempt
        self._engine, self._queue = engine, wakes
        self._sender, self._notifies_end = sender, notifies_end
        self._watcher = watcher
        outputs = submission.spec.outputs
        self._has_devices = any(role.resources.gcores for role in submission.spec.roles)
        self._devices, devices_wait_ms = self._read_device_counts(ledger)
        self._state = ApplicationState(
            submission,
            application_id,
            attempt,
            parts_of=lambda one: tuple(part_location(output.target, application_id, one) for output in outputs),
            devices_wait_ms=devices_wait_ms,
            waiting_after_ms=None if secrets.notify is None else int(secrets.notify.waiting_after_s * 1000),
            start_gate=start_gate,
        )
        self._master = Master(self._state)
        self._control = ControlEndpoint(secrets.control_secret, wakes.put, *listen, open_page=open_page)
        self._journal = app_dir.journal(attempt)
        self._journal.on_written = self._wake_after_write
        self._unrecorded: deque[tuple[int, ControlRequest, ContainerId]] = deque()
        self._deferred: deque[Item] = deque()
        self._held: dict[ContainerId, tuple[ControlRequest, Report]] = {}
        self._held_until: list[tuple[float, int, ContainerId, ControlRequest]] = []
        self._held_count = 0
        self._hellos: dict[ContainerId, list[ControlRequest]] = {}
        self._stop_calls: list[ControlRequest] = []
        self._rosters: dict[str, tuple[int, bytes]] = {}
        self._open_page = open_page
        self._open_answers: dict[object, tuple[bytes, float]] = {}
        self._log_pages: LogPages | None = None
        self._streams: StreamBroker | None = None
        self._settling: threading.Thread | None = None
        self._trial_commits: TrialCommits | None = None
        self._ending: events.ApplicationEnd | None = None
        self._abandoned = self._is_recorded = False
        self._start_failed: list[ContainerEnd] = []
        self._changed, self._view_due = True, 0.0
        self._usage_is_new, self._usage_view_due = False, 0.0
        self._usage_due = time.monotonic() + USAGE_EVERY_S
        self._reported: dict[ContainerId, int] = {}
        self._trials_written, self._trials_due = -1, 0.0
        self._disk_trouble = False
        self._wait = ""  # as text

    def _read_device_counts(self, ledger: LedgerSettings | None) -> tuple[DeviceCountReader | None, int]:
        """Start reading the ledger's counts, if they are needed; return the reader, and how long requests for GPUs wait
        for them [ms].
        """
        if ledger is None or not self._has_devices:
            return None, 0
        from dlapp.am.device_counts import WAIT_MS, DeviceCountReader  # imports the ledger, 10 ms

        devices = DeviceCountReader.of(ledger, self._submission.spec, self._queue.put)
        if devices is None:
            return None, 0
        devices.refresh()
        return devices, WAIT_MS

    def run(self) -> None:
        """Run until the application has ended and the end is recorded."""
        if self._sender is not None and self._attempt > 1:
            self._sender.begin()  # with what the earlier attempt left
        with self._control.server:
            self._app_dir.open(self._control.url, self._queue.put)
            target = self._write_metrics_target()
            # A later attempt does not know its containers yet: the earlier attempt's view says more.
            is_first = self._attempt == 1
            registered = self._wait_for(lambda: self._engine.register(self._control.url), shows=is_first)
            if registered is not None and not is_first:
                # Not earlier: an engine gives up an attempt that does not register, and a file system may be
                # unavailable.
                self._read_earlier_journals()
            if registered is not None and not self._is_over():
                self._take_over_trials()
            if registered is not None and not self._is_over():
                self._handle(registered)
            if self._watcher is not None and not self._is_over():
                self._watcher.start(one.application_id for one in self._state.start_gate.pending)
            heartbeat_at = 0.0
            while not self._is_over():
                now = time.monotonic()
                wanted = min(
                    heartbeat_at,
                    self._held_until[0][0] if self._held_until else heartbeat_at,
                    self._view_due if self._changed else heartbeat_at,
                )
                woken = self._handle_queued(max(0.0, wanted - now))
                self._answer_due_reports(time.monotonic())
                if woken or time.monotonic() >= heartbeat_at:
                    heartbeat_at = time.monotonic() + QUIET_HEARTBEAT_S
                    self._update_wait()
                    self._heartbeat()
                    if self._streams is not None:
                        self._streams.check(time.monotonic())
                    # Also answer those due before the next one: a batch costs half of single answers, and tasks
                    # answered together report together again.
                    self._answer_due_reports(heartbeat_at)
                self._flush_state()
                self._answer_recorded()
                if self._state.awaits_journal:
                    self._handle(events.JournalWritten(self._journal.written))
            if self._watcher is not None:
                self._watcher.close()
            self._end()
            if self._streams is not None:
                self._streams.close()
            if target is not None:
                target.remove()
        if self._settling is not None:
            self._settling.join(SETTLING_S)
        with contextlib.suppress(OSError):  # already logged
            self._journal.close()
        if self._is_recorded:
            notifies_end = self._notify_end()
            self._app_dir.remove()
            if notifies_end and self._sender is not None:
                self._sender.close(NOTIFY_END_S)

    @property
    def control_url(self) -> str:
        """Return the URL of the control server."""
        return self._control.url

    def _is_over(self) -> bool:
        return self._ending is not None or self._abandoned

    # ---- events ----

    def _read_earlier_journals(self) -> None:
        """Read the journals of earlier attempts. A file system may be unavailable for hours."""
        self._state.waiting_for = "the journal of the attempt before is read"
        found = self._wait_for(lambda: (replay(records(self._app_dir.all_journal_lines())), self._app_dir.usage()))
        self._state.waiting_for = ""
        if found is not None:
            recovered, usage = found
            self._state.apply_journals(recovered)
            usage_history.restore(self._state, usage)

    def _take_over_trials(self) -> None:
        """Read the ended trials of the sweep that this one continues. A file system may be unavailable."""
        before, spec, former = self._submission.resumed_from, self._submission.spec, self._state.recovery.former
        if spec.sweep is None or not before or (former is not None and former.has_taken_over):
            return
        from dlapp.am.takeover import ended_trials

        self._state.waiting_for = f"the trials of {before} are read"
        taken = self._wait_for(lambda: ended_trials(before, self._app_dir, spec.outputs, self._application_id))
        self._state.waiting_for = ""
        if taken is not None:
            self._handle(taken)

    def _wait_for(self, work: Callable[[], T], *, shows: bool = False) -> T | None:
        """Return the result of a start step that may take hours; None: this attempt has ended. Incoming messages wait,
        only the last one of a repeated request is kept, and the view shows after some seconds what it waits for. With
        ``shows`` it is also written meanwhile.
        """
        done: list[T | Exception] = []

        def run() -> None:
            try:
                done.append(work())
            except Exception as error:
                done.append(error)
            self._queue.put(WAKE)

        threading.Thread(target=run, name="am-start", daemon=True).start()
        shown_at = time.monotonic() + waits.SHOWN_AFTER_S
        waiting: dict[object, Item] = {}
        view_requests: list[ControlRequest] = []
        while not done:
            item = None
            with contextlib.suppress(Empty):
                item = self._next_item(waits.POLL_INTERVAL_S)
            match item:
                case ControlRequest(message=None):
                    view_requests.append(item)
                case ControlRequest(message=Hello() | Report() as message):
                    is_held = isinstance(message, Report) and message.wait_s > 0
                    waiting[item.kind, message.container_id, is_held] = item
                case Heartbeat():
                    self._handle(item)
                    if self._is_over():
                        return None
                case _ if item is not WAKE:
                    waiting[len(waiting), None] = item
            if time.monotonic() >= shown_at:
                for view_request in view_requests:
                    self._handle_request(view_request)
                view_requests.clear()
                self._update_wait()
                if shows:
                    self._flush_state()
        # Before what the queue has got meanwhile: of a repeated request the last one counts.
        self._deferred.extendleft(reversed((*waiting.values(), *view_requests)))
        if isinstance(done[0], Exception):
            raise done[0]
        return done[0]

    def _next_item(self, timeout_s: float) -> Item:
        """Return the next item, of those that waited for a start step first. Raises Empty: none comes in time."""
        if self._deferred:
            return self._deferred.popleft()
        return self._queue.get(timeout=timeout_s) if timeout_s > 0 else self._queue.get_nowait()

    def _handle_queued(self, timeout_s: float) -> bool:
        """Handle the queued events, at least one if it comes in time; return whether a heartbeat is due at once."""
        woken = False
        try:
            item = self._next_item(timeout_s)
            # A thousand reports at once must not delay the heartbeat.
            for _ in range(1000):
                if item is WAKE:
                    woken = True
                elif isinstance(item, ControlRequest):
                    self._handle_request(item)
                else:
                    self._handle(item)
                    woken = True
                if self._is_over():
                    break
                item = self._next_item(0.0)
        except Empty:
            pass
        return woken

    def _heartbeat(self) -> None:
        container_requests = self._master.container_requests()
        if self._devices is not None:
            self._devices.refresh_for(container_requests)
        answer = self._engine.heartbeat(container_requests, self._master.releases(), self._master.progress())
        if self._start_failed:
            failed, self._start_failed = tuple(self._start_failed), []
            answer = replace(answer, start_failed=(*answer.start_failed, *failed))
        self._handle(answer)
        self._handle(events.Tick())
        if self._has_devices and self._master.have_payloads_ended():
            self._engine.release_devices()

    def _handle_request(self, call: ControlRequest) -> None:
        match call.kind, call.message:
            case RequestKind.HELLO, Hello() as hello:
                self._hellos.setdefault(hello.container_id, []).append(call)
                self._handle(hello)
            case RequestKind.REPORT, Report() as report:
                self._handle_report(call, report)
            case ((RequestKind.SOFT_KILL | RequestKind.KILL | RequestKind.RELEASE), StopRequest() as stop):
                self._stop_calls.append(call)
                self._handle(_REQUESTS[call.kind](stop.user))
            case RequestKind.ROSTER, ContainerId() as container_id:
                if (roster := self._roster_for(container_id)) is not None:
                    call.answer_bytes(roster)
                else:
                    call.refuse(404, f"{container_id} is not a container of this application that has a roster")
            case RequestKind.STREAM, StreamRequest() as request:
                if (wanted := self._broker().open(call, request, time.monotonic())) is not None:
                    self._handle(wanted)
            case RequestKind.STREAM_END, StreamAnswer() as answer:
                if self._streams is not None:
                    self._streams.handle_answer(call, answer)
                else:
                    call.refuse(410, f"no command waits for stream {answer.number}")
            case RequestKind.VIEW, _:
                call.answer(to_json(self._view()))
            case RequestKind.PAGE, _:
                self._answer_page(call)
            case _:
                call.answer_bytes(self._public_answer(call.kind))

    def _handle_report(self, call: ControlRequest, report: Report) -> None:
        container_id = report.container_id
        if report.wait_s <= 0 and report.result is None:
            # An event on its own connection. The held report is not answered with it: the task would only send it
            # again.
            self._handle(report)
            self._answer_report(call, container_id)
            return
        if (older := self._held.pop(container_id, None)) is not None:
            self._answer_report(older[0], container_id)
        self._held[container_id] = (call, report)
        self._handle(report)
        if container_id not in self._held:
            return  # answered with new orders
        orders = self._master.orders_of(container_id)
        if orders is None or report.result is not None or orders.number > report.seen:
            del self._held[container_id]
            if report.result is not None and orders is not None:
                self._unrecorded.append((self._journal.added, call, container_id))
                self._journal.request_write()
            else:
                self._answer_report(call, container_id)
        else:
            self._held_count += 1
            until = time.monotonic() + min(report.wait_s, 60.0)
            heapq.heappush(self._held_until, (until, self._held_count, container_id, call))

    def _answer_report(self, call: ControlRequest, container_id: ContainerId) -> None:
        if (orders := self._master.orders_of(container_id)) is not None:
            call.answer(_json_of(orders))
        else:
            call.refuse(404, f"{container_id} is not a container of this application that has work")

    def _answer_recorded(self, *, all_of_them: bool = False) -> None:
        """Answer the reports whose result a next attempt would find in the journal."""
        while self._unrecorded and (all_of_them or self._unrecorded[0][0] <= self._journal.written):
            _, call, container_id = self._unrecorded.popleft()
            self._answer_report(call, container_id)

    def _wake_after_write(self) -> None:
        if self._unrecorded or self._state.awaits_journal:
            self._queue.put(WAKE)

    def _answer_due_reports(self, now: float) -> None:
        while self._held_until and self._held_until[0][0] <= now:
            _, _, container_id, call = heapq.heappop(self._held_until)
            held = self._held.get(container_id)
            if held is not None and held[0] is call:
                del self._held[container_id]
                self._answer_report(call, container_id)

    # ---- what is decided ----

    def _handle(self, event: events.Event) -> None:
        actions = self._master.handle(event, clock.now_ms())
        # Call this first: it records the reports, even if the view is written in any case.
        self._changed = self._changes_view(event) or bool(actions) or self._changed
        for action in actions:
            if self._abandoned:
                break  # the journal is another attempt's now: drop the rest
            self._execute(action)

    def _changes_view(self, event: events.Event) -> bool:
        """Return True if an event may change the view. A task without news repeats its last report."""
        if not isinstance(event, Report):
            return isinstance(event, (Hello, events.SettlementWaits))
        self._usage_is_new = self._usage_is_new or event.receipt is not None
        known = self._reported.get(event.container_id, 0)
        self._reported[event.container_id] = max(known, event.number)
        return event.number > known

    def _execute(self, action: events.Action) -> None:
        match action:
            case events.StartTask(grant):
                token = derive_token(self._secrets.control_secret, str(grant.container_id))
                try:
                    self._engine.start(
                        grant,
                        TaskLaunch(
                            container_id=grant.container_id,
                            control_url=self._control.url,
                            token=token,
                            env=self._env_of(grant.request_id),
                            environment=self._secrets.environment,
                            registry_credentials=self._credentials_of(grant.request_id),
                            ledger=self._secrets.ledger,
                        ),
                    )
                except (DlappError, OSError) as error:
                    self._start_failed.append(
                        ContainerEnd(container_id=grant.container_id, exit_status=1, diagnostics=str(error))
                    )
                    self._queue.put(WAKE)
                if self._submission.live is not None:
                    self._broker().prepare()  # the user waits for a shell
            case events.StopContainer(container_id):
                self._engine.stop(container_id)
            case events.CheckStart(container_id):
                self._engine.check_start(container_id)
            case events.Assign(container_id, assignment):
                for call in self._hellos.pop(container_id, ()):
                    call.answer(to_json(assignment))
                self._journal.request_write()  # it has the index that the payload waits for
            case events.Refuse(container_id, why):
                for call in self._hellos.pop(container_id, ()):
                    call.refuse(409, why)
            case events.RefuseStream():
                assert self._streams is not None
                self._streams.refuse(action)
            case events.SendOrders(container_id, orders):
                if orders.streams and self._streams is not None:
                    self._streams.send_order(orders.streams[-1].number, container_id)
                held = self._held.get(container_id)
                if held is not None and orders.number > held[1].seen and held[1].result is None:
                    del self._held[container_id]
                    held[0].answer(to_json(orders))
            case events.AnswerStop(answer):
                for call in self._stop_calls:
                    call.answer(to_json(answer))
                self._stop_calls.clear()
            case events.SettleOutputs():
                self._settle(action)
            case events.CommitTrial():
                self._commit_trial(action)
            case events.Finish(ending):
                self._ending = ending
            case events.Notify(event, key, text):
                self._notify(event, key, text)
            case events.Abandon(why):
                log.info(f"this attempt ends: {why}")
                self._abandoned = True
            case events.WriteJournal(record):
                self._journal.add(line(record))
                if action.durable:
                    self._flush_durable()

    def _notify(self, event: str, key: str, text: str) -> None:
        if self._sender is not None:
            from dlapp.notifications.events import notification_of

            at_ms = clock.now_ms()
            self._sender.enqueue(notification_of(self._submission, self._application_id, event, key, text, at_ms=at_ms))

    def _notify_end(self) -> bool:
        """Record the notification of the end and start sending it; return whether this process sends it."""
        if self._sender is None or not self._notifies_end:
            return False
        from dlapp.notifications.events import notification_of_end

        view = self._view()
        self._sender.enqueue(
            notification_of_end(
                self._submission,
                self._application_id,
                view.final_status.value,
                view.cause.value if view.cause is not None else "",
                view.diagnostics,
                finished_ms=view.finished_ms or clock.now_ms(),
                diagnosis=view.diagnosis,
            )
        )
        self._sender.wait_recorded(RECORD_END_S)
        return True

    def _broker(self) -> StreamBroker:
        if self._streams is None:
            from dlapp.am.control.streams import StreamBroker

            self._streams = StreamBroker()
        return self._streams

    def _env_of(self, request_id: int) -> dict[str, str]:
        """Return the user's variables for the containers of a role."""
        role = self._state.role_of_request(request_id)
        return {**self._secrets.env, **(self._secrets.role_env.get(role.spec.name, {}) if role else {})}

    def _credentials_of(self, request_id: int) -> RegistryCredentials | None:
        """Return the registry credentials for the image of a role's containers; None: none."""
        role = self._state.role_of_request(request_id)
        image = self._submission.spec.image_of(role.spec) if role else None
        return self._secrets.registry_credentials.get(image or "")

    def _flush_durable(self) -> None:
        try:
            self._journal.flush(durable=True)
        except Superseded as error:
            log.info(f"this attempt ends: {error}")
            self._abandoned = True
        except OSError as error:
            # A next attempt would know less, so dying here would be worse.
            log.error(f"the journal cannot be written: {error}")

    def _commit_trial(self, wanted: events.CommitTrial) -> None:
        if self._trial_commits is None:
            from dlapp.am.trial_commits import TrialCommits  # few applications need it

            settlement = OutputSettlement(self._app_dir, self._submission, self._application_id)
            patience_s = self._submission.spec.output_patience_s
            self._trial_commits = TrialCommits(settlement, patience_s, self._queue.put)
        self._trial_commits.add(wanted)

    def _settle(self, wanted: events.SettleOutputs) -> None:
        def tell(lack: str) -> None:
            self._queue.put(events.SettlementWaits(lack))

        settlement = OutputSettlement(self._app_dir, self._submission, self._application_id, tell)

        def work() -> None:
            settled: Item
            try:
                if self._trial_commits is not None:
                    self._trial_commits.close()
                settled = settlement.settle(self._attempt, wanted)
            except Superseded as error:
                settled = Heartbeat(shut_down=str(error))
            except (DlappError, OSError) as error:
                settled = events.OutputsSettled((), f"the output could not be stored: {error}")
            self._queue.put(settled)

        if not self._submission.spec.outputs and not self._app_dir.patience_s:
            # Nothing to move or wait for, so no thread; but the claim is written nevertheless: it is the decision.
            work()
            return
        self._settling = threading.Thread(target=work, name="am-outputs", daemon=True)
        self._settling.start()

    def _roster_for(self, container_id: ContainerId) -> bytes | None:
        """Return the roster for a container, as JSON, cached: many containers request the same one."""
        container = self._state.containers.open.get(container_id)
        if container is None or container.instance is None or not self._state.roster.number:
            return None
        gate = self._state.role_of(container).gate
        number, data = self._rosters.get(gate.name, (0, b""))
        if number != self._state.roster.number:
            data = json.dumps(to_json(roster_of(self._state, gate)), separators=(",", ":")).encode()
            self._rosters[gate.name] = self._state.roster.number, data
        return data

    # ---- what is shown ----

    def _public_answer(self, what: RequestKind) -> bytes:
        """Return the metrics or the view for clients without a token, made at a bounded rate."""
        if what is RequestKind.METRICS:
            from dlapp.am.metrics import metrics_text

            return self._cached_answer(what, lambda: metrics_text(public_view(self._view())))
        return self._cached_answer(what, lambda: json.dumps(to_json(public_view(self._view())), separators=(",", ":")))

    def _cached_answer(self, key: object, make: Callable[[], str]) -> bytes:
        """Return an answer for a client without a token: the cached one, unless it is too old for its cost."""
        now = time.monotonic()
        data, until = self._open_answers.get(key, (b"", now))
        if until <= now:
            began_s = time.thread_time()
            data = make().encode(errors="replace")
            cost_s = time.thread_time() - began_s
            self._open_answers[key] = data, now + max(OPEN_ANSWER_EVERY_S, cost_s / VIEW_SHARE)
        return data

    def _answer_page(self, call: ControlRequest) -> None:
        """Answer with the page of the application, or with a log page."""
        # Loaded on demand: most applications' pages are never opened.
        from dlapp.pages.log_page import PageQuery

        query = PageQuery.of_path(call.request.path)
        if query.container is None:
            call.answer_bytes(self._cached_answer(query, lambda: self._page(refreshes=query.refreshes)))
            return
        container = container_of(self._state, query.container)
        if container is None:
            call.refuse(404, f"container {query.container} was not started")
            return
        if self._log_pages is None:
            from dlapp.am.control.log_pages import LogPages

            self._log_pages = LogPages(self._engine, self._submission.spec.appname)
        self._log_pages.answer(call, container, query)

    def _write_metrics_target(self) -> MetricsTarget | None:
        """Write the target file for Prometheus, if configured."""
        if not self._submission.metrics_targets:
            return None
        from dlapp.am.discovery import MetricsTarget

        target = MetricsTarget(self._submission.metrics_targets, self._application_id)
        target.write(self._control.url, self._control.metrics_path)
        return target

    def _page(self, *, refreshes: bool) -> str:
        from dlapp.pages.page import Extras, page
        from dlapp.pages.usage_curves import time_axis, usage_curves

        # The owner alone knows the secret path.
        view = public_view(self._view()) if self._open_page else self._view()
        now_ms, extras = clock.now_ms(), Extras()
        if len(self._state.instances) <= MAX_CONTAINERS_WITH_CURVES:
            begin_ms, end_ms = time_axis(view, now_ms)
            curves = usage_curves(usage_history.of(self._state).containers, begin_ms, end_ms)
            extras = Extras(curves=curves, length_s=(end_ms - begin_ms) / 1000)
        return page(view, now_ms, extras, refreshes=refreshes)

    def _view(self) -> ApplicationView:
        return view_of(self._state, self._control.page_url, self._wait)

    def _update_wait(self) -> None:
        """Record what this process waits for."""
        if (wait := waits.longest_text()) != self._wait:
            self._wait, self._changed = wait, True

    def _flush_state(self, *, final: bool = False) -> None:
        """Write the journal's group and the view. If the disk is full now, only the display suffers, not the
        application."""
        if self._abandoned:
            return  # both belong to another attempt now
        try:
            self._journal.flush()
            self._write_view(final=final)
            self._write_usage(final=final)
            self._write_trials(final=final)
        except OSError as error:
            if not self._disk_trouble:
                log.warning(f"the journal or the view cannot be written ({error}); retrying")
            self._disk_trouble, self._changed = True, True
            self._view_due = time.monotonic() + DISK_AGAIN_S
        else:
            self._disk_trouble = False

    def _write_view(self, *, final: bool) -> None:
        now = time.monotonic()
        # Usage changes constantly; alone it is no reason to write the whole view several times a second.
        changed = self._changed or (self._usage_is_new and now >= self._usage_view_due)
        if not final and (not changed or now < self._view_due):
            return
        every_s = VIEW_EVERY_S if self._submission.live is None else VIEW_OF_SHELL_EVERY_S
        self._changed, self._view_due = False, now + every_s
        self._usage_is_new = False
        self._usage_view_due = now + report_period_s(len(self._state.instances))
        began_s = time.thread_time()
        self._app_dir.write_view(self._view())
        self._view_due = max(self._view_due, now + (time.thread_time() - began_s) / VIEW_SHARE)

    def _write_usage(self, *, final: bool) -> None:
        """Write the usage history at intervals, so that a next attempt has most of it, and at the end."""
        is_due = time.monotonic() >= self._usage_due and len(self._state.instances) <= MAX_CONTAINERS_WITH_USAGE
        if not (final or is_due) or not any(one.series is not None for one in self._state.containers.by_id.values()):
            return
        self._usage_due = time.monotonic() + USAGE_EVERY_S
        while len(data := json.dumps(usage_history.as_json(self._state), separators=(",", ":"))) > MAX_USAGE_BYTES:
            usage_history.downsample_all(self._state)
        self._app_dir.write_usage(data.encode())

    def _write_trials(self, *, final: bool) -> None:
        """Write changed results of a sweep, at the same interval as the view."""
        sweep = self._state.sweep
        if (
            sweep is None
            or sweep.changed == self._trials_written
            or not (final or time.monotonic() >= self._trials_due)
        ):
            return
        self._trials_written, began_s = sweep.changed, time.thread_time()
        self._app_dir.write_trials(sweep.results())
        pause_s = max(TRIALS_EVERY_S, (time.thread_time() - began_s) / VIEW_SHARE)
        self._trials_due = time.monotonic() + pause_s

    def _end(self) -> None:
        self._flush_state(final=True)
        if self._ending is None:
            return
        self._app_dir.archive()
        self._answer_recorded(all_of_them=True)
        ending = self._ending
        self._is_recorded = self._engine.finish(ending.final_status, ending.cause, ending.diagnostics)
        self._app_dir.write_report(self._view())
        for call in self._stop_calls:
            call.refuse(409, "the application has ended")


@lru_cache(maxsize=64)
def _json_of(orders: Orders) -> Any:
    """Return orders in their JSON form, cached: those of most containers are equal."""
    return to_json(orders)
