"""Plan of a submission as lines of text; pure functions, so that every line can be tested exactly."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dlapp.system.text import counted, human_size
from dlapp.tools.display.view import table
from dlapp.tools.display.why import estimate_text

_SHOWN_NAMES = 5
_UNITS = {"memory": "memory (MiB)"}
_UNLIMITED = "no limit (max_runtime is not set)"


def plan_lines(plan: Mapping[str, Any], now_ms: int) -> list[str]:
    """Return what a submission would do and encounter now.

    Args:
        plan: as ``dlapp-launcher --plan --json`` prints it.
    """
    spec, waiting = plan["spec"], plan["waiting"]
    lines = [f"application : {spec['appname']}"]
    for role in spec["roles"]:
        each = role["resources"]
        amounts = f"memory {each['memory_mib']} MiB, vcores {each['vcores']}, gcores {each['gcores']}"
        lines.append(f"role : {role['name']}: {counted(role['instances'], 'containers')}, each with {amounts}")
    if workspace := plan["workspace"]:
        entries = "1 entry" if workspace["entries"] == 1 else f"{workspace['entries']} entries"
        lines.append(f"packed : {human_size(workspace['size_bytes'])} in {entries}, before compression")
        lines += [f"  {human_size(one['size_bytes']):>10}  {one['name']}" for one in workspace["largest"]]
        if names := [*workspace["excluded"], *workspace["left_out"]]:
            more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
            lines.append(f"not packed : {', '.join(names[:_SHOWN_NAMES])}{more}")
    for one in plan["inputs"]:
        name = f" {one['name']}".rstrip()
        if one.get("mode") == "mount":
            lines.append(f"input{name} : mounted, read-only")
            continue
        fed = ""
        if one.get("mode") == "feed":
            of = f" in {one['epochs']} epochs" if one["epochs"] > 1 else ""
            fed = f", fed{of} through a buffer of {human_size(one['buffer_bytes'])} in each container"
        lines.append(f"input{name} : {human_size(one['size_bytes'])} in {counted(one['files'], 'files')}{fed}")
    if sweep := plan.get("sweep"):
        longest_s = sweep["longest_s"]
        most = "no time limit (trial_time is not set)" if longest_s is None else f"at most {_duration(longest_s)}"
        lines.append(f"sweep : {counted(sweep['trials'], 'trials')}, {sweep['concurrency']} at once, {most}")
    head = ("LIMIT", "RESOURCE", "ASKED", "AVAILABLE", "MOST")
    rows = []
    for one in plan["limits"]:
        resource = _UNITS.get(one["resource"], one["resource"])
        rows.append((one["limit"], resource, str(one["asked"]), str(one["available"]), str(one["most"])))
    if rows:
        lines += table(head, rows)
    for role, nodes in plan["nodes"].items():
        of = f" for {role}" if len(plan["nodes"]) > 1 else ""
        shown = ", ".join(nodes[:_SHOWN_NAMES]) + (f" and {len(nodes) - _SHOWN_NAMES} more" if len(nodes) > 5 else "")
        lines.append(f"nodes{of} : {shown or 'none could take a container now'}")
    lines.append(f"now : {waiting['message']} ({waiting['code']})")
    if waiting["change"]:
        lines.append(f"change : {waiting['change']}")
    if waiting["code"] != "starting":
        lines.append(f"start : {estimate_text(plan['estimate'], now_ms)}")
    hours = plan["gpu_hours_most"]
    lines.append(f"GPU-hours : {_UNLIMITED if hours is None else f'{hours:.4g} at most'}")
    return lines


def _duration(seconds: float) -> str:
    """Return a duration as ``45 s``, ``12 min`` or ``3 h 05 min``, rounded up."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes = math.ceil(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
