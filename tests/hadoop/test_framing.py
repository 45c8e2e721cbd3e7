"""Frames of Hadoop RPC: golden bytes, and streams cut and spoiled anywhere."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlapp.hadoop import rpc_messages
from dlapp.hadoop.errors import NotHadoop
from dlapp.hadoop.framing import (
    AUTH_SASL,
    FrameReader,
    encode_frame,
    encode_varint,
    preamble,
    signed_call_id,
    split_frame,
)
from dlapp.hadoop.wire import Fields, encode
from tests.hadoop.rpc_server import answer_header, sasl_offer

CLIENT = bytes(range(16))
MESSAGES = st.lists(st.binary(max_size=300), max_size=4)


def header(call_id: int, retries: int) -> bytes:
    return rpc_messages.request_header(call_id, CLIENT, retries=retries)


@pytest.mark.parametrize(
    ("call_id", "retries", "wire"),
    [
        (-33, -1, "1841 2210 {} 2801"),
        (-3, -1, "1805 2210 {} 2801"),
        (0, 0, "1800 2210 {} 2800"),
        (64, 1, "188001 2210 {} 2802"),
        (2**31 - 1, 100, "18feffffff0f 2210 {} 28c801"),
    ],
)
def test_the_header_of_a_call_is_as_protobuf_encodes_it(call_id: int, retries: int, wire: str) -> None:
    """Encode headers of calls -33 to 2^31 - 1; the bytes are those of protobuf 5.26."""
    assert header(call_id, retries) == bytes.fromhex("08021000" + wire.format(CLIENT.hex()))


@pytest.mark.parametrize(
    ("wire", "answer"),
    [
        ("08dfffffff0f 1000 2200 2a00", (-33, 0, "", "", None)),
        ("0807 1001 2213 6a6176612e696f2e494f457863657074696f6e 2a02 6e6f", (7, 1, "java.io.IOException", "no", None)),
        ("08ffffffff07 1002 2203 ed959c 2a01 78", (2**31 - 1, 2, "한", "x", None)),
    ],
)
def test_the_header_of_an_answer_that_protobuf_encoded_is_decoded(
    wire: str, answer: tuple[int, int, str, str, int | None]
) -> None:
    """Decode headers of answers to the calls -33, 7 and 2^31 - 1; the bytes are those of protobuf 5.26."""
    assert rpc_messages.parse_answer_header(bytes.fromhex(wire)) == answer


@pytest.mark.parametrize(("number", "state_id"), [(0, 0), ((1 << 63) - 1, (1 << 63) - 1), (-12345, None)])
def test_the_state_of_a_namenode_is_a_number_from_0_on(number: int, state_id: int | None) -> None:
    answer = answer_header(1, rpc_messages.SUCCESS) + encode((9, number))
    assert rpc_messages.parse_answer_header(answer).state_id == state_id


def test_the_state_that_an_observer_must_have_is_in_the_header_of_a_call() -> None:
    plain = header(7, 0)
    assert rpc_messages.request_header(7, CLIENT, retries=0, state_id=300) == plain + b"\x40\xac\x02"


@given(st.lists(st.tuples(st.text(max_size=9), st.text(max_size=9), st.none() | st.text(max_size=9)), max_size=4))
def test_an_offer_of_a_server_is_chosen_as_it_was_made_but_for_its_challenge(
    offers: list[tuple[str, str, str | None]],
) -> None:
    made = [
        encode((1, method), (2, mechanism), (3, protocol), (4, ""), (5, "challenge"))
        for method, mechanism, protocol in offers
    ]
    message = encode((2, rpc_messages.NEGOTIATE), *((4, one) for one in made))
    read = rpc_messages.parse_sasl_message(message)
    assert (read.state, len(read.auths)) == (rpc_messages.NEGOTIATE, len(offers))
    for one, (method, mechanism, protocol) in zip(read.auths, offers, strict=True):
        assert one.challenge == b"challenge"
        chosen = encode((1, method), (2, mechanism), (3, protocol), (4, ""))
        expected = encode((2, rpc_messages.INITIATE), (3, "response"), (4, chosen))
        assert rpc_messages.sasl_message(rpc_messages.INITIATE, b"response", one) == expected


def test_an_offer_that_protobuf_encoded_is_chosen_as_protobuf_encodes_it() -> None:
    """Choose each of two offers; the bytes are those of protobuf 5.26."""
    first = "0a05 544f4b454e 120a 4449474553542d4d4435 1a00 2207 64656661756c74"
    second = "0a08 4b45524245524f53 1206 475353415049 1a02 6e6e 2204 686f7374"
    offers = bytes.fromhex(f"1001 2229 {first} 2a09 6368616c6c656e6765 221e {second} 2a00")
    token, other = rpc_messages.parse_sasl_message(offers).auths
    chosen = [rpc_messages.sasl_message(rpc_messages.INITIATE, b"response", one) for one in (token, other)]
    beginning = "1002 1a08 726573706f6e7365"
    assert chosen == [bytes.fromhex(f"{beginning} 221e {first}"), bytes.fromhex(f"{beginning} 221c {second}")]
    assert sasl_offer("TOKEN", "DIGEST-MD5", None) == bytes.fromhex(first)


def test_the_preamble_is_hadoops() -> None:
    assert preamble(AUTH_SASL) == bytes.fromhex("6872706309 00 df")


def test_the_connection_context_is_hadoops_byte_for_byte() -> None:
    context = rpc_messages.connection_context("org.apache.hadoop.yarn.api.ApplicationClientProtocolPB", "alice")
    frame = encode_frame(header(-3, -1), context)
    assert frame == (
        bytes.fromhex("0000005d 1a 0802100018052210")
        + CLIENT
        + bytes.fromhex("2801 41 12070a05616c696365 1a36")
        + b"org.apache.hadoop.yarn.api.ApplicationClientProtocolPB"
    )


def test_a_call_is_hadoops_byte_for_byte() -> None:
    what = rpc_messages.method_header("org.apache.hadoop.yarn.api.ApplicationClientProtocolPB", "getNewApplication")
    assert encode_frame(header(1, -1), what, b"") == (
        bytes.fromhex("0000006a 1a 0802100018022210")
        + CLIENT
        + bytes.fromhex("2801 4d 0a11")
        + b"getNewApplication\x12\x36org.apache.hadoop.yarn.api.ApplicationClientProtocolPB"
        + bytes.fromhex("1801 00")
    )


def test_an_answer_of_hadoop_2_7_is_read() -> None:
    reader = FrameReader()
    reader.feed(
        bytes.fromhex("0000002e 1a 0801100018093a10")
        + CLIENT
        + bytes.fromhex("4001 12 0a090807 1080d095ffbc31 1205088040 1004")
    )
    head, body = split_frame(reader.next() or b"")
    assert rpc_messages.parse_answer_header(head) == (1, rpc_messages.SUCCESS, "", "", None)
    assert Fields(head).data(7) == CLIENT
    answer = Fields(body)  # GetNewApplicationResponseProto
    assert [answer.message(1).signed(1), answer.message(1).signed(2, bits=64)] == [7, 1700000000000]
    assert [answer.message(2).signed(1, bits=64), answer.message(2).signed(2)] == [8192, 4]


@pytest.mark.parametrize(("wire", "call_id"), [(0, 0), (7, 7), (4294967295, -1), (4294967293, -3), (4294967263, -33)])
def test_the_call_id_of_an_answer_is_a_plain_number(wire: int, call_id: int) -> None:
    assert signed_call_id(wire) == call_id


@pytest.mark.parametrize(
    ("value", "wire"),
    [
        *[(0, "00"), (1, "01"), (127, "7f"), (128, "8001"), (300, "ac02"), (2**31, "8080808008")],
        (2**63 - 1, "ffffffffffffffff7f"),
    ],
)
def test_a_varint_is_as_protobuf_encodes_it(value: int, wire: str) -> None:
    """Encode 0 to 2^63 - 1; the bytes are those of protobuf 5.26."""
    assert encode_varint(value).hex() == wire


@given(st.lists(MESSAGES, max_size=5), st.data())
def test_frames_survive_any_cut(frames: list[list[bytes]], data: st.DataObject) -> None:
    stream = b"".join(encode_frame(*messages) for messages in frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    reader, got = FrameReader(), []
    for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        reader.feed(stream[begin:end])
        while (frame := reader.next()) is not None:
            got.append(split_frame(frame))
    assert got == frames
    assert not reader.in_frame


def test_a_frame_cut_at_any_byte_is_no_frame_yet() -> None:
    frame = encode_frame(b"header", b"x" * 200, b"")
    for end in range(len(frame)):
        reader = FrameReader()
        reader.feed(frame[:end])
        assert reader.next() is None
        assert reader.in_frame == (end > 0)


@given(st.binary(max_size=400))
def test_garbage_is_refused_or_incomplete(data: bytes) -> None:
    reader = FrameReader(limit=1000)
    reader.feed(data)
    try:
        while (frame := reader.next()) is not None:
            split_frame(frame)
    except NotHadoop:
        pass


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"HTTP/1.1 404 Not Found\r\n", "answers HTTP"),
        (b"\x15\x03\x03\x00\x02\x02\x46", "answers TLS"),
        (b"\xff\xff\xff\xff\xff\xff\xff\xff", "before 9"),
        (b"\x7f\xff\xff\xff", "frame of 2147483647 bytes"),
    ],
)
def test_another_protocol_is_called_by_its_name(answer: bytes, words: str) -> None:
    reader = FrameReader()
    reader.feed(answer)
    with pytest.raises(NotHadoop, match=words):
        reader.next()
