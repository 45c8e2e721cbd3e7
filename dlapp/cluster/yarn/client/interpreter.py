"""The Python that runs dlapp on a node: the node's own, or one in an archive that YARN localizes.

The NodeManager unpacks an archive that everybody may read once per node, and others once per node and user. This takes
about 3.5 ms for each file in it. In a container's working directory it is the directory ``python``.
"""

from __future__ import annotations

from dlapp.cluster.yarn.staging import StagingFiles
from dlapp.cluster.yarn.values import LocalResource
from dlapp.errors import ConfigError, Denied

DIRECTORY = "python"
SETTING = "yarn.python_archive"
_KINDS = (".tar.gz", ".tgz", ".tar", ".zip")
"""Suffixes of the archives that a NodeManager unpacks. Source: FSDownload, 3.4.2."""
_DEFAULT, _IN_ARCHIVE = "python3", "bin/python3"


def interpreter(python: str, archive: str | None) -> str:
    """Return the path of Python relative to a container's working directory, or its name.

    Args:
        python: ``yarn.python``; with an archive the path in it, by default ``bin/python3``.
        archive: ``yarn.python_archive``; None: the node's own Python.

    Raises:
        ConfigError: the path points out of the archive.
    """
    if archive is None:
        return python
    path = _IN_ARCHIVE if python == _DEFAULT else python
    if path.startswith("/") or ".." in path.split("/"):
        raise ConfigError(f"yarn.python: is {python!r}; with {SETTING} it is a path in the archive, like bin/python3")
    return f"{DIRECTORY}/{path}"


def check_archive(archive: str) -> None:
    """Refuse an archive that a NodeManager would not unpack. Raises ConfigError."""
    if not archive.endswith(_KINDS):
        raise ConfigError(f"{SETTING}: is {archive!r}; a NodeManager unpacks {', '.join(_KINDS)}")


def archive_resource(files: StagingFiles, location: str, *, public: bool) -> LocalResource:
    """Return the archive as a file that YARN localizes for a container.

    Args:
        location: its location, with scheme and host.
        public: everybody may read it, and all directories of its path.

    Raises:
        ConfigError: the archive does not exist.
        Denied: other users than its owner may write it, and could execute any program by it.
    """
    found = files.status(location)
    if found is None:
        raise ConfigError(f"{SETTING}: {location} is not there")
    above = files.status(location.rpartition("/")[0])
    for place, mode in ((location, found.mode), (location.rpartition("/")[0], above.mode if above else 0)):
        # In a directory with the sticky bit only the owner can replace a file.
        if mode & 0o022 and not mode & 0o1000:
            raise Denied(f"{SETTING}: {place} has mode {mode:o}: others may write it, and it would run as its user")
    return LocalResource(
        url=location,
        size=found.size_bytes,
        timestamp_ms=found.modified_ms,
        archive=True,
        visibility="PUBLIC" if public else "PRIVATE",
    )
