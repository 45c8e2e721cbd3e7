"""Stand-ins for NVIDIA's programs on a machine without a card: what they do to a container, as far as it can be seen.

    nvidia-container-runtime-hook   on dockerd's PATH: run before a container's start where a device request asks for it
    nvidia-container-runtime        registered as the runtime "nvidia": runc, with that hook
    nvidia-docker                   the wrapper of version 2, which adds the runtime and NVIDIA_VISIBLE_DEVICES

The hook puts a device node /dev/nvidia<minor> into the container for each uuid that NVIDIA_VISIBLE_DEVICES names; the
minor number stands in the uuid's first part, as `tests.services.nvml_stub` makes them. A uuid that it does not know is
an error, ``all`` means two cards. It leaves a line of what it was told in ``hook.log``; where there is a file
``always``, it gives all, whatever it was told.

Source: NVIDIA container toolkit, cmd/nvidia-container-runtime-hook; nvidia-docker 2.0.2.
"""

from __future__ import annotations

import sys
from pathlib import Path

NVIDIA_SMI = """#!/bin/sh
[ "$1" = -L ] || exit 2
if [ -e /smi-fails ]; then
    echo "Failed to initialize NVML: Unknown Error"
    exit 255
fi
place=0
for node in /dev/nvidia[0-9]*; do
    [ -e "$node" ] || exit 0
    printf 'GPU %d: NVIDIA Test Card (UUID: GPU-%08d-aaaa-bbbb-cccc-000000000000)\\n' "$place" "${node#/dev/nvidia}"
    place=$((place + 1))
done
"""

_HOOK = """#!{python}
import json, os, subprocess, sys

if sys.argv[-1] != "prestart":
    sys.exit(0)
state = json.load(sys.stdin)
with open(os.path.join(state["bundle"], "config.json")) as file:
    config = json.load(file)
env = dict(entry.partition("=")[::2] for entry in config["process"]["env"])
devices = env.get("NVIDIA_VISIBLE_DEVICES", "")
capabilities = env.get("NVIDIA_DRIVER_CAPABILITIES", "")
with open({log!r}, "a") as log:
    log.write(devices + " " + capabilities + "\\n")
if os.path.exists({always!r}):
    devices = "all"
if devices in ("", "void", "none"):
    sys.exit(0)
root = config["root"]["path"]
for minor, device in enumerate(["GPU-00000000-", "GPU-00000001-"] if devices == "all" else devices.split(",")):
    if not device.startswith("GPU-0000000"):
        sys.exit("nvidia-container-cli: device error: " + device + ": unknown device")
    node = root + "/dev/nvidia" + str(int(device[4:12]))
    # As a bind mount would: seen in the container alone.
    subprocess.run(
        ["nsenter", "--target", str(state["pid"]), "--mount", "sh", "-c", 'mknod "$0" c 1 3; chmod 666 "$0"', node],
        check=True,
    )
"""

_RUNTIME = """#!{python}
import json, os, sys

words = sys.argv[1:]
if "create" in words:
    bundle = words[words.index("--bundle") + 1]
    path = os.path.join(bundle, "config.json")
    with open(path) as file:
        config = json.load(file)
    hooks = config.setdefault("hooks", {{}}).setdefault("prestart", [])
    if not any("nvidia" in hook["path"] for hook in hooks):
        hooks.append({{"path": {hook!r}, "args": ["nvidia-container-runtime-hook", "prestart"]}})
    with open(path, "w") as file:
        json.dump(config, file)
os.execvp("runc", ["runc", *words])
"""

_NVIDIA_DOCKER = """#!/bin/bash
# What version 2 adds to docker's words.
declare -a more=()
case $1 in
create | run)
    more=(--runtime=nvidia)
    if [ -n "$NV_GPU" ]; then more+=(-e "NVIDIA_VISIBLE_DEVICES=${NV_GPU// /,}"); fi
    exec docker "$1" "${more[@]}" "${@:2}"
    ;;
version) echo "NVIDIA Docker: 2.0.2" ;;
esac
exec docker "$@"
"""


def install(directory: Path) -> None:
    """Write them below ``directory``."""
    hook = hooks(directory) / "nvidia-container-runtime-hook"
    for path, text in (
        (hook, _HOOK.format(python=sys.executable, log=str(directory / "hook.log"), always=str(directory / "always"))),
        (runtime(directory), _RUNTIME.format(python=sys.executable, hook=str(hook))),
        (nvidia_docker(directory) / "nvidia-docker", _NVIDIA_DOCKER),
    ):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)


def hooks(directory: Path) -> Path:
    """The directory that is to be on dockerd's PATH."""
    return directory / "hooks"


def runtime(directory: Path) -> Path:
    """The program that dockerd has as its runtime "nvidia"."""
    return directory / "runtime" / "nvidia-container-runtime"


def nvidia_docker(directory: Path) -> Path:
    """The directory that has nvidia-docker."""
    return directory / "wrapper"
