"""Trees of local files: listing and copying."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
from collections.abc import Callable, Iterator, Sequence

from dlapp.errors import Denied, DlappError, NotFound
from dlapp.locations import shown
from dlapp.storage.links import TooManyLinks, link_kept_inside, link_reader, link_target
from dlapp.storage.values import DiskFull, LeftOut, TreeNode
from dlapp.system.disk_space import FULL, free_space_text, mount_point
from dlapp.system.files import (
    UntrustedFile,
    check_own_directory,
    closing_fd,
    is_inside,
    open_file,
    remove_tree,
    shown_path,
)
from dlapp.system.text import human_size
from dlapp.value import NamedTuple

COPY_CHUNK = 64 << 20
READ_CHUNK = 1 << 20
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_MAX_NAME = 4096
"""Maximum length of a path in a stored tree [characters]; the kernel accepts no longer one."""
MAX_LINKED = 1 << 20
"""Maximum number of entries that a stored tree gets through links out of it: links to directories with links to
directories multiply, and more files than this are no result of a program."""

Note = Callable[[str], None]


def explained(error: OSError, path: str, doing: str) -> DlappError:
    """Return dlapp's error for an OSError at ``path``."""
    name = shown(shown_path(path))
    line = f"{name} cannot be {doing}: {error.strerror}"
    if error.errno in FULL:
        return DiskFull(f"disk full: {name} cannot be {doing}; {free_space_text(path)}", place=mount_point(path))
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return NotFound(line)
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return Denied(line)
    return DlappError(line)


@contextlib.contextmanager
def explaining(path: str, doing: str) -> Iterator[None]:
    """Convert an error of the kernel by `explained` and raise it; pass on others."""
    try:
        yield
    except OSError as error:
        if isinstance(error, DlappError) or error.errno is None:  # the kernel's have an errno
            raise
        raise explained(error, path, doing) from error


