"""Fixtures for attacks by real users of this machine; see `tests/attacks/identities.py`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.attacks import hostile_files, sysctls
from tests.attacks.hostile_files import KINDS, Bait, make_bait
from tests.attacks.identities import ATTACKER, GROUP, MEMBER, ROOT, VICTIM, Identities, User, can_have_namespaces
from tests.services.users import interpreter_for_everybody, place_for_everybody
from tests.tiers import FULL


@pytest.fixture
def place(protected_sysctls: sysctls.Values) -> Iterator[Path]:
    """A directory of root's that every user may write, sticky as /tmp is."""
    with place_for_everybody("attacks", 0o1777) as top:
        yield top


@pytest.fixture
def identities(place: Path) -> Identities:
    """Run functions (``call``) and commands (``run``) as another user, with a deadline and a clean environment."""
    if not can_have_namespaces():
        pytest.skip("root may not make mount namespaces here, so users without an entry in passwd have none")
    return Identities(place, interpreter_for_everybody())


@pytest.fixture
def root() -> User:
    """Root, whose home is one of this test's."""
    return ROOT


@pytest.fixture
def victim() -> User:
    """A user in the group ``dlusers``."""
    return VICTIM


@pytest.fixture
def member() -> User:
    """Another user in the group ``dlusers``."""
    return MEMBER


@pytest.fixture
def attacker() -> User:
    """A user in no group with anybody."""
    return ATTACKER


@pytest.fixture
def shared_state(place: Path) -> Path:
    """A state directory that the group ``dlusers`` shares, as docs/local.md says to make it."""
    state = place / "state"
    state.mkdir()
    os.chown(state, 0, GROUP)
    state.chmod(0o3770)
    return state


@pytest.fixture
def bait(place: Path, victim: User) -> Bait:
    """Private files of the victim's that hostile links lead to."""
    return make_bait(place / "bait", victim)


Place = Callable[..., None]


@pytest.fixture(params=KINDS)
def hostile(request: pytest.FixtureRequest, bait: Bait, attacker: User) -> Place:
    """Put each kind of hostile file at a path: ``hostile(path, by=attacker, owner=victim, content=b"...")``.

    ``hostile.kind`` is its kind; see `hostile_files.place`.
    """

    def put(path: Path, *, by: User = attacker, owner: User | None = None, content: bytes = b"") -> None:
        hostile_files.place(request.param, path, by=by, bait=bait, owner=owner, content=content)

    put.kind = request.param  # type: ignore[attr-defined]
    return put


@pytest.fixture(
    params=[sysctls.UNPROTECTED, sysctls.DEBIAN] if FULL else [sysctls.UNPROTECTED],
    ids=["unprotected", "as on Debian"] if FULL else ["unprotected"],
)
def protected_sysctls(request: pytest.FixtureRequest) -> Iterator[sysctls.Values]:
    """Run the test with fs.protected_{symlinks,hardlinks,fifos,regular} all 0, where an attacker can do most.

    In the faults tier it runs with Debian's values, too; marked with `sysctls.BOTH` in each tier. Where root may not
    set them it runs once, with those of the machine, which the fixture returns.
    """
    with sysctls.protected(request.param, or_those_of_the_machine=request.param == sysctls.UNPROTECTED):
        yield sysctls.current()
