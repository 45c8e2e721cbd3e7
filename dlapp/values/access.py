"""Access to an application: the tokens of its control address, the users and groups in `view_acl` and `modify_acl`, and
the request that opens a stream to a container. Commands load this module without all messages.

The text of an access list has YARN's form: users, one blank, groups, each separated by commas. ``ann,ben team`` names
two users and a group, and with a leading blank `` team`` names only the group.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from dlapp.errors import SpecError
from dlapp.system.text import lazy_pattern, shown
from dlapp.value import NamedTuple, Value

MAX_NAMES = 28
"""Limit for both keys together. HDFS accepts 32 entries, four of which are for the owner, the group, the mask and
others. Source: AclTransformation.MAX_ENTRIES."""
_NAME = lazy_pattern(r"[A-Za-z_][A-Za-z0-9._-]{0,254}", re.ASCII)
"""Source: hdfs-default.xml, dfs.webhdfs.acl.provider.permission.pattern."""
TOOLS = "tools"
"""Purpose of the token of tools; that of a task's token is its container id."""
VIEWERS, MODIFIERS = "viewers", "modifiers"
"""Purposes of the tokens of the users in `view_acl` and `modify_acl`."""
_TOKEN = lazy_pattern(r"[0-9a-f]{64}")
MAX_TOKEN_BYTES = 256
"""Size limit of a token's file."""
MAX_STREAM_HEAD = 32 << 10
STREAM_EVENT_FILES, STREAM_EXEC, STREAM_PORT = "event-files", "exec", "port"
"""Kinds of streams: files of the workspace that TensorBoard reads, a command, a connection to a port."""
_STREAM_KIND = lazy_pattern(r"[a-z][a-z-]{0,31}")


class AccessList(Value):
    """Users and groups that have a right; empty: only the owner has it.

    Raises:
        SpecError: a name is not a valid user or group name.
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
        """Return whether it names any user or group."""
        return bool(self.users or self.groups)

    def __str__(self) -> str:
        """Return the text in YARN's form; empty: it names nobody."""
        groups = f" {','.join(self.groups)}" if self.groups else ""
        return ",".join(self.users) + groups

    def with_all_of(self, other: AccessList) -> AccessList:
        """Return the union of this and another list."""
        users, groups = (*self.users, *other.users), (*self.groups, *other.groups)
        return AccessList(tuple(dict.fromkeys(users)), tuple(dict.fromkeys(groups)))


def read_access_list(text: str) -> AccessList:
    """Return the users and groups in a text of YARN's form.

    Raises:
        ValueError: it is malformed, or names nobody or everybody.
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
        raise ValueError("names no user and no group")
    return found


def problems_with_access(view_acl: AccessList, modify_acl: AccessList) -> Iterator[tuple[str, str]]:
    """Yield the problems of the two lists together, each with its key."""
    both = view_acl.with_all_of(modify_acl)
    if (count := len(both.users) + len(both.groups)) > MAX_NAMES:
        key = "view_acl" if view_acl else "modify_acl"
        problem = f"view_acl and modify_acl name {count} users and groups, the maximum is {MAX_NAMES}: name a group"
        yield f"application.{key}", problem


class ControlAccess(NamedTuple):
    """Control address of an ApplicationMaster, and a token for it.

    Args:
        is_own: the token is that for tools, which only the owner has; else the application is another user's.
        owner: on this machine, required owner of the process that gets the token; None: not known.
    """

    url: str
    token: str
    is_own: bool = True
    owner: int | None = None


def new_secret() -> str:
    """Return a new secret for one application: 32 random bytes as hex digits."""
    return os.urandom(32).hex()


def derive_token(control_secret: str, purpose: str) -> str:
    """Return the token for a purpose, such as `TOOLS` or a container id: keyed BLAKE2b, 64 hex digits."""
    from _blake2 import blake2b  # hashlib imports it from there, and also loads OpenSSL, 2 ms

    key = bytes.fromhex(control_secret)
    return blake2b(purpose.encode(), key=key, person=b"dlapp-control", digest_size=32).hexdigest()


class SharedToken(NamedTuple):
    """Token of an application for users other than its owner.

    Args:
        name: name of its file.
        text: the token.
        access: who may read it.
    """

    name: str
    text: str
    access: AccessList


def token_file(purpose: str) -> str:
    """Return the name of the file with a token for other users, `VIEWERS` or `MODIFIERS`."""
    return f"{purpose}.token"


def shared_tokens(view_acl: AccessList, modify_acl: AccessList, control_secret: str) -> tuple[SharedToken, ...]:
    """Return the tokens for users other than an application's owner; most applications have none."""
    lists = ((VIEWERS, view_acl), (MODIFIERS, modify_acl))
    return tuple(
        SharedToken(token_file(purpose), derive_token(control_secret, purpose), access)
        for purpose, access in lists
        if access
    )


def is_token(text: str) -> bool:
    """Return whether a text has the form of a token: another user may have written it."""
    return _TOKEN.fullmatch(text) is not None


def page_path(control_secret: str) -> str:
    """Return the secret path of the page for browsers, on an address that others on the machine can reach as well."""
    return f"/{derive_token(control_secret, 'page')[:32]}/"


def metrics_path(control_secret: str) -> str:
    """Return the path of the metrics for Prometheus, which cannot be guessed."""
    return f"/metrics/{derive_token(control_secret, 'metrics')[:32]}"


def token_is_right(control_secret: str, purpose: str, token: str) -> bool:
    """Return True if ``token`` is the one for ``purpose``, compared in constant time."""
    return is_same(derive_token(control_secret, purpose), token)


def is_same(secret: str, text: str) -> bool:
    """Compare in constant time."""
    from _operator import _compare_digest  # `hmac.compare_digest` without OpenSSL, which takes 4 ms to load

    return _compare_digest(secret.encode(), text.encode())


class StreamRequest(Value, kw_only=True):
    """Request of a tool for a stream to a container (`dlapp.net.streams`).

    Args:
        index: CONTAINER_INDEX of the container; None: that of the trial.
        kind: type of the other end: `STREAM_EVENT_FILES`, `STREAM_EXEC` or `STREAM_PORT`; a task may know others.
        head: its parameters, as JSON; at most `MAX_STREAM_HEAD` characters.
        trial: for a command: number of the trial of a sweep beside which it runs; None: none is named.

    Raises:
        SpecError: ``kind`` or ``head`` is malformed, or it names neither a container nor a trial, or a trial for
            something else than a command.
    """

    index: int | None
    kind: str
    head: str = "{}"
    trial: int | None = None

    @property
    def is_for_viewers(self) -> bool:
        """Return whether a user in `view_acl` may request it."""
        return self.kind == STREAM_PORT

    def __post_init__(self) -> None:
        if not _STREAM_KIND.fullmatch(self.kind):
            raise SpecError("kind", "is not 1 to 32 small letters and hyphens")
        if self.index is None and self.trial is None:
            raise SpecError("index", "is missing: it names neither a container nor a trial")
        if self.trial is not None and self.kind != STREAM_EXEC:
            raise SpecError("trial", "is for commands only")
        if len(self.head) > MAX_STREAM_HEAD:
            raise SpecError("head", f"has more than {MAX_STREAM_HEAD} characters")
