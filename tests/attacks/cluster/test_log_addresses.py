"""Test where a foreign ApplicationMaster says that its logs are: only nodes of the cluster are asked, for it alone."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from dlapp.client.logs import Logs, read_logs
from dlapp.cluster.yarn.client.rest import AppReport
from dlapp.cluster.yarn.client.status import ApplicationReader
from dlapp.errors import NotFound
from dlapp.login import Login
from dlapp.value import replace
from dlapp.values.ids import ApplicationId, ContainerId
from dlapp.values.report import ApplicationView, ContainerView, FinalStatus, State
from dlapp.values.serialization import to_json
from tests.services.http.http_server import Answer, Request, http_server

APP = ApplicationId(1700000000000, 7)
CONTAINER = ContainerId(APP, 1, 2)
PAGE = f"node/containerlogs/{CONTAINER}/mallory"
REPORT = AppReport(
    application_id=APP,
    user="mallory",
    name="x",
    queue="default",
    state=State.RUNNING,
    final_status=FinalStatus.UNDEFINED,
    tracking_url="http://rm:8088/proxy/x",
)


class Service:
    """Something inside that answers HTTP, and what it was asked."""

    def __init__(self) -> None:
        self.address, self.asked = "", list[str]()

    def answer(self, request: Request) -> Answer:
        self.asked.append(request.target)
        return Answer(body=b"LogType:stdout\nLogLength:7\nLogContents:\nsecret\n\nEnd of LogType:stdout\n")


@pytest.fixture
def service() -> Iterator[Service]:
    one = Service()
    with http_server(one.answer) as url:
        one.address = url.removeprefix("http://")
        yield one


class Rest:
    """Answers of the ResourceManager."""

    def __init__(self, report: AppReport, nodes: list[str]) -> None:
        self._report, self.webs, self.asked = report, nodes, 0

    def report(self, _: ApplicationId) -> AppReport:
        return self._report

    def nodes(self) -> list[Any]:
        self.asked += 1
        return [SimpleNamespace(web=web, name=f"n{number}:8041") for number, web in enumerate(self.webs)]


def reader_of(
    url: str, nodes: list[str], report: AppReport = REPORT, settings: dict[str, str] | None = None
) -> tuple[ApplicationReader, Rest]:
    """Return what looks, as tony, at an application whose ApplicationMaster says that its log is at ``url``."""
    container = ContainerView(container_id=CONTAINER, role="main", role_index=0, index=0, log_url=url)
    view = ApplicationView(
        application_id=APP, attempt=1, state=State.RUNNING, final_status=FinalStatus.UNDEFINED, containers=(container,)
    )
    rest = Rest(report, nodes)

    def no_files(_: str) -> Any:
        raise NotFound("nothing")

    session = SimpleNamespace(
        rest=lambda: rest,
        nodes=lambda **_: rest.nodes(),
        user="tony",
        site=SimpleNamespace(get=(settings or {}).get),
        files=no_files,
    )
    masters = SimpleNamespace(view=lambda _, **__: to_json(view), close=lambda: None)
    return ApplicationReader(session, masters), rest  # type: ignore[arg-type]


def read(reader: ApplicationReader) -> tuple[bytes, list[str]]:
    """Return what `dlapp-logs` prints of its stdout, and the lines on what is missing."""
    missing = list[str]()
    pieces = read_logs(
        lambda: (False, reader.logs(APP)),
        streams=("stdout",),
        opened=Logs(login=lambda: Login("tony")),
        missing=missing.append,
    )
    return b"".join(piece.data for piece in pieces), missing


def test_the_log_on_a_node_that_the_resource_manager_names_is_read(service: Service) -> None:
    reader, rest = reader_of(f"http://{service.address}/{PAGE}", [service.address])
    assert read(reader) == (b"secret\n", [])
    assert service.asked == [f"/ws/v1/node/containers/{CONTAINER}/logs/stdout?user.name=tony"]
    assert read(reader) == (b"secret\n", [])
    assert rest.asked == 1


@pytest.mark.proves("am-logs")
@pytest.mark.parametrize(
    "url",
    [
        "http://ADDRESS/" + PAGE,
        "http://node:8042@ADDRESS/" + PAGE,
        "http://ADDRESS/latest/meta-data/a/b/c/d/e/f/g",
        "http://ADDRESS/jobhistory/logs/n0:8041/c/c/mallory",
        "http://node:8042/../" + PAGE,
        "http://node:8042/node/containerlogs/container_1700000000000_0008_01_000002/mallory",
        f"http://node:8042/node/containerlogs/{CONTAINER}/tony",
        f"http://node:8042/{PAGE}/../../x",
        f"http://node:8042/{PAGE}?a=b",
        f"http://node:8042/{PAGE}#",
        f"http://\nnode:8042/{PAGE}",
        f"ftp://node:8042/{PAGE}",
        f"//node:8042/{PAGE}",
        "file:///etc/passwd",
        "x",
    ],
)
def test_an_invalid_log_address_is_reported_in_one_line_and_not_opened(service: Service, url: str) -> None:
    url = url.replace("ADDRESS", service.address)
    reader, _ = reader_of(url, ["node:8042", ""])
    data, missing = read(reader)
    assert data == b""
    assert service.asked == []
    assert missing == [f"stdout of container 0: {url!r} is not a page of its log on a node of this cluster"]
    shown = reader.view(APP).containers[0].log_url
    assert shown in ("", f"http://{service.address}/{PAGE}")


def test_a_newly_added_node_is_asked(service: Service) -> None:
    reader, rest = reader_of(f"http://{service.address}/{PAGE}", [])
    assert read(reader)[0] == b""
    rest.webs.append(service.address)
    assert read(reader) == (b"secret\n", [])


@pytest.mark.proves("am-logs")
def test_after_the_end_the_log_server_is_asked_for_cluster_nodes_only(service: Service) -> None:
    server = {"yarn.log.server.url": f"http://{service.address}/applicationhistory/logs"}
    # Its history is there for its own user alone, so it is mallory who looks.
    ended = replace(REPORT, state=State.FINISHED, final_status=FinalStatus.SUCCEEDED, user="mallory")
    for nodes, data in ((["node:8042"], b"secret\n"), ([], b"")):
        reader, _ = reader_of(f"http://node:8042/{PAGE}", nodes, ended, server)
        am_state = reader_of(f"http://node:8042/{PAGE}", nodes)[0]._am_state(REPORT)
        reader._am_state = lambda _report, message=am_state, **_: message  # type: ignore[method-assign]
        assert read(reader)[0] == data
    page = f"/ws/v1/applicationhistory/containers/{CONTAINER}/logs/stdout?nm.id=n0:8041&user.name=tony"
    assert service.asked == [page]
