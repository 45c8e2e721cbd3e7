"""Plans of what goes wrong in one run of the simulated cluster: everything, at some seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from dlapp.am.model import events
from dlapp.am.model.state import Timing
from dlapp.sweep.spec import SweepSpec
from dlapp.value import replace
from dlapp.values.ids import ApplicationId
from dlapp.values.messages import Fault, Phase, TaskResult
from dlapp.values.spec import (
    AppSpec,
    CheckpointSpec,
    ContainerFailure,
    Dependency,
    Gang,
    OutputSpec,
    RoleFailure,
    RoleSpec,
    Submission,
    Until,
)

APPLICATION = ApplicationId(1_700_000_000_000, 42)
EPOCH_MS = 1_700_000_000_000
PREEMPTION_WAIT_S = 4.0
PHASES = (Phase.UNPACKING, Phase.FETCHING, Phase.LEASING, Phase.WAITING)
TIMING = Timing(
    hello_ms=30_000,
    check_ms=3_000,
    prepare_ms=60_000,
    silence_ms=15_000,
    recovery_ms=10_000,
    stop_ms=3_000,
    repeat_stop_ms=3_000,
    exit_ms=10_000,
    soft_margin_ms=10_000,
    store_ms=60_000,
    end_ms=60_000,
    avoid_ms=60_000,
    report_every_s=2.0,
)


TrialOutcome = tuple[TaskResult, tuple[tuple[float, float], ...]]
"""Result of a try of a trial, and the points of its metric."""
Outcome = Callable[[int, int], TrialOutcome]
"""From the number of a trial and that of its try."""


class Violation(AssertionError):
    """Something that must never be, was."""


@dataclass
class SweepPlan:
    """Sweep that an application runs.

    Args:
        spec: what runs.
        outcome: how a try of a trial ends.
        trial_s: how long a trial runs, from and to [s].
        worker_deaths: times at which a container is killed.
        takes: the trials of a sweep before.
    """

    spec: SweepSpec
    outcome: Outcome
    trial_s: tuple[float, float] = (0.1, 2.0)
    worker_deaths: tuple[float, ...] = ()
    takes: events.TrialsTakenOver | None = None


@dataclass
class Plan:
    """Events of one seed; tests set fields to ask for something."""

    seed: int
    roles: tuple[RoleSpec, ...] = (RoleSpec(instances=3),)
    outputs: bool = True
    nodes: int = 3
    loss: float = 0.0
    double: float = 0.0
    late: float = 0.0
    surplus: float = 0.0
    start_failed: float = 0.0
    task_killed: float = 0.0
    task_hangs: float = 0.0
    task_late: float = 0.0
    task_pauses: float = 0.0
    """Share of the tasks that say and hear nothing for some time while their payloads run on."""
    slow_files: float = 0.0
    """Share of the containers whose files take longer than a task may."""
    node_deaths: tuple[float, ...] = ()
    node_losses: tuple[float, ...] = ()
    """Times at which the engine loses a node on which all runs on, and reaches the ApplicationMaster."""
    preemptions: tuple[float, ...] = ()
    """Times at which the engine gives notice that it takes a container away, which it does `PREEMPTION_WAIT_S` later.
    """
    am_deaths: tuple[float, ...] = ()
    journal: str = "whole"
    """``whole``, ``tail lost`` or ``lost``."""
    journal_s: tuple[float, float] = (0.0, 0.5)
    """From a line of the journal to the end of the write that takes it."""
    soft_kill_at: float | None = None
    kill_at: float | None = None
    max_runtime_s: float | None = None
    commit_fails: bool = False
    failing: dict[tuple[int, int], Fault] = field(default_factory=dict)
    """(index, how many times its payload ended before) -> its fault."""
    payload_s: tuple[float, float] = (0.5, 8.0)
    step_s: float = 0.3
    talk_s: float = 1.0
    grants_at_once: int = 1000
    service_ends: bool = False
    gang: Gang = Gang.NONE
    success: tuple[str, ...] = ()
    on_container_failure: ContainerFailure = ContainerFailure.STOP
    checkpoint: str | None = None
    """Role that stores checkpoints, or ``all``; None: there are none."""
    broken_checkpoints: float = 0.0
    """Share of the checkpoints that cannot be restored."""
    unpublished_s: float = 0.0
    """Time for which tasks of an earlier attempt cannot find the next one."""
    timing: Timing = TIMING
    limit_s: float = 3600.0
    """By when all has ended."""
    sweep: SweepPlan | None = None

    @classmethod
    def of_seed(cls, seed: int) -> Plan:
        """A plan of everything, at random."""
        chance = random.Random(f"plan {seed}")
        roles = []
        for place in range(chance.choice((1, 1, 1, 2, 3))):
            roles.append(
                RoleSpec(
                    name=("worker", "ps", "chief")[place],
                    instances=chance.randint(1, 5),
                    retries=chance.choice((0, 0, 1, 2)),
                    service=place == 1 and chance.random() < 0.7,
                )
            )
        total = sum(role.instances for role in roles)
        trouble = chance.choice((0.0, 0.0, 0.02, 0.1))
        plan = cls(
            seed,
            roles=tuple(roles),
            outputs=chance.random() < 0.8,
            nodes=chance.randint(1, 4),
            loss=chance.choice((0.0, 0.05, 0.3)),
            double=chance.choice((0.0, 0.2)),
            late=chance.choice((0.0, 0.1)),
            surplus=chance.choice((0.0, 0.3)),
            start_failed=trouble,
            task_killed=trouble,
            task_hangs=trouble,
            task_late=trouble,
            node_deaths=tuple(chance.uniform(0, 20) for _ in range(chance.choice((0, 0, 0, 1, 2)))),
            am_deaths=tuple(sorted(chance.uniform(0.1, 25) for _ in range(chance.choice((0, 0, 1, 2))))),
            journal=chance.choice(("whole", "tail lost")),
            soft_kill_at=chance.uniform(0, 20) if chance.random() < 0.25 else None,
            kill_at=chance.uniform(0, 20) if chance.random() < 0.1 else None,
            max_runtime_s=chance.uniform(1, 20) if chance.random() < 0.15 else None,
            commit_fails=chance.random() < 0.05,
        )
        for index in range(total):
            for time in range(3):
                if chance.random() < 0.08:
                    plan.failing[index, time] = chance.choice((Fault.USER, Fault.USER, Fault.NODE, Fault.DATA))
        plan.unpublished_s = chance.choice((0.0, 0.0, 0.5, 20.0))
        plan.gang = chance.choice((Gang.NONE, Gang.NONE, Gang.ROLE, Gang.ALL))
        plan.roles = tuple(_related(chance, plan.gang, role, roles[:place]) for place, role in enumerate(roles))
        if chance.random() < 0.3:
            plan.success = (chance.choice([role.name for role in roles if not role.service]),)
        if chance.random() < 0.4 and plan.gang is Gang.NONE:
            plan.on_container_failure = ContainerFailure.CONTINUE
        plan.slow_files = chance.choice((0.0, 0.0, 0.1))
        plan.journal_s = chance.choice(((0.0, 0.5), (0.0, 0.5), (1.0, 6.0)))
        return plan

    @property
    def submission(self) -> Submission:
        """Return what the ApplicationMaster gets."""
        outputs = (OutputSpec(output_path="output", target="file:///results/run"),) if self.outputs else ()
        spec = AppSpec(
            username="tony",
            appname="simulated",
            workspace="/w",
            script="start.sh",
            roles=self.roles,
            outputs=outputs,
            max_runtime_s=self.max_runtime_s,
            kill_grace_s=5.0,
            output_patience_s=5.0,
            on_container_failure=self.on_container_failure,
            gang=self.gang,
            success=self.success,
            sweep=None if self.sweep is None else self.sweep.spec,
            checkpoint=None
            if self.checkpoint is None
            else CheckpointSpec(path="model", target="file:///kept", keep=2, role=self.checkpoint),
        )
        return Submission(
            spec=spec,
            workspace_archive="/w.tar.gz",
            workspace_digest="sha256-0",
            submitter="tony",
            submitted_ms=EPOCH_MS,
        )


def _related(chance: random.Random, gang: Gang, role: RoleSpec, earlier: list[RoleSpec]) -> RoleSpec:
    """Return a role that may depend on earlier ones, and may be started again alone."""
    until = chance.choice((Until.STARTED, Until.DONE))
    others = [item for item in earlier if until is Until.STARTED or not item.service]
    if others and chance.random() < 0.4:
        role = replace(role, depends_on=(Dependency(chance.choice(others).name, until),))
    if gang is not Gang.NONE:
        share = chance.random()
        if share < 0.2:
            role = replace(role, on_failure=RoleFailure.RESTART)
        elif share > 0.95:
            role = replace(role, on_failure=RoleFailure.FAIL)
    return role
