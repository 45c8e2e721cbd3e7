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

The layers of it are listed in `dlapp.am.books`.
"""

from __future__ import annotations

import heapq
from dataclasses import replace

from dlapp.am import demand, journal
from dlapp.am.books import Due, Timing
from dlapp.am.events import (
    Abandon,
    Action,
    AnswerStop,
    CardsSeen,
    Ending,
    Event,
    Kill,
    OutputsSettled,
    Published,
    Refuse,
    SendOrders,
    Settlement,
    SoftKill,
    StartTask,
    StopContainer,
    Tick,
)
from dlapp.am.instance import Container, Instance, Stage, Why
from dlapp.am.recovery import Recovery
from dlapp.cluster import Ask, Grant, Heartbeat, Registered
from dlapp.control import Hello, Orders, Phase, Report, Stop, StopAnswer
from dlapp.ids import ContainerId
from dlapp.report import Cause, FinalStatus

__all__ = ["Master", "Stage", "Timing"]

MAX_GAP_MS = 10_000


class Master(Recovery):
    """One attempt of one application; see `dlapp.am.books.Books` for what it is made of."""

    def asks(self) -> tuple[Ask, ...]:
        """What is wanted of the engine now, one ask a role; said with every heartbeat."""
        return demand.asks(
            self.roles,
            self.spec.placement,
            self._avoided.names(self.awake_ms),
            self._cards,
            now_ms=self.awake_ms,
            wanted=self.stage is Stage.ACTIVE,
        )

    def releases(self) -> tuple[ContainerId, ...]:
        """Containers that are given back and whose end the engine has not said; said with every heartbeat."""
        return tuple(self._released)

    def orders_of(self, container_id: ContainerId) -> Orders | None:
        """The orders a task has now; None: it has none, its report is answered by `SendOrders`."""
        container = self.containers.get(container_id)
        return container.orders if container else None

    def progress(self) -> float:
        """Share of the deciding indexes that are done, 0 to 1."""
        return 1.0 - len(self._undecided) / len(self._deciding)

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
                case CardsSeen(usable):
                    self._cards.take(usable)
                case Published():
                    self._on_published()
                case Tick():
                    pass
            self._advance()
        actions, self._actions = self._actions, []
        return actions

    def _pass_time(self, now_ms: int) -> None:
        if self.now_ms:
            self.awake_ms += min(max(now_ms - self.now_ms, 0), MAX_GAP_MS)
        self.now_ms = now_ms

    def _answer_after_the_end(self, event: Event) -> None:
        match event:
            case Hello():
                self._do(Refuse(event.container_id, Why.ENDING.value))
            case Report():
                self._order_stranger(event)
            case SoftKill() | Kill():
                words = self.ending.diagnostics if self.ending else "the attempt has ended"
                self._do(AnswerStop(StopAnswer(state="ended", message=words)))

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
        for container_id in heartbeat.ending:
            self._on_ending(container_id)
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
        self._at(self.timing.hello_ms, Due.HELLO, container)

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
        container.image = report.image
        container.phase = report.phase
        self._has_run(container, report.phase)
        if report.result is not None:
            self._take_result(container, instance, report.result)
        elif report.phase is Phase.WAITING:
            self._at_the_gate(instance)

    def _order_stranger(self, report: Report) -> None:
        """Answer a task that runs what it should not: an end known, another's index, a container that is not ours."""
        orders = Orders(attempt=self.attempt, number=report.seen + 1, stop=Stop.NOW)
        self._do(SendOrders(report.container_id, orders))
        if self.stage is not Stage.ENDED:
            self._do(StopContainer(report.container_id))

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

    def _look_at_deadlines(self) -> None:
        while self._due and self._due[0][0] <= self.awake_ms:
            _, _, what, container = heapq.heappop(self._due)
            if container.end is not None:
                continue
            match what:
                case Due.STOP if self._is_nobodys(container):
                    self._presume_gone(container)
                case Due.STOP:
                    self._do(StopContainer(container.container_id))
                    self._at(self.timing.repeat_stop_ms, Due.STOP, container)
                case Due.HELLO if not container.hello and container.why is None:
                    self._stop(container, Why.LATE)
                case Due.SILENCE if container.result is None and container.why is None:
                    left = container.heard_ms + self.timing.silence_ms - self.awake_ms
                    if left > 0 or container.unvouched:
                        self._at(max(left, 1000), Due.SILENCE, container)
                    else:
                        self._stop(container, Why.SILENT, at_once=True)
                case _:
                    pass
