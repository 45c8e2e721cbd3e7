"""Outcome of an application: ``outcome.json``, written once by the first process, and the result of a death without it.

An outcome is a JSON object: ``state``, ``final_status``, ``cause`` (the values of `dlapp.values.report`),
``diagnostics``, ``finished_ms``. It is handled as JSON here: the runner does not load the classes, whose import takes
longer than a start.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

from dlapp.cluster.local import state
from dlapp.errors import DlappError
from dlapp.system import clock, files

Outcome = dict[str, Any]
_LOG_END_BYTES = 64 << 10
MAX_LINE = 300


def killed(by: str, finished_ms: int, *, begun: bool = True) -> Outcome:
    """Return the outcome of a kill, before or after the application started."""
    end = ", no output kept" if begun else " before it started"
    return ended("KILLED", "KILLED", "killed", f"killed by {by}{end}", finished_ms)


def failed(why: str, finished_ms: int) -> Outcome:
    """Return the outcome of an application that did not end by itself."""
    return ended("FAILED", "FAILED", "failed", why, finished_ms)


def ended(state_text: str, final_status: str, cause: str, diagnostics: str, finished_ms: int) -> Outcome:
    """Return the outcome reported by an ApplicationMaster.

    Args:
        state_text, final_status, cause: values of `State`, `FinalStatus` and `Cause`.
        diagnostics: reason, for the user.
        finished_ms: when it ended [ms since 1970].
    """
    return {
        "state": state_text,
        "final_status": final_status,
        "cause": cause,
        "diagnostics": diagnostics,
        "finished_ms": finished_ms,
    }


def write_outcome(application_dir: str, outcome: Outcome) -> Outcome:
    """Write the outcome unless there is one; return the valid one, which is durable."""
    import json

    path = os.path.join(application_dir, "outcome.json")
    temporary = os.path.join(application_dir, f".outcome.json.{os.getpid()}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        try:
            files.write_all(fd, json.dumps(outcome).encode())
            os.fsync(fd)
        finally:
            os.close(fd)
        # A link, not a rename: it fails if the name exists, so the first outcome stays.
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        os.unlink(temporary)
    files.sync_directory(application_dir)
    _mark_ended(application_dir)
    return read_outcome(application_dir) or outcome


def _mark_ended(application_dir: str) -> None:
    """Record the end in the spool of a shared state directory (`dlapp.cluster.local.spool`), by the kernel's clock.

    The runner may be dead, and would record it too late.
    """
    name = os.path.join(
        os.path.dirname(os.path.dirname(os.path.abspath(application_dir))), "spool", os.path.basename(application_dir)
    )
    # If it cannot be written, the runner does it when it settles the row.
    with contextlib.suppress(OSError):
        if os.path.isdir(f"{name}.running"):
            os.mkdir(f"{name}.ended", 0o750)


def read_outcome(application_dir: str) -> Outcome | None:
    """Return how an application ended; None: its directory has no outcome."""
    return state.read_json(os.path.join(application_dir, "outcome.json"))


def has_outcome(application_dir: str) -> bool:
    """Return whether the outcome exists, without reading it."""
    return os.path.lexists(os.path.join(application_dir, "outcome.json"))


def kill_request(application_dir: str) -> str | None:
    """Return who requested dlapp-kill; None: nobody."""
    try:
        found = state.read_json(os.path.join(application_dir, "kill.json"))
    except DlappError:
        return "an unknown user"  # a power failure may leave the file empty; its existence is enough
    return None if found is None else str(found.get("by", "an unknown user"))


def began(application_dir: str, row_boot_id: str, boot_id: str) -> bool:
    """Return whether the ApplicationMaster of a running row ever registered.

    After a reboot the answer is yes, whatever the directory contains: am.json is not synced, and it is better for an
    application to be FAILED than to run twice.
    """
    return row_boot_id != boot_id or os.path.lexists(os.path.join(application_dir, "am.json"))


def derive(application_dir: str, row_boot_id: str, boot_id: str) -> Outcome | None:
    """Return the outcome of an application whose processes are all gone and that wrote none.

    Returns:
        None: it had begun to commit its output; the commit will be completed, and decides the outcome.
    """
    if os.path.lexists(os.path.join(application_dir, "commit.json")):
        return None
    if (by := kill_request(application_dir)) is not None:
        return killed(by, died_ms(application_dir))
    return failed(why_it_died(application_dir, row_boot_id, boot_id), died_ms(application_dir))


def why_it_died(application_dir: str, row_boot_id: str, boot_id: str) -> str:
    """Return a line on the death of an ApplicationMaster: its signal, last traceback or exit code, and its log."""
    if row_boot_id != boot_id:
        return "the machine was restarted while it ran"
    path = os.path.join(application_dir, "am.log")
    status = _recorded_death(application_dir)[1]
    if status == -9 and not _has_problem(path):  # what it wrote nothing about did not come from it
        return (
            "the ApplicationMaster died: killed from outside (signal 9), for example by killall or the kernel (dmesg)"
        )
    if status is not None and status < 0:
        why = f": killed by signal {-status}"
    elif error := last_error(path):
        why = f": {error}"
    else:
        why = "" if status is None else f": exit code {status}"
    return f"the ApplicationMaster died{why}; its log is {path}"


def _has_problem(path: str) -> bool:
    """Return whether the end of a log has more than information, as on the containers that an attempt took over."""
    from dlapp.system.logs import log

    return any(line.strip() and not log.is_information(line) for line in _end_of(path).splitlines())


def last_error(path: str) -> str:
    """Return the error at the end of a log's last traceback; empty: there is no traceback."""
    _, found, after = _end_of(path).rpartition("Traceback (most recent call last):")
    if not found:
        return ""
    for line in after.splitlines()[1:]:
        if line and not line[0].isspace():
            return line[:MAX_LINE]
    return ""


