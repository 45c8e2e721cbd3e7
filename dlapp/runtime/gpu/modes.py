"""Modes in which a container gets its GPUs: one for each generation of Docker and NVIDIA's tools.

    cdi            a device request with names of nvidia.com/gpu     Docker 25.0 with the feature, 28.2; Podman 5.4
    gpus           a device request with uuids, as --gpus            Docker 19.03, and NVIDIA's hook on dockerd's PATH
    runtime        the runtime "nvidia", NVIDIA_VISIBLE_DEVICES      nvidia-docker 2 and NVIDIA's toolkits since
    nvidia-docker  the host command nvidia-docker, NV_GPU            1.0 of 2017, and the wrapper of version 2
    devices        device nodes and the driver's libraries, by us    anything
    none           no GPU

`auto` is the first mode that is available for the leased GPUs, and has the requested driver capabilities. Decisions are
pure functions of `Facts`; the resulting settings of a container are a `GpuPart`. The GPUs are named by uuid if the mode
allows, and what the container really sees is checked before its payload starts (`dlapp.runtime.gpu.verification`).

Source: Docker Engine API, HostConfig.DeviceRequests; moby daemon/nvidia_linux.go, daemon/cdi.go; NVIDIA container
toolkit, "Specialized configurations"; nvidia-docker 1.0.1 and 2.0.2.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from dlapp.node_policy import GPU_MODES
from dlapp.runtime.payload import PayloadDevice
from dlapp.values.program.driver_capabilities import BASE, CAPABILITIES, VARIABLE, known_capabilities

CDI_KIND = "nvidia.com/gpu"
HOOKS = ("nvidia-container-runtime-hook", "nvidia-cdi-hook")
NVIDIA_DOCKER = "nvidia-docker"
DRIVER_DIRECTORY = "/dlapp/driver"
UVM = "/dev/nvidia-uvm"
"""Device node without which CUDA fails with error 999. The driver's package does not make it at boot."""
IMEX_CHANNEL = "/dev/nvidia-caps-imex-channels/channel0"
"""The channel of memory between nodes that the driver makes for all processes of a node; further ones are an operator's
to give. A MIG device cannot use it."""
_DEVICE_NODE = re.compile(r"/dev/nvidia\d+")
_STORAGE_NODE = re.compile(r"/dev/nvidia-fs\d+")
_CONTROL_NODES = ("/dev/nvidiactl", UVM, "/dev/nvidia-uvm-tools")
_OF_LIBRARIES = ("compute", "utility", "video", "ngx")
"""Driver capabilities that consist of libraries alone, which the mode ``devices`` mounts."""


class Facts(NamedTuple):
    """Facts about Docker and NVIDIA's tools on this machine, read without side effects.

    Args:
        version, api: of dockerd; ``api`` as (1, 41).
        podman: version of Podman, if it serves the socket; empty for Docker.
        runtimes: names of dockerd's runtimes.
        cdi_directories: in which dockerd looks for CDI specifications; empty if it does not.
        cdi_names: devices of `CDI_KIND`; None if a specification cannot be read.
        programs: name -> path, of NVIDIA's programs that were found.
        nodes: device nodes of NVIDIA's driver.
        mig_nodes: the device node that opens a GPU instance (``gpu<minor>/gi<number>``) or a compute instance in it
            (``gpu<minor>/gi<number>/ci<number>``), whether it exists or not.
        libraries: the driver's files that programs load, for the mode ``devices``.
    """

    version: str = ""
    api: tuple[int, int] = (0, 0)
    podman: str = ""
    runtimes: frozenset[str] = frozenset()
    cdi_directories: tuple[str, ...] = ()
    cdi_names: frozenset[str] | None = frozenset()
    programs: Mapping[str, str] = {}
    nodes: tuple[str, ...] = ()
    mig_nodes: Mapping[str, str] = {}
    libraries: tuple[str, ...] = ()


class Choice(NamedTuple):
    """The chosen mode, and the reason; ``problem``: why there is none."""

    mode: str
    reason: str
    problem: str = ""


class GpuPart(NamedTuple):
    """Settings of a container for its GPUs.

    Args:
        env: overrides all other variables.
        mounts: (path on the host, path inside), read-only.
        nodes: device nodes; with ``command_env``, those that version 1 of that command must add.
        requests: HostConfig.DeviceRequests.
        runtime: HostConfig.Runtime; empty for Docker's default.
        command_env: for the host command ``nvidia-docker``.
    """

    env: dict[str, str]
    mounts: tuple[tuple[str, str], ...] = ()
    nodes: tuple[str, ...] = ()
    requests: tuple[dict[str, Any], ...] = ()
    runtime: str = ""
    command_env: Mapping[str, str] | None = None


