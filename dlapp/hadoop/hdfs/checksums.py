"""Checksums of blocks: one per chunk of a few bytes, as DataNodes store them.

CRC32 is in zlib. CRC32C, which Hadoop's own clients write, needs a library: the one in the bundle that YARN localizes
on a node (`CARRIED`), which is that of the launcher's machine, or crc32c or google-crc32c in this Python. Pure Python
takes ten times as long as everything else. Without a library such blocks cannot be verified here, and so are not read.

The checksums of many chunks are compared by two library calls instead of one per chunk, as the calls take most of the
time (`Checksum.verify`).

Source: org.apache.hadoop.util.DataChecksum.
"""

from __future__ import annotations

import functools
import os
import sys
import zlib
from array import array
from collections.abc import Callable
from itertools import repeat

from dlapp.hadoop.errors import HadoopError

NONE, CRC32, CRC32C = 0, 1, 2
MAX_CHUNK_BYTES = 1 << 24
"""Maximum chunk size; a packet has at least one chunk."""
CARRIED = f"libcrc32c-{os.uname().machine}.so"
"""Library of google-crc32c, beside this module, if dlapp runs from the archive."""
_SAMPLE, _SAMPLE_CRC32C = b"123456789", 0xE3069283
_WORD = 4
_FEW_CHUNKS = 8
"""Below this number, chunks are compared one by one; measured with 512 bytes each: the group method takes as long for
8, a third for 128."""
_MANY_BYTES = 64 << 10
"""Size of the data compared at once: a packet of a DataNode."""


class Crc:
    """Implementation of one checksum algorithm.

    Args:
        extend: returns the checksum of data appended to other data, from the latter's checksum; 0: no data before.
    """

    def __init__(self, extend: Callable[[bytes | memoryview, int], int]) -> None:
        self.extend = extend

    def of_chunks(self, data: bytes, chunk_bytes: int) -> list[int]:
        """Return the checksum of each chunk."""
        extend = self.extend
        return [extend(data[at : at + chunk_bytes], 0) for at in range(0, len(data), chunk_bytes)]


class CannotVerify(HadoopError):
    """A block has no checksums, or a kind that cannot be computed here."""


