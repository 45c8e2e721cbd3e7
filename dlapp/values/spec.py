"""Specification of an application: the typed form of a properties file, and what is submitted with it.

All values are frozen, validated at construction, and have a JSON form (`dlapp.values.serialization`). Invalid values
raise `SpecError`, which names the field as the user wrote it: ``resources.memory``, ``to_hdfs.output_path``.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING

from dlapp.errors import SpecError
from dlapp.locations import FILE
from dlapp.system.text import MAX_SECONDS, first_repeated, lazy_pattern, nearest, shown
from dlapp.value import Value, field, replace
from dlapp.values.access import AccessList, problems_with_access
from dlapp.values.idle_guard import IdleGuard
from dlapp.values.image_name import RegistryCredentials
from dlapp.values.launch_spec import LedgerSettings, LiveWorkspace
from dlapp.values.notification import NotificationSettings
from dlapp.values.rules import Limit, Problem, found_by, limit_problems, not_text, refuse
from dlapp.values.start_conditions import After, check_after

if TYPE_CHECKING:
    from dlapp.sweep.spec import SweepSpec
    from dlapp.values.ids import ApplicationId

DEFAULT_ROLE = "worker"
"""Name of the only role of an application that declares no roles."""
MAX_CONTAINERS = 100_000
MAX_AMOUNT = 2**31 - 1
"""Hadoop's ResourceProto carries memory as int64 but cores and counts as int32; the smaller limit is used for all."""

MAX_PORTS = 100
MAX_KEEP_FAILED_S = 86_400.0
"""The kept container holds memory and cores all that time."""
AMOUNT = Limit(1, MAX_AMOUNT)
GCORES = Limit(0, MAX_AMOUNT)
GPU_MEMORY, NO_OR_GPU_MEMORY = Limit(1, MAX_AMOUNT, "MB"), Limit(0, MAX_AMOUNT, "MB")
PRIORITY = Limit(0, MAX_AMOUNT)
INSTANCES = Limit(1, MAX_CONTAINERS)
RETRIES = Limit(0, 1000)
PORTS = Limit(0, MAX_PORTS)
PREVIOUS = Limit(0, 1000)
CHECKPOINTS = Limit(1, 1000)
EPOCHS = Limit(1, 1_000_000)
FEED_SEED = Limit(0, (1 << 53) - 1)
FEED_BUFFER = Limit(16 << 20, unit="bytes")
INTERVAL = Limit(1.0, MAX_SECONDS, unit="s", whole=False)
"""Of copies that are made again and again."""
DURATION = Limit(0.0, MAX_SECONDS, unit="s", whole=False)
POSITIVE = Limit(0.0, MAX_SECONDS, unit="s", above=True, whole=False)
KEEP_FAILED = Limit(0.0, MAX_KEEP_FAILED_S, unit="s", whole=False)
DEFAULT_CHECKPOINT_EVERY_S = 600.0
DEFAULT_CHECKPOINTS = 3
DEFAULT_FEED_BUFFER_BYTES = 1 << 30
EVERY_INDEX = "all"
"""Value of `CheckpointSpec.role` if each container has its own checkpoints."""
DEFAULT_KILL_GRACE_S = 30.0
DEFAULT_OUTPUT_PATIENCE_S = 86_400.0
"""A NameNode with large metadata stays in safe mode for an hour, and a full disk or a stopped NameNode may be noticed
only the next morning."""
DEFAULT_SERVICE_PATIENCE_S = 3_600.0
"""Waiting containers hold memory and GPUs; an operator restarts a service in less time than this."""

DEFAULT_FAILURE_SETTLE_S = 30.0
"""Time after which the driver has reported a failed GPU, and tasks on live nodes have reported twice."""
DEFAULT_GANG_WINDOW_S = 600.0
"""A grant, a start and a lease take seconds each; a longer wait means that another application holds the resources."""

_TIMES = (
    ("max_runtime_s", "max_runtime", POSITIVE),
    ("hang_timeout_s", "hang_timeout", POSITIVE),
    ("kill_grace_s", "kill_grace", DURATION),
    ("output_patience_s", "output_patience", DURATION),
    ("service_patience_s", "service_patience", DURATION),
    ("gang_window_s", "gang_window", DURATION),
    ("failure_settle_s", "failure_settle", DURATION),
    ("keep_failed_s", "keep_failed", KEEP_FAILED),
)
"""Field, key and limits of each duration of an application."""
_ENV_NAME = lazy_pattern(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_CACHE_NAME = lazy_pattern("[A-Za-z0-9][A-Za-z0-9_-]{0,31}")
_NOT_FOR_CACHES = ("/dev", "/dlapp", "/etc", "/proc", "/sys", "/workspace")
_PROGRAMS = ("/bin", "/lib", "/lib32", "/lib64", "/sbin", "/usr", "/usr/bin", "/usr/lib", "/usr/lib64", "/usr/sbin")
"""Paths that a cache mounted there would hide from the payload: devices, dlapp's own mounts, the image's programs."""
_AMOUNTS = (("memory", " MiB"), ("vcores", ""), ("gcores", ""))
WHOLE_GPU, MIG_SLICE = "whole", "mig"
"""Values of `Placement.gpu`: a GPU that is not in MIG mode, and a MIG device."""
BY_DEFAULT, BY_INDEX = "auto", "index"
VISIBLE_DEVICES = BY_DEFAULT, "uuid", BY_INDEX
"""Values of `Placement.cuda_visible_devices`."""
_GPU_KIND = lazy_pattern(r"whole|mig(:(\d{1,2}c\.)?\d{1,2}g\.\d{1,4}gb([+-][a-z.]{1,16})*)?", re.ASCII)
"""Source: names of profiles in ``nvidia-smi mig -lgip`` and ``-lcip``: 1g.10gb, 1g.10gb+me, 1g.20gb+gfx, 1c.3g.40gb."""
_ROLE_NAME = lazy_pattern(r"[a-z][a-z0-9_-]{0,30}", re.ASCII)
READY_BY_PORT, READY_BY_REPORT, READY_BY_HTTP = "port", "report", "http:"
"""Values of `RoleSpec.ready`; the last one is followed by a URL path."""
URL_PATH = lazy_pattern(r"/[A-Za-z0-9._~!$&'()*+,;=:@%/?-]{0,500}", re.ASCII)
"""Path and query of a URL."""
_LINK_NAME = lazy_pattern("[A-Za-z0-9][A-Za-z0-9_-]{0,30}", re.ASCII)
MAX_LINKS = 20
_MANY_ROLES = 100
"""Number of roles above which the nearest one is not looked for: with 1000 missing ones it took seconds."""
RESERVED_ENV = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "NV_GPU",
    "LD_PRELOAD",
    "CONTAINER_INDEX",
    "NUM_CONTAINERS",
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_IMEX_CHANNELS",
)
RESERVED_ENV_PREFIXES = ("DLAPP_",)


class Gang(Enum):
    """Sets of roles whose payloads start together, once every instance of them is ready."""

    ALL = "all"
    """All roles except those that wait until others are done."""
    ROLE = "role"
    """Each role separately."""
    NONE = "none"
    """No gang: each payload starts as soon as its own container is ready."""


class Framework(Enum):
    """Framework for distributed training, whose variables the payloads get (`dlapp.frameworks`)."""

    NONE = "none"
    TENSORFLOW = "tensorflow"
    PYTORCH = "pytorch"
    """One process per container."""
    TORCHRUN = "torchrun"
    """One agent per container, which starts one process per GPU."""
    JAX = "jax"
    """One process per container."""
    MPI = "mpi"
    """Open MPI: one container runs the program, whose mpirun starts processes in all of them."""
    DMLC = "dmlc"
    """ps-lite, as in MXNet."""


class Kind(Enum):
    """Kinds of applications, by what ends them."""

    BATCH = "batch"
    """Ends when the deciding roles end."""
    SERVICE = "service"
    """Has services only, and ends by a user's order or when it is unused."""


class RoleFailure(Enum):
    """Instances to restart after the payload of one instance of a role failed, if retries are left."""

    RESTART = "restart"
    """Only that instance."""
    RESTART_GANG = "restart_gang"
    """All members of its gang."""
    FAIL = "fail"
    """No instance: the application fails, even if the role is not a deciding one."""


