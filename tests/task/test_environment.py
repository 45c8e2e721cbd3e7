"""Test what a payload finds in its environment."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from dlapp.runtime.payload import PayloadDevice
from dlapp.task.environment import DEFAULT_PATH, default_variables, node_name, payload_environment
from dlapp.values.ids import ApplicationId, ContainerId
from dlapp.values.messages import Assignment
from dlapp.values.spec import Framework, InputSpec, OutputSpec, Resources

APPLICATION = ApplicationId(1700000000000, 42)


def assignment(**changes: Any) -> Assignment:
    fields: dict[str, Any] = {
        "application_id": APPLICATION,
        "attempt": 2,
        "container_id": ContainerId(APPLICATION, 2, 7),
        "index": 3,
        "total": 6,
        "role": "worker",
        "role_index": 1,
        "role_size": 4,
        "resources": Resources(),
        "script": "run.sh",
        "args": (),
        "docker_image": None,
        "username": "tony",
        "appname": "a test",
        "workspace_archive": "file:///w.tar.gz",
        "workspace_digest": "sha256-0",
    }
    return Assignment(**(fields | changes))


def environment(one: Assignment, **changes: Any) -> dict[str, str]:
    fields: dict[str, Any] = {"workspace": "/w", "home": "/h", "tmp": "/t", "run": "/r", "submitter": {}, "user": {}}
    return payload_environment(one, **(fields | changes))


def test_variables_of_every_container() -> None:
    env = environment(assignment())
    assert {name: env[name] for name in env if name.startswith(("CONTAINER", "NUM_", "DLAPP_"))} == {
        "CONTAINER_INDEX": "3",
        "NUM_CONTAINERS": "6",
        "DLAPP_ROLE": "worker",
        "DLAPP_ROLE_INDEX": "1",
        "DLAPP_ROLE_SIZE": "4",
        "DLAPP_APP_ID": "application_1700000000000_0042",
        "DLAPP_ATTEMPT": "2",
        "DLAPP_CONTAINER_ID": "container_1700000000000_0042_02_000007",
        "DLAPP_WORKSPACE": "/w",
        "DLAPP_DIR": "/r",
        "DLAPP_REPORT": "/r/report",
        "DLAPP_STOP": "/r/stop",
        "DLAPP_GPU_UUIDS": "",
        "DLAPP_GPUS": "[]",
    }


@pytest.mark.parametrize(("users", "message"), [(None, "/p"), ("", "/p"), ("/a:/b", "/a:/b:/p")])
def test_dlapps_module_follows_those_of_the_user(users: str | None, message: str) -> None:
    user = {} if users is None else {"PYTHONPATH": users}
    assert environment(assignment(), user=user, python="/p")["PYTHONPATH"] == message
    assert environment(assignment(), user=user).get("PYTHONPATH") == users


def test_a_plain_payload_sees_its_gpus_by_uuid_and_none_without() -> None:
    env = environment(assignment(), gpus=(PayloadDevice("GPU-a", 0), PayloadDevice("GPU-d", 3)))
    assert (env["NV_GPU"], env["CUDA_VISIBLE_DEVICES"], env["CUDA_DEVICE_ORDER"]) == (
        "0,3",
        "GPU-a,GPU-d",
        "PCI_BUS_ID",
    )
    env = environment(assignment())
    assert (env["NV_GPU"], env["CUDA_VISIBLE_DEVICES"]) == ("", "")


def test_in_docker_no_gpu_means_void_despite_the_image() -> None:
    env = environment(assignment(docker_image="i"), submitter=None)
    assert env["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert "CUDA_VISIBLE_DEVICES" not in env
    assert "PATH" not in env, "the image's own counts"


def test_requested_driver_capabilities_replace_those_of_the_image_and_of_the_users_variable() -> None:
    requested = assignment(docker_image="i", gpu_capabilities=("compute", "utility", "video"))
    user = {"NVIDIA_DRIVER_CAPABILITIES": "graphics"}
    name = "NVIDIA_DRIVER_CAPABILITIES"
    assert environment(requested, submitter=None, user=user)[name] == "compute,utility,video"
    assert environment(assignment(docker_image="i"), submitter=None, user=user)[name] == "graphics"
    assert name not in environment(assignment(docker_image="i"), submitter=None)


TWO = (
    PayloadDevice("GPU-a", 1, 0, pci_bus_id="00000000:3B:00.0", name="NVIDIA H100 80GB HBM3", memory_mib=81559, numa=0),
    PayloadDevice("GPU-d", 3),
)
SLICES = (PayloadDevice("MIG-a", 0, mig=0), PayloadDevice("MIG-b", 0, mig=1))


@pytest.mark.parametrize(
    ("names", "image", "visible"),
    [
        ("auto", None, "GPU-a,GPU-d"),
        ("uuid", None, "GPU-a,GPU-d"),
        ("index", None, "1,3"),
        ("auto", "image", None),
        ("uuid", "image", "GPU-a,GPU-d"),
        ("index", "image", "0,1"),
    ],
)
def test_gpus_are_named_by_the_key_and_the_payloads_indexes(names: str, image: str | None, visible: str | None) -> None:
    one = assignment(docker_image=image, cuda_visible_devices=names)
    env = environment(one, gpus=TWO, submitter={} if image is None else None)
    assert (env.get("CUDA_VISIBLE_DEVICES"), env["CUDA_DEVICE_ORDER"], env["NV_GPU"]) == (visible, "PCI_BUS_ID", "1,3")
    assert "NVIDIA_VISIBLE_DEVICES" not in env, "of the mode in which the container gets its GPUs"


def test_a_script_can_read_all_facts_about_its_gpus_and_null_for_the_unknown_ones() -> None:
    env = environment(assignment(), gpus=TWO)
    assert env["DLAPP_GPU_UUIDS"] == "GPU-a,GPU-d"
    first, second = json.loads(env["DLAPP_GPUS"])
    assert first == {
        "uuid": "GPU-a",
        "index": 1,
        "bus_id": "00000000:3B:00.0",
        "model": "NVIDIA H100 80GB HBM3",
        "memory_mib": 81559,
        "numa": 0,
        "mig": None,
    }
    unknown = dict.fromkeys(("bus_id", "model", "memory_mib", "numa", "mig"))
    assert second == {"uuid": "GPU-d", "index": 3, **unknown}


def test_two_slices_of_one_gpu_have_two_names() -> None:
    env = environment(assignment(), gpus=SLICES)
    assert env["NV_GPU"] == "0:0,0:1"
    assert [load["mig"] for load in json.loads(env["DLAPP_GPUS"])] == [0, 1]


def test_a_plain_payload_inherits_the_submitters_path_and_home_directory() -> None:
    env = environment(assignment(), submitter={"PATH": "/mine", "HOME": "/home/tony", "LANG": "ko_KR.UTF-8"})
    assert (env["PATH"], env["HOME"], env["LANG"], env["TMPDIR"]) == ("/mine", "/home/tony", "ko_KR.UTF-8", "/t")
    env = environment(assignment())
    assert (env["PATH"], env["HOME"]) == (DEFAULT_PATH, "/h")


def test_python_output_is_unbuffered_unless_the_user_overrides_it() -> None:
    assert environment(assignment())["PYTHONUNBUFFERED"] == "1"
    assert environment(assignment(docker_image="image"))["PYTHONUNBUFFERED"] == "1"
    assert environment(assignment(), user={"PYTHONUNBUFFERED": ""})["PYTHONUNBUFFERED"] == ""


def test_the_users_variables_override_the_submitters_but_never_dlapps() -> None:
    env = environment(
        assignment(), submitter={"LANG": "C"}, user={"LANG": "ko_KR.UTF-8", "TOKEN": "a b", "CONTAINER_INDEX": "9"}
    )
    assert (env["LANG"], env["TOKEN"], env["CONTAINER_INDEX"]) == ("ko_KR.UTF-8", "a b", "3")


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ((), {}),
        (("",), {"DLAPP_INPUT": "/w/d0"}),
        (("train",), {"DLAPP_INPUT": "/w/d0", "DLAPP_INPUT_TRAIN": "/w/d0"}),
        (("a-b", ""), {"DLAPP_INPUT": "/w/d1", "DLAPP_INPUT_A_B": "/w/d0"}),
        (("x", "y"), {"DLAPP_INPUT": "/w/d0", "DLAPP_INPUT_X": "/w/d0", "DLAPP_INPUT_Y": "/w/d1"}),
        (("a-b", "a.b"), {"DLAPP_INPUT": "/w/d0", "DLAPP_INPUT_A_B": "/w/d0"}),
    ],
)
def test_inputs_are_named_by_their_sections(names: tuple[str, ...], expected: dict[str, str]) -> None:
    inputs = tuple(
        InputSpec(name=name, sources=("file:///x",), input_path=f"d{place}") for place, name in enumerate(names)
    )
    env = environment(assignment(inputs=inputs))
    assert {name: value for name, value in env.items() if name.startswith("DLAPP_INPUT")} == expected


def test_outputs_are_named_alike_and_paths_are_made_plain() -> None:
    outputs = (
        OutputSpec(name="model", output_path="./out/model/", target="file:///m"),
        OutputSpec(output_path="output", target="file:///o"),
    )
    env = environment(assignment(outputs=outputs))
    assert (env["DLAPP_OUTPUT"], env["DLAPP_OUTPUT_MODEL"]) == ("/w/output", "/w/out/model")


def test_a_host_has_yarns_name_of_its_node_on_a_cluster_and_else_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NM_HOST", "node7.lab")
    assert node_name() == "node7.lab"
    monkeypatch.delenv("NM_HOST")
    assert node_name() == os.uname().nodename


def defaults(one: Assignment, **changes: Any) -> dict[str, str]:
    fields: dict[str, Any] = {"user": {}, "cache_path": None}
    return default_variables(one, **(fields | changes))


@pytest.mark.parametrize(
    ("framework", "resources", "user", "threads"),
    [
        (Framework.NONE, Resources(vcores=6), {}, "6"),
        (Framework.NONE, Resources(vcores=6, gcores=2), {}, "6"),
        (Framework.PYTORCH, Resources(vcores=6, gcores=2), {}, "6"),
        (Framework.TENSORFLOW, Resources(vcores=3), {}, "3"),
        (Framework.DMLC, Resources(vcores=3), {}, "3"),
        (Framework.TORCHRUN, Resources(vcores=8, gcores=2), {}, "4"),
        (Framework.TORCHRUN, Resources(vcores=8), {"PET_NPROC_PER_NODE": "3"}, "2"),
        (Framework.TORCHRUN, Resources(vcores=8), {"PET_NPROC_PER_NODE": "16"}, "1"),
        (Framework.TORCHRUN, Resources(vcores=8), {"PET_NPROC_PER_NODE": "gpu"}, None),
        (Framework.MPI, Resources(vcores=8, gcores=2), {}, "4"),
        (Framework.MPI, Resources(vcores=8), {}, "1"),
    ],
)
def test_a_program_has_as_many_threads_as_vcores_for_each_of_its_processes(
    framework: Framework, resources: Resources, user: dict[str, str], threads: str | None
) -> None:
    one = assignment(framework=framework, resources=resources)
    assert defaults(one, user=user).get("OMP_NUM_THREADS") == threads


def test_caches_of_frameworks_are_in_one_directory_that_stays() -> None:
    found = defaults(assignment(), cache_path="/kept")
    assert {name: path for name, path in found.items() if name != "OMP_NUM_THREADS"} == {
        "TORCHINDUCTOR_CACHE_DIR": "/kept/torchinductor",
        "TRITON_CACHE_DIR": "/kept/triton",
        "TFHUB_CACHE_DIR": "/kept/tfhub",
        "TIKTOKEN_CACHE_DIR": "/kept/tiktoken",
        "FASTEMBED_CACHE_PATH": "/kept/fastembed",
    }
    assert defaults(assignment()).keys() == {"OMP_NUM_THREADS"}


def test_only_a_program_in_docker_has_proxies_that_its_image_can_replace() -> None:
    submitter = {"https_proxy": "http://p:1", "http_proxy": "http://localhost:1", "SSL_CERT_FILE": "/ca", "PATH": "/b"}
    one = assignment(docker_image="i")

    def proxies(one: Assignment, network: str, **user: str) -> dict[str, str]:
        found = defaults(one, submitter=submitter, docker_network=network, user=user)
        return {name: text for name, text in found.items() if name != "OMP_NUM_THREADS"}

    assert proxies(one, "bridge") == {"https_proxy": "http://p:1"}
    assert proxies(one, "host") == {"https_proxy": "http://p:1", "http_proxy": "http://localhost:1"}
    assert proxies(one, "host", HTTPS_PROXY="", http_proxy="http://q:1") == {}
    assert proxies(assignment(), "bridge") == {}


def test_a_plain_program_gets_no_proxy_that_the_user_has_emptied() -> None:
    submitter = {"HTTPS_PROXY": "http://p:1", "https_proxy": "http://p:1", "SSL_CERT_FILE": "/ca"}
    found = environment(assignment(), submitter=submitter, user={"https_proxy": ""})
    assert (found["https_proxy"], found.get("HTTPS_PROXY"), found["SSL_CERT_FILE"]) == ("", None, "/ca")


@pytest.mark.parametrize(
    ("value", "seen"),
    [
        ("{cache.models}", "/c"),
        ("{cache.models}/hub:{cache.data-2}", "/c/hub:/d"),
        ("{app_id}", "application_1700000000000_0042"),
        ("runs/{app_id}/x", "runs/application_1700000000000_0042/x"),
        ("{cache.other}", "{cache.other}"),
        ("{role}: {content}", "{role}: {content}"),
        ("${cache.models}", "${cache.models}"),
        ('{"a": "{cache.models}"}', '{"a": "/c"}'),
        ("{:.2f} {} {{app_id}}", "{:.2f} {} {{app_id}}"),
    ],
)
def test_caches_and_the_id_of_the_application_are_put_into_variables(value: str, seen: str) -> None:
    found = environment(assignment(), user={"X": value}, caches={"models": "/c", "data-2": "/d"})
    assert (found["X"], found["DLAPP_CACHE_MODELS"], found["DLAPP_CACHE_DATA_2"]) == (seen, "/c", "/d")
