"""Interface of an application directory: what an ApplicationMaster reads and writes there, wherever it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from dlapp.errors import DlappError

if TYPE_CHECKING:
    from dlapp.am.model.events import Kill, Published, Release, SoftKill
    from dlapp.cluster import Heartbeat
    from dlapp.locations import HdfsPlace
    from dlapp.values.ids import ApplicationId, ContainerId
    from dlapp.values.report import ApplicationView, CommitClaim, OutputView

    Notice = Published | Kill | SoftKill | Release | Heartbeat
    """News from the directory: tasks of an earlier attempt can find this one; a request to end the application, or
    to release it; another attempt has taken over (``Heartbeat.shut_down``)."""

MAX_JOURNAL_BYTES = 256 << 20
"""The largest journal that is read. A run of a container has some 1,000 bytes, and lines that are not needed any more
are left out (`dlapp.am.model.journal_compaction`), so 100,000 containers have some 200 MiB, however often they ran."""


class Superseded(DlappError):
    """Another attempt runs the application, or has ended it: whoever meets this ends, and touches nothing."""


class FormerSweep(NamedTuple):
    """A sweep that has ended.

    Args:
        results: of its trials (`dlapp.sweep.results`); empty: there are none.
        outputs: where they are.
        resumed_from: id of the application that it went on from; empty: none.
    """

    results: str
    outputs: tuple[OutputView, ...]
    resumed_from: str


class JournalWriter(Protocol):
    """Appends lines to an attempt's journal, in groups.

    Attributes:
        added, written: how many lines so far.
        on_written: called after a group was written by another thread than that which adds.
    """

    added: int
    written: int
    on_written: Callable[[], None]

    def add(self, line: str) -> None:
        """Put a line into the next group; it costs nothing."""

    def hurry(self) -> None:
        """Write soon what was added: somebody waits for it."""

    def flush(self, *, durable: bool = False) -> None:
        """Write the group, now or soon; with ``durable`` it is on record when this returns. A group that cannot be
        written is tried again with the next.

        Raises:
            OSError: the disk does not take it.
            Superseded: with ``durable``: another attempt has the application, and no line counts any more.
        """

    def close(self) -> None:
        """Write what is left, and close."""


class ApplicationDir(Protocol):
    """The directory of one application, as one attempt uses it.

    Attributes:
        hdfs: where its outputs may go besides local files.
        patience_s: how long a commit waits for a file system that does not answer.
        loses_leftovers: what a container whose task was killed had not stored is deleted with it.
    """

    hdfs: HdfsPlace | None
    patience_s: float
    loses_leftovers: bool

    def open(self, control_url: str, put: Callable[[Notice], None]) -> None:
        """Let tasks of an earlier attempt find this one, and watch for what others leave here. Returns at once.

        Args:
            control_url: where this attempt listens.
            put: takes what is learned, from any thread; must not block. `Published` comes once tasks can find this
                attempt; it and that another attempt has taken over may come several times.
        """

    def journal(self, attempt: int) -> JournalWriter:
        """Return the journal of this attempt, to append to."""

    def all_journal_lines(self) -> Iterable[str]:
        """Return the complete lines of all attempts' journals, in order. Raises DlappError."""

    def write_view(self, view: ApplicationView) -> None:
        """Replace the view, now or soon. Raises OSError."""

    def write_report(self, view: ApplicationView) -> None:
        """Write the page of an application that has ended, where users can open it as a file; on HDFS they cannot."""

    def write_usage(self, data: bytes) -> None:
        """Replace the use of the containers over time, in JSON, now or soon. Raises OSError."""

    def write_trials(self, text: str) -> None:
        """Replace the results of a sweep (`dlapp.sweep.results`), now or soon. Raises OSError."""

    def usage(self) -> Mapping[str, Any]:
        """Return the use that was written last, also by an earlier attempt; empty: there is none, or it cannot be
        read."""

    def former_sweep(self, application_id: ApplicationId) -> FormerSweep:
        """Return the sweep of another application of the user, which has ended.

        Args:
            application_id: of the application.

        Raises:
            NotFound: there is no such application any more.
            Unreachable: the file system does not answer.
            DlappError: it cannot be read.
        """

    def check_ours(self) -> None:
        """Raise `Superseded` where another attempt has taken over, or has ended the application."""

    def claim(self, claim: CommitClaim) -> CommitClaim:
        """Make the commit claim, or learn which attempt was first: the answer is the claim that counts.

        Raises:
            Superseded: another attempt has the application, or had it and has ended it.
        """

    def claimed(self) -> CommitClaim | None:
        """Return the commit claim; None: nobody made one."""

    def leftover(self, container_id: ContainerId, path: str) -> str | None:
        """Return the path of what a container whose task was killed left in its workspace; None: nothing is there.

        Args:
            container_id: the container; its processes are gone.
            path: relative to the workspace.
        """

    def clear_leftovers(self, container_ids: Iterable[ContainerId]) -> None:
        """Remove the workspaces of containers whose tasks were killed. Their processes are gone."""

    def commit_times(self, target: str) -> list[int]:
        """Return when applications of the user ended that committed to a target [ms since 1970], by the history. On
        HDFS none is known."""

    def keep(self) -> None:
        """Put the last view and the use where they stay, before the engine is told of the end. All is written when this
        returns.

        Raises:
            Superseded: it is another attempt's to say how the application ended.
        """

    def remove(self) -> None:
        """Remove what nobody needs once the engine has the end on record."""
