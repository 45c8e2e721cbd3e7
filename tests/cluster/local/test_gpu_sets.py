"""Test the sets of GPUs: whether the scheduler counts what the ledger can give."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlapp.cluster.local import spool
from dlapp.cluster.local.client import submission, waits
from dlapp.cluster.local.gpu_sets import demands_of_row, gpu_sets
from dlapp.cluster.local.queue import Queue
from dlapp.cluster.local.queue_state import QueueContents, row_of, state_of
from dlapp.cluster.local.row import RUNNING, WAITING, ApplicationRow
from dlapp.cluster.local.schedule import QueueOrder
from dlapp.gpuid import needs, rules
from dlapp.gpuid.devices import Device
from dlapp.gpuid.health import nvml
from dlapp.gpuid.needs import MIG_SLICE, PLAIN, Demand, DeviceNeed
from dlapp.gpuid.rules import HostRecord, LeaseRequest
from dlapp.gpuid.selection import choose_for
from dlapp.gpuid.stores.machine import MachineLedger
from dlapp.scheduler.amounts import Amounts
from dlapp.scheduler.decisions import decide
from dlapp.scheduler.values import Policy
from tests.attacks.local_state import engine_in
from tests.gpuid.test_needs import LARGE, MIXED, NEEDS, SMALL, SPLIT, hosts, record_of, whole_gpu
from tests.services.containers.nvml_stub import MIB, Part, StubDevice, with_devices
from tests.services.processes.small_app import spec_of, submit

NOW_S = 1000.0
MACHINE = Amounts(1000, 100, 1 << 30)


def row(
    name: str, *demands: Demand, state: str = WAITING, place: int = 0, limit_s: int | None = None
) -> ApplicationRow:
    values = {
        "id": name,
        "uid": 1001,
        "state": state,
        "memory_mib": 1,
        "vcores": 1,
        "gcores": sum(demand.gcores for demand in demands),
        "gpus": needs.to_text(demands),
        "started_ms": int(NOW_S * 1000),
        "runs_at_most_s": limit_s,
        "order": (place, 1001, name),
        "arrived_ns": place,
        "used_since_ns": 0,
    }
    return ApplicationRow(list(values), list(values.values()))


def held(record: HostRecord, name: str, gcores: int, need: DeviceNeed = PLAIN) -> HostRecord:
    return rules.lease(record, LeaseRequest(name, name, "tony", gcores, need=need), token=name, now_ms=1)[0]


def starts(
    record: HostRecord, waiting: list[ApplicationRow], running: list[ApplicationRow], gcores: int | None = None
) -> list[str]:
    """Return what one pass over the queue starts, on a machine where so many GPUs are configured."""
    sets = gpu_sets(record, waiting, {item.id for item in running})
    devices = sum(device.present for device in record.devices)
    capacity = MACHINE._replace(gcores=devices if gcores is None else gcores)
    state = state_of(QueueContents(waiting, running, []), capacity, Policy(), NOW_S, sets=sets)
    return [decision.job.id for decision in decide(state, Policy(), NOW_S).decisions if decision.starts]


def test_a_machine_of_equal_gpus_has_no_sets() -> None:
    assert gpu_sets(record_of([whole_gpu(0), whole_gpu(1)]), [row("a", Demand(2, PLAIN))], ()) is None


def test_a_wait_for_gpus_reserves_no_slice_and_kinds_are_not_exchanged() -> None:
    record = held(record_of(MIXED), "busy", 2)
    busy = row("busy", Demand(2, PLAIN), state=RUNNING)
    two, part, one = (
        row("two", Demand(2, PLAIN)),
        row("part", Demand(1, DeviceNeed(MIG_SLICE)), place=1),
        row("one", Demand(1, PLAIN), place=2),
    )
    assert starts(record, [two, part, one], [busy]) == ["part"], "the free GPU is kept for the first"
    assert starts(record, [one, part], [busy]) == ["part", "one"]
    assert starts(record, [row("three", *[Demand(1, DeviceNeed(MIG_SLICE))] * 3)], [busy]) == []


def test_the_only_free_slice_is_reserved_for_a_gpu_wait_only_with_fewer_configured_gpus() -> None:
    record = held(held(record_of(MIXED), "busy", 3), "part", 1, DeviceNeed("mig:3g.40gb"))
    running = [
        row("busy", Demand(3, PLAIN), state=RUNNING),
        row("part", Demand(1, DeviceNeed("mig:3g.40gb")), state=RUNNING),
    ]
    waiting = [row("gpu", Demand(1, PLAIN)), row("slice", Demand(1, DeviceNeed(MIG_SLICE)), place=1)]
    assert starts(record, waiting, running) == ["slice"]
    assert starts(record, waiting, running, gcores=4) == []


@pytest.mark.parametrize(("memory_mib", "ahead"), [(1, [0, 0, 2, 3]), (996, [0, 1, 0, 3])], ids=["enough", "scarce"])
def test_a_wait_for_gpus_is_not_ahead_of_a_wait_for_a_slice_while_memory_suffices(
    memory_mib: int, ahead: list[int]
) -> None:
    record = held(
        held(held(record_of(MIXED), "busy", 2), "p1", 1, DeviceNeed(MIG_SLICE)), "p2", 1, DeviceNeed(MIG_SLICE)
    )
    running = [row("busy", Demand(2, PLAIN), state=RUNNING)]
    running += [row(name, Demand(1, DeviceNeed(MIG_SLICE)), state=RUNNING) for name in ("p1", "p2")]
    waiting = [
        row("two", Demand(2, PLAIN)),
        row("part", Demand(1, DeviceNeed(MIG_SLICE)), place=1),
        row("next", Demand(1, DeviceNeed("mig:1g.10gb")), place=2),
        row("one", Demand(1, PLAIN), place=3),
    ]
    waiting[0].memory_mib = memory_mib
    waiting[1].memory_mib = 2
    sets = gpu_sets(record, waiting, {item.id for item in running})
    state = state_of(QueueContents(waiting, running, []), MACHINE._replace(gcores=5), Policy(), NOW_S, sets=sets)
    found = decide(state, Policy(), NOW_S).decisions
    assert [(item.job.id, item.ahead) for item in found] == list(
        zip(("two", "part", "next", "one"), ahead, strict=True)
    )


def test_programs_without_gpus_start_behind_a_wait_for_more_memory() -> None:
    record = held(record_of([whole_gpu(0), whole_gpu(1, 15360)]), "busy", 1, DeviceNeed("whole", 40_000))
    busy = row("busy", Demand(1, DeviceNeed("whole", 40_000)), state=RUNNING)
    large, small, none = (
        row("large", Demand(1, DeviceNeed("whole", 40_000))),
        row("small", Demand(1, PLAIN), place=1),
        row("none", place=2),
    )
    assert starts(record, [large, small, none], [busy]) == ["none"], "the first has no end that is known: nobody passes"
    soon = row("busy", Demand(1, DeviceNeed("whole", 40_000)), state=RUNNING, limit_s=60)
    assert set(starts(record, [large, small, none], [soon])) == {"none", "small"}


def test_an_impossible_request_is_outside_the_order_and_blocks_no_other() -> None:
    waiting = [row("never", Demand(1, PLAIN)), row("part", Demand(1, DeviceNeed(MIG_SLICE)), place=1)]
    assert starts(record_of(SPLIT), waiting, []) == ["part"]


@given(
    hosts(),
    st.lists(st.builds(Demand, st.integers(1, 2), NEEDS), min_size=1, max_size=4),
    st.lists(st.builds(Demand, st.integers(1, 2), NEEDS), max_size=2),
)
def test_an_application_starts_by_the_counts_if_and_only_if_the_ledger_has_its_gpus(
    devices: tuple[Device, ...], asked: list[Demand], used: list[Demand]
) -> None:
    free, record, running = {device.uuid for device in devices}, record_of(devices), []
    for number, demand in enumerate(used):
        taken = choose_for(devices, free, [demand])
        if taken is None or (demand.gcores > 1 and demand.need.kind != "whole"):
            continue
        free -= {device.uuid for device in taken}
        name = f"busy{number}"
        record = held(record, name, demand.gcores, demand.need)
        running.append(row(name, demand, state=RUNNING))
    demands = sorted(asked, key=needs.strictness)
    possible = choose_for(devices, free, demands) is not None
    assert starts(record, [row("a", *demands)], running) == (["a"] if possible else [])


def test_other_users_read_the_requested_kind_and_else_count_whole_gpus(
    tmp_path: Path,
) -> None:
    state_dir = tmp_path / "state"
    state_dir.mkdir()
    state_dir.chmod(0o3770)
    slices, many = Demand(3, DeviceNeed("mig:1g.10gb+me")), [Demand(1, DeviceNeed("whole", n)) for n in range(1, 30)]
    with engine_in(state_dir, shared=True) as engine:
        for number, demands in enumerate(([slices], [Demand(2, PLAIN)], many), 1):
            one = row(f"application_5_{number:04d}", *demands)
            one.priority = None
            spool.announce(engine.state, one)
        read = {entry.id: demands_of_row(row_of(entry)) for entry in spool.entries_of(engine.state)}
        assert read == {
            "application_5_0001": (slices,),
            "application_5_0002": (Demand(2, PLAIN),),
            "application_5_0003": (Demand(29, PLAIN),),
        }
        spool.end(engine.state, "application_5_0001")
        assert not [name for name in os.listdir(engine.state.spool) if name.startswith("application_5_0001")]


def test_commands_show_waits_for_the_same_gpus_and_other_usable_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submission, "start_runner", lambda session: None)
    monkeypatch.setattr(nvml, "has_library", lambda: True)
    parts = tuple(Part(device.uuid, device.name, device.memory_mib * MIB) for device in (SMALL, LARGE))
    for name, value in with_devices(tmp_path, [StubDevice(mig=parts), StubDevice(uuid="GPU-1")]).items():
        monkeypatch.setenv(name, value)
    with engine_in(tmp_path / "state", shared=False) as engine, contextlib.ExitStack() as held:
        ledger = MachineLedger(engine.session.settings.lock_dir, nvml=engine.session.nvml)

        def hold(uuid: str) -> None:
            held.enter_context(ledger.acquire(LeaseRequest("busy", uuid, "tony", 1, (uuid,))))

        def why(application: str) -> tuple[list[str], str]:
            found = engine.view_in_full(application).json["waiting"]
            return [item["id"] for item in found["ahead"]], found["change"]

        hold("GPU-1")
        first, second = (str(submit(engine, "finish", gcores=1)) for _ in range(2))
        part, third = (str(submit(engine, "finish", gcores=1, gpu=kind)) for kind in ("mig:1g.10gb", "whole"))
        a_slice = "1 slice 3g.40gb: now (--set resources.gpu=mig:3g.40gb)"
        assert why(first) == ([], a_slice)
        assert why(second) == ([first], a_slice)
        hold(SMALL.uuid)
        assert why(part) == ([], a_slice)
        assert why(third) == ([first, second], a_slice)
        any_part = str(submit(engine, "finish", gcores=1, gpu="mig"))
        assert why(any_part) == ([part], ""), "it wants what the other waits for, and who waits for GPUs does not count"
        hold(LARGE.uuid)
        assert why(first) == ([], "no GPU: now (--set resources.gcores=0)")
        assert why(second) == ([first], "")
        plan = engine.plan(spec_of(gcores=1, gpu="mig:2g.20gb"))
        assert [item.id for item in plan.facts.before] == [any_part]
        large = str(submit(engine, "finish", gcores=1, memory_mib=engine.capacity().memory_mib, gpu="mig:3g.40gb"))
        assert why(large)[0] == [first, second, part, third, any_part], "they need memory that it needs"


def test_other_gpus_are_no_way_around_the_number_of_gpus_that_is_configured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submission, "start_runner", lambda session: None)
    monkeypatch.setattr(nvml, "has_library", lambda: True)
    parts = tuple(Part(device.uuid, device.name, device.memory_mib * MIB) for device in (SMALL, LARGE))
    for name, value in with_devices(tmp_path, [StubDevice(mig=parts), StubDevice(uuid="GPU-1")]).items():
        monkeypatch.setenv(name, value)
    with engine_in(tmp_path / "state", shared=False) as engine, contextlib.ExitStack() as held:
        ledger = MachineLedger(engine.session.settings.lock_dir, nvml=engine.session.nvml)
        held.enter_context(ledger.acquire(LeaseRequest("busy", "GPU-1", "tony", 1, ("GPU-1",))))
        running = row("application_5_0001", Demand(1, PLAIN), state=RUNNING)
        running.submitter = "tony"
        monkeypatch.setattr(Queue, "unsettled", lambda self: [running])
        changes = []
        for limit in (2, 1):
            capacity = engine.capacity()._replace(gcores=limit)
            with Queue(engine.state) as queue:
                machine = waits.MachineWaits(
                    engine.state, queue, capacity, engine.session.settings.lock_dir, engine.session.nvml
                )
                changes.append([gpu.kind for gpu in machine._facts(spec_of(gcores=1), QueueOrder(), None).other_gpus])
        assert changes == [["mig:3g.40gb", "mig:1g.10gb", "mig"], []]


@pytest.mark.parametrize("gpu", ["whole", "mig"])
def test_two_gpus_for_one_container_are_never_replaced_by_slices(gpu: str) -> None:
    record = held(record_of(MIXED), "busy", 2)
    spec = spec_of(gcores=2) if gpu == "whole" else spec_of(gcores=1, gpu=gpu, containers=2)
    found = [item.kind for item in waits._other_gpus(spec, record, QueueOrder(), None)]
    assert found == []


def test_a_row_without_kinds_requests_whole_gpus_beside_new_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submission, "start_runner", lambda session: None)
    with engine_in(tmp_path / "state", shared=False) as engine:
        old = str(submit(engine, "finish", gcores=2))
        with contextlib.closing(sqlite3.connect(engine.state.database)) as connection:
            connection.execute("ALTER TABLE applications DROP COLUMN gpus")
        with Queue(engine.state) as queue:
            assert [demands_of_row(item) for item in queue.unsettled()] == [(Demand(2, PLAIN),)]
        added = str(submit(engine, "finish", gcores=1, gpu="mig:1g.10gb"))
        with Queue(engine.state) as queue:
            found = {item.id: demands_of_row(item) for item in queue.unsettled()}
        assert found == {old: (Demand(2, PLAIN),), added: (Demand(1, DeviceNeed("mig:1g.10gb")),)}
