"""Opening the file system of a location."""

from __future__ import annotations

from collections.abc import Sequence

from dlapp.errors import NotFound, UsageError
from dlapp.locations import HdfsPlace, is_on_hdfs, local_path, remote_scheme, shown
from dlapp.storage.api import FileSystem, OutputFileSystem
from dlapp.storage.fetch_plan import FetchPlan, plan_entries
from dlapp.storage.values import MatchedEntry, TreeNode


def open_location(location: str, hdfs: HdfsPlace | None = None) -> FileSystem:
    """Return the file system of ``location``.

    Raises:
        UsageError: the scheme is missing or unsupported.
    """
    if scheme := remote_scheme(location):
        from dlapp.storage.remote import RemoteFiles

        return RemoteFiles(scheme)
    return open_output(location, hdfs)


def open_output(location: str, hdfs: HdfsPlace | None = None) -> OutputFileSystem:
    """Return the file system of ``location``, for output.

    Raises:
        UsageError: output cannot be stored there.
    """
    if scheme := remote_scheme(location):
        raise UsageError(
            f"{shown(location)}: output goes to hdfs:// and file:// only, as {scheme.lower()}:// cannot replace a "
            "directory in one step"
        )
    if hdfs is not None and is_on_hdfs(location):
        place = hdfs.of(location)
        place.path(location)
        from dlapp.storage.hdfs.file_system import HdfsFiles

        return HdfsFiles(place)
    local_path(location)
    from dlapp.storage.local import LocalFiles

    return LocalFiles()


def plan_fetch(
    sources: Sequence[str],
    into: str,
    *,
    hdfs: HdfsPlace | None = None,
    may_be_there: bool = False,
    may_be_missing: bool = False,
) -> FetchPlan:
    """Plan the fetch of all matches of ``sources``; nothing is written.

    Args:
        sources: locations, which may be patterns.
        into: the destination directory.
        hdfs: the configured HDFS, if any.
        may_be_there: do not check for existing files at the targets; the caller does.
        may_be_missing: skip a source without matches.

    Raises:
        NotFound: a source has no matches.
        Denied: a file may not be read.
        DlappError: a file exists at a target, or two targets are the same.
    """
    into = into.rstrip("/") or "/"
    found = _matched(sources, {}, hdfs, may_be_missing=may_be_missing)
    return plan_entries(found, into, may_be_there=may_be_there)


class SourceFiles:
    """All files of sources, without destinations; opened file systems are reused.

    Args:
        sources, hdfs, may_be_missing: see `plan_fetch`.
    """

    def __init__(self, sources: Sequence[str], hdfs: HdfsPlace | None = None, *, may_be_missing: bool = False) -> None:
        self._sources, self._hdfs, self._may_be_missing = sources, hdfs, may_be_missing
        self._systems: dict[str, FileSystem] = {}

    def find(self) -> list[tuple[FileSystem, TreeNode]]:
        """Return the files that exist now, by location. Raises the errors of `plan_fetch`."""
        found = _matched(self._sources, self._systems, self._hdfs, may_be_missing=self._may_be_missing)
        files = {node.source: (system, node) for system, entry in found for node in system.tree(entry) if node.is_file}
        return [files[source] for source in sorted(files)]


def _matched(
    sources: Sequence[str], systems: dict[str, FileSystem], hdfs: HdfsPlace | None, *, may_be_missing: bool
) -> list[tuple[FileSystem, MatchedEntry]]:
    """Return the matches of sources without duplicates, as `plan_fetch`; extend ``systems``, the opened ones."""
    found: dict[str, tuple[FileSystem, MatchedEntry]] = {}
    for source in sources:
        which = hdfs.of(source).location if hdfs and is_on_hdfs(source) else source.partition("://")[0]
        system = systems.get(which) or open_location(source, hdfs)
        systems[which] = system
        entries = system.matches(source)
        if not entries and not may_be_missing:
            raise NotFound(f"{shown(source)}: nothing is there")
        for entry in entries:
            found.setdefault(entry.location, (system, entry))
    return list(found.values())
