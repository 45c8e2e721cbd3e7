"""Explanations of a wait for this machine: the smallest change that ends it, and the estimated start."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dlapp.cluster.engine import PlanFacts
from dlapp.cluster.local import spool
from dlapp.cluster.local.queue import Queue
from dlapp.cluster.local.queue_state import count_returned, row_of
from dlapp.cluster.local.reasons import THIS_MACHINE, facts_of
from dlapp.cluster.local.row import DONE, RUNNING, WAITING, ApplicationRow
from dlapp.cluster.local.runner.dependencies import ends_of
from dlapp.cluster.local.schedule import QueueOrder, amounts_of
from dlapp.cluster.local.state import StateDir
from dlapp.cluster.local.views import amounts_json
from dlapp.cluster.reasons.change import smallest_change
from dlapp.cluster.reasons.estimate import MAX_JOBS, Job, StartEstimator
from dlapp.cluster.reasons.facts import GCORES, GpuChoice, LimitFacts, WaitFacts, asks_of
from dlapp.cluster.reasons.tiers import choose, fitting_nodes
from dlapp.errors import DlappError, SpecError
from dlapp.scheduler.amounts import Amounts
from dlapp.system import clock
from dlapp.value import replace
from dlapp.values.serialization import to_json
from dlapp.values.spec import AppSpec
from dlapp.values.start_conditions import plan_texts
from dlapp.values.waiting import STARTING, USER_LIMIT, Ahead, Estimate

if TYPE_CHECKING:
    from dlapp.gpuid.health.nvml_subprocess import NvmlProcess
    from dlapp.gpuid.rules import HostRecord

USER_GCORES = "queue.user_gcores"
"""The operator's setting for the GPUs of one user, in node.yaml."""


class MachineWaits:
    """Amounts of this machine, and their present and past use by applications.

    Args:
        state: the caller's state directory.
        queue: the caller's rows.
        capacity: amounts of this machine.
        lock_dir: directory of the GPU ledger.
        nvml: calls NVML.
        user_gcores: the number of GPUs that the user's applications may have at a time; None: any.
    """

    def __init__(
        self,
        state: StateDir,
        queue: Queue,
        capacity: Amounts,
        lock_dir: str,
        nvml: NvmlProcess,
        user_gcores: int | None = None,
    ) -> None:
        self._state, self._queue, self._capacity, self._lock_dir = state, queue, capacity, lock_dir
        self._nvml, self._user_gcores = nvml, user_gcores

    def in_full(self, spec: AppSpec, order: QueueOrder, row: ApplicationRow) -> dict[str, Any]:
        """Return the change and the estimate of a waiting application, as fields of `dlapp.values.waiting.Waiting` in
        JSON.

        Args:
            order: all that waits.
        """
        change = smallest_change(self._facts(spec, order, row.id))
        return {"change": change, "estimate": to_json(self._estimate(spec, row))}

    def plan(self, spec: AppSpec, order: QueueOrder) -> PlanFacts:
        """Return the facts about an application that might be submitted now, behind all that waits."""
        dependency, held = plan_texts(spec.after, ends_of(self._queue, spec.after), is_held=spec.hold)
        facts = replace(self._facts(spec, order, None), dependency=dependency, held=held)
        reason = choose(facts)
        if reason.code == STARTING:
            reason = replace(reason, message="it would start now")
        nodes = {one.role: (THIS_MACHINE,) if fitting_nodes(facts, one) else () for one in facts.asks}
        return PlanFacts(
            facts=facts,
            waiting=replace(reason, change=smallest_change(facts)),
            estimate=self._estimate(spec, None),
            nodes=nodes,
        )

    def _facts(self, spec: AppSpec, order: QueueOrder, application_id: str | None) -> WaitFacts:
        """Return the facts about an application.

        Args:
            order: all that waits.
            application_id: its id; None: it is not submitted.
        """
        running = [row for row in self._queue.unsettled() if row.state == RUNNING]
        for one in spool.entries_of_others(self._state) if self._state.shared else ():
            if one.phase != spool.WAITING:
                running.append(row_of(one))
        count_returned(self._state, running)
        gpus, capacity, others = None, self._capacity, tuple[GpuChoice, ...]()
        if spec.total()[2]:
            from dlapp.gpuid.counts import count_devices
            from dlapp.gpuid.needs import demands_of
            from dlapp.gpuid.stores.machine import MachineLedger

            with contextlib.suppress(DlappError):
                record = MachineLedger(self._lock_dir, nvml=self._nvml).record()
                if self._capacity.without(running).gcores >= spec.total()[2]:  # else no GPU helps, of whatever kind
                    others = tuple(_other_gpus(spec, record, order, application_id))
                gpus = count_devices(record, demands_of(spec))
                capacity = capacity._replace(gcores=min(capacity.gcores, gpus.total))
        # Placement has no effect here, and all containers run at the same time.
        asks = [replace(one, nodes=(), exclude_nodes=(), node_label="", together=True) for one in asks_of(spec)]
        facts = facts_of(asks, capacity, capacity.without(running), running, gpus=gpus)
        limits = self._limits(running) if spec.total()[2] else ()
        return replace(facts, before=_ahead(order, application_id, spec), other_gpus=others, limits=limits)

    def _limits(self, running: Sequence[ApplicationRow]) -> tuple[LimitFacts, ...]:
        if self._user_gcores is None:
            return ()
        used = sum(row.gcores for row in running if row.uid == self._state.uid)
        most = {GCORES: self._user_gcores}
        return (LimitFacts(code=USER_LIMIT, name="its user", setting=USER_GCORES, most=most, used={GCORES: used}),)

    def estimates(self) -> dict[str, Estimate]:
        """Return the estimated starts of the user's waiting applications, by id."""
        jobs = self._jobs()
        estimator = StartEstimator([job for _, job in jobs], clock.now_ms())
        return {row.id: estimator.estimate(job) for row, job in jobs if row.state == WAITING}

    def _estimate(self, spec: AppSpec, row: ApplicationRow | None) -> Estimate:
        now_ms = clock.now_ms()
        others = [job for one, job in self._jobs() if row is None or one.number != row.number]
        submitted_ms = now_ms if row is None else row.submitted_ms
        job = Job(submitted_ms, None, None, self._share(Amounts(*spec.total())))
        return StartEstimator(others, now_ms).estimate(job)

    def _jobs(self) -> list[tuple[ApplicationRow, Job]]:
        """Return the user's latest applications, except those that never started or are not in the queue yet."""
        columns = "number, id, state, submitted_ms, started_ms, finished_ms, memory_mib, vcores, gcores"
        rows = [
            *self._queue.rows(f"state != '{DONE}' ORDER BY number LIMIT {MAX_JOBS + 1}", columns=columns),
            *self._queue.rows(f"state = '{DONE}' ORDER BY finished_ms DESC LIMIT {MAX_JOBS}", columns=columns),
        ]
        jobs = []
        for one in rows:
            ended_ms = one.finished_ms if one.state == DONE else None
            if one.state == WAITING or one.started_ms is not None:
                jobs.append((one, Job(one.submitted_ms, one.started_ms, ended_ms, self._share(amounts_of(one)))))
        return jobs

    def _share(self, amounts: Amounts) -> float:
        shares = (amount / there for amount, there in zip(amounts[:3], self._capacity[:3], strict=True) if there)
        return min(1.0, max(shares, default=0.0))


