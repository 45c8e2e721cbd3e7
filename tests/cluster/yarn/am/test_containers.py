"""Test what an attempt holds, and when it tells of what YARN took away: a clock that is set by hand."""

from __future__ import annotations

import math

import pytest

from dlapp.cluster.engine import STATUS_UNKNOWN, AnnouncedEnd
from dlapp.cluster.yarn.am.containers import (
    LAST_QUERY_INTERVAL_S,
    MAX_QUERIED,
    NOTICE_S,
    QUERY_INTERVAL_S,
    TAKEN_AWAY_S,
    UNKNOWN_S,
    ContainerTracker,
)
from dlapp.cluster.yarn.am.node_manager import NodeManager
from dlapp.cluster.yarn.values import ContainerStage, ContainerStatus, Granted, NodeId, NodeReport
from dlapp.hadoop.errors import ConnectionLost, HadoopError, NotHadoop, RemoteError, remote_error
from dlapp.value import replace
from dlapp.values.ids import ContainerId
from dlapp.values.spec import Resources

NODE = NodeId("node1", 8041)
OURS = ContainerId.from_text("container_1700000000000_0042_02_000002")
EARLIER = ContainerId.from_text("container_1700000000000_0042_01_000002")


def granted(container_id: ContainerId) -> Granted:
    return Granted(
        container_id=container_id,
        node=NODE,
        web="node1:8042",
        resources=Resources(memory_mib=256),
        priority=1,
        request_id=1,
        token=b"",
    )


def taken_away(container_id: ContainerId) -> ContainerStatus:
    return ContainerStatus(container_id=container_id, stage=ContainerStage.ENDED, exit_status=-100)


def status(stage: ContainerStage, exit_status: int = STATUS_UNKNOWN) -> ContainerStatus:
    return ContainerStatus(container_id=OURS, stage=stage, exit_status=exit_status)


@pytest.fixture
def holdings() -> ContainerTracker:
    """Make a tracker with a started container of which the ResourceManager says at time 0 that it has ended."""
    one = ContainerTracker(2, "tony")
    one.add_granted([granted(OURS)])
    assert one.mark_starting(OURS)
    one.pop_events()
    one.record_end(taken_away(OURS), 0.0)
    events = one.pop_events()
    assert (events.ending, events.ended) == ([OURS], [])
    return one


def test_containers_of_an_earlier_attempt_are_released_at_the_next_resourcemanager_too() -> None:
    holdings = ContainerTracker(2, "tony")
    assert holdings.mark_stopping(EARLIER) is None  # nobody named it: no node to tell
    holdings.record_released({EARLIER}, 0.0)
    assert not holdings.releases
    holdings.adopt([granted(EARLIER)])
    holdings.restore_releases()
    assert holdings.releases == {EARLIER}


def told(holdings: ContainerTracker, now: float) -> list[ContainerId]:
    holdings.report_gone(now)
    return [one.container_id for one in holdings.pop_events().ended]


def test_as_long_as_its_node_says_that_it_runs_it_runs(holdings: ContainerTracker) -> None:
    now = 0.0
    while now < 10 * TAKEN_AWAY_S:
        assert holdings.due_status_queries(now, is_done=False) == [(NODE, OURS)]
        assert holdings.due_status_queries(now, is_done=False) == [], "asked again before it answered"
        holdings.record_status(OURS, status(ContainerStage.RUNNING), now)
        now += QUERY_INTERVAL_S
        assert told(holdings, now) == []
        assert holdings.has_pending_ends()
    assert holdings.due_status_queries(now, is_done=False) == [(NODE, OURS)]
    holdings.record_status(OURS, status(ContainerStage.ENDED), now)
    assert told(holdings, now) == [OURS]
    holdings.record_status(OURS, status(ContainerStage.ENDED), now)
    assert told(holdings, 10 * now) == []
    assert not holdings.has_pending_ends()


def test_a_container_is_over_after_a_time_if_its_node_does_not_answer(holdings: ContainerTracker) -> None:
    holdings.due_status_queries(0.0, is_done=False)
    holdings.record_status(OURS, None, 3.0)
    assert holdings.due_status_queries(3.0 + QUERY_INTERVAL_S, is_done=False) == [(NODE, OURS)]
    assert told(holdings, 0.9 * TAKEN_AWAY_S) == []
    assert told(holdings, TAKEN_AWAY_S) == [OURS]


@pytest.mark.parametrize("seen", [None, ContainerStage.ENDED])
def test_processes_on_a_lost_node_are_over_only_if_the_node_reports_it(
    seen: ContainerStage | None,
) -> None:
    holdings = started()
    words = "Container released on a *lost* node"
    holdings.record_end(replace(taken_away(OURS), diagnostics=words), 0.0)
    holdings.due_status_queries(0.0, is_done=False)
    holdings.record_status(OURS, seen and status(seen), 1.0)
    holdings.report_gone(TAKEN_AWAY_S)
    (end,) = holdings.pop_events().ended
    assert end.presumed is (seen is None)


