"""Search for the cause of a failure in the end of a program's logs.

A log is written by a program and not trusted: the search is bounded, and its result affects only that program's
application.

A healthy program also prints errors: it retries, skips a sample, falls back. So a line is no cause

- whose level, before the text that a rule looks for, is below an error: ``WARNING``, ``[W socket.cpp:601]``;
- that reports that the program continues: ``retrying``, ``ignored``;
- of a traceback that is introduced by such a line, like Python's ``Exception ignored in``, or that Optuna caught;
- that has the text in a parameter of a test's name, as pytest lists them.

Of the remaining lines the last one is the cause: a program continues after errors that it handles. A carriage return
also ends a line: progress bars print it instead of a line feed.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from dlapp.diagnosis.rules import Act, Rule, Where
from dlapp.system.files import closing_fd
from dlapp.value import replace
from dlapp.values.messages import Diagnosis, Evidence

TAIL_BYTES = 256 << 10
"""Number of bytes at the end of each log that are searched."""
MAX_LINE = 300
"""Characters of a line that is kept as evidence."""
_LINE_ENDS = (b"\n", b"\r")
_NEARBY = 4096
"""A line is longer only in logs that nobody reads."""
_MAX_MATCHED = 4096
"""Characters of a line that are compared with a regular expression."""
_MAX_HITS = 50
_TRACEBACK = b"Traceback (most recent call last)"
_LINKS = (b"The above exception was the direct cause of", b"During handling of the above exception")
_AFTER_EXCEPTION = 2048
"""Bytes after the line of an exception that belong to its message."""
_EXCEPTION = re.compile(rb"[A-Za-z_][A-Za-z0-9_.]*(:|$)")
_MAX_LEVEL = 512
"""Length of the beginning of a line that is searched for its level [bytes]."""
_LEVEL = re.compile(
    # A progress bar may precede it, without a space.
    rb"(?<![A-Za-z_])(INFO|DEBUG|TRACE|NOTICE|VERBOSE|(?i:warn(ing)?s?))(?![A-Za-z_])"
    rb"|(?i:\"level\": ?\"(debug|info)|\blevel=(debug|info)\b)"
    # Warnings of Python: ``train.py:3: UserWarning: text``.
    rb"|\b[A-Z]\w*Warning: "
    # glog, absl, PyTorch, Optuna: ``W0501 10:00:00``, ``[W501 10:00``, ``[W socket.cpp:6]``; TensorFlow: ``: W xla/``.
    rb"|(?<![A-Za-z_])[IW]\d{3,4} \d\d:|(^|\[|: )[IW]( \d{4}-| \w+[./:])"
)
"""Level of a line that is no error. NCCL uses ``WARN`` for errors."""
_CONTINUES = re.compile(
    # The first two are of Python's socketserver, such as TensorBoard's, and of scikit-learn's searches.
    rb"(?i)\b(processing of request from|fits failed with the following error|"
    rb"retrying|retry in|will retry|trying (again|another|next)|ignor(ing|ed)|skipp(ing|ed)|continuing|"
    rb"fall(ing|s)? ?back|recover(ing|ed)|(lower|reduc|decreas|halv)ing (the )?batch size to)\b"
)
_NCCL = b"NCCL WARN"
_FAILURE = re.compile(rb"(?i)error|exception|fail")
_PYTHON_WARNING = re.compile(rb"(?i:(?<![a-z_])warn(ing)?(?![a-z_]))|\[W \d{4}-")
"""Level of a line that introduces a traceback, as Python's logging and Optuna write it; lines of glog introduce
none."""
_TEST_PARAMETER = re.compile(rb"\.py(::\w+)+\[(?!.*\] - )")
"""Name of a test of pytest, up to its parameters; ``] - `` ends those of a test that failed, before its error."""
_FRAME = re.compile(rb'  File "[^"\r\n]*", line \d+, in \S')
_TRIAL = re.compile(rb"\[W \d{4}-[^\]\r\n]*\] Trial \d+ failed with value ")
"""Line of Optuna after the exception of a trial; if that ends the study, Python prints the traceback once more."""
_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_CONTROLS = dict.fromkeys((*range(32), *range(127, 160)), " ")


class LogTail(NamedTuple):
    """The end of a log: name of the file, offset [bytes] of the part, and the part, which starts at the beginning of a
    line.
    """

    file: str
    offset: int
    data: bytes

    def line_at(self, offset: int) -> str:
        """Return the line that begins at an offset in the file, up to `_MAX_MATCHED` characters."""
        start = offset - self.offset
        return _text(self.data[start : _line_at(self.data, start)[1]])[:_MAX_MATCHED]


class _Hit(NamedTuple):
    """A line that matches a rule.

    Args:
        position: the position of the line.
        found: position of the text that matched.
        chain: number of its chain of exceptions; negative for none.
    """

    position: int
    order: int
    rule: Rule
    chain: int
    found: int


class _Traceback(NamedTuple):
    """A traceback of Python: positions of its beginning, of the line of its exception, and of the end of the message.

    Args:
        is_handled: whether the program reports that it continues.
    """

    begin: int
    exception: int
    end: int
    chain: int
    is_handled: bool


def read_tail(path: str, *, limit_bytes: int = TAIL_BYTES) -> LogTail:
    """Read the end of a log.

    Args:
        path: the path of the file, which the program may have replaced.
        limit_bytes: maximum size to read.

    Raises:
        OSError: it cannot be read, or is not a regular file.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with closing_fd(fd):
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            raise OSError(f"{path} is no file")
        begin = max(0, info.st_size - limit_bytes)
        data = os.pread(fd, limit_bytes, begin)
    if begin:
        skipped = data.find(b"\n") + 1
        begin, data = begin + skipped, data[skipped:]
    return LogTail(os.path.basename(path), begin, data)


