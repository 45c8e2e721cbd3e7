"""Hosts with too few healthy GPUs, according to the ledger.

YARN counts GPUs and does not know that a GPU is in quarantine: it would grant a container on a host that lacks the
GPUs, and the container would have to move to another host. The ledger is read once before the first request for GPUs,
and again at intervals while one waits. It is only a hint: an unavailable ensemble is just logged, as the GPUs are
leased by the task on its host.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from dlapp.am.model.events import DeviceCountsRead
from dlapp.cluster.engine import ContainerRequest
from dlapp.errors import DlappError
from dlapp.gpuid.factory import open_cluster_ledger
from dlapp.gpuid.needs import DeviceNeed, count_for, demands_of, number_text
from dlapp.system import clock
from dlapp.system.logs import log
from dlapp.values.launch_spec import LedgerSettings

if TYPE_CHECKING:
    from dlapp.gpuid.devices import Device
    from dlapp.values.spec import AppSpec

READ_EVERY_S, MAX_TIME_SHARE = 60.0, 0.01
"""Minimum interval between readings, and maximum share of the time spent on them."""
ANSWER_S = 10.0
WAIT_MS = 2_000
"""How long a request for GPUs waits for the first reading, which takes 0.1 s if the ensemble answers."""
_NAMED = 5


class DeviceCountReader:
    """Reader of the ledger beside the loop, each time in a thread that ends with the reading.

    Args:
        settings: location of a ledger of many hosts.
        needs: which GPUs the containers of the application accept.
        put: receives the result, from that thread.
    """

    def __init__(
        self,
        settings: LedgerSettings,
        needs: Collection[DeviceNeed],
        put: Callable[[DeviceCountsRead], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._needs, self._put, self._clock = settings, needs, put, clock
        self._next_at = clock()
        self._thread: threading.Thread | None = None
        self._last_read: dict[str, tuple[Device, ...]] = {}

    @classmethod
    def of(
        cls, settings: LedgerSettings, spec: AppSpec, put: Callable[[DeviceCountsRead], None]
    ) -> DeviceCountReader | None:
        """Return a reader for an application; None: the ledger covers only its own host."""
        return cls(settings, {one.need for one in demands_of(spec)}, put) if settings.covers_cluster else None

    def refresh_for(self, requests: Sequence[ContainerRequest]) -> None:
        """Read again if a request waits for GPUs and the last reading is old. Does not block."""
        if any(one.count and one.resources.gcores for one in requests):
            self.refresh()

    def refresh(self) -> None:
        """Read, unless a reading is recent or in progress. Does not block."""
        now = self._clock()
        if now < self._next_at or (self._thread is not None and self._thread.is_alive()):
            return
        # The process may end meanwhile: nothing is written, and the ensemble expires an idle session by itself.
        self._thread = threading.Thread(target=self._read, name="am-devices", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        began = self._clock()
        try:
            found = self._read_ledger()
        except (DlappError, OSError) as error:
            log.warning(f"the hosts with healthy GPUs are unknown: {error}")
            found = self._last_read
        else:
            self._log_changes(found)
        ended = self._clock()
        self._next_at = ended + max(READ_EVERY_S, (ended - began) / MAX_TIME_SHARE)
        serving: dict[tuple[str, int], dict[str, int]] = {
            need: {host: count_for(need, there) for host, there in found.items()} for need in self._needs
        }
        self._put(DeviceCountsRead({host: len(there) for host, there in found.items()}, serving))

    def _read_ledger(self) -> dict[str, tuple[Device, ...]]:
        from dlapp.gpuid.counts import usable_devices

        found = {}
        ledger = open_cluster_ledger(self._settings)
        try:
            for host, record in ledger.short_hosts(timeout_s=ANSWER_S):
                if isinstance(record, DlappError):
                    continue  # an unreadable record proves nothing about its host
                if (usable := usable_devices(record, clock.now_ms())) is not None:
                    found[host] = usable
        finally:
            ledger.close()
        return found

    def _log_changes(self, found: dict[str, tuple[Device, ...]]) -> None:
        if found and found != self._last_read:
            shown = [f"{host} ({number_text(there)} left)" for host, there in sorted(found.items())]
            more = f" and {len(shown) - _NAMED} more" if len(shown) > _NAMED else ""
            log.warning(f"hosts with GPUs in quarantine: {', '.join(shown[:_NAMED])}{more}")
        self._last_read = found