@pytest.mark.parametrize("answers", [False, True])
def test_the_end_of_a_container_on_a_lost_node_has_its_nodemanagers_state(answers: bool) -> None:
    holdings = started()
    holdings.record_end(replace(taken_away(OURS), diagnostics="Container released on a *lost* node"), 0.0)
    holdings.due_status_queries(0.0, is_done=False)
    holdings.record_status(OURS, status(ContainerStage.RUNNING) if answers else None, 1.0)
    holdings.report_gone(1.0 + TAKEN_AWAY_S)
    (end,) = holdings.pop_events().ended
    assert (end.presumed, end.node_answered) == (True, answers)


def test_ended_containers_of_an_earlier_attempt_are_not_released_again(holdings: ContainerTracker) -> None:
    holdings.record_end(taken_away(EARLIER), 0.0)
    assert told(holdings, TAKEN_AWAY_S) == [OURS, EARLIER]
    assert holdings.mark_stopping(EARLIER) is None
    assert not holdings.releases
    assert not holdings.has_pending_ends()


def test_the_node_of_an_earlier_attempts_container_is_unknown(holdings: ContainerTracker) -> None:
    holdings.due_status_queries(0.0, is_done=False)
    holdings.record_end(taken_away(EARLIER), 1.0)
    assert holdings.pop_events().ending == [EARLIER]
    assert holdings.due_status_queries(2.0, is_done=False) == []
    assert told(holdings, 1.0 + TAKEN_AWAY_S) == [OURS, EARLIER]


def test_an_earlier_attempts_container_that_the_registration_named_has_a_node() -> None:
    holdings = ContainerTracker(2, "tony")
    assert [one.container_id for one in holdings.adopt([granted(EARLIER)])] == [EARLIER]
    holdings.record_end(taken_away(EARLIER), 0.0)
    assert holdings.due_status_queries(0.0, is_done=False) == [(NODE, EARLIER)]


def test_a_log_is_at_the_node_s_web_address_in_the_scheme_of_the_cluster() -> None:
    for scheme in ("http", "https"):
        tracker = ContainerTracker(1, "tony", scheme)
        tracker.add_granted([granted(OURS)])
        (grant,) = tracker.pop_events().granted
        assert grant.log_url == f"{scheme}://{granted(OURS).web}/node/containerlogs/{OURS}/tony"


def test_a_container_that_started_nothing_ends_at_once() -> None:
    holdings = ContainerTracker(1, "tony")
    holdings.add_granted([granted(OURS)])
    holdings.pop_events()
    holdings.record_end(taken_away(OURS), 0.0)
    assert told(holdings, 0.0) == [OURS]


def started() -> ContainerTracker:
    """Make a tracker with a container that was started."""
    one = ContainerTracker(2, "tony")
    one.add_granted([granted(OURS)])
    assert one.mark_starting(OURS)
    one.pop_events()
    return one


def test_a_container_unknown_to_yarn_counts_as_lost_after_a_time() -> None:
    holdings = started()
    assert holdings.mark_stopping(OURS)
    assert holdings.record_failed(OURS, ConnectionLost("node1: timed out", sent=True), start=False)
    assert holdings.releases == {OURS}
    assert told(holdings, 10 * UNKNOWN_S) == [], "YARN was not told"
    holdings.record_released([OURS], now=100.0)
    assert told(holdings, 99.0 + UNKNOWN_S) == []
    holdings.report_gone(100.0 + UNKNOWN_S)
    (end,) = holdings.pop_events().ended
    assert (end.container_id, end.node_fault) == (OURS, True)
    assert "lost" in end.diagnostics
    assert not holdings.has_pending_ends()
    holdings.record_end(taken_away(OURS), 101.0 + UNKNOWN_S)
    assert not holdings.pop_events()


def test_no_container_counts_as_lost_while_yarn_does_not_answer() -> None:
    holdings = started()
    holdings.record_failed(OURS, ConnectionLost("node1: timed out", sent=True), start=False)
    holdings.record_released([OURS], now=0.0)
    for now in range(0, 10 * int(UNKNOWN_S), 30):
        assert told(holdings, now) == []
        holdings.record_silence(now)
    assert told(holdings, 11 * UNKNOWN_S) == [OURS]


def test_releases_are_sent_again_to_a_restarted_yarn_with_a_new_deadline() -> None:
    holdings = started()
    holdings.record_failed(OURS, ConnectionLost("node1: timed out", sent=True), start=False)
    holdings.record_released([OURS], now=0.0)
    assert not holdings.releases
    holdings.restore_releases()
    assert holdings.releases == {OURS}
    holdings.record_released([OURS], now=UNKNOWN_S - 1)
    assert told(holdings, UNKNOWN_S) == []
    assert told(holdings, 2 * UNKNOWN_S) == [OURS]