def diagnose(
    rules: Sequence[Rule],
    *,
    message: str,
    exit_code: int | None,
    signal: int | None,
    logs: Sequence[LogTail],
    has_gpus: bool = False,
    is_exclusive: bool = False,
) -> Diagnosis | None:
    """Return the cause of a failure; None if no rule matches.

    Args:
        rules: in their order.
        message: dlapp's message on the end.
        exit_code, signal: of the program, as far as it ran. Shells end with 128 and the signal of their command.
        logs: the ends of its logs, in order of preference: stderr, then stdout.
        has_gpus: whether its container holds GPUs.
        is_exclusive: whether one of them is in compute mode exclusive.
    """
    has_failed = signal is not None or exit_code not in (None, 0)
    rules = [rule for rule in rules if (has_gpus or not rule.needs_gpus) and (is_exclusive or not rule.needs_exclusive)]
    for rule in rules:
        if rule.where is not Where.MESSAGE or (has_failed and rule.exit_code == 0):
            continue
        if (found := _named(rule, message.encode())) is not None:
            return found
    hits = [_found(rules, log) for log in logs]
    for wanted in (False, True):
        for log, hits_of_log in zip(logs, hits, strict=True):
            # The last matching line: a program continues after errors that it handles.
            if hit := next((one for one in reversed(hits_of_log) if one.rule.is_consequence == wanted), None):
                start, end = _line_at(log.data, hit.position)
                line = log.data[start:end]
                found = _named(hit.rule, line) or _diagnosis(hit.rule, {})
                evidence = Evidence(file=log.file, offset=log.offset + start, line=_shown(line, hit.found - start))
                return replace(found, evidence=evidence)
    if signal is None and exit_code is not None and exit_code > 128:
        signal = exit_code - 128
    for rule in rules:
        if rule.where is Where.EXIT and (signal, exit_code)[rule.signal is None] == (rule.signal or rule.exit_code):
            return _diagnosis(rule, {})
    return None


def _found(rules: Sequence[Rule], log: LogTail) -> list[_Hit]:
    """Return the lines of a log that match rules, by position, with one rule each."""
    tracebacks = list(_tracebacks(log.data))
    by_line: dict[int, _Hit] = {}
    for order, rule in enumerate(rules):
        if rule.where is not Where.LOG:
            continue
        for found in sorted(at for text in rule.contains for at in _positions(log.data, text)):
            start, end = _line_at(log.data, found)
            if start in by_line or any(one.begin <= start < one.exception for one in tracebacks):
                continue  # a line within a traceback shows the program's source
            of = next((one for one in tracebacks if one.exception <= start < one.end), None)
            is_exception = of is not None and of.exception == start
            if of.is_handled if of is not None and is_exception else _is_harmless(log.data, start, found, end):
                continue
            if _is_source(log.data, start) or _TRIAL.match(log.data, end + 1):
                continue
            if _named(rule, log.data[start:end]) is not None:
                by_line[start] = _Hit(start, order, rule, -1 - start if of is None else of.chain, found)
    named = {one.chain for one in by_line.values()}
    for order, rule in enumerate(rules):
        if rule.where is Where.TRACEBACK:
            for one in tracebacks:
                if one.chain not in named and not one.is_handled:
                    hit = _Hit(one.exception, order, rule, one.chain, one.exception)
                    by_line.setdefault(one.exception, hit)
    return sorted(by_line.values(), key=lambda hit: hit[:2])


