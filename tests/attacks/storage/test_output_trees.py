"""A payload's output tree: what lies in it, and what takes the place of it while it is stored or removed."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dlapp.errors import DlappError
from dlapp.storage.local import LocalFiles
from dlapp.storage.tree import OpenTree, nodes_to_store
from dlapp.storage.values import Workspace
from dlapp.system.files import remove_tree
from tests.attacks.hostile_files import Bait
from tests.attacks.identities import Identities, User, deadline
from tests.attacks.snapshots import unchanged
from tests.tiers import FULL

_LIBC = ctypes.CDLL(None, use_errno=True)
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
EVENTS = {"open", "os.scandir", "os.remove", "os.rmdir", "os.rename", "os.chmod", "os.utime", "os.mkdir", "os.symlink"}
"""Before which calls a name may change its meaning, in `sweep`. Source: Python's audit event table."""
SWEPT = 300
"""More calls than any of these trees takes."""
RACES = 100 if FULL else 25


def exchange(one: Path, other: Path) -> None:
    """Exchange two names in one step."""
    if _LIBC.renameat2(_AT_FDCWD, bytes(one), _AT_FDCWD, bytes(other), _RENAME_EXCHANGE) != 0:
        raise OSError(ctypes.get_errno(), "renameat2")


# ---- what is done with a tree ----


def inside(path: Path, top: Path) -> bool:
    """Return whether a path leads into a tree; a link may lead to nothing there, or in a circle."""
    return os.path.realpath(path).startswith(f"{top}/") or os.path.realpath(path) == str(top)


def copy(tree: Path, part: Path) -> set[str]:
    """Store a tree as a copy: the contents that were stored."""
    LocalFiles().store(str(tree), f"file://{part}", workspace=Workspace(str(tree.parent)))
    for path in part.rglob("*"):
        assert inside(path, part)
    return {path.read_text() for path in part.rglob("*") if path.is_file()}


def move(tree: Path, part: Path) -> set[str]:
    """Store a tree by a rename."""
    LocalFiles().store(str(tree), f"file://{part}", move=True, workspace=Workspace(str(tree.parent)))
    assert not part.is_symlink()
    return set()


def send(tree: Path, _part: Path) -> set[str]:
    """Read a tree as it is stored on HDFS: the contents that are sent."""
    found = set()
    with contextlib.closing(OpenTree(str(tree), str(tree.parent))) as opened:
        for node in nodes_to_store(opened, note=lambda _: None, keep_links=False).nodes:
            if node.is_file:
                try:
                    fd = opened.open(node.source)
                except OSError as error:
                    raise DlappError(f"{node.source}: {error}") from error
                with open(fd) as file:
                    found.add(file.read(100))
    return found


def remove(tree: Path, _part: Path) -> set[str]:
    """Remove a tree."""
    remove_tree(str(tree))
    return set()


Act = Callable[[Path, Path], set[str]]
ACTS = [copy, move, send, remove]


def make_tree(top: Path, mode: int = 0o755) -> None:
    """Make an output with the names that the bait has, too, and links to what is beside it; the directories in it get
    the mode."""
    (top / "d" / "deep").mkdir(parents=True)
    beside = top.parent / "beside"
    (beside / "deep").mkdir(parents=True)
    for path in (beside / "inside", beside / "deep" / "inside"):
        path.write_text("output\n")
    (top / "file beside").symlink_to("../beside/inside")
    (top / "directory beside").symlink_to("../beside")
    for path in (top / "d" / "inside", top / "d" / "deep" / "inside"):
        path.write_text("output\n")
    (top / "first").symlink_to("d/inside")
    for path in (top / "d" / "deep", top / "d", top):
        path.chmod(mode)


def clear(top: Path) -> None:
    """Remove what a try has left."""
    for directory, names, _ in os.walk(top):
        for name in names:
            with contextlib.suppress(OSError):  # of a link, which is not followed
                os.close(os.open(f"{directory}/{name}", os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW))
                os.chmod(f"{directory}/{name}", 0o700)
    shutil.rmtree(top)