@pytest.mark.parametrize("error", [ConnectionLost("node1: timed out", sent=True), NotHadoop("node1: garbage")])
def test_a_container_that_may_have_started_ends_with_its_processes(error: HadoopError) -> None:
    holdings = started()
    assert holdings.record_failed(OURS, error, start=True)
    assert not holdings.pop_events()
    assert holdings.releases == {OURS}
    holdings.record_released([OURS], 0.0)
    holdings.record_end(taken_away(OURS), 0.1)
    assert holdings.due_status_queries(0.1, is_done=False) == [(NODE, OURS)]
    holdings.record_status(OURS, status(ContainerStage.RUNNING), 1.0)
    assert told(holdings, TAKEN_AWAY_S) == []
    holdings.report_gone(1.0 + TAKEN_AWAY_S)
    (end,) = holdings.pop_events().ended
    assert (end.node_fault, end.is_silent) == (True, True)
    assert end.diagnostics == f"the container could not be started: {error}"


@pytest.mark.parametrize(
    "error", [ConnectionLost("node1: refused", sent=False), RemoteError("startContainers", "java.x.Y", "no")]
)
def test_a_container_that_was_never_started_ends_at_once(error: HadoopError) -> None:
    holdings = started()
    assert holdings.record_failed(OURS, error, start=True)
    (end,) = holdings.pop_events().start_failed
    assert (end.container_id, end.exit_status) == (OURS, -1)
    assert holdings.releases == {OURS}
    holdings.record_end(taken_away(OURS), 0.1)
    assert not holdings.pop_events()


@pytest.mark.parametrize("refused", [True, False])
def test_a_nodemanager_that_does_not_answer_is_a_service_and_silent_where_its_host_is(refused: bool) -> None:
    holdings = started()
    assert holdings.record_failed(OURS, ConnectionLost("node1: gone", sent=False, refused=refused), start=True)
    (end,) = holdings.pop_events().start_failed
    assert (end.service, end.is_silent) == (f"the NodeManager on {NODE.host}", not refused)


def test_the_last_containers_are_polled_for_their_ends_when_all_others_are_done() -> None:
    holdings = started()
    assert holdings.due_status_queries(0.0, is_done=False) == []
    assert holdings.due_status_queries(0.0, is_done=True) == [(NODE, OURS)]
    assert holdings.due_status_queries(9.0, is_done=True) == []
    holdings.record_status(OURS, status(ContainerStage.RUNNING), 9.0)
    assert holdings.due_status_queries(9.0, is_done=True) == []
    assert holdings.due_status_queries(9.0 + LAST_QUERY_INTERVAL_S, is_done=True) == [(NODE, OURS)]
    holdings.record_status(OURS, status(ContainerStage.ENDED), 10.0)  # the ResourceManager has the exit status
    assert not holdings.pop_events()
    holdings.record_status(OURS, status(ContainerStage.ENDED, 3), 11.0)
    (end,) = holdings.pop_events().ended
    assert (end.container_id, end.exit_status) == (OURS, 3)
    holdings.record_end(status(ContainerStage.ENDED, 3), 11.5)
    assert not holdings.pop_events(), "reported a second time"


def test_many_containers_are_not_queried_for_their_ends() -> None:
    holdings = ContainerTracker(2, "tony")
    many = [ContainerId(OURS.application, 2, 2 + number) for number in range(MAX_QUERIED + 1)]
    holdings.add_granted(map(granted, many))
    for one in many:
        holdings.mark_starting(one)
    assert holdings.due_status_queries(0.0, is_done=True) == []
    holdings.record_end(replace(status(ContainerStage.ENDED, 0), container_id=many[0]), 0.0)
    assert len(holdings.due_status_queries(0.0, is_done=True)) == MAX_QUERIED


def exception(message: str) -> RemoteError:
    return RemoteError("getContainerStatuses", "org.apache.hadoop.yarn.exceptions.YarnException", message)


@pytest.mark.parametrize(
    ("answer", "known"),
    [
        (status(ContainerStage.PREPARING), status(ContainerStage.PREPARING)),
        (status(ContainerStage.RUNNING), status(ContainerStage.RUNNING)),
        (taken_away(OURS), taken_away(OURS)),
        (exception(f"Container {OURS} was recently stopped on node manager."), status(ContainerStage.ENDED)),
        (exception(f"Container {OURS} is not handled by this NodeManager"), None),
        (HadoopError("node1: did not report it"), None),
    ],
)
def test_a_container_removed_by_its_node_has_ended_and_an_unknown_one_may_run(
    monkeypatch: pytest.MonkeyPatch, answer: ContainerStatus | HadoopError, known: ContainerStatus | None
) -> None:
    monkeypatch.setattr(
        NodeManager, "statuses", lambda self, containers, *, timeout_s: dict.fromkeys(containers, answer)
    )
    assert NodeManager(NODE, None).known_statuses([OURS], timeout_s=1) == {OURS: known}  # type: ignore[arg-type]


