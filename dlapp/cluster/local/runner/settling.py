"""Ends of applications: their rows, secrets and leases, and the notifications of them."""

from __future__ import annotations

import contextlib
import os

from dlapp.cluster.local.notices import mark_end, start_sender
from dlapp.cluster.local.outcome import (
    Outcome,
    failed,
)
from dlapp.cluster.local.row import DONE, UNSTARTED, ApplicationRow
from dlapp.cluster.local.runner.context import RunnerContext
from dlapp.cluster.local.runner.gpus import GpuReservations
from dlapp.cluster.local.runner.processes import ProcessTable
from dlapp.cluster.local.runner.reasons import ReasonRecorder
from dlapp.cluster.local.state import read_spec
from dlapp.system import clock
from dlapp.system.logs import log
from dlapp.system.processes.spawn import spawn
from dlapp.value import NamedTuple


class Settler:
    """Settler of a runner's ended applications."""

    def __init__(self, context: RunnerContext, processes: ProcessTable, gpus: GpuReservations) -> None:
        self._context, self._processes, self._gpus = context, processes, gpus

    def settle_dependents(self) -> None:
        """Check applications that wait for the end of others; the latter are handled first, as their ids are older."""
        if not (dependents := self._context.queue.rows("state = 'dependent' AND uid = ?", (self._context.uid,))):
            return
        from dlapp.cluster.local.runner.dependencies import settle_dependent

        for row in dependents:
            if failure := settle_dependent(self._context.queue, row):
                self.end_unstarted(row, failed(failure, clock.now_ms()))

    def end_unstarted(self, row: ApplicationRow, outcome: Outcome) -> None:
        """End an application that has not started."""
        with self._context.queue.change():
            now = self._context.queue.row(row.id)
            if now is None or now.state not in UNSTARTED:
                return
            is_marked = mark_end(self._context.state, row.id, outcome)
            self._finish_row(row, outcome, "", 0)
        remove_secrets(self._context.state.application(row.id))
        if is_marked:
            self.start_sender(row)
        log.info(f"{row.id}: {outcome['state']}: {outcome['diagnostics']}")

    def settle(self, row: ApplicationRow, outcome: Outcome) -> None:
        """End an application that has run."""
        from dlapp.cluster.local.runner.history import size_of_tree
        from dlapp.cluster.local.views import summary_of

        application_dir = self._context.state.application(row.id)
        if row.gcores:
            self._gpus.clear_leases(row)
        is_marked = mark_end(self._context.state, row.id, outcome)
        remove_secrets(application_dir)
        summary, size = summary_of(row, outcome, application_dir), size_of_tree(application_dir)
        self._processes.died.pop(row.number, None)
        with self._context.queue.change():
            self._finish_row(row, outcome, summary, size)
        log.info(f"{row.id}: {outcome['state']}, {outcome['final_status']}: {outcome['diagnostics']}")
        if is_marked:
            self.start_sender(row)
        if _has_image(application_dir):
            self._start_container_removal(row)

    def start_sender(self, row: ApplicationRow, *, waiting: str = "") -> None:
        """Send a row's notifications; of its wait, if there is a reason for one."""
        if (pid := start_sender(self._context.state, self._context.settings.program, row.id, waiting)) is not None:
            self._processes.add_child(pid)

    def _start_container_removal(self, row: ApplicationRow) -> None:
        """Start the removal of its leftover containers in a process that nothing waits for and that ends by itself."""
        arguments = [
            *self._context.settings.program,
            "cleanup",
            "--application",
            row.id,
            "--host",
            self._context.settings.docker_host,
        ]
        try:
            pid = spawn(arguments, log=self._context.state.runner_log(self._context.uid))
        except OSError as error:
            log.warning(f"{row.id}: its containers could not be listed: {error}")
            return
        self._processes.add_child(pid)

    def _finish_row(self, row: ApplicationRow, outcome: Outcome, summary: str, size_bytes: int) -> None:
        import json

        self._context.queue.update(
            row.number,
            state=DONE,
            finished_ms=outcome["finished_ms"],
            outcome=json.dumps(outcome),
            summary=summary,
            size_bytes=size_bytes,
            reason="",
        )


class RunnerParts(NamedTuple):
    """Parts of a runner that both its starter and its watcher use."""

    context: RunnerContext
    processes: ProcessTable
    gpus: GpuReservations
    reasons: ReasonRecorder
    settler: Settler


def remove_secrets(application_dir: str) -> None:
    """Remove an application's secrets; after its end nothing needs them."""
    from dlapp.values.access import MODIFIERS, VIEWERS, token_file
    from dlapp.values.launch_spec import FILE_NAME

    names = "secrets.json", token_file(VIEWERS), token_file(MODIFIERS)
    paths = [os.path.join(application_dir, name) for name in names]
    with contextlib.suppress(OSError), os.scandir(os.path.join(application_dir, "containers")) as entries:
        paths += [os.path.join(entry.path, FILE_NAME) for entry in entries]
    for path in paths:
        with contextlib.suppress(OSError):
            os.unlink(path)


def _has_image(application_dir: str) -> bool:
    spec = read_spec(application_dir)
    return any(one.get("docker_image") is not None for one in (spec, *spec.get("roles", ())))
