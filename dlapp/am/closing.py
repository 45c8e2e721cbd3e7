"""How an application ends: somebody stops it, it fails, its time is up, or all is done.

What is decided is in the journal before anybody is stopped for it. A soft end gives payloads their grace, then those
that store their output time for that; a hard one gives nothing. Then the outputs are settled, once, and the last ends
are waited for. Each of these waits has a deadline, so it always ends; what is not known by then, the diagnostics say.
"""

from __future__ import annotations

from dlapp.am import journal, verdict
from dlapp.am.books import Books
from dlapp.am.events import AnswerStop, Ending, Finish, Kill, OutputsSettled, Part, Settlement, SettleOutputs, SoftKill
from dlapp.am.instance import Stage, Why
from dlapp.control import Stop, StopAnswer
from dlapp.report import Cause, FinalStatus
from dlapp.spec import OnFailure


class Closing(Books):
    """The layer that ends an application."""

    def _fail(self, words: str) -> None:
        if self.stage is Stage.ACTIVE:
            # Where output of a failed run is kept, what the others have of it is worth the moment to store it.
            kept = any(output.on_failure is OnFailure.KEEP for output in self.spec.outputs)
            ending = Ending(FinalStatus.FAILED, Cause.FAILED, words)
            self._conclude(ending, Settlement.KEEP, grace_ms=0 if kept else None, decided=True)

    def _kill(self, by: str) -> None:
        self._soft_words = None
        words = f"killed by {by}, no output kept" if self.spec.outputs else f"killed by {by}"
        self._conclude(Ending(FinalStatus.KILLED, Cause.KILLED, words), Settlement.DROP)

    def _soft_stop(self, by: str, cause: Cause, words: str, ends_ms: int | None = None) -> None:
        """End the payloads with SIGTERM and keep what they store; before any has run, it is a kill.

        Args:
            ends_ms: when the grace is over, where an earlier attempt began this.
        """
        if not self.payload_ran and not any(one.unvouched for one in self.open.values()):
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

    def _timed_out_words(self) -> str:
        return f"timed out after {self.spec.max_runtime_s:g} s"

    def _conclude(self, ending: Ending, how: Settlement, *, grace_ms: int | None = None, decided: bool = False) -> None:
        """Stop what runs, and then end.

        Args:
            grace_ms: between SIGTERM and SIGKILL, with the output stored after it; None: SIGKILL and no output.
            decided: how it ends does not depend on what is stored.
        """
        self.ending, self._how = ending, how
        self.stage = Stage.CLOSING
        self._closing_stage = 0
        if grace_ms is None or decided:
            # On the disk before anybody is stopped for it: a next attempt must not take those for failures.
            self._note("ending", durable=True, **journal.ending_record(ending, how))
        if grace_ms is None:
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
                self._order(container, stop=Stop.SOFT, why=self._words(Why.ENDING), grace_s=grace_ms / 1000)
        self._soft_ends_awake_ms = self.awake_ms + grace_ms
        self._closing_until_ms = self._soft_ends_awake_ms + self.timing.soft_margin_ms

    def _grace_left_s(self) -> float:
        if self.soft_ends_ms is None or self._soft_words is None:
            return 0.0
        return max(0, self._soft_ends_awake_ms - self.awake_ms) / 1000

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
        elif self.ending.cause is Cause.TIMED_OUT and not self._all_came_to_a_good_end():
            # Nobody looked at it and said that it is worth keeping, and it may be half of something.
            words += ", output kept aside: not every script ended with exit code 0 in its grace time"
            self._how = Settlement.KEEP
        else:
            words += ", output committed"
            there = {part.index for part in parts}
            without = [one for one in self.instances if one.index not in there]
            if without:
                names = [verdict.container_name(one.index, one.role.name, one.role_index) for one in without]
                words += f" but for {verdict.listed(names)}"
        self.ending = self.ending._replace(diagnostics=words)

    def _all_came_to_a_good_end(self) -> bool:
        """Whether every payload ended by itself with exit code 0, having saved what it wanted to save."""
        lasts = [one.last for one in self.instances]
        return all(one is not None and one.result is not None and one.result.exit_code == 0 for one in lasts)

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
