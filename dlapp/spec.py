"""Specification of an application: the values that a properties file becomes, and what is submitted of them.

All are frozen, checked when they are made, and have a JSON form (`dlapp.serialization`). A fault is a `SpecError` that
names the field as the user wrote it: ``resources.memory``, ``to_hdfs.output_path``.
"""

from __future__ import annotations

import posixpath
import re
from enum import Enum

from dlapp.errors import SpecError
from dlapp.value import Value, field

MAX_CONTAINERS = 100_000
MAX_AMOUNT = 2**31 - 1
"""Hadoop's ResourceProto carries memory as int64 but cores and counts as int32; the smaller limit holds for all."""

MAX_RETRIES = 1000
MAX_PREVIOUS = 1000
DEFAULT_KILL_GRACE_S = 30.0
DEFAULT_OUTPUT_PATIENCE_S = 86_400.0
"""A NameNode with much to read is in safe mode for an hour, and a night may pass until somebody sees that it is down or
that a disk is full."""
DEFAULT_SERVICE_PATIENCE_S = 3_600.0
"""Containers that wait hold memory and GPUs; who restarts a service has done so in less."""

_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_CACHE_NAME = re.compile("[A-Za-z0-9][A-Za-z0-9_-]{0,31}")
_NOT_FOR_CACHES = ("/dev", "/dlapp", "/etc", "/proc", "/sys", "/workspace")
_PROGRAMS = ("/bin", "/lib", "/lib32", "/lib64", "/sbin", "/usr", "/usr/bin", "/usr/lib", "/usr/lib64", "/usr/sbin")
"""What a cache at these paths would hide from the payload: devices, what dlapp mounts, the programs of the image."""
_ROLE_NAME = re.compile(r"[a-z][a-z0-9_-]{0,30}", re.ASCII)
RESERVED_ENV = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "NV_GPU",
    "LD_PRELOAD",
    "CONTAINER_INDEX",
    "NUM_CONTAINERS",
)
RESERVED_ENV_PREFIXES = ("NVIDIA_", "DLAPP_")


class StartRule(Enum):
    """Rule for the start of the payloads of a role."""

    AS_GRANTED = "granted"
    """Each as soon as its own container is ready."""
    GANG = "gang"
    """All together, once every instance of the role is ready."""


class ContainerFailure(Enum):
    """Effect on the other containers when one has failed for good."""

    STOP = "stop"
    """They are stopped, and the application has failed."""
    CONTINUE = "continue"
    """They finish, and their output is committed; then the application has failed."""


class OnFailure(Enum):
    """Treatment of the output of an application that failed."""

    KEEP = "keep"
    DROP = "drop"


class Resources(Value, kw_only=True):
    """Amounts for one container.

    Args:
        memory_mib: memory [MiB].
        vcores: virtual cores.
        gcores: GPUs; which ones is settled on the node.
    """

    memory_mib: int = 4096
    vcores: int = 1
    gcores: int = 0

    def __post_init__(self) -> None:
        for name, value, least in (
            ("memory", self.memory_mib, 1),
            ("vcores", self.vcores, 1),
            ("gcores", self.gcores, 0),
        ):
            if value < least:
                raise SpecError(f"resources.{name}", f"is {value}, the minimum is {least}")
            if value > MAX_AMOUNT:
                raise SpecError(f"resources.{name}", f"is {value}, the maximum is {MAX_AMOUNT}")

    def times(self, count: int) -> tuple[int, int, int]:
        """``count`` times this: memory [MiB], vcores, gcores."""
        return self.memory_mib * count, self.vcores * count, self.gcores * count


class RoleSpec(Value, kw_only=True):
    """One kind of container.

    Args:
        name: unique in the application; part of paths.
        instances: how many containers run it.
        resources: what each of them is given.
        script: start script, relative to the workspace; None: the application's.
        args: its arguments; None: the application's.
        docker_image: None: the application's.
        retries: how often one instance may be started again after its payload failed by itself.
        start: when its payloads may start.
        service: it does not decide the application's success and is ended when the others are done.
    """

    name: str = "worker"
    instances: int = 1
    resources: Resources = field(default_factory=Resources)
    script: str | None = None
    args: tuple[str, ...] | None = None
    docker_image: str | None = None
    retries: int = 0
    start: StartRule = StartRule.AS_GRANTED
    service: bool = False

    def __post_init__(self) -> None:
        if not _ROLE_NAME.fullmatch(self.name):
            raise SpecError("roles", f"{self.name!r} is not a name: small letters, digits, '-' and '_', 31 at most")
        if not 1 <= self.instances <= MAX_CONTAINERS:
            raise SpecError("resources.containers", f"is {self.instances}, allowed are 1 to {MAX_CONTAINERS}")
        if not 0 <= self.retries <= MAX_RETRIES:
            raise SpecError(f"roles.{self.name}.retries", f"is {self.retries}, allowed are 0 to {MAX_RETRIES}")


