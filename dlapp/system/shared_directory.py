"""The directory that all users of a machine share for locks: GPU ledger, image pulls, turns.

It serves everybody only if it belongs to root and is sticky, for then nobody but root removes or renames what is
another's, and nobody can put another directory in its place. One of another owner serves that owner alone. Everybody
else is refused: two directories would be two ledgers, and one device could be given twice.

Source: unlink(2) and inode(7) (sticky bit); tmpfiles.d(5).
"""

from __future__ import annotations

import contextlib
import os
import stat

from dlapp.system.files import UntrustedFile, open_directory
from dlapp.system.owners import user_text


def open_shared_directory(path: str, *, make: bool = False) -> int:
    """Open the directory; the caller closes the descriptor, which is not inherited.

    Args:
        make: make it if it is missing: as root for everybody, otherwise for this user alone.

    Raises:
        FileNotFoundError: it is missing and is not to be made.
        UntrustedFile: it cannot be made, or does not serve this user; the message says what root can do.
    """
    try:
        try:
            fd = open_directory(path)
        except FileNotFoundError:
            if not make:
                raise
            _make(path)
            fd = open_directory(path)
    except (FileNotFoundError, UntrustedFile):
        raise
    except OSError as error:
        # One that its owner closed (0700, as dlapp makes a user's) cannot be opened, but its owner can be read.
        raise UntrustedFile(path, _refusal(path) or error.strerror or str(error)) from error
    try:
        if problem := problem_of(os.fstat(fd), os.geteuid()):
            raise UntrustedFile(path, f"{problem} ({remedy(path)})")
    except BaseException:
        os.close(fd)
        raise
    return fd


def create_shared_file(name: str, directory: int) -> None:
    """Make an empty file that all users may lock, if there is none of that name.

    Raises:
        OSError: it cannot be made.
    """
    # Complete under another name, then linked: nobody finds a file that they may not open yet.
    temporary = f".{name}.{os.getpid()}.{os.urandom(4).hex()}"
    fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=directory)
    try:
        os.fchmod(fd, 0o666)
        with contextlib.suppress(FileExistsError):
            os.link(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    finally:
        os.close(fd)
        os.unlink(temporary, dir_fd=directory)


def problem_of(found: os.stat_result, uid: int) -> str:
    """Return why a directory does not serve a user as the shared one; empty: it does."""
    others_write, sticky = found.st_mode & 0o022, found.st_mode & stat.S_ISVTX
    if others_write and not sticky:
        return f"has mode {stat.S_IMODE(found.st_mode):o}: others can remove what is not theirs"
    if found.st_uid not in (0, uid):
        return f"belongs to {user_text(found.st_uid)}, not to root, so it serves that user alone"
    return ""


def remedy(path: str) -> str:
    """Return what root does so that the directory serves everybody, also after the next boot."""
    return (
        f"as root: echo 'd {path} 1777 root root -' > /etc/tmpfiles.d/dlapp.conf && "
        f"systemd-tmpfiles --create dlapp.conf"
    )


def _refusal(path: str) -> str:
    """Return why a directory that cannot be opened does not serve this user; empty: it cannot be seen."""
    try:
        problem = problem_of(os.lstat(path), os.geteuid())
    except OSError:
        return ""
    return problem and f"{problem} ({remedy(path)})"


def _make(path: str) -> None:
    # Not with its final mode at once: the umask takes the bits for others away.
    mode = 0o1777 if os.geteuid() == 0 else 0o700
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
            os.chmod(path, mode)
    except OSError as error:
        raise UntrustedFile(path, f"cannot be made: {error.strerror} ({remedy(path)})") from error
