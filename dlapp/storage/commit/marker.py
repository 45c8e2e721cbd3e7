"""Marker of a commit: its content, and the names of an output's parts; common to all file systems."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Protocol

from dlapp.errors import Denied, DlappError, NotFound, UsageError
from dlapp.id_text import is_application_id
from dlapp.locations import shown
from dlapp.storage.commit.written import CommitTimes
from dlapp.system.files import UntrustedFile, is_plain_name, json_object
from dlapp.value import Value
from dlapp.values.ids import ApplicationId, ContainerId, is_trial_part

Parts = Sequence[tuple[str, str]]
"""Name in the target and location of each part. One part named "" is the whole target; it may be a file."""

Step = Callable[[str], None]
"""Function that is called with the name of each completed step; tests use it to die there."""

VERSION = 3
"""Version of a marker with ``keep_previous``, which earlier versions of dlapp would ignore; without it 2 is written."""
MAX_MARKER_BYTES = 16 << 20
"""Size limit of a marker; ten thousand containers take 0.6 MiB."""


class CommitRefused(DlappError):
    """A target that appeared while the application ran and may not be replaced; the output is kept at ``partial``."""

    def __init__(self, target: str, partial: str) -> None:
        super().__init__(
            f"{shown(target)} was created while the application ran, and overwrite is false; "
            f"the output is kept at {shown(partial)}"
        )
        self.target, self.partial = target, partial


class CommitBusy(DlappError):
    """Another process is committing this output now."""


class ForeignMarker(Denied):
    """Another user's commit to this target was interrupted; only they can finish it.

    Attributes:
        owner: their user name.
        app: the application of the commit.
    """

    def __init__(self, target: str, app: str, owner: str) -> None:
        super().__init__(
            f"{shown(target)}: a commit of {app} by {shown(owner)} was cut off there; {shown(owner)} finishes it by "
            f"dlapp-status {app}, or removes {shown(target)}.{app}.commit"
        )
        self.owner, self.app = owner, app


class OutputCommit(Protocol):
    """The commit of one application's output to one target; `dlapp.storage.commit.commit` has the guarantees."""

    def commit(
        self,
        parts: Parts,
        *,
        overwrite: bool,
        keep_previous: int,
        is_retry: bool,
        commit_times: CommitTimes,
        step: Step,
    ) -> str | None:
        """Make the parts the target. Return the location of the old one if it was not removed.

        Args:
            parts: those of all containers.
            overwrite: replace an existing target.
            keep_previous: number of dlapp's former outputs to keep.
            is_retry: an earlier call may have succeeded.
            commit_times: the commit times of the target.
            step: called with the name of each step before it is executed.
        """

    def is_surely_committed(self) -> bool:
        """Return whether the target is this application's output, by its attribute."""

    def finish_interrupted(self) -> bool:
        """Finish a commit that has a marker, unless another process is executing it; return whether there was one."""

    def keep_partial(self, parts: Parts) -> str | None:
        """Move the output of a failed application aside. Return its location, or None if there is none.

        Missing parts are skipped. A started commit that has not reached the target is undone; one that has reached it
        is finished, and the result is None. Idempotent. Raises CommitBusy.
        """

    def keep_failed(self, parts: Parts) -> str | None:
        """Move the output of failed containers aside, of an application whose other output is committed next.

        Missing parts are skipped. Idempotent. Return a directory with all of them; None if there are none.
        """

    def drop(self) -> None:
        """Remove everything that an application left beside the target except its partial output. Idempotent.

        A started commit that has not reached the target is abandoned; one that has reached it is finished. Raises
        CommitBusy.
        """


class Marker(Value):
    """Content of a marker.

    Args:
        number: inode number of the new target.
        mode: the permissions that ``ready`` gets before it becomes the target; None to leave them.
        own: inode number and modification time [ns] of an old target that dlapp wrote, according to the user's history.
        before: inode number of the target when the commit started, 0 if there was none; None in markers of an older
            dlapp.
        parts: for each part its name in the target and the container that stored it.
        keep_previous: number of dlapp's former outputs to keep beside the target.
    """

    number: int
    overwrite: bool
    parts: tuple[tuple[str, str], ...]
    mode: int | None = None
    own: tuple[int, int] | None = None
    keep_previous: int = 0
    before: int | None = None

    def is_lost(self, there: int | None) -> bool:
        """Return whether a new target that is missing was never put in place, by the number ``there`` of the current
        target.

        A missing target is no proof, but then there is no output either.
        """
        return self.before is not None and (there or 0) in (0, self.before)


def named_containers(
    parts: Parts, directory: str, app: str, path_of: Callable[[str], str]
) -> tuple[tuple[str, str], ...]:
    """Return name and container of each part, after checking that each part is where its container must have stored it.

    Args:
        parts: name in the target, and location.
        directory: path of the directory of all parts.
        app: the application that they belong to.
        path_of: returns the path of a location.

    Raises:
        UsageError: a part has another name or place.
    """
    named = []
    for name, location in parts:
        path = path_of(location)
        container = path[len(directory) + 1 :]
        if not path.startswith(f"{directory}/") or not is_part(container, app):
            raise UsageError(f"{shown(path)} is not where a container of {app} stores its output")
        _check_part_name(name, len(parts))
        named.append((name, container))
    if len({name for name, _ in named}) != len(named):
        raise UsageError(f"two parts of {app} have one name")
    return tuple(named)


