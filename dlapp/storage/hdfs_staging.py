"""Small files on HDFS: what an application's client and ApplicationMaster keep beside it.

Every file is written under another name first and then renamed, so a reader sees it whole or not at all.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from dlapp.errors import NotFound
from dlapp.ids import ApplicationId
from dlapp.locations import HdfsPlace, shown
from dlapp.net.http import RequestBody
from dlapp.report import CommitClaim, OutputView
from dlapp.spec import OutputSpec
from dlapp.storage.hdfs import HdfsFiles
from dlapp.storage.tree import explained
from dlapp.storage.webhdfs import PATIENCE_S, WebHdfs


class StagedFileInfo(NamedTuple):
    """A file: its size [bytes], when it was last changed [ms since 1970], its owner and permissions.

    ``is_file`` is false for directories and symbolic links.
    """

    size_bytes: int
    modified_ms: int
    owner: str
    mode: int
    is_file: bool


class HdfsStagingFiles:
    """One user's view of one HDFS. Any thread may call.

    Args:
        place: where it is, and as whom it is used.
        patience_s: how long a call is tried while no NameNode serves it.
        stranger_s: how long where none has answered yet (`WebHdfs`); None: ``patience_s``.
    """

    def __init__(
        self, place: HdfsPlace, patience_s: float = PATIENCE_S, first_contact_timeout_s: float | None = None
    ) -> None:
        self._place = place
        self._web = WebHdfs(self._place, patience_s=patience_s, first_contact_timeout_s=first_contact_timeout_s)
        self._files = HdfsFiles(self._place, self._web)

    def close(self) -> None:
        """Close the connections that are not in use."""
        self._web.close()

    @property
    def home(self) -> str:
        """The user's home directory."""
        return self._place.home

    def look(self, location: str) -> StagedFileInfo | None:
        """Return what is there; None: nothing."""
        status = self._web.status(self._place.path(location))
        if status is None:
            return None
        is_file = not status.is_dir and status.link is None
        return StagedFileInfo(status.size_bytes, status.mtime_ms, status.owner, status.mode, is_file)

    def names(self, location: str) -> list[str]:
        """The names in a directory, sorted; none where there is no directory."""
        try:
            return self._files.names(location)
        except NotFound:
            return []

    def entries(self, location: str) -> list[tuple[str, int, int]]:
        """Name, size [bytes] and last change [ms since 1970] of all in a directory; nothing where there is none."""
        try:
            found = self._web.children(self._place.path(location))
        except NotFound:
            return []
        return [(one.name, one.size_bytes, one.mtime_ms) for one in found]

    def make(self, location: str, mode: int) -> None:
        """Make a directory, with those above it; one that is there stays as it is."""
        self._files.make_directory(location, mode)

    def send(self, path: str, location: str, mode: int) -> StagedFileInfo:
        """Put a local file there, whole or not at all; one that already exists stays, untouched."""
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise explained(error, path, "read") from error
        try:
            self._files.create_exclusive(location, RequestBody(file, os.fstat(file).st_size), mode)
        finally:
            os.close(file)
        found = self.look(location)
        if found is None:
            raise NotFound(f"{shown(location)} was removed just after it was written")
        return found

    def write(self, location: str, data: bytes, mode: int, *, once: bool = False) -> bool:
        """Write a small file, whole or not at all; see `StagingFiles.write`.

        Args:
            location, data, mode, once: as there.
        """
        if once:
            return self._files.create_exclusive(location, data, mode)
        self._files.write_atomic(location, data, mode)
        return True

    def read(self, location: str, *, max_bytes: int) -> bytes:
        """Return all of a small file. Raises NotFound; DlappError if it is larger than ``max_bytes``."""
        return self._files.read_bytes(location, max_bytes)

    def read_part(self, location: str, offset: int, count: int) -> bytes:
        """Return ``count`` bytes of a file, which must have them. Raises NotFound."""
        memory = os.memfd_create("dlapp-part", os.MFD_CLOEXEC)
        try:
            self._web.fetch(self._place.path(location), memory, offset, offset + count, lambda _: None)
            return os.pread(memory, count, offset)
        finally:
            os.close(memory)

    def remove(self, location: str) -> None:
        """Remove a file, or a directory with all in it; nothing there is no error."""
        self._files.remove(location)

    def settle_outputs(
        self, application_id: ApplicationId, outputs: tuple[OutputSpec, ...], claim: CommitClaim | None, *, keep: bool
    ) -> tuple[OutputView, ...]:
        """Settle the outputs of an application without an ApplicationMaster; see `StagingFiles.settle_outputs`.

        Args:
            application_id, outputs, claim, keep: as there.
        """
        from dlapp.storage.commit import parts_location
        from dlapp.storage.commit.marker import is_container
        from dlapp.storage.settlement import ApplicationOutputs

        settled = ApplicationOutputs(application_id, outputs, files=self._files)
        if claim is not None:
            return settled.commit(claim, again=True, wait=True)[0]

        def parts_of(output: OutputSpec) -> list[tuple[str, str]]:
            above = parts_location(output.target, application_id)
            return [(name, f"{above}/{name}") for name in self.names(above) if is_container(name, str(application_id))]

        return settled.leave(parts_of if keep else None)
