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


def released_status(container_id: ContainerId) -> ContainerStatus:
    return ContainerStatus(container_id=container_id, stage=ContainerStage.ENDED, exit_status=-100)


def status(stage: ContainerStage, exit_status: int = STATUS_UNKNOWN) -> ContainerStatus:
    return ContainerStatus(container_id=OURS, stage=stage, exit_status=exit_status)


@pytest.fixture
def tracker() -> ContainerTracker:
    """Make a tracker with a started container of which the ResourceManager says at time 0 that it has ended."""
    one = ContainerTracker(2, "tony")
    one.add_granted([granted(OURS)])
    assert one.mark_starting(OURS)
    one.pop_events()
    one.record_end(released_status(OURS), 0.0)
    events = one.pop_events()
    assert (events.ending, events.ended) == ([OURS], [])
    return one


def test_containers_of_an_earlier_attempt_are_released_at_the_next_resourcemanager_too() -> None:
    tracker = ContainerTracker(2, "tony")
    assert tracker.mark_stopping(EARLIER) is None  # nobody named it: no node to tell
    tracker.record_released({EARLIER}, 0.0)
    assert not tracker.releases
    tracker.adopt([granted(EARLIER)])
    tracker.restore_releases()
    assert tracker.releases == {EARLIER}


def ended_containers(tracker: ContainerTracker, now: float) -> list[ContainerId]:
    tracker.report_gone(now)
    return [container.container_id for container in tracker.pop_events().ended]


def test_a_container_runs_as_long_as_its_node_reports_it(tracker: ContainerTracker) -> None:
    now = 0.0
    while now < 10 * TAKEN_AWAY_S:
        assert tracker.due_status_queries(now, is_done=False) == [(NODE, OURS)]
        assert tracker.due_status_queries(now, is_done=False) == [], "asked again before it answered"
        tracker.record_status(OURS, status(ContainerStage.RUNNING), now)
        now += QUERY_INTERVAL_S
        assert ended_containers(tracker, now) == []
        assert tracker.has_pending_ends()
    assert tracker.due_status_queries(now, is_done=False) == [(NODE, OURS)]
    tracker.record_status(OURS, status(ContainerStage.ENDED), now)
    assert ended_containers(tracker, now) == [OURS]
    tracker.record_status(OURS, status(ContainerStage.ENDED), now)
    assert ended_containers(tracker, 10 * now) == []
    assert not tracker.has_pending_ends()


def test_a_container_is_over_after_a_time_if_its_node_does_not_answer(tracker: ContainerTracker) -> None:
    tracker.due_status_queries(0.0, is_done=False)
    tracker.record_status(OURS, None, 3.0)
    assert tracker.due_status_queries(3.0 + QUERY_INTERVAL_S, is_done=False) == [(NODE, OURS)]
    assert ended_containers(tracker, 0.9 * TAKEN_AWAY_S) == []
    assert ended_containers(tracker, TAKEN_AWAY_S) == [OURS]


@pytest.mark.parametrize("seen", [None, ContainerStage.ENDED])
def test_processes_on_a_lost_node_are_over_only_if_the_node_reports_it(
    seen: ContainerStage | None,
) -> None:
    tracker = started()
    words = "Container released on a *lost* node"
    tracker.record_end(replace(released_status(OURS), diagnostics=words), 0.0)
    tracker.due_status_queries(0.0, is_done=False)
    tracker.record_status(OURS, seen and status(seen), 1.0)
    tracker.report_gone(TAKEN_AWAY_S)
    (end,) = tracker.pop_events().ended
    assert end.presumed is (seen is None)


@pytest.mark.parametrize("answers", [False, True])
def test_the_end_of_a_container_on_a_lost_node_has_its_nodemanagers_state(answers: bool) -> None:
    tracker = started()
    tracker.record_end(replace(released_status(OURS), diagnostics="Container released on a *lost* node"), 0.0)
    tracker.due_status_queries(0.0, is_done=False)
    tracker.record_status(OURS, status(ContainerStage.RUNNING) if answers else None, 1.0)
    tracker.report_gone(1.0 + TAKEN_AWAY_S)
    (end,) = tracker.pop_events().ended
    assert (end.presumed, end.node_answered) == (True, answers)


