"""Missing amounts of a machine, starts in a shared queue, and the queue as shown to users. Pure functions.

Which application may start is decided by `dlapp.scheduler`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from dlapp.cluster.local.row import RUNNING, ApplicationRow
from dlapp.scheduler.amounts import Amounts
from dlapp.system.text import counted, memory_text

if TYPE_CHECKING:
    from dlapp.gpuid.needs import Demand


class TooLarge(NamedTuple):
    """Requested amount that a machine can never provide.

    Args:
        name: ``memory``, ``vcores`` or ``gcores``.
        problem: the requested and the existing amount.
        hint: what the user can do.
    """

    name: str
    problem: str
    hint: str


class Obstacle(NamedTuple):
    """Obstacle to the start of an application that waits.

    Args:
        text: text for users.
        code: code of `dlapp.values.waiting`, if the facts about the machine give none.
        is_known: the facts need not be checked.
    """

    text: str
    code: str
    is_known: bool = False


_HINTS: Mapping[str, str] = {
    "memory": "local.memory can set another amount",
    "vcores": "local.vcores can set a larger number: a vcore is a share of time",
    "gcores": "dlapp-doctor shows which GPUs there are",
}


def too_large(requested: Amounts, capacity: Amounts) -> Iterator[TooLarge]:
    """Yield each requested amount that ``capacity`` can never provide."""
    for name, needed, available in _amounts(requested, capacity):
        if needed > available:
            problem = f"asked for {_shown(name, needed, available)}, this machine has {_shown(name, available, needed)}"
            hint = "dlapp-doctor shows why no GPU was found" if name == "gcores" and not available else _HINTS[name]
            yield TooLarge(name, problem, hint)


def lack(requested: Amounts, free: Amounts, running: Iterable[ApplicationRow] = ()) -> str | None:
    """Return what is missing for a request, and who holds it; None: it fits.

    >>> lack(Amounts(8192, 1, 0), Amounts(4096, 2, 0))
    'needs 8 GiB of memory, 4 GiB free'
    """
    for name, needed, available in _amounts(requested, free):
        if needed > max(available, 0):  # a request for none of it is not blocked, even if more is used than exists
            available = max(available, 0)
            text = f"needs {_shown(name, needed, available)}, {_shown(name, available, needed, unit=False)} free"
            field = {"memory": "memory_mib"}.get(name, name)
            holders = [f"{row.id} ({row.submitter})" for row in running if getattr(row, field)]
            return f"{text}: {', '.join(holders[:3])}{' and others' if len(holders) > 3 else ''}" if holders else text
    return None


class StartDecision(Enum):
    """Decision of a runner that has published its start, and has then read the other users' spools."""

    START = "start"
    WITHDRAW = "withdraw"
    WAIT = "wait"
    """Read the spools again: an application later in the order is to withdraw."""


def decide_start(
    requested: Amounts, order: tuple[int, int, str], free: Amounts, rivals: Sequence[ApplicationRow]
) -> StartDecision:
    """Decide on a start in a shared queue; see the steps in `dlapp.cluster.local.spool`.

    Args:
        requested: requested amounts of the application.
        order: its queue position.
        free: amounts not used by this user's running applications.
        rivals: starting or running applications of other users whose lock is held.
    """
    if lack(requested, free.without(rivals)) is None:
        return StartDecision.START
    settled = [one for one in rivals if one.state == RUNNING or one.order < order]
    return StartDecision.WAIT if lack(requested, free.without(settled)) is None else StartDecision.WITHDRAW


def amounts_of(row: ApplicationRow) -> Amounts:
    """Return the total request of all containers of an application."""
    return Amounts(row.memory_mib, row.vcores, row.gcores)


class QueuedApplication(NamedTuple):
    """Waiting application: its id, its user and its requested amounts.

    Args:
        gpus: which GPUs its gcores are, as in `dlapp.cluster.local.queue`.
    """

    id: str
    user: str
    amounts: Amounts
    gpus: str = ""


class QueueOrder:
    """All waiting applications, in order.

    Args:
        entries: applications of all users, in queue order.
        obstacles: why some of them are not in the order, by id; then none counts as ahead of them.
        hours: current usage of each user, by uid; in a shared queue only.
        free: returns the free memory and vcores; None: all that come before an application are ahead of it, also those
            that wait for GPUs of another kind.
    """

    def __init__(
        self,
        entries: Sequence[QueuedApplication] = (),
        obstacles: Mapping[str, Obstacle] | None = None,
        hours: Mapping[int, float] | None = None,
        free: Callable[[], Amounts] | None = None,
    ) -> None:
        self.entries, self._obstacles, self.hours, self._read_free = entries, obstacles or {}, hours or {}, free
        self._places = {one.id: place for place, one in enumerate(entries)}
        self._free: Amounts | None = None

    def before(self, application_id: str) -> Sequence[QueuedApplication]:
        """Return the applications ahead of one; none for the first."""
        place = self._places.get(application_id, 0)
        return self._ahead_of(self.entries[place], place) if place else ()

    def before_with(self, application_id: str | None, amounts: Amounts, gpus: str) -> Sequence[QueuedApplication]:
        """Return the applications that would be ahead of one with this request.

        Args:
            application_id: its id, if it is in the order; None: it is to be submitted.
            amounts: its requested amounts.
            gpus: which GPUs these are, as in an entry.
        """
        place = len(self.entries) if application_id is None else self._places.get(application_id, 0)
        return self._ahead_of(QueuedApplication("", "", amounts, gpus), place)

    def _ahead_of(self, later: QueuedApplication, place: int) -> Sequence[QueuedApplication]:
        """Return those of the applications before a place that are ahead of one there."""
        earlier = self.entries[:place]
        if self._read_free is None or not (later.gpus or any(one.gpus for one in earlier)):
            return earlier
        if self._free is None:
            self._free = self._read_free()
        behind: dict[tuple[Amounts, str], bool] = {}
        for one in earlier:
            if (key := (one.amounts, one.gpus)) not in behind:
                behind[key] = _is_behind(later, one, self._free)
        return [one for one in earlier if behind[one.amounts, one.gpus]]

    def obstacle(self, application_id: str) -> Obstacle | None:
        """Return why an application is not in the order; None: it is, or is not known."""
        return self._obstacles.get(application_id)


def _is_behind(later: QueuedApplication, earlier: QueuedApplication, free: Amounts) -> bool:
    """Return whether an application waits because of an earlier one, while no GPU is free."""
    from dlapp.gpuid.needs import from_text, may_share

    theirs, own = (from_text(one.gpus, one.amounts.gcores) for one in (earlier, later))
    needs = sorted({one.need for one in (*theirs, *own)})

    def counted_by_need(amounts: Amounts, demands: Sequence[Demand]) -> Amounts:
        by_set = (sum(one.gcores for one in demands if may_share(one.need, need)) for need in needs)
        return amounts._replace(gcores=0, by_set=tuple(by_set))

    first, there = counted_by_need(earlier.amounts, theirs), counted_by_need(free, ())
    return counted_by_need(later.amounts, own).is_behind(first, there, there.remaining(first))


def _amounts(requested: Amounts, available: Amounts) -> Iterable[tuple[str, int, int]]:
    return zip(("memory", "vcores", "gcores"), requested[:3], available[:3], strict=True)


def _shown(name: str, amount: int, beside: int, *, unit: bool = True) -> str:
    if name != "memory":
        return counted(amount, name) if unit else str(amount)
    text = memory_text(amount)
    if amount != beside and text == memory_text(beside):
        text = f"{amount} MiB"  # rounded, both would look the same
    return f"{text} of memory" if unit else text
