"""A gate before files: a process that opens one waits until a test lets it go, and can be killed there. It needs root.

The kernel asks us before each open (fanotify's permission events), so what is held stands at exactly this point of its
program, for as long as is needed. Source: fanotify(7); uapi/linux/fanotify.h.

    +----------------------------------------------------------------------------------------------------------+
    | uint32 length | uint8 version | uint8 reserved | uint16 metadata length | uint64 mask | int32 fd | int32 pid |
    +----------------------------------------------------------------------------------------------------------+
    our answer: int32 fd, uint32 response
"""

from __future__ import annotations

import ctypes
import os
import select
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

_CLASS_CONTENT, _CLOEXEC, _NONBLOCK = 0x4, 0x1, 0x2
_MARK_ADD, _AT_FDCWD, _ALLOW = 0x1, -100, 0x1
_OPEN_PERM, _ON_DIRECTORIES, _ON_CHILDREN = 0x0001_0000, 0x4000_0000, 0x0800_0000
_EVENT, _ANSWER = struct.Struct("=IBBHQii"), struct.Struct("=iI")

Who = Callable[[int, str], bool]
"""Whether a process that opens a path is held."""


class FileGate:
    """Holds whom ``who`` names, in a with block; `watch` says where. Everybody else passes."""

    def __init__(self) -> None:
        self.who: Who = lambda _pid, _path: False
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._called("fanotify_init", _CLASS_CONTENT | _CLOEXEC | _NONBLOCK, os.O_RDONLY | os.O_CLOEXEC)
        self._wake, self._tell = os.pipe2(os.O_CLOEXEC)
        self._held: dict[int, int] = {}
        """Descriptor of an event -> the process that waits for its answer."""
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="file-gate", daemon=True)

    def _called(self, name: str, *words: object) -> int:
        answer = int(getattr(self._libc, name)(*words))
        if answer < 0:
            number = ctypes.get_errno()
            raise OSError(number, f"{name}: {os.strerror(number)}")
        return answer

    def __enter__(self) -> FileGate:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, offset: TracebackType | None
    ) -> None:
        self.open()
        os.close(self._tell)
        self._thread.join()
        for fd in (self._fd, self._wake):
            os.close(fd)

    def watch(self, path: Path) -> None:
        """Stand before a file; before a directory, and each file that is right in it."""
        mask = _OPEN_PERM | ((_ON_DIRECTORIES | _ON_CHILDREN) if path.is_dir() else 0)
        self._called("fanotify_mark", self._fd, _MARK_ADD, ctypes.c_uint64(mask), _AT_FDCWD, os.fsencode(path))

    @property
    def held(self) -> list[int]:
        """The processes that wait."""
        with self._lock:
            return list(self._held.values())

    def open(self, who: Who = lambda _pid, _path: False) -> None:
        """Let go who waits, and hold whom ``who`` names from now on."""
        with self._lock:
            self.who = who
            for fd in self._held:
                self._let_go(fd)
            self._held.clear()

    def _let_go(self, fd: int) -> None:
        os.write(self._fd, _ANSWER.pack(fd, _ALLOW))
        os.close(fd)

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while True:
            ready = dict(poll.poll())
            if self._wake in ready:
                return
            events, offset = os.read(self._fd, 65536), 0
            while offset < len(events):
                length, _, _, _, _, fd, pid = _EVENT.unpack_from(events, offset)
                offset += length
                with self._lock:
                    if self.who(pid, os.readlink(f"/proc/self/fd/{fd}")):
                        self._held[fd] = pid
                    else:
                        self._let_go(fd)
