"""Where the embedded engine keeps its state, and the locks that say who is alive.

The locks are those of `dlapp.ofd`, over whole files.
"""

from __future__ import annotations

import contextlib
import os
import stat

from dlapp import ofd
from dlapp.errors import ConfigError, Denied, DlappError, Unreachable

"""struct flock where off_t has 64 bits: l_type, l_whence, l_start, l_len, l_pid. Source: fcntl(2)."""

_NETWORK = """
    nfs nfs4 cifs smb3 smbfs ncpfs afs coda 9p ceph lustre gpfs beegfs pvfs2 orangefs ocfs2 gfs2 panfs wekafs
    fuse.sshfs fuse.glusterfs fuse.ceph fuse.s3fs fuse.rclone fuse.mfs fuse.juicefs fuse.gcsfuse fuse.afp
"""
NETWORK_FILE_SYSTEMS = frozenset(_NETWORK.split())
DATABASE = "dlapp.db"
STALE_STAGING_S = 3600.0
"""A submission lies in staging for milliseconds; what is this old was left by one that died."""


class StateDir:
    """The state directory of this machine.

    Args:
        path: ``<local.state_dir>/<machine id>``.
        shared: it belongs to a group; what is secret in it is 0600 nevertheless.
    """

    def __init__(self, path: str, *, shared: bool = False) -> None:
        self.path, self.shared = path, shared
        self.database = os.path.join(path, DATABASE)
        self.staging = os.path.join(path, "staging")
        self.applications = os.path.join(path, "applications")

    def application(self, application_id: str) -> str:
        """The directory of one application."""
        return os.path.join(self.applications, application_id)

    def input_cache(self, uid: int) -> str:
        """Input that a user's containers fetched and may need again (`dlapp.storage.cache`)."""
        return os.path.join(self.cache(uid), "input")

    def cache(self, uid: int) -> str:
        """Where a user's packed workspaces are kept."""
        return os.path.join(self.path, "cache", str(uid))

    def runner_lock(self, uid: int) -> str:
        """The file whose lock makes a process the runner of ``uid``."""
        return os.path.join(self.path, f"runner-{uid}.lock")

    def runner_fifo(self, uid: int) -> str:
        """The FIFO that wakes the runner of ``uid``: a byte, whichever."""
        return os.path.join(self.path, f"runner-{uid}.fifo")

    def runner_log(self, uid: int) -> str:
        """Where the runner of ``uid`` writes."""
        return os.path.join(self.path, f"runner-{uid}.log")


def open_state(state_dir: str, *, shared: bool = False, mountinfo: str = "/proc/self/mountinfo") -> StateDir:
    """Make the state directory where it is missing, and check that it can be trusted.

    Raises:
        ConfigError: it lies on a network file system, or is no directory.
        Denied: it is another user's.
    """
    base = os.path.abspath(os.path.expanduser(state_dir))
    state = StateDir(os.path.join(base, machine_id()), shared=shared)
    refuse_network_file_system(base, mountinfo)
    try:
        if not shared:
            with contextlib.suppress(FileExistsError):
                os.makedirs(os.path.dirname(base), exist_ok=True)
            for path in (base, state.path):
                _make_private(path)
        elif not os.path.isdir(base):
            raise ConfigError(
                f"local.state_dir: {base} is to be shared by a group and is not there: make it (mode 2770)"
            )
        for path in (state.path, state.applications, state.staging, os.path.join(state.path, "cache")):
            if not os.path.isdir(path):
                _make_directory(path, shared)
        if not os.path.isdir(state.cache(os.geteuid())):
            _make_directory(state.cache(os.geteuid()), False)
    except NotADirectoryError as error:
        raise ConfigError(f"local.state_dir: {error.filename} is not a directory") from error
    except PermissionError as error:
        raise Denied(f"local.state_dir: {error.filename or base}: permission denied ({_owner(base)})") from error
    return state


def _make_private(path: str) -> None:
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
        return
    found = os.stat(path)
    if not stat.S_ISDIR(found.st_mode):
        raise ConfigError(f"local.state_dir: {path} is not a directory")
    # Root may look after another user's applications; anybody else would run what that user can change.
    if found.st_uid != os.geteuid() and os.geteuid() != 0:
        raise Denied(f"local.state_dir: {path} belongs to {user_name(found.st_uid)}; set local.shared to share it")


def _make_directory(path: str, shared: bool) -> None:
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
        if shared:
            # Setgid hands the group down; sticky, so that nobody in it can remove or rename what is another's.
            os.chmod(path, 0o3770)


def _owner(path: str) -> str:
    try:
        return f"it belongs to {user_name(os.stat(path).st_uid)}"
    except OSError:
        return "it is not there and cannot be made"


