"""Factory of the containers of payloads: settings, paths in the container, GPU access, accounts."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence

from dlapp.net.dockerd import Dockerd, DockerNotLocal, DockerRefused, DockerSilent
from dlapp.node_policy import DockerPolicy
from dlapp.runtime.docker import accounts
from dlapp.runtime.docker import container as containers
from dlapp.runtime.docker.container import Bind
from dlapp.runtime.gpu.facts import driver_nodes, facts_of, make_nodes
from dlapp.runtime.gpu.modes import (
    NVIDIA_DOCKER,
    Choice,
    Facts,
    choose_mode,
    mig_capabilities,
    missing_gpu_settings,
)
from dlapp.runtime.payload import PayloadDevice, PayloadError, ServiceAway
from dlapp.values.launch_spec import DOCKER_WORKSPACE, DockerSettings
from dlapp.values.messages import Fault
from dlapp.values.program.driver_capabilities import VARIABLE, known_capabilities

WORKSPACE = DOCKER_WORKSPACE
HOME = "/dlapp/home"
TMP = "/dlapp/tmp"
RUN = "/dlapp/run"
PYTHON = "/dlapp/python"
LIFE = "/dlapp/life"
EXEC = "/dlapp/exec"
_SIGNS_OF_A_RESTART = (
    "connection refused",
    "context canceled",
    "error while dialing",
    "shutting down",
    "transport is closing",
    "ttrpc: closed",
)
"""Parts of dockerd's messages with status 500 while it, or its containerd, is being stopped."""


def open_docker(host: str, timeout_s: float) -> Dockerd:
    """Return the client of this machine's dockerd. Raises PayloadError: the address is not local."""
    try:
        return Dockerd(host, timeout_s)
    except DockerNotLocal as error:
        raise PayloadError(Fault.DATA, str(error)) from error


@contextlib.contextmanager
def explained(host: str, what: str) -> Iterator[None]:
    """Convert dockerd's refusals and timeouts to `PayloadError`."""
    try:
        yield
    except DockerRefused as error:
        is_outage = error.status >= 500 and any(sign in str(error).lower() for sign in _SIGNS_OF_A_RESTART)
        raise PayloadError(
            Fault.NODE, f"Docker refused {what}: {error}", service=f"Docker at {host}" if is_outage else ""
        ) from error
    except DockerSilent as error:
        if error.denied:
            raise PayloadError(Fault.NODE, f"Docker at {host} does not allow this user to connect: {error}") from error
        raise ServiceAway(
            f"Docker at {host}",
            str(error),
            f"Docker at {host} does not answer: {error}; does dockerd run?",
            Fault.NODE,
        ) from error


def chosen_mode(
    docker: Dockerd,
    settings: DockerSettings,
    policy: DockerPolicy,
    devices: Sequence[PayloadDevice],
    env: Mapping[str, str],
    note: Callable[[str], None],
) -> tuple[Choice, Facts]:
    """Choose how a container gets its GPUs on this machine. Make missing device nodes of the driver if no mode works
    without them.

    Args:
        docker: the daemon of this machine.
        settings: contains the configured mode.
        policy: the modes and driver capabilities that the operator allows.
        devices: the devices of the lease.
        env: the user's variables, which may request driver capabilities.
        note: called with a line on the chosen mode and the reason.

    Raises:
        PayloadError: no mode is available, or not the configured one; the operator does not allow a requested driver
            capability.
    """
    if not devices:
        return Choice("none", "no GPU was asked for"), Facts()
    capabilities = known_capabilities(env.get(VARIABLE, ""))
    if problem := policy.forbidden_capabilities(capabilities):
        raise PayloadError(Fault.NODE, f"gpu_capabilities={problem}")
    facts = facts_of(docker)

    def choose() -> Choice:
        return choose_mode(settings.gpu_mode, facts, devices, allowed=policy.gpu_modes, capabilities=capabilities)

    choice = choose()
    if choice.problem and facts.nodes and "devices" in policy.gpu_modes and settings.gpu_mode in ("auto", "devices"):
        make_nodes([name for device in devices for name in mig_capabilities(device)], note)
        facts = facts._replace(nodes=driver_nodes())
        choice = choose()
    if choice.problem:
        raise PayloadError(Fault.NODE, choice.problem)
    note(f"GPU mode {choice.mode}: {choice.reason}")
    return choice, facts


def make(
    docker: Dockerd, container: containers.ContainerSpec, facts: Facts, directory: str, note: Callable[[str], None]
) -> None:
    """Create a container in the mode that its GPUs need, and verify that they were added.

    Args:
        docker: the daemon of this machine.
        container: description of the container.
        facts: about this Docker.
        directory: for files of the container.
        note: called with one line for each notable event.

    Raises:
        PayloadError: the GPUs were not added, or nvidia-docker failed; DockerRefused, DockerSilent.
    """
    if container.gpus.command_env is not None:
        from dlapp.runtime.gpu import nvidia_docker

        program = facts.programs[NVIDIA_DOCKER]
        nvidia_docker.create(container, program=program, host=docker.host, directory=directory, note=note)
    else:
        docker.create(container.name, container.as_json())
        if not (container.gpus.requests or container.gpus.runtime or container.gpus.nodes):
            return
    if problem := missing_gpu_settings(
        container.gpus, docker.inspect(container.name)["HostConfig"], podman=facts.podman
    ):
        raise PayloadError(Fault.NODE, f"the container was not created with its GPUs: {problem}")


def account_binds(known: accounts.Accounts | None, directory: str) -> list[Bind]:
    """Return the mounts that give our uid a name; the files are created in ``directory``."""
    binds = []
    for path, content in (known.completed(HOME) if known is not None else {}).items():
        source = os.path.join(directory, os.path.basename(path))
        with open(os.open(source, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644), "wb") as file:
            file.write(content)
        binds.append(Bind(source, path, read_only=True))
    return binds


def add_account(docker: Dockerd, container: str, lock_dir: str, image_id: str) -> None:
    """Write the user's account to the first container of an image here, which is created but not started.

    Args:
        docker: the daemon of this machine.
        container: its name.
        lock_dir: contains the cached accounts of images.
        image_id: digest of its image.
    """
    known = accounts.of_container(docker, container)
    accounts.write_cached(lock_dir, image_id, known)
    if files := known.completed(HOME):
        docker.write_files(container, {path.lstrip("/"): content for path, content in files.items()})
