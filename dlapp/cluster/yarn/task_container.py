"""Start of a task in a container of YARN, with the launch specification in the container's credentials.

On each engine a task has one directory. On YARN this is a new directory in the container's working directory. Its log
files are symbolic links into the container's log directory, so the node's pages and ``yarn logs`` show them under their
names. The NodeManager kills only the processes of its own session; the others have lifelines, and end with the task.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

from dlapp.cluster import LOG_NAMES
from dlapp.hadoop.errors import HadoopError
from dlapp.hadoop.tokens import read_container_credentials
from dlapp.value import replace
from dlapp.values.launch_spec import FILE_NAME, LaunchSpec, LedgerSettings
from dlapp.values.serialization import from_json, parse_json, to_json

TASK_SECRET = "dlapp.task"
"""Alias of the secret in a task's credentials that has its launch specification."""
_INHERITED = ("PATH", "USER", "LOGNAME")


INPUT_CACHE, PAYLOAD_CACHES, UNSTORED = "dlapp-cache", "dlapp-payload-caches", "dlapp-unstored"
"""Names of directories below `user_directory`: the input cache and the caches of payloads, if the operator configured
none, and output that could not be stored."""


def user_directory(environ: Mapping[str, str], working_directory: str) -> str:
    """Return the user's directory on this node, on the disk of this container.

    Its files must outlive containers and applications, and only the user may access them. Both hold for the directory
    of a user in the NodeManager's local directories (``<local-dir>/usercache/<user>``). A NodeManager that starts
    without recovery clears it, like all its local directories. Among several disks, it is the one of this container.

    Source: ContainerLocalizer.USERCACHE, ResourceLocalizationService.cleanUpLocalDirs; LOCAL_DIRS of ContainerLaunch
    has ``<local-dir>/usercache/<user>/appcache/<application id>`` for each disk.

    Args:
        working_directory: the container's working directory.
    """
    application = os.path.dirname(working_directory)
    for path in environ.get("LOCAL_DIRS", "").split(","):
        if path and os.path.realpath(path) == os.path.realpath(application):
            application = path
    return os.path.dirname(os.path.dirname(application))


def ledger_of_node(settings: LedgerSettings, environ: Mapping[str, str]) -> LedgerSettings:
    """Return the settings of a GPU ledger on this node: those of `NODE_MANAGER` get the address of its NodeManager."""
    if not settings.web:
        return settings
    return replace(settings, web=f"{settings.web}{environ['NM_HOST']}:{environ['NM_HTTP_PORT']}")


def make_task_directory(environ: Mapping[str, str] = os.environ) -> str:
    """Create the task's directory from the credentials and environment of its container; return the path.

    Raises:
        HadoopError: this process was not started by an ApplicationMaster of dlapp.
    """
    secrets = read_container_credentials(environ).secrets
    if TASK_SECRET not in secrets:
        raise HadoopError("the container's credentials have nothing for a task in them")
    spec = from_json(LaunchSpec, parse_json(secrets[TASK_SECRET]))
    inherited = {name: environ[name] for name in _INHERITED if name in environ}
    spec = replace(spec, environment=inherited | spec.environment)
    directory = user_directory(environ, os.getcwd())
    spec = replace(spec, unstored=os.path.join(directory, UNSTORED))
    if spec.cache is not None:
        caches = {
            "directory": os.path.join(directory, INPUT_CACHE),
            "payload_directory": os.path.join(directory, PAYLOAD_CACHES),
        }
        spec = replace(spec, cache=replace(spec.cache, **caches))
    if spec.ledger is not None:
        spec = replace(spec, ledger=ledger_of_node(spec.ledger, environ))
    task_directory = os.path.join(os.getcwd(), "task")
    os.mkdir(task_directory, 0o700)
    logs = environ["LOG_DIRS"].split(",")[0]
    for name in LOG_NAMES:
        os.symlink(os.path.join(logs, name), os.path.join(task_directory, name))
    descriptor = os.open(os.path.join(task_directory, FILE_NAME), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        json.dump(to_json(spec), file)
    # Internal errors go to dlapp.log, and not to the payload's output.
    own = os.open(os.path.join(logs, "dlapp.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    for number in (1, 2):
        os.dup2(own, number)
    os.close(own)
    return task_directory
