"""Containers of one attempt and their unreported events: pure state, no I/O.

When the ResourceManager takes a container away itself, it reports the end at once (-100), but the container's node
learns of it only with a later heartbeat. So the end of a container that may have processes is reported when they are
gone; until then the container is reported as ending. The node shows when they are gone: the container's state is
RUNNING until then, then COMPLETE, and then the container was "recently stopped".

The same holds for containers that were started in the last second before their ApplicationMaster died: the
ResourceManager takes them away, and the next attempt learns of them in its first heartbeat. It gets neither their node
nor a token for it: their ends, like those on nodes that do not answer, are assumed after a time limit.

A node that the ResourceManager has lost gets no orders. If the node is up, so are the processes of its containers,
until their tasks hear from the ApplicationMaster; so the end of these is reported as presumed (`ContainerEnd`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from dlapp.cluster.engine import NODE_MANAGER, STATUS_UNKNOWN, AnnouncedEnd, ContainerEnd, Grant, Heartbeat
from dlapp.cluster.yarn.am.exit_status import ABORTED, end_of, is_of_lost_node, was_taken_away
from dlapp.cluster.yarn.values import ContainerStage, ContainerStatus, Granted, NodeId, NodeReport
from dlapp.hadoop.errors import ConnectionLost, NotHadoop, RemoteError, TokenRefused, TryAgain
from dlapp.value import Record, replace
from dlapp.values.ids import ContainerId

TAKEN_AWAY_S = 5.0
"""Time from the ResourceManager's report that it takes a container away to the end of its processes: a heartbeat of the
node (1 s), SIGTERM, SIGKILL 250 ms later, and our own lifelines. Seen: up to 1.3 s. Used if the node does not report
it."""
QUERY_INTERVAL_S = 0.25
MAX_QUERIED, LAST_QUERY_INTERVAL_S = 64, 0.1
"""Maximum number of containers whose nodes are queried for their ends when nothing else is awaited, and the interval.
"""
_REFUSED_AFTER_RESTART = ("allocated by a previous RM", "This token is expired")
NOTICE_S = 300.0
"""Time before the end of a graceful decommission in which programs save their work. Until then they go on: with an hour
(the default of yarn.resourcemanager.nodemanager-graceful-decommission-timeout-secs) many end by themselves."""
UNKNOWN_S = 600.0
"""A container that YARN was ordered to release, and about which it reports nothing for this long, is unknown to it:
YARN was restarted while the container's node was down. YARN waits as long for a node before it considers its containers
lost (the default of yarn.nm.liveness-monitor.expiry-interval-ms); the end of a known one is reported with the next
heartbeat."""


class AllocateEvents:
    """Events since the ApplicationMaster's last heartbeat."""

    def __init__(self) -> None:
        self.granted: list[Grant] = []
        self.started: list[ContainerId] = []
        self.preparing: list[ContainerId] = []
        self.ended: list[ContainerEnd] = []
        self.start_failed: list[ContainerEnd] = []
        self.ending: list[ContainerId] = []
        self.announced: list[AnnouncedEnd] = []
        self.removed_nodes: list[str] = []
        self.refused: list[tuple[int, str]] = []
        self.shut_down: str | None = None
        self.killed_in_s: float | None = None
        self.resync = False

    def __bool__(self) -> bool:
        return vars(self) != vars(AllocateEvents())

    def to_heartbeat(self) -> Heartbeat:
        """Return the same as a `Heartbeat`, whose fields have the same names."""
        fields: dict[str, Any] = {
            name: tuple(one) if isinstance(one, list) else one for name, one in vars(self).items()
        }
        return Heartbeat(**fields)


class _ReleasedContainer(Record):
    """Container that may have processes although YARN reports its end.

    Args:
        end: its end, as reported when the time is up.
        over_at: time at which it counts as gone in any case.
        node: its node; None: not known.
    """

    end: ContainerEnd
    over_at: float
    node: NodeId | None


