"""Test what dlapp-why, --plan and the columns of a list print, to the character."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from dlapp.errors import UsageError
from dlapp.tools.display.columns import named_lines, read_columns, sorted_views
from dlapp.tools.display.plan import plan_lines
from dlapp.tools.display.status import answer_lines
from dlapp.tools.display.view import fitted_list_lines, phase_text, width
from dlapp.tools.display.why import estimate_text, why_lines

NOW_MS = 1_700_000_000_000
ID = "application_1700000000000_0042"
WAITING: dict[str, Any] = {
    "code": "nodes_full",
    "message": "needs 4 GPUs on one node, the most on a node is 2",
    "resource": "gcores",
    "asked": 4,
    "available": 2,
    "since_ms": NOW_MS - 727_000,
    "ahead": [{"id": "application_1700000000000_0039", "user": "anna", "amounts": {"memory": 65536, "gcores": 6}}],
    "change": "2 GPUs: now, on host03 (--set resources.gcores=2)",
    "estimate": {
        "earliest_ms": NOW_MS + 240_000,
        "latest_ms": NOW_MS + 1_860_000,
        "coverage": 0.82,
        "samples": 60,
    },
}


@pytest.fixture(autouse=True)
def _in_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def view(**more: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "application_id": ID,
        "state": "ACCEPTED",
        "final_status": "UNDEFINED",
        "cause": None,
        "phase": "waiting",
        "diagnostics": WAITING["message"],
        "username": "tony",
        "appname": "mnist",
        "queue": "default",
        "priority": None,
        "project": "vision",
        "tags": ["a", "b"],
        "submitted_ms": NOW_MS - 727_000,
        "started_ms": None,
        "finished_ms": None,
        "total_containers": 1,
        "memory_mib": 4096,
        "vcores": 2,
        "gcores": 4,
        "containers": [],
        "outputs": [],
        "waiting": WAITING,
    }
    return found | more


def test_the_reason_is_shown_in_full() -> None:
    assert why_lines(view(), NOW_MS) == [
        f"{ID} waiting for 0:12:07",
        "why : needs 4 GPUs on one node, the most on a node is 2 (nodes_full)",
        "needs : gcores: asked 4, available 2",
        "since : 2023-11-14 22:01:13 (0:12:07)",
        "change : 2 GPUs: now, on host03 (--set resources.gcores=2)",
        "start : in 0:04:00 to in 0:31:00 (2023-11-14 22:17:20 to 2023-11-14 22:44:20); "
        "82% of the last 60 such estimates held",
        "ahead",
        "ID                              USER  MEMORY  VCORES  GPUS",
        "application_1700000000000_0039  anna  65536   -       6",
    ]


def test_the_latest_start_is_that_of_the_reservation() -> None:
    (line,) = [
        item
        for item in why_lines(view(waiting=WAITING | {"reserved_ms": NOW_MS + 1_200_000}), NOW_MS)
        if item.startswith("latest")
    ]
    assert line == (
        "latest : in 0:20:00 (2023-11-14 22:33:20), if what runs takes as long as it may and nothing comes before it"
    )
    over = why_lines(view(waiting=WAITING | {"reserved_ms": NOW_MS - 1}), NOW_MS)
    assert not [text for text in over if text.startswith("latest")]


def test_a_short_history_is_named_as_the_reason() -> None:
    text = estimate_text({"earliest_ms": None, "latest_ms": None, "coverage": None, "samples": 3}, NOW_MS)
    assert text == "not known: an estimate needs 20 comparable applications that waited before (so far 3)"
    text = estimate_text({"earliest_ms": None, "latest_ms": None, "coverage": None, "samples": 20}, NOW_MS)
    assert text == "not known: too few of the latest estimates held"
    soon = {"earliest_ms": NOW_MS, "latest_ms": NOW_MS + 60_000, "coverage": None, "samples": 0}
    assert estimate_text(soon, NOW_MS).startswith("now to in 0:01:00 (")
    assert estimate_text(soon, NOW_MS).endswith("how often such estimates hold is not known yet")


def test_for_a_running_application_reasons_of_missing_containers_are_shown() -> None:
    lacking = [{"role": "worker", "count": 2, "memory_mib": 512, "vcores": 1, "gcores": 1}]
    lines = why_lines(view(state="RUNNING", phase="running 2 of 4", lacking=lacking), NOW_MS)
    assert "lacks : 2 containers of worker, each with memory 512 MiB, vcores 1, gcores 1" in lines
    assert why_lines(view(state="RUNNING", waiting=None), NOW_MS)[0].endswith(": its container runs")


def test_for_an_ended_application_the_past_waits_are_shown() -> None:
    begins = [
        {"started_ms": NOW_MS - 30_000 + n * 20_000, "attempt": 1, "exit_code": 0, "signal": None} for n in (0, 1)
    ]
    over = view(
        state="FINISHED",
        final_status="SUCCEEDED",
        cause="succeeded",
        started_ms=NOW_MS - 60_000,
        finished_ms=NOW_MS,
        containers=begins,
    )
    assert why_lines(over, NOW_MS) == [
        f"{ID} succeeded after 0:12:07",
        "waited : 0:11:07 in the queue, until it was started",
        "waited : 0:00:30 for its first container",
        "waited : 0:00:50 for its last of 2 containers",
    ]
    killed = view(state="KILLED", final_status="KILLED", cause="killed", finished_ms=NOW_MS)
    assert why_lines(killed, NOW_MS)[1] == "waited : 0:12:07 in the queue; it never started"


def test_status_list_and_wait_have_the_same_words() -> None:
    assert phase_text(view()) == WAITING["message"]
    lines = answer_lines(view(), NOW_MS)
    assert f"waiting : {WAITING['message']} (nodes_full)" in lines
    assert [line for line in lines if line.startswith("diagnostics")] == []
    assert phase_text(view(state="RUNNING", phase="running 1 of 2")) == f"running 1 of 2: {WAITING['message']}"
    known = {"code": "gang_partial", "message": "1 of 2 held"}
    assert (
        phase_text(view(state="RUNNING", phase="1 of 2 held, 1 starting", waiting=known)) == "1 of 2 held, 1 starting"
    )


def test_a_list_of_60_columns_still_reads() -> None:
    lines = fitted_list_lines([view()], NOW_MS, 60, users=False)
    assert max(map(width, lines)) <= 60
    assert lines[0].split()[:3] == ["ID", "NAME", "STATE"]
    assert "mnist" in lines[1]
    assert "needs 4 GPUs" in lines[1]


def test_columns_are_chosen_by_name_and_sorted_by() -> None:
    views = [view(), view(application_id=f"{ID}9", gcores=16, appname="b"), view(gcores=8, appname="C")]
    assert read_columns("name=id,GPUs,why") == ("ID", "GPUS", "WHY")
    assert named_lines(views[:1], ("NAME", "GPUS", "WHY"), NOW_MS) == ["NAME   GPUS  WHY", "mnist  4     nodes_full"]
    assert [item["gcores"] for item in sorted_views(views, "-gpus", NOW_MS)] == [16, 8, 4]
    assert [item["appname"] for item in sorted_views(views, "name", NOW_MS)] == ["b", "C", "mnist"]
    assert [read_columns(form) for form in ("", "wide", "json", "id")] == [(), (), (), ()]
    for form, message in (("yaml", "none of wide, json, id"), ("name=gpu", "gpus"), ("name=", "column")):
        with pytest.raises(UsageError, match=message):
            read_columns(form)
    with pytest.raises(UsageError, match="queue"):
        sorted_views(views, "queu", NOW_MS)


def test_a_plan_is_shown() -> None:
    limit = {"limit": "queue small", "resource": "gcores", "asked": 4, "available": 1, "most": 2, "setting": "s"}
    plan = {
        "spec": {
            "appname": "mnist",
            "roles": [{"name": "worker", "instances": 2, "resources": {"memory_mib": 512, "vcores": 1, "gcores": 2}}],
        },
        "workspace": {
            "size_bytes": 2048,
            "entries": 3,
            "largest": [{"name": "train.py", "size_bytes": 2000}],
            "excluded": [".git"],
            "left_out": {"output": 2},
        },
        "inputs": [{"name": "train", "files": 2, "size_bytes": 4096}],
        "limits": [limit],
        "nodes": {"worker": ["host02"]},
        "waiting": WAITING | {"change": ""},
        "estimate": {"samples": 1},
        "gpu_hours_most": 8.0,
    }
    assert plan_lines(plan, NOW_MS) == [
        "application : mnist",
        "role : worker: 2 containers, each with memory 512 MiB, vcores 1, gcores 2",
        "packed : 2.0 KiB in 3 entries, before compression",
        "     2.0 KiB  train.py",
        "not packed : .git, output",
        "input train : 4.0 KiB in 2 files",
        "LIMIT        RESOURCE  ASKED  AVAILABLE  MOST",
        "queue small  gcores    4      1          2",
        "nodes : host02",
        "now : needs 4 GPUs on one node, the most on a node is 2 (nodes_full)",
        "start : not known: an estimate needs 20 comparable applications that waited before (so far 1)",
        "GPU-hours : 8 at most",
    ]
    assert plan_lines(plan | {"gpu_hours_most": None}, NOW_MS)[-1] == "GPU-hours : no limit (max_runtime is not set)"
    for longest_s, most in (
        (None, "no time limit (trial_time is not set)"),
        (45.0, "at most 45 s"),
        (7265, "at most 2 h 02 min"),
    ):
        sweep = {"trials": 300, "concurrency": 8, "longest_s": longest_s}
        assert f"sweep : 300 trials, 8 at once, {most}" in plan_lines(plan | {"sweep": sweep}, NOW_MS)
