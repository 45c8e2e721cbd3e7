"""Test what dlapp-doctor says of a node's limits."""

from __future__ import annotations

import resource

import pytest

from dlapp.doctor import node
from tests.services.http.http_server import Answer, Request, as_json, http_server


@pytest.mark.parametrize(
    ("hard", "verdict", "words"),
    [
        (4096, "warn", "a process may open 4096 files: an ApplicationMaster here serves 3840 tasks"),
        (200, "warn", "a process may open 200 files: an ApplicationMaster here serves 150 tasks"),
        (524_288, "pass", "a process may open 524288 files"),
        (resource.RLIM_INFINITY, "pass", "a process may open any number of files"),
    ],
)
def test_a_low_hard_limit_of_open_files_is_reported(
    hard: int, verdict: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, hard))
    (found,) = node._files()
    assert (found.verdict, found.found) == (verdict, words)
    assert bool(found.repair) == (verdict != "pass")


@pytest.mark.parametrize(("value", "verdicts"), [("true", ["pass"]), ("false", ["warn"]), (None, [])])
def test_nodemanager_recovery_is_read_from_the_nodemanager(
    value: str | None, verdicts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(request: Request) -> Answer:
        assert request.target.startswith("/conf?name=yarn.nodemanager.recovery.enabled&format=json")
        setting = {"key": "yarn.nodemanager.recovery.enabled", "value": value}
        return as_json({"property": setting}, 200 if value else 403)

    with http_server(answer) as url:
        monkeypatch.setenv("NM_HOST", "127.0.0.1")
        monkeypatch.setenv("NM_HTTP_PORT", url.rpartition(":")[2])
        assert [finding.verdict for finding in node._recovery()] == verdicts


def test_an_unreachable_nodemanager_is_not_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NM_HOST", "127.0.0.1")
    monkeypatch.setenv("NM_HTTP_PORT", "1")
    assert list(node._recovery()) == []


SCRIPT = "yarn.nodemanager.health-checker.script.path"


@pytest.mark.parametrize(
    ("settings", "verdicts"),
    [
        ({"yarn.nodemanager.resource-plugins": "yarn.io/gpu", SCRIPT: "/usr/local/bin/dlapp-gpu"}, ["pass"]),
        ({"yarn.nodemanager.resource-plugins": "yarn.io/fpga,yarn.io/gpu", SCRIPT: ""}, ["warn"]),
        ({"yarn.nodemanager.resource-plugins": "yarn.io/gpu"}, ["warn"]),
        (
            {
                "yarn.nodemanager.resource-plugins": "yarn.io/gpu",
                "yarn.nodemanager.health-checker.scripts": "disks, gpus",
                "yarn.nodemanager.health-checker.gpus.path": "/opt/gpus",
            },
            ["pass"],
        ),
        ({"yarn.nodemanager.resource-plugins": "", SCRIPT: ""}, []),
        ({}, []),
    ],
)
def test_a_node_that_assigns_gpus_is_to_have_a_health_script(
    settings: dict[str, str], verdicts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(request: Request) -> Answer:
        name = request.query["name"]
        return as_json({"property": {"key": name, "value": settings[name]}}) if name in settings else Answer(404)

    with http_server(answer) as url:
        monkeypatch.setenv("NM_HOST", "127.0.0.1")
        monkeypatch.setenv("NM_HTTP_PORT", url.rpartition(":")[2])
        found = list(node._health_script())
    assert [finding.verdict for finding in found] == verdicts
    assert all(finding.repair for finding in found if finding.verdict == "warn")
