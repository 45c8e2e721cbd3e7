"""Input as a whole task brings it: looked at first, unpacked, listed, dealt out."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

from dlapp.values.messages import Fault, Phase, TaskResult
from dlapp.values.spec import InputSpec, Resources
from tests.task.fake_am import FakeAm, workspace_archive


def ran(place: Path, script: str, *inputs: InputSpec, **assignment: Any) -> tuple[TaskResult, FakeAm]:
    packed = workspace_archive(place, {"run.sh": script})
    with FakeAm(place / "containers", inputs=inputs, **(packed | assignment)) as am:
        am.start()
        return am.result(), am


def test_no_gpu_is_leased_for_missing_or_unreadable_input(place: Path) -> None:
    (place / "lake").mkdir()
    (place / "lake" / "loop").symlink_to("loop")
    for source in ("none*", "loop"):
        wanted = InputSpec(sources=(f"file://{place}/lake/{source}",), input_path="data")
        (here := place / source.strip("*")).mkdir()
        result, am = ran(here, "echo ran", wanted, resources=Resources(memory_mib=64, gcores=1))
        assert result.fault is Fault.DATA, (result, am.log())
        assert result.message.startswith("input data could not be fetched: ")
        if source == "none*":
            assert result.diagnosis is not None
            assert (result.diagnosis.rule, result.diagnosis.cause) == (
                "input_missing",
                "the source of input data does not exist",
            )
        assert f"{place}/lake/{source}" in result.message
        assert Phase.LEASING not in am.phases
        assert Phase.UNPACKING not in am.phases


def test_input_is_unpacked_listed_and_dealt_out(place: Path) -> None:
    for number in range(4):
        (place / "lake").mkdir(exist_ok=True)
        (place / "lake" / f"{number}").write_text("x" * (10 + number))
    with tarfile.open(place / "set.tgz", "w:gz") as tar:
        tar.add(place / "lake" / "0", "deep/zero")
    everything = f"file://{place}/lake/*"
    result, am = ran(
        place,
        "cat packed/deep/zero; echo; cat lists/all; cd part; echo *",
        InputSpec(sources=(f"file://{place}/set.tgz",), input_path="packed", unpack=True),
        InputSpec(name="list", sources=(everything,), input_path="lists/all", as_list=True),
        InputSpec(name="part", sources=(everything,), input_path="part", shard=True),
        index=1,
        total=2,
    )
    assert result.fault is Fault.NONE, (result, am.log())
    lines = am.printed().decode().split("\n")
    assert lines == ["x" * 10, *(f"{place}/lake/{number}" for number in range(4)), "1 2", ""]


def test_an_archive_that_would_leave_the_workspace_ends_the_task(place: Path) -> None:
    with tarfile.open(place / "slip.tar", "w") as tar:
        tar.addfile(tarfile.TarInfo("../../out"))
    wanted = InputSpec(sources=(f"file://{place}/slip.tar",), input_path="data", unpack=True)
    result, am = ran(place, "echo ran", wanted)
    assert result.fault is Fault.DATA, (result, am.log())
    assert f"{place}/slip.tar has a member that would land elsewhere: ../../out" in result.message
    assert not list(place.rglob("out"))
