"""Test what a ResourceManager's answers say of an application that may be over."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dlapp.hadoop.application_state import NOT_KNOWN, read_application_state
from dlapp.login import Login
from tests.hadoop.test_web import answering, server

APP = "application_1700000000000_0001"
UNKNOWN = {"RemoteException": {"exception": "NotFoundException", "message": "app with id not found"}}


def answer(body: Any, status: int = 200) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return f"HTTP/1.1 {status} X\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data


def app(state: str, app_id: str = APP) -> bytes:
    return answer({"app": {"id": app_id, "state": state}})


def info(state: str) -> bytes:
    return answer({"clusterInfo": {"haState": state}})


@pytest.mark.parametrize(
    ("answers", "found"),
    [
        ([app("RUNNING")], "RUNNING"),
        ([app("KILLED"), info("ACTIVE")], "KILLED"),
        ([app("FINISHED"), info("INITIALIZING")], ""),
        ([app("FINISHED"), info("STANDBY")], ""),
        ([app("FAILED"), answer({})], ""),
        ([app("KILLED", "application_1700000000000_0002")], ""),
        ([answer(UNKNOWN, 404)], NOT_KNOWN),
        ([answer(b"", 307)], ""),
        ([answer(b"<html>")], ""),
        ([answer({"app": []})], ""),
        ([answer(b"{}", 403)], ""),
    ],
)
def test_only_an_active_resourcemanager_proves_an_end(answers: list[bytes], found: str) -> None:
    with server(answering(*answers)) as url:
        assert read_application_state([url], Login("tony"), APP, timeout_s=120) == found


def test_down_and_standby_resourcemanagers_are_skipped() -> None:
    standby = answer(b"This is standby RM", 200)
    with server(answering(standby)) as first, server(answering(app("KILLED"), info("ACTIVE"))) as second:
        urls = ["http://127.0.0.1:1", first, second]
        assert read_application_state(urls, Login("tony"), APP, timeout_s=120) == "KILLED"


def test_an_unreachable_resourcemanager_proves_no_end() -> None:
    assert read_application_state(["http://127.0.0.1:1"], Login("tony"), APP, timeout_s=120) == ""
    assert read_application_state([], Login("tony"), APP, timeout_s=120) == ""
