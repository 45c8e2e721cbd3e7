"""Our ApplicationMaster's and client's side against a real ResourceManager and real NodeManagers."""

from __future__ import annotations

import getpass
import itertools
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest

import dlapp
from dlapp.cluster.yarn.am.node_manager import NodeManager
from dlapp.cluster.yarn.am.resource_manager import ResourceManager, usable_nodes
from dlapp.cluster.yarn.client import rest as rest_module
from dlapp.cluster.yarn.client.rest import AppSubmission, YarnRest
from dlapp.cluster.yarn.dialect import FIELD3_LIMIT, Dialect, choose_dialect
from dlapp.cluster.yarn.values import Allocation, ContainerStage, ContainerStatus, Granted, Launch, ResourceRequest
from dlapp.errors import Denied, Unreachable
from dlapp.hadoop.errors import (
    ApplicationNotFound,
    AttemptOver,
    ConnectionLost,
    NotAllowed,
    NotRegistered,
    RemoteError,
    RequestRefused,
    TokenRefused,
    WrongRequest,
)
from dlapp.hadoop.tokens import AM_RM_KIND, Credentials, Token
from dlapp.login import Login
from dlapp.value import replace
from dlapp.values.ids import ApplicationId, ContainerId
from dlapp.values.report import FinalStatus, State
from dlapp.values.spec import Resources
from tests.cluster.yarn.on_yarn import Attempt, submission, until
from tests.services.hadoop import NODES, VERSION, Hadoop
from tests.services.http.proxy import Plan, Proxy

T = TypeVar("T")
SMALL = Resources(memory_mib=256, vcores=1, gcores=1)
TRIAL = Path(__file__).with_name("trial_am.py")
SOURCES = [str(Path(dlapp.__file__).parents[2]), *[path for path in sys.path if "site-packages" in path]]


HOSTS = tuple(NODES.values())


def rows(
    count: int, resources: Resources = SMALL, hosts: Sequence[str] = HOSTS, *, strict: bool = False
) -> list[ResourceRequest]:
    return [
        ResourceRequest(
            priority=1, request_id=0, name=name, count=count, resources=resources, relax=not strict or name in hosts
        )
        for name in [*hosts, "/default-rack", "*"]
    ]


class Master:
    """Heartbeats until something has come; keeps all that came."""

    def __init__(self, rm: ResourceManager, timeout_s: float = 120) -> None:
        self.rm, self.timeout_s = rm, timeout_s
        self.granted: dict[ContainerId, Granted] = {}
        self.ended: dict[ContainerId, ContainerStatus] = {}

    def beat(self, *what: Any, **options: Any) -> Allocation:
        news = self.rm.allocate(*what, timeout_s=self.timeout_s, **options)
        for container in news.granted:
            assert container.container_id not in self.granted, "granted twice"
            self.granted[container.container_id] = container
        self.ended.update({container.container_id: container for container in news.ended})
        return news

    def wait_for(self, count: int) -> list[Granted]:
        until(lambda: self.beat() and len(self.granted) >= count)
        return list(self.granted.values())

    def wait_for_end(self, container_id: ContainerId) -> ContainerStatus:
        until(lambda: self.beat() and container_id in self.ended)
        return self.ended[container_id]

    def start(self, one: Granted, *command: str) -> None:
        launch = Launch(command=command)
        assert self.node(one).start([(one, launch)], timeout_s=120) == {one.container_id: None}

    def stage(self, one: Granted) -> ContainerStage:
        status = self.node(one).statuses([one.container_id], timeout_s=120)[one.container_id]
        assert isinstance(status, ContainerStatus)
        assert status.stage is not ContainerStage.ENDED, status
        return status.stage

    def node(self, one: Granted) -> NodeManager:
        return NodeManager(one.node, self.rm.node_tokens[one.node])