YARN = "org.apache.hadoop.yarn.exceptions"


@pytest.mark.parametrize(
    ("java_class", "message"),
    [
        (f"{YARN}.InvalidContainerException", f" Container {OURS} rejected as it is allocated by a previous RM"),
        (f"{YARN}.YarnException", "Unauthorized request to start container.\nThis token is expired. current time is 7"),
        ("org.apache.hadoop.security.token.SecretManager$InvalidToken", "Invalid container token"),
        (f"{YARN}.NMNotYetReadyException", "Rejecting new containers as NodeManager has not yet connected with RM"),
    ],
)
def test_a_start_that_is_refused_after_a_restart_is_as_if_the_container_was_taken_away(
    java_class: str, message: str
) -> None:
    holdings = started()
    assert holdings.record_failed(OURS, remote_error("startContainers", java_class, message), start=True)
    (end,) = holdings.pop_events().start_failed
    assert (end.exit_status, end.node_fault) == (-100, True)
    assert "could not be started" in end.diagnostics


def node(leaves_in_s: float | None = None, *, is_removed: bool = False) -> NodeReport:
    usable = leaves_in_s is None and not is_removed
    amounts = Resources(memory_mib=4096)
    return NodeReport(
        node=NODE, rack="/r", usable=usable, capability=amounts, leaves_in_s=leaves_in_s, is_removed=is_removed
    )


def announced(holdings: ContainerTracker, now: float) -> list[AnnouncedEnd]:
    holdings.announce_leaving(now)
    return holdings.pop_events().announced


def test_the_end_of_a_graceful_decommission_is_announced_once_and_early_enough_to_save_the_work() -> None:
    holdings = started()
    holdings.record_nodes([node(3600.0)], 100.0)
    assert announced(holdings, 3700.0 - NOTICE_S - 1) == []
    (one,) = announced(holdings, 3700.0 - NOTICE_S)
    assert one == AnnouncedEnd(container_id=OURS, wait_s=NOTICE_S, is_decommissioned=True)
    assert announced(holdings, 3700.0) == []


def test_a_late_container_gets_the_rest_of_a_short_decommission_timeout() -> None:
    holdings = ContainerTracker(2, "tony")
    holdings.record_nodes([node(25.0)], 0.0)
    assert announced(holdings, 0.0) == []
    holdings.add_live([granted(OURS)])
    (one,) = announced(holdings, 5.0)
    assert one.wait_s == 20.0


def test_a_decommission_that_is_taken_back_or_has_no_limit_is_not_announced() -> None:
    holdings = started()
    holdings.record_nodes([node(25.0)], 0.0)
    holdings.record_nodes([node()], 1.0)
    assert announced(holdings, 1000.0) == []
    holdings.record_nodes([node(math.inf)], 1000.0)
    holdings.record_leaving([node(math.inf)], 1000.0)
    assert announced(holdings, 1e9) == []


def test_a_decommission_that_was_taken_back_unheard_is_forgotten_with_the_next_list() -> None:
    holdings = started()
    holdings.record_leaving([node(25.0)], 0.0)
    holdings.record_leaving([node()], 1.0)
    assert announced(holdings, 1000.0) == []


def test_a_container_that_is_granted_on_a_node_shows_that_its_decommission_was_taken_back() -> None:
    holdings = ContainerTracker(2, "tony")
    holdings.record_leaving([node(25.0)], 0.0)
    holdings.add_granted([granted(OURS)])
    assert announced(holdings, 1000.0) == []
    holdings.record_nodes([node(25.0)], 1000.0)
    assert [one.wait_s for one in announced(holdings, 1000.0)] == [25.0], "the change came with the grant, or later"


def test_a_decommission_that_only_a_list_shows_is_announced_at_once() -> None:
    # How much of its time has passed is not known.
    holdings = started()
    holdings.record_leaving([node(3600.0)], 0.0)
    (one,) = announced(holdings, 0.0)
    assert one.wait_s == NOTICE_S
    later = started()
    later.record_nodes([node(3600.0)], 0.0)
    later.record_leaving([node(3600.0)], 10.0)
    assert announced(later, 10.0) == [], "what a heartbeat has said is exact"


def test_a_node_that_is_removed_is_reported_by_its_host() -> None:
    holdings = started()
    holdings.record_nodes([node(is_removed=True)], 0.0)
    assert holdings.pop_events().removed_nodes == ["node1"]
