"""Interface of an application directory: what an ApplicationMaster reads and writes there, on any file system."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from dlapp.errors import DlappError

if TYPE_CHECKING:
    from dlapp.am.model.events import Kill, Published, Release, SoftKill
    from dlapp.cluster.engine import Heartbeat
    from dlapp.locations import HdfsPlace
    from dlapp.values.ids import ApplicationId, ContainerId
    from dlapp.values.report import ApplicationView, CommitClaim, OutputView

    Notice = Published | Kill | SoftKill | Release | Heartbeat
    """Event from the directory: tasks of an earlier attempt can find this one; a request to end or release the
    application; another attempt has taken over (``Heartbeat.shut_down``)."""

MAX_JOURNAL_BYTES = 256 << 20
"""Size limit of the journal. A container's run takes about 1,000 bytes, and obsolete lines are dropped
(`dlapp.am.model.journal_compaction`), so 100,000 containers need about 200 MiB, however often they ran."""


class Superseded(DlappError):
    """Another attempt runs the application, or has ended it: this attempt must exit without changing anything."""


class FormerSweep(NamedTuple):
    """Sweep that has ended.

    Args:
        results: results of its trials (`dlapp.sweep.results`); empty: none.
        outputs: locations of its outputs.
        resumed_from: id of the application that it continued; empty: none.
    """

    results: str
    outputs: tuple[OutputView, ...]
    resumed_from: str


class JournalWriter(Protocol):
    """Writer of lines to an attempt's journal, in groups.

    Attributes:
        added, written: number of lines so far.
        on_written: called after another thread than the adding one has written a group.
    """

    added: int
    written: int
    on_written: Callable[[], None]

    def add(self, line: str) -> None:
        """Add a line to the next group, without I/O."""

    def request_write(self) -> None:
        """Write the added lines soon: something waits for them."""

    def flush(self, *, durable: bool = False) -> None:
        """Write the group, now or soon; with ``durable`` it is durable when this returns. A group that cannot be
        written is retried with the next one.

        Raises:
            OSError: the disk rejects it.
            Superseded: with ``durable``: another attempt owns the application, and no line counts any more.
        """

    def close(self) -> None:
        """Write the rest, and close."""


class ApplicationDir(Protocol):
    """The directory of one application, as one attempt uses it.

    Attributes:
        hdfs: file system for its outputs besides local files.
        patience_s: how long a commit waits for an unavailable file system.
        loses_leftovers: the unstored files of a container whose task was killed are deleted with the container.
    """

    hdfs: HdfsPlace | None
    patience_s: float
    loses_leftovers: bool

    def open(self, control_url: str, put: Callable[[Notice], None]) -> None:
        """Publish this attempt's address for tasks of an earlier one, and watch for events here. Does not block.

        Args:
            control_url: address on which this attempt listens.
            put: receives events, from any thread; must not block. `Published` comes once tasks can find this attempt;
                it and the takeover by another attempt may come several times.
        """

    def journal(self, attempt: int) -> JournalWriter:
        """Return the journal of this attempt, for appending."""

    def all_journal_lines(self) -> Iterable[str]:
        """Return the complete lines of all attempts' journals, in order. Raises DlappError."""

    def write_view(self, view: ApplicationView) -> None:
        """Replace the view, now or soon. Raises OSError."""

    def write_report(self, view: ApplicationView) -> None:
        """Write the page of an ended application to a file that users can open; not available on HDFS."""

    def write_usage(self, data: bytes) -> None:
        """Replace the usage history (JSON), now or soon. Raises OSError."""

    def write_trials(self, text: str) -> None:
        """Replace the results of a sweep (`dlapp.sweep.results`), now or soon. Raises OSError."""

    def usage(self) -> Mapping[str, Any]:
        """Return the last written usage history, also that of an earlier attempt; empty: none, or it cannot be read."""

    def former_sweep(self, application_id: ApplicationId) -> FormerSweep:
        """Return the sweep of another, ended application of the user.

        Raises:
            NotFound: the application no longer exists.
            Unreachable: the file system does not answer.
            DlappError: it cannot be read.
        """

    def check_not_superseded(self) -> None:
        """Raise `Superseded` if another attempt has taken over, or has ended the application."""

    def claim(self, claim: CommitClaim) -> CommitClaim:
        """Create the commit claim, or return the existing one of another attempt, which then counts.

        Raises:
            Superseded: another attempt owns the application, or owned and ended it.
        """

    def claimed(self) -> CommitClaim | None:
        """Return the commit claim; None: there is none."""

    def leftover(self, container_id: ContainerId, path: str) -> str | None:
        """Return the path of a killed task's leftovers in its workspace; None: there are none.

        Args:
            container_id: the container; its processes are gone.
            path: relative to the workspace.
        """

    def clear_leftovers(self, container_ids: Iterable[ContainerId]) -> None:
        """Remove the workspaces of containers whose tasks were killed. Their processes are gone."""

    def commit_times(self, target: str) -> list[int]:
        """Return when the user's applications that committed to a target ended [ms since 1970], by the history. Empty
        on HDFS."""

    def archive(self) -> None:
        """Store the last view and the usage history permanently, before the end is reported to the engine. Returns when
        all is written.

        Raises:
            Superseded: another attempt decides how the application ended.
        """

    def remove(self) -> None:
        """Remove files that are not needed once the engine has recorded the end."""
