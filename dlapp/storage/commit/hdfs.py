"""Commit of an output on HDFS, which has no atomic exchange of two directories.

The names beside the target are those of `dlapp.storage.commit`, and one more:

    run.APP.tmp/run.APP.old      what the commit replaces, on its way out

The steps of a commit:

1. Build the complete new target as ``ready``.
2. Write the marker.
3. Rename the old target to ``old``.
4. Rename ``ready`` to the target's name.
5. Keep ``old`` beside the target if dlapp did not write it (`dlapp.storage.commit.written`), or if ``keep_previous``
   says so.
6. Remove ``tmp`` with the rest and the parts, former outputs beyond ``keep_previous``, and the marker.

A reader finds the old target, the new one, or between steps 3 and 4 nothing. A process that finds the marker finishes
the commit: every step checks whether it was already done.

HDFS has no lock that ends with its process, so two processes may execute a commit at the same time: an
ApplicationMaster that was cut off and its successor, or a user's next command. So no step relies on an earlier check:

1. The marker holds the inode number of the new target.
2. Renames address the source by inode number, so never an entry that has taken the name since.
3. The NameNode refuses, in the same operation, a destination that exists.

The process that is late changes nothing. An inode number is never reused, and a rename keeps it: its current path shows
how far a commit has come. Behind a router or a gateway, inode numbers are unusable (`WebHdfs.has_inode_paths`). There,
names are used, each of which except the target's contains the application's id, and the number is compared before and
after.

Others may be able to write beside the target, so the rules of `dlapp.storage.commit` apply: a marker is trusted only if
the user owns it and nobody else can write it, ``tmp`` and ``ready`` are used only if they are directories of the user
that nobody else can write to, and a part must be in ``tmp`` under the name of its container. HDFS reports the owner. If
the directory beside the target is not sticky, others may rename the user's trees to a name of the commit between any
two calls. So after a name was checked, it is addressed by its inode number: parts are taken from the checked ``tmp``,
and moved into the ``ready`` that the marker names, which was empty when the commit started. Nothing is removed by a
name beside the target: the marker is removed by its number, ``tmp`` by its number if all its names are those of this
commit, and everything else is first renamed into ``tmp``, where nobody else can change a name.

Source: FSDirRenameOp (Options.Rename.NONE), FSDirectory.resolveDotInodesPath; seen on 3.4.2.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from dlapp.errors import Denied, DlappError, NotFound
from dlapp.locations import shown
from dlapp.storage.commit.marker import (
    MAX_MARKER_BYTES,
    CommitRefused,
    ForeignMarker,
    Marker,
    Parts,
    Step,
    applications_in_markers,
    is_part,
    marker_bytes,
    named_containers,
    parse_marker,
    previous_name,
    previous_names,
    removed_error,
)
from dlapp.storage.commit.written import ATTRIBUTE, CommitTimes, attribute_value, names_path
from dlapp.storage.hdfs.webhdfs import INODES, FileStatus, HdfsRefused, calling
from dlapp.storage.values import ignore
from dlapp.system.clock import backoff_s
from dlapp.system.files import UntrustedFile

if TYPE_CHECKING:
    from dlapp.locations import HdfsPlace
    from dlapp.storage.hdfs.webhdfs import WebHdfs

Named = Sequence[tuple[str, str]]
"""Name in the target and container of each part."""

_BEFORE, _SWAPPED, _REFUSED, _GONE, _LOST = "before", "swapped", "refused", "gone", "lost"
_MAX_SWAPS, _SWAP_AGAIN_S = 100, (0.01, 1.0)
"""Maximum number of tries to replace a target that others replace at the same time, and the pauses after a try without
effect."""
_NEW_MARKER = re.compile(r"commit\.[0-9a-f]{12}")
"""A marker that is not yet in force, or the file of `HdfsFiles.probe_store`."""


class CommitFiles(Protocol):
    """The calls of `HdfsFiles` that a commit needs.

    Attributes:
        place: the HDFS, and the user.
        web: makes the calls.
    """

    place: HdfsPlace
    web: WebHdfs

    def check_own_directory(self, path: str) -> FileStatus: ...

    def copy_policies(self, path: str, to: str) -> list[str]: ...

    def remove(self, location: str) -> None: ...

    def names(self, location: str) -> list[str]: ...


class HdfsCommit:
    """`OutputCommit` on HDFS."""

    def __init__(self, files: CommitFiles, target: str, app: str) -> None:
        self._files, self._web, self._place = files, files.web, files.place
        self._location, self.target = target, files.place.path(target)
        self._app = app
        beside = f"{self.target}.{app}"
        name = beside.rpartition("/")[2]
        self.parts, self.ready = f"{beside}.tmp", f"{beside}.ready"
        self.old, self.dropped = f"{self.parts}/{name}.old", f"{self.parts}/{name}.dropped"
        self._marker_status: FileStatus | None = None
        self.marker, self.partial, self.failed = f"{beside}.commit", f"{beside}.partial", f"{beside}.failed"
        self.replaced, self.previous = f"{self.target}.replaced.{app}", previous_name(self.target, app)

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
        """Make the parts the target; see `OutputCommit.commit`.

        Args:
            parts, overwrite, keep_previous, is_retry, commit_times, step: see there; the times do not count, see
                `dlapp.storage.commit.written`.
        """
        keep_previous = keep_previous if overwrite else 0
        try:
            return self._commit(parts, overwrite, keep_previous, is_retry, step)
        except NotFound:
            if not is_retry:
                raise
            # Another process may have finished the same commit meanwhile; a second check shows that.
            return self._commit(parts, overwrite, keep_previous, is_retry, step)

    def _commit(self, parts: Parts, overwrite: bool, keep_previous: int, is_retry: bool, step: Step) -> str | None:
        named = self._named(parts)
        if (begun := self._plan()) is not None:
            return self._finish(begun, step)
        present = [container for _, container in named if self._web.status(self._part(container)) is not None]
        if is_retry and named and not present:
            if self._is_own(self.partial):
                raise CommitRefused(self._location, self._place.location + self.partial)
            if self._is_committed():
                # A process that started beside the one that has finished may have recreated this; without a marker it
                # is empty.
                self._remove_empty(self.ready)
                return self._replaced_location()
        if not named:
            raise NotFound(f"{shown(self.target)}: there are no parts to commit")
        for _, container in named:
            if container not in present:
                raise NotFound(f"{shown(self._part(container))} is gone, so {shown(self.target)} cannot be committed")
        plan = self._begin(named, overwrite, keep_previous, step)
        if not any(self._web.status(self._part(container)) for _, container in named) and self._remove_empty(
            self.ready
        ):
            # Another process committed them all while we started.
            self._remove_marker()
            self._remove_parts()
            return None
        return self._finish(plan, step)

    def is_surely_committed(self) -> bool:
        with contextlib.suppress(NotFound, Denied, HdfsRefused):
            return self._web.attribute(self.target, ATTRIBUTE) == attribute_value(self._app, self.target)
        return False

    def finish_interrupted(self) -> bool:
        plan = self._plan()
        if plan is None:
            return False
        with contextlib.suppress(CommitRefused):  # That also settles it.
            self._finish(plan, ignore)
        return True

    def keep_partial(self, parts: Parts) -> str | None:
        named = self._named(parts)
        plan = self._plan(trusted_only=True)
        stage = None if plan is None else self._stage(plan)
        if plan is not None and stage in (_SWAPPED, _GONE):
            self._clean_up(plan, ignore)
            return None
        if plan is not None:
            self._restore_old()
        if plan is not None and stage != _LOST:
            if self._stage(plan) == _BEFORE:
                self._assemble(plan.parts, self.ready, plan.number, ignore, missing_ok=True)
                self._mask(self._by_number(plan.number, self.ready))
                if not self._move(plan.number, self.ready, self.partial):
                    raise self._untrusted_error(self.partial)
        else:
            self._remove_empty(self.ready)  # Without a marker it is empty.
            self._move_parts_aside(named if plan is None else plan.parts, self.partial)
        self._remove_parts(but=named if plan is None else plan.parts)
        if plan is not None:
            self._remove_marker()
        return self._place.location + self.partial if self._is_own(self.partial) else None

    def keep_failed(self, parts: Parts) -> str | None:
        self._move_parts_aside(self._named(parts), self.failed)
        return self._place.location + self.failed if self._is_own(self.failed) else None

    def _move_parts_aside(self, named: Named, into: str) -> None:
        """Rename the existing parts into ``into``. Raises UntrustedFile: something else has that name."""
        if not self._is_own(self.parts):
            return
        present = [one for one in named if self._web.status(self._part(one[1])) is not None]
        if present:
            number = self._make_own(into, self._dir_mode).inode_id if present[0][0] else 0
            if not number:
                self._mask(self._in_parts(self._part(present[0][1])))
            self._assemble(present, into, number, ignore, missing_ok=True)

    def drop(self) -> None:
        plan = self._plan(trusted_only=True)
        if plan is not None and self._stage(plan) in (_SWAPPED, _GONE):
            self._clean_up(plan, ignore)
            return
        if plan is not None:
            self._restore_old()
            self._move_ready_aside(plan)
            # The marker is removed first: without the parts no process could finish the commit.
            self._remove_marker()
        self._remove_parts()
        self._remove_empty(self.ready)

    # ---- the plan and its marker ----

    def _begin(self, parts: tuple[tuple[str, str], ...], overwrite: bool, keep_previous: int, step: Step) -> Marker:
        """Decide the new target, and write the marker; if another process's plan appears meanwhile, use that."""
        self._make_own(self.parts, 0o700)
        if parts[0][0]:
            new: FileStatus | None = self._make_own(self.ready, self._dir_mode)
            if (begun := self._plan_of_other_process(new)) is not None:
                return begun
        else:
            new = self._web.status(self._in_parts(self._part(parts[0][1])))
        if new is None:
            where = self._part(parts[0][1])
            raise NotFound(f"{shown(where)} is gone, so {shown(self.target)} cannot be committed")
        before = self._number(self.target) or 0
        plan = Marker(new.inode_id, overwrite, parts, keep_previous=keep_previous, before=before)
        self._make_own(self.parts, 0o700)  # gone, if another process has just finished
        parts_place = self._in_parts(self.parts)
        new_marker = f"{parts_place}/commit.{os.urandom(6).hex()}"
        with calling(parts_place, self.parts):
            self._web.write(new_marker, marker_bytes(plan, "number"), 0o600, parents=False)
        self._marker_status = self._web.status(new_marker)
        step("marker written")
        if not self._web.rename(new_marker, self.marker):
            self._marker_status = None
            return self._plan() or plan
        step("marker")
        return plan

    def _plan_of_other_process(self, ready: FileStatus | None) -> Marker | None:
        """Return the plan of the process that has filled ``ready`` meanwhile; None if it is empty, as a new one is.

        Raises:
            UntrustedFile: another directory of the user was renamed to that name; it would become the target.
            NotFound: that process has moved it to the target.
        """
        if ready is None or not self._web.children(self._by_number(ready.inode_id, self.ready)):
            return None
        if (begun := self._plan()) is None:
            if self._number(self.ready) == ready.inode_id:
                raise self._untrusted_error(self.ready)
            raise NotFound(f"{shown(self.ready)} is gone, so {shown(self.target)} cannot be committed")
        return begun

    def _plan(self, *, trusted_only: bool = False) -> Marker | None:
        """Return the content of the marker; None if there is none, or with ``trusted_only`` if it is not trusted.

        Raises:
            ForeignMarker: it is another user's.
            UntrustedFile: it is not a file that can be trusted.
        """
        where = self._place.location + self.marker
        try:
            status = self._web.status(self.marker)
            if status is None:
                return None
            if status.owner != self._user and not status.is_dir and status.link is None:
                raise ForeignMarker(self._place.location + self.target, self._app, status.owner)
            if status.is_dir or status.link is not None or status.owner != self._user:
                raise UntrustedFile(where, "is not a file, so it is not the marker of a commit; remove it")
            if status.mode & 0o022:
                raise UntrustedFile(where, "others may write it, so it is not used; remove it")
        except (ForeignMarker, UntrustedFile):
            if trusted_only:
                return None
            raise
        self._marker_status = status
        by_number = self._web.has_inode_paths()
        try:
            # By the checked inode, not by a name that may have changed.
            place = f"{INODES}/{status.inode_id}" if by_number else self.marker
            data = self._web.read_bytes(place, MAX_MARKER_BYTES)
        except NotFound:
            return None  # finished meanwhile
        if not by_number and self._web.status(self.marker) != status:
            return None
        return parse_marker(data, where, self.parts, self._app, "number")

    # ---- files that only the user can write ----

    @property
    def _user(self) -> str:
        return self._place.login.user

    def _named(self, parts: Parts) -> tuple[tuple[str, str], ...]:
        return named_containers(parts, self.parts, self._app, self._place.path)

    def _part(self, container: str) -> str:
        return f"{self.parts}/{container}"

    def _by_number(self, number: int, path: str) -> str:
        """Return a path that addresses an inode even if others rename it; without inode numbers, its last ``path``."""
        return f"{INODES}/{number}" if self._web.has_inode_paths() else path

    def _in_parts(self, path: str) -> str:
        """Return a path in ``tmp``, addressed by the inode number of ``tmp``.

        Raises:
            NotFound: there is no ``tmp``.
            UntrustedFile: others own the entry of its name or can write to it.
        """
        found = self._files.check_own_directory(self.parts)
        return self._by_number(found.inode_id, self.parts) + path[len(self.parts) :]

    def _untrusted_error(self, path: str) -> UntrustedFile:
        return UntrustedFile(self._place.location + path, "was not created by this commit; move it")

    def _is_committed(self) -> bool:
        """Return whether the target is this application's output, by its attribute; if HDFS has none, whether it
        exists."""
        try:
            return self._web.attribute(self.target, ATTRIBUTE) == attribute_value(self._app, self.target)
        except (NotFound, Denied):
            return False
        except HdfsRefused:
            return self._web.status(self.target) is not None

    def _make_own(self, path: str, mode: int) -> FileStatus:
        """Create a directory that only the user can write to; an existing one must satisfy that."""
        self._web.make_directory(path, mode)
        return self._files.check_own_directory(path)

    def _is_own(self, path: str) -> bool:
        status = self._web.status(path)
        return status is not None and status.owner == self._user

    def _remove_empty(self, path: str) -> bool:
        """Remove a directory if it is empty; return whether no entry of the user has this name now."""
        status = self._web.status(path)
        if status is None or status.owner != self._user:
            return True
        return self._web.delete_if_empty(path)

    def _remove_parts(self, *, but: Named = ()) -> None:
        """Remove ``tmp`` if it is exclusively the user's, and all its names are those of this commit.

        Raises:
            UntrustedFile: one of the parts ``but`` is still in it, because others took its destination directory.
        """
        try:
            found = self._files.check_own_directory(self.parts)
            top = f"{INODES}/{found.inode_id}" if self._web.has_inode_paths() else self.parts
            names = [one.name for one in self._web.children(top)]
        except (NotFound, UntrustedFile):
            return
        if any(container in names for _, container in but):
            raise self._untrusted_error(self.partial)
        asides = [path.rpartition("/")[2] for path in (self.old, self.dropped)]
        own = all(one in asides or _NEW_MARKER.fullmatch(one) or is_part(one, self._app) for one in names)
        now = self._web.status(top)
        # Another process at the same commit changes the time.
        if own and now is not None and now._replace(mtime_ms=found.mtime_ms) == found:
            self._remove_tree(top)

    def _remove_marker(self) -> None:
        """Remove the marker that was read or written; another entry of its name stays."""
        if self._marker_status is not None:
            self._web.delete_found(self._marker_status, self.marker)

    def _move_ready_aside(self, plan: Marker) -> None:
        """Rename the new target into ``tmp``, to be removed there.

        Raises:
            UntrustedFile: another user renamed something else to its name at this moment; that was renamed back.
        """
        if self._number(self.ready) != plan.number:
            return
        self._make_own(self.parts, 0o700)
        # By its name: by its number it would also be taken from the target, if another process has just moved it there.
        dropped = self._in_parts(self.dropped)
        with contextlib.suppress(NotFound):
            self._web.rename(self.ready, dropped)
        number = self._number(dropped)
        if number not in (None, plan.number):
            unique = f"{self.ready}.{os.urandom(4).hex()}"
            self._move(number, dropped, self.ready) or self._move(number, dropped, unique)
            raise self._untrusted_error(self.ready)

    # ---- the steps ----

    def _finish(self, plan: Marker, step: Step) -> str | None:
        stage = self._stage(plan)
        if stage == _BEFORE:
            if self._assemble(plan.parts, self.ready, plan.number, step):
                self._mark(plan)
                self._take_over_attributes(plan)
                step("ready")
                stage = self._swap(plan, step)
                step(stage)
            elif (stage := self._stage(plan)) == _BEFORE:
                stage = _LOST  # for a moment it was, and some of the parts are not in it
        if stage == _LOST:
            raise removed_error(self.ready, self.target, self.parts if self._has_parts(plan) else "")
        if stage == _REFUSED:
            self._remove_parts()
            self._remove_marker()
            raise CommitRefused(self._location, self._place.location + self.partial)
        return self._clean_up(plan, step)

    def _stage(self, plan: Marker) -> str:
        """Return how far a commit has come, by the current path of the new target.

        Gone: it was taken away after another process finished the commit. Lost: before that, as far as is known.
        """
        for path, stage in ((self.ready, _BEFORE), (self.target, _SWAPPED), (self.partial, _REFUSED)):
            if self._number(path) == plan.number:
                return stage
        name, container = plan.parts[0]
        if not name and self._number(self._part(container)) == plan.number:
            return _BEFORE
        # It may have been renamed between our checks, from a path not yet checked to one already checked.
        if self._number(self.ready) == plan.number:
            return _BEFORE
        if (there := self._number(self.target)) == plan.number:
            return _SWAPPED
        aside, marked = self._old(), self._marker_status is not None and self._web.status(self.marker)
        move_aside = aside is not None and aside.inode_id == plan.before
        if move_aside or plan.is_lost(there) or self._has_parts(plan) or marked == self._marker_status:
            return _LOST
        return _GONE

    def _has_parts(self, plan: Marker) -> bool:
        return any(self._web.status(self._part(container)) for _, container in plan.parts)

    def _assemble(self, parts: Named, into: str, number: int, step: Step, *, missing_ok: bool = False) -> bool:
        """Rename the parts into a directory, or a single unnamed part to that directory's name; those already there
        stay.

        Args:
            number: inode number of the directory; ignored for a single unnamed part.

        Returns:
            Whether all are there; if not, the directory has been renamed meanwhile.

        Raises:
            NotFound: a part is missing.
            UntrustedFile: something else is at the place of a part, or others can write to ``tmp``.
        """
        top, source = self._by_number(number, into) if parts[0][0] else into, ""
        with contextlib.suppress(NotFound):
            source = self._in_parts(self.parts)
        with calling(source, self.parts), calling(top, into):
            for name, container in parts:
                if name and self._number(into) != number:
                    return False
                part, place = f"{source}/{container}", f"{top}/{name}" if name else top
                try:
                    if not source:
                        raise NotFound(shown(self._part(container)))
                    if not self._web.rename(part, place) and self._web.status(part) is not None:
                        # The new target is addressed by its inode number, if available.
                        if place != self.ready or not self._web.has_inode_paths():
                            raise self._untrusted_error(place)
                        continue
                except NotFound:
                    if name and not missing_ok and self._web.status(place) is None:
                        if self._web.status(top) is None:
                            return False
                        raise NotFound(f"{shown(self._part(container))} is gone, so it cannot be committed") from None
                    continue
                step(f"part {name}".rstrip())
        return True

    def _swap(self, plan: Marker, step: Step) -> str:
        """Rename the new target to its name, replacing the old one, or aside if an existing one may not be replaced."""
        for pause_s in itertools.islice(backoff_s(*_SWAP_AGAIN_S), _MAX_SWAPS):
            # The order matters: if the new target is not in place now, then neither what was seen there before is it,
            # nor what came after it. In the other order, another process could swap between the two checks.
            there = self._web.status(self.target)
            stage = self._stage(plan)
            if stage != _BEFORE:
                break
            if there is None:
                if self._move(plan.number, self.ready, self.target):
                    return _SWAPPED
            elif not plan.overwrite:
                self._move(plan.number, self.ready, self.partial)
            else:
                # Usually the one that the marker calls old. Another that took its place since must be moved as well;
                # then the first one is unreferenced.
                if (old := self._old()) is not None and old.inode_id != there.inode_id:
                    self._dispose_of_old(plan)
                self._make_own(self.parts, 0o700)  # gone, if another process has just finished
                if not self._move(there.inode_id, self.target, self._in_parts(self.old)):
                    time.sleep(pause_s)
                step("old aside")
        else:
            raise DlappError(f"{shown(self.target)} changed {_MAX_SWAPS} times while it was to be replaced")
        if stage in (_GONE, _LOST):
            # Another process may have finished, and others may have committed since: the entry that we moved away is
            # theirs.
            self._restore_old()
            stage = self._stage(plan)
        return stage

    def _restore_old(self) -> None:
        """Undo the first half of a swap: restore the target that was moved aside, unless another took its place."""
        if (old := self._old()) is not None and not self._move(old.inode_id, self.old, self.target):
            self._move(old.inode_id, self.old, self.replaced)

    def _old(self) -> FileStatus | None:
        """Return what was moved aside; None if nothing was, or others can write to ``tmp``, so it is uncertain."""
        with contextlib.suppress(NotFound, UntrustedFile):
            return self._web.status(self._in_parts(self.old))
        return None

    def _move(self, number: int, old: str, path: str) -> bool:
        """Rename the inode ``number`` from ``old`` to ``path``; return whether it has that name now.

        Entries of others are never touched, except, without inode numbers, one that took the name at this moment.
        """
        try:
            if self._web.has_inode_paths():
                return self._web.rename(f"{INODES}/{number}", path) or self._number(path) == number
            if self._number(old) == number:
                self._web.rename(old, path)
        except NotFound:
            return False
        return self._number(path) == number

    def _clean_up(self, plan: Marker, step: Step) -> str | None:
        left = None
        if self._number(self.target) != plan.number:
            # Another user took the new target away; they may want the old one back.
            left = self._move_old_beside(self.replaced)
        elif plan.overwrite:  # else we put nothing there, and the entry only has the same name
            left = self._dispose_of_old(plan)
            if plan.keep_previous:
                step("old beside")
                self._remove_older(plan)
        step("old removed")
        self._remove_parts()
        step("parts removed")
        self._remove_marker()
        step("done")
        return left or self._replaced_location()

    def _replaced_location(self) -> str | None:
        """Return where an earlier process of this commit moved the old target."""
        left = next((path for path in (self.replaced, self.previous) if self._is_own(path)), None)
        return None if left is None else self._place.location + left

    @property
    def _dir_mode(self) -> int:
        return 0o755 & ~self._place.umask

    def _mask(self, path: str) -> None:
        """Remove permissions that new files and directories of this cluster do not get; a missing one is no error."""
        found = self._web.status(path)
        if found is not None and found.mode & self._place.umask:
            self._web.set_mode(path, found.mode & ~self._place.umask)

    def _take_over_attributes(self, plan: Marker) -> None:
        """Apply the policies of the replaced directory to one in ``ready``, and if the user owns the replaced one, also
        its permissions, group and access control list. If nothing is replaced, or another user's directory is, apply
        the permissions that the cluster allows: others may have put their directory in the place of the user's."""
        old, new = self._web.status(self.target), self._web.status(self.ready)
        if new is None or new.inode_id != plan.number:
            return
        ready = self._by_number(plan.number, self.ready)
        if old is None and self._old() is None:
            self._mask(ready)
        if old is None or not (plan.overwrite and old.is_dir and new.is_dir):
            return
        replaced = self._by_number(old.inode_id, self.target)
        if old.owner != self._user:
            self._mask(ready)
        else:
            self._web.set_mode(ready, old.mode & 0o1777)
            # A group that the user is not a member of, or an ACL on an HDFS without ACLs, cannot be applied.
            with contextlib.suppress(HdfsRefused, Denied):
                if old.group != new.group:
                    self._web.set_group(ready, old.group)
            with contextlib.suppress(HdfsRefused, Denied):
                if old.has_acl:
                    self._web.copy_acl(replaced, ready)
        # The launcher warned the submitter of what it cannot get.
        self._files.copy_policies(replaced, ready)

    def _mark(self, plan: Marker) -> None:
        """Set the attribute on ``ready``; without it, the next commit keeps what it replaces."""
        with contextlib.suppress(HdfsRefused, Denied):
            if self._number(self.ready) == plan.number:
                ready = self._by_number(plan.number, self.ready)
                self._web.set_attribute(ready, ATTRIBUTE, attribute_value(self._app, self.target))

    def _dispose_of_old(self, plan: Marker) -> str | None:
        """Remove the old target if dlapp wrote it. Else, or if it is kept or cannot be removed, move it beside the
        target.

        Returns:
            Its location then; None if it was removed.
        """
        old = self._old()
        if old is None:
            return None
        if self._is_written(self.old, old):
            if plan.keep_previous:
                return self._move_old_beside(self.previous)
            # An error while removing it must not undo the commit: the output is in place.
            with contextlib.suppress(Denied):
                if self._remove_found(self.old, old):
                    return None
        return self._move_old_beside(self.replaced)

    def _is_written(self, path: str, status: FileStatus) -> bool:
        """Return whether a file or directory is an output of the user at this target, by its attribute."""
        if status.owner != self._user or status.mode & 0o022 or status.link is not None:
            return False
        with contextlib.suppress(HdfsRefused, Denied, NotFound):
            value = self._web.attribute(self._by_number(status.inode_id, path), ATTRIBUTE)
            return value is not None and names_path(value, self.target)
        return False

    def _remove_older(self, plan: Marker) -> None:
        """Remove dlapp's former outputs beyond those that are kept; do nothing where others may rename them."""
        parent, _, name = self.target.rpartition("/")
        above = self._web.status(parent or "/")
        if above is None or (above.mode & 0o022 and not above.mode & 0o1000):
            return
        found = {one.name: one for one in self._web.children(parent or "/")}
        own = [
            one
            for one in previous_names(found, name, self._app)
            if found[one].inode_id != plan.number and self._is_written(f"{parent}/{one}", found[one])
        ]
        for one in own[plan.keep_previous :]:
            # An error while removing an old one must not undo the commit: the output is in place.
            with contextlib.suppress(Denied):
                self._make_own(self.parts, 0o700)
                if self._move(found[one].inode_id, f"{parent}/{one}", self._in_parts(self.dropped)):
                    self._remove_found(self.dropped, found[one])

    def _move_old_beside(self, wanted: str) -> str | None:
        """Move the old target beside the new one; return its location, or None if it is gone."""
        path = wanted
        while (old := self._old()) is not None:
            if self._move(old.inode_id, self.old, path):
                return self._place.location + path
            path = f"{wanted}.{os.urandom(4).hex()}"
        return None

    def _remove_found(self, path: str, found: FileStatus) -> bool:
        """Remove a tree in ``tmp`` if it is still the inode that was found; return whether it was."""
        place = self._by_number(found.inode_id, path)
        if self._web.status(place) != found._replace(name=""):
            return False
        self._remove_tree(place)
        return True

    def _remove_tree(self, path: str) -> None:
        self._files.remove(self._place.location + path)

    def _number(self, path: str) -> int | None:
        status = self._web.status(path)
        return status.inode_id if status else None


def applications_with_marker(files: CommitFiles, target: str) -> list[str]:
    """Return the applications that have a marker beside this target."""
    parent, _, name = files.place.path(target).rpartition("/")
    try:
        return applications_in_markers(files.names(files.place.location + (parent or "/")), name)
    except (NotFound, Denied):
        return []  # No commit can have started there, or we may not read it.
