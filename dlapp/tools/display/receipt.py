"""Receipts and resource usage of containers as text, from their JSON forms (`dlapp.values.usage`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_MIB = 1 << 20
_MOVED = ("input", "output", "read", "written", "received", "sent")


def receipt_lines(receipt: Mapping[str, Any] | None) -> list[str]:
    """Return the cost of an application as lines of a status; unknown amounts are omitted."""
    if receipt is None:
        return []
    from dlapp.system.text import human_size

    lines = [f"cost : {', '.join(_cost_texts(receipt))}"]
    times = [f"{phase} {_seconds_text(seconds)}" for phase, seconds in receipt["seconds"].items() if seconds >= 0.5]
    if times:
        lines.append(f"time : {', '.join(times)}")
    moved = [f"{name} {human_size(receipt['bytes'][name])}" for name in _MOVED if receipt["bytes"][name]]
    if moved:
        lines.append(f"moved : {', '.join(moved)}")
    gpus = receipt.get("gpu_memory", ())
    if gpus and None not in (peaks := [one["peak_mib"] for one in gpus]):
        least = human_size(min(one["memory_mib"] for one in gpus) * _MIB)
        lines.append(f"gpu memory : {least}, peak {human_size(max(peaks) * _MIB)} (sampled)")
    lines += [f"foreign : {foreign_text(one)}" for one in receipt.get("foreign_processes", ())]
    if receipt["suggestion"]:
        lines.append(f"suggestion : {receipt['suggestion']}")
    return lines


def foreign_text(process: Mapping[str, Any]) -> str:
    """Return what a process that is not the application's has used: ``process 7 (python, user ann) used 4.9 GiB of
    gpu0 on node1``.
    """
    from dlapp.system.text import human_size

    who = ", ".join(filter(None, (process["program"] or "name hidden", process["user"] and f"user {process['user']}")))
    size = process["peak_mib"]
    amount = "" if size is None else f"{human_size(size * _MIB)} of "
    where = f" on {process['host']}" if process["host"] else ""
    return f"process {process['pid']} ({who}) used {amount}gpu{process['gpu']}{where}"


def cost_text(receipt: Mapping[str, Any] | None) -> str:
    """Return the cost in short form, for a column: ``1.5 GPUh 27%``, ``0.12 CPUh``; empty if unknown."""
    if receipt is None:
        return ""
    hours = receipt["gpu_hours"]
    if hours["granted"]:
        known = hours["busy"] + hours["idle"]
        busy = f" {hours['busy'] / known:.0%}" if known > hours["unknown"] else ""
        return f"{_hours_text(hours['granted'])} GPUh{busy}"
    return "" if receipt["cpu_hours"] is None else f"{_hours_text(receipt['cpu_hours'])} CPUh"


def usage_text(usage: Mapping[str, Any] | None) -> str:
    """Return a container's current usage: ``1.9 cores, 9.0 GiB, GPUs 87%, waiting for input 40%``; empty if unknown."""
    if usage is None:
        return ""
    texts = [] if usage["cpu_cores"] is None else [f"{usage['cpu_cores']:.2g} cores"]
    if usage["memory_mib"] is not None:
        from dlapp.system.text import human_size

        texts.append(human_size(usage["memory_mib"] * _MIB))
    busy = [one["utilisation"] for one in usage["devices"]]
    if busy and None not in busy:
        texts.append(f"GPU{'' if len(busy) == 1 else 's'} {sum(busy) / len(busy):.0%}")
    active = [one.get("activity") for one in usage["devices"]]
    if active and None not in active:
        texts.append(f"{sum(active) / len(active):.0%} active")
    if any(one.get("at_idle_power") for one in usage["devices"]):
        texts.append("at idle power")
    if usage.get("input_wait"):
        texts.append(f"waiting for input {usage['input_wait']:.0%}")
    return ", ".join(texts)


def _cost_texts(receipt: Mapping[str, Any]) -> list[str]:
    from dlapp.system.text import human_size

    texts, hours, memory = [], receipt["gpu_hours"], receipt["memory"]
    if hours["granted"]:
        parts = [f"{_hours_text(hours[name])} {name}" for name in ("busy", "idle", "unknown") if hours[name]]
        texts.append(f"{_hours_text(hours['granted'])} GPU-hours ({', '.join(parts)})")
    cpu_hours = receipt["cpu_hours"]
    texts.append("CPU-hours not known" if cpu_hours is None else f"{_hours_text(cpu_hours)} CPU-hours")
    asked = human_size(memory["asked_mib"] * _MIB)
    if memory["peak_mib"] is None:
        texts.append(f"memory {asked}, peak not known")
    else:
        how = "" if memory["is_exact"] else " (sampled)"
        texts.append(f"memory {asked}, peak {human_size(memory['peak_mib'] * _MIB)}{how}")
    if receipt["energy_wh"] is not None:
        wh = receipt["energy_wh"]
        texts.append(f"{wh:.3g} Wh" if wh < 1000 else f"{wh / 1000:.3g} kWh")
    if xids := receipt.get("xids"):
        from dlapp.system.text import xids_text

        texts.append(f"errors of the GPUs: {xids_text(xids)}")
    return texts


def _hours_text(hours: float) -> str:
    return "<0.01" if 0 < hours < 0.01 else f"{hours:.3g}" if hours < 1000 else f"{hours:.0f}"


def _seconds_text(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60}:{minutes % 60:02d} h" if minutes >= 60 else f"{minutes} min"
