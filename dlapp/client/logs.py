"""Reading the payloads' output: all of it, the last lines, or as it grows. Bytes are not modified.

A piece is what was read from one stream at one moment, with lines cut anywhere; an empty piece marks the end of its
stream. No file is kept open between two reads, so thousands of containers can be followed at once.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import IO, TYPE_CHECKING, NamedTuple

from dlapp.client.log_order import TimedData, in_time_order
from dlapp.cluster.engine import LogFiles
from dlapp.errors import DlappError, NotFound, Unreachable, UsageError
from dlapp.login import Login, own_login
from dlapp.system import files
from dlapp.system.logs import log_times
from dlapp.system.logs.log_files import PIECE_BYTES, offset_of_last_lines, open_log
from dlapp.system.logs.log_times import LogTimes
from dlapp.value import replace
from dlapp.values.ids import ContainerId
from dlapp.values.spec import DEFAULT_ROLE

if TYPE_CHECKING:
    from dlapp.cluster.yarn.logs.pages import GrowingPage
    from dlapp.hadoop.web import Web


STREAMS = ("stdout", "stderr")
HELD_LINE_BYTES = 1 << 20
"""Length from which an incomplete line is buffered in a file, so that a program without line ends uses no memory."""


class LogPiece(NamedTuple):
    """Bytes of one stream of one container; empty at the end of the stream.

    ``time_ms``: time by which they had been written, approximately; None if unknown or not requested.
    """

    log: LogFiles
    stream: str
    data: bytes
    time_ms: int | None = None


class GrowingFile:
    """A file that another process appends to, or will create; ``offset`` is the end of the last piece."""

    def __init__(self, path: str, *, last_lines: int | None = None, last_bytes: int | None = None) -> None:
        self.path, self._last_lines, self._last_bytes = path, last_lines, last_bytes
        self.offset = 0

    def moved(self, url: str) -> None:
        """Switch to the new location of the file: a node uploads its logs when the application has ended."""
        self.path = path_of(url)

    def pieces(self, *, ended: bool = False) -> Iterator[bytes]:
        """Yield what was added since the last call; nothing while the file does not exist."""
        if (descriptor := open_log(self.path)) is None:
            return
        with files.closing_fd(descriptor):
            size = os.fstat(descriptor).st_size
            if size <= self.offset:
                return
            if self._last_lines is not None:
                least = 0 if self._last_bytes is None else max(0, size - self._last_bytes)
                self.offset = offset_of_last_lines(descriptor, size, self._last_lines, least)
                self._last_lines = None
            while data := os.pread(descriptor, PIECE_BYTES, self.offset):
                self.offset += len(data)
                yield data

    def tail(self, most_bytes: int, *, ended: bool = False) -> bytes | None:
        """Return its last bytes, independently of `pieces`; None if it does not exist.

        Raises:
            NotFound: it is not a regular file.
        """
        if (descriptor := open_log(self.path)) is None:
            return None
        with open(descriptor, "rb", buffering=0) as file:
            file.seek(max(0, os.fstat(descriptor).st_size - most_bytes))
            return read_at_most(iter(lambda: file.read(PIECE_BYTES), b""), most_bytes)


class Logs:
    """Opener of logs by their URLs: local files, and web pages of containers on YARN, which share connections.

    Args:
        last_lines: start with this number of last lines of each; None for all.
        last_bytes: search for these lines only in this number of last bytes; None for no limit.
        aggregated: returns a container's complete log if no server shows it any more; None if it does not exist.
        patience_s: how long from now a log of an ended application may be missing, while it is being aggregated.
        login: identity for requesting pages.
        certificates: CA certificates (PEM) of the nodes' web servers; empty: OpenSSL's default.
    """

    def __init__(
        self,
        last_lines: int | None = None,
        aggregated: Callable[[LogFiles, str], Iterator[bytes] | None] = lambda _log, _stream: None,
        patience_s: Callable[[], float] = lambda: 0.0,
        login: Callable[[], Login] = own_login,
        certificates: Callable[[], str] = lambda: "",
        *,
        last_bytes: int | None = None,
    ) -> None:
        self._last_lines, self._last_bytes = last_lines, last_bytes
        self._aggregated, self._patience_s = aggregated, patience_s
        self._login, self._certificates = login, certificates
        self._web: Web | None = None

    def open(self, log: LogFiles, stream: str) -> GrowingFile | GrowingPage:
        """Open one log of a container."""
        url = log.files[stream]
        if not log.problem and not url.startswith(("http://", "https://")):
            return GrowingFile(path_of(url), last_lines=self._last_lines, last_bytes=self._last_bytes)
        from dlapp.cluster.yarn.logs.pages import TIMEOUT_S, GrowingPage
        from dlapp.hadoop.web import Web

        if self._web is None:
            certificates = self._certificates() if url.startswith("https") else ""
            self._web = Web(TIMEOUT_S, certificates, accept="text/plain")
        return GrowingPage(
            url,
            self._login(),
            self._web,
            last_lines=self._last_lines,
            last_bytes=self._last_bytes,
            aggregated=lambda: self._aggregated(log, stream),
            patience_s=self._patience_s,
            problem=log.problem,
        )

    def close(self) -> None:
        """Close the connections."""
        if self._web is not None:
            self._web.close()


def of_generation(log: LogFiles, number: int) -> LogFiles:
    """Return the logs of an earlier generation of a gang, which the task has renamed."""
    files = dict(log.files)
    for name in (*STREAMS, log_times.NAME):
        before, there, after = files.get(name, "").rpartition(f"/{name}")
        if there:
            files[name] = f"{before}{log_times.former_name(there, number)}{after}"
    return replace(log, files=files)


def of_trial(log: LogFiles, name: str) -> LogFiles:
    """Return the logs of a trial, which are beside those of its container.

    Args:
        name: the name of the trial's try (`dlapp.values.ids.trial_part`).
    """
    files = {}
    for stream in STREAMS:
        before, there, after = log.files.get(stream, "").rpartition(f"/{stream}")
        if there:
            files[stream] = f"{before}/{name}.{stream}{after}"
    return replace(log, files=files)


def path_of(url: str) -> str:
    """Return the local path of a ``file://`` URL."""
    from urllib.parse import unquote_to_bytes

    scheme, _, rest = url.partition("://")
    if scheme != "file":
        raise UsageError(f"{url} cannot be read from here")
    return os.fsdecode(unquote_to_bytes(rest))


