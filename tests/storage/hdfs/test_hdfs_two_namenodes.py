"""Two NameNodes that share their edits, and the active one killed under way: whoever waits goes on with the other."""

from __future__ import annotations

import getpass
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlapp.locations import NATIVE, HdfsPlace
from dlapp.login import Login
from dlapp.storage.hdfs.file_system import HdfsFiles
from dlapp.storage.hdfs.native import NativeHdfs
from dlapp.storage.hdfs.webhdfs import WebHdfs
from tests.services.hadoop import NAMESERVICE, QUICK_TO_NOTICE, Hadoop, NoHadoop
from tests.services.polling import PATIENCE_S, wait_until
from tests.storage.fetching import fetch_entries

# Read at import: no test sees the caller's DLAPP_*.
WAY = os.environ.get("DLAPP_TEST_HDFS", NATIVE)


@pytest.fixture(scope="module")
def two() -> Iterator[Hadoop]:
    try:
        with Hadoop.start(
            parts=("nn", "nn2", "dn", "dn2"), settings={"hdfs-site.xml": QUICK_TO_NOTICE}, wait=False
        ) as cluster:
            cluster.make_active("nn")
            cluster.wait_until_ready(parts=("dn",))
            yield cluster
    except NoHadoop as missing:
        pytest.skip(f"no Hadoop: {missing}")


@pytest.fixture
def nameservice(two: Hadoop) -> HdfsPlace:
    web = tuple(f"http://127.0.0.1:{two.ports[port]}" for port in ("nn2_http", "nn_http"))
    names = tuple(f"127.0.0.1:{two.ports[port]}" for port in ("nn2", "nn"))
    return HdfsPlace(f"hdfs://{NAMESERVICE}", web, Login(getpass.getuser()), names=names, protocol=WAY)


def patient(place: HdfsPlace) -> HdfsFiles:
    """The files of who waits for as long as servers may take to start on a busy machine."""
    kind = NativeHdfs if place.protocol == NATIVE else WebHdfs
    return HdfsFiles(place, kind(place, patience_s=PATIENCE_S))


def contents(top: Path) -> dict[str, bytes]:
    return {str(one.relative_to(top)): one.read_bytes() for one in top.rglob("*") if one.is_file()}


def test_trees_and_claims_survive_the_death_of_the_active_namenode(
    two: Hadoop, nameservice: HdfsPlace, tmp_path: Path
) -> None:
    base = f"{nameservice.location}/tests/{os.urandom(6).hex()}"
    first = patient(nameservice)
    first.make_directory(base)
    top = tmp_path / "tree"
    for number in range(30):
        (top / str(number % 3)).mkdir(parents=True, exist_ok=True)
        (top / str(number % 3) / str(number)).write_bytes(os.urandom(30_000))
    before, rounds, claims = contents(top), [0], list[str]()
    failures: list[BaseException] = []
    going = True

    def travel() -> None:
        files, number = patient(nameservice), 0
        try:
            while going:
                files.store(str(top), f"{base}/{number}/tree")
                fetch_entries(files, files.matches(f"{base}/{number}/tree"), str(tmp_path / f"in{number}"))
                assert contents(tmp_path / f"in{number}/tree") == before
                number += 1
                rounds[0] = number
        except BaseException as error:
            failures.append(error)

    def claim(who: str) -> None:
        files, number = patient(nameservice), 0
        try:
            while going:
                if files.create_exclusive(f"{base}/claim{number}", who.encode()):
                    claims.append(f"{number} {who}")
                number += 1
        except BaseException as error:
            failures.append(error)

    def wait_for_rounds(count: int) -> None:
        wait_until(lambda: rounds[0] >= count or failures)

    threads = [threading.Thread(target=travel), *(threading.Thread(target=claim, args=(who,)) for who in "abc")]
    for thread in threads:
        thread.start()
    active, other = "nn", "nn2"
    try:
        for _ in range(2):
            done = rounds[0]
            wait_for_rounds(done + 1)
            two.kill_part(active)
            two.make_active(other)
            two.start_part(active)  # it comes back as the one on standby
            active, other = other, active
        done = rounds[0]
        wait_for_rounds(done + 2)
    finally:
        going = False
        for thread in threads:
            thread.join()
    assert failures == []
    winners: dict[str, list[str]] = {}
    for line in claims:
        claimed, who = line.split()
        winners.setdefault(claimed, []).append(who)
    last = max(map(int, winners))
    assert all(len(winners.get(str(number), [])) == 1 for number in range(last + 1))
    for number in range(last + 1):
        assert first.read_bytes(f"{base}/claim{number}", 1 << 28).decode() == winners[str(number)][0]


def test_natively_the_active_one_of_two_namenodes_is_called(nameservice: HdfsPlace) -> None:
    files = HdfsFiles(nameservice._replace(protocol=NATIVE))
    location = f"{nameservice.location}/tests/{os.urandom(6).hex()}"
    files.write_atomic(location, b"content")
    # The active one alone, and not the one on standby, proves that something is gone, also without web ports.
    closed = NativeHdfs(nameservice._replace(protocol=NATIVE, web=("http://127.0.0.1:1",)))
    path = nameservice.path(location)
    assert (closed.lacks(path), closed.lacks(f"{path}-none")) == (False, True)
    alone = [NativeHdfs(closed.place._replace(names=(name,))) for name in nameservice.names if ":" in name]
    for one in alone:
        one._protocol.webhdfs_reason = ""  # one on standby would be waited for
    assert [one.lacks(path) for one in alone] in ([False, None], [None, False])
    assert [one.lacks(f"{path}-none") for one in alone] in ([True, None], [None, True])
    assert files.read_bytes(location, 100) == b"content"
    assert isinstance(files.web, NativeHdfs)
    assert files.web.webhdfs_reason() == ""
