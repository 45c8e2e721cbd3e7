"""dlapp-shell on this machine: the container's workspace is the user's own directory.

Its session's directory (`dlapp.client.command_session`) has what dlapp-run needs (`dlapp.client.shell.server`). All
else is of the application and its task: the GPU lease, the input, the image, the processes.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from dlapp.application.description import ResolvedApplication, read_application
from dlapp.client.command_session import LOG, records_below, session_directory, signals_close
from dlapp.client.shell.container_shell import ContainerShell, ShellOptions, role_variables, shell_spec
from dlapp.client.shell.server import SHARED_DIRECTORY, START_VARIABLE, ShellRequestServer, install
from dlapp.client.shell.start import write_start
from dlapp.client.shell.trusted_paths import is_inside, refuse_trusted_files_in
from dlapp.errors import UsageError
from dlapp.system.processes.spawn import PROGRAM
from dlapp.value import replace
from dlapp.values.launch_spec import LiveWorkspace
from dlapp.values.spec import AppSpec

if TYPE_CHECKING:
    from dlapp.client import Client
    from dlapp.config import Config
    from dlapp.values.launch_spec import LedgerSettings
    from dlapp.values.report import ContainerView

_EVER_S = 10 * 365 * 86_400.0
_REACH_S = 2.0


def open_live_shell(client: Client, own: Client, path: str, options: ShellOptions) -> int:
    """Submit the application of a properties file to this machine, with the workspace itself, and connect this process
    to a shell in it. Return the shell's exit code.

    Args:
        client: the client of this machine's engine.
        own: the client of the user's configured engine, on which dlapp-run submits: its paths and GPU ledger count.
        path: the path of the properties file.
        options: of the command.

    Raises:
        FileRefused: the file has errors; the message lists all of them.
        DlappError: the GPUs are not free, or the application ended before there was a shell.
        UsageError: the workspace has a path that dlapp manages or trusts on this machine.
        SessionClosed: a signal ended this before.
    """
    note = options.note
    client.engine.prepare()  # the runner starts while the file is read
    resolved = read_application(path, own.config, own.engine.info(), script_may_be_missing=True)
    spec = _live_spec(client, resolved, options, is_configured=own is client)
    if len(resolved.spec.roles) > 1:
        note(f"the shell is as a container of the first role, {spec.roles[0].name}")
    _refuse_workspace(client, resolved, spec, options)
    ledger = _ledger_of_cluster(own.config, spec)
    with contextlib.ExitStack() as stack:
        stack.enter_context(signals_close())
        directory = stack.enter_context(session_directory(client.config))
        install(directory)
        live = LiveWorkspace(
            path=spec.workspace,
            shell_dir=os.path.join(directory, SHARED_DIRECTORY),
            session=os.path.join(directory, LOG),
            records=records_below(client.state_path),
            tmp=os.environ.get("TMPDIR") or "/tmp",
            lease_timeout_s=_EVER_S if options.waits else 0.0,
            inputs=tuple((one.name, one.input_path) for one in resolved.spec.inputs),
            outputs=tuple((one.name, one.output_path) for one in resolved.spec.outputs),
        )
        environment = {**os.environ, START_VARIABLE: write_start(directory, resolved.snapshot, own.config)}
        stack.enter_context(ShellRequestServer(directory, [*PROGRAM, "tool", "run"], environment, os.getcwd()))
        application = client.submit_live(
            spec, live, file=path, env=resolved.env, role_env=role_variables(resolved), ledger=ledger, note=note
        )
        shell = ContainerShell(client, application, options, is_live=True)
        return shell.run(lambda container: _greeting(spec, container))


def _live_spec(client: Client, resolved: ResolvedApplication, options: ShellOptions, *, is_configured: bool) -> AppSpec:
    """Return the spec of the application: with missing input only, and no larger than this machine, whose queue counts
    only its GPUs."""
    spec = shell_spec(resolved.spec, gcores=options.gcores, fetch_input=options.fetch_input)
    if spec.inputs:
        from dlapp.task.data.live_input import missing_input

        spec = replace(spec, inputs=missing_input(spec.inputs, spec.workspace, options.note))
    from dlapp.cluster.local.capacity import capacity_of
    from dlapp.cluster.local.settings import settings_of

    memory_mib, vcores, *_ = capacity_of(settings_of(client.config, ()), 0)
    role = spec.roles[0]
    resources = role.resources
    resources = replace(
        resources, memory_mib=min(resources.memory_mib, memory_mib), vcores=min(resources.vcores, vcores)
    )
    # The user is there: nothing ends the shell but the user, and nobody is notified of it. A cluster has other queues.
    return replace(
        spec,
        queue=spec.queue if is_configured else None,
        priority=spec.priority if is_configured else None,
        roles=(replace(role, resources=resources),),
        max_runtime_s=None,
        idle_guard=None,
        notify=(),
    )


def _refuse_workspace(client: Client, resolved: ResolvedApplication, spec: AppSpec, options: ShellOptions) -> None:
    """Refuse a workspace that dlapp would remove one day, or through which a container could change what dlapp trusts.
    Raises UsageError."""
    if is_inside(spec.workspace, client.state_path):
        raise UsageError(
            f"the workspace {spec.workspace} lies in dlapp's state directory, which dlapp cleans up; copy it"
        )
    if spec.docker_image is None:
        return
    refuse_trusted_files_in("the workspace", spec.workspace, client)
    path = resolved.snapshot.path
    if is_inside(path, spec.workspace):
        options.note(f"{path} lies in the workspace: what runs in the container can change it")
    if not spec.caches:
        return
    from dlapp.client.machine.payload_caches import payload_cache_settings
    from dlapp.node_policy import node_policy
    from dlapp.task.data.payload_caches import place_of_caches

    place = place_of_caches(payload_cache_settings(client.config, client.state_path), node_policy())
    for one in spec.caches:
        refuse_trusted_files_in(f"cache.{one.name}", os.path.join(place.directory, "caches", one.name), client)


def _ledger_of_cluster(config: Config, spec: AppSpec) -> LedgerSettings | None:
    """Return the GPU ledger of the cluster that this machine belongs to; None: that of this machine counts, or no GPU
    is needed. Raises Unreachable: it does not answer."""
    if not spec.total()[2]:
        return None
    from dlapp.gpuid.factory import configured, open_ledger, web_certificates

    settings = configured(config)
    if not settings.covers_cluster:
        return None
    with contextlib.closing(open_ledger(settings, web_certificates(config, settings))) as ledger:
        ledger.reach(timeout_s=_REACH_S)
    return settings


def _greeting(spec: AppSpec, container: ContainerView) -> str:
    where = f"in image {spec.docker_image}" if spec.docker_image else "on this machine"
    held = f", GPU {','.join(map(str, container.gpus))}" if container.gpus else ""
    return f"dlapp-shell: {spec.workspace} {where}{held}; dlapp-run submits it, exit closes"
