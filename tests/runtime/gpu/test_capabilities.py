"""Parts of the driver that a container gets: what its image and its user request, within the operator's list."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from dlapp.node_policy import GPU_MODES, DockerPolicy
from dlapp.runtime.gpu.modes import (
    Facts,
    choose_mode,
    granted_capabilities,
    part_for,
)
from dlapp.runtime.payload import PayloadDevice
from dlapp.values.program.driver_capabilities import CAPABILITIES, read_capabilities

ONE = PayloadDevice("GPU-aa", 0, 4)
FACTS = Facts(
    version="20.10.24",
    api=(1, 41),
    runtimes=frozenset({"nvidia"}),
    programs={"nvidia-docker": "/bin/nvidia-docker"},
    nodes=("/dev/nvidia4", "/dev/nvidia-uvm", "/dev/nvidiactl"),
    libraries=("/lib/libcuda.so.1",),
)
ALL = "compute,compat32,graphics,utility,video,display,ngx"
VARIABLE = "NVIDIA_DRIVER_CAPABILITIES"


def variable(mode: str, env: Mapping[str, str], allowed: tuple[str, ...] | None = None) -> str:
    return part_for(mode, [ONE], FACTS, env, allowed=allowed).env[VARIABLE]


WITH_VARIABLE = ["gpus", "runtime", "nvidia-docker"]
"""Modes in which NVIDIA's tools choose the driver's files; a CDI specification has all of them, and dlapp mounts the
libraries."""


@pytest.mark.parametrize("mode", WITH_VARIABLE)
def test_all_means_each_of_the_seven_capabilities_in_each_mode(mode: str) -> None:
    assert variable(mode, {VARIABLE: "all"}) == ALL
    assert variable(mode, {VARIABLE: "compute, all"}) == ALL


@pytest.mark.parametrize("mode", WITH_VARIABLE)
@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", "compute,utility"),
        ("compute", "compute,utility"),
        ("video", "compute,utility,video"),
        ("graphics,video,graphics", "compute,graphics,utility,video"),
        ("ngx", "compute,utility,ngx"),
        ("telepathy", "compute,utility"),
    ],
)
def test_capabilities_of_an_image_are_added_to_those_of_cuda(mode: str, text: str, wanted: str) -> None:
    assert variable(mode, {VARIABLE: text}) == wanted
    assert variable(mode, {}) == "compute,utility"


def test_capabilities_unknown_to_docker_are_not_requested_from_it() -> None:
    part = part_for("gpus", [ONE], FACTS, {VARIABLE: "all"})
    assert [request["Capabilities"] for request in part.requests] == [[["gpu"]]]


@pytest.mark.parametrize("mode", WITH_VARIABLE)
def test_an_image_gets_no_capability_that_the_operator_does_not_allow(mode: str) -> None:
    assert variable(mode, {VARIABLE: "all"}, ("video",)) == "compute,utility,video"
    assert variable(mode, {VARIABLE: "graphics"}, ()) == "compute,utility"


def test_a_forbidden_capability_is_refused_with_the_allowed_ones() -> None:
    assert DockerPolicy(gpu_capabilities=("video",)).forbidden_capabilities(
        ["compute", "utility", "video", "graphics"]
    ) == ("graphics: this node allows compute, utility, video (docker.gpu_capabilities of /etc/dlapp/node.yaml)")
    assert DockerPolicy(gpu_capabilities=("video",)).forbidden_capabilities(["compute", "video"]) == ""
    assert DockerPolicy().forbidden_capabilities(CAPABILITIES) == ""


def test_by_default_an_operator_allows_all() -> None:
    assert granted_capabilities({VARIABLE: "all"}, DockerPolicy().gpu_capabilities) == CAPABILITIES


def test_the_mode_devices_is_not_chosen_for_capabilities_that_it_lacks() -> None:
    assert choose_mode("auto", FACTS._replace(runtimes=frozenset(), programs={}), [ONE]).mode == "devices"
    only = FACTS._replace(runtimes=frozenset(), programs={})
    found = choose_mode("devices", only, [ONE], capabilities=["compute", "graphics", "display"])
    assert found.problem == (
        "runtime.docker.gpu_mode is devices: it has no graphics, display, only compute, utility, video, ngx"
    )
    assert "devices: it has no graphics" in choose_mode("auto", only, [ONE], capabilities=["graphics"]).problem
    assert choose_mode("auto", only, [ONE], capabilities=["compute", "video"]).mode == "devices"
    for mode in set(GPU_MODES) & {"runtime", "nvidia-docker"}:
        assert choose_mode(mode, FACTS, [ONE], capabilities=list(CAPABILITIES)).problem == ""


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("vidio", "'vidio' is not a driver capability, the nearest is video"),
        ("compute,Graphics", "'Graphics' is not a driver capability, the nearest is graphics"),
        ("cuda", "'cuda' is not a driver capability, "),
    ],
)
def test_a_wrong_name_is_refused_with_the_nearest_right_one(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        read_capabilities(text)


def test_names_are_read_once_each_and_in_one_order() -> None:
    assert read_capabilities("video, graphics,video\ncompute") == ("compute", "graphics", "video")
    assert read_capabilities("all") == CAPABILITIES
