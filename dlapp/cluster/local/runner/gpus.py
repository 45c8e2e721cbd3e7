"""Reservations of GPUs for applications that a runner starts."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from dlapp.cluster.local.row import ApplicationRow
from dlapp.cluster.local.runner.context import FOREIGN_S, RunnerContext
from dlapp.cluster.local.state import read_spec
from dlapp.errors import DlappError, Unreachable
from dlapp.system.logs import log

if TYPE_CHECKING:
    from dlapp.gpuid.stores.locked_devices import Reservation
    from dlapp.gpuid.stores.machine import MachineLedger
    from dlapp.gpuid.stores.queue_tickets import QueueTicket


class GpuReservations:
    """A runner's use of the GPU ledger of this machine."""

    def __init__(self, context: RunnerContext) -> None:
        self._context = context
        self._ledger: MachineLedger | None = None
        self._ticket: tuple[int, QueueTicket] | None = None  # the row that waits for GPUs, and its queue ticket

    def ledger(self) -> MachineLedger:
        """Return the GPU ledger of this machine."""
        if self._ledger is None:
            from dlapp.gpuid.health.inspection import Inspector
            from dlapp.gpuid.health.nvml_subprocess import NvmlProcess
            from dlapp.gpuid.stores.machine import MachineLedger

            nvml = NvmlProcess()
            where, docker_host = self._context.settings.lock_dir, self._context.settings.docker_host
            self._ledger = MachineLedger(where, docker_host=docker_host, nvml=nvml, inspect=Inspector(read=nvml.read))
        return self._ledger

    def reserve_again(self, row: ApplicationRow) -> Reservation | str:
        """Reserve the GPUs that its processes still hold, or others; or return the reason to wait."""
        from dlapp.cluster.local.gpu_sets import demands_of_row
        from dlapp.gpuid.rules import NotEnough

        try:
            ledger, demands = self.ledger(), demands_of_row(row)
            return ledger.join_reservation(row.id) or ledger.reserve(row.id, row.gcores, demands=demands)
        except NotEnough as error:
            return error.reason
        except Unreachable:
            raise  # a state that cannot be written is not a failure of the ledger
        except DlappError as error:
            return str(error)

    def reserve(self, row: ApplicationRow) -> Reservation | str:
        """Reserve GPUs for a row in the order of the queue; or return the reason to wait."""
        from dlapp.cluster.local.gpu_sets import demands_of_row
        from dlapp.gpuid.rules import NotEnough

        ledger, demands = self.ledger(), demands_of_row(row)
        if self._ticket is None or self._ticket[0] != row.number:
            if self._ticket is not None:
                self._ticket[1].close()
            ticket = ledger.ticket(row.id, row.gcores, since_ms=row.submitted_ms, demands=demands)
            self._ticket = (row.number, ticket)
        try:
            spread = bool(read_spec(self._context.state.application(row.id)).get("placement", {}).get("spread"))
            return ledger.reserve(row.id, row.gcores, ticket=self._ticket[1], spread=spread, demands=demands)
        except NotEnough as error:
            self._context.wake_within(FOREIGN_S, "GPUs are held by others")
            return error.reason

    def clear_leases(self, row: ApplicationRow) -> None:
        """Reclaim the leases of an application that has ended."""
        try:
            self.ledger().reclaim(row.id)
        except (DlappError, OSError) as error:
            # Devices still in use stay leased by their evidence; the next request for GPUs checks it again.
            log.warning(f"{row.id}: its leases in the GPU ledger could not be inspected: {error}")

    def drop_ticket(self, rows: Collection[int]) -> None:
        """Give up the place of a row that waits for GPUs, unless it is one of the given ones."""
        if self._ticket is not None and self._ticket[0] not in rows:
            self._ticket[1].close()
            self._ticket = None
