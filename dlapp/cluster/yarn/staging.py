"""What an application has on the default file system, and who it is that reads and writes there.

    <home of the user>/.dlapp/                      0711: others may pass, so that a public archive can be read
        cache/      0711    dlapp-<digest>.pyz 0644, workspaces <digest>.tar.gz 0600, kept for the next application
        staging/    0700    <application id>/: what its ApplicationMaster writes while it runs; removed at its end
        history/    0700    <application id>.json: its last view, and what was submitted

This room uses no storage of its own: who makes an engine gives it the `Files` that it works with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from dlapp.ids import ApplicationId
from dlapp.report import OutputView

DIRECTORY = ".dlapp"
CACHE_MODE, OWN_MODE = 0o711, 0o700
VIEW, SUBMISSION, SECRETS, AM = "view.json", "submission.json", "secrets.json", "am.json"
KILL, SOFT_KILL = "kill.json", "softkill.json"
COMMIT = "commit.json"


class Found(Protocol):
    """A file: its size [bytes], when it was last changed [ms since 1970], its owner and permissions."""

    @property
    def size_bytes(self) -> int: ...
    @property
    def modified_ms(self) -> int: ...
    @property
    def owner(self) -> str: ...
    @property
    def mode(self) -> int: ...


class Files(Protocol):
    """The default file system as one Hadoop user sees it. Places are locations: ``hdfs://namenode:8020/user/tony``."""

    @property
    def home(self) -> str:
        """The user's home directory."""

    def close(self) -> None:
        """Close the connections."""

    def look(self, location: str) -> Found | None:
        """What is there; None: nothing."""

    def names(self, location: str) -> list[str]:
        """The names in a directory, sorted; none where there is no directory."""

    def entries(self, location: str) -> list[tuple[str, int, int]]:
        """Name, size [bytes] and last change [ms since 1970] of all in a directory; nothing where there is none."""

    def make(self, location: str, mode: int) -> None:
        """Make a directory, with those above it; one that is there stays as it is."""

    def send(self, path: str, location: str, mode: int) -> Found:
        """Put a local file there, whole or not at all; one that is there already stays, untouched."""

    def write(self, location: str, data: bytes, mode: int, *, once: bool = False) -> bool:
        """Write a small file, whole or not at all; with ``once`` False where one is there already."""

    def read(self, location: str) -> bytes:
        """All of a small file. Raises NotFound."""

    def read_part(self, location: str, offset: int, count: int) -> bytes:
        """So many bytes of a file, which must have them. Raises NotFound."""

    def remove(self, location: str) -> None:
        """Remove a file, or a directory with all in it; nothing there is no error."""

    def finish_output(
        self, target: str, application_id: ApplicationId, parts: Sequence[tuple[str, str]], *, overwrite: bool
    ) -> OutputView:
        """Commit an output of an application without an ApplicationMaster, which had decided to.

        Returns:
            Not committed: that is not possible, and for good; what there is of it is kept aside.
        """

    def leave_output(self, target: str, application_id: ApplicationId, *, keep: bool) -> OutputView:
        """Put aside, or remove, what an application without an ApplicationMaster stored."""


class Places(NamedTuple):
    """Where one user's things are."""

    home: str

    @property
    def directory(self) -> str:
        """All that is ours."""
        return f"{self.home}/{DIRECTORY}"

    @property
    def cache(self) -> str:
        """Archives of dlapp and of workspaces."""
        return f"{self.directory}/cache"

    @property
    def all_staging(self) -> str:
        """The staging directories of all applications."""
        return f"{self.directory}/staging"

    @property
    def all_history(self) -> str:
        """What is kept of applications that have ended."""
        return f"{self.directory}/history"

    def staging(self, application_id: ApplicationId) -> str:
        """The staging directory of one application."""
        return f"{self.all_staging}/{application_id}"

    def history(self, application_id: ApplicationId) -> str:
        """What is kept of one application."""
        return f"{self.all_history}/{application_id}.json"
