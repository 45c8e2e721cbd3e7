"""Activity of GPUs by GPM: real nvidia-ml-py, with its structures, on a stub of NVML."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.services.containers.nvml_stub import Part, StubDevice, with_devices

PYTHON = """
import collections, json
import pynvml
from dlapp.gpuid.health import gpm, nvml
gpm._MIN_INTERVAL_S = 0.0
watched = nvml.NvmlWatch(nvml.discover())
calls, find = collections.Counter(), pynvml._nvmlGetFunctionPointer
def count(name):
    calls[name] += 1
    return find(name)
pynvml._nvmlGetFunctionPointer = count
samples = []
for _ in range(3):
    calls.clear()
    samples.append([one.activity for one in watched.sample().values()])
taken = dict(calls)
watched.close()
print(json.dumps([samples, taken]))
"""


def sampled(place: Path, *gpus: StubDevice, old: bool = False) -> tuple[list[list[float | None]], dict[str, int]]:
    """Return the activity of each device in three samples, and the calls of NVML that the last one took."""
    env = os.environ | with_devices(place, gpus, old=old)
    done = subprocess.run([sys.executable, "-I", "-c", PYTHON], env=env, capture_output=True, check=True)
    found: Any = json.loads(done.stdout)
    return found[0], found[1]


def test_the_activity_is_the_share_of_busy_multiprocessors_and_not_the_utilisation(tmp_path: Path) -> None:
    samples, _ = sampled(tmp_path, StubDevice(utilization=100, gpm=2), StubDevice(utilization=100, gpm=98))
    assert samples[1:] == [[0.02, 0.98]] * 2


def test_the_activity_of_a_mig_device_is_known(tmp_path: Path) -> None:
    parts = (Part("MIG-a"), Part("MIG-b"))
    samples, _ = sampled(tmp_path, StubDevice(utilization=None, mig=parts, gpm_parts=(30, 0)))
    assert samples[1:] == [[0.3, 0.0]] * 2


@pytest.mark.parametrize("old", [False, True], ids=["a model before Hopper", "a driver before GPM"])
def test_without_gpm_the_activity_is_not_known(tmp_path: Path, old: bool) -> None:
    samples, calls = sampled(tmp_path, StubDevice(utilization=100), old=old)
    assert samples == [[None]] * 3
    assert not any("Gpm" in name for name in calls)


def test_a_sample_makes_few_driver_calls(tmp_path: Path) -> None:
    gpu = StubDevice(utilization=100, gpm=50, milliwatts=1, millijoules=1)
    _, calls = sampled(tmp_path, gpu)
    assert sum(calls.values()) <= 9, calls
    assert {name: count for name, count in calls.items() if "Gpm" in name} == {
        "nvmlGpmSampleGet": 1,
        "nvmlGpmMetricsGet": 1,
    }
