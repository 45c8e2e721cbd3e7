"""Stand-ins for NVIDIA's programs on a machine without a GPU: what they do to a container, as far as it can be seen.

    nvidia-container-runtime-hook   on dockerd's PATH: run before a container's start where a device request asks for it
    nvidia-container-runtime        registered as the runtime "nvidia": runc, with that hook
    nvidia-docker                   the wrapper of version 2, which adds the runtime and NVIDIA_VISIBLE_DEVICES, or the
                                    program of version 1, which adds device nodes and a volume (here an empty one)

The hook puts a device node /dev/nvidia<minor> into the container for each uuid that NVIDIA_VISIBLE_DEVICES names; the
minor number stands in the uuid's first part, as `nvml_stub` makes them. A uuid that it does not know is
an error, ``all`` means two GPUs. It writes a line with its arguments to ``hook.log``; where there is a file
``always``, it gives all, whatever was requested.

`with_driver` is for what looks at device nodes and libraries itself: a machine's, as a daemon and a task would see it
that have a driver, in a mount namespace of their own. The machine sees nothing of it.

Source: NVIDIA container toolkit, cmd/nvidia-container-runtime-hook; nvidia-docker 2.0.2, and 1.0.1, src/nvidia-docker.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.services.install import SEARCH, required

NVIDIA_SMI = """#!/bin/sh
[ "$1" = -L ] || exit 2
if [ -e /smi-fails ]; then
    echo "Failed to initialize NVML: Unknown Error"
    exit 255
fi
place=0
for node in /dev/nvidia[0-9]*; do
    [ -e "$node" ] || exit 0
    printf 'GPU %d: NVIDIA Test GPU (UUID: GPU-%08d-aaaa-bbbb-cccc-000000000000)\\n' "$place" "${node#/dev/nvidia}"
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

_NVIDIA_DOCKER_1 = r"""#!/bin/bash
# Boolean flags that it knows, of Docker 17.03; the word after any other flag without "=" is taken for its value.
booleans=" --disable-content-trust --init --interactive -i --no-healthcheck --oom-kill-disable --privileged \
 --publish-all -P --read-only --rm --tty -t "
case $1 in
create | run) ;;
version)
    echo "NVIDIA Docker: 1.0.1"
    exec docker "$@"
    ;;
*) exec docker "$@" ;;
esac
words=("${@:2}") image=
for ((i = 0; i < ${#words[@]}; i++)); do
    case ${words[i]} in
    --*=*) ;;
    -*) [[ $booleans == *" ${words[i]} "* ]] || i=$((i + 1)) ;;
    *)
        image=${words[i]}
        break
        ;;
    esac
done
more=()
needs=$(docker inspect --type=image --format '{{index .Config.Labels "com.nvidia.volumes.needed"}}' "$image")
if [ "$needs" = nvidia_driver ]; then
    more=(--volume=nvidia_driver_375.66:/usr/local/nvidia:ro --device=/dev/nvidiactl --device=/dev/nvidia-uvm)
    if [ -z "$NV_GPU" ]; then more+=($(printf -- '--device=%s\n' /dev/nvidia[0-9]*)); fi
    for id in ${NV_GPU//,/ }; do
        node=/dev/nvidia$((10#${id:4:8}))
        if ! [ -e "$node" ]; then
            echo "nvidia-docker | 2017/03/02 10:00:00 Error: invalid device: $id" >&2
            exit 1
        fi
        more+=("--device=$node")
    done
fi
exec docker "$1" "${more[@]}" "${words[@]}"
"""

_WITH_DRIVER = """
set -e
dev=$1/dev cache=$1/ld.so.cache nodes=$2
shift 2
mkdir -p "$dev"
mount -t tmpfs -o mode=755 dlapp "$dev"
for node in null:1:3 zero:1:5 full:1:7 random:1:8 urandom:1:9 tty:5:0 ptmx:5:2 $nodes; do
    name=${node%%:*} numbers=${node#*:}
    mkdir -p "$(dirname "$dev/$name")"
    mknod -m 666 "$dev/$name" c "${numbers%:*}" "${numbers#*:}"
done
for place in pts shm; do
    mkdir "$dev/$place"
    mount --rbind "/dev/$place" "$dev/$place"
done
ln -s /proc/self/fd "$dev/fd"
mount --rbind "$dev" /dev
mount --bind "$cache" /etc/ld.so.cache
exec "$@"
"""


def install(directory: Path) -> None:
    """Write them below ``directory``."""
    hook = hooks(directory) / "nvidia-container-runtime-hook"
    for path, text in (
        (hook, _HOOK.format(python=sys.executable, log=str(directory / "hook.log"), always=str(directory / "always"))),
        (runtime(directory), _RUNTIME.format(python=sys.executable, hook=str(hook))),
        (nvidia_docker(directory) / "nvidia-docker", _NVIDIA_DOCKER),
        (nvidia_docker_1(directory) / "nvidia-docker", _NVIDIA_DOCKER_1),
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


def nvidia_docker_1(directory: Path) -> Path:
    """The directory that has version 1 of it."""
    return directory / "wrapper-1"


def with_driver(directory: Path, nodes: Mapping[str, tuple[int, int]]) -> list[str]:
    """Return the beginning of a command that is to see a driver, as what it starts: nodes in /dev, and libraries.

    Args:
        directory: takes the libraries, and a ``bin`` with nvidia-smi.
        nodes: of GPUs, and ``nvidiactl``: name -> major and minor number of a device that really is there.
    """
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        assert not required(), "no C compiler: a driver's libraries cannot be made (CI or DLAPP_REQUIRE is set)"
        pytest.skip("no C compiler: a driver's libraries cannot be made")
    place, bin_ = directory / "driver", directory / "driver" / "bin"
    bin_.mkdir(parents=True)
    (bin_ / "nvidia-smi").write_text(NVIDIA_SMI)
    (bin_ / "nvidia-smi").chmod(0o755)
    for name in ("libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-container.so.1"):
        flags = ["-shared", f"-Wl,-soname={name}", "-x", "c", "/dev/null"]
        subprocess.run([compiler, "-o", str(place / name), *flags], check=True)
    (place / "ld.so.conf").write_text(f"include /etc/ld.so.conf\n{place}\n")
    ldconfig = shutil.which("ldconfig", path=SEARCH)
    assert ldconfig is not None
    subprocess.run([ldconfig, "-X", "-f", place / "ld.so.conf", "-C", place / "ld.so.cache"], check=True)
    words = " ".join(f"{name}:{major}:{minor}" for name, (major, minor) in nodes.items())
    return ["unshare", "--mount", "sh", "-c", _WITH_DRIVER, "sh", str(place), words]
