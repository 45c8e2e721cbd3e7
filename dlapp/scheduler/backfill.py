"""EASY backfill: one reservation, for the first job that does not fit, and starts that do not delay it.

Source: Lifka, "The ANL/IBM SP scheduling system", 1995; Mu'alem and Feitelson, 2001.

The reservation is the earliest time at which the job fits if all running jobs use their whole time limit. A job without
max_runtime has no known end, so it counts as running forever. If such jobs hold too much of the machine, the
reservation has no time: it is unknown which of them ends first, and the job is to start at that moment. Then only
resources that it does not need may be used for backfill: of a resource of which too little is free for it, none.

Of several jobs that may start beside the reservation the largest and longest comes first, since small and short ones
also fit later; a higher priority takes precedence. On traces of a busy machine this compensates the cost of changing
heads by fair shares (``make bench NAME=queue``, utilisation).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from dlapp.scheduler.amounts import Amounts
from dlapp.scheduler.values import Policy, RunningJob, WaitingJob


class StartReservation(NamedTuple):
    """Reservation of one job.

    Args:
        at_s: latest start [s since 1970]; None: not known.
        extra: amounts left for others at that time or, if the time is not known, from now on.
    """

    at_s: float | None
    extra: Amounts


def reserve(job: WaitingJob, free: Amounts, running: Iterable[RunningJob], now_s: float) -> StartReservation:
    """Return the reservation of a job that does not fit now.

    Args:
        job: requests no more than the machine has.
        free: free amounts now.
        running: all holders of a part of the machine.
        now_s: the time [s since 1970].
    """
    known = sorted((max(one.ends_s, now_s), one.amounts) for one in running if one.ends_s is not None)
    then = free
    for place, (ends_s, amounts) in enumerate(known):
        then = then.plus(amounts)
        at_once = place + 1 < len(known) and known[place + 1][0] == ends_s
        if not at_once and job.amounts.fits(then):
            return StartReservation(ends_s, then.remaining(job.amounts))
    return StartReservation(None, free.remaining(job.amounts))


def reservation_after(
    job: WaitingJob, free: Amounts, reservation: StartReservation, now_s: float
) -> StartReservation | None:
    """Return the reservation after another job was started beside it; None: that job must not start now.

    Args:
        job: the other job.
        free: free amounts now.
        reservation: reservation of the first job that does not fit.
        now_s: the time [s since 1970].
    """
    if not job.amounts.fits(free):
        return None
    ends_before = (
        reservation.at_s is not None and job.max_runtime_s is not None and now_s + job.max_runtime_s <= reservation.at_s
    )
    if ends_before:
        return reservation
    if not job.amounts.fits(reservation.extra):
        return None
    return reservation._replace(extra=reservation.extra.remaining(job.amounts))


def by_area(job: WaitingJob, policy: Policy) -> tuple[int, int, float]:
    """Return the key by which jobs are tried beside a reservation, lowest first."""
    limit_s = math.inf if job.max_runtime_s is None else job.max_runtime_s
    return -min(job.priority, policy.cap_of(job.user)), -job.amounts.gcores, -limit_s