class TransferRate:
    """Rate and remaining time of a transfer, as text.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._began, self._first = clock, clock(), -1

    def text(self, done: int, total: int) -> str:
        """Return the progress as text: ``1.2 GiB of 5.0 GiB, 310.5 MiB/s, 13 s left``; the bytes at the first call do
        not count for the rate."""
        now = self._clock()
        if self._first < 0:
            self._began, self._first = now, done
        passed_s, came = now - self._began, done - self._first
        said = f"{human_size(done)} of {human_size(total)}"
        if passed_s <= 0 or came <= 0:
            return said
        return f"{said}, {human_size(came / passed_s)}/s, {_duration((total - done) * passed_s / came)} left"


def _duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    return f"{whole // 60} min" if whole < 7200 else f"{whole / 3600:.1f} h"


def make_directories(path: str) -> None:
    """Create a directory and its parents if missing. Raises DlappError."""
    with explaining(path, "made"):
        os.makedirs(path, exist_ok=True)


def make_own_directory(path: str) -> None:
    """Create a directory with mode 0700, and its parents; an existing one must be writable only for the caller.

    Raises:
        UntrustedFile: something else has that name, or others own it or can write to it.
        DlappError: it cannot be created.
    """
    with explaining(path, "made"):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        check_own_directory(path)


class OpenTree:
    """A tree that a payload wrote, read by descriptors: nothing in it is reached through a link, even if one replaces a
    directory or file meanwhile, and no FIFO or device is opened. Thread-safe.

    Args:
        top: path of the tree, without links: refused if a part of it was replaced by one.
        base: path of the workspace with the tree, without links: entries of it can be read, too. Empty: ``top``.

    Raises:
        NotFound, Denied: it cannot be opened.
        UntrustedFile: a link in the path points elsewhere.
    """

    def __init__(self, top: str, base: str = "") -> None:
        import threading

        self.top, self.base = top, base or top
        self._lock = threading.Lock()
        self.fd = self._base_fd = _opened_without_links(top)
        if self.base != top:
            try:
                self._base_fd = _opened_without_links(self.base)
            except BaseException:
                os.close(self.fd)
                raise
        self._at, self._at_fd = "", self._base_fd

    def close(self) -> None:
        """Close open descriptors."""
        self._leave()
        os.close(self.fd)
        if self._base_fd != self.fd:
            os.close(self._base_fd)

    def open(self, source: str) -> int:
        """Open a regular file of the tree or its base, by its absolute path.

        Raises:
            OSError: it cannot be opened, or is not a regular file any more.
        """
        if source == self.top:
            return os.open(f"/proc/self/fd/{self.fd}", _READ)
        with self._lock:
            above, last = self._place(source)
            try:
                return open_file(last, dir_fd=above)
            except UntrustedFile as error:
                raise OSError(errno.ESTALE, f"it {error.problem}") from error

    def children(self, node: TreeNode, most: int | None = None) -> list[TreeNode]:
        """Return the entries of a directory, sorted by name; at most ``most`` and one more. Raises NotFound, Denied."""
        name = self.name_in_base(node.source)
        with explaining(node.source, "read"), self._lock, os.scandir(self._directory(name)) as found:
            read = found if most is None else itertools.islice(found, most + 1)
            entries = sorted(read, key=lambda entry: entry.name)
            return [
                _node(
                    f"{node.source}/{entry.name}",
                    f"{node.name}/{entry.name}" if node.name else entry.name,
                    entry.stat(follow_symlinks=False),
                )
                for entry in entries
            ]

    def name_in_base(self, source: str) -> str:
        """Return the path of an entry in the base, from its absolute path; empty for the base itself."""
        return source[len(self.base) + 1 :]

    def status(self, source: str) -> os.stat_result:
        """Return the status of an entry of the base; of a link, its own. Raises OSError."""
        if source == self.base:
            return os.fstat(self._base_fd)
        with self._lock:
            above, last = self._place(source)
            return os.stat(last, dir_fd=above, follow_symlinks=False)

    def may_read(self, source: str) -> bool:
        """Return whether this process may read an entry, and for a directory its entries."""
        mode = os.R_OK | os.X_OK * stat.S_ISDIR(self.status(source).st_mode)
        with self._lock:
            above, last = self._place(source)
            return os.access(last, mode, dir_fd=above, effective_ids=True)

    def read_link(self, source: str) -> str:
        """Return the target of a link. Raises OSError."""
        with self._lock:
            above, last = self._place(source)
            return os.readlink(last, dir_fd=above)

    def replace_link(self, node: TreeNode) -> None:
        """Replace an entry of the tree by the link of ``node``; remove it if that is None. Raises OSError."""
        with self._lock:
            above, last = self._place(f"{self.top}/{node.name}")
            os.unlink(last, dir_fd=above)
            if node.link is not None:
                os.symlink(node.link, last, dir_fd=above)

    def fill_in(self, nodes: Sequence[TreeNode]) -> None:
        """Replace links of the tree by what they lead to in the base; files become hard links. If that is not possible,
        the tree is unchanged.

        Args:
            nodes: what takes the places of links, each with everything below it, parents first.

        Raises:
            OSError: a node cannot be created.
        """
        links: list[TreeNode] = []
        scratch = f".dlapp-{os.urandom(8).hex()}"
        os.mkdir(scratch, 0o700, dir_fd=self._base_fd)
        try:
            for node in nodes:
                if not (links and node.name.startswith(f"{links[-1].name}/")):
                    links.append(node)
                self._recreate(node, f"{self.base}/{scratch}/{len(links)}{node.name[len(links[-1].name) :]}")
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            with closing_fd(os.open(scratch, flags, dir_fd=self._base_fd)) as made, self._lock:
                for number, node in enumerate(links, 1):
                    above, last = self._place(f"{self.top}/{node.name}")
                    if node.is_dir:
                        os.unlink(last, dir_fd=above)
                    os.rename(str(number), last, src_dir_fd=made, dst_dir_fd=above)
        finally:
            self._leave()
            remove_tree(f"{self.base}/{scratch}", dir_fd=self._base_fd, name=scratch)
        for node in reversed(nodes):
            if node.is_dir:
                with self._lock:
                    fd = self._directory(self.name_in_base(f"{self.top}/{node.name}"))
                    os.fchmod(fd, node.mode & 0o777)
                    os.utime(fd, ns=(node.mtime_ns, node.mtime_ns))

    def _recreate(self, node: TreeNode, place: str) -> None:
        """Create a node at another place of the base. Raises OSError."""
        with self._lock:
            handle = self._handle(node.source) if node.is_file else None
            above, last = self._place(place)
            if node.link is not None:
                os.symlink(node.link, last, dir_fd=above)
            elif handle is None:
                os.mkdir(last, 0o700, dir_fd=above)
            else:
                with closing_fd(handle):
                    os.link(f"/proc/self/fd/{handle}", last, dst_dir_fd=above, follow_symlinks=True)

    def _handle(self, source: str) -> int:
        """Return a descriptor of a regular file, without access to its content. Raises OSError."""
        above, last = self._place(source)
        handle = os.open(last, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise OSError(errno.ESTALE, "it is not a regular file any more")
        return handle

    def _place(self, source: str) -> tuple[int, str]:
        """Return a descriptor of the directory of an entry, and the entry's name there."""
        above, _, last = self.name_in_base(source).rpartition("/")
        return self._directory(above), last

    def _directory(self, name: str) -> int:
        """Return a descriptor of a directory in the base; the last one is cached for its next entry."""
        if name == self._at:
            return self._at_fd
        if not (self._at and name.startswith(f"{self._at}/")):
            self._leave()
        for part in name[len(self._at) :].strip("/").split("/") if name else ():
            fd = os.open(part, _READ | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=self._at_fd)
            at = f"{self._at}/{part}" if self._at else part
            if self._at_fd != self._base_fd:
                os.close(self._at_fd)
            self._at, self._at_fd = at, fd
        return self._at_fd

    def _leave(self) -> None:
        if self._at_fd != self._base_fd:
            os.close(self._at_fd)
        self._at, self._at_fd = "", self._base_fd


