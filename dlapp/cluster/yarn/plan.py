"""What a client tells an ApplicationMaster on YARN, and that one its tasks; both travel in credentials alone.

A container's environment and command can be read by anyone on its node's web pages, its credentials by its user.
A local file for them would cost a write to the file system, 25 to 425 ms, at every submission.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dlapp.cluster.yarn.errors import YarnError
from dlapp.cluster.yarn.staging import AM, Places
from dlapp.cluster.yarn.tokens import Credentials
from dlapp.cluster.yarn.travel import NAME as PROGRAM
from dlapp.cluster.yarn.values import Cluster, LocalResource, Program
from dlapp.jsonform import from_json, to_json
from dlapp.spec import Secrets, Submission

if TYPE_CHECKING:
    from dlapp.cluster.engine import Grant, TaskLaunch

ALIAS = "dlapp.application"
"""Of the secret in an ApplicationMaster's credentials that holds its plan."""
WORKSPACE = "dl_app.tar.gz"
"""Name of the packed workspace in a task's working directory."""

_BEGIN = (
    'command -v "$1" >/dev/null 2>&1 || { '
    'echo "dlapp: there is no $1 on $(uname -n): install Python 3.11 or later there, or set yarn.python or '
    'yarn.python_archive" >&2; exit 127; '
    '}; exec "$@"'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All that an ApplicationMaster needs to know besides its own container.

    Args:
        home: location of the user's home; its staging directory is under it (`dlapp.cluster.yarn.staging.Places`).
        storage: how the file system is reached, as storage wrote it down.
        resources: name in a task's working directory -> file.
        ledger: where the ledger of GPUs is (`dlapp.gpuid.stores.open_ledger`); None: there is none.
        runtime: how payloads run (`runtime.docker.*`).
        cache: limits of the cache of input on a node (`dlapp.task.inputs`).
    """

    submission: Submission
    secrets: Secrets
    cluster: Cluster
    home: str
    python: str
    storage: dict[str, Any] = field(default_factory=dict)
    resources: dict[str, LocalResource] = field(default_factory=dict)
    ledger: dict[str, Any] | None = None
    runtime: dict[str, Any] = field(default_factory=dict)
    cache: dict[str, Any] | None = None

    def to_credentials(self) -> Credentials:
        """The credentials that carry it."""
        return Credentials({}, {ALIAS: json.dumps(to_json(self), separators=(",", ":")).encode()})

    @classmethod
    def from_credentials(cls, credentials: Credentials) -> Plan:
        """What a container's credentials carry.

        Raises:
            YarnError: they carry none.
        """
        if ALIAS not in credentials.secrets:
            raise YarnError("the container's credentials have no plan: it was not dlapp-launcher that submitted this")
        return from_json(cls, json.loads(credentials.secrets[ALIAS]))

    def program(self) -> Program:
        """What runs in each task's container."""

        def launch(grant: Grant, launch: TaskLaunch) -> tuple[tuple[str, ...], bytes]:
            told = {
                **to_json(launch),
                "storage": self.storage,
                "am_place": f"{Places(self.home).staging(grant.container_id.application)}/{AM}",
                "ledger": self.ledger,
                "runtime": self.runtime,
                "cache": self.cache,
            }
            return python_command(self.python, "task", "--engine", "yarn"), json.dumps(told).encode()

        return Program(launch=launch, resources=self.resources)


def python_command(python: str, *words: str) -> tuple[str, ...]:
    """The command that runs dlapp on a node; without a Python there it says so in one line."""
    return ("/bin/sh", "-c", _BEGIN, "dlapp", python, "-I", PROGRAM, *words)


def environment_of(environment: Mapping[str, str]) -> dict[str, str]:
    """What of the submitter's environment means something on another machine: language and time zone."""
    return {name: text for name, text in environment.items() if name in ("LANG", "TZ") or name.startswith("LC_")}
