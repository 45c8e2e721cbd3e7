"""Commit of an output on local files, where the kernel exchanges two names atomically.

All files are beside the target, so on its file system. With ``run`` as target and ``APP`` as application:

    run.APP.tmp/<container id>   one container's part, as its task stored it
    run.APP.tmp/run.APP.replaced the new target just before the exchange; after it what was replaced
    run.APP.ready                the complete new target
    run.APP.commit               the marker: from here on the commit will be finished, by any process
    run.APP.partial              what a failed application left
    run.APP.failed               what failed containers left of an application whose other containers went on
    run.replaced.APP             an old target that dlapp did not write, or could not remove
    run.previous.APP             an old target that dlapp wrote, with ``keep_previous``

The steps of a commit:

1. Sync the parts to the disk.
2. Write the marker.
3. Rename the parts into ``ready``.
4. If there is no target, rename ``ready`` to its name. Otherwise rename ``ready`` into ``tmp`` and exchange it with the
   target in one system call. So the old target is now in a directory that nobody else can write to, and is certain to
   be what was replaced, not an entry that another commit, or another user, put there since.
5. Remove the old target if dlapp wrote it (`dlapp.storage.commit.written`); else, and with ``keep_previous``, keep it
   beside the target.
6. Remove former outputs beyond ``keep_previous``, and then the marker.

A reader finds the old or the new target at any moment.

Each step is a rename or an unlink, and does nothing if it was already done. So an interrupted commit is finished by
repeating it from the marker's content: the inode number of the new target is there, and its current path shows how far
the commit came. A running commit holds a lock on the marker (flock, which ends with its process), so no other process
finishes it.

Others may be able to write beside the target, as in a directory of mode 1777, so no entry there is trusted by its name.
All operations are relative to the descriptor of that directory. A marker is trusted only if it is a regular file with
one link that the caller owns and nobody else can write; ``tmp`` and ``ready`` are created with mode 0700, and used only
if they are directories that the caller owns and nobody else can write to. The marker names containers, never paths: a
part must be in ``tmp`` under the name of its container. Another user's marker is not trusted, and a submission to the
target is refused while it exists.

Source: rename(2), RENAME_EXCHANGE and RENAME_NOREPLACE, Linux 3.15.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator, Sequence

from dlapp.errors import DlappError, NotFound, UsageError
from dlapp.locations import file_location, local_path, shown
from dlapp.storage.commit.marker import (
    MAX_MARKER_BYTES,
    CommitBusy,
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
from dlapp.storage.commit.written import (
    ATTRIBUTE,
    CommitTimes,
    attribute_value,
    is_marked,
    is_unchanged_since_commit,
    mark_written,
)
from dlapp.storage.tree import explained, explaining
from dlapp.storage.values import ignore
from dlapp.system.files import (
    UntrustedFile,
    closing_fd,
    closing_on_error,
    open_directory,
    open_file,
    open_own_directory,
    remove_tree,
    sync_file_system,
    write_all,
)
from dlapp.system.owners import other_writers, user_text
from dlapp.value import replace

_NEW_READY, _NEW_MARKER, _NEW_PARTIAL = "ready.new", "commit.new", "partial.new"
"""Names in ``tmp`` of incomplete files, beside the parts."""
_NOREPLACE, _EXCHANGE = 1, 2
_BEFORE, _SWAPPED, _REFUSED = "before", "swapped", "refused"


class _CommitNames:
    """The names of one commit, in the open directory ``fd`` of its target.

    ``exchanged`` is the name in ``tmp`` of the new target just before the exchange, and of the old one after it.
    """

    def __init__(self, parent: str, name: str, app: str, fd: int) -> None:
        self.parent, self.name, self.app, self.fd = parent, name, app, fd
        beside = f"{name}.{app}"
        self.parts, self.ready, self.marker = f"{beside}.tmp", f"{beside}.ready", f"{beside}.commit"
        self.partial, self.failed, self.exchanged = f"{beside}.partial", f"{beside}.failed", f"{beside}.replaced"
        self.replaced, self.previous = f"{name}.replaced.{app}", previous_name(name, app)

    def path(self, name: str) -> str:
        """Return the absolute path of a name."""
        return f"{self.parent}/{name}" if self.parent != "/" else f"/{name}"


class LocalCommit:
    """`OutputCommit` on local files."""

    def __init__(self, target: str, app: str) -> None:
        self._path, self._app = local_path(target).rstrip("/"), app

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
            parts, overwrite, keep_previous, is_retry, commit_times, step: see there.
        """
        named = named_containers(parts, f"{self._path}.{self._app}.tmp", self._app, local_path)
        with self._commit_names() as at:
            if at is None:
                raise NotFound(f"{shown(self._path)} cannot be committed: its directory is gone")
            with _locked_marker(at) as begun:
                if begun is not None:
                    return _finish(at, begun, step)
            with _own_parts(at) as parts_fd:
                if is_retry and named and not any(_exists(container, parts_fd) for _, container in named):
                    if _exists(at.partial, at.fd):
                        raise CommitRefused(file_location(at.path(at.name)), file_location(at.path(at.partial)))
                    if _is_committed(at):
                        return _replaced_location(at)
            plan = replace(_planned(at, named, overwrite), before=_inode(at.name, at.fd) or 0)
            if overwrite:
                plan = replace(plan, own=_own_by_history(at, commit_times), keep_previous=keep_previous)
            _make_durable(at)
            step("durable")
            with _new_marker(at, plan):
                step("marker")
                return _finish(at, plan, step)

    def is_surely_committed(self) -> bool:
        with self._commit_names() as at:
            return at is not None and _attribute(at) == attribute_value(self._app, self._path)

    def finish_interrupted(self) -> bool:
        found = False
        with self._commit_names() as at, contextlib.suppress(CommitBusy, CommitRefused):
            if at is not None:
                with _locked_marker(at) as plan:
                    if plan is not None:
                        found = True
                        _finish(at, plan, ignore)
        return found

    def keep_partial(self, parts: Parts) -> str | None:
        named = named_containers(parts, f"{self._path}.{self._app}.tmp", self._app, local_path)
        with self._commit_names() as at:
            if at is None:
                return None
            with _locked_marker(at, trusted_only=True) as plan, _own_parts(at, refuse=False) as parts_fd:
                stage = _stage(at, plan, parts_fd) if plan is not None else None
                if plan is not None and stage == _SWAPPED:
                    _clean_up(at, plan, parts_fd, ignore)
                    return None
                if plan is not None and stage == _BEFORE:
                    _assemble(at, plan, parts_fd, ignore, missing_ok=True)
                    _apply_mode(at, plan)
                    _rename(at, at.ready, at.partial)
                if plan is None:
                    _remove_empty(at, at.ready)  # without a marker it is still empty
                    _assemble_partial(at, named, parts_fd)
                _remove_parts(at)
                if plan is not None:
                    _unlink(at, at.marker)
            return file_location(at.path(at.partial)) if _is_own(at, at.partial) else None

    def keep_failed(self, parts: Parts) -> str | None:
        named = named_containers(parts, f"{self._path}.{self._app}.tmp", self._app, local_path)
        with self._commit_names() as at:
            if at is None:
                return None
            with _own_parts(at, refuse=False) as parts_fd:
                if any(name and _exists(container, parts_fd) for name, container in named):
                    with _made_directory(at, at.failed, at.fd) as into_fd:
                        _move_parts(at, named, into_fd, parts_fd, ignore, missing_ok=True)
                elif named:
                    alone = ((at.failed, named[0][1]),)
                    _move_parts(at, alone, at.fd, parts_fd, ignore, missing_ok=True)
            return file_location(at.path(at.failed)) if _is_own(at, at.failed) else None

    def drop(self) -> None:
        with self._commit_names() as at:
            if at is None:
                return
            with _locked_marker(at, trusted_only=True) as plan:
                if plan is not None:
                    with _own_parts(at, refuse=False) as parts_fd:
                        if _stage(at, plan, parts_fd) == _SWAPPED:
                            _clean_up(at, plan, parts_fd, ignore)
                            return
                    # The marker is removed first: without the parts no process could finish the commit.
                    _unlink(at, at.marker)
                _remove_parts(at)
                if plan is None or _inode(at.ready, at.fd) != plan.number:
                    _remove_empty(at, at.ready)
                else:
                    remove_tree(at.path(at.ready), dir_fd=at.fd, name=at.ready, number=plan.number)

    @contextlib.contextmanager
    def _commit_names(self) -> Iterator[_CommitNames | None]:
        """Open the directory of a target and yield the names of a commit in it; None if there is no such directory."""
        parent, name = os.path.split(self._path)
        try:
            opened = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            yield None
            return
        except OSError as error:
            raise explained(error, parent, "opened") from error
        with closing_fd(opened):
            yield _CommitNames(parent, name, self._app, opened)