class Placement(Value, kw_only=True):
    """Placement of containers, which has no effect on one machine; and the GPUs of their node that they get.

    Args:
        spread: the GPUs of a container are to be far from each other and from those in use, not close together.
    """

    nodes: tuple[str, ...] = ()
    exclude_nodes: tuple[str, ...] = ()
    node_label: str | None = None
    spread: bool = False


class InputSpec(Value, kw_only=True):
    """One ``[from_hdfs]`` section.

    Args:
        name: the section's NAME, empty for the plain section.
        sources: locations with a scheme (``file:///data/train/*``), patterns allowed.
        input_path: where they land, relative to the workspace; with ``as_list`` the file that names them.
        unpack: the sources are archives, and what is in them is wanted.
        as_list: nothing is brought, but a list of the files is written.
        shard: each container gets its part of the files.
        optional: a source that matches nothing is passed over; ``input_path`` may stay empty.
    """

    name: str = ""
    sources: tuple[str, ...]
    input_path: str
    unpack: bool = False
    as_list: bool = False
    shard: bool = False
    optional: bool = False

    def __post_init__(self) -> None:
        section = f"from_hdfs {self.name}".strip()
        if not self.sources:
            raise SpecError(f"{section}.hdfs", "is empty")
        check_inside_workspace(f"{section}.input_path", self.input_path)
        if self.as_list and self.unpack:
            raise SpecError(
                f"{section}.archive", "is unpack, but with mode=list nothing is fetched that could be unpacked"
            )
        if self.as_list and posixpath.normpath(self.input_path) == ".":
            raise SpecError(f"{section}.input_path", "is the workspace itself; with mode=list it is the list's file")


class OutputSpec(Value, kw_only=True):
    """One ``[to_hdfs]`` section.

    Args:
        name: the section's NAME, empty for the plain section.
        output_path: what is taken, relative to the workspace.
        target: a location with a scheme (``file:///results/run1``).
        overwrite: replace what is there.
        keep_previous: with ``overwrite``, how many former outputs of dlapp's own are kept beside the target.
        on_failure: keep or drop what a failed application leaves.
    """

    name: str = ""
    output_path: str
    target: str
    overwrite: bool = False
    on_failure: OnFailure = OnFailure.KEEP
    keep_previous: int = 0

    def __post_init__(self) -> None:
        section = f"to_hdfs {self.name}".strip()
        check_inside_workspace(f"{section}.output_path", self.output_path)
        if not isinstance(self.keep_previous, int) or not 0 <= self.keep_previous <= MAX_PREVIOUS:
            raise SpecError(f"{section}.keep_previous", f"is {self.keep_previous!r}, allowed are 0 to {MAX_PREVIOUS}")
        if self.keep_previous and not self.overwrite:
            raise SpecError(f"{section}.keep_previous", "has no effect without overwrite=true")


class PayloadCache(Value):
    """A directory that a user's payloads keep on a node between runs.

    Args:
        name: of the cache; one for all of the user's applications.
        path: where a payload in Docker finds it, absolute.
    """

    name: str
    path: str

    def __post_init__(self) -> None:
        where = f"application.cache.{self.name}"
        check_cache_name(where, self.name)
        check_cache_path(where, self.path)

    @property
    def variable(self) -> str:
        """Name of the variable that has its path."""
        return "DLAPP_CACHE_" + self.name.upper().replace("-", "_")


