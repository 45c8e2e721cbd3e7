"""The JSON forms of usage and receipts."""

from __future__ import annotations

import json
from typing import Any

from dlapp.values.serialization import from_json, to_json
from dlapp.values.usage import DeviceUsage, GpuHours, Receipt, Usage, total_receipt


def test_a_usage_and_a_receipt_are_read_as_they_were_written() -> None:
    usage = Usage(at_ms=5, cpu_cores=1.5, read_bytes=3, devices=(DeviceUsage(index=2, utilisation=0.25),))
    receipt = Receipt(gpu_hours=GpuHours(granted=2.0, unknown=2.0), seconds={"running": 3.5}, energy_wh=0.5)
    for value in (usage, receipt):
        assert from_json(type(value), json.loads(json.dumps(to_json(value)))) == value


def test_unknown_values_are_null_and_not_zero() -> None:
    assert to_json(Usage(at_ms=5, devices=(DeviceUsage(index=0),))) == {
        "at_ms": 5,
        "cpu_cores": None,
        "memory_mib": None,
        "read_bytes": None,
        "written_bytes": None,
        "received_bytes": None,
        "sent_bytes": None,
        "devices": [
            {
                "index": 0,
                "utilisation": None,
                "memory_mib": None,
                "power_w": None,
                "temperature_c": None,
                "processes": None,
                "activity": None,
                "at_idle_power": False,
                "uuid": "",
                "mig": "",
            }
        ],
        "input_wait": None,
    }
    receipt = to_json(Receipt())
    assert (receipt["energy_wh"], receipt["cpu_hours"], receipt["memory"]["peak_mib"]) == (None, None, None)


def test_a_receipt_of_a_version_that_did_not_measure_the_memory_of_gpus_is_read() -> None:
    data: dict[str, Any] = to_json(Receipt(gpus_asked=2, cpu_hours=1.5))
    for name in ("gpu_memory", "foreign_processes"):
        del data[name]
    receipt = from_json(Receipt, data)
    assert (receipt.gpus_asked, receipt.cpu_hours, receipt.foreign_processes) == (2, 1.5, ())
    assert receipt.gpu_memory_peak_mib is None
    total = total_receipt([receipt, receipt])
    assert total is not None
    assert total.gpu_memory == ()
