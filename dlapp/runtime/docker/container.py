"""A container as a value, and its restrictions.

Its limits are the memory and cpus of its grant, a number of processes, and no privileges: no capabilities for an
ordinary user, no way to gain any, no devices except its GPUs, no mounts except those listed here and those of the
operator's file. Only image, variables and arguments come from a properties file.

It is sent to dockerd as JSON (`as_json`), or as arguments of the host command ``nvidia-docker create``
(`as_arguments`).
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from dlapp import node_policy
from dlapp.net.dockerd import Dockerd, DockerFacts, DockerSilent
from dlapp.node_policy import DockerPolicy
from dlapp.runtime.gpu.modes import GpuPart
from dlapp.runtime.payload import PayloadError
from dlapp.system.processes.proc import read_proc, status_fields
from dlapp.value import Value, field
from dlapp.values.messages import Fault
from dlapp.values.spec import Resources

UNLIMITED = -1
ALWAYS_THERE = ("host", "none")
"""Networks that every dockerd has."""
_STACK_BYTES = 64 << 20
"""Stack size that NVIDIA's guides for NCCL and PyTorch require, in addition to unlimited locked memory."""
_CAP_SYS_RESOURCE = 1 << 24
_MIN_SHM_BYTES = 64 << 20
"""Docker's own default."""
NO_USE_TO_ROOT = ("AUDIT_WRITE", "MKNOD", "NET_RAW", "SETFCAP")
"""Capabilities in Docker's default set that no payload of root needs."""


class Bind(NamedTuple):
    """A path of the host, and its path in the container."""

    source: str
    target: str
    read_only: bool = False


