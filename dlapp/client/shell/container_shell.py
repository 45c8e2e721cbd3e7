"""Shell in a container: an application whose program waits for a shell, and a command beside it that is the shell.

The application is that of the properties file without its program: one container of the first role, with its image,
input, variables, limits and GPUs. Its program waits for the shell process, and ends with it. So when the shell, the
terminal, this process or the connection ends, the application ends by itself; if no shell comes, it ends after
`SHELL_TIMEOUT_S`. `cluster_shell` and `live_shell` differ in the workspace.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from dlapp.client.polling import poll_pause_s
from dlapp.errors import DlappError, TimedOut, UsageError
from dlapp.locations import local_path
from dlapp.net.streams import NOT_RUNNING, StreamRefused
from dlapp.system.files import read_file
from dlapp.value import Value, replace
from dlapp.values.messages import Phase
from dlapp.values.report import FinalStatus
from dlapp.values.spec import AppSpec, ContainerFailure, Framework, Gang, Kind, RoleSpec
from dlapp.values.waiting import GPUS_FRAGMENTED, GPUS_QUARANTINED, STARTING

if TYPE_CHECKING:
    from dlapp.application.description import ResolvedApplication
    from dlapp.client import Client
    from dlapp.client.application import Application
    from dlapp.net.exec_frames import ExecEnd, ExecRequest
    from dlapp.values.report import ApplicationView, ContainerView

Note = Callable[[str], None]
Show = Callable[["ApplicationView"], None]

SHELL_TIMEOUT_S = 600
"""How long the program waits for a shell."""
_END_TIMEOUT_S, _LOST_TIMEOUT_S = 20.0, 2.0
"""How long the application may take to end by itself, after the shell and after a lost shell, before it is killed."""
_POLL_INTERVAL_S = 0.05
_OPEN_TIMEOUT_S = 10.0
_QUIET_S = 1.0
"""How long the application may wait for the same before that is shown."""
_AHEAD_S = 3.0
"""How long other applications may be ahead that are just starting, and do not hold the GPUs."""
_WAIT = f"""
PATH=$PATH:/usr/bin:/bin
tenths=0
pause() {{
    if sleep 0.2 2>/dev/null; then tenths=$((tenths + 2)); else sleep 1; tenths=$((tenths + 10)); fi
}}
if [ -n "${{DLAPP_SHELL_DIR-}}" ]; then
    (read -r _ <"$DLAPP_SHELL_DIR/life"; echo gone >"$DLAPP_DIR/gone") &
    watch=$!
fi
until [ -s "$DLAPP_DIR/shell" ]; do
    [ ! -s "$DLAPP_DIR/gone" ] || {{ echo "dlapp-shell has ended" >&2; exit 1; }}
    [ $tenths -lt {SHELL_TIMEOUT_S}0 ] || {{ echo "nobody came to the shell within {SHELL_TIMEOUT_S} s" >&2; exit 1; }}
    pause
done
read -r shell <"$DLAPP_DIR/shell"
while kill -0 "$shell" 2>/dev/null; do pause; done
[ -z "${{watch-}}" ] || kill "$watch" 2>/dev/null
exit 0
"""
_SHELL = """
echo $$ >"$DLAPP_DIR/shell" || exit 125
if [ -z "${DLAPP_SHELL_DIR-}" ]; then
    if command -v bash >/dev/null 2>&1; then exec bash; fi
    exec sh
