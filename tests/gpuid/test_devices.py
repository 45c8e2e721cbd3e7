"""Devices, how close they are, and who holds them."""

from __future__ import annotations

from dlapp.gpuid.devices import Device, Holder, closeness
from tests.gpuid.layouts import machine


def test_a_device_is_called_by_its_index_and_a_part_of_a_device_by_its_number_on_it() -> None:
    assert Device("GPU-a", 3, 7).label == "gpu3"
    assert Device("MIG-a", 3, 7, mig=1).label == "gpu3:1"
    assert Device("GPU-a", -1, -1).label == "GPU-a"


def test_nvlinks_are_closer_than_a_switch_and_that_is_closer_than_another_socket() -> None:
    words = ("X", "NV4", "NV1", "PIX", "PXB", "PHB", "NODE", "SYS", "-", "new")
    devices = [Device(f"GPU-{place}", place, place, links=words) for place in range(len(words))]
    found = [closeness(devices[0], other) for other in devices[1:]]
    assert found[:8] == sorted(set(found), reverse=True)
    assert found[7:] == [0, 0]


def test_a_device_newer_than_the_link_table_counts_as_distant() -> None:
    assert closeness(Device("GPU-a", 0, 0, links=("X",)), Device("GPU-b", 9, 9)) == 0


def test_links_are_as_strong_in_both_directions_on_published_layouts() -> None:
    devices = machine("DGX-1")
    assert all(closeness(device, other) == closeness(other, device) for device in devices for other in devices)


def test_a_holder_is_shown_by_index_application_and_user() -> None:
    holder = Holder("GPU-a", 2, "application_1_0042", user="tony")
    assert str(holder) == "gpu2 application_1_0042 (tony)"
    assert str(Holder("GPU-a", None, "")) == "GPU-a an unknown holder"
