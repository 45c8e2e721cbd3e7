"""Names that an attacker exchanges all the time, hostile and right by turns, while the victim uses them."""

from __future__ import annotations

import contextlib
import encodings.idna  # noqa: F401  (a user cannot load it later)
import os
import secrets  # noqa: F401
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dlapp.client.shell import live_shell as shell  # noqa: F401
from dlapp.errors import DlappError
from dlapp.values.ids import ApplicationId
from tests.applications import listed_json
from tests.attacks.cluster.test_own_state import state_of_user
from tests.attacks.hostile_files import Bait
from tests.attacks.identities import MEMBER, ROOT, VICTIM, Identities, User
from tests.attacks.local_state import CONTAINER, engine_in, make_application
from tests.attacks.snapshots import contents_unchanged
from tests.attacks.storage.test_input_cache import hold, make_input, run_cache_commands

Hostile = Callable[..., None]
LOOKS = 20


@contextlib.contextmanager
def exchanging(pairs: list[tuple[Path, Path]], user: User = ROOT) -> Iterator[None]:
    """Exchange what lies at two names, again and again, in a process of ``user``; renameat2(2) does it in one step."""
    pid = os.fork()
    if pid == 0:
        try:
            if user is not ROOT:
                os.setgroups(user.groups)
                os.setresgid(user.gid, user.gid, user.gid)
                os.setresuid(user.uid, user.uid, user.uid)
            while True:
                for path, other in pairs:
                    with contextlib.suppress(OSError):
                        _exchange(path, other)
        finally:
            os._exit(0)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _exchange(path: Path, other: Path) -> None:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    libc.renameat2(-100, os.fsencode(path), -100, os.fsencode(other), 2)  # RENAME_EXCHANGE


def put_beside(hostile: Hostile, path: Path, *, by: User, owner: User) -> tuple[Path, Path]:
    """Put something hostile beside a name, to be exchanged with it."""
    other = path.with_name(f".{path.name}.other")
    hostile(other, by=by, owner=owner, content=b"{}")
    return path, other


@pytest.mark.proves("queue-names")
@pytest.mark.slow
@pytest.mark.sampled(5)
def test_names_of_an_application_that_its_owner_exchanges_cost_others_that_application_only(
    identities: Identities, shared_state: Path, hostile: Hostile, bait: Bait
) -> None:
    def prepare() -> tuple[list[str], str]:
        with engine_in(shared_state, shared=True) as engine:
            return [make_application(engine, state) for state in ("done", "running")], make_application(engine)

    made, honest = identities.call(MEMBER, prepare)
    pairs = []
    for application in made:
        home = state_of_user(shared_state, MEMBER) / "applications" / application
        container = CONTAINER.format(application.removeprefix("application_"))
        for name in (
            "row.json",
            "view.json",
            "outcome.json",
            "am.json",
            "died",
            "alive",
            "alive-2",
            "engine.json",
            "am.pid",
            "am.log",
        ):
            pairs.append(put_beside(hostile, home / name, by=MEMBER, owner=MEMBER))
        pairs.append(put_beside(hostile, home / "containers" / container / "stdout", by=MEMBER, owner=MEMBER))
        pairs.append(put_beside(hostile, home / "containers" / container, by=MEMBER, owner=MEMBER))
        pairs.append(put_beside(hostile, home, by=MEMBER, owner=MEMBER))

    def look() -> None:
        with engine_in(shared_state, shared=True) as engine:
            for _ in range(LOOKS):
                listed = {view["application_id"] for view in listed_json(engine, everybody=True)}
                assert honest in listed
                for application in made:
                    for call in (engine.view, engine.submission, engine.logs):
                        with contextlib.suppress(DlappError, FileNotFoundError):
                            call(ApplicationId.from_text(application))

    with contents_unchanged(bait.top), exchanging(pairs):
        for user in (VICTIM, ROOT):
            identities.call(user, look, deadline_s=20)


@pytest.mark.proves("queue-names")
@pytest.mark.sampled(5)
def test_a_users_directory_created_by_another_is_never_used(
    identities: Identities, shared_state: Path, hostile: Hostile, bait: Bait
) -> None:
    """Each time the new user has the directory made, or is refused; nothing is put into another's."""
    name = state_of_user(shared_state, VICTIM)
    other = shared_state / "other"
    hostile(other, by=MEMBER)
    hostile(name, by=MEMBER)
    away = shared_state / "away"

    def take() -> list[str]:
        refused = []
        for _ in range(LOOKS):
            try:
                engine_in(shared_state, shared=True).close()
            except DlappError as error:
                refused.append(str(error))
        return refused

    with contents_unchanged(bait.top), moving(name, away):
        refused = identities.call(VICTIM, take, deadline_s=20)
    assert all(line.startswith("local.state_dir: ") and "\n" not in line for line in refused)
    for path in (name, away, other):
        if path.is_dir() and not path.is_symlink() and path.stat().st_uid == MEMBER.uid:
            assert list(path.iterdir()) == []
    identities.call(MEMBER, lambda: engine_in(shared_state, shared=True).close())


@contextlib.contextmanager
def moving(path: Path, away: Path) -> Iterator[None]:
    """Take a name away and put it back, as the member to whom it belongs."""
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups(MEMBER.groups)
            os.setresgid(MEMBER.gid, MEMBER.gid, MEMBER.gid)
            os.setresuid(MEMBER.uid, MEMBER.uid, MEMBER.uid)
            while True:
                for one, two in ((path, away), (away, path)):
                    with contextlib.suppress(OSError):
                        os.rename(one, two)
        finally:
            os._exit(0)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


CACHE = ("", "lock", "entries", "locks", "parts", "locks/KEY", "entries/KEY", "entries/KEY/about", "entries/KEY/tree")


@pytest.mark.sampled(5)
def test_an_input_cache_in_a_shared_directory_resists_exchanges_without_delay(
    identities: Identities, bait: Bait, hostile: Hostile
) -> None:
    # As the operator's directory of caches: sticky. In one that is not, no cache is made (test_input_cache).
    common = identities.place / "common"
    common.mkdir()
    common.chmod(0o1777)
    key = identities.call(VICTIM, make_input, common)
    paths = [common / "cache" / name.replace("KEY", key) for name in CACHE]
    pairs = [(path, common / f"other-{number}") for number, path in enumerate(reversed(paths))]
    for _, other in pairs:
        hostile(other, by=MEMBER, owner=VICTIM)

    def use() -> None:
        for _ in range(5):
            outcome, right, notes = hold(common)
            assert (outcome, right) == ("", True), notes
            run_cache_commands(common, key)

    with contents_unchanged(bait.top), exchanging(pairs, MEMBER):
        identities.call(VICTIM, use, deadline_s=20)
