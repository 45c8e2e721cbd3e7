"""State that the next attempt recovers from the journals of earlier ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from dlapp.cluster.engine import ContainerEnd
from dlapp.value import Record, field
from dlapp.values.report import FinalStatus

if TYPE_CHECKING:
    from dlapp.am.model.events import ApplicationEnd, Settlement
    from dlapp.am.model.records.trial_end import TrialEnd
    from dlapp.cluster.engine import Grant
    from dlapp.sweep.asha import RungDecision
    from dlapp.values.ids import ContainerId
    from dlapp.values.messages import TaskResult
    from dlapp.values.report import Cause, OutputView, RestartView
    from dlapp.values.start_conditions import After
    from dlapp.values.usage import Receipt

_LOST = -100
"""YARN's exit status of a container that was lost with its node (ContainerExitStatus.ABORTED)."""


class RecoveredContainer:
    """A container of an earlier attempt."""

    def __init__(self, grant: Grant, granted_ms: int) -> None:
        self.grant, self.started_ms = grant, granted_ms
        self.host = grant.node
        self.index: int | None = None
        self.try_number = self.generation = 0
        self.ran = False
        self.result: TaskResult | None = None
        self.end: ContainerEnd | None = None
        self.finished_ms: int | None = None


class RecoveredGate(NamedTuple):
    """Gate of a gang: whether it was open, its generation, the checkpoint that the generation starts from, the causes
    of its restarts, and how many generations failed for reasons other than a program."""

    open: bool
    generation: int = 0
    checkpoint: int | None = None
    checkpoints_after: int = 0
    restarts: tuple[RestartView, ...] = ()
    node_faults: int = 0


class RecoveredWait(Record):
    """Waits of an index for services.

    Attributes:
        service: the service that it waits for; empty: none.
        since_ms: service -> when it first waited for it since its last good run [ms since 1970].
        good_since_ms: when it was bound to a container, or last waited [ms since 1970].
    """

    service: str = ""
    since_ms: dict[str, int] = field(default_factory=dict)
    good_since_ms: int = 0


class RecoveredTrial(Record):
    """Trial of a sweep.

    Attributes:
        tries, holder, index: number of its starts, its last container, and that container's CONTAINER_INDEX.
        runs: it runs there, as far as known.
        end: its end; None: it has not ended. ``ended_ms``: when that was recorded [ms since 1970].
        parameters: the values that Optuna chose; None: none chosen yet.
    """

    tries: int = 0
    holder: ContainerId | None = None
    index: int | None = None
    user_faults: int = 0
    node_faults: int = 0
    runs: bool = False
    end: TrialEnd | None = None
    ended_ms: int = 0
    parameters: dict[str, str] | None = None


class RecoveredState:
    """State that the next attempt recovers from the journals of earlier ones.

    Attributes:
        bound: index -> the container that it is bound to.
        last: index -> the container that it was last bound to, even if it is no longer bound.
        given_up: index -> the failure by which a deciding index was given up; empty for the others.
        waits: index -> its waits for services.
        spent: index -> cost of its containers before the last one.
        gates: first role of a gang -> its gate.
        changes: role -> differences between what was requested and what its containers got.
        start: what was still awaited before containers are requested (ends of other applications, a release), and since
            when no more than that [ms since 1970]; None: nothing had been met.
        soft: who requested a soft stop, its cause, and the end of its grace time [ms since 1970].
        ending: the decided end, if any; the outputs may be partly settled.
        outputs: results of the outputs, if they were settled.
        gone: ended containers of which nothing else is known.
        boot: boot id of the machine during the last attempt.
        trials: trials of a sweep, by number; `rungs`: the decisions of early stopping; `has_taken_over`: includes the
            trials of the sweep that this one continues.
    """

    def __init__(self) -> None:
        self.trials: dict[int, RecoveredTrial] = {}
        self.rungs: list[RungDecision] = []
        self.has_taken_over = False
        self.started_ms: int | None = None
        self.containers: dict[ContainerId, RecoveredContainer] = {}
        self.bound: dict[int, ContainerId] = {}
        self.last: dict[int, ContainerId] = {}
        self.faults: dict[int, tuple[int, int]] = {}
        self.tries: dict[int, int] = {}
        self.given_up: dict[int, str] = {}
        self.waits: dict[int, RecoveredWait] = {}
        self.spent: dict[int, Receipt] = {}
        self.gates: dict[str, RecoveredGate] = {}
        self.changes: dict[str, str] = {}
        self.start: tuple[tuple[After, ...], bool, int] | None = None
        self.soft: tuple[str, Cause, int] | None = None
        self.ending: tuple[ApplicationEnd, Settlement] | None = None
        self.outputs: tuple[OutputView, ...] | None = None
        self.finished = False
        self.gone: set[ContainerId] = set()
        self.boot = ""

    def pass_boot(self, boot: str) -> None:
        """Reset the state after a reboot of the machine: everything that ran is lost, and recent output may be, so
        everything starts again. A decided end other than success stays.

        Args:
            boot: current boot id of the machine; empty: its containers survive reboots.
        """
        if self.boot and boot and boot != self.boot:
            for one in self.containers.values():
                one.result = None
                one.end = ContainerEnd(
                    container_id=one.grant.container_id,
                    exit_status=_LOST,
                    diagnostics="the machine was restarted",
                    node_fault=True,
                )
            self.given_up.clear()
            self.waits.clear()
            if self.ending is not None and self.ending[0].final_status is FinalStatus.SUCCEEDED:
                self.ending = self.outputs = None
        self.boot = boot
