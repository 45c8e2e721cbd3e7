"""State of the embedded engine: its directories, and the locks that say who is alive.

All that a user's applications need lies in a directory that this user owns and nobody else can write:

    not shared   <local.state_dir>/<machine id>         0700
    shared       <local.state_dir>/<machine id>-<uid>   2750, one for each user, side by side; the group reads them

So another user cannot have put anything there that is written, run or removed. The owner
of an application is the owner of its directory. Files of other users are opened by descriptor (`StateDir.opened`), must
belong to the user in whose directory they lie, and have a size limit. A bad one hides only its own entry.

The locks are those of `dlapp.system.locks`, over whole files. Only write locks count: a member of the group can place
read locks on what it can read.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator

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
"""A submission lies in staging for milliseconds; what is this old was left by one that died."""
SHARED_MODE = 0o3770
"""Of a directory that a group shares: setgid hands the group down, sticky keeps what is one user's from the others."""
_ELSEWHERE = "export DLAPP_LOCAL_STATE_DIR=DIRECTORY names another one"
MAX_USERS = 10_000
"""How many names in a shared directory are looked at."""
MAX_JSON_BYTES = 32 << 20
"""The largest file of an application that is read as JSON; a view of 10,000 containers has some 6 MiB."""


class StateDir:
    """The state directory of one user on this machine.

    Args:
        path: that user's own directory; see above.
        shared: directories of other users lie beside it.
        uid: the user; None: whose process this is.
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
        """Input that a user's containers fetched and may need again (`dlapp.storage.cache.store`)."""
        return os.path.join(self.cache(uid), "input")

    def payload_caches(self, uid: int) -> str:
        """Return where the caches of a user's payloads are (`dlapp.storage.cache.payload`)."""
        return os.path.join(self.cache(uid), "payload")

    def unstored(self, uid: int) -> str:
        """Return where outputs of a user are kept that could not be stored; nothing removes them."""
        return os.path.join(self.of(uid).path, "unstored")

    def cache(self, uid: int) -> str:
        """Return where a user's packed workspaces are kept."""
        return os.path.join(self.of(uid).path, "cache", str(uid))

    def runner_lock(self, uid: int) -> str:
        """Return the file whose lock makes a process the runner of ``uid``; other users cannot open it."""
        return os.path.join(self.of(uid).path, f"runner-{uid}.lock")

    def runner_sign(self, uid: int) -> str:
        """Return the file whose lock shows the other users of a shared directory that ``uid`` has a runner."""
        return os.path.join(self.of(uid).path, f"runner-{uid}.alive")

    def runner_fifo(self, uid: int) -> str:
        """The FIFO that wakes the runner of ``uid``: a byte, whichever."""
        return os.path.join(self.of(uid).path, f"runner-{uid}.fifo")

    def runner_log(self, uid: int) -> str:
        """Return where the runner of ``uid`` writes."""
        return os.path.join(self.of(uid).path, f"runner-{uid}.log")

    def own_directory(self, name: str) -> str:
        """Return a directory for something of this user's alone (0700), made where it is missing.

        Raises:
            UntrustedFile: it is a link, another user's, or others may write it.
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
        """Open a directory of this user's, ``names`` below `path`, each of which must be this user's and no link.

        Returns:
            A path by which what lies in it is reached, whatever becomes of its name.

        Raises:
            FileNotFoundError: it is not there.
            UntrustedFile: one of the directories is a link, another user's, or others may write it.
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
    """Refuse a directory that is not a user's own, or is reached by a link: nothing is written where that leads.

    Raises:
        UntrustedFile: it is a link, no directory, or another user's.
        FileNotFoundError: it is not there.
    """
    with files.closing_fd(files.open_directory(path, owners={uid})):
        pass


def _is_own(found: os.stat_result, uid: int) -> bool:
    return stat.S_ISDIR(found.st_mode) and found.st_uid == uid and not found.st_mode & files.OTHERS_WRITE


