"""Samples of tar archives: every form that tar and Python write, and what is damaged or hostile."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import random
import re
import tarfile
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlapp.feed import FeedError, _sample_name, _samples
from tests.fuzz.parsing import limits
from tests.seeds import each_seed
from tests.task.feed.serving import source_of, tar_of

LONG = "d" * 90 + "/" + "e" * 90
BLOCK = 512


def samples(archive: bytes) -> list[dict[str, object]]:
    """Return all samples of an archive."""
    file = source_of(archive)
    try:
        return list(_samples(file, None))
    finally:
        file.finish()


def refusal(archive: bytes) -> str:
    """Return why an archive is refused."""
    with limits(len(archive)), pytest.raises(FeedError) as refused:
        samples(archive)
    return str(refused.value)


def archive_of(members: list[tuple[tarfile.TarInfo, bytes]], format: int = tarfile.USTAR_FORMAT) -> bytes:
    """An archive with these members."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=format) as tar:
        for info, content in members:
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def member(name: str, content: bytes = b"", **fields: object) -> tuple[tarfile.TarInfo, bytes]:
    """A member; ``fields`` of its header come on top."""
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for key, value in fields.items():
        setattr(info, key, value)
    return info, content


def header(name: str, size: bytes, kind: bytes = b"0") -> bytes:
    """A header of POSIX with any size, and its right checksum."""
    fields = name.encode().ljust(100, b"\0") + b"0000644\0" + 2 * b"0000000\0" + size.ljust(12, b"\0")
    fields += b"0".ljust(12, b"\0") + 8 * b" " + kind + bytes(100) + b"ustar\x0000"
    block = fields.ljust(BLOCK, b"\0")
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@each_seed("tar", 5)
def test_archives_of_python_are_read_like_by_python(format: int, seed: int) -> None:
    """Read 30 members of five kinds of name, four of type and six of size."""
    dice = random.Random(seed)
    members = []
    for number in range(30):
        name = dice.choice((f"{number}.bin", f"d/{number}.b", f"{LONG}/{number}.bin", f"ü{number}.bin"))
        kind = dice.choice((tarfile.REGTYPE, tarfile.REGTYPE, tarfile.CONTTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE))
        content = dice.randbytes(dice.choice((0, 1, 511, 512, 513, 4000)))
        members.append(member(name, content if kind in (b"0", b"7") else b"", type=kind, linkname="x", mtime=number))
    archive = archive_of(members, format)
    expected = []
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for item in tar:
            if item.isreg():
                inner = tar.extractfile(item)
                assert inner is not None
                key, _, suffix = item.name.rpartition(".")
                expected.append({"__key__": key, "__url__": "t.tar", suffix: inner.read()})
    assert samples(archive) == expected, f"seed {seed}"


@pytest.mark.parametrize("format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_names_may_be_longer_than_a_header(format: int) -> None:
    name = f"{LONG}/{'f' * 300}"
    (found,) = samples(archive_of([member(f"{name}.txt", b"x")], format))
    assert found == {"__key__": name, "__url__": "t.tar", "txt": b"x"}


@given(st.text("/.aB\n", max_size=12))
def test_samples_have_the_names_of_webdataset(name: str) -> None:
    found = re.fullmatch(r"((?:.*/|)[^.]+)[.]([^/]*)", name, re.DOTALL)
    assert _sample_name(name) == (("", "") if found is None else (found.group(1), found.group(2).lower()))


def test_a_name_of_a_million_slashes_is_parsed_quickly() -> None:
    assert samples(archive_of([member("/" * 1_000_000)], tarfile.PAX_FORMAT)) == []


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress])
def test_an_archive_may_be_compressed(compress: Callable[[bytes], bytes]) -> None:
    whole = tar_of({f"{number}.bin": bytes([number]) * 70_000 for number in range(50)})
    assert samples(compress(whole)) == samples(whole)
    cut = refusal(compress(random.Random(1).randbytes(1) + whole)[:200])
    assert cut.startswith("t.tar is not a tar file, or damaged")


def test_sizes_may_be_of_bytes_as_gnu_writes_large_ones() -> None:
    archive = header("a.bin", b"\x80" + (3).to_bytes(11, "big")) + b"abc".ljust(BLOCK, b"\0") + bytes(2 * BLOCK)
    assert samples(archive) == [{"__key__": "a", "__url__": "t.tar", "bin": b"abc"}]


def test_a_global_header_applies_unless_a_member_overrides_it() -> None:
    def pax(kind: bytes, text: bytes) -> bytes:
        return header("pax", b"%011o" % len(text), kind) + text.ljust(BLOCK, b"\0")

    def file(content: bytes, name: str = "a.bin") -> bytes:
        return header(name, b"0" * 11) + content.ljust(BLOCK, b"\0")

    archive = pax(b"g", b"9 size=2\n") + file(b"ab") + pax(b"x", b"9 size=3\n14 path=b.bin\n") + file(b"cde")
    assert samples(archive + file(b"fg", "c.bin")[:-BLOCK] + b"fg") == [
        {"__key__": key, "__url__": "t.tar", "bin": content}
        for key, content in (("a", b"ab"), ("b", b"cde"), ("c", b"fg"))
    ]


