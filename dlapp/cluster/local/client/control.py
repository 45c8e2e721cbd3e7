"""Address and tokens of the ApplicationMaster of one of the caller's applications."""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, Any

from dlapp.cluster.local.row import DEPENDENT, DONE, HELD, WAITING, ApplicationRow
from dlapp.cluster.local.state import file_url, read_json
from dlapp.errors import DlappError, Unreachable

if TYPE_CHECKING:
    from dlapp.cluster.local.client.session import LocalSession


def control_url(application_dir: str) -> str | None:
    """Return the control address of an application; None: no ApplicationMaster has registered."""
    with contextlib.suppress(DlappError, KeyError):  # a power failure may leave it empty
        if (found := read_json(os.path.join(application_dir, "am.json"))) is not None:
            return str(found["control_url"])
    return None


def _page_path(application_dir: str) -> str:
    """Return the URL of the page if the caller may read the application's secrets; empty for others and after its
    end."""
    from dlapp.values.access import page_path

    with contextlib.suppress(PermissionError):
        if (secrets := read_json(os.path.join(application_dir, "secrets.json"))) is not None:
            return page_path(str(secrets["control_secret"]))
    return ""


def control_of(application_dir: str) -> tuple[str, str] | None:
    """Return control address and token for tools; None: no ApplicationMaster is running."""
    from dlapp.values.access import TOOLS, derive_token

    url, secrets = control_url(application_dir), read_json(os.path.join(application_dir, "secrets.json"))
    if url is None or secrets is None:
        return None
    return url, derive_token(str(secrets["control_secret"]), TOOLS)


def request(session: LocalSession, application_dir: str, what: str, by: str, timeout_s: float) -> dict[str, Any]:
    """Send a request of the caller to an ApplicationMaster, and return its answer.

    Args:
        session: the caller's.
        application_dir: the directory of the application.
        what: ``softkill`` or ``kill``.
        by: the user's name.
        timeout_s: time limit.

    Raises:
        Unreachable: it is not running, or does not answer.
    """
    from dlapp.net.control_client import ControlConnection

    if (found := control_of(application_dir)) is None:
        raise Unreachable("its ApplicationMaster is not running")
    with ControlConnection(*found, owner=session.uid) as connection:
        answer = connection.call("POST", f"/v1/{what}", {"user": by}, timeout_s=timeout_s)
    return answer if isinstance(answer, dict) else {}


def dashboard_urls(session: LocalSession, application_id: str, wait_s: float) -> tuple[str, str]:
    """Return the URL of the page while the application runs, and the path of its history file; see
    `dlapp.cluster.engine.Engine.dashboard_urls`."""
    application_dir = session.state.application(session.row(application_id).id)
    history = file_url(os.path.join(application_dir, "report.html"))
    deadline = time.monotonic() + wait_s
    while (url := control_url(application_dir)) is None and time.monotonic() < deadline:
        row = session.row(application_id)
        if row.state in (DONE, DEPENDENT, HELD) or (row.state == WAITING and _is_held_up(session, row)):
            break
        time.sleep(0.01)
    path = _page_path(application_dir) if url else ""
    return (f"{url}{path}" if path else history), history


def _is_held_up(session: LocalSession, row: ApplicationRow) -> bool:
    """Return True if a waiting row cannot start at once: resources are missing, or another row is ahead of it."""
    before = "state = 'waiting' AND number < ?"
    return bool(row.reason or session.queue().rows(before, (row.number,), columns="number"))
