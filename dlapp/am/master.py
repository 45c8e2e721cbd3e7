"""The ApplicationMaster's mind: what it knows, and what it does about each event. No I/O, no clock, no chance.

How an application goes:

    STARTING   the engine has not taken us yet
    ACTIVE     containers are asked for, tasks bound to indexes, faults tried again
    CLOSING    how it ends is decided; every container is stopped, or is ending softly with its output stored
    SETTLING   each one's result or end is known (or its time is up): the outputs are put where they belong
    LEAVING    the outputs are settled; the last ends are waited for, with a deadline
    ENDED      the engine was told (or wants no more of us)

Two clocks: ``now_ms`` comes with each event and is shown to people; deadlines run on the time that the
ApplicationMaster was awake, which a suspended laptop, a stopped process or a clock step does not move by more than
`MAX_GAP_MS`. Otherwise all tasks would seem silent after a lid was opened.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from typing import Any, NamedTuple

from dlapp.am import demand, journal, verdict, view
from dlapp.am.events import (
    Abandon,
    Action,
    AnswerStop,
    Assign,
    Ending,
    Event,
    Finish,
    Journal,
    Kill,
    OutputsSettled,
    Part,
    Refuse,
    SendOrders,
    Settlement,
    SettleOutputs,
    SoftKill,
    StartTask,
    StopContainer,
    Tick,
)
from dlapp.am.instance import Container, Instance, Stage, Why
from dlapp.cluster import Ask, ContainerEnd, Grant, Heartbeat, Registered
from dlapp.control import Assignment, Fault, Hello, Orders, Phase, Report, Stop, StopAnswer, TaskResult
from dlapp.ids import ApplicationId, ContainerId
from dlapp.report import ApplicationView, Cause, FinalStatus, OutputView
from dlapp.spec import Submission

MAX_GAP_MS = 10_000
_RAN = (Phase.RUNNING, Phase.STORING)


class Timing(NamedTuple):
    """How long what may take [ms of time awake, except `report_every_s`].

    Args:
        hello_ms: from the start of a task to its first word; on a cluster its files are fetched in that time.
        silence_ms: between two reports, before the container is stopped; six report intervals.
        recovery_ms: from a new attempt's registration until the tasks of the earlier one must have found it.
        stop_ms: from `Stop.NOW` in a task's orders, which lets it clean up, to the end of its container by the engine.
        repeat_stop_ms: between two requests to end a container whose end is not known.
        exit_ms: from a task's result to the end of its process.
        soft_margin_ms: what a soft stop may take beyond its grace, before containers that are not storing are stopped.
        store_ms: how long those may take that are.
        end_ms: from the last request to end containers until the application ends without knowing their ends.
        avoid_ms: how long a node that failed a container is avoided.
    """

    hello_ms: int = 300_000
    silence_ms: int = 60_000
    recovery_ms: int = 60_000
    stop_ms: int = 3_000
    repeat_stop_ms: int = 5_000
    exit_ms: int = 10_000
    soft_margin_ms: int = 10_000
    store_ms: int = 3_600_000
    end_ms: int = 60_000
    avoid_ms: int = 600_000
    report_every_s: float = 10.0


class _Due(Enum):
    HELLO = 1
    SILENCE = 2
    STOP = 3


def _no_parts(_: ContainerId) -> tuple[str, ...]:
    return ()


class Master:
    """One attempt of one application.

    Args:
        former: what the journals of earlier attempts say (`journal.replay`); None: this is the first.
        parts_of: for each output of the spec, where this container's part goes while it is not committed.

    Attributes (for looking at, only `handle` changes them):
        stage: see the top of the file.
        instances: by CONTAINER_INDEX.
        containers: all that were granted and kept; `live`: those whose end is not known; `open`: those of them whose
            task said no result either.
        ending: how it ends, once that is decided; `outputs`: what became of them.
        revision: grows when the view may have changed.
        soft_by, soft_ends_ms: who asked for a soft stop, and when its grace is over.
    """

    def __init__(
        self,
        submission: Submission,
        application_id: ApplicationId,
        attempt: int,
        *,
        former: journal.Former | None = None,
        parts_of: Callable[[ContainerId], tuple[str, ...]] = _no_parts,
        timing: Timing = Timing(),  # noqa: B008 - a tuple, it cannot change
    ) -> None:
        self.submission, self.spec = submission, submission.spec
        self.application_id, self.attempt = application_id, attempt
        self.timing = timing
        self._former, self._parts_of = former, parts_of
        self.stage = Stage.STARTING
        self.instances: list[Instance] = []
        self.roles: list[demand.Role] = []
        for place, role in enumerate(self.spec.roles):
            first = len(self.instances)
            self.roles.append(demand.Role(place, role, first))
            self.instances.extend(Instance(first + n, role, n) for n in range(role.instances))
        every_role_serves = all(role.service for role in self.spec.roles)
        self._undecided = {one.index for one in self.instances if every_role_serves or not one.role.service}
        self._deciding = frozenset(self._undecided)
        self.containers: dict[ContainerId, Container] = {}
        self.live: dict[ContainerId, Container] = {}
        self.open: dict[ContainerId, Container] = {}
        self._released: dict[ContainerId, None] = {}
        self._gone: set[ContainerId] = set()
        self._avoided = demand.AvoidedNodes(self.spec.placement, timing.avoid_ms)
        self._due: list[tuple[int, int, _Due, Container]] = []
        self._due_count = 0

        self.now_ms = self.awake_ms = self.revision = 0
        self.started_ms: int | None = None
        self.finished_ms: int | None = None
        self._runtime_from_ms = 0
        self._recovery_until_ms: int | None = None
        self.payload_ran = False
        self._stop_before_start: SoftKill | Kill | None = None

        self.ending: Ending | None = None
        self._how = Settlement.DROP
        self._soft_words: str | None = None
        self.soft_by = ""
        self.soft_ends_ms: int | None = None
        self._soft_ends_awake_ms = 0
        self._closing_stage = 0
        self._closing_until_ms = 0
        self.outputs: tuple[OutputView, ...] = ()
        self._actions: list[Action] = []

    # ---- what the loop looks at ----

    def asks(self) -> tuple[Ask, ...]:
        """What is wanted of the engine now, one ask a role; said with every heartbeat."""
        wanted = self.stage is Stage.ACTIVE
        return demand.asks(self.roles, self._avoided.placement(self.awake_ms), wanted=wanted)

    def releases(self) -> tuple[ContainerId, ...]:
        """Containers that are given back and whose end the engine has not said; said with every heartbeat."""
        return tuple(self._released)

    def orders_of(self, container_id: ContainerId) -> Orders | None:
        """The orders a task has now; None: it has none, its report is answered by `SendOrders`."""
        container = self.containers.get(container_id)
        return container.orders if container else None

    @property
    def commits(self) -> bool:
        """Whether its output is to be committed."""
        return self._how is Settlement.COMMIT

    def progress(self) -> float:
        """Share of the deciding indexes that are done, 0 to 1."""
        return 1.0 - len(self._undecided) / len(self._deciding)

    def view(self, tracking_url: str = "") -> ApplicationView:
        """The application as it is now, for people and tools; only containers that changed cost anything."""
        return view.of(self, tracking_url)

    # ---- events ----

    def handle(self, event: Event, now_ms: int) -> list[Action]:
        """Take in what happened; the answer is what to do now, in this order.

        Args:
            now_ms: the time [ms since 1970]; it may step.
        """
        self._pass_time(now_ms)
        if self.stage is Stage.ENDED:
            self._answer_after_the_end(event)
        else:
            match event:
                case Report():
                    self._on_report(event)
                case Hello():
                    self._on_hello(event)
                case Heartbeat():
                    self._on_heartbeat(event)
                case Registered():
                    self._on_registered(event)
                case SoftKill() | Kill():
                    self._on_stop(event)
                case OutputsSettled():
                    self._on_settled(event)
                case Tick():
                    pass
            self._advance()
        actions, self._actions = self._actions, []
        if actions or not isinstance(event, (Tick, Heartbeat)):
            self.revision += 1
        return actions

    def _pass_time(self, now_ms: int) -> None:
        if self.now_ms:
            self.awake_ms += min(max(now_ms - self.now_ms, 0), MAX_GAP_MS)
        self.now_ms = now_ms

    def _do(self, action: Action) -> None:
        self._actions.append(action)

    def _note(self, kind: str, durable: bool = False, **fields: Any) -> None:
        self._do(Journal({"kind": kind, "t": self.now_ms, **fields}, durable))

    def _answer_after_the_end(self, event: Event) -> None:
        match event:
            case Hello():
                self._do(Refuse(event.container_id, Why.ENDING.value))
            case Report():
                self._order_stranger(event)
            case SoftKill() | Kill():
                words = self.ending.diagnostics if self.ending else "the attempt has ended"
                self._do(AnswerStop(StopAnswer(state="ended", message=words)))

    # ---- the engine ----

    def _on_registered(self, registered: Registered) -> None:
        if self.stage is not Stage.STARTING:
            for grant in registered.live:  # after a resync
                if self._is_new(grant.container_id):
                    self._adopt(grant)
            return
        self.stage = Stage.ACTIVE
        former = self._former
        self.started_ms = self.now_ms if former is None or former.started_ms is None else former.started_ms
        self._runtime_from_ms = self.awake_ms - max(0, self.now_ms - self.started_ms)
        self._note("begin", attempt=self.attempt, started_ms=self.started_ms, version=journal.VERSION)
        if self.attempt > 1 or registered.live:
            self._recovery_until_ms = self.awake_ms + self.timing.recovery_ms
            self._recover(former or journal.Former(), registered.live)
        match self._stop_before_start:
            case SoftKill(by):
                self._soft_stop(by, Cause.SOFT_KILLED, f"soft-killed by {by}")
            case Kill(by):
                self._kill(by)

    def _on_heartbeat(self, heartbeat: Heartbeat) -> None:
        if heartbeat.shut_down is not None:
            self.stage = Stage.ENDED
            self._do(Abandon(heartbeat.shut_down))
            return
        if self.stage is Stage.STARTING:
            return
        for end in heartbeat.ended:
            self._on_end(end)
        for end in heartbeat.start_failed:
            # The engine could not even start a task there: the node's fault, whatever the code.
            self._on_end(end if end.node_fault else replace(end, node_fault=True))
        for grant in heartbeat.granted:
            self._on_grant(grant)
        for request_id, why in heartbeat.refused:
            if self.stage is Stage.ACTIVE and (role := self._role(request_id)) and role.missing > 0:
                name = f"role {role.spec.name}: " if len(self.roles) > 1 else ""
                self._fail(f"{name}{why}")

    def _role(self, request_id: int) -> demand.Role | None:
        return self.roles[request_id - 1] if 1 <= request_id <= len(self.roles) else None

    def _is_new(self, container_id: ContainerId) -> bool:
        return not (container_id in self.containers or container_id in self._gone or container_id in self._released)

    def _on_grant(self, grant: Grant) -> None:
        if not self._is_new(grant.container_id):
            return
        if grant.container_id.attempt < self.attempt:
            self._adopt(grant)  # one that the engine forgot to name at registration
            return
        role = self._role(grant.request_id)
        if self.stage is not Stage.ACTIVE or role is None or role.missing <= 0:
            self._released[grant.container_id] = None
            return
        container = self._keep(grant, role)
        role.unbound[grant.container_id] = container
        self._do(StartTask(grant))
        self._at(self.timing.hello_ms, _Due.HELLO, container)

    def _keep(self, grant: Grant, role: demand.Role) -> Container:
        container = Container(grant, role.place, self.now_ms)
        container.heard_ms = self.awake_ms
        container_id = grant.container_id
        self.containers[container_id] = self.live[container_id] = self.open[container_id] = container
        self._note(
            "grant", container=str(container_id), request_id=role.request_id, node=grant.node, log_url=grant.log_url
        )
        return container

    def _on_end(self, end: ContainerEnd) -> None:
        container = self.containers.get(end.container_id)
        if container is None:
            self._released.pop(end.container_id, None)
            self._gone.add(end.container_id)
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
            case None:
                judged = verdict.of_end(end)
            case Why.SILENT | Why.LATE | Why.UNVOUCHED as why:
                judged = verdict.Verdict(Fault.NODE, why.value, avoid_node=why is not Why.UNVOUCHED)
            case why:
                judged = verdict.Verdict(Fault.STOPPED, why.value, free=True)
        self._no_blocker(container)
        if self.stage is not Stage.ACTIVE:
            return
        if container.instance is not None:
            self._lost(container.instance, container, judged)
        elif not judged.free and role.waiting:
            # It would have been somebody's: charged to the index that suffered least, so that it ends one day.
            victim = min((self.instances[n] for n in role.waiting_indexes()), key=lambda one: one.node_faults)
            self._lost(victim, container, judged._replace(fault=Fault.NODE))

    def _no_blocker(self, container: Container) -> None:
        role = self.roles[container.place]
        container.unvouched = False
        if role.blockers.pop(container.container_id, None) is not None and not role.blockers:
            self._serve(role)
        self._check_gang_after_recovery(role)

    # ---- tasks ----

    def _on_hello(self, hello: Hello) -> None:
        if self.stage is Stage.STARTING:
            return  # The task says it again; a container of ours may only be known with the registration.
        container = self._container_that_speaks(hello.container_id, hello.index, hello.host)
        if container is None:
            self._refuse(hello.container_id, "this container is not one of this application's")
            return
        if container.end is not None or container.result is not None:
            self._refuse(hello.container_id, "this container's work is over")
            return
        container.hello, container.view = True, None
        container.heard_ms = self.awake_ms
        container.host = hello.host or container.host
        if container.why is None and hello.index is not None:
            self._vouch(container, hello.index, hello.phase)
        elif container.unvouched and container.instance is None:
            self._no_blocker(container)  # it runs nothing: a container like any other
        if container.why is None and container.instance is None:
            self._bind_next(container)
        elif container.why is None and container.instance is not None:
            self._vouched(container)
            self._assign(container, container.instance)
        if container.why is not None:
            self._refuse(hello.container_id, container.why.value)

    def _container_that_speaks(self, container_id: ContainerId, index: int | None, host: str) -> Container | None:
        """The container, adopted where an earlier attempt left it and only its task tells of it."""
        container = self.containers.get(container_id)
        strange = container is None and index is not None and self._is_new(container_id)
        if strange and self.stage is Stage.ACTIVE and container_id.attempt < self.attempt:
            assert index is not None
            if 0 <= index < len(self.instances):
                role = next(role for role in self.roles if index in role.indexes)
                grant = Grant(
                    container_id=container_id, request_id=role.request_id, node=host, resources=role.spec.resources
                )
                return self._adopt(grant, listed=False)
        return container

    def _refuse(self, container_id: ContainerId, why: str) -> None:
        self._do(Refuse(container_id, why))
        self._do(StopContainer(container_id))

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

    def _serve(self, role: demand.Role) -> None:
        """Answer those who were kept waiting for work."""
        while role.held and not role.blockers:
            container_id, container = next(iter(role.held.items()))
            del role.held[container_id]
            self._bind_next(container)
            if container.why is not None:
                self._refuse(container_id, container.why.value)

    def _bind(self, container: Container, instance: Instance) -> None:
        role = self.roles[container.place]
        role.take(instance.index)
        role.unbound.pop(container.container_id, None)
        role.held.pop(container.container_id, None)
        instance.container = instance.last = container
        instance.tries += 1
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
        self._at(self.timing.silence_ms, _Due.SILENCE, container)

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
        )
        self._do(Assign(container.container_id, assignment))
        assert container.orders is not None
        self._do(SendOrders(container.container_id, container.orders))

    def _on_report(self, report: Report) -> None:
        if self.stage is Stage.STARTING:
            return  # It is held back, and the task says it again.
        container = self._container_that_speaks(report.container_id, report.index, "")
        if container is None or container.end is not None:
            self._order_stranger(report)
            return
        container.heard_ms = self.awake_ms
        if container.result is not None:
            return
        if container.instance is None or container.instance.index != report.index:
            if container.why is None:
                self._vouch(container, report.index, report.phase)
            if container.instance is None or container.instance.index != report.index:
                self._order_stranger(report)
                return
        instance = container.instance
        self._vouched(container)
        if container.renumber:
            container.renumber = False
            assert container.orders is not None
            if report.seen >= container.orders.number:
                self._order(container, number=report.seen)
        if report.number <= container.report_number:
            return
        self._take_news(container, instance, report)

    def _take_news(self, container: Container, instance: Instance, report: Report) -> None:
        container.report_number, container.view = report.number, None
        container.progress, container.detail = report.progress, report.detail
        container.gpus, container.address = report.gpus, report.address
        container.phase = report.phase
        self._has_run(container, report.phase)
        if report.result is not None:
            self._take_result(container, instance, report.result)
        elif report.phase is Phase.WAITING:
            self._at_the_gate(instance)

    def _has_run(self, container: Container, phase: Phase) -> None:
        if phase in _RAN and not container.ran:
            container.ran = self.payload_ran = True
            self._note("run", container=str(container.container_id))
            if self._is_of_a_closed_gang(container):
                self._stop(container, Why.RECALLED)

    def _at_the_gate(self, instance: Instance) -> None:
        gate = self.roles[self._place(instance)].gate
        if instance.container is None or instance.container.why is not None:
            return
        if gate.arrive(instance.index):
            self._open_gate(self.roles[self._place(instance)])
        elif gate.open and instance.container.orders and not instance.container.orders.go:
            self._order(instance.container, go=True)

    def _place(self, instance: Instance) -> int:
        assert instance.last is not None
        return instance.last.place

    def _open_gate(self, role: demand.Role) -> None:
        role.gate.reopen()
        self._note("gate", durable=True, role=role.spec.name, open=True)
        for index in role.indexes:
            container = self.instances[index].container
            if container and container.why is None and container.orders and not container.orders.go:
                self._order(container, go=True)

    def _order(self, container: Container, *, number: int | None = None, **change: Any) -> None:
        """Change a task's orders; their number grows, beyond ``number`` where that is given."""
        assert container.orders is not None
        last = max(container.orders.number, number or 0)
        container.orders = replace(container.orders, number=last + 1, **change)
        self._do(SendOrders(container.container_id, container.orders))

    def _order_stranger(self, report: Report) -> None:
        """Answer a task that runs what it should not: an end known, another's index, a container that is not ours."""
        orders = Orders(attempt=self.attempt, number=report.seen + 1, stop=Stop.NOW)
        self._do(SendOrders(report.container_id, orders))
        if self.stage is not Stage.ENDED:
            self._do(StopContainer(report.container_id))

    # ---- ends of indexes ----

    def _take_result(self, container: Container, instance: Instance, result: TaskResult) -> None:
        container.result, container.phase, container.finished_ms = result, Phase.ENDED, self.now_ms
        if result.exit_code is not None or result.signal is not None:
            container.ran = self.payload_ran = True
            if self._is_of_a_closed_gang(container):
                container.why = container.why or Why.RECALLED
        self.open.pop(container.container_id, None)
        blamed = result.fault in (Fault.USER, Fault.DATA)
        self._note("result", durable=blamed, **journal.result_fields(container.container_id, result))
        self._at(self.timing.exit_ms, _Due.STOP, container)
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

    def _take_stored(self, instance: Instance, container: Container, result: TaskResult) -> None:
        if result.fault is Fault.NONE or result.outputs:
            instance.stored = (container.container_id, result.outputs)

    def _done(self, instance: Instance) -> None:
        instance.done = True
        self._undecided.discard(instance.index)

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
            instance.given_up, instance.container = True, None
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

    # ---- stopping containers ----

    def _stop(self, container: Container, why: Why, *, at_once: bool = False) -> None:
        """End a container: by its orders first, so that its task can clean up, where it listens; then by the engine."""
        if container.end is not None:
            return
        container.why = container.why or why
        container.view = None
        self.roles[container.place].unbound.pop(container.container_id, None)
        self.roles[container.place].held.pop(container.container_id, None)
        listens = container.orders is not None and container.hello
        if listens and container.orders and container.orders.stop is not Stop.NOW:
            self._order(container, stop=Stop.NOW, go=False)
        if listens and not at_once:
            self._at(self.timing.stop_ms, _Due.STOP, container)
        else:
            self._do(StopContainer(container.container_id))
            self._at(self.timing.repeat_stop_ms, _Due.STOP, container)

    def _at(self, in_ms: int, what: _Due, container: Container) -> None:
        self._due_count += 1
        heapq.heappush(self._due, (self.awake_ms + in_ms, self._due_count, what, container))

    def _look_at_deadlines(self) -> None:
        while self._due and self._due[0][0] <= self.awake_ms:
            _, _, what, container = heapq.heappop(self._due)
            if container.end is not None:
                continue
            match what:
                case _Due.STOP if self._is_nobodys(container):
                    self._presume_gone(container)
                case _Due.STOP:
                    self._do(StopContainer(container.container_id))
                    self._at(self.timing.repeat_stop_ms, _Due.STOP, container)
                case _Due.HELLO if not container.hello and container.why is None:
                    self._stop(container, Why.LATE)
                case _Due.SILENCE if container.result is None and container.why is None:
                    left = container.heard_ms + self.timing.silence_ms - self.awake_ms
                    if left > 0:
                        self._at(left, _Due.SILENCE, container)
                    elif not container.unvouched:
                        self._stop(container, Why.SILENT, at_once=True)
                case _:
                    pass

    # ---- a later attempt ----

    def _recover(self, former: journal.Former, live: tuple[Grant, ...]) -> None:
        by_id = {grant.container_id: grant for grant in live}
        for role in self.roles:
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
                self._at(self.timing.exit_ms, _Due.STOP, container)
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

    def _place_of_index(self, index: int) -> int:
        return next(role.place for role in self.roles if index in role.indexes)

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

    def _is_of_a_closed_gang(self, container: Container) -> bool:
        """Whether it ran for a gang that begins anew: its attempt closed the gate, and died before all had heard."""
        gate = self.roles[container.place].gate
        journal_knows = self._former is not None and self._former.started_ms is not None
        return gate.gang and not gate.open and journal_knows and self.attempt > 1

    def _check_gang_after_recovery(self, role: demand.Role) -> None:
        """When all that an earlier attempt left of a gang is heard or gone: is it one gang?"""
        if self._recovery_until_ms is None or not role.gate.gang or self.stage is not Stage.ACTIVE or role.blockers:
            return
        members = [self.instances[index] for index in role.indexes]
        if any(one.container is not None and one.container.unvouched for one in members):
            return
        began = [one for one in members if one.container is not None and (one.container.ran or one.done)]
        if role.gate.open:
            if role.waiting:
                self._restart_gang(role)
        elif began and any(one.container is not None and one.container.why is None for one in began):
            # No journal says that it was opened, but payloads run. All there: it was; else it cannot be completed.
            if role.waiting:
                self._restart_gang(role)
            else:
                self._open_gate(role)

    def _look_at_recovery(self) -> None:
        if self._recovery_until_ms is None or self.awake_ms < self._recovery_until_ms:
            return
        self._recovery_until_ms = None
        for container in [one for one in self.open.values() if one.unvouched]:
            if container.listed:
                self._stop(container, Why.UNVOUCHED, at_once=True)
            else:
                self._presume_gone(container)

    def _is_nobodys(self, container: Container) -> bool:
        """Whether only a journal, or a message that was long on its way, ever told of it, and it has been silent."""
        return not container.listed and self.awake_ms - container.heard_ms >= self.timing.silence_ms

    def _presume_gone(self, container: Container) -> None:
        """Neither the engine nor a task knows of it: it is gone, and nobody is left to say so."""
        self._do(StopContainer(container.container_id))
        self._on_end(ContainerEnd(container_id=container.container_id, exit_status=-100, node_fault=True))

    # ---- the end ----

    def _on_stop(self, event: SoftKill | Kill) -> None:
        soft = isinstance(event, SoftKill)
        if self.stage is Stage.STARTING:
            if not isinstance(self._stop_before_start, Kill):
                self._stop_before_start = event
            self._do(AnswerStop(StopAnswer(state="stopping")))
        elif self.stage is Stage.ACTIVE or (not soft and self._may_still_be_killed()):
            if soft:
                self._soft_stop(event.by, Cause.SOFT_KILLED, f"soft-killed by {event.by}")
            else:
                self._kill(event.by)
            self._do(AnswerStop(StopAnswer(state="stopping", left_s=self._grace_left_s())))
        elif self.soft_ends_ms is not None and self.stage is Stage.CLOSING and self._soft_words is not None:
            left_s = self._grace_left_s()
            words = f"{self._soft_words} already, {left_s:.0f} s of the grace time left"
            self._do(AnswerStop(StopAnswer(state="already", left_s=left_s, message=words)))
        else:
            state = "already" if self.stage is Stage.CLOSING else "ended"
            words = self.ending.diagnostics if self.ending else ""
            self._do(AnswerStop(StopAnswer(state=state, message=f"it is ending already: {words}")))

    def _may_still_be_killed(self) -> bool:
        return self.stage is Stage.CLOSING and self._how is Settlement.COMMIT

    def _grace_left_s(self) -> float:
        if self.soft_ends_ms is None or self._soft_words is None:
            return 0.0
        return max(0, self._soft_ends_awake_ms - self.awake_ms) / 1000

    def _timed_out_words(self) -> str:
        return f"timed out after {self.spec.max_runtime_s:g} s"

    def _fail(self, words: str) -> None:
        if self.stage is Stage.ACTIVE:
            self._conclude(Ending(FinalStatus.FAILED, Cause.FAILED, words), Settlement.KEEP)

    def _kill(self, by: str) -> None:
        self._soft_words = None
        words = f"killed by {by}, no output kept" if self.spec.outputs else f"killed by {by}"
        self._conclude(Ending(FinalStatus.KILLED, Cause.KILLED, words), Settlement.DROP)

    def _soft_stop(self, by: str, cause: Cause, words: str, ends_ms: int | None = None) -> None:
        """End the payloads with SIGTERM and keep what they store; before any has run, it is a kill.

        Args:
            ends_ms: when the grace is over, where an earlier attempt began this.
        """
        if not self.payload_ran:
            cause = Cause.KILLED if cause is Cause.SOFT_KILLED else cause
            ending = Ending(FinalStatus.KILLED, cause, f"{words} before a payload ran")
            self._conclude(ending, Settlement.DROP)
            return
        grace_ms = int(self.spec.kill_grace_s * 1000)
        if ends_ms is None:
            self.soft_ends_ms = self.now_ms + grace_ms
        else:
            self.soft_ends_ms = ends_ms
            grace_ms = max(0, min(grace_ms, ends_ms - self.now_ms))
        self.soft_by, self._soft_words = by, words
        self._note("soft", durable=True, by=by, cause=cause.value, ends_ms=self.soft_ends_ms)
        self._conclude(Ending(FinalStatus.KILLED, cause, words), Settlement.COMMIT, grace_ms=grace_ms)

    def _conclude(self, ending: Ending, how: Settlement, *, grace_ms: int | None = None) -> None:
        """How it ends is decided: stop what runs, softly where ``grace_ms`` is given."""
        self.ending, self._how = ending, how
        self.stage = Stage.CLOSING
        self._closing_stage = 0
        if grace_ms is None:
            # On the disk before anybody is stopped for it: a next attempt must not take those for failures.
            self._note("ending", durable=True, **journal.ending_record(ending, how))
            self._stop_all()
            self._closing_stage = 2
            self._closing_until_ms = self.awake_ms + self.timing.end_ms
            return
        for container in list(self.open.values()):
            orders = container.orders
            may_run = container.ran or (orders is not None and orders.go)
            if container.instance is None or container.why is not None or orders is None or not may_run:
                self._stop(container, Why.ENDING)
            elif orders.stop is Stop.NO:
                self._order(container, stop=Stop.SOFT, grace_s=grace_ms / 1000)
        self._soft_ends_awake_ms = self.awake_ms + grace_ms
        self._closing_until_ms = self._soft_ends_awake_ms + self.timing.soft_margin_ms

    def _stop_all(self) -> None:
        for container in list(self.open.values()):
            self._stop(container, Why.ENDING)

    def _advance(self) -> None:
        """What follows without an event of its own: deadlines, and the next stage where this one is complete."""
        self._look_at_deadlines()
        self._look_at_recovery()
        if self.stage is Stage.ACTIVE:
            limit_s = self.spec.max_runtime_s
            if not self._undecided:
                words = Ending(FinalStatus.SUCCEEDED, Cause.SUCCEEDED, "")
                self._conclude(words, Settlement.COMMIT, grace_ms=int(self.spec.kill_grace_s * 1000))
            elif limit_s is not None and self.awake_ms - self._runtime_from_ms >= limit_s * 1000:
                self._soft_stop("max_runtime", Cause.TIMED_OUT, self._timed_out_words())
        if self.stage is Stage.CLOSING:
            self._look_at_closing()
        if self.stage is Stage.LEAVING and (not self.live or self.awake_ms >= self._closing_until_ms):
            self._finish()

    def _look_at_closing(self) -> None:
        if not self.open:
            self._settle()
        elif self.awake_ms < self._closing_until_ms:
            return
        elif self._closing_stage == 0:
            # The grace and its margin are over. Who stores goes on: cut off, its output would be lost.
            storing = False
            for container in list(self.open.values()):
                if container.storing and container.why is None:
                    storing = True
                else:
                    self._stop(container, Why.ENDING, at_once=True)
            self._closing_stage = 1 if storing else 2
            self._closing_until_ms = self.awake_ms + (self.timing.store_ms if storing else self.timing.end_ms)
        elif self._closing_stage == 1:
            for container in list(self.open.values()):
                self._stop(container, Why.ENDING, at_once=True)
            self._closing_stage = 2
            self._closing_until_ms = self.awake_ms + self.timing.end_ms
        else:
            self._settle()

    def _settle(self) -> None:
        assert self.ending is not None
        parts = tuple(
            Part(one.index, one.role.name, one.role_index, *one.stored)
            for one in self.instances
            if one.stored is not None
        )
        if self._soft_words is not None:
            self._word_the_soft_end(parts)
        self._closing_until_ms = self.awake_ms + self.timing.end_ms
        if self._how is Settlement.COMMIT or self._soft_words is not None:
            self._note("ending", durable=True, **journal.ending_record(self.ending, self._how))
        self.stage = Stage.SETTLING
        self._do(SettleOutputs(self._how, self.ending, () if self._how is Settlement.DROP else parts))

    def _word_the_soft_end(self, parts: tuple[Part, ...]) -> None:
        assert self.ending is not None
        words = self._soft_words or ""
        if not self.spec.outputs:
            pass
        elif not parts:
            words += ", there was no output to commit"
            self._how = Settlement.DROP
        else:
            words += ", output committed"
            there = {part.index for part in parts}
            without = [one for one in self.instances if one.index not in there]
            if without:
                names = [verdict.container_name(one.index, one.role.name, one.role_index) for one in without]
                words += f" but for {verdict.listed(names)}"
        self.ending = self.ending._replace(diagnostics=words)

    def _on_settled(self, event: OutputsSettled) -> None:
        if self.stage is not Stage.SETTLING:
            return
        assert self.ending is not None
        self.outputs = event.outputs or self.outputs
        if event.ended is not None:
            self.ending = event.ended
        if event.error is not None and self._how is Settlement.COMMIT:
            self.ending = Ending(FinalStatus.FAILED, Cause.FAILED, event.error)
        elif event.error is not None:
            self.ending = self.ending._replace(diagnostics=f"{self.ending.diagnostics}; {event.error}")
        self._note("settled", **journal.settled_record(self.ending, self._how, self.outputs))
        self.stage = Stage.LEAVING
        self._closing_until_ms = self.awake_ms + self.timing.end_ms

    def _finish(self) -> None:
        assert self.ending is not None
        if self.live:
            names = [f"{one.container_id} on {one.host}" for one in self.live.values()]
            end = "the end of " + verdict.listed(names) + " is not known"
            words = self.ending.diagnostics
            self.ending = self.ending._replace(diagnostics=f"{words}; {end}" if words else end)
        self.stage = Stage.ENDED
        self.finished_ms = self.now_ms
        self._note("finish")
        self._do(Finish(self.ending))