def test_an_archive_of_v7_has_directories_by_their_names() -> None:
    one, directory = (bytearray(header(name, b"0" * 11, b"\0")) for name in ("d/a.bin", "d.x/"))
    for block in (one, directory):
        block[257:265] = bytes(8)
        block[148:156] = b"%06o\0 " % (sum(block[:148]) + sum(block[156:]) + 8 * 32)
    assert samples(bytes(directory + one) + bytes(2 * BLOCK)) == [{"__key__": "d/a", "__url__": "t.tar", "bin": b""}]


WHOLE = tar_of({"a.bin": b"x" * 1000, "b.bin": b"y" * 1000})


@pytest.mark.parametrize(
    ("archive", "why"),
    [
        (b"", "see byte 0 of the archive (its end is missing)"),
        (b"x" * 100, "see byte 0 of the archive (its end is missing)"),
        (b"x" * 1000, "see byte 0 of the archive (no header)"),
        (WHOLE[:1000], "1000 bytes are more than the file has left"),
        (WHOLE[: 3 * BLOCK + 100], "see byte 1536 of the archive (its end is missing)"),
        (WHOLE[: 3 * BLOCK] + b"z" + WHOLE[3 * BLOCK + 1 :], "see byte 1536 of the archive (no header)"),
        (header("a.bin", b"77777777777"), "8589934591 bytes are more than the file has left"),
        (header("a.bin", b"\x80" + b"\xff" * 11), "bytes are more than the file has left"),
        (header("a.bin", b"\xff" * 12), "no header"),
        (header("a.bin", b"-1"), "no header"),
        (header("a.bin", b"0o17"), "no header"),
        (header("a.bin", b"9"), "invalid literal"),
        (header("a.bin", b"1", b"S"), "a sparse file"),
        (header("x", b"4000001", b"L") + bytes(2 << 20), "a name of 1048577 bytes"),
        (header("x", b"77777777777", b"x"), "a name of 8589934591 bytes"),
        (header("x", b"\x80" + b"\xff" * 11, b"g"), "bytes"),
        *(
            (header("x", b"%o" % len(text), b"x") + text.ljust(BLOCK, b"\0") + header("a.bin", b"0"), why)
            for text, why in (
                (b"9 size=x\n", "no number"),
                (b"11 size=-1\n", "no number"),
                (b"99 size=1\n", "no extended header"),
                (b"0 size=1\n", "no extended header"),
                (b"-9 size=1\n", "no number"),
                (b"7 size\n", "no extended header"),
                (b"9 size=12", "no extended header"),
                (b" size=1\n", "no extended header"),
                (b"1" * 30 + b" a=b\n", "no extended header"),
                (b"22 GNU.sparse.major=1\n", "a sparse file"),
                (b"29 size=99999999999999999999\n", "more than the file has left"),
            )
        ),
        (gzip.compress(header("a.bin", b"77777777") + bytes(3000), mtime=0), "its end is missing"),
        (gzip.compress(header("a.bin", b"\x80" + b"\xff" * 11), mtime=0), "a compressed member of "),
        (gzip.compress(header(".hidden", b"\x80" + b"\xff" * 11) + bytes(3000), mtime=0), "its end is missing"),
        (gzip.compress(header("x", b"77777777777", b"L"), mtime=0), "a name of 8589934591 bytes"),
        (gzip.compress(WHOLE, mtime=0)[:50], "t.tar is not a tar file, or damaged"),
        (b"\x1f\x8b" + bytes(100), "t.tar is not a tar file, or damaged"),
        (b"BZh9" + bytes(100), "t.tar is not a tar file, or damaged"),
        (b"\xfd7zXZ\0" + bytes(100), "t.tar is not a tar file, or damaged"),
    ],
)
def test_damaged_or_impossible_headers_are_refused_in_little_memory(archive: bytes, why: str) -> None:
    text = refusal(archive)
    assert text.startswith("t.tar is not a tar file, or damaged: see byte ")
    assert why in text


@pytest.mark.parametrize(
    ("order", "apart"),
    [
        ("000000.a 000001.a 000000.b 000001.b", "000000.b"),
        ("a.x a.y b.x b.y c.x a.z", "a.z"),
        ("d/a.x e/a.x d/a.y", "d/a.y"),
        ("a.x .hidden b.x .hidden a.x", "a.x"),
        ("a.x " + " ".join(f"{number}.x" for number in range(3000)) + " a.y", "a.y"),
    ],
)
@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_members_of_a_sample_that_are_apart_are_refused_with_file_and_member(
    order: str, apart: str, compress: Callable[[bytes], bytes]
) -> None:
    archive = compress(archive_of([member(name, b"1") for name in order.split()]))
    assert refusal(archive) == f"t.tar has {apart} apart from the others of its sample: they must be consecutive"


def test_samples_of_one_name_in_several_directories_are_several() -> None:
    archive = archive_of([member(name, b"1") for name in ("d/a.x", "d/a.y", "e/a.x", "e/a.y", "a.x")])
    assert [sample["__key__"] for sample in samples(archive)] == ["d/a", "e/a", "a"]
