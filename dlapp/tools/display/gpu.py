"""The ledger's view as lines of text; pure functions. The form of a view is in `dlapp.client.machine.gpu_ledger`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dlapp.client.machine.gpu_ledger import short_notes
from dlapp.system.text import counted, short_duration, xids_text

View = Mapping[str, Any]
_RECENT_MS = 24 * 3600 * 1000
"""Age up to which Xid errors are shown: an operator looks once a day [ms]."""


def host_lines(host: View, now_ms: int) -> list[str]:
    """Return a line for each GPU of a host, similar to gpustat."""
    if host["error"] and not host["devices"]:
        return []
    here = host["here"]
    width = max((len(one["label"]) for one in host["devices"]), default=0)
    names = max((len(one["name"]) for one in host["devices"]), default=0)
    lines = [
        f"{host['host']}  {one['label']:{width}}  {one['name']:{names}} | {_load(one, here)} | {_who(one, now_ms)}"
        for one in host["devices"]
    ]
    if host["forgotten_ms"]:
        lines = [f"{line} | forgotten {_span(now_ms - host['forgotten_ms'])} ago" for line in lines]
    return lines or [f"{host['host']}  no GPU here"]


def _load(one: View, here: bool) -> str:
    memory = f"{one['memory_mib'] or '?':>6} MiB"
    if not here:
        return memory
    used = "     ?" if one["used_mib"] is None else f"{one['used_mib']:6d}"
    temperature = " ?" if one["temperature_c"] is None else f"{one['temperature_c']:2d}"
    busy = "  ?" if one["utilization"] is None else f"{one['utilization']:3d}"
    return f"{temperature}°C, {busy} % | {used} / {memory}"


def _who(one: View, now_ms: int) -> str:
    said = []
    if one["application"] or one["state"] == "held":
        about = [one["user"], _span(now_ms - one["since_ms"]) if one["since_ms"] else ""]
        if one["application"] and not one["container"]:
            about.append("reserved")
        about = [text for text in about if text]
        if one["application"] or about or not one["doubt"]:
            said.append((one["application"] or "an unknown holder") + (f" ({', '.join(about)})" if about else ""))
        if one["doubt"]:
            said.append(one["doubt"])
    if one["quarantine"] is not None:
        said.append(quarantine_text(one["quarantine"], now_ms))
    if one["problem"]:
        said.append(f"unavailable ({one['problem']})")
    if not one["present"]:
        said.append("is not there now")
    said = said or ["free"]
    if one["unverified"] and one["state"] == "free":
        said.append(f"unverified ({one['unverified']})")
    if one["notes"]:
        said += short_notes(one)
    return ", ".join(filter(None, (*said, _recent_xids(one.get("xids", {}), now_ms))))


def quarantine_text(one: View, now_ms: int) -> str:
    """Return the state of a device: ``quarantined (why, since when, how often, when it is inspected again)``."""
    parts = [one.get("detail") or one["cause"]]
    if one.get("by") and one["by"] not in parts[0]:
        parts.append(f"by {one['by']}")
    if one.get("since_ms"):
        parts.append(f"for {_span(now_ms - one['since_ms'])}")
    if one.get("count", 1) > 1:
        parts.append(f"{one['count']} times so far")
    if one.get("probe_at_ms"):
        left_ms = one["probe_at_ms"] - now_ms
        parts.append(f"inspected again in {_span(left_ms)}" if left_ms > 0 else "inspected again at the next request")
    return f"quarantined ({', '.join(parts)})"


def _recent_xids(xids: Mapping[str, View], now_ms: int) -> str:
    recent = {code: one for code, one in xids.items() if now_ms - one["last_ms"] < _RECENT_MS}
    if not recent:
        return ""
    last_ms = max(one["last_ms"] for one in recent.values())
    text = xids_text({code: one["times"] for code, one in recent.items()})
    return f"{text}, last {_span(now_ms - last_ms)} ago"


def _span(ms: int) -> str:
    return short_duration(max(0, ms) // 1000)


def collect_lines(leases: list[dict[str, Any]], here: str) -> list[str]:
    """Return the lines of ``gc``, one for each lease."""
    lines = []
    for one in leases:
        what = f"{here}: {', '.join(one['devices'])} of {one['container'] or one['application'] or 'an unknown holder'}"
        lines.append(f"{what}: freed" if one["state"] == "gone" else f"{what}: kept, {one['why'] or one['state']}")
    return lines or [f"{here}: nothing is leased"]


def why_lines(answer: View, count: int) -> list[str]:
    """Return the lines of ``why N``."""
    if answer["can"]:
        return [f"{answer['host']}: yes, {', '.join(answer['devices'])}"]
    more = answer["hosts"] - len(answer["lines"])
    lines = [*answer["lines"], *([f"and {more} more hosts with as few or fewer free"] if more > 0 else [])]
    return lines or [f"asked for {counted(count, 'gcores')}: the ledger knows no host with a GPU"]
