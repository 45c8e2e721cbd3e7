"""The mode ``devices``: which nodes of the driver a container gets, and what is done if one is missing."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dlapp.node_policy import DockerPolicy
from dlapp.runtime.docker import container_factory
from dlapp.runtime.gpu import facts as gpu_facts
from dlapp.runtime.gpu.facts import driver_nodes, make_nodes, mig_capability_nodes
from dlapp.runtime.gpu.modes import IMEX_CHANNEL, Facts, choose_mode, part_for
from dlapp.runtime.payload import PayloadDevice, PayloadError
from dlapp.values.launch_spec import DockerSettings

ONE = PayloadDevice("GPU-aa", 0, 4)
PART = PayloadDevice("MIG-cc", 1, 2, 5, gpu_instance=9, compute_instance=0)
FACTS = Facts(
    version="18.09",
    api=(1, 39),
    nodes=("/dev/nvidia2", "/dev/nvidia4", "/dev/nvidia-uvm", "/dev/nvidiactl"),
    libraries=("/lib/libcuda.so.1",),
)
CAPS = {
    "gpu2/gi9": "/dev/nvidia-caps/nvidia-cap84",
    "gpu2/gi9/ci0": "/dev/nvidia-caps/nvidia-cap85",
    "gpu2/gi7": "/dev/nvidia-caps/nvidia-cap66",
    "gpu2/gi7/ci0": "/dev/nvidia-caps/nvidia-cap67",
}
WITH_MIG = FACTS._replace(nodes=(*FACTS.nodes, *CAPS.values(), "/dev/nvidia-caps/nvidia-cap1"), mig_nodes=CAPS)
NO_UVM = FACTS._replace(nodes=tuple(node for node in FACTS.nodes if "uvm" not in node))


def test_without_nvidia_uvm_the_mode_is_not_there_and_the_repair_is_named() -> None:
    assert choose_mode("auto", FACTS, [ONE]).mode == "devices"
    found = choose_mode("devices", NO_UVM, [ONE])
    assert found.problem == (
        "runtime.docker.gpu_mode is devices: no /dev/nvidia-uvm, without which CUDA fails (nvidia-modprobe -u -c=0 as "
        "root makes it)"
    )
    assert "devices: no /dev/nvidia-uvm" in choose_mode("auto", NO_UVM, [ONE]).problem


def test_the_search_path_of_the_users_libraries_follows_the_drivers() -> None:
    env = {"LD_LIBRARY_PATH": "/opt/mine:/opt/conda/lib"}
    assert part_for("devices", [ONE], FACTS, env).env["LD_LIBRARY_PATH"] == "/dlapp/driver:/opt/mine:/opt/conda/lib"
    assert part_for("devices", [ONE], FACTS, {}).env["LD_LIBRARY_PATH"] == "/dlapp/driver"


# ---- MIG ----


def test_a_mig_device_has_only_the_nodes_of_its_instances() -> None:
    assert choose_mode("devices", WITH_MIG, [PART]).problem == ""
    part = part_for("devices", [PART], WITH_MIG, {})
    assert part.nodes == (
        *("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia2"),
        *("/dev/nvidia-caps/nvidia-cap84", "/dev/nvidia-caps/nvidia-cap85"),
    )


def test_two_parts_of_one_gpu_share_its_node() -> None:
    other = PayloadDevice("MIG-dd", 1, 2, 1, gpu_instance=7, compute_instance=0)
    nodes = part_for("devices", [PART, other], WITH_MIG, {}).nodes
    assert nodes.count("/dev/nvidia2") == 1
    assert set(CAPS.values()) <= set(nodes)


def test_a_whole_gpu_has_no_mig_nodes() -> None:
    assert not [node for node in part_for("devices", [ONE], WITH_MIG, {}).nodes if "caps" in node]


@pytest.mark.parametrize(
    ("facts", "device", "problem"),
    [
        (WITH_MIG, PayloadDevice("MIG-cc", 1, 2, 5), "no capability gpu2/gi-1 in /proc/driver/nvidia/capabilities"),
        (
            WITH_MIG,
            PART.__class__("MIG-cc", 1, 2, 5, gpu_instance=9, compute_instance=3),
            "no capability gpu2/gi9/ci3 in /proc/driver/nvidia/capabilities (MIG-cc)",
        ),
        (
            WITH_MIG._replace(nodes=tuple(node for node in WITH_MIG.nodes if not node.endswith("cap85"))),
            PART,
            "no /dev/nvidia-caps/nvidia-cap85 (MIG-cc; nvidia-modprobe -f of its file in /proc as root makes it)",
        ),
    ],
)
def test_a_mig_device_with_unknown_device_nodes_is_refused(facts: Facts, device: PayloadDevice, problem: str) -> None:
    assert problem in choose_mode("devices", facts, [device]).problem


def capability(directory: Path, name: str, text: str) -> None:
    place = directory / name
    place.mkdir(parents=True)
    (place / "access").write_text(text)


def test_capabilities_of_mig_are_read_from_the_drivers_files(tmp_path: Path) -> None:
    def lines(minor: int) -> str:
        return f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n"

    capability(tmp_path, "gpu2/mig/gi9", lines(84))
    capability(tmp_path, "gpu2/mig/gi9/ci0", lines(85))
    capability(tmp_path, "gpu10/mig/gi1", lines(5))
    capability(tmp_path, "mig/config", lines(1))
    capability(tmp_path, "gpu3/mig/gi1", "nothing of the kind\n")
    assert mig_capability_nodes(str(tmp_path)) == {
        "gpu2/gi9": ("/dev/nvidia-caps/nvidia-cap84", f"{tmp_path}/gpu2/mig/gi9/access"),
        "gpu2/gi9/ci0": ("/dev/nvidia-caps/nvidia-cap85", f"{tmp_path}/gpu2/mig/gi9/ci0/access"),
        "gpu10/gi1": ("/dev/nvidia-caps/nvidia-cap5", f"{tmp_path}/gpu10/mig/gi1/access"),
    }
    assert mig_capability_nodes(str(tmp_path / "none")) == {}


# ---- storage and memory between nodes ----


def test_each_lease_has_gds_nodes_and_a_whole_gpu_the_imex_channel() -> None:
    shared = ("/dev/nvidia-fs0", "/dev/nvidia-fs1", IMEX_CHANNEL)
    facts = WITH_MIG._replace(nodes=(*WITH_MIG.nodes, *shared))
    assert part_for("devices", [ONE], facts, {}).nodes[-3:] == shared
    assert part_for("devices", [PART], facts, {}).nodes[-2:] == shared[:2]


def test_nodes_in_directories_of_the_driver_are_found(tmp_path: Path) -> None:
    for name in ("nvidia-caps/nvidia-cap1", "nvidia-caps/else", "nvidia-caps-imex-channels/channel0", "nvidia-fs3"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "nvidia-caps-imex-channels" / "channel1").touch()
    assert driver_nodes(str(tmp_path)) == (
        "/dev/nvidia-caps-imex-channels/channel0",
        "/dev/nvidia-caps/nvidia-cap1",
        "/dev/nvidia-fs3",
    )


@pytest.mark.root("to be another user, who may not open what it may not")
def test_an_imex_channel_that_this_user_may_not_open_is_not_passed_on(tmp_path: Path) -> None:
    channel = tmp_path / "nvidia-caps-imex-channels" / "channel0"
    channel.parent.mkdir()
    channel.touch(mode=0o600)
    tmp_path.chmod(0o755)
    if (child := os.fork()) == 0:
        os.setgid(65534)
        os.setuid(65534)
        os._exit(0 if driver_nodes(str(tmp_path)) == () else 1)
    assert os.waitpid(child, 0)[1] == 0


# ---- what is missing after a boot ----


@pytest.fixture
def modprobe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program nvidia-modprobe, the first on PATH, that records its arguments."""
    program = tmp_path / "bin" / "nvidia-modprobe"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\necho "$@" >>{tmp_path}/calls\nif [ -e {tmp_path}/fails ]; then echo no >&2; exit 3; fi\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return tmp_path


