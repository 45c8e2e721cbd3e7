"""Row of one application of the embedded engine (`dlapp.cluster.local.queue`), and its states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

WAITING, RUNNING, DONE = "waiting", "running", "done"
DEPENDENT, HELD = "dependent", "held"
"""States before `WAITING`, without a queue position: the application waits for the end of others (``after``), or for a
release."""
UNSTARTED = (DEPENDENT, HELD, WAITING)


class ApplicationRow:
    """Row of one application; attributes are the columns."""

    number: int
    id: str
    state: str
    uid: int
    submitter: str
    username: str
    appname: str
    memory_mib: int
    vcores: int
    gcores: int
    containers: int
    archive: str
    submitted_ms: int
    started_ms: int | None
    finished_ms: int | None
    boot_id: str
    starts: int
    aftermaths: int
    outcome: str
    reason: str
    summary: str
    size_bytes: int
    queue: str = "default"
    priority: int | None = None
    project: str = ""
    tags: str = ""
    waiting: str = ""
    resumed_from: str = ""
    again_of: str = ""
    after: str = ""
    hold: int = 0
    runs_at_most_s: int | None = None
    gpus: str = ""
    order: tuple[int, int, str] = (0, 0, "")
    """Queue position by arrival, if the queue was read (`dlapp.cluster.local.queue_state`)."""
    arrived_ns: int = 0
    """Arrival time, as reported by the kernel, in a private queue as written by the user [ns since 1970]; if the queue
    was read."""
    used_since_ns: int = 0
    """Start time, as reported by the kernel [ns since 1970]; in a shared queue only."""

    def __init__(self, columns: Sequence[str], values: Sequence[Any]) -> None:
        self.__dict__.update(zip(columns, values, strict=True))

    def __repr__(self) -> str:
        return f"<{self.id} {self.state}>"
