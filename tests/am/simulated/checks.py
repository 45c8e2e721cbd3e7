"""Properties that must hold in the simulated cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlapp.am.model.instance import StopReason
from dlapp.am.model.roster import roster_of
from dlapp.am.view import of as view_of
from dlapp.values.ids import ContainerId
from dlapp.values.messages import Orders
from dlapp.values.report import Cause, FinalStatus
from dlapp.values.spec import ContainerFailure, RoleFailure
from tests.am.simulated.box import Box

if TYPE_CHECKING:
    from tests.am.simulated.world import World


class Checks:
    """Checks, and what is counted for them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.user_faults: dict[int, int] = {}
        self.forgiven = 0  # for a node was to blame, as was heard later
        self.charged: dict[int, int] = {}
        self.on_record: dict[int, ContainerId] = {}

    def blame_user(self, box: Box) -> None:
        """The ApplicationMaster hears that a payload failed by itself, or was killed with its task."""
        if box.blamed and not box.stop_ordered:
            assert box.index is not None
            box.blamed = False
            self.user_faults[box.index] = self.user_faults.get(box.index, 0) + 1

    def check_stop(self, container_id: ContainerId) -> None:
        container = self.world.master and self.world.master.state.containers.by_id.get(container_id)
        if container and container.stop_reason is StopReason.UNCONFIRMED and not self.world.published:
            self.world.violated(f"{container_id} was stopped because its task was silent, which could not speak")

    def is_out_of_reach(self, box: Box) -> bool:
        """Return whether an index may run elsewhere though a container runs it: the engine has lost its node, which
        cannot be ordered to end it, and its task has been silent for as long as it may.
        """
        reachable_at = 0.0 if box.grant.container_id.attempt == self.world.attempt else self.world.reachable_at
        was_heard = box.heard_at > reachable_at
        silent_s = self.world.now - max(box.heard_at, reachable_at)
        least_ms = self.world.plan.timing.silence_ms if was_heard else self.world.plan.timing.recovery_ms
        return box.on_lost_node and silent_s * 1000 >= least_ms

    def check_replaced(self, box: Box, attempt: int) -> None:
        """Check that a task which was heard again has ended its payload, for its index runs elsewhere."""
        if (
            box.payload
            and not box.hangs
            and self.world.ending is None
            and self.world.attempt == attempt
            and self.world.published
        ):
            self.world.violated(
                f"{box.grant.container_id} was heard, and runs on though index {box.index} runs elsewhere"
            )

    def check_generations(self, box: Box, index: int) -> None:
        """Check that no payload of an earlier generation runs when one of its gang begins."""
        role, _ = self.world.submission.spec.role_of(index)
        gang = next((gang for gang in self.world.submission.spec.gangs() if role in gang), ())
        for item in gang:
            for other in filter(None, map(self.world.payloads.running.get, self.world.indexes[item.name])):
                if other.generation != box.generation and not (other.given_up or self.is_out_of_reach(other)):
                    mine, its = f"{index} in generation {box.generation}", f"{other.index} in {other.generation}"
                    self.world.violated(f"index {mine} begins while {its} runs")

    def check_roster(self, box: Box) -> None:
        """Check that a payload starts with a roster that has itself, and all members of its gang."""
        if (
            not self.world.submission.spec.has_roster
            or self.world.master is None
            or not self.world.master.state.roster.number
        ):
            return
        assert box.index is not None
        state = self.world.master.state
        role = state.role_of_index(box.index)
        members = {member.index: member for member in roster_of(state, role.gate).members}
        if box.index not in members or members[box.index].address != box.address:
            self.world.violated(f"index {box.index} starts with the roster {members.get(box.index)} of itself")
        gang = [index for item in state.roles_of(role.gate) for index in item.indexes] if role.gate.gang else []
        # Who ended or was lost before this attempt is not known to it, nor one that is only about to replace another.
        running = {
            item.instance.index for item in state.containers.open.values() if item.instance is not None and item.ran
        }
        lacking = [index for index in gang if index not in members and (self.world.attempt == 1 or index in running)]
        if lacking:
            self.world.violated(f"index {box.index} starts with a roster without {lacking}")

    def check_orders(self, box: Box, orders: Orders) -> None:
        if not orders.go or box.index is None:
            return
        if orders.attempt > 1:
            return
        role, _ = self.world.submission.spec.role_of(box.index)
        gang = next((gang for gang in self.world.submission.spec.gangs() if role in gang), ())
        for index in [index for item in gang for index in self.world.indexes[item.name]]:
            if not any(item.index == index and item.reached_gate for item in self.world.engine.boxes.values()):
                self.world.violated(f"the gang of {role.name} may go, index {index} was never at the gate")

    def check_the_end(self) -> None:
        assert self.world.ending is not None
        assert self.world.master is not None
        plan, ending = self.world.plan, self.world.ending
        for box in self.world.engine.boxes.values():
            if box.alive and not box.on_lost_node:
                self.world.violated(f"{box.grant.container_id} is left running after the end: {ending.diagnostics}")
            known = box.is_reported and box.grant.container_id.attempt == self.world.attempt
            given_back = box.ended or box.released or box.grant.container_id in self.world.master.releases()
            if known and not box.started and not given_back:
                self.world.violated(f"{box.grant.container_id} was granted and never given back")
        for index, faults in self.user_faults.items():
            role, _ = self.world.submission.spec.role_of(index)
            if role.keep_running:
                continue
            # An end that the journal lost with its attempt is counted against nobody: there is no other witness.
            forgotten = self.forgiven + (0 if plan.journal == "whole" else self.world.attempt - 1)
            # A service that failed for good is there again when its gang is restarted, and may fail again.
            again = self.world.master.state.role_of_index(index).gate.generation if role.service else 0
            if faults > role.retries + 1 + forgotten + again:
                self.world.violated(f"index {index} failed {faults} times, {role.retries} retries are allowed")
            if faults > 1 + forgotten and role.on_failure is RoleFailure.FAIL:
                self.world.violated(
                    f"index {index} failed {faults} times, and its first failure is to end the application"
                )
        spec = self.world.submission.spec
        deciding = [i for i in range(self.world.total) if spec.decides(spec.role_of(i)[0])]
        has_trials = self.world.trials.exist  # they end an application, and their output is kept however it ends
        if ending.final_status is FinalStatus.SUCCEEDED and not has_trials:
            for index in deciding or range(self.world.total):
                if index not in self.world.payloads.completions:
                    self.world.violated(f"it succeeded, and index {index} never did")
            self.check_parts(deciding)
        goes_on = plan.on_container_failure is ContainerFailure.CONTINUE
        no_commit = (Cause.KILLED,) if goes_on else (Cause.KILLED, Cause.FAILED)
        if (
            not has_trials
            and ending.cause in no_commit
            and self.world.outputs.swapped is not None
            and not plan.commit_fails
        ):
            self.world.violated(f"{ending.diagnostics}, and its output was committed")
        # A commit that fails after a soft stop makes it FAILED, too.
        if ending.cause is Cause.FAILED and goes_on and not self.world.ended_softly:
            self.check_others_went_on(deciding or list(range(self.world.total)))
        view = view_of(self.world.master.state, "")
        if not view.state.ended or view.cause is not ending.cause:
            self.world.violated(f"the view says {view.state}, {view.cause}")

    def check_others_went_on(self, deciding: list[int]) -> None:
        """Every index has ended by itself, and what was committed is of those that ended well."""
        assert self.world.master is not None
        failed = {instance.index for instance in self.world.master.state.instances if instance.failed}
        for index in deciding:
            if index not in self.world.payloads.completions and index not in failed:
                self.world.violated(f"index {index} neither succeeded nor failed, and the application has ended")
        parts = self.world.outputs.swapped.parts if self.world.outputs.swapped is not None else ()
        for part in parts:
            if part.index in failed:
                self.world.violated(f"part {part.index} is of a container that failed, and was committed")

    def check_parts(self, deciding: list[int]) -> None:
        if not self.world.plan.outputs:
            return
        if self.world.outputs.swapped is None:
            self.world.violated("it succeeded, and nothing was committed")
            return
        parts = {part.index: part.container_id for part in self.world.outputs.swapped.parts}
        for index in deciding:
            # An attempt that knows no more than the records takes a part that is there, and not one of whose making it
            # hears afterwards. Without a journal it may run all again before it finds the claim of an earlier one.
            right = (
                self.world.payloads.completions[index][0],
                self.on_record.get(index),
                self.world.outputs.at_claim.get(index),
            )
            if parts.get(index) not in right:
                self.world.violated(
                    f"part {index} is of {parts.get(index)}, not of {self.world.payloads.completions[index][0]}"
                )