# ---- choice of the mode ----


def choose_mode(
    configured: str,
    facts: Facts,
    devices: Sequence[PayloadDevice],
    *,
    allowed: Collection[str] = GPU_MODES,
    capabilities: Collection[str] = (),
) -> Choice:
    """Return the mode for these GPUs; without GPUs, for any that the machine may have.

    Args:
        configured: value of ``runtime.docker.gpu_mode``.
        facts: about this Docker.
        devices: the devices of the lease.
        allowed: modes that this node's operator allows.
        capabilities: driver capabilities that the user requested.
    """
    if configured == "none":
        return Choice("none", "as configured", "runtime.docker.gpu_mode is none: containers get no GPUs here")
    if configured != "auto":
        problem = unavailable_reason(configured, facts, devices, capabilities, by_order=True)
        if configured not in allowed:
            problem = f"this node allows only {', '.join(allowed) or 'none'} (docker.gpu_modes of node.yaml)"
        return Choice(configured, "as configured", problem and f"runtime.docker.gpu_mode is {configured}: {problem}")
    tried: list[str] = []
    for mode in GPU_MODES:
        problem = (
            unavailable_reason(mode, facts, devices, capabilities)
            if mode in allowed
            else "not allowed on this node (node.yaml)"
        )
        if not problem:
            return Choice(mode, "; ".join([_choice_reason(mode, facts), *tried]))
        tried.append(f"{mode}: {problem}")
    return Choice("none", "; ".join(tried), f"no way to give a container GPUs is there: {'; '.join(tried)}")


def unavailable_reason(
    mode: str,
    facts: Facts,
    devices: Sequence[PayloadDevice],
    capabilities: Collection[str] = (),
    *,
    by_order: bool = False,
) -> str:
    """Return why a mode is not available; empty if it is.

    Args:
        mode: its name.
        facts: about this Docker.
        devices: the devices of the lease.
        capabilities: driver capabilities that the user requested.
        by_order: whether it is configured; then facts that only dockerd knows are not checked: it refuses before a
            payload starts.
    """
    if mode == "devices" and (more := [name for name in capabilities if name not in _OF_LIBRARIES]):
        return f"it has no {', '.join(more)}, only {', '.join(_OF_LIBRARIES)}"
    return _UNAVAILABLE_REASONS[mode](facts, devices, by_order)


def _cdi(facts: Facts, devices: Sequence[PayloadDevice], by_order: bool) -> str:
    if facts.podman and _number(facts.podman) < (5, 4):
        return f"Podman {facts.podman} ignores GPU requests without an error; 5.4 does not"
    if not facts.podman and facts.api < (1, 44):
        return f"Docker {facts.version} has no CDI; 25.0 has"
    if not facts.podman and not facts.cdi_directories:
        return 'CDI is off in dockerd ("features": {"cdi": true} in its daemon.json)'
    if facts.cdi_names is None:
        return "" if by_order else "a CDI specification cannot be read"
    if not facts.cdi_names:
        where = ", ".join(facts.cdi_directories) or "/etc/cdi"
        return f"no {CDI_KIND} in {where}; nvidia-ctk cdi generate makes the specification"
    missing = [device.uuid for device in devices if _cdi_name(device, facts.cdi_names) is None]
    if missing:
        return f"{CDI_KIND} has no {missing[0]}; nvidia-ctk cdi generate makes the specification anew"
    return ""


def _gpus(facts: Facts, _leased: Sequence[PayloadDevice], by_order: bool) -> str:
    if facts.podman:
        return f"Podman {facts.podman} ignores it"
    if facts.api < (1, 40):
        return f"Docker {facts.version} has no device requests; 19.03 has"
    if not by_order and not _device_hook(facts):
        return f"no {HOOKS[0]} on PATH"
    return ""


def _device_hook(facts: Facts) -> str:
    """Return the program with which dockerd executes device requests, if found; empty if not.

    The second one alone comes with nvidia-container-toolkit-base, and no Docker before 29.2 looks for it.
    """
    known = HOOKS if _number(facts.version) >= (29, 2) else HOOKS[:1]
    return next((facts.programs[hook] for hook in known if hook in facts.programs), "")


def _runtime(facts: Facts, _leased: Sequence[PayloadDevice], _by_order: bool) -> str:
    if facts.podman:
        return f"Podman {facts.podman} ignores it"
    return "" if "nvidia" in facts.runtimes else "dockerd has no runtime nvidia (nvidia-ctk runtime configure adds it)"


