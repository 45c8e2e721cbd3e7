"""Test what a program in Docker reaches of the network: no more than was asked for, and than the node allows."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlapp.client import Client
from dlapp.errors import FileRefused
from dlapp.node_policy import DockerPolicy, NodePolicy
from tests.applications import BIN, ended, launch, properties, run, status
from tests.services.containers.dockerd import IMAGE, Dockerd, dockerd, own_daemon

__all__ = ["dockerd"]

INTERFACES = "cat /proc/net/dev"


@pytest.fixture(scope="module")
def bridged() -> Iterator[Dockerd]:
    """A daemon that has the network ``bridge``."""
    with own_daemon(bridge=True) as daemon:
        yield daemon


def interfaces(text: str) -> list[str]:
    """Return what stands in /proc/net/dev; tunnels that a kernel has in every namespace are left out."""
    names = [line.partition(":")[0].strip() for line in text.splitlines() if ":" in line]
    return sorted(name for name in names if name == "lo" or name.startswith("eth"))


@pytest.mark.proves("program-network")
@pytest.mark.slow
@pytest.mark.docker
def test_the_default_network_is_the_bridge_and_shown(bridged: Dockerd, tmp_path: Path) -> None:
    env = {"DLAPP_RUNTIME_DOCKER_HOST": bridged.host}
    file = properties(tmp_path, INTERFACES, application={"docker_image": IMAGE})
    done = run("dlapp-launcher", "--wait", file, env=env)
    assert done.code == 0, done.err
    assert "network" not in done.err, "one container has nobody to reach"
    assert interfaces(run("dlapp-logs", "--container", "0", "--stdout", "last").out) == ["eth0", "lo"]
    assert status("last")["network"] == "bridge"
    printed = run("dlapp-launcher", "--print-spec", file, env=env)
    assert json.loads(printed.out)["spec"]["network"] == "bridge"


@pytest.mark.slow
@pytest.mark.docker
def test_the_network_of_the_file_overrides_the_configuration(bridged: Dockerd, tmp_path: Path) -> None:
    file = properties(tmp_path, INTERFACES, application={"docker_image": IMAGE, "network": "none"})
    env = {"DLAPP_RUNTIME_DOCKER_HOST": bridged.host, "DLAPP_RUNTIME_DOCKER_NETWORK": "bridge"}
    application = launch(file, **env)
    assert ended(application)["final_status"] == "SUCCEEDED"
    assert interfaces(run("dlapp-logs", "--container", "0", "--stdout", application).out) == ["lo"]
    assert status(application)["network"] == "none"
    inside = subprocess.run(
        [BIN / "dlapp-shell", file], input=INTERFACES, text=True, capture_output=True, check=True,
        env={**os.environ, **env}, timeout=240,
    )  # fmt: skip
    assert interfaces(inside.stdout) == ["lo"]


@pytest.mark.docker
@pytest.mark.parametrize(
    ("application", "configured", "is_noted"),
    [
        ({}, "bridge", True),
        ({}, "none", True),
        ({}, "host", False),
        ({"network": "bridge"}, "host", False),
        ({"network": "host"}, "bridge", False),
    ],
)
def test_several_containers_without_a_network_key_get_a_note_on_the_default(
    bridged: Dockerd, tmp_path: Path, application: dict[str, object], configured: str, is_noted: bool
) -> None:
    file = properties(tmp_path, "true", application={"docker_image": IMAGE, **application}, resources={"containers": 2})
    env = {"DLAPP_RUNTIME_DOCKER_HOST": bridged.host, "DLAPP_RUNTIME_DOCKER_NETWORK": configured}
    done = run("dlapp-launcher", "--wait", file, env=env)
    assert done.code == 0, done.err
    lines = [line for line in done.err.splitlines() if "network=host" in line]
    assert len(lines) == is_noted
    assert all(line.startswith(f"note: the 2 containers are in Docker's network {configured} and ") for line in lines)


@pytest.mark.docker
@pytest.mark.parametrize("network", ["bridge", "mine"])
def test_a_network_that_dockerd_does_not_have_is_refused_before_the_submission(
    dockerd: Dockerd, tmp_path: Path, network: str
) -> None:
    file = properties(tmp_path, "true", application={"docker_image": IMAGE, "network": network})
    done = run("dlapp-launcher", file, env={"DLAPP_RUNTIME_DOCKER_HOST": dockerd.host})
    assert done.code == 2
    assert "DL App ID" not in done.out
    problem = f"Docker at {dockerd.host} has no network {network}, it has host, none"
    assert f"{file}:6: application.network: is {network}: {problem}" in done.err.splitlines()
    assert run("dlapp-list").err == "there are no applications\n"


@pytest.mark.docker
def test_a_network_that_node_yaml_forbids_is_refused_before_the_submission(
    dockerd: Dockerd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = NodePolicy(docker=DockerPolicy(networks=("bridge", "none")))
    monkeypatch.setattr("dlapp.node_policy.node_policy", lambda: policy)
    monkeypatch.setenv("DLAPP_RUNTIME_DOCKER_HOST", dockerd.host)
    file = properties(tmp_path, "true", application={"docker_image": IMAGE, "network": "host"})
    with Client() as client, pytest.raises(FileRefused) as refused:
        client.submit(str(file))
    problem = "this node allows bridge, none (docker.networks of /etc/dlapp/node.yaml)"
    assert refused.value.problems == (f"{file}:6: application.network: is host: {problem}",)


@pytest.mark.docker
@pytest.mark.parametrize(
    ("network", "message"),
    [
        ("bridge", "has no network bridge, it has host, none"),
        ("mine", "has no network mine, it has host, none"),
    ],
)
def test_a_shell_gives_the_reason_for_a_refused_network(
    dockerd: Dockerd, tmp_path: Path, network: str, message: str
) -> None:
    file = properties(tmp_path, "true", application={"docker_image": IMAGE, "network": network})
    done = run("dlapp-shell", file, env={"DLAPP_RUNTIME_DOCKER_HOST": dockerd.host})
    assert (done.code, done.out) == (2, ""), done.err
    assert done.err.startswith(f"{file}: application.network: is {network}: ")
    assert message in done.err
    assert not dockerd.containers("label=dlapp.container")


@pytest.mark.parametrize("network", ["container:other", "a b", "/run/netns/x", "host;id", "-x", "ns:/x", ""])
def test_an_invalid_container_network_is_refused_with_its_line(tmp_path: Path, network: str) -> None:
    file = properties(tmp_path, "true", application={"docker_image": IMAGE, "network": network})
    done = run("dlapp-launcher", "--print-spec", file)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"{file}:6: application.network: ")


@pytest.mark.parametrize("network", ["bridge", "none", "mine"])
def test_a_process_of_the_machine_cannot_be_promised_another_network(tmp_path: Path, network: str) -> None:
    file = properties(tmp_path, "true", application={"network": network})
    done = run("dlapp-launcher", file)
    assert done.code == 2
    assert f"application.network: is {network}, but without docker_image" in done.err
    host = run("dlapp-launcher", "--print-spec", properties(tmp_path, "true", application={"network": "host"}))
    assert "network" not in json.loads(host.out)["spec"] or json.loads(host.out)["spec"]["network"] is None
