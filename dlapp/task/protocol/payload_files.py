"""Task's side of DLAPP_DIR while its payload runs."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable

from dlapp.system.files import closing_fd, open_own_directory, write_all
from dlapp.system.network.readiness import ReadinessProbe
from dlapp.task.protocol.report_file import MetricWatch, ReportFile
from dlapp.task.protocol.use_watch import UseWatch
from dlapp.value import Closeable, replace
from dlapp.values.messages import PayloadStatus

_STOP = "stop"
_CONTAINERS_PER_S = 1000
"""Number of containers that may report a change each second, so that an ApplicationMaster of ten thousand containers is
not overloaded."""


def replace_file(directory: int, name: str, data: bytes) -> None:
    """Replace a file in DLAPP_DIR atomically. The payload may write to this directory, so names in it are not followed.

    Raises:
        OSError: it cannot be written.
    """
    temporary = f".{name}.{os.urandom(8).hex()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with closing_fd(os.open(temporary, flags, 0o600, dir_fd=directory)) as fd:
            write_all(fd, data)
        os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    except OSError:
        with contextlib.suppress(OSError):  # it was not created, or the payload removed it
            os.unlink(temporary, dir_fd=directory)
        raise


class PayloadFiles(Closeable):
    """The files through which one payload and its task exchange information.

    Created before the payload starts; used in a ``with`` block.

    Args:
        path: DLAPP_DIR on the host.
        total: number of containers of the application.
        on_change: called with the payload's status: at once when it becomes ready or ends, otherwise once a second at
            most, and less often in a large application.
        probe: detects when the payload is ready; None if it reports that itself.
        use: detects whether it is in use; None if not needed.
        watch: receives each report of a metric; None if not needed.

    Raises:
        OSError: the directory is not ours, or is not empty.
    """

    def __init__(
        self,
        path: str,
        total: int,
        on_change: Callable[[PayloadStatus], None],
        note: Callable[[str], None],
        probe: ReadinessProbe | None = None,
        use: UseWatch | None = None,
        watch: MetricWatch | None = None,
    ) -> None:
        self._probe, self._use, self._in_use = probe, use, None if use is None else True
        self._note = note
        self._on_change, self._reported, self._reported_at = on_change, PayloadStatus(), float("-inf")
        self._every_s = max(1.0, total / _CONTAINERS_PER_S)
        self._directory = open_own_directory(path)
        try:
            self.report = ReportFile(self._directory, note, watch)
        except BaseException:
            os.close(self._directory)
            raise

    def close(self) -> None:
        """Close the files, and the probe."""
        if self._probe is not None:
            self._probe.close()
        self.report.close()
        os.close(self._directory)

    def check(self, now_s: float) -> None:
        """Read what the payload wrote, and pass it on if that is due at ``now_s`` [s, monotonic]."""
        self.report.read(now_s)
        if self._probe is not None:
            self._probe.check(now_s)
        if self._use is not None:
            self._in_use = self._use.in_use(now_s)
        is_due = now_s >= self._reported_at + self._every_s or self.status.ready != self._reported.ready
        self._report_changes(now_s, is_due=is_due)

    @property
    def status(self) -> PayloadStatus:
        """Return the status of the payload: its reports, and the state of its ports."""
        said = self.report.status
        is_ready = said.ready or (self._probe is not None and self._probe.is_ready)
        if (is_ready, self._in_use) == (said.ready, said.in_use):
            return said
        return replace(said, ready=is_ready, in_use=self._in_use)

    def finish(self, now_s: float) -> None:
        """Read and pass on the rest after the payload's end."""
        self.report.finish(now_s)
        self._report_changes(now_s, is_due=True)

    def write_stop(self, reason: str, message: str, grace_s: float) -> None:
        """Write DLAPP_STOP atomically, before SIGTERM.

        Args:
            reason: one word, for programs.
            message: the same for people.
            grace_s: seconds until SIGKILL.
        """
        deadline_ms = time.time_ns() // 1_000_000 + int(grace_s * 1000)
        data = json.dumps({"reason": reason, "message": message, "deadline_ms": deadline_ms}).encode() + b"\n"
        try:
            replace_file(self._directory, _STOP, data)
        except OSError as error:
            # A full disk, or caused by the payload itself; SIGTERM is sent anyway.
            self._note(f"$DLAPP_STOP could not be written: {error}")

    def _report_changes(self, now_s: float, *, is_due: bool) -> None:
        if is_due and (status := self.status) != self._reported:
            self._reported, self._reported_at = status, now_s
            self._on_change(self._reported)
