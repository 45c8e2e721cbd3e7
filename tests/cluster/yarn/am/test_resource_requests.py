"""Test the way from asks to rows, against a ResourceManager's table in a few lines."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlapp.cluster.engine import ContainerRequest
from dlapp.cluster.yarn.am.resource_requests import ResourceRequestTable
from dlapp.cluster.yarn.values import ANY, NodeId, NodeReport, ResourceRequest
from dlapp.value import replace
from dlapp.values.spec import Placement, Resources

SMALL = Resources(memory_mib=256, vcores=1, gcores=1)
NONE: Counter[int] = Counter()


def node(name: str, *, gcores: int = 4, rack: str = "/r1", usable: bool = True) -> NodeReport:
    capability = Resources(memory_mib=4096, vcores=8, gcores=gcores)
    return NodeReport(node=NodeId(name, 8041), rack=rack, usable=usable, capability=capability)


def ask(count: int, request_id: int = 1, resources: Resources = SMALL, **placement: object) -> ContainerRequest:
    return ContainerRequest(request_id=request_id, count=count, resources=resources, placement=Placement(**placement))  # type: ignore[arg-type]


def wants(*nodes: NodeReport) -> ResourceRequestTable:
    one = ResourceRequestTable(sample=lambda of, count: list(of)[:count])
    one.set_nodes(nodes)
    return one


def shown(rows: list[ResourceRequest]) -> dict[str, tuple[int, bool]]:
    return {row.name: (row.count, row.relax) for row in rows}


def test_usable_hosts_are_named_beside_their_racks_and_the_cluster() -> None:
    one = wants(node("a"), node("b", rack="/r2"), node("c", gcores=0), node("d", usable=False))
    one.set_requests([ask(3)], NONE)
    rows = one.rows(1)
    assert shown(rows) == dict.fromkeys(("a", "b", "/r1", "/r2", ANY), (3, True))
    assert {(row.priority, row.request_id) for row in rows} == {(1, 1)}


def test_at_most_twice_the_count_and_64_hosts_are_named() -> None:
    one = wants(*(node(f"n{number}") for number in range(200)))
    one.set_requests([ask(3), ask(100, 2)], NONE)
    assert len([row for row in one.rows(1) if row.name.startswith("n")]) == 6
    assert len([row for row in one.rows(2) if row.name.startswith("n")]) == 64


def test_nodes_excluded_by_one_role_are_usable_for_the_others() -> None:
    one = wants(node("a"), node("b"), node("c"))
    one.set_requests(
        [ask(1, exclude_nodes=("a", "b")), ask(1, 2, exclude_nodes=("a",)), ask(1, 3, nodes=("a", "b"))], NONE
    )
    assert one.avoid() == ([], []), "the third role is to be there"
    assert shown(one.rows(1)) == {"c": (1, True), "/r1": (1, False), ANY: (1, False)}
    assert shown(one.rows(2)) == {"b": (1, True), "c": (1, True), "/r1": (1, False), ANY: (1, False)}
    assert {"a", "b"} < shown(one.rows(3)).keys()
    assert not any(one.rows_due(request_id) for request_id in (1, 2, 3))
    one.update_nodes([node("d")])
    assert [one.rows_due(request_id) for request_id in (1, 2, 3)] == [True, True, False]
    assert "d" in shown(one.rows(1))
    one.set_requests([ask(1, exclude_nodes=("a", "b")), ask(1, 2, exclude_nodes=("a",))], NONE)
    assert one.avoid() == (["a"], [])
    assert shown(one.rows(2))[ANY] == (1, True), "the whole application avoids it"


def test_a_role_that_excludes_every_node_is_put_on_none() -> None:
    one = wants(node("a"))
    one.set_requests([ask(1, exclude_nodes=("a",)), ask(1, 2)], NONE)
    assert shown(one.rows(1)) == {ANY: (1, False)}
    assert not one.fits_a_node(ask(1, exclude_nodes=("a",)))


def test_without_a_node_list_excluded_nodes_are_avoided_unless_requested() -> None:
    one = wants()
    one.set_requests([ask(1, exclude_nodes=("a", "b")), ask(1, 2, nodes=("b",))], NONE)
    assert one.avoid() == (["a"], [])


def test_named_nodes_are_strict_with_their_racks() -> None:
    one = wants(node("a", rack="/r7"))
    one.set_requests([ask(2, nodes=("a", "unknown"))], NONE)
    assert shown(one.rows(1)) == {
        "a": (2, True),
        "unknown": (2, True),
        "/r7": (2, False),
        "/default-rack": (2, False),
        ANY: (2, False),
    }


def test_a_named_node_without_a_rack_is_requested_on_the_default_rack() -> None:
    """A ResourceManager that sends no rack of a node: `NodeReport.rack` is empty then."""
    one = wants(node("a", rack=""))
    one.set_requests([ask(1, nodes=("a",))], NONE)
    assert shown(one.rows(1)) == {"a": (1, True), "/default-rack": (1, False), ANY: (1, False)}
    assert not one.rows_due(1)


def test_a_label_is_only_on_the_cluster_row() -> None:
    one = wants(node("a"))
    one.set_requests([ask(2, node_label="gpu")], NONE)
    assert [(row.name, row.label) for row in one.rows(1)] == [(ANY, "gpu")]


def test_requests_are_sent_once_and_zero_withdraws_them() -> None:
    one = wants(node("a"))
    one.set_requests([ask(2)], NONE)
    assert one.rows(1)
    assert one.rows(1) == []
    one.set_requests([ask(0)], NONE)
    assert shown(one.rows(1)) == dict.fromkeys(("a", "/r1", ANY), (0, True))
    assert one.rows(1) == []


def test_an_allocation_alone_sends_no_request() -> None:
    one = wants(node("a"))
    one.set_requests([ask(2)], NONE)
    one.rows(1)
    one.record_granted(1)
    assert one.rows(1) == []
    one.set_requests([ask(2)], Counter({1: 1}))  # the asks do not know of it yet
    assert one.rows(1) == []
    one.set_requests([ask(1)], NONE)
    assert one.rows(1) == []
    one.set_requests([ask(2)], NONE)  # another one is wanted
    assert shown(one.rows(1))[ANY] == (2, True)


def test_after_a_restart_all_requests_are_sent_again() -> None:
    one = wants(node("a"))
    one.set_requests([ask(2, exclude_nodes=("x",))], NONE)
    one.rows(1)
    one.record_avoided(*one.avoid())
    assert one.avoid() == ([], [])
    one.reset()
    assert one.rows_due(1)
    assert one.avoid() == (["x"], [])
    assert shown(one.rows(1))[ANY] == (2, True)


def test_other_named_nodes_replace_those_before() -> None:
    one = wants(node("a"), node("b"))
    one.set_requests([ask(1, nodes=("a",))], NONE)
    one.rows(1)
    one.set_requests([ask(1, nodes=("b",))], NONE)
    assert shown(one.rows(1)) == {"b": (1, True), "/r1": (1, False), ANY: (1, False), "a": (0, True)}
    one.set_requests([ask(1)], NONE)
    assert shown(one.rows(1))[ANY] == (1, True)
    assert one.rows(1) == []


def test_an_impossible_role_is_not_requested_again() -> None:
    one = wants(node("a"))
    one.set_requests([ask(2), ask(1, 2)], NONE)
    one.rows(1)
    one.drop(1)
    assert shown(one.rows(1))[ANY] == (0, True)
    one.set_requests([ask(2), ask(1, 2)], NONE)
    assert one.rows(1) == []
    assert [each.request_id for each in one.waiting()] == [2]


@pytest.mark.parametrize(("gcores", "fits"), [(4, True), (5, False)])
def test_a_request_larger_than_any_node_is_recognized(gcores: int, fits: bool) -> None:
    assert wants(node("a")).fits_a_node(ask(1, resources=Resources(memory_mib=256, vcores=1, gcores=gcores))) is fits
    assert wants().fits_a_node(ask(1, resources=Resources(gcores=100)))


def test_only_usable_nodes_count_among_named_or_excluded_ones() -> None:
    cluster = wants(node("a"), node("b", gcores=0))
    assert cluster.fits_a_node(ask(1, nodes=("a",)))
    assert not cluster.fits_a_node(ask(1, nodes=("b",)))
    assert not cluster.fits_a_node(ask(1, nodes=("nowhere",)))
    assert not cluster.fits_a_node(ask(1, exclude_nodes=("a",)))


def test_nodes_that_failed_are_avoided_as_long_as_there_are_others() -> None:
    one = wants(node("a"), node("b"), node("c", gcores=0))
    one.set_requests([replace(ask(2, exclude_nodes=("c",)), avoid=("a",))], NONE)
    assert one.avoid() == (["a", "c"], [])
    one.record_avoided(["a", "c"], [])
    assert "a" not in shown(one.rows(1))
    one.set_requests([replace(ask(2, exclude_nodes=("b", "c")), avoid=("a",))], NONE)
    assert one.avoid() == (["b"], ["a"])
    one.set_requests([replace(ask(2, nodes=("a", "b")), avoid=("a",))], NONE)
    assert one.avoid() == ([], ["c"])
    one.set_requests([replace(ask(2, nodes=("a",)), avoid=("a",))], NONE)
    assert one.avoid() == ([], ["a", "c"])


def test_the_latest_of_many_failed_nodes_are_avoided() -> None:
    one = wants(*map(node, "abcdefg"))
    one.set_requests([replace(ask(2), avoid=("g", "gone", "b", "a"))], NONE)
    assert one.avoid() == (["a", "b"], [])


@given(st.integers(0, 30), st.lists(st.integers(0, 40), unique=True), st.integers(0, 40))
def test_at_most_a_third_of_the_nodes_is_avoided_because_they_failed(known: int, failed: list[int], count: int) -> None:
    one = wants(*(node(f"n{number}") for number in range(known)))
    one.node_count = known or count
    one.set_requests([replace(ask(2), avoid=tuple(f"n{number}" for number in failed))], NONE)
    avoided, _ = one.avoid()
    assert len(avoided) <= (known or count) // 3
    assert len(avoided) == min((known or count) // 3, len([item for item in failed if item < known or not known]))


def test_hosts_short_of_gpus_are_known_by_their_short_names_and_by_their_full_ones() -> None:
    one = wants(node("a.lab"), node("b"), node("127.0.1.1"), node("127.0.1.2"))
    one.set_requests([replace(ask(1), short_of_gpus=("a", "b.lab", "127.0.1.1", "elsewhere"))], NONE)
    assert one.avoid() == (["127.0.1.1", "a.lab", "b"], [])
    assert shown(one.rows(1)).keys() == {"127.0.1.2", "/r1", ANY}


def test_hosts_short_of_gpus_are_used_last_and_failed_hosts_are_avoided_first() -> None:
    one = wants(node("a"), node("b"), node("c"))
    one.set_requests([replace(ask(2), short_of_gpus=("a", "b", "c"))], NONE)
    assert one.avoid() == ([], [])
    assert shown(one.rows(1)).keys() == {"a", "b", "c", "/r1", ANY}
    one.set_requests([replace(ask(1), avoid=("a",), short_of_gpus=("b", "c"))], NONE)
    assert one.avoid() == (["a"], [])


def test_a_role_that_needs_no_gpus_may_be_where_another_finds_too_few() -> None:
    one = wants(node("a"), node("b"))
    workers, servers = replace(ask(1), short_of_gpus=("a",)), ask(1, 2, replace(SMALL, gcores=0))
    one.set_requests([workers, servers], NONE)
    assert one.avoid() == ([], [])
    assert shown(one.rows(1)).keys() == {"b", "/r1", ANY}
    assert shown(one.rows(2)).keys() == {"a", "b", "/r1", ANY}
    one.set_requests([workers, replace(servers, count=0)], NONE)
    assert one.avoid() == (["a"], [])
    one.set_requests([replace(workers, count=0), servers], NONE)
    assert one.avoid() == ([], [])


def test_without_a_node_list_the_ledgers_counts_are_ignored() -> None:
    one = wants()
    one.set_requests([replace(ask(1), short_of_gpus=("a",))], NONE)
    assert one.avoid() == ([], [])


def test_without_a_node_list_failed_nodes_are_avoided_by_node_count() -> None:
    one = wants()
    one.set_requests([replace(ask(2), avoid=("a", "b"))], NONE)
    assert one.avoid() == ([], [])
    one.node_count = 3
    assert one.avoid() == (["b"], [])


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("master"), st.integers(0, 6)),
            st.tuples(st.just("scheduler"), st.integers(1, 3)),
            st.tuples(st.just("allocate"), st.just(0)),
        ),
        max_size=40,
    )
)
def test_allocations_never_exceed_the_maximum_wanted_and_finally_match_it(
    steps: list[tuple[str, int]],
) -> None:
    one = wants(node("a"))
    table, allocated = 0, 0  # the ResourceManager's count, and what it allocated and has not reported
    reported, known = 0, 0  # what reached the engine, and what reached the ApplicationMaster
    target = most = 3
    one.set_requests([ask(target)], NONE)

    def master() -> None:
        nonlocal known
        one.set_requests([ask(max(0, target - known))], Counter({1: reported - known}))
        known = reported

    def scheduler(count: int) -> None:
        nonlocal table, allocated
        count = min(count, table)
        table, allocated = table - count, allocated + count

    def allocate() -> None:
        nonlocal table, allocated, reported
        for row in one.rows(1):
            if row.name == ANY:
                table = row.count
        reported, count, allocated = reported + allocated, allocated, 0
        for _ in range(count):
            one.record_granted(1)

    for what, number in steps:
        if what == "master":
            target = max(target, number)
            most = max(most, target)
            master()
        elif what == "scheduler":
            scheduler(number)
        else:
            allocate()
        assert one.count(1) >= 0
    for _ in range(3):
        master()
        allocate()
        scheduler(10)
        allocate()
    master()
    assert known >= target
    # More only where the count was raised while a container was on its way.
    assert known <= most or len([1 for what, number in steps if what == "master" and number > 3]) > 0
    if not any(what == "master" and number > 3 for what, number in steps):
        assert known == 3
