"""Test which engine an application is on, when this machine's and a cluster's are both used."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from dlapp.client import Client, engines
from dlapp.client.operations.views import Views
from dlapp.cluster.engine import QueueFacts
from dlapp.cluster.local.queue import Queue
from dlapp.cluster.local.state import open_state
from dlapp.cluster.view_forms import ViewForms
from dlapp.cluster.yarn.client.local_files.last_application import last_application, remember
from dlapp.config import load_config
from dlapp.errors import NotFound, Unreachable, UsageError
from dlapp.tools.applications import list as list_tool

ON_YARN = "application_1600000000000_0042"


@dataclass
class Cluster:
    """A cluster in memory, and how often it was asked for anything."""

    submitted_ms: dict[str, int] = field(default_factory=dict)
    asked: int = 0
    dead: bool = False

    def _ask(self) -> None:
        self.asked += 1
        if self.dead:
            raise Unreachable("rm:8088: refused")

    def ensure_runner(self) -> None: ...

    def ids(self, *, everybody: bool = False) -> list[str]:
        self._ask()
        return list(self.submitted_ms)

    def view(self, application_id: str) -> ViewForms:
        self._ask()
        if application_id not in self.submitted_ms:
            raise NotFound(f"{application_id} is not known to YARN")
        return ViewForms(json=view(application_id, self.submitted_ms[application_id]))

    def views(self, **_: Any) -> list[ViewForms]:
        self._ask()
        return [ViewForms(json=view(one, ms)) for one, ms in self.submitted_ms.items()]

    def queue_facts(self) -> QueueFacts:
        self._ask()
        return QueueFacts(order=tuple(self.submitted_ms))

    def add_receipts(self, views: Sequence[dict[str, Any]]) -> Sequence[str]:
        return [view["application_id"] for view in views]


def view(application_id: str, submitted_ms: int) -> dict[str, Any]:
    who = {"username": "tony", "submitter": "tony"}
    state = {"state": "ACCEPTED", "started_ms": None}
    return {
        "application_id": application_id,
        "submitted_ms": submitted_ms,
        "finished_ms": submitted_ms + 1,
        **who,
        **state,
    }


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Return what there is for the name yarn; this machine's engine is the real one."""
    one = Cluster()
    monkeypatch.setattr(engines, "open_yarn", lambda config, login: one)
    monkeypatch.setenv("HADOOP_CONF_DIR", "/etc/hadoop/conf")
    return one


@pytest.fixture
def local_application() -> str:
    """An application of this machine, submitted at 5000."""
    with Queue(open_state(load_config().local.state_dir)) as queue, queue.change():
        columns = {"submitter": "tony", "username": "tony", "appname": "a", "archive": "", "boot_id": ""}
        numbers = {"memory_mib": 1, "vcores": 1, "gcores": 0, "containers": 1, "submitted_ms": 5000}
        outcome = {"state": "FINISHED", "final_status": "SUCCEEDED", "cause": "succeeded", "diagnostics": ""}
        ended = {"state": "done", "finished_ms": 5001, "outcome": json.dumps({**outcome, "finished_ms": 5001})}
        return queue.insert(uid=os.getuid(), **columns, **numbers, **ended)


def client(default: str) -> Client:
    return Client(load_config({"cluster": default}))


def engine_of(client: Client, application_id: str) -> object:
    return client._engine_of(application_id)


@pytest.mark.parametrize("default", ["local", "yarn"])
def test_an_id_is_searched_at_its_engine(cluster: Cluster, local_application: str, default: str) -> None:
    cluster.submitted_ms[ON_YARN] = 1
    assert engine_of(client(default), ON_YARN) is cluster
    asked = cluster.asked
    assert engine_of(client(default), local_application) is not cluster
    assert cluster.asked == asked


def test_last_is_the_later_of_both(cluster: Cluster, local_application: str) -> None:
    assert client("local").resolve_text("last") == local_application
    assert cluster.asked == 0
    for submitted_ms, last in ((4000, local_application), (6000, ON_YARN)):
        cluster.submitted_ms[ON_YARN] = submitted_ms
        remember(ON_YARN, submitted_ms)
        assert [client(default).resolve_text("last") for default in ("local", "yarn")] == [last, last]


