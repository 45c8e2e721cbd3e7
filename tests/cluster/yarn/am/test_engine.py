"""YarnAmEngine against a real YARN: the ApplicationMaster's side of the engine, with shells for tasks."""

from __future__ import annotations

import getpass
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dlapp.cluster.engine import ContainerEnd, ContainerRequest, Grant, Heartbeat, TaskLaunch
from dlapp.cluster.yarn.am import containers, request_timeouts
from dlapp.cluster.yarn.am.engine import YarnAmEngine
from dlapp.cluster.yarn.am.resource_manager import ResourceManager
from dlapp.cluster.yarn.client.rest import YarnRest
from dlapp.cluster.yarn.dialect import Dialect
from dlapp.cluster.yarn.task_container import TASK_SECRET
from dlapp.cluster.yarn.values import Cluster, Program
from dlapp.hadoop.tokens import Credentials, Token
from dlapp.login import Login
from dlapp.values.ids import ContainerId
from dlapp.values.report import Cause, FinalStatus, State
from dlapp.values.spec import Placement, Resources
from tests.cluster.yarn.on_yarn import Attempt, kill_attempt, token_of_attempt, until, until_heard_of
from tests.services.hadoop import NODES
from tests.services.http.proxy import Plan, Proxy

SMALL = Resources(memory_mib=256, vcores=1, gcores=1)


class Driver:
    """Small ApplicationMaster: asks its engine for so many containers, and keeps the answers."""

    def __init__(self, engine: YarnAmEngine, woken: threading.Event) -> None:
        self.engine, self.woken = engine, woken
        self.wanted: dict[int, int] = {}
        self.resources: dict[int, Resources] = {}
        self.placement = Placement()
        self.avoid: tuple[str, ...] = ()
        self.ending: list[ContainerId] = []
        self.granted: dict[ContainerId, Grant] = {}
        self.ended: dict[ContainerId, ContainerEnd] = {}
        self.start_failed: dict[ContainerId, ContainerEnd] = {}
        self.refused: dict[int, str] = {}
        self.shut_down: str | None = None
        self.releases: list[ContainerId] = []

    def beat(self) -> Heartbeat:
        self.woken.wait(0.2)
        self.woken.clear()
        asks = []
        for request_id, count in self.wanted.items():
            have = sum(1 for grant in self.granted.values() if grant.request_id == request_id)
            asks.append(
                ContainerRequest(
                    request_id=request_id,
                    count=max(0, count - have),
                    resources=self.resources.get(request_id, SMALL),
                    placement=self.placement,
                    avoid=self.avoid,
                )
            )
        events = self.engine.heartbeat(asks, self.releases, 0.5)
        for grant in events.granted:
            assert grant.container_id not in self.granted, "granted twice"
            self.granted[grant.container_id] = grant
        for end in events.ended:
            assert end.container_id not in self.ended, "ended twice"
            self.ended[end.container_id] = end
        self.start_failed.update({end.container_id: end for end in events.start_failed})
        self.ending += events.ending
        self.refused.update(events.refused)
        self.shut_down = self.shut_down or events.shut_down
        return events

    def until(self, condition: Callable[[], object], timeout_s: float = 120) -> None:
        until(lambda: self.beat() and condition(), timeout_s)

    def of(self, request_id: int) -> list[Grant]:
        return [grant for grant in self.granted.values() if grant.request_id == request_id]

    def start(self, grant: Grant, script: str) -> None:
        launch = TaskLaunch(container_id=grant.container_id, control_url="http://here:1", token=script)
        self.engine.start(grant, launch)


def shell(grant: Grant, launch: TaskLaunch) -> tuple[tuple[str, ...], bytes]:
    """The token of a launch is the script that runs in its place; its environment is private."""
    return ("/bin/sh", "-c", launch.token), json.dumps({"node": grant.node}).encode()


def engine_of(attempt: Attempt, token: Token, number: int, scheduler: tuple[str, int] | None = None) -> Driver:
    woken = threading.Event()
    host, port = scheduler or attempt.hadoop.scheduler_address
    cluster = Cluster(
        schedulers=(f"{host}:{port}",),
        clients=(f"127.0.0.1:{attempt.hadoop.ports['rm']}",),
        login=Login(getpass.getuser()),
        dialect=Dialect.GCORES,
    )
    credentials = Credentials({"": token, "other": Token(b"i", b"p", "OTHER")})
    return Driver(YarnAmEngine(cluster, credentials, number, Program(launch=shell), woken.set), woken)


@pytest.fixture
def driver(attempt: Attempt) -> Iterator[Driver]:
    one = engine_of(attempt, attempt.token, 1)
    registered = one.engine.register("http://here:1234")
    assert registered.live == ()
    assert registered.limits.largest == Resources(memory_mib=4096, vcores=8, gcores=4)
    yield one
    one.engine.close()


