"""Facts for choosing the reason of a wait. Amounts map ``memory`` [MiB], ``vcores`` and ``gcores`` to a number.

A missing amount is not known, or is not counted by the engine: no conclusion is drawn from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dlapp.system.text import memory_text
from dlapp.value import Value, field
from dlapp.values.spec import AppSpec
from dlapp.values.waiting import Ahead, PendingRequest, Waiting

MEMORY, VCORES, GCORES = "memory", "vcores", "gcores"
NAMES = MEMORY, VCORES, GCORES
MASTER = "ApplicationMaster"
"""In place of a role: the request for the ApplicationMaster's container."""
Amounts = Mapping[str, int]


class NodeFacts(Value, kw_only=True):
    """Node that runs containers.

    Args:
        total, free: its amounts, and the unallocated part.
        usable_gpus: GPUs not in quarantine, leased or not; None: all.
        labels: its node labels.
    """

    host: str
    total: Amounts
    free: Amounts
    usable_gpus: int | None = None
    labels: tuple[str, ...] = ()

    def healthy(self) -> NodeFacts:
        """Return the node without its GPUs in quarantine."""
        total, free = dict(self.total), dict(self.free)
        if self.usable_gpus is None or GCORES not in total:
            return self
        used = total[GCORES] - free.get(GCORES, 0)
        total[GCORES] = min(total[GCORES], self.usable_gpus)
        free[GCORES] = max(0, total[GCORES] - used)
        return NodeFacts(host=self.host, total=total, free=free, labels=self.labels)


class LimitFacts(Value, kw_only=True):
    """Limit of the total of some applications.

    Args:
        code: ``queue_limit``, ``user_limit`` or ``am_limit``.
        name: display name: ``queue small``, ``tony in queue small``.
        setting: the operator's setting that defines the limit; empty: not known.
        most: current limit.
        ever: the limit if nobody else uses anything; empty: as now.
        used: amounts counted against it now.
        is_soft: the last granted container may exceed it.
        whole: the cluster's amounts, if the engine compares shares of it: then only the largest share of an amount
            counts. Empty: each amount counts. Source: YARN, DominantResourceCalculator.
    """

    code: str
    name: str
    most: Amounts
    used: Amounts
    setting: str = ""
    ever: Amounts = field(default_factory=dict)
    is_soft: bool = False
    whole: Amounts = field(default_factory=dict)

    def stops(self, needed: Amounts, *, used: Amounts | None = None) -> str:
        """Return the amount for which this limit blocks a request; empty: none.

        Args:
            used: replaces the current usage.
        """
        used = self.used if used is None else used
        known = [name for name in NAMES if name in self.most and name in used and needed.get(name)]
        if not known:
            return ""
        left = {name: self.most[name] - used[name] for name in NAMES if name in self.most and name in used}
        if not self.whole:
            enough = 1 if self.is_soft else None
            return next((name for name in known if left[name] < (enough or needed[name])), "")
        # Source: LeafQueue.canAssignToUser, AbstractCSQueue.canAssignToThisQueue, RegularContainerAllocator, 3.4.2.
        if self.is_soft:
            is_reached = self._share(used) > self._share(self.most)
        else:
            is_reached = self._share(used) >= self._share(self.most) or self._share(left) < self._share(needed)
        return max(known, key=lambda name: (used[name] + needed[name]) / max(1, self.most[name])) if is_reached else ""

    def _share(self, amounts: Amounts) -> float:
        return max((amounts.get(name, 0) / there for name, there in self.whole.items() if there > 0), default=0.0)


class GpuChoice(Value, kw_only=True):
    """Other GPUs of which enough are free for an application.

    Args:
        role: role whose containers would get them.
        kind: as `dlapp.values.spec.Placement.gpu`.
        text: number and kind, for users: ``1 slice 3g.40gb``.
        before: applications that would be ahead of it.
    """

    role: str
    kind: str
    text: str
    before: tuple[Ahead, ...] = ()