class Until(Enum):
    """State that a role waits for in another role."""

    STARTED = "started"
    """The payloads of all instances of the other role have started."""
    READY = "ready"
    """All instances reported ready, or accept connections on their first port, or exited successfully."""
    DONE = "done"
    """All instances exited successfully."""


class ContainerFailure(Enum):
    """Effect on the other containers when one container has failed permanently."""

    STOP = "stop"
    """Stop them; the application fails."""
    CONTINUE = "continue"
    """Let them finish and commit their output; then the application fails."""


class OnFailure(Enum):
    """Treatment of the output of a failed application."""

    KEEP = "keep"
    DROP = "drop"


class OutputFrom(Enum):
    """Containers that must create the output, in an application with a framework."""

    FIRST = "first"
    """The first one of the deciding role, as rank 0 often writes alone."""
    ALL = "all"


class Resources(Value, kw_only=True):
    """Amounts for one container.

    Args:
        memory_mib: memory [MiB].
        vcores: virtual cores.
        gcores: number of GPUs; which devices is decided on the node.
    """

    memory_mib: int = 4096
    vcores: int = 1
    gcores: int = 0

    def __post_init__(self) -> None:
        refuse(self.problems("resources"))

    def problems(self, section: str) -> Iterator[Problem]:
        """Yield what is wrong with the amounts, by the keys of a section."""
        yield from limit_problems(
            section,
            self,
            (("memory_mib", "memory", AMOUNT), ("vcores", "vcores", AMOUNT), ("gcores", "gcores", GCORES)),
        )

    def times(self, count: int) -> tuple[int, int, int]:
        """Return the amounts of ``count`` containers: memory [MiB], vcores, gcores."""
        return self.memory_mib * count, self.vcores * count, self.gcores * count


class Placement(Value, kw_only=True):
    """Placement of containers on nodes (no effect on one machine), and the choice of their GPUs within a node.

    Args:
        spread: choose GPUs far from each other and from those in use, not close together.
        gpu: kind of GPUs: `WHOLE_GPU`, `MIG_SLICE`, or `MIG_SLICE`, a colon and a profile as nvidia-smi names it.
        gpu_memory_mb: least memory of each GPU [MB, 10^6 bytes]; 0: any.
        cuda_visible_devices: how CUDA_VISIBLE_DEVICES names the GPUs: one of `VISIBLE_DEVICES`.
    """

    nodes: tuple[str, ...] = ()
    exclude_nodes: tuple[str, ...] = ()
    node_label: str | None = None
    spread: bool = False
    gpu: str = WHOLE_GPU
    gpu_memory_mb: int = 0
    cuda_visible_devices: str = BY_DEFAULT

    @property
    def has_slices(self) -> bool:
        """Return True if the containers get MIG devices."""
        return self.gpu != WHOLE_GPU

    def problems(self, section: str, gcores: int) -> Iterator[Problem]:
        """Yield what is wrong with the choice of GPUs, by the keys of a section.

        Args:
            section: section that has the number of GPUs.
            gcores: the number of GPUs of a container.
        """
        yield from found_by(check_gpu_kind, f"{section}.gpu", self.gpu)
        if self.cuda_visible_devices not in VISIBLE_DEVICES:
            words = ", ".join(VISIBLE_DEVICES)
            yield f"{section}.cuda_visible_devices", f"{self.cuda_visible_devices!r} is not one of {words}"
        yield from limit_problems(section, self, (("gpu_memory_mb", "gpu_memory", NO_OR_GPU_MEMORY),))
        if self.has_slices and gcores > 1:
            yield (
                f"{section}.gcores",
                f"is {gcores} with gpu={self.gpu}, the maximum is 1: a program sees one slice only",
            )
        if self.has_slices and self.cuda_visible_devices == BY_INDEX:
            text = "is index, and CUDA finds a MIG slice by its uuid only: use uuid, or gpu=whole"
            yield f"{section}.cuda_visible_devices", text


class Dependency(Value):
    """One condition for the start of a role: ``ROLE``, ``ROLE:ready`` or ``ROLE:done`` in a properties file."""

    role: str
    until: Until = Until.STARTED


class RoleSpec(Value, kw_only=True):
    """One kind of container.

    Args:
        name: unique in the application; part of paths.
        instances: how many containers run it.
        resources: amounts of each container.
        script: start script, relative to the workspace.
        command: the argument list of a program to run instead of a script, without a shell. If neither is set, the
            application's program runs.
        args: arguments of the script or command; None: no arguments if the role has its own program, else the
            application's.
        docker_image: None: the application's image.
        workdir: see `AppSpec`; None: the application's.
        gpu_capabilities: see `AppSpec`; None: the application's.
        env: names of the variables that only this role has, or has with another value; the values are in `Secrets`.
        placement: None: the application's placement.
        retries: how often one instance may be restarted after its payload failed by itself; if a failure restarts the
            whole gang, the limit for the failures of all instances together.
        on_failure: what is restarted after a failure; None: the gang if the role is in one.
        depends_on: start conditions of the role.
        service: the role does not decide the application's success and is ended when the others are done.
        ports: number of TCP ports of its host that are reserved for each instance.
        keep_running: the role is a ``[service NAME]``: its program is restarted after a pause whenever it exits; it is
            in no gang, stores no output, and comes after the other roles, whose NUM_CONTAINERS does not count it.
        ready: readiness check of an instance: `READY_BY_PORT`: its first port accepts connections; `READY_BY_HTTP` and
            a path: a GET of this path there succeeds; `READY_BY_REPORT`: the payload reports it. Empty: by report, or
            by port if another role waits for readiness and this role has ports.
        max_idle_s: how long its ports may have no connection before the application ends; None: no limit.
    """

    name: str = DEFAULT_ROLE
    instances: int = 1
    resources: Resources = field(default_factory=Resources)
    script: str | None = None
    command: tuple[str, ...] | None = None
    args: tuple[str, ...] | None = None
    docker_image: str | None = None
    workdir: str | None = None
    gpu_capabilities: tuple[str, ...] | None = None
    env: tuple[str, ...] = ()
    placement: Placement | None = None
    retries: int = 0
    on_failure: RoleFailure | None = None
    depends_on: tuple[Dependency, ...] = ()
    service: bool = False
    ports: int = 0
    keep_running: bool = False
    ready: str = ""
    max_idle_s: float | None = None

    def __post_init__(self) -> None:
        refuse(self.problems())

    def problems(self) -> Iterator[Problem]:
        """Yield what is wrong with the role alone."""
        section = self.section
        yield from found_by(check_role_name, "roles", self.name)
        if self.keep_running and not self.service:
            yield section, "needs service=true"
        yield from self.program_problems()
        if self.ready not in ("", READY_BY_REPORT):
            if problem := ready_problem(self.ready):
                yield f"{section}.ready", problem
            elif not self.ports:
                yield f"{section}.ready", f"is {self.ready}, and ports is 0"
        if self.max_idle_s is not None and not self.ports:
            yield f"{section}.max_idle", "needs a port on which connections are seen, and ports is 0"
        yield from limit_problems(
            section,
            self,
            (
                ("instances", "instances", INSTANCES),
                ("retries", "retries", RETRIES),
                ("ports", "ports", PORTS),
                ("max_idle_s", "max_idle", POSITIVE),
            ),
        )
        if self.script is not None:
            yield from found_by(check_inside_workspace, f"{section}.script", self.script)
        if self.workdir is not None:
            yield from found_by(check_workdir, f"{section}.workdir", self.workdir)
        if self.command is not None and not self.command:
            yield f"{section}.command", "is empty"
        if "\0" in "".join((*(self.command or ()), *(self.args or ()))):
            yield f"{section}.args", "has a NUL in it"
        for name in self.env:
            yield from found_by(check_env_name, f"{section}.env.{name}", name)

    def program_problems(self) -> Iterator[Problem]:
        """Yield whether the role has two programs, or is a service without one."""
        if self.script is not None and self.command is not None:
            yield f"{self.section}.command", "is given, and so is script; a role has one of them"
        if self.keep_running and self.script is None and self.command is None:
            yield self.section, NO_PROGRAM

    @property
    def section(self) -> str:
        """Return the section of a properties file that describes the role."""
        return f"{'service' if self.keep_running else 'role'} {self.name}"