@pytest.fixture
def master(attempt: Attempt) -> Iterator[Master]:
    rm = attempt.connect()
    rm.register("here", 0, "", timeout_s=120)
    yield Master(rm)
    rm.close()


# ---- a whole run ----


def test_an_application_runs_from_its_submission_to_its_success(hadoop: Hadoop, rest: YarnRest, tmp_path: Path) -> None:
    word = "a \"b\" $HOME `x` \\ 'c' !"
    plan = {
        "path": SOURCES,
        "scheduler": hadoop.scheduler_address,
        "resources": {"memory_mib": 256, "vcores": 1, "gcores": 1},
        "hosts": list(NODES.values()),
        "count": 2,
        "command": ["/bin/sh", "-c", f'echo "$WORD" > {tmp_path}/"$INDEX"; exit $INDEX'],
        "environment": {"WORD": word},
        "result": str(tmp_path / "result"),
    }
    (tmp_path / "plan").write_text(json.dumps(plan))
    new = rest.new_application()
    secrets = Credentials({}, {"secret": b"\0\xff"}).encode()
    launch = Launch(command=(sys.executable, "-I", str(TRIAL), str(tmp_path / "plan")), credentials=secrets)
    rest.submit(
        AppSubmission(
            application_id=new.application_id, name="the trial's", launch=launch, memory_mib=256, tags=("Project X",)
        )
    )
    report = until(lambda: (one := rest.report(new.application_id)).state.ended and one)
    assert (report.state, report.final_status, report.diagnostics) == (
        State.FINISHED,
        FinalStatus.SUCCEEDED,
        "the trial is over",
    )
    # The queue's path from Hadoop 3.4 on, before that its name.
    assert (report.name, report.queue.removeprefix("root."), report.kind, report.tags) == (
        "the trial's",
        "default",
        "DLAPP",
        ("project x",),
    )
    result = json.loads((tmp_path / "result").read_text())
    assert sorted(status for status, _ in result["ended"].values()) == [0, 1]
    assert all(gcores == 1 and node in hadoop.nodes for node, gcores in result["granted"].values())
    assert result["largest"] == [4096, 8, 4]
    assert [(tmp_path / name).read_text() for name in "01"] == [word + "\n"] * 2
    assert result["secrets"] == {"secret": "00ff"}
    assert "00ff" not in json.dumps(result["environment"])


# ---- the heartbeat ----


def test_containers_are_allocated_started_and_their_ends_reported(master: Master) -> None:
    master.beat(rows(3))
    one, two, three = master.wait_for(3)
    assert all(each.resources == SMALL and each.request_id == 0 and each.priority == 1 for each in (one, two, three))
    master.start(one, "/bin/sh", "-c", "exit 3")
    master.start(two, "sleep", "1000")
    assert master.wait_for_end(one.container_id).exit_status == 3
    assert "exit code 3" in master.ended[one.container_id].diagnostics
    until(lambda: master.stage(two) is ContainerStage.RUNNING)  # it is PREPARING first, as long as its node takes
    assert master.node(two).stop([two.container_id], timeout_s=120) == {two.container_id: None}
    assert master.node(two).stop([two.container_id], timeout_s=120) == {two.container_id: None}
    assert master.wait_for_end(two.container_id).exit_status == -105
    master.beat((), [three.container_id])
    assert master.wait_for_end(three.container_id).exit_status == -100


def test_a_start_that_got_through_may_be_repeated(master: Master) -> None:
    master.beat(rows(1))
    (one,) = master.wait_for(1)
    master.start(one, "sleep", "1000")
    master.start(one, "sleep", "1000")


def test_an_unknown_container_is_an_error_of_its_own(master: Master) -> None:
    master.beat(rows(1))
    (one,) = master.wait_for(1)
    master.start(one, "sleep", "1000")
    other = ContainerId(one.container_id.application, 1, 999_999)
    outcome = master.node(one).stop([one.container_id, other], timeout_s=120)
    assert outcome[one.container_id] is None
    assert "not handled by this NodeManager" in str(outcome[other])
    statuses = master.node(one).statuses([other], timeout_s=120)
    assert isinstance(statuses[other], RemoteError)


