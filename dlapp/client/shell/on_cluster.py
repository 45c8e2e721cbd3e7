"""dlapp-shell on a cluster: an application whose container waits for a shell, and the shell in it.

The application is that of the properties file without its program: one container of the first role, with its image,
workspace, input, variables, limits and GPUs. Its program waits for the shell process, and ends with it. So when the
shell, the terminal, this process or the connection ends, the application ends by itself; without a shell it ends after
ten minutes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from dlapp.application.description import read_application
from dlapp.client.command_session import signals_close
from dlapp.client.streams.exec import exec_command, exec_request
from dlapp.errors import DlappError, TimedOut, UsageError
from dlapp.net.streams import NOT_RUNNING, StreamRefused
from dlapp.value import replace
from dlapp.values.messages import Phase
from dlapp.values.spec import AppSpec, ContainerFailure, Framework, Gang, Kind, RoleSpec

if TYPE_CHECKING:
    from dlapp.client import Client
    from dlapp.client.application import Application
    from dlapp.net.exec_frames import ExecEnd, ExecRequest

Note = Callable[[str], None]

SHELL_TIMEOUT_S = 600
"""How long the program waits for a shell."""
_END_TIMEOUT_S = 20.0
"""How long the application may take to end by itself, before it is killed."""
_POLL_INTERVAL_S = 0.3
_OPEN_TIMEOUT_S = 10.0
_WAIT = f"""
seconds=0
until [ -s "$DLAPP_DIR/shell" ]; do
    [ $seconds -lt {SHELL_TIMEOUT_S} ] || {{ echo "nobody came to the shell within {SHELL_TIMEOUT_S} s" >&2; exit 1; }}
    sleep 1
    seconds=$((seconds + 1))
done
read -r shell <"$DLAPP_DIR/shell"
while kill -0 "$shell" 2>/dev/null; do sleep 1; done
"""
_SHELL = """
echo $$ >"$DLAPP_DIR/shell.new" && mv "$DLAPP_DIR/shell.new" "$DLAPP_DIR/shell" || exit 125
if command -v bash >/dev/null 2>&1; then exec bash; fi
exec sh
"""


def open_shell_on_cluster(
    client: Client,
    path: str,
    *,
    gcores: int | None = None,
    fetch_input: bool = True,
    note: Note = lambda _: None,
) -> int:
    """Submit the application, wait for its container, and connect the terminal to a shell in it. Return its exit code.

    Args:
        client: the client of the cluster.
        path: the path of the properties file.
        gcores: GPUs; None for those of a container of the first role.
        fetch_input: whether to fetch the input into the workspace.
        note: called with one line for each notice for the user.

    Raises:
        FileRefused: the file has errors; the message lists all of them.
        UsageError: there is no terminal here.
        DlappError: the application ended before there was a shell.
        SessionClosed: a signal ended this before.
    """
    request = exec_request(("sh", "-c", _SHELL), interactive=True, terminal=True)
    resolved = read_application(path, client.config, client.engine.info(), script_may_be_missing=True)
    spec = shell_spec(resolved.spec, gcores=gcores, fetch_input=fetch_input)
    role = spec.roles[0].name
    role_env = {role: resolved.role_env[role]} if resolved.role_env.get(role) else {}
    with signals_close():
        application = client.submit(spec, env=resolved.env, role_env=role_env, note=note)
        note(f"dlapp-shell: {application.id} is submitted, and ends with this shell")
        try:
            _wait_for_container(client, application, note)
            note("dlapp-shell: the workspace here is a copy, and nothing of it is kept; exit closes")
            end = _shell(client, application, request)
        except BaseException:
            _kill(application, note)
            raise
    if end.message:
        note(f"dlapp-shell: {end.message}")
    try:
        application.wait(timeout=_END_TIMEOUT_S)
    except TimedOut:
        _kill(application, note)
    return end.code


def shell_spec(spec: AppSpec, *, gcores: int | None, fetch_input: bool) -> AppSpec:
    """Return the spec of an application that waits for a shell, like a container of the first role.

    Args:
        gcores: GPUs; None for those of the role.

    Raises:
        UsageError: it has no workspace.
    """
    if not spec.workspace:
        raise UsageError("the file has no user_dev_workspace_path, and a shell opens in the workspace")
    first = spec.roles[0]
    resources = first.resources if gcores is None else replace(first.resources, gcores=gcores)
    role = RoleSpec(name=first.name, resources=resources, env=first.env, placement=first.placement)
    return replace(
        spec,
        script="",
        command=("sh", "-c", _WAIT),
        args=(),
        docker_image=spec.image_of(first),
        inputs=spec.inputs if fetch_input else (),
        outputs=(),
        checkpoint=None,
        sweep=None,
        kind=Kind.BATCH,
        links=(),
        tensorboard="",
        roles=(role,),
        gang=Gang.NONE,
        framework=Framework.NONE,
        success=(),
        on_container_failure=ContainerFailure.STOP,
        after=(),
        hold=False,
        requeue=False,
        hang_timeout_s=None,
        hang_idle=False,
        keep_failed_s=0.0,
        idle_guard=spec.idle_guard if resources.gcores else None,
    )


def _wait_for_container(client: Client, application: Application, note: Note) -> None:
    """Wait until the program runs, and report what it waits for. Raises DlappError: it has ended."""
    shown = ""
    for view in client.views(application):
        if view.state.ended:
            why = view.diagnostics or (view.cause.value if view.cause else view.state.value)
            raise DlappError(f"{application.id} ended before there was a shell: {why}")
        if any(one.phase is Phase.RUNNING for one in view.containers):
            return
        text = view.phase if view.waiting is None else view.waiting.message
        if text != shown:
            shown = text
            note(f"dlapp-shell: {application.id} is {view.state.value}{f': {text}' if text else ''}")


def _shell(client: Client, application: Application, request: ExecRequest) -> ExecEnd:
    deadline = time.monotonic() + _OPEN_TIMEOUT_S
    while True:
        try:
            return exec_command(client, application, "0", request)
        except StreamRefused as error:
            # The view may be slightly ahead of its task.
            if error.reason != NOT_RUNNING or time.monotonic() > deadline:
                raise
            time.sleep(_POLL_INTERVAL_S)


def _kill(application: Application, note: Note) -> None:
    try:
        note(f"dlapp-shell: {application.kill()}")
    except DlappError as error:
        note(
            f"dlapp-shell: {application.id} could not be killed and ends within {SHELL_TIMEOUT_S} s by itself: {error}"
        )
