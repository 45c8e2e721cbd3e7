"""State of the embedded engine: its directories, and the locks that show which processes are alive.

All files of a user's applications are in a directory that this user owns and no other user can write:

    not shared   <local.state_dir>/<machine id>         0700
    shared       <local.state_dir>/<machine id>-<uid>   2750, one for each user, side by side; the group reads them

So no other user can have placed a file there that dlapp writes, runs or removes. The owner of an application is the
owner of its directory. Files of other users are opened by descriptor (`StateDir.opened`), must belong to the owner of
their directory, and have a size limit. An invalid file hides only its own entry.

The locks are those of `dlapp.system.locks`, on whole files. Only write locks count: a member of the group can place
read locks on files it can read.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from typing import Any

from dlapp.errors import ConfigError, Denied, DlappError, NotFound, Unreachable
from dlapp.id_text import is_application_id
from dlapp.system import files, lock_files, locks
from dlapp.system.files import UntrustedFile
from dlapp.system.machine import file_system_of, machine_id
from dlapp.system.owners import group_name, other_owner, user_name, who_may_change

_NETWORK = """
    nfs nfs4 cifs smb3 smbfs ncpfs afs coda 9p ceph lustre gpfs beegfs pvfs2 orangefs ocfs2 gfs2 panfs wekafs
    fuse.sshfs fuse.glusterfs fuse.ceph fuse.s3fs fuse.rclone fuse.mfs fuse.juicefs fuse.gcsfuse fuse.afp
"""
NETWORK_FILE_SYSTEMS = frozenset(_NETWORK.split())
DATABASE = "dlapp.db"
STALE_STAGING_S = 3600.0
"""A submission stays in staging for milliseconds; an entry of this age was left by one that died."""
SHARED_MODE = 0o3770
"""Mode of a directory that a group shares: setgid makes entries inherit the group, sticky protects each user's."""
_ELSEWHERE = "export DLAPP_LOCAL_STATE_DIR=DIRECTORY names another one"
MAX_USERS = 10_000
"""Limit of the names read in a shared directory."""
MAX_JSON_BYTES = 32 << 20
"""Size limit of JSON files of an application; a view of 10,000 containers takes about 6 MiB."""


class StateDir:
    """The state directory of one user on this machine.

    Args:
        path: that user's own directory; see the module.
        shared: directories of other users are beside it.
        uid: the user; None: the user of this process.
    """

    def __init__(self, path: str, *, shared: bool = False, uid: int | None = None) -> None:
        self.path, self.shared = path, shared
        self.uid = os.geteuid() if uid is None else uid
        self.database = os.path.join(path, DATABASE)
        self.staging = os.path.join(path, "staging")
        self.applications = os.path.join(path, "applications")
        self.spool = os.path.join(path, "spool")

    def application(self, application_id: str) -> str:
        """Return the directory of one application. Raises NotFound if the text is not an application's id."""
        if not is_application_id(application_id):
            raise NotFound(f"{application_id!r} is not an application's id")
        return os.path.join(self.applications, application_id)

    def input_cache(self, uid: int) -> str:
        """Return the directory of inputs that containers fetched and may need again (`dlapp.storage.cache.store`)."""
        return os.path.join(self.cache(uid), "input")

    def payload_caches(self, uid: int) -> str:
        """Return the directory of the caches of a user's payloads (`dlapp.storage.cache.payload`)."""
        return os.path.join(self.cache(uid), "payload")

    def unstored(self, uid: int) -> str:
        """Return the directory of outputs that could not be stored; they are never removed automatically."""
        return os.path.join(self.of(uid).path, "unstored")

    def cache(self, uid: int) -> str:
        """Return the directory of a user's packed workspaces."""
        return os.path.join(self.of(uid).path, "cache", str(uid))

    def runner_lock(self, uid: int) -> str:
        """Return the file whose lock makes a process the runner of ``uid``; other users cannot open it."""
        return os.path.join(self.of(uid).path, f"runner-{uid}.lock")

    def runner_sign(self, uid: int) -> str:
        """Return the file whose lock shows the other users of a shared directory that ``uid`` has a runner."""
        return os.path.join(self.of(uid).path, f"runner-{uid}.alive")

    def runner_fifo(self, uid: int) -> str:
        """Return the FIFO that wakes the runner of ``uid`` by any byte."""
        return os.path.join(self.of(uid).path, f"runner-{uid}.fifo")

    def runner_log(self, uid: int) -> str:
        """Return the log file of the runner of ``uid``."""
        return os.path.join(self.of(uid).path, f"runner-{uid}.log")

    def own_directory(self, name: str) -> str:
        """Return a private directory of this user (0700), created if missing.

        Raises:
            UntrustedFile: it is a link, another user's, or writable by others.
        """
        path = os.path.join(self.path, name)
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        files.check_own_directory(path, self.uid)
        return path

    # ---- other users of a shared directory ----

    def of(self, uid: int) -> StateDir:
        """Return the state directory of another user beside this one; it may not exist."""
        if uid == self.uid or not self.shared:
            return self
        return StateDir(f"{self.path.rpartition('-')[0]}-{uid}", shared=True, uid=uid)

    def others(self) -> list[StateDir]:
        """Return the state directories of all other users, by uid; a directory of a wrong owner or mode is left out."""
        if not self.shared:
            return []
        top, name = os.path.split(self.path)
        prefix = name.rpartition("-")[0] + "-"
        found = []
        with files.closing_fd(files.open_directory(f"{top}/.")) as fd:
            for name in files.list_names(fd, limit=MAX_USERS):
                text = name.removeprefix(prefix)
                if not (name.startswith(prefix) and len(text) <= 10 and text.isascii() and text.isdigit()):
                    continue
                uid = int(text)
                if uid == self.uid or str(uid) != text:
                    continue
                with contextlib.suppress(OSError):
                    if _is_own(os.stat(name, dir_fd=fd, follow_symlinks=False), uid):
                        found.append(self.of(uid))
        return sorted(found, key=lambda one: one.uid)

    @contextlib.contextmanager
    def opened(self, *names: str) -> Iterator[str]:
        """Open a directory of this user, ``names`` below `path`; each component must be this user's and not a link.

        Returns:
            A path that keeps working if the directory is renamed.

        Raises:
            FileNotFoundError: it does not exist.
            UntrustedFile: one of the directories is a link, another user's, or writable by others.
        """
        fd, path = files.open_own_directory(self.path, uid=self.uid), self.path
        try:
            for name in names:
                path = os.path.join(path, name)
                inner = files.open_own_directory(name, dir_fd=fd, path=path, uid=self.uid)
                os.close(fd)
                fd = inner
            yield f"/proc/self/fd/{fd}"
        finally:
            os.close(fd)


