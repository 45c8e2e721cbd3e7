"""The configuration: where dlapp keeps things and how much of the machine it may use.

Later wins: the defaults below, ``/etc/dlapp/config.yaml``, ``~/.config/dlapp/config.yaml``, the file that
``$DLAPP_CONFIG`` names, ``DLAPP_*`` variables, and options of a command. `KEYS` is the one table of keys: parsing,
defaults, the variables' names and docs/configuration.md come from it. Every value is read from text in the same way
wherever it stands, so ``memory: 4g`` in a file and ``DLAPP_DEFAULTS_MEMORY=4g`` are the same.

YAML is read only where a file exists: importing it costs more than the rest of a command's start.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from dlapp.errors import ConfigError
from dlapp.texts import (
    nearest,
    read_boolean,
    read_choice,
    read_count,
    read_duration_s,
    read_memory_mib,
    read_size_bytes,
    shown,
)

if TYPE_CHECKING:
    import yaml

SYSTEM_FILE = "/etc/dlapp/config.yaml"
USER_FILE = "~/.config/dlapp/config.yaml"
MOST_FILE_BYTES = 1 << 20

FILE_VARIABLE = "DLAPP_CONFIG"
PREFIX = "DLAPP_"
NOT_KEYS = frozenset(
    f"DLAPP_{name}"
    for name in (
        *("CONFIG", "REQUIRE", "CONTEXT", "APP_ID", "ATTEMPT", "CONTAINER_ID"),
        *("ROLE", "ROLE_INDEX", "ROLE_SIZE", "WORKSPACE", "INPUT", "OUTPUT"),
    )
)
"""Variables of ours that are no keys: our own, and what a payload finds in its environment."""
NOT_KEYS_PREFIXES = ("DLAPP_INPUT_", "DLAPP_OUTPUT_", "DLAPP_SHELL_")


# The tree is made of named tuples: frozen as a dataclass is, and each takes 0.07 ms to define where a dataclass takes
# 0.5 ms; every command pays for all of them.


class DefaultsConfig(NamedTuple):
    """What a properties file without ``[resources]`` asks for; ``gcores`` None: 1 where the engine has GPUs, else 0."""

    containers: int
    vcores: int
    memory_mib: int
    gcores: int | None


class LocalConfig(NamedTuple):
    """The engine on one machine; None: what the machine, the cgroup or the ledger of devices has."""

    state_dir: str
    shared: bool
    fs_root: str
    memory_mib: int | None
    vcores: int | None
    gcores: int | None


class ZooKeeperConfig(NamedTuple):
    """The ledger of GPUs of a cluster; without an ``ensemble`` there is none."""

    ensemble: str | None
    root: str
    credentials: str | None
    session_timeout_s: float


class GpuidConfig(NamedTuple):
    """Who holds which GPU."""

    lock_dir: str
    allowed_processes: tuple[str, ...]
    temperature_limit_c: int | None
    zookeeper: ZooKeeperConfig


class DockerConfig(NamedTuple):
    """Docker, as payloads use it; ``gpu_mode`` is one of `dlapp.node.GPU_MODES`, ``auto`` or ``none``."""

    host: str
    network: str
    gpu_mode: str


class RuntimeConfig(NamedTuple):
    """How payloads run."""

    log_limit_bytes: int
    kill_grace_max_s: float
    docker: DockerConfig


class StorageConfig(NamedTuple):
    """Packed workspaces."""

    workspace_limit_bytes: int
    cache_limit_bytes: int
    cache_age_s: float


class HistoryConfig(NamedTuple):
    """How long ended applications are kept."""

    age_s: float
    limit_bytes: int


class YarnConfig(NamedTuple):
    """A Hadoop cluster; ``conf_dir`` None: $HADOOP_CONF_DIR."""

    conf_dir: str | None
    dialect: str
    python: str
    python_archive: str | None
    am_memory_mib: int
    am_attempts: int


class Config(NamedTuple):
    """The whole configuration.

    Args:
        texts: key -> value as written; ``load_config(options=texts)`` makes an equal configuration anywhere.
        origins: key -> where the value came from: ``default``, ``/etc/dlapp/config.yaml:3``, ``DLAPP_CLUSTER``,
            ``option``.
    """

    cluster: str
    defaults: DefaultsConfig
    local: LocalConfig
    gpuid: GpuidConfig
    runtime: RuntimeConfig
    storage: StorageConfig
    history: HistoryConfig
    yarn: YarnConfig
    texts: Mapping[str, str]
    origins: Mapping[str, str]


Read = Callable[[str], Any]


class Key(NamedTuple):
    """One key.

    Args:
        name: as in a file, levels joined by dots.
        field: its name in the tree, with the unit, where that is not the last word of ``name``.
        read: text -> value; ValueError with the problem.
        default: as one would write it; empty: the value is None.
        kind: what may be written, for the documentation.
        meaning: one sentence.
    """

    name: str
    field: str
    read: Read
    default: str
    kind: str
    meaning: str

    @property
    def variable(self) -> str:
        """The variable that sets it: ``DLAPP_LOCAL_STATE_DIR``."""
        return PREFIX + self.name.replace(".", "_").upper()


def _read_cluster(text: str) -> str:
    return read_choice(text, ("local", "yarn"))


def _read_containers(text: str) -> int:
    return read_count(text, 1, 100_000)


def _read_cores(text: str) -> int:
    return read_count(text, 1)


def _read_gcores_or_auto(text: str) -> int | None:
    return None if text == "auto" else read_count(text, 0)


def _read_directory(text: str) -> str:
    if not text.startswith("/"):
        raise ValueError(f"{shown(text)} is not an absolute path (or one under ~/)")
    return os.path.normpath(text)


def _read_docker_host(text: str) -> str:
    if not text.startswith(("unix:///", "tcp://", "npipe://", "ssh://")):
        raise ValueError(f"{shown(text)} is no address of Docker: unix:///var/run/docker.sock or tcp://host:port")
    return text


def _read_ensemble(text: str) -> str:
    for one in text.split(","):
        host, colon, port = one.rpartition(":")
        if not host or not colon or not port.isdecimal() or "/" in one or any(map(str.isspace, one)):
            raise ValueError(
                f"{shown(text)} is no ensemble: zk1:2181,zk2:2181,zk3:2181 (the path is gpuid.zookeeper.root)"
            )
    return text


def _read_znode(text: str) -> str:
    if not text.startswith("/") or text == "/" or text.endswith("/") or "//" in text or text.startswith("/zookeeper"):
        raise ValueError(f"{shown(text)} is no path of a znode of ours: /dlapp")
    return text


def _read_dialect(text: str) -> str:
    return read_choice(text, ("auto", "gcores", "yarn.io/gpu", "field3", "none"))


def _read_gpu_mode(text: str) -> str:
    return read_choice(text, ("auto", "cdi", "gpus", "runtime", "nvidia-docker", "devices", "none"))


def _read_attempts(text: str) -> int:
    return read_count(text, 1, 100)


def _read_programs(text: str) -> tuple[str, ...]:
    names = tuple(one.strip() for one in text.split(",") if one.strip())
    if bad := next((one for one in names if "/" in one), None):
        raise ValueError(f"{shown(bad)} is a path; the names of programs are meant, as ps -e shows them")
    return names


def _read_temperature(text: str) -> int:
    return read_count(text, 30, 150)


def _read_word(text: str) -> str:
    if not text or text.startswith("-") or any(character.isspace() for character in text):
        raise ValueError(f"{shown(text)} is not one word")
    return text


def _read_place(text: str) -> str:
    path = text.removeprefix("hdfs://")
    if "/" not in path or any(character.isspace() for character in text) or (path == text and not text.startswith("/")):
        raise ValueError(f"{shown(text)} is no place on HDFS like hdfs:///apps/python.tar.gz or /apps/python.tar.gz")
    return text


KEYS: tuple[Key, ...] = (
    Key("cluster", "cluster", _read_cluster, "local", "local or yarn", "the engine that applications are submitted to"),
    Key("defaults.containers", "containers", _read_containers, "1", "count", "containers, where a file names none"),
    Key("defaults.vcores", "vcores", _read_cores, "1", "count", "virtual cores per container, likewise"),
    Key("defaults.memory", "memory_mib", read_memory_mib, "4g", "memory", "memory per container, likewise"),
    Key(
        "defaults.gcores",
        "gcores",
        _read_gcores_or_auto,
        "auto",
        "count or auto",
        "GPUs per container, likewise; auto is 1 where the engine has GPUs, else 0",
    ),
    Key(
        "local.state_dir",
        "state_dir",
        _read_directory,
        "~/.local/state/dlapp",
        "directory",
        "queue, histories and logs of this machine; not on a network file system",
    ),
    Key(
        "local.shared",
        "shared",
        read_boolean,
        "false",
        "true or false",
        "the state directory is shared by the group that owns it",
    ),
    Key(
        "local.fs_root",
        "fs_root",
        _read_directory,
        "/",
        "directory",
        "where absolute paths of from_hdfs and to_hdfs without a scheme begin",
    ),
    Key("local.memory", "memory_mib", read_memory_mib, "", "memory", "memory for all applications together"),
    Key("local.vcores", "vcores", _read_cores, "", "count", "virtual cores for all applications together"),
    Key("local.gcores", "gcores", read_count, "", "count", "the most GPUs for all applications together"),
    Key(
        "gpuid.lock_dir",
        "lock_dir",
        _read_directory,
        "/run/lock/dlapp",
        "directory",
        "the machine's ledger of GPUs; one for everybody on the machine",
    ),
    Key(
        "gpuid.allowed_processes",
        "allowed_processes",
        _read_programs,
        "Xorg, Xwayland, gnome-shell, nvidia-cuda-mps-server, nvidia-persistenced, nv-hostengine, dcgmi",
        "names",
        "programs that may be on a card which nobody holds; read on the host of the card",
    ),
    Key(
        "gpuid.temperature_limit",
        "temperature_limit_c",
        _read_temperature,
        "",
        "count, °C",
        "a hotter card is not given out; none is the temperature at which it slows itself down; read there, too",
    ),
    Key(
        "gpuid.zookeeper.ensemble",
        "ensemble",
        _read_ensemble,
        "",
        "host:port,…",
        "the servers of the ledger of GPUs of a cluster",
    ),
    Key("gpuid.zookeeper.root", "root", _read_znode, "/dlapp", "path", "the znode under which that ledger lies"),
    Key(
        "gpuid.zookeeper.credentials",
        "credentials",
        _read_directory,
        "",
        "file",
        "a file of mode 0600 with `user:password`; only who has it writes that ledger",
    ),
    Key(
        "gpuid.zookeeper.session_timeout",
        "session_timeout_s",
        read_duration_s,
        "10s",
        "duration",
        "how long its servers keep a session without a sign of life; no lease depends on it",
    ),
    Key(
        "runtime.log_limit",
        "log_limit_bytes",
        read_size_bytes,
        "1g",
        "size",
        "the most that is kept of each of a payload's stdout and stderr",
    ),
    Key(
        "runtime.kill_grace_max",
        "kill_grace_max_s",
        read_duration_s,
        "1h",
        "duration",
        "the longest kill_grace that a file may ask for",
    ),
    Key(
        "runtime.docker.host",
        "host",
        _read_docker_host,
        "unix:///var/run/docker.sock",
        "address",
        "the Docker daemon",
    ),
    Key("runtime.docker.network", "network", _read_word, "host", "name", "the network of Docker payloads"),
    Key(
        "runtime.docker.gpu_mode",
        "gpu_mode",
        _read_gpu_mode,
        "auto",
        "auto, cdi, gpus, runtime, nvidia-docker, devices or none",
        "how containers get their GPUs; auto is the first of these that is there",
    ),
    Key(
        "storage.workspace_limit",
        "workspace_limit_bytes",
        read_size_bytes,
        "10g",
        "size",
        "the largest workspace that is packed",
    ),
    Key(
        "storage.cache_limit",
        "cache_limit_bytes",
        read_size_bytes,
        "20g",
        "size",
        "the most that packed workspaces of the past may take, and input that is kept on a node, each",
    ),
    Key("storage.cache_age", "cache_age_s", read_duration_s, "30d", "duration", "how long an unused one is kept"),
    Key("history.age", "age_s", read_duration_s, "90d", "duration", "how long an ended application is kept"),
    Key("history.limit", "limit_bytes", read_size_bytes, "10g", "size", "the most that ended applications may take"),
    Key(
        "yarn.conf_dir",
        "conf_dir",
        _read_directory,
        "",
        "directory",
        "the cluster's core-site.xml, hdfs-site.xml and yarn-site.xml; without it `$HADOOP_CONF_DIR`",
    ),
    Key(
        "yarn.dialect",
        "dialect",
        _read_dialect,
        "auto",
        "auto, gcores, yarn.io/gpu, field3 or none",
        "how the cluster counts GPUs; auto is as its ResourceManager says",
    ),
    Key(
        "yarn.python",
        "python",
        _read_word,
        "python3",
        "path or name",
        "the Python of the nodes, 3.11 or later; a name is looked up on a container's PATH",
    ),
    Key(
        "yarn.python_archive",
        "python_archive",
        _read_place,
        "",
        "place on HDFS",
        "a Python that containers are brought: .tar.gz, .tgz, .tar or .zip; `yarn.python` is then the path in it, "
        "`bin/python3` where that is not set",
    ),
    Key("yarn.am_memory", "am_memory_mib", read_memory_mib, "256m", "memory", "memory of an ApplicationMaster"),
    Key(
        "yarn.am_attempts",
        "am_attempts",
        _read_attempts,
        "2",
        "count",
        "how many ApplicationMasters an application may use up; the cluster's own limit holds above it",
    ),
)


class _Found(NamedTuple):
    text: str
    origin: str


def load_config(
    options: Mapping[str, str] | None = None,
    environ: Mapping[str, str] = os.environ,
    *,
    system_file: str = SYSTEM_FILE,
) -> Config:
    """Read the configuration from files, variables and options.

    Args:
        options: key (``local.state_dir``) -> text, from a command's options; they win.
        environ: gives HOME, DLAPP_CONFIG and the keys' variables. An empty variable counts as absent.

    Raises:
        ConfigError: a file cannot be read or is no YAML, a key is not known or stands twice, a value is not possible;
            all faults at once, a line each.
    """
    faults: list[str] = []
    found: dict[str, _Found] = {}
    home = environ.get("HOME") or os.path.expanduser("~")
    required = environ.get(FILE_VARIABLE, "")
    for path in (system_file, _under_home(USER_FILE, home), required):
        if path:
            found.update(_from_file(path, path == required, faults))
    found.update(_from_variables(environ, faults))
    by_name = {key.name: key for key in KEYS}
    for name, text in (options or {}).items():
        if name in by_name:
            found[name] = _Found(text, "option")
        else:
            faults.append(f"option {name}: is not known, {nearest(name, by_name)}")
    config = _tree(found, home, faults)
    if faults:
        raise ConfigError("\n".join(faults))
    return config


def _under_home(path: str, home: str) -> str:
    return home + path[1:] if path == "~" or path.startswith("~/") else path


def _from_variables(environ: Mapping[str, str], faults: list[str]) -> dict[str, _Found]:
    by_variable = {key.variable: key for key in KEYS}
    found: dict[str, _Found] = {}
    for name in sorted(name for name in environ if name.startswith(PREFIX)):
        if not environ[name] or name in NOT_KEYS or name.startswith(NOT_KEYS_PREFIXES):
            continue
        if name in by_variable:
            found[by_variable[name].name] = _Found(environ[name], name)
        else:
            faults.append(f"variable {name}: is not known, {nearest(name, by_variable)}")
    return found


def _from_file(path: str, must_exist: bool, faults: list[str]) -> dict[str, _Found]:
    try:
        with open(path, "rb") as stream:
            data = stream.read(MOST_FILE_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError) as error:
        if must_exist:
            faults.append(f"{path}: {error.strerror} ({FILE_VARIABLE} names it)")
        return {}
    except OSError as error:
        faults.append(f"{path}: {error.strerror}")
        return {}
    if len(data) > MOST_FILE_BYTES:
        faults.append(f"{path}: is larger than {MOST_FILE_BYTES >> 20} MiB")
        return {}
    return _from_yaml(data, path, faults)


def _from_yaml(data: bytes, path: str, faults: list[str]) -> dict[str, _Found]:
    """The keys of one file. The nodes are read, not the values: they know their lines, and 10:30 stays text."""
    import yaml

    try:
        root = yaml.compose(data.decode("utf-8-sig"), Loader=yaml.SafeLoader)
    except UnicodeDecodeError as error:
        before = data[: error.start]
        faults.append(f"{path}:{before.count(10) + 1}: is not UTF-8")
        return {}
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        at = f":{mark.line + 1}" if mark else ""
        faults.append(f"{path}{at}: is no YAML: {getattr(error, 'problem', None) or 'cannot be read'}")
        return {}
    found: dict[str, _Found] = {}
    if root is None:
        return found
    names = [key.name for key in KEYS]
    levels = dict.fromkeys(name.rpartition(".")[0] for name in names)
    for name, line, node in _leaves(root, "", levels, yaml):
        where = f"{path}:{line}"
        if name in found:
            faults.append(f"{where}: {name}: stands twice, first in line {found[name].origin.rpartition(':')[2]}")
        elif name in levels and _is_empty(node):
            continue  # "local:" with all its keys commented out
        elif name in levels or (name in names and not isinstance(node, yaml.ScalarNode)):
            faults.append(f"{where}: {name or 'the file'}: {_not_this(name, levels)}")
        elif name not in names:
            faults.append(f"{where}: {name}: is not known, {nearest(name, [*filter(None, levels), *names])}")
        elif _is_empty(node):
            faults.append(f"{where}: {name}: is empty")
        else:
            found[name] = _Found(node.value, where)
    return found


def yaml_leaves(
    data: bytes, path: str, levels: Sequence[str], faults: list[str]
) -> Iterator[tuple[str, int, list[str] | None]]:
    """The keys of another file of ours that is YAML: name, line, and the texts of its value or of its list.

    A single text is split at commas. None: it is something else than a value or a list of values.

    Args:
        levels: names that have keys under them.
    """
    import yaml

    try:
        root = yaml.compose(data.decode("utf-8-sig"), Loader=yaml.SafeLoader)
    except (UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        at = f":{mark.line + 1}" if mark else ""
        faults.append(f"{path}{at}: is no YAML: {getattr(error, 'problem', None) or 'cannot be read'}")
        return
    if root is None:
        return
    for name, line, node in _leaves(root, "", dict.fromkeys(levels), yaml):
        if name in levels and _is_empty(node):
            continue
        parts = node.value if isinstance(node, yaml.SequenceNode) else [node]
        if not all(isinstance(part, yaml.ScalarNode) for part in parts):
            yield name, line, None
        elif parts is node.value:
            yield name, line, [part.value for part in parts]
        else:
            yield name, line, [part for part in map(str.strip, node.value.split(",")) if part and not _is_empty(node)]


def plain_yaml(data: bytes) -> Any:
    """A YAML (or JSON) file of somebody else's, as plain values. Raises ValueError."""
    import yaml

    try:
        return yaml.safe_load(data)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"is no YAML: {getattr(error, 'problem', None) or 'cannot be read'}") from error


