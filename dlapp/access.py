"""Access of others to an application: the users and groups that `view_acl` and `modify_acl` name.

The text has YARN's form: users, one blank, groups, each a list with commas. ``ann,ben team`` names two users and a
group, and with a blank before it `` team`` names the group alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from dlapp.errors import SpecError
from dlapp.system.text import shown
from dlapp.value import Value

MOST_NAMES = 28
"""Of both keys together. HDFS takes 32 entries, and four of them are the owner's, the group's, the mask and the
others'. Source: AclTransformation.MAX_ENTRIES."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9._-]{0,254}", re.ASCII)
"""Source: hdfs-default.xml, dfs.webhdfs.acl.provider.permission.pattern."""


class AccessList(Value):
    """Users and groups that have a right; none: the owner alone has it.

    Raises:
        SpecError: a name is not that of a user or group.
    """

    users: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in (*self.users, *self.groups):
            if name == "*":
                raise SpecError("access", "names everybody (*): name users and groups")
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                raise SpecError("access", f"{shown(str(name))} is not the name of a user or group")

    def __bool__(self) -> bool:
        """Return whether it names anybody."""
        return bool(self.users or self.groups)

    def __str__(self) -> str:
        """Return the text that YARN takes; empty: it names nobody."""
        groups = f" {','.join(self.groups)}" if self.groups else ""
        return ",".join(self.users) + groups

    def with_all_of(self, other: AccessList) -> AccessList:
        """Return the list of those that this one or another one names."""
        users, groups = (*self.users, *other.users), (*self.groups, *other.groups)
        return AccessList(tuple(dict.fromkeys(users)), tuple(dict.fromkeys(groups)))


def read_access_list(text: str) -> AccessList:
    """Return the users and groups that a text in YARN's form names.

    Raises:
        ValueError: it is of another form, or names nobody or everybody.
    """
    users, _, groups = text.rstrip().partition(" ")
    groups = groups.lstrip(" ")
    if users.endswith(",") or re.search(r"\s", users + groups):
        raise ValueError(f"{shown(text)} is not USER,USER GROUP,GROUP: one blank ends the users, and there is no other")
    try:
        found = AccessList(*(tuple(dict.fromkeys(names.split(","))) if names else () for names in (users, groups)))
    except SpecError as refused:
        raise ValueError(refused.problem) from None
    if not found:
        raise ValueError("names nobody")
    return found


def problems_with_access(view_acl: AccessList, modify_acl: AccessList) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with two lists together, each with its key."""
    both = view_acl.with_all_of(modify_acl)
    if (count := len(both.users) + len(both.groups)) > MOST_NAMES:
        key = "view_acl" if view_acl else "modify_acl"
        problem = f"view_acl and modify_acl name {count} users and groups, the maximum is {MOST_NAMES}: name a group"
        yield f"application.{key}", problem
