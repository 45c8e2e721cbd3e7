"""Facts by which the reason for a wait is chosen. Amounts map ``memory`` [MiB], ``vcores`` and ``gcores`` to a number.

An amount that is missing is not known, or is not counted by the engine: nothing is concluded from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dlapp.value import Value, field
from dlapp.values.spec import AppSpec
from dlapp.values.waiting import Ahead, ContainerAsk, Waiting

MEMORY, VCORES, GCORES = "memory", "vcores", "gcores"
NAMES = MEMORY, VCORES, GCORES
Amounts = Mapping[str, int]


class NodeFacts(Value, kw_only=True):
    """A node that runs containers.

    Args:
        total, free: what it has, and what nobody has taken.
        usable_gpus: GPUs that are not in quarantine, leased or not; None: all.
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
    """A limit above all that some applications have together.

    Args:
        code: ``queue_limit``, ``user_limit`` or ``am_limit``.
        name: for users: ``queue small``, ``tony in queue small``.
        setting: of the operator, from which the limit comes; empty: none is known.
        most: the limit now.
        ever: the limit at the best, if nobody else uses anything; empty: as now.
        used: what counts against it now.
        is_soft: it may be exceeded by the last container that is given before.
        whole: what the cluster has, if the engine compares shares of it: the largest share of an amount counts alone.
            Empty: each amount counts. Source: YARN, DominantResourceCalculator.
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
        """Return which amount keeps something that is needed from being given below this limit; empty: none does.

        Args:
            needed: what is to be given.
            used: in place of what is used now.
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


class WaitFacts(Value, kw_only=True):
    """All that is known about an application that has not all of its containers.

    Args:
        asks: the containers that it lacks; none: it lacks no container that the engine could give.
        nodes: those that run; None: not known.
        largest: the most of each in one container; empty: not known.
        limits: in the order in which they are looked at; of several of one code the first that is reached is named.
        am_limit: the engine's words, if it says itself that too many ApplicationMasters run; empty: it does not.
        dependency: what the application waits for that other applications or roles do; empty: nothing.
        held: why it is held back; empty: it is not.
        own: the reason that its own ApplicationMaster gives; None: it gives none, or there is none yet.
        unread: what of the facts could not be read, and why; empty: all was.
        starting: what is just done for it, for users.
        before: the applications that come first whatever is free, if the order of the queue is strict.
        holders: the applications that have something on the nodes.
        since_ms: when the wait began [ms since 1970].
        one_machine: there is one node, for the words.
        other_queues: the limits of the other queues that take applications, by name.
        has_containers: it has some of its containers: ``asks`` is only the rest.
        master: what its ApplicationMaster takes of a node, if the engine counts that.
        master_host: where that is running now; empty: nowhere.
        memory_step: the engine gives memory in multiples of this [MiB]; 0: not known.
    """

    asks: tuple[ContainerAsk, ...] = ()
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
    master: Amounts = field(default_factory=dict)
    master_host: str = ""
    memory_step: int = 0


def asks_of(spec: AppSpec) -> tuple[ContainerAsk, ...]:
    """Return the containers of an application as it is submitted, by role."""
    together = {role.name for gang in spec.gangs() for role in gang}
    return tuple(
        ContainerAsk(
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


def each(ask: ContainerAsk) -> dict[str, int]:
    """Return what one container of an ask needs."""
    return {MEMORY: ask.memory_mib, VCORES: ask.vcores, GCORES: ask.gcores}


def total(asks: Sequence[ContainerAsk]) -> dict[str, int]:
    """Return what all containers of asks need together."""
    return {name: sum(each(one)[name] * one.count for one in asks) for name in NAMES}


def amount_text(name: str, amount: int) -> str:
    """Return an amount for users: ``8 GiB of memory``, ``1 vcore``, ``2 GPUs``."""
    if name == MEMORY:
        return f"{memory_text(amount)} of memory"
    what = "GPU" if name == GCORES else "vcore"
    return f"{amount} {what}{'' if amount == 1 else 's'}"


def memory_text(memory_mib: int) -> str:
    """Return an amount of memory as one would say it: ``512 MiB``, ``24.1 GiB``."""
    return f"{memory_mib} MiB" if memory_mib < 1024 else f"{round(memory_mib / 1024, 1):g} GiB"