class AppSpec(Value, kw_only=True):
    """One application, as its properties file says.

    Args:
        username: whose it is shown to be; grants nothing.
        appname: as printed, quotes included.
        docker_image: None: the payload is a plain process.
        network: Docker's network mode of its containers; None: as the operator of the machine configured it.
        workspace: absolute path of the directory to pack.
        exclude: gitignore patterns of what is not packed.
        exclude_defaults: nor are `.git`, `.venv`, `__pycache__` and `node_modules`, unless a pattern brings them back.
        script: start script, relative to the workspace.
        args: its arguments, as they arrive.
        env: names of the variables that the user sets; their values are in `Secrets`.
        max_runtime_s: seconds from the application's start to its soft-kill; None: no limit.
        kill_grace_s: seconds between SIGTERM and SIGKILL.
        output_patience_s: how long output waits for a file system that does not answer, takes no changes or is full.
        service_patience_s: how long a container waits for a service that is away before it has failed.
        on_container_failure: what becomes of the other containers when one has failed and is not tried again.
        caches: directories that stay on a node between runs.
        roles: in the order of the file.
        collect_gpus: there is no payload; what its task does is to clear up the GPU ledger of its node.
        check_node: there is no payload; its task checks its node for dlapp-doctor, with the configuration in ``args``.
    """

    username: str
    appname: str
    workspace: str
    script: str
    args: tuple[str, ...] = ()
    docker_image: str | None = None
    network: str | None = None
    exclude: tuple[str, ...] = ()
    exclude_defaults: bool = True
    queue: str | None = None
    priority: int | None = None
    project: str | None = None
    tags: tuple[str, ...] = ()
    max_runtime_s: float | None = None
    kill_grace_s: float = DEFAULT_KILL_GRACE_S
    output_patience_s: float = DEFAULT_OUTPUT_PATIENCE_S
    service_patience_s: float = DEFAULT_SERVICE_PATIENCE_S
    on_container_failure: ContainerFailure = ContainerFailure.STOP
    env: tuple[str, ...] = ()
    placement: Placement = field(default_factory=Placement)
    inputs: tuple[InputSpec, ...] = ()
    outputs: tuple[OutputSpec, ...] = ()
    caches: tuple[PayloadCache, ...] = ()
    roles: tuple[RoleSpec, ...] = field(default_factory=lambda: (RoleSpec(),))
    collect_gpus: bool = False
    check_node: bool = False

    def __post_init__(self) -> None:
        self._check_types()
        for name, text in (("username", self.username), ("appname", self.appname)):
            if not text:
                raise SpecError(f"application.{name}", "is empty")
        check_inside_workspace("application.user_shell_script", self.script)
        if "\0" in "".join(self.args):
            raise SpecError("application.user_shell_args", "has a NUL in it")
        for name in self.env:
            check_env_name(f"application.env.{name}", name)
        for tag in self.tags:
            if not tag or "," in tag or "\n" in tag:
                raise SpecError(
                    "application.tags", f"{tag!r} is not a tag: it is empty, or has a comma or line end in it"
                )
        if self.max_runtime_s is not None and self.max_runtime_s <= 0:
            raise SpecError("application.max_runtime", f"is {self.max_runtime_s:g} s, it must be above 0")
        if self.kill_grace_s < 0:
            raise SpecError("application.kill_grace", f"is {self.kill_grace_s:g} s, the minimum is 0")
        for key, seconds in (
            ("output_patience", self.output_patience_s),
            ("service_patience", self.service_patience_s),
        ):
            if seconds < 0:
                raise SpecError(f"application.{key}", f"is {seconds:g} s, the minimum is 0")
        if not self.roles:
            raise SpecError("roles", "is empty")
        gangs = [role.name for role in self.roles if role.start is StartRule.GANG]
        if self.on_container_failure is ContainerFailure.CONTINUE and gangs:
            problem = f"is continue, but the containers of {gangs[0]} only work together (start = gang)"
            raise SpecError("application.on_container_failure", problem)
        for what, names in (
            ("role", [role.name for role in self.roles]),
            ("from_hdfs", [one.name for one in self.inputs]),
            ("to_hdfs", [one.name for one in self.outputs]),
            ("to_hdfs.hdfs", [one.target.rstrip("/") for one in self.outputs]),
        ):
            if len(set(names)) != len(names):
                twice = next(name for name in names if names.count(name) > 1)
                raise SpecError(what, f"{twice!r} appears twice")
        for place, one in enumerate(self.caches):
            where = f"application.cache.{one.name}"
            for other in self.caches[:place]:
                if one.variable == other.variable:
                    raise SpecError(where, f"{one.variable} is the variable of cache.{other.name} already")
            for other in (*self.caches[:place], *self.caches[place + 1 :]):
                if f"{one.path}/".startswith(f"{other.path}/"):
                    raise SpecError(where, f"{one.path} is in that of cache.{other.name}")

    def _check_types(self) -> None:
        """Refuse values of another type: a program may make a spec, and no checker may have seen it."""
        for name in ("username", "appname", "workspace", "script", "docker_image", "network", "queue", "project"):
            if not isinstance(value := getattr(self, name), (str, type(None))):
                raise SpecError(name, f"is {value!r}, it must be text (str)")
        for name in ("args", "exclude", "tags", "env"):
            if not isinstance(words := getattr(self, name), (tuple, list)):
                raise SpecError(name, f"is {words!r}, it must be a tuple of texts")
            for place, word in enumerate(words):
                if not isinstance(word, str):
                    raise SpecError(f"{name}[{place}]", f"is {word!r}, it must be text (str)")
        for name in ("max_runtime_s", "kill_grace_s", "output_patience_s", "service_patience_s"):
            if not isinstance(value := getattr(self, name), (int, float, type(None))):
                raise SpecError(name, f"is {value!r}, it must be a number of seconds")

    @property
    def containers(self) -> int:
        """Number of containers of all roles together."""
        return sum(role.instances for role in self.roles)

    def total(self) -> tuple[int, int, int]:
        """Return what all containers request together: memory [MiB], vcores, gcores."""
        parts = [role.resources.times(role.instances) for role in self.roles]
        return sum(p[0] for p in parts), sum(p[1] for p in parts), sum(p[2] for p in parts)

    def role_of(self, index: int) -> tuple[RoleSpec, int]:
        """The role of CONTAINER_INDEX ``index`` and its place within that role."""
        for role in self.roles:
            if index < role.instances:
                return role, index
            index -= role.instances
        raise IndexError(index)


