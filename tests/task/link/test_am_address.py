"""Test how a task finds the next ApplicationMaster on HDFS."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from dlapp.am.model.state import Timing
from dlapp.errors import Unreachable
from dlapp.task.link.am_address import SELDOM_PAUSES_S, HdfsAmFinder, longest_pause_s
from dlapp.values.messages import address_name, latest_address

PLACE = "hdfs://nn/user/tony/.dlapp/staging/application_1_0001/addresses"
STEP_S = 1.0


class Cluster:
    """A directory with addresses, a clock, and what was asked of the NameNode."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.addresses: list[str] = []
        self.looks: list[float] = []
        self.is_away = False
        self.is_directory_missing: bool | None = False

    def publish(self, url: str) -> None:
        self.addresses.append(address_name(len(self.addresses) + 1, url))

    def names(self, location: str) -> list[str]:
        assert location == PLACE
        self.looks.append(self.now_s)
        if self.is_away:
            raise Unreachable("no NameNode answers")
        return sorted(self.addresses)

    def lacks(self, location: str) -> bool | None:
        assert location == PLACE.rpartition("/")[0]
        self.looks.append(self.now_s)
        if self.is_away:
            raise Unreachable("no NameNode answers")
        return self.is_directory_missing


class Searcher:
    """A task that has lost its ApplicationMaster, and asks where it is all the time."""

    def __init__(self, cluster: Cluster, containers: int = 1) -> None:
        self.cluster = cluster
        self.find = HdfsAmFinder(cluster, PLACE, lambda _: None, lambda: cluster.now_s, containers=containers)

    def search(self, for_s: float, until: str | None = None) -> float | None:
        """Search for so long; return when the URL was found [s]; None: it was not."""
        end_s = self.cluster.now_s + for_s
        while self.cluster.now_s < end_s:
            found = self.find.find_url()
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


@settings(max_examples=30)
@given(back_after_s=st.floats(0, 30), containers=st.sampled_from([3000, 10_000, 17_000]))
def test_an_applicationmaster_sought_by_many_tasks_is_found_at_their_next_poll(
    back_after_s: float, containers: int
) -> None:
    cluster = Cluster()
    cluster.publish("http://old:1")
    task = Searcher(cluster, containers)
    task.search(back_after_s)
    cluster.publish("http://new:2")
    began_s = cluster.now_s
    found_s = task.search(60, until="http://new:2")
    assert found_s is not None
    assert found_s - began_s <= longest_pause_s(containers) + STEP_S


def test_10000_tasks_ask_the_namenode_900_times_a_second_at_most_and_each_of_them_within_17_s() -> None:
    assert longest_pause_s(10_000) < 17
    looks: list[float] = []
    sample = 300
    for _ in range(sample):
        cluster = Cluster()
        Searcher(cluster, 10_000).search(60)
        looks += cluster.looks
    for second in range(0, 60, 10):
        in_10_s = sum(second <= poll < second + 10 for poll in looks)
        # The sample's chance adds a tenth.
        assert in_10_s / 10 * 10_000 / sample <= 900 * 1.1, second


@settings(max_examples=20)
@given(back_after_s=st.floats(31, 400))
def test_an_applicationmaster_that_returns_later_is_found_by_half_the_deadline(back_after_s: float) -> None:
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
        Searcher(cluster, 10_000).search(240)
        looks += cluster.looks
    assert len(looks) > sample * 5
    for second in range(60, 240, 20):
        in_20_s = sum(second <= poll < second + 20 for poll in looks)
        # 300/s; the sample's chance adds a fifth at most.
        assert in_20_s / 20 * 10_000 / sample <= 300 * 1.2, second


def test_the_address_of_the_latest_attempt_counts_and_other_names_do_not() -> None:
    urls = {1: "http://node7:1", 2: "http://[::1]:40123", 10: "http://node7.example:2"}
    names = sorted(address_name(number, url) for number, url in urls.items())
    assert latest_address([*names, "11-zz", "12", "x-6874", "_tmp", "13-ff"]) == urls[10]
    assert latest_address(["-1-6874", "x", ""]) is None
    assert not set("".join(names)) - set("0123456789abcdef-")  # HDFS takes no colon in a name


def test_unlisted_addresses_are_listed_at_the_next_poll() -> None:
    cluster = Cluster()
    cluster.publish("http://new:2")
    cluster.is_away = True
    task = Searcher(cluster)
    assert task.search(10, until="http://new:2") is None
    cluster.is_away = False
    assert task.search(10, until="http://new:2") is not None


def test_a_task_that_heard_the_applicationmaster_polls_with_short_pauses_again() -> None:
    cluster = Cluster()
    cluster.publish("http://new:2")
    task = Searcher(cluster)
    task.search(1000)
    task.find.reset()
    cluster.publish("http://third:3")
    began_s = cluster.now_s
    found_s = task.search(60, until="http://third:3")
    assert found_s is not None
    assert found_s - began_s <= 10
