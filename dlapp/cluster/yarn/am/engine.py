"""YarnAmEngine: containers on a Hadoop cluster, for one ApplicationMaster.

    ApplicationMaster's thread      am-heartbeat                         am-nodes-0 ..
    heartbeat(asks) ─ requests ─>   allocate, again and again
                    <── events ──   (wake)
    start, stop ─────────────────────────────────────────────────────>   startContainers, stopContainers
                    <── failed ───────────────────────────────────────   (wake)
                                    of what YARN takes away ─────────>   getContainerStatuses
                    <── ended ────────────────────────────────────────   (wake)

One thread alone calls the ResourceManager: every 0.1 s while a request is new or a container is ending, every second
otherwise, and for as long as it takes while the ResourceManager is unavailable. The ApplicationMaster's own thread
never waits for it. The shared state is under one lock, which is never held across a call: the requests, how
long they are retried, and our containers.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar
from urllib.parse import urlsplit

from dlapp.cluster.engine import ContainerRequest, Grant, Heartbeat, Registered, ResourceLimits, TaskLaunch, Wake
from dlapp.cluster.yarn.am.containers import ContainerTracker
from dlapp.cluster.yarn.am.node_calls import FailedOrder, NodeCalls, StartOrder, StatusOrder, StopOrder
from dlapp.cluster.yarn.am.node_list import NodeList
from dlapp.cluster.yarn.am.request_timeouts import UnsatisfiedRequestTimeouts, is_expected
from dlapp.cluster.yarn.am.resource_manager import ResourceManager, lifetime_left_s, usable_nodes
from dlapp.cluster.yarn.am.resource_requests import ResourceRequestTable
from dlapp.cluster.yarn.dialect import SETTING
from dlapp.cluster.yarn.task_container import TASK_SECRET
from dlapp.cluster.yarn.values import (
    Allocation,
    Cluster,
    ContainerStatus,
    Granted,
    Launch,
    NodeReport,
    Program,
    Registration,
    address,
)
from dlapp.errors import DlappError, Unreachable
from dlapp.hadoop.errors import AttemptOver, ConnectionLost, HadoopError, NotRegistered, TokenRefused, WrongRequest
from dlapp.hadoop.tokens import AM_RM_KIND, Credentials
from dlapp.system.logs import log
from dlapp.system.waits import Wait
from dlapp.values.ids import ApplicationId, ContainerId
from dlapp.values.report import Cause, FinalStatus

BUSY_S, QUIET_S = 0.1, 1.0
"""Interval between heartbeats to the ResourceManager while a request or an end is pending, and otherwise. Each costs
0.5 ms."""
BUSY_FOR_S = 60.0
"""How long the short interval is used: a queue that is full stays so for longer, and its cluster is busy enough. The
ends of the last containers are also awaited this long."""
MAX_OUTAGE_S = 86_400.0
"""How long an attempt (before registration, after it, and at its end) waits for a ResourceManager that is unavailable.

