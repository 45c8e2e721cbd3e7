"""Test that what servers of Hadoop and foreign files say is in bounds, or is refused in one error of ours."""

from __future__ import annotations

import json
import struct
import tracemalloc
import zlib
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from dlapp.cluster.yarn import staging
from dlapp.cluster.yarn.am_plan import ALIAS, AmPlan
from dlapp.cluster.yarn.client import rest
from dlapp.cluster.yarn.client.cleanup import settle
from dlapp.cluster.yarn.client.rest import EndedApplication
from dlapp.cluster.yarn.client.timeline import history
from dlapp.cluster.yarn.logs import pages, tfile
from dlapp.errors import ConfigError, DlappError, NotFound
from dlapp.hadoop.configuration import HadoopConfiguration, parse_properties
from dlapp.hadoop.errors import HadoopError, NotHadoop
from dlapp.hadoop.framing import MAX_HANDSHAKE_FRAME, FrameReader, split_frame
from dlapp.hadoop.sasl import DigestMd5
from dlapp.hadoop.tokens import Credentials, Token
from dlapp.values.ids import ApplicationId
from dlapp.values.report import State

MAX_BYTES = 64 << 20
LAUGHS = b"<!DOCTYPE c [<!ENTITY a 'ha'>" + b"".join(
    b"<!ENTITY a%d '%s'>" % (n, b"&a%d;" % (n - 1) * 10) for n in range(1, 10)
)


def bounded(work: Callable[[], Any], *errors: type[Exception]) -> None:
    """Check that it ends in one of these errors, or in nothing, and needs little memory."""
    tracemalloc.start()
    try:
        if errors:
            with pytest.raises(errors):
                work()
        else:
            work()
        assert tracemalloc.get_traced_memory()[1] < MAX_BYTES
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "data",
    [
        LAUGHS + b"]><configuration>&a9;</configuration>",
        b"<!DOCTYPE c [<!ENTITY a SYSTEM 'file:///etc/passwd'>]><configuration>&a;</configuration>",
        b"<!DOCTYPE c [<!ENTITY % a SYSTEM 'http://127.0.0.1:1/'>%a;]><configuration/>",
    ],
    ids=["a billion laughs", "a file", "a parameter"],
)
def test_a_site_file_declares_no_entities(data: bytes) -> None:
    bounded(lambda: parse_properties(data, "yarn-site.xml"), ConfigError)


def test_a_property_does_not_grow_without_end() -> None:
    doubled = {f"p{n}": f"${{p{n + 1}}}${{p{n + 1}}}" for n in range(40)}
    bounded(lambda: HadoopConfiguration(doubled, "here").get("p0"), ConfigError)


@pytest.mark.proves("hadoop-limits")
def test_a_frame_of_a_million_messages_is_refused() -> None:
    bounded(lambda: split_frame(bytes(1_000_000)), NotHadoop)


def test_an_unauthenticated_server_may_send_only_small_frames() -> None:
    reader = FrameReader(MAX_HANDSHAKE_FRAME)
    reader.feed(struct.pack("!I", MAX_HANDSHAKE_FRAME + 1))
    with pytest.raises(NotHadoop, match="announces a frame"):
        reader.next()


@pytest.mark.parametrize(
    "challenge",
    [
        b'nonce="' + b"x" * 5000 + b'"',
        b'nonce="a\\"b"',
        b'nonce="ab",realm="a\\\\"',
        b'nonce="a\nb"',
        b'nonce="' + b"\\" * 1000,
        b"=" * 2000,
    ],
)
def test_a_challenge_that_cannot_be_quoted_is_refused(challenge: bytes) -> None:
    bounded(lambda: DigestMd5(Token(b"i", b"p", "k")).respond(challenge), NotHadoop)


@pytest.mark.parametrize(
    "data",
    [
        b"HDTS\0\x8c\x7f\xff\xff\xff",
        b"HDTS\0\x88\x7f\xff\xff\xff\xff\xff\xff\xff",
        b"HDTS\0\x01\x80",
        b"HDTS\1" + b"\x0b" * 100_000,
        b"HDTS\1\xff\xff\xff\xff\x7f",
        b"HDTS\0" + b"\x7f" * 100,
    ],
)
def test_credentials_with_lengths_that_are_none_are_refused(data: bytes) -> None:
    bounded(lambda: Credentials.decode(data), HadoopError)


