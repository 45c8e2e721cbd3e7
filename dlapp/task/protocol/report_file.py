"""File DLAPP_REPORT: the payload appends lines of JSON, the task reads them.

The task creates the file before the payload starts and keeps it open. It never opens the name again: a link, a FIFO or
another file in its place is logged and not read. Each call reads the appended bytes up to a bound, and skips the rest.
Of each second 10 lines are parsed; of the remaining ones the last, and the last with each key, so that a flood of
metrics does not suppress other keys. In a sweep each line with the metric is parsed in addition. Each kind of problem
in bad lines is logged once.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from typing import Any, NoReturn, Protocol

from dlapp.errors import SpecError
from dlapp.value import replace
from dlapp.values.messages import PayloadStatus

NAME = "report"
MAX_LINE_BYTES = 4096
"""Longest line that is read [bytes], without its line end."""
LINES_PER_S = 10
_CHUNK_BYTES = 256 << 10
_MAX_READ_BYTES = 4 << 20
"""Most that one call reads; if more was appended since, the newest `_CHUNK_BYTES`."""
_KEYS = ("progress", "metrics", "step", "ready", "checkpoint")
_MAX_PATH = 1024
_SHOWN = 200


class InvalidLine(ValueError):
    """A rejected line; ``problem`` is the reason, with the same text for each line with this problem."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem


class ReportLine:
    """Content of one line. Attributes are those of `PayloadStatus`; None if the line has no such key.

    Attributes:
        checkpoint: the directory of a complete checkpoint.
        unknown: an unknown key; empty if there is none.
    """

    def __init__(self, line: bytes) -> None:
        said = _object(line)
        self.unknown = next((key for key in said if key not in _KEYS), "")
        if said and not any(key in said for key in _KEYS):
            raise InvalidLine("it has no key that is known")
        self.progress = None if "progress" not in said else _progress(said["progress"])
        self.metrics: dict[str, float] | None = None
        if "metrics" in said:
            if not isinstance(said["metrics"], dict):
                raise InvalidLine("metrics is not an object")
            self.metrics = {name: _number(value, "a metric") for name, value in said["metrics"].items()}
        self.step: int | None = said.get("step")
        if "step" in said and type(self.step) is not int:
            raise InvalidLine("step is not a whole number")
        self.ready: bool | None = said.get("ready")
        if "ready" in said and type(self.ready) is not bool:
            raise InvalidLine("ready is not true or false")
        self.checkpoint: str | None = said.get("checkpoint")
        if "checkpoint" in said and not _is_path(self.checkpoint):
            raise InvalidLine("checkpoint is not the path of a directory")

    def added_to(self, status: PayloadStatus) -> PayloadStatus:
        """Return a status updated with this line.

        Raises:
            InvalidLine: a value is out of range, or there are too many metrics.
        """
        said = {name: getattr(self, name) for name in ("progress", "step", "ready")}
        changes: dict[str, Any] = {name: value for name, value in said.items() if value is not None}
        if self.metrics is not None:
            changes["metrics"] = {**status.metrics, **self.metrics}
        try:
            return replace(status, lines=status.lines + 1, **changes)
        except SpecError as error:
            raise InvalidLine(f"{error.field} {error.problem}") from error


def _object(line: bytes) -> dict[str, Any]:
    if len(line) > MAX_LINE_BYTES:
        raise InvalidLine(f"it is longer than {MAX_LINE_BYTES} bytes")
    try:
        said = json.loads(line, parse_constant=_refuse_constant)
    except InvalidLine:
        raise
    except (ValueError, RecursionError):
        raise InvalidLine("it is not JSON") from None
    if not isinstance(said, dict):
        raise InvalidLine("it is not a JSON object")
    return said


def _refuse_constant(text: str) -> NoReturn:
    raise InvalidLine(f"{text} is not a finite number")