class _ContainerLogs:
    """Logs of one container, whose new content is read repeatedly.

    Args:
        timed: merge by time; each piece has its time.
        missing: called once for each log that does not exist.
    """

    def __init__(
        self, log: LogFiles, opened: Logs, streams: Sequence[str], timed: bool, missing: Callable[[str], None]
    ) -> None:
        self._log, self._opened, self._missing = log, opened, missing
        self._names = (*streams, log_times.NAME) if timed else tuple(streams)
        self._timed = timed
        self._growing: dict[str, GrowingFile | GrowingPage] = {}
        self._reported: set[str] = set()
        self._has_read_times = False
        self._held: dict[str, tuple[int, bytes]] = {}
        self._held_until: dict[str, int] = {}

    def found(self, log: LogFiles) -> None:
        """Set the current log locations from the engine."""
        known, self._log = self._log, log
        for name in self._names:
            if name not in log.files:
                continue
            if name not in self._growing or known.problem != log.problem:
                self._growing[name] = self._opened.open(log, name)
            elif known.files[name] != log.files[name]:
                self._growing[name].moved(log.files[name])

    def pieces(self, *, ended: bool, last: bool) -> Iterator[LogPiece]:
        """Yield new content.

        Args:
            ended: whether the application has ended.
            last: whether this is the last read, so that the ends of the streams are reported.
        """
        streams = [name for name in self._growing if name != log_times.NAME]
        if not self._timed:
            for stream in streams:
                for _, data in self._new_content(stream, ended, last):
                    yield LogPiece(self._log, stream, data)
                if last:
                    yield LogPiece(self._log, stream, b"")
            return
        sources = {stream: chain(self._pop_held(stream), self._new_content(stream, ended, last)) for stream in streams}
        for part in in_time_order(sources, lambda: self._read_times(ended, last)):
            if not last and (not part.data or self._hold(part)):
                continue
            for _, data in self._pop_held(part.stream):
                yield LogPiece(self._log, part.stream, data)
            yield LogPiece(self._log, part.stream, part.data, part.time_ms)

    def _new_content(self, stream: str, ended: bool, last: bool) -> Iterator[tuple[int, bytes]]:
        growing = self._growing[stream]
        try:
            for data in growing.pieces(ended=ended):
                if data:  # zero: the last lines are no lines
                    yield growing.offset - len(data), data
        except (NotFound, files.UntrustedFile) as error:
            self._report_once(stream, str(error))
        except Unreachable as error:
            if last:
                raise
            self._report_once(stream, f"{error}; it is tried again")
        else:
            self._reported.discard(stream)

    def _report_once(self, stream: str, problem: str) -> None:
        if stream not in self._reported:
            self._reported.add(stream)
            self._missing(f"{stream} of container {self._log.index}: {problem}")

    def _hold(self, part: TimedData) -> bool:
        """Keep content that is newer than the index until the next read, once."""
        offset, held = self._held.get(part.stream, (part.offset, b""))
        if (
            part.time_ms is not None
            or not self._has_read_times
            or part.offset < self._held_until.get(part.stream, 0)
            or len(held) + len(part.data) > PIECE_BYTES
        ):
            return False
        self._held[part.stream] = offset, held + part.data
        return True

    def _pop_held(self, stream: str) -> list[tuple[int, bytes]]:
        held = self._held.pop(stream, None)
        if held is None:
            return []
        self._held_until[stream] = held[0] + len(held[1])
        return [held]

    def _read_times(self, ended: bool, last: bool) -> LogTimes | None:
        """Read the index: completely at first, then only its end, since only new content needs times."""
        most = log_times.TAIL_BYTES if self._has_read_times else log_times.MAX_BYTES
        times = self._growing.get(log_times.NAME)
        try:
            data = None if times is None else times.tail(most, ended=ended)
        except NotFound:
            data = None  # the program has replaced it
        except Unreachable:
            if last:
                raise
            data = None
        self._has_read_times = data is not None
        return None if data is None else LogTimes(data)


