"""Payload: its script, its arguments, its environment, and the files around it."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

from dlapp.errors import DlappError
from dlapp.system.processes.resource_counters import ResourceCounters
from dlapp.value import NamedTuple, Value
from dlapp.values.messages import Fault
from dlapp.values.spec import Resources

BY_SHELL = "shell"
AS_PROGRAM = "program"
AS_COMMAND = "command"
SIGNALS = range(1, 65)
SOFT_STOP_EVERY_S = 2.0
"""Time between two calls of `Running.soft_stop`, in which a shell ends by itself after its programs."""
NO_VARIABLES: Mapping[str, str] = MappingProxyType({})

_HERE = os.path.dirname(os.path.abspath(__file__))
CONTEXT = os.path.join(os.path.dirname(_HERE), "context.py")
FEED = os.path.join(os.path.dirname(_HERE), "feed.py")
WRAPPER = os.path.join(_HERE, "wrapper.sh")
NOTEBOOK_PROGRAM = "dlapp_notebook.py"
"""Name of the program of dlapp-notebook beside the module dlapp_context, for payloads whose command names it."""


class PayloadError(DlappError):
    """A payload that could not be run; ``fault``: the responsible side; ``service`` as in `TaskResult`."""

    def __init__(self, fault: Fault, message: str, *, service: str = "") -> None:
        super().__init__(message)
        self.fault, self.service = fault, service


class ServiceAway(PayloadError):
    """A service that the payload needs for its start does not answer: Docker, or a registry.

    Args:
        service: its name for users, with its address if known.
        why: the error in place of an answer.
        fault: NODE if each node has its own service.
    """

    def __init__(self, service: str, why: str, message: str, fault: Fault = Fault.SERVICE) -> None:
        super().__init__(fault, message, service=service)
        self.why = why


class PayloadDevice(Value):
    """One leased GPU of a payload; see `dlapp.gpuid.devices.Device`. ``minor`` is -1 if unknown; ``mig`` is -1 for a
    whole GPU.
    """

    uuid: str
    index: int
    minor: int = -1
    mig: int = -1
    gpu_instance: int = -1
    compute_instance: int = -1
    pci_bus_id: str = ""
    name: str = ""
    memory_mib: int = 0
    numa: int = -1

    @property
    def place(self) -> str:
        """Return its name for NVIDIA's tools: its index, with the number of a slice ``0:1``."""
        return f"{self.index}" if self.mig < 0 else f"{self.index}:{self.mig}"


