"""Application ids for shell completion, read from the user's own files.

A shell calls this at each key press, so nothing is created or started, and no request is sent. So of a cluster, only
applications submitted from here are offered, and of this machine the user's own.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from typing import TYPE_CHECKING, NamedTuple

from dlapp.errors import DlappError
from dlapp.id_text import LAST, is_application_id
from dlapp.system.files import check_own_directory

if TYPE_CHECKING:
    from dlapp.config import LocalConfig

MAX_MATCHES = 50
BUSY_S = 0.2


class KnownApplication(NamedTuple):
    """An id, and a short description of the application, which may be empty."""

    application_id: str
    text: str = ""


def matching(incomplete: str, *, unfinished: bool) -> list[KnownApplication]:
    """Return the applications that match a word, the latest first.

    Args:
        incomplete: prefix of an id, or of its last number without zeros.
        unfinished: only those that wait or run.
    """
    found: list[KnownApplication] = []
    # A shell cannot display an error here.
    with contextlib.suppress(DlappError, OSError, sqlite3.Error):
        from dlapp.cluster.yarn.client.local_files import tools_tokens
        from dlapp.config import load_config

        found = on_this_machine(load_config().local, unfinished=unfinished)
        # As far as known here, these have not ended.
        found += [KnownApplication(one, "on the cluster") for one in tools_tokens.known_ids()]
    found.sort(key=lambda one: tuple(map(int, one.application_id.split("_")[1:])), reverse=True)
    number = incomplete.lstrip("0") if incomplete.isdecimal() else None
    matches = [
        one
        for one in found
        if one.application_id.startswith(incomplete)
        or (number and one.application_id.rpartition("_")[2].lstrip("0").startswith(number))
    ]
    return [*([KnownApplication(LAST)] if LAST.startswith(incomplete) else []), *matches[:MAX_MATCHES]]


def on_this_machine(local: LocalConfig, *, unfinished: bool) -> list[KnownApplication]:
    """Return the caller's applications of this machine, the latest first.

    Raises:
        DlappError, OSError, sqlite3.Error: they cannot be read, or others can write to their directory.
    """
    from urllib.parse import quote

    from dlapp.cluster.local.client.ownership import database_of
    from dlapp.cluster.local.queue import refuse_links

    path = database_of(local)
    if not os.path.exists(path):
        return []
    # Even for reading, SQLite creates and truncates the files beside a database.
    check_own_directory(os.path.dirname(path))
    refuse_links(path)
    where = "WHERE state != 'done'" if unfinished else ""
    with contextlib.closing(sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True, timeout=BUSY_S)) as connection:
        rows = connection.execute(f"SELECT id, state, appname FROM applications {where} ORDER BY number DESC LIMIT 500")
        return [KnownApplication(one, f"{state}, {appname}") for one, state, appname in rows if is_application_id(one)]