def test_an_ending_is_unique_on_all_engines_that_are_used(cluster: Cluster, local_application: str) -> None:
    other = f"application_1600000000000_{local_application[-4:]}"
    cluster.submitted_ms[other] = 1
    assert (
        client("local").resolve_text(local_application[-4:]) == local_application
    )  # nothing was submitted to the cluster from here
    remember(other, 1)
    with pytest.raises(UsageError, match="2 applications end with"):
        client("local").resolve_text(local_application[-4:])


def test_a_user_who_never_used_the_cluster_sends_it_no_request(cluster: Cluster, local_application: str) -> None:
    cluster.dead = True
    assert [view.json["application_id"] for view in client("local").views_of_all()] == [local_application]
    assert cluster.asked == 0


def test_a_list_names_those_whose_receipts_were_not_read(cluster: Cluster, local_application: str) -> None:
    cluster.submitted_ms = {ON_YARN: 1}
    remember(ON_YARN, 1)
    unread: list[str] = []
    client("local").views_of_all(unread=unread.append)
    assert unread == [ON_YARN]
    client("local").views_of_all(finished=1, unread=unread.append)
    assert unread == [ON_YARN], "those that are not shown are not read"


def test_the_command_reports_the_number_of_missing_receipts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    others = [f"application_1600000000000_000{number}" for number in range(3)]

    def views_of_all(_: Views, *, unread: Callable[[str], None], **__: object) -> list[ViewForms]:
        for item in (ON_YARN, *others[:2]):
            unread(item)
        return [ViewForms(json=view(other, 1)) for other in others]

    monkeypatch.setattr(Views, "views_of_all", views_of_all)
    monkeypatch.setattr(list_tool, "_unstored", lambda *_: [])
    list_tool.main.main(["-o", "id"], standalone_mode=False)
    output = capsys.readouterr()
    assert output.out.split() == others
    assert output.err == "the cost of 2 of these applications is not shown: HDFS did not answer, or not in time\n"


def test_a_list_has_applications_of_both_engines_and_names_a_silent_one(
    cluster: Cluster, local_application: str
) -> None:
    cluster.submitted_ms = {ON_YARN: 1}
    remember(ON_YARN, 1)
    assert [view.json["application_id"] for view in client("local").views_of_all()] == [ON_YARN, local_application]
    assert [view.json["application_id"] for view in client("local").views_of_all(finished=1)] == [local_application]
    cluster.dead = True
    silent: list[Unreachable] = []
    assert [view.json["application_id"] for view in client("local").views_of_all(unanswered=silent.append)] == [
        local_application
    ]
    assert [str(item) for item in silent] == ["rm:8088: refused"]
    with pytest.raises(Unreachable):
        client("local").views_of_all()


def test_the_queue_is_that_of_both_and_without_a_resourcemanager_that_of_this_machine(
    cluster: Cluster, local_application: str
) -> None:
    with Queue(open_state(load_config().local.state_dir)) as queue, queue.change():
        queue.update(int(local_application.rpartition("_")[2]), state="held")
    cluster.submitted_ms = {ON_YARN: 1}
    remember(ON_YARN, 1)
    found = client("local").queue_json()["applications"]
    assert [(view["application_id"], view["place"]) for view in found] == [(local_application, None), (ON_YARN, 1)]
    cluster.dead = True
    silent: list[Unreachable] = []
    left = client("local").queue_json(unanswered=silent.append)["applications"]
    assert [view["application_id"] for view in left] == [local_application]
    assert [str(item) for item in silent] == ["rm:8088: refused"]
    for default in ("local", "yarn"):
        with pytest.raises(Unreachable):
            client(default).queue_json(unanswered=silent.append if default == "yarn" else None)


def test_a_machine_that_has_no_queue_gets_none_by_looking(cluster: Cluster, state_dir: Any) -> None:
    cluster.submitted_ms[ON_YARN] = 1
    assert engine_of(client("yarn"), ON_YARN) is cluster
    assert client("yarn").resolve_text("last") == ON_YARN
    assert not state_dir.exists()


def test_an_invalid_remembered_id_is_ignored() -> None:
    from dlapp.cluster.yarn.client.local_files.last_application import local_cache

    assert last_application() is None
    remember(ON_YARN, 5)
    assert last_application() == (ON_YARN, 5)
    with open(local_cache("last-on-yarn"), "w") as file:
        file.write("application_1_0001")
    assert last_application() is None
