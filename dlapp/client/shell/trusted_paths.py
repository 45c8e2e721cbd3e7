"""Paths that dlapp trusts or runs on this machine, and that no container may change."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from dlapp.errors import UsageError

if TYPE_CHECKING:
    from dlapp.client import Client


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
            if is_inside(path, directory):
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


def is_inside(path: str, directory: str) -> bool:
    """Return whether a path, as given or with links resolved, is a directory or below it."""
    real = os.path.realpath(directory)
    # Both the given and the resolved path: a user who can write to the directory of either may replace it.
    return any(os.path.commonpath([real, one]) == real for one in (os.path.abspath(path), os.path.realpath(path)))
