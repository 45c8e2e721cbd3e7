"""A Podman that carries out requests for GPUs: what arrives in its containers. Only in make test-faults."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.driver import Driven
from tests.services.containers import newer_debian
from tests.services.containers.podman import IMAGE, Podman, own_podman

OWN, OTHER, FALSE = (f"GPU-{number:08d}-aaaa-bbbb-cccc-000000000000" for number in (1, 2, 3))
LOOK = 'ls /dev/nvidia* 2>/dev/null; echo "[$NVIDIA_VISIBLE_DEVICES]"; nvidia-smi -L | wc -l'


@pytest.fixture(scope="module")
def podman() -> Iterator[Podman]:
    """Two GPUs in its specification; a third name there leads to another's GPU."""
    try:
        root = newer_debian.podman()
    except newer_debian.NotToBeHad as reason:
        pytest.skip(str(reason))
    with own_podman(root) as podman:
        devices = [
            {"name": name, "containerEdits": {"deviceNodes": [node(number)]}}
            for name, number in ((OWN, 1), (OTHER, 2), (FALSE, 7))
        ]
        spec = {"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": devices}
        (podman.cdi / "nvidia.json").write_text(json.dumps(spec))
        yield podman


def node(number: int) -> dict[str, object]:
    return {"path": f"/dev/nvidia{number}", "hostPath": "/dev/null", "type": "c", "major": 1, "minor": 3}


@pytest.fixture
def driven(place: Path, podman: Podman) -> Generator[Driven, None, None]:
    driven = Driven(place, as_user=False)
    # A task sees the specification where Podman does, in a mount namespace of its own.
    etc = place / "etc"
    etc.mkdir()
    (etc / "cdi").symlink_to(podman.cdi)
    over = 'mount -t overlay -o lowerdir="$1":/etc dlapp /etc && shift && exec "$@"'
    driven.within = ["unshare", "--mount", "sh", "-c", over, "sh", str(etc)]
    yield driven
    driven.close()


def run(driven: Driven, podman: Podman, script: str, *devices: tuple[str, int, int]) -> None:
    fields: dict[str, Any] = {"image": IMAGE, "gpus": devices, "docker_host": podman.host}
    resources = {"memory_mib": 64, "gcores": len(devices)}
    driven.run(script, resources=resources, docker_gpu_mode="auto", docker_lock_dir=str(driven.home), **fields)


def test_exactly_the_leased_device_arrives(driven: Driven, podman: Podman) -> None:
    run(driven, podman, LOOK, (OWN, 0, 1))
    assert driven.end()["code"] == 0
    assert driven.out().decode().split() == ["/dev/nvidia1", "[void]", "1"]


def test_without_a_request_no_gpu_arrives_despite_the_image(driven: Driven, podman: Podman) -> None:
    run(driven, podman, LOOK)
    assert driven.end()["code"] == 0
    assert driven.out().decode().split() == ["[void]", "0"]


def test_a_container_that_sees_anothers_device_never_runs_its_payload(driven: Driven, podman: Podman) -> None:
    run(driven, podman, "echo it ran", (FALSE, 2, 3))
    answer = driven.hear("refused")
    assert answer["fault"] == "node"
    assert answer["problem"] == f"the container sees /dev/nvidia7, which is not its own; it was to have gpu2 ({FALSE})"
    assert driven.out() == b""
    assert driven.process is not None
    driven.process.wait(timeout=120)
    assert podman.containers() == []
