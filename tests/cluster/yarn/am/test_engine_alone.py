"""YarnAmEngine against a server of ours: what a real ResourceManager does not do on demand."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator

import pytest

from dlapp.cluster.engine import ContainerRequest
from dlapp.cluster.yarn.am import engine as engine_module
from dlapp.cluster.yarn.am import request_timeouts
from dlapp.cluster.yarn.am.engine import YarnAmEngine
from dlapp.cluster.yarn.dialect import Dialect
from dlapp.cluster.yarn.proto import yarn_pb2 as pb
from dlapp.cluster.yarn.values import Cluster, Program
from dlapp.hadoop.tokens import AM_RM_KIND, Credentials, Token
from dlapp.login import Login
from dlapp.report import Cause, FinalStatus
from dlapp.spec import Resources
from tests.cluster.yarn.on_yarn import until
from tests.hadoop.rpc_server import Refuse, RpcServer

TOKEN = Token(b"identifier", b"password", AM_RM_KIND)


class Scheduler:
    """A ResourceManager that gives nothing; the ``on_…`` say what it answers."""

    def __init__(self) -> None:
        self.number = 0
        self.on_allocate: Callable[[pb.AllocateRequestProto], None] = lambda _: None
        self.on_finish: Callable[[], None] = lambda: None
        self.on_register: Callable[[], None] = lambda: None

    def __call__(self, method: str, request: bytes) -> bytes:
        if method == "registerApplicationMaster":
            self.number = 0
            self.on_register()
            return pb.RegisterApplicationMasterResponseProto().SerializeToString()
        if method == "finishApplicationMaster":
            self.on_finish()
            return pb.FinishApplicationMasterResponseProto(isUnregistered=True).SerializeToString()
        self.on_allocate(pb.AllocateRequestProto.FromString(request))
        self.number += 1
        return pb.AllocateResponseProto(response_id=self.number, num_cluster_nodes=1).SerializeToString()


@pytest.fixture
def scheduler() -> Scheduler:
    return Scheduler()


@pytest.fixture
def engine(scheduler: Scheduler) -> Iterator[YarnAmEngine]:
    with RpcServer(scheduler, TOKEN) as server:
        cluster = Cluster(schedulers=(f"127.0.0.1:{server.address[1]}",), login=Login("tony"))
        one = YarnAmEngine(
            cluster, Credentials({"": TOKEN}), 1, Program(launch=lambda _grant, _launch: ((), b"")), lambda: None
        )
        one.register("http://here:1")
        yield one
        one.close()


def refused(engine: YarnAmEngine, resources: Resources) -> dict[int, str]:
    asks = [ContainerRequest(request_id=1, count=1, resources=resources)]
    return dict(until(lambda: engine.heartbeat(asks, (), 0.0).refused, 20))


def test_an_error_that_nobody_knows_ends_an_ask_after_a_while_and_fills_no_log(
    scheduler: Scheduler, engine: YarnAmEngine, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(request_timeouts, "ODD_GRACE_S", 1.0)

    def refuse(request: pb.AllocateRequestProto) -> None:
        if any(row.num_containers for row in request.ask):
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


def test_when_all_is_done_the_last_ends_are_asked_for_often_and_before_that_they_are_not(
    scheduler: Scheduler, engine: YarnAmEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    times: list[float] = []
    scheduler.on_allocate = lambda _request: times.append(time.monotonic())

    def latest_pause() -> float:
        return times[-1] - times[-2] if len(times) > 1 else 0.0

    until(lambda: latest_pause() > 0.9 * engine_module.QUIET_S, 20)
    engine.heartbeat((), (), 1.0)
    until(lambda: 0 < latest_pause() < 0.5 * engine_module.QUIET_S, 20)
    monkeypatch.setattr(engine, "_clock", lambda: time.monotonic() + engine_module.BUSY_FOR_S)
    until(lambda: latest_pause() > 0.9 * engine_module.QUIET_S, 20)


def test_what_is_not_met_for_long_is_asked_for_less_often(
    scheduler: Scheduler, engine: YarnAmEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    times: list[float] = []
    scheduler.on_allocate = lambda _request: times.append(time.monotonic())
    monkeypatch.setattr(engine_module, "BUSY_FOR_S", 2.0)
    engine.heartbeat([ContainerRequest(request_id=1, count=1, resources=Resources(memory_mib=256))], (), 0.0)
    until(lambda: len(times) >= 2 and times[-1] - times[-2] > 0.9 * engine_module.QUIET_S, 20)
    quick = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert min(quick) < 0.5 * engine_module.QUIET_S


def test_after_a_restart_and_a_lost_answer_to_the_registration_heartbeats_count_from_0(
    scheduler: Scheduler, engine: YarnAmEngine
) -> None:
    """It says what a ResourceManager of 3.4.2 says: once registered it takes no second one, and no other number."""
    exceptions = "org.apache.hadoop.yarn.exceptions"
    registered, accepted = True, 0

    def allocate(request: pb.AllocateRequestProto) -> None:
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
    until(lambda: accepted > 1, 20)
    scheduler.number, registered, accepted = 0, False, 0
    until(lambda: accepted > 1, 20)


def test_an_attempt_that_is_refused_every_heartbeat_gives_up(
    scheduler: Scheduler, engine: YarnAmEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "REFUSED_S", 0.5)

    def refuse(_: pb.AllocateRequestProto) -> None:
        raise Refuse("java.lang.IllegalStateException", "a failure of its own")

    scheduler.on_allocate = refuse
    found = until(lambda: engine.heartbeat((), (), 0.0).shut_down, 20)
    assert "has refused every heartbeat for 0.5 s" in found
    assert "a failure of its own" in found