@pytest.fixture
def deep_bait(bait: Bait, victim: User) -> Bait:
    """The bait with a directory in its directory."""
    deep = bait.directory / "deep"
    deep.mkdir(mode=0o500)
    (deep / "inside").write_text("kept\n")
    for path in (deep, deep / "inside"):
        os.chown(path, victim.uid, victim.gid)
    bait.directory.chmod(0o500)
    return bait


# ---- what lies there from the beginning ----


def fill(top: Path, bait: Bait) -> None:
    """Put whatever a payload can make into its output."""
    make_tree(top)
    links: dict[str, str | Path] = {
        "absolute": bait.file,
        "to a directory": bait.directory,
        "by dots": os.path.relpath(bait.file, top),
        "by way of a link": "to a directory/inside",
        "by way of another": "../output/to a directory/deep/inside",
        "to a FIFO": "fifo",
        "to a socket": "socket",
        "loop": "loop",
        "pong": "ping",
        "ping": "pong",
        "above": "..",
        "to itself": ".",
        "nothing": bait.absent,
    }
    for name, text in links.items():
        (top / name).symlink_to(text)
    os.mkfifo(top / "fifo")
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as server:
        fd = os.open(top, os.O_RDONLY)
        server.bind(f"/proc/self/fd/{fd}/socket")
        os.close(fd)


@pytest.mark.proves("output-paths")
@pytest.mark.parametrize("act", ACTS)
def test_hostile_outputs_neither_escape_nor_block(identities: Identities, victim: User, bait: Bait, act: Act) -> None:
    home = identities.home(victim)
    tree, part = home / "output", home / "parts" / "part"
    identities.call(victim, fill, tree, bait)
    for name, device in (("zero", os.makedev(1, 5)), ("null", os.makedev(1, 3))):
        os.mknod(tree / name, stat.S_IFCHR | 0o666, device)
        (tree / f"to {name}").symlink_to(name)
    with unchanged(bait.top):
        assert identities.call(victim, act, tree, part) <= {"output\n"}
    if act is move:
        names = ["d", "directory beside", "file beside"]
        assert sorted(path.name for path in part.iterdir() if not path.is_symlink()) == names
        for path in part.rglob("*"):
            assert inside(path, part)
    if act is remove:
        assert not tree.exists()


def test_a_hard_link_to_another_users_file_is_not_stored(
    identities: Identities, victim: User, member: User, place: Path
) -> None:
    secret, home = place / "secret", identities.home(victim)
    secret.write_text("kept\n")
    secret.chmod(0o600)
    os.chown(secret, member.uid, member.gid)
    tree, part = home / "output", home / "parts" / "part"
    tree.mkdir()
    os.link(secret, tree / "linked")
    os.chown(tree, victim.uid, victim.gid)
    with unchanged(secret):
        for act in (copy, send):
            with pytest.raises(DlappError, match="linked"):
                identities.call(victim, act, tree, part)
        identities.call(victim, move, tree, part)
    identities.call(victim, remove, part, part)
    assert not part.exists()
    assert (secret.read_text(), stat.S_IMODE(secret.stat().st_mode), secret.stat().st_nlink) == ("kept\n", 0o600, 1)


# ---- what takes the place of something meanwhile ----


class Switch:
    """Exchanges two names before the n-th call of `EVENTS`, once, or there and back before each later one."""

    def __init__(self) -> None:
        self._armed = False
        sys.addaudithook(self._hear)  # it can never be removed: for a child process

    @contextlib.contextmanager
    def before(self, call: int, one: Path, other: Path, *, to_and_fro: bool) -> Iterator[None]:
        self._call, self._one, self._other, self._to_and_fro = call, one, other, to_and_fro
        self.calls, self._armed = 0, True
        try:
            yield
        finally:
            self._armed = False

    def _hear(self, event: str, _args: tuple[object, ...]) -> None:
        if not self._armed or event not in EVENTS:
            return
        if self.calls == self._call or (self._to_and_fro and self.calls > self._call):
            self._armed = False
            with contextlib.suppress(FileNotFoundError, OSError):
                exchange(self._one, self._other)
            self._armed = True
        self.calls += 1


