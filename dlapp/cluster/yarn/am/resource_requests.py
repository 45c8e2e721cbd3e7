"""Requests for containers, as rows of YARN's protocol: pure state, no I/O.

The ResourceManager keeps a table of rows and decrements their counts for each container that it grants. So a count that
is sent after a grant and before we have received it would request that container twice. We therefore keep a copy of the
ResourceManager's table, with received grants subtracted, and send only rows that differ from the needed ones. A
remaining surplus is released.

CapacityScheduler grants for rows of ``*`` one container per heartbeat of a node, and for rows of hosts as many as fit
there at once (0.7 s instead of 4.7 s for five containers). So usable hosts are named in addition to rack and ``*``, in
relaxed rows, at most twice the count and 64 of them.

An ApplicationMaster can exclude nodes only for the whole application. Exclusions of single roles are therefore
expressed differently: their rows name every other node, and are strict.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence

from dlapp.cluster.engine import ContainerRequest
from dlapp.cluster.yarn.values import ANY, NodeReport, ResourceRequest
from dlapp.value import replace
from dlapp.values.spec import Resources

MAX_HOSTS = 64
AVOIDED_SHARE = 3
"""At most one in this many nodes is avoided because of failures; the same share as in MapReduce. Source: Hadoop 3.4,
yarn.app.mapreduce.am.job.node-blacklisting.ignore-threshold-node-percent, 33."""
DEFAULT_RACK = "/default-rack"
"""Rack of a node without a configured rack. Source: NetworkTopology.DEFAULT_RACK."""


class ResourceRequestTable:
    """Request rows of one attempt.

    Attributes:
        node_count: number of nodes of the cluster, if they are not known by name.

    Args:
        sample: chooses some of many hosts; replaced in tests.
    """

    def __init__(self, sample: Callable[[Sequence[NodeReport], int], list[NodeReport]] = random.sample) -> None:
        self._sample = sample
        self._nodes: dict[str, NodeReport] = {}
        self._asks: dict[int, ContainerRequest] = {}
        self._granted: Counter[int] = Counter()
        self._table: dict[tuple[int, str], ResourceRequest] = {}
        self._remaining: Counter[int] = Counter()
        self._avoided: set[str] = set()
        self.node_count = 0
        self._dropped: set[int] = set()

    @property
    def asks(self) -> Collection[ContainerRequest]:
        """Return the current requests, one per role."""
        return self._asks.values()

    def set_nodes(self, nodes: Iterable[NodeReport]) -> None:
        """Set the cluster's current nodes."""
        self._nodes = {one.node.host: one for one in nodes if one.usable}

    def update_nodes(self, nodes: Iterable[NodeReport]) -> None:
        """Update changed nodes; if none are known by name, these are not all."""
        if not self._nodes:
            return
        for one in nodes:
            if one.usable:
                self._nodes[one.node.host] = one
            else:
                self._nodes.pop(one.node.host, None)

    def set_requests(self, asks: Iterable[ContainerRequest], granted: Counter[int]) -> None:
        """Set the requests from now on.

        Args:
            asks: one per role.
            granted: by request id, granted containers that the requests do not account for yet.
        """
        self._asks = {ask.request_id: replace(ask, count=0) if ask.request_id in self._dropped else ask for ask in asks}
        self._granted = Counter(granted)

    def record_granted(self, request_id: int) -> None:
        """Record a granted container."""
        self._granted[request_id] += 1
        self._remaining[request_id] -= 1

    def reset(self) -> None:
        """Record a restart of the ResourceManager: its table is empty."""
        self._table.clear()
        self._remaining.clear()
        self._avoided.clear()

    def count(self, request_id: int) -> int:
        """Return the number of containers of a role that are still needed."""
        ask = self._asks.get(request_id)
        return max(0, ask.count - self._granted[request_id]) if ask else 0

    def size(self, request_id: int) -> Resources | None:
        """Return the container size of a role's request; None: there is no such role."""
        ask = self._asks.get(request_id)
        return ask.resources if ask else None

    def waiting(self) -> list[ContainerRequest]:
        """Return the unsatisfied requests."""
        return [ask for request_id, ask in self._asks.items() if self.count(request_id)]

    def fits_a_node(self, ask: ContainerRequest) -> bool:
        """Return True if an allowed node could hold such a container when empty, or if no nodes are known."""
        return not self._nodes or any(
            host in self._nodes for host in self._usable_hosts(ask, set(ask.placement.exclude_nodes))
        )

    def avoid(self) -> tuple[list[str], list[str]]:
        """Return the hosts to newly avoid, and those no longer to avoid."""
        avoided = self._to_avoid()
        return sorted(avoided - self._avoided), sorted(self._avoided - avoided)

    def _to_avoid(self) -> set[str]:
        """Return the nodes excluded by the user, and those that failed, unless no node would be left for a waiting
        role."""
        excluded = self._excluded()
        failed = self._failed() - excluded
        waiting = self.waiting()
        # Avoided nodes are avoided for the whole application: a role that needs fewer GPUs may find them there.
        short = set.intersection(*(self._short(ask) for ask in waiting)) if waiting else set()
        for avoided in (excluded | failed | short, excluded | failed):
            if avoided != excluded and all(self._usable_hosts(ask, avoided) for ask in waiting if self._hosts(ask)):
                return avoided
        return excluded

    def _excluded(self) -> set[str]:
        """Return the nodes that all roles exclude; if no nodes are known by name, those that any role excludes and none
        requests."""
        excluded = [set(ask.placement.exclude_nodes) for ask in self._asks.values()]
        if self._nodes or not any(excluded):
            return set.intersection(*excluded) if excluded else set()
        return set.union(*excluded) - {host for ask in self._asks.values() for host in ask.placement.nodes}

    def _named(self, ask: ContainerRequest) -> Collection[str] | None:
        """Return the hosts that a request must name because it is limited to them; None: any host is allowed."""
        excluded = ask.placement.exclude_nodes
        if not excluded:
            return ask.placement.nodes or None
        if ask.placement.nodes:
            return [host for host in ask.placement.nodes if host not in excluded]
        if not self._nodes or self._excluded().issuperset(excluded):
            return None
        return [host for host in self._nodes if host not in excluded]

    def _failed(self) -> set[str]:
        """Return the nodes on which containers failed, the latest, up to a third of all."""
        failed = dict.fromkeys(host for ask in self._asks.values() for host in ask.avoid)
        present = [host for host in failed if host in self._nodes or not self._nodes]
        most = (len(self._nodes) or self.node_count) // AVOIDED_SHARE
        return set(present[-most:] if most else ())

    def _short(self, ask: ContainerRequest) -> set[str]:
        """Return the nodes with too few GPUs for a request; the ledger may have a host's short or full name."""
        if not ask.short_of_gpus:
            return set()  # the usual case, called for each heartbeat with thousands of nodes
        names = set(ask.short_of_gpus)
        firsts = {name.partition(".")[0] for name in names}
        return {host for host in self._nodes if {host, host.partition(".")[0]} & names or host in firsts}

    def _hosts(self, ask: ContainerRequest) -> Collection[str]:
        """Return the hosts that the user allows for this request: those named, else all known."""
        named = self._named(ask)
        return self._nodes if named is None else named

    def _usable_hosts(self, ask: ContainerRequest, avoided: set[str]) -> list[str]:
        """Return the hosts of a request that are not avoided and, as far as known, large enough."""
        return [
            host
            for host in self._hosts(ask)
            if host not in avoided and (host not in self._nodes or _fits(ask.resources, self._nodes[host].capability))
        ]

    def record_avoided(self, added: Iterable[str], removed: Iterable[str]) -> None:
        """Record that the result of `avoid` was sent."""
        self._avoided = (self._avoided | set(added)) - set(removed)

    def drop(self, request_id: int) -> None:
        """Cancel the requests of a role, and send no new ones."""
        self._dropped.add(request_id)
        self._asks[request_id] = replace(self._asks[request_id], count=0)

    def forget_role(self, request_id: int) -> None:
        """Record that the ResourceManager refused a role's rows: its table contains none of them."""
        for key in [key for key in self._table if key[0] == request_id]:
            del self._table[key]
        self._remaining[request_id] = 0

    def rows_due(self, request_id: int) -> bool:
        """Return True if rows of a role are pending."""
        ask, count = self._asks.get(request_id), self.count(request_id)
        return ask is not None and (count != max(0, self._remaining[request_id]) or self._placement_differs(ask, count))

    def rows(self, request_id: int) -> list[ResourceRequest]:
        """Return the rows of a role to send now; empty if the ResourceManager's table is as needed."""
        ask, count = self._asks.get(request_id), self.count(request_id)
        if ask is None or not self.rows_due(request_id):
            return []
        rows = {row.name: row for row in (self._make_rows(ask, count) if count else ())}
        for priority, name in [key for key in self._table if key[0] == request_id]:
            if name not in rows:
                rows[name] = replace(self._table.pop((priority, name)), count=0, relax=True)
        for row in rows.values():
            if row.count:
                self._table[row.priority, row.name] = row
        self._remaining[request_id] = count
        return list(rows.values())

    def _placement_differs(self, ask: ContainerRequest, count: int) -> bool:
        """Return True if the placement of a request differs from its sent rows."""
        sent = self._table.get((ask.request_id, ANY))
        if not count or sent is None:
            return False
        named = self._named(ask)
        hosts = {name for request_id, name in self._table if request_id == ask.request_id and name[0] not in "*/"}
        return sent.label != ask.placement.node_label or (hosts != set(named) if named is not None else not sent.relax)

    def _make_rows(self, ask: ContainerRequest, count: int) -> list[ResourceRequest]:
        def row(name: str, *, relax: bool = True) -> ResourceRequest:
            return ResourceRequest(
                priority=ask.request_id,
                request_id=ask.request_id,
                name=name,
                count=count,
                resources=ask.resources,
                relax=relax,
                label=ask.placement.node_label if name == ANY else None,
            )

        if (named := self._named(ask)) is not None:
            racks = {(self._nodes[host].rack if host in self._nodes else "") or DEFAULT_RACK for host in named}
            hosts = [row(host) for host in named]
            return [*hosts, *(row(rack, relax=False) for rack in sorted(racks)), row(ANY, relax=False)]
        if ask.placement.node_label is not None:
            return [row(ANY)]
        avoided = self._to_avoid()
        names = self._usable_hosts(ask, avoided | self._short(ask)) or self._usable_hosts(ask, avoided)
        fit = [self._nodes[host] for host in names]
        chosen = self._sample(fit, min(len(fit), 2 * count, MAX_HOSTS))
        racks = {node.rack or DEFAULT_RACK for node in chosen}
        return [*(row(node.node.host) for node in chosen), *map(row, sorted(racks)), row(ANY)]


def _fits(requested: Resources, capacity: Resources) -> bool:
    return all(one <= most for one, most in zip(requested.times(1), capacity.times(1), strict=True))
