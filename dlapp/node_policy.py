"""Policy of a node's operator: ``/etc/dlapp/node.yaml``, read on the node that it protects.

It must belong to root and be writable by root only. Without it the strict defaults of `NodePolicy` apply. Applications
and the configuration (`dlapp.config`) choose within its limits. It restricts only honest clients: on a cluster dlapp
itself is uploaded by the client, and a user with access to Docker is root on the node even without dlapp.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from dlapp.errors import ConfigError
from dlapp.system.files import closing_fd, is_inside
from dlapp.system.network.port_range import PortRange, read_port_range
from dlapp.system.text import (
    lazy_pattern,
    read_boolean,
    read_choice,
    read_count,
    read_duration_s,
    read_limit_bytes,
    read_size_bytes,
    shown,
)
from dlapp.system.yaml_keys import key, keys_of, level, section_fields, yaml_values
from dlapp.value import NamedTuple, Value
from dlapp.values.image_name import DOCKER_HUB, ImageName

FILE = "/etc/dlapp/node.yaml"
MAX_FILE_BYTES = 32 << 10

GPU_MODES = ("cdi", "gpus", "runtime", "nvidia-docker", "devices")
"""Ways to pass GPUs to a container, in the order in which ``auto`` tries them."""

CHARGES = ("gcores", "vcores")
"""Units of a user's usage."""
_MIN_TIME_S = 60.0
_CLOSED = (
    *("/boot", "/dev", "/etc", "/proc", "/root", "/run", "/sys", "/var/run"),
    *("/var/lib/containerd", "/var/lib/containers", "/var/lib/docker"),
)
"""A mount must not be, be inside, or contain one of these, except `_OPEN`: dockerd's socket and secrets are there."""
_PROGRAMS = ("/bin", "/lib", "/lib32", "/lib64", "/libx32", "/sbin", "/usr")
"""A writable mount must not be, or be inside, one of these: they contain the host's programs."""
_HOMES = ("/home",)
"""A writable mount must not be one of these: it would be shared by all users."""
_REGISTRY = lazy_pattern(r"[A-Za-z0-9][A-Za-z0-9.-]*(:[0-9]{1,5})?", re.ASCII)
_REPOSITORY = lazy_pattern(r"[a-z0-9]+([._-]+[a-z0-9]+)*(/[a-z0-9]+([._-]+[a-z0-9]+)*)*", re.ASCII)
_MAX_LINKS = 40
_OPEN = ("/run/media", "/run/mount")
_OURS = ("/dlapp", "/workspace")


class Mount(NamedTuple):
    """Directory or file of the host that every container sees at the same path."""

    path: str
    writable: bool


def _each(read: Callable[[str], Any]) -> Callable[[list[str]], Any]:
    return lambda texts: tuple(map(read, texts))


def _read_shared_paths(texts: list[str]) -> tuple[str, ...]:
    paths = tuple(_read_directory(text) for text in texts)
    for path in paths:
        if problem := _closed(path, writable=False):
            raise ValueError(problem)
    return paths


def _read_modes(texts: list[str]) -> tuple[str, ...]:
    return tuple(read_choice(text, GPU_MODES) for text in texts if text != "none")


def _read_capabilities(texts: list[str]) -> tuple[str, ...]:
    from dlapp.values.program.driver_capabilities import read_capabilities  # few files have any

    return read_capabilities(",".join(texts))


def _read_networks(texts: list[str]) -> tuple[str, ...]:
    for text in texts:
        if text.startswith("container:") or any(char.isspace() or char in "/:" for char in text):
            raise ValueError(f"{shown(text)} is not a network for containers: host, bridge, none, or a name")
    return tuple(texts)


def _read_mount(text: str) -> Mount:
    path, colon, mode = text.rpartition(":")
    if not colon:
        path, mode = text, "ro"
    if mode not in ("ro", "rw") or not path.startswith("/"):
        raise ValueError(
            f"{shown(text)} is not a mount: /an/absolute/path, with :rw at its end where it may be written"
        )
    mount = Mount(os.path.normpath("/" + path.lstrip("/")), mode == "rw")
    # A link may have another target when the container starts: `mount_problem` checks that then.
    if problem := _closed(mount.path, mount.writable):
        raise ValueError(problem)
    if any(is_inside(mount.path, ours) or is_inside(ours, mount.path) for ours in _OURS):
        raise ValueError(f"{shown(mount.path)} is where dlapp puts its own")
    return mount


