"""Records who closed a descriptor, and reports whoever closes a number that is not theirs.

Reported is `os.close` of a number

- that is closed, and was closed by another place before: EBADF;
- that a file or a socket of this process has now: it would lose it without an error.

Loaded by ``dlapp/__init__.py`` of a copy (`tests.closes.copy`), also with ``python -I -S``, so it imports only what
Python has loaded already. Not seen is a number that was closed by C code, or that a bare `os.open` got meanwhile: then
its own close is EBADF, and the report names who closed it before.
"""

from __future__ import annotations

import builtins
import io
import os
import sys
import time

TYPE_CHECKING = False  # typing is not loaded yet
if TYPE_CHECKING:
    from typing import Any

DELIBERATE = ("close_all_but",)
"""Functions that close numbers that they read from a list."""
_DEPTH = 14
_EBADF = 9
"""`errno.EBADF`, of a module that may not be loaded yet."""


class Recorder:
    """Record of who closed each number of this process last, and which objects have a number now.

    Args:
        directory: where reports go; every user may write there.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._closed_at: dict[int, str] = {}
        self._owners: dict[int, Any] = {}
        self._close, self._open = os.close, io.open
        self._reports = 0

    def install(self) -> None:
        """Replace the functions that open and close."""
        os.close = self.close
        io.open = builtins.open = self._opening(self._open)
        os.register_at_fork(after_in_child=self._forget)
        if (module := sys.modules.get("socket")) is not None:
            self.watch_sockets(module)
        else:
            sys.meta_path.insert(0, _SocketImport(self))

    def close(self, fd: int) -> None:
        """Close a number as `os.close` does, and record it."""
        number = fd if type(fd) is int else int(fd)
        if (owner := self._owner(number)) is not None and not _is_deliberate():
            self._report(number, f"it belongs to {owner!r}")
        try:
            self._close(fd)
        except OSError as error:
            if error.errno == _EBADF and (before := self._closed_at.get(number)) and not _is_deliberate():
                self._report(number, f"it was closed before:\n{before}")
            raise
        self._closed_at[number] = _stack()
        self._owners.pop(number, None)

    def own(self, number: int, owner: Any) -> None:
        """Record that a file or a socket has a number."""
        import _weakref

        if number >= 0:
            try:
                self._owners[number] = _weakref.ref(owner)
            except TypeError:
                self._owners.pop(number, None)
            self._closed_at[number] = f"  by the {type(owner).__name__} that was opened at\n{_stack()}"

    def closed(self, number: int) -> None:
        """Record that an object closed its number."""
        if number >= 0:
            self._closed_at[number] = _stack()
            self._owners.pop(number, None)

    def let_go(self, number: int) -> None:
        """Record that an object has given its number away."""
        self._owners.pop(number, None)

    def watch_sockets(self, module: Any) -> None:
        """Record the numbers of sockets."""
        recorder, base = self, module.socket
        begin, end, detach = base.__init__, base._real_close, base.detach

        def __init__(sock: Any, *args: Any, **named: Any) -> None:
            begin(sock, *args, **named)
            recorder.own(sock.fileno(), sock)

        def _real_close(sock: Any, *args: Any) -> None:
            number = sock.fileno()
            try:
                end(sock, *args)
            except OSError as error:
                if error.errno == _EBADF:
                    recorder._report(
                        number, f"a socket had it, and it was closed before:\n{recorder.last_close(number)}"
                    )
                raise
            recorder.closed(number)

        def _detach(sock: Any) -> int:
            number: int = detach(sock)
            recorder.let_go(number)
            return number

        base.__init__, base._real_close, base.detach = __init__, _real_close, _detach

    def last_close(self, number: int) -> str:
        """Return where a number was closed last."""
        return self._closed_at.get(number, "  unknown")

    def _opening(self, open_file: Any) -> Any:
        def open(file: Any, *args: Any, **named: Any) -> Any:
            opened = open_file(file, *args, **named)
            if named.get("closefd", True) and (len(args) < 6 or args[5]):
                self.own(opened.fileno(), opened)
            return opened

        return open

    def _owner(self, number: int) -> Any:
        """Return the open file or socket that has a number; None: none."""
        found = self._owners.get(number)
        owner = None if found is None else found()
        if owner is None:
            return None
        try:
            return owner if owner.fileno() == number else None
        except ValueError:
            return None  # closed

    def _forget(self) -> None:
        # A child has copies of its parent's numbers, and may close them by number before it executes a program.
        self._closed_at.clear()
        self._owners.clear()

    def _report(self, number: int, why: str) -> None:
        self._reports += 1
        path = f"{self._directory}/{os.getpid()}-{time.monotonic_ns()}-{self._reports}"
        test = os.environ.get("PYTEST_CURRENT_TEST", "")
        text = f"{sys.argv[:4]} {test}\ndescriptor {number} is closed, and {why}\nclosed now:\n{_stack()}\n"
        try:
            # Not by a patched function.
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            os.write(fd, text.encode("utf-8", "replace"))
            self._close(fd)
        except OSError:
            os.write(2, text.encode("utf-8", "replace"))


class _SocketImport:
    """Finds no module; when the module of sockets is loaded, its class is watched."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        """Return the module's own specification, whose loader is asked to tell when it is done."""
        if name != "socket":
            return None
        sys.meta_path.remove(self)
        for finder in sys.meta_path:
            if (spec := finder.find_spec(name, path, target)) is not None:
                self._tell(spec.loader)
                return spec
        return None

    def _tell(self, loader: Any) -> None:
        execute = loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            self._recorder.watch_sockets(module)

        loader.exec_module = exec_module


def _is_deliberate() -> bool:
    return sys._getframe(2).f_code.co_name in DELIBERATE


def _stack() -> str:
    frame: Any = sys._getframe(2)
    lines: list[str] = []
    while frame is not None and len(lines) < _DEPTH:
        code = frame.f_code
        lines.append(f"  {code.co_filename}:{frame.f_lineno} {code.co_name}")
        frame = frame.f_back
    return "\n".join(lines)


def install(directory: str) -> None:
    """Record from now on."""
    Recorder(directory).install()
