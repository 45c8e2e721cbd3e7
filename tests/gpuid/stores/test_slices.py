"""Test whole GPUs, slices of MIG and memory in the machine's ledger: reservations, leases and the queue."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dlapp.errors import RequestTooLarge
from dlapp.gpuid.needs import MIG_SLICE, PLAIN, WHOLE_GPU, Demand, DeviceNeed
from dlapp.gpuid.rules import LeaseRequest, NotEnough
from dlapp.gpuid.stores.machine import MachineLedger
from tests.gpuid.test_needs import LARGE, MIXED, SMALL, SPLIT, whole_gpu
from tests.services.users import place_for_everybody

APP, OTHER = "application_1700000000000_0001", "application_1700000000000_0002"
ANY_SLICE, LARGE_SLICE = DeviceNeed(MIG_SLICE), DeviceNeed("mig:3g.40gb")


@pytest.fixture
def directory() -> Iterator[Path]:
    with place_for_everybody("slices", 0o1777) as top:
        yield top / "locks"


@pytest.fixture
def ledger(directory: Path) -> MachineLedger:
    return MachineLedger(str(directory), discover=lambda: MIXED)


def ask(container: str, gcores: int = 1, need: DeviceNeed = PLAIN, application: str = APP) -> LeaseRequest:
    return LeaseRequest(application, container, "tony", gcores, need=need)


def uuids(held: object) -> list[str]:
    return [device.uuid for device in held.devices]  # type: ignore[attr-defined]


def test_a_request_gets_whole_gpus_and_a_slice_only_by_its_name(ledger: MachineLedger) -> None:
    with ledger.acquire(ask("c1", 2)) as two, ledger.acquire(ask("c2")) as one:
        assert (uuids(two), uuids(one)) == (["GPU-1", "GPU-2"], ["GPU-3"])
        with pytest.raises(
            NotEnough, match=r"asked for 1 whole GPU, 0 free, and 2 slices that gpu=mig would use: gpu1 "
        ):
            ledger.acquire(ask("c3"))
        with ledger.acquire(ask("c4", need=LARGE_SLICE)) as part:
            assert uuids(part) == [LARGE.uuid]
            with pytest.raises(NotEnough, match=r"asked for 1 slice 3g.40gb, 0 free, and 1 other slice: gpu0:1 "):
                ledger.acquire(ask("c5", need=LARGE_SLICE))


def test_a_machine_of_slices_alone_refuses_a_request_for_a_gpu_and_names_the_key(directory: Path) -> None:
    ledger = MachineLedger(str(directory), discover=lambda: SPLIT)
    text = r"asked for 1 whole GPU, this machine has 7 slices \(7 x 1g.10gb\); gpu=mig takes a slice"
    with pytest.raises(RequestTooLarge, match=text):
        ledger.reserve(APP, 1)
    with pytest.raises(RequestTooLarge, match=text):
        ledger.ticket(APP, 1, since_ms=1)
    with ledger.reserve(APP, 1, demands=[Demand(1, ANY_SLICE)]) as held:
        assert uuids(held) == [SPLIT[0].uuid]


def test_each_role_of_a_reservation_gets_its_own_kind(directory: Path) -> None:
    gpus = (*MIXED, whole_gpu(4, 15360))
    ledger = MachineLedger(str(directory), discover=lambda: gpus)
    large = DeviceNeed(WHOLE_GPU, 40_000)
    demands = [Demand(1, LARGE_SLICE), Demand(1, large), Demand(1, PLAIN)]
    with ledger.reserve(APP, 3, demands=demands) as held:
        assert uuids(held) == [LARGE.uuid, "GPU-1", "GPU-2"]
        with ledger.lease(ask("c1")) as plain, ledger.lease(ask("c2", need=large)) as big:
            assert (uuids(plain), uuids(big)) == (["GPU-1"], ["GPU-2"])
            with ledger.lease(ask("c3", need=LARGE_SLICE)) as part:
                assert uuids(part) == [LARGE.uuid]
        with pytest.raises(NotEnough, match=f"asked for 1 slice 1g.10gb, 0 are reserved for {APP}"):
            ledger.lease(ask("c4", need=DeviceNeed("mig:1g.10gb")))


def test_in_the_place_of_a_slice_in_quarantine_another_slice_is_leased(ledger: MachineLedger) -> None:
    with ledger.reserve(APP, 1, demands=[Demand(1, ANY_SLICE)]) as held:
        assert uuids(held) == [SMALL.uuid]
        ledger.quarantine("gpu0:0", cause="ecc")
        with ledger.lease(ask("c1", need=ANY_SLICE)) as part:
            assert uuids(part) == [LARGE.uuid]


def test_a_wait_for_gpus_does_not_block_a_slice_request(ledger: MachineLedger) -> None:
    with ledger.reserve(APP, 3), ledger.ticket(OTHER, 1, since_ms=1):
        with pytest.raises(NotEnough, match=f"{OTHER} .* came first and waits for 1 gcores"):
            ledger.reserve("application_1700000000000_0003", 1)
        with ledger.acquire(ask("c1", need=ANY_SLICE, application="application_1700000000000_0003")) as part:
            assert uuids(part) == [SMALL.uuid]


def test_a_wait_for_a_slice_blocks_only_requests_for_the_same_slice(
    ledger: MachineLedger,
) -> None:
    with (
        ledger.reserve(APP, 1, demands=[Demand(1, LARGE_SLICE)]),
        ledger.ticket(OTHER, 1, since_ms=1, demands=[Demand(1, LARGE_SLICE)]),
    ):
        with ledger.acquire(ask("c1", 3, application="application_1700000000000_0003")) as three:
            assert len(three.devices) == 3
        with ledger.acquire(ask("c2", need=ANY_SLICE, application="application_1700000000000_0003")) as part:
            assert uuids(part) == [SMALL.uuid]
        with pytest.raises(NotEnough, match=f"{OTHER} .* came first"):
            ledger.reserve("application_1700000000000_0003", 1, demands=[Demand(1, LARGE_SLICE)])


def test_two_holders_of_slices_of_one_gpu_are_distinguished(ledger: MachineLedger) -> None:
    with ledger.acquire(ask("c1", need=ANY_SLICE)), ledger.acquire(ask("c2", need=ANY_SLICE, application=OTHER)):
        assert [str(item).partition(" (")[0] for item in ledger.record().holder_by_uuid().values()] == [
            f"gpu0:0 {APP}",
            f"gpu0:1 {OTHER}",
        ]
        with pytest.raises(NotEnough, match=rf"gpu0:0 {APP} .*, gpu0:1 {OTHER} "):
            ledger.reserve("application_1700000000000_0003", 1, demands=[Demand(1, ANY_SLICE)])
