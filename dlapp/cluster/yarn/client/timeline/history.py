"""Application history of the timeline server, versions 1 and 1.5: one request for one application, or for a list."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from typing import Any

from dlapp.cluster.yarn.client.rest import KIND, AppReport, read_final_status, read_state
from dlapp.errors import NotFound, Unreachable
from dlapp.hadoop.web import NoAddress, Web
from dlapp.login import Login
from dlapp.values.ids import ApplicationId
from dlapp.values.report import State

TIMEOUT_S = 20.0
FORGOTTEN_TIMEOUT_S = 3.0
_MAX_FORGOTTEN = 500
"""Number of its latest applications requested from the timeline server, before filtering by owner."""
_ENDED = frozenset(state.value for state in State if state.ended)
ODD = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
"""Errors on reading an answer in an unknown form."""


def from_timeline(url: str, application_id: ApplicationId, login: Login, certificates: str = "") -> AppReport:
    """Return the timeline server's report on an application that the ResourceManager has forgotten.

    Args:
        url: URL of the timeline server.
        application_id: the id of the application.
        login: identity for the request.
        certificates: CA certificates (PEM) of the server; empty: OpenSSL's default.

    Raises:
        NotFound: it does not know it either.
        Unreachable: it does not answer, or in an unknown form.
    """
    target = f"{url}/ws/v1/applicationhistory/apps/{application_id}"
    try:
        with Web(TIMEOUT_S, certificates) as web:
            answer = web.call("GET", target, login.query)
        if answer.status == 404:
            raise NotFound(f"{application_id} is not known to YARN, nor to its timeline server")
        if answer.status != 200:
            raise Unreachable(f"status {answer.status}")
        found = _inside(json.loads(answer.body), "app")
        if found["appId"] != str(application_id):
            raise ValueError(f"it answers for {str(found['appId'])[:100]!r}")
        return _of_history(found, application_id)
    except (Unreachable, NoAddress, *ODD) as error:
        raise Unreachable(f"{url}: the timeline server does not answer for {application_id}: {error}") from error


def forgotten(
    url: str, login: Login, certificates: str = "", *, whose: str | None, known: Sequence[AppReport]
) -> list[AppReport]:
    """Return our latest applications that the timeline server has and the ResourceManager has not.

    They have all ended: if that server shows one as running that no ResourceManager knows, its end was never reported.
    It filters the latest applications of all users, so older ones are not found.

    Args:
        url: URL of the timeline server.
        login: identity for the request.
        certificates: CA certificates (PEM) of the server; empty: OpenSSL's default.
        whose: only this user's; None: all users'.
        known: what the ResourceManager knows.

    Raises:
        Unreachable: it does not answer in time, or in an unknown form.
    """
    target = f"{url}/ws/v1/applicationhistory/apps"
    try:
        with Web(FORGOTTEN_TIMEOUT_S, certificates) as web:
            answer = web.call("GET", target, {"limit": str(_MAX_FORGOTTEN), **login.query})
        if answer.status != 200:
            raise Unreachable(f"status {answer.status}")
        answered = _inside(json.loads(answer.body), "apps").get("app") or []
        # A list of one may come as the one element.
        rows = [answered] if isinstance(answered, dict) else list(answered)
    except (Unreachable, NoAddress, *ODD) as error:
        raise Unreachable(f"{url}: the timeline server does not answer: {error}") from error
    ids, found = {one.application_id for one in known}, []
    for one in rows:
        # An entry in an unknown form does not hide the others.
        with contextlib.suppress(*ODD):
            if one.get("type") == KIND and whose in (None, one.get("user")) and one.get("appState") in _ENDED:
                found.append(_of_history(one, ApplicationId.from_text(str(one["appId"]))))
    return sorted((one for one in found if one.application_id not in ids), key=lambda one: one.application_id)


def _inside(answer: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a field of an answer that Hadoop 3.5 wraps in an outer object, and 3.4 does not."""
    inner = answer.get(name)
    return inner if isinstance(inner, dict) else answer


def _of_history(raw: dict[str, Any], application_id: ApplicationId) -> AppReport:
    final = read_final_status(raw.get("finalAppStatus"))
    tracking_url, finished_ms = str(raw.get("trackingUrl") or ""), int(raw.get("finishedTime") or 0)
    return AppReport(
        application_id=application_id,
        user=str(raw.get("user", "")),
        name=str(raw.get("name", "")),
        queue=str(raw.get("queue", "")),
        state=read_state(raw.get("appState"), final, finished_ms, tracking_url),
        final_status=final,
        diagnostics=str(raw.get("diagnosticsInfo") or ""),
        tracking_url=tracking_url,
        started_ms=int(raw.get("submittedTime") or raw.get("startedTime") or 0),
        finished_ms=finished_ms,
        kind=str(raw.get("type", "")),
        raw=raw,
    )