def applications_with_marker(target: str) -> list[str]:
    """Return the applications that have a marker beside this target."""
    parent, name = os.path.split(local_path(target).rstrip("/"))
    try:
        return applications_in_markers(os.listdir(parent), name)
    except OSError:
        return []  # No commit can have started there, or we may not read it.


def check_exchange(directory: str) -> None:
    """Test whether two names in this directory can be exchanged.

    Raises:
        Denied: it may not be written.
        UsageError: its file system does not support it; then no output can be committed there.
    """
    probe = f"{directory.rstrip('/')}/.dlapp-probe-{os.getpid()}-{os.urandom(4).hex()}"
    with explaining(directory, "written"):
        os.mkdir(probe, 0o700)
    try:
        with closing_fd(open_directory(probe, owners=(os.geteuid(),))) as fd:
            os.mkdir("a", dir_fd=fd)
            os.mkdir("b", dir_fd=fd)
            try:
                _renameat2(fd, "a", fd, "b", _EXCHANGE, probe)
            finally:
                os.rmdir("a", dir_fd=fd)
                os.rmdir("b", dir_fd=fd)
    except DlappError as error:
        raise UsageError(str(error)) from error
    finally:
        # Empty or not ours: the name may now belong to another entry of this user.
        with contextlib.suppress(OSError):
            os.rmdir(probe)