class ContainerTracker:
    """Containers that an attempt holds. The owner of this object does the locking.

    Attributes:
        events: unreported events.
        releases: containers whose release is not yet sent to the ResourceManager.

    Args:
        attempt: number of the application's attempt; containers of earlier ones are reported too.
        user: owner of the application.
        web_scheme: scheme of the NodeManagers' web addresses.
    """

    def __init__(self, attempt: int, user: str, web_scheme: str = "http") -> None:
        self.events = AllocateEvents()
        self.releases: set[ContainerId] = set()
        self._attempt, self._user, self._web_scheme = attempt, user, web_scheme
        self._live: dict[ContainerId, Granted] = {}
        self._started: set[ContainerId] = set()
        self._stopping: set[ContainerId] = set()
        self._taken_away: dict[ContainerId, _ReleasedContainer] = {}
        self._ended_before_us: set[ContainerId] = set()
        self._unknown_at: dict[ContainerId, float] = {}
        self._uncertain_starts: dict[ContainerId, str] = {}
        # Time of the next query to its node, of a container that was queried; infinity: a query is pending.
        self._query_at: dict[ContainerId, float] = {}
        # When a node that is decommissioned gracefully is removed; and the containers of which that is announced.
        self._leaving: dict[NodeId, float] = {}
        self._announced: set[ContainerId] = set()

    def adopt(self, live: Iterable[Granted]) -> tuple[Grant, ...]:
        """Add the containers that an earlier attempt left running, and return them; they are no new events."""
        self._live = {one.container_id: one for one in live}
        return tuple(map(self._grant_of, self._live.values()))

    def pop_events(self) -> AllocateEvents:
        """Return the unreported events, and clear them."""
        events, self.events = self.events, AllocateEvents()
        return events

    def has_pending_ends(self) -> bool:
        """Return True if a container is ending, or is to end, whose end is not known yet."""
        return bool(self._stopping or self.releases or self._taken_away)

    # ---- orders of the ApplicationMaster ----

    def mark_starting(self, container_id: ContainerId) -> Granted | None:
        """Return a container whose task is about to start; None: it was taken away again, and its end is reported."""
        granted = self._live.get(container_id)
        if granted is not None:
            self._started.add(container_id)
        return granted

    def mark_stopping(self, container_id: ContainerId) -> Granted | None:
        """Mark a container as to be ended; return it if its node must get the order."""
        granted = self._live.get(container_id)
        if granted is None and container_id in self._ended_before_us:
            return None
        if granted is None and self._is_of_an_earlier_attempt(container_id):
            self.releases.add(container_id)
        elif granted is None or container_id in self._stopping:
            return None
        self._stopping.add(container_id)
        return granted

    def live(self, container_id: ContainerId) -> Granted | None:
        """Return a container that we hold; None: we do not, or no longer."""
        return self._live.get(container_id)

    def mark_for_release(self, containers: Iterable[ContainerId]) -> bool:
        """Mark containers as to be taken away; return whether one of them was not marked before."""
        known = {one for one in containers if one in self._live}
        new = known - self.releases
        self.releases |= known
        return bool(new)

    def record_released(self, containers: Iterable[ContainerId], now: float) -> None:
        """Record that the release of these was sent to YARN."""
        for container_id in containers:
            self.releases.discard(container_id)
            if container_id in self._live:
                self._unknown_at.setdefault(container_id, now + UNKNOWN_S)

    def record_silence(self, now: float) -> None:
        """Record that YARN did not answer, so it has not confirmed these."""
        self._unknown_at = dict.fromkeys(self._unknown_at, now + UNKNOWN_S)

    def restore_releases(self) -> None:
        """Record that YARN was restarted: it does not know what it was told to take away."""
        self.releases |= (self._unknown_at.keys() & self._live.keys()) | self._stopping
        self._unknown_at.clear()

    # ---- reports of YARN ----

    def add_granted(self, containers: Iterable[Granted]) -> None:
        """Add granted containers: YARN grants none on a node that leaves, so a decommission was taken back."""
        new = tuple(containers)
        for granted in new:
            self._leaving.pop(granted.node, None)
        self.add_live(new)

    def add_live(self, containers: Iterable[Granted]) -> None:
        """Add containers; known ones are no new events."""
        for granted in containers:
            if granted.container_id not in self._live:
                self._live[granted.container_id] = granted
                self.events.granted.append(self._grant_of(granted))

    def record_end(self, status: ContainerStatus, now: float) -> None:
        """Record a container's end reported by the ResourceManager, or by its node."""
        container_id = status.container_id
        earlier = self._is_of_an_earlier_attempt(container_id)
        # The ResourceManager reports some a second time: after a restart, and those that their node has reported. And a
        # first heartbeat reports those that ended, or were taken away, with their ApplicationMaster; the registration
        # did not list them.
        granted = self._live.pop(container_id, None)
        if granted is None and (not earlier or container_id in self._ended_before_us):
            return
        if earlier:
            self._ended_before_us.add(container_id)
        host = granted.node.host if granted is not None else ""
        end, uncertain = end_of(status, host), self._uncertain_starts.get(container_id)
        may_run = earlier or container_id in self._started
        self._forget(container_id)
        if was_taken_away(status) and may_run:
            if uncertain is not None:
                why = f"the container could not be started: {uncertain}"
                end = replace(end, diagnostics=why, node_fault=True, is_silent=True)
            node = granted.node if granted else None
            end = replace(end, presumed=is_of_lost_node(status))
            self._taken_away[container_id] = _ReleasedContainer(end, now + TAKEN_AWAY_S, node)
            self.events.ending.append(container_id)
        else:
            self.events.ended.append(end)

    def record_preempted(self, containers: Iterable[ContainerId], wait_s: float) -> None:
        """Record that the ResourceManager announced their preemption in ``wait_s`` seconds."""
        live = [one for one in containers if one in self._live]
        self.events.announced += [AnnouncedEnd(container_id=one, wait_s=wait_s) for one in live]

    def record_nodes(self, nodes: Iterable[NodeReport], now: float) -> None:
        """Record which nodes the operator removes, from reports of their changes."""
        for one in nodes:
            self._leaving.pop(one.node, None)
            if one.leaves_in_s is not None:
                self._leaving[one.node] = now + one.leaves_in_s
            if one.is_removed:
                self.events.removed_nodes.append(one.node.host)

    def record_leaving(self, nodes: Iterable[NodeReport], now: float) -> None:
        """Record which nodes of a list the operator removes: the change was reported to an earlier attempt, or not at
        all. How much of the time has passed is not known.
        """
        for one in nodes:
            if one.leaves_in_s is None:
                self._leaving.pop(one.node, None)
            elif math.isfinite(one.leaves_in_s):
                self._leaving.setdefault(one.node, now + min(one.leaves_in_s, NOTICE_S))

    def announce_leaving(self, now: float) -> list[ContainerId]:
        """Announce the ends of containers whose nodes are removed within `NOTICE_S`, each once. Return them."""
        due = {node: at for node, at in self._leaving.items() if at - now <= NOTICE_S}
        new = [one for one, granted in self._live.items() if granted.node in due and one not in self._announced]
        for one in new:
            self._announced.add(one)
            wait_s = max(0.0, due[self._live[one].node] - now)
            self.events.announced.append(AnnouncedEnd(container_id=one, wait_s=wait_s, is_decommissioned=True))
        return new

    def _forget(self, container_id: ContainerId) -> None:
        """Forget a container whose end is known, or will be reported by `report_gone`."""
        self._live.pop(container_id, None)
        self._stopping.discard(container_id)
        self.releases.discard(container_id)
        self._started.discard(container_id)
        self._unknown_at.pop(container_id, None)
        self._uncertain_starts.pop(container_id, None)
        self._query_at.pop(container_id, None)
        self._announced.discard(container_id)

    def report_gone(self, now: float) -> None:
        """Report containers that were taken away and whose processes must be gone by now; and those unknown to YARN."""
        gone = [container_id for container_id, one in self._taken_away.items() if one.over_at <= now]
        self.events.ended += [self._pop_taken_away(container_id).end for container_id in gone]
        for container_id in [one for one, at in self._unknown_at.items() if at <= now]:
            self._forget(container_id)
            self.events.ended.append(
                ContainerEnd(
                    container_id=container_id,
                    exit_status=ABORTED,
                    diagnostics="the container was lost: YARN does not know it any more, and its node does not end it",
                    node_fault=True,
                )
            )

    def due_status_queries(self, now: float, *, is_done: bool) -> list[tuple[NodeId, ContainerId]]:
        """Return the containers whose nodes are to be queried now: those that were taken away, and the last ones of an
        application. Each is queried once until `record_status`.

        Args:
            now: the time [s, monotonic].
            is_done: the application only waits for ends, which its nodes know a heartbeat earlier.
        """
        nodes = {container_id: one.node for container_id, one in self._taken_away.items() if one.node is not None}
        if is_done and len(self._live) <= MAX_QUERIED:
            nodes |= {container_id: self._live[container_id].node for container_id in self._started & self._live.keys()}
        due = [(node, one) for one, node in nodes.items() if self._query_at.get(one, now) <= now]
        self._query_at |= dict.fromkeys((container_id for _, container_id in due), math.inf)
        return due

    def _pop_taken_away(self, container_id: ContainerId) -> _ReleasedContainer:
        self._query_at.pop(container_id, None)
        return self._taken_away.pop(container_id)

    def record_status(self, container_id: ContainerId, status: ContainerStatus | None, now: float) -> None:
        """Record the status, reported by its node, of a container that was taken away or that we hold; None: not
        reported."""
        one, stage = self._taken_away.get(container_id), status.stage if status is not None else None
        if container_id in self._query_at:
            self._query_at[container_id] = now + (LAST_QUERY_INTERVAL_S if one is None else QUERY_INTERVAL_S)
        if one is None:
            if container_id not in self._live:
                return
            if stage is ContainerStage.PREPARING:
                self.events.preparing.append(container_id)
            elif status is not None and stage is ContainerStage.ENDED and status.exit_status != STATUS_UNKNOWN:
                self.record_end(status, now)
            return
        if stage is ContainerStage.ENDED:
            self.events.ended.append(replace(self._pop_taken_away(container_id).end, presumed=False))
        elif stage is not None:
            one.over_at, one.end = now + TAKEN_AWAY_S, replace(one.end, node_answered=True)

    def record_started(self, containers: Iterable[ContainerId]) -> None:
        """Record that their node has accepted these and is fetching their files."""
        self.events.started += [one for one in containers if one in self._live]

    def record_failed(self, container_id: ContainerId, error: Exception, *, start: bool) -> bool:
        """Record that a node did not obey: the ResourceManager takes the container away. False: it has ended."""
        granted = self._live.get(container_id)
        if granted is None:
            return False
        if start and isinstance(error, ConnectionLost | NotHadoop) and error.sent:
            # It may have been started: its index must not run elsewhere before its end is known.
            self._uncertain_starts[container_id] = str(error)
        elif start:
            # Its end is reported here; later reports of the ResourceManager are no new events.
            self._forget(container_id)
            is_away = isinstance(error, ConnectionLost)
            end = ContainerEnd(
                container_id=container_id,
                exit_status=ABORTED if _is_of_a_restart(error) else -1,
                diagnostics=f"the container could not be started: {error}",
                node_fault=True,
                service=NODE_MANAGER + granted.node.host if is_away else "",
                # A host that refuses the connection is up; its NodeManager may be restarting.
                is_silent=isinstance(error, ConnectionLost) and not error.refused,
            )
            self.events.start_failed.append(end)
        self.releases.add(container_id)
        return True

    def _is_of_an_earlier_attempt(self, container_id: ContainerId) -> bool:
        return container_id.attempt < self._attempt

    def _grant_of(self, granted: Granted) -> Grant:
        return Grant(
            container_id=granted.container_id,
            request_id=granted.priority,
            node=granted.node.host,
            resources=granted.resources,
            log_url=f"{self._web_scheme}://{granted.web}/node/containerlogs/{granted.container_id}/{self._user}",
        )


def _is_of_a_restart(error: Exception) -> bool:
    """Return whether a node refuses a start because the ResourceManager, or the node itself, was just restarted: this
    is not a failure of the node, and the next container is another one.

    Source: ContainerManagerImpl.authorizeStartAndResourceIncreaseRequest and startContainerInternal, 3.4.2.
    """
    if not isinstance(error, RemoteError):
        return False
    is_refusal = any(words in error.message for words in _REFUSED_AFTER_RESTART)
    return is_refusal or isinstance(error, TokenRefused | TryAgain)