def _nvidia_docker(facts: Facts, _leased: Sequence[PayloadDevice], _by_order: bool) -> str:
    return "" if NVIDIA_DOCKER in facts.programs else f"no {NVIDIA_DOCKER} on PATH"


def _devices(facts: Facts, devices: Sequence[PayloadDevice], _by_order: bool) -> str:
    if _CONTROL_NODES[0] not in facts.nodes:
        return f"no {_CONTROL_NODES[0]}"
    if UVM not in facts.nodes:
        return f"no {UVM}, without which CUDA fails (nvidia-modprobe -u -c=0 as root makes it)"
    for device in devices:
        if f"/dev/nvidia{device.minor}" not in facts.nodes:
            return f"no /dev/nvidia{device.minor} ({device.uuid})"
        for capability in mig_capabilities(device):
            node = facts.mig_nodes.get(capability, "")
            if not node:
                return f"no capability {capability} in /proc/driver/nvidia/capabilities ({device.uuid})"
            if node not in facts.nodes:
                return f"no {node} ({device.uuid}; nvidia-modprobe -f of its file in /proc as root makes it)"
    return "" if facts.libraries else "the driver's libraries are not found (ldconfig -p)"


def mig_capabilities(device: PayloadDevice) -> tuple[str, ...]:
    """Return the keys in `Facts.mig_nodes` of the capabilities that open a MIG device, and no other one of its GPU:
    those of its GPU instance and of its compute instance. None for a whole GPU.

    Source: NVIDIA MIG User Guide, "Device Nodes and Capabilities".
    """
    if device.mig < 0:
        return ()
    instance = f"gpu{device.minor}/gi{device.gpu_instance}"
    return instance, f"{instance}/ci{device.compute_instance}"


_UNAVAILABLE_REASONS: dict[str, Callable[[Facts, Sequence[PayloadDevice], bool], str]] = {
    "cdi": _cdi,
    "gpus": _gpus,
    "runtime": _runtime,
    "nvidia-docker": _nvidia_docker,
    "devices": _devices,
}


def _choice_reason(mode: str, facts: Facts) -> str:
    who = f"Podman {facts.podman}" if facts.podman else f"Docker {facts.version}"
    match mode:
        case "cdi":
            return f"{who} has CDI, with {len(facts.cdi_names or ())} names of {CDI_KIND}"
        case "gpus":
            return f"{who} has device requests, and {_device_hook(facts)}"
        case "runtime":
            return f"{who} has the runtime nvidia"
        case "nvidia-docker":
            return f"there is {facts.programs[NVIDIA_DOCKER]}"
    return "the driver's device nodes and libraries are there"


def _number(version: str) -> tuple[int, ...]:
    parts = version.partition("-")[0].split(".")
    return tuple(int(part) for part in parts if part.isdigit())


def _cdi_name(device: PayloadDevice, names: Collection[str]) -> str | None:
    return next((name for name in (device.uuid, device.place) if name in names), None)


# ---- settings of a container ----


def granted_capabilities(env: Mapping[str, str], allowed: Collection[str] | None) -> tuple[str, ...]:
    """Return the driver capabilities of a container.

    Args:
        env: its variables: those of the image, replaced by the user's.
        allowed: those that the node's operator allows; None: all. A container always has `BASE`.
    """
    wanted = known_capabilities(env.get(VARIABLE, ""))
    return tuple(
        name for name in CAPABILITIES if name in BASE or (name in wanted and (allowed is None or name in allowed))
    )


def part_for(
    mode: str,
    devices: Sequence[PayloadDevice],
    facts: Facts,
    env: Mapping[str, str],
    *,
    allowed: Collection[str] | None = None,
) -> GpuPart:
    """Return a container's settings for its GPUs. Without GPUs it gets none, whatever its image requests.

    Args:
        mode: one that `choose_mode` has found available; any if there are no GPUs.
        devices: the devices of the lease.
        facts: about this Docker.
        env: the variables of the image, replaced by the user's: they may name driver capabilities, and paths of
            libraries.
        allowed: driver capabilities that the node's operator allows; None: all.
    """
    if not devices:
        # Many images set "all", and Docker's default runtime may obey. "void" means plain runc.
        return GpuPart({"NVIDIA_VISIBLE_DEVICES": "void"})
    uuids = [device.uuid for device in devices]
    # "all" in full: Docker and old tools do not know it, or mean fewer by it.
    capabilities = ",".join(granted_capabilities(env, allowed))
    named = {"NVIDIA_VISIBLE_DEVICES": ",".join(uuids), VARIABLE: capabilities}
    match mode:
        case "cdi":
            names = [f"{CDI_KIND}={_cdi_name(device, facts.cdi_names or ()) or device.uuid}" for device in devices]
            # Without "void", a default runtime nvidia would add the GPUs that the image requests.
            return GpuPart({"NVIDIA_VISIBLE_DEVICES": "void"}, requests=(_request("cdi", names, []),))
        case "gpus":
            # dockerd appends the variable with the same value; in the container, the first of two would be the image's.
            # Capabilities in the request would replace our variable, and Docker knows six of the seven: a request with
            # "ngx" fails, and in some versions one with any.
            return GpuPart(named, requests=(_request("nvidia", uuids, [["gpu"]]),))
        case "runtime":
            return GpuPart(named, runtime="nvidia")
        case "nvidia-docker":
            # Version 1 adds device nodes and a volume, version 2 the runtime and the variable.
            nodes = tuple(f"/dev/nvidia{device.minor}" for device in devices if device.minor >= 0)
            return GpuPart(named, nodes=nodes, command_env={"NV_GPU": ",".join(uuids)})
    return _part_of_nodes(devices, facts, env.get("LD_LIBRARY_PATH", ""))


