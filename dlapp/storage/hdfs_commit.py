"""How an application's output gets its final name on HDFS, which cannot exchange two directories.

The names beside the target are those of `dlapp.storage.commit`, and one more:

    run.APP.old                  what the commit replaces, on its way out

A commit goes: the complete new target is put together as ``ready``; the marker is written; the old target is renamed to
``old``; ``ready`` gets the target's name; ``old``, the parts and the marker are removed. A reader finds the old, the
new, or between the two renames nothing. Whoever finds the marker finishes: every step looks whether it was done.

There is no lock that ends with its process here, so two may be at it at the same moment: an ApplicationMaster that was
cut off and the one that followed it, or a user's next command. So no step rests on what was seen before it. The marker
holds the inode number of the new target; what is renamed is named by its number, so never something that has taken the
name since; and the NameNode refuses, in the same step, a name that is taken. Whoever comes late does nothing. A number
is not used twice, and a rename keeps it: where the new target's is shows how far a commit has come.

Source: FSDirRenameOp (Options.Rename.NONE), FSDirectory.resolveDotInodesPath; seen on 3.4.2.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dlapp.errors import Denied, DlappError, NotFound, UsageError
from dlapp.ids import ApplicationId
from dlapp.storage import shown
from dlapp.storage.hdfs import HdfsFiles
from dlapp.storage.webhdfs import NUMBERS, Status

Parts = Sequence[tuple[str, str]]
Step = Callable[[str], None]

_VERSION = 1
_BEFORE, _SWAPPED, _REFUSED, _GONE = "before", "swapped", "refused", "gone"
_DIR_MODE = 0o755


class Refused(DlappError):
    """The target appeared while the application ran and may not be replaced; the output is kept at ``partial``."""

    def __init__(self, partial: str) -> None:
        super().__init__(f"the output is kept at {shown(partial)}")
        self.partial = partial


@dataclass(frozen=True, slots=True)
class _Plan:
    """What the marker says.

    Args:
        number: the new target's inode number.
        parts: by name in the target, with their paths.
    """

    number: int
    overwrite: bool
    parts: tuple[tuple[str, str], ...]


class HdfsCommit:
    """The commit of one application to one target; see `dlapp.storage.commit` for what each call promises."""

    def __init__(self, files: HdfsFiles, target: str, app: str) -> None:
        self._files, self._web, self._place = files, files.web, files.place
        self.target = files.place.path(target)
        self._app = app
        beside = f"{self.target}.{app}"
        self.parts, self.ready, self.old = f"{beside}.tmp", f"{beside}.ready", f"{beside}.old"
        self.marker, self.partial, self.replaced = f"{beside}.commit", f"{beside}.partial", f"{beside}.replaced"

    def commit(self, parts: Parts, *, overwrite: bool, again: bool, step: Step) -> str | None:
        """Make the parts the target; where the rest of the old one lies if it could not be removed."""
        try:
            return self._commit(parts, overwrite, again, step)
        except NotFound:
            if not again:
                raise
            # Another process at the same commit may have ended it under our hands; then a new look shows it.
            return self._commit(parts, overwrite, again, step)

    def _commit(self, parts: Parts, overwrite: bool, again: bool, step: Step) -> str | None:
        if (begun := self._plan()) is not None:
            return self._finish(begun, step)
        there = tuple((name, self._place.path(location)) for name, location in parts)
        present = [path for _, path in there if self._web.status(path) is not None]
        if again and there and not present:
            if self._web.status(self.partial) is not None:
                raise Refused(self._place.location + self.partial)
            if self._web.status(self.target) is not None:
                # Who began beside the one that has ended it may have made this anew; without a marker it is empty.
                self._web.delete_if_empty(self.ready)
                return None
        if not there:
            raise NotFound(f"{shown(self.target)}: there are no parts to commit")
        for _, path in there:
            if path not in present:
                raise NotFound(f"{shown(path)} is gone, so {shown(self.target)} cannot be committed")
        plan = self._begin(there, overwrite, step)
        if not any(self._web.status(path) for _, path in there) and self._web.delete_if_empty(self.ready):
            # While we began, another process committed them all.
            self._web.delete(self.marker)
            self._remove_tree(self.parts)
            return None
        return self._finish(plan, step)

    def finish_interrupted(self) -> bool:
        """Finish a commit that has a marker; whether there was one."""
        plan = self._plan()
        if plan is None:
            return False
        with contextlib.suppress(Refused):  # That settles it as well.
            self._finish(plan, _ignore)
        return True

    def keep_partial(self, parts: Parts) -> str | None:
        """Put the output aside; its location, or None where there is none or it has become the target."""
        plan = self._plan()
        if plan is not None and self._stage(plan) in (_SWAPPED, _GONE):
            self._clean_up(plan, _ignore)
            return None
        if plan is not None:
            self._bring_back()
            if self._stage(plan) == _BEFORE:
                self._assemble(plan.parts, self.ready, _ignore, missing_ok=True)
                self._move(plan.number, self.partial)
        else:
            there = tuple((name, self._place.path(location)) for name, location in parts)
            self._web.delete_if_empty(self.ready)  # Without a marker it has nothing in it.
            if any(name and self._web.status(path) for name, path in there):
                self._web.make_directory(self.partial, _DIR_MODE)
            self._assemble(there, self.partial, _ignore, missing_ok=True)
        self._remove_tree(self.parts)
        self._web.delete(self.marker)
        return self._place.location + self.partial if self._web.status(self.partial) else None

    def drop(self) -> None:
        """Remove all that is beside the target but a partial output."""
        plan = self._plan()
        if plan is not None and self._stage(plan) in (_SWAPPED, _GONE):
            self._clean_up(plan, _ignore)
            return
        if plan is not None:
            self._bring_back()
        # The marker goes first: with parts missing, nobody could finish what it says.
        self._web.delete(self.marker)
        self._remove_tree(self.parts)
        self._remove_tree(self.ready)

    # ---- the plan and its marker ----

    def _begin(self, parts: tuple[tuple[str, str], ...], overwrite: bool, step: Step) -> _Plan:
        """Fix what the new target will be, and write it down; an earlier plan that appears meanwhile is the one."""
        self._web.make_directory(self.parts, 0o700)
        if parts[0][0]:
            self._web.make_directory(self.ready, _DIR_MODE)
        new = self._web.status(self.ready if parts[0][0] else parts[0][1])
        if new is None:
            raise NotFound(f"{shown(parts[0][1])} is gone, so {shown(self.target)} cannot be committed")
        plan = _Plan(new.number, overwrite, parts)
        said = {
            "version": _VERSION,
            "number": plan.number,
            "overwrite": overwrite,
            "parts": plan.parts,
        }
        new_marker = f"{self.parts}/commit.{os.urandom(6).hex()}"
        self._web.write(new_marker, json.dumps(said, indent=1).encode())
        step("marker written")
        if not self._web.rename(new_marker, self.marker):
            return self._plan() or plan
        step("marker")
        return plan

    def _plan(self) -> _Plan | None:
        where = self._place.location + self.marker
        try:
            said = json.loads(self._files.read_bytes(where))
            version = said["version"]
            plan = _Plan(said["number"], said["overwrite"], tuple((n, p) for n, p in said["parts"]))
        except NotFound:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise DlappError(f"{shown(where)} is damaged: {error}; look at it and what is beside it by hand") from error
        if version > _VERSION:
            raise DlappError(f"{shown(where)} was written by a newer dlapp (format {version}); use that one")
        return plan

    # ---- the steps ----

    def _finish(self, plan: _Plan, step: Step) -> str | None:
        stage = self._stage(plan)
        if stage == _BEFORE:
            self._assemble(plan.parts, self.ready, step)
            step("ready")
            stage = self._swap(plan, step)
            step(stage)
        if stage == _REFUSED:
            self._remove_tree(self.parts)
            self._web.delete(self.marker)
            raise Refused(self._place.location + self.partial)
        return self._clean_up(plan, step)

    def _stage(self, plan: _Plan) -> str:
        """How far a commit has come, by where the new target is; gone: somebody took it away after the swap."""
        for path, stage in ((self.ready, _BEFORE), (self.target, _SWAPPED), (self.partial, _REFUSED)):
            if self._number(path) == plan.number:
                return stage
        name, part = plan.parts[0]
        if not name and self._number(part) == plan.number:
            return _BEFORE
        # It may have been renamed between our looks, from a place not yet seen to one that was.
        return _SWAPPED if self._number(self.target) == plan.number else _GONE

    def _assemble(self, parts: Parts, into: str, step: Step, *, missing_ok: bool = False) -> None:
        """Rename the parts into the tree ``into``; those that are there already stay."""
        for name, part in parts:
            place = f"{into}/{name}" if name else into
            try:
                self._web.rename(part, place)
            except NotFound:
                if not missing_ok and self._web.status(place) is None and self._web.status(into) is not None:
                    raise NotFound(f"{shown(part)} is gone, so it cannot be committed") from None
                continue
            step(f"part {name}".rstrip())

    def _swap(self, plan: _Plan, step: Step) -> str:
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
                if self._number(self.old) not in (None, there.number):
                    self._remove_tree(self.old)
                self._move(there.number, self.old)
                step("old aside")
        if stage == _GONE:
            # Another process had finished, and others have committed since: what we took away is theirs.
            self._bring_back()
        return stage

    def _bring_back(self) -> None:
        """Undo the first half of a swap: a target that was put aside, where nothing has taken its place."""
        aside = self._web.status(self.old)
        if aside is not None:
            self._move(aside.number, self.target)

    def _move(self, number: int, path: str) -> bool:
        """Give the inode ``number`` the name ``path``; whether it has it now. Nobody else's thing is touched."""
        try:
            return self._web.rename(f"{NUMBERS}/{number}", path) or self._number(path) == number
        except NotFound:
            return False

    def _clean_up(self, plan: _Plan, step: Step) -> str | None:
        left = None
        try:
            if self._number(self.target) != plan.number:
                raise Denied  # Somebody took the new target away; the old one may be what they want back.
            self._remove_tree(self.old)
        except Denied:
            # The output is in place; that the old one cannot go must not undo it.
            aside = self._web.status(self.old)
            if aside is not None and self._move(aside.number, self.replaced):
                left = self._place.location + self.replaced
        step("old removed")
        self._remove_tree(self.parts)
        step("parts removed")
        self._web.delete(self.marker)
        step("done")
        return left

    def _remove_tree(self, path: str) -> None:
        self._files.remove(self._place.location + path)

    def _number(self, path: str) -> int | None:
        status: Status | None = self._web.status(path)
        return status.number if status else None


def marked(files: HdfsFiles, target: str) -> list[str]:
    """The applications that have a marker beside this target."""
    parent, _, name = files.place.path(target).rpartition("/")
    try:
        around = files.names(files.place.location + (parent or "/"))
    except (NotFound, Denied):
        return []  # Nobody can have begun there, or it is not ours to look into.
    start, end = f"{name}.", ".commit"
    middles = [one[len(start) : -len(end)] for one in around if one.startswith(start) and one.endswith(end)]
    return sorted(middle for middle in middles if _is_application(middle))


def _is_application(text: str) -> bool:
    try:
        ApplicationId.from_text(text)
    except UsageError:
        return False
    return True


def _ignore(_step: str) -> None:
    pass
