"""How an application's output gets its final name: all of it at once, and never mixed with what was there.

The functions are for any target; what follows is how it goes on local files, `dlapp.storage.hdfs_commit` has HDFS.
Everything happens beside the target, so on its file system. With ``run`` as target and ``APP`` as application:

    run.APP.tmp/<container id>   one container's part, as its task stored it
    run.APP.ready                the complete new target; after the exchange what it replaced
    run.APP.commit               the marker: from here on the commit is finished, whoever has to do it
    run.APP.partial              what a failed application left
    run.APP.replaced             an old target that could not be removed: it has files of somebody else's, say

A commit goes: the parts are made durable; the marker is written; the parts are renamed into ``ready``; ``ready`` and
the target exchange their names in one call of the kernel (or ``ready`` gets the target's name, where there was none);
what was replaced is removed, and the marker at last. A reader finds the old or the new at any moment.

Each step is a rename, an unlink or nothing if it was done before, so a commit that was cut off anywhere is finished by
doing it again, from what the marker says. Whether names were exchanged already shows in ``ready``: the marker has the
inode number of the new target, and only the exchange puts another one there. The marker is locked as long as a commit
works on it (flock, which ends with its process), so nobody finishes what is still going on.

Source: rename(2), RENAME_EXCHANGE and RENAME_NOREPLACE, Linux 3.15.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dlapp.errors import Denied, DlappError, NotFound, UsageError
from dlapp.ids import ApplicationId, ContainerId
from dlapp.storage import HDFS, HdfsPlace, file_location, local_path, shown
from dlapp.storage.tree import explained, remove_tree

if TYPE_CHECKING:
    from dlapp.storage.hdfs import HdfsFiles
    from dlapp.storage.hdfs_commit import HdfsCommit

Parts = Sequence[tuple[str, str]]
"""For each part its name in the target and its location. One part named "" is the whole target; it may be a file."""

Step = Callable[[str], None]
"""Told the name of each step that has just been done; for tests, which die there."""

_VERSION = 1
_AT_FDCWD = -100
_NOREPLACE, _EXCHANGE = 1, 2
_BEFORE, _SWAPPED, _REFUSED = "before", "swapped", "refused"


class CommitRefused(DlappError):
    """The target appeared while the application ran and may not be replaced; the output is kept at ``partial``."""

    def __init__(self, target: str, partial: str) -> None:
        super().__init__(
            f"{shown(target)} came to be while the application ran, and overwrite is false; "
            f"the output is kept at {shown(partial)}"
        )
        self.target, self.partial = target, partial


class CommitBusy(DlappError):
    """Another process is committing this output at this moment."""


@dataclass(frozen=True, slots=True)
class _Names:
    """The paths of one commit."""

    target: str
    app: str

    @property
    def parent(self) -> str:
        return os.path.dirname(self.target)

    @property
    def parts(self) -> str:
        return f"{self.target}.{self.app}.tmp"

    @property
    def ready(self) -> str:
        return f"{self.target}.{self.app}.ready"

    @property
    def marker(self) -> str:
        return f"{self.target}.{self.app}.commit"

    @property
    def partial(self) -> str:
        return f"{self.target}.{self.app}.partial"

    @property
    def replaced(self) -> str:
        return f"{self.target}.{self.app}.replaced"


@dataclass(frozen=True, slots=True)
class _Plan:
    """What the marker says: the parts by name and path, and the inode number that the new target has."""

    inode: int
    overwrite: bool
    parts: tuple[tuple[str, str], ...]


def part_location(target: str, app_id: ApplicationId, container_id: ContainerId) -> str:
    """Where a container's task stores its part of the output."""
    return f"{parts_location(target, app_id)}/{container_id}"


def parts_location(target: str, app_id: ApplicationId) -> str:
    """The directory of all containers' parts."""
    if target.startswith(HDFS):
        return f"{target.rstrip('/')}.{app_id}.tmp"
    return file_location(_names(target, app_id).parts)


