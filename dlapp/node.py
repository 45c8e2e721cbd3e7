"""What the operator of a node allows there: ``/etc/dlapp/node.yaml``, read on the node that it protects.

It must belong to root, and nobody else may write it. Without it the strict defaults of `KEYS` hold. Nothing that a
client sends can widen it; the configuration (`dlapp.config`) chooses among what it allows.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from typing import Any, NamedTuple

from dlapp.errors import ConfigError
from dlapp.texts import nearest, read_boolean, read_choice, read_count, read_duration_s, read_size_bytes, shown

FILE = "/etc/dlapp/node.yaml"
MOST_FILE_BYTES = 1 << 20

GPU_MODES = ("cdi", "gpus", "runtime", "nvidia-docker", "devices")
"""The ways to give a container its GPUs, in the order in which ``auto`` looks for them."""

_CLOSED = ("/", "/boot", "/dev", "/etc", "/proc", "/root", "/run", "/sys", "/var/lib/docker", "/var/run")
"""No mount may be one of these or lie in one, but for `_OPEN`: dockerd's socket and secrets are there."""
_OPEN = ("/run/media", "/run/mount")
_OURS = ("/dlapp", "/workspace")


class Mount(NamedTuple):
    """A directory or file of the host that every container sees at the same path."""

    path: str
    writable: bool


class DockerPolicy(NamedTuple):
    """Containers on this node; the fields are the keys of `KEYS`."""

    gpu_modes: tuple[str, ...]
    networks: tuple[str, ...]
    mounts: tuple[Mount, ...]
    root: bool
    pids_limit: int
    shm_percent: int


class NodePolicy(NamedTuple):
    """All that the operator says; None: no cap, or nothing is there."""

    kill_grace_max_s: float | None
    log_limit_bytes: int | None
    cache_dir: str | None
    docker: DockerPolicy


class Key(NamedTuple):
    """One key: ``read`` takes the list of its texts. ``default`` is as one would write it; empty: None."""

    name: str
    field: str
    read: Callable[[list[str]], Any]
    default: str
    kind: str
    meaning: str


def _one(read: Callable[[str], Any]) -> Callable[[list[str]], Any]:
    def single(texts: list[str]) -> Any:
        if len(texts) != 1:
            raise ValueError("must be a single value")
        return read(texts[0])

    return single


def _read_modes(texts: list[str]) -> tuple[str, ...]:
    return tuple(read_choice(text, GPU_MODES) for text in texts if text != "none")


def _read_networks(texts: list[str]) -> tuple[str, ...]:
    for text in texts:
        if text.startswith("container:") or any(char.isspace() or char in "/:" for char in text):
            raise ValueError(f"{shown(text)} is no network of a container's own: host, bridge, none, or a name")
    return tuple(texts)


def _read_mounts(texts: list[str]) -> tuple[Mount, ...]:
    return tuple(_read_mount(text) for text in texts)


def _read_mount(text: str) -> Mount:
    path, colon, mode = text.rpartition(":")
    if not colon:
        path, mode = text, "ro"
    if mode not in ("ro", "rw") or not path.startswith("/"):
        raise ValueError(f"{shown(text)} is no mount: /an/absolute/path, with :rw at its end where it may be written")
    path = os.path.normpath(path)
    real = os.path.realpath(path)
    for closed in _CLOSED:
        inside = closed != "/" and any(one.startswith(closed + "/") for one in (path, real))
        opened = any(real == one or real.startswith(one + "/") for one in _OPEN)
        if closed in (path, real) or (inside and not opened):
            raise ValueError(f"{shown(path)}: {closed} and what is in it stays outside of containers")
    if any(path == ours or path.startswith(ours + "/") for ours in _OURS):
        raise ValueError(f"{shown(path)} is where dlapp puts its own")
    return Mount(path, mode == "rw")


def _read_directory(text: str) -> str:
    if not text.startswith("/"):
        raise ValueError(f"{shown(text)} is not an absolute path")
    return os.path.normpath(text)


def _read_pids(text: str) -> int:
    return read_count(text, 16)


def _read_percent(text: str) -> int:
    return read_count(text, 1, 100)


