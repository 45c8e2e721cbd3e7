"""The commit claim: who is first decides, and what was decided is finished, not decided again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dlapp.am import settlement
from dlapp.am.application_dir.local import LocalApplicationDir
from dlapp.am.crash_settlement import decide
from dlapp.am.model.events import ApplicationEnd, OutputsSettled, Part, Settlement, SettleOutputs
from dlapp.am.model.journal import line
from dlapp.am.settlement import OutputSettlement
from dlapp.errors import Unreachable
from dlapp.ids import ApplicationId, ContainerId
from dlapp.messages import Fault, StoredOutput, TaskResult
from dlapp.report import Cause, CommitClaim, FinalStatus, OutputClaim
from dlapp.serialization import to_json
from dlapp.spec import AppSpec, OnFailure, OutputSpec, RoleSpec, Submission
from dlapp.storage import commit as commit_module
from dlapp.storage.commit import part_location
from dlapp.value import replace

APP = ApplicationId(1700000000000, 1)
GOOD = ApplicationEnd(FinalStatus.SUCCEEDED, Cause.SUCCEEDED, "")
BAD = ApplicationEnd(FinalStatus.FAILED, Cause.FAILED, "container 0 failed")


class World:
    """An application with one output and the parts that its containers stored."""

    def __init__(self, directory: Path, *, instances: int = 1, overwrite: bool = True, keep: bool = True) -> None:
        (directory / "home").mkdir()
        self.home, self.target = LocalApplicationDir(str(directory / "home")), directory / "out"
        output = OutputSpec(
            output_path="output",
            target=f"file://{self.target}",
            overwrite=overwrite,
            on_failure=OnFailure.KEEP if keep else OnFailure.DROP,
        )
        spec = AppSpec(
            username="u",
            appname="a",
            workspace="/w",
            script="s",
            outputs=(output,),
            roles=(RoleSpec(instances=instances),),
        )
        self.submission = Submission(
            spec=spec, workspace_archive="", workspace_digest="", submitter="u", submitted_ms=1
        )
        self.parts = tuple(self._store(index) for index in range(instances))

    def _store(self, index: int) -> Part:
        container = ContainerId(APP, 1, index + 2)
        location = part_location(f"file://{self.target}", APP, container)
        path = Path(location.removeprefix("file://"))
        path.mkdir(parents=True)
        (path / "model").write_text(f"from {index}")
        stored = StoredOutput(name="", part=location, files=1, size_bytes=6)
        return Part(index, "worker", index, container, (stored,))

    def settle(self, attempt: int, how: Settlement, ending: ApplicationEnd, parts: Sequence[Part]) -> OutputsSettled:
        settlement = OutputSettlement(self.home, self.submission, APP)
        return settlement.settle(attempt, SettleOutputs(how, ending, tuple(parts)))

    def beside(self) -> list[str]:
        return sorted(p.name.rpartition(".")[2] for p in self.target.parent.glob("out.*"))


def test_one_container_s_output_is_the_target_itself(tmp_path: Path) -> None:
    world = World(tmp_path)
    settled = world.settle(1, Settlement.COMMIT, GOOD, world.parts)
    assert settled.error is None
    assert [one.committed for one in settled.outputs] == [True]
    assert (world.target / "model").read_text() == "from 0"
    assert world.beside() == []


def test_several_containers_outputs_stand_under_their_index(tmp_path: Path) -> None:
    world = World(tmp_path, instances=3)
    world.settle(1, Settlement.COMMIT, GOOD, world.parts)
    assert {p.parent.name: p.read_text() for p in world.target.rglob("model")} == {
        "0": "from 0",
        "1": "from 1",
        "2": "from 2",
    }


def test_of_two_attempts_the_first_claim_counts_and_the_second_learns_its_end(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.settle(1, Settlement.COMMIT, GOOD, world.parts)
    late = world.settle(2, Settlement.KEEP, BAD, ())
    assert late.ended == GOOD
    assert [one.committed for one in late.outputs] == [True]
    assert (world.target / "model").read_text() == "from 0"


def test_a_claimed_output_is_never_dropped_by_an_attempt_that_did_not_know(tmp_path: Path) -> None:
    world = World(tmp_path)
    claim_only(world)
    settled = world.settle(2, Settlement.DROP, BAD, ())
    assert settled.ended == GOOD
    assert (world.target / "model").read_text() == "from 0"


def claim_only(world: World) -> None:
    """Die between the claim and the first rename."""
    parts = {"": world.parts[0].outputs[0].part}
    world.home.claim(
        CommitClaim(
            attempt=1,
            final_status=GOOD.final_status,
            cause=GOOD.cause,
            diagnostics="",
            outputs=(OutputClaim(target=f"file://{world.target}", overwrite=True, parts=parts),),
        )
    )


def test_an_output_that_appeared_meanwhile_is_left_and_ours_is_kept_aside(tmp_path: Path) -> None:
    world = World(tmp_path, overwrite=False)
    world.target.mkdir()
    settled = world.settle(1, Settlement.COMMIT, GOOD, world.parts)
    assert settled.error is not None
    assert "was created while the application ran" in settled.error
    assert settled.outputs[0].partial == f"file://{world.target}.{APP}.partial"
    assert list(world.target.iterdir()) == []


def test_a_failed_run_s_output_is_kept_aside_or_dropped_as_the_file_says(tmp_path: Path) -> None:
    kept = World(tmp_path)
    (view,) = kept.settle(1, Settlement.KEEP, BAD, kept.parts).outputs
    assert view.partial is not None
    assert Path(view.partial.removeprefix("file://"), "model").read_text() == "from 0"
    (tmp_path / "second").mkdir()
    dropped = World(tmp_path / "second", keep=False)
    (view,) = dropped.settle(1, Settlement.KEEP, BAD, dropped.parts).outputs
    assert view.partial is None
    assert dropped.beside() == []


# ---- after the ApplicationMaster's death ----


def test_the_aftermath_finishes_a_claimed_commit_and_keeps_its_end(tmp_path: Path) -> None:
    world = World(tmp_path)
    claim_only(world)
    ending, (view,) = decide(world.home, world.submission, APP, "died")
    assert (ending.final_status, view.committed) == (FinalStatus.SUCCEEDED, True)
    assert "died while it committed" in ending.diagnostics
    again, (view,) = decide(world.home, world.submission, APP, "died")
    assert (again, view.committed) == (ending, True)


@pytest.mark.parametrize("asked_to_kill", [False, True])
def test_without_a_claim_the_aftermath_keeps_what_was_stored_unless_a_kill_was_asked_for(
    tmp_path: Path, asked_to_kill: bool
) -> None:
    world = World(tmp_path)
    (part,) = world.parts
    result = TaskResult(fault=Fault.NONE, exit_code=0, outputs=part.outputs)
    journal = world.home.journal(1)
    for record in (
        {"kind": "grant", "t": 1, "container": str(part.container_id), "request_id": 1, "node": "n", "log_url": ""},
        {"kind": "assign", "t": 2, "container": str(part.container_id), "index": 0, "tries": 1, "host": "n"},
        {"kind": "result", "t": 3, "container": str(part.container_id), "result": to_json(result)},
    ):
        journal.add(line(record))
    journal.close()
    if asked_to_kill:
        (tmp_path / "home" / "kill.json").write_text('{"by": "tony", "ms": 1}')
    ending, (view,) = decide(world.home, world.submission, APP, "the ApplicationMaster died")
    if asked_to_kill:
        assert (ending.final_status, view.partial, world.beside()) == (FinalStatus.KILLED, None, [])
    else:
        assert (ending.final_status, ending.diagnostics) == (FinalStatus.FAILED, "the ApplicationMaster died")
        assert world.beside() == ["partial"]


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """One for each commit that finds no file system; those after a first try are to know that it was not the first."""
    times: list[bool] = []
    monkeypatch.setattr(settlement, "AGAIN_S", 0.001)
    real = commit_module.commit

    def commit(*args: Any, **options: Any) -> Any:
        if times:
            times.pop()
            raise Unreachable("no NameNode answers")
        assert options["again"]
        return real(*args, **options)

    monkeypatch.setattr(commit_module, "commit", commit)
    return times


def test_a_commit_waits_for_a_file_system_that_is_away_for_a_while(tmp_path: Path, away: list[bool]) -> None:
    world = World(tmp_path)
    world.home.patience_s = 60.0
    away += [True, True]
    settled = world.settle(1, Settlement.COMMIT, GOOD, world.parts)
    assert settled.error is None
    assert (world.target / "model").read_text() == "from 0"


def test_the_aftermath_waits_for_a_file_system_as_well(tmp_path: Path, away: list[bool]) -> None:
    world = World(tmp_path)
    world.home.patience_s = 60.0
    claim_only(world)
    away += [True, True]
    ending, (view,) = decide(world.home, world.submission, APP, "died")
    assert (away, ending.final_status, view.committed) == ([], FinalStatus.SUCCEEDED, True)


def test_a_file_system_that_stays_away_decides_nothing_and_the_next_aftermath_finishes_what_was_claimed(
    tmp_path: Path, away: list[bool]
) -> None:
    world = World(tmp_path)
    claim_only(world)
    away += [True]
    with pytest.raises(Unreachable, match="no NameNode answers"):
        decide(world.home, world.submission, APP, "died")
    assert "partial" not in world.beside()
    ending, (view,) = decide(world.home, world.submission, APP, "died")
    assert (ending.final_status, view.committed) == (FinalStatus.SUCCEEDED, True)
    assert (world.target / "model").read_text() == "from 0"
    assert world.beside() == []


@pytest.mark.parametrize(
    "place", ["{target}-of-another", "{target}", "{parts}/../x", "{parts}/container_1700000000000_0001_01_000009"]
)
def test_a_part_that_a_task_reports_elsewhere_is_not_touched_and_nothing_is_committed(
    tmp_path: Path, place: str
) -> None:
    world = World(tmp_path, instances=2)
    parts = f"{world.target}.{APP}.tmp"
    location = f"file://{place.format(target=world.target, parts=parts)}"
    bad = replace(world.parts[1], outputs=(StoredOutput(name="", part=location, files=1, size_bytes=1),))
    settled = world.settle(1, Settlement.COMMIT, GOOD, (world.parts[0], bad))
    assert settled.error is not None
    assert "reported its output at" in settled.error
    assert not settled.outputs[0].committed
    assert not world.target.exists()
    assert world.home.claimed() is None
    assert settled.outputs[0].partial == f"file://{world.target}.{APP}.partial"
    assert [one.name for one in Path(f"{world.target}.{APP}.partial").iterdir()] == ["0"]
