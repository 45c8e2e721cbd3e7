"""Log of a background process: lines with time and level on standard output.

    2025-03-04 17:02:11,305 WARNING the staging directory: no NameNode answers

Its standard output is a separate file; the standard output of a command is data, so its lines go to standard error. A
line that does not fit on the disk is dropped without an error. The format is that of `logging`, which is not used: its
import takes 3 ms and 0.7 MiB of every process.
"""

from __future__ import annotations

import contextlib
import os
import re
import time

from dlapp.system import waits

_TIME_AND_LEVEL = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} [A-Z]+ "


def info(message: str) -> None:
    """Log information for an operator."""
    _write("INFO", message)


def warning(message: str) -> None:
    """Log an error that is retried or tolerated."""
    _write("WARNING", message)


def error(message: str) -> None:
    """Log an error that affects the user."""
    _write("ERROR", message)


def line(level: str, message: str) -> bytes:
    """Format a line of a log with the time and a level; continuation lines of its message are indented."""
    now = time.time()
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now))
    text = f"{stamp},{int(now * 1000) % 1000:03d} {level} {message}".replace("\n", "\n    ")
    return text.encode("utf-8", "backslashreplace") + b"\n"


def message_of(line: str) -> str:
    """Return a line of a log without its time and level."""
    found = re.match(_TIME_AND_LEVEL, line)
    return line[found.end() :] if found else line


def is_information(line: str) -> bool:
    """Return whether a line of a log has the level of `info`."""
    found = re.match(_TIME_AND_LEVEL, line)
    return found is not None and found[0].endswith(" INFO ")


def _write(level: str, message: str) -> None:
    """Write a line in one piece: threads and child processes share the file."""
    with contextlib.suppress(OSError):
        os.write(2 if waits.are_reported() else 1, line(level, message))
