"""Owners of paths and processes: root may follow and obey only what only root can change.

Who may change what a path leads to: the owner of each directory and link on the way, and who may write one of these
directories. A sticky directory gives its writers nothing: they cannot replace what is another's (unlink(2)). Writing by
the group counts, unless it is root's group or the owner's private one: the group of that name, in which the owner is
alone. With an access control list the group's bit also stands for the users on that list (acl(5)), so it counts.
"""

from __future__ import annotations

import functools
import os
import stat
from collections.abc import Iterator

from dlapp.errors import Denied

_MAX_LINKS = 40
"""As many as Linux follows on one path. Source: path_resolution(7)."""
_ACCESS_LIST = "system.posix_acl_access"


def refuse_place_of_others(path: str) -> None:
    """Refuse, as root, a path on which another user decides; as anybody else allow it.

    It is for what lies below HOME or a directory that the environment names: with the caller's HOME kept, as by sudo
    without -H, that is a place of the caller's.

    Raises:
        Denied: others can change what is found there.
    """
    if os.geteuid() == 0 and (who := who_may_change(path)):
        raise Denied(f"{path} may be changed by {who}, so root does not use it (set HOME, as sudo -H does)")


def who_may_change(path: str) -> str:
    """Return who besides root can change what a path leads to; empty: nobody.

    What is not there yet can be made by whoever may write the last directory that is: root checks it after making it.
    """
    for place, found in components(path):
        if found.st_uid != 0:
            return user_name(found.st_uid)
        if who := other_writers(place, found):
            return f"{who}, who may write {place}"
    return ""


def other_owner(path: str) -> int | None:
    """Return the first owner other than root of what a path leads through; None: all of it is root's.

    Components that are not there belong to whoever owns the last one that is.
    """
    return next((found.st_uid for _, found in components(path) if found.st_uid != 0), None)


def components(path: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield what the kernel passes on a path, parents first: directories, links, what these lead through, and the end.

    It stops where nothing is, or at more links than the kernel follows.
    """
    # Not os.path.realpath: that shows where a path ends, and not through whose directories a link leads there.
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
    """Return who besides its owner can replace what lies in a directory; empty: nobody, or it is not a directory.

    Args:
        path: where it lies.
        found: what it is (lstat).
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
    """Return who can put something else in the place of a path, whoever owns the directories above; empty: nobody.

    For a user's own directory: whoever owns one above it (root, a NodeManager) made it a place for this user.
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
    # The members of a group do not name those whose primary group it is.
    return all(one.pw_uid == uid for one in pwd.getpwall() if one.pw_gid == gid)


def group_name(gid: int) -> str:
    """Return a group's name, or the number where there is none."""
    import grp

    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def user_name(uid: int) -> str:
    """Return a user's name, or the number where there is none."""
    try:
        return _known_name(uid)
    except KeyError:
        return str(uid)


@functools.lru_cache(maxsize=256)
def _known_name(uid: int) -> str:
    import pwd

    # It can take a question to a server. One that is unknown is asked for anew, as it raises.
    return pwd.getpwuid(uid).pw_name


def user_text(uid: int) -> str:
    """Return a user's name for a message; ``uid 1234`` where there is none."""
    name = user_name(uid)
    return f"uid {uid}" if name == str(uid) else name