def _opened_without_links(path: str) -> int:
    """Return a descriptor of a file or directory whose path has no links.

    Raises:
        NotFound, Denied: it cannot be opened.
        UntrustedFile: a link in the path points elsewhere.
    """
    with explaining(path, "read"):
        fd = os.open(path, _READ)
    real = os.readlink(f"/proc/self/fd/{fd}")
    if real != os.path.abspath(path):
        os.close(fd)
        raise UntrustedFile(shown(path), f"leads to {shown(real)}")
    return fd


class TreeToStore(NamedTuple):
    """The entries of a tree as they are to be stored.

    Args:
        nodes: those that can be stored, parents first.
        changed: entries of the tree that must be replaced before it is moved itself: links with another target, and
            without ``link`` what must be removed.
        linked: paths in the base that are stored in place of links.
        left_out: those that are not stored.
    """

    nodes: list[TreeNode]
    changed: list[TreeNode]
    linked: list[str]
    left_out: list[LeftOut]


class _Part(NamedTuple):
    """The stored tree itself, or a directory that a link out of it led to.

    Args:
        root: its path in the base.
        around: the directories in the base of the links that led here.
    """

    root: str
    around: tuple[str, ...] = ()


def nodes_to_store(
    tree: OpenTree,
    *,
    payload_paths: Sequence[str] = (),
    note: Note,
    most: int | None = None,
    keep_links: bool = True,
    mounted: Sequence[str] = (),
) -> TreeToStore:
    """Return the entries of a tree as they are to be stored.

    Links inside the tree stay links. A link out of it to an entry of the base is replaced by what it leads to, which
    would be lost with the base. Links out of the base, sockets, FIFOs and devices are left out.

    Args:
        tree: the tree.
        payload_paths: other paths of its base that links may contain.
        note: called with a line about each entry that is left out.
        most: maximum number of nodes; None for no limit.
        keep_links: whether the target can have links; if not, each is replaced by what it leads to.
        mounted: paths in the base where the payload saw another file system; here they are empty directories and files.

    Raises:
        DlappError: the tree itself is neither a file nor a directory, cannot be read, or has more than ``most`` nodes.
    """
    roots = [os.path.abspath(tree.base), os.path.realpath(tree.base), *(path.rstrip("/") for path in payload_paths)]
    first = _node(tree.top, "", os.fstat(tree.fd))
    if not (first.is_dir or first.is_file):
        raise DlappError(f"{shown(tree.top)} cannot be stored: it is {kind_text(first.mode)}")
    walk = _Walk(tree, note, most, roots, keep_links=keep_links, mounted=mounted)
    todo = [(first, _Part(tree.name_in_base(tree.top)))]
    while todo:
        node, part = todo.pop()
        if len(node.name) > _MAX_NAME:
            raise DlappError(f"{shown(tree.top)} cannot be stored: it has directories in directories without end")
        todo.extend(reversed(walk.visit(node, part)))
    return TreeToStore(walk.nodes, walk.changed, walk.linked, walk.left_out)


