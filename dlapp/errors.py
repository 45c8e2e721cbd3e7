"""Errors of dlapp, each with its exit code.

    DlappError                   1
    ├── UsageError               2  also ValueError
    │   ├── SpecError               an invalid value in the spec
    │   ├── FileRefused             an invalid properties file; has all its errors
    │   ├── ConfigError             an invalid configuration file or variable
    │   └── RequestTooLarge             a request larger than any machine of the engine
    ├── NotFound                 3  also LookupError
    ├── Denied                   4  also PermissionError
    ├── Unreachable              5  also ConnectionError
    └── TimedOut                 6  also TimeoutError

Commands print ``Error: <message>`` on stderr and end with the code. Two more codes have no error class: 7, the
application was killed, and 130, interrupted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_NOT_FOUND = 3
EXIT_DENIED = 4
EXIT_UNREACHABLE = 5
EXIT_TIMED_OUT = 6
EXIT_KILLED = 7
EXIT_INTERRUPTED = 130


class DlappError(Exception):
    """Base class: an error with a message of one line for the user."""

    exit_code: int = EXIT_FAILED


class UsageError(DlappError, ValueError):
    """An invalid request."""

    exit_code = EXIT_USAGE


class SpecError(UsageError):
    """An invalid value in the spec; ``field`` is its path as the user wrote it."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field, self.problem = field, problem


def problem_of(error: Exception) -> str:
    """Return the problem of an error, without the field of a `SpecError`: the caller names the place."""
    return error.problem if isinstance(error, SpecError) else str(error)


class FileRefused(UsageError):
    """An invalid properties file; ``problems`` has one line for each error, in the order of the file."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


class ConfigError(UsageError):
    """An invalid configuration file, variable or option."""


class RequestTooLarge(UsageError):
    """A request larger than any machine of the engine.

    Args:
        problem: the whole message.
        field: the key with the value, as for `SpecError`; empty: no single key.
    """

    def __init__(self, problem: str, field: str = "") -> None:
        super().__init__(problem)
        self.field = field


class NotFound(DlappError, LookupError):
    """A missing application, container or file."""

    exit_code = EXIT_NOT_FOUND


class Denied(DlappError, PermissionError):
    """An operation without permission, often on another user's application."""

    exit_code = EXIT_DENIED


class Unreachable(DlappError, ConnectionError):
    """A server, ApplicationMaster or file system that does not respond."""

    exit_code = EXIT_UNREACHABLE


class TimedOut(DlappError, TimeoutError):
    """An operation that did not finish before its deadline."""

    exit_code = EXIT_TIMED_OUT


Refuse = Callable[[DlappError], None]
"""What a check does with an error: `raise_error`, or keep it, so that the check continues and finds the next one."""


def raise_error(error: DlappError) -> None:
    """Raise an error: the `Refuse` that ends a check at its first one."""
    raise error


@contextmanager
def refusals(refuse: Refuse) -> Iterator[None]:
    """Pass the error of one step of a check on, so that the next step follows; but an `Unreachable` ends the check."""
    try:
        yield
    except Unreachable:
        raise
    except DlappError as error:
        refuse(error)
