"""dlapp-shell: the environment of a payload, interactively, in the user's own workspace.

Its session's directory (`dlapp.client.command_session`) has what dlapp-run needs (`dlapp.client.shell.server`), and in
Docker the lifeline, HOME and TMPDIR. Nothing else is released after a SIGKILL: GPUs are held by kernel locks that end
with the last process that inherited them (of a cluster's ledger, the next request on this host then ends the lease),
a plain shell ends with its keeper (`dlapp.client.shell.plain`), a container by its lifeline.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dlapp.application.description import read_application
from dlapp.application.notes import submission_notes
from dlapp.client.command_session import records_below, session_directory, signals_close
from dlapp.client.shell import input as shell_input
from dlapp.client.shell.input_record import record_paths
from dlapp.client.shell.server import (
    BIN,
    DIRECTORY_VARIABLE,
    RC,
    SHARED_DIRECTORY,
    START_VARIABLE,
    VARIABLES_VARIABLE,
    ShellRequestServer,
    install,
)
from dlapp.client.shell.start import write_start
from dlapp.errors import NotFound, UsageError
from dlapp.locations import HdfsPlace
from dlapp.system.processes.spawn import PROGRAM
from dlapp.values.ids import ApplicationId, ContainerId
from dlapp.values.spec import BY_INDEX, AppSpec, Placement

if TYPE_CHECKING:
    from dlapp.client import Client
    from dlapp.client.shell.plain import PlainShell
    from dlapp.config import Config
    from dlapp.gpuid.devices import Device
    from dlapp.runtime.docker.shell import DockerShell
    from dlapp.task.data.inputs import Inputs

NO_CONTAINER = ContainerId(ApplicationId(0, 0), 1, 1)
"""DLAPP_CONTAINER_ID and DLAPP_APP_ID in the shell: valid ids that no container has."""
IN_DOCKER = "/workspace"
SHELLS = ("bash", "sh")

Note = Callable[[str], None]
Progress = Callable[[int, int], None]


def open_shell(
    client: Client,
    path: str,
    *,
    gcores: int | None = None,
    fetch_input: bool = True,
    note: Note = lambda _: None,
    copying: Callable[[str], contextlib.AbstractContextManager[Progress | None]] = lambda _: contextlib.nullcontext(),
) -> int:
    """Open the shell of a properties file on this terminal. Return its exit code once it is closed.

    Args:
        client: has the configuration, and the engine whose devices are leased.
        path: the path of the properties file.
        gcores: GPUs; None for those of a container of the application.
        fetch_input: whether to fetch missing input into the workspace.
        note: called with one line for each notice for the user.
        copying: context manager around fetching the input and pulling the image, called with that word; its value is
            called with the bytes done and the total.

    Raises:
        FileRefused: the file has errors; the message lists all of them.
        NotEnough: more gcores than are free; the message names the holders.
        NotFound: the workspace or input is missing, or there is no shell.
        UsageError: the workspace contains files that dlapp trusts on this machine, and a container would mount it.
    """
    application = read_application(path, client.config, client.engine.info(), script_may_be_missing=True)
    spec, role = application.spec, application.spec.roles[0]
    if not spec.workspace:
        raise UsageError(f"{path} has no user_dev_workspace_path, and a shell opens in the workspace")
    user_env = {**application.env, **application.role_env.get(role.name, {})}
    wanted = role.resources.gcores if gcores is None else gcores
    image = spec.image_of(role)
    if len(spec.roles) > 1:
        note(f"the shell is as a container of the first role, {role.name}")
    for line in submission_notes(application, client.config, os.environ):
        note(line)
    with contextlib.ExitStack() as stack:
        stack.enter_context(signals_close())
        if image:
            refuse_trusted_files_in("the workspace", spec.workspace, client)
            if _is_inside(application.snapshot.path, spec.workspace):
                note(f"{path} lies in the workspace: what runs in the container can change it")
        directory = stack.enter_context(session_directory(client.config))
        install(directory)
        name = os.path.basename(directory)
        evidence = _evidence_of_docker(client.config, directory) if image else None
        held = leased(client.config, wanted, name, spec.placement_of(role), evidence)
        devices, kept_fds = stack.enter_context(held)
        cache_paths, cache_locks = stack.enter_context(_held_caches(client, spec, note, in_docker=bool(image)))
        for cache, path_of_cache in cache_paths.items() if image else ():
            refuse_trusted_files_in(f"cache.{cache}", path_of_cache, client)
        cached: Inputs | None = None
        if fetch_input and spec.inputs:
            cached = stack.enter_context(contextlib.closing(_open_input_cache(client, note)))
            fetch = functools.partial(cached.bring, may_mount=False)  # the user may write to all of the workspace
            with copying("fetching") as progress:
                now = shell_input.fetch_into_workspace(
                    spec.inputs, spec.workspace, directory, note, progress, _hdfs_of(client, spec), fetch
                )
            record_paths(records_below(client.state_path), spec.workspace, now)
        note(_greeting(spec, devices, image))
        command = [*PROGRAM, "tool", "run"]
        server_env = {**os.environ, START_VARIABLE: write_start(directory, application.snapshot, client.config)}
        if image:
            from dlapp.launcher.registry_credentials import collect_credentials
            from dlapp.node_policy import node_policy
            from dlapp.runtime.docker.shell import DockerShell
            from dlapp.runtime.gpu.environment import payload_devices
            from dlapp.values.launch_spec import DockerSettings

            docker, policy = client.config.runtime.docker, node_policy().docker
            network = spec.network or docker.network
            defaults, inside = environment(spec, directory, devices, user_env, cache_paths, docker_network=network)
            credentials = collect_credentials([image], policy.registry, note, os.environ)
            with copying("pulling") as progress:
                shell: DockerShell | PlainShell = DockerShell(
                    settings=DockerSettings(docker.host, network, docker.gpu_mode, client.config.gpuid.lock_dir),
                    policy=policy,
                    image=image,
                    workspace=spec.workspace,
                    session_dir=directory,
                    shared_dir=os.path.join(directory, SHARED_DIRECTORY),
                    env=inside,
                    defaults=defaults,
                    resources=role.resources,
                    devices=payload_devices(devices),
                    caches=[(cache_paths[one.name], one.path) for one in spec.caches],
                    note=note,
                    progress=progress,
                    credentials=credentials.get(image),
                )
                stack.callback(shell.close)
                shell.start()
        else:
            from dlapp.client.shell.plain import PlainShell

            defaults, own = environment(spec, directory, devices, user_env, cache_paths)
            inside = defaults | own
            inside[DIRECTORY_VARIABLE] = f"{directory}/{SHARED_DIRECTORY}"
            inside["PATH"] = f"{directory}/{SHARED_DIRECTORY}/{BIN}:{inside['PATH']}"
            argv = [find_shell(inside["PATH"])]
            if os.path.basename(argv[0]) == "bash":
                argv += ["--rcfile", f"{directory}/{SHARED_DIRECTORY}/{RC}"]
                inside[VARIABLES_VARIABLE] = " ".join(_own_variables(inside))
            else:
                inside["PS1"] = "(dlapp) $ "
            shell = PlainShell(argv, inside, spec.workspace, (*kept_fds, *cache_locks))
            stack.callback(shell.close)
            shell.start()
        # These have threads, so they come after the forks; and the server closes before what it uses.
        if cached is not None:
            cached.settle_later()
        stack.enter_context(ShellRequestServer(directory, command, server_env, os.getcwd()))
        with _interrupts_ignored():
            return shell.wait()


def refuse_trusted_files_in(name: str, directory: str, client: Client) -> None:
    """Refuse a directory through which a container could change files that dlapp trusts or runs on this machine.

    Args:
        name: what the user knows it by.
        directory: its path; the container may write to it.
        client: whose files are trusted.

    Raises:
        UsageError: it contains dlapp's state, its configuration, Hadoop's, or dlapp's own programs.
    """
    for what, paths in trusted_paths(client).items():
        for path in paths:
            if _is_inside(path, directory):
                raise UsageError(
                    f"{name} {directory} holds {what} ({path}): a shell in Docker could change it; keep it elsewhere"
                )


def trusted_paths(client: Client) -> dict[str, list[str]]:
    """Return paths that dlapp trusts or runs on this machine, by description."""
    import dlapp
    from dlapp.config import config_files, obeyed_paths

    hadoop = client.config.yarn.conf_dir or os.environ.get("HADOOP_CONF_DIR")
    return {
        "the state directory of dlapp": [client.state_path],
        "the configuration of dlapp": config_files(),
        "the configuration of Hadoop": [hadoop] if hadoop else [],
        **{f"what {name} names": paths for name, paths in obeyed_paths(client.config).items()},
        "dlapp itself": [os.path.dirname(os.path.dirname(dlapp.__file__)), sys.prefix, sys.executable],
    }


def _is_inside(path: str, directory: str) -> bool:
    real = os.path.realpath(directory)
    # Both the given and the resolved path: a user who can write to the directory of either may replace it.
    return any(os.path.commonpath([real, one]) == real for one in (os.path.abspath(path), os.path.realpath(path)))


def _hdfs_of(client: Client, spec: AppSpec) -> HdfsPlace | None:
    place = client.engine.info().hdfs
    return place and place._replace(login=place.login.as_user(spec.username))


def _open_input_cache(client: Client, note: Note) -> Inputs:
    """Return the cache that the caller's runs on this machine also use."""
    from dlapp.client.machine.input_cache import cache_directory
    from dlapp.task.data.inputs import Inputs
    from dlapp.values.launch_spec import CacheSettings

    storage = client.config.storage
    directory = cache_directory(client.config, client.state_path)
    return Inputs(CacheSettings(storage.cache_limit_bytes, storage.cache_age_s, directory=directory), note)


