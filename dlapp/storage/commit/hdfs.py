"""Commit of an output on HDFS, which cannot exchange two directories.

The names beside the target are those of `dlapp.storage.commit`, and one more:

    run.APP.tmp/run.APP.old      what the commit replaces, on its way out

A commit goes: the complete new target is put together as ``ready``; the marker is written; the old target is renamed to
``old``; ``ready`` gets the target's name; what dlapp did not write of ``old`` is kept beside the target
(`dlapp.storage.commit.written`); ``tmp``, with the rest and the parts, and the marker are removed. A reader
finds the old, the new, or between the two renames nothing. Whoever finds the marker finishes: every step looks whether
it was done.

There is no lock that ends with its process here, so two may be at it at the same moment: an ApplicationMaster that was
cut off and the one that followed it, or a user's next command. So no step rests on what was seen before it. The marker
holds the inode number of the new target; what is renamed is named by its number, so never something that has taken the
name since; and the NameNode refuses, in the same step, a name that is taken. Whoever comes late does nothing. A number
is not used twice, and a rename keeps it: where the new target's is shows how far a commit has come.

Others may be able to write beside the target, so the rules of `dlapp.storage.commit` hold: a marker is obeyed only if
the user owns it and nobody else may write it, ``tmp`` and ``ready`` are used only if they are directories of the user's
that nobody else may write, and a part lies in ``tmp`` under the name of its container. HDFS says who the owner is.
Where the directory beside the target is not sticky, others may rename what is the user's, whole trees, to a name of the
commit. So nothing is removed by a name beside the target: the marker goes by its number, ``tmp`` by its number if all
in it is named as by this commit, and what else is to go is renamed into ``tmp`` first, where it is known by its number
and nobody else can change a name.

Source: FSDirRenameOp (Options.Rename.NONE), FSDirectory.resolveDotInodesPath; seen on 3.4.2.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dlapp.errors import Denied, NotFound
from dlapp.locations import shown
from dlapp.storage.commit.marker import (
    MAX_MARKER_BYTES,
    CommitRefused,
    ForeignMarker,
    Marker,
    Parts,
    Step,
    ignore_step,
    is_application,
    is_container,
    marker_bytes,
    named_containers,
    parse_marker,
)
from dlapp.storage.commit.written import ATTRIBUTE, CommitTimes, attribute_value, names_path
from dlapp.storage.webhdfs import INODES, FileStatus, HdfsRefused
from dlapp.system.files import UntrustedFile

if TYPE_CHECKING:
    from dlapp.storage.hdfs import HdfsFiles

Named = Sequence[tuple[str, str]]
"""For each part its name in the target and its container."""

_BEFORE, _SWAPPED, _REFUSED, _GONE = "before", "swapped", "refused", "gone"
_DIR_MODE = 0o755
_NEW_MARKER = re.compile(r"commit\.[0-9a-f]{12}")


class HdfsCommit:
    """The commit of one application to one target; see `dlapp.storage.commit` for what each call promises."""

    def __init__(self, files: HdfsFiles, target: str, app: str) -> None:
        self._files, self._web, self._place = files, files.web, files.place
        self._location, self.target = target, files.place.path(target)
        self._app = app
        beside = f"{self.target}.{app}"
        name = beside.rpartition("/")[2]
        self.parts, self.ready = f"{beside}.tmp", f"{beside}.ready"
        self.old, self.dropped = f"{self.parts}/{name}.old", f"{self.parts}/{name}.dropped"
        self._marker_number: int | None = None
        self.marker, self.partial, self.replaced = (
            f"{beside}.commit",
            f"{beside}.partial",
            f"{self.target}.replaced.{app}",
        )
        self.failed = f"{beside}.failed"

    def commit(
        self, parts: Parts, *, overwrite: bool, again: bool, commit_times: CommitTimes, step: Step
    ) -> str | None:
        """Make the parts the target; see `OutputCommit.commit`.

        Args:
            parts, overwrite, again, commit_times, step: as there; the times do not count, see
                `dlapp.storage.commit.written`.
        """
        try:
            return self._commit(parts, overwrite, again, step)
        except NotFound:
            if not again:
                raise
            # Another process at the same commit may have ended it under our hands; then a new look shows it.
            return self._commit(parts, overwrite, again, step)

    def _commit(self, parts: Parts, overwrite: bool, again: bool, step: Step) -> str | None:
        named = self._named(parts)
        if (begun := self._plan()) is not None:
            return self._finish(begun, step)
        present = [container for _, container in named if self._web.status(self._part(container)) is not None]
        if again and named and not present:
            if self._web.status(self.partial) is not None:
                raise CommitRefused(self._location, self._place.location + self.partial)
            if self._web.status(self.target) is not None:
                # Who began beside the one that has ended it may have made this anew; without a marker it is empty.
                self._remove_empty(self.ready)
                return self._place.location + self.replaced if self._is_own(self.replaced) else None
        if not named:
            raise NotFound(f"{shown(self.target)}: there are no parts to commit")
        for _, container in named:
            if container not in present:
                raise NotFound(f"{shown(self._part(container))} is gone, so {shown(self.target)} cannot be committed")
        plan = self._begin(named, overwrite, step)
        if not any(self._web.status(self._part(container)) for _, container in named) and self._remove_empty(
            self.ready
        ):
            # While we began, another process committed them all.
            self._remove_marker()
            self._remove_parts()
            return None
        return self._finish(plan, step)

    def finish_interrupted(self) -> bool:
        """Finish a commit that has a marker; whether there was one."""
        plan = self._plan()
        if plan is None:
            return False
        with contextlib.suppress(CommitRefused):  # That settles it as well.
            self._finish(plan, ignore_step)
        return True

    def keep_partial(self, parts: Parts) -> str | None:
        """Put the output aside; its location, or None where there is none or it has become the target."""
        named = self._named(parts)
        plan = self._plan(obey_only=True)
        if plan is not None and self._stage(plan) in (_SWAPPED, _GONE):
            self._clean_up(plan, ignore_step)
            return None
        if plan is not None:
            self._bring_back()
            if self._stage(plan) == _BEFORE:
                self._assemble(plan.parts, self.ready, ignore_step, missing_ok=True)
                self._move(plan.number, self.partial)
        else:
            self._remove_empty(self.ready)  # Without a marker it has nothing in it.
            if self._is_own(self.parts):
                if any(name and self._web.status(self._part(container)) for name, container in named):
                    self._make_own(self.partial, _DIR_MODE)
                self._assemble(named, self.partial, ignore_step, missing_ok=True)
        self._remove_parts()
        if plan is not None:
            self._remove_marker()
        return self._place.location + self.partial if self._is_own(self.partial) else None

    def keep_failed(self, parts: Parts) -> str | None:
        """Put aside what failed containers stored; its location, or None where there is none."""
        named = self._named(parts)
        if self._is_own(self.parts):
            if any(name and self._web.status(self._part(container)) for name, container in named):
                self._make_own(self.failed, _DIR_MODE)
            self._assemble(named, self.failed, ignore_step, missing_ok=True)
        return self._place.location + self.failed if self._is_own(self.failed) else None

    def drop(self) -> None:
        """Remove all that is beside the target but a partial output."""
        plan = self._plan(obey_only=True)
        if plan is not None and self._stage(plan) in (_SWAPPED, _GONE):
            self._clean_up(plan, ignore_step)
            return
        if plan is not None:
            self._bring_back()
            self._take_ready(plan)
            # The marker is removed first: without the parts nobody could finish the commit.
            self._remove_marker()
        self._remove_parts()
        self._remove_empty(self.ready)

    # ---- the plan and its marker ----

    def _begin(self, parts: tuple[tuple[str, str], ...], overwrite: bool, step: Step) -> Marker:
        """Fix what the new target will be, and write it down; an earlier plan that appears meanwhile is the one."""
        self._make_own(self.parts, 0o700)
        if parts[0][0]:
            new: FileStatus | None = self._make_own(self.ready, _DIR_MODE)
        else:
            new = self._web.status(self._part(parts[0][1]))
        if new is None:
            where = self._part(parts[0][1])
            raise NotFound(f"{shown(where)} is gone, so {shown(self.target)} cannot be committed")
        plan = Marker(new.inode_id, overwrite, parts)
        new_marker = f"{self.parts}/commit.{os.urandom(6).hex()}"
        self._web.write(new_marker, marker_bytes(plan, "number"), 0o600)
        self._marker_number = self._number(new_marker)
        step("marker written")
        if not self._web.rename(new_marker, self.marker):
            self._marker_number = None
            return self._plan() or plan
        step("marker")
        return plan

    def _plan(self, *, obey_only: bool = False) -> Marker | None:
        """Return the content of the marker; None if there is none.

        Args:
            obey_only: return None for a marker that may not be obeyed.

        Raises:
            ForeignMarker: it is another user's.
            UntrustedFile: it is not a file that may be obeyed.
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
            if obey_only:
                return None
            raise
        self._marker_number = status.inode_id
        try:
            # By the inode that was checked, not by a name that may have changed.
            data = self._web.read_bytes(f"{INODES}/{status.inode_id}", MAX_MARKER_BYTES)
        except NotFound:
            # Finished meanwhile, or a number that is not served, as behind a router.
            if self._web.status(self.marker) != status:
                return None
            data = self._web.read_bytes(self.marker, MAX_MARKER_BYTES)
            if self._web.status(self.marker) != status:
                return None
        return parse_marker(data, where, self.parts, self._app, "number")

    # ---- the user's own files ----

    @property
    def _user(self) -> str:
        return self._place.login.user

    def _named(self, parts: Parts) -> tuple[tuple[str, str], ...]:
        return named_containers(parts, self.parts, self._app, self._place.path)

    def _part(self, container: str) -> str:
        return f"{self.parts}/{container}"

    def _make_own(self, path: str, mode: int) -> FileStatus:
        """Make a directory that the user alone may write; one that is there must be such a one."""
        self._web.make_directory(path, mode)
        return self._files.check_own_directory(path)

    def _is_own(self, path: str) -> bool:
        status = self._web.status(path)
        return status is not None and status.owner == self._user

    def _remove_empty(self, path: str) -> bool:
        """Remove a directory if it is empty; whether nothing of the user's has this name now."""
        status = self._web.status(path)
        if status is None or status.owner != self._user:
            return True
        return self._web.delete_if_empty(path)

    def _remove_parts(self) -> None:
        """Remove ``tmp``, if it is the user's alone, and all in it is named as by this commit."""
        try:
            top = f"{INODES}/{self._files.check_own_directory(self.parts).inode_id}"
            names = [one.name for one in self._web.children(top)]
        except (NotFound, UntrustedFile):
            return
        asides = [path.rpartition("/")[2] for path in (self.old, self.dropped)]
        if all(one in asides or _NEW_MARKER.fullmatch(one) or is_container(one, self._app) for one in names):
            self._remove_tree(top)

    def _remove_marker(self) -> None:
        """Remove the marker that was read or written; what else has its name stays."""
        if self._marker_number is not None:
            self._web.delete(f"{INODES}/{self._marker_number}")

    def _take_ready(self, plan: Marker) -> None:
        """Bring the new target into ``tmp``, to be removed there.

        Raises:
            UntrustedFile: somebody renamed another thing to its name in this moment; that has it again.
        """
        if self._number(self.ready) != plan.number:
            return
        self._make_own(self.parts, 0o700)
        # By its name: by its number it would be taken from the target, too, where another process has just put it.
        with contextlib.suppress(NotFound):
            self._web.rename(self.ready, self.dropped)
        number = self._number(self.dropped)
        if number not in (None, plan.number):
            self._move(number, self.ready) or self._move(number, f"{self.ready}.{os.urandom(4).hex()}")
            raise UntrustedFile(self._place.location + self.ready, "was not created by this commit; move it")

    # ---- the steps ----

    def _finish(self, plan: Marker, step: Step) -> str | None:
        stage = self._stage(plan)
        if stage == _GONE and any(self._web.status(self._part(container)) for _, container in plan.parts):
            raise NotFound(
                f"{shown(self.ready)} was taken away, so {shown(self.target)} cannot be committed; the output is kept "
                f"in {shown(self.parts)}"
            )
        if stage == _BEFORE:
            self._assemble(plan.parts, self.ready, step)
            self._mark(plan)
            step("ready")
            stage = self._swap(plan, step)
            step(stage)
        if stage == _REFUSED:
            self._remove_parts()
            self._remove_marker()
            raise CommitRefused(self._location, self._place.location + self.partial)
        return self._clean_up(plan, step)

    def _stage(self, plan: Marker) -> str:
        """Return how far a commit has come, by where the new target is; gone: somebody took it away after the swap."""
        for path, stage in ((self.ready, _BEFORE), (self.target, _SWAPPED), (self.partial, _REFUSED)):
            if self._number(path) == plan.number:
                return stage
        name, container = plan.parts[0]
        if not name and self._number(self._part(container)) == plan.number:
            return _BEFORE
        # It may have been renamed between our looks, from a place not yet seen to one that was.
        return _SWAPPED if self._number(self.target) == plan.number else _GONE

    def _assemble(self, parts: Named, into: str, step: Step, *, missing_ok: bool = False) -> None:
        """Rename the parts into the tree ``into``; those that are there already stay."""
        for name, container in parts:
            place, part = f"{into}/{name}" if name else into, self._part(container)
            try:
                self._web.rename(part, place)
            except NotFound:
                if not missing_ok and self._web.status(place) is None and self._web.status(into) is not None:
                    raise NotFound(f"{shown(part)} is gone, so it cannot be committed") from None
                continue
            step(f"part {name}".rstrip())

    def _swap(self, plan: Marker, step: Step) -> str:
        """Give the new target its name: over the old one, or aside where something there may not be replaced."""
        while True:
            # In this order: while the new target is not in place, what was seen there before that is not it, nor what
            # came after it. Looked at the other way round, another process may have swapped in between.
            there = self._web.status(self.target)
            stage = self._stage(plan)
            if stage != _BEFORE:
                break
            if there is None:
                if self._move(plan.number, self.target):
                    return _SWAPPED
            elif not plan.overwrite:
                self._move(plan.number, self.partial)
            else:
                # Usually what the marker calls old. Another that took its place since has to go as well; then the first
                # one is nobody's any more.
                if self._number(self.old) not in (None, there.inode_id):
                    self._dispose_of_old()
                self._make_own(self.parts, 0o700)  # gone, if another process has just finished
                self._move(there.inode_id, self.old)
                step("old aside")
        if stage == _GONE:
            # Another process had finished, and others have committed since: what we took away is theirs.
            self._bring_back()
        return stage

    def _bring_back(self) -> None:
        """Undo the first half of a swap: a target that was put aside; where another took its place, that keeps it."""
        aside = self._number(self.old)
        if aside is not None and not self._move(aside, self.target):
            self._move(aside, self.replaced)

    def _move(self, number: int, path: str) -> bool:
        """Give the inode ``number`` the name ``path``; whether it has it now. Nobody else's thing is touched."""
        try:
            return self._web.rename(f"{INODES}/{number}", path) or self._number(path) == number
        except NotFound:
            return False

    def _clean_up(self, plan: Marker, step: Step) -> str | None:
        left = None
        if self._number(self.target) != plan.number:
            left = self._put_old_beside()  # Somebody took the new target away; the old one may be what they want back.
        elif plan.overwrite:  # else we put nothing there, and what is there only has that name
            left = self._dispose_of_old()
        step("old removed")
        self._remove_parts()
        step("parts removed")
        self._remove_marker()
        step("done")
        return left

    def _mark(self, plan: Marker) -> None:
        """Set the attribute on ``ready``; without it the next commit keeps what it replaces."""
        with contextlib.suppress(HdfsRefused, Denied):
            if self._number(self.ready) == plan.number:
                self._web.set_attribute(self.ready, ATTRIBUTE, attribute_value(self._app, self.target))

    def _dispose_of_old(self) -> str | None:
        """Remove what was replaced, if dlapp wrote it. Else, or if it cannot be removed, put it beside the target.

        Returns:
            Its location then; None: it is gone.
        """
        status = self._web.status(self.old)
        if status is None:
            return None
        value = None
        if status.owner == self._user and not status.mode & 0o022:
            with contextlib.suppress(HdfsRefused, Denied, NotFound):
                value = self._web.attribute(self.old, ATTRIBUTE)
        if value is not None and names_path(value, self.target):
            # That it cannot be removed must not undo the commit: the output is in place.
            with contextlib.suppress(Denied):
                self._remove_tree(self.old)
                return None
        return self._put_old_beside()

    def _put_old_beside(self) -> str | None:
        """Put what was replaced beside the target; its location, or None if it is gone."""
        path = self.replaced
        while (number := self._number(self.old)) is not None:
            if self._move(number, path):
                return self._place.location + path
            path = f"{self.replaced}.{os.urandom(4).hex()}"
        return None

    def _remove_tree(self, path: str) -> None:
        self._files.remove(self._place.location + path)

    def _number(self, path: str) -> int | None:
        status: FileStatus | None = self._web.status(path)
        return status.inode_id if status else None


def marked_beside(files: HdfsFiles, target: str) -> list[str]:
    """The applications that have a marker beside this target."""
    parent, _, name = files.place.path(target).rpartition("/")
    try:
        around = files.names(files.place.location + (parent or "/"))
    except (NotFound, Denied):
        return []  # Nobody can have begun there, or it is not ours to look into.
    start, end = f"{name}.", ".commit"
    middles = [one[len(start) : -len(end)] for one in around if one.startswith(start) and one.endswith(end)]
    return sorted(middle for middle in middles if is_application(middle))
