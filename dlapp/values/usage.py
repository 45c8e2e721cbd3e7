"""Resource usage of a payload while it runs, and the receipt of a run.

None always means not known; it never means idle.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dlapp.errors import SpecError
from dlapp.value import Value, field, fields
from dlapp.values.ids import ContainerId

USAGE_EVERY_S = 10.0
"""Minimum interval between two usage reports of a container."""
_REPORTS_PER_S = 100
"""Number of usage reports that an ApplicationMaster accepts per second; one takes about 50 microseconds."""
MAX_USAGE_BYTES = 32 << 20
"""Size limit of the usage history file: with 200 containers of one GPU each it has about 2 MB."""
USAGE_COLUMNS_WITH_RANGE = frozenset(("cpu_cores", "memory_mib", "utilisation"))
"""Columns of a series that also have the minimum and maximum of a bucket; for a GPU's column its last part."""


class DeviceUsage(Value, kw_only=True):
    """Usage of one GPU, from NVML.

    Args:
        index: index of the device, in NVML's PCI order.
        utilisation: share of the time in which a kernel was running, 0 to 1.
        memory_mib: memory in use, by any process.
        power_w: power of the whole GPU [W].
        temperature_c: temperature of the whole GPU [°C].
        processes: number of processes that compute on it.
        activity: share of its multiprocessors that were busy, 0 to 1, the mean since the previous report; GPUs report
            it from Hopper on.
        at_idle_power: its activity is not known, and it is utilised all the time with the power of an idle GPU: it may
            hardly compute.
        uuid: of the device, which keeps it for life; an index may be another GPU's after a reboot.
        mig: profile of a MIG device, such as ``1g.10gb``; empty: a whole GPU.
    """

    index: int
    utilisation: float | None = None
    memory_mib: int | None = None
    power_w: float | None = None
    temperature_c: int | None = None
    processes: int | None = None
    activity: float | None = None
    at_idle_power: bool = False
    uuid: str = ""
    mig: str = ""


class Usage(Value, kw_only=True):
    """Usage of one container's payload.

    Args:
        at_ms: time of the measurement [ms since 1970].
        cpu_cores, and ``utilisation`` of devices: mean since the previous report.
        memory_mib: memory in use now, without what the kernel can reclaim at any time.
        read_bytes, written_bytes: from and to disks, since the payload's start.
        received_bytes, sent_bytes: by the container's own network, since the payload's start; None on the host's.
        devices: by index.
        input_wait: share of the time since the previous report in which the payload waited for a feed; None: no feed.
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

    def busiest_gpu(self, gpus: int, *, by_activity: bool = False) -> float | None:
        """Return the highest utilisation of a container's GPUs; None: not known for one of them.

        A MIG device has no utilisation: its activity counts.

        Args:
            gpus: number of GPUs of the container.
            by_activity: count the activity of all GPUs that report it. A kernel that only waits for another rank keeps
                its GPU utilised, and hardly active.
        """
        found = []
        for one in self.devices:
            first, second = (one.activity, one.utilisation) if by_activity else (one.utilisation, one.activity)
            found.append(second if first is None else first)
        return None if len(found) != gpus or None in found else max(filter(None, found), default=0.0)


class GpuHours(Value, kw_only=True):
    """GPU-hours: ``busy``, ``idle`` and ``unknown`` together are ``granted``.

    Args:
        granted: from the lease of the devices to their return.
        busy: weighted by utilisation: one hour at 0.25 is a quarter.
        idle: the rest of the time with known utilisation, and the time without a running payload.
        unknown: time without data from NVML.
    """

    granted: float = 0.0
    busy: float = 0.0
    idle: float = 0.0
    unknown: float = 0.0


class MemoryReceipt(Value, kw_only=True):
    """Memory of a container: the request, and the peak usage.

    Args:
        is_exact: the peak is the kernel's, of its cgroup including cached files; else it is the largest of some
            samples.
    """

    asked_mib: int = 0
    peak_mib: int | None = None
    is_exact: bool = False


MAX_FOREIGN_PROCESSES = 8
"""Number of foreign processes in a receipt: an application may have thousands of containers."""


class GpuMemory(Value, kw_only=True):
    """Memory of one GPU, from NVML: what there is, and the most that the payload has used, by samples.

    Args:
        index, uuid, mig: as in `DeviceUsage`.
    """

    index: int
    uuid: str = ""
    mig: str = ""
    memory_mib: int = 0
    peak_mib: int | None = None


class ForeignProcess(Value, kw_only=True):
    """Process on a GPU that a container holds, which is neither its payload's nor allowed by the host
    (``gpuid.allowed_processes``).

    Args:
        gpu: index of the GPU; with the number of the MIG device: ``0:1``.
        uuid: of the device.
        pid, host: of the process; the host as in `dlapp.values.messages.Hello`.
        program, user: their names; empty: hidden.
        peak_mib: the most memory that it had on the GPU, by samples; None: not reported.
    """

    gpu: str
    uuid: str
    pid: int
    host: str = ""
    program: str = ""
    user: str = ""
    peak_mib: int | None = None


class ByteCounts(Value, kw_only=True):
    """Transferred bytes.

    Args:
        input, output: fetched and stored by dlapp.
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
        memory: for an application, that of the container with the largest usage.
        gpus_asked, gpus_used: number of GPUs of a container, and how many of them were ever busy; for an application
            the largest number.
        seconds: phase (`dlapp.values.messages.Phase`) -> its duration, summed over all containers.
        energy_wh: energy of the GPUs while the payload ran, by their own counters [Wh].
        xids: code -> number of Xid errors of the GPUs while the payload ran.
        gpu_memory: of each GPU; for an application those of the container with the largest peak.
        foreign_processes: those with the most memory, at most `MAX_FOREIGN_PROCESSES`.
        suggestion: what to request next time; empty: no suggestion.
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
    xids: dict[str, int] = field(default_factory=dict)
    gpu_memory: tuple[GpuMemory, ...] = ()
    foreign_processes: tuple[ForeignProcess, ...] = ()

    @property
    def gpu_memory_peak_mib(self) -> int | None:
        """Return the largest peak of a GPU's memory; None: not known for one of them, or no GPUs."""
        peaks = [one.peak_mib for one in self.gpu_memory]
        return None if not peaks or None in peaks else max(filter(None, peaks), default=0)


