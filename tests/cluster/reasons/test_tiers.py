"""Test which reason is chosen for a wait, in which words, and what change removes it."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from dlapp.cluster.reasons.change import smallest_change
from dlapp.cluster.reasons.facts import GpuChoice, LimitFacts, NodeFacts, WaitFacts
from dlapp.cluster.reasons.tiers import can_start, choose
from dlapp.value import replace
from dlapp.values.waiting import CODES, Ahead, PendingRequest, Waiting, first_of
from tests.seeds import each_seed

GIB = 1024


def node(host: str, gcores: int = 4, *, free: int | None = None, **others: Any) -> NodeFacts:
    total = {"memory": 16 * GIB, "vcores": 8, "gcores": gcores}
    given = {"memory": 16 * GIB, "vcores": 8, "gcores": gcores if free is None else free}
    return NodeFacts(host=host, total=total, free=given | others.pop("left", {}), **others)


def ask(count: int = 1, gcores: int = 0, memory_mib: int = GIB, **others: Any) -> PendingRequest:
    return PendingRequest(role="worker", count=count, memory_mib=memory_mib, vcores=1, gcores=gcores, **others)


def limit(code: str, most: int, used: int, name: str = "queue small", **others: Any) -> LimitFacts:
    return LimitFacts(code=code, name=name, most={"gcores": most}, used={"gcores": used}, **others)


TWO = (node("host02", free=1), node("host03", free=2))
HOLDER = Ahead(id="application_1_0001", user="ann", amounts={"gcores": 3})
CASES: dict[str, tuple[WaitFacts, str, str]] = {
    "never_fits": (
        WaitFacts(asks=(ask(gcores=5),), nodes=TWO),
        "needs 5 GPUs on one node, no node has more than 4",
        "2 GPUs: now, on host03 (--set resources.gcores=2)",
    ),
    "dependency": (WaitFacts(dependency="waits for application_1_0001 (ok)"), "waits for application_1_0001 (ok)", ""),
    "held": (WaitFacts(held="held by its owner"), "held by its owner", ""),
    "queue_limit": (
        WaitFacts(
            asks=(ask(gcores=2),),
            nodes=TWO,
            limits=(limit("queue_limit", 4, 4),),
            other_queues=(("large", (limit("queue_limit", 9, 4, "queue large"),)),),
        ),
        "needs 2 GPUs, queue small has 0 left of 4",
        "queue large: now, on host03 (--set application.queue=large)",
    ),
    "user_limit": (
        WaitFacts(asks=(ask(gcores=2),), nodes=TWO, limits=(limit("user_limit", 4, 3, "tony in queue small"),)),
        "needs 2 GPUs, tony in queue small has 1 left of 4",
        "1 GPU: now, on host02 (--set resources.gcores=1)",
    ),
    "am_limit": (
        WaitFacts(asks=(ask(),), nodes=TWO, am_limit="Queue's AM resource limit exceeded"),
        "Queue's AM resource limit exceeded",
        "",
    ),
    "label": (
        WaitFacts(asks=(ask(gcores=2, node_label="a100"),), nodes=TWO),
        "no node that runs has the label a100",
        "without node_label: now, on host03",
    ),
    "excluded_nodes": (
        WaitFacts(asks=(ask(gcores=2, exclude_nodes=("host03",)),), nodes=TWO),
        "exclude_nodes leaves out host03, where there is room",
        "without exclude_nodes: now, on host03",
    ),
    "gpus_quarantined": (
        WaitFacts(asks=(ask(gcores=2),), nodes=(node("host02", free=2, usable_gpus=3),)),
        "needs 2 GPUs, host02 has 1 free, 1 is in quarantine",
        "1 GPU: now, on host02 (--set resources.gcores=1)",
    ),
    "gpus_fragmented": (
        WaitFacts(asks=(ask(gcores=3),), nodes=TWO),
        "3 GPUs free, 3 together nowhere",
        "2 GPUs: now, on host03 (--set resources.gcores=2)",
    ),
    "gang_partial": (
        WaitFacts(
            asks=(ask(count=1, together=True),),
            nodes=(node("host02"),),
            own=Waiting(code="gang_partial", message="3 of 4 held, waiting for 1 container"),
        ),
        "3 of 4 held, waiting for 1 container",
        "",
    ),
    "nodes_full": (
        WaitFacts(asks=(ask(gcores=4),), nodes=TWO, holders=(HOLDER,)),
        "needs 4 GPUs on one node, the most on a node is 2",
        "2 GPUs: now, on host03 (--set resources.gcores=2)",
    ),
    "service_away": (WaitFacts(asks=(ask(),), unread="HTTP 503"), "why it waits is not known: HTTP 503", ""),
    "starting": (WaitFacts(asks=(ask(),), nodes=TWO), "starting", ""),
}


SLICE = GpuChoice(role="worker", kind="mig:3g.40gb", text="1 slice 3g.40gb")


@pytest.mark.parametrize(
    ("others", "left", "change"),
    [
        ((SLICE,), 16 * GIB, "1 slice 3g.40gb: now (--set resources.gpu=mig:3g.40gb)"),
        ((SLICE,), 1, ""),
        (
            (replace(SLICE, before=(HOLDER,)), replace(SLICE, kind="mig", text="1 MIG slice")),
            16 * GIB,
            "1 MIG slice: now (--set resources.gpu=mig)",
        ),
        ((), 16 * GIB, "no GPU: now (--set resources.gcores=0)"),
    ],
    ids=["a slice is free", "too little memory is", "others wait for the nearest", "no other GPU"],
)
def test_gpus_of_another_kind_are_a_change_if_all_else_is_free(
    others: tuple[GpuChoice, ...], left: int, change: str
) -> None:
    machine = node("this machine", free=0, left={"memory": left})
    facts = WaitFacts(asks=(ask(gcores=1, together=True),), nodes=(machine,), one_machine=True, other_gpus=others)
    assert smallest_change(facts) == change


def test_on_one_machine_a_limit_of_a_user_counts_all_containers_of_an_application() -> None:
    """Two containers of one GPU each, where the user has one left of two; four are free."""
    of_user = LimitFacts(
        code="user_limit",
        name="its user",
        setting="queue.user_gcores",
        most={"gcores": 2},
        used={"gcores": 1},
    )
    asks = (ask(count=2, gcores=1, together=True),)
    facts = WaitFacts(asks=asks, nodes=(node("this machine", free=4),), one_machine=True, limits=(of_user,))
    found = choose(facts)
    assert (found.code, found.message) == ("user_limit", "needs 2 GPUs, its user has 1 left of 2 (queue.user_gcores)")
    assert smallest_change(facts) == "1 container: now (--set resources.containers=1)"


def test_behind_others_only_gpus_that_they_do_not_wait_for_are_a_change() -> None:
    machine = node("this machine", free=0)
    facts = WaitFacts(asks=(ask(gcores=1),), nodes=(machine,), one_machine=True, before=(HOLDER,))
    assert smallest_change(facts) == ""
    found = smallest_change(replace(facts, other_gpus=(SLICE,)))
    assert found == "1 slice 3g.40gb: now (--set resources.gpu=mig:3g.40gb)"
    assert smallest_change(replace(facts, other_gpus=(replace(SLICE, before=(HOLDER,)),))) == ""


@pytest.mark.parametrize("code", CODES)
def test_each_code_has_its_words_and_the_change_that_removes_it(code: str) -> None:
    facts, message, change = CASES[code]
    found = choose(facts)
    assert (found.code, found.message, smallest_change(facts)) == (code, message, change)


def test_the_first_matching_code_in_the_order_is_chosen() -> None:
    """The reason for two situations at the same time is that of the one whose code comes first."""
    queue, full = CASES["queue_limit"][0], CASES["nodes_full"][0]
    own = CASES["gang_partial"][0].own
    assert choose(replace(queue, dependency="waits for another")).code == "dependency"
    assert choose(replace(queue, dependency="waits for another", held="held")).code == "dependency"
    assert choose(replace(queue, held="held")).code == "held"
    assert choose(replace(full, limits=queue.limits)).code == "queue_limit"
    assert choose(replace(full, own=own)).code == "gang_partial"
    assert choose(replace(full, unread="half an answer")).code == "nodes_full"
    assert choose(replace(CASES["service_away"][0], own=own)).code == "gang_partial"
    never = replace(CASES["never_fits"][0], dependency="waits for another")
    assert choose(never).code == "never_fits"
    for first, second in itertools.combinations(CODES, 2):
        reasons = [Waiting(code=second, message=""), None, Waiting(code=first, message="")]
        assert first_of(reasons) is reasons[2]
    later = Waiting(code="a later version's", message="")
    assert first_of([later]) is later
    assert first_of([later, reasons[0]]) is reasons[0]


@each_seed("order of facts")
def test_a_reason_does_not_depend_on_the_order_of_the_facts(seed: int) -> None:
    """Servers list nodes in any order; the reason may not change with it."""
    nodes = [node(f"host{n:02d}", free=n % 3, left={"memory": n * GIB}) for n in range(6)]
    chance = random.Random(seed)
    for asked in (ask(gcores=3), ask(gcores=1, memory_mib=8 * GIB), ask(memory_mib=12 * GIB), ask(gcores=9)):
        reported = set()
        for _ in range(10):
            chance.shuffle(nodes)
            found = choose(WaitFacts(asks=(asked,), nodes=tuple(nodes)))
            reported.add((found.code, found.message))
        assert len(reported) == 1


@each_seed("changes")
def test_a_change_is_named_only_if_it_lets_the_application_start(seed: int) -> None:
    """Whatever the situation, the facts with the named change have no reason left."""
    chance = random.Random(seed)
    named = 0
    for _ in range(300):
        nodes = tuple(
            node(f"host{n}", chance.choice((2, 4)), free=chance.randrange(3), left={"memory": chance.choice((0, 4096))})
            for n in range(3)
        )
        asked = ask(gcores=chance.randrange(1, 6), count=chance.randrange(1, 4), memory_mib=2048, together=True)
        facts = WaitFacts(asks=(asked,), nodes=nodes)
        change = smallest_change(facts)
        if can_start(facts):
            assert change == ""
        if change.endswith(")"):
            named += 1
            setting = change.rpartition(".")[2].rstrip(")")
            key, _, value = setting.partition("=")
            name = {"memory": "memory_mib", "containers": "count"}.get(key, key)
            assert can_start(replace(facts, asks=(replace(asked, **{name: int(value)}),)))
    assert named > 30


@each_seed("changes with another master")
def test_with_a_change_the_containers_start_wherever_the_next_applicationmaster_is(seed: int) -> None:
    """The application is submitted again: what its ApplicationMaster has is free again, and taken on any node."""
    chance, master, named = random.Random(seed), {"memory": 512, "vcores": 1}, 0
    for _ in range(300):
        nodes = [node(f"host{n}", left={"memory": chance.randrange(8) * 512}) for n in range(3)]
        asked = ask(memory_mib=4096, count=chance.randrange(1, 3), together=chance.random() < 0.5)
        host = chance.choice(nodes).host
        facts = WaitFacts(asks=(asked,), nodes=tuple(nodes), master=master, master_host=host)
        key, _, value = smallest_change(facts).rpartition(".")[2].rstrip(")").partition("=")
        if not value:
            continue
        named += 1
        changed = replace(asked, **{{"memory": "memory_mib", "containers": "count"}[key]: int(value)})
        for next_host in [item.host for item in nodes]:
            amounts = {item.host: dict(item.free) for item in nodes}
            for name, amount in master.items():
                amounts[host][name] += amount
                amounts[next_host][name] -= amount
            if min(amounts[next_host].values()) >= 0:
                moved = tuple(replace(item, free=amounts[item.host]) for item in nodes)
                assert can_start(replace(facts, asks=(changed,), nodes=moved)), (facts, key, value, next_host)
    assert named > 30


def test_a_queue_is_only_named_if_it_has_room_for_the_applicationmaster_too() -> None:
    def queue(name: str, left: int) -> LimitFacts:
        return LimitFacts(code="queue_limit", name=name, most={"memory": 4096}, used={"memory": 4096 - left})

    facts = WaitFacts(
        asks=(ask(memory_mib=GIB),),
        nodes=(node("host02"),),
        limits=(queue("queue small", 0),),
        other_queues=(("near", (queue("queue near", GIB + 511),)), ("large", (queue("queue large", GIB + 512),))),
        master={"memory": 512, "vcores": 1},
        master_host="host02",
    )
    assert smallest_change(facts) == "queue large: now, on host02 (--set application.queue=large)"


@pytest.mark.parametrize(
    ("step", "offered"),
    [(0, "3.5 GiB"), (256, "3.5 GiB"), (512, "3.5 GiB"), (1024, "3 GiB"), (3072, "3 GiB"), (4096, "")],
)
def test_less_memory_is_offered_in_the_engines_allocation_steps(step: int, offered: str) -> None:
    nodes = (node("host02", left={"memory": 3600}),)
    change = smallest_change(WaitFacts(asks=(ask(memory_mib=5000),), nodes=nodes, memory_step=step))
    assert change.partition(" of memory")[0] == offered


def test_the_next_applicationmaster_takes_whole_steps_too() -> None:
    nodes = (node("host02", left={"memory": 4096}),)
    facts = WaitFacts(asks=(ask(memory_mib=5000),), nodes=nodes, master={"memory": 256}, memory_step=1024)
    assert smallest_change(facts).startswith("3 GiB of memory: now")


def test_a_gang_that_does_not_fit_is_given_the_number_of_containers_that_would() -> None:
    facts = WaitFacts(asks=(ask(count=4, gcores=1, together=True),), nodes=TWO)
    found = choose(facts)
    assert (found.code, found.message) == ("nodes_full", "needs 4 containers together, not all of them fit now")
    assert smallest_change(facts) == "3 containers: now (--set resources.containers=3)"


def test_nodes_with_room_may_be_reserved_for_others() -> None:
    """One of two nodes with room is free for all while one is reserved; of two reserved ones none is."""
    facts = WaitFacts(asks=(ask(gcores=1),), nodes=TWO, reserved=1)
    assert choose(facts).code == "starting"
    found = choose(replace(facts, reserved=2))
    assert (found.code, found.available) == ("nodes_full", None)
    assert found.message.endswith(", the room on host02, host03 may be reserved for a larger container that waits")
    assert smallest_change(replace(facts, reserved=2)) == ""
    assert choose(replace(facts, asks=(ask(gcores=2),))).code == "nodes_full"


def test_a_suggested_change_of_a_role_has_the_launchers_syntax() -> None:
    asked = replace(ask(count=4, gcores=1, together=True), role="trainer")
    assert smallest_change(WaitFacts(asks=(asked,), nodes=TWO)) == (
        "3 containers: now (--set role.trainer.instances=3)"
    )
    fewer = smallest_change(WaitFacts(asks=(replace(asked, gcores=3, count=1), ask()), nodes=TWO))
    assert fewer == "2 GPUs: now (--set role.trainer.gcores=2)"


def test_a_request_above_the_maximum_of_a_queue_never_fits() -> None:
    most = limit("queue_limit", 4, 0, setting="yarn.scheduler.capacity.root.small.maximum-capacity")
    facts = WaitFacts(asks=(ask(count=3, gcores=2, together=True),), nodes=(node("a", 8), node("b", 8)), limits=(most,))
    found = choose(facts)
    assert (found.code, found.resource, found.asked, found.available) == ("never_fits", "gcores", 6, 4)
    assert found.message.endswith("(yarn.scheduler.capacity.root.small.maximum-capacity)")
    assert choose(replace(facts, asks=(ask(count=3, gcores=2),))).code == "starting"


def test_a_soft_limit_is_reached_when_no_capacity_is_left() -> None:
    soft = limit("user_limit", 4, 3, is_soft=True)
    facts = WaitFacts(asks=(ask(gcores=2),), nodes=TWO, limits=(soft,))
    assert choose(facts).code == "starting"
    assert choose(replace(facts, limits=(replace(soft, used={"gcores": 4}),))).code == "user_limit"


def test_on_one_machine_the_message_names_the_holders_of_missing_resources() -> None:
    facts = WaitFacts(asks=(ask(gcores=4),), nodes=(node("here", free=2),), one_machine=True, holders=(HOLDER,))
    assert choose(facts).message == "needs 4 GPUs, 2 free: application_1_0001 (ann)"


def test_without_facts_no_limit_is_named() -> None:
    """An engine that does not count GPUs, or answers by half, is no reason to name a limit."""
    unknown = NodeFacts(host="a", total={"memory": 4096}, free={"memory": 4096})
    assert choose(WaitFacts(asks=(ask(gcores=9),), nodes=(unknown,))).code == "starting"
    empty = LimitFacts(code="queue_limit", name="queue q", most={}, used={})
    assert choose(WaitFacts(asks=(ask(gcores=9),), limits=(empty,), unread="half an answer")).code == "service_away"
    assert smallest_change(WaitFacts(asks=(ask(gcores=9),))) == ""


def test_absurd_requests_of_other_users_are_evaluated_in_bounded_time() -> None:
    """An ApplicationMaster is a program of its user's: it may say that it lacks any number of anything.

    A loop over what is asked would take hours.
    """
    nodes = tuple(node(f"host{n}", free=n % 4, left={"memory": 1000 + n}) for n in range(500))
    for asked in (
        ask(count=1 << 62, gcores=0, memory_mib=0, together=True),
        ask(count=1 << 62, gcores=1, together=True),
        ask(count=10_000, gcores=1 << 40, memory_mib=-(1 << 40), together=True),
        ask(count=5_000, gcores=3, memory_mib=64 * GIB, together=True),
    ):
        facts = WaitFacts(asks=(asked,), nodes=nodes)
        assert choose(facts).code in CODES
        smallest_change(facts)