def applications_in_markers(names: Collection[str], target: str) -> list[str]:
    """Return the applications that have a marker for the target of this name, from the names beside it."""
    middles = (name.removeprefix(f"{target}.").removesuffix(".commit") for name in names)
    return sorted(one for one in middles if is_application_id(one) and f"{target}.{one}.commit" in names)


LONGEST_SUFFIX = ".previous.application_1700000000000_2147483647.0123abcd"
"""The most that is added to the name of a target for a name beside it: a former output under a name that was taken.
YARN counts applications with a 32-bit number."""


def previous_name(name: str, app: str) -> str:
    """Return the name under which an application keeps the former output that it replaced, beside the target."""
    return f"{name}.previous.{app}"


def previous_names(names: Iterable[str], name: str, app: str) -> list[str]:
    """Return the names in a directory that are former outputs of a target, the latest first.

    The latest is the one that ``app`` has just replaced; the others are in the order of the applications that replaced
    them.
    """
    found = []
    start = previous_name(name, "")
    for one in names:
        middle, _, suffix = one.removeprefix(start).partition(".")
        if one.startswith(start) and is_application_id(middle) and re.fullmatch("[0-9a-f]{8}|", suffix):
            found.append((middle == app, ApplicationId.from_text(middle), one))
    return [one for _, _, one in sorted(found, reverse=True)]


def is_part(text: str, app: str) -> bool:
    """Return whether a text names a part: the id of a container of an application, or a trial's part."""
    if is_trial_part(text):
        return True
    try:
        return str(ContainerId.from_text(text).application) == app
    except UsageError:
        return False


def _check_part_name(name: str, count: int) -> None:
    if not (is_plain_name(name) or (not name and count == 1)):
        raise UsageError(f"{shown(name)!r} is not the name of a part of the output")


def marker_bytes(plan: Marker, key: str) -> bytes:
    """Return the serialized content of a marker, for `parse_marker`."""
    said = {"version": 2, key: plan.number, "overwrite": plan.overwrite, "parts": plan.parts, "mode": plan.mode}
    if plan.keep_previous:
        said |= {"version": VERSION, "keep_previous": plan.keep_previous}
    said |= {key: value for key, value in (("own", plan.own), ("before", plan.before)) if value is not None}
    return json.dumps(said, indent=1).encode()


def parse_marker(data: bytes, path: str, directory: str, app: str, key: str) -> Marker:
    """Return the content of a marker.

    Args:
        data: the content of its file.
        path: the path of the file, for messages.
        directory: path of the directory of the parts.
        app: the application whose commit it is.
        key: JSON key of the inode number of the new target.

    Raises:
        DlappError: it is damaged, of a newer version, or of an older one and names parts that are elsewhere.
    """
    try:
        said: dict[str, Any] = json_object(data, path=path)
        version = said["version"]
        if type(version) is not int:
            raise TypeError("version")
        if version > VERSION:
            raise DlappError(f"{shown(path)} was written by a newer dlapp (format {version}); use that one")
        number, overwrite, mode = said[key], said["overwrite"], said.get("mode")
        parts = tuple((name, part) for name, part in said["parts"])
        if type(number) is not int or type(overwrite) is not bool or (mode is not None and type(mode) is not int):
            raise TypeError("a value of the wrong type")
        if not parts or not all(isinstance(one, str) for pair in parts for one in pair):
            raise TypeError("parts")
        if version < 2:
            # Version 1 had absolute paths. One outside the required place is never used.
            elsewhere = [part for _, part in parts if not part.startswith(f"{directory}/")]
            if elsewhere:
                raise DlappError(
                    f"{shown(path)} was written by an older dlapp and names {shown(elsewhere[0])}, which is not in "
                    f"{shown(directory)}; inspect it and the files beside it"
                )
            parts = tuple((name, part[len(directory) + 1 :]) for name, part in parts)
        for name, container in parts:
            if not is_part(container, app):
                raise ValueError(f"{container[:100]!r} is not a container of {app}")
            _check_part_name(name, len(parts))
        keep_previous = said.get("keep_previous", 0)
        if type(keep_previous) is not int or keep_previous < 0:
            raise TypeError("keep_previous")
        own = None
        if "own" in said:
            own_number, own_mtime_ns = said["own"]
            if type(own_number) is not int or type(own_mtime_ns) is not int:
                raise TypeError("own")
            own = own_number, own_mtime_ns
        before = said.get("before")
        if before is not None and type(before) is not int:
            raise TypeError("before")
    except (ValueError, KeyError, TypeError, UntrustedFile, UsageError) as error:
        raise DlappError(f"{shown(path)} is damaged: {error}; inspect it and the files beside it") from error
    return Marker(number, overwrite, parts, None if mode is None else mode & 0o7777, own, keep_previous, before)


def removed_error(ready: str, target: str, parts: str = "") -> NotFound:
    """Return the error for a new target that was taken away before it was put in place; its ``parts`` may be left."""
    left = f"the output is kept in {shown(parts)}" if parts else "nothing of the output is left"
    return NotFound(f"{shown(ready)} was taken away, so {shown(target)} cannot be committed; {left}")