class ContainerSeries(Value, kw_only=True):
    """Usage of one container over time, in buckets of one width.

    Args:
        index, attempt: as in `dlapp.values.report.ContainerView`.
        start_ms: start of the first bucket [ms since 1970].
        step_ms: width of a bucket [ms].
        columns: name -> ``mean``, and of `USAGE_COLUMNS_WITH_RANGE` also ``min`` and ``max``: a number for each bucket;
            None: not known. Those of a GPU begin with ``gpu<index>.``, metrics of the payload with ``metric.``.
        gpus: ``gpu<index>`` -> uuid of that GPU. An index may be another GPU's after a reboot of the host.
    """

    container_id: ContainerId
    index: int
    attempt: int
    start_ms: int
    step_ms: int
    columns: dict[str, dict[str, Any]] = field(default_factory=dict)
    gpus: dict[str, str] = field(default_factory=dict)
    unknown: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.step_ms <= 0:
            raise SpecError("step_ms", "is not above 0")
        for name, column in self.columns.items():
            for values in column.values():
                # A file has hundreds of thousands: check all at once, not each.
                if not isinstance(values, list) or not set(map(type, values)) <= {int, float, type(None)}:
                    raise SpecError(f"columns.{name}", "is not an array of numbers")


class UsageHistory(Value, kw_only=True):
    """Usage of an application's containers over time, including those of earlier tries."""

    version: int = 1
    containers: tuple[ContainerSeries, ...] = ()
    unknown: Mapping[str, Any] = field(default_factory=dict)


def report_period_s(containers: int) -> float:
    """Return the usage report interval of each container, by the number of containers [s]."""
    return max(USAGE_EVERY_S, containers / _REPORTS_PER_S)


def total_receipt(receipts: Iterable[Receipt]) -> Receipt | None:
    """Return the total cost of several containers, without a suggestion; None: there are none.

    A value not known for one container is not known for the total, except the energy of a container without GPUs.
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
    moved: dict[str, Any] = {name: _sum([getattr(one, name) for one in counts]) for name in fields(ByteCounts)}
    return Receipt(
        gpu_hours=GpuHours(**{name: round(sum(getattr(one, name) for one in hours), 6) for name in fields(GpuHours)}),
        gpus_asked=max((one.gpus_asked for one in with_gpus), default=0),
        gpus_used=None if None in used else max(filter(None, used), default=0),
        cpu_hours=None if cpu_hours is None else round(cpu_hours, 6),
        memory=max((one.memory for one in found), key=lambda one: (one.peak_mib or 0, one.asked_mib)),
        seconds={phase: round(passed_s, 3) for phase, passed_s in seconds.items()},
        bytes=ByteCounts(**moved),
        energy_wh=round(energy_wh, 6) if with_gpus and energy_wh is not None else None,
        xids=sum_counts(one.xids for one in with_gpus),
        gpu_memory=max((one.gpu_memory for one in with_gpus), key=_largest_peak, default=()),
        foreign_processes=largest_foreign(process for one in with_gpus for process in one.foreign_processes),
    )


def sum_counts(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the sum of counts by their names."""
    found: dict[str, int] = {}
    for name, number in (item for one in counts for item in one.items()):
        found[name] = found.get(name, 0) + number
    return found


def largest_foreign(processes: Iterable[ForeignProcess]) -> tuple[ForeignProcess, ...]:
    """Return the foreign processes that a receipt has."""
    return tuple(sorted(processes, key=lambda one: -(one.peak_mib or 0))[:MAX_FOREIGN_PROCESSES])


def _largest_peak(gpus: tuple[GpuMemory, ...]) -> int:
    return max((-1 if one.peak_mib is None else one.peak_mib for one in gpus), default=-2)


def _sum(amounts: list[float | None]) -> float | None:
    return None if None in amounts else sum(filter(None, amounts))
