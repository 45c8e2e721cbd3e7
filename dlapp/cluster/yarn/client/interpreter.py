"""The Python that runs dlapp on a node: the node's own, or one that travels there as an archive.

An archive is unpacked by the NodeManager, once on each node where everybody may read it, else once for each user, in
about 3.5 ms for each file in it. It lies in a container's working directory as ``python``.
"""

from __future__ import annotations

from dlapp.cluster.yarn.staging import StagingFiles
from dlapp.cluster.yarn.values import LocalResource
from dlapp.errors import ConfigError, Denied

DIRECTORY = "python"
SETTING = "yarn.python_archive"
_KINDS = (".tar.gz", ".tgz", ".tar", ".zip")
"""What a NodeManager unpacks, by the name's end; anything else it leaves as it is. Source: FSDownload, 3.4.2."""
_DEFAULT, _IN_ARCHIVE = "python3", "bin/python3"


def interpreter(python: str, archive: str | None) -> str:
    """The Python to call in a container's working directory.

    Args:
        python: ``yarn.python``; of an archive the path in it, by default ``bin/python3``.

    Raises:
        ConfigError: the path leads out of the archive.
    """
    if archive is None:
        return python
    path = _IN_ARCHIVE if python == _DEFAULT else python
    if path.startswith("/") or ".." in path.split("/"):
        raise ConfigError(f"yarn.python: is {python!r}; with {SETTING} it is a path in the archive, like bin/python3")
    return f"{DIRECTORY}/{path}"


def check_archive(archive: str) -> None:
    """Raise ConfigError for an archive that a NodeManager would not unpack."""
    if not archive.endswith(_KINDS):
        raise ConfigError(f"{SETTING}: is {archive!r}; a NodeManager unpacks {', '.join(_KINDS)}")


def archive_resource(files: StagingFiles, location: str, *, public: bool) -> LocalResource:
    """The archive as a file that YARN brings to a container.

    Args:
        location: with its scheme and host.
        public: everybody may read it, along its whole path.

    Raises:
        ConfigError: it is not there.
        Denied: others than its owner may write it, so it runs what they like.
    """
    found = files.look(location)
    if found is None:
        raise ConfigError(f"{SETTING}: {location} is not there")
    above = files.look(location.rpartition("/")[0])
    for place, mode in ((location, found.mode), (location.rpartition("/")[0], above.mode if above else 0)):
        # In a directory with the sticky bit nobody replaces another one's file.
        if mode & 0o022 and not mode & 0o1000:
            raise Denied(f"{SETTING}: {place} has mode {mode:o}: others may write it, and it would run as its user")
    return LocalResource(
        url=location,
        size=found.size_bytes,
        timestamp_ms=found.modified_ms,
        archive=True,
        visibility="PUBLIC" if public else "PRIVATE",
    )
