"""Checksums of blocks: one for each few bytes, as DataNodes keep them.

CRC32 is in zlib. CRC32C, which Hadoop's own clients write, needs a library, google-crc32c or crc32c: in pure Python it
takes ten times as long as all the rest. Without one such blocks cannot be verified here, and so are not read.

Source: org.apache.hadoop.util.DataChecksum.
"""

from __future__ import annotations

import functools
import sys
import zlib
from array import array
from collections.abc import Callable

from dlapp.hadoop.errors import HadoopError

NONE, CRC32, CRC32C = 0, 1, 2
MOST_CHUNK = 1 << 24
"""The most bytes under one checksum; a packet has at least one."""
_SAMPLE, _SAMPLE_CRC32C = b"123456789", 0xE3069283


class CannotVerify(HadoopError):
    """A block has checksums of a kind that cannot be computed here, or none."""


class Checksum:
    """A kind of checksum, and how many bytes each is of.

    Raises:
        CannotVerify: it cannot be computed here.
    """

    def __init__(self, kind: int, chunk_bytes: int) -> None:
        if not 0 < chunk_bytes <= MOST_CHUNK:
            raise CannotVerify(f"a checksum of {chunk_bytes} bytes each")
        if kind == CRC32:
            self._compute: Callable[[bytes | memoryview], int] = zlib.crc32
            self._of_bytes = False
        elif kind == CRC32C and (found := _crc32c()) is not None:
            self._compute, self._of_bytes = found
        else:
            name = {NONE: "no checksums", CRC32C: "checksums CRC32C (google-crc32c is not installed)"}.get(kind)
            raise CannotVerify(f"it has {name or f'checksums of an unknown kind ({kind})'}")
        self.kind, self.chunk_bytes = kind, chunk_bytes

    def size(self, data_bytes: int) -> int:
        """Return how many bytes the checksums of so many bytes have."""
        return -(-data_bytes // self.chunk_bytes) * 4

    def of(self, data: bytes | memoryview) -> bytes:
        """Return the checksums of data that begins at a chunk."""
        if self._of_bytes and isinstance(data, memoryview):
            data = bytes(data)
        compute, chunk = self._compute, self.chunk_bytes
        found = array("I", [compute(data[at : at + chunk]) for at in range(0, len(data), chunk)])
        if sys.byteorder == "little":
            found.byteswap()
        return found.tobytes()


def has_crc32c() -> bool:
    """Return whether CRC32C can be computed here."""
    return _crc32c() is not None


@functools.cache
def _crc32c() -> tuple[Callable[[bytes | memoryview], int], bool] | None:
    """Return what computes CRC32C, and whether it takes nothing but bytes; None: there is nothing."""
    found: tuple[Callable[[bytes | memoryview], int], bool] | None = None
    try:
        import crc32c

        found = crc32c.crc32c, False
    except ImportError:
        try:
            import google_crc32c

            # Its Python form is slower than WebHDFS.
            found = (google_crc32c.value, True) if google_crc32c.implementation == "c" else None
        except ImportError:
            return None
    return found if found is not None and found[0](_SAMPLE) == _SAMPLE_CRC32C else None
