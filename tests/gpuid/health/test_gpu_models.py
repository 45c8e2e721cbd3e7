"""Ten GPU models: each is found, healthy, leased and sampled, whatever it does not report."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.gpuid.health.gpu_models import GPU_MODELS, GpuModel
from tests.services.containers.nvml_stub import with_devices

CODE = """
import json, sys
from dlapp.gpuid.health import nvml
from dlapp.gpuid.health.inspection import HealthLimits, Inspector, classify_reading
from dlapp.gpuid.rules import LeaseRequest, NotEnough
from dlapp.gpuid.stores.machine import MachineLedger
from dlapp.values.serialization import to_json
locks, nvml._WSL = sys.argv[1:]
(device,) = nvml.discover()
reading = nvml.read([device], detailed=True)[device.uuid]
fault = classify_reading(reading)
ledger = MachineLedger(locks, inspect=Inspector(HealthLimits(settle_s=0.0), read=nvml.read))
try:
    with ledger.acquire(LeaseRequest("application_1_0001", "container_1", "tony", 1)) as lease:
        leased = [one.uuid for one in lease.devices]
        watched = nvml.NvmlWatch(lease.devices)
        failed, samples = watched.poll(), watched.sample()
        watched.close()
        lease.release()
except NotEnough as error:
    leased, failed, samples = [str(error)], {}, {}
print(json.dumps({
    "device": to_json(device),
    "reading": reading._asdict() | {"unverified": reading.unverified, "unreported": reading.unreported},
    "fault": fault,
    "leased": leased,
    "failed": failed,
    "sample": {uuid: one._asdict() for uuid, one in samples.items()},
}))
"""


def look(place: Path, model: GpuModel) -> Any:
    """Return what dlapp makes of the only model of a machine."""
    variables = with_devices(place, [model.stub])
    wsl = "/dev/null" if model.is_wsl else str(place / "dxg")
    done = subprocess.run(
        [sys.executable, "-I", "-c", CODE, str(place / "locks"), wsl],
        env=os.environ | variables,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", GPU_MODELS)
def test_each_model_is_found_healthy_leased_and_sampled(tmp_path: Path, name: str) -> None:
    model = GPU_MODELS[name]
    found = look(tmp_path, model)
    device, reading = found["device"], found["reading"]
    assert device["name"] == model.stub.name
    assert device["memory_mib"] << 20 == model.stub.memory_bytes
    assert found["fault"] is None
    assert (found["leased"], found["failed"]) == ([device["uuid"]], {})
    assert reading["error"] == ""
    assert reading["slowdown_c"] == model.slowdown_c
    assert reading["unverified"] == model.unverified
    assert (tuple(reading["unreported"]), tuple(reading["notes"])) == (model.unreported, model.notes)
    assert reading["persistent"] is bool(model.stub.persistence)
    sample = found["sample"][device["uuid"]]
    # Activity is the mean between two samples (tests/gpuid/health/test_gpm.py).
    assert tuple(field for field, value in sample.items() if value is None and field != "activity") == model.unknown


@pytest.mark.parametrize("name", GPU_MODELS)
def test_each_model_that_is_too_hot_or_has_memory_errors_is_not_leased_if_it_reports_that(
    tmp_path: Path, name: str
) -> None:
    model = GPU_MODELS[name]
    expected = []
    if model.stub.ecc is not None:
        # A driver of before version 550, which does not say itself whether the GPU can be used.
        failed = replace(model.stub, ecc=1, recovery=None)
        assert look(tmp_path, model._replace(stub=failed))["fault"][0] == "ecc"
        expected.append("ecc")
    if model.slowdown_c is not None:
        # At its slowdown temperature.
        over = model.stub.slowdown_margin
        hot = replace(model.stub, temperature=model.slowdown_c, margin=over)
        found = look(tmp_path, model._replace(stub=hot))
        assert found["fault"][0] == "hot"
        assert "quarantined" in found["leased"][0]
        expected.append("hot")
    assert bool(expected) is (name not in ("WSL2", "vGPU"))