def substitute(kind: str, path: Path, bait: Bait) -> str:
    """Make what takes a place: the name in the tree that it takes."""
    match kind:
        case "link in the place of the tree":
            path.symlink_to(bait.directory.parent / "lookalike")
            return ""
        case "link in the place of a directory":
            path.symlink_to(bait.directory)
            return "d"
        case "link in the place of a deeper directory":
            path.symlink_to(bait.directory / "deep")
            return "d/deep"
        case "link in the place of a file":
            path.symlink_to(bait.directory / "inside")
            return "d/inside"
        case "link in the place of what a link leads to":
            path.symlink_to(bait.directory)
            return "../beside"
        case "FIFO in the place of a file":
            os.mkfifo(path)
            return "d/inside"
        case "FIFO in the place of a directory":
            os.mkfifo(path)
            return "d"
        case _:
            path.mkdir()
            (path / "inside").symlink_to(bait.file)
            (path / "deep").symlink_to(bait.directory)
            return "d"


KINDS = [
    "link in the place of the tree",
    "link in the place of a directory",
    "link in the place of a deeper directory",
    "link in the place of a file",
    "link in the place of what a link leads to",
    "FIFO in the place of a file",
    "FIFO in the place of a directory",
    "directory of links in the place of a directory",
]


def sweep(home: Path, bait: Bait, act: Act, kind: str, mode: int) -> int:
    """Do something with a tree again and again, each time with the exchange at another call: how often."""
    switch, tries = Switch(), 0
    top = home / "top"
    tree, part = top / "output", top / "parts" / "part"
    for to_and_fro in (False, True):
        for call in range(SWEPT):
            top.mkdir()
            make_tree(tree)
            taken = tree / substitute(kind, top / "other", bait)
            for path in (tree / "d" / "deep", tree / "d", tree):
                path.chmod(mode)
            with deadline(), switch.before(call, taken, top / "other", to_and_fro=to_and_fro):
                try:
                    contents = act(tree, part)
                except DlappError as error:
                    assert "\n" not in str(error)  # noqa: PT017
                    contents = set()
            assert contents <= {"output\n"}
            tries += 1
            clear(top)
            if switch.calls <= call:
                break
        else:
            raise AssertionError(f"more than {SWEPT} calls")
    return tries


@pytest.mark.proves("output-paths")
@pytest.mark.sampled(5)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("act", "mode"), [(copy, 0o755), (move, 0o755), (move, 0o500), (send, 0o755), (remove, 0o755), (remove, 0o000)]
)
def test_an_exchange_before_any_call_reaches_no_file_outside(
    identities: Identities, victim: User, deep_bait: Bait, kind: str, act: Act, mode: int
) -> None:
    shutil.copytree(deep_bait.directory, deep_bait.top / "lookalike" / "d")
    os.chmod(deep_bait.top / "lookalike", 0o500)
    for path in (deep_bait.top / "lookalike", *(deep_bait.top / "lookalike").rglob("*")):
        os.chown(path, victim.uid, victim.gid)
    with unchanged(deep_bait.top):
        assert identities.call(victim, sweep, identities.home(victim), deep_bait, act, kind, mode, deadline_s=60) > 2


def race(home: Path, bait: Bait, act: Act, rounds: int) -> None:
    """Do something with a tree while another process exchanges a directory in it with a link, all the time."""
    for number in range(rounds):
        top = home / f"top{number}"
        top.mkdir()
        tree, other = top / "output", top / "other"
        make_tree(tree)
        other.symlink_to(bait.directory)
        ready = os.pipe()
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(OSError):  # until the directory is gone
                os.write(ready[1], b".")
                while os.getppid() != 1:
                    exchange(tree / "d", other)
            os._exit(0)
        try:
            os.read(ready[0], 1)
            with deadline(), contextlib.suppress(DlappError):
                assert act(tree, top / "parts" / "part") <= {"output\n"}
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            for fd in ready:
                os.close(fd)


@pytest.mark.proves("output-paths")
@pytest.mark.parametrize("act", ACTS)
def test_continuous_exchanges_reach_no_file_outside(
    identities: Identities, victim: User, deep_bait: Bait, act: Act
) -> None:
    with unchanged(deep_bait.top):
        identities.call(victim, race, identities.home(victim), deep_bait, act, RACES, deadline_s=60)
