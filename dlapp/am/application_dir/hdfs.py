"""Application directory on HDFS: the files of `dlapp.am.application_dir.local`, written by a thread.

A small write takes 25 to 425 ms on HDFS, so the loop waits only for writes that decide something: the commit claim, and
journal lines that must be durable before the AM acts on them. Of the views only the latest is written; journal lines
are written in groups (`dlapp.am.application_dir.hdfs_journal`).

At the end the last view is written to the history, and then the whole directory is removed.

``am.json`` names the attempt that owns the application. An attempt that was cut off and still runs finds there that
another one has taken over: it checks every few seconds, around each group of the journal, before each view, and around
the commit claim. This result is final: the attempt ends and changes nothing more, even if the other one has meanwhile
ended the application and removed the directory, which any write would create again.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from dlapp.am.application_dir.hdfs_journal import HdfsJournalWriter, read_lines
from dlapp.am.application_dir.interface import FormerSweep, Superseded
from dlapp.am.model.events import Kill, Published, Release, SoftKill
from dlapp.cluster.engine import Heartbeat
from dlapp.cluster.yarn.staging import (
    ADDRESSES,
    AM,
    COMMIT,
    KILL,
    MAX_CLAIM_BYTES,
    MAX_HISTORY_BYTES,
    MAX_REQUEST_BYTES,
    OWN_FILE_MODE,
    OWN_MODE,
    RELEASE,
    SOFT_KILL,
    SUBMISSION,
    TRIALS,
    USAGE,
    VIEW,
    StagingFiles,
    StagingPaths,
    history_json,
)
from dlapp.errors import DlappError, NotFound, SpecError, Unreachable
from dlapp.locations import HdfsPlace
from dlapp.sweep.spec import MAX_RESULTS_BYTES
from dlapp.system.logs import log
from dlapp.system.waits import Wait
from dlapp.values.ids import ApplicationId, ContainerId
from dlapp.values.messages import address_name
from dlapp.values.report import ApplicationView, CommitClaim, OutputView
from dlapp.values.serialization import from_json, parse_json, to_json
from dlapp.values.spec import DEFAULT_OUTPUT_PATIENCE_S, Submission
from dlapp.values.usage import MAX_USAGE_BYTES

if TYPE_CHECKING:
    from dlapp.am.application_dir.interface import Notice

T = TypeVar("T")
_REQUESTS: Mapping[str, Callable[[str], SoftKill | Kill | Release]]
_REQUESTS = {SOFT_KILL: SoftKill, KILL: Kill, RELEASE: Release}
_NO_DIGITS = dict.fromkeys(map(ord, "0123456789"))

VIEW_EVERY_S, VIEW_SOON_S = 20.0, 3.0
"""Tools ask the control address; the view on HDFS is for clients that cannot reach it, and costs the NameNode about six
operations. The shorter interval applies to a view with a new state or phase, and while a client reads views."""
FEW_CONTAINERS = 100
"""Up to this number of containers, a changed phase of one of them counts as a new state."""
READ_FOR_S = 60.0
"""How long after a request for views a client is assumed to read them; clients repeat the request twice in that
time."""
GROUP_EVERY_S, RESULTS_EVERY_S = 1.0, 0.2
"""Interval between two groups, and the shorter one if task results or payload starts wait for a group; a single group
is written at once."""
TRIALS_EVERY_S = 5.0
"""Interval of writing the results of a sweep: several megabytes with 10,000 trials."""
LOOK_EVERY_S = 5.0
"""Poll interval for requests of clients that cannot reach the control address, and for another attempt; each poll costs
the NameNode 2 ms."""
PATIENCE_S, AGAIN_S = 300.0, 1.0
"""How long, and at which interval, the first and last operations of an attempt are retried while the file system does
not answer; outputs use `dlapp.values.spec.DEFAULT_OUTPUT_PATIENCE_S`, or less if the application sets less."""


class HdfsApplicationDir:
    """Files of one application, in its staging directory.

    Args:
        files: the file system, as the application's user.
        submission: the submission from the ApplicationMaster's credentials.
        hdfs: see `ApplicationDir`.
    """

    loses_leftovers = True

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
        self._written: tuple[object, ...] = ()  # the summary of the last view
        self._written_at = self._read_until = float("-inf")
        self._asked_ms: int | None = None  # when views were requested [ms since 1970]
        self._last_view: ApplicationView | None = None
        self._unwritten: dict[str, bytes] = {}  # name -> content, of `USAGE` and `TRIALS`
        self._last: dict[str, bytes] = {}  # the same, written or not
        self._trials_at = float("-inf")
        self._journal = HdfsJournalWriter(self, files, attempt)
        self._closing = False
        self._control_url = ""
        self._put: Callable[[Notice], None] = lambda _: None
        self._found: str | None = None  # the result of `_superseded_reason`
        self._attempt_read: tuple[tuple[int, int, int] | None, int] = None, 0  # of am.json, with its status then
        self._overwritten = False  # an earlier attempt's address has replaced ours
        self._published, self._begun = threading.Event(), threading.Event()
        self._write_requested = False
        self._wrote_at = float("-inf")
        self._marks_seen: set[str] = set()
        self._ignored: set[str] = set()
        self._look_at = time.monotonic() + LOOK_EVERY_S
        self._thread = threading.Thread(target=self._write_all, name="am-directory", daemon=True)

    def open(self, control_url: str, put: Callable[[Notice], None]) -> None:
        """Start writing: first the address of this attempt, for the tasks of an earlier one. A release or stop that was
        requested through a file is put once; the other events may come several times.
        """
        self._control_url, self._put = control_url, put
        self._thread.start()

    # ---- what is read and written ----

    def write_view(self, view: ApplicationView) -> None:
        """Replace the view soon; never that of another attempt."""
        if self._found is not None:
            return
        with self._changed:
            self._view = self._last_view = view
            self._changed.notify_all()

    def write_report(self, view: ApplicationView) -> None:
        """Do nothing: dlapp-report generates the page from the view."""

    def write_usage(self, data: bytes) -> None:
        """Replace the usage history soon; never that of another attempt."""
        self._replace(USAGE, data)

    def write_trials(self, text: str) -> None:
        """Replace the results of a sweep soon; never those of another attempt."""
        self._replace(TRIALS, text.encode())

    def _replace(self, name: str, data: bytes) -> None:
        if self._found is None:
            with self._changed:
                self._unwritten[name] = self._last[name] = data

    def usage(self) -> Mapping[str, Any]:
        """Return the last written usage history; empty: none, or it cannot be read."""
        try:
            found = parse_json(self._files.read(self._place(USAGE), max_bytes=MAX_USAGE_BYTES))
        except NotFound:
            return {}
        except (DlappError, ValueError) as error:
            log.warning(f"the usage of the containers so far cannot be read: {error}")
            return {}
        return found if isinstance(found, dict) else {}

    def former_sweep(self, application_id: ApplicationId) -> FormerSweep:
        """Return the sweep of another application of the user.

        Raises:
            NotFound: it is no longer in the history.
        """
        try:
            history = parse_json(self._files.read(self._paths.history(application_id), max_bytes=MAX_HISTORY_BYTES))
            found = history.get("outputs") or (history.get("view") or {}).get("outputs") or ()
            outputs = tuple(from_json(OutputView, one) for one in found)
            resumed_from = str((history.get("submission") or {}).get("resumed_from") or "")
        except NotFound as error:
            if self._files.status(self._paths.staging(application_id)) is None:
                raise NotFound(f"{application_id} is not in the history any more") from error
            raise DlappError(
                f"{application_id} was killed, and its outputs are not settled: dlapp-status {application_id} does that"
            ) from error
        except (SpecError, ValueError, AttributeError, TypeError) as error:
            raise DlappError(f"the history of {application_id} cannot be read: {error}") from error
        data = b""
        with contextlib.suppress(NotFound):
            data = self._files.read(self._paths.trials(application_id), max_bytes=MAX_RESULTS_BYTES)
        return FormerSweep(data.decode(errors="replace"), outputs, resumed_from)

    def check_not_superseded(self, patience_s: float | None = None) -> None:
        """Raise `Superseded` if another attempt has taken over, or has ended the application."""
        patience_s = self.patience_s if patience_s is None else patience_s
        if (why := _retry_unreachable(self._superseded_reason, patience_s)) is not None:
            raise Superseded(why)

    def claim(self, claim: CommitClaim) -> CommitClaim:
        """Create the commit claim, or return the existing one of another attempt, which then counts.

        Raises:
            Superseded: another attempt owns the application, or owned and ended it.
        """
        self.check_not_superseded()
        place, data = self._place(COMMIT), _as_json(claim)
        if _retry_unreachable(lambda: self._files.write(place, data, OWN_FILE_MODE, once=True), self.patience_s):
            # If we had been suspended before the write, another attempt might have settled and removed the whole
            # directory, and the write would have created it again. If that has not happened by now, the claim is there
            # for any successor.
            self.check_not_superseded()
            return claim
        found = self.claimed()
        if found is None:
            raise Superseded(f"{place} was removed: the application has ended")
        return found

    def claimed(self) -> CommitClaim | None:
        """Return the commit claim; None: there is none."""
        return _retry_unreachable(self._claimed, self.patience_s)

    def _claimed(self) -> CommitClaim | None:
        place = self._place(COMMIT)
        try:
            return from_json(CommitClaim, parse_json(self._files.read(place, max_bytes=MAX_CLAIM_BYTES)))
        except NotFound:
            return None
        except ValueError as error:
            raise DlappError(f"{place} cannot be read: {error}") from error

    def journal(self, _attempt: int) -> HdfsJournalWriter:
        """Return the journal of this attempt, for appending."""
        return self._journal

    def all_journal_lines(self) -> Iterator[str]:
        """Return the lines of all attempts' journals, in order.

        They are read after this attempt's address is in place: until then an earlier attempt that still runs may add
        lines and act on them.

        Raises:
            DlappError: they cannot be read, or the address could not be written in the allowed time.
        """
        with Wait("the staging directory", self.patience_s):
            if not self._published.wait(self.patience_s):
                raise DlappError(f"{self._place(AM)} could not be written for {self.patience_s:.0f} s")
        return _retry_unreachable(lambda: read_lines(self._files, self.directory), self.patience_s)

    # ---- the end ----

    def leftover(self, _container_id: ContainerId, _path: str) -> str | None:
        """Return None: the NodeManager removes a container's directory when it ends."""
        return None

    def clear_leftovers(self, _container_ids: Iterable[ContainerId]) -> None:
        """Do nothing: the NodeManager removes a container's directory when it ends."""

    def commit_times(self, _target: str) -> list[int]:
        """Return an empty result: on HDFS only an output's attribute counts (`dlapp.storage.commit.written`)."""
        return []

    def archive(self) -> None:
        """Write the last view to the history. All earlier writes are complete when this returns.

        If the file system rejects it, only the later display suffers, not the application's end.

        Raises:
            Superseded: another attempt decides how it ended.
        """
        self.close()
        self.check_not_superseded(PATIENCE_S)
        history = to_json({"view": self._last_view, "submission": self._submission})

        def keep() -> None:
            self._files.make(self._paths.all_history, OWN_MODE)
            # First the writes that nothing depends on: the history states that everything is kept.
            for name, place_of in ((USAGE, self._paths.usage), (TRIALS, self._paths.trials)):
                if name in self._last:
                    self._files.write(place_of(self._application_id), self._last[name], OWN_FILE_MODE)
            self._files.write(self._paths.history(self._application_id), history_json(history), OWN_FILE_MODE)

        self._run_logged(lambda: _retry_unreachable(keep))

    def remove(self) -> None:
        """Remove the staging directory: the application has ended, and YARN has recorded it.

        What cannot be removed now is removed by the user's next command.
        """
        self.close()
        self._run_logged(lambda: self._files.remove(self.directory))

    def close(self) -> None:
        """Write what is pending and end the thread. May be repeated."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join()

    # ---- the thread ----

    def _write_all(self) -> None:
        while not self._run_logged(self._begin) and not self._closing:
            time.sleep(AGAIN_S)
        while True:
            with self._changed:
                until = time.monotonic() + GROUP_EVERY_S
                while (left_s := self._wait_s(until)) > 0:
                    self._changed.wait(left_s)
                closing, self._write_requested, self._wrote_at = self._closing, False, time.monotonic()
                due = [USAGE, TRIALS] if time.monotonic() >= self._trials_at + TRIALS_EVERY_S else [USAGE]
                contents = {name: self._unwritten.pop(name) for name in due if name in self._unwritten}
                if TRIALS in contents:
                    self._trials_at = time.monotonic()
                view = self._view if self._is_due() else None
                if view is not None:
                    self._view, self._written, self._written_at = None, _state_summary(view), time.monotonic()
            self._journal.write()
            if closing:
                return
            self._journal.compact_step()
            if time.monotonic() >= self._look_at:
                self._run_logged(self._check_requests)
                self._run_logged(self._check_takeover)
                self._look_at = time.monotonic() + LOOK_EVERY_S
            if view is not None and self.is_current_attempt():
                self._run_logged(lambda view=view: self._write(VIEW, view))
            for name, data in contents.items():
                if self.is_current_attempt():
                    place = self._place(name)
                    self._run_logged(lambda place=place, data=data: self._files.write(place, data, OWN_FILE_MODE))

    def _check_requests(self) -> None:
        """Check for requests from clients that cannot reach the control address: to end or release the application, and
        for views."""
        changed_ms = {name: mtime_ms for name, _, mtime_ms in self._files.entries(self.directory)}
        for name in _REQUESTS:
            if name in changed_ms:
                self._run_logged(lambda name=name: self._check_request(name))
        asked_ms, self._asked_ms = self._asked_ms, changed_ms.get(SUBMISSION)
        if asked_ms is not None and asked_ms != self._asked_ms:
            self._read_until = time.monotonic() + READ_FOR_S

    def _check_request(self, name: str) -> None:
        if name in self._marks_seen or not self._is_request(name):
            return
        try:
            by = "".join(filter(str.isprintable, str(self._read_field(name, "by"))))[:100]
        except ValueError as error:
            # The file's name is the request.
            log.warning(f"the staging directory: {error}")
            by = "an unknown user"
        self._marks_seen.add(name)
        self._put(_REQUESTS[name](by))

    def _is_request(self, name: str) -> bool:
        """Return whether a small file of that name exists and belongs to the application's user."""
        found = self._files.status(self._place(name))
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

    def _check_takeover(self) -> None:
        self._overwritten = False
        if (why := self._superseded_reason()) is not None:
            self._put(Heartbeat(shut_down=why))
        elif self._overwritten:
            self._publish()

    def _superseded_reason(self) -> str | None:
        """Return why this attempt no longer owns the application; None: it does. Once lost, it is never regained."""
        if self._found is None:
            self._found = self._read_superseded_reason()
        return self._found

    def _read_superseded_reason(self) -> str | None:
        place = self._place(AM)
        if (found := self._files.status(place)) is None:
            # Whoever ends an application writes its history before removing the directory, so this also holds for an
            # attempt that was suspended before it had begun. Without a history, it was a clean-up.
            ended = self._files.status(self._paths.history(self._application_id)) is not None
            return "the application has ended" if ended else None
        # Each group of the journal calls this first: do not read an unchanged file again.
        status = found.inode_id, found.modified_ms, found.size_bytes
        if status != self._attempt_read[0]:
            try:
                self._attempt_read = status, int(self._read_field(AM, "attempt"))
            except (TypeError, ValueError) as error:
                # The file names no attempt; the claim alone settles who commits.
                log.warning(f"the staging directory: {error}")
                return None
        there = self._attempt_read[1]
        # An earlier attempt may have been suspended before this write, or its abandoned write arrived late.
        self._overwritten = there < self._attempt
        return f"attempt {there} has the application now" if there > self._attempt else None

    def _is_due(self) -> bool:
        """Return whether a pending view is to be written now."""
        if self._view is None:
            return False
        now = time.monotonic()
        soon = now < self._read_until or _state_summary(self._view) != self._written
        return now >= self._written_at + (VIEW_SOON_S if soon else VIEW_EVERY_S)

    def _wait_s(self, until: float) -> float:
        """Return how long nothing needs to be written, at most until then."""
        now = time.monotonic()
        if self._closing or self._is_due():
            return 0.0
        return (min(until, self._wrote_at + RESULTS_EVERY_S) if self._write_requested else until) - now

    def _begin(self) -> None:
        if (why := self._superseded_reason()) is not None:
            self._put(Heartbeat(shut_down=why))
            return
        self._files.make(self.directory, OWN_MODE)
        self._publish()
        self._write(SUBMISSION, self._submission)
        self._begun.set()

    def _publish(self) -> None:
        self._write(AM, {"attempt": self._attempt, "control_url": self._control_url})
        name = address_name(self._attempt, self._control_url)
        self._files.make(f"{self._place(ADDRESSES)}/{name}", OWN_MODE)  # for tasks
        self._published.set()
        self._put(Published())

    def _run_logged(self, work: Any) -> bool:
        """Run an operation and return whether it succeeded; log an error of the file system and retry with the next
        one."""
        try:
            work()
        except (DlappError, OSError) as error:
            log.warning(f"the staging directory: {error}")
            return False
        return True

    def _write(self, name: str, value: Any) -> None:
        self._files.write(self._place(name), _as_json(value), OWN_FILE_MODE)

    def _place(self, name: str) -> str:
        return f"{self.directory}/{name}"

    def _read_field(self, name: str, field: str) -> Any:
        """Return a field of a file. Raises NotFound, DlappError; ValueError if the file is not dlapp's."""
        data = self._files.read(self._place(name), max_bytes=MAX_REQUEST_BYTES)
        try:
            return parse_json(data)[field]
        except (ValueError, LookupError, TypeError) as error:
            raise ValueError(f"{self._place(name)} cannot be parsed: {error!r}") from error

    def is_current_attempt(self) -> bool:
        """Return True if no other attempt has taken over, or this is unknown; else tell the application's loop."""
        found = [True]
        self._run_logged(lambda: found.insert(0, self.verify_current_attempt()))
        return found[0]

    def verify_current_attempt(self) -> bool:
        """Do the same as `is_current_attempt`, but raise DlappError or OSError if it is unknown."""
        if (why := self._superseded_reason()) is not None:
            self._put(Heartbeat(shut_down=why))
        return why is None

    def request_write(self) -> None:
        """Write the journal's group soon: now, or together with lines that follow shortly after the previous group."""
        with self._changed:
            self._write_requested = True
            self._changed.notify_all()


def _retry_unreachable(work: Callable[[], T], patience_s: float = PATIENCE_S) -> T:
    """Run an operation, and retry it while the file system does not answer; raise its other errors."""
    deadline, wait = time.monotonic() + patience_s, Wait("the staging directory", patience_s)
    try:
        while True:
            try:
                return work()
            except Unreachable as error:
                if time.monotonic() >= deadline:
                    raise
                log.warning(f"the staging directory: {error}; retrying")
                wait.why = str(error)
            wait.begin()
            time.sleep(AGAIN_S)
    finally:
        wait.end()


def _state_summary(view: ApplicationView) -> tuple[object, ...]:
    """Return the part of a view that changes with the application's state, not with every report."""
    phase = view.phase.translate(_NO_DIGITS)
    phases = tuple(one.phase for one in view.containers) if len(view.containers) <= FEW_CONTAINERS else ()
    return view.state, view.cause, view.diagnostics, view.soft_kill_by, view.outputs, phase, phases


def _as_json(value: Any) -> bytes:
    return json.dumps(to_json(value), separators=(",", ":")).encode()