def test_strict_hosts_and_hosts_to_avoid_are_kept_to(master: Master) -> None:
    first, second = NODES.values()
    master.beat(rows(2, hosts=[second], strict=True))
    assert {item.node.host for item in master.wait_for(2)} == {second}
    master.beat(rows(0, hosts=[second], strict=True))
    master.beat([ResourceRequest(priority=2, request_id=1, name="*", count=2, resources=SMALL)], avoid=[second])
    assert {item.node.host for item in master.wait_for(4) if item.request_id == 1} == {first}


def test_a_request_above_the_maximum_is_refused_and_the_rest_continues(master: Master) -> None:
    with pytest.raises(RequestRefused, match=r"greater than maximum allowed allocation.*gcores"):
        master.beat(rows(1, Resources(memory_mib=256, vcores=1, gcores=9)))
    master.beat(rows(1))
    master.wait_for(1)


def test_a_second_registration_is_refused(master: Master, attempt: Attempt) -> None:
    with closing(attempt.connect()) as rm, pytest.raises(WrongRequest, match="already registered"):
        rm.register("here", 0, "", timeout_s=120)


def test_a_heartbeat_before_the_registration_is_refused(attempt: Attempt) -> None:
    with closing(attempt.connect()) as rm, pytest.raises(NotRegistered):
        rm.allocate(timeout_s=120)


def test_a_killed_attempt_gets_an_error(master: Master, rest: YarnRest, attempt: Attempt) -> None:
    assert rest.kill(attempt.application_id, timeout_s=120) is State.KILLED
    with pytest.raises((AttemptOver, TokenRefused)):
        master.beat()


def test_a_wrong_token_is_refused_by_both_servers(master: Master, attempt: Attempt) -> None:
    wrong = Token(attempt.token.identifier, b"wrong", AM_RM_KIND)
    with pytest.raises(Denied):
        ResourceManager([attempt.hadoop.scheduler_address], wrong, Dialect.GCORES).allocate(timeout_s=120)
    master.beat(rows(1))
    (one,) = master.wait_for(1)
    token = master.rm.node_tokens[one.node]
    with pytest.raises(Denied):
        NodeManager(one.node, Token(token.identifier, b"wrong", token.kind)).stop([one.container_id], timeout_s=120)


def test_finishing_ends_the_application(master: Master, rest: YarnRest, attempt: Attempt) -> None:
    until(lambda: master.rm.finish(FinalStatus.FAILED, "said by a test", "http://example/", timeout_s=120))
    report = until(lambda: (one := rest.report(attempt.application_id)).state.ended and one)
    assert (report.state, report.final_status) == (State.FINISHED, FinalStatus.FAILED)
    assert report.diagnostics == "said by a test"


# ---- a bad line ----


def test_lost_answers_at_any_call_lose_and_duplicate_no_container(attempt: Attempt) -> None:
    with Proxy(attempt.hadoop.scheduler_address) as proxy:
        rm = attempt.connect(proxy.address)
        rm.register("here", 0, "", timeout_s=120)
        master, wanted = Master(rm, timeout_s=0.01), 6
        lost, deadline = 0, time.monotonic() + 120
        for round_ in itertools.count():
            # The handshake is two exchanges, so the answer to the first or second call of a connection is lost.
            proxy.plan = Plan(cut_call=2 + round_ % 2) if round_ % 3 else Plan()
            proxy.cut_all()
            master.timeout_s = 0.01 if round_ % 3 else 120
            try:
                master.beat(rows(wanted - len(master.granted)) if round_ % 4 == 0 else ())
            except ConnectionLost:
                lost += 1
            if len(master.granted) >= wanted:
                break
            assert time.monotonic() < deadline
            time.sleep(0.05)
        proxy.plan = Plan()
        master.timeout_s = 120
        master.beat(rows(0))
        before = set(master.granted)
        master.beat((), list(before))
        until(lambda: master.beat() and before <= set(master.ended))
        assert lost > 0
        rm.close()


