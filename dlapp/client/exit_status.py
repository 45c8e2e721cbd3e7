"""Exit codes of commands for the ends of applications."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlapp.errors import EXIT_FAILED, EXIT_KILLED, EXIT_TIMED_OUT

if TYPE_CHECKING:
    from dlapp.values.report import ApplicationView

_EXIT_BY_CAUSE = {
    "succeeded": 0,
    "failed": EXIT_FAILED,
    "timed out": EXIT_TIMED_OUT,
    "soft-killed": EXIT_KILLED,
    "killed": EXIT_KILLED,
}


def exit_code(view: ApplicationView) -> int:
    """Return the exit code for an application's end: 0, 1 (failed), 6 (timed out) or 7 (killed)."""
    return exit_code_of(view.state.value, view.final_status.value, view.cause.value if view.cause else None)


def exit_code_of(state: str, final_status: str, cause: str | None) -> int:
    """Return `exit_code`, from the three fields that determine it."""
    if cause is not None:
        return _EXIT_BY_CAUSE.get(cause, EXIT_FAILED)
    if "KILLED" in (state, final_status):
        return EXIT_KILLED
    return 0 if final_status == "SUCCEEDED" else EXIT_FAILED
