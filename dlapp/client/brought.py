"""Input that dlapp-shell brings into the user's own workspace, and what it remembers of it.

Each entry is copied beside its place and then renamed, so what stands under a name is whole; what is there already is
kept as it is: an earlier session brought it, or the user changed it. What was brought is written down, because a run
of the same workspace gets its own: packed as well, the two would clash.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import posixpath
import tempfile
from collections.abc import Callable, Iterable, Sequence

from dlapp.errors import DlappError, NotFound
from dlapp.spec import AppSpec, InputSpec
from dlapp.storage import Entry, local_path, open_location, shown

STAGING = ".dlapp-shell-input-"


def bring(
    inputs: Sequence[InputSpec],
    workspace: str,
    note: Callable[[str], None],
    progress: Callable[[int, int], None] | None = None,
) -> list[str]:
    """Bring all input into ``workspace``; the paths of what was brought now, relative to it.

    Raises:
        NotFound: a source matches nothing.
        DlappError: two sources would land under one name, or there is no room.
    """
    brought: list[str] = []
    for one in inputs:
        into = os.path.normpath(os.path.join(workspace, one.input_path))
        missing = [found for source in one.sources for found in _missing(source, into, one.input_path, note)]
        names = [_name(entry) for entry in missing]
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise DlappError(f"two sources of {one.input_path} are both named {shown(twice)}")
        if missing:
            _bring_into(into, missing, progress)
        brought += [posixpath.normpath(posixpath.join(one.input_path, name)) for name in names]
    return brought


def _missing(source: str, into: str, input_path: str, note: Callable[[str], None]) -> Iterable[Entry]:
    entries = open_location(source).matches(source)
    if not entries:
        raise NotFound(f"{shown(source)}: nothing is there")
    for entry in entries:
        if os.path.lexists(os.path.join(into, _name(entry))):
            note(f"{posixpath.normpath(posixpath.join(input_path, _name(entry)))} is there already: kept as it is")
        else:
            yield entry


def _bring_into(into: str, entries: Sequence[Entry], progress: Callable[[int, int], None] | None) -> None:
    os.makedirs(into, exist_ok=True)
    _sweep(into)
    staging = tempfile.mkdtemp(prefix=STAGING, dir=into)
    lock = _locked(staging)
    try:
        open_location(entries[0].location).fetch(entries, staging, progress=progress)
        for entry in entries:
            # Nothing stood there when we looked; a directory that came since is not replaced: rename refuses.
            os.rename(os.path.join(staging, _name(entry)), os.path.join(into, _name(entry)))
    finally:
        _remove(staging)
        if lock is not None:
            os.close(lock)


def _sweep(into: str) -> None:
    """Remove what a session left that was killed while it fetched."""
    for name in os.listdir(into):
        if name.startswith(STAGING):
            path = os.path.join(into, name)
            if (lock := _locked(path)) is not None:
                _remove(path)
                os.close(lock)


def _locked(directory: str) -> int | None:
    """A descriptor that holds the lock on a directory; None: another session has it, or it cannot be locked."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _remove(directory: str) -> None:
    import shutil

    shutil.rmtree(directory, ignore_errors=True)


def _name(entry: Entry) -> str:
    return os.path.basename(local_path(entry.location).rstrip("/"))


# ---- what is remembered ----


def records_below(state_path: str) -> str:
    """The caller's directory of records, in the state directory of this machine."""
    return os.path.join(own_directory(state_path), "workspaces")


def own_directory(state_path: str) -> str:
    """Where the caller's shells keep what is theirs."""
    return os.path.join(state_path, "shells", str(os.geteuid()))


def remember(records: str, workspace: str, paths: Sequence[str]) -> None:
    """Add paths (relative to ``workspace``) to its record, a file in the directory ``records``."""
    known = set(_read(records, workspace))
    if known >= set(paths):
        return
    path = _record(records, workspace)
    temporary = f"{path}.{os.getpid()}"
    with open(temporary, "w", encoding="utf-8", errors="surrogateescape") as file:
        json.dump({"workspace": workspace, "brought": sorted(known | set(paths))}, file, ensure_ascii=False)
    os.rename(temporary, path)


def remembered(records: str, spec: AppSpec) -> list[str]:
    """What was brought into the workspace, still stands there, and is where the spec's input goes."""
    places = [posixpath.normpath(one.input_path) for one in spec.inputs]
    return [
        path
        for path in _read(records, spec.workspace)
        if posixpath.dirname(path) in ("" if place == "." else place for place in places)
        and os.path.lexists(os.path.join(spec.workspace, path))
    ]


def _read(records: str, workspace: str) -> list[str]:
    try:
        with open(_record(records, workspace), encoding="utf-8", errors="surrogateescape") as file:
            return list(json.load(file)["brought"])
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, TypeError):
        # A record that cannot be read says nothing; a clash, should there be one, names the file.
        return []


def as_pattern(path: str) -> str:
    """The gitignore pattern of one path, relative to the workspace, and nothing else."""
    return "/" + "".join(map(_escaped, path))


def _escaped(character: str) -> str:
    if character.isspace() and character != " ":
        return f"[{character}]"  # at the end of a pattern blanks are dropped, and a backslash saves a space only
    return f"\\{character}" if character in "\\*?[] !#" else character


def _record(records: str, workspace: str) -> str:
    digest = hashlib.blake2b(os.fsencode(workspace), digest_size=16).hexdigest()
    return os.path.join(records, f"{digest}.json")
