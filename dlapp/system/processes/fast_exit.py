"""Process end without the teardown of modules, which is a seventh of the time of a minimal task."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn


def run_and_exit(run: Callable[[], int]) -> NoReturn:
    """End this process with the exit code that ``run`` returns; exceptions are left to Python."""
    codes: list[int] = []
    atexit.register(_end_process, codes)  # functions registered later are called earlier
    codes.append(run())
    sys.exit(codes[0])


def _end_process(codes: Sequence[int]) -> None:
    if codes:
        for stream in filter(None, (sys.stdout, sys.stderr)):  # None: its descriptor was closed
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(codes[0])
