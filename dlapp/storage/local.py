"""``file://``: this machine's file systems, including mounted ones."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from dlapp.errors import Denied, DlappError, NotFound, UsageError
from dlapp.locations import file_location, local_path, shown
from dlapp.storage.glob import split_pattern
from dlapp.storage.tree import (
    OpenTree,
    TreeToStore,
    copy_data,
    copy_nodes,
    explained,
    explaining,
    make_own_directory,
    nodes_to_fetch,
    nodes_to_store,
)
from dlapp.storage.values import DiskFull, FetchTarget, FileTotals, LeftOut, MatchedEntry, TreeNode, Workspace, ignore
from dlapp.system.disk_space import existing_above, free_bytes, free_space_text, mount_point
from dlapp.system.files import UntrustedFile, closing_fd, open_own_directory, remove_tree, shown_path
from dlapp.system.text import human_size

if TYPE_CHECKING:
    from dlapp.storage.commit.marker import OutputCommit


class LocalFiles:
    """The `dlapp.storage.api.OutputFileSystem` of ``file://`` locations."""

    def matches(self, pattern: str) -> list[MatchedEntry]:
        """See `FileSystem.matches`. Links are followed; a dangling link counts as a file."""
        paths = {path for components in split_pattern(local_path(pattern)) for path in _matching(components)}
        return [entry for entry in map(_entry, sorted(paths)) if entry is not None]

    def exists(self, location: str) -> bool:
        """See `FileSystem.exists`; a link counts even if it is dangling."""
        return os.path.lexists(local_path(location))

    def tree(self, entry: MatchedEntry) -> list[TreeNode]:
        """See `FileSystem.tree`. A link out of an entry is replaced by its target."""
        nodes = nodes_to_fetch(local_path(entry.location))
        for node in nodes:
            if node.is_file and not os.access(node.source, os.R_OK, effective_ids=True):
                raise Denied(f"{shown(node.source)} may not be read")
        return nodes

    def fetch(self, targets: Sequence[FetchTarget], done: Callable[[int], None]) -> None:
        for target in targets:
            copy_nodes(target.nodes, target.path, merge=True, owner_bits=0o600, done=done)

    def read_range(self, node: TreeNode, fd: int, start: int, end: int) -> None:
        """See `FileSystem.read_range`.

        Args:
            node, fd, start, end: see there.
        """
        name = shown(shown_path(node.source))
        with explaining(node.source, "read"):
            source = os.open(node.source, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        with closing_fd(source):
            now = os.fstat(source)
            if not stat.S_ISREG(now.st_mode) or (now.st_size, now.st_mtime_ns) != (node.size_bytes, node.mtime_ns):
                raise DlappError(f"{name} changed while it was fetched")
            os.lseek(fd, start, os.SEEK_SET)
            while start < end:
                count = os.sendfile(fd, source, start, end - start)
                if not count:
                    raise DlappError(f"{name} changed while it was fetched")
                start += count

    def store(
        self,
        local: str,
        location: str,
        *,
        move: bool = False,
        workspace: Workspace | None = None,
        replaces: str = "",
        note: Callable[[str], None] | None = None,
        left_out: Callable[[LeftOut], None] = ignore,
    ) -> FileTotals:
        """Store a file or a tree; see `FileSystem.store`. Permissions, modification times, empty directories and links
        are kept.

        The owner can move stored entries: the outermost directory is always writable for them. The directory to store
        in is created with mode 0700; an existing one must be writable only for the caller.

        Args:
            local, location, move, workspace, replaces, note, left_out: see there; a local directory has no storage
                policy.
        """
        target = local_path(location).rstrip("/")
        if not os.path.exists(local):
            raise NotFound(f"{shown(local)}: there is no such file or directory to store")
        around = workspace or Workspace(local)
        with contextlib.closing(OpenTree(local, around.path)) as tree:
            found = nodes_to_store(tree, payload_paths=around.seen_as, note=note or ignore, mounted=around.mounted)
            for one in found.left_out:
                left_out(one)
            nodes = found.nodes
            stored = FileTotals(
                sum(node.is_file for node in nodes), sum(node.size_bytes for node in nodes if node.is_file)
            )
            above, name = os.path.split(target)
            make_own_directory(above)
            with closing_fd(open_own_directory(above)) as above_fd:
                # In the checked directory: others may rename another one to its name meanwhile.
                remove_tree(target, dir_fd=above_fd, name=name)
                inside = f"/proc/self/fd/{above_fd}/{name}"
                if not (move and _renamed(tree, inside, found)):
                    if (needed := sum(node.space_bytes for node in nodes)) > (free := free_bytes(inside)):
                        raise DiskFull(
                            f"the output has {human_size(needed)}, more than {shown(target)} can take; "
                            f"{free_space_text(inside)}",
                            missing_bytes=needed - free,
                            place=mount_point(above),
                        )
                    copy_nodes(nodes, inside, done=lambda count: None, tree=tree)
                    _make_movable(inside)
        for path in found.linked:
            around.linked(path)
        return stored

    def move_stored(self, location: str, new: str) -> None:
        path = local_path(location).rstrip("/")
        if not os.path.lexists(path):
            return
        above, name = os.path.split(path)
        with closing_fd(open_own_directory(above)) as above_fd:
            self.store(path, new, move=True)
            remove_tree(path, dir_fd=above_fd, name=name)  # if it had to be copied

    def probe_store(self, location: str) -> None:
        """See `OutputFileSystem.probe_store`."""

    def check_writable(self, target: str, *, overwrite: bool = True) -> Sequence[str]:
        """See `FileSystem.check_writable`. It writes beside the target, or in the nearest directory above it.

        Raises:
            UsageError: the target is a mount point, or its file system cannot exchange two names.
        """
        path = local_path(target).rstrip("/")
        if not path or os.path.ismount(path):
            raise UsageError(f"{shown(target)} is a mount point; output needs a name inside it")
        above = existing_above(os.path.dirname(path))
        if not os.path.isdir(above):
            raise UsageError(f"{shown(target)} cannot be made: {shown(above)} is not a directory")
        from dlapp.storage.commit.local import check_exchange

        check_exchange(above)
        if not os.path.lexists(path):
            return ()
        # The existing target must be moved: in a sticky directory only its owner may do that.
        status, around = os.lstat(path), os.stat(above)
        me = os.geteuid()
        if around.st_mode & stat.S_ISVTX and me not in (0, status.st_uid, around.st_uid):
            raise Denied(f"{shown(target)} belongs to another user, and {shown(above)} lets only owners replace")
        return ()

    def remove(self, location: str) -> None:
        remove_tree(local_path(location).rstrip("/"))

    def make_own_directory(self, location: str) -> None:
        make_own_directory(local_path(location).rstrip("/"))

    def replace_file(self, fd: int, size_bytes: int, location: str, mode: int) -> None:
        """See `OutputFileSystem.replace_file`.

        Args:
            fd, size_bytes, location, mode: see there.
        """
        above, name = os.path.split(local_path(location))
        temporary = f".dlapp-{os.urandom(8).hex()}"  # without its name, which may have all bytes of a name
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with explaining(f"{above}/{name}", "written"), closing_fd(open_own_directory(above)) as directory:
            try:
                with closing_fd(os.open(temporary, flags, 0o600, dir_fd=directory)) as target:
                    copy_data(fd, target, size_bytes, path=f"{above}/{name}")
                    os.fchmod(target, mode)
                os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
            except BaseException:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=directory)
                raise

    def remove_in_own(self, location: str, name: str) -> None:
        path = local_path(location).rstrip("/")
        try:
            directory = open_own_directory(path)
        except FileNotFoundError:
            return
        with closing_fd(directory):
            remove_tree(f"{path}/{name}", dir_fd=directory, name=name)
        try:
            os.rmdir(path)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
                raise explained(error, path, "removed") from error

    def abort_calls(self, threads: Collection[int]) -> contextlib.AbstractContextManager[Callable[[], None]]:
        return contextlib.nullcontext(lambda: None)  # no call here blocks

    def output_commit(self, target: str, app: str) -> OutputCommit:
        from dlapp.storage.commit.local import LocalCommit

        return LocalCommit(target, app)

    def interrupted_commits(self, target: str) -> list[str]:
        from dlapp.storage.commit.local import applications_with_marker

        return applications_with_marker(target)