# ---- directories of our own beside the target ----


@contextlib.contextmanager
def _own_parts(at: _CommitNames, *, refuse: bool = True) -> Iterator[int]:
    """Open the directory of the parts; yield -1 if there is none.

    Args:
        refuse: raise UntrustedFile for one that is not exclusively the caller's; else treat it as missing.
    """
    as_missing = (FileNotFoundError,) if refuse else (FileNotFoundError, PermissionError, UntrustedFile)
    try:
        fd = open_own_directory(at.parts, dir_fd=at.fd, path=at.path(at.parts))
    except as_missing:
        yield -1
        return
    with closing_fd(fd):
        yield fd


def _is_own(at: _CommitNames, name: str) -> bool:
    try:
        return os.lstat(name, dir_fd=at.fd).st_uid == os.geteuid()
    except FileNotFoundError:
        return False


def _remove_parts(at: _CommitNames) -> None:
    """Remove the directory of the parts, after checking that it is that.

    If the directory beside the target is not sticky, its other writers may rename another directory of the caller to
    this name, but cannot write in it. So a directory is removed only if all its names are those of a commit.
    """
    with _own_parts(at, refuse=False) as fd:
        if fd < 0:
            return
        names = os.listdir(fd)
        own = (_NEW_READY, _NEW_MARKER, _NEW_PARTIAL, at.exchanged)
        if not all(name in own or is_part(name, at.app) for name in names):
            return
        for name in names:
            remove_tree(f"{at.path(at.parts)}/{name}", dir_fd=fd, name=name)
    _remove_empty(at, at.parts)


def _remove_empty(at: _CommitNames, name: str) -> None:
    """Remove the caller's own entry of a name, unless it is a directory that is not empty."""
    if _is_own(at, name):
        is_directory = stat.S_ISDIR(os.lstat(name, dir_fd=at.fd).st_mode)
        with contextlib.suppress(OSError):
            (os.rmdir if is_directory else os.unlink)(name, dir_fd=at.fd)


# ---- the plan and its marker ----


