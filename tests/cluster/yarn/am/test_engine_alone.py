"""YarnAmEngine against a server of ours: what a real ResourceManager does not do on demand."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from dlapp.am.decisions.master import Master
from dlapp.am.model.events import StartTask
from dlapp.am.model.state import ApplicationState
from dlapp.cluster.engine import AnnouncedEnd, ContainerRequest, TaskLaunch
from dlapp.cluster.yarn.am import engine as engine_module
from dlapp.cluster.yarn.am import node_list, request_timeouts
from dlapp.cluster.yarn.am.engine import YarnAmEngine
from dlapp.cluster.yarn.dialect import Dialect
from dlapp.cluster.yarn.messages import NODE_RUNNING
from dlapp.cluster.yarn.values import Cluster, NodeId, NodeReport, Program
from dlapp.hadoop.errors import ConnectionLost, HadoopError
from dlapp.hadoop.tokens import AM_RM_KIND, Credentials, Token
from dlapp.hadoop.wire import encode
from dlapp.login import Login
from dlapp.system import clock
from dlapp.values.ids import ContainerId
from dlapp.values.report import Cause, FinalStatus
from dlapp.values.spec import Resources, RoleSpec
from tests.am.driving import APPLICATION, submission
from tests.cluster.yarn import server_messages
from tests.cluster.yarn.on_yarn import until
from tests.cluster.yarn.server_messages import NODE_LOST, AllocateRequest, parse_allocate
from tests.hadoop.rpc_server import Refuse, RpcServer

TOKEN = Token(b"identifier", b"password", AM_RM_KIND)


class Scheduler:
    """A ResourceManager that gives nothing; the ``on_…`` say what it answers."""

    def __init__(self) -> None:
        self.number = 0
        self.on_allocate: Callable[[AllocateRequest], None] = lambda _: None
        self.on_finish: Callable[[], None] = lambda: None
        self.on_register: Callable[[], None] = lambda: None
        self.granted: list[ContainerId] = []
        self.preempt: bytes | None = None

    def __call__(self, method: str, request: bytes) -> bytes:
        if method == "registerApplicationMaster":
            self.number = 0
            self.on_register()
            return server_messages.registration()
        if method == "finishApplicationMaster":
            self.on_finish()
            return server_messages.FINISHED
        self.on_allocate(parse_allocate(request))
        self.number += 1
        granted = [server_messages.container(container_id, NodeId("here", 0)) for container_id in self.granted]
        answer = server_messages.allocation(self.number, granted=granted, node_count=1, preempt=self.preempt)
        self.preempt, self.granted = None, []
        return answer


@pytest.fixture
def scheduler() -> Scheduler:
    return Scheduler()


@pytest.fixture
def server(scheduler: Scheduler) -> Iterator[RpcServer]:
    with RpcServer(scheduler, TOKEN) as one:
        yield one


@pytest.fixture
def engine(server: RpcServer) -> Iterator[YarnAmEngine]:
    with registered_at(server) as one:
        yield one


@contextmanager
def registered_at(server: RpcServer) -> Iterator[YarnAmEngine]:
    cluster = Cluster(schedulers=(f"127.0.0.1:{server.address[1]}",), login=Login("tony"))
    one = YarnAmEngine(
        cluster, Credentials({"": TOKEN}), 1, Program(launch=lambda _grant, _launch: ((), b"")), lambda: None
    )
    one.register("http://here:1")
    yield one
    one.close()


def refused(engine: YarnAmEngine, resources: Resources) -> dict[int, str]:
    asks = [ContainerRequest(request_id=1, count=1, resources=resources)]
    return dict(until(lambda: engine.heartbeat(asks, (), 0.0).refused))


def test_an_unknown_error_ends_a_request_after_a_while_without_filling_the_log(
    scheduler: Scheduler, engine: YarnAmEngine, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(request_timeouts, "UNKNOWN_ERROR_GRACE_S", 1.0)

    def refuse(request: AllocateRequest) -> None:
        if any(row.wanted for row in request.ask):
            raise Refuse("java.lang.IllegalStateException", "the plan does not allow it\n\tat org.apache.Something")

    scheduler.on_allocate = refuse
    assert refused(engine, Resources(memory_mib=256)) == {1: "the plan does not allow it"}
    assert capfd.readouterr().out.count("the plan does not allow it") == 1


def test_gpus_of_a_cluster_that_counts_none_are_refused(engine: YarnAmEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_timeouts, "REFUSED_GRACE_S", 0.1)
    engine._rm.dialect = Dialect.NONE
    found = refused(engine, Resources(memory_mib=256, gcores=2))
    assert found == {1: "asked for 2 gcores, and the cluster counts none (yarn.dialect: none)"}


def test_the_end_of_an_attempt_that_is_over_is_not_on_record(scheduler: Scheduler, engine: YarnAmEngine) -> None:
    def refuse() -> None:
        raise Refuse("org.apache.hadoop.yarn.exceptions.ApplicationAttemptNotFoundException", "unknown attempt")

    scheduler.on_finish = refuse
    assert engine.finish(FinalStatus.SUCCEEDED, Cause.SUCCEEDED, "") is False


def test_the_end_of_an_attempt_is_on_record(engine: YarnAmEngine) -> None:
    assert engine.finish(FinalStatus.SUCCEEDED, Cause.SUCCEEDED, "") is True


@pytest.mark.slow
def test_ends_are_polled_often_only_when_all_work_is_done(
    scheduler: Scheduler, engine: YarnAmEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    times: list[float] = []
    scheduler.on_allocate = lambda _request: times.append(time.monotonic())

    def latest_pause() -> float:
        return times[-1] - times[-2] if len(times) > 1 else 0.0

    until(lambda: latest_pause() > 0.9 * engine_module.QUIET_S)
    engine.heartbeat((), (), 1.0)
    until(lambda: 0 < latest_pause() < 0.5 * engine_module.QUIET_S)
    monkeypatch.setattr(engine, "_clock", lambda: time.monotonic() + engine_module.BUSY_FOR_S)
    until(lambda: latest_pause() > 0.9 * engine_module.QUIET_S)


@pytest.mark.slow
def test_a_long_pending_request_is_polled_less_often(
    scheduler: Scheduler, engine: YarnAmEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    times: list[float] = []
    scheduler.on_allocate = lambda _request: times.append(time.monotonic())

    def pauses() -> list[float]:
        return [later - earlier for earlier, later in itertools.pairwise(times)]

    asks = [ContainerRequest(request_id=1, count=1, resources=Resources(memory_mib=256))]
    engine.heartbeat(asks, (), 0.0)
    until(lambda: min(pauses(), default=1.0) < 0.5 * engine_module.QUIET_S)
    monkeypatch.setattr(engine, "_clock", lambda: time.monotonic() + engine_module.BUSY_FOR_S)
    until(lambda: pauses()[-1] > 0.9 * engine_module.QUIET_S)
    assert not engine.heartbeat(asks, (), 0.0).refused


def test_a_preemption_notice_reaches_the_applicationmaster_with_the_remaining_time(
    scheduler: Scheduler, engine: YarnAmEngine
) -> None:
    ours = [ContainerId(APPLICATION, 1, number) for number in (2, 3, 4)]
    scheduler.granted = list(ours)
    until(lambda: len(engine._containers._live) == 3)
    masters = ContainerId(APPLICATION, 1, 1)
    scheduler.preempt = server_messages.preemption(ours[:1], [ours[1], masters])
    until(lambda: engine._containers.events.announced)
    heartbeat = engine.heartbeat((), (), 0.0)
    assert heartbeat.announced == tuple(AnnouncedEnd(container_id=item, wait_s=15.0) for item in ours[:2])
    assert not engine.heartbeat((), (), 0.0).announced


@pytest.mark.slow
def test_after_a_restart_and_a_lost_answer_to_the_registration_heartbeats_count_from_0(
    scheduler: Scheduler, engine: YarnAmEngine
) -> None:
    """The server does as a ResourceManager of 3.4.2: once registered it takes no second one, and no other number."""
    exceptions = "org.apache.hadoop.yarn.exceptions"
    registered, accepted = True, 0

    def allocate(request: AllocateRequest) -> None:
        nonlocal accepted
        if not registered:
            raise Refuse(f"{exceptions}.ApplicationMasterNotRegisteredException", "not registered")
        if request.response_id != scheduler.number:
            raise Refuse(f"{exceptions}.InvalidApplicationMasterRequestException", "Invalid responseId")
        accepted += 1

    def register() -> None:
        nonlocal registered
        if registered:
            raise Refuse(f"{exceptions}.InvalidApplicationMasterRequestException", "already registered")
        registered = True
        raise EOFError  # it is on record, and the answer lost

    scheduler.on_allocate, scheduler.on_register = allocate, register
    until(lambda: accepted > 1)
    scheduler.number, registered, accepted = 0, False, 0
    until(lambda: accepted > 1)


def test_an_attempt_that_is_refused_every_heartbeat_gives_up(
    scheduler: Scheduler, engine: YarnAmEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "REFUSED_S", 0.5)

    def refuse(_: AllocateRequest) -> None:
        raise Refuse("java.lang.IllegalStateException", "a failure of its own")

    scheduler.on_allocate = refuse
    found = until(lambda: engine.heartbeat((), (), 0.0).shut_down)
    assert "has refused every heartbeat for 0.5 s" in found
    assert "a failure of its own" in found


def test_a_briefly_refused_token_costs_no_attempt_and_no_request(
    scheduler: Scheduler, server: RpcServer, engine: YarnAmEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "CALM_S", 0.0)
    wanted: list[int] = []
    scheduler.on_allocate = lambda request: wanted.extend(row.wanted for row in request.ask)
    server.token = Token(b"identifier", b"another", AM_RM_KIND)
    server.cut_all()
    connections = server.connections
    asks = [ContainerRequest(request_id=1, count=1, resources=Resources(memory_mib=256))]
    until(lambda: not engine.heartbeat(asks, (), 0.0).shut_down and server.connections > connections + 2)
    assert wanted == []
    server.token = TOKEN
    until(lambda: wanted == [1])
    assert engine.heartbeat(asks, (), 0.0).shut_down is None


@pytest.mark.slow
def test_an_attempt_whose_token_is_refused_for_long_gives_up(
    server: RpcServer, engine: YarnAmEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "REFUSED_S", 0.5)
    server.token = Token(b"identifier", b"another", AM_RM_KIND)
    server.cut_all()
    found = until(lambda: engine.heartbeat((), (), 0.0).shut_down)
    assert "digest response format violation" in found
    assert engine.finish(FinalStatus.SUCCEEDED, Cause.SUCCEEDED, "") is False


@pytest.mark.slow
def test_after_a_restart_of_the_resource_manager_heartbeats_are_not_hurried(
    scheduler: Scheduler, engine: YarnAmEngine
) -> None:
    asks = [ContainerRequest(request_id=1, count=1, resources=Resources(memory_mib=256))]
    registrations: list[float] = []
    times: list[float] = []

    def allocate(_: AllocateRequest) -> None:
        if not registrations:
            raise Refuse(f"{YARN}.ApplicationMasterNotRegisteredException", "not registered")
        times.append(time.monotonic())

    scheduler.on_register = lambda: registrations.append(time.monotonic())
    scheduler.on_allocate = allocate
    until(lambda: engine.heartbeat(asks, (), 0.0) and len(times) > 2)
    pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert min(pauses) > 0.5 * engine_module.QUIET_S


@pytest.mark.slow
def test_after_a_registration_that_waited_for_the_resource_manager_heartbeats_are_not_hurried(
    scheduler: Scheduler, server: RpcServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lose the answer to the first registration, so that it takes 50 ms longer, where 10 ms count as a wait; then
    request a container that is not granted.
    """
    monkeypatch.setattr(engine_module, "AWAITED_S", 0.01)
    registrations: list[float] = []
    times: list[float] = []

    def register() -> None:
        registrations.append(time.monotonic())
        if len(registrations) == 1:
            raise EOFError

    scheduler.on_register = register
    scheduler.on_allocate = lambda _: times.append(time.monotonic())
    asks = [ContainerRequest(request_id=1, count=1, resources=Resources(memory_mib=256))]
    with registered_at(server) as engine:
        until(lambda: engine.heartbeat(asks, (), 0.0) and len(times) > 3)
    pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert min(pauses) > 0.5 * engine_module.QUIET_S
    assert len(registrations) == 2


