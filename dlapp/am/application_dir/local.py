"""Application directory on this machine.

Its files are read while they are written: every file except the journal is replaced atomically by a rename, and a file
that decides something is durable before the rename.

    submission.json  secrets.json     what was submitted
    view.json                         what tools show
    usage.json                        the use of the containers over time
    trials.jsonl                      the results of a sweep
    journal-<attempt>.jsonl           what happened, for a next attempt
    report.html                       the page of an application that has ended
    commit.json                       the commit claim: created once, never changed
    kill.json                         a user requested dlapp-kill
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from dlapp.am.application_dir.interface import MAX_JOURNAL_BYTES, FormerSweep
from dlapp.am.model.events import Kill, Published
from dlapp.am.model.journal_compaction import JournalCompaction
from dlapp.errors import DlappError, NotFound, UsageError
from dlapp.locations import HdfsPlace
from dlapp.storage.tree import explaining
from dlapp.sweep.spec import MAX_RESULTS_BYTES
from dlapp.system import clock, files
from dlapp.system.files import UntrustedFile, remove_tree
from dlapp.system.logs import log
from dlapp.system.short_tmpdir import remove_stale_links
from dlapp.values.ids import ApplicationId, ContainerId
from dlapp.values.report import ApplicationView, CommitClaim, ContainerView
from dlapp.values.serialization import from_json, to_json
from dlapp.values.spec import Secrets, Submission
from dlapp.values.usage import UsageHistory

if TYPE_CHECKING:
    from dlapp.am.application_dir.interface import Notice
    from dlapp.sweep.results import SweepResults

T = TypeVar("T")
MAX_BYTES = 64 << 20
"""The largest file that is read here."""
SETTLED_WITHIN_S, _LOOK_AGAIN_S = 600.0, 0.1
"""How long to wait for the settlement of another application's outputs: for a killed one that takes as long as its file
systems are unavailable, and is retried."""
COMPACT_BYTES = 16 << 20
"""Size at which obsolete lines of a journal are dropped; this is repeated whenever the size has doubled."""
_APPENDING, _MODE = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640


class LocalApplicationDir:
    """Files of one application, in a local directory.

    Args:
        hdfs, patience_s: see `ApplicationDir`.
    """

    loses_leftovers = False

    def __init__(self, directory: str, hdfs: HdfsPlace | None = None, patience_s: float = 0.0) -> None:
        self.directory, self.hdfs, self.patience_s = directory, hdfs, patience_s

    def open(self, control_url: str, put: Callable[[Notice], None]) -> None:
        """Record that tasks can find this attempt. Later requests to end the application arrive at its control
        address."""
        put(Published())
        if (by := self.kill_request()) is not None:
            put(Kill(by))

    def submission(self) -> Submission:
        """Return the submission. Raises NotFound, DlappError if it cannot be read."""
        return self._read("submission.json", Submission)

    def secrets(self) -> Secrets:
        """Return the secrets. Raises NotFound, DlappError if they cannot be read."""
        return self._read("secrets.json", Secrets)

    def view(self) -> ApplicationView | None:
        """Return the last written view; None: none yet."""
        try:
            return self._read("view.json", ApplicationView)
        except NotFound:
            return None

    def write_view(self, view: ApplicationView) -> None:
        """Replace the view. Not synced: after a power failure the outcome counts, not the view."""
        self._replace("view.json", json.dumps(to_json(view), separators=(",", ":")).encode())

    def write_report(self, view: ApplicationView) -> None:
        """Write the report page of an ended application, for its owner: it quotes logs.

        A failure is only logged: dlapp-report can generate it, too.
        """
        from dlapp.pages.report import TAIL_BYTES, TAIL_LINES, Sources, report
        from dlapp.system.logs.log_files import last_lines

        def log_tail(one: ContainerView, stream: str) -> bytes:
            path = self._path(f"containers/{one.container_id}/{stream}")
            return last_lines(path, TAIL_LINES, TAIL_BYTES) or b""

        try:
            sources = Sources(self.submission, self._usage_history, log_tail, self._sweep_results)
            text = report(view, clock.now_ms(), sources)
            self._replace("report.html", text.encode(errors="replace"), _open_own)
        except (OSError, DlappError) as error:
            log.warning(f"the report cannot be written: {error}")

    def _sweep_results(self) -> SweepResults:
        """Return the last written results of a sweep.

        Raises:
            OSError: they do not exist, or are another user's.
            DlappError: they cannot be read.
        """
        from dlapp.sweep.results import read_results

        data = self._own_file("trials.jsonl", MAX_RESULTS_BYTES)
        try:
            return read_results(data.decode(errors="replace"))
        except ValueError as error:
            raise DlappError(f"{self._path('trials.jsonl')} cannot be read: {error}") from error

    def _usage_history(self) -> UsageHistory:
        """Return the last written usage history. Raises DlappError if it cannot be read."""
        with contextlib.suppress(NotFound):
            return self._read("usage.json", UsageHistory)
        return UsageHistory()

    def write_usage(self, data: bytes) -> None:
        """Replace the usage history, in the same way as the view."""
        self._replace("usage.json", data)

    def write_trials(self, text: str) -> None:
        """Replace the results of a sweep, in the same way as the view."""
        self._replace("trials.jsonl", text.encode())

    def usage(self) -> Mapping[str, Any]:
        """Return the last written usage history; empty: none, or it cannot be read."""
        try:
            return self._object("usage.json")
        except (OSError, ValueError, DlappError) as error:
            if not isinstance(error, FileNotFoundError):
                log.warning(f"the usage of the containers so far cannot be read: {error}")
            return {}

    def former_sweep(self, application_id: ApplicationId) -> FormerSweep:
        """Return the sweep of another application of the user.

        It has ended, but if all its processes were killed, the runner may still be settling its outputs; their state is
        known with its outcome.
        """
        other = LocalApplicationDir(os.path.join(os.path.dirname(self.directory), str(application_id)))
        if not os.path.isdir(other.directory):
            raise NotFound(f"{application_id} is not there any more")
        until = time.monotonic() + SETTLED_WITHIN_S
        while not os.path.lexists(other._path("outcome.json")):
            if time.monotonic() >= until:
                raise DlappError(f"{application_id} has ended, and its outputs are not settled: see its am.log")
            time.sleep(_LOOK_AGAIN_S)
        view, path = other.view(), other._path("trials.jsonl")
        try:
            data = files.read_file(path, max_bytes=MAX_RESULTS_BYTES)
        except FileNotFoundError:
            data = b""
        except (OSError, UntrustedFile) as error:
            raise DlappError(f"{path} cannot be read: {error}") from error
        outputs = view.outputs if view is not None else ()
        return FormerSweep(data.decode(errors="replace"), outputs, other.submission().resumed_from)

    def check_not_superseded(self) -> None:
        """Do nothing: on one machine the next attempt begins when this one's process is dead."""

    def claim(self, claim: CommitClaim) -> CommitClaim:
        """Create the commit claim, or return the existing one of another attempt, which then counts.

        Raises:
            DiskFull: there is no space for it; no claim exists.
        """
        temporary, path = self._path(f".commit.{os.getpid()}"), self._path("commit.json")
        with explaining(path, "written"):
            try:
                with open(temporary, "w", encoding="utf-8") as file:
                    json.dump(to_json(claim), file, separators=(",", ":"))
                    file.flush()
                    os.fsync(file.fileno())
                with contextlib.suppress(FileExistsError):
                    os.link(temporary, path)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary)
        files.sync_directory(self.directory)
        return self._read("commit.json", CommitClaim)

    def claimed(self) -> CommitClaim | None:
        """Return the commit claim; None: there is none."""
        try:
            return self._read("commit.json", CommitClaim)
        except NotFound:
            return None

    def kill_request(self) -> str | None:
        """Return the user who requested dlapp-kill; None: nobody."""
        try:
            return str(self._object("kill.json")["by"])
        except FileNotFoundError:
            return None

    def leftover(self, container_id: ContainerId, path: str) -> str | None:
        """Return the path of a killed task's leftovers in its workspace, for ``.`` of all; None: there are none."""
        root = os.path.realpath(self._path(f"containers/{container_id}/workspace"))
        found = os.path.realpath(os.path.join(root, path))
        # A link may point outside; such a target is not lost with the workspace.
        is_inside = found.startswith(f"{root}/") or path == "."
        return found if is_inside and os.path.exists(found) else None

    def clear_leftovers(self, container_ids: Iterable[ContainerId]) -> None:
        """Remove the workspaces, HOME and TMPDIR of containers whose tasks were killed. Their processes are gone."""
        for container_id in container_ids:
            for name in ("workspace", "trials", "board", "home", "tmp", "run", "python"):
                with contextlib.suppress(DlappError, OSError):
                    remove_tree(self._path(f"containers/{container_id}/{name}"))
        with contextlib.suppress(OSError):  # a user without access to /tmp has nothing there
            remove_stale_links()

    def container_ids(self) -> list[ContainerId]:
        """Return the containers that have a directory."""
        found = []
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(self._path("containers")):
                with contextlib.suppress(UsageError):
                    found.append(ContainerId.from_text(name))
        return found

    def commit_times(self, target: str) -> list[int]:
        """Return when the user's applications that committed to a target ended [ms since 1970], by their views."""
        times = []
        above = os.path.dirname(self.directory)
        for name in os.listdir(above):
            if os.path.join(above, name) == self.directory:
                continue
            # Ignore a damaged directory, or another user's.
            with contextlib.suppress(DlappError, OSError, ValueError):
                view = LocalApplicationDir(os.path.join(above, name)).view()
                if view is not None and view.finished_ms is not None:
                    times += [view.finished_ms for one in view.outputs if one.committed and one.target == target]
        return times

    def archive(self) -> None:
        """Do nothing: the view stays where it is."""

    def remove(self) -> None:
        """Do nothing: the runner removes the directories of old applications."""

    def journal(self, attempt: int) -> LocalJournalWriter:
        """Return the journal of one attempt, for appending."""
        return LocalJournalWriter(self._path(f"journal-{attempt}.jsonl"))

    def all_journal_lines(self) -> list[str]:
        """Return the complete lines of all attempts' journals, in order; a truncated line is ignored.

        Raises:
            DlappError: a journal is not a file of this user, or is too large.
        """
        lines: list[str] = []
        with files.closing_fd(files.open_directory(self.directory)) as fd:
            for attempt in itertools.count(1):
                name = f"journal-{attempt}.jsonl"
                path, owners = self._path(name), {os.geteuid()}
                try:
                    data = files.read_file(name, dir_fd=fd, path=path, owners=owners, max_bytes=MAX_JOURNAL_BYTES)
                except FileNotFoundError:
                    break
                except OSError as error:
                    why = error.problem if isinstance(error, UntrustedFile) else error.strerror
                    raise DlappError(f"{path} cannot be read: {why}") from error
                lines += data.decode("utf-8", "replace").split("\n")[:-1]
        return lines

    def _path(self, name: str) -> str:
        return os.path.join(self.directory, name)

    def _object(self, name: str) -> dict[str, Any]:
        """Return the JSON object in a file that only this user can have written.

        Raises:
            FileNotFoundError: it does not exist.
            UntrustedFile: it is not such a file, or is another user's.
        """
        return files.json_object(self._own_file(name, MAX_BYTES), path=self._path(name))

    def _own_file(self, name: str, max_bytes: int) -> bytes:
        """Return a file that only this user can have written; errors as of `_object`."""
        with files.closing_fd(files.open_directory(self.directory)) as fd:
            owners = {os.geteuid()}
            return files.read_file(name, dir_fd=fd, path=self._path(name), owners=owners, max_bytes=max_bytes)

    def _replace(self, name: str, data: bytes, opener: Callable[[str, int], int] | None = None) -> None:
        temporary = self._path(f".{name.partition('.')[0]}.{os.getpid()}")
        with open(temporary, "wb", opener=opener) as file:
            file.write(data)
        os.rename(temporary, self._path(name))

    def _read(self, name: str, kind: type[T]) -> T:
        path = self._path(name)
        try:
            return from_json(kind, self._object(name))
        except FileNotFoundError as error:
            raise NotFound(f"{path} is not there") from error
        except UntrustedFile as error:
            raise DlappError(f"{path} cannot be read: {error.problem}") from error
        except ValueError as error:  # includes SpecError, a ValueError
            raise DlappError(f"{path} cannot be read: {error}") from error