def _planned(at: _CommitNames, parts: tuple[tuple[str, str], ...], overwrite: bool) -> Marker:
    """Check the parts and decide the new target. May create an empty ``ready`` for it."""
    if not parts:
        raise NotFound(f"{shown(at.path(at.name))}: there are no parts to commit")
    with _own_parts(at) as fd:
        for _, container in parts:
            if not _exists(container, fd):
                where = f"{at.path(at.parts)}/{container}"
                raise NotFound(f"{shown(where)} is gone, so {shown(at.path(at.name))} cannot be committed")
        # Without a marker it is at most an empty directory of an earlier attempt.
        _remove_empty(at, at.ready)
        if _exists(at.ready, at.fd):
            raise UntrustedFile(at.path(at.ready), "does not belong to this commit; move it")
        with explaining(at.path(at.ready), "made"):
            if not parts[0][0]:
                return Marker(os.lstat(parts[0][1], dir_fd=fd).st_ino, overwrite, parts)
            # Created in a private directory to learn its default permissions, and closed before it becomes visible.
            new = _NEW_READY
            with contextlib.suppress(FileNotFoundError):
                os.rmdir(new, dir_fd=fd)
            os.mkdir(new, dir_fd=fd)
            made = os.lstat(new, dir_fd=fd)
            os.chmod(new, 0o700, dir_fd=fd)
        if not _renameat2(fd, new, at.fd, at.ready, _NOREPLACE, at.path(at.ready)):
            raise UntrustedFile(at.path(at.ready), "is there, and not of this commit")
        return Marker(made.st_ino, overwrite, parts, stat.S_IMODE(made.st_mode))


@contextlib.contextmanager
def _new_marker(at: _CommitNames, plan: Marker) -> Iterator[None]:
    """Write the marker, complete and locked from the moment it is visible."""
    new = _NEW_MARKER
    path = f"{at.path(at.parts)}/{new}"
    with _own_parts(at) as fd:
        with explaining(path, "written"):
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(new, flags, 0o600, dir_fd=fd)
        with closing_fd(descriptor):
            _lock(descriptor, at)
            if _inode(new, fd) != os.fstat(descriptor).st_ino:
                raise _busy(at)
            with explaining(path, "written"):
                os.ftruncate(descriptor, 0)
                write_all(descriptor, marker_bytes(plan, "inode"))
                os.fsync(descriptor)
            if not _renameat2(fd, new, at.fd, at.marker, _NOREPLACE, at.path(at.marker)):
                raise _busy(at)
            os.fsync(at.fd)
            yield


@contextlib.contextmanager
def _locked_marker(at: _CommitNames, *, trusted_only: bool = False) -> Iterator[Marker | None]:
    """Yield the plan of an existing marker, locked while the block runs; None if there is none, or with
    ``trusted_only`` if it is not trusted.

    Raises:
        CommitBusy: the process that wrote it is still working.
        ForeignMarker: it is another user's.
        UntrustedFile: it is not a file that can be trusted.
    """
    try:
        descriptor = _open_marker(at)
    except (FileNotFoundError, ForeignMarker, UntrustedFile) as error:
        if not (trusted_only or isinstance(error, FileNotFoundError)):
            raise
        yield None
        return
    except OSError as error:
        raise explained(error, at.path(at.marker), "read") from error
    with closing_fd(descriptor):
        _lock(descriptor, at)
        if os.fstat(descriptor).st_nlink == 0:
            yield None  # Its owner finished between our open and our lock.
            return
        data = os.pread(descriptor, MAX_MARKER_BYTES, 0)
        yield parse_marker(data, at.path(at.marker), at.path(at.parts), at.app, "inode")


def _open_marker(at: _CommitNames) -> int:
    path, me = at.path(at.marker), os.geteuid()
    found = os.lstat(at.marker, dir_fd=at.fd)
    if stat.S_ISREG(found.st_mode) and found.st_uid != me:
        raise ForeignMarker(at.path(at.name), at.app, user_text(found.st_uid))
    fd = open_file(at.marker, dir_fd=at.fd, path=path, owners=(me,), write=True, max_bytes=MAX_MARKER_BYTES)
    with closing_on_error(fd):
        found = os.fstat(fd)
        if found.st_mode & 0o022:
            raise UntrustedFile(path, "others may write it, so it is not used; remove it")
        if found.st_nlink > 1:
            raise UntrustedFile(path, "has a second name, so it is not used; remove that")
    return fd


def _lock(descriptor: int, at: _CommitNames) -> None:
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _busy(at) from None