class _Inside:
    """Path of a file in a container's directory on this host."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, payload: Payload, _class: type[Payload]) -> str:
        return os.path.join(payload.directory, self._name)


class Payload(Value, kw_only=True):
    """Everything needed to run one payload.

    Args:
        directory: the container's directory on this host, or that of a trial in it; contains the files below.
        task_directory: the container's directory, if ``directory`` is another one.
        live_workspace: the user's own directory as the workspace, which is not in ``directory``; empty: none.
        shell_dir: in Docker only: the files of dlapp-run on the host, mounted read-only; empty: none.
        name: the name of the payload among those of its container; empty if it is the only one.
        script: relative to the workspace; empty to run ``command``.
        command: words of a program that runs without a shell; found on PATH, or a path.
        env: the payload's environment; in Docker added to the image's. `Running.start` may add to it.
        defaults: variables that ``env``, and in Docker the image, replace.
        image: None for a plain process.
        workdir: in Docker only: directory of the image at which ``command`` starts; empty: the workspace.
        mounts: in Docker only: paths of the host, and the paths in `workspace` that they cover; read-only.
        shared: directories in ``mounts`` that are on shared file systems, in which others may write; without links.
        caches: in Docker only: paths of the host, and their paths in the container.
        keep_fds: open descriptors that a plain payload inherits: they hold locks while it lives.
        has_feed: whether an input has ``mode=feed``.
        has_peers: in Docker only: whether the payload finds the names of others in /etc/hosts, if its network is the
            host's. The file is rewritten when their addresses are known.
        has_jax: whether the framework is JAX, which then finds the other containers (`dlapp.runtime.jax_cluster`).
        as_submitter: in Docker only: whether the task runs as the submitting user, so that the payload gets that user's
            groups.
    """

    application_id: str
    container_id: str
    directory: str
    script: str
    args: tuple[str, ...]
    env: dict[str, str]
    resources: Resources
    defaults: Mapping[str, str] = NO_VARIABLES
    command: tuple[str, ...] = ()
    image: str | None = None
    workdir: str = ""
    gpus: tuple[PayloadDevice, ...] = ()
    mounts: tuple[tuple[str, str], ...] = ()
    shared: tuple[str, ...] = ()
    caches: tuple[tuple[str, str], ...] = ()
    keep_fds: tuple[int, ...] = ()
    has_feed: bool = False
    has_peers: bool = False
    has_jax: bool = False
    as_submitter: bool = False
    task_directory: str = ""
    name: str = ""
    live_workspace: str = ""
    shell_dir: str = ""

    def environment(self, image: Mapping[str, str] = NO_VARIABLES) -> dict[str, str]:
        """Return the variables, with the defaults that neither ``env`` nor an image replaces."""
        return {name: text for name, text in self.defaults.items() if name not in image} | self.env

    @property
    def workspace(self) -> str:
        """Return the payload's working directory, on the host."""
        return self.live_workspace or os.path.join(self.directory, "workspace")

    home = _Inside("home")
    """HOME of a payload in Docker, on the host."""
    tmp = _Inside("tmp")
    """TMPDIR, on the host."""
    run = _Inside("run")
    """DLAPP_DIR, on the host: files that dlapp and the payload exchange. Any process of the payload may have written
    them."""
    stdout = _Inside("stdout")
    """File of its standard output, unchanged."""
    stderr = _Inside("stderr")
    """File of its standard error, unchanged."""
    exit_file = _Inside("exit")
    """File in which the wrapper writes how it ended."""
    life = _Inside("life")
    """The FIFO of its lifeline."""
    ending = _Inside("ending")
    """In Docker: the FIFO by which the wrapper reports the end of the program."""

    hosts = _Inside("etc-hosts")
    """In Docker: the file /etc/hosts of a payload with ``has_peers``; read-only there."""
    exec = _Inside("exec")
    """Directory of the lifelines of commands beside a payload in Docker; read-only there."""
    python = _Inside("python")
    """Directory of the modules dlapp_context and dlapp_feed, and of `dlapp.runtime.jax_cluster`, on the host."""

    def write_context(self) -> None:
        """Create the directory ``python``."""
        os.makedirs(self.python, 0o700, exist_ok=True)
        sources = {"dlapp_context.py": CONTEXT}
        if self.has_feed:
            sources["dlapp_feed.py"] = FEED
        if self.has_jax:
            sources["sitecustomize.py"] = os.path.join(_HERE, "jax_cluster.py")
        if any(NOTEBOOK_PROGRAM in word for word in self.command):
            sources[NOTEBOOK_PROGRAM] = os.path.join(_HERE, "notebook_program.py")
        for name, source in sources.items():
            path = os.path.join(self.python, name)
            if not os.path.lexists(path):
                with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444), "wb") as file:
                    file.write(__loader__.get_data(source))  # type: ignore[name-defined]

    @property
    def wrapper(self) -> str:
        """Return the wrapper as a file on the host; a copy if dlapp runs from a zip."""
        if os.path.exists(WRAPPER):
            return WRAPPER
        path = os.path.join(self.directory, "wrapper.sh")
        if not os.path.exists(path):
            with open(path, "wb") as file:
                file.write(__loader__.get_data(WRAPPER))  # type: ignore[name-defined]
        return path

    def start_arguments(self) -> tuple[str, ...]:
        """Return the wrapper's arguments: HOW, SCRIPT and the script's. Raises PayloadError: the script is missing, or
        cannot run."""
        if self.command:
            how = f"{AS_COMMAND}:{self.workdir}" if self.workdir else AS_COMMAND
            return (how, *self.command, *self.args)
        return (start_method(self.workspace, self.script), self.script, *self.args)


class PayloadPlace(Value, kw_only=True):
    """Place of a running payload on this host, for processes that connect to it (`dlapp.task.streams`).

    Args:
        directory: the container's directory.
        container: in Docker the container's name; empty for a plain process.
        docker_host: address of its dockerd.
        pid: in Docker the container's first process, else the payload's guardian; 0 if not visible here.
        started: start time of that process [clock ticks since boot], to detect a reused pid.
        own_network: whether it has its own network.
        addresses: its addresses there, from Docker.
    """

    directory: str
    container: str = ""
    docker_host: str = ""
    pid: int = 0
    started: int = 0
    own_network: bool = False
    addresses: tuple[str, ...] = ()


def lifelines_of(directory: str) -> str:
    """Return the path of `Payload.exec`."""
    return os.path.join(directory, "exec")


class PayloadExit(NamedTuple):
    """End of a payload: an exit code, or a signal.

    ``problem`` has additional information (out of memory, the guardian is gone), and ``fault`` whose fault that is;
    USER with an exit code of 0 means no fault. ``service`` as in `TaskResult`. ``left`` is the `left_text` of the
    processes that were killed because the first one had ended; empty if none.
    """

    exit_code: int | None
    signal: int | None
    fault: Fault = Fault.USER
    problem: str = ""
    service: str = ""
    left: str = ""


