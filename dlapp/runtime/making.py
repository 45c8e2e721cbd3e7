"""What a payload's container and a shell's are made with: settings, paths inside, the way to the GPUs, accounts."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from dlapp.control import Fault
from dlapp.node import DockerPolicy
from dlapp.runtime import accounts
from dlapp.runtime import container as containers
from dlapp.runtime.container import Bind
from dlapp.runtime.dockerd import Dockerd, DockerRefused, DockerSilent
from dlapp.runtime.gpu_facts import facts_of
from dlapp.runtime.gpu_modes import NVIDIA_DOCKER, Choice, Facts, choose_mode, not_taken
from dlapp.runtime.payload import Card, PayloadError

WORKSPACE = "/workspace"
HOME = "/dlapp/home"
TMP = "/dlapp/tmp"
LIFE = "/dlapp/life"


class DockerSettings(NamedTuple):
    """What the configuration says of Docker, as it travels to a task.

    Args:
        host: dockerd's address, ``unix:///var/run/docker.sock``; it must be this machine's.
        network: Docker's network mode.
        gpu_mode: one of `dlapp.node.GPU_MODES`, ``auto`` or ``none``.
        lock_dir: a directory of the machine in which tasks wait for each other's pulls.
    """

    host: str
    network: str
    gpu_mode: str = "auto"
    lock_dir: str = "/run/lock/dlapp"

    @classmethod
    def of(cls, runtime: Mapping[str, str]) -> DockerSettings:
        """From ``runtime`` of a task's launch.json; what it does not name is as by default."""
        names = {f"docker_{name}": name for name in cls._fields}
        return cls(**{names[key]: value for key, value in runtime.items() if key in names})


@contextlib.contextmanager
def explained(host: str, what: str) -> Iterator[None]:
    """Turn dockerd's refusals and silences into `PayloadError`."""
    try:
        yield
    except DockerRefused as error:
        raise PayloadError(Fault.NODE, f"Docker refused {what}: {error}") from error
    except DockerSilent as error:
        raise PayloadError(
            Fault.NODE, f"Docker at {host} does not answer: {error}; does dockerd run, and may this user use it?"
        ) from error


def chosen_mode(
    docker: Dockerd,
    settings: DockerSettings,
    policy: DockerPolicy,
    cards: Sequence[Card],
    note: Callable[[str], None],
) -> tuple[Choice, Facts]:
    """How the cards get into a container on this machine.

    Raises:
        PayloadError: there is no way, or not the one that is configured.
    """
    if not cards:
        return Choice("none", "no GPU was asked for"), Facts()
    facts = facts_of(docker)
    choice = choose_mode(settings.gpu_mode, facts, cards, allowed=policy.gpu_modes)
    if choice.problem:
        raise PayloadError(Fault.NODE, choice.problem)
    note(f"GPU mode {choice.mode}: {choice.reason}")
    return choice, facts


def make(
    docker: Dockerd, container: containers.Container, facts: Facts, directory: str, note: Callable[[str], None]
) -> None:
    """Make a container in the way that its GPUs need, and see that it was made with them.

    Raises:
        PayloadError: it was not, or nvidia-docker failed; DockerRefused, DockerSilent.
    """
    if container.gpus.command_env is not None:
        from dlapp.runtime import nvidia_docker

        program = facts.programs[NVIDIA_DOCKER]
        nvidia_docker.create(container, program=program, host=docker.host, directory=directory, note=note)
    else:
        docker.create(container.name, container.as_json())
        if not (container.gpus.requests or container.gpus.runtime or container.gpus.nodes):
            return
    if problem := not_taken(container.gpus, docker.inspect(container.name)["HostConfig"], podman=facts.podman):
        raise PayloadError(Fault.NODE, f"the container was not made with its GPUs: {problem}")


def account_binds(known: accounts.Accounts | None, directory: str) -> list[Bind]:
    """What has to be mounted so that our uid has a name; the files are made in ``directory``."""
    binds = []
    for path, content in (known.completed(HOME) if known is not None else {}).items():
        source = os.path.join(directory, os.path.basename(path))
        with open(os.open(source, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644), "wb") as file:
            file.write(content)
        binds.append(Bind(source, path, read_only=True))
    return binds


def add_account(docker: Dockerd, container: str, lock_dir: str, image_id: str) -> None:
    """The same for the first container of an image here, which is made but not started."""
    known = accounts.of_container(docker, container)
    accounts.remember(lock_dir, image_id, known)
    if files := known.completed(HOME):
        docker.write_files(container, {path.lstrip("/"): content for path, content in files.items()})