def _busy(at: _CommitNames) -> CommitBusy:
    return CommitBusy(f"{shown(at.path(at.name))} is being committed by another process")


# ---- the steps ----


def _finish(at: _CommitNames, plan: Marker, step: Step) -> str | None:
    """Finish a marked commit, from wherever it is; return where the rest of the old target is, if anywhere."""
    with _own_parts(at) as parts_fd:
        stage, mine, replaced = _stage(at, plan, parts_fd), False, None
        old_is_out = _exists(at.exchanged, parts_fd) or _exists(at.ready, at.fd)
        there = _inode(at.name, at.fd)
        if stage == _SWAPPED and there != plan.number and plan.is_lost(there) and not old_is_out:
            raise removed_error(at.path(at.ready), at.path(at.name))
        if stage == _BEFORE:
            _assemble(at, plan, parts_fd, step)
            _apply_mode(at, plan)
            _mark(at, at.fd, at.ready, plan.number)
            os.fsync(at.fd)
            step("ready")
            stage, replaced = _swap(at, plan, parts_fd, step)
            step(stage)
            mine = stage == _SWAPPED
        if stage == _REFUSED:
            _remove_parts(at)
            _unlink(at, at.marker)
            raise CommitRefused(file_location(at.path(at.name)), file_location(at.path(at.partial)))
        os.fsync(at.fd)
        return _clean_up(at, plan, parts_fd, step, sure=mine, replaced=replaced)


def _stage(at: _CommitNames, plan: Marker, parts_fd: int) -> str:
    """Return the progress of a marked commit, by the current path of the new target's inode."""
    if parts_fd >= 0 and _inode(at.exchanged, parts_fd) == plan.number:
        _show_ready(at, parts_fd)
    if _inode(at.ready, at.fd) == plan.number:
        return _BEFORE
    if _inode(at.partial, at.fd) == plan.number:
        return _REFUSED
    # A target that is still being assembled has not been exchanged, whatever else has the name ``ready``.
    if any(_exists(container, parts_fd) for _, container in plan.parts):
        return _BEFORE
    return _SWAPPED


def _own_by_history(at: _CommitNames, commit_times: CommitTimes) -> tuple[int, int] | None:
    """Return inode number and modification time of the target, if it has no attribute and the history says that an
    application of the user wrote it."""
    try:
        found = os.lstat(at.name, dir_fd=at.fd)
    except FileNotFoundError:
        return None
    if _is_marked(at, at.fd, at.name) or not is_unchanged_since_commit(found, commit_times):
        return None
    return found.st_ino, found.st_mtime_ns


def _is_committed(at: _CommitNames) -> bool:
    """Return whether the target is this application's output: it exists, and has no attribute of another one.

    A missing attribute counts: a file system may not support it, or had no space for it when the output was committed.
    """
    found = _attribute(at)
    return _exists(at.name, at.fd) if found is None else found == attribute_value(at.app, at.path(at.name))


def _attribute(at: _CommitNames) -> bytes | None:
    try:
        return os.getxattr(f"/proc/self/fd/{at.fd}/{at.name}", ATTRIBUTE, follow_symlinks=False)
    except OSError:
        return None


def _is_marked(at: _CommitNames, dir_fd: int, name: str) -> bool:
    with contextlib.suppress(OSError):
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=dir_fd)
        with closing_fd(fd):
            return is_marked(fd, at.path(at.name))
    return False


def _mark(at: _CommitNames, dir_fd: int, name: str, number: int) -> None:
    """Set the attribute on an output. Without it, the next commit relies on the history, or keeps what it replaces."""
    with contextlib.suppress(OSError):
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=dir_fd)
        with closing_fd(fd):
            if os.fstat(fd).st_ino == number:
                mark_written(fd, at.app, at.path(at.name))


