"""Commits with an observer NameNode that lags, in an encryption zone with its KMS, and behind a Router whose DataNodes
are killed: `make test-federation`.

A JournalNode keeps the edits of three NameNodes. The one on standby reads them while they are written, the observer an
hour later. That many JVMs take minutes, so `make test` leaves this file out.
"""

from __future__ import annotations

import getpass
import json
import os
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from dlapp.errors import Denied, Unreachable, UsageError
from dlapp.hadoop.configuration import read_configuration
from dlapp.hadoop.hdfs.client_protocol import Call
from dlapp.hadoop.hdfs.connections import Address
from dlapp.hadoop.wire import Fields
from dlapp.locations import NATIVE, HdfsPlace
from dlapp.login import Login
from dlapp.net.http import HttpClient, HttpResponse, IncompleteResponse
from dlapp.storage import commit
from dlapp.storage.hdfs.file_system import HdfsFiles
from dlapp.storage.hdfs.native import NativeHdfs
from dlapp.storage.hdfs.staging import HdfsStagingFiles
from dlapp.storage.hdfs.webhdfs import WebHdfs
from dlapp.values.ids import ContainerId
from tests.seeds import seeds
from tests.services.hadoop import JAVA_OPTIONS, NAMESERVICE, QUICK_TO_NOTICE, Hadoop, NoHadoop, java, library
from tests.storage.commit.test_hdfs import APP, new_tree, old_target, plant, sibling_names, tree
from tests.storage.federation import (
    KILLS,
    Federation,
    foreign_of,
    overlapping,
    prepare,
    store_and_commit_while_datanodes_die,
)

pytestmark = pytest.mark.hadoop


@pytest.fixture(scope="module")
def three() -> Iterator[Hadoop]:
    parts = ("jn", "nn", "nn2", "nn3", "dn")
    try:
        with Hadoop.start(parts=parts, settings={"hdfs-site.xml": QUICK_TO_NOTICE}, wait=False) as cluster:
            cluster.make_active("nn")
            cluster.wait_until_ready(parts=("dn",))
            cluster.make_observer("nn3")
            yield cluster
    except NoHadoop as missing:
        pytest.skip(f"no Hadoop: {missing}")


def place(cluster: Hadoop, *namenodes: str) -> HdfsPlace:
    web = tuple(f"http://127.0.0.1:{cluster.ports[f'{namenode}_http']}" for namenode in namenodes)
    return HdfsPlace(f"hdfs://{NAMESERVICE}", web, Login(getpass.getuser()))


@pytest.fixture
def target(three: Hadoop) -> str:
    """A target, in a directory that the observer does not know."""
    base = f"hdfs://{NAMESERVICE}/{os.urandom(4).hex()}"
    files = HdfsFiles(place(three, "nn3", "nn2", "nn"))
    files.make_directory(base)
    assert files.exists(base)
    assert not HdfsFiles(place(three, "nn3")).exists(base)
    return f"{base}/run"


class LosesAnAnswer(HttpClient):
    """Loses the answer to the rename of the new target, and with it the NameNode that carried it out."""

    def __init__(self, cluster: Hadoop, active: str, following: str) -> None:
        super().__init__(5, 60)
        self._cluster, self._active, self._following = cluster, active, following
        self.failover: threading.Thread | None = None

    def request(self, method: str, server: str, target: str, *arguments: Any, **options: Any) -> HttpResponse:
        answer = super().request(method, server, target, *arguments, **options)
        if "op=RENAME" in target and "/run&renameoptions" in target and self.failover is None:
            self._cluster.kill_part(self._active)
            self.failover = threading.Thread(target=self._cluster.make_active, args=(self._following,))
            self.failover.start()
            raise IncompleteResponse("closed the connection", sent=True)
        return answer


def test_an_output_is_committed_while_an_observer_does_not_know_of_it(
    three: Hadoop, target: str, tmp_path: Path
) -> None:
    files = HdfsFiles(place(three, "nn3", "nn2", "nn"))
    old = old_target(files, target)
    assert tree(files, target) == old
    (tmp_path / "tree/empty").mkdir(parents=True)
    (tmp_path / "tree/model").write_text("model 0")
    part = commit.part_location(target, APP, ContainerId(APP, 1, 2))
    files.store(str(tmp_path / "tree"), part, replaces=target)
    assert commit.commit(target, APP, [("0", part)], overwrite=True, files=files) is None
    assert tree(files, target) == new_tree(["0"])
    assert sibling_names(files, target) == []
    claim = f"{target.rpartition('/')[0]}/claim"
    assert [files.create_exclusive(claim, who) for who in (b"first", b"second")] == [True, False]
    assert files.read_bytes(claim, 100) == b"first"
    assert not HdfsFiles(place(three, "nn3")).exists(target)


