"""Demand for containers: the desired number minus the actual one, computed anew for each heartbeat.

Nothing here counts what was asked before. A grant that we did not need is surplus and given back, a heartbeat that was
lost is made good by the next one.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Mapping

from dlapp.am.model.gate import Gate
from dlapp.am.model.instance import Container
from dlapp.cluster import ContainerRequest
from dlapp.values.ids import ContainerId
from dlapp.values.spec import Placement, RoleSpec


class Role:
    """One role of the application: which of its indexes wait, which of its containers have no index yet.

    Attributes:
        place: its place in the spec; the request id of its asks is that plus 1 (0 is YARN's default).
        first: its first CONTAINER_INDEX.
        unbound: live containers that have no index and may take one.
        blockers: open containers of an earlier attempt of which nobody knows what they run: any waiting index might
            be theirs, so none is bound before they are heard or gone.
        recovering: a gang that an earlier attempt left, of which it is not known yet whether it is whole.
        held: those whose tasks asked for work and wait for the answer.
        paused: index that waits, and for which no container is wanted yet -> until when [ms of time awake].
        begun: indexes whose payload runs, or has ended well; `ready`: those of them whose payload is ready, or has
            ended well; `done`: those that have ended well; `lost`: those that were given up.
        is_wanted: containers are asked for; not before what the role depends on, outside of its gang, is there.
        may_begin: what its payloads depend on is there now.
        used_ms: when a service with ``max_idle`` was in use last [ms of time awake].
    """

    def __init__(self, place: int, spec: RoleSpec, first: int, gate: Gate) -> None:
        self.place, self.spec, self.first, self.gate = place, spec, first, gate
        self.request_id = place + 1
        self.recovering = False
        self.used_ms = 0
        self.begun: set[int] = set()
        self.ready: set[int] = set()
        self.done: set[int] = set()
        self.lost: set[int] = set()
        self.is_wanted = self.may_begin = not spec.depends_on
        self.unbound: dict[ContainerId, Container] = {}
        self.blockers: dict[ContainerId, Container] = {}
        self.held: dict[ContainerId, Container] = {}
        self.paused: dict[int, int] = {}
        self._waiting = set(range(first, first + spec.instances))
        self._in_order = sorted(self._waiting)

    @property
    def indexes(self) -> range:
        """CONTAINER_INDEXes of the role."""
        return range(self.first, self.first + self.spec.instances)

    @property
    def may_start(self) -> bool:
        """True if a payload may start as soon as its container is ready."""
        return self.gate.open and self.may_begin

    @property
    def waiting(self) -> int:
        """Number of indexes that wait for a container, paused or not."""
        return len(self._waiting)

    @property
    def missing(self) -> int:
        """Number of containers that are still wanted; below 0: so many too many."""
        if not self.is_wanted or self.gate.paused_until_ms is not None:
            return -len(self.unbound)
        return len(self._waiting) - len(self.paused) - len(self.unbound)

    def waiting_indexes(self) -> list[int]:
        """The indexes that wait, in order."""
        return sorted(self._waiting)

    def wait(self, index: int, until_ms: int | None = None) -> None:
        """An index waits for a container (again); it is paused where ``until_ms`` is given [ms of time awake]."""
        if until_ms is not None:
            self._waiting.add(index)
            self.paused[index] = until_ms
        elif index not in self._waiting:
            self._waiting.add(index)
            heapq.heappush(self._in_order, index)

    def resume(self, awake_ms: int) -> None:
        """End the pauses that are over."""
        for index in [index for index, until_ms in self.paused.items() if until_ms <= awake_ms]:
            del self.paused[index]
            heapq.heappush(self._in_order, index)

    def take(self, index: int) -> None:
        """An index waits no more."""
        self._waiting.discard(index)
        self.paused.pop(index, None)

    def next_index(self) -> int | None:
        """The lowest index that waits and is not paused; it goes on waiting until it is taken."""
        while self._in_order and (self._in_order[0] not in self._waiting or self._in_order[0] in self.paused):
            heapq.heappop(self._in_order)
        return self._in_order[0] if self._in_order else None


STRIKES = 2
"""So many containers of ours a node fails before it is avoided."""
COMMON_TO, COMMON_MS = 3, 300_000
"""A reason that so many nodes have in this time is none of theirs; silence is: a rack that is off has many."""


class AvoidedNodes:
    """Nodes that failed containers of ours, each for a time: what was broken may be repaired."""

    def __init__(self, avoid_ms: int) -> None:
        self._avoid_ms = avoid_ms
        self._strikes: dict[str, list[tuple[int, str]]] = {}
        self._nodes_by_reason: dict[str, dict[str, int]] = {}

    def add(self, node: str, reason: str, now_ms: int, *, is_silent: bool = False) -> None:
        """Count a strike against a node, unless other nodes fail for the same reason.

        Args:
            node: its name; empty: it is not known.
            reason: what the user is told; numbers, and the node's name, make no difference.
            now_ms: the time [ms of time awake].
            is_silent: the node did not answer; that counts however many others do not answer either.
        """
        if not node:
            return
        if is_silent:
            self._strikes.setdefault(node, []).append((now_ms, ""))
            return
        reason = re.sub(r"[0-9]+", "", reason.replace(node, ""))
        known = self._nodes_by_reason.get(reason, {})
        nodes = {one: at_ms for one, at_ms in known.items() if now_ms - at_ms < COMMON_MS} | {node: now_ms}
        self._nodes_by_reason[reason] = nodes
        if len(nodes) < COMMON_TO:
            self._strikes.setdefault(node, []).append((now_ms, reason))
            return
        for one in nodes:
            self._strikes[one] = [strike for strike in self._strikes.get(one, ()) if strike[1] != reason]

    def clear(self) -> None:
        """Forget all: what failed did so because the engine was restarted."""
        self._strikes.clear()
        self._nodes_by_reason.clear()

    def names(self, now_ms: int) -> tuple[str, ...]:
        """The nodes to avoid now, those that failed last at the end. How many of them are, the engine decides: it alone
        knows all nodes.
        """
        for node, strikes in list(self._strikes.items()):
            if not strikes or strikes[-1][0] + self._avoid_ms <= now_ms:
                del self._strikes[node]
        avoided = [node for node, strikes in self._strikes.items() if len(strikes) >= STRIKES]
        return tuple(sorted(avoided, key=lambda node: (self._strikes[node][-1][0], node)))


class UsableDevices:
    """Hosts that may not give out all of their GPUs, as the ledger says. Asks for GPUs wait a moment for its first
    word, so that no container comes to a host only to find that out.

    Args:
        wait_ms: how long; 0: there is no ledger to ask.
    """

    def __init__(self, wait_ms: int) -> None:
        self._wait_ms = wait_ms
        self._until_ms: int | None = None
        self._usable: Mapping[str, int] | None = None

    def take(self, usable: Mapping[str, int]) -> None:
        """The latest word of the ledger: how many GPUs may be given out on hosts where some may not."""
        self._usable = usable

    @property
    def usable(self) -> Mapping[str, int]:
        """Number of GPUs that may be given out on hosts where some may not, as far as it is known."""
        return self._usable or {}

    def awaited(self, now_ms: int) -> bool:
        """Return whether an ask for GPUs waits; the time runs from the first call."""
        if self._usable is not None or not self._wait_ms:
            return False
        if self._until_ms is None:
            self._until_ms = now_ms + self._wait_ms
        return now_ms < self._until_ms

    def short_of(self, gcores: int) -> tuple[str, ...]:
        """The hosts that have too few for one container."""
        return tuple(sorted(host for host, count in self.usable.items() if count < gcores))


def asks(
    roles: list[Role],
    placement: Placement,
    avoid: tuple[str, ...] = (),
    devices: UsableDevices | None = None,
    *,
    now_ms: int = 0,
    wanted: bool,
) -> tuple[ContainerRequest, ...]:
    """Return one container request for each role, also where its count is 0: that takes back what was asked before.

    Args:
        roles: of the application, with their indices.
        placement: what the user wants of the nodes for roles that have no placement of their own.
        avoid: nodes that failed a container.
        devices: what is known of the hosts' GPUs at ``now_ms``; None: nothing.
        now_ms: the time [ms since 1970].
        wanted: False once the application is ending: nothing more is wanted.
    """
    found = []
    for role in roles:
        resources, count, short = role.spec.resources, max(0, role.missing) if wanted else 0, tuple[str, ...]()
        if devices is not None and resources.gcores:
            count = 0 if devices.awaited(now_ms) else count
            short = devices.short_of(resources.gcores)
        found.append(
            ContainerRequest(
                request_id=role.request_id,
                count=count,
                resources=resources,
                placement=placement if role.spec.placement is None else role.spec.placement,
                avoid=avoid,
                short_of_gpus=short,
            )
        )
    return tuple(found)