KEYS: tuple[Key, ...] = (
    Key("kill_grace_max", "kill_grace_max_s", _one(read_duration_s), "", "duration", "the longest grace time"),
    Key("log_limit", "log_limit_bytes", _one(read_size_bytes), "", "size", "the most of a payload's stdout or stderr"),
    Key("cache_dir", "cache_dir", _one(_read_directory), "", "directory", "where what many containers need is kept"),
    Key("docker.gpu_modes", "gpu_modes", _read_modes, ", ".join(GPU_MODES), "list", "the ways to give containers GPUs"),
    Key("docker.networks", "networks", _read_networks, "host, bridge, none", "list", "the networks that may be used"),
    Key("docker.mounts", "mounts", _read_mounts, "", "list of paths", "what every container sees of the host besides"),
    Key("docker.root", "root", _one(read_boolean), "false", "true or false", "payloads of a cluster may be uid 0"),
    Key("docker.pids_limit", "pids_limit", _one(_read_pids), "16384", "count", "processes and threads in a container"),
    Key("docker.shm_percent", "shm_percent", _one(_read_percent), "50", "count", "of a container's memory in /dev/shm"),
)


def node_policy(path: str = FILE, *, owner: int = 0) -> NodePolicy:
    """Read the operator's file; the defaults where there is none.

    Args:
        owner: the uid to which it must belong; only tests name another than root's.

    Raises:
        ConfigError: it is not the operator's alone, or something in it cannot be meant; all faults at once.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return _tree({}, [])
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; it says what is allowed on this node") from error
    with os.fdopen(fd, "rb") as file:
        info = os.fstat(file.fileno())
        if not stat.S_ISREG(info.st_mode) or info.st_uid != owner or info.st_mode & 0o022:
            who = "root" if owner == 0 else f"uid {owner}"
            raise ConfigError(f"{path}: must be a file of {who} that nobody else may write: chown {who}, chmod 644")
        data = file.read(MOST_FILE_BYTES + 1)
    if len(data) > MOST_FILE_BYTES:
        raise ConfigError(f"{path}: is larger than {MOST_FILE_BYTES >> 20} MiB")
    faults: list[str] = []
    policy = _tree(_texts(data, path, faults), faults)
    if faults:
        raise ConfigError("\n".join(faults))
    return policy


def _texts(data: bytes, path: str, faults: list[str]) -> dict[str, tuple[str, list[str]]]:
    """key -> where it stands, and its texts: one, or those of a list."""
    from dlapp.config import yaml_leaves

    names = [key.name for key in KEYS]
    levels = sorted({name.rpartition(".")[0] for name in names})
    found: dict[str, tuple[str, list[str]]] = {}
    for name, line, texts in yaml_leaves(data, path, levels, faults):
        where = f"{path}:{line}"
        if name in found:
            faults.append(f"{where}: {name}: stands twice")
        elif name not in names:
            faults.append(f"{where}: {name or 'the file'}: is not known, {nearest(name, names)}")
        elif texts is None:
            faults.append(f"{where}: {name}: must be a value or a list of values")
        elif texts or name == "docker.mounts":
            found[name] = (f"{where}: {name}", texts)
        else:
            faults.append(f"{where}: {name}: is empty")
    return found


def _tree(found: dict[str, tuple[str, list[str]]], faults: list[str]) -> NodePolicy:
    values: dict[str, dict[str, Any]] = {}
    for key in KEYS:
        default = [part.strip() for part in key.default.split(",") if part.strip()]
        where, texts = found.get(key.name) or (key.name, default)
        value: Any = None
        if texts or key.name == "docker.mounts":
            try:
                value = key.read(texts)
            except ValueError as problem:
                faults.append(f"{where}: {problem}")
        values.setdefault(key.name.rpartition(".")[0], {})[key.field] = value
    return NodePolicy(**values[""], docker=DockerPolicy(**values["docker"]))


def keys_as_markdown() -> str:
    """The table of keys as docs/docker.md shows it."""
    lines = ["| key | value | default | meaning |", "|---|---|---|---|"]
    for key in KEYS:
        default = f"`{key.default}`" if key.default else "none"
        lines.append(f"| `{key.name}` | {key.kind} | {default} | {key.meaning} |")
    return "\n".join(lines) + "\n"
