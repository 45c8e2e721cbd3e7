"""Access lists: the text form of `view_acl` and `modify_acl`, and their form for HDFS and YARN."""

from __future__ import annotations

from typing import Any

import pytest

from dlapp.cluster.yarn.am_plan import acls_of
from dlapp.cluster.yarn.client.shared_tokens import acl_entries
from dlapp.errors import SpecError
from dlapp.values.access import (
    MAX_NAMES,
    MODIFIERS,
    VIEWERS,
    AccessList,
    derive_token,
    is_token,
    read_access_list,
    shared_tokens,
)
from dlapp.values.messages import StopRequest
from dlapp.values.serialization import from_json, to_json
from dlapp.values.spec import AppSpec

SECRET = "ab" * 32


@pytest.mark.parametrize(
    ("text", "users", "groups"),
    [
        ("ann", ("ann",), ()),
        ("ann,ben,ann", ("ann", "ben"), ()),
        ("ann,ben team,b-2", ("ann", "ben"), ("team", "b-2")),
        ("ann  team ", ("ann",), ("team",)),
        (" team", (), ("team",)),
        ("a.b_c-D9", ("a.b_c-D9",), ()),
    ],
)
def test_a_list_is_read_in_yarns_form_and_written_so(
    text: str, users: tuple[str, ...], groups: tuple[str, ...]
) -> None:
    found = read_access_list(text)
    assert (found.users, found.groups) == (users, groups)
    assert read_access_list(str(found)) == found


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("*", r"names everybody \(\*\): name users and groups"),
        ("ann *", "names everybody"),
        ("ann, ben", "'ann, ben' is not USER,USER GROUP,GROUP: one blank ends the users"),
        ("ann team, others", "one blank ends the users"),
        ("ann\nben", "one blank ends the users"),
        ("ann,,ben", "'' is not the name of a user or group"),
        ("ann:rwx", "'ann:rwx' is not the name"),
        ("../ann", "is not the name"),
        ("12345", "is not the name"),
        (" ", "names no user and no group"),
    ],
)
def test_another_form_is_refused_with_the_reason(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        read_access_list(text)


def spec(**lists: Any) -> AppSpec:
    return AppSpec(username="tony", appname="a", command=("true",), **lists)


def test_a_spec_has_empty_acls_and_keeps_given_ones() -> None:
    assert not spec().view_acl
    assert not shared_tokens(AccessList(), AccessList(), SECRET)
    named = spec(view_acl=AccessList(("ann",), ("team",)), modify_acl=AccessList(("ben",)))
    assert from_json(AppSpec, to_json(named)) == named
    assert acls_of(named) == {"VIEW_APP": "ann,ben team", "MODIFY_APP": "ben"}
    assert acls_of(spec()) == {}


def test_both_lists_together_have_room_in_an_access_control_list_of_hdfs() -> None:
    names = tuple(f"u{number}" for number in range(MAX_NAMES))
    fits = spec(view_acl=AccessList(names), modify_acl=AccessList(names[:3]))
    assert len(acl_entries("rwx", "--x", fits.view_acl)) == 32
    with pytest.raises(SpecError, match="view_acl and modify_acl name 29 users and groups, the maximum is 28"):
        spec(view_acl=AccessList(names), modify_acl=AccessList((), ("team",)))


def test_acls_given_by_a_program_are_checked() -> None:
    with pytest.raises(SpecError, match="must be an AccessList"):
        spec(view_acl="ann")
    with pytest.raises(SpecError, match="names everybody"):
        from_json(AccessList, {"users": ["*"]})


def test_each_list_has_a_token_of_its_own() -> None:
    viewers, modifiers = shared_tokens(AccessList(("ann",)), AccessList(("ben",)), SECRET)
    assert (viewers.name, viewers.text) == ("viewers.token", derive_token(SECRET, VIEWERS))
    assert (modifiers.name, modifiers.text) == ("modifiers.token", derive_token(SECRET, MODIFIERS))
    assert viewers.text != modifiers.text
    assert is_token(viewers.text)
    assert not is_token(f"{viewers.text}\r\nHost: elsewhere")


def test_hdfs_acl_entries_allow_the_owner_and_named_users_only() -> None:
    assert acl_entries("rw-", "r--", AccessList(("ann",), ("team",))) == [
        "user::rw-",
        "user:ann:r--",
        "group::---",
        "group:team:r--",
        "mask::r--",
        "other::---",
    ]


@pytest.mark.parametrize("name", ["", "a" * 256, "ann\nben", "\x1b[2J"])
def test_the_user_of_a_stop_request_is_one_line(name: str) -> None:
    assert from_json(StopRequest, {"user": "a" * 255}).user == "a" * 255
    with pytest.raises(SpecError, match="user: is not the name of a user, of at most 255 characters"):
        from_json(StopRequest, {"user": name})
