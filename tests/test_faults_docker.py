"""Whole applications in Docker, killed: their containers go with the application's end."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest

from tests.applications import application_dir, ended, launch, processes, properties, status, wait_for
from tests.services.dockerd import IMAGE, Dockerd, dockerd

__all__ = ["dockerd"]

pytestmark = pytest.mark.docker


def test_the_containers_of_a_killed_application_are_removed_at_its_end_without_another_docker_task(
    tmp_path: Path, state_dir: Path, dockerd: Dockerd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DLAPP_RUNTIME_DOCKER_HOST", dockerd.host)
    file = properties(tmp_path, "sleep 300", name="inside", application={"docker_image": IMAGE})
    application = launch(file)
    wait_for("its payload", lambda: any(c["phase"] == "running" for c in status(application)["containers"]))
    assert dockerd.containers(f"label=dlapp.app={application}")
    for one in [one for one in processes(state_dir) if one.role in ("am", "task")]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(one.pid, signal.SIGKILL)
    assert ended(application)["final_status"] == "FAILED"
    wait_for("no container of it", lambda: not dockerd.containers(f"label=dlapp.app={application}"))
    wait_for("no process of it", lambda: not processes(application_dir(state_dir, application)))


def test_a_docker_that_does_not_answer_holds_up_nobody(
    tmp_path: Path, state_dir: Path, dockerd: Dockerd, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = tmp_path / "silent"
    silent.symlink_to(dockerd.socket)
    monkeypatch.setenv("DLAPP_RUNTIME_DOCKER_HOST", f"unix://{silent}")
    first = launch(properties(tmp_path, "sleep 300", name="inside", application={"docker_image": IMAGE}))
    wait_for("its payload", lambda: any(c["phase"] == "running" for c in status(first)["containers"]))
    silent.unlink()
    for one in [one for one in processes(state_dir) if one.role in ("am", "task")]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(one.pid, signal.SIGKILL)
    assert ended(first)["final_status"] == "FAILED"
    assert ended(launch(properties(tmp_path, "true", name="next")))["final_status"] == "SUCCEEDED"
    (log,) = state_dir.glob("*/runner-*.log")
    wait_for("a line", lambda: "could not be asked for its containers" in log.read_text())
    assert "Traceback" not in log.read_text()
    for name in dockerd.containers(f"label=dlapp.app={first}"):
        dockerd.docker("rm", "-f", name)
