"""Manifest of a checkpoint: its entries, as JSON."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Sequence
from enum import Enum
from typing import Any

from dlapp.errors import DlappError
from dlapp.storage.values import TreeNode
from dlapp.system.files import NAME_MAX
from dlapp.value import Value
from dlapp.values.serialization import parse_json

MAX_ENTRIES = 100_000
"""Files, directories and links of one checkpoint."""
MAX_BYTES = 64 << 20
"""Size limit of a manifest [bytes]; one of `MAX_ENTRIES` with names of 300 bytes is smaller."""
_VERSION = 1
_NAME = re.compile(r"checkpoint-([1-9][0-9]{0,17})\.json")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_MAX_PATH = 4096
_MIN_TIME_NS, _MAX_TIME_NS = -(1 << 63), 1 << 63
"""Range of files' times [ns since 1970]: the years 1677 to 2262. File systems may have later ones."""


class IncompleteCheckpoint(DlappError):
    """A checkpoint is incomplete: its manifest cannot be read, or a file is missing or has other content."""


class EntryKind(Enum):
    """Kind of an entry."""

    DIRECTORY = "directory"
    FILE = "file"
    LINK = "link"


class ManifestEntry(Value):
    """One entry of a checkpoint.

    Args:
        name: path in the directory; empty for the directory itself.
        kind: file, directory or link.
        mode: permission bits.
        mtime_ns: modification time [ns since 1970].
        size_bytes: the size of a file.
        digest: SHA-256 of a file's content, 64 hex digits.
        link: target of a link.
    """

    name: str
    kind: EntryKind
    mode: int
    mtime_ns: int
    size_bytes: int = 0
    digest: str = ""
    link: str = ""


class Manifest(Value):
    """Content of checkpoint ``number``: the directory itself first, parents before children."""

    number: int
    entries: tuple[ManifestEntry, ...]

    @property
    def objects(self) -> dict[str, int]:
        """Return digest -> size [bytes] of all files."""
        return {one.digest: one.size_bytes for one in self.entries if one.kind is EntryKind.FILE}


def manifest_name(number: int) -> str:
    """Return the file name of a manifest."""
    return f"checkpoint-{number}.json"


def number_of(name: str) -> int | None:
    """Return the number in a manifest's file name; None if it is another file's name."""
    found = _NAME.fullmatch(name)
    return int(found[1]) if found else None


def entry_of(node: TreeNode, digest: str) -> ManifestEntry:
    """Return the manifest entry of a tree's node."""
    kind = EntryKind.LINK if node.link is not None else EntryKind.DIRECTORY if node.is_dir else EntryKind.FILE
    size = node.size_bytes if kind is EntryKind.FILE else 0
    mtime_ns = min(max(node.mtime_ns, _MIN_TIME_NS), _MAX_TIME_NS)
    return ManifestEntry(node.name, kind, stat.S_IMODE(node.mode) & 0o777, mtime_ns, size, digest, node.link or "")


def encode_manifest(manifest: Manifest) -> bytes:
    """Return a manifest as JSON. Raises DlappError: it is too large, or a name is not UTF-8."""
    entries = []
    for one in manifest.entries:
        said: dict[str, Any] = {"name": one.name, "kind": one.kind.value, "mode": one.mode, "mtime_ns": one.mtime_ns}
        if one.kind is EntryKind.FILE:
            said |= {"size_bytes": one.size_bytes, "digest": one.digest}
        elif one.kind is EntryKind.LINK:
            said["link"] = one.link
        entries.append(said)
    # Names that are not UTF-8 are represented as escaped surrogates, which JSON allows.
    data = json.dumps({"version": _VERSION, "number": manifest.number, "entries": entries}).encode("ascii")
    if len(data) > MAX_BYTES:
        raise DlappError(f"the names of the checkpoint's files need {len(data)} bytes, at most {MAX_BYTES} are stored")
    return data


def parse_manifest(data: bytes, number: int) -> Manifest:
    """Return the manifest of checkpoint ``number``.

    Raises:
        IncompleteCheckpoint: the text is not a valid manifest; nothing in it may be used.
    """
    where = manifest_name(number)
    try:
        said = parse_json(data)
        if said["version"] != _VERSION or said["number"] != number:
            raise IncompleteCheckpoint(f"{where}: it is of another version, or of another number")
        listed = said["entries"]
        if not isinstance(listed, list) or not 1 <= len(listed) <= MAX_ENTRIES:
            raise IncompleteCheckpoint(f"{where}: it has no list of entries")
        entries = tuple(_entry(one) for one in listed)
    except (ValueError, KeyError, TypeError) as error:
        raise IncompleteCheckpoint(f"{where}: {str(error)[:200] or 'not a manifest'}") from error
    if problem := _problem_of(entries):
        raise IncompleteCheckpoint(f"{where}: {problem}")
    return Manifest(number, entries)


def _entry(said: Any) -> ManifestEntry:
    kind = EntryKind(said["kind"])
    return ManifestEntry(
        _text(said["name"]),
        kind,
        _amount(said["mode"], 0o777),
        _amount(said["mtime_ns"], _MAX_TIME_NS, least=_MIN_TIME_NS),
        _amount(said["size_bytes"], 1 << 62) if kind is EntryKind.FILE else 0,
        _text(said["digest"]) if kind is EntryKind.FILE else "",
        _text(said["link"]) if kind is EntryKind.LINK else "",
    )


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > _MAX_PATH or "\0" in value:
        raise ValueError("a name is not a text of the allowed length")
    return value


def _amount(value: Any, most: int, *, least: int = 0) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ValueError(f"a number is not one from {least} to {most}")
    return value


def _problem_of(entries: Sequence[ManifestEntry]) -> str:
    """Return why the entries do not form one tree; empty if they do."""
    if entries[0].name or entries[0].kind is not EntryKind.DIRECTORY:
        return "the first entry is not the directory itself"
    directories, seen, sizes = {""}, {""}, dict[str, int]()
    for place, one in enumerate(entries):
        if place:
            above, slash, last = one.name.rpartition("/")
            if not _is_component(last) or (slash and not above):
                return "a name is not one of a file"
            if above not in directories or one.name in seen:
                return "an entry is not in a directory of the checkpoint, or appears twice"
            seen.add(one.name)
        if one.kind is EntryKind.DIRECTORY:
            directories.add(one.name)
        elif one.kind is EntryKind.LINK:
            if not one.link:
                return "a link says nothing"
        elif not _DIGEST.fullmatch(one.digest) or sizes.setdefault(one.digest, one.size_bytes) != one.size_bytes:
            return "a digest is not one"
    return ""


def _is_component(name: str) -> bool:
    """Return whether a file of a payload can have this name; control characters are allowed."""
    try:
        return 0 < len(os.fsencode(name)) <= NAME_MAX and name not in (".", "..")
    except UnicodeEncodeError:
        return False