def check_directory(path: str, uid: int) -> None:
    """Reject a directory that is not a user's own, or is reached through a link: nothing is written there.

    Raises:
        UntrustedFile: it is a link, not a directory, or another user's.
        FileNotFoundError: it does not exist.
    """
    with files.closing_fd(files.open_directory(path, owners={uid})):
        pass


def _is_own(found: os.stat_result, uid: int) -> bool:
    return stat.S_ISDIR(found.st_mode) and found.st_uid == uid and not found.st_mode & files.OTHERS_WRITE


def open_state(
    state_dir: str, *, shared: bool = False, mountinfo: str = "/proc/self/mountinfo", of_others: bool = False
) -> StateDir:
    """Create the state directory if missing, and check that it can be trusted.

    Args:
        state_dir: ``local.state_dir``.
        shared: ``local.shared``.
        mountinfo: the kernel's table of mounts.
        of_others: as root, open another user's directory. The ``uid`` of the result is its owner; operations there run
            as that user (`dlapp.system.processes.as_user`), and nothing is created or checked here.

    Raises:
        ConfigError: it is on a network file system, is not a directory, or a shared one has the wrong mode.
        Denied: it is another user's.
    """
    base = os.path.abspath(os.path.expanduser(state_dir))
    _refuse_network_file_system(base, mountinfo)
    uid = os.geteuid()
    path = os.path.join(base, machine_name())
    if uid == 0 and (who := who_may_change(base)):
        owner = other_owner(base)
        if shared:
            _check_shared(base)  # its message names the remedy
        elif owner is not None and of_others:
            return StateDir(path, uid=owner)
        run_as = "" if owner is None else f"run this as {user_name(owner)}, or "
        raise Denied(
            f"local.state_dir: {base} may be changed by {who}, so root keeps nothing there: {run_as}set HOME, as "
            "sudo -H does"
        )
    state = StateDir(f"{path}-{uid}" if shared else path, shared=shared)
    try:
        if shared:
            _check_shared(base)
            _make_directory(state.path, 0o2750)
        else:
            with contextlib.suppress(FileExistsError):
                files.make_below_home(os.path.dirname(base))
            _make_private(base)
            _make_directory(state.path, 0o700)
        # Then everything below belongs to this user, too: no other user can have created it.
        _check_private(state.path)
        seen_by_group = (state.applications, *([state.spool] if shared else []))
        for directory in (*seen_by_group, state.staging, os.path.join(state.path, "cache"), state.cache(uid)):
            if not os.path.lexists(directory):
                _make_directory(directory, 0o2750 if shared and directory in seen_by_group else 0o700)
            _refuse_anothers(directory)
    except NotADirectoryError as error:
        raise ConfigError(f"local.state_dir: {error.filename} is not a directory") from error
    except files.NoHome as error:
        raise Denied(f"local.state_dir: {error.filename}: {error.strerror}; set HOME, or {_ELSEWHERE}") from error
    except PermissionError as error:
        if isinstance(error, DlappError):
            raise
        raise Denied(
            f"local.state_dir: {error.filename or base}: permission denied ({_owner(base)}); {_ELSEWHERE}"
        ) from error
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        raise Denied(f"local.state_dir: {error.filename or base}: read-only file system; {_ELSEWHERE}") from error
    return state


