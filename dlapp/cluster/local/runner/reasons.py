"""Reasons for waits, as a runner records them in the rows."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from dlapp.cluster.local.row import ApplicationRow
from dlapp.cluster.local.runner.context import RunnerContext
from dlapp.cluster.local.runner.gpus import GpuReservations
from dlapp.cluster.local.schedule import Obstacle
from dlapp.errors import DlappError
from dlapp.scheduler.amounts import Amounts
from dlapp.values.waiting import STARTING, Waiting

LATEST_STEP_MS = 60_000
"""Minimum change of an application's latest start that is written again."""


class ReasonRecorder:
    """Recorder of the reasons for waits."""

    def __init__(self, context: RunnerContext, gpus: GpuReservations) -> None:
        self._context, self._gpus = context, gpus
        self._reserved_ms: dict[int, int | None] = {}  # row number -> its latest start, as written

    def record(
        self,
        row: ApplicationRow,
        obstacle: Obstacle,
        capacity: Amounts | None = None,
        free: Amounts | None = None,
        running: Sequence[ApplicationRow] = (),
        *,
        latest_s: float | None = None,
    ) -> None:
        """Record why a row waits, with the facts about the machine where useful.

        Args:
            row: the application.
            obstacle: the reason.
            capacity, free: amounts of the machine; None: not relevant.
            running: what runs.
            latest_s: its latest start [s since 1970]; None: not known.
        """
        latest_ms = None if latest_s is None else int(latest_s * 1000)
        if row.reason == obstacle.text and not self._is_other_time(row, latest_ms):
            return
        self._reserved_ms[row.number] = latest_ms
        waiting = ""
        if capacity is not None and free is not None:
            waiting = self._reason_of(row, obstacle, capacity, free, running, latest_ms)
        elif obstacle.is_known:
            waiting = _reason_json(Waiting(code=obstacle.code, message=obstacle.text))
        with self._context.queue.change():
            self._context.queue.add_columns()
            self._context.queue.update(row.number, reason=obstacle.text, waiting=waiting)

    def _is_other_time(self, row: ApplicationRow, latest_ms: int | None) -> bool:
        """Return whether the latest start of a row differs notably from the recorded one."""
        before_ms = self._reserved_ms.get(row.number)
        if latest_ms is None or before_ms is None:
            return latest_ms != before_ms
        return abs(latest_ms - before_ms) >= LATEST_STEP_MS  # an overdue application moves it in each pass

    def _reason_of(
        self,
        row: ApplicationRow,
        obstacle: Obstacle,
        capacity: Amounts,
        free: Amounts,
        running: Sequence[ApplicationRow],
        latest_ms: int | None,
    ) -> str:
        """Return the reason in its JSON form, with the text of the obstacle."""
        from dlapp.cluster.local.reasons import facts_of, total_ask
        from dlapp.cluster.reasons.tiers import choose
        from dlapp.value import replace

        reason = Waiting(code=obstacle.code, message=obstacle.text, reserved_ms=latest_ms)
        if not obstacle.is_known:
            gpus = None
            if row.gcores:
                from dlapp.cluster.local.gpu_sets import demands_of_row
                from dlapp.gpuid.counts import count_devices

                with contextlib.suppress(DlappError):
                    gpus = count_devices(self._gpus.ledger().record(), demands_of_row(row))
                    capacity = capacity._replace(gcores=min(capacity.gcores, gpus.total))
            found = choose(facts_of([total_ask(row)], capacity, free, running, gpus=gpus))
            if found.code != STARTING:
                reason = replace(found, message=obstacle.text, reserved_ms=latest_ms)
        return _reason_json(reason)

    def clear(self, rows: Sequence[ApplicationRow]) -> None:
        """Clear the wait reasons of rows that others have overtaken."""
        if rows:
            with self._context.queue.change():
                self._context.queue.add_columns()
                for row in rows:
                    self._context.queue.update(row.number, reason="", waiting="")


def _reason_json(reason: Waiting) -> str:
    import json

    from dlapp.values.serialization import to_json

    return json.dumps(to_json(reason), separators=(",", ":"))
