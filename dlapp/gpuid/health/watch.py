"""A watch over the GPUs of a payload while it runs.

NVML is asked on a thread of its own, for a GPU that is failing can hold up whoever asks about it; a task must go on
hearing its orders. Only what is certain counts here: a GPU that is lost, one that must be reset, an Xid error that is
the GPU's. A driver that as a whole does not answer says nothing about a GPU, and ends the watch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dlapp.errors import DlappError
from dlapp.gpuid.devices import Device

if TYPE_CHECKING:
    from dlapp.gpuid.health.readings import DeviceFault

LOOK_EVERY_S = 2.0
_JOIN_S = 2.0


def _watched(devices: Sequence[Device]) -> Any:
    from dlapp.gpuid.health.nvml import Watched

    return Watched(devices)


class DeviceWatch:
    """Watches ``devices`` in a with block.

    Args:
        on_fault: called once, on the watch's thread, after ``failed`` was set.
        note: told, on the watch's thread, that the watch begins, or why there is none (any more).
        open: opens NVML; ``look() -> {uuid: Fault}`` and ``close()``.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        *,
        on_fault: Callable[[], None] = lambda: None,
        note: Callable[[str], None] = lambda _: None,
        open: Callable[[Sequence[Device]], Any] = _watched,
        every_s: float = LOOK_EVERY_S,
    ) -> None:
        self.failed: dict[str, DeviceFault] = {}
        self._devices, self._on_fault, self._note, self._open = tuple(devices), on_fault, note, open
        self._every_s = every_s
        self._changed = threading.Condition()
        self._asked = self._answered = 0
        self._over = False
        # A daemon: a thread that hangs in the driver must not keep the process; the kernel does that if it must.
        self._thread = threading.Thread(target=self._run, name="gpu-watch", daemon=True)

    def __enter__(self) -> DeviceWatch:
        if self._devices:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._over = True
            self._changed.notify_all()
        if self._devices:
            self._thread.join(_JOIN_S)

    def look_now(self, timeout_s: float) -> str:
        """Look once more, for at most ``timeout_s``; what `message` says then."""
        with self._changed:
            self._asked += 1
            asked = self._asked
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._answered >= asked or not self._thread.is_alive(), timeout_s)
        return self.message()

    def message(self) -> str:
        """One line on the GPUs that have failed; empty: none has."""
        label = {one.uuid: one.label for one in self._devices}
        return ", ".join(f"{label[uuid]} failed: {fault.detail}" for uuid, fault in self.failed.items())

    def _run(self) -> None:
        try:
            watched = self._open(self._devices)
        except DlappError as error:
            self._note(f"the GPUs are not watched: {error}")
            self._end()
            return
        self._note("the GPUs are watched")
        try:
            while not self._over:
                asked = self._asked
                if found := watched.look():
                    self.failed = found
                    self._on_fault()
                    return
                with self._changed:
                    self._answered = asked
                    self._changed.notify_all()
                    self._changed.wait_for(lambda: self._over or self._asked > self._answered, self._every_s)
        except DlappError as error:
            self._note(f"the GPUs are not watched any more: {error}")
        finally:
            self._end()
            watched.close()

    def _end(self) -> None:
        """Release all threads that wait for a reading."""
        with self._changed:
            self._over, self._answered = True, 1 << 62
            self._changed.notify_all()
