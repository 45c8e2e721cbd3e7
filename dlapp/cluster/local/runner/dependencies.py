"""Ends of the applications that others wait for (``after``), from the rows of their user."""

from __future__ import annotations

import json
from collections.abc import Iterable

from dlapp.cluster.local.queue import Queue
from dlapp.cluster.local.row import DEPENDENT, DONE, HELD, WAITING, ApplicationRow
from dlapp.values.start_conditions import UNKNOWN, After, evaluate_conditions, how_ended, read_after


def ends_of(queue: Queue, conditions: Iterable[After]) -> dict[str, str]:
    """Return how the applications of conditions have ended, for those that have; one without a row was removed."""
    ends = {}
    for one in conditions:
        if (row := queue.row(one.application_id)) is None:
            ends[one.application_id] = UNKNOWN
        elif row.state == DONE:
            ends[one.application_id] = how_ended(_final_status(row.outcome))
    return ends


def settle_dependent(queue: Queue, row: ApplicationRow) -> str:
    """Record which of an application's conditions are met; with the last one it waits in the queue, or is held.

    A condition that is met is not checked again: the other application may be removed after that.

    Returns:
        Why it can never start; empty: it still can.
    """
    try:
        conditions = read_after(row.after)
    except ValueError as error:
        return f"its row cannot be read: {error}"
    left = evaluate_conditions(conditions, ends_of(queue, conditions))
    if left.failure or len(left.pending) == len(conditions):
        return left.failure
    with queue.change():
        now = queue.row(row.id)
        if now is not None and now.state == DEPENDENT:
            state = DEPENDENT if left.pending else HELD if now.hold else WAITING
            queue.update(row.number, state=state, after=", ".join(map(str, left.pending)))
    return ""


def _final_status(outcome: str) -> str:
    try:
        found = json.loads(outcome)
    except ValueError:
        return ""
    return str(found.get("final_status", "")) if isinstance(found, dict) else ""