@pytest.mark.parametrize("plan", [b"[" * 100_000, b"{}", b"null", b"\xff", b'{"submission":' * 50_000])
def test_a_plan_that_is_none_is_refused_in_a_line(plan: bytes) -> None:
    bounded(lambda: AmPlan.from_credentials(Credentials({}, {ALIAS: plan})), HadoopError)


# ---- collected logs ----


def vlong(value: int) -> bytes:
    """TFile's number, in its longest form."""
    return b"\x87" + value.to_bytes(8, "big", signed=True)


def tfile_of(
    index: bytes, compression: bytes = b"none", raw: int | None = None, block_offset: int | None = None
) -> bytes:
    """A file whose index of blocks is this."""
    meta = vlong(1) + vlong(17) + b"data:BCFile.index" + vlong(len(compression)) + compression
    offset = 16 if block_offset is None else block_offset
    meta += vlong(offset) + vlong(len(index)) + vlong(len(index) if raw is None else raw)
    return tfile.MAGIC + index + meta + struct.pack("!QHH16s", 16 + len(index), 1, 0, tfile.MAGIC)


def none_and(count: int, *numbers: int) -> bytes:
    return vlong(4) + b"none" + vlong(count) + b"".join(map(vlong, numbers))


@cache
def bomb() -> bytes:
    """Compress 150 MB to few; not when this module is loaded, as it is by each worker."""
    return zlib.compress(none_and(50_000_000) + bytes(150_000_000), 9)


@pytest.mark.parametrize(
    "make",
    [
        lambda: tfile_of(none_and(50_000_000)),
        lambda: tfile_of(bomb(), b"gz", raw=150_000_030),
        lambda: tfile_of(bomb(), b"gz", raw=1 << 62),
        lambda: tfile_of(none_and(1, -1, 10, 10)),
        lambda: tfile_of(none_and(1, 10, -1, 10)),
        lambda: tfile_of(none_and(1, 10, 1 << 62, 10)),
        lambda: tfile_of(none_and(1, 1 << 62, 1, 10)),
        lambda: tfile_of(none_and(1, 16, 10, -1)),
        lambda: tfile_of(none_and(-1)),
        lambda: tfile_of(b"", block_offset=-5),
        lambda: tfile_of(b"", block_offset=1 << 62),
    ],
)
def test_a_file_of_collected_logs_with_impossible_numbers_is_refused(make: Callable[[], bytes]) -> None:
    data = make()

    def read_at(offset: int, count: int) -> bytes:
        assert offset >= 0
        assert count >= 0
        return data[offset : offset + count]

    bounded(lambda: tfile.log_of(read_at, len(data), "container_1", "stdout"), tfile.NotReadable)


@pytest.mark.parametrize("length", ["9" * 5000, "٣", "-1", "1e3", ""])
def test_the_length_of_a_collected_log_is_a_number_of_few_digits(length: str) -> None:
    def utf(text: str) -> bytes:
        return struct.pack("!H", len(text.encode())) + text.encode()

    value = utf("stdout") + utf(length)
    entry = vlong(len(utf("container_1"))) + utf("container_1") + vlong(len(value)) + value
    index = none_and(1, 16, len(entry), len(entry))
    meta = vlong(1) + vlong(17) + b"data:BCFile.index" + vlong(4) + b"none"
    meta += vlong(16 + len(entry)) + vlong(len(index)) + vlong(len(index))
    tail = struct.pack("!QHH16s", 16 + len(entry) + len(index), 1, 0, tfile.MAGIC)
    data = tfile.MAGIC + entry + index + meta + tail
    with pytest.raises(tfile.NotReadable, match="the length of 'stdout'"):
        tfile.log_of(lambda offset, count: data[offset : offset + count], len(data), "container_1", "stdout")


@pytest.mark.parametrize(
    "url", ["", "http://node:8042", "http://node:8042/node/containerlogs/c", "http://[", "file:///etc/passwd", "a/b/c"]
)
def test_a_log_address_of_another_form_is_not_found(url: str) -> None:
    with pytest.raises(NotFound, match="is not a page of a log"):
        pages.rest_url(url)


