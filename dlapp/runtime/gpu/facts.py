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
import glob
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from dlapp.net.dockerd import DockerFacts
from dlapp.runtime.gpu.modes import CDI_KIND, HOOKS, IMEX_CHANNEL, NVIDIA_DOCKER, UVM, Facts
from dlapp.system.yaml_keys import MAX_FOREIGN_BYTES, plain_yaml

SBIN = ("/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/local/bin", "/usr/bin", "/bin", "/usr/local/nvidia/toolkit")
_PODMAN_CDI = ("/etc/cdi", "/var/run/cdi")
_DRIVER = re.compile(r"lib(cuda|cudadebugger|nvidia-[a-z0-9-]+|nvcuvid|nvoptix)\.so[.0-9]*")
_NOT_FOR_PROGRAMS = re.compile(r"libnvidia-(container|egl|gl|gtk|fbc|vulkan)")
_NODE = re.compile(r"nvidia(\d+|ctl|-uvm|-uvm-tools|-modeset|-fs\d+)")
_MIG_NODE = re.compile(r"nvidia-cap\d+")
_MIG_DIRECTORY = "nvidia-caps"
_MIG_FILE = re.compile(r"/(gpu\d+)/mig/(gi\d+(?:/ci\d+)?)/access")
_MIG_MINOR = re.compile(rb"^DeviceFileMinor:\s*(\d+)$", re.MULTILINE)
_CAPABILITIES = "/proc/driver/nvidia/capabilities"
_MAX_PROC_BYTES = 4096
"""The driver's files have three lines."""
_MODPROBE = "nvidia-modprobe"
_MODPROBE_TIMEOUT_S = 30.0
_MAX_WORDS = 300
"""It loads a kernel module and makes device nodes, which takes a second; a driver that hangs must not hold the task."""


def facts_of(docker: DockerFacts) -> Facts:
    """Return the facts about Docker and NVIDIA's tools on this machine.

    Raises:
        DockerRefused, DockerSilent: dockerd refused or did not answer.
    """
    version, info = docker.version(), docker.info()
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
        mig_nodes={name: node for name, (node, _) in mig_capability_nodes().items()},
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
    """Return the device nodes of NVIDIA's driver, with those in its directories for MIG and IMEX.

    The node of an IMEX channel is only one of them if this process may open it: a container must not have more than its
    user.
    """
    found = [f"/dev/{name}" for name in _names(directory) if _NODE.fullmatch(name)]
    mig = _names(os.path.join(directory, _MIG_DIRECTORY))
    found += [f"/dev/{_MIG_DIRECTORY}/{name}" for name in mig if _MIG_NODE.fullmatch(name)]
    if os.access(os.path.join(directory, IMEX_CHANNEL.removeprefix("/dev/")), os.R_OK | os.W_OK):
        found.append(IMEX_CHANNEL)
    return tuple(sorted(found))


def _names(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


def mig_capability_nodes(directory: str = _CAPABILITIES) -> dict[str, tuple[str, str]]:
    """Return the capabilities of MIG, as in `Facts.mig_nodes` -> device node, and the driver's file that describes it.

    Source: NVIDIA MIG User Guide, "Device Nodes and Capabilities": ``DeviceFileMinor`` is the number of the node.
    """
    found = {}
    for pattern in ("gpu*/mig/gi*/access", "gpu*/mig/gi*/ci*/access"):
        for path in glob.glob(os.path.join(directory, pattern)):
            name = _MIG_FILE.fullmatch(path.removeprefix(directory))
            with contextlib.suppress(OSError), open(path, "rb") as file:
                if name is not None and (minor := _MIG_MINOR.search(file.read(_MAX_PROC_BYTES))):
                    found["/".join(name.groups())] = (f"/dev/{_MIG_DIRECTORY}/nvidia-cap{int(minor[1])}", path)
    return found


def make_nodes(wanted: Collection[str], note: Callable[[str], None]) -> None:
    """Make device nodes that the driver does not make at boot, by the program that CUDA itself calls for it.

    It belongs to root and is setuid. Without it, or if it fails, the nodes stay missing.

    Args:
        wanted: keys of `Facts.mig_nodes`, of the capabilities that are needed.
        note: called with a line on each call.
    """
    program = shutil.which(_MODPROBE, path=os.pathsep.join([os.environ.get("PATH", ""), *SBIN]))
    if program is None:
        note(f"{_MODPROBE}, which makes {UVM}, is not on this node")
        return
    by_name = mig_capability_nodes()
    for arguments in (["-u", "-c=0"], *(["-f", by_name[name][1]] for name in wanted if name in by_name)):
        try:
            done = subprocess.run(
                [program, *arguments],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_MODPROBE_TIMEOUT_S,
            )
            words = " ".join(done.stderr.split())[:_MAX_WORDS]
            note(f"{_MODPROBE} {' '.join(arguments)}: exit code {done.returncode}{words and f', {words}'}")
        except (OSError, subprocess.TimeoutExpired) as error:
            note(f"{_MODPROBE} {' '.join(arguments)}: {error}")


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