def _open_own(path: str, flags: int) -> int:
    """Open a file that only its owner may read."""
    return os.open(path, flags, 0o600)


class LocalJournalWriter:
    """Writer of lines to an attempt's journal, in groups: `add` costs nothing, `flush` is one write.

    A journal that has grown is rewritten without the lines that a next attempt no longer needs. Containers of earlier
    attempts, whose journals stay unchanged, keep theirs.
    """

    def __init__(self, path: str) -> None:
        self.added = self.written = 0
        self.on_written: Callable[[], None] = lambda: None
        self._path, self._fd = path, os.open(path, _APPENDING, _MODE)
        self._size_bytes, self._compact_at_bytes = os.fstat(self._fd).st_size, COMPACT_BYTES
        self._waiting: list[str] = []
        self._left = b""

    def add(self, line: str) -> None:
        """Add a line to the next group."""
        self.added += 1
        self._waiting.append(line + "\n")

    def request_write(self) -> None:
        """Do nothing: the loop flushes after each round."""

    def flush(self, *, durable: bool = False) -> None:
        """Write the group; with ``durable`` it is synced when this returns. After an error the next call tries
        again."""
        self._left += "".join(self._waiting).encode()
        self._waiting.clear()
        while self._left:
            count = os.write(self._fd, self._left)
            self._left = self._left[count:]
            self._size_bytes += count
        self.written = self.added
        if durable:
            os.fdatasync(self._fd)
        if self._size_bytes >= self._compact_at_bytes:
            self._compact()

    def _compact(self) -> None:
        try:
            self._rewrite()
        except (OSError, DlappError) as error:
            log.warning(f"{self._path} could not be compacted, it has {self._size_bytes >> 20} MiB: {error}")
        self._compact_at_bytes = max(COMPACT_BYTES, 2 * self._size_bytes)

    def _rewrite(self) -> None:
        directory, _, name = self._path.rpartition("/")
        with files.closing_fd(files.open_directory(directory)) as above:
            data = files.read_file(name, dir_fd=above, path=self._path, max_bytes=MAX_JOURNAL_BYTES)
            lines = data.decode("utf-8", "replace").split("\n")[:-1]
            rules = JournalCompaction()
            rules.process(lines)
            data = "".join(line + "\n" for line in rules.needed_lines(lines)).encode()
            temporary = f".{name}.{os.getpid()}"
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=above)
            fd = os.open(temporary, _APPENDING | os.O_EXCL | os.O_NOFOLLOW, _MODE, dir_fd=above)
            try:
                files.write_all(fd, data)
                os.fdatasync(fd)
                os.rename(temporary, name, src_dir_fd=above, dst_dir_fd=above)
            except BaseException:
                os.close(fd)
                os.unlink(temporary, dir_fd=above)
                raise
            os.close(self._fd)
            self._fd, self._size_bytes = fd, len(data)
            os.fsync(above)

    def close(self) -> None:
        """Write the rest, and close."""
        try:
            self.flush()
        finally:
            os.close(self._fd)
