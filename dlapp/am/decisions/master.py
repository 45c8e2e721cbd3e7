"""The ApplicationMaster's decisions on each event. No I/O, no clock, no randomness except `ApplicationState.chance`.

Stages of an application:

    STARTING   not registered with the engine yet
    ACTIVE     containers are requested, tasks bound to indexes, failures retried
    CLOSING    the end is decided; containers are being stopped, or end softly and store their output
    SETTLING   each container's result or end is known (or its time is up): the outputs are being settled
    LEAVING    the outputs are settled; the last ends are awaited, with a deadline
    ENDED      the end was reported to the engine (or it has abandoned this attempt)

Two clocks: ``now_ms`` comes with each event and is shown to people; deadlines use the time that the ApplicationMaster
was awake, which a suspended laptop, a stopped process or a clock step changes by at most
`dlapp.am.model.state.MAX_GAP_MS`. Otherwise all tasks would seem silent after a suspend.
"""

from __future__ import annotations

from dlapp.am.decisions import allocation, assignment, failures, notices, recovery, shutdown, tasks
from dlapp.am.decisions.gangs import gang, gang_window, hangs, roster
from dlapp.am.decisions.idle import idle_guard, unused_services
from dlapp.am.decisions.start import dependencies, start_gate
from dlapp.am.model import demand
from dlapp.am.model.events import (
    Action,
    DeviceCountsRead,
    Event,
    JournalWritten,
    Kill,
    OpenStream,
    OthersEnded,
    OutputsSettled,
    Published,
    Refuse,
    RefuseStream,
    Release,
    SettlementWaits,
    SoftKill,
    Tick,
    TrialCommitted,
    TrialsTakenOver,
)
from dlapp.am.model.instance import Stage, StopReason
from dlapp.am.model.state import ApplicationState
from dlapp.cluster.engine import ContainerRequest, Heartbeat, Registered
from dlapp.values.ids import ContainerId
from dlapp.values.messages import Hello, Orders, Phase, Report


class Master:
    """One attempt of one application: ``state`` is its state, `handle` processes an event."""

    def __init__(self, state: ApplicationState) -> None:
        self.state = state

    def handle(self, event: Event, now_ms: int) -> list[Action]:
        """Process an event; return the actions, in order. The time [ms since 1970] may jump."""
        state = self.state
        state.pass_time(now_ms)
        if state.stage is Stage.ENDED:
            self._handle_after_end(event)
            return state.pop_actions()
        match event:
            case Report():
                tasks.handle_report(state, event)
            case Hello():
                tasks.handle_hello(state, event)
            case Heartbeat():
                allocation.handle_heartbeat(state, event)
            case Registered():
                allocation.handle_registered(state, event)
            case SoftKill() | Kill():
                shutdown.handle_stop(state, event)
            case OutputsSettled():
                shutdown.handle_settled(state, event)
            case TrialsTakenOver():
                from dlapp.am.decisions.trials import takeover

                takeover.apply(state, event)
            case TrialCommitted():
                from dlapp.am.decisions.trials import dispatch

                dispatch.handle_committed(state, event)
            case SettlementWaits(lack):
                state.waiting_for = lack
            case DeviceCountsRead(usable, serving):
                state.nodes.devices.set_usable(usable, serving)
            case OthersEnded():
                start_gate.handle_others_ended(state, event)
            case Release():
                start_gate.handle_release(state, event)
            case Published():
                recovery.handle_published(state)
            case JournalWritten(lines):
                assignment.handle_journal_written(state, lines)
                if state.sweep is not None:
                    from dlapp.am.decisions.trials import dispatch  # few applications need it

                    dispatch.handle_journal_written(state, lines)
            case OpenStream():
                from dlapp.am.decisions import streams  # most applications have none

                streams.handle_open_stream(state, event)
            case Tick():
                pass
        # Consequences without an event of their own.
        for role in state.roles:
            role.resume(state.awake_ms)
        failures.check_deadlines(state)
        recovery.check_deadline(state)
        dependencies.check(state)
        gang.check_failures(state)
        roster.check(state)
        gang_window.check(state)
        hangs.check(state)
        if state.sweep is not None:
            from dlapp.am.decisions.trials import dispatch

            dispatch.check(state)
        shutdown.advance(state)
        idle_guard.check(state)
        unused_services.check(state)
        notices.check(state)
        return state.pop_actions()

    def _handle_after_end(self, event: Event) -> None:
        match event:
            case Hello():
                self.state.add_action(Refuse(event.container_id, StopReason.ENDING.value))
            case Report():
                tasks.stop_unknown_task(self.state, event)
            case SoftKill() | Kill():
                shutdown.handle_stop(self.state, event)
            case Release():
                start_gate.handle_release(self.state, event)
            case OpenStream(order=order):
                self.state.add_action(RefuseStream(order.number, StopReason.ENDING.value))

    def container_requests(self) -> tuple[ContainerRequest, ...]:
        """Return the current container requests to the engine, one per role; every heartbeat carries them."""
        state = self.state
        return demand.container_requests(
            state.roles,
            state.spec.placement,
            state.nodes.avoided.names(state.awake_ms),
            state.nodes.devices,
            now_ms=state.awake_ms,
            wanted=state.stage is Stage.ACTIVE and state.start_gate.is_open,
        )

    def releases(self) -> tuple[ContainerId, ...]:
        """Return the released containers whose end the engine has not reported; every heartbeat carries them."""
        return tuple(self.state.containers.released)

    def orders_of(self, container_id: ContainerId) -> Orders | None:
        """Return the current orders of a task; None: it has none, its report is answered by `SendOrders`."""
        container = self.state.containers.by_id.get(container_id)
        return container.orders if container else None

    def have_payloads_ended(self) -> bool:
        """Return whether no container has a GPU, or will get one unless a task is lost that stores its output."""
        is_ending = self.state.stage not in (Stage.STARTING, Stage.ACTIVE)
        for instance in self.state.instances:
            container = instance.container
            if instance.done or instance.given_up:
                continue
            if container is not None and container.is_kept and not container.gpus:
                continue
            if container is None or container.result is not None or container.end is not None:
                if not is_ending:
                    return False  # it starts again
            elif container.gpus or container.phase not in (Phase.STORING, Phase.RELEASING):
                return False
        return True

    def progress(self) -> float:
        """Return the share of the deciding indexes that are done, or of the trials, 0 to 1."""
        if self.state.sweep is not None:
            return 1.0 - self.state.sweep.left / len(self.state.sweep.trials)
        if not self.state.deciding:
            return 0.0  # it does not end by itself
        return 1.0 - len(self.state.undecided) / len(self.state.deciding)