def commit(
    target: str,
    app_id: ApplicationId,
    parts: Parts,
    *,
    overwrite: bool,
    again: bool = False,
    hdfs: HdfsPlace | HdfsFiles | None = None,
    step: Step | None = None,
) -> str | None:
    """Make the parts the target. A commit that was begun is finished with the parts of its first call.

    Args:
        overwrite: replace a target that is there.
        again: an earlier call may have got through. Then parts that are all gone, with nothing of this application
            beside a target that is there, are parts that were committed.
        hdfs: the HDFS that is configured, if one is, or our connections to it; so in the functions below.

    Returns:
        Where the rest of the old target lies if it could not be removed; usually None. The output is in place then.

    Raises:
        CommitRefused: the target is there and ``overwrite`` is false; the output is kept aside.
        CommitBusy: another process is at it.
        NotFound: a part is gone; nothing was changed.
        DlappError: the file system cannot do it; the parts are still there for `keep_partial`.
    """
    if target.startswith(HDFS):
        from dlapp.storage.hdfs_commit import Refused

        with contextlib.suppress(DlappError):
            finish_interrupted(target, but=app_id, hdfs=hdfs)
        try:
            one = _on_hdfs(target, str(app_id), hdfs)
            return one.commit(parts, overwrite=overwrite, again=again, step=step or _ignore)
        except Refused as refused:
            raise CommitRefused(target, refused.partial) from refused
    names, step = _names(target, app_id), step or _ignore
    # What is left of another application must not be taken for the old target; that it cannot be settled, and why,
    # is that application's story.
    with contextlib.suppress(DlappError):
        finish_interrupted(target, but=app_id)
    with _locked_marker(names) as begun:
        if begun is not None:
            return _finish(names, begun, step)
    there = tuple((name, local_path(location)) for name, location in parts)
    if again and there and not any(os.path.lexists(path) for _, path in there):
        if os.path.lexists(names.partial):
            raise CommitRefused(file_location(names.target), file_location(names.partial))
        if os.path.lexists(names.target):
            return None
    plan = _planned(names, there, overwrite)
    _make_durable(names)
    step("durable")
    with _new_marker(names, plan):
        step("marker")
        return _finish(names, plan, step)


def finish_interrupted(
    target: str, *, but: ApplicationId | None = None, hdfs: HdfsPlace | HdfsFiles | None = None
) -> list[str]:
    """Finish the commits to this target whose processes died; the ids of their applications.

    A commit that is still going on, or another user's, is left alone. One that is refused now is settled as well: its
    output is kept aside.
    """
    finished = []
    if target.startswith(HDFS):
        from dlapp.storage.hdfs_commit import marked

        for app in marked(_hdfs_files(target, hdfs), target):
            with contextlib.suppress(Denied):
                if app != str(but) and _on_hdfs(target, app, hdfs).finish_interrupted():
                    finished.append(app)
        return finished
    path = local_path(target).rstrip("/")
    for app in _marked(path):
        names = _Names(path, app)
        if app == str(but):
            continue
        with contextlib.suppress(CommitBusy, CommitRefused, Denied), _locked_marker(names) as plan:
            if plan is not None:
                finished.append(app)
                _finish(names, plan, _ignore)
    return finished


def keep_partial(
    target: str, app_id: ApplicationId, parts: Parts, *, hdfs: HdfsPlace | HdfsFiles | None = None
) -> str | None:
    """Put the output of a failed application aside; its location, or None where there is none.

    Parts that are not there are passed over. A commit that was begun and has not reached the target is undone; one
    that has reached it is finished, and the answer is None. May be repeated.

    Raises:
        CommitBusy: a process is committing it just now.
    """
    if target.startswith(HDFS):
        return _on_hdfs(target, str(app_id), hdfs).keep_partial(parts)
    names = _names(target, app_id)
    with _locked_marker(names) as plan:
        stage = _stage(names, plan) if plan is not None else None
        if plan is not None and stage == _SWAPPED:
            _clean_up(names, plan, _ignore)
            return None
        if plan is not None and stage == _BEFORE:
            _assemble(plan.parts, names.ready, _ignore, missing_ok=True)
            _rename(names.ready, names.partial)
        if plan is None:
            remove_tree(names.ready)  # without a marker it has nothing in it yet
            there = tuple((name, local_path(location)) for name, location in parts)
            if any(name and os.path.lexists(path) for name, path in there):
                os.makedirs(names.partial, exist_ok=True)
            _assemble(there, names.partial, _ignore, missing_ok=True)
        remove_tree(names.parts)
        _unlink(names.marker)
    return file_location(names.partial) if os.path.lexists(names.partial) else None


