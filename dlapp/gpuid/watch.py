"""A watch over the cards of a payload while it runs.

NVML is asked on a thread of its own, for a card that is failing can hold up whoever asks about it; a task must go on
hearing its orders. Only what is certain counts here: a card that is lost, one that must be reset, an Xid error that is
the card's. A driver that as a whole does not answer says nothing about a card, and ends the watch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dlapp.errors import DlappError
from dlapp.gpuid.devices import Device

if TYPE_CHECKING:
    from dlapp.gpuid.health import Fault

LOOK_EVERY_S = 2.0
_JOIN_S = 2.0


def _watched(devices: Sequence[Device]) -> Any:
    from dlapp.gpuid.nvml import Watched

    return Watched(devices)


class CardWatch:
    """Watches ``devices`` in a with block.

    Args:
        on_fault: called once, on the watch's thread, after ``failed`` was set.
        note: told, on the watch's thread, why there is no watch (any more).
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
        self.failed: dict[str, Fault] = {}
        self._devices, self._on_fault, self._note, self._open = tuple(devices), on_fault, note, open
        self._every_s = every_s
        self._asked, self._looked = threading.Event(), threading.Event()
        self._over = False
        # A daemon: a thread that hangs in the driver must not keep the process; the kernel does that if it must.
        self._thread = threading.Thread(target=self._run, name="gpu-watch", daemon=True)

    def __enter__(self) -> CardWatch:
        if self._devices:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True
        self._asked.set()
        if self._devices:
            self._thread.join(_JOIN_S)

    def look_now(self, timeout_s: float) -> str:
        """Look once more, for at most ``timeout_s``; what `message` says then."""
        if self._devices and self._thread.is_alive() and not self.failed:
            self._looked.clear()
            self._asked.set()
            self._looked.wait(timeout_s)
        return self.message()

    def message(self) -> str:
        """One line on the cards that have failed; empty: none has."""
        label = {one.uuid: one.label for one in self._devices}
        return ", ".join(f"{label[uuid]} failed: {fault.detail}" for uuid, fault in self.failed.items())

    def _run(self) -> None:
        try:
            watched = self._open(self._devices)
        except DlappError as error:
            self._note(f"the GPUs are not watched: {error}")
            self._looked.set()
            return
        try:
            while not self._over:
                if found := watched.look():
                    self.failed = found
                    self._on_fault()
                    return
                self._looked.set()
                self._asked.wait(self._every_s)
                self._asked.clear()
        except DlappError as error:
            self._note(f"the GPUs are not watched any more: {error}")
        finally:
            self._looked.set()
            watched.close()
