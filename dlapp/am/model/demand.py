"""Demand for containers: the desired number minus the actual one, computed for each heartbeat.

The computation does not use earlier requests. An unneeded grant is surplus and released; a lost heartbeat is
corrected by the next one.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Mapping

from dlapp.am.model.gate import Gate
from dlapp.am.model.instance import Container
from dlapp.cluster.engine import ContainerRequest
from dlapp.values.ids import ContainerId
from dlapp.values.spec import Placement, RoleSpec


class Role:
    """State of one role of the application: its waiting indexes, its containers without an index.

    Attributes:
        place: its position in the spec; the request id of its requests is that plus 1 (0 is YARN's default).
        first: its first CONTAINER_INDEX.
        unbound: live containers without an index that may take one.
        blockers: open containers of an earlier attempt with an unknown index: any waiting index might be theirs, so
            none is bound before they report or end.
        recovering: a gang of an earlier attempt that is not known to be complete yet.
        held: containers whose tasks wait for an assignment.
        paused: waiting index without a request -> until when [ms of time awake].
        begun: indexes whose payload runs, or has succeeded; `ready`: those of them whose payload is ready, or has
            succeeded; `done`: those that have succeeded; `lost`: those that were given up.
        is_wanted: containers are requested; only once the role's dependencies outside of its gang are met.
        may_begin: the dependencies of its payloads are met now.
        used_ms: when a service with ``max_idle`` was last in use [ms of time awake].
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
        """Return the CONTAINER_INDEXes of the role."""
        return range(self.first, self.first + self.spec.instances)

    @property
    def may_start(self) -> bool:
        """Return True if a payload may start as soon as its container is ready."""
        return self.gate.open and self.may_begin

    @property
    def waiting(self) -> int:
        """Return the number of indexes that wait for a container, paused or not."""
        return len(self._waiting)

    @property
    def missing(self) -> int:
        """Return the number of containers still needed; negative: the surplus."""
        if not self.is_wanted or self.gate.paused_until_ms is not None:
            return -len(self.unbound)
        return len(self._waiting) - len(self.paused) - len(self.unbound)

    def waiting_indexes(self) -> list[int]:
        """Return the waiting indexes, in order."""
        return sorted(self._waiting)

    def wait(self, index: int, until_ms: int | None = None) -> None:
        """Make an index wait for a container (again); with ``until_ms`` it is paused [ms of time awake]."""
        if until_ms is not None:
            self._waiting.add(index)
            self.paused[index] = until_ms
        elif index not in self._waiting:
            self._waiting.add(index)
            heapq.heappush(self._in_order, index)

    def resume(self, awake_ms: int) -> None:
        """End expired pauses."""
        for index in [index for index, until_ms in self.paused.items() if until_ms <= awake_ms]:
            del self.paused[index]
            heapq.heappush(self._in_order, index)

    def remove_waiting(self, index: int) -> None:
        """Record that an index no longer waits."""
        self._waiting.discard(index)
        self.paused.pop(index, None)

    def next_index(self) -> int | None:
        """Return the lowest waiting index that is not paused; it keeps waiting until it is taken."""
        while self._in_order and (self._in_order[0] not in self._waiting or self._in_order[0] in self.paused):
            heapq.heappop(self._in_order)
        return self._in_order[0] if self._in_order else None


STRIKES = 2
"""Number of failed containers after which a node is avoided."""
COMMON_TO, COMMON_MS = 3, 300_000
"""If this many nodes fail for the same reason in this time, the nodes are not responsible. Silence counts nevertheless:
a rack without power has many silent nodes."""


class AvoidedNodes:
    """Nodes on which containers of the application failed, each for a limited time: the cause may be repaired."""

    def __init__(self, avoid_ms: int) -> None:
        self._avoid_ms = avoid_ms
        self._strikes: dict[str, list[tuple[int, str]]] = {}
        self._nodes_by_reason: dict[str, dict[str, int]] = {}

    def add(self, node: str, reason: str, now_ms: int, *, is_silent: bool = False, is_closed: bool = False) -> None:
        """Count a strike against a node, unless other nodes fail for the same reason.

        Args:
            node: name of the node; empty: not known.
            reason: reason for the user, compared without numbers and the node's name.
            now_ms: the time [ms of time awake].
            is_silent: the node did not answer; this counts however many others are silent.
            is_closed: the node refuses such containers; it is avoided at once, however many others refuse them.
        """
        if not node:
            return
        if is_silent or is_closed:
            self._strikes.setdefault(node, []).extend([(now_ms, "")] * (STRIKES if is_closed else 1))
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
        """Forget all strikes: the failures were caused by a restart of the engine."""
        self._strikes.clear()
        self._nodes_by_reason.clear()

    def names(self, now_ms: int) -> tuple[str, ...]:
        """Return the nodes to avoid now, the latest failures last. The engine limits their number: only it knows all
        nodes.
        """
        for node, strikes in list(self._strikes.items()):
            if not strikes or strikes[-1][0] + self._avoid_ms <= now_ms:
                del self._strikes[node]
        avoided = [node for node, strikes in self._strikes.items() if len(strikes) >= STRIKES]
        return tuple(sorted(avoided, key=lambda node: (self._strikes[node][-1][0], node)))


class UsableDevices:
    """Hosts on which not all GPUs may be leased, according to the ledger. Requests for GPUs wait briefly for the first
    answer of the ledger, so that no container is granted on an unusable host.

    Args:
        wait_ms: how long; 0: there is no ledger.
    """

    def __init__(self, wait_ms: int) -> None:
        self._wait_ms = wait_ms
        self._until_ms: int | None = None
        self._usable: Mapping[str, int] | None = None
        self._serving: Mapping[tuple[str, int], Mapping[str, int]] = {}

    def set_usable(self, usable: Mapping[str, int], serving: Mapping[tuple[str, int], Mapping[str, int]]) -> None:
        """Set the ledger's latest answer, as `dlapp.am.model.events.DeviceCountsRead` has it."""
        self._usable, self._serving = usable, serving

    @property
    def usable(self) -> Mapping[str, int]:
        """Return the number of leasable GPUs and slices, for hosts on which some are not leasable, as far as known."""
        return self._usable or {}

    def is_awaited(self, now_ms: int) -> bool:
        """Return whether requests for GPUs wait; the time runs from the first call."""
        if self._usable is not None or not self._wait_ms:
            return False
        if self._until_ms is None:
            self._until_ms = now_ms + self._wait_ms
        return now_ms < self._until_ms

    def short_of(self, gcores: int, placement: Placement) -> tuple[str, ...]:
        """Return the hosts with too few GPUs of its kind for one container."""
        counts = self._serving.get((placement.gpu, placement.gpu_memory_mb), {})
        return tuple(sorted(host for host, count in counts.items() if count < gcores))


def container_requests(
    roles: list[Role],
    placement: Placement,
    avoid: tuple[str, ...] = (),
    devices: UsableDevices | None = None,
    *,
    now_ms: int = 0,
    wanted: bool,
) -> tuple[ContainerRequest, ...]:
    """Return one container request per role, also with count 0: that takes back earlier requests.

    Args:
        roles: roles of the application, with their indexes.
        placement: the user's placement for roles without their own.
        avoid: nodes that failed a container.
        devices: known counts of the hosts' GPUs at ``now_ms``; None: not known.
        now_ms: the time [ms since 1970].
        wanted: False once the application is ending: no containers are needed.
    """
    found = []
    for role in roles:
        resources, count, short = role.spec.resources, max(0, role.missing) if wanted else 0, tuple[str, ...]()
        place = placement if role.spec.placement is None else role.spec.placement
        if devices is not None and resources.gcores:
            count = 0 if devices.is_awaited(now_ms) else count
            short = devices.short_of(resources.gcores, place)
        found.append(
            ContainerRequest(
                request_id=role.request_id,
                count=count,
                resources=resources,
                placement=place,
                avoid=avoid,
                short_of_gpus=short,
            )
        )
    return tuple(found)