def _check_shared(base: str) -> None:
    """Reject a group directory in which one user could remove or replace another user's entries."""
    try:
        found = os.stat(base)
    except FileNotFoundError as error:
        raise ConfigError(
            f"local.state_dir: {base} is to be shared by a group and is not there: "
            f"install -d -m {SHARED_MODE:o} -g GROUP {base}, as root"
        ) from error
    if not stat.S_ISDIR(found.st_mode):
        raise ConfigError(f"local.state_dir: {base} is not a directory")
    if found.st_uid not in (0, os.geteuid()):
        raise ConfigError(
            f"local.state_dir: {base} is to be shared by a group and belongs to {user_name(found.st_uid)}, who could "
            f"replace what is another's: chown root {base}"
        )
    if (mode := stat.S_IMODE(found.st_mode)) != SHARED_MODE:
        raise ConfigError(
            f"local.state_dir: {base} is to be shared by a group and has mode {mode:o}; only with {SHARED_MODE:o} can "
            f"no member replace what is another's: chmod {SHARED_MODE:o} {base}"
        )
    # Not os.access, which checks the real uid: the effective uid creates the directory.
    if os.geteuid() not in (0, found.st_uid) and found.st_gid not in (os.getegid(), *os.getgroups()):
        name, group = user_name(os.geteuid()), group_name(found.st_gid)
        raise Denied(
            f"local.state_dir: {base} serves members of the group {group}, and {name} is none: usermod -aG {group} "
            f"{name}, as root; then log in again"
        )


def _make_private(path: str) -> None:
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
        return
    found = os.stat(path)
    # The user or the operator may have replaced it by a link to another disk.
    if found.st_uid != os.geteuid() or os.lstat(path).st_uid not in (0, os.geteuid()):
        raise Denied(f"local.state_dir: {path} belongs to {user_name(found.st_uid)}; name a directory of your own")
    if not stat.S_ISDIR(found.st_mode):
        raise ConfigError(f"local.state_dir: {path} is not a directory")
    if found.st_mode & files.OTHERS_WRITE:
        raise ConfigError(f"local.state_dir: {path} may be written by others: chmod go-w {path}")


def _check_private(path: str) -> None:
    try:
        files.check_own_directory(path)
    except UntrustedFile as error:
        raise Denied(f"local.state_dir: {error}; it must be a directory that only you may write") from error
    except FileNotFoundError as error:
        raise Denied(f"local.state_dir: {path} was made and removed by another user just now; try again") from error


def _refuse_anothers(path: str) -> None:
    """Reject a directory that another user created in this user's, at a time when others could write there."""
    found = os.stat(path)
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, "not a directory", path)
    # The user may have moved it to another disk and left a link.
    for one in (found, os.lstat(path)):
        if one.st_uid != os.geteuid():
            raise Denied(f"local.state_dir: {path} belongs to {user_name(one.st_uid)}; remove it")


def _make_directory(path: str, mode: int) -> None:
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, mode & 0o777)
        if mode & ~0o700:
            os.chmod(path, mode)  # whatever the umask is


def _owner(path: str) -> str:
    try:
        return f"it belongs to {user_name(os.stat(path).st_uid)}"
    except OSError:
        return "it is not there and cannot be made"


def machine_name() -> str:
    """Return the name of this machine's state directories: the machine id, or the host name if there is none."""
    return machine_id() or f"host-{os.uname().nodename}"


def _refuse_network_file_system(path: str, mountinfo: str) -> None:
    """Reject a directory on which locks and SQLite are not reliable. Raises ConfigError."""
    kind, source = file_system_of(path, mountinfo)
    if kind in NETWORK_FILE_SYSTEMS:
        raise ConfigError(
            f"local.state_dir: {path} lies on a network file system ({kind}, {source}), where locks cannot be trusted; "
            "set local.state_dir to a directory on a local disk"
        )


# ---- locks ----


