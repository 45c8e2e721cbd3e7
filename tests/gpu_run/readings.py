"""GPUs as nvidia-smi shows them, and how far dlapp's numbers may be from these."""

from __future__ import annotations

import csv
import io
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any, NamedTuple

UTILISATION, MEMORY_MIB, POWER, ENERGY = 0.10, 700.0, 0.25, (0.4, 1.4)
"""Tolerances: utilisation in points, memory [MiB], power as a share, energy as a share of mean power x time. nvidia-smi
and dlapp read at different moments, and a driver's utilisation is the mean of up to a second before."""
SMI = "nvidia-smi"
SMI_S = 20.0
"""Time limit of one call: without persistence mode it initialises each GPU first [s]."""
UNKNOWN = ("[N/A]", "N/A", "[Not Supported]", "[Not Found]", "[Unknown Error]", "[GPU requires reset]", "")


class Sample(NamedTuple):
    """One GPU at one moment; None: not reported."""

    utilisation: float | None
    memory_mib: float | None
    power_w: float | None
    temperature_c: float | None


SAMPLE_FIELDS = ("utilization.gpu", "memory.used", "power.draw", "temperature.gpu")
DEVICE_FIELDS = ("uuid", "index", "pci.bus_id", "memory.total", "compute_mode", "persistence_mode", "mig.mode.current")


def has_smi() -> bool:
    """Return whether nvidia-smi is installed."""
    return shutil.which(SMI) is not None


def ask_smi(*options: str) -> str:
    """Return what nvidia-smi prints. Raises OSError, subprocess.SubprocessError."""
    return subprocess.run([SMI, *options], capture_output=True, text=True, check=True, timeout=SMI_S).stdout


def query(kind: str, names: Sequence[str], *options: str) -> list[dict[str, str]]:
    """Return the rows of a query of nvidia-smi (``gpu``, ``compute-apps``), by the names of its fields."""
    answer = ask_smi(f"--query-{kind}={','.join(names)}", "--format=csv,noheader,nounits", *options)
    return rows_of(answer, names)


def rows_of(text: str, names: Sequence[str]) -> list[dict[str, str]]:
    """Return the rows of a CSV of nvidia-smi without a header.

    Raises:
        ValueError: a row has another number of fields: nvidia-smi has printed an error.
    """
    found = []
    for row in csv.reader(io.StringIO(text), skipinitialspace=True):
        if not row:
            continue
        if len(row) != len(names):
            raise ValueError(f"nvidia-smi: {', '.join(row)}")
        found.append(dict(zip(names, (item.strip() for item in row), strict=True)))
    return found


def number(text: str) -> float | None:
    """Return a number of nvidia-smi; None where it has none."""
    return None if text in UNKNOWN else float(text)


def sample_of(row: dict[str, str]) -> Sample:
    """Return the sample of a row of `SAMPLE_FIELDS`."""
    percent, memory, power, temperature = (number(row[name]) for name in SAMPLE_FIELDS)
    return Sample(None if percent is None else percent / 100, memory, power, temperature)


def links_of(text: str) -> list[tuple[str, ...]]:
    """Return the rows between GPUs of ``nvidia-smi topo -m``: ``X``, ``NV4``, ``PIX``, ..."""
    # The header can be underlined by escapes of the terminal.
    lines = [line.replace("\x1b[4m", "").replace("\x1b[0m", "").split("\t") for line in text.splitlines()]
    width = max(sum(word.strip().startswith("GPU") and word.strip()[3:].isdigit() for word in line) for line in lines)
    found = []
    for line in lines:
        words = [word.strip() for word in line]
        if words[0].startswith("GPU") and words[0][3:].isdigit():
            found.append(tuple(words[1 : width + 1]))
    return found


def bus_id(text: str) -> str:
    """Return a PCI bus id in one form: nvidia-smi and NVML differ in case and in the digits of the domain."""
    domain, _, rest = text.lower().partition(":")
    return f"{int(domain, 16):x}:{rest}"


def mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of those that are known; None: none is."""
    known = [item for item in values if item is not None]
    return fmean(known) if known else None


def differences(ours: dict[str, Any], theirs: Sequence[Sample]) -> list[str]:
    """Return in what a usage of `dlapp-status --json` differs from samples of the same time; empty: in nothing.

    Args:
        ours: ``utilisation``, ``memory_mib``, ``power_w`` of one device.
        theirs: samples of the time that it covers.
    """
    found = []
    for name in ("utilisation", "memory_mib", "power_w"):
        expected, value = mean(getattr(item, name) for item in theirs), ours.get(name)
        if expected is None:
            continue
        limit = {"utilisation": UTILISATION, "memory_mib": MEMORY_MIB, "power_w": POWER * expected}[name]
        if value is None:
            found.append(f"{name} is not known, {expected:.2f} was measured")
        elif abs(value - expected) > limit:
            found.append(f"{name} is {value:.2f}, {expected:.2f} was measured")
    return found


def energy_difference(energy_j: float | None, power_w: float | None, seconds: float) -> str:
    """Return in what an energy differs from a mean power over a time; empty: in nothing, or one is not known."""
    if energy_j is None or not power_w or not seconds:
        return ""
    share = energy_j / (power_w * seconds)
    if ENERGY[0] <= share <= ENERGY[1]:
        return ""
    return f"the energy is {energy_j:.0f} J, {share:.2f} of {power_w:.0f} W over {seconds:.0f} s"


def overlap_s(one: tuple[float, float], other: tuple[float, float]) -> float:
    """Return for how long two intervals of time overlap; below 0: the gap between them [s]."""
    return min(one[1], other[1]) - max(one[0], other[0])