def _not_this(name: str, levels: Mapping[str, None]) -> str:
    return "must be a level with keys under it" if name in levels else "must be a single value"


def _is_empty(node: yaml.Node) -> bool:
    return bool(node.value == "" and node.tag.endswith(":null")) or node.value in ("", "~", "null")


def _leaves(
    node: yaml.Node, prefix: str, levels: Mapping[str, None], yaml: Any
) -> Iterator[tuple[str, int, yaml.Node]]:
    """Each key with its line (from 1) and its node: scalars, and whatever stands where no level of ours is."""
    if not isinstance(node, yaml.MappingNode):
        yield prefix, node.start_mark.line + 1, node
        return
    for key, value in node.value:
        name = f"{prefix}.{key.value}" if prefix else str(key.value)
        if name in levels and isinstance(value, yaml.MappingNode):
            yield from _leaves(value, name, levels, yaml)
        else:
            yield name, key.start_mark.line + 1, value


def _tree(found: Mapping[str, _Found], home: str, faults: list[str]) -> Config:
    values: dict[str, dict[str, Any]] = {}
    texts: dict[str, str] = {}
    origins: dict[str, str] = {}
    for key in KEYS:
        text, origin = found.get(key.name) or _Found(key.default, "default")
        value: Any = None
        if origin != "default" or text:
            if key.read is _read_directory:
                text = _under_home(text, home)
            texts[key.name] = text
            try:
                value = key.read(text)
            except ValueError as problem:
                faults.append(f"{'option' if origin == 'option' else origin}: {key.name}: {problem}")
        origins[key.name] = origin
        values.setdefault(key.name.rpartition(".")[0], {})[key.field] = value
    return Config(
        cluster=values[""]["cluster"],
        defaults=DefaultsConfig(**values["defaults"]),
        local=LocalConfig(**values["local"]),
        gpuid=GpuidConfig(**values["gpuid"], zookeeper=ZooKeeperConfig(**values["gpuid.zookeeper"])),
        runtime=RuntimeConfig(**values["runtime"], docker=DockerConfig(**values["runtime.docker"])),
        storage=StorageConfig(**values["storage"]),
        history=HistoryConfig(**values["history"]),
        yarn=YarnConfig(**values["yarn"]),
        texts=texts,
        origins=origins,
    )


def keys_as_markdown() -> str:
    """The table of keys as docs/configuration.md shows it."""
    lines = ["| key | variable | value | default | meaning |", "|---|---|---|---|---|"]
    for key in KEYS:
        default = f"`{key.default}`" if key.default else "what there is" if key.name.startswith("local.") else "none"
        lines.append(f"| `{key.name}` | `{key.variable}` | {key.kind} | {default} | {key.meaning} |")
    return "\n".join(lines) + "\n"
