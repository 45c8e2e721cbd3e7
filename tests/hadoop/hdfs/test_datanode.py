"""A DataNode that is hostile or cut off: only what is verified is handed on, and no broken write is called done."""

from __future__ import annotations

import itertools
import os
import socket
import struct
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from dlapp.hadoop.errors import ConnectionLost, HadoopError, NotHadoop
from dlapp.hadoop.framing import encode_varint
from dlapp.hadoop.hdfs import checksums, datanode, packets
from dlapp.hadoop.hdfs.checksums import CRC32, CRC32C, CannotVerify, Checksum
from dlapp.hadoop.hdfs.client_protocol import DataNode, HdfsBlock, LocatedBlock
from dlapp.hadoop.hdfs.datanode import (
    BlockRefused,
    CorruptReplica,
    DataNodeConnection,
    PipelineFailed,
    SourceEnded,
    write_all,
)
from dlapp.hadoop.hdfs.packets import PacketHeader, encode_packet_header
from dlapp.hadoop.wire import encode
from tests.services.ports import refusing

CONTENT = bytes(range(256)) * 5 + b"the end"
CHUNK = 512


class Script:
    """A server that reads the head of each operation and then sends some bytes and ends."""

    def __init__(self) -> None:
        self.answers = b""
        self.received = b""
        self._is_idle = threading.Event()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._socket.getsockname()
        self._thread = threading.Thread(target=self._serve, name="script")
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                link, _ = self._socket.accept()
            except OSError:
                return
            with link:
                self._is_idle.clear()
                self.received = link.recv(1 << 16)
                if not self.received:
                    self._is_idle.set()
                    continue
                try:
                    link.sendall(self.answers)
                    link.shutdown(socket.SHUT_WR)
                    while more := link.recv(1 << 16):
                        self.received += more
                except OSError:
                    pass
            self._is_idle.set()

    def received_in_all(self) -> bytes:
        """Wait until the last connection has ended; return what came."""
        assert self._is_idle.wait(120)
        return self.received

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()


@pytest.fixture(scope="module")
def script() -> Iterator[Script]:
    one = Script()
    yield one
    one.close()


def delimited(message: bytes) -> bytes:
    return encode_varint(len(message)) + message


def crcs(data: bytes) -> bytes:
    return b"".join(
        struct.pack(">I", zlib.crc32(data[offset : offset + CHUNK])) for offset in range(0, len(data), CHUNK)
    )


def packet(offset: int, number: int, data: bytes, *, sums: bytes | None = None, last: bool = False) -> bytes:
    sums = crcs(data) if sums is None else sums
    return encode_packet_header(PacketHeader(offset, number, last, len(data)), len(sums)) + sums + data


def read_answer(first: int = 0, kind: int = CRC32, chunk: int = CHUNK) -> bytes:
    return delimited(encode((1, 0), (4, encode((1, encode((1, kind), (2, chunk))), (2, first)))))


def block_sent(content: bytes, first: int = 0) -> bytes:
    """The bytes that a DataNode sends of a block from a chunk on, in packets of two chunks."""
    parts, number, offset = [read_answer(first)], 0, first
    while offset < len(content):
        data = content[offset : offset + 2 * CHUNK]
        parts.append(packet(offset, number, data))
        offset, number = offset + len(data), number + 1
    return b"".join([*parts, packet(offset, number, b"", last=True)])


def located(count: int, size: int = len(CONTENT)) -> LocatedBlock:
    nodes = tuple(DataNode("127.0.0.1", 1000 + number, encode((1, b""))) for number in range(count))
    return LocatedBlock(HdfsBlock("BP-1", 7, 1, size), 0, nodes, encode((1, b"")), (1,) * count)


def opened(script: Script) -> DataNodeConnection:
    return DataNodeConnection(script.address, connect_s=120, silence_s=120)


