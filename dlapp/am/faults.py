"""Ends of containers, and what becomes of their indexes: done, tried again, given up, or the end of the application."""

from __future__ import annotations

from dlapp.am import demand, journal, verdict
from dlapp.am.books import Due
from dlapp.am.instance import Container, Instance, Stage, Why
from dlapp.am.work import Work
from dlapp.cluster import ContainerEnd
from dlapp.control import Fault, Phase, TaskResult
from dlapp.ids import ContainerId


class Faults(Work):
    """The layer that judges ends."""

    def _on_end(self, end: ContainerEnd) -> None:
        container = self.containers.get(end.container_id)
        if container is None:
            self._released.pop(end.container_id, None)
            self._gone.add(end.container_id)
            self._unblock(end.container_id)
            return
        if container.end is not None:
            return
        container.end, container.view = end, None
        if container.finished_ms is None:
            container.finished_ms = self.now_ms
        self._note(
            "end",
            container=str(end.container_id),
            status=end.exit_status,
            diagnostics=end.diagnostics,
            node_fault=end.node_fault,
        )
        self.live.pop(end.container_id, None)
        if container.result is None:
            self._judge_end(container, end)

    def _judge_end(self, container: Container, end: ContainerEnd) -> None:
        self.open.pop(end.container_id, None)
        role = self.roles[container.place]
        role.unbound.pop(end.container_id, None)
        role.held.pop(end.container_id, None)
        match container.why:
            case None if end.exit_status == 0 and end.container_id.attempt < self.attempt:
                # Its task ended because an ApplicationMaster had its result; that one's journal lost it.
                judged = verdict.Verdict(Fault.STOPPED, "its result was lost with its ApplicationMaster", free=True)
            case None:
                judged = verdict.of_end(end)
            case Why.SILENT | Why.LATE | Why.UNVOUCHED as why:
                judged = verdict.Verdict(Fault.NODE, why.value, avoid_node=why is not Why.UNVOUCHED)
            case why:
                judged = verdict.Verdict(Fault.STOPPED, why.value, free=True)
        self._no_blocker(container)
        self._unblock(end.container_id)
        if self.stage is not Stage.ACTIVE:
            return
        if container.instance is not None:
            self._lost(container.instance, container, judged)
        elif not judged.free and role.waiting:
            # It would have been somebody's: charged to the index that suffered least, so that it ends one day.
            victim = min((self.instances[n] for n in role.waiting_indexes()), key=lambda one: one.node_faults)
            self._lost(victim, container, judged._replace(fault=Fault.NODE))

    def _take_result(self, container: Container, instance: Instance, result: TaskResult) -> None:
        container.result, container.phase, container.finished_ms = result, Phase.ENDED, self.now_ms
        if result.exit_code is not None or result.signal is not None:
            container.ran = self.payload_ran = True
            if self._is_of_a_closed_gang(container):
                container.why = container.why or Why.RECALLED
        self.open.pop(container.container_id, None)
        blamed = result.fault in (Fault.USER, Fault.DATA)
        self._note("result", durable=blamed, **journal.result_fields(container.container_id, result))
        self._at(self.timing.exit_ms, Due.STOP, container)
        self._judge_result(container, instance, result)

    def _judge_result(self, container: Container, instance: Instance, result: TaskResult) -> None:
        if instance.container is not container:
            return
        recalled = container.why is Why.RECALLED
        if not recalled:
            self._take_stored(instance, container, result)
        if self.stage is Stage.ACTIVE:
            judged = verdict.of_result(result)
            if recalled:
                judged = verdict.Verdict(Fault.STOPPED, Why.RECALLED.value, free=True)
            self._lost(instance, container, judged)
        elif result.fault is Fault.NONE and self.stage is Stage.CLOSING:
            self._done(instance)

    def _lost(self, instance: Instance, container: Container, judged: verdict.Verdict) -> None:
        """An index's container is over, or one that it would have had: decide what becomes of the index."""
        if judged.fault is Fault.NONE:
            self._done(instance)
            return
        if judged.avoid_node:
            self._avoided.add(container.grant.node, self.awake_ms)
        if not judged.free:
            instance.user_faults += judged.fault is Fault.USER
            instance.node_faults += judged.fault in (Fault.NODE, Fault.STOPPED)
        users, nodes = instance.user_faults, instance.node_faults
        durable = judged.fault is Fault.USER
        if verdict.tried_again(judged, user_faults=users, node_faults=nodes, retries=instance.role.retries):
            if instance.container is container:
                self._free(instance, durable)
                role = self.roles[container.place]
                if role.gate.gang and role.gate.open and container.why is not Why.RECALLED:
                    self._restart_gang(role)
            return
        if instance.index in self._deciding:
            name = verdict.container_name(instance.index, instance.role.name, instance.role_index)
            self._fail(verdict.failure(name, judged, user_faults=users, node_faults=nodes))
        else:
            instance.given_up, instance.container, instance.stored = True, None, None
            self.roles[container.place].take(instance.index)
            self._note("give_up", durable, index=instance.index, user_faults=users, node_faults=nodes)

    def _free(self, instance: Instance, durable: bool = False) -> None:
        """An index waits for a container again. Only called when the one that it had is no longer open."""
        container = instance.container
        assert container is not None
        role = self.roles[container.place]
        instance.container = None
        if instance.done:
            instance.done, instance.stored = False, None
            if instance.index in self._deciding:
                self._undecided.add(instance.index)
        role.gate.leave(instance.index)
        role.wait(instance.index)
        self._note(
            "free",
            durable,
            index=instance.index,
            user_faults=instance.user_faults,
            node_faults=instance.node_faults,
        )
        self._serve(role)

    def _restart_gang(self, role: demand.Role) -> None:
        """Begin a gang anew: see `dlapp.am.gate`."""
        role.gate.close()
        self._note("gate", durable=True, role=role.spec.name, open=False)
        for index in role.indexes:
            instance = self.instances[index]
            container = instance.container
            if container is None:
                continue
            if container.container_id in self.open:
                self._stop(container, Why.RECALLED)
            else:
                self._free(instance)

    def _no_blocker(self, container: Container) -> None:
        role = self.roles[container.place]
        container.unvouched = False
        if role.blockers.pop(container.container_id, None) is not None and not role.blockers:
            self._serve(role)
        self._check_gang_after_recovery(role)

    def _unblock(self, container_id: ContainerId) -> None:
        """A container is gone of which it was not known which role it was of."""
        for role in self.roles:
            if role.blockers.pop(container_id, None) is not None:
                if not role.blockers:
                    self._serve(role)
                self._check_gang_after_recovery(role)

    def _is_of_a_closed_gang(self, container: Container) -> bool:
        """Whether it ran for a gang that begins anew: its attempt closed the gate, and died before all had heard.

        Without a journal that is only known once all members are heard or gone.
        """
        role = self.roles[container.place]
        journal_knows = self._former is not None and self._former.started_ms is not None
        return role.gate.gang and not role.gate.open and self.attempt > 1 and (journal_knows or not role.recovering)

    def _has_passed_the_gate(self, container: Container) -> bool:
        return container.ran or container.storing or container.phase in (Phase.RUNNING, Phase.ENDED)

    def _check_gang_after_recovery(self, role: demand.Role) -> None:
        """When all that an earlier attempt left of a gang is heard or gone: is it one gang?"""
        if not role.recovering or self.stage is not Stage.ACTIVE or role.blockers:
            return
        members = [self.instances[index] for index in role.indexes]
        if any(one.container is not None and one.container.unvouched for one in members):
            return
        role.recovering = False
        began = [one for one in members if one.container is not None and self._has_passed_the_gate(one.container)]
        if role.gate.open:
            if role.waiting:
                self._restart_gang(role)
        elif any(one.container is not None and one.container.why is None for one in began):
            # No journal says that it was opened, but payloads run. All there: it was; else it cannot be completed.
            if role.waiting:
                self._restart_gang(role)
            else:
                self._open_gate(role)
