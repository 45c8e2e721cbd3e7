"""Readings of NVML on a GPU, and the faults of one; `dlapp.gpuid.health.inspection` judges."""

from __future__ import annotations

from typing import NamedTuple


class GpuProcess(NamedTuple):
    """A process on a GPU; ``name`` is its program's, empty where it is not to be seen."""

    pid: int
    name: str
    used_mib: int = 0


class ListedProcess(NamedTuple):
    """Process that NVML lists on a GPU, and its memory there; None: not known."""

    pid: int
    used_mib: int | None = None


class Reading(NamedTuple):
    """State of a device as NVML reports it. None: the GPU or the driver does not report it.

    Args:
        error: why it does not answer; then nothing else is known.
        lost: it fell off the bus, or is not there at all.
        compute, graphics: the processes on it.
        reserved_is_apart: ``used_mib`` is without what the driver reserves for itself (NVML's memory v2).
        slowdown_c: the temperature at which the GPU slows itself down.
        ecc_uncorrected: errors since the driver was loaded.
        reset_pending: pages or rows are to be retired by a reset.
        recovery: the action that the driver requires for the GPU first; empty: none.
        utilization: [percent].
        mps_clients: processes that compute on it through an MPS server.
        memory_node: its memory is this NUMA node of the machine, whose kernel uses it, too. Read only where memory is
            in use and no process is listed.
        fabric: why its NVLink fabric cannot be used; empty: it can, or there is none.
        fabric_is_starting: that may be over in a moment.
        notes: what an operator should know of it, and no reason not to lease it: queries that failed and, on request,
            its links and clocks.
        persistent: whether the driver keeps it initialised while nobody uses it; read on request only.
        needs_no_recovery: the driver reports that the GPU can be used at once, whatever happened to it.
    """

    uuid: str
    error: str = ""
    lost: bool = False
    compute: tuple[GpuProcess, ...] | None = ()
    graphics: tuple[GpuProcess, ...] = ()
    used_mib: int | None = None
    reserved_is_apart: bool = True
    temperature_c: int | None = None
    slowdown_c: int | None = None
    ecc_uncorrected: int | None = None
    reset_pending: bool = False
    remap_failed: bool = False
    recovery: str = ""
    prohibited: bool = False
    utilization: int | None = None
    mps_clients: tuple[GpuProcess, ...] = ()
    memory_node: int | None = None
    fabric: str = ""
    fabric_is_starting: bool = False
    notes: tuple[str, ...] = ()
    persistent: bool | None = None
    needs_no_recovery: bool = False

    @property
    def unverified(self) -> str:
        """Return why it cannot be said that nobody uses it; empty: it can."""
        if self.error:
            return ""
        if self.compute is None:
            return "the driver does not list processes"
        return "" if self.memory_node is None else f"its memory is NUMA node {self.memory_node} of the machine"

    @property
    def unreported(self) -> tuple[str, ...]:
        """Return what the GPU or the driver does not report."""
        values = {
            "processes": self.compute,
            "used memory": self.used_mib,
            "temperature": self.temperature_c,
            "slowdown temperature": self.slowdown_c,
            "ECC errors": self.ecc_uncorrected,
            "utilisation": self.utilization,
        }
        return () if self.error else tuple(name for name, value in values.items() if value is None)


class DeviceSample(NamedTuple):
    """Use of a device at one moment. None: the GPU or the driver does not report it.

    Args:
        utilisation: share of the last fraction of a second in which a kernel was executed, 0 to 1.
        used_mib: memory in use.
        power_w, temperature_c: of the whole GPU.
        processes: how many compute on it.
        energy_j: the energy of the whole GPU since the driver was loaded [J]; of a part of a GPU None.
        activity: mean share of busy multiprocessors since the sample before, 0 to 1 (`dlapp.gpuid.health.gpm`).
        listed: the processes that compute on it; empty if ``processes`` is None.
    """

    utilisation: float | None = None
    used_mib: int | None = None
    power_w: float | None = None
    temperature_c: int | None = None
    processes: int | None = None
    energy_j: float | None = None
    activity: float | None = None
    listed: tuple[ListedProcess, ...] = ()


class DeviceFault(NamedTuple):
    """Fault of a GPU.

    Args:
        cause: one word, for programs: ``lost``, ``failing``, ``ecc``, ``needs-reset``, ``needs-reboot``, ``xid``,
            ``hot``, ``fabric``, ``prohibited``, ``foreign-process``, ``memory-held``.
        detail: for people.
        passing: it may be over in a moment: a process that is just ending.
        until: ``needs-reset`` or ``needs-reboot``, if an inspection without findings does not show that it is over.
    """

    cause: str
    detail: str
    passing: bool = False
    until: str = ""