def drop(target: str, app_id: ApplicationId, *, hdfs: HdfsPlace | HdfsFiles | None = None) -> None:
    """Remove all that an application left beside the target but its partial output. May be repeated.

    A commit that was begun and has not reached the target is given up; one that has reached it is finished.

    Raises:
        CommitBusy: a process is committing it just now.
    """
    if target.startswith(HDFS):
        return _on_hdfs(target, str(app_id), hdfs).drop()
    names = _names(target, app_id)
    with _locked_marker(names) as plan:
        if plan is not None and _stage(names, plan) == _SWAPPED:
            _clean_up(names, plan, _ignore)
            return
        # The marker goes first: with parts missing, nobody could finish what it says.
        _unlink(names.marker)
        remove_tree(names.parts)
        remove_tree(names.ready)


def check_exchange(directory: str) -> None:
    """Find out, by doing it, whether two names in this directory can be exchanged.

    Raises:
        Denied: it may not be written.
        UsageError: its file system cannot; then no output can be committed there.
    """
    probe = f"{directory.rstrip('/')}/.dlapp-probe-{os.getpid()}-{os.urandom(4).hex()}"
    try:
        os.mkdir(probe)
    except OSError as error:
        raise explained(error, directory, "written") from error
    try:
        os.mkdir(f"{probe}/a")
        os.mkdir(f"{probe}/b")
        _renameat2(f"{probe}/a", f"{probe}/b", _EXCHANGE)
    except DlappError as error:
        raise UsageError(str(error)) from error
    finally:
        remove_tree(probe)


def _ignore(_step: str) -> None:
    pass


def _hdfs_files(target: str, hdfs: HdfsPlace | HdfsFiles | None) -> HdfsFiles:
    if hdfs is None:
        raise UsageError(f"{shown(target)}: no HDFS is configured; HADOOP_CONF_DIR says where one is")
    from dlapp.storage.hdfs import HdfsFiles

    return hdfs if isinstance(hdfs, HdfsFiles) else HdfsFiles(hdfs)


def _on_hdfs(target: str, app: str, hdfs: HdfsPlace | HdfsFiles | None) -> HdfsCommit:
    from dlapp.storage.hdfs_commit import HdfsCommit

    return HdfsCommit(_hdfs_files(target, hdfs), target, app)


def _names(target: str, app_id: ApplicationId) -> _Names:
    return _Names(local_path(target).rstrip("/"), str(app_id))


def _marked(target: str) -> list[str]:
    """The applications that have a marker beside this target."""
    start, end = os.path.basename(target) + ".", ".commit"
    try:
        around = os.listdir(os.path.dirname(target))
    except OSError:
        return []  # Nobody can have begun there, or it is not ours to look into.
    middles = [name[len(start) : -len(end)] for name in around if name.startswith(start) and name.endswith(end)]
    return sorted(middle for middle in middles if _is_application(middle))


def _is_application(text: str) -> bool:
    try:
        ApplicationId.from_text(text)
    except UsageError:
        return False
    return True


# ---- the plan and its marker ----


