"""Short name of a directory for temporary files, which may lie deep.

The path of a Unix socket has at most 107 bytes, and programs make sockets in their TMPDIR: multiprocessing, so the
workers of PyTorch's DataLoader, Ray, agents of ssh. The directory of a container alone has more than 80.

The name is ``/tmp/dlapp-<10 hex digits>/tmp``: a directory that only its user can enter, with a symbolic link in it.
Who made it holds a lock on the directory (flock). So the kernel tells what is in use from what a killed process left,
without a look at where the link leads, which may be a dead file system; and systemd-tmpfiles, which removes what is old
from /tmp, leaves alone what is locked. Source: unix(7), sun_path; systemd, tmpfiles.c, dir_cleanup.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import re

from dlapp.system.files import UntrustedFile, closing_fd, open_directory
from dlapp.system.shared_directory import problem_of

BASE = "/tmp"
_LINK = "tmp"
_NAME = re.compile("dlapp-[0-9a-f]{10}")
_MOST_BYTES = 107 - 68
"""Of a TMPDIR that is short enough. Nobody is known to append more than Ray, whose sockets are
``/ray/session_2024-01-01_00-00-00_000000_1234567/sockets/plasma_store``."""
_MOST_TRIES = 100
_MOST_NAMES = 10_000
"""The most names of /tmp that are read; what is left behind them is found when there are fewer."""


def is_too_long(path: str) -> bool:
    """Return whether a TMPDIR leaves too little room for the names of sockets."""
    return len(os.fsencode(path)) > _MOST_BYTES


class ShortTmpdir:
    """Short name of a directory, until it is closed or this process dies.

    Args:
        target: the directory.
        base: where the name is made: a directory in which others cannot rename what is this user's.

    Attributes:
        path: the name.

    Raises:
        OSError: it cannot be made there.
    """

    def __init__(self, target: str, base: str = BASE) -> None:
        with closing_fd(_open_base(base)) as above:
            for _ in range(_MOST_TRIES):
                name = f"dlapp-{os.urandom(5).hex()}"
                # 1. Another process of this user may find the new directory before it is locked, and take it for what
                #    a killed one left: it locks and removes it.
                # 2. Then either it is not there to be opened or the lock is taken; or nothing can be made in it.
                # In all of these cases another name is tried.
                with contextlib.suppress(FileExistsError, FileNotFoundError, BlockingIOError):
                    os.mkdir(name, 0o700, dir_fd=above)
                    self._fd = _linked(name, target, above)
                    break
            else:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), base)
        self._directory = os.path.join(base, name)
        self.path = os.path.join(self._directory, _LINK)

    def close(self) -> None:
        """Remove the name. May be repeated."""
        if self._fd < 0:
            return
        # Something may have cleaned up here; and what the program put beside the link is not removed.
        with contextlib.suppress(OSError):
            os.unlink(_LINK, dir_fd=self._fd)
            os.rmdir(self._directory)
        os.close(self._fd)
        self._fd = -1


def _open_base(base: str) -> int:
    fd = open_directory(os.path.join(base, "."))  # it may be a link, of root
    try:
        if problem := problem_of(os.fstat(fd), os.geteuid()):
            raise UntrustedFile(base, problem)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _linked(name: str, target: str, above: int) -> int:
    """Lock the directory ``name`` in ``above`` and make the link in it. Return its descriptor."""
    fd = open_directory(name, dir_fd=above, owners={os.geteuid()})
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        os.symlink(target, _LINK, dir_fd=fd)
    except BaseException:
        os.close(fd)
        raise
    return fd


def remove_stale_links(base: str = BASE) -> None:
    """Remove the names of this user whose process was killed.

    Nothing but the link is removed, and the directory only if it is empty then.

    Raises:
        OSError: what is in ``base`` cannot be read, or others could rename what is there.
    """
    with closing_fd(_open_base(base)) as above:
        with os.scandir(above) as entries:
            names = [one.name for one in itertools.islice(entries, _MOST_NAMES) if _NAME.fullmatch(one.name)]
        for name in names:
            # It is another user's, in use, no directory, gone by now, or holds something else.
            with contextlib.suppress(OSError):
                _remove_dead(name, above)


def _remove_dead(name: str, above: int) -> None:
    with closing_fd(open_directory(name, dir_fd=above, owners={os.geteuid()})) as fd:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with contextlib.suppress(FileNotFoundError):  # it was killed before it had made the link
            os.readlink(_LINK, dir_fd=fd)
            os.unlink(_LINK, dir_fd=fd)
        os.rmdir(name, dir_fd=above)
