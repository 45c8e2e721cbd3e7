"""Test whose a path is: root obeys only what nobody else can replace."""

from __future__ import annotations

import grp
import os
import pwd
import struct
from pathlib import Path

import pytest

from dlapp.system.owners import other_owner, other_writers, who_may_change
from tests.attacks.identities import ATTACKER, GROUP, ROOT, VICTIM, Identities

pytestmark = pytest.mark.root


def make(path: Path, mode: int, uid: int = 0, gid: int = 0) -> Path:
    path.mkdir()
    os.chown(path, uid, gid)
    path.chmod(mode)
    return path


@pytest.mark.proves("root-path")
@pytest.mark.parametrize(
    ("mode", "gid", "who"),
    [
        (0o755, 0, ""),
        (0o777, 0, "everybody, who may write "),
        (0o757, 0, "everybody, who may write "),
        (0o1777, 0, ""),
        (0o775, GROUP, f"the group {GROUP}, who may write "),
        (0o2770, GROUP, f"the group {GROUP}, who may write "),
        (0o3770, GROUP, ""),
        (0o775, 0, ""),
    ],
)
def test_a_directory_of_roots_in_which_others_may_rename_is_not_roots(
    place: Path, mode: int, gid: int, who: str
) -> None:
    top = make(place / "top", mode, gid=gid)
    inner = make(top / "inner", 0o755)
    found = who_may_change(str(inner / "file"))
    assert found == (who and f"{who}{top}")


def test_the_group_bit_of_a_directory_with_an_access_list_counts_for_roots_group_too(place: Path) -> None:
    top = make(place / "top", 0o755)
    # Version 2; entries of tag, permissions and id: owner rwx, the attacker rwx, group r-x, mask rwx, others r-x.
    no_id = 0xFFFFFFFF
    entries = [(0x01, 7, no_id), (0x02, 7, ATTACKER.uid), (0x04, 5, no_id), (0x10, 7, no_id), (0x20, 5, no_id)]
    data = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    try:
        os.setxattr(top, "system.posix_acl_access", data)
    except OSError as error:
        pytest.skip(f"no access control lists here: {error}")
    assert who_may_change(str(top / "file")) == f"users on its access control list, who may write {top}"


def test_only_a_group_of_the_owner_alone_adds_no_writers(identities: Identities, place: Path) -> None:
    def of(path: Path) -> str:
        return other_writers(str(path), os.lstat(path))

    own = make(place / "own", 0o775, VICTIM.uid, VICTIM.gid)
    shared = make(place / "shared", 0o775, VICTIM.uid, GROUP)
    foreign = make(place / "foreign", 0o775, VICTIM.uid, ATTACKER.gid)
    answer = [identities.call(VICTIM, of, item) for item in (own, shared, foreign)]
    assert answer == ["", "the group dlusers", "the group attacker"]


def test_a_group_that_is_the_primary_one_of_another_user_is_not_private(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = make(place / "own", 0o775, 12_345, 12_345)
    users = [pwd.struct_passwd(("ann", "x", 12_345, 12_345, "", "/", "/bin/sh"))]
    monkeypatch.setattr(pwd, "getpwuid", lambda _uid: users[0])
    monkeypatch.setattr(pwd, "getpwall", lambda: users)
    monkeypatch.setattr(grp, "getgrgid", lambda gid: grp.struct_group(("ann", "x", gid, [])))
    assert other_writers(str(own), os.lstat(own)) == ""
    users.append(pwd.struct_passwd(("bob", "x", 12_346, 12_345, "", "/", "/bin/sh")))
    assert other_writers(str(own), os.lstat(own)) == "the group ann"


@pytest.mark.proves("root-path")
def test_a_link_is_followed_through_the_directories_that_it_passes(place: Path) -> None:
    roots = make(place / "roots", 0o755)
    target = make(roots / "target", 0o755)
    theirs = make(place / "theirs", 0o755, ATTACKER.uid)
    # Root's link leads through a user's directory; the link there, also root's, leads back to root's.
    (theirs / "back").symlink_to(target)
    (roots / "link").symlink_to(theirs / "back")
    (roots / "link-of-link").symlink_to("link")
    (roots / "up").symlink_to("../theirs/../roots/target")
    for name in ("link", "link-of-link", "up"):
        assert (roots / name).resolve() == target
        assert other_owner(str(roots / name / "file")) == ATTACKER.uid, name
    assert other_owner(str(roots / "target")) is None


def test_dots_behind_a_link_mean_the_parent_of_where_it_leads(place: Path) -> None:
    roots = make(place / "roots", 0o755)
    theirs = make(place / "theirs", 0o755, ATTACKER.uid)
    make(theirs / "deep", 0o755)
    (roots / "link").symlink_to(theirs / "deep")
    assert other_owner(f"{roots}/link/../file") == ATTACKER.uid


def test_link_loops_and_missing_paths_terminate(place: Path) -> None:
    roots = make(place / "roots", 0o755)
    (roots / "a").symlink_to("b")
    (roots / "b").symlink_to("a")
    assert who_may_change(str(roots / "a" / "file")) == ""
    assert who_may_change(str(roots / "missing" / "file")) == ""


@pytest.mark.proves("root-path")
@pytest.mark.parametrize(("mode", "gid", "who"), [(0o777, 0, "everybody"), (0o775, GROUP, "the group dlusers")])
def test_root_uses_no_directory_below_one_that_others_may_write(
    identities: Identities, place: Path, mode: int, gid: int, who: str
) -> None:
    top = make(place / "top", mode, gid=gid)
    inner = make(top / "inner", 0o700)
    (inner / "config.yaml").write_text("cluster: local\n")
    state = {"DLAPP_LOCAL_STATE_DIR": str(inner / "state"), "DLAPP_LOCAL_GCORES": "0"}
    for env in (state, {"DLAPP_CONFIG": str(inner / "config.yaml")}, {"HOME": str(inner)}):
        done = identities.run(ROOT, "dlapp-list", "-a", env=env)
        assert done.code != 0
        assert f"may be changed by {who}, who may write {top}" in done.err
        assert done.err.count("\n") == 1
        assert sorted(os.listdir(inner)) == ["config.yaml"]
