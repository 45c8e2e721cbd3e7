"""Test what a program has computed is kept, whatever happens to its application, on every engine."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.applications import Done, application_dir, launch, processes, properties, run, status, wait_for
from tests.engines import Engine, on_yarn_when_full
from tests.services import disks
from tests.services.containers.nvml_stub import StubDevice, seen_by_all
from tests.services.disks import fill

END_S = 120.0


def waited(file: Path) -> tuple[Done, dict[str, Any]]:
    """Run an application to its end: what the launcher said, and the status after it."""
    done = run("dlapp-launcher", "--wait", file, timeout_s=END_S)
    application = next(line.partition(" = ")[2] for line in done.out.splitlines() if line.startswith("DL App ID"))
    return done, status(application)


def test_the_others_of_a_failed_container_may_save_their_work(engine: Engine, tmp_path: Path) -> None:
    engine.put("kept/somewhere/else", "")
    up = tmp_path / "up"
    up.mkdir()
    script = (
        "mkdir output; cd output; save() { sleep 1; echo saved >ck; exit 0; }; trap save TERM\n"
        f"touch {up}/$CONTAINER_INDEX\n"
        f'if [ $CONTAINER_INDEX = 1 ]; then until [ "$(ls {up} | wc -l)" = 3 ]; do sleep 0.05; done; exit 3; fi\n'
        "while :; do sleep 0.05; done"
    )
    done, seen = waited(
        properties(
            tmp_path,
            script,
            resources={"containers": 3},
            to_hdfs={"output_path": "output", "hdfs": f"{engine.root}/kept/result"},
        )
    )
    assert done.code == 1, done.out
    assert seen["diagnostics"].startswith("container 1 (worker 1) failed: exit code 3")
    assert engine.tree(f"kept/{seen['outputs'][0]['partial'].rpartition('/')[2]}") == {
        "0/ck": "saved\n",
        "2/ck": "saved\n",
    }


@pytest.mark.slow
@on_yarn_when_full
def test_independent_containers_finish_and_their_output_is_committed(engine: Engine, tmp_path: Path) -> None:
    engine.put("kept/somewhere/else", "")
    go = tmp_path / "go"
    script = (
        'mkdir output; echo "$CONTAINER_INDEX" >output/x; [ $CONTAINER_INDEX = 1 ] && exit 3\n'
        f"until [ -e {go} ]; do sleep 0.05; done"
    )
    file = properties(
        tmp_path,
        script,
        application={"on_container_failure": "continue"},
        resources={"containers": 3},
        to_hdfs={"output_path": "output", "hdfs": f"{engine.root}/kept/result"},
    )
    application = launch(file)
    wait_for("the others run on", lambda: status(application)["phase"] == "running 2 of 3, 1 failed", END_S)
    go.touch()
    assert run("dlapp-logs", "-f", application, timeout_s=END_S).code == 1
    seen = status(application)
    assert (seen["final_status"], seen["diagnostics"]) == ("FAILED", "container 1 (worker 1) failed: exit code 3")
    assert seen["outputs"][0]["committed"]
    assert engine.tree("kept/result") == {"0/x": "0\n", "2/x": "2\n"}
    assert engine.tree(f"kept/result.{application}.failed") == {"1/x": "1\n"}
    shown = run("dlapp-status", application).out
    assert f"failed : output of failed containers kept at {seen['outputs'][0]['partial']}" in shown


@on_yarn_when_full
def test_a_wrong_output_path_loses_no_output(engine: Engine, tmp_path: Path) -> None:
    engine.put("kept/somewhere/else", "")
    done, seen = waited(
        properties(
            tmp_path,
            "mkdir output; echo $CONTAINER_INDEX >output/x",
            resources={"containers": 2},
            application={"on_container_failure": "continue"},
            to_hdfs={"output_path": "outptu", "hdfs": f"{engine.root}/kept/result"},
        )
    )
    assert done.code == 1, done.out
    assert "2 of 2 containers failed: 0-1; the first of them: container 0" in seen["diagnostics"]
    assert "new or changed there: 'output' (1 file); the nearest name is 'output'; all" in seen["diagnostics"]
    assert seen["diagnosis"]["diagnosis"]["rule"] == "output_missing"
    assert engine.tree(f"kept/{seen['outputs'][0]['partial'].rpartition('/')[2]}") == {
        "0/output/x": "0\n",
        "1/output/x": "1\n",
    }


def test_output_of_an_earlier_try_is_kept_until_one_succeeds(tmp_path: Path) -> None:
    tries = tmp_path / "tries"
    script = f'echo >>{tries}; mkdir output; [ "$(wc -l <{tries})" -gt 1 ] && exit 4; echo 1 >output/ck; exit 3'
    output = {"output_path": "output", "hdfs": f"file://{tmp_path}/result"}
    done, seen = waited(properties(tmp_path, script, resources={"retries": 1}, to_hdfs=output))
    assert done.code == 1, done.out
    assert seen["diagnostics"].endswith("failed 2 times, the last time: exit code 4")
    assert (Path(seen["outputs"][0]["partial"].removeprefix("file://")) / "ck").read_text() == "1\n"


def test_a_killed_task_leaves_only_logs_and_output(tmp_path: Path, state_dir: Path) -> None:
    tries = tmp_path / "tries"
    script = f'echo >>{tries}; mkdir output; echo 1 >output/ck; [ "$(wc -l <{tries})" -gt 1 ] || exec sleep 300'
    file = properties(
        tmp_path,
        script,
        resources={"retries": 1},
        from_hdfs={"hdfs": tmp_path / "input", "input_path": "in"},
        to_hdfs={"output_path": "output", "hdfs": f"file://{tmp_path}/result"},
    )
    (tmp_path / "input").write_text("large")
    application = launch(file)
    (written,) = wait_for("its output", lambda: [*state_dir.glob("*/applications/*/containers/*/workspace/output/ck")])
    for process in processes(written.parents[2]):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
    assert run("dlapp-logs", "-f", application, timeout_s=END_S).code == 0
    homes = sorted(state_dir.glob("*/applications/*/containers/*"))
    assert len(homes) == 2
    assert [name for home in homes for name in ("workspace", "home", "tmp") if (home / name).exists()] == []
    assert (homes[0] / "stdout").exists()


@pytest.mark.slow
def test_output_in_a_workspace_outlives_its_applicationmaster(
    small_disk: Path, tmp_path: Path, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DLAPP_LOCAL_AM_ATTEMPTS", "1")
    run("dlapp-list")
    (home,) = state_dir.iterdir()
    (home / "unstored").write_text("in the way, so that the output cannot be renamed to there")
    script = "mkdir output; [ $CONTAINER_INDEX = 0 ] || exec sleep 300\nhead -c 1000000 /dev/zero >output/model"
    file = properties(
        tmp_path,
        script,
        application={"output_patience": "1s", "on_container_failure": "continue"},
        resources={"containers": 2},
        to_hdfs={"output_path": "output", "hdfs": f"file://{small_disk}/result"},
    )
    application = launch(file)
    wait_for("one has failed", lambda: status(application)["phase"] == "running 1 of 2, 1 failed", END_S)
    for process in processes(home / "applications" / application):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
    assert run("dlapp-logs", "-f", application, timeout_s=END_S).code == 1
    run("dlapp-list")
    wait_for("what was left is cleared", lambda: not [*home.glob("applications/*/containers/*/tmp")], END_S)
    (unstored,) = wait_for("where it is kept", lambda: status(application)["unstored"], END_S)
    assert Path(unstored, "model").stat().st_size == 1_000_000


def test_a_soft_kill_before_the_first_file_keeps_the_previous_output(tmp_path: Path) -> None:
    (tmp_path / "result").mkdir()
    (tmp_path / "result" / "model").write_text("former")
    output = {"output_path": "output", "hdfs": f"file://{tmp_path}/result", "overwrite": "true"}
    application = launch(properties(tmp_path, "mkdir output; echo made; exec sleep 300", to_hdfs=output))
    wait_for("the output is made", lambda: "made" in run("dlapp-logs", application).out, END_S)
    wait_for("it runs", lambda: status(application)["phase"] == "running 1 of 1", END_S)
    assert run("dlapp-softkill", application).code == 0
    assert run("dlapp-logs", "-f", application, timeout_s=END_S).code == 7
    assert status(application)["diagnostics"].endswith(", there was no output to commit")
    assert os.listdir(tmp_path / "result") == ["model"]
    assert not list(tmp_path.glob("result.*"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB, and nearly all of it taken by the file ``much``."""
    with disks.small_disk(tmp_path, size_mib=2) as disk:
        (disk / "much").write_bytes(bytes(1_500_000))
        yield disk


