"""Choice of the reason for a wait.

Each tier is a function that checks the facts for one code, and returns the reason if it applies. `choose` returns the
first in the order of `dlapp.values.waiting.CODES`. So an application with two reasons always shows the same one, and an
operator's limit is never shown as a lack of room.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from dlapp.cluster.reasons.facts import (
    GCORES,
    MEMORY,
    NAMES,
    Amounts,
    LimitFacts,
    NodeFacts,
    WaitFacts,
    amount_text,
    each,
    total,
)
from dlapp.system.text import memory_text
from dlapp.value import replace
from dlapp.values.waiting import (
    AM_LIMIT,
    DEPENDENCY,
    EXCLUDED_NODES,
    GPUS_FRAGMENTED,
    GPUS_QUARANTINED,
    HELD,
    LABEL,
    NEVER_FITS,
    NODES_FULL,
    QUEUE_LIMIT,
    SERVICE_AWAY,
    STARTING,
    USER_LIMIT,
    Ahead,
    PendingRequest,
    Waiting,
    first_of,
)

SHOWN_AHEAD = 20
_NAMED = 3


def choose(facts: WaitFacts) -> Waiting:
    """Return the reason why an application waits; ``starting`` if nothing blocks it."""
    found = first_of([*(tier(facts) for tier in _TIERS), facts.own]) or _reason(STARTING, facts.starting)
    since_ms = facts.since_ms if found.since_ms is None else found.since_ms
    return found if found.since_ms == since_ms else replace(found, since_ms=since_ms)


def can_start(facts: WaitFacts) -> bool:
    """Return whether nothing blocks at least one container, or all containers that are needed together."""
    return all(tier(facts) is None for tier in _TIERS) and _all_together_fit(facts)


# ---- the tiers ----


def never_fits(facts: WaitFacts) -> Waiting | None:
    """Return the limit that a request exceeds, however much is free."""
    for ask in facts.asks:
        for name, amount in each(ask).items():
            if amount > facts.largest.get(name, amount):
                most = facts.largest[name]
                text = f"{_needs(facts, ask, name)}, the largest container has {_amount(name, most)}"
                return _reason(NEVER_FITS, text, name, amount, most)
        if facts.nodes and all(_lacks(each(ask), node.total) for node in facts.nodes):
            node = max(facts.nodes, key=lambda node: node.total.get(GCORES, 0))
            name = next(iter(_lacks(each(ask), node.total)))
            where = "this machine has" if facts.one_machine else "no node has more than"
            most = max(one.total.get(name, 0) for one in facts.nodes)
            text = f"{_needs(facts, ask, name)}, {where} {_amount(name, most)}"
            return _reason(NEVER_FITS, text, name, each(ask)[name], most)
    together = total([one for one in facts.asks if one.together])
    for name, amount in together.items() if facts.nodes else ():
        there = [node.total[name] for node in facts.nodes or () if name in node.total]
        if amount > sum(there) and len(there) == len(facts.nodes or ()):
            where = "this machine has" if facts.one_machine else "all nodes together have"
            text = f"needs {amount_text(name, amount)}, {where} {_amount(name, sum(there))}"
            return _reason(NEVER_FITS, text, name, amount, sum(there))
    for limit in facts.limits:
        if limit.code == AM_LIMIT:
            continue
        alone = replace(limit, most=limit.ever or limit.most)
        needed, used = _needed_at_once(_plain(facts), limit)
        if name := alone.stops(needed, used=used):
            most = alone.most[name]
            text = f"needs {amount_text(name, needed[name])}, the maximum of {limit.name} is {_amount(name, most)}"
            return _reason(NEVER_FITS, f"{text}{_setting(limit)}", name, needed[name], most)
    return None


def _limit(code: str) -> Callable[[WaitFacts], Waiting | None]:
    def tier(facts: WaitFacts) -> Waiting | None:
        # All containers of an application start together on one machine, each alone on a cluster.
        asks = _plain(facts)
        needs = [total(asks)] if facts.one_machine else [each(ask) for ask in asks]
        for limit in facts.limits:
            for needed in needs if limit.code == code else ():
                if name := limit.stops(needed):
                    amount, left = needed[name], max(0, limit.most[name] - limit.used[name])
                    text = (
                        f"needs {amount_text(name, amount)}, {limit.name} has {_amount(name, left)} left "
                        f"of {_amount(name, limit.most[name])}{_setting(limit)}"
                    )
                    return _reason(code, text, name, amount, left, facts.holders)
        return None

    return tier


def _plain(facts: WaitFacts) -> list[PendingRequest]:
    """Return the requests to which the limits apply: nodes with a label have their own limits, which are not known."""
    return [one for one in facts.asks if not one.node_label]


def _am_limit(facts: WaitFacts) -> Waiting | None:
    found = _limit(AM_LIMIT)(facts)
    if facts.am_limit:
        text = facts.am_limit
        return replace(found, message=text) if found is not None else _reason(AM_LIMIT, text, MEMORY)
    return found


def _dependency(facts: WaitFacts) -> Waiting | None:
    return _reason(DEPENDENCY, facts.dependency) if facts.dependency else None


def _held(facts: WaitFacts) -> Waiting | None:
    return _reason(HELD, facts.held) if facts.held else None


def _label(facts: WaitFacts) -> Waiting | None:
    for ask in facts.asks:
        if not ask.node_label or facts.nodes is None:
            continue
        labelled = [node for node in facts.nodes if ask.node_label in node.labels]
        if not labelled:
            return _reason(LABEL, f"no node that runs has the label {ask.node_label}", ask.node_label, 1, 0)
        without = replace(ask, node_label="")
        if not fitting_nodes(facts, ask) and fitting_nodes(facts, without):
            names = ", ".join(node.host for node in fitting_nodes(facts, without)[:_NAMED])
            text = f"the nodes with the label {ask.node_label} are full, {names} without it has room"
            return _reason(LABEL, text, ask.node_label, 1, 0)
    return None


def _excluded_nodes(facts: WaitFacts) -> Waiting | None:
    for ask in facts.asks:
        if not (ask.nodes or ask.exclude_nodes) or fitting_nodes(facts, ask):
            continue
        if others := fitting_nodes(facts, replace(ask, nodes=(), exclude_nodes=())):
            key = "nodes" if ask.nodes else "exclude_nodes"
            names = ", ".join(node.host for node in others[:_NAMED])
            return _reason(EXCLUDED_NODES, f"{key} leaves out {names}, where there is room", key, 1, 0)
    return None


def _gpus_quarantined(facts: WaitFacts) -> Waiting | None:
    for ask in facts.asks:
        if not ask.gcores or fitting_nodes(facts, ask):
            continue
        if found := fitting_nodes(facts, ask, healthy=False):
            node = found[0]
            where = "this machine" if facts.one_machine else node.host
            left = node.healthy().free.get(GCORES, 0)
            bad = node.total.get(GCORES, 0) - (node.usable_gpus or 0)
            text = (
                f"needs {amount_text(GCORES, ask.gcores)}, {where} has {left} free, "
                f"{bad} {'is' if bad == 1 else 'are'} in quarantine"
            )
            return _reason(GPUS_QUARANTINED, text, GCORES, ask.gcores, left)
    return None


def _gpus_fragmented(facts: WaitFacts) -> Waiting | None:
    for ask in facts.asks:
        if not ask.gcores or fitting_nodes(facts, ask):
            continue
        free = [max(0, node.free.get(GCORES, 0)) for node in _allowed(facts, ask)]
        if len(free) > 1 and max(free) < ask.gcores <= sum(free):
            text = f"{amount_text(GCORES, sum(free))} free, {ask.gcores} together nowhere"
            return _reason(GPUS_FRAGMENTED, text, GCORES, ask.gcores, max(free), facts.holders)
    return None


def _nodes_full(facts: WaitFacts) -> Waiting | None:
    for ask in facts.asks:
        nodes = _allowed(facts, ask)
        if facts.nodes is None or fitting_nodes(facts, ask):
            continue
        if not nodes:
            return _reason(NODES_FULL, "no node of those that it may use runs now", "", 1, 0)
        # Of the node that lacks least: that is the amount to show.
        node = min(nodes, key=lambda one: (len(_lacks(each(ask), one.free)), -one.free.get(GCORES, 0)))
        name = next(iter(_lacks(each(ask), node.free)))
        most = max(max(0, one.free.get(name, 0)) for one in nodes)
        free = f"{_amount(name, most)} free" if facts.one_machine else f"the most on a node is {_amount(name, most)}"
        if most >= each(ask)[name]:
            free = f"no node has it free together with {_others(ask, name)}"
        text = f"{_needs(facts, ask, name)}, {free}{_named(facts, name)}"
        return _reason(NODES_FULL, text, name, each(ask)[name], most, facts.before + facts.holders)
    if facts.before:
        count = len(facts.before)
        return _reason(NODES_FULL, f"waiting: {count} ahead", "", None, None, facts.before)
    if not _all_together_fit(facts):
        asks = [one for one in facts.asks if one.together]
        count = sum(one.count for one in asks)
        text = f"needs {count} containers together, not all of them fit now"
        return _reason(NODES_FULL, text, "containers", count, None, facts.holders)
    return None


def _reserved(facts: WaitFacts) -> Waiting | None:
    for ask in facts.asks:
        nodes = fitting_nodes(facts, ask)
        if nodes and len(nodes) <= facts.reserved:
            where = ", ".join(node.host for node in nodes[:_NAMED])
            text = (
                f"{_needs(facts, ask, MEMORY)}, the room on {where} may be reserved for a larger container that waits"
            )
            return _reason(NODES_FULL, text, MEMORY, each(ask)[MEMORY], None, facts.holders)
    return None


def _service_away(facts: WaitFacts) -> Waiting | None:
    return _reason(SERVICE_AWAY, f"why it waits is not known: {facts.unread}", "scheduler") if facts.unread else None


_TIERS: tuple[Callable[[WaitFacts], Waiting | None], ...] = (
    *(never_fits, _dependency, _held, _limit(QUEUE_LIMIT), _limit(USER_LIMIT), _am_limit, _label, _excluded_nodes),
    *(_gpus_quarantined, _gpus_fragmented, _nodes_full, _reserved, _service_away),
)


# ---- what fits where ----


def fitting_nodes(facts: WaitFacts, ask: PendingRequest, *, healthy: bool = True) -> list[NodeFacts]:
    """Return the nodes that could take one of the requested containers now; ``healthy``: without GPUs in quarantine."""
    return [node for node in _allowed(facts, ask, healthy=healthy) if not _lacks(each(ask), node.free)]


def _allowed(facts: WaitFacts, ask: PendingRequest, *, healthy: bool = True) -> list[NodeFacts]:
    """Return the allowed nodes of a request, without their GPUs in quarantine."""
    found = []
    for node in facts.nodes or ():
        if (
            has_label(node, ask.node_label)
            and (not ask.nodes or node.host in ask.nodes)
            and node.host not in ask.exclude_nodes
        ):
            found.append(node.healthy() if healthy else node)
    return found


def has_label(node: NodeFacts, label: str) -> bool:
    """Return whether a request with this label may use a node.

    One without a label uses nodes without one. Source: YARN, NodeLabel.md, "exclusive".
    """
    return label in node.labels if label else not node.labels


def _lacks(asked: Amounts, there: Amounts) -> dict[str, int]:
    """Return the missing amounts of a request, GPUs first, as they are scarce."""
    order = sorted(NAMES, reverse=True, key=lambda name: name == GCORES)
    return {
        name: asked[name] - there[name]
        for name in order
        # A request for none of it is not blocked, even if more is used than exists.
        if name in there and asked.get(name, 0) > max(there[name], 0)
    }


def _all_together_fit(facts: WaitFacts) -> bool:
    """Return whether all containers that are needed together fit now, placed one after the other."""
    asks = [one for one in facts.asks if one.together and one.count]
    if not asks or facts.nodes is None or sum(one.count for one in asks) == 1:
        return True
    free = {node.host: dict(node.healthy().free) for node in facts.nodes}
    for ask in sorted(asks, key=lambda one: (-one.gcores, -one.memory_mib)):
        left = ask.count
        for node in _allowed(facts, ask):
            there = free[node.host]
            needed = {name: amount for name, amount in each(ask).items() if amount > 0 and name in there}
            taken = min([left, *(max(0, there[name]) // amount for name, amount in needed.items())])
            for name, amount in needed.items():
                there[name] -= taken * amount
            left -= taken
            if not left:
                break
        if left:
            return False
    return True


def _needed_at_once(asks: Sequence[PendingRequest], limit: LimitFacts) -> tuple[dict[str, int], dict[str, int]]:
    """Return what must fit below a limit for any container to work, and what is used before its last container.

    That is the total if all are needed together, else the largest container. Only a limit that the last container may
    exceed uses the usage before that one.
    """
    together = [one for one in asks if one.together]
    all_, largest = total(together), {name: max((each(one)[name] for one in asks), default=0) for name in NAMES}
    if not limit.is_soft:
        return {name: max(all_[name], largest[name]) for name in NAMES}, dict.fromkeys(limit.used, 0)
    last = {name: max((each(one)[name] for one in together), default=0) for name in NAMES}
    return all_, {name: all_[name] - last[name] for name in limit.used}


# ---- words ----


def _reason(
    code: str,
    message: str,
    resource: str = "",
    asked: int | None = None,
    available: int | None = None,
    ahead: Iterable[Ahead] = (),
) -> Waiting:
    there = tuple(ahead)[:SHOWN_AHEAD]
    return Waiting(code=code, message=message, resource=resource, asked=asked, available=available, ahead=there)


def _needs(facts: WaitFacts, ask: PendingRequest, name: str) -> str:
    who = f"{ask.role}: " if len(facts.asks) > 1 else ""
    on_one = "" if facts.one_machine or name != GCORES or ask.gcores < 2 else " on one node"
    return f"{who}needs {amount_text(name, each(ask)[name])}{on_one}"


def _amount(name: str, amount: int) -> str:
    return memory_text(amount) if name == MEMORY else str(amount)


def _setting(limit: LimitFacts) -> str:
    return f" ({limit.setting})" if limit.setting else ""


def _others(ask: PendingRequest, name: str) -> str:
    return " and ".join(amount_text(other, amount) for other, amount in each(ask).items() if amount and other != name)


def _named(facts: WaitFacts, name: str) -> str:
    """Return the holders of what is lacking: ``: application_1_0001 (tony)``."""
    have = [one for one in facts.holders if one.amounts.get(name)]
    if not facts.one_machine or not have:
        return ""
    shown = ", ".join(f"{one.id} ({one.user})" for one in have[:_NAMED])
    return f": {shown}{' and others' if len(have) > _NAMED else ''}"
