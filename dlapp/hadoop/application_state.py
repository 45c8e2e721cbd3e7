"""State of an application, as the active ResourceManager has it on record: one question over REST.

Source: Hadoop's ResourceManagerRest.md, RMWebServices; answers of 3.4.2.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from dlapp.errors import DlappError
from dlapp.login import Login
from dlapp.system.files import UntrustedFile, json_object

FINAL = frozenset({"FINISHED", "FAILED", "KILLED"})
NOT_KNOWN = "NOT_KNOWN"
"""Value in place of a state: the ResourceManager does not know the id, or has forgotten it."""
_CLUSTER = "/ws/v1/cluster"


def read_application_state(
    urls: Sequence[str], login: Login, application_id: str, certificates: str = "", *, timeout_s: float
) -> str:
    """Return the state of an application, or `NOT_KNOWN`; empty: no ResourceManager reports it.

    A final state counts only from a ResourceManager that reports itself as active: one that is starting may have
    read a part of what it knew.

    Args:
        urls: web address of each ResourceManager.
        login: identity for the requests.
        application_id: the id of the application.
        certificates: CA certificates (PEM) of their web servers; empty: OpenSSL's default.
        timeout_s: the time limit of each request [s].
    """
    from dlapp.hadoop.web import Web  # takes a twentieth of a task's start, and few tasks ask

    with Web(timeout_s, certificates) as web:
        for url in urls:
            with contextlib.suppress(DlappError):
                answer = web.call(
                    "GET",
                    f"{url}{_CLUSTER}/apps/{application_id}",
                    {"deSelects": "resourceRequests", **login.query},
                )
                if answer.status == 404:
                    return NOT_KNOWN
                app = _object(answer.body, "app") if answer.good else {}
                if app.get("id") != application_id:
                    continue  # on standby, or no ResourceManager
                state = str(app.get("state", ""))
                if state not in FINAL:
                    return state
                info = web.call("GET", f"{url}{_CLUSTER}/info", login.query)
                if _object(info.body, "clusterInfo").get("haState") == "ACTIVE":
                    return state
    return ""


def _object(data: bytes, key: str) -> Mapping[str, Any]:
    try:
        found = json_object(data, path="").get(key)
    except UntrustedFile:
        return {}
    return found if isinstance(found, dict) else {}
