"""The containers of one attempt and what there is to tell of them: plain sums, no I/O.

Of a container that it takes away itself the ResourceManager says at once that it has ended (-100), and its node hears
of it a heartbeat later. So of one that may have processes the end is told when they are gone, and until then that it is
ending. That they are gone its node says: the container's state is RUNNING between the order and that, then COMPLETE,
and then it was "recently stopped".

That holds as well for those that were started in the last second before their ApplicationMaster died: the
ResourceManager takes them away, and the next attempt hears of them in its first heartbeat. Of these nobody says on
which node they were, nor gives a token for it: for them, as for those whose node does not answer, time has to do.

A node that the ResourceManager has lost is told nothing at all. Where it lives, so do the processes of its containers,
until their tasks hear from the ApplicationMaster; so the end of these is told as presumed (`ContainerEnd`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from dlapp.cluster.engine import NODE_MANAGER, ContainerEnd, Grant, Heartbeat
from dlapp.cluster.yarn.am.exit_status import ABORTED, end_of, is_of_lost_node, was_taken_away
from dlapp.cluster.yarn.values import ContainerStage, ContainerStatus, Granted, NodeId
from dlapp.hadoop.errors import ConnectionLost, NotHadoop, RemoteError, TokenRefused, TryAgain
from dlapp.value import Record, replace
from dlapp.values.ids import ContainerId

TAKEN_AWAY_S = 5.0
"""From the ResourceManager's word that it takes a container away to the end of its processes: a heartbeat of the node
(1 s), SIGTERM, SIGKILL 250 ms later, and our own lifelines. Seen: up to 1.3 s. So long it is waited for where the node
does not say it."""
LOOK_EVERY_S = 0.25
_REFUSED_AFTER_RESTART = ("allocated by a previous RM", "This token is expired")
UNKNOWN_S = 600.0
"""A container that YARN was told to take away, and of which it says nothing for so long, it does not know: it was
restarted while the container's node was away. YARN waits as long for a node before it calls its containers lost (the
default of yarn.nm.liveness-monitor.expiry-interval-ms); of one that it knows it tells the end at the next heartbeat."""


class AllocateEvents:
    """Events since the ApplicationMaster last asked."""

    def __init__(self) -> None:
        self.granted: list[Grant] = []
        self.started: list[ContainerId] = []
        self.preparing: list[ContainerId] = []
        self.ended: list[ContainerEnd] = []
        self.start_failed: list[ContainerEnd] = []
        self.ending: list[ContainerId] = []
        self.preempted: list[ContainerId] = []
        self.refused: list[tuple[int, str]] = []
        self.shut_down: str | None = None
        self.killed_in_s: float | None = None
        self.resync = False

    def __bool__(self) -> bool:
        of_live = self.granted or self.started or self.preparing
        lists = of_live or self.ended or self.start_failed or self.ending or self.preempted or self.refused
        return bool(lists or self.resync or self.shut_down is not None or self.killed_in_s is not None)

    def to_heartbeat(self, preemption_wait_s: float) -> Heartbeat:
        """The same as the engine's answer.

        Args:
            preemption_wait_s: of `dlapp.cluster.yarn.values.Cluster`.
        """
        return Heartbeat(
            granted=tuple(self.granted),
            started=tuple(self.started),
            preparing=tuple(self.preparing),
            ended=tuple(self.ended),
            start_failed=tuple(self.start_failed),
            ending=tuple(self.ending),
            preempted=tuple(self.preempted),
            preemption_wait_s=preemption_wait_s,
            resync=self.resync,
            shut_down=self.shut_down,
            killed_in_s=self.killed_in_s,
            refused=tuple(self.refused),
        )


class _ReleasedContainer(Record):
    """A container that may have processes although YARN says that it has ended.

    Args:
        end: as it is told when time is up.
        over_at: it counts as gone then, whatever we know.
        look_at: its node is to be asked again then; infinity: it is being asked, or it is not known which one it is.
    """

    end: ContainerEnd
    over_at: float
    node: NodeId | None
    look_at: float


class ContainerTracker:
    """Containers that an attempt holds. Its owner has the lock.

    Attributes:
        news: what is not told yet.
        releases: containers that the ResourceManager is to take away, and does not know of it yet.

    Args:
        attempt: of the application; containers of earlier ones are told of too.
        user: whose the application is.
        web_scheme: of the NodeManagers' web addresses.
    """

    def __init__(self, attempt: int, user: str, web_scheme: str = "http") -> None:
        self.news = AllocateEvents()
        self.releases: set[ContainerId] = set()
        self._attempt, self._user, self._web_scheme = attempt, user, web_scheme
        self._live: dict[ContainerId, Granted] = {}
        self._started: set[ContainerId] = set()
        self._stopping: set[ContainerId] = set()
        self._taken_away: dict[ContainerId, _ReleasedContainer] = {}
        self._ended_before_us: set[ContainerId] = set()
        self._unknown_at: dict[ContainerId, float] = {}
        self._doubts: dict[ContainerId, str] = {}

    def hold(self, live: Iterable[Granted]) -> tuple[Grant, ...]:
        """Hold the containers that an earlier attempt left running, and return them; they are no news."""
        self._live = {one.container_id: one for one in live}
        return tuple(map(self._grant_of, self._live.values()))

    def take_news(self) -> AllocateEvents:
        """Return the events that were not told yet, and forget them."""
        news, self.news = self.news, AllocateEvents()
        return news

    def change_under_way(self) -> bool:
        """Return True if something ends, or is to end, of which the end is not known yet."""
        return bool(self._stopping or self.releases or self._taken_away)

    # ---- what the ApplicationMaster wants ----

    def starts(self, container_id: ContainerId) -> Granted | None:
        """A task is about to be started; None: the container was taken away again, its end is told already."""
        granted = self._live.get(container_id)
        if granted is not None:
            self._started.add(container_id)
        return granted

    def stops(self, container_id: ContainerId) -> Granted | None:
        """A container is to end; the answer is the one whose node is to be told so."""
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

    def gives_back(self, containers: Iterable[ContainerId]) -> bool:
        """Containers are to be taken away; whether one of them was not known as such."""
        known = {one for one in containers if one in self._live}
        new = known - self.releases
        self.releases |= known
        return bool(new)

    def released(self, containers: Iterable[ContainerId], now: float) -> None:
        """YARN was told to take these away."""
        for container_id in containers:
            self.releases.discard(container_id)
            if container_id in self._live:
                self._unknown_at.setdefault(container_id, now + UNKNOWN_S)

    def silent(self, now: float) -> None:
        """YARN did not answer, so it cannot have said that it knows them."""
        self._unknown_at = dict.fromkeys(self._unknown_at, now + UNKNOWN_S)

    def release_again(self) -> None:
        """YARN was restarted: it does not know what it was told to take away."""
        self.releases |= (self._unknown_at.keys() & self._live.keys()) | self._stopping
        self._unknown_at.clear()

    # ---- what YARN says ----

    def granted(self, containers: Iterable[Granted]) -> None:
        """Containers came, or came to light; those that we have are no news."""
        for granted in containers:
            if granted.container_id not in self._live:
                self._live[granted.container_id] = granted
                self.news.granted.append(self._grant_of(granted))

    def ended(self, status: ContainerStatus, now: float) -> None:
        """The ResourceManager says that a container has ended."""
        container_id = status.container_id
        earlier = self._is_of_an_earlier_attempt(container_id)
        # After its restart the ResourceManager tells of some a second time. And a first heartbeat tells of those that
        # ended, or were taken away, with their ApplicationMaster; the registration did not name them.
        granted = self._live.pop(container_id, None)
        if granted is None and (not earlier or container_id in self._ended_before_us):
            return
        if earlier:
            self._ended_before_us.add(container_id)
        end, doubt = end_of(status), self._doubts.get(container_id)
        may_run = earlier or container_id in self._started
        self._let_go(container_id)
        if was_taken_away(status) and may_run:
            if doubt is not None:
                why = f"the container could not be started: {doubt}"
                end = replace(end, diagnostics=why, node_fault=True, is_silent=True)
            node = granted.node if granted else None
            look_at = now if node else math.inf
            end = replace(end, presumed=is_of_lost_node(status))
            self._taken_away[container_id] = _ReleasedContainer(end, now + TAKEN_AWAY_S, node, look_at)
            self.news.ending.append(container_id)
        else:
            self.news.ended.append(end)

    def preempts(self, containers: Iterable[ContainerId]) -> None:
        """The ResourceManager gives notice that it will take these away."""
        self.news.preempted += [one for one in containers if one in self._live]

    def _let_go(self, container_id: ContainerId) -> None:
        """Forget a container whose end is known, or will be told by `tell_what_is_gone`."""
        self._live.pop(container_id, None)
        self._stopping.discard(container_id)
        self.releases.discard(container_id)
        self._started.discard(container_id)
        self._unknown_at.pop(container_id, None)
        self._doubts.pop(container_id, None)

    def tell_what_is_gone(self, now: float) -> None:
        """Containers that were taken away, and whose processes must be gone by now; those that YARN does not know."""
        gone = [container_id for container_id, one in self._taken_away.items() if one.over_at <= now]
        self.news.ended += [self._taken_away.pop(container_id).end for container_id in gone]
        for container_id in [one for one, at in self._unknown_at.items() if at <= now]:
            self._let_go(container_id)
            self.news.ended.append(
                ContainerEnd(
                    container_id=container_id,
                    exit_status=ABORTED,
                    diagnostics="the container was lost: YARN does not know it any more, and its node does not end it",
                    node_fault=True,
                )
            )

    def to_look_at(self, now: float) -> list[tuple[NodeId, ContainerId]]:
        """Containers that were taken away, and whose nodes are to be asked now; each is until `seen`."""
        due = []
        for container_id, one in self._taken_away.items():
            if one.node is not None and one.look_at <= now:
                one.look_at = math.inf
                due.append((one.node, container_id))
        return due

    def seen(self, container_id: ContainerId, stage: ContainerStage | None, now: float) -> None:
        """Record how far its node says that a container is; None: it does not say.

        Args:
            container_id: one that was taken away, or that we hold.
            stage: as its node says.
            now: the time [s, monotonic].
        """
        one = self._taken_away.get(container_id)
        if one is None:
            if stage is ContainerStage.PREPARING and container_id in self._live:
                self.news.preparing.append(container_id)
            return
        one.look_at = now + LOOK_EVERY_S
        if stage is ContainerStage.ENDED:
            self.news.ended.append(replace(self._taken_away.pop(container_id).end, presumed=False))
        elif stage is not None:
            one.over_at = now + TAKEN_AWAY_S

    def taken(self, containers: Iterable[ContainerId]) -> None:
        """Their node has taken these, and brings their files now."""
        self.news.started += [one for one in containers if one in self._live]

    def failed(self, container_id: ContainerId, error: Exception, *, start: bool) -> bool:
        """A node did not do as it was told: the ResourceManager takes the container away. False: it has ended."""
        granted = self._live.get(container_id)
        if granted is None:
            return False
        if start and isinstance(error, ConnectionLost | NotHadoop) and error.sent:
            # It may have been started: its index may not run elsewhere before its end is known.
            self._doubts[container_id] = str(error)
        elif start:
            # Its end is told by this; what the ResourceManager says of it later is no news.
            self._let_go(container_id)
            is_away = isinstance(error, ConnectionLost)
            end = ContainerEnd(
                container_id=container_id,
                exit_status=ABORTED if _is_of_a_restart(error) else -1,
                diagnostics=f"the container could not be started: {error}",
                node_fault=True,
                service=NODE_MANAGER + granted.node.host if is_away else "",
                # A host that refuses the connection works; its NodeManager may be just restarted.
                is_silent=isinstance(error, ConnectionLost) and not error.refused,
            )
            self.news.start_failed.append(end)
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
    """Return whether a node refuses a start because the ResourceManager, or the node itself, was just restarted: that
    says nothing against the node, and the next container is another one.

    Source: ContainerManagerImpl.authorizeStartAndResourceIncreaseRequest and startContainerInternal, 3.4.2.
    """
    if not isinstance(error, RemoteError):
        return False
    is_refusal = any(words in error.message for words in _REFUSED_AFTER_RESTART)
    return is_refusal or isinstance(error, TokenRefused | TryAgain)
