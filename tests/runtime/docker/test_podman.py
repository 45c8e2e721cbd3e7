"""A real Podman behind Docker's socket: it is recognised, and refused where GPUs would be lost on the way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlapp.runtime.gpu.facts import facts_of
from dlapp.runtime.gpu.modes import Facts, missing_gpu_settings, part_for
from dlapp.runtime.payload import PayloadDevice
from tests.runtime.driver import Driven
from tests.services.containers.podman import IMAGE, Podman, own_podman

DEVICE = PayloadDevice("GPU-aa", 0, 0)


@pytest.fixture(scope="module")
def podman() -> Iterator[Podman]:
    with own_podman() as podman:
        yield podman


def carries_out_requests(podman: Podman) -> bool:
    return tuple(map(int, podman.version.split(".")[:2])) >= (5, 4)


def test_podman_is_recognised_by_its_answers(podman: Podman) -> None:
    facts = facts_of(podman.docker)
    assert facts.podman == podman.version
    assert "nvidia" not in facts.runtimes


def test_podman_ignores_device_requests_silently(podman: Podman) -> None:
    part = part_for("cdi", [DEVICE], Facts(cdi_names=frozenset({"GPU-aa"})), {})
    requests = {"NetworkMode": "none", "DeviceRequests": list(part.requests)}
    podman.docker.create("asks", {"Image": IMAGE, "Cmd": ["true"], "HostConfig": requests})
    made = podman.docker.inspect("asks")["HostConfig"]
    podman.docker.remove("asks")
    assert missing_gpu_settings(part, made) == "it was asked for nvidia.com/gpu=GPU-aa and took none of it"
    assert missing_gpu_settings(part, made, podman=podman.version) == ""


@pytest.mark.parametrize("mode", ["cdi", "gpus", "runtime", "auto"])
def test_a_way_that_podman_would_drop_is_refused(podman: Podman, place: Path, mode: str) -> None:
    driven = Driven(place, as_user=False)
    driven.run(
        "echo it ran",
        image=IMAGE,
        gpus=[(DEVICE.uuid, DEVICE.index, DEVICE.minor)],
        resources={"memory_mib": 64, "gcores": 1},
        docker_host=podman.host,
        docker_gpu_mode=mode,
        docker_lock_dir=str(place),
    )
    try:
        answer = driven.hear("refused")
        assert driven.out() == b""
    finally:
        driven.close()
    who = f"Podman {podman.version}"
    drops = f"{who} ignores GPU requests without an error; 5.4 does not"
    cdi = "no nvidia.com/gpu in /etc/cdi" if carries_out_requests(podman) else drops
    words = {"cdi": cdi, "auto": f"no way to give a container GPUs is there: cdi: {cdi}"}
    assert answer["fault"] == "node"
    assert words.get(mode, f"runtime.docker.gpu_mode is {mode}: {who} ignores it") in answer["problem"]
    assert podman.containers() == []


@pytest.mark.slow
def test_the_doctor_calls_it_by_its_name(podman: Podman, tmp_path: Path) -> None:
    env = {
        **os.environ,
        "DLAPP_LOCAL_STATE_DIR": str(tmp_path),
        "DLAPP_RUNTIME_DOCKER_HOST": podman.host,
        "DLAPP_RUNTIME_DOCKER_GPU_MODE": "gpus",
    }
    done = subprocess.run([sys.executable, "-m", "dlapp.tools", "doctor", "--json"], env=env, capture_output=True)
    found = {finding["subject"]: finding for finding in json.loads(done.stdout)["findings"]}
    assert found["docker"]["found"].startswith(f"Podman {podman.version}, interface 1.")
    problem = f"runtime.docker.gpu_mode is gpus: Podman {podman.version} ignores it"
    assert (found["docker.gpus"]["verdict"], found["docker.gpus"]["found"]) == ("fail", problem)