def _dispose(at: _CommitNames, plan: Marker, dir_fd: int, name: str, number: int | None = None) -> str | None:
    """Remove the old target if dlapp wrote it. Else, or if it is kept or cannot be removed, move it beside the target.

    Args:
        number: the inode number that it must have to be removed; None for any.

    Returns:
        Its new name; None if it was removed.
    """
    found = os.lstat(name, dir_fd=dir_fd)
    if plan.own == (found.st_ino, found.st_mtime_ns) or _is_marked(at, dir_fd, name):
        if plan.keep_previous:
            _mark(at, dir_fd, name, found.st_ino)  # the history does not recognize it after a rename
            return _move_beside(at, dir_fd, name, at.previous)
        above = at.path(at.parts) if dir_fd != at.fd else at.parent
        try:
            remove_tree(f"{above}/{name}", dir_fd=dir_fd, name=name, number=number)
        except DlappError:
            pass  # The output is in place: an error here must not undo that. Permissions are not overridden.
        else:
            return None
    return _move_beside(at, dir_fd, name, at.replaced)


def _move_beside(at: _CommitNames, dir_fd: int, name: str, wanted: str) -> str:
    new = wanted
    while not _renameat2(dir_fd, name, at.fd, new, _NOREPLACE, at.path(new)):
        new = f"{wanted}.{os.urandom(4).hex()}"
    return new


def _remove_older(at: _CommitNames, plan: Marker) -> None:
    """Remove dlapp's former outputs beyond those that are kept; do nothing where others may rename them."""
    if other_writers(at.parent, os.fstat(at.fd)):
        return
    own = [name for name in previous_names(os.listdir(at.fd), at.name, at.app) if _is_marked(at, at.fd, name)]
    for name in own[plan.keep_previous :]:
        number = _inode(name, at.fd)
        if number not in (None, plan.number):
            # The output is in place; an error while removing an old one must not undo that.
            with contextlib.suppress(DlappError):
                remove_tree(at.path(name), dir_fd=at.fd, name=name, number=number)


def _inode(name: str, dir_fd: int) -> int | None:
    try:
        return os.lstat(name, dir_fd=dir_fd).st_ino
    except FileNotFoundError:
        return None


def _exists(name: str, dir_fd: int) -> bool:
    """Return whether a name is in a directory; False if the descriptor is -1."""
    return dir_fd >= 0 and _inode(name, dir_fd) is not None


def _assemble(at: _CommitNames, plan: Marker, parts_fd: int, step: Step, *, missing_ok: bool = False) -> None:
    """Rename the parts into ``ready``, as `_move_parts`."""
    if not plan.parts[0][0]:
        _move_parts(at, ((at.ready, plan.parts[0][1]),), at.fd, parts_fd, step, missing_ok=missing_ok)
        return
    try:
        with _own_ready(at, plan) as into_fd:
            _move_parts(at, plan.parts, into_fd, parts_fd, step, missing_ok=missing_ok)
            os.fsync(into_fd)
    except FileNotFoundError:
        if missing_ok and not any(_exists(container, parts_fd) for _, container in plan.parts):
            return
        raise NotFound(f"{shown(at.path(at.ready))} is gone, so nothing can be put together there") from None


def _assemble_partial(at: _CommitNames, parts: Sequence[tuple[str, str]], parts_fd: int) -> None:
    """Move the existing parts aside if nothing was planned: together into ``tmp``, and then by one rename."""
    if not any(_exists(container, parts_fd) for _, container in parts) and not _exists(_NEW_PARTIAL, parts_fd):
        return
    new = _NEW_PARTIAL if parts[0][0] else parts[0][1]
    if parts[0][0]:
        with _made_directory(at, new, parts_fd) as into_fd:
            _move_parts(at, parts, into_fd, parts_fd, ignore, missing_ok=True)
    with explaining(f"{at.path(at.parts)}/{new}", f"renamed to {shown(at.path(at.partial))}"):
        # A rename cannot replace a directory that is not empty.
        os.rename(new, at.partial, src_dir_fd=parts_fd, dst_dir_fd=at.fd)


@contextlib.contextmanager
def _made_directory(at: _CommitNames, name: str, dir_fd: int) -> Iterator[int]:
    """Create a directory of the caller, if there is none of that name, and open it."""
    where = at.path(name) if dir_fd == at.fd else f"{at.path(at.parts)}/{name}"
    with explaining(where, "made"):
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, dir_fd=dir_fd)
        fd = open_directory(name, dir_fd=dir_fd, path=where, owners=(os.geteuid(),))
    with closing_fd(fd):
        yield fd


