"""Journal of an application on HDFS: files of lines, merged when there are many.

    journal-<attempt>-<number>.jsonl            a group of lines
    journal-<attempt>-<first>-<last>.jsonl      the lines of all groups with these numbers

HDFS supports append, but only a file that is renamed into place is never incomplete. Results that arrive over hours
make a group each, and a next attempt would have to read them all. So of each level every 32 files are merged into one
of the next level: 10,000 groups need at most 75 files. Merged files are removed, a few at a time, once the file with
their lines exists; a reader skips files covered by another one. So at any moment the files contain each line exactly
once.

If the files of all attempts become large, lines that a next attempt no longer needs are dropped
(`dlapp.am.model.journal_compaction`): all files are read once, and then rewritten in order, each replacing the old one.
"""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from dlapp.am.application_dir.interface import MAX_JOURNAL_BYTES, Superseded
from dlapp.am.model.journal_compaction import JournalCompaction
from dlapp.cluster.yarn.staging import MAX_GROUP_BYTES, OWN_FILE_MODE, StagingFiles
from dlapp.errors import DlappError, NotFound
from dlapp.system.logs import log

MERGED_AT_ONCE = 32
REMOVED_AT_ONCE = 2
"""Number of covered files removed per pass of the writing thread, so that a waiting group is not delayed."""
KEPT_BYTES = 64 << 10
"""Groups up to this size stay in memory until they are merged; larger ones are read again."""
COMPACT_RETRY_S = 60.0
"""Retry interval after HDFS failed to merge or remove files."""
COMPACT_BYTES = 16 << 20
"""Size of this attempt's files from which lines are dropped, and again whenever they have doubled. It equals the memory
of a next attempt, and about 15,000 runs of containers."""
READ_AT_ONCE = 16
LIST_AGAIN = 10
_NAME = re.compile(r"journal-([0-9]{1,12})-([0-9]{1,12})(?:-([0-9]{1,12}))?\.jsonl")


class JournalFile(NamedTuple):
    """File of the journal: the groups from ``first`` to ``last`` of an attempt, with the content, if kept."""

    attempt: int
    first: int
    last: int
    size_bytes: int
    name: str
    data: bytes | None = None


class JournalAppDir(Protocol):
    """Part of the application directory that its journal uses."""

    directory: str

    def is_current_attempt(self) -> bool:
        """Return whether no other attempt has taken over. True if unknown."""

    def verify_current_attempt(self) -> bool:
        """Return whether no other attempt has taken over. Raises DlappError, OSError: not known now."""

    def request_write(self) -> None:
        """Schedule `HdfsJournalWriter.write` on another thread soon."""


def read_lines(files: StagingFiles, directory: str) -> Iterator[str]:
    """Return the complete lines of all attempts' journals, in order, after reading all of them.

    Raises:
        DlappError: they cannot be read, or are too large.
    """
    for _ in range(LIST_AGAIN):
        wanted = needed_files(files.entries(directory))
        if (size := sum(one.size_bytes for one in wanted)) > MAX_JOURNAL_BYTES:
            raise DlappError(
                f"the journal in {directory} has {size} bytes, at most {MAX_JOURNAL_BYTES} are read: "
                "submit the application again"
            )
        try:
            return _lines_of(_contents(files, [f"{directory}/{one.name}" for one in wanted]))
        except NotFound as error:
            missing = error  # an attempt that does not know of us yet has merged some meanwhile
    raise missing


def _contents(files: StagingFiles, places: Sequence[str]) -> deque[bytes]:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(READ_AT_ONCE) as pool:
        return deque(pool.map(lambda place: files.read(place, max_bytes=MAX_GROUP_BYTES), places))


def _lines_of(contents: deque[bytes]) -> Iterator[str]:
    """Yield the lines of files; each is freed before the next, as an ApplicationMaster has little memory."""
    while contents:
        yield from _lines(contents.popleft())


