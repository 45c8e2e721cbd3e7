"""Test how a task finds the next ApplicationMaster on HDFS."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from dlapp.am.model.state import Timing
from dlapp.errors import Unreachable
from dlapp.locations import FileInfo
from dlapp.task.am_address import SELDOM_PAUSES_S, FindOnHdfs

PLACE = "hdfs://nn/user/tony/.dlapp/staging/application_1_0001/am.json"
STEP_S = 1.0


class Cluster:
    """A file with an address, a clock, and what was asked of the NameNode."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.inode = 0
        self.data = b""
        self.looks: list[float] = []
        self.reads: list[float] = []
        self.is_away = False
        self.lacks_directory: bool | None = False

    def publish(self, url: str) -> None:
        self.inode += 1
        self.data = json.dumps({"attempt": self.inode, "control_url": url}).encode()

    def look(self, location: str) -> FileInfo | None:
        assert location == PLACE
        self.looks.append(self.now_s)
        if self.is_away:
            raise Unreachable("no NameNode answers")
        return FileInfo(len(self.data), 1, "tony", 0o600, True, inode_id=self.inode) if self.data else None

    def lacks(self, location: str) -> bool | None:
        assert location == PLACE.rpartition("/")[0]
        self.looks.append(self.now_s)
        if self.is_away:
            raise Unreachable("no NameNode answers")
        return self.lacks_directory

    def read(self, location: str, *, max_bytes: int) -> bytes:
        assert location == PLACE
        self.reads.append(self.now_s)
        if self.is_away:
            raise Unreachable("no DataNode answers")
        return self.data


class Searcher:
    """A task that has lost its ApplicationMaster, and asks where it is all the time."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.find = FindOnHdfs(cluster, PLACE, lambda _: None, lambda: cluster.now_s)

    def search(self, for_s: float, until: str | None = None) -> float | None:
        """Search for so long; return when the URL was found [s]; None: it was not."""
        end_s = self.cluster.now_s + for_s
        while self.cluster.now_s < end_s:
            found = self.find.look()
            if until is not None and found == until:
                return self.cluster.now_s
            self.cluster.now_s += STEP_S
        return None


@settings(max_examples=30)
@given(back_after_s=st.floats(0, 30))
def test_an_applicationmaster_that_is_back_within_30_s_is_found_within_10(back_after_s: float) -> None:
    cluster = Cluster()
    cluster.publish("http://old:1")
    task = Searcher(cluster)
    task.search(back_after_s)
    cluster.publish("http://new:2")
    began_s = cluster.now_s
    found_s = task.search(60, until="http://new:2")
    assert found_s is not None
    assert found_s - began_s <= 10


@settings(max_examples=20)
@given(back_after_s=st.floats(31, 400))
def test_one_that_is_back_later_is_found_by_half_of_the_recoverys_deadline(back_after_s: float) -> None:
    cluster = Cluster()
    task = Searcher(cluster)
    task.search(back_after_s)
    cluster.publish("http://new:2")
    began_s = cluster.now_s
    found_s = task.search(120, until="http://new:2")
    assert found_s is not None
    assert found_s - began_s <= SELDOM_PAUSES_S[1] + STEP_S
    assert 2 * SELDOM_PAUSES_S[1] * 1000 <= Timing().recovery_ms


def test_from_the_second_minute_10000_tasks_ask_the_namenode_300_times_a_second_at_most() -> None:
    looks: list[float] = []
    sample = 200
    for _ in range(sample):
        cluster = Cluster()
        cluster.publish("http://old:1")
        Searcher(cluster).search(240)
        looks += [*cluster.looks, *(one for one in cluster.reads if one >= 60)]
    assert len(looks) > sample * 10
    for second in range(60, 240, 20):
        in_20_s = sum(second <= one < second + 20 for one in looks)
        # 300/s; the sample's chance adds a fifth at most.
        assert in_20_s / 20 * 10_000 / sample <= 300 * 1.2, second


def test_an_unchanged_file_is_read_once() -> None:
    cluster = Cluster()
    cluster.publish("http://old:1")
    Searcher(cluster).search(600)
    assert len(cluster.looks) > 10
    assert len(cluster.reads) == 1


def test_a_file_of_the_same_size_and_time_that_was_replaced_is_read() -> None:
    cluster = Cluster()
    cluster.publish("http://one:1")
    task = Searcher(cluster)
    assert task.search(60, until="http://one:1") is not None
    cluster.publish("http://two:2")
    assert task.search(70, until="http://two:2") is not None


def test_a_file_that_could_not_be_read_is_read_at_the_next_look() -> None:
    cluster = Cluster()
    cluster.publish("http://new:2")
    cluster.is_away = True
    task = Searcher(cluster)
    assert task.search(10, until="http://new:2") is None
    cluster.is_away = False
    assert task.search(10, until="http://new:2") is not None


def test_who_heard_the_applicationmaster_searches_with_short_pauses_again() -> None:
    cluster = Cluster()
    cluster.publish("http://new:2")
    task = Searcher(cluster)
    task.search(1000)
    task.find.heard()
    cluster.publish("http://third:3")
    began_s = cluster.now_s
    found_s = task.search(60, until="http://third:3")
    assert found_s is not None
    assert found_s - began_s <= 10
