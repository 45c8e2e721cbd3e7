"""Whole applications whose image is in a private registry: with the submitter's credentials, and with others."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path

import pytest

from tests.applications import ended, launch, properties, run, wait_for
from tests.engines import Engine, on_yarn_when_full
from tests.services.containers.dockerd import Dockerd, busybox_root
from tests.services.containers.registry import Registry

pytestmark = pytest.mark.docker
PASSWORD = "a-password-of-tony"


@pytest.fixture
def config(tmp_path: Path, dockerd: Dockerd, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return where the user's Docker configuration is to be written."""
    monkeypatch.setenv("DLAPP_RUNTIME_DOCKER_HOST", dockerd.host)
    monkeypatch.setenv("DLAPP_RUNTIME_DOCKER_NETWORK", "none")
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    (tmp_path / "docker").mkdir()
    return tmp_path / "docker" / "config.json"


def log_in(config: Path, registry: Registry, password: str) -> None:
    auth = base64.b64encode(f"tony:{password}".encode()).decode()
    config.write_text(json.dumps({"auths": {registry.address: {"auth": auth}}}))


def with_credentials(*directories: Path) -> list[Path]:
    """Return the files in which the credentials are, in clear or as they travel."""
    found = []
    # A directory may be removed meanwhile, which os.walk does not mind.
    for path in (
        Path(parent, name) for directory in directories for parent, _, names in os.walk(directory) for name in names
    ):
        try:
            content = path.read_bytes() if path.is_file() else b""
        except FileNotFoundError:
            continue
        if PASSWORD.encode() in content or base64.b64encode(f"tony:{PASSWORD}".encode()) in content:
            found.append(path)
    return found


@pytest.mark.proves("registry-credentials")
@on_yarn_when_full
def test_a_private_image_runs_and_its_credentials_are_removed(
    engine: Engine, config: Path, dockerd: Dockerd, tmp_path: Path, state_dir: Path
) -> None:
    with Registry(busybox_root({"own": os.urandom(64)}), login=f"tony:{PASSWORD}", by_token=True) as registry:
        log_in(config, registry, PASSWORD)
        image = f"{registry.address}/it@{registry.digest}"
        application = launch(properties(tmp_path, "env; cat /proc/1/environ", application={"docker_image": image}))
        end = ended(application)
        assert end["final_status"] == "SUCCEEDED", end["diagnostics"]
        assert f"\nimage : {image}\n" in run("dlapp-status", application).out
        printed = run("dlapp-logs", application).out
        assert "DLAPP_APP_ID=" in printed
        assert PASSWORD not in printed
        places = [state_dir, *(engine.hadoop.directory.glob("tmp-*") if engine.hadoop else ())]
        wait_for("nothing of the credentials", lambda: not with_credentials(*places), 120)
        dockerd.docker("rmi", image)


def test_wrong_credentials_fail_with_the_repair_and_a_failing_helper_does_not(
    config: Path, dockerd: Dockerd, tmp_path: Path, state_dir: Path
) -> None:
    with Registry(busybox_root({"own": os.urandom(64)}), login=f"tony:{PASSWORD}") as registry:
        file = properties(tmp_path, "true", application={"docker_image": registry.image})
        log_in(config, registry, "wrong")
        first = ended(launch(file))
        (one,) = first["containers"]
        assert (first["final_status"], one["attempt"]) == ("FAILED", 1)
        assert f"asked with your credentials for {registry.address}" in first["diagnostics"]
        assert one["diagnosis"]["rule"] == "image_denied"
        assert "docker login REGISTRY" in one["diagnosis"]["next_step"]
        log_in(config, registry, PASSWORD)
        assert ended(launch(file))["final_status"] == "SUCCEEDED"
        config.write_text(json.dumps({"credsStore": "not-there"}))
        done = run("dlapp-launcher", "--wait", file)
        assert done.code == 0, done.err
        message = f"note: images of {registry.address} are pulled without your credentials: docker-credential-not-there"
        assert message in done.err
        dockerd.docker("rmi", registry.image)
