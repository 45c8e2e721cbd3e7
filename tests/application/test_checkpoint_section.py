"""Test the section ``[checkpoint]`` of a properties file."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlapp.config import Config
from dlapp.errors import SpecError
from dlapp.values.spec import AppSpec, CheckpointSpec, RoleSpec
from tests.application.test_description import MINIMAL, ON_HDFS, read, refused

OUTPUT = "[to_hdfs]\noutput_path=out\nhdfs={}\n"


def test_checkpoints_are_beside_the_first_output_by_default(place: Path, config: Config) -> None:
    text = MINIMAL + "[checkpoint]\npath=./models/\n" + OUTPUT.format("results/run1/")
    expected = CheckpointSpec(path="models", target=f"file://{place}/results/run1.checkpoints", every_s=600.0, keep=3)
    assert read(place, text, config).spec.checkpoint == expected
    text = MINIMAL + "[checkpoint]\npath=m\nhdfs=/kept\nevery=90s\nkeep=5\n"
    on_hdfs = read(place, text, config, ON_HDFS).spec.checkpoint
    assert on_hdfs == CheckpointSpec(path="m", target="hdfs://nn:8020/kept", every_s=90.0, keep=5)
    assert read(place, MINIMAL, config).spec.checkpoint is None


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ("path=../m\nhdfs=c\n", "checkpoint.path: '../m' leads out of the workspace"),
        ("path=/m\nhdfs=c\n", "checkpoint.path: '/m' is absolute"),
        ("path=.\nhdfs=c\n", "checkpoint.path: '.' is the workspace itself"),
        ("path=m\n", "checkpoint.hdfs: is missing, and without [to_hdfs]"),
        ("path=m\nhdfs=c/*\n", "checkpoint.hdfs: 'c/*' is a pattern"),
        ("path=m\nhdfs=c\nevery=0s\n", "checkpoint.every: is 0 s, the minimum is 1 s"),
        ("path=m\nhdfs=c\nkeep=0\n", "checkpoint.keep: "),
        ("path=m\nhdfs=c\nrole=wroker\n", "checkpoint.role: there is no role wroker, the nearest is worker"),
        ("path=m\nhdfs=c\nrole=a b\n", "checkpoint.role: 'a b' is not a name"),
        ("hdfs=c\n", "checkpoint.path: is missing"),
    ],
)
def test_invalid_values_are_refused_by_name(place: Path, config: Config, section: str, problem: str) -> None:
    faults = refused(place, f"{MINIMAL}[checkpoint]\n{section}", config)
    assert [problem in fault for fault in faults] == [True], faults


def test_all_faults_are_named_at_once(place: Path, config: Config) -> None:
    text = "[resources]\ncontainers=2\n[checkpoint]\npath=..\nhdfs=out/in\n"
    faults = refused(place, MINIMAL + text + OUTPUT.format("out"), config)
    assert len(faults) == 3
    assert (
        "containers that do not start together (gang=none) have checkpoints of their own each" in faults[0] + faults[1]
    )
    assert "which is replaced as a whole" in faults[2]


def test_a_spec_refuses_the_same_values_as_a_file() -> None:
    checkpoint = CheckpointSpec(path="m", target="file:///c")
    with pytest.raises(SpecError, match=r"checkpoint\.role: must be all: containers that do not start together"):
        AppSpec(username="u", appname="a", command=("x",), roles=(RoleSpec(instances=2),), checkpoint=checkpoint)
    for field, value in (("path", ".."), ("target", ""), ("every_s", 0.5), ("keep", 0)):
        with pytest.raises(SpecError, match=r"^checkpoint\."):
            CheckpointSpec(**{"path": "m", "target": "file:///c", field: value})  # type: ignore[arg-type]
