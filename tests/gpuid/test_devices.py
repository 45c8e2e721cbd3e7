"""The choice among free devices."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dlapp.gpuid.devices import Device, Holder, choose

EIGHT = tuple(Device(f"GPU-{place}", place, place) for place in range(8))


def chosen(free: set[int], count: int) -> list[int] | None:
    found = choose(EIGHT, {f"GPU-{place}" for place in free}, count)
    return None if found is None else [device.index for device in found]


def test_nothing_is_chosen_where_too_few_are_free() -> None:
    assert chosen({1, 5}, 3) is None


def test_none_are_chosen_for_an_ask_of_none() -> None:
    assert chosen({1, 5}, 0) == []


def test_neighbours_are_chosen_before_cards_far_apart() -> None:
    assert chosen({0, 4, 5, 7}, 2) == [4, 5]


def test_a_single_card_is_taken_where_it_breaks_up_no_group() -> None:
    assert chosen({0, 1, 2, 3, 6}, 1) == [6]


def test_a_pair_is_taken_at_the_edge_of_a_larger_group() -> None:
    assert chosen({2, 3, 4, 5, 6}, 2) == [2, 3]


@given(st.sets(st.integers(0, 7)), st.integers(0, 9))
def test_a_choice_is_all_or_none_of_free_devices_in_order(free: set[int], count: int) -> None:
    found = chosen(free, count)
    if count > len(free):
        assert found is None
    else:
        assert found is not None
        assert len(found) == count
        assert set(found) <= free
        assert found == sorted(found)


def test_a_holder_is_shown_by_index_application_and_user() -> None:
    holder = Holder("GPU-a", 2, "application_1_0042", user="tony")
    assert str(holder) == "gpu2 application_1_0042 (tony)"
    assert str(Holder("GPU-a", None, "")) == "GPU-a an unknown holder"
