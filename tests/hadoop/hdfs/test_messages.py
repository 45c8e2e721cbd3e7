"""Messages of HDFS: what is written is read again, and what a server may send is understood or refused."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlapp.hadoop.errors import NotHadoop
from dlapp.hadoop.hdfs import client_protocol, packets
from dlapp.hadoop.hdfs.client_protocol import HdfsBlock, Striping
from dlapp.hadoop.hdfs.packets import BlockRefusal, PacketHeader
from dlapp.hadoop.wire import MAX_FIELDS, Fields, encode

TOKEN = encode((1, b""), (2, b""), (3, ""), (4, ""))


def datanode(host: str = "10.0.0.1", port: int = 9866) -> bytes:
    """A DatanodeInfoProto."""
    return encode((1, encode((1, host), (2, "node1"), (3, "uuid"), (4, port), (5, 9864), (6, 9867))), (2, 1 << 40))


def located(offset: int = 0, size: int = 5, *nodes: bytes, token: bytes = TOKEN) -> bytes:
    """A LocatedBlockProto."""
    block = encode((1, "BP-1"), (2, 1073741825), (3, 1001), (4, size))
    return encode((1, block), (2, offset), *((3, node) for node in nodes or (datanode(),)), (4, 0), (5, token), (7, 1))


def blocks(*parts: bytes, size: int = 5) -> bytes:
    """A LocatedBlocksProto."""
    return encode((1, size), *((2, part) for part in parts), (3, 0), (5, 1))


def status(name: str = "part-0", **other: Any) -> bytes:
    """An HdfsFileStatusProto of a file, some of whose fields are others: ``f3=7``."""
    fields: dict[int, Any] = {
        1: 2,
        2: name,
        3: 5,
        4: encode((1, 0o644)),
        5: "tony",
        6: "g",
        7: 1_700_000_000_000,
        8: 0,
        10: 3,
        12: blocks(located()),
        13: 16386,
        18: 1,
    }
    fields |= {int(key[1:]): value for key, value in other.items()}
    return encode(*fields.items())


DEFAULTS = {1: 128 << 20, 2: 512, 3: 65536, 4: 3, 5: 4096, 8: 2}


def defaults(**other: int) -> bytes:
    """An answer to getServerDefaults."""
    return encode((1, encode(*(DEFAULTS | {int(key[1:]): value for key, value in other.items()}).items())))


def listing(*entries: bytes, remaining: int = 0) -> bytes:
    """An answer to getListing."""
    return encode((1, encode(*((1, entry) for entry in entries), (2, remaining))))


@given(
    st.lists(st.tuples(st.integers(1, 1 << 20), st.integers(0, (1 << 63) - 1) | st.binary(max_size=300)), max_size=9)
)
def test_fields_that_are_written_are_read(fields: list[tuple[int, int | bytes]]) -> None:
    found = Fields(encode(*fields))
    for number, value in fields:
        of_number = [one for key, one in fields if key == number]
        if all(isinstance(item, int) for item in of_number):
            assert found.numbers(number) == of_number
        elif all(isinstance(item, bytes) for item in of_number):
            assert found.all_data(number) == of_number
        assert found.has(number), value


def test_a_number_below_zero_is_written_as_java_writes_it() -> None:
    assert encode((3, -1)) == bytes.fromhex("18 ffffffffffffffffff 01")


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_are_refused(data: bytes) -> None:
    with contextlib.suppress(NotHadoop):
        Fields(data)


def test_a_message_that_is_cut_inside_a_field_is_refused() -> None:
    data = encode((1, "abc"), (2, 300), (3, b"x"))
    whole = {0, 5, 8, len(data)}  # where a field ends
    for end in set(range(len(data))) - whole:
        with pytest.raises(NotHadoop):
            Fields(data[:end])


@pytest.mark.parametrize(
    "data",
    [
        b"\x08" + b"\xff" * 11,  # a number that is too long
        b"\x0b\x00",  # a group
        b"\x00\x01",  # no number of a field
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f",  # a length without end
        b"\x08\x01" * (MAX_FIELDS + 1),
    ],
)
def test_invalid_messages_are_refused(data: bytes) -> None:
    with pytest.raises(NotHadoop):
        Fields(data)


# ---- the NameNode ----


def test_a_listing_has_the_files_with_their_blocks() -> None:
    found = client_protocol.parse_listing(Fields(listing(status(), status("d", f1=1, f12=None), remaining=7)), {})
    assert found is not None
    file, directory = found.entries
    assert (file.name, file.size_bytes, file.mode, file.owner, file.inode_id) == ("part-0", 5, 0o644, "tony", 16386)
    assert file.has_acl
    assert not file.is_encrypted
    assert not file.ec_policy
    assert file.blocks is not None
    (block,) = file.blocks.blocks
    assert block.block == HdfsBlock("BP-1", 1073741825, 1001, 5)
    assert [node.name for node in block.nodes] == ["10.0.0.1:9866"]
    assert not block.has_token
    assert directory.kind == client_protocol.DIRECTORY
    assert directory.blocks is None
    assert found.remaining == 7


def test_flags_of_releases_before_3_are_in_the_permissions() -> None:
    old = status(f18=None, f4=encode((1, 0o644 | 1 << 12 | 1 << 13)))
    found = client_protocol.parse_status(old, {})
    assert (found.mode, found.has_acl, found.is_encrypted, found.ec_policy) == (0o644, True, True, "")


def test_an_erasure_coding_policy_has_a_name() -> None:
    built_in = client_protocol.parse_status(status(f17=encode((4, 2)), f18=4), {})
    assert built_in.ec_policy == "RS-3-2-1024k"
    own = client_protocol.parse_status(status(f17=encode((1, "XOR-9"), (4, 65)), f18=4), {})
    assert own.ec_policy == "XOR-9"
    assert client_protocol.parse_status(status(f18=4), {}).ec_policy == "?"


def test_encrypted_or_striped_files_are_not_plain() -> None:
    assert client_protocol.parse_blocks(blocks(located()), {}).is_plain
    for field in (6, 7):
        assert not client_protocol.parse_blocks(blocks(located()) + encode((field, b"")), {}).is_plain
    assert not client_protocol.parse_blocks(blocks(located() + encode((9, b"\0"))), {}).is_plain


@given(st.integers(1, 10), st.integers(1, 50), st.integers(0, 3000))
def test_all_of_a_group_of_blocks_is_in_its_blocks(count: int, cell: int, size: int) -> None:
    striping, sizes = Striping(count, cell), [0] * count
    for offset in range(size):
        sizes[offset // cell % count] += 1
    assert [striping.size_in(index, size) for index in range(count)] == sizes


def test_a_block_of_a_group_is_at_the_datanode_that_has_its_number() -> None:
    group = located(0, 300, datanode("10.0.0.1"), datanode("10.0.0.2")) + encode(
        (9, b"\x02\x00"), (10, b"a"), (10, b"b")
    )
    own = encode((2, encode((1, "rs"), (2, 2), (3, 1))), (3, 100), (4, 65))
    found = client_protocol.parse_blocks(blocks(group) + encode((7, own)), {})
    assert (found.is_plain, found.striping) == (False, Striping(2, 100))
    block = found.blocks[0].of_group(0, Striping(2, 100))
    assert block is not None
    assert (block.nodes[0].host, block.token, block.block) == (
        "10.0.0.2",
        b"b",
        HdfsBlock("BP-1", 1073741825, 1001, 200),
    )
    assert found.blocks[0].of_group(1, Striping(2, 100)) is None


def test_the_striping_of_a_policy_that_is_named_by_its_number_is_known() -> None:
    group = located() + encode((9, b"\0"))
    for number, count in ((1, 6), (2, 3), (3, 6), (4, 2), (5, 10)):
        found = client_protocol.parse_blocks(blocks(group) + encode((7, encode((4, number)))), {})
        assert found.striping == Striping(count, 1 << 20)
    assert client_protocol.parse_blocks(blocks(group) + encode((7, encode((4, 99)))), {}).striping is None


def test_a_token_is_passed_on_as_it_is() -> None:
    token = encode((1, b"\x00\xff id"), (2, b"password"), (3, "HDFS_BLOCK_TOKEN"), (4, ""))
    (block,) = client_protocol.parse_blocks(blocks(located(token=token)), {}).blocks
    assert block.has_token
    operation = packets.read_operation(block, "c", 0, 5)
    assert token in operation


PARSERS: dict[str, tuple[Callable[[Fields], Any], bytes]] = {
    "listing": (lambda message: client_protocol.parse_listing(message, {}), listing(status(), status("b"))),
    "file info": (client_protocol.parse_file_info, encode((1, status()))),
    "blocks": (client_protocol.parse_block_locations, encode((1, blocks(located())))),
    "groups": (
        client_protocol.parse_block_locations,
        encode((1, blocks(located() + encode((9, b"\0"), (10, TOKEN))) + encode((7, encode((4, 2)))))),
    ),
    "added block": (client_protocol.parse_added_block, encode((1, located()))),
    "defaults": (client_protocol.parse_server_defaults, defaults()),
    "flag": (client_protocol.parse_flag, encode((1, 1))),
}


@pytest.mark.parametrize("name", PARSERS)
def test_an_answer_that_is_spoiled_or_cut_at_any_byte_is_understood_or_refused(name: str) -> None:
    parse, data = PARSERS[name]
    parse(Fields(data))
    spoiled = [data[:end] for end in range(len(data))]
    for offset in range(len(data)):
        spoiled += [
            data[:offset] + bytes([data[offset] ^ bits]) + data[offset + 1 :] for bits in (1, 0x80, 0xFF, 2, 0x10)
        ]
    for item in spoiled:
        with contextlib.suppress(NotHadoop):
            parse(Fields(item))


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("file info", encode((1, status(f1=4)))),  # no kind of file
        ("file info", encode((1, status(f3=1 << 50)))),  # longer than any file
        ("file info", encode((1, status(f3=-1)))),
        ("file info", encode((1, status(f2=b"\xff")))),
        ("file info", encode((1, status(f13=None)))),
        ("blocks", encode((1, blocks(located(size=1 << 43))))),
        ("blocks", encode((1, blocks(located(offset=-1))))),
        ("blocks", encode((1, blocks(located(0, 5), located(4, 5))))),  # they overlap
        ("blocks", encode((1, blocks(located(0, 5, datanode("evil.example.com")))))),  # no address
        ("blocks", encode((1, blocks(located(0, 5, datanode(port=0)))))),
        ("blocks", encode((1, blocks(located(0, 5, datanode(port=1 << 16)))))),
        ("blocks", encode((1, blocks(located(0, 5, *[datanode()] * 513))))),
        ("defaults", defaults(f1=0)),
        ("defaults", defaults(f2=0)),
        ("defaults", defaults(f1=1000)),  # no multiple of the bytes of a checksum
        ("defaults", defaults(f4=0)),
        ("flag", b""),
    ],
)
def test_an_invalid_namenode_answer_is_refused(name: str, data: bytes) -> None:
    with pytest.raises(NotHadoop):
        PARSERS[name][0](Fields(data))


# ---- DataNodes ----


@given(st.integers(0, 1 << 50), st.integers(-1, 1 << 50), st.booleans(), st.integers(0, packets.MAX_PACKET_BYTES - 4))
def test_a_packets_header_is_read_as_it_is_written(offset: int, number: int, is_last: bool, count: int) -> None:
    header = PacketHeader(offset, number, is_last, count)
    data = packets.encode_packet_header(header, 0)
    header_bytes, rest = packets.packet_size(data[:6])
    assert rest == count
    assert packets.parse_packet_header(data[6 : 6 + header_bytes]) == header


def test_a_packets_header_is_hadoops_byte_for_byte() -> None:
    data = packets.encode_packet_header(PacketHeader(65536, 1, False, 512), 4)
    assert data == bytes.fromhex("00000208 0019 09 0000010000000000 11 0100000000000000 1800 25 00020000")


@pytest.mark.parametrize("prefix", ["000000030019", "010000010019", "ffffffff0019", "000002080000", "000002080401"])
def test_a_packet_of_a_size_that_no_datanode_sends_is_refused(prefix: str) -> None:
    with pytest.raises(NotHadoop):
        packets.packet_size(bytes.fromhex(prefix))


def test_an_acknowledgement_has_the_status_of_each_datanode() -> None:
    assert packets.parse_ack(encode((1, 4), (2, 0), (2, 1))) == packets.Ack(2, (0, 1))
    assert packets.parse_ack(encode((1, 1), (2, 0))).number == packets.HEARTBEAT
    # A DataNode that restarts says so in a flag alone.
    assert packets.parse_ack(encode((1, 4), (2, 0), (4, b"\x28"))).statuses == (8,)


def test_a_refusal_names_the_datanode_of_the_pipeline() -> None:
    refused = packets.parse_answer(encode((1, 1), (2, "10.0.0.2:9866"), (5, "no disk")))
    assert refused == BlockRefusal(1, "no disk", "10.0.0.2:9866")
    assert isinstance(packets.parse_answer(encode((1, 0), (2, ""))), Fields)


@pytest.mark.parametrize(("message", "hostname"), [("dn1.example", "dn1.example"), ("", ""), ("a b\n", "")])
def test_an_invalid_host_name_of_a_datanode_is_dropped(message: str, hostname: str) -> None:
    info = encode((1, encode((1, "10.0.0.1"), (2, message), (4, 9866))))
    found = client_protocol._node(info, {})
    assert (found.host, found.port, found.hostname) == ("10.0.0.1", 9866, hostname)
