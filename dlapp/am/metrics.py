"""Metrics of an application in Prometheus' text format.

A few lines of text are written here; the library prometheus-client would travel to every node for them.

Source: prometheus.io/docs/instrumenting/exposition_formats, "Text-based format", version 0.0.4.
"""

from __future__ import annotations

from collections.abc import Iterator

from dlapp.values.report import ApplicationView, ContainerView

_MIB = 1 << 20
MAX_NAMES = 50
"""Maximum number of metrics of one payload; others are omitted."""

Sample = tuple[dict[str, str], float]

_HELP = {
    "dlapp_application_info": ("gauge", "1; the labels say which application it is."),
    "dlapp_application_containers": ("gauge", "Number of containers that the application is made of."),
    "dlapp_application_start_time_seconds": ("gauge", "When the application began [s since 1970]."),
    "dlapp_container_info": ("gauge", "1; the labels say in which phase the container is."),
    "dlapp_container_running": ("gauge", "Whether the program runs."),
    "dlapp_container_tries": ("gauge", "How often the index was started, this time included."),
    "dlapp_container_progress_ratio": ("gauge", "What the program reports: the share that is done."),
    "dlapp_container_step": ("gauge", "What the program reports: its step."),
    "dlapp_container_reported": ("gauge", "What the program reports: its metrics, by name."),
    "dlapp_container_cpu_cores": ("gauge", "Cores in use, the mean since the report before."),
    "dlapp_container_input_wait_ratio": ("gauge", "Share of the time in which the program waited for a feed."),
    "dlapp_container_memory_bytes": ("gauge", "Memory in use."),
    "dlapp_container_read_bytes_total": ("counter", "Bytes read from disks."),
    "dlapp_container_written_bytes_total": ("counter", "Bytes written to disks."),
    "dlapp_container_received_bytes_total": ("counter", "Bytes received by the container's own network."),
    "dlapp_container_sent_bytes_total": ("counter", "Bytes sent by the container's own network."),
    "dlapp_gpu_utilisation_ratio": ("gauge", "Share of the time in which a kernel was executed."),
    "dlapp_gpu_activity_ratio": ("gauge", "Share of the multiprocessors that were busy."),
    "dlapp_gpu_memory_used_bytes": ("gauge", "GPU memory in use, by whatever process."),
    "dlapp_gpu_power_watts": ("gauge", "Power of the whole GPU."),
    "dlapp_gpu_temperature_celsius": ("gauge", "Temperature of the whole GPU."),
}


def metrics_text(view: ApplicationView) -> str:
    """Return the metrics of an application. What is not known has no line."""
    lines: dict[str, list[str]] = {name: [] for name in _HELP}
    for name, (labels, value) in _samples(view):
        text = ",".join(f'{key}="{_escaped(one)}"' for key, one in labels.items())
        lines[name].append(f"{name}{{{text}}} {value!r}")
    parts = []
    for name, found in lines.items():
        if found:
            kind, help_text = _HELP[name]
            parts += [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}", *found]
    return "\n".join(parts) + "\n"


def _escaped(text: str) -> str:
    text = text.encode("utf-8", "replace").decode()  # half of a surrogate pair is not UTF-8
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _samples(view: ApplicationView) -> Iterator[tuple[str, Sample]]:
    labels = {
        "app": str(view.application_id),
        "user": view.username,
        "queue": view.queue,
        "project": view.project,
    }
    yield "dlapp_application_info", ({**labels, "name": view.appname, "state": view.state.value}, 1)
    yield "dlapp_application_containers", (labels, view.total_containers)
    if view.started_ms is not None:
        yield "dlapp_application_start_time_seconds", (labels, view.started_ms / 1000)
    for container in view.containers:
        own = {**labels, "role": container.role, "index": str(container.index), "host": container.host}
        yield "dlapp_container_info", ({**own, "phase": container.phase.value}, 1)
        yield from _of_container(container, own)


def _of_container(container: ContainerView, labels: dict[str, str]) -> Iterator[tuple[str, Sample]]:
    is_running = container.phase.value == "running"
    values: dict[str, float | None] = {
        "running": int(is_running),
        "tries": container.attempt,
        "progress_ratio": container.progress if is_running else None,
        "step": container.step,
    }
    usage = container.usage if is_running else None
    if usage is not None:
        values |= {
            "cpu_cores": usage.cpu_cores,
            "memory_bytes": None if usage.memory_mib is None else usage.memory_mib * _MIB,
            "read_bytes_total": usage.read_bytes,
            "written_bytes_total": usage.written_bytes,
            "received_bytes_total": usage.received_bytes,
            "sent_bytes_total": usage.sent_bytes,
            "input_wait_ratio": usage.input_wait,
        }
    for name, value in values.items():
        if value is not None:
            yield f"dlapp_container_{name}", (labels, value)
    for name, value in sorted(container.metrics.items())[:MAX_NAMES]:
        yield "dlapp_container_reported", ({**labels, "name": name}, value)
    for device in usage.devices if usage is not None else ():
        found = {
            "utilisation_ratio": device.utilisation,
            "activity_ratio": device.activity,
            "memory_used_bytes": None if device.memory_mib is None else device.memory_mib * _MIB,
            "power_watts": device.power_w,
            "temperature_celsius": device.temperature_c,
        }
        # An index may be another GPU's after a reboot, a uuid not.
        which = {"gpu": str(device.index), "uuid": device.uuid} | ({"mig": device.mig} if device.mig else {})
        for name, one in found.items():
            if one is not None:
                yield f"dlapp_gpu_{name}", ({**labels, **which}, one)
