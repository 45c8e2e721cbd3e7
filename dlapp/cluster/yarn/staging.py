"""Files of an application on the default file system, and the interface for reading and writing them.

    <home of the user>/.dlapp/                      0711: others may pass, so that a public archive can be read
        cache/      0711    dlapp-<digest>.pyz 0644, workspaces <digest>.tar.gz 0600, kept for the next application
        staging/    0700    <application id>/: what its ApplicationMaster writes while it runs; removed at its end.
                            0711 once an application was submitted with tokens for others (`client.shared_tokens`)
        history/    0700    <application id>.json: its last view, and what was submitted
        notify/     0700    <application id>.json: notifications that are not delivered yet
                            <application id>.usage: the use of its containers over time
                            <application id>.trials: the results of its sweep

This room uses no storage of its own: who makes an engine gives it the `StagingFiles` that it works with.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from dlapp.locations import FileInfo
from dlapp.values.ids import ApplicationId
from dlapp.values.report import CommitClaim, OutputView
from dlapp.values.spec import OutputSpec

DIRECTORY = ".dlapp"
CACHE_MODE, OWN_MODE, OWN_FILE_MODE = 0o711, 0o700, 0o600
VIEW, SUBMISSION, AM = "view.json", "submission.json", "am.json"
ADDRESSES = "addresses"
"""Directory of an application with the address of each attempt, as a name (`dlapp.values.messages.address_name`)."""
KILL, SOFT_KILL, RELEASE = "kill.json", "softkill.json", "release.json"
COMMIT = "commit.json"
USAGE = "usage.json"
TRIALS = "trials.jsonl"
JOURNAL_PREFIX = "journal-"
"""Of the files of the journal; see `dlapp.am.application_dir.hdfs_journal`."""
HISTORY_SUFFIX, USAGE_SUFFIX, TRIALS_SUFFIX = ".json", ".usage", ".trials"
MAX_REQUEST_BYTES = 4096
"""Of a file that asks for an end or a release, and of that with the ApplicationMaster's address: two short fields."""
MAX_SUBMISSION_BYTES = 16 << 20
"""Of what was submitted: a properties file and an env_file have 1 MiB each, and JSON writes a byte in six at most."""
MAX_VIEW_BYTES = 32 << 20
"""Of a view: with 10,000 containers it has some 6 MiB."""
MAX_HISTORY_BYTES = MAX_VIEW_BYTES + MAX_SUBMISSION_BYTES
"""Of a file in the history, which is made of these two."""
MAX_CLAIM_BYTES = 64 << 20
"""Of a commit claim: the parts of 10,000 containers have some 3 MiB for each output, and longer names more."""
MAX_GROUP_BYTES = 16 << 20
"""Of a file of the journal. It has a second's lines, or, of many groups or when HDFS took no changes for long, as many
as fit."""


RECEIPT_BYTES = 4096
"""A history begins with the receipt, which is shorter: a list reads so much of each."""
_RECEIPT = '{"receipt":'


def history_json(kept: Mapping[str, Any]) -> bytes:
    """Return a history as it is stored: with the receipt of its view first, in JSON without white space.

    Args:
        kept: ``view``, ``submission``, and what else is kept, in JSON form.
    """
    receipt = (kept.get("view") or {}).get("receipt")
    return json.dumps({"receipt": receipt, **kept}, separators=(",", ":")).encode()


def receipt_of_history(data: bytes) -> dict[str, Any] | None:
    """Return the receipt at the beginning of a history, in its JSON form; None: there is none.

    Args:
        data: the first `RECEIPT_BYTES` of it, or all.
    """
    text = data.decode("utf-8", "replace")
    if not text.startswith(_RECEIPT):
        return None
    try:
        found, _ = json.JSONDecoder().raw_decode(text, len(_RECEIPT))
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


