"""The end of a process without the teardown of its modules: a seventh of what a task takes that does nothing."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn


def run_and_exit(run: Callable[[], int]) -> NoReturn:
    """End this process with the exit code that ``run`` returns; with an exception Python ends it as ever."""
    codes: list[int] = []
    atexit.register(_end_process, codes)  # what is registered after it is called before it
    codes.append(run())
    sys.exit(codes[0])


def _end_process(codes: Sequence[int]) -> None:
    if codes:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(codes[0])
