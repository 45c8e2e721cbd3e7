"""Test that an application goes on from the checkpoint of another one, or is submitted once more, on every engine."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.applications import ended, launch, properties, run, status, wait_for
from tests.end_to_end.data.test_checkpoints import END_S, has_stored, numbers
from tests.end_to_end.test_applications import id_of
from tests.engines import Engine, on_yarn_when_full

COUNT = """\
mkdir -p model output
count=$(($(cat model/count 2>/dev/null || echo 0) + 1))
echo $count >model/new; mv model/new model/count
echo '{"checkpoint": "model"}' >>$DLAPP_REPORT
echo "$count $SECRET ${DLAPP_RESUME_FROM:+resumed}" >output/count
case ${1:-$count} in
1) sleep 300;;
2) until [ -e GO ]; do sleep 0.05; done; exit 3;;
esac
"""
"""The first run has to be killed, the second fails, the third succeeds."""


def counting(engine: Engine, tmp_path: Path) -> Path:
    engine.put("kept/somewhere/else", "")
    return properties(
        tmp_path,
        COUNT.replace("GO", str(tmp_path / "go")),
        application={"gang": "all", "env.SECRET": "in the file"},
        resources={"containers": 2},
        to_hdfs={"output_path": "output", "hdfs": f"{engine.root}/kept/result"},
        checkpoint={"path": "model", "every": "1s"},
    )


@on_yarn_when_full
def test_an_application_is_resumed_after_a_kill_and_after_a_failure(engine: Engine, tmp_path: Path) -> None:
    file = counting(engine, tmp_path)
    first = launch(file)
    wait_for("a checkpoint", partial(has_stored, engine, first, 1, ""), END_S)
    early = run("dlapp-launcher", "--resume", first)
    assert (early.code, early.err.splitlines()[-1]) == (
        2,
        f"Error: {first} is RUNNING: only what has ended can be resumed",
    )
    assert run("dlapp-kill", first).code == 0
    without = run("dlapp-launcher", "--resume", first)
    assert without.code == 2
    assert f"{first} had the variables SECRET, whose values are not recorded: give each by --env" in without.err
    (tmp_path / "test_workspace" / "start.sh").write_text("exit 9")  # what is in the workspace now does not count

    done = run("dlapp-launcher", "--resume", first, "--env", "SECRET=again", "--set", "application.appname=second")
    assert done.code == 0, done.err
    second = id_of(done)
    early = run("dlapp-launcher", "--resume", first, "--env", "SECRET=again")  # on a cluster it may be queued still
    assert f"{second} continues from the same checkpoints, and is " in early.err
    wait_for("its checkpoint", lambda: len(numbers(engine, first)) > 1, END_S)
    late = run("dlapp-launcher", "--resume", first, "--env", "SECRET=again")
    assert f"{second} continues from the same checkpoints, and is RUNNING" in late.err
    (tmp_path / "go").touch()
    seen = ended(second, END_S)
    assert (seen["final_status"], seen["appname"], seen["resumed_from"]) == ("FAILED", "second", first)
    assert f"next : dlapp-launcher --resume {second}" in run("dlapp-status", second).out.splitlines()

    file = counting(engine, tmp_path)
    done = run("dlapp-launcher", "--wait", "--resume", second, file, timeout_s=END_S)
    assert done.code == 0, done.err + done.out
    assert status(id_of(done))["resumed_from"] == second
    assert f"resumedFrom : {second}" in run("dlapp-status", id_of(done)).out
    tree = engine.tree("kept/result")
    assert [tree[f"{index}/count"] for index in range(2)] == ["3 in the file resumed\n"] * 2
    assert len(numbers(engine, first)) == 3

    (tmp_path / "test_workspace" / "start.sh").write_text("exit 9")
    replaces = run("dlapp-launcher", "--again", id_of(done), "--env", "SECRET=once more")
    assert "or --set to_hdfs.overwrite=true)" in replaces.err
    options = ("--env", "SECRET=once more", "--set", f"to_hdfs.hdfs={engine.root}/kept/other", "--", "to the end")
    done = run("dlapp-launcher", "--wait", "--again", id_of(done), *options, timeout_s=END_S)
    assert done.code == 0, done.err + done.out
    last = status("last")
    assert (last["again_of"], last["resumed_from"]) == (id_of_line(done.out), "")
    assert engine.tree("kept/other")["0/count"] == "1 once more \n"


def id_of_line(out: str) -> str:
    """Return of which application the workspace was taken."""
    return next(line.rpartition(" ")[2] for line in out.splitlines() if line.startswith("user_dev_workspace = "))


@pytest.mark.parametrize("engine", ["local"], indirect=True)
def test_an_application_that_cannot_be_resumed_is_refused_with_the_reason(engine: Engine, tmp_path: Path) -> None:
    plain = properties(tmp_path, "exit 3", name="plain")
    application = id_of(run("dlapp-launcher", "--wait", plain))
    for arguments, code, problem in (
        (["--resume", application], 2, "has no [checkpoint] and no [sweep], so nothing can be resumed; --again"),
        (["--resume", "999_9999"], 3, "no application's id ends with '999_9999'"),
        (["--resume", application, "--again", application], 2, "--resume and --again exclude each other"),
        (["--again", application, "--print-spec"], 2, "--again is not possible together with --print-spec or --plan"),
        (["--again", application, "--cluster", "yarn"], 2, "--again submits to the engine of the application"),
        ([], 2, "FILE is missing"),
        (["--trial", "3"], 2, "--trial N and --of ID go together"),
        (["--of", application], 2, "--trial N and --of ID go together"),
        (["--trial", "3", "--of", application], 2, f"{application} has no [sweep]"),
        (["--trial", "3", "--of", application, "--resume", application], 2, "--resume and --trial exclude each other"),
        (["--trial", "3", "--of", application, plain], 2, f"runs the recorded program of {application}, and takes no"),
    ):
        refused = run("dlapp-launcher", *arguments)
        assert (refused.code, problem in refused.err) == (code, True), refused.err
    (archive,) = engine.state_dir.glob("*/cache/*/*.tar.gz")
    archive.unlink()
    evicted = run("dlapp-launcher", "--again", application)
    assert evicted.code == 3
    assert "is not in the cache any more; give FILE, whose workspace is packed" in evicted.err
    assert run("dlapp-launcher", "--again", application, plain).code == 0
    assert status("last")["again_of"] == application


@pytest.mark.parametrize("engine", ["local"], indirect=True)
def test_an_application_without_its_checkpoints_is_not_resumed(engine: Engine, tmp_path: Path) -> None:
    file = properties(tmp_path, "exit 3", checkpoint={"path": "model", "hdfs": f"{engine.root}/kept"})
    application = id_of(run("dlapp-launcher", "--wait", file))
    refused = run("dlapp-launcher", "--resume", application)
    assert refused.code == 3
    assert f"has no whole checkpoint; --again {application} runs it anew" in refused.err
