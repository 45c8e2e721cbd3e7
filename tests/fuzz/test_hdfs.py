"""Test what NameNodes and DataNodes send: answers of RPC, and packets of blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dlapp.hadoop.errors import HadoopError
from dlapp.hadoop.hdfs import attributes, client_protocol, packets
from dlapp.hadoop.hdfs.checksums import CRC32, Checksum
from dlapp.hadoop.hdfs.datanode import DataNodeConnection
from dlapp.hadoop.wire import Fields, encode
from tests.fuzz.parsing import fuzz
from tests.fuzz.server import AnsweringServer, answering
from tests.hadoop.hdfs.test_datanode import CHUNK, CONTENT, acknowledged, block_sent
from tests.hadoop.hdfs.test_datanode import located as block
from tests.hadoop.hdfs.test_messages import blocks, datanode, defaults, listing, located, status

ACL = encode((1, encode((1, "tony"), (2, "g"), (3, 0), (4, encode((1, 0), (2, 0), (3, 7), (4, "ann"))))))
BLOCKS = encode((1, blocks(located(), located(5, 9, datanode("10.0.0.2")), size=14)))
TYPES = encode((1, encode((1, 1), (2, 1 << 30), (3, 5))))
QUOTA = encode((1, encode((1, 5), (2, 4), (3, 1), (4, 100), (5, TYPES))))
SUMMARY = encode((1, encode((1, 5), (2, 4), (3, 1), (4, 100), (5, 1), (6, 1 << 40), (7, TYPES))))
POLICY = encode((1, encode((1, 7), (2, "HOT"), (3, encode((1, 1))))))
ATTRIBUTE = encode((1, encode((1, 0), (2, "dlapp"), (3, b"value"))))
DIRECTORY = encode((1, encode((1, encode((1, status()), (2, 5), (3, 65536), (4, b"/user"))))))

NAMENODE: dict[str, tuple[Callable[[Fields], Any], bytes]] = {
    "server defaults": (client_protocol.parse_server_defaults, defaults()),
    "file": (client_protocol.parse_file_info, encode((1, status()))),
    "listing": (
        lambda message: client_protocol.parse_listing(message, {}),
        listing(status(), status("d", f1=1, f12=None)),
    ),
    "blocks": (client_protocol.parse_block_locations, BLOCKS),
    "added block": (client_protocol.parse_added_block, encode((1, located()))),
    "flag": (client_protocol.parse_flag, encode((1, 1))),
    "state": (client_protocol.parse_is_namenode, encode((1, encode((1, 1))))),
    "ACL": (attributes.parse_acl, ACL),
    "storage policy": (attributes.parse_storage_policy, POLICY),
    "quota": (attributes.parse_quota_usage, QUOTA),
    "summary": (attributes.parse_content_summary, SUMMARY),
    "attributes": (attributes.parse_attributes, ATTRIBUTE),
    "directories with snapshots": (attributes.parse_snapshottable, DIRECTORY),
}


@pytest.mark.parametrize("name", NAMENODE)
def test_an_answer_of_a_namenode_is_understood_or_refused(name: str) -> None:
    parse, sample = NAMENODE[name]
    fuzz(lambda data: parse(Fields(data)), [sample])


def test_a_datanodes_operation_response_is_parsed_or_refused() -> None:
    checksum = encode((1, encode((1, 1), (2, CHUNK))), (2, 0))

    def read(data: bytes) -> None:
        if isinstance(parsed := packets.parse_answer(data), Fields) and parsed.has(4):
            packets.parse_read_answer(parsed)

    fuzz(read, [encode((1, 0), (4, checksum)), encode((1, 1), (2, "10.0.0.2:9866"), (5, "no disk"))])


def test_an_acknowledgement_is_read_or_refused() -> None:
    fuzz(packets.parse_ack, [encode((1, 4), (2, 0), (2, 1)), encode((1, 4), (2, 0), (4, b"\x28"))])


def test_a_packets_header_is_read_or_refused() -> None:
    def read(data: bytes) -> None:
        size, rest = packets.packet_size(data[:6].ljust(6, b"\0"))
        assert size + rest < 1 << 26
        packets.parse_packet_header(data[6 : 6 + size])

    fuzz(read, [packets.encode_packet_header(packets.PacketHeader(65536, 1, False, 512), 4)])


@pytest.fixture(scope="module")
def server() -> Iterator[AnsweringServer]:
    with answering() as one:
        yield one


def connected(server: AnsweringServer, answer: bytes) -> DataNodeConnection:
    server.answers = [answer]
    return DataNodeConnection(("127.0.0.1", server.port), connect_s=120, silence_s=120)


def test_a_block_is_read_as_it_was_written_or_refused(server: AnsweringServer) -> None:
    def read(data: bytes) -> None:
        got, connection = bytearray(), connected(server, data)
        try:
            connection.read(block(1), "c", 0, len(CONTENT), lambda pieces: got.extend(b"".join(pieces)))
        finally:
            connection.close()
            assert CONTENT.startswith(got)

    fuzz(read, [block_sent(CONTENT)], errors=(HadoopError,))


def test_small_blocks_are_read_as_they_were_written_or_refused(server: AnsweringServer) -> None:
    def read(data: bytes) -> None:
        got, connection = list[bytes](), connected(server, data)
        try:
            connection.read_small([block(1)], "c", got.append)
        finally:
            connection.close()
            assert got in ([], [CONTENT])

    fuzz(read, [block_sent(CONTENT)], errors=(HadoopError,))


def test_a_write_is_acknowledged_or_refused(server: AnsweringServer) -> None:
    def read(data: bytes) -> None:
        connection = connected(server, data)
        try:
            content = lambda offset, size: CONTENT[offset : offset + size]  # noqa: E731
            connection.write(block(3), "c", Checksum(CRC32, CHUNK), content, len(CONTENT), lambda: None)
        finally:
            connection.close()

    fuzz(read, [acknowledged(2, 3)], errors=(HadoopError,))