YARN counts no time against an attempt during the outage: a starting ResourceManager gives each recovered attempt
yarn.am.liveness-monitor.expiry-interval-ms (10 min) to register, and ours does so within seconds. Its containers live
as long as their NodeManagers wait for the ResourceManager (yarn.resourcemanager.connect.max-wait.ms, 15 min; with
recovery, longer). A day is longer than a maintenance, and longer than the interval after which YARN makes a new key for
the tokens of ApplicationMasters (yarn.resourcemanager.am-rm-tokens.master-key-rolling-interval-secs): an attempt that
missed the new key is refused. Source: RMAppAttemptImpl.AttemptRecoveredTransition, AMLivelinessMonitor, RMProxy,
AMRMTokenSecretManager."""
REGISTER_TIMEOUT_S = 60.0
"""Time limit of a repeated registration; the end of this attempt waits for it."""
REFUSED_S = 300.0
"""If every heartbeat, or the token, is refused for this long, the attempt no longer learns anything: it leaves its
containers to the next attempt."""
REFUSED_RETRY_S = 1.0
CALM_S = 30.0
"""A restarted ResourceManager serves all ApplicationMasters and nodes at once: for this long, ours sends one heartbeat
per second, whatever is pending."""
AWAITED_S = 2.0
"""A first registration that takes longer has waited for a ResourceManager, which has just started, too; it takes some
milliseconds, and a failover three seconds or more."""
ALLOCATE_TIMEOUT_S = 30.0
NODES_TIMEOUT_S = 30.0
LIFETIME_TIMEOUT_S = 5.0
LOG_TIMEOUT_S = 10.0
"""Time limit for a node that serves a log to the page; a browser waits for it."""
LIFETIME_EVERY_S = 60.0
"""Poll interval of the lifetime limit, which an operator may change while the application runs."""


_T = TypeVar("_T")


class YarnAmEngine:
    """The ApplicationMaster's side of a YARN cluster: its `dlapp.cluster.engine.AmEngine`.

    Args:
        cluster: the YARN cluster.
        credentials: this container's credentials; the ApplicationMaster's token stays here, the rest is passed to the
            tasks.
        attempt: number of the application's attempt.
        program: program of the tasks.
        wake: called, from any thread, when a heartbeat would return events.
        application_id: application whose lifetime limit is polled; None: it is not polled.
        certificates: CA certificates (PEM) of the NodeManagers' web servers; empty: OpenSSL's default.
    """

    def __init__(
        self,
        cluster: Cluster,
        credentials: Credentials,
        attempt: int,
        program: Program,
        wake: Wake,
        *,
        application_id: ApplicationId | None = None,
        certificates: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        token = credentials.of_kind(AM_RM_KIND)
        if token is None:
            raise HadoopError("the container's credentials have no token for the ResourceManager")
        self._cluster, self._attempt, self._program, self._wake, self._clock = cluster, attempt, program, wake, clock
        self._application_id, self._certificates = application_id, certificates
        self._task_credentials = credentials.without(AM_RM_KIND)
        self._rm = ResourceManager([address(one) for one in cluster.schedulers], token, cluster.dialect)
        self._nodes = NodeCalls(self._rm.node_tokens.get, self._on_failed, self._on_status, self._on_started)
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()
        self._node_list = NodeList(self._read_nodes, self._set_nodes)
        self._control_url = ""
        self._registered = self._restarted = False
        self._next_lifetime_poll = 0.0
        self._busy_until = self._calm_until = 0.0
        self._last_logged = ""
        self._refused_since: float | None = None
        self._outage = Wait("the ResourceManager", MAX_OUTAGE_S)
        # Shared: access only under the lock from here on.
        self._requests = ResourceRequestTable()
        self._timeouts = UnsatisfiedRequestTimeouts()
        self._containers = ContainerTracker(attempt, cluster.login.user, cluster.web_scheme)
        self._progress = 0.0

    # ---- the engine's calls ----

    def register(self, control_url: str) -> Registered:
        """Register this attempt and its address.

        Raises:
            AttemptOver, TokenRefused: YARN has given it up.
            ConnectionLost: no ResourceManager answered in `MAX_OUTAGE_S`.
        """
        self._control_url = control_url
        registration, began = None, self._clock()
        # Already registered: the answer was lost, and with it the list of live containers. The journal and the tasks
        # that contact us name them, and the ResourceManager takes away those that we want ended.
        with contextlib.suppress(WrongRequest):
            registration = self._while_refused(lambda: self._register(MAX_OUTAGE_S))
        if self._clock() - began > AWAITED_S:
            self._calm_until = self._clock() + CALM_S
        live = registration.live if registration else ()
        with self._lock:
            grants = self._containers.adopt(live)
        if self._cluster.clients:
            self._node_list.start()
        self._registered = True
        self._outage.renew()
        self._thread = threading.Thread(target=self._run_heartbeats, name="am-heartbeat", daemon=True)
        self._thread.start()
        return Registered(limits=ResourceLimits(largest=registration.largest if registration else None), live=grants)

    def heartbeat(
        self, asks: Sequence[ContainerRequest], releases: Sequence[ContainerId], progress: float
    ) -> Heartbeat:
        """Store the current requests, and return the new events. Does not block."""
        with self._lock:
            events = self._containers.pop_events()
            # The requests account for the events returned so far, not for those in this answer.
            self._requests.set_requests(asks, Counter(grant.request_id for grant in events.granted))
            new = self._containers.mark_for_release(releases)
            # All is done, and the application only waits for ends: use the short interval.
            new = new or (progress >= 1.0 > self._progress)
            self._progress = progress
            if new or any(self._requests.rows_due(ask.request_id) for ask in asks):
                self._use_short_interval()
        return events.to_heartbeat()

    def start(self, grant: Grant, launch: TaskLaunch) -> None:
        with self._lock:
            granted = self._containers.mark_starting(grant.container_id)
        if granted is None:
            return
        command, secret = self._program.launch(grant, launch)
        credentials = Credentials(self._task_credentials.tokens, {TASK_SECRET: secret})
        started = Launch(
            command=command,
            resources=dict(self._program.resources),
            credentials=credentials.encode(),
            acls=dict(self._program.acls),
        )
        self._nodes.order(granted.node, StartOrder(granted, started))

    def release_devices(self) -> None:
        """Do nothing: YARN counts the GPUs of a container until the container ends."""

    def stop(self, container_id: ContainerId) -> None:
        with self._lock:
            granted = self._containers.mark_stopping(container_id)
            if granted is None and container_id not in self._containers.releases:
                return
        if granted is not None:
            self._nodes.order(granted.node, StopOrder(container_id))
        self._use_short_interval()

    def check_start(self, container_id: ContainerId) -> None:
        with self._lock:
            granted = self._containers.live(container_id)
        if granted is not None:
            self._nodes.order(granted.node, StatusOrder(container_id))

    def log_tail(self, _container_id: ContainerId, log_url: str, stream: str, most_bytes: int) -> bytes | None:
        """Return the end of a log, as its node shows it to everyone. See `AmEngine`.

        Args:
            _container_id, log_url, stream, most_bytes: see `AmEngine`.
        """
        from dlapp.cluster.yarn.logs.pages import GrowingPage
        from dlapp.hadoop.web import Web

        web = Web(LOG_TIMEOUT_S, self._certificates, accept="text/plain")
        try:
            return GrowingPage(f"{log_url}/{stream}/", None, web).tail(most_bytes)
        finally:
            web.close()

    def finish(self, final_status: FinalStatus, cause: Cause, diagnostics: str) -> bool:
        """Report the application's final status until YARN has recorded it. The last call.

        Returns:
            Whether YARN has recorded it. False: YARN has ended the application, or only this attempt.

        Raises:
            ConnectionLost: no ResourceManager answered in `MAX_OUTAGE_S`.
        """
        self._close_threads()
        deadline = self._clock() + MAX_OUTAGE_S
        try:
            while True:
                left_s = max(1.0, deadline - self._clock())
                try:
                    url = self._control_url
                    if self._while_refused(
                        lambda: self._rm.finish(final_status, diagnostics, url, timeout_s=left_s)  # noqa: B023
                    ):
                        return True
                except NotRegistered:
                    # Refused as a second registration: the first one succeeded, its answer was lost.
                    with contextlib.suppress(WrongRequest):
                        self._register(left_s)
                except (AttemptOver, TokenRefused) as error:
                    log.warning(f"YARN has already unregistered this attempt: {error}")
                    return False
                if self._clock() > deadline:
                    raise ConnectionLost(
                        f"YARN did not record the end of this attempt in {MAX_OUTAGE_S:g} s", sent=True
                    )
                time.sleep(0.02)
        finally:
            self._rm.close()

    def close(self) -> None:
        """Close everything without a report to YARN; for an attempt that has ended."""
        self._close_threads()
        self._rm.close()

    def _close_threads(self) -> None:
        self._closed.set()
        self._changed.set()
        self._node_list.close()
        if self._thread is not None:
            self._thread.join()
        self._outage.end()
        self._nodes.close(timeout_s=5.0)

    # ---- the heartbeat's thread ----

    def _run_heartbeats(self) -> None:
        try:
            while not self._closed.is_set() and self._send_heartbeat():
                self._give_up_unsatisfiable()
                self._announce_leaving()
                self._report_gone()
                with self._lock:
                    waits = self._requests.waiting() or self._progress >= 1.0
                    busy = self._containers.has_pending_ends() or (waits and self._clock() < self._busy_until)
                self._wait(busy=busy)
        except BaseException as error:
            # Without heartbeats YARN would consider the attempt alive for ten minutes.
            self._publish_events(shut_down=f"the heartbeat to YARN has stopped: {error}")
            raise

    def _wait(self, *, busy: bool) -> None:
        """Wait for the next heartbeat, with jitter between the ApplicationMasters of a cluster."""
        if self._closed.is_set():
            return
        if self._clock() < self._calm_until:
            self._closed.wait(QUIET_S * random.uniform(0.75, 1.25))
        else:
            self._changed.wait(BUSY_S * random.uniform(0.75, 1.25) if busy else QUIET_S)

    def _send_heartbeat(self) -> bool:
        """Run one exchange with the ResourceManager; False: it was the last."""
        self._changed.clear()
        try:
            if self._registered:
                self._allocate()
            else:
                self._register_again()
            if self._clock() >= self._next_lifetime_poll:
                self._poll_lifetime()
            self._refused_since = None
            self._record_answer()
        except NotRegistered:
            self._registered = False
            self._record_answer()
            self._changed.set()
        except ConnectionLost as error:
            # It was retried for the call's whole time limit; the next call continues.
            self._log_once(str(error))
            with self._lock:
                self._containers.record_silence(self._clock())
            self._outage.why = str(error)
            self._outage.begin()
            if self._outage.lasted_s > MAX_OUTAGE_S:
                self._publish_events(shut_down=f"no ResourceManager answered in {MAX_OUTAGE_S:g} s: {error}")
                return False
        except AttemptOver as error:
            self._publish_events(shut_down=str(error))
            return False
        except DlappError as error:
            self._log_once(f"the ResourceManager: {error}")
            with self._lock:
                self._containers.record_silence(self._clock())
            if self._refused_since is None:
                self._refused_since = self._clock()
            if self._clock() - self._refused_since > REFUSED_S:
                self._publish_events(
                    shut_down=f"the ResourceManager has refused every heartbeat for {REFUSED_S:g} s: {error}"
                )
                return False
        return True

    def _allocate(self) -> None:
        with self._lock:
            avoid, no_longer_avoid = self._requests.avoid()
            roles: list[int | None] = [
                one.request_id for one in self._requests.asks if self._requests.rows_due(one.request_id)
            ]
            releases = sorted(self._containers.releases)
            progress = self._progress
        # A refusal affects the whole call, so each role has its own call; most applications need only the first.
        for request_id in roles or [None]:
            with self._lock:
                rows = self._requests.rows(request_id) if request_id is not None else []
            try:
                answer = self._rm.allocate(
                    rows,
                    releases,
                    avoid=avoid,
                    no_longer_avoid=no_longer_avoid,
                    progress=progress,
                    timeout_s=ALLOCATE_TIMEOUT_S,
                )
            except (ConnectionLost, TokenRefused):
                self._record_sent(releases, avoid, no_longer_avoid)
                raise
            except (NotRegistered, AttemptOver, Unreachable):
                raise
            except DlappError as error:
                if request_id is None:
                    raise
                # The whole call was refused: its other parts are sent with the next one.
                self._on_refused(request_id, error)
                continue
            self._record_sent(releases, avoid, no_longer_avoid)
            releases, avoid, no_longer_avoid = [], [], []
            if request_id is not None:
                with self._lock:
                    self._timeouts.record_accepted(request_id)
            self._handle_answer(answer)

    def _record_sent(self, releases: list[ContainerId], avoid: list[str], no_longer_avoid: list[str]) -> None:
        """Record that the ResourceManager has this, or will get it first: unanswered calls are repeated."""
        with self._lock:
            self._containers.record_released(releases, self._clock())
            self._requests.record_avoided(avoid, no_longer_avoid)

    def _handle_answer(self, answer: Allocation) -> None:
        with self._lock:
            self._requests.node_count = answer.node_count
            self._requests.update_nodes(answer.nodes)
            self._containers.add_granted(answer.granted)
            self._containers.add_live(answer.live)
            for granted in answer.granted:
                self._requests.record_granted(granted.priority)
                self._check_gcores(granted)
                self._busy_until = self._clock() + BUSY_FOR_S
            if answer.preempted:
                log.info(f"the ResourceManager preempts {', '.join(map(str, answer.preempted))}")
            self._containers.record_preempted(answer.preempted, self._cluster.preemption_wait_s)
            self._containers.record_nodes(answer.nodes, self._clock())
            for status in answer.ended:
                self._containers.record_end(status, self._clock())
        self._publish_events()

    def _announce_leaving(self) -> None:
        with self._lock:
            announced = self._containers.announce_leaving(self._clock())
        if announced:
            log.info(f"the nodes of {', '.join(map(str, announced))} are decommissioned")
            self._publish_events()

    def _report_gone(self) -> None:
        with self._lock:
            now = self._clock()
            self._containers.report_gone(now)
            queries = self._containers.due_status_queries(now, is_done=self._progress >= 1.0)
        for node, container_id in queries:
            self._nodes.order(node, StatusOrder(container_id))
        self._publish_events()

    def _check_gcores(self, granted: Granted) -> None:
        """Warn if the ResourceManager silently ignores our form of gcores."""
        requested = self._requests.size(granted.priority)
        if requested is None or granted.resources.gcores >= requested.gcores:
            return
        self._containers.releases.add(granted.container_id)
        why = (
            f"asked for {requested.gcores} gcores, YARN gave a container with {granted.resources.gcores}: "
            f"it does not support the dialect {self._cluster.dialect.value} ({SETTING})"
        )
        self._give_up(granted.priority, why)

    def _register_again(self) -> None:
        """Send everything again after a restart of the ResourceManager, in its own thread, as long as it takes."""
        live: tuple[Granted, ...] = ()
        # Refused as a second registration: the first one succeeded, its answer was lost.
        with contextlib.suppress(WrongRequest):
            live = self._register(REGISTER_TIMEOUT_S).live
        self._registered = self._restarted = True
        self._calm_until = self._clock() + CALM_S
        with self._lock:
            self._requests.reset()
            self._containers.restore_releases()
            self._containers.add_live(live)
            self._containers.events.resync = True
        self._node_list.read_soon()
        self._publish_events()

    def _on_refused(self, request_id: int, error: DlappError) -> None:
        with self._lock:
            # The refused rows are not in the ResourceManager's table, and are sent again with the next heartbeat.
            self._requests.forget_role(request_id)
            why = self._timeouts.record_refusal(request_id, error, self._clock(), restarted=self._restarted)
            if not is_expected(error):
                self._log_once(f"the ResourceManager refuses the request of role {request_id}: {error}")
            if why is None:
                return
            self._give_up(request_id, why)
        self._publish_events()

    def _give_up_unsatisfiable(self) -> None:
        with self._lock:
            for request_id, why in self._timeouts.expire_unsatisfiable(self._requests, self._clock()):
                self._give_up(request_id, why)
        self._publish_events()

    def _give_up(self, request_id: int, why: str) -> None:
        self._containers.events.refused.append((request_id, why))
        self._requests.drop(request_id)

    def _poll_lifetime(self) -> None:
        self._next_lifetime_poll = self._clock() + LIFETIME_EVERY_S
        if not self._cluster.clients or self._application_id is None:
            return
        clients = [address(one) for one in self._cluster.clients]
        with contextlib.suppress(DlappError):
            left_s = lifetime_left_s(clients, self._cluster.login, self._application_id, timeout_s=LIFETIME_TIMEOUT_S)
            with self._lock:
                self._containers.events.killed_in_s = left_s

    # ---- the thread of the node list ----

    def _read_nodes(self) -> Sequence[NodeReport]:
        clients = [address(one) for one in self._cluster.clients]
        return usable_nodes(clients, self._cluster.login, self._cluster.dialect, timeout_s=NODES_TIMEOUT_S)

    def _set_nodes(self, nodes: Sequence[NodeReport]) -> None:
        with self._lock:
            self._requests.set_nodes(nodes)
            self._containers.record_leaving(nodes, self._clock())

    # ---- the nodes' threads ----

    def _on_failed(self, failed: FailedOrder) -> None:
        with self._lock:
            if not self._containers.record_failed(failed.container_id, failed.error, start=failed.start):
                return
        self._changed.set()
        self._publish_events()

    def _on_status(self, container_id: ContainerId, status: ContainerStatus | None) -> None:
        with self._lock:
            self._containers.record_status(container_id, status, self._clock())
        self._publish_events()

    def _on_started(self, containers: Sequence[ContainerId]) -> None:
        with self._lock:
            self._containers.record_started(containers)
        self._publish_events()

    # ---- small ----

    def _register(self, timeout_s: float) -> Registration:
        return self._rm.register(*self._address(), self._control_url, timeout_s=timeout_s)

    def _while_refused(self, call: Callable[[], _T]) -> _T:
        """Make a call, and retry it for `REFUSED_S` while every ResourceManager refuses our tokens: one that has just
        become active may receive them later."""
        deadline = self._clock() + REFUSED_S
        while True:
            try:
                return call()
            except TokenRefused as error:
                self._log_once(f"the ResourceManager: {error}")
                if self._clock() >= deadline:
                    raise
                time.sleep(REFUSED_RETRY_S)

    def _log_once(self, line: str) -> None:
        """Log a line, unless it repeats the last one."""
        if line != self._last_logged:
            self._last_logged = line
            log.warning(line)

    def _record_answer(self) -> None:
        """Record that a ResourceManager has answered."""
        self._outage.end()
        self._outage.renew()

    def _use_short_interval(self) -> None:
        self._busy_until = self._clock() + BUSY_FOR_S
        self._changed.set()

    def _publish_events(self, *, shut_down: str | None = None) -> None:
        with self._lock:
            if shut_down is not None:
                self._containers.events.shut_down = shut_down
            if not self._containers.events:
                return
        self._wake()

    def _address(self) -> tuple[str, int]:
        parts = urlsplit(self._control_url)
        return parts.hostname or os.environ.get("NM_HOST") or socket.gethostname(), parts.port or 0
