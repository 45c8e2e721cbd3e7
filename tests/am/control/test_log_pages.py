"""Test logs on the ApplicationMaster's page: each is read once for all that ask, few at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest

from dlapp.am.control import log_pages
from dlapp.am.control.log_pages import LogPages
from dlapp.am.control.server import ControlRequest
from dlapp.cluster.engine import AmEngine
from dlapp.errors import Unreachable
from dlapp.pages.log_page import PageQuery
from dlapp.values.ids import ContainerId
from tests.pages.samples import container


class Engine:
    """One whose nodes answer when the test says so."""

    def __init__(self) -> None:
        self.go, self.read = threading.Event(), list[str]()
        self.error: Exception | None = None

    def log_tail(self, container_id: ContainerId, _log_url: str, stream: str, _most_bytes: int) -> bytes | None:
        self.read.append(f"{container_id} {stream}")
        assert self.go.wait(120)
        if self.error is not None:
            raise self.error
        return b"a line <of> a log\n"


class Call:
    """A request that is not answered yet."""

    def __init__(self) -> None:
        self.answer, self.refused = "", 0
        self._answered = threading.Event()

    def answer_bytes(self, data: bytes) -> None:
        self.answer = data.decode()
        self._answered.set()

    def refuse(self, status: int, _why: str) -> None:
        self.refused = status
        self._answered.set()

    def text(self) -> str:
        assert self._answered.wait(120)
        return self.answer


@pytest.fixture
def engine() -> Iterator[Engine]:
    made = Engine()
    yield made
    made.go.set()


def ask(pages: LogPages, index: int, stream: str = "stderr") -> Call:
    call = Call()
    pages.answer(cast(ControlRequest, call), container(index), PageQuery(index, stream))
    return call


def pages_of(engine: Engine) -> LogPages:
    return LogPages(cast(AmEngine, cast(Any, engine)), "resnet")


def test_a_log_is_read_once_for_all_that_ask(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_pages, "_EVERY_S", 1000.0)
    pages = pages_of(engine)
    calls = [ask(pages, 0), ask(pages, 0)]
    engine.go.set()
    for call in calls:
        assert "a line &lt;of&gt; a log" in call.text()
    assert "a line" in ask(pages, 0).text()
    assert len(engine.read) == 1


@pytest.mark.proves("am-page-logs")
def test_few_logs_are_read_at_a_time(engine: Engine) -> None:
    pages = pages_of(engine)
    calls = [ask(pages, index) for index in range(5)]
    assert [call.refused for call in calls] == [0, 0, 0, 0, 503]
    engine.go.set()
    assert all(call.text() for call in calls[:4])
    assert "a line" in ask(pages, 9).text()


def test_a_log_page_gives_the_reason_why_a_log_cannot_be_read(engine: Engine) -> None:
    engine.error = Unreachable("node7:8042: status 403")
    engine.go.set()
    assert "it cannot be read: node7:8042: status 403" in ask(pages_of(engine), 0).text()


def test_errors_in_dlapp_refuse_no_other_log(engine: Engine) -> None:
    pages, engine.error = pages_of(engine), AssertionError("an error in dlapp")
    calls = [ask(pages, index) for index in range(4)]
    engine.go.set()
    assert [call.text() for call in calls] == [""] * 4
    assert [call.refused for call in calls] == [500] * 4
    engine.error = None
    assert "a line" in ask(pages, 4).text()


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("/", PageQuery()),
        ("/x/?still=1", PageQuery(refreshes=False)),
        ("/?log=12.stdout", PageQuery(12, "stdout")),
        ("/?log=0.stderr&still=1", PageQuery(0, "stderr", False)),
        ("/?log=0.dlapp.log", PageQuery()),
        ("/?log=../x.stdout", PageQuery()),
        ("/?log=99999999.stdout&log=1.stdout", PageQuery(1, "stdout")),
    ],
)
def test_a_query_selects_one_log_or_none(path: str, query: PageQuery) -> None:
    assert PageQuery.of_path(path) == query
