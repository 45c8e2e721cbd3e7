"""Test how an ApplicationMaster learns of the ends of other applications, and what it makes of bad answers."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from dlapp.am.model.events import OthersEnded
from dlapp.am.other_applications import EndWatcher
from dlapp.cluster.yarn.am.other_applications import EndReader, read_end
from dlapp.errors import DlappError, NotFound, Unreachable
from dlapp.login import Login
from dlapp.values.ids import ApplicationId
from dlapp.values.start_conditions import FAILED, KILLED, SUCCEEDED, UNKNOWN
from tests.applications import wait_for
from tests.seeds import each_seed
from tests.services.http.http_server import Answer, Request, as_json, http_server

OWN, OTHER = ApplicationId(1700000000000, 7), "application_1700000000000_0003"


class ResourceManager:
    """A ResourceManager whose answers a test chooses, by application; what is missing is not known."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer | None] = {str(OWN): app(str(OWN), "RUNNING", "UNDEFINED")}
        self.url = ""

    def answer(self, request: Request) -> Answer | None:
        assert request.query["user.name"] == "tony"
        return self.answers.get(request.path.rpartition("/")[2], Answer(404, b"{}"))


class History:
    """The user's history on HDFS."""

    home = "hdfs://nn:8020/user/tony"

    def __init__(self) -> None:
        self.data: bytes | DlappError = NotFound("nothing")

    def read(self, location: str, *, max_bytes: int) -> bytes:
        assert location == f"{self.home}/.dlapp/history/{OTHER}.json"
        assert max_bytes > 0
        if isinstance(self.data, DlappError):
            raise self.data
        return self.data


def app(application: str, state: Any, final: Any) -> Answer:
    return as_json({"app": {"id": application, "state": state, "finalStatus": final}})


@pytest.fixture
def manager() -> Iterator[ResourceManager]:
    found = ResourceManager()
    with http_server(found.answer) as url:
        found.url = url
        yield found


def reader(manager: ResourceManager, history: History, *more: str) -> EndReader:
    return EndReader((*more, manager.url), Login("tony"), history, OWN)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("state", "final", "end"),
    [
        ("ACCEPTED", "UNDEFINED", None),
        ("FINAL_SAVING", "UNDEFINED", None),
        ("FINISHED", "SUCCEEDED", SUCCEEDED),
        ("FINISHED", "FAILED", FAILED),
        ("FINISHED", "KILLED", KILLED),
        ("FINISHED", "A_LATER_ONE", FAILED),
        ("FAILED", "FAILED", FAILED),
        ("KILLED", "UNDEFINED", KILLED),
    ],
)
def test_an_end_is_read_from_the_report(manager: ResourceManager, state: str, final: str, end: str | None) -> None:
    manager.answers[OTHER] = app(OTHER, state, final)
    assert reader(manager, History()).read(OTHER) == end


@pytest.mark.parametrize(
    ("data", "end"),
    [
        (NotFound("nothing"), UNKNOWN),
        (b'{"view": {"state": "FINISHED", "final_status": "SUCCEEDED"}}', SUCCEEDED),
        (b'{"view": {"state": "RUNNING", "final_status": "UNDEFINED"}, "state": "KILLED"}', KILLED),
        (b'{"view": null, "state": "FAILED"}', FAILED),
        (b'{"view": 3', UNKNOWN),
        (b"[]", UNKNOWN),
        (b'{"view": "x"}', UNKNOWN),
    ],
)
def test_the_history_server_knows_applications_that_the_resourcemanager_forgot(
    manager: ResourceManager, data: bytes | DlappError, end: str
) -> None:
    history = History()
    history.data = data
    assert reader(manager, history).read(OTHER) == end


def test_a_resourcemanager_that_does_not_know_this_application_is_not_believed(manager: ResourceManager) -> None:
    manager.answers[str(OWN)] = Answer(404, b"{}")
    with pytest.raises(Unreachable, match="status 404"):
        reader(manager, History()).read(OTHER)


def test_a_history_that_cannot_be_read_now_is_no_end(manager: ResourceManager) -> None:
    history = History()
    history.data = Unreachable("HDFS is away")
    with pytest.raises(Unreachable, match="HDFS is away"):
        reader(manager, history).read(OTHER)


def test_of_several_resourcemanagers_the_answering_one_counts(manager: ResourceManager) -> None:
    manager.answers[OTHER] = app(OTHER, "FINISHED", "SUCCEEDED")
    assert reader(manager, History(), "http://127.0.0.1:1").read(OTHER) == SUCCEEDED


@pytest.mark.parametrize(
    "answer",
    [
        None,
        Answer(200, b'{"app": {"id": "appl'),
        Answer(200, b"[" * 100_000),
        Answer(200, b"null"),
        Answer(307, b"", (("Location", "http://127.0.0.1:1"),)),
        Answer(500, b"{}"),
        app("application_1700000000000_0004", "FINISHED", "SUCCEEDED"),
        app(OTHER, "A_LATER_ONE", "SUCCEEDED"),
        app(OTHER, "FINISHED", None),
    ],
)
def test_half_an_answer_or_another_ones_is_no_end(manager: ResourceManager, answer: Answer | None) -> None:
    manager.answers[OTHER] = answer
    with pytest.raises(Unreachable):
        reader(manager, History()).read(OTHER)


@each_seed("ends of other applications")
def test_damaged_answers_raise_no_other_error(seed: int) -> None:
    """Read 300 answers of values that are wrong or missing."""
    chance = random.Random(seed)
    odd: tuple[Any, ...] = (None, 3, "x", [], {}, [None], 1e300, True, "FINISHED", "SUCCEEDED", OTHER)
    for _ in range(300):
        answer = {"app": {name: chance.choice(odd) for name in ("id", "state", "finalStatus")}}
        try:
            assert read_end(json.loads(json.dumps(answer)), OTHER) in (SUCCEEDED, FAILED)
        except ValueError:
            continue


def test_a_watcher_reports_each_end_once_and_errors_until_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dlapp.am.other_applications.FIRST_S", 0.01)
    monkeypatch.setattr("dlapp.am.other_applications.EVERY_S", 0.01)
    answers: list[str | DlappError | None] = [Unreachable("away"), Unreachable("away"), None, SUCCEEDED]
    events: list[OthersEnded] = []

    def read(_: str) -> str | None:
        answer = answers.pop(0)
        if isinstance(answer, DlappError):
            raise answer
        return answer

    watcher = EndWatcher(read, events.append)
    watcher.start([OTHER])
    wait_for("its end", lambda: not answers, 120)
    watcher.close()
    wait_for("what it tells", lambda: len(events) == 3, 120)
    assert events == [OthersEnded({}, "away"), OthersEnded({}), OthersEnded({OTHER: SUCCEEDED})]