fi
PATH=$DLAPP_SHELL_DIR/bin:$PATH
export PATH
if command -v bash >/dev/null 2>&1; then exec bash --rcfile "$DLAPP_SHELL_DIR/bashrc"; fi
unset DLAPP_SHELL_VARIABLES
PS1='(dlapp) $ '
export PS1
exec sh
"""
"""With the files of dlapp-run, the start file and the prompt say that this is dlapp-shell."""
_MAX_LOG_BYTES = 16 << 20
"""Beyond what a task writes before its program runs."""
_NOTE = re.compile(r"^\S+ \S+ NOTE (.*)$", re.MULTILINE)


class ShellOptions(Value, kw_only=True):
    """Options of a dlapp-shell.

    Args:
        gcores: GPUs; None for those of a container of the first role.
        fetch_input: whether to fetch the input into the workspace.
        waits: wait for GPUs, instead of refusing where they are not free.
        note: called with one line for each notice for the user.
        show: called with each view while the shell opens.
    """

    gcores: int | None = None
    fetch_input: bool = True
    waits: bool = False
    note: Note = lambda _: None
    show: Show = lambda _: None


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
        comment=spec.comment or "dlapp-shell",
    )


def role_variables(resolved: ResolvedApplication) -> dict[str, dict[str, str]]:
    """Return the variables of the first role, by its name, as for `dlapp.client.Client.submit`; empty: it has none."""
    name = resolved.spec.roles[0].name
    return {name: resolved.role_env[name]} if resolved.role_env.get(name) else {}


class _GpusInUse(DlappError):
    """A shell that would wait for GPUs; nothing of its application is kept."""


class ContainerShell:
    """The shell of one application, from its submission to its end.

    Args:
        client: the client of its engine.
        application: the submitted application.
        options: of the command.
        is_live: it runs in the user's own directory on this machine.
    """

    def __init__(self, client: Client, application: Application, options: ShellOptions, *, is_live: bool) -> None:
        self._client, self._application, self._options, self._is_live = client, application, options, is_live
        self._note = options.note

    def run(self, greet: Callable[[ContainerView], str]) -> int:
        """Wait for the container, connect this process to a shell in it, and wait for the end of the application.
        Return the shell's exit code.

        Args:
            greet: returns a line for the user before the shell opens.

        Raises:
            DlappError: the application ended before there was a shell, or its GPUs are not free.
            SessionClosed: a signal ended this before.
        """
        # While the application starts.
        from dlapp.client.streams.exec import exec_request

        request = exec_request(("sh", "-c", _SHELL), interactive=True, terminal=os.isatty(0) and os.isatty(1))
        try:
            container = self._wait_for_container()
            if self._is_live:
                for line in _notes_of(container):
                    self._note(line)
            self._note(greet(container))
            end = self._open(request)
        except _GpusInUse:
            with contextlib.suppress(DlappError):
                self._application.kill()
                self._client.remove(self._application)
            raise
        except BaseException:
            self._kill()
            raise
        if end.message:
            self._note(f"dlapp-shell: {end.message}")
        try:
            # A program whose shell was lost may have been started again.
            ended = self._application.wait(timeout=_LOST_TIMEOUT_S if end.message else _END_TIMEOUT_S)
        except TimedOut:
            self._kill()
        else:
            if self._is_live and ended.final_status is FinalStatus.SUCCEEDED:
                with contextlib.suppress(DlappError):  # a shell that ended well is no history
                    self._client.remove(self._application)
        return end.code

    def _wait_for_container(self) -> ContainerView:
        """Wait until the program runs, and show what it waits for. Raises DlappError: it has ended, or is refused."""
        name, began, text, since, is_shown = self._application.id, time.monotonic(), "", 0.0, False
        for polls in itertools.count():
            view = self._client.status(self._application)
            self._options.show(view)
            if view.state.ended:
                why = view.diagnostics or (view.cause.value if view.cause else view.state.value)
                raise DlappError(f"{name} ended before there was a shell: {why}")
            now = time.monotonic()
            if running := next((one for one in view.containers if one.phase is Phase.RUNNING), None):
                return running
            if self._is_live:
                self._refuse(view, now - began)
            latest = view.phase if view.waiting is None else view.waiting.message
            if latest != text:
                text, since, is_shown = latest, now, False
            if not is_shown and now - since >= _QUIET_S:
                is_shown = True
                self._note(f"dlapp-shell: {name} is {view.state.value}{f': {text}' if text else ''}")
            time.sleep(poll_pause_s(polls) / (2 if self._is_live else 1))
        raise AssertionError

    def _refuse(self, view: ApplicationView, waited_s: float) -> None:
        """Refuse a shell on this machine that would wait for GPUs, or whose container has failed. Raises DlappError."""
        for one in view.containers:
            if one.earlier and one.earlier[-1].message:
                raise DlappError(one.earlier[-1].message)  # there is no other machine
        waiting = view.waiting
        if self._options.waits or not view.gcores or waiting is None or waiting.code == STARTING:
            return
        is_for_gpus = waiting.resource == "gcores" or waiting.code in (GPUS_QUARANTINED, GPUS_FRAGMENTED)
        if is_for_gpus or waited_s > _AHEAD_S:
            raise _GpusInUse(f"{waiting.message}; --wait waits for the GPUs")

    def _open(self, request: ExecRequest) -> ExecEnd:
        from dlapp.client.streams.exec import exec_command

        deadline = time.monotonic() + _OPEN_TIMEOUT_S
        while True:
            try:
                return exec_command(self._client, self._application, "0", request)
            except StreamRefused as error:
                # The view may be slightly ahead of its task.
                if error.reason != NOT_RUNNING or time.monotonic() > deadline:
                    raise
                time.sleep(_POLL_INTERVAL_S)

    def _kill(self) -> None:
        try:
            text = self._application.kill()
        except DlappError as error:
            text = f"{self._application.id} could not be killed and ends within {SHELL_TIMEOUT_S} s by itself: {error}"
        self._note(f"dlapp-shell: {text}")


def _notes_of(container: ContainerView) -> list[str]:
    """Return the lines that the task of a container on this machine has for the user."""
    path = os.path.join(local_path(container.log_url), "dlapp.log")
    try:
        data = read_file(path, owners=(os.geteuid(),), max_bytes=_MAX_LOG_BYTES)
    except OSError:
        return []
    return _NOTE.findall(data.decode(errors="replace"))