def test_a_rename_with_a_lost_answer_is_not_checked_at_an_observer(three: Hadoop, target: str) -> None:
    where = place(three, "nn", "nn3", "nn2")
    files = HdfsFiles(where)
    old_target(files, target)
    parts = plant(files, target, ["0", "1"])
    web = WebHdfs(where)
    web._connections = loses = LosesAnAnswer(three, "nn", "nn2")
    try:
        assert commit.commit(target, APP, parts, overwrite=True, files=HdfsFiles(where, web)) is None
        assert loses.failover is not None
        assert tree(files, target) == new_tree(["0", "1"])
        assert sibling_names(files, target) == []
        assert not HdfsFiles(place(three, "nn3")).exists(target)
    finally:
        if loses.failover is not None:
            loses.failover.join()
        three.start_part("nn")


def test_a_former_active_namenode_that_became_an_observer_is_not_read(three: Hadoop, target: str) -> None:
    where = place(three, "nn2", "nn", "nn3")
    files = HdfsFiles(where)
    files.write_atomic(f"{target}/attempt", b"1")  # by the one that is active since the test before
    assert files.read_bytes(f"{target}/attempt", 10) == b"1"
    three.make_standby("nn2")
    three.make_observer("nn2")
    three.make_active("nn")
    HdfsFiles(place(three, "nn")).write_atomic(f"{target}/attempt", b"2")
    files.web._clock = lambda: time.monotonic() + 6  # its word is old; no call has failed
    assert files.read_bytes(f"{target}/attempt", 10) == b"2"
    assert where.web[files.web._first] == place(three, "nn").web[0]


@pytest.fixture(scope="module")
def aligned() -> Iterator[Hadoop]:
    """NameNodes that say their last transaction; one observer keeps up, and one lags."""
    settings = {"hdfs-site.xml": {**QUICK_TO_NOTICE, "dfs.namenode.state.context.enabled": "true"}}
    try:
        with Hadoop.start(parts=("jn", "nn", "nn2", "nn3", "dn"), settings=settings, wait=False) as cluster:
            cluster.make_active("nn")
            cluster.wait_until_ready(parts=("dn",))
            cluster.make_observer("nn2")
            cluster.make_observer("nn3")
            yield cluster
    except NoHadoop as missing:
        pytest.skip(f"no Hadoop: {missing}")


