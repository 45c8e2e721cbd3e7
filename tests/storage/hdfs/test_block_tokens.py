"""HDFS whose DataNodes demand block tokens (``dfs.block.access.token.enable``), which needs no Kerberos.

Tokens expire after a minute, the least that Hadoop takes, and so often the keys of the NameNode change.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dlapp.hadoop.errors import ConnectionLost
from dlapp.hadoop.hdfs import client_protocol, packets
from dlapp.hadoop.hdfs.client_protocol import LocatedBlock
from dlapp.hadoop.hdfs.datanode import BlockRefused, DataNodeConnection
from dlapp.locations import NATIVE, HdfsPlace
from dlapp.storage.hdfs.file_system import HdfsFiles
from dlapp.storage.hdfs.native import NativeHdfs
from dlapp.storage.hdfs.webhdfs import WebHdfs
from tests.applications import properties, run
from tests.engines import Engine
from tests.services.hadoop import PARTS, QUICK_TO_NOTICE, Hadoop, NoHadoop
from tests.services.polling import wait_until
from tests.storage.hdfs.test_hdfs_faults import described, fetch_again, grown
from tests.tiers import FULL

pytestmark = pytest.mark.slow
TOKENS = {
    "dfs.block.access.token.enable": "true",
    "dfs.block.access.token.lifetime": "1",
    "dfs.block.access.key.update.interval": "1",
}
EXPIRED_S = 120.0
"""After this time a token has expired for certain; a DataNode tells when."""
BLOCK_BYTES = 1 << 20


@pytest.fixture(scope="module")
def hadoop() -> Iterator[Hadoop]:
    """A cluster with tokens and two DataNodes, in place of the one that other tests share."""
    try:
        with Hadoop.start(parts=(*PARTS, "dn2"), settings={"hdfs-site.xml": QUICK_TO_NOTICE | TOKENS}) as cluster:
            yield cluster
    except NoHadoop as missing:
        pytest.skip(f"no Hadoop: {missing}")


@pytest.fixture
def place(place: HdfsPlace) -> HdfsPlace:
    return place._replace(protocol=NATIVE)


@pytest.fixture
def natively(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no content of this process go by WebHDFS."""
    monkeypatch.setattr(WebHdfs, "fetch", None)
    monkeypatch.setattr(WebHdfs, "write", None)


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Operations whose token a DataNode did not accept."""
    seen: list[str] = []
    for name in ("read", "read_small", "write"):
        real: Callable[..., None] = getattr(DataNodeConnection, name)

        def noted(connection: DataNodeConnection, *arguments: Any, real: Any = real) -> None:
            try:
                real(connection, *arguments)
            except BlockRefused as error:
                if error.refusal.status == packets.ACCESS_TOKEN:
                    seen.append(real.__name__)
                raise

        monkeypatch.setattr(DataNodeConnection, name, noted)
    return seen


def native_of(files: HdfsFiles) -> NativeHdfs:
    assert isinstance(files.web, NativeHdfs)
    return files.web


def located(files: HdfsFiles, path: str) -> LocatedBlock:
    """Return the first block of a file, with a token of now."""
    call = client_protocol.get_block_locations(path, 0, 1)
    found = native_of(files)._rpc(path, call, client_protocol.parse_block_locations)
    assert found is not None
    return found.blocks[0]


def is_expired(block: LocatedBlock) -> bool:
    """Return whether a DataNode refuses to read a block with this token."""
    node = block.nodes[0]
    connection = DataNodeConnection((node.host, node.port), connect_s=20, silence_s=60)
    try:
        connection.read(block, "test", 0, 1, lambda pieces: None)
    except BlockRefused as error:
        if error.refusal.status != packets.ACCESS_TOKEN:
            raise
        return True
    finally:
        connection.close()
    return False


def wait_until_expired(block: LocatedBlock) -> None:
    wait_until(lambda: is_expired(block), EXPIRED_S, "the token expires")


@pytest.mark.usefixtures("natively")
def test_content_is_read_and_written_natively(files: HdfsFiles, base: str, tmp_path: Path, refused: list[str]) -> None:
    """Store a tree of 20 names and fetch it twice; a DataNode takes no other token.

    Blocks of a listing have no token. So the first fetch is refused, and the next one asks for each block.
    """
    top = grown(tmp_path / "tree", "tokens", 20)
    files.store(str(top), f"{base}/tree")
    reader = HdfsFiles(files.place)
    for time_ in ("first", "second"):
        assert described(fetch_again(reader, f"{base}/tree", tmp_path / time_)) == described(top)
        assert set(refused) <= ({"read_small", "read"} if time_ == "first" else set())
        refused.clear()
    files.write_atomic(f"{base}/file", b"content")
    block = located(files, files.place.path(f"{base}/file"))
    assert block.has_token
    assert is_expired(block._replace(token=b"\x0a\x00\x12\x00\x1a\x00\x22\x00"))
    assert refused == ["read"]


@pytest.mark.usefixtures("natively")
def test_a_file_of_several_blocks_is_written_to_a_pipeline_of_two(files: HdfsFiles, base: str, tmp_path: Path) -> None:
    """Write three blocks of 1 MiB through two DataNodes; each has its own token for the next one."""
    web, content = native_of(files), os.urandom(3 * BLOCK_BYTES)
    web._defaults = web._server_defaults()._replace(replication=2, block_bytes=BLOCK_BYTES)
    (tmp_path / "file").write_bytes(content)
    files.store(str(tmp_path / "file"), f"{base}/file")
    assert fetch_again(HdfsFiles(files.place), f"{base}/file", tmp_path / "in").read_bytes() == content


@pytest.mark.parametrize("engine", [pytest.param("yarn", marks=pytest.mark.hadoop)], indirect=True)
def test_an_application_has_its_input_and_output_natively(engine: Engine, tmp_path: Path) -> None:
    """Run two containers with ``storage.hdfs=native``, which leaves no other way to the files."""
    content = "text\n" * 60_000
    source = engine.put("input", content)
    output = {"output_path": "output", "hdfs": f"{engine.root}/result"}
    file = properties(
        tmp_path,
        "mkdir output; cp in/input output/copy",
        resources={"containers": 2, "memory": 256},
        from_hdfs={"hdfs": source, "input_path": "in"},
        to_hdfs=output,
    )
    done = run("dlapp-launcher", "--wait", file, env={"DLAPP_STORAGE_HDFS": NATIVE}, timeout_s=240)
    assert done.code == 0, done.out + done.err
    assert "WebHDFS" not in done.out + done.err
    assert engine.tree("result") == {"0/copy": content, "1/copy": content}


if FULL:

    @pytest.mark.usefixtures("natively")
    def test_transfers_continue_when_their_token_expires(
        files: HdfsFiles, base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: list[str]
    ) -> None:
        """Hold a read, and two writes of four blocks, until their tokens have expired.

        The read is held in its first block, after which its connection breaks; a write before its first block is begun,
        and the other one in its second.
        """
        content = random.Random(1).randbytes(4 * BLOCK_BYTES)
        (tmp_path / "file").write_bytes(content)

        def small_blocks() -> HdfsFiles:
            web = native_of(one := HdfsFiles(files.place))
            web._defaults = web._server_defaults()._replace(block_bytes=BLOCK_BYTES)
            return one

        small_blocks().store(str(tmp_path / "file"), f"{base}/source")
        reader, unbegun, begun = HdfsFiles(files.place), small_blocks(), small_blocks()
        held: set[str] = set()

        def hold(who: str) -> None:
            if who not in held:
                held.add(who)
                wait_until_expired(located(files, files.place.path(f"{base}/source")))

        real_read, real_write = NativeHdfs._read_from, DataNodeConnection.write

        def read(web: NativeHdfs, node: Any, block: LocatedBlock, offset: int, end: int, on_content: Any) -> None:
            def received(pieces: list[memoryview]) -> None:
                on_content(pieces)
                if web is reader.web and "reader" not in held:
                    hold("reader")
                    raise ConnectionLost("cut", sent=True)

            real_read(web, node, block, offset, end, received)

        def write(connection: DataNodeConnection, block: LocatedBlock, client: str, *arguments: Any) -> None:
            if client == native_of(unbegun)._client:
                hold("unbegun")
            checksum, source, count, between = arguments

            def passed() -> None:
                between()
                if client == native_of(begun)._client and block.block.block_id != first.setdefault("id", -1):
                    hold("begun")

            if client == native_of(begun)._client:
                first.setdefault("id", block.block.block_id)
            real_write(connection, block, client, checksum, source, count, passed)

        first: dict[str, int] = {}
        monkeypatch.setattr(NativeHdfs, "_read_from", read)
        monkeypatch.setattr(DataNodeConnection, "write", write)
        with ThreadPoolExecutor(3) as pool:
            results: list[Future[Any]] = [
                pool.submit(fetch_again, reader, f"{base}/source", tmp_path / "in"),
                pool.submit(unbegun.store, str(tmp_path / "file"), f"{base}/unbegun"),
                pool.submit(begun.store, str(tmp_path / "file"), f"{base}/begun"),
            ]
            for result in results:
                result.result()
        assert held == {"reader", "unbegun", "begun"}
        assert (tmp_path / "in" / "source").read_bytes() == content
        for name in ("unbegun", "begun"):
            assert fetch_again(HdfsFiles(files.place), f"{base}/{name}", tmp_path / name).read_bytes() == content
        assert refused.count("write") >= 1
