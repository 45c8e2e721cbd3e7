"""Collected logs, read out of files as Hadoop writes them."""

from __future__ import annotations

import contextlib
import struct
import zlib
from collections.abc import Mapping
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlapp.cluster.yarn.logs.tfile import MAGIC, NotReadable, log_of

FIRST, SECOND = (f"container_1700000000000_0042_01_00000{number}" for number in (1, 2))


def number(value: int) -> bytes:
    """TFile's variable integer. Source: org.apache.hadoop.io.file.tfile.Utils.writeVLong."""
    if -32 <= value < 128:
        return struct.pack("!b", value)
    folded = ~value if value < 0 else value
    for bits, tail, low in ((12, 1, -52), (19, 2, -88), (26, 3, -112)):
        if folded < 1 << bits:
            return struct.pack("!b", (value >> 8 * tail) + low) + (value & ((1 << 8 * tail) - 1)).to_bytes(tail, "big")
    size = folded.bit_length() // 8 + 1
    return struct.pack("!b", size - 129) + value.to_bytes(size, "big", signed=True)


def length_prefixed(text: str) -> bytes:
    return struct.pack("!H", len(text.encode())) + text.encode()


def short(text: str) -> bytes:
    return number(len(text.encode())) + text.encode()


def entry(key: str, value: bytes, chunk: int) -> bytes:
    places = [*range(0, len(value), chunk), len(value)]
    parts = [value[a:b] for a, b in pairwise(places)] or [b""]
    chunks = b"".join(number(-len(part)) + part for part in parts[:-1]) + number(len(parts[-1])) + parts[-1]
    return number(len(length_prefixed(key))) + length_prefixed(key) + chunks


def written(
    logs: Mapping[str, Mapping[str, bytes]], *, chunk: int = 1 << 20, compression: str = "none", blocks: int = 1
) -> bytes:
    """A file of collected logs: container -> log file -> content."""
    values = {
        name: b"".join(length_prefixed(f) + length_prefixed(str(len(d))) + d for f, d in files.items())
        for name, files in logs.items()
    }
    entries = [
        entry(key, value, chunk)
        for key, value in {
            "VERSION": struct.pack("!i", 1),
            "APPLICATION_OWNER": length_prefixed("tony"),
            **values,
        }.items()
    ]
    size = max(1, -(-len(entries) // blocks))
    data, index = MAGIC, []
    squeezed = zlib.compress if compression == "gz" else bytes
    for raw in (b"".join(entries[place : place + size]) for place in range(0, len(entries), size)):
        stored = squeezed(raw)
        index.append(number(len(data)) + number(len(stored)) + number(len(raw)))
        data += stored
    raw = short(compression) + number(len(index)) + b"".join(index)
    stored, offset = squeezed(raw), len(data)
    metas = number(2) + short("data:TFile.meta") + short("none") + 3 * number(0)
    metas += short("data:BCFile.index") + short(compression) + number(offset) + number(len(stored)) + number(len(raw))
    return data + stored + metas + struct.pack("!QHH", offset + len(stored), 1, 0) + MAGIC


def read(data: bytes, container: str, name: str) -> bytes | None:
    found = log_of(lambda offset, count: data[offset : offset + count], len(data), container, name)
    return None if found is None else b"".join(found)


LOGS = {
    FIRST: {"directory.info": b"x" * 300, "stdout": b"", "stderr": b"oh\n"},
    SECOND: {"stdout": bytes(range(256)) * 40, "stderr": b""},
}


@pytest.mark.parametrize("compression", ["none", "gz"])
@pytest.mark.parametrize("chunk", [1, 7, 200, 1 << 20])
def test_each_log_of_each_container_is_found(compression: str, chunk: int) -> None:
    data = written(LOGS, chunk=chunk, compression=compression, blocks=2)
    for container, files in LOGS.items():
        for name, content in files.items():
            assert read(data, container, name) == content
    assert read(data, FIRST, "dlapp.log") is None
    assert read(data, FIRST.replace("0042", "0043"), "stdout") is None


@given(st.integers(-(1 << 62), 1 << 62))
def test_a_number_is_read_as_it_was_written(value: int) -> None:
    from dlapp.cluster.yarn.logs.tfile import _number, _Plain

    data = number(value) + b"\0"
    stream = _Plain(lambda offset, count: data[offset : offset + count], 0, len(data))
    assert _number(stream) == value
    assert stream.take(1) == b"\0"


@given(
    st.dictionaries(st.sampled_from(["stdout", "stderr", "dlapp.log"]), st.binary(max_size=3000), min_size=1),
    st.integers(1, 4000),
    st.sampled_from(["none", "gz"]),
)
def test_any_content_in_any_chunks_is_read_back(files: dict[str, bytes], chunk: int, compression: str) -> None:
    data = written({FIRST: {"x": b"y"}, SECOND: files}, chunk=chunk, compression=compression)
    assert {name: read(data, SECOND, name) for name in files} == files


def test_skipped_entries_are_not_read() -> None:
    logs = {FIRST: {"stdout": b"x" * 10_000_000}, SECOND: {"stdout": b"here"}}
    data, asked = written(logs), 0

    def read_at(offset: int, count: int) -> bytes:
        nonlocal asked
        asked += count
        return data[offset : offset + count]

    found = log_of(read_at, len(data), SECOND, "stdout")
    assert found is not None
    assert b"".join(found) == b"here"
    assert asked < 200_000


@pytest.mark.parametrize("compression", ["none", "gz"])
def test_a_file_that_was_cut_or_harmed_is_an_error_or_right(compression: str) -> None:
    data = written({FIRST: {"stdout": b"abc" * 50}}, chunk=40, compression=compression)
    for offset in range(len(data)):
        for harmed in (data[:offset], data[:offset] + bytes([data[offset] ^ 0x55]) + data[offset + 1 :]):
            with contextlib.suppress(NotReadable):
                read(harmed, FIRST, "stdout")


def test_another_format_is_refused_with_its_name() -> None:
    with pytest.raises(NotReadable, match="indexed format"):
        read(b"x" * 1000, FIRST, "stdout")
    with pytest.raises(NotReadable, match="indexed format"):
        read(b"", FIRST, "stdout")
    with pytest.raises(NotReadable, match="compressed with lzo"):
        read(written(LOGS, compression="lzo"), FIRST, "stdout")