def _planned(names: _Names, parts: tuple[tuple[str, str], ...], overwrite: bool) -> _Plan:
    """Look at the parts and fix what the new target will be. An empty ``ready`` may be made for it."""
    if not parts:
        raise NotFound(f"{shown(names.target)}: there are no parts to commit")
    for _, path in parts:
        if not os.path.lexists(path):
            raise NotFound(f"{shown(path)} is gone, so {shown(names.target)} cannot be committed")
    # Without a marker, what stands there is at most empty, from a try that ended here.
    remove_tree(names.ready)
    try:
        os.makedirs(names.parts, exist_ok=True)
        if parts[0][0]:
            os.mkdir(names.ready)
        inode = os.lstat(names.ready if parts[0][0] else parts[0][1]).st_ino
    except OSError as error:
        raise explained(error, names.ready, "made") from error
    return _Plan(inode, overwrite, parts)


@contextlib.contextmanager
def _new_marker(names: _Names, plan: _Plan) -> Iterator[None]:
    """Write the marker, whole and locked from the moment it can be seen."""
    new = f"{names.parts}/commit.new"
    said = {"version": _VERSION, "inode": plan.inode, "overwrite": plan.overwrite, "parts": plan.parts}
    left = memoryview(json.dumps(said, indent=1).encode())
    try:
        descriptor = os.open(new, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise explained(error, new, "written") from error
    try:
        _lock(descriptor, names)
        if _inode(new) != os.fstat(descriptor).st_ino:
            raise _busy(names)
        try:
            os.ftruncate(descriptor, 0)
            while left:
                left = left[os.write(descriptor, left) :]
            os.fsync(descriptor)
        except OSError as error:
            raise explained(error, new, "written") from error
        if not _renameat2(new, names.marker, _NOREPLACE):
            raise _busy(names)
        _sync_directory(names.parent)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _locked_marker(names: _Names) -> Iterator[_Plan | None]:
    """The plan of a marker that is there, locked while the block runs; None: there is none.

    Raises:
        CommitBusy: the process that wrote it is alive and at work.
        Denied: it is another user's.
    """
    try:
        descriptor = os.open(names.marker, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        yield None
        return
    except OSError as error:
        raise explained(error, names.marker, "read") from error
    try:
        _lock(descriptor, names)
        if os.fstat(descriptor).st_nlink == 0:
            yield None  # Its owner finished between our look and our lock.
            return
        yield _plan_from(os.pread(descriptor, 1 << 26, 0), names.marker)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, names: _Names) -> None:
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _busy(names) from None


def _busy(names: _Names) -> CommitBusy:
    return CommitBusy(f"{shown(names.target)} is just being committed by another process")


def _plan_from(text: bytes, path: str) -> _Plan:
    try:
        said = json.loads(text)
        version = said["version"]
        plan = _Plan(said["inode"], said["overwrite"], tuple((name, part) for name, part in said["parts"]))
    except (ValueError, KeyError, TypeError) as error:
        raise DlappError(f"{shown(path)} is damaged: {error}; look at it and what is beside it by hand") from error
    if version > _VERSION:
        raise DlappError(f"{shown(path)} was written by a newer dlapp (format {version}); use that one")
    return plan


# ---- the steps ----


def _finish(names: _Names, plan: _Plan, step: Step) -> str | None:
    """Bring a marked commit to its end, from wherever it is; where the rest of the old target lies, if anywhere."""
    stage, mine = _stage(names, plan), False
    if stage == _BEFORE:
        _assemble(plan.parts, names.ready, step)
        _sync_directory(names.ready)
        _sync_directory(names.parent)
        step("ready")
        stage = _swap(names, plan)
        step(stage)
        mine = stage == _SWAPPED
    if stage == _REFUSED:
        remove_tree(names.parts)
        _unlink(names.marker)
        raise CommitRefused(file_location(names.target), file_location(names.partial))
    _sync_directory(names.parent)
    return _clean_up(names, plan, step, sure=mine)


def _stage(names: _Names, plan: _Plan) -> str:
    """How far a marked commit has come, by where the new target's inode is."""
    ready = _inode(names.ready)
    if ready == plan.inode:
        return _BEFORE
    if _inode(names.partial) == plan.inode:
        return _REFUSED
    name, part = plan.parts[0]
    if ready is None and not name and os.path.lexists(part):
        return _BEFORE
    return _SWAPPED


def _inode(path: str) -> int | None:
    try:
        return os.lstat(path).st_ino
    except FileNotFoundError:
        return None


def _assemble(parts: Sequence[tuple[str, str]], into: str, step: Step, *, missing_ok: bool = False) -> None:
    """Rename the parts into the tree ``into``; those that are there already stay."""
    for name, part in parts:
        place = f"{into}/{name}" if name else into
        if os.path.lexists(part):
            _rename(part, place)
            step(f"part {name}".rstrip())
        elif not missing_ok and not os.path.lexists(place):
            raise NotFound(f"{shown(part)} is gone, so it cannot be committed")


def _swap(names: _Names, plan: _Plan) -> str:
    """Give ``ready`` the target's name, or put it aside where there is a target that may not be replaced."""
    while True:
        if _renameat2(names.ready, names.target, _NOREPLACE):
            return _SWAPPED
        if not plan.overwrite:
            _rename(names.ready, names.partial)
            return _REFUSED
        # The target that was there may be gone by now; then it is a plain rename again.
        if _renameat2(names.ready, names.target, _EXCHANGE):
            return _SWAPPED


def _clean_up(names: _Names, plan: _Plan, step: Step, *, sure: bool = False) -> str | None:
    """After the exchange: remove what was replaced, what is left of the parts, and the marker.

    Args:
        sure: it was this process that exchanged, so what is in ``ready`` is the old target.
    """
    left = None
    if sure or _inode(names.target) == plan.inode:
        try:
            remove_tree(names.ready)
        except DlappError:
            # The output is in place; that the old one cannot go must not undo it. It is not ours to force either.
            _rename(names.ready, names.replaced)
            left = file_location(names.replaced)
    elif os.path.lexists(names.ready):
        # Somebody has put yet another thing in the target's place since, or inode numbers do not last here (some FUSE
        # file systems). Then what is in ready may be anything, so it is kept.
        _rename(names.ready, names.partial)
    step("old removed")
    remove_tree(names.parts)
    step("parts removed")
    _unlink(names.marker)
    _sync_directory(names.parent)
    step("done")
    return left


# ---- calls of the kernel ----


def _renameat2(old: str, new: str, flag: int) -> bool:
    """Rename in one step; False: ``new`` is there (`_NOREPLACE`), or is not (`_EXCHANGE`).

    Raises:
        DlappError: it failed, or the file system has no such rename.
    """
    import ctypes

    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:
        raise DlappError("this machine's C library has no renameat2; output needs glibc 2.28 or musl 1.2.5") from None
    if call(_AT_FDCWD, os.fsencode(old), _AT_FDCWD, os.fsencode(new), ctypes.c_uint(flag)) == 0:
        return True
    code = ctypes.get_errno()
    if code == (errno.EEXIST if flag == _NOREPLACE else errno.ENOENT) and os.path.lexists(old):
        return False
    if code in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
        raise DlappError(
            f"{shown(os.path.dirname(new))}: its file system cannot exchange two names (renameat2: "
            f"{os.strerror(code)}), so output cannot be committed there; NFS is such a one"
        )
    raise explained(OSError(code, os.strerror(code)), new, "put in place") from None


def _rename(old: str, new: str) -> None:
    try:
        os.rename(old, new)
    except OSError as error:
        raise explained(error, old, f"renamed to {shown(new)}") from error


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise explained(error, path, "removed") from error


def _make_durable(names: _Names) -> None:
    """Bring all that the parts hold to the disk; one call for the file system is cheaper than one for each file.

    Source: syncfs(2); it reports write errors since Linux 5.8.
    """
    import ctypes

    descriptor = os.open(names.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor) != 0:
            code = ctypes.get_errno()
            raise explained(OSError(code, os.strerror(code)), names.parent, "made durable")
    finally:
        os.close(descriptor)


def _sync_directory(path: str) -> None:
    """Make the names in a directory durable; a target that is a file has none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except NotADirectoryError:
        return
    except OSError as error:
        raise explained(error, path, "opened") from error
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