def read_logs(
    poll: Callable[[], tuple[bool, Sequence[LogFiles]]],
    *,
    streams: Sequence[str] = STREAMS,
    wanted: Callable[[LogFiles], bool] = lambda _: True,
    opened: Logs | None = None,
    times: bool = False,
    follow: bool = False,
    pause: Callable[[int], None] = lambda _: None,
    missing: Callable[[str], None] = lambda _: None,
) -> Iterator[LogPiece]:
    """Read all existing logs; stdout and stderr of a container in the order in which they were written.

    Args:
        poll: returns whether the application has ended (asked first, so that nothing is written after a yes) and the
            log locations.
        streams: names of the logs to read.
        wanted: selects the containers to read.
        opened: opens logs, and is closed at the end; None to read all of each from its location.
        times: include the time of each piece; if both streams are read, it is always included.
        follow: continue until the application has ended.
        pause: called before each further read with the number of reads since the last piece.
        missing: called with a line for each missing log of an ended application; and for each that cannot be read now
            while its application runs, which is retried.
    """
    known_logs: dict[ContainerId, _ContainerLogs] = {}
    timed = set(streams) == set(STREAMS) or (times and set(streams) <= set(STREAMS))
    opened, quiet = opened or Logs(), 0
    while True:
        ended, logs = poll()
        for log in filter(wanted, logs):
            if log.container_id not in known_logs:
                known_logs[log.container_id] = _ContainerLogs(log, opened, streams, timed, missing)
            known_logs[log.container_id].found(log)
        last, quiet = ended or not follow, quiet + 1
        for one in known_logs.values():
            for piece in one.pieces(ended=ended, last=last):
                quiet = 0
                yield piece
        if last:
            opened.close()
            return
        pause(quiet)


def pieces_since(pieces: Iterable[LogPiece], since_ms: int) -> Iterator[LogPiece]:
    """Drop the lines that were complete before a time. Pieces without a time stay.

    Of a line of more than `HELD_LINE_BYTES` that was completed later, the beginning is also dropped.

    Args:
        pieces: with their times.
        since_ms: the time [ms since 1970].
    """
    begun: dict[tuple[ContainerId, str], bytes] = {}  # of an incomplete line
    for piece in pieces:
        key = (piece.log.container_id, piece.stream)
        if piece.data and piece.time_ms is not None and piece.time_ms < since_ms:
            _, end, rest = piece.data.rpartition(b"\n")
            begun[key] = ((b"" if end else begun.get(key, b"")) + rest)[-HELD_LINE_BYTES:]
            continue
        left = begun.pop(key, b"")
        yield piece._replace(data=left + piece.data) if piece.data else piece


