"""Test what a ResourceManager says of a lease's application, and what that proves."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from dlapp.gpuid.liveness.applications import ApplicationProbe, application_liveness
from dlapp.gpuid.liveness.result import ALIVE, GONE, UNKNOWN

APP = "application_1700000000000_0042"
# Of a ResourceManager of 3.4.2, shortened.
ENDED = (
    b'{"app":{"id":"application_1700000000000_0042","user":"tony","name":"digits","queue":"root.default",'
    b'"state":"FINISHED","finalStatus":"SUCCEEDED","progress":100.0,"trackingUI":"History","clusterId":1700000000000,'
    b'"applicationType":"DLAPP","startedTime":1700000000100,"launchTime":1700000001000,"finishedTime":1700003600000}}'
)
AT_ITS_END, AN_HOUR_LATER = "Tue, 14 Nov 2023 23:13:20 GMT", "Wed, 15 Nov 2023 00:13:20 GMT"


def liveness_of(application: str = APP, date: str = AN_HOUR_LATER, ended_s: float = 600.0, **over: Any) -> str:
    answer = json.loads(ENDED)
    answer["app"] |= over
    return application_liveness(answer, application, date, ended_s).state


def test_an_application_that_ended_long_ago_is_gone() -> None:
    assert liveness_of() == GONE
    assert liveness_of(state="KILLED") == GONE


@pytest.mark.parametrize(
    ("over", "expected"),
    [
        ({"date": AT_ITS_END}, UNKNOWN),
        ({"ended_s": 3601.0}, UNKNOWN),
        ({"date": ""}, UNKNOWN),
        ({"date": "yesterday"}, UNKNOWN),
        ({"state": "RUNNING", "finishedTime": 0}, ALIVE),
        ({"state": "FINAL_SAVING"}, ALIVE),
        ({"finishedTime": 0}, UNKNOWN),  # its ApplicationMaster has said its end, and still runs
        ({"finishedTime": "long ago"}, UNKNOWN),
        ({"state": "PERHAPS"}, UNKNOWN),
        ({"id": "application_1700000000000_0043"}, UNKNOWN),
    ],
)
def test_any_other_answer_proves_no_end(over: dict[str, Any], expected: str) -> None:
    assert liveness_of(**over) == expected


@pytest.mark.parametrize("answer", [None, [], {}, {"app": None}, {"app": []}, {"RemoteException": {}}])
def test_an_invalid_answer_is_unknown(answer: Any) -> None:
    assert application_liveness(answer, APP, AN_HOUR_LATER, 0.0).state == UNKNOWN


def test_unreachable_servers_are_unknown() -> None:
    until = time.monotonic() + 120
    assert ApplicationProbe((), None).check(APP, ended_s=1.0, until=until).state == UNKNOWN
    away = ApplicationProbe(("http://127.0.0.1:1",), None)
    found = away.check(APP, ended_s=1.0, until=until)
    assert (found.state, found.why.startswith("http://127.0.0.1:1: ")) == (UNKNOWN, True)
    assert away.check("shell-1", ended_s=1.0, until=until).why == "its application is not one of YARN's"
