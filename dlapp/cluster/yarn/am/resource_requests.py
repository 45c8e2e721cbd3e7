"""Requests for containers, as the rows that YARN understands: a few plain sums, no I/O.

The ResourceManager keeps a table of rows and takes one off their counts for each container that it gives. So a count
that is said after a container was given and before we heard of it would ask for that container twice. We therefore
keep the ResourceManager's table as it must look from here, grants taken off, and say rows anew only where what is
wanted differs from that table. What still comes too much is surplus, and is given back.

CapacityScheduler gives rows of ``*`` one container for each heartbeat of a node, and rows of hosts as many as fit there
at once (0.7 s instead of 4.7 s for five containers). So usable hosts are named beside rack and ``*``, in relaxed rows,
at most twice the count and 64 of them.

An ApplicationMaster can exclude nodes for the whole application alone. What only some roles exclude is therefore not
said so: their rows name every other node, and are strict.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence

from dlapp.cluster.engine import ContainerRequest
from dlapp.cluster.yarn.values import ANY, NodeReport, ResourceRequest
from dlapp.value import replace
from dlapp.values.spec import Resources

MOST_HOSTS = 64
AVOIDED_SHARE = 3
"""At most one node of so many is avoided because it failed; MapReduce's share is the same. Source: Hadoop 3.4,
yarn.app.mapreduce.am.job.node-blacklisting.ignore-threshold-node-percent, 33."""
DEFAULT_RACK = "/default-rack"
"""The rack of a node that nothing was configured for. Source: NetworkTopology.DEFAULT_RACK."""


class ResourceRequestTable:
    """The rows of one attempt.

    Attributes:
        node_count: how many nodes the cluster has, where they are not known by name.

    Args:
        sample: chooses some of many hosts; given by tests.
    """

    def __init__(self, sample: Callable[[Sequence[NodeReport], int], list[NodeReport]] = random.sample) -> None:
        self._sample = sample
        self._nodes: dict[str, NodeReport] = {}
        self._asks: dict[int, ContainerRequest] = {}
        self._given: Counter[int] = Counter()
        self._table: dict[tuple[int, str], ResourceRequest] = {}
        self._left: Counter[int] = Counter()
        self._avoided: set[str] = set()
        self.node_count = 0
        self._dropped: set[int] = set()

    @property
    def asks(self) -> Collection[ContainerRequest]:
        """Requests that are wanted, one for each role."""
        return self._asks.values()

    @property
    def nodes(self) -> Collection[NodeReport]:
        """The nodes that are known and usable."""
        return self._nodes.values()

    def know_nodes(self, nodes: Iterable[NodeReport]) -> None:
        """The cluster's nodes as they are now."""
        self._nodes = {one.node.host: one for one in nodes if one.usable}

    def take_changed_nodes(self, nodes: Iterable[NodeReport]) -> None:
        """Some nodes have changed; where none are known by name, these are not all."""
        if not self._nodes:
            return
        for one in nodes:
            if one.usable:
                self._nodes[one.node.host] = one
            else:
                self._nodes.pop(one.node.host, None)

    def want(self, asks: Iterable[ContainerRequest], given: Counter[int]) -> None:
        """Set the requests that are wanted from now on.

        Args:
            asks: one for each role.
            given: by request id, containers that came and of which the asks do not know yet.
        """
        self._asks = {ask.request_id: replace(ask, count=0) if ask.request_id in self._dropped else ask for ask in asks}
        self._given = Counter(given)

    def give(self, request_id: int) -> None:
        """A container came."""
        self._given[request_id] += 1
        self._left[request_id] -= 1

    def forget(self) -> None:
        """The ResourceManager was restarted: its table is empty."""
        self._table.clear()
        self._left.clear()
        self._avoided.clear()

    def count(self, request_id: int) -> int:
        """Return the number of containers of a role that are still wanted."""
        ask = self._asks.get(request_id)
        return max(0, ask.count - self._given[request_id]) if ask else 0

    def size(self, request_id: int) -> Resources | None:
        """The size of container that a role asks for; None: there is no such role."""
        ask = self._asks.get(request_id)
        return ask.resources if ask else None

    def waiting(self) -> list[ContainerRequest]:
        """The asks that are not met."""
        return [ask for request_id, ask in self._asks.items() if self.count(request_id)]

    def fits_a_node(self, ask: ContainerRequest) -> bool:
        """Return True if a node where it may be could hold such a container, were it empty, and where no nodes are
        known."""
        return not self._nodes or any(
            host in self._nodes for host in self._places(ask, set(ask.placement.exclude_nodes))
        )

    def avoid(self) -> tuple[list[str], list[str]]:
        """Hosts to say that they are to be avoided, and that they no longer are."""
        wanted = self._to_avoid()
        return sorted(wanted - self._avoided), sorted(self._avoided - wanted)

    def _to_avoid(self) -> set[str]:
        """Return the nodes that the user excludes, and those that failed, unless none would be left for a role that
        waits."""
        excluded = self._excluded()
        failed = self._failed() - excluded
        waiting = self.waiting()
        # What is avoided is so for the whole application: a role that needs fewer GPUs may find them there.
        short = set.intersection(*(self._short(ask) for ask in waiting)) if waiting else set()
        for avoided in (excluded | failed | short, excluded | failed):
            if avoided != excluded and all(self._places(ask, avoided) for ask in waiting if self._hosts(ask)):
                return avoided
        return excluded

    def _excluded(self) -> set[str]:
        """Return the nodes that all roles exclude; where no nodes are known by name those that any role excludes, and
        none asks for."""
        excluded = [set(ask.placement.exclude_nodes) for ask in self._asks.values()]
        if self._nodes or not any(excluded):
            return set.intersection(*excluded) if excluded else set()
        return set.union(*excluded) - {host for ask in self._asks.values() for host in ask.placement.nodes}

    def _named(self, ask: ContainerRequest) -> Collection[str] | None:
        """Return the hosts that an ask must name, because it may be on no other; None: it may be anywhere."""
        excluded = ask.placement.exclude_nodes
        if not excluded:
            return ask.placement.nodes or None
        if ask.placement.nodes:
            return [host for host in ask.placement.nodes if host not in excluded]
        if not self._nodes or self._excluded().issuperset(excluded):
            return None
        return [host for host in self._nodes if host not in excluded]

    def _failed(self) -> set[str]:
        """Return the nodes that failed containers, the latest, up to a third of all."""
        failed = dict.fromkeys(host for ask in self._asks.values() for host in ask.avoid)
        there = [host for host in failed if host in self._nodes or not self._nodes]
        most = (len(self._nodes) or self.node_count) // AVOIDED_SHARE
        return set(there[-most:] if most else ())

    def _short(self, ask: ContainerRequest) -> set[str]:
        """The nodes that have too few GPUs for an ask; the ledger may have a host's short name, or the full one."""
        if not ask.short_of_gpus:
            return set()  # as most often, and this is asked for at each heartbeat, of thousands of nodes
        names = set(ask.short_of_gpus)
        firsts = {name.partition(".")[0] for name in names}
        return {host for host in self._nodes if {host, host.partition(".")[0]} & names or host in firsts}

    def _hosts(self, ask: ContainerRequest) -> Collection[str]:
        """Return the hosts that the user allows for a container of this request: those named, else all known."""
        named = self._named(ask)
        return self._nodes if named is None else named

    def _places(self, ask: ContainerRequest, avoided: set[str]) -> list[str]:
        """Return the hosts of a request that are not avoided and, as far as they are known, could hold it."""
        return [
            host
            for host in self._hosts(ask)
            if host not in avoided and (host not in self._nodes or _fits(ask.resources, self._nodes[host].capability))
        ]

    def said_avoid(self, more: Iterable[str], less: Iterable[str]) -> None:
        """Note that the result of `avoid` was sent."""
        self._avoided = (self._avoided | set(more)) - set(less)

    def drop(self, request_id: int) -> None:
        """A role cannot be had: whatever is wanted of it from now on, nothing is said, and what was is taken back."""
        self._dropped.add(request_id)
        self._asks[request_id] = replace(self._asks[request_id], count=0)

    def forget_role(self, request_id: int) -> None:
        """The ResourceManager refused a role's rows: of those its table has none."""
        for key in [key for key in self._table if key[0] == request_id]:
            del self._table[key]
        self._left[request_id] = 0

    def rows_due(self, request_id: int) -> bool:
        """Return True if rows of a role are to be sent."""
        ask, count = self._asks.get(request_id), self.count(request_id)
        return ask is not None and (count != max(0, self._left[request_id]) or self._moved(ask, count))

    def rows(self, request_id: int) -> list[ResourceRequest]:
        """The rows of a role to say now; empty where the ResourceManager's table is as it should be."""
        ask, count = self._asks.get(request_id), self.count(request_id)
        if ask is None or not self.rows_due(request_id):
            return []
        rows = {row.name: row for row in (self._place(ask, count) if count else ())}
        for priority, name in [key for key in self._table if key[0] == request_id]:
            if name not in rows:
                old = self._table.pop((priority, name))
                rows[name] = ResourceRequest(
                    priority=priority,
                    request_id=request_id,
                    name=name,
                    count=0,
                    resources=old.resources,
                    label=old.label,
                )
        for row in rows.values():
            if row.count:
                self._table[row.priority, row.name] = row
        self._left[request_id] = count
        return list(rows.values())

    def _moved(self, ask: ContainerRequest, count: int) -> bool:
        """Return True if the place of a request is another one than its rows say."""
        said = self._table.get((ask.request_id, ANY))
        if not count or said is None:
            return False
        named = self._named(ask)
        hosts = {name for request_id, name in self._table if request_id == ask.request_id and name[0] not in "*/"}
        return said.label != ask.placement.node_label or (hosts != set(named) if named is not None else not said.relax)

    def _place(self, ask: ContainerRequest, count: int) -> list[ResourceRequest]:
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
            racks = {self._nodes[host].rack if host in self._nodes else DEFAULT_RACK for host in named}
            hosts = [row(host) for host in named]
            return [*hosts, *(row(rack, relax=False) for rack in sorted(racks)), row(ANY, relax=False)]
        if ask.placement.node_label is not None:
            return [row(ANY)]
        avoided = self._to_avoid()
        names = self._places(ask, avoided | self._short(ask)) or self._places(ask, avoided)
        fit = [self._nodes[host] for host in names]
        chosen = self._sample(fit, min(len(fit), 2 * count, MOST_HOSTS))
        racks = {node.rack or DEFAULT_RACK for node in chosen}
        return [*(row(node.node.host) for node in chosen), *map(row, sorted(racks)), row(ANY)]


def _fits(wanted: Resources, there: Resources) -> bool:
    return all(one <= most for one, most in zip(wanted.times(1), there.times(1), strict=True))