@pytest.mark.parametrize("observer", ["nn2", "nn3"])
def test_natively_an_observer_is_read_that_has_all_that_the_active_namenode_had(
    aligned: Hadoop, observer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered: list[tuple[int, str]] = []
    real = NativeHdfs._call_at

    def noted(web: NativeHdfs, address: Address, call: Call, *arguments: Any, **options: Any) -> Fields:
        answer = real(web, address, call, *arguments, **options)
        answered.append((address[1], call.method))
        return answer

    monkeypatch.setattr(NativeHdfs, "_call_at", noted)
    names = tuple(f"127.0.0.1:{aligned.ports[item]}" for item in (observer, "nn"))
    where = place(aligned, observer, "nn")._replace(names=names, protocol=NATIVE)
    base = f"hdfs://{NAMESERVICE}/{os.urandom(4).hex()}"
    written: list[str] = []
    for number in range(30):
        HdfsFiles(where).write_atomic(f"{base}/{number}", b"content")  # another client
        written.append(str(number))
        files = HdfsFiles(where)
        assert files.names(base) == sorted(written)
        assert files.read_bytes(f"{base}/{number}", 100) == b"content"
        if observer == "nn3" and number > 1:
            break
    by_observer = {method for port, method in answered if port == aligned.ports[observer]} - {"getHAServiceState"}
    assert by_observer == ({"getListing", "getBlockLocations"} if observer == "nn2" else set())


@pytest.fixture(scope="module")
def federation() -> Iterator[Federation]:
    try:
        with ExitStack() as stack:
            yield Federation(stack, ("dn", "dn2"))
    except NoHadoop as missing:
        pytest.skip(f"no Hadoop: {missing}")


@pytest.fixture(scope="module")
def own(federation: Federation) -> str:
    return prepare(federation, 500)


@pytest.mark.parametrize(("number", "seed"), enumerate(seeds("federation", 8)), ids=range(8))
def test_stores_behind_a_router_with_killed_datanodes_change_no_other_file(
    federation: Federation, own: str, tmp_path: Path, number: int, seed: int
) -> None:
    """Store with eight seeds, of which five replace an old target."""
    before = foreign_of(federation, own)
    assert store_and_commit_while_datanodes_die(federation, own, tmp_path, seed, overwrite=number % 3 > 0) == KILLS
    assert foreign_of(federation, own) == before


def test_inode_numbers_of_stored_files_exist_in_the_other_nameservice(federation: Federation, own: str) -> None:
    above = f"hdfs://dlapp/other/{own}"
    seeds = federation.through().names(above)
    assert sum(len(overlapping(federation, f"{above}/{seed}/run")) for seed in seeds) == 3 * len(seeds) > 0


class Zone:
    """A file system with an encryption zone, and the server of its key."""

    def __init__(self, cluster: Hadoop) -> None:
        self.cluster, self.location = cluster, f"{place(cluster, 'nn').location}/zone"
        self.files = HdfsFiles(place(cluster, "nn"))
        cluster._until("the key", self._has_key, 60)
        self.files.make_directory(self.location)
        command = [java(), *JAVA_OPTIONS, "-cp", f"{cluster.configuration}:{library()}/*"]
        tool = ["org.apache.hadoop.hdfs.tools.CryptoAdmin", "-createZone", "-keyName", "of-zone", "-path", "/zone"]
        done = subprocess.run([*command, *tool], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr

    def _has_key(self) -> bool:
        url = f"http://127.0.0.1:{self.cluster.ports['kms']}/kms/v1/keys?user.name={getpass.getuser()}"
        key = {"name": "of-zone", "cipher": "AES/CTR/NoPadding", "length": 128}
        request = urllib.request.Request(url, json.dumps(key).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as answer:
            return bool(answer.status == 201)


@pytest.fixture(scope="module")
def zone() -> Iterator[Zone]:
    try:
        limits = {"fs.permissions.umask-mode": "u=rwx,g=rx,o=", "fs.protected.directories": "/kept, /above/kept"}
        settings = {
            "hdfs-site.xml": QUICK_TO_NOTICE | {"dfs.protected.subdirectories.enable": "true"},
            "core-site.xml": limits,
        }
        with Hadoop.start(parts=("kms", "nn", "dn"), settings=settings) as cluster:
            yield Zone(cluster)
    except NoHadoop as missing:
        pytest.skip(f"no Hadoop: {missing}")


def test_an_output_in_an_encryption_zone_is_encrypted_from_its_parts_on(zone: Zone, tmp_path: Path) -> None:
    files, target = zone.files, f"{zone.location}/run"
    assert files.check_writable(target) == []
    with pytest.raises(UsageError, match="is the root of an encryption zone, so it cannot be replaced"):
        files.check_writable(zone.location)
    (tmp_path / "tree/empty").mkdir(parents=True)
    (tmp_path / "tree/model").write_text("model 0")
    for _ in range(2):
        part = commit.part_location(target, APP, ContainerId(APP, 1, 2))
        files.store(str(tmp_path / "tree"), part, replaces=target)
        status = files.web.status(files.place.path(f"{part}/model"))
        assert status is not None
        assert status.encrypted
        assert commit.commit(target, APP, [("0", part)], overwrite=True, files=files) is None
        assert tree(files, target) == new_tree(["0"])
        assert sibling_names(files, target) == [".Trash"]  # of the zone, made with it
    model = files.place.path(f"{target}/0/model")
    assert files.web.read_part(f"/.reserved/raw{model}", 0, 7) != b"model 0"
    # YARN's own user has no key, so it cannot bring such a file for everybody.
    found = HdfsStagingFiles(files.place).status(f"{target}/0/model")
    assert found is not None
    assert found.encrypted


def test_protected_directories_are_refused_and_new_output_has_configured_permissions(
    zone: Zone,
) -> None:
    where = read_configuration(str(zone.cluster.configuration)).hdfs(Login(getpass.getuser()))
    files = HdfsFiles(where)
    for path in ("/kept/in/it", "/above/kept/it"):
        files.make_directory(where.location + path)
    for path, problem in (
        ("/kept", "is one of fs.protected.directories"),
        ("/kept/in", "is below /kept, one of fs.protected.directories"),
        ("/above", "holds /above/kept, one of fs.protected.directories"),
    ):
        with pytest.raises(Denied, match="Cannot delete/rename"):
            files.web.rename(path, f"{path} aside")
        with pytest.raises(UsageError, match=f"{path} {problem}, so it cannot be replaced"):
            files.check_writable(where.location + path)
    for names in ([""], ["0", "1"]):
        target = f"{where.location}/new{len(names)}/run"
        commit.commit(target, APP, plant(files, target, names), overwrite=True, files=files)
        status = files.web.status(where.path(target))
        assert status is not None
        assert status.mode == 0o750


def test_an_unreachable_key_server_is_waited_for_like_a_namenode(zone: Zone, tmp_path: Path) -> None:
    (tmp_path / "model").write_text("model 0")
    files = HdfsFiles(zone.files.place, WebHdfs(zone.files.place, patience_s=5))
    zone.cluster.kill_part("kms")
    try:
        with pytest.raises(Unreachable, match=r"cannot reach a server that it needs .*Connection refused"):
            files.store(str(tmp_path / "model"), f"{zone.location}/later.tmp/part")
    finally:
        zone.cluster.start_part("kms")
    patient = HdfsFiles(zone.files.place)
    assert patient.store(str(tmp_path / "model"), f"{zone.location}/later.tmp/part").files == 1
    assert patient.read_bytes(f"{zone.location}/later.tmp/part", 100) == b"model 0"