def test_roles_get_their_containers_which_run_and_end(driver: Driver, tmp_path: Path) -> None:
    driver.wanted = {1: 3, 2: 1}
    driver.resources = {2: Resources(memory_mib=512, vcores=2, gcores=2)}
    driver.until(lambda: len(driver.granted) == 4)
    assert len(driver.of(1)) == 3
    (big,) = driver.of(2)
    assert big.resources == driver.resources[2]
    assert big.node in NODES.values()
    one, two, three = driver.of(1)
    driver.start(one, "exit 7")
    driver.start(two, f'cat "$HADOOP_TOKEN_FILE_LOCATION" > {tmp_path}/tokens')
    driver.start(three, f"touch {tmp_path}/three; exec sleep 1000")
    driver.start(big, f"touch {tmp_path}/big; exec sleep 1000")
    driver.until(lambda: {one.container_id, two.container_id} <= set(driver.ended))
    # One that is given back while it starts is a failed start, and not an end.
    driver.until(lambda: (tmp_path / "three").exists() and (tmp_path / "big").exists())
    assert driver.ended[one.container_id].exit_status == 7
    assert not driver.ended[one.container_id].node_fault
    credentials = Credentials.decode((tmp_path / "tokens").read_bytes())
    assert json.loads(credentials.secrets[TASK_SECRET]) == {"node": two.node}
    assert [token.kind for token in credentials.tokens.values()] == ["OTHER"]
    driver.engine.stop(three.container_id)
    driver.engine.stop(three.container_id)
    driver.releases = [big.container_id]
    driver.until(lambda: len(driver.ended) == 4)
    assert driver.ended[three.container_id].exit_status == -105
    assert len(driver.granted) == 4, "more came than was wanted"


def test_many_containers_are_allocated_quickly_without_surplus(driver: Driver) -> None:
    driver.wanted = {1: 6}
    driver.until(lambda: len(driver.granted) == 6)
    for _ in range(8):
        driver.beat()
    assert len(driver.granted) == 6


def test_only_named_nodes_are_used(driver: Driver) -> None:
    first, second = NODES.values()
    driver.placement = Placement(nodes=(second,))
    driver.wanted = {1: 2}
    driver.until(lambda: len(driver.granted) == 2)
    assert {grant.node for grant in driver.granted.values()} == {second}
    driver.placement = Placement(exclude_nodes=(second,))
    driver.wanted = {1: 2, 2: 2}
    driver.until(lambda: len(driver.of(2)) == 2)
    assert {grant.node for grant in driver.of(2)} == {first}


@pytest.mark.slow
def test_an_ask_above_the_limit_is_refused_in_seconds_and_the_others_are_met(driver: Driver) -> None:
    driver.wanted = {1: 1, 2: 1}
    driver.resources = {2: Resources(memory_mib=256, vcores=1, gcores=9)}
    driver.until(lambda: driver.refused and driver.granted)
    assert list(driver.refused) == [2]
    assert "gcores: 9" in driver.refused[2]
    assert "\n" not in driver.refused[2]
    assert [grant.request_id for grant in driver.granted.values()] == [1]


def test_an_ask_that_no_node_can_hold_ends_after_a_grace_with_the_reason(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_timeouts, "NO_NODE_GRACE_S", 2.0)
    driver.placement = Placement(nodes=("nowhere.example",))
    driver.wanted = {1: 1}
    driver.until(lambda: driver.refused)
    assert driver.refused[1] == (
        "none of the nodes asked for (nowhere.example) is there and has 256 MiB, 1 vcores and 1 gcores, in all, "
        "for one container"
    )
    assert not driver.granted


def test_an_excluded_node_gets_no_container_and_one_of_two_is_never_avoided(driver: Driver) -> None:
    first, second = NODES.values()
    driver.placement = Placement(exclude_nodes=(first,))
    driver.avoid = (second,)
    driver.wanted = {1: 3}
    driver.until(lambda: len(driver.granted) == 3)
    assert {grant.node for grant in driver.granted.values()} == {second}


