"""The thread that commits trials answers for each, also after errors of the file system, and ends on request."""

from __future__ import annotations

from queue import SimpleQueue
from typing import cast

import pytest

from dlapp.am import trial_commits
from dlapp.am.application_dir.interface import Superseded
from dlapp.am.model.events import CommitTrial, Part, TrialCommitted
from dlapp.am.settlement import OutputSettlement
from dlapp.am.trial_commits import TrialCommits
from dlapp.cluster.engine import Heartbeat
from dlapp.errors import DlappError, Unreachable
from dlapp.system import waits
from dlapp.values.ids import ApplicationId, ContainerId

CONTAINER = ContainerId(ApplicationId(1700000000000, 1), 1, 2)
WAIT_S = 120.0


class Outputs:
    """Commits of trials, each of which goes as said before."""

    def __init__(self, *says: BaseException | None) -> None:
        self.says, self.calls = list(says), SimpleQueue[tuple[int, bool]]()

    def commit_trial(self, part: Part, *, is_retry: bool) -> None:
        self.calls.put((part.index, is_retry))
        if (error := self.says.pop(0)) is not None:
            raise error


def start_commits(outputs: Outputs) -> tuple[TrialCommits, SimpleQueue[TrialCommitted | Heartbeat]]:
    answers = SimpleQueue[TrialCommitted | Heartbeat]()
    return TrialCommits(cast(OutputSettlement, outputs), 1e6, answers.put), answers


def wanted(number: int, *, again: bool = False) -> CommitTrial:
    return CommitTrial(Part(number, "trial", number, CONTAINER, (), f"trial_{number}_1"), again)


def test_a_commit_is_retried_while_the_storage_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_commits, "_AGAIN_S", (0.001, 0.001))
    outputs = Outputs(Unreachable("away"), Unreachable("away"), None, None)
    commits, answers = start_commits(outputs)
    commits.add(wanted(3))
    commits.add(wanted(4, again=True))
    assert [answers.get(timeout=WAIT_S) for _ in range(2)] == [TrialCommitted(3), TrialCommitted(4)]
    commits.close()
    assert [outputs.calls.get(timeout=WAIT_S) for _ in range(4)] == [(3, False), (3, True), (3, True), (4, True)]


def test_a_commit_that_is_tried_again_is_a_wait_until_it_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trial_commits, "_AGAIN_S", (0.001, 0.001))
    monkeypatch.setattr(waits, "SHOWN_AFTER_S", 0.0)
    outputs = Outputs(Unreachable("away"), None)
    seen: list[str] = []

    def commit_trial(part: Part, *, is_retry: bool) -> None:
        seen.append(waits.longest_text())
        Outputs.commit_trial(outputs, part, is_retry=is_retry)

    monkeypatch.setattr(outputs, "commit_trial", commit_trial)
    commits, answers = start_commits(outputs)
    commits.add(wanted(3))
    assert answers.get(timeout=WAIT_S) == TrialCommitted(3)
    commits.close()
    assert "waits for the output of trial 3 since " in seen[1]
    assert seen[1].endswith(": away")
    assert "the output of trial 3" not in waits.longest_text()


def test_each_failure_is_answered_and_the_next_trial_is_committed() -> None:
    commits, queue = start_commits(Outputs(DlappError("the name is taken"), ValueError("odd"), None))
    for number in range(3):
        commits.add(wanted(number))
    answers = [queue.get(timeout=WAIT_S) for _ in range(3)]
    assert answers == [
        TrialCommitted(0, "the name is taken"),
        TrialCommitted(1, "ValueError('odd')"),
        TrialCommitted(2),
    ]
    commits.close()


def test_the_end_of_the_application_does_not_wait_for_an_unreachable_file_system() -> None:
    outputs = Outputs(Unreachable("away"))
    commits, answers = start_commits(outputs)
    commits.add(wanted(0))
    commits.add(wanted(1))
    outputs.calls.get(timeout=WAIT_S)
    commits.close()
    assert answers.get(timeout=WAIT_S) == TrialCommitted(0, "away")
    assert answers.empty()
    assert outputs.calls.empty()


def test_an_attempt_that_is_superseded_commits_no_more() -> None:
    commits, answers = start_commits(Outputs(Superseded("by attempt 2")))
    commits.add(wanted(0))
    assert answers.get(timeout=WAIT_S) == Heartbeat(shut_down="by attempt 2")
    commits.close()