class QuickLink(Value):
    """A ``link.NAME`` of the properties file: a web page of a role, shown while the role runs.

    Args:
        name: name of the link.
        role: role whose containers serve the page.
        port: port that serves the page; None: the one of `RoleSpec.ports` with index ``place``, from 0.
        place: see ``port``.
        path: path of the page, with its query.
    """

    name: str
    role: str
    port: int | None = None
    place: int = 0
    path: str = "/"

    def __post_init__(self) -> None:
        refuse(self.problems())

    def problems(self) -> Iterator[Problem]:
        """Yield what is wrong with the link alone."""
        where = f"application.link.{self.name}"
        if not _LINK_NAME.fullmatch(self.name):
            yield where, f"{self.name!r} is not a name: at most 31 of A-Z, a-z, 0-9, _ and -, no _ or - first"
        yield from found_by(check_role_name, where, self.role)
        if self.port is not None and not 1 <= self.port <= 65_535:
            yield where, f"{self.port} is not a port"
        if not URL_PATH.fullmatch(self.path):
            yield where, f"{self.path!r} is not the path of a URL"


class PayloadProgram(Value):
    """Program of a container: a script of the workspace, or a command where ``script`` is empty; and its arguments."""

    script: str
    command: tuple[str, ...]
    args: tuple[str, ...]


class FeedFormat(Enum):
    """Record format of a feed."""

    FILES = "files"
    LINES = "lines"
    TAR = "tar"
    """One sample: the members of a tar file with the same name up to the first dot."""
    TFRECORD = "tfrecord"
    PARQUET = "parquet"
    """A row group."""

    @property
    def reads_whole_files(self) -> bool:
        """Return True if a reader needs a whole file at once."""
        return self is FeedFormat.PARQUET


class FeedSpec(Value, kw_only=True):
    """Feed of an input: its records are streamed to the payload while the payload runs.

    Args:
        format: format of the files.
        epochs: how often the whole input is sent.
        shuffle: seed of the record order, which differs in each epoch; None: files in name order.
        buffer_bytes: limit of the data prefetched to the disk [bytes].
    """

    format: FeedFormat = FeedFormat.FILES
    epochs: int = 1
    shuffle: int | None = None
    buffer_bytes: int = DEFAULT_FEED_BUFFER_BYTES


class InputSpec(Value, kw_only=True):
    """One ``[from_hdfs]`` section.

    Args:
        name: the section's NAME, empty for the plain section.
        sources: locations with a scheme (``file:///data/train/*``), patterns allowed.
        input_path: destination of the files, relative to the workspace; with ``as_list`` the file that lists them; with
            ``feed`` a directory of FIFOs.
        unpack: the sources are archives, to be extracted.
        as_list: write a list of the files instead of copying them.
        shard: divide the files among the containers; with ``feed`` among the containers of each role.
        optional: ignore a source that matches nothing; ``input_path`` may stay empty.
        feed: stream the records while the payload runs; None: copy the files before it starts.
        mount: ``input_path`` is a read-only mount of the source directory.
    """

    name: str = ""
    sources: tuple[str, ...]
    input_path: str
    unpack: bool = False
    as_list: bool = False
    shard: bool = False
    optional: bool = False
    feed: FeedSpec | None = None
    mount: bool = False

    @property
    def mode(self) -> str:
        """Return how the payload gets the input: ``mode`` of its section."""
        if self.mount:
            return "mount"
        return "list" if self.as_list else "copy" if self.feed is None else "feed"

    @property
    def section(self) -> str:
        """Return the section of a properties file that describes the input."""
        return f"from_hdfs {self.name}".strip()

    def __post_init__(self) -> None:
        refuse(self.problems())

    def problems(self) -> Iterator[Problem]:
        """Yield what is wrong with the input alone; a source without a scheme is a path that is not resolved yet."""
        section = self.section
        if not self.sources:
            yield f"{section}.hdfs", "is empty"
        yield from found_by(check_inside_workspace, f"{section}.input_path", self.input_path)
        if self.mode != "copy" and self.unpack:
            problem = f"is unpack, but with mode={self.mode} nothing is fetched that could be unpacked"
            yield f"{section}.archive", problem
        if self.mode != "copy" and posixpath.normpath(self.input_path) == ".":
            names = {"list": "the list's file", "feed": "the directory of the feed", "mount": "the mounted directory"}
            problem = f"is the workspace itself; with mode={self.mode} it is {names[self.mode]}"
            yield f"{section}.input_path", problem
        if self.mount and self.sources:
            elsewhere = "://" in self.sources[0] and not self.sources[0].startswith(FILE)
            if len(self.sources) > 1 or elsewhere:
                yield f"{section}.hdfs", "with mode=mount it is one directory of a shared file system: file:///mnt/data"
        if self.mount and self.shard:
            yield f"{section}.shard", "is true, and with mode=mount each container has all of the directory"
        if (feed := self.feed) is not None:
            limits = (
                ("epochs", "feed.epochs", EPOCHS),
                ("shuffle", "feed.shuffle", FEED_SEED),
                ("buffer_bytes", "feed.buffer", FEED_BUFFER),
            )
            yield from limit_problems(section, feed, limits)


class OutputSpec(Value, kw_only=True):
    """One ``[to_hdfs]`` section.

    Args:
        name: the section's NAME, empty for the plain section.
        output_path: directory or file to store, relative to the workspace.
        target: a location with a scheme (``file:///results/run1``).
        overwrite: replace an existing target.
        keep_previous: with ``overwrite``, how many earlier outputs written by dlapp are kept beside the target.
        on_failure: keep or drop the output of a failed application.
        sync_s: seconds between two live copies while the payload runs; None: no live copies.
        by_trial: commit the output of each trial when the trial has ended, to its own directory in ``target``.
        output_from: with a framework, which containers must create it; the others' part may be an empty directory.
    """

    name: str = ""
    output_path: str
    target: str
    overwrite: bool = False
    on_failure: OnFailure = OnFailure.KEEP
    keep_previous: int = 0
    by_trial: bool = False
    sync_s: float | None = None
    output_from: OutputFrom = OutputFrom.FIRST

    @property
    def section(self) -> str:
        """Return the section of a properties file that describes the output."""
        return f"to_hdfs {self.name}".strip()

    def __post_init__(self) -> None:
        refuse(self.problems())

    def problems(self) -> Iterator[Problem]:
        """Yield what is wrong with the output alone."""
        section = self.section
        yield from found_by(check_inside_workspace, f"{section}.output_path", self.output_path)
        limits = ("keep_previous", "keep_previous", PREVIOUS), ("sync_s", "sync", INTERVAL)
        yield from limit_problems(section, self, limits)
        if self.keep_previous and not self.overwrite:
            yield f"{section}.keep_previous", "has no effect without overwrite=true"


class CheckpointSpec(Value, kw_only=True):
    """The ``[checkpoint]`` section.

    Args:
        path: directory to copy and restore, relative to the workspace.
        target: location of the parent directory; each application has a subdirectory named by its id.
        every_s: seconds between two copies.
        keep: how many checkpoints are kept.
        role: role whose first container stores the checkpoints; `EVERY_INDEX`: each container stores its own, in a
            directory named by its index; None: the first deciding role.
    """

    path: str
    target: str
    every_s: float = DEFAULT_CHECKPOINT_EVERY_S
    keep: int = DEFAULT_CHECKPOINTS
    role: str | None = None

    def __post_init__(self) -> None:
        refuse(self.problems())

    def problems(self) -> Iterator[Problem]:
        """Yield what is wrong with the checkpoints alone."""
        yield from found_by(check_inside_workspace, "checkpoint.path", self.path)
        if posixpath.normpath(self.path) == ".":
            yield "checkpoint.path", f"{self.path!r} is the workspace itself; name a directory in it"
        if not self.target:
            yield "checkpoint.hdfs", "is empty"
        limits = ("every_s", "every", INTERVAL), ("keep", "keep", CHECKPOINTS)
        yield from limit_problems("checkpoint", self, limits)
        if self.role is not None:
            yield from found_by(check_role_name, "checkpoint.role", self.role)

    @property
    def is_of_every_index(self) -> bool:
        """Return True if each container has its own checkpoints."""
        return self.role == EVERY_INDEX


