"""Watch of the GPUs of a running payload, for their health and their usage.

NVML is called in a subprocess (`dlapp.gpuid.health.nvml_subprocess`), and waited for on a thread of its own: a task
must keep receiving its orders. Only definite failures count as such: a lost GPU, one that must be reset, an Xid error
that makes the GPU unusable (`dlapp.gpuid.health.xids`). Other Xid errors are recorded. A driver that does not answer
proves nothing about a GPU: the watch continues when it answers again. One that no longer works at all ends the watch.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from dlapp.errors import DlappError
from dlapp.gpuid.devices import Device
from dlapp.gpuid.health.attribution import NOT_ATTRIBUTED, Attributed, ProcessAttribution, UnleasedProcess, merged
from dlapp.gpuid.health.inspection import DEFAULT_LIMITS
from dlapp.gpuid.health.nvml_subprocess import DriverHangs
from dlapp.gpuid.health.xids import Xid, XidClass, XidTable

if TYPE_CHECKING:
    from dlapp.gpuid.health.readings import DeviceFault, DeviceSample

POLL_INTERVAL_S = 2.0
_POLLS_PER_SAMPLE = 2
"""Number of inspections per sample: a sample is several queries, each of which may take the driver a millisecond."""
_MIN_BUSY_SHARE = 0.01
"""Minimum share of busy time for a device to count as used."""
_FULL, _MAX_IDLE_POWER = 0.9, 1.3
"""Utilisation of a GPU that is said to compute all the time, and the power up to which it does not: a multiple of the
power without utilisation."""
_JOIN_S = 2.0
CAUSE_S = 60.0
"""Maximum time from an Xid error to the end of the program that it ends: CUDA reports it to the program at once, which
may still print its stacks and end its processes."""
_RECENT_S = 30.0
"""How long ago a foreign process may have been seen that a failure is due to: a program without memory, and its
other ranks, may need so long to end."""


class DeviceUse(NamedTuple):
    """Usage of a device during a watch.

    Args:
        busy_s, idle_s: weighted by its utilisation, of the time in which that was known [s]; by its activity where only
            that is known, as of a MIG device.
        unknown_s: the rest of the time [s].
        energy_j: None: not known [J].
        last: the last sample; None: none.
        xids: number of Xid errors by code.
        active_s: weighted by its activity, of ``measured_s``, the time in which that was known [s].
        peak_mib: the most memory of the payload; None: not known.
        foreign: processes of others that were on it.
        idle_w: the least power in a sample without utilisation [W]; None: there was none.
    """

    busy_s: float = 0.0
    idle_s: float = 0.0
    unknown_s: float = 0.0
    energy_j: float | None = None
    last: DeviceSample | None = None
    xids: Mapping[int, int] = MappingProxyType({})
    active_s: float = 0.0
    measured_s: float = 0.0
    peak_mib: int | None = None
    foreign: tuple[UnleasedProcess, ...] = ()
    idle_w: float | None = None

    @property
    def is_at_idle_power(self) -> bool:
        """Return True if the last sample has a utilisation for which the power is too low: hardly anything computes."""
        if self.last is None or self.last.power_w is None or self.idle_w is None:
            return False
        return (self.last.utilisation or 0.0) >= _FULL and self.last.power_w <= _MAX_IDLE_POWER * self.idle_w

    @property
    def is_used(self) -> bool | None:
        """Return True if the device was busy for more than a moment; None: not known."""
        known_s = self.busy_s + self.idle_s
        if self.busy_s > _MIN_BUSY_SHARE * known_s:
            return True
        return False if known_s > self.unknown_s else None

    def after(self, sample: DeviceSample | None, passed_s: float, processes: Attributed = NOT_ATTRIBUTED) -> DeviceUse:
        """Return the usage after this many seconds, with a sample at their end and its processes; None: no sample."""
        if sample is None:
            return self._replace(unknown_s=self.unknown_s + passed_s, last=None)
        use = self._replace(last=sample, foreign=merged(self.foreign, processes.foreign))
        if sample.energy_j is not None:
            before = self.last.energy_j if self.last is not None else None
            # A counter that has decreased belongs to a reloaded driver.
            grown_j = max(0.0, sample.energy_j - (sample.energy_j if before is None else before))
            use = use._replace(energy_j=(self.energy_j or 0.0) + grown_j)
        if sample.utilisation == 0 and sample.power_w is not None:
            use = use._replace(idle_w=min(sample.power_w, self.idle_w or sample.power_w))
        if processes.own_mib is not None:
            use = use._replace(peak_mib=max(processes.own_mib, self.peak_mib or 0))
        if sample.activity is not None:
            active_s = self.active_s + sample.activity * passed_s
            use = use._replace(active_s=active_s, measured_s=self.measured_s + passed_s)
        share = sample.activity if sample.utilisation is None else sample.utilisation
        if share is None:
            return use._replace(unknown_s=self.unknown_s + passed_s)
        busy_s = share * passed_s
        return use._replace(busy_s=self.busy_s + busy_s, idle_s=self.idle_s + passed_s - busy_s)


class SeenXid(NamedTuple):
    """Last Xid error of one code on one device; ``at_s`` is when it was read [s, monotonic]."""

    uuid: str
    xid: Xid
    at_s: float


class DeviceWatch:
    """Monitor of ``devices`` during a with block.

    Args:
        on_fault: called once, on the watch's thread, after ``failed`` was set.
        note: receives, on the watch's thread, a message when the watch begins, or why there is none (any more).
        use: usage of the devices in earlier watches, by uuid.
        open: opens NVML (`NvmlProcess.watch`); ``poll() -> {uuid: Fault}``, ``take_xids() -> [(uuid, code)]``,
            ``sample() -> {uuid: DeviceSample}`` and ``close()``.
        xids: all codes; None: with their classes of the table.
        on_xids: receives, on the watch's thread, the Xid errors of one poll: uuid -> code -> number.
        attribution: of the processes on the devices; None: they are not attributed.

    Attributes:
        use: by uuid, up to the last sample.
        seen: the last Xid error of each device and code.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        *,
        on_fault: Callable[[], None] = lambda: None,
        note: Callable[[str], None] = lambda _: None,
        open: Callable[[Sequence[Device]], Any],
        every_s: float = POLL_INTERVAL_S,
        use: Mapping[str, DeviceUse] = {},
        xids: XidTable | None = None,
        on_xids: Callable[[Mapping[str, Mapping[int, int]]], None] = lambda _: None,
        attribution: ProcessAttribution | None = None,
    ) -> None:
        self.failed: dict[str, DeviceFault] = {}
        self.seen: dict[tuple[str, int], SeenXid] = {}
        self._xids, self._on_xids = xids or XidTable(), on_xids
        self._devices, self._on_fault, self._note, self._open = tuple(devices), on_fault, note, open
        self._every_s, self._attribution = every_s, attribution
        self._changed = threading.Condition()
        self._requested = self._completed = 0
        self._ended = False
        self.use = {one.uuid: use.get(one.uuid, DeviceUse())._replace(last=None) for one in self._devices}
        self._sampled_s = 0.0
        # A daemon thread: one that hangs in the driver must not keep the process alive.
        self._thread = threading.Thread(target=self._run, name="gpu-watch", daemon=True)

    def __enter__(self) -> DeviceWatch:
        self._sampled_s = time.monotonic()
        if self._devices:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        if self._devices:
            self._thread.join(_JOIN_S)
            hangs = self._thread.is_alive()
            self._add({uuid: one.last for uuid, one in self.use.items() if one.last is not None and not hangs})

    def poll_now(self, timeout_s: float) -> str:
        """Read the devices once more, for at most ``timeout_s``; return `message` after it."""
        with self._changed:
            self._requested += 1
            asked = self._requested
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._completed >= asked or not self._thread.is_alive(), timeout_s)
        return self.message()

    def message(self) -> str:
        """Return one line on the GPUs that have failed; empty: none has."""
        label = {one.uuid: one.label for one in self._devices}
        return ", ".join(f"{label[uuid]} failed: {fault.detail}" for uuid, fault in self.failed.items())

    def xid_message(self, uuids: Collection[str]) -> str:
        """Return one line on the Xid error that ended a program on some of the devices just now; empty: none did.

        Of several the first counts: others follow from it.
        """
        since_s, label = time.monotonic() - CAUSE_S, {one.uuid: one.label for one in self._devices}
        causes = [
            one
            for one in self.seen.values()
            if one.uuid in uuids and one.at_s >= since_s and one.xid.kind not in (None, XidClass.IGNORE)
        ]
        first = min(causes, key=lambda one: one.at_s, default=None)
        if first is None:
            return ""
        whose = "the program's" if first.xid.kind is XidClass.PROGRAM else "not the program's"
        return f"{label[first.uuid]} reported {first.xid} ({whose})"

    def _xid_faults(self, codes: Sequence[tuple[str, int]]) -> dict[str, DeviceFault]:
        """Record Xid errors. Return those that end the payload, by device."""
        now_s, label = time.monotonic(), {one.uuid: one.label for one in self._devices}
        faults: dict[str, DeviceFault] = {}
        counts: dict[str, dict[int, int]] = {}
        for uuid, code in codes:
            of_device = counts.setdefault(uuid, {})
            of_device[code] = of_device.get(code, 0) + 1
        for uuid, of_device in counts.items():
            use = self.use[uuid]
            all_xids = {code: use.xids.get(code, 0) + of_device.get(code, 0) for code in {**use.xids, **of_device}}
            self.use = {**self.use, uuid: use._replace(xids=all_xids)}
            for code in of_device:
                xid = self._xids[code]
                if (uuid, code) not in self.seen:
                    self._note(f"{label[uuid]}: {xid} ({xid.kind or 'recorded only'})")
                self.seen = {**self.seen, (uuid, code): SeenXid(uuid, xid, now_s)}
                if xid.fault is not None and uuid not in faults:
                    faults[uuid] = xid.fault
        self._on_xids(counts)
        return faults

    def foreign_now(self) -> list[tuple[Device, UnleasedProcess]]:
        """Return the foreign processes that used much memory of a device a moment ago, or a moment before the end of
        the watch; the largest first.
        """
        found = [
            (device, one)
            for device in self._devices
            for one in self.use[device.uuid].foreign
            if (one.used_mib or 0) > DEFAULT_LIMITS.held_mib and self._sampled_s - one.seen_s <= _RECENT_S
        ]
        return sorted(found, key=lambda each: -(each[1].used_mib or 0))

    def _run(self) -> None:
        try:
            watched = self._open(self._devices)
        except DlappError as error:
            self._note(f"the GPUs are not monitored: {error}")
            self._end()
            return
        self._note("the GPUs are monitored")
        polls, hangs = 0, False
        try:
            while not self._ended:
                asked = self._requested
                try:
                    # First the events: a query that hangs loses them with the process that calls NVML.
                    codes = watched.take_xids()
                    found = self._xid_faults(codes) if codes else {}
                    found = found or watched.poll()
                    if found:
                        self.failed = found
                        self._on_fault()
                        return
                    # Who asks for a reading wants to know what the payload saw when it failed.
                    if polls % _POLLS_PER_SAMPLE == 0 or asked > self._completed:
                        self._sample(watched)
                    if hangs:
                        self._note("the GPUs are monitored again")
                    hangs = False
                except DriverHangs as error:
                    self._add({})
                    if not hangs:
                        self._note(f"the GPUs are not monitored at present: {error}")
                    hangs = True
                polls += 1
                with self._changed:
                    self._completed = asked
                    self._changed.notify_all()
                    self._changed.wait_for(lambda: self._ended or self._requested > self._completed, self._every_s)
        except DlappError as error:
            self._add({})
            self._note(f"the GPUs are no longer monitored: {error}")
        finally:
            self._end()
            watched.close()

    def _add(self, samples: Mapping[str, DeviceSample], processes: Mapping[str, Attributed] = {}) -> None:
        now_s = time.monotonic()
        passed_s, self._sampled_s = now_s - self._sampled_s, now_s
        self.use = {
            uuid: one.after(samples.get(uuid), passed_s, processes.get(uuid, NOT_ATTRIBUTED))
            for uuid, one in self.use.items()
        }

    def _sample(self, watched: Any) -> None:
        samples: Mapping[str, DeviceSample] = watched.sample()
        known = {one[:2] for use in self.use.values() for one in use.foreign}
        processes = {}
        if self._attribution is not None:
            now_s = time.monotonic()
            processes = {
                uuid: self._attribution.attribute(one.listed, one.used_mib, now_s) for uuid, one in samples.items()
            }
        self._add(samples, processes)
        for device in self._devices:
            for one in self.use[device.uuid].foreign:
                if one[:2] not in known:
                    self._note(f"process {one.pid} ({one.description}) uses {device.label} without a lease")

    def _end(self) -> None:
        """Release all threads that wait for a reading."""
        with self._changed:
            self._ended, self._completed = True, 1 << 62
            self._changed.notify_all()
