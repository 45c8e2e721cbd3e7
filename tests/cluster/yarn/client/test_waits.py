"""Test the facts about waits that are read from a ResourceManager: whole answers, half ones, and none."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from dlapp.cluster.yarn.client import rest as rest_module
from dlapp.cluster.yarn.client.rest import AppReport, NodeInfo, QueueInfo
from dlapp.cluster.yarn.client.waits import ClusterFacts, check_limits, limit_lines, limits_of, master_ask
from dlapp.cluster.yarn.dialect import Dialect
from dlapp.config import load_config
from dlapp.errors import RequestTooLarge, Unreachable
from dlapp.value import replace
from dlapp.values.ids import ApplicationId
from dlapp.values.report import ApplicationView, FinalStatus, State
from dlapp.values.spec import AppSpec, Gang, Resources, RoleSpec
from dlapp.values.waiting import CODES, PendingRequest
from tests.seeds import each_seed

APP = ApplicationId(1700000000000, 7)
NOW_MS = 1_700_000_000_000
WHOLE = {"memory": 8192, "vcores": 16, "gcores": 8}
DETAILS = " Details : AM Partition = <DEFAULT_PARTITION>; AM Resource Request = <memory:256, vCores:1>; "


def amounts(memory: int, vcores: int, gcores: int) -> dict[str, Any]:
    types = [{"name": "memory-mb", "value": memory}, {"name": "vcores", "value": vcores}]
    types.append({"name": "gcores", "value": gcores})
    return {"memory": memory, "vCores": vcores, "resourceInformations": {"resourceInformation": types}}


def queue(name: str, most: tuple[int, int, int], used: tuple[int, int, int], **raw: Any) -> QueueInfo:
    found = {
        "resourcesUsed": amounts(*used),
        "capacities": {"queueCapacitiesByPartition": [{"partitionName": "", "effectiveMaxResource": amounts(*most)}]},
    }
    return QueueInfo(name=name, path=f"root.{name}", state="RUNNING", leaf=True, raw=found | raw)


def node(host: str, free: int) -> NodeInfo:
    total = {"memory-mb": 4096, "vcores": 8, "gcores": 4}
    return NodeInfo(name=f"{host}:8041", web="", state="RUNNING", total=total, free=total | {"gcores": free})


def report(state: State = State.ACCEPTED, diagnostics: str = "", name: str = "small") -> AppReport:
    return AppReport(
        application_id=APP,
        user="tony",
        name="a",
        queue=f"root.{name}",
        state=state,
        final_status=FinalStatus.UNDEFINED,
        diagnostics=diagnostics,
        tracking_url="http://rm:8088/proxy/a/" if state is State.RUNNING else "",
        started_ms=5,
    )


def view(**more: Any) -> ApplicationView:
    return ApplicationView(application_id=APP, attempt=1, state=State.RUNNING, **more)


class Server:
    """A ResourceManager whose answers a test chooses; an error in place of one is raised."""

    def __init__(self, queues: Any = (), nodes: Any = (), applications: Any = (), now: AppReport | None = None) -> None:
        self._queues, self._nodes, self._applications, self._now = queues, nodes, applications, now

    def queues(self) -> Any:
        return _given(self._queues)

    def nodes(self, *, running: bool) -> Any:
        return _given(self._nodes)

    def in_queue(self, _: str, *, ended_since_ms: int | None = None) -> Any:
        return [] if ended_since_ms is not None else _given(self._applications)

    def configuration(self, name: str) -> str | None:
        return "256" if name == "yarn.scheduler.minimum-allocation-mb" else None

    def report(self, _: ApplicationId) -> AppReport:
        return self._now or report()


def _given(answer: Any) -> Any:
    if isinstance(answer, Exception):
        raise answer
    return answer


def facts(server: Server) -> ClusterFacts:
    config = SimpleNamespace(yarn=SimpleNamespace(am_memory_mib=256, am_node_label=None))
    session: Any = SimpleNamespace(rest=lambda: server, dialect=lambda: Dialect.GCORES, config=config)
    return ClusterFacts(session)


MASTER = master_ask(256, "")
ASK = PendingRequest(role="worker", count=1, memory_mib=256, vcores=1, gcores=2)
FULL = queue("small", (2048, 4, 2), (2048, 2, 1))


def test_a_full_queue_is_named_for_an_applicationmaster_and_for_containers() -> None:
    server = Server([FULL, queue("large", (8192, 16, 8), (0, 0, 0))], [node("a", 4)])
    found = facts(server).in_full(report(diagnostics="waiting." + DETAILS), view(), 10).waiting
    assert found is not None
    assert (found.code, found.asked, found.available, found.since_ms) == ("queue_limit", 256, 0, 5)
    assert found.change == "queue large: now, on a (--set application.queue=large)"
    running = facts(server).explained(report(State.RUNNING), view(lacking=(ASK,)))
    assert running.waiting is not None
    assert (running.waiting.code, running.diagnostics) == ("queue_limit", "")


def test_a_reservation_for_a_container_is_not_counted_against_it() -> None:
    """The queue has 1.5 of 2 GiB in use, of which 1 GiB is reserved on a full node for the container of 1 GiB."""
    small = queue("small", (2048, 4, 0), (1536, 3, 0))
    ask = replace(ASK, memory_mib=1024, gcores=0)
    total = {"memory-mb": 4096, "vcores": 8, "gcores": 4}
    full = replace(node("a", 4), free={**total, "memory-mb": 512})

    def code(**raw: Any) -> str:
        waits = replace(report(State.RUNNING), raw=raw)
        found = facts(Server([small], [full])).explained(waits, view(lacking=(ask,))).waiting
        assert found is not None
        return found.code

    other = {"partitionName": "fast", "reserved": amounts(1024, 1, 0)}
    mine = {"partitionName": "", "reserved": amounts(1024, 1, 0)}
    assert code(reservedMB=0, reservedVCores=0) == "queue_limit"
    assert code(reservedMB=1024, reservedVCores=1) == "nodes_full"
    assert code(reservedMB=0, resourceInfo={"resourceUsagesByPartition": [other, mine]}) == "nodes_full"


def test_a_node_with_room_that_is_reserved_for_another_application_is_named() -> None:
    def code(**raw: Any) -> str:
        waits, large = (
            replace(report(State.RUNNING), raw=raw),
            queue("large", (0, 0, 0), (0, 0, 0), reservedContainers=1),
        )
        found = facts(Server([large], [node("a", 4)])).explained(waits, view(lacking=(ASK,))).waiting
        assert found is not None
        return found.code

    assert code() == "nodes_full"
    assert code(reservedMB=1024, reservedVCores=1) == "starting"  # it is the one for which the node is reserved


def test_a_limit_of_applicationmasters_is_named_with_its_setting() -> None:
    waits = report(diagnostics="not yet activated. Queue's AM resource limit exceeded. " + DETAILS)
    small = queue("small", (2048, 4, 2), (0, 0, 0))
    found = facts(Server([small], [node("a", 4)])).explained(waits, view()).waiting
    assert found is not None
    assert found.code == "am_limit"
    assert found.message.endswith(" (yarn.scheduler.capacity.root.small.maximum-am-resource-percent)")


def test_an_applicationmaster_whose_label_no_node_has_waits_for_the_label() -> None:
    waits = replace(report(), raw={"amNodeLabelExpression": "fast"})
    found = facts(Server([], [node("a", 4)])).in_full(waits, view(), 10).waiting
    assert found is not None
    assert (found.code, found.message) == ("label", "no node that runs has the label fast")
    assert found.change == "without yarn.am_node_label: now, on a"
    for none in ("", "<Not set>", "<DEFAULT_PARTITION>"):
        waits = replace(report(), raw={"amNodeLabelExpression": none})
        found = facts(Server([], [node("a", 4)])).in_full(waits, view(), 10).waiting
        assert found is not None
        assert found.code == "starting"


def test_a_container_that_yarn_has_just_given_is_no_reason_for_a_wait() -> None:
    """The queue may count it already when the report does not name it yet."""
    now = report(diagnostics="Scheduler has assigned a container for AM, waiting for AM container to be launched")
    found = facts(Server([FULL], [node("a", 4)], now=now)).explained(report(), view()).waiting
    assert found is not None
    assert (found.code, found.message) == ("starting", now.diagnostics)


def test_an_application_whose_applicationmaster_runs_does_not_wait_for_am_resources() -> None:
    # After a failover the queue knows of a recovered application only that it is active.
    sent_report = report(diagnostics="Application is Activated, waiting for resources to be assigned for AM." + DETAILS)
    found = facts(Server([FULL], [node("a", 4)])).in_full(replace(sent_report, am_attempt=1), view(), 10).waiting
    assert found is not None
    assert (found.code, found.message) == (
        "starting",
        "its ApplicationMaster has a container, and has yet to register with the ResourceManager",
    )


def test_a_queue_that_the_user_may_not_submit_to_is_no_change() -> None:
    def guarded(*acls: str) -> QueueInfo:
        access_lists = [{"accessType": "SUBMIT_APPLICATIONS", "accessControlList": acl} for acl in acls]
        access_lists.append({"accessType": "ADMINISTER_QUEUE", "accessControlList": "*"})
        return queue("large", (8192, 16, 8), (0, 0, 0), queueAcls={"queueAcl": access_lists})

    for acls, is_named in ((("anna,tony ops",), True), (("anna ops",), False), ((" ",), False), (("*",), True)):
        server = Server([FULL, guarded(*acls)], [node("a", 4)])
        found = facts(server).in_full(report(State.RUNNING), view(lacking=(ASK,)), 10).waiting
        assert found is not None
        assert found.change.startswith("queue large") == is_named


def test_hosts_with_quarantined_gpus_come_from_the_applicationmaster() -> None:
    server = Server([], [node("a", 2), node("b", 1)])
    found = facts(server).explained(report(State.RUNNING), view(lacking=(ASK,), usable_gpus={"a": 3})).waiting
    assert found is not None
    assert (found.code, found.message) == ("gpus_quarantined", "needs 2 GPUs, a has 1 free, 1 is in quarantine")


def test_without_an_answer_the_reason_is_that_there_is_none() -> None:
    for server in (
        Server(Unreachable("http://rm: nobody answers"), [node("a", 4)]),
        Server([FULL], Unreachable("half an answer")),
    ):
        found = facts(server).explained(report(State.RUNNING), view(lacking=(ASK,))).waiting
        assert found is not None
        assert found.code in ("service_away", "queue_limit")
        if found.code == "service_away":
            assert found.message.startswith("why it waits is not known: ")
    server = Server([FULL], [node("a", 4)], Unreachable("the list is too long"))
    found = facts(server).in_full(report(State.RUNNING), view(lacking=(ASK,)), 10).waiting
    assert found is not None
    assert (found.code, found.ahead) == ("queue_limit", ())


@each_seed("answers on waits")
def test_damaged_answers_give_a_known_reason_without_an_error(seed: int) -> None:
    """Read 300 answers with 4 of 7 values of the queue wrong or missing, and most of the report."""
    chance = random.Random(seed)
    odd: tuple[Any, ...] = (None, 3, -5, "x", [], {}, [None], {"queueCapacitiesByPartition": [3]}, 1 << 70, 1e300, True)
    names = (
        *("resourcesUsed", "capacities", "users", "userLimitFactor", "absoluteMaxCapacity", "absoluteCapacity"),
        "queuePath",
    )
    for _ in range(300):
        raw = {name: chance.choice(odd) for name in chance.sample(names, 4)}
        damaged = rest_module._report(
            {
                "id": str(APP),
                "state": chance.choice(["ACCEPTED", "RUNNING", "LATER"]),
                "diagnostics": chance.choice(odd),
                "startedTime": chance.choice(odd),
                "queue": "root.small",
                "resourceInfo": chance.choice(odd),
                "launchTime": chance.choice(odd),
            }
        )
        server = Server([queue("small", (2048, 4, 2), (1, 1, 1), **raw)], [node("a", chance.randrange(5))], [damaged])
        found = facts(server).in_full(damaged, view(lacking=(ASK,)), 10)
        assert found.waiting is None or found.waiting.code in CODES


def test_a_request_above_a_queue_or_user_limit_is_refused() -> None:
    queues = [
        QueueInfo(name="root", path="root", state="RUNNING", leaf=False),
        queue(
            "small",
            (2048, 4, 2),
            (0, 0, 0),
            userLimitFactor=1,
            absoluteCapacity=12.5,
        ),
    ]

    def spec(containers: int, gcores: int) -> AppSpec:
        role = RoleSpec(instances=containers, resources=Resources(memory_mib=256, vcores=1, gcores=gcores))
        return AppSpec(
            username="tony", appname="a", workspace="/w", script="s", roles=(role,), queue="small", gang=Gang.ALL
        )

    nodes = [node("a", 4), node("b", 4)]
    names = [limit.name for limit in limits_of(queues, "small", "tony", WHOLE)]
    assert names == ["queue small", "tony in queue small"]
    check_limits(spec(1, 1), queues, nodes, Dialect.GCORES, MASTER)
    with pytest.raises(
        RequestTooLarge, match=r"3 GPUs, the maximum of queue small is 2 \(yarn.*root.small.maximum-cap"
    ):
        check_limits(spec(1, 3), queues, nodes, Dialect.GCORES, MASTER)
    with pytest.raises(RequestTooLarge, match="tony in queue small is 1 "):
        check_limits(spec(3, 1), [queues[0], _without_maximum(queues[1])], nodes, Dialect.GCORES, MASTER)


class Cluster:
    """A session with a cluster whose kept list of nodes is of before a failover, and its ResourceManager."""

    config = load_config({}, environ={})

    def __init__(self, cached: list[NodeInfo], now: list[NodeInfo], queues: list[QueueInfo], started_ms: int) -> None:
        self.cached, self.now, self._queues, self.started_ms = cached, now, queues, started_ms

    def dialect(self) -> Dialect:
        return Dialect.GCORES

    def rest(self) -> Cluster:
        return self

    def nodes(self) -> list[NodeInfo]:
        """The first call is the session's, later ones are the ResourceManager's."""
        cached, self.cached = self.cached, self.now
        return cached

    def queues(self) -> list[QueueInfo]:
        return self._queues

    def info(self) -> dict[str, int]:
        return {"startedOn": self.started_ms}


@pytest.mark.parametrize(
    ("lost", "started_ms", "line"),
    [
        (
            0,
            NOW_MS - 20_000,
            "it waits, because the ResourceManager has just started",
        ),
        (1, 0, "it waits, because the cluster lacks 1 node"),
        (0, 0, None),
    ],
)
@pytest.mark.parametrize("left", [(0, 0, 0), (1024, 2, 1)])
def test_while_nodes_are_down_no_request_is_refused_for_a_small_queue(
    lost: int, started_ms: int, line: str | None, left: tuple[int, int, int]
) -> None:
    small = queue("small", left, (0, 0, 0), userLimitFactor=100, absoluteCapacity=50)
    queues = [QueueInfo(name="root", path="root", state="RUNNING", leaf=False), small]
    role = RoleSpec(instances=1, resources=Resources(memory_mib=2048, vcores=1, gcores=0))
    spec = AppSpec(username="tony", appname="a", workspace="/w", script="s", roles=(role,), queue="small")
    now = [node("a", 4), *(replace(node(f"lost{index}", 4), state="LOST") for index in range(lost))]
    session: Any = Cluster([node("a", 4), node("b", 4)], now, queues, started_ms)
    if line is None:
        with pytest.raises(RequestTooLarge, match="the maximum of queue small is"):
            limit_lines(spec, queues, session, NOW_MS)
    else:
        output = limit_lines(spec, queues, session, NOW_MS)
        assert len(output) == 1
        assert output[0].endswith(f"{line} and the queue may be larger later")


def test_an_outdated_node_list_refuses_no_request() -> None:
    """The queue was read before the last node was back."""
    queues = [QueueInfo(name="root", path="root", state="RUNNING", leaf=False)]
    before = queue("small", (0, 0, 0), (0, 0, 0), userLimitFactor=100, absoluteCapacity=50)
    after = queue("small", (4096, 8, 4), (0, 0, 0), userLimitFactor=100, absoluteCapacity=50)
    role = RoleSpec(instances=1, resources=Resources(memory_mib=2048, vcores=1, gcores=0))
    spec = AppSpec(username="tony", appname="a", workspace="/w", script="s", roles=(role,), queue="small")
    nodes = [node("a", 4), node("b", 4)]
    session: Any = Cluster(nodes, nodes, [*queues, after], 0)
    assert limit_lines(spec, [*queues, before], session, NOW_MS) == []


def _without_maximum(one: QueueInfo) -> QueueInfo:
    raw = {**one.raw, "capacities": {}, "absoluteMaxCapacity": 100}
    return QueueInfo(name=one.name, path=one.path, state=one.state, leaf=True, raw=raw)


@pytest.mark.parametrize(
    ("raw", "labels"),
    [(["fast"], ("fast",)), ("fast", ("fast",)), (None, ()), ([], ()), ([3, {"name": "x"}, "a"], ("a",))],
)
def test_the_labels_of_a_node_are_read_as_hadoop_writes_them(raw: Any, labels: tuple[str, ...]) -> None:
    """Source: answers of Hadoop 3.4.2; a list of one may come as the one."""
    assert rest_module._node({"id": "n:1", "state": "RUNNING", "nodeLabels": raw}).labels == labels


def test_waiting_applications_are_ordered_by_queue_priority_age_and_user_usage() -> None:
    used = amounts(4096, 2, 0)
    busy = queue("a", (8192, 16, 8), (4096, 2, 0), users={"user": [{"username": "anna", "resourcesUsed": used}]})
    found = facts(Server([busy], [node("n", 4), node("m", 4)])).of_queues(
        [
            replace(report(name="b"), application_id=ApplicationId(1700000000000, 1)),
            replace(report(name="a"), application_id=ApplicationId(1700000000000, 2)),
            replace(report(name="a"), application_id=ApplicationId(1700000000000, 3), priority=5),
        ],
        10,
    )
    assert [item[-1] for item in found.order] == ["3", "2", "1"]
    assert {estimate.samples for estimate in found.estimates.values()} == {0}
    assert [(share.user, share.queue, share.share) for share in found.shares] == [("anna", "a", 0.5)]


def test_without_an_answer_only_the_order_is_known() -> None:
    away = Unreachable("half an answer")
    found = facts(Server(away, away, away)).of_queues([report()], 10)
    assert (found.order, dict(found.estimates), found.shares) == ((str(APP),), {}, ())
