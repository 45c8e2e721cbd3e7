"""Every error that dlapp raises on purpose, and the exit code that goes with it.

    DlappError                   1
    ├── UsageError               2  also ValueError
    │   ├── SpecError               a value of the spec is not possible
    │   ├── FileRefused             a properties file, all its faults at once
    │   ├── ConfigError             a configuration file or variable
    │   └── AskTooLarge             no machine of the engine can ever meet the ask
    ├── NotFound                 3  also LookupError
    ├── Denied                   4  also PermissionError
    ├── Unreachable              5  also ConnectionError
    └── TimedOut                 6  also TimeoutError

Commands print ``Error: <message>`` on stderr and end with the code. Two more codes do not belong to an error of
ours: 7, the application was killed, and 130, interrupted.
"""

from __future__ import annotations

from collections.abc import Sequence

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_NOT_FOUND = 3
EXIT_DENIED = 4
EXIT_UNREACHABLE = 5
EXIT_TIMED_OUT = 6
EXIT_KILLED = 7
EXIT_INTERRUPTED = 130


class DlappError(Exception):
    """Anything that went wrong and that we can explain in a line."""

    exit_code: int = EXIT_FAILED


class UsageError(DlappError, ValueError):
    """A request that is not possible as it was made."""

    exit_code = EXIT_USAGE


class SpecError(UsageError):
    """A value of the spec is refused; ``field`` is its path as the user wrote it."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field, self.problem = field, problem


class FileRefused(UsageError):
    """A properties file has faults; ``faults`` holds one line for each, in the order of the file."""

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = tuple(faults)


class ConfigError(UsageError):
    """A configuration file, variable or option is refused."""


class AskTooLarge(UsageError):
    """A request that no machine of the engine can ever meet.

    Args:
        problem: the whole message.
        field: the key that it is about, as for `SpecError`; empty: none alone.
    """

    def __init__(self, problem: str, field: str = "") -> None:
        super().__init__(problem)
        self.field = field


class NotFound(DlappError, LookupError):
    """An application, container or file that does not exist."""

    exit_code = EXIT_NOT_FOUND


class Denied(DlappError, PermissionError):
    """The caller may not do this; often the application is another user's."""

    exit_code = EXIT_DENIED


class Unreachable(DlappError, ConnectionError):
    """A server, an ApplicationMaster or a directory did not answer."""

    exit_code = EXIT_UNREACHABLE


class TimedOut(DlappError, TimeoutError):
    """Something took longer than its deadline."""

    exit_code = EXIT_TIMED_OUT
