"""Reader of Timeline Service v2.

It has no list of applications. It has a list of flows, newest day first, and a list of the applications of one flow. A
flow is the applications of one user with the same name, unless their tags say otherwise; a run of a flow is one
application, and has its start time as its id. So a list takes one request for the flows, and one for each flow with
runs that the ResourceManager does not know.

An ApplicationMaster can write any information on its own application. Its owner is read from the key under which the
server stores it, not from that information.

Source: TimelineReaderWebServices, TimelineServiceV2Publisher, ApplicationEntityReader (Hadoop 3.4).
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote

from dlapp.cluster.yarn.client.rest import KIND, AppReport, read_final_status, read_state
from dlapp.cluster.yarn.client.timeline.history import FORGOTTEN_TIMEOUT_S, ODD, TIMEOUT_S
from dlapp.errors import NotFound, Unreachable
from dlapp.hadoop.web import NoAddress, Web
from dlapp.locations import shown
from dlapp.login import Login
from dlapp.values.ids import ApplicationId

_REQUESTS_S = FORGOTTEN_TIMEOUT_S
"""After this time, a list sends no further request; the last one may take as long again."""
_MAX_FLOWS = 500
"""Flows that are requested, before filtering by owner; on each day they are in the order of the owners' names."""
_FLOWS_READ = 20
"""For this many flows, those with the latest runs, a list requests the applications: each is a request."""
_MAX_OF_FLOW = 100
"""Latest applications of one flow that are requested; their launch commands make up most of an answer."""
_FIELDS = "INFO,EVENTS"
_FINISHED = "YARN_APPLICATION_FINISHED"
_ESCAPED = r"((?:[^!*]|\*.)*)"
_KEY = re.compile(rf"{_ESCAPED}!{_ESCAPED}!", re.DOTALL)
"""First two parts of a key: cluster and user. Source: TimelineReaderUtils.joinAndEscapeStrings."""


def from_timeline(url: str, application_id: ApplicationId, login: Login, certificates: str = "") -> AppReport:
    """Return the reader's report on an application that the ResourceManager has forgotten.

    Args:
        url: URL of the cluster in the reader: `HadoopConfiguration.timeline_reader_url`.
        application_id: the id of the application.
        login: identity for the request.
        certificates: CA certificates (PEM) of the server; empty: OpenSSL's default.

    Raises:
        NotFound: it does not know it either.
        Unreachable: it does not answer, does not let the user read, or answers in an unknown form.
    """
    try:
        with Web(TIMEOUT_S, certificates) as web:
            answer = web.call("GET", f"{url}/apps/{application_id}", {"fields": _FIELDS, **login.query})
        if answer.status == 404:
            raise NotFound(f"{application_id} is not known to YARN, nor to its timeline server")
        found = read_answer(answer.status, answer.body)
        if found["id"] != str(application_id):
            raise ValueError(f"it answers for {str(found['id'])[:100]!r}")
        return _of_entity(found, _owner(found["info"]))
    except (Unreachable, NoAddress, *ODD) as error:
        raise Unreachable(f"{url}: the timeline server does not answer for {application_id}: {error}") from error


