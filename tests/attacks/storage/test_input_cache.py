"""Test what others may have left in a user's input cache, before it was the user's alone."""

from __future__ import annotations

import hashlib  # noqa: F401  (a user cannot load it later)
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from dlapp.errors import DlappError
from dlapp.storage.cache.entry import CacheKeySource, CacheLocation
from dlapp.storage.cache.store import InputCache
from dlapp.storage.local import LocalFiles
from dlapp.storage.values import FetchTarget, MatchedEntry, Progress
from tests.attacks.hostile_files import Bait
from tests.attacks.identities import GROUP, Identities, User
from tests.attacks.snapshots import contents_unchanged

Hostile = Callable[..., None]
PATHS = [
    "",
    "lock",
    "entries",
    "locks",
    "parts",
    "locks/KEY",
    "entries/KEY",
    "entries/KEY/about",
    "entries/KEY/pinned",
    "entries/KEY/tree",
    "entries/KEY/tree/data",
    "entries/KEY/tree/data/file",
    "parts/KEY.0123456789ab",
    "parts/KEY.0123456789ab/about",
]
"""All names in a cache; ``KEY`` is that of the entry which is asked for."""


@pytest.fixture(autouse=True)
def _no_power_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sync nothing: who hangs is found by a deadline, which the disk of a busy machine may exceed."""
    monkeypatch.setattr("dlapp.storage.cache.store.sync_file_system", lambda fd: None)
    monkeypatch.setattr(os, "fsync", lambda fd: None)


def wanted_of(source: Path) -> CacheKeySource:
    nodes = LocalFiles().tree(MatchedEntry(f"file://{source}", True, 0))
    return CacheKeySource("hdfs://nn/data", (("data", nodes),))


def hold(home: Path) -> tuple[str, bool, list[str]]:
    """Bring input by way of the cache: what it says, whether it is right, and all notes."""
    source, notes = home / "source" / "data", list[str]()
    wanted = wanted_of(source)

    def fetch(into: str, _progress: Progress | None) -> None:
        entry = MatchedEntry(f"file://{source}", True, 0)
        LocalFiles().fetch([FetchTarget(entry, f"{into}/data", wanted.trees[0][1])], lambda _: None)

    try:
        cache = InputCache(CacheLocation(str(home / "cache"), 1 << 30, 86400.0), notes.append, boot_id="boot")
        held = cache.hold(wanted, fetch)
    except DlappError as error:
        return str(error), False, notes
    if held is None:
        return "", False, notes
    file = Path(held.tree, "data", "file")
    right = file.read_text() == "input\n" and stat.S_ISREG(file.lstat().st_mode)
    held.close()
    return "", right, notes


def run_cache_commands(home: Path, key: str) -> None:
    """Do all else that is done with a cache; what cannot be done is said in a line."""
    calls: list[Callable[[InputCache], object]] = [
        InputCache.entries,
        lambda cache: cache.find(key),
        lambda cache: cache.sync(key),
        lambda cache: cache.pin(key),
        InputCache.entries,
        lambda cache: cache.pin(key, False),
        lambda cache: cache.evict_for(str(home), 1 << 60),
        InputCache.sweep,
        lambda cache: cache.remove(key),
    ]
    for call in calls:
        try:
            call(InputCache(CacheLocation(str(home / "cache"), 1 << 30, 86400.0), boot_id="boot"))
        except DlappError as error:
            assert 0 < len(str(error)) < 600  # noqa: PT017
            assert "\n" not in str(error)  # noqa: PT017


def make_source(home: Path) -> str:
    (home / "source" / "data").mkdir(parents=True)
    (home / "source" / "data" / "file").write_text("input\n")
    return wanted_of(home / "source" / "data").key


def make_input(home: Path) -> str:
    """Make a source, and a cache with it: the key."""
    key = make_source(home)
    assert hold(home)[1]
    part = home / "cache" / "parts" / f"{key}.0123456789ab"
    part.mkdir()
    (part / "about").write_text("{}")
    return key


@pytest.mark.proves("cache-input")
@pytest.mark.sampled(11)
@pytest.mark.parametrize("path", PATHS)
def test_foreign_files_in_a_cache_are_ignored_without_delay(
    identities: Identities, victim: User, bait: Bait, hostile: Hostile, path: str
) -> None:
    home = identities.home(victim)
    key = identities.call(victim, make_input, home)
    hostile(home / "cache" / path.replace("KEY", key), owner=victim, content=b'{"format": 1, "boot_id": ""}')
    with contents_unchanged(bait.top):
        outcome, right, notes = identities.call(victim, hold, home)
        # Where nothing could be held, it is said why, and the input is fetched without the cache.
        assert right or "\n" not in outcome
        assert right or outcome or notes
        identities.call(victim, run_cache_commands, home, key)


@pytest.mark.proves("cache-input")
@pytest.mark.parametrize("name", ["entries", "locks", "parts"])
@pytest.mark.parametrize("kind", ["of another user", "writable by all", "a link to another's"])
def test_a_directory_of_a_cache_in_which_others_can_write_is_refused(
    identities: Identities, place: Path, victim: User, attacker: User, name: str, kind: str
) -> None:
    home = identities.home(victim)
    identities.call(victim, make_source, home)
    directory = home / "cache" / name
    directory.parent.mkdir(mode=0o700)
    os.chown(directory.parent, victim.uid, victim.gid)
    if kind == "a link to another's":
        foreign = place / "foreign"
        directory.symlink_to(foreign)
    else:
        foreign = directory
    foreign.mkdir()
    owner = victim if kind == "writable by all" else attacker
    os.chown(foreign, owner.uid, owner.gid)
    foreign.chmod(0o777)
    outcome, right, _ = identities.call(victim, hold, home)
    assert not right
    assert outcome.startswith(f"{directory}: ")
    assert list(foreign.iterdir()) == []


def test_an_entry_in_a_foreign_directory_is_fetched_again(identities: Identities, victim: User, attacker: User) -> None:
    home = identities.home(victim)
    key = identities.call(victim, make_input, home)
    entry = home / "cache" / "entries" / key
    os.chown(entry, attacker.uid, attacker.gid)
    entry.chmod(0o777)
    outcome, right, notes = identities.call(victim, hold, home)
    assert not outcome
    assert right or notes
    assert not right or entry.stat().st_uid == victim.uid


@pytest.mark.proves("cache-input")
@pytest.mark.parametrize(
    ("mode", "who"), [(0o777, "everybody"), (0o775, "the group dlusers"), (0o1777, ""), (0o3775, ""), (0o755, "")]
)
@pytest.mark.parametrize("depth", [1, 2])
def test_a_cache_that_others_can_replace_is_refused_in_a_line(
    identities: Identities, victim: User, mode: int, who: str, depth: int
) -> None:
    top = identities.place / "disk"
    top.mkdir()
    os.chown(top, 0, GROUP)
    directory = top / "own" / "cache" if depth == 2 else top / "cache"
    (directory.parent if depth == 2 else directory).mkdir(mode=0o700)
    os.chown(directory.parent if depth == 2 else directory, victim.uid, victim.gid)
    top.chmod(mode)

    def use() -> str:
        try:
            InputCache(CacheLocation(str(directory), 1 << 30, 86400.0), boot_id="boot")
        except DlappError as error:
            return str(error)
        return ""

    answer = identities.call(victim, use)
    if who:
        assert f"can be replaced by {who}, who may write {top}, so it cannot be used as a cache" in answer
        assert "\n" not in answer
    else:
        assert answer == ""
    assert (directory / "entries").is_dir() == (not who)
