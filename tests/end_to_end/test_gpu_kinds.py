"""Test whole GPUs, slices of MIG and their names, in real applications on one machine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.applications import ended, launch, properties, run, status, wait_for
from tests.services.containers.nvml_stub import MIB, Part, StubDevice, seen_by_all

SMALL = Part("MIG-small", "NVIDIA Test Card MIG 1g.10gb", 9984 * MIB)
LARGE = Part("MIG-large", "NVIDIA Test Card MIG 3g.40gb", 40448 * MIB)
H100 = 81559 * MIB
MIXED = (
    StubDevice(mig=(SMALL, LARGE), memory_bytes=H100),
    *(StubDevice(uuid=f"GPU-{n}", memory_bytes=H100) for n in (1, 2, 3)),
)


@pytest.fixture
def see(tmp_path: Path, state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let all processes see these GPUs."""
    del state_dir  # first

    def show(devices: Sequence[StubDevice]) -> None:
        for name, value in seen_by_all(tmp_path, devices).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("DLAPP_GPUID_LOCK_DIR", str(tmp_path / "locks"))

    return show


def script(place: Path) -> str:
    """Return a script that writes what it finds, and runs until it may end."""
    return (
        f'printf "%s\\n" "$NV_GPU" "$CUDA_VISIBLE_DEVICES" "$DLAPP_GPUS" >{place}/$1.$DLAPP_ROLE.new\n'
        f"mv {place}/$1.$DLAPP_ROLE.new {place}/$1.$DLAPP_ROLE\n"
        f"until [ -e {place}/go ]; do sleep 0.05; done\n"
    )


def start(place: Path, name: str, **sections: Any) -> str:
    application = sections.pop("application", {})
    return launch(
        properties(place, script(place), name=name, application={"user_shell_args": name, **application}, **sections)
    )


def devices_of_program(place: Path, name: str, role: str = "worker") -> tuple[str, str, Any]:
    """Return what a program found: NV_GPU, CUDA_VISIBLE_DEVICES and DLAPP_GPUS."""
    path = place / f"{name}.{role}"
    wait_for(f"{name} runs", path.exists, 120.0)
    gpus, visible, facts = path.read_text().splitlines()
    return gpus, visible, json.loads(facts)


def test_on_a_mixed_machine_each_application_gets_its_requested_kind(tmp_path: Path, see: Any) -> None:
    see(MIXED)
    roles = {
        "role trainer": {"gcores": 2, "memory": 64},
        "role evaluator": {"gcores": 1, "memory": 64, "gpu": "mig:3g.40gb"},
    }
    both = start(tmp_path, "both", **roles)
    assert devices_of_program(tmp_path, "both", "trainer")[:2] == ("1,2", "GPU-1,GPU-2")
    gpus, visible, facts = devices_of_program(tmp_path, "both", "evaluator")
    assert (gpus, visible) == ("0:1", "MIG-large")
    assert [(fact["uuid"], fact["index"], fact["mig"], fact["memory_mib"]) for fact in facts] == [
        ("MIG-large", 0, 1, 40448)
    ]
    one = start(tmp_path, "one", resources={"gcores": 1, "memory": 64})
    assert devices_of_program(tmp_path, "one")[:2] == ("3", "GPU-3")

    waits = start(tmp_path, "waits", resources={"gcores": 1, "memory": 64})
    reason = "needs 1 whole GPU, 0 free, and 1 slice that gpu=mig would use: gpu1 "
    wait_for("why it waits", lambda: status(waits)["diagnostics"].startswith(reason), 120.0)
    why = run("dlapp-why", waits).out
    assert reason in why
    assert "change : 1 slice 1g.10gb: now (--set resources.gpu=mig:1g.10gb)" in why
    assert "asked for 1 whole GPU, 0 free, and 1 slice that gpu=mig would use: gpu1 " in run("dlapp-gpu", "why", 1).out
    assert run("dlapp-gpu", "why", 1, "mig").out.endswith(": yes, gpu0:0\n")
    assert "program sees one slice only" in run("dlapp-gpu", "why", 2, "mig").err
    part = start(tmp_path, "part", resources={"gcores": 1, "memory": 64, "gpu": "mig"})
    assert devices_of_program(tmp_path, "part")[:2] == ("0:0", "MIG-small"), (
        "although an application for GPUs is ahead of it"
    )
    assert not (tmp_path / "waits.worker").exists()
    next_part = start(tmp_path, "next", resources={"gcores": 1, "memory": 64, "gpu": "mig"})
    lack = f"needs 1 MIG slice, 0 free: gpu0:0 {part}"
    wait_for("why it waits", lambda: status(next_part)["diagnostics"].startswith(lack), 120.0)
    assert waits not in run("dlapp-why", next_part).out, "who waits for GPUs is not ahead of it"

    (tmp_path / "go").touch()
    ends = [ended(application) for application in (both, one, waits, part, next_part)]
    assert [end["final_status"] for end in ends] == ["SUCCEEDED"] * 5, ends
    assert devices_of_program(tmp_path, "waits")[1].startswith("GPU-")


