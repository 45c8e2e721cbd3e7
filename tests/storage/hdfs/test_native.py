"""HDFS by its own protocols: what only that way has. The others here go the way of DLAPP_TEST_HDFS."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pytest

from dlapp.cluster.yarn import bundle
from dlapp.doctor.findings import WARN
from dlapp.doctor.hdfs import _protocol
from dlapp.errors import DlappError
from dlapp.hadoop.connection import CallIds, Connection
from dlapp.hadoop.errors import ConnectionLost
from dlapp.hadoop.hdfs import checksums, client_protocol, packets
from dlapp.hadoop.hdfs.checksums import CRC32, CRC32C, has_crc32c, installed_library
from dlapp.hadoop.hdfs.client_protocol import Call, DataNode, LocatedBlock
from dlapp.hadoop.hdfs.connections import Address
from dlapp.hadoop.hdfs.datanode import BlockRefused, DataNodeConnection
from dlapp.hadoop.hdfs.packets import BlockRefusal
from dlapp.hadoop.wire import Fields
from dlapp.locations import AUTO, NATIVE, WEBHDFS, HdfsPlace
from dlapp.login import Login
from dlapp.storage.fetch_plan import T, plan_entries
from dlapp.storage.hdfs import native
from dlapp.storage.hdfs.file_system import HdfsFiles
from dlapp.storage.hdfs.native import NativeHdfs, rpc_addresses
from dlapp.storage.hdfs.webhdfs import INODES, WebHdfs
from dlapp.system import waits
from dlapp.system.logs.log import message_of
from dlapp.values.serialization import to_json
from tests.seeds import COUNT, each_seed
from tests.services.hadoop import DATANODES, IS_HADOOP_2, JAVA_OPTIONS, Hadoop, java, library
from tests.services.http.proxy import Plan, Proxy
from tests.services.polling import wait_until
from tests.storage.fetching import fetch_entries
from tests.storage.hdfs.test_hdfs_faults import (
    SEED,
    described,
    fetch_again,
    fsck,
    grown,
    holders,
    replicas,
    replicate,
    restored_datanodes,
    spoil,
    with_content,
)

__all__ = ["restored_datanodes"]


@pytest.fixture
def place(place: HdfsPlace) -> HdfsPlace:
    return place._replace(protocol=NATIVE)


def web_of(files: HdfsFiles) -> NativeHdfs:
    assert isinstance(files.web, NativeHdfs)
    return files.web


@pytest.fixture
def by_webhdfs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths whose content goes by WebHDFS."""
    paths: list[str] = []
    for name in ("fetch", "write"):
        real: Callable[..., None] = getattr(WebHdfs, name)

        def noted(web: WebHdfs, path: str, *arguments: Any, real: Callable[..., None] = real, **options: Any) -> None:
            paths.append(path)
            real(web, path, *arguments, **options)

        monkeypatch.setattr(WebHdfs, name, noted)
    return paths