class LineMerger:
    """Joiner of the streams of several containers: whole lines, each with its container as prefix.

    An incomplete line is held: in memory, and once it is longer than `HELD_LINE_BYTES` in a temporary file.
    """

    def __init__(self) -> None:
        self._rest: dict[tuple[ContainerId, str], bytes] = {}
        self._long: dict[tuple[ContainerId, str], IO[bytes]] = {}

    def lines(self, piece: LogPiece) -> list[bytes]:
        """Yield the lines that ``piece`` completes, without line ends; the rest of an ended stream is a line as
        well.
        """
        begin, lines = self._split(piece)
        if begin is not None:
            with begin:
                lines[0] = begin.read() + lines[0]
        return lines

    def merged(self, pieces: Iterable[LogPiece], prefix: Callable[[LogPiece], bytes] | None = None) -> Iterator[bytes]:
        """Yield the lines of ``pieces``, each with its prefix (None: `prefix_of`) and line end."""
        prefix = prefix or prefix_of
        for piece in pieces:
            begin_of_line = prefix(piece)
            begin, lines = self._split(piece)
            if begin is not None:
                with begin:
                    yield begin_of_line
                    while data := begin.read(PIECE_BYTES):
                        yield data
                    yield lines.pop(0) + b"\n"
            if text := b"".join(begin_of_line + line + b"\n" for line in lines):
                yield text

    def _split(self, piece: LogPiece) -> tuple[IO[bytes] | None, list[bytes]]:
        """Return the lines that ``piece`` completes, and a file with the beginning of the first one if that is long."""
        key = (piece.log.container_id, piece.stream)
        lines = (self._rest.pop(key, b"") + piece.data).split(b"\n")
        rest = self._kept(key, lines.pop())
        ended = not piece.data
        begin = self._long.pop(key, None) if lines or ended else None
        if ended and (rest or (begin is not None and not lines)):
            lines.append(rest)
        elif len(rest) > HELD_LINE_BYTES:
            self._keep_long(piece, rest)
        elif rest:
            self._rest[key] = rest
        if begin is not None:
            begin.seek(0)
        return begin, lines

    def _kept(self, _key: tuple[ContainerId, str], rest: bytes) -> bytes:
        """Return the held part of an incomplete line."""
        return rest

    def _keep_long(self, piece: LogPiece, rest: bytes) -> None:
        import tempfile

        key = (piece.log.container_id, piece.stream)
        try:
            if key not in self._long:
                self._long[key] = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
            left = memoryview(rest)
            while left:
                left = left[self._long[key].write(left) :]
        except OSError as error:
            where = f"a line of {piece.stream} of container {piece.log.index} has no space in {tempfile.gettempdir()}"
            raise DlappError(f"{where}: {error.strerror} (TMPDIR names another directory)") from error


def prefix_of(piece: LogPiece) -> bytes:
    """Return the prefix of a line: ``[0] `` for the stdout of container 0, ``[0 err] `` for its stderr, ``[0 dlapp] ``
    for dlapp's own log of it.

    Containers of roles have names: ``[trainer_0 err] ``.
    """
    log = piece.log
    is_alone = log.role == DEFAULT_ROLE and log.index == log.role_index
    stream = {"stdout": "", "stderr": " err"}.get(piece.stream, " " + piece.stream.removesuffix(".log"))
    return f"[{log.index if is_alone else f'{log.role}_{log.role_index}'}{stream}] ".encode()


def timed_prefix_of(piece: LogPiece) -> bytes:
    """Return the prefix with the local time at which a line was complete: ``[0] 2025-03-04 17:02:11.3 ``; ``-`` if
    unknown."""
    return prefix_of(piece) + time_text(piece.time_ms)


def time_text(time_ms: int | None) -> bytes:
    """Return a time in the format of `timed_prefix_of`."""
    if time_ms is None:
        return b"- "
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time_ms // 1000))
    return f"{stamp}.{time_ms % 1000 // 100} ".encode()


def read_at_most(pieces: Iterator[bytes], most_bytes: int) -> bytes:
    """Return at most this number of first bytes of an iterable of pieces."""
    data = bytearray()
    for piece in pieces:
        data += piece
        if len(data) >= most_bytes:
            break
    return bytes(data[:most_bytes])