class _Walk:
    """Walk over a tree, with the entries found so far; for the arguments see `nodes_to_store`.

    Attributes:
        nodes, changed, linked, left_out: as in `TreeToStore`.
    """

    def __init__(
        self,
        tree: OpenTree,
        note: Note,
        most: int | None,
        roots: Sequence[str],
        *,
        keep_links: bool,
        mounted: Sequence[str],
    ) -> None:
        self._tree, self._note, self._roots = tree, note, roots
        self._keep_links, self._mounted = keep_links, mounted
        self._most, self._left, self._linked_left = most, most, MAX_LINKED
        self.nodes: list[TreeNode] = []
        self.changed: list[TreeNode] = []
        self.linked: list[str] = []
        self.left_out: list[LeftOut] = []

    def visit(self, node: TreeNode, part: _Part) -> list[tuple[TreeNode, _Part]]:
        """Add an entry; return those below it, each with its part."""
        is_own, followed = not part.around, False  # is_own: the tree itself has this entry, if only as a link
        if stat.S_ISLNK(node.mode):
            found = self._resolved(node, part, is_own=is_own)
            if found is None:
                return []
            if found.link is None:
                above = os.path.dirname(self._tree.name_in_base(node.source))
                part = _Part(self._tree.name_in_base(found.source), (*part.around, above))
                followed = True
            node = found
        if part.around and self._tree.name_in_base(node.source) in self._mounted:
            return self._leave_out(node, "a mounted input", is_own=is_own)
        children: list[TreeNode] = []
        if node.is_dir:
            if (below := self._children(node, is_behind_links=bool(part.around))) is None:
                reason = f"a directory behind links, which have more than {MAX_LINKED} files"
                return self._leave_out(node, reason, is_own=is_own)
            children = below
        elif not node.is_file and node.link is None:
            return self._leave_out(node, kind_text(node.mode), is_own=is_own)
        self.nodes.append(node)
        if followed:
            self.linked.append(part.root)
        return [(child, part) for child in children]

    def _resolved(self, node: TreeNode, part: _Part, *, is_own: bool) -> TreeNode | None:
        """Return what is stored for a link; None: it is left out."""
        with explaining(node.source, "read"):
            text = self._tree.read_link(node.source)
        found = _resolved_link(
            self._tree, node, text, part, self._roots, keep_links=self._keep_links, mounted=self._mounted
        )
        if isinstance(found, str):
            self._leave_out(node, found, is_own=is_own)
            return None
        if found.link is not None and found.link != text and is_own:
            self.changed.append(found)
        return found

    def _children(self, node: TreeNode, *, is_behind_links: bool) -> list[TreeNode] | None:
        """Return the entries of a directory; None: too many behind links.

        Raises:
            DlappError: too many in the tree itself.
        """
        if is_behind_links:
            children = self._tree.children(node, most=max(self._linked_left, 0))
            self._linked_left -= len(children)
            return None if self._linked_left < 0 else children
        children = self._tree.children(node, most=self._left)
        if self._left is not None:
            self._left -= len(children)
            if self._left < 0:
                text = f"{shown(self._tree.top)} has more than {self._most} files, which is the most that is stored"
                raise DlappError(text)
        return children

    def _leave_out(self, node: TreeNode, reason: str, *, is_own: bool) -> list[tuple[TreeNode, _Part]]:
        self._note(f"{shown(node.source)} is not stored: it is {reason}")
        self.left_out.append(LeftOut(node.name, reason))
        if is_own:
            self.changed.append(node)
        return []


