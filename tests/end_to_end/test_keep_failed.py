"""Containers that are kept after their failures, as real applications: one can look into them, and they end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.applications import ended, launch, processes, properties, run, status, wait_for
from tests.services.containers.dockerd import IMAGE, Dockerd
from tests.services.containers.nvml_stub import StubDevice, seen_by_all

FAILS = 'echo data >left; echo scratch >"$TMPDIR/scratch"; exit 3'
LOOKS = 'cat left "$TMPDIR/scratch"; echo "$GREETING|$NV_GPU|"; exit 4'


def kept_container(application: str) -> dict[str, Any]:
    """Wait until its container is kept.

    Its ApplicationMaster decides so while the container still reports the program that failed: it runs, and cannot be
    looked into before it reports that it is kept.
    """

    def look() -> dict[str, Any] | None:
        (one,) = status(application)["containers"] or [{}]
        is_kept = one.get("kept_until_ms") is not None and one["detail"].startswith("failed, kept until ")
        return one if is_kept and one["phase"] == "running" and not one["gpus"] else None

    return wait_for("the container is kept", look, 120.0)


def test_a_kept_failed_program_can_be_inspected_without_gpus_until_a_kill(
    tmp_path: Path, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in seen_by_all(tmp_path, [StubDevice()]).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("DLAPP_GPUID_LOCK_DIR", str(tmp_path / "gpus"))
    file = properties(
        tmp_path,
        FAILS,
        application={"keep_failed": "30m", "env.GREETING": "hi there"},
        resources={"gcores": 1},
    )
    application = launch(file)
    kept_container(application)
    lines = run("dlapp-status", application).out.splitlines()
    assert any(line.startswith("phase : failed, container 0 kept until ") for line in lines)
    assert any(line.endswith(f"; dlapp-exec -it {application} 0 -- sh") for line in lines)
    assert "diagnostics : container 0 (worker 0) failed: exit code 3" in lines
    looked = run("dlapp-exec", application, "--", "sh", "-c", LOOKS)
    assert (looked.code, looked.out) == (4, "data\nscratch\nhi there||\n"), looked.err
    wait_for("its GPU is free", lambda: run("dlapp-gpu", "list").out.endswith("| free\n"), 120.0)
    other = launch(properties(tmp_path, "exit 0", name="other", resources={"gcores": 1}))
    assert ended(other)["final_status"] == "SUCCEEDED", "its GPU is another application's turn"
    assert run("dlapp-kill", application).code == 0
    end = ended(application)
    assert (end["state"], end["containers"][0]["kept_until_ms"]) == ("KILLED", None)
    wait_for("nothing is left", lambda: all(process.role == "runner" for process in processes(state_dir)), 120.0)


def test_a_container_is_kept_for_its_time_alone(tmp_path: Path) -> None:
    application = launch(properties(tmp_path, FAILS, application={"keep_failed": "2s"}))
    end = ended(application)
    assert (end["final_status"], end["diagnostics"]) == ("FAILED", "container 0 (worker 0) failed: exit code 3")


@pytest.mark.slow
def test_in_docker_a_kept_program_is_inspected_by_another_container(
    dockerd: Dockerd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DLAPP_RUNTIME_DOCKER_HOST", dockerd.host)
    monkeypatch.setenv("DLAPP_RUNTIME_DOCKER_NETWORK", "none")
    keys = {"docker_image": IMAGE, "keep_failed": "30m", "env.GREETING": "hi there"}
    application = launch(properties(tmp_path, FAILS, application=keys))
    kept_container(application)
    looked = run("dlapp-exec", application, "--", "sh", "-c", LOOKS)
    assert (looked.code, looked.out) == (4, "data\nscratch\nhi there||\n"), looked.err
    assert run("dlapp-softkill", application).code == 0
    end = ended(application)
    assert (end["final_status"], end["diagnostics"]) == ("FAILED", "container 0 (worker 0) failed: exit code 3")
    wait_for("the container is removed", lambda: not dockerd.containers("label=dlapp.container"), 120.0)
