"""Test what a client asks a ResourceManager for, how much of an answer it reads, and the nodes that it keeps."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dlapp.cluster.yarn.client import rest
from dlapp.cluster.yarn.client.engine import YarnEngine
from dlapp.cluster.yarn.client.local_files import node_cache
from dlapp.cluster.yarn.client.rest import NodeInfo, YarnRest
from dlapp.cluster.yarn.client.session import ClusterSession
from dlapp.cluster.yarn.client.status import ApplicationReader
from dlapp.cluster.yarn.dialect import Dialect
from dlapp.hadoop import web
from dlapp.hadoop.web import AnswerTooLarge
from dlapp.login import Login
from dlapp.system import clock
from dlapp.values.ids import ApplicationId, ContainerId
from dlapp.values.report import State
from dlapp.values.spec import AppSpec, Placement, RoleSpec
from tests.services.http.http_server import as_json, http_server

APP = ApplicationId(1700000000000, 7)
URLS = ["http://rm1:8088", "http://rm2:8088"]
NODES = [
    NodeInfo(
        name=f"node{number}:8041", web=f"node{number}:8042", state="RUNNING", total={"memory-mb": 4096, "vcores": 8}
    )
    for number in range(3)
]


def resource_manager(answer: Callable[[str, dict[str, str]], Any]) -> AbstractContextManager[str]:
    """Return the context of a server that answers with what ``answer`` makes of path and query."""
    return http_server(lambda item: as_json(answer(item.path.removeprefix("/ws/v1/cluster"), item.query)))


def app(number: int) -> dict[str, Any]:
    return {"id": str(ApplicationId(1, number)), "state": "RUNNING", "finalStatus": "UNDEFINED"}


def test_a_list_requests_only_dlapp_applications_in_the_wanted_states_and_used_fields() -> None:
    asked: list[tuple[str, dict[str, str]]] = []

    def answer(path: str, query: dict[str, str]) -> Any:
        asked.append((path, query))
        return {"/nodes": {"nodes": {"node": []}}, "/apps": {"apps": {"app": [app(1)]}}}.get(path, {"app": app(7)})

    with resource_manager(answer) as url, YarnRest([url], Login("tony")) as yarn:
        yarn.reports(user="tina", states=[State.RUNNING, State.ACCEPTED])
        yarn.report(APP)
        yarn.nodes()
        yarn.nodes(running=True)
    unread = "resourceRequests,timeouts,appNodeLabelExpression"
    listed = {"applicationTypes": "DLAPP", "user": "tina", "states": "ACCEPTED,RUNNING", "limit": "20000"}
    who = {"user.name": "tony"}
    assert asked == [
        ("/apps", {**who, **listed, "deSelects": f"{unread},resourceInfo"}),
        (f"/apps/{APP}", {**who, "deSelects": unread}),
        ("/nodes", who),
        ("/nodes", {**who, "states": "RUNNING"}),
    ]


def test_a_list_that_a_limit_cut_is_no_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest, "MAX_APPLICATIONS", 3)
    apps = [app(1), app(2)]
    with resource_manager(lambda *_: {"apps": {"app": apps}}) as url, YarnRest([url], Login("tony")) as yarn:
        assert len(yarn.reports()) == 2
        apps.append(app(3))
        with pytest.raises(AnswerTooLarge, match=r"lists more than 3 applications.*; name one user, or lower yarn"):
            yarn.reports()


def test_an_answer_above_the_limit_is_refused_with_the_limit_and_a_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(web, "MAX_BYTES", 1 << 20)
    asked: list[str] = []

    def answer(path: str, _query: dict[str, str]) -> Any:
        asked.append(path)
        return {"clusterInfo": {"haState": "ACTIVE", "text": "x" * (path != "/info") * (1 << 20)}}

    with resource_manager(answer) as url, YarnRest([url, url], Login("tony")) as yarn:
        with pytest.raises(
            AnswerTooLarge, match=r"more than 1 MiB, which is not read, to GET .*/apps; name one user, or"
        ):
            yarn.reports()
        with pytest.raises(
            AnswerTooLarge, match=r"more than 1 MiB, which is not read, to GET .*/nodes; tell the operator"
        ):
            yarn.nodes()
    # No other ResourceManager is asked for the same once more.
    assert asked == ["/info", "/apps", "/nodes"]


# ---- the nodes that are kept ----


@pytest.fixture(autouse=True)
def now_ms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    now = [1_700_000_000_000]
    monkeypatch.setattr(clock, "now_ms", lambda: now[0])
    return now


def test_nodes_are_kept_for_ten_minutes_for_each_cluster(now_ms: list[int]) -> None:
    assert node_cache.find(URLS) is None
    node_cache.keep(URLS, NODES)
    assert node_cache.find(URLS[::-1]) == NODES
    assert node_cache.find(URLS[:1]) is None
    now_ms[0] += 600_000
    assert node_cache.find(URLS) == NODES
    now_ms[0] += 1
    assert node_cache.find(URLS) is None
    now_ms[0] -= 700_000  # the clock was set back
    assert node_cache.find(URLS) is None


def test_a_node_list_is_replaced_atomically_without_other_files() -> None:
    node_cache.keep(URLS, NODES)
    node_cache.keep(URLS, NODES[:1])
    assert node_cache.find(URLS) == NODES[:1]
    assert len(os.listdir(node_cache.directory())) == 1


def test_a_list_of_nodes_that_is_too_large_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    node_cache.keep(URLS, NODES)
    monkeypatch.setattr(node_cache, "MAX_BYTES", 100)
    assert node_cache.find(URLS) is None
    monkeypatch.undo()
    monkeypatch.setattr(node_cache, "MAX_BYTES", 100)
    node_cache.keep(URLS[:1], NODES)
    assert node_cache.find(URLS[:1]) is None


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"read_ms": 1700000000000, "nodes": [["a"]]}', '{"read_ms": "x"}'])
def test_a_list_of_nodes_that_is_none_is_read_afresh(text: str) -> None:
    node_cache.keep(URLS, NODES)
    (name,) = os.listdir(node_cache.directory())
    Path(node_cache.directory(), name).write_text(text)
    assert node_cache.find(URLS) is None


def test_a_list_of_nodes_that_others_may_write_or_that_is_a_link_is_not_used(tmp_path: Path) -> None:
    node_cache.keep(URLS, NODES)
    directory = Path(node_cache.directory())
    (name,) = os.listdir(directory)
    directory.chmod(0o777)
    assert node_cache.find(URLS) is None
    directory.chmod(0o700)
    os.rename(directory / name, tmp_path / "elsewhere")
    (directory / name).symlink_to(tmp_path / "elsewhere")
    assert node_cache.find(URLS) is None
    node_cache.keep(URLS, NODES)  # in the place of the link
    assert node_cache.find(URLS) == NODES
    assert (tmp_path / "elsewhere").exists()


def test_a_node_list_that_cannot_be_stored_is_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    node_cache.keep(URLS, NODES)
    assert node_cache.find(URLS) is None


class Session(ClusterSession):
    """A session whose ResourceManager has these nodes now."""

    def __init__(self, nodes: list[NodeInfo], others: tuple[NodeInfo, ...] = ()) -> None:
        self.asked: list[bool] = []

        def read(*, running: bool = False) -> list[NodeInfo]:
            self.asked.append(running)
            return nodes if running else [*nodes, *others]

        self.site = SimpleNamespace(web_urls=lambda: URLS)  # type: ignore[assignment]
        self.rest = lambda _user=None: SimpleNamespace(nodes=read)  # type: ignore[assignment, method-assign, return-value]
        self.dialect = lambda: Dialect.NONE  # type: ignore[method-assign]


def lines(session: Session, placement: Placement) -> list[str]:
    spec = AppSpec(
        username="tony", appname="a", workspace="/w", script="s", roles=(RoleSpec(instances=1),), placement=placement
    )
    engine = SimpleNamespace(_session=session)
    engine._check_nodes = lambda *arguments: YarnEngine._check_nodes(engine, *arguments)  # type: ignore[arg-type]
    return YarnEngine._node_lines(engine, spec)  # type: ignore[arg-type]


def test_a_placement_that_cached_nodes_satisfy_sends_no_request() -> None:
    node_cache.keep(URLS, NODES)
    session = Session([])
    assert lines(session, Placement(nodes=("node1",))) == []
    assert session.asked == []


def test_messages_on_nodes_use_a_fresh_list() -> None:
    node_cache.keep(URLS, NODES[:1])
    session = Session(NODES)
    assert lines(session, Placement(nodes=("node2",))) == []
    assert session.asked == [True]
    # Now the list that is kept has it.
    assert lines(session, Placement(nodes=("node2",))) == []
    assert session.asked == [True]
    output = lines(session, Placement(exclude_nodes=("node7",)))
    assert [text.partition(",")[0] for text in output] == ["resources.exclude_nodes: no node 'node7' runs now"]
    assert session.asked == [True] * 2


def test_a_log_on_a_node_that_does_not_run_any_more_is_still_shown() -> None:
    node_cache.keep(URLS, NODES[:1])
    leaving = NodeInfo(name="old:8041", web="old:8042", state="DECOMMISSIONING", total={})
    session = Session(NODES, (leaving,))
    reader = ApplicationReader(session, SimpleNamespace())  # type: ignore[arg-type]
    report = SimpleNamespace(application_id=APP, user="tony")

    def nodes_of(host: str) -> dict[str, str]:
        container_id = ContainerId(APP, 1, 2)
        url = f"http://{host}:8042/node/containerlogs/{container_id}/tony"
        container = SimpleNamespace(container_id=container_id, log_url=url)
        return reader._nodes_of([container], report)  # type: ignore[list-item, arg-type]

    for host, asked in (("node0", []), ("node2", [True]), ("old", [True, True, False])):
        assert nodes_of(host)[f"{host}:8042"] == f"{host}:8041"
        assert session.asked == asked
    assert "nowhere:8042" not in nodes_of("nowhere")