def calls(modprobe: Path) -> list[str]:
    path = modprobe / "calls"
    return path.read_text().splitlines() if path.exists() else []


def test_nvidias_program_makes_the_missing_nodes(modprobe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"gpu2/gi9": ("/dev/nvidia-caps/nvidia-cap84", "/proc/x/gi9/access")}
    monkeypatch.setattr(gpu_facts, "mig_capability_nodes", lambda: files)
    notes: list[str] = []
    make_nodes(["gpu2/gi9", "gpu2/gi9/ci0"], notes.append)
    assert calls(modprobe) == ["-u -c=0", "-f /proc/x/gi9/access"]
    (modprobe / "fails").touch()
    make_nodes([], notes.append)
    assert notes[-1] == "nvidia-modprobe -u -c=0: exit code 3, no"


def test_without_the_program_this_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/none")
    monkeypatch.setattr(gpu_facts, "SBIN", ("/none",))
    notes: list[str] = []
    make_nodes([], notes.append)
    assert notes == ["nvidia-modprobe, which makes /dev/nvidia-uvm, is not on this node"]


def chosen(
    monkeypatch: pytest.MonkeyPatch, *, mode: str = "auto", before: Facts = NO_UVM, after: tuple[str, ...] = FACTS.nodes
) -> Any:
    """Choose the mode where the device nodes are others after the program has run."""
    monkeypatch.setattr(container_factory, "facts_of", lambda _docker: before)
    monkeypatch.setattr(container_factory, "driver_nodes", lambda: after)
    settings = DockerSettings(host="unix:///nowhere", network="none", gpu_mode=mode)
    return container_factory.chosen_mode(
        SimpleNamespace(),  # type: ignore[arg-type]
        settings,
        DockerPolicy(),
        [ONE],
        {},
        lambda _: None,
    )


def test_without_another_mode_nvidia_uvm_is_created_first(modprobe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    choice, facts = chosen(monkeypatch)
    assert (choice.mode, "/dev/nvidia-uvm" in facts.nodes, calls(modprobe)) == ("devices", True, ["-u -c=0"])


def test_if_it_cannot_be_made_the_container_is_the_nodes_fault(modprobe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PayloadError, match="nvidia-modprobe -u -c=0 as root") as refused:
        chosen(monkeypatch, after=NO_UVM.nodes)
    assert refused.value.fault.value == "node"


def test_with_another_mode_or_without_a_driver_no_node_is_created(
    modprobe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = NO_UVM._replace(runtimes=frozenset({"nvidia"}))
    assert chosen(monkeypatch, before=runtime)[0].mode == "runtime"
    with pytest.raises(PayloadError):
        chosen(monkeypatch, mode="cdi")
    with pytest.raises(PayloadError):
        chosen(monkeypatch, before=NO_UVM._replace(nodes=()), after=())
    assert calls(modprobe) == []
