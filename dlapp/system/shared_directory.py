"""Directory that all users of a machine share for locks: GPU ledger, image pulls, queue turns.

It can be shared by all users only if it belongs to root and is sticky, because then only root can remove or rename
another user's entries, and nobody can replace the directory. A directory of another owner is for that owner alone; all
others are refused: two directories would mean two ledgers, and one device could be leased twice.

Source: unlink(2) and inode(7) (sticky bit); tmpfiles.d(5).
"""

from __future__ import annotations

import contextlib
import os
import stat

from dlapp.system.files import UntrustedFile, closing_on_error, open_directory
from dlapp.system.owners import user_text


def open_shared_directory(path: str, *, make: bool = False) -> int:
    """Open the directory; the caller closes the descriptor, which is not inherited.

    Args:
        make: create it if missing: as root for all users, otherwise for this user alone.

    Raises:
        FileNotFoundError: it is missing and not to be created.
        UntrustedFile: it cannot be created, or is not usable for this user; the message has what root can do.
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
        # If its owner closed it (0700, as dlapp creates a user's), it cannot be opened, but its owner can be read.
        raise UntrustedFile(path, _refusal(path) or error.strerror or str(error)) from error
    with closing_on_error(fd):
        if problem := problem_of(os.fstat(fd), os.geteuid()):
            raise UntrustedFile(path, f"{problem} ({remedy(path)})")
    return fd


def create_shared_file(name: str, directory: int) -> None:
    """Create an empty file that all users may lock, if there is none of that name.

    Raises:
        OSError: it cannot be created.
    """
    # Completed under another name, then linked: other processes never find a file that they may not open yet.
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
    """Return why a user cannot use a directory as the shared one; empty if possible."""
    others_write, sticky = found.st_mode & 0o022, found.st_mode & stat.S_ISVTX
    if others_write and not sticky:
        return f"has mode {stat.S_IMODE(found.st_mode):o}: others can remove what is not theirs"
    if found.st_uid not in (0, uid):
        return f"belongs to {user_text(found.st_uid)}, not to root, so it serves that user alone"
    return ""


def remedy(path: str) -> str:
    """Return the command for root that makes the directory usable for all users, also after the next boot."""
    return (
        f"as root: echo 'd {path} 1777 root root -' > /etc/tmpfiles.d/dlapp.conf && "
        f"systemd-tmpfiles --create dlapp.conf"
    )


def _refusal(path: str) -> str:
    """Return why this user cannot use a directory that cannot be opened; empty if unknown."""
    try:
        problem = problem_of(os.lstat(path), os.geteuid())
    except OSError:
        return ""
    return problem and f"{problem} ({remedy(path)})"


def _make(path: str) -> None:
    # Not with its final mode at once: the umask would remove the permissions for others.
    mode = 0o1777 if os.geteuid() == 0 else 0o700
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
            os.chmod(path, mode)
    except OSError as error:
        raise UntrustedFile(path, f"cannot be made: {error.strerror} ({remedy(path)})") from error
