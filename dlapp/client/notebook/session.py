"""A notebook: an application that runs JupyterLab (`dlapp.runtime.notebook_program`).

Its token is created here and is sent as a variable of the application, with its credentials. New and changed files of
its workspace are its output, which is stored and committed like any other, however it ends.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from dlapp.application.description import read_application
from dlapp.client.notebook.files import FetchedFiles, FileFacts, fetch_files, list_workspace, remove_leftovers
from dlapp.runtime.payload import NOTEBOOK_PROGRAM
from dlapp.value import replace
from dlapp.values.spec import AppSpec, OutputSpec, RoleSpec

if TYPE_CHECKING:
    from dlapp.client import Client
    from dlapp.client.application import Application
    from dlapp.cluster.engine import EngineInfo
    from dlapp.values.report import ApplicationView

ROLE = "notebook"
SAVED = ".dlapp-notebook"
"""Directory of the workspace that is the output."""
TOKEN = "JUPYTER_TOKEN"
"""The variable in which JupyterLab expects its token. Source: jupyter_server, `IdentityProvider.token`."""
MIN_GRACE_S = 60.0
"""SIGTERM ends JupyterLab with all its kernels, and then the files are gathered."""
_START = (
    'command -v python3 >/dev/null || { echo "dlapp-notebook: there is no python3 here, which JupyterLab needs" >&2; '
    f'exit 3; }}; exec python3 "${{PYTHONPATH##*:}}/{NOTEBOOK_PROGRAM}" "$@"'
)


class Notebook(NamedTuple):
    """A submitted notebook.

    Args:
        application: that runs it.
        token: the token of JupyterLab.
        workspace: absolute path of the user's own; empty if there is none.
        packed: path in it -> facts of the file at the submission.
        trusted: absolute paths that dlapp trusts on this machine: no files of the notebook are placed there.
    """

    application: Application
    token: str
    workspace: str
    packed: Mapping[str, FileFacts]
    trusted: tuple[str, ...] = ()

    def page(self, base: str) -> str:
        """Return the URL of its page, with the token, below ``base``."""
        return f"{base.rstrip('/')}/lab?token={self.token}"


class ReadyNotebook(NamedTuple):
    """Container (CONTAINER_INDEX) and port of a running JupyterLab."""

    container: int
    port: int


def start_notebook(
    client: Client,
    path: str | None,
    *,
    gcores: int | None,
    idle_s: int,
    save: str | None,
    say: Callable[[str], None],
    note: Callable[[str], None],
    progress: Callable[[int, int], None] | None = None,
) -> Notebook:
    """Submit a notebook.

    Args:
        client: with the engine to run on.
        path: the path of the properties file; None for a process in the working directory.
        gcores: GPUs; None for those of a container of the application.
        idle_s: it ends by itself after this time without a computing kernel or a connected user.
        save: where its files are stored, as ``hdfs`` of ``[to_hdfs]``; None for a place beside the workspace, or in the
            user's home on HDFS.
        say: called with the lines that ``dlapp-launcher`` prints.
        note: called with one line for each notice for the user.
        progress: called with the packed bytes of the workspace and the total.

    Raises:
        see `Client.submit` for errors.
    """
    from dlapp.client.shell.trusted_paths import trusted_paths

    info = client.engine.info()
    if path is None:
        from dlapp.application.keywords import spec_of

        fields = {"workspace": os.getcwd(), "command": ["true"], "appname": os.path.basename(os.getcwd()) or ROLE}
        spec = spec_of(fields, client.config, has_gpus=info.has_gpus, args=(), env={})
        env: dict[str, str] = {}
        own: list[str] = []
    else:
        application = read_application(path, client.config, info, script_may_be_missing=True)
        spec, role = application.spec, application.spec.roles[0]
        env = {**application.env, **application.role_env.get(role.name, {})}
        own = [one for one in (application.snapshot.path, application.env_file) if one]
        if len(spec.roles) > 1:
            note(f"the notebook is as a container of the first role, {role.name}")
    target = save or default_target(spec, info, time.strftime("%Y%m%d-%H%M%S"))
    token = secrets.token_hex(24)
    packed: dict[str, FileFacts] = {}
    if spec.workspace:
        remove_leftovers(spec.workspace)
        packed = list_workspace(spec.workspace)
    submitted = client.submit(
        notebook_spec(spec, gcores=gcores, idle_s=idle_s, target=target, env=[*env, TOKEN]),
        env={**env, TOKEN: token},
        say=say,
        note=note,
        progress=progress,
    )
    trusted = (*own, *(one for paths in trusted_paths(client).values() for one in paths))
    return Notebook(submitted, token, spec.workspace, packed, trusted)


def default_target(spec: AppSpec, info: EngineInfo, now: str) -> str:
    """Return where the files of a notebook are stored.

    Args:
        now: part of the name, so that no notebook replaces the files of another.
    """
    if info.paths_on_hdfs:
        return f"notebooks/{os.path.basename(spec.workspace) or ROLE}/{now}"
    return f"file://{spec.workspace or os.path.join(os.getcwd(), ROLE)}.notebooks/{now}"


def notebook_spec(spec: AppSpec, *, gcores: int | None, idle_s: int, target: str, env: list[str]) -> AppSpec:
    """Return the spec of a notebook that runs like a container of another application.

    Args:
        spec: the spec of the other application. Its first role is used; outputs, checkpoints, trials and other
            conditions for its start or end are dropped.
        gcores: GPUs; None for those of the role.
        idle_s: idle time after which JupyterLab ends [s].
        target: where its files are stored.
        env: names of its variables.
    """
    first = spec.roles[0]
    amounts = first.resources if gcores is None else replace(first.resources, gcores=gcores)
    grace_s = max(spec.kill_grace_s, MIN_GRACE_S)
    options = ["--idle", str(idle_s), "--grace", f"{grace_s:g}", "--save", SAVED]
    for one in spec.inputs:
        options += ["--without", one.input_path]
    if spec.image_of(first) is not None and spec.network not in (None, "host", "none"):
        options += ["--ip", "0.0.0.0"]  # only tasks of root may enter the container's network (task/streams/port.py)
    role = RoleSpec(
        name=ROLE,
        resources=amounts,
        command=("sh", "-c", _START, "dlapp-notebook", *options),
        docker_image=first.docker_image,
        placement=first.placement,
    )
    return AppSpec(
        username=spec.username,
        appname=spec.appname,
        workspace=spec.workspace,
        docker_image=spec.docker_image,
        network=spec.network,
        exclude=spec.exclude,
        exclude_defaults=spec.exclude_defaults,
        queue=spec.queue,
        priority=spec.priority,
        project=spec.project,
        tags=(*(tag for tag in spec.tags if tag != ROLE), ROLE),
        max_runtime_s=spec.max_runtime_s,
        kill_grace_s=grace_s,
        output_patience_s=spec.output_patience_s,
        service_patience_s=spec.service_patience_s,
        env=tuple(env),
        placement=spec.placement,
        inputs=spec.inputs,
        outputs=(OutputSpec(output_path=SAVED, target=target),),
        caches=spec.caches,
        roles=(role,),
    )


def wait_until_ready(
    client: Client, notebook: Notebook, on_change: Callable[[ApplicationView], None]
) -> ReadyNotebook | None:
    """Wait until JupyterLab answers; return None if the application ended before.

    Args:
        on_change: called with the first view and each changed one.
    """
    for view in client.views(notebook.application):
        on_change(view)
        for one in view.containers:
            if one.ready and one.finished_ms is None and (port := ready_port(one.metrics)):
                return ReadyNotebook(one.index, port)
    return None


def ready_port(metrics: Mapping[str, float]) -> int | None:
    """Return the port that a notebook has reported; None if it is not one."""
    port = metrics.get("port", 0.0)
    return int(port) if 0 < port < 65_536 and port == int(port) else None


def saved_location(view: ApplicationView) -> str | None:
    """Return where the files of an ended notebook are stored; None if nowhere."""
    for one in view.outputs:
        if one.committed or one.partial:
            return one.target if one.committed else one.partial
    return None


def fetch_notebook_files(client: Client, notebook: Notebook, place: str) -> FetchedFiles:
    """Fetch the files of an ended notebook into the user's own workspace.

    Raises:
        see `fetch_files` for errors.
    """
    application_id = notebook.application.application_id
    hdfs = client.hdfs_of(application_id, client.submission(application_id).spec.username)
    return fetch_files(place, notebook.workspace, notebook.packed, hdfs, notebook.trusted)