def _closed(path: str, writable: bool) -> str:
    """Return why a path without links must not be mounted; empty if it may."""
    if path == "/":
        return "'/': / and what is in it stays outside of containers"
    for closed in _CLOSED:
        if is_inside(path, closed) and not any(is_inside(path, one) for one in _OPEN):
            return f"{shown(path)}: {closed} and what is in it stays outside of containers"
        if is_inside(closed, path):
            return f"{shown(path)}: {closed} is in it, which stays outside of containers; name a directory beside it"
    if writable and (path in _HOMES or any(is_inside(path, one) for one in _PROGRAMS)):
        return f"{shown(path)}: containers may not write all homes, nor the programs of this machine"
    return ""


def shared_path_problem(path: str, shared_paths: tuple[str, ...]) -> str:
    """Return why a directory cannot be mounted as input; empty if it can.

    Args:
        path: path without links.
        shared_paths: paths of the policy, resolved now.
    """
    if not any(is_inside(path, os.path.realpath(one)) for one in shared_paths):
        return f"{path if path.isprintable() else repr(path)} is in none of the shared_paths of {FILE}"
    return _closed(path, writable=False)


def mount_problem(mount: Mount) -> str:
    """Return why an allowed mount is refused now; empty if it is not.

    Only root or the container's user may have write access to its parent directories, including those of links. So no
    other user can replace a name there before dockerd mounts it.
    """
    real = os.path.realpath(mount.path)
    if real != mount.path and (problem := _closed(real, mount.writable)):
        return f"{shown(mount.path)} leads to {problem}"
    try:
        loose = _loose_directory(mount.path, (0, os.geteuid()))
    except OSError as error:
        return f"{shown(mount.path)}: {error.strerror}"
    if loose:
        return f"{shown(mount.path)}: others than root can exchange what is in {shown(loose)}"
    return ""


def _loose_directory(path: str, trusted: tuple[int, ...]) -> str:
    """Return a parent directory of ``path`` in which users other than ``trusted`` can replace a name; empty if none."""
    todo, at, links = path.split("/")[::-1], "/", 0
    while todo:
        name = todo.pop()
        if name in ("", "."):
            continue
        if name == "..":
            at = os.path.dirname(at)
            continue
        holder, entry = os.lstat(at), os.lstat(os.path.join(at, name))
        others_write = holder.st_uid not in trusted or holder.st_mode & 0o022
        # In a sticky directory only its owner and the entry's owner may rename or remove an entry.
        kept = holder.st_mode & stat.S_ISVTX and holder.st_uid in trusted and entry.st_uid in trusted
        if others_write and not kept:
            return at
        if not stat.S_ISLNK(entry.st_mode):
            at = os.path.join(at, name)
            continue
        links += 1
        if links > _MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        target = os.readlink(os.path.join(at, name))
        at = "/" if target.startswith("/") else at
        todo += target.split("/")[::-1]
    return ""


def _read_directory(text: str) -> str:
    if not text.startswith("/"):
        raise ValueError(f"{shown(text)} is not an absolute path")
    return os.path.normpath(text)


def _read_interface(text: str) -> str:
    if not re.fullmatch(r"[^\s/:]{1,15}", text, re.ASCII):
        raise ValueError(f"{shown(text)} is not the name of a network interface")
    return text


def _read_registry_place(text: str) -> str:
    """Parse ``registry[/path]``."""
    registry, slash, path = text.partition("/")
    is_host = _REGISTRY.fullmatch(registry) and ("." in registry or ":" in registry or registry == "localhost")
    if not is_host or (slash and not _REPOSITORY.fullmatch(path)):
        raise ValueError(f"{shown(text)} is not a registry such as registry.example.com:5000 or {DOCKER_HUB}/library")
    return text


def _read_mirrors(texts: list[str]) -> tuple[tuple[str, str], ...]:
    found: dict[str, str] = {}
    for text in texts:
        registry, equals, place = (part.strip() for part in text.rpartition("="))
        registry = _read_registry_place(registry) if equals else DOCKER_HUB
        if "/" in registry:
            raise ValueError(f"{shown(registry)}: a mirror is of a whole registry: HOST=MIRROR")
        if registry in found:
            raise ValueError(f"{registry} has two mirrors")
        found[registry] = _read_registry_place(place)
    return tuple(found.items())


def _read_amounts_by_user(texts: list[str]) -> tuple[tuple[str, int], ...]:
    found = []
    for text in texts:
        user, equals, amount = text.partition("=")
        if not equals or not re.fullmatch(r"[^\s=,:/]{1,64}", user := user.strip()):
            raise ValueError(f"{shown(text)} is not USER=NUMBER")
        found.append((user, read_count(amount.strip())))
    return tuple(found)


