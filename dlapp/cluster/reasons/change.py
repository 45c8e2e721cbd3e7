"""The smallest change of an application with which it would start now.

A change is tried on the facts by the functions that choose the reason, so it removes the reason or is not named. The
order is that of a user's concessions: first the nodes, then the amounts.

With the change the application is submitted again, and the engine allocates its ApplicationMaster first: on any
node. So a change counts only if the containers start wherever that is.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence

from dlapp.cluster.reasons.facts import (
    GCORES,
    MASTER,
    MEMORY,
    VCORES,
    LimitFacts,
    NodeFacts,
    WaitFacts,
    amount_text,
    each,
    total,
)
from dlapp.cluster.reasons.tiers import can_start, fitting_nodes, has_label
from dlapp.value import replace
from dlapp.values.spec import DEFAULT_ROLE
from dlapp.values.waiting import PendingRequest

_FIELDS: Mapping[str, str] = {GCORES: "gcores", MEMORY: "memory_mib", VCORES: "vcores"}
_STEP_MIB = 256


def smallest_change(facts: WaitFacts) -> str:
    """Return the smallest change with which the application would start now, with the option for it; empty if none of
    those that are tried would do: ``2 GPUs: now, on host03 (--set resources.gcores=2)``."""
    if not facts.asks or facts.nodes is None or facts.dependency or facts.held or can_start(facts):
        return ""
    for name, option, changed in _changes(_resubmitted(facts)):
        if can_start(changed):
            where = _where(changed)
            return f"{name}: now{f', on {where}' if where else ''}{f' ({option})' if option else ''}"
    return ""


def _resubmitted(facts: WaitFacts) -> WaitFacts:
    """Return the facts with room for the ApplicationMaster kept on each node that has it, and below each limit."""
    master, least = dict(facts.master), facts.memory_step or 1
    if MEMORY in master:
        master[MEMORY] = -(-master[MEMORY] // least) * least

    def without_master(node: NodeFacts) -> NodeFacts:
        free = dict(node.free)
        if node.host == facts.master_host:
            free = {name: amount + master.get(name, 0) for name, amount in free.items()}
        if has_label(node, facts.master_label) and all(
            free.get(name, amount) >= amount for name, amount in master.items()
        ):
            free = {name: amount - master.get(name, 0) for name, amount in free.items()}
        return replace(node, free=free)

    def with_master(limits: Sequence[LimitFacts]) -> tuple[LimitFacts, ...]:
        return tuple(
            replace(one, used={name: amount + master.get(name, 0) for name, amount in one.used.items()})
            for one in limits
        )

    return replace(
        facts,
        nodes=None if facts.nodes is None else tuple(without_master(node) for node in facts.nodes),
        limits=facts.limits if facts.master_host else with_master(facts.limits),
        other_queues=tuple((name, with_master(limits)) for name, limits in facts.other_queues),
    )


def _changes(facts: WaitFacts) -> Iterator[tuple[str, str, WaitFacts]]:
    for key in ("exclude_nodes", "nodes", "node_label"):
        if any(getattr(ask, key) for ask in facts.asks):
            empty = "" if key == "node_label" else ()
            asks = tuple(replace(ask, **{key: empty}) for ask in facts.asks)
            name = "yarn.am_node_label" if key == "node_label" and facts.asks[0].role == MASTER else key
            # No option takes a key out of a file.
            yield f"without {name}", "", replace(facts, asks=asks)
    for name, limits in facts.other_queues:
        yield f"queue {name}", f"--set application.queue={name}", replace(facts, limits=limits, am_limit="")
    yield from _other_gpus(facts)
    if facts.before:
        return  # these changes leave it behind the others
    for name in (GCORES, MEMORY, VCORES):
        yield from _less(facts, name)
    yield from _fewer(facts)
    ask = max(facts.asks, key=lambda one: one.gcores)
    if ask.gcores:
        yield "no GPU", f"--set {_section(facts, ask)}.gcores=0", _with(facts, ask, gcores=0)


def _other_gpus(facts: WaitFacts) -> Iterator[tuple[str, str, WaitFacts]]:
    """Yield the facts with GPUs of another kind for one role, of which enough are free."""
    needed = total(facts.asks)[GCORES]
    for one in facts.other_gpus:
        ask = next(ask for ask in facts.asks if ask.role == one.role)
        nodes = tuple(
            replace(node, total={**node.total, GCORES: needed}, free={**node.free, GCORES: needed}, usable_gpus=None)
            for node in facts.nodes or ()
        )
        option = f"--set {_section(facts, ask)}.gpu={one.kind}"
        yield one.text, option, replace(facts, nodes=nodes, before=one.before)


def _less(facts: WaitFacts, name: str) -> Iterator[tuple[str, str, WaitFacts]]:
    """Yield the facts with less of one amount in each container of the largest ask: the most that does."""
    ask = max(facts.asks, key=lambda one: each(one)[name])
    asked = each(ask)[name]
    candidates = {node.healthy().free.get(name, 0) for node in facts.nodes or ()}
    limits = [one for one in facts.limits if name in one.most and name in one.used]
    candidates |= {one.most[name] - one.used[name] for one in limits}
    candidates |= {facts.largest[name]} if name in facts.largest else set()
    if name == GCORES:
        candidates |= set(range(min(asked, 64)))
    if name == MEMORY:
        # YARN rounds requests up, so a reduction by less than a step would have no effect.
        least = facts.memory_step or 1
        step = -(-_STEP_MIB // least) * least
        candidates = {one // unit * unit for one in candidates for unit in (step if one > step else least,)}
    amounts = sorted(one for one in candidates if 1 <= one < asked)
    if given := _most(amounts, lambda amount: can_start(_with(facts, ask, **{_FIELDS[name]: amount}))):
        option = f"--set {_section(facts, ask)}.{'memory' if name == MEMORY else name}={given}"
        yield amount_text(name, given), option, _with(facts, ask, **{_FIELDS[name]: given})


def _fewer(facts: WaitFacts) -> Iterator[tuple[str, str, WaitFacts]]:
    """Yield the facts with fewer containers of the largest group that is needed together: the most that do."""
    groups = [one for one in facts.asks if one.together and one.count > 1]
    if not groups:
        return
    ask = max(groups, key=lambda one: one.count)
    key = "containers" if _section(facts, ask) == "resources" else "instances"
    if count := _most(range(1, ask.count), lambda count: can_start(_with(facts, ask, count=count))):
        text = f"{count} container{'' if count == 1 else 's'}"
        option = f"--set {_section(facts, ask)}.{key}={count}" if not facts.has_containers else ""
        yield text, option, _with(facts, ask, count=count)


def _most(amounts: Sequence[int], fits: Callable[[int], bool]) -> int:
    """Return the largest of sorted amounts that fits, if what is below one that fits also does; 0: none."""
    place = bisect_left(amounts, True, key=lambda amount: not fits(amount))
    return amounts[place - 1] if place else 0


def _with(facts: WaitFacts, ask: PendingRequest, **change: int) -> WaitFacts:
    return replace(facts, asks=tuple(replace(one, **change) if one is ask else one for one in facts.asks))


def _section(facts: WaitFacts, ask: PendingRequest) -> str:
    # Of a gang the other roles may be there, or wait for this one; and a role may have amounts of its own.
    return "resources" if len(facts.asks) == 1 and ask.role == DEFAULT_ROLE else f"role.{ask.role}"


def _where(facts: WaitFacts) -> str:
    """Return the node with the least room that takes the container; empty: there is only this machine."""
    if facts.one_machine or len(facts.asks) != 1 or facts.asks[0].count > 1:
        return ""
    nodes = fitting_nodes(facts, facts.asks[0])
    return min(nodes, key=lambda node: [node.free.get(name, 0) for name in (GCORES, MEMORY)]).host if nodes else ""
