"""Work for containers: an index is bound to a container when its task asks for it, and told what to do.

An index is only ever bound at a hello, to a task that has just proved to be alive. While a container of an earlier
attempt may run an index of the role and nobody knows which, no index of the role is given out: those who ask wait for
their answer.
"""

from __future__ import annotations

from dlapp.am import demand
from dlapp.am.books import Due
from dlapp.am.closing import Closing
from dlapp.am.events import Assign, Refuse, SendOrders, StopContainer
from dlapp.am.instance import Container, Instance, Stage, Why
from dlapp.control import Assignment, Orders
from dlapp.ids import ContainerId


class Work(Closing):
    """The layer that gives out indexes and opens gates."""

    def _serve(self, role: demand.Role) -> None:
        """Answer those who were kept waiting for work."""
        while role.held and not role.blockers:
            container_id, container = next(iter(role.held.items()))
            del role.held[container_id]
            self._bind_next(container)
            if container.why is not None:
                self._refuse(container_id, container.why.value)

    def _bind_next(self, container: Container) -> None:
        """Give a container that asks for work the lowest index that waits, as soon as one may be given."""
        role = self.roles[container.place]
        index = role.next_index()
        if self.stage is not Stage.ACTIVE:
            self._stop(container, Why.ENDING)
        elif role.blockers:
            role.held[container.container_id] = container
        elif index is None:
            self._stop(container, Why.SURPLUS)
        else:
            self._bind(container, self.instances[index])
            self._assign(container, self.instances[index])

    def _bind(self, container: Container, instance: Instance) -> None:
        role = self.roles[container.place]
        role.take(instance.index)
        role.unbound.pop(container.container_id, None)
        role.held.pop(container.container_id, None)
        instance.container = instance.last = container
        instance.tries += 1
        instance.stored = None
        container.instance, container.try_number, container.view = instance, instance.tries, None
        self._note(
            "assign",
            container=str(container.container_id),
            index=instance.index,
            host=container.host,
            tries=instance.tries,
        )
        self._first_orders(container)

    def _first_orders(self, container: Container) -> None:
        role = self.roles[container.place]
        container.orders = Orders(
            attempt=self.attempt, number=1, go=role.gate.open, report_every_s=self.timing.report_every_s
        )
        self._at(self.timing.silence_ms, Due.SILENCE, container)

    def _assign(self, container: Container, instance: Instance) -> None:
        spec, role = self.spec, instance.role
        assignment = Assignment(
            application_id=self.application_id,
            attempt=self.attempt,
            container_id=container.container_id,
            index=instance.index,
            total=len(self.instances),
            role=role.name,
            role_index=instance.role_index,
            role_size=role.instances,
            resources=role.resources,
            script=role.script if role.script is not None else spec.script,
            args=role.args if role.args is not None else spec.args,
            docker_image=role.docker_image if role.docker_image is not None else spec.docker_image,
            username=spec.username,
            appname=spec.appname,
            workspace_archive=self.submission.workspace_archive,
            workspace_digest=self.submission.workspace_digest,
            inputs=spec.inputs,
            outputs=spec.outputs,
            parts=self._parts_of(container.container_id),
            kill_grace_s=spec.kill_grace_s,
            log_limit_bytes=self.submission.log_limit_bytes,
            spread=spec.placement.spread,
            collect_gpus=spec.collect_gpus,
        )
        self._do(Assign(container.container_id, assignment))
        assert container.orders is not None
        self._do(SendOrders(container.container_id, container.orders))

    def _refuse(self, container_id: ContainerId, why: str) -> None:
        self._do(Refuse(container_id, why))
        self._do(StopContainer(container_id))

    def _at_the_gate(self, instance: Instance) -> None:
        gate = self.roles[self._place(instance)].gate
        if instance.container is None or instance.container.why is not None:
            return
        if gate.arrive(instance.index):
            self._open_gate(self.roles[self._place(instance)])
        elif gate.open and instance.container.orders and not instance.container.orders.go:
            self._order(instance.container, go=True)

    def _open_gate(self, role: demand.Role) -> None:
        role.gate.reopen()
        self._note("gate", durable=True, role=role.spec.name, open=True)
        for index in role.indexes:
            container = self.instances[index].container
            if container and container.why is None and container.orders and not container.orders.go:
                self._order(container, go=True)