class RegistryPolicy(Value):
    """Allowed image registries.

    Args:
        mirror: pairs of a registry and its mirror, ``host[/path]``, which is tried first.
        prefix: registry for image names without one; None: Docker Hub.
        allow: allowed registries, ``host[/path]``; None: all.
    """

    mirror: tuple[tuple[str, str], ...] | None = key(
        _read_mirrors,
        None,
        "list of [REGISTRY=]MIRROR",
        "where images of a registry (without `REGISTRY=` of docker.io) are pulled from first",
        is_list=True,
    )
    prefix: str | None = key(
        _read_registry_place, None, "REGISTRY[/PATH]", "the place of images whose names have no registry"
    )
    allow: tuple[str, ...] | None = key(
        _each(_read_registry_place),
        None,
        "list of REGISTRY[/PATH]",
        "the places that images may come from",
        is_list=True,
    )

    def resolve(self, name: ImageName) -> ImageName:
        """Return the full image name, with its registry on this node."""
        if self.prefix is None or name.names_registry or not name.registry:
            return name
        return name._replace(repository=name.path).at(self.prefix)

    def mirrored(self, name: ImageName) -> ImageName | None:
        """Return the image name at the mirror of its registry; None: there is none."""
        place = dict(self.mirror or ()).get(name.registry)
        return None if place is None else name.at(place)

    def forbidden(self, name: ImageName) -> str:
        """Return why an image must not be used here; empty if it may.

        Args:
            name: result of `resolve`.
        """
        if self.allow is None:
            return ""
        lists = f"docker.registry.allow of {FILE} allows {', '.join(self.allow)}"
        if not name.registry:
            return f"is an id, which names no registry, and {lists}"
        place = f"{name.registry}/{name.repository}"
        if any(is_inside(f"/{place}", f"/{allowed}") for allowed in self.allow):
            return ""
        return f"is {place}, and {lists}"


ANY_REGISTRY = RegistryPolicy()


class DockerPolicy(Value):
    """Policy for containers on this node."""

    gpu_modes: tuple[str, ...] = key(
        _read_modes, ", ".join(GPU_MODES), "list", "the allowed modes of `runtime.docker.gpu_mode`", is_list=True
    )
    gpu_capabilities: tuple[str, ...] | None = key(
        _read_capabilities,
        None,
        "list",
        "the driver capabilities that containers may have beside `compute` and `utility`; none: all of them",
        is_list=True,
    )
    networks: tuple[str, ...] = key(_read_networks, "host, bridge, none", "list", "the allowed networks", is_list=True)
    mounts: tuple[Mount, ...] = key(
        _each(_read_mount), "", "list of paths", "paths of the host that are mounted into every container", is_list=True
    )
    root: bool = key(read_boolean, "false", "true or false", "programs on a cluster may run as uid 0")
    pids_limit: int = key(
        partial(read_count, minimum=16), "16384", "count", "maximum number of processes and threads in a container"
    )
    shm_percent: int = key(
        partial(read_count, minimum=1, maximum=100), "50", "count", "percentage of a container's memory for /dev/shm"
    )
    registry: RegistryPolicy = level(RegistryPolicy)

    def forbidden_capabilities(self, requested: Collection[str]) -> str:
        """Return why driver capabilities that a user requested are not allowed; empty if they are."""
        if self.gpu_capabilities is None or not requested:
            return ""
        from dlapp.values.program.driver_capabilities import BASE, CAPABILITIES

        allowed = [name for name in CAPABILITIES if name in BASE or name in self.gpu_capabilities]
        if not (more := [name for name in requested if name not in allowed]):
            return ""
        known = ", ".join(allowed)
        return f"{', '.join(more)}: this node allows {known} (docker.gpu_capabilities of {FILE})"


