"""The choice among free devices: what is wanted of it, and that it is the best there is."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlapp.gpuid.devices import Device, closeness
from dlapp.gpuid.selection import MAX_SETS, Measure, choose, matrix, measure
from tests.gpuid.layouts import NAMES, machine
from tests.tiers import some

EVERY_SET = [tuple(number for number in range(8) if bits >> number & 1) for bits in range(1 << 8)]


def chosen(devices: Sequence[Device], free: Sequence[int], count: int, *, spread: bool = False) -> list[int] | None:
    found = choose(devices, {devices[item].uuid for item in free}, count, spread=spread)
    return None if found is None else [devices.index(item) for item in found]


def best(devices: Sequence[Device], free: Sequence[int], count: int, *, spread: bool = False) -> list[int]:
    """By brute force: the first of all sets that no other one betters."""
    links = matrix(devices)

    def rank(taken: tuple[int, ...]) -> tuple[Measure, tuple[int, ...]]:
        return measure(links, free, taken, spread=spread), taken

    first = min(combinations(free, count), key=rank)
    return list(first)


@pytest.mark.parametrize("spread", [False, True], ids=["packed", "spread"])
@pytest.mark.parametrize("name", NAMES)
def test_on_published_layouts_the_best_set_is_chosen_for_all_free_sets_and_counts(name: str, spread: bool) -> None:
    devices = machine(name)
    for free in EVERY_SET:
        for count in range(1, len(free) + 1):
            assert chosen(devices, free, count, spread=spread) == best(devices, free, count, spread=spread)


LINKS = st.sampled_from(["NV4", "NV2", "PIX", "PXB", "PHB", "NODE", "SYS", "-"])


@st.composite
def odd_machines(draw: st.DrawFn) -> tuple[Device, ...]:
    """Machines that nobody would build; some GPUs of them in MIG mode."""
    gpus = draw(st.integers(1, 6))
    link = {pair: draw(LINKS) for pair in combinations(range(gpus), 2)}
    devices = []
    for gpu in range(gpus):
        links = tuple("X" if gpu == other else link[min(gpu, other), max(gpu, other)] for other in range(gpus))
        parts = draw(st.sampled_from([0, 0, 0, 2, 3]))
        numa = draw(st.integers(-1, 1))
        for part in range(parts) if parts else [-1]:
            devices.append(Device(f"{gpu}:{part}", gpu, gpu, numa=numa, links=links, mig=part))
    return tuple(devices[:9])


@settings(max_examples=some(150), deadline=None)
@given(odd_machines(), st.data())
def test_on_any_machine_the_best_set_is_chosen(devices: tuple[Device, ...], data: st.DataObject) -> None:
    free = sorted(data.draw(st.sets(st.sampled_from(range(len(devices))), min_size=1)))
    count, spread = data.draw(st.integers(1, len(free))), data.draw(st.booleans())
    assert chosen(devices, free, count, spread=spread) == best(devices, free, count, spread=spread)


def test_with_too_few_free_devices_none_is_chosen() -> None:
    assert chosen(machine("DGX-1"), [1, 5], 3) is None


def test_none_are_chosen_for_an_ask_of_none() -> None:
    assert chosen(machine("DGX-1"), [1, 5], 0) == []


def test_a_pair_has_the_most_nvlinks_that_there_are() -> None:
    devices = machine("DGX-1")
    pair = chosen(devices, range(8), 2)
    assert pair is not None
    assert closeness(devices[pair[0]], devices[pair[1]]) // 100 == 20


def test_four_on_the_cube_mesh_are_all_linked_to_each_other() -> None:
    assert chosen(machine("DGX-1"), range(8), 4) == [0, 1, 2, 3]
    assert chosen(machine("DGX-1"), [0, 1, 3, 4, 5, 6, 7], 4) == [4, 5, 6, 7]


def test_with_equal_links_the_numa_node_decides() -> None:
    assert chosen(machine("DGX A100"), [2, 3, 4, 5, 6, 7], 4) == [4, 5, 6, 7]


def test_a_pair_behind_one_switch_is_chosen_before_neighbours_behind_two() -> None:
    assert chosen(machine("two sockets, a switch for each two"), [1, 2, 4, 5], 2) == [4, 5]


def test_a_single_gpu_is_taken_where_it_breaks_up_the_least() -> None:
    tree = machine("two sockets, a switch for each four")
    assert chosen(tree, [0, 1, 2, 3, 6], 1) == [6]
    assert chosen(tree, [0, 1, 2, 4, 5, 6, 7], 1) == [2]
    assert chosen(tree, [0, 1, 2, 3, 4, 5], 1) == [4]


def test_singles_one_after_the_other_leave_a_quad_whole() -> None:
    tree, free = machine("two sockets, a switch for each four"), set(range(8))
    for _ in range(4):
        free -= set(chosen(tree, sorted(free), 1) or [])
    assert free in ({0, 1, 2, 3}, {4, 5, 6, 7})


def test_a_free_pair_is_preferred_to_half_a_quad() -> None:
    assert chosen(machine("two sockets, a switch for each four"), [0, 1, 2, 3, 4, 5], 2) == [4, 5]


def test_a_spread_ask_gets_devices_far_apart_and_far_from_those_in_use() -> None:
    tree = machine("two sockets, a switch for each four")
    assert chosen(tree, range(8), 2, spread=True) == [0, 4]
    assert chosen(tree, [1, 2, 3, 4, 5, 6, 7], 1, spread=True) == [4]


def parts(gpus: int, each: int) -> tuple[Device, ...]:
    return tuple(
        Device(f"MIG-{gpu}-{part}", gpu, gpu, links=("SYS",) * gpus, mig=part)
        for gpu in range(gpus)
        for part in range(each)
    )


def test_parts_of_a_device_in_use_are_taken_before_a_whole_one_is_broken() -> None:
    devices = parts(2, 7)
    assert chosen(devices, [0, 1, 2, 3, 4, 5, 6, 9, 10, 13], 1) == [9]
    assert chosen(devices, range(14), 3) == [0, 1, 2]


def test_without_known_links_neighbours_in_bus_order_are_close() -> None:
    devices = tuple(Device(f"GPU-{place}", place, place) for place in range(8))
    assert chosen(devices, [0, 4, 5, 7], 2) == [4, 5]
    assert chosen(devices, [0, 1, 2, 3, 6], 1) == [6]
    assert chosen(devices, [2, 3, 4, 5, 6], 2) == [2, 3]


def test_fifty_six_parts_are_chosen_from_as_fast_as_eight_devices() -> None:
    devices = parts(8, 7)
    began = time.process_time()
    found = chosen(devices, range(1, 56), 8)
    assert found == [1, *range(7, 14)]  # a whole GPU, and a part of the one that is broken already
    assert time.process_time() - began < 5  # brute force would try 1.2 thousand million sets


def test_a_machine_beyond_all_measure_gets_a_good_set_and_does_not_hang() -> None:
    names = ["SYS", "PHB", "PIX", "NV1", "NV2"]
    devices = tuple(
        Device(
            f"GPU-{number}",
            number,
            number,
            links=tuple(names[(number * other * 7 + number + other) % 5] for other in range(30)),
        )
        for number in range(30)
    )
    found = chosen(devices, range(30), 15)
    assert found is not None
    assert len(set(found)) == 15
    assert MAX_SETS < 155_117_520  # that many sets there are


@given(st.sets(st.integers(0, 7)), st.integers(0, 9), st.sampled_from(NAMES), st.booleans())
def test_a_choice_is_all_or_none_of_free_devices_in_order(free: set[int], count: int, name: str, spread: bool) -> None:
    found = chosen(machine(name), sorted(free), count, spread=spread)
    if count > len(free):
        assert found is None
    else:
        assert found is not None
        assert len(found) == count
        assert set(found) <= free
        assert found == sorted(found)
