"""Receipts and the use over time, as the ApplicationMaster keeps them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dlapp.am.decisions.usage import usage_history
from dlapp.am.decisions.usage.receipts import suggestion_of
from dlapp.am.model import events, journal
from dlapp.am.model.journal_compaction import JournalCompaction
from dlapp.am.model.usage_series import UsageSeries
from dlapp.value import replace
from dlapp.values.messages import Fault, PayloadStatus, Phase
from dlapp.values.report import ApplicationView
from dlapp.values.serialization import from_json, to_json
from dlapp.values.spec import RoleSpec
from dlapp.values.usage import (
    ByteCounts,
    DeviceUsage,
    ForeignProcess,
    GpuHours,
    GpuMemory,
    MemoryReceipt,
    Receipt,
    Usage,
    UsageHistory,
    report_period_s,
    total_receipt,
)
from tests.am.driving import Driver, result

GIB = 1024


def receipt(running_s: float = 3600.0, **fields: Any) -> Receipt:
    given: dict[str, Any] = {"cpu_hours": 1.0, "seconds": {"running": running_s}} | fields
    return Receipt(**given)


def with_gpus(asked: int, used: int | None, busy: float, idle: float, unknown: float = 0.0) -> Receipt:
    hours = GpuHours(granted=busy + idle + unknown, busy=busy, idle=idle, unknown=unknown)
    return receipt(gpu_hours=hours, gpus_asked=asked, gpus_used=used)


def with_memory(*peaks_mib: int | None) -> Receipt:
    """Return the receipt of a container that used all of its memory, and this much of its GPUs of 80 GiB."""
    count = len(peaks_mib)
    gpus = tuple(GpuMemory(index=place, memory_mib=80 * GIB, peak_mib=one) for place, one in enumerate(peaks_mib))
    memory = MemoryReceipt(asked_mib=GIB, peak_mib=GIB)
    return replace(with_gpus(count, count, 1.0, 0.0), memory=memory, gpu_memory=gpus)


# ---- sums ----


def test_a_sum_adds_hours_phases_and_bytes_and_takes_the_memory_of_the_largest() -> None:
    small = receipt(
        10.0, memory=MemoryReceipt(asked_mib=9000, peak_mib=100), bytes=ByteCounts(input=1, written=5), energy_wh=None
    )
    large = replace(
        with_gpus(4, 1, 1.0, 2.0, 1.0),
        memory=MemoryReceipt(asked_mib=4000, peak_mib=3000, is_exact=True),
        bytes=ByteCounts(input=2, written=7),
        energy_wh=2.5,
    )
    total = total_receipt([small, large])
    assert total == Receipt(
        gpu_hours=GpuHours(granted=4.0, busy=1.0, idle=2.0, unknown=1.0),
        gpus_asked=4,
        gpus_used=1,
        cpu_hours=2.0,
        memory=large.memory,
        seconds={"running": 3610.0},
        bytes=ByteCounts(input=3, written=12),
        energy_wh=2.5,
    )


def test_an_unknown_value_of_one_container_is_unknown_in_the_total() -> None:
    total = total_receipt([receipt(), receipt(cpu_hours=None), with_gpus(1, None, 0.0, 1.0), with_gpus(1, 1, 1.0, 0.0)])
    assert total is not None
    assert (total.cpu_hours, total.gpus_used, total.energy_wh, total.bytes.read) == (None, None, None, None)


def test_no_receipts_have_no_total() -> None:
    assert total_receipt([]) is None


def test_a_sum_keeps_the_largest_gpu_peaks_and_foreign_processes() -> None:
    def of(peak_mib: int | None, *foreign_mib: int | None) -> Receipt:
        processes = tuple(ForeignProcess(gpu="0", uuid="GPU-0", pid=item or 9, peak_mib=item) for item in foreign_mib)
        memory = (GpuMemory(index=0, memory_mib=80 * GIB, peak_mib=peak_mib),)
        return replace(with_gpus(1, 1, 1.0, 0.0), gpu_memory=memory, foreign_processes=processes)

    total = total_receipt([receipt(), of(None, 7), of(5, None), of(3, *range(100, 110))])
    assert total is not None
    assert total.gpu_memory_peak_mib == 5
    assert [foreign_process.peak_mib for foreign_process in total.foreign_processes] == list(range(109, 101, -1))


# ---- suggestions ----


@pytest.mark.parametrize(
    ("receipts", "expected"),
    [
        ([with_gpus(4, 1, 1.0, 3.0)], "asked 4 GPUs, used 1"),
        ([with_gpus(1, 0, 0.0, 1.0)], "asked 1 GPU, used none"),
        ([with_gpus(4, 1, 1.0, 3.0), with_gpus(4, 4, 4.0, 0.0)], ""),
        ([with_gpus(2, 2, 0.1, 1.9)], "the GPUs were busy 5% of the time"),
        ([with_gpus(2, None, 0.0, 0.1, 1.9)], ""),
        ([with_gpus(2, 2, 0.01, 0.5, 1.9)], ""),
        ([receipt(memory=MemoryReceipt(asked_mib=64 * GIB, peak_mib=9 * GIB))], "memory 64 GiB, peak 9 GiB"),
        ([receipt(memory=MemoryReceipt(asked_mib=4 * GIB, peak_mib=3 * GIB))], ""),
        ([receipt(memory=MemoryReceipt(asked_mib=1 * GIB, peak_mib=10))], ""),
        ([receipt(memory=MemoryReceipt(asked_mib=64 * GIB, peak_mib=None))], ""),
        ([receipt(30.0, memory=MemoryReceipt(asked_mib=64 * GIB, peak_mib=1))], ""),
        ([with_memory(11 * GIB, 3 * GIB)], "GPU memory 80 GiB, peak 11 GiB"),
        ([with_memory(11 * GIB), with_memory(45 * GIB)], ""),
        ([with_memory(11 * GIB, None)], ""),
        ([], ""),
    ],
    ids=[
        "unused GPUs",
        "no GPU used",
        "another container used them",
        "idle GPUs",
        "unknown is not unused",
        "unknown is not idle",
        "memory",
        "memory that was needed",
        "little memory",
        "memory not known",
        "a short run",
        "GPU memory",
        "GPU memory that another container needed",
        "GPU memory not known",
        "nothing",
    ],
)
def test_at_most_one_suggestion_from_known_values(receipts: list[Receipt], expected: str) -> None:
    assert suggestion_of(receipts) == expected


# ---- the application's ----


def running(**fields: Any) -> Driver:
    am = Driver(**fields)
    am.granted(2)
    am.hello(2)
    am.report(2, Phase.RUNNING)
    return am


def test_the_view_has_the_receipt_of_each_container_and_of_all() -> None:
    am = running()
    am.report(2, Phase.RUNNING, usage=Usage(at_ms=5, cpu_cores=2.0), receipt=receipt(1.0))
    seen = am.view()
    assert seen.containers[0].usage == Usage(at_ms=5, cpu_cores=2.0)
    assert seen.containers[0].receipt == receipt(1.0)
    assert seen.receipt == total_receipt([receipt(1.0)])
    am.report(2, Phase.ENDED, result(receipt=receipt(70.0, memory=MemoryReceipt(asked_mib=64 * GIB, peak_mib=9 * GIB))))
    am.ended(2)
    am.settled()
    seen = am.view()
    assert seen.receipt is not None
    assert seen.receipt.suggestion == "memory 64 GiB, peak 9 GiB"
    assert from_json(ApplicationView, json.loads(json.dumps(to_json(seen)))) == seen


def test_tries_of_an_index_are_added_also_after_the_death_of_the_applicationmaster() -> None:
    am = running()
    am.report(2, Phase.RUNNING, receipt=receipt(1.0))
    am.ended(2, -100)  # its task said no result
    am.wait(60)
    am.granted(3)
    am.hello(3)
    am.finished(3, result(Fault.NODE, None, receipt=receipt(10.0)))
    am.wait(60)
    am.granted(4)
    am.hello(4)
    am.report(4, Phase.RUNNING, receipt=receipt(100.0))
    am.wait(3)
    seen = am.view()
    assert seen.receipt is not None
    assert seen.receipt.seconds == {"running": 111.0}
    lines = [json.dumps(action.record) for action in am.of(events.WriteJournal, am.all)]
    compaction = JournalCompaction(most_runs=1)
    compaction.process(lines)
    for journal_lines in (lines, compaction.needed_lines(lines)):
        former = journal.replay(journal.records(journal_lines))
        after = Driver(attempt=2, former=former, live=(am.grant(4),))
        after.report(4, Phase.RUNNING, attempt=1, index=0, receipt=receipt(1000.0))
        recovered = after.view().receipt
        assert recovered is not None
        assert recovered.seconds == {"running": 1011.0}


# ---- the use over time ----


def test_a_bucket_has_mean_minimum_and_maximum_or_is_unknown_without_reports() -> None:
    series = UsageSeries(1000, 10_000, 8)
    for at_ms, cores in ((1000, 1.0), (5000, 3.0), (31_000, 2.0)):
        series.add(at_ms, {"cpu_cores": cores, "read_bytes_s": 10.0, "gpu0.utilisation": None})
    assert series.as_json() == {
        "start_ms": 1000,
        "step_ms": 10_000,
        "columns": {
            "cpu_cores": {"mean": [2, None, None, 2], "min": [1, None, None, 2], "max": [3, None, None, 2]},
            "read_bytes_s": {"mean": [10, None, None, 10]},
        },
    }


def test_a_long_run_has_no_more_buckets_than_a_short_one_and_keeps_its_extremes() -> None:
    series = UsageSeries(0, 10_000, 120)
    for second in range(0, 36_000, 10):
        series.add(second * 1000, {"memory_mib": 5000.0 if second == 20_000 else float(second % 100)})
    found = series.as_json()["columns"]["memory_mib"]
    assert 60 <= len(found["mean"]) <= 120
    assert max(found["max"]) == 5000.0
    assert min(found["min"]) == 0.0
    weighted = sum(found["mean"]) / len(found["mean"])
    assert weighted == pytest.approx((3599 * 45 + 5000) / 3600, rel=0.05)


def test_a_clock_that_was_set_back_or_steps_by_years_does_no_harm() -> None:
    series = UsageSeries(1_000_000, 10_000, 8)
    for at_ms in (1_000_000, 1_050_000, 5, 10**15):
        series.add(at_ms, {"cpu_cores": 1.0})
    assert len(series) <= 8


def test_usage_is_kept_with_progress_and_metrics_and_survives_the_applicationmaster() -> None:
    am = running()
    for second in (10, 20):
        status = PayloadStatus(progress=second / 100, metrics={"loss": 1.0 / second}, lines=second)
        devices = (DeviceUsage(index=3, utilisation=0.5, power_w=70.0, activity=0.25, uuid="GPU-3"),)
        usage = Usage(at_ms=second * 1000, cpu_cores=1.0, read_bytes=second * 100, devices=devices)
        am.report(2, Phase.RUNNING, usage=usage, payload=status, receipt=receipt())
    written = json.loads(json.dumps(usage_history.as_json(am.state)))
    (series,) = from_json(UsageHistory, written).containers
    assert (series.container_id, series.index, series.attempt) == (am.id(2), 0, 1)
    assert series.columns["progress"]["mean"] == [0.1, 0.2]
    assert series.columns["metric.loss"]["mean"] == [0.1, 0.05]
    assert series.columns["read_bytes_s"]["mean"] == [None, 100]
    assert series.columns["gpu3.utilisation"]["max"] == [0.5, 0.5]
    assert series.columns["gpu3.activity"]["mean"] == [0.25, 0.25]
    assert series.gpus == {"gpu3": "GPU-3"}

    former = journal.replay(journal.records(json.dumps(action.record) for action in am.of(events.WriteJournal, am.all)))
    after = Driver(attempt=2, former=former, live=(am.grant(2),))
    usage_history.restore(after.state, written)
    assert usage_history.as_json(after.state)["containers"] == written["containers"]
    after.report(2, Phase.RUNNING, attempt=1, index=0, usage=Usage(at_ms=30_000, cpu_cores=3.0), receipt=receipt())
    (series,) = from_json(UsageHistory, usage_history.as_json(after.state)).containers
    assert series.columns["cpu_cores"]["mean"] == [1, 1, 3]
    assert series.gpus == {"gpu3": "GPU-3"}


@pytest.mark.parametrize(
    "written", [{}, {"containers": 3}, {"containers": [{"container_id": "x"}]}, {"containers": [1]}]
)
def test_a_damaged_file_of_the_attempt_before_is_passed_over(written: dict[str, Any]) -> None:
    am = running()
    usage_history.restore(am.state, written)
    am.report(2, Phase.RUNNING, usage=Usage(at_ms=30_000, cpu_cores=3.0), receipt=receipt())
    assert len(usage_history.as_json(am.state)["containers"]) == 1


def test_200_containers_with_a_gpu_for_10_hours_are_some_megabytes() -> None:
    am = Driver(RoleSpec(instances=200))
    most = len(json.dumps(usage_history.as_json(_fill(am, 36_000)), separators=(",", ":")))
    assert most < 4_000_000


def _fill(am: Driver, seconds: int) -> Any:
    am.granted(*range(2, 202))
    for number in range(2, 202):
        am.hello(number)
        am.report(number, Phase.RUNNING)
    devices = (DeviceUsage(index=0, utilisation=0.1234, memory_mib=12_345, power_w=71.25, temperature_c=61),)
    devices = (replace(devices[0], activity=0.1234, uuid="GPU-00000000-aaaa-bbbb-cccc-000000000000"),)
    (first, *others) = [am.state.containers.by_id[am.id(number)] for number in range(2, 202)]
    for second in range(0, seconds, 10):
        amounts: dict[str, Any] = {"cpu_cores": 1.234, "memory_mib": 23_456, "read_bytes": second * 1001}
        usage = Usage(at_ms=second * 1000, devices=devices, **amounts)
        am.report(2, Phase.RUNNING, usage=usage, receipt=receipt())
    for other in others:
        other.series = first.series
    return am.state


def test_the_more_containers_there_are_the_rarer_are_reports() -> None:
    assert report_period_s(200) == 10.0
    assert report_period_s(10_000) == 100.0
