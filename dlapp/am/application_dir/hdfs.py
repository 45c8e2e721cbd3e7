"""The application directory on HDFS: the files of `dlapp.am.application_dir.local`, written by a thread.

A small write takes 25 to 425 ms there, so nothing but what decides something is waited for: the commit claim, and lines
of the journal that must be on record before somebody is acted on. Of views only the latest is written, of the journal a
group at a time, each group a file of its own (HDFS appends, but a group that is renamed into place is never half
there).

    journal-<attempt>-<number>.jsonl       a group of lines

At the end the last view goes to the history, and then the whole directory is removed.

``am.json`` says which attempt has the application. An attempt that was cut off and lives on finds there that another
one has taken over: it looks every few seconds, before each group of the journal and each view, and around the
commit claim. What it has found once stays so: it ends and changes nothing more, also where the other one has ended the
application since and the directory is gone, which any write would make anew.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from dlapp.am.application_dir.interface import MAX_JOURNAL_BYTES, Superseded
from dlapp.am.model.events import Kill, Published, SoftKill
from dlapp.cluster import Heartbeat
from dlapp.cluster.yarn.staging import (
    AM,
    COMMIT,
    KILL,
    MAX_CLAIM_BYTES,
    MAX_GROUP_BYTES,
    MAX_REQUEST_BYTES,
    OWN_MODE,
    SOFT_KILL,
    SUBMISSION,
    VIEW,
    StagingFiles,
    StagingPaths,
)
from dlapp.errors import DlappError, NotFound, Unreachable
from dlapp.ids import ApplicationId, ContainerId
from dlapp.locations import HdfsPlace
from dlapp.report import ApplicationView, CommitClaim
from dlapp.serialization import from_json, parse_json, to_json
from dlapp.spec import DEFAULT_OUTPUT_PATIENCE_S, Submission
from dlapp.system import log

if TYPE_CHECKING:
    from dlapp.am.application_dir.interface import Notice

T = TypeVar("T")

VIEW_EVERY_S = 3.0
"""Tools ask the control address; a view on HDFS is for who cannot reach it, and costs the NameNode four operations."""
GROUP_EVERY_S = 1.0
LOOK_EVERY_S = 5.0
"""For the marks of who cannot reach the control address, and for another attempt; each look is 2 ms of the NameNode."""
PATIENCE_S, AGAIN_S = 300.0, 1.0
"""So long, and so often, what an attempt begins and ends with is tried again while the file system does not answer;
the outputs have `dlapp.spec.DEFAULT_OUTPUT_PATIENCE_S`, or less if the application says so."""
_FILE_MODE = 0o600


class HdfsApplicationDir:
    """The files of one application, in its staging directory.

    Args:
        files: the file system, as the application's user.
        submission: as it came in the ApplicationMaster's credentials.
        hdfs: see `ApplicationDir`.
    """

    def __init__(
        self,
        files: StagingFiles,
        application_id: ApplicationId,
        attempt: int,
        submission: Submission,
        hdfs: HdfsPlace | None = None,
    ) -> None:
        self._files, self._application_id, self._attempt = files, application_id, attempt
        self._submission, self._paths = submission, StagingPaths(files.home)
        self.directory, self.hdfs = self._paths.staging(application_id), hdfs
        self.patience_s = DEFAULT_OUTPUT_PATIENCE_S
        self._changed = threading.Condition()
        self._view: ApplicationView | None = None
        self._view_at = 0.0
        self._last_view: ApplicationView | None = None
        self._journal = HdfsJournalWriter(self, attempt)
        self._closing = False
        self._control_url = ""
        self._put: Callable[[Notice], None] = lambda _: None
        self._found: str | None = None  # what `_other` said
        self._overwritten = False  # an earlier attempt's address stands in place of ours
        self._begun = threading.Event()
        self._hurry = False
        self._marks_seen: set[str] = set()
        self._ignored: set[str] = set()
        self._look_at = time.monotonic() + LOOK_EVERY_S
        self._thread = threading.Thread(target=self._write_all, name="am-directory", daemon=True)

    def open(self, control_url: str, put: Callable[[Notice], None]) -> None:
        """Begin to write: first of all where this attempt is, for the tasks of an earlier one.

        Args:
            control_url: where this attempt listens.
            put: takes what is learned here, from the thread that writes. A request of somebody who cannot reach the
                control address comes once; the others perhaps several times.
        """
        self._control_url, self._put = control_url, put
        self._thread.start()

    # ---- what is read and written ----

    def write_view(self, view: ApplicationView) -> None:
        """Replace the view, in a moment; not that of another attempt."""
        if self._found is not None:
            return
        with self._changed:
            self._view = self._last_view = view
            self._changed.notify_all()

    def check_ours(self) -> None:
        """Raise `Superseded` where another attempt has taken over, or has ended the application."""
        self._check_ours(self.patience_s)

    def _check_ours(self, patience_s: float) -> None:
        if (why := _patiently(self._other, patience_s)) is not None:
            raise Superseded(why)

    def claim(self, claim: CommitClaim) -> CommitClaim:
        """Make the commit claim, or learn which attempt was first: the answer is the claim that counts.

        Raises:
            Superseded: another attempt has the application, or had it and has ended it.
        """
        self.check_ours()
        place, data = self._place(COMMIT), _as_json(claim)
        if _patiently(lambda: self._files.write(place, data, _FILE_MODE, once=True), self.patience_s):
            # Had we slept before the write, the whole directory might have been settled and removed, and made anew by
            # it. Where that is not so by now, this claim is there for whoever takes over.
            self.check_ours()
            return claim
        found = self.claimed()
        if found is None:
            raise Superseded(f"{place} was removed: the application has ended")
        return found

    def claimed(self) -> CommitClaim | None:
        """The commit claim; None: nobody made one."""
        return _patiently(self._claimed, self.patience_s)

    def _claimed(self) -> CommitClaim | None:
        place = self._place(COMMIT)
        try:
            return from_json(CommitClaim, parse_json(self._files.read(place, max_bytes=MAX_CLAIM_BYTES)))
        except NotFound:
            return None
        except ValueError as error:
            raise DlappError(f"{place} cannot be read: {error}") from error

    def journal(self, _attempt: int) -> HdfsJournalWriter:
        """The journal of this attempt, to append to."""
        return self._journal

    def all_journal_lines(self) -> list[str]:
        """The lines of all attempts' journals, in order."""
        return _patiently(self._all_journal_lines)

    def _all_journal_lines(self) -> list[str]:
        groups = []
        for name in self._files.names(self.directory):
            words = name.removesuffix(".jsonl").split("-")
            if name.endswith(".jsonl") and len(words) == 3 and words[0] == "journal":
                groups.append((int(words[1]), int(words[2]), name))
        lines, left = list[str](), MAX_JOURNAL_BYTES
        for _, _, name in sorted(groups):
            data = self._files.read(self._place(name), max_bytes=min(left, MAX_GROUP_BYTES))
            left -= len(data)
            lines += data.decode("utf-8", "replace").split("\n")[:-1]
        return lines

    # ---- the end ----

    def leftover(self, _container_id: ContainerId, _path: str) -> str | None:
        """Return None: the NodeManager removes a container's directory when it ends."""
        return None

    def clear_leftovers(self) -> None:
        """Do nothing: the NodeManager removes a container's directory when it ends."""

    def commit_times(self, _target: str) -> list[int]:
        """Return nothing: on HDFS only an output's attribute counts (`dlapp.storage.commit.written`)."""
        return []

    def keep(self) -> None:
        """Put the last view where it stays. Everything before it is written when this returns.

        A file system that does not take it costs what is shown afterwards, and not the application's end.

        Raises:
            Superseded: it is another attempt's to say how it ended.
        """
        self.close()
        self._check_ours(PATIENCE_S)
        history = {"view": self._last_view, "submission": self._submission}

        def keep() -> None:
            self._files.make(self._paths.all_history, OWN_MODE)
            self._files.write(self._paths.history(self._application_id), _as_json(history), _FILE_MODE)

        self._again(lambda: _patiently(keep))

    def remove(self) -> None:
        """Remove the staging directory: the application has ended and YARN knows it.

        What cannot be removed now, the user's next command sweeps.
        """
        self.close()
        self._again(lambda: self._files.remove(self.directory))

    def close(self) -> None:
        """End the thread; what waits is written. May be repeated."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join()

    # ---- the thread ----

    def _write_all(self) -> None:
        while not self._again(self._begin) and not self._closing:
            time.sleep(AGAIN_S)
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or self._hurry or self._is_due(), GROUP_EVERY_S)
                closing, self._hurry = self._closing, False
                view = self._view if self._view is not None and time.monotonic() >= self._view_at else None
                if view is not None:
                    self._view, self._view_at = None, time.monotonic() + VIEW_EVERY_S
            self._journal.write()
            if closing:
                return
            if time.monotonic() >= self._look_at:
                for name in (SOFT_KILL, KILL):
                    self._again(lambda name=name: self._look_for_mark(name))
                self._again(self._look_for_another)
                self._look_at = time.monotonic() + LOOK_EVERY_S
            if view is not None and self.is_ours():
                self._again(lambda view=view: self._write(VIEW, view))

    def _look_for_mark(self, name: str) -> None:
        if name in self._marks_seen or not self._is_request(name):
            return
        try:
            by = "".join(filter(str.isprintable, str(self._said(name, "by"))))[:100]
        except ValueError as error:
            # What is wanted, its name says.
            log.warning(f"the staging directory: {error}")
            by = "an unknown user"
        self._marks_seen.add(name)
        self._put(Kill(by) if name == KILL else SoftKill(by))

    def _is_request(self, name: str) -> bool:
        """Return whether a small file of that name exists and belongs to the application's user."""
        found = self._files.look(self._place(name))
        if found is None:
            return False
        user = self._submission.spec.username
        if found.is_file and found.owner == user and not found.mode & 0o022 and found.size_bytes <= MAX_REQUEST_BYTES:
            return True
        if name not in self._ignored:
            self._ignored.add(name)
            kind = "a file" if found.is_file else "no file"
            log.warning(
                f"{self._place(name)} is ignored: it is {kind} of {found.owner!r} with mode {found.mode:o} "
                f"and {found.size_bytes} bytes, not a small file of {user}'s alone"
            )
        return False

    def _look_for_another(self) -> None:
        self._overwritten = False
        if (why := self._other()) is not None:
            self._put(Heartbeat(shut_down=why))
        elif self._overwritten:
            self._publish()

    def _other(self) -> str | None:
        """Return why this attempt no longer has the application; None: it has. It never has it again."""
        if self._found is None:
            self._found = self._look_whose_it_is()
        return self._found

    def _look_whose_it_is(self) -> str | None:
        try:
            there = int(self._said(AM, "attempt"))
        except (TypeError, ValueError) as error:
            # It tells of nobody, and who commits is settled by the claim alone.
            log.warning(f"the staging directory: {error}")
            return None
        except NotFound:
            # Whoever ends an application writes its history before the directory is removed, so this holds for one that
            # slept before it had begun, too. Without a history it was somebody's broom.
            ended = self._files.look(self._paths.history(self._application_id)) is not None
            return "the application has ended" if ended else None
        # An earlier attempt may have slept before it wrote this, or what it had given up came late.
        self._overwritten = there < self._attempt
        return f"attempt {there} has the application now" if there > self._attempt else None

    def _is_due(self) -> bool:
        return self._view is not None and time.monotonic() >= self._view_at

    def _begin(self) -> None:
        if (why := self._other()) is not None:
            self._put(Heartbeat(shut_down=why))
            return
        self._files.make(self.directory, OWN_MODE)
        self._publish()
        self._write(SUBMISSION, self._submission)
        self._begun.set()

    def _publish(self) -> None:
        self._write(AM, {"attempt": self._attempt, "control_url": self._control_url})
        self._put(Published())

    def _again(self, work: Any) -> bool:
        """Do it; what the file system refuses now is said in the log, and done with the next. Whether it was done."""
        try:
            work()
        except (DlappError, OSError) as error:
            log.warning(f"the staging directory: {error}")
            return False
        return True

    def _write(self, name: str, value: Any) -> None:
        self._files.write(self._place(name), _as_json(value), _FILE_MODE)

    def _place(self, name: str) -> str:
        return f"{self.directory}/{name}"

    def _said(self, name: str, field: str) -> Any:
        """Return a field of a file. Raises NotFound, DlappError; ValueError if it is not a file of ours."""
        data = self._files.read(self._place(name), max_bytes=MAX_REQUEST_BYTES)
        try:
            return parse_json(data)[field]
        except (ValueError, LookupError, TypeError) as error:
            raise ValueError(f"{self._place(name)} cannot be parsed: {error!r}") from error

    def is_ours(self) -> bool:
        """Return True if no other attempt has taken over; else tell the application's loop. A doubt counts as True."""
        found: list[str | None] = [None]
        self._again(lambda: found.insert(0, self._other()))
        if found[0] is not None:
            self._put(Heartbeat(shut_down=found[0]))
        return found[0] is None

    def hurry(self) -> None:
        """Write the journal's group now."""
        with self._changed:
            self._hurry = True
            self._changed.notify_all()

    def put_group(self, name: str, data: bytes) -> None:
        """Write a group of the journal. Raises DlappError, OSError."""
        self._files.write(self._place(name), data, _FILE_MODE)