def node_report(number: int, state: int = NODE_RUNNING) -> bytes:
    """A node with as much said of it as Hadoop 3 says."""
    capability = server_messages.resource(8192, 8, [("memory-mb", 8192), ("vcores", 8), ("gcores", 4)])
    return server_messages.node_report(NodeId(f"node{number}", 8041), "/r", capability, state)


def test_node_changes_come_from_heartbeats_without_another_list(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(node_list, "FIRST_TIMEOUT_S", 120.0)  # the list comes before the changes
    asked: list[str] = []
    rows: set[str] = set()
    changes: list[bytes] = []
    scheduler = Scheduler()

    def list_nodes(method: str, _request: bytes) -> bytes:
        asked.append(method)
        return server_messages.cluster_nodes([node_report(1), node_report(2)])

    def serve(method: str, request: bytes) -> bytes:
        answer = scheduler(method, request)
        if method != "allocate":
            return answer
        answer += encode(*((6, change) for change in changes))
        changes.clear()
        return answer

    scheduler.on_allocate = lambda request: rows.update(row.name for row in request.ask)
    with RpcServer(serve, TOKEN) as server, RpcServer(list_nodes) as clients:
        cluster = Cluster(
            schedulers=(f"127.0.0.1:{server.address[1]}",),
            clients=(f"127.0.0.1:{clients.address[1]}",),
            login=Login("tony"),
        )
        program = Program(launch=lambda _grant, _launch: ((), b""))
        engine = YarnAmEngine(cluster, Credentials({"": TOKEN}), 1, program, lambda: None)
        engine.register("http://here:1")
        try:
            changes += [node_report(2, NODE_LOST), node_report(3)]
            until(lambda: not changes)
            asks = [ContainerRequest(request_id=1, count=2, resources=Resources(memory_mib=256))]
            until(lambda: engine.heartbeat(asks, (), 0.0) and rows)
        finally:
            engine.close()
    assert rows == {"node1", "node3", "/r", "*"}
    assert asked == ["getClusterNodes"]


def test_the_node_list_is_refreshed_periodically_and_soon_on_demand(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(node_list, "EVERY_S", 0.01)
    monkeypatch.setattr(node_list, "MIN_INTERVAL_S", 1000.0)
    taken: list[int] = []
    one = node_list.NodeList(list, lambda nodes: taken.append(len(nodes)))
    one.start()
    try:
        until(lambda: len(taken) > 2)
        one.read_soon()  # not sooner than it may
        count = len(taken)
        monkeypatch.setattr(node_list, "MIN_INTERVAL_S", 0.01)
        one.read_soon()
        until(lambda: len(taken) > count + 2)
    finally:
        one.close()


def test_an_unanswered_node_list_is_requested_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_list, "MIN_INTERVAL_S", 0.01)
    answers = iter([ConnectionLost("nobody there", sent=False), HadoopError("refused")])
    asked: list[int] = []

    def read() -> list[NodeReport]:
        asked.append(1)
        raise next(answers)

    one = node_list.NodeList(read, lambda nodes: None)
    one.start()
    try:
        until(lambda: len(asked) == 2)
    finally:
        one.close()


YARN = "org.apache.hadoop.yarn.exceptions"


class Failover:
    """A ResourceManager that grants 200 containers on ten nodes, and is replaced by another one while they start."""

    def __init__(self, nodes: list[RpcServer]) -> None:
        self.nodes = nodes
        self.number = self.registrations = self.wanted = 0
        self.has_granted = False

    def __call__(self, method: str, request: bytes) -> bytes:
        if method == "registerApplicationMaster":
            self.number, self.registrations = 0, self.registrations + 1
            return server_messages.registration()
        for row in parse_allocate(request).ask:
            self.wanted = row.wanted
        if self.registrations == 1 and all(item.calls for item in self.nodes):
            raise Refuse(f"{YARN}.ApplicationMasterNotRegisteredException", "it is not registered")
        self.number += 1
        granted, tokens = list[bytes](), list[bytes]()
        if self.wanted == 200 and not self.has_granted:
            self.has_granted = True
            for number in range(200):
                node = NodeId("127.0.0.1", self.nodes[number % len(self.nodes)].address[1])
                container_id = ContainerId(APPLICATION, 1, number + 2)
                capability = server_messages.resource(256, 1)
                granted.append(server_messages.container(container_id, node, capability=capability, priority=1))
                tokens.append(server_messages.node_token(node, Token(TOKEN.identifier, TOKEN.password, "NMToken")))
        return server_messages.allocation(self.number, granted=granted, node_count=len(self.nodes), node_tokens=tokens)


def node_that_knows_another_resource_manager(_method: str, request: bytes) -> bytes:
    failures = []
    for start in server_messages.parse_starts(request):
        container_id = ContainerId.from_text(start.identifier.decode())
        message = f" Container {container_id} rejected as it is allocated by a previous RM"
        failures.append(server_messages.failure(container_id, f"{YARN}.InvalidContainerException", message))
    return server_messages.started([], failures)


def test_a_resourcemanager_replaced_during_200_starts_makes_no_node_avoided() -> None:
    with ExitStack() as stack:
        nodes = [stack.enter_context(RpcServer(node_that_knows_another_resource_manager, TOKEN)) for _ in range(10)]
        resource_manager = Failover(nodes)
        server = stack.enter_context(RpcServer(resource_manager, TOKEN))
        cluster = Cluster(schedulers=(f"127.0.0.1:{server.address[1]}",), login=Login("tony"))
        program = Program(launch=lambda _grant, _launch: (("true",), b""))
        engine = YarnAmEngine(cluster, Credentials({"": TOKEN}), 1, program, lambda: None)
        stack.callback(engine.close)
        state = ApplicationState(submission(RoleSpec(instances=200)), APPLICATION, 1)
        master = Master(state)
        master.handle(engine.register("http://here:1"), clock.now_ms())
        for _ in range(2):
            state.nodes.avoided.add("node7", "an earlier failure", state.awake_ms)
        assert state.nodes.avoided.names(state.awake_ms) == ("node7",)

        def beat() -> bool:
            events = engine.heartbeat(master.container_requests(), master.releases(), 0.0)
            for action in master.handle(events, clock.now_ms()):
                if isinstance(action, StartTask):
                    launch = TaskLaunch(container_id=action.grant.container_id, control_url="http://here:1", token="")
                    engine.start(action.grant, launch)
            return (
                len(state.containers.by_id) == 200 and not state.containers.live and resource_manager.registrations == 2
            )

        until(beat)
        until(lambda: beat() and not state.nodes.avoided.names(state.awake_ms))
        assert all(instance.node_faults == 0 and not instance.given_up for instance in state.instances)
        until(lambda: beat() and resource_manager.wanted == 200)
