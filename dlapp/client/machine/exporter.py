"""Prometheus exporter of this host's GPUs: the holder and usage of each.

Each scrape reads the GPU ledger and NVML once. Unknown values are omitted. ``dlapp_node_up`` is 0 if one of the two
does not answer; the exporter continues. If only NVML does not answer, what the ledger knows is served.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dlapp.client.machine.gpu_ledger import short_notes
from dlapp.errors import ConfigError, DlappError, UsageError
from dlapp.system.logs import log

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from dlapp.client.machine.gpu_ledger import GpuLedger

_LABELS = ("host", "gpu", "uuid", "mig")
_MIB = 1 << 20
_STATES = ("free", "unavailable", "held", "quarantined", "absent")
_VALUES = (
    ("utilisation_ratio", "utilization", 0.01, "Share of the time in which a kernel was executed."),
    ("memory_used_bytes", "used_mib", _MIB, "GPU memory in use, by whatever process."),
    ("memory_bytes", "memory_mib", _MIB, "GPU memory that there is."),
    ("temperature_celsius", "temperature_c", 1, "Temperature of the GPU."),
)


class GpuCollector:
    """Collector of prometheus-client; scrapes come from several threads, and read one at a time."""

    def __init__(self, ledger: GpuLedger) -> None:
        self._ledger, self._turn = ledger, threading.Lock()
        self._last_problem = ""

    def collect(self) -> Iterator[Metric]:
        """Yield the current metrics."""
        from prometheus_client.core import GaugeMetricFamily

        host_name = self._ledger.host_name
        devices, problem = [], ""
        with self._turn:
            try:
                for view in self._ledger.hosts(host_name):
                    devices, problem = view["devices"], view["error"]
            except (DlappError, OSError) as error:
                problem = str(error)
            if problem != self._last_problem:
                self._last_problem = problem
                log.warning(problem) if problem else log.info("the GPU ledger and NVML respond again")
        up = GaugeMetricFamily("dlapp_node_up", "Whether the GPU ledger and NVML answer.", labels=["host"])
        up.add_metric([host_name], 0 if problem else 1)
        yield up
        # An index may be another GPU's after a reboot, a uuid not.
        info = GaugeMetricFamily(
            "dlapp_node_gpu_info", "1; the labels say which GPU it is.", labels=[*_LABELS, "model"]
        )
        state = GaugeMetricFamily("dlapp_node_gpu_state", "1 for the state that it is in.", labels=[*_LABELS, "state"])
        lease = GaugeMetricFamily(
            "dlapp_node_gpu_lease",
            "1; the labels say who holds it.",
            labels=[*_LABELS, "app", "user", "role", "index", "container"],
        )
        note = GaugeMetricFamily(
            "dlapp_node_gpu_note", "1; the label says what makes it slow and is no fault.", labels=[*_LABELS, "note"]
        )
        for one in devices:
            where = _labels(host_name, one)
            info.add_metric([*where, one["name"]], 1)
            for name in _STATES:
                state.add_metric([*where, name], int(one["state"] == name))
            if one["application"]:
                who = [one[name] for name in ("application", "user", "role", "container_index", "container")]
                lease.add_metric([*where, *who], 1)
            for text in short_notes(one):
                note.add_metric([*where, text], 1)
        yield from (info, state, lease, note, _xids(host_name, devices))
        for name, field, unit, text in _VALUES:
            family = GaugeMetricFamily(f"dlapp_node_gpu_{name}", text, labels=_LABELS)
            for one in devices:
                if one[field] is not None and (one[field] or field != "memory_mib"):  # 0: not known without NVML
                    family.add_metric(_labels(host_name, one), one[field] * unit)
            yield family


def _xids(host_name: str, devices: Sequence[Mapping[str, Any]]) -> Metric:
    from prometheus_client.core import CounterMetricFamily

    text = "Xid errors that tasks have seen on it, since the boot of the host."
    family = CounterMetricFamily("dlapp_node_gpu_xid", text, labels=[*_LABELS, "xid"])
    for one in devices:
        for code, seen in one.get("xids", {}).items():
            family.add_metric([*_labels(host_name, one), code], seen["times"])
    return family


def _labels(host_name: str, device: Mapping[str, Any]) -> list[str]:
    # The name of a MIG device ends with its profile: ``NVIDIA A100-SXM4-40GB MIG 1g.5gb``.
    return [host_name, gpu_of(device), device["uuid"], device["name"].partition(" MIG ")[2]]


def gpu_of(device: Mapping[str, Any]) -> str:
    """Return the label of a GPU: its index, with the number of its MIG device."""
    return str(device["label"]).removeprefix("gpu")


def serve(ledger: GpuLedger, listen: str) -> None:
    """Serve the metrics of this host until the process is ended.

    Args:
        ledger: the ledger of the GPUs.
        listen: ``host:port``.

    Raises:
        ConfigError: prometheus-client is not installed.
        UsageError: it cannot listen there.
    """
    try:
        from prometheus_client import CollectorRegistry, make_wsgi_app
    except ModuleNotFoundError as error:
        raise ConfigError("prometheus-client is not installed: pip install 'dlapp[metrics]'") from error
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"{listen} is not host:port")
    registry = CollectorRegistry()
    registry.register(GpuCollector(ledger))
    from dlapp.client.machine.scrape_server import ScrapeServer

    try:
        server = ScrapeServer(host.strip("[]"), int(port))
    except OSError as error:
        raise UsageError(f"{listen}: {error.strerror}") from error
    with server:
        server.set_app(make_wsgi_app(registry))
        log.info(f"metrics of {ledger.host_name} at http://{host}:{server.server_port}/metrics")
        server.serve_forever()
