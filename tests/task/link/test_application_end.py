"""Test what proves to a task without an ApplicationMaster that its application is over, and how often it asks."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlapp.errors import Denied, DlappError, Unreachable
from dlapp.hadoop.application_state import FINAL, NOT_KNOWN
from dlapp.task.link.am_address import HdfsAmFinder
from dlapp.task.link.application_end import APART_S, ApplicationEndWatch, EndEvidence
from tests.task.link.test_am_address import PLACE, Cluster

LIVE = ("NEW", "SUBMITTED", "ACCEPTED", "RUNNING")
Look = tuple[float, bool | None]


def staging(*looks: Look) -> EndEvidence:
    found = EndEvidence()
    for at_s, is_absent in looks:
        found = found.with_staging(is_absent, at_s)
    return found


@pytest.mark.parametrize(
    ("looks", "is_over"),
    [
        ([], False),
        ([(0.0, True)], False),
        ([(0.0, True), (29.9, True)], False),
        ([(0.0, True), (30.0, True)], True),
        ([(0.0, True), (15.0, True), (30.0, True)], True),
        ([(0.0, True), (15.0, None), (30.0, True)], True),
        ([(0.0, True), (15.0, False), (30.0, True)], False),
        ([(0.0, True), (15.0, False), (30.0, True), (60.0, True)], True),
        ([(0.0, None), (100.0, None)], False),
        ([(0.0, False), (100.0, True)], False),
    ],
)
def test_a_staging_directory_missing_twice_30_s_apart_proves_the_end(looks: list[Look], is_over: bool) -> None:
    assert bool(staging(*looks).end_reason) is is_over


@pytest.mark.parametrize("state", sorted(FINAL))
def test_a_final_state_at_an_active_resourcemanager_proves_the_end(state: str) -> None:
    assert EndEvidence().with_state(state, 0.0).end_reason.endswith(f"the ResourceManager has it as {state}")


@pytest.mark.parametrize("state", ["", NOT_KNOWN, *LIVE])
def test_no_other_answer_of_a_resourcemanager_proves_the_end(state: str) -> None:
    assert EndEvidence().with_state(state, 0.0).end_reason == ""


@pytest.mark.parametrize("state", LIVE)
def test_a_staging_directory_never_created_is_no_end_of_a_known_application(
    state: str,
) -> None:
    gone = staging((0.0, True), (40.0, True))
    assert gone.with_state(state, 20.0).end_reason == ""
    assert gone.with_state(state, 20.0).with_state(NOT_KNOWN, 30.0).end_reason
    # One that has not said anything since says nothing of now.
    assert gone.with_state(state, 20.0).with_state("", 200.0).with_staging(is_absent=True, now_s=300.0).end_reason


class Orphan:
    """A task whose ApplicationMaster is dead, and which looks for the end of its application each second."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.state, self.asked_at = cluster, "RUNNING", list[float]()
        find = HdfsAmFinder(cluster, PLACE, lambda _: None, lambda: cluster.now_s)
        self.watch = ApplicationEndWatch(find, self._read_state, lambda: cluster.now_s)

    def _read_state(self) -> str:
        self.asked_at.append(self.cluster.now_s)
        return self.state

    def proven_end_s(self, for_s: float) -> float | None:
        """Return when the end was proven [s]; None: not in this time."""
        end_s = self.cluster.now_s + for_s
        while self.cluster.now_s < end_s:
            if self.watch.check():
                return self.cluster.now_s
            self.cluster.now_s += 1.0
        return None


def running() -> Cluster:
    cluster = Cluster()
    cluster.publish("http://old:1")
    return cluster


@settings(max_examples=40)
@given(st.floats(0, 400), st.sampled_from(["", NOT_KNOWN, "FINISHED"]))
def test_the_end_is_known_two_minutes_after_the_staging_directory_vanished(after_s: float, state: str) -> None:
    orphan = Orphan(cluster := running())
    assert orphan.proven_end_s(after_s) is None
    began_s, cluster.addresses, cluster.is_directory_missing, orphan.state = cluster.now_s, [], True, state
    over_s = orphan.proven_end_s(120)
    assert over_s is not None
    assert over_s - began_s <= 100
    assert state == "FINISHED" or over_s - began_s >= APART_S


@settings(max_examples=40)
@given(st.floats(0, 400), st.sampled_from(sorted(FINAL)))
def test_the_end_is_known_two_minutes_after_the_resourcemanager_has_it(after_s: float, state: str) -> None:
    orphan = Orphan(cluster := running())
    assert orphan.proven_end_s(after_s) is None
    began_s, orphan.state = cluster.now_s, state
    over_s = orphan.proven_end_s(120)
    assert over_s is not None
    assert over_s - began_s <= 65


def lacking(cluster: Cluster, found: bool | DlappError | None) -> None:
    """Remove the address, and let the NameNode say this of the directory."""
    cluster.addresses = []
    if isinstance(found, DlappError):
        error = found

        def refuse(location: str) -> bool | None:
            raise error

        cluster.lacks = refuse  # type: ignore[method-assign]
    else:
        cluster.is_directory_missing = found


@pytest.mark.parametrize("found", [False, None, Denied("no"), Unreachable("no answer in 60 s")], ids=str)
@pytest.mark.parametrize("state", ["", NOT_KNOWN, "RUNNING"])
def test_a_missing_address_is_no_end_for_a_week(found: bool | DlappError | None, state: str) -> None:
    orphan = Orphan(cluster := running())
    orphan.state = state
    lacking(cluster, found)
    assert orphan.proven_end_s(7 * 86_400 / 100) is None


def test_an_unreachable_namenode_is_no_end_and_keeps_earlier_evidence() -> None:
    orphan = Orphan(cluster := running())
    cluster.is_away, orphan.state = True, ""
    assert orphan.proven_end_s(1000) is None
    cluster.is_away, cluster.addresses, cluster.is_directory_missing = False, [], True
    began_s = cluster.now_s
    over_s = orphan.proven_end_s(120)
    assert over_s is not None
    assert over_s - began_s >= APART_S


def test_an_answer_of_the_applicationmaster_clears_all_evidence() -> None:
    orphan = Orphan(cluster := running())
    orphan.state = ""
    lacking(cluster, True)
    assert orphan.proven_end_s(25) is None
    cluster.now_s += 30
    orphan.watch.begin()
    assert orphan.proven_end_s(APART_S - 1) is None


@pytest.mark.parametrize("has_address", [True, False])
def test_10000_tasks_without_an_applicationmaster_ask_the_servers_within_bounds(has_address: bool) -> None:
    looks, questions, sample = list[float](), list[float](), 200
    for _ in range(sample):
        orphan = Orphan(cluster := running())
        if not has_address:
            lacking(cluster, False)
        orphan.proven_end_s(360)
        looks += cluster.looks
        questions += orphan.asked_at
    for second in range(60, 360, 60):
        for asked, limit in ((looks, 300), (questions, 220)):
            in_60_s = sum(second <= item < second + 60 for item in asked)
            # Per second; the sample's chance adds a tenth at most.
            assert in_60_s / 60 * 10_000 / sample <= limit * 1.1, second
