"""The use of containers over time, as their tasks report it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from dlapp.am.model.instance import Container, Instance
from dlapp.am.model.state import ApplicationState
from dlapp.am.model.usage_series import UsageSeries
from dlapp.errors import UsageError
from dlapp.values.messages import Report
from dlapp.values.serialization import from_json
from dlapp.values.usage import Usage, UsageHistory, report_period_s

_BUCKETS = 24_000
"""Maximum number of buckets of all containers together: with one GPU each they take about 2 MB."""
_MAX_POINTS, _MIN_POINTS = 120, 12
_ENDED = 24
"""Buckets of a container that has ended, while its index has another one."""
_EARLIER = 3
"""Number of earlier containers of each index whose usage is kept."""
_METRICS = 8
"""Maximum number of metrics of a payload that are kept: the first ones."""


def record_report(state: ApplicationState, container: Container, report: Report) -> None:
    """Record the usage and the cost of a container from a report."""
    if report.receipt is not None:
        container.receipt, container.view = report.receipt, None
    usage, before = report.usage, container.usage
    if usage is None or (before is not None and usage.at_ms <= before.at_ms):
        return
    container.usage, container.view = usage, None
    if container.series is None:
        container.series = _new_series(state, container, usage)
    container.series.add(usage.at_ms, dict(_columns(container, usage, before)))
    container.series.gpus |= {f"gpu{one.index}": one.uuid for one in usage.devices if one.uuid}


def downsample_earlier(instance: Instance) -> None:
    """Keep less of the containers that an index had before."""
    for age, one in enumerate(reversed(instance.earlier)):
        if one.series is not None:
            if age < _EARLIER:
                one.series.downsample(_ENDED)
            else:
                one.series = None


def restore(state: ApplicationState, written: Mapping[str, Any]) -> None:
    """Restore the history that an earlier attempt wrote. Ignore invalid parts: nothing depends on it."""
    with contextlib.suppress(TypeError, ValueError, LookupError):
        state.usage.former_series = {str(one["container_id"]): one for one in written["containers"]}


def as_json(state: ApplicationState) -> dict[str, Any]:
    """Return the use of all containers over time (`dlapp.values.usage.UsageHistory`)."""
    found = []
    for instance in state.instances:
        for one in (*instance.earlier, instance.last):
            if one is None:
                continue
            name = str(one.container_id)
            series = state.usage.former_series.get(name) if one.series is None else one.series.as_json()
            if series is not None:
                found.append({**series, "container_id": name, "index": instance.index, "attempt": one.try_number})
    return {"version": 1, "containers": found}


def of(state: ApplicationState) -> UsageHistory:
    """Return the use of all containers over time, but of those whose earlier attempt wrote something else."""
    with contextlib.suppress(UsageError):
        return from_json(UsageHistory, as_json(state))
    return UsageHistory()


def downsample_all(state: ApplicationState) -> None:
    """Keep half as many buckets of each container."""
    for one in state.containers.by_id.values():
        if one.series is not None:
            one.series.downsample(max(1, len(one.series) // 2))
    state.usage.former_series = {}


def _new_series(state: ApplicationState, container: Container, usage: Usage) -> UsageSeries:
    count = len(state.instances)
    most = max(_MIN_POINTS, min(_MAX_POINTS, _BUCKETS // count) // 2 * 2)
    with contextlib.suppress(TypeError, ValueError, LookupError, OverflowError):
        if (written := state.usage.former_series.get(str(container.container_id))) is not None:
            return UsageSeries.from_json(written, most)
    return UsageSeries(usage.at_ms, int(report_period_s(count) * 1000), most)


def _columns(container: Container, usage: Usage, before: Usage | None) -> Iterator[tuple[str, float | None]]:
    yield "cpu_cores", usage.cpu_cores
    yield "memory_mib", usage.memory_mib
    for name in ("read", "written", "received", "sent"):
        yield f"{name}_bytes_s", _rate(usage, before, f"{name}_bytes")
    if usage.input_wait is not None:
        yield "input_wait", usage.input_wait
    for one in usage.devices:
        gpu = f"gpu{one.index}"
        yield f"{gpu}.utilisation", one.utilisation
        yield f"{gpu}.memory_mib", one.memory_mib
        yield f"{gpu}.power_w", one.power_w
        yield f"{gpu}.temperature_c", one.temperature_c
        if one.activity is not None:
            yield f"{gpu}.activity", one.activity
    if (payload := container.payload) is not None:
        yield "progress", payload.progress
        metrics: Mapping[str, float] = payload.metrics
        for name in list(metrics)[:_METRICS]:
            yield f"metric.{name}", metrics[name]


def _rate(usage: Usage, before: Usage | None, name: str) -> float | None:
    """Return the bytes a second since the report before."""
    now, then = getattr(usage, name), getattr(before, name, None)
    if now is None or then is None or before is None:
        return None
    return float(max(0, now - then) * 1000 / (usage.at_ms - before.at_ms))
