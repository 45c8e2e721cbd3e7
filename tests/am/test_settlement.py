"""The commit claim: who is first decides, and what was decided is finished, not decided again."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from dlapp.am import settlement
from dlapp.am.application_dir.local import LocalApplicationDir
from dlapp.am.crash_settlement import decide, settle_crashed
from dlapp.am.model.events import ApplicationEnd, OutputsSettled, Part, Settlement, SettleOutputs
from dlapp.am.model.journal import line
from dlapp.am.settlement import OutputSettlement
from dlapp.errors import Unreachable
from dlapp.storage import commit as commit_module
from dlapp.storage.commit import part_location
from dlapp.sweep.results import read_results
from dlapp.sweep.spec import Distribution, DistributionKind, Sampler, SweepCommit, SweepSpec
from dlapp.value import replace
from dlapp.values.ids import ApplicationId, ContainerId, trial_part
from dlapp.values.messages import Fault, StoredOutput, TaskResult
from dlapp.values.report import Cause, CommitClaim, FinalStatus, OutputClaim
from dlapp.values.serialization import to_json
from dlapp.values.spec import AppSpec, OnFailure, OutputSpec, RoleSpec, Submission
from tests.services.disks import fill, small_disk

APP = ApplicationId(1700000000000, 1)
GOOD = ApplicationEnd(FinalStatus.SUCCEEDED, Cause.SUCCEEDED, "")
TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
BAD = ApplicationEnd(FinalStatus.FAILED, Cause.FAILED, "container 0 failed")


class World:
    """An application with one output and the parts that its containers stored."""

    def __init__(
        self, directory: Path, *, instances: int = 1, overwrite: bool = True, keep: bool = True, keep_previous: int = 0
    ) -> None:
        (directory / "home").mkdir()
        self.home, self.target = LocalApplicationDir(str(directory / "home")), directory / "out"
        output = OutputSpec(
            output_path="output",
            target=f"file://{self.target}",
            overwrite=overwrite,
            on_failure=OnFailure.KEEP if keep else OnFailure.DROP,
            keep_previous=keep_previous,
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

    def sibling_suffixes(self) -> list[str]:
        return sorted(p.name.rpartition(".")[2] for p in self.target.parent.glob("out.*"))


def test_one_container_s_output_is_the_target_itself(tmp_path: Path) -> None:
    world = World(tmp_path)
    settled = world.settle(1, Settlement.COMMIT, GOOD, world.parts)
    assert settled.error is None
    assert [output.committed for output in settled.outputs] == [True]
    assert (world.target / "model").read_text() == "from 0"
    assert world.sibling_suffixes() == []


def test_several_containers_outputs_stand_under_their_index(tmp_path: Path) -> None:
    world = World(tmp_path, instances=3)
    world.settle(1, Settlement.COMMIT, GOOD, world.parts)
    assert {p.parent.name: p.read_text() for p in world.target.rglob("model")} == {
        "0": "from 0",
        "1": "from 1",
        "2": "from 2",
    }


def test_a_previous_output_is_distinguished_from_foreign_files(tmp_path: Path) -> None:
    world = World(tmp_path, keep_previous=1)
    world.target.mkdir()
    for what in ("replaced", "previous"):
        (view,) = world.settle(1, Settlement.COMMIT, GOOD, world.parts).outputs
        found = {"replaced": view.replaced, "previous": view.previous}
        assert found == {**dict.fromkeys(found), what: f"file://{tmp_path}/out.{what}.{APP}"}
        (tmp_path / f"out.{what}.{APP}").rename(tmp_path / what)
        (tmp_path / "home" / "commit.json").unlink()
        world.parts = (world._store(0),)


def test_workspace_files_behind_links_in_the_output_of_a_killed_task_are_kept(tmp_path: Path) -> None:
    world = World(tmp_path)
    (part,) = world.parts
    lost = replace(part, container_id=ContainerId(APP, 1, 9), outputs=())
    workspace = tmp_path / "home" / "containers" / str(lost.container_id) / "workspace"
    for name in ("output", "checkpoints", "runs/3"):
        (workspace / name).mkdir(parents=True)
    (workspace / "checkpoints" / "e5.pt").write_text("weights")
    (workspace / "runs" / "3" / "log").write_text("losses")
    (workspace / "output" / "best.pt").symlink_to("../checkpoints/e5.pt")
    (workspace / "output" / "latest").symlink_to("../runs/3")
    (workspace / "output" / "far").symlink_to("/etc/passwd")
    wanted = SettleOutputs(Settlement.KEEP, BAD, (), (), (lost,), dead=(lost.container_id,))
    (view,) = OutputSettlement(world.home, world.submission, APP).settle(1, wanted).outputs
    assert view.partial is not None
    kept_output = Path(view.partial.removeprefix("file://"))
    assert {
        str(path.relative_to(kept_output)): path.read_text() for path in kept_output.rglob("*") if path.is_file()
    } == {
        "best.pt": "weights",
        "latest/log": "losses",
    }
    assert not workspace.exists()


def test_the_first_of_two_claims_counts_and_the_second_reads_its_result(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.settle(1, Settlement.COMMIT, GOOD, world.parts)
    late = world.settle(2, Settlement.KEEP, BAD, ())
    assert late.ended == GOOD
    assert [output.committed for output in late.outputs] == [True]
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


@pytest.mark.parametrize("how", [Settlement.KEEP, Settlement.COMMIT])
def test_leftovers_deleted_by_yarn_are_reported_once_per_index(tmp_path: Path, how: Settlement) -> None:
    world = World(tmp_path, instances=2)
    world.home.loses_leftovers = True
    stored, unstored = world.parts
    shutil.rmtree(unstored.outputs[0].part.removeprefix("file://"))
    again = replace(unstored, container_id=ContainerId(APP, 1, 9), outputs=())
    wanted = SettleOutputs(how, BAD, (stored,), (), (replace(unstored, outputs=()), again))
    settled = OutputSettlement(world.home, world.submission, APP).settle(1, wanted)
    gone = "what container 1 (worker 1) had not stored is gone: YARN deletes a container's directory with the container"
    if how is Settlement.COMMIT:
        assert (settled.error, settled.ended) == (None, replace(BAD, diagnostics=f"container 0 failed; {gone}"))
        claim = world.home.claimed()
        assert claim is not None
        assert claim.diagnostics == f"container 0 failed; {gone}"
    else:
        assert settled.error == gone
    kept_output = world.target if how is Settlement.COMMIT else Path(f"{world.target}.{APP}.partial")
    assert [str(path.relative_to(kept_output)) for path in kept_output.rglob("model")] == ["0/model"]


def test_stored_output_of_a_killed_container_on_yarn_is_not_reported_as_lost(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.home.loses_leftovers = True
    wanted = SettleOutputs(Settlement.KEEP, BAD, (), (), (replace(world.parts[0], outputs=()),))
    settled = OutputSettlement(world.home, world.submission, APP).settle(1, wanted)
    assert settled.error is None
    assert settled.outputs[0].partial == f"file://{world.target}.{APP}.partial"


def test_a_concurrently_created_target_is_left_and_the_output_kept_aside(tmp_path: Path) -> None:
    world = World(tmp_path, overwrite=False)
    world.target.mkdir()
    settled = world.settle(1, Settlement.COMMIT, GOOD, world.parts)
    assert settled.error is not None
    assert "was created while the application ran" in settled.error
    assert settled.outputs[0].partial == f"file://{world.target}.{APP}.partial"
    assert list(world.target.iterdir()) == []


def test_output_of_a_failed_run_is_kept_aside_or_dropped_as_configured(tmp_path: Path) -> None:
    kept_output = World(tmp_path)
    (view,) = kept_output.settle(1, Settlement.KEEP, BAD, kept_output.parts).outputs
    assert view.partial is not None
    assert Path(view.partial.removeprefix("file://"), "model").read_text() == "from 0"
    (tmp_path / "second").mkdir()
    dropped = World(tmp_path / "second", keep=False)
    (view,) = dropped.settle(1, Settlement.KEEP, BAD, dropped.parts).outputs
    assert view.partial is None
    assert dropped.sibling_suffixes() == []


def stored_by(world: World, number: int, files: dict[str, str]) -> Part:
    """Another try of index 0, and what its container stored."""
    container = ContainerId(APP, 1, number)
    location = part_location(f"file://{world.target}", APP, container)
    path = Path(location.removeprefix("file://"))
    path.mkdir(parents=True)
    for name, text in files.items():
        (path / name).write_text(text)
    stored = StoredOutput(name="", part=location, files=len(files), size_bytes=6)
    return Part(0, "worker", 0, container, (stored,))


def test_the_last_try_that_stored_a_file_is_kept(tmp_path: Path) -> None:
    world = World(tmp_path)
    parts = (*world.parts, stored_by(world, 7, {"model": "from try 2"}))
    (view,) = world.settle(1, Settlement.KEEP, BAD, parts).outputs
    assert view.partial is not None
    assert Path(view.partial.removeprefix("file://"), "model").read_text() == "from try 2"
    assert world.sibling_suffixes() == ["partial"]


def lose(world: World, number: int, files: dict[str, str]) -> Part:
    """A container whose task was killed while its script wrote these files."""
    output = Path(world.home.directory, "containers", str(ContainerId(APP, 1, number)), "workspace", "output")
    output.mkdir(parents=True)
    for name, text in files.items():
        (output / name).write_text(text)
    return Part(0, "worker", 0, ContainerId(APP, 1, number), ())


@pytest.mark.parametrize(("files", "kept_output"), [({"model": "from try 2"}, "from try 2"), ({}, "from 0")])
def test_leftovers_of_a_killed_try_are_kept_if_they_have_a_file(
    tmp_path: Path, files: dict[str, str], kept_output: str
) -> None:
    world = World(tmp_path)
    wanted = SettleOutputs(Settlement.KEEP, BAD, world.parts, (), (lose(world, 7, files),))
    (view,) = OutputSettlement(world.home, world.submission, APP).settle(1, wanted).outputs
    assert view.partial is not None
    assert Path(view.partial.removeprefix("file://"), "model").read_text() == kept_output


def test_an_output_without_parts_leaves_the_target_as_it_was(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.target.mkdir()
    (world.target / "model").write_text("former")
    settled = world.settle(1, Settlement.COMMIT, GOOD, ())
    assert (settled.error, [output.committed for output in settled.outputs]) == (None, [False])
    assert (world.target / "model").read_text() == "former"
    assert world.sibling_suffixes() == []


# ---- after the ApplicationMaster's death ----


def test_the_settlement_finishes_a_claimed_commit_and_keeps_its_result(tmp_path: Path) -> None:
    world = World(tmp_path)
    claim_only(world)
    ending, (view,) = decide(world.home, world.submission, APP, "died")
    assert (ending.final_status, view.committed) == (FinalStatus.SUCCEEDED, True)
    assert "died while it committed" in ending.diagnostics
    again, (view,) = decide(world.home, world.submission, APP, "died")
    assert (again, view.committed) == (ending, True)


def write_tries(world: World, *results: TaskResult | None) -> None:
    """The journal of an index 0 with these tries, of containers 2, 3, ...; None: its task said no result."""
    journal = world.home.journal(1)
    for number, result in enumerate(results):
        container = str(ContainerId(APP, 1, number + 2))
        records = [
            {"kind": "grant", "t": 1, "container": container, "request_id": 1, "node": "n", "log_url": ""},
            {"kind": "assign", "t": 2, "container": container, "index": 0, "tries": number + 1, "host": "n"},
        ]
        if result is not None:
            records.append({"kind": "result", "t": 3, "container": container, "result": to_json(result)})
        for record in records:
            journal.add(line(record))
    journal.close()


def test_the_settlement_keeps_the_output_of_an_earlier_try(tmp_path: Path) -> None:
    world = World(tmp_path)
    failed = TaskResult(fault=Fault.USER, exit_code=3, outputs=world.parts[0].outputs)
    write_tries(world, failed, TaskResult(fault=Fault.USER, exit_code=3), None)
    _, (view,) = decide(world.home, world.submission, APP, "died")
    assert view.partial is not None
    assert Path(view.partial.removeprefix("file://"), "model").read_text() == "from 0"


@pytest.mark.parametrize("asked_to_kill", [False, True])
def test_the_settlement_commits_ended_trials_if_trials_commit_separately(tmp_path: Path, asked_to_kill: bool) -> None:
    world = World(tmp_path)
    draws = Distribution(name="X", kind=DistributionKind.UNIFORM, low=0.0, high=1.0)
    sweep = SweepSpec(sampler=Sampler.RANDOM, trials=4, random=(draws,), commit=SweepCommit.TRIAL)
    spec = replace(world.submission.spec, outputs=(replace(world.submission.spec.outputs[0], by_trial=True),))
    submission = replace(world.submission, spec=replace(spec, sweep=sweep))
    (tmp_path / "home" / "submission.json").write_text(json.dumps(to_json(submission)))
    journal = world.home.journal(1)
    container = str(ContainerId(APP, 1, 2))
    for number, state in enumerate(["done", "stopped", "failed", "killed"]):
        location = part_location(f"file://{world.target}", APP, trial_part(number, 1))
        path = Path(location.removeprefix("file://"))
        path.mkdir()
        (path / "model").write_text(state)
        record = {
            "number": number, "try": 1, "in": container, "index": 0, "state": state, "ran_s": 1.0, "started_ms": 1,
            "user_faults": 0, "node_faults": 0, "outputs": [["", location, 1, 5, False]],
        }  # fmt: skip
        journal.add(line({"kind": "trial_end", "t": number, **record}))
    journal.close()
    if asked_to_kill:
        (tmp_path / "home" / "kill.json").write_text('{"by": "tony", "ms": 1}')
    settle_crashed(world.home, APP, 1, Mock(), 1, "died")
    found = {str(item.relative_to(world.target)): item.read_text() for item in world.target.rglob("model")}
    assert found == ({} if asked_to_kill else {"0/model": "done", "1/model": "stopped"})
    results = read_results((tmp_path / "home" / "trials.jsonl").read_text())
    assert [trial.is_committed for trial in results.trials] == [not asked_to_kill] * 2 + [False] * 2
    kept_output = {item.name: (item / "model").read_text() for item in tmp_path.glob("out.*.partial/*")}
    assert kept_output == ({"0": "done", "1": "stopped"} if asked_to_kill else {"3": "killed"})


@pytest.mark.parametrize("asked_to_kill", [False, True])
def test_without_a_claim_the_settlement_keeps_stored_output_also_after_a_kill(
    tmp_path: Path, asked_to_kill: bool
) -> None:
    world = World(tmp_path)
    (part,) = world.parts
    write_tries(world, TaskResult(fault=Fault.USER, exit_code=3, outputs=part.outputs))
    if asked_to_kill:
        (tmp_path / "home" / "kill.json").write_text('{"by": "tony", "ms": 1}')
    ending, (view,) = decide(world.home, world.submission, APP, "the ApplicationMaster died")
    message = "killed by tony, the complete output of container 0 (worker 0) kept as partial"
    expected = (FinalStatus.KILLED, message) if asked_to_kill else (FinalStatus.FAILED, "the ApplicationMaster died")
    assert (ending.final_status, ending.diagnostics) == expected
    assert view.partial is not None
    assert world.sibling_suffixes() == ["partial"]


def test_the_settlement_after_a_kill_keeps_the_output_of_a_succeeded_container(tmp_path: Path) -> None:
    world = World(tmp_path)
    (part,) = world.parts
    write_tries(world, TaskResult(fault=Fault.NONE, exit_code=0, outputs=part.outputs))
    (tmp_path / "home" / "kill.json").write_text('{"by": "tony", "ms": 1}')
    for _ in range(2):  # it may die, and is repeated
        ending, (view,) = decide(world.home, world.submission, APP, "the ApplicationMaster died")
        assert ending.final_status is FinalStatus.KILLED
        assert ending.diagnostics == "killed by tony, the complete output of container 0 (worker 0) kept as partial"
        assert view.partial is not None
        assert Path(view.partial.removeprefix("file://"), "model").read_text() == "from 0"


def test_a_kill_keeps_only_the_parts_that_are_complete(tmp_path: Path) -> None:
    world = World(tmp_path, instances=2)
    (view,) = world.settle(1, Settlement.DROP, BAD, world.parts[1:]).outputs
    assert view.partial is not None
    where = Path(view.partial.removeprefix("file://"))
    assert {str(path.relative_to(where)): path.read_text() for path in where.rglob("model")} == {"1/model": "from 1"}
    assert world.sibling_suffixes() == ["partial"]


@pytest.fixture
def outages(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """One for each commit that finds no file system; those after a first try are to know that it was not the first."""
    times: list[bool] = []
    monkeypatch.setattr(settlement, "AGAIN_S", 0.001)
    real = commit_module.commit

    def commit(*args: Any, **options: Any) -> Any:
        if times:
            times.pop()
            raise Unreachable("no NameNode answers")
        assert options["is_retry"]
        return real(*args, **options)

    monkeypatch.setattr(commit_module, "commit", commit)
    return times


def test_a_commit_waits_for_a_file_system_outage(tmp_path: Path, outages: list[bool]) -> None:
    world = World(tmp_path)
    world.home.patience_s = 60.0
    outages += [True, True]
    settled = world.settle(1, Settlement.COMMIT, GOOD, world.parts)
    assert settled.error is None
    assert (world.target / "model").read_text() == "from 0"


@pytest.mark.parametrize("keep", [True, False])
def test_keeping_failed_output_waits_for_a_file_system_like_a_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: bool
) -> None:
    world, times, messages, real = World(tmp_path, keep=keep), [True, True], list[str](), commit_module.output_commit

    def output_commit(*args: Any, **options: Any) -> Any:
        if times:
            times.pop()
            raise Unreachable("hdfs://nn/out.partial: HDFS is in safe mode")
        return real(*args, **options)

    monkeypatch.setattr(settlement, "AGAIN_S", 0.001)
    monkeypatch.setattr(commit_module, "output_commit", output_commit)
    world.home.patience_s = 60.0
    wanted = SettleOutputs(Settlement.KEEP, BAD, world.parts)
    settled = OutputSettlement(world.home, world.submission, APP, messages.append).settle(1, wanted)
    assert settled.error is None
    assert world.sibling_suffixes() == (["partial"] if keep else [])
    assert len(messages) == 2
    wait = rf"waits for its file system since {TIME}, until {TIME}: hdfs://nn/out.partial: HDFS is in safe mode"
    assert re.fullmatch(wait, messages[0])


def test_a_kill_waits_for_no_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path)
    world.home.patience_s = 60.0

    def output_commit(*_: Any, **__: Any) -> Any:
        raise Unreachable("no NameNode answers")

    monkeypatch.setattr(commit_module, "output_commit", output_commit)
    with pytest.raises(Unreachable):
        world.settle(1, Settlement.DROP, BAD, ())


def test_the_aftermath_waits_for_a_file_system_as_well(tmp_path: Path, outages: list[bool]) -> None:
    world = World(tmp_path)
    world.home.patience_s = 60.0
    claim_only(world)
    outages += [True, True]
    ending, (view,) = decide(world.home, world.submission, APP, "died")
    assert (outages, ending.final_status, view.committed) == ([], FinalStatus.SUCCEEDED, True)


def test_a_claimed_commit_is_finished_after_a_file_system_outage(tmp_path: Path, outages: list[bool]) -> None:
    world = World(tmp_path)
    claim_only(world)
    outages += [True]
    with pytest.raises(Unreachable, match="no NameNode answers"):
        decide(world.home, world.submission, APP, "died")
    assert "partial" not in world.sibling_suffixes()
    ending, (view,) = decide(world.home, world.submission, APP, "died")
    assert (ending.final_status, view.committed) == (FinalStatus.SUCCEEDED, True)
    assert (world.target / "model").read_text() == "from 0"
    assert world.sibling_suffixes() == []


@pytest.mark.parametrize(
    "place", ["{target}-of-another", "{target}", "{parts}/../x", "{parts}/container_1700000000000_0001_01_000009"]
)
def test_a_part_outside_the_target_is_left_alone_and_nothing_is_committed(tmp_path: Path, place: str) -> None:
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
    assert [path.name for path in Path(f"{world.target}.{APP}.partial").iterdir()] == ["0"]


@pytest.mark.root("to mount a small disk")
@pytest.mark.parametrize("instances", [1, 3])
def test_a_commit_waits_for_space_with_a_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, instances: int
) -> None:
    with small_disk(tmp_path, size_mib=1) as disk:
        world = World(disk, instances=instances)
        ballast, messages = fill(disk), []

        def tell(lack: str) -> None:
            messages.append(lack)
            ballast.unlink(missing_ok=True)

        monkeypatch.setattr(settlement, "AGAIN_S", 0.001)
        wanted = SettleOutputs(Settlement.COMMIT, GOOD, world.parts)
        settled = OutputSettlement(world.home, world.submission, APP, tell).settle(1, wanted)
        assert messages
        assert all(re.fullmatch(rf"waits for space on {disk} since {TIME}, until {TIME}", item) for item in messages)
        assert settled.error is None
        assert len([*world.target.rglob("model")]) == instances
        assert world.sibling_suffixes() == []


@pytest.mark.root("to mount a small disk")
@pytest.mark.parametrize("is_claimed", [True, False])
def test_a_commit_without_space_in_time_names_the_place_of_its_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_claimed: bool
) -> None:
    with small_disk(tmp_path, size_mib=1) as disk:
        world = World(disk, instances=2)
        world.submission = replace(world.submission, spec=replace(world.submission.spec, output_patience_s=0.01))
        if is_claimed:
            (tmp_path / "home").mkdir()
            world.home = LocalApplicationDir(str(tmp_path / "home"))
        fill(disk)
        monkeypatch.setattr(settlement, "AGAIN_S", 0.001)
        settled = world.settle(1, Settlement.COMMIT, GOOD, world.parts)
        assert settled.error is not None
        assert "could not be committed: disk full: " in settled.error
        (view,) = settled.outputs
        assert view.partial is not None
        assert len([*Path(view.partial.removeprefix("file://")).rglob("model")]) == 2
