"""Reading the facts that `dlapp.runtime.gpu.modes` decides on: two requests to dockerd, some files, no side effects.

The facts are not cached: each container with GPUs reads them again. That costs 16 ms where ``docker run`` takes 470 ms
(dockerd 20.10; 34 ms more to read a specification of eight GPUs, which Docker 25.0 to 28.1 leaves to us). Checking that
a cached result is still valid would cost the same. Settings that dockerd reloads on SIGHUP (its runtimes and features)
change without a new process or version, behind systemd's socket not even its process is visible, and a CDI
specification is rewritten with each change of MIG; the cheapest request that shows all of it is /info, which is this
one. A cache would also have to be separate for each user, since no task may trust another user's file.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from typing import Any

from dlapp.net.dockerd import Dockerd
from dlapp.runtime.gpu.modes import CDI_KIND, HOOKS, NVIDIA_DOCKER, Facts
from dlapp.system.yaml_keys import MAX_FOREIGN_BYTES, plain_yaml

SBIN = ("/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/local/bin", "/usr/bin", "/bin", "/usr/local/nvidia/toolkit")
_PODMAN_CDI = ("/etc/cdi", "/var/run/cdi")
_DRIVER = re.compile(r"lib(cuda|cudadebugger|nvidia-[a-z0-9-]+|nvcuvid|nvoptix)\.so[.0-9]*")
_NOT_FOR_PROGRAMS = re.compile(r"libnvidia-(container|egl|gl|gtk|fbc|encode|vulkan)")
_NODE = re.compile(r"nvidia(\d+|ctl|-uvm|-uvm-tools|-modeset)")


def facts_of(docker: Dockerd) -> Facts:
    """Return the facts about Docker and NVIDIA's tools on this machine.

    Raises:
        DockerRefused, DockerSilent: dockerd refused or did not answer.
    """
    version, info = docker.version(), docker.call("GET", "/info")
    podman = podman_version(version)
    directories = tuple(info.get("CDISpecDirs") or ())
    listed = [str(one.get("ID", "")) for one in info.get("DiscoveredDevices") or () if one.get("Source") == "cdi"]
    if listed:
        own = (one.partition("=")[2] for one in listed if one.startswith(f"{CDI_KIND}="))
        names: frozenset[str] | None = frozenset(own)
    else:
        names = names_in(directories or (_PODMAN_CDI if podman else ()))
    return Facts(
        version=str(version.get("Version", "")),
        api=_pair(str(version.get("ApiVersion", ""))),
        podman=podman,
        runtimes=frozenset(info.get("Runtimes") or ()),
        cdi_directories=directories,
        cdi_names=names,
        programs=programs(),
        nodes=driver_nodes(),
        libraries=driver_libraries(),
    )


def podman_version(version: Mapping[str, Any]) -> str:
    """Return the version of Podman if its Docker interface gave this answer to /version; empty for Docker."""
    for part in version.get("Components") or ():
        if "podman" in str(part.get("Name", "")).lower():
            return str(part.get("Version", ""))
    return ""


def names_in(directories: Iterable[str]) -> frozenset[str] | None:
    """Return the names of `CDI_KIND` in the specifications of these directories; None if one of them cannot be read.

    Source: Container Device Interface, SPEC.md, "CDI JSON Specification".
    """
    names: set[str] = set()
    for directory in directories:
        try:
            files = sorted(os.listdir(directory))
        except FileNotFoundError:
            continue
        except OSError:
            return None
        for file in files:
            if not file.endswith((".yaml", ".json")):
                continue
            try:
                with open(os.path.join(directory, file), "rb") as stream:
                    found = plain_yaml(stream.read(MAX_FOREIGN_BYTES + 1))
                if found["kind"] == CDI_KIND:
                    names.update(str(one["name"]) for one in found["devices"])
            except FileNotFoundError:
                continue  # it is just being rewritten
            except (OSError, ValueError, TypeError, KeyError):
                return None
    return frozenset(names)


def programs(search: str | None = None) -> dict[str, str]:
    """Return NVIDIA's programs that dockerd would find, as far as its PATH can be known."""
    path = os.pathsep.join([search if search is not None else os.environ.get("PATH", ""), *SBIN])
    found = {name: shutil.which(name, path=path) for name in (*HOOKS, NVIDIA_DOCKER)}
    return {name: where for name, where in found.items() if where is not None}


def driver_nodes(directory: str = "/dev") -> tuple[str, ...]:
    """Return the device nodes of NVIDIA's driver."""
    try:
        return tuple(sorted(f"/dev/{name}" for name in os.listdir(directory) if _NODE.fullmatch(name)))
    except OSError:
        return ()


def device_numbers(directory: str = "/dev") -> dict[str, str]:
    """Return the device nodes of GPUs -> their major and minor number, as ``195:4``."""
    found = {}
    for path in driver_nodes(directory):
        name = path.removeprefix("/dev/")
        if name.removeprefix("nvidia").isdigit():
            with contextlib.suppress(OSError):
                number = os.stat(os.path.join(directory, name)).st_rdev
                found[path] = f"{os.major(number)}:{os.minor(number)}"
    return found


def driver_libraries() -> tuple[str, ...]:
    """Return the driver's libraries that programs load, from the loader's cache, and nvidia-smi; empty without
    libcuda.
    """
    ldconfig = shutil.which("ldconfig", path=os.pathsep.join(SBIN))
    if ldconfig is None or not driver_nodes():
        return ()
    done = subprocess.run([ldconfig, "-p"], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=10)
    found: dict[str, str] = {}
    for line in done.stdout.splitlines():
        head, _, path = line.partition(" => ")
        name = head.split(maxsplit=1)[0] if head.split() else ""
        is_ours = "64" in head.partition("(")[2]  # x86-64, AArch64; a 32-bit library has no such flag
        if path and is_ours and _DRIVER.fullmatch(name) and not _NOT_FOR_PROGRAMS.match(name):
            found.setdefault(name, path)
    if not any(name.startswith("libcuda.so") for name in found):
        return ()
    smi = shutil.which("nvidia-smi")
    return (*found.values(), *([smi] if smi else []))


def _pair(version: str) -> tuple[int, int]:
    major, _, minor = version.partition(".")
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else (0, 0)
