"""Condition of a GPU as its driver reports it: its NVLink fabric, links, PCIe and clocks, in words for an operator.

Only a fabric that is not there keeps a GPU from being leased, as no CUDA program runs without it. The others are notes:
a link or a PCIe lane that is down makes a program slow, and only the operator knows what the machine should have.

Source: NVML API Reference, nvmlGpuFabricInfoV_t, nvmlDeviceGetNvLinkState, "nvmlClocksEventReasons"; Fabric Manager
User Guide, "CUDA initialization".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

MAX_NVLINKS = 36
"""NVML_NVLINK_MAX_LINKS of the newest driver; a GPU returns "invalid argument" after its last link."""
FABRIC_NOT_STARTED, FABRIC_IN_PROGRESS, FABRIC_COMPLETED = 1, 2, 3
_HW_SLOWDOWN, _SW_THERMAL, _HW_THERMAL, _POWER_BRAKE = 0x8, 0x20, 0x40, 0x80
_YES = 1


class Fabric(NamedTuple):
    """Registration of a GPU in its NVLink fabric.

    Args:
        state: 0 it is in none, or one of ``FABRIC_…``.
        status: NVML's error of a completed registration; 0: it succeeded.
        health: mask, NVML_GPU_FABRIC_HEALTH_MASK_….
    """

    state: int
    status: int = 0
    health: int = 0


def fabric_problem(fabric: Fabric) -> str:
    """Return why CUDA programs cannot use a GPU that must be in an NVLink fabric; empty: they can."""
    states = {FABRIC_NOT_STARTED: "has not started", FABRIC_IN_PROGRESS: "is in progress"}
    if fabric.state == FABRIC_COMPLETED and fabric.status:
        what = f"failed with error {fabric.status}"
    elif (what := states.get(fabric.state, "")) == "":
        return ""
    return (
        f"its registration in the NVLink fabric {what}, and CUDA fails with error 802 until it is complete: "
        "is the fabric manager (nvidia-fabricmanager) running?"
    )


def notes(query: Callable[..., Any], fabric: Fabric | None, utilization: Any) -> tuple[str, ...]:
    """Return what an operator should know of a GPU that can be leased, a text for each.

    Args:
        query: asks NVML for a value of the GPU by the name of a function; None: it is not reported.
        fabric: None: it is in no NVLink fabric.
        utilization: its utilisation rates; None: not known.
    """
    return (
        *_fabric_notes(fabric or Fabric(0)),
        *_nvlink_notes(query),
        *_pcie_notes(query, is_busy=utilization is not None and utilization.gpu > 0),
        *_clock_notes(query),
    )


def _fabric_notes(fabric: Fabric) -> Iterator[str]:
    if fabric.state != FABRIC_COMPLETED:
        return
    for shift, text in (
        (0, "its NVLink fabric runs with reduced bandwidth"),
        (2, "the routes of its NVLink fabric are being restored"),
        (4, "a route of its NVLink fabric is unhealthy"),
    ):
        if fabric.health >> shift & 0x3 == _YES:
            yield text


def _nvlink_notes(query: Callable[..., Any]) -> Iterator[str]:
    states = []
    for link in range(MAX_NVLINKS):
        if (state := query("nvmlDeviceGetNvLinkState", link)) is None:
            break
        states.append(bool(state))
    # All are down on a card without a bridge, which is no news.
    if any(states) and not all(states):
        yield f"{sum(states)} of {len(states)} NVLinks are active"


def _pcie_notes(query: Callable[..., Any], *, is_busy: bool) -> Iterator[str]:
    width, full_width = query("nvmlDeviceGetCurrPcieLinkWidth"), query("nvmlDeviceGetMaxPcieLinkWidth")
    if width and full_width and width < full_width:
        yield f"PCIe has {width} of {full_width} lanes"
    # An idle GPU lowers the generation to save power.
    if is_busy:
        generation = query("nvmlDeviceGetCurrPcieLinkGeneration")
        best = query("nvmlDeviceGetMaxPcieLinkGeneration")
        if generation and best and generation < best:
            yield f"PCIe runs as generation {generation} of {best}"


def _clock_notes(query: Callable[..., Any]) -> Iterator[str]:
    reasons = query("nvmlDeviceGetCurrentClocksEventReasons")
    if reasons is None:
        reasons = query("nvmlDeviceGetCurrentClocksThrottleReasons") or 0  # before driver 535
    if reasons & _POWER_BRAKE:
        yield "its clocks are lowered by the power brake: the power supply is overloaded or has failed"
    if reasons & _HW_THERMAL:
        yield "its clocks are lowered by the hardware, as it is too hot"
    if reasons & _HW_SLOWDOWN and not reasons & (_POWER_BRAKE | _HW_THERMAL):
        yield "its clocks are lowered by the hardware (HW slowdown)"
    if reasons & _SW_THERMAL and not reasons & _HW_THERMAL:
        yield "its clocks are lowered by the driver, as it is hot"
