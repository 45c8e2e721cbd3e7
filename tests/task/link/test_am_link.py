"""Test a task's connections to its ApplicationMaster."""

from __future__ import annotations

import socket
import threading

import pytest

from dlapp.net.control import Admission, ControlServer, Request
from dlapp.system import waits
from dlapp.system.waits import Wait
from dlapp.task.interrupt import InterruptHandler
from dlapp.task.link import am_link
from dlapp.task.link.am_link import AmLink
from dlapp.values.ids import ApplicationId, ContainerId
from dlapp.values.messages import Fault, Orders, Phase, TaskResult
from dlapp.values.serialization import to_json
from tests.services.polling import wait_until

CONTAINER = ContainerId(ApplicationId(1_700_000_000_000, 1), 1, 2)


def test_a_task_without_reports_keeps_one_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(am_link, "NEWS_IDLE_S", 0.05)
    heard: list[str] = []
    held: list[Request] = []

    def on_request(request: Request) -> None:
        report = request.json()
        heard.append(report.get("detail", ""))
        if report["wait_s"] and held:
            held.append(request)  # the orders that it waits for do not come
        else:
            held.extend([request] if report["wait_s"] else [])
            server.reply(request, 200, to_json(Orders(attempt=1, number=1, report_every_s=60.0)))

    server = ControlServer(on_request, admit=lambda *_: Admission(1 << 20, authenticated=True))
    url = f"http://{server.host}:{server.port}"
    with server, AmLink(url, "t", CONTAINER, InterruptHandler(), lambda _: None) as link:
        link.begin(0)
        for number in range(3):
            link.report_phase(Phase.RUNNING, detail=f"news {number}")
            wait_until(lambda: f"news {number}" in heard)  # noqa: B023
            wait_until(lambda: len(server._peers) == 1)


def test_a_wait_inside_a_step_is_reported_while_it_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "SHOWN_AFTER_S", 0.0)
    monkeypatch.setattr(waits, "POLL_INTERVAL_S", 0.01)
    heard: list[str] = []

    def on_request(request: Request) -> None:
        if not request.json()["wait_s"]:
            heard.append(request.json()["detail"])
            server.reply(request, 200, to_json(Orders(attempt=1, number=1, report_every_s=60.0)))

    server = ControlServer(on_request, admit=lambda *_: Admission(1 << 20, authenticated=True))
    url = f"http://{server.host}:{server.port}"
    with server, AmLink(url, "t", CONTAINER, InterruptHandler(), lambda _: None) as link:
        link.begin(0)
        link.report_phase(Phase.FETCHING, detail="1 of 2 files")
        wait_until(lambda: heard == ["1 of 2 files"])
        with Wait("HDFS at dn:9864", 60.0):
            wait_until(lambda: heard[-1].startswith("waits for HDFS at dn:9864 since "))
        wait_until(lambda: heard[-1] == "1 of 2 files")
    assert len(heard) == 3


class Elsewhere:
    """The search for the next ApplicationMaster, and for proof that there will be none."""

    def __init__(self) -> None:
        self.url: str | None = None

    def find_url(self) -> str | None:
        return self.url

    def reset(self) -> None: ...


class NotOver:
    """A search for proof that the application is over, which finds none."""

    def begin(self) -> None: ...

    def check(self) -> str:
        return ""


def test_a_task_with_a_hanging_call_switches_to_the_next_applicationmaster_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("HELLO_TIMEOUT_S", "CALL_TIMEOUT_S"):
        monkeypatch.setattr(am_link, name, 1000.0)
    monkeypatch.setattr(am_link, "_FIND_EVERY_S", 0.0)
    monkeypatch.setattr(am_link, "_LOOK_FOR_END_EVERY_S", 0.01)
    find, heard = Elsewhere(), list[int]()

    def on_request(request: Request) -> None:
        heard.append(request.json()["number"])
        server.reply(request, 200, to_json(Orders(attempt=2, number=1, report_every_s=60.0)))

    server = ControlServer(on_request, admit=lambda *_: Admission(1 << 20, authenticated=True))
    with socket.create_server(("127.0.0.1", 0)) as gone, server:
        url = f"http://127.0.0.1:{gone.getsockname()[1]}"
        link = AmLink(url, "t", CONTAINER, InterruptHandler(), lambda _: None, find, end=NotOver())  # type: ignore[arg-type]
        with link:
            link.begin(0)
            gone.accept()[0].close()  # a first failure, after which it looks for the next one
            hangs = [gone.accept()[0]]
            wait_until(lambda: link._end_thread is not None)
            assert heard == []
            find.url = f"http://{server.host}:{server.port}"
            wait_until(lambda: heard)
            wait_until(lambda: link._end_thread is None)
        for item in hangs:
            item.close()


def test_the_last_report_of_a_replaced_task_does_not_wait_without_an_applicationmaster() -> None:
    find = Elsewhere()
    with socket.create_server(("127.0.0.1", 0)) as gone:
        url = f"http://127.0.0.1:{gone.getsockname()[1]}"
    link = AmLink(url, "t", CONTAINER, InterruptHandler(), lambda _: None, find, alone_s=3600.0)
    with link:
        link.begin(0)
        find.url = url
        threading.Timer(0.3, setattr, (find, "url", None)).start()  # it dies while the report is sent to it
        result = TaskResult(fault=Fault.STOPPED)
        link.send_result(result)
        assert not link.finish(3600.0, waits_for_master=False)
