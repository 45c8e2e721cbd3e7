"""An NVIDIA driver that hangs, or does not work, on one machine: what finishes, what is kept, what is shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.applications import ended, kill_processes, launch, processes, properties, run, status, wait_for
from tests.services.containers.nvml_stub import HANGS, StubDevice, seen_by_all, with_devices

END_S = 180.0
HUNG = "NVML: no answer in 10 s: the driver hangs"


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two GPUs that all processes see; the directory of their description."""
    directory = tmp_path / "stub"
    directory.mkdir()
    for name, value in seen_by_all(directory, [StubDevice(), StubDevice()]).items():
        monkeypatch.setenv(name, value)
    return directory


def launched(tmp_path: Path) -> tuple[str, Path]:
    """Start a program that writes output on one GPU once a file is there; return its application and that file."""
    go, up = tmp_path / "go", tmp_path / "up"
    script = f"touch {up}; until [ -e {go} ]; do sleep 0.05; done; mkdir output; echo trained >output/model"
    output = {"output_path": "output", "hdfs": f"file://{tmp_path}/result"}
    application = launch(properties(tmp_path, script, resources={"gcores": 1}, to_hdfs=output))
    wait_for("it runs", up.exists, END_S)
    return application, go


def causes() -> dict[str, str]:
    """Return the cause of each quarantine in the list, which says too that the driver hangs."""
    done = run("dlapp-gpu", "list", "--json")
    (host,) = json.loads(done.out)["hosts"]
    assert done.code == 1
    assert "the driver hangs" in host["error"]
    return {device["uuid"]: device["quarantine"]["cause"] for device in host["devices"] if device["quarantine"]}


@pytest.mark.slow
def test_a_driver_hang_at_the_end_quarantines_the_device_and_keeps_the_output(tmp_path: Path, stub: Path) -> None:
    application, go = launched(tmp_path)
    with_devices(stub, [StubDevice(hang="nvml"), StubDevice()])
    go.touch()
    assert run("dlapp-logs", "-f", application, timeout_s=END_S).code == 0
    assert status(application)["final_status"] == "SUCCEEDED"
    assert (tmp_path / "result" / "model").read_text() == "trained\n"
    assert list(causes().values()) == ["driver-hangs"] * 2
    # One without GPUs runs nevertheless.
    script = properties(tmp_path, "echo here", name="other", resources={"gcores": 0})
    other = run("dlapp-launcher", "--wait", script, timeout_s=END_S)
    assert other.code == 0, other.err
    # The driver answers again: an operator need not wait for the next inspection.
    with_devices(stub, [StubDevice(), StubDevice()])
    for value in ("gpu0", "gpu1"):
        assert run("dlapp-gpu", "heal", value).code == 0
    script = properties(tmp_path, "echo $NV_GPU", name="next", resources={"gcores": 2})
    assert run("dlapp-launcher", "--wait", script, timeout_s=END_S).code == 0


@pytest.mark.slow
def test_a_kill_while_a_driver_hangs_at_the_end_keeps_the_output(tmp_path: Path, stub: Path) -> None:
    application, go = launched(tmp_path)
    with_devices(stub, [StubDevice(hang="nvml"), StubDevice()])
    go.touch()
    wait_for("the commit", (tmp_path / "result" / "model").exists, END_S)
    killed = run("dlapp-kill", application, timeout_s=END_S)
    assert killed.code == 0, killed.err
    assert "no output kept" not in killed.out
    assert status(application)["final_status"] == "SUCCEEDED"
    assert (tmp_path / "result" / "model").read_text() == "trained\n"


@pytest.mark.slow
def test_output_of_a_container_that_is_kept_is_stored_before_a_driver_can_hang(tmp_path: Path, stub: Path) -> None:
    go, up = tmp_path / "go", tmp_path / "up"
    script = f"touch {up}; until [ -e {go} ]; do sleep 0.05; done; mkdir output; echo trained >output/model; exit 3"
    output = {"output_path": "output", "hdfs": f"file://{tmp_path}/result"}
    application = launch(
        properties(tmp_path, script, resources={"gcores": 1}, application={"keep_failed": "30m"}, to_hdfs=output)
    )
    wait_for("it runs", up.exists, END_S)
    with_devices(stub, [StubDevice(hang="nvml"), StubDevice()])
    go.touch()
    wait_for("its end is known", lambda: "exit code 3" in status(application)["diagnostics"], END_S)
    wait_for("its output", lambda: [*tmp_path.glob("result.*/*/model")], 8.0)
    # While it waits 10 s for the driver.
    kill_processes([process.pid for process in processes(tmp_path) if process.role == "task"])
    end = ended(application)
    assert (end["final_status"], "exit code 3" in end["diagnostics"]) == ("FAILED", True)
    assert Path(end["outputs"][0]["partial"].removeprefix("file://"), "model").read_text() == "trained\n"


@pytest.mark.parametrize("init", [18, 999, pytest.param(HANGS, marks=pytest.mark.slow)])
def test_a_broken_driver_refuses_only_applications_with_gpus(tmp_path: Path, stub: Path, init: int) -> None:
    with_devices(stub, [], init=init)
    without = run("dlapp-launcher", "--wait", properties(tmp_path, "echo here"), timeout_s=END_S)
    assert without.code == 0, without.err
    content = {18: "Driver/library version mismatch", 999: "Unknown Error"}.get(init, "the driver hangs")
    assert f"it runs without GPUs: NVML: {'' if init != HANGS else 'no answer in 30 s: '}{content}" in without.err
    with_gpu = run("dlapp-launcher", properties(tmp_path, "echo here", name="gpu", resources={"gcores": 1}))
    assert with_gpu.code == 1
    assert content in with_gpu.err
    assert "reboot this machine" in with_gpu.err


@pytest.mark.slow
def test_a_queued_application_waits_for_an_updated_driver_to_work(tmp_path: Path, stub: Path) -> None:
    first, go = launched(tmp_path)
    second = launch(properties(tmp_path, "echo $NV_GPU", name="second", resources={"gcores": 2}))
    with_devices(stub, [], init=18)
    message = "Driver/library version mismatch"
    wait_for("the reason", lambda: message in status(second)["diagnostics"], END_S)
    go.touch()
    assert run("dlapp-logs", "-f", first, timeout_s=END_S).code == 0
    with_devices(stub, [StubDevice(), StubDevice()])
    assert run("dlapp-logs", "-f", second, timeout_s=END_S).code == 0
