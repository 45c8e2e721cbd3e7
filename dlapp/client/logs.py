"""Reading what payloads print: whole, the last lines, or as it grows. Bytes go through untouched.

A piece is what was read of one stream at one moment, lines cut anywhere; an empty piece says that its stream has
ended. No file is held open between two looks, so thousands of containers can be followed at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, TYPE_CHECKING, NamedTuple, Protocol

from dlapp.cluster import LogFiles
from dlapp.errors import DlappError, NotFound, UsageError
from dlapp.ids import ContainerId
from dlapp.login import Login, own_login
from dlapp.system import files
from dlapp.system.files import UntrustedFile

if TYPE_CHECKING:
    from dlapp.hadoop.web import Web

STREAMS = ("stdout", "stderr")
PIECE_BYTES = 1 << 18
HELD_LINE_BYTES = 1 << 20
"""A longer incomplete line is held in a file, so that a program which prints no line end takes no memory."""


class LogPiece(NamedTuple):
    """Some bytes of one stream of one container; none: the stream has ended."""

    log: LogFiles
    stream: str
    data: bytes


class GrowingFile:
    """A file that somebody else appends to, or will create."""

    def __init__(self, path: str, *, last_lines: int | None = None, last_bytes: int | None = None) -> None:
        self.path, self._offset, self._last_lines, self._last_bytes = path, 0, last_lines, last_bytes

    def moved(self, url: str) -> None:
        """See `Growing.moved`."""
        self.path = path_of(url)

    def pieces(self, *, ended: bool = False) -> Iterator[bytes]:
        """Yield what has been added since the last call; nothing while there is no file."""
        try:
            # A program can replace its log by something else.
            descriptor = _open_log(self.path)
        except FileNotFoundError:
            return
        except UntrustedFile as error:
            raise NotFound(str(error)) from error
        try:
            size = os.fstat(descriptor).st_size
            if size <= self._offset:
                return
            if self._last_lines is not None:
                least = 0 if self._last_bytes is None else max(0, size - self._last_bytes)
                self._offset = offset_of_last_lines(descriptor, size, self._last_lines, least)
                self._last_lines = None
            while data := os.pread(descriptor, PIECE_BYTES, self._offset):
                self._offset += len(data)
                yield data
        finally:
            os.close(descriptor)


def _open_log(path: str) -> int:
    """Open a log of a container: a plain file that is its application's owner's, as are the directories around it.

    Raises:
        FileNotFoundError: it is not there.
        UntrustedFile: something else was put in its place, which another user's application may do.
    """
    container, name = os.path.split(path)
    containers, container = os.path.split(container)
    application, containers = os.path.split(containers)
    with files.directory(application) as top:
        owners = {os.fstat(top).st_uid}
        with (
            files.directory(containers, dir_fd=top, path=f"{application}/{containers}", owners=owners) as middle,
            files.directory(container, dir_fd=middle, path=os.path.dirname(path), owners=owners) as inner,
        ):
            return files.open_file(name, dir_fd=inner, path=path, owners=owners)


def offset_of_last_lines(descriptor: int, size: int, lines: int, least: int = 0) -> int:
    """Return where the last lines of a file begin; an unterminated last line counts.

    Args:
        descriptor: of the file.
        size: of the file [bytes].
        lines: how many.
        least: the first offset that is read; returned if the lines begin before it.
    """
    if lines <= 0:
        return size
    end = size
    missing = lines
    while end > least:
        start = max(least, end - PIECE_BYTES)
        block = os.pread(descriptor, end - start, start)
        # The line end at the very end of the file ends a line and begins none.
        place = len(block) - 1 if end == size and block.endswith(b"\n") else len(block)
        while (place := block.rfind(b"\n", 0, place)) >= 0:
            missing -= 1
            if missing == 0:
                return start + place + 1
        end = start
    return least


class Growing(Protocol):
    """A log that may grow."""

    def moved(self, url: str) -> None:
        """Take the new place of the file: a node gives its logs away when the application has ended."""

    def pieces(self, *, ended: bool = False) -> Iterator[bytes]:
        """Return what has been added since the last call.

        Args:
            ended: its application has ended, so it must be somewhere.

        Raises:
            NotFound: it has ended, and the log is nowhere.
        """


class Logs:
    """Opens logs by their URLs: files of this machine, and pages of containers on YARN, which share connections.

    Args:
        last_lines: begin with so many lines of each; None: with all.
        last_bytes: look for these lines in so many last bytes; None: the first of them may be far from the end.
        collected: the whole of a container's log where no server shows it any more; None: it is not there.
        patience_s: how long from now a log of an application that has ended may be nowhere, while it is collected.
        login: as whom pages are asked for.
    """

    def __init__(
        self,
        last_lines: int | None = None,
        collected: Callable[[LogFiles, str], Iterator[bytes] | None] = lambda _log, _stream: None,
        patience_s: Callable[[], float] = lambda: 0.0,
        login: Callable[[], Login] = own_login,
        *,
        last_bytes: int | None = None,
    ) -> None:
        self._last_lines, self._last_bytes = last_lines, last_bytes
        self._collected, self._patience_s = collected, patience_s
        self._login = login
        self._web: Web | None = None

    def open(self, log: LogFiles, stream: str) -> Growing:
        """Open one log of a container."""
        url = log.files[stream]
        if not log.problem and not url.startswith(("http://", "https://")):
            return GrowingFile(path_of(url), last_lines=self._last_lines, last_bytes=self._last_bytes)
        from dlapp.cluster.yarn.logs.pages import TIMEOUT_S, GrowingPage
        from dlapp.hadoop.web import Web

        self._web = self._web or Web(TIMEOUT_S, accept="text/plain")
        return GrowingPage(
            url,
            self._login(),
            self._web,
            last_lines=self._last_lines,
            last_bytes=self._last_bytes,
            collected=lambda: self._collected(log, stream),
            patience_s=self._patience_s,
            problem=log.problem,
        )

    def close(self) -> None:
        """Close the connections."""
        if self._web is not None:
            self._web.close()


def path_of(url: str) -> str:
    """The local file that a ``file://`` URL names."""
    from urllib.parse import unquote_to_bytes

    scheme, _, rest = url.partition("://")
    if scheme != "file":
        raise UsageError(f"{url} cannot be read from here")
    return os.fsdecode(unquote_to_bytes(rest))


