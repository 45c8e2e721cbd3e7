"""Saved start of a dlapp-shell, for dlapp-run: the properties file, its env_file and the configuration.

Programs in the shell may be able to change the files themselves. Submissions from the shell use the files as they were
when the user opened the shell, with the current workspace.
"""

from __future__ import annotations

import base64
import json
import os
from typing import TYPE_CHECKING

from dlapp.application.description import Snapshot
from dlapp.application.properties import MAX_BYTES
from dlapp.config import Config, config_of_texts
from dlapp.system import files

if TYPE_CHECKING:
    from collections.abc import Mapping

NAME = "start.json"
_MAX_BYTES = 16 * MAX_BYTES
"""The properties file in base64, and as much of env_file with every character escaped."""


def write_start(session: str, snapshot: Snapshot, config: Config) -> str:
    """Write it to a session's directory, readable by its owner only; return its path."""
    path = os.path.join(session, NAME)
    value = {
        "path": snapshot.path,
        "data": base64.b64encode(snapshot.data).decode(),
        "env": dict(snapshot.env),
        "config": dict(config.texts),
    }
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w", encoding="ascii") as file:
        json.dump(value, file)
    return path


def read_start(path: str, *, cluster: str | None = None) -> tuple[Snapshot, Config]:
    """Read it again.

    Args:
        cluster: the engine to submit to, instead of the configured one.

    Raises:
        UntrustedFile: it is not a file of the caller.
        ConfigError: there is no such engine.
    """
    value = files.read_json_object(path, owners=(os.geteuid(),), max_bytes=_MAX_BYTES)
    texts: Mapping[str, str] = value["config"] | ({"cluster": cluster} if cluster is not None else {})
    return Snapshot(value["path"], base64.b64decode(value["data"]), value["env"]), config_of_texts(texts)
