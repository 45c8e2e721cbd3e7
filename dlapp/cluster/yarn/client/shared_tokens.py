"""Tokens of applications on YARN for others than their owner, whom `view_acl` and `modify_acl` name.

They are in the staging directory on HDFS, each in a file that the owner and those named may read, by its access control
list; the directory lets the same people pass. So who has one is whom HDFS knows: it checks its user and the groups that
it finds for it. A token opens its own application alone, and goes with the directory at the end.

    staging/                0711
        <application id>/   0700, and --x for all that are named
            viewers.token   0600, and r-- for those of view_acl
            modifiers.token 0600, and r-- for those of modify_acl
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from dlapp.cluster.yarn.staging import CACHE_MODE, OWN_FILE_MODE, OWN_MODE, StagingFiles, StagingPaths
from dlapp.errors import Denied, DlappError, SpecError, Unreachable
from dlapp.values.access import MAX_TOKEN_BYTES, AccessList, is_token, shared_tokens, token_file

if TYPE_CHECKING:
    from dlapp.cluster.yarn.client.rest import AppReport
    from dlapp.cluster.yarn.client.session import ClusterSession
    from dlapp.values.ids import ApplicationId
    from dlapp.values.spec import AppSpec

_PASSABLE = ("user::rwx", "group::--x", "other::--x")


def check_sharing(files: StagingFiles, spec: AppSpec) -> list[str]:
    """Prepare the directory of all staging directories for tokens that others read, if an application has such.

    Returns:
        A line for a directory above it that others may not pass.

    Raises:
        SpecError: HDFS keeps no access control lists.
        Denied, Unreachable: it takes no changes.
    """
    if not spec.view_acl and not spec.modify_acl:
        return []
    key = "application.view_acl" if spec.view_acl else "application.modify_acl"
    places = StagingPaths(files.home)
    files.make(places.all_staging, CACHE_MODE)
    try:
        files.set_acl(places.all_staging, _PASSABLE)
    except (Denied, Unreachable):
        raise
    except DlappError as error:
        raise SpecError(key, f"HDFS keeps no access control lists (dfs.namenode.acls.enabled): {error}") from error
    above = [(place, files.look(place)) for place in (places.home, places.directory)]
    return [
        f"{key}: {place} has mode {found.mode & 0o777:o}: those whom it keeps out get no port, and dlapp-softkill, "
        "dlapp-kill and dlapp-release refuse them"
        for place, found in above
        if found is not None and not found.mode & 0o001
    ]


@contextlib.contextmanager
def sharing_tokens(
    files: StagingFiles, application_id: ApplicationId, spec: AppSpec, control_secret: str
) -> Iterator[None]:
    """Write the tokens of an application for others than its owner, if it has any, while it is handed in.

    They are removed again where the block ends with an error, but not with `Unreachable`: then YARN may have it. It may
    with another error, too, if the answer of one ResourceManager was lost and the next one failed. So nothing else in
    the directory is removed: it may be the ApplicationMaster's.

    Args:
        files: the default file system, as the owner.
        application_id: of the application.
        spec: whom it names.
        control_secret: of the application.

    Raises:
        DlappError: they cannot be written, or as the block.
    """
    tokens = shared_tokens(spec.view_acl, spec.modify_acl, control_secret)
    staging = StagingPaths(files.home).staging(application_id)
    try:
        if tokens:
            files.make(staging, OWN_MODE)
            for one in tokens:
                files.write(f"{staging}/{one.name}", one.text.encode(), OWN_FILE_MODE)
                files.set_acl(f"{staging}/{one.name}", acl_entries("rw-", "r--", one.access))
            files.set_acl(staging, acl_entries("rwx", "--x", spec.view_acl.with_all_of(spec.modify_acl)))
        yield
    except Unreachable:
        raise
    except DlappError:
        if tokens:
            with contextlib.suppress(DlappError):
                for one in tokens:
                    files.remove(f"{staging}/{one.name}")
                files.remove_if_empty(staging)
        raise


def acl_entries(owner: str, named: str, access: AccessList) -> list[str]:
    """Return the access control list, in HDFS's form, of what its owner and those named may use.

    Args:
        owner: the owner's rights.
        named: the rights of those named.
        access: who they are.
    """
    return [
        f"user::{owner}",
        *(f"user:{name}:{named}" for name in access.users),
        "group::---",
        *(f"group:{name}:{named}" for name in access.groups),
        f"mask::{named}",
        "other::---",
    ]


def find_token(session: ClusterSession, report: AppReport, purpose: str) -> str | None:
    """Return the caller's token for an application of another user; None: the caller may read none.

    Args:
        session: of the caller, as whom the file is read.
        report: on the application.
        purpose: of the token, `VIEWERS` or `MODIFIERS`.

    Raises:
        Unreachable: HDFS does not answer.
    """
    hdfs = session.hdfs(session.user)
    home = hdfs.resolve(f"{hdfs.homes}/{report.user}")
    place = f"{StagingPaths(home).staging(report.application_id)}/{token_file(purpose)}"
    try:
        text = session.files(session.user).read(place, max_bytes=MAX_TOKEN_BYTES).decode("ascii", "replace")
    except Unreachable:
        raise
    except DlappError:  # not there, not for the caller, or too large
        return None
    return text if is_token(text) else None
