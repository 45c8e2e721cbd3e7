"""Data transfer protocol of DataNodes: encoding of operations, answers, packets of a block, and acknowledgements.

    client                                              DataNode
    version 28, operation, message     ------------>
                                       <------------    answer
    read:                              <------------    packet ... the last one is empty
    status of the read                 ------------>    the connection can be reused
    write:  packet ... (last: empty)   ------------>
                                       <------------    an acknowledgement of each packet, from each DataNode
    A packet:
        +---------------------------------------------------+
        | uint32: 4, and bytes of checksums and of data     |
        | uint16: bytes of the header                       |
        | header: offset in the block, number, last?, bytes |
        | checksums                                         |
        | data                                              |
        +---------------------------------------------------+

Source: datatransfer.proto, Sender, PacketHeader, PacketReceiver, PipelineAck, BlockSender of Hadoop 2.7 to 3.4.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import NamedTuple

from dlapp.hadoop.errors import NotHadoop
from dlapp.hadoop.framing import encode_varint
from dlapp.hadoop.hdfs.client_protocol import LocatedBlock
from dlapp.hadoop.wire import Fields, encode

PREFIX = struct.Struct(">IH")
MAX_PACKET_BYTES = 16 << 20
"""Source: PacketReceiver.MAX_PACKET_SIZE."""
MAX_HEADER_BYTES = 1 << 10
MAX_ANSWER_BYTES = 64 << 10
_VERSION, _WRITE, _READ = 28, 80, 81
_SETUP_CREATE = 6
_HEADER = struct.Struct("<BqBqBBBi")
_TAGS = (0x09, 0x11, 0x18, 0x25)
SUCCESS, ACCESS_TOKEN, CHECKSUM_OK = 0, 5, 6
HEARTBEAT = -1
"""Sequence number of a packet, and of its acknowledgement, that is only a heartbeat."""
_STATUS: Mapping[int, str] = {
    1: "an error",
    2: "a wrong checksum",
    3: "the block is not valid",
    4: "the block is already there",
    5: "the block's token is not accepted",
    7: "it does not support that",
    8: "it restarts",
}


class PacketHeader(NamedTuple):
    """Header of a packet."""

    offset: int
    number: int
    is_last: bool
    data_bytes: int


def status_text(status: int) -> str:
    """Return a status as text."""
    return _STATUS.get(status, f"status {status}")


def read_operation(located: LocatedBlock, client: str, start: int, count: int) -> bytes:
    """Encode the operation that reads a range of a block, with checksums.

    Args:
        located: the block.
        client: name of the reading client.
        start, count: the range.
    """
    return _operation(_READ, encode((1, _header(located, client)), (2, start), (3, count), (4, 1)))


def write_operation(located: LocatedBlock, client: str, checksum_kind: int, chunk_bytes: int) -> bytes:
    """Encode the operation that writes a new block to its first DataNode, which forwards it to the others.

    Args:
        located: the block with its DataNodes.
        client: name of the writing client.
        checksum_kind, chunk_bytes: type and chunk size of its checksums.
    """
    types = located.storage_types
    message = encode(
        (1, _header(located, client)),
        *((2, one.info) for one in located.nodes[1:]),
        (4, _SETUP_CREATE),
        (5, len(located.nodes)),
        (6, 0),
        (7, 0),
        (8, 0),
        (9, encode((1, checksum_kind), (2, chunk_bytes))),
        (11, types[0] if types else None),
        *((12, one) for one in types[1:]),
    )
    return _operation(_WRITE, message)


def read_status(status: int) -> bytes:
    """Encode the client's status after a read."""
    return _delimited(encode((1, status)))


def _operation(number: int, message: bytes) -> bytes:
    return struct.pack(">HB", _VERSION, number) + _delimited(message)


def _header(located: LocatedBlock, client: str) -> bytes:
    return encode((1, encode((1, located.block.encode()), (2, located.token))), (2, client))


def _delimited(message: bytes) -> bytes:
    return encode_varint(len(message)) + message


class ReadAnswer(NamedTuple):
    """A DataNode's answer to a read: the checksum type, and the offset in the block of the first packet."""

    checksum_kind: int
    chunk_bytes: int
    first_offset: int


class BlockRefusal(NamedTuple):
    """A DataNode's refusal of an operation.

    Args:
        status: reason.
        message: text of the DataNode.
        bad_node: address of the failed DataNode of a pipeline; empty: not reported.
    """

    status: int
    message: str
    bad_node: str


def parse_answer(data: bytes) -> BlockRefusal | Fields:
    """Return the fields of a successful BlockOpResponseProto. Raises NotHadoop: it is invalid."""
    said = Fields(data)
    status = said.number(1)
    bad = said.text(2, "")
    if status != SUCCESS or bad:
        return BlockRefusal(status, said.text(5, "")[:500], bad[:100])
    return said


def parse_read_answer(said: Fields) -> ReadAnswer:
    """Return the read parameters of a successful answer. Raises NotHadoop: there are none."""
    info = said.message(4)
    checksum = info.message(1)
    return ReadAnswer(checksum.number(1), checksum.number(2, below=1 << 31), info.number(2))


def encode_packet_header(header: PacketHeader, checksum_bytes: int) -> bytes:
    """Encode the prefix of a packet."""
    body = _HEADER.pack(
        _TAGS[0],
        header.offset,
        _TAGS[1],
        header.number,
        _TAGS[2],
        header.is_last,
        _TAGS[3],
        header.data_bytes,
    )
    return PREFIX.pack(4 + checksum_bytes + header.data_bytes, len(body)) + body


def packet_size(prefix: bytes) -> tuple[int, int]:
    """Return the sizes of a packet's header, and of all that follows it. Raises NotHadoop: too large."""
    payload, header = PREFIX.unpack(prefix)
    if not 4 <= payload <= MAX_PACKET_BYTES or not 0 < header <= MAX_HEADER_BYTES:
        raise NotHadoop(f"a packet of {payload} bytes with a header of {header} bytes")
    return header, payload - 4


def parse_packet_header(data: bytes) -> PacketHeader:
    """Return the header of a packet. Raises NotHadoop: it is invalid."""
    if len(data) >= _HEADER.size:
        one, offset, two, number, three, last, four, count = _HEADER.unpack_from(data)
        if (one, two, three, four) == _TAGS and offset >= 0 and last <= 1 and 0 <= count <= MAX_PACKET_BYTES:
            return PacketHeader(offset, number, last == 1, count)
    raise NotHadoop("a packet whose header cannot be read")


class Ack(NamedTuple):
    """Acknowledgement of a packet; ``statuses``: of the DataNodes of the pipeline in order."""

    number: int
    statuses: tuple[int, ...]


def parse_ack(data: bytes) -> Ack:
    """Return a PipelineAckProto. Raises NotHadoop: it is invalid."""
    said = Fields(data)
    number = said.number(1, below=1 << 64)
    # Newer versions also have the status in the low bits of a flag, which alone tells that a DataNode restarts.
    statuses = [one & 0xF for one in said.numbers(4)] or said.numbers(2)
    if not statuses and said.has(2):
        raise NotHadoop("an acknowledgement of no DataNode")
    return Ack(number >> 1 ^ -(number & 1), tuple(statuses[:512]))
