"""Checksums of blocks: many chunks that are compared at once are what one by one they are."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlapp.hadoop.hdfs import checksums
from dlapp.hadoop.hdfs.checksums import CRC32, CRC32C, Checksum, installed_library, load_library

sizes = st.one_of(st.integers(0, 9000), st.sampled_from([65_535, 65_536, 65_537, 66_048, 131_072, 200_000]))


def kinds() -> list[int]:
    return [CRC32, CRC32C] if checksums.has_crc32c() else [CRC32]


def library() -> checksums.Crc:
    path = installed_library()
    found = load_library(Path(path).read_bytes()) if path else None
    if found is None:
        pytest.skip("google-crc32c has no library here")
    return found


@given(st.sampled_from(kinds()), st.sampled_from([1, 3, 4, 512, 1000, 4096]), sizes, st.integers())
def test_the_checksums_of_data_are_accepted_and_those_of_other_data_are_not(
    kind: int, chunk: int, size: int, seed: int
) -> None:
    chance = random.Random(seed)
    one, data = Checksum(kind, chunk), memoryview(bytearray(chance.randbytes(size)))
    sums = one.of(data)
    assert len(sums) == one.size(size)
    assert one.verify(data, memoryview(sums))
    for _ in range(5 if size else 0):
        bad = bytearray(data)
        for _ in range(chance.choice((1, 2, 5))):  # in one chunk, or in several
            bad[chance.randrange(size)] ^= chance.randint(1, 255)
        assert one.verify(memoryview(bad), memoryview(sums)) == (bad == data)
        spoiled = bytearray(sums)
        spoiled[chance.randrange(len(sums))] ^= chance.randint(1, 255)
        assert not one.verify(data, memoryview(spoiled))


@pytest.mark.parametrize("kind", kinds())
def test_chunks_that_changed_places_are_not_accepted(kind: int) -> None:
    one, data = Checksum(kind, 512), bytearray(os.urandom(65_536))
    sums = memoryview(one.of(bytes(data)))
    data[:512], data[512:1024] = data[512:1024], data[:512]
    assert not one.verify(memoryview(data), sums)


@pytest.mark.parametrize("kind", kinds())
def test_any_single_bit_is_noticed(kind: int) -> None:
    one, data = Checksum(kind, 512), bytearray(os.urandom(5000))
    sums = memoryview(one.of(bytes(data)))
    for bit in range(0, len(data) * 8, 7):
        data[bit // 8] ^= 1 << bit % 8
        assert not one.verify(memoryview(data), sums), bit
        data[bit // 8] ^= 1 << bit % 8
    assert one.verify(memoryview(data), sums)


@given(st.binary(max_size=3000), st.sampled_from([1, 7, 512]))
def test_the_bundled_library_computes_the_same_as_the_installed_one(data: bytes, chunk: int) -> None:
    carried = library()
    installed = checksums._installed()
    assert installed is not None
    assert carried.of_chunks(data, chunk) == installed.of_chunks(data, chunk)
    assert carried.extend(data, 0) == installed.extend(data, 0)
    assert carried.extend(data, 77) == installed.extend(data, 77)
    assert (
        carried.extend(memoryview(bytearray(data)), 0) == carried.extend(memoryview(data), 0) == carried.extend(data, 0)
    )


def test_an_unusable_library_is_ignored() -> None:
    # In a process of its own: of one that was loaded before, the loader would know the name again.
    code = (
        "from dlapp.hadoop.hdfs.checksums import load_library\n"
        "print([load_library(one) for one in (b'', b'\\x7fELF and no more', b'#!/bin/sh\\n')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[None, None, None]\n", "")