class ContainerSpec(Value, kw_only=True):
    """Complete description of a container.

    Args:
        entrypoint, command: executed in it, below Docker's init.
        ulimits: name -> soft and hard.
        groups: supplementary groups, by number.
    """

    name: str
    image: str
    entrypoint: tuple[str, ...]
    command: tuple[str, ...]
    env: dict[str, str]
    labels: dict[str, str]
    working_dir: str
    binds: tuple[Bind, ...]
    network: str
    memory_bytes: int
    cpus: int
    shm_bytes: int
    pids_limit: int
    gpus: GpuPart
    ulimits: dict[str, tuple[int, int]] = field(default_factory=dict)
    drop: tuple[str, ...] = ("ALL",)
    user: str = ""
    groups: tuple[int, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the body of Docker's ContainerCreate."""
        env = {**self.env, **self.gpus.env}
        return {
            "Image": self.image,
            "Entrypoint": list(self.entrypoint),
            "Cmd": list(self.command),
            "User": self.user,
            "Env": [f"{name}={value}" for name, value in env.items()],
            "WorkingDir": self.working_dir,
            "Labels": self.labels,
            "HostConfig": {
                "Mounts": [
                    {"Type": "bind", "Source": one.source, "Target": one.target, "ReadOnly": one.read_only}
                    for one in self._all_binds()
                ],
                "Init": True,
                "NetworkMode": self.network,
                "Memory": self.memory_bytes,
                "MemorySwap": self.memory_bytes,
                "NanoCpus": self.cpus * 1_000_000_000,
                "ShmSize": self.shm_bytes,
                "PidsLimit": self.pids_limit,
                "Ulimits": [{"Name": name, "Soft": soft, "Hard": hard} for name, (soft, hard) in self.ulimits.items()],
                "CapDrop": list(self.drop),
                "GroupAdd": [str(one) for one in self.groups],
                "SecurityOpt": ["no-new-privileges"],
                # We keep the logs in files; another copy by Docker would only cost time and space.
                "LogConfig": {"Type": "none", "Config": {}},
                "DeviceRequests": list(self.gpus.requests),
                "Devices": [
                    {"PathOnHost": path, "PathInContainer": path, "CgroupPermissions": "rwm"}
                    for path in self.gpus.nodes
                ],
                **({"Runtime": self.gpus.runtime} if self.gpus.runtime else {}),
            },
        }

    def as_arguments(self, env_file: str) -> list[str]:
        """Return the arguments of ``nvidia-docker`` that create it. Flag and value are separate arguments, as version 1
        requires.

        Args:
            env_file: contains `lines_of_env`; variables that such a file cannot hold are passed in the command's
                environment.
        """
        words = ["create", f"--name={self.name}", f"--user={self.user}", f"--workdir={self.working_dir}"]
        words += [f"--label={name}={value}" for name, value in self.labels.items()]
        words += [f"--env-file={env_file}", *(f"--env={name}" for name in self.multiline_env())]
        for one in self._all_binds():
            words.append(f"--mount={_csv('type=bind', f'source={one.source}', f'target={one.target}')}")
            words[-1] += ",readonly" if one.read_only else ""
        words += ["--init=true", f"--net={self.network}", f"--memory={self.memory_bytes}b"]
        words += [f"--memory-swap={self.memory_bytes}b", f"--cpus={self.cpus}", f"--shm-size={self.shm_bytes}b"]
        words += [f"--pids-limit={self.pids_limit}", "--security-opt=no-new-privileges", "--log-driver=none"]
        words += [f"--ulimit={name}={soft}:{hard}" for name, (soft, hard) in self.ulimits.items()]
        words += [f"--cap-drop={name}" for name in self.drop]
        words += [f"--group-add={one}" for one in self.groups]
        words.append(f"--entrypoint={self.entrypoint[0]}")
        return [*words, self.image, *self.entrypoint[1:], *self.command]

    def lines_of_env(self) -> str:
        """Return the variables as a file for Docker's --env-file: one line each, with the value unquoted."""
        odd = self.multiline_env()
        env = {**self.env, **self.gpus.env}
        return "".join(f"{name}={value}\n" for name, value in env.items() if name not in odd)

    def multiline_env(self) -> dict[str, str]:
        """Return the variables that contain a line end."""
        return {name: value for name, value in {**self.env, **self.gpus.env}.items() if "\n" in value or "\r" in value}

    def _all_binds(self) -> list[Bind]:
        return [*self.binds, *(Bind(source, target, True) for source, target in self.gpus.mounts)]


def _csv(*fields: str) -> str:
    quoted = ('"' + field.replace('"', '""') + '"' if any(c in field for c in ',"\n\r') else field for field in fields)
    return ",".join(quoted)


# ---- restrictions ----


def missing_network(docker: DockerFacts, network: str) -> str:
    """Return why this dockerd can connect no container to a network; empty if it can.

    Raises:
        DockerRefused, DockerSilent: dockerd refused or did not answer.
    """
    if network in ALWAYS_THERE:
        return ""
    names = docker.networks()
    # Podman's default network has another name; Podman accepts "bridge" for it.
    if network in names or (network == "bridge" and "podman" in names):
        return ""
    return f"Docker at {docker.host} has no network {network}, it has {', '.join(sorted(names))}"


def forbidden_network(policy: DockerPolicy, network: str) -> str:
    """Return why this node's operator does not allow a network; empty if it is allowed."""
    if network in policy.networks:
        return ""
    allowed = ", ".join(policy.networks) or "none of them"
    return f"this node allows {allowed} (docker.networks of {node_policy.FILE})"


def isolation_fields(
    docker: Dockerd, resources: Resources, network: str, policy: DockerPolicy, *, as_submitter: bool
) -> dict[str, Any]:
    """Return the fields of a `ContainerSpec` that the grant, the user and the operator determine.

    Args:
        docker: the daemon of this machine.
        resources: granted memory and vcores.
        network: requested by the user.
        policy: what the operator allows.
        as_submitter: whether this process runs as the submitting user, so that its groups are that user's.

    Raises:
        PayloadError: the network is not allowed on this node, or does not exist. DockerRefused, DockerSilent.
    """
    if problem := forbidden_network(policy, network) or missing_network(docker, network):
        why = "[application], runtime.docker.network, or host for a role with ports"
        raise PayloadError(Fault.NODE, f"network={network} ({why}): {problem}")
    memory = resources.memory_mib << 20
    return {
        "network": network,
        "memory_bytes": memory,
        # Docker refuses more cpus than the machine has; vcores are shares of a node, and may exceed them.
        "cpus": min(resources.vcores, os.cpu_count() or 1),
        # Its pages count as memory of the container; PyTorch's data loaders pass their batches through it.
        "shm_bytes": max(memory * policy.shm_percent // 100, min(_MIN_SHM_BYTES, memory)),
        "pids_limit": policy.pids_limit,
        "ulimits": _ulimits(docker),
        "drop": ("ALL",) if os.getuid() else NO_USE_TO_ROOT,
        "user": f"{os.getuid()}:{os.getgid()}",
        "groups": _supplementary_groups(docker) if as_submitter else (),
    }


def _supplementary_groups(docker: Dockerd) -> tuple[int, ...]:
    """Return the supplementary groups of this process that a container of its user also gets.

    Root's group and that of Docker's socket are excluded: their members have root's rights on the machine. None if
    Docker runs rootless, because the group ids are mapped to others there.
    """
    try:
        socket = os.stat(docker.path)
    except OSError as error:
        raise DockerSilent(f"{docker.path}: {error.strerror}") from error
    if socket.st_uid != 0:
        return ()
    return tuple(sorted(set(os.getgroups()) - {0, os.getgid(), socket.st_gid}))


def operators_binds(policy: DockerPolicy, note: Callable[[str], None] = lambda _: None) -> tuple[Bind, ...]:
    """Return the operator's mounts for every container. Omit missing ones, and, with a note, links to elsewhere."""
    binds = []
    for one in policy.mounts:
        # Another user's link in a sticky directory cannot be followed; it is named in the note (proc(5),
        # protected_symlinks).
        if not os.path.lexists(one.path):
            continue
        if problem := node_policy.mount_problem(one):
            note(f"a mount is omitted (docker.mounts of {node_policy.FILE}): {problem}")
        elif os.path.exists(one.path):
            binds.append(Bind(one.path, one.path, not one.writable))
    return tuple(binds)


def _ulimits(docker: Dockerd) -> dict[str, tuple[int, int]]:
    """Return the limits for locked memory and stack that NCCL and Caffe need, as far as dockerd may raise them; our own
    limit for open files."""
    pid = docker.process_id()
    most = {"locked memory": UNLIMITED, "stack size": UNLIMITED}
    if pid is not None and not _may_raise_limits(pid):
        # With higher limits a container would not start at all; dockerd can always pass on its own.
        most |= _hard_limits(pid)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    locked, stack = most["locked memory"], most["stack size"]
    soft_stack = _STACK_BYTES if stack == UNLIMITED else min(_STACK_BYTES, stack)
    return {"memlock": (locked, locked), "stack": (soft_stack, stack), "nofile": (soft, hard)}


def _hard_limits(pid: int) -> dict[str, int]:
    """Return the hard limits of a process. Source: proc(5), /proc/pid/limits; unlike prlimit(2) it is readable for
    other users' processes."""
    found = {}
    for line in read_proc(pid, "limits").decode("ascii").splitlines():
        # Max locked memory         8388608              8388608              bytes
        name, hard = line[:26].strip().removeprefix("Max ").lower(), line[26:].split()[1]
        found[name] = int(hard) if hard.isdigit() else UNLIMITED
    return {name: found[name] for name in ("locked memory", "stack size") if name in found}


def _may_raise_limits(pid: int) -> bool:
    words = status_fields(pid, "CapEff")
    return not words or bool(int(words[0], 16) & _CAP_SYS_RESOURCE)


def image_env(image: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables that an image sets, from dockerd's description of it."""
    entries = (image.get("Config") or {}).get("Env") or ()
    return dict(entry.partition("=")[::2] for entry in entries)


def image_entrypoint(image: Mapping[str, Any]) -> list[str]:
    """Return the ENTRYPOINT of an image, from dockerd's description of it; empty if it has none."""
    return list((image.get("Config") or {}).get("Entrypoint") or ())