class Reachable(Protocol):
    """A payload, or its kept container, that a user's streams can reach."""

    def place(self) -> PayloadPlace | None:
        """Return where it runs; None if it does not run. Thread-safe."""

    def open_keeper(self) -> socket.socket | None:
        """Return the channel of a keeper for a command beside it (`dlapp.runtime.exec.keeper`). Thread-safe.

        Returns:
            None in Docker, which runs commands itself; or if the payload does not run.
        """


class Running(Reachable, Protocol):
    """A prepared payload, plain or in Docker: the operations of a task on it."""

    def start(self, start_env: Mapping[str, str] = NO_VARIABLES, peer_values: Mapping[str, str] = NO_VARIABLES) -> None:
        """Start the payload, with values that are not known before the gate of the gang opens.

        Args:
            start_env: added to `Payload.env`.
            peer_values: name of a placeholder -> value that replaces it in the arguments.

        Raises:
            PayloadError: it could not be started.
        """

    def watched_fds(self) -> list[tuple[int, int]]:
        """Return the descriptors and poll events; call `ended` when one is ready. May change between calls."""

    def ended(self) -> PayloadExit | None:
        """Return how it ended, once all of its processes have; None before."""

    def counters(self) -> ResourceCounters:
        """Return what the payload has used since its start, as far as known; after its end for the last time."""

    def pids(self) -> list[int]:
        """Return the pids of the payload on this host; empty if not visible."""

    def soft_stop(self) -> None:
        """Send SIGTERM to the payload: to its programs first, to a shell that waits for them only after their end.

        Call it again every `SOFT_STOP_EVERY_S` until the payload has ended (`dlapp.runtime.guardian`).
        """

    def abort(self) -> None:
        """Send SIGABRT to the whole payload, which may make it dump its stacks."""

    def kill(self) -> None:
        """Send SIGKILL to the whole payload. Idempotent."""

    def close(self) -> None:
        """Clean up: kill remaining processes, remove what was created."""


def start_method(workspace: str, script: str) -> str:
    """Return how a script is started: `BY_SHELL`, `AS_PROGRAM`, or the absolute path of the interpreter in its ``#!``
    line.

    The kernel runs files with the x bit that have a ``#!`` line or are binary programs; bash runs all others. Source:
    execve(2), "Interpreter scripts"; binfmt_script.c reads 256 bytes.

    Raises:
        PayloadError: the script is missing, or its ``#!`` line cannot work.
    """
    path = os.path.join(workspace, script)
    try:
        with open(path, "rb") as file:
            head = file.read(256)
            executable = os.stat(file.fileno()).st_mode & 0o100
    except (FileNotFoundError, NotADirectoryError):
        raise PayloadError(Fault.USER, f"{script}: there is no such script in the workspace") from None
    except IsADirectoryError:
        raise PayloadError(Fault.USER, f"{script}: is a directory, not a script") from None
    except OSError as error:
        raise PayloadError(Fault.USER, f"{script}: cannot be read: {error.strerror}") from error
    if not executable:
        return BY_SHELL
    if head.startswith(b"\x7fELF"):
        return AS_PROGRAM
    if not head.startswith(b"#!"):
        return BY_SHELL
    line = head[2:].partition(b"\n")[0]
    if line.endswith(b"\r"):
        raise PayloadError(
            Fault.USER,
            f"{script}: its first line ends with a carriage return (Windows line ends), so there is no such "
            f"interpreter; convert it in the workspace, for example with: sed -i 's/\\r$//' {script}",
        )
    words = line.split()
    if not words:
        return BY_SHELL
    interpreter = os.fsdecode(words[0])
    # The kernel resolves a relative one: from the working directory.
    return interpreter if interpreter.startswith("/") else AS_PROGRAM


def ended_with(status: int) -> PayloadExit:
    """Interpret a wait status of os.waitpid."""
    code = os.waitstatus_to_exitcode(status)
    return exited_with(code) if code >= 0 else PayloadExit(None, -code)


def left_text(count: int, name: str) -> str:
    """Return processes that the payload's first one has left, as text: their number, and the first one's program."""
    if not count:
        return ""
    shown = "".join(one if one.isprintable() else "?" for one in name)
    return ", ".join(filter(None, (f"{count} process{'es' if count > 1 else ''}", shown)))


def exited_with(code: int) -> PayloadExit:
    """Return an exit with a code; for 128 + N note that a shell may report signal N by it."""
    number = code - 128
    hint = f"exit code {code} (128 + {number}: often signal {number})" if number in SIGNALS else ""
    return PayloadExit(code, None, problem=hint)
