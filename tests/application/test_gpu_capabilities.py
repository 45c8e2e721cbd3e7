"""The key ``gpu_capabilities``, and the variables of NVIDIA's tools that a user may set."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlapp.application.description import ResolvedApplication, read_application
from dlapp.application.keywords import spec_of
from dlapp.cluster.engine import EngineInfo
from dlapp.config import Config
from dlapp.errors import FileRefused, SpecError
from dlapp.values.serialization import from_json, to_json
from dlapp.values.spec import AppSpec

ENGINE = EngineInfo(name="local", version="1", has_gpus=True)
MINIMAL = "[application]\nappname=a\ncommand=train\ndocker_image=i\n"
VARIABLE = "env.NVIDIA_DRIVER_CAPABILITIES"


def read(place: Path, text: str, config: Config) -> ResolvedApplication:
    (place / "app.properties").write_text(text)
    return read_application(str(place / "app.properties"), config, ENGINE)


def refused(place: Path, text: str, config: Config) -> str:
    with pytest.raises(FileRefused) as refusal:
        read(place, text, config)
    (problem,) = refusal.value.problems
    return problem.removeprefix(f"{place}/app.properties:")


def test_named_capabilities_are_requested_with_those_that_cuda_needs(place: Path, config: Config) -> None:
    spec = read(place, MINIMAL + "gpu_capabilities=video, graphics\n", config).spec
    assert spec.capabilities_of(spec.roles[0]) == ("compute", "graphics", "utility", "video")
    spec = read(place, MINIMAL + "gpu_capabilities=all\n", config).spec
    assert len(spec.capabilities_of(spec.roles[0])) == 7
    spec = read(place, MINIMAL, config).spec
    assert spec.capabilities_of(spec.roles[0]) == ()


def test_each_role_has_its_own_or_those_of_the_application(place: Path, config: Config) -> None:
    roles = (
        "gpu_capabilities=video\n[role a]\n[role b]\ngpu_capabilities=graphics\n[role c]\ngpu_capabilities=compute\n"
    )
    spec = read(place, MINIMAL + roles + f"[role d]\n{VARIABLE}=ngx\n", config).spec
    assert [spec.capabilities_of(role) for role in spec.roles] == [
        ("compute", "utility", "video"),
        ("compute", "graphics", "utility"),
        ("compute", "utility"),
        (),  # its variable counts
    ]
    assert from_json(AppSpec, to_json(spec)) == spec


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (
            "gpu_capabilities=vidio\n",
            "5: application.gpu_capabilities: 'vidio' is not a driver capability, the nearest",
        ),
        (
            f"{VARIABLE}=video\ngpu_capabilities=video\n",
            "6: application.gpu_capabilities: is given, and so is env.NVIDIA_DRIVER_CAPABILITIES; set one of them",
        ),
        (
            f"{VARIABLE}=secret\n",
            f"5: application.{VARIABLE}: names a driver capability that does not exist; docs/docker.md has all of them",
        ),
        (
            f"[role b]\n{VARIABLE}=all\ngpu_capabilities=all\n",
            "7: role b.gpu_capabilities: is given, and so is env.NVIDIA_DRIVER_CAPABILITIES; set one of them",
        ),
    ],
)
def test_invalid_capabilities_are_refused(place: Path, config: Config, more: str, problem: str) -> None:
    assert refused(place, MINIMAL + more, config).startswith(problem)


def test_driver_capabilities_need_an_image(place: Path, config: Config) -> None:
    text = "[application]\nappname=a\ncommand=train\ngpu_capabilities=video\n"
    problem = "is for containers of an image: it needs docker_image"
    assert refused(place, text, config) == f"4: application.gpu_capabilities: {problem}"
    one_of_two = text.replace(
        "gpu_capabilities=video\n", "[role a]\n[role b]\ndocker_image=i\ngpu_capabilities=video\n"
    )
    spec = read(place, one_of_two, config).spec
    assert [spec.capabilities_of(role) for role in spec.roles] == [(), ("compute", "utility", "video")]


@pytest.mark.parametrize(
    "name", ["NVIDIA_TF32_OVERRIDE", "NVIDIA_DISABLE_REQUIRE", "NVIDIA_GDS", "NVIDIA_DRIVER_CAPABILITIES"]
)
def test_variables_of_nvidia_that_select_no_device_are_the_users(place: Path, config: Config, name: str) -> None:
    value = "video,compute" if name == "NVIDIA_DRIVER_CAPABILITIES" else "0"
    assert read(place, MINIMAL + f"env.{name}={value}\n", config).env == {name: value}


def test_an_env_file_is_checked_alike_and_not_quoted(place: Path, config: Config) -> None:
    (place / "variables").write_text("NVIDIA_DRIVER_CAPABILITIES=secret\n")
    (place / "variables").chmod(0o600)
    problem = refused(place, MINIMAL + "env_file=variables\n", config)
    assert "names a driver capability that does not exist" in problem
    assert "secret" not in problem


def test_python_takes_a_list(config: Config) -> None:
    fields = {"command": ["train"], "docker_image": "i", "gpu_capabilities": ["video", "graphics"]}
    spec = spec_of(fields, config, has_gpus=True, args=(), env={})
    assert spec.gpu_capabilities == ("graphics", "video")
    with pytest.raises(SpecError, match="the nearest is display"):
        spec_of({**fields, "gpu_capabilities": "displays"}, config, has_gpus=True, args=(), env={})