class QueuePolicy(Value):
    """Policy for this machine's queue.

    Args:
        max_priority_of, user_gcores_of: pairs of a user's name, or uid, and the amount.
    """

    half_life_s: float = key(
        partial(read_duration_s, minimum_s=_MIN_TIME_S),
        "7d",
        "duration",
        "after this time a GPU-hour counts half in the usage of its user",
        name="half_life",
    )
    raise_after_s: float = key(
        partial(read_duration_s, minimum_s=_MIN_TIME_S),
        "1d",
        "duration",
        "waiting raises the priority of an application by one after each such time",
        name="raise_after",
    )
    max_priority: int = key(read_count, "0", "count", "highest `priority` that counts against other users")
    max_priority_of: tuple[tuple[str, int], ...] | None = key(
        _read_amounts_by_user, None, "list of USER=NUMBER", "the same for some users", is_list=True
    )
    user_gcores: int | None = key(
        read_count, None, "count", "maximum number of GPUs of one user's running applications"
    )
    user_gcores_of: tuple[tuple[str, int], ...] | None = key(
        _read_amounts_by_user, None, "list of USER=NUMBER", "the same for some users", is_list=True
    )
    user_queued: int | None = key(
        partial(read_count, minimum=1), None, "count", "maximum number of one user's waiting applications"
    )
    charge: str = key(
        partial(read_choice, allowed=CHARGES),
        "gcores",
        "gcores or vcores",
        "the amount that counts as usage; vcores is for machines without GPUs",
    )


class NodePolicy(Value):
    """The whole policy; None: no limit, or not configured."""

    kill_grace_max_s: float | None = key(read_duration_s, None, "duration", "maximum grace time", name="kill_grace_max")
    log_limit_bytes: int | None = key(
        read_size_bytes, None, "size", "maximum size of a payload's stdout, and of its stderr", name="log_limit"
    )
    cache_dir: str | None = key(_read_directory, None, "directory", "the directory of all caches")
    payload_cache_limit_bytes: int | None = key(
        read_limit_bytes,
        None,
        "size",
        "maximum size of a user's caches of programs (`cache.NAME`); 0 forbids them",
        name="payload_cache_limit",
    )
    network_interface: str | None = key(
        _read_interface, None, "name", "the interface whose address the containers of an application give each other"
    )
    ports: PortRange = key(read_port_range, "20000-29999", "range", "TCP ports for programs (`ports`)")
    shared_paths: tuple[str, ...] = key(
        _read_shared_paths,
        "",
        "list of paths",
        "directories of shared file systems; those in them can be mounted as input, read-only (`mode=mount`)",
        is_list=True,
    )
    notify_commands: tuple[str, ...] = key(
        _each(_read_directory),
        "",
        "list of paths",
        "programs that an ApplicationMaster on this node may run for `notify.command`, with any arguments",
        is_list=True,
    )
    docker: DockerPolicy = level(DockerPolicy)
    queue: QueuePolicy = level(QueuePolicy)


KEYS = keys_of(NodePolicy)
"""The keys by name, in the order of docs/docker.md."""


def node_policy(path: str = FILE, *, owner: int = 0) -> NodePolicy:
    """Read the operator's file; return the defaults if there is none.

    Args:
        owner: uid to which it must belong; not root only in tests.

    Raises:
        ConfigError: others may write it, or it is invalid; all errors at once.
    """
    if (data := read_operators_file(path, owner=owner)) is None:
        return NodePolicy()
    problems: list[str] = []
    may_be_empty = [name for name, one in KEYS.items() if one.default_text == ""]
    found = yaml_values(data, path, KEYS, problems, lists=may_be_empty)
    values: dict[str, Any] = {}
    for name, one in KEYS.items():
        try:
            values[name] = one.value_of(found[name].texts) if name in found else one.default_value()
        except ValueError as problem:
            problems.append(f"{found[name].where}: {name}: {problem}")
    if problems:
        raise ConfigError("\n".join(problems))
    return NodePolicy(**section_fields(NodePolicy, values))


def root_problem(policy: NodePolicy, what: str = "the program") -> str:
    """Return why this process, on a node of a cluster, may not run a program with its own rights; empty: it may.

    On one machine, root is the submitter; on a node it only means that the NodeManager runs as root.
    """
    if os.getuid() != 0 or policy.docker.root:
        return ""
    return f"{what} would be root on this node (docker.root of {FILE})"


def read_operators_file(path: str, *, owner: int = 0) -> bytes | None:
    """Return the content of a file that only the operator can write; None: there is none.

    Args:
        owner: uid to which it must belong.

    Raises:
        ConfigError: others may write it, it cannot be read, or it is larger than `MAX_FILE_BYTES`.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; it says what holds on this node") from error
    with closing_fd(fd):
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode) or info.st_uid != owner or info.st_mode & 0o022:
            who = "root" if owner == 0 else f"uid {owner}"
            raise ConfigError(f"{path}: must be a file of {who} that nobody else may write: chown {who}, chmod 644")
        with open(fd, "rb", closefd=False) as file:
            data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(f"{path}: is larger than {MAX_FILE_BYTES >> 10} KiB")
    return data
