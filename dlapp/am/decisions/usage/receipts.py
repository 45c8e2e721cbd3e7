"""Receipts: of one container, of an index with its tries, of the application; and the suggested request for the next
run.

A task's result has the cost of its container. Of one that ended without a result the last report counts, so
what came after that is missing.
"""

from __future__ import annotations

from collections.abc import Iterable

from dlapp.am.model.instance import Instance
from dlapp.am.model.state import ApplicationState
from dlapp.value import replace
from dlapp.values.usage import Receipt, total_receipt

_MIN_RUN_S = 60.0
"""Minimum run time from which a payload's usage is meaningful for the next run."""
_BUSY = 0.1
_MIN_LEFT_MIB = 2048
_MIN_LEFT_ON_GPU_MIB = 8192
"""Minimum unused memory of a GPU for a suggestion: a smaller MIG profile, or model of GPU, has so much less."""
_PERIOD_MS = 1000
_PER_CONTAINER_MS = 5
"""Minimum time between two sums per container: a sum takes some microseconds for each."""


def total_of(state: ApplicationState) -> Receipt | None:
    """Return what the application has cost so far; None: nothing is known. While it runs it may be some seconds old."""
    period_ms, usage = _PERIOD_MS + _PER_CONTAINER_MS * len(state.instances), state.usage
    is_recent = usage.receipt is not None and state.awake_ms < usage.receipt_ms + period_ms
    if is_recent and state.lifetime.finished_ms is None:
        return usage.receipt
    total = total_receipt(_all_of(state.instances))
    if total is not None:
        total = replace(total, suggestion=_suggestion(state))
    usage.receipt, usage.receipt_ms = total, state.awake_ms
    return total


def spent_before(instance: Instance) -> Receipt | None:
    """Return what the containers of an index have cost, its last one included, before it gets another one."""
    return total_receipt(_all_of([instance]))


def _all_of(instances: Iterable[Instance]) -> Iterable[Receipt]:
    for one in instances:
        if one.spent is not None:
            yield one.spent
        if one.last is not None and (receipt := one.last.cost) is not None:
            yield receipt


def _suggestion(state: ApplicationState) -> str:
    """Return one suggestion: of the first role for which there is one; empty: none."""
    for role in state.roles:
        instances = [state.instances[index] for index in role.indexes]
        text = suggestion_of([one.last.cost for one in instances if one.last is not None and one.last.cost is not None])
        if text:
            return f"{role.spec.name}: {text}" if len(state.roles) > 1 else text
    return ""


def suggestion_of(receipts: list[Receipt]) -> str:
    """Return a suggestion by the receipts of containers with the same request; empty: there is none."""
    long = [one for one in receipts if one.seconds.get("running", 0.0) >= _MIN_RUN_S]
    total = total_receipt(long)
    if total is None or len(long) < len(receipts):
        return ""
    if total.gpus_used is not None and total.gpus_used < total.gpus_asked:
        return f"asked {total.gpus_asked} GPU{'' if total.gpus_asked == 1 else 's'}, used {total.gpus_used or 'none'}"
    hours = total.gpu_hours
    known = hours.busy + hours.idle
    if known > hours.unknown and hours.busy < _BUSY * known:
        return f"the GPUs were busy {hours.busy / known:.0%} of the time"
    asked_mib, peak_mib = total.memory.asked_mib, total.memory.peak_mib
    if any(one.memory.peak_mib is None for one in long) or peak_mib is None:
        return ""
    if 2 * peak_mib < asked_mib and asked_mib - peak_mib >= _MIN_LEFT_MIB:
        return f"memory {_gib(asked_mib)}, peak {_gib(peak_mib)}"
    return _gpu_memory_suggestion(long)


def _gpu_memory_suggestion(receipts: list[Receipt]) -> str:
    """Return a suggestion for GPUs of which no container has used half the memory; empty: none."""
    gpus = [one for receipt in receipts for one in receipt.gpu_memory]
    peaks_mib = [one.peak_mib for one in gpus if one.peak_mib is not None]
    if not gpus or len(peaks_mib) < len(gpus):
        return ""
    peak_mib, least_mib = max(peaks_mib), min(one.memory_mib for one in gpus)
    if 2 * peak_mib < least_mib and least_mib - peak_mib >= _MIN_LEFT_ON_GPU_MIB:
        return f"GPU memory {_gib(least_mib)}, peak {_gib(peak_mib)}"
    return ""


def _gib(mib: int) -> str:
    return f"{mib / 1024:.3g} GiB"
