"""Small archives that become large in memory, or take for ever: each is refused or unpacked within the limits."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import resource
import struct
import tarfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from dlapp.errors import DlappError
from dlapp.storage.archives import unpack as archives
from dlapp.storage.archives.streams import MAX_EXTENDED_BYTES
from dlapp.storage.archives.unpack import ArchiveRefused, unpack_archive

MEMORY_BYTES = 64 << 20
CPU_S = 10
"""A bomb takes minutes or hours without the limits; the machine of a test may be a slow one."""


def header(name: bytes, kind: bytes, size: int) -> bytes:
    info = tarfile.TarInfo("x")
    info.size = size if size < 1 << 33 else 0
    raw = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    raw[0:100] = name.ljust(100, b"\0")[:100]
    raw[156:157] = kind
    if not 0 <= size < 1 << 33:
        raw[124:136] = (0x80 << 88 | size if size >= 0 else (1 << 96) + size).to_bytes(12, "big")
    raw[148:156] = b"        "
    raw[148:156] = b"%06o\0 " % sum(raw)
    return bytes(raw)


def member(kind: bytes, content: bytes, name: bytes = b"x") -> bytes:
    return header(name, kind, len(content)) + content + bytes(-len(content) % 512)


def pax(*records: tuple[bytes, bytes]) -> bytes:
    out = b""
    for key, value in records:
        size = len(key) + len(value) + 3
        while len(b"%d" % size) + len(key) + len(value) + 3 != size:
            size = len(b"%d" % size) + len(key) + len(value) + 3
        out += b"%d %s=%s\n" % (size, key, value)
    return out


FILE = member(b"0", b"hello", b"file")
LONG = MAX_EXTENDED_BYTES + 512


def sparse_without_end() -> bytes:
    block = bytearray(header(b"s", b"S", 0))
    block[482] = 1
    block[148:156] = b"        "
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block) + (b"00000000001\0" * 42 + b"\1" + bytes(7)) * 200_000


def zip_of(count: int, method: int, content: bytes = b"") -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as made:
        for number in range(count):
            made.writestr(f"{number}", content)
    return out.getvalue()


def zip64_that_lies() -> bytes:
    raw = zip_of(1, zipfile.ZIP_STORED, b"hello")
    end = raw.index(b"PK\x05\x06")
    central = raw.index(b"PK\x01\x02")
    zip64 = struct.pack("<4sQHHIIQQQQ", b"PK\x06\x06", 44, 45, 45, 0, 0, 1 << 60, 1 << 60, 1 << 62, central)
    locator = struct.pack("<4sIQI", b"PK\x06\x07", 0, end, 1)
    tail = bytearray(raw[end:])
    tail[8:20] = b"\xff" * 12
    return raw[:end] + zip64 + locator + bytes(tail)


REFUSED: dict[str, Callable[[], bytes]] = {
    "pax header": lambda: gzip.compress(member(b"x", pax((b"comment", b"a" * LONG))) + FILE, 1),
    "global pax header": lambda: gzip.compress(member(b"g", pax((b"comment", b"a" * LONG))) + FILE, 1),
    "many global pax headers": lambda: gzip.compress(
        b"".join(member(b"g", pax((b"k%d" % item, b"a" * 900_000))) for item in range(100)) + FILE, 1
    ),
    "chain of pax headers": lambda: gzip.compress(member(b"x", pax((b"comment", b"a" * 900_000))) * 200 + FILE, 1),
    "long chain of pax headers": lambda: gzip.compress(member(b"x", pax((b"comment", b"a"))) * 5000 + FILE, 1),
    "digits without end": lambda: gzip.compress(member(b"x", b"1" * 1_000_000) + FILE, 1),
    "long name": lambda: gzip.compress(member(b"L", b"a" * LONG) + FILE, 1),
    "long link": lambda: gzip.compress(member(b"K", b"a" * LONG) + FILE, 1),
    "long name of 4 GiB": lambda: gzip.compress(header(b"x", b"L", 1 << 32) + bytes(50_000_000), 1),
    "long name of 8 EiB": lambda: header(b"x", b"L", 1 << 62) + bytes(10_000),
    "negative size": lambda: header(b"x", b"L", -512) + FILE,
    "negative size of a file": lambda: header(b"x", b"0", -512) + FILE,
    "sparse map": lambda: gzip.compress(sparse_without_end(), 1),
    "sparse map of pax": lambda: member(b"x", pax((b"GNU.sparse.map", b"0,1"))) + FILE,
    "deep path": lambda: gzip.compress(member(b"L", b"a/" * 400_000 + b"\0") + FILE, 1),
    "deep path by pax": lambda: gzip.compress(member(b"x", pax((b"path", b"a/" * 300_000))) + FILE, 1),
    "7,000 directories at a depth of 1,900": lambda: gzip.compress(
        b"".join(member(b"L", b"a/" * 1899 + b"%d\0" % number) + header(b"x", b"5", 0) for number in range(7000)), 1
    ),
    "100,000 directories at a depth of 255": lambda: gzip.compress(
        b"".join(
            member(b"L", b"%d/" % number + b"a/" * 254 + b"\0") + header(b"x", b"5", 0) for number in range(100_000)
        ),
        1,
    ),
    "control characters": lambda: member(b"0", b"x", b"\x1b[2J"),
    "xz of 1 GiB of memory": lambda: lzma.compress(
        FILE + bytes(1024), lzma.FORMAT_XZ, filters=[{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 1 << 27}]
    ),
    "zip by bzip2": lambda: zip_of(1, zipfile.ZIP_BZIP2, bytes(100_000_000)),
    "zip by lzma": lambda: zip_of(1, zipfile.ZIP_LZMA, bytes(50_000_000)),
    "zip64 that lies": zip64_that_lies,
    "equal names in a zip": lambda: equal_names(),
    "equal names in a tar": lambda: FILE * 2,
    "zeros after zeros": lambda: gzip.compress(gzip.compress(bytes(10_000_000))),
}

TAKEN: dict[str, Callable[[], bytes]] = {
    "file": lambda: FILE + bytes(1024),
    "gz twice": lambda: gzip.compress(FILE) + gzip.compress(bytes(1024)) + bytes(100),
    "bz2 twice": lambda: bz2.compress(FILE) + bz2.compress(bytes(1024)),
    "xz": lambda: lzma.compress(FILE + bytes(1024)),
    "zeros by bz2": lambda: bz2.compress(member(b"0", bytes(150_000_000), b"zeros") + FILE + bytes(1024), 1),
    "zeros by gz": lambda: gzip.compress(member(b"0", bytes(150_000_000), b"zeros") + FILE + bytes(1024), 1),
    "pax path": lambda: member(b"x", pax((b"path", b"file"), (b"mtime", b"1.5"))) + member(b"0", b"hello"),
    "pax size": lambda: member(b"x", pax((b"size", b"5"), (b"path", b"file"))) + header(b"x", b"0", 0) + FILE[512:],
    "long name": lambda: member(b"L", b"file\0") + member(b"0", b"hello"),
    "stored": lambda: named_zip(zipfile.ZIP_STORED),
    "deflated": lambda: named_zip(zipfile.ZIP_DEFLATED),
}


def equal_names() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as made:
        made.writestr("a", b"1")
        with pytest.warns(UserWarning, match="Duplicate name"):
            made.writestr("a", b"2")
    return out.getvalue()


def named_zip(method: int) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as made:
        made.writestr("file", b"hello")
    return out.getvalue()


def in_a_child(path: Path, into: Path) -> str:
    """Unpack with a limit of memory above what the process has, and of processor time; what was said."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            import lzma  # noqa: F401
            import tarfile  # noqa: F401
            import zipfile  # noqa: F401

            pages = int(Path("/proc/self/statm").read_text().split()[0])
            limit = pages * os.sysconf("SC_PAGE_SIZE") + path.stat().st_size + MEMORY_BYTES
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
            resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + CPU_S,) * 2)
            try:
                unpack_archive(str(path), str(into))
                message = "unpacked"
            except DlappError as error:
                message = f"{type(error).__name__}: {error}"
            except BaseException as error:
                message = f"escaped: {error!r}"
            os.write(write, message.encode()[:4000])
        finally:
            os._exit(0)
    os.close(write)
    with open(read, "rb") as answer:
        message = answer.read().decode()
    os.waitpid(child, 0)
    return message or "ended by the limit of its time"