def _move_parts(
    at: _CommitNames,
    parts: Sequence[tuple[str, str]],
    into_fd: int,
    parts_fd: int,
    step: Step,
    *,
    missing_ok: bool,
) -> None:
    """Rename parts from ``tmp`` into another directory; those already there stay.

    Args:
        parts: new name of each, and its container.
        parts_fd: the directory of the parts; -1 if it is gone.
    """
    for name, container in parts:
        where = f"{at.path(at.parts)}/{container}"
        if _exists(container, parts_fd):
            with explaining(where, f"renamed to {shown(at.path(at.ready))}"):
                os.rename(container, name, src_dir_fd=parts_fd, dst_dir_fd=into_fd)
            step("part" if name == at.ready else f"part {name}")
        elif not missing_ok and not _exists(name, into_fd):
            raise NotFound(f"{shown(where)} is gone, so it cannot be committed")


@contextlib.contextmanager
def _own_ready(at: _CommitNames, plan: Marker) -> Iterator[int]:
    """Open ``ready``, if it is the directory that this commit created.

    If the directory beside the target is not sticky, its other writers may rename another directory of the caller to
    this name.

    Raises:
        FileNotFoundError: it is gone.
        UntrustedFile: it is another directory.
    """
    with closing_fd(open_directory(at.ready, dir_fd=at.fd, path=at.path(at.ready), owners=(os.geteuid(),))) as fd:
        if os.fstat(fd).st_ino != plan.number:
            raise UntrustedFile(at.path(at.ready), "was not created by this commit; move it")
        yield fd


def _apply_mode(at: _CommitNames, plan: Marker) -> None:
    """Apply the target's permissions to ``ready``; until now nobody else could read it."""
    if plan.mode is None:
        return
    with contextlib.suppress(FileNotFoundError), _own_ready(at, plan) as fd:
        os.fchmod(fd, plan.mode)


def _swap(at: _CommitNames, plan: Marker, parts_fd: int, step: Step) -> tuple[str, int | None]:
    """Rename ``ready`` to the target's name, or move it aside if an existing target may not be replaced.

    Returns:
        The progress, and the inode number of the old target, if that has the name ``ready`` now.
    """
    while True:
        if _renameat2(at.fd, at.ready, at.fd, at.name, _NOREPLACE, at.path(at.name)):
            return _SWAPPED, None
        if not plan.overwrite:
            _rename(at, at.ready, at.partial)
            return _REFUSED, None
        swapped = _swap_from_tmp(at, plan, parts_fd, step) if parts_fd >= 0 else None
        if swapped:
            return _SWAPPED, None
        if swapped is None:
            replaced = _inode(at.name, at.fd)
            if _renameat2(at.fd, at.ready, at.fd, at.name, _EXCHANGE, at.path(at.name)):
                return _SWAPPED, replaced


def _swap_from_tmp(at: _CommitNames, plan: Marker, parts_fd: int, step: Step) -> bool | None:
    """Exchange ``ready`` with the target, which is in ``tmp`` afterwards.

    Returns:
        False if the target is gone; None if it cannot be renamed into ``tmp``, like a directory that only others may
        write to.
    """
    try:
        if not _renameat2(at.fd, at.ready, parts_fd, at.exchanged, _NOREPLACE, at.path(at.parts)):
            return None
    except DlappError:
        return None
    swapped = None
    try:
        if _inode(at.exchanged, parts_fd) != plan.number:
            raise UntrustedFile(at.path(at.ready), "was not created by this commit; move it")
        step("ready in tmp")
        _make_writable(at)
        with contextlib.suppress(DlappError):
            swapped = _renameat2(parts_fd, at.exchanged, at.fd, at.name, _EXCHANGE, at.path(at.name))
    finally:
        if not swapped:
            _show_ready(at, parts_fd)
    return swapped


def _show_ready(at: _CommitNames, parts_fd: int) -> None:
    """Move the new target back from ``tmp``."""
    if not _renameat2(parts_fd, at.exchanged, at.fd, at.ready, _NOREPLACE, at.path(at.ready)):
        raise UntrustedFile(at.path(at.ready), "does not belong to this commit; move it")