class WaitFacts(Value, kw_only=True):
    """All known facts about an application that lacks some of its containers.

    Args:
        asks: the containers that it lacks; none: it lacks no container that the engine could grant.
        nodes: running nodes; None: not known.
        largest: maximum of each amount in one container; empty: not known.
        limits: limits in the order of their check; of several with one code the first exceeded one is named.
        am_limit: the engine's text, if it reports itself that too many ApplicationMasters run; empty: it does not.
        dependency: condition on other applications or roles that it waits for; empty: none.
        held: why it is held; empty: it is not.
        own: reason reported by its own ApplicationMaster; None: none, or no ApplicationMaster yet.
        unread: which facts could not be read, and why; empty: all were read.
        starting: preparation in progress, as text for users.
        before: applications ahead of it regardless of free resources, if the queue order is strict.
        holders: applications that use resources of the nodes.
        since_ms: start of the wait [ms since 1970].
        one_machine: there is one node; affects the text.
        other_queues: limits of the other queues that accept applications, by name.
        has_containers: it has some of its containers; ``asks`` is the rest.
        reserved: number of nodes on which the engine keeps room for a container of another application, until it is
            enough. No other container starts there, and which nodes these are is not known.
        master: amounts of its ApplicationMaster on a node, if the engine counts them.
        master_host: host on which it runs now; empty: none.
        master_label: label of the nodes on which it may run; empty: those without one.
        memory_step: the engine's memory allocation step [MiB]; 0: not known.
        other_gpus: what can be had in place of the GPUs that it waits for, the nearest first; on one machine only.
    """

    asks: tuple[PendingRequest, ...] = ()
    nodes: tuple[NodeFacts, ...] | None = None
    largest: Amounts = field(default_factory=dict)
    limits: tuple[LimitFacts, ...] = ()
    am_limit: str = ""
    dependency: str = ""
    held: str = ""
    own: Waiting | None = None
    unread: str = ""
    starting: str = "starting"
    before: tuple[Ahead, ...] = ()
    holders: tuple[Ahead, ...] = ()
    since_ms: int | None = None
    one_machine: bool = False
    other_queues: tuple[tuple[str, tuple[LimitFacts, ...]], ...] = ()
    has_containers: bool = False
    reserved: int = 0
    master: Amounts = field(default_factory=dict)
    master_host: str = ""
    master_label: str = ""
    memory_step: int = 0
    other_gpus: tuple[GpuChoice, ...] = ()


def asks_of(spec: AppSpec) -> tuple[PendingRequest, ...]:
    """Return the requested containers of a submitted application, by role."""
    together = {role.name for gang in spec.gangs() for role in gang}
    return tuple(
        PendingRequest(
            role=role.name,
            count=role.instances,
            memory_mib=role.resources.memory_mib,
            vcores=role.resources.vcores,
            gcores=role.resources.gcores,
            nodes=spec.placement_of(role).nodes,
            exclude_nodes=spec.placement_of(role).exclude_nodes,
            node_label=spec.placement_of(role).node_label or "",
            together=role.name in together,
        )
        for role in spec.roles
    )


def each(ask: PendingRequest) -> dict[str, int]:
    """Return the amounts of one requested container."""
    return {MEMORY: ask.memory_mib, VCORES: ask.vcores, GCORES: ask.gcores}


def total(asks: Sequence[PendingRequest]) -> dict[str, int]:
    """Return the total amounts of all requested containers."""
    return {name: sum(each(one)[name] * one.count for one in asks) for name in NAMES}


def amount_text(name: str, amount: int) -> str:
    """Return an amount as text: ``8 GiB of memory``, ``1 vcore``, ``2 GPUs``."""
    if name == MEMORY:
        return f"{memory_text(amount)} of memory"
    what = "GPU" if name == GCORES else "vcore"
    return f"{amount} {what}{'' if amount == 1 else 's'}"