def open_state(
    state_dir: str, *, shared: bool = False, mountinfo: str = "/proc/self/mountinfo", of_others: bool = False
) -> StateDir:
    """Make the state directory where it is missing, and check that it can be trusted.

    Args:
        state_dir: ``local.state_dir``.
        shared: ``local.shared``.
        mountinfo: the kernel's table of mounts.
        of_others: root may look at another user's directory. The answer's ``uid`` says whose it is; what is to be done
            there is done as that user (`dlapp.system.processes.as_user`), and nothing is made or checked here.

    Raises:
        ConfigError: it lies on a network file system, is not a directory, or has another mode than a shared one needs.
        Denied: it is another user's.
    """
    base = os.path.abspath(os.path.expanduser(state_dir))
    refuse_network_file_system(base, mountinfo)
    uid = os.geteuid()
    path = os.path.join(base, machine_name())
    if uid == 0 and (who := who_may_change(base)):
        owner = other_owner(base)
        if shared:
            _check_shared(base)  # which knows the remedy
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
                os.makedirs(os.path.dirname(base), exist_ok=True)
            _make_private(base)
            _make_directory(state.path, 0o700)
        # Everything below is then this user's, too: no other user can have put anything there.
        _check_private(state.path)
        seen_by_group = (state.applications, *([state.spool] if shared else []))
        for directory in (*seen_by_group, state.staging, os.path.join(state.path, "cache"), state.cache(uid)):
            if not os.path.lexists(directory):
                _make_directory(directory, 0o2750 if shared and directory in seen_by_group else 0o700)
            _refuse_anothers(directory)
    except NotADirectoryError as error:
        raise ConfigError(f"local.state_dir: {error.filename} is not a directory") from error
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
    """Refuse a directory for a group in which one user could take away or replace what is another's."""
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
    # Not os.access, which asks for the real user: the effective one makes the directory.
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
    # A link to another disk may lie here, made by the user or by the operator.
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
    """Refuse a directory that another user left in this user's, when that could be written by others."""
    found = os.stat(path)
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, "not a directory", path)
    # The user may have moved it to another disk, and left a link.
    for one in (found, os.lstat(path)):
        if one.st_uid != os.geteuid():
            raise Denied(f"local.state_dir: {path} belongs to {user_name(one.st_uid)}; remove it")


def _make_directory(path: str, mode: int) -> None:
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, mode & 0o777)
        if mode & ~0o700:
            os.chmod(path, mode)  # whatever the caller's umask is


def _owner(path: str) -> str:
    try:
        return f"it belongs to {user_name(os.stat(path).st_uid)}"
    except OSError:
        return "it is not there and cannot be made"


def machine_name() -> str:
    """Return what names this machine's state directories: its id, or its host name where it has none."""
    return machine_id() or f"host-{os.uname().nodename}"


def refuse_network_file_system(path: str, mountinfo: str = "/proc/self/mountinfo") -> None:
    """Refuse a directory on which locks and SQLite cannot be trusted.

    Raises:
        ConfigError: it lies on one of `NETWORK_FILE_SYSTEMS`.
    """
    kind, source = file_system_of(path, mountinfo)
    if kind in NETWORK_FILE_SYSTEMS:
        raise ConfigError(
            f"local.state_dir: {path} lies on a network file system ({kind}, {source}), where locks cannot be trusted; "
            "set local.state_dir to a directory on a local disk"
        )


# ---- locks ----


def is_locked(path: str, owner: int | None = None) -> bool:
    """Return whether anybody holds a write lock on a file; False if it does not exist or is not a regular file.

    Args:
        path: where it lies.
        owner: whose it must be, else it counts as not locked: a link to a file of somebody else's has that one's lock;
            None: anybody's.

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


def take_lock(path: str, mode: int) -> int | None:
    """Take the lock on a file that others can read, for the one process that may do so.

    A read lock on it can be anybody's, and would keep a write lock away for ever. So where no write lock is in the way,
    a new file that is locked already takes the place of the old one.

    Returns:
        A descriptor; None: somebody holds it.

    Raises:
        OSError: it cannot be made.
    """
    if is_locked(path):
        return None
    return lock_files.replace_locked(path, mode)


def open_lock(path: str, mode: int = 0o600) -> int:
    """Open a lock file, making it where it is missing; the descriptor is not inherited.

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
    """The ``file://`` URL of an absolute path. Source: RFC 8089; RFC 3986, section 2.3 for what stands for itself."""
    return "file://" + "".join(chr(one) if one in _PLAIN else f"%{one:02X}" for one in os.fsencode(path))


_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~/")


def write_whole(path: str, text: str, *, mode: int = 0o644, sync: bool = False) -> None:
    """Make or replace a file so that a reader finds the old or the new content.

    Args:
        path: of the file.
        text: the new content.
        mode: its permissions.
        sync: so does a reader after a power cut, and after the return the content is the new.
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
    """Return the object in a JSON file of an application, which is written by renaming; None if it does not exist.

    Raises:
        PermissionError: this process may not read it.
        DlappError: it is not a JSON object, no plain file, or another's than its directory.
    """
    try:
        return files.json_object(read_bytes(path, MAX_JSON_BYTES), path=path)
    except FileNotFoundError:
        return None
    except UntrustedFile as error:
        raise DlappError(f"{files.shown_path(path)} cannot be read: {error.problem}") from error


def read_text(path: str, limit: int) -> str:
    """Return a text file of an application, which is written by renaming; empty if it does not exist.

    Raises:
        PermissionError: this process may not read it.
        DlappError: it is no plain file, too large, or another's than its directory.
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
        path: where it lies.
        limit: how many bytes it may have; with ``end`` how many of its last ones are read.
        end: read only its end.

    Raises:
        FileNotFoundError, PermissionError: it is not there, or not for us.
        UntrustedFile: it is something else, or others may write it.
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
