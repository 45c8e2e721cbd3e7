"""Test when payloads may go, and what is asked for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dlapp.am.model.demand import AvoidedNodes, Role, UsableDevices, container_requests
from dlapp.am.model.gate import Gate
from dlapp.values.spec import Placement, Resources, RoleSpec


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 4))))
def test_a_gang_starts_exactly_when_all_are_ready_together(moves: list[tuple[bool, int]]) -> None:
    gate, ready = Gate("worker", 5), set[int]()
    for comes, index in moves:
        if gate.open:
            break
        opened = comes and gate.mark_ready(index, 0)
        if not comes:
            gate.mark_not_ready(index)
        ready = ready | {index} if comes else ready - {index}
        assert bool(opened) is gate.open is (len(ready) == 5)
        assert gate.ready == len(ready)


def test_without_a_gang_the_gate_is_always_open() -> None:
    gate = Gate("worker", 0)
    assert gate.open
    assert not gate.mark_ready(0, 0)


def test_readiness_for_an_earlier_generation_does_not_count() -> None:
    gate = Gate("worker", 2)
    gate.mark_ready(0, 0)
    gate.close(1)
    assert not gate.mark_ready(0, 0)
    assert not gate.mark_ready(1, 1)
    assert (gate.open, gate.ready) == (False, 1)
    assert gate.mark_ready(0, 1)


@given(st.lists(st.tuples(st.sampled_from(["wait", "pause", "take", "time"]), st.integers(10, 15))))
def test_the_lowest_waiting_index_that_is_not_paused_is_next(moves: list[tuple[str, int]]) -> None:
    role, waiting, paused, now_ms = (
        Role(0, RoleSpec(instances=6), 10, Gate("worker", 0)),
        set(range(10, 16)),
        dict[int, int](),
        0,
    )
    for move, index in moves:
        match move:
            case "wait":
                role.wait(index)
                waiting.add(index)
            case "pause":
                role.wait(index, now_ms + index)
                waiting.add(index)
                paused[index] = now_ms + index
            case "take":
                role.remove_waiting(index)
                waiting.discard(index)
                paused.pop(index, None)
            case _:
                now_ms += index
                role.resume(now_ms)
                paused = {one: until_ms for one, until_ms in paused.items() if until_ms > now_ms}
        assert role.next_index() == min(waiting - set(paused), default=None)
        assert (role.waiting, role.missing) == (len(waiting), len(waiting) - len(paused))


def test_a_fulfilled_or_unwanted_request_is_withdrawn() -> None:
    role = Role(1, RoleSpec(instances=2), 0, Gate("worker", 0))
    assert [(ask.request_id, ask.count) for ask in container_requests([role], Placement(), wanted=True)] == [(2, 2)]
    assert [(ask.request_id, ask.count) for ask in container_requests([role], Placement(), wanted=False)] == [(2, 0)]
    role.remove_waiting(0)
    role.remove_waiting(1)
    assert [ask.count for ask in container_requests([role], Placement(), wanted=True)] == [0]


def test_a_node_is_avoided_for_a_time_after_its_second_failure() -> None:
    avoided = AvoidedNodes(avoid_ms=1000)
    avoided.add("node2", "GPU 1 is ill", now_ms=0)
    avoided.add("node1", "no disk", now_ms=300)
    assert avoided.names(300) == ()
    avoided.add("node2", "no disk", now_ms=400)
    avoided.add("node1", "GPU 0 is ill", now_ms=500)
    assert avoided.names(1399) == ("node2", "node1"), "the one that failed last is at the end"
    assert avoided.names(1400) == ("node1",)
    assert avoided.names(1500) == ()
    avoided.add("node1", "no disk", now_ms=1600)
    assert avoided.names(1600) == (), "its failures are forgotten"


def test_a_reason_that_three_nodes_have_is_none_of_theirs() -> None:
    avoided = AvoidedNodes(avoid_ms=600_000)
    for now_ms, node in enumerate(("node1", "node2", "node1", "node2")):
        avoided.add(node, f"{node}: the archive of 10{now_ms} bytes cannot be read", now_ms)
    assert avoided.names(4) == ("node1", "node2")
    avoided.add("node3", "node3: the archive of 77 bytes cannot be read", 5)
    assert avoided.names(5) == ()
    avoided.add("node1", "no disk", 6)
    avoided.add("node1", "no disk", 7)
    assert avoided.names(7) == ("node1",)
    avoided.clear()
    assert avoided.names(7) == ()


def test_any_number_of_unresponsive_nodes_is_avoided() -> None:
    avoided, rack = AvoidedNodes(avoid_ms=600_000), [f"node{number}" for number in range(5)]
    for now_ms in (1, 2):
        for node in rack:
            avoided.add(node, f"the NodeManager {node}:8041 did not answer", now_ms, is_silent=True)
    assert avoided.names(2) == tuple(rack)
    for now_ms, node in enumerate(rack, 3):
        avoided.add(node, "no disk", now_ms)
    assert avoided.names(10) == tuple(rack), "another reason that they share changes nothing"
    assert avoided.names(600_002) == ()


def of_gcores(*gcores: int) -> list[Role]:
    return [
        Role(place, RoleSpec(resources=Resources(memory_mib=1, gcores=n)), place, Gate("worker", 0))
        for place, n in enumerate(gcores)
    ]


def test_a_node_that_refuses_containers_is_avoided_at_once_beside_any_others() -> None:
    avoided = AvoidedNodes(avoid_ms=600_000)
    for number in range(4):
        avoided.add(f"node{number}", "gpu3 is quarantined", now_ms=number, is_closed=True)
    assert avoided.names(now_ms=4) == ("node0", "node1", "node2", "node3")


def test_gpus_are_requested_after_the_ledgers_answer_or_its_timeout() -> None:
    roles, devices = of_gcores(0, 1), UsableDevices(wait_ms=2000)

    def counts(now_ms: int) -> list[int]:
        return [ask.count for ask in container_requests(roles, Placement(), (), devices, now_ms=now_ms, wanted=True)]

    assert counts(500) == counts(2499) == [1, 0]
    assert counts(2500) == [1, 1]
    devices = UsableDevices(wait_ms=2000)
    assert counts(0) == [1, 0]
    devices.set_usable({}, {})
    assert counts(1) == [1, 1]
    devices = UsableDevices(wait_ms=0)
    assert counts(0) == [1, 1]


def test_hosts_with_too_few_devices_are_avoided() -> None:
    devices = UsableDevices(wait_ms=0)
    whole, slices = ("whole", 0), ("mig", 0)
    devices.set_usable({"node1": 7, "node2": 3}, {whole: {"node1": 0, "node2": 3}, slices: {"node1": 7, "node2": 0}})
    found = container_requests(of_gcores(0, 1, 3, 4), Placement(), ("node9",), devices, wanted=True)
    assert [ask.avoid for ask in found] == [("node9",)] * 4
    assert [ask.short_of_gpus for ask in found] == [(), ("node1",), ("node1",), ("node1", "node2")]
    (of_slice,) = container_requests(of_gcores(1), Placement(gpu="mig"), (), devices, wanted=True)
    assert of_slice.short_of_gpus == ("node2",)
    devices.set_usable({}, {})
    assert [ask.short_of_gpus for ask in container_requests(of_gcores(1), Placement(), (), devices, wanted=True)] == [
        ()
    ]
