"""The log of a process that nobody looks at while it runs: lines with time and level on standard output.

    2025-03-04 17:02:11,305 WARNING the staging directory: no NameNode answers

Its standard output is a file of its own. A line that does not fit on the disk is lost; nothing fails for that.
`logging` is imported with the first line: it takes 3 ms and 0.7 MiB, and most processes have nothing to say.
"""

from __future__ import annotations

import contextlib
import os
import re
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import logging

_TIME_AND_LEVEL = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} [A-Z]+ "


def info(message: str) -> None:
    """Log what an operator may want to know."""
    _logger().info("%s", message)


def warning(message: str) -> None:
    """Log what went wrong and is tried again, or done without."""
    _logger().warning("%s", message)


def error(message: str) -> None:
    """Log what went wrong and costs the user something."""
    _logger().error("%s", message)


def message_of(line: str) -> str:
    """Return a line of a log without its time and level."""
    found = re.match(_TIME_AND_LEVEL, line)
    return line[found.end() :] if found else line


@cache
def _logger() -> logging.Logger:
    import logging

    class StandardOutput(logging.Handler):
        """Writes each line in one piece: threads and child processes share the file."""

        def emit(self, record: logging.LogRecord) -> None:
            with contextlib.suppress(OSError):
                os.write(1, f"{self.format(record)}\n".encode("utf-8", "replace"))

    handler = StandardOutput()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger = logging.getLogger("dlapp.log")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(handler)
    return logger
