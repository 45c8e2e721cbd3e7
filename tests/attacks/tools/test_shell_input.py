"""A program in the container of one dlapp-shell that changes the workspace while another brings input into it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlapp.errors import DlappError
from dlapp.values.spec import InputSpec
from tests.attacks.identities import Identities, User, deadline
from tests.attacks.snapshots import unchanged
from tests.attacks.storage.test_output_trees import EVENTS, SWEPT, Switch, exchange, inside
from tests.live_input import fetch_into_workspace

NAMES = ["a", "a/data", "a/data/.dlapp-shell-input-*", "a/data/.dlapp-shell-input-*/*", "a/data/.*/*/d", "a/data/.*/d"]
"""What a link takes the place of; the names that staging has are known only once it is there."""
RACES = 20


class Program(Switch):
    """Exchanges what has one of `NAMES` by then, and something else in the workspace."""

    def __init__(self, workspace: Path, name: str) -> None:
        super().__init__()
        self._workspace, self._name = workspace, name

    def _hear(self, event: str, _args: tuple[object, ...]) -> None:
        if not self._armed or event not in EVENTS:
            return
        self._armed = False
        if self.calls == self._call or (self._to_and_fro and self.calls > self._call):
            attack(self._workspace, self._name)
        self._armed = True
        self.calls += 1


def attack(workspace: Path, name: str) -> None:
    """Exchange what the container has of a name: its links lead to nothing outside."""
    with contextlib.suppress(OSError):
        for found in workspace.glob(name):
            if inside(found.parent, workspace):
                exchange(found, workspace / "other")


@contextlib.contextmanager
def shell(outside: Path, private: Path) -> Iterator[Path]:
    """Make a workspace with a link out of it; empty the private directory."""
    workspace = outside.parent / "workspace"
    (workspace / "a").mkdir(parents=True)
    (workspace / "other").symlink_to(outside)
    private.mkdir()
    try:
        yield workspace
        assert os.listdir(private) == []
    finally:
        shutil.rmtree(workspace)
        shutil.rmtree(private)


def bring(kind: str, workspace: Path, private: Path) -> list[str]:
    source = workspace.parent / "source"
    one = {
        "files": InputSpec(sources=(f"file://{source}/*",), input_path="a/data"),
        "archive": InputSpec(sources=(f"file://{source}.tar",), input_path="a/data", unpack=True),
        "list": InputSpec(sources=(f"file://{source}/*",), input_path="a/data/list", as_list=True),
    }[kind]
    return fetch_into_workspace((one,), str(workspace), str(private), lambda _: None)


def make_files(home: Path) -> Path:
    """Make the input, and what lies outside of the workspace with names as in it. Return the latter."""
    source, outside = home / "source", home / "outside"
    (source / "d" / "deep").mkdir(parents=True)
    (source / "d" / "deep" / "inside").write_text("input\n")
    (source / "d" / "link").symlink_to("deep/inside")
    (source / "e").write_text("input\n")
    with tarfile.open(home / "source.tar", "w") as tar:
        for name in os.listdir(source):
            tar.add(source / name, name)
    for name in ("data", "input", "d", "deep"):
        (outside / name).mkdir(parents=True, mode=0o700)
    return outside


def sweep(outside: Path, private: Path, kind: str, name: str) -> int:
    """Bring input again and again, each time with the exchange at another call: how often it came to its place."""
    program, brought = Program(outside.parent / "workspace", name), 0
    for to_and_fro in (False, True):
        for call in range(SWEPT):
            with (
                shell(outside, private) as workspace,
                deadline(),
                program.before(call, workspace, workspace, to_and_fro=to_and_fro),
                contextlib.suppress(DlappError),
            ):
                bring(kind, workspace, private)
                brought += 1
            if program.calls <= call:
                break
        else:
            raise AssertionError(f"more than {SWEPT} calls")
    return brought


def race(outside: Path, private: Path, kind: str) -> None:
    """Bring input while another process exchanges all names that it finds."""
    for _ in range(RACES):
        with shell(outside, private) as workspace:
            ready = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.write(ready[1], b".")
                while os.getppid() != 1:
                    for name in NAMES:
                        attack(workspace, name)
                os._exit(0)
            try:
                os.read(ready[0], 1)
                with deadline(), contextlib.suppress(DlappError):
                    bring(kind, workspace, private)
            finally:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                for fd in ready:
                    os.close(fd)


@pytest.fixture(params=["same file system", "another file system"])
def parent(request: pytest.FixtureRequest, identities: Identities, victim: User) -> Iterator[Path]:
    """Return where the victim's private directory is, beside the workspace or on another file system."""
    if request.param == "same file system":
        yield identities.home(victim)
        return
    if not os.path.isdir("/dev/shm") or os.stat("/dev/shm").st_dev == identities.home(victim).stat().st_dev:
        pytest.skip("/dev/shm is no other file system here")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as top:
        os.chown(top, victim.uid, victim.gid)
        yield Path(top)


@pytest.mark.proves("shell-input")
@pytest.mark.sampled(7)
@pytest.mark.parametrize("kind", ["files", "archive", "list"])
@pytest.mark.parametrize("name", NAMES)
def test_an_exchange_before_any_call_changes_no_file_outside_of_the_workspace(
    identities: Identities, victim: User, parent: Path, kind: str, name: str
) -> None:
    outside = identities.call(victim, make_files, identities.home(victim))
    with unchanged(outside):
        assert identities.call(victim, sweep, outside, parent / "private", kind, name, deadline_s=120) > 0


@pytest.mark.proves("shell-input")
@pytest.mark.parametrize("kind", ["files", "archive"])
def test_continuous_exchanges_change_no_file_outside_of_the_workspace(
    identities: Identities, victim: User, parent: Path, kind: str
) -> None:
    outside = identities.call(victim, make_files, identities.home(victim))
    with unchanged(outside):
        identities.call(victim, race, outside, parent / "private", kind, deadline_s=120)
