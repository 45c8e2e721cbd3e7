"""The ResourceManager as a witness on leases: whether the application of a lease ended long ago.

It is heard only where the host itself cannot tell: the directory of locks was removed, Docker was uninstalled, the task
was in another pid namespace. YARN ends all containers of an application that has ended. So one that ended `ENDED_S` ago
has no payload, as far as nothing on the host says otherwise.

This proves nothing: an application that the ResourceManager does not know, one of which it does not say when it ended
(while its ApplicationMaster still runs; with ``yarn.acl.enable`` to users who may not see it), a ResourceManager that
does not answer. That a NodeManager does not know a container proves nothing either: one that was restarted without
recovery has forgotten containers whose processes may still run.
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
"""How long ago an application must have ended; YARN ends containers within seconds, and a node that it lost in ten
minutes."""
INSTALLED_ANEW_S = 3600.0
"""The same where another machine of the host's name has the lease: nothing on this one speaks for or against it."""
_ANSWER_S = 5.0
_KEPT_S = 60.0
"""How long an answer is used again: who waits for GPUs looks at each lease once a second."""
_ENDED = ("FINISHED", "FAILED", "KILLED")
_RUNS = ("NEW", "NEW_SAVING", "SUBMITTED", "ACCEPTED", "RUNNING", "FINAL_SAVING", "FINISHING", "KILLING")


class ApplicationWitness:
    """Asks the ResourceManagers of a cluster.

    Args:
        urls: their web addresses; none: nothing is known of any application.
        login: for their web servers; None: they let everybody read.
    """

    def __init__(self, urls: Sequence[str], login: Login | None) -> None:
        self._urls, self._query = urls, {} if login is None else login.query
        self._said: dict[tuple[str, float], tuple[float, Liveness]] = {}

    def check(self, application: str, *, ended_s: float, until: float) -> Liveness:
        """Return whether an application ended at least ``ended_s`` ago.

        Args:
            application: its id; one that is not YARN's is not asked for.
            ended_s: how long ago [s].
            until: when to stop asking [s, monotonic].
        """
        from dlapp.values.ids import ApplicationId

        at_s, said = self._said.get((application, ended_s), (-math.inf, Liveness(UNKNOWN)))
        if (now_s := time.monotonic()) - at_s < _KEPT_S:
            return said
        try:
            ApplicationId.from_text(application)
        except (ValueError, DlappError):
            return Liveness(UNKNOWN, "its application is not one of YARN's")
        said = self._ask(application, ended_s, until)
        self._said[application, ended_s] = now_s, said
        return said

    def _ask(self, application: str, ended_s: float, until: float) -> Liveness:
        from dlapp.hadoop.web import Web

        why = "no ResourceManager is configured"
        for url in self._urls:
            if (left_s := min(_ANSWER_S, until - time.monotonic())) <= 0:
                return Liveness(UNKNOWN, "no ResourceManager was asked in time")
            try:
                with Web(left_s) as web:
                    query = {"deSelects": "resourceRequests", **self._query}
                    answer = web.call("GET", f"{url}/ws/v1/cluster/apps/{application}", query)
                # One on standby redirects to the active one, which is asked itself.
                if answer.status == 200:
                    return judge(json.loads(answer.body), application, answer.headers.get("date") or "", ended_s)
                why = f"{url} does not know its application (status {answer.status})"
            except (DlappError, ValueError, RecursionError) as error:
                why = f"{url}: {error}"
        return Liveness(UNKNOWN, why)


def judge(answer: Any, application: str, date: str, ended_s: float) -> Liveness:
    """Return what an answer of a ResourceManager says.

    Args:
        answer: to ``GET /ws/v1/cluster/apps/ID``.
        application: the id that was asked for.
        date: when it was made, by the ResourceManager's clock, as HTTP writes it.
        ended_s: how long ago the application must have ended [s].

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
