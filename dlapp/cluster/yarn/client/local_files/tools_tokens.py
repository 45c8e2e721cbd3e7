"""Tools tokens of applications that were submitted to YARN from this machine.

The holder of an application's tools token may end it. The token is in the credentials of its ApplicationMaster and in
a file here that only the submitter can read. It is not on HDFS, which without Kerberos accepts any user name. A command
on another machine has no token: it reads the view, and requests a soft-kill by a file in the staging directory.

    ~/.local/state/dlapp/tokens/      0700
        <application id>.json         0600    {"user": the Hadoop user that it runs as, "token": ...}
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time

from dlapp.cluster.yarn.client.local_files.last_application import local_state
from dlapp.id_text import APPLICATION_ID
from dlapp.system import files
from dlapp.system.owners import check_not_writable_by_others
from dlapp.value import Value, field
from dlapp.values.ids import ApplicationId

MAX_AGE_S = 90 * 86_400.0
"""Age from which a file is removed, if no command removed it after the end of its application."""
_NAME = re.compile(rf"\.?{APPLICATION_ID}\.json(\.\d+)?", re.ASCII)
"""Name of a file here, and of its temporary file."""
_MAX_BYTES = 4096
_MAX_NAMES = 100_000


class KeptToken(Value):
    """Stored token of one application.

    Args:
        user: the Hadoop user as whom the submitter ran it.
        token: its tools token; empty once it has ended.
    """

    user: str
    token: str = field(repr=False)


def directory() -> str:
    """Return the directory of the token files."""
    return local_state("tokens")


def keep(application_id: ApplicationId, kept: KeptToken) -> None:
    """Write the file of an application, and remove old files.

    Raises:
        OSError: it cannot be written, or other users may change the directory.
    """
    check_not_writable_by_others(directory())
    files.make_below_home(directory(), 0o700)
    with _opened() as fd:
        _remove_old(fd)
        name = _name(application_id)
        temporary = f".{name}.{os.getpid()}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=fd)
        with open(os.open(temporary, flags, 0o600, dir_fd=fd), "w", encoding="ascii") as file:
            json.dump({"user": kept.user, "token": kept.token}, file)
        os.rename(temporary, name, src_dir_fd=fd, dst_dir_fd=fd)


def find(application_id: ApplicationId) -> KeptToken | None:
    """Return the token of an application; None if there is no file that only this user can read."""
    with contextlib.suppress(OSError), _opened() as fd:
        read = files.read_json_object(
            _name(application_id), dir_fd=fd, path=directory(), owners={os.geteuid()}, max_bytes=_MAX_BYTES
        )
        return KeptToken(str(read.get("user", "")), str(read.get("token", "")))
    return None


def known_ids() -> list[str]:
    """Return the ids of the applications that have a file here."""
    with contextlib.suppress(OSError), _opened() as fd:
        names = files.list_names(fd, limit=_MAX_NAMES)
        return [name.removesuffix(".json") for name in names if _NAME.fullmatch(name) and name.endswith(".json")]
    return []


def is_own(application_id: ApplicationId, user: str, login_user: str) -> bool:
    """Return whether an application is the caller's by YARN's report, or was submitted from here as another user.

    Args:
        application_id: id of the application.
        user: the Hadoop user of the application, as reported by YARN.
        login_user: the caller's Hadoop user.
    """
    if user == login_user:
        return True
    kept = find(application_id)
    return kept is not None and kept.user == user


def forget(application_id: ApplicationId, *, login_user: str) -> None:
    """Remove the token of an ended application.

    If it ran as another Hadoop user than ``login_user``, that user stays recorded: the application is still the
    submitter's.
    """
    kept = find(application_id)
    if kept is None or (not kept.token and kept.user != login_user):
        return
    with contextlib.suppress(OSError):
        if kept.user != login_user:
            keep(application_id, KeptToken(kept.user, ""))
        else:
            with _opened() as fd:
                os.unlink(_name(application_id), dir_fd=fd)


def _name(application_id: ApplicationId) -> str:
    return f"{application_id}.json"


def _opened() -> contextlib.AbstractContextManager[int]:
    check_not_writable_by_others(directory())
    return files.closing_fd(files.open_own_directory(f"{directory()}/.", path=directory()))


def _remove_old(fd: int) -> None:
    oldest = time.time() - MAX_AGE_S
    for name in files.list_names(fd, limit=_MAX_NAMES):
        if not _NAME.fullmatch(name):
            continue
        with contextlib.suppress(OSError):
            if os.stat(name, dir_fd=fd, follow_symlinks=False).st_mtime < oldest:
                os.unlink(name, dir_fd=fd)
