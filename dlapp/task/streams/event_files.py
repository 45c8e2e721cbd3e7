"""Streams of the kind ``event-files``: event files of TensorBoard in the workspace, for dlapp-board.

    {"path": "output"}                 a directory of the workspace

The stream starts with a line of JSON that lists the files, ``[[name below the path, size], ...]``. The command answers
with a line that requests ranges, ``[[name, offset, size], ...]``, and receives their bytes, file after file. Links are
not followed, so a program cannot redirect reads out of its workspace.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket

from dlapp.errors import SpecError
from dlapp.net.streams import StreamRefused
from dlapp.system.files import closing_fd
from dlapp.task.streams.stream import Stream
from dlapp.tensorboard import EVENTS, MAX_FILES, MAX_LINE_BYTES
from dlapp.values.serialization import parse_json
from dlapp.values.spec import check_inside_workspace

_MAX_ENTRIES = 200_000
"""Maximum number of entries of the directory that are read."""
_MAX_DEPTH = 64
"""Maximum depth below it: each directory is opened from the top, level by level."""
_IDLE_S = 60.0
_CHUNK = 1 << 20


def serve(stream: Stream) -> None:
    """Send the requested ranges.

    Raises:
        StreamRefused: the directory does not exist.
    """
    path = stream.head.get("path")
    try:
        if not isinstance(path, str):
            raise SpecError("path", "is not text")
        check_inside_workspace("path", path)
        top = _open_directory(os.path.join(stream.place.directory, "workspace"), path)
    except SpecError as error:
        raise StreamRefused(str(error)) from error
    except OSError as error:
        raise StreamRefused(f"{path} of the workspace cannot be read: {error.strerror}") from error
    with closing_fd(top), stream.accept() as connection:
        connection.settimeout(_IDLE_S)
        sizes = _event_files(top)
        connection.sendall(json.dumps(list(sizes.items())).encode() + b"\n")
        with connection.makefile("rb") as asked:
            wanted = parse_json(asked.readline(MAX_LINE_BYTES) or b"[]")
        for one in wanted if isinstance(wanted, list) else ():
            match one:
                case [str(name), int(offset), int(size)] if 0 <= offset <= size <= sizes.get(name, -1):
                    _send(connection, top, name, offset, size)
                case _:
                    return


def _open_directory(root: str | int, path: str) -> int:
    """Open a directory below another one without following links."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.dup(root) if isinstance(root, int) else os.open(root, flags)
    for name in os.path.normpath(path).split("/"):
        with closing_fd(fd):
            fd = os.open(name, flags, dir_fd=fd)
    return fd


def _event_files(top: int) -> dict[str, int]:
    """Return name -> size of the event files in a directory tree."""
    found: dict[str, int] = {}
    todo, seen = ["."], 0
    while todo and seen <= _MAX_ENTRIES:
        directory = todo.pop()
        try:
            fd = _open_directory(top, directory)
        except OSError:
            continue  # it was removed meanwhile, or exchanged
        with closing_fd(fd), os.scandir(fd) as entries:
            for entry in entries:
                seen += 1
                if seen > _MAX_ENTRIES or len(found) >= MAX_FILES:
                    return found
                with contextlib.suppress(FileNotFoundError):
                    if entry.is_dir(follow_symlinks=False):
                        if directory.count("/") < _MAX_DEPTH:
                            todo.append(os.path.normpath(os.path.join(directory, entry.name)))
                    elif EVENTS in entry.name and entry.is_file(follow_symlinks=False):
                        name = os.path.normpath(os.path.join(directory, entry.name))
                        found[name] = entry.stat(follow_symlinks=False).st_size
    return found


def _send(connection: socket.socket, top: int, name: str, offset: int, size: int) -> None:
    above, _, last = name.rpartition("/")
    fd = _open_directory(top, above or ".")
    with closing_fd(fd):
        file = os.open(last, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=fd)
    with closing_fd(file):
        while offset < size and (data := os.pread(file, min(_CHUNK, size - offset), offset)):
            connection.sendall(data)
            offset += len(data)