def _tracebacks(data: bytes) -> Iterator[_Traceback]:
    chain, former_end, is_handled = -1, 0, False
    positions = sorted(_positions(data, _TRACEBACK))
    for number, at in enumerate(positions):
        begin, line_end = _line_at(data, at)
        prefix = data[begin:at]
        limit = positions[number + 1] if number + 1 < len(positions) else len(data)
        position = line_end + 1
        while position < limit:
            _, line_end = _line_at(data, position)
            line = data[position:line_end].removeprefix(prefix)
            if line.strip() and not line[:1].isspace():
                break
            position = line_end + 1
        else:
            continue
        if not _EXCEPTION.match(line):
            continue
        if not any(link in data[former_end:begin] for link in _LINKS):
            chain += 1
            is_handled = _is_handled(data, begin, at)
        former_end = position
        is_caught = is_handled or _TRIAL.match(data, line_end + 1) is not None
        yield _Traceback(begin, position, min(limit, line_end + _AFTER_EXCEPTION), chain, is_caught)


def _is_handled(data: bytes, begin: int, at: int) -> bool:
    """Return whether a program reports a handled error, with its traceback.

    The words are in the traceback's own line, which begins at ``begin``, or in the line before it.
    """
    before = _line_at(data, begin - 1)[0] if begin else 0
    start = max(before, begin - _MAX_MATCHED)
    words = data[start:at]
    if _TRIAL.match(words) is not None:
        return False
    is_failure = _FAILURE.search(words) is not None and _PYTHON_WARNING.search(words) is not None
    return is_failure or _CONTINUES.search(words) is not None


def _is_source(data: bytes, start: int) -> bool:
    """Return whether a line is the source in a frame of a traceback, whose beginning may be cut off."""
    before = data[_line_at(data, start - 1)[0] : start] if start else b""
    return data[start : start + 1] == b" " and _FRAME.match(before) is not None


def _is_harmless(data: bytes, start: int, found: int, end: int) -> bool:
    """Return whether a line, in which a rule has found something, is not an error, or one that the program handles."""
    before = data[start : min(found, start + _MAX_LEVEL)]
    if (_LEVEL.search(before) is not None and _NCCL not in before) or _TEST_PARAMETER.search(before) is not None:
        return True
    return _CONTINUES.search(data[start : min(end, start + _MAX_MATCHED)]) is not None


def _positions(data: bytes, text: bytes) -> Iterator[int]:
    """Yield the positions of a text, starting with the last one, up to a limit."""
    end = len(data)
    for _ in range(_MAX_HITS):
        if (at := data.rfind(text, 0, end)) < 0:
            return
        yield at
        end = at


def _line_at(data: bytes, position: int) -> tuple[int, int]:
    """Return where the line at a position begins and ends."""
    # Both ends of lines are searched nearby first: a log of progress bars has no line feed in all its length.
    begin, end = max(0, position - _NEARBY), position + _NEARBY
    start = max(data.rfind(one, begin, position) for one in _LINE_ENDS) + 1
    if not start:
        start = max(data.rfind(one, 0, begin) for one in _LINE_ENDS) + 1
    found = [at for one in _LINE_ENDS if (at := data.find(one, position, end)) >= 0]
    found = found or [at for one in _LINE_ENDS if (at := data.find(one, end)) >= 0]
    return start, min(found, default=len(data))


def _named(rule: Rule, line: bytes) -> Diagnosis | None:
    if rule.contains and not any(text in line for text in rule.contains):
        return None
    if rule.line is None:
        return _diagnosis(rule, {})
    match = rule.line.search(_text(line)[:_MAX_MATCHED])
    return None if match is None else _diagnosis(rule, match.groupdict())


def _diagnosis(rule: Rule, groups: dict[str, str]) -> Diagnosis:
    words = {name: _cut(text or "?") for name, text in groups.items()}
    retry = {Act.RETRY: True, Act.AVOID_NODE: True, Act.NO_RETRY: False}.get(rule.act)
    return Diagnosis(
        rule=rule.name,
        cause=rule.cause.format_map(words),
        fault=rule.fault,
        next_step=rule.next_step.format_map(words),
        retry=retry,
        avoid_node=rule.act is Act.AVOID_NODE,
        is_consequence=rule.is_consequence,
    )


def _text(line: bytes) -> str:
    return _COLOURS.sub("", line.decode("utf-8", "replace")).translate(_CONTROLS)


def _shown(line: bytes, found: int) -> str:
    """Return the text of a line; of a long one the part around a position in it."""
    if len(line) > MAX_LINE and found > MAX_LINE // 2:
        line = line[found - MAX_LINE // 4 :]
        return _cut(f"…{_text(line).strip()}")
    return _cut(_text(line[: 4 * MAX_LINE]).strip())


def _cut(text: str) -> str:
    return text if len(text) <= MAX_LINE else text[: MAX_LINE - 1] + "…"
