"""Outbox of an application on a cluster: a file beside the staging directory, which it outlives.

No secret is in it. Its ApplicationMaster writes it; when that has ended, the user's commands.
"""

from __future__ import annotations

from dlapp.cluster.yarn.staging import OWN_FILE_MODE, OWN_MODE, StagingFiles, StagingPaths
from dlapp.errors import NotFound
from dlapp.notifications.outbox import MAX_BYTES
from dlapp.values.ids import ApplicationId


class StagedOutbox:
    """The `dlapp.notifications.outbox.OutboxFile` on the default file system."""

    def __init__(self, files: StagingFiles, application_id: ApplicationId) -> None:
        places = StagingPaths(files.home)
        self._files, self._directory, self._location = files, places.all_outboxes, places.outbox(application_id)
        self._is_made = False

    def read(self) -> bytes | None:
        try:
            return self._files.read(self._location, max_bytes=MAX_BYTES)
        except NotFound:
            return None

    def write(self, data: bytes) -> None:
        if not self._is_made:
            self._files.make(self._directory, OWN_MODE)
            self._is_made = True
        self._files.write(self._location, data, OWN_FILE_MODE)

    def remove(self) -> None:
        self._files.remove(self._location)
