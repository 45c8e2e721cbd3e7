"""Test the protocols of Hadoop 2, byte by byte, against what servers of 2.7.7 and 2.10.2 took and answered.

``recorded/hadoop-VERSION.json`` has a conversation with real ones, which no other test here can have: an
ApplicationMaster's calls (``rpc``: method, request, answer) and a client's (``rest``: path, status, body; of the
scheduler, of ``/conf`` and of lists a part). Each request of ours must be the recorded one.

Source: servers of 2.7.7 and 2.10.2 from Maven Central, on Java 17 with ``--add-opens`` and the versions of jackson-xc,
jackson-jaxrs and httpclient that the releases have (Maven resolves older ones).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dlapp.cluster.yarn.am.node_manager import NodeManager
from dlapp.cluster.yarn.am.resource_manager import ResourceManager, lifetime_left_s, usable_nodes
from dlapp.cluster.yarn.client.rest import MAX_APPLICATIONS, AppSubmission, YarnRest
from dlapp.cluster.yarn.client.timeline.history import forgotten, from_timeline
from dlapp.cluster.yarn.dialect import Dialect
from dlapp.cluster.yarn.values import (
    Allocation,
    ContainerStage,
    ContainerStatus,
    Granted,
    Launch,
    NodeId,
    ResourceRequest,
)
from dlapp.errors import NotFound
from dlapp.gpuid.liveness.applications import application_liveness
from dlapp.gpuid.liveness.result import ALIVE, GONE
from dlapp.gpuid.rules import LedgerError
from dlapp.gpuid.stores.node_manager import assigned
from dlapp.hadoop.application_state import NOT_KNOWN, read_application_state
from dlapp.hadoop.errors import ApplicationNotFound
from dlapp.hadoop.tokens import AM_RM_KIND, Credentials, Token
from dlapp.login import Login
from dlapp.values.ids import ApplicationId, ContainerId
from dlapp.values.report import FinalStatus, State
from dlapp.values.spec import Resources
from tests.hadoop.rpc_server import RpcServer
from tests.services.http.http_server import Answer, Request, http_server

VERSIONS = ("2.7.7", "2.10.2")
TOKEN = Token(b"identifier", b"password", AM_RM_KIND)
LOGIN = Login("root")
RECORDED = Path(__file__).parent / "recorded"


UNRECORDED = ("user.name=", "deSelects=", "applicationTypes=", f"limit={MAX_APPLICATIONS}")
"""What was not asked for when the answers were recorded, and changes none of them."""


class Recording:
    """Recorded answers of the servers of one version, with what they had been asked."""

    def __init__(self, version: str) -> None:
        self.version = version
        found = json.loads((RECORDED / f"hadoop-{version}.json").read_text())
        self.rest: dict[str, tuple[str, int, str]] = {name: tuple(one) for name, one in found["rest"].items()}
        self._calls: list[tuple[str, str, str]] = found["rpc"]
        self.application = ApplicationId.from_text(self.rest["app-finished"][0].rpartition("/")[2])
        self.has_types = version != "2.7.7"
        """True: it knows other resources than memory and vcores."""

    def answer(self, method: str, request: bytes) -> bytes:
        """Answer the next call; it must be the recorded one."""
        recorded, asked, answer = self._calls.pop(0)
        # Nodes that are decommissioned gracefully were not asked for, and there were none; 2.7 knows no such state.
        now = request.removesuffix(b"\x08\x07") if method == "getClusterNodes" else request
        assert (method, now.hex()) == (recorded, asked)
        return bytes.fromhex(answer)


@pytest.fixture(params=VERSIONS)
def recording(request: pytest.FixtureRequest) -> Recording:
    return Recording(request.param)


@pytest.fixture
def web(recording: Recording) -> Iterator[tuple[str, list[tuple[str, str, bytes]]]]:
    """A web server with the recorded answers: its URL, and what came to it."""
    asked: list[tuple[str, str, bytes]] = []
    answers = {path: (status, body) for path, status, body in recording.rest.values()}

    def answer(request: Request) -> Answer:
        asked.append((request.method, request.target, request.body))
        path, _, query = request.target.partition("?")
        query = "&".join(word for word in query.split("&") if not word.startswith(UNRECORDED))
        if request.method != "GET":
            return Answer(202)
        status, text = answers.get(f"{path}?{query}" if query else path, (404, "<!DOCTYPE html>"))
        return Answer(status, text.encode())

    with http_server(answer) as url:
        yield url, asked


# ---- the ApplicationMaster ----


def stage_of(node: NodeManager, container_id: ContainerId) -> ContainerStage:
    status = node.known_statuses([container_id], timeout_s=120)[container_id]
    assert status is not None
    return status.stage


def test_an_applicationmaster_runs_on_hadoop_2_from_registration_to_end(recording: Recording) -> None:
    dialect = Dialect.GCORES if recording.has_types else Dialect.NONE
    gcores = 1 if recording.has_types else 0
    with RpcServer(recording.answer, TOKEN) as server, RpcServer(recording.answer) as for_all:
        rm = ResourceManager([server.address], TOKEN, dialect)
        registration = rm.register("here", 4711, "http://here:4711/", timeout_s=120)
        assert (registration.largest, registration.live) == (
            Resources(memory_mib=4096, vcores=8, gcores=4 * gcores),
            (),
        )

        size = Resources(memory_mib=256, vcores=1, gcores=gcores)
        places = ("127.0.1.1", "127.0.1.2", "/default-rack", "*")
        rows = [ResourceRequest(priority=3, request_id=3, name=place, count=2, resources=size) for place in places]
        granted: list[Granted] = []
        news = rm.allocate(rows, timeout_s=120)
        while not news.granted:
            news = rm.allocate(timeout_s=120)
        granted.extend(news.granted)
        # 2.7 does not say whose request a container meets: its priority does.
        assert [(item.priority, item.resources) for item in granted] == [(3, size)] * 2
        assert {item.request_id for item in granted} == {3 if recording.has_types else -1}
        first, second = (container.container_id for container in granted)
        assert (first, second.number) == (ContainerId(recording.application, 1, 2), 3)

        assert set(rm.node_tokens) == {item.node for item in granted}
        node = NodeManager(NodeId(*server.address), TOKEN)
        sleep = Launch(command=("/bin/sh", "-c", "echo hello out; sleep 1000"))
        assert node.start([(granted[0], sleep)], timeout_s=120) == {first: None}
        # Its refusal of a second start says that the first got through.
        assert node.start([(granted[0], Launch(command=("/bin/true",)))], timeout_s=120) == {first: None}
        exits = Launch(command=("/bin/sh", "-c", "echo two; exit 3"))
        assert node.start([(granted[1], exits)], timeout_s=120) == {second: None}
        assert stage_of(node, first) is ContainerStage.RUNNING
        assert stage_of(node, second) in (ContainerStage.RUNNING, ContainerStage.ENDED)

        assert [(container.container_id, container.exit_status) for container in rm.allocate(timeout_s=120).ended] == [
            (second, 3)
        ]
        nodes = usable_nodes([for_all.address], LOGIN, dialect, timeout_s=120)
        assert sorted(item.node.host for item in nodes) == ["127.0.1.1", "127.0.1.2"]
        assert {(item.capability, item.rack) for item in nodes} == {(registration.largest, "/default-rack")}
        assert lifetime_left_s([for_all.address], LOGIN, recording.application, timeout_s=120) == math.inf

        assert node.stop([first], timeout_s=120) == {first: None}
        ended = _until_ended(rm)
        assert [(container.container_id, container.stage, container.exit_status) for container in ended] == [
            (first, ContainerStage.ENDED, -105)
        ]
        assert stage_of(node, first) is ContainerStage.ENDED
        while not rm.finish(FinalStatus.SUCCEEDED, "all is well", "", timeout_s=120):
            pass
        rm.close()
    with pytest.raises(IndexError):
        recording.answer("all calls were made", b"")


def _until_ended(rm: ResourceManager) -> tuple[ContainerStatus, ...]:
    news: Allocation = rm.allocate(timeout_s=120)
    while not news.ended:
        news = rm.allocate(timeout_s=120)
    return news.ended


# ---- the client ----


def test_a_client_reads_the_cluster(recording: Recording, web: tuple[str, Any]) -> None:
    with YarnRest([web[0]], LOGIN) as rest:
        assert rest.info()["resourceManagerVersion"] == recording.version
        counted = {"memory-mb": 4096, "vcores": 8} | ({"gcores": 4} if recording.has_types else {})
        assert {(node.host, node.state): node.total for node in rest.nodes()} == {
            ("127.0.1.1", "RUNNING"): counted,
            ("127.0.1.2", "RUNNING"): counted,
        }
        queues = {queue.path: (queue.leaf, queue.state) for queue in rest.queues()}
        leaves = dict.fromkeys(("default", "research", "full", "locked"), (True, "RUNNING"))
        leaves["closed"] = (True, "STOPPED")
        assert queues == {"root": (False, "RUNNING")} | {f"root.{name}": one for name, one in leaves.items()}
        # 2.7 answers with all properties, whatever was asked.
        assert rest.configuration("yarn.resourcemanager.hostname") == "127.0.0.1"
        assert rest.scheduled_types() is None


def test_a_client_reads_reports_in_which_fields_are_missing(recording: Recording, web: tuple[str, Any]) -> None:
    with YarnRest([web[0]], LOGIN) as rest:
        report = rest.report(recording.application)
        assert (report.state, report.final_status, report.queue) == (State.FINISHED, FinalStatus.SUCCEEDED, "default")
        assert (report.kind, report.tags, report.user) == ("DLAPP", ("project x",), "root")
        assert report.finished_ms > report.started_ms > 0
        assert report.priority == (1 if recording.has_types else None)
        assert rest.reports() == []  # "apps": null
        (running,) = rest.reports(states=[State.RUNNING])
        assert (running.application_id, running.state) == (recording.application, State.RUNNING)
        with pytest.raises(ApplicationNotFound):
            rest.report(ApplicationId(1, 1))


def test_a_submission_has_no_empty_list(recording: Recording, web: tuple[str, list[tuple[str, str, bytes]]]) -> None:
    """Hadoop 2 ends a submission with one by an internal error: ``Cannot read field "name" because "pi" is null``."""
    secrets = Credentials({}, {"plan": b"{}"}).encode()
    launches = (Launch(command=("true",)), Launch(command=("true",), credentials=secrets))
    with YarnRest([web[0]], LOGIN) as rest:
        for launch in launches:
            rest.submit(AppSubmission(application_id=recording.application, name="a", launch=launch, memory_mib=256))
    bodies = [body for method, _, body in web[1] if method == "POST"]
    assert len(bodies) == len(launches)
    assert not [body for body in bodies if b"[]" in body]


def test_the_timeline_server_is_read(recording: Recording, web: tuple[str, Any]) -> None:
    # Its answers have no outer object, and 2.7 leaves out the state of an application that it has no end of.
    found = from_timeline(web[0], recording.application, LOGIN)
    assert (found.application_id, found.name, found.user) == (recording.application, "trial", "root")
    assert (found.state, found.final_status) == (State.RUNNING, FinalStatus.UNDEFINED)
    with pytest.raises(NotFound):
        from_timeline(web[0], ApplicationId(1, 1), LOGIN)
    assert forgotten(web[0], LOGIN, whose=None, known=()) == []


def test_the_end_of_an_application_is_proven(recording: Recording, web: tuple[str, Any]) -> None:
    application = str(recording.application)
    assert read_application_state([web[0]], LOGIN, application, timeout_s=120) == "FINISHED"
    assert read_application_state([web[0]], LOGIN, "application_1_0001", timeout_s=120) == NOT_KNOWN
    running, ended = (json.loads(recording.rest[name][2]) for name in ("app-running", "app-finished"))
    date = "Mon, 23 Nov 2076 14:48:00 GMT"
    assert application_liveness(running, application, date, 60).state == ALIVE
    assert application_liveness(ended, application, date, 60).state == GONE


def test_a_node_without_a_gpu_plug_in_answers_null() -> None:
    path, status, body = Recording("2.10.2").rest["nm-gpu"]
    assert (path.rpartition("/")[2], status) == ("yarn.io%2Fgpu", 200)
    with pytest.raises(LedgerError, match="it has no plug-in"):
        assigned(json.loads(body), "container_1_0001_01_000002")
