"""Test which way a container gets its GPUs, what it means for the container, and whether it is so."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlapp.runtime.gpu.facts import driver_nodes, names_in, podman_version
from dlapp.runtime.gpu.modes import Facts, GpuPart, choose_mode, missing_gpu_settings, part_for
from dlapp.runtime.gpu.verification import visible_gpu_mismatch
from dlapp.runtime.payload import PayloadDevice

ONE = PayloadDevice("GPU-aa", 0, 4)
TWO = PayloadDevice("GPU-bb", 3, 1)
PART = PayloadDevice("MIG-cc", 1, 2, 5)

OLD = Facts(version="18.09", api=(1, 39))
PLAIN = Facts(version="20.10.24", api=(1, 41))
HOOKED = PLAIN._replace(programs={"nvidia-container-runtime-hook": "/usr/bin/nvidia-container-runtime-hook"})
BASE = PLAIN._replace(programs={"nvidia-cdi-hook": "/usr/bin/nvidia-cdi-hook"})
CDI = Facts(
    version="28.2", api=(1, 50), cdi_directories=("/etc/cdi",), cdi_names=frozenset({"GPU-aa", "GPU-bb", "all"})
)
PODMAN = Facts(version="4.3.1", api=(1, 41), podman="4.3.1", cdi_names=frozenset({"0", "3"}))
WRAPPED = OLD._replace(programs={"nvidia-docker": "/usr/bin/nvidia-docker"})
NODES = OLD._replace(
    nodes=("/dev/nvidia1", "/dev/nvidia4", "/dev/nvidia-uvm", "/dev/nvidiactl"), libraries=("/lib/libcuda.so.1",)
)


@pytest.mark.parametrize(
    ("facts", "mode", "reason"),
    [
        (CDI, "cdi", "Docker 28.2 has CDI, with 3 names of nvidia.com/gpu"),
        (CDI._replace(cdi_names=frozenset({"0", "3"})), "cdi", "Docker 28.2 has CDI"),
        (HOOKED, "gpus", "Docker 20.10.24 has device requests, and /usr/bin/nvidia-container-runtime-hook"),
        (
            BASE._replace(version="29.2.1", api=(1, 53)),
            "gpus",
            "Docker 29.2.1 has device requests, and /usr/bin/nvidia-cdi-hook",
        ),
        (BASE._replace(runtimes=frozenset({"nvidia"})), "runtime", "Docker 20.10.24 has the runtime nvidia"),
        (PLAIN._replace(runtimes=frozenset({"runc", "nvidia"})), "runtime", "Docker 20.10.24 has the runtime nvidia"),
        (WRAPPED, "nvidia-docker", "there is /usr/bin/nvidia-docker"),
        (NODES, "devices", "the driver's device nodes and libraries are there"),
        (PODMAN._replace(podman="5.4.1"), "cdi", "Podman 5.4.1 has CDI"),
    ],
)
def test_auto_chooses_the_first_available_mode_with_the_reason(facts: Facts, mode: str, reason: str) -> None:
    choice = choose_mode("auto", facts, [ONE, TWO])
    assert (choice.mode, choice.problem) == (mode, "")
    assert choice.reason.startswith(reason)


@pytest.mark.parametrize(
    ("configured", "facts", "problem"),
    [
        ("cdi", PLAIN, "Docker 20.10.24 has no CDI; 25.0 has"),
        ("cdi", PLAIN._replace(api=(1, 44), version="25.0"), "CDI is off in dockerd"),
        ("cdi", CDI._replace(cdi_names=frozenset()), "no nvidia.com/gpu in /etc/cdi"),
        ("cdi", CDI._replace(cdi_names=frozenset({"GPU-aa"})), "nvidia.com/gpu has no GPU-bb"),
        ("cdi", PODMAN, "Podman 4.3.1 ignores GPU requests without an error"),
        ("gpus", PODMAN, "Podman 4.3.1 ignores it"),
        ("gpus", OLD, "Docker 18.09 has no device requests; 19.03 has"),
        ("runtime", PLAIN, "dockerd has no runtime nvidia"),
        ("nvidia-docker", PLAIN, "no nvidia-docker on PATH"),
        ("devices", PLAIN, "no /dev/nvidiactl"),
        (
            "devices",
            NODES._replace(nodes=("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia4")),
            "no /dev/nvidia1 (GPU-bb)",
        ),
        ("devices", NODES._replace(libraries=()), "the driver's libraries are not found"),
    ],
)
def test_a_configured_way_that_is_not_there_is_a_problem(configured: str, facts: Facts, problem: str) -> None:
    found = choose_mode(configured, facts, [ONE, TWO]).problem
    assert found.startswith(f"runtime.docker.gpu_mode is {configured}: {problem}")


def test_without_any_usable_mode_each_one_names_its_missing_part() -> None:
    problem = choose_mode("auto", PLAIN, [ONE]).problem
    for words in (
        "cdi: Docker 20.10.24 has no CDI",
        "gpus: no nvidia-container",
        "runtime: dockerd has no",
        "devices:",
    ):
        assert words in problem


def test_the_operator_allows_or_not() -> None:
    assert (
        choose_mode("auto", CDI._replace(runtimes=frozenset({"nvidia"})), [ONE], allowed=["runtime"]).mode == "runtime"
    )
    assert "this node allows only runtime" in choose_mode("cdi", CDI, [ONE], allowed=["runtime"]).problem
    assert "containers get no GPUs here" in choose_mode("none", CDI, [ONE]).problem


def test_with_a_configured_mode_unknown_facts_are_left_to_dockerd() -> None:
    assert choose_mode("gpus", PLAIN, [ONE]).problem == ""
    assert choose_mode("cdi", CDI._replace(cdi_names=None), [ONE]).problem == ""
    assert choose_mode("auto", CDI._replace(cdi_names=None), [ONE]).mode == "none"


def test_exactly_the_leased_devices_are_named_by_uuid() -> None:
    part = part_for("cdi", [ONE, TWO], CDI, {})
    assert part.requests[0]["DeviceIDs"] == ["nvidia.com/gpu=GPU-aa", "nvidia.com/gpu=GPU-bb"]
    assert (part.requests[0]["Driver"], part.requests[0]["Count"]) == ("cdi", 0)
    assert part.env == {"NVIDIA_VISIBLE_DEVICES": "void"}, "no default runtime adds what the image says"
    part = part_for("gpus", [ONE, TWO], HOOKED, {"NVIDIA_VISIBLE_DEVICES": "all"})
    assert part.requests[0]["DeviceIDs"] == ["GPU-aa", "GPU-bb"]
    assert part.requests[0]["Capabilities"] == [["gpu"]]
    assert part.env == {"NVIDIA_VISIBLE_DEVICES": "GPU-aa,GPU-bb", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
    part = part_for("runtime", [TWO], PLAIN, {"NVIDIA_DRIVER_CAPABILITIES": "video,utility"})
    assert (part.runtime, part.env) == (
        "nvidia",
        {"NVIDIA_VISIBLE_DEVICES": "GPU-bb", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility,video"},
    )
    part = part_for("nvidia-docker", [ONE, TWO], WRAPPED, {"NVIDIA_VISIBLE_DEVICES": "all"})
    assert part.command_env == {"NV_GPU": "GPU-aa,GPU-bb"}
    assert part.env["NVIDIA_VISIBLE_DEVICES"] == "GPU-aa,GPU-bb"
    part = part_for("devices", [ONE], NODES, {"LD_LIBRARY_PATH": "/opt"})
    assert part.nodes == ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia4")
    assert part.mounts == (("/lib/libcuda.so.1", "/dlapp/driver/libcuda.so.1"),)
    assert part.env["LD_LIBRARY_PATH"] == "/dlapp/driver:/opt"


def test_a_specification_without_uuids_is_addressed_by_index() -> None:
    part = part_for("cdi", [TWO, PART], CDI._replace(cdi_names=frozenset({"0", "3", "1:5"})), {})
    assert part.requests[0]["DeviceIDs"] == ["nvidia.com/gpu=3", "nvidia.com/gpu=1:5"]


def test_without_an_ask_no_image_gets_a_device() -> None:
    assert part_for("none", [], Facts(), {"NVIDIA_VISIBLE_DEVICES": "all"}) == GpuPart(
        {"NVIDIA_VISIBLE_DEVICES": "void"}
    )


@pytest.mark.parametrize(
    ("mode", "host_config", "problem"),
    [
        ("gpus", {"DeviceRequests": [{"DeviceIDs": ["GPU-aa"]}]}, ""),
        ("gpus", {"DeviceRequests": None}, "it was asked for GPU-aa and took none of it"),
        ("gpus", {}, "it was asked for GPU-aa and took none of it"),
        ("runtime", {"Runtime": "nvidia"}, ""),
        ("runtime", {"Runtime": "runc"}, "it was asked for the runtime nvidia and took runc"),
        ("devices", {"Devices": []}, "it was asked for /dev/nvidiactl and left it out"),
        ("nvidia-docker", {"Runtime": "nvidia"}, ""),
        ("nvidia-docker", {"Devices": [{"PathOnHost": "/dev/nvidiactl"}, {"PathOnHost": "/dev/nvidia4"}]}, ""),
        (
            "nvidia-docker",
            {"Runtime": "runc", "Devices": []},
            "nvidia-docker added no /dev/nvidia4 (version 1 needs the image's label com.nvidia.volumes.needed)",
        ),
        (
            "nvidia-docker",
            {"Devices": [{"PathOnHost": "/dev/nvidia4"}, {"PathOnHost": "/dev/nvidia1"}]},
            "nvidia-docker added /dev/nvidia1, which is another's",
        ),
    ],
)
def test_settings_ignored_by_docker_are_detected(mode: str, host_config: dict[str, object], problem: str) -> None:
    assert missing_gpu_settings(part_for(mode, [ONE], NODES, {}), host_config) == problem


def test_podman_shows_no_device_requests() -> None:
    assert (
        missing_gpu_settings(
            part_for("cdi", [ONE], CDI, {}), {"DeviceRequests": None, "Runtime": "oci"}, podman="5.4.2"
        )
        == ""
    )


OF_ONE = "GPU 0: NVIDIA A100 (UUID: GPU-aa)\n"
OF_TWO = "GPU 1: NVIDIA A100 (UUID: GPU-bb)\n"
OF_PART = "  MIG 1g.5gb     Device  0: (UUID: MIG-cc)\n"


@pytest.mark.parametrize(
    ("devices", "seen", "problem"),
    [
        ([ONE], f"node 4 195:4\n{OF_ONE}smi 0\nend\n", ""),
        ([ONE, TWO], f"node 1 195:1\nnode 4 195:4\n{OF_ONE}{OF_TWO}smi 0\nend\n", ""),
        ([ONE], "node 4 195:4\nsmi none\nend\n", ""),
        ([ONE], "smi none\nend\n", "the container does not see its /dev/nvidia4"),
        ([ONE], "node 1 195:1\nnode 4 195:4\nsmi none\nend\n", "the container sees /dev/nvidia1, which is not its own"),
        ([ONE], f"node 4 195:4\n{OF_ONE}{OF_TWO}smi 0\nend\n", "the container sees GPU-bb, which is not its own"),
        ([ONE], "node 4 195:4\nsmi 0\nend\n", "the container does not see its GPU-aa"),
        ([PayloadDevice("GPU-aa", 0)], f"node 7 1:3\n{OF_ONE}smi 0\nend\n", ""),
        ([PayloadDevice("GPU-aa", 0)], "smi none\nend\n", "the container sees no GPU"),
        ([ONE], "node 4 :\nsmi none\nend\n", ""),
        ([ONE], "node 4 195:Nov\nsmi none\nend\n", ""),
        ([ONE], "node 4 195:4\nsmi 127\nend\n", ""),
        (
            [ONE],
            "node 4 195:1\nsmi none\nend\n",
            "/dev/nvidia4 in the container is another device than outside (195:1, not 195:4)",
        ),
        ([PART], f"node 2 195:2\nGPU 0: NVIDIA A100 (UUID: GPU-dd)\n{OF_PART}smi 0\nend\n", ""),
        (
            [ONE],
            "node 4 195:4\nFailed to initialize NVML: Unknown Error\nsmi 255\nend\n",
            "nvidia-smi does not work in the container: Failed to initialize NVML: Unknown Error",
        ),
    ],
)
def test_visible_gpus_are_compared_with_the_lease(devices: list[PayloadDevice], seen: str, problem: str) -> None:
    host = {"/dev/nvidia1": "195:1", "/dev/nvidia2": "195:2", "/dev/nvidia4": "195:4"}
    assert visible_gpu_mismatch(devices, seen, host) == problem


def test_without_device_nodes_on_the_host_none_are_missing() -> None:
    assert visible_gpu_mismatch([ONE], "smi none\nend\n", {}) == ""


def test_names_of_devices_are_read_from_specifications(tmp_path: Path) -> None:
    (tmp_path / "nvidia.yaml").write_text(
        "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n- name: '0'\n- name: all\n"
    )
    (tmp_path / "more.json").write_text('{"kind": "nvidia.com/gpu", "devices": [{"name": "GPU-aa"}]}')
    (tmp_path / "other.json").write_text('{"kind": "vendor.com/net", "devices": [{"name": "eth0"}]}')
    (tmp_path / "nvidia.yaml.bak").write_text("[")
    assert names_in([str(tmp_path), str(tmp_path / "none")]) == frozenset({"0", "all", "GPU-aa"})
    (tmp_path / "broken.yaml").write_text("[")
    assert names_in([str(tmp_path)]) is None


def test_podman_is_recognised() -> None:
    engine = {"Name": "Podman Engine", "Version": "4.3.1"}
    assert podman_version({"Components": [engine, {"Name": "Conmon"}]}) == "4.3.1"
    assert podman_version({"Components": [{"Name": "Engine", "Version": "20.10"}]}) == ""


def test_device_nodes_are_those_of_the_driver(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia12", "nvidiactl", "nvidia-uvm", "nvidia-fs0", "nvidia-nvlink", "null"):
        (tmp_path / name).touch()
    assert driver_nodes(str(tmp_path)) == (
        *("/dev/nvidia-fs0", "/dev/nvidia-uvm"),
        *("/dev/nvidia0", "/dev/nvidia12", "/dev/nvidiactl"),
    )
