"""Reading logs of containers on this machine: plain files, which the payloads may have replaced.

The path of a log is ``<application>/containers/<container>/<name>``. Only the application's directory itself is
trusted; everything below it must belong to its owner.
"""

from __future__ import annotations

import contextlib
import os

from dlapp.errors import NotFound
from dlapp.system import files
from dlapp.system.files import UntrustedFile

PIECE_BYTES = 1 << 18
"""Number of bytes of a log that are read at once."""


def open_log(path: str) -> int | None:
    """Open a log of a container: a regular file that belongs to its application's owner, like its parent directories.

    Returns:
        A descriptor; None if it does not exist.

    Raises:
        NotFound: it was replaced by something else, which a payload, or another user's application, may do.
    """
    container, name = os.path.split(path)
    containers, container = os.path.split(container)
    application, containers = os.path.split(containers)
    try:
        with contextlib.ExitStack() as stack:
            fd = stack.enter_context(files.closing_fd(files.open_directory(application)))
            owners, above = {os.fstat(fd).st_uid}, application
            for one in (containers, container):
                above = os.path.join(above, one)
                opened = files.open_directory(one, dir_fd=fd, path=above, owners=owners)
                fd = stack.enter_context(files.closing_fd(opened))
            return files.open_file(name, dir_fd=fd, path=path, owners=owners)
    except FileNotFoundError:
        return None
    except UntrustedFile as error:
        raise NotFound(str(error)) from error


def offset_of_last_lines(descriptor: int, size: int, lines: int, least: int = 0) -> int:
    """Return the offset of the last lines of a file; an unterminated last line counts.

    Args:
        descriptor: the descriptor of the file.
        size: the size of the file [bytes].
        lines: number of lines.
        least: first offset to read; returned if the lines start before it.
    """
    if lines <= 0:
        return size
    end = size
    missing = lines
    while end > least:
        start = max(least, end - PIECE_BYTES)
        block = os.pread(descriptor, end - start, start)
        # The line end at the very end of the file ends a line and begins none.
        place = len(block) - 1 if end == size and block.endswith(b"\n") else len(block)
        while (place := block.rfind(b"\n", 0, place)) >= 0:
            missing -= 1
            if missing == 0:
                return start + place + 1
        end = start
    return least


def last_lines(path: str, lines: int, most_bytes: int) -> bytes | None:
    """Return the current last lines of a log, from its last ``most_bytes`` bytes; None if it does not exist.

    Raises:
        NotFound: see `open_log`.
    """
    if (descriptor := open_log(path)) is None:
        return None
    with files.closing_fd(descriptor):
        size = os.fstat(descriptor).st_size
        start = offset_of_last_lines(descriptor, size, lines, max(0, size - most_bytes))
        return os.pread(descriptor, size - start, start)