def _number(value: Any, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidLine(f"{what} is not a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise InvalidLine("a number is not finite")
    return number


def _progress(value: Any) -> float:
    number = _number(value, "progress")
    # A sum of shares may exceed 1 slightly.
    return 1.0 if 1.0 < number < 1.0 + 1e-6 else number


def _is_path(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _MAX_PATH and value.isprintable()


class MetricWatch(Protocol):
    """Receiver of all reports of one metric, also of lines that are otherwise not parsed.

    Attributes:
        metric: its name.
        problem: why a line with the metric was rejected; empty if none was.
    """

    metric: str
    problem: str

    def add(self, value: float, step: int | None) -> None:
        """Process a report; ``step`` is None if it has no step."""


class ReportFile:
    """The report file, and the state that the payload has reported. Closed by `close`.

    Args:
        directory: descriptor of DLAPP_DIR, which the payload can write to; not kept open.
        watch: receives each report of a metric; None if not needed.

    Attributes:
        status: what the payload has reported so far.
        checkpoint: the last reported directory; empty if none.
        checkpoints: number of reported checkpoints.
        checkpoint_step: step of the last reported checkpoint; None if it had none.

    Raises:
        OSError: the file cannot be created, or exists already.
    """

    def __init__(self, directory: int, note: Callable[[str], None], watch: MetricWatch | None = None) -> None:
        self._watch = watch
        self._watched = json.dumps(watch.metric).encode() if watch is not None else b""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._fd = os.open(NAME, flags, 0o600, dir_fd=directory)
        self._directory = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory)
        self._note = note
        self.status = PayloadStatus()
        self.checkpoint, self.checkpoints = "", 0
        self.checkpoint_step: int | None = None
        self._at = 0
        self._rest = b""
        self._skips = False  # the rest of a line whose beginning was dropped
        self._lines_left, self._read_at = float(LINES_PER_S), 0.0
        self._noted: set[str] = set()
        self._ignored = 0

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            os.close(self._directory)
            self._fd = -1

    def read(self, now_s: float) -> bool:
        """Read the lines appended until ``now_s`` [s, monotonic]; return whether a line was accepted."""
        self._lines_left = min(LINES_PER_S, self._lines_left + LINES_PER_S * (now_s - self._read_at))
        self._read_at = now_s
        found, before = os.fstat(self._fd), self.status.lines
        self._check_replaced(found)
        if found.st_size < self._at:
            self._log_once("was truncated; append to it")
            self._at, self._rest, self._skips = 0, b"", False
        if found.st_size - self._at > _MAX_READ_BYTES:
            self._log_once("grows too fast; a part of it was not read")
            self._at, self._rest, self._skips = found.st_size - _CHUNK_BYTES, b"", True
        while self._at < found.st_size:
            data = os.pread(self._fd, min(_CHUNK_BYTES, found.st_size - self._at), self._at)
            if not data:
                break
            self._at += len(data)
            self._parse_data(data)
        return self.status.lines > before

    def finish(self, now_s: float) -> bool:
        """Read the rest after the payload's end, including an unterminated last line; see `read` for the result."""
        before = self.status.lines
        self.read(now_s)
        if self._rest:
            self._parse_metric(self._rest)
            self._parse_line(self._rest)
        if self._ignored:
            self._note(f"$DLAPP_REPORT: {self._ignored} lines were ignored in all")
        return self.status.lines > before

    def _check_replaced(self, found: os.stat_result) -> None:
        try:
            is_same = os.path.samestat(found, os.stat(NAME, dir_fd=self._directory, follow_symlinks=False))
        except OSError:
            is_same = False
        if not is_same:
            self._log_once("was removed or replaced by the payload; what is there now is not read")

    def _parse_data(self, data: bytes) -> None:
        lines, end, rest = (self._rest + data).rpartition(b"\n")
        if self._skips and end:
            lines, self._skips = lines.partition(b"\n")[2], False
        self._rest = b"" if self._skips else rest
        if len(self._rest) > MAX_LINE_BYTES:
            self._ignore(InvalidLine(f"it is longer than {MAX_LINE_BYTES} bytes"), self._rest)
            self._rest, self._skips = b"", True
        self._parse_metric(lines)
        for line in self._chosen(lines):
            if line.strip():
                self._parse_line(line)

    def _parse_metric(self, lines: bytes) -> None:
        """Read the watched metric from each line that has it."""
        if self._watch is None or self._watched not in lines:
            return
        for line in lines.split(b"\n"):
            if self._watched not in line:
                continue
            try:
                said = ReportLine(line)
                value = (said.metrics or {}).get(self._watch.metric)
                if value is not None:
                    PayloadStatus(metrics={self._watch.metric: value}, step=said.step)
                    self._watch.add(value, said.step)
            except (InvalidLine, SpecError) as error:
                self._watch.problem = error.problem

    def _chosen(self, lines: bytes) -> list[bytes]:
        """Return the lines of a block that must be parsed."""
        chosen, at = [], 0
        while at < len(lines) and self._lines_left >= 1:
            end = lines.find(b"\n", at)
            end = len(lines) if end < 0 else end
            chosen.append(lines[at:end])
            self._lines_left -= 1
            at = end + 1
        if at < len(lines):
            self._log_once(f"has more than {LINES_PER_S} lines a second; not all of them are read")
            last = {len(lines), *(found for key in _KEYS if (found := lines.rfind(f'"{key}"'.encode(), at)) >= 0)}
            begins = {max(at, lines.rfind(b"\n", at, one) + 1) for one in last}
            ends = {begin: lines.find(b"\n", begin) for begin in begins}
            chosen += [lines[begin : len(lines) if end < 0 else end] for begin, end in sorted(ends.items())]
        return chosen

    def _parse_line(self, line: bytes) -> None:
        try:
            said = ReportLine(line)
            self.status = said.added_to(self.status)
        except InvalidLine as error:
            self._ignore(error, line)
            return
        if said.unknown:
            self._log_once("has a key that is not known", repr(said.unknown[:_SHOWN]))
        if said.checkpoint is not None:
            self.checkpoint, self.checkpoints = said.checkpoint, self.checkpoints + 1
            self.checkpoint_step = said.step

    def _ignore(self, error: InvalidLine, line: bytes) -> None:
        self._ignored += 1
        self._log_once(f"a line is ignored: {error.problem}", repr(line[:_SHOWN])[1:])

    def _log_once(self, problem: str, text: str = "") -> None:
        if problem not in self._noted:
            self._noted.add(problem)
            self._note(f"$DLAPP_REPORT: {problem}{': ' if text else ''}{text}")
