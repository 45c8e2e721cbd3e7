"""Small files on HDFS: the state that an application's client and ApplicationMaster keep there.

They are on the default file system; a location on another nameservice of the configuration is read there. Every file is
written under a temporary name and then renamed, so a reader sees it complete or not at all.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

from dlapp.errors import NotFound, Unreachable
from dlapp.locations import FileInfo, HdfsPlace, shown
from dlapp.net.http import RequestBody
from dlapp.storage.hdfs.file_system import HdfsFiles, open_hdfs
from dlapp.storage.hdfs.webhdfs import PATIENCE_S, WebHdfs
from dlapp.storage.tree import explaining
from dlapp.system.clock import now_ms
from dlapp.system.files import closing_fd
from dlapp.values.ids import ApplicationId
from dlapp.values.report import CommitClaim, OutputView
from dlapp.values.spec import OutputSpec

REPLICATION_WHERE_UNKNOWN = 10
"""Maximum number of replicas of an archive if the number of DataNodes is unknown: the default of MapReduce
(``mapreduce.client.submit.file.replication``)."""


class HdfsStagingFiles:
    """One user's view of the HDFS of a cluster: the `dlapp.cluster.yarn.staging.StagingFiles` there. Thread-safe.

    Args:
        place: address and user.
        patience_s: how long a call is retried while no NameNode serves it.
        first_contact_timeout_s: the same before any NameNode has answered (`WebHdfs`); None for ``patience_s``.
    """

    def __init__(
        self, place: HdfsPlace, patience_s: float = PATIENCE_S, first_contact_timeout_s: float | None = None
    ) -> None:
        self._place = place
        self._patience_s, self._first_contact_timeout_s = patience_s, first_contact_timeout_s
        self._files: dict[str, HdfsFiles] = {}

    def close(self) -> None:
        for files in self._files.copy().values():
            files.web.close()

    def _at(self, location: str) -> HdfsFiles:
        """Return the HDFS that a location is on."""
        place = self._place.of(location)
        if (files := self._files.get(place.location)) is None:
            web = open_hdfs(place, patience_s=self._patience_s, first_contact_timeout_s=self._first_contact_timeout_s)
            files = self._files.setdefault(place.location, HdfsFiles(place, web))
        return files

    def _path_at(self, location: str) -> tuple[WebHdfs, str]:
        files = self._at(location)
        return files.web, files.place.path(location)

    @property
    def home(self) -> str:
        return self._place.home

    def home_by_server(self) -> str:
        """Return the path of the user's home directory by the NameNode; under viewfs, by the mount table.

        Only WebHDFS has a call for it. If it does not answer, the path is that of the configuration here.
        """
        place = self._at(self.home).place
        if not self._place.view:
            with contextlib.closing(WebHdfs(place, patience_s=0.0)) as web, contextlib.suppress(Unreachable):
                return web.home()
        return place.path(self.home)

    def check_one_destination(self, location: str) -> None:
        self._at(location).check_one_destination(location)

    def status(self, location: str) -> FileInfo | None:
        web, path = self._path_at(location)
        if (status := web.status(path)) is None:
            return None
        is_file = not status.is_dir and status.link is None
        return FileInfo(
            status.size_bytes,
            status.mtime_ms,
            status.owner,
            status.mode,
            is_file,
            status.encrypted,
            status.inode_id,
        )

    def lacks(self, location: str) -> bool | None:
        """Return whether the name does not exist, with the certainty of `WebHdfs.lacks`; None if unknown."""
        web, path = self._path_at(location)
        return web.lacks(path)

    def names(self, location: str) -> list[str]:
        try:
            return self._at(location).names(location)
        except NotFound:
            return []

    def entries(self, location: str) -> list[tuple[str, int, int]]:
        try:
            web, path = self._path_at(location)
            found = web.children(path)
        except NotFound:
            return []
        return [(one.name, one.size_bytes, one.mtime_ms) for one in found]

    def make(self, location: str, mode: int) -> None:
        self._at(location).make_directory(location, mode)

    def send(self, path: str, location: str, mode: int) -> FileInfo:
        with explaining(path, "read"):
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        with closing_fd(file):
            self._at(location).create_exclusive(location, RequestBody(file, os.fstat(file).st_size), mode)
        found = self.status(location)
        if found is None:
            raise NotFound(f"{shown(location)} was removed just after it was written")
        return found

    def write(self, location: str, data: bytes, mode: int, *, once: bool = False) -> bool:
        """Write a small file atomically; see `StagingFiles.write`.

        Args:
            location, data, mode, once: see there.
        """
        if once:
            return self._at(location).create_exclusive(location, data, mode)
        self._at(location).write_atomic(location, data, mode)
        return True

    def read(self, location: str, *, max_bytes: int) -> bytes:
        return self._at(location).read_bytes(location, max_bytes)

    def read_part(self, location: str, offset: int, count: int) -> bytes:
        web, path = self._path_at(location)
        return web.read_part(path, offset, count)

    def touch(self, location: str) -> None:
        """Set the modification time of a file to now, by our clock. Raises NotFound."""
        web, path = self._path_at(location)
        web.set_mtime(path, now_ms())

    def set_acl(self, location: str, entries: Sequence[str]) -> None:
        web, path = self._path_at(location)
        web.set_acl(path, entries)

    def replicate(self, location: str, count: int) -> None:
        web, path = self._path_at(location)
        status = web.status(path)
        if status is None or not status.replication:
            return
        live = web.live_datanodes()
        wanted = min(count, REPLICATION_WHERE_UNKNOWN if live is None else live)
        if wanted > status.replication:
            web.set_replication(path, wanted)

    def remove(self, location: str) -> None:
        self._at(location).remove(location)

    def remove_if_empty(self, location: str) -> None:
        web, path = self._path_at(location)
        web.delete_if_empty(path)

    def settle_outputs(
        self, application_id: ApplicationId, outputs: tuple[OutputSpec, ...], claim: CommitClaim | None
    ) -> tuple[OutputView, ...]:
        """Settle the outputs of an application without an ApplicationMaster; see `StagingFiles.settle_outputs`.

        Args:
            application_id, outputs, claim: see there.
        """
        from dlapp.storage.commit import parts_location
        from dlapp.storage.commit.marker import is_part
        from dlapp.storage.settlement import ApplicationOutputs

        settled = ApplicationOutputs(application_id, outputs, open_files=self._at)
        if claim is not None:
            return settled.commit(claim, is_retry=True, retried=(Unreachable,))[0]

        def parts_of(output: OutputSpec) -> list[tuple[str, str]]:
            above = parts_location(output.target, application_id)
            return [(name, f"{above}/{name}") for name in self.names(above) if is_part(name, str(application_id))]

        return settled.keep_or_drop(parts_of)