def last_line(path: str) -> str:
    """Return the error of a log's last traceback, or else its last non-empty line, without time and level."""
    from dlapp.system.logs import log

    if error := last_error(path):
        return error
    lines = _end_of(path).split("\n")
    return next((log.message_of(line.strip())[:MAX_LINE] for line in reversed(lines) if line.strip()), "")


def _end_of(path: str) -> str:
    try:
        return state.read_bytes(path, _LOG_END_BYTES, end=True).decode("utf-8", "replace")
    except OSError:
        return ""


def record_death(application_dir: str, died_ms: int, status: int | None = None) -> None:
    """Record when and how an ApplicationMaster died, for all processes that report it, unless already recorded.

    Args:
        died_ms: time of the death [ms since 1970].
        status: its exit code, or the negative number of the signal that killed it; None: not known.
    """
    path = os.path.join(application_dir, "died")
    if not os.path.lexists(path):
        state.write_atomically(path, f"{died_ms}\n" if status is None else f"{died_ms} {status}\n")


def is_death_recorded(application_dir: str) -> bool:
    """Return whether an ApplicationMaster has died and no other one has registered since."""
    return os.path.lexists(os.path.join(application_dir, "died"))


def forget_death(application_dir: str) -> None:
    """Remove the record of a death: another ApplicationMaster registers."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(application_dir, "died"))


def _recorded_death(application_dir: str) -> tuple[int | None, int | None]:
    """Return when and how an ApplicationMaster died, as recorded by `record_death`; None: not known."""
    with contextlib.suppress(OSError, ValueError):
        numbers = [int(word) for word in state.read_bytes(os.path.join(application_dir, "died"), 100).split()]
        if len(numbers) in (1, 2):
            return numbers[0], numbers[1] if len(numbers) == 2 else None
    return None, None


def died_ms(application_dir: str) -> int:
    """Return when the ApplicationMaster of an application died [ms since 1970].

    As recorded by its runner; otherwise the time of the application's last change of a file; otherwise now.
    """
    noted_ms = _recorded_death(application_dir)[0]
    if noted_ms is not None:
        return noted_ms
    times = []
    for name in ("view.json", "am.json", "am.log", "journal-1.jsonl"):
        with contextlib.suppress(OSError):
            times.append(os.lstat(os.path.join(application_dir, name)).st_mtime_ns // 1_000_000)
    return max(times, default=clock.now_ms())
