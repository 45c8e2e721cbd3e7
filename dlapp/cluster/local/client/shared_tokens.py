"""Tokens of applications on one machine for users other than the owner, named by `view_acl` and `modify_acl`.

Each token is a file in the application's directory that only the owner and the named users and groups may read; the
kernel checks this. Other users of a shared directory can enter the application's directory, but cannot read the file. A
token is valid for one application, and is removed with the secrets at its end.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from typing import NamedTuple

from dlapp.cluster.local.state import StateDir, read_json, read_text
from dlapp.errors import DlappError, Refuse, SpecError, raise_error
from dlapp.system.access_lists import allow_reading
from dlapp.values.access import MAX_TOKEN_BYTES, VIEWERS, AccessList, SharedToken, is_token, token_file
from dlapp.values.spec import AppSpec

_ADDRESS = re.compile(r"http://127\.0\.0\.1:([0-9]{1,5})")


class GrantedAccess(NamedTuple):
    """Access to another user's application.

    Args:
        owner: state directory of the owner.
        url: control address; empty: no ApplicationMaster of the owner is running.
        token: the caller's token.
    """

    owner: StateDir
    url: str
    token: str


def check_access(spec: AppSpec, state: StateDir, refuse: Refuse = raise_error) -> None:
    """Refuse unknown users and groups, or a state directory that others cannot enter, each with a SpecError."""
    for key, access in (("view_acl", spec.view_acl), ("modify_acl", spec.modify_acl)):
        if access and not state.shared:
            problem = "needs a queue that users share (local.shared): other users cannot enter yours"
            refuse(SpecError(f"application.{key}", problem))
        try:
            ids_of(access)
        except KeyError as unknown:
            refuse(SpecError(f"application.{key}", str(unknown.args[0])))


def ids_of(access: AccessList) -> tuple[list[int], list[int]]:
    """Return the ids of users and groups. Raises KeyError, with a message: one of them does not exist."""
    import grp
    import pwd

    def found(what: str, name: str) -> int:
        try:
            return pwd.getpwnam(name).pw_uid if what == "user" else grp.getgrnam(name).gr_gid
        except KeyError:
            raise KeyError(f"there is no {what} {name} on this machine") from None

    return [found("user", one) for one in access.users], [found("group", one) for one in access.groups]


def grant_reading(fd: int, token: SharedToken) -> None:
    """Allow the users and groups of a token to read its file, which is the caller's.

    Raises:
        SpecError: the file system does not support access control lists, or a user or group no longer exists.
        OSError: another error of the file system.
    """
    key = f"application.{'view_acl' if token.name == token_file(VIEWERS) else 'modify_acl'}"
    try:
        allow_reading(fd, *ids_of(token.access))
    except KeyError as unknown:
        raise SpecError(key, str(unknown.args[0])) from None
    except OSError as error:
        if error.errno != errno.ENOTSUP:
            raise
        problem = "the file system of local.state_dir keeps no access control lists"
        raise SpecError(key, problem) from error


def find_access(owner: StateDir, application_id: str, purpose: str) -> GrantedAccess | None:
    """Return the caller's access to an application of another user; None: its owner has not granted access.

    The owner wrote the address. It is used only if all processes that listen on it are this owner's, so it cannot point
    to a service of another user.

    Args:
        purpose: `VIEWERS` or `MODIFIERS`.
    """
    from dlapp.system.network.tcp_table import listeners

    token, url = "", ""
    with contextlib.suppress(OSError, DlappError), owner.opened("applications", application_id) as application_dir:
        token = read_text(os.path.join(application_dir, token_file(purpose)), MAX_TOKEN_BYTES)
        url = str((read_json(os.path.join(application_dir, "am.json")) or {}).get("control_url"))
    if not is_token(token):
        return None
    found = _ADDRESS.fullmatch(url)
    is_owners = found is not None and {one.uid for one in listeners(int(found[1]))} == {owner.uid}
    return GrantedAccess(owner, url if is_owners else "", token)