def _resolved_link(
    tree: OpenTree,
    node: TreeNode,
    text: str,
    part: _Part,
    roots: Sequence[str],
    *,
    keep_links: bool,
    mounted: Sequence[str],
) -> TreeNode | str:
    """Return what is stored for a link: the link, with ``link``, or what it leads to; or why nothing is stored.

    Args:
        tree: the tree.
        node, text: the link and its target.
        part: the part of the stored tree with the link.
        roots: the paths of the base that links may contain.
        keep_links, mounted: see `nodes_to_store`.
    """

    def read_link(name: str) -> str | None:
        try:
            return tree.read_link(f"{tree.base}/{name}")
        except OSError:
            return None

    def read_in_part(name: str) -> str | None:
        return read_link(f"{part.root}/{name}" if part.root else name)

    own = tree.name_in_base(node.source)
    above, inner = os.path.dirname(own), own[len(part.root) :].lstrip("/")
    if keep_links:
        part_roots = [f"{root}/{part.root}" if part.root else root for root in roots]
        if (kept := link_kept_inside(inner, text, part_roots, read_in_part)) is not None:
            return node._replace(link=kept)
    try:
        target = link_target(own, text, roots, read_link)
    except TooManyLinks:
        return f"a link to links in a circle, {shown(text)}"
    if target is None:
        return f"a link out of the {'output' if tree.base == tree.top else 'workspace'}, to {shown(text)}"
    if keep_links and is_inside(f"/{target}", f"/{part.root}"):
        return node._replace(link=os.path.relpath(f"/{target}", f"/{above}"))
    if any(is_inside(target, one) for one in mounted):
        return f"a link to a mounted input, {shown(text)}"
    source = f"{tree.base}/{target}" if target else tree.base
    try:
        found = _node(source, node.name, tree.status(source))
        may_read = not target or tree.may_read(source)
    except OSError:
        return f"a link to nothing, {shown(text)}"
    if not (found.is_dir or found.is_file):
        return f"a link to {kind_text(found.mode)}, {shown(text)}"
    if found.is_dir and (not target or any(is_inside(one, target) for one in (*part.around, above))):
        return f"a link to a directory above it, {shown(text)}"
    if not may_read:
        return f"a link to what may not be read, {shown(text)}"
    return found