def _matching(components: Sequence[str | re.Pattern[str]]) -> list[str]:
    """Return the paths that the components match; the last text of each has not been checked yet."""
    paths = [""]
    for component in components:
        if isinstance(component, str):
            paths = [f"{path}/{component}" for path in paths]
        else:
            paths = [f"{path}/{name}" for path in paths for name in _names(path or "/") if component.fullmatch(name)]
    return [path or "/" for path in paths]


def _names(directory: str) -> list[str]:
    with explaining(directory, "listed"), contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return os.listdir(directory)
    return []


def _entry(path: str) -> MatchedEntry | None:
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return MatchedEntry(file_location(path), False, 0) if os.path.lexists(path) else None
    except OSError as error:
        if error.errno == errno.ELOOP:
            return MatchedEntry(file_location(path), False, 0)
        raise explained(error, path, "read") from error
    is_dir = stat.S_ISDIR(status.st_mode)
    return MatchedEntry(file_location(path), is_dir, 0 if is_dir else status.st_size)


def _renamed(tree: OpenTree, target: str, found: TreeToStore) -> bool:
    """Rename a tree to ``target`` after correcting it; return False if it must be copied."""
    try:
        for node in found.changed:
            tree.replace_link(node)
        if linked := [node for node in found.nodes if node.source != f"{tree.top}/{node.name}".rstrip("/")]:
            tree.fill_in(linked)
        _make_movable(tree.fd)
        os.rename(tree.top, target)
    except OSError as error:
        if error.errno in (errno.EXDEV, errno.EACCES, errno.EPERM, errno.EBUSY, errno.EMLINK):
            return False
        raise explained(error, target, "written") from error
    if not os.path.samestat(os.lstat(target), os.fstat(tree.fd)):
        raise UntrustedFile(shown(tree.top), "was replaced while it was stored")
    return True


def _make_movable(path: str | int) -> None:
    # A directory without write permission for its owner cannot be renamed into another one (its ".." would change).
    status = os.stat(path)
    if stat.S_ISDIR(status.st_mode) and status.st_mode & 0o700 != 0o700:
        os.chmod(path, status.st_mode & 0o7777 | 0o700)