class PayloadCache(Value):
    """A directory on a node that is kept between the runs of a user's payloads.

    Args:
        name: name of the cache, shared by all of the user's applications.
        path: absolute path of the mount in Docker payloads.
    """

    name: str
    path: str

    def __post_init__(self) -> None:
        refuse(self.problems())

    def problems(self) -> Iterator[Problem]:
        """Yield what is wrong with the cache alone."""
        where = f"application.cache.{self.name}"
        yield from found_by(check_cache_name, where, self.name)
        yield from found_by(check_cache_path, where, self.path)

    @property
    def variable(self) -> str:
        """Return the name of the variable that holds its path."""
        return cache_variable(self.name)


def cache_variable(name: str) -> str:
    """Return the name of the variable that holds the path of a cache."""
    return "DLAPP_CACHE_" + name.upper().replace("-", "_")


MAX_PROGRAM_TEXT = 1000
"""Characters of a program with its arguments in views: a view is written several times a second."""


class AppSpec(Value, kw_only=True):
    """One application, as described by its properties file.

    Args:
        username: displayed owner; grants no rights.
        appname: displayed name, quotes included.
        docker_image: None: the payload is a plain process.
        workdir: absolute path in the image at which a command starts; None: the workspace.
        gpu_capabilities: driver capabilities of the containers, in addition to ``compute`` and ``utility``; None: those
            that the image names.
        network: Docker's network mode of the containers; None: the machine's configured default.
        workspace: absolute path of the directory to pack; empty: every role has a command, and starts in an empty
            directory.
        exclude: gitignore patterns of files to leave out of the archive.
        exclude_defaults: also leave out `.git`, `.venv`, `__pycache__` and `node_modules`, unless a pattern includes
            them.
        script: start script of roles without their own program, relative to the workspace.
        command: program of these roles instead of a script, run without a shell.
        args: arguments of the script or command, passed unchanged.
        env: names of the variables that the user sets; their values are in `Secrets`.
        max_runtime_s: seconds from the application's start to its soft-kill; None: no limit.
        kill_grace_s: seconds between SIGTERM and SIGKILL.
        output_patience_s: how long storing output is retried on a file system that does not answer, is read-only or
            full.
        service_patience_s: how long a container waits for an unavailable service before it fails.
        on_container_failure: effect on the other containers when one has failed and is not retried.
        caches: directories that stay on a node between runs.
        checkpoint: directory copied while the payload runs, and restored before a restart; None: no checkpoints.
        sweep: the trials that the containers run one after another; None: each container runs the program once.
        roles: in the order of the file.
        gang: which roles start together.
        failure_settle_s: how long the end of the other gang members is awaited before a member's failure ends the
            application; the cause may be a lost node, which is known only later.
        keep_failed_s: how long the container of a permanently failed program is kept for inspection; 0: not kept.
        comment: the user's sentence on the run.
        notify: events that the user is notified of (`dlapp.values.notification.EVENTS`); None: the configured default.
        after: applications whose end this one waits for before it starts.
        hold: do not start before a user releases the application.
        requeue: on one machine, start again if the machine was rebooted while the application ran.
        hang_timeout_s: how long the payloads of a gang, or one payload outside of gangs, may report nothing after their
            first report; then their stacks are dumped and they count as failed. None: no limit.
        hang_idle: payloads that never report count as hanging if they use neither CPU nor GPU for ``hang_timeout_s``.
        idle_guard: reaction to unused GPUs; None: no reaction.
        gang_window_s: how long a gang holds part of its containers or GPUs while it waits for the rest.
        framework: whose variables the payloads get.
        success: the roles that decide the application's success; empty: all that are not services. When all their
            instances have succeeded, the remaining ones are soft-killed.
        collect_gpus: run no payload; the task cleans up the GPU ledger of its node.
        check_node: run no payload; the task checks its node for dlapp-doctor, with the configuration in ``args``.
        kind: what ends it.
        links: pages of its roles to show with the application.
        tensorboard: the directory, relative to the workspace, for a TensorBoard beside the first container of the
            deciding roles; empty: no TensorBoard.
        view_acl: who besides the owner may view the application and reach the ports of its programs.
        modify_acl: who besides the owner may end and release the application.
    """

    username: str
    appname: str
    workspace: str = ""
    script: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    docker_image: str | None = None
    workdir: str | None = None
    gpu_capabilities: tuple[str, ...] | None = None
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
    checkpoint: CheckpointSpec | None = None
    sweep: SweepSpec | None = None
    roles: tuple[RoleSpec, ...] = field(default_factory=lambda: (RoleSpec(),))
    gang: Gang = Gang.NONE
    failure_settle_s: float = DEFAULT_FAILURE_SETTLE_S
    keep_failed_s: float = 0.0
    gang_window_s: float = DEFAULT_GANG_WINDOW_S
    hang_timeout_s: float | None = None
    hang_idle: bool = False
    idle_guard: IdleGuard | None = None
    framework: Framework = Framework.NONE
    success: tuple[str, ...] = ()
    collect_gpus: bool = False
    check_node: bool = False
    notify: tuple[str, ...] | None = None
    after: tuple[After, ...] = ()
    hold: bool = False
    requeue: bool = False
    kind: Kind = Kind.BATCH
    links: tuple[QuickLink, ...] = ()
    tensorboard: str = ""
    view_acl: AccessList = field(default_factory=AccessList)
    modify_acl: AccessList = field(default_factory=AccessList)
    comment: str | None = None

    def __post_init__(self) -> None:
        refuse(self._type_problems())
        refuse(self._own_problems())

    def problems(self) -> Iterator[Problem]:
        """Yield all that is wrong with the application, whether or not its parts were checked.

        A part of another type than its field hides the other problems.
        """
        mistyped = False
        for found in self._type_problems():
            mistyped = True
            yield found
        if mistyped:
            return
        for role in self.roles:
            yield from role.problems()
            yield from role.resources.problems(self.section_of(role))
        parts: tuple[QuickLink | InputSpec | OutputSpec | PayloadCache, ...]
        parts = (*self.links, *self.inputs, *self.outputs, *self.caches)
        for part in parts:
            yield from part.problems()
        for one in (self.checkpoint, self.sweep):
            if one is not None:
                yield from one.problems()
        yield from self._own_problems()

    def _own_problems(self) -> Iterator[Problem]:
        """Yield what is wrong with the application itself, and between its parts."""
        yield from self._key_problems()
        if not self.roles:
            yield "roles", "is empty"
        yield from self._idle_guard_problems()
        yield from problems_with_programs(
            self.roles,
            are_declared=[role.name for role in self.main_roles] != [DEFAULT_ROLE],
            has_script=bool(self.script),
            has_command=bool(self.command),
            has_workspace=bool(self.workspace),
        )
        yield from problems_between(
            self.roles, gang=self.gang, success=self.success, failure=self.on_container_failure, kind=self.kind
        )
        yield from problems_with_links(self.links, self.roles)
        yield from self._workdir_problems()
        yield from self._capability_problems()
        yield from problems_with_access(self.view_acl, self.modify_acl)
        if sorted(self.roles, key=lambda role: role.keep_running) != list(self.roles):
            yield "roles", "those of services (keep_running) come after all others"
        yield from self._tensorboard_problems()
        yield from self._whole_run_problems()
        yield from problems_with_names(self.roles)
        yield from self._repeated_name_problems()
        yield from self._cache_problems()

    def _key_problems(self) -> Iterator[Problem]:
        """Yield what is wrong with single keys."""
        for name, text in (("username", self.username), ("appname", self.appname)):
            if not text:
                yield f"application.{name}", "is empty"
        for role in self.roles:
            yield from self.placement_of(role).problems(self.section_of(role), role.resources.gcores)
        if self.script:
            yield from found_by(check_inside_workspace, "application.user_shell_script", self.script)
        if self.workdir is not None:
            yield from found_by(check_workdir, "application.workdir", self.workdir)
        if "\0" in "".join((*self.command, *self.args)):
            yield "application.user_shell_args", "has a NUL in it"
        for name in self.env:
            yield from found_by(check_env_name, f"application.env.{name}", name)
        for tag in self.tags:
            if not tag or "," in tag or "\n" in tag:
                yield "application.tags", f"{tag!r} is not a tag: it is empty, or has a comma or line end in it"
        yield from limit_problems("application", self, (*_TIMES, ("priority", "priority", PRIORITY)))
        if self.hang_idle and self.hang_timeout_s is None:
            yield "application.hang_idle", "needs hang_timeout: for how long a program may be idle"
        if self.keep_failed_s and self.sweep is not None:
            yield "application.keep_failed", "is not possible in a sweep: its trials share a container"
        try:
            check_after(self.after)
        except ValueError as refused:
            yield "application.after", str(refused)

    def _idle_guard_problems(self) -> Iterator[Problem]:
        if self.idle_guard is not None:
            if not any(role.resources.gcores for role in self.roles):
                yield "application.idle_guard", "has no effect: no role has GPUs (gcores)"
            else:
                for _, problem in found_by(lambda _, guard: guard.check_window(self.containers), "", self.idle_guard):
                    yield "application.idle_guard", problem

    def _tensorboard_problems(self) -> Iterator[Problem]:
        if self.tensorboard:
            yield from found_by(check_inside_workspace, "application.tensorboard", self.tensorboard)
            if self.is_service or self.sweep is not None:
                yield "application.tensorboard", NO_BOARD

    def _whole_run_problems(self) -> Iterator[Problem]:
        """Yield what is wrong with the parts that decide how it runs and ends: service, checkpoint and sweep."""
        if self.is_service:
            ends = [*(one.section for one in self.outputs), *(["checkpoint"] if self.checkpoint else [])]
            for section in (*ends, *(["sweep"] if self.sweep else [])):
                yield section, NOT_IN_SERVICE
        if self.checkpoint is not None:
            writer, is_gang = self.checkpoint.role, self.gang is not Gang.NONE
            if problem := checkpoint_problem(writer, self.roles, is_gang=is_gang):
                yield "checkpoint.role", problem
        if self.sweep is not None and not self.is_service:
            yield from problems_with_sweep(
                self.sweep,
                roles=self.roles,
                gang=self.gang,
                framework=self.framework,
                checkpoint=self.checkpoint,
                env=self.env,
            )
            yield from self._without_effect_in_sweep()

    def _repeated_name_problems(self) -> Iterator[Problem]:
        for what, names in (
            ("from_hdfs", [one.name for one in self.inputs]),
            ("to_hdfs", [one.name for one in self.outputs]),
            ("to_hdfs.hdfs", [one.target.rstrip("/") for one in self.outputs]),
            ("application.link", [one.name for one in self.links]),
        ):
            if (twice := first_repeated(names)) is not None:
                yield what, f"{twice!r} appears twice"

    def _cache_problems(self) -> Iterator[Problem]:
        for place, one in enumerate(self.caches):
            where, before = f"application.cache.{one.name}", self.caches[:place]
            same = next((each for each in before if one.variable == each.variable), None)
            if same is not None:
                yield where, f"{one.variable} is the variable of cache.{same.name} already"
            others = (*before, *self.caches[place + 1 :])
            holder = next((each for each in others if f"{one.path}/".startswith(f"{each.path}/")), None)
            if holder is not None:
                yield where, f"{one.path} is in that of cache.{holder.name}"

    def _without_effect_in_sweep(self) -> Iterator[Problem]:
        if self.hang_timeout_s is not None:
            problem = "has no effect in a sweep; trial_time limits how long a trial runs"
            yield "application.hang_timeout", problem
        for output in self.outputs:
            if output.sync_s is not None:
                problem = "has no effect in a sweep; commit=trial commits the output of each trial at its end"
                yield f"{output.section}.sync", problem
        for one in self.inputs:
            if one.mode in ("feed", "mount"):
                yield f"{one.section}.mode", f"is {one.mode}, which the trials of a sweep do not have"
            elif one.shard:
                yield f"{one.section}.shard", "is true, and which container runs a trial is not known before"

    @staticmethod
    def late_types() -> dict[str, type]:
        """Return the classes of fields whose modules are loaded on demand, for `dlapp.values.serialization`."""
        from dlapp.sweep.spec import SweepSpec

        return {"SweepSpec": SweepSpec}

    def _type_problems(self) -> Iterator[Problem]:
        """Yield fields of a wrong type: a Python program may construct a spec without a type checker."""
        for name in _fields_of(AppSpec, "str", "str | None"):
            if not isinstance(value := getattr(self, name), (str, type(None))):
                yield name, not_text(value)
        for name in _fields_of(AppSpec, "tuple[str, ...]"):
            if not isinstance(words := getattr(self, name), (tuple, list)):
                yield name, f"is {words!r}, it must be a tuple of texts"
                continue
            for place, word in enumerate(words):
                if not isinstance(word, str):
                    yield f"{name}[{place}]", not_text(word)
        for name in ("view_acl", "modify_acl"):
            if not isinstance(value := getattr(self, name), AccessList):
                yield name, f"is {value!r}, it must be an AccessList"
        for name in (*(name for name, _, _ in _TIMES), "hang_idle"):
            if not isinstance(value := getattr(self, name), (int, float, type(None))):
                yield name, f"is {value!r}, it must be a number of seconds"

    def gangs(self) -> tuple[tuple[RoleSpec, ...], ...]:
        """Return the sets of roles whose payloads start together; see `gangs_of`."""
        return gangs_of(self.roles, self.gang)

    def decides(self, role: RoleSpec) -> bool:
        """Return whether a role decides the application's success."""
        return role in deciding_roles(self.roles, self.success)

    def needs_output(self, index: int) -> bool:
        """Return whether a container must create the outputs also with `OutputFrom.FIRST`."""
        return self.framework is Framework.NONE or index == self.first_deciding_index

    def checkpoint_of(self, role: RoleSpec) -> tuple[CheckpointSpec | None, bool]:
        """Return the checkpoints that the containers of a role start from, and whether the first container (with
        `EVERY_INDEX`: each) stores them; None: no checkpoints, as for roles that do not start together with the storing
        role."""
        one = self.checkpoint
        if one is None or one.is_of_every_index:
            return one, one is not None
        deciding = deciding_roles(self.roles, self.success)
        writer = next(each for each in self.roles if (each.name == one.role if one.role else each in deciding))
        if role is writer:
            return one, True
        return (one if any(role in gang and writer in gang for gang in self.gangs()) else None), False

    @property
    def board_index(self) -> int | None:
        """Return the index whose container also runs TensorBoard; None: no TensorBoard."""
        return self.first_deciding_index if self.tensorboard else None

    @property
    def head(self) -> int | None:
        """Return the index whose program starts the processes of the other containers, and decides; None: no such
        index."""
        return self.first_deciding_index if self.framework is Framework.MPI else None

    @property
    def first_deciding_index(self) -> int | None:
        """Return the index of the first container of the first deciding role; None: no role decides."""
        first = next(iter(deciding_roles(self.roles, self.success)), None)
        return None if first is None else sum(role.instances for role in self.roles[: self.roles.index(first)])

    def program_of(self, role: RoleSpec) -> PayloadProgram:
        """Return the program of a role's containers. Arguments belong to the script or command of the same level."""
        own = role.script is not None or role.command is not None
        args = role.args if role.args is not None else () if own else self.args
        if own:
            return PayloadProgram(role.script or "", role.command or (), args)
        return PayloadProgram("" if self.command else self.script, self.command, args)

    def image_of(self, role: RoleSpec) -> str | None:
        """Return the image of a role's containers; None: they are plain processes."""
        return role.docker_image if role.docker_image is not None else self.docker_image

    def workdir_of(self, role: RoleSpec) -> str:
        """Return the directory of the image at which the program of a role starts; empty: the workspace."""
        own = role.workdir if role.workdir is not None else self.workdir
        return own or "" if self._takes_workdir(role) else ""

    def _takes_workdir(self, role: RoleSpec) -> bool:
        return self.image_of(role) is not None and not self.program_of(role).script

    def _workdir_problems(self) -> Iterator[Problem]:
        needs = "is a directory of an image, for a command: it needs docker_image and command"
        for role in self.roles:
            if role.workdir is not None and not self._takes_workdir(role):
                yield f"{role.section}.workdir", needs
        if self.workdir is not None and not any(map(self._takes_workdir, self.roles)):
            yield "application.workdir", needs
        given = [self.workdir is not None, *(role.workdir is not None for role in self.roles)]
        if any(given) and self.framework is Framework.MPI:
            yield "application.workdir", "is not possible with framework=mpi, whose processes start in the workspace"

    def capabilities_of(self, role: RoleSpec) -> tuple[str, ...]:
        """Return the driver capabilities that a role's containers request; empty: those that the image names."""
        from dlapp.values.program.driver_capabilities import BASE, VARIABLE, read_capabilities

        own = role.gpu_capabilities
        if own is None and VARIABLE not in role.env:
            own = self.gpu_capabilities
        if own is None or self.image_of(role) is None:
            return ()
        return read_capabilities(",".join((*own, *BASE)))

    def _capability_problems(self) -> Iterator[Problem]:
        given = [("application", self.gpu_capabilities, self.env, self.roles)]
        given += [(role.section, role.gpu_capabilities, role.env, (role,)) for role in self.roles]
        if all(names is None for _, names, _, _ in given):
            return
        from dlapp.values.program.driver_capabilities import VARIABLE, read_capabilities

        for section, names, env, roles in given:
            where = f"{section}.gpu_capabilities"
            if names is None:
                continue
            try:
                read_capabilities(",".join(names))
            except ValueError as problem:
                yield where, str(problem)
            if all(self.image_of(role) is None for role in roles):
                yield where, "is for containers of an image: it needs docker_image"
            if VARIABLE in env:
                yield where, f"is given, and so is env.{VARIABLE}; set one of them"

    @property
    def program_text(self) -> str:
        """Return the program with its arguments, as a line of a shell; that of each role if they differ."""
        from shlex import join

        programs = {role.name: self.program_of(role) for role in self.main_roles}
        lines = {
            name: join((*((one.script,) if one.script else one.command), *one.args)) for name, one in programs.items()
        }
        if len(set(lines.values())) > 1:
            text = "; ".join(f"{name}: {line}" for name, line in lines.items())
        else:
            text = next(iter(lines.values()), "")
        return text if len(text) <= MAX_PROGRAM_TEXT else text[: MAX_PROGRAM_TEXT - 1] + "…"

    @property
    def images(self) -> tuple[str, ...]:
        """Return the images of the containers, each once."""
        return tuple({image: None for role in self.roles if (image := self.image_of(role)) is not None})

    def placement_of(self, role: RoleSpec) -> Placement:
        """Return the placement of a role's containers."""
        return role.placement if role.placement is not None else self.placement

    def section_of(self, role: RoleSpec) -> str:
        """Return the section of a properties file with the amounts of a role, for messages."""
        is_alone = len(self.main_roles) == 1 and not role.keep_running and role.name == DEFAULT_ROLE
        return "resources" if is_alone else role.section

    def placement_keys(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Return the properties keys by which the user chose nodes, with the node names."""
        for section, one in (
            ("resources", self.placement),
            *((role.section, role.placement) for role in self.roles),
        ):
            if one is None:
                continue
            for key in ("nodes", "exclude_nodes", "node_label"):
                value = getattr(one, key)
                if value and (one is self.placement or value != getattr(self.placement, key)):
                    yield f"{section}.{key}", (value,) if isinstance(value, str) else value

    @property
    def is_service(self) -> bool:
        """Return True if the application does not end by itself."""
        return self.kind is Kind.SERVICE

    @property
    def main_roles(self) -> tuple[RoleSpec, ...]:
        """Return the roles that are not a ``[service NAME]``."""
        return tuple(role for role in self.roles if not role.keep_running)

    @property
    def main_containers(self) -> int:
        """Return the number of containers of all `main_roles`."""
        return sum(role.instances for role in self.main_roles)

    def total_of(self, role: RoleSpec) -> int:
        """Return NUM_CONTAINERS for the containers of a role; only a ``[service NAME]`` counts services."""
        return self.containers if role.keep_running else self.main_containers

    def inputs_of(self, role: RoleSpec) -> tuple[InputSpec, ...]:
        """Return the input of a role. A service gets the whole of a sharded input."""
        if not role.keep_running or self.is_service:
            return self.inputs
        return tuple(replace(one, shard=False) for one in self.inputs)

    def network_of(self, role: RoleSpec) -> str | None:
        """Return Docker's network mode of the containers of a role; None: as the operator configured it.

        A ``[service NAME]`` always uses the host's network, whatever network the other roles have.
        """
        if role.keep_running and needing_host_network((role,), self.docker_image, services=True) is not None:
            return "host"
        return self.network

    @property
    def has_roster(self) -> bool:
        """Return True if its containers get a roster (`dlapp.values.roster`)."""
        return bool(self.gangs()) or any(role.ports for role in self.roles)

    @property
    def uses_docker(self) -> bool:
        """Return True if a container runs in Docker."""
        return any(self.image_of(role) is not None for role in self.roles)

    @property
    def containers(self) -> int:
        """Return the number of containers of all roles."""
        return sum(role.instances for role in self.roles)

    def total(self) -> tuple[int, int, int]:
        """Return the total request of all containers: memory [MiB], vcores, gcores."""
        parts = [role.resources.times(role.instances) for role in self.roles]
        return sum(p[0] for p in parts), sum(p[1] for p in parts), sum(p[2] for p in parts)

    def role_of(self, index: int) -> tuple[RoleSpec, int]:
        """Return the role of CONTAINER_INDEX ``index`` and its position within that role."""
        for role in self.roles:
            if index < role.instances:
                return role, index
            index -= role.instances
        raise IndexError(index)


def _fields_of(cls: type[Value], *types: str) -> list[str]:
    """Return the names of the fields that are annotated with one of some types."""
    return [name for name, annotation in cls.__annotations__.items() if annotation in types]


class Submission(Value, kw_only=True):
    """All that an engine and an ApplicationMaster know about one application; written to its staging directory.

    Args:
        spec: the specification, defaults resolved.
        workspace_archive: location of the packed workspace; empty: no workspace.
        workspace_digest: its name in the cache, ``sha256-<hex>``; empty: no workspace.
        submitter: the operating system's user.
        submitted_ms: time of the submission [ms since 1970].
        log_limit_bytes: size limit of each of a payload's stdout and stderr.
        properties: text of the effective properties file, without comments and without ``env.NAME``; empty: no file, or
            a large one.
        file: path of the properties file.
        resumed_from: id of the application from whose checkpoint it resumes; empty: none.
        again_of: id of the application that this one resubmits; empty: none.
        metrics_targets: directory on the ApplicationMaster's machine for the Prometheus target file; empty: no file.
        checkpoints_of: id of the application whose checkpoints it continues; empty: its own.
        source: the git commit of the workspace, and the number of changed files; empty: it is in no repository.
        versions: versions of dlapp and of the engine at submission, by name.
        live: the user's own directory as workspace, instead of an archive; None: none. For the embedded engine only.
    """

    spec: AppSpec
    workspace_archive: str
    workspace_digest: str
    submitter: str
    submitted_ms: int
    log_limit_bytes: int = 1 << 30
    properties: str = ""
    file: str = ""
    resumed_from: str = ""
    again_of: str = ""
    checkpoints_of: str = ""
    source: str = ""
    metrics_targets: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    live: LiveWorkspace | None = None

    def named(self, application_id: ApplicationId) -> Submission:
        """Return the submission with ``{app_id}`` replaced by the application's id in the targets of its outputs and
        checkpoints."""
        from dlapp.values.program.placeholders import APP_ID, substitute

        def put(target: str) -> str:
            return substitute((target,), {APP_ID: str(application_id)})[0]

        spec = self.spec
        targets = [one.target for one in spec.outputs] + ([spec.checkpoint.target] if spec.checkpoint else [])
        if not any("{" in one for one in targets):
            return self
        outputs = tuple(replace(one, target=put(one.target)) for one in spec.outputs)
        checkpoint = spec.checkpoint and replace(spec.checkpoint, target=put(spec.checkpoint.target))
        return replace(self, spec=replace(spec, outputs=outputs, checkpoint=checkpoint))


class Secrets(Value, kw_only=True):
    """Secrets of an application, stored apart from the spec and readable by the owner only.

    Args:
        control_secret: 64 hex digits; tokens are derived from it (`dlapp.values.messages`).
        env: variables of the properties file, for the payload only.
        role_env: role -> variables that only its payloads have, or have with another value.
        environment: variables that a plain process inherits from the submitter's shell (PATH, HOME, LANG and the like).
        notify: destinations of notifications; None: none.
        registry_credentials: image, as written in the file -> the submitter's credentials for its registry.
        ledger: on one machine: the GPU ledger of the cluster that this machine belongs to, for a live workspace; it may
            contain credentials. None: that of this machine.
    """

    control_secret: str
    env: dict[str, str] = field(default_factory=dict)
    role_env: dict[str, dict[str, str]] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    notify: NotificationSettings | None = None
    registry_credentials: dict[str, RegistryCredentials] = field(default_factory=dict)
    ledger: LedgerSettings | None = None


def gangs_of(roles: Sequence[RoleSpec], gang: Gang) -> tuple[tuple[RoleSpec, ...], ...]:
    """Return the sets of roles whose payloads start together, in role order, without any ``[service NAME]``.

    With `Gang.ALL`, a role that waits until another one is done is a gang of its own, and so is a role that depends on
    such a role: the others cannot wait for it.
    """
    roles = [role for role in roles if not role.keep_running]
    if gang is Gang.NONE:
        return ()
    if gang is Gang.ROLE:
        return tuple((role,) for role in roles)
    late: set[str] = set()
    for _ in roles:  # upper bound of a chain's length
        late |= {
            role.name for role in roles if any(one.until is Until.DONE or one.role in late for one in role.depends_on)
        }
    first = tuple(role for role in roles if role.name not in late)
    return (*([first] if first else ()), *((role,) for role in roles if role.name in late))


def deciding_roles(roles: Sequence[RoleSpec], success: Sequence[str]) -> tuple[RoleSpec, ...]:
    """Return the deciding roles: those of `AppSpec.success`, else all that are not services."""
    return tuple(role for role in roles if (role.name in success if success else not role.service))


def needing_host_network(
    roles: Sequence[RoleSpec], docker_image: str | None, *, services: bool = False
) -> RoleSpec | None:
    """Return the first role that has ports and runs in Docker: its ports must be reachable as ports of the host.

    Args:
        docker_image: image of roles without their own image; None: such roles are plain processes.
        services: include ``[service NAME]`` roles, which have their own network (`AppSpec.network_of`).
    """
    in_docker = (role for role in roles if role.ports and (role.docker_image or docker_image))
    return next((role for role in in_docker if services or not role.keep_running), None)


NO_PROGRAM = "has neither script nor command"
NO_BOARD = "is for programs that write into one workspace: not with kind=service, nor in a sweep (dlapp-board shows it)"
NOT_IN_SERVICE = "is not possible with kind=service, whose programs have no end after which there is something to store"


def problems_with_programs(
    roles: Sequence[RoleSpec], *, are_declared: bool, has_script: bool, has_command: bool, has_workspace: bool
) -> Iterator[Problem]:
    """Find roles without a program or with two, and scripts without a workspace.

    Args:
        roles: roles of the application; of their fields only the program matters.
        are_declared: they have sections; else there is one kind of container, which runs the application's program.
        has_script: the application has a script for roles without their own program.
        has_command: it has a command for them.
        has_workspace: it has a workspace.
    """
    own = [role for role in roles if role.script is not None or role.command is not None]
    needing = [role for role in roles if role not in own and not role.keep_running]
    is_alone = bool(needing) and not are_declared
    scripts = has_script or any(role.script is not None for role in own)
    if not has_workspace and (scripts or (is_alone and not has_command)):
        yield "application.user_dev_workspace_path", "is missing"
    if has_script and has_command:
        yield "application.command", "is given, and so is user_shell_script; an application has one of them"
    if has_script or has_command:
        return
    if is_alone:
        yield "application.user_shell_script", "is missing"
        return
    for role in needing:
        yield role.section, f"{NO_PROGRAM}, and [application] has no user_shell_script"


def problems_with_names(roles: Sequence[RoleSpec]) -> Iterator[Problem]:
    """Find roles of one name; those of a ``[role NAME]`` and a ``[service NAME]`` are named together."""
    first: dict[str, RoleSpec] = {}
    for role in roles:
        other = first.setdefault(role.name, role)
        if other is role:
            continue
        if other.section == role.section:
            yield "role", f"{role.name!r} appears twice"
        else:
            yield role.section, f"has the name of [{other.section}]; each needs a name of its own"


def ready_problem(ready: str) -> str:
    """Return why a text is no value of `RoleSpec.ready`; empty if it is one."""
    if ready.startswith(READY_BY_HTTP):
        path = ready[len(READY_BY_HTTP) :]
        return (
            ""
            if URL_PATH.fullmatch(path)
            else f"{shown(ready)} is not http: and the path of a URL, such as http:/health"
        )
    if ready in (READY_BY_PORT, READY_BY_REPORT):
        return ""
    hint = nearest(ready, (READY_BY_PORT, READY_BY_REPORT)) if ":" not in ready else "http is followed by :/PATH"
    return f"{shown(ready)} is neither port, report nor http:/PATH; {hint}"


def problems_between(
    roles: Sequence[RoleSpec],
    *,
    gang: Gang,
    success: Sequence[str],
    failure: ContainerFailure,
    kind: Kind = Kind.BATCH,
) -> Iterator[tuple[str, str]]:
    """Find inconsistencies between the roles of an application: pairs of a properties key and the problem.

    Args:
        roles: roles of the application.
        gang: `AppSpec.gang`.
        success: `AppSpec.success`.
        failure: `AppSpec.on_container_failure`.
        kind: `AppSpec.kind`.
    """
    by_name = {role.name: role for role in roles}
    if (count := sum(role.instances for role in roles)) > MAX_CONTAINERS:
        yield "role", f"all roles together have {count} instances, the maximum is {MAX_CONTAINERS}"
    totals = zip(*(role.resources.times(role.instances) for role in roles), strict=True)
    for amount, (what, unit) in zip(map(sum, totals), _AMOUNTS, strict=False):
        if amount > MAX_AMOUNT:
            yield "role", f"all instances together ask for {amount}{unit} {what}, the maximum is {MAX_AMOUNT}{unit}"
    for role in roles:
        for one in role.depends_on:
            if one.role not in by_name:
                yield f"{role.section}.depends_on", no_role(one.role, by_name)
            elif one.until is Until.DONE and by_name[one.role].service:
                problem = f"role {one.role} is a service, which is ended with the others and never done before"
                yield f"{role.section}.depends_on", problem
    for cycle in _cycles({role.name: [one.role for one in role.depends_on] for role in roles}):
        yield (
            f"{by_name[cycle[0]].section}.depends_on",
            f"the roles wait for each other: {' -> '.join((*cycle, cycle[0]))}",
        )
    for name in success:
        if name not in by_name:
            yield "application.success", no_role(name, by_name)
        elif by_name[name].service:
            yield "application.success", f"role {name} is a service, which does not decide"
    if kind is Kind.SERVICE:
        if not all(role.keep_running for role in roles):
            yield "application.kind", "is service, and such an application has a [service NAME] and no other program"
        if failure is ContainerFailure.CONTINUE:
            yield "application.on_container_failure", "has no effect with kind=service, whose programs start again"
    elif not success and roles and all(role.service for role in roles):
        hint = "; an application of services alone has kind=service" if any(one.keep_running for one in roles) else ""
        yield "application.success", f"every role is a service, so none decides{hint}"
    if kind is Kind.BATCH:
        for role in roles:
            if role.max_idle_s is not None:
                problem = "is for kind=service in [application]; in another application a service ends with it"
                yield f"{role.section}.max_idle", problem
    gangs = gangs_of(roles, gang)
    if failure is ContainerFailure.CONTINUE and gangs:
        problem = f"is continue, but the containers of {gangs[0][0].name} only work together"
        yield "application.on_container_failure", f"{problem} (gang={gang.value}; with gang=none each is on its own)"
    for role in roles:
        if role.on_failure is RoleFailure.RESTART_GANG and not gangs:
            yield f"{role.section}.on_failure", "is restart_gang, and with gang=none there is no gang"


def problems_with_links(links: Sequence[QuickLink], roles: Sequence[RoleSpec]) -> Iterator[tuple[str, str]]:
    """Find links to roles or ports that do not exist: pairs of a properties key and the problem."""
    by_name = {role.name: role for role in roles}
    if len(links) > MAX_LINKS:
        yield f"application.link.{links[-1].name}", f"is one of {len(links)} links, the maximum is {MAX_LINKS}"
    for one in links:
        if one.role not in by_name:
            yield f"application.link.{one.name}", no_role(one.role, by_name)
        elif one.port is None and one.place >= (ports := by_name[one.role].ports):
            problem = f"is on port number {one.place + 1} of role {one.role}, which has ports={ports}"
            yield f"application.link.{one.name}", problem


def checkpoint_problem(writer: str | None, roles: Sequence[RoleSpec], *, is_gang: bool) -> str:
    """Return why a checkpoint configuration is not possible; empty: it is.

    Args:
        writer: `CheckpointSpec.role`.
        is_gang: its containers start together, all or those of one role.
    """
    if writer == EVERY_INDEX:
        alone = next((role.name for role in roles if is_gang and role.on_failure is RoleFailure.RESTART), None)
        if alone is not None:
            return f"is all, for which all must be started again together, and role {alone} has on_failure=restart"
        return ""
    if writer is not None and all(role.name != writer for role in roles):
        return no_role(writer, [EVERY_INDEX, *(role.name for role in roles)])
    if not is_gang and sum(role.instances for role in roles) > 1:
        return "must be all: containers that do not start together (gang=none) have checkpoints of their own each"
    return ""


def problems_with_sweep(
    sweep: SweepSpec,
    *,
    roles: Sequence[RoleSpec],
    gang: Gang,
    framework: Framework,
    checkpoint: CheckpointSpec | None,
    env: Iterable[str],
) -> Iterator[tuple[str, str]]:
    """Find settings that exclude a sweep: pairs of a properties key and the problem.

    Args:
        sweep: sweep of the application.
        roles: roles of the application.
        gang: `AppSpec.gang`.
        framework: `AppSpec.framework`.
        checkpoint: `AppSpec.checkpoint`.
        env: names of the application's variables.
    """
    for name in sweep.parameters:
        try:
            check_parameter_name(f"sweep.{name}", name)
        except SpecError as refused:
            yield "sweep", f"the parameter {name!r} {refused.problem}"
    for name in sweep.parameters:
        if name in env:
            yield "sweep", f"the parameter {name} is a variable of the application, too"
    if len(roles) > 1 or any(role.service for role in roles):
        yield "sweep", "needs one kind of containers, and the application has roles"
    elif roles and (most := roles[0].instances * sweep.trials_per_container) < (sweep.concurrency or 0):
        counts = f"containers={roles[0].instances}, trials_per_container={sweep.trials_per_container}"
        yield "sweep.concurrency", f"is {sweep.concurrency}, and {most} trials can run at once ({counts})"
    if framework is not Framework.NONE:
        yield "application.framework", f"is {framework.value}, and the trials of a sweep run in one container each"
    elif gang is not Gang.NONE and len(roles) == 1:
        yield "application.gang", f"is {gang.value}, and the containers of a sweep do not start together"
    if checkpoint is not None:
        yield "checkpoint", "is not possible in a sweep: several trials would share it"


def no_role(name: str, names: Iterable[str]) -> str:
    """Return the message on a role that does not exist."""
    known = list(names)
    hint = nearest(name, known) if len(known) <= _MANY_ROLES else f"there are {len(known)}"
    return f"there is no role {name}, {hint}"


def _cycles(after: Mapping[str, list[str]]) -> Iterator[tuple[str, ...]]:
    """Find cycles: each starts with its first name in order, and no name is in two of the returned cycles.

    Args:
        after: name -> the names that it waits for; a name without a key waits for nothing.
    """
    order = {name: place for place, name in enumerate(after)}
    done: set[str] = set()
    for start in after:
        path: list[str] = []
        # For each name on the path: the names still to visit.
        rest: list[Iterator[str]] = [iter((start,))]
        while rest:
            name = next(rest[-1], None)
            if name is None:
                rest.pop()
                if path:
                    done.add(path.pop())
            elif name in path:
                cycle = path[path.index(name) :]
                if done.isdisjoint(cycle):
                    first = cycle.index(min(cycle, key=lambda one: order[one]))
                    yield (*cycle[first:], *cycle[:first])
                    done.update(cycle)
            elif name in after and name not in done:
                path.append(name)
                rest.append(iter(after[name]))


def check_role_name(where: str, name: str) -> None:
    """Reject an invalid role name. Raises SpecError; the message names ``where``."""
    if not isinstance(name, str) or not _ROLE_NAME.fullmatch(name):
        raise SpecError(where, f"{name!r} is not a name: small letters, digits, '-' and '_', 31 at most")


def check_inside_workspace(where: str, path: str) -> None:
    """Reject a path that is absolute or leads out of the workspace.

    Raises:
        SpecError: the path is invalid; the message names ``where``.
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
    """Reject an invalid cache name. Raises SpecError; the message names ``where``."""
    if not isinstance(name, str) or not _CACHE_NAME.fullmatch(name):
        raise SpecError(where, f"{name!r} is not a name: at most 32 of A-Z, a-z, 0-9, _ and -, no _ or - first")


def check_gpu_kind(where: str, kind: str) -> None:
    """Reject what is no kind of GPUs (`Placement.gpu`). Raises SpecError; the message names ``where``."""
    if not isinstance(kind, str) or not _GPU_KIND.fullmatch(kind):
        raise SpecError(where, f"{kind!r} is not whole, mig or mig:PROFILE, with a profile of nvidia-smi: mig:1g.10gb")


def check_workdir(where: str, path: str) -> None:
    """Reject a directory of an image that is not an absolute path. Raises SpecError; the message names ``where``."""
    _check_absolute(where, path)


def _check_absolute(where: str, path: str) -> None:
    if not isinstance(path, str) or not path.startswith("/") or path.startswith("//"):
        raise SpecError(where, f"{path!r} is not an absolute path")
    if posixpath.normpath(path) != path or not path.isprintable():
        raise SpecError(where, f"{path!r}: write it without a slash at its end, //, . and .., and control characters")


def check_cache_path(where: str, path: str) -> None:
    """Reject a path at which a cache cannot be mounted. Raises SpecError; the message names ``where``."""
    _check_absolute(where, path)
    closed = next((one for one in _NOT_FOR_CACHES if f"{path}/".startswith(f"{one}/")), None)
    if path == "/" or path in _PROGRAMS or closed is not None:
        raise SpecError(where, f"{path}: a cache cannot be mounted {'there' if closed is None else f'in {closed}'}")


def check_env_name(where: str, name: str) -> None:
    """Reject a name that is not a valid variable name, or that would override a variable set by dlapp.

    Raises:
        SpecError: the name is rejected; the message names ``where``.
    """
    if not _ENV_NAME.fullmatch(name):
        raise SpecError(where, f"{name!r} is not the name of a variable")
    if name in RESERVED_ENV or name.startswith(RESERVED_ENV_PREFIXES):
        raise SpecError(where, "is set by dlapp and cannot be set here")


def check_parameter_name(where: str, name: str) -> None:
    """Reject an invalid parameter name of a sweep. Raises SpecError; the message names ``where``."""
    from dlapp.sweep.spec import RESERVED_PARAMETERS

    check_env_name(where, name)
    if name in RESERVED_PARAMETERS:
        raise SpecError(where, f"cannot be set: {{{name}}} in an argument is a number that dlapp sets")