def _lines(data: bytes) -> list[str]:
    """Return the complete lines of a file."""
    return data.decode("utf-8", "replace").split("\n")[:-1]


def needed_files(entries: Iterable[tuple[str, int, int]]) -> list[JournalFile]:
    """Return the files of all journals among the entries of a directory, in order, without covered ones."""
    found = [one for name, size_bytes, _ in entries if (one := _parsed(name, size_bytes)) is not None]
    needed: list[JournalFile] = []
    for one in sorted(found, key=lambda one: (one.attempt, one.first, -one.last)):
        if not needed or (one.attempt, one.last) > (needed[-1].attempt, needed[-1].last):
            needed.append(one)
    return needed


def _parsed(name: str, size_bytes: int) -> JournalFile | None:
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    attempt, first, last = (int(number) for number in (found[1], found[2], found[3] or found[2]))
    return JournalFile(attempt, first, last, size_bytes, name)


class _Compaction:
    """Files that are being compacted.

    Attributes:
        rules: state derived from the lines.
        unread: files yet to be read, in order.
        unwritten: files yet to be rewritten, in order.
    """

    def __init__(self, files: Sequence[JournalFile]) -> None:
        self.rules = JournalCompaction()
        self.unread, self.unwritten = deque(files), deque(files)


class HdfsJournalWriter:
    """Writer of lines to an attempt's journal, in groups written by the directory's thread."""

    def __init__(self, app_dir: JournalAppDir, files: StagingFiles, attempt: int) -> None:
        self._app_dir, self._files, self._attempt = app_dir, files, attempt
        self.added = self.written = 0
        self.on_written: Callable[[], None] = lambda: None
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._waiting: list[str] = []
        self._is_superseded = False
        self._number = 0
        self._levels: list[list[JournalFile]] = [[]]
        self._covered: deque[JournalFile] = deque()
        self._compact_step_at = 0.0
        self._compaction: _Compaction | None = None
        self._compact_at_bytes = COMPACT_BYTES

    def add(self, line: str) -> None:
        """Add a line to the next group."""
        with self._lock:
            self.added += 1
            self._waiting.append(line + "\n")

    def request_write(self) -> None:
        """Have the directory's thread write the added lines soon."""
        self._app_dir.request_write()

    def flush(self, *, durable: bool = False) -> None:
        """Have the thread write the lines soon; with ``durable`` wait until they are durable.

        Raises:
            Superseded: with ``durable``: another attempt owns the application.
        """
        if durable and not self.write():
            log.error("the journal could not be written: the next attempt cannot recover this")
        if durable and self._is_superseded:
            raise Superseded("another attempt has the application now, or has ended it")

    def write(self) -> bool:
        """Write pending lines, as one group or, if too large, as several; False: HDFS does not accept them now.

        If another attempt owns the application, pending lines are dropped: a later attempt would rely on them. And a
        group counts only if no attempt had taken over when it was complete: a write may take minutes, and the next
        attempt, which reads after it has taken over, may have read before the write ended.
        """
        with self._writing:
            with self._lock:
                lines, self._waiting = self._waiting, []
            if not lines:
                return True
            if not self._app_dir.is_current_attempt():
                self._is_superseded = True
                return True
            done = 0
            for group in _groups(lines):
                # Each try has its own number: one that was given up and completes late replaces no other.
                number, self._number = self._number, self._number + 1
                try:
                    self._levels[0].append(self._put(number, number, "".join(group).encode()))
                    if not self._app_dir.verify_current_attempt():
                        self._is_superseded = True
                        return True
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
        """Write the rest, as `write` does."""
        self.write()

    def compact_step(self) -> None:
        """Do one step of compaction: merge files, remove merged ones, drop lines. For one thread at a time."""
        if time.monotonic() < self._compact_step_at:
            return
        try:
            for _ in range(min(REMOVED_AT_ONCE, len(self._covered))):
                self._files.remove(f"{self._app_dir.directory}/{self._covered[0].name}")
                self._covered.popleft()
            if self._compaction is not None or self._size_bytes() >= self._compact_at_bytes:
                self._compact()
            else:
                self._merge()
        except (DlappError, OSError) as error:
            log.warning(f"the journal: {error}")
            self._compaction, self._compact_step_at = None, time.monotonic() + COMPACT_RETRY_S

    def _size_bytes(self) -> int:
        return sum(one.size_bytes for files in self._levels for one in files)

    def _compact(self) -> None:
        """Read, or rewrite, the next file; nothing is merged meanwhile."""
        directory = self._app_dir.directory
        if self._compaction is None:
            self._compaction = _Compaction(needed_files(self._files.entries(directory)))
        work = self._compaction
        if work.unread:
            one = work.unread[0]
            work.rules.process(_lines(self._files.read(f"{directory}/{one.name}", max_bytes=MAX_GROUP_BYTES)))
            work.unread.popleft()
            return
        if not work.unwritten:
            self._compaction, self._compact_at_bytes = None, max(COMPACT_BYTES, 2 * self._size_bytes())
            return
        one = work.unwritten[0]
        before = self._files.read(f"{directory}/{one.name}", max_bytes=MAX_GROUP_BYTES)
        data = "".join(line + "\n" for line in work.rules.needed_lines(_lines(before))).encode()
        if data != before:
            if not self._app_dir.is_current_attempt():
                return
            self._files.write(f"{directory}/{one.name}", data, OWN_FILE_MODE)
            self._replace(one.name, data)
        work.unwritten.popleft()

    def _replace(self, name: str, data: bytes) -> None:
        kept = data if len(data) <= KEPT_BYTES else None
        with self._writing:
            for files in self._levels:
                files[:] = [one._replace(size_bytes=len(data), data=kept) if one.name == name else one for one in files]

    def _merge(self) -> None:
        # The files of a level are in order, and those of a higher level precede them.
        for level, files in enumerate(self._levels):
            if len(files) < MERGED_AT_ONCE:
                continue
            merged, size_bytes = files[:1], files[0].size_bytes
            for one in files[1:MERGED_AT_ONCE]:
                if (size_bytes := size_bytes + one.size_bytes) > MAX_GROUP_BYTES:
                    break
                merged.append(one)
            after = merged[0]
            if len(merged) > 1:
                data = b"".join(map(self._content, merged))
                if not self._app_dir.is_current_attempt():
                    return
                after = self._put(merged[0].first, merged[-1].last, data)._replace(data=None)
                self._covered.extend(merged)
            with self._writing:
                del files[: len(merged)]
            if level + 1 == len(self._levels):
                self._levels.append([])
            self._levels[level + 1].append(after)
            return

    def _content(self, one: JournalFile) -> bytes:
        data = one.data
        if data is None:
            data = self._files.read(f"{self._app_dir.directory}/{one.name}", max_bytes=MAX_GROUP_BYTES)
        if len(data) != one.size_bytes:
            raise DlappError(f"{one.name} has {len(data)} bytes, and was written with {one.size_bytes}")
        return data

    def _put(self, first: int, last: int, data: bytes) -> JournalFile:
        """Write a file. Raises DlappError, OSError."""
        numbers = f"{first:06d}" if first == last else f"{first:06d}-{last:06d}"
        name = f"journal-{self._attempt}-{numbers}.jsonl"
        self._files.write(f"{self._app_dir.directory}/{name}", data, OWN_FILE_MODE)
        kept = data if len(data) <= KEPT_BYTES else None
        return JournalFile(self._attempt, first, last, len(data), name, kept)


def _groups(lines: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield lines in groups within the size limit of a next attempt's reader."""
    start = size = 0
    for place, line in enumerate(lines):
        size += (more := len(line.encode()))
        if size > MAX_GROUP_BYTES and place > start:
            yield lines[start:place]
            start, size = place, more
    yield lines[start:]
