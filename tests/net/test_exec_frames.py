"""Frames of exec sessions: whole, in pieces, and none."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from dlapp.errors import UsageError
from dlapp.net import exec_frames as frames
from dlapp.net.exec_frames import ExecEnd, ExecRequest, FrameStream, StreamClosed


@pytest.fixture
def pair() -> Iterator[tuple[FrameStream, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield FrameStream(ours), theirs


def test_a_frame_that_arrives_byte_by_byte_is_complete(pair: tuple[FrameStream, socket.socket]) -> None:
    stream, other = pair
    found = []
    for byte in b"O\0\0\0\3abcE\0\0\0\0":
        other.sendall(bytes([byte]))
        found += stream.receive()
    assert found == [(frames.OUTPUT, b"abc"), (frames.INPUT_END, b"")]


def test_a_large_body_is_sent_in_several_frames_with_back_pressure(
    pair: tuple[FrameStream, socket.socket],
) -> None:
    stream, other = pair
    body = bytes(range(256)) * 4096
    stream.send(frames.OUTPUT, body)
    assert stream.unsent_bytes > 0
    reader, taken = FrameStream(other), b""
    while len(taken) < len(body):
        stream.flush()
        for kind, piece in reader.receive():
            assert kind == frames.OUTPUT
            assert len(piece) <= frames.MAX_BODY_BYTES
            taken += piece
    assert taken == body
    assert stream.unsent_bytes == 0


@pytest.mark.parametrize("data", [b"?\0\0\0\0", b"O\0\1\0\1", b"\0" * 5, b"HTTP/1.1 200 OK"])
def test_an_invalid_frame_ends_the_stream(pair: tuple[FrameStream, socket.socket], data: bytes) -> None:
    stream, other = pair
    other.sendall(data)
    with pytest.raises(StreamClosed):
        stream.receive()


def test_a_trial_frame_is_read_as_written_and_others_are_refused() -> None:
    assert frames.read_trial(frames.trial_body(9999, 3)) == (9999, 3)
    for body in (b"", b"\0" * 7, b"\0" * 9):
        with pytest.raises(StreamClosed):
            frames.read_trial(body)


def test_the_end_of_the_other_side_is_seen(pair: tuple[FrameStream, socket.socket]) -> None:
    stream, other = pair
    assert stream.receive() == []
    other.close()
    with pytest.raises(StreamClosed):
        stream.receive()


def test_an_end_keeps_its_code_and_message() -> None:
    assert frames.read_end(frames.end_body(ExecEnd(137, "it was killed"))) == ExecEnd(137, "it was killed")


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"code": 256, "message": ""}', b'{"code": 0, "message": 1}'])
def test_an_invalid_end_frame_is_refused(body: bytes) -> None:
    with pytest.raises(StreamClosed):
        frames.read_end(body)


@pytest.mark.parametrize(
    "fields",
    [
        {"command": ()},
        {"command": ("",)},
        {"command": ("a\0b",)},
        {"command": ("x" * frames.MAX_COMMAND_BYTES,)},
        {"command": ("a",), "rows": -1},
        {"command": ("a",), "columns": 1 << 16},
        {"command": ("a",), "term": "x\ny"},
        {"command": ("a",), "term": "x" * 65},
    ],
)
def test_a_request_that_cannot_be_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        ExecRequest(**fields)  # type: ignore[arg-type]
