"""Two NameNodes that share their edits, and the active one killed under way: whoever waits goes on with the other."""

from __future__ import annotations

import contextlib
import getpass
import os
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dlapp.hadoop.errors import ConnectionLost
from dlapp.hadoop.hdfs import client_protocol
from dlapp.hadoop.hdfs.client_protocol import Call, LocatedBlock
from dlapp.hadoop.hdfs.connections import Address
from dlapp.hadoop.wire import Fields
from dlapp.locations import NATIVE, HdfsPlace
from dlapp.login import Login
from dlapp.storage.hdfs.file_system import HdfsFiles
from dlapp.storage.hdfs.native import NativeHdfs
from dlapp.storage.hdfs.webhdfs import WebHdfs
from tests.seeds import each_seed
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
    return {str(path.relative_to(top)): path.read_bytes() for path in top.rglob("*") if path.is_file()}


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
    for item in alone:
        item._protocol.webhdfs_reason = ""  # one on standby would be waited for
    assert [item.lacks(path) for item in alone] in ([False, None], [None, False])
    assert [item.lacks(f"{path}-none") for item in alone] in ([True, None], [None, True])
    assert files.read_bytes(location, 100) == b"content"
    assert isinstance(files.web, NativeHdfs)
    assert files.web.webhdfs_reason() == ""


BLOCK_BYTES = 1 << 20
CALLS = {"create": 3, "addBlock": 5, "complete": 3}
"""Of a file of three blocks, a claim, and a file of one block."""


class FailsOver(NativeHdfs):
    """Loses the answer to a call, after which another NameNode is active.

    Args:
        method, nth: the call, counted from 1; tries of one call are one.
        active: where the active NameNode answers.
        fail_over: makes the other one active.
        arrives: the active one gets the call before.
    """

    def __init__(
        self,
        place: HdfsPlace,
        *,
        method: str,
        nth: int,
        active: Address,
        fail_over: Callable[[], None],
        arrives: bool,
    ) -> None:
        super().__init__(place, patience_s=PATIENCE_S)
        self._method, self._nth, self._active = method, nth, active
        self._fail_over, self._arrives = fail_over, arrives
        self.ids: dict[str, list[int]] = {}
        self.added: list[int] = []
        self.has_failed = False

    def _add_block(self, *arguments: Any) -> LocatedBlock:
        located = super()._add_block(*arguments)
        self.added.append(located.block.block_id)
        return located

    def _call_at(
        self, address: Address, call: Call, call_id: int, deadline: float, *, state_id: int | None = None
    ) -> Fields:
        ids = self.ids.setdefault(call.method, [])
        if call_id not in ids:
            ids.append(call_id)
        is_it = call.method == self._method and len(ids) == self._nth and address == self._active
        if self.has_failed or not is_it:
            return super()._call_at(address, call, call_id, deadline, state_id=state_id)
        self.has_failed = True
        if self._arrives:
            super()._call_at(address, call, call_id, deadline, state_id=state_id)
        self._fail_over()
        raise ConnectionLost("the answer is lost", sent=True)


def active_of(two: Hadoop) -> str:
    """Return the active NameNode."""

    def active_part() -> str | None:
        for part in ("nn", "nn2"):
            url = f"http://127.0.0.1:{two.ports[f'{part}_http']}/jmx?qry=Hadoop:service=NameNode,name=NameNodeStatus"
            with contextlib.suppress(OSError):
                beans = two.get(url)["beans"]
                if beans and beans[0]["State"] == "active":
                    return part
        return None

    return wait_until(active_part)


@each_seed("calls at a failover", 1)
@pytest.mark.parametrize("kind", ["killed", "killed before it has the call", "handed over"])
@pytest.mark.parametrize("method", list(CALLS))
def test_a_call_at_which_the_namenode_fails_over_is_made_once(
    two: Hadoop, nameservice: HdfsPlace, tmp_path: Path, method: str, kind: str, seed: int
) -> None:
    """Lose the answer to one create, addBlock or complete of three files, which the seed chooses.

    The NameNode that had the call is killed, or made the one on standby, before the call is repeated. See that no file
    was started again, that each has its blocks and no other, and that the claim was won.
    """
    nth = random.Random(seed).randint(1, CALLS[method])
    active = active_of(two)
    (other,) = {"nn", "nn2"} - {active}
    print(f"{method} {nth}, {kind}, {active}")

    def fail_over() -> None:
        if kind == "handed over":
            two.make_standby(active)
        else:
            two.kill_part(active)
        two.make_active(other)
        if kind != "handed over":
            two.start_part(active)

    place = nameservice._replace(protocol=NATIVE)
    web = FailsOver(
        place,
        method=method,
        nth=nth,
        active=("127.0.0.1", two.ports[active]),
        fail_over=fail_over,
        arrives=kind != "killed before it has the call",
    )
    web._defaults = web._server_defaults()._replace(block_bytes=BLOCK_BYTES)
    files, base = HdfsFiles(place, web), f"{place.location}/tests/{os.urandom(6).hex()}"
    content = os.urandom(3 * BLOCK_BYTES)
    (tmp_path / "file").write_bytes(content)
    files.make_directory(base)
    files.store(str(tmp_path / "file"), f"{base}/file")
    assert files.create_exclusive(f"{base}/claim", b"mine")
    files.write_atomic(f"{base}/small", b"content")
    assert web.has_failed
    assert not files.create_exclusive(f"{base}/claim", b"another")
    assert len(web.ids["create"]) == 4  # with that of the second claim, which is refused
    assert len(web.added) == len(set(web.added)) == 6
    assert files.names(base) == ["claim", "file", "small"]
    assert files.read_bytes(f"{base}/claim", 100) == b"mine"
    assert files.read_bytes(f"{base}/small", 100) == b"content"
    assert files.read_bytes(f"{base}/file", 1 << 28) == content
    call = client_protocol.get_block_locations(place.path(f"{base}/file"), 0, len(content))
    found = web._rpc("/", call, client_protocol.parse_block_locations)
    assert found is not None
    assert [block.block.size_bytes for block in found.blocks] == [BLOCK_BYTES] * 3
