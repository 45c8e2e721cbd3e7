"""Use of resources by a payload while it runs, and the receipt of a run.

None means everywhere that it is not known. It never means that something was idle.
"""

from __future__ import annotations

from dlapp.value import Value, field


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
    """

    at_ms: int
    cpu_cores: float | None = None
    memory_mib: int | None = None
    read_bytes: int | None = None
    written_bytes: int | None = None
    received_bytes: int | None = None
    sent_bytes: int | None = None
    devices: tuple[DeviceUsage, ...] = ()


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
        seconds: phase (`dlapp.messages.Phase`) -> how long it lasted, of all containers together.
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