class HdfsJournalWriter:
    """Appends lines to an attempt's journal, in groups that the directory's thread writes."""

    def __init__(self, directory: HdfsApplicationDir, attempt: int) -> None:
        self._directory, self._attempt = directory, attempt
        self.added = self.written = 0
        self.on_written: Callable[[], None] = lambda: None
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._waiting: list[str] = []
        self._number = 0

    def add(self, line: str) -> None:
        """Put a line into the next group."""
        with self._lock:
            self.added += 1
            self._waiting.append(line + "\n")

    def hurry(self) -> None:
        """Write what was added now, by the directory's thread."""
        self._directory.hurry()

    def flush(self, *, durable: bool = False) -> None:
        """Write the lines soon, by the thread; with ``durable`` they are on record when this returns."""
        if durable and not self.write():
            log.error("the journal could not be written: a next attempt will not know of this")

    def write(self) -> bool:
        """Write what waits, as one group or, if that is too large, as several; False: HDFS does not take it now.

        What waits where another attempt has the application is dropped: an attempt after that one would go by it.
        """
        with self._writing:
            with self._lock:
                lines, self._waiting = self._waiting, []
            if not lines or not self._directory.is_ours():
                return True
            done = 0
            for group in _groups(lines):
                # Each try has a number of its own: one that was given up, and comes late, takes the place of no other.
                name = f"journal-{self._attempt}-{self._number:06d}.jsonl"
                self._number += 1
                try:
                    self._directory.put_group(name, "".join(group).encode())
                except (DlappError, OSError) as error:
                    log.warning(f"the journal: {error}")
                    with self._lock:
                        self._waiting[:0] = lines[done:]
                    break
                done += len(group)
                self.written += len(group)
        if done:
            self.on_written()
        return done == len(lines)

    def close(self) -> None:
        """Write what is left, as `write` does."""
        self.write()


def _groups(lines: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield lines in groups that a next attempt reads, whose files have a limit."""
    start = size = 0
    for place, line in enumerate(lines):
        size += (more := len(line.encode()))
        if size > MAX_GROUP_BYTES and place > start:
            yield lines[start:place]
            start, size = place, more
    yield lines[start:]


def _patiently(work: Callable[[], T], patience_s: float = PATIENCE_S) -> T:
    """Do it, again and again while the file system does not answer; what it refuses is raised."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return work()
        except Unreachable as error:
            if time.monotonic() >= deadline:
                raise
            log.warning(f"the staging directory: {error}; it is tried again")
        time.sleep(AGAIN_S)


def _as_json(value: Any) -> bytes:
    return json.dumps(to_json(value), separators=(",", ":")).encode()