def read_logs(
    look: Callable[[], tuple[bool, Sequence[LogFiles]]],
    *,
    streams: Sequence[str] = STREAMS,
    wanted: Callable[[LogFiles], bool] = lambda _: True,
    opened: Logs | None = None,
    follow: bool = False,
    pause: Callable[[], None] = lambda: None,
    missing: Callable[[str], None] = lambda _: None,
) -> Iterator[LogPiece]:
    """Read all logs that there are.

    Args:
        look: says if the application has ended (asked first, so that nothing is written after a yes) and where the
            logs are.
        streams: names of the logs that are read.
        wanted: says of a container's logs whether they are read.
        opened: opens them, and is closed at the end; None: all of each is read, from where it is.
        follow: go on until the application has ended.
        pause: called before each further look.
        missing: told of each log of an application that has ended which is nowhere, a line each.
    """
    known_logs: dict[tuple[ContainerId, str], tuple[LogFiles, Growing]] = {}
    told: set[tuple[ContainerId, str]] = set()
    opened = opened or Logs()
    while True:
        ended, logs = look()
        for log in filter(wanted, logs):
            for stream in streams:
                if (log.container_id, stream) not in known_logs and stream in log.files:
                    growing = opened.open(log, stream)
                    known_logs[log.container_id, stream] = (log, growing)
                elif stream in log.files:
                    known, growing = known_logs[log.container_id, stream]
                    if known.problem != log.problem:
                        growing = opened.open(log, stream)
                        known_logs[log.container_id, stream] = (log, growing)
                    elif known.files[stream] != log.files[stream]:
                        growing.moved(log.files[stream])
                        known_logs[log.container_id, stream] = (log, growing)
        for (_, stream), (log, growing) in known_logs.items():
            try:
                for data in growing.pieces(ended=ended):
                    yield LogPiece(log, stream, data)
            except (NotFound, files.UntrustedFile) as error:
                if (log.container_id, stream) in told:
                    continue
                told.add((log.container_id, stream))
                missing(f"{stream} of container {log.index}: {error}")
            if ended or not follow:
                yield LogPiece(log, stream, b"")
        if ended or not follow:
            opened.close()
            return
        pause()


class LineMerger:
    """Joins the streams of several containers to one: whole lines, each with its container in front.

    A line that is not complete is kept: in memory, and once it is longer than `HELD_LINE_BYTES` in a temporary file.
    """

    def __init__(self) -> None:
        self._rest: dict[tuple[ContainerId, str], bytes] = {}
        self._long: dict[tuple[ContainerId, str], IO[bytes]] = {}

    def lines(self, piece: LogPiece) -> list[bytes]:
        """The lines that ``piece`` completes, without their ends; what is left of an ended stream is a line as well."""
        begin, lines = self._split(piece)
        if begin is not None:
            with begin:
                lines[0] = begin.read() + lines[0]
        return lines

    def merged(self, pieces: Iterable[LogPiece]) -> Iterator[bytes]:
        """The lines of ``pieces``, each with its prefix and its end."""
        for piece in pieces:
            prefix = prefix_of(piece)
            begin, lines = self._split(piece)
            if begin is not None:
                with begin:
                    yield prefix
                    while data := begin.read(PIECE_BYTES):
                        yield data
                    yield lines.pop(0) + b"\n"
            if text := b"".join(prefix + line + b"\n" for line in lines):
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
        """Return what is kept of an incomplete line: all."""
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
    """``[0] `` for what container 0 printed, ``[0 err] `` for its stderr, ``[0 dlapp] `` for our own log of it."""
    stream = {"stdout": "", "stderr": " err"}.get(piece.stream, " " + piece.stream.removesuffix(".log"))
    return f"[{piece.log.index}{stream}] ".encode()
