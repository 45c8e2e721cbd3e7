"""The configuration: dlapp's directories, servers, defaults and limits.

Each source overrides those before it: the defaults below, ``/etc/dlapp/config.yaml``, ``~/.config/dlapp/config.yaml``,
the file in ``$DLAPP_CONFIG``, ``DLAPP_*`` variables, options of a command. A key is declared once, as a field with its
reader; parsing, defaults, the names of the variables and docs/configuration.md are derived from `Config`. A value is
parsed from its text, in the same way for each source: ``memory: 4g`` in a file and ``DLAPP_DEFAULTS_MEMORY=4g`` are
equal.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection, Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from dlapp.errors import ConfigError
from dlapp.system.text import (
    nearest,
    read_boolean,
    read_choice,
    read_count,
    read_duration_s,
    read_limit_bytes,
    read_memory_mib,
    read_size_bytes,
    shown,
)
from dlapp.system.yaml_keys import key, keys_of, level, section_fields, yaml_values
from dlapp.value import Value, replace
from dlapp.values.notification import EVENTS, JSON, NO_TLS, SLACK, START_TLS, TLS

if TYPE_CHECKING:
    from dlapp.values.idle_guard import IdleGuard

SYSTEM_FILE = "/etc/dlapp/config.yaml"
USER_FILE = "~/.config/dlapp/config.yaml"
MAX_FILE_BYTES = 32 << 10
XID_CLASSES = ("ignore", "program", "program-probe", "reset", "node")
"""What may follow from an Xid error of a GPU (`dlapp.gpuid.health.xids`)."""
MAX_XID = 9999
_MAPPINGS = ("gpuid.xids",)
"""Keys that may have a mapping in a file."""
_SUGGESTIONS = 0.75
"""Similarity to a known variable (difflib's ratio) from which an unknown variable is refused as a misspelling. Other
unknown variables belong to the user or to another version: they are ignored, with a message."""

FILE_VARIABLE = "DLAPP_CONFIG"
PREFIX = "DLAPP_"
NOT_KEYS = frozenset(
    f"DLAPP_{name}"
    for name in (
        *("CONFIG", "REQUIRE", "CONTEXT", "APP_ID", "ATTEMPT", "CONTAINER_ID"),
        *("ROLE", "ROLE_INDEX", "ROLE_SIZE", "WORKSPACE", "INPUT", "OUTPUT"),
    )
)
"""Variables of dlapp that are not keys: variables of the commands, and variables in the environment of a payload."""
NOT_KEYS_PREFIXES = ("DLAPP_INPUT_", "DLAPP_OUTPUT_", "DLAPP_SHELL_")

NO_CREDENTIALS = (
    "gpuid.zookeeper.credentials is not set: name a file of mode 0600 with user:password, or write none if everybody "
    "who reaches ZooKeeper may write the ledger of GPUs"
)


def variable_of(name: str) -> str:
    """Return the variable that sets a key: ``DLAPP_LOCAL_STATE_DIR``."""
    return PREFIX + name.replace(".", "_").upper()


def _read_gcores_or_auto(text: str) -> int | None:
    return None if text == "auto" else read_count(text, 0)


def _read_idle_guard(text: str) -> IdleGuard | None:
    if text == "off":  # the default, for which every command would load the module
        return None
    from dlapp.values.idle_guard import read_idle_guard

    return read_idle_guard(text)


def _read_directory(text: str) -> str:
    if not text.startswith("/"):
        raise ValueError(f"{shown(text)} is not an absolute path (or one under ~/)")
    return os.path.normpath(text)


def _read_directory_or(word: str, text: str) -> str:
    return text if text == word else _read_directory(text)


def _read_docker_host(text: str) -> str:
    if not text.startswith(("unix:///", "tcp://", "npipe://", "ssh://")):
        raise ValueError(f"{shown(text)} is not an address of Docker: unix:///var/run/docker.sock or tcp://host:port")
    return text


def _read_ensemble(text: str) -> str:
    for one in text.split(","):
        host, colon, port = one.rpartition(":")
        if not host or not colon or not port.isdecimal() or "/" in one or any(map(str.isspace, one)):
            raise ValueError(
                f"{shown(text)} is not an ensemble: zk1:2181,zk2:2181,zk3:2181 (the path is gpuid.zookeeper.root)"
            )
    return text


def _read_znode(text: str) -> str:
    if not text.startswith("/") or text == "/" or text.endswith("/") or "//" in text or text.startswith("/zookeeper"):
        raise ValueError(f"{shown(text)} is not a path of a znode, such as /dlapp")
    return text


def _read_programs(text: str) -> tuple[str, ...]:
    names = tuple(one.strip() for one in text.split(",") if one.strip())
    if bad := next((one for one in names if "/" in one), None):
        raise ValueError(f"{shown(bad)} is a path; the names of programs are meant, as ps -e shows them")
    return names


def _read_xids(text: str) -> Mapping[int, str]:
    found: dict[int, str] = {}
    for part in filter(None, map(str.strip, text.strip("{} ").split(","))):
        code, colon, name = (one.strip() for one in part.partition(":"))
        if not colon or not code.isdecimal() or not 0 < int(code) <= MAX_XID:
            raise ValueError(f"{shown(part)} is not a code and its class, such as 63: ignore")
        if name not in XID_CLASSES:
            raise ValueError(f"{shown(name)} is not a class of Xid {code}, {nearest(name, XID_CLASSES)}")
        if int(code) in found:
            raise ValueError(f"Xid {code} appears twice")
        found[int(code)] = name
    return MappingProxyType(found)


def _read_paths(text: str) -> tuple[str, ...]:
    paths = tuple(part.strip() for part in text.split(",") if part.strip())
    for path in paths:
        if not path.startswith("/"):
            raise ValueError(f"{shown(path)} is not an absolute path")
    return tuple(map(os.path.normpath, paths))


def _read_schemes(text: str) -> tuple[str, ...]:
    schemes = tuple(part.strip().lower().removesuffix("://") for part in text.split(",") if part.strip())
    for scheme in schemes:
        if not scheme.replace("+", "").isalnum():
            raise ValueError(f"{shown(scheme)} is not a scheme")
    return schemes


def _read_word(text: str) -> str:
    if not text or text.startswith("-") or any(character.isspace() for character in text):
        raise ValueError(f"{shown(text)} is not one word")
    return text


def _read_place(text: str) -> str:
    path = text.removeprefix("hdfs://")
    if "/" not in path or any(character.isspace() for character in text) or (path == text and not text.startswith("/")):
        raise ValueError(
            f"{shown(text)} is not a path on HDFS, such as hdfs:///apps/python.tar.gz or /apps/python.tar.gz"
        )
    return text


def read_events(text: str) -> tuple[str, ...]:
    """Parse a list of events: words of `EVENTS`, separated by commas, or ``all``, or ``none``.

    Raises:
        ValueError: a word is not an event.
    """
    if text in ("all", "none"):
        return EVENTS if text == "all" else ()
    words = tuple(dict.fromkeys(one.strip() for one in text.split(",") if one.strip()))
    if bad := next((one for one in words if one not in EVENTS), None):
        raise ValueError(f"{shown(bad)} is no event, {nearest(bad, EVENTS)} (or all, or none, alone)")
    return words


def _read_address(text: str) -> str:
    name, at, host = text.rpartition("@")
    if not (name and at and host) or not text.isprintable() or any(one in text for one in " ,<>"):
        raise ValueError(f"{shown(text)} is not a mail address")
    return text


def _read_addresses(text: str) -> tuple[str, ...]:
    return tuple(_read_address(one.strip()) for one in text.split(",") if one.strip())


def _read_mail_server(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not host or not colon or "/" in text or not text.isprintable() or " " in text:
        raise ValueError(f"{shown(text)} is not host:port, such as mail.example.org:587")
    return host.removeprefix("[").removesuffix("]"), read_count(port, 1, 65535)


def _read_command(text: str) -> tuple[str, ...]:
    import shlex

    words = tuple(shlex.split(text))
    if not words or not words[0].startswith("/"):
        raise ValueError(f"{shown(text)} does not begin with the absolute path of a program")
    return words


read_containers = partial(read_count, minimum=1, maximum=100_000)
read_vcores = partial(read_count, minimum=1)
_read_attempts = partial(read_count, minimum=1, maximum=100)


class DefaultsConfig(Value):
    """Defaults of a properties file.

    Args:
        gcores: None: 1 if the engine has GPUs, else 0.
        idle_guard: the guard of applications with GPUs; None: no guard.
    """

    containers: int = key(read_containers, "1", "count", "number of containers if a file sets none")
    vcores: int = key(read_vcores, "1", "count", "virtual cores per container, if a file sets none")
    memory_mib: int = key(read_memory_mib, "4g", "memory", "memory per container, if a file sets none", name="memory")
    gcores: int | None = key(
        _read_gcores_or_auto,
        "auto",
        "count or auto",
        "GPUs per container, if a file sets none; auto is 1 if the engine has GPUs, else 0",
    )
    idle_guard: IdleGuard | None = key(
        _read_idle_guard,
        "off",
        "UTILISATION,WINDOW,ACTION or off",
        "the action on idle GPUs, if a file sets none ([idle_guard](properties.md#idle_guard))",
    )

    def idle_guard_for(self, containers: int, *, has_gpus: bool) -> IdleGuard | None:
        """Return the guard of an application. A window below the minimum is raised to the minimum."""
        guard = self.idle_guard
        if guard is None or not has_gpus:
            return None
        from dlapp.values.idle_guard import least_window_s

        return guard if guard.window_s >= (least_s := least_window_s(containers)) else replace(guard, window_s=least_s)


class LocalConfig(Value):
    """Settings of the embedded engine; None: the amount of the machine, the cgroup or the GPU ledger."""

    state_dir: str = key(
        _read_directory,
        "~/.local/state/dlapp",
        "directory",
        "queue, histories and logs of this machine; not on a network file system",
    )
    shared: bool = key(
        read_boolean, "false", "true or false", "the state directory is shared by the group that owns it"
    )
    fs_root: str = key(
        _read_directory, "/", "directory", "the root of absolute paths without a scheme in from_hdfs and to_hdfs"
    )
    memory_mib: int | None = key(read_memory_mib, None, "memory", "memory for all applications together", name="memory")
    vcores: int | None = key(
        read_vcores, None, "count", "virtual cores for all applications together; at least 8 by default"
    )
    gcores: int | None = key(read_count, None, "count", "maximum number of GPUs for all applications together")
    am_attempts: int = key(
        _read_attempts, "2", "count", "maximum number of ApplicationMasters of an application, one after the other"
    )


class ZooKeeperConfig(Value):
    """The GPU ledger of a cluster; ``ensemble`` None: no ledger."""

    ensemble: str | None = key(
        _read_ensemble, None, "host:port,…", "the ZooKeeper servers with the GPU ledger of a cluster"
    )
    root: str | None = key(
        _read_znode,
        None,
        "path",
        "the znode of that ledger; if not set, `/dlapp/CLUSTER`, by `yarn.resourcemanager.cluster-id` or "
        "`fs.defaultFS`",
    )
    credentials: str | None = key(
        partial(_read_directory_or, "none"),
        None,
        "file or `none`",
        "a file of mode 0600 with `user:password`, which is required to write that ledger; `none` lets everybody write "
        "it. If not set, no GPUs are leased",
    )
    ca: str | None = key(
        partial(_read_directory_or, "system"),
        None,
        "file or `system`",
        "use TLS with these servers, which have certificates of the CAs in this file (PEM), or of the system's",
    )
    certificate: str | None = key(
        _read_directory,
        None,
        "file",
        "a file of mode 0600 with a certificate and its key (PEM), for servers that require one of clients",
    )
    session_timeout_s: float = key(
        read_duration_s,
        "10s",
        "duration",
        "the session timeout of ZooKeeper; no lease depends on it",
        name="session_timeout",
    )


class GpuidConfig(Value):
    """Settings of the GPU ledger."""

    lock_dir: str = key(
        _read_directory,
        "/run/lock/dlapp",
        "directory",
        "the directory of the machine's GPU ledger; the same for all users of the machine",
    )
    allowed_processes: tuple[str, ...] = key(
        _read_programs,
        "Xorg, Xwayland, gnome-shell, nvidia-cuda-mps-server, nvidia-persistenced, nv-hostengine, dcgmi",
        "names",
        "programs that may use a GPU without a lease; read on the host of the GPU",
    )
    temperature_limit_c: int | None = key(
        partial(read_count, minimum=30, maximum=150),
        None,
        "count, °C",
        "a hotter GPU is not leased; none is its slowdown temperature; read on the host of the GPU",
        name="temperature_limit",
    )
    xids: Mapping[int, str] | None = key(
        _read_xids,
        None,
        "code: class,…",
        "classes of [Xid errors](gpu.md#xid-errors) in place of those of the table: `{63: ignore, 94: reset}`; read "
        "on the host of the GPU",
    )
    zookeeper: ZooKeeperConfig = level(ZooKeeperConfig)


class DockerConfig(Value):
    """Settings of Docker for payloads; ``gpu_mode`` is one of `dlapp.node_policy.GPU_MODES`, ``auto`` or ``none``."""

    host: str = key(_read_docker_host, "unix:///var/run/docker.sock", "address", "the address of the Docker daemon")
    network: str = key(_read_word, "bridge", "name", "the network of programs in Docker, if a file sets none")
    gpu_mode: str = key(
        partial(read_choice, allowed=("auto", "cdi", "gpus", "runtime", "nvidia-docker", "devices", "none")),
        "auto",
        "auto, cdi, gpus, runtime, nvidia-docker, devices or none",
        "how containers get their GPUs; auto is the first available mode",
    )


class RuntimeConfig(Value):
    """Settings of payloads."""

    log_limit_bytes: int = key(
        read_size_bytes, "1g", "size", "maximum size of a payload's stdout, and of its stderr", name="log_limit"
    )
    kill_grace_max_s: float = key(
        read_duration_s, "1h", "duration", "maximum of kill_grace in a file", name="kill_grace_max"
    )
    docker: DockerConfig = level(DockerConfig)


class StorageConfig(Value):
    """Settings of storage: protocols of HDFS, packed workspaces, caches."""

    hdfs: str = key(
        partial(read_choice, allowed=("webhdfs", "native", "auto")),
        "auto",
        "auto, native or webhdfs",
        "the way to the files on HDFS: HDFS's own protocols where their ports answer, or always, or WebHDFS",
    )
    workspace_limit_bytes: int = key(
        read_size_bytes, "10g", "size", "maximum size of a workspace", name="workspace_limit"
    )
    cache_limit_bytes: int = key(
        read_size_bytes,
        "20g",
        "size",
        "maximum size of the packed workspaces, and of a node's input cache",
        name="cache_limit",
    )
    cache_age_s: float = key(
        read_duration_s,
        "30d",
        "duration",
        "how long an unused workspace, input or cache of programs is kept",
        name="cache_age",
    )
    payload_cache_limit_bytes: int = key(
        read_limit_bytes,
        "50g",
        "size",
        "maximum size of a user's caches of programs (`cache.NAME`) on a node; 0: there are none",
        name="payload_cache_limit",
    )
    shared_paths: tuple[str, ...] = key(
        _read_paths,
        "",
        "paths",
        "directories that are the same on this machine and on all nodes of the cluster, separated by commas; input in "
        "them can be `file://` on a cluster",
    )
    node_schemes: tuple[str, ...] = key(
        _read_schemes,
        "",
        "names",
        "schemes of input, such as `s3, gs`, whose libraries are installed in the Python of all nodes of the cluster",
    )


class HistoryConfig(Value):
    """Retention of ended applications."""

    age_s: float = key(
        read_duration_s, "90d", "duration", "how long an ended application is kept in the history", name="age"
    )
    limit_bytes: int = key(read_size_bytes, "10g", "size", "maximum size of the history", name="limit")


class YarnConfig(Value):
    """Settings of a Hadoop cluster; ``conf_dir`` None: $HADOOP_CONF_DIR."""

    conf_dir: str | None = key(
        _read_directory,
        None,
        "directory",
        "the directory of the cluster's core-site.xml, hdfs-site.xml and yarn-site.xml; if not set, `$HADOOP_CONF_DIR`",
    )
    dialect: str = key(
        partial(read_choice, allowed=("auto", "gcores", "yarn.io/gpu", "field3", "none")),
        "auto",
        "auto, gcores, yarn.io/gpu, field3 or none",
        "how the cluster counts GPUs; auto is what its ResourceManager reports",
    )
    python: str = key(
        _read_word,
        "python3",
        "path or name",
        "the Python of the nodes, 3.11 or later; a name is looked up on a container's PATH",
    )
    python_archive: str | None = key(
        _read_place,
        None,
        "path on HDFS",
        "an archive of Python for containers: .tar.gz, .tgz, .tar or .zip; `yarn.python` is then the path in it, "
        "`bin/python3` if not set",
    )
    am_memory_mib: int = key(read_memory_mib, "256m", "memory", "memory of an ApplicationMaster", name="am_memory")
    am_attempts: int = key(
        _read_attempts,
        "2",
        "count",
        "maximum number of ApplicationMasters of an application; the cluster's own limit applies, too",
    )
    am_node_label: str | None = key(
        _read_word,
        None,
        "label",
        "the label of the nodes that ApplicationMasters run on; if not set, the default of the queue",
    )


class NotifyConfig(Value):
    """Settings of notifications; secrets are in files. A channel that is None is not used."""

    events: tuple[str, ...] = key(
        read_events,
        "failed, killed, done",
        "names",
        "the events that notify you, if a file sets none (`notify`), see [Notifications](notifications.md)",
    )
    waiting_after_s: float = key(
        read_duration_s,
        "1h",
        "duration",
        "how long an application waits for containers before the event `waiting`",
        name="waiting_after",
    )
    webhook: str | None = key(
        _read_directory,
        None,
        "file",
        "a file of mode 0600 with the URL of a webhook, and further headers of its requests, one per line",
    )
    webhook_form: str = key(
        partial(read_choice, allowed=(JSON, SLACK)), JSON, "json or slack", "the form of the posted message"
    )
    mail: tuple[str, ...] | None = key(_read_addresses, None, "addresses", "the recipients of mails")
    mail_from: str | None = key(_read_address, None, "address", "its sender; if not set, the first of them")
    smtp: tuple[str, int] = key(_read_mail_server, "localhost:25", "host:port", "the mail server")
    smtp_security: str = key(
        partial(read_choice, allowed=(START_TLS, TLS, NO_TLS)),
        NO_TLS,
        "starttls, tls or none",
        "encryption of the connection; required with `notify.smtp_credentials`",
    )
    smtp_credentials: str | None = key(_read_directory, None, "file", "a file of mode 0600 with `user:password` for it")
    command: tuple[str, ...] | None = key(
        _read_command,
        None,
        "words",
        "a program and its arguments, run for each event; on the nodes of a cluster only if they allow it",
    )


class MetricsConfig(Value):
    """Metrics for Prometheus; ``targets`` None: ApplicationMasters write no target files."""

    targets: str | None = key(
        _read_directory,
        None,
        "directory",
        "where each ApplicationMaster, on its machine, writes the target file for [Prometheus](metrics.md)",
    )


class Config(Value, kw_only=True):
    """The whole configuration.

    Args:
        texts: key -> value as written; ``load_config(options=texts)`` returns an equal configuration on any machine.
        origins: key -> source of the value: ``default``, ``/etc/dlapp/config.yaml:3``, ``DLAPP_CLUSTER``, ``option``.
        ignored: a message for each ``DLAPP_*`` variable that is not a key and not similar to one.
    """

    cluster: str = key(
        partial(read_choice, allowed=("local", "yarn")),
        "local",
        "local or yarn",
        "the engine that applications are submitted to",
    )
    defaults: DefaultsConfig = level(DefaultsConfig)
    local: LocalConfig = level(LocalConfig)
    gpuid: GpuidConfig = level(GpuidConfig)
    runtime: RuntimeConfig = level(RuntimeConfig)
    storage: StorageConfig = level(StorageConfig)
    history: HistoryConfig = level(HistoryConfig)
    yarn: YarnConfig = level(YarnConfig)
    metrics: MetricsConfig = level(MetricsConfig)
    notify: NotifyConfig = level(NotifyConfig)
    texts: Mapping[str, str]
    origins: Mapping[str, str]
    ignored: tuple[str, ...] = ()


KEYS = keys_of(Config)
"""The keys by name, in the order of docs/configuration.md."""


_DATA = ("local.fs_root", "storage.shared_paths", "gpuid.lock_dir", "local.state_dir")
"""Keys that name directories of data: nothing in them is run or read as configuration. Of the state directory the
commands know the part that they use."""
_PATHS = ("file", "directory", "directories")
"""Beginnings of the kinds of keys whose values are paths."""


def obeyed_paths(config: Config) -> dict[str, list[str]]:
    """Return the absolute paths that a configuration names, and that dlapp reads as secrets or configuration, or runs
    on this machine, by key. So no container may change what is there."""
    found = {}
    for name, one in KEYS.items():
        text = config.texts.get(name)
        if name in _DATA or not text:
            continue
        words = _read_command(text) if one.read is _read_command else [text] if one.kind.startswith(_PATHS) else []
        if paths := [word for word in words if word.startswith("/")]:
            found[name] = paths
    return found


class _Found(NamedTuple):
    text: str
    origin: str


def load_config(
    options: Mapping[str, str] | None = None,
    environ: Mapping[str, str] = os.environ,
    *,
    system_file: str = SYSTEM_FILE,
    is_of_machine: bool = False,
) -> Config:
    """Read the configuration from files, variables and options.

    Args:
        options: key (``local.state_dir``) -> text, from a command's options; they override all other sources.
        environ: environment with HOME, DLAPP_CONFIG and the keys' variables. An empty variable counts as not set.
        system_file: the file of the machine.
        is_of_machine: do not read the user's file, for a program that serves all users.

    Raises:
        ConfigError: a file cannot be read or is not YAML, a key is unknown or appears twice, a value is invalid. The
            message has one line for each error.
    """
    problems: list[str] = []
    found: dict[str, _Found] = {}
    home = environ.get("HOME") or os.path.expanduser("~")
    required = environ.get(FILE_VARIABLE, "")
    for path in (system_file, "" if is_of_machine else _under_home(USER_FILE, home), required):
        if path:
            found.update(_from_file(path, path == required, problems))
    ignored: list[str] = []
    found.update(_from_variables(environ, problems, ignored))
    for name, text in (options or {}).items():
        if name in KEYS:
            found[name] = _Found(text, "option")
        else:
            problems.append(f"option {name}: is not known, {nearest(name, KEYS)}")
    return _config_of(found, home, problems, tuple(ignored))


def config_of_texts(texts: Mapping[str, str]) -> Config:
    """Return the configuration with the given `Config.texts`, without reading files or variables.

    Raises:
        ConfigError: a value is invalid.
    """
    return _config_of({name: _Found(text, "option") for name, text in texts.items()}, os.path.expanduser("~"), [], ())


def config_files() -> list[str]:
    """Return the paths of a user's own configuration files, whether they exist or not."""
    return [os.path.expanduser(USER_FILE), *filter(None, [os.environ.get(FILE_VARIABLE)])]


def _under_home(path: str, home: str) -> str:
    return home + path[1:] if path == "~" or path.startswith("~/") else path


def _from_variables(environ: Mapping[str, str], problems: list[str], ignored: list[str]) -> dict[str, _Found]:
    by_variable = {variable_of(name): name for name in KEYS}
    found: dict[str, _Found] = {}
    for name in sorted(name for name in environ if name.startswith(PREFIX)):
        if not environ[name] or name in NOT_KEYS or name.startswith(NOT_KEYS_PREFIXES):
            continue
        if name in by_variable:
            found[by_variable[name]] = _Found(environ[name], name)
        elif (near := _suggestion(name, by_variable))[0]:
            problems.append(f"variable {name}: is not known, the nearest is {near[0]}")
        else:
            hint = f"; the nearest is {near[1]}" if near[1] else ""
            ignored.append(f"the variable {name} is not known and has no effect{hint}")
    return found


def _suggestion(name: str, known: Collection[str]) -> tuple[str, str]:
    """Return the known variable of which an unknown one is a misspelling, and else the nearest; empty: none."""
    import difflib

    rest = name[len(PREFIX) :][:100]
    whole = [one for one in known if "_" in rest and one.endswith(f"_{rest}")]  # a level is missing: STATE_DIR
    by_rest = {one[len(PREFIX) :]: one for one in known}
    close = difflib.get_close_matches(rest.upper(), by_rest, n=1, cutoff=_SUGGESTIONS)
    if meant := [*whole, *(by_rest[one] for one in close)]:
        return meant[0], ""
    far = difflib.get_close_matches(rest.upper(), by_rest, n=1, cutoff=0.5)
    return "", by_rest[far[0]] if far else ""


def _from_file(path: str, must_exist: bool, problems: list[str]) -> dict[str, _Found]:
    try:
        data, problem = _content(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        if must_exist:
            problems.append(f"{path}: {error.strerror} ({FILE_VARIABLE} names it)")
        return {}
    except OSError as error:
        problems.append(f"{path}: {error.strerror}")
        return {}
    if problem:
        problems.append(f"{path}: {problem}")
        return {}
    values = yaml_values(data, path, KEYS, problems, mappings=_MAPPINGS)
    return {name: _Found(one.texts[0], one.where) for name, one in values.items()}


def _content(path: str) -> tuple[bytes, str]:
    """Return the content of a configuration file, or why it is not trusted.

    The configuration decides where dlapp writes and which programs it runs, so no other user may change the file.

    Raises:
        OSError: it cannot be opened or read.
    """
    uid = os.geteuid()
    if uid == 0 and os.stat(path):  # raises FileNotFoundError: a missing file is not an error
        from dlapp.system.owners import who_may_change

        if who := who_may_change(path):
            return b"", f"may be changed by {who}, so root does not read it (set HOME, as sudo -H does)"
    # Non-blocking: it may be a FIFO.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        found = os.fstat(fd)
        if stat.S_ISDIR(found.st_mode):
            return b"", os.strerror(errno.EISDIR)
        if not stat.S_ISREG(found.st_mode):
            return b"", "" if path == os.devnull else "is not a regular file"
        if found.st_uid not in (0, uid):
            return b"", f"belongs to uid {found.st_uid}, so it is not read"
        if uid == 0 and found.st_mode & stat.S_IWGRP and found.st_gid != 0:
            return b"", f"may be written by the group {found.st_gid}, so root does not read it"
        if found.st_mode & stat.S_IWOTH:
            return b"", "may be written by everybody, so it is not read"
        data = b""
        while len(data) <= MAX_FILE_BYTES and (piece := os.read(fd, MAX_FILE_BYTES + 1 - len(data))):
            data += piece
        return data, f"is larger than {MAX_FILE_BYTES >> 10} KiB" if len(data) > MAX_FILE_BYTES else ""
    finally:
        os.close(fd)


def read_secret(path: str, key: str, most: int) -> str:
    """Return the text of a secret file. Raises ConfigError: it cannot be read, or other users may read it.

    Args:
        key: key of the configuration that has this path, for messages.
        most: maximum length of the text.
    """
    try:
        with open(path, encoding="utf-8") as file:
            if os.fstat(file.fileno()).st_mode & 0o077:
                raise ConfigError(f"{key}: {path} may be read by others; chmod 600 {path}")
            return file.read(most).strip()
    except (OSError, UnicodeDecodeError) as error:
        what = error.strerror if isinstance(error, OSError) else "is not UTF-8"
        raise ConfigError(f"{key}: {path}: {what}") from error


def _config_of(found: Mapping[str, _Found], home: str, problems: list[str], ignored: tuple[str, ...]) -> Config:
    values: dict[str, Any] = {}
    texts: dict[str, str] = {}
    origins: dict[str, str] = {}
    for name, one in KEYS.items():
        text, origins[name] = found.get(name) or _Found(one.default_text or "", "default")
        if not text and name not in found:
            values[name] = one.default_value()
            continue
        texts[name] = text = _under_home(text, home) if one.read is _read_directory else text
        try:
            values[name] = one.read(text)
        except ValueError as problem:
            problems.append(f"{origins[name]}: {name}: {problem}")
    if problems:
        raise ConfigError("\n".join(problems))
    return Config(**section_fields(Config, values), texts=texts, origins=origins, ignored=ignored)
