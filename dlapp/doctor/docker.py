"""Requirements of payloads on the machine where they run, for dlapp-doctor."""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

from dlapp.doctor.findings import REQUEST_TIMEOUT_S, Check, CheckContext, Finding, failed, passed, warned
from dlapp.errors import ConfigError, NotFound
from dlapp.node_policy import FILE as NODE_FILE
from dlapp.node_policy import mount_problem, node_policy
from dlapp.system.network.addresses import address_of_interface
from dlapp.system.network.ports import ephemeral_overlap

if TYPE_CHECKING:
    from dlapp.net.dockerd import DockerFacts


def checks(context: CheckContext) -> list[Check]:
    """Check Docker, and the requirements of a plain process; nothing on a machine that only submits applications."""
    if context.config.cluster != "local" and not context.on_node:
        return []
    return [
        Check("docker", functools.partial(_docker, context)),
        Check("docker.gpus", functools.partial(_gpu_mode, context)),
        Check("node", _node),
        Check("payload", _shell),
    ]


def _client(context: CheckContext) -> DockerFacts:
    host = context.config.runtime.docker.host
    if context.on_node:
        from dlapp.net.dockerd import Dockerd

        return Dockerd(host, REQUEST_TIMEOUT_S)  # the archive for nodes does not have the docker package
    from dlapp.runtime.docker.client import DockerClient

    return DockerClient(host, REQUEST_TIMEOUT_S)


def _docker(context: CheckContext) -> Iterator[Finding]:
    host = context.config.runtime.docker.host
    needed = "only applications with a docker_image need it"
    if not host.startswith("unix://"):
        yield failed("docker", f"{host}: only this machine's dockerd is used", "set runtime.docker.host to unix:///…")
        return
    socket = host.removeprefix("unix://")
    if not os.access(socket, os.R_OK | os.W_OK):
        from dlapp.application.notes import other_docker

        if not os.path.exists(socket):
            found, repair = f"{socket} is not there", "start dockerd or set runtime.docker.host"
        else:
            found = f"{socket}: permission denied"
            repair = "let this user use it (it is root on this machine): the group docker"
        yield warned("docker", found, "; ".join(filter(None, (other_docker(host, os.environ), repair, needed))))
        return
    from dlapp.net.dockerd import DockerError

    try:
        version = _client(context).version()
    except DockerError as error:
        yield failed("docker", f"{host} does not answer: {str(error).partition(chr(10))[0]}", "start dockerd")
        return
    from dlapp.runtime.gpu.facts import podman_version

    who = f"Podman {podman}" if (podman := podman_version(version)) else f"Docker {version.get('Version')}"
    yield passed("docker", f"{who}, interface {version.get('ApiVersion')}, at {host}")


def _gpu_mode(context: CheckContext) -> Iterator[Finding]:
    """Yield the mode in which containers get their GPUs here, and the reason."""
    from dlapp.net.dockerd import DockerError
    from dlapp.runtime.gpu.facts import driver_nodes, facts_of
    from dlapp.runtime.gpu.modes import choose_mode

    configured = context.config.runtime.docker
    if not configured.host.startswith("unix://"):
        return
    try:
        allowed = node_policy().docker.gpu_modes
        facts = facts_of(_client(context))
    except (ConfigError, DockerError):
        return  # the checks of the operator's file and of Docker report it
    choice = choose_mode(configured.gpu_mode, facts, (), allowed=allowed)
    if not choice.problem:
        yield passed("docker.gpus", f"{choice.mode}: {choice.reason}")
    elif configured.gpu_mode in ("auto", "none") and not driver_nodes():
        yield passed("docker.gpus", "none: this machine has no NVIDIA GPU")
    elif configured.gpu_mode == "none":
        yield passed("docker.gpus", "none, as configured")
    else:
        yield failed("docker.gpus", choice.problem, "docs/docker.md says what each way needs")


def _node() -> Iterator[Finding]:
    """Check the operator's file, if it exists; `dlapp.doctor.findings.run_checks` reports its errors."""
    policy = node_policy()
    if os.path.exists(NODE_FILE):
        docker = policy.docker
        mounts = ", ".join(one.path for one in docker.mounts) or "none"
        words = f"networks {', '.join(docker.networks)}; GPUs by {', '.join(docker.gpu_modes)}; mounts {mounts}"
        yield passed("node", f"{NODE_FILE}: {words}")
        for one in docker.mounts:
            if os.path.exists(one.path) and (problem := mount_problem(one)):
                yield warned(
                    "node", f"the mount is left out: {problem}", "let only root write the directories above it"
                )
    else:
        yield passed("node", f"no {NODE_FILE}: the strict defaults hold")
    if (own := ephemeral_overlap(policy.ports)) is not None:
        yield warned(
            "node.ports",
            f"the ports {policy.ports} for programs overlap with those that the kernel gives to any client ({own})",
            f"choose others (ports of {NODE_FILE}), or sysctl net.ipv4.ip_local_reserved_ports={policy.ports}",
        )
    if policy.network_interface is not None:
        try:
            address = address_of_interface(policy.network_interface)
            yield passed("node.interface", f"{policy.network_interface} has {address}")
        except NotFound as error:
            yield failed("node.interface", f"{error} (network_interface of {NODE_FILE})")


def _shell() -> Iterator[Finding]:
    bash = shutil.which("bash")
    if bash is None:
        yield warned("payload.bash", "there is no bash", "a script without a first line #!… is run by sh")
    else:
        yield passed("payload.bash", bash)