def _part_of_nodes(devices: Sequence[PayloadDevice], facts: Facts, library_path: str) -> GpuPart:
    """Return the settings of the mode ``devices``; ``library_path`` is searched after the driver's directory."""
    shared = [node for node in facts.nodes if _STORAGE_NODE.fullmatch(node)]
    if any(device.mig < 0 for device in devices) and IMEX_CHANNEL in facts.nodes:
        shared.append(IMEX_CHANNEL)
    of_mig = (facts.mig_nodes[name] for device in devices for name in mig_capabilities(device))
    nodes = tuple(
        dict.fromkeys(
            (
                *(node for node in _CONTROL_NODES if node in facts.nodes),
                *(f"/dev/nvidia{device.minor}" for device in devices),
                *of_mig,
                *shared,
            )
        )
    )
    mounts = tuple((path, _place_of(path.rpartition("/")[2])) for path in facts.libraries)
    search = ":".join(filter(None, (DRIVER_DIRECTORY, library_path)))
    return GpuPart({"NVIDIA_VISIBLE_DEVICES": "void", "LD_LIBRARY_PATH": search}, mounts=mounts, nodes=nodes)


def _place_of(file: str) -> str:
    """Return the path of a driver file in the container; a program is where NVIDIA's own tools put it, because scripts
    call it."""
    return f"/usr/bin/{file}" if file == "nvidia-smi" else f"{DRIVER_DIRECTORY}/{file}"


def _request(driver: str, ids: list[str], capabilities: list[list[str]]) -> dict[str, Any]:
    return {"Driver": driver, "Count": 0, "DeviceIDs": ids, "Capabilities": capabilities, "Options": {}}


# ---- verification of the settings ----


def missing_gpu_settings(part: GpuPart, host_config: Mapping[str, Any], *, podman: str = "") -> str:
    """Return which parts of a `GpuPart` a created container lacks, by its HostConfig; empty if none.

    Args:
        podman: its version; it executes device requests and does not show them (seen: 5.4.2).
    """
    asked = sorted(one for request in part.requests for one in request["DeviceIDs"])
    got = sorted(one for request in host_config.get("DeviceRequests") or () for one in request.get("DeviceIDs") or ())
    if asked != got and not podman:
        return f"it was asked for {', '.join(asked) or 'no devices'} and took {', '.join(got) or 'none of it'}"
    if part.runtime and host_config.get("Runtime") != part.runtime:
        return f"it was asked for the runtime {part.runtime} and took {host_config.get('Runtime') or 'none'}"
    nodes = {one.get("PathOnHost") for one in host_config.get("Devices") or ()}
    if part.command_env is not None:
        return _missing_nvidia_docker_settings(part, host_config, nodes)
    if missing := [node for node in part.nodes if node not in nodes]:
        return f"it was asked for {missing[0]} and left it out"
    return ""


def _missing_nvidia_docker_settings(part: GpuPart, host_config: Mapping[str, Any], nodes: Collection[str]) -> str:
    """Return the same for a container of the command nvidia-docker, which passes on unknown settings."""
    if host_config.get("Runtime") == "nvidia":
        return ""
    if missing := [node for node in part.nodes if node not in nodes]:
        return f"{NVIDIA_DOCKER} added no {missing[0]} (version 1 needs the image's label com.nvidia.volumes.needed)"
    if extra := sorted(node for node in nodes if _DEVICE_NODE.fullmatch(node) and node not in part.nodes):
        return f"{NVIDIA_DOCKER} added {extra[0]}, which is another's"
    return "" if part.nodes or nodes else f"{NVIDIA_DOCKER} added no GPU"
