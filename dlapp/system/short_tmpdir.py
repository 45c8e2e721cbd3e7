"""Short name of a directory for temporary files with a long path.

The path of a Unix socket has at most 107 bytes, and programs create sockets in their TMPDIR: multiprocessing, so the
workers of PyTorch's DataLoader, Ray, ssh agents. The path of a container's directory alone has more than 80.

The name is ``/tmp/dlapp-<10 hex digits>/tmp``: a directory that only its user can enter, with a symbolic link in it.
Its creator holds a lock on the directory (flock). So directories in use can be distinguished from leftovers of killed
processes without following the link, whose target may be on a dead file system; and systemd-tmpfiles, which removes old
files from /tmp, skips locked directories. Source: unix(7), sun_path; systemd, tmpfiles.c, dir_cleanup.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os

from dlapp.system.files import UntrustedFile, closing_fd, closing_on_error, open_directory
from dlapp.system.shared_directory import problem_of
from dlapp.system.text import lazy_pattern

BASE = "/tmp"
_LINK = "tmp"
_NAME = lazy_pattern("dlapp-[0-9a-f]{10}")
_MAX_BYTES = 107 - 68
"""Maximum length of a TMPDIR. The longest known suffix is Ray's, whose socket is
``/ray/session_2024-01-01_00-00-00_000000_1234567/sockets/plasma_store``."""
_MAX_TRIES = 100
_MAX_NAMES = 10_000
"""Maximum number of entries of /tmp that are read; leftovers beyond them are found when there are fewer."""


def is_too_long(path: str) -> bool:
    """Return whether a TMPDIR is too long for socket paths."""
    return len(os.fsencode(path)) > _MAX_BYTES


class ShortTmpdir:
    """Short name of a directory, until it is closed or this process dies.

    Args:
        target: the directory.
        base: directory of the name, in which others cannot rename this user's entries.

    Attributes:
        path: the short name.

    Raises:
        OSError: it cannot be created there.
    """

    def __init__(self, target: str, base: str = BASE) -> None:
        with closing_fd(_open_base(base)) as above:
            for _ in range(_MAX_TRIES):
                name = f"dlapp-{os.urandom(5).hex()}"
                # 1. Another process of this user may find the new directory before it is locked, and consider it
                #    abandoned: it locks and removes it.
                # 2. Then opening it fails, or the lock is taken, or nothing can be created in it. In all of these cases
                #    another name is tried.
                with contextlib.suppress(FileExistsError, FileNotFoundError, BlockingIOError):
                    os.mkdir(name, 0o700, dir_fd=above)
                    self._fd = _linked(name, target, above)
                    break
            else:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), base)
        self._directory = os.path.join(base, name)
        self.path = os.path.join(self._directory, _LINK)

    def close(self) -> None:
        """Remove the name. Idempotent."""
        if self._fd < 0:
            return
        # Another process may have cleaned up; and files that the program put beside the link are not removed.
        with contextlib.suppress(OSError):
            os.unlink(_LINK, dir_fd=self._fd)
            os.rmdir(self._directory)
        os.close(self._fd)
        self._fd = -1


def _open_base(base: str) -> int:
    fd = open_directory(os.path.join(base, "."))  # it may be a link, of root
    with closing_on_error(fd):
        if problem := problem_of(os.fstat(fd), os.geteuid()):
            raise UntrustedFile(base, problem)
    return fd


def _linked(name: str, target: str, above: int) -> int:
    """Lock the directory ``name`` in ``above`` and create the link in it. Return its descriptor."""
    fd = open_directory(name, dir_fd=above, owners={os.geteuid()})
    with closing_on_error(fd):
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        os.symlink(target, _LINK, dir_fd=fd)
    return fd


def remove_stale_links(base: str = BASE) -> None:
    """Remove this user's names whose processes were killed.

    Only the link is removed, and the directory if it is empty then.

    Raises:
        OSError: ``base`` cannot be read, or others could rename entries in it.
    """
    with closing_fd(_open_base(base)) as above:
        with os.scandir(above) as entries:
            names = [one.name for one in itertools.islice(entries, _MAX_NAMES) if _NAME.fullmatch(one.name)]
        for name in names:
            # It is another user's, in use, not a directory, already removed, or contains other files.
            with contextlib.suppress(OSError):
                _remove_dead(name, above)


def _remove_dead(name: str, above: int) -> None:
    with closing_fd(open_directory(name, dir_fd=above, owners={os.geteuid()})) as fd:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with contextlib.suppress(FileNotFoundError):  # it was killed before it had created the link
            os.readlink(_LINK, dir_fd=fd)
            os.unlink(_LINK, dir_fd=fd)
        os.rmdir(name, dir_fd=above)