def forgotten(
    url: str,
    login: Login,
    certificates: str = "",
    *,
    whose: str | None,
    known: Sequence[AppReport],
    clock: Callable[[], float] = time.monotonic,
) -> list[AppReport]:
    """Return ended applications that the reader has and the ResourceManager has not, of the flows with the latest runs.

    Args:
        url: URL of the cluster in the reader: `HadoopConfiguration.timeline_reader_url`.
        login: identity for the requests.
        certificates: CA certificates (PEM) of the server; empty: OpenSSL's default.
        whose: only this user's; None: all users'.
        known: what the ResourceManager knows.
        clock: [s, monotonic].

    Raises:
        Unreachable: the list of flows does not come in time, or in an unknown form.
    """
    no_more_at = clock() + _REQUESTS_S
    ids = {one.application_id for one in known}
    found: list[AppReport] = []
    with Web(FORGOTTEN_TIMEOUT_S, certificates) as web:

        def read(path: str, limit: int, more: dict[str, str]) -> Any:
            answer = web.call("GET", f"{url}/{path}", {"limit": str(limit), **more, **login.query})
            rows = read_answer(answer.status, answer.body)
            if not isinstance(rows, list):
                raise ValueError(f"not a list: {str(rows)[:100]!r}")
            return rows

        try:
            flows = _latest_flows(read("flows/", _MAX_FLOWS, {}), whose, known)
        except (Unreachable, NoAddress, *ODD) as error:
            raise Unreachable(f"{url}: the timeline server does not list applications: {error}") from error
        # What was read before an error, or before the time is over, is shown.
        with contextlib.suppress(Unreachable, NoAddress, *ODD):
            for user, flow in flows:
                if clock() >= no_more_at:
                    break
                more = {"fields": _FIELDS, "infofilters": f"YARN_APPLICATION_TYPE eq {KIND}"}
                path = f"users/{quote(user, safe='')}/flows/{quote(flow, safe='')}/apps/"
                for one in read(path, _MAX_OF_FLOW, more):
                    # An entry in an unknown form does not hide the others.
                    with contextlib.suppress(*ODD):
                        found.append(_of_entity(one, user))
    ended = [one for one in found if one.kind == KIND and one.state.ended and one.application_id not in ids]
    return sorted(ended, key=lambda one: one.application_id)


def read_answer(status: int, body: bytes) -> Any:
    """Return the JSON of an answer. Raises Unreachable: its status is an error; the message has the server's reason."""
    if status == 200:
        return json.loads(body)
    reason = ""
    with contextlib.suppress(*ODD):
        reason = f": {shown(str(json.loads(body)['message'])[:200])}"
    raise Unreachable(f"status {status}{reason}")


def _latest_flows(rows: Sequence[Any], whose: str | None, known: Sequence[AppReport]) -> list[tuple[str, str]]:
    """Return user and name of the flows with the latest runs, latest first; those whose runs are all known to the
    ResourceManager are left out. Each day of a flow is a row."""
    known_runs = {(one.user, one.started_ms) for one in known}
    latest: dict[tuple[str, str], int] = {}
    for row in rows:
        with contextlib.suppress(*ODD):
            user, flow = str(row["info"]["SYSTEM_INFO_USER"]), str(row["info"]["SYSTEM_INFO_FLOW_NAME"])
            runs = [int(one["info"]["SYSTEM_INFO_FLOW_RUN_ID"]) for one in row["flowruns"]]
            unknown = [run for run in runs if (user, run) not in known_runs]
            if unknown and whose in (None, user):
                latest[user, flow] = max(latest.get((user, flow), 0), *unknown)
    return sorted(latest, key=lambda one: latest[one], reverse=True)[:_FLOWS_READ]


def _owner(info: dict[str, Any]) -> str:
    """Return the user in an application's key. Only the store of files, which Hadoop has for tests, gives no key."""
    if (key := info.get("FROM_ID")) is None:
        return str(info["YARN_APPLICATION_USER"])
    if (parts := _KEY.match(str(key))) is None:
        raise ValueError(f"{str(key)[:100]!r} is not the key of an application")
    return re.sub(r"\*(.)", r"\1", parts[2])


def _of_entity(raw: dict[str, Any], user: str) -> AppReport:
    info = raw["info"]
    final = read_final_status(info.get("YARN_APPLICATION_FINAL_STATUS"))
    ends = [int(one["timestamp"]) for one in raw.get("events") or () if one["id"] == _FINISHED]
    finished_ms = max(ends, default=0)
    return AppReport(
        application_id=ApplicationId.from_text(str(raw["id"])),
        user=user,
        name=str(info.get("YARN_APPLICATION_NAME") or ""),
        queue=str(info.get("YARN_APPLICATION_QUEUE") or ""),
        state=read_state(info.get("YARN_APPLICATION_STATE"), final, finished_ms, ""),
        final_status=final,
        diagnostics=str(info.get("YARN_APPLICATION_DIAGNOSTICS_INFO") or ""),
        # As the ResourceManager's start, by which a list is sorted.
        started_ms=int(raw.get("createdtime") or 0),
        finished_ms=finished_ms,
        kind=str(info.get("YARN_APPLICATION_TYPE") or ""),
        tags=tuple(str(one) for one in info.get("YARN_APPLICATION_TAGS") or ()),
        raw=raw,
    )