def test_ended_containers_of_an_earlier_attempt_are_not_released_again(tracker: ContainerTracker) -> None:
    tracker.record_end(released_status(EARLIER), 0.0)
    assert ended_containers(tracker, TAKEN_AWAY_S) == [OURS, EARLIER]
    assert tracker.mark_stopping(EARLIER) is None
    assert not tracker.releases
    assert not tracker.has_pending_ends()


def test_the_node_of_an_earlier_attempts_container_is_unknown(tracker: ContainerTracker) -> None:
    tracker.due_status_queries(0.0, is_done=False)
    tracker.record_end(released_status(EARLIER), 1.0)
    assert tracker.pop_events().ending == [EARLIER]
    assert tracker.due_status_queries(2.0, is_done=False) == []
    assert ended_containers(tracker, 1.0 + TAKEN_AWAY_S) == [OURS, EARLIER]


def test_an_earlier_attempts_container_that_the_registration_named_has_a_node() -> None:
    tracker = ContainerTracker(2, "tony")
    assert [container.container_id for container in tracker.adopt([granted(EARLIER)])] == [EARLIER]
    tracker.record_end(released_status(EARLIER), 0.0)
    assert tracker.due_status_queries(0.0, is_done=False) == [(NODE, EARLIER)]


def test_a_log_is_at_the_node_s_web_address_in_the_scheme_of_the_cluster() -> None:
    for scheme in ("http", "https"):
        tracker = ContainerTracker(1, "tony", scheme)
        tracker.add_granted([granted(OURS)])
        (grant,) = tracker.pop_events().granted
        assert grant.log_url == f"{scheme}://{granted(OURS).web}/node/containerlogs/{OURS}/tony"


def test_a_container_that_started_nothing_ends_at_once() -> None:
    tracker = ContainerTracker(1, "tony")
    tracker.add_granted([granted(OURS)])
    tracker.pop_events()
    tracker.record_end(released_status(OURS), 0.0)
    assert ended_containers(tracker, 0.0) == [OURS]


def started() -> ContainerTracker:
    """Make a tracker with a container that was started."""
    one = ContainerTracker(2, "tony")
    one.add_granted([granted(OURS)])
    assert one.mark_starting(OURS)
    one.pop_events()
    return one


def test_a_container_unknown_to_yarn_counts_as_lost_after_a_time() -> None:
    tracker = started()
    assert tracker.mark_stopping(OURS)
    assert tracker.record_failed(OURS, ConnectionLost("node1: timed out", sent=True), start=False)
    assert tracker.releases == {OURS}
    assert ended_containers(tracker, 10 * UNKNOWN_S) == [], "no release was sent to YARN"
    tracker.record_released([OURS], now=100.0)
    assert ended_containers(tracker, 99.0 + UNKNOWN_S) == []
    tracker.report_gone(100.0 + UNKNOWN_S)
    (end,) = tracker.pop_events().ended
    assert (end.container_id, end.node_fault) == (OURS, True)
    assert "lost" in end.diagnostics
    assert not tracker.has_pending_ends()
    tracker.record_end(released_status(OURS), 101.0 + UNKNOWN_S)
    assert not tracker.pop_events()


def test_no_container_counts_as_lost_while_yarn_does_not_answer() -> None:
    tracker = started()
    tracker.record_failed(OURS, ConnectionLost("node1: timed out", sent=True), start=False)
    tracker.record_released([OURS], now=0.0)
    for now in range(0, 10 * int(UNKNOWN_S), 30):
        assert ended_containers(tracker, now) == []
        tracker.record_silence(now)
    assert ended_containers(tracker, 11 * UNKNOWN_S) == [OURS]


def test_releases_are_sent_again_to_a_restarted_yarn_with_a_new_deadline() -> None:
    tracker = started()
    tracker.record_failed(OURS, ConnectionLost("node1: timed out", sent=True), start=False)
    tracker.record_released([OURS], now=0.0)
    assert not tracker.releases
    tracker.restore_releases()
    assert tracker.releases == {OURS}
    tracker.record_released([OURS], now=UNKNOWN_S - 1)
    assert ended_containers(tracker, UNKNOWN_S) == []
    assert ended_containers(tracker, 2 * UNKNOWN_S) == [OURS]