def is_locked(path: str, owner: int | None = None) -> bool:
    """Return whether a file has a write lock; False if it does not exist or is not a regular file.

    Args:
        owner: required owner of the file, otherwise it counts as not locked (a link to another user's file would show
            that file's lock); None: any owner.

    Raises:
        OSError: it cannot be opened.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        found = os.fstat(fd)
        return stat.S_ISREG(found.st_mode) and owner in (None, found.st_uid) and locks.is_write_locked(fd)
    finally:
        os.close(fd)


def acquire_lock(path: str, mode: int) -> int | None:
    """Acquire the lock on a file that others can read, for the one process that may hold it.

    Any user can hold a read lock on it, which would block a write lock indefinitely. So if there is no write lock, the
    file is replaced by a new one that is already locked.

    Returns:
        A descriptor; None: another process holds the lock.

    Raises:
        OSError: it cannot be created.
    """
    if is_locked(path):
        return None
    return lock_files.replace_locked(path, mode)


def open_lock(path: str, mode: int = 0o600) -> int:
    """Open a lock file, creating it if missing; the descriptor is not inherited.

    Raises:
        Unreachable: it cannot be opened.
    """
    try:
        try:
            return os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, mode)
    except OSError as error:
        raise Unreachable(f"{path}: {error.strerror}") from error


def file_url(path: str) -> str:
    """Return the ``file://`` URL of an absolute path. Source: RFC 8089; RFC 3986, section 2.3 (unreserved
    characters)."""
    return "file://" + "".join(chr(one) if one in _PLAIN else f"%{one:02X}" for one in os.fsencode(path))


_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~/")


def write_atomically(path: str, text: str, *, mode: int = 0o644, sync: bool = False) -> None:
    """Create or replace a file atomically: a reader finds the old or the new content.

    Args:
        path: path of the file.
        text: the new content.
        mode: its permissions.
        sync: also hold this across a power failure; after the return the new content is durable.
    """
    directory, name = os.path.split(path)
    temporary = os.path.join(directory, f".{name}.{os.getpid()}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    try:
        files.write_all(fd, text.encode())
        if sync:
            os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(temporary, path)
    if sync:
        files.sync_directory(directory)


def read_json(path: str) -> dict[str, object] | None:
    """Return the object in a JSON file of an application, which is written by rename; None if it does not exist.

    Raises:
        PermissionError: this process may not read it.
        DlappError: it is not a JSON object, not a regular file, or its owner is not its directory's owner.
    """
    try:
        return files.json_object(read_bytes(path, MAX_JSON_BYTES), path=path)
    except FileNotFoundError:
        return None
    except UntrustedFile as error:
        raise DlappError(f"{files.shown_path(path)} cannot be read: {error.problem}") from error


def read_spec(application_dir: str) -> dict[str, Any]:
    """Return the spec of an application in its JSON form; empty if it cannot be read."""
    try:
        submission: dict[str, Any] = read_json(os.path.join(application_dir, "submission.json")) or {}
    except (DlappError, OSError):
        return {}
    spec = submission.get("spec")
    return spec if isinstance(spec, dict) else {}


def read_text(path: str, limit: int) -> str:
    """Return a text file of an application, which is written by rename; empty if it does not exist.

    Raises:
        PermissionError: this process may not read it.
        DlappError: it is not a regular file, too large, or its owner is not its directory's owner.
    """
    try:
        return read_bytes(path, limit).decode(errors="replace")
    except FileNotFoundError:
        return ""
    except UntrustedFile as error:
        raise DlappError(f"{files.shown_path(path)} cannot be read: {error.problem}") from error


def read_bytes(path: str, limit: int, *, end: bool = False) -> bytes:
    """Return the content of a regular file that belongs to the owner of its directory.

    Args:
        limit: size limit [bytes]; with ``end`` the number of bytes read from its end.
        end: read only the end.

    Raises:
        FileNotFoundError, PermissionError: it does not exist, or may not be read.
        UntrustedFile: it is not such a file, or others may write it.
    """
    directory, name = os.path.split(path)
    with files.closing_fd(files.open_directory(f"{directory}/.")) as dir_fd:
        owners = {os.fstat(dir_fd).st_uid}
        fd = files.open_file(name, dir_fd=dir_fd, path=path, owners=owners, max_bytes=None if end else limit)
    with open(fd, "rb", buffering=0) as file:
        found = os.fstat(fd)
        if found.st_mode & files.OTHERS_WRITE:
            raise UntrustedFile(path, "may be written by others")
        if end:
            file.seek(max(0, found.st_size - limit))
        pieces, left = [], limit
        while left and (piece := file.read(left)):
            pieces.append(piece)
            left -= len(piece)
    return b"".join(pieces)