class Checksum:
    """Checksum algorithm and its chunk size. For one thread.

    Raises:
        CannotVerify: it cannot be computed here.
    """

    def __init__(self, kind: int, chunk_bytes: int) -> None:
        if not 0 < chunk_bytes <= MAX_CHUNK_BYTES:
            raise CannotVerify(f"a checksum of {chunk_bytes} bytes each")
        crc = _CRC32 if kind == CRC32 else _crc32c() if kind == CRC32C else None
        if crc is None:
            no_library = f"no library computes them here ({os.uname().machine}): install google-crc32c, with its C form"
            name = {NONE: "no checksums", CRC32C: f"checksums CRC32C, and {no_library}, in {sys.executable}"}.get(kind)
            raise CannotVerify(f"it has {name or f'checksums of an unknown kind ({kind})'}")
        self._crc = crc
        self.kind, self.chunk_bytes = kind, chunk_bytes
        self._spread = memoryview(b"")

    def size(self, data_bytes: int) -> int:
        """Return the size of the checksums for data of this size [bytes]."""
        return -(-data_bytes // self.chunk_bytes) * _WORD

    def of(self, data: bytes | memoryview) -> bytes:
        """Return the checksums of data that starts at a chunk boundary."""
        # Slices of bytes are faster, and all libraries accept them.
        found = array("I", self._crc.of_chunks(bytes(data), self.chunk_bytes))
        if sys.byteorder == "little":
            found.byteswap()
        return found.tobytes()

    def verify(self, data: memoryview, sums: memoryview) -> bool:
        """Return whether checksums match data that starts at a chunk boundary.

        Many chunks are compared at once, in groups. A checksum is the remainder of a polynomial division, so that of a
        group follows from those of its n chunks: it is the sum of crc(i) * x ** (bits of a chunk * (n - 1 - i)). The
        same sum, times x ** 32, is the checksum of zeros with crc(i) as the last word of chunk i. So the checksum of
        the data and a word of zeros is compared with that of these words. The CRC's initial and final values add to the
        difference a constant that depends only on the length; it is computed with zeros as data.

        An error within one chunk is found if its own checksum finds it. Errors in several chunks whose sum is not a
        multiple of the polynomial are also found: all but one of 2 ** 32, as with one checksum for the group.
        """
        chunk = self.chunk_bytes
        whole = len(data) // chunk
        if whole < _FEW_CHUNKS or chunk % _WORD:
            return self.of(data) == sums
        at_once = max(_MANY_BYTES // chunk, 1)
        for first in range(0, whole, at_once):
            end = min(first + at_once, whole)
            if not self._verify_group(data[first * chunk : end * chunk], sums[first * _WORD : end * _WORD]):
                return False
        return self.of(data[whole * chunk :]) == sums[whole * _WORD :]

    def _verify_group(self, data: memoryview, sums: memoryview) -> bool:
        extend, size = self._crc.extend, len(data)
        if len(self._spread) < size:
            self._spread = memoryview(bytearray(size))
        words = array("I", bytes(sums))
        words.byteswap()  # words are little-endian: the first bit of their bytes is the lowest
        step, spread = self.chunk_bytes // _WORD, self._spread[:size]
        spread.cast("I")[step - 1 :: step] = memoryview(words)
        difference = extend(bytes(_WORD), extend(data, 0)) ^ extend(spread, 0)
        return difference == _difference_of_zeros(self._crc, self.chunk_bytes, size)


@functools.lru_cache(64)
def _difference_of_zeros(crc: Crc, chunk_bytes: int, size: int) -> int:
    """Return the value that `Checksum.verify` compares with, for a group of whole chunks of this total size [bytes]."""
    last_word = crc.extend(bytes(chunk_bytes), 0).to_bytes(_WORD, "little")
    spread = (bytes(chunk_bytes - _WORD) + last_word) * (size // chunk_bytes)
    return crc.extend(bytes(size + _WORD), 0) ^ crc.extend(spread, 0)


def has_crc32c() -> bool:
    """Return whether CRC32C can be computed here."""
    return _crc32c() is not None


def installed_library() -> str | None:
    """Return the path of google-crc32c's C library, which is usable without Python; None: not installed in this form.

    Source: the wheels of google-crc32c for Linux, which auditwheel made.
    """
    from importlib.util import find_spec

    if (spec := find_spec("google_crc32c")) is None or spec.origin is None:
        return None
    directory = f"{os.path.dirname(os.path.dirname(spec.origin))}/google_crc32c.libs"
    try:
        names = sorted(one for one in os.listdir(directory) if one.startswith("libcrc32c"))
    except OSError:
        return None
    return f"{directory}/{names[0]}" if len(names) == 1 else None


@functools.cache
def _crc32c() -> Crc | None:
    """Return the CRC32C implementation; None: there is none."""
    found = _carried() or _installed()
    return found if found is not None and found.extend(_SAMPLE, 0) == _SAMPLE_CRC32C else None


def _installed() -> Crc | None:
    try:
        import crc32c

        return Crc(crc32c.crc32c)
    except ImportError:
        pass
    try:
        import google_crc32c
    except ImportError:
        return None
    # Its pure Python form is slower than WebHDFS.
    if google_crc32c.implementation != "c":
        return None
    extend: Callable[[int, bytes], int] = google_crc32c.extend
    return Crc(lambda data, before: extend(before, bytes(data)))


def _carried() -> Crc | None:
    """Return the implementation from the library in the archive; None: there is none, or not for this machine."""
    import pkgutil

    try:
        data = pkgutil.get_data(__package__, CARRIED)
    except OSError:
        return None
    return None if data is None else load_library(data)


def load_library(data: bytes) -> Crc | None:
    """Return the implementation from the content of a google-crc32c library; None: it does not run here.

    One library per process: the loader identifies a file by its name, which a later one may have, too.
    """
    try:
        import ctypes

        with open(os.memfd_create("libcrc32c", os.MFD_CLOEXEC), "wb") as file:
            file.write(data)
            file.flush()
            # A call is too short to release the GIL for other threads.
            extend = ctypes.PyDLL(f"/proc/self/fd/{file.fileno()}").crc32c_extend
    except (ImportError, OSError, AttributeError):
        return None  # another libc, no libstdc++, or no execution from memory files
    extend.argtypes, extend.restype = (ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t), ctypes.c_uint32

    def of_data(data: bytes | memoryview, before: int) -> int:
        size = len(data)
        is_writable = isinstance(data, memoryview) and not data.readonly and size
        held = (ctypes.c_char * size).from_buffer(data) if is_writable else bytes(data)
        value: int = extend(before, held, size)
        return value

    class OfLibrary(Crc):
        """Compute CRC32C by that library, passing addresses, which is faster than slices."""

        def of_chunks(self, data: bytes, chunk_bytes: int) -> list[int]:
            start = ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0
            rest = len(data) % chunk_bytes
            end = start + len(data) - rest
            found = list(map(extend, repeat(0), range(start, end, chunk_bytes), repeat(chunk_bytes)))
            return [*found, extend(0, end, rest)] if rest else found

    return OfLibrary(of_data)


_CRC32 = Crc(zlib.crc32)
