"""Driving a `Master` by hand: a test says what happens, and looks at what is decided."""

from __future__ import annotations

import random
from typing import Any, TypeVar

from dlapp.am.decisions.master import Master
from dlapp.am.model import events, journal
from dlapp.am.model.records.recovered import RecoveredState
from dlapp.am.model.start_gate import StartGate
from dlapp.am.model.state import ApplicationState, Timing
from dlapp.am.view import of as view_of
from dlapp.am.view import phase_of
from dlapp.cluster.engine import ContainerEnd, Grant, Heartbeat, Registered, ResourceLimits
from dlapp.values.ids import ApplicationId, ContainerId
from dlapp.values.messages import Fault, Hello, Orders, Phase, Report, Stop, StoredOutput, TaskResult
from dlapp.values.report import ApplicationView
from dlapp.values.spec import AppSpec, OutputSpec, RoleSpec, Submission

APPLICATION = ApplicationId(1_700_000_000_000, 42)
START_MS = 1_700_000_000_000
OUTPUT = OutputSpec(output_path="output", target="file:///results/run")
A = TypeVar("A")


def submission(*roles: RoleSpec, **fields: Any) -> Submission:
    """A submission of these roles."""
    given: dict[str, Any] = {"roles": roles, "outputs": (OUTPUT,)} | fields
    spec = AppSpec(username="tony", appname="driven", workspace="/w", script="start.sh", **given)
    return Submission(
        spec=spec, workspace_archive="/w.tgz", workspace_digest="sha256-0", submitter="tony", submitted_ms=START_MS
    )


def result(
    fault: Fault = Fault.NONE, exit_code: int | None = 0, part: str | None = "part", **fields: Any
) -> TaskResult:
    """A task's last word; ``part`` None: it stored nothing."""
    outputs = (StoredOutput(name="", part=part, files=1, size_bytes=1),) if part else ()
    return TaskResult(fault=fault, exit_code=exit_code, outputs=outputs, **fields)


