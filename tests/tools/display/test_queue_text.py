"""Test the text of ``dlapp-queue``, to the character."""

from __future__ import annotations

from typing import Any

import pytest

from dlapp.client.queue import queue_of
from dlapp.cluster.engine import QueueFacts, UserShare
from dlapp.cluster.view_forms import ViewForms
from dlapp.tools.display.queue import fitted_queue_lines, queue_lines, share_lines, start_text
from dlapp.tools.display.view import width
from dlapp.values.waiting import Estimate

NOW_MS = 1_700_000_000_000


def view(number: int, state: str = "ACCEPTED", code: str = "", message: str = "", **fields: Any) -> dict[str, Any]:
    submitted_ms = NOW_MS - 600_000
    waiting = {"code": code, "message": message} if code else None
    return {
        "application_id": f"application_1700000000000_{number:04d}",
        "state": state,
        "phase": "waiting",
        "username": "tony",
        "submitter": "tony",
        "appname": "digits",
        "queue": "default",
        "priority": None,
        "project": "",
        "tags": [],
        "gcores": 4,
        "waiting": waiting,
        "submitted_ms": submitted_ms,
        "started_ms": NOW_MS - 60_000 if state == "RUNNING" else None,
        "finished_ms": None,
        "containers": [],
        "diagnostics": "",
        "cause": None,
        "receipt": None,
        **fields,
    }


class Facts:
    """An engine that has these applications."""

    def __init__(self, facts: QueueFacts, *views: dict[str, Any]) -> None:
        self._facts, self._views = facts, views

    def queue_facts(self) -> QueueFacts:
        return self._facts

    def views(self, *, everybody: bool, limit: int) -> list[ViewForms]:
        assert (everybody, limit) == (True, 0)
        return [ViewForms(json=one) for one in self._views]


def sample() -> dict[str, Any]:
    order = tuple(f"application_1700000000000_{number:04d}" for number in (3, 2, 9))
    estimates = {order[0]: Estimate(earliest_ms=NOW_MS + 240_000, latest_ms=NOW_MS + 1_860_000)}
    share = UserShare(user="anna", queue="default", share=0.256, meaning="of the cluster, now")
    engine = Facts(
        QueueFacts(order=order, estimates=estimates, shares=(share,)),
        view(1, "ACCEPTED", "held", "it is held"),
        view(2, "ACCEPTED", "nodes_full", "waiting: 1 ahead", username="somebody-else"),
        view(3, "ACCEPTED", "nodes_full", "needs 4 GPUs on one node, the most on a node is 2"),
        view(4, "RUNNING", "dependency", "waits for the end of application_1_0001 (ok)"),
        view(5, "RUNNING"),
        view(6, "ACCEPTED", "starting", "the ApplicationMaster is starting"),
    )
    return queue_of(engine)  # type: ignore[arg-type]


def test_running_applications_come_first_then_waiting_ones_in_order() -> None:
    found = sample()["applications"]
    assert [(view["application_id"][-1], view["place"]) for view in found] == [
        *(("5", None), ("3", 1), ("2", 2), ("1", None), ("6", None), ("4", None))
    ]
    assert [item["start"] is not None for item in found] == [False, True, False, False, False, False]


def test_programs_get_all_columns_uncut() -> None:
    lines = queue_lines(sample()["applications"], NOW_MS)
    assert lines[0].split() == ["#", "ID", "USER", "NAME", "STATE", "GPUS", "TIME", "START", "QUEUE", "PRIORITY", "WHY"]
    first = "- application_1700000000000_0005 tony digits running 4 1m - default - -"
    assert lines[1].split() == first.split()
    assert "nodes_full: needs 4 GPUs on one node, the most on a node is 2" in lines[2]


@pytest.mark.parametrize("columns", [60, 72, 80, 120, 200])
def test_a_terminal_gets_the_columns_that_fit(columns: int) -> None:
    lines = fitted_queue_lines(sample()["applications"], NOW_MS, columns)
    assert all(width(line) <= columns for line in lines)
    head = lines[0].split()
    assert [name for name in ("#", "ID", "STATE", "GPUS", "START", "WHY") if name not in head] == []
    assert "4m to 31m" in lines[2]
    assert "needs 4 GPU" in lines[2]
    assert ("nodes_full: needs" in lines[2]) == (columns == 200), "code and words only where both have room"


def test_the_table_on_60_columns() -> None:
    assert fitted_queue_lines(sample()["applications"], NOW_MS, 60)[:4] == [
        "#  ID    USER    STATE       GPUS  START      WHY",
        "-  0005  tony    running     4     -          -",
        "1  0003  tony    waiting     4     4m to 31m  needs 4 GPUs …",
        "2  0002  someb…  waiting     4     -          waiting: 1 ah…",
    ]


def test_shares_have_a_table_of_their_own() -> None:
    assert share_lines(sample()["shares"]) == [
        "USER  QUEUE    SHARE",
        "anna  default  25.6%  of the cluster, now",
    ]
    assert share_lines([]) == []


@pytest.mark.parametrize(
    ("earliest_s", "latest_s", "text"),
    [(0, 0.5, "now"), (0, 120, "now to 2m"), (240, 1860, "4m to 31m"), (60, 90, "1m"), (7200, 90000, "2h to 1d")],
)
def test_an_expected_start_is_relative_to_now(earliest_s: float, latest_s: float, text: str) -> None:
    start = {"earliest_ms": NOW_MS + int(earliest_s * 1000), "latest_ms": NOW_MS + int(latest_s * 1000)}
    assert start_text(start, NOW_MS) == text


@pytest.mark.parametrize(
    ("start", "reserved_s", "text"),
    [(None, 1200, "within 20m"), ((240, 1860), 1200, "4m to 20m"), ((240, 600), 1200, "4m to 10m"), (None, -1, "")],
)
def test_a_reservation_bounds_the_expected_start(start: tuple[int, int] | None, reserved_s: int, text: str) -> None:
    found = None
    if start is not None:
        found = {"earliest_ms": NOW_MS + start[0] * 1000, "latest_ms": NOW_MS + start[1] * 1000}
    assert start_text(found, NOW_MS, NOW_MS + reserved_s * 1000) == text


def test_an_unknown_start_is_no_text() -> None:
    assert start_text(None, NOW_MS) == start_text({"earliest_ms": None, "latest_ms": None}, NOW_MS) == ""
