"""Live copies by a real task, and directories that it mounts: what its program and its user see."""

from __future__ import annotations

from pathlib import Path

from dlapp.values.messages import Fault
from dlapp.values.spec import InputSpec, OutputSpec
from tests.applications import wait_for
from tests.task.fake_am import APPLICATION, FakeAm, workspace_archive


def test_files_can_be_read_beside_the_target_while_the_program_runs(place: Path) -> None:
    script = "mkdir -p output/deep; echo 1 > output/deep/log; until [ -e end ]; do sleep 0.05; done; echo 2 > output/b"
    target = place / "results/run"
    output = OutputSpec(output_path="output", target=f"file://{target}", sync_s=1.0)
    part = f"file://{target}.{APPLICATION}.tmp/0"
    with FakeAm(
        place / "containers", outputs=(output,), parts=(part,), **workspace_archive(place, {"run.sh": script})
    ) as am:
        am.start()
        live = target.parent / "run.live" / f"{APPLICATION}.live" / "deep/log"
        wait_for("the copy", live.exists, 120)
        assert live.read_text() == "1\n"
        (am.home / "workspace/end").touch()
        result = am.result()
    assert result.fault is Fault.NONE, (result, am.log())
    assert live.read_text() == "1\n"  # only a commit removes it


def test_a_program_finds_a_directory_that_is_mounted(place: Path) -> None:
    (place / "shared/data").mkdir(parents=True)
    (place / "shared/data/one").write_text("1\n")
    wanted = InputSpec(sources=(f"file://{place}/shared/data",), input_path="in/data", mount=True)
    for number, shared in enumerate((place / "shared", place / "other")):
        (here := place / str(number)).mkdir()
        packed = workspace_archive(here, {"run.sh": 'cat "$DLAPP_INPUT/one"'})
        with FakeAm(here / "containers", inputs=(wanted,), **packed) as am:
            am.start(
                begins_with=f"import dlapp.node_policy as p; d = p.NodePolicy(shared_paths=({str(shared)!r},)); "
                "p.node_policy = lambda: d"
            )
            result = am.result()
        if number == 0:
            assert result.fault is Fault.NONE, (result, am.log())
            assert am.printed() == b"1\n"
        else:
            assert result.fault is Fault.DATA, (result, am.log())
            assert "is in none of the shared_paths" in result.message