def nodes_to_fetch(top: str) -> list[TreeNode]:
    """Return all nodes of the tree ``top``, parents first. Links inside it stay links; a link out of it is replaced by
    its target.

    Raises:
        DlappError: a node is neither file nor directory, or links form a loop.
        NotFound: a link out of the tree is dangling.
    """
    nodes: list[TreeNode] = []
    # Each directory to list, with the identities of the trees around it: itself, and those whose link led here.
    todo: list[tuple[str, str, tuple[tuple[int, int], ...]]] = [(top, "", ())]
    while todo:
        start, prefix, around = todo.pop()
        with explaining(start, "read"):
            status = os.stat(start)
        if not stat.S_ISDIR(status.st_mode):
            nodes.append(_fetchable(_node(start, prefix, status)))
            continue
        identity = (status.st_dev, status.st_ino)
        if identity in around:
            raise DlappError(f"{shown(start)} is a link to a directory above it")
        real = os.path.realpath(start)
        roots, read_link = [os.path.abspath(start), real], link_reader(real)
        inner = [_node(real, "", status)]
        while inner:
            node = inner.pop()
            name = f"{prefix}/{node.name}".strip("/") if node.name else prefix
            if stat.S_ISLNK(node.mode):
                kept = link_kept_inside(node.name, os.readlink(node.source), roots, read_link)
                if kept is None:
                    todo.append((node.source, name, (*around, identity)))
                else:
                    nodes.append(node._replace(name=name, link=kept))
                continue
            nodes.append(_fetchable(node._replace(name=name)))
            if node.is_dir:
                inner.extend(reversed(_children(node)))
    # Targets of links are listed late; their parents are still before them.
    return nodes


def _fetchable(node: TreeNode) -> TreeNode:
    if not (node.is_dir or node.is_file):
        raise DlappError(f"{shown(node.source)} is neither a file nor a directory, but {kind_text(node.mode)}")
    return node


def _node(source: str, name: str, status: os.stat_result) -> TreeNode:
    mode, size_bytes, blocks_bytes = status.st_mode, status.st_size, status.st_blocks * 512
    return TreeNode(source, name, mode, size_bytes, status.st_mtime_ns, blocks_bytes=blocks_bytes)


def _children(node: TreeNode) -> list[TreeNode]:
    with explaining(node.source, "read"):
        with os.scandir(node.source) as found:
            entries = sorted(found, key=lambda entry: entry.name)
        return [
            _node(entry.path, f"{node.name}/{entry.name}".lstrip("/"), entry.stat(follow_symlinks=False))
            for entry in entries
        ]


def kind_text(mode: int) -> str:
    """Return the kind of a file of this mode."""
    kinds = (
        (stat.S_ISFIFO, "a FIFO"),
        (stat.S_ISSOCK, "a socket"),
        (stat.S_ISCHR, "a character device"),
        (stat.S_ISBLK, "a block device"),
    )
    return next((words for test, words in kinds if test(mode)), "of an unknown kind")


def copy_nodes(
    nodes: Sequence[TreeNode],
    into: str,
    *,
    merge: bool = False,
    owner_bits: int = 0,
    done: Callable[[int], None],
    tree: OpenTree | None = None,
) -> None:
    """Recreate ``nodes`` under ``into``, with their permissions and modification times.

    Args:
        nodes: the nodes of the tree, parents before children.
        into: path of the copy of the tree itself; its parent exists.
        merge: whether directories may exist already; files and links never may.
        owner_bits: permissions that the owner always gets, of 0o600; directories also get the x bit.
        done: called with the number of bytes after each piece.
        tree: the tree of the nodes, if a payload wrote it.

    Raises:
        DiskFull, Denied, NotFound, DlappError: the message names the file.
    """
    made: list[tuple[str, TreeNode]] = []
    for node in nodes:
        path = f"{into}/{node.name}" if node.name else into
        if node.link is not None:
            with explaining(path, "made"):
                try:
                    os.symlink(node.link, path)
                except FileExistsError:
                    raise DlappError(f"{shown(shown_path(path))} already exists") from None
            os.utime(path, ns=(node.mtime_ns, node.mtime_ns), follow_symlinks=False)
        elif node.is_dir:
            try:
                os.mkdir(path, 0o700)
                made.append((path, node))
            except FileExistsError:
                if not (merge and os.path.isdir(path)):
                    raise DlappError(f"{shown(shown_path(path))} already exists") from None
            except OSError as error:
                raise explained(error, path, "made") from error
        else:
            copy_file(node, path, mode=node.mode & 0o777 | owner_bits, done=done, tree=tree)
    for path, node in reversed(made):
        os.chmod(path, node.mode & 0o777 | owner_bits | owner_bits >> 2 & 0o100)
        os.utime(path, ns=(node.mtime_ns, node.mtime_ns))


