"""Facts about an application that waits for this machine, for the functions in `dlapp.cluster.reasons`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from dlapp.cluster.local.row import ApplicationRow
from dlapp.cluster.local.schedule import amounts_of
from dlapp.cluster.local.views import amounts_json
from dlapp.cluster.reasons.facts import GCORES, MEMORY, VCORES, NodeFacts, WaitFacts
from dlapp.scheduler.amounts import Amounts
from dlapp.values.waiting import Ahead, PendingRequest

if TYPE_CHECKING:
    from dlapp.gpuid.counts import DeviceCounts

THIS_MACHINE = "this machine"


def facts_of(
    asks: Sequence[PendingRequest],
    capacity: Amounts,
    free: Amounts,
    running: Iterable[ApplicationRow],
    *,
    gpus: DeviceCounts | None = None,
) -> WaitFacts:
    """Return what is known about containers that are needed at the same time.

    Args:
        asks: the containers.
        capacity, free: all amounts of this machine, and the free ones.
        running: all that run.
        gpus: GPUs that serve the containers, by the ledger; None: it was not read.
    """
    there, left = _amounts(capacity), _amounts(free)
    usable = None
    if gpus is not None:
        left[GCORES], usable = gpus.free + gpus.out, there[GCORES] - gpus.out
    node = NodeFacts(host=THIS_MACHINE, total=there, free=left, usable_gpus=usable)
    holders = tuple(Ahead(id=one.id, user=one.submitter, amounts=amounts_json(amounts_of(one))) for one in running)
    return WaitFacts(asks=tuple(asks), nodes=(node,), holders=holders, one_machine=True)


def total_ask(row: ApplicationRow) -> PendingRequest:
    """Return the request of all containers of an application as that of one container."""
    memory_mib, vcores, gcores, _ = amounts_of(row)
    return PendingRequest(role="application", count=1, memory_mib=memory_mib, vcores=vcores, gcores=gcores)


def _amounts(amounts: Amounts) -> dict[str, int]:
    return {MEMORY: amounts.memory_mib, VCORES: amounts.vcores, GCORES: amounts.gcores}