@pytest.mark.parametrize("error", [ConnectionLost("node1: timed out", sent=True), NotHadoop("node1: garbage")])
def test_a_container_that_may_have_started_ends_with_its_processes(error: HadoopError) -> None:
    tracker = started()
    assert tracker.record_failed(OURS, error, start=True)
    assert not tracker.pop_events()
    assert tracker.releases == {OURS}
    tracker.record_released([OURS], 0.0)
    tracker.record_end(released_status(OURS), 0.1)
    assert tracker.due_status_queries(0.1, is_done=False) == [(NODE, OURS)]
    tracker.record_status(OURS, status(ContainerStage.RUNNING), 1.0)
    assert ended_containers(tracker, TAKEN_AWAY_S) == []
    tracker.report_gone(1.0 + TAKEN_AWAY_S)
    (end,) = tracker.pop_events().ended
    assert (end.node_fault, end.is_silent) == (True, True)
    assert end.diagnostics == f"the container could not be started: {error}"


@pytest.mark.parametrize(
    "error", [ConnectionLost("node1: refused", sent=False), RemoteError("startContainers", "java.x.Y", "no")]
)
def test_a_container_that_was_never_started_ends_at_once(error: HadoopError) -> None:
    tracker = started()
    assert tracker.record_failed(OURS, error, start=True)
    (end,) = tracker.pop_events().start_failed
    assert (end.container_id, end.exit_status) == (OURS, -1)
    assert tracker.releases == {OURS}
    tracker.record_end(released_status(OURS), 0.1)
    assert not tracker.pop_events()


@pytest.mark.parametrize("refused", [True, False])
def test_a_nodemanager_that_does_not_answer_is_a_service_and_silent_where_its_host_is(refused: bool) -> None:
    tracker = started()
    assert tracker.record_failed(OURS, ConnectionLost("node1: gone", sent=False, refused=refused), start=True)
    (end,) = tracker.pop_events().start_failed
    assert (end.service, end.is_silent) == (f"the NodeManager on {NODE.host}", not refused)


def test_the_last_containers_are_polled_for_their_ends_when_all_others_are_done() -> None:
    tracker = started()
    assert tracker.due_status_queries(0.0, is_done=False) == []
    assert tracker.due_status_queries(0.0, is_done=True) == [(NODE, OURS)]
    assert tracker.due_status_queries(9.0, is_done=True) == []
    tracker.record_status(OURS, status(ContainerStage.RUNNING), 9.0)
    assert tracker.due_status_queries(9.0, is_done=True) == []
    assert tracker.due_status_queries(9.0 + LAST_QUERY_INTERVAL_S, is_done=True) == [(NODE, OURS)]
    tracker.record_status(OURS, status(ContainerStage.ENDED), 10.0)  # the ResourceManager has the exit status
    assert not tracker.pop_events()
    tracker.record_status(OURS, status(ContainerStage.ENDED, 3), 11.0)
    (end,) = tracker.pop_events().ended
    assert (end.container_id, end.exit_status) == (OURS, 3)
    tracker.record_end(status(ContainerStage.ENDED, 3), 11.5)
    assert not tracker.pop_events(), "reported a second time"


def test_many_containers_are_not_queried_for_their_ends() -> None:
    tracker = ContainerTracker(2, "tony")
    many = [ContainerId(OURS.application, 2, 2 + number) for number in range(MAX_QUERIED + 1)]
    tracker.add_granted(map(granted, many))
    for item in many:
        tracker.mark_starting(item)
    assert tracker.due_status_queries(0.0, is_done=True) == []
    tracker.record_end(replace(status(ContainerStage.ENDED, 0), container_id=many[0]), 0.0)
    assert len(tracker.due_status_queries(0.0, is_done=True)) == MAX_QUERIED


def exception(message: str) -> RemoteError:
    return RemoteError("getContainerStatuses", "org.apache.hadoop.yarn.exceptions.YarnException", message)


