"""The attacks' own tools: other users, deadlines, hostile files, comparison of trees, sysctls."""

from __future__ import annotations

import os
import pwd
import signal
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from dlapp.system.files import UntrustedFile, read_file
from tests.attacks import identities as identities_module
from tests.attacks import sysctls
from tests.attacks.hostile_files import HUGE, KINDS, Bait
from tests.attacks.identities import GROUP, Identities, User, deadline
from tests.attacks.snapshots import unchanged
from tests.services.polling import wait_until
from tests.services.users import ONLY_ROOT


def test_a_function_runs_as_the_user_with_their_groups_and_home(
    identities: Identities, victim: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DLAPP_LOCAL_SHARED", "true")

    def who() -> tuple[object, ...]:
        return os.getresuid(), os.getgroups(), pwd.getpwuid(os.geteuid()).pw_name, os.getcwd(), sorted(os.environ)

    uids, groups, name, directory, variables = identities.call(victim, who)
    assert (uids, groups, name) == ((victim.uid,) * 3, [GROUP], "victim")
    assert directory == str(identities.home(victim))
    assert variables == ["HOME", "LANG", "LOGNAME", "PATH", "USER"]
    assert os.geteuid() == 0
    with pytest.raises(KeyError):
        pwd.getpwuid(victim.uid)


def test_an_exception_of_the_function_is_raised(identities: Identities, attacker: User, bait: Bait) -> None:
    with pytest.raises(PermissionError) as raised:
        identities.call(attacker, (bait.top / "file").read_text)
    assert "as attacker" in raised.value.__notes__[0]


def test_an_error_of_dlapp_raised_by_a_function_keeps_its_text(identities: Identities, victim: User) -> None:
    def refuse() -> None:
        raise UntrustedFile("/a", "is a FIFO")

    with pytest.raises(UntrustedFile) as raised:
        identities.call(victim, refuse)
    assert (str(raised.value), raised.value.args) == ("/a: is a FIFO", ("/a: is a FIFO",))


def test_a_command_runs_as_the_user(identities: Identities, victim: User) -> None:
    done = identities.run(victim, "/bin/sh", "-c", "id -un; id -Gn; pwd; echo $A; exit 3", env={"A": "a"})
    assert done.out.splitlines() == ["victim", "victim dlusers", str(identities.home(victim)), "a"]
    assert (done.code, done.err) == (3, "")
    assert identities.run(victim, "dlapp-list", deadline_s=20).code == 0


@pytest.fixture
def once_it_hangs(identities: Identities, victim: User, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A FIFO of the victim's, which is made by what hangs: a deadline counts from then on."""
    fifo = identities.home(victim) / "fifo"

    def hang_s(seconds: float) -> float:
        wait_until(fifo.exists, what="it hangs")
        return seconds

    monkeypatch.setattr(identities_module, "hang_s", hang_s)
    return fifo


def test_a_function_that_hangs_fails_with_its_stack(identities: Identities, victim: User, once_it_hangs: Path) -> None:
    with pytest.raises(pytest.fail.Exception, match=r"hangs:[\s\S]*in hang"):
        identities.call(victim, hang, once_it_hangs, deadline_s=0.1)


@pytest.mark.usefixtures("once_it_hangs")
def test_a_command_that_hangs_fails_with_its_stack(identities: Identities, victim: User) -> None:
    code = "import os, sys\ndef hang():\n    os.mkfifo('fifo')\n    open('fifo')\nhang()"
    with pytest.raises(pytest.fail.Exception, match=r"hangs:[\s\S]*in hang"):
        identities.run(victim, str(identities.python), "-c", code, deadline_s=0.1)


def test_a_block_that_hangs_fails_with_its_stack(tmp_path: Path) -> None:
    with pytest.raises(pytest.fail.Exception, match=r"hangs:[\s\S]*in hang"), deadline(0.5):
        hang(tmp_path / "fifo")


def hang(fifo: Path) -> None:
    os.mkfifo(fifo)
    fifo.read_text()


def test_each_hostile_kind_is_created_and_refused_without_an_effect(
    identities: Identities, place: Path, hostile: Callable[..., None], victim: User, bait: Bait
) -> None:
    path = place / "state.json"
    path.write_text("mine")
    hostile(path, owner=victim, content=b"{}")
    kind = hostile.kind  # type: ignore[attr-defined]
    assert sorted(item.name for item in place.iterdir() if item.name.startswith(("state", ".state"))) == ["state.json"]

    def read() -> bytes:
        return read_file(str(path), owners=[victim.uid], max_bytes=100)

    with unchanged(bait.top):
        if kind in ("hard link", "writable by all"):
            assert identities.call(victim, read) in (b"kept\n", b"{}")
        else:
            with pytest.raises((UntrustedFile, PermissionError)):
                identities.call(victim, read)
    if kind == "huge":
        assert path.stat().st_size == HUGE
        assert path.stat().st_blocks < 100


@ONLY_ROOT
@pytest.mark.parametrize("kind", KINDS)
def test_a_hostile_directory_gives_way_to_the_next_kind(place: Path, bait: Bait, attacker: User, kind: str) -> None:
    from tests.attacks import hostile_files

    path = place / "name"
    hostile_files.place("directory", path, by=attacker, bait=bait)
    hostile_files.place(kind, path, by=attacker, bait=bait)
    assert kind == "directory" or not stat.S_ISDIR(path.lstat().st_mode)


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("new", lambda top: (top / "b").touch()),
        ("gone", lambda top: (top / "a").unlink()),
        ("mode", lambda top: (top / "a").chmod(0o600)),
        ("content", lambda top: _write_unseen(top / "a")),
        ("type", lambda top: ((top / "a").unlink(), (top / "a").symlink_to("x"))),
        ("mtime_ns", lambda top: os.utime(top / "a", ns=(0, 0))),
        ("links", lambda top: os.link(top / "a", top.parent / "second")),
    ],
)
def test_each_change_of_a_tree_is_seen(tmp_path: Path, what: str, change: Callable[[Path], object]) -> None:
    top = tmp_path / "top"
    top.mkdir()
    (top / "a").write_text("1")
    (top / "a").chmod(0o644)
    with pytest.raises(AssertionError, match=what), unchanged(top):
        change(top)
    with unchanged(top):
        pass


def _write_unseen(path: Path) -> None:
    before = path.stat()
    path.write_text("2")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@ONLY_ROOT
@pytest.mark.parametrize("values", [sysctls.UNPROTECTED, sysctls.DEBIAN])
def test_sysctls_have_the_values_in_the_test(values: sysctls.Values) -> None:
    with sysctls.protected(values):
        assert sysctls.current() == values


@ONLY_ROOT
def test_sysctls_are_restored_after_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Files of its own: the machine's values are set by other tests at any time.
    monkeypatch.setattr(sysctls, "_DIRECTORY", str(tmp_path))
    monkeypatch.setattr(sysctls, "_LOCK", str(tmp_path / "lock"))
    before = (1, 0, 1, 2)
    for name, value in zip(sysctls.NAMES, before, strict=True):
        (tmp_path / f"protected_{name}").write_text(str(value))
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        with sysctls.protected(sysctls.UNPROTECTED):
            os.write(write, b".")
            signal.pause()
        os._exit(1)
    os.close(write)
    os.read(read, 1)
    os.close(read)
    assert sysctls.current() == sysctls.UNPROTECTED
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    wait_until(lambda: sysctls.current() == before, what="they are restored")
