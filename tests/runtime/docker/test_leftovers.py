"""Containers of dead tasks are removed after their application's end, whatever happened to dockerd meanwhile."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from dlapp.runtime.docker.labels import LABEL_APP, labels_of
from tests.services.containers.dockerd import IMAGE, Dockerd, own_daemon
from tests.services.polling import wait_until

pytestmark = pytest.mark.docker

APPLICATION = "application_1700000000000_0001"


@pytest.fixture
def daemon() -> Generator[Dockerd, None, None]:
    """A dockerd of the test's own, which may be stopped."""
    with own_daemon() as daemon:
        yield daemon


def leave_dead_container(daemon: Dockerd, directory: Path) -> str:
    """Leave a dead task's container as a dockerd does that is killed while it removes it, and stop dockerd."""
    labels = labels_of("container_1_0001_01_000002", str(directory), ()) | {LABEL_APP: APPLICATION}
    words = [word for name, value in labels.items() for word in ("--label", f"{name}={value}")]
    container = daemon.docker("create", *words, IMAGE, "true").stdout.decode().strip()
    daemon.terminate()
    file = daemon.directory / "data" / "containers" / container / "config.v2.json"
    config = json.loads(file.read_text())
    config["State"] |= {"Dead": True, "RemovalInProgress": True}
    file.write_text(json.dumps(config))
    return container


def cleanup(daemon: Dockerd) -> subprocess.Popen[str]:
    """Start what the engine starts after an application's end."""
    code = "import sys; from dlapp.runtime.docker.cleanup import main; sys.exit(main(sys.argv[1:]))"
    argv = [sys.executable, "-c", code, "--application", APPLICATION, "--host", daemon.host]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_a_container_that_a_killed_dockerd_left_dead_is_removed_when_dockerd_is_back(
    daemon: Dockerd, tmp_path: Path
) -> None:
    container = leave_dead_container(daemon, tmp_path / "gone")
    with cleanup(daemon) as process:
        assert process.poll() is None
        daemon.start()
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 0, out
    assert "(dead): its task is dead" in out
    wait_until(lambda: container not in daemon.docker("ps", "-aq", "--no-trunc").stdout.decode(), what="it is removed")