def _make_writable(at: _CommitNames) -> None:
    """Make the old target writable for the caller, if it is a directory of theirs: else it cannot be renamed into
    another one.

    It is about to be removed.
    """
    with contextlib.suppress(OSError, UntrustedFile):
        fd = open_directory(at.name, dir_fd=at.fd, path=at.path(at.name), owners=(os.geteuid(),))
        with closing_fd(fd):
            mode = stat.S_IMODE(os.fstat(fd).st_mode)
            if not mode & stat.S_IWUSR:
                os.fchmod(fd, mode | stat.S_IRWXU)


def _clean_up(
    at: _CommitNames, plan: Marker, parts_fd: int, step: Step, *, sure: bool = False, replaced: int | None = None
) -> str | None:
    """Remove the old target, the remaining parts and the marker after the exchange.

    Args:
        sure: whether this process did the exchange.
        replaced: the inode number of an old target that has the name ``ready``. Another entry of this user that got
            that name meanwhile is not removed.

    Returns:
        Where the old target is if it was not removed.
    """
    left = None
    in_tmp = _exists(at.exchanged, parts_fd)
    if sure or _inode(at.name, at.fd) == plan.number:
        if in_tmp:
            left = _dispose(at, plan, parts_fd, at.exchanged)
        elif replaced is not None and _exists(at.ready, at.fd):
            left = _dispose(at, plan, at.fd, at.ready, replaced)
        elif plan.overwrite and not sure and _exists(at.ready, at.fd):
            # Exchanged by a process that died: it is unknown whether this is the old target.
            left = _move_beside(at, at.fd, at.ready, at.replaced)
        if plan.keep_previous:
            step("old beside")
            _remove_older(at, plan)
    elif in_tmp or _exists(at.ready, at.fd):
        # Another process has replaced the target since, or inode numbers are not stable here (some FUSE file systems).
        # Then the replaced entry may be anything, so it is kept.
        old, old_fd = (at.exchanged, parts_fd) if in_tmp else (at.ready, at.fd)
        _rename(at, old, at.partial, old_fd=old_fd)
    step("old removed")
    _remove_parts(at)
    step("parts removed")
    _unlink(at, at.marker)
    os.fsync(at.fd)
    step("done")
    return file_location(at.path(left)) if left is not None else _replaced_location(at)


def _replaced_location(at: _CommitNames) -> str | None:
    """Return where an earlier process of this commit moved the old target."""
    left = next((name for name in (at.replaced, at.previous) if _is_own(at, name)), None)
    return None if left is None else file_location(at.path(left))


# ---- system calls ----


def _renameat2(old_fd: int, old: str, new_fd: int, new: str, flag: int, path: str) -> bool:
    """Rename atomically; return False if ``new`` exists (`_NOREPLACE`), or does not (`_EXCHANGE`).

    Args:
        path: absolute path of ``new``, for messages.

    Raises:
        DlappError: it failed, or the file system does not support it.
    """
    import ctypes

    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:
        raise DlappError("this machine's C library has no renameat2; output needs glibc 2.28 or musl 1.2.5") from None
    if call(old_fd, os.fsencode(old), new_fd, os.fsencode(new), ctypes.c_uint(flag)) == 0:
        return True
    code = ctypes.get_errno()
    if code == (errno.EEXIST if flag == _NOREPLACE else errno.ENOENT) and _exists(old, old_fd):
        return False
    if code in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
        raise DlappError(
            f"{shown(os.path.dirname(path))}: its file system cannot exchange two names (renameat2: "
            f"{os.strerror(code)}), so output cannot be committed there; NFS is such a one"
        )
    raise explained(OSError(code, os.strerror(code)), path, "put in place") from None


def _rename(at: _CommitNames, old: str, new: str, *, old_fd: int | None = None) -> None:
    with explaining(at.path(old), f"renamed to {shown(at.path(new))}"):
        os.rename(old, new, src_dir_fd=at.fd if old_fd is None else old_fd, dst_dir_fd=at.fd)


def _unlink(at: _CommitNames, name: str) -> None:
    with explaining(at.path(name), "removed"), contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=at.fd)


def _make_durable(at: _CommitNames) -> None:
    """Sync all content of the parts to the disk."""
    with explaining(at.parent, "made durable"):
        sync_file_system(at.fd)