def machine_id(root: str = "/") -> str:
    """This machine's id; where it has none (a container, say) its host name stands in.

    Source: machine-id(5); D-Bus's copy is older and still alone on some systems.
    """
    for path in ("etc/machine-id", "var/lib/dbus/machine-id"):
        with contextlib.suppress(OSError), open(os.path.join(root, path), encoding="ascii") as file:
            if (text := file.read().strip()) and text.isalnum():
                return text
    return f"host-{os.uname().nodename}"


def boot_id() -> str:
    """What changes when the machine is restarted. Source: random(4)."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def refuse_network_file_system(path: str, mountinfo: str = "/proc/self/mountinfo") -> None:
    """Refuse a directory on which locks and SQLite cannot be trusted.

    Raises:
        ConfigError: it lies on one of `NETWORK_FILE_SYSTEMS`.
    """
    try:
        with open(mountinfo, encoding="utf-8", errors="surrogateescape") as file:
            kind, source = file_system_of(os.path.realpath(path), file.read())
    except OSError:
        return  # no /proc: nothing is known against it
    if kind in NETWORK_FILE_SYSTEMS:
        raise ConfigError(
            f"local.state_dir: {path} lies on a network file system ({kind}, {source}), where locks cannot be trusted; "
            "set local.state_dir to a directory on a local disk"
        )


def file_system_of(path: str, mountinfo: str) -> tuple[str, str]:
    """Kind and source of the file system that ``path`` (absolute, without links) lies on.

    Args:
        mountinfo: text of /proc/self/mountinfo; of two mounts on one place the later one counts.

    Source: proc(5): ``36 35 98:0 /root /mount/point options optional... - type source superoptions``.
    """
    best, found = -1, ("", "")
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        words, rest = before.split(" "), after.split(" ")
        if len(words) < 5 or len(rest) < 2:
            continue
        point = _unescape(words[4])
        if (path == point or path.startswith(point.rstrip("/") + "/")) and len(point) >= best:
            best, found = len(point), (rest[0], _unescape(rest[1]))
    return found


def _unescape(text: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text


# ---- locks ----


def is_locked(path: str) -> bool:
    """Whether anybody holds the lock on a file; one that is not there is not locked."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return bool(ofd.held(fd))
    finally:
        os.close(fd)


def open_lock(path: str, mode: int = 0o600) -> int:
    """Open a lock file, making it where it is missing; the descriptor is not inherited.

    Raises:
        Unreachable: it cannot be opened.
    """
    try:
        try:
            return os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
            return fd
    except OSError as error:
        raise Unreachable(f"{path}: {error.strerror}") from error


# ---- processes ----


def start_time(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; with its pid it names the process for as long as the machine
    is up. None: there is no such process, or it cannot be seen. Source: proc(5), /proc/pid/stat, field 22."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return None
    # The second field is the program's name in brackets, and may hold brackets and blanks itself.
    fields = text[text.rfind(b")") + 2 :].split()
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def open_process(pid: int, started: int) -> int | None:
    """A pidfd for the process that had ``pid`` and started then; None: it is gone, or cannot be named from here."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return None
    # Checked after the open: from here on the descriptor means this one, whoever gets the pid later.
    if start_time(pid) != started:
        os.close(pidfd)
        return None
    return pidfd


def user_name(uid: int) -> str:
    """A user's name, or the number where there is none."""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


# ---- files ----


def file_url(path: str) -> str:
    """The ``file://`` URL of an absolute path. Source: RFC 8089; RFC 3986, section 2.3 for what stands for itself."""
    return "file://" + "".join(chr(one) if one in _PLAIN else f"%{one:02X}" for one in os.fsencode(path))


_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~/")


def write_whole(path: str, text: str, *, mode: int = 0o644, sync: bool = False) -> None:
    """Make or replace a file so that a reader finds the old or the new content; with ``sync`` so does one after a
    power cut, and after the return it is the new."""
    directory, name = os.path.split(path)
    temporary = os.path.join(directory, f".{name}.{os.getpid()}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    try:
        data = text.encode()
        while data:
            data = data[os.write(fd, data) :]
        if sync:
            os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(temporary, path)
    if sync:
        sync_directory(directory)


def sync_directory(path: str) -> None:
    """Bring a directory's names to the disk."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def read_json(path: str) -> dict[str, object] | None:
    """The object in a JSON file that is written by renaming; None: not there.

    Raises:
        DlappError: it is no JSON object.
    """
    import json

    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except FileNotFoundError:
        return None
    try:
        value = json.loads(text)
        if not isinstance(value, dict):
            raise ValueError("not an object")
    except ValueError as error:
        raise DlappError(f"{path} cannot be read: {error}") from error
    return value
