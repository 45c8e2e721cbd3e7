"""The application's own directory, as its ApplicationMaster uses it.

What is written here is read by others while it is written: every file but the journal appears under its name whole,
by a rename, and what decides something is on the disk before the name is.

    submission.json  secrets.json     what was submitted
    view.json                         what tools show
    journal-<attempt>.jsonl           what happened, for a next attempt
    commit.json                       the commit claim: created once, never changed
    kill.json                         somebody asked for dlapp-kill
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from dlapp.errors import DlappError, NotFound
from dlapp.jsonform import from_json, to_json
from dlapp.report import ApplicationView, Cause, FinalStatus
from dlapp.spec import Secrets, Submission
from dlapp.storage import HdfsPlace

T = TypeVar("T")


class Superseded(DlappError):
    """Another attempt runs the application, or has ended it: whoever meets this ends, and touches nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputClaim:
    """One output to commit: ``parts`` maps a name within the target ("" for the target itself) to a location."""

    target: str
    overwrite: bool
    parts: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitClaim:
    """The decision that an application's output is committed, and how the application has ended by that.

    Whoever finds it after the ApplicationMaster's death finishes what it says: nothing is decided again.
    """

    attempt: int
    final_status: FinalStatus
    cause: Cause
    diagnostics: str
    outputs: tuple[OutputClaim, ...] = ()
    unknown: dict[str, Any] = field(default_factory=dict)


class Home:
    """The files of one application, in a local directory.

    ``hdfs`` is where its outputs may go besides local files.
    """

    patience_s = 0.0
    """How long a commit waits for a file system that does not answer."""
    publishes = False
    """Whether tasks of an earlier attempt find this one by a file here, which may take a while to be written."""

    def __init__(self, directory: str, hdfs: HdfsPlace | None = None) -> None:
        self.directory, self.hdfs = directory, hdfs

    def submission(self) -> Submission:
        """What was submitted. Raises NotFound, DlappError where it cannot be read."""
        return self._read("submission.json", Submission)

    def secrets(self) -> Secrets:
        """Its secrets. Raises NotFound, DlappError where they cannot be read."""
        return self._read("secrets.json", Secrets)

    def view(self) -> ApplicationView | None:
        """The last view that was written; None: none yet."""
        try:
            return self._read("view.json", ApplicationView)
        except NotFound:
            return None

    def write_view(self, view: ApplicationView) -> None:
        """Replace the view. Not forced to the disk: after a power cut the outcome speaks, not the view."""
        temporary = self._path(f".view.{os.getpid()}")
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(to_json(view), file, separators=(",", ":"))
        os.rename(temporary, self._path("view.json"))

    def check_ours(self) -> None:
        """Raise `Superseded` where another attempt has taken over; on one machine none does while this one lives."""

    def claim(self, claim: CommitClaim) -> CommitClaim:
        """Make the commit claim, or learn which attempt was first: the answer is the claim that counts."""
        temporary = self._path(f".commit.{os.getpid()}")
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(to_json(claim), file, separators=(",", ":"))
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(temporary, self._path("commit.json"))
        except FileExistsError:
            pass
        finally:
            os.unlink(temporary)
        self._sync()
        return self._read("commit.json", CommitClaim)

    def claimed(self) -> CommitClaim | None:
        """The commit claim; None: nobody made one."""
        try:
            return self._read("commit.json", CommitClaim)
        except NotFound:
            return None

    def kill_request(self) -> str | None:
        """Who asked for dlapp-kill; None: nobody."""
        try:
            with open(self._path("kill.json"), encoding="utf-8") as file:
                return str(json.load(file)["by"])
        except FileNotFoundError:
            return None

    def journal(self, attempt: int) -> Journal:
        """The journal of one attempt, to append to."""
        return Journal(self._path(f"journal-{attempt}.jsonl"))

    def all_journal_lines(self) -> list[str]:
        """The complete lines of all attempts' journals, in order; one that a death cut short is left out."""
        lines: list[str] = []
        attempt = 1
        while os.path.exists(path := self._path(f"journal-{attempt}.jsonl")):
            with open(path, encoding="utf-8", errors="replace") as file:
                lines += file.read().split("\n")[:-1]
            attempt += 1
        return lines

    def _path(self, name: str) -> str:
        return os.path.join(self.directory, name)

    def _sync(self) -> None:
        fd = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def _read(self, name: str, kind: type[T]) -> T:
        path = self._path(name)
        try:
            with open(path, encoding="utf-8") as file:
                return from_json(kind, json.load(file))
        except FileNotFoundError as error:
            raise NotFound(f"{path} is not there") from error
        except ValueError as error:  # SpecError included: it is a ValueError
            raise DlappError(f"{path} cannot be read: {error}") from error


class Journal:
    """Appends lines to an attempt's journal, in groups: `add` costs nothing, `flush` is one write.

    Attributes:
        added, written: how many lines so far.
        on_written: called after a group was written by another thread than that which adds.
    """

    def __init__(self, path: str) -> None:
        self.added = self.written = 0
        self.on_written: Callable[[], None] = lambda: None
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
        self._waiting: list[str] = []
        self._left = b""

    def add(self, line: str) -> None:
        """Put a line into the next group."""
        self.added += 1
        self._waiting.append(line + "\n")

    def hurry(self) -> None:
        """Somebody waits until what was added is written."""

    def flush(self, *, durable: bool = False) -> None:
        """Write the group; with ``durable`` it is on the disk when this returns. What fails is tried by the next."""
        self._left += "".join(self._waiting).encode()
        self._waiting.clear()
        while self._left:
            self._left = self._left[os.write(self._fd, self._left) :]
        self.written = self.added
        if durable:
            os.fdatasync(self._fd)

    def close(self) -> None:
        """Write what is left, and close."""
        try:
            self.flush()
        finally:
            os.close(self._fd)
