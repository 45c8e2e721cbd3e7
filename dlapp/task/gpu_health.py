"""GPUs of a task: monitored while its payload runs, inspected before they are released."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dlapp.errors import DlappError
from dlapp.gpuid.health import inspection
from dlapp.gpuid.health.attribution import ProcessAttribution
from dlapp.gpuid.health.nvml_subprocess import ANSWER_S, WATCH_ANSWER_S, DriverHangs
from dlapp.gpuid.health.readings import DeviceFault
from dlapp.gpuid.health.watch import DeviceUse, DeviceWatch
from dlapp.gpuid.health.xids import XidClass, XidTable
from dlapp.gpuid.rules import NEEDS_REBOOT, NEEDS_RESET
from dlapp.gpuid.stores.xid_files import add_xids
from dlapp.system.text import human_size

if TYPE_CHECKING:
    from dlapp.gpuid.devices import Device
    from dlapp.gpuid.health.nvml_subprocess import NvmlProcess
    from dlapp.gpuid.ledger import Ledger

LAST_INSPECTION_S = 2.0
"""Time limit of the last inspection of the GPUs after a payload has failed."""
_SHOWN_FOREIGN = 2
"""Maximum number of foreign processes in a message, which is one line; the receipt has more."""
DRIVER_HANGS = "driver-hangs"
"""Cause of a quarantine."""


class LeasedDevices:
    """The GPUs that a task has leased.

    Args:
        ledger: in which failed GPUs are quarantined.
        nvml: calls NVML.
        devices: the leased GPUs.
        note, warn: take lines for the log.
    """

    def __init__(
        self,
        ledger: Ledger,
        nvml: NvmlProcess,
        devices: Sequence[Device],
        note: Callable[[str], None],
        warn: Callable[[str], None],
    ) -> None:
        self._ledger, self._nvml, self._devices, self._note, self._warn = ledger, nvml, tuple(devices), note, warn
        self._watch: DeviceWatch | None = None
        self._noted = self._is_unrecorded = self._hang_is_noted = False
        # Imported now, not at release: a NodeManager may have removed the code by then.
        self._limits: inspection.HealthLimits | DlappError
        try:
            self._limits = inspection.host_limits()
            self._xids = XidTable(self._limits.xids)
        except DlappError as error:
            self._limits, self._xids = error, XidTable()

    @contextmanager
    def watched(self, wake: Callable[[], None], is_own: Callable[[int], bool | None]) -> Iterator[None]:
        """Monitor the devices. ``wake`` is called from another thread when one has failed, and ``is_own`` to tell
        whether a process is the payload's.
        """
        limits = inspection.DEFAULT_LIMITS if isinstance(self._limits, DlappError) else self._limits
        with DeviceWatch(
            self._devices,
            on_fault=wake,
            note=self._note,
            open=self._nvml.watch,
            use=self.use,
            xids=self._xids,
            on_xids=self._record_xids,
            attribution=ProcessAttribution(is_own, limits.allowed),
        ) as self._watch:
            yield

    @property
    def use(self) -> Mapping[str, DeviceUse]:
        """Return the usage of the devices while payloads ran, by uuid."""
        return {} if self._watch is None else self._watch.use

    @property
    def failed(self) -> bool:
        """Return True if a device has failed under the payload."""
        if self._watch is None or not self._watch.failed:
            return False
        if not self._noted:
            self._noted = True
            self._warn(f"{self._watch.message()}: the payload is ended")
        return True

    def failure_message(self) -> str:
        """Return a line on the GPUs of a failed payload; empty if they are not the cause."""
        return "" if self._watch is None else self._watch.poll_now(LAST_INSPECTION_S)

    def xid_message(self, devices: Sequence[Device] | None = None) -> str:
        """Return a line on the Xid error that ended a payload which has just failed; empty: none did.

        Args:
            devices: those of the payload; None: all.
        """
        if self._watch is None:
            return ""
        self._watch.poll_now(LAST_INSPECTION_S)
        return self._watch.xid_message([one.uuid for one in (self._devices if devices is None else devices)])

    def foreign_use(self) -> str:
        """Return how much memory of the GPUs other processes used when the payload failed, as a sentence; empty: none.

        The rule ``gpu_memory_foreign`` reads it (`dlapp.diagnosis`).
        """
        texts = []
        for device, one in ([] if self._watch is None else self._watch.foreign_now())[:_SHOWN_FOREIGN]:
            amount = f"{human_size((one.used_mib or 0) << 20)} of {device.label}"
            texts.append(f"{amount} were used by process {one.pid} ({one.description})")
        return ", ".join(texts)

    def quarantine_failed(self) -> bool:
        """Quarantine devices that the next lease must not get; all processes of the payload must have ended.

        Returns:
            False if the driver hangs: it is not known whether anything still uses the devices.
        """
        known: dict[str, DeviceFault] = {} if self._watch is None else self._watch.failed
        hang: DriverHangs | None = None
        # Others wait for the container's end. After a watch no GPU has to be initialized.
        self._nvml.answer_s = ANSWER_S if self._watch is None else WATCH_ANSWER_S
        self._nvml.try_again()  # a slow answer before says nothing about this one
        try:
            if isinstance(self._limits, DlappError):
                raise self._limits
            known = inspection.inspect_devices(self._devices, read=self._nvml.read, limits=self._limits) | known
        except DriverHangs as error:
            hang = error
        except DlappError as error:
            self._warn(f"the GPUs could not be inspected: {error}")
            known = self._to_probe() | known
        for uuid, fault in self._with_other_slices(known).items():
            try:
                self._ledger.quarantine(uuid, cause=fault.cause, detail=fault.detail, until=fault.until)
                self._warn(f"{uuid} is in quarantine: {fault.detail}")
            except DlappError as error:
                self._warn(f"{uuid} could not be put into quarantine: {error}")
        self._quarantine_for_reboot(known)
        if hang is not None:
            self._quarantine_host(hang)
        return hang is None

    def _with_other_slices(self, known: Mapping[str, DeviceFault]) -> dict[str, DeviceFault]:
        """Return the faults also of the other slices of a GPU that needs a reset."""
        found = dict(known)
        whole = {one.pci_bus_id: known[one.uuid] for one in self._devices if one.mig >= 0 and _needs_reset(known, one)}
        if whole:
            with contextlib.suppress(DlappError):
                for one in self._ledger.record().devices:
                    if one.device.mig >= 0 and one.device.pci_bus_id in whole:
                        found.setdefault(one.uuid, whole[one.device.pci_bus_id])
        return found

    def _quarantine_for_reboot(self, known: Mapping[str, DeviceFault]) -> None:
        """Quarantine the other GPUs of the host if the fault of one needs a reboot."""
        label = {one.uuid: one.label for one in self._devices}
        faults = [f"{label[uuid]}: {one.detail}" for uuid, one in known.items() if one.until == NEEDS_REBOOT]
        if not faults:
            return
        try:
            for one in self._ledger.record().devices:
                if one.uuid not in known:
                    self._ledger.quarantine(one.uuid, cause=NEEDS_REBOOT, detail=faults[0], until=NEEDS_REBOOT)
            self._warn(f"all GPUs of the host are in quarantine: {faults[0]}")
        except DlappError as error:
            self._warn(f"the other GPUs of the host could not be put into quarantine: {error}")

    def _to_probe(self) -> dict[str, DeviceFault]:
        """Return the devices that need an inspection after their Xid errors."""
        found: dict[str, DeviceFault] = {}
        for uuid, use in self.use.items():
            for xid in map(self._xids.__getitem__, use.xids):
                if xid.kind is XidClass.PROGRAM_PROBE:
                    found[uuid] = DeviceFault("xid", f"{xid}, and it could not be inspected")
        return found

    def _record_xids(self, counts: Mapping[str, Mapping[int, int]]) -> None:
        try:
            add_xids(self._ledger.directory, counts)
        except (DlappError, OSError) as error:
            if not self._is_unrecorded:
                self._is_unrecorded = True
                self._warn(f"the Xid errors of the GPUs are not recorded: {error}")

    def _quarantine_host(self, hang: DriverHangs) -> None:
        """Quarantine all GPUs of this host, whose driver hangs. The next inspection that gets an answer ends that."""
        if self._hang_is_noted:  # output that waits for space tries again to release the GPUs
            return
        self._hang_is_noted = True
        try:
            self._ledger.quarantine_all(cause=DRIVER_HANGS, detail=hang.problem)
            self._warn(f"all GPUs of this host are in quarantine: {hang}")
        except DlappError as error:
            self._warn(f"{hang}; the GPUs could not be put into quarantine: {error}")


def _needs_reset(known: Mapping[str, DeviceFault], device: Device) -> bool:
    """Return whether a slice has a fault of its whole GPU."""
    fault = known.get(device.uuid)
    return fault is not None and fault.until == NEEDS_RESET