class Submission(Value, kw_only=True):
    """All that an engine and an ApplicationMaster get to know of one application; written to its staging directory.

    Args:
        spec: what the user asked for, defaults resolved.
        workspace_archive: location of the packed workspace.
        workspace_digest: its name in the cache, ``sha256-<hex>``.
        submitter: the operating system's user.
        submitted_ms: when [ms since 1970].
        log_limit_bytes: the most that is kept of each of a payload's stdout and stderr.
    """

    spec: AppSpec
    workspace_archive: str
    workspace_digest: str
    submitter: str
    submitted_ms: int
    log_limit_bytes: int = 1 << 30


class Secrets(Value, kw_only=True):
    """Secrets of an application, which travel apart from the spec, readable by the owner only.

    Args:
        control_secret: 64 hex digits; tokens are derived from it (`dlapp.messages`).
        env: variables of the user's file, for the payload only.
        environment: what a plain process takes over from the submitter's shell (PATH, HOME, LANG and the like).
    """

    control_secret: str
    env: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)


def check_inside_workspace(where: str, path: str) -> None:
    """Refuse a path that is absolute or leads out of the workspace.

    Raises:
        SpecError: it does; the message names ``where``.
    """
    if not path:
        raise SpecError(where, "is empty")
    if "\0" in path:
        raise SpecError(where, "has a NUL in it")
    if path.startswith("/"):
        raise SpecError(where, f"{path!r} is absolute; it is taken from the workspace's root")
    if posixpath.normpath(path).split("/", 1)[0] == "..":
        raise SpecError(where, f"{path!r} leads out of the workspace")


def check_cache_name(where: str, name: str) -> None:
    """Refuse a name that no cache can have. Raises SpecError; the message names ``where``."""
    if not isinstance(name, str) or not _CACHE_NAME.fullmatch(name):
        raise SpecError(where, f"{name!r} is not a name: at most 32 of A-Z, a-z, 0-9, _ and -, no _ or - first")


def check_cache_path(where: str, path: str) -> None:
    """Refuse a path at which no cache can be mounted. Raises SpecError; the message names ``where``."""
    if not isinstance(path, str) or not path.startswith("/") or path.startswith("//"):
        raise SpecError(where, f"{path!r} is not an absolute path")
    if posixpath.normpath(path) != path or not path.isprintable():
        raise SpecError(where, f"{path!r}: write it without a slash at its end, //, . and .., and control characters")
    closed = next((one for one in _NOT_FOR_CACHES if f"{path}/".startswith(f"{one}/")), None)
    if path == "/" or path in _PROGRAMS or closed is not None:
        raise SpecError(where, f"{path}: a cache cannot be mounted {'there' if closed is None else f'in {closed}'}")


def check_env_name(where: str, name: str) -> None:
    """Refuse a name that is no variable's, or that would undo a promise of ours.

    Raises:
        SpecError: it is refused; the message names ``where``.
    """
    if not _ENV_NAME.fullmatch(name):
        raise SpecError(where, f"{name!r} is not the name of a variable")
    if name in RESERVED_ENV or name.startswith(RESERVED_ENV_PREFIXES):
        raise SpecError(where, "is set by dlapp and cannot be set here")
