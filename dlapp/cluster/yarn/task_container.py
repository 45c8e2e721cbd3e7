"""Start of a task in a container of YARN: what it is told comes from the container's credentials.

A task knows one directory, its home, on every engine. Here that is a new one in the container's working directory,
where its logs are links into the container's log directory: so the node's pages and ``yarn logs`` show them under
their names. The NodeManager ends the processes of its own session alone; ours have lifelines, and end with the task.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

from dlapp.cluster import LOG_NAMES
from dlapp.hadoop.errors import HadoopError
from dlapp.hadoop.tokens import read_container_credentials
from dlapp.value import replace
from dlapp.values.launch_spec import FILE_NAME, LaunchSpec
from dlapp.values.serialization import from_json, parse_json, to_json

TASK_SECRET = "dlapp.task"
"""Alias of the secret in a task's credentials that holds what it is told."""
_TAKEN_OVER = ("PATH", "USER", "LOGNAME")


INPUT_CACHE, PAYLOAD_CACHES, UNSTORED = "dlapp-cache", "dlapp-payload-caches", "dlapp-unstored"
"""For input that is used again and for what payloads keep, where the operator named no directory; for output that could
not be stored."""


def user_directory(environ: Mapping[str, str], here: str) -> str:
    """The directory that is the user's on this node, and on the disk of this container.

    What is in it has to outlive containers and applications, and be the user's alone: the directory that the
    NodeManager keeps for a user (``<local-dir>/usercache/<user>``) is both, and it is cleared with all else of YARN's
    when a NodeManager without recovery starts. Of several disks it is the one that this container lies on.

    Source: ContainerLocalizer.USERCACHE, ResourceLocalizationService.cleanUpLocalDirs; LOCAL_DIRS of ContainerLaunch
    has ``<local-dir>/usercache/<user>/appcache/<application id>`` for each disk.

    Args:
        here: the container's working directory.
    """
    application = os.path.dirname(here)
    for path in environ.get("LOCAL_DIRS", "").split(","):
        if path and os.path.realpath(path) == os.path.realpath(application):
            application = path
    return os.path.dirname(os.path.dirname(application))


def make_home(environ: Mapping[str, str] = os.environ) -> str:
    """Make the task's home directory of what the NodeManager gave to this process; its path.

    Raises:
        HadoopError: this process was not started by an ApplicationMaster of ours.
    """
    secrets = read_container_credentials(environ).secrets
    if TASK_SECRET not in secrets:
        raise HadoopError("the container's credentials have nothing for a task in them")
    spec = from_json(LaunchSpec, parse_json(secrets[TASK_SECRET]))
    taken_over = {name: environ[name] for name in _TAKEN_OVER if name in environ}
    spec = replace(spec, environment=taken_over | spec.environment)
    directory = user_directory(environ, os.getcwd())
    spec = replace(spec, unstored=os.path.join(directory, UNSTORED))
    if spec.cache is not None:
        caches = {
            "directory": os.path.join(directory, INPUT_CACHE),
            "payload_directory": os.path.join(directory, PAYLOAD_CACHES),
        }
        spec = replace(spec, cache=replace(spec.cache, **caches))
    if spec.ledger is not None:
        # Of a ledger that the NodeManager keeps.
        web = f"{spec.ledger.web}{environ['NM_HOST']}:{environ['NM_HTTP_PORT']}"
        spec = replace(spec, ledger=replace(spec.ledger, web=web))
    home = os.path.join(os.getcwd(), "task")
    os.mkdir(home, 0o700)
    logs = environ["LOG_DIRS"].split(",")[0]
    for name in LOG_NAMES:
        os.symlink(os.path.join(logs, name), os.path.join(home, name))
    descriptor = os.open(os.path.join(home, FILE_NAME), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        json.dump(to_json(spec), file)
    # What a fault of ours prints is not the payload's.
    own = os.open(os.path.join(logs, "dlapp.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    for number in (1, 2):
        os.dup2(own, number)
    os.close(own)
    return home
