"""Evidence from the ResourceManager: whether the application of a lease ended long ago.

It is used only if the host itself has no evidence: the lock directory was removed, Docker was uninstalled, the task was
in another pid namespace. YARN ends all containers of an ended application. So an application that ended `ENDED_S` ago
has no payload, unless the host has contrary evidence.

These prove nothing: an application unknown to the ResourceManager, one whose end time it does not report (while its
ApplicationMaster still runs; with ``yarn.acl.enable`` to users who may not see it), or a ResourceManager that does not
answer. A NodeManager that does not know a container also proves nothing: one that was restarted without recovery has
forgotten containers whose processes may still run.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from email.utils import mktime_tz, parsedate_tz
from typing import TYPE_CHECKING, Any

from dlapp.errors import DlappError
from dlapp.gpuid.liveness.result import ALIVE, GONE, UNKNOWN, Liveness

if TYPE_CHECKING:
    from dlapp.login import Login

ENDED_S = 600.0
"""Minimum time since the end of an application; YARN ends containers within seconds, and on a lost node within ten
minutes."""
INSTALLED_ANEW_S = 3600.0
"""The same if another machine with the host's name has the lease: this machine has no evidence about it."""
_ANSWER_S = 5.0
_KEPT_S = 60.0
"""How long an answer is cached: a request that waits for GPUs checks each lease once a second."""
_ENDED = ("FINISHED", "FAILED", "KILLED")
_RUNS = ("NEW", "NEW_SAVING", "SUBMITTED", "ACCEPTED", "RUNNING", "FINAL_SAVING", "FINISHING", "KILLING")


class ApplicationProbe:
    """Client of a cluster's ResourceManagers for the ends of applications.

    Args:
        urls: their web addresses; empty: no application is known.
        login: identity for their web servers; None: anonymous.
        certificates: CA certificates (PEM) of their web servers; empty: OpenSSL's default.
    """

    def __init__(self, urls: Sequence[str], login: Login | None, certificates: str = "") -> None:
        self._urls, self._query = urls, {} if login is None else login.query
        self._certificates = certificates
        self._cached: dict[tuple[str, float], tuple[float, Liveness]] = {}

    def check(self, application: str, *, ended_s: float, until: float) -> Liveness:
        """Return whether an application ended at least ``ended_s`` ago.

        Args:
            application: id of the application; other than YARN's ids are not queried.
            ended_s: minimum time since the end [s].
            until: time limit [s, monotonic].
        """
        from dlapp.values.ids import ApplicationId

        at_s, said = self._cached.get((application, ended_s), (-math.inf, Liveness(UNKNOWN)))
        if (now_s := time.monotonic()) - at_s < _KEPT_S:
            return said
        try:
            ApplicationId.from_text(application)
        except (ValueError, DlappError):
            return Liveness(UNKNOWN, "its application is not one of YARN's")
        said = self._read_state(application, ended_s, until)
        self._cached[application, ended_s] = now_s, said
        return said

    def _read_state(self, application: str, ended_s: float, until: float) -> Liveness:
        from dlapp.hadoop.web import Web

        why = "no ResourceManager is configured"
        for url in self._urls:
            if (left_s := min(_ANSWER_S, until - time.monotonic())) <= 0:
                return Liveness(UNKNOWN, "no ResourceManager was asked in time")
            try:
                with Web(left_s, self._certificates) as web:
                    query = {"deSelects": "resourceRequests", **self._query}
                    answer = web.call("GET", f"{url}/ws/v1/cluster/apps/{application}", query)
                # A standby one redirects to the active one, which is queried itself.
                if answer.status == 200:
                    return application_liveness(
                        json.loads(answer.body), application, answer.headers.get("date") or "", ended_s
                    )
                why = f"{url} does not know its application (status {answer.status})"
            except (DlappError, ValueError, RecursionError) as error:
                why = f"{url}: {error}"
        return Liveness(UNKNOWN, why)


def application_liveness(answer: Any, application: str, date: str, ended_s: float) -> Liveness:
    """Return the result of a ResourceManager's answer.

    Args:
        answer: answer to ``GET /ws/v1/cluster/apps/ID``.
        application: the requested id.
        date: time of the answer by the ResourceManager's clock, in HTTP's form.
        ended_s: minimum time since the application's end [s].

    Source: RMWebServices.getApp, AppInfo (``id``, ``state``, ``finishedTime`` [ms since 1970], 0: not yet).
    """
    app = answer.get("app") if isinstance(answer, dict) else None
    if not isinstance(app, dict) or app.get("id") != application:
        return Liveness(UNKNOWN, "the ResourceManager's answer is not that on its application")
    state, ended_ms = app.get("state"), app.get("finishedTime")
    if state in _RUNS:
        return Liveness(ALIVE, f"its application is {state}")
    made = parsedate_tz(date)
    if state not in _ENDED or type(ended_ms) is not int or ended_ms <= 0 or made is None:
        what = f"state {state!r:.20}, finishedTime {ended_ms!r:.20}, at {date!r:.40}"
        return Liveness(UNKNOWN, f"the ResourceManager does not say when its application ended: {what}")
    if mktime_tz(made) - ended_ms / 1000 < ended_s:
        return Liveness(UNKNOWN, f"its application ended less than {ended_s:g} s ago")
    return Liveness(GONE)