def test_a_damaged_stream_is_an_error_and_the_next_heartbeat_works(attempt: Attempt) -> None:
    with Proxy(attempt.hadoop.scheduler_address) as proxy:
        rm = attempt.connect(proxy.address)
        rm.register("here", 0, "", timeout_s=120)
        for kind in ("cut_down", "garble_down", "cut_up"):
            for offset in range(0, 400, 31):
                harm: dict[str, Any] = {kind: offset}
                proxy.plan = Plan(**harm)
                proxy.cut_all()
                with suppress(ConnectionLost, RemoteError, Unreachable):
                    rm.allocate(timeout_s=0.01)
                proxy.plan = Plan()
                proxy.cut_all()
                rm.allocate(timeout_s=120)
        rm.close()


# ---- the ResourceManager goes and comes back ----


@pytest.mark.slow
def test_a_restarted_resourcemanager_gets_all_requests_again(attempt: Attempt, master: Master) -> None:
    rm = master.rm
    master.beat(rows(1))
    (one,) = master.wait_for(1)
    master.start(one, "sleep", "1000")
    attempt.hadoop.kill_part("rm")

    def failure_text() -> str:
        with pytest.raises(ConnectionLost, match=r"no ResourceManager answered allocate in 3 s: ") as lost:
            rm.allocate(timeout_s=3)
        return str(lost.value)

    until(lambda: "refused" in failure_text())  # where this process is stopped for 3 s, nobody was called
    attempt.hadoop.start_part("rm")
    with pytest.raises(NotRegistered):
        until(lambda: rm.allocate(timeout_s=120) and None)
    registration = rm.register("here", 0, "", timeout_s=120)
    # As long as no node is back it is the configured maximum, then what the largest node has.
    assert registration.largest.gcores in (4, 8)
    attempt.hadoop.wait_until_ready()
    master.beat(rows(1))
    two = master.wait_for(2)[1]
    assert two.container_id.epoch == one.container_id.epoch + 1
    assert master.node(one).stop([one.container_id], timeout_s=120) == {one.container_id: None}
    assert master.wait_for_end(one.container_id).exit_status == -105


# ---- the client ----


def test_the_cluster_is_read(hadoop: Hadoop, rest: YarnRest) -> None:
    assert rest.info()["resourceManagerVersion"] == VERSION
    nodes = {node.name: node for node in rest.nodes()}
    assert sorted(nodes) == hadoop.nodes
    assert sorted(node.name for node in rest.nodes(running=True)) == hadoop.nodes
    assert nodes[hadoop.nodes[0]].total == {"memory-mb": 4096, "vcores": 8, "gcores": 4}
    queues = {queue.path: (queue.leaf, queue.state) for queue in rest.queues()}
    assert queues == {
        "root": (False, "RUNNING"),
        "root.default": (True, "RUNNING"),
        "root.research": (True, "RUNNING"),
        "root.closed": (True, "STOPPED"),
        "root.full": (True, "RUNNING"),
        "root.locked": (True, "RUNNING"),
    }
    assert rest.configuration("yarn.resourcemanager.hostname") == "127.0.0.1"
    assert rest.configuration(FIELD3_LIMIT) is None
    new = rest.new_application()
    assert new.largest == {"memory-mb": 4096, "vcores": 8, "gcores": 4}
    assert choose_dialect("auto", new.largest, has_field3=False) is Dialect.GCORES


