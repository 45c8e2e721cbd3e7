"""Xid errors of this machine's GPUs, as tasks have seen them: files in the directory of the machine's GPU ledger.

    xids-GPU-…-<random>         number and time of each code on that GPU, as JSON; one file of each user

Every user can write such a file, about every GPU. So they are shown, and decide nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from dlapp.gpuid.stores.device_files import Directory, Record, file_name
from dlapp.system import clock
from dlapp.system.files import closing_fd
from dlapp.system.shared_directory import open_shared_directory

_KIND = "xids"
_NAME = re.compile(rf"{_KIND}-([A-Za-z0-9_.-]+)-[0-9a-f]{{16}}", re.ASCII)
_CODE = re.compile(r"[0-9]{1,4}", re.ASCII)
_MAX_CODES = 64
"""Codes of one file; a GPU that fails in more ways needs no longer list."""
_MAX_COUNT = 1 << 53
"""Largest number that JSON keeps exactly in other programs."""


class XidCount(NamedTuple):
    """Number of times that a GPU reported one Xid error, and the last time [ms since 1970]."""

    times: int
    last_ms: int


def add_xids(path: str, counts: Mapping[str, Mapping[int, int]]) -> None:
    """Add Xid errors that were read now.

    Args:
        path: the ledger's directory.
        counts: uuid -> code -> number.

    Raises:
        LedgerError: the files cannot be written.
        OSError: the directory is missing, or not used (`UntrustedFile`).
    """
    now_ms = clock.now_ms()
    with closing_fd(open_shared_directory(path, make=True)) as fd:
        directory = Directory(fd, path, {})
        for uuid, codes in counts.items():
            device = file_name(uuid)
            mine = [one for one in _files(directory) if one.device == device and one.uid == os.geteuid()]
            found: dict[int, XidCount] = {}
            for one in mine:
                found = _sum(found, one.xids)
            found = _sum(found, {code: XidCount(count, now_ms) for code, count in codes.items()})
            newest = sorted(found.items(), key=lambda item: item[1].last_ms)[-_MAX_CODES:]
            os.close(directory.publish(_KIND, {"xids": {str(code): list(one) for code, one in newest}}, device)[1])
            for one in mine:
                directory.remove(one.name)


def read_xids(path: str) -> dict[str, dict[int, XidCount]]:
    """Return the Xid errors by the file name of the GPU (`device_files.file_name`) and by code.

    Raises:
        OSError: the directory cannot be read.
    """
    found: dict[str, dict[int, XidCount]] = {}
    try:
        fd = open_shared_directory(path, make=False)
    except FileNotFoundError:
        return found
    with closing_fd(fd):
        for one in _files(Directory(fd, path, {})):
            found[one.device] = _sum(found.get(one.device, {}), one.xids)
    return found


class _File(NamedTuple):
    name: str
    device: str
    uid: int
    xids: dict[int, XidCount]


def _files(directory: Directory) -> Iterator[_File]:
    for name in directory.names():
        if (match := _NAME.fullmatch(name)) is None:
            continue
        try:
            file = directory.open_to_read(name)
            record = directory.read_record(file, name)
        except OSError:
            continue  # removed meanwhile, or no file of dlapp
        if record is not None:
            yield _File(name, match[1], file.about.st_uid, _counts(record))


def _counts(record: Record) -> dict[int, XidCount]:
    xids, found = record.get("xids"), dict[int, XidCount]()
    for code, one in list(xids.items())[:_MAX_CODES] if isinstance(xids, dict) else ():
        if _CODE.fullmatch(code) and isinstance(one, list) and len(one) == 2:
            count, last_ms = one
            if type(count) is int and type(last_ms) is int and 0 < count <= _MAX_COUNT and 0 <= last_ms <= _MAX_COUNT:
                found[int(code)] = XidCount(count, last_ms)
    return found


def _sum(one: Mapping[int, XidCount], other: Mapping[int, XidCount]) -> dict[int, XidCount]:
    none = XidCount(0, 0)
    pairs = ((code, one.get(code, none), other.get(code, none)) for code in {**one, **other})
    return {code: XidCount(a.times + b.times, max(a.last_ms, b.last_ms)) for code, a, b in pairs}