def test_a_log_page_length_of_too_many_digits_is_refused() -> None:
    page = b"LogType:stdout\nLogLength:%s\nLogContents:\nx"
    assert pages.read_page(b"\n" + page % (b"9" * 5000))[0] == 0
    assert pages.read_page(b"\n" + page % b"1") == (1, b"x")


# ---- REST ----


@pytest.mark.parametrize(
    "raw",
    [
        {"finishedTime": 1e400},
        {"startedTime": "9" * 5000},
        {"user": {"a": 1}, "name": [], "queue": None},
        {"applicationTags": {}, "priority": "NaN"},
    ],
)
def test_a_malformed_report_is_read_as_far_as_possible(raw: dict[str, Any]) -> None:
    found = rest._report({"id": "application_1700000000000_0001", **raw})
    assert str(found.application_id) == "application_1700000000000_0001"


@pytest.mark.parametrize("raw", [{"totalResource": 7}, {"id": None, "totalResource": []}])
def test_a_malformed_node_is_read_as_far_as_possible(raw: dict[str, Any]) -> None:
    rest._node(raw)


@pytest.mark.parametrize("version", ["9" * 5000 + ".1", "٣.٣", "", "3", "3.x", "-1.2"])
def test_a_version_that_is_none_is_zero(version: str) -> None:
    assert rest.version_of(version) == (0, 0)


@pytest.mark.parametrize("date", ["", "x" * 10_000, "Thu, 99 Jan 99999 99:99:99 GMT", "1", ", ,"])
def test_a_date_that_is_none_is_no_date(date: str) -> None:
    assert rest._seconds_of(date) is None


def test_an_answer_nested_too_deeply_is_no_answer() -> None:
    from dlapp.values.serialization import parse_json

    for data in (b"[" * 1_000_000, b'{"a":' * 1_000_000):
        bounded(lambda data=data: parse_json(data), ValueError)  # type: ignore[misc]
    assert RecursionError in history.ODD


OUTPUT = {"output_path": "out", "target": "hdfs://nn/a"}


class Staged:
    """A staging directory with files of any content."""

    home = "hdfs://nn/user/tony"

    def __init__(self, **files: object) -> None:
        self._files = {f"{name}.json": value for name, value in files.items()}

    def status(self, location: str) -> object | None:
        return object() if location.endswith("application_1700000000000_0007") else None

    def read(self, location: str, *, max_bytes: int) -> bytes:
        name = location.rpartition("/")[2]
        if name not in self._files:
            raise NotFound(location)
        value = self._files[name]
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        if len(data) > max_bytes:
            raise DlappError(f"{location} is larger than {max_bytes} bytes")
        return data

    def settle_outputs(self, *_: object, **__: object) -> object:
        raise AssertionError("nothing is committed by this")


@pytest.mark.parametrize(
    "files",
    [
        {"submission": []},
        {"submission": {"spec": 5}},
        {"submission": {"spec": {"outputs": 5}}},
        {"submission": {"spec": {"outputs": [5]}}},
        {"submission": {"spec": {"outputs": [{}]}}},
        {"submission": {"spec": {"outputs": [OUTPUT]}}, "commit": b"[" * 100_000},
        {"submission": {"spec": {"outputs": [OUTPUT]}}, "commit": {"outputs": [{"parts": 1}]}},
        {"submission": {"spec": {"outputs": [OUTPUT]}}, "commit": []},
        {"submission": b" " * (staging.MAX_SUBMISSION_BYTES + 1)},
        {
            "submission": {"spec": {"outputs": [OUTPUT]}},
            "commit": b" " * (staging.MAX_CLAIM_BYTES + 1),
        },
    ],
)
def test_a_staging_directory_with_other_content_is_one_error(files: dict[str, object]) -> None:
    application_id = ApplicationId(1_700_000_000_000, 7)
    with pytest.raises(DlappError):
        settle(Staged(**files), application_id, EndedApplication(State.KILLED, 60.0))  # type: ignore[arg-type]