@pytest.mark.parametrize(
    ("answer", "known"),
    [
        (status(ContainerStage.PREPARING), status(ContainerStage.PREPARING)),
        (status(ContainerStage.RUNNING), status(ContainerStage.RUNNING)),
        (released_status(OURS), released_status(OURS)),
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
def test_a_start_refused_after_a_restart_counts_as_preempted(java_class: str, message: str) -> None:
    tracker = started()
    assert tracker.record_failed(OURS, remote_error("startContainers", java_class, message), start=True)
    (end,) = tracker.pop_events().start_failed
    assert (end.exit_status, end.node_fault) == (-100, True)
    assert "could not be started" in end.diagnostics


def node(leaves_in_s: float | None = None, *, is_removed: bool = False) -> NodeReport:
    usable = leaves_in_s is None and not is_removed
    amounts = Resources(memory_mib=4096)
    return NodeReport(
        node=NODE, rack="/r", usable=usable, capability=amounts, leaves_in_s=leaves_in_s, is_removed=is_removed
    )


def announced(tracker: ContainerTracker, now: float) -> list[AnnouncedEnd]:
    tracker.announce_leaving(now)
    return tracker.pop_events().announced


def test_the_end_of_a_graceful_decommission_is_announced_once_in_time_to_save() -> None:
    tracker = started()
    tracker.record_nodes([node(3600.0)], 100.0)
    assert announced(tracker, 3700.0 - NOTICE_S - 1) == []
    (one,) = announced(tracker, 3700.0 - NOTICE_S)
    assert one == AnnouncedEnd(container_id=OURS, wait_s=NOTICE_S, is_decommissioned=True)
    assert announced(tracker, 3700.0) == []


def test_a_late_container_gets_the_rest_of_a_short_decommission_timeout() -> None:
    tracker = ContainerTracker(2, "tony")
    tracker.record_nodes([node(25.0)], 0.0)
    assert announced(tracker, 0.0) == []
    tracker.add_live([granted(OURS)])
    (one,) = announced(tracker, 5.0)
    assert one.wait_s == 20.0


def test_a_decommission_that_is_taken_back_or_has_no_limit_is_not_announced() -> None:
    tracker = started()
    tracker.record_nodes([node(25.0)], 0.0)
    tracker.record_nodes([node()], 1.0)
    assert announced(tracker, 1000.0) == []
    tracker.record_nodes([node(math.inf)], 1000.0)
    tracker.record_leaving([node(math.inf)], 1000.0)
    assert announced(tracker, 1e9) == []


def test_a_decommission_that_was_taken_back_unheard_is_forgotten_with_the_next_list() -> None:
    tracker = started()
    tracker.record_leaving([node(25.0)], 0.0)
    tracker.record_leaving([node()], 1.0)
    assert announced(tracker, 1000.0) == []


def test_a_container_that_is_granted_on_a_node_shows_that_its_decommission_was_taken_back() -> None:
    tracker = ContainerTracker(2, "tony")
    tracker.record_leaving([node(25.0)], 0.0)
    tracker.add_granted([granted(OURS)])
    assert announced(tracker, 1000.0) == []
    tracker.record_nodes([node(25.0)], 1000.0)
    assert [item.wait_s for item in announced(tracker, 1000.0)] == [25.0], "the change came with the grant, or later"


def test_a_decommission_that_only_a_list_shows_is_announced_at_once() -> None:
    # How much of its time has passed is not known.
    tracker = started()
    tracker.record_leaving([node(3600.0)], 0.0)
    (one,) = announced(tracker, 0.0)
    assert one.wait_s == NOTICE_S
    later = started()
    later.record_nodes([node(3600.0)], 0.0)
    later.record_leaving([node(3600.0)], 10.0)
    assert announced(later, 10.0) == [], "what a heartbeat has said is exact"


def test_a_node_that_is_removed_is_reported_by_its_host() -> None:
    tracker = started()
    tracker.record_nodes([node(is_removed=True)], 0.0)
    assert tracker.pop_events().removed_nodes == ["node1"]
