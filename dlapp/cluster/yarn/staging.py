"""Files of an application on the default file system, and the interface for reading and writing them.

    <home of the user>/.dlapp/                      0711: others may pass, so that a public archive can be read
        cache/      0711    dlapp-<digest>.pyz 0644, workspaces <digest>.tar.gz 0600, kept for the next application
        staging/    0700    <application id>/: what its ApplicationMaster writes while it runs; removed at its end.
                            0711 once an application was submitted with tokens for others (`client.shared_tokens`)
        history/    0700    <application id>.json: its last view, and what was submitted
        notify/     0700    <application id>.json: notifications that are not delivered yet
                            <application id>.usage: the use of its containers over time
                            <application id>.trials: the results of its sweep

This package uses no storage code itself: the creator of an engine passes it a `StagingFiles`.
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
"""Directory of an application with the address of each attempt, as a file name
(`dlapp.values.messages.address_name`)."""
KILL, SOFT_KILL, RELEASE = "kill.json", "softkill.json", "release.json"
COMMIT = "commit.json"
USAGE = "usage.json"
TRIALS = "trials.jsonl"
JOURNAL_PREFIX = "journal-"
"""Size limit of the journal's files; see `dlapp.am.application_dir.hdfs_journal`."""
HISTORY_SUFFIX, USAGE_SUFFIX, TRIALS_SUFFIX = ".json", ".usage", ".trials"
MAX_REQUEST_BYTES = 4096
"""Size limit of a request to end or release, and of the ApplicationMaster's address: two short fields."""
MAX_SUBMISSION_BYTES = 16 << 20
"""Size limit of a submission: a properties file and an env_file have 1 MiB each, and JSON may need six bytes for
one."""
MAX_VIEW_BYTES = 32 << 20
"""Size limit of a view: with 10,000 containers it has about 6 MiB."""
MAX_HISTORY_BYTES = MAX_VIEW_BYTES + MAX_SUBMISSION_BYTES
"""Size limit of a history file, which contains these two."""
MAX_CLAIM_BYTES = 64 << 20
"""Size limit of a commit claim: the parts of 10,000 containers take about 3 MiB per output, more with longer names."""
MAX_GROUP_BYTES = 16 << 20
"""Size limit of a journal file. It has the lines of a second or, after many groups or a long HDFS outage, as many as
fit."""


RECEIPT_BYTES = 4096
"""Maximum size of the receipt at the beginning of a history: a list reads this much of each."""
_RECEIPT = '{"receipt":'


