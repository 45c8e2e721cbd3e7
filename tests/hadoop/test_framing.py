"""Frames of Hadoop RPC: golden bytes, and streams cut and spoiled anywhere."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlapp.cluster.yarn.proto import yarn_pb2
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
from dlapp.hadoop.proto import rpc_pb2
from dlapp.hadoop.wire import encode
from tests.services.protoc import DLAPP, PACKAGES, sources_digest

CLIENT = bytes(range(16))
MESSAGES = st.lists(st.binary(max_size=300), max_size=4)


def header(call_id: int, retries: int) -> bytes:
    return rpc_messages.request_header(call_id, CLIENT, retries=retries)


@given(st.integers(-33, 2**31 - 1), st.integers(-1, 100))
def test_the_header_of_a_call_is_protobufs(call_id: int, retries: int) -> None:
    assert (
        header(call_id, retries)
        == rpc_pb2.RpcRequestHeaderProto(
            rpcKind=rpc_pb2.RPC_PROTOCOL_BUFFER,
            rpcOp=rpc_pb2.RpcRequestHeaderProto.RPC_FINAL_PACKET,
            callId=call_id,
            clientId=CLIENT,
            retryCount=retries,
        ).SerializeToString()
    )


@given(st.integers(-33, 2**31 - 1), st.integers(0, 2), st.text(max_size=20), st.text(max_size=20))
def test_the_header_of_an_answer_is_read_as_protobuf_reads_it(call_id: int, status: int, kind: str, text: str) -> None:
    answer: Any = rpc_pb2.RpcResponseHeaderProto(callId=call_id & 0xFFFFFFFF, exceptionClassName=kind, errorMsg=text)
    answer.status = status
    assert rpc_messages.parse_answer_header(answer.SerializeToString()) == (call_id, status, kind, text, None)


@pytest.mark.parametrize(("number", "state_id"), [(0, 0), ((1 << 63) - 1, (1 << 63) - 1), (-12345, None)])
def test_the_state_of_a_namenode_is_a_number_from_0_on(number: int, state_id: int | None) -> None:
    answer = rpc_pb2.RpcResponseHeaderProto(callId=1, status=rpc_pb2.RpcResponseHeaderProto.SUCCESS)
    # The field is none of the proto files.
    read = rpc_messages.parse_answer_header(answer.SerializeToString() + encode((9, number)))
    assert read.state_id == state_id


def test_the_state_that_an_observer_must_have_is_in_the_header_of_a_call() -> None:
    plain = header(7, 0)
    assert rpc_messages.request_header(7, CLIENT, retries=0, state_id=300) == plain + b"\x40\xac\x02"


@given(st.lists(st.tuples(st.text(max_size=9), st.text(max_size=9), st.none() | st.text(max_size=9)), max_size=4))
def test_an_offer_of_a_server_is_chosen_as_it_was_made_but_for_its_challenge(
    offers: list[tuple[str, str, str | None]],
) -> None:
    offer = rpc_pb2.RpcSaslProto(state=rpc_pb2.RpcSaslProto.NEGOTIATE)
    for method, mechanism, protocol in offers:
        offer.auths.add(method=method, mechanism=mechanism, protocol=protocol, serverId="", challenge=b"challenge")
    read = rpc_messages.parse_sasl_message(offer.SerializeToString())
    assert (read.state, len(read.auths)) == (rpc_messages.NEGOTIATE, len(offers))
    for one, made in zip(read.auths, offer.auths, strict=True):
        assert one.challenge == b"challenge"
        made.ClearField("challenge")
        chosen = rpc_pb2.RpcSaslProto(state=rpc_pb2.RpcSaslProto.INITIATE, token=b"response", auths=[made])
        assert rpc_messages.sasl_message(rpc_messages.INITIATE, b"response", one) == chosen.SerializeToString()


@pytest.mark.parametrize("name", PACKAGES)
def test_generated_descriptors_match_the_proto_files(name: str) -> None:
    package = ".".join(PACKAGES[name].relative_to(DLAPP.parent).parts)
    made = importlib.import_module(f"{package}.descriptors")

    assert sources_digest(name) == made.SOURCES_SHA256, "run python -m tests.services.protoc"


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
    answer = rpc_pb2.RpcResponseHeaderProto.FromString(head)
    assert (answer.callId, answer.status, answer.clientId) == (1, rpc_pb2.RpcResponseHeaderProto.SUCCESS, CLIENT)
    application = yarn_pb2.ApplicationIdProto.FromString(body[2:11])
    assert (application.id, application.cluster_timestamp) == (7, 1700000000000)
    maximum = yarn_pb2.ResourceProto.FromString(body[13:])
    assert (maximum.memory, maximum.virtual_cores) == (8192, 4)


@pytest.mark.parametrize(("wire", "call_id"), [(0, 0), (7, 7), (4294967295, -1), (4294967293, -3), (4294967263, -33)])
def test_the_call_id_of_an_answer_is_a_plain_number(wire: int, call_id: int) -> None:
    assert signed_call_id(wire) == call_id


@given(st.integers(0, 2**63 - 1))
def test_a_varint_is_protobufs(value: int) -> None:
    message = yarn_pb2.ApplicationIdProto(cluster_timestamp=value).SerializeToString()
    assert b"\x10" + encode_varint(value) == message


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


@given(st.binary(min_size=1, max_size=50))
def test_unknown_fields_and_enum_values_survive(extra: bytes) -> None:
    # Field 900, bytes: what a newer server may add. 99: a state that it may have.
    newer = b"\xa2\x38" + encode_varint(len(extra)) + extra
    node = yarn_pb2.NodeReportProto.FromString(b"\x38\x63" + b"\x1a\x04rack" + newer)
    assert node.rackName == "rack"
    assert not node.HasField("node_state")
    assert newer in node.SerializeToString()
    assert b"\x38\x63" in node.SerializeToString()