class StagingFiles(Protocol):
    """The default file system as one Hadoop user sees it. Places are locations: ``hdfs://namenode:8020/user/tony``."""

    @property
    def home(self) -> str:
        """The user's home directory."""

    def home_by_server(self) -> str:
        """Return the path of the user's home directory as the file system has it."""

    def check_one_destination(self, location: str) -> None:
        """Refuse a place where a name can be given to several files. Raises UsageError."""

    def close(self) -> None:
        """Close the connections."""

    def look(self, location: str) -> FileInfo | None:
        """Return what is there; None: nothing."""

    def names(self, location: str) -> list[str]:
        """The names in a directory, sorted; none where there is no directory."""

    def entries(self, location: str) -> list[tuple[str, int, int]]:
        """Name, size [bytes] and last change [ms since 1970] of all in a directory; nothing where there is none."""

    def make(self, location: str, mode: int) -> None:
        """Make a directory, with those above it; one that is there stays as it is."""

    def send(self, path: str, location: str, mode: int) -> FileInfo:
        """Put a local file there, whole or not at all; one that already exists stays, untouched."""

    def write(self, location: str, data: bytes, mode: int, *, once: bool = False) -> bool:
        """Write a small file, whole or not at all.

        Args:
            location: of the file.
            data: its content.
            mode: its permissions.
            once: return False where one already exists.
        """

    def read(self, location: str, *, max_bytes: int) -> bytes:
        """Return all of a small file. Raises NotFound; DlappError if it is larger than ``max_bytes``."""

    def read_part(self, location: str, offset: int, count: int) -> bytes:
        """Return ``count`` bytes of a file, which must have them. Raises NotFound."""

    def touch(self, location: str) -> None:
        """Set the time of a file's last change to now. Raises NotFound."""

    def set_acl(self, location: str, entries: Sequence[str]) -> None:
        """Give a file or directory an access control list.

        Args:
            location: of the file or directory.
            entries: all of the list, each as ``user:tony:r--``; without names it is but the permissions.

        Raises:
            DlappError: it may not be, or the file system keeps no such lists.
        """

    def replicate(self, location: str, count: int) -> None:
        """Have a file kept on so many nodes, or on all if there are fewer; one that is on more of them stays so.

        Nodes without it get it in the file system's own time. A file with erasure coding has no replicas.

        Args:
            location: of the file; nothing there is no error.
            count: on how many nodes.

        Raises:
            DlappError: it may not be, by a quota or by the file system's own limit; the file stays as it is.
        """

    def remove(self, location: str) -> None:
        """Remove a file, or a directory with all in it; nothing there is no error."""

    def remove_if_empty(self, location: str) -> None:
        """Remove a directory if nothing is in it."""

    def settle_outputs(
        self, application_id: ApplicationId, outputs: tuple[OutputSpec, ...], claim: CommitClaim | None, *, keep: bool
    ) -> tuple[OutputView, ...]:
        """Settle the outputs of an application without an ApplicationMaster.

        Without a claim what is kept has the names of the containers: nobody knows what it was to be called, and which
        of it is whole.

        Args:
            application_id: of the application.
            outputs: as submitted.
            claim: the commit that its ApplicationMaster had decided on; None: none.
            keep: without a claim, keep what was stored; else remove it.

        Raises:
            DlappError, OSError: an output cannot be settled; all that a later call needs stays.
        """


class StagingPaths(NamedTuple):
    """Directories of one user."""

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
    def all_outboxes(self) -> str:
        """Notifications that are not delivered yet."""
        return f"{self.directory}/notify"

    @property
    def all_history(self) -> str:
        """Histories of applications that have ended."""
        return f"{self.directory}/history"

    def staging(self, application_id: ApplicationId) -> str:
        """The staging directory of one application."""
        return f"{self.all_staging}/{application_id}"

    def outbox(self, application_id: ApplicationId) -> str:
        """The notifications of one application that are not delivered yet."""
        return f"{self.all_outboxes}/{application_id}.json"

    def history(self, application_id: ApplicationId) -> str:
        """Stored state of one application."""
        return f"{self.all_history}/{application_id}{HISTORY_SUFFIX}"

    def usage(self, application_id: ApplicationId) -> str:
        """Use of the containers of one application that has ended."""
        return f"{self.all_history}/{application_id}{USAGE_SUFFIX}"

    def trials(self, application_id: ApplicationId) -> str:
        """Results of the sweep of one application that has ended."""
        return f"{self.all_history}/{application_id}{TRIALS_SUFFIX}"