def fs_shell(hadoop: Hadoop, *words: str) -> str:
    """Run Hadoop's own ``hdfs dfs``; what it says."""
    command = [java(), *JAVA_OPTIONS, "-cp", f"{hadoop.configuration}:{library()}/*", "org.apache.hadoop.fs.FsShell"]
    done = subprocess.run([*command, *words], check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return done.stdout


def in_three_replicas(files: HdfsFiles, block_bytes: int = 1 << 20) -> HdfsFiles:
    """Let what is written have three replicas and small blocks."""
    web = web_of(files)
    web._defaults = web._server_defaults()._replace(replication=3, block_bytes=block_bytes)
    return files


def test_content_is_read_and_written_natively(
    files: HdfsFiles, base: str, tmp_path: Path, by_webhdfs: list[str]
) -> None:
    if not has_crc32c():
        pytest.skip("neither google-crc32c nor crc32c is installed")
    top = grown(tmp_path / "tree", "native", 20)
    files.store(str(top), f"{base}/tree")
    assert described(fetch_again(files, f"{base}/tree", tmp_path / "in")) == described(top)
    assert web_of(files).webhdfs_reason() == ""
    assert by_webhdfs == []


def test_native_answers_equal_those_of_webhdfs(files: HdfsFiles, base: str, tmp_path: Path) -> None:
    files.store(str(grown(tmp_path / "tree", "status", 20)), f"{base}/tree")
    web, path = WebHdfs(files.place), files.place.path(f"{base}/tree")
    assert files.web.children(path) == web.children(path)
    for item in [path, *(f"{path}/{child.name}" for child in web.children(path)), f"{path}/nothing"]:
        assert files.web.status(item) == web.status(item)


def test_a_removed_inode_has_no_status(files: HdfsFiles, base: str) -> None:
    files.write_atomic(f"{base}/file", b"content")
    found = files.web.status(files.place.path(f"{base}/file"))
    assert found is not None
    assert files.web.status(f"{INODES}/{found.inode_id}") == found
    files.remove(f"{base}/file")
    assert files.web.status(f"{INODES}/{found.inode_id}") is None


def test_a_directory_is_listed_in_parts(files: HdfsFiles, base: str) -> None:
    # The NameNode sends 1000 entries at a time; with blocks so many blocks.
    path = files.place.path(base)
    for number in range(1001):
        files.web.make_directory(f"{path}/{number:04d}")
    assert [child.name for child in files.web.children(path)] == [f"{number:04d}" for number in range(1001)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [CRC32, CRC32C])
def test_the_checksum_of_a_file_is_that_of_hadoops_own_client(
    hadoop: Hadoop, files: HdfsFiles, base: str, tmp_path: Path, kind: int, by_webhdfs: list[str]
) -> None:
    if kind == CRC32C and not has_crc32c():
        pytest.skip("neither google-crc32c nor crc32c is installed")
    web = web_of(files)
    web._defaults = web._server_defaults()._replace(checksum_kind=kind, block_bytes=1 << 20)
    source = tmp_path / "file"
    source.write_bytes(os.urandom(2_500_001))
    files.store(str(source), f"{base}/ours")
    options = f"-Ddfs.checksum.type={'CRC32' if kind == CRC32 else 'CRC32C'}"
    fs_shell(hadoop, options, "-Ddfs.blocksize=1048576", "-put", str(source), f"{base}/theirs")
    checksums = fs_shell(hadoop, "-checksum", f"{base}/ours", f"{base}/theirs").splitlines()
    ours, theirs = (line.split("\t")[1:] for line in checksums)
    assert ours == theirs
    assert fetch_again(files, f"{base}/theirs", tmp_path / "in").read_bytes() == source.read_bytes()
    assert by_webhdfs == []


def test_a_pipeline_of_three_has_the_content_on_each(
    hadoop: Hadoop, files: HdfsFiles, base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipelines: list[int] = []
    real = DataNodeConnection.write

    def write(connection: DataNodeConnection, located: LocatedBlock, *arguments: Any) -> None:
        pipelines.append(len(located.nodes))
        real(connection, located, *arguments)

    monkeypatch.setattr(DataNodeConnection, "write", write)
    content = os.urandom(700_000)
    (tmp_path / "file").write_bytes(content)

    def has_pipeline_of_three() -> bool:
        in_three_replicas(files).store(str(tmp_path / "file"), f"{base}/file")
        return pipelines[-1] == 3

    wait_until(has_pipeline_of_three)  # the NameNode leaves out a DataNode that it did not hear of for 3 s
    assert len(replicas(hadoop, content, files.place.path(f"{base}/file"))) == 3


def test_without_a_crc32c_library_files_use_webhdfs_with_one_log_line(
    place: HdfsPlace,
    base: str,
    by_webhdfs: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    WebHdfs(place).write(place.path(f"{base}/theirs"), b"content")
    monkeypatch.setattr(checksums, "_crc32c", lambda: None)
    monkeypatch.setattr("dlapp.storage.hdfs.native.has_crc32c", lambda: False)
    by_webhdfs.clear()
    files = HdfsFiles(place)
    # What is written then has CRC32, which all clients read.
    files.write_atomic(f"{base}/ours", b"ours")
    assert files.read_bytes(f"{base}/ours", 100) == b"ours"
    assert by_webhdfs == []
    assert files.read_bytes(f"{base}/theirs", 100) == b"content"
    assert len(by_webhdfs) == 1
    # Then no other is tried natively: most have the same checksums.
    assert files.read_bytes(f"{base}/ours", 100) == b"ours"
    assert len(by_webhdfs) == 2
    output = [message_of(line) for line in capfd.readouterr().out.splitlines()]
    assert [item for item in output if f"install google-crc32c, with its C form, in {sys.executable}" in item] == output
    assert len(output) == 1
    assert output[0].startswith(
        f"{place.location}: files are read by WebHDFS: it has checksums CRC32C, and no library "
    )


_ON_A_NODE = """
import json, sys
sys.path.insert(0, sys.argv[1])
from dlapp.locations import HdfsPlace
from dlapp.values.serialization import from_json
from dlapp.storage.hdfs.file_system import HdfsFiles
from dlapp.storage.hdfs.webhdfs import WebHdfs
WebHdfs.fetch = WebHdfs.write = None
files = HdfsFiles(from_json(HdfsPlace, json.loads(sys.argv[2])))
files.write_atomic(sys.argv[3] + "/node", files.read_bytes(sys.argv[3] + "/theirs", 1 << 20))
print(*sorted({"crc32c", "google_crc32c"} & set(sys.modules)))
"""


@pytest.mark.slow
def test_a_node_without_libraries_uses_native_access_with_the_archives_library(
    place: HdfsPlace, files: HdfsFiles, base: str, travel_cache: Path
) -> None:
    if installed_library() is None:
        pytest.skip("google-crc32c has no library here")
    content = os.urandom(100_000)
    WebHdfs(place).write(place.path(f"{base}/theirs"), content)  # a DataNode writes with CRC32C
    archive, _ = bundle.packed(str(travel_cache))
    words = [sys.executable, "-I", "-S", "-c", _ON_A_NODE, archive, json.dumps(to_json(place)), base]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("\n", "")
    assert files.read_bytes(f"{base}/node", 1 << 20) == content


# ---- whether it serves ----


def test_the_addresses_of_namenodes_are_those_of_the_configuration() -> None:
    place = HdfsPlace("hdfs://nn", ("http://nn:9870",), Login("tony"))
    assert rpc_addresses(place) == [("nn", 8020)]
    assert rpc_addresses(place._replace(location="hdfs://nn:9000")) == [("nn", 9000)]
    assert rpc_addresses(place._replace(location="hdfs://ns", names=("ns", "a:8020", "b:8020"))) == [
        ("a", 8020),
        ("b", 8020),
    ]
    # A nameservice whose configuration has no address for RPC.
    assert rpc_addresses(place._replace(location="hdfs://ns", names=("ns",))) == []


@pytest.fixture
def unknown(monkeypatch: pytest.MonkeyPatch) -> dict[Any, Any]:
    """Knowledge of this process of the ways to each HDFS: none, and it is forgotten after the test."""
    known: dict[Any, Any] = {}
    monkeypatch.setattr(native, "_protocol_states", known)
    monkeypatch.setattr(native, "PROBE_S", 120.0)  # a busy NameNode is not one that does not answer
    return known


@pytest.mark.usefixtures("unknown")
def test_auto_uses_native_access_if_all_ports_answer(place: HdfsPlace, base: str, by_webhdfs: list[str]) -> None:
    files = HdfsFiles(place._replace(protocol=AUTO))
    files.write_atomic(f"{base}/file", b"content")
    assert files.read_bytes(f"{base}/file", 100) == b"content"
    assert by_webhdfs == []


@pytest.mark.usefixtures("unknown")
def test_auto_probes_once_per_process(place: HdfsPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[str] = []
    real = NativeHdfs._probe

    def probe(web: NativeHdfs) -> str:
        looks.append(web.place.location)
        return real(web)

    monkeypatch.setattr(NativeHdfs, "_probe", probe)
    for _ in range(3):
        assert NativeHdfs(place._replace(protocol=AUTO)).webhdfs_reason() == ""
    assert looks == [place.location]
    assert NativeHdfs(place).webhdfs_reason() == ""
    assert len(looks) == 2  # natively it is waited for, by each who uses it


@pytest.mark.usefixtures("unknown")
def test_auto_uses_webhdfs_if_the_rpc_port_does_not_answer(place: HdfsPlace, base: str) -> None:
    files = HdfsFiles(place._replace(protocol=AUTO, names=("127.0.0.1:1",)))
    files.write_atomic(f"{base}/file", b"content")
    assert files.read_bytes(f"{base}/file", 100) == b"content"
    assert web_of(files).webhdfs_reason() == "no NameNode serves by RPC: 127.0.0.1:1: refused"


def test_auto_uses_webhdfs_if_data_ports_do_not_answer(
    place: HdfsPlace, base: str, monkeypatch: pytest.MonkeyPatch, unknown: dict[Any, Any]
) -> None:
    def refused(_web: NativeHdfs, address: Address) -> DataNodeConnection:
        raise ConnectionLost(f"{address[0]}: refused", sent=False)

    monkeypatch.setattr(NativeHdfs, "_connect_datanode", refused)
    writing, beside = (HdfsFiles(place._replace(protocol=AUTO)) for _ in range(2))
    writing.write_atomic(f"{base}/file", b"content")
    assert "no DataNode serves its data port" in web_of(writing).webhdfs_reason()
    assert web_of(beside).webhdfs_reason() == web_of(writing).webhdfs_reason()
    unknown.clear()
    reading = HdfsFiles(place._replace(protocol=AUTO))
    assert web_of(reading).webhdfs_reason() == ""
    assert reading.read_bytes(f"{base}/file", 100) == b"content"
    assert "no DataNode serves its data port" in web_of(reading).webhdfs_reason()


@pytest.mark.usefixtures("unknown")
def test_auto_writes_natively_while_one_of_several_datanodes_does_not_answer(
    place: HdfsPlace, base: str, monkeypatch: pytest.MonkeyPatch, by_webhdfs: list[str]
) -> None:
    gone: list[Address] = []
    real = NativeHdfs._connect_datanode

    def connect(web: NativeHdfs, address: Address) -> DataNodeConnection:
        if address in (gone or [address]):
            gone.append(address)
            raise ConnectionLost(f"{address[0]}: refused", sent=False)
        return real(web, address)

    monkeypatch.setattr(NativeHdfs, "_connect_datanode", connect)
    HdfsFiles(place._replace(protocol=AUTO)).write_atomic(f"{base}/file", b"content")
    assert gone
    assert by_webhdfs == []


@pytest.mark.usefixtures("unknown")
def test_auto_does_not_replace_tls_by_plain_text() -> None:
    place = HdfsPlace("hdfs://nn:1", ("https://nn:9871",), Login("tony"), protocol=AUTO)
    assert "over TLS" in NativeHdfs(place).webhdfs_reason()


def test_with_a_token_it_is_used_by_webhdfs(place: HdfsPlace) -> None:
    web = NativeHdfs(place._replace(login=Login("tony", "token")))
    assert "only simple authentication" in web.webhdfs_reason()


def test_encrypted_data_transfer_is_left_to_webhdfs(place: HdfsPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    encrypts = NativeHdfs(place)._server_defaults()._replace(encrypts=True)
    monkeypatch.setattr("dlapp.hadoop.hdfs.client_protocol.parse_server_defaults", lambda _: encrypts)
    assert NativeHdfs(place).webhdfs_reason() == "it encrypts data transfer"


@pytest.mark.parametrize("by_hostname", [False, True])
def test_datanodes_are_reached_by_host_name_if_configured(
    files: HdfsFiles, place: HdfsPlace, monkeypatch: pytest.MonkeyPatch, by_hostname: bool
) -> None:
    """A name that only this client can resolve, in place of the one that the DataNode has registered with."""
    files.make_directory(place.home)
    reached: list[str] = []
    real = NativeHdfs._connect_datanode

    def connect(hdfs: NativeHdfs, address: Address) -> DataNodeConnection:
        reached.append(address[0])
        return real(hdfs, ("127.0.0.1", address[1]))

    def node(info: bytes, nodes: dict[bytes, DataNode]) -> DataNode:
        return real_node(info, nodes)._replace(hostname="datanode.example")

    real_node = client_protocol._node
    monkeypatch.setattr(client_protocol, "_node", node)
    monkeypatch.setattr(NativeHdfs, "_connect_datanode", connect)
    with closing(NativeHdfs(place._replace(by_hostname=by_hostname))) as hdfs:
        path = f"{place.path(place.home)}/by-name"
        hdfs.write(path, b"text", 0o600, parents=False)
        assert hdfs.read_part(path, 0, 4) == b"text"
    assert set(reached) == {"datanode.example" if by_hostname else "127.0.0.1"}


def test_the_doctor_reports_the_file_access_mode_and_reason(
    files: HdfsFiles, place: HdfsPlace, monkeypatch: pytest.MonkeyPatch, unknown: dict[Any, Any]
) -> None:
    files.make_directory(place.home)
    monkeypatch.setattr(checksums, "has_crc32c", lambda: True)
    assert _protocol(place).found == "storage.hdfs=native: files go by HDFS's own protocols"
    assert _protocol(place._replace(protocol=WEBHDFS)).found == "storage.hdfs=webhdfs: files go by WebHDFS"
    found = _protocol(place._replace(protocol=AUTO, names=("127.0.0.1:1",)))
    assert "files go by WebHDFS: no NameNode serves by RPC: 127.0.0.1:1: refused" in found.found
    monkeypatch.setattr(checksums, "has_crc32c", lambda: False)
    found = _protocol(place)
    assert f"no library verifies CRC32C here ({os.uname().machine})" in found.found
    assert found.repair.endswith("it goes to the nodes with dlapp")
    found = _protocol(place, on_node=True)
    assert (found.verdict, found.repair) == (
        WARN,
        f"install google-crc32c, in a form with its C library, for {sys.executable} on the nodes",
    )

    def refused(_web: NativeHdfs, address: Address) -> DataNodeConnection:
        raise ConnectionLost(f"{address[0]}: refused", sent=False)

    monkeypatch.setattr(NativeHdfs, "_connect_datanode", refused)
    found = _protocol(place._replace(protocol=AUTO))
    assert "files go by WebHDFS: no DataNode serves its data port" in found.found
    assert files.names(place.home) == [name for name in files.names(place.home) if not name.startswith(".dlapp-doctor")]


# ---- what breaks ----


class Rough(NativeHdfs):
    """Leads connections through proxies that cut some of them, at a byte that chance names."""

    def __init__(self, place: HdfsPlace, proxies: dict[int, Proxy], seed: object) -> None:
        super().__init__(place, timeout_s=(5, 20))
        self._proxies, self._chance = proxies, random.Random(f"{SEED} {seed}")
        self.cuts = 0

    def _led(self, address: Address) -> Address:
        proxy = self._proxies[address[1]]
        byte = self._chance.choice((0, 20, 100, 300, 1_000, 70_000)) + self._chance.randrange(60)
        cut = self._chance.random() < 0.3
        self.cuts += cut
        harm: dict[str, Any] = {self._chance.choice(("cut_up", "cut_down")): byte}
        proxy.plan = Plan(**harm) if cut else Plan()
        return proxy.address

    def _connect(self, address: Address, deadline: float) -> Connection:
        return super()._connect(self._led(address), deadline)

    def _connect_datanode(self, address: Address) -> DataNodeConnection:
        return super()._connect_datanode(self._led(address))


class Forgetful(NativeHdfs):
    """Loses the answer to the first call of a method.

    Args:
        method: of the NameNode.
        arrives: the NameNode got the call.
        remembers: it knows the call again, as long as it is not restarted.
    """

    def __init__(self, place: HdfsPlace, method: str, *, arrives: bool, remembers: bool) -> None:
        super().__init__(place)
        self._method, self._arrives, self._remembers = method, arrives, remembers
        self.lost = 0
        self.made: list[str] = []

    def _call_at(
        self, address: Address, call: Call, call_id: int, deadline: float, *, state_id: int | None = None
    ) -> Fields:
        self.made.append(call.method)
        if call.method == self._method and not self.lost:
            self.lost = call_id
            if self._arrives:
                super()._call_at(address, call, call_id, deadline)
            raise ConnectionLost("the answer is lost", sent=True)
        if call_id == self.lost and not self._remembers:
            call_id = self._ids.take()
        return super()._call_at(address, call, call_id, deadline)


@pytest.mark.parametrize(("arrives", "remembers"), [(True, True), (False, True), (True, False)])
@pytest.mark.parametrize(
    "method",
    ["mkdirs", "create", "addBlock", "complete", "setTimes", "setPermission", "rename2", "delete", "getListing"],
)
def test_a_call_whose_answer_is_lost_is_made_once(
    place: HdfsPlace, base: str, tmp_path: Path, method: str, arrives: bool, remembers: bool
) -> None:
    web = Forgetful(place, method, arrives=arrives, remembers=remembers)
    files, top = HdfsFiles(place, web), tmp_path / "tree"
    (top / "inner").mkdir(parents=True)
    (top / "inner/file").write_bytes(b"content")
    files.store(str(top), f"{base}/tree")
    assert files.create_exclusive(f"{base}/claim", b"mine")
    assert not files.create_exclusive(f"{base}/claim", b"another")
    files.write_atomic(f"{base}/claim", b"new")
    assert files.read_bytes(f"{base}/claim", 100) == b"new"
    assert files.names(base) == ["claim", "tree"]
    assert (fetch_again(files, f"{base}/tree", tmp_path / "in") / "inner/file").read_bytes() == b"content"
    files.remove(f"{base}/tree")
    assert files.names(base) == ["claim"]
    assert web.lost
    if remembers:  # nothing is started again: four files were made, and three were renamed
        assert web.made.count("create") == 4 + (method == "create")
        assert web.made.count("rename2") == 3 + (method == "rename2")


class Unheard(NativeHdfs):
    """The DataNode that took the first file died before it reported it to the NameNode. Waits for that take no time."""

    def __init__(self, place: HdfsPlace) -> None:
        self.passed_s, self.made = 0.0, 0
        super().__init__(place, clock=lambda: time.monotonic() + self.passed_s, sleep=self._pass)

    def _pass(self, seconds: float) -> None:
        if self.made == 1:
            self.passed_s += seconds
        else:
            time.sleep(seconds)

    def _rpc(self, path: str, call: Call, parse: Callable[[Fields], T], *, call_id: int | None = None) -> T:
        self.made += call.method == "create"
        if call.method == "complete" and self.made == 1:
            return False  # type: ignore[return-value]
        return super()._rpc(path, call, parse, call_id=call_id)


def test_a_file_that_never_reached_the_namenode_is_rewritten(place: HdfsPlace, base: str) -> None:
    web = Unheard(place)
    files = HdfsFiles(place, web)
    web.write(place.path(f"{base}/file"), b"content")
    assert (web.made, files.read_bytes(f"{base}/file", 100)) == (2, b"content")


def test_a_forked_process_is_another_client_for_the_retry_cache() -> None:
    ids = CallIds()
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        os.write(write, ids.client_id)
        os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    with open(read, "rb") as output:
        child_id = output.read()
    assert len(child_id) == len(ids.client_id) == 16
    assert child_id != ids.client_id


def test_an_expired_token_is_renewed(
    files: HdfsFiles, base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_webhdfs: list[str]
) -> None:
    refused: list[str] = []
    for name in ("write", "read"):
        real = getattr(DataNodeConnection, name)

        def once(connection: DataNodeConnection, *arguments: Any, real: Any = real) -> Any:
            if real.__name__ not in refused:
                refused.append(real.__name__)
                expired = BlockRefusal(packets.ACCESS_TOKEN, "Block token with 1 is expired", "")
                raise BlockRefused(connection.name, expired)
            return real(connection, *arguments)

        monkeypatch.setattr(DataNodeConnection, name, once)
    content = os.urandom(100_000)
    (tmp_path / "file").write_bytes(content)
    files.store(str(tmp_path / "file"), f"{base}/file")
    assert fetch_again(files, f"{base}/file", tmp_path / "in").read_bytes() == content
    assert refused == ["write", "read"]
    assert by_webhdfs == []


_DIES = """
import json, os, signal, sys
from dlapp.hadoop.hdfs.datanode import DataNodeConnection
from dlapp.locations import HdfsPlace
from dlapp.values.serialization import from_json
from dlapp.storage.hdfs.file_system import HdfsFiles
real = DataNodeConnection._send_packet
def send(connection, header, *rest):
    if header.number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    real(connection, header, *rest)
DataNodeConnection._send_packet = send
HdfsFiles(from_json(HdfsPlace, json.loads(sys.argv[1]))).store(*sys.argv[2:])
"""


def test_a_file_left_open_by_a_killed_process_can_be_replaced(
    hadoop: Hadoop, place: HdfsPlace, files: HdfsFiles, base: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(os.urandom(1_000_000))
    words = [sys.executable, "-c", _DIES, json.dumps(to_json(place)), str(tmp_path / "file"), f"{base}/file"]
    assert subprocess.run(words, stdin=subprocess.DEVNULL).returncode == -signal.SIGKILL
    found = files.web.status(files.place.path(f"{base}/file"))
    assert found is not None
    assert found.size_bytes == 0
    content = os.urandom(900_000)
    (tmp_path / "file").write_bytes(content)
    files.store(str(tmp_path / "file"), f"{base}/file")
    assert fetch_again(files, f"{base}/file", tmp_path / "in").read_bytes() == content
    left = files.web.status(files.place.path(f"{base}/file"))
    assert left is not None
    assert left.inode_id != found.inode_id
    assert "OPENFORWRITE" not in fsck(hadoop, files.place.path(base), openforwrite="1")


@pytest.fixture
def proxies(hadoop: Hadoop) -> Iterator[dict[int, Proxy]]:
    with ExitStack() as stack:
        ports = [hadoop.ports[name] for name in ("nn", *DATANODES)]
        yield {port: stack.enter_context(Proxy(("127.0.0.1", port))) for port in ports}


@each_seed("cut connections")
def test_trees_arrive_whole_through_connections_that_are_cut_anywhere(
    place: HdfsPlace, proxies: dict[int, Proxy], base: str, tmp_path: Path, seed: int
) -> None:
    """Store 15 files and fetch them until over 8 connections were cut, 20 times at most."""
    web = Rough(place, proxies, seed)
    files = HdfsFiles(place, web)
    before = described(grown(tmp_path / "tree", f"native {seed}", 15))
    for time_ in range(20):
        files.store(str(tmp_path / "tree"), f"{base}/{time_}/tree")
        assert described(fetch_again(files, f"{base}/{time_}/tree", tmp_path / f"in{time_}")) == before, (
            f"seed {SEED} {seed}"
        )
        if web.cuts > 8:
            break
    else:
        pytest.fail("nothing was cut")


@pytest.mark.parametrize("name", ["file", "set/file"])  # a small file in a directory is read with others
def test_a_corrupt_replica_is_passed_over_and_reported(
    hadoop: Hadoop, files: HdfsFiles, base: str, tmp_path: Path, name: str
) -> None:
    content = os.urandom(900_000)
    (tmp_path / "set").mkdir()
    (tmp_path / name).write_bytes(content)
    in_three_replicas(files).store(str(tmp_path / name), f"{base}/{name}")
    replicate(files, f"{base}/{name}", 3)
    path = files.place.path(f"{base}/{name}")
    blocks = replicas(hadoop, content, path)
    assert len(blocks) == 3
    for block in blocks[:2]:
        spoil(block)
    deadline = time.monotonic() + 120
    top, _, inner = name.partition("/")
    while len(holders(files, path)) > 1:
        assert time.monotonic() < deadline
        fresh = HdfsFiles(files.place)
        assert (fetch_again(fresh, f"{base}/{top}", tmp_path / os.urandom(4).hex()) / inner).read_bytes() == content


def test_small_files_are_read_together_and_alone_from_one_on_that_is_not_there(
    files: HdfsFiles, base: str, tmp_path: Path, by_webhdfs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tree").mkdir()
    for number in range(20):
        (tmp_path / "tree" / f"{number:02}").write_bytes(os.urandom(1 + 700 * number))
    files.store(str(tmp_path / "tree"), f"{base}/tree")
    by_webhdfs.clear()
    alone: list[int] = []
    real = DataNodeConnection.read

    def read(connection: DataNodeConnection, block: LocatedBlock, *arguments: Any) -> None:
        alone.append(block.block.block_id)
        real(connection, block, *arguments)

    monkeypatch.setattr(DataNodeConnection, "read", read)
    for gone in (None, f"{base}/tree/07"):
        into = tmp_path / f"in {gone is None}"
        plan = plan_entries([(files, match) for match in files.matches(f"{base}/tree")], str(into))
        if gone:
            located = web_of(files)._located
            size, block = located[files.place.path(gone)]
            located[files.place.path(gone)] = size, block._replace(block=block.block._replace(block_id=1 << 40))
        plan.fetch()
        assert described(into / "tree") == described(tmp_path / "tree")
        assert (1 << 40 in alone) == bool(alone) == bool(gone)
    assert not by_webhdfs


def test_a_file_that_is_replaced_after_it_was_listed_is_not_taken_for_the_old_one(
    files: HdfsFiles, base: str, tmp_path: Path
) -> None:
    files.write_atomic(f"{base}/set/file", b"old")
    found = files.matches(f"{base}/set")
    nodes = files.tree(found[0])
    files.write_atomic(f"{base}/set/file", b"new")
    files.tree = lambda entry: nodes  # type: ignore[method-assign]
    with pytest.raises(DlappError, match="changed while it was fetched"):
        fetch_entries(files, found, str(tmp_path / "in"))


def test_a_block_removed_after_its_listing_is_located_again(
    hadoop: Hadoop, files: HdfsFiles, base: str, tmp_path: Path
) -> None:
    files.write_atomic(f"{base}/set/file", b"content")
    path = files.place.path(f"{base}/set/file")
    files.web.children(files.place.path(f"{base}/set"), located=True)
    web = web_of(files)
    size, block = web._located[path]
    web._located[path] = size, block._replace(block=block.block._replace(block_id=1 << 40))
    fd = os.memfd_create("test")
    try:
        files.web.fetch(path, fd, 0, size, lambda count: None)
        assert os.pread(fd, 100, 0) == b"content"
    finally:
        os.close(fd)


def write_coded(files: HdfsFiles, path: str, content: bytes) -> str:
    """Write an erasure coded file until all blocks with its content are there, and return the name of its second block.

    A DataNode that is slow is left out by Hadoop's writer; what such a try has written, DataNodes remove later.
    """
    deadline = time.monotonic() + 120
    while True:
        files.web.write(path, content)
        call = client_protocol.get_block_locations(path, 0, len(content) or 1)
        found = web_of(files)._rpc(path, call, client_protocol.parse_block_locations)
        assert found is not None
        assert found.striping is not None
        parts = [(block, index) for block in found.blocks for index in range(found.striping.data_blocks)]
        if all(
            one.of_group(index, found.striping) or not found.striping.size_in(index, one.block.size_bytes)
            for one, index in parts
        ):
            # DataNodes name their files by a signed number; that of a group is negative.
            return f"blk_{found.blocks[0].block.block_id + 1 - (1 << 64)}" if found.blocks else ""
        assert time.monotonic() < deadline
        files.web.delete(path)


@pytest.mark.skipif(IS_HADOOP_2, reason="before 3.0 nothing is erasure coded")
def test_an_erasure_coded_file_is_read_natively_while_complete(
    hadoop: Hadoop, files: HdfsFiles, base: str, tmp_path: Path, by_webhdfs: list[str]
) -> None:
    if not has_crc32c():
        pytest.skip("neither google-crc32c nor crc32c is installed")
    path = files.place.path(f"{base}/coded")
    files.make_directory(f"{base}/coded")
    files.web._call("ENABLEECPOLICY", "/", {"ecpolicy": "XOR-2-1-1024k"}, method="PUT")
    files.web.set_ec_policy(path, "XOR-2-1-1024k")
    cell = 1 << 20
    for size in (0, 1, cell - 1, cell, cell + 1, 2 * cell, 5 * cell + 7):
        content = os.urandom(size)
        write_coded(files, f"{path}/file", content)
        by_webhdfs.clear()
        assert files.read_bytes(f"{base}/coded/file", 1 << 24) == content
        for _ in range(5 if size else 0):
            start = random.randrange(size)
            count = random.randint(1, size - start)
            assert files.web.read_part(f"{path}/file", start, count) == content[start : start + count]
        assert by_webhdfs == []
        files.remove(f"{base}/coded/file")
    content = os.urandom(2 * cell)
    name = write_coded(files, f"{path}/file", content)
    (block,) = (item for item in with_content(hadoop, content[cell:]) if item.name == name)
    spoil(block)
    by_webhdfs.clear()
    # Hadoop's own reader in a DataNode does not always read the block again; other bytes are never handed on.
    with suppress(DlappError):
        assert files.read_bytes(f"{base}/coded/file", 1 << 24) == content
    assert by_webhdfs


@pytest.mark.slow
@each_seed("packets of a read", max(5, COUNT))
def test_a_read_continues_at_another_datanode_when_one_dies(
    restored_datanodes: None,
    hadoop: Hadoop,
    files: HdfsFiles,
    base: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
) -> None:
    """Kill the DataNode that sends a block of 6 MiB at one of its 97 packets of 64 KiB, which the seed chooses."""
    packet = random.Random(seed).randrange(97)
    print(f"packet {packet}")
    content = os.urandom(6 << 20)
    (tmp_path / "file").write_bytes(content)
    in_three_replicas(files, 8 << 20).store(str(tmp_path / "file"), f"{base}/file")
    replicate(files, f"{base}/file", 3)  # a DataNode of an earlier test may have come late to the pipeline
    killed: list[str] = []
    connections: dict[int, DataNodeConnection] = {}
    received = itertools.count()
    real_receive, real_header = DataNodeConnection._receive, packets.parse_packet_header
    parts = {hadoop.ports[part]: part for part in DATANODES}

    def receive(connection: DataNodeConnection, *arguments: Any) -> None:
        connections[threading.get_ident()] = connection
        real_receive(connection, *arguments)

    def header(data: bytes) -> Any:
        if next(received) == packet:
            killed.append(parts[int(connections[threading.get_ident()].name.rpartition(":")[2])])
            hadoop.kill_part(killed[0])
        return real_header(data)

    monkeypatch.setattr(DataNodeConnection, "_receive", receive)
    monkeypatch.setattr(packets, "parse_packet_header", header)
    assert fetch_again(HdfsFiles(files.place), f"{base}/file", tmp_path / "in").read_bytes() == content
    assert killed


def test_a_wait_for_a_datanode_is_shown(files: HdfsFiles, base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: set[str] = set()
    for name in ("_need", "_send_packet"):
        real = getattr(DataNodeConnection, name)

        def noted(connection: DataNodeConnection, *arguments: Any, real: Any = real) -> Any:
            shown.update(wait.what for wait in waits._waits)
            return real(connection, *arguments)

        monkeypatch.setattr(DataNodeConnection, name, noted)
        files.write_atomic(f"{base}/file", b"content")
        assert files.read_bytes(f"{base}/file", 100) == b"content"
    assert [text for text in shown if text.startswith("HDFS at 127.0.0.1:")]


def kill_at(monkeypatch: pytest.MonkeyPatch, hadoop: Hadoop, part: str, packet: int) -> list[str]:
    """Kill a DataNode when a packet of a file is to be sent, counted from 0; the list has it then."""
    killed: list[str] = []
    sent = itertools.count()
    real = DataNodeConnection._send_packet

    def send(connection: DataNodeConnection, header: Any, *rest: bytes) -> None:
        if next(sent) == packet:
            killed.append(part)
            hadoop.kill_part(part)
        real(connection, header, *rest)

    monkeypatch.setattr(DataNodeConnection, "_send_packet", send)
    return killed


@pytest.mark.slow
@each_seed("packets of a pipeline")
def test_a_block_is_rewritten_when_a_datanode_of_its_pipeline_dies(
    restored_datanodes: None,
    hadoop: Hadoop,
    files: HdfsFiles,
    base: str,
    tmp_path: Path,
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Kill one of three DataNodes at one of the 23 packets of a file, both chosen by the seed.

    The file has blocks of 2, 2 and 1 MiB, with packets of 256 KiB and an empty last one.
    """
    chance = random.Random(seed)
    packet, part = chance.randrange(23), chance.choice(DATANODES)
    print(f"{part} at packet {packet}")
    content = os.urandom(5 << 20)
    (tmp_path / "file").write_bytes(content)
    in_three_replicas(files, 2 << 20)
    killed = kill_at(monkeypatch, hadoop, part, packet)
    files.store(str(tmp_path / "file"), f"{base}/file")
    assert killed
    assert fetch_again(HdfsFiles(files.place), f"{base}/file", tmp_path / "in").read_bytes() == content
    assert holders(files, files.place.path(f"{base}/file"))