class Driver:
    """A Master, the actions of all its events, and the last of them."""

    def __init__(
        self,
        *roles: RoleSpec,
        attempt: int = 1,
        former: RecoveredState | None = None,
        live: tuple[Grant, ...] = (),
        registered: bool = True,
        timing: Timing = Timing(),  # noqa: B008 - a tuple
        published: bool = True,
        single_node: bool = False,
        is_complete: bool = False,
        journal_is_slow: bool = False,
        start_gate: StartGate | None = None,
        boot_id: str = "",
        **fields: Any,
    ) -> None:
        wanted = submission(*(roles or (RoleSpec(),)), **fields)
        self.now_ms = START_MS
        self.attempt = attempt
        self.state = ApplicationState(
            wanted,
            APPLICATION,
            attempt,
            former=former,
            timing=timing,
            start_gate=start_gate,
            chance=random.Random(attempt),
        )
        self.master = Master(self.state)
        self.journal_is_slow = journal_is_slow
        self.all: list[events.Action] = []
        self.last: list[events.Action] = []
        self._numbers: dict[int, int] = {}
        if registered:
            limits = ResourceLimits()
            taken = Registered(
                limits=limits, live=live, is_complete=is_complete, single_node=single_node, boot_id=boot_id
            )
            self.do(taken)
        if published:
            assert self.master.handle(events.Published(), self.now_ms) == []

    # ---- what happens ----

    def do(self, event: events.Event, after_s: float = 0.01) -> list[events.Action]:
        """Let something happen, some seconds later."""
        self.now_ms += int(after_s * 1000)
        self.last = self.master.handle(event, self.now_ms)
        if self.state.journal.unrecorded and not self.journal_is_slow:
            self.last += self.master.handle(events.JournalWritten(self.state.journal.lines), self.now_ms)
        self.all += self.last
        return self.last

    def id(self, number: int, attempt: int | None = None) -> ContainerId:
        return ContainerId(APPLICATION, attempt or self.attempt, number)

    def grant(self, number: int, request_id: int = 1, node: str = "node1", attempt: int | None = None) -> Grant:
        role = self.state.spec.roles[request_id - 1]
        return Grant(container_id=self.id(number, attempt), request_id=request_id, node=node, resources=role.resources)

    def granted(self, *numbers: int, request_id: int = 1, node: str = "node1") -> list[events.Action]:
        """Containers come, and their nodes take them."""
        grants = tuple(self.grant(number, request_id, node) for number in numbers)
        return self.do(Heartbeat(granted=grants, started=tuple(grant.container_id for grant in grants)))

    def ended(self, number: int, status: int = 0, attempt: int | None = None, **fields: Any) -> list[events.Action]:
        end = ContainerEnd(container_id=self.id(number, attempt), exit_status=status, **fields)
        return self.do(Heartbeat(ended=(end,)))

    def hello(
        self, number: int, index: int | None = None, phase: Phase = Phase.STARTING, attempt: int | None = None
    ) -> list[events.Action]:
        return self.do(Hello(container_id=self.id(number, attempt), host="node1", pid=1, index=index, phase=phase))

    def report(
        self,
        number: int,
        phase: Phase,
        ended: TaskResult | None = None,
        *,
        index: int | None = None,
        attempt: int | None = None,
        nth: int | None = None,
        **fields: Any,
    ) -> list[events.Action]:
        container_id = self.id(number, attempt)
        known = self.state.containers.by_id.get(container_id)
        if index is None:
            assert known is not None
            assert known.instance is not None
            index = known.instance.index
        fields.setdefault("generation", known.generation if known else 0)
        self._numbers[number] = self._numbers.get(number, 0) + 1
        if self.state.roster.exists:
            ports = self.state.instances[index].role.ports if index < len(self.state.instances) else 0
            fields = {
                "address": f"10.0.{number >> 8}.{number & 255}",
                "ports": tuple(20_000 + n for n in range(ports)),
                **fields,
            }
        return self.do(
            Report(
                container_id=container_id,
                number=nth or self._numbers[number],
                index=index,
                phase=phase,
                result=ended,
                **fields,
            )
        )

    def running(self, *numbers: int, request_id: int = 1) -> None:
        """Containers that are granted, bound and run their payloads."""
        self.granted(*numbers, request_id=request_id)
        for number in numbers:
            self.hello(number)
        for number in numbers:
            self.report(number, Phase.RUNNING)

    def running_gang(self, *numbers: int) -> None:
        """Containers of one gang that are granted, come to the gate and run their payloads."""
        self.granted(*numbers)
        for number in numbers:
            self.hello(number)
        for number in numbers:
            self.report(number, Phase.WAITING)
        for number in numbers:
            self.report(number, Phase.RUNNING)

    def finished(self, number: int, ended: TaskResult | None = None) -> None:
        """A task says its result and its container ends."""
        self.report(number, Phase.ENDED, ended or result())
        self.ended(number)

    def wait(self, seconds: float) -> list[events.Action]:
        """Let time pass, second by second; all actions of it."""
        done: list[events.Action] = []
        for _ in range(round(seconds)):
            done += self.do(events.Tick(), 1.0)
        return done

    def settled(self, error: str | None = None) -> list[events.Action]:
        return self.do(events.OutputsSettled(error=error))

    # ---- what was decided ----

    def of(self, kind: type[A], actions: list[events.Action] | None = None) -> list[A]:
        """The actions of one kind among the last ones."""
        return [item for item in (self.last if actions is None else actions) if isinstance(item, kind)]

    def stopped(self, actions: list[events.Action] | None = None) -> list[int]:
        return [container.container_id.number for container in self.of(events.StopContainer, actions)]

    def orders(self, number: int, attempt: int | None = None) -> Orders:
        orders = self.master.orders_of(self.id(number, attempt))
        assert orders is not None
        return orders

    def stops(self, *numbers: int) -> list[Stop]:
        return [self.orders(number).stop for number in numbers]

    def requested(self) -> list[int]:
        return [ask.count for ask in self.master.container_requests()]

    def ending(self) -> events.ApplicationEnd:
        """Return how it ended; it must have."""
        (finish,) = self.of(events.Finish, self.all)
        return finish.ending

    def diagnostics(self) -> str:
        return self.ending().diagnostics

    def settlement(self) -> events.SettleOutputs:
        """Return what was to become of the outputs; asked for exactly once."""
        (wanted,) = self.of(events.SettleOutputs, self.all)
        return wanted

    def view(self) -> ApplicationView:
        return view_of(self.state, "http://node1:1")

    def phase(self) -> str:
        return phase_of(self.state)

    def journal(self) -> RecoveredState:
        """Return what a next attempt makes of all that was written so far."""
        lines = [journal.line(action.record) for action in self.of(events.WriteJournal, self.all)]
        return journal.replay(journal.records(lines))
