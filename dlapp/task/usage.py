"""Resource usage of a task's container: phases, the payload's counters, the GPUs; and the receipt.

The task samples while the payload runs (`UsageMeter.sample`); reports contain the last sample. A payload in Docker is
measured by its cgroup, a plain one by all processes below its guardian. That costs some microseconds for each process
of the host, so samples are rarer on a host with very many.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from dlapp.system.processes.resource_counters import NOTHING_KNOWN, ResourceCounters
from dlapp.value import NamedTuple
from dlapp.values.messages import Phase
from dlapp.values.usage import (
    ByteCounts,
    DeviceUsage,
    ForeignProcess,
    GpuHours,
    GpuMemory,
    MemoryReceipt,
    Receipt,
    Usage,
    largest_foreign,
    sum_counts,
)

if TYPE_CHECKING:
    from dlapp.gpuid.devices import Device
    from dlapp.gpuid.health.watch import DeviceUse

_FIRST_S, SAMPLE_EVERY_S = 0.25, 5.0
"""Pauses before a sample, doubled from the first to the second. A shorter payload is not sampled: its guardian reports
what it used."""
_MAX_LOAD = 0.003
"""Maximum share of a core for samples."""
_MIB = 20


class Measured(NamedTuple):
    """Resource usage in a report; ``usage`` is None while no payload runs."""

    usage: Usage | None
    receipt: Receipt


class _UsageOfRun(NamedTuple):
    """Payload of one generation: its counters, and the highest memory sample."""

    counters: ResourceCounters = NOTHING_KNOWN
    sampled_peak: int | None = None

    def sampled(self, counters: ResourceCounters) -> _UsageOfRun:
        # For peaks between two samples of a short payload, the kernel reports its largest process.
        each = (self.sampled_peak, counters.memory_bytes, counters.largest_process_bytes)
        seen = [one for one in each if one is not None]
        return _UsageOfRun(counters, max(seen, default=None))

    @property
    def peak_bytes(self) -> int | None:
        exact = self.counters.peak_bytes
        return self.sampled_peak if exact is None else exact


class _Before(NamedTuple):
    """State at the previous report."""

    at_s: float = 0.0
    cpu_s: float | None = None
    devices: Mapping[str, DeviceUse] = {}


class UsageMeter:
    """The meter of one container.

    Args:
        memory_mib: the requested memory of the container.
        clock: the time [s, monotonic].
        now_ms: the wall clock [ms since 1970].
    """

    def __init__(
        self,
        memory_mib: int,
        clock: Callable[[], float] = time.monotonic,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._memory_mib, self._clock, self._now_ms = memory_mib, clock, now_ms
        self._phase, self._phase_since_s = Phase.STARTING, clock()
        self._seconds: dict[str, float] = {}
        self._devices: tuple[Device, ...] = ()
        self._device_use: Callable[[], Mapping[str, DeviceUse]] = dict
        self._leased_s: float | None = None
        self._host = ""
        self._returned_s: float | None = None
        self._read: Callable[[], ResourceCounters] | None = None
        self._runs: list[_UsageOfRun] = []
        self._due_s, self._pause_s = 0.0, _FIRST_S
        self._before = _Before()
        self._input_wait: Callable[[], float | None] = lambda: None
        self.input_bytes = self.output_bytes = 0

    def set_phase(self, phase: Phase) -> None:
        """Record the current phase of the task."""
        if phase is not self._phase:
            self._seconds = self._phase_seconds()
            self._phase, self._phase_since_s = phase, self._clock()

    def begin_lease(
        self, devices: tuple[Device, ...], use: Callable[[], Mapping[str, DeviceUse]], host: str = ""
    ) -> None:
        """Record that devices of a host are leased; ``use`` returns the usage of each while payloads ran, by uuid."""
        self._devices, self._device_use, self._leased_s = devices, use, self._clock()
        self._host = host

    def end_lease(self) -> None:
        """Record that the devices are released. Idempotent."""
        if self._leased_s is not None and self._returned_s is None:
            use = dict(self._device_use())
            self._returned_s, self._device_use = self._clock(), lambda: use

    def begin_run(
        self, read: Callable[[], ResourceCounters], input_wait: Callable[[], float | None] = lambda: None
    ) -> None:
        """Record that a payload has started.

        Args:
            read: returns its counters.
            input_wait: returns the share of the time since its last call in which the payload waited for a feed.
        """
        self._input_wait = input_wait
        self._read, self._due_s, self._pause_s = read, self._clock() + _FIRST_S, _FIRST_S
        self._before = _Before(self._clock(), self._cpu_s, self._device_use())
        self._runs.append(_UsageOfRun())

    def sample(self) -> float:
        """Read the counters if that is due. Return the seconds until the next reading is due."""
        now_s = self._clock()
        if self._read is not None and now_s >= self._due_s:
            began_s = time.thread_time()
            self._runs[-1] = self._runs[-1].sampled(self._read())
            self._due_s = now_s + max(self._pause_s, (time.thread_time() - began_s) / _MAX_LOAD)
            self._pause_s = min(2 * self._pause_s, SAMPLE_EVERY_S)
        return self._due_s - now_s

    def end_run(self) -> None:
        """Read the usage of an ended payload for the last time."""
        if self._read is not None:
            self._runs[-1] = self._runs[-1].sampled(self._read())
            self._read = None

    def measured(self) -> Measured:
        """Return the usage for a report. Means cover the time since the last call."""
        return Measured(None if self._read is None else self._usage(), self.receipt())

    def receipt(self) -> Receipt:
        """Return the cost of the container so far."""
        use, count = self._device_use(), len(self._devices)
        until_s = self._clock() if self._returned_s is None else self._returned_s
        granted_s = 0.0 if self._leased_s is None else count * (until_s - self._leased_s)
        busy_s = sum(one.busy_s for one in use.values())
        unknown_s = sum(one.unknown_s for one in use.values())
        energies_j = [one.energy_j for one in use.values() if one.energy_j is not None]
        used = [one.is_used for one in use.values() if one.is_used is not None]
        peaks = [one.peak_bytes for one in self._runs if one.peak_bytes is not None]
        cpu_s = self._cpu_s
        return Receipt(
            gpu_hours=GpuHours(
                granted=_hours(granted_s),
                busy=_hours(busy_s),
                # While no payload ran, the devices were idle.
                idle=_hours(max(0.0, granted_s - busy_s - unknown_s)),
                unknown=_hours(unknown_s),
            ),
            gpus_asked=count,
            gpus_used=sum(used) if len(used) == count else None,
            cpu_hours=None if cpu_s is None else _hours(cpu_s),
            memory=MemoryReceipt(
                asked_mib=self._memory_mib,
                peak_mib=max(peaks) >> _MIB if peaks else None,
                is_exact=bool(peaks) and all(one.counters.peak_bytes is not None for one in self._runs),
            ),
            seconds={name: round(seconds, 3) for name, seconds in self._phase_seconds().items()},
            bytes=ByteCounts(
                input=self.input_bytes,
                output=self.output_bytes,
                read=self._bytes("read_bytes"),
                written=self._bytes("written_bytes"),
                received=self._bytes("received_bytes"),
                sent=self._bytes("sent_bytes"),
            ),
            energy_wh=round(sum(energies_j) / 3600, 6) if count and len(energies_j) == count else None,
            xids=sum_counts({str(code): number for code, number in one.xids.items()} for one in use.values()),
            gpu_memory=tuple(
                GpuMemory(
                    index=one.index,
                    uuid=one.uuid,
                    mig=_mig_profile(one),
                    memory_mib=one.memory_mib,
                    peak_mib=use[one.uuid].peak_mib if one.uuid in use else None,
                )
                for one in self._devices
            ),
            foreign_processes=largest_foreign(
                ForeignProcess(
                    gpu=one.label.removeprefix("gpu"),
                    uuid=one.uuid,
                    pid=process.pid,
                    host=self._host,
                    program=process.program,
                    user=process.user,
                    peak_mib=process.peak_mib,
                )
                for one in self._devices
                if one.uuid in use
                for process in use[one.uuid].foreign
            ),
        )

    def _usage(self) -> Usage:
        now_s, before, use = self._clock(), self._before, self._device_use()
        cpu_s = self._cpu_s
        cores = None
        if cpu_s is not None and before.cpu_s is not None and now_s > before.at_s:
            cores = round(max(0.0, cpu_s - before.cpu_s) / (now_s - before.at_s), 3)
        self._before = _Before(now_s, cpu_s, use)
        memory = self._runs[-1].counters.memory_bytes
        return Usage(
            at_ms=self._now_ms(),
            cpu_cores=cores,
            memory_mib=None if memory is None else memory >> _MIB,
            read_bytes=self._bytes("read_bytes"),
            written_bytes=self._bytes("written_bytes"),
            received_bytes=self._bytes("received_bytes"),
            sent_bytes=self._bytes("sent_bytes"),
            devices=tuple(
                _device_usage(one, use[one.uuid], before.devices.get(one.uuid))
                for one in self._devices
                if one.uuid in use
            ),
            input_wait=self._input_wait(),
        )

    def _phase_seconds(self) -> dict[str, float]:
        seconds, name = dict(self._seconds), self._phase.value
        seconds[name] = seconds.get(name, 0.0) + self._clock() - self._phase_since_s
        return seconds

    @property
    def _cpu_s(self) -> float | None:
        """Return the CPU time of all payloads together [s]; None if unknown for one."""
        times_s = [one.counters.cpu_s for one in self._runs]
        return None if None in times_s else float(sum(filter(None, times_s)))

    def _bytes(self, name: str) -> int | None:
        """Return a byte counter summed over all payloads; None if unknown for one."""
        values = [getattr(one.counters, name) for one in self._runs]
        return None if not values or None in values else int(sum(values))


def _device_usage(device: Device, use: DeviceUse, before: DeviceUse | None) -> DeviceUsage:
    busy_s = use.busy_s - (before.busy_s if before is not None else 0.0)
    known_s = busy_s + use.idle_s - (before.idle_s if before is not None else 0.0)
    active_s = use.active_s - (before.active_s if before is not None else 0.0)
    measured_s = use.measured_s - (before.measured_s if before is not None else 0.0)
    last, mig = use.last, _mig_profile(device)
    if last is None:
        return DeviceUsage(index=device.index, uuid=device.uuid, mig=mig)
    return DeviceUsage(
        index=device.index,
        # What is busy and idle follows the activity where there is no utilisation.
        utilisation=round(busy_s / known_s, 3) if known_s > 0 and last.utilisation is not None else None,
        memory_mib=last.used_mib,
        power_w=last.power_w,
        temperature_c=last.temperature_c,
        processes=last.processes,
        activity=round(active_s / measured_s, 3) if measured_s > 0 else None,
        at_idle_power=measured_s == 0 and use.is_at_idle_power,
        uuid=device.uuid,
        mig=mig,
    )


def _mig_profile(device: Device) -> str:
    """Return the profile of a MIG device, the end of its name: ``NVIDIA A100-SXM4-40GB MIG 1g.5gb``."""
    return device.name.partition(" MIG ")[2]


def _hours(seconds: float) -> float:
    return round(seconds / 3600, 6)