def read(script: Script, answers: bytes, start: int = 0, count: int = len(CONTENT)) -> tuple[bytes, Exception | None]:
    """Read a range; return what was handed on, and what was raised."""
    script.answers, got = answers, bytearray()
    connection = opened(script)
    try:
        connection.read(located(1), "c", start, count, lambda pieces: got.extend(b"".join(pieces)))
    except HadoopError as error:
        return bytes(got), error
    finally:
        connection.close()
    return bytes(got), None


# ---- reading ----


@pytest.mark.parametrize(("start", "count"), [(0, len(CONTENT)), (512, 512), (600, 30), (1, 1286), (1100, 187)])
def test_a_range_may_begin_and_end_in_any_chunk(script: Script, start: int, count: int) -> None:
    first = start // CHUNK * CHUNK
    end = min(-(-(start + count) // CHUNK) * CHUNK, len(CONTENT))
    got, error = read(script, block_sent(CONTENT[:end], first), start, count)
    assert error is None
    assert got == CONTENT[start : start + count]
    assert script.received[:3] == bytes.fromhex("001c51")


def test_a_block_that_ends_anywhere_is_never_taken_for_whole(script: Script) -> None:
    whole = block_sent(CONTENT)
    for end in range(len(whole)):
        got, error = read(script, whole[:end])
        assert error is not None, end
        assert CONTENT.startswith(got), end


def test_a_block_with_any_byte_spoiled_is_never_handed_on_as_another_content(script: Script) -> None:
    whole = block_sent(CONTENT)
    refused = 0
    for offset, bits in itertools.product(range(len(whole)), (1, 0x80)):
        got, error = read(script, whole[:offset] + bytes([whole[offset] ^ bits]) + whole[offset + 1 :])
        assert CONTENT.startswith(got), offset
        assert error is not None or got == CONTENT, offset
        refused += error is not None
    assert refused > 1.9 * len(whole)


def test_data_before_a_corrupt_chunk_is_returned(script: Script) -> None:
    bad = CONTENT[:1024], CONTENT[1024:1100] + b"x" + CONTENT[1101:]
    sent = read_answer() + packet(0, 0, bad[0]) + packet(1024, 1, bad[1], sums=crcs(CONTENT[1024:]))
    got, error = read(script, sent)
    assert isinstance(error, CorruptReplica)
    assert got == CONTENT[:1024]


SMALL = CONTENT[:40], CONTENT[100:700], CONTENT[-7:]


def read_together(script: Script, answers: bytes) -> tuple[list[bytes], Exception | None]:
    """Read small blocks; return those that were handed on, and what was raised."""
    script.answers, got = answers, list[bytes]()
    connection = opened(script)
    try:
        connection.read_small([located(1, len(content)) for content in SMALL], "c", got.append)
    except HadoopError as error:
        return got, error
    finally:
        connection.close()
    return got, None


def test_small_blocks_are_requested_and_acknowledged_together(script: Script) -> None:
    got, error = read_together(script, b"".join(map(block_sent, SMALL)))
    assert error is None
    assert got == list(SMALL)
    acknowledged = packets.read_status(packets.SUCCESS)
    blocks = [located(1, len(content)) for content in SMALL]
    sent = [packets.read_operation(block, "c", 0, block.block.size_bytes) + acknowledged for block in blocks]
    assert script.received_in_all() == b"".join(sent)


def test_only_complete_valid_small_blocks_are_returned(script: Script) -> None:
    whole = b"".join(map(block_sent, SMALL))
    ends = list(itertools.accumulate(len(block_sent(content)) for content in SMALL))
    for offset in range(len(whole)):
        got, error = read_together(script, whole[:offset])
        assert error is not None, offset
        assert got == list(SMALL[: sum(end <= offset for end in ends)]), offset
        got, error = read_together(script, whole[:offset] + bytes([whole[offset] ^ 0x80]) + whole[offset + 1 :])
        assert got == list(SMALL[: len(got)]), offset
        assert error is not None or len(got) == len(SMALL), offset


@pytest.mark.parametrize(
    "sent",
    [
        read_answer(first=512) + packet(512, 0, CONTENT[512:]),  # after what was asked for
        read_answer(chunk=1 << 30),
        read_answer(chunk=0),
        read_answer() + packet(512, 0, CONTENT[:512]),  # another place
        read_answer() + packet(0, 1, CONTENT[:512]),  # another number
        read_answer() + packet(0, 0, CONTENT[:512], sums=b""),
        read_answer() + packet(0, 0, CONTENT[:512], sums=crcs(CONTENT[:512]) * 2),
        read_answer() + packet(0, 0, CONTENT + bytes(1024)),  # more than was asked for
        read_answer() + struct.pack(">IH", 1 << 31, 25),
        read_answer() + packet(0, 0, CONTENT[:512]) + packet(512, 1, b"", last=True),  # less
        read_answer() + packet(0, 0, b""),  # nothing, and no end
        delimited(encode((1, 0))),  # nothing of checksums
        delimited(encode((1, 0)) + bytes(100_000)),
        b"\xff" * 20,
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
    ],
)
def test_invalid_datanode_answers_are_refused(script: Script, sent: bytes) -> None:
    got, error = read(script, sent)
    assert isinstance(error, (NotHadoop, ConnectionLost, CannotVerify)), error
    assert CONTENT.startswith(got)


@pytest.mark.parametrize("kind", [0, 3, 200])
def test_a_block_whose_checksums_cannot_be_computed_is_not_read(script: Script, kind: int) -> None:
    got, error = read(script, read_answer(kind=kind) + packet(0, 0, CONTENT))
    assert isinstance(error, CannotVerify)
    assert got == b""


def test_without_a_library_crc32c_cannot_be_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checksums, "_crc32c", lambda: None)
    with pytest.raises(CannotVerify) as caught:
        Checksum(CRC32C, CHUNK)
    machine = os.uname().machine
    assert str(caught.value) == (
        f"it has checksums CRC32C, and no library computes them here ({machine}): install google-crc32c, with its C "
        f"form, in {sys.executable}"
    )
    assert not checksums.has_crc32c()


def test_a_library_computes_crc32c_as_hadoop_does() -> None:
    if not checksums.has_crc32c():
        pytest.skip("neither crc32c nor google-crc32c is installed")
    found = Checksum(CRC32C, 9).of(memoryview(b"123456789" * 2 + b"1"))
    assert found == bytes.fromhex("e3069283 e3069283 90f599e3")


def test_a_datanodes_refusal_has_the_reason(script: Script) -> None:
    _, error = read(script, delimited(encode((1, 5), (5, "Block token with 1 is expired"))))
    assert isinstance(error, BlockRefused)
    assert error.refusal.status == packets.ACCESS_TOKEN
    assert "is expired" in str(error)


def test_a_datanode_that_only_shows_that_it_lives_is_not_waited_for_without_end(script: Script) -> None:
    beat = encode_packet_header(PacketHeader(0, packets.HEARTBEAT, False, 0), 0)
    whole = block_sent(CONTENT)
    start = len(read_answer())
    got, error = read(script, whole[:start] + beat * 5 + whole[start:])
    assert (got, error) == (CONTENT, None)
    got, error = read(script, whole[:start] + beat * 2000 + whole[start:])
    assert isinstance(error, NotHadoop)
    beat = delimited(encode((1, 1), (2, 0), (2, 0), (2, 0)))
    assert isinstance(write(script, acknowledged(0, 3) + beat * 2000), NotHadoop)


def test_a_trickling_datanode_times_out(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(1, 1_000_000)
    monkeypatch.setattr(datanode, "time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    content = os.urandom(3 << 20)
    sent = read_answer() + packet(0, 0, content) + packet(len(content), 1, b"", last=True)
    got, error = read(script, sent, 0, len(content))
    assert isinstance(error, ConnectionLost)
    assert "too slowly" in str(error)
    assert got == b""


def test_a_packet_larger_than_the_buffer_is_read(script: Script) -> None:
    content = os.urandom(3 << 20)
    got, error = read(
        script, read_answer() + packet(0, 0, content) + packet(len(content), 1, b"", last=True), 0, len(content)
    )
    assert error is None
    assert got == content


def test_partial_writes_are_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    fd = os.memfd_create("test")
    try:
        monkeypatch.setattr(os, "pwritev", lambda fd, pieces, offset: os.pwrite(fd, b"".join(pieces)[:3], offset))
        assert write_all(fd, [memoryview(b"abc"), memoryview(b"defg")], 2) == 7
        assert os.pread(fd, 20, 0) == b"\0\0abcdefg"
    finally:
        os.close(fd)


# ---- writing ----


def acknowledged(count: int, nodes: int, *, status: int = 0, of: int = -1) -> bytes:
    """The answer of a pipeline, and its acknowledgements of so many packets.

    Args:
        count: packets, with the empty one.
        nodes: DataNodes.
        status, of: of one DataNode, in the last acknowledgement.
    """
    found = [delimited(encode((1, 0), (2, "")))]
    for number in range(count):
        bad = number == count - 1
        replies = [status if bad and item == of else 0 for item in range(nodes)]
        found.append(delimited(encode((1, number * 2), *((2, reply) for reply in replies))))
    return b"".join(found)


def write(script: Script, answers: bytes, nodes: int = 3, content: bytes = CONTENT) -> Exception | None:
    script.answers = answers
    connection = opened(script)
    source: Callable[[int, int], bytes] = lambda offset, size: content[offset : offset + size]  # noqa: E731
    try:
        connection.write(located(nodes), "c", Checksum(CRC32, CHUNK), source, len(CONTENT), lambda: None)
    except HadoopError as error:
        return error
    finally:
        connection.close()
    return None


def test_a_block_is_sent_in_packets_with_their_checksums(script: Script) -> None:
    assert write(script, acknowledged(2, 3)) is None
    received = script.received_in_all()
    assert received[:3] == bytes.fromhex("001c50")
    assert received.endswith(packet(0, 0, CONTENT) + packet(len(CONTENT), 1, b"", last=True))


def test_a_write_whose_acknowledgements_end_anywhere_is_never_called_done(script: Script) -> None:
    whole = acknowledged(2, 3)
    for end in range(len(whole)):
        assert write(script, whole[:end]) is not None, end


@pytest.mark.parametrize("of", [0, 1, 2])
def test_the_datanode_that_failed_is_named(script: Script, of: int) -> None:
    error = write(script, acknowledged(2, 3, status=1, of=of))
    assert isinstance(error, PipelineFailed)
    assert error.position == of


@pytest.mark.parametrize(
    "answers",
    [
        acknowledged(2, 2),  # of fewer DataNodes
        acknowledged(0, 3) + delimited(encode((1, 2), (2, 0), (2, 0), (2, 0))),  # of a packet that was not sent yet
        acknowledged(0, 3) + delimited(encode((1, 0))),
        acknowledged(0, 3) + b"\xff\xff\xff\xff\x0f",
    ],
)
def test_an_acknowledgement_that_does_not_belong_is_refused(script: Script, answers: bytes) -> None:
    assert isinstance(write(script, answers), (NotHadoop, ConnectionLost))


def test_heartbeats_in_between_are_passed_over(script: Script) -> None:
    beat = delimited(encode((1, 1), (2, 0), (2, 0), (2, 0)))
    first, rest = acknowledged(0, 3), acknowledged(2, 3)[len(acknowledged(0, 3)) :]
    assert write(script, first + beat + rest) is None


def test_a_source_that_became_shorter_is_no_fault_of_a_datanode(script: Script) -> None:
    with pytest.raises(SourceEnded):
        write(script, acknowledged(2, 3), content=CONTENT[:-1])


def test_a_refused_connection_is_reported_as_refused() -> None:
    with refusing() as address, pytest.raises(ConnectionLost, match="refused") as lost:
        DataNodeConnection(address, connect_s=120, silence_s=120)
    assert not lost.value.sent
