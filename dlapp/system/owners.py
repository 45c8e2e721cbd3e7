"""Owners of paths and processes: root may only follow and trust what only root can change.

The target of a path can be changed by the owner of each directory and link on the path, and by everybody who can write
to one of these directories. In a sticky directory, writers cannot replace other users' entries (unlink(2)). Write
permission for the group counts, unless it is root's group or the owner's private one: the group of the same name whose
only member is the owner. With an access control list the group's bit also covers the users on that list (acl(5)), so it
counts.
"""

from __future__ import annotations

import functools
import os
import stat
from collections.abc import Iterator

from dlapp.errors import Denied

_MAX_LINKS = 40
"""Number of links that Linux follows on one path. Source: path_resolution(7)."""
_ACCESS_LIST = "system.posix_acl_access"


def check_not_writable_by_others(path: str) -> None:
    """Refuse, as root, a path whose target another user can change; allow it for other users.

    For paths below HOME or a directory from the environment: if the caller's HOME is kept, as by sudo without -H, the
    caller controls them.

    Raises:
        Denied: others can change the target.
    """
    if os.geteuid() == 0 and (who := who_may_change(path)):
        raise Denied(f"{path} may be changed by {who}, so root does not use it (set HOME, as sudo -H does)")


def who_may_change(path: str) -> str:
    """Return who besides root can change the target of a path; empty if nobody can.

    A missing component can be created by everybody who can write to the last existing directory: root checks it after
    creating it.
    """
    for place, found in components(path):
        if found.st_uid != 0:
            return user_name(found.st_uid)
        if who := other_writers(place, found):
            return f"{who}, who may write {place}"
    return ""


def other_owner(path: str) -> int | None:
    """Return the first owner other than root on a path; None if all of it is root's.

    A missing component belongs to the owner of the last existing one.
    """
    return next((found.st_uid for _, found in components(path) if found.st_uid != 0), None)


def components(path: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield every path that the kernel traverses, parents first: directories, links, the components of their targets,
    and the end.

    It stops at a missing component, or after more links than the kernel follows.
    """
    # os.path.realpath only shows where a path ends, not the directories through which a link leads there.
    place, links = "/", 0
    todo = (path if path.startswith("/") else os.path.join(os.getcwd(), path)).split("/")[::-1]
    yield place, os.lstat(place)
    while todo:
        name = todo.pop()
        if name in ("", "."):
            continue
        if name == "..":
            place = os.path.dirname(place)  # no component of it is a link
            continue
        inner = os.path.join(place, name)
        try:
            found = os.lstat(inner)
            text = os.readlink(inner) if stat.S_ISLNK(found.st_mode) else ""
        except OSError:
            return
        yield inner, found
        if not text:
            place = inner
            continue
        links += 1
        if links > _MAX_LINKS:
            return
        todo += text.split("/")[::-1]
        if text.startswith("/"):
            place = "/"


def other_writers(path: str, found: os.stat_result) -> str:
    """Return who besides its owner can replace entries of a directory; empty if nobody can, or it is not a directory.

    Args:
        found: its status (lstat).
    """
    if not stat.S_ISDIR(found.st_mode) or found.st_mode & stat.S_ISVTX:
        return ""
    if found.st_mode & stat.S_IWOTH:
        return "everybody"
    if not found.st_mode & stat.S_IWGRP:
        return ""
    if _has_access_list(path):
        return "users on its access control list"
    return "" if _is_private_group(found.st_gid, found.st_uid) else f"the group {group_name(found.st_gid)}"


def other_writers_above(path: str) -> str:
    """Return who can replace a path, whoever owns its parent directories; empty if nobody can.

    For a user's own directory: the owner of a parent (root, a NodeManager) created it for this user.
    """
    for place, found in components(os.path.dirname(path)):
        if who := other_writers(place, found):
            return f"{who}, who may write {place}"
    return ""


def _has_access_list(path: str) -> bool:
    try:
        return bool(os.getxattr(path, _ACCESS_LIST, follow_symlinks=False))
    except OSError:
        return False


def _is_private_group(gid: int, uid: int) -> bool:
    if gid == 0:
        return True
    import grp
    import pwd

    try:
        owner, group = pwd.getpwuid(uid), grp.getgrgid(gid)
    except KeyError:
        return False
    if owner.pw_gid != gid or group.gr_name != owner.pw_name or not set(group.gr_mem) <= {owner.pw_name}:
        return False
    # The member list of a group does not include users whose primary group it is.
    return all(one.pw_uid == uid for one in pwd.getpwall() if one.pw_gid == gid)


def group_name(gid: int) -> str:
    """Return a group's name, or its number if it has none."""
    import grp

    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def user_name(uid: int) -> str:
    """Return a user's name, or its number if it has none."""
    try:
        return _known_name(uid)
    except KeyError:
        return str(uid)


@functools.lru_cache(maxsize=256)
def _known_name(uid: int) -> str:
    import pwd

    # The lookup may query a server. An unknown user is looked up again, because that raises.
    return pwd.getpwuid(uid).pw_name


def user_text(uid: int) -> str:
    """Return a user's name for a message; ``uid 1234`` if it has none."""
    name = user_name(uid)
    return f"uid {uid}" if name == str(uid) else name