@pytest.mark.slow
def test_lost_answers_of_the_resourcemanager_lose_no_container(attempt: Attempt) -> None:
    with Proxy(attempt.hadoop.scheduler_address) as proxy:
        driver = engine_of(attempt, attempt.token, 1, proxy.address)
        driver.engine.register("http://here:1234")
        # Of each connection the answer to the handshake's end, or to the first or second call after it, is lost.
        for round_ in range(12):
            driver.wanted = {1: 1 + round_ // 2}
            proxy.plan = Plan(cut_call=2 + round_ % 3)
            connections = proxy.connections
            proxy.cut_all()
            driver.beat()
            driver.until(lambda connections=connections: proxy.connections > connections)  # type: ignore[misc]
        proxy.plan = Plan()
        # What is wanted changed while grants were on their way: some may be too many, which are given back.
        driver.until(lambda: len(driver.granted) >= 6)
        driver.wanted = {1: 0}

        def all_given_back() -> bool:
            driver.releases = list(driver.granted)
            return set(driver.ended) == set(driver.granted)

        driver.until(all_given_back)
        assert driver.shut_down is None
        assert proxy.connections > 6
        driver.engine.close()


def test_a_released_running_container_ends_with_its_processes(
    driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(containers, "TAKEN_AWAY_S", 1000.0)  # it is its node that says so
    driver.wanted = {1: 1}
    driver.until(lambda: driver.granted)
    (grant,) = driver.granted.values()
    alive = tmp_path / "alive"
    driver.start(grant, f"echo $$ >{alive}; exec sleep 1000")
    driver.until(alive.exists)
    pid = int(until(alive.read_text))
    driver.releases = [grant.container_id]
    driver.until(lambda: driver.ending)
    assert driver.ending == [grant.container_id]
    driver.until(lambda: driver.ended)
    assert driver.ended[grant.container_id].exit_status == -100
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.slow
def test_the_next_attempt_sees_a_container_that_died_with_a_young_applicationmaster_as_ending(
    driver: Driver, attempt: Attempt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(containers, "TAKEN_AWAY_S", 1000.0)  # not before it was seen to be ending
    driver.wanted = {1: 2}
    driver.until(lambda: len(driver.granted) == 2)
    kill_attempt(tmp_path, 1)  # YARN takes away what its node has not said to be running
    second = engine_of(attempt, token_of_attempt(tmp_path, 2), 2)
    try:
        live = second.engine.register("http://here:1234").live
        assert live == ()
        second.until(lambda: len(second.ending) == 2)
        assert second.ended == {}
        monkeypatch.setattr(second.engine, "_clock", lambda: time.monotonic() + 1000.0)
        second.until(lambda: len(second.ended) == 2)
        assert {end.exit_status for end in second.ended.values()} == {-100}
    finally:
        second.engine.close()


@pytest.mark.slow
def test_a_registration_whose_answer_was_lost_costs_no_attempt(
    driver: Driver, attempt: Attempt, tmp_path: Path
) -> None:
    driver.wanted = {1: 1}
    driver.until(lambda: driver.granted)
    (grant,) = driver.granted.values()
    driver.start(grant, f"touch {tmp_path}/runs; exec sleep 1000")
    driver.until((tmp_path / "runs").exists)
    until_heard_of(attempt.hadoop, grant.container_id)
    kill_attempt(tmp_path, 1)
    token = token_of_attempt(tmp_path, 2)
    lost = ResourceManager([attempt.hadoop.scheduler_address], token, Dialect.GCORES)
    lost.register("here", 0, "", timeout_s=120)
    lost.close()
    second = engine_of(attempt, token, 2)
    try:
        assert second.engine.register("http://here:1234").live == ()
        # Somebody else knows of it, a journal; it can be ended all the same.
        second.engine.stop(grant.container_id)
        second.until(lambda: second.ended)
        assert second.ended[grant.container_id].exit_status == -100
    finally:
        second.engine.close()


def test_an_order_that_cannot_reach_its_node_is_a_failed_start(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    driver.wanted = {1: 1}
    driver.until(lambda: driver.granted)
    (grant,) = driver.granted.values()
    driver.start(grant, "{{nothing of this passes}}")
    driver.until(lambda: driver.start_failed)
    end = driver.start_failed[grant.container_id]
    assert end.node_fault
    assert "'{{' cannot pass" in end.diagnostics
    driver.wanted = {1: 2}
    driver.until(lambda: len(driver.granted) == 2)
    assert grant.container_id not in driver.ended


def test_the_end_of_a_container_over_its_memory_limit_has_the_numbers(driver: Driver) -> None:
    driver.wanted = {1: 1}
    driver.until(lambda: driver.granted)
    (grant,) = driver.granted.values()
    driver.start(grant, "exec python3 -c \"import time; held = b'x' * (600 << 20); time.sleep(1000)\"")
    driver.until(lambda: driver.ended)
    end = driver.ended[grant.container_id]
    assert end.exit_status == -104
    assert re.search(r"too much memory: \d+\.?\d* MB of 256 MB; raise memory of its role$", end.diagnostics)


def test_the_end_is_on_record(driver: Driver, rest: YarnRest, attempt: Attempt) -> None:
    driver.wanted = {1: 1}
    driver.until(lambda: driver.granted)
    driver.engine.finish(FinalStatus.SUCCEEDED, Cause.SUCCEEDED, "all done")
    report = until(lambda: (one := rest.report(attempt.application_id)).state.ended and one)
    assert (report.state, report.final_status, report.diagnostics) == (
        State.FINISHED,
        FinalStatus.SUCCEEDED,
        "all done",
    )


def test_a_kill_by_yarn_shuts_the_attempt_down_and_its_finish_does_no_harm(
    driver: Driver, rest: YarnRest, attempt: Attempt
) -> None:
    driver.beat()
    rest.kill(attempt.application_id, timeout_s=120)
    driver.until(lambda: driver.shut_down)
    driver.engine.finish(FinalStatus.FAILED, Cause.FAILED, "too late")
    assert rest.report(attempt.application_id).state is State.KILLED


@pytest.mark.slow
def test_a_resourcemanager_restart_causes_a_wait_and_no_events(
    driver: Driver, attempt: Attempt, tmp_path: Path
) -> None:
    driver.wanted = {1: 2}
    driver.until(lambda: len(driver.granted) == 2)
    for grant in list(driver.granted.values()):
        driver.start(grant, f"touch {tmp_path}/$CONTAINER_ID; exec sleep 1000")
    one, two = driver.granted
    # Their nodes start none that another ResourceManager has granted.
    driver.until(lambda: all((tmp_path / str(each)).exists() for each in (one, two)))
    attempt.hadoop.kill_part("rm")
    driver.beat()
    driver.wanted = {1: 3}
    driver.engine.stop(one)
    attempt.hadoop.start_part("rm")
    driver.until(lambda: len(driver.granted) == 3 and one in driver.ended)
    attempt.hadoop.wait_until_ready()
    assert driver.ended[one].exit_status == -105
    assert two not in driver.ended
    assert driver.shut_down is None
    for _ in range(10):
        driver.beat()
    assert len(driver.granted) == 3


@pytest.mark.slow
def test_a_second_attempt_finds_the_containers_of_the_first_and_ends_them(
    driver: Driver, attempt: Attempt, tmp_path: Path
) -> None:
    driver.wanted = {1: 2}
    driver.until(lambda: len(driver.granted) == 2)
    one, two = driver.granted.values()
    driver.start(one, f"touch {tmp_path}/one && exec sleep 1000")
    driver.start(two, f"touch {tmp_path}/two && until test -e {tmp_path}/go; do sleep 0.1; done; exit 5")
    driver.until(lambda: (tmp_path / "one").exists() and (tmp_path / "two").exists())
    until_heard_of(attempt.hadoop, one.container_id, two.container_id)
    kill_attempt(tmp_path, 1)
    second = engine_of(attempt, token_of_attempt(tmp_path, 2), 2)
    try:
        live = second.engine.register("http://here:1234").live
        assert {grant.container_id: grant.request_id for grant in live} == {one.container_id: 1, two.container_id: 1}
        assert {grant.node for grant in live} == {one.node, two.node}
        second.granted = {grant.container_id: grant for grant in live}
        second.wanted = {1: 3}
        second.until(lambda: len(second.granted) == 3)
        second.engine.stop(one.container_id)
        (tmp_path / "go").touch()
        second.until(lambda: {one.container_id, two.container_id} <= set(second.ended))
        assert second.ended[one.container_id].exit_status == -105
        assert second.ended[two.container_id].exit_status == 5
        driver.until(lambda: driver.shut_down)
        second.engine.finish(FinalStatus.SUCCEEDED, Cause.SUCCEEDED, "by the second")
    finally:
        second.engine.close()


@pytest.mark.slow
def test_a_node_that_is_lost_ends_its_containers_by_its_own_fault(
    driver: Driver, rest: YarnRest, attempt: Attempt, tmp_path: Path
) -> None:
    # With the ApplicationMaster's own node the attempt would be lost as well.
    own = rest.report(attempt.application_id).am_node.partition(":")[0]
    ((part, host),) = [(part, host) for part, host in NODES.items() if host != own]
    driver.placement = Placement(nodes=(host,))
    driver.wanted = {1: 1}
    driver.until(lambda: driver.granted)
    (grant,) = driver.granted.values()
    driver.start(grant, f"touch {tmp_path}/runs; exec sleep 1000")
    driver.until((tmp_path / "runs").exists)
    attempt.hadoop.kill_part(part)
    try:
        driver.until(lambda: driver.ended)
        end = driver.ended[grant.container_id]
        assert (end.exit_status, end.node_fault) == (-100, True)
        assert "lost" in end.diagnostics
        driver.placement = Placement()
        driver.wanted = {1: 2}
        driver.until(lambda: len(driver.granted) == 2)
        assert sorted(item.node for item in driver.granted.values()) == sorted(NODES.values())
    finally:
        attempt.hadoop.start_part(part)
        attempt.hadoop.wait_until_ready()
