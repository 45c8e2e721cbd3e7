"""The last application that this user submitted to YARN from this machine.

With this file a user whose default engine is another one can use ``last`` without a request to YARN.
"""

from __future__ import annotations

import contextlib
import os
import re
from typing import NamedTuple

from dlapp.id_text import APPLICATION_ID
from dlapp.system.files import make_below_home
from dlapp.system.owners import check_not_writable_by_others

_LINE = re.compile(rf"(?P<id>{APPLICATION_ID}) (?P<submitted_ms>\d+)\n", re.ASCII)


class LastApplication(NamedTuple):
    """Id and time of submission [ms since 1970]."""

    application_id: str
    submitted_ms: int


def local_cache(name: str) -> str:
    """Return a path in this user's cache on this machine.

    Raises:
        Denied: the caller is root, and the path is another user's.
    """
    path = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "dlapp", name)
    check_not_writable_by_others(path)
    return path


def local_state(name: str) -> str:
    """Return a path in this user's state directory on this machine; the caller checks its owner."""
    return os.path.join(os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state"), "dlapp", name)


def remember(application_id: str, submitted_ms: int) -> None:
    """Store the id. If this fails, ``last`` does not find the application; there is no other effect."""
    with contextlib.suppress(OSError):
        path = local_cache("last-on-yarn")
        make_below_home(os.path.dirname(path), 0o700)
        temporary = f"{path}.{os.getpid()}"
        with open(temporary, "w", encoding="ascii") as file:
            file.write(f"{application_id} {submitted_ms}\n")
        os.rename(temporary, path)


def last_application() -> LastApplication | None:
    """Return the stored id; None: there is none."""
    try:
        with open(local_cache("last-on-yarn"), encoding="ascii") as file:
            found = _LINE.fullmatch(file.read(200))
    except (OSError, UnicodeDecodeError):
        return None
    return None if found is None else LastApplication(found["id"], int(found["submitted_ms"]))
