"""What an earlier attempt left: a journal, live containers, tasks that say what they run.

The engine's list says which containers live, the tasks say which index they run; the journal fills in. A container of
which the journal knows the index keeps it from being given out, one of which nobody knows it keeps all indexes of its
role, until its task is heard or its end is known. Whose task is not heard by the recovery's deadline is stopped. What
only a journal or a late message tells of, and neither the engine nor a task confirms, is presumed gone.

No task can be heard before it can find us. Where that takes a file on HDFS, and HDFS takes no changes for an hour, the
tasks of the earlier attempt compute on meanwhile, so the deadline begins when the file is there.
"""

from __future__ import annotations

from dlapp.am import journal, verdict
from dlapp.am.books import Due
from dlapp.am.events import Settlement, StopContainer
from dlapp.am.faults import Faults
from dlapp.am.instance import Container, Stage, Why
from dlapp.cluster import ContainerEnd, Grant
from dlapp.control import Phase, Stop
from dlapp.ids import ContainerId
from dlapp.report import Cause

RAN = (Phase.RUNNING, Phase.STORING)


class Recovery(Faults):
    """The layer that takes over."""

    def _recover(self, former: journal.Former, live: tuple[Grant, ...]) -> None:
        by_id = {grant.container_id: grant for grant in live}
        for role in self.roles:
            role.recovering = role.gate.gang
            if role.gate.gang and former.gates.get(role.spec.name):
                role.gate.reopen()
        for index, (user_faults, node_faults) in former.faults.items():
            if index < len(self.instances):
                self.instances[index].user_faults = user_faults
                self.instances[index].node_faults = node_faults
        for container_id, known in former.containers.items():
            self._recover_container(former, known, by_id.pop(container_id, None))
        for index in former.given_up:
            self.instances[index].given_up = True
            self.roles[self._place_of_index(index)].take(index)
        for grant in by_id.values():
            self._adopt(grant)
        if former.ending is not None:
            for instance in self.instances:
                if (container := instance.container) is not None and (result := container.result) is not None:
                    self._take_stored(instance, container, result)
            self.ending, self._how = former.ending
            if former.outputs is not None:
                self.outputs = former.outputs
                self.stage = Stage.LEAVING
                self._closing_until_ms = self.awake_ms + self.timing.end_ms
                self._stop_all()
            elif self._how is Settlement.COMMIT:
                self._stop_all()
                self._settle()
            else:
                self._conclude(self.ending, self._how)
            return
        self._judge_what_is_over()
        if self.stage is Stage.ACTIVE and former.soft is not None:
            by, cause, ends_ms = former.soft
            words = f"soft-killed by {by}" if cause is Cause.SOFT_KILLED else self._timed_out_words()
            self._soft_stop(by, cause, words, ends_ms=ends_ms)
        for role in self.roles:
            self._check_gang_after_recovery(role)

    def _recover_container(self, former: journal.Former, known: journal.FormerContainer, grant: Grant | None) -> None:
        container_id = known.grant.container_id
        index = known.index
        if index is not None and not 0 <= index < len(self.instances):
            index = None
        bound = index is not None and former.bound.get(index) == container_id
        if known.end is not None and not bound and (index is None or former.last.get(index) != container_id):
            self._gone.add(container_id)
            return
        place = self._place_of_index(index) if index is not None else known.grant.request_id - 1
        if not 0 <= place < len(self.roles):
            return
        container = Container(grant or known.grant, place, known.started_ms)
        container.host, container.ran, container.try_number = known.host, known.ran, known.try_number
        container.result, container.end, container.finished_ms = known.result, known.end, known.finished_ms
        container.heard_ms, container.listed, container.renumber = self.awake_ms, grant is not None, True
        if container.result is not None:
            container.phase = Phase.ENDED
        self.payload_ran = self.payload_ran or container.ran
        self.containers[container_id] = container
        alive = container.end is None and (container.listed or container.result is None)
        if container.end is None:
            # What only a journal knows may be alive all the same, until the recovery's deadline; a result of its task
            # says that it is as good as gone.
            if alive:
                self.live[container_id] = container
            if container.result is None:
                self.open[container_id] = container
                container.unvouched = True
            elif alive:
                self._at(self.timing.exit_ms, Due.STOP, container)
        if index is not None and former.last.get(index) == container_id:
            self.instances[index].last = container
            self.instances[index].tries = former.tries.get(index, 0)
        if index is None or not bound:
            if container.unvouched:
                self._unknown_index(container)
            return
        instance = self.instances[index]
        instance.container, container.instance = container, instance
        self.roles[place].take(index)
        if container.unvouched:
            self._first_orders(container)
            if container.ran and self._is_of_a_closed_gang(container):
                self._stop(container, Why.RECALLED)

    def _unknown_index(self, container: Container) -> None:
        role = self.roles[container.place]
        if container.listed:
            role.unbound[container.container_id] = container
        role.blockers[container.container_id] = container

    def _judge_what_is_over(self) -> None:
        """Decide on the results and ends of which the earlier attempt wrote no decision."""
        for instance in self.instances:
            container = instance.container
            if container is None or self.stage is not Stage.ACTIVE:
                continue
            if (container.result or container.end) and container.ran and self._is_of_a_closed_gang(container):
                self._free(instance)
            elif container.result is not None:
                self._judge_result(container, instance, container.result)
            elif container.end is not None:
                self._lost(instance, container, verdict.of_end(container.end))

    def _adopt(self, grant: Grant, *, listed: bool = True) -> Container | None:
        """Take over a container that an earlier attempt left; what it runs is not known.

        Args:
            listed: the engine says that it lives; False: only its task does.
        """
        role = self._role(grant.request_id)
        if role is None:
            self._gone.add(grant.container_id)
            self._do(StopContainer(grant.container_id))
            return None
        container = self._keep(grant, role)
        container.unvouched = container.renumber = True
        container.listed = listed
        if self._recovery_until_ms is None or self._recovery_until_ms <= self.awake_ms:
            self._recovery_until_ms = self.awake_ms + self.timing.recovery_ms
        self._unknown_index(container)
        if self.stage is not Stage.ACTIVE:
            self._stop(container, Why.ENDING)
        return container

    def _vouch(self, container: Container, index: int, phase: Phase) -> None:
        """A task says which index it runs: bind it, unless that index runs elsewhere."""
        role = self.roles[container.place]
        if container.instance is not None:
            if container.instance.index != index:
                self._stop(container, Why.CONFLICT, at_once=True)
            return
        free = (
            index in role.indexes
            and self.instances[index].container is None
            and not self.instances[index].given_up
            and container.unvouched
            and self.stage is Stage.ACTIVE
        )
        if not free:
            self._stop(container, Why.CONFLICT, at_once=True)
            return
        self._bind(container, self.instances[index])
        container.phase = phase
        self._has_run(container, phase)
        self._vouched(container)

    def _vouched(self, container: Container) -> None:
        container.hello = True
        if container.unvouched:
            if container.why is Why.UNVOUCHED:
                return
            self._no_blocker(container)

    def _has_run(self, container: Container, phase: Phase) -> None:
        if phase in RAN and not container.ran:
            container.ran = self.payload_ran = True
            self._note("run", container=str(container.container_id))
            if self._is_of_a_closed_gang(container):
                self._stop(container, Why.RECALLED)

    def _on_published(self) -> None:
        if self._recovery_until_ms is not None and self._unpublished_until_ms > self.awake_ms:
            self._recovery_until_ms = self.awake_ms + self.timing.recovery_ms
        self._unpublished_until_ms = 0

    def _look_at_recovery(self) -> None:
        if self._recovery_until_ms is None:
            return
        if self.awake_ms < max(self._recovery_until_ms, self._unpublished_until_ms):
            return
        self._recovery_until_ms = None
        for container in [one for one in self.open.values() if one.unvouched]:
            if container.listed:
                self._stop(container, Why.UNVOUCHED, at_once=True)
            else:
                self._presume_gone(container)

    def _on_ending(self, container_id: ContainerId) -> None:
        """The engine takes a container away. One of an earlier attempt that no journal has may run any index until its
        end is known: YARN takes those that were started in the last second before their ApplicationMaster died.
        """
        container = self.containers.get(container_id)
        if container is not None and container_id in self.open and container.orders is not None:
            # A node that YARN has lost may still reach us: then its task hears from us that it is to end.
            if container.orders.stop is not Stop.NOW:
                self._order(container, stop=Stop.NOW, why="its node is lost, or it is taken away", go=False)
            return
        if not self._is_new(container_id) or container_id.attempt >= self.attempt:
            return
        for role in self.roles:
            grant = Grant(container_id=container_id, request_id=role.request_id, node="", resources=role.spec.resources)
            role.blockers[container_id] = Container(grant, role.place, self.now_ms)

    def _is_nobodys(self, container: Container) -> bool:
        """Whether only a journal, or a message that was long on its way, ever told of it, and it has been silent."""
        return not container.listed and self.awake_ms - container.heard_ms >= self.timing.silence_ms

    def _presume_gone(self, container: Container) -> None:
        """Neither the engine nor a task knows of it: it is gone, and nobody is left to say so."""
        self._do(StopContainer(container.container_id))
        self._on_end(ContainerEnd(container_id=container.container_id, exit_status=-100, node_fault=True))