def history_json(kept: Mapping[str, Any]) -> bytes:
    """Return a history in its stored form: with the receipt of its view first, as JSON without white space.

    Args:
        kept: ``view``, ``submission``, and other kept fields, in JSON form.
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
    """The default file system as seen by one Hadoop user. Locations are URLs: ``hdfs://namenode:8020/user/tony``."""

    @property
    def home(self) -> str:
        """Return the user's home directory."""

    def home_by_server(self) -> str:
        """Return the path of the user's home directory on the file system."""

    def check_one_destination(self, location: str) -> None:
        """Reject a location where one name can refer to several files. Raises UsageError."""

    def close(self) -> None:
        """Close the connections."""

    def status(self, location: str) -> FileInfo | None:
        """Return the status of a location; None: it does not exist."""

    def names(self, location: str) -> list[str]:
        """Return the names in a directory, sorted; none if it does not exist."""

    def entries(self, location: str) -> list[tuple[str, int, int]]:
        """Return name, size [bytes] and last change [ms since 1970] of all entries; none if it does not exist."""

    def make(self, location: str, mode: int) -> None:
        """Create a directory and its parents; an existing one stays unchanged."""

    def send(self, path: str, location: str, mode: int) -> FileInfo:
        """Upload a local file atomically; an existing file stays unchanged."""

    def write(self, location: str, data: bytes, mode: int, *, once: bool = False) -> bool:
        """Write a small file atomically.

        Args:
            location: the location of the file.
            data: its content.
            mode: its permissions.
            once: do not replace an existing file; return False then.
        """

    def read(self, location: str, *, max_bytes: int) -> bytes:
        """Return the content of a small file. Raises NotFound; DlappError if it is larger than ``max_bytes``."""

    def read_part(self, location: str, offset: int, count: int) -> bytes:
        """Return ``count`` bytes of a file, which must exist. Raises NotFound."""

    def touch(self, location: str) -> None:
        """Set the modification time of a file to now. Raises NotFound."""

    def set_acl(self, location: str, entries: Sequence[str]) -> None:
        """Set the access control list of a file or directory.

        Args:
            location: the location of the file or directory.
            entries: the whole list, each as ``user:tony:r--``; without named entries it is only the permissions.

        Raises:
            DlappError: not permitted, or the file system does not support ACLs.
        """

    def replicate(self, location: str, count: int) -> None:
        """Raise the replication of a file to this number of nodes, or to all if there are fewer; never lower it.

        The file system copies it in its own time. A file with erasure coding has no replicas.

        Args:
            location: location of the file; no error if it does not exist.
            count: number of replicas.

        Raises:
            DlappError: not permitted by a quota or by the file system's limit; the file stays unchanged.
        """

    def remove(self, location: str) -> None:
        """Remove a file, or a directory with its content; no error if it does not exist."""

    def remove_if_empty(self, location: str) -> None:
        """Remove an empty directory."""

    def settle_outputs(
        self, application_id: ApplicationId, outputs: tuple[OutputSpec, ...], claim: CommitClaim | None
    ) -> tuple[OutputView, ...]:
        """Settle the outputs of an application without its ApplicationMaster.

        Without a claim the kept parts have the names of their containers: their final names, and which parts are
        complete, are not known.

        Args:
            application_id: id of the application.
            outputs: outputs of the submission.
            claim: the commit that its ApplicationMaster had decided; None: none, and the stored parts are kept.

        Raises:
            DlappError, OSError: an output cannot be settled; everything needed by a later call is kept.
        """


class StagingPaths(NamedTuple):
    """Directories of one user."""

    home: str

    @property
    def directory(self) -> str:
        """Return the root of dlapp's directories."""
        return f"{self.home}/{DIRECTORY}"

    @property
    def cache(self) -> str:
        """Return the archives of dlapp and of workspaces."""
        return f"{self.directory}/cache"

    @property
    def all_staging(self) -> str:
        """Return the staging directories of all applications."""
        return f"{self.directory}/staging"

    @property
    def all_outboxes(self) -> str:
        """Return the undelivered notifications."""
        return f"{self.directory}/notify"

    @property
    def all_history(self) -> str:
        """Return the histories of ended applications."""
        return f"{self.directory}/history"

    def starts(self, cluster: str) -> str:
        """Return the start times of the ResourceManagers of a cluster, by its key."""
        return f"{self.directory}/clusters/{cluster}.json"

    def staging(self, application_id: ApplicationId) -> str:
        """Return the staging directory of one application."""
        return f"{self.all_staging}/{application_id}"

    def outbox(self, application_id: ApplicationId) -> str:
        """Return the undelivered notifications of one application."""
        return f"{self.all_outboxes}/{application_id}.json"

    def history(self, application_id: ApplicationId) -> str:
        """Return the history of one application."""
        return f"{self.all_history}/{application_id}{HISTORY_SUFFIX}"

    def usage(self, application_id: ApplicationId) -> str:
        """Return the usage history of one ended application."""
        return f"{self.all_history}/{application_id}{USAGE_SUFFIX}"

    def trials(self, application_id: ApplicationId) -> str:
        """Return the results of the sweep of one ended application."""
        return f"{self.all_history}/{application_id}{TRIALS_SUFFIX}"
