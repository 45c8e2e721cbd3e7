"""Test which GPUs serve a request: whole ones, slices of MIG, and those with enough memory."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlapp.errors import RequestTooLarge, UsageError
from dlapp.gpuid import needs, rules
from dlapp.gpuid.devices import Device
from dlapp.gpuid.needs import MIG_SLICE, PLAIN, WHOLE_GPU, Demand, DeviceNeed, from_text, to_text, too_few
from dlapp.gpuid.record_json import from_bytes, to_bytes
from dlapp.gpuid.rules import HostRecord, LeaseRequest, NotEnough
from dlapp.gpuid.selection import choose_for
from dlapp.value import replace
from dlapp.values import spec

APP = "application_1700000000000_0042"
_LINKS = tuple(tuple("X" if item == other else "PIX" for other in range(4)) for item in range(4))


def whole_gpu(index: int, memory_mib: int = 81559) -> Device:
    return Device(f"GPU-{index}", index, index, "NVIDIA H100 80GB HBM3", memory_mib, links=_LINKS[index % 4])


def part(index: int, number: int, profile: str, memory_mib: int) -> Device:
    name = f"NVIDIA H100 80GB HBM3 MIG {profile}"
    return Device(f"MIG-{index}-{number}", index, index, name, memory_mib, links=_LINKS[index % 4], mig=number)


SMALL, LARGE = part(0, 0, "1g.10gb", 9984), part(0, 1, "3g.40gb", 40448)
MIXED = (SMALL, LARGE, whole_gpu(1), whole_gpu(2), whole_gpu(3))
"""The first of four GPUs is split."""
SPLIT = tuple(part(0, number, "1g.10gb", 9984) for number in range(7))


def record_of(devices: Sequence[Device]) -> HostRecord:
    return rules.with_inventory(HostRecord("host03"), devices, boot_id="boot", now_ms=1)


def leased(record: HostRecord, container: str, gcores: int, need: DeviceNeed = PLAIN) -> tuple[HostRecord, list[str]]:
    ask = LeaseRequest(APP, container, "tony", gcores, need=need)
    record, lease = rules.lease(record, ask, token="t", now_ms=1)
    return record, list(lease.devices)


def test_two_gpus_and_three_are_whole_ones_although_slices_of_one_gpu_are_nearer_to_each_other() -> None:
    assert leased(record_of(MIXED), "c", 2)[1] == ["GPU-1", "GPU-2"]
    assert leased(record_of(MIXED), "c", 3)[1] == ["GPU-1", "GPU-2", "GPU-3"]


def test_a_single_gpu_is_a_whole_one_and_never_a_slice_when_those_are_in_use() -> None:
    record, first = leased(record_of(MIXED), "c1", 1)
    assert first == ["GPU-1"]
    record, _ = leased(record, "c2", 2)
    with pytest.raises(NotEnough) as refused:
        leased(record, "c3", 1)
    assert refused.value.free == 0
    assert refused.value.reason.startswith(
        "asked for 1 whole GPU, 0 free, and 2 slices that gpu=mig would use: gpu1 application_"
    )


def test_a_request_for_two_gpus_is_not_advised_to_use_slices() -> None:
    record, _ = leased(record_of(MIXED), "c1", 3)
    with pytest.raises(NotEnough) as refused:
        leased(record, "c2", 2)
    assert refused.value.reason.startswith("asked for 2 whole GPUs, 0 free: gpu1 application_")


def test_a_slice_request_gets_the_smallest_slice_or_the_named_profile() -> None:
    assert leased(record_of(MIXED), "c", 1, DeviceNeed(MIG_SLICE))[1] == [SMALL.uuid]
    assert leased(record_of(MIXED), "c", 1, DeviceNeed("mig:3g.40gb"))[1] == [LARGE.uuid]
    assert leased(record_of(MIXED), "c", 1, DeviceNeed(MIG_SLICE, 20_000))[1] == [LARGE.uuid]


def test_other_free_devices_are_named_with_the_key_that_requests_them() -> None:
    record, _ = leased(record_of(MIXED), "c1", 1, DeviceNeed("mig:1g.10gb"))
    with pytest.raises(NotEnough) as refused:
        leased(record, "c2", 1, DeviceNeed("mig:1g.10gb"))
    assert refused.value.reason == (
        "asked for 1 slice 1g.10gb, 0 free, and 1 other slice, and 3 whole GPUs that gpu=whole would use: "
        f"gpu0:0 {APP} (tony, 0 s)"
    )


def test_two_slices_are_refused_because_a_program_sees_one() -> None:
    with pytest.raises(UsageError, match=r"host03: asked for 2 slices \(gpu=mig\), and a program sees one slice only"):
        leased(record_of(SPLIT), "c", 2, DeviceNeed(MIG_SLICE))


@pytest.mark.parametrize(
    ("devices", "count", "need", "key", "problem"),
    [
        (SPLIT, 1, PLAIN, "gpu", "asked for 1 whole GPU, it has 7 slices (7 x 1g.10gb); gpu=mig takes a slice"),
        (SPLIT, 2, PLAIN, "gpu", "asked for 2 whole GPUs, it has 7 slices (7 x 1g.10gb)"),
        (SPLIT, 8, PLAIN, "gpu", "asked for 8 whole GPUs, it has 7 slices (7 x 1g.10gb)"),
        (
            MIXED,
            4,
            PLAIN,
            "gcores",
            "asked for 4 whole GPUs, it has 3 whole GPUs (3 x 85 GB) and 2 slices (1g.10gb, 3g.40gb)",
        ),
        (
            (whole_gpu(0), whole_gpu(1, 15360)),
            1,
            DeviceNeed(MIG_SLICE),
            "gpu",
            "asked for 1 MIG slice, it has 2 whole GPUs (16 GB, 85 GB); gpu=whole takes a whole GPU",
        ),
        (
            SPLIT,
            1,
            DeviceNeed("mig:3g.40gb"),
            "gpu",
            "asked for 1 slice 3g.40gb, it has 7 slices (7 x 1g.10gb)",
        ),
        (
            (whole_gpu(0), whole_gpu(1, 15360)),
            2,
            DeviceNeed(WHOLE_GPU, 24_000),
            "gpu_memory",
            "asked for 2 whole GPUs with 24 GB, it has 2 whole GPUs (16 GB, 85 GB)",
        ),
        (
            (part(0, 0, "1g.18gb", 16384), replace(part(0, 1, "1g.18gb", 16384), name="")),
            1,
            DeviceNeed(MIG_SLICE, 18_000),
            "gpu_memory",
            "asked for 1 MIG slice with 18 GB, it has 2 slices (17 GB, 1g.18gb of 17 GB)",
        ),
        ((whole_gpu(0),), 2, PLAIN, "gcores", "asked for 2 gcores, it has 1"),
        ((), 1, PLAIN, "gcores", "asked for 1 gcore, it has 0"),
    ],
)
def test_an_impossible_device_request_is_refused_with_the_hosts_devices_and_the_key(
    devices: Sequence[Device], count: int, need: DeviceNeed, key: str, problem: str
) -> None:
    with pytest.raises(RequestTooLarge) as refused:
        leased(record_of(devices), "c", count, need)
    assert (str(refused.value), refused.value.field) == (f"host03: {problem}", f"resources.{key}")


@pytest.mark.parametrize(
    ("memory_mib", "memory_mb", "serves"),
    [
        (81559, 80_000, True),
        (40960, 40_000, True),
        (24564, 24_000, True),
        (15360, 16_000, True),
        (15360, 17_000, False),
    ],
    ids=["H100", "A100", "RTX 4090", "T4", "T4 has less"],
)
def test_the_memory_of_a_gpu_is_that_of_its_name(memory_mib: int, memory_mb: int, serves: bool) -> None:
    """The sizes are those that nvidia-smi shows: an H100 of 80 GB has less than 80 GiB."""
    assert DeviceNeed(WHOLE_GPU, memory_mb).accepts(whole_gpu(0, memory_mib)) is serves


def test_a_gpu_of_unknown_memory_serves_no_request_for_memory() -> None:
    assert not DeviceNeed(WHOLE_GPU, 1).accepts(whole_gpu(0, 0))
    assert PLAIN.accepts(whole_gpu(0, 0))


def test_the_smallest_gpu_with_enough_memory_is_chosen() -> None:
    devices = (whole_gpu(0), whole_gpu(1, 24564), whole_gpu(2, 40960), whole_gpu(3, 40960))
    assert leased(record_of(devices), "c", 1, DeviceNeed(WHOLE_GPU, 16_000))[1] == ["GPU-1"]
    assert leased(record_of(devices), "c", 2, DeviceNeed(WHOLE_GPU, 30_000))[1] == ["GPU-2", "GPU-3"]
    assert leased(record_of(devices), "c", 1, DeviceNeed(WHOLE_GPU, 48_000))[1] == ["GPU-0"]


def test_profiles_are_compared_by_their_words() -> None:
    media = part(1, 0, "1g.10gb+me", 9984)
    assert needs.profile_of(media) == "1g.10gb+me"
    assert DeviceNeed("mig:1g.10gb+me").accepts(media)
    assert not DeviceNeed("mig:1g.10gb").accepts(media)
    assert not DeviceNeed("mig:1g.10gb").accepts(whole_gpu(0))
    assert needs.profile_of(whole_gpu(0)) == ""


def test_the_kinds_are_those_of_the_properties_file() -> None:
    assert (WHOLE_GPU, MIG_SLICE) == (spec.WHOLE_GPU, spec.MIG_SLICE)


def test_a_record_from_before_there_were_kinds_serves_them() -> None:
    old = record_of(MIXED)
    assert leased(from_bytes(to_bytes(old), "host03"), "c", 1, DeviceNeed("mig:3g.40gb"))[1] == [LARGE.uuid]


def test_other_kinds_are_those_that_are_free_the_nearest_in_memory_first() -> None:
    def kinds(need: DeviceNeed, *free: Device) -> list[str]:
        return needs.other_kinds(need, MIXED, free)

    assert kinds(PLAIN, SMALL, LARGE) == ["mig:3g.40gb", "mig:1g.10gb", "mig"]
    assert kinds(PLAIN, SMALL) == ["mig:1g.10gb", "mig"]
    assert kinds(PLAIN, whole_gpu(2)) == kinds(PLAIN) == []
    assert kinds(DeviceNeed(WHOLE_GPU, 20_000), SMALL, LARGE) == ["mig:3g.40gb", "mig"]
    assert kinds(DeviceNeed("mig:1g.10gb"), LARGE, whole_gpu(1)) == ["mig:3g.40gb", "whole", "mig"]
    assert kinds(DeviceNeed("mig:3g.40gb"), SMALL, whole_gpu(1)) == ["whole", "mig:1g.10gb", "mig"]
    assert kinds(DeviceNeed(MIG_SLICE), whole_gpu(1)) == ["whole"]
    assert kinds(PLAIN, replace(SMALL, name="")) == ["mig"]


# ---- several demands ----

PROFILES = st.sampled_from([("1g.10gb", 9984), ("2g.20gb", 20096), ("3g.40gb", 40448)])
NEEDS = st.builds(
    DeviceNeed,
    st.sampled_from([WHOLE_GPU, MIG_SLICE, "mig:1g.10gb", "mig:3g.40gb"]),
    st.sampled_from([0, 16_000, 40_000]),
)


@st.composite
def hosts(draw: st.DrawFn) -> tuple[Device, ...]:
    devices: list[Device] = []
    for index in range(draw(st.integers(1, 4))):
        parts = draw(st.lists(PROFILES, max_size=3))
        devices += [part(index, place, *one) for place, one in enumerate(parts)]
        if not parts:
            devices.append(whole_gpu(index, draw(st.sampled_from([15360, 40960, 81559]))))
    return tuple(devices)


def can_be_met(devices: Sequence[Device], asked: Sequence[DeviceNeed]) -> bool:
    """By exhaustive search: each device for one need."""
    if not asked:
        return True
    first, *rest = asked
    return any(
        can_be_met([other for other in devices if other is not device], rest)
        for device in devices
        if first.accepts(device)
    )


@given(hosts(), st.lists(st.builds(Demand, st.integers(1, 2), NEEDS), max_size=4))
def test_possible_demands_are_met_and_impossible_ones_refused(devices: tuple[Device, ...], asked: list[Demand]) -> None:
    demands = sorted(asked, key=needs.strictness)
    possible = can_be_met(devices, [demand.need for demand in demands for _ in range(demand.gcores)])
    found = choose_for(devices, {device.uuid for device in devices}, demands)
    assert (found is not None) == possible
    assert bool(too_few(demands, devices, "it has")) == (not possible)
    if found is not None:
        assert len(found) == sum(demand.gcores for demand in demands)
        assert can_be_met(found, [demand.need for demand in demands for _ in range(demand.gcores)])


@given(hosts(), st.lists(st.builds(Demand, st.integers(1, 2), NEEDS), max_size=4), st.randoms())
def test_each_role_gets_its_reserved_devices_in_any_order(
    devices: tuple[Device, ...], asked: list[Demand], order: Random
) -> None:
    reserved = choose_for(devices, {device.uuid for device in devices}, sorted(asked, key=needs.strictness))
    if reserved is None:
        return
    order.shuffle(asked)
    left = {device.uuid for device in reserved}
    for demand in asked:
        taken = choose_for(devices, left, [demand], least=True)
        assert taken is not None
        left -= {device.uuid for device in taken}


@given(st.lists(st.builds(Demand, st.integers(1, 64), NEEDS), min_size=1, max_size=6))
def test_demands_are_read_back_from_their_text(asked: list[Demand]) -> None:
    demands = tuple(sorted(asked, key=needs.strictness))
    text = to_text(demands)
    assert not set(text) & set("/ \n")
    count = sum(demand.gcores for demand in demands)
    plain = all(demand.need == PLAIN for demand in demands)
    assert from_text(text, count) == ((Demand(count, PLAIN),) if plain else demands)


@pytest.mark.parametrize(
    "text", ["x", "1*", "1*whole;", "-1*mig", "1*mig@", ";".join(["1*mig"] * 101), "9" * 10 + "*mig"]
)
def test_a_text_that_another_process_wrote_wrongly_means_whole_gpus(text: str) -> None:
    assert from_text(text, 3) == (Demand(3, PLAIN),)