def computing_once(tmp_path: Path, disk: Path, **application: object) -> Path:
    """A program that notes each start, and whose output does not fit."""
    script = f"echo start >>{tmp_path}/starts; mkdir output; head -c 1000000 /dev/zero >output/model"
    output = {"output_path": "output", "hdfs": f"file://{disk}/result"}
    return properties(tmp_path, script, application=application, resources={"retries": 2}, to_hdfs=output)


def test_output_waits_for_room_and_the_program_does_not_run_again(small_disk: Path, tmp_path: Path) -> None:
    application = launch(computing_once(tmp_path, small_disk))
    wait_for("it waits", lambda: status(application)["phase"].startswith("storing: waits for "), END_S)
    assert f" KiB on {small_disk}" in run("dlapp-status", application).out
    (small_disk / "much").unlink()
    assert run("dlapp-logs", "-f", application, timeout_s=END_S).code == 0
    assert (small_disk / "result" / "model").stat().st_size == 1_000_000
    assert (tmp_path / "starts").read_text() == "start\n"


@pytest.mark.slow
def test_output_that_waits_for_space_holds_no_gpus(
    small_disk: Path, tmp_path: Path, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stub").mkdir()
    for name, value in seen_by_all(tmp_path / "stub", [StubDevice()]).items():
        monkeypatch.setenv(name, value)
    first = computing_once(tmp_path, small_disk)
    first.write_text(first.read_text().replace("gcores=0", "gcores=1"))
    application = launch(first)
    wait_for("it waits", lambda: status(application)["phase"].startswith("storing: waits for "), END_S)
    master = json.loads((application_dir(state_dir, application) / "am.json").read_text())["pid"]
    go, up = tmp_path / "go", tmp_path / "up"
    script = f"echo $NV_GPU; touch {up}; until [ -e {go} ]; do sleep 0.05; done"
    second = launch(properties(tmp_path, script, name="second", resources={"gcores": 1}))
    wait_for("the other one runs", up.exists, END_S)
    os.kill(master, signal.SIGKILL)

    def waits_again() -> bool:
        now = status(application)
        return (now["attempt"], now["phase"].startswith("storing: waits for ")) == (2, True)

    wait_for("the next master", waits_again, END_S)
    (small_disk / "much").unlink()
    assert run("dlapp-logs", "-f", application, timeout_s=END_S).code == 0
    assert (tmp_path / "starts").read_text() == "start\n"
    assert status(second)["phase"] == "running 1 of 1"
    go.touch()
    assert run("dlapp-logs", "-f", second, timeout_s=END_S).out == "[0] 0\n"


def test_output_without_space_in_time_is_kept_and_named_in_the_status(small_disk: Path, tmp_path: Path) -> None:
    done, seen = waited(computing_once(tmp_path, small_disk, output_patience="1s"))
    assert done.code == 1, done.out
    where = Path(seen["diagnostics"].rpartition(" in ")[2])
    assert (where / "model").stat().st_size == 1_000_000
    assert (tmp_path / "starts").read_text() == "start\n"
    message = f"unstored : {where.parent}"
    assert seen["unstored"] == [str(where.parent)]
    assert message in done.out.splitlines()
    assert message in run("dlapp-status").out.splitlines()
    assert "  failed, output unstored  " in run("dlapp-list").out
    (listed,) = json.loads(run("dlapp-list", "--state", "failed", "--json").out)["applications"]
    assert listed["unstored"] == seen["unstored"]
    assert run("dlapp-rm", "last").out.splitlines()[1:] == [message]
    assert (where / "model").stat().st_size == 1_000_000


def test_output_that_is_only_in_the_history_is_not_removed_with_it(
    small_disk: Path, tmp_path: Path, state_dir: Path
) -> None:
    run("dlapp-list")
    (home,) = state_dir.iterdir()
    (home / "unstored").write_text("in the way, so that the output cannot be renamed to there")
    _, seen = waited(computing_once(tmp_path, small_disk, output_patience="1s"))
    application = seen["application_id"]
    # What lies in a workspace is named when the runner has settled the end, which may be a moment after it is seen.
    (unstored,) = wait_for("the output is named", lambda: status(application)["unstored"], END_S)
    refused = run("dlapp-rm", "last")
    assert refused.code == 2
    assert refused.err == f"Error: {application} has output that could not be stored: move {unstored} first\n"
    assert Path(unstored, "model").stat().st_size == 1_000_000
    Path(unstored).rename(tmp_path / "saved")
    assert run("dlapp-rm", "last").code == 0


def test_a_kill_ends_the_wait_for_room(small_disk: Path, tmp_path: Path) -> None:
    application = launch(computing_once(tmp_path, small_disk))
    wait_for("it waits", lambda: status(application)["phase"].startswith("storing: waits for "), END_S)
    assert run("dlapp-kill", application).code == 0
    assert status(application)["state"] == "KILLED"


@pytest.mark.slow
def test_on_a_full_state_disk_a_kill_ends_the_application(
    small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DLAPP_LOCAL_STATE_DIR", str(small_disk / "state"))
    application = launch(properties(tmp_path, "exec sleep 300"))
    wait_for("it runs", lambda: status(application)["phase"] == "running 1 of 1")
    ballast = fill(small_disk)
    done = run("dlapp-kill", application)
    assert not [process for process in processes(small_disk / "state") if process.role in ("task", "payload")]
    # Its end may have to wait for space; its processes do not.
    gone = f"{application}: its processes ended, but its leftovers were not removed in 5 s; disk full: {small_disk}"
    assert done.code == 0 or gone in done.err
    ballast.unlink()
    wait_for("its end", lambda: status(application)["state"] in ("KILLED", "FAILED"))
    wait_for("no process of the engine", lambda: not processes(small_disk / "state"))


def test_a_workspace_that_the_state_disk_cannot_take_is_not_called_unreadable(
    small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DLAPP_LOCAL_STATE_DIR", str(small_disk / "state"))
    file = properties(tmp_path, "true")
    (tmp_path / "test_workspace" / "model").write_bytes(os.urandom(1_000_000))
    done = run("dlapp-launcher", file)
    assert done.code == 1
    assert f"disk full: {small_disk}/state" in done.err
    assert f"are free on {small_disk}\n" in done.err
    assert "make it readable" not in done.err
