"""Test what an application is made of that is submitted once more."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from dlapp.application.description import RecordedFile, UnresolvedSpec
from dlapp.application.overrides import NO_OVERRIDES, Overrides
from dlapp.application.properties import MAX_RECORDED_BYTES, parse_properties
from dlapp.errors import NotFound, UsageError
from dlapp.launcher.origin import Origin, _target_of_trial
from dlapp.storage.checkpoints.copies import Checkpoints
from dlapp.storage.checkpoints.store import open_store
from dlapp.sweep.trial import TrialSpec
from dlapp.value import replace
from dlapp.values.ids import ApplicationId
from dlapp.values.spec import AppSpec, CheckpointSpec, Gang, OutputSpec, RoleSpec, Submission

ID = "application_1700000000000_0007"


def spec(place: Path, *, role: str | None = None, containers: int = 2, **fields: object) -> AppSpec:
    return AppSpec(
        username="tony",
        appname="a",
        command=("x",),
        roles=(RoleSpec(instances=containers),),
        gang=Gang.ALL,
        checkpoint=CheckpointSpec(path="model", target=f"file://{place}", role=role),
        **fields,  # type: ignore[arg-type]
    )


def origin(recorded: AppSpec, *, resumes: bool = True, **fields: Any) -> Origin:
    submission = Submission(
        spec=recorded, workspace_archive="", workspace_digest="", submitter="tony", submitted_ms=0, **fields
    )
    return Origin(ID, submission, resumes)


def store(place: Path, *numbers: int, index: int | None = None) -> None:
    model = place.parent / "model"
    model.mkdir(exist_ok=True)
    (model / "weights").write_text("1")
    where = place / ID if index is None else place / ID / str(index)
    with open_store(f"file://{where}") as opened:
        for number in numbers:
            Checkpoints(opened, 9, lambda _: None).store(str(model), number)


def test_a_properties_file_is_recorded_without_comments_and_values_of_variables() -> None:
    text = "[application]\n# why\nappname=a\nenv.A=secret\n[role r]\nenv.B=secret\ncommand=x\nargs=1\n    2\n"
    recorded = parse_properties(text, "f").to_record()
    assert recorded == "[application]\nappname=a\n\n[role r]\ncommand=x\nargs=1\n    2\n"
    large = "".join(f"    {'x' * 1000}\n" for _ in range(MAX_RECORDED_BYTES // 900))
    assert parse_properties(f"{text}{large}", "f").to_record() == ""


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("hdfs://nn/results/digits/trials", "hdfs://nn/results/digits/trial-3"),
        ("file:///home/tony/r/trials", "file:///home/tony/r/trial-3"),
        ("file:///trials", "file:///trial-3"),
        ("hdfs://nn/trials", "hdfs://nn/trial-3"),
        ("s3://bucket/r/trials/", "s3://bucket/r/trial-3"),
    ],
)
def test_output_of_a_single_trial_is_stored_beside_that_of_the_sweep(target: str, expected: str) -> None:
    assert _target_of_trial(target, TrialSpec(3, {})) == expected


def test_without_a_file_all_is_as_it_was_recorded(tmp_path: Path) -> None:
    settings = Overrides({"resources.memory": "1g"}, {"A": "1"})
    known = origin(spec(tmp_path), properties="[application]\n", file="/home/tony/f")
    assert known.recorded_source(settings) == (RecordedFile("/home/tony/f", b"[application]\n"), settings)
    made_by_a_program = origin(spec(tmp_path, env=("A",)))
    source, left = made_by_a_program.recorded_source(Overrides({}, {"A": "1"}))
    assert isinstance(source, UnresolvedSpec)
    assert (source.env, left) == ({"A": "1"}, NO_OVERRIDES)
    with pytest.raises(
        UsageError, match="has no properties file on record, so --set and the arguments after -- need FILE"
    ):
        made_by_a_program.recorded_source(settings)


def test_without_a_file_the_id_in_a_target_is_that_of_the_new_application_again(tmp_path: Path) -> None:
    outputs = (
        OutputSpec(name="a", output_path="a", target="file:///r/{app_id}/a"),
        OutputSpec(name="b", output_path="b", target="file:///r/b"),
    )
    recorded = origin(spec(tmp_path / "{app_id}", outputs=outputs), resumes=False)
    named = recorded._replace(submission=recorded.submission.named(ApplicationId.from_text(ID)))
    assert named.submission.spec.outputs[0].target == f"file:///r/{ID}/a"
    source, _ = named.recorded_source(NO_OVERRIDES)
    assert isinstance(source, UnresolvedSpec)
    assert source.spec == recorded.submission.spec


def test_a_resumed_application_uses_the_directory_of_the_first(tmp_path: Path) -> None:
    store(tmp_path / "kept", 1)
    before, now = spec(tmp_path / "kept"), spec(tmp_path / "elsewhere", containers=3)
    assert origin(before).checked_spec(now, None) == replace(now, checkpoint=before.checkpoint)
    assert origin(before).checkpoints_of == ID
    assert origin(before, checkpoints_of="application_1_0001").checkpoints_of == "application_1_0001"
    assert origin(before, resumes=False).checkpoints_of == ""
    assert origin(before, resumes=False).checked_spec(now, None) == now


@pytest.mark.parametrize(
    ("before", "now", "problem"),
    [
        ({"role": "all"}, {"role": None}, "checkpoint.role: application_.* has checkpoints of each container, keep it"),
        (
            {"role": None},
            {"role": "all"},
            "checkpoint.role: application_.* has checkpoints of one container, keep it so",
        ),
        ({"role": "all"}, {"role": "all", "containers": 3}, "each of 2 containers .* so it cannot be resumed with 3"),
    ],
)
def test_checkpoints_that_do_not_fit_are_refused(
    tmp_path: Path, before: dict[str, object], now: dict[str, object], problem: str
) -> None:
    with pytest.raises(UsageError, match=problem):
        origin(spec(tmp_path, **before)).checked_spec(spec(tmp_path, **now), None)  # type: ignore[arg-type]


def test_a_file_without_checkpoints_cannot_resume(tmp_path: Path) -> None:
    without = replace(spec(tmp_path), checkpoint=None)
    with pytest.raises(UsageError, match=r"\[checkpoint\] is missing"):
        origin(spec(tmp_path)).checked_spec(without, None)
    with pytest.raises(UsageError, match=r"has no \[checkpoint\] and no \[sweep\], so nothing can be resumed"):
        origin(without).checked_spec(spec(tmp_path), None)


def test_with_parts_of_each_container_one_number_must_be_there_of_all(tmp_path: Path) -> None:
    place = tmp_path / "kept"
    resumed = spec(place, role="all")
    store(place, 1, 2, index=0)
    with pytest.raises(NotFound, match=f"{place}/{ID} has no whole checkpoint; --again {ID} runs it anew"):
        origin(resumed).checked_spec(resumed, None)
    store(place, 3, index=1)
    with pytest.raises(NotFound):
        origin(resumed).checked_spec(resumed, None)
    store(place, 2, index=1)
    assert origin(resumed).checked_spec(resumed, None) == resumed


def test_without_a_checkpoint_the_output_of_the_previous_run_is_named(tmp_path: Path) -> None:
    one = spec(tmp_path)
    former = origin(one)._replace(outputs=("file:///kept/result",))
    what = "its output at file:///kept/result may have the state: name it in [from_hdfs]; --again"
    with pytest.raises(NotFound, match=re.escape(what)):
        former.checked_spec(one, None)