@pytest.mark.proves("archive-growth")
@pytest.mark.sampled(4)
@pytest.mark.parametrize("case", REFUSED)
def test_a_bomb_is_refused_in_one_line_within_memory_and_time(case: str, tmp_path: Path) -> None:
    path = tmp_path / "archive"
    path.write_bytes(REFUSED[case]())
    answer = in_a_child(path, tmp_path / "into")
    assert answer.startswith(("ArchiveRefused: ", "DlappError: ")), answer
    assert "\n" not in answer
    assert len(answer) < 1000


@pytest.mark.proves("archive-growth")
@pytest.mark.sampled(4)
@pytest.mark.parametrize("case", TAKEN)
def test_an_archive_of_any_compression_is_unpacked_within_memory_and_time(case: str, tmp_path: Path) -> None:
    path = tmp_path / "archive"
    path.write_bytes(TAKEN[case]())
    assert in_a_child(path, tmp_path / "into") == "unpacked"
    assert (tmp_path / "into" / "file").read_text() == "hello"


def test_a_zip_with_more_members_than_its_size_allows_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "z").write_bytes(zip_of(5000, zipfile.ZIP_STORED))
    unpack_archive(str(tmp_path / "z"), str(tmp_path / "into"))
    assert len(os.listdir(tmp_path / "into")) == 5000
    monkeypatch.setattr(archives, "_ZIP_MEMORY_BYTES", 1 << 20)
    with pytest.raises(ArchiveRefused, match="has 5000 members in"):
        unpack_archive(str(tmp_path / "z"), str(tmp_path / "again"))


def test_an_archive_of_more_directories_than_can_be_remembered_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "t").write_bytes(gzip.compress(b"".join(header(b"d/%d" % number, b"5", 0) for number in range(3000))))
    monkeypatch.setattr(archives, "_MAX_REMEMBERED", 1 << 20)
    with pytest.raises(ArchiveRefused, match="too many directories and links"):
        unpack_archive(str(tmp_path / "t"), str(tmp_path / "into"))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("changed", range(0, 700, 7))
def test_any_byte_of_a_zip_may_be_wrong(changed: int, tmp_path: Path) -> None:
    raw = bytearray(zip_of(3, zipfile.ZIP_DEFLATED, b"content" * 20))
    raw[changed % len(raw)] ^= 0xFF
    (tmp_path / "z").write_bytes(raw)
    try:
        unpack_archive(str(tmp_path / "z"), str(tmp_path / "into"))
    except DlappError as error:
        assert "\n" not in str(error)  # noqa: PT017
