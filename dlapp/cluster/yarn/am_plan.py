"""Plan of an application: the client's input for an ApplicationMaster on YARN, and the latter's for its tasks; both are
passed only in credentials.

A container's environment and command are visible to anyone on its node's web pages, its credentials only to its user. A
localized file would cost a write to the file system, 25 to 425 ms, at every submission.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from dlapp.cluster.yarn.bundle import NAME as PROGRAM
from dlapp.cluster.yarn.staging import ADDRESSES, StagingPaths
from dlapp.cluster.yarn.values import MODIFY_APP, VIEW_APP, Cluster, LocalResource, Program
from dlapp.hadoop.errors import HadoopError
from dlapp.hadoop.tokens import Credentials
from dlapp.locations import HdfsPlace
from dlapp.value import Value, field
from dlapp.values.launch_spec import CacheSettings, DockerSettings, LaunchSpec, LedgerSettings
from dlapp.values.serialization import from_json, parse_json, to_json
from dlapp.values.spec import AppSpec, Secrets, Submission

if TYPE_CHECKING:
    from dlapp.cluster.engine import Grant, TaskLaunch

ALIAS = "dlapp.application"
"""Alias of the secret with the plan in an ApplicationMaster's credentials."""
WORKSPACE = "dl_app.tar.gz"
"""Name of the packed workspace in a task's working directory."""

_BEGIN = (
    'command -v "$1" >/dev/null 2>&1 || { '
    'echo "dlapp: there is no $1 on $(uname -n): install Python 3.11 or later there, or set yarn.python or '
    'yarn.python_archive" >&2; exit 127; '
    '}; exec "$@"'
)


class AmPlan(Value, kw_only=True):
    """All that an ApplicationMaster needs besides its own container.

    Args:
        home: location of the user's home; its staging directory is under it
            (`dlapp.cluster.yarn.staging.StagingPaths`).
        hdfs: the cluster's default file system.
        docker: settings of payloads in Docker.
        resources: name in a task's working directory -> file.
        ledger: location of the GPU ledger; None: no ledger.
        cache: input cache of a node; None: no cache.
    """

    submission: Submission
    secrets: Secrets
    cluster: Cluster
    home: str
    python: str
    hdfs: HdfsPlace
    docker: DockerSettings
    resources: dict[str, LocalResource] = field(default_factory=dict)
    ledger: LedgerSettings | None = None
    cache: CacheSettings | None = None

    def to_credentials(self) -> Credentials:
        """Return the credentials that carry the plan."""
        return Credentials({}, {ALIAS: json.dumps(to_json(self), separators=(",", ":")).encode()})

    @classmethod
    def from_credentials(cls, credentials: Credentials) -> AmPlan:
        """Read the plan in a container's credentials.

        Raises:
            HadoopError: they contain none.
        """
        if ALIAS not in credentials.secrets:
            raise HadoopError("the container's credentials have no plan: this was not submitted by dlapp-launcher")
        try:
            return from_json(cls, parse_json(credentials.secrets[ALIAS]))
        except ValueError as error:
            raise HadoopError(f"the plan in the container's credentials cannot be read: {error}") from error

    def program(self) -> Program:
        """Return the program of each task's container."""

        def launch(grant: Grant, launch: TaskLaunch) -> tuple[tuple[str, ...], bytes]:
            spec = LaunchSpec(
                launch.container_id,
                launch.control_url,
                launch.token,
                launch.env,
                launch.environment,
                self.docker,
                ledger=self.ledger,
                cache=self.cache,
                hdfs=self.hdfs,
                am_file=f"{StagingPaths(self.home).staging(grant.container_id.application)}/{ADDRESSES}",
                resource_managers=self.cluster.web,
                containers=self.submission.spec.containers,
                registry_credentials=launch.registry_credentials,
            )
            return python_command(self.python, "task", "--engine", "yarn"), json.dumps(to_json(spec)).encode()

        return Program(launch=launch, resources=self.resources, acls=acls_of(self.submission.spec))


def acls_of(spec: AppSpec) -> dict[str, str]:
    """Return who besides the owner may see and end an application in YARN, by YARN's names of these rights.

    Users who may end it may also see it: YARN reports only to these where its ApplicationMaster is, which a soft-kill
    needs.

    Source: ApplicationAccessType. A NodeManager uses those of the application's first container on it.
    """
    see = spec.view_acl.with_all_of(spec.modify_acl)
    return {name: str(one) for name, one in ((VIEW_APP, see), (MODIFY_APP, spec.modify_acl)) if one}


def python_command(python: str, *words: str) -> tuple[str, ...]:
    """Return the command that runs dlapp on a node; without Python there, it prints that in one line.

    The archive has all that dlapp needs, so the node's site-packages are added late, only for the libraries of
    `storage.node_schemes` that are not in it: `dlapp.system.processes.late_site`.
    """
    return ("/bin/sh", "-c", _BEGIN, "dlapp", python, "-I", "-S", PROGRAM, *words)


def environment_of(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the submitter's variables that are valid on another machine: language and time zone."""
    return {name: text for name, text in environment.items() if name in ("LANG", "TZ") or name.startswith("LC_")}
