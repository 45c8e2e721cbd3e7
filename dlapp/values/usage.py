"""Use of resources by a payload while it runs, and the receipt of a run.

None means everywhere that it is not known. It never means that something was idle.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dlapp.errors import SpecError
from dlapp.value import Value, field
from dlapp.values.ids import ContainerId

USAGE_EVERY_S = 10.0
"""The least time between two reports of a container with its use."""
_REPORTS_PER_S = 100
"""As many with the use of a container an ApplicationMaster takes in each second; one is some 50 microseconds."""
MAX_USAGE_BYTES = 32 << 20
"""The largest file with the use of containers over time: of 200 containers with a GPU each it has some 2 MB."""
USAGE_COLUMNS_WITH_RANGE = frozenset(("cpu_cores", "memory_mib", "utilisation"))
"""Names of columns of a series that also have the least and the most of a bucket; of a GPU's the last part."""


class DeviceUsage(Value, kw_only=True):
    """Use of one GPU, as NVML tells.

    Args:
        index: of the device, in NVML's PCI order.
        utilisation: share of the time in which a kernel was executed, 0 to 1.
        memory_mib: in use, by whatever process.
        power_w: of the whole GPU [W].
        temperature_c: of the whole GPU [°C].
        processes: how many compute on it.
    """

    index: int
    utilisation: float | None = None
    memory_mib: int | None = None
    power_w: float | None = None
    temperature_c: int | None = None
    processes: int | None = None


class Usage(Value, kw_only=True):
    """Use of one container's payload.

    Args:
        at_ms: when it was measured [ms since 1970].
        cpu_cores, and ``utilisation`` of devices: the mean since the report before.
        memory_mib: in use now, without what the kernel can drop at any time.
        read_bytes, written_bytes: from and to disks, since the payload's start.
        received_bytes, sent_bytes: by the container's own network, since the payload's start; None on the host's.
        devices: by index.
        input_wait: share of the time since the report before in which the payload waited for a feed; None: it reads
            none.
    """

    at_ms: int
    cpu_cores: float | None = None
    memory_mib: int | None = None
    read_bytes: int | None = None
    written_bytes: int | None = None
    received_bytes: int | None = None
    sent_bytes: int | None = None
    devices: tuple[DeviceUsage, ...] = ()
    input_wait: float | None = None

    def busiest_gpu(self, gpus: int) -> float | None:
        """Return the highest utilisation of a container's GPUs; None: that of one is not known.

        Args:
            gpus: how many the container has.
        """
        found = [one.utilisation for one in self.devices]
        return None if len(found) != gpus or None in found else max(filter(None, found), default=0.0)


class GpuHours(Value, kw_only=True):
    """GPU-hours: ``busy``, ``idle`` and ``unknown`` together are ``granted``.

    Args:
        granted: from the lease of the devices to their return.
        busy: by utilisation: one hour at 0.25 is a quarter.
        idle: the rest of the time of which the utilisation is known. No payload has run: idle, too.
        unknown: NVML did not tell.
    """

    granted: float = 0.0
    busy: float = 0.0
    idle: float = 0.0
    unknown: float = 0.0


class MemoryReceipt(Value, kw_only=True):
    """Memory of a container: what it asked for, and the most that it used.

    Args:
        is_exact: the kernel kept the peak of its cgroup, with the files that it caches; else it is the largest of
            some samples.
    """

    asked_mib: int = 0
    peak_mib: int | None = None
    is_exact: bool = False


class ByteCounts(Value, kw_only=True):
    """Bytes that were moved.

    Args:
        input, output: what dlapp fetched and stored.
        read, written, received, sent: as in `Usage`, by the payload.
    """

    input: int = 0
    output: int = 0
    read: int | None = None
    written: int | None = None
    received: int | None = None
    sent: int | None = None


