"""GPUs of a task: monitored while its payload runs, inspected before they are released."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dlapp.errors import DlappError
from dlapp.gpuid.health import inspection, nvml
from dlapp.gpuid.health.watch import DeviceUse, DeviceWatch

if TYPE_CHECKING:
    from dlapp.gpuid.devices import Device
    from dlapp.gpuid.health.readings import DeviceFault
    from dlapp.gpuid.ledger import Ledger

LAST_INSPECTION_S = 2.0
"""Time limit of the last inspection of the GPUs after a payload has failed."""


class LeasedDevices:
    """The GPUs that a task has leased.

    Args:
        ledger: in which failed GPUs are quarantined.
    """

    def __init__(
        self, ledger: Ledger, devices: Sequence[Device], note: Callable[[str], None], warn: Callable[[str], None]
    ) -> None:
        self._ledger, self._devices, self._note, self._warn = ledger, tuple(devices), note, warn
        self._watch: DeviceWatch | None = None
        self._noted = False
        # Imported now, not at release: a NodeManager may have removed the code by then.
        self._limits: inspection.HealthLimits | DlappError
        try:
            self._limits = inspection.host_limits()
        except DlappError as error:
            self._limits = error

    @contextmanager
    def watched(self, wake: Callable[[], None]) -> Iterator[None]:
        """Monitor the devices. ``wake`` is called from another thread when one has failed."""
        with DeviceWatch(self._devices, on_fault=wake, note=self._note, use=self.use) as self._watch:
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

    def quarantine_failed(self) -> None:
        """Quarantine devices that the next lease must not get; all processes of the payload must have ended."""
        known: dict[str, DeviceFault] = {} if self._watch is None else self._watch.failed
        try:
            if isinstance(self._limits, DlappError):
                raise self._limits
            known = inspection.inspect_devices(self._devices, read=nvml.read, limits=self._limits) | known
        except DlappError as error:
            self._warn(f"the GPUs could not be inspected: {error}")
        for uuid, fault in known.items():
            try:
                self._ledger.quarantine(uuid, cause=fault.cause, detail=fault.detail)
                self._warn(f"{uuid} is in quarantine: {fault.detail}")
            except DlappError as error:
                self._warn(f"{uuid} could not be put into quarantine: {error}")