def copy_file(
    node: TreeNode, path: str, *, mode: int, done: Callable[[int], None], tree: OpenTree | None = None
) -> None:
    """Copy one file to the new name ``path``, with shared blocks if the file system can, and with holes kept.

    Args:
        node: the file.
        path: the path of the copy; must not exist.
        mode: permissions of the copy.
        done, tree: see `copy_nodes`.

    Raises:
        DlappError: its size changed, or ``path`` already exists.
    """
    with explaining(node.source, "read"):
        # O_NONBLOCK: do not block if a FIFO has replaced the file.
        source = tree.open(node.source) if tree is not None else os.open(node.source, _READ)
    with closing_fd(source), explaining(path, "written"):
        try:
            target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            raise DlappError(f"{shown(shown_path(path))} already exists") from None
        with closing_fd(target):
            status = os.fstat(source)
            size = node.size_bytes
            is_same = stat.S_ISREG(status.st_mode) and status.st_size == size
            is_copied = is_same and copy_beginning(source, target, size, done) == size
            if not is_copied or os.fstat(source).st_size != size:
                raise DlappError(f"{shown(node.source)} changed while it was copied: it had {size} bytes")
            os.fchmod(target, mode)
            os.utime(target, ns=(node.mtime_ns, node.mtime_ns))


def copy_data(source: int, target: int, size_bytes: int, *, path: str) -> None:
    """Copy the beginning of an open file into an empty one, with holes kept.

    Args:
        source, target: descriptors.
        size_bytes: number of bytes to copy.
        path: the path of the copy, for messages.

    Raises:
        DlappError: the source is shorter.
        OSError: reading or writing failed.
    """
    count = copy_beginning(source, target, size_bytes, lambda _: None)
    if count != size_bytes or os.fstat(source).st_size < size_bytes:
        raise DlappError(f"the source of {shown(path)} became shorter while it was copied")


def copy_beginning(source: int, target: int, size: int, done: Callable[[int], None]) -> int:
    """Copy the first ``size`` bytes of an open file into an empty one, with holes kept.

    Args:
        source, target: descriptors.
        size: number of bytes to copy.
        done: called with the number of bytes after each part.

    Returns:
        The number of bytes copied, fewer than ``size`` if the source is shorter.

    Raises:
        OSError: reading or writing failed.
    """
    at, sparse = 0, os.fstat(source).st_blocks * 512 < size
    while at < size:
        end = size
        if sparse:
            try:
                data = os.lseek(source, at, os.SEEK_DATA)
                end = min(size, os.lseek(source, data, os.SEEK_HOLE))
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                data = end = size  # only a hole is left
            done(data - at)
            at = data
        while at < end:
            count = _copy_some(source, target, at, min(COPY_CHUNK, end - at))
            if count == 0:
                return at
            at += count
            done(count)
    os.ftruncate(target, size)
    return size


def _copy_some(source: int, target: int, at: int, count: int) -> int:
    try:
        copied = os.copy_file_range(source, target, count, at, at)
        if copied:
            return copied
    except OSError as error:
        # Two file systems before Linux 5.3, or an unsupported one: copy in user space.
        if error.errno not in (errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.EPERM):
            raise
    piece = os.pread(source, min(READ_CHUNK, count), at)
    left = memoryview(piece)
    while left:
        left = left[os.pwrite(target, left, at + len(piece) - len(left)) :]
    return len(piece)
