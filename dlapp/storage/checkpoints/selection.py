"""Selection of the files of a directory that are a checkpoint, by two inspections of it while a program writes there.

Files are saved together, so a checkpoint is more than files that are not half written. The files of a directory form
groups, each of which is whole or is left out:

- A name with a step, such as ``checkpoint-500/``, ``epoch=1-step=500.ckpt`` or ``ckpt-500.index`` with
  ``ckpt-500.data-00000-of-00001``, is a group of its own: a program saves one after the other.
- Logs (`_LOGS`, `_TABLES`, or a file that is open for appending) belong to no save. One that is being written is left
  out. If there are only logs, they are the checkpoint.
- All other files are one group.

A group is whole if between the inspections nothing in it changed and nothing was open for writing. The others are whole
only by evidence. It can be had of programs that never write to a file again that has its final name, because the files
of the first inspection stay open (`dlapp.storage.checkpoints.snapshot`), and none of them may have changed:

- A file with a step that is alone in its group.
- A directory with a step that has all files that its siblings have.
- Other files of which at most one was saved around the inspections, and after the end none within a minute before it;
  or several, if the time from their last change to
  the inspection is at least that between their first change and their last: so it was between two saves, not in one.
  Saves that follow each other faster than they are written are never recognized.

Pure functions of inspections.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from dlapp.storage.values import TreeNode

_STEP = re.compile(
    r"(?<![a-z])(?P<kind>checkpoint|ckpt|chkpt|(?:global[-_]?)?steps?|iter(?:ation)?s?|updates?|epochs?)"
    r"[-_=.]?(?P<number>[0-9]{1,12})(?![0-9])(?![-_.]?of[-_.]?[0-9])",
    re.IGNORECASE,
)
"""A step in a name. A number of a shard (``model.ckpt-00001-of-00003``), a rank or a version is no step."""
_LOGS = re.compile(
    r"(?:.*/)?(?:events\.out\.tfevents\.[^/]*|stdout|stderr|[^/]*\.(?:log|out|err|wandb))", re.IGNORECASE | re.DOTALL
)
_TABLES = re.compile(
    r"(?:.*/)?(?:(?:wandb|mlruns)/.*|[^/]*\.(?:csv|jsonl|(?:sqlite3?|db)(?:-wal|-shm|-journal)?))",
    re.IGNORECASE | re.DOTALL,
)
"""Logs, too, but not in a directory with a step: there they can be a part of the save."""


_LONGEST_PAUSE_NS = 60_000_000_000
"""Time between two files of one save: a program may gather its next part from other processes meanwhile. At the end of
a program nothing follows that would show it; while it runs, a later copy does."""


class FileIdentity(NamedTuple):
    """Identity of a file with its content: every change updates ``ctime_ns``."""

    device: int
    inode: int
    size_bytes: int
    mtime_ns: int
    ctime_ns: int


class DirectoryState(NamedTuple):
    """State of a directory: equal states mean equal content.

    Args:
        nodes: all entries, the directory itself first.
        identities: the identities of its files, by name.
    """

    nodes: list[TreeNode]
    identities: dict[str, FileIdentity]

    @property
    def key(self) -> tuple[object, ...]:
        """Return what two states differ in."""
        links = [(one.name, one) for one in self.nodes if one.link is not None]
        return tuple(sorted([*self.identities.items(), *links], key=lambda one: one[0]))

    def only(self, names: Collection[str]) -> DirectoryState:
        """Return the state of some entries."""
        nodes = [one for one in self.nodes if one.name in names]
        return DirectoryState(nodes, {name: one for name, one in self.identities.items() if name in names})


class Inspection(NamedTuple):
    """A directory at one moment.

    Args:
        at_ns: the time [ns since 1970].
        writers: file -> whether all that have it open for writing append to it.
    """

    state: DirectoryState
    at_ns: int
    writers: Mapping[str, bool]


class BusyEntry(NamedTuple):
    """Entry because of which a part of a directory is no checkpoint: its name, and what is wrong with it."""

    name: str
    what: str


class Selection(NamedTuple):
    """Part of a directory that is a checkpoint.

    Args:
        names: of its entries; empty if there is none.
        key: what two checkpoints differ in; logs do not count.
        blocked: why entries without a step are left out; None: none are.
        unfinished: why entries with a step are left out; None: none are.
    """

    names: frozenset[str]
    key: tuple[object, ...]
    blocked: BusyEntry | None = None
    unfinished: BusyEntry | None = None


def select(
    first: Inspection, second: Inspection, unchanged: Collection[str], quiet_ns: int, *, has_ended: bool
) -> Selection:
    """Select the entries of the first inspection that are a checkpoint.

    Args:
        first: an inspection; after the end of the program the one before it got SIGTERM, or ``second`` if there was
            none.
        second: a later inspection.
        unchanged: the files of the first inspection whose content is still the same; they may have been replaced or
            removed.
        quiet_ns: time without changes after which a save is over: what changed so shortly before ``first`` may be part
            of a save.
        has_ended: the second inspection is after the end of the program.
    """
    changes = _Changes(first, second, frozenset(unchanged), quiet_ns, has_ended=has_ended)
    names = changes.before.keys() | changes.after.keys()
    logs = {name for name in names if _is_log(name) or changes.is_appended(name)}
    if not any(changes.is_file(name) for name in names - logs):
        logs = set()
    stepped, rest = _groups(names - logs, changes.directories)
    series: dict[str, list[set[str]]] = {}
    for group in stepped:
        if group.is_directory and (mine := group.names & changes.before.keys()):
            series.setdefault(group.series, []).append({_without_steps(name) for name in mine})
    all_names = {name: set().union(*found) for name, found in series.items() if len(found) > 1}
    whole: set[str] = set()
    unfinished, left_out = None, set[str]()
    for group in stepped:
        if problem := changes.problem_with_step(group, all_names.get(group.series)):
            unfinished, left_out = unfinished or problem, left_out | group.names
        else:
            whole |= group.names & changes.before.keys()
    if any(map(changes.is_file, left_out)) and (not whole or changes.are_as_new(rest, left_out)):
        # The other files are only a part of the save that is left out, or name it, as a file ``latest`` does.
        return Selection(frozenset(), (), None, unfinished)
    blocked, usable = changes.problem(rest)
    if not blocked:
        whole |= usable
    elif whole:  # the other entries are no part of these saves
        for part in _by_directory(rest):
            problem, usable = changes.problem(part)
            whole |= set() if problem else usable
    if not any(changes.is_file(name) for name in whole):
        return Selection(frozenset(), (), blocked, unfinished)
    whole |= {name for name in logs & changes.before.keys() if changes.is_readable(name)}
    links = {one.name: one.link for one in first.state.nodes if one.link is not None}
    whole -= {name for name in whole & links.keys() if _target_of(name, links[name]) in names - whole}
    key = first.state.only(whole - logs).key
    return Selection(frozenset(whole | _directories(first.state, whole, names)), key, blocked, unfinished)


def is_cut_off(first: Inspection, last: Inspection) -> bool:
    """Return whether a program may have died while it wrote a file: the file was open for writing before SIGTERM, and
    has not changed since. Logs do not count.

    Args:
        first: the inspection before SIGTERM.
        last: the one after the end of the program.
    """
    before, after = first.state.identities, last.state.identities
    return any(
        name in before and before[name] == after.get(name)
        for name, appends in first.writers.items()
        if not appends and not _is_log(name)
    )


def select_all(found: Inspection, reported_ns: int) -> Selection:
    """Select what a program has reported to be complete: everything but logs that it has written since.

    Args:
        found: the directory.
        reported_ns: the time of the report [ns since 1970].
    """
    files = found.state.identities
    logs = {name for name, appends in found.writers.items() if appends or _is_log(name)}
    logs |= {name for name, one in files.items() if one.ctime_ns > reported_ns and _is_log(name)}
    if not files.keys() - logs:
        logs = set()
    names = {one.name for one in found.state.nodes} - logs
    return Selection(frozenset(names), found.state.only(names).key)


def step_of(names: Iterable[str]) -> tuple[int | None, int | None]:
    """Return the greatest step and the greatest epoch in the names of a checkpoint; None: there is none."""
    steps: list[int] = []
    epochs: list[int] = []
    for found in _STEP.finditer("\n".join(names)):
        (epochs if found["kind"].lower().startswith("epoch") else steps).append(int(found["number"]))
    return max(steps, default=None), max(epochs, default=None)


class _Group(NamedTuple):
    """Entries that are saved together.

    Args:
        series: the same for groups that differ only in their step.
        is_directory: they are in a directory with the step in its name.
    """

    series: str
    is_directory: bool
    names: set[str]


class _Changes:
    """Changes between two inspections. The entries are files and links; also directories with a step in their path.

    Attributes:
        before, after: the entries of the inspections, each with its identity.
        directories: all directories of the inspections.
    """

    def __init__(
        self, first: Inspection, second: Inspection, unchanged: frozenset[str], quiet_ns: int, *, has_ended: bool
    ) -> None:
        self._first, self._second, self._unchanged = first, second, unchanged
        self._quiet_ns, self._has_ended = quiet_ns, has_ended
        self._is_without_warning = has_ended and first is second
        self.before, self.after = _entries(first.state), _entries(second.state)
        self.directories = {one.name for found in (first, second) for one in found.state.nodes if one.is_dir}
        self._times_ns = {name: one.ctime_ns for name, one in first.state.identities.items()}
        self._times_ns |= {one.name: one.mtime_ns for one in first.state.nodes if one.name not in self._times_ns}

    def is_file(self, name: str) -> bool:
        return name in self._first.state.identities or name in self._second.state.identities

    def is_appended(self, name: str) -> bool:
        found = [one.writers[name] for one in (self._first, self._second) if name in one.writers]
        return bool(found) and all(found)

    def is_readable(self, name: str) -> bool:
        """Return whether a log can be copied."""
        return name in self._unchanged and (self._has_ended or not self._is_open(name))

    def are_as_new(self, names: Collection[str], others: Collection[str]) -> bool:
        """Return whether one of some files was written after the first of some others."""
        times = [self._times_ns[name] for name in others if self.is_file(name) and name in self._times_ns]
        return bool(times) and any(
            self._times_ns[name] >= min(times) for name in names if self.is_file(name) and name in self._times_ns
        )

    def problem_with_step(self, group: _Group, all_names: set[str] | None) -> BusyEntry | None:
        """Return why a group with a step is no whole save.

        Args:
            all_names: for one of several similar directories: what they have together; else None.
        """
        names, mine = group.names, group.names & self.before.keys()
        unsettled = sorted(name for name in names if not self._is_settled(name))
        if not any(self.is_file(name) for name in mine):
            return BusyEntry(min(names), "is empty" if mine else "has just appeared")
        if not unsettled:
            return None
        if spoiled := sorted(name for name in mine if not self._is_intact(name)):
            return self._problem_of(spoiled[0])
        is_whole = all_names == {_without_steps(name) for name in mine} if group.is_directory else len(names) == 1
        return None if is_whole else self._problem_of(unsettled[0])

    def problem(self, names: set[str]) -> tuple[BusyEntry | None, set[str]]:
        """Return why entries without a step are no whole save, and those that can be copied if they are one."""
        mine = names & self.before.keys()
        spoiled = {name for name in mine if not self._is_intact(name)}
        usable = mine - spoiled
        if all(map(self._is_settled, names)):
            return None, mine
        if kept := sorted(name for name in spoiled if self._is_same_inode(name)):
            return self._problem_of(kept[0]), usable
        recent = {name for name in usable if not self._is_settled(name) or self._is_recent(name)}
        new = names - mine
        are_replaced = bool(recent) and all(self.before[name] != self.after.get(name) for name in recent)
        if not usable or (new and not are_replaced and not self._has_ended):
            return self._problem_of(min(new or names)), usable
        if self._has_ended and len(recent) == 1 and any(map(self._may_be_of_last_save, usable - recent)):
            return self._problem_of(min(recent)), usable
        times = [self._times_ns[name] for name in recent]
        if len(times) > 1 and self._first.at_ns - max(times) < max(times) - min(times):
            return BusyEntry(min(recent), f"and {len(times) - 1} more were being saved"), usable
        return None, usable

    def _is_settled(self, name: str) -> bool:
        is_same = self.before.get(name) == self.after.get(name) and not self._is_open(name)
        return is_same and not (self._has_ended and self._is_recent(name))

    def _is_intact(self, name: str) -> bool:
        """Return whether an entry of the first inspection was not half written, and has not changed since."""
        if name in self._first.writers or (name in self._second.writers and self._is_same_inode(name)):
            return False
        if self._is_without_warning and self._is_recent(name):
            return False
        return name in self._unchanged or name not in self._first.state.identities

    def _is_open(self, name: str) -> bool:
        return name in self._first.writers or name in self._second.writers

    def _is_recent(self, name: str) -> bool:
        return self._first.at_ns - self._times_ns.get(name, self._first.at_ns) < self._quiet_ns

    def _may_be_of_last_save(self, name: str) -> bool:
        return self.is_file(name) and self._first.at_ns - self._times_ns[name] < _LONGEST_PAUSE_NS

    def _is_same_inode(self, name: str) -> bool:
        before, after = (one.state.identities.get(name) for one in (self._first, self._second))
        return before is not None and after is not None and before[:2] == after[:2]

    def _problem_of(self, name: str) -> BusyEntry:
        if self._is_open(name):
            return BusyEntry(name, "was open for writing" if self._has_ended else "is open for writing")
        return BusyEntry(name, "was written shortly before the end" if self._has_ended else "has just been written")


def _entries(state: DirectoryState) -> dict[str, object]:
    """Return the identities of files and links, and of directories with a step in their path."""
    found: dict[str, object] = dict(state.identities)
    for one in state.nodes:
        if one.link is not None:
            found[one.name] = one
        elif one.is_dir and _unit_of(one.name, is_directory=True) is not None:
            found[one.name] = "directory"
    return found


def _is_log(name: str) -> bool:
    is_table = _TABLES.fullmatch(name) is not None and _unit_of(name, is_directory=False) is None
    return is_table or _LOGS.fullmatch(name) is not None


def _unit_of(name: str, *, is_directory: bool) -> tuple[str, bool] | None:
    """Return the path of the first directory with a step in its name, or the name of a file up to its step; and whether
    it is a directory. None if there is no step."""
    parts = name.split("/")
    for count, part in enumerate(parts, 1):
        if steps := list(_STEP.finditer(part)):
            if count < len(parts) or is_directory:
                return "/".join(parts[:count]), True
            return "/".join([*parts[:-1], part[: steps[-1].end()]]), False
    return None


def _groups(names: set[str], directories: Collection[str]) -> tuple[list[_Group], set[str]]:
    """Return the groups with a step, and all other entries."""
    units: dict[tuple[str, bool], set[str]] = {}
    rest = set()
    for name in names:
        unit = _unit_of(name, is_directory=name in directories)
        if unit is None:
            rest.add(name)
        else:
            units.setdefault(unit, set()).add(name)
    return [_Group(_without_steps(path), is_dir, found) for (path, is_dir), found in sorted(units.items())], rest


def _by_directory(names: set[str]) -> list[set[str]]:
    found: dict[str, set[str]] = {}
    for name in names:
        found.setdefault(posixpath.dirname(name), set()).add(name)
    return list(found.values())


def _without_steps(name: str) -> str:
    return _STEP.sub(lambda found: f"{found['kind']}#", name)


def _target_of(name: str, link: str | None) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(name), link or ""))


def _directories(state: DirectoryState, selected: set[str], entries: Collection[str]) -> set[str]:
    """Return the directories without a step in their path that have a selected entry, or no entry at all."""
    above = {path for name in selected for path in _above(name)}
    others = {path for name in entries for path in (name, *_above(name))} - above
    return {one.name for one in state.nodes if one.is_dir and one.name not in others}


def _above(name: str) -> list[str]:
    """Return the paths of the directories above an entry."""
    parts = name.split("/")
    return ["", *("/".join(parts[:count]) for count in range(1, len(parts)))]
