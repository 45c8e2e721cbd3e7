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
from collections.abc import Callable, Sequence
from functools import partial

from dlapp.errors import DlappError
from dlapp.spec import AppSpec, InputSpec
from dlapp.storage import HdfsPlace, Moved, shown
from dlapp.storage.fetching import Plan
from dlapp.storage.inputs import PlannedInput, plan_input

STAGING = ".dlapp-shell-input-"


def bring(
    inputs: Sequence[InputSpec],
    workspace: str,
    note: Callable[[str], None],
    progress: Callable[[int, int], None] | None = None,
    hdfs: HdfsPlace | None = None,
    fetch: Callable[..., Moved] = Plan.fetch,
) -> list[str]:
    """Bring all input into ``workspace``, as its only container has it; the paths of what was brought now, relative.

    Args:
        fetch: takes a `Plan` and ``progress``; one that goes by way of a cache, for instance.

    Raises:
        NotFound: a source matches nothing.
        DlappError: two sources would land under one name, or there is no room.
    """
    # First a look at all of it: what cannot be had is said before anything is brought.
    planned = [
        plan_input(one, _into(one, workspace), 0, 1, hdfs=hdfs, may_be_there=True)
        for one in inputs
        if not _is_there(one, workspace, note)
    ]
    return [path for one in planned for path in _bring(one, workspace, note, progress, fetch)]


def _into(one: InputSpec, workspace: str) -> str:
    return os.path.normpath(os.path.join(workspace, one.input_path))


def _is_there(one: InputSpec, workspace: str, note: Callable[[str], None]) -> bool:
    """Whether a list, or what came out of archives, was brought before."""
    into = _into(one, workspace)
    if one.as_list:
        there = os.path.lexists(into)
    else:
        there = one.unpack and into != os.path.normpath(workspace) and os.path.isdir(into) and bool(os.listdir(into))
    if there:
        note(f"{one.input_path} is there already: kept as it is")
    return there


def _bring(
    planned: PlannedInput,
    workspace: str,
    note: Callable[[str], None],
    progress: Callable[[int, int], None] | None,
    fetch: Callable[..., Moved],
) -> list[str]:
    one = planned.section
    into = _into(one, workspace)
    directory = os.path.dirname(into) if one.as_list else into
    if not (one.as_list or one.unpack):
        there = [each for _, each in planned.plan.landings if os.path.lexists(each.path)]
        for each in there:
            note(f"{os.path.relpath(each.path, workspace)} is there already: kept as it is")
        planned = planned._replace(plan=planned.plan.without(there))
        if there and not planned.plan.landings:
            return []
    os.makedirs(directory, exist_ok=True)
    _sweep(directory)
    staging = tempfile.mkdtemp(prefix=STAGING, dir=directory)
    lock = _locked(staging)
    try:
        fresh = os.path.join(staging, os.path.basename(into) if one.as_list else "input")
        planned.bring(fresh, partial(fetch, progress=progress), os.path.join(staging, "archives"), progress)
        found = staging if one.as_list else fresh
        names = sorted(os.listdir(found))
        for name in names:
            place = os.path.join(directory, name)
            if os.path.lexists(place):
                raise DlappError(f"{shown(place)} is there already, where input is to land")
            os.rename(os.path.join(found, name), place)
        return [posixpath.normpath(os.path.relpath(os.path.join(directory, name), workspace)) for name in names]
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
        if (path in places or posixpath.dirname(path) in ("" if place == "." else place for place in places))
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
