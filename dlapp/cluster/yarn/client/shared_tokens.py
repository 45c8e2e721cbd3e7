"""Tokens of YARN applications for users other than the owner, named by `view_acl` and `modify_acl`.

They are in the staging directory on HDFS, each in a file that its access control list opens to the owner and the named
users; the directory may be traversed by the same users. So HDFS authenticates the readers: by its user names and the
groups it resolves for them. A token is valid only for its own application, and is removed with the directory at the
end.

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
    """Prepare the parent of all staging directories for tokens that others read, if an application has such tokens.

    Returns:
        A line if a parent directory cannot be traversed by others.

    Raises:
        SpecError: HDFS does not support access control lists.
        Denied, Unreachable: it is not writable.
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
    above = [(place, files.status(place)) for place in (places.home, places.directory)]
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
    """Write the tokens of an application for other users, if it has any, for the duration of the submission.

    If the block ends with an error they are removed, except with `Unreachable`: then YARN may have the application.
    YARN may have it with another error, too, if the answer of one ResourceManager was lost and the next one failed. So
    nothing else in the directory is removed: it may be the ApplicationMaster's.

    Args:
        files: the default file system, as the owner.
        application_id: id of the application.
        spec: its specification, with the access lists.
        control_secret: secret of the application.

    Raises:
        DlappError: they cannot be written, or an error of the block.
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
    """Return the access control list, in HDFS's form, with the rights of the owner and of those named."""
    return [
        f"user::{owner}",
        *(f"user:{name}:{named}" for name in access.users),
        "group::---",
        *(f"group:{name}:{named}" for name in access.groups),
        f"mask::{named}",
        "other::---",
    ]


def find_token(session: ClusterSession, report: AppReport, purpose: str) -> str | None:
    """Return the caller's token for another user's application; None: the caller may not read one.

    Args:
        purpose: purpose of the token, `VIEWERS` or `MODIFIERS`.

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
    except DlappError:  # missing, not readable for the caller, or too large
        return None
    return text if is_token(text) else None
