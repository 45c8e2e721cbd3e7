"""Inspection of a GPU before it is leased: NVML's readings, what counts as a failure, and when it is inspected again.

A GPU is inspected before it is leased and after it was released. A failed one goes into quarantine with cause, time and
count, and is inspected again at intervals that double: with the time in quarantine, and with each new quarantine. An
inspection without findings ends the quarantine. A quarantine set by an operator is ended only by an operator.

A foreign process, memory in use and heat are conditions of a GPU, not failures: they are inspected at each request, and
do not count. After an Xid error that needs a reset (`dlapp.gpuid.health.xids`) an inspection without findings ends
nothing: NVML shows no trace of most of these errors. `dlapp.gpuid.rules.Quarantine` has what is compared instead.

The decisions are pure functions; NVML is read by the function passed as ``read``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from dlapp.gpuid import rules
from dlapp.gpuid.health.driver_load import driver_load
from dlapp.gpuid.health.readings import DeviceFault, GpuProcess, Reading
from dlapp.gpuid.rules import CONDITIONS, PROBE_LAST_S
from dlapp.system import clock
from dlapp.system.clock import backoff_s

if TYPE_CHECKING:
    from dlapp.config import GpuidConfig
    from dlapp.gpuid.devices import Device
    from dlapp.gpuid.rules import DeviceRecord, HostRecord, Quarantine

ALLOWED = ("Xorg", "Xwayland", "gnome-shell", "nvidia-cuda-mps-server", "nvidia-persistenced", "nv-hostengine", "dcgmi")
"""Programs that always run on GPUs and are harmless; the default of gpuid.allowed_processes."""


class HealthLimits(NamedTuple):
    """Limits within which a GPU is healthy.

    Args:
        allowed: names of programs that may run on it.
        temperature_c: maximum temperature; None: the GPU's own slowdown temperature.
        held_mib: maximum memory in use without a process.
        held_with_reserved_mib: the same with a driver that counts its reserved memory as used.
        settle_s: how long to wait for an ending process and its memory.
        xids: class by code of the operator (``gpuid.xids``).
    """

    allowed: tuple[str, ...] = ALLOWED
    temperature_c: int | None = None
    held_mib: int = 256
    held_with_reserved_mib: int = 1024
    settle_s: float = 5.0
    xids: Mapping[int, str] = MappingProxyType({})


DEFAULT_LIMITS = HealthLimits()


def host_limits() -> HealthLimits:
    """Return the limits of this host's configuration, as they protect this host's GPUs.

    Raises:
        ConfigError: the configuration is invalid.
    """
    from dlapp.config import load_config

    return limits_in(load_config().gpuid)


def limits_in(gpuid: GpuidConfig) -> HealthLimits:
    """Return the limits of a configuration."""
    return HealthLimits(allowed=gpuid.allowed_processes, temperature_c=gpuid.temperature_limit_c, xids=gpuid.xids or {})


def classify_reading(reading: Reading, limits: HealthLimits = DEFAULT_LIMITS) -> DeviceFault | None:
    """Return why a free GPU must not be leased; None: it is healthy."""
    if reading.error:
        return DeviceFault("lost" if reading.lost else "failing", reading.error)
    if reading.recovery:
        return DeviceFault("needs-reset", f"the driver asks for {reading.recovery}")
    # Contained memory errors, and rows to be remapped by the next reset, do not keep programs from the GPU. Only the
    # driver can tell (since version 550). Source: "NVIDIA GPU Memory Error Management", "Recovery action flag".
    if reading.ecc_uncorrected and not reading.needs_no_recovery:
        count = reading.ecc_uncorrected
        return DeviceFault("ecc", "an uncorrectable ECC error" if count == 1 else f"{count} uncorrectable ECC errors")
    if reading.remap_failed:
        return DeviceFault("ecc", "a memory row could not be remapped")
    if reading.reset_pending and not reading.needs_no_recovery:
        return DeviceFault("needs-reset", "memory is to be retired by a reset of the GPU")
    hottest = limits.temperature_c if limits.temperature_c is not None else reading.slowdown_c
    if hottest is not None and reading.temperature_c is not None and reading.temperature_c >= hottest:
        return DeviceFault("hot", f"{reading.temperature_c} °C, the limit is {hottest} °C")
    if reading.fabric:
        return DeviceFault("fabric", reading.fabric, passing=reading.fabric_is_starting)
    if reading.prohibited:
        return DeviceFault("prohibited", "its compute mode is prohibited")
    return _occupied(reading, limits)


def _occupied(reading: Reading, limits: HealthLimits) -> DeviceFault | None:
    processes = (*(reading.compute or ()), *reading.mps_clients)
    if foreign := foreign_processes(reading, limits.allowed):
        who = ", ".join(f"{one.pid} ({one.name or 'whose name is hidden'})" for one in foreign[:3])
        more = f" and {len(foreign) - 3} more" if len(foreign) > 3 else ""
        return DeviceFault("foreign-process", f"process {who}{more} computes on it", passing=True)
    most = limits.held_mib if reading.reserved_is_apart else limits.held_with_reserved_mib
    # With an allowed process on it (Xorg, an MPS server) the memory is accounted for.
    used_mib = 0 if reading.used_mib is None or reading.unverified else reading.used_mib
    if used_mib > most and not processes and not reading.graphics:
        return DeviceFault("memory-held", f"{reading.used_mib} MiB are in use by no known process", passing=True)
    return None


def foreign_processes(reading: Reading, allowed: Collection[str]) -> list[GpuProcess]:
    """Return the processes that compute on a GPU, except programs that may run on it although it is not leased."""
    return [one for one in (*(reading.compute or ()), *reading.mps_clients) if not is_allowed(one.name, allowed)]


def is_allowed(name: str, allowed: Collection[str]) -> bool:
    """Return whether a program may run on a GPU that is not leased."""
    # The kernel truncates process names to 15 characters.
    return bool(name) and any(name == one or (len(name) == 15 and one.startswith(name)) for one in allowed)


def inspect_devices(
    devices: Sequence[Device],
    *,
    read: Callable[[Sequence[Device]], Mapping[str, Reading]],
    limits: HealthLimits = DEFAULT_LIMITS,
    settled: Collection[str] = (),
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, DeviceFault]:
    """Inspect devices that are not leased. Return the problems by uuid; a device without an entry is healthy.

    Transient problems are waited for, up to `HealthLimits.settle_s`.

    Args:
        devices: devices to inspect.
        read: reads their state from the driver.
        limits: limits of health, and of the wait.
        settled: uuids of devices that are not waited for: they had their time.
        clock: the time [s, monotonic].
        sleep: waits between readings.

    Raises:
        NvmlError: NVML does not work.
    """
    deadline = clock() + limits.settle_s
    found: dict[str, DeviceFault] = {}
    left = list(devices)
    pauses_s = backoff_s(0.02, 0.5)
    while left:
        readings = read(left)
        faults = {
            one.uuid: fault for one in left if (fault := classify_reading(readings[one.uuid], limits)) is not None
        }
        over = clock() >= deadline
        found |= {uuid: one for uuid, one in faults.items() if over or not one.passing or uuid in settled}
        left = [one for one in left if one.uuid in faults and one.uuid not in found]
        if left:
            sleep(next(pauses_s))
    return found


# ---- quarantine ----


def is_due(quarantine: Quarantine | None, now_ms: int) -> bool:
    """Return whether a GPU may be inspected: it is not in quarantine, or has waited long enough; never if an operator
    set the quarantine. If the clock was set back, the wait is still at most `PROBE_LAST_S`."""
    if quarantine is None:
        return True
    if quarantine.by or not quarantine.probe_at_ms:
        return False
    return now_ms >= quarantine.probe_at_ms or quarantine.probe_at_ms - now_ms > PROBE_LAST_S * 1000


def is_closed(one: DeviceRecord, boot_id: str, now_ms: int, driver: str = "") -> bool:
    """Return whether a device may not even be inspected now: an operator has closed it, or it waits for a reset, a
    reboot, or its next probe. A condition may be over at each moment.

    Args:
        one: the device.
        boot_id: that of the host.
        now_ms: the time [ms since 1970].
        driver: identity of the driver's load; empty: not known.
    """
    quarantine = one.quarantine
    if quarantine is None or one.has_condition:
        return False
    if quarantine.boot_id and not quarantine.by:
        return quarantine.needs_reset(boot_id, driver) and not is_due(quarantine, now_ms)
    return not is_due(quarantine, now_ms)


def due_for_inspection(record: HostRecord, now_ms: int, driver: str = "") -> tuple[Device, ...]:
    """Return the devices of a host to inspect before a lease: not leased, and free or due for a probe.

    A condition may be over at each moment. A reboot or another load of the driver is what a reset waits for.

    Args:
        record: record of the host.
        now_ms: the time [ms since 1970].
        driver: identity of the driver's load; empty: not known.
    """
    held = {uuid for one in record.leases for uuid in one.devices}

    def is_wanted(quarantine: Quarantine | None) -> bool:
        if is_due(quarantine, now_ms) or quarantine is None:
            return True
        is_reset = quarantine.boot_id != "" and not quarantine.needs_reset(record.boot_id, driver)
        return not quarantine.by and (is_reset or quarantine.cause in CONDITIONS)

    return tuple(
        one.device
        for one in record.devices
        if one.uuid not in held and (one.present or one.quarantine) and is_wanted(one.quarantine)
    )


def with_inspection(
    record: HostRecord, inspected: Iterable[str], faults: Mapping[str, DeviceFault], now_ms: int, driver: str = ""
) -> HostRecord:
    """Record the result of an inspection: failed GPUs enter quarantine, healthy ones leave it.

    A GPU that needs a reset stays there until a reboot, or another load of the driver. If the driver itself asks for
    the reset, the driver also shows when it was done.

    Args:
        record: record of the host.
        inspected: uuids of the inspected devices.
        faults: problems, by uuid.
        now_ms: the time [ms since 1970].
        driver: identity of the driver's load; empty: not known.
    """
    known = {one.uuid: one for one in record.devices}
    for uuid in inspected:
        if (one := known.get(uuid)) is None or (one.quarantine is not None and one.quarantine.by):
            continue
        if (fault := faults.get(uuid)) is not None:
            cause, detail = fault.cause, fault.detail
            record = rules.quarantine(record, uuid, cause=cause, detail=detail, now_ms=now_ms, driver=driver)
        elif one.quarantine is not None and one.quarantine.needs_reset(record.boot_id, driver):
            record = rules.delay_probe(record, uuid, now_ms)
        elif one.quarantine is not None:
            record = rules.heal(record, uuid)
    return record


class _Verdict(NamedTuple):
    """Result of an inspection.

    Args:
        at_s: when [s, monotonic].
        fault: None: the device was healthy.
        healed_ms: `DeviceRecord.healed_ms` before it.
    """

    at_s: float
    fault: DeviceFault | None
    healed_ms: int


class Inspector:
    """Inspector of the unleased GPUs in a host's record, which it updates; see `dlapp.gpuid.ledger`.

    Args:
        limits: None: the host's configuration.
        read: reads NVML, as `dlapp.gpuid.health.nvml.read` does.
        now_ms: the wall clock [ms since 1970].
    """

    MAX_HEALTHY_AGE_S, MAX_FAILED_AGE_S, MAX_CONDITION_AGE_S = 1.0, 10.0, 5.0
    """Maximum age of an inspection: a wait for devices must not open NVML in each round, nor wait again for a permanent
    problem whose result could not be written. A condition in quarantine may be over at each moment."""
    MAX_READING = 0.2
    """Maximum share of a wait that is spent on reading, as long as that makes no result older than `MAX_FAILED_AGE_S`:
    without persistence mode the driver initialises the GPUs each time (1 to 3 s). To keep NVML open while a request
    waits would save that, and an operator could not reset or drain any of these GPUs meanwhile."""

    def __init__(
        self,
        limits: HealthLimits | None = None,
        *,
        read: Callable[[Sequence[Device]], Mapping[str, Reading]],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        now_ms: Callable[[], int] = clock.now_ms,
        driver: Callable[[], str] = driver_load,
    ) -> None:
        self._limits, self._read, self._clock, self._sleep, self._now_ms = limits, read, clock, sleep, now_ms
        self._driver = driver
        self._seen: dict[str, _Verdict] = {}
        self._read_s = 0.0

    def __call__(self, record: HostRecord) -> HostRecord:
        """Return the record with updated quarantines.

        Raises:
            NvmlError: the state of the GPUs is not known, so none may be leased.
        """
        known, driver = {one.uuid: one for one in record.devices}, self._driver()
        due = due_for_inspection(record, self._now_ms(), driver)
        # The quarantine of a condition has its verdict.
        wanted = [one for one in due if not (self._is_fresh(known[one.uuid]) and known[one.uuid].quarantine)]
        devices = [one for one in wanted if not self._is_fresh(known[one.uuid])]
        if devices:
            self._limits = limits = self._limits or host_limits()
            settled = {one.uuid for one in devices if known[one.uuid].quarantine is not None}
            found = inspect_devices(
                devices, read=self._timed_read, limits=limits, settled=settled, clock=self._clock, sleep=self._sleep
            )
            at_s = self._clock()
            self._seen |= {one.uuid: _Verdict(at_s, found.get(one.uuid), known[one.uuid].healed_ms) for one in devices}
        faults = {one.uuid: fault for one in wanted if (fault := self._seen[one.uuid].fault) is not None}
        if not wanted:
            return record
        return with_inspection(record, [one.uuid for one in wanted], faults, self._now_ms(), driver)

    def _timed_read(self, devices: Sequence[Device]) -> Mapping[str, Reading]:
        began_s = self._clock()
        readings = self._read(devices)
        self._read_s = self._clock() - began_s
        return readings

    def _is_fresh(self, one: DeviceRecord) -> bool:
        """Return whether the last verdict on a device still counts.

        A verdict from before an operator's heal does not, nor one on another cause than the device is in quarantine
        for. Healing is recognized by another time in the record, whatever the clocks of two hosts say.
        """
        verdict = self._seen.get(one.uuid)
        if verdict is None or verdict.healed_ms != one.healed_ms:
            return False
        age_s, fault = self._clock() - verdict.at_s, verdict.fault
        if one.quarantine is not None:
            is_same = fault is not None and one.quarantine.cause == fault.cause in CONDITIONS
            return is_same and age_s < self.MAX_CONDITION_AGE_S
        slow_s = min(self._read_s / self.MAX_READING, self.MAX_FAILED_AGE_S)
        healthy_s = max(self.MAX_HEALTHY_AGE_S, slow_s)
        return age_s < (healthy_s if fault is None else self.MAX_FAILED_AGE_S)
