"""The last application that this user submitted to YARN from here.

Whoever has another engine as the default would else have to ask YARN, which may be far, what ``last`` means.
"""

from __future__ import annotations

import contextlib
import os
import re
from typing import NamedTuple

_LINE = re.compile(r"(application_\d+_\d+) (\d+)\n", re.ASCII)


class Last(NamedTuple):
    """An id, and when it was submitted [ms since 1970]."""

    application_id: str
    submitted_ms: int


def local_cache(name: str) -> str:
    """A place in this user's cache on this machine."""
    return os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "dlapp", name)


def remember(application_id: str, submitted_ms: int) -> None:
    """Write it down; where that is not possible, it is only not found as ``last``."""
    path = local_cache("last-on-yarn")
    with contextlib.suppress(OSError):
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        temporary = f"{path}.{os.getpid()}"
        with open(temporary, "w", encoding="ascii") as file:
            file.write(f"{application_id} {submitted_ms}\n")
        os.rename(temporary, path)


def remembered() -> Last | None:
    """What was written last; None: nothing was ever submitted."""
    try:
        with open(local_cache("last-on-yarn"), encoding="ascii") as file:
            found = _LINE.fullmatch(file.read(200))
    except (OSError, UnicodeDecodeError):
        return None
    return None if found is None else Last(found[1], int(found[2]))