def test_the_nodes_are_read_by_rpc_as_well(hadoop: Hadoop) -> None:
    nodes = usable_nodes([("127.0.0.1", hadoop.ports["rm"])], Login(getpass.getuser()), Dialect.GCORES, timeout_s=120)
    assert sorted(str(node.node) for node in nodes) == hadoop.nodes
    assert all(node.usable and node.rack == "/default-rack" and node.capability.gcores == 4 for node in nodes)


def test_a_submission_that_yarn_refuses_is_one_line(rest: YarnRest) -> None:
    new = rest.new_application()
    with pytest.raises(RemoteError, match="Requested more memory than configured max"):
        rest.submit(replace(submission(new.application_id, ("true",)), memory_mib=1 << 20))


def test_a_queue_that_does_not_exist_shows_in_the_report(rest: YarnRest) -> None:
    new = rest.new_application()
    rest.submit(submission(new.application_id, ("true",), queue="nowhere"))
    report = until(lambda: (one := rest.report(new.application_id)).state.ended and one)
    assert report.state is State.FAILED
    assert "unknown queue: nowhere" in report.diagnostics


def test_an_application_that_is_not_known_is_not_found(rest: YarnRest) -> None:
    unknown = ApplicationId(1, 1)
    for call in (rest.report, lambda item: rest.kill(item, timeout_s=120)):
        with pytest.raises(ApplicationNotFound, match="application_1_0001"):
            call(unknown)


def test_applications_are_listed_and_killed(rest: YarnRest, attempt: Attempt) -> None:
    listed = rest.reports(user=getpass.getuser(), states=[State.RUNNING, State.ACCEPTED], kind="DLAPP")
    assert attempt.application_id in [view.application_id for view in listed]
    assert rest.kill(attempt.application_id, timeout_s=120) is State.KILLED
    assert rest.kill(attempt.application_id, timeout_s=120) is State.KILLED
    assert rest.report(attempt.application_id).finished_ms > 0


def test_another_users_application_is_theirs_where_acls_are_on(hadoop: Hadoop, attempt: Attempt) -> None:
    with YarnRest([hadoop.rm_url], Login("somebody")) as other:
        if other.configuration("yarn.acl.enable") == "true":
            with pytest.raises(NotAllowed):
                other.kill(attempt.application_id, timeout_s=120)
        else:
            assert other.report(attempt.application_id).user == getpass.getuser()


@pytest.mark.parametrize("part", ["rm", "ahs_http"])
def test_a_wrong_port_is_one_line_with_the_setting(hadoop: Hadoop, part: str) -> None:
    url = f"http://127.0.0.1:{hadoop.ports[part]}"
    with (
        YarnRest([url], Login("u"), timeout_s=120) as wrong,
        pytest.raises((Unreachable, ApplicationNotFound)) as caught,
    ):
        wrong.info()
    assert "\n" not in str(caught.value)
    assert url in str(caught.value) or part == "ahs_http"


def test_tls_at_a_plain_server_gives_one_line_with_the_setting(hadoop: Hadoop) -> None:
    url = hadoop.rm_url.replace("http:", "https:")
    with (
        YarnRest([url], Login("u"), timeout_s=120) as wrong,
        pytest.raises(Unreachable, match=r"plain HTTP, not TLS; set yarn\.http\.policy"),
    ):
        wrong.info()


def test_the_active_one_of_several_resourcemanagers_is_found(hadoop: Hadoop, monkeypatch: pytest.MonkeyPatch) -> None:
    with YarnRest(["http://127.0.0.1:1", hadoop.rm_url], Login(os.environ.get("USER", "u"))) as rest:
        assert rest.active_url() == hadoop.rm_url
        assert rest.info()["haState"] == "ACTIVE"
    monkeypatch.setattr(rest_module, "ACTIVE_TIMEOUT_S", 1.0)
    with (
        YarnRest(["http://127.0.0.1:1", "http://127.0.0.1:2"], Login("u")) as none,
        pytest.raises(Unreachable, match="no active ResourceManager in 1 s: "),
    ):
        none.info()
