"""Views, outcomes, submissions, reports, journals and ledger records: JSON that another process, user or host wrote."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from dlapp.am.model import journal
from dlapp.gpuid import record_json
from dlapp.system.files import json_object, read_json_object
from dlapp.values.access import StreamRequest
from dlapp.values.messages import Hello, PortPlace, Report, StopRequest, StreamAnswer
from dlapp.values.report import ApplicationView
from dlapp.values.serialization import from_json, to_json
from dlapp.values.spec import Secrets, Submission
from tests.fuzz import samples
from tests.fuzz.parsing import fuzz, fuzz_json


@pytest.mark.proves("view-files")
@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Hello, samples.HELLO),
        (Report, samples.REPORT),
        (StopRequest, StopRequest(user="tony")),
        (StreamRequest, StreamRequest(index=0, kind="port", head="{}")),
        (StreamAnswer, StreamAnswer(container_id=samples.CONTAINER, number=1, error="e", reason="r")),
        (PortPlace, PortPlace(hosts=("node7", "::1"), loopback="127.0.0.1", boot="b", network=1)),
        (ApplicationView, samples.VIEW),
        (Submission, samples.SUBMISSION),
        (Secrets, samples.SECRETS),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_message_is_read_or_refused(kind: type[Any], value: Any) -> None:
    fuzz_json(lambda data: from_json(kind, json_object(data, path="x")), samples.as_json(value))


def test_a_json_file_is_read_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "view.json"

    def read(data: bytes) -> None:
        path.write_bytes(data)
        read_json_object(str(path), owners=[os.geteuid()], max_bytes=1 << 20)

    fuzz_json(read, samples.as_json(samples.VIEW, samples.SUBMISSION))


RECORDS = [
    {"kind": "begin", "t": 1, "attempt": 1, "started_ms": 1, "version": 1},
    {"kind": "grant", "t": 2, "container": str(samples.CONTAINER), "request_id": 1, "node": "n", "log_url": "http://n"},
    {"kind": "assign", "t": 3, "container": str(samples.CONTAINER), "index": 0, "tries": 1, "host": "n"},
    {"kind": "run", "t": 4, "container": str(samples.CONTAINER)},
    {"kind": "gate", "t": 4, "role": "worker", "open": True},
    {"kind": "result", "t": 5, "container": str(samples.CONTAINER), "result": to_json(samples.RESULT)},
    {
        "kind": "end",
        "t": 6,
        "container": str(samples.CONTAINER),
        "status": 1,
        "diagnostics": "oh",
        "node_fault": False,
    },
    {"kind": "free", "t": 7, "index": 0, "user_faults": 1, "node_faults": 0},
    {"kind": "soft", "t": 8, "by": "tony", "cause": "soft_killed", "ends_ms": 9},
    {
        "kind": "settled",
        "t": 9,
        "ending": ["SUCCEEDED", "succeeded", "well"],
        "how": "commit",
        "outputs": samples.as_json(*samples.VIEW.outputs),
    },
]


@pytest.mark.proves("view-files")
def test_a_journal_is_read_as_far_as_it_makes_sense() -> None:
    def read(data: bytes) -> None:
        journal.done(journal.replay(journal.records(data.decode("utf-8", "replace").split("\n"))))

    whole = "\n".join(map(journal.line, RECORDS)).encode()
    assert journal.replay(journal.records(whole.decode().split("\n"))).outputs
    fuzz(read, [whole], errors=())


@pytest.mark.parametrize("number", range(len(RECORDS)))
def test_a_record_of_a_journal_is_read_or_passed_over(number: int) -> None:
    before, after = ([journal.line(item) for item in part] for part in (RECORDS[:number], RECORDS[number + 1 :]))

    def read(data: bytes) -> None:
        lines = [*before, *data.decode("utf-8", "replace").split("\n"), *after]
        journal.done(journal.replay(journal.records(lines)))

    fuzz_json(read, [RECORDS[number]], errors=())


@pytest.mark.proves("zookeeper-records")
def test_a_hosts_record_in_the_ledger_is_read_or_refused() -> None:
    record = json.loads(record_json.to_bytes(samples.HOST_RECORD))
    fuzz_json(lambda data: record_json.from_bytes(data, "node7"), [record])