@pytest.mark.parametrize(
    ("devices", "resources", "wrong", "problem"),
    [
        (
            [StubDevice(mig=(SMALL, SMALL))],
            {"gcores": 1},
            "gcores",
            "asked for 1 whole GPU, this machine has 2 slices (2 x 1g.10gb); gpu=mig takes a slice",
        ),
        (
            MIXED,
            {"gcores": 4},
            "gcores",
            "asked for 4 whole GPUs, this machine has 3 whole GPUs (3 x 85 GB) and 2 slices (1g.10gb, 3g.40gb)",
        ),
        (
            MIXED,
            {"gcores": 2, "containers": 2},
            "containers",
            "2 containers asked for 4 whole GPUs, this machine has 3 whole GPUs (3 x 85 GB) and 2 slices "
            "(1g.10gb, 3g.40gb), and they run at the same time",
        ),
        (
            MIXED,
            {"gcores": 1, "gpu": "mig:7g.80gb"},
            "gpu",
            "asked for 1 slice 7g.80gb, this machine has 3 whole GPUs (3 x 85 GB) and 2 slices (1g.10gb, 3g.40gb); "
            "gpu=whole takes a whole GPU",
        ),
        (
            MIXED,
            {"gcores": 1, "gpu_memory": "90g"},
            "gpu_memory",
            "asked for 1 whole GPU with 90 GB, this machine has 3 whole GPUs (3 x 85 GB) and 2 slices",
        ),
        (
            MIXED,
            {"gcores": 2, "gpu": "mig"},
            "gcores",
            "is 2 with gpu=mig, the maximum is 1: a program sees one slice only",
        ),
        (
            [StubDevice(mig=(SMALL, SMALL))],
            {"gcores": 1, "gpu": "whole"},
            "gpu",
            "asked for 1 whole GPU, this machine has 2 slices (2 x 1g.10gb); gpu=mig takes a slice",
        ),
        (
            [StubDevice(mig=(SMALL, SMALL))],
            {"gcores": 8},
            "gcores",
            "asked for 8 whole GPUs, this machine has 2 slices (2 x 1g.10gb)",
        ),
    ],
)
def test_an_impossible_gpu_request_is_refused_with_the_machines_devices(
    tmp_path: Path, see: Any, devices: Sequence[StubDevice], resources: dict[str, Any], wrong: str, problem: str
) -> None:
    see(devices)
    file = properties(tmp_path, "exit 0", resources={"memory": 64, **resources})
    refused = run("dlapp-launcher", file)
    assert refused.code != 0
    assert problem in refused.err, refused.err
    lines = file.read_text().splitlines()
    number = next(number for number, line in enumerate(lines, 1) if line.startswith((f"{wrong}=", f"{wrong} =")))
    assert f"{file}:{number}: resources.{wrong}: " in refused.err, refused.err
    assert "Traceback" not in refused.err


def test_a_program_that_needs_numbers_gets_those_of_the_driver(tmp_path: Path, see: Any) -> None:
    see([StubDevice(uuid=f"GPU-{n}") for n in range(3)])
    first = start(tmp_path, "first", resources={"gcores": 1, "memory": 64})
    assert devices_of_program(tmp_path, "first")[:2] == ("0", "GPU-0")
    numbers = {"gcores": 2, "memory": 64, "cuda_visible_devices": "index"}
    second = start(tmp_path, "second", resources=numbers)
    gpus, visible, facts = devices_of_program(tmp_path, "second")
    assert (gpus, visible, [fact["uuid"] for fact in facts]) == ("1,2", "1,2", ["GPU-1", "GPU-2"])
    (tmp_path / "go").touch()
    assert [ended(application)["final_status"] for application in (first, second)] == ["SUCCEEDED"] * 2


def test_numbers_are_refused_where_a_gpu_is_split_because_cuda_counts_otherwise_there(tmp_path: Path, see: Any) -> None:
    see(MIXED)
    numbers = {"gcores": 1, "memory": 64, "cuda_visible_devices": "index"}
    refused = run("dlapp-launcher", properties(tmp_path, "exit 0", resources=numbers))
    assert refused.code == 2
    message = "gpu0 of this machine is split by MIG, so CUDA's indexes are not those of the driver (uuid)"
    assert f"resources.cuda_visible_devices: index needs GPUs that are whole: {message}" in refused.err