@contextlib.contextmanager
def _held_caches(
    client: Client, spec: AppSpec, note: Note, *, in_docker: bool
) -> Iterator[tuple[dict[str, str], tuple[int, ...]]]:
    """Hold the payload caches during the block; yield their paths by name, and descriptors that hold them.

    Raises:
        Denied: this machine allows none.
    """
    if not spec.caches:
        yield {}, ()
        return
    from dlapp.client.machine.payload_caches import payload_cache_settings
    from dlapp.node_policy import node_policy
    from dlapp.task.data.payload_caches import open_caches

    settings = payload_cache_settings(client.config, client.state_path)
    with contextlib.closing(open_caches(spec.caches, settings, node_policy(), note, in_docker=in_docker)) as caches:
        yield {one.name: caches.hold(one.name) for one in spec.caches}, caches.lock_fds


def environment(
    spec: AppSpec,
    session_dir: str,
    devices: Sequence[Device],
    user_env: Mapping[str, str],
    cache_paths: Mapping[str, str],
    *,
    docker_network: str = "",
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the environment of a payload, as the only container of the application: variables that the image replaces,
    and those that replace the image's.

    A plain shell also keeps the caller's environment: it is interactive, and uses a terminal, keys and the like.

    Args:
        spec: the spec of the application.
        session_dir: the shell's directory.
        devices: leased to it.
        user_env: the variables that the properties file sets.
        cache_paths: the cache paths of this machine, by the names of the application's caches.
        docker_network: the network of its container; empty: it is a plain process.
    """
    from dlapp.runtime.gpu.environment import payload_devices
    from dlapp.task.environment import FRAMEWORKS, default_variables, payload_environment
    from dlapp.values.messages import Assignment

    role, in_docker = spec.roles[0], bool(docker_network)
    program = spec.program_of(role)
    assignment = Assignment(
        application_id=NO_CONTAINER.application,
        attempt=1,
        container_id=NO_CONTAINER,
        index=0,
        total=1,
        role=role.name,
        role_index=0,
        role_size=1,
        resources=role.resources,
        script=program.script,
        command=program.command,
        args=program.args,
        docker_image=spec.image_of(role),
        gpu_capabilities=spec.capabilities_of(role),
        username=spec.username,
        appname=spec.appname,
        workspace_archive="",
        workspace_digest="",
        inputs=spec.inputs,
        outputs=spec.outputs,
        cuda_visible_devices=spec.placement_of(role).cuda_visible_devices,
    )
    defaults = default_variables(
        assignment,
        user=user_env,
        # Without Docker, TMPDIR is that of the caller, and stays.
        cache_path=f"{spec.caches[0].path}/{FRAMEWORKS}" if in_docker and spec.caches else None,
        submitter=os.environ,
        docker_network=docker_network,
    )
    return defaults, payload_environment(
        assignment,
        workspace=IN_DOCKER if in_docker else spec.workspace,
        home=os.path.join(session_dir, "home"),
        tmp=os.environ.get("TMPDIR", "/tmp"),
        submitter=None if in_docker else os.environ,
        user=user_env,
        gpus=payload_devices(devices),
        caches={one.name: one.path if in_docker else cache_paths[one.name] for one in spec.caches},
    )


def _own_variables(env: Mapping[str, str]) -> list[str]:
    """Return the names of the variables that the caller's ``~/.bashrc`` must not change."""
    own = ("CUDA_VISIBLE_DEVICES", "TMPDIR")
    return [
        name
        for name, value in env.items()
        if (name in own or name.startswith("DLAPP_") or os.environ.get(name) != value) and name not in ("PATH", "PWD")
    ]


def find_shell(path: str) -> str:
    """Return the absolute path of bash, or of sh. Raises NotFound."""
    for name in SHELLS:
        if found := shutil.which(name, path=path):
            return found
    raise NotFound(f"neither bash nor sh is in PATH ({path})")


@contextlib.contextmanager
def leased(
    config: Config, gcores: int, name: str, placement: Placement, evidence: Mapping[str, Any] | None = None
) -> Iterator[tuple[tuple[Device, ...], tuple[int, ...]]]:
    """Lease devices of this host from the configured ledger during the block; yield them, and the descriptors that hold
    them.

    Args:
        config: names the ledger.
        gcores: number of devices.
        name: the name of the lease, as application and as container.
        placement: chooses them.
        evidence: for a shell that does not inherit the descriptors, see `dlapp.gpuid.liveness.probes`.

    Raises:
        NotEnough: fewer are free; the message names the holders.
        RequestTooLarge: this host has fewer.
        LedgerError: the placement asks for CUDA's indexes, and a GPU of this host is split by MIG.
        Unreachable: the ledger is in ZooKeeper, which does not answer.
    """
    if not gcores:
        yield (), ()
        return
    from dlapp.client.operations.connections import caller
    from dlapp.gpuid.factory import configured, open_ledger, web_certificates
    from dlapp.gpuid.health.inspection import Inspector
    from dlapp.gpuid.health.nvml_subprocess import NvmlProcess
    from dlapp.gpuid.needs import DeviceNeed
    from dlapp.gpuid.rules import LeaseRequest, check_indexes
    from dlapp.task.gpu_health import LeasedDevices

    settings = configured(config)
    certificates = web_certificates(config, settings)
    with contextlib.ExitStack() as opened:
        nvml = opened.enter_context(NvmlProcess())
        inspect = Inspector(read=nvml.read)
        ledger = opened.enter_context(
            contextlib.closing(open_ledger(settings, certificates, inspect=inspect, nvml=nvml))
        )
        need = DeviceNeed(placement.gpu, placement.gpu_memory_mb)
        lease = ledger.acquire(LeaseRequest(name, name, caller(), gcores, evidence=evidence or {}, need=need))
        try:
            if placement.cuda_visible_devices == BY_INDEX and evidence is None:
                check_indexes(ledger.record())
            # Its threads, if any, must not exist when the shell is forked; a release reconnects.
            ledger.close()
            yield lease.devices, lease.fds
        finally:
            # The terminal may be gone: findings are in the ledger.
            devices = LeasedDevices(ledger, nvml, lease.devices, lambda line: None, lambda line: None)
            # If the driver hangs, the lease ends with this process, by its evidence.
            if devices.quarantine_failed():
                lease.release()


def _evidence_of_docker(config: Config, directory: str) -> dict[str, Any]:
    from dlapp.gpuid.liveness.probes import this_task
    from dlapp.runtime.docker.labels import LABEL_CONTAINER

    label = f"{LABEL_CONTAINER}={os.path.basename(directory)}"
    return {
        "task": this_task(),
        "fifo": os.path.join(directory, "life"),
        "docker": {"host": config.runtime.docker.host, "label": label},
    }


@contextlib.contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Ignore Ctrl-C on a terminal, where it is for the programs in the shell; without a terminal it ends the shell like
    any command."""
    numbers = (signal.SIGINT, signal.SIGQUIT) if os.isatty(0) else ()
    before = {number: signal.signal(number, lambda _number, _frame: None) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _greeting(spec: AppSpec, devices: Sequence[Device], image: str | None) -> str:
    where = f"in image {image}" if image else "on this machine"
    gpus = ",".join(str(device.index) for device in devices)
    held = f", GPU {gpus}" if devices else ""
    return f"dlapp-shell: {spec.workspace} {where}{held}; dlapp-run submits it, exit closes"
