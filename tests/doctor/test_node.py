"""Test what dlapp-doctor says of a node's limits."""

from __future__ import annotations

import json
import resource
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from dlapp.doctor import node


@pytest.mark.parametrize(
    ("hard", "verdict", "words"),
    [
        (4096, "warn", "a process may open 4096 files: an ApplicationMaster here serves 3840 tasks"),
        (200, "warn", "a process may open 200 files: an ApplicationMaster here serves 0 tasks"),
        (524_288, "pass", "a process may open 524288 files"),
        (resource.RLIM_INFINITY, "pass", "a process may open any number of files"),
    ],
)
def test_a_hard_limit_of_open_files_that_is_too_low_is_said(
    hard: int, verdict: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, hard))
    (found,) = node._files()
    assert (found.verdict, found.found) == (verdict, words)
    assert bool(found.repair) == (verdict == "warn")


@pytest.mark.parametrize(("value", "verdicts"), [("true", ["pass"]), ("false", ["warn"]), (None, [])])
def test_whether_programs_outlive_their_nodemanager_it_says_itself(
    value: str | None, verdicts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path.startswith("/conf?name=yarn.nodemanager.recovery.enabled&format=json")
            body = json.dumps({"property": {"key": "yarn.nodemanager.recovery.enabled", "value": value}}).encode()
            self.send_response(200 if value else 403)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        monkeypatch.setenv("NM_HOST", "127.0.0.1")
        monkeypatch.setenv("NM_HTTP_PORT", str(server.server_address[1]))
        assert [one.verdict for one in node._recovery()] == verdicts
        server.shutdown()


def test_a_nodemanager_that_cannot_be_asked_is_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NM_HOST", "127.0.0.1")
    monkeypatch.setenv("NM_HTTP_PORT", "1")
    assert list(node._recovery()) == []