class Receipt(Value, kw_only=True):
    """Cost of a run: of one container, or of an application with all its tries.

    Args:
        memory: of an application, that of the container that used the most.
        gpus_asked, gpus_used: how many GPUs a container had, and how many of them were ever busy; of an application
            the largest number.
        seconds: phase (`dlapp.values.messages.Phase`) -> how long it lasted, of all containers together.
        energy_wh: of the GPUs while the payload ran, by their own counters [Wh].
        suggestion: what to ask for next time; empty: there is nothing to say.
    """

    gpu_hours: GpuHours = GpuHours()
    gpus_asked: int = 0
    gpus_used: int | None = None
    cpu_hours: float | None = None
    memory: MemoryReceipt = MemoryReceipt()
    seconds: dict[str, float] = field(default_factory=dict)
    bytes: ByteCounts = ByteCounts()
    energy_wh: float | None = None
    suggestion: str = ""


class ContainerSeries(Value, kw_only=True):
    """Use of one container over time, in buckets of one width.

    Args:
        index, attempt: as in `dlapp.values.report.ContainerView`.
        start_ms: the begin of the first bucket [ms since 1970].
        step_ms: width of a bucket [ms].
        columns: name -> ``mean``, and of `USAGE_COLUMNS_WITH_RANGE` also ``min`` and ``max``: a number for each bucket;
            None: not known. Those of a GPU begin with ``gpu<index>.``, metrics of the payload with ``metric.``.
    """

    container_id: ContainerId
    index: int
    attempt: int
    start_ms: int
    step_ms: int
    columns: dict[str, dict[str, Any]] = field(default_factory=dict)
    unknown: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.step_ms <= 0:
            raise SpecError("step_ms", "is not above 0")
        for name, column in self.columns.items():
            for values in column.values():
                # A file has hundreds of thousands: one look at all, not one at each.
                if not isinstance(values, list) or not set(map(type, values)) <= {int, float, type(None)}:
                    raise SpecError(f"columns.{name}", "is not an array of numbers")


class UsageHistory(Value, kw_only=True):
    """Use of the containers of an application over time, those of earlier tries included."""

    version: int = 1
    containers: tuple[ContainerSeries, ...] = ()
    unknown: Mapping[str, Any] = field(default_factory=dict)


def report_period_s(containers: int) -> float:
    """Return how often each of so many containers reports its use [s]."""
    return max(USAGE_EVERY_S, containers / _REPORTS_PER_S)


def total_receipt(receipts: Iterable[Receipt]) -> Receipt | None:
    """Return what several containers have cost together, without a suggestion; None: there are none.

    What is not known of one is not known of all, but the energy of one without GPUs.
    """
    found = list(receipts)
    if not found:
        return None
    with_gpus = [one for one in found if one.gpus_asked]
    hours, counts, seconds = [one.gpu_hours for one in with_gpus], [one.bytes for one in found], dict[str, float]()
    for one in found:
        for phase, passed_s in one.seconds.items():
            seconds[phase] = seconds.get(phase, 0.0) + passed_s
    energy_wh = _sum([one.energy_wh for one in with_gpus])
    cpu_hours = _sum([one.cpu_hours for one in found])
    used = [one.gpus_used for one in with_gpus]
    return Receipt(
        gpu_hours=GpuHours(
            granted=round(sum(one.granted for one in hours), 6),
            busy=round(sum(one.busy for one in hours), 6),
            idle=round(sum(one.idle for one in hours), 6),
            unknown=round(sum(one.unknown for one in hours), 6),
        ),
        gpus_asked=max((one.gpus_asked for one in with_gpus), default=0),
        gpus_used=None if None in used else max(filter(None, used), default=0),
        cpu_hours=None if cpu_hours is None else round(cpu_hours, 6),
        memory=max((one.memory for one in found), key=lambda one: (one.peak_mib or 0, one.asked_mib)),
        seconds={phase: round(passed_s, 3) for phase, passed_s in seconds.items()},
        bytes=ByteCounts(
            input=sum(one.input for one in counts),
            output=sum(one.output for one in counts),
            read=_whole(_sum([one.read for one in counts])),
            written=_whole(_sum([one.written for one in counts])),
            received=_whole(_sum([one.received for one in counts])),
            sent=_whole(_sum([one.sent for one in counts])),
        ),
        energy_wh=round(energy_wh, 6) if with_gpus and energy_wh is not None else None,
    )


def _sum(amounts: list[float | None]) -> float | None:
    return None if None in amounts else sum(filter(None, amounts))


def _whole(amount: float | None) -> int | None:
    return None if amount is None else int(amount)