def _ahead(order: QueueOrder, application_id: str | None, spec: AppSpec) -> tuple[Ahead, ...]:
    """Return what is ahead of an application with this request; its id is None: it is not submitted."""
    gpus = ""
    if spec.total()[2]:
        from dlapp.gpuid.needs import demands_of, to_text

        gpus = to_text(demands_of(spec))
    before = order.before_with(application_id, Amounts(*spec.total()), gpus)
    return tuple(Ahead(id=one.id, user=one.user, amounts=amounts_json(one.amounts)) for one in before)


def _other_gpus(
    spec: AppSpec, record: HostRecord, order: QueueOrder, application_id: str | None
) -> Iterator[GpuChoice]:
    """Yield what an application can have now in place of its GPUs, the nearest in memory first."""
    from dlapp.gpuid.needs import Demand, DeviceNeed, demand_text, demands_of, other_kinds
    from dlapp.gpuid.selection import choose_for

    there, free = [one.device for one in record.devices if one.present], record.free()
    uuids = {one.uuid for one in free}
    for place, role in enumerate(spec.roles):
        placement, count = spec.placement_of(role), role.instances * role.resources.gcores
        for kind in other_kinds(DeviceNeed(placement.gpu, placement.gpu_memory_mb), there, free) if count else ():
            roles = list(spec.roles)
            try:
                roles[place] = replace(role, placement=replace(placement, gpu=kind))
                other = replace(spec, roles=tuple(roles))
            except SpecError:
                continue  # several slices for one container
            if choose_for(there, uuids, demands_of(other)) is not None:
                text = demand_text(Demand(count, DeviceNeed(kind)))
                yield GpuChoice(role=role.name, kind=kind, text=text, before=_ahead(order, application_id, other))
